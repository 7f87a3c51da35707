// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues (ibv_create_srq_ex(3), ibv_modify_srq(3), ibv_query_srq(3)).
#![expect(unsafe_code)]
// UNSAFETY: declares a verb that destroys an object, on whose queue the posting of its driver relies; undoing a
// creation calls that verb.

use super::{
    CqHandle, Object, PdHandle, Result, XrcdHandle, explain, handle_common, invoke, invoke_only, new_object,
};
use crate::attr::{DeviceAttr, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Command, Uhw};
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_MODIFY_SRQ, IB_USER_VERBS_CMD_QUERY_SRQ, ib_uverbs_destroy_srq_resp,
    ib_uverbs_modify_srq, ib_uverbs_query_srq, ib_uverbs_query_srq_resp,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, UVERBS_ATTR_CREATE_SRQ_HANDLE, UVERBS_ATTR_CREATE_SRQ_LIMIT,
    UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, UVERBS_ATTR_CREATE_SRQ_MAX_SGE, UVERBS_ATTR_CREATE_SRQ_MAX_WR,
    UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE,
    UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, UVERBS_ATTR_CREATE_SRQ_TYPE,
    UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, UVERBS_ATTR_DESTROY_SRQ_HANDLE,
    UVERBS_ATTR_DESTROY_SRQ_RESP, UVERBS_METHOD_SRQ_CREATE, UVERBS_METHOD_SRQ_DESTROY, UVERBS_OBJECT_SRQ,
};

/// A shared receive queue.
#[derive(Debug)]
pub struct SrqHandle {
    object: Object,
    srq_num: Option<u32>,
}

handle_common!(SrqHandle, "srq");

/// The objects that an SRQ is created from.
#[derive(Clone, Copy, Debug)]
pub struct SrqParents<'a> {
    /// Its protection domain.
    pub pd: &'a PdHandle,
    /// Its XRC domain, with [`SrqType::Xrc`].
    pub xrcd: Option<&'a XrcdHandle>,
    /// The CQ of its receives, with [`SrqType::Xrc`] and [`SrqType::Tm`].
    pub cq: Option<&'a CqHandle>,
}

/// Creates an SRQ and returns it with its sizes, which are at least those requested. Its events have `user_handle`.
///
/// # Errors
/// An invalid attribute or parent, or the kernel's error.
pub fn create(
    parents: SrqParents<'_>,
    attr: &SrqInitAttr,
    user_handle: u64,
    uhw: Uhw<'_>,
) -> Result<(SrqHandle, SrqAttr)> {
    const VERB: &str = "create_srq";
    check_parents(VERB, &parents, attr.srq_type)?;
    let SrqAttr { max_wr, max_sge, srq_limit } = attr.attr;
    if max_wr == 0 {
        return Err(Error::invalid(VERB, "max_wr", "0 work requests"));
    }
    if srq_limit > max_wr {
        return Err(Error::invalid(VERB, "srq_limit", format!("{srq_limit} is above max_wr {max_wr}")));
    }
    let (mut got_wr, mut got_sge, mut srq_num) = (0_u32, 0_u32, 0_u32);
    let mut command = Command::<15>::new(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE);
    command
        .handle_new(UVERBS_ATTR_CREATE_SRQ_HANDLE)
        .handle_in(UVERBS_ATTR_CREATE_SRQ_PD_HANDLE, parents.pd.handle())
        .constant(UVERBS_ATTR_CREATE_SRQ_TYPE, attr.srq_type as u32)
        .u64(UVERBS_ATTR_CREATE_SRQ_USER_HANDLE, user_handle)
        .u32(UVERBS_ATTR_CREATE_SRQ_MAX_WR, max_wr)
        .u32(UVERBS_ATTR_CREATE_SRQ_MAX_SGE, max_sge)
        .u32(UVERBS_ATTR_CREATE_SRQ_LIMIT, srq_limit)
        .output(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &mut got_wr)
        .output(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &mut got_sge);
    if let Some(xrcd) = parents.xrcd {
        command.handle_in(UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE, xrcd.handle());
        command.output(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, &mut srq_num);
    }
    if let Some(cq) = parents.cq {
        command.handle_in(UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE, cq.handle());
    }
    if attr.srq_type == SrqType::Tm {
        command.u32(UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS, attr.max_num_tags);
    }
    let kernel = parents.pd.kernel();
    command.uhw(uhw).run(&**kernel).map_err(|errno| {
        let explained = explain::over_limit(VERB, kernel, errno, |device| {
            [("max_wr", max_wr, device.max_srq_wr), ("max_sge", max_sge, device.max_srq_sge)]
        });
        explained.unwrap_or_else(|| parents.pd.error(VERB, errno))
    })?;
    let object = new_object(VERB, kernel, &command, UVERBS_ATTR_CREATE_SRQ_HANDLE)?;
    let srq = SrqHandle { object, srq_num: (attr.srq_type == SrqType::Xrc).then_some(srq_num) };
    if got_wr < max_wr || got_sge < max_sge || srq_num > 0xff_ffff {
        // SAFETY: the object has no other user yet.
        let _ = unsafe { srq.destroy() };
        let what = format!("max_wr {got_wr}, max_sge {got_sge}, number {srq_num:#x}");
        return Err(Error::protocol(VERB, format!("{what} instead of {max_wr} and {max_sge}")));
    }
    Ok((srq, SrqAttr { max_wr: got_wr, max_sge: got_sge, srq_limit }))
}

fn check_parents(verb: &'static str, parents: &SrqParents<'_>, srq_type: SrqType) -> Result<()> {
    let (xrcd, cq) = match srq_type {
        SrqType::Basic => (false, false),
        SrqType::Xrc => (true, true),
        SrqType::Tm => (false, true),
    };
    let differs = |field, wanted| {
        let what = if wanted { "needed by this type" } else { "not taken by this type" };
        Err(Error::invalid(verb, field, what))
    };
    if parents.xrcd.is_some() != xrcd {
        return differs("xrcd", xrcd);
    }
    if parents.cq.is_some() != cq {
        return differs("cq", cq);
    }
    Ok(())
}

impl SrqHandle {
    /// Number by which XRC senders address it; only of XRC SRQs.
    #[must_use]
    pub fn srq_num(&self) -> Option<u32> {
        self.srq_num
    }

    /// Resizes the SRQ or arms its limit event, depending on `mask`.
    ///
    /// # Errors
    /// An empty mask, or the kernel's error.
    pub fn modify(&self, attr: &SrqAttr, mask: SrqAttrMask, uhw: Uhw<'_>) -> Result<()> {
        const VERB: &str = "modify_srq";
        if mask.is_empty() || !SrqAttrMask::all().contains(mask) {
            return Err(Error::invalid(VERB, "srq_attr_mask", format!("{:#x}", mask.bits())));
        }
        let request = ib_uverbs_modify_srq {
            srq_handle: self.handle(),
            attr_mask: mask.bits(),
            max_wr: attr.max_wr,
            srq_limit: attr.srq_limit,
            ..Default::default()
        };
        invoke_only(&**self.kernel(), IB_USER_VERBS_CMD_MODIFY_SRQ, &request, uhw)
            .map_err(|errno| self.modify_error(VERB, attr, mask, errno))
    }

    fn modify_error(&self, verb: &'static str, attr: &SrqAttr, mask: SrqAttrMask, errno: Errno) -> Error {
        let max_wr = if mask.contains(SrqAttrMask::MAX_WR) { attr.max_wr } else { 0 };
        if errno == Errno::EINVAL && mask.contains(SrqAttrMask::MAX_WR) && max_wr == 0 {
            return Error::invalid(verb, "max_wr", "0 work requests");
        }
        let over = |device: &DeviceAttr| [("max_wr", max_wr, device.max_srq_wr)];
        if let Some(error) = explain::over_limit(verb, self.kernel(), errno, over) {
            return error;
        }
        if let (Errno::EINVAL, Ok(now)) = (errno, self.query()) {
            let size = if max_wr != 0 { max_wr } else { now.max_wr };
            let limit = if mask.contains(SrqAttrMask::LIMIT) { attr.srq_limit } else { now.srq_limit };
            if limit > size {
                return Error::invalid(verb, "srq_limit", format!("{limit} is above max_wr {size}"));
            }
        }
        self.error(verb, errno)
    }

    /// Its sizes, and the limit that is armed (0 if none is).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn query(&self) -> Result<SrqAttr> {
        let request = ib_uverbs_query_srq { srq_handle: self.handle(), ..Default::default() };
        let resp: ib_uverbs_query_srq_resp =
            invoke(&**self.kernel(), IB_USER_VERBS_CMD_QUERY_SRQ, &request, Uhw::none())
                .map_err(|errno| self.error("query_srq", errno))?;
        Ok(SrqAttr { max_wr: resp.max_wr, max_sge: resp.max_sge, srq_limit: resp.srq_limit })
    }

    /// Destroys the SRQ and returns how many of its events were read.
    ///
    /// # Safety
    /// For an object with queues only its driver's [object](crate::provider::object) may call this, which stops posts and polls first, and
    /// keeps the memory that the device uses until this succeeds. For an object without queues there is no requirement.
    ///
    /// # Errors
    /// `EBUSY` while a QP receives from it; the handle is returned.
    pub unsafe fn destroy(self) -> Result<u32, (Self, Error)> {
        match self.object.destroy_with::<ib_uverbs_destroy_srq_resp>(
            UVERBS_OBJECT_SRQ,
            UVERBS_METHOD_SRQ_DESTROY,
            UVERBS_ATTR_DESTROY_SRQ_HANDLE,
            UVERBS_ATTR_DESTROY_SRQ_RESP,
        ) {
            Ok(resp) => Ok(resp.events_reported),
            Err(errno) => {
                let error = self.error("destroy_srq", errno);
                Err((self, error))
            }
        }
    }
}
