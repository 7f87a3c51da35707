// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC, if the device has it: every opcode on every face, a receive QP for several SRQs, and the objects of a domain.

use crate::pair::{builder_ops, region};
use crate::post::post_srq_recv;
use crate::sges::sge;
use crate::{Dest, Face, Lab, Lock, Op, Outcome, RemoteAddr, Req, pattern, post, wait};
use anyhow::{Context as _, Result, ensure};
use core::sync::atomic::Ordering;
use std::os::fd::AsFd;
use uverbs::qp::QpControl;
use uverbs::{
    ConnectAttr, Driver, Exclusive, MemoryRegion, PageBuf, ProtectionDomain, Shared, WcOpcode, WcStatus,
    WorkCompletion, XrcDomain, XrcSend,
    raw::{Cq, Qp, Srq},
};
use uverbs::{
    Exposed,
    attr::{DeviceCapFlags, QpCap, QpState, SendOpsFlags, SrqAttr, SrqInitAttr, SrqType},
};

const LONG: usize = 5003;

/// Notes that the device has no XRC.
fn has<D: Driver>(lab: &Lab<D>) -> bool {
    let has = lab.has(DeviceCapFlags::XRC);
    if !has {
        lab.note("the device has no XRC");
    }
    has
}

fn srq_attr(max_wr: u32) -> SrqInitAttr {
    let attr = SrqAttr::new(max_wr).max_sge(4);
    SrqInitAttr::new(attr).srq_type(SrqType::Xrc)
}

/// The sending end: A. The fields are dropped from the first to the last.
struct Sender<D: Driver, L: Lock> {
    qp: Qp<XrcSend, L, D>,
    cq: Cq<Shared, D>,
    mr: MemoryRegion<PageBuf, Exposed, D>,
}

/// The receiving end: B, with two SRQs that have a CQ each.
struct Receiver<D: Driver> {
    qp: QpControl<D>,
    srqs: [Srq<Exclusive, D>; 2],
    cqs: [Cq<Shared, D>; 2],
    mr: MemoryRegion<PageBuf, Exposed, D>,
    pd: ProtectionDomain<D>,
    xrcd: XrcDomain<D>,
}

fn receiver<D: Driver>(lab: &Lab<D>) -> Result<Receiver<D>> {
    let xrcd = lab.b.open_xrcd(None, true, false)?;
    let pd = lab.b.alloc_pd()?;
    let mr = region(&pd, 64 << 10, lab.full_access())?;
    let cqs = [lab.b.create_cq(64, None)?, lab.b.create_cq(64, None)?];
    let srq = |cq| Srq::create_xrc(&pd, &srq_attr(16), &xrcd, cq);
    let srqs = [srq(&cqs[0])?, srq(&cqs[1])?];
    let qp = xrcd.recv_qp().create_recv()?;
    Ok(Receiver { qp, srqs, cqs, mr, pd, xrcd })
}

fn sender<D: Driver, L: Lock>(lab: &Lab<D>) -> Result<Sender<D, L>> {
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(64, None)?;
    let mr = region(&pd, 64 << 10, lab.full_access())?;
    let cap = QpCap::new(16, 0).sge(4, 0).inline(64);
    let ops = builder_ops::<D, XrcSend>(lab)?;
    let qp = L::builder::<D, XrcSend>(&pd).send_cq(&cq).cap(cap).send_ops(ops).create()?;
    Ok(Sender { qp, cq, mr })
}

fn connect<D: Driver, L: Lock>(from: &Sender<D, L>, to: &QpControl<D>, attr: &ConnectAttr) -> Result<()> {
    let (here, there) = (from.qp.control.endpoint(0x11, attr)?, to.endpoint(0x22, attr)?);
    from.qp.init(attr)?;
    from.qp.connect(&here, &there, attr)?;
    to.init(attr)?;
    to.connect(&there, &here, attr)?;
    Ok(())
}

fn ends<D: Driver, L: Lock>(lab: &Lab<D>) -> Result<(Sender<D, L>, Receiver<D>)> {
    ends_with(lab, &lab.connect_attr())
}

fn ends_with<D: Driver, L: Lock>(lab: &Lab<D>, attr: &ConnectAttr) -> Result<(Sender<D, L>, Receiver<D>)> {
    let (a, b) = (sender::<D, L>(lab)?, receiver(lab)?);
    connect(&a, &b.qp, attr)?;
    Ok((a, b))
}

impl<D: Driver, L: Lock> Sender<D, L> {
    fn run(&mut self, face: Face, req: Req<'_, D>) -> Result<WorkCompletion> {
        post(&mut self.qp, face, &[req.signaled()])?;
        Ok(wait::successes(&self.cq, 1)?[0])
    }
}

impl<D: Driver> Receiver<D> {
    fn at(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr() + offset as u64, rkey: self.mr.rkey() }
    }

    fn recv(&mut self, srq: usize, wr_id: u64, at: usize, len: usize) -> Result<()> {
        let sges = [sge(&self.mr, at..at + len)];
        Ok(post_srq_recv(&mut self.srqs[srq], Face::Batch, &[(wr_id, &sges)])?)
    }

    fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.mr.read_at(at, &mut bytes)?;
        Ok(bytes)
    }
}

/// Every opcode of an XRC send QP.
fn opcodes_in<D: Driver, L: Lock>(lab: &Lab<D>) -> Outcome {
    if !has(lab) {
        return Ok(());
    }
    let ops = builder_ops::<D, XrcSend>(lab)?;
    ensure!(
        ops.contains(
            SendOpsFlags::SEND
                | SendOpsFlags::RDMA_WRITE
                | SendOpsFlags::RDMA_READ
                | SendOpsFlags::SEND_WITH_IMM
        ),
        "{ops:?}"
    );
    let (mut a, mut b) = ends::<D, L>(lab)?;
    for (turn, face) in Face::ALL.into_iter().enumerate() {
        let srqn = [b.srqs[0].srq_num()?, b.srqs[1].srq_num()?];
        for (to, op) in [(0, Op::Send), (1, Op::SendImm(77)), (1, Op::Send)] {
            let seed = turn as u64 * 10 + to as u64;
            a.mr.write_at(0, &pattern::bytes(seed, LONG))?;
            b.mr.write_at(0, &vec![0; LONG + 1])?;
            b.recv(to, seed, 0, LONG + 1)?;
            let sges = [sge(&a.mr, 0..1000), sge(&a.mr, 1000..LONG)];
            let sent = a.run(face, Req::new(5, op).sges(&sges).to(Dest::Xrc(srqn[to])))?;
            ensure!((sent.wr_id, sent.opcode) == (5, WcOpcode::SEND), "{sent:?}");
            let got = wait::successes(&b.cqs[to], 1)?[0];
            ensure!(got.wr_id == seed && got.byte_len as usize == LONG, "{got:?}");
            ensure!(got.qp_num == b.qp.qp_num(), "{got:?}");
            ensure!(got.imm_data().map(|i| i.get()) == matches!(op, Op::SendImm(_)).then_some(77), "{got:?}");
            ensure!(b.bytes(0, LONG)? == pattern::bytes(seed, LONG), "{op:?} by {face:?}: the data differ");
        }
        // Inline, to an SRQ of several entries.
        let data = pattern::bytes(turn as u64, 60);
        b.recv(0, 9, 0, 100)?;
        a.run(face, Req::new(6, Op::SendImm(3)).inline(&data).to(Dest::Xrc(srqn[0])))?;
        ensure!(wait::successes(&b.cqs[0], 1)?[0].imm_data().map(|i| i.get()) == Some(3));
        ensure!(b.bytes(0, 60)? == data);

        let from = [sge(&a.mr, 0..LONG)];
        a.mr.write_at(0, &pattern::bytes(99, LONG))?;
        a.run(face, Req::new(1, Op::Write(b.at(100))).sges(&from).to(Dest::Xrc(srqn[0])))?;
        ensure!(b.bytes(100, LONG)? == pattern::bytes(99, LONG), "a write by {face:?}");
        b.recv(1, 4, 0, 0)?;
        a.run(face, Req::new(1, Op::WriteImm(b.at(200), 5)).sges(&from).to(Dest::Xrc(srqn[1])))?;
        let got = wait::successes(&b.cqs[1], 1)?[0];
        ensure!((got.wr_id, got.opcode) == (4, WcOpcode::RECV_RDMA_WITH_IMM), "{got:?}");
        let to = [sge(&a.mr, 8192..8192 + LONG)];
        a.run(face, Req::new(1, Op::Read(b.at(200))).sges(&to).to(Dest::Xrc(srqn[0])))?;
        let mut bytes = vec![0; LONG];
        a.mr.read_at(8192, &mut bytes)?;
        ensure!(bytes == pattern::bytes(99, LONG), "a read by {face:?}");
        if ops.contains(SendOpsFlags::ATOMIC_FETCH_AND_ADD) {
            b.mr.atomic_u64(64)?.store(5, Ordering::Release);
            let to = [sge(&a.mr, 0..8)];
            a.run(face, Req::new(1, Op::FetchAdd(b.at(64), 10)).sges(&to).to(Dest::Xrc(srqn[0])))?;
            ensure!(a.mr.atomic_u64(0)?.load(Ordering::Acquire) == 5);
            a.run(face, Req::new(1, Op::CmpSwp(b.at(64), 15, 20)).sges(&to).to(Dest::Xrc(srqn[0])))?;
            ensure!(a.mr.atomic_u64(0)?.load(Ordering::Acquire) == 15);
            ensure!(b.mr.atomic_u64(64)?.load(Ordering::Acquire) == 20, "by {face:?}");
        }
    }
    wait::none(&a.cq)?;
    wait::none(&b.cqs[0])?;
    wait::none(&b.cqs[1])
}

/// A message to an SRQ that does not exist: the sender gets an error, and no receive is taken.
fn unknown_srq_is_an_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has(lab) {
        return Ok(());
    }
    let (mut a, mut b) = ends::<D, Exclusive>(lab)?;
    b.recv(0, 1, 0, 100)?;
    let req = Req::new(1, Op::Send).signaled().inline(&[1; 8]).to(Dest::Xrc(0x00ff_fff0));
    post(&mut a.qp, Face::List, &[req])?;
    let wc = wait::completions(&a.cq, 1)?[0];
    let allowed = [
        WcStatus::REM_INV_RD_REQ_ERR,
        WcStatus::REM_INV_REQ_ERR,
        WcStatus::REM_OP_ERR,
        WcStatus::REM_ACCESS_ERR,
    ];
    ensure!(allowed.contains(&wc.status), "{wc:?}");
    lab.note(format_args!("a message to no SRQ: {:?}", wc.status));
    wait::none(&b.cqs[0])
}

/// Faults are those of an RC QP (`faults`); the receive is that of the SRQ that the request names, and the next one stays.
fn faults_complete_one_receive<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has(lab) {
        return Ok(());
    }
    for (fault, sent, got) in [
        (0, WcStatus::REM_ACCESS_ERR, Some(WcStatus::LOC_ACCESS_ERR)),
        (1, WcStatus::RETRY_EXC_ERR, Some(WcStatus::MW_BIND_ERR)),
        (2, WcStatus::REM_INV_REQ_ERR, Some(WcStatus::LOC_LEN_ERR)),
        (3, WcStatus::LOC_PROT_ERR, None),
        (4, WcStatus::LOC_PROT_ERR, None),
        (5, WcStatus::REM_ACCESS_ERR, None),
    ] {
        let (mut a, mut b) = ends_with::<D, Exclusive>(lab, &super::errors::hasty(lab).attr)?;
        b.recv(0, 21, 0, 10)?;
        b.recv(0, 22, 0, 10)?;
        b.mr.atomic_u64(64)?.store(2, Ordering::Release);
        let unknown = b.mr.rkey() ^ 0x00ff_ff00;
        let nowhere = RemoteAddr { rkey: unknown, ..b.at(64) };
        let good = [sge(&a.mr, 0..16)];
        let bad = [uverbs::wr::Sge { lkey: a.mr.lkey() ^ 0x00ff_ff00, length: 8, ..good[0] }];
        let (op, sges) = match fault {
            0 => (Op::WriteImm(nowhere, 5), good),
            1 => (Op::SendInv(unknown), [sge(&a.mr, 0..8)]),
            2 => (Op::Send, good),
            3 => (Op::Read(b.at(64)), bad),
            4 => (Op::CmpSwp(b.at(64), 2, 3), bad),
            _ => (Op::CmpSwp(nowhere, 2, 3), bad),
        };
        let req = Req::new(1, op).signaled().sges(&sges).to(Dest::Xrc(b.srqs[0].srq_num()?));
        post(&mut a.qp, Face::Single, &[req])?;
        let wc = wait::completions(&a.cq, 1)?[0];
        ensure!(wc.status == sent, "{op:?}: {wc:?}");
        if let Some(status) = got {
            let wc = wait::completions(&b.cqs[0], 1)?[0];
            ensure!((wc.wr_id, wc.status) == (21, status), "{op:?}: {wc:?}");
        }
        wait::none(&b.cqs[0])?;
        let left = b.mr.atomic_u64(64)?.load(Ordering::Acquire);
        ensure!(left == if fault == 4 { 3 } else { 2 }, "{op:?}: {left}");
    }
    Ok(())
}

/// Two senders and two receive QPs of one domain use the same SRQ; its receives are not flushed with any of the QPs.
fn several_qps_reach_one_srq<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has(lab) {
        return Ok(());
    }
    let (mut first, mut b) = ends::<D, Exclusive>(lab)?;
    let mut second = sender::<D, Exclusive>(lab)?;
    let other = b.xrcd.recv_qp().create_recv()?;
    connect(&second, &other, &lab.connect_attr())?;
    let srqn = b.srqs[0].srq_num()?;
    for turn in 0..20_u64 {
        b.recv(0, turn, 0, 8)?;
        let data = turn.to_le_bytes();
        let sender = if turn % 3 == 0 { &mut second } else { &mut first };
        sender.run(Face::Batch, Req::new(turn, Op::Send).inline(&data).to(Dest::Xrc(srqn)))?;
        let got = wait::successes(&b.cqs[0], 1)?[0];
        let qp = if turn % 3 == 0 { other.qp_num() } else { b.qp.qp_num() };
        ensure!(got.wr_id == turn && got.qp_num == qp, "{got:?}");
        ensure!(b.bytes(0, 8)? == data);
    }
    b.recv(0, 50, 0, 8)?;
    other.modify_state(QpState::ERR)?;
    wait::none(&b.cqs[0])?;
    first.run(Face::Single, Req::new(1, Op::Send).to(Dest::Xrc(srqn)))?;
    ensure!(wait::successes(&b.cqs[0], 1)?[0].wr_id == 50);
    Ok(())
}

/// A domain of a file is opened through the file; a QP of another context is opened by its number.
fn domain_is_shared_through_a_file<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has(lab) {
        return Ok(());
    }
    let file = std::env::temp_dir().join(format!("uverbs-xrcd-{}", std::process::id()));
    let file_b = std::fs::OpenOptions::new().create(true).truncate(true).write(true).open(&file)?;
    std::fs::remove_file(&file)?;
    let one = lab.b.open_xrcd(Some(file_b.as_fd()), true, false)?;
    let e = lab
        .b
        .open_xrcd(Some(file_b.as_fd()), true, true)
        .err()
        .context("an exclusive open of an existing domain")?;
    ensure!(e.verb() == "open_xrcd", "{e}");
    let context = lab.bed.open(crate::env::End::B)?;
    let two = context.open_xrcd(Some(file_b.as_fd()), false, false)?;
    let qp = one.recv_qp().create_recv()?;
    let opened = two.open_qp(qp.qp_num())?;
    ensure!(opened.qp_num() == qp.qp_num());
    // The SRQ of the other context gets the messages of this context's QP.
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None)?;
    let mut srq: Srq<Exclusive, D> = Srq::create_xrc(&pd, &srq_attr(4), &two, &cq)?;
    post_srq_recv(&mut srq, Face::List, &[(33, &[])])?;
    let mut a = sender::<D, Exclusive>(lab)?;
    connect(&a, &qp, &lab.connect_attr())?;
    a.run(Face::Builder, Req::new(1, Op::Send).to(Dest::Xrc(srq.srq_num()?)))?;
    ensure!(wait::successes(&cq, 1)?[0].wr_id == 33);
    Ok(())
}

/// The SRQ of a receiver is closed before and after its QP.
fn srq_and_qp_close_in_any_order<D: Driver>(lab: &Lab<D>) -> Outcome {
    if !has(lab) {
        return Ok(());
    }
    let (mut a, b) = ends::<D, Shared>(lab)?;
    let Receiver { qp, srqs, cqs, mr, pd, xrcd } = b;
    drop((xrcd, pd, cqs));
    let srqn = srqs[1].srq_num()?;
    let [gone, mut srq] = srqs;
    drop(gone);
    post_srq_recv(&mut srq, Face::Single, &[(1, &[])])?;
    a.run(Face::Single, Req::new(1, Op::Send).to(Dest::Xrc(srqn)))?;
    drop((qp, srq, mr));
    Ok(())
}

crate::tests!(
    every_opcode_works_exclusive = opcodes_in::<D, Exclusive>,
    every_opcode_works_shared = opcodes_in::<D, Shared>,
    unknown_srq_is_an_error,
    faults_complete_one_receive,
    several_qps_reach_one_srq,
    domain_is_shared_through_a_file,
    srq_and_qp_close_in_any_order,
);
