// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of the verbs.
#![expect(unsafe_code)]
// UNSAFETY: the verbs of `Driver` have contracts, which the operations on kernel handles rely on.

use super::{CqOptions, Efa, QpOptions, Queues};
use crate::wqe::Ah;
use crate::{CompletionQueue, CqShared, QpShared, RecvQueue, SendQueue};
use std::sync::Arc;
use uverbs_core::attr::{AhAttr, CqInitAttr, DeviceAttr, QpAttr, QpAttrMask, SrqAttr, SrqAttrMask};
use uverbs_core::control::{
    AhHandle, CompChannelHandle, ContextInfo, CqHandle, PdHandle, QpHandle, QpParents, SrqHandle, pd,
};
use uverbs_core::kernel::{Kernel, Uhw};
use uverbs_core::provider::state::StateWord;
use uverbs_core::provider::{
    CompletionQueue as _, CqParts, Driver, QpCreate, QpParts, RemoteAddr, SrqCreate, SrqParts,
};
use uverbs_core::wr::Sge;
use uverbs_core::{Error, Result};
use uverbs_uapi::efa::efa_ibv_alloc_pd_resp;
use uverbs_uapi::verbs::RDMA_DRIVER_EFA;
use zerocopy::IntoBytes;

/// The state of a shared receive queue, which the device does not have.
#[derive(Debug)]
pub enum NoSrq {}

/// A thread domain. It has no resources: each QP has doorbells of its own.
#[derive(Debug)]
pub struct ThreadDomain(());

/// The parents of a QP.
fn parents<'a>(create: &QpCreate<'a, Efa>) -> QpParents<'a> {
    QpParents {
        pd: create.pd,
        send_cq: create.send_cq.map(|(cq, _)| cq),
        recv_cq: create.recv_cq.map(|(cq, _)| cq),
        srq: create.srq.map(|(srq, _)| srq),
        xrcd: create.xrcd,
    }
}

impl Driver for Efa {
    const NAME: &'static str = "efa";
    const DRIVER_ID: u32 = RDMA_DRIVER_EFA;

    type Sge = Sge;
    type Remote = RemoteAddr;
    type Ah = Ah;
    type SendQueue = SendQueue;
    type RecvQueue = RecvQueue;
    type SharedRecvQueue = RecvQueue;
    type CompletionQueue = CompletionQueue;
    type QpShared = QpShared;
    type CqShared = CqShared;
    type SrqShared = NoSrq;
    type Td = ThreadDomain;

    fn open(kernel: Arc<dyn Kernel>) -> Result<(Self, ContextInfo)> {
        Self::open_context(kernel)
    }

    fn kernel(&self) -> &Arc<dyn Kernel> {
        &self.kernel
    }

    fn query_device(&self) -> Result<DeviceAttr> {
        self.attributes()
    }

    fn alloc_pd(&self) -> Result<PdHandle> {
        let mut resp = efa_ibv_alloc_pd_resp::default();
        pd::alloc(&self.kernel, Uhw::answer(resp.as_mut_bytes()))
    }

    unsafe fn create_cq(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        let (handle, queue) = self.new_cq(attr, CqOptions::default(), channel, user_handle)?;
        let (shared, cqe) = (Arc::clone(queue.shared()), queue.cqe());
        Ok(CqParts { handle, shared, queue, cqe })
    }

    unsafe fn resize_cq(&self, _: &CqHandle, _: &mut CompletionQueue, _: u32) -> Result<u32> {
        Err(Error::unsupported("resize_cq", "efa does not resize CQs"))
    }

    fn cq_event(&self, shared: &CqShared) {
        shared.count_event();
    }

    unsafe fn create_srq(&self, _: &SrqCreate<'_, Self>) -> Result<SrqParts<Self>> {
        Err(Error::unsupported("create_srq", "efa has no shared receive queues"))
    }

    unsafe fn modify_srq(&self, _: &SrqHandle, _: &mut RecvQueue, _: &SrqAttr, _: SrqAttrMask) -> Result<()> {
        Err(Error::unsupported("modify_srq", "efa has no shared receive queues"))
    }

    unsafe fn create_qp(&self, create: &QpCreate<'_, Self>) -> Result<QpParts<Self>> {
        let (Some((_, send)), Some((_, recv))) = (create.send_cq, create.recv_cq) else {
            return Err(Error::unsupported("create_qp", format!("efa has no {} QPs", create.attr.qp_type)));
        };
        let queues = self.new_qp(
            parents(create),
            (send, recv),
            create.attr,
            QpOptions::default(),
            create.user_handle,
        )?;
        let Queues { handle, shared, send, recv, cap } = queues;
        Ok(QpParts { handle, shared, send: Some(send), recv: Some(recv), cap })
    }

    unsafe fn modify_qp(
        &self,
        handle: &QpHandle,
        shared: &QpShared,
        attr: &QpAttr,
        mask: QpAttrMask,
    ) -> Result<()> {
        // SAFETY: the two belong together ([`Driver`], "Safety of the verbs").
        unsafe { Self::change_qp(handle, shared, attr, mask) }
    }

    fn close_queues(&self, shared: &QpShared) {
        shared.open(StateWord::REMOVED);
    }

    unsafe fn destroy_qp(&self, handle: QpHandle, shared: &Arc<QpShared>) -> Result<u32, (QpHandle, Error)> {
        // SAFETY: the two belong together ([`Driver`], "Safety of the verbs").
        unsafe { self.end_qp(handle, shared) }
    }

    fn create_ah(&self, pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Ah)> {
        Self::new_ah(pd, attr)
    }

    fn alloc_td(&self) -> Result<ThreadDomain> {
        Ok(ThreadDomain(()))
    }
}
