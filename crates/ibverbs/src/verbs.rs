// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs of a driver behind a trait, which the exported functions call, because they are not generic over the
//! driver.

#![expect(unsafe_code)]
// UNSAFETY: passes on the contracts of C's functions.

use crate::abi::attr::ibv_srq_init_attr_ex;
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_cq, ibv_pd, ibv_srq, ibv_xrcd};
use crate::abi::qp::{ibv_qp, ibv_qp_init_attr_ex};
use crate::abi::wq::{ibv_wq, ibv_wq_init_attr};
use crate::arg::Arg;
use crate::context::Private;
use crate::errno::{Errno, Outcome};
use crate::live::{Claim, Live, Used};
use crate::object::cq::CqRequest;
use crate::object::{ah, cq, qp, srq, wq};
use core::any::Any;
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, AhAttr, DeviceAttr, Ece, FlowAttr, QpAttr, QpAttrMask, QpRateLimitAttr, SrqAttr,
    SrqAttrMask, WqAttr,
};
use uverbs_core::control::{
    CoreSupport, CountersHandle, FlowHandle, MrHandle, MrRange, PdHandle, QpHandle, RwqIndTableHandle,
};
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::{DmParts, Driver, Object as _, QpObject as _};
use uverbs_core::wr::IbvAh;

/// A thread domain of some driver.
pub(crate) type AnyTd = Box<dyn Any + Send + Sync>;

/// An opened device and its driver.
pub(crate) struct Open<D: Driver> {
    pub(crate) driver: D,
    pub(crate) core_support: CoreSupport,
    pub(crate) num_comp_vectors: u32,
}

/// The driver of a context, `EOPNOTSUPP` if it is another one.
pub(crate) fn driver<D: Driver>(here: &Private) -> Outcome<&Open<D>> {
    here.verbs().as_any().downcast_ref().ok_or(Errno::EOPNOTSUPP)
}

/// The verbs that depend on the driver. An object of another driver's context is `EINVAL`.
pub(crate) trait Verbs: Send + Sync {
    /// The [`Open`] of its driver, for functions that only one driver has.
    fn as_any(&self) -> &dyn Any;
    fn kernel(&self) -> &Arc<dyn Kernel>;
    fn core_support(&self) -> CoreSupport;
    fn query_device(&self) -> Outcome<DeviceAttr>;
    fn alloc_pd(&self) -> Outcome<PdHandle>;
    fn alloc_td(&self) -> Outcome<AnyTd>;
    fn null_lkey(&self) -> Outcome<u32>;
    fn raw_clock(&self) -> Outcome<u64>;
    fn alloc_dm(&self, length: u64, log_align: u32) -> Outcome<DmParts>;
    /// # Safety
    /// As in ibv_reg_mr(3).
    unsafe fn reg_mr(&self, pd: &PdHandle, range: MrRange, access: AccessFlags) -> Outcome<MrHandle>;
    /// # Safety
    /// As in ibv_import_pd(3).
    unsafe fn import_pd(&self, handle: u32) -> Outcome<PdHandle>;
    /// # Safety
    /// As in ibv_import_dm(3).
    unsafe fn import_dm(&self, handle: u32) -> Outcome<DmParts>;

    fn create_cq(&self, context: Arg<'_, ibv_context>, request: &CqRequest<'_>) -> Outcome<*mut ibv_cq>;
    fn resize_cq(&self, cq: &Live<'_, ibv_cq>, cqe: u32) -> Outcome<()>;
    fn moderate_cq(&self, cq: &Live<'_, ibv_cq>, count: u16, period: u16) -> Outcome<()>;
    /// # Safety
    /// `cq` is a queue of a context of this driver, which is not freed during the call.
    unsafe fn cq_event(&self, cq: *mut ibv_cq);
    fn destroy_cq(&self, cq: Claim<'_, ibv_cq>) -> Outcome<()>;

    fn create_srq(
        &self,
        context: Arg<'_, ibv_context>,
        attr: &mut ibv_srq_init_attr_ex,
        parents: &srq::Parents<'_>,
    ) -> Outcome<*mut ibv_srq>;
    fn modify_srq(&self, srq: &Live<'_, ibv_srq>, attr: &SrqAttr, mask: SrqAttrMask) -> Outcome<()>;
    fn query_srq(&self, srq: &Live<'_, ibv_srq>) -> Outcome<SrqAttr>;
    fn srq_num(&self, srq: &Live<'_, ibv_srq>) -> Outcome<u32>;
    fn destroy_srq(&self, srq: Claim<'_, ibv_srq>) -> Outcome<()>;

    /// # Safety
    /// The key of the hash in `attr` is valid for reads.
    unsafe fn create_qp(
        &self,
        context: Arg<'_, ibv_context>,
        attr: &mut ibv_qp_init_attr_ex,
        parents: &qp::Parents<'_>,
    ) -> Outcome<*mut ibv_qp>;
    fn open_qp(
        &self,
        context: Arg<'_, ibv_context>,
        xrcd: &Live<'_, ibv_xrcd>,
        qp_num: u32,
    ) -> Outcome<*mut ibv_qp>;
    fn modify_qp(&self, qp: &Live<'_, ibv_qp>, attr: &QpAttr, mask: QpAttrMask) -> Outcome<()>;
    fn query_qp(&self, qp: &Live<'_, ibv_qp>, mask: QpAttrMask) -> Outcome<(QpAttr, bool)>;
    fn query_ece(&self, qp: &Live<'_, ibv_qp>) -> Outcome<Ece>;
    fn set_ece(&self, qp: &Live<'_, ibv_qp>, ece: Ece) -> Outcome<()>;
    fn modify_qp_rate_limit(&self, qp: &Live<'_, ibv_qp>, attr: &QpRateLimitAttr) -> Outcome<()>;
    fn has_builder(&self, qp: &Live<'_, ibv_qp>) -> Outcome<bool>;
    fn qp_handle<'a>(&self, qp: &'a Live<'_, ibv_qp>) -> Outcome<&'a QpHandle>;
    fn destroy_qp(&self, qp: Claim<'_, ibv_qp>) -> Outcome<()>;

    fn create_wq(
        &self,
        context: Arg<'_, ibv_context>,
        attr: &mut ibv_wq_init_attr,
        parents: &wq::Parents<'_>,
    ) -> Outcome<*mut ibv_wq>;
    fn modify_wq(&self, wq: &Live<'_, ibv_wq>, attr: &WqAttr) -> Outcome<()>;
    fn destroy_wq(&self, wq: Claim<'_, ibv_wq>) -> Outcome<()>;
    fn create_table(&self, wqs: &[Used<'_, ibv_wq>]) -> Outcome<RwqIndTableHandle>;

    fn create_flow(
        &self,
        qp: &Live<'_, ibv_qp>,
        attr: &FlowAttr,
        counters: Option<&CountersHandle>,
    ) -> Outcome<FlowHandle>;

    fn create_ah(&self, pd: &Live<'_, ibv_pd>, attr: &AhAttr) -> Outcome<*mut IbvAh>;
    fn destroy_ah(&self, ah: Claim<'_, IbvAh>) -> Outcome<()>;
}

/// Methods that are functions of the object's module.
macro_rules! delegate {
    ($($name:ident => $module:ident::$function:ident ( $($arg:ident: $ty:ty),* ) -> $out:ty;)*) => {
        $(
            fn $name(&self, $($arg: $ty),*) -> $out {
                $module::$function(self, $($arg),*)
            }
        )*
    };
}

impl<D: Driver> Verbs for Open<D> {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        self.driver.kernel()
    }

    fn core_support(&self) -> CoreSupport {
        self.core_support
    }

    fn query_device(&self) -> Outcome<DeviceAttr> {
        Ok(self.driver.query_device()?)
    }

    fn alloc_pd(&self) -> Outcome<PdHandle> {
        Ok(self.driver.alloc_pd()?)
    }

    fn alloc_td(&self) -> Outcome<AnyTd> {
        Ok(Box::new(self.driver.alloc_td()?))
    }

    unsafe fn reg_mr(&self, pd: &PdHandle, range: MrRange, access: AccessFlags) -> Outcome<MrHandle> {
        // SAFETY: the memory stays valid as long as it is registered (the contract of ibv_reg_mr(3)).
        Ok(unsafe { self.driver.reg_mr(self.core_support, pd, range, access) }?)
    }

    fn raw_clock(&self) -> Outcome<u64> {
        Ok(self.driver.query_raw_clock()?)
    }

    fn null_lkey(&self) -> Outcome<u32> {
        Ok(self.driver.null_lkey()?)
    }

    fn alloc_dm(&self, length: u64, log_align: u32) -> Outcome<DmParts> {
        Ok(self.driver.alloc_dm(length, log_align)?)
    }

    unsafe fn import_pd(&self, handle: u32) -> Outcome<PdHandle> {
        // SAFETY: the number is that of a domain that the program may use (contract of the man page).
        Ok(unsafe { self.driver.import_pd(handle) }?)
    }

    unsafe fn import_dm(&self, handle: u32) -> Outcome<DmParts> {
        // SAFETY: the number is that of memory that the program may use (contract of the man page).
        Ok(unsafe { self.driver.import_dm(handle) }?)
    }

    unsafe fn cq_event(&self, cq: *mut ibv_cq) {
        // SAFETY: `cq` is a queue of this driver, which is not freed during the call (contract of this function).
        unsafe { cq::private::<D>(cq) }.notify().cq_event();
    }

    unsafe fn create_qp(
        &self,
        context: Arg<'_, ibv_context>,
        attr: &mut ibv_qp_init_attr_ex,
        parents: &qp::Parents<'_>,
    ) -> Outcome<*mut ibv_qp> {
        // SAFETY: the contract of this function.
        unsafe { qp::create(self, context, attr, parents) }
    }

    delegate! {
        create_cq => cq::create(context: Arg<'_, ibv_context>, request: &CqRequest<'_>) -> Outcome<*mut ibv_cq>;
        resize_cq => cq::resize(cq: &Live<'_, ibv_cq>, cqe: u32) -> Outcome<()>;
        moderate_cq => cq::moderate(cq: &Live<'_, ibv_cq>, count: u16, period: u16) -> Outcome<()>;
        destroy_cq => cq::destroy(cq: Claim<'_, ibv_cq>) -> Outcome<()>;
        create_srq => srq::create(
            context: Arg<'_, ibv_context>,
            attr: &mut ibv_srq_init_attr_ex,
            parents: &srq::Parents<'_>
        ) -> Outcome<*mut ibv_srq>;
        modify_srq => srq::modify(srq: &Live<'_, ibv_srq>, attr: &SrqAttr, mask: SrqAttrMask) -> Outcome<()>;
        query_srq => srq::query(srq: &Live<'_, ibv_srq>) -> Outcome<SrqAttr>;
        srq_num => srq::number(srq: &Live<'_, ibv_srq>) -> Outcome<u32>;
        destroy_srq => srq::destroy(srq: Claim<'_, ibv_srq>) -> Outcome<()>;
        open_qp => qp::open(
            context: Arg<'_, ibv_context>,
            xrcd: &Live<'_, ibv_xrcd>,
            qp_num: u32
        ) -> Outcome<*mut ibv_qp>;
        modify_qp => qp::modify(qp: &Live<'_, ibv_qp>, attr: &QpAttr, mask: QpAttrMask) -> Outcome<()>;
        query_qp => qp::query(qp: &Live<'_, ibv_qp>, mask: QpAttrMask) -> Outcome<(QpAttr, bool)>;
        query_ece => qp::query_ece(qp: &Live<'_, ibv_qp>) -> Outcome<Ece>;
        set_ece => qp::set_ece(qp: &Live<'_, ibv_qp>, ece: Ece) -> Outcome<()>;
        modify_qp_rate_limit => qp::modify_rate_limit(qp: &Live<'_, ibv_qp>, attr: &QpRateLimitAttr) -> Outcome<()>;
        destroy_qp => qp::destroy(qp: Claim<'_, ibv_qp>) -> Outcome<()>;
        create_wq => wq::create(
            context: Arg<'_, ibv_context>,
            attr: &mut ibv_wq_init_attr,
            parents: &wq::Parents<'_>
        ) -> Outcome<*mut ibv_wq>;
        modify_wq => wq::modify(wq: &Live<'_, ibv_wq>, attr: &WqAttr) -> Outcome<()>;
        destroy_wq => wq::destroy(wq: Claim<'_, ibv_wq>) -> Outcome<()>;
        create_table => wq::create_table(wqs: &[Used<'_, ibv_wq>]) -> Outcome<RwqIndTableHandle>;
        create_ah => ah::create(pd: &Live<'_, ibv_pd>, attr: &AhAttr) -> Outcome<*mut IbvAh>;
        destroy_ah => ah::destroy(ah: Claim<'_, IbvAh>) -> Outcome<()>;
    }

    fn has_builder(&self, qp: &Live<'_, ibv_qp>) -> Outcome<bool> {
        Ok(qp.own_of(self)?.has_builder)
    }

    fn create_flow(
        &self,
        qp: &Live<'_, ibv_qp>,
        attr: &FlowAttr,
        counters: Option<&CountersHandle>,
    ) -> Outcome<FlowHandle> {
        Ok(qp::of(self, qp)?.create_flow(attr, counters)?)
    }

    fn qp_handle<'a>(&self, qp: &'a Live<'_, ibv_qp>) -> Outcome<&'a QpHandle> {
        Ok(qp::of(self, qp)?.handle())
    }
}
