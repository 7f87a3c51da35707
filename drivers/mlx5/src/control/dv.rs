// SPDX-License-Identifier: MIT OR Apache-2.0
//! Direct access: the addresses of an object's queues, doorbell record and registers, and its numbers in the hardware.
//! It provides the functions of `mlx5dv_init_obj`, `mlx5dv_query_device` and similar functions of `mlx5dv.h`.
//!
//! A program with these addresses writes WQEs and reads CQEs itself. Reading an address is safe; every use of it is
//! `unsafe`, and the program is responsible for it:
//!
//! - The addresses are valid until the object is destroyed (those of a CQ: or resized).
//! - A queue is used either by this crate's engine (`SendQueue`, `RecvQueue`, `SharedRecvQueue`, `CompletionQueue`) or
//!   by the program, never by both: each keeps its own indices. So a program takes the addresses before the first post
//!   or poll, and a QP that the program posts to completes to a CQ that the program polls.
//! - The device reads and writes the memory at any time, so accesses are atomic or volatile, in the order of the PRM:
//!   WQE, doorbell record, register.
//! - Threads that use one queue, or one register, exclude each other. A register with [`RawRegister::burst`] 0 may be
//!   written by several queues, by single stores of 8 bytes only.

pub use super::extra::{PacingEntry, VirtioPage};
use super::qp::QpControl;
use super::srq::Srq;
use super::uars::OwnPage;
use super::{Mlx5, Qp};
use crate::control::calls;
use crate::cq::{Clock, CqShared};
pub use crate::cq::{ClockInfo, CqeCompression};
use crate::memory::Allocator;
use bitflags::bitflags;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::AtomicU32;
use std::os::fd::OwnedFd;
use uverbs_core::attr::CqInitAttr;
use uverbs_core::control::{CompChannelHandle, PdHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{
    CqParts, DctCreate, QpCreate, QpParts, RssQpCreate, SrqCreate, SrqParts, WqCreate, WqParts,
};
use uverbs_mlx5_hw::doorbell::BF_OFFSET;
use uverbs_uapi::mlx5::{
    MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF, MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC, MLX5_QP_FLAG_ALLOW_SCATTER_CQE,
    MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE, MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC,
    MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC, MLX5_QP_FLAG_TUNNEL_OFFLOADS, mlx5_ib_query_device_resp,
};

/// A ring of WQEs. All fields are 0 if there is no such queue.
#[derive(Clone, Copy, Debug)]
pub struct RawQueue {
    /// The first WQE.
    pub buf: *mut c_void,
    /// The number of basic blocks of a send queue, or of WQEs of a receive queue; a power of two.
    pub wqe_cnt: u32,
    /// The bytes of a block or WQE.
    pub stride: u32,
}

impl RawQueue {
    const NONE: Self = Self { buf: ptr::null_mut(), wqe_cnt: 0, stride: 0 };
}

/// A doorbell register.
#[derive(Clone, Copy, Debug)]
pub struct RawRegister {
    /// Its address.
    pub reg: *mut c_void,
    /// The bytes of the longest WQE that may be written to the register, and the distance of its two halves. 0 if only
    /// doorbells of 8 bytes are allowed.
    pub burst: u32,
    /// The offset by which the kernel maps its page, if the page is an object.
    pub mmap_offset: Option<u64>,
}

/// A QP's memory.
#[derive(Clone, Copy, Debug)]
pub struct RawQp {
    /// Two big-endian words: receives posted, basic blocks posted. NULL if the QP has no queues.
    pub dbrec: *mut u32,
    /// The send queue.
    pub sq: RawQueue,
    /// The receive queue; a QP with an SRQ has none.
    pub rq: RawQueue,
    /// The QP's register. `None` if it has no send queue, or on a software device without memory-mapped registers.
    pub bf: Option<RawRegister>,
}

/// A CQ's memory.
#[derive(Clone, Copy, Debug)]
pub struct RawCq {
    /// The first entry.
    pub buf: *mut c_void,
    /// Two big-endian words: consumer index, arm value.
    pub dbrec: *mut u32,
    /// The number of entries, a power of two.
    pub cqe_cnt: u32,
    /// The bytes of an entry.
    pub cqe_size: u32,
    /// Its number.
    pub cqn: u32,
}

/// An SRQ's memory.
#[derive(Clone, Copy, Debug)]
pub struct RawSrq {
    /// The first element.
    pub buf: *mut c_void,
    /// The first of its two words is big-endian: receives posted.
    pub dbrec: *mut u32,
    /// The bytes of an element.
    pub stride: u32,
    /// The first element of the list of a new queue.
    pub head: u32,
    /// The last element of the list of a new queue.
    pub tail: u32,
    /// Its number.
    pub srqn: u32,
}

/// The capabilities of a device that only programs with direct access need.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The format of CQEs: user indices (1) or QP numbers (0).
    pub cqe_version: u8,
    /// The kernel driver's part of the device's attributes.
    pub private: mlx5_ib_query_device_resp,
    /// Doorbell registers that can be allocated beside the context's own.
    pub max_dynamic_bfregs: u32,
    /// WQEs may be written to doorbell registers.
    pub blueflame: bool,
    /// Completion timestamps can be wall-clock time.
    pub real_time_ts: bool,
    /// The longest time between two updates of [`ClockInfo`], in nanoseconds; `None` without a clock page.
    pub max_clock_info_update_nsec: Option<u64>,
}

/// mlx5's options of a CQ, in addition to [`CqInitAttr`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CqOptions<'a> {
    /// Bytes of an entry, 64 or 128; the context's size if `None`.
    pub cqe_size: Option<u32>,
    /// The program's allocator of its memory, if it has one. Resizes call it, too.
    pub allocator: Allocator<'a>,
    /// The device compresses entries in this format, which it must have for the size of an entry ([`DeviceInfo::private`]). `None`:
    /// it chooses one if [`CqInitAttr::compressed`] is set.
    pub compression: Option<CqeCompression>,
}

pub use super::firmware::OutOfOrderCaps;
pub use super::mkey::{Mkey, MkeyOptions, SignatureCaps, SignatureError, SignaturePart};
pub use crate::shared::mkey::{
    BlockSize, CrcKind, Guard, MkeyConfig, MkeyLayout, MkeyPart, Seed, SignatureBlock, SignatureDomain,
    SignatureKind, T10Dif, T10Escape,
};

bitflags! {
    /// mlx5's options of a QP, `MLX5_QP_FLAG_*` of the kernel, which refuses those that the device or the QP's type lacks.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpFlags: u32 {
        /// Checksums of tunneled packets are computed.
        const TUNNEL_OFFLOADS = MLX5_QP_FLAG_TUNNEL_OFFLOADS;
        /// Unicast packets of this device are received.
        const SELF_LOOPBACK_UNICAST = MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC;
        /// Multicast packets of this device are received.
        const SELF_LOOPBACK_MULTICAST = MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC;
        /// Short data of reads and atomics may be in completions although not all WRs are signaled. Requires
        /// [`QpCreate::data_in_completions`].
        const REQUESTER_DATA_IN_COMPLETIONS = MLX5_QP_FLAG_ALLOW_SCATTER_CQE;
        /// Credits are counted in packets. The peer must have the same mode.
        const PACKET_BASED_CREDITS = MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE;
    }
}

bitflags! {
    /// Work requests about indirect keys, `enum mlx5dv_qp_create_send_ops_flags`. A C program requests each of them; here one
    /// of them permits all.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MkeyOps: u8 {
        /// `mlx5dv_wr_mr_interleaved`
        const INTERLEAVED = 1 << 0;
        /// `mlx5dv_wr_mr_list`
        const LIST = 1 << 1;
        /// `mlx5dv_wr_mkey_configure`
        const CONFIGURE = 1 << 2;
    }
}

/// Streams of a DC initiator (`struct mlx5dv_dci_streams`): an error ends the stream of its work request only, until
/// [`Mlx5::reset_dci_stream`] or a RESET of the QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DciStreams {
    /// The logarithm of the number of streams that the device executes at the same time.
    pub log_num_concurrent: u8,
    /// The logarithm of the number of streams with errors at which the QP moves to ERR.
    pub log_num_errored: u8,
}

/// mlx5's options of a QP, in addition to [`QpCreate`].
#[derive(Clone, Copy, Debug, Default)]
pub struct QpOptions<'a> {
    /// The program's allocator of its memory, if it has one.
    pub allocator: Allocator<'a>,
    /// The program may post WQEs that it has written itself
    /// ([`SendQueue::wr_raw_wqe`](crate::SendQueue::wr_raw_wqe)). Completions of the send queue cost more.
    pub raw_wqes: bool,
    /// Work requests may configure indirect keys ([`SendQueue::wr_mkey_configure`](crate::SendQueue::wr_mkey_configure)), on RC
    /// QPs only.
    pub mkeys: MkeyOps,
    /// The queue stops before the next work request when the device finds a wrong signature: the QP moves to SQD, with an
    /// event. The context must have commands for the firmware.
    pub signature_pipelining: bool,
    /// Further options.
    pub flags: QpFlags,
    /// Streams, of a DC initiator. The device must have them ([`DeviceInfo::private`]).
    pub dci_streams: Option<DciStreams>,
    /// Receives may be consumed, and messages may arrive, in any order. The peer must have the same option. The device must
    /// have it for this type ([`Mlx5::out_of_order_caps`]).
    pub out_of_order: bool,
}

/// A UAR page for doorbells that a program writes itself. It is freed when this value is dropped, which must be after
/// the last object that uses it.
#[derive(Debug)]
pub struct Uar {
    page: OwnPage,
    reg: *mut c_void,
    base: *mut c_void,
}

// SAFETY: the addresses point into a page that `page` keeps mapped; any thread may use them.
unsafe impl Send for Uar {}
// SAFETY: `&Uar` only allows addresses to be read.
unsafe impl Sync for Uar {}

impl Uar {
    /// The first send doorbell.
    #[must_use]
    pub fn reg_addr(&self) -> *mut c_void {
        self.reg
    }

    /// The start of the UAR.
    #[must_use]
    pub fn base_addr(&self) -> *mut c_void {
        self.base
    }

    /// The number that objects are created with.
    #[must_use]
    pub fn page_id(&self) -> u32 {
        self.page.page_id()
    }

    /// The offset by which the kernel maps the page.
    #[must_use]
    pub fn mmap_offset(&self) -> u64 {
        self.page.mmap_offset()
    }

    /// The page as a dma-buf, so that another device can write to its doorbells.
    ///
    /// # Errors
    /// The kernel's error; [`Error::Unsupported`] from kernels before 2026.
    pub fn export_dmabuf(&self) -> Result<OwnedFd> {
        self.page.export_dmabuf()
    }
}

impl QpControl {
    /// The addresses of the QP's memory. See the [module's rules](crate::dv).
    #[must_use]
    pub fn raw(&self) -> RawQp {
        let shared = self.shared();
        let sq = shared.sq.as_ref().map_or(RawQueue::NONE, |sq| RawQueue {
            buf: sq.ring.as_ptr().cast(),
            wqe_cnt: sq.ring.mask() + 1,
            stride: uverbs_mlx5_hw::wqe::MLX5_SEND_WQE_BB as u32,
        });
        let rq = shared.rq.as_ref().map_or(RawQueue::NONE, |rq| RawQueue {
            buf: rq.ring.as_ptr().cast(),
            wqe_cnt: rq.ring.mask() + 1,
            stride: rq.ring.stride() as u32,
        });
        let bf = self.bfreg().and_then(|bfreg| bfreg.raw()).map(|(reg, burst, mmap_offset)| RawRegister {
            reg: reg.as_ptr().cast(),
            burst,
            mmap_offset,
        });
        RawQp { dbrec: self.dbrec().map_or(ptr::null_mut(), |dbrec| words(dbrec.word(0))), sq, rq, bf }
    }
}

/// The address of a doorbell record, from its first word.
fn words(first: &AtomicU32) -> *mut u32 {
    first.as_ptr()
}

impl CqShared {
    /// The addresses of the CQ's memory. After this call the program polls the CQ: the library no longer removes the
    /// entries of a QP that is reset or destroyed, and no longer writes the consumer index. Returns `None` if the queue
    /// is lost, or in a child of fork(2). See the [module's rules](crate::dv).
    #[must_use]
    pub fn raw(&self) -> Option<RawCq> {
        let (buf, cqe_cnt, cqe_size) = self.give_to_program()?;
        Some(RawCq {
            buf: buf.cast(),
            dbrec: words(self.dbrec().word(0)),
            cqe_cnt,
            cqe_size,
            cqn: self.cqn(),
        })
    }
}

impl Srq {
    /// The addresses of the SRQ's memory. They are valid only if nothing was posted before. See the [module's
    /// rules](crate::dv).
    #[must_use]
    pub fn raw(&self) -> RawSrq {
        let shared = self.shared();
        RawSrq {
            buf: shared.ring.as_ptr().cast(),
            dbrec: words(self.dbrec().word(0)),
            stride: shared.ring.stride() as u32,
            head: 0,
            tail: shared.slots() - 1,
            srqn: shared.srqn,
        }
    }
}

impl Mlx5 {
    /// The capabilities that programs with direct access need.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn device_info(&self) -> Result<DeviceInfo> {
        Ok(DeviceInfo {
            cqe_version: self.facts.cqe_version,
            private: super::context::query_private(&self.kernel, &self.facts)?,
            max_dynamic_bfregs: self.facts.uars.num_dyn_bfregs,
            blueflame: self.facts.uars.bf_reg_size != 0,
            real_time_ts: self.facts.real_time_ts,
            max_clock_info_update_nsec: self.clock().ok().map(|clock| clock.update_period()),
        })
    }

    /// The address of the UAR by which CQs are armed; `None` on a software device without memory-mapped registers.
    #[must_use]
    pub fn cq_uar(&self) -> Option<*mut c_void> {
        self.uars.raw_arm_page().map(|page| page.as_ptr().cast())
    }

    /// The hardware's number of a protection domain.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn pd_number(&self, pd: &PdHandle) -> Result<u32> {
        calls::query_pd(pd)
    }

    /// The conversion factors of the device's clock, as they are now.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without a clock page.
    pub fn clock_info(&self) -> Result<ClockInfo> {
        Ok(*self.clock()?.info())
    }

    fn clock(&self) -> Result<Clock> {
        super::cq::clock(self, "get_clock_info")
    }

    /// Creates a CQ as [`Driver::create_cq`](uverbs_core::provider::Driver::create_cq), with further options.
    ///
    /// # Errors
    /// Invalid sizes; [`Error::Unsupported`] without the compression; the kernel's error.
    pub fn create_cq_with(
        &self,
        attr: &CqInitAttr,
        options: CqOptions<'_>,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        super::cq::create(self, attr, options, channel, user_handle)
    }

    /// Creates a QP as [`Driver::create_qp`](uverbs_core::provider::Driver::create_qp), with further options.
    ///
    /// # Safety
    /// As [`Driver::create_qp`](uverbs_core::provider::Driver::create_qp).
    ///
    /// # Errors
    /// As for [`Driver::create_qp`](uverbs_core::provider::Driver::create_qp); memory without the requested alignment.
    pub unsafe fn create_qp_with(
        &self,
        create: &QpCreate<'_, Self>,
        options: &QpOptions<'_>,
    ) -> Result<QpParts<Self>> {
        super::qp::create(self, create, options)
    }

    /// Creates a DC target as [`DcDriver::create_dct`](uverbs_core::provider::DcDriver::create_dct). Its receives may be
    /// consumed out of order if `out_of_order` is set, as with [`QpOptions::out_of_order`].
    ///
    /// # Safety
    /// As [`DcDriver::create_dct`](uverbs_core::provider::DcDriver::create_dct).
    ///
    /// # Errors
    /// As for [`DcDriver::create_dct`](uverbs_core::provider::DcDriver::create_dct).
    pub unsafe fn create_dct_with(&self, create: &DctCreate<'_, Self>, out_of_order: bool) -> Result<Qp> {
        super::dct::create(self, create, out_of_order)
    }

    /// Creates a hashed QP as [`Driver::create_rss_qp`](uverbs_core::provider::Driver::create_rss_qp), with further
    /// options.
    ///
    /// # Errors
    /// As for [`Driver::create_rss_qp`](uverbs_core::provider::Driver::create_rss_qp).
    pub fn create_rss_qp_with(&self, create: &RssQpCreate<'_>, flags: QpFlags) -> Result<Qp> {
        super::wq::create_rss(self, create, flags)
    }

    /// Creates an SRQ in memory of the program's allocator.
    ///
    /// # Errors
    /// As for [`create_qp_with`](Self::create_qp_with).
    pub fn create_srq_in(
        &self,
        create: &SrqCreate<'_, Self>,
        allocator: Allocator<'_>,
    ) -> Result<SrqParts<Self>> {
        super::srq::create(self, create, allocator)
    }

    /// Creates a work queue in memory of the program's allocator.
    ///
    /// # Errors
    /// As for [`create_qp_with`](Self::create_qp_with).
    pub fn create_wq_in(
        &self,
        create: &WqCreate<'_, Self>,
        allocator: Allocator<'_>,
    ) -> Result<WqParts<Self>> {
        super::wq::create(self, create, allocator)
    }

    /// Allocates a UAR page. With `blueflame`, its registers accept whole WQEs; otherwise the page is uncached.
    ///
    /// # Errors
    /// The kernel's error; [`Error::Unsupported`] if the device has no BlueFlame registers, or is a software device
    /// without memory-mapped registers.
    pub fn alloc_uar(&self, blueflame: bool) -> Result<Uar> {
        let kind = if blueflame { MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF } else { MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC };
        let page = self.uars.own_page(kind)?;
        let (Some(base), Some(reg)) = (page.raw(0), page.raw(BF_OFFSET as u32)) else {
            return Err(Error::unsupported("alloc_uar", "the device has no doorbells in memory"));
        };
        Ok(Uar { page, reg: reg.as_ptr().cast(), base: base.as_ptr().cast() })
    }
}
