// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of QPs that receive from a shared queue: each receive that a QP has taken is reported before the QP is destroyed.
//!
//! mlx5 and newer kernels' rxe raise an event when a QP takes no more receives. rxe of older kernels shows what was taken. siw has
//! flushed the QP when `modify_qp` returns.

use super::srq::{attr, pair_on};
use crate::pair::Pair;
use crate::post::post_srq_recv;
use crate::sges::sge;
use crate::wait::{LIMIT, until};
use crate::{Face, Lab, LabEnv, Op, Outcome, Req, Spec};
use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use uverbs::{Context, Driver, Errno, Exclusive, ProtectionDomain, Rc, WorkCompletion};
use uverbs::{Cq, Pool, Qp, Srq};
use uverbs::{
    Private,
    attr::{AccessFlags, QpCap},
};
use uverbs_cm::Id;

/// Buffers of a pool.
const BUFS: usize = 16;
/// Bytes of a buffer.
const SIZE: u32 = 256;
/// The limit of a drain on a device that may raise no event.
const SILENCE: Duration = Duration::from_millis(300);

const CAP: QpCap = QpCap::new(16, 16).inline(32);

/// A device with a pool, and the CQ of its QPs.
struct Side<D: Driver> {
    cq: Cq<Exclusive, D>,
    pool: Pool<Private, D>,
    pd: ProtectionDomain<D>,
}

impl<D: Driver> Side<D> {
    fn new(context: &Context<D>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        Ok(Self { cq: context.cq_with(128, None)?, pool: pd.pool(BUFS as u32, SIZE)?, pd })
    }

    fn qp(&self, srq: Option<&Srq<Exclusive, D>>) -> Result<Qp<Rc, Exclusive, D>> {
        let builder = self.pd.qp::<Rc>().cq(&self.cq).cap(CAP);
        Ok(match srq {
            Some(srq) => builder.srq(srq).create()?,
            None => builder.create()?,
        })
    }

    /// Waits for the completion of the only signaled request.
    fn done(&mut self) -> Outcome {
        let cq = &mut self.cq;
        until("a completion", LIMIT, || {
            let Some(done) = cq.poll_one()? else { return Ok(false) };
            done.wc.status.ok()?;
            Ok(true)
        })
    }
}

/// Connects two QPs. The result keeps a connection of iWARP.
fn connect<D: Driver>(
    lab: &Lab<D>,
    a: &Qp<Rc, Exclusive, D>,
    b: &Qp<Rc, Exclusive, D>,
) -> Result<Option<[Id; 2]>> {
    if let Some(env) = LabEnv::get().filter(|env| env.siw) {
        return Ok(Some(crate::iwarp::connect(&env, a.control(), b.control())?));
    }
    let attr = lab.connect_attr();
    a.init(&attr)?;
    b.init(&attr)?;
    let (here, there) = (a.control().endpoint(0x51, &attr)?, b.control().endpoint(0x62, &attr)?);
    a.connect(&here, &there, &attr)?;
    b.connect(&there, &here, &attr)?;
    Ok(None)
}

/// Two QPs of end B receive from one queue. Nothing is polled there before the first one is drained, so messages of both wait in
/// the CQ.
fn every_buffer_of_an_owned_srq_comes_back<D: Driver>(lab: &Lab<D>) -> Outcome {
    let (mut a, mut b) = (Side::new(&lab.a)?, Side::new(&lab.b)?);
    let mut srq: Srq<Exclusive, D> = b.pd.srq(&attr(8))?;
    let memory =
        b.pd.pool_with(1, SIZE).exposed(AccessFlags::REMOTE_READ).build()?.get().context("a buffer")?;
    let (mut first, mut second) = (a.qp(None)?, a.qp(None)?);
    let (one, two) = (b.qp(Some(&srq))?, b.qp(Some(&srq))?);
    let _links = [connect(lab, &first, &one)?, connect(lab, &second, &two)?];
    for i in 0..8 {
        srq.post(i, b.pool.get().context("a buffer")?).map_err(|rejected| rejected.error)?;
    }
    let mut send = |qp: &mut Qp<Rc, Exclusive, D>, text: &[u8]| -> Outcome {
        qp.sq().post(1).signaled().send_inline(text)?;
        a.done()?;
        // A send of iWARP is complete before its message has arrived; the response to a read comes after that.
        let buf = a.pool.get().context("a buffer")?;
        qp.sq().post(2).signaled().read(buf, &memory.remote_region()).map_err(|rejected| rejected.error)?;
        a.done()
    };
    for text in [b"first", b"other"] {
        send(&mut first, text)?;
    }
    send(&mut second, b"third")?;
    send(&mut first, b"again")?;

    let mut messages = Vec::new();
    let (qp, other) = (one.qp_num(), two.qp_num());
    let drained = srq.drain(one, &mut b.cq, LIMIT, |done| {
        let (number, id) = (done.wc.qp_num, done.wc.wr_id);
        messages.push((number, id, done.buf().map(|buf| buf.to_vec()).unwrap_or_default()));
    });
    drained.map_err(|(_, error)| error).context("the first QP")?;
    let want =
        [(qp, 0, &b"first"[..]), (qp, 1, &b"other"[..]), (other, 2, &b"third"[..]), (qp, 3, &b"again"[..])];
    let is_right = messages
        .iter()
        .zip(want)
        .all(|(got, want)| (got.0, got.1) == (want.0, want.1) && got.2.starts_with(want.2));
    ensure!(is_right && messages.len() == want.len(), "{messages:?}");
    ensure!(b.pool.available() == BUFS - 4, "{} buffers", b.pool.available());

    // The second QP is connected; its receives are the remaining ones.
    send(&mut second, b"after")?;
    let mut rest = Vec::new();
    let drained = srq.drain(two, &mut b.cq, LIMIT, |done| rest.push((done.wc.qp_num, done.wc.wr_id)));
    drained.map_err(|(_, error)| error).context("the second QP")?;
    ensure!(rest == [(other, 4)], "{rest:?}");
    srq.close().map_err(|(_, error)| error)?;
    ensure!(b.pool.available() == BUFS, "{} buffers", b.pool.available());
    drop((first, second));
    ensure!(a.pool.available() == BUFS, "{} buffers of the sender", a.pool.available());
    Ok(())
}

/// The same without owned buffers. `Qp::drain` waits for the event, which rxe of older kernels does not raise: there it fails, after it
/// has passed on the completions.
fn receives_of_a_drained_qp_are_reported<D: Driver>(lab: &Lab<D>) -> Outcome {
    let spec = Spec::new(lab);
    let pd = lab.b.alloc_pd()?;
    let mut srq = pd.create_srq::<Exclusive>(&attr(8))?;
    let mr = crate::pair::region(&pd, 4096, lab.full_access())?;
    let Pair { mut a, b } = pair_on::<D, Rc, Exclusive>(lab, &spec, &srq, &pd)?;
    let sges: Vec<_> = (0..6_usize).map(|i| [sge(&mr, i * 64..(i + 1) * 64)]).collect();
    let recvs: Vec<_> = sges.iter().zip(0..).map(|(sge, id)| (id, &sge[..])).collect();
    post_srq_recv(&mut srq, Face::Batch, &recvs)?;
    let to = [a.sge(0..8)];
    for _ in 0..3 {
        a.post(Face::Single, &[Req::new(1, Op::Send).signaled().inline(b"message")])?;
        a.ok(1)?;
        a.post(Face::Single, &[Req::new(2, Op::Read(b.remote(0))).signaled().sges(&to)])?;
        a.ok(1)?;
    }
    let crate::PairEnd { qp, cq, id, .. } = b;
    let mut seen: Vec<WorkCompletion> = Vec::new();
    let limit = if D::NAME == "rxe" { SILENCE } else { LIMIT };
    match qp.drain(&cq, limit, |wc| seen.push(*wc)) {
        Ok(()) => {}
        Err((Some(_), error)) if D::NAME == "rxe" && error.errno() == Errno::ETIMEDOUT => {
            lab.note(error);
        }
        Err((_, error)) => return Err(error.into()),
    }
    drop(id);
    let ids: Vec<_> = seen.iter().map(|wc| wc.wr_id).collect();
    ensure!(ids == [0, 1, 2] && seen.iter().all(|wc| wc.status.is_success()), "{seen:?}");
    Ok(())
}

crate::tests!(every_buffer_of_an_owned_srq_comes_back, receives_of_a_drained_qp_are_reported);
