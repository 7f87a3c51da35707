// SPDX-License-Identifier: MIT OR Apache-2.0
//! Exact bytes of one WQE per opcode, on every interface.
//!
//! A C program filled the structs of `<rdma/rdma_user_rxe.h>` as the kernel's `init_send_wqe()` and librxe do, and printed
//! them (little-endian, x86-64). A line of `vectors.txt` has a name, and the first bytes of the element as hex. The slots
//! contain other bytes before, so bytes that the encoder does not write are found.
#![cfg(target_endian = "little")]

use super::{config, sge};
use crate::Ah;
use crate::testing::{ah, recv_queue, send_queue};
use uverbs_core::attr::QpType;
use uverbs_core::provider::op::{FlushArgs, MwBind};
use uverbs_core::provider::{Dest, Op, RemoteAddr, To, Wr};
use uverbs_core::provider::{RecvBatch as _, RecvQueue as _};
use uverbs_core::wr::{RawAh, SendFlags};
use uverbs_testkit::{Face, handle, post};

type Request<'a> = Wr<'a, RawAh<Ah>>;

const A: u64 = 0x7f00_1122_3344;
const ID: u64 = 0x1122_3344_5566_7788;
const WRITE_TO: RemoteAddr = RemoteAddr { addr: 0xffff_0000_1234_5678, rkey: 0x777 };

fn vector(name: &str) -> Vec<u8> {
    let lines = include_str!("vectors.txt").lines();
    let hex = lines
        .filter_map(|line| line.split_once(' '))
        .find(|(n, _)| *n == name)
        .expect("a vector of that name")
        .1;
    (0..hex.len() / 2).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("hex")).collect()
}

/// Posts a request on each interface that can express it, and compares the element with the vector.
fn check(name: &str, qp_type: QpType, flags: u32, request: Request<'_>) {
    let want = vector(name);
    let request = request.flags(SendFlags::from_bits_retain(flags));
    for (face, dirt) in Face::ALL.into_iter().zip([0xa5, 0x5a, 0xff, 0x01]) {
        if face == Face::List && matches!(request.op, Op::Flush(..) | Op::AtomicWrite(..)) {
            continue;
        }
        let (mut q, kernel, bell, _) = send_queue(4, &config(qp_type)).unwrap();
        kernel.fill(dirt);
        // SAFETY: the simulated kernel does not access the memory that is named, and binds nothing.
        unsafe { post(&mut q, face, &[request]) }.unwrap();
        assert_eq!(kernel.consume().unwrap()[..want.len()], want, "{name} by {face:?}");
        assert_eq!(bell.rings(), 1);
    }
}

#[test]
fn every_opcode_of_connected_qps_has_the_bytes_of_its_vector() {
    let one = |len| [sge(A, len, 0x501)];
    let two = [sge(A, 100, 0x501), sge(A + 0x1000, 28, 0x502)];
    let at = |addr| RemoteAddr { addr, rkey: 0x777 };
    let rc = |name, flags, op, sges: &[_]| check(name, QpType::Rc, flags, Request::new(ID, op).sges(sges));
    let without_data = |name, qp_type, flags, op| check(name, qp_type, flags, Request::new(ID, op));

    rc("send", 2, Op::Send, &two);
    check("send_inline", QpType::Rc, 2, Request::new(ID, Op::Send).inline(b"hello, rxe"));
    rc("send_imm", 6, Op::SendImm(0xcafe_f00d), &one(1));
    rc("send_inv", 1, Op::SendInv(0xabcd01), &one(1));
    rc("write", 2, Op::Write(WRITE_TO), &one(4096));
    without_data("write_imm_empty", QpType::Uc, 2, Op::WriteImm(WRITE_TO, 1));
    rc("read", 3, Op::Read(WRITE_TO), &one(0x7fff_ffff));
    rc("cmp_swp", 2, Op::CmpSwp(at(0x1000), 0x0102_0304_0506_0708, 0x1112_1314_1516_1718), &one(8));
    rc("fetch_add", 2, Op::FetchAdd(at(0x1008), 5), &one(8));
    without_data("local_inv", QpType::Rc, 3, Op::LocalInv(0xabcd01));
    let bind = MwBind {
        mw_rkey: 0x8000_0a00,
        mw_type: 2,
        rkey: 0x8000_0a01,
        mr_lkey: 0x501,
        addr: A,
        length: 0x1_0000_0001,
        access: 0x12,
    };
    without_data("bind_mw", QpType::Uc, 2, Op::BindMw(bind));
    let args = FlushArgs { length: 0x3000, placement: 1, level: 0 };
    without_data("flush", QpType::Rc, 2, Op::Flush(at(0x2000), args));
    without_data("atomic_write", QpType::Rc, 2, Op::AtomicWrite(at(0x2008), [1, 2, 3, 4, 5, 6, 7, 8]));
}

#[test]
fn every_opcode_of_datagram_qps_has_the_bytes_of_its_vector() {
    let one = [sge(A, 64, 0x501)];
    let (new, old) = (handle(ah(9, 0xee)), handle(ah(0, 0x5a)));
    let datagram = |op, ah, remote_qpn, remote_qkey| {
        Request::new(ID, op).sges(&one).to(Dest::Ud(To { ah, remote_qpn, remote_qkey }))
    };
    check("ud_send", QpType::Ud, 2, datagram(Op::Send, &new, 0xff_ffff, 0x1111_1111));
    check("ud_send_imm", QpType::Ud, 2, datagram(Op::SendImm(7), &old, 17, 5));
}

#[test]
fn a_receive_has_the_bytes_of_its_vector() {
    let want = vector("recv");
    let (mut q, kernel, _, _) = recv_queue(4, 3).unwrap();
    kernel.fill(0xa5);
    let mut batch = q.batch();
    // SAFETY: the simulated kernel does not access the memory that is named.
    unsafe { batch.push(ID, &[sge(A, 200, 0x501), sge(9, 0, 9), sge(A + 0x1000, 100, 0x502)]) };
    batch.complete().unwrap();
    assert_eq!(kernel.consume().unwrap()[..want.len()], want);
}
