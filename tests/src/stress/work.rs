// SPDX-License-Identifier: MIT OR Apache-2.0
//! The work of the threads: they post, poll, and reset or destroy queues that others use.

use super::Disturb;
use super::conn::{Conn, End, Ends, Half, POLL, Queues};
use super::memory::message;
use super::model::{BROKEN, Clock, Completed, Era, Id, Kind, Posted, parse};
use super::rng::Rng;
use crate::post::{self, Face, Lost, Op, Refused, Req};
use anyhow::{Context as _, Result, bail, ensure};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use uverbs::attr::{QpState, SendOpsFlags};
use uverbs::wr::Sge;
use uverbs::{ConnectAttr, Driver, PollError, PostError, SendFlags, WorkCompletion};
use uverbs_core::provider::Completion as _;
use uverbs_testkit::wire;

/// The data that the threads share.
#[derive(Debug)]
pub(super) struct World<D: Driver> {
    /// The operations of the builders.
    pub(super) ops: SendOpsFlags,
    pub(super) ends: [End<D>; 2],
    pub(super) conns: Vec<Conn<D>>,
    pub(super) disturb: Disturb,
    pub(super) clock: Clock,
    pub(super) attr: ConnectAttr,
    pub(super) stop: Stop,
    pub(super) counts: Counts,
}

/// The end of the threads' work.
#[derive(Debug, Default)]
pub(super) struct Stop {
    pub(super) posters: AtomicBool,
    pub(super) pollers: AtomicBool,
    failed: Mutex<Option<anyhow::Error>>,
}

impl Stop {
    /// Ends the round with an error. Only the first error is kept.
    pub(super) fn fail(&self, error: anyhow::Error) {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.posters.store(true, Ordering::Relaxed);
        self.pollers.store(true, Ordering::Relaxed);
    }

    pub(super) fn failure(&self) -> Option<anyhow::Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn all(&self) -> bool {
        self.pollers.load(Ordering::Relaxed)
    }
}

/// More than the time of a packet on the guest's links.
const PACKETS_IN_FLIGHT: Duration = Duration::from_millis(2);
/// The ways to poll.
const MANNERS: [&str; 3] = ["poll", "poll_each", "poll_session"];

/// The numbers of operations.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) posted: AtomicU64,
    pub(super) completed: AtomicU64,
    pub(super) resets: AtomicU64,
    pub(super) destroyed: AtomicU64,
    pub(super) resized: AtomicU64,
    pub(super) straddled: AtomicU64,
}

fn count(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

impl<D: Driver> World<D> {
    pub(super) fn control(&self) -> Ends<'_, D> {
        Ends { ops: self.ops, ends: &self.ends, clock: &self.clock }
    }

    /// Posts random WRs to a random queue.
    pub(super) fn post(&self, rng: &mut Rng, lane: usize) -> Result<()> {
        let conn = &self.conns[rng.below(self.conns.len())];
        let (side, recv) = (rng.below(2), rng.one_in(2));
        let most = if rng.one_in(4) { 6 } else { 2 };
        let n = 1 + rng.below(most);
        self.post_to(rng, conn, side, recv, lane, n).map(drop)
    }

    /// Posts to a queue. Returns the number of WRs.
    pub(super) fn post_to(
        &self,
        rng: &mut Rng,
        conn: &Conn<D>,
        side: usize,
        recv: bool,
        lane: usize,
        n: usize,
    ) -> Result<usize> {
        let era = conn.era()?;
        let Some(queues) = conn.queues(side)? else { return Ok(0) };
        let memory = &self.ends[side].memory;
        let mut posts = Vec::new();
        let room = self.ends[side].outstanding.saturating_sub(era.outstanding(side, recv, lane));
        for _ in 0..n.min(room) {
            let Some(id) = era.next(side, recv, lane) else { break };
            let kind = match rng.below(8) {
                _ if recv => Kind::Recv,
                0..=3 if era.take_credit(1 - side) => Kind::Send,
                0..=6 => Kind::Write,
                _ => Kind::Read,
            };
            let signaled = recv || kind == Kind::Read || !rng.one_in(4);
            let mut buffer = None;
            // A send without a buffer is inline.
            if matches!(kind, Kind::Recv | Kind::Read) || kind == Kind::Send && rng.one_in(2) {
                buffer = memory.take()?;
                if buffer.is_none() && kind != Kind::Send {
                    break;
                }
            }
            era.intend(id, kind, signaled, buffer);
            posts.push((id, kind, signaled, buffer));
        }
        if posts.is_empty() {
            thread::yield_now();
            return Ok(0);
        }
        let face = Face::ALL[rng.below(4)];
        let lost = !recv && rng.one_in(20);
        let result = if recv {
            self.post_recvs(&queues, face, &posts)
        } else {
            self.post_sends(rng, conn, &queues, face, &posts, lost)
        };
        drop(queues);
        let (good, error) = match result {
            Ok(()) => (if lost { 0 } else { posts.len() }, None),
            Err(Refused { error, bad }) => {
                // A batch or a session is posted as a whole or not at all.
                (if matches!(face, Face::List | Face::Single) { bad.unwrap_or(0) } else { 0 }, error)
            }
        };
        let unsure = matches!(error, Some(PostError::Doorbell(_)));
        match error {
            None => {}
            Some(PostError::QueueFull) => (0..rng.below(20)).for_each(|_| thread::yield_now()),
            Some(PostError::BadState | PostError::Doorbell(_)) if era.is_broken() => {}
            Some(error) => bail!("{:?} and {} more: {error}, by {face:?}", posts[0].0, posts.len() - 1),
        }
        let current = conn.era()?.number;
        for (i, (id, kind, ..)) in posts.iter().enumerate() {
            let how = match () {
                () if i < good => Posted::Yes,
                () if unsure => Posted::Perhaps,
                () => Posted::No,
            };
            match (id.recv, how) {
                (true, Posted::Yes) => era.add_credits(side, 1),
                (false, Posted::No) if *kind == Kind::Send => era.add_credits(1 - side, 1),
                _ => {}
            }
            if let Some(buffer) = era.posted(*id, how, current)? {
                memory.give_back(buffer)?;
            }
            if era.is_straddled(*id) {
                count(&self.counts.straddled, 1);
                conn.straddles(&era, *id)?;
            }
        }
        count(&self.counts.posted, good);
        Ok(good)
    }

    fn post_recvs(
        &self,
        queues: &Queues<D>,
        face: Face,
        posts: &[(Id, Kind, bool, Option<u32>)],
    ) -> Result<(), Refused> {
        let memory = &self.ends[posts[0].0.side].memory;
        let sges: Vec<[Sge; 1]> =
            posts.iter().map(|(.., buffer)| [memory.buffer(buffer.unwrap_or(0))]).collect();
        let recvs: Vec<(u64, &[Sge])> =
            posts.iter().zip(&sges).map(|((id, ..), sge)| (id.wr_id(), &sge[..])).collect();
        match &queues.recv {
            Half::Exclusive(rq) => post::post_recv(&mut *rq.lock().map_err(PostError::from)?, face, &recvs),
            Half::Shared(rq) => post::post_recv_shared(rq, face, &recvs),
        }
    }

    fn post_sends(
        &self,
        rng: &mut Rng,
        conn: &Conn<D>,
        queues: &Queues<D>,
        face: Face,
        posts: &[(Id, Kind, bool, Option<u32>)],
        lost: bool,
    ) -> Result<(), Refused> {
        let all = self.conns.len();
        let first = posts[0].0;
        let (here, there) = (&self.ends[first.side].memory, &self.ends[1 - first.side].memory);
        let mut data = Vec::with_capacity(posts.len());
        for (id, kind, _, buffer) in posts {
            let wr_id = id.wr_id();
            let sge = match kind {
                Kind::Read => here.read_into(buffer.unwrap_or(0)),
                Kind::Send => match buffer {
                    Some(buffer) => here
                        .source(*buffer, wr_id)
                        .map_err(|_| Refused::new(PostError::InvalidArgument, None))?,
                    None => Sge::default(),
                },
                _ => Sge::default(),
            };
            data.push((message(wr_id), wr_id.to_le_bytes(), [sge]));
        }
        let mut reqs: Vec<Req<'_, D>> = Vec::with_capacity(posts.len());
        for ((id, kind, signaled, buffer), (bytes, word, sge)) in posts.iter().zip(&data) {
            let req = match kind {
                Kind::Write => {
                    let to = there.word(conn.index, id.lane);
                    Req::new(id.wr_id(), Op::Write(to)).inline(word)
                }
                Kind::Read => Req::new(id.wr_id(), Op::Read(there.read_from(all))).sges(sge),
                _ if buffer.is_none() => Req::new(id.wr_id(), Op::Send).inline(bytes),
                _ => Req::new(id.wr_id(), Op::Send).sges(sge),
            };
            let mut flags = if *signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            // siw completes a write or a send at once, also if a read before it has no response yet.
            flags.set(SendFlags::FENCE, D::NAME == "siw" && *kind != Kind::Read);
            reqs.push(req.flags(flags));
        }
        match &queues.send {
            Half::Exclusive(sq) => {
                let mut sq = sq.lock().map_err(PostError::from)?;
                if lost {
                    let how = if rng.one_in(2) { Lost::Abort } else { Lost::Drop };
                    return Ok(post::lose(&mut *sq, &reqs, how)?);
                }
                post::post_queue(&mut sq, face, &reqs)
            }
            Half::Shared(sq) if lost => {
                let how = if rng.one_in(2) { Lost::Forget } else { Lost::Drop };
                Ok(post::lose_shared(sq, &reqs, how)?)
            }
            Half::Shared(sq) => post::post_shared(sq, face, &reqs),
        }
    }

    /// Polls one CQ in a random way, and checks the completions.
    pub(super) fn poll(&self, rng: &mut Rng) -> Result<usize> {
        let side = rng.below(2);
        let which = rng.below(self.ends[side].cqs.len());
        self.poll_cq(rng, side, which)
    }

    /// Polls a CQ.
    pub(super) fn poll_cq(&self, rng: &mut Rng, side: usize, which: usize) -> Result<usize> {
        let cq = &self.ends[side].cqs[which];
        let max = 1 + rng.below(POLL);
        // Each completion, with the tick at which its part of the poll began.
        let mut seen: Vec<(WorkCompletion, u64)> = Vec::with_capacity(POLL);
        let mut began = self.clock.now();
        let pause = rng.one_in(4);
        let manner = rng.below(3);
        let result = match manner {
            0 => {
                let mut some = [WorkCompletion::default(); POLL];
                cq.poll(&mut some[..max]).map(|got| seen.extend(got.iter().map(|wc| (*wc, began))))
            }
            1 => cq
                .poll_each(max, |completion| {
                    seen.push((completion.to_wc(), began));
                    if pause {
                        thread::yield_now();
                    }
                    began = self.clock.now();
                })
                .map(drop),
            _ => cq
                .poll_session(|poll| {
                    // Advancing returns one more completion.
                    for left in (0..max).rev() {
                        if let Some(completion) = poll.current() {
                            seen.push((completion.to_wc(), began));
                        }
                        if pause {
                            thread::yield_now();
                        }
                        began = self.clock.now();
                        if left == 0 {
                            break;
                        }
                        match poll.next() {
                            Ok(()) => {}
                            Err(PollError::Empty) => break,
                            Err(e) => return Err(e),
                        }
                    }
                    Ok(())
                })
                .and_then(|result| result),
        };
        match result {
            Ok(()) | Err(PollError::Empty) => {}
            Err(e) => bail!("{} of CQ {which} of end {side}: {e}", MANNERS[manner]),
        }
        let tick = if seen.is_empty() { 0 } else { self.clock.tick() };
        let mut ids = Vec::with_capacity(seen.len());
        for (wc, began) in &seen {
            let id = parse(wc)?;
            self.judge(id, wc, *began, side, which)
                .with_context(|| format!("{}: {id:?}: {:?} {:?}", MANNERS[manner], wc.status, wc.opcode))?;
            ids.push(id);
        }
        // Within a poll, the completions of each lane are in order, too.
        for (i, id) in ids.iter().enumerate() {
            let same = |other: &&Id| Id { seq: 0, ..**other } == Id { seq: 0, ..*id };
            if let Some(last) = ids[..i].iter().rev().find(same) {
                ensure!(last.seq < id.seq, "{id:?} came after {last:?}");
            }
            self.conns[id.conn].era_of(id.era)?.seen(*id, tick);
        }
        count(&self.counts.completed, seen.len());
        Ok(seen.len())
    }

    fn judge(&self, id: Id, wc: &WorkCompletion, began: u64, side: usize, which: usize) -> Result<()> {
        let conn = self.conns.get(id.conn).context("no such connection")?;
        let era = conn.era_of(id.era)?;
        ensure!(id.side == side, "it came out of CQ {which} of the other end");
        let later_ended = |number: u32| conn.era_of(number).is_ok_and(|era| era.ended_before(side, began));
        let Completed { kind, buffer, ours } = era.completed(id, wc, began, later_ended)?;
        let memory = &self.ends[side].memory;
        let success = wc.status.is_success();
        match kind {
            Kind::Recv if success && ours => {
                let from = memory.received(buffer.context("it has no buffer")?)?;
                let from =
                    Id::parse(from).with_context(|| format!("a message with an unknown ID: {from:#x}"))?;
                ensure!(
                    from.conn == id.conn && from.side != side && !from.recv,
                    "a message from an unrelated queue: {from:?}"
                );
                let sent = conn.era_of(from.era)?;
                sent.delivered(from).with_context(|| format!("its message, {from:?}"))?;
            }
            // iWARP completes a write when TCP has it.
            Kind::Write if success && !era.is_iwarp() => {
                let written = self.ends[1 - side].memory.written(id.conn, id.lane)?;
                ensure!(written >= wc.wr_id, "it was not executed: the word is {written:#x}");
            }
            Kind::Read if success && ours => memory.check_read(buffer.context("it has no buffer")?)?,
            _ => {}
        }
        if let (Some(buffer), true) = (buffer, ours) {
            memory.give_back(buffer)?;
        }
        Ok(())
    }

    /// Resets or destroys QPs, or resizes a CQ.
    pub(super) fn disturb(&self, rng: &mut Rng) -> Result<()> {
        let Disturb { reset, destroy, resize } = self.disturb;
        if resize && (rng.one_in(3) || !(reset || destroy)) {
            return self.resize(rng);
        }
        let conn = &self.conns[rng.below(self.conns.len())];
        let Some(_controlled) = conn.control() else { return Ok(()) };
        let flush = reset && rng.one_in(6);
        if flush {
            // Posts continue, and their WRs are flushed.
            let era = conn.era()?;
            era.allow_errors();
            if let Some(queues) = conn.queues(rng.below(2))? {
                queues.control.modify_state(BROKEN)?;
            }
            for _ in 0..rng.below(50) {
                thread::yield_now();
            }
        }
        let destroy = match rng.below(4) {
            _ if !reset => [true, true],
            _ if !destroy => [false, false],
            // Linux 6.1 miscounts the references of a QP that is destroyed in ERR with packets in flight (`refcount_t:
            // underflow` in `rxe_destroy_qp()`), and RC fails after that.
            _ if flush && D::NAME == "rxe" => [false, false],
            0 => [true, true],
            1 => [true, false],
            2 => [false, true],
            _ => [false, false],
        };
        if D::NAME == "rxe" && destroy == [false, false] {
            // Linux 6.1 also miscounts the references of a QP that is reset while requests arrive: `rxe_qp_reset()` calls the
            // responder, which the receiving CPU may be executing. Such a QP executes nothing until it is destroyed. So both
            // ends stop sending before the reset.
            conn.era()?.allow_errors();
            for side in 0..2 {
                if let Some(queues) = conn.queues(side)? {
                    queues.control.modify_state(BROKEN)?;
                }
            }
            thread::sleep(PACKETS_IN_FLIGHT);
        }
        conn.end(self.control(), destroy)?;
        let destroyed = destroy.into_iter().filter(|d| *d).count();
        count(&self.counts.destroyed, destroyed);
        count(&self.counts.resets, 2 - destroyed);
        self.begin(rng, conn)
    }

    /// Begins an era of a connection, with new QPs if it has none.
    pub(super) fn begin(&self, rng: &mut Rng, conn: &Conn<D>) -> Result<()> {
        let exclusive = [rng.one_in(2), rng.one_in(2)];
        let mut cqs = || [rng.below(super::conn::CQS), rng.below(super::conn::CQS)];
        let cqs = [cqs(), cqs()];
        conn.begin(self.control(), exclusive, cqs, &self.attr)
    }

    fn resize(&self, rng: &mut Rng) -> Result<()> {
        let end = &self.ends[rng.below(2)];
        let cq = &end.cqs[rng.below(end.cqs.len())];
        let cqe = end.cqe + rng.below(3 * end.cqe as usize) as u32;
        cq.resize(cqe).with_context(|| format!("resize to {cqe}"))?;
        count(&self.counts.resized, 1);
        Ok(())
    }

    /// Arms a CQ, or reads an event.
    pub(super) fn arm(&self, rng: &mut Rng) -> Result<()> {
        let end = &self.ends[rng.below(2)];
        if rng.one_in(2) {
            end.cqs[rng.below(end.cqs.len())].req_notify(rng.one_in(2))?;
        } else if let Ok(id) = end.channel.get_event() {
            ensure!(end.cqs.iter().any(|cq| cq.id() == id), "an event of another CQ");
        }
        Ok(())
    }

    /// Whether threads that post and control continue.
    pub(super) fn goes_on(&self) -> bool {
        !self.stop.posters.load(Ordering::Relaxed)
    }

    /// Whether threads that poll continue.
    pub(super) fn is_polled(&self) -> bool {
        !self.stop.all()
    }

    /// The state of a connection, for messages.
    pub(super) fn describe(&self, era: &Arc<Era>) -> String {
        let conn = &self.conns[era.conn];
        let state = |side| -> Option<QpState> { conn.queues(side).ok()??.control.state().ok() };
        format!("{}; states {:?} and {:?}", era.summary(), state(0), state(1))
    }
}

/// Checks once that the driver's form of the entries is valid.
pub(super) fn has_wire_form<D: Driver>(memory: &super::memory::Memory<D>) -> Result<()> {
    wire::<D::Sge>(&[memory.buffer(0)]).map(drop).context("an entry of a buffer")
}
