// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: the floor, the minimum work of any driver: the stores of a request and of its `wr_id`, the doorbell record and
//! register, and the fences, in memory of the size that the queues of the other rows have.

use crate::burst::Burst;
use crate::measure::measured;
use crate::{BATCH, CHUNK, Rows};
use core::cell::RefCell;
use core::hint::black_box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use uverbs_core::sync::barrier::{from_device, to_device, write_combining_flush, write_combining_start};

/// Basic blocks of a send queue.
const BLOCKS: usize = 512;

/// The memory of a queue and its register.
struct Floor {
    ring: Box<[[AtomicU64; 8]]>,
    wr_ids: Box<[AtomicU64]>,
    record: AtomicU32,
    register: [[AtomicU64; 32]; 2],
    /// The next block.
    at: usize,
}

impl Floor {
    fn new() -> Self {
        Self {
            ring: (0..BLOCKS).map(|_| [const { AtomicU64::new(0) }; 8]).collect(),
            wr_ids: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect(),
            record: AtomicU32::new(0),
            register: [const { [const { AtomicU64::new(0) }; 32] }; 2],
            at: 0,
        }
    }

    /// Writes a request of `WORDS` words of eight bytes, and its `wr_id`.
    #[inline(always)]
    fn put<const WORDS: usize>(&mut self) {
        let at = self.at % BLOCKS;
        for word in 0..WORDS {
            self.ring[(at + word / 8) % BLOCKS][word % 8].store(at as u64, Relaxed);
        }
        self.wr_ids[at].store(at as u64, Relaxed);
        self.at += WORDS.div_ceil(8);
    }

    /// Rings with the first `WORDS` words.
    #[inline(always)]
    fn ring<const WORDS: usize>(&mut self) {
        to_device();
        self.record.store(self.at as u32, Relaxed);
        write_combining_start();
        self.register[self.at % 2][..WORDS].iter().for_each(|w| w.store(self.at as u64, Relaxed));
        write_combining_flush();
    }
}

/// Adds a row of posts, single and in batches. A request has `WORDS` words, and the doorbell of a single request
/// `BURST`.
fn posts<const WORDS: usize, const BURST: usize>(rows: &mut Rows, name: &str) {
    let floor = &*Box::leak(Box::new(RefCell::new(Floor::new())));
    rows.add("floor", name, 1, CHUNK, || measured(|| singles::<WORDS, BURST>(&mut floor.borrow_mut())));
    rows.add("floor", name, BATCH, CHUNK, || measured(|| batches::<WORDS>(&mut floor.borrow_mut())));
}

#[inline(never)]
fn singles<const WORDS: usize, const BURST: usize>(floor: &mut Floor) {
    for _ in 0..CHUNK {
        floor.put::<WORDS>();
        floor.ring::<BURST>();
    }
}

#[inline(never)]
fn batches<const WORDS: usize>(floor: &mut Floor) {
    for _ in (0..CHUNK).step_by(BATCH as usize) {
        (0..BATCH).for_each(|_| floor.put::<WORDS>());
        floor.ring::<1>();
    }
}

/// Posts of writes whose register is write-combining memory.
#[inline(never)]
fn bursts(floor: &mut Floor, batch: u32, target: &Burst) {
    for i in (0..CHUNK).step_by(batch as usize) {
        (0..batch).for_each(|_| floor.put::<6>());
        to_device();
        floor.record.store(floor.at as u32, Relaxed);
        write_combining_start();
        if batch == 1 { target.write::<8>(i as usize) } else { target.write::<1>((i / batch) as usize) }
    }
}

/// Posts of receives: an entry, its `wr_id`, and for each batch the record.
#[inline(never)]
fn receives(floor: &mut Floor, batch: u32) {
    for _ in (0..CHUNK).step_by(batch as usize) {
        (0..batch).for_each(|_| floor.put::<2>());
        to_device();
        floor.record.store(floor.at as u32, Relaxed);
    }
}

/// Polls: of each CQE the word with the owner bit, then that of the QP, the request's `wr_id`, and for each batch the record.
#[inline(never)]
fn polls(floor: &mut Floor, batch: u32) -> u64 {
    let mut sum = 0;
    for _ in (0..CHUNK).step_by(batch as usize) {
        for _ in 0..batch {
            let cqe = &floor.ring[floor.at % BLOCKS];
            let owner = cqe[7].load(Relaxed);
            from_device();
            sum += cqe[4].load(Relaxed) + floor.wr_ids[(owner >> 32) as usize % BLOCKS].load(Relaxed);
            floor.at += 1;
        }
        floor.record.store(floor.at as u32, Relaxed);
    }
    sum
}

/// Adds the rows.
pub fn rows(rows: &mut Rows) {
    // Words of a request: 2 for the control segment, 2 for a remote address, an entry or an atomic's operands, 6 for a datagram's
    // address; inline data follows a header of 4 bytes. The register takes whole basic blocks of 8.
    posts::<4, 8>(rows, "send");
    posts::<6, 8>(rows, "write");
    posts::<8, 8>(rows, "send3");
    posts::<8, 8>(rows, "atomic");
    posts::<10, 16>(rows, "ud");
    posts::<9, 16>(rows, "inline");
    posts::<7, 8>(rows, "send inline");
    let floor = &*Box::leak(Box::new(RefCell::new(Floor::new())));
    for batch in [1, BATCH] {
        let target = &*Box::leak(Box::new(Burst::default()));
        rows.add("floor", "write burst", batch, CHUNK, move || {
            measured(|| bursts(&mut floor.borrow_mut(), black_box(batch), target));
        });
        rows.add("floor", "recv", batch, CHUNK, move || {
            measured(|| receives(&mut floor.borrow_mut(), black_box(batch)));
        });
        rows.add("floor", "poll", batch, CHUNK, move || {
            black_box(measured(|| polls(&mut floor.borrow_mut(), black_box(batch))));
        });
    }
}
