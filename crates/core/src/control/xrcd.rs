// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC domains (ibv_open_xrcd(3)).

use super::{Object, Result, device_error, handle_common, invoke};
use crate::error::Error;
use crate::kernel::{Kernel, Uhw};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use uverbs_uapi::cmd::{IB_USER_VERBS_CMD_OPEN_XRCD, ib_uverbs_open_xrcd, ib_uverbs_open_xrcd_resp};
use uverbs_uapi::ids::{UVERBS_ATTR_DESTROY_XRCD_HANDLE, UVERBS_METHOD_XRCD_DESTROY, UVERBS_OBJECT_XRCD};

/// An XRC domain.
#[derive(Debug)]
pub struct XrcdHandle {
    object: Object,
}

handle_common!(XrcdHandle, "xrcd");

/// Opens the XRC domain of a file's inode, which processes share by opening the same file; without a file, a private
/// domain. `create` creates the domain if the file has none, `exclusive` fails if it has one (`O_CREAT` and `O_EXCL` of
/// `oflags`).
///
/// # Errors
/// `EAGAIN` if the file has no domain and `create` is false, or the kernel's error. [`Error::Unsupported`] if the
/// device has no XRC.
pub fn open(
    kernel: &Arc<dyn Kernel>,
    fd: Option<BorrowedFd<'_>>,
    create: bool,
    exclusive: bool,
) -> Result<XrcdHandle> {
    let oflags = if create { libc::O_CREAT } else { 0 } | if exclusive { libc::O_EXCL } else { 0 };
    const VERB: &str = "open_xrcd";
    let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
    let request = ib_uverbs_open_xrcd {
        // -1 is "no file" (`ib_uverbs_open_xrcd()`).
        fd: fd.cast_unsigned(),
        oflags: oflags.cast_unsigned(),
        ..Default::default()
    };
    let resp: ib_uverbs_open_xrcd_resp =
        invoke(&**kernel, IB_USER_VERBS_CMD_OPEN_XRCD, &request, Uhw::none())
            .map_err(|errno| device_error(VERB, &**kernel, errno))?;
    Ok(XrcdHandle { object: Object::new(VERB, kernel, resp.xrcd_handle)? })
}

impl XrcdHandle {
    /// Closes the handle. The domain of a file exists until the last handle of it is closed.
    ///
    /// # Errors
    /// `EBUSY` while a QP or an SRQ uses it; the handle is returned.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(
            UVERBS_OBJECT_XRCD,
            UVERBS_METHOD_XRCD_DESTROY,
            UVERBS_ATTR_DESTROY_XRCD_HANDLE,
        ) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = self.error("close_xrcd", errno);
                Err((self, error))
            }
        }
    }
}
