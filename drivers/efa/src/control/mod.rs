// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context, and the control calls.
//!
//! The kernel allocates the queues and returns offsets for mmap(2). Facts from `efa_verbs.c` of the kernel's `drivers/infiniband/hw/efa`,
//! and `efa.c` and `verbs.c` of rdma-core's `providers/efa`.
#![expect(unsafe_code)]
// UNSAFETY: the private input of commands may contain addresses; the inputs here contain none.

mod ah;
mod cq;
mod driver;
mod object;
mod qp;
#[cfg(test)]
mod tests;

pub use ah::MrInterconnects;
pub use cq::CqOptions;
pub use object::{Cq, Qp};
pub use qp::{QpOptions, opcodes_of};

use std::sync::Arc;
use uverbs_core::attr::DeviceAttr;
use uverbs_core::control::{ContextInfo, context, query};
use uverbs_core::kernel::{Kernel, Uhw};
use uverbs_core::sync::{ControlBarrier, ProcessMutex};
use uverbs_core::{Error, Result};
use uverbs_uapi::efa::{
    EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR, EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH,
    EFA_QUERY_DEVICE_CAPS_RDMA_READ, EFA_QUERY_DEVICE_CAPS_RDMA_WRITE, EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
    EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE, efa_ibv_alloc_ucontext_cmd, efa_ibv_alloc_ucontext_resp,
    efa_ibv_ex_query_device_resp,
};
use zerocopy::IntoBytes;

/// A context on an EFA device.
#[derive(Debug)]
pub struct Efa {
    kernel: Arc<dyn Kernel>,
    /// How control calls stop posters and pollers.
    barrier: ControlBarrier,
    limits: Limits,
    /// The numbers of QPs that are different, a power of two.
    qp_numbers: u32,
    /// Held while a QP is created, and while one is destroyed and its completions are removed: the device may use the number again.
    numbers: Arc<Numbers>,
}

/// By the QP number, modulo the length: the numbers of requests from which on the queues of the next QP may use them.
type Numbers = ProcessMutex<Box<[[u16; 2]]>>;

/// The element of [`Numbers`] of a QP number.
fn of_number(numbers: &mut [[u16; 2]], qp_num: u16) -> Option<&mut [u16; 2]> {
    let mask = numbers.len().wrapping_sub(1);
    numbers.get_mut(usize::from(qp_num) & mask)
}

/// What the device has: `efadv_query_device`, and the limits of its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Sub-CQs of each CQ.
    pub sub_cqs: u16,
    /// Bytes of inline data in an entry of 64 bytes.
    pub inline_buf_size: u16,
    /// Bytes of inline data; more than in an entry of 64 bytes if the device has entries of 128 bytes.
    pub inline_buf_size_ex: u16,
    /// Bytes of the longest send queue.
    pub max_llq_size: u32,
    /// Units of 64 bytes that may be written to a send queue before its doorbell; 0 is no limit.
    pub max_tx_batch: u16,
    /// Requests of the shortest send queue; 0 if the device has no minimum.
    pub min_sq_wr: u16,
    /// Requests of the longest send queue.
    pub max_sq_wr: u32,
    /// Descriptors of the longest receive queue.
    pub max_rq_wr: u32,
    /// Entries of a send.
    pub max_sq_sge: u16,
    /// Entries of a receive.
    pub max_rq_sge: u16,
    /// Entries of a read or write.
    pub max_rdma_sge: u16,
    /// Bytes of the longest read or write.
    pub max_rdma_size: u32,
    /// `EFA_QUERY_DEVICE_CAPS_*`.
    pub device_caps: u32,
    /// The answer to a query of the device has the driver's part.
    queries_device: bool,
}

impl Limits {
    /// Whether the device has this capability, `EFA_QUERY_DEVICE_CAPS_*`.
    #[must_use]
    pub fn has(&self, cap: u32) -> bool {
        self.device_caps & cap != 0
    }

    /// Whether the device has RDMA read.
    #[must_use]
    pub fn has_read(&self) -> bool {
        self.has(EFA_QUERY_DEVICE_CAPS_RDMA_READ)
    }

    /// Whether the device has RDMA write.
    #[must_use]
    pub fn has_write(&self) -> bool {
        self.has(EFA_QUERY_DEVICE_CAPS_RDMA_WRITE)
    }
}

/// What posters, pollers and control calls share, in errors.
const STATE: &str = "memory for the queue's state";

/// The attributes of the device, and the driver's part of them, if the kernel has it.
fn query_device(
    kernel: &Arc<dyn Kernel>,
    limits: &Limits,
) -> Result<(DeviceAttr, efa_ibv_ex_query_device_resp)> {
    let mut ex = efa_ibv_ex_query_device_resp::default();
    let uhw = if limits.queries_device { Uhw::answer(ex.as_mut_bytes()) } else { Uhw::none() };
    Ok((query::device(kernel, uhw)?, ex))
}

impl Efa {
    /// Opens the context. The kernel is told that this driver obeys the limits of batches and the minimum of send queues: it refuses a
    /// context on a device with these limits otherwise.
    fn open_context(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        const VERB: &str = "open_device";
        let request = efa_ibv_alloc_ucontext_cmd {
            supported_caps: EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH
                | EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_MIN_SQ_WR,
            ..Default::default()
        };
        let mut resp = efa_ibv_alloc_ucontext_resp::default();
        // SAFETY: the request has a number and names no memory.
        let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
        let info = context::open(&kernel, uhw)?;
        let supports = |bit| resp.cmds_supp_udata_mask & bit != 0;
        if !supports(EFA_USER_CMDS_SUPP_UDATA_CREATE_AH) {
            return Err(Error::unsupported(
                VERB,
                "the kernel does not report the numbers of address handles",
            ));
        }
        if resp.sub_cqs_per_cq == 0 {
            return Err(Error::protocol(VERB, "a CQ without sub-CQs"));
        }
        let mut limits = Limits {
            sub_cqs: resp.sub_cqs_per_cq,
            inline_buf_size: resp.inline_buf_size,
            inline_buf_size_ex: resp.inline_buf_size_ex.max(resp.inline_buf_size),
            max_llq_size: resp.max_llq_size,
            max_tx_batch: resp.max_tx_batch,
            min_sq_wr: resp.min_sq_wr,
            queries_device: supports(EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE),
            ..Limits::default()
        };
        let (attr, ex) = query_device(&kernel, &limits)?;
        if limits.queries_device {
            (limits.max_sq_wr, limits.max_rq_wr) = (ex.max_sq_wr, ex.max_rq_wr);
            (limits.max_sq_sge, limits.max_rq_sge) = (ex.max_sq_sge, ex.max_rq_sge);
            (limits.max_rdma_size, limits.device_caps) = (ex.max_rdma_size, ex.device_caps);
        } else {
            let sge = u16::try_from(attr.max_sge).unwrap_or(u16::MAX);
            (limits.max_sq_wr, limits.max_rq_wr) = (attr.max_qp_wr, attr.max_qp_wr);
            (limits.max_sq_sge, limits.max_rq_sge) = (sge, sge);
        }
        limits.max_rdma_sge = u16::try_from(attr.max_sge_rd).unwrap_or(u16::MAX);
        let qp_numbers = attr.max_qp.clamp(1, 1 << 16).next_power_of_two();
        // The first QP does not begin with the number 0, so that an entry of zeros is that of no request.
        let numbers = Arc::new(Numbers::new(vec![[1; 2]; qp_numbers as usize].into()));
        let barrier = ControlBarrier::register();
        Ok((Self { kernel, barrier, limits, qp_numbers, numbers }, info))
    }

    /// What the device has.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}
