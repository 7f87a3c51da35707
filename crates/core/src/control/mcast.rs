// SPDX-License-Identifier: MIT OR Apache-2.0
//! Multicast groups of a UD QP (ibv_attach_mcast(3)).

use super::{QpHandle, Result, invoke_only};
use crate::attr::{Gid, QpType};
use crate::error::Error;
use crate::kernel::Uhw;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_ATTACH_MCAST, IB_USER_VERBS_CMD_DETACH_MCAST, ib_uverbs_attach_mcast,
    ib_uverbs_detach_mcast,
};

/// Attaches the QP to a group. Attaching it again has no effect. `mlid` is the group's LID on InfiniBand, 0 on RoCE.
///
/// # Errors
/// The GID is not a multicast group, the QP is not a UD QP, or the kernel refuses.
pub fn attach(qp: &QpHandle, gid: Gid, mlid: u16) -> Result<()> {
    const VERB: &str = "attach_mcast";
    check(VERB, gid)?;
    // `ib_attach_mcast()` makes the same check, but returns no reason.
    if qp.qp_type() != QpType::Ud {
        return Err(Error::invalid(VERB, "qp", format!("{} QPs can't be attached", qp.qp_type())));
    }
    let request = ib_uverbs_attach_mcast { gid: gid.0, qp_handle: qp.handle(), mlid, ..Default::default() };
    invoke_only(&**qp.kernel(), IB_USER_VERBS_CMD_ATTACH_MCAST, &request, Uhw::none())
        .map_err(|errno| qp.error(VERB, errno))
}

/// Detaches the QP from a group. A QP that is attached to a group can't be destroyed.
///
/// # Errors
/// `EINVAL` if it is not attached, or the kernel's error.
pub fn detach(qp: &QpHandle, gid: Gid, mlid: u16) -> Result<()> {
    const VERB: &str = "detach_mcast";
    check(VERB, gid)?;
    let request = ib_uverbs_detach_mcast { gid: gid.0, qp_handle: qp.handle(), mlid, ..Default::default() };
    invoke_only(&**qp.kernel(), IB_USER_VERBS_CMD_DETACH_MCAST, &request, Uhw::none())
        .map_err(|errno| qp.error(VERB, errno))
}

fn check(verb: &'static str, gid: Gid) -> Result<()> {
    if gid.is_multicast() {
        Ok(())
    } else {
        Err(Error::invalid(verb, "gid", format!("{gid} is not a multicast group")))
    }
}
