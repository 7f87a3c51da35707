// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating queue pairs.

use super::call::Call;
use super::object::{Object, QpObject, page};
use crate::engine::qp::{Qp, QpKind, SendRing};
use crate::engine::recv::RecvRing;
use crate::engine::streams::Streams;
use crate::memory::Area;
use uverbs_core::Errno;
use uverbs_core::attr::QpType;
use uverbs_core::kernel::RawCommand;
use uverbs_mlx5_hw::doorbell::DBREC_BYTES;
use uverbs_mlx5_hw::wqe::MLX5_SEND_WQE_BB;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{optional_handle, uhw, uhw_out};
use uverbs_softkernel::commands::CreateQp;
use uverbs_softkernel::program_memory::{area_at, memory_at};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CREATE_QP_HANDLE, UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE, UVERBS_ATTR_CREATE_QP_PD_HANDLE,
    UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE,
    UVERBS_ATTR_CREATE_QP_SOURCE_QPN, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE, UVERBS_ATTR_CREATE_QP_XRCD_HANDLE,
};
use uverbs_uapi::mlx5::{
    MLX5_QP_FLAG_ALLOW_SCATTER_CQE, MLX5_QP_FLAG_BFREG_INDEX, MLX5_QP_FLAG_DCI_STREAM,
    MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE, MLX5_QP_FLAG_SCATTER_CQE, MLX5_QP_FLAG_SIGNATURE,
    MLX5_QP_FLAG_TUNNEL_OFFLOADS, MLX5_QP_FLAG_TYPE_DCI, MLX5_QP_FLAG_TYPE_DCT, MLX5_QP_FLAG_UAR_PAGE_INDEX,
    mlx5_ib_create_qp, mlx5_ib_create_qp_dci_streams, mlx5_ib_create_qp_resp,
};
use uverbs_uapi::verbs::IB_UVERBS_QP_CREATE_SQ_SIG_ALL;
use zerocopy::IntoBytes;

/// The register number in the answer if there is no register (`MLX5_IB_INVALID_BFREG`).
const NO_REGISTER: u32 = u32::MAX;
/// The ECE options of the device: a version, and no option.
pub(super) const ECE_OPTIONS: u32 = 0x1000_0000;
/// Bits of a user index.
const UIDX: u32 = 0xff_ffff;
/// The number of reads and atomics of one initiator that a DC target executes at a time.
const DCT_DEPTH: u8 = 16;
/// Blocks of the largest send queue.
const MAX_BLOCKS: u32 = super::limits::MAX_WQES;

/// The objects that the command names.
struct Parents {
    handles: Vec<u32>,
    pd: u32,
    send_cqn: Option<u32>,
    recv_cqn: Option<u32>,
    srqn: Option<u32>,
    xrcdn: Option<u32>,
}

impl Call<'_, '_> {
    pub(super) fn create_qp(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let own = [
            UVERBS_ATTR_CREATE_QP_XRCD_HANDLE,
            UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE,
            UVERBS_ATTR_CREATE_QP_SOURCE_QPN,
        ];
        let request = CreateQp::of(c, &own)?;
        if c.has(UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE) {
            return self.create_rss_qp(c, &request);
        }
        let CreateQp { user_handle, cap, flags, qp_type } = request;
        // Blocking of loopback and scattering of checksums are not supported.
        if flags & !IB_UVERBS_QP_CREATE_SQ_SIG_ALL != 0 || c.has(UVERBS_ATTR_CREATE_QP_SOURCE_QPN) {
            return Err(Errno::EOPNOTSUPP);
        }
        let private: mlx5_ib_create_qp = uhw(c, 32)?;
        let (qp_type, kind) = kind(qp_type, private.flags)?;
        if kind == QpKind::Raw && !self.device.ethernet {
            return Err(Errno::EOPNOTSUPP);
        }
        let parents = self.parents(c, kind)?;
        // The kernel compares no other capacity (`set_rq_size()`, `set_user_buf_size()`): the sizes of the queues are those
        // that the provider computed, and `queues` checks them.
        if cap.max_recv_wr > MAX_BLOCKS {
            return Err(Errno::EINVAL);
        }
        let sig_all = flags & IB_UVERBS_QP_CREATE_SQ_SIG_ALL != 0;
        let qpn = self.device.number().ok_or(Errno::ENOMEM)?;
        let mut qp = Qp::new(qpn, kind);
        self.queues(c, &mut qp, &private, &parents)?;
        qp.pd = parents.pd;
        qp.xrcd = parents.xrcdn.unwrap_or(0);
        qp.srqn = parents.srqn;
        qp.send_cqn = parents.send_cqn.unwrap_or(0);
        qp.recv_cqn = parents.recv_cqn.unwrap_or(0);
        qp.attr.mtu = 4096;
        if self.device.cqe_version == 1 && kind != QpKind::Dct {
            if private.uidx & !UIDX != 0 {
                return Err(Errno::EINVAL);
            }
        } else if private.uidx & !UIDX != 0 && private.uidx != u32::MAX {
            return Err(Errno::EINVAL);
        }
        qp.uidx = private.uidx & UIDX;
        self.scatter_flags(&mut qp, private.flags, sig_all);
        if kind == QpKind::Dct {
            qp.dc_key = private.sq_buf_addr;
            qp.attr.max_dest_rd_atomic = DCT_DEPTH;
        }
        let bfreg_index = self.register(private.flags)?;
        self.device.add_qp(qp);
        let mut object = QpObject { cap, sig_all, ..QpObject::new(qpn, qp_type, kind) };
        if kind == QpKind::XrcRecv {
            object.holds_xrcd = parents.xrcdn;
            parents.xrcdn.into_iter().for_each(|xrcdn| self.state.hold_xrcd(xrcdn));
            self.state.shared_qps.insert(qpn, 1);
        }
        CreateQp::answer(c, &cap, qpn);
        let resp = mlx5_ib_create_qp_resp {
            bfreg_index,
            ece_options: private.ece_options & ECE_OPTIONS,
            ..Default::default()
        };
        uhw_out(c, resp.as_bytes());
        self.give(
            c,
            UVERBS_ATTR_CREATE_QP_HANDLE,
            Object::Qp(Box::new(object)),
            &parents.handles,
            user_handle,
        )
    }

    /// The register of a QP whose context has its own pages: the first one of a page; the pages are used in turn.
    fn register(&mut self, flags: u32) -> Result<u32, Errno> {
        if flags & (MLX5_QP_FLAG_UAR_PAGE_INDEX | MLX5_QP_FLAG_TYPE_DCT) != 0 {
            return Ok(NO_REGISTER);
        }
        let context = self.state.tables.context(self.context)?;
        let pages = context.data.static_pages.len().max(1);
        context.data.next_page = (context.data.next_page + 1) % pages;
        // Four registers in a page, of which the first two are user space's (`MLX5_BFREGS_PER_UAR`).
        Ok(context.data.next_page as u32 * 4)
    }

    fn parents(&mut self, c: &RawCommand<'_, '_>, kind: QpKind) -> Result<Parents, Errno> {
        let pd = optional_handle(c, UVERBS_ATTR_CREATE_QP_PD_HANDLE)?;
        let xrcd = optional_handle(c, UVERBS_ATTR_CREATE_QP_XRCD_HANDLE)?;
        let send_cq = optional_handle(c, UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE)?;
        let recv_cq = optional_handle(c, UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE)?;
        let srq = optional_handle(c, UVERBS_ATTR_CREATE_QP_SRQ_HANDLE)?;
        let is_target = kind == QpKind::XrcRecv;
        let wants_recv = !matches!(kind, QpKind::XrcSend | QpKind::XrcRecv);
        if pd.is_some() == is_target
            || xrcd.is_some() != is_target
            || send_cq.is_some() == is_target
            || recv_cq.is_some() != wants_recv
            || srq.is_some() && !wants_recv
            || srq.is_none() && kind == QpKind::Dct
        {
            return Err(Errno::EINVAL);
        }
        let srqn = match srq {
            None => None,
            Some(handle) => match self.object(handle)? {
                Object::Srq { srqn, .. } => Some(*srqn),
                _ => return Err(Errno::ENOENT),
            },
        };
        // A QP can't have an XRC SRQ, which is addressed by its number.
        if srqn.and_then(|n| self.device.srqs.get(&n)).is_some_and(|srq| srq.xrc.is_some()) {
            return Err(Errno::EINVAL);
        }
        let xrcdn = match xrcd {
            None => None,
            Some(handle) => match self.object(handle)? {
                Object::Xrcd { xrcdn } => Some(*xrcdn),
                _ => return Err(Errno::ENOENT),
            },
        };
        Ok(Parents {
            pd: pd.map(|h| self.pdn(h)).transpose()?.unwrap_or(0),
            send_cqn: send_cq.map(|h| self.cqn(h)).transpose()?,
            recv_cqn: recv_cq.map(|h| self.cqn(h)).transpose()?,
            srqn,
            xrcdn,
            handles: [pd, xrcd, send_cq, recv_cq, srq].into_iter().flatten().collect(),
        })
    }

    /// The rings: the send queue is behind the receive queue, or in a separate buffer.
    fn queues(
        &mut self,
        c: &RawCommand<'_, '_>,
        qp: &mut Qp,
        private: &mlx5_ib_create_qp,
        parents: &Parents,
    ) -> Result<(), Errno> {
        if private.flags & (MLX5_QP_FLAG_SIGNATURE | MLX5_QP_FLAG_BFREG_INDEX) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        // The device has none of these capabilities.
        let lacking = MLX5_QP_FLAG_TUNNEL_OFFLOADS | MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE;
        if private.flags & lacking != 0 {
            return Err(Errno::EINVAL);
        }
        // The kernel passes them on for initiators only (`create_dci()`); the firmware checks them.
        if private.flags & MLX5_QP_FLAG_DCI_STREAM != 0 && qp.kind == QpKind::Dci {
            let mlx5_ib_create_qp_dci_streams { log_num_concurent, log_num_errored } = private.dci_streams;
            qp.streams = Some(Streams::new(log_num_concurent, log_num_errored).ok_or(Errno::EINVAL)?);
        }
        if private.flags & MLX5_QP_FLAG_UAR_PAGE_INDEX != 0 {
            qp.page = Some(page(self.state.tables.context(self.context)?, private.bfreg_index)?);
        }
        if matches!(qp.kind, QpKind::Dct) {
            return Ok(());
        }
        let has_send = qp.kind.queue().is_some();
        let has_recv =
            !matches!(qp.kind, QpKind::XrcSend | QpKind::XrcRecv | QpKind::Dci) && parents.srqn.is_none();
        if !has_send && !has_recv {
            return Ok(());
        }
        let (blocks, receives) = (private.sq_wqe_count, private.rq_wqe_count);
        let (blocks, receives) = (if has_send { blocks } else { 0 }, if has_recv { receives } else { 0 });
        let is_size = |n: u32| n == 0 || n.is_power_of_two() && n <= MAX_BLOCKS;
        if !is_size(blocks) || !is_size(receives) || receives > 0 && !(4..=9).contains(&private.rq_wqe_shift)
        {
            return Err(Errno::EINVAL);
        }
        let stride = if receives > 0 { 1_u64 << private.rq_wqe_shift } else { 0 };
        let rq_len = u64::from(receives) * stride;
        let sq_len = u64::from(blocks) * MLX5_SEND_WQE_BB as u64;
        let record: Area = area_at(c, private.db_addr, DBREC_BYTES as u64)?;
        let (rq, sq) = if qp.kind == QpKind::Raw {
            let sq = if blocks > 0 { Some(area_at(c, private.sq_buf_addr, sq_len)?) } else { None };
            (area_at(c, private.buf_addr, rq_len).ok(), sq)
        } else {
            let memory = memory_at(c, private.buf_addr, rq_len + sq_len)?;
            (Area::new(memory.clone(), 0, rq_len), Area::new(memory, rq_len, sq_len))
        };
        if blocks > 0 {
            let ring = sq.ok_or(Errno::EINVAL)?;
            qp.sq = Some(SendRing { ring, count: blocks, record: record.clone(), next: 0, posted: 0 });
        }
        if receives > 0 {
            let ring = rq.ok_or(Errno::EINVAL)?;
            qp.rq = Some(RecvRing {
                ring,
                stride,
                count: receives,
                record,
                taken: 0,
                broken: false,
                padded: false,
            });
        }
        Ok(())
    }

    /// Small data in completions, as `mlx5_ib` configures them (`configure_requester_scat_cqe()` and its caller).
    fn scatter_flags(&self, qp: &mut Qp, flags: u32, sig_all: bool) {
        if flags & MLX5_QP_FLAG_SCATTER_CQE == 0 {
            return;
        }
        let bytes = |cqn: u32| match self.device.cqs.get(&cqn).map(crate::engine::cq::Cq::entry_size) {
            Some(128) => 64,
            Some(_) => 32,
            None => 0,
        };
        if matches!(qp.kind, QpKind::Rc | QpKind::Uc) {
            qp.scatter_resp = bytes(qp.recv_cqn);
        }
        if matches!(qp.kind, QpKind::Rc | QpKind::Dci)
            && (sig_all || flags & MLX5_QP_FLAG_ALLOW_SCATTER_CQE != 0)
        {
            qp.scatter_req = bytes(qp.send_cqn);
        }
    }
}

/// The QP type, from the type in the command and the driver's flags.
fn kind(number: u32, flags: u32) -> Result<(QpType, QpKind), Errno> {
    let qp_type = QpType::ALL.into_iter().find(|t| *t as u32 == number).ok_or(Errno::EINVAL)?;
    let kind = match qp_type {
        QpType::Rc => QpKind::Rc,
        QpType::Uc => QpKind::Uc,
        QpType::Ud => QpKind::Ud,
        QpType::RawPacket => QpKind::Raw,
        QpType::XrcSend => QpKind::XrcSend,
        QpType::XrcRecv => QpKind::XrcRecv,
        QpType::Driver => match flags & (MLX5_QP_FLAG_TYPE_DCI | MLX5_QP_FLAG_TYPE_DCT) {
            MLX5_QP_FLAG_TYPE_DCI => QpKind::Dci,
            MLX5_QP_FLAG_TYPE_DCT => QpKind::Dct,
            _ => return Err(Errno::EINVAL),
        },
    };
    Ok((qp_type, kind))
}
