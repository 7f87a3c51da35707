// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two devices, the QPs of a program on them, and the steps that post.
#![expect(unsafe_code)]
// UNSAFETY: registers the middle of a mapping that this module owns, so that the bytes around it can be checked.

use super::model::{
    self, Change, Effect, EndModel, GUARD, LEN, LONGEST, Memory, Message, Posted, SLOTS, Sent,
};
use super::{Config, Step, Tally, Verb, Wr, Wrong};
use crate::lab::Lab;
use crate::pair::{GRH, builder_ops};
use crate::post::{
    Dest, Face, Lock, Op, Refused, RemoteAddr, Req, To, Typed, post, post_recv, post_srq_recv,
};
use crate::sges::sge;
use crate::wait;
use anyhow::{Context as _, Result, bail, ensure};
use core::ptr::NonNull;
use uverbs::buf::ForeignBuf;
use uverbs::wr::Sge;
use uverbs::{
    AddressHandle, ConnectAttr, Context, Driver, Endpoint, MemoryRegion, PageBuf, PostError,
    ProtectionDomain, SendFlags, Shared, StableBuf as _, WcOpcode,
    raw::{Cq, Qp, Srq},
};
use uverbs::{
    Exposed,
    attr::{AccessFlags, QpCap, QpState, QpType, SrqAttr, SrqInitAttr},
};

/// Marks ids of receives.
pub(super) const RECV: u64 = 1 << 63;
/// Entries of each CQ, more than there can be unpolled completions.
pub const CQE: u32 = 600;

/// The objects of an end, besides QPs. The fields are dropped from the first to the last.
pub struct EndObjects<D: Driver, L: Lock> {
    /// The SRQ of all QPs, if there is one.
    pub srq: Option<Srq<L, D>>,
    /// The receives in the SRQ, in any order.
    pub srq_recvs: Vec<Posted>,
    /// The CQs of all QPs.
    pub cqs: Vec<Cq<Shared, D>>,
    /// The memory that work requests name: the middle of `all`.
    pub mr: MemoryRegion<ForeignBuf, Exposed, D>,
    /// All of the memory, for checks. No work request names it.
    pub all: MemoryRegion<PageBuf, Exposed, D>,
    /// The protection domain.
    pub pd: ProtectionDomain<D>,
}

impl<D: Driver, L: Lock> EndObjects<D, L> {
    fn new(context: &Context<D>, config: &Config, access: AccessFlags) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let buf = PageBuf::new(LEN + 2 * GUARD)?;
        let middle = buf.ptr().as_ptr().wrapping_add(GUARD);
        let all = pd.reg_mr(buf, AccessFlags::LOCAL_WRITE).map_err(|e| e.error)?;
        let middle = NonNull::new(middle).context("an address")?;
        // SAFETY: `all` owns the memory, which stays where it is and is reached as atomics only; `mr` is dropped first.
        let buf = unsafe { ForeignBuf::new(middle, LEN) };
        let mr = pd.reg_mr(buf, access).map_err(|e| e.error)?;
        let cqs = (0..config.cqs).map(|_| context.create_cq(CQE, None)).collect::<Result<_, _>>()?;
        let srq = match config.srq {
            true => {
                let attr = SrqAttr::new(SLOTS as u32).max_sge(3);
                Some(pd.create_srq::<L>(&SrqInitAttr::new(attr))?)
            }
            false => None,
        };
        Ok(Self { srq, srq_recvs: vec![], cqs, mr, all, pd })
    }

    /// The memory that work requests name.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; LEN];
        self.mr.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// The bytes before and behind it.
    pub fn guards(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; 2 * GUARD];
        let (before, behind) = bytes.split_at_mut(GUARD);
        self.all.read_at(0, before)?;
        self.all.read_at(GUARD + LEN, behind)?;
        Ok(bytes)
    }
}

/// Two connected QPs.
pub struct Pair<D: Driver, T: Typed<D>, L: Lock> {
    /// The QPs, by end.
    pub qps: [Qp<T, L, D>; 2],
    /// Addresses of the other end, of datagram QPs.
    pub ahs: Option<[AddressHandle<D>; 2]>,
    /// The expected state of both ends.
    pub model: [EndModel; 2],
    /// The number of times that they were connected.
    pub generation: u64,
}

/// The objects and the expected state of a program.
pub struct World<'l, D: Driver, T: Typed<D>, L: Lock> {
    pub(super) lab: &'l Lab<D>,
    pub(super) config: Config,
    pub(super) attr: ConnectAttr,
    pub(super) pairs: Vec<Pair<D, T, L>>,
    pub(super) end_objects: [EndObjects<D, L>; 2],
    pub(super) memory: Memory,
    /// Counts of the program's actions.
    pub tally: Tally,
    next: u64,
    /// The pair that is being reset or destroyed, whose errors are expected.
    pub(super) failing: Option<usize>,
}

impl<D: Driver, T: Typed<D>, L: Lock> core::fmt::Debug for World<'_, D, T, L> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("World").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The operation that is used if the transport does not have the given one.
fn verb<T: uverbs::qp::Transport>(verb: Verb) -> Verb {
    match (T::QP_TYPE, verb) {
        (QpType::Rc, verb) => verb,
        (QpType::Uc, Verb::Send | Verb::SendImm | Verb::Write) => verb,
        // A write with immediate for which there was no receive may have written its data or not.
        (QpType::Uc, Verb::WriteImm) => Verb::Write,
        (_, Verb::SendImm) => verb,
        _ => Verb::Send,
    }
}

impl<'l, D: Driver, T: Typed<D>, L: Lock> World<'l, D, T, L> {
    /// Creates all objects, and connects the pairs.
    pub fn new(lab: &'l Lab<D>, config: &Config) -> Result<Self> {
        let mut attr = lab.connect_attr();
        (attr.rnr_retry, attr.min_rnr_timer, attr.path_mtu) = (7, 1, Some(config.mtu));
        (attr.timeout, attr.retry_cnt) = (12, 7);
        let access = lab.full_access();
        let end_objects =
            [EndObjects::new(&lab.a, config, access)?, EndObjects::new(&lab.b, config, access)?];
        let memory = Memory::new();
        for (objects, bytes) in end_objects.iter().zip(&memory.0) {
            objects.mr.write_at(0, bytes)?;
        }
        let mut world = Self {
            lab,
            config: config.clone(),
            attr,
            pairs: vec![],
            end_objects,
            memory,
            tally: Tally::default(),
            next: 1,
            failing: None,
        };
        for pair in 0..config.pairs {
            let made = world.make_pair(pair, 0)?;
            world.pairs.push(made);
        }
        Ok(world)
    }

    /// Two new QPs, connected.
    pub(super) fn make_pair(&self, pair: usize, generation: u64) -> Result<Pair<D, T, L>> {
        let ops = builder_ops::<D, T>(self.lab)?;
        let config = &self.config;
        let cap =
            QpCap::new(config.max_send_wr, SLOTS as u32).sge(config.max_sge, 3).inline(config.max_inline);
        let make = |objects: &EndObjects<D, L>| -> Result<Qp<T, L, D>> {
            let n = objects.cqs.len();
            let mut builder = L::builder::<D, T>(&objects.pd)
                .send_cq(&objects.cqs[pair % n])
                .recv_cq(&objects.cqs[(pair + 1) % n])
                .cap(cap)
                .sq_sig_all(config.sq_sig_all)
                .send_ops(ops);
            if let Some(srq) = &objects.srq {
                builder = builder.srq(srq);
            }
            Ok(builder.create()?)
        };
        let qps = [make(&self.end_objects[0])?, make(&self.end_objects[1])?];
        let model = [EndModel::default(), EndModel::default()];
        let mut made = Pair { qps, ahs: None, model, generation };
        self.connect(&mut made)?;
        Ok(made)
    }

    /// From RESET to RTS, with new packet numbers.
    pub(super) fn connect(&self, pair: &mut Pair<D, T, L>) -> Result<()> {
        let psn = |end: u32| (pair.generation as u32 * 2 + end).wrapping_mul(0x00fe_dcb1) & 0xff_ffff;
        let ends: [Endpoint; 2] = [
            pair.qps[0].control.endpoint(psn(0), &self.attr)?,
            pair.qps[1].control.endpoint(psn(1), &self.attr)?,
        ];
        for end in 0..2 {
            pair.qps[end].init(&self.attr)?;
            pair.qps[end].connect(&ends[end], &ends[1 - end], &self.attr)?;
        }
        if T::QP_TYPE == QpType::Ud {
            let ah = |end: usize| self.end_objects[end].pd.create_ah(&self.attr.ah_attr(&ends[1 - end]));
            pair.ahs = Some([ah(0)?, ah(1)?]);
        }
        Ok(())
    }

    /// Runs a step.
    pub fn step(&mut self, step: &Step) -> Result<()> {
        let pairs = self.pairs.len();
        let of = |pair: u8| usize::from(pair) % pairs;
        let end = |end: u8| usize::from(end) % 2;
        match step {
            Step::Post { pair, end: e, face, wrs } => self.post(of(*pair), end(*e), *face, wrs),
            Step::Recv { pair, end: e, face, count, cut } => {
                self.recv(of(*pair), end(*e), *face, usize::from(*count), usize::from(*cut)).map(drop)
            }
            Step::Poll { end: e, cq, max, way } => {
                let cq = usize::from(*cq) % self.config.cqs;
                self.poll(end(*e), cq, usize::from(*max).max(1), *way).map(drop)
            }
            Step::Drain { pair, end: e } => self.drain(of(*pair), end(*e)),
            Step::Resume { pair, end: e } => self.resume(of(*pair), end(*e)),
            Step::Fail { pair, end: e } => self.fail(of(*pair), end(*e)),
            Step::Reset { pair } => self.reset(of(*pair)),
            Step::Destroy { pair } => self.destroy(of(*pair)),
            Step::Resize { end: e, cq, cqe } => {
                let cq = &mut self.end_objects[end(*e)].cqs[usize::from(*cq) % self.config.cqs];
                let got = cq.resize(CQE + u32::from(*cqe))?;
                ensure!(got >= CQE + u32::from(*cqe), "resized to {got}");
                Ok(())
            }
            Step::Rest { ms } => {
                wait::rest(core::time::Duration::from_millis(u64::from(*ms)));
                Ok(())
            }
        }
    }

    fn id(&mut self, pair: usize, end: usize) -> u64 {
        self.next += 1;
        (pair as u64) << 60 | (end as u64) << 59 | (self.pairs[pair].generation & 0xff) << 48 | self.next
    }

    /// Plans a work request: its operation and entries, its effect in the model, and its message.
    ///
    /// Results of requests that are outstanding at the same time must not share memory: a short one may be in the
    /// completion, and is then copied by the poll. A request that would share memory gets length 0.
    fn plan(&mut self, pair: usize, end: usize, wr: &Wr, before: &[Planned]) -> Planned {
        let id = self.id(pair, end);
        let (here, there) = (&self.end_objects[end], &self.end_objects[1 - end]);
        let verb = verb::<T>(wr.verb);
        let atomic = matches!(verb, Verb::FetchAdd | Verb::CmpSwp);
        let inline = wr.inline && !atomic && verb != Verb::Read;
        let len = match verb {
            _ if atomic => 8,
            _ if inline => usize::from(wr.len) % (self.config.max_inline as usize + 1),
            _ => usize::from(wr.len) % (LONGEST + 1),
        };
        let room = |from: u16| usize::from(from) % (model::WINDOW - len + 1);
        let (from, at) = (room(wr.at.0), room(wr.at.1));
        let word = usize::from(wr.at.1) % model::WORDS * 8;
        let remote_at =
            |offset: usize| RemoteAddr { addr: there.mr.addr() + offset as u64, rkey: there.mr.rkey() };
        let imm = wr.word as u32;
        // Words have small values, so that compare and swap sometimes succeeds.
        let (compare, swap) = (wr.word % 4, wr.word / 4 % 4);
        let target = model::target(pair) + at;
        let read_from = if self.config.lossy { model::constant(pair) + at } else { target };
        let word = model::words(pair) + word;
        let op = match verb {
            Verb::Send => Op::Send,
            Verb::SendImm => Op::SendImm(imm),
            Verb::Write => Op::Write(remote_at(target)),
            Verb::WriteImm => Op::WriteImm(remote_at(target), imm),
            Verb::Read => Op::Read(remote_at(read_from)),
            Verb::FetchAdd => Op::FetchAdd(remote_at(word), wr.word),
            Verb::CmpSwp => Op::CmpSwp(remote_at(word), compare, swap),
        };
        let to_here = atomic || verb == Verb::Read;
        let base = if to_here { model::results(pair) } else { model::source(pair) };
        let local = if atomic { base + usize::from(wr.at.0) % (model::WINDOW / 8) * 8 } else { base + from };
        let on_the_way = self.pairs[pair].model[end].sent.iter().chain(before.iter().map(|p| &p.sent));
        let shares = |other: &Effect| other.answer().is_some_and(|o| o.start < local + len && local < o.end);
        if to_here && on_the_way.map(|s| &s.effect).any(shares) {
            let nothing = Wr { verb: Verb::Write, len: 0, inline: false, wrong: None, ..wr.clone() };
            return self.plan(pair, end, &nothing, before);
        }
        let data: Vec<u8> = match (inline, to_here) {
            (true, _) => crate::pattern::bytes(wr.word, len),
            (false, false) => self.memory.0[end][local..local + len].to_vec(),
            (false, true) => vec![],
        };
        // The 8 bytes of an atomic in several entries are written in parts, which not every device supports.
        let max = if atomic { 1 } else { self.config.max_sge as usize };
        let mut cuts: Vec<usize> =
            wr.cuts.iter().map(|c| usize::from(*c) % (len + 1)).take(max - 1).collect();
        cuts.sort_unstable();
        cuts.insert(0, 0);
        cuts.push(len);
        let mut sges: Vec<Sge> = cuts.windows(2).map(|c| sge(&here.mr, local + c[0]..local + c[1])).collect();
        let mut bytes = if inline { data.clone() } else { vec![] };
        // The fault, if it is possible with the request.
        let wrong = match wr.wrong {
            Some(Wrong::Sges) if !inline => {
                sges = vec![sges[0]; self.pairs[pair].qps[end].cap().max_send_sge as usize + 1];
                Some(PostError::TooManySge)
            }
            Some(Wrong::Inline) if inline => {
                bytes = vec![0; self.pairs[pair].qps[end].cap().max_inline_data as usize + 1];
                Some(PostError::InlineTooLong)
            }
            _ => None,
        };
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, wr.signaled);
        flags.set(SendFlags::FENCE, wr.fence && T::QP_TYPE == QpType::Rc);
        flags.set(SendFlags::SOLICITED, wr.solicited);
        let (opcode, effect) = match verb {
            Verb::Send | Verb::SendImm => (WcOpcode::SEND, Effect::Message),
            Verb::Write | Verb::WriteImm => {
                (WcOpcode::RDMA_WRITE, Effect::Write { at: target, data: data.clone() })
            }
            Verb::Read => (WcOpcode::RDMA_READ, Effect::Read { from: read_from, to: local, len }),
            Verb::FetchAdd => {
                (WcOpcode::FETCH_ADD, Effect::Atomic { at: word, to: local, change: Change::Add(wr.word) })
            }
            Verb::CmpSwp => {
                let change = Change::Swap { compare, swap };
                (WcOpcode::COMP_SWAP, Effect::Atomic { at: word, to: local, change })
            }
        };
        let signaled = wr.signaled || self.config.sq_sig_all;
        let byte_len = to_here.then_some(len as u32);
        let message = |opcode, data: Vec<u8>, imm| Message { id, byte_len: len, data, imm, opcode };
        let delivered = match verb {
            Verb::Send => Some(message(WcOpcode::RECV, data, None)),
            Verb::SendImm => Some(message(WcOpcode::RECV, data, Some(imm))),
            Verb::WriteImm => Some(message(WcOpcode::RECV_RDMA_WITH_IMM, vec![], Some(imm))),
            _ => None,
        };
        let sent = Sent { id, signaled, opcode, byte_len, effect };
        Planned { op, flags, sges, bytes: inline.then_some(bytes), sent, message: delivered, wrong }
    }

    /// Posts requests, and compares the result with the expected one.
    fn post(&mut self, pair: usize, end: usize, face: Face, wrs: &[Wr]) -> Result<()> {
        let mut planned: Vec<Planned> = Vec::new();
        for wr in wrs {
            let next = self.plan(pair, end, wr, &planned);
            planned.push(next);
        }
        let key = self.attr.qkey;
        let Pair { qps, ahs, model, .. } = &mut self.pairs[pair];
        let peer = qps[1 - end].qp_num();
        let to = match &ahs {
            Some(ahs) => Dest::Ud(To { ah: &ahs[end], remote_qpn: peer, remote_qkey: key }),
            None => Dest::Peer,
        };
        let reqs: Vec<Req<'_, D>> = planned
            .iter()
            .map(|p| {
                let req = Req::new(p.sent.id, p.op).flags(p.flags).to(to);
                match &p.bytes {
                    Some(bytes) => req.inline(bytes),
                    None => req.sges(&p.sges),
                }
            })
            .collect();
        let room = (qps[end].cap().max_send_wr as usize).saturating_sub(model[end].sent.len());
        let result = post(&mut qps[end], face, &reqs);
        let first_wrong = planned.iter().position(|p| p.wrong.is_some());
        let posted = match result {
            Ok(()) => {
                // An empty list is an error of C's face only.
                ensure!(first_wrong.is_none(), "{face:?}: posted, but {first_wrong:?} is invalid");
                planned.len()
            }
            Err(Refused { error: Some(PostError::NullList), bad: None }) if planned.is_empty() => 0,
            Err(Refused { error: Some(error), bad }) => {
                self.tally.refused += 1;
                let by_one = matches!(face, Face::List | Face::Single);
                ensure!(by_one == bad.is_some(), "{face:?}: {error} names {bad:?}");
                if error == PostError::QueueFull {
                    // More requests may fit than the queue's size, but not fewer.
                    let taken = bad.unwrap_or(planned.len() - 1);
                    ensure!(
                        taken >= room,
                        "{face:?}: full at {taken} of {}, with room for {room}",
                        planned.len()
                    );
                    ensure!(
                        first_wrong.is_none_or(|w| w >= taken || !by_one),
                        "{face:?}: accepted an invalid request"
                    );
                } else {
                    let wrong =
                        first_wrong.with_context(|| format!("{face:?}: {error} (request {bad:?})"))?;
                    ensure!(
                        planned[wrong].wrong == Some(error),
                        "{face:?}: {error}, not {:?}",
                        planned[wrong].wrong
                    );
                    ensure!(
                        bad.is_none_or(|b| b == wrong),
                        "{face:?}: bad_wr is {bad:?}, but {wrong} is invalid"
                    );
                }
                bad.unwrap_or(0)
            }
            Err(refused) => bail!("{refused:?}"),
        };
        let model = &mut model[end];
        for planned in planned.into_iter().take(posted) {
            self.tally.posted += 1;
            model.sent.push_back(planned.sent);
            model.messages.extend(planned.message);
        }
        Ok(())
    }

    /// The owner of the receives of an end, and those that are posted.
    fn recvs(&mut self, pair: usize, end: usize) -> (usize, Vec<usize>) {
        if self.config.srq {
            (model::SRQ, self.end_objects[end].srq_recvs.iter().map(|p| p.slot).collect())
        } else {
            (pair, self.pairs[pair].model[end].recvs.iter().map(|p| p.slot).collect())
        }
    }

    /// Posts receives. Returns their number.
    pub(super) fn recv(
        &mut self,
        pair: usize,
        end: usize,
        face: Face,
        count: usize,
        cut: usize,
    ) -> Result<usize> {
        let (owner, used) = self.recvs(pair, end);
        let slots: Vec<usize> =
            (0..SLOTS).map(|i| model::slot(owner, i)).filter(|s| !used.contains(s)).take(count).collect();
        if slots.is_empty() {
            return Ok(0);
        }
        let posted: Vec<Posted> =
            slots.iter().map(|slot| Posted { id: RECV | self.id(pair, end), slot: *slot }).collect();
        let mr = &self.end_objects[end].mr;
        let len = LONGEST + GRH;
        let (one, two) = (cut % (len + 1), cut / 3 % (len + 1));
        let (one, two) = (one.min(two), one.max(two));
        let sges: Vec<[Sge; 3]> = slots
            .iter()
            .map(|s| [sge(mr, *s..s + one), sge(mr, s + one..s + two), sge(mr, s + two..s + len)])
            .collect();
        let recvs: Vec<(u64, &[Sge])> = posted.iter().zip(&sges).map(|(p, s)| (p.id, &s[..])).collect();
        match &mut self.end_objects[end].srq {
            Some(srq) => post_srq_recv(srq, face, &recvs).context("post_srq_recv")?,
            None => post_recv(self.pairs[pair].qps[end].rq_mut()?, face, &recvs).context("post_recv")?,
        }
        let n = posted.len();
        if self.config.srq {
            self.end_objects[end].srq_recvs.extend(posted);
        } else {
            self.pairs[pair].model[end].recvs.extend(posted);
        }
        Ok(n)
    }

    /// Posts the last work request before an end, which generates a completion. `None` if there is no room and will be
    /// none, because no posted request generates a completion.
    pub(super) fn post_marker(&mut self, pair: usize, end: usize) -> Result<Option<u64>> {
        let wr = Wr {
            verb: if T::QP_TYPE == QpType::Ud { Verb::Send } else { Verb::Write },
            signaled: true,
            fence: false,
            solicited: false,
            inline: false,
            len: 0,
            at: (0, 0),
            cuts: [0; 3],
            word: 0,
            wrong: None,
        };
        let mut deadline = wait::Deadline::usual();
        loop {
            let before = self.pairs[pair].model[end].sent.len();
            self.post(pair, end, Face::List, core::slice::from_ref(&wr))?;
            let model = &self.pairs[pair].model[end];
            if model.sent.len() > before {
                return Ok(model.sent.back().map(|s| s.id));
            }
            let silent = model.sent.iter().all(|s| !s.signaled);
            if self.poll_all()? == 0 {
                if silent {
                    wait::rest(wait::QUIET);
                    if self.poll_all()? == 0 {
                        return Ok(None);
                    }
                }
                ensure!(!deadline.passed(), "the send queue stays full");
                deadline.pause();
            }
        }
    }

    /// The state of a QP according to the device.
    pub(super) fn set_state(&self, pair: usize, end: usize, state: QpState) -> Result<()> {
        let control = &self.pairs[pair].qps[end].control;
        control.modify_state(state).with_context(|| format!("pair {pair}, end {end} to {state:?}"))
    }
}

/// A work request, ready to be posted, and its expected result.
struct Planned {
    op: Op,
    flags: SendFlags,
    sges: Vec<Sge>,
    bytes: Option<Vec<u8>>,
    sent: Sent,
    message: Option<Message>,
    wrong: Option<PostError>,
}
