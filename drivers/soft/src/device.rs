// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control calls of a device, as its driver provides them: each makes the kernel's object and maps its ring. What follows
//! from that, and what happens if a ring can't be used, is in `driver`.
#![expect(unsafe_code)]
// UNSAFETY: declares the contract of the call that names memory, and relies on it in a default body.

use crate::doorbell::{ArmBell, FlushBell, KernelBell};
use crate::format::Format;
use crate::object::Qp;
use crate::send::SendConfig;
use crate::shared::QpShared;
use core::fmt;
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqInitAttr, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpState, SrqAttr, SrqAttrMask,
    SrqInitAttr,
};
use uverbs_core::control::{
    self, AhHandle, CompChannelHandle, ContextInfo, CoreSupport, CqHandle, MrHandle, MrRange, PdHandle,
    QpHandle, QpParents, SrqHandle, SrqParents,
};
use uverbs_core::kernel::{Kernel, Mapping, Protection, Uhw, map_queue};
use uverbs_core::{Error, Result};

/// The kernel of a context.
pub type KernelRef = Arc<dyn Kernel>;

/// An object of the kernel, and its rings, or the reason for which they can't be used; then the object is destroyed again.
#[derive(Debug)]
pub struct Created<H, R> {
    /// The object.
    pub handle: H,
    /// The rings.
    pub rings: Result<R>,
}

/// The rings of a QP.
#[derive(Debug)]
pub struct QpRings<F: Format> {
    /// The send queue's.
    pub send: F::SendRing,
    /// Its parameters, from the attributes and the kernel's answer.
    pub config: SendConfig,
    /// The receive queue's, if it has no SRQ.
    pub recv: Option<F::RecvRing>,
}

/// A device with such queues: its format, its names, and its control calls. [`Soft`](crate::Soft) is its driver.
pub trait Device: Format {
    /// As [`Driver::NAME`](uverbs_core::provider::Driver::NAME).
    const NAME: &'static str;
    /// As [`Driver::DRIVER_ID`](uverbs_core::provider::Driver::DRIVER_ID).
    const DRIVER_ID: u32;
    /// The kernel may give the number of a destroyed QP to the next one at once. Then no QP is created while one is destroyed and its
    /// completions are removed.
    const REUSES_QP_NUMBERS: bool;

    /// Flushes receive queues.
    type FlushBell: FlushBell + 'static;
    /// Arms completion queues.
    type ArmBell: ArmBell + 'static;

    /// The bell of a receive queue's QP, or of an SRQ.
    fn flush_bell(kernel: &KernelRef, handle: u32) -> Self::FlushBell;

    /// The bell of a CQ.
    fn arm_bell(kernel: &KernelRef, handle: u32) -> Self::ArmBell;

    /// Opens a context.
    ///
    /// # Errors
    /// The kernel refuses the context, or its answer is not one of this driver.
    fn open(kernel: &KernelRef) -> Result<(Self, ContextInfo)>;

    /// Creates a CQ whose flags and fields all such devices have.
    ///
    /// # Errors
    /// The kernel refuses.
    fn create_cq(
        &self,
        kernel: &KernelRef,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<Created<CqHandle, Self::CqRing>>;

    /// Resizes a CQ, and maps its new ring.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not resize CQs; otherwise the kernel refuses. With `EPROTO` the kernel has resized the
    /// queue, and its answer is invalid.
    fn resize_cq(&self, kernel: &KernelRef, handle: &CqHandle, cqe: u32) -> Result<Result<Self::CqRing>> {
        let _ = (kernel, handle, cqe);
        Err(Error::unsupported("resize_cq", format!("{} does not resize CQs", Self::NAME)))
    }

    /// Creates a basic SRQ. Returns its sizes, too.
    ///
    /// # Errors
    /// The kernel refuses.
    fn create_srq(
        &self,
        kernel: &KernelRef,
        parents: SrqParents<'_>,
        attr: &SrqInitAttr,
        user_handle: u64,
    ) -> Result<(Created<SrqHandle, Self::RecvRing>, SrqAttr)>;

    /// Changes an SRQ whose WRs have up to `max_sge` entries. Returns its new ring if it was resized.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not resize SRQs; otherwise the kernel refuses.
    fn modify_srq(
        &self,
        kernel: &KernelRef,
        handle: &SrqHandle,
        attr: &SrqAttr,
        mask: SrqAttrMask,
        max_sge: u32,
    ) -> Result<Option<Result<Self::RecvRing>>> {
        let _ = (kernel, max_sge);
        if mask.contains(SrqAttrMask::MAX_WR) {
            return Err(Error::unsupported("modify_srq", format!("{} does not resize SRQs", Self::NAME)));
        }
        handle.modify(attr, mask, Uhw::none()).map(|()| None)
    }

    /// Refuses features of a QP that the device does not have, before the kernel is called.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as above.
    fn check_qp(&self, kernel: &KernelRef, attr: &QpInitAttr) -> Result<()>;

    /// Creates a QP. Returns its limits, too; the sizes of the queues are those of the rings.
    ///
    /// # Errors
    /// The kernel refuses.
    fn create_qp(
        &self,
        kernel: &KernelRef,
        parents: QpParents<'_>,
        attr: &QpInitAttr,
        user_handle: u64,
    ) -> Result<(Created<QpHandle, QpRings<Self>>, QpCap)>;

    /// `ibv_modify_qp`; it stores the state for the queues in the QP's shared part. No other such call runs for the QP.
    ///
    /// # Errors
    /// The transition or an attribute is not allowed, or the kernel refuses.
    fn modify_qp(&self, qp: &Qp<Self>, attr: &QpAttr, mask: QpAttrMask) -> Result<()>;

    /// Stores a state that the QP has in the kernel, which may have left it since. siw's posters know more.
    fn store_state(shared: &QpShared<Self>, state: QpState) {
        shared.set_state(state);
    }

    /// Corrects what the kernel reports of a QP. siw's kernel does not report the state.
    fn correct(&self, qp: &Qp<Self>, attr: &mut QpAttr) {
        let _ = (qp, attr);
    }

    /// As [`QpObject::is_flushed`](uverbs_core::provider::QpObject::is_flushed).
    fn is_flushed(shared: &QpShared<Self>) -> bool {
        let _ = shared;
        false
    }

    /// Creates an address handle.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no datagrams; otherwise the kernel refuses.
    fn create_ah(&self, kernel: &KernelRef, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Self::Ah)> {
        let _ = (kernel, pd, attr);
        Err(Error::unsupported("create_ah", format!("{} has no datagrams", Self::NAME)))
    }

    /// Registers memory.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device lacks an access right or another address; otherwise the kernel refuses.
    ///
    /// # Safety
    /// As [`control::mr::reg`].
    unsafe fn reg_mr(
        &self,
        core: CoreSupport,
        pd: &PdHandle,
        range: MrRange,
        access: AccessFlags,
    ) -> Result<MrHandle> {
        // SAFETY: the contract of this function.
        unsafe { control::mr::reg(core, pd, range, access, Uhw::none()) }
    }
}

/// The doorbell of a QP.
pub(crate) fn send_bell(kernel: &KernelRef, handle: u32) -> KernelBell {
    KernelBell::new(Arc::clone(kernel), handle)
}

/// Maps memory of a ring.
///
/// # Errors
/// The errno of the kernel.
pub fn map_ring(kernel: &KernelRef, verb: &'static str, offset: u64, len: usize) -> Result<Mapping> {
    map_queue(&**kernel, verb, "ring", (offset, len), Protection::ReadWrite)
}

/// The error if the kernel's ring makes no sense.
pub fn corrupt(verb: &'static str, what: impl fmt::Display) -> Error {
    Error::protocol(verb, format!("the kernel's ring: {what}"))
}
