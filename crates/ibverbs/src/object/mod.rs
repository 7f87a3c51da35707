// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects: each begins with the public part that C programs see, and each module has the verbs of one kind.
//!
//! References are created to our part of an object only, because C programs read and write the public part at any time.
#![expect(unsafe_code)]
// UNSAFETY: handles are copied out of objects that C programs refer to by pointers.

pub(crate) mod ah;
pub(crate) mod buf;
pub(crate) mod channel;
pub(crate) mod counters;
pub(crate) mod cq;
pub(crate) mod dm;
pub(crate) mod flow;
pub(crate) mod locking;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod queue_memory;
#[cfg(all(test, feature = "hca"))]
pub(crate) mod removed;
pub(crate) mod srq;
pub(crate) mod whole;
pub(crate) mod wq;
pub(crate) mod xrcd;

use crate::errno::{Errno, Outcome};
use core::mem::ManuallyDrop;
use core::ptr;
use std::sync::OnceLock;
use uverbs_core::Error;

/// Whether the destruction of an object of a removed device succeeds, which `RDMAV_ALLOW_DISASSOCIATE_DESTROY`
/// requests. Otherwise a program can't free such an object.
fn allows_disassociated() -> bool {
    static ALLOWS: OnceLock<bool> = OnceLock::new();
    *ALLOWS.get_or_init(|| std::env::var_os("RDMAV_ALLOW_DISASSOCIATE_DESTROY").is_some())
}

/// Passes an object's handle to a verb that destroys it. If the verb fails, the object keeps its handle. The object has
/// its handle at all times, so other threads may use it until the kernel has destroyed it.
///
/// # Safety
/// If this succeeds, the handle is neither used nor dropped any more. ([`ManuallyDrop`] prevents the drop.)
pub(crate) unsafe fn destroy_handle<H, R: Default>(
    handle: &ManuallyDrop<H>,
    destroy: impl FnOnce(H) -> Result<R, (H, Error)>,
) -> Outcome<R> {
    // SAFETY: only one of the two values is used and dropped: if `destroy` fails, the copy is forgotten below; if it
    // succeeds, the caller does not use the original (the contract of this function).
    let copy = unsafe { ptr::read(&raw const **handle) };
    destroy(copy).or_else(|(copy, error)| {
        core::mem::forget(copy);
        // `EIO` means that the device was removed, and its objects with it.
        if error.errno() == Errno::EIO && allows_disassociated() {
            Ok(R::default())
        } else {
            Err(error.into())
        }
    })
}
