// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory windows (ibv_alloc_mw(3)). Binding is a work request, not a control verb.

use super::{Object, PdHandle, Result, handle_common, invoke};
use crate::attr::MwType;
use crate::error::Error;
use crate::kernel::Uhw;
use uverbs_uapi::cmd::{IB_USER_VERBS_CMD_ALLOC_MW, ib_uverbs_alloc_mw, ib_uverbs_alloc_mw_resp};
use uverbs_uapi::ids::{UVERBS_ATTR_DESTROY_MW_HANDLE, UVERBS_METHOD_MW_DESTROY, UVERBS_OBJECT_MW};

/// A memory window.
#[derive(Debug)]
pub struct MwHandle {
    object: Object,
    rkey: u32,
    mw_type: MwType,
}

handle_common!(MwHandle, "mw");

/// Allocates a memory window, bound to nothing.
///
/// # Errors
/// The kernel's error.
pub fn alloc(pd: &PdHandle, mw_type: MwType, uhw: Uhw<'_>) -> Result<MwHandle> {
    const VERB: &str = "alloc_mw";
    let request = ib_uverbs_alloc_mw { pd_handle: pd.handle(), mw_type: mw_type as u8, ..Default::default() };
    let resp: ib_uverbs_alloc_mw_resp = invoke(&**pd.kernel(), IB_USER_VERBS_CMD_ALLOC_MW, &request, uhw)
        .map_err(|errno| pd.error(VERB, errno))?;
    Ok(MwHandle { object: Object::new(VERB, pd.kernel(), resp.mw_handle)?, rkey: resp.rkey, mw_type })
}

impl MwHandle {
    /// The key as allocated. A bind changes it; the code that binds the window must keep the current key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its type.
    #[must_use]
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// Deallocates the window.
    ///
    /// # Errors
    /// The kernel's error; the handle is returned.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY, UVERBS_ATTR_DESTROY_MW_HANDLE) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = self.error("dealloc_mw", errno);
                Err((self, error))
            }
        }
    }
}
