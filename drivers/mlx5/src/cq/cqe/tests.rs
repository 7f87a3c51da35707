// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the functions with the manual's tables, value by value.

use super::*;

#[test]
fn every_opcode_has_its_kind() {
    use Kind::{Foreign as F, Requester, RequesterError, Resize, Responder as R, ResponderError};
    let kinds: Vec<_> = (0..16).map(|opcode| OpOwn(opcode << 4 | 0xf).kind()).collect();
    assert_eq!(
        kinds,
        [Requester, R, R, R, R, Resize, F, F, F, F, F, F, F, RequesterError, ResponderError, F]
    );
}

#[test]
fn the_format_bits_select_the_place_of_the_data() {
    let formats: Vec<_> = (0..4).map(|format| OpOwn(0x20 | format << 2).scatter()).collect();
    assert_eq!(formats, [None, Some(Scatter::Own32), Some(Scatter::Before64), Some(Scatter::Own32)]);
    assert_eq!((Scatter::Own32.room(), Scatter::Before64.room()), (32, 64));
}

#[test]
fn every_syndrome_has_its_status() {
    // PRM, table of error syndromes; the numbers of `enum ibv_wc_status`.
    let known = [
        (0x01, 1),
        (0x02, 2),
        (0x04, 4),
        (0x05, 5),
        (0x06, 6),
        (0x10, 7),
        (0x11, 8),
        (0x12, 9),
        (0x13, 10),
        (0x14, 11),
        (0x15, 12),
        (0x16, 13),
        (0x22, 16),
    ];
    for syndrome in 0..=u8::MAX {
        let want = known.iter().find(|(s, _)| *s == syndrome).map_or(21, |(_, status)| *status);
        assert_eq!(status(syndrome), WcStatus(want), "{syndrome:#x}");
        assert!(!status(syndrome).is_success());
    }
}

#[test]
fn every_wqe_opcode_has_its_completion_opcode() {
    let send = |opcode| super::opcode(OpOwn(0), opcode, 6).0;
    // The WQE opcode of the PRM and the value of `enum ibv_wc_opcode`; 6 is the opcode that the queue stored.
    let known = [
        (0x08, 1),
        (0x09, 1),
        (0x0a, 0),
        (0x0b, 0),
        (0x01, 0),
        (0x10, 2),
        (0x11, 3),
        (0x12, 4),
        (0x0e, 7),
        (0x25, 6),
        (0x00, 6),
    ];
    for (wqe, wc) in known {
        assert_eq!(send(wqe), wc, "{wqe:#x}");
    }
    let receive = |opcode: u8| super::opcode(OpOwn(opcode << 4), 0x0a, 6);
    assert_eq!(receive(1), WcOpcode::RECV_RDMA_WITH_IMM);
    assert!([2, 3, 4, 14].into_iter().all(|opcode| receive(opcode) == WcOpcode::RECV));
}

#[test]
fn flags_and_lengths_are_those_of_the_manual() {
    let flags: Vec<_> = (0..5).map(|opcode: u8| message_flags(OpOwn(opcode << 4)).bits()).collect();
    assert_eq!(flags, [0, 2, 0, 2, 8]);
    assert_eq!([0x08, 0x09, 0x0a, 0x0b, 0x01].map(|o| requester_flags(o).bits()), [0, 2, 0, 2, 0]);
    assert_eq!([0x10, 0x11, 0x12, 0x0a].map(|o| requester_len(o, 77)), [77, 8, 8, 0]);
    assert_eq!([0, 1 << 28, 1 << 29, 1 << 30].map(|f| grh_flag(f).bits()), [0, 1, 1, 0]);
    // Set only if both checksums are valid and the packet is IPv4.
    assert_eq!(csum_flag(6, 2 << 2), WcFlags::IP_CSUM_OK);
    assert!([(2, 8), (4, 8), (6, 4), (6, 0), (0, 8)].into_iter().all(|(a, b)| csum_flag(a, b).is_empty()));
}
