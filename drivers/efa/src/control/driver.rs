// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of the verbs.
#![expect(unsafe_code)]
// UNSAFETY: implements an `unsafe fn` of `Driver`, whose contract this device does not need: it has no data in completions.

use super::object::{Cq, Qp};
use super::{CqOptions, Efa, QpOptions, query_device};
use crate::wqe::Ah;
use crate::{CompletionQueue, RecvQueue, SendQueue};
use std::sync::Arc;
use uverbs_core::Result;
use uverbs_core::attr::{AhAttr, CqInitAttr, DeviceAttr, DriverQp};
use uverbs_core::control::{AhHandle, CompChannelHandle, ContextInfo, PdHandle, pd};
use uverbs_core::device::{DriverMatch, PciId};
use uverbs_core::kernel::{Kernel, Uhw};
use uverbs_core::provider::{
    CqParts, Driver, Import, NoSrq, NoWq, QpCreate, QpParts, RemoteAddr, same_context,
};
use uverbs_core::wr::Sge;
use uverbs_efa_hw::io::TxWqe;
use uverbs_efa_hw::regs::{PCI_DEV_ID_EFA0_VF, PCI_VENDOR_ID_AMAZON};
use uverbs_uapi::efa::efa_ibv_alloc_pd_resp;
use uverbs_uapi::verbs::RDMA_DRIVER_EFA;
use zerocopy::IntoBytes;

impl Import for Efa {}

/// The ids of the generations differ in the last digit.
fn is_efa(id: PciId) -> bool {
    id.vendor == PCI_VENDOR_ID_AMAZON && id.device & !0xf == PCI_DEV_ID_EFA0_VF
}

impl Driver for Efa {
    const NAME: &'static str = "efa";
    const DRIVER_ID: u32 = RDMA_DRIVER_EFA;
    const MATCH: DriverMatch = DriverMatch { driver_id: RDMA_DRIVER_EFA, pci: is_efa };

    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;
    type SendQueue = SendQueue;
    type RecvQueue = RecvQueue;
    type SharedRecvQueue = RecvQueue;
    type CompletionQueue = CompletionQueue;
    type Qp = Qp;
    type Cq = Cq;
    type Srq = NoSrq<RecvQueue>;
    type Wq = NoWq;
    // It has no resources: each QP has doorbells of its own.
    type Td = ();

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        Self::open_context(kernel)
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        &self.kernel
    }

    fn driver_qp(&self) -> Option<DriverQp> {
        Some(DriverQp::Srd)
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        let (mut attr, _) = query_device(&self.kernel, &self.limits)?;
        // A send queue is limited by its memory, too.
        attr.max_qp_wr = attr.max_qp_wr.min(self.limits.max_llq_size / size_of::<TxWqe>() as u32);
        Ok(attr)
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        let mut resp = efa_ibv_alloc_pd_resp::default();
        pd::alloc(&self.kernel, Uhw::answer(resp.as_mut_bytes()))
    }

    fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        self.new_cq(attr, CqOptions::default(), channel, user_handle)
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        self.new_qp(create, QpOptions::default())
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Ah)> {
        same_context("create_ah", &self.kernel, &[("pd", Some(pd.kernel()))])?;
        Self::new_ah(pd, attr)
    }

    fn alloc_td(&self) -> Result<()> {
        Ok(())
    }
}
