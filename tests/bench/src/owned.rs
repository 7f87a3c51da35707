// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: posts and polls of queues that own their buffers, for comparison with the rows of the typed face.
#![expect(unsafe_code)]
// UNSAFETY: reads an array that a poll has filled.

use crate::device::{self, Kind, Ring, Seen, Whose};
use crate::measure::measured;
use crate::places::{RKEY, remote_addr};
use crate::{BATCH, CHUNK, RING_ENTRIES, Rows, ok};
use core::array;
use core::hint::black_box;
use core::mem::MaybeUninit;
use std::cell::RefCell;
use uverbs::mlx5::Mlx5;
use uverbs::{Buf, Cq, Pool, PostTo, Qp, RecvQueue, SendQueue, Wr};
use uverbs::{ConnectAttr, Rc, RemoteRegion};
use uverbs::{Exclusive, Private, attr::QpCap};

/// Where a poll leaves buffers.
type Back = [MaybeUninit<Option<Buf<Private, Mlx5>>>; CHUNK as usize];
/// What a request names.
struct Request {
    /// Moved out by the post.
    buf: MaybeUninit<Buf<Private, Mlx5>>,
    remote: RemoteRegion,
}

/// The requests of a chunk.
type Requests = [Request; CHUNK as usize];

/// The objects of the rows.
struct Owned {
    qp: Qp<Rc, Exclusive, Mlx5>,
    cq: Cq<Exclusive, Mlx5>,
    ring: Ring,
    whose: Whose,
    posted: u16,
    received: u16,
    requests: Box<Requests>,
    back: Box<Back>,
    _pool: Pool<Private, Mlx5>,
}

impl Owned {
    fn create() -> Self {
        let context = device::open();
        let td = context.alloc_td().expect("a thread domain");
        let pd = context.alloc_pd().expect("a PD").parent_domain(&td).expect("a parent domain");
        let cq = context.cq_with(RING_ENTRIES - 1, None).expect("a CQ");
        let ring = Ring::of_last_cq(RING_ENTRIES);
        let cap = QpCap::new(CHUNK, 2 * CHUNK);
        let qp = pd.qp::<Rc>().cq(&cq).cap(cap).create().expect("a QP");
        let whose = Whose { user_index: Seen::now().user_index, qp_num: qp.qp_num() };
        let attr = ConnectAttr::new().sgid_index(Some(3));
        qp.init(&attr).expect("INIT");
        let here = qp.control().endpoint(1, &attr).expect("an endpoint");
        qp.connect(&here, &here, &attr).expect("RTS");
        let pool = pd.pool(CHUNK, 64).expect("a pool");
        let requests = Box::new(array::from_fn(|i| Request {
            buf: MaybeUninit::new(pool.get().expect("a buffer")),
            remote: RemoteRegion::new(remote_addr(i as u32), 64, RKEY).expect("a range"),
        }));
        Self {
            qp,
            cq,
            ring,
            whose,
            posted: 0,
            received: 0,
            requests,
            back: Box::new([const { MaybeUninit::uninit() }; _]),
            _pool: pool,
        }
    }

    /// Completes the sends of a chunk, one by one.
    fn complete_sends(&mut self) {
        for _ in 0..CHUNK {
            self.ring.complete(self.whose, self.posted, Kind::Requester);
            self.posted = self.posted.wrapping_add(1);
        }
    }

    fn complete_receives(&mut self) {
        for _ in 0..CHUNK {
            self.ring.complete(self.whose, self.received, Kind::Responder);
            self.received = self.received.wrapping_add(1);
        }
    }

    /// Polls what was completed.
    fn drain(&mut self) {
        let n = polls(&mut self.cq, BATCH as usize, &mut self.back);
        self.take_back(n);
    }

    /// Takes the buffers that a poll has left.
    fn take_back(&mut self, n: usize) {
        assert_eq!(n, CHUNK as usize, "completions");
        for (slot, request) in self.back.iter().zip(self.requests.iter_mut()) {
            // SAFETY: the poll has written as many slots as it has found completions. None is read twice, because the next poll
            // writes them again.
            let mut buf = unsafe { slot.assume_init_read() }.expect("a buffer");
            buf.set_len(64).expect("the capacity");
            request.buf.write(buf);
        }
    }

    /// Measures the posts of a chunk.
    fn sends<const WRITE: bool>(&mut self, batch: u32) {
        let Self { qp, requests, .. } = self;
        let queue = qp.sq();
        measured(|| match batch {
            1 => singles::<WRITE>(queue, black_box(requests)),
            _ => batches::<WRITE>(queue, black_box(requests)),
        });
        self.complete_sends();
        self.drain();
    }
}

#[inline(always)]
fn put<S: PostTo<Mlx5>, const WRITE: bool>(
    wr: Wr<'_, S, Rc, Mlx5>,
    buf: Buf<Private, Mlx5>,
    remote: &RemoteRegion,
) -> S::Out<Buf<Private, Mlx5>> {
    if WRITE { wr.signaled().write(buf, remote) } else { wr.signaled().send(buf) }
}

/// The buffer of the i-th request.
#[inline(always)]
fn take(requests: &Requests, i: u32) -> Buf<Private, Mlx5> {
    // SAFETY: the buffers of a chunk are there before it is posted, and each is moved out once.
    unsafe { requests[i as usize].buf.assume_init_read() }
}

#[inline(never)]
fn singles<const WRITE: bool>(queue: &mut SendQueue<Rc, Exclusive, Mlx5>, requests: &Requests) {
    for i in 0..CHUNK {
        put::<_, WRITE>(queue.post(i.into()), take(requests, i), &requests[i as usize].remote)
            .unwrap_or_else(ok);
    }
}

#[inline(never)]
fn batches<const WRITE: bool>(queue: &mut SendQueue<Rc, Exclusive, Mlx5>, requests: &Requests) {
    for first in (0..CHUNK).step_by(BATCH as usize) {
        let mut batch = queue.batch();
        for i in first..first + BATCH {
            put::<_, WRITE>(batch.wr(i.into()), take(requests, i), &requests[i as usize].remote);
        }
        batch.complete().unwrap_or_else(ok);
    }
}

#[inline(never)]
fn recv_singles(queue: &mut RecvQueue<Exclusive, Mlx5>, requests: &Requests) {
    for i in 0..CHUNK {
        queue.post(i.into(), take(requests, i)).unwrap_or_else(ok);
    }
}

#[inline(never)]
fn recv_batches(queue: &mut RecvQueue<Exclusive, Mlx5>, requests: &Requests) {
    for first in (0..CHUNK).step_by(BATCH as usize) {
        let mut batch = queue.batch();
        for i in first..first + BATCH {
            batch.push(i.into(), take(requests, i));
        }
        batch.complete().unwrap_or_else(ok);
    }
}

/// Polls a chunk and keeps the buffers.
#[inline(never)]
fn polls(cq: &mut Cq<Exclusive, Mlx5>, batch: usize, back: &mut Back) -> usize {
    let (mut sum, mut polled, mut n) = (0, 0, 0);
    let mut slots = back.iter_mut();
    while polled < CHUNK as usize {
        n += cq
            .poll_each(batch, |done| {
                sum += done.wr_id() + u64::from(done.status().0);
                if let Some(slot) = slots.next() {
                    slot.write(done.buf());
                }
            })
            .unwrap_or_else(ok);
        polled += batch;
    }
    black_box(sum);
    n
}

/// Adds the rows.
pub fn rows(rows: &mut Rows) {
    let owned: &'static RefCell<Owned> = Box::leak(Box::new(RefCell::new(Owned::create())));
    for batch in [1, BATCH] {
        let mut add = |name: &str, chunk: fn(&mut Owned, u32)| {
            rows.add("owned", name, batch, CHUNK, move || chunk(&mut owned.borrow_mut(), black_box(batch)));
        };
        add("post_send rc write", |owned, batch| owned.sends::<true>(batch));
        add("post_send rc send", |owned, batch| owned.sends::<false>(batch));
        add("post_recv", |owned, batch| {
            let Owned { qp, requests, .. } = owned;
            let queue = qp.rq().expect("a receive queue");
            measured(|| match batch {
                1 => recv_singles(queue, black_box(requests)),
                _ => recv_batches(queue, black_box(requests)),
            });
            owned.complete_receives();
            owned.drain();
        });
        add("poll requester", |owned, batch| {
            let Owned { qp, requests, .. } = owned;
            batches::<true>(qp.sq(), requests);
            owned.complete_sends();
            owned.poll(batch);
        });
        add("poll responder", |owned, batch| {
            let Owned { qp, requests, .. } = owned;
            recv_batches(qp.rq().expect("a receive queue"), requests);
            owned.complete_receives();
            owned.poll(batch);
        });
    }
}

impl Owned {
    /// Measures the polls of a chunk.
    fn poll(&mut self, batch: u32) {
        let Self { cq, back, .. } = self;
        let n = measured(|| polls(cq, black_box(batch as usize), black_box(back)));
        self.take_back(n);
    }
}
