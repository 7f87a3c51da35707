// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dynamic connections, an extension of some drivers (mlx5): one initiator QP reaches any number of targets; the device
//! connects it to the target of each work request.
//!
//! The initiator is a QP of transport [`Dci`]: [`ProtectionDomain::dci`] begins its creation, and its work requests
//! begin with `wr_dc`. Its states are those of an RC QP without a peer: [`QpControl::connect_dci`]. The target is a
//! [`DcTarget`], which receives into an SRQ. See mlx5dv_create_qp(3) and mlx5dv_wr_post(3).

use crate::brief::brief;
use crate::connect::ConnectAttr;
use crate::context::{ContextInner, Object, nobody};
use crate::event::QpEvents;
use crate::open::AnyDriver;
use crate::pd::{PdInner, ProtectionDomain};
use crate::raw::cq::{Cq, CqInner};
use crate::raw::srq::{Srq, SrqInner};
use crate::{
    qp::{Dci, QpControl},
    raw::create::QpBuilder,
};
use std::sync::Arc;
use uverbs_core::attr::{AhAttr, QpAttr, QpAttrMask, QpState};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::{DcDriver, DctCreate, Driver, Life, QpObject as _};
use uverbs_core::sync::{Exclusive, Locking};

impl<D: DcDriver> ProtectionDomain<D> {
    /// Begins the creation of an initiator. It has no receive queue, so the receive sizes must be 0. Both CQs are
    /// required, as for any QP.
    pub fn raw_dci(&self) -> QpBuilder<'_, Dci, Exclusive, D> {
        QpBuilder::in_domain(self)
    }

    /// Creates a target, in state RESET. Initiators that have `dc_key` can reach it.
    ///
    /// # Errors
    /// `Unsupported` if the device has no DC; [`Error::Invalid`] for parts of another context; otherwise the kernel's
    /// error.
    pub fn create_dct<LC: Locking, LS: Locking>(
        &self,
        cq: &Cq<LC, D>,
        srq: &Srq<LS, D>,
        dc_key: u64,
    ) -> Result<DcTarget<D>> {
        self.new_dct(cq, srq, dc_key, false)
    }

    /// As [`create_dct`](Self::create_dct); the device may put short data of receives into their completions.
    ///
    /// # Errors
    /// As `create_dct`.
    ///
    /// # Safety
    /// As [`QpBuilder::data_in_completions`], of the receives of `srq`.
    #[expect(unsafe_code, reason = "addresses of entries become pointers")]
    pub unsafe fn create_dct_with_data_in_completions<LC: Locking, LS: Locking>(
        &self,
        cq: &Cq<LC, D>,
        srq: &Srq<LS, D>,
        dc_key: u64,
    ) -> Result<DcTarget<D>> {
        self.new_dct(cq, srq, dc_key, true)
    }

    fn new_dct<LC: Locking, LS: Locking>(
        &self,
        cq: &Cq<LC, D>,
        srq: &Srq<LS, D>,
        dc_key: u64,
        data_in_completions: bool,
    ) -> Result<DcTarget<D>> {
        let context = self.inner().context();
        let event_id = context.remember_object(Object::Qp(QpEvents::new(0), nobody()));
        let create = || {
            let create = DctCreate {
                pd: self.inner().handle()?,
                cq: cq.inner().object()?,
                srq: srq.inner().object()?,
                dc_key,
                data_in_completions,
                user_handle: event_id,
            };
            #[expect(unsafe_code, reason = "data in completions")]
            // SAFETY: data in completions are requested only under the contract of `create_dct_with_data_in_completions`.
            let parts = unsafe { context.driver().create_dct(&create) };
            parts
        };
        let qp = create().inspect_err(|_| context.forget_object(event_id))?;
        srq.inner().has_user(&qp);
        Ok(DcTarget {
            object: Life::new("qp", qp),
            event_id,
            _cq: cq.inner().clone(),
            srq: srq.inner().clone(),
            _pd: self.inner().clone(),
            context: context.clone(),
        })
    }
}

impl<D: DcDriver> QpControl<D> {
    /// An initiator from RESET to RTS.
    ///
    /// # Errors
    /// As [`modify`](Self::modify).
    pub fn connect_dci(&self, attr: &ConnectAttr) -> Result<()> {
        // The attributes that `modify_dci_qp_is_ok()` of mlx5_ib requires.
        let init = QpAttr::new().qp_state(QpState::INIT).pkey_index(attr.pkey_index).port_num(attr.port_num);
        self.modify(&init, QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT)?;
        let rtr = QpAttr::new().qp_state(QpState::RTR).path_mtu(attr.mtu_on(self.context())?);
        self.modify(&rtr, QpAttrMask::STATE | QpAttrMask::PATH_MTU)?;
        let rts = QpAttr::new()
            .qp_state(QpState::RTS)
            .timeout(attr.timeout)
            .retry_cnt(attr.retry_cnt)
            .rnr_retry(attr.rnr_retry)
            .max_rd_atomic(attr.max_rd_atomic);
        let mask = QpAttrMask::STATE
            | QpAttrMask::TIMEOUT
            | QpAttrMask::RETRY_CNT
            | QpAttrMask::RNR_RETRY
            | QpAttrMask::MAX_QP_RD_ATOMIC
            | QpAttrMask::SQ_PSN;
        self.modify(&rts, mask)
    }
}

/// The target of dynamic connections: it receives into an SRQ, and every initiator that has its key can read and write
/// the memory of its domain.
pub struct DcTarget<D: Driver = AnyDriver> {
    object: Life<D::Qp>,
    event_id: u64,
    _cq: Arc<CqInner<D>>,
    srq: Arc<SrqInner<D>>,
    _pd: Arc<PdInner<D>>,
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] DcTarget<D>, |this| "DcTarget {:#x} of {}", this.object.object().ok().and_then(D::Qp::dct_number).unwrap_or(0), this.context.name());

impl<D: DcDriver> DcTarget<D> {
    /// Its number, by which initiators name it; `None` before RTR.
    #[must_use]
    pub fn dctn(&self) -> Option<u32> {
        self.object.object().ok()?.dct_number()
    }

    /// `ibv_modify_qp`: to INIT or RTR.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()> {
        let object = self.object.object()?;
        let before = object.dct_number();
        object.modify(attr, mask)?;
        if let (None, Some(dctn)) = (before, object.dct_number()) {
            self.context.update_object(self.event_id, Object::Qp(QpEvents::new(dctn), nobody()));
        }
        Ok(())
    }

    /// Changes it from RESET to RTR and returns its number. `path` has the attributes of its responses: source GID,
    /// traffic class, hop limit.
    ///
    /// # Errors
    /// The kernel's error for one of the transitions.
    pub fn connect(&self, attr: &ConnectAttr, path: &AhAttr) -> Result<u32> {
        let init = QpAttr::new()
            .qp_state(QpState::INIT)
            .pkey_index(attr.pkey_index)
            .port_num(attr.port_num)
            .qp_access_flags(attr.access);
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
        self.modify(&init, mask)?;
        let rtr = QpAttr::new()
            .qp_state(QpState::RTR)
            .path_mtu(attr.mtu_on(&self.context)?)
            .min_rnr_timer(attr.min_rnr_timer)
            .ah_attr(*path);
        let mask = QpAttrMask::STATE | QpAttrMask::PATH_MTU | QpAttrMask::MIN_RNR_TIMER | QpAttrMask::AV;
        self.modify(&rtr, mask)?;
        self.dctn().ok_or_else(|| Error::protocol("modify_qp", "no number of the DC target"))
    }

    /// Destroys it and reports a failure, which `Drop` would only log.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn close(mut self) -> Result<()> {
        self.destroy()
    }
}

impl<D: Driver> DcTarget<D> {
    fn destroy(&mut self) -> Result<()> {
        self.context.forget_object(self.event_id);
        if let Some(end) = self.object.end()? {
            self.srq.take_back(&end.removed);
        }
        Ok(())
    }
}

impl<D: Driver> Drop for DcTarget<D> {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            log::error!("{error}");
        }
    }
}
