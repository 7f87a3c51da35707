// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: polls, by callback, into an array, as C does it, and in a session that decodes the requested fields.
#![expect(unsafe_code)]
// UNSAFETY: C's calls require that only one thread uses the queue.

use crate::device::{Kind, SCATTERED_BYTE};
use crate::face::Face;
use crate::list::{WRITE, recvs, sends};
use crate::measure::measured;
use crate::recv::{complete, complete_srq};
use crate::world::{Cq, World};
use crate::{BATCH, CHUNK, Rows, ok};
use core::hint::black_box;
use uverbs::mlx5::Mlx5;
use uverbs::provider::Completion as _;
use uverbs::wr::{RecvWr, SendWr};
use uverbs::{Driver, PollError, WorkCompletion, raw};

/// The kind of completions that a row polls.
#[derive(Clone, Copy, Debug)]
enum Source {
    Sends,
    Receives(Kind),
    Srq,
}

/// The posts before each chunk.
#[derive(Clone, Copy, Debug)]
struct Posts {
    sends: &'static [SendWr],
    recvs: &'static [RecvWr],
}

impl Posts {
    fn new<L: Face>(w: &World<L>) -> Self {
        Self { sends: sends(&w.p, WRITE, BATCH), recvs: recvs(&w.p, BATCH) }
    }

    /// Posts a chunk and completes it.
    fn fill<L: Face>(self, w: &World<L>, source: Source) {
        let cq = &mut *w.send_cq.borrow_mut();
        match source {
            Source::Sends => {
                let mut pair = w.rc.borrow_mut();
                let queue = &pair.qp.send;
                for first in self.sends.chunks_exact(BATCH as usize) {
                    // SAFETY: a list that lives as long as the process; one thread; no device reads the memory that it
                    // names.
                    unsafe { queue.post_send(first.as_ptr()) }.unwrap_or_else(ok);
                }
                for _ in 0..CHUNK {
                    cq.ring.complete(pair.whose, pair.posted as u16, Kind::Requester);
                    pair.posted = pair.posted.wrapping_add(1);
                }
            }
            Source::Receives(kind) => {
                let pair = if kind == Kind::Scattered { &w.rc_scatter } else { &w.rc };
                let mut pair = pair.borrow_mut();
                for first in self.recvs.chunks_exact(BATCH as usize) {
                    // SAFETY: `first` is a well-formed list that lives as long as the process, and one thread uses the
                    // queue. The poll writes the data of completions to the places' region.
                    unsafe { pair.qp.post_recv(first.as_ptr()) }.unwrap_or_else(ok);
                }
                complete(&mut pair, cq, kind);
            }
            Source::Srq => {
                for first in self.recvs.chunks_exact(BATCH as usize) {
                    // SAFETY: `first` is a well-formed list that lives as long as the process, and one thread uses the
                    // queue; no device writes the memory.
                    unsafe { w.srq.borrow().post_srq_recv(first.as_ptr()) }.unwrap_or_else(ok);
                }
                complete_srq(w, cq);
            }
        }
    }
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    let posts = Posts::new(w);
    let sources = [
        ("requester", Source::Sends),
        ("responder", Source::Receives(Kind::Responder)),
        ("scatter", Source::Receives(Kind::Scattered)),
        ("srq", Source::Srq),
    ];
    for (name, source) in sources {
        for batch in [1, BATCH] {
            let fill = move || posts.fill(w, source);
            let arrived = move || {
                let scattered = matches!(source, Source::Receives(Kind::Scattered));
                assert!(!scattered || w.p.first_byte() == SCATTERED_BYTE, "no data of a completion");
            };
            rows.add("typed", &format!("poll {name}"), batch, CHUNK, move || {
                fill();
                each(&mut w.send_cq.borrow_mut(), batch, CHUNK);
                arrived();
            });
            rows.add("raw", &format!("poll {name}"), batch, CHUNK, move || {
                fill();
                raw(&w.send_cq.borrow(), batch, CHUNK);
                arrived();
            });
            if matches!(source, Source::Sends | Source::Receives(Kind::Responder)) {
                let mut kept = Kept::new(matches!(source, Source::Receives(_)));
                rows.add("typed", &format!("poll {name}, kept"), batch, CHUNK, move || {
                    fill();
                    kept.poll(&mut w.send_cq.borrow_mut().queue, batch);
                });
                rows.add("typed", &format!("poll {name}, array"), batch, CHUNK, move || {
                    fill();
                    array(&mut w.send_cq.borrow_mut(), batch);
                });
                rows.add("raw", &format!("start_poll {name}"), batch, CHUNK, move || {
                    fill();
                    session::<L, false>(&mut w.send_cq.borrow_mut(), batch);
                });
            }
            if matches!(source, Source::Receives(Kind::Responder)) {
                rows.add("raw", &format!("start_poll {name} more"), batch, CHUNK, move || {
                    fill();
                    session::<L, true>(&mut w.send_cq.borrow_mut(), batch);
                });
            }
        }
    }
    rows.add("typed", "poll empty", 1, CHUNK, || {
        measured(|| polls_each_empty(&mut w.send_cq.borrow_mut().queue));
    });
    rows.add("raw", "poll empty", 1, CHUNK, || {
        measured(|| polls_raw_empty(&w.send_cq.borrow().queue, &mut [WorkCompletion::default()]));
    });
    rows.add("raw", "start_poll empty", 1, CHUNK, || {
        measured(|| sessions_empty(&mut w.send_cq.borrow_mut().queue));
    });
}

/// Measures polls of `ops` completions by a callback.
pub fn each<L: Face>(cq: &mut Cq<L>, batch: u32, ops: u32) {
    let (n, sum) = measured(|| polls_each(&mut cq.queue, black_box(batch as usize), ops as usize));
    black_box(sum);
    assert_eq!(n, ops as usize);
}

#[inline(never)]
pub fn polls_each<D: Driver, L: Face>(queue: &mut raw::Cq<L, D>, batch: usize, ops: usize) -> (usize, u64) {
    let (mut sum, mut polled, mut n) = (0, 0, 0);
    while polled < ops {
        n += L::poll_each(queue, batch, |wc| sum += wc.wr_id() + u64::from(wc.status().0)).unwrap_or_else(ok);
        polled += batch;
    }
    (n, sum)
}

/// A buffer in a table of the program, by `wr_id`.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: usize,
    capacity: u32,
    len: u32,
}

/// A program that keeps its buffers by itself: it finds the buffer of each completion by the `wr_id`, and passes it on with its
/// length. For comparison with queues that own their buffers.
struct Kept {
    received: bool,
    places: Box<[Place; CHUNK as usize]>,
    back: Box<[Place; CHUNK as usize]>,
}

impl Kept {
    fn new(received: bool) -> Self {
        let place = Place { at: 0, capacity: 64, len: 64 };
        Self { received, places: Box::new([place; _]), back: Box::new([place; _]) }
    }

    /// Measures polls of a chunk.
    fn poll<L: Face>(&mut self, queue: &mut raw::Cq<L, Mlx5>, batch: u32) {
        let Self { received, places, back } = self;
        let n = measured(|| match *received {
            true => {
                polls_kept::<L, true>(queue, black_box(batch as usize), black_box(&**places), &mut **back)
            }
            false => {
                polls_kept::<L, false>(queue, black_box(batch as usize), black_box(&**places), &mut **back)
            }
        });
        black_box(back.iter().fold(0, |sum, place| sum + place.at + place.len as usize));
        assert_eq!(n, CHUNK as usize);
    }
}

#[inline(never)]
fn polls_kept<L: Face, const RECEIVED: bool>(
    queue: &mut raw::Cq<L, Mlx5>,
    batch: usize,
    places: &[Place],
    back: &mut [Place],
) -> usize {
    let (mut sum, mut polled, mut n) = (0, 0, 0);
    let mut slots = back.iter_mut();
    while polled < CHUNK as usize {
        let poll = L::poll_each(queue, batch, |wc| {
            sum += wc.wr_id() + u64::from(wc.status().0);
            if let (Some(place), Some(slot)) = (places.get(wc.wr_id() as usize), slots.next()) {
                *slot = *place;
                if RECEIVED && wc.status().is_success() {
                    slot.len = wc.received_len().min(place.capacity);
                }
            }
        });
        n += poll.unwrap_or_else(ok);
        polled += batch;
    }
    black_box(sum);
    n
}

/// Measures polls of `ops` completions as C does it.
pub fn raw<L: Face>(cq: &Cq<L>, batch: u32, ops: u32) {
    let mut wcs = [WorkCompletion::default(); BATCH as usize];
    let wcs = &mut wcs[..batch as usize];
    let n = measured(|| polls_raw(&cq.queue, black_box(wcs), ops as usize));
    assert_eq!(n, ops as usize);
}

#[inline(never)]
pub fn polls_raw<D: Driver, L: Face>(queue: &raw::Cq<L, D>, wcs: &mut [WorkCompletion], ops: usize) -> usize {
    let (mut polled, mut n) = (0, 0);
    while polled < ops {
        // SAFETY: one thread.
        n += unsafe { queue.poll_raw(black_box(&mut *wcs)) }.unwrap_or_else(ok);
        polled += wcs.len();
    }
    n
}

fn array<L: Face>(cq: &mut Cq<L>, batch: u32) {
    let mut wcs = [WorkCompletion::default(); BATCH as usize];
    let wcs = &mut wcs[..batch as usize];
    let n = measured(|| polls_array(&mut cq.queue, black_box(wcs)));
    assert_eq!(n, CHUNK as usize);
}

#[inline(never)]
fn polls_array<L: Face>(queue: &mut raw::Cq<L, Mlx5>, wcs: &mut [WorkCompletion]) -> usize {
    let (mut polled, mut n) = (0, 0);
    while polled < CHUNK as usize {
        n += L::poll(queue, black_box(&mut *wcs)).unwrap_or_else(ok);
        polled += wcs.len();
    }
    n
}

/// Measures extended polls that read `wr_id` and `status`, and four fields more or not.
fn session<L: Face, const MORE: bool>(cq: &mut Cq<L>, batch: u32) {
    black_box(measured(|| sessions::<Mlx5, L, MORE>(&mut cq.queue, black_box(batch))));
}

#[inline(never)]
pub fn sessions<D: Driver, L: Face, const MORE: bool>(queue: &mut raw::Cq<L, D>, batch: u32) -> u64 {
    let (mut sum, mut n) = (0_u64, 0);
    while n < CHUNK {
        let until = n + batch;
        let result = L::poll_session(queue, |poll| {
            loop {
                {
                    let wc = poll.current().unwrap_or_else(|| ok(PollError::Corrupt));
                    sum += wc.wr_id() + u64::from(wc.status().0);
                    if MORE {
                        sum += u64::from(wc.opcode().0) + u64::from(wc.byte_len());
                        sum += u64::from(wc.qp_num()) + u64::from(wc.wc_flags().bits());
                    }
                }
                n += 1;
                if n == until {
                    break;
                }
                poll.next().unwrap_or_else(ok);
            }
        });
        result.unwrap_or_else(ok);
    }
    sum
}

#[inline(never)]
pub fn polls_each_empty<D: Driver, L: Face>(queue: &mut raw::Cq<L, D>) {
    for _ in 0..CHUNK {
        if L::poll_each(queue, 1, |_| ()) != Ok(0) {
            ok(PollError::Corrupt)
        }
    }
}

#[inline(never)]
pub fn polls_raw_empty<D: Driver, L: Face>(queue: &raw::Cq<L, D>, wc: &mut [WorkCompletion]) {
    for _ in 0..CHUNK {
        // SAFETY: one thread.
        if unsafe { queue.poll_raw(black_box(&mut *wc)) } != Ok(0) {
            ok(PollError::Corrupt)
        }
    }
}

#[inline(never)]
pub fn sessions_empty<D: Driver, L: Face>(queue: &mut raw::Cq<L, D>) {
    for _ in 0..CHUNK {
        if L::poll_session(queue, |_| ()) != Err(PollError::Empty) {
            ok(PollError::Corrupt)
        }
    }
}
