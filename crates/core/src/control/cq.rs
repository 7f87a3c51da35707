// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues (ibv_create_cq_ex(3), ibv_resize_cq(3), ibv_modify_cq(3)).

use super::{
    CompChannelHandle, Object, Result, device_error, explain, handle_common, invoke, invoke_only, new_object,
};
use crate::attr::{CqFlags, CqInitAttr, CqModeration, WcExFlags};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Command, Kernel, Uhw, req_notify_cq};
use core::sync::atomic::{AtomicU32, Ordering};
use std::os::fd::AsFd;
use std::sync::Arc;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_CMD_RESIZE_CQ, IB_USER_VERBS_EX_CMD_MODIFY_CQ,
    IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN, IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION, ib_uverbs_cq_moderation,
    ib_uverbs_destroy_cq_resp, ib_uverbs_ex_modify_cq, ib_uverbs_resize_cq, ib_uverbs_resize_cq_resp,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, UVERBS_ATTR_CREATE_CQ_CQE,
    UVERBS_ATTR_CREATE_CQ_FLAGS, UVERBS_ATTR_CREATE_CQ_HANDLE, UVERBS_ATTR_CREATE_CQ_RESP_CQE,
    UVERBS_ATTR_CREATE_CQ_USER_HANDLE, UVERBS_ATTR_DESTROY_CQ_HANDLE, UVERBS_ATTR_DESTROY_CQ_RESP,
    UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_CQ_DESTROY, UVERBS_OBJECT_CQ,
};

/// `IBV_CQ_ATTR_MODERATE`
const MODERATE: u32 = 1 << 0;

/// A completion queue.
#[derive(Debug)]
pub struct CqHandle {
    object: Object,
    cqe: AtomicU32,
}

handle_common!(CqHandle, "cq");

/// The numbers of events of a CQ that were read before it was destroyed. Events that were not read by then are
/// discarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqEvents {
    /// Completion events that were read from the channel.
    pub comp_events_reported: u32,
    /// Asynchronous events that were read.
    pub async_events_reported: u32,
}

/// Creates a CQ. Its events carry `user_handle`; completion events go to `channel`, asynchronous ones to the context's
/// first [asynchronous event file](super::async_event), which must exist before.
///
/// # Errors
/// An invalid attribute, or the kernel's error.
pub fn create(
    kernel: &Arc<dyn Kernel>,
    attr: &CqInitAttr,
    channel: Option<&CompChannelHandle>,
    user_handle: u64,
    uhw: Uhw<'_>,
) -> Result<CqHandle> {
    const VERB: &str = "create_cq";
    check_cqe(VERB, attr.cqe)?;
    let mut flags = 0;
    if attr.wc_flags.intersects(WcExFlags::TIMESTAMPS) {
        flags |= IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION;
    }
    if attr.flags.contains(CqFlags::IGNORE_OVERRUN) {
        flags |= IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN;
    }
    let mut cqe = 0_u32;
    let mut command = Command::<9>::new(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE);
    command
        .handle_new(UVERBS_ATTR_CREATE_CQ_HANDLE)
        .u32(UVERBS_ATTR_CREATE_CQ_CQE, attr.cqe)
        .u64(UVERBS_ATTR_CREATE_CQ_USER_HANDLE, user_handle)
        .u32(UVERBS_ATTR_CREATE_CQ_COMP_VECTOR, attr.comp_vector)
        .output(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &mut cqe);
    if let Some(channel) = channel {
        command.fd_in(UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL, channel.as_fd());
    }
    if flags != 0 {
        command.flags(UVERBS_ATTR_CREATE_CQ_FLAGS, flags);
    }
    command.uhw(uhw).run(&**kernel).map_err(|errno| {
        let explained =
            explain::over_limit(VERB, kernel, errno, |device| [("cqe", attr.cqe, device.max_cqe)]);
        explained.unwrap_or_else(|| device_error(VERB, &**kernel, errno))
    })?;
    let object = new_object(VERB, kernel, &command, UVERBS_ATTR_CREATE_CQ_HANDLE)?;
    let cq = CqHandle { object, cqe: AtomicU32::new(cqe) };
    if cqe < attr.cqe {
        let _ = cq.destroy();
        return Err(Error::protocol(VERB, format!("{cqe} entries instead of {}", attr.cqe)));
    }
    Ok(cq)
}

/// Refuses a number that does not fit in the signed int in which the kernel stores it.
fn check_cqe(verb: &'static str, cqe: u32) -> Result<()> {
    if cqe == 0 {
        return Err(Error::invalid(verb, "cqe", "0 entries"));
    }
    if i32::try_from(cqe).is_err() {
        return Err(Error::invalid(verb, "cqe", format!("{cqe} entries do not fit in a signed int")));
    }
    Ok(())
}

impl CqHandle {
    /// Entries, as rounded by the kernel.
    #[must_use]
    pub fn cqe(&self) -> u32 {
        self.cqe.load(Ordering::Relaxed)
    }

    /// Resizes the CQ and returns the new number of entries. The driver moves the entries of the old ring.
    ///
    /// # Errors
    /// An invalid number, or the kernel's error (`EINVAL` if more completions are waiting than would fit).
    pub fn resize(&self, cqe: u32, uhw: Uhw<'_>) -> Result<u32> {
        const VERB: &str = "resize_cq";
        check_cqe(VERB, cqe)?;
        let request = ib_uverbs_resize_cq { cq_handle: self.handle(), cqe, ..Default::default() };
        let resp: ib_uverbs_resize_cq_resp =
            invoke(&**self.kernel(), IB_USER_VERBS_CMD_RESIZE_CQ, &request, uhw)
                .map_err(|errno| self.resize_error(VERB, cqe, errno))?;
        if resp.cqe < cqe {
            return Err(Error::protocol(VERB, format!("{} entries instead of {cqe}", resp.cqe)));
        }
        self.cqe.store(resp.cqe, Ordering::Relaxed);
        Ok(resp.cqe)
    }

    /// Whether [`resize`](Self::resize) could give the CQ this number of entries: asks for the device's limit. A driver calls it before
    /// it fills the memory of many entries.
    ///
    /// # Errors
    /// More entries than the device has; the error is that of the resize. If the limit can't be read, there is none.
    pub fn check_resize(&self, cqe: u32) -> Result<()> {
        self.above_limit("resize_cq", cqe, Errno::EINVAL).map_or(Ok(()), Err)
    }

    fn above_limit(&self, verb: &'static str, cqe: u32, errno: Errno) -> Option<Error> {
        explain::over_limit(verb, self.kernel(), errno, |device| [("cqe", cqe, device.max_cqe)])
    }

    fn resize_error(&self, verb: &'static str, cqe: u32, errno: Errno) -> Error {
        match self.above_limit(verb, cqe, errno) {
            Some(error) => error,
            // The remaining cause: the queue holds more entries. (The number is out of date if another process resized
            // it.)
            None if errno == Errno::EINVAL && cqe < self.cqe() => {
                Error::invalid(verb, "cqe", format!("more completions are waiting than {cqe}"))
            }
            None => self.error(verb, errno),
        }
    }

    /// Sets how many completions one event may report, and for how long it may be delayed.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn moderate(&self, moderation: CqModeration) -> Result<()> {
        let request = ib_uverbs_ex_modify_cq {
            cq_handle: self.handle(),
            attr_mask: MODERATE,
            attr: ib_uverbs_cq_moderation { cq_count: moderation.cq_count, cq_period: moderation.cq_period },
            ..Default::default()
        };
        let command = IB_USER_VERBS_EX_CMD_MODIFY_CQ | IB_USER_VERBS_CMD_FLAG_EXTENDED;
        invoke_only(&**self.kernel(), command, &request, Uhw::none())
            .map_err(|errno| self.error("modify_cq", errno))
    }

    /// Asks the kernel for an event at the next completion, for drivers whose device can't be armed directly.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        req_notify_cq(&**self.kernel(), self.handle(), solicited_only)
            .map_err(|errno| self.error("req_notify_cq", errno))
    }

    /// Destroys the CQ.
    ///
    /// # Errors
    /// `EBUSY` while a QP or an SRQ completes to it; the handle is returned.
    pub fn destroy(self) -> Result<CqEvents, (Self, Error)> {
        match self.object.destroy_with::<ib_uverbs_destroy_cq_resp>(
            UVERBS_OBJECT_CQ,
            UVERBS_METHOD_CQ_DESTROY,
            UVERBS_ATTR_DESTROY_CQ_HANDLE,
            UVERBS_ATTR_DESTROY_CQ_RESP,
        ) {
            Ok(resp) => Ok(CqEvents {
                comp_events_reported: resp.comp_events_reported,
                async_events_reported: resp.async_events_reported,
            }),
            Err(errno) => {
                let error = self.error("destroy_cq", errno);
                Err((self, error))
            }
        }
    }
}
