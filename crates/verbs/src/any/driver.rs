// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control verbs of each driver.
#![expect(unsafe_code)]
// UNSAFETY: passes the contract of the verbs on to the driver that created the object.

use super::completion::AnyCompletionQueue;
use super::object::{AnyCq, AnyQp, AnySrq, AnyWq};
use super::send::{AnyAh, AnySendQueue};
use super::{Any, AnyDriver, Mlx5, Rxe, Siw, WqeRemote, WqeSge};
use crate::open::DRIVER_IDS;
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, AhAttr, CqInitAttr, DeviceAttr, QpType};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CoreSupport, MrHandle, MrRange, PdHandle, XrcdHandle,
};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::{
    CqParts, DmParts, Driver, QpCreate, QpParts, RssQpCreate, SrqCreate, SrqParts, WqCreate, WqParts,
};

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

macro_rules! create_qp {
    ($variant:ident, $part:ident, $driver:ident, $create:ident) => {{
        let inner = QpCreate {
            pd: $create.pd,
            send_cq: $create.send_cq.map(Any::$part).transpose()?,
            recv_cq: $create.recv_cq.map(Any::$part).transpose()?,
            srq: $create.srq.map(Any::$part).transpose()?,
            xrcd: $create.xrcd,
            attr: $create.attr,
            td: $create.td.map(Any::$part).transpose()?,
            exclusive: $create.exclusive,
            data_in_completions: $create.data_in_completions,
            user_handle: $create.user_handle,
        };
        // SAFETY: the contract of this function is that of the driver's.
        let QpParts { qp, send, recv, cap } = unsafe { $driver.create_qp(&inner) }?;
        let is_datagram = $create.attr.qp_type == QpType::Ud;
        QpParts {
            qp: Any::$variant(qp),
            send: send.map(|queue| AnySendQueue::new(Any::$variant(queue), is_datagram)),
            recv: recv.map(Any::$variant),
            cap,
        }
    }};
}

macro_rules! create_srq {
    ($variant:ident, $part:ident, $driver:ident, $create:ident) => {{
        let xrc = match $create.xrc {
            Some((xrcd, cq)) => Some((xrcd, cq.$part()?)),
            None => None,
        };
        let inner = SrqCreate {
            pd: $create.pd,
            attr: $create.attr,
            xrc,
            td: $create.td.map(Any::$part).transpose()?,
            user_handle: $create.user_handle,
        };
        let SrqParts { srq, queue, attr } = $driver.create_srq(&inner)?;
        SrqParts { srq: Any::$variant(srq), queue: Any::$variant(queue), attr }
    }};
}

macro_rules! create_wq {
    ($variant:ident, $part:ident, $driver:ident, $create:ident) => {{
        let inner = WqCreate {
            pd: $create.pd,
            cq: $create.cq.$part()?,
            attr: $create.attr,
            user_handle: $create.user_handle,
        };
        let WqParts { wq, queue, attr } = $driver.create_wq(&inner)?;
        WqParts { wq: Any::$variant(wq), queue: Any::$variant(queue), attr }
    }};
}

macro_rules! create_cq {
    ($variant:ident, $driver:ident, $attr:ident, $channel:ident, $user_handle:ident) => {{
        let CqParts { cq, queue, cqe } = $driver.create_cq($attr, $channel, $user_handle)?;
        CqParts { cq: Any::$variant(cq), queue: Any::$variant(queue), cqe }
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
    type Cq = AnyCq;
    type Srq = AnySrq;
    type Wq = AnyWq;
    type Qp = AnyQp;
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

    fn create_cq(
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

    fn create_srq(&self, create: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        Ok(match self {
            Self::Mlx5(driver) => create_srq!(Mlx5, mlx5, driver, create),
            Self::Rxe(driver) => create_srq!(Rxe, rxe, driver, create),
            Self::Siw(driver) => create_srq!(Siw, siw, driver, create),
        })
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        Ok(match self {
            Self::Mlx5(driver) => create_qp!(Mlx5, mlx5, driver, create),
            Self::Rxe(driver) => create_qp!(Rxe, rxe, driver, create),
            Self::Siw(driver) => create_qp!(Siw, siw, driver, create),
        })
    }

    fn open_qp(&self, xrcd: &XrcdHandle, qp_num: u32, user_handle: u64) -> Result<AnyQp> {
        Ok(match self {
            Self::Mlx5(driver) => Any::Mlx5(driver.open_qp(xrcd, qp_num, user_handle)?),
            Self::Rxe(driver) => Any::Rxe(driver.open_qp(xrcd, qp_num, user_handle)?),
            Self::Siw(driver) => Any::Siw(driver.open_qp(xrcd, qp_num, user_handle)?),
        })
    }

    fn query_raw_clock(&self) -> Result<u64> {
        forward!(self.query_raw_clock())
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

    fn create_wq(&self, create: &WqCreate<'_, Self>) -> Result<WqParts<Self>> {
        Ok(match self {
            Self::Mlx5(driver) => create_wq!(Mlx5, mlx5, driver, create),
            Self::Rxe(driver) => create_wq!(Rxe, rxe, driver, create),
            Self::Siw(driver) => create_wq!(Siw, siw, driver, create),
        })
    }

    fn create_rss_qp(&self, create: &RssQpCreate<'_>) -> Result<AnyQp> {
        Ok(match self {
            Self::Mlx5(driver) => Any::Mlx5(driver.create_rss_qp(create)?),
            Self::Rxe(driver) => Any::Rxe(driver.create_rss_qp(create)?),
            Self::Siw(driver) => Any::Siw(driver.create_rss_qp(create)?),
        })
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
