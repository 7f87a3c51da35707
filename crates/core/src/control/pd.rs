// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains (ibv_alloc_pd(3), ibv_import_pd(3)).
// UNSAFETY: the owner of an imported domain can destroy it at any time. This module has no unsafe block.
#![expect(unsafe_code)]

use super::{Object, Result, device_error, handle_common, invoke};
use crate::error::Error;
use crate::kernel::{Kernel, Uhw};
use std::sync::Arc;
use uverbs_uapi::cmd::{IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd, ib_uverbs_alloc_pd_resp};
use uverbs_uapi::ids::{UVERBS_ATTR_DESTROY_PD_HANDLE, UVERBS_METHOD_PD_DESTROY, UVERBS_OBJECT_PD};

/// A protection domain.
#[derive(Debug)]
pub struct PdHandle {
    object: Object,
}

handle_common!(PdHandle, "pd");

/// Allocates a protection domain.
///
/// # Errors
/// The kernel's error.
pub fn alloc(kernel: &Arc<dyn Kernel>, uhw: Uhw<'_>) -> Result<PdHandle> {
    const VERB: &str = "alloc_pd";
    let resp: ib_uverbs_alloc_pd_resp =
        invoke(&**kernel, IB_USER_VERBS_CMD_ALLOC_PD, &ib_uverbs_alloc_pd::default(), uhw)
            .map_err(|errno| device_error(VERB, &**kernel, errno))?;
    Ok(PdHandle { object: Object::new(VERB, kernel, resp.pd_handle)? })
}

/// Imports a protection domain of the same device file by its kernel handle (ibv_import_pd(3)).
///
/// # Safety
/// The handle is that of a domain whose owner permits this part of the program to use it, and to destroy it if the
/// result is destroyed: posted work requests rely on domains that are not destroyed by others.
///
/// # Errors
/// The number is not a valid handle.
pub unsafe fn import(kernel: &Arc<dyn Kernel>, handle: u32) -> Result<PdHandle> {
    const VERB: &str = "import_pd";
    super::check_handle(VERB, handle)
        .map_err(|_| Error::invalid(VERB, "pd_handle", format!("{handle:#x}")))?;
    Ok(PdHandle { object: Object::new(VERB, kernel, handle)? })
}

impl PdHandle {
    /// Deallocates the domain.
    ///
    /// # Errors
    /// `EBUSY` while an object that was created in the domain exists; the handle is returned.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY, UVERBS_ATTR_DESTROY_PD_HANDLE) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = self.error("dealloc_pd", errno);
                Err((self, error))
            }
        }
    }
}
