// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of docs/src/reference/semantics.md, on the real kernel: every row on queues of real QPs, in every state that they can be
//! in. Completions show which WRs were posted.

use crate::pair::{ah_attr, builder_ops};
use crate::semantics::{Facts, RecvBench, RecvFacts, RowCounts, SendBench, Table, recvs, sends};
use crate::{Deadline, Dialect, Face, LIMIT, Lab, Lock, Op, Outcome, Pair, PairEnd, Req, Spec, Typed, wait};
use anyhow::{Context as _, Result, ensure};
use uverbs::attr::{QpCap, QpState, QpType, SrqAttr, SrqInitAttr};
use uverbs::{
    AddressHandle, Driver, Endpoint, Exclusive, PostError, Rc, Shared, Uc, Ud, WcStatus, WorkCompletion,
    raw::{Cq, Srq},
};
use uverbs_core::sync::Locked;

/// The driver's queues, as the benches name them.
type Sq<D> = <D as Driver>::SendQueue;
type Rq<D> = <D as Driver>::RecvQueue;
type SrqEngine<D> = <D as Driver>::SharedRecvQueue;

/// Small sizes, so that a queue is soon full.
fn spec<D: Driver>(lab: &Lab<D>) -> Spec {
    let mut spec = Spec::new(lab);
    spec.cap = QpCap::new(7, 7).sge(4, 4).inline(64);
    spec.len = 16 << 10;
    spec
}

/// Brings one end from a state to a later one.
fn climb<D: Driver, T: Typed<D>, L: Lock>(
    lab: &Lab<D>,
    side: &PairEnd<D, T, L>,
    peer: &Endpoint,
    from: QpState,
    to: QpState,
) -> Result<()> {
    let attr = lab.connect_attr();
    let passes = |step: QpState| from.0 < step.0 && to.0 >= step.0;
    if passes(QpState::INIT) {
        side.qp.init(&attr)?;
    }
    if passes(QpState::RTR) {
        side.qp.control.ready_to_receive(peer, &attr)?;
    }
    if passes(QpState::RTS) {
        side.qp.control.ready_to_send(&side.here, &attr)?;
    }
    match to {
        QpState::SQD => side.drain()?,
        QpState::ERR => side.set_state(to)?,
        _ => {}
    }
    ensure!(side.state()? == to, "{:?}, not {to:?}", side.state()?);
    Ok(())
}

/// Posts as soon as there is room. If polling frees slots, polls, and returns the ids of the completions.
fn when_there_is_room<D: Driver>(
    cq: &Cq<Shared, D>,
    status: WcStatus,
    mut post: impl FnMut() -> Result<()>,
) -> Result<Vec<u64>> {
    let (mut ids, mut deadline) = (Vec::new(), Deadline::usual());
    loop {
        match post() {
            Err(e) if e.downcast_ref() == Some(&PostError::QueueFull) && !deadline.passed() => {
                let mut wc = [WorkCompletion::default()];
                if Dialect::of::<D>().freed_by_polling
                    && let [wc] = cq.poll(&mut wc)?
                {
                    ensure!(wc.status == status, "{:#x}: {:?}, expected {status:?}", wc.wr_id, wc.status);
                    ids.push(wc.wr_id);
                }
                deadline.pause();
            }
            result => return result.map(|()| ids),
        }
    }
}

/// Polls until the completion that marks the end. Returns the ids before it. One WR may complete with the error `answer`.
fn until_marker<D: Driver>(
    cq: &Cq<Shared, D>,
    marker: u64,
    mut status: WcStatus,
    answer: WcStatus,
) -> Result<Vec<u64>> {
    let (mut ids, mut deadline) = (Vec::new(), Deadline::usual());
    let too_long = Dialect::of::<D>().datagram_too_long;
    loop {
        let mut wc = [WorkCompletion::default()];
        match cq.poll(&mut wc)?.first() {
            None => {
                ensure!(!deadline.passed(), "no completion of the last one, but of {ids:?}");
                deadline.pause();
            }
            Some(wc) => {
                let is_refused = [too_long, answer].contains(&wc.status) && !wc.status.is_success();
                if is_refused && status.is_success() {
                    // It was posted; later WRs are flushed.
                    status = WcStatus::WR_FLUSH_ERR;
                    ids.push(wc.wr_id);
                    continue;
                }
                ensure!(wc.status == status, "{:#x}: {:?}, expected {status:?}", wc.wr_id, wc.status);
                if wc.wr_id == marker {
                    return Ok(ids);
                }
                ids.push(wc.wr_id);
                deadline.progress();
            }
        }
    }
}

fn forget<D: Driver>(cq: &Cq<Shared, D>) -> Result<()> {
    while !cq.poll(&mut [WorkCompletion::default(); 8])?.is_empty() {}
    Ok(())
}

/// The id of the WR that marks the end; no row has it.
const MARKER: u64 = u64::MAX;

/// The send queue of end A.
struct Sends<'l, D: Driver, T: Typed<D>, L: Lock> {
    lab: &'l Lab<D>,
    pair: Pair<D, T, L>,
    /// The address of the peer, also for QPs that do not use it.
    ah: AddressHandle<D>,
    state: QpState,
}

impl<'l, D: Driver, T: Typed<D>, L: Lock> Sends<'l, D, T, L> {
    fn new(lab: &'l Lab<D>) -> Result<Self> {
        let spec = spec(lab);
        let ops = builder_ops::<D, T>(lab)? - sends::operation_left_out(T::QP_TYPE);
        let side = |context: &uverbs::Context<D>| -> Result<PairEnd<D, T, L>> {
            let (pd, cq) = (context.alloc_pd()?, context.create_cq(64, None)?);
            PairEnd::on(pd, cq, &spec, ops, 0x77, None::<&Srq<Shared, D>>)
        };
        let pair = Pair { a: side(&lab.a)?, b: side(&lab.b)? };
        let ah = pair.a.pd.create_ah(&ah_attr(lab, pair.b.here.gid, pair.b.here.lid))?;
        Ok(Self { lab, pair, ah, state: QpState::RESET })
    }

    /// The ids of the WRs posted so far, on a queue that the device executes.
    fn collect(&self, status: WcStatus, answer: WcStatus) -> Result<Vec<u64>> {
        let (queue, facts) = (self.queue(), self.facts());
        let cq = &self.pair.a.cq;
        let mut ids = when_there_is_room(cq, status, || sends::post_right(queue, facts, T::QP_TYPE, MARKER))?;
        ids.extend(until_marker(cq, MARKER, status, answer)?);
        // The kernel may write a completion before it removes the request from the ring.
        wait::until("the queue is empty", LIMIT, || sends::is_empty(queue, facts, T::QP_TYPE))?;
        Ok(ids)
    }
}

impl<D: Driver, T: Typed<D>, L: Lock> SendBench for Sends<'_, D, T, L>
where
    Sq<D>: 'static,
{
    type Queue = Sq<D>;
    type Lock = L;
    const DRIVER: &'static str = D::NAME;

    fn qp_type(&self) -> QpType {
        T::QP_TYPE
    }

    fn queue(&self) -> &Locked<Sq<D>, L> {
        self.pair.a.qp.send.as_locked()
    }

    fn facts(&self) -> Facts {
        let (a, b) = (&self.pair.a, &self.pair.b);
        let cap = a.qp.cap();
        Facts {
            local: (a.mr.addr(), a.mr.lkey()),
            remote: (b.mr.addr(), b.mr.rkey()),
            ah: self.ah.as_raw(),
            receiver: (b.qp.qp_num(), self.lab.connect_attr().qkey),
            max_sge: cap.max_send_sge as usize,
            max_inline: cap.max_inline_data as usize,
            capacity: cap.max_send_wr as usize,
        }
    }

    fn enter(&mut self, state: QpState) -> Result<bool> {
        let (a, b) = (&self.pair.a, &self.pair.b);
        if state == QpState::SQE {
            // Only the device moves the QP to this state.
            ensure!(a.set_state(QpState::SQE).is_err(), "the kernel accepted SQE");
            return Ok(false);
        }
        if state == QpState::SQD && !self.lab.has_sqd()? {
            return Ok(false);
        }
        for side in [a, b] {
            side.set_state(QpState::RESET)?;
            forget(&side.cq)?;
        }
        climb(self.lab, b, &a.here, QpState::RESET, QpState::RTS)?;
        if state == QpState::ERR {
            climb(self.lab, a, &b.here, QpState::RESET, QpState::RTS)?;
            climb(self.lab, a, &b.here, QpState::RTS, QpState::ERR)?;
        } else {
            climb(self.lab, a, &b.here, QpState::RESET, state)?;
        }
        self.state = state;
        Ok(true)
    }

    fn posted(&mut self, answer: WcStatus) -> Result<Vec<u64>> {
        match self.state {
            // No WR may have been posted. In this state there are no completions; `leave` checks it.
            QpState::RESET | QpState::INIT | QpState::RTR => Ok(vec![]),
            QpState::ERR => self.collect(WcStatus::WR_FLUSH_ERR, WcStatus::WR_FLUSH_ERR),
            QpState::SQD => {
                self.pair.a.set_state(QpState::RTS)?;
                let ids = self.collect(WcStatus::SUCCESS, answer)?;
                if self.pair.a.state()? != QpState::RTS {
                    self.enter(QpState::SQD)?;
                    return Ok(ids);
                }
                climb(self.lab, &self.pair.a, &self.pair.b.here, QpState::RTS, QpState::SQD)?;
                Ok(ids)
            }
            _ => {
                let ids = self.collect(WcStatus::SUCCESS, answer)?;
                if self.pair.a.state()? != self.state {
                    // A datagram that was too long moved the QP to ERR, or a WR that the peer refused.
                    self.enter(self.state)?;
                }
                Ok(ids)
            }
        }
    }

    fn leave(&mut self) -> Result<()> {
        if self.state.0 < QpState::RTS.0 {
            climb(self.lab, &self.pair.a, &self.pair.b.here, self.state, QpState::RTS)?;
            let ids = self.collect(WcStatus::SUCCESS, WcStatus::SUCCESS)?;
            ensure!(ids.is_empty(), "posted in {:?}: {ids:?}", self.state);
        }
        Ok(())
    }
}

/// Brings a QP that only receives into a state; into ERR from the state `last`. `false` if it can't get there.
fn enter_receiver<D: Driver, T: Typed<D>, L: Lock>(
    lab: &Lab<D>,
    end: &PairEnd<D, T, L>,
    peer: &Endpoint,
    state: QpState,
    last: QpState,
) -> Result<bool> {
    if state == QpState::SQE || (state == QpState::SQD && !lab.has_sqd()?) {
        return Ok(false);
    }
    end.set_state(QpState::RESET)?;
    forget(&end.cq)?;
    if state == QpState::ERR {
        climb(lab, end, peer, QpState::RESET, last)?;
        end.set_state(state)?;
    } else {
        climb(lab, end, peer, QpState::RESET, state)?;
    }
    Ok(true)
}

/// The receive queue of end A.
struct Recvs<'l, D: Driver, T: Typed<D>, L: Lock> {
    lab: &'l Lab<D>,
    pair: Pair<D, T, L>,
    state: QpState,
}

impl<D: Driver, T: Typed<D>, L: Lock> RecvBench for Recvs<'_, D, T, L>
where
    Rq<D>: 'static,
{
    type Queue = Rq<D>;
    type Lock = L;
    const DRIVER: &'static str = D::NAME;

    fn qp_type(&self) -> QpType {
        T::QP_TYPE
    }

    fn is_srq(&self) -> bool {
        false
    }

    fn queue(&self) -> &Locked<Rq<D>, L> {
        let rq = self.pair.a.qp.recv.as_ref().expect("a receive queue");
        rq.as_locked()
    }

    fn facts(&self) -> RecvFacts {
        let a = &self.pair.a;
        let cap = a.qp.cap();
        RecvFacts {
            local: (a.mr.addr(), a.mr.lkey()),
            max_sge: cap.max_recv_sge as usize,
            capacity: cap.max_recv_wr as usize,
        }
    }

    fn enter(&mut self, state: QpState) -> Result<bool> {
        let Pair { a, b } = &self.pair;
        self.state = state;
        // To ERR from INIT, in which only receives can be posted.
        enter_receiver(self.lab, a, &b.here, state, QpState::INIT)
    }

    /// In ERR all are flushed, in order.
    fn posted(&mut self) -> Result<Vec<u64>> {
        let a = &self.pair.a;
        if self.state == QpState::RESET {
            climb(self.lab, a, &self.pair.b.here, QpState::RESET, QpState::INIT)?;
        }
        if self.state != QpState::ERR {
            a.set_state(QpState::ERR)?;
        }
        let flushed = WcStatus::WR_FLUSH_ERR;
        let mut ids = when_there_is_room(&a.cq, flushed, || recvs::post_right(self.queue(), MARKER))?;
        ids.extend(until_marker(&a.cq, MARKER, flushed, flushed)?);
        wait::until("the queue is empty", LIMIT, || recvs::is_empty(self.queue(), self.facts()))?;
        if self.state != QpState::ERR {
            self.enter(self.state)?;
        }
        Ok(ids)
    }
}

/// A shared receive queue of end B, and a QP that uses it, in the state of the row.
struct SharedRecvs<'l, D: Driver, T: Typed<D>, L: Lock> {
    lab: &'l Lab<D>,
    /// The QP whose sends consume the receives.
    pair: Pair<D, Rc, Exclusive>,
    other: PairEnd<D, T, Exclusive>,
    srq: Srq<L, D>,
}

impl<'l, D: Driver, T: Typed<D>, L: Lock> SharedRecvs<'l, D, T, L> {
    fn new(lab: &'l Lab<D>) -> Result<Self> {
        let spec = spec(lab);
        let ops = builder_ops::<D, Rc>(lab)?;
        let pd = lab.b.alloc_pd()?;
        let attr = SrqAttr::new(7).max_sge(4);
        let srq = pd.create_srq::<L>(&SrqInitAttr::new(attr))?;
        let a = PairEnd::on(
            lab.a.alloc_pd()?,
            lab.a.create_cq(64, None)?,
            &spec,
            ops,
            1,
            None::<&Srq<Shared, D>>,
        )?;
        let b = PairEnd::on(pd.clone(), lab.b.create_cq(64, None)?, &spec, ops, 2, Some(&srq))?;
        let ops = builder_ops::<D, T>(lab)?;
        let other = PairEnd::on(pd, lab.b.create_cq(64, None)?, &spec, ops, 3, Some(&srq))?;
        let mut pair = Pair { a, b };
        pair.connect(&spec.attr)?;
        Ok(Self { lab, pair, other, srq })
    }
}

impl<D: Driver, T: Typed<D>, L: Lock> RecvBench for SharedRecvs<'_, D, T, L>
where
    SrqEngine<D>: 'static,
{
    type Queue = SrqEngine<D>;
    type Lock = L;
    const DRIVER: &'static str = D::NAME;

    fn qp_type(&self) -> QpType {
        T::QP_TYPE
    }

    fn is_srq(&self) -> bool {
        true
    }

    fn queue(&self) -> &Locked<SrqEngine<D>, L> {
        self.srq.as_locked()
    }

    fn facts(&self) -> RecvFacts {
        let (attr, mr) = (self.srq.attr(), &self.pair.b.mr);
        let (max_sge, capacity) = (attr.max_sge as usize, attr.max_wr as usize);
        RecvFacts { local: (mr.addr(), mr.lkey()), max_sge, capacity }
    }

    fn enter(&mut self, state: QpState) -> Result<bool> {
        // The peer does not matter, because the QP sends nothing.
        enter_receiver(self.lab, &self.other, &self.pair.a.here, state, QpState::RTS)
    }

    /// Sends one message for each receive, until the one that marks the end is consumed.
    fn posted(&mut self) -> Result<Vec<u64>> {
        if let Err(e) = recvs::post_right(self.queue(), MARKER) {
            // The queue is full, so one message must free a slot.
            let first = self.consume().context("of a full queue")?;
            recvs::post_right(self.queue(), MARKER).context(e)?;
            let mut ids = vec![first];
            ids.extend(self.consume_all()?);
            return Ok(ids);
        }
        self.consume_all()
    }
}

impl<D: Driver, T: Typed<D>, L: Lock> SharedRecvs<'_, D, T, L> {
    fn consume(&mut self) -> Result<u64> {
        let Pair { a, b } = &mut self.pair;
        a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
        let got = b.ok(1)?[0].wr_id;
        a.ok(1)?;
        Ok(got)
    }

    fn consume_all(&mut self) -> Result<Vec<u64>> {
        let mut ids = vec![];
        loop {
            match self.consume()? {
                MARKER => return Ok(ids),
                id => ids.push(id),
            }
        }
    }
}

fn noted<D: Driver>(lab: &Lab<D>, held: RowCounts) -> Outcome {
    lab.note(format_args!("{} rows, {} posts", held.rows, held.posts));
    Ok(())
}

fn sends_in<D: Driver, T: Typed<D>, L: Lock>(lab: &Lab<D>) -> Outcome {
    noted(lab, sends::hold(&mut Sends::<D, T, L>::new(lab)?)?)
}

fn recvs_in<D: Driver, T: Typed<D>, L: Lock>(lab: &Lab<D>) -> Outcome {
    let pair = Pair::<D, T, L>::unconnected(lab, &spec(lab))?;
    noted(lab, recvs::hold(&mut Recvs { lab, pair, state: QpState::RESET })?)
}

fn srq_in<D: Driver, T: Typed<D>, L: Lock>(lab: &Lab<D>) -> Outcome {
    noted(lab, recvs::hold(&mut SharedRecvs::<D, T, L>::new(lab)?)?)
}

/// Every row is checked by one of the tests below, or over rings in memory (test target `semantics`).
fn every_row_is_checked<D: Driver>(_lab: &Lab<D>) -> Outcome {
    use QpType as T;
    for row in Table::read()?.rows {
        let has = |what: &str| row.faces.iter().any(|f| f.contains(what));
        let held: &[QpType] = match (has("srq"), has("recv")) {
            (true, _) => &[T::Rc, T::Ud],
            (_, true) => &[T::Rc, T::Uc, T::Ud],
            _ => &[T::Rc, T::Uc, T::Ud, T::XrcSend, T::RawPacket, T::Driver],
        };
        ensure!(
            row.qps.iter().all(|qp| held.contains(&qp.qp_type)),
            "docs/src/reference/semantics.md:{}: no test checks this row",
            row.line
        );
    }
    Ok(())
}

crate::tests!(
    every_row_is_checked,
    rc_exclusive = sends_in::<D, Rc, Exclusive>,
    rc_shared = sends_in::<D, Rc, Shared>,
    uc_exclusive = sends_in::<D, Uc, Exclusive>,
    uc_shared = sends_in::<D, Uc, Shared>,
    ud_exclusive = sends_in::<D, Ud, Exclusive>,
    ud_shared = sends_in::<D, Ud, Shared>,
    recv_rc_exclusive = recvs_in::<D, Rc, Exclusive>,
    recv_rc_shared = recvs_in::<D, Rc, Shared>,
    recv_uc = recvs_in::<D, Uc, Exclusive>,
    recv_ud = recvs_in::<D, Ud, Shared>,
    srq_rc_exclusive = srq_in::<D, Rc, Exclusive>,
    srq_rc_shared = srq_in::<D, Rc, Shared>,
    srq_ud = srq_in::<D, Ud, Exclusive>,
);
