// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters and the results of the verbs that create objects with queues.
//!
//! A `…Create` has what the verb needs; the parts are separate values: the kernel's handle, the shared state, the engines
//! (see [Safety of the verbs](Driver#safety-of-the-verbs)).

use super::driver::Driver;
use crate::attr::{QpCap, QpInitAttr, RxHashConf, SrqAttr, SrqInitAttr, WqInitAttr};
use crate::control::{
    CqHandle, DmHandle, PdHandle, QpHandle, RwqIndTableHandle, SrqHandle, WqHandle, XrcdHandle,
};
use crate::kernel::DeviceMapping;
use std::sync::Arc;

/// A new completion queue.
#[derive(Debug)]
pub struct CqParts<D: Driver> {
    /// The kernel's object.
    pub handle: CqHandle,
    /// For the QPs that complete to it.
    pub shared: Arc<D::CqShared>,
    /// The engine.
    pub queue: D::CompletionQueue,
    /// The number of completions that fit, which is at least the number requested.
    pub cqe: u32,
}

/// The parameters of a new SRQ.
#[derive(Debug)]
pub struct SrqCreate<'a, D: Driver> {
    /// Its protection domain.
    pub pd: &'a PdHandle,
    /// Sizes and type.
    pub attr: &'a SrqInitAttr,
    /// For [`SrqType::Xrc`](crate::attr::SrqType): the domain, and the CQ that its receives complete to.
    pub xrc: Option<(&'a XrcdHandle, &'a CqHandle, &'a Arc<D::CqShared>)>,
    /// Thread domain, if its PD is a parent domain with one.
    pub td: Option<&'a D::Td>,
    /// The `user_handle` of its events.
    pub user_handle: u64,
}

/// A new shared receive queue.
#[derive(Debug)]
pub struct SrqParts<D: Driver> {
    /// The kernel's object.
    pub handle: SrqHandle,
    /// For the QPs and CQs that use it.
    pub shared: Arc<D::SrqShared>,
    /// The engine.
    pub queue: D::SharedRecvQueue,
    /// Its sizes as created, which are at least those requested.
    pub attr: SrqAttr,
}

/// The parameters of a new QP.
#[derive(Debug)]
pub struct QpCreate<'a, D: Driver> {
    /// Its protection domain; `None` for XRC receive QPs.
    pub pd: Option<&'a PdHandle>,
    /// Completes its sends; `None` for XRC receive QPs.
    pub send_cq: Option<(&'a CqHandle, &'a Arc<D::CqShared>)>,
    /// Completes its receives; `None` for XRC QPs.
    pub recv_cq: Option<(&'a CqHandle, &'a Arc<D::CqShared>)>,
    /// The SRQ that it uses instead of a receive queue.
    pub srq: Option<(&'a SrqHandle, &'a Arc<D::SrqShared>)>,
    /// The domain of an XRC receive QP.
    pub xrcd: Option<&'a XrcdHandle>,
    /// Type, sizes, operations.
    pub attr: &'a QpInitAttr,
    /// Thread domain, if its PD is a parent domain with one.
    pub td: Option<&'a D::Td>,
    /// One thread at a time posts to its send queue, so a dedicated doorbell register needs no lock.
    pub exclusive: bool,
    /// The device may put short data of receives, reads and atomics into their completions. The driver then copies
    /// them, by the CPU, to the address in the entry of the work request.
    pub data_in_completions: bool,
    /// Comes back in its events.
    pub user_handle: u64,
}

/// A new queue pair.
#[derive(Debug)]
pub struct QpParts<D: Driver> {
    /// The kernel's object.
    pub handle: QpHandle,
    /// For the control path.
    pub shared: Arc<D::QpShared>,
    /// Send engine; `None` for XRC receive QPs.
    pub send: Option<D::SendQueue>,
    /// Receive engine; `None` for QPs with an SRQ and XRC QPs.
    pub recv: Option<D::RecvQueue>,
    /// Its sizes as created, which are at least those requested.
    pub cap: QpCap,
}

/// New device memory.
#[derive(Debug)]
pub struct DmParts {
    /// The kernel's object.
    pub handle: DmHandle,
    /// Its mapping in this process.
    pub mapping: DeviceMapping,
    /// Offset of its first byte in the mapping.
    pub start: usize,
}

/// The parameters of a new work queue.
#[derive(Debug)]
pub struct WqCreate<'a, D: Driver> {
    /// Its protection domain.
    pub pd: &'a PdHandle,
    /// Completes its receives.
    pub cq: (&'a CqHandle, &'a Arc<D::CqShared>),
    /// Sizes and flags.
    pub attr: &'a WqInitAttr,
    /// The `user_handle` of its events.
    pub user_handle: u64,
}

/// A new work queue.
#[derive(Debug)]
pub struct WqParts<D: Driver> {
    /// The kernel's object.
    pub handle: WqHandle,
    /// For the control path.
    pub shared: Arc<D::QpShared>,
    /// The engine.
    pub queue: D::RecvQueue,
    /// Its sizes as created, which are at least those requested.
    pub attr: WqInitAttr,
}

/// The parameters of a new QP that distributes packets to work queues.
#[derive(Debug)]
pub struct RssQpCreate<'a> {
    /// Its protection domain.
    pub pd: &'a PdHandle,
    /// The work queues.
    pub table: &'a RwqIndTableHandle,
    /// The hash function and the fields that it hashes.
    pub hash: RxHashConf<'a>,
    /// The `user_handle` of its events.
    pub user_handle: u64,
}

/// The parameters of a new DC target.
#[derive(Debug)]
pub struct DctCreate<'a, D: Driver> {
    /// Its protection domain.
    pub pd: &'a PdHandle,
    /// Completes its receives.
    pub cq: (&'a CqHandle, &'a Arc<D::CqShared>),
    /// Takes its receives.
    pub srq: (&'a SrqHandle, &'a Arc<D::SrqShared>),
    /// The access key that initiators must use.
    pub dc_key: u64,
    /// As [`QpCreate::data_in_completions`], of the receives of its SRQ.
    pub data_in_completions: bool,
    /// The `user_handle` of its events.
    pub user_handle: u64,
}

/// A new DC target.
#[derive(Debug)]
pub struct DctParts<D: Driver> {
    /// The kernel's object.
    pub handle: QpHandle,
    /// For the control path.
    pub shared: Arc<D::QpShared>,
}
