// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wrap-around, full and empty rings, aborts, synchronization after a reset, invalid geometry and indices.

use super::*;
use crate::ring::{Ring, RingError};
use crate::testing::{decode_recv, decode_send, heap_ring, recv_queue, ring, send_queue};
use proptest::prelude::*;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{
    Inline, Op, PostError, RecvBatch as _, RecvQueue as _, SendBatch as _, SendQueue as _, Wr, WrBuilder as _,
};
use uverbs_soft::testing::begin;
use uverbs_uapi::rxe::{rxe_recv_wqe, rxe_send_wqe};

fn send(wr_id: u64) -> Wr<'static, crate::Ah> {
    Wr::new(wr_id, Op::Send).signaled()
}

fn post(q: &mut crate::SendQueue<crate::testing::FakeBell>, wr_id: u64) -> Result<(), PostError> {
    // SAFETY: inline data are copied by the call, so no memory is used later.
    unsafe { q.post(&send(wr_id).inline(&wr_id.to_ne_bytes())) }
}

#[test]
fn a_queue_without_entries_is_full() {
    let (mut q, _, _, _) = recv_queue(1, 1).unwrap();
    assert_eq!(q.capacity(), 0);
    // SAFETY: the receive has no entries, so it names no memory.
    assert_eq!(unsafe { q.post(1, &[]) }, Err(PostError::QueueFull));
}

#[test]
fn after_a_reset_the_ring_continues_at_the_kernels_index() {
    // The kernel drops the WRs that it did not execute and leaves the indices; a kernel that sets them to 0 is handled,
    // too.
    for zeroed in [false, true] {
        let (mut q, kernel, _, shared) = send_queue(4, &config(QpType::Rc)).unwrap();
        for lap in 0..20 {
            for i in 0..3 {
                post(&mut q, i).unwrap();
            }
            shared.set_state(QpState::RESET);
            assert_eq!(post(&mut q, 9), Err(PostError::BadState));
            if zeroed {
                kernel.set_producer(0);
            }
            kernel.set_consumer(kernel.producer());
            kernel.fill(0);
            for state in [QpState::INIT, QpState::RTR] {
                shared.set_state(state);
                assert_eq!(post(&mut q, 9), Err(PostError::BadState));
            }
            shared.set_state(QpState::RTS);
            for i in 0..3 {
                post(&mut q, 100 * lap + i).unwrap();
            }
            for i in 0..3 {
                assert_eq!(decode_send(&kernel.consume().unwrap(), false).wr_id, 100 * lap + i);
            }
            assert!(kernel.consume().is_none());
        }
    }
}

#[test]
fn a_batch_from_before_a_reset_is_not_published() {
    let (mut q, kernel, bell, shared) = send_queue(4, &config(QpType::Rc)).unwrap();
    let mut batch = q.batch();
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { batch.push(&send(1)) };
    shared.set_state(QpState::RESET);
    shared.set_state(QpState::RTS);
    assert_eq!(batch.complete(), Err(PostError::BadState));
    q.wr_start();
    begin(&mut q, 1, Op::Send);
    q.wr_set_inline(Inline::Bytes(&[]));
    shared.set_state(QpState::RESET);
    assert_eq!(q.wr_complete(), Err(PostError::BadState));
    assert_eq!((kernel.producer(), bell.rings()), (0, 0));
    // A change from RTS to ERR does not prevent the publication: the device flushes the WRs.
    shared.set_state(QpState::RTS);
    let mut batch = q.batch();
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { batch.push(&send(1)) };
    shared.set_state(QpState::ERR);
    batch.complete().unwrap();
    assert_eq!((kernel.producer(), bell.rings()), (1, 1));
}

#[test]
fn receives_in_err_request_a_flush() {
    let (mut q, kernel, bell, shared) = recv_queue(8, 1).unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { q.post(1, &[]) }.unwrap();
    assert_eq!(bell.flushes(), 0);
    let mut batch = q.batch();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { batch.push(2, &[]) };
    shared.set_state(QpState::ERR);
    batch.complete().unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { q.post(3, &[]) }.unwrap();
    assert_eq!((bell.flushes(), kernel.producer()), (2, 3));
    bell.fail(Some(uverbs_core::Errno::EPERM));
    // SAFETY: the receive has no entries, so it names no memory.
    let failed = unsafe { q.post(4, &[]) };
    assert_eq!(failed, Err(PostError::Doorbell(uverbs_core::Errno::EPERM)));
    q.batch().complete().unwrap();
    assert_eq!(bell.flushes(), 3, "an empty batch requests no flush");
}

#[test]
fn a_resized_ring_continues_at_the_kernels_indices() {
    let (mut q, kernel, _, _) = recv_queue(4, 1).unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { q.post(1, &[]) }.unwrap();
    kernel.consume().unwrap();
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { q.post(2, &[]) }.unwrap();
    // A resize of an SRQ: the kernel moves the entries into a larger ring (`resize_finish()`).
    let (bigger, moved) = ring::<rxe_recv_wqe>(6, 16, 16);
    assert!(moved.produce(&kernel.element(1)));
    q.replace_ring(bigger).unwrap();
    assert_eq!(q.capacity(), 15);
    for id in 3..17 {
        // SAFETY: the receive has no entries, so it names no memory.
        unsafe { q.post(id, &[]) }.unwrap();
    }
    // SAFETY: the receive has no entries, so it names no memory.
    assert_eq!(unsafe { q.post(99, &[]) }, Err(PostError::QueueFull));
    let ids: Vec<u64> = core::iter::from_fn(|| moved.consume()).map(|b| decode_recv(&b).wr_id).collect();
    assert_eq!(ids, (2..17).collect::<Vec<_>>());
    // A ring with invalid geometry changes nothing.
    let (broken, kernel) = ring::<rxe_recv_wqe>(6, 16, 16);
    kernel.set_producer(16);
    assert_eq!(q.replace_ring(broken), Err(PostError::Corrupt));
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { q.post(100, &[]) }.unwrap();
    assert_eq!(decode_recv(&moved.consume().unwrap()).wr_id, 100);
}

#[test]
fn wrong_geometry_is_refused() {
    let try_one = |log2: u32, mask: u32, len_log2: u32, slots: u32| {
        let (mapping, words) = heap_ring(len_log2, slots);
        words.put(0, &log2.to_ne_bytes());
        words.put(4, &mask.to_ne_bytes());
        Ring::<rxe_send_wqe>::new(mapping, 64).map(|r| r.capacity())
    };
    assert_eq!(try_one(9, 7, 9, 8), Ok(7));
    assert_eq!(try_one(9, 3, 9, 8), Ok(3));
    assert_eq!(try_one(8, 7, 9, 8), Err(RingError::ElementSize(8)), "208 + 64 bytes do not fit in 256");
    assert_eq!(try_one(32, 7, 9, 8), Err(RingError::ElementSize(32)));
    assert_eq!(try_one(u32::MAX, 7, 9, 8), Err(RingError::ElementSize(u32::MAX)));
    assert_eq!(try_one(9, 6, 9, 8), Err(RingError::IndexMask(6)));
    assert_eq!(try_one(9, 15, 9, 8), Err(RingError::TooShort));
    assert_eq!(try_one(9, u32::MAX, 9, 8), Err(RingError::TooShort));
    let (mapping, _) = heap_ring(3, 0);
    assert!(Ring::<rxe_send_wqe>::new(mapping, 0).is_err(), "no slots");
}

#[test]
fn geometry_that_the_kernel_changes_later_is_ignored() {
    let (mut q, kernel, _, _) = send_queue(4, &config(QpType::Rc)).unwrap();
    kernel.set_geometry(31, u32::MAX);
    for i in 0..50 {
        post(&mut q, i).unwrap();
        assert_eq!(decode_send(&kernel.consume().unwrap(), false).wr_id, i);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any values of both indices at any time: no panic, no endless loop, no access outside the slots.
    #[test]
    fn corrupt_indices_cause_only_errors(
        actions in prop::collection::vec((0_u8..6, prop_oneof![any::<u32>(), 0_u32..9]), 1..60),
    ) {
        let (mut q, kernel, _, shared) = send_queue(8, &config(QpType::Rc)).unwrap();
        let (mut r, rkernel, _, _) = recv_queue(8, 1).unwrap();
        for (action, value) in actions {
            match action {
                0 => { kernel.set_consumer(value); rkernel.set_consumer(value) }
                1 => { kernel.set_producer(value); rkernel.set_producer(value) }
                2 => {
                    let mut batch = q.batch();
                    let mut n = 0;
                    for i in 0..(value % 20) {
                        // SAFETY: the WR has no data, so it names no memory.
                        unsafe { batch.push(&send(u64::from(i))) };
                        n += 1;
                    }
                    let result = batch.complete();
                    prop_assert!(result.is_err() || n <= 7);
                }
                3 => {
                    shared.set_state(QpState::RESET);
                    shared.set_state(QpState::RTS);
                }
                4 => {
                    let mut batch = r.batch();
                    for i in 0..(value % 20) {
                        // SAFETY: the receive has no entries, so it names no memory.
                        unsafe { batch.push(u64::from(i), &[]) };
                    }
                    let _ = batch.complete();
                }
                _ => { let _ = post(&mut q, u64::from(value)); }
            }
        }
    }

}
