// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling: every field, both kinds of poll, panics in callbacks, invalid indices.

use crate::testing::{KernelSide, completion_queue, ring};
use proptest::prelude::*;
use uverbs_core::Errno;
use uverbs_core::provider::{Completion as _, CompletionQueue as _, PollError};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use uverbs_uapi::cmd::ib_uverbs_wc;

/// `struct ib_uverbs_wc` by offsets: 48 bytes.
fn wc_bytes(wr_id: u64, status: u32) -> [u8; 48] {
    let mut b = [0xa5; 48];
    b[0..8].copy_from_slice(&wr_id.to_ne_bytes());
    b[8..12].copy_from_slice(&status.to_ne_bytes());
    for (i, at) in (12..40).step_by(4).enumerate() {
        b[at..at + 4].copy_from_slice(&(0x100 + i as u32).to_ne_bytes());
    }
    b[40..42].copy_from_slice(&0x201_u16.to_ne_bytes());
    b[42..44].copy_from_slice(&0x202_u16.to_ne_bytes());
    b[44] = 3;
    b[45] = 4;
    b
}

#[test]
fn every_field_is_converted() {
    let (mut q, kernel, _) = completion_queue(4).unwrap();
    assert!(kernel.produce(&wc_bytes(u64::MAX - 1, 5)));
    let want = WorkCompletion {
        wr_id: u64::MAX - 1,
        status: WcStatus::WR_FLUSH_ERR,
        opcode: WcOpcode(0x100),
        vendor_err: 0x101,
        byte_len: 0x102,
        imm_data_or_invalidated_rkey: 0x103,
        qp_num: 0x104,
        src_qp: 0x105,
        // 0x106 is IB_WC_WITH_IMM, IB_WC_WITH_INVALIDATE and a flag that only the kernel uses.
        wc_flags: WcFlags::WITH_IMM | WcFlags::WITH_INV,
        pkey_index: 0x201,
        slid: 0x202,
        sl: 3,
        dlid_path_bits: 4,
    };
    let mut n = 0;
    q.start_poll().unwrap();
    assert_eq!(q.current().unwrap().to_wc(), want);
    assert_eq!(q.current().unwrap().completion_ts(), None);
    q.end_poll();
    assert!(kernel.produce(&wc_bytes(u64::MAX - 1, 5)));
    q.poll_each(1, |c| {
        n += 1;
        assert_eq!(c.to_wc(), want);
        assert_eq!(format!("{c:?}"), format!("{want:?}"));
    })
    .unwrap();
    assert_eq!((n, kernel.consumer()), (1, 2));
}

#[test]
fn an_extended_poll_returns_its_slots_when_it_has_taken_all() {
    let (mut q, kernel, _) = completion_queue(4).unwrap();
    assert_eq!(q.start_poll(), Err(PollError::Empty));
    assert_eq!(q.next_poll(), Err(PollError::NoSession));
    assert!(q.current().is_none());
    q.end_poll();
    assert_eq!(kernel.consumer(), 0, "end without start does nothing");

    for id in 0..3 {
        assert!(kernel.produce(&wc_bytes(id, 0)));
    }
    q.start_poll().unwrap();
    assert_eq!(q.start_poll(), Err(PollError::SessionOpen));
    assert_eq!(q.poll_each(1, |_| ()), Err(PollError::SessionOpen));
    assert!(!q.is_surely_empty(), "a poll would fail");
    assert_eq!(q.current().unwrap().wr_id(), 0);
    q.next_poll().unwrap();
    q.next_poll().unwrap();
    assert_eq!(kernel.consumer(), 0, "the completions that were known take one store");
    assert_eq!(q.next_poll(), Err(PollError::Empty));
    assert_eq!(q.next_poll(), Err(PollError::Empty));
    // The poll is still open and has not moved.
    assert_eq!((q.current().unwrap().wr_id(), kernel.consumer()), (2, 3));
    // A program that posts in an open poll has room for as many completions as the queue has.
    assert!(kernel.produce(&wc_bytes(3, 0)) && kernel.produce(&wc_bytes(4, 0)));
    assert_eq!(q.current().unwrap().wr_id(), 2);
    for id in [3, 4] {
        q.next_poll().unwrap();
        assert_eq!(q.current().unwrap().wr_id(), id);
    }
    assert_eq!(kernel.consumer(), 3);
    q.end_poll();
    assert_eq!(kernel.consumer(), 1, "all slots are returned");
    assert!(q.current().is_none());
    assert_eq!(q.last().unwrap().wr_id(), 4);

    // A completion that arrives while the poll is open is found by the next step.
    assert!(kernel.produce(&wc_bytes(4, 0)));
    q.start_poll().unwrap();
    assert_eq!(q.next_poll(), Err(PollError::Empty));
    assert!(kernel.produce(&wc_bytes(5, 0)));
    q.next_poll().unwrap();
    assert_eq!(q.current().unwrap().wr_id(), 5);
    q.end_poll();
    assert_eq!(q.poll_each(9, |_| ()), Ok(0));
}

#[test]
fn requests_for_events_call_the_kernel() {
    let (mut q, _, bell) = completion_queue(4).unwrap();
    q.req_notify(false).unwrap();
    q.req_notify(true).unwrap();
    assert_eq!(bell.arms(), (2, 1));
    bell.fail(Some(Errno::ENODEV));
    assert_eq!(q.req_notify(false), Err(PollError::Arm(Errno::ENODEV)));
}

#[test]
fn a_resize_keeps_all_completions() {
    let (mut q, kernel, _) = completion_queue(4).unwrap();
    for id in 0..3 {
        assert!(kernel.produce(&wc_bytes(id, 0)));
    }
    assert_eq!(q.poll_each(1, |c| assert_eq!(c.wr_id(), 0)), Ok(1));
    let (bigger, moved) = ring::<ib_uverbs_wc>(6, 16, 0);
    while let Some(bytes) = kernel.consume() {
        assert!(moved.produce(&bytes));
    }
    assert!(moved.produce(&wc_bytes(3, 0)));
    q.replace(|state| state.replace_ring(bigger)).unwrap().unwrap();
    assert_eq!(q.cqe(), 15);
    let mut ids = Vec::new();
    q.poll_each(9, |c| ids.push(c.wr_id())).unwrap();
    assert_eq!(ids, [1, 2, 3]);
}

/// Produces completions with these ids; the QP number is the id divided by 10.
fn produce(kernel: &KernelSide, ids: &[u64]) {
    for id in ids {
        let mut bytes = wc_bytes(*id, 0);
        bytes[28..32].copy_from_slice(&(*id as u32 / 10).to_ne_bytes());
        assert!(kernel.produce(&bytes));
    }
}

#[test]
fn an_invalid_producer_index_is_ignored_when_a_qp_is_destroyed() {
    let (mut q, kernel, _) = completion_queue(8).unwrap();
    produce(&kernel, &[10, 20, 11]);
    kernel.set_producer(8);
    q.shared().stopped(|state| state.remove(1, drop));
    assert_eq!(kernel.consumer(), 0);
    assert_eq!(q.poll_each(1, |_| ()), Err(PollError::Corrupt));
}

#[test]
fn an_invalid_index_is_reported_after_earlier_completions() {
    let (mut q, kernel, _) = completion_queue(4).unwrap();
    assert!(kernel.produce(&wc_bytes(0, 0)));
    assert!(kernel.produce(&wc_bytes(1, 0)));
    assert_eq!(q.poll_each(1, |_| ()), Ok(1));
    kernel.set_producer(4);
    assert_eq!(q.poll_each(5, |c| assert_eq!(c.wr_id(), 1)), Ok(1));
    assert_eq!(q.poll_each(5, |_| ()), Err(PollError::Corrupt));
    assert_eq!(q.start_poll(), Err(PollError::Corrupt));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For anything that the kernel writes at any time: no panic, and at most one ring of completions per call. A step of an
    /// extended poll is a call.
    #[test]
    fn random_producer_indices_cause_only_errors(
        actions in prop::collection::vec((0_u8..8, prop_oneof![any::<u32>(), 0_u32..9]), 1..80),
    ) {
        let (mut q, kernel, _) = completion_queue(8).unwrap();
        for (action, value) in actions {
            match action {
                0 => kernel.set_producer(value),
                1 => kernel.set_consumer(value),
                2 => kernel.fill(value as u8),
                3 => {
                    let _ = q.start_poll();
                    // The kernel may write for as long as the poll goes on.
                    for _ in 0..20 {
                        if q.next_poll().is_err() {
                            break;
                        }
                        kernel.set_producer(value % 8);
                    }
                }
                4 => q.end_poll(),
                5 => {
                    if let Some(c) = q.current() {
                        let _ = format!("{:?}", c.to_wc());
                    }
                }
                _ => {
                    let mut n = 0;
                    let result = q.poll_each(value as usize, |_| {
                        n += 1;
                        kernel.set_producer(value.wrapping_add(n));
                    });
                    prop_assert!(n < 8);
                    prop_assert!(result.is_err() || result == Ok(n as usize));
                }
            }
        }
    }
}
