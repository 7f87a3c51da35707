// SPDX-License-Identifier: MIT OR Apache-2.0
//! Polling: every field, both kinds of poll, arming, removal of completions, bytes that no correct kernel writes.

use crate::QpShared;
use crate::shared::store_state;
use crate::testing::{completion, completion_queue};
use proptest::prelude::*;
use std::sync::Arc;
use uverbs_core::attr::QpState;
use uverbs_core::provider::{Completion as _, CompletionQueue as _};
use uverbs_core::sync::ControlBarrier;
use uverbs_core::wc::{WcOpcode, WcStatus, WorkCompletion};

#[test]
fn every_field_is_converted() {
    let (mut q, kernel) = completion_queue(4);
    let opcodes = [
        (0, WcOpcode::RDMA_WRITE),
        (1, WcOpcode::RDMA_READ),
        (3, WcOpcode::SEND),
        (5, WcOpcode::SEND),
        (8, WcOpcode::RECV),
        (0xff, WcOpcode::SEND),
    ];
    let statuses = [
        (0, WcStatus::SUCCESS),
        (1, WcStatus::LOC_LEN_ERR),
        (2, WcStatus::LOC_PROT_ERR),
        (3, WcStatus::LOC_QP_OP_ERR),
        (4, WcStatus::WR_FLUSH_ERR),
        (5, WcStatus::BAD_RESP_ERR),
        (6, WcStatus::LOC_ACCESS_ERR),
        (7, WcStatus::REM_ACCESS_ERR),
        (8, WcStatus::REM_INV_REQ_ERR),
        (9, WcStatus::GENERAL_ERR),
        (0xffff, WcStatus::GENERAL_ERR),
    ];
    let all = opcodes.iter().map(|o| (*o, statuses[0])).chain(statuses.iter().map(|s| (opcodes[2], *s)));
    for ((raw_opcode, opcode), (raw_status, status)) in all {
        assert!(kernel.produce(&completion(u64::MAX - 1, raw_opcode, raw_status, 7, 9)));
        let mut wc = [WorkCompletion::default(); 2];
        assert_eq!(q.poll_cq(&mut wc), Ok(1));
        let want = WorkCompletion {
            wr_id: u64::MAX - 1,
            status,
            opcode,
            byte_len: 7,
            qp_num: 9,
            ..Default::default()
        };
        assert_eq!(wc[0], want);
    }
}

#[test]
fn a_request_for_events_is_a_store_to_the_shared_page() {
    let (mut q, kernel) = completion_queue(4);
    q.req_notify(false).unwrap();
    assert_eq!(kernel.notify(), 3);
    q.req_notify(true).unwrap();
    assert_eq!(kernel.notify(), 1);
}

#[test]
fn a_polled_flush_moves_its_qp_to_err() {
    let (mut q, kernel) = completion_queue(8);
    let cq = Arc::clone(q.shared());
    let qp = |number, state| {
        let created = QpShared::create(state, ControlBarrier::register(), vec![Arc::clone(&cq)], number);
        let qp = Arc::new(created.unwrap());
        qp.attach();
        qp
    };
    let (one, two, closing) = (qp(1, QpState::INIT), qp(2, QpState::RTR), qp(3, QpState::SQD));
    let flush = |number| assert!(kernel.produce(&completion(0, 8, 4, 0, number)));
    assert!(kernel.produce(&completion(0, 8, 1, 0, 1)), "another error");
    flush(2);
    flush(3);
    flush(99);
    flush(1 << 32 | 1);
    assert_eq!(q.poll_each(9, |_| ()), Ok(5));
    assert_eq!([&one, &two, &closing].map(|qp| qp.state()), [QpState::INIT, QpState::ERR, QpState::SQD]);
    // A modification that was in progress does not hide it.
    store_state(&two, QpState::INIT);
    assert_eq!(two.state(), QpState::ERR);
    store_state(&one, QpState::RTR);
    assert_eq!(one.state(), QpState::RTR);
    // The number belongs to another QP later.
    one.detach();
    flush(1);
    let next = qp(1, QpState::INIT);
    assert_eq!(q.poll_each(9, |_| ()), Ok(1));
    assert_eq!((one.state(), next.state()), (QpState::RTR, QpState::ERR));
    assert!(
        ![&one, &two, &closing, &next].iter().any(|qp| qp.own().is_flushed()),
        "only modify_qp ensures that"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// For anything that the kernel writes at any time: no panic, and at most one ring of completions per call.
    #[test]
    fn random_bytes_cause_only_completions(
        actions in prop::collection::vec((0_u8..7, any::<u32>()), 1..80),
    ) {
        let (mut q, kernel) = completion_queue(8);
        for (action, value) in actions {
            match action {
                0 => kernel.put_element(value, 0, &value.to_ne_bytes().repeat(8)),
                1 => kernel.set_flags(value, value as u16),
                2 => _ = q.shared().stopped(|state| state.remove(value, drop)),
                3 => {
                    let _ = q.start_poll();
                    let mut steps = 0;
                    while steps < 20 && q.next_poll().is_ok() {
                        steps += 1;
                        kernel.set_flags(steps, 1);
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
                        kernel.set_flags(n, 1);
                    });
                    prop_assert!(n <= 8);
                    prop_assert!(result.is_err() || result == Ok(n as usize));
                }
            }
        }
    }
}
