// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the decoder with arbitrary bytes, and with valid WQEs.

use super::{Entries, Malformed, Op, QueueKind, Reserved, Segment, SetPsv, decode, recv_wqe, send_wqe};
use proptest::prelude::*;
use uverbs_mlx5_hw::wqe::{
    CtrlSeg, DataSeg, EthSeg, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND,
    MLX5_OPCODE_SET_PSV, MLX5_OPCODE_TSO, MLX5_OPCODE_UMR, RaddrSeg,
};
use uverbs_mlx5_hw::{Be16, Be32, Be64};
use zerocopy::{FromZeros, IntoBytes};

const KINDS: [QueueKind; 6] =
    [QueueKind::Rc, QueueKind::Uc, QueueKind::Ud, QueueKind::Xrc, QueueKind::Dci, QueueKind::Raw];

fn wqe(opcode: u8, fm_ce_se: u8, imm: u32, body: &[u8]) -> Vec<u8> {
    let ds = (1 + body.len().div_ceil(16)) as u8;
    let ctrl = CtrlSeg::new(0, 0x1234, opcode, 0x77, ds, fm_ce_se, Be32::new(imm));
    let mut bytes = [ctrl.as_bytes(), body].concat();
    bytes.resize(bytes.len().next_multiple_of(64), 0xaa);
    bytes
}

proptest! {
    #[test]
    fn any_bytes_decode_to_a_request_or_an_error(kind in 0..6_usize, bytes: Vec<u8>) {
        let _ = send_wqe(KINDS[kind], &bytes);
        let _ = recv_wqe(&bytes);
    }

    #[test]
    fn any_bytes_after_a_valid_header_decode_to_a_request_or_an_error(
        kind in 0..6_usize,
        opcode in prop::sample::select(&[0_u8, 1, 8, 9, 10, 11, 14, 16, 17, 18, 0x25][..]),
        ds in 0..64_u8,
        mut bytes in prop::collection::vec(any::<u8>(), 0..1024),
    ) {
        let ctrl = CtrlSeg::new(0, 5, opcode, 1, ds, 8, Be32::new(0));
        let n = bytes.len().min(16);
        bytes[..n].copy_from_slice(&ctrl.as_bytes()[..n]);
        if let Ok(request) = send_wqe(KINDS[kind], &bytes) {
            prop_assert_eq!((request.ds, request.opcode, request.index), (ds, opcode, 5));
            prop_assert!(request.blocks() <= 16);
            let sane = request.data.iter().all(|s| match s {
                Segment::Inline(inline) => inline.len() < 1024,
                Segment::Memory { length, .. } => *length > 0,
            });
            prop_assert!(sane);
        }
    }
}

#[test]
fn old_bytes_are_accepted_only_in_ignored_fields() {
    let raddr = RaddrSeg { raddr: Be64::new(0x1122), rkey: Be32::new(0x33), reserved: Be32::new(0) };
    let sge = DataSeg::new(0, 5, 9);
    let body = [raddr.as_bytes(), sge.as_bytes()].concat();
    // The immediate of an opcode that has none is ignored.
    let request = send_wqe(QueueKind::Rc, &wqe(MLX5_OPCODE_RDMA_READ, 0x88, 0xdead_beef, &body)).unwrap();
    assert_eq!(request.op, Op::Read { addr: 0x1122, rkey: 0x33 });
    assert_eq!((request.signaled, request.fence, request.small_fence), (true, true, false));
    assert_eq!(request.len(), 1 << 31);
    // A reserved field that the device reads must be zero.
    let mut bytes = wqe(MLX5_OPCODE_RDMA_READ, 8, 0, &body);
    bytes[16 + 12] = 1;
    assert_eq!(send_wqe(QueueKind::Rc, &bytes), Err(Malformed::NotZero(28)));
    // Bytes that hardware ignores, and that UCX does not write, are checked only for this project's driver.
    bytes[9] = 1;
    assert_eq!(send_wqe(QueueKind::Rc, &bytes), Err(Malformed::NotZero(9)));
    let request = decode(QueueKind::Rc, &bytes, Reserved::Ignored, Vec::new()).unwrap();
    assert_eq!(request.op, Op::Read { addr: 0x1122, rkey: 0x33 });
    let request = send_wqe(QueueKind::Rc, &wqe(MLX5_OPCODE_RDMA_WRITE_IMM, 0x22, 7, &body)).unwrap();
    assert_eq!(request.op, Op::Write { addr: 0x1122, rkey: 0x33, imm: Some(7) });
    assert_eq!((request.signaled, request.solicited, request.small_fence), (false, true, true));
}

#[test]
fn opcodes_are_refused_on_other_transports() {
    for (kind, opcode, ok) in [
        (QueueKind::Uc, MLX5_OPCODE_RDMA_READ, false),
        (QueueKind::Ud, MLX5_OPCODE_UMR, false),
        (QueueKind::Raw, MLX5_OPCODE_SEND, true),
        (QueueKind::Rc, MLX5_OPCODE_TSO, false),
        (QueueKind::Rc, 0x7f, false),
    ] {
        let bytes = wqe(opcode, 8, 0, &[0; 128]);
        let result = send_wqe(kind, &bytes);
        assert_eq!(result.is_ok(), ok, "{kind:?} {opcode:#x}: {result:?}");
    }
}

#[test]
fn inline_data_and_headers_must_fit_the_wqe() {
    let inline = [&(5_u32 | 1 << 31).to_be_bytes()[..], b"hello", &[0xff; 7]].concat();
    let request = send_wqe(QueueKind::Rc, &wqe(MLX5_OPCODE_SEND, 8, 0, &inline)).unwrap();
    assert_eq!(request.data, [Segment::Inline(b"hello".to_vec())]);
    let too_long = [&(200_u32 | 1 << 31).to_be_bytes()[..], &[0; 12]].concat();
    let bytes = wqe(MLX5_OPCODE_SEND, 8, 0, &too_long);
    assert_eq!(send_wqe(QueueKind::Rc, &bytes), Err(Malformed::Inline));
    let eth = EthSeg {
        cs_flags: 0xc0,
        mss: Be16::new(100),
        inline_hdr_sz: Be16::new(18),
        inline_hdr_start: [1, 2],
        inline_hdr: [3; 16],
        ..FromZeros::new_zeroed()
    };
    let request = send_wqe(QueueKind::Raw, &wqe(MLX5_OPCODE_TSO, 8, 0, eth.as_bytes())).unwrap();
    let Op::Frame(eth) = request.op else { panic!("{request:?}") };
    assert_eq!((eth.l3_csum, eth.l4_csum, eth.mss), (true, true, Some(100)));
    assert_eq!(eth.header, [&[1, 2][..], &[3; 16]].concat());
}

/// An update of a key: flags, units of the list, the other number, mask, and bytes behind the key's fields.
fn update(flags: u8, units: u16, union: u16, mask: u64, behind: &[u8]) -> Vec<u8> {
    let mut body = vec![0; 112];
    body[0] = flags;
    body[4..6].copy_from_slice(&units.to_be_bytes());
    body[6..8].copy_from_slice(&union.to_be_bytes());
    body[8..16].copy_from_slice(&mask.to_be_bytes());
    body[48] = 1 << 6;
    body[60] = 1 << 6;
    body[79] = 9;
    body.extend_from_slice(behind);
    wqe(MLX5_OPCODE_UMR, 8, 0x1234, &body)
}

#[test]
fn updates_of_keys_have_lists_and_signatures_where_their_numbers_say() {
    const INLINE: u8 = 1 << 7;
    const OFFSET: u8 = 1 << 4;
    let decoded = |bytes: &[u8]| match send_wqe(QueueKind::Rc, bytes)?.op {
        Op::Umr(umr) => Ok(*umr),
        other => panic!("{other:?}"),
    };
    let list: Vec<u8> = (0..128).map(|i| i as u8).collect();
    let umr = decoded(&update(INLINE, 4, 4, 1 << 12 | 1 << 29 | 1, &list)).unwrap();
    assert_eq!((umr.mkey, umr.free, umr.signs, umr.len, umr.start, umr.at), (0x1234, true, true, 9, 0, None));
    let Entries::Inline(entries) = &umr.entries else { panic!("{umr:?}") };
    assert_eq!((entries.concat(), umr.bsf.unwrap().to_vec()), (list[..64].to_vec(), list[64..].to_vec()));
    let umr = decoded(&update(INLINE | OFFSET, 4, 7, 0, &list)).unwrap();
    assert_eq!((umr.at, umr.bsf, umr.signs), (Some(7), None, false));
    let umr = decoded(&update(0, 8, 0, 0, &list[..16])).unwrap();
    assert!(matches!(umr.entries, Entries::Memory(8, Segment::Memory { length: 0x10203, .. })));
    for (flags, units, union, mask, len, error) in [
        (INLINE, 5, 0, 0, 128, Malformed::Umr),
        (INLINE, 4, 8, 0, 128, Malformed::Umr),
        (INLINE, 4, 4, 1 << 40, 128, Malformed::Umr),
        (1 << 6, 0, 0, 0, 128, Malformed::Umr),
        (0, 4, 4, 0, 128, Malformed::Umr),
        (INLINE, 8, 4, 0, 128, Malformed::Short),
        (INLINE, 12, 0, 0, 128, Malformed::Short),
        (0, 4, 0, 0, 0, Malformed::Short),
    ] {
        let bytes = update(flags, units, union, mask, &list[..len]);
        assert_eq!(decoded(&bytes), Err(error), "{flags:#x} {units} {union}");
    }
    // The value of a signature.
    let psv = [&[9, 0, 0, 5, 0, 0, 0, 0][..], &[1, 2, 3, 4, 5, 6, 7, 8]].concat();
    let request = send_wqe(QueueKind::Rc, &wqe(MLX5_OPCODE_SET_PSV, 8, 0, &psv)).unwrap();
    assert_eq!(request.op, Op::SetPsv(SetPsv { index: 5, signature: 0x0102_0304_0506_0708 }));
    assert!(send_wqe(QueueKind::Ud, &wqe(MLX5_OPCODE_SET_PSV, 8, 0, &psv)).is_err());
}

#[test]
fn any_update_of_a_key_decodes_or_is_refused() {
    let mut state = 0x1234_5678_9abc_def1_u64;
    for round in 0..20_000 {
        let mut bytes = update(1 << 7, 4, 4, 1 << 29, &[0; 128]);
        for _ in 0..1 + round % 12 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = 16 + (state >> 33) as usize % (bytes.len() - 16);
            bytes[at] = (state >> 24) as u8;
        }
        bytes.truncate(16 + (state >> 40) as usize % bytes.len());
        bytes[7] = (bytes.len() / 16) as u8;
        if let Ok(request) = send_wqe(QueueKind::Rc, &bytes)
            && let Op::Umr(umr) = request.op
            && let Entries::Inline(entries) = &umr.entries
        {
            assert!(128 + entries.len() * 16 <= bytes.len());
        }
    }
}
