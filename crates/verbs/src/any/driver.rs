// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control verbs of each driver.
//!
//! Each verb calls that of the driver that the device has, with the driver's parts: `D::own` takes a part out of the enum, and
//! `D::any` puts one in.
#![expect(unsafe_code)]
// UNSAFETY: passes the contract of the verbs on to the driver that created the object.

use super::parts::Part;
use super::send::AnySendQueue;
use super::{Any, AnyDriver, DRIVER_IDS, Member, WqeRemote, WqeSge, parts};
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, AhAttr, CqInitAttr, DeviceAttr, Ece, FlowAttr, QpAttr, QpAttrMask, QpInitAttr,
    QpRateLimitAttr, QpType, SrqAttr, SrqAttrMask, WqAttr,
};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CoreSupport, CountersHandle, CqHandle, FlowHandle, MrHandle,
    MrRange, PdHandle, QpHandle, SrqHandle, WqHandle, XrcdHandle,
};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::{
    CqParts, DmParts, Driver, QpCreate, QpParts, RssQpCreate, SrqCreate, SrqParts, WqCreate, WqParts,
};

/// A handle, with the driver's shared state.
fn pair<'a, D: Member, H, P: Part>(
    parts: Option<(&'a H, &'a Arc<Any<P>>)>,
) -> Result<Option<(&'a H, &'a P::Of<D>)>> {
    parts.map(|(handle, shared)| Ok((handle, D::own::<P>(shared)?))).transpose()
}

/// As [`Member::any`], with a value beside the part.
fn any_with<D: Member, T, P: Part>((beside, part): (T, P::Of<D>)) -> (T, Any<P>) {
    (beside, D::any(part))
}

/// A thread domain of the driver.
fn td<D: Member>(td: Option<&Any<parts::Td>>) -> Result<Option<&D::Td>> {
    td.map(D::own::<parts::Td>).transpose()
}

/// # Safety
/// As [`Driver::create_cq`].
unsafe fn create_cq<D: Member>(
    driver: &D,
    attr: &CqInitAttr,
    channel: Option<&CompChannelHandle>,
    user_handle: u64,
) -> Result<CqParts<AnyDriver>> {
    // SAFETY: the contract of this function. The parts that the caller keeps contain those of the driver.
    let CqParts { handle, shared, queue, cqe } = unsafe { driver.create_cq(attr, channel, user_handle) }?;
    Ok(CqParts { handle, shared: Arc::new(D::any(shared)), queue: D::any(queue), cqe })
}

/// # Safety
/// As [`Driver::create_srq`].
unsafe fn create_srq<D: Member>(
    driver: &D,
    create: &SrqCreate<'_, AnyDriver>,
) -> Result<SrqParts<AnyDriver>> {
    let SrqCreate { pd, attr, xrc, td: domain, user_handle } = *create;
    let xrc = match xrc {
        Some((xrcd, cq, shared)) => Some((xrcd, cq, D::own::<parts::CqShared>(shared)?)),
        None => None,
    };
    let own = SrqCreate { pd, attr, xrc, td: td::<D>(domain)?, user_handle };
    // SAFETY: all parents are of this context, each with the shared state of the same object (the contract of this
    // function), and the parts that the caller keeps contain those of the driver.
    let SrqParts { handle, shared, queue, attr } = unsafe { driver.create_srq(&own) }?;
    Ok(SrqParts { handle, shared: Arc::new(D::any(shared)), queue: D::any(queue), attr })
}

/// # Safety
/// As [`Driver::create_qp`].
unsafe fn create_qp<D: Member>(driver: &D, create: &QpCreate<'_, AnyDriver>) -> Result<QpParts<AnyDriver>> {
    let own = QpCreate {
        pd: create.pd,
        send_cq: pair::<D, _, parts::CqShared>(create.send_cq)?,
        recv_cq: pair::<D, _, parts::CqShared>(create.recv_cq)?,
        srq: pair::<D, _, parts::SrqShared>(create.srq)?,
        xrcd: create.xrcd,
        attr: create.attr,
        td: td::<D>(create.td)?,
        exclusive: create.exclusive,
        data_in_completions: create.data_in_completions,
        user_handle: create.user_handle,
    };
    // SAFETY: as in `create_srq`.
    let parts = unsafe { driver.create_qp(&own) }?;
    Ok(any_qp(parts, create.attr.qp_type == QpType::Ud))
}

/// The parts of a QP of a driver as those of any.
fn any_qp<D: Member>(parts: QpParts<D>, is_datagram: bool) -> QpParts<AnyDriver> {
    let QpParts { handle, shared, send, recv, cap } = parts;
    QpParts {
        handle,
        shared: Arc::new(D::any(shared)),
        send: send.map(|queue| AnySendQueue::new(D::any(queue), is_datagram)),
        recv: recv.map(D::any),
        cap,
    }
}

/// # Safety
/// As [`Driver::create_wq`].
unsafe fn create_wq<D: Member>(driver: &D, create: &WqCreate<'_, AnyDriver>) -> Result<WqParts<AnyDriver>> {
    let WqCreate { pd, cq: (cq, shared), attr, user_handle } = *create;
    let own = WqCreate { pd, cq: (cq, D::own::<parts::CqShared>(shared)?), attr, user_handle };
    // SAFETY: as in `create_srq`.
    let WqParts { handle, shared, queue, attr } = unsafe { driver.create_wq(&own) }?;
    Ok(WqParts { handle, shared: Arc::new(D::any(shared)), queue: D::any(queue), attr })
}

impl Driver for AnyDriver {
    const NAME: &'static str = "any";
    const DRIVER_ID: u32 = match DRIVER_IDS.first() {
        Some(&id) => id,
        // No driver of the kernel has this number.
        None => u32::MAX,
    };
    const DRIVER_IDS: &'static [u32] = DRIVER_IDS;

    type Sge = WqeSge;
    type Remote = WqeRemote;
    type Ah = Any<parts::Ah>;
    type SendQueue = AnySendQueue;
    type RecvQueue = Any<parts::RecvQueue>;
    type SharedRecvQueue = Any<parts::SharedRecvQueue>;
    type CompletionQueue = Any<parts::CompletionQueue>;
    type QpShared = Any<parts::QpShared>;
    type CqShared = Any<parts::CqShared>;
    type SrqShared = Any<parts::SrqShared>;
    type Td = Any<parts::Td>;

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        for_id!("open_device", kernel.driver_id(), D => {
            let (driver, info) = D::open(kernel)?;
            Ok((D::any(driver), info))
        })
    }

    fn import(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        for_id!("import_device", kernel.driver_id(), D => {
            let (driver, info) = D::import(kernel)?;
            Ok((D::any(driver), info))
        })
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        each!(self, driver => driver.kernel())
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        each!(self, driver => driver.query_device())
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        each!(self, driver => driver.alloc_pd())
    }

    unsafe fn reg_mr(
        &self,
        core: CoreSupport,
        pd: &PdHandle,
        range: MrRange,
        access: AccessFlags,
    ) -> Result<MrHandle> {
        // SAFETY: the contract of this function is that of the driver's.
        each!(self, driver => unsafe { driver.reg_mr(core, pd, range, access) })
    }

    unsafe fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        // SAFETY: the contract of this function.
        each!(self, driver => unsafe { create_cq(driver, attr, channel, user_handle) })
    }

    unsafe fn resize_cq(
        &self,
        handle: &CqHandle,
        queue: &mut Self::CompletionQueue,
        cqe: u32,
    ) -> Result<u32> {
        each!(self, D(driver) => {
            let queue = D::own_mut(queue)?;
            // SAFETY: all parts are of this context (the contract of this function), and so of this driver, whose verb has
            // the same contract. The parts of an enum are dropped where the enum is.
            unsafe { driver.resize_cq(handle, queue, cqe) }
        })
    }

    fn cq_event(&self, shared: &Self::CqShared) {
        each!(self, D(driver) => D::part(shared).map_or((), |shared| driver.cq_event(shared)))
    }

    unsafe fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        // SAFETY: the contract of this function.
        each!(self, driver => unsafe { create_srq(driver, create) })
    }

    fn srq_number(&self, shared: &Self::SrqShared) -> Option<u32> {
        each!(self, D(driver) => driver.srq_number(D::part(shared)?))
    }

    fn close_srq(&self, shared: &Self::SrqShared) {
        each!(self, D(driver) => D::part(shared).map_or((), |shared| driver.close_srq(shared)))
    }

    unsafe fn modify_srq(
        &self,
        handle: &SrqHandle,
        queue: &mut Self::SharedRecvQueue,
        attr: &SrqAttr,
        mask: SrqAttrMask,
    ) -> Result<()> {
        each!(self, D(driver) => {
            let queue = D::own_mut(queue)?;
            // SAFETY: as in `resize_cq`.
            unsafe { driver.modify_srq(handle, queue, attr, mask) }
        })
    }

    unsafe fn destroy_srq(
        &self,
        handle: SrqHandle,
        shared: &Arc<Self::SrqShared>,
    ) -> Result<u32, (SrqHandle, Error)> {
        each!(self, D(driver) => match D::own::<parts::SrqShared>(shared) {
            // SAFETY: as in `resize_cq`.
            Ok(shared) => unsafe { driver.destroy_srq(handle, shared) },
            Err(error) => Err((handle, error)),
        })
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        // SAFETY: the contract of this function.
        each!(self, driver => unsafe { create_qp(driver, create) })
    }

    fn open_qp(&self, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<QpParts<Self>> {
        each!(self, driver => Ok(any_qp(driver.open_qp(xrcd, qp_num, user_handle)?, false)))
    }

    unsafe fn modify_qp(
        &self,
        handle: &QpHandle,
        shared: &Self::QpShared,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()> {
        each!(self, D(driver) => {
            let shared = D::own(shared)?;
            // SAFETY: as in `resize_cq`.
            unsafe { driver.modify_qp(handle, shared, attr, mask) }
        })
    }

    fn query_qp(
        &self,
        handle: &QpHandle,
        shared: &Self::QpShared,
        mask: QpAttrMask,
    ) -> Result<(QpAttr, QpInitAttr)> {
        each!(self, D(driver) => driver.query_qp(handle, D::own(shared)?, mask))
    }

    fn is_flushed(&self, shared: &Self::QpShared) -> bool {
        each!(self, D(driver) => D::part(shared).is_some_and(|shared| driver.is_flushed(shared)))
    }

    fn close_queues(&self, shared: &Self::QpShared) {
        each!(self, D(driver) => D::part(shared).map_or((), |shared| driver.close_queues(shared)))
    }

    fn keep_removed(&self, shared: &Self::QpShared) {
        each!(self, D(driver) => D::part(shared).map_or((), |shared| driver.keep_removed(shared)))
    }

    fn take_removed(&self, shared: &Self::QpShared) -> Vec<u64> {
        each!(self, D(driver) => D::part(shared).map_or_else(Vec::new, |shared| driver.take_removed(shared)))
    }

    fn query_ece(&self, shared: &Self::QpShared) -> Result<Ece> {
        each!(self, D(driver) => driver.query_ece(D::own(shared)?))
    }

    fn set_ece(&self, shared: &Self::QpShared, ece: Ece) -> Result<()> {
        each!(self, D(driver) => driver.set_ece(D::own(shared)?, ece))
    }

    fn modify_qp_rate_limit(&self, handle: &QpHandle, attr: &QpRateLimitAttr) -> Result<()> {
        each!(self, driver => driver.modify_qp_rate_limit(handle, attr))
    }

    fn query_raw_clock(&self) -> Result<u64> {
        each!(self, driver => driver.query_raw_clock())
    }

    unsafe fn destroy_qp(
        &self,
        handle: QpHandle,
        shared: &Arc<Self::QpShared>,
    ) -> Result<u32, (QpHandle, Error)> {
        each!(self, D(driver) => match D::own::<parts::QpShared>(shared) {
            // SAFETY: as in `resize_cq`.
            Ok(shared) => unsafe { driver.destroy_qp(handle, shared) },
            Err(error) => Err((handle, error)),
        })
    }

    fn null_lkey(&self) -> Result<u32> {
        each!(self, driver => driver.null_lkey())
    }

    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<DmParts> {
        each!(self, driver => driver.alloc_dm(length, log_align))
    }

    unsafe fn import_pd(&self, handle: u32) -> Result<PdHandle> {
        // SAFETY: the contract of this function is that of the driver's.
        each!(self, driver => unsafe { driver.import_pd(handle) })
    }

    unsafe fn import_dm(&self, handle: u32) -> Result<DmParts> {
        // SAFETY: the contract of this function is that of the driver's.
        each!(self, driver => unsafe { driver.import_dm(handle) })
    }

    unsafe fn create_wq(&self, create: &WqCreate<'_, Self>) -> Result<WqParts<Self>> {
        // SAFETY: the contract of this function.
        each!(self, driver => unsafe { create_wq(driver, create) })
    }

    unsafe fn modify_wq(&self, handle: &WqHandle, shared: &Self::QpShared, attr: &WqAttr) -> Result<()> {
        each!(self, D(driver) => {
            let shared = D::own(shared)?;
            // SAFETY: as in `resize_cq`.
            unsafe { driver.modify_wq(handle, shared, attr) }
        })
    }

    unsafe fn destroy_wq(
        &self,
        handle: WqHandle,
        shared: &Arc<Self::QpShared>,
    ) -> Result<u32, (WqHandle, Error)> {
        each!(self, D(driver) => match D::own::<parts::QpShared>(shared) {
            // SAFETY: as in `resize_cq`.
            Ok(shared) => unsafe { driver.destroy_wq(handle, shared) },
            Err(error) => Err((handle, error)),
        })
    }

    fn create_rss_qp(&self, create: &RssQpCreate<'_>) -> Result<QpHandle> {
        each!(self, driver => driver.create_rss_qp(create))
    }

    fn create_flow(
        &self,
        qp: &QpHandle,
        attr: &FlowAttr,
        counters: Option<&CountersHandle>,
    ) -> Result<FlowHandle> {
        each!(self, driver => driver.create_flow(qp, attr, counters))
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Self::Ah)> {
        each!(self, D(driver) => driver.create_ah(pd, attr).map(any_with::<D, _, parts::Ah>))
    }

    fn alloc_td(&self) -> Result<Self::Td> {
        each!(self, D(driver) => driver.alloc_td().map(D::any))
    }
}
