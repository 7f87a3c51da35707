// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver against the real kernel: both ends of every connection on one rxe device.
//!
//! Needs an rxe device, so the tests are ignored unless requested; the VM lab has one
//! (`cargo xtask vm --file TEST:device -- device --ignored --test-threads 1`). `LAB_DEV_A` and `LAB_GID_INDEX` name another
//! device than `rxe0` and another GID index than 1.
#![expect(unsafe_code)]
// UNSAFETY: posting and registering memory are `unsafe`; all memory here is one leaked mapping, reached by atomics.

/// Calls an `unsafe` verb of the driver.
macro_rules! own {
    ($call:expr) => {{
        // SAFETY: the parts are those of one object of the test, which drops the queues after their objects, or never.
        let result = unsafe { $call };
        result
    }};
}

mod bench;

use bench::{Bench, LIMIT};
use core::time::Duration;
use std::time::Instant;
use uverbs_core::attr::*;
use uverbs_core::control::*;
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::op::{self, FlushArgs, MwBind};
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    CompletionQueue as _, Connected, Driver, Inline, NoData, PostError, QpParts, RecvQueue as _,
    SendBatch as _, SendQueue as _, SrqCreate, To, Wr, WrBuilder as _,
};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus};
use uverbs_core::wr::{ImmData, SendFlags, Sge};
use uverbs_rxe::{Ah, Rxe};

fn wr(wr_id: u64) -> Wr {
    Wr { wr_id, flags: SendFlags::SIGNALED }
}

type Q = <Rxe as Driver>::SendQueue;
type R = <Rxe as Driver>::RecvQueue;

fn sq(qp: &mut QpParts<Rxe>) -> &mut Q {
    qp.send.as_mut().unwrap()
}

fn rq(qp: &mut QpParts<Rxe>) -> &mut R {
    qp.recv.as_mut().unwrap()
}

/// SAFETY of every use: all memory is leaked and made of atomics.
macro_rules! post {
    ($qp:expr, $id:expr, $op:expr, $data:expr) => {
        // SAFETY: all memory is leaked and made of atomics.
        unsafe { sq(&mut $qp).post(wr($id), Connected, $op, $data) }
    };
}
macro_rules! recv {
    ($qp:expr, $id:expr, $sges:expr) => {
        // SAFETY: all memory is leaked and made of atomics.
        unsafe { rq(&mut $qp).post($id, $sges) }
    };
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn every_rc_operation_completes() {
    let mut t = Bench::new();
    let (mut a, mut b) = t.pair(QpType::Rc);

    t.put(0, b"hello from registered memory");
    recv!(b, 1, &[t.sge(4096, 5), Sge::default(), t.sge(8192, 100)]).unwrap();
    post!(a, 2, op::Send::new(), &[t.sge(0, 10), t.sge(10, 18)]).unwrap();
    let wc = t.wait_ok(2);
    assert_eq!((wc[0].byte_len, wc[0].opcode, wc[0].qp_num), (28, WcOpcode::RECV, b.handle.qp_num()));
    assert_eq!(t.get(4096, 5), b"hello");
    assert_eq!(t.get(8192, 23), b" from registered memory");

    recv!(b, 1, &[t.sge(4096, 64)]).unwrap();
    post!(a, 2, op::SendImm::new(ImmData::new(0x1234_5678)), Inline(&[7; 64])).unwrap();
    let wc = t.wait_ok(2);
    assert_eq!((wc[0].byte_len, wc[0].imm_data()), (64, Some(ImmData::new(0x1234_5678))));
    assert_eq!(t.get(4096, 64), [7; 64]);

    post!(a, 3, op::Write::new(t.remote(12288)), Inline(b"written")).unwrap();
    t.wait_ok(1);
    assert_eq!(t.get(12288, 7), b"written");
    recv!(b, 1, &[]).unwrap();
    post!(a, 2, op::WriteImm::new(t.remote(12288), ImmData::new(9)), &[t.sge(0, 5000)]).unwrap();
    let wc = t.wait_ok(2);
    assert_eq!((wc[0].opcode, wc[0].byte_len), (WcOpcode::RECV_RDMA_WITH_IMM, 5000));
    assert_eq!(t.get(12288, 5000), t.get(0, 5000));

    t.put(20000, b"to be read");
    post!(a, 3, op::Read::new(t.remote(20000)), &[t.sge(30000, 4), t.sge(31000, 6)]).unwrap();
    t.wait_ok(1);
    assert_eq!((t.get(30000, 4), t.get(31000, 6)), (b"to b".to_vec(), b"e read".to_vec()));

    let word = (0..8).find(|i| t.remote(40000 + i).addr.is_multiple_of(8)).unwrap() + 40000;
    t.put(word, &5_u64.to_ne_bytes());
    post!(a, 3, op::FetchAdd::new(t.remote(word), 37), &[t.sge(30000, 8)]).unwrap();
    t.wait_ok(1);
    assert_eq!(
        (t.get(word, 8), t.get(30000, 8)),
        (42_u64.to_ne_bytes().to_vec(), 5_u64.to_ne_bytes().to_vec())
    );
    post!(a, 3, op::CmpSwp::new(t.remote(word), 42, 1 << 40), &[t.sge(30000, 8)]).unwrap();
    t.wait_ok(1);
    assert_eq!(
        (t.get(word, 8), t.get(30000, 8)),
        ((1_u64 << 40).to_ne_bytes().to_vec(), 42_u64.to_ne_bytes().to_vec())
    );

    t.close([a, b]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn windows_of_both_types_are_bound_and_invalidated() {
    let mut t = Bench::new();
    let (mut a, mut b) = t.pair(QpType::Rc);
    let one = mw::alloc(&t.pd, MwType::Type1, Uhw::none()).unwrap();
    let two = mw::alloc(&t.pd, MwType::Type2, Uhw::none()).unwrap();
    let bind = |mw: &MwHandle, mw_type: u32, step: u32| MwBind {
        mw_rkey: mw.rkey(),
        mw_type,
        rkey: (mw.rkey() & !0xff) | (mw.rkey().wrapping_add(step) & 0xff),
        mr_lkey: t.mr.lkey(),
        addr: t.remote(8192).addr,
        length: 100,
        access: AccessFlags::REMOTE_WRITE.bits(),
    };
    let (first, second) = (bind(&one, 1, 1), bind(&two, 2, 3));
    post!(b, 1, op::BindMw::new(first), NoData).unwrap();
    post!(b, 2, op::BindMw::new(second), NoData).unwrap();
    let wc = t.wait_ok(2);
    assert!(wc.iter().all(|wc| wc.opcode == WcOpcode::BIND_MW));
    let addr = t.remote(8192).addr;
    for (n, rkey) in [(1, first.rkey), (2, second.rkey)] {
        post!(a, 3, op::Write::new(RemoteAddr { addr, rkey }), Inline(&[n; 10])).unwrap();
        t.wait_ok(1);
        assert_eq!(t.get(8192, 10), [n; 10]);
    }
    // The peer invalidates the type 2 window; the old key is then invalid.
    recv!(b, 1, &[t.sge(0, 10)]).unwrap();
    post!(a, 2, op::SendInv::new(second.rkey), Inline(b"gone")).unwrap();
    let wc = t.wait_ok(2);
    assert!(wc[0].wc_flags.contains(WcFlags::WITH_INV));
    assert_eq!(wc[0].invalidated_rkey(), Some(second.rkey));
    // Bound again, and invalidated here.
    let again = MwBind { mw_rkey: second.rkey, rkey: second.rkey ^ 1, ..second };
    post!(b, 1, op::BindMw::new(again), NoData).unwrap();
    post!(b, 2, op::LocalInv::new(again.rkey), NoData).unwrap();
    let wc = t.wait_ok(2);
    assert_eq!(wc[1].opcode, WcOpcode::LOCAL_INV);
    post!(a, 3, op::Write::new(RemoteAddr { addr, rkey: again.rkey }), Inline(&[9; 10])).unwrap();
    assert_eq!(t.wait(1)[0].status, WcStatus::REM_ACCESS_ERR);
    assert_eq!(t.get(8192, 10), [2; 10]);
    for mw in [one, two] {
        mw.destroy().unwrap();
    }
    t.close([a, b]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn flush_and_atomic_write_complete_if_the_kernel_has_them() {
    let mut t = Bench::new();
    let caps = query::device(t.driver.kernel(), Uhw::none()).unwrap().device_cap_flags;
    t.qp_access.set(AccessFlags::FLUSH_GLOBAL, caps.contains(DeviceCapFlags::FLUSH_GLOBAL));
    let (mut a, b) = t.pair(QpType::Rc);
    let word = (0..8).find(|i| t.remote(40000 + i).addr.is_multiple_of(8)).unwrap() + 40000;
    let write = post!(a, 1, op::AtomicWrite::new(t.remote(word), *b"8 bytes!"), NoData);
    if caps.contains(DeviceCapFlags::ATOMIC_WRITE) {
        write.unwrap();
        assert_eq!(t.wait_ok(1)[0].opcode, WcOpcode::ATOMIC_WRITE);
        assert_eq!(t.get(word, 8), b"8 bytes!");
    } else {
        assert_eq!(write, Err(PostError::IllegalOpcode));
    }
    let args = FlushArgs { length: 64, placement: 1, level: 0 };
    let has_flush = caps.contains(DeviceCapFlags::FLUSH_GLOBAL);
    let mut flushed = None;
    let mut at = t.remote(0);
    if has_flush {
        let range = MrRange { addr: at.addr, length: 4096, iova: at.addr };
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::FLUSH_GLOBAL;
        // SAFETY: the memory is leaked, and consists of atomics.
        let mr = unsafe { mr::reg(t.info.core_support, &t.pd, range, access, Uhw::none()) }.unwrap();
        at.rkey = mr.rkey();
        flushed = Some(mr);
    }
    let flush = post!(a, 1, op::Flush::new(at, args), NoData);
    if has_flush {
        flush.unwrap();
        assert_eq!(t.wait_ok(1)[0].opcode, WcOpcode::FLUSH);
    } else {
        assert_eq!(flush, Err(PostError::IllegalOpcode));
    }
    if let Some(mr) = flushed {
        mr.destroy().unwrap();
    }
    t.close([a, b]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn datagrams_arrive() {
    let mut t = Bench::new();
    let (mut a, mut b) = t.pair(QpType::Ud);
    let (handle, ah): (AhHandle, Ah) =
        t.driver.create_ah(&t.pd, &AhAttr::global(1, t.gid_index, t.gid)).unwrap();
    assert_ne!(ah.num, 0, "kernels since 5.16 have an index");
    let to = |remote_qkey| To { ah: &ah, remote_qpn: b.handle.qp_num(), remote_qkey };
    let (own, given) = (to(0x8000_0000), to(0x1111));
    for (n, to) in [own, given].into_iter().enumerate() {
        recv!(b, 1, &[t.sge(0, 200)]).unwrap();
        // SAFETY: inline data are copied by the call, so no memory is used later.
        unsafe { sq(&mut a).post(wr(2), to, op::SendImm::new(ImmData::new(3)), Inline(&[n as u8; 20])) }
            .unwrap();
        let wc = t.wait_ok(2);
        assert_eq!((wc[0].byte_len, wc[0].src_qp), (60, a.handle.qp_num()));
        assert_eq!(wc[0].imm_data(), Some(ImmData::new(3)));
        assert!(wc[0].wc_flags.contains(WcFlags::GRH));
        assert_eq!(t.get(40, 20), [n as u8; 20]);
    }
    // Longer than the MTU: the device sends nothing, but completes the WR successfully.
    let to = To { ah: &ah, remote_qpn: b.handle.qp_num(), remote_qkey: 0x1111 };
    recv!(b, 1, &[t.sge(0, 60000)]).unwrap();
    // SAFETY: all memory is leaked and made of atomics.
    unsafe { sq(&mut a).post(wr(2), to, op::Send::new(), &[t.sge(0, 20000)]) }.unwrap();
    assert_eq!(t.wait_ok(1)[0].wr_id, 2);
    t.quiet();
    handle.destroy().unwrap();
    t.close([a, b]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn unreliable_connections_send_write_and_refuse_invalidation() {
    let mut t = Bench::new();
    let (mut a, mut b) = t.pair(QpType::Uc);
    recv!(b, 1, &[t.sge(0, 5000)]).unwrap();
    t.put(8192, &[5; 3000]);
    post!(a, 2, op::Send::new(), &[t.sge(8192, 3000)]).unwrap();
    assert_eq!(t.wait_ok(2)[0].byte_len, 3000);
    assert_eq!(t.get(0, 3000), [5; 3000]);
    post!(a, 3, op::Write::new(t.remote(20000)), Inline(b"uc")).unwrap();
    t.wait_ok(1);
    // Legal by ibv_post_send(3), but beyond rxe's limits: the completion has an error. Later kernels flush the failed
    // WR before they report the cause (`rxe_requester()` calls `rxe_qp_error()` at once).
    post!(a, 4, op::SendInv::new(1), NoData).unwrap();
    let status = t.wait(1)[0].status;
    assert!(matches!(status, WcStatus::LOC_QP_OP_ERR | WcStatus::WR_FLUSH_ERR), "{status}");
    t.close([a, b]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn thousands_of_wrs_complete_in_order() {
    let mut t = Bench::new();
    let (mut a, mut b) = t.pair(QpType::Rc);
    let (mut sent, mut done) = (0_u64, 0_u64);
    while done < 3000 {
        let n = 1 + sent % 7;
        for i in 0..n {
            recv!(b, 1 << 32 | (sent + i), &[t.sge(((sent + i) % 32) as usize * 64, 64)]).unwrap();
        }
        if sent % 2 == 0 {
            let mut batch = sq(&mut a).batch();
            for i in 0..n {
                // SAFETY: inline data are copied by the call, so no memory is used later.
                unsafe {
                    batch.push(wr(sent + i), Connected, op::Send::new(), Inline(&(sent + i).to_ne_bytes()))
                };
            }
            batch.complete().unwrap();
        } else {
            let q = sq(&mut a);
            q.wr_start();
            for i in 0..n {
                q.wr_begin(wr(sent + i), op::Send::new());
                q.wr_set_inline(Inline(&(sent + i).to_ne_bytes()));
            }
            q.wr_complete().unwrap();
        }
        sent += n;
        let mut seen: Vec<u64> = t.wait_ok(2 * n as usize).iter().map(|wc| wc.wr_id).collect();
        seen.retain(|id| *id >> 32 == 0);
        assert_eq!(seen, (sent - n..sent).collect::<Vec<_>>());
        for i in sent - n..sent {
            assert_eq!(t.get((i % 32) as usize * 64, 8), i.to_ne_bytes());
        }
        done += n;
    }
    t.close([a, b]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn wrs_posted_in_err_are_flushed() {
    let mut t = Bench::new();
    for qp_type in [QpType::Rc, QpType::Uc, QpType::Ud] {
        let (mut a, b) = t.pair(qp_type);
        recv!(a, 1, &[t.sge(0, 10)]).unwrap();
        t.state(&a, QpState::ERR);
        assert_eq!(t.wait(1)[0].status, WcStatus::WR_FLUSH_ERR);
        std::thread::sleep(Duration::from_millis(100));
        for id in 2..6 {
            recv!(a, id, &[t.sge(0, 10)]).unwrap();
        }
        let mut got = t.wait(4);
        got.sort_by_key(|wc| wc.wr_id);
        assert_eq!(got.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [2, 3, 4, 5], "{qp_type}");
        assert!(got.iter().all(|wc| wc.status == WcStatus::WR_FLUSH_ERR));
        if qp_type != QpType::Ud {
            for id in 7..9 {
                post!(a, id, op::Send::new(), Inline(b"x")).unwrap();
            }
            let got: Vec<_> = t.wait(2).iter().map(|wc| (wc.wr_id, wc.status)).collect();
            assert_eq!(got, [(7, WcStatus::WR_FLUSH_ERR), (8, WcStatus::WR_FLUSH_ERR)], "{qp_type}");
        }
        for qp in [a, b] {
            own!(t.driver.destroy_qp(qp.handle, &qp.shared)).unwrap();
        }
    }
    t.close([]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn reset_drops_queued_wrs_and_the_rings_continue() {
    let mut t = Bench::new();
    let (mut a, mut b) = t.pair(QpType::Rc);
    for lap in 0..5 {
        // Some traffic moves the indices.
        for i in 0..lap + 1 {
            recv!(b, 100 + i, &[t.sge(0, 10)]).unwrap();
            post!(a, i, op::Send::new(), Inline(b"x")).unwrap();
            t.wait_ok(2);
        }
        for i in 0..5 {
            recv!(a, 200 + i, &[t.sge(0, 10)]).unwrap();
        }
        t.state(&a, QpState::RESET);
        t.state(&b, QpState::RESET);
        assert_eq!(post!(a, 1, op::Send::new(), NoData), Err(PostError::BadState));
        assert_eq!(recv!(a, 1, &[]), Err(PostError::BadState));
        t.quiet();
        t.connect(&a, &b);
        // The whole queue is free again.
        let room = sq(&mut a).capacity().min(16);
        for i in 0..u64::from(room) {
            recv!(b, 300 + i, &[t.sge(0, 10)]).unwrap();
        }
        for i in 0..u64::from(room) {
            post!(a, i, op::Send::new(), Inline(b"y")).unwrap();
        }
        t.wait_ok(2 * room as usize);
    }
    t.close([a, b]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn wrs_posted_in_sqd_run_after_it() {
    let mut t = Bench::new();
    let (mut a, mut b) = t.pair(QpType::Rc);
    t.state(&a, QpState::SQD);
    // Draining takes time; until it is complete, the kernel refuses the transition back.
    let end = Instant::now() + LIMIT;
    while a.handle.query(QpAttrMask::STATE).unwrap().0.sq_draining {
        assert!(Instant::now() < end, "the send queue is not drained");
        std::thread::yield_now();
    }
    recv!(b, 1, &[t.sge(0, 10)]).unwrap();
    post!(a, 2, op::Send::new(), Inline(b"held back")).unwrap();
    t.quiet();
    t.state(&a, QpState::RTS);
    t.wait_ok(2);
    assert_eq!(t.get(0, 9), b"held back");
    t.close([a, b]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn resizes_keep_all_completions() {
    let mut t = Bench::with_cqe(7);
    let attr = SrqInitAttr { attr: SrqAttr { max_wr: 5, max_sge: 2, srq_limit: 0 }, ..Default::default() };
    let create = SrqCreate { pd: &t.pd, attr: &attr, xrc: None, td: None, user_handle: 0 };
    let mut srq = own!(t.driver.create_srq(&create)).unwrap();
    let (mut a, b) = (t.qp(QpType::Rc, None), t.qp(QpType::Rc, Some(&srq)));
    assert!(b.recv.is_none());
    t.connect(&a, &b);
    let receive = |srq: &mut uverbs_core::provider::SrqParts<Rxe>, sge: Sge, id: u64| {
        // SAFETY: all memory is leaked and made of atomics.
        unsafe { srq.queue.post(id, &[sge]) }
    };
    // Uneven indices first.
    for id in 0..3 {
        receive(&mut srq, t.sge(0, 10), id).unwrap();
        post!(a, 100 + id, op::Send::new(), Inline(b"x")).unwrap();
        t.wait_ok(2);
    }
    let mut posted = 0;
    while receive(&mut srq, t.sge(0, 10), posted).is_ok() {
        posted += 1;
    }
    assert_eq!(posted, u64::from(srq.attr.max_wr));
    let attr = SrqAttr { max_wr: 40, ..Default::default() };
    own!(t.driver.modify_srq(&srq.handle, &mut srq.queue, &attr, SrqAttrMask::MAX_WR)).unwrap();
    assert!(srq.handle.query().unwrap().max_wr >= 40);
    let limit = SrqAttr { srq_limit: 2, ..Default::default() };
    own!(t.driver.modify_srq(&srq.handle, &mut srq.queue, &limit, SrqAttrMask::LIMIT)).unwrap();
    while receive(&mut srq, t.sge(0, 10), posted).is_ok() {
        posted += 1;
    }
    assert!(posted >= 40);
    // Two completions are left unpolled over the resize of the CQ.
    post!(a, 1000, op::Send::new(), Inline(b"x")).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let cqe = own!(t.driver.resize_cq(&t.cq.handle, &mut t.cq.queue, 200)).unwrap();
    assert!(cqe >= 200);
    let wc = t.wait_ok(2);
    assert_eq!((wc[0].wr_id, wc[1].wr_id), (0, 1000));
    for id in 1..posted {
        post!(a, 1000 + id, op::Send::new(), Inline(b"x")).unwrap();
        let wc = t.wait_ok(2);
        assert_eq!((wc[0].wr_id, wc[1].wr_id), (id, 1000 + id), "in the order in which they were posted");
    }
    own!(t.driver.destroy_qp(b.handle, &b.shared)).unwrap();
    own!(srq.handle.destroy()).unwrap();
    t.close([a]);
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn doorbells_use_the_ioctl_if_write_is_refused() {
    let mut t = Bench::new();
    let (mut a, mut b) = t.pair(QpType::Rc);
    // After this call the process has other credentials than when it opened the device, although equal ones.
    let status = replace_credentials();
    assert_eq!(status, 0);
    recv!(b, 1, &[t.sge(0, 10)]).unwrap();
    post!(a, 2, op::Send::new(), Inline(b"x")).unwrap();
    t.wait_ok(2);
    t.cq.queue.req_notify(true).unwrap();
    let debug = format!("{:?} {:?}", sq(&mut a).bell(), t.cq.queue.bell());
    assert_eq!(debug.matches("by_ioctl: true").count(), 2, "{debug}");
    t.close([a, b]);
}

/// Replaces the credentials of this thread by equal ones: no supplementary groups, as root has in the lab.
fn replace_credentials() -> i64 {
    // SAFETY: a plain system call; with a count of 0 the list is not read.
    unsafe { libc::syscall(libc::SYS_setgroups, 0_i64, 0_i64) }
}

#[test]
#[ignore = "needs an rxe device; `cargo xtask vm test` runs it in the VM"]
fn sizes_up_to_the_limits_are_accepted() {
    let mut t = Bench::new();
    let mut attr = QpInitAttr::new(QpType::Rc);
    let create = |attr: &QpInitAttr| t.create(attr, None);
    let nothing = create(&attr).unwrap();
    println!("requested nothing: {:?}", nothing.cap);
    attr.cap.max_inline_data = 8;
    attr.cap.max_send_wr = 1;
    let inline = create(&attr).unwrap();
    println!("requested 8 bytes inline: {:?}", inline.cap);
    attr.cap =
        QpCap { max_send_wr: 100, max_recv_wr: 33, max_send_sge: 32, max_recv_sge: 32, max_inline_data: 512 };
    let large = create(&attr).unwrap();
    println!("requested {:?}: {:?}", attr.cap, large.cap);
    for (field, cap) in [
        ("max_send_wr", QpCap { max_send_wr: u32::MAX, ..attr.cap }),
        ("max_send_sge", QpCap { max_send_sge: 33, ..attr.cap }),
        ("max_recv_sge", QpCap { max_recv_sge: 33, ..attr.cap }),
        ("max_inline_data", QpCap { max_inline_data: 513, ..attr.cap }),
    ] {
        attr.cap = cap;
        println!("{field}: {}", create(&attr).unwrap_err());
    }
    // The smallest inline size works although no entries were requested.
    let (mut a, mut b) = (inline, t.qp(QpType::Rc, None));
    t.connect(&a, &b);
    recv!(b, 1, &[t.sge(0, 10)]).unwrap();
    post!(a, 2, op::Send::new(), Inline(b"8 bytes!")).unwrap();
    t.wait_ok(2);
    assert_eq!(t.get(0, 8), b"8 bytes!");
    t.close([a, b, nothing, large]);
}
