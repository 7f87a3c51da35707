// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating completion queues.
#![expect(unsafe_code)]
// UNSAFETY: the private input of commands may contain addresses; those here contain none.

use super::object::Cq;
use super::{Efa, STATE};
use crate::memory::{CqRing, Doorbell};
use crate::{CompletionQueue, CqBell, CqState, QueuePlace};
use std::sync::Arc;
use uverbs_core::attr::CqInitAttr;
use uverbs_core::control::{CompChannelHandle, CqHandle, cq};
use uverbs_core::kernel::{Protection, Uhw, map_queue};
use uverbs_core::provider::{CompletionQueue as _, CqParts, Driver as _, Kept, or_destroy};
use uverbs_core::{Error, Result};
use uverbs_efa_hw::io::RxCdescEx;
use uverbs_uapi::efa::{
    EFA_CREATE_CQ_RESP_DB_OFF, EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL, EFA_CREATE_CQ_WITH_SGID,
    EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS, EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID, efa_ibv_create_cq,
    efa_ibv_create_cq_resp,
};
use zerocopy::IntoBytes;

/// What only CQs of EFA have (`efadv_create_cq`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqOptions {
    /// The completion of a message from an unknown peer has the peer's GID.
    pub source_gid: bool,
}

const VERB: &str = "create_cq";

impl Efa {
    /// Creates a CQ with these options.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device lacks a flag or an option; otherwise a size is out of range, or the kernel refuses.
    pub fn new_cq(
        &self,
        attr: &CqInitAttr,
        options: CqOptions,
        channel: Option<&CompChannelHandle>,
        user_handle: u64,
    ) -> Result<CqParts<Self>> {
        attr.only_standard(Self::NAME)?;
        let missing = |what: String| Err(Error::unsupported(VERB, what));
        if channel.is_some() && !self.limits.has(EFA_QUERY_DEVICE_CAPS_CQ_NOTIFICATIONS) {
            return missing(format!(
                "{} has no completion events: poll a CQ without a channel",
                self.kernel.name()
            ));
        }
        if options.source_gid && !self.limits.has(EFA_QUERY_DEVICE_CAPS_CQ_WITH_SGID) {
            return missing(format!("{} does not report the GID of unknown peers", self.kernel.name()));
        }
        let entries = attr.cqe.checked_next_power_of_two().unwrap_or(attr.cqe);
        let request = efa_ibv_create_cq {
            cq_entry_size: size_of::<RxCdescEx>() as u32,
            num_sub_cqs: self.limits.sub_cqs,
            flags: if channel.is_some() { EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL } else { 0 }
                | if options.source_gid { EFA_CREATE_CQ_WITH_SGID } else { 0 },
            ..Default::default()
        };
        let mut resp = efa_ibv_create_cq_resp::default();
        // SAFETY: the request has numbers and names no memory.
        let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
        let handle = cq::create(&self.kernel, &attr.cqe(entries), channel, user_handle, uhw)?;
        let queue = self.map_cq(&handle, &resp, channel.is_some());
        let (handle, (queue, place)) = or_destroy(handle, queue, CqHandle::destroy)?;
        let events = queue.bell().as_ref().map(|bell| Arc::clone(bell.events())).unwrap_or_default();
        let state = (Arc::clone(queue.shared()), events, place);
        Ok(CqParts { cq: Cq(Kept::new(handle, state)), cqe: queue.cqe(), queue })
    }

    /// Maps the rings and the doorbell.
    fn map_cq(
        &self,
        handle: &CqHandle,
        resp: &efa_ibv_create_cq_resp,
        has_events: bool,
    ) -> Result<(CompletionQueue, QueuePlace)> {
        let bytes = usize::try_from(resp.q_mmap_size).unwrap_or(usize::MAX);
        let mapping = map_queue(&*self.kernel, VERB, "ring", (resp.q_mmap_key, bytes), Protection::Read)?;
        let ring = CqRing::new(mapping, handle.cqe(), self.limits.sub_cqs)
            .map_err(|e| Error::protocol(VERB, format!("rings of {} entries: {e}", handle.cqe())))?;
        let bell = if resp.comp_mask & EFA_CREATE_CQ_RESP_DB_OFF != 0 {
            Some(CqBell::new(Doorbell::map(&*self.kernel, VERB, resp.db_mmap_key, resp.db_off)?))
        } else if has_events {
            return Err(Error::protocol(VERB, "a CQ with events and without a doorbell"));
        } else {
            None
        };
        let place = QueuePlace::of_cq(&ring, bell.as_ref().map(|bell| &bell.doorbell));
        let queue = CompletionQueue::new(CqState::new(ring, self.qp_numbers), self.barrier, bell);
        Ok((queue.map_err(|e| Error::no_memory(VERB, STATE, &e))?, place))
    }
}
