// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the decoder with arbitrary bytes, and with valid WQEs.

use super::{Malformed, Op, QueueKind, Reserved, Segment, decode, recv_wqe, send_wqe};
use proptest::prelude::*;
use uverbs_mlx5_hw::wqe::{
    CtrlSeg, DataSeg, EthSeg, MLX5_OPCODE_RDMA_READ, MLX5_OPCODE_RDMA_WRITE_IMM, MLX5_OPCODE_SEND,
    MLX5_OPCODE_TSO, MLX5_OPCODE_UMR, RaddrSeg,
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
