// SPDX-License-Identifier: MIT OR Apache-2.0
//! Any bytes, and entries of each device whose bytes are made of the structs of the C headers.

use crate::ring::{Ring, RxeHeader};
use crate::{Device, Entry, Field, Format, QueueKind, What, decode, text};
use proptest::prelude::*;
use uverbs_efa_hw::io;
use uverbs_mlx5_hw::cqe::{self as mlx5_cqe, Cqe64, ErrCqe};
use uverbs_mlx5_hw::wqe::{self as mlx5, CtrlSeg, DataSeg, RaddrSeg};
use uverbs_mlx5_hw::{Be32, Be64};
use uverbs_uapi::cmd::ib_uverbs_wc;
use uverbs_uapi::rxe::{rxe_dma_info, rxe_send_wqe, rxe_send_wr, rxe_send_wr_rdma, rxe_sge};
use uverbs_uapi::siw::{siw_cqe, siw_sge, siw_sqe};
use zerocopy::{FromZeros, IntoBytes};

const KINDS: [QueueKind; 7] = [
    QueueKind::Rc,
    QueueKind::Uc,
    QueueKind::Ud,
    QueueKind::Xrc,
    QueueKind::Dci,
    QueueKind::Raw,
    QueueKind::Keys,
];

fn format() -> impl Strategy<Value = Format> {
    (0..4_usize, 0..4_usize, 0..KINDS.len()).prop_map(|(device, what, kind)| Format {
        device: Device::ALL[device],
        what: What::ALL[what],
        kind: KINDS[kind],
    })
}

/// Bytes that are often an entry: small opcodes and sizes are in the places of mlx5's and the others'.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let small = prop_oneof![3 => 0..0x30_u8, 1 => any::<u8>(), 2 => Just(0_u8)];
    (prop::collection::vec(small, 0..400), 0..64_u8, any::<u8>()).prop_map(|(mut bytes, ds, op)| {
        for (at, value) in [(7, ds), (63, op)] {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn any_bytes_are_decoded(format in format(), bytes in bytes()) {
        let entry = decode(format, &bytes);
        prop_assert!(!entry.words.is_empty());
        prop_assert!(!entry.to_string().is_empty());
        // An entry that is not all there says so.
        prop_assert!(entry.len <= bytes.len() || !entry.problems.is_empty(), "{entry:#}");
    }

    /// Nothing is left out: each bit of an entry is in its table.
    #[test]
    fn each_bit_is_shown(format in format(), bytes in bytes(), at: prop::sample::Index, bit in 0..8_u32) {
        let before = decode(format, &bytes);
        let len = before.len.min(bytes.len());
        prop_assume!(len > 0);
        let mut other = bytes.clone();
        // What is printed of long data is cut.
        let at = at.index(len);
        let is_cut = before.fields.iter().any(|field| field.len > 256 && (field.at..field.at + field.len).contains(&at));
        prop_assume!(!is_cut);
        other[at] ^= 1 << bit;
        prop_assert_ne!(format!("{before:#}"), format!("{:#}", decode(format, &other)), "byte {}", at);
    }

    #[test]
    fn a_ring_of_any_bytes_ends(format in format(), bytes in bytes(), stride in 0..200_usize, first in 0..100_usize) {
        let ring = Ring { stride, first, ..Ring::new(format, &bytes) };
        prop_assert!(ring.slots().count() <= ring.count());
        let _ = RxeHeader::of(&bytes);
    }

    #[test]
    fn any_text_is_bytes_or_an_error(text in "[0-9a-fx:|\\[\\]# ,\n]{0,200}|\\PC{0,80}") {
        let _ = text::parse(&text);
    }

    /// The forms of xxd, hexdump and the kernel have the same bytes.
    #[test]
    fn dumps_are_read(bytes in prop::collection::vec(any::<u8>(), 1..70)) {
        let hex = |bytes: &[u8], each: usize| {
            let word = |word: &[u8]| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            bytes.chunks(each).map(word).collect::<Vec<_>>().join(" ")
        };
        let chars = |bytes: &[u8]| -> String {
            bytes.iter().map(|b| if b.is_ascii_graphic() || *b == b' ' { char::from(*b) } else { '.' }).collect()
        };
        let lines = |line: &dyn Fn(usize, &[u8]) -> String| -> String {
            bytes.chunks(16).enumerate().map(|(i, row)| line(i * 16, row)).collect::<Vec<_>>().join("\n")
        };
        let dumps = [
            hex(&bytes, 1),
            format!("0x{}", hex(&bytes, 1).replace(' ', ", 0x")),
            lines(&|at, row| format!("{at:08x}: {}  {}", hex(row, 2), chars(row))),
            lines(&|at, row| format!("{at:08x}  {}  |{}|", hex(row, 1), chars(row))),
            lines(&|at, row| format!("[   12.345678] {at:08x}: {}", hex(row, 1))),
        ];
        for dump in dumps {
            prop_assert_eq!(text::parse(&dump), Ok(bytes.clone()), "{}", dump);
        }
    }
}

#[test]
fn a_kernel_log_is_read() {
    let log = "[  1.2] infiniband mlx5_0: dump_cqe:277:(pid 0): dump error cqe\n\
               [  1.2] 00000000: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
               [  1.2] 00000010: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
               [  1.2] 00000020: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00\n\
               [  1.2] 00000030: 00 00 00 00 00 00 87 16 0a 00 01 01 00 05 ec d2\n";
    let entry = decode(Format::new(Device::Mlx5, What::Cqe), &text::parse(log).unwrap());
    let expected =
        "SEND failed: IBV_WC_RNR_RETRY_EXC_ERR, WQE 5 of QP 0x000101, vendor error 0x87, solicited";
    assert_eq!(entry.to_string(), expected);
}

#[test]
fn what_is_no_dump_is_named() {
    let error = text::parse("00 11\n0x123 44").unwrap_err();
    assert_eq!((error.line, error.found.as_str()), (2, "0x123"));
    assert_eq!(error.to_string(), "line 2: \"0x123\" are not hexadecimal digits of whole bytes");
    assert_eq!(text::parse("  \n# nothing\n"), Ok(Vec::new()));
}

fn line(device: Device, what: What, bytes: &[u8]) -> String {
    decode(Format::new(device, what), bytes).to_string()
}

fn value<'a>(entry: &'a Entry, name: &str) -> &'a str {
    &entry.field(name).unwrap_or_else(|| panic!("{name}: {entry:#}")).value
}

fn mlx5_write() -> Vec<u8> {
    let ctrl = CtrlSeg::new(0, 7, mlx5::MLX5_OPCODE_RDMA_WRITE_IMM, 0x101, 4, 0x8a, Be32::new(0x11));
    let raddr = RaddrSeg { raddr: Be64::new(0x7000), rkey: Be32::new(0x22), reserved: Be32::new(0) };
    let sge = DataSeg::new(100, 0x33, 0x9000);
    let inline = [&(5_u32 | 1 << 31).to_be_bytes()[..], b"hello", &[0; 7]].concat();
    [ctrl.as_bytes(), raddr.as_bytes(), sge.as_bytes(), &inline].concat()
}

#[test]
fn requests_of_mlx5_are_read() {
    let expected = "RDMA_WRITE_IMM of 105 bytes, WQE 7 of QP 0x000101, imm 0x11, signaled, fence: waits for earlier reads and atomics, \
         solicited; the peer's 0x7000 (rkey 0x22); 100 bytes at 0x9000 (lkey 0x33)";
    assert_eq!(line(Device::Mlx5, What::Send, &mlx5_write()), expected);
    let entry = decode(Format::new(Device::Mlx5, What::Send), &mlx5_write());
    assert_eq!(
        (value(&entry, "ds"), value(&entry, "data"), value(&entry, "raddr")),
        ("4", "68656c6c6f", "0x0000000000007000")
    );
    let table = format!("{entry:#}");
    assert!(
        table.contains(
            "\n  0x0b[7:5]   fence       4                   waits for earlier reads and atomics\n"
        ),
        "{table}"
    );
    // A bit of the raddr segment that must be 0.
    let mut bytes = mlx5_write();
    bytes[16 + 13] = 0x40;
    let entry = decode(Format::new(Device::Mlx5, What::Send), &bytes);
    assert_eq!((value(&entry, Field::RESERVED), entry.field(Field::RESERVED).unwrap().at), ("40", 29));
    // Less than its size.
    let entry = decode(Format::new(Device::Mlx5, What::Send), &bytes[..40]);
    assert_eq!(entry.problems, ["it has 40 bytes here and needs at least 64"]);
    assert_eq!(
        line(Device::Mlx5, What::Send, &[0; 16]),
        "NOP, WQE 0 of QP 0x000000, not signaled; problem: its size is 0"
    );
}

#[test]
fn receives_of_mlx5_are_read() {
    let end = DataSeg::new(0, mlx5::MLX5_INVALID_LKEY, 0);
    let bytes = [DataSeg::new(64, 5, 0x9000).as_bytes(), end.as_bytes(), &[7; 16]].concat();
    let expected = "receive with room for 64 bytes; 64 bytes at 0x9000 (lkey 0x5)";
    assert_eq!(line(Device::Mlx5, What::Recv, &bytes), expected);
    let srq = [&[0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &bytes].concat();
    let entry = decode(Format::new(Device::Mlx5, What::Srq), &srq);
    assert_eq!((entry.to_string().as_str(), value(&entry, "next_wqe_index")), (expected, "9"));
}

#[test]
fn completions_of_mlx5_are_read() {
    let mut cqe = Cqe64 {
        byte_cnt: Be32::new(5),
        sop_drop_qpn: Be32::new(0x102),
        imm_inval_pkey: Be32::new(0xaa),
        op_own: mlx5_cqe::MLX5_CQE_RESP_SEND_IMM << 4 | mlx5_cqe::MLX5_INLINE_SCATTER_32 | 1,
        ..Cqe64::default()
    };
    cqe.rsvd0 = *b"he";
    let mut bytes = cqe.as_bytes().to_vec();
    bytes[2..5].copy_from_slice(b"llo");
    let entry = decode(Format::new(Device::Mlx5, What::Cqe), &bytes);
    assert_eq!(
        entry.to_string(),
        "SEND_IMM received, WQE 0 of QP 0x000102, 5 bytes, imm 0xaa, data in the entry"
    );
    assert_eq!((value(&entry, "data"), value(&entry, "owner")), ("68656c6c6f", "1"));
    let error = ErrCqe {
        syndrome: mlx5_cqe::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR,
        vendor_err_synd: 0x88,
        s_wqe_opcode_qpn: Be32::new(0x0800_0101),
        op_own: mlx5_cqe::MLX5_CQE_REQ_ERR << 4,
        ..ErrCqe::default()
    };
    // An entry of 128 bytes: the second half.
    let long = [&[0; 64][..], error.as_bytes()].concat();
    for bytes in [error.as_bytes(), &long[..]] {
        let expected = "RDMA_WRITE failed: IBV_WC_REM_ACCESS_ERR, WQE 0 of QP 0x000101, vendor error 0x88";
        assert_eq!(line(Device::Mlx5, What::Cqe, bytes), expected);
    }
    let title = Cqe64 { byte_cnt: Be32::new(8), op_own: 3 << 2, ..Cqe64::default() };
    assert!(
        line(Device::Mlx5, What::Cqe, title.as_bytes()).starts_with("the title of 8 compressed completions")
    );
}

#[test]
fn requests_of_rxe_are_read() {
    let mut wr = rxe_send_wr { wr_id: 0xab, opcode: 4, send_flags: 3, ..Default::default() };
    wr.wr.set_rdma(rxe_send_wr_rdma { remote_addr: 0x7000, rkey: 0x22, reserved: 0 });
    let dma = rxe_dma_info { length: 16, resid: 16, num_sge: 1, ..Default::default() };
    let wqe = rxe_send_wqe { wr, iova: 0x7000, ssn: 9, dma, ..Default::default() };
    let sge = rxe_sge { addr: 0x9000, length: 16, lkey: 0x33 };
    let bytes = [wqe.as_bytes(), sge.as_bytes()].concat();
    let expected = "RDMA_READ of 16 bytes, wr_id 0xab, request 9, signaled, fence; the peer's 0x7000 (rkey 0x22); \
         16 bytes at 0x9000 (lkey 0x33)";
    assert_eq!(line(Device::Rxe, What::Send, &bytes), expected);
    let wc = ib_uverbs_wc { wr_id: 0xab, status: 9, opcode: 2, qp_num: 0x11, ..Default::default() };
    let expected = "RDMA_READ failed: IBV_WC_REM_INV_REQ_ERR, vendor error 0x0, wr_id 0xab of QP 0x000011";
    assert_eq!(line(Device::Rxe, What::Cqe, wc.as_bytes()), expected);
}

#[test]
fn requests_of_siw_are_read() {
    let mut sqe = siw_sqe { id: 5, flags: 1 | 4, num_sge: 1, opcode: 3, ..Default::default() };
    sqe.sge[0] = siw_sge { laddr: 0x9000, length: 7, lkey: 0x33 };
    let expected = "SEND of 7 bytes, id 0x5, signaled, published; 7 bytes at 0x9000 (lkey 0x33)";
    assert_eq!(line(Device::Siw, What::Send, sqe.as_bytes()), expected);
    let cqe = siw_cqe { id: 5, flags: 1, opcode: 8, status: 4, qp_id: 2, ..Default::default() };
    let expected = "RECEIVE failed: IBV_WC_WR_FLUSH_ERR, id 0x5 of QP 0x000002, written";
    assert_eq!(line(Device::Siw, What::Cqe, cqe.as_bytes()), expected);
}

#[test]
fn requests_of_efa_are_read() {
    let mut wqe = io::TxWqe::new_zeroed();
    (wqe.meta.req_id, wqe.meta.ctrl1, wqe.meta.ctrl2, wqe.meta.length) = (3, 0x80, 0x1d, 1);
    (wqe.meta.dest_qp_num, wqe.meta.ah) = (0x12, 4);
    wqe.data[..16].copy_from_slice(io::TxBufDesc::new(0x9000, 64, 0x33).as_bytes());
    let expected = "SEND of 64 bytes, request 3, to QP 0x000012 by address handle 4, signaled, phase 1; 64 bytes at 0x9000 (lkey 0x33)";
    assert_eq!(line(Device::Efa, What::Send, wqe.as_bytes()), expected);
    let mut cqe = io::RxCdesc::new_zeroed();
    (cqe.common.req_id, cqe.common.qp_num, cqe.length, cqe.ah, cqe.src_qp_num) = (3, 0x12, 64, 0xffff, 0x13);
    cqe.common.flags = io::CdescCommon::pack(true, io::EFA_IO_RECV_QUEUE, false, 0, false);
    let expected = "SEND received, request 3 of QP 0x000012, 64 bytes, from QP 0x000013, phase 1";
    assert_eq!(line(Device::Efa, What::Cqe, cqe.as_bytes()), expected);
    cqe.common.status = io::EFA_IO_COMP_STATUS_FLUSHED;
    assert!(line(Device::Efa, What::Cqe, cqe.as_bytes()).starts_with("receive failed: FLUSHED"));
    let desc = io::RxDesc::new(9, 0x9000, 64, 0x33, true, false);
    let expected = "receive buffer of 64 bytes, request 9, the first one; 64 bytes at 0x9000 (lkey 0x33)";
    assert_eq!(line(Device::Efa, What::Recv, desc.as_bytes()), expected);
}

#[test]
fn a_request_that_wraps_is_one_entry() {
    // Four basic blocks: a WQE of two blocks in the last and the first, one of a block, an empty one.
    let ctrl = CtrlSeg::new(0, 3, mlx5::MLX5_OPCODE_SEND, 0x101, 6, 8, Be32::new(0));
    let sges: Vec<u8> = (0..5).flat_map(|i| DataSeg::new(10, i, 0x9000).as_bytes().to_vec()).collect();
    let mut long = [ctrl.as_bytes(), &sges].concat();
    long.resize(128, 0);
    let mut ring = vec![0; 4 * 64];
    ring[192..].copy_from_slice(&long[..64]);
    ring[..64].copy_from_slice(&long[64..]);
    ring[64..128].copy_from_slice(&mlx5_write());
    let format = Format::new(Device::Mlx5, What::Send);
    let slots: Vec<_> = Ring { first: 3, ..Ring::new(format, &ring) }.slots().collect();
    let seen: Vec<_> = slots.iter().map(|slot| (slot.index, slot.wraps, slot.entry.is_some())).collect();
    assert_eq!(seen, [(3, true, true), (1, false, true), (2, false, false)]);
    assert!(
        slots[0].entry.as_ref().unwrap().to_string().starts_with("SEND of 50 bytes, WQE 3 of QP 0x000101")
    );
}

#[test]
fn the_header_of_an_rxe_ring_is_read() {
    let mut bytes = vec![0; 384 + 64 * 8];
    for (at, value) in [(0, 6_u32), (4, 7), (128, 11), (256, 2)] {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    let header = RxeHeader::of(&bytes).unwrap();
    assert_eq!(header, RxeHeader { stride: 64, count: 8, producer: 3, consumer: 2, len: 384 });
    bytes[4] = 6;
    assert_eq!(RxeHeader::of(&bytes), None);
}
