// SPDX-License-Identifier: MIT OR Apache-2.0
//! The verbs of a driver behind a trait, which the exported functions call, because they are not generic over the
//! driver.

#![expect(unsafe_code)]
// UNSAFETY: passes on the contracts of C's functions.

use crate::abi::attr::ibv_srq_init_attr_ex;
use crate::abi::context::ibv_context;
use crate::abi::object::{ibv_cq, ibv_srq};
use crate::abi::qp::{ibv_qp, ibv_qp_init_attr_ex};
use crate::abi::wq::{ibv_wq, ibv_wq_init_attr};
use crate::errno::Outcome;
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
use uverbs_core::provider::{DmParts, Driver};
use uverbs_core::wr::IbvAh;

/// A thread domain of some driver.
pub(crate) type AnyTd = Box<dyn Any + Send + Sync>;

/// An opened device and its driver.
pub(crate) struct Open<D: Driver> {
    pub(crate) driver: D,
    pub(crate) core_support: CoreSupport,
    pub(crate) num_comp_vectors: u32,
}

/// The verbs that depend on the driver.
///
/// # Safety of the verbs
/// Pointers are valid and are those of objects that exist and were created in the context of this driver; pointers to
/// parents may be NULL. Further requirements are those of the verb's man page.
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
    unsafe fn reg_mr(&self, pd: &PdHandle, range: MrRange, access: AccessFlags) -> Outcome<MrHandle>;
    unsafe fn import_pd(&self, handle: u32) -> Outcome<PdHandle>;
    unsafe fn import_dm(&self, handle: u32) -> Outcome<DmParts>;

    unsafe fn create_cq(&self, context: *mut ibv_context, request: &CqRequest<'_>) -> Outcome<*mut ibv_cq>;
    unsafe fn resize_cq(&self, cq: *mut ibv_cq, cqe: u32) -> Outcome<()>;
    unsafe fn moderate_cq(&self, cq: *mut ibv_cq, count: u16, period: u16) -> Outcome<()>;
    unsafe fn cq_event(&self, cq: *mut ibv_cq);
    unsafe fn destroy_cq(&self, cq: *mut ibv_cq) -> Outcome<()>;

    unsafe fn create_srq(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_srq_init_attr_ex,
    ) -> Outcome<*mut ibv_srq>;
    unsafe fn modify_srq(&self, srq: *mut ibv_srq, attr: &SrqAttr, mask: SrqAttrMask) -> Outcome<()>;
    unsafe fn query_srq(&self, srq: *mut ibv_srq) -> Outcome<SrqAttr>;
    unsafe fn srq_num(&self, srq: *mut ibv_srq) -> Outcome<u32>;
    unsafe fn destroy_srq(&self, srq: *mut ibv_srq) -> Outcome<()>;

    unsafe fn create_qp(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Outcome<*mut ibv_qp>;
    unsafe fn open_qp(
        &self,
        context: *mut ibv_context,
        xrcd: *mut crate::abi::object::ibv_xrcd,
        qp_num: u32,
    ) -> Outcome<*mut ibv_qp>;
    unsafe fn modify_qp(&self, qp: *mut ibv_qp, attr: &QpAttr, mask: QpAttrMask) -> Outcome<()>;
    unsafe fn query_qp(&self, qp: *mut ibv_qp, mask: QpAttrMask) -> Outcome<(QpAttr, bool)>;
    unsafe fn query_ece(&self, qp: *mut ibv_qp) -> Outcome<Ece>;
    unsafe fn set_ece(&self, qp: *mut ibv_qp, ece: Ece) -> Outcome<()>;
    unsafe fn modify_qp_rate_limit(&self, qp: *mut ibv_qp, attr: &QpRateLimitAttr) -> Outcome<()>;
    unsafe fn has_builder(&self, qp: *mut ibv_qp) -> bool;
    unsafe fn qp_handle<'a>(&self, qp: *mut ibv_qp) -> &'a QpHandle;
    unsafe fn destroy_qp(&self, qp: *mut ibv_qp) -> Outcome<()>;

    unsafe fn create_wq(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_wq_init_attr,
    ) -> Outcome<*mut ibv_wq>;
    unsafe fn modify_wq(&self, wq: *mut ibv_wq, attr: &WqAttr) -> Outcome<()>;
    unsafe fn destroy_wq(&self, wq: *mut ibv_wq) -> Outcome<()>;
    unsafe fn create_table(&self, wqs: &[*mut ibv_wq]) -> Outcome<RwqIndTableHandle>;

    unsafe fn create_flow(
        &self,
        qp: *mut ibv_qp,
        attr: &FlowAttr,
        counters: Option<&CountersHandle>,
    ) -> Outcome<FlowHandle>;

    unsafe fn create_ah(&self, pd: *mut crate::abi::object::ibv_pd, attr: &AhAttr) -> Outcome<*mut IbvAh>;
    unsafe fn destroy_ah(&self, ah: *mut IbvAh) -> Outcome<()>;
}

/// Methods that are functions of the object's module.
macro_rules! delegate {
    ($($(#[$meta:meta])* $name:ident => $module:ident::$function:ident ( $($arg:ident: $ty:ty),* ) -> $out:ty;)*) => {
        $(
            unsafe fn $name(&self, $($arg: $ty),*) -> $out {
                // SAFETY: this method and the function have the same contract, that of [`Verbs`].
                unsafe { $module::$function(self, $($arg),*) }
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

    delegate! {
        create_cq => cq::create(context: *mut ibv_context, request: &CqRequest<'_>) -> Outcome<*mut ibv_cq>;
        resize_cq => cq::resize(cq: *mut ibv_cq, cqe: u32) -> Outcome<()>;
        moderate_cq => cq::moderate(cq: *mut ibv_cq, count: u16, period: u16) -> Outcome<()>;
        cq_event => cq::event(cq: *mut ibv_cq) -> ();
        destroy_cq => cq::destroy(cq: *mut ibv_cq) -> Outcome<()>;
        create_srq => srq::create(context: *mut ibv_context, attr: &mut ibv_srq_init_attr_ex) -> Outcome<*mut ibv_srq>;
        modify_srq => srq::modify(srq: *mut ibv_srq, attr: &SrqAttr, mask: SrqAttrMask) -> Outcome<()>;
        query_srq => srq::query(srq: *mut ibv_srq) -> Outcome<SrqAttr>;
        srq_num => srq::number(srq: *mut ibv_srq) -> Outcome<u32>;
        destroy_srq => srq::destroy(srq: *mut ibv_srq) -> Outcome<()>;
        create_qp => qp::create(context: *mut ibv_context, attr: &mut ibv_qp_init_attr_ex) -> Outcome<*mut ibv_qp>;
        open_qp => qp::open(
            context: *mut ibv_context,
            xrcd: *mut crate::abi::object::ibv_xrcd,
            qp_num: u32
        ) -> Outcome<*mut ibv_qp>;
        modify_qp => qp::modify(qp: *mut ibv_qp, attr: &QpAttr, mask: QpAttrMask) -> Outcome<()>;
        query_qp => qp::query(qp: *mut ibv_qp, mask: QpAttrMask) -> Outcome<(QpAttr, bool)>;
        query_ece => qp::query_ece(qp: *mut ibv_qp) -> Outcome<Ece>;
        set_ece => qp::set_ece(qp: *mut ibv_qp, ece: Ece) -> Outcome<()>;
        modify_qp_rate_limit => qp::modify_rate_limit(qp: *mut ibv_qp, attr: &QpRateLimitAttr) -> Outcome<()>;
        has_builder => qp::has_builder(qp: *mut ibv_qp) -> bool;
        destroy_qp => qp::destroy(qp: *mut ibv_qp) -> Outcome<()>;
        create_wq => wq::create(context: *mut ibv_context, attr: &mut ibv_wq_init_attr) -> Outcome<*mut ibv_wq>;
        modify_wq => wq::modify(wq: *mut ibv_wq, attr: &WqAttr) -> Outcome<()>;
        destroy_wq => wq::destroy(wq: *mut ibv_wq) -> Outcome<()>;
        create_table => wq::create_table(wqs: &[*mut ibv_wq]) -> Outcome<RwqIndTableHandle>;
        create_ah => ah::create(pd: *mut crate::abi::object::ibv_pd, attr: &AhAttr) -> Outcome<*mut IbvAh>;
        destroy_ah => ah::destroy(ah: *mut IbvAh) -> Outcome<()>;
    }

    unsafe fn create_flow(
        &self,
        qp: *mut ibv_qp,
        attr: &FlowAttr,
        counters: Option<&CountersHandle>,
    ) -> Outcome<FlowHandle> {
        // SAFETY: `qp` is an existing queue pair of this driver (the contract of [`Verbs`]).
        Ok(self.driver.create_flow(unsafe { qp::handle::<D>(qp) }, attr, counters)?)
    }

    unsafe fn qp_handle<'a>(&self, qp: *mut ibv_qp) -> &'a QpHandle {
        // SAFETY: `qp` is an existing queue pair of this driver (the contract of [`Verbs`]).
        unsafe { qp::handle::<D>(qp) }
    }
}
