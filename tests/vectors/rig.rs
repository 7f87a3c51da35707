// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real driver on the fixed kernel. The rig acts as the device: it reads queues and writes completions at the
//! addresses that the driver passed to the kernel.

use crate::faces::{self, Cq as CqFace, Recv, Send, SrqRecv};
use crate::kernel::{FixedKernel, Rung};
use crate::memory;
use crate::mkeys;
use crate::model;
use crate::request::{Data, Dest, Request, handle};
use crate::trace::Trace;
use anyhow::{Context as _, Result, bail, ensure};
use std::sync::Arc;
use uverbs_core::attr::{
    CqFlags, CqInitAttr, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, QpType, SendOpsFlags, SrqAttr,
    SrqInitAttr, SrqType, WcExFlags,
};
use uverbs_core::control::{PdHandle, XrcdHandle, xrcd};
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::{
    CompletionQueue as _, Driver, Object as _, Op, QpCreate, QpObject as _, QpParts, SrqCreate,
};
use uverbs_core::sync::Locked;
use uverbs_core::wr::{SendFlags, Sge};
use uverbs_mlx5::dv::QpOptions;
use uverbs_mlx5::{Devx, Mlx5, Options};
use uverbs_mlx5_hw::cqe::{Cqe64, MLX5_CQE_REQ};
use uverbs_mlx5_hw::doorbell::MLX5_CQ_DOORBELL;
use uverbs_mlx5_hw::wqe::MLX5_OPCODE_SEND;
use uverbs_mlx5_hw::{Be16, Be32};
use uverbs_testkit::kernel::Scripted;
use uverbs_uapi::mlx5::{mlx5_ib_create_cq, mlx5_ib_create_qp, mlx5_ib_create_srq};
use zerocopy::IntoBytes;

/// A completion queue, for the driver and for the device.
pub(crate) struct CqSide {
    pub cq: uverbs_mlx5::Cq,
    pub face: CqFace,
    request: mlx5_ib_create_cq,
    entries: u32,
}

impl CqSide {
    /// Writes the end of an entry, or all of it, as the device.
    pub(crate) fn put(&self, position: u32, bytes: &[u8]) {
        let size = u64::from(self.request.cqe_size);
        let end = self.request.buf_addr + (u64::from(position % self.entries) + 1) * size;
        memory::write(end - bytes.len() as u64, bytes);
    }

    /// Bytes of an entry.
    pub(crate) fn size(&self) -> usize {
        self.request.cqe_size as usize
    }

    /// The last byte of an entry.
    pub(crate) fn op_own(&self, position: u32) -> u8 {
        let end = self.request.buf_addr
            + (u64::from(position % self.entries) + 1) * u64::from(self.request.cqe_size);
        memory::read(end - 1, 1)[0]
    }

    /// The consumer index.
    pub(crate) fn consumed(&self) -> u32 {
        record(self.request.db_addr)
    }

    /// The value with which it was armed.
    pub(crate) fn armed(&self) -> u32 {
        record(self.request.db_addr + 4)
    }
}

fn record(addr: u64) -> u32 {
    let bytes = memory::read(addr, 4);
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The value of a doorbell record before the driver writes to it.
const UNTOUCHED: u32 = 0xdead_0bad;

/// Runs `f` and returns the value that it wrote to a doorbell record: `None` if it wrote none, or the same one.
pub(crate) fn watch<R>(addr: u64, f: impl FnOnce() -> R) -> (R, Option<u32>) {
    let before = memory::read(addr, 4);
    memory::write(addr, &UNTOUCHED.to_be_bytes());
    let result = f();
    match record(addr) {
        UNTOUCHED => {
            memory::write(addr, &before);
            (result, None)
        }
        value => (result, Some(value).filter(|value| value.to_be_bytes() != before[..])),
    }
}

/// A QP, for the driver and for the device.
pub(crate) struct QpSide {
    pub qp_type: QpType,
    pub qp: uverbs_mlx5::Qp,
    pub send: Option<Send>,
    pub recv: Option<Recv>,
    pub cap: QpCap,
    pub request: mlx5_ib_create_qp,
    /// Offset of the first doorbell of the case.
    pub first_bell: Option<(u64, u32)>,
}

impl QpSide {
    /// Address of the send queue.
    pub(crate) fn sq(&self) -> u64 {
        match self.qp_type {
            QpType::RawPacket => self.request.sq_buf_addr,
            _ => self.request.buf_addr + (u64::from(self.request.rq_wqe_count) << self.request.rq_wqe_shift),
        }
    }

    /// A WQE of the send queue, which may wrap at the end of the ring.
    pub(crate) fn wqe(&self, index: u32, len: usize) -> Vec<u8> {
        let blocks = (0..len.div_ceil(64) as u32).flat_map(|i| {
            let block = index.wrapping_add(i) % self.request.sq_wqe_count.max(1);
            memory::read(self.sq() + u64::from(block) * 64, 64)
        });
        blocks.take(len).collect()
    }

    /// An element of the receive queue.
    pub(crate) fn rqe(&self, index: u32) -> Vec<u8> {
        let slot = index % self.request.rq_wqe_count.max(1);
        let shift = self.request.rq_wqe_shift;
        memory::read(self.request.buf_addr + (u64::from(slot) << shift), 1 << shift)
    }

    /// Addresses of the doorbell record's words: receives, sends.
    pub(crate) fn records(&self) -> (u64, u64) {
        (self.request.db_addr, self.request.db_addr + 4)
    }

    /// Doorbells of this queue, relative to the first one of the case.
    pub(crate) fn bells(&mut self, rings: Vec<Rung>) -> Vec<(u32, Vec<u8>)> {
        let mut bells = Vec::new();
        for rung in rings.into_iter().filter(|r| r.offset as usize % 4096 != MLX5_CQ_DOORBELL) {
            let (page, first) = *self.first_bell.get_or_insert((rung.page, rung.offset));
            // A doorbell on another page is another register.
            let offset = if page == rung.page { rung.offset.wrapping_sub(first) % 512 } else { u32::MAX };
            bells.push((offset, rung.bytes));
        }
        bells
    }
}

/// A shared receive queue, for the driver and for the device.
pub(crate) struct SrqSide {
    pub srq: uverbs_mlx5::Srq,
    pub face: SrqRecv,
    pub attr: SrqAttr,
    pub request: mlx5_ib_create_srq,
    pub stride: usize,
}

impl SrqSide {
    pub(crate) fn element(&self, index: u32) -> Vec<u8> {
        memory::read(self.request.buf_addr + u64::from(index) * self.stride as u64, self.stride)
    }

    /// The link of an element.
    pub(crate) fn next(&self, index: u32) -> u32 {
        let element = self.element(index);
        u16::from_be_bytes([element[2], element[3]]).into()
    }
}

/// The driver's objects for a case.
pub(crate) struct Rig {
    pub kernel: Arc<Scripted<FixedKernel>>,
    pub driver: Mlx5,
    pub pd: PdHandle,
    pub cq: Option<CqSide>,
    pub srq: Option<SrqSide>,
    pub qps: Vec<QpSide>,
    xrcd: Option<XrcdHandle>,
}

/// The options for a context's name.
fn options(ctx: &str, cqe_size: u32) -> Options {
    let mut options = Options::default();
    options.cqe_size = cqe_size;
    match ctx {
        "eth_prefer_bf0" => options.prefer_bf = false,
        "eth_shut_up_bf" => options.shut_up_bf = true,
        mkeys::CTX => options.devx = Devx::Required,
        _ => {}
    }
    options
}

pub(crate) fn qp_type(name: &str) -> Result<QpType> {
    Ok(match name {
        "RC" => QpType::Rc,
        "UC" => QpType::Uc,
        "UD" => QpType::Ud,
        "RAW_PACKET" => QpType::RawPacket,
        "XRC_SEND" => QpType::XrcSend,
        "XRC_RECV" => QpType::XrcRecv,
        "DCI" => QpType::Driver,
        other => bail!("QP type {other}"),
    })
}

/// Converts a number of `enum ibv_qp_state`.
pub(crate) fn state_of(number: u8) -> QpState {
    QpState(number.into())
}

/// Converts `struct ib_uverbs_qp_cap`.
pub(crate) fn qp_cap(words: [u32; 5]) -> QpCap {
    let [max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data] = words;
    QpCap::new(max_send_wr, max_recv_wr).sge(max_send_sge, max_recv_sge).inline(max_inline_data)
}

pub(crate) fn state(name: &str) -> Result<QpState> {
    Ok(match name {
        "RESET" => QpState::RESET,
        "INIT" => QpState::INIT,
        "RTR" => QpState::RTR,
        "RTS" => QpState::RTS,
        "SQD" => QpState::SQD,
        "SQE" => QpState::SQE,
        "ERR" => QpState::ERR,
        other => bail!("QP state {other}"),
    })
}

/// The parameters of a new QP.
#[derive(Clone, Debug)]
pub(crate) struct QpSpec {
    pub qp_type: QpType,
    pub cap: QpCap,
    pub sq_sig_all: bool,
    pub max_tso_header: u32,
    pub send_ops_flags: Option<u64>,
    pub thread_domain: bool,
}

impl QpSpec {
    pub(crate) fn of(qp: &model::Qp) -> Result<Self> {
        Ok(Self {
            qp_type: qp_type(&qp.qp_type)?,
            cap: cap(&qp.req_cap),
            sq_sig_all: qp.sq_sig_all.0 != 0,
            max_tso_header: qp.max_tso_header,
            send_ops_flags: qp.send_ops_flags.map(|n| n.0).filter(|_| qp.ex),
            thread_domain: qp.thread_domain,
        })
    }
}

pub(crate) fn cap(cap: &model::Cap) -> QpCap {
    QpCap::new(cap.max_send_wr, cap.max_recv_wr)
        .sge(cap.max_send_sge, cap.max_recv_sge)
        .inline(cap.max_inline_data)
}

impl Rig {
    /// A fresh context.
    pub(crate) fn open(ctx: &str, cqe_size: u32, trace: &Arc<Trace>) -> Result<Self> {
        let kernel = FixedKernel::new(ctx, trace);
        let port = Arc::clone(&kernel) as Arc<dyn Kernel>;
        let (driver, _info) = Mlx5::open_with(port, &options(ctx, cqe_size)).context("open")?;
        let pd = driver.alloc_pd().context("alloc_pd")?;
        Ok(Self { kernel, driver, pd, cq: None, srq: None, qps: Vec::new(), xrcd: None })
    }

    pub(crate) fn create_cq(&mut self, cqe: u32, wc_flags: u64, flags: CqFlags) -> Result<()> {
        let attr = CqInitAttr::new(cqe).wc_flags(WcExFlags::from_bits_retain(wc_flags)).flags(flags);
        let parts = self.driver.create_cq(&attr, None, 1)?;
        let (request, kernel_cqe) = *self.kernel.made().cqs.last().context("a CQ")?;
        ensure!(kernel_cqe == parts.cqe && parts.cqe == parts.queue.cqe(), "the CQ's sizes differ");
        self.cq =
            Some(CqSide { cq: parts.cq, face: Locked::new(parts.queue), request, entries: parts.cqe + 1 });
        Ok(())
    }

    /// The CQ, created at the first use if the case does not create it.
    pub(crate) fn cq(&mut self) -> Result<&mut CqSide> {
        if self.cq.is_none() {
            self.create_cq(255, 0, CqFlags::empty())?;
        }
        self.cq.as_mut().context("a CQ")
    }

    pub(crate) fn create_srq(&mut self, max_wr: u32, max_sge: u32, xrc: bool) -> Result<()> {
        self.cq()?;
        if xrc && self.xrcd.is_none() {
            let kernel = Arc::clone(&self.kernel) as Arc<dyn Kernel>;
            self.xrcd = Some(xrcd::open(&kernel, None, Default::default(), Default::default())?);
        }
        let attr = SrqInitAttr::new(SrqAttr::new(max_wr).max_sge(max_sge)).srq_type(if xrc {
            SrqType::Xrc
        } else {
            SrqType::Basic
        });
        let cq = self.cq.as_ref().context("a CQ")?;
        let parents = self.xrcd.as_ref().filter(|_| xrc).map(|xrcd| (xrcd, &cq.cq));
        let parts = self.driver.create_srq(&SrqCreate {
            pd: &self.pd,
            attr: &attr,
            xrc: parents,
            td: None,
            user_handle: 2,
        })?;
        let request = *self.kernel.made().srqs.last().context("an SRQ")?;
        // The size according to the reference: link and entries, a power of two, at least 32.
        let stride = (16 + max_sge as usize * 16).max(32).next_power_of_two();
        self.srq = Some(SrqSide {
            srq: parts.srq,
            face: Locked::new(parts.queue),
            attr: parts.attr,
            request,
            stride,
        });
        Ok(())
    }

    pub(crate) fn create_qp(&mut self, spec: &QpSpec, with_srq: bool) -> Result<()> {
        self.create_qp_with(spec, with_srq, &QpOptions::default())
    }

    pub(crate) fn create_qp_with(
        &mut self,
        spec: &QpSpec,
        with_srq: bool,
        options: &QpOptions<'_>,
    ) -> Result<()> {
        self.cq()?;
        let cq = self.cq.as_ref().context("a CQ")?;
        let cq = &cq.cq;
        let mut attr = QpInitAttr::new(spec.qp_type);
        attr.cap = spec.cap;
        attr.sq_sig_all = spec.sq_sig_all;
        attr.max_tso_header = u16::try_from(spec.max_tso_header).unwrap_or(u16::MAX);
        attr.send_ops_flags = SendOpsFlags::from_bits_retain(spec.send_ops_flags.unwrap_or(0));
        let td = spec.thread_domain.then(|| self.driver.alloc_td()).transpose()?;
        let kernel = Arc::clone(&self.kernel) as Arc<dyn Kernel>;
        let xrcd = (spec.qp_type == QpType::XrcRecv)
            .then(|| xrcd::open(&kernel, None, Default::default(), Default::default()))
            .transpose()?;
        let (send, recv) = (spec.qp_type.has_send_queue(), spec.qp_type.has_recv_queue());
        let create = QpCreate {
            pd: send.then_some(&self.pd),
            send_cq: send.then_some(cq),
            recv_cq: recv.then_some(cq),
            srq: self.srq.as_ref().filter(|_| with_srq).map(|srq| &srq.srq),
            xrcd: xrcd.as_ref(),
            attr: &attr,
            td: td.as_ref(),
            exclusive: false,
            data_in_completions: true,
            user_handle: 3,
        };
        let QpParts { qp, send, recv, cap } = played!(self.driver.create_qp_with(&create, options))?;
        let request = *self.kernel.made().qps.last().context("a QP")?;
        self.qps.push(QpSide {
            qp_type: spec.qp_type,
            qp,
            send: send.map(Locked::new),
            recv: recv.map(Locked::new),
            cap,
            request,
            first_bell: None,
        });
        Ok(())
    }

    /// One step of `modify_qp`.
    pub(crate) fn modify(&mut self, qp: usize, qp_state: QpState) -> Result<()> {
        let qp = &self.qps[qp];
        let mut mask = QpAttrMask::STATE;
        if qp_state == QpState::INIT {
            mask |= QpAttrMask::PORT | QpAttrMask::PKEY_INDEX;
        }
        let attr = QpAttr::new().qp_state(qp_state).port_num(1);
        Ok(qp.qp.modify(&attr, mask)?)
    }

    /// From RESET to a state, through the states before it.
    pub(crate) fn bring_up(&mut self, qp: usize, target: QpState) -> Result<()> {
        let way: &[QpState] = match target {
            QpState::RESET => &[],
            QpState::INIT => &[QpState::INIT],
            QpState::RTR => &[QpState::INIT, QpState::RTR],
            QpState::RTS => &[QpState::INIT, QpState::RTR, QpState::RTS],
            QpState::SQD => &[QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD],
            QpState::ERR => &[QpState::INIT, QpState::RTR, QpState::RTS, QpState::ERR],
            other => bail!("no way to {other:?}"),
        };
        way.iter().try_for_each(|state| self.modify(qp, *state))
    }

    /// Posts and completes this many signaled WRs of one basic block.
    pub(crate) fn advance(&mut self, index: usize, count: u32) -> Result<()> {
        let mut done = 0;
        self.cq()?;
        while done < count {
            let cq = self.cq.as_mut().context("a CQ")?;
            let qp = &mut self.qps[index];
            let room = qp.cap.max_send_wr.min(count - done).min(cq.entries);
            ensure!(room != 0, "a send queue");
            let requests: Vec<_> = (0..room).map(|_| one_block(qp.qp_type)).collect();
            faces::batch(qp.send.as_mut().context("a send queue")?, &requests)
                .map_err(|e| anyhow::anyhow!("WRs before the case: {e:?}"))?;
            for position in done..done + room {
                let cqe = Cqe64 {
                    srqn_uidx: Be32::new(qp.request.uidx & 0xff_ffff),
                    sop_drop_qpn: Be32::new(u32::from(MLX5_OPCODE_SEND) << 24 | qp.qp.handle().qp_num()),
                    wqe_counter: Be16::new(position as u16),
                    op_own: MLX5_CQE_REQ << 4 | u8::from(position & cq.entries != 0),
                    ..Cqe64::default()
                };
                cq.put(position, cqe.as_bytes());
            }
            done += room;
            let polled = cq.face.get_mut().poll_each(room as usize, |_| ())?;
            ensure!(polled == room as usize, "{polled} completions, not {room}");
        }
        drop(self.kernel.take_rings());
        Ok(())
    }
}

/// A WR whose WQE has one basic block.
fn one_block(qp_type: QpType) -> Request<'static> {
    let ah = handle(&[0; 48]);
    let to = match qp_type {
        QpType::Ud => Dest::Ud { ah, remote_qpn: 1, remote_qkey: 1 },
        QpType::XrcSend => Dest::Xrc(1),
        QpType::Driver => Dest::Dc { ah, remote_dctn: 1, remote_dc_key: 1 },
        _ => Dest::Peer,
    };
    let data = match qp_type {
        QpType::RawPacket => Data::Sges(vec![Sge { addr: memory::DATA, length: 64, lkey: 1 }]),
        _ => Data::Sges(vec![]),
    };
    Request::new(0, SendFlags::SIGNALED, Op::Send, to, data)
}
