// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests that all drivers with such queues have in common.
//!
//! A driver implements [`Bench`] and calls [`suite!`](crate::suite): each function here is then a test of it. What is special to the driver,
//! such as the bytes of a WQE or an index that makes no sense, it tests by itself.
#![expect(unsafe_code)]
#![expect(missing_docs, reason = "each test has its name")]
// UNSAFETY: posts WRs, which is `unsafe`; the memory that they name is never accessed.

use super::FakeBell;
use crate::doorbell::SendBell;
use crate::format::{CqRing, Format};
use crate::{CompletionQueue, QpShared, RecvQueue, SendConfig, SendQueue};
use core::panic::AssertUnwindSafe;
use core::ptr::null;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::VecDeque;

use std::panic::catch_unwind;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    BadWr, Completion as _, CompletionQueue as _, Connected, Inline, NoData, PollError, PostError,
    RecvBatch as _, RecvQueue as _, SendBatch as _, SendQueue as _, Wr, WrBuilder as _, op,
};
use uverbs_core::wc::WorkCompletion;
use uverbs_core::wr::{SendFlags, SendWr, Sge, WrOpcode};

/// A driver's rings in heap memory, and its kernel.
pub trait Bench: 'static {
    /// The format.
    type Format: Format;
    /// The kernel's side of a ring.
    type Kernel: core::marker::Send;

    /// A send queue whose QP has a peer, and which has sends and writes, also of builders.
    fn config() -> SendConfig;
    /// A ring of a send queue.
    fn send_ring(slots: u32) -> (<Self::Format as Format>::SendRing, Self::Kernel);
    /// A ring of a receive queue.
    fn recv_ring(slots: u32) -> (<Self::Format as Format>::RecvRing, Self::Kernel);
    /// A ring of a completion queue.
    fn cq_ring(slots: u32) -> (<Self::Format as Format>::CqRing, Self::Kernel);
    /// Takes a WQE as the kernel does: its ID and its inline data.
    fn take_send(kernel: &Self::Kernel) -> Option<(u64, Vec<u8>)>;
    /// Takes a receive as the kernel does: its ID.
    fn take_recv(kernel: &Self::Kernel) -> Option<u64>;
    /// Writes a completion as the kernel does, with this ID and of the QP with this number; `false` if the ring is full.
    fn complete(kernel: &Self::Kernel, wr_id: u64, qp_num: u32) -> bool;
}

type Sends<B, L = FakeBell> = SendQueue<<B as Bench>::Format, L>;
type Send = op::Send<RemoteAddr>;
type Write = op::Write<RemoteAddr>;

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
        unsafe { self.queue.post(wr(id), Connected, Send::new(), Inline(&id.to_ne_bytes())) }
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
                    unsafe { batch.push(wr(*id), Connected, Send::new(), Inline(&id.to_ne_bytes())) };
                }
                batch.complete()
            }
            2 => {
                queue.wr_start();
                for id in ids {
                    queue.wr_begin(wr(*id), Send::new());
                    queue.wr_set_inline(Inline(&id.to_ne_bytes()));
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

const fn wr(wr_id: u64) -> Wr {
    Wr { wr_id, flags: SendFlags::SIGNALED }
}

/// Adds WRs without data.
fn fill(
    batch: &mut impl uverbs_core::provider::SendBatch<Sge = Sge, Remote = RemoteAddr>,
    ids: core::ops::Range<u64>,
) {
    for id in ids {
        // SAFETY: the WR has no data, so it names no memory.
        unsafe { batch.push(wr(id), Connected, Send::new(), NoData) };
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
    unsafe { batch.push(Wr { wr_id: 1, flags: SendFlags::IP_CSUM }, Connected, Send::new(), NoData) };
    assert_eq!(batch.complete(), Err(PostError::IllegalFlag));
    t.queue.wr_start();
    t.queue.wr_begin(wr(20), Send::new());
    t.queue.wr_set_inline(Inline(b"x"));
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
    t.queue.wr_begin(wr(7), Send::new());
    t.queue.wr_set_inline(Inline(&[]));
    let node = SendWr::new(3, WrOpcode::SEND);
    assert_eq!(list(&mut t, &raw const node), Err((PostError::SessionOpen, &raw const node)));
    assert_eq!(t.post(1), Err(PostError::SessionOpen));
    t.queue.wr_complete().unwrap();
    assert!(!t.queue.wr_is_open());
    assert_eq!(t.ids(), [7]);
    // Calls without a session do nothing, and one that is aborted is not open.
    t.queue.wr_latch(PostError::Misaligned);
    t.queue.wr_begin(wr(8), Send::new());
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
    check(&|q| q.wr_begin(wr(1), Send::new()), PostError::MissingSetter);
    check(
        &|q| {
            q.wr_begin(wr(1), Send::new());
            q.wr_begin(wr(2), Send::new());
            q.wr_set_inline(Inline(&[]));
        },
        PostError::MissingSetter,
    );
    check(
        &|q| {
            q.wr_begin(wr(1), Send::new());
            q.wr_set_inline(Inline(&[]));
            q.wr_set_inline(Inline(&[]));
        },
        PostError::DoubledSetter,
    );
    check(&|q| q.wr_set_inline(Inline(&[])), PostError::OrphanSetter);
    check(
        &|q| {
            q.wr_begin(wr(1), Send::new());
            q.wr_set_xrc_srqn(1);
        },
        PostError::OrphanSetter,
    );
    check(
        &|q| {
            q.wr_begin(wr(1), Send::new());
            q.wr_set_inline(Inline(&[0; 4096]));
        },
        PostError::InlineTooLong,
    );
    check(
        &|q| {
            q.wr_begin(wr(1), Send::new());
            // SAFETY: entries of length 0 name no memory.
            unsafe { q.wr_set_sges(&[Sge { addr: 0, length: 0, lkey: 0 }; 300]) };
        },
        PostError::TooManySge,
    );
    check(&|q| q.wr_latch(PostError::InvalidArgument), PostError::InvalidArgument);
    check(
        &|q| q.wr_begin(wr(1), op::Tso::new(op::TsoArgs { header: &[], mss: 1 })),
        PostError::IllegalOpcode,
    );
}

/// Lists and batches need no flag of a builder.
pub fn a_builder_has_only_the_operations_that_were_requested<B: Bench>() {
    let (ring, kernel) = B::send_ring(8);
    let config = SendConfig { builder: 1 << WrOpcode::SEND.0, ..B::config() };
    let shared = Arc::new(QpShared::new(QpState::RTS));
    let mut q: Sends<B> = SendQueue::new(ring, config, shared, FakeBell::default()).unwrap();
    let to = RemoteAddr { addr: 8, rkey: 1 };
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { q.post(wr(7), Connected, Write::new(to), NoData) }.unwrap();
    let node = SendWr::new(8, WrOpcode::RDMA_WRITE);
    // SAFETY: a list of one node without data.
    unsafe { q.post_send(&raw const node) }.map_err(|b| b.error).unwrap();
    q.wr_start();
    q.wr_begin(wr(9), Write::new(to));
    assert_eq!(q.wr_complete(), Err(PostError::IllegalOpcode));
    let ids: Vec<_> = core::iter::from_fn(|| B::take_send(&kernel)).map(|(id, _)| id).collect();
    assert_eq!(ids, [7, 8]);
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
    t.queue.wr_begin(wr(3), Send::new());
    t.queue.wr_set_inline(Inline(&[]));
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
    let mut post = move |id| unsafe { q.post(wr(id), Connected, Send::new(), NoData) };
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

pub fn receives_fill_and_empty_the_ring_in_every_lap<B: Bench>() {
    let (ring, kernel) = B::recv_ring(4);
    let shared = Arc::new(QpShared::new(QpState::RTS));
    let mut q: RecvQueue<B::Format, ()> = RecvQueue::new(ring, 2, shared, ()).unwrap();
    let capacity = u64::from(q.capacity());
    for lap in 0..3000_u64 {
        let n = lap % (capacity + 1);
        for i in 0..n {
            // SAFETY: the simulated kernel does not access the memory.
            unsafe { q.post(lap * 8 + i, &[Sge { addr: lap, length: 1, lkey: 2 }]) }.unwrap();
        }
        if n == capacity {
            // SAFETY: the receive has no entries, so it names no memory.
            assert_eq!(unsafe { q.post(0, &[]) }, Err(PostError::QueueFull));
        }
        for i in 0..n {
            assert_eq!(B::take_recv(&kernel), Some(lap * 8 + i));
        }
        assert_eq!(B::take_recv(&kernel), None);
    }
}

pub fn receives_that_the_kernel_has_not_taken_are_counted<B: Bench>() {
    let (ring, kernel) = B::recv_ring(8);
    let mut q: RecvQueue<B::Format, ()> = RecvQueue::new_shared(ring, 1, ()).unwrap();
    for lap in 0..50_u32 {
        let (none, before) = q.untaken().unwrap();
        assert_eq!(none, 0, "lap {lap}");
        let n = lap % (q.capacity() + 1);
        for id in 0..n {
            // SAFETY: a receive without entries names no memory.
            unsafe { q.post(id.into(), &[]) }.unwrap();
        }
        q.batch().abort();
        assert_eq!(q.untaken(), Some((n, before)), "posts do not change the position");
        let mut last = before;
        for taken in 1..=n {
            B::take_recv(&kernel).unwrap();
            let (left, position) = q.untaken().unwrap();
            assert!(left == n - taken && position != last, "{left}, {last} to {position}");
            last = position;
        }
    }
}

/// A completion queue.
struct Polls<B: Bench> {
    queue: CompletionQueue<B::Format, ()>,
    kernel: B::Kernel,
}

impl<B: Bench> Polls<B> {
    fn new(slots: u32) -> Self {
        let (ring, kernel) = B::cq_ring(slots);
        Self { queue: CompletionQueue::new(ring, ()).unwrap(), kernel }
    }

    /// Writes completions with these IDs, of the QPs with their numbers divided by 10.
    fn complete(&self, ids: &[u64]) {
        for id in ids {
            assert!(B::complete(&self.kernel, *id, *id as u32 / 10));
        }
    }

    fn is_full(&self) -> bool {
        !B::complete(&self.kernel, 999, 99)
    }

    fn ids(&mut self, max: usize) -> Vec<u64> {
        let mut ids = Vec::new();
        let n = self.queue.poll_each(max, |c| ids.push(c.wr_id())).unwrap();
        assert_eq!(n, ids.len());
        ids
    }
}

pub fn a_poll_takes_at_most_the_requested_and_available_completions<B: Bench>() {
    let mut t = Polls::<B>::new(8);
    let mut wc = [WorkCompletion::default(); 5];
    let (mut made, mut seen) = (0_u64, 0_u64);
    for lap in 0..5000_u64 {
        for _ in 0..lap % 6 {
            made += u64::from(B::complete(&t.kernel, made, 1));
        }
        assert_eq!(t.queue.is_surely_empty(), made == seen);
        let max = (lap % 5) as usize;
        let n = t.queue.poll_cq(&mut wc[..max]).unwrap();
        assert_eq!(n as u64, (made - seen).min(max as u64));
        for c in &wc[..n] {
            assert_eq!(c.wr_id, seen);
            seen += 1;
        }
    }
    assert!(seen > 5_000);
}

pub fn a_full_queue_has_room_again_when_it_was_polled<B: Bench>() {
    let mut t = Polls::<B>::new(8);
    let capacity = u64::from(t.queue.cqe());
    for lap in 0..20 {
        let ids: Vec<u64> = (lap..lap + capacity).collect();
        t.complete(&ids);
        assert!(t.is_full());
        assert_eq!(t.ids(99), ids);
        assert_eq!(t.ids(99), []);
    }
}

pub fn a_panic_in_the_callback_counts_its_completion_as_polled<B: Bench>() {
    let mut t = Polls::<B>::new(8);
    t.complete(&[0, 1, 2, 3, 4]);
    let result =
        catch_unwind(AssertUnwindSafe(|| t.queue.poll_each(5, |c| assert_ne!(c.wr_id(), 2, "on purpose"))));
    assert!(result.is_err());
    assert_eq!(t.ids(5), [3, 4]);
    // No control call waits.
    t.queue.shared().stopped(|state| state.remove(9, drop));
}

pub fn an_extended_poll_goes_on_with_completions_that_arrive<B: Bench>() {
    let mut t = Polls::<B>::new(4);
    assert_eq!(t.queue.start_poll(), Err(PollError::Empty));
    assert_eq!(t.queue.next_poll(), Err(PollError::NoSession));
    assert!(t.queue.current().is_none());
    t.queue.end_poll();
    t.complete(&[0]);
    t.queue.start_poll().unwrap();
    assert_eq!(t.queue.start_poll(), Err(PollError::SessionOpen));
    assert_eq!(t.queue.poll_each(1, |_| ()), Err(PollError::SessionOpen));
    assert!(!t.queue.is_surely_empty(), "a poll would fail");
    assert_eq!(t.queue.next_poll(), Err(PollError::Empty));
    assert_eq!(t.queue.current().unwrap().wr_id(), 0, "the poll has not moved");
    // A program that posts in an open poll has room for as many completions as the queue has.
    let ids: Vec<u64> = (1..=u64::from(t.queue.cqe())).collect();
    t.complete(&ids);
    for id in ids {
        t.queue.next_poll().unwrap();
        assert_eq!(t.queue.current().unwrap().wr_id(), id);
    }
    t.queue.end_poll();
    assert!(t.queue.current().is_none());
    assert_eq!(t.queue.last().unwrap().wr_id(), u64::from(t.queue.cqe()));
    assert_eq!(t.ids(9), []);
}

pub fn completions_of_a_destroyed_qp_are_removed_and_their_slots_returned<B: Bench>() {
    for start in 0..8 {
        let mut t = Polls::<B>::new(8);
        for _ in 0..start {
            t.complete(&[90]);
            assert_eq!(t.ids(9), [90]);
        }
        t.complete(&[10, 20, 11, 12, 21, 30, 13]);
        let rest = t.queue.cqe() as usize - 7;
        t.complete(&vec![40; rest]);
        assert!(t.is_full());
        let mut removed = Vec::new();
        t.queue.shared().stopped(|state| state.remove(1, |wr_id| removed.push(wr_id)));
        assert_eq!(removed, [13, 12, 11, 10]);
        t.complete(&[14, 31, 22, 32]);
        assert!(t.is_full(), "the slots of four completions were returned");
        t.queue.shared().stopped(|state| state.remove(2, drop));
        let want = [&[30][..], &vec![40; rest], &[14, 31, 32]].concat();
        assert_eq!(t.ids(9), want);
        // A second removal finds nothing.
        t.queue.shared().stopped(|state| state.remove(3, drop));
        assert_eq!(t.ids(9), []);
    }
}

pub fn a_qp_may_be_destroyed_during_a_poll<B: Bench>() {
    let mut t = Polls::<B>::new(16);
    t.complete(&[10, 20, 11, 21, 12]);
    let (shared, mut ids) = (Arc::clone(t.queue.shared()), Vec::new());
    let n = t.queue.poll_each(16, |c| {
        ids.push(c.wr_id());
        if ids.len() == 1 {
            assert!(B::complete(&t.kernel, 22, 2));
            // On another thread and on this one.
            thread::scope(|s| s.spawn(|| shared.stopped(|state| state.remove(1, drop))).join().unwrap());
            shared.stopped(|state| state.remove(1, drop));
        }
    });
    assert_eq!((n, &ids[..]), (Ok(4), &[10, 20, 21, 22][..]));

    t.complete(&[10, 11, 20, 12]);
    t.queue.start_poll().unwrap();
    shared.stopped(|state| state.remove(1, drop));
    assert_eq!(t.queue.current().unwrap().wr_id(), 10, "the current completion stays readable");
    t.queue.next_poll().unwrap();
    assert_eq!(t.queue.current().unwrap().wr_id(), 20);
    assert_eq!(t.queue.next_poll(), Err(PollError::Empty));
    t.queue.end_poll();
    assert_eq!(t.ids(9), []);
}

pub fn a_lost_ring_is_an_error_and_not_an_empty_queue<B: Bench>() {
    let mut t = Polls::<B>::new(4);
    t.complete(&[1]);
    t.queue.lose_ring();
    assert_eq!(t.queue.poll_each(1, |_| ()), Err(PollError::Corrupt));
    assert_eq!(t.queue.start_poll(), Err(PollError::Corrupt));
    t.queue.shared().stopped(|state| state.remove(0, |_| panic!("a completion of a lost ring")));
    let (found, kernel) = B::cq_ring(8);
    t.queue.replace_ring(found).unwrap();
    let capacity = <B::Format as Format>::CqRing::capacity(&B::cq_ring(8).0);
    t.kernel = kernel;
    assert_eq!((t.queue.cqe(), t.ids(9)), (capacity, vec![]));
    t.complete(&[7]);
    assert_eq!(t.ids(9), [7]);
}

/// What a completion names is taken while the reset or the destruction of its QP waits. `check` is `uverbs_testkit::check_claims`.
pub fn completions_are_claimed_while_control_calls_wait<B: Bench>(
    check: impl FnOnce(&mut CompletionQueue<B::Format, ()>, usize, &(dyn Fn() + Sync)),
) {
    let mut t = Polls::<B>::new(16);
    t.complete(&[10, 20, 11]);
    let shared = Arc::clone(t.queue.shared());
    check(&mut t.queue, 3, &|| {
        shared.stopped(|state| state.remove(9, drop));
    });
}

/// The tests of [`suite`](crate::testing::suite) for a [`Bench`].
#[macro_export]
macro_rules! suite {
    ($bench:ty) => {
        $crate::suite! { $bench:
            thousands_of_wrs_are_consumed_in_order
            a_ring_behaves_as_a_queue
            a_batch_too_long_for_the_ring_is_dropped_as_a_whole
            aborted_dropped_forgotten_and_failed_batches_change_nothing
            an_empty_batch_does_not_ring
            a_failed_doorbell_is_reported_and_not_rolled_back
            refused_posts_do_not_change_an_open_session
            a_session_checks_its_setters
            a_builder_has_only_the_operations_that_were_requested
            a_batch_from_before_the_queue_was_closed_is_not_published
            a_control_call_waits_for_a_post_in_progress
            receives_fill_and_empty_the_ring_in_every_lap
            receives_that_the_kernel_has_not_taken_are_counted
            a_poll_takes_at_most_the_requested_and_available_completions
            a_full_queue_has_room_again_when_it_was_polled
            a_panic_in_the_callback_counts_its_completion_as_polled
            an_extended_poll_goes_on_with_completions_that_arrive
            completions_of_a_destroyed_qp_are_removed_and_their_slots_returned
            a_qp_may_be_destroyed_during_a_poll
            a_lost_ring_is_an_error_and_not_an_empty_queue
        }
        #[test]
        fn completions_are_claimed_while_control_calls_wait() {
            $crate::testing::suite::completions_are_claimed_while_control_calls_wait::<$bench>(
                |queue, completions, control| uverbs_testkit::check_claims(queue, completions, control),
            );
        }
    };
    ($bench:ty: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::testing::suite::$name::<$bench>();
            }
        )*
    };
}
