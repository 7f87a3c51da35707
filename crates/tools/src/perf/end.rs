// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects of one end of a test: its QPs with their memory, and its completion queues.
//!
//! The memory has two areas for each QP: one that the peer writes, reads or sends to, and one that this end sends from or
//! reads into. XRC and DC have a QP for each direction, as in perftest: those that send come before those that receive.
#![expect(unsafe_code)]
// UNSAFETY: posts entries of the region of an `End`, whose queues are dropped before it. The region is exposed, so this
// process accesses it by copies only, and any bytes are valid in it.

use super::carrier::{Carrier, Op, Peer, Work};
use super::cm;
use super::options::{AtomicType, Connection, Plan, Verb};
use super::queues::{COUNT_BITS, Queues};
use super::wire::Keys;
use crate::cm::{Line, Queues as _};
use crate::limits::{at_most, by_option};
use crate::patience::Patience;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use core::hash::{BuildHasher, Hasher};
use core::marker::PhantomData;
use std::hash::RandomState;
use uverbs::provider::WireRemote;
use uverbs::provider::recv::RecvQueue;
use uverbs::qp::QpControl;
use uverbs::qp::transport::Transport;
use uverbs::raw::RecvBatch;
use uverbs::{
    AddressHandle, ConnectAttr, Context, DcTarget, Driver, Endpoint, Exclusive, ImmData, MemoryRegion,
    PageBuf, ProtectionDomain, QueueError, SendFlags, Ud, WorkCompletion, XrcDomain,
    raw::{Qp, Srq},
};
use uverbs::{
    Exposed,
    attr::{AccessFlags, CqInitAttr, Gid, Mtu, QpCap, QpState, SrqAttr, SrqInitAttr, SrqType},
};
use uverbs_cm::{ConnParam, Id, PortSpace};

/// Bytes that a datagram receive puts before the message.
const GRH_LEN: usize = 40;
/// Bytes of the first datagram.
const HELLO_LEN: u32 = 4;

/// A QP of an end.
#[derive(Debug)]
enum Queue<D: Driver, T: Carrier<D>> {
    /// Sends, and receives if the transport does both.
    Both(Qp<T, Exclusive, D>),
    /// The receiving side of XRC.
    Recv(QpControl<D>),
    /// The receiving side of DC.
    Target(DcTarget<D>),
}

impl<D: Driver, T: Carrier<D>> Queue<D, T> {
    /// Its states; a DC target has its own.
    fn control(&self) -> Option<&QpControl<D>> {
        match self {
            Self::Both(qp) => Some(&qp.control),
            Self::Recv(control) => Some(control),
            Self::Target(_) => None,
        }
    }
}

/// How the memory is divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Short messages move through this part of an area.
    pub(super) cycle: u32,
    pub(super) cache_line: u32,
    /// Bytes of the longest message.
    pub(super) largest: u32,
    /// Bytes before the messages of an area, with room for a GRH.
    lead: usize,
    stride: usize,
}

impl Layout {
    pub(super) fn new(cycle: u32, cache_line: u32, largest: u32) -> Self {
        let lead = GRH_LEN.next_multiple_of(cache_line.max(8) as usize);
        let stride = (lead + largest.max(cycle) as usize).next_multiple_of(4096);
        Self { cycle, cache_line, largest, lead, stride }
    }

    /// Where message number `n` of an area begins.
    fn message(&self, area: usize, n: u64, bytes: u32) -> usize {
        let begin = area * self.stride + self.lead;
        // perftest's rule: only messages of which two fit into a cycle move.
        if bytes > self.cycle / 2 {
            return begin;
        }
        let step = bytes.next_multiple_of(self.cache_line.max(1)).max(1);
        begin + usize::try_from(n % u64::from(self.cycle / step).max(1)).unwrap_or(0) * step as usize
    }
}

/// The messages of one size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shot {
    pub(super) bytes: u32,
    /// Whether messages move through the buffer.
    pub(super) moves: bool,
}

/// One end. The fields are dropped from the first to the last: QPs before the objects that they use, queues before the
/// memory.
#[derive(Debug)]
pub(super) struct End<D: Driver, T: Carrier<D>> {
    queues: Vec<Queue<D, T>>,
    /// The number of QPs that send. They are the first ones.
    senders: usize,
    peers: Vec<Peer<D>>,
    /// The identifiers of connections by rdma_cm, with the handles and queue keys of datagrams, until the peers are known.
    connections: Vec<(Id, Option<AddressHandle<D>>, u32)>,
    /// Whether a first datagram arrives with the connection.
    is_greeted: bool,
    srq: Option<Srq<Exclusive, D>>,
    pub(super) cqs: Queues<D>,
    region: MemoryRegion<PageBuf, Exposed, D>,
    pd: ProtectionDomain<D>,
    _xrcd: Option<XrcDomain<D>>,
    attr: ConnectAttr,
    pub(super) keys: Vec<Keys>,
    layout: Layout,
    /// The longest message that is sent inline.
    pub(super) inline: u32,
    /// The bytes of inline messages.
    payload: Vec<u8>,
    /// Whether sends complete in order, so that few are signaled, and a completion is also that of those before.
    pub(super) in_order: bool,
    verb: Verb,
    atomic: AtomicType,
    _transport: PhantomData<T>,
}

impl<D: Driver, T: Carrier<D>> End<D, T> {
    /// Creates the objects, with the QPs in INIT, or in RESET if rdma_cm connects them.
    pub(super) fn new(
        context: &Context<D>,
        plan: &Plan,
        attr: ConnectAttr,
        layout: Layout,
        (patience, yields): (Patience, bool),
    ) -> Result<Self> {
        let is_xrc = plan.common.connection == Connection::Xrc;
        let is_dc = plan.common.connection == Connection::Dc;
        // The QPs that send, and those that only receive.
        let (senders, receivers) = match (!T::RECEIVES, plan.is_symmetric(), plan.is_client()) {
            (false, ..) | (true, false, true) => (plan.num_qp, 0),
            (true, true, _) => (plan.num_qp, plan.num_qp),
            (true, false, false) => (0, plan.num_qp),
        };
        let count = senders + receivers;
        let pd = context.alloc_pd()?;
        let channel = if plan.common.events { Some(context.create_comp_channel()?) } else { None };
        let last_vector = context.num_comp_vectors().saturating_sub(1);
        at_most("--vector", plan.common.vector.unwrap_or(0), last_vector, "the device's vectors")?;
        let cq = |depth: u32, options| {
            let cqe = depth.saturating_mul(u32::try_from(plan.num_qp).unwrap_or(u32::MAX));
            let comp_vector = plan.common.vector.unwrap_or(0);
            let attr = CqInitAttr::new(cqe).comp_vector(comp_vector);
            let cq = context.create_cq_ex::<Exclusive>(&attr, channel.as_ref());
            cq.map_err(|error| by_option(error, &[("cqe", options)]))
        };
        let send = cq(plan.tx_depth, "completions for --tx-depth and --qp")?;
        let recv = cq(plan.rx_depth, "completions for --rx-depth and --qp")?;
        let cqs = Queues::new(send, recv, channel, yields, patience);
        let access = match plan.verb {
            Verb::Send => AccessFlags::empty(),
            Verb::Write => AccessFlags::REMOTE_WRITE,
            Verb::Read => AccessFlags::REMOTE_READ,
            Verb::Atomic => AccessFlags::REMOTE_ATOMIC,
        };
        let attr = attr.access(access);
        let buf = PageBuf::new(2 * count * layout.stride)
            .context("--size and --qp: cannot allocate the messages")?;
        let region = pd.reg_mr(buf, AccessFlags::LOCAL_WRITE | access).map_err(|e| e.error)?;
        let xrcd = if is_xrc { Some(context.open_xrcd(None, true, false)?) } else { None };
        let rx_depth = plan.rx_depth.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX));
        let srq_attr = SrqInitAttr::new(SrqAttr::new(rx_depth)).srq_type(if is_xrc {
            SrqType::Xrc
        } else {
            SrqType::Basic
        });
        let srq = match &xrcd {
            Some(xrcd) => Some(Srq::create_xrc(&pd, &srq_attr, xrcd, &cqs.recv)),
            None if plan.common.use_srq || is_dc => Some(pd.create_srq(&srq_attr)),
            None => None,
        };
        let srq = srq.transpose().map_err(|error| by_option(error, &[("max_wr", "--rx-depth and --qp")]))?;
        let recv_depth = if srq.is_none() { plan.rx_depth } else { 0 };
        let mut cap = QpCap::new(plan.tx_depth, recv_depth)
            .sge(1, u32::from(recv_depth > 0))
            .inline(plan.inline_size());
        let create = |cap: QpCap| {
            let builder = pd.raw_qp::<T>().send_cq(&cqs.send).cap(cap);
            match &srq {
                _ if is_xrc => builder.create(),
                // An initiator has the CQ, but no receives.
                _ if is_dc => builder.recv_cq(&cqs.recv).create(),
                Some(srq) => builder.recv_cq(&cqs.recv).srq(srq).create(),
                None => builder.recv_cq(&cqs.recv).create(),
            }
        };
        let mut queues = Vec::new();
        for _ in 0..senders {
            let qp = match create(cap) {
                // The device may be unable to send as much inline as perftest's default.
                Err(_) if plan.common.inline_size.is_none() && cap.max_inline_data > 0 => {
                    cap.max_inline_data = 0;
                    create(cap).map_err(|error| too_large(error, 0, |_| false))?
                }
                Err(error) => {
                    let inline = |max_inline_data| create(cap.inline(max_inline_data)).is_ok();
                    return Err(too_large(error, cap.max_inline_data, inline));
                }
                Ok(qp) => qp,
            };
            queues.push(Queue::Both(qp));
        }
        for _ in 0..receivers {
            queues.push(match (&xrcd, &srq) {
                (Some(xrcd), _) => Queue::Recv(xrcd.recv_qp().create_recv().context("create_qp")?),
                (None, Some(srq)) => {
                    Queue::Target(T::create_target(&pd, &cqs.recv, srq).context("create_qp")?)
                }
                (None, None) => bail!("the transport has no QPs that only receive"),
            });
        }
        let srq_num = if is_xrc { srq.as_ref().map_or(Ok(0), |srq| srq.srq_num())? } else { 0 };
        let mut keys = Vec::new();
        for (i, queue) in queues.iter().enumerate() {
            let psn = RandomState::new().build_hasher().finish() as u32;
            match queue {
                Queue::Both(qp) if !plan.common.rdma_cm => T::init(&qp.control, &attr)?,
                Queue::Recv(control) => control.init(&attr)?,
                Queue::Both(_) | Queue::Target(_) => {}
            }
            let Endpoint { lid, qp_num, psn, gid } = match queue.control() {
                Some(control) => control.endpoint(psn, &attr)?,
                // A target gets its number when it is connected.
                None => endpoint_of_port(context, psn, &attr)?,
            };
            keys.push(Keys {
                lid,
                qp_num,
                psn,
                gid,
                srq_num,
                out_reads: attr.max_dest_rd_atomic,
                rkey: region.rkey(),
                addr: region.addr() + (i * layout.stride + layout.lead) as u64,
            });
        }
        let payload = vec![0; cap.max_inline_data as usize];
        Ok(Self {
            queues,
            senders,
            peers: Vec::new(),
            connections: Vec::new(),
            is_greeted: false,
            srq,
            cqs,
            region,
            pd,
            _xrcd: xrcd,
            attr,
            keys,
            layout,
            inline: cap.max_inline_data,
            payload,
            in_order: context.completes_in_order(),
            verb: plan.verb,
            atomic: plan.common.atomic_type.unwrap_or_default(),
            _transport: PhantomData,
        })
    }

    /// Connects each QP to its peer: in an XRC connection with both directions, a QP that sends to one that receives.
    pub(super) fn connect(&mut self, theirs: &[Keys]) -> Result<()> {
        ensure!(theirs.len() == self.queues.len(), "the other end has {} QPs", theirs.len());
        if !self.connections.is_empty() {
            for (keys, (_, ah, qkey)) in theirs.iter().zip(&mut self.connections) {
                self.peers.push(Peer { keys: *keys, ah: ah.take(), qkey: *qkey });
            }
            return Ok(());
        }
        for (i, queue) in self.queues.iter().enumerate() {
            let remote = theirs[self.index_of_peer(i)];
            let endpoint =
                |keys: Keys| Endpoint { lid: keys.lid, qp_num: keys.qp_num, psn: keys.psn, gid: keys.gid };
            // As many as the peer can answer and this end has as its own limit: the devices may differ.
            let most = self.attr.max_dest_rd_atomic.max(1);
            let attr = self.attr.max_rd_atomic(remote.out_reads.clamp(1, most));
            let path = attr.ah_attr(&endpoint(remote));
            let local = endpoint(self.keys[i]);
            let mut ah = None;
            match queue {
                Queue::Both(qp) => {
                    T::connect(&qp.control, &local, &endpoint(remote), &attr)?;
                    if T::HAS_ADDRESSES {
                        ah = Some(self.pd.create_ah(&path)?);
                    }
                }
                Queue::Recv(control) => control.connect(&local, &endpoint(remote), &attr)?,
                Queue::Target(target) => self.keys[i].qp_num = T::connect_target(target, &attr, &path)?,
            }
            self.peers.push(Peer { keys: remote, ah, qkey: attr.qkey });
        }
        Ok(())
    }

    /// The index of the peer's QP for QP `i`: if both ends have QPs that send and others that receive, a QP that sends has one
    /// that receives.
    fn index_of_peer(&self, i: usize) -> usize {
        let (senders, count) = (self.senders(), self.queues.len());
        let shift = if T::RECEIVES || senders == 0 { 0 } else { count - senders };
        (i + shift) % count
    }

    /// Takes the keys that the peer has after its QPs are connected: the numbers of DC targets are new.
    pub(super) fn renew(&mut self, theirs: &[Keys]) {
        let renewed: Vec<_> =
            (0..self.peers.len()).map(|i| theirs.get(self.index_of_peer(i)).copied()).collect();
        for (peer, keys) in self.peers.iter_mut().zip(renewed) {
            if let Some(Keys { qp_num, .. }) = keys {
                peer.keys.qp_num = qp_num;
            }
        }
    }

    /// Connects each QP by rdma_cm. As in perftest, a server of datagrams that also sends learns the client's address
    /// from a first datagram.
    pub(super) fn connect_by_cm(&mut self, line: &Line, plan: &Plan) -> Result<()> {
        let depth = match plan.verb {
            Verb::Read | Verb::Atomic => self.attr.max_dest_rd_atomic,
            Verb::Send | Verb::Write => 0,
        };
        let param = ConnParam::new()
            .responder_resources(depth)
            .initiator_depth(depth)
            .retry_count(plan.common.retry_count)
            .access(self.attr.access)
            .min_rnr_timer(self.attr.min_rnr_timer)
            .ack_timeout(self.attr.timeout);
        let is_datagram = plan.port_space() == PortSpace::Udp;
        let greets = is_datagram && plan.is_symmetric();
        for i in 0..self.queues.len() {
            self.is_greeted = greets && !plan.is_client();
            let (id, peer) = cm::retry(|| self.connection(i, line, &param, plan))?;
            let (init, _) = id.init_qp_attr(QpState::INIT)?;
            let mut ah = match &peer.ah_attr {
                Some(attr) => Some(self.pd.create_ah(attr)?),
                None if greets => Some(self.greeted(i, plan.common.ib_port)?),
                None => None,
            };
            if greets && plan.is_client() {
                let keys = Keys { qp_num: peer.qp_num, ..Keys::default() };
                let peer = Peer { keys, ah, qkey: init.qkey };
                self.greet(i, &peer)?;
                ah = peer.ah;
            }
            self.connections.push((id, ah, init.qkey));
        }
        Ok(())
    }

    /// One connection of QP `i`, with the peer's parameters.
    fn connection(
        &mut self,
        i: usize,
        line: &Line,
        param: &ConnParam,
        plan: &Plan,
    ) -> Result<(Id, uverbs_cm::Peer)> {
        let limit = self.cqs.patience.left("a connection")?;
        let side = line.side(plan.port_space(), plan.common.tos, limit)?;
        let control = self.control(i)?;
        // A try that failed has left it in another state. iWARP's driver can't reset it, and connects it from INIT, too.
        if control.state()? != QpState::RESET
            && let Err(error) = control.modify_state(QpState::RESET)
            && !error.is_unsupported()
        {
            return Err(error.into());
        }
        side.establish(self, i, param, limit)
    }

    /// Sends the first datagram of QP `i`.
    fn greet(&mut self, i: usize, peer: &Peer<D>) -> Result<()> {
        let begin = self.layout.message(self.keys.len() + i, 0, HELLO_LEN);
        let Some(Queue::Both(qp)) = self.queues.get_mut(i) else { bail!("QP {i} does not send") };
        let work = Work {
            id: 0,
            flags: SendFlags::SIGNALED,
            op: Op::Hello(ImmData::new(qp.control.qp_num())),
            sge: self.region.sge(begin..begin + HELLO_LEN as usize)?,
            inline: None,
        };
        let mut batch = qp.sq().batch();
        // SAFETY: the entry is in `region`, which outlives the QP; the module accesses the region by copies only.
        unsafe { T::push(&mut batch, &work, peer) }?;
        batch.complete().context("post_send")?;
        while self.cqs.sent(|_, _| ())? == 0 {
            self.cqs.idle("a completion")?;
        }
        Ok(())
    }

    /// Waits for the first datagram of QP `i`, and returns the address of its sender.
    fn greeted(&mut self, i: usize, port_num: u8) -> Result<AddressHandle<D>> {
        let mut wc = [WorkCompletion::default(); 1];
        while self.cqs.recv.poll(&mut wc).context("poll_cq")?.is_empty() {
            self.cqs.idle("the client's first datagram")?;
        }
        let [wc] = wc;
        wc.status.ok()?;
        let mut grh = [0; GRH_LEN];
        let begin = self.layout.message(i, 0, self.layout.largest.max(self.layout.cycle));
        self.region.read_at(begin - GRH_LEN, &mut grh)?;
        Ok(self.pd.create_ah_from_wc(&wc, &grh, port_num)?)
    }

    /// The number of QPs that send.
    pub(super) fn senders(&self) -> usize {
        self.senders
    }

    /// The indices of the QPs that receive.
    pub(super) fn receivers(&self) -> core::ops::Range<usize> {
        let senders = self.senders();
        if T::RECEIVES { 0..senders } else { senders..self.queues.len() }
    }

    /// Posts messages `from..from + count` of QP `i` as one list. `is_signaled` is called with the number of messages
    /// including the one in question.
    pub(super) fn post(
        &mut self,
        i: usize,
        shot: Shot,
        (from, count): (u64, u32),
        is_signaled: impl Fn(u64) -> bool,
    ) -> Result<()> {
        let Shot { bytes, moves } = shot;
        let peer = self.peers.get(i).context("the QP has no peer")?;
        let Some(Queue::Both(qp)) = self.queues.get_mut(i) else { bail!("QP {i} does not send") };
        let mut batch = qp.sq().batch();
        let inline = if bytes <= self.inline && matches!(self.verb, Verb::Send | Verb::Write) {
            self.payload.get(..bytes as usize)
        } else {
            None
        };
        for n in from..from + u64::from(count) {
            let at = if moves { n } else { 0 };
            let mine = self.layout.message(self.keys.len() + i, at, bytes);
            let offset = self.layout.message(0, at, bytes) - self.layout.lead;
            let to = D::Remote::new(peer.keys.addr.wrapping_add(offset as u64), peer.keys.rkey);
            let op = match (self.verb, self.atomic) {
                (Verb::Send, _) => Op::Send,
                (Verb::Write, _) => Op::Write(to),
                (Verb::Read, _) => Op::Read(to),
                (Verb::Atomic, AtomicType::FetchAndAdd) => Op::FetchAdd(to),
                (Verb::Atomic, AtomicType::CmpAndSwap) => Op::CmpSwap(to),
            };
            let work = Work {
                id: (i as u64) << COUNT_BITS | (n + 1),
                flags: if !self.in_order || is_signaled(n + 1) {
                    SendFlags::SIGNALED
                } else {
                    SendFlags::empty()
                },
                op,
                sge: self.region.sge(mine..mine + bytes as usize)?,
                inline,
            };
            // SAFETY: the entry is in `region`, which outlives the QP; the module accesses the region by copies only.
            unsafe { T::push(&mut batch, &work, peer) }?;
        }
        batch.complete().context("post_send")
    }

    /// Posts receives of QP `i`.
    pub(super) fn post_recv(&mut self, i: usize, bytes: u32, count: u32) -> Result<()> {
        let is_datagram = T::QP_TYPE == Ud::QP_TYPE;
        let begin = self.layout.message(i, 0, self.layout.largest.max(self.layout.cycle));
        let lead = if is_datagram { GRH_LEN } else { 0 };
        let sge = self.region.sge(begin - lead..begin + bytes as usize)?;
        if let Some(srq) = &mut self.srq {
            return push_receives(srq.batch(), i, sge, count).context("post_srq_recv");
        }
        let Some(Queue::Both(qp)) = self.queues.get_mut(i) else { bail!("QP {i} has no receive queue") };
        push_receives(qp.rq_mut()?.batch(), i, sge, count).context("post_recv")
    }

    /// Stores the last byte of the next message, which the peer waits for.
    pub(super) fn mark(&mut self, bytes: u32, value: u8) -> Result<()> {
        let last = bytes as usize - 1;
        if let Some(byte) = self.payload.get_mut(last) {
            *byte = value;
        }
        let at = self.layout.message(self.keys.len(), 0, u32::MAX) + last;
        Ok(self.region.write_at(at, &[value])?)
    }

    /// The last byte of the message that the peer has written.
    pub(super) fn arrived(&self, bytes: u32) -> Result<u8> {
        let at = self.layout.message(self.receivers().start, 0, u32::MAX) + bytes as usize - 1;
        let mut byte = [0];
        self.region.read_at(at, &mut byte)?;
        Ok(byte[0])
    }
}

impl<D: Driver, T: Carrier<D>> crate::cm::Queues<D> for End<D, T> {
    fn control(&self, index: usize) -> Result<&QpControl<D>> {
        self.queues.get(index).and_then(Queue::control).context("no such QP")
    }

    /// Receives of the test are posted later.
    fn post_first(&mut self, index: usize) -> Result<()> {
        if self.is_greeted { self.post_recv(index, HELLO_LEN, 1) } else { Ok(()) }
    }
}

fn push_receives<Q: RecvQueue>(
    mut batch: RecvBatch<'_, Q>,
    i: usize,
    sge: Q::Sge,
    count: u32,
) -> Result<(), QueueError> {
    for _ in 0..count {
        // SAFETY: the entry is in the `region` of an `End`, which outlives its receive queues; the module accesses the
        // region by copies only.
        unsafe { batch.push((i as u64) << COUNT_BITS, &[sge]) };
    }
    batch.complete()
}

/// The error of a QP that could not be created, by the options of its size. The most inline data can't be queried, so it is looked
/// for: `works` tells whether a QP with this size can be created.
fn too_large(error: uverbs::Error, inline: u32, works: impl Fn(u32) -> bool) -> anyhow::Error {
    if inline == 0 || !works(0) {
        return by_option(error, &[("max_send_wr", "--tx-depth"), ("max_recv_wr", "--rx-depth")]);
    }
    let (mut most, mut above) = (0, inline);
    while above - most > 1 {
        let middle = most + (above - most) / 2;
        if works(middle) { most = middle } else { above = middle }
    }
    anyhow!("--inline_size {inline}: the device's limit is {most}")
}

/// The endpoint of a port, without the number of a QP.
fn endpoint_of_port<D: Driver>(context: &Context<D>, psn: u32, attr: &ConnectAttr) -> Result<Endpoint> {
    let gid = match attr.sgid_index {
        Some(index) => context.query_gid(attr.port_num, index.into())?,
        None => Gid::ZERO,
    };
    Ok(Endpoint { lid: context.query_port(attr.port_num)?.lid, qp_num: 0, psn: psn & 0xff_ffff, gid })
}

/// The attributes of the connections, as perftest's.
pub(super) fn connect_attr(plan: &Plan, mtu: Mtu, sgid_index: Option<u8>, reads: u8) -> ConnectAttr {
    let common = &plan.common;
    ConnectAttr::new()
        .port_num(common.ib_port)
        .sgid_index(sgid_index)
        .pkey_index(common.pkey_index)
        .path_mtu(mtu)
        .sl(common.sl)
        .traffic_class(common.tclass)
        .flow_label(common.flow_label)
        .hop_limit(255)
        .timeout(common.qp_timeout)
        .retry_cnt(common.retry_count)
        .max_dest_rd_atomic(reads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_move_through_the_cycle() {
        let layout = Layout::new(4096, 64, 65536);
        let base = |area: usize| area * layout.stride + layout.lead;
        assert_eq!((layout.lead, layout.stride % 4096), (64, 0));
        assert_eq!(layout.message(1, 0, 8), base(1));
        assert_eq!(layout.message(1, 1, 8), base(1) + 64);
        assert_eq!(layout.message(0, 63, 64), base(0) + 63 * 64);
        assert_eq!(layout.message(0, 64, 64), base(0));
        assert_eq!(layout.message(2, 3, 2048), base(2) + 2048);
        assert_eq!(layout.message(2, 3, 2049), base(2));
        // The longest message ends before the next area's lead.
        assert!(layout.lead + 65536 <= layout.stride);
    }

    #[test]
    fn sizes_of_a_qp_are_named_by_their_options() {
        let error = |line: &str| {
            let [context, _] = crate::device::tests::hcas();
            let plan = crate::perf::options::tests::parse(line).unwrap();
            let attr = connect_attr(&plan, Mtu::MTU_1024, Some(0), 1);
            let wait = (Patience::new(None), true);
            End::<_, uverbs::Rc>::new(&context, &plan, attr, Layout::new(4096, 64, 8), wait)
                .unwrap_err()
                .to_string()
        };
        // The device's work requests have 1024 bytes.
        assert_eq!(error("send-bw -I 100000"), "--inline_size 100000: the device's limit is 828");
        for (line, text) in [
            ("send-bw -n 1000000 -r 1000000", "--rx-depth: 1000000 is above the device's 32768"),
            (
                "send-bw -n 1000000 -r 1000000 --use-srq",
                "--rx-depth and --qp: 1000000 is above the device's 32768",
            ),
            (
                "send-bw -n 1000000 -t 1000000",
                "--tx-depth: 1000000 is above the device's 8192 for work requests of 256 bytes",
            ),
            ("send-bw -n 100000 -r 30000 -q 1000", "completions for --rx-depth and --qp: 30000000 is "),
        ] {
            assert!(error(line).starts_with(text), "{line}: {}", error(line));
        }
    }

    #[test]
    fn the_number_of_senders_is_not_counted_at_each_call() {
        let time = |line: &str| {
            let [context, _] = crate::device::tests::hcas();
            let plan = crate::perf::options::tests::parse(line).unwrap();
            let attr = connect_attr(&plan, Mtu::MTU_1024, Some(0), 1);
            let wait = (Patience::new(None), true);
            let end =
                End::<_, uverbs::Rc>::new(&context, &plan, attr, Layout::new(4096, 64, 8), wait).unwrap();
            let times = [(); 5].map(|()| {
                let begin = std::time::Instant::now();
                assert_eq!((0..1000).map(|_| end.senders()).max(), Some(plan.num_qp));
                begin.elapsed()
            });
            times.into_iter().min().unwrap()
        };
        let (one, many) = (time("write-bw -t 1 -n 5"), time("write-bw -t 1 -n 5 -q 800"));
        assert!(many < one * 40, "{one:?}, with many QPs {many:?}");
    }
}
