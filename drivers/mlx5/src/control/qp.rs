// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating queue pairs, and tracking their state.

use super::dv::{DciStreams, MkeyOps, QpOptions};
use super::object::{Kind, Qp};
use super::{Cq, Mlx5, NO_UIDX, Srq, ThreadDomain};
use crate::control::calls::{self, QpMemory};
use crate::control::ops;
use crate::control::size::{self, RqSize, SendUse, SqSize};
use crate::control::uars::{BfReg, BfRegIndex, Posters};
use crate::cq::CqShared;
use crate::doorbell::Doorbell;
use crate::memory::dbrec::DbRec;
use crate::memory::{Allocator, MemoryUse, QueueBuf, SqRing, StrideRing};
use crate::shared::QpShared;
use crate::shared::RqShared;
use crate::shared::SqShared;
use crate::{RecvConfig, RecvQueue, SendConfig, SendQueue};
use std::sync::{Arc, MutexGuard};
use uverbs_core::Errno;
use uverbs_core::attr::{
    QpAttr, QpAttrMask, QpCap, QpCreateFlags, QpInitAttr, QpState, QpType, SendOpsFlags,
};
use uverbs_core::control::{QpHandle, XrcdHandle, qp};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Uhw;
use uverbs_core::provider::{QpCreate, QpParts, same_context};
use uverbs_core::sync::ProcessMutex;
use uverbs_uapi::mlx5::{
    MLX5_IB_MODIFY_QP_OOO_DP, MLX5_QP_FLAG_DCI_STREAM, MLX5_QP_FLAG_SCATTER_CQE, MLX5_QP_FLAG_TYPE_DCI,
    mlx5_ib_create_qp, mlx5_ib_create_qp_dci_streams, mlx5_ib_modify_qp, mlx5_ib_modify_qp_resp,
};

const CREATE_QP: &str = "create_qp";

/// The stored state while the kernel resets the QP: it permits no posts, and does not count as a reset.
const BETWEEN: QpState = QpState::UNKNOWN;

/// A QP on the control path: the state that its queues share, and the objects that it holds until it is destroyed.
#[derive(Debug)]
pub struct QpControl {
    shared: Arc<QpShared>,
    pub(super) qp_type: QpType,
    send_cq: Option<Arc<CqShared>>,
    recv_cq: Option<Arc<CqShared>>,
    memory: QpMemory,
    /// The doorbell register, which is returned when its last user is dropped.
    bfreg: Option<BfReg>,
    /// One `modify_qp` at a time.
    modifying: ProcessMutex<()>,
    /// The options of enhanced connection establishment.
    ece: ProcessMutex<EceOptions>,
    /// Its receives may be consumed out of order.
    out_of_order: bool,
    /// An error of a signature stops its sends.
    signature_pipelining: bool,
}

/// The ECE options that the device reported, and those to request with the next state change.
#[derive(Debug, Default)]
struct EceOptions {
    got: u32,
    asked: u32,
}

impl QpControl {
    /// The state that the QP's queues share.
    #[must_use]
    pub fn shared(&self) -> &Arc<QpShared> {
        &self.shared
    }

    /// The QP's doorbell record; QPs that another process created have none.
    #[must_use]
    pub fn dbrec(&self) -> Option<&Arc<DbRec>> {
        self.memory.dbrec.as_ref()
    }

    /// The QP's doorbell register; a QP without a send queue has none.
    pub(super) fn bfreg(&self) -> Option<&BfReg> {
        self.bfreg.as_ref()
    }

    /// The posting sides of its queues.
    fn engines(
        &self,
        mlx5: &Mlx5,
        attr: &QpInitAttr,
        cap: &QpCap,
        doorbell: Option<Doorbell>,
    ) -> (Option<SendQueue>, Option<RecvQueue>) {
        let Some(dbrec) = &self.memory.dbrec else { return (None, None) };
        let (facts, qp) = (&mlx5.facts, &self.shared);
        let send = doorbell.and_then(|doorbell| {
            let config = SendConfig {
                qp_type: attr.qp_type,
                qp_num: qp.qp_num,
                sq_sig_all: attr.sq_sig_all,
                send_ops_flags: match qp.mkey_ops().is_empty() {
                    true => attr.send_ops_flags,
                    // As in libmlx5. Programs that configure keys invalidate them, without asking for these operations.
                    false => attr.send_ops_flags | SendOpsFlags::SEND_WITH_INV | SendOpsFlags::LOCAL_INV,
                },
                max_send_wr: cap.max_send_wr,
                max_send_sge: cap.max_send_sge,
                max_inline_data: cap.max_inline_data,
                atomics: facts.atomics,
                max_msg_sz: facts.max_msg_sz,
                max_tso: facts.max_tso,
                max_tso_header: attr.max_tso_header.into(),
                l2_inline: facts.min_inline != 0,
            };
            SendQueue::new(&config, Arc::clone(qp), dbrec.send_word(), doorbell)
        });
        let config = RecvConfig {
            qp_type: attr.qp_type,
            max_recv_wr: cap.max_recv_wr,
            max_recv_sge: cap.max_recv_sge,
            max_msg_sz: facts.max_msg_sz,
        };
        (send, RecvQueue::new(&config, Arc::clone(qp), dbrec.recv_word()))
    }

    fn lock_ece(&self, verb: &'static str) -> Result<MutexGuard<'_, EceOptions>> {
        self.ece.lock().map_err(|_| self.forked(verb))
    }

    /// The error in a child of fork(2) if a thread of the parent was executing a control call of the QP.
    fn forked(&self, verb: &'static str) -> Error {
        Error::os(verb, format!("qp {:#x} of the parent process", self.shared.qp_num), Errno::ESTALE)
    }

    /// The ECE options that the device reported.
    pub(super) fn ece(&self) -> Result<u32> {
        Ok(self.lock_ece("query_ece")?.got)
    }

    /// Sets the ECE options to request with the next state change.
    pub(super) fn set_ece(&self, options: u32) -> Result<()> {
        *self.lock_ece("set_ece")? = EceOptions { got: 0, asked: options };
        Ok(())
    }

    /// The bit with which the kernel learns that receives may be consumed out of order: with the change to INIT.
    pub(super) fn order_of(&self, attr: &QpAttr, mask: QpAttrMask) -> u32 {
        let is_init = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::INIT;
        if self.out_of_order && is_init { MLX5_IB_MODIFY_QP_OOO_DP } else { 0 }
    }

    /// Executes the kernel's modify_qp with the requested ECE options.
    pub(super) fn modify_kernels(&self, handle: &QpHandle, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let mut ece = self.lock_ece("modify_qp")?;
        let comp_mask = self.order_of(attr, mask);
        let request = mlx5_ib_modify_qp { comp_mask, ece_options: ece.asked, ..Default::default() };
        let mut resp = mlx5_ib_modify_qp_resp::default();
        let is_plain = ece.asked == 0 && comp_mask == 0;
        let uhw = if is_plain { Uhw::none() } else { calls::modify_qp(&request, &mut resp) };
        // SAFETY: the QP's own handle (`Qp::modify`), whose queues learn the new state from `modify_with`.
        unsafe { handle.modify(None, attr, mask, uhw) }?;
        if ece.asked != 0 {
            *ece = EceOptions { got: resp.ece_options, asked: 0 };
        }
        let is_init = mask.contains(QpAttrMask::STATE) && attr.qp_state == QpState::INIT;
        match self.signature_pipelining && is_init {
            true => super::mkey::drain_on_error(handle, self.shared.qp_num),
            false => Ok(()),
        }
    }

    /// The CQs of the QP, each once.
    fn cqs(&self) -> impl Iterator<Item = &Arc<CqShared>> {
        let recv = self.recv_cq.as_ref();
        let send = self.send_cq.as_ref().filter(|send| !recv.is_some_and(|recv| Arc::ptr_eq(send, recv)));
        recv.into_iter().chain(send)
    }

    /// For a work queue, which has a receive queue only.
    pub(super) fn of_wq(shared: Arc<QpShared>, cq: Arc<CqShared>, memory: QpMemory) -> Self {
        Self {
            shared,
            qp_type: QpType::Driver,
            send_cq: None,
            recv_cq: Some(cq),
            memory,
            bfreg: None,
            modifying: ProcessMutex::default(),
            ece: ProcessMutex::default(),
            out_of_order: false,
            signature_pipelining: false,
        }
    }

    /// For a DC target, which has no queues.
    pub(super) fn of_dct(shared: Arc<QpShared>, cq: Arc<CqShared>, out_of_order: bool) -> Self {
        Self { out_of_order, ..Self::of_wq(shared, cq, QpMemory::default()) }
    }

    /// Calls `change`, which has the kernel modify the QP, and stores the state `target` if it succeeds.
    pub(super) fn modify_with(
        &self,
        target: Option<QpState>,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let shared = &*self.shared;
        let _one = self.modifying.lock().map_err(|_| self.forked("modify_qp"))?;
        let before = shared.state();
        if target == Some(QpState::RESET) {
            // From here on no post is in progress and none begins, until the QP is in INIT.
            shared.set_state(BETWEEN);
            if let Err(errno) = shared.stop_posters() {
                shared.set_state(before);
                return Err(Error::os("modify_qp", format!("qp {:#x}: membarrier(2)", shared.qp_num), errno));
            }
        }
        if let Err(error) = change() {
            if target == Some(QpState::RESET) && shared.state() == BETWEEN {
                shared.set_state(before);
            }
            return Err(error);
        }
        match target {
            Some(QpState::RESET) => {
                if let Some(dbrec) = &self.memory.dbrec {
                    dbrec.set_recv(0);
                    dbrec.set_send(0);
                }
                for cq in self.cqs() {
                    cq.reset_qp(&self.shared);
                }
                shared.set_state(QpState::RESET);
            }
            Some(state) => shared.set_state(state),
            None => {}
        }
        // The receive queue of a raw packet QP is ready before the QP is, so its receives are published to the device
        // only now.
        if target == Some(QpState::RTR)
            && self.qp_type == QpType::RawPacket
            && let (Some(dbrec), Some(rq)) = (&self.memory.dbrec, &shared.rq)
        {
            rq.publish_held(dbrec);
        }
        Ok(())
    }

    /// Calls `destroy`, which has the kernel destroy the QP, while no post is in progress; then removes the QP's
    /// completions.
    pub(super) fn destroy_with<H>(
        &self,
        verb: &'static str,
        handle: H,
        destroy: impl FnOnce(H) -> Result<u32, (H, Error)>,
    ) -> Result<u32, (H, Error)> {
        // In a child of fork no other thread uses the QP, and the kernel's call does nothing.
        let _one = self.modifying.lock();
        let shared = &*self.shared;
        let before = shared.state();
        shared.set_state(BETWEEN);
        let destroyed = match shared.stop_posters() {
            Ok(()) => destroy(handle),
            Err(errno) => {
                Err((handle, Error::os(verb, format!("qp {:#x}: membarrier(2)", shared.qp_num), errno)))
            }
        };
        if destroyed.is_err() {
            shared.set_state(before);
        } else {
            self.detach();
        }
        destroyed
    }

    fn detach(&self) {
        for cq in self.cqs() {
            cq.detach_qp(&self.shared);
        }
        self.shared.set_state(QpState::RESET);
    }
}

/// Refuses features that mlx5 does not have, before anything is allocated.
fn check(mlx5: &Mlx5, attr: &QpInitAttr) -> Result<()> {
    if attr.create_flags.contains(QpCreateFlags::SOURCE_QPN) {
        return Err(Error::unsupported(CREATE_QP, "create_flags SOURCE_QPN"));
    }
    let missing = attr.send_ops_flags.difference(ops::builder_ops(attr.qp_type, &mlx5.facts));
    if !missing.is_empty() {
        let what = format!("send_ops_flags {missing:?} on {} QPs of mlx5", attr.qp_type);
        return Err(Error::unsupported(CREATE_QP, what));
    }
    if attr.qp_type == QpType::RawPacket && !mlx5.facts.ports.iter().any(|port| port.is_ethernet) {
        let what = format!("{} QPs: no port is Ethernet", attr.qp_type);
        return Err(Error::unsupported(CREATE_QP, what));
    }
    if attr.max_tso_header != 0 && attr.qp_type != QpType::RawPacket {
        let what = format!("max_tso_header on {} QPs: only raw packets are segmented", attr.qp_type);
        return Err(Error::unsupported(CREATE_QP, what));
    }
    Ok(())
}

/// The queues' sizes. `out_of_order` is the limit of receives if they may be consumed out of order.
fn sizes(
    mlx5: &Mlx5,
    attr: &QpInitAttr,
    has_srq: bool,
    mkeys: MkeyOps,
    out_of_order: Option<u32>,
) -> Result<(SqSize, RqSize)> {
    let limits = &mlx5.facts.limits;
    let (cap, qp_type) = (&attr.cap, attr.qp_type);
    let sq = if qp_type.has_send_queue() {
        let what = SendUse {
            qp_type,
            ops: attr.send_ops_flags,
            max_tso_header: attr.max_tso_header,
            mkeys: !mkeys.is_empty(),
        };
        size::send_queue(CREATE_QP, limits, &what, cap)?
    } else {
        SqSize::default()
    };
    let rq = if qp_type.has_recv_queue() && !has_srq {
        match out_of_order {
            Some(most) => size::unordered_queue(CREATE_QP, limits, most, cap.max_recv_wr, cap.max_recv_sge)?,
            None => size::recv_queue(CREATE_QP, limits, cap.max_recv_wr, cap.max_recv_sge)?,
        }
    } else {
        RqSize::default()
    };
    Ok((sq, rq))
}

/// Queues on new memory.
struct Queues {
    memory: QpMemory,
    sq: Option<Arc<SqShared>>,
    rq: Option<Arc<RqShared>>,
}

impl Queues {
    fn new(
        mlx5: &Mlx5,
        qp_type: QpType,
        sq_size: &SqSize,
        rq_size: &RqSize,
        allocator: Allocator<'_>,
    ) -> Result<Self> {
        let buffer = |bytes: usize| match bytes {
            0 => Ok(None),
            bytes => QueueBuf::allocated(allocator, bytes, mlx5.options.qp_pages, MemoryUse::Qp)
                .map(Some)
                .map_err(|e| mlx5.no_memory(CREATE_QP, &e)),
        };
        let apart = qp_type == QpType::RawPacket;
        // The receive queue comes first; it is a multiple of a block.
        let (first, second, sq_offset) = if apart {
            (rq_size.bytes(), sq_size.bytes(), 0)
        } else {
            (rq_size.bytes() + sq_size.bytes(), 0, rq_size.bytes())
        };
        let dbrec = mlx5.dbrecs.alloc_from(allocator).map_err(|e| mlx5.no_memory(CREATE_QP, &e))?;
        let memory = QpMemory { buf: buffer(first)?, sq_buf: buffer(second)?, dbrec: Some(Arc::new(dbrec)) };
        let wrong = || Error::invalid(CREATE_QP, "cap", "queues too large");
        let sq_buf = if apart { &memory.sq_buf } else { &memory.buf };
        let sq = match sq_buf.as_ref().filter(|_| sq_size.wqe_cnt != 0) {
            Some(buf) => Some(SqRing::new(Arc::clone(buf), sq_offset, sq_size.wqe_cnt).ok_or_else(wrong)?),
            None => None,
        };
        let rq = match memory.buf.as_ref().filter(|_| rq_size.wqe_cnt != 0) {
            Some(buf) => {
                let ring = StrideRing::new(Arc::clone(buf), 0, rq_size.wqe_cnt, rq_size.stride());
                Some(ring.ok_or_else(wrong)?)
            }
            None => None,
        };
        let sq = sq.map(|ring| Arc::new(SqShared::new(ring)));
        let rq = rq.map(|ring| Arc::new(RqShared::new(ring)));
        Ok(Self { memory, sq, rq })
    }
}

/// The device has so many streams, as libmlx5 checks in user space.
fn check_streams(mlx5: &Mlx5, streams: DciStreams) -> Result<()> {
    let caps = super::context::query_private(&mlx5.kernel, &mlx5.facts)?.dci_streams_caps;
    for (field, asked, most) in [
        ("log_num_concurrent", streams.log_num_concurrent, caps.max_log_num_concurent),
        ("log_num_errored", streams.log_num_errored, caps.max_log_num_errored),
    ] {
        if asked > most {
            return Err(Error::invalid(CREATE_QP, field, format!("{asked} is above the device's {most}")));
        }
    }
    Ok(())
}

pub(super) fn create(
    mlx5: &Mlx5,
    create: &QpCreate<'_, Mlx5>,
    options: &QpOptions<'_>,
) -> Result<QpParts<Mlx5>> {
    create.check(&mlx5.kernel)?;
    mlx5.owns(CREATE_QP, "send_cq", create.send_cq.map(Cq::context))?;
    mlx5.owns(CREATE_QP, "recv_cq", create.recv_cq.map(Cq::context))?;
    mlx5.owns(CREATE_QP, "srq", create.srq.map(Srq::context))?;
    mlx5.owns(CREATE_QP, "td", create.td.map(ThreadDomain::context))?;
    let mut attr = create.attr.clone();
    check(mlx5, &attr)?;
    let mkeys = if attr.max_mkey_entries == 0 { options.mkeys } else { MkeyOps::all() };
    // Lists are inline data, behind a header of 4 bytes.
    if let Some(units) = attr.max_mkey_entries.checked_next_multiple_of(4).filter(|units| *units != 0) {
        attr.cap.max_inline_data = attr.cap.max_inline_data.max(units.saturating_mul(16) - 4);
    }
    if !mkeys.is_empty() && attr.qp_type != QpType::Rc {
        return Err(Error::unsupported(CREATE_QP, format!("indirect keys on {} QPs", attr.qp_type)));
    }
    if options.dci_streams.is_some() && attr.qp_type != QpType::Driver {
        return Err(Error::unsupported(CREATE_QP, format!("streams on {} QPs", attr.qp_type)));
    }
    if let Some(streams) = options.dci_streams {
        check_streams(mlx5, streams)?;
    }
    if options.signature_pipelining {
        mlx5.unless_devx(CREATE_QP)?;
    }
    let access = mlx5.qp_access(CREATE_QP)?;
    let most = match options.out_of_order {
        true => Some(mlx5.need_out_of_order(CREATE_QP, attr.qp_type)?),
        false => None,
    };
    let (sq_size, rq_size) = sizes(mlx5, &attr, create.srq.is_some(), mkeys, most)?;
    if sq_size.wqe_cnt != 0 {
        attr.cap.max_inline_data = sq_size.max_inline;
    }
    let queues = Queues::new(mlx5, attr.qp_type, &sq_size, &rq_size, options.allocator)?;
    let is_target = attr.qp_type == QpType::XrcRecv;
    let index = match mlx5.facts.cqe_version {
        1 if !is_target => Some(mlx5.user_index(CREATE_QP)?),
        _ => None,
    };
    // Only a QP that sends needs a register of its own; the others name a page because the kernel requires one.
    let bfreg = if queues.sq.is_none() {
        None
    } else if let Some(first) = create.td.and_then(ThreadDomain::take) {
        Some(first)
    } else {
        mlx5.uars.for_qp(match create {
            QpCreate { td: Some(_), .. } => Posters::ThreadDomain,
            QpCreate { exclusive: true, .. } => Posters::One,
            _ => Posters::Many,
        })?
    };
    let uar = match &bfreg {
        Some(bfreg) => bfreg.index(),
        None if queues.sq.is_none() => mlx5.uars.unused(),
        None => BfRegIndex::default(),
    };
    let mut flags = uar.flag | options.flags.bits();
    if attr.qp_type == QpType::Driver {
        // A DC initiator's short data never go to the CQE.
        flags |= MLX5_QP_FLAG_TYPE_DCI;
        if options.dci_streams.is_some() {
            flags |= MLX5_QP_FLAG_DCI_STREAM;
        }
    } else if create.data_in_completions && mlx5.options.scatter_to_cqe {
        flags |= MLX5_QP_FLAG_SCATTER_CQE;
    }
    let request = mlx5_ib_create_qp {
        sq_wqe_count: sq_size.wqe_cnt,
        rq_wqe_count: rq_size.wqe_cnt,
        rq_wqe_shift: rq_size.wqe_shift,
        flags,
        uidx: match (&index, mlx5.facts.cqe_version) {
            (Some(index), _) => index.get(),
            (None, 0) => NO_UIDX,
            (None, _) => 0,
        },
        bfreg_index: uar.index,
        ece_options: mlx5.ece(),
        dci_streams: options.dci_streams.map_or_else(Default::default, |streams| {
            mlx5_ib_create_qp_dci_streams {
                log_num_concurent: streams.log_num_concurrent,
                log_num_errored: streams.log_num_errored,
            }
        }),
        ..Default::default()
    };
    let _one = mlx5.number(CREATE_QP)?;
    let (handle, got, resp) =
        calls::create_qp(create.parents(), &attr, create.user_handle, request, &queues.memory)?;

    // A kernel without UAR objects has returned the register with the new QP.
    let bfreg = match bfreg {
        None if queues.sq.is_some() => mlx5.uars.fixed(CREATE_QP, resp.bfreg_index).map(Some),
        bfreg => Ok(bfreg),
    };
    let made = bfreg.and_then(|bfreg| {
        let doorbell = bfreg.as_ref().map(|bfreg| bfreg.doorbell(CREATE_QP)).transpose()?;
        Ok((bfreg, doorbell))
    });
    let (bfreg, doorbell) = match made {
        Ok(made) => made,
        Err(error) => {
            // SAFETY: the object has no other user yet.
            let _ = unsafe { handle.destroy() }.map_err(|_| core::mem::forget(queues.memory));
            return Err(error);
        }
    };

    let qp_num = handle.qp_num();
    let srq = create.srq.map(|srq| Arc::clone(srq.shared()));
    let shared = QpShared::new(access, qp_num, qp_num, queues.sq, queues.rq, srq);
    let shared =
        if flags & MLX5_QP_FLAG_SCATTER_CQE != 0 { shared.with_data_in_completions() } else { shared };
    let shared = if attr.qp_type == QpType::RawPacket { shared.with_checksums() } else { shared };
    let shared = if options.raw_wqes { shared.with_raw_wqes() } else { shared };
    let shared = shared.with_mkeys(mkeys);
    let shared = Arc::new(match index {
        Some(index) => shared.with_index(index),
        None => shared,
    });
    let control = QpControl {
        shared,
        qp_type: attr.qp_type,
        send_cq: create.send_cq.map(|cq| Arc::clone(cq.shared())),
        recv_cq: create.recv_cq.map(|cq| Arc::clone(cq.shared())),
        memory: queues.memory,
        bfreg,
        modifying: ProcessMutex::default(),
        ece: ProcessMutex::new(EceOptions { got: resp.ece_options, asked: 0 }),
        out_of_order: options.out_of_order,
        signature_pipelining: options.signature_pipelining,
    };
    for cq in control.cqs() {
        cq.attach_qp(&control.shared);
    }
    let cap = QpCap::new(sq_size.max_wr, rq_size.max_wr)
        .sge(got.max_send_sge.min(sq_size.max_sge), rq_size.max_sge)
        .inline(if sq_size.wqe_cnt == 0 { 0 } else { sq_size.max_inline });
    let (send, recv) = control.engines(mlx5, &attr, &cap, doorbell);
    Ok(QpParts { qp: Qp::new(mlx5, handle, Kind::Queues(control)), send, recv, cap })
}

/// Opens an XRC target QP of another process. Its receives complete to the CQs of the SRQs, so no CQ is attached.
pub(super) fn open(mlx5: &Mlx5, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<Qp> {
    same_context("open_qp", &mlx5.kernel, &[("xrcd", Some(xrcd.kernel()))])?;
    let access = mlx5.qp_access("open_qp")?;
    let handle = qp::open(xrcd, qp_num, user_handle, Uhw::none())?;
    let control = QpControl {
        shared: Arc::new(QpShared::new(access, qp_num, qp_num, None, None, None)),
        qp_type: QpType::XrcRecv,
        send_cq: None,
        recv_cq: None,
        memory: QpMemory::default(),
        bfreg: None,
        modifying: ProcessMutex::default(),
        ece: ProcessMutex::default(),
        out_of_order: false,
        signature_pipelining: false,
    };
    Ok(Qp::new(mlx5, handle, Kind::Queues(control)))
}
