// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control verbs of each driver.
#![expect(unsafe_code)]
// UNSAFETY: passes the contract of the verbs on to the driver that created the object.

use super::completion::AnyCompletionQueue;
use super::send::{AnyAh, AnySendQueue};
use super::{Any, AnyDriver, Mlx5, Rxe, Siw, WqeRemote, WqeSge, foreign};
use crate::open::DRIVER_IDS;
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

/// A driver's shared state of a queue.
type Shared<M, R, S> = Any<Arc<M>, Arc<R>, Arc<S>>;

/// A handle, with the shared state of the driver.
fn pair<'a, H, S, P>(
    parts: Option<(&'a H, &'a S)>,
    part: impl FnOnce(&'a S) -> Result<&'a P>,
) -> Result<Option<(&'a H, &'a P)>> {
    parts.map(|(handle, shared)| Ok((handle, part(shared)?))).transpose()
}

/// The same call of the driver that the device has.
macro_rules! forward {
    ($self:ident.$verb:ident($($arg:expr),*)) => {
        match $self {
            Self::Mlx5(driver) => driver.$verb($($arg),*),
            Self::Rxe(driver) => driver.$verb($($arg),*),
            Self::Siw(driver) => driver.$verb($($arg),*),
        }
    };
}

/// As `forward`, for a verb with the contract of [`Driver`] and a part that belongs to the driver.
macro_rules! forward_with {
    ($self:ident, $part:expr, |$driver:ident, $inner:ident| $call:expr, else $foreign:expr) => {
        match ($self, $part) {
            // SAFETY: all parts are of this context (the contract of this function), and so of this driver, whose verb
            // has the same contract. The parts of an enum are dropped where the enum is.
            (Self::Mlx5($driver), Any::Mlx5($inner)) => unsafe { $call },
            // SAFETY: as above.
            (Self::Rxe($driver), Any::Rxe($inner)) => unsafe { $call },
            // SAFETY: as above.
            (Self::Siw($driver), Any::Siw($inner)) => unsafe { $call },
            _ => $foreign,
        }
    };
}

/// Converts the parts of a QP to those of this driver.
macro_rules! qp_parts {
    ($variant:ident, $parts:expr, $is_datagram:expr) => {{
        let QpParts { handle, shared, send, recv, cap } = $parts;
        QpParts {
            handle,
            shared: Arc::new(Any::$variant(shared)),
            send: send.map(|queue| AnySendQueue::new(Any::$variant(queue), $is_datagram)),
            recv: recv.map(Any::$variant),
            cap,
        }
    }};
}

macro_rules! create_qp {
    ($variant:ident, $part:ident, $driver:ident, $create:ident) => {{
        let inner = QpCreate {
            pd: $create.pd,
            send_cq: pair($create.send_cq, |shared| shared.$part())?,
            recv_cq: pair($create.recv_cq, |shared| shared.$part())?,
            srq: pair($create.srq, |shared| shared.$part())?,
            xrcd: $create.xrcd,
            attr: $create.attr,
            td: $create.td.map(Any::$part).transpose()?,
            exclusive: $create.exclusive,
            data_in_completions: $create.data_in_completions,
            user_handle: $create.user_handle,
        };
        // SAFETY: all parents are of this context, each with the shared state of the same object (the contract of this
        // function), and the parts that the caller keeps contain those of the driver.
        let parts = unsafe { $driver.create_qp(&inner) }?;
        qp_parts!($variant, parts, $create.attr.qp_type == QpType::Ud)
    }};
}

macro_rules! create_srq {
    ($variant:ident, $part:ident, $driver:ident, $create:ident) => {{
        let xrc = match $create.xrc {
            Some((xrcd, cq, shared)) => Some((xrcd, cq, shared.$part()?)),
            None => None,
        };
        let inner = SrqCreate {
            pd: $create.pd,
            attr: $create.attr,
            xrc,
            td: $create.td.map(Any::$part).transpose()?,
            user_handle: $create.user_handle,
        };
        // SAFETY: as in `create_qp`.
        let SrqParts { handle, shared, queue, attr } = unsafe { $driver.create_srq(&inner) }?;
        SrqParts { handle, shared: Arc::new(Any::$variant(shared)), queue: Any::$variant(queue), attr }
    }};
}

macro_rules! create_wq {
    ($variant:ident, $part:ident, $driver:ident, $create:ident) => {{
        let cq = ($create.cq.0, $create.cq.1.$part()?);
        let inner = WqCreate { pd: $create.pd, cq, attr: $create.attr, user_handle: $create.user_handle };
        // SAFETY: as in `create_qp`.
        let WqParts { handle, shared, queue, attr } = unsafe { $driver.create_wq(&inner) }?;
        WqParts { handle, shared: Arc::new(Any::$variant(shared)), queue: Any::$variant(queue), attr }
    }};
}

macro_rules! create_cq {
    ($variant:ident, $driver:ident, $attr:ident, $channel:ident, $user_handle:ident) => {{
        // SAFETY: as in `create_qp`.
        let parts = unsafe { $driver.create_cq($attr, $channel, $user_handle) }?;
        let CqParts { handle, shared, queue, cqe } = parts;
        CqParts { handle, shared: Arc::new(Any::$variant(shared)), queue: Any::$variant(queue), cqe }
    }};
}

impl Driver for AnyDriver {
    const NAME: &'static str = "any";
    const DRIVER_ID: u32 = DRIVER_IDS[0];
    const DRIVER_IDS: &'static [u32] = DRIVER_IDS;

    type Sge = WqeSge;
    type Remote = WqeRemote;
    type Ah = AnyAh;
    type SendQueue = AnySendQueue;
    type RecvQueue = Any<<Mlx5 as Driver>::RecvQueue, <Rxe as Driver>::RecvQueue, <Siw as Driver>::RecvQueue>;
    type SharedRecvQueue = Any<
        <Mlx5 as Driver>::SharedRecvQueue,
        <Rxe as Driver>::SharedRecvQueue,
        <Siw as Driver>::SharedRecvQueue,
    >;
    type CompletionQueue = AnyCompletionQueue;
    type QpShared = Shared<<Mlx5 as Driver>::QpShared, <Rxe as Driver>::QpShared, <Siw as Driver>::QpShared>;
    type CqShared = Shared<<Mlx5 as Driver>::CqShared, <Rxe as Driver>::CqShared, <Siw as Driver>::CqShared>;
    type SrqShared =
        Shared<<Mlx5 as Driver>::SrqShared, <Rxe as Driver>::SrqShared, <Siw as Driver>::SrqShared>;
    type Td = Any<<Mlx5 as Driver>::Td, <Rxe as Driver>::Td, <Siw as Driver>::Td>;

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        match kernel.driver_id() {
            Mlx5::DRIVER_ID => Mlx5::open(kernel).map(|(driver, info)| (Self::Mlx5(driver), info)),
            Rxe::DRIVER_ID => Rxe::open(kernel).map(|(driver, info)| (Self::Rxe(driver), info)),
            Siw::DRIVER_ID => Siw::open(kernel).map(|(driver, info)| (Self::Siw(driver), info)),
            other => Err(Error::unsupported("open_device", format!("no driver for driver id {other}"))),
        }
    }

    fn import(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        match kernel.driver_id() {
            Mlx5::DRIVER_ID => Mlx5::import(kernel).map(|(driver, info)| (Self::Mlx5(driver), info)),
            Rxe::DRIVER_ID => Rxe::import(kernel).map(|(driver, info)| (Self::Rxe(driver), info)),
            Siw::DRIVER_ID => Siw::import(kernel).map(|(driver, info)| (Self::Siw(driver), info)),
            other => Err(Error::unsupported("import_device", format!("no driver for driver id {other}"))),
        }
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        forward!(self.kernel())
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        forward!(self.query_device())
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        forward!(self.alloc_pd())
    }

    unsafe fn reg_mr(
        &self,
        core: CoreSupport,
        pd: &PdHandle,
        range: MrRange,
        access: AccessFlags,
    ) -> Result<MrHandle> {
        match self {
            // SAFETY: the contract of this function is that of the driver's.
            Self::Mlx5(driver) => unsafe { driver.reg_mr(core, pd, range, access) },
            // SAFETY: as above.
            Self::Rxe(driver) => unsafe { driver.reg_mr(core, pd, range, access) },
            // SAFETY: as above.
            Self::Siw(driver) => unsafe { driver.reg_mr(core, pd, range, access) },
        }
    }

    unsafe fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        Ok(match self {
            Self::Mlx5(driver) => create_cq!(Mlx5, driver, attr, channel, user_handle),
            Self::Rxe(driver) => create_cq!(Rxe, driver, attr, channel, user_handle),
            Self::Siw(driver) => create_cq!(Siw, driver, attr, channel, user_handle),
        })
    }

    unsafe fn resize_cq(
        &self,
        handle: &CqHandle,
        queue: &mut Self::CompletionQueue,
        cqe: u32,
    ) -> Result<u32> {
        forward_with!(self, queue, |driver, queue| driver.resize_cq(handle, queue, cqe), else Err(foreign()))
    }

    fn cq_event(&self, shared: &Self::CqShared) {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.cq_event(shared),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.cq_event(shared),
            (Self::Siw(driver), Any::Siw(shared)) => driver.cq_event(shared),
            _ => {}
        }
    }

    unsafe fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        Ok(match self {
            Self::Mlx5(driver) => create_srq!(Mlx5, mlx5, driver, create),
            Self::Rxe(driver) => create_srq!(Rxe, rxe, driver, create),
            Self::Siw(driver) => create_srq!(Siw, siw, driver, create),
        })
    }

    fn srq_number(&self, shared: &Self::SrqShared) -> Option<u32> {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.srq_number(shared),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.srq_number(shared),
            (Self::Siw(driver), Any::Siw(shared)) => driver.srq_number(shared),
            _ => None,
        }
    }

    fn close_srq(&self, shared: &Self::SrqShared) {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.close_srq(shared),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.close_srq(shared),
            (Self::Siw(driver), Any::Siw(shared)) => driver.close_srq(shared),
            _ => {}
        }
    }

    unsafe fn modify_srq(
        &self,
        handle: &SrqHandle,
        queue: &mut Self::SharedRecvQueue,
        attr: &SrqAttr,
        mask: SrqAttrMask,
    ) -> Result<()> {
        forward_with!(
            self, queue, |driver, queue| driver.modify_srq(handle, queue, attr, mask), else Err(foreign())
        )
    }

    unsafe fn destroy_srq(
        &self,
        handle: SrqHandle,
        shared: &Arc<Self::SrqShared>,
    ) -> Result<u32, (SrqHandle, Error)> {
        forward_with!(
            self, &**shared, |driver, shared| driver.destroy_srq(handle, shared), else Err((handle, foreign()))
        )
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        Ok(match self {
            Self::Mlx5(driver) => create_qp!(Mlx5, mlx5, driver, create),
            Self::Rxe(driver) => create_qp!(Rxe, rxe, driver, create),
            Self::Siw(driver) => create_qp!(Siw, siw, driver, create),
        })
    }

    fn open_qp(&self, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<QpParts<Self>> {
        Ok(match self {
            Self::Mlx5(driver) => qp_parts!(Mlx5, driver.open_qp(xrcd, qp_num, user_handle)?, false),
            Self::Rxe(driver) => qp_parts!(Rxe, driver.open_qp(xrcd, qp_num, user_handle)?, false),
            Self::Siw(driver) => qp_parts!(Siw, driver.open_qp(xrcd, qp_num, user_handle)?, false),
        })
    }

    unsafe fn modify_qp(
        &self,
        handle: &QpHandle,
        shared: &Self::QpShared,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()> {
        forward_with!(
            self, shared, |driver, shared| driver.modify_qp(handle, shared, attr, mask), else Err(foreign())
        )
    }

    fn query_qp(
        &self,
        handle: &QpHandle,
        shared: &Self::QpShared,
        mask: QpAttrMask,
    ) -> Result<(QpAttr, QpInitAttr)> {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.query_qp(handle, shared, mask),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.query_qp(handle, shared, mask),
            (Self::Siw(driver), Any::Siw(shared)) => driver.query_qp(handle, shared, mask),
            _ => Err(foreign()),
        }
    }

    fn is_flushed(&self, shared: &Self::QpShared) -> bool {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.is_flushed(shared),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.is_flushed(shared),
            (Self::Siw(driver), Any::Siw(shared)) => driver.is_flushed(shared),
            _ => false,
        }
    }

    fn close_queues(&self, shared: &Self::QpShared) {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.close_queues(shared),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.close_queues(shared),
            (Self::Siw(driver), Any::Siw(shared)) => driver.close_queues(shared),
            _ => {}
        }
    }

    fn keep_removed(&self, shared: &Self::QpShared) {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.keep_removed(shared),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.keep_removed(shared),
            (Self::Siw(driver), Any::Siw(shared)) => driver.keep_removed(shared),
            _ => {}
        }
    }

    fn take_removed(&self, shared: &Self::QpShared) -> Vec<u64> {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.take_removed(shared),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.take_removed(shared),
            (Self::Siw(driver), Any::Siw(shared)) => driver.take_removed(shared),
            _ => Vec::new(),
        }
    }

    fn query_ece(&self, shared: &Self::QpShared) -> Result<Ece> {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.query_ece(shared),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.query_ece(shared),
            (Self::Siw(driver), Any::Siw(shared)) => driver.query_ece(shared),
            _ => Err(foreign()),
        }
    }

    fn set_ece(&self, shared: &Self::QpShared, ece: Ece) -> Result<()> {
        match (self, shared) {
            (Self::Mlx5(driver), Any::Mlx5(shared)) => driver.set_ece(shared, ece),
            (Self::Rxe(driver), Any::Rxe(shared)) => driver.set_ece(shared, ece),
            (Self::Siw(driver), Any::Siw(shared)) => driver.set_ece(shared, ece),
            _ => Err(foreign()),
        }
    }

    fn modify_qp_rate_limit(&self, handle: &QpHandle, attr: &QpRateLimitAttr) -> Result<()> {
        forward!(self.modify_qp_rate_limit(handle, attr))
    }

    fn query_raw_clock(&self) -> Result<u64> {
        forward!(self.query_raw_clock())
    }

    unsafe fn destroy_qp(
        &self,
        handle: QpHandle,
        shared: &Arc<Self::QpShared>,
    ) -> Result<u32, (QpHandle, Error)> {
        forward_with!(
            self, &**shared, |driver, shared| driver.destroy_qp(handle, shared), else Err((handle, foreign()))
        )
    }

    fn null_lkey(&self) -> Result<u32> {
        forward!(self.null_lkey())
    }

    fn alloc_dm(&self, length: u64, log_align: u32) -> Result<DmParts> {
        forward!(self.alloc_dm(length, log_align))
    }

    unsafe fn import_pd(&self, handle: u32) -> Result<PdHandle> {
        match self {
            // SAFETY: the contract of this function is that of the driver's.
            Self::Mlx5(driver) => unsafe { driver.import_pd(handle) },
            // SAFETY: as above.
            Self::Rxe(driver) => unsafe { driver.import_pd(handle) },
            // SAFETY: as above.
            Self::Siw(driver) => unsafe { driver.import_pd(handle) },
        }
    }

    unsafe fn import_dm(&self, handle: u32) -> Result<DmParts> {
        match self {
            // SAFETY: the contract of this function is that of the driver's.
            Self::Mlx5(driver) => unsafe { driver.import_dm(handle) },
            // SAFETY: as above.
            Self::Rxe(driver) => unsafe { driver.import_dm(handle) },
            // SAFETY: as above.
            Self::Siw(driver) => unsafe { driver.import_dm(handle) },
        }
    }

    unsafe fn create_wq(&self, create: &WqCreate<'_, Self>) -> Result<WqParts<Self>> {
        Ok(match self {
            Self::Mlx5(driver) => create_wq!(Mlx5, mlx5, driver, create),
            Self::Rxe(driver) => create_wq!(Rxe, rxe, driver, create),
            Self::Siw(driver) => create_wq!(Siw, siw, driver, create),
        })
    }

    unsafe fn modify_wq(&self, handle: &WqHandle, shared: &Self::QpShared, attr: &WqAttr) -> Result<()> {
        forward_with!(
            self, shared, |driver, shared| driver.modify_wq(handle, shared, attr), else Err(foreign())
        )
    }

    unsafe fn destroy_wq(
        &self,
        handle: WqHandle,
        shared: &Arc<Self::QpShared>,
    ) -> Result<u32, (WqHandle, Error)> {
        forward_with!(
            self, &**shared, |driver, shared| driver.destroy_wq(handle, shared), else Err((handle, foreign()))
        )
    }

    fn create_rss_qp(&self, create: &RssQpCreate<'_>) -> Result<QpHandle> {
        forward!(self.create_rss_qp(create))
    }

    fn create_flow(
        &self,
        qp: &QpHandle,
        attr: &FlowAttr,
        counters: Option<&CountersHandle>,
    ) -> Result<FlowHandle> {
        forward!(self.create_flow(qp, attr, counters))
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, AnyAh)> {
        match self {
            Self::Mlx5(driver) => driver.create_ah(pd, attr).map(|(handle, ah)| (handle, Any::Mlx5(ah))),
            Self::Rxe(driver) => driver.create_ah(pd, attr).map(|(handle, ah)| (handle, Any::Rxe(ah))),
            Self::Siw(driver) => driver.create_ah(pd, attr).map(|(handle, ah)| (handle, Any::Siw(ah))),
        }
    }

    fn alloc_td(&self) -> Result<Self::Td> {
        match self {
            Self::Mlx5(driver) => driver.alloc_td().map(Any::Mlx5),
            Self::Rxe(driver) => driver.alloc_td().map(Any::Rxe),
            Self::Siw(driver) => driver.alloc_td().map(Any::Siw),
        }
    }
}
