// SPDX-License-Identifier: MIT OR Apache-2.0
//! Soft-iWARP on the real kernel: every operation of the device on every face, its limits, and what it lacks.
//!
//! Most themes of `uverbs_tests::suite` use operations and states that iWARP does not have (immediate data, atomics,
//! RESET), so the device has tests of its own. The connections are those of the connection manager; the tests of `cm` run,
//! too.

use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use uverbs::attr::{
    AccessFlags, EventType, MwType, QpCap, QpState, SendOpsFlags, SrqAttr, SrqAttrMask, SrqInitAttr,
};
use uverbs::{
    AnyDriver, Context, Driver, Errno, EventSource, Exclusive, PostError, Rc, Shared, Uc, Ud, WcOpcode,
    WcStatus,
};
use uverbs_cm::EventKind;
use uverbs_tests::env::End;
use uverbs_tests::lab::find;
use uverbs_tests::pair::{Pair, PairEnd, Spec};
use uverbs_tests::post::{Face, Lock, Op, Req, post_srq_recv};
use uverbs_tests::wait::{LIMIT, until};
use uverbs_tests::{Lab, LabEnv, LabTest, Outcome, Test, Vm};

/// A test of one name.
#[derive(Clone, Copy, Debug)]
enum Case {
    Opcodes(Face),
    OpcodesShared,
    Inline,
    Ring,
    Srq,
    Events,
    RemoteErrors,
    ReadErrors,
    TooLong,
    LocalErrors,
    Flush,
    States,
    Destroy,
    Lacks,
    NotConnected,
    AnyDriver,
}

const CASES: [(&str, Case); 19] = [
    ("opcodes::list", Case::Opcodes(Face::List)),
    ("opcodes::builder", Case::Opcodes(Face::Builder)),
    ("opcodes::batch", Case::Opcodes(Face::Batch)),
    ("opcodes::single", Case::Opcodes(Face::Single)),
    ("opcodes::shared", Case::OpcodesShared),
    ("inline", Case::Inline),
    ("ring", Case::Ring),
    ("srq", Case::Srq),
    ("events", Case::Events),
    ("errors::remote", Case::RemoteErrors),
    ("errors::read", Case::ReadErrors),
    ("errors::too_long", Case::TooLong),
    ("errors::local", Case::LocalErrors),
    ("flush", Case::Flush),
    ("states", Case::States),
    ("destroy", Case::Destroy),
    ("lacks", Case::Lacks),
    ("not_connected", Case::NotConnected),
    ("any_driver", Case::AnyDriver),
];

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    if !LabEnv::get().is_some_and(|env| env.siw) {
        return Vec::new();
    }
    CASES.iter().map(|(name, case)| Test::new::<Vm>(&format!("siw::{name}"), *case)).collect()
}

impl LabTest for Case {
    fn run<D: Driver>(self, lab: &Lab<D>) -> Outcome {
        match self {
            Self::Opcodes(face) => opcodes::<D, Exclusive>(lab, face),
            Self::OpcodesShared => Face::ALL.iter().try_for_each(|face| opcodes::<D, Shared>(lab, *face)),
            Self::Inline => inline(lab),
            Self::Ring => ring(lab),
            Self::Srq => srq(lab),
            Self::Events => events(lab),
            Self::RemoteErrors => remote_errors(lab),
            Self::ReadErrors => read_errors(lab),
            Self::TooLong => too_long(lab),
            Self::LocalErrors => local_errors(lab),
            Self::Flush => flush(lab),
            Self::States => states(lab),
            Self::Destroy => destroy(lab),
            Self::Lacks => lacks(lab),
            Self::NotConnected => not_connected(lab),
            Self::AnyDriver => any_driver(),
        }
    }
}

/// The operations of the device.
const OPS: SendOpsFlags = SendOpsFlags::SEND
    .union(SendOpsFlags::SEND_WITH_INV)
    .union(SendOpsFlags::RDMA_WRITE)
    .union(SendOpsFlags::RDMA_READ);

fn spec<D: Driver>(lab: &Lab<D>) -> Spec {
    let spec = Spec::new(lab);
    Spec { cap: spec.cap.max_send_sge(6).max_recv_sge(6).inline(80), len: 1 << 20, ..spec }
}

/// Every operation on a face, with lengths of no byte, of one segment and of many.
fn opcodes<D: Driver, L: Lock>(lab: &Lab<D>, face: Face) -> Outcome {
    let mut pair = Pair::<D, Rc, L>::with(lab, &spec(lab))?;
    for (turn, len) in [0, 1, 700, 5003, 300_000].into_iter().enumerate() {
        let seed = turn as u64 + 1;
        let what = || format!("{len} bytes");
        pair.message(face, len, seed).with_context(what)?;
        let Pair { a, b } = &mut pair;
        let far = 400_000;
        let third = len / 3;
        let parts = [a.sge(0..third), a.sge(third..2 * third), a.sge(2 * third..len)];

        // A write, gathered from three entries; then a read of the same bytes to another place, with a fence.
        a.fill(0..len, seed)?;
        b.clear(far..far + len + 8)?;
        a.post(face, &[Req::new(1, Op::Write(b.remote(far))).signaled().sges(&parts)])?;
        let wc = a.ok(1).with_context(what)?[0];
        ensure!((wc.wr_id, wc.opcode) == (1, WcOpcode::RDMA_WRITE), "{wc:?}");
        let back = [a.sge(far..far + len)];
        let flags = uverbs::SendFlags::SIGNALED | uverbs::SendFlags::FENCE;
        a.post(face, &[Req::new(2, Op::Read(b.remote(far))).flags(flags).sges(&back)])?;
        let wc = a.ok(1).with_context(what)?[0];
        ensure!((wc.wr_id, wc.opcode) == (2, WcOpcode::RDMA_READ), "{wc:?}");
        // The response comes after the write on the same connection.
        b.check(far..far + len, seed).with_context(what)?;
        a.check(far..far + len, seed).with_context(what)?;
        ensure!(b.bytes(far + len..far + len + 8)? == [0; 8], "written beyond the end");
    }
    // A send that invalidates a region of the peer: later writes to it fail.
    let Pair { a, b } = &mut pair;
    let victim =
        uverbs_tests::pair::region(&b.pd, 4096, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE)?;
    let to = uverbs_tests::RemoteAddr { addr: victim.addr(), rkey: victim.rkey() };
    let data = [a.sge(0..64)];
    a.post(face, &[Req::new(3, Op::Write(to)).signaled().sges(&data)])?;
    a.ok(1)?;
    b.recv(face, 4, 0..64)?;
    a.post(face, &[Req::new(5, Op::SendInv(victim.rkey())).signaled().sges(&data)])?;
    a.ok(1).context("send with invalidate")?;
    let wc = b.ok(1)?[0];
    ensure!((wc.wr_id, wc.opcode, wc.byte_len) == (4, WcOpcode::RECV, 64), "{wc:?}");
    b.idle()?;
    a.idle()
}

/// Inline data of every length, from several buffers, on every face; one byte more is refused.
fn inline<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec(lab))?;
    let Pair { a, b } = &mut pair;
    for len in 0..=80_usize {
        let face = Face::ALL[len % 4];
        let data = uverbs_tests::pattern::bytes(len as u64, len);
        b.recv(face, 1, 0..100)?;
        b.clear(512..600)?;
        let to = b.remote(512);
        a.post(
            face,
            &[Req::new(2, Op::Write(to)).inline(&data), Req::new(3, Op::Send).signaled().inline(&data)],
        )?;
        ensure!(a.ok(1)?[0].wr_id == 3, "an unsignaled write completed");
        ensure!(b.ok(1)?[0].byte_len as usize == len, "another length");
        b.check(0..len, len as u64)?;
        b.check(512..512 + len, len as u64)?;
    }
    let refused = a.post(Face::Single, &[Req::new(4, Op::Send).inline(&[0; 81])]).unwrap_err();
    ensure!(refused.error == Some(PostError::InlineTooLong), "{refused}");
    Ok(())
}

/// Thousands of messages through a short ring, which is full again and again.
fn ring<D: Driver>(lab: &Lab<D>) -> Outcome {
    let usual = spec(lab);
    let cap = usual.cap.max_send_wr(4).max_recv_wr(16);
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &Spec { cap, sq_sig_all: true, ..usual })?;
    let Pair { a, b } = &mut pair;
    let (mut posted, mut sent, mut got, mut open) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut full = 0;
    let mut deadline = uverbs_tests::Deadline::usual();
    while got < 4000 {
        while open < 16 && posted + open < got + 4016 {
            b.recv(Face::Single, open, 0..64)?;
            open += 1;
        }
        if posted < 4000 && posted < got + open {
            match a.post(
                Face::ALL[posted as usize % 4],
                &[Req::new(posted, Op::Send).inline(&posted.to_ne_bytes())],
            ) {
                Ok(()) => posted += 1,
                Err(e) if e.error == Some(PostError::QueueFull) => full += 1,
                Err(e) => return Err(e.into()),
            }
        }
        let mut wc = [uverbs::WorkCompletion::default(); 8];
        for c in a.cq.poll(&mut wc)? {
            c.status.ok()?;
            ensure!(c.wr_id == sent, "{c:?} after {sent}");
            sent += 1;
        }
        for c in b.cq.poll(&mut wc)? {
            c.status.ok()?;
            got += 1;
            open -= 1;
            deadline.progress();
        }
        ensure!(!deadline.passed(), "{posted} posted, {sent} sent, {got} received");
    }
    until("every send completes", LIMIT, || {
        let mut wc = [uverbs::WorkCompletion::default(); 8];
        sent += a.cq.poll(&mut wc)?.len() as u64;
        Ok(sent == 4000)
    })?;
    lab.note(format_args!("the ring of {} was full {full} times", a.qp.cap().max_send_wr));
    Ok(())
}

/// Two connections receive from one queue; its limit raises an event.
fn srq<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = spec(lab);
    let mut pairs = Vec::new();
    let pd = lab.a.alloc_pd()?;
    let attr = SrqAttr::new(16).max_sge(2);
    let srq = pd.create_srq::<Exclusive>(&SrqInitAttr::new(attr))?;
    let mut srq = srq;
    for _ in 0..2 {
        let cq = lab.a.create_cq(spec.cqe, None)?;
        let a = PairEnd::<D, Rc, Exclusive>::on(pd.clone(), cq, &spec, OPS, 1, Some(&srq))?;
        let cq = lab.b.create_cq(spec.cqe, None)?;
        let b = PairEnd::<D, Rc, Exclusive>::on(
            lab.b.alloc_pd()?,
            cq,
            &spec,
            OPS,
            1,
            None::<&uverbs::raw::Srq<Exclusive, D>>,
        )?;
        let mut pair = Pair { a, b };
        pair.connect(&spec.attr)?;
        pairs.push(pair);
    }
    for round in 0..20_u64 {
        let entries: Vec<_> = (0..4_usize).map(|i| [pairs[0].a.sge(i * 4096..i * 4096 + 64)]).collect();
        for (i, entry) in entries.iter().enumerate() {
            post_srq_recv(&mut srq, Face::ALL[i], &[(round * 4 + i as u64, &entry[..])])?;
        }
        for i in 0..4_usize {
            let Pair { a, b } = &mut pairs[i % 2];
            let seed = round * 4 + i as u64;
            b.fill(0..64, seed)?;
            let data = [b.sge(0..64)];
            b.post(Face::Batch, &[Req::new(1, Op::Send).signaled().sges(&data)])?;
            b.ok(1)?;
            let wc = a.ok(1)?[0];
            ensure!((wc.wr_id, wc.byte_len) == (seed, 64), "{wc:?}, expected {seed}");
            pairs[0].a.check(i * 4096..i * 4096 + 64, seed)?;
        }
    }
    // Of six receives the fourth one leaves fewer than three.
    let recvs: Vec<_> = (0..6).map(|i| (i, &[][..])).collect();
    post_srq_recv(&mut srq, Face::Batch, &recvs)?;
    srq.modify(&SrqAttr::new(0).srq_limit(3).max_sge(0), SrqAttrMask::LIMIT)?;
    lab.a.set_async_nonblocking(true)?;
    for i in 0..6 {
        let Pair { a, b } = &mut pairs[i % 2];
        b.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
        b.ok(1)?;
        a.ok(1)?;
        if i != 3 {
            let event = lab.a.get_async_event();
            ensure!(event.is_err(), "receive {i}: {event:?}");
            continue;
        }
        ensure!(uverbs_tests::wait::readable(lab.a.async_fd(), LIMIT)?, "no limit event");
        let event = lab.a.get_async_event()?;
        ensure!(event.event_type == EventType::SRQ_LIMIT_REACHED, "{event:?}");
        ensure!(event.source == EventSource::Srq(srq.id()), "{event:?}");
    }
    Ok(())
}

/// An armed queue raises one event, and none is lost if the completion came before.
fn events<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = spec(lab);
    let channel = lab.b.create_comp_channel()?;
    let cq = lab.b.create_cq(64, Some(&channel))?;
    let none = None::<&uverbs::raw::Srq<Exclusive, D>>;
    let b = PairEnd::<D, Rc, Exclusive>::on(lab.b.alloc_pd()?, cq, &spec, OPS, 1, none)?;
    let a = PairEnd::on(lab.a.alloc_pd()?, lab.a.create_cq(64, None)?, &spec, OPS, 1, none)?;
    let mut pair = Pair { a, b };
    pair.connect(&spec.attr)?;
    let Pair { a, b } = &mut pair;
    for round in 0..50 {
        b.recv(Face::Single, round, 0..64)?;
        b.cq.req_notify(false)?;
        b.idle()?;
        a.post(Face::Single, &[Req::new(1, Op::Send).signaled().inline(b"x")])?;
        a.ok(1)?;
        ensure!(uverbs_tests::wait::readable(std::os::fd::AsFd::as_fd(&channel), LIMIT)?, "no event");
        ensure!(channel.get_event()? == b.cq.id(), "an event of another queue");
        ensure!(b.ok(1)?[0].wr_id == round, "another completion");
        let again = uverbs_tests::wait::readable(std::os::fd::AsFd::as_fd(&channel), Duration::ZERO)?;
        ensure!(!again, "a second event");
    }
    Ok(())
}

/// A write with a wrong key of the peer ends the connection, which flushes the peer's receive.
fn remote_errors<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec(lab))?;
    let Pair { a, b } = &mut pair;
    let data = [a.sge(0..512)];
    let wrong = uverbs_tests::RemoteAddr { rkey: b.mr.rkey() ^ 0x5500, ..b.remote(0) };
    b.recv(Face::Single, 7, 0..64)?;
    a.post(Face::Single, &[Req::new(1, Op::Write(wrong)).signaled().sges(&data)])?;
    // iWARP completes a write when TCP has it.
    a.wait(1)?;
    let wc = b.wait(1)?[0];
    ensure!(wc.wr_id == 7 && wc.status == WcStatus::WR_FLUSH_ERR, "{wc:?}");
    Ok(())
}

/// Waits until the kernel has ended the connection of an end.
fn disconnected<D: Driver>(end: &PairEnd<D, Rc, Exclusive>) -> Outcome {
    let id = end.id.as_ref().context("no identifier")?;
    uverbs_tests::iwarp::expect(id.channel(), |kind| matches!(kind, EventKind::Disconnected).then_some(()))
}

/// The next completions, in the order of their IDs.
fn results<D: Driver>(end: &PairEnd<D, Rc, Exclusive>, count: usize) -> Result<Vec<(u64, WcStatus)>> {
    let mut all: Vec<_> = end.wait(count)?.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    all.sort_by_key(|(wr_id, _)| *wr_id);
    Ok(all)
}

/// A read with a wrong key, or beyond the end of a region, ends the connection. All work requests of the requester are flushed; the
/// receives of the responder are flushed when its QP goes to ERR, because its kernel only closes the connection
/// (`siw_qp_cm_drop()`).
fn read_errors<D: Driver>(lab: &Lab<D>) -> Outcome {
    const FLUSHED: WcStatus = WcStatus::WR_FLUSH_ERR;
    for what in ["another region", "an older key", "beyond the end"] {
        let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec(lab))?;
        let Pair { a, b } = &mut pair;
        let (good, mut wrong) = (b.remote(0), b.remote(0));
        match what {
            "another region" => wrong.rkey ^= 0x5500,
            "an older key" => wrong.rkey ^= 0x55,
            _ => wrong.addr += (1 << 20) - 511,
        }
        a.recv(Face::Single, 5, 0..64)?;
        b.recv(Face::Single, 6, 0..64)?;
        b.recv(Face::Single, 7, 0..64)?;
        let data = [a.sge(0..512)];
        a.post(Face::Single, &[Req::new(1, Op::Read(good)).signaled().sges(&data)])?;
        ensure!(a.ok(1)?[0].wr_id == 1, "another completion");
        let reads = [
            Req::new(2, Op::Read(wrong)).signaled().sges(&data),
            Req::new(3, Op::Read(good)).signaled().sges(&data),
        ];
        a.post(Face::Batch, &reads)?;
        disconnected(a)?;
        disconnected(b)?;
        b.set_state(QpState::ERR)?;
        let (a_has, b_has) = (results(a, 3)?, results(b, 2)?);
        ensure!(a_has == [(2, FLUSHED), (3, FLUSHED), (5, FLUSHED)], "{what}: {a_has:?}");
        ensure!(b_has == [(6, FLUSHED), (7, FLUSHED)], "{what}: {b_has:?}");
        a.set_state(QpState::ERR)?;
        a.idle()?;
        b.idle()?;
    }
    Ok(())
}

/// A message that is longer than its receive: the receive fails and ends the connection, and every other work request completes
/// once. A send completes when TCP has it, so its status depends on its length.
fn too_long<D: Driver>(lab: &Lab<D>) -> Outcome {
    for len in [65, 5000, 300_000] {
        let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec(lab))?;
        let Pair { a, b } = &mut pair;
        a.recv(Face::Single, 5, 0..64)?;
        b.recv(Face::Single, 6, 0..64)?;
        b.recv(Face::Single, 7, 0..64)?;
        let data = [a.sge(0..len)];
        let sends =
            [Req::new(1, Op::Send).signaled().sges(&data), Req::new(2, Op::Send).signaled().sges(&data)];
        a.post(Face::Batch, &sends)?;
        disconnected(a)?;
        disconnected(b)?;
        let (a_has, b_has) = (results(a, 3)?, results(b, 2)?);
        let ids: Vec<_> = a_has.iter().map(|(wr_id, _)| *wr_id).collect();
        ensure!(ids == [1, 2, 5] && a_has[2].1 == WcStatus::WR_FLUSH_ERR, "{len} bytes: {a_has:?}");
        let expected = [(6, WcStatus::LOC_LEN_ERR), (7, WcStatus::WR_FLUSH_ERR)];
        ensure!(b_has == expected, "{len} bytes: {b_has:?}");
        for end in [&*a, &*b] {
            end.set_state(QpState::ERR)?;
            end.idle()?;
        }
    }
    Ok(())
}

/// A wrong local key is reported.
fn local_errors<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec(lab))?;
    let Pair { a, .. } = &mut pair;
    let mut data = [a.sge(0..512)];
    data[0].lkey ^= 0x5500;
    a.post(Face::Single, &[Req::new(1, Op::Send).sges(&data)])?;
    let wc = a.wait(1)?[0];
    ensure!(wc.wr_id == 1 && wc.status != WcStatus::SUCCESS, "{wc:?}");
    Ok(())
}

/// Receives are flushed when the QP goes to ERR, and when the peer ends the connection. Nothing can be posted after it.
fn flush<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec(lab))?;
    let Pair { a, b } = &mut pair;
    a.recv_empty(5)?;
    b.recv_empty(6)?;
    a.set_state(QpState::ERR)?;
    for (end, n) in [(&*a, 5), (&*b, 6)] {
        let all = end.wait(n)?;
        let ids: Vec<_> = all.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        let want: Vec<_> = (0..n as u64).map(|i| (i, WcStatus::WR_FLUSH_ERR)).collect();
        ensure!(ids == want, "{ids:?}");
    }
    let refused = a.post(Face::Single, &[Req::new(1, Op::Send).inline(b"x")]).unwrap_err();
    ensure!(refused.error == Some(PostError::BadState), "{refused}");
    ensure!(a.recv_empty(1).is_err(), "a receive in ERR would never complete");
    let error = a.set_state(QpState::RESET).unwrap_err();
    ensure!(error.to_string().contains("does not reset"), "{error}");
    // The peer's flushed receives show that it is in ERR, too.
    let refused = b.post(Face::Single, &[Req::new(1, Op::Send).inline(b"x")]).unwrap_err();
    ensure!(refused.error == Some(PostError::BadState), "{refused}");
    ensure!(b.recv_empty(1).is_err(), "a receive in ERR would never complete");
    Ok(())
}

/// The state, which kernel 6.1 does not report.
fn states<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = spec(lab);
    let mut pair = Pair::<D, Rc, Exclusive>::unconnected(lab, &spec)?;
    let is = |end: &PairEnd<D, Rc, Exclusive>, want: QpState| -> Outcome {
        let (attr, _) = end.qp.query(uverbs::attr::QpAttrMask::STATE)?;
        ensure!((attr.qp_state, attr.cur_qp_state) == (want, want), "{attr:?}, expected {want}");
        Ok(())
    };
    is(&pair.a, QpState::RESET)?;
    pair.a.qp.init(&spec.attr)?;
    is(&pair.a, QpState::INIT)?;
    is(&pair.b, QpState::RESET)?;
    pair.connect(&spec.attr)?;
    is(&pair.a, QpState::RTS)?;
    is(&pair.b, QpState::RTS)?;
    pair.message(Face::Single, 64, 1)?;
    let Pair { a, b } = &mut pair;
    is(a, QpState::RTS)?;
    b.recv_empty(2)?;
    a.set_state(QpState::ERR)?;
    is(a, QpState::ERR)?;
    ensure!(a.qp.control.has_last_wqe(), "its receives are flushed");
    results(b, 2)?;
    is(b, QpState::ERR)?;
    ensure!(!b.qp.control.has_last_wqe(), "the kernel has moved it to ERR by itself");
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    let Pair { a, .. } = &mut pair;
    a.set_state(QpState::SQD)?;
    let (attr, _) = a.qp.query(uverbs::attr::QpAttrMask::STATE)?;
    ensure!(matches!(attr.qp_state, QpState::SQD | QpState::ERR), "{attr:?}");
    Ok(())
}

/// A destroyed QP leaves no completion in the queue that another one uses, also if the kernel gives its number to the next.
fn destroy<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = spec(lab);
    let mut cq = lab.a.create_cq(256, None)?;
    let none = None::<&uverbs::raw::Srq<Exclusive, D>>;
    let mut numbers = Vec::new();
    for round in 0..20 {
        let a = PairEnd::<D, Rc, Exclusive>::on(lab.a.alloc_pd()?, cq, &spec, OPS, 1, none)?;
        let b = PairEnd::on(lab.b.alloc_pd()?, lab.b.create_cq(64, None)?, &spec, OPS, 1, none)?;
        let mut pair = Pair { a, b };
        pair.connect(&spec.attr)?;
        ensure!(pair.a.cq.poll(&mut [uverbs::WorkCompletion::default(); 1])?.is_empty(), "round {round}");
        pair.message(Face::ALL[round % 4], 100, round as u64)?;
        numbers.push(pair.a.qp.qp_num());
        pair.a.recv_empty(10)?;
        let PairEnd { qp, cq: same, .. } = pair.a;
        drop(qp);
        cq = same;
        ensure!(cq.poll(&mut [uverbs::WorkCompletion::default(); 1])?.is_empty(), "round {round}");
    }
    numbers.dedup();
    lab.note(format_args!("numbers of 20 QPs: {numbers:?}"));
    Ok(())
}

/// What the device lacks is `Unsupported` when it is created.
fn lacks<D: Driver>(lab: &Lab<D>) -> Outcome {
    let pd = lab.a.alloc_pd()?;
    let cq = lab.a.create_cq(4, None)?;
    let cap = QpCap::new(1, 1);
    let unsupported = |what: &str, error: Option<uverbs::Error>| -> Result<()> {
        let error = error.with_context(|| format!("{what} was created"))?;
        ensure!(error.is_unsupported(), "{what}: {error}");
        Ok(())
    };
    unsupported("UD", pd.raw_qp::<Ud>().cq(&cq).cap(cap).create().err())?;
    unsupported("UC", pd.raw_qp::<Uc>().cq(&cq).cap(cap).create().err())?;
    for op in SendOpsFlags::all().difference(OPS) {
        let qp = pd.raw_qp::<Rc>().cq(&cq).cap(cap).send_ops(op).create();
        unsupported(&format!("{op:?}"), qp.err())?;
    }
    unsupported("a window", pd.alloc_mw(MwType::Type2).err())?;
    unsupported(
        "an address handle",
        pd.create_ah(&uverbs::attr::AhAttr::global(1, 0, "10.0.0.1".parse()?)).err(),
    )?;
    unsupported("a larger CQ", cq.resize(100).err())?;
    let mut attr = spec(lab).cap;
    attr.max_inline_data = 81;
    let error = pd.raw_qp::<Rc>().cq(&cq).cap(attr).create().err().context("81 bytes of inline data")?;
    ensure!(error.errno() == Errno::EINVAL, "{error}");
    Ok(())
}

/// A QP that is not connected: receives may be posted, sends are refused, and only the connection manager connects it.
fn not_connected<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = spec(lab);
    let mut pair = Pair::<D, Rc, Exclusive>::unconnected(lab, &spec)?;
    let (here, there) = (pair.a.here, pair.b.here);
    let error = pair.a.connect(&there, &spec.attr).unwrap_err();
    ensure!(format!("{error:#}").contains("connection manager"), "{error:#}");
    let error = pair.a.set_state(QpState::RTS).unwrap_err();
    ensure!(format!("{error:#}").contains("connection manager"), "{error:#}");
    let _ = here;
    pair.a.recv_empty(1)?;
    for face in Face::ALL {
        let refused = pair.a.post(face, &[Req::new(1, Op::Send).inline(b"x")]).unwrap_err();
        ensure!(refused.error == Some(PostError::BadState), "{refused}");
    }
    // What was refused is not sent later; the receive is there.
    pair.connect(&spec.attr)?;
    let Pair { a, b } = &mut pair;
    b.post(Face::Single, &[Req::new(2, Op::Send).signaled()])?;
    b.ok(1)?;
    ensure!(a.ok(1)?[0].opcode == WcOpcode::RECV, "no receive");
    b.recv_empty(1)?;
    a.post(Face::Single, &[Req::new(3, Op::Send).signaled().inline(b"")])?;
    ensure!(a.ok(1)?[0].wr_id == 3, "a refused send was executed");
    ensure!(b.ok(1)?[0].byte_len == 0, "a refused send arrived");
    Ok(())
}

/// The selection of the driver at run time.
fn any_driver() -> Outcome {
    let env = LabEnv::get().context("needs the VM")?;
    let context = |end| Ok::<_, anyhow::Error>(Context::<AnyDriver>::open(&find(env.dev(end))?)?);
    let lab = Lab::new(context(End::A)?, Box::new(uverbs_tests::bed::VmBed(env.clone())))?;
    Face::ALL.iter().try_for_each(|face| opcodes::<AnyDriver, Exclusive>(&lab, *face))
}
