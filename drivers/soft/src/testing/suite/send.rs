// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts of sends, by all faces.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs, which is `unsafe`; the memory that they name is never accessed.
#![expect(missing_docs, reason = "each test has its name")]

use super::Bench;
use crate::doorbell::SendBell;
use crate::testing::{FakeBell, begin};
use crate::{QpShared, RecvQueue, SendConfig, SendQueue};
use core::ptr::null;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::VecDeque;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::provider::op::TsoArgs;
use uverbs_core::provider::{
    BadWr, Dest, Inline, Op, PostError, RecvBatch as _, RecvQueue as _, RemoteAddr, SendBatch as _,
    SendQueue as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::{SendFlags, SendWr, Sge, WrOpcode};

type Sends<B, L = FakeBell> = SendQueue<<B as Bench>::Format, L>;

/// A QP's send queue.
struct Posts<B: Bench> {
    queue: Sends<B>,
    kernel: B::Kernel,
    bell: FakeBell,
    shared: Arc<QpShared<B::Format>>,
}

impl<B: Bench> Posts<B> {
    fn new(slots: u32) -> Self {
        let (ring, kernel) = B::send_ring(slots);
        let (bell, shared) = (FakeBell::default(), Arc::new(QpShared::new(QpState::RTS)));
        let queue = SendQueue::new(ring, B::config(), Arc::clone(&shared), bell.clone()).unwrap();
        let mut posts = Self { queue, kernel, bell, shared };
        // siw's first doorbell asks whether the QP is connected.
        assert_eq!(posts.post(0), Ok(()));
        assert_eq!(posts.ids(), [0]);
        posts
    }

    fn post(&mut self, id: u64) -> Result<(), PostError> {
        // SAFETY: inline data are copied by the call, so no memory is used later.
        unsafe { self.queue.post(&send(id).inline(&id.to_ne_bytes())) }
    }

    /// Posts sends with these IDs, each of which is also its data, by one of the faces.
    fn post_by(&mut self, face: u64, ids: &[u64]) -> Result<(), PostError> {
        let queue = &mut self.queue;
        match face % 4 {
            0 => ids.iter().try_for_each(|id| self.post(*id)),
            1 => {
                let mut batch = queue.batch();
                for id in ids {
                    // SAFETY: inline data are copied by the call.
                    unsafe { batch.push(&send(*id).inline(&id.to_ne_bytes())) };
                }
                batch.complete()
            }
            2 => {
                queue.wr_start();
                for id in ids {
                    begin(queue, *id, Op::Send);
                    queue.wr_set_inline(Inline::Bytes(&id.to_ne_bytes()));
                }
                queue.wr_complete()
            }
            _ => {
                let entry =
                    |id: &u64| Sge { addr: (&raw const *id).expose_provenance() as u64, length: 8, lkey: 0 };
                let entries: Vec<_> = ids.iter().map(entry).collect();
                let node = |(id, entry): (&u64, &Sge)| SendWr {
                    sg_list: entry,
                    num_sge: 1,
                    send_flags: (SendFlags::INLINE | SendFlags::SIGNALED).bits(),
                    ..SendWr::new(*id, WrOpcode::SEND)
                };
                let mut nodes: Vec<_> = ids.iter().zip(&entries).map(node).collect();
                for i in 1..nodes.len() {
                    nodes[i - 1].next = &raw mut nodes[i];
                }
                // SAFETY: a list of valid nodes, whose entries are readable.
                unsafe { queue.post_send(nodes.as_ptr()) }.map_err(|bad| bad.error)
            }
        }
    }

    /// The IDs of what the kernel finds.
    fn ids(&self) -> Vec<u64> {
        core::iter::from_fn(|| B::take_send(&self.kernel)).map(|(id, _)| id).collect()
    }
}

fn send<'a, A>(wr_id: u64) -> Wr<'a, A> {
    Wr::new(wr_id, Op::Send).signaled()
}

/// Adds WRs without data.
fn fill(
    batch: &mut impl uverbs_core::provider::SendBatch<Sge = Sge, Remote = RemoteAddr>,
    ids: core::ops::Range<u64>,
) {
    for id in ids {
        // SAFETY: the WR has no data, so it names no memory.
        unsafe { batch.push(&send(id)) };
    }
}

pub fn thousands_of_wrs_are_consumed_in_order<B: Bench>() {
    let mut t = Posts::<B>::new(8);
    let capacity = u64::from(t.queue.capacity());
    let (mut sent, mut seen, mut step) = (0_u64, 0_u64, 0_u64);
    while seen < 20_000 {
        step += 1;
        // Posts of every length, through each face in turn.
        let room = capacity - (sent - seen);
        let n = (step % capacity + 1).min(room);
        let ids: Vec<u64> = (sent..sent + n).collect();
        if n != 0 {
            assert_eq!(t.post_by(step, &ids), Ok(()));
        }
        sent += n;
        if n == room {
            assert_eq!(t.post(0), Err(PostError::QueueFull));
        }
        for _ in 0..(step % 5).min(sent - seen) {
            assert_eq!(B::take_send(&t.kernel), Some((seen, seen.to_ne_bytes().to_vec())));
            seen += 1;
        }
    }
    assert!(t.bell.rings() > 5_000);
}

/// Compared with a model: posts and consumption in any sequence keep the number and the order of the WRs.
pub fn a_ring_behaves_as_a_queue<B: Bench>() {
    let mut t = Posts::<B>::new(8);
    let capacity = t.queue.capacity() as usize;
    let (mut model, mut next, mut random) = (VecDeque::new(), 1_u64, 1_u32);
    for _ in 0..20_000 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let n = u64::from(random >> 16) % 5;
        if random >> 31 == 0 {
            for _ in 0..n {
                assert_eq!(B::take_send(&t.kernel).map(|(id, _)| id), model.pop_front());
            }
            continue;
        }
        let mut batch = t.queue.batch();
        fill(&mut batch, next..next + n);
        if random >> 30 & 1 == 0 {
            continue;
        }
        let fits = model.len() + n as usize <= capacity;
        assert_eq!(batch.complete(), if fits { Ok(()) } else { Err(PostError::QueueFull) });
        if fits {
            model.extend(next..next + n);
            next += n;
        }
    }
    assert!(next > 5_000);
}

pub fn a_batch_too_long_for_the_ring_is_dropped_as_a_whole<B: Bench>() {
    let mut t = Posts::<B>::new(4);
    let rings = t.bell.rings();
    let mut batch = t.queue.batch();
    fill(&mut batch, 0..100);
    assert_eq!(batch.complete(), Err(PostError::QueueFull));
    assert_eq!((t.ids(), t.bell.rings()), (vec![], rings));
    for i in 0..3 {
        assert_eq!(t.post(i), Ok(()));
    }
}

pub fn aborted_dropped_forgotten_and_failed_batches_change_nothing<B: Bench>() {
    let mut t = Posts::<B>::new(8);
    for i in 0..3 {
        assert_eq!(t.post(i), Ok(()));
    }
    let rings = t.bell.rings();
    let mut batch = t.queue.batch();
    fill(&mut batch, 10..14);
    batch.abort();
    let mut batch = t.queue.batch();
    fill(&mut batch, 10..14);
    drop(batch);
    let mut batch = t.queue.batch();
    fill(&mut batch, 10..14);
    let _ = core::mem::ManuallyDrop::new(batch);
    let mut batch = t.queue.batch();
    fill(&mut batch, 10..14);
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { batch.push(&Wr::new(1, Op::Send).flags(SendFlags::IP_CSUM)) };
    assert_eq!(batch.complete(), Err(PostError::IllegalFlag));
    t.queue.wr_start();
    begin(&mut t.queue, 20, Op::Send);
    t.queue.wr_set_inline(Inline::Bytes(b"x"));
    t.queue.wr_abort();
    assert_eq!(t.bell.rings(), rings);
    // The next post uses the same slots.
    assert_eq!(t.post(42), Ok(()));
    assert_eq!(t.ids(), [0, 1, 2, 42]);
}

pub fn an_empty_batch_does_not_ring<B: Bench>() {
    let mut t = Posts::<B>::new(4);
    let rings = t.bell.rings();
    t.queue.batch().complete().unwrap();
    t.queue.wr_start();
    t.queue.wr_complete().unwrap();
    assert_eq!((t.bell.rings(), t.ids()), (rings, vec![]));
}

pub fn a_failed_doorbell_is_reported_and_not_rolled_back<B: Bench>() {
    let mut t = Posts::<B>::new(4);
    let error = PostError::Doorbell(Errno::ENODEV);
    t.bell.fail(Some(Errno::ENODEV));
    assert_eq!(t.post(1), Err(error));
    // A bad WR is reported, too.
    let bad = SendWr::new(7, WrOpcode::TSO);
    let first = SendWr { next: &raw const bad as *mut SendWr, ..SendWr::new(2, WrOpcode::SEND) };
    // SAFETY: a list of two nodes without data.
    let refused = unsafe { t.queue.post_send(&raw const first) }.map_err(|BadWr { error, wr }| (error, wr));
    assert_eq!(refused, Err((error, &raw const bad)));
    t.bell.fail(None);
    assert_eq!(t.post(3), Ok(()));
    assert_eq!(t.ids(), [1, 2, 3]);
}

pub fn refused_posts_do_not_change_an_open_session<B: Bench>() {
    let mut t = Posts::<B>::new(8);
    let list = |t: &mut Posts<B>, list: *const SendWr| {
        // SAFETY: NULL, or a list of one node without data.
        unsafe { t.queue.post_send(list) }.map_err(|BadWr { error, wr }| (error, wr))
    };
    assert_eq!(list(&mut t, null()), Err((PostError::NullList, null())));
    t.queue.wr_start();
    assert!(t.queue.wr_is_open());
    // An open session is reported even if the list is NULL.
    assert_eq!(list(&mut t, null()), Err((PostError::SessionOpen, null())));
    begin(&mut t.queue, 7, Op::Send);
    t.queue.wr_set_inline(Inline::Bytes(&[]));
    let node = SendWr::new(3, WrOpcode::SEND);
    assert_eq!(list(&mut t, &raw const node), Err((PostError::SessionOpen, &raw const node)));
    assert_eq!(t.post(1), Err(PostError::SessionOpen));
    t.queue.wr_complete().unwrap();
    assert!(!t.queue.wr_is_open());
    assert_eq!(t.ids(), [7]);
    // Calls without a session do nothing, and one that is aborted is not open.
    t.queue.wr_latch(PostError::Misaligned);
    begin(&mut t.queue, 8, Op::Send);
    t.queue.wr_start();
    t.queue.wr_abort();
    assert_eq!(t.queue.wr_complete(), Err(PostError::NoSession));
    t.queue.wr_start();
    t.queue.wr_start();
    assert_eq!(t.queue.wr_complete(), Err(PostError::SessionOpen));
    assert_eq!(t.ids(), []);
}

pub fn a_session_checks_its_setters<B: Bench>() {
    let mut t = Posts::<B>::new(8);
    let mut check = |build: &dyn Fn(&mut Sends<B>), error| {
        t.queue.wr_start();
        build(&mut t.queue);
        assert_eq!(t.queue.wr_complete(), Err(error));
        assert_eq!(t.ids(), []);
    };
    check(&|q| begin(q, 1, Op::Send), PostError::MissingSetter);
    check(
        &|q| {
            begin(q, 1, Op::Send);
            begin(q, 2, Op::Send);
            q.wr_set_inline(Inline::Bytes(&[]));
        },
        PostError::MissingSetter,
    );
    check(
        &|q| {
            begin(q, 1, Op::Send);
            q.wr_set_inline(Inline::Bytes(&[]));
            q.wr_set_inline(Inline::Bytes(&[]));
        },
        PostError::DoubledSetter,
    );
    check(&|q| q.wr_set_inline(Inline::Bytes(&[])), PostError::OrphanSetter);
    check(
        &|q| {
            begin(q, 1, Op::Send);
            q.wr_set_xrc_srqn(1);
        },
        PostError::OrphanSetter,
    );
    check(
        &|q| {
            begin(q, 1, Op::Send);
            q.wr_set_inline(Inline::Bytes(&[0; 4096]));
        },
        PostError::InlineTooLong,
    );
    check(
        &|q| {
            begin(q, 1, Op::Send);
            // SAFETY: entries of length 0 name no memory.
            unsafe { q.wr_set_sges(&[Sge { addr: 0, length: 0, lkey: 0 }; 300]) };
        },
        PostError::TooManySge,
    );
    check(&|q| q.wr_latch(PostError::InvalidArgument), PostError::InvalidArgument);
    check(&|q| begin(q, 1, Op::Tso(TsoArgs { header: &[], mss: 1 })), PostError::IllegalOpcode);
}

/// Lists and batches need no flag of a builder.
pub fn a_builder_has_only_the_operations_that_were_requested<B: Bench>() {
    let (ring, kernel) = B::send_ring(8);
    let config = SendConfig { builder: 1 << WrOpcode::SEND.0, ..B::config() };
    let shared = Arc::new(QpShared::new(QpState::RTS));
    let mut q: Sends<B> = SendQueue::new(ring, config, shared, FakeBell::default()).unwrap();
    let to = RemoteAddr { addr: 8, rkey: 1 };
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { q.post(&Wr::new(7, Op::Write(to)).signaled()) }.unwrap();
    let node = SendWr::new(8, WrOpcode::RDMA_WRITE);
    // SAFETY: a list of one node without data.
    unsafe { q.post_send(&raw const node) }.map_err(|b| b.error).unwrap();
    q.wr_start();
    begin(&mut q, 9, Op::Write(to));
    assert_eq!(q.wr_complete(), Err(PostError::IllegalOpcode));
    let ids: Vec<_> = core::iter::from_fn(|| B::take_send(&kernel)).map(|(id, _)| id).collect();
    assert_eq!(ids, [7, 8]);
}

pub fn addresses_that_no_such_device_has_are_refused<B: Bench>() {
    let mut t = Posts::<B>::new(4);
    // SAFETY: the WR has no data, so it names no memory.
    let to_srq = unsafe { t.queue.post(&send(1).to(Dest::Xrc(3))) };
    assert_eq!(to_srq, Err(PostError::InvalidArgument));
    // SAFETY: the WR has no data, so it names no memory.
    let frame = unsafe { t.queue.post(&send(2).to(Dest::Frame)) };
    assert_eq!(frame, Err(PostError::InvalidArgument));
    assert_eq!(t.ids(), []);
}

pub fn a_batch_from_before_the_queue_was_closed_is_not_published<B: Bench>() {
    let mut t = Posts::<B>::new(4);
    let rings = t.bell.rings();
    let mut batch = t.queue.batch();
    fill(&mut batch, 1..2);
    t.shared.set_state(QpState::RESET);
    assert_eq!(batch.complete(), Err(PostError::BadState));
    assert_eq!(t.post(2), Err(PostError::BadState));
    t.shared.set_state(QpState::RTS);
    t.queue.wr_start();
    begin(&mut t.queue, 3, Op::Send);
    t.queue.wr_set_inline(Inline::Bytes(&[]));
    t.shared.set_state_and_wait(QpState::RESET).unwrap();
    assert_eq!(t.queue.wr_complete(), Err(PostError::BadState));
    assert_eq!((t.ids(), t.bell.rings()), (vec![], rings));

    let (ring, kernel) = B::recv_ring(4);
    let shared = Arc::new(QpShared::new(QpState::RTS));
    let mut q: RecvQueue<B::Format, ()> = RecvQueue::new(ring, 1, Arc::clone(&shared), ()).unwrap();
    let mut batch = q.batch();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { batch.push(1, &[]) };
    shared.set_state_and_wait(QpState::RESET).unwrap();
    assert_eq!(batch.complete(), Err(PostError::BadState));
    assert_eq!(B::take_recv(&kernel), None);
}

/// A system call that signals its start and ends on request.
#[derive(Clone, Debug)]
struct SlowBell {
    made: Sender<()>,
    may_end: Arc<Mutex<Receiver<()>>>,
}

impl SendBell for SlowBell {
    fn ring(&self) -> Result<(), Errno> {
        self.made.send(()).unwrap();
        let _ = self.may_end.lock().unwrap().recv_timeout(Duration::from_secs(10));
        Ok(())
    }
}

pub fn a_control_call_waits_for_a_post_in_progress<B: Bench>() {
    let ((made, is_made), (end, may_end)) = (channel(), channel());
    let bell = SlowBell { made, may_end: Arc::new(Mutex::new(may_end)) };
    let shared = Arc::new(QpShared::new(QpState::RTS));
    let (ring, kernel) = B::send_ring(8);
    let mut q: Sends<B, SlowBell> = SendQueue::new(ring, B::config(), Arc::clone(&shared), bell).unwrap();
    // SAFETY: the WR has no data, so it names no memory.
    let mut post = move |id| unsafe { q.post(&send(id)) };
    // siw's first doorbell asks whether the QP is connected.
    (0..4).for_each(|_| end.send(()).unwrap());
    post(1).unwrap();
    while is_made.try_recv().is_ok() {}
    let (bell_end, ended) = (end, AtomicBool::new(false));
    thread::scope(|scope| {
        // No more ends are allowed than those that are used up here.
        let poster = scope.spawn(move || (2..100).try_for_each(&mut post));
        while is_made.recv_timeout(Duration::from_millis(100)).is_ok() {}
        let (done, is_done) = channel::<()>();
        let (ended, shared) = (&ended, Arc::clone(&shared));
        let control = scope.spawn(move || {
            let _done = done;
            shared.set_state_and_wait(QpState::RESET).unwrap();
            ended.load(Ordering::SeqCst)
        });
        assert_eq!(is_done.recv_timeout(Duration::from_millis(30)), Err(RecvTimeoutError::Timeout));
        ended.store(true, Ordering::SeqCst);
        bell_end.send(()).unwrap();
        assert!(control.join().unwrap(), "the control call did not wait");
        // Later posts find the queue closed.
        assert_eq!(poster.join().unwrap(), Err(PostError::BadState));
    });
    assert!(B::take_send(&kernel).is_some());
}
