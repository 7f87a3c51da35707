// SPDX-License-Identifier: MIT OR Apache-2.0
//! Laps, full and empty rings, aborts, the states, the doorbell, and flags that no correct kernel writes.

use super::*;
use crate::ring::{CompletionRing, Ring, RingError};
use crate::testing::{FakeBell, decode_send, recv_queue, send_queue};
use proptest::prelude::*;
use uverbs_core::Errno;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{
    Inline, Op, PostError, RecvQueue as _, SendBatch as _, SendQueue as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::{SendFlags, SendWr, WrOpcode};
use uverbs_soft::testing::{begin, heap};
use uverbs_uapi::siw::{siw_rqe, siw_sqe};

fn send(wr_id: u64) -> Wr<'static, crate::Ah> {
    Wr::new(wr_id, Op::Send).signaled()
}

fn post(q: &mut crate::SendQueue<FakeBell>, wr_id: u64) -> Result<(), PostError> {
    // SAFETY: inline data are copied by the call, so no memory is used later.
    unsafe { q.post(&send(wr_id).inline(&wr_id.to_ne_bytes())) }
}

#[test]
fn a_batch_is_visible_as_a_whole_or_not_at_all() {
    let (mut q, kernel, bell, _) = send_queue(8, &config(), QpState::RTS);
    post(&mut q, 1).unwrap();
    let rings = bell.rings();
    let flags =
        |kernel: &crate::testing::KernelSide| -> Vec<u8> { (0..8).map(|i| kernel.element(i)[8]).collect() };
    let before = flags(&kernel);
    let fill = |batch: &mut crate::SendBatch<'_, FakeBell>| {
        for i in 10..14 {
            // SAFETY: the WR has no data, so it names no memory.
            unsafe { batch.push(&send(i)) };
        }
    };
    let mut batch = q.batch();
    fill(&mut batch);
    batch.abort();
    let mut batch = q.batch();
    fill(&mut batch);
    drop(batch);
    let mut batch = q.batch();
    fill(&mut batch);
    // SAFETY: the WR has no data, so it names no memory.
    unsafe { batch.push(&Wr::new(1, Op::Send).flags(SendFlags::IP_CSUM)) };
    assert_eq!(batch.complete(), Err(PostError::IllegalFlag));
    let mut batch = q.batch();
    for i in 0..9 {
        // SAFETY: the WR has no data, so it names no memory.
        unsafe { batch.push(&send(i)) };
    }
    assert_eq!(batch.complete(), Err(PostError::QueueFull));
    q.wr_start();
    begin(&mut q, 20, Op::Send);
    q.wr_set_inline(Inline::Bytes(b"x"));
    q.wr_abort();
    q.batch().complete().unwrap();
    // The kernel's flush completes each element that has flags, valid or not.
    assert_eq!((flags(&kernel), bell.rings()), (before, rings));
    post(&mut q, 42).unwrap();
    let ids: Vec<u64> = core::iter::from_fn(|| kernel.consume()).map(|b| decode_send(&b).id).collect();
    assert_eq!(ids, [1, 42]);
}

#[test]
fn nothing_is_published_before_the_qp_is_connected() {
    let (mut q, kernel, bell, shared) = send_queue(4, &config(), QpState::RESET);
    assert_eq!(post(&mut q, 1), Err(PostError::BadState));
    shared.set_state(QpState::INIT);
    bell.fail(Some(Errno::ENOTCONN));
    assert_eq!(post(&mut q, 1), Err(PostError::BadState));
    let node = SendWr::new(3, WrOpcode::SEND);
    // SAFETY: a list of one node without data.
    let refused = unsafe { q.post_send(&raw const node) }.unwrap_err();
    assert_eq!((refused.error, refused.wr), (PostError::BadState, &raw const node));
    assert!(kernel.consume().is_none());
    // The kernel connects it.
    bell.fail(None);
    post(&mut q, 2).unwrap();
    assert_eq!(decode_send(&kernel.consume().unwrap()).id, 2);
    // A doorbell that fails later is reported; the WR is published.
    bell.fail(Some(Errno::ENOTCONN));
    assert_eq!(post(&mut q, 3), Err(PostError::Doorbell(Errno::ENOTCONN)));
    assert_eq!(decode_send(&kernel.consume().unwrap()).id, 3);
    // The kernel flushes nothing that is posted in ERR.
    shared.set_state(QpState::ERR);
    assert_eq!(post(&mut q, 4), Err(PostError::BadState));
    let (mut q, _, shared) = recv_queue(4, 1);
    shared.set_state(QpState::ERR);
    // SAFETY: the receive has no entries, so it names no memory.
    assert_eq!(unsafe { q.post(1, &[]) }, Err(PostError::BadState));
}

#[test]
fn rings_that_are_not_there_are_refused() {
    let new = |bytes, slots| Ring::<siw_sqe>::new(heap(bytes).0, slots).map(drop);
    assert_eq!(new(480, 4), Ok(()));
    assert_eq!(new(479, 4), Err(RingError::TooShort));
    for slots in [0, 3, u32::MAX, 1 << 30] {
        assert_eq!(new(480, slots), Err(RingError::Slots(slots)));
    }
    assert_eq!(Ring::<siw_rqe>::bytes(4), Ok(448));
    assert_eq!(CompletionRing::bytes(4), Ok(4 * 32 + 8));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the kernel writes to the ring at any time: no panic, and at most one ring is posted.
    #[test]
    fn random_flags_cause_only_errors(actions in prop::collection::vec((0_u8..6, any::<u16>()), 1..80)) {
        let (mut q, kernel, _, _) = send_queue(8, &config(), QpState::RTS);
        let mut open = 0;
        for (action, value) in actions {
            match action {
                0 => kernel.set_flags(value.into(), value),
                1 => kernel.fill(value as u8),
                2 => { let _ = kernel.element(value.into()); }
                3 => {
                    let mut batch = q.batch();
                    for i in 0..u64::from(value % 20) {
                        // SAFETY: the WR has no data, so it names no memory.
                        unsafe { batch.push(&send(i)) };
                        kernel.set_flags(i as u32, value);
                    }
                    prop_assert!(value % 20 <= 8 || batch.complete().is_err());
                }
                4 => { let _ = kernel.consume(); }
                _ => open += u32::from(post(&mut q, value.into()).is_ok()),
            }
        }
        prop_assert!(open <= 80);
    }
}
