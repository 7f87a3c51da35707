// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory: memory in the device on which regions can be registered (ibv_alloc_dm(3), ibv_import_dm(3)).
// UNSAFETY: the owner of imported memory can free it at any time. This module has no unsafe block.
#![expect(unsafe_code)]

use super::mr::MrHandle;
use super::{CoreSupport, Object, PdHandle, Result, device_error, handle_common, new_object};
use crate::attr::AccessFlags;
use crate::error::Error;
use crate::kernel::{Command, Kernel};
use std::sync::Arc;
use uverbs_uapi::ids::{
    UVERBS_ATTR_ALLOC_DM_ALIGNMENT, UVERBS_ATTR_ALLOC_DM_HANDLE, UVERBS_ATTR_ALLOC_DM_LENGTH,
    UVERBS_ATTR_FREE_DM_HANDLE, UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DM_MR_DM_HANDLE,
    UVERBS_ATTR_REG_DM_MR_HANDLE, UVERBS_ATTR_REG_DM_MR_LENGTH, UVERBS_ATTR_REG_DM_MR_OFFSET,
    UVERBS_ATTR_REG_DM_MR_PD_HANDLE, UVERBS_ATTR_REG_DM_MR_RESP_LKEY, UVERBS_ATTR_REG_DM_MR_RESP_RKEY,
    UVERBS_METHOD_DM_ALLOC, UVERBS_METHOD_DM_FREE, UVERBS_METHOD_DM_MR_REG, UVERBS_OBJECT_DM,
    UVERBS_OBJECT_MR,
};

/// Memory in the device.
#[derive(Debug)]
pub struct DmHandle {
    object: Object,
    length: u64,
}

handle_common!(DmHandle, "dm");

/// Allocates `length` bytes, aligned to `1 << log_align`. `private` adds the driver's own outputs.
///
/// # Errors
/// The kernel's error; [`Error::Unsupported`] if the device has no such memory.
pub fn alloc<'a>(
    kernel: &Arc<dyn Kernel>,
    length: u64,
    log_align: u32,
    private: impl FnOnce(&mut Command<'a, 6>),
) -> Result<DmHandle> {
    const VERB: &str = "alloc_dm";
    if length == 0 || log_align > 63 {
        return Err(Error::invalid(VERB, "length", format!("{length} bytes, alignment 2^{log_align}")));
    }
    let mut command = Command::<6>::new(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC);
    command
        .handle_new(UVERBS_ATTR_ALLOC_DM_HANDLE)
        .u64(UVERBS_ATTR_ALLOC_DM_LENGTH, length)
        .u32(UVERBS_ATTR_ALLOC_DM_ALIGNMENT, log_align);
    private(&mut command);
    command.run(&**kernel).map_err(|errno| device_error(VERB, &**kernel, errno))?;
    Ok(DmHandle { object: new_object(VERB, kernel, &command, UVERBS_ATTR_ALLOC_DM_HANDLE)?, length })
}

/// Registers `length` bytes at `offset` of device memory. Work requests address the region by offsets from its first
/// byte.
///
/// # Errors
/// A range that exceeds the memory, or the kernel's error.
pub fn reg_mr(
    core: CoreSupport,
    pd: &PdHandle,
    dm: &DmHandle,
    offset: u64,
    length: u64,
    access: AccessFlags,
) -> Result<MrHandle> {
    const VERB: &str = "reg_dm_mr";
    access.check(VERB, "access")?;
    if offset.checked_add(length).is_none_or(|end| end > dm.length) {
        let reason = format!("{length} bytes at {offset} of {}", dm.length);
        return Err(Error::invalid(VERB, "length", reason));
    }
    let access = core.effective_access(access) | AccessFlags::ZERO_BASED;
    let (mut lkey, mut rkey) = (0_u32, 0_u32);
    let mut command = Command::<8>::new(UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG);
    command
        .handle_new(UVERBS_ATTR_REG_DM_MR_HANDLE)
        .u64(UVERBS_ATTR_REG_DM_MR_OFFSET, offset)
        .u64(UVERBS_ATTR_REG_DM_MR_LENGTH, length)
        .handle_in(UVERBS_ATTR_REG_DM_MR_PD_HANDLE, pd.handle())
        .flags(UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, access.bits())
        .handle_in(UVERBS_ATTR_REG_DM_MR_DM_HANDLE, dm.handle())
        .output(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, &mut lkey)
        .output(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, &mut rkey)
        .run(&**pd.kernel())
        .map_err(|errno| dm.error(VERB, errno))?;
    let object = new_object(VERB, pd.kernel(), &command, UVERBS_ATTR_REG_DM_MR_HANDLE)?;
    Ok(MrHandle::new(object, lkey, rkey))
}

/// Imports memory of the same device file by its kernel handle (ibv_import_dm(3)); the driver determines its `length`.
///
/// # Safety
/// The handle is that of memory whose owner permits this part of the program to use it, and to free it if the result is
/// destroyed.
///
/// # Errors
/// The number is not a valid handle.
pub unsafe fn import(kernel: &Arc<dyn Kernel>, handle: u32, length: u64) -> Result<DmHandle> {
    const VERB: &str = "import_dm";
    super::check_handle(VERB, handle)
        .map_err(|_| Error::invalid(VERB, "dm_handle", format!("{handle:#x}")))?;
    Ok(DmHandle { object: Object::new(VERB, kernel, handle)?, length })
}

impl DmHandle {
    /// Bytes.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Frees the memory.
    ///
    /// # Errors
    /// `EBUSY` while a region is registered on the memory; the handle is returned.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, UVERBS_ATTR_FREE_DM_HANDLE) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = self.error("free_dm", errno);
                Err((self, error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use crate::kernel::script::Script;

    #[test]
    fn memory_is_allocated_with_the_drivers_outputs_and_freed() {
        let script = Script::new();
        script
            .expect(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC, |c| {
                let ids: Vec<_> = c.attrs().map(|a| (a.id, a.len)).collect();
                assert_eq!(ids, [(0, 0), (1, 8), (2, 4), (0x1000, 8)]);
                assert!(c.new_handle(0, 9) && c.answer(0x1000, &7_u64.to_ne_bytes()));
                Ok(())
            })
            .expect(UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE, |c| {
                assert_eq!(c.attrs().map(|a| a.id).collect::<Vec<_>>(), [0]);
                Err(Errno::EBUSY)
            });
        let mut start = 0_u64;
        let dm = alloc(&script.kernel(), 4096, 3, |c| {
            c.output(0x1000, &mut start);
        })
        .unwrap();
        assert_eq!((dm.handle(), dm.length()), (9, 4096));
        let (dm, error) = dm.destroy().unwrap_err();
        assert_eq!((dm.handle(), error.errno()), (9, Errno::EBUSY));
        script.done();
        assert_eq!(start, 7);
    }

    #[test]
    fn sizes_of_0_and_excessive_alignments_are_refused() {
        let script = Script::new();
        assert!(alloc(&script.kernel(), 0, 0, |_| {}).is_err());
        assert!(alloc(&script.kernel(), 1, 64, |_| {}).is_err());
        script.done();
    }
}
