// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queues of a dispatcher, by the numbers in their `wr_id`s.

use crate::error::Result;
use crate::mailbox::Mailbox;
use crate::qp::QpInner;
use crate::route::{ROUTE_SHIFT, RouteId};
use crate::srq::SrqInner;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use uverbs::Driver;

/// Where completions go.
#[derive(Debug)]
pub(crate) enum Route<D: Driver> {
    Free,
    Qp(Weak<QpInner<D>>),
    Srq(Weak<SrqInner<D>>),
    Mailbox(Weak<Mailbox<D>>),
}

pub(crate) struct Routes<D: Driver> {
    list: Vec<Route<D>>,
    /// Those of the list that are free.
    free: Vec<usize>,
    /// The QPs, for events and the completions of an SRQ.
    by_number: HashMap<u32, Weak<QpInner<D>>>,
    /// The targets of dynamic connections, in the same way: their numbers are those of QPs.
    targets: HashMap<u32, Weak<Mailbox<D>>>,
}

impl<D: Driver> Routes<D> {
    pub(crate) fn new() -> Self {
        Self { list: Vec::new(), free: Vec::new(), by_number: HashMap::new(), targets: HashMap::new() }
    }

    /// Where the completions of a queue go.
    #[inline]
    pub(crate) fn get(&self, id: RouteId) -> Option<&Route<D>> {
        self.list.get(id.0 as usize)
    }

    /// A number, which is taken until [`free`](Self::free).
    pub(crate) fn take(&mut self) -> Result<RouteId> {
        let free = self.free.pop();
        let index = free.unwrap_or(self.list.len());
        let Some(id) = u32::try_from(index).ok().filter(|id| id >> (u64::BITS - ROUTE_SHIFT) == 0) else {
            return Err(
                uverbs::Error::invalid("create_qp", "queue", "a dispatcher has at most 2^23 queues").into()
            );
        };
        if free.is_none() {
            self.list.push(Route::Free);
        }
        // Until the queue is set.
        self.set(RouteId(id), Route::Qp(Weak::new()));
        Ok(RouteId(id))
    }

    fn set(&mut self, id: RouteId, route: Route<D>) {
        if let Some(entry) = self.list.get_mut(id.0 as usize) {
            *entry = route;
        }
    }

    pub(crate) fn set_qp(&mut self, id: RouteId, qp: &Arc<QpInner<D>>) {
        self.by_number.insert(qp.qp_num(), Arc::downgrade(qp));
        self.set(id, Route::Qp(Arc::downgrade(qp)));
    }

    pub(crate) fn set_srq(&mut self, id: RouteId, srq: &Arc<SrqInner<D>>) {
        self.set(id, Route::Srq(Arc::downgrade(srq)));
    }

    pub(crate) fn set_mailbox(&mut self, mailbox: &Arc<Mailbox<D>>) {
        self.set(mailbox.route(), Route::Mailbox(Arc::downgrade(mailbox)));
    }

    /// The target has got its number.
    pub(crate) fn set_target(&mut self, number: u32, mailbox: &Arc<Mailbox<D>>) {
        self.targets.insert(number, Arc::downgrade(mailbox));
    }

    /// The queue has no more completions.
    pub(crate) fn free(&mut self, id: RouteId, qp_num: Option<u32>) {
        if let Some(entry) = self.list.get_mut(id.0 as usize) {
            *entry = Route::Free;
            self.free.push(id.0 as usize);
        }
        // The number may be that of a new QP already.
        if let Some(qp_num) = qp_num
            && self.by_number.get(&qp_num).is_some_and(|qp| qp.strong_count() == 0)
        {
            self.by_number.remove(&qp_num);
        }
        if let Some(qp_num) = qp_num
            && self.targets.get(&qp_num).is_some_and(|target| target.strong_count() == 0)
        {
            self.targets.remove(&qp_num);
        }
    }

    /// The target with this number.
    pub(crate) fn target_by_number(&self, number: u32) -> Option<Arc<Mailbox<D>>> {
        self.targets.get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn mailboxes(&self) -> Vec<Arc<Mailbox<D>>> {
        let mailbox = |route: &Route<D>| match route {
            Route::Mailbox(mailbox) => mailbox.upgrade(),
            _ => None,
        };
        self.list.iter().filter_map(mailbox).collect()
    }

    /// The QP with this number.
    pub(crate) fn qp_by_number(&self, qp_num: u32) -> Option<Arc<QpInner<D>>> {
        self.by_number.get(&qp_num).and_then(Weak::upgrade)
    }

    pub(crate) fn qps(&self) -> Vec<Arc<QpInner<D>>> {
        let qp = |route: &Route<D>| match route {
            Route::Qp(qp) => qp.upgrade(),
            _ => None,
        };
        self.list.iter().filter_map(qp).collect()
    }

    /// Refills a receive queue. Returns whether it is empty because its pool is.
    pub(crate) fn refill(&self, id: RouteId) -> bool {
        match self.list.get(id.0 as usize) {
            Some(Route::Qp(qp)) => qp.upgrade().is_some_and(|qp| qp.refill()),
            Some(Route::Srq(srq)) => srq.upgrade().is_some_and(|srq| srq.refill()),
            Some(Route::Mailbox(mailbox)) => mailbox.upgrade().is_some_and(|mailbox| mailbox.refill()),
            Some(Route::Free) | None => false,
        }
    }
}
