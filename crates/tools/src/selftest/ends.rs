// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two QPs of one device that are connected to each other, with their memory, CQs and SRQs.

use super::post::{self, DC_KEY, Face, Kind, Parts, Target};
use anyhow::{Context as _, Result, bail, ensure};
use core::time::Duration;
use std::time::Instant;
use uverbs::provider::{Data, DcTarget, Dest, Op, RemoteAddr, To};
use uverbs::qp::QpControl;
use uverbs::wr::Sge;
use uverbs::{
    AddressHandle, ConnectAttr, Context, Driver, Exclusive, MemoryRegion, PageBuf, ProtectionDomain, Shared,
    WorkCompletion, XrcDomain,
    raw::{Cq, Qp, Srq},
};
use uverbs::{
    Exposed,
    attr::{
        AccessFlags, AtomicCap, DeviceAttr, DeviceCapFlags, DriverQp, LinkLayer, QpCap, QpType, SendOpsFlags,
        SrqAttr, SrqInitAttr, SrqType,
    },
};
use uverbs_testkit::verbs::Req;

/// Memory of an end.
pub(super) const MEMORY: usize = 32 << 10;
/// Offset of the memory that the peer writes; the memory of sends and receives is before it.
pub(super) const TARGET: usize = 16 << 10;
/// Offset of the memory of receives.
pub(super) const ARRIVAL: usize = 8 << 10;

/// The device, and the attributes that connect its port to itself.
#[derive(Debug)]
pub(super) struct Loop<'c, D: Driver> {
    pub(super) context: &'c Context<D>,
    pub(super) device: DeviceAttr,
    pub(super) link_layer: LinkLayer,
    pub(super) attr: ConnectAttr,
    /// The time limit of a completion.
    pub(super) limit: Duration,
}

impl<'c, D: Driver> Loop<'c, D> {
    pub(super) fn new(
        context: &'c Context<D>,
        port_num: u8,
        sgid_index: Option<u8>,
        limit: Duration,
    ) -> Result<Self> {
        let device = context.query_device()?;
        let port = context.query_port(port_num)?;
        let has = |cap| device.device_cap_flags.contains(cap);
        let mut access = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
        access.set(AccessFlags::REMOTE_ATOMIC, device.atomic_cap != AtomicCap::NONE);
        access.set(AccessFlags::FLUSH_GLOBAL, has(DeviceCapFlags::FLUSH_GLOBAL));
        ensure!(
            sgid_index.is_some() || port.link_layer != LinkLayer::ETHERNET,
            "the port has no usable GID; select one with -g"
        );
        let attr = ConnectAttr::new()
            .port_num(port_num)
            .sgid_index(sgid_index)
            .access(access)
            .hop_limit(1)
            .path_mtu(port.active_mtu);
        Ok(Self { context, device, link_layer: port.link_layer, attr, limit })
    }

    fn access(&self) -> AccessFlags {
        let has = |cap| self.device.device_cap_flags.contains(cap);
        let mut access = self.attr.access | AccessFlags::LOCAL_WRITE;
        access.set(
            AccessFlags::MW_BIND,
            has(DeviceCapFlags::MEM_WINDOW)
                || has(DeviceCapFlags::MEM_WINDOW_TYPE_2A)
                || has(DeviceCapFlags::MEM_WINDOW_TYPE_2B),
        );
        access
    }
}

/// A send queue of either locking.
#[derive(Debug)]
enum Sender<D: Driver, T: Kind<D>> {
    Exclusive(Qp<T, Exclusive, D>),
    Shared(Qp<T, Shared, D>),
}

impl<D: Driver, T: Kind<D>> Sender<D, T> {
    fn control(&self) -> &QpControl<D> {
        match self {
            Self::Exclusive(qp) => &qp.control,
            Self::Shared(qp) => &qp.control,
        }
    }
}

/// One end. The fields are dropped from the first to the last.
#[derive(Debug)]
pub(super) struct End<D: Driver, T: Kind<D>> {
    sender: Sender<D, T>,
    /// The receiving side of XRC.
    xrc: Option<QpControl<D>>,
    /// The receiving side of DC.
    target: Option<Target<D>>,
    /// The SRQ of their receives.
    srq: Option<Srq<Exclusive, D>>,
    ah: Option<AddressHandle<D>>,
    to: (u32, u32),
    cq: Cq<Shared, D>,
    pub(super) mr: MemoryRegion<PageBuf, Exposed, D>,
    pub(super) pd: ProtectionDomain<D>,
    pub(super) max_inline: usize,
    limit: Duration,
}

/// Both ends, connected.
#[derive(Debug)]
pub(super) struct Ends<D: Driver, T: Kind<D>> {
    pub(super) a: End<D, T>,
    pub(super) b: End<D, T>,
}

const CAP: QpCap = QpCap::new(16, 16).sge(2, 2).inline(32);

impl<D: Driver, T: Kind<D>> End<D, T> {
    fn new(l: &Loop<'_, D>, face: Face, ops: SendOpsFlags) -> uverbs::Result<Self> {
        let pd = l.context.alloc_pd()?;
        let cq = l.context.create_cq(64, None)?;
        let mr = pd.reg_mr(PageBuf::new(MEMORY)?, l.access()).map_err(|e| e.error)?;
        let is_xrc = T::QP_TYPE == QpType::XrcSend;
        let is_dc = T::DRIVER_QP == Some(DriverQp::Dc);
        // Their sending QPs have no receive queue.
        let cap = if is_xrc || is_dc { CAP.max_recv_wr(0).max_recv_sge(0) } else { CAP };
        let builder = pd.raw_qp::<T>().cap(cap).send_ops(ops);
        let builder = if is_xrc { builder.send_cq(&cq) } else { builder.cq(&cq) };
        let sender = match face {
            Face::Locked => Sender::Shared(builder.shared().create()?),
            _ => Sender::Exclusive(builder.create()?),
        };
        let attr = SrqAttr::new(16).max_sge(2);
        let attr = SrqInitAttr::new(attr);
        let (mut xrc, mut target, mut srq) = (None, None, None);
        if is_xrc {
            let xrcd: XrcDomain<D> = l.context.open_xrcd(None, true, false)?;
            let attr = attr.srq_type(SrqType::Xrc);
            srq = Some(Srq::create_xrc(&pd, &attr, &xrcd, &cq)?);
            xrc = Some(xrcd.recv_qp().create_recv()?);
        } else if is_dc {
            let queue = pd.create_srq(&attr)?;
            let here = sender.control().endpoint(0x100, &l.attr)?;
            target = T::target(&Parts { pd: &pd, cq: &cq, srq: &queue }, &l.attr, &here)?;
            srq = Some(queue);
        }
        let max_inline = sender.control().cap().max_inline_data as usize;
        Ok(Self { sender, xrc, target, srq, ah: None, to: (0, 0), cq, mr, pd, max_inline, limit: l.limit })
    }

    /// The QP that receives the peer's sends.
    fn receiver(&self) -> &QpControl<D> {
        self.xrc.as_ref().unwrap_or(self.sender.control())
    }

    /// From RESET to RTS, sending to the receiver of `peer`, whose sender sends to ours.
    fn connect(&mut self, peer: &Self, attr: &ConnectAttr) -> Result<()> {
        let there = peer.receiver().endpoint(0x100, attr)?;
        let control = self.sender.control();
        let here = control.endpoint(0x100, attr)?;
        T::connect(control, &here, &there, attr).context("connect")?;
        if let Some(control) = &self.xrc {
            let sender = peer.sender.control().endpoint(0x100, attr)?;
            control.init(attr)?;
            control.connect(&here, &sender, attr).context("connect the XRC receiver")?;
        }
        if T::QP_TYPE == QpType::Ud || T::DRIVER_QP == Some(DriverQp::Srd) {
            self.ah = Some(self.pd.create_ah(&attr.ah_attr(&there))?);
            self.to = (there.qp_num, attr.qkey);
        }
        if let Some(target) = &peer.target {
            self.ah = Some(self.pd.create_ah(&attr.ah_attr(&there))?);
            self.to = (target.number, 0);
        }
        Ok(())
    }

    /// Posts a request to `peer`, and waits for its completion.
    fn post_and_wait(
        &mut self,
        peer: &Self,
        face: Face,
        wr_id: u64,
        op: Op<'_>,
        data: Data<'_>,
    ) -> Result<WorkCompletion> {
        self.post(peer.srqn()?, face, wr_id, op, data)?;
        self.wait(wr_id)
    }

    /// Posts a request to the peer, on XRC to its SRQ.
    fn post(&mut self, srqn: Option<u32>, face: Face, wr_id: u64, op: Op<'_>, data: Data<'_>) -> Result<()> {
        let (qpn, qkey) = self.to;
        let to = match (&self.ah, &self.target) {
            (Some(ah), Some(_)) => Dest::Dc(DcTarget { ah, remote_dctn: qpn, remote_dc_key: DC_KEY }),
            (Some(ah), None) => Dest::Ud(To { ah, remote_qpn: qpn, remote_qkey: qkey }),
            (None, _) => srqn.map_or(Dest::Peer, Dest::Xrc),
        };
        let req = Req::new(wr_id, op).signaled().data(data).to(to);
        match &mut self.sender {
            Sender::Exclusive(qp) => post::post(qp, face, req),
            Sender::Shared(qp) => post::post(qp, face, req),
        }
        .with_context(|| format!("posting {op:?}"))
    }

    /// Posts a receive.
    pub(super) fn recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<()> {
        match (&mut self.srq, &mut self.sender) {
            (Some(srq), _) => post::post_recv(srq.batch(), wr_id, sges),
            (None, Sender::Exclusive(qp)) => post::post_recv(qp.rq()?.batch(), wr_id, sges),
            (None, Sender::Shared(qp)) => post::post_recv(qp.rq()?.lock()?.batch(), wr_id, sges),
        }
        .context("posting a receive")
    }

    /// An entry of this end's memory.
    pub(super) fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.mr.addr() + at as u64, length: len as u32, lkey: self.mr.lkey() }
    }

    /// A place in this end's memory, for the peer.
    pub(super) fn remote(&self, at: usize) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr() + at as u64, rkey: self.mr.rkey() }
    }

    /// Waits for a completion, which must be a success.
    pub(super) fn wait(&self, wr_id: u64) -> Result<WorkCompletion> {
        let end = Instant::now() + self.limit;
        let mut wc = [WorkCompletion::default()];
        while self.cq.poll(&mut wc)?.is_empty() {
            ensure!(Instant::now() < end, "no completion of work request {wr_id} within {:?}", self.limit);
            std::thread::yield_now();
        }
        let [wc] = wc;
        if !wc.status.is_success() {
            bail!("completion with {:?} ({}), vendor_err {:#x}", wc.status, wc.status, wc.vendor_err);
        }
        ensure!(wc.wr_id == wr_id, "completion of work request {}, expected {wr_id}", wc.wr_id);
        Ok(wc)
    }

    /// The number of its XRC SRQ.
    fn srqn(&self) -> Result<Option<u32>> {
        match (&self.xrc, &self.srq) {
            (Some(_), Some(srq)) => Ok(Some(srq.srq_num()?)),
            _ => Ok(None),
        }
    }

    /// Bytes of its memory.
    pub(super) fn bytes(&self, at: usize, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.mr.read_at(at, &mut bytes)?;
        Ok(bytes)
    }
}

impl<D: Driver, T: Kind<D>> Ends<D, T> {
    /// Creates and connects both ends. The error is [`uverbs::Error::is_unsupported`] if the device has no such QP.
    pub(super) fn new(l: &Loop<'_, D>, face: Face, ops: SendOpsFlags) -> Result<Self> {
        let (mut a, mut b) = (End::new(l, face, ops)?, End::new(l, face, ops)?);
        a.connect(&b, &l.attr)?;
        b.connect(&a, &l.attr)?;
        Ok(Self { a, b })
    }

    /// Posts at A, to B, and waits for its completion.
    pub(super) fn run(
        &mut self,
        face: Face,
        wr_id: u64,
        op: Op<'_>,
        data: Data<'_>,
    ) -> Result<WorkCompletion> {
        self.a.post_and_wait(&self.b, face, wr_id, op, data)
    }

    /// Posts at B, to A, and waits for its completion.
    pub(super) fn run_back(
        &mut self,
        face: Face,
        wr_id: u64,
        op: Op<'_>,
        data: Data<'_>,
    ) -> Result<WorkCompletion> {
        self.b.post_and_wait(&self.a, face, wr_id, op, data)
    }
}
