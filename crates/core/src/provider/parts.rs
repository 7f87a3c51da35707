// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters and the results of the verbs that create objects with queues.
//!
//! A `…Create` has what the verb needs. Its `check` refuses objects of another context; each driver calls it first. The results are the
//! object and its engines.

use super::driver::Driver;
use super::object::{Object, same_context};
use crate::attr::{QpCap, QpInitAttr, RxHashConf, SrqAttr, SrqInitAttr, WqInitAttr};
use crate::control::{DmHandle, PdHandle, QpParents, RwqIndTableHandle, XrcdHandle};
use crate::error::{Error, Result};
use crate::kernel::{DeviceMapping, Kernel};
use std::sync::Arc;

/// A new completion queue.
#[derive(Debug)]
pub struct CqParts<D: Driver> {
    /// The object.
    pub cq: D::Cq,
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
    pub xrc: Option<(&'a XrcdHandle, &'a D::Cq)>,
    /// Thread domain, if its PD is a parent domain with one.
    pub td: Option<&'a D::Td>,
    /// The `user_handle` of its events.
    pub user_handle: u64,
}

impl<D: Driver> SrqCreate<'_, D> {
    /// Refuses objects of another context than that of `kernel`.
    ///
    /// # Errors
    /// [`Error::Invalid`] as above.
    pub fn check(&self, kernel: &Arc<dyn Kernel>) -> Result<()> {
        same_context(
            "create_srq",
            kernel,
            &[
                ("pd", Some(self.pd.kernel())),
                ("xrcd", self.xrc.map(|(xrcd, _)| xrcd.kernel())),
                ("cq", self.xrc.map(|(_, cq)| cq.handle().kernel())),
            ],
        )
    }
}

/// A new shared receive queue.
#[derive(Debug)]
pub struct SrqParts<D: Driver> {
    /// The object.
    pub srq: D::Srq,
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
    pub send_cq: Option<&'a D::Cq>,
    /// Completes its receives; `None` for XRC QPs.
    pub recv_cq: Option<&'a D::Cq>,
    /// The SRQ that it uses instead of a receive queue.
    pub srq: Option<&'a D::Srq>,
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

impl<'a, D: Driver> QpCreate<'a, D> {
    /// A QP with these attributes, so far without objects: its send queue has the posts of several threads, and completions have no data.
    #[must_use]
    pub const fn new(attr: &'a QpInitAttr) -> Self {
        Self {
            pd: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: None,
            attr,
            td: None,
            exclusive: false,
            data_in_completions: false,
            user_handle: 0,
        }
    }

    /// Refuses objects of another context than that of `kernel`.
    ///
    /// # Errors
    /// [`Error::Invalid`] as above.
    pub fn check(&self, kernel: &Arc<dyn Kernel>) -> Result<()> {
        same_context(
            "create_qp",
            kernel,
            &[
                ("pd", self.pd.map(PdHandle::kernel)),
                ("send_cq", self.send_cq.map(|cq| cq.handle().kernel())),
                ("recv_cq", self.recv_cq.map(|cq| cq.handle().kernel())),
                ("srq", self.srq.map(|srq| srq.handle().kernel())),
                ("xrcd", self.xrcd.map(XrcdHandle::kernel)),
            ],
        )
    }

    /// The kernel's objects.
    #[must_use]
    pub fn parents(&self) -> QpParents<'a> {
        QpParents {
            pd: self.pd,
            send_cq: self.send_cq.map(Object::handle),
            recv_cq: self.recv_cq.map(Object::handle),
            srq: self.srq.map(Object::handle),
            xrcd: self.xrcd,
        }
    }

    /// Refuses work requests that change indirect keys, of which the device has none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as above.
    pub fn without_mkeys(&self) -> Result<()> {
        match self.attr.max_mkey_entries {
            0 => Ok(()),
            _ => Err(Error::unsupported("create_qp", format!("{} has no indirect keys", D::NAME))),
        }
    }
}

/// A new queue pair.
#[derive(Debug)]
pub struct QpParts<D: Driver> {
    /// The object.
    pub qp: D::Qp,
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
    pub cq: &'a D::Cq,
    /// Sizes and flags.
    pub attr: &'a WqInitAttr,
    /// The `user_handle` of its events.
    pub user_handle: u64,
}

impl<D: Driver> WqCreate<'_, D> {
    /// Refuses objects of another context than that of `kernel`.
    ///
    /// # Errors
    /// [`Error::Invalid`] as above.
    pub fn check(&self, kernel: &Arc<dyn Kernel>) -> Result<()> {
        same_context(
            "create_wq",
            kernel,
            &[("pd", Some(self.pd.kernel())), ("cq", Some(self.cq.handle().kernel()))],
        )
    }
}

/// A new work queue.
#[derive(Debug)]
pub struct WqParts<D: Driver> {
    /// The object.
    pub wq: D::Wq,
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

impl RssQpCreate<'_> {
    /// Refuses objects of another context than that of `kernel`.
    ///
    /// # Errors
    /// [`Error::Invalid`] as above.
    pub fn check(&self, kernel: &Arc<dyn Kernel>) -> Result<()> {
        same_context(
            "create_qp",
            kernel,
            &[("pd", Some(self.pd.kernel())), ("table", Some(self.table.kernel()))],
        )
    }
}

/// The parameters of a new DC target.
#[derive(Debug)]
pub struct DctCreate<'a, D: Driver> {
    /// Its protection domain.
    pub pd: &'a PdHandle,
    /// Completes its receives.
    pub cq: &'a D::Cq,
    /// Takes its receives.
    pub srq: &'a D::Srq,
    /// The access key that initiators must use.
    pub dc_key: u64,
    /// As [`QpCreate::data_in_completions`], of the receives of its SRQ.
    pub data_in_completions: bool,
    /// The `user_handle` of its events.
    pub user_handle: u64,
}

impl<D: Driver> DctCreate<'_, D> {
    /// Refuses objects of another context than that of `kernel`.
    ///
    /// # Errors
    /// [`Error::Invalid`] as above.
    pub fn check(&self, kernel: &Arc<dyn Kernel>) -> Result<()> {
        same_context(
            "create_qp",
            kernel,
            &[
                ("pd", Some(self.pd.kernel())),
                ("cq", Some(self.cq.handle().kernel())),
                ("srq", Some(self.srq.handle().kernel())),
            ],
        )
    }
}
