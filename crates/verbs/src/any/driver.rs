// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control verbs of each driver.
//!
//! Each verb calls that of the driver that the device has, with the driver's parts: `D::own` takes a part out of the enum, and
//! `D::any` puts one in.
#![expect(unsafe_code)]
// UNSAFETY: passes the contracts of some verbs on to the device's driver.

use super::mkey::AnyMkey;
use super::parts::Part;
use super::send::AnySendQueue;
use super::{Any, AnyDriver, DRIVER_IDS, Member, WqeRemote, WqeSge, parts};
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, AhAttr, CqInitAttr, DeviceAttr, DriverQp, QpType};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CoreSupport, MrHandle, MrRange, PdHandle, XrcdHandle,
};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::{
    CqParts, DmParts, Driver, Import, MkeyObject, QpCreate, QpParts, RssQpCreate, SrqCreate, SrqParts,
    WqCreate, WqParts,
};

/// As [`Member::any`], with a value beside the part.
fn any_with<D: Member, T, P: Part>((beside, part): (T, P::Of<D>)) -> (T, Any<P>) {
    (beside, D::any(part))
}

/// A thread domain of the driver.
fn td<D: Member>(td: Option<&Any<parts::Td>>) -> Result<Option<&D::Td>> {
    td.map(D::own::<parts::Td>).transpose()
}

fn create_cq<D: Member>(
    driver: &D,
    attr: &CqInitAttr,
    channel: Option<&CompChannelHandle>,
    user_handle: u64,
) -> Result<CqParts<AnyDriver>> {
    let CqParts { cq, queue, cqe } = driver.create_cq(attr, channel, user_handle)?;
    Ok(CqParts { cq: D::any(cq), queue: D::any(queue), cqe })
}

fn create_srq<D: Member>(driver: &D, create: &SrqCreate<'_, AnyDriver>) -> Result<SrqParts<AnyDriver>> {
    let SrqCreate { pd, attr, xrc, td: domain, user_handle } = *create;
    let xrc = xrc.map(|(xrcd, cq)| Ok::<_, Error>((xrcd, D::own::<parts::Cq>(cq)?))).transpose()?;
    let own = SrqCreate { pd, attr, xrc, td: td::<D>(domain)?, user_handle };
    let SrqParts { srq, queue, attr } = driver.create_srq(&own)?;
    Ok(SrqParts { srq: D::any(srq), queue: D::any(queue), attr })
}

/// # Safety
/// As [`Driver::create_qp`].
unsafe fn create_qp<D: Member>(driver: &D, create: &QpCreate<'_, AnyDriver>) -> Result<QpParts<AnyDriver>> {
    let own = QpCreate {
        pd: create.pd,
        send_cq: create.send_cq.map(D::own::<parts::Cq>).transpose()?,
        recv_cq: create.recv_cq.map(D::own::<parts::Cq>).transpose()?,
        srq: create.srq.map(D::own::<parts::Srq>).transpose()?,
        xrcd: create.xrcd,
        attr: create.attr,
        td: td::<D>(create.td)?,
        exclusive: create.exclusive,
        data_in_completions: create.data_in_completions,
        user_handle: create.user_handle,
    };
    // SAFETY: the contract of this function.
    let QpParts { qp, send, recv, cap } = unsafe { driver.create_qp(&own) }?;
    let is_datagram = match create.attr.qp_type {
        QpType::Ud => true,
        QpType::Driver => driver.driver_qp() == Some(DriverQp::Srd),
        _ => false,
    };
    Ok(QpParts {
        qp: D::any(qp),
        send: send.map(|queue| AnySendQueue::new(D::any(queue), is_datagram)),
        recv: recv.map(D::any),
        cap,
    })
}

fn create_wq<D: Member>(driver: &D, create: &WqCreate<'_, AnyDriver>) -> Result<WqParts<AnyDriver>> {
    let WqCreate { pd, cq, attr, user_handle } = *create;
    let own = WqCreate { pd, cq: D::own::<parts::Cq>(cq)?, attr, user_handle };
    let WqParts { wq, queue, attr } = driver.create_wq(&own)?;
    Ok(WqParts { wq: D::any(wq), queue: D::any(queue), attr })
}

impl Import for AnyDriver {
    fn import(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        for_id!("import_device", kernel.driver_id(), D => {
            let (driver, info) = D::import(kernel)?;
            Ok((D::any(driver), info))
        })
    }

    unsafe fn import_pd(&self, handle: u32) -> Result<PdHandle> {
        // SAFETY: the contract of this function is that of the driver's.
        each!(self, driver => unsafe { driver.import_pd(handle) })
    }

    unsafe fn import_dm(&self, handle: u32) -> Result<DmParts> {
        // SAFETY: the contract of this function is that of the driver's.
        each!(self, driver => unsafe { driver.import_dm(handle) })
    }
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
    type Qp = Any<parts::Qp>;
    type Cq = Any<parts::Cq>;
    type Srq = Any<parts::Srq>;
    type Wq = Any<parts::Wq>;
    type Td = Any<parts::Td>;

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        for_id!("open_device", kernel.driver_id(), D => {
            let (driver, info) = D::open(kernel)?;
            Ok((D::any(driver), info))
        })
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        each!(self, driver => driver.kernel())
    }

    fn name(&self) -> &'static str {
        each!(self, driver => driver.name())
    }

    fn driver_qp(&self) -> Option<DriverQp> {
        each!(self, driver => driver.driver_qp())
    }

    fn completes_in_order(&self) -> bool {
        each!(self, driver => driver.completes_in_order())
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

    fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        each!(self, driver => create_cq(driver, attr, channel, user_handle))
    }

    fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        each!(self, driver => create_srq(driver, create))
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        // SAFETY: the contract of this function.
        each!(self, driver => unsafe { create_qp(driver, create) })
    }

    fn open_qp(&self, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<Self::Qp> {
        each!(self, D(driver) => driver.open_qp(xrcd, qp_num, user_handle).map(D::any))
    }

    fn query_raw_clock(&self) -> Result<u64> {
        each!(self, driver => driver.query_raw_clock())
    }

    fn null_lkey(&self) -> Result<u32> {
        each!(self, driver => driver.null_lkey())
    }

    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<DmParts> {
        each!(self, driver => driver.alloc_dm(length, log_align))
    }

    fn create_mkey(&self, pd: &PdHandle, max_entries: u16) -> Result<Box<dyn MkeyObject<AnySendQueue>>> {
        each!(self, D(driver) => Ok(AnyMkey::<D>::of(<D as Driver>::create_mkey(driver, pd, max_entries)?)))
    }

    fn create_wq(&self, create: &WqCreate<'_, Self>) -> Result<WqParts<Self>> {
        each!(self, driver => create_wq(driver, create))
    }

    fn create_rss_qp(&self, create: &RssQpCreate<'_>) -> Result<Self::Qp> {
        each!(self, D(driver) => driver.create_rss_qp(create).map(D::any))
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Self::Ah)> {
        each!(self, D(driver) => driver.create_ah(pd, attr).map(any_with::<D, _, parts::Ah>))
    }

    fn alloc_td(&self) -> Result<Self::Td> {
        each!(self, D(driver) => driver.alloc_td().map(D::any))
    }
}
