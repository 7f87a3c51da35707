// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts: every command on a device file needs one (ibv_open_device(3)).

use super::{AsyncFd, Result, async_event, device_error};
use crate::attr::AccessFlags;
use crate::kernel::{Command, Kernel, Uhw};
use std::sync::Arc;
use uverbs_uapi::ids::{
    UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
    UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS,
    UVERBS_METHOD_GET_CONTEXT, UVERBS_METHOD_QUERY_CONTEXT, UVERBS_OBJECT_DEVICE,
};
use uverbs_uapi::verbs::IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;

/// `enum ib_uverbs_core_support`: the features of this kernel's uverbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreSupport(pub u64);

impl CoreSupport {
    /// `access` without the optional flags, if this kernel would refuse them.
    #[must_use]
    pub fn effective_access(self, access: AccessFlags) -> AccessFlags {
        if self.0 & IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS != 0 {
            access
        } else {
            access.difference(AccessFlags::OPTIONAL_RANGE)
        }
    }
}

/// The results of opening a context.
#[derive(Debug)]
pub struct ContextInfo {
    /// Completion vectors (interrupts) that a CQ can use.
    pub num_comp_vectors: u32,
    /// Features of this kernel's uverbs, on which the registration of memory depends.
    pub core_support: CoreSupport,
    /// The file for the events of all objects.
    pub async_fd: AsyncFd,
}

/// Creates the context of an open device file, and its asynchronous event file. This must be the first command on the
/// file, and is allowed once. The context exists until the file is closed.
///
/// # Errors
/// The kernel's error; `EINVAL` if there is a context already.
pub fn open(kernel: &Arc<dyn Kernel>, uhw: Uhw<'_>) -> Result<ContextInfo> {
    let (mut num_comp_vectors, mut core_support) = (0_u32, 0_u64);
    let mut command = Command::<4>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
    command
        .output(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &mut num_comp_vectors)
        .output(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &mut core_support)
        .uhw(uhw)
        .run(&**kernel)
        .map_err(|errno| device_error("open_device", &**kernel, errno))?;
    // The native method creates no event file, and an object that is created before the event file reports no events.
    let async_fd = async_event::alloc(kernel)?;
    Ok(ContextInfo { num_comp_vectors, core_support: CoreSupport(core_support), async_fd })
}

/// Uses the context of a device file that another process, or another part of this one, has opened
/// (ibv_import_device(3)). `private` is the driver-private output, with the number of its attribute.
///
/// # Errors
/// The kernel's error; [`Error::Unsupported`](crate::Error::Unsupported) if its driver does not report contexts.
pub fn import(kernel: &Arc<dyn Kernel>, private: (u16, &mut [u8])) -> Result<ContextInfo> {
    let (mut num_comp_vectors, mut core_support) = (0_u32, 0_u64);
    let mut command = Command::<3>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT);
    command
        .output(UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS, &mut num_comp_vectors)
        .output(UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT, &mut core_support)
        .output_bytes(private.0, private.1)
        .run(&**kernel)
        .map_err(|errno| device_error("import_device", &**kernel, errno))?;
    let async_fd = async_event::alloc(kernel)?;
    Ok(ContextInfo { num_comp_vectors, core_support: CoreSupport(core_support), async_fd })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::script::Script;
    use uverbs_uapi::ids::{UVERBS_METHOD_ASYNC_EVENT_ALLOC, UVERBS_OBJECT_ASYNC_EVENT};

    #[test]
    fn opening_a_context_returns_its_event_file() {
        let script = Script::new();
        script
            .expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT, |c| {
                assert_eq!(c.attrs().map(|a| (a.id, a.len)).collect::<Vec<_>>(), [(0, 4), (1, 8)]);
                assert!(c.answer(0, &8_u32.to_ne_bytes()));
                assert!(c.answer(1, &1_u64.to_ne_bytes()));
                Ok(())
            })
            .expect(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, |c| {
                assert!(c.new_fd(0, tempfile::tempfile().unwrap().into()));
                Ok(())
            });
        let info = open(&script.kernel(), Uhw::none()).unwrap();
        assert_eq!((info.num_comp_vectors, info.core_support), (8, CoreSupport(1)));
        script.done();
    }

    #[test]
    fn an_imported_context_has_an_event_file_of_its_own() {
        let script = Script::new();
        script
            .expect(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT, |c| {
                assert!(c.answer(0, &3_u32.to_ne_bytes()) && c.answer(1, &1_u64.to_ne_bytes()));
                assert!(c.answer(0x1000, &[7]));
                Ok(())
            })
            .expect(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, |c| {
                assert!(c.new_fd(0, tempfile::tempfile().unwrap().into()));
                Ok(())
            });
        let mut private = [0; 2];
        let info = import(&script.kernel(), (0x1000, &mut private)).unwrap();
        assert_eq!((info.num_comp_vectors, info.core_support, private), (3, CoreSupport(1), [7, 0]));
        script.done();
    }

    #[test]
    fn optional_access_flags_are_dropped_for_kernels_without_them() {
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::RELAXED_ORDERING;
        assert_eq!(CoreSupport(1).effective_access(access), access);
        assert_eq!(CoreSupport(2).effective_access(access), AccessFlags::LOCAL_WRITE);
    }
}
