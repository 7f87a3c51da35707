// SPDX-License-Identifier: MIT OR Apache-2.0
//! A driver for tests: it creates objects by the control verbs of `uverbs-core`, and writes queue entries as bytes.

use crate::{EfaDevice, Fabric};
use core::cell::RefCell;
use core::sync::atomic::{AtomicU8, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs_core::Error;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqInitAttr, Gid, GlobalRoute, QpAttr, QpAttrMask as M, QpCap, QpInitAttr, QpState,
    QpType,
};
use uverbs_core::control::{
    self, AhHandle, AsyncFd, CompChannelHandle, CoreSupport, CqHandle, MrHandle, MrRange, PdHandle, QpHandle,
    QpParents,
};
use uverbs_core::kernel::{DeviceMapping, DoorbellPage, DoorbellPort, Kernel, Uhw, page_size};
use uverbs_efa_hw::io::{
    EFA_IO_RDMA_READ, EFA_IO_RDMA_WRITE, EFA_IO_RECV_QUEUE, EFA_IO_SEND, RemoteMemAddr, RxCdescEx, RxDesc,
    TxBufDesc, TxMetaDesc,
};
use uverbs_efa_hw::regs::CqDoorbell;
use uverbs_fabric::order::LINE;
use uverbs_uapi::efa::{
    EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL, EFA_CREATE_CQ_WITH_SGID, efa_ibv_alloc_ucontext_cmd,
    efa_ibv_alloc_ucontext_resp, efa_ibv_create_ah_resp, efa_ibv_create_cq, efa_ibv_create_cq_resp,
    efa_ibv_create_qp, efa_ibv_create_qp_resp,
};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of an end's region, and entries of its queues.
pub(crate) const REGION: usize = 1 << 20;
pub(crate) const DEPTH: u32 = 64;
pub(crate) const QKEY: u32 = 0x1234;

/// Two devices of a deterministic fabric.
pub(crate) fn pair(seed: u64) -> (Fabric, EfaDevice, EfaDevice) {
    let fabric = Fabric::deterministic(seed);
    let (a, b) = (fabric.device("efa_0").build(), fabric.device("efa_1").build());
    (fabric, a, b)
}

/// Memory that outlives every device of a test.
#[derive(Clone, Copy)]
pub(crate) struct Memory(&'static [AtomicU8]);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        let zeroed = Box::<[AtomicU8]>::new_zeroed_slice(bytes + LINE);
        // SAFETY: an atomic of zeros is valid.
        let all: &'static [AtomicU8] = Box::leak(unsafe { zeroed.assume_init() });
        // The same lines in each run: the modes of order have steps of a line.
        let skipped = all.as_ptr().addr().next_multiple_of(LINE) - all.as_ptr().addr();
        Self(&all[skipped..skipped + bytes])
    }

    pub(crate) fn addr(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        self.0[at..].iter().zip(bytes).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.0[at..at + len].iter().map(|place| place.load(Ordering::Relaxed)).collect()
    }
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251 + seed * 7) as u8).collect()
}

/// A context of a device.
pub(crate) struct Ctx {
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) asyncs: AsyncFd,
    pub(crate) resp: efa_ibv_alloc_ucontext_resp,
}

impl Ctx {
    pub(crate) fn try_new(device: &EfaDevice, supported_caps: u32) -> Result<Self, Error> {
        let kernel = device.open();
        let request = efa_ibv_alloc_ucontext_cmd { supported_caps, ..Default::default() };
        let mut resp = efa_ibv_alloc_ucontext_resp::default();
        // SAFETY: the request names no memory.
        let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
        let info = control::context::open(&kernel, uhw)?;
        info.async_fd.set_nonblocking(true)?;
        Ok(Self { kernel, asyncs: info.async_fd, resp })
    }

    pub(crate) fn new(device: &EfaDevice) -> Self {
        Self::try_new(device, 3).unwrap()
    }

    pub(crate) fn pd(&self) -> PdHandle {
        control::pd::alloc(&self.kernel, Uhw::none()).unwrap()
    }

    pub(crate) fn gid(&self) -> Gid {
        control::query::gid_entry(&self.kernel, 1_u8, 0).unwrap().gid
    }

    /// A region of memory.
    pub(crate) fn reg(&self, pd: &PdHandle, memory: Memory, access: AccessFlags) -> Result<MrHandle, Error> {
        let range = MrRange { addr: memory.addr(), length: memory.0.len() as u64, iova: memory.addr() };
        // SAFETY: the memory is never freed and consists of atomics.
        unsafe { control::mr::reg(CoreSupport(1), pd, range, access, Uhw::none()) }
    }

    /// An address handle, with the device's number.
    pub(crate) fn ah(&self, pd: &PdHandle, gid: Gid) -> (AhHandle, u16) {
        let mut resp = efa_ibv_create_ah_resp::default();
        // SAFETY: the request names no memory.
        let uhw = unsafe { Uhw::new(&[], resp.as_mut_bytes()) };
        let attr = AhAttr::new(1).grh(Some(GlobalRoute::new(gid)));
        let ah = control::ah::create(pd, &attr, uhw).unwrap();
        (ah, resp.efa_address_handle)
    }

    pub(crate) fn cq_with(
        &self,
        entry: u32,
        sub_cqs: u16,
        flags: u8,
        channel: Option<&CompChannelHandle>,
    ) -> Result<(CqHandle, efa_ibv_create_cq_resp), Error> {
        let private =
            efa_ibv_create_cq { cq_entry_size: entry, num_sub_cqs: sub_cqs, flags, ..Default::default() };
        let mut resp = efa_ibv_create_cq_resp::default();
        // SAFETY: the request names no memory.
        let uhw = unsafe { Uhw::new(private.as_bytes(), resp.as_mut_bytes()) };
        let cq = control::cq::create(&self.kernel, &CqInitAttr::new(CQ_DEPTH), channel, 7, uhw)?;
        Ok((cq, resp))
    }

    fn bells(&self, key: u64) -> Arc<dyn DoorbellPort> {
        match self.kernel.doorbells(key, page_size() as usize).unwrap() {
            DoorbellPage::Port(port) => port,
            DoorbellPage::Mapped(_) => panic!("a software device has no registers"),
        }
    }
}

/// Entries of a sub-CQ.
pub(crate) const CQ_DEPTH: u32 = 256;

/// How the ends of a test differ.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) qp_type: QpType,
    pub(crate) wide: bool,
    pub(crate) unsolicited: bool,
    pub(crate) rnr_retry: u8,
    pub(crate) events: bool,
    pub(crate) source_gid: bool,
    pub(crate) cq_entry: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            qp_type: QpType::Driver,
            wide: false,
            unsolicited: false,
            rnr_retry: 0,
            events: false,
            source_gid: false,
            cq_entry: 32,
        }
    }
}

/// A completion, of either kind of queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) recv: bool,
    pub(crate) req_id: u16,
    pub(crate) status: u8,
    pub(crate) op: u8,
    pub(crate) unsolicited: bool,
    pub(crate) len: u32,
    pub(crate) ah: u16,
    pub(crate) src_qpn: u16,
    pub(crate) imm: Option<u32>,
    pub(crate) tail: [u8; 16],
}

/// A QP with its region and CQ.
pub(crate) struct End {
    pub(crate) qp: QpHandle,
    pub(crate) cq_handle: CqHandle,
    pub(crate) channel: Option<CompChannelHandle>,
    pub(crate) mr: MrHandle,
    pub(crate) pd: PdHandle,
    pub(crate) ctx: Ctx,
    pub(crate) memory: Memory,
    pub(crate) qpn: u16,
    shape: Shape,
    sq: DeviceMapping,
    rq: DeviceMapping,
    cq: DeviceMapping,
    bells: Arc<dyn DoorbellPort>,
    cq_bells: Option<(Arc<dyn DoorbellPort>, u32)>,
    offsets: (u32, u32),
    ahs: RefCell<Vec<AhHandle>>,
    pub(crate) posted: u16,
    pub(crate) received: u16,
    consumed: Vec<u32>,
    ready: VecDeque<Done>,
}

impl End {
    pub(crate) fn new(device: &EfaDevice, shape: Shape) -> Self {
        Self::in_context(Ctx::new(device), shape, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)
    }

    /// With a region that peers may write.
    pub(crate) fn written(device: &EfaDevice, shape: Shape) -> Self {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        Self::in_context(Ctx::new(device), shape, access)
    }

    pub(crate) fn in_context(ctx: Ctx, shape: Shape, access: AccessFlags) -> Self {
        let (pd, memory) = (ctx.pd(), Memory::new(REGION));
        let mr = ctx.reg(&pd, memory, access).unwrap();
        let channel = shape.events.then(|| control::comp_channel::create(&ctx.kernel).unwrap());
        let flags = if shape.events { EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL } else { 0 }
            | if shape.source_gid { EFA_CREATE_CQ_WITH_SGID } else { 0 };
        let subs = ctx.resp.sub_cqs_per_cq;
        let (cq_handle, cq_resp) = ctx.cq_with(shape.cq_entry, subs, flags, channel.as_ref()).unwrap();
        let (qp, qp_resp) = create_qp(&pd, &cq_handle, shape, DEPTH, DEPTH).unwrap();
        let map = |key, len| DeviceMapping::map(&*ctx.kernel, key, len).unwrap();
        let size = if shape.wide { 128 } else { 64 };
        let sq =
            map(qp_resp.llq_desc_mmap_key, (DEPTH as usize * size).next_multiple_of(page_size() as usize));
        let rq = map(qp_resp.rq_mmap_key, qp_resp.rq_mmap_size as usize);
        let cq = map(cq_resp.q_mmap_key, cq_resp.q_mmap_size as usize);
        assert_eq!(qp_resp.sq_db_mmap_key % u64::from(page_size()), 0);
        let bells = ctx.bells(qp_resp.sq_db_mmap_key);
        let cq_bells = shape.events.then(|| (ctx.bells(cq_resp.db_mmap_key), cq_resp.db_off));
        let end = Self {
            qpn: qp.qp_num() as u16,
            qp,
            cq_handle,
            channel,
            mr,
            pd,
            memory,
            shape,
            sq,
            rq,
            cq,
            bells,
            cq_bells,
            offsets: (qp_resp.sq_db_offset, qp_resp.rq_db_offset),
            ahs: RefCell::default(),
            posted: 0,
            received: 0,
            consumed: vec![0; subs.into()],
            ready: VecDeque::new(),
            ctx,
        };
        end.to_rts();
        end
    }

    pub(crate) fn modify(&self, attr: &QpAttr, mask: M) -> Result<(), Error> {
        // SAFETY: all memory of the queues is the kernel's.
        unsafe { self.qp.modify(None, attr, mask, Uhw::none()) }
    }

    pub(crate) fn to(&self, state: QpState) {
        self.modify(&QpAttr::new().qp_state(state), M::STATE).unwrap();
    }

    pub(crate) fn to_rts(&self) {
        let attr = QpAttr::new().port_num(1).qkey(QKEY).rnr_retry(self.shape.rnr_retry);
        self.modify(&attr.qp_state(QpState::INIT), M::STATE | M::PORT | M::PKEY_INDEX | M::QKEY).unwrap();
        self.to(QpState::RTR);
        let retries = if self.shape.rnr_retry > 0 { M::RNR_RETRY } else { M::empty() };
        self.modify(&attr.qp_state(QpState::RTS), M::STATE | M::SQ_PSN | retries).unwrap();
    }

    /// The address handle of another end's device.
    pub(crate) fn ah_to(&self, peer: &Self) -> u16 {
        let (ah, number) = self.ctx.ah(&self.pd, peer.ctx.gid());
        self.ahs.borrow_mut().push(ah);
        number
    }

    pub(crate) fn buffer(&self, at: usize, len: usize) -> TxBufDesc {
        TxBufDesc::new(self.memory.addr() + at as u64, len as u32, self.mr.lkey())
    }

    /// The meta descriptor of a request to a peer, with a completion.
    pub(crate) fn meta(&self, req_id: u16, op: u8, peer: &Self, ah: u16) -> TxMetaDesc {
        TxMetaDesc {
            req_id,
            ctrl1: 0x80 | op,
            ctrl2: 0x1c,
            dest_qp_num: peer.qpn,
            ah,
            qkey: QKEY,
            ..TxMetaDesc::default()
        }
    }

    /// Writes a send entry, with its phase, without the doorbell.
    pub(crate) fn write_entry(&mut self, mut meta: TxMetaDesc, data: &[u8]) {
        let size = if self.shape.wide { 128 } else { 64 };
        let index = u32::from(self.posted);
        meta.ctrl2 |= u8::from(!(index / DEPTH).is_multiple_of(2));
        let mut bytes = vec![0; size];
        bytes[..32].copy_from_slice(meta.as_bytes());
        bytes[32..32 + data.len()].copy_from_slice(data);
        assert!(self.sq.copy_in((index % DEPTH) as usize * size, &bytes));
        self.posted = self.posted.wrapping_add(1);
    }

    /// The doorbells.
    pub(crate) fn ring_send(&self, value: u32) {
        self.bells.ring_word(self.offsets.0, value.to_le_bytes());
    }

    pub(crate) fn ring_recv(&self, value: u32) {
        self.bells.ring_word(self.offsets.1, value.to_le_bytes());
    }

    pub(crate) fn ring_at(&self, offset: u32) {
        self.bells.ring_word(offset, [0; 4]);
    }

    /// Posts an entry.
    pub(crate) fn post(&mut self, meta: TxMetaDesc, data: &[u8]) {
        self.write_entry(meta, data);
        self.ring_send(self.posted.into());
    }

    /// Sends a part of the region.
    pub(crate) fn send(&mut self, req_id: u16, at: usize, len: usize, peer: &Self, ah: u16) {
        let meta = TxMetaDesc { length: 1, ..self.meta(req_id, EFA_IO_SEND, peer, ah) };
        self.post(meta, self.buffer(at, len).as_bytes());
    }

    /// Reads or writes a part of the peer's region; with immediate data if there are any.
    fn rdma(
        &mut self,
        (req_id, op): (u16, u8),
        (at, len): (usize, usize),
        peer: &Self,
        ah: u16,
        imm: Option<u32>,
    ) {
        let mut meta = TxMetaDesc { length: 1, ..self.meta(req_id, op, peer, ah) };
        if let Some(imm) = imm {
            (meta.immediate_data, meta.ctrl1) = (imm, meta.ctrl1 | 0x10);
        }
        let remote = RemoteMemAddr::new(peer.memory.addr() + at as u64, len as u32, peer.mr.rkey());
        let data = [remote.as_bytes(), self.buffer(at, len).as_bytes()].concat();
        self.post(meta, &data);
    }

    pub(crate) fn read(&mut self, req_id: u16, at: usize, len: usize, peer: &Self, ah: u16) {
        self.rdma((req_id, EFA_IO_RDMA_READ), (at, len), peer, ah, None);
    }

    pub(crate) fn write(
        &mut self,
        req_id: u16,
        at: usize,
        len: usize,
        peer: &Self,
        ah: u16,
        imm: Option<u32>,
    ) {
        self.rdma((req_id, EFA_IO_RDMA_WRITE), (at, len), peer, ah, imm);
    }

    /// Posts a receive of these parts of the region.
    pub(crate) fn recv_list(&mut self, req_id: u16, parts: &[(usize, usize)]) {
        for (i, (at, len)) in parts.iter().enumerate() {
            let (first, last) = (i == 0, i + 1 == parts.len());
            let addr = self.memory.addr() + *at as u64;
            let desc =
                RxDesc::new(if first { req_id } else { 0 }, addr, *len as u16, self.mr.lkey(), first, last);
            self.write_recv(desc);
        }
        self.ring_recv(self.received.into());
    }

    pub(crate) fn write_recv(&mut self, desc: RxDesc) {
        assert!(self.rq.copy_in(usize::from(self.received % DEPTH as u16) * 16, desc.as_bytes()));
        self.received = self.received.wrapping_add(1);
    }

    pub(crate) fn recv(&mut self, req_id: u16, at: usize, len: usize) {
        self.recv_list(req_id, &[(at, len)]);
    }

    /// Takes the completions of all sub-CQs.
    fn take(&mut self) {
        let size = self.shape.cq_entry as usize;
        for sub in 0..self.consumed.len() {
            loop {
                let n = self.consumed[sub];
                let at = (sub * CQ_DEPTH as usize + (n % CQ_DEPTH) as usize) * size;
                let mut bytes = [0; 32];
                assert!(self.cq.copy_out(at, &mut bytes[..size]));
                let RxCdescEx { base, u } = RxCdescEx::read_from_bytes(&bytes).unwrap();
                if base.common.phase() != (n / CQ_DEPTH).is_multiple_of(2) {
                    break;
                }
                self.consumed[sub] += 1;
                let recv = base.common.q_type() == EFA_IO_RECV_QUEUE;
                self.ready.push_back(Done {
                    recv,
                    req_id: base.common.req_id,
                    status: base.common.status,
                    op: base.common.op_type(),
                    unsolicited: base.common.unsolicited(),
                    len: base.length.into(),
                    ah: base.ah,
                    src_qpn: base.src_qp_num,
                    imm: base.common.has_imm().then_some(base.imm),
                    tail: u,
                });
                assert_eq!(base.common.qp_num, self.qpn);
            }
        }
    }

    /// The next completion.
    pub(crate) fn poll(&mut self) -> Option<Done> {
        self.take();
        self.ready.pop_front()
    }

    /// All completions.
    pub(crate) fn all(&mut self) -> Vec<Done> {
        self.take();
        self.ready.drain(..).collect()
    }

    /// The only completion; its status.
    pub(crate) fn status(&mut self) -> u8 {
        let all = self.all();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].status
    }

    /// The errors of the destruction of its CQ and domain, which are in use. Its context is closed.
    pub(crate) fn busy(self) -> [uverbs_core::Errno; 2] {
        let Self { qp, cq_handle, pd, ctx, mr, ahs, channel, .. } = self;
        let (cq_handle, of_cq) = cq_handle.destroy().unwrap_err();
        let (pd, of_pd) = pd.destroy().unwrap_err();
        drop((qp, cq_handle, pd, ctx, mr, ahs, channel));
        [of_cq.errno(), of_pd.errno()]
    }

    /// Arms the CQ, with the number of completions that were taken.
    pub(crate) fn arm(&self, sn: u8) {
        let consumer_index = self.consumed.iter().sum::<u32>() as u16;
        let (bells, offset) = self.cq_bells.as_ref().expect("a CQ with events");
        bells.ring_word(*offset, CqDoorbell { consumer_index, cmd_sn: sn, arm: true }.pack().to_le_bytes());
    }
}

pub(crate) fn create_qp(
    pd: &PdHandle,
    cq: &CqHandle,
    shape: Shape,
    sends: u32,
    receives: u32,
) -> Result<(QpHandle, efa_ibv_create_qp_resp), Error> {
    let private = efa_ibv_create_qp {
        sq_ring_size: sends * if shape.wide { 128 } else { 64 },
        rq_ring_size: receives * 16,
        flags: shape.unsolicited.into(),
        ..Default::default()
    };
    let mut resp = efa_ibv_create_qp_resp::default();
    // SAFETY: the request names no memory.
    let uhw = unsafe { Uhw::new(private.as_bytes(), resp.as_mut_bytes()) };
    let parents = QpParents { pd: Some(pd), send_cq: Some(cq), recv_cq: Some(cq), ..QpParents::default() };
    let mut init = QpInitAttr::new(shape.qp_type);
    init.cap = QpCap::new(sends, receives);
    let (qp, _) = control::qp::create(parents, &init, 9, uhw)?;
    Ok((qp, resp))
}
