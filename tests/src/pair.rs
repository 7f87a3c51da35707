// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two QPs, one at either end, connected to each other, each with a CQ and a region.

use crate::env::{End, LabEnv};
use crate::lab::Lab;
use crate::pattern;
use crate::post::{Dest, Face, Lock, Op, Refused, RemoteAddr, Req, To, Typed, post, post_recv};
use crate::sges::sge;
use crate::wait;
use anyhow::{Context as _, Result, ensure};
use core::ops::Range;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use uverbs::attr::CqInitAttr;
use uverbs::qp::transport::Sends;
use uverbs::wr::Sge;
use uverbs::{
    AddressHandle, ConnectAttr, Context, Driver, Endpoint, MemoryRegion, PageBuf, ProtectionDomain, Shared,
    WorkCompletion,
    raw::{Cq, Qp, Srq},
};
use uverbs::{
    Exposed,
    attr::{AccessFlags, AhAttr, Gid, QpAttrMask, QpCap, QpState, QpType, SendOpsFlags},
};

/// Bytes before the data of a datagram in its receive buffer.
pub const GRH: usize = 40;

/// The parameters of a pair.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Sizes of the QPs.
    pub cap: QpCap,
    /// Entries of each CQ.
    pub cqe: u32,
    /// Bytes of each region.
    pub len: usize,
    /// Rights on each region.
    pub access: AccessFlags,
    /// Whether every send is signaled.
    pub sq_sig_all: bool,
    /// Whether the device may write short data to completions. Then the addresses in receives, reads and atomics must
    /// be those of the memory.
    pub data_in_completions: bool,
    /// Whether the device may compress the completions of both CQs.
    pub compressed: bool,
    /// The attributes of the connection.
    pub attr: ConnectAttr,
}

impl Spec {
    /// The values of most tests: queues for 64 requests of 4 entries, 64 KiB of memory.
    pub fn new<D: Driver>(lab: &Lab<D>) -> Self {
        Self {
            cap: QpCap::new(64, 64).sge(4, 4).inline(64),
            cqe: 256,
            len: 64 << 10,
            access: lab.full_access(),
            sq_sig_all: false,
            data_in_completions: true,
            compressed: false,
            attr: lab.connect_attr(),
        }
    }
}

/// One end.
///
/// The fields are dropped from the first to the last: the QP before what it uses.
#[derive(Debug)]
pub struct PairEnd<D: Driver, T: Sends, L: Lock> {
    /// The QP.
    pub qp: Qp<T, L, D>,
    /// The identifier of its connection, on iWARP.
    pub id: Option<uverbs_cm::Id>,
    /// The address of the peer's port, of a datagram QP.
    pub ah: Option<AddressHandle<D>>,
    /// The CQ of its sends and receives.
    pub cq: Cq<Shared, D>,
    /// Memory.
    pub mr: MemoryRegion<PageBuf, Exposed, D>,
    /// The protection domain.
    pub pd: ProtectionDomain<D>,
    /// The endpoint of this end, for the peer.
    pub here: Endpoint,
    /// The peer's number and queue key.
    pub there: (u32, u32),
}

/// Both ends.
#[derive(Debug)]
pub struct Pair<D: Driver, T: Sends, L: Lock> {
    /// On device A.
    pub a: PairEnd<D, T, L>,
    /// On device B.
    pub b: PairEnd<D, T, L>,
}

impl<D: Driver, T: Typed<D>, L: Lock> Pair<D, T, L> {
    /// Connected, with the usual sizes.
    pub fn new(lab: &Lab<D>) -> Result<Self> {
        Self::with(lab, &Spec::new(lab))
    }

    /// Connected.
    pub fn with(lab: &Lab<D>, spec: &Spec) -> Result<Self> {
        let mut pair = Self::unconnected(lab, spec)?;
        pair.connect(&spec.attr)?;
        Ok(pair)
    }

    /// Creates both QPs, in RESET.
    pub fn unconnected(lab: &Lab<D>, spec: &Spec) -> Result<Self> {
        let ops = builder_ops::<D, T>(lab)?;
        let a = PairEnd::new(&lab.a, spec, ops, 0xa1_0000).context("end A")?;
        let b = PairEnd::new(&lab.b, spec, ops, 0xb2_ffff).context("end B")?;
        Ok(Self { a, b })
    }

    /// From RESET to RTS; on iWARP by the connection manager.
    pub fn connect(&mut self, attr: &ConnectAttr) -> Result<()> {
        if let Some(env) = LabEnv::get().filter(|env| env.siw) {
            let [a, b] = crate::iwarp::connect(&env, &self.a.qp.control, &self.b.qp.control)?;
            (self.a.id, self.b.id) = (Some(a), Some(b));
            return Ok(());
        }
        let (a, b) = (self.a.here, self.b.here);
        self.a.connect(&b, attr).context("connect A")?;
        self.b.connect(&a, attr).context("connect B")
    }

    /// Resets both QPs and connects them again, with other packet numbers, so that a delayed packet of the old
    /// connection does not belong to the new one (the reason why IBA 9.7.1 requires them to differ).
    pub fn reconnect(&mut self, attr: &ConnectAttr) -> Result<()> {
        for control in [&self.a.qp.control, &self.b.qp.control] {
            control.modify_state(QpState::RESET)?;
        }
        for here in [&mut self.a.here, &mut self.b.here] {
            here.psn = (here.psn + 0x10_0000) & 0xff_ffff;
        }
        self.connect(attr)
    }

    /// Sends `len` bytes from A to B through a face, and checks them at B.
    pub fn message(&mut self, face: Face, len: usize, seed: u64) -> Result<()> {
        let Self { a, b } = self;
        a.fill(0..len, seed)?;
        let grh = grh::<T>();
        b.recv(Face::Single, seed, 0..len + grh)?;
        let data = [a.sge(0..len)];
        a.post(face, &[Req::new(seed, Op::Send).signaled().sges(&data)])?;
        wait::successes(&a.cq, 1).context("sender")?;
        let wc = wait::successes(&b.cq, 1).context("receiver")?;
        ensure!(wc[0].byte_len as usize == len + grh, "byte_len {}", wc[0].byte_len);
        b.check(grh..grh + len, seed)
    }
}

/// The bytes before the data in a receive buffer of this transport.
#[must_use]
pub fn grh<T: Sends>() -> usize {
    if T::QP_TYPE == QpType::Ud { GRH } else { 0 }
}

/// The operations of the transport by ibv_post_send(3), except those that the device lacks by its attributes.
pub fn wanted_ops<D: Driver>(lab: &Lab<D>, qp_type: QpType) -> SendOpsFlags {
    use SendOpsFlags as F;
    use uverbs::attr::DeviceCapFlags as C;
    let mut ops = F::SEND | F::SEND_WITH_IMM;
    if matches!(qp_type, QpType::Rc | QpType::Uc | QpType::XrcSend) {
        ops |= F::RDMA_WRITE | F::RDMA_WRITE_WITH_IMM | F::SEND_WITH_INV | F::LOCAL_INV | F::BIND_MW;
    }
    if matches!(qp_type, QpType::Rc | QpType::XrcSend) {
        ops |= F::RDMA_READ | F::ATOMIC_CMP_AND_SWP | F::ATOMIC_FETCH_AND_ADD;
    }
    if qp_type == QpType::Rc {
        ops.set(F::FLUSH, lab.has_flush());
        ops.set(F::ATOMIC_WRITE, lab.has(C::ATOMIC_WRITE));
    }
    ops
}

/// The operations whose builders QPs of this transport can have at both ends. They are tried on the devices one by one, once.
pub fn builder_ops<D: Driver, T: Typed<D>>(lab: &Lab<D>) -> Result<SendOpsFlags> {
    type Key = ([String; 2], QpType);
    static KNOWN: Mutex<Option<HashMap<Key, SendOpsFlags>>> = Mutex::new(None);
    let key = ([End::A, End::B].map(|end| lab.bed.name(end).to_owned()), T::QP_TYPE);
    if let Some(ops) = KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().get(&key)
    {
        return Ok(*ops);
    }
    let wanted = wanted_ops(lab, T::QP_TYPE);
    let has = device_ops::<D, T>(lab, &lab.a, wanted).context("device A")?;
    let has = device_ops::<D, T>(lab, &lab.b, has).context("device B")?;
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(key, has);
    Ok(has)
}

/// Those of the operations that a device has.
fn device_ops<D: Driver, T: Typed<D>>(
    lab: &Lab<D>,
    context: &Context<D>,
    wanted: SendOpsFlags,
) -> Result<SendOpsFlags> {
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(4, None)?;
    let cap = QpCap::new(1, 1);
    let mut has = SendOpsFlags::empty();
    for op in wanted {
        let builder = pd.raw_qp::<T>();
        let builder = match T::QP_TYPE {
            // It receives nothing.
            QpType::XrcSend => builder.send_cq(&cq).cap(cap.max_recv_wr(0).max_recv_sge(0)),
            _ => builder.cq(&cq).cap(cap),
        };
        match builder.send_ops(op).create() {
            Ok(_) => has |= op,
            Err(e) if e.is_unsupported() => lab.note(format_args!("no builder on {}: {e}", T::QP_TYPE)),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(has)
}

/// A zeroed region with these rights.
pub fn region<D: Driver>(
    pd: &ProtectionDomain<D>,
    len: usize,
    access: AccessFlags,
) -> Result<MemoryRegion<PageBuf, Exposed, D>> {
    pd.reg_mr(PageBuf::new(len)?, access).map_err(|e| e.error).context("reg_mr")
}

impl<D: Driver, T: Typed<D>, L: Lock> PairEnd<D, T, L> {
    fn new(context: &Context<D>, spec: &Spec, ops: SendOpsFlags, psn: u32) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq_ex(&CqInitAttr::new(spec.cqe).compressed(spec.compressed), None)?;
        Self::on(pd, cq, spec, ops, psn, None::<&Srq<Shared, D>>)
    }

    /// Creates an end on an existing domain and CQ, with an SRQ if there is one.
    pub fn on<LS: Lock>(
        pd: ProtectionDomain<D>,
        cq: Cq<Shared, D>,
        spec: &Spec,
        ops: SendOpsFlags,
        psn: u32,
        srq: Option<&Srq<LS, D>>,
    ) -> Result<Self> {
        let mr = region(&pd, spec.len, spec.access)?;
        let mut builder =
            L::builder::<D, T>(&pd).cq(&cq).cap(spec.cap).sq_sig_all(spec.sq_sig_all).send_ops(ops);
        if let Some(srq) = srq {
            builder = builder.srq(srq);
        }
        if spec.data_in_completions {
            #[expect(unsafe_code, reason = "the driver uses addresses of entries as pointers")]
            // SAFETY: a test whose receives, reads or atomics name regions other than those of `reg_mr` does not set
            // this.
            let asked = unsafe { builder.data_in_completions() };
            builder = asked;
        }
        let qp = builder.create()?;
        let here = qp.control.endpoint(psn, &spec.attr)?;
        Ok(Self { qp, id: None, ah: None, cq, mr, pd, here, there: (0, 0) })
    }

    /// From RESET to RTS.
    pub fn connect(&mut self, peer: &Endpoint, attr: &ConnectAttr) -> Result<()> {
        self.there = (peer.qp_num, attr.qkey);
        self.qp.init(attr)?;
        self.qp.connect(&self.here, peer, attr)?;
        if T::QP_TYPE == QpType::Ud && self.ah.is_none() {
            self.ah = Some(self.pd.create_ah(&attr.ah_attr(peer))?);
        }
        Ok(())
    }

    /// An entry of the region, in C's form.
    pub fn sge(&self, range: Range<usize>) -> Sge {
        sge(&self.mr, range)
    }

    /// A place in this region, for the peer.
    pub fn remote(&self, offset: usize) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr() + offset as u64, rkey: self.mr.rkey() }
    }

    /// Writes a pattern.
    pub fn fill(&self, range: Range<usize>, seed: u64) -> Result<()> {
        Ok(self.mr.write_at(range.start, &pattern::bytes(seed, range.len()))?)
    }

    /// Fills bytes with a value that differs from every expected pattern.
    pub fn clear(&self, range: Range<usize>) -> Result<()> {
        Ok(self.mr.write_at(range.start, &vec![0; range.len()])?)
    }

    /// Bytes of the region.
    pub fn bytes(&self, range: Range<usize>) -> Result<Vec<u8>> {
        let mut bytes = vec![0; range.len()];
        self.mr.read_at(range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// An aligned word of the region.
    pub fn word(&self, offset: usize) -> Result<&core::sync::atomic::AtomicU64> {
        Ok(self.mr.atomic_u64(offset)?)
    }

    /// Compares with a pattern.
    pub fn check(&self, range: Range<usize>, seed: u64) -> Result<()> {
        let bytes = self.bytes(range.clone())?;
        if let Some(at) = pattern::first_difference(seed, &bytes) {
            let near: Vec<_> = bytes[at..].iter().take(8).collect();
            let want: Vec<_> = (at..at + 8).map(|i| pattern::byte(seed, i)).collect();
            anyhow::bail!("byte {at} of {range:?} differs: {near:02x?}, expected {want:02x?}");
        }
        Ok(())
    }

    /// Posts through a face. Datagrams without an address go to the peer.
    pub fn post(&mut self, face: Face, reqs: &[Req<'_, D>]) -> Result<(), Refused> {
        let Self { qp, ah, there: (qpn, qkey), .. } = self;
        let to = match ah {
            Some(ah) => Dest::Ud(To { ah, remote_qpn: *qpn, remote_qkey: *qkey }),
            None => Dest::Peer,
        };
        let reqs: Vec<_> =
            reqs.iter().map(|r| if matches!(r.to, Dest::Peer) { r.to(to) } else { *r }).collect();
        post(qp, face, &reqs)
    }

    /// Posts a receive into the region.
    pub fn recv(&mut self, face: Face, wr_id: u64, range: Range<usize>) -> Result<()> {
        let sges = [self.sge(range)];
        post_recv(self.qp.rq_mut()?, face, &[(wr_id, &sges)])?;
        Ok(())
    }

    /// Posts `n` receives without memory, for messages of 0 bytes.
    pub fn recv_empty(&mut self, n: usize) -> Result<()> {
        let recvs: Vec<(u64, &[Sge])> = (0..n as u64).map(|i| (i, &[][..])).collect();
        post_recv(self.qp.rq_mut()?, Face::Batch, &recvs)?;
        Ok(())
    }

    /// Waits for `n` completions.
    pub fn wait(&self, n: usize) -> Result<Vec<WorkCompletion>> {
        wait::completions(&self.cq, n)
    }

    /// Waits for `n` successful completions.
    pub fn ok(&self, n: usize) -> Result<Vec<WorkCompletion>> {
        wait::successes(&self.cq, n)
    }

    /// Checks that there is no completion.
    pub fn idle(&self) -> Result<()> {
        wait::none(&self.cq)
    }

    /// The state of the QP according to the device.
    pub fn state(&self) -> Result<QpState> {
        Ok(self.qp.control.state()?)
    }

    /// From RTS to SQD, and waits until the send queue is drained, because the QP can't return to RTS before that.
    pub fn drain(&self) -> Result<()> {
        self.set_state(QpState::SQD)?;
        wait::until("the send queue is drained", wait::LIMIT, || {
            let (attr, _) = self.qp.query(QpAttrMask::STATE)?;
            ensure!(attr.qp_state == QpState::SQD, "{attr:?}");
            Ok(!attr.sq_draining)
        })
    }

    /// Changes the state only.
    pub fn set_state(&self, state: QpState) -> Result<()> {
        Ok(self.qp.control.modify_state(state)?)
    }
}

/// The address vector for a GID from the lab's port; on InfiniBand it has the LID.
#[must_use]
pub fn ah_attr<D: Driver>(lab: &Lab<D>, gid: Gid, lid: u16) -> AhAttr {
    let attr = lab.connect_attr();
    attr.ah_attr(&Endpoint { gid, lid, ..Endpoint::default() })
}
