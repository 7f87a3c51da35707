// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects and queries of the kernel's mlx5 driver that verbs lack: packet pacing entries, doorbell pages of emulated
//! virtio devices, virtual ports, the function for direct data transfers, operations on device memory.
#![expect(unsafe_code)]
// UNSAFETY: executing a command is unsafe, because its inputs may contain addresses. Those of this module do not.

use super::Mlx5;
use core::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::control::DmHandle;
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Command, DeviceMapping, Kernel};
use uverbs_uapi::ids::{UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_DM};
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH, MLX5_IB_ATTR_PP_OBJ_ALLOC_CTX, MLX5_IB_ATTR_PP_OBJ_ALLOC_FLAGS,
    MLX5_IB_ATTR_PP_OBJ_ALLOC_HANDLE, MLX5_IB_ATTR_PP_OBJ_ALLOC_INDEX, MLX5_IB_ATTR_PP_OBJ_DESTROY_HANDLE,
    MLX5_IB_ATTR_QUERY_PORT, MLX5_IB_ATTR_QUERY_PORT_PORT_NUM, MLX5_IB_ATTR_VAR_OBJ_ALLOC_HANDLE,
    MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_LENGTH, MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_OFFSET,
    MLX5_IB_ATTR_VAR_OBJ_ALLOC_PAGE_ID, MLX5_IB_ATTR_VAR_OBJ_DESTROY_HANDLE,
    MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH, MLX5_IB_METHOD_PP_OBJ_ALLOC, MLX5_IB_METHOD_PP_OBJ_DESTROY,
    MLX5_IB_METHOD_QUERY_PORT, MLX5_IB_METHOD_VAR_OBJ_ALLOC, MLX5_IB_METHOD_VAR_OBJ_DESTROY,
    MLX5_IB_OBJECT_PP, MLX5_IB_OBJECT_VAR,
};
use uverbs_uapi::mlx5::devx::{
    MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE, MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_OP,
    MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX, MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET,
    MLX5_IB_METHOD_DM_MAP_OP_ADDR,
};

/// Bytes of the longest path that is read.
const MAX_PATH: usize = 4096;

/// A packet pacing entry: a rate that commands for the firmware name by its index. It is freed when it is dropped.
#[derive(Debug)]
pub struct PacingEntry {
    kernel: Arc<dyn Kernel>,
    handle: u32,
    index: u16,
}

/// A doorbell page of an emulated virtio device (VAR). It is freed when it is dropped.
#[derive(Debug)]
pub struct VirtioPage {
    /// `None` after [`release`](Self::release).
    kernel: Option<Arc<dyn Kernel>>,
    handle: u32,
    mmap_offset: u64,
    length: u32,
    page_id: u32,
}

fn run<const N: usize>(
    verb: &'static str,
    kernel: &Arc<dyn Kernel>,
    command: &mut Command<'_, N>,
) -> Result<()> {
    // SAFETY: the inputs of this module's commands are numbers, handles and a context without addresses.
    let done = unsafe { command.execute(&**kernel) };
    done.map_err(|errno| Error::os(verb, format!("device {}", kernel.name()), errno))
}

fn new_handle<const N: usize>(verb: &'static str, command: &Command<'_, N>, attr: u16) -> Result<u32> {
    command.handle(attr).ok_or_else(|| Error::protocol(verb, "no handle of the new object"))
}

/// Frees an object in the process that created it.
fn free(kernel: &Arc<dyn Kernel>, object: u16, method: u16, attr: u16, handle: u32) {
    if kernel.is_creator_process() {
        let mut command = Command::<1>::new(object, method);
        // A failure can't be reported; the kernel frees the object with the context.
        let _ = run("free", kernel, command.handle_in(attr, handle));
    }
}

impl Mlx5 {
    /// Allocates a packet pacing entry. `context` is in the format of the PRM, `flags` are
    /// `MLX5_IB_UAPI_PP_ALLOC_FLAGS_*`.
    ///
    /// # Errors
    /// The kernel's error; it needs `CAP_NET_RAW` and [`Options::devx`](crate::Options).
    pub fn alloc_pacing_entry(&self, context: &[u8], flags: u32) -> Result<PacingEntry> {
        const VERB: &str = "pp_alloc";
        let mut index = 0_u16;
        let mut command = Command::<4>::new(MLX5_IB_OBJECT_PP, MLX5_IB_METHOD_PP_OBJ_ALLOC);
        command
            .handle_new(MLX5_IB_ATTR_PP_OBJ_ALLOC_HANDLE)
            .input_bytes(MLX5_IB_ATTR_PP_OBJ_ALLOC_CTX, context)
            .constant(MLX5_IB_ATTR_PP_OBJ_ALLOC_FLAGS, flags)
            .output(MLX5_IB_ATTR_PP_OBJ_ALLOC_INDEX, &mut index);
        run(VERB, &self.kernel, &mut command)?;
        let handle = new_handle(VERB, &command, MLX5_IB_ATTR_PP_OBJ_ALLOC_HANDLE)?;
        Ok(PacingEntry { kernel: Arc::clone(&self.kernel), handle, index })
    }

    /// Allocates a doorbell page of an emulated virtio device.
    ///
    /// # Errors
    /// The kernel's error, `EOPNOTSUPP` if the device emulates none.
    pub fn alloc_virtio_page(&self) -> Result<VirtioPage> {
        const VERB: &str = "alloc_var";
        let (mut mmap_offset, mut length, mut page_id) = (0_u64, 0_u32, 0_u32);
        let mut command = Command::<4>::new(MLX5_IB_OBJECT_VAR, MLX5_IB_METHOD_VAR_OBJ_ALLOC);
        command
            .handle_new(MLX5_IB_ATTR_VAR_OBJ_ALLOC_HANDLE)
            .output(MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_OFFSET, &mut mmap_offset)
            .output(MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_LENGTH, &mut length)
            .output(MLX5_IB_ATTR_VAR_OBJ_ALLOC_PAGE_ID, &mut page_id);
        run(VERB, &self.kernel, &mut command)?;
        let handle = new_handle(VERB, &command, MLX5_IB_ATTR_VAR_OBJ_ALLOC_HANDLE)?;
        Ok(VirtioPage { kernel: Some(Arc::clone(&self.kernel)), handle, mmap_offset, length, page_id })
    }

    /// A page of another context that shares this context's resources in the kernel (`ibv_import_device`), from what its
    /// functions return there. It is freed when it is dropped, unless it is [released](VirtioPage::release).
    #[must_use]
    pub fn import_virtio_page(&self, handle: u32, page_id: u32, length: u32, mmap_offset: u64) -> VirtioPage {
        VirtioPage { kernel: Some(Arc::clone(&self.kernel)), handle, mmap_offset, length, page_id }
    }

    /// Writes the kernel's description of a port's virtual port (`struct mlx5_ib_uapi_query_port`) to `answer`, which may
    /// be shorter.
    ///
    /// # Errors
    /// The kernel's error, `EOPNOTSUPP` on a device that is not in switchdev mode.
    pub fn query_vport(&self, port_num: u32, answer: &mut [u8]) -> Result<()> {
        let mut command = Command::<2>::new(UVERBS_OBJECT_DEVICE, MLX5_IB_METHOD_QUERY_PORT);
        command.u32(MLX5_IB_ATTR_QUERY_PORT_PORT_NUM, port_num).output_bytes(MLX5_IB_ATTR_QUERY_PORT, answer);
        run("query_port", &self.kernel, &mut command)
    }

    /// The path in sysfs, without `/sys`, of the PCI function for direct data transfers. At most `len` bytes are
    /// accepted, including a 0 byte at the end.
    ///
    /// # Errors
    /// The kernel's error: `ENODEV` if there is none, `ENOSPC` if the path is longer.
    pub fn data_direct_path(&self, len: usize) -> Result<std::ffi::CString> {
        const VERB: &str = "get_data_direct_sysfs_path";
        let mut path = vec![0; len.min(MAX_PATH)];
        let method = MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH;
        let mut command = Command::<1>::new(UVERBS_OBJECT_DEVICE, method);
        command.output_bytes(MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH, &mut path);
        run(VERB, &self.kernel, &mut command)?;
        let path = CStr::from_bytes_until_nul(&path);
        Ok(path.map_err(|_| Error::protocol(VERB, "a path without an end"))?.into())
    }

    /// Device memory as a dma-buf (`ibv_dm_export_dmabuf_fd`).
    ///
    /// # Errors
    /// The kernel's error; [`Error::Unsupported`] from kernels before 2026.
    pub fn export_dm(&self, dm: &DmHandle) -> Result<OwnedFd> {
        super::dm::export(self, dm)
    }

    /// Maps the page by which the CPU executes an operation of the PRM on device memory, by a store. Returns the mapping
    /// and the offset of the memory's first byte in it.
    ///
    /// # Errors
    /// The kernel's error, `EOPNOTSUPP` if the device lacks the operation.
    pub fn map_dm_operation(&self, dm: &DmHandle, operation: u8) -> Result<(DeviceMapping, usize)> {
        const VERB: &str = "dm_map_op_addr";
        let (mut start, mut page) = (0_u64, 0_u16);
        let mut command = Command::<4>::new(UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_MAP_OP_ADDR);
        command
            .handle_in(MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE, dm.handle())
            .input_bytes(MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_OP, core::slice::from_ref(&operation))
            .output(MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET, &mut start)
            .output(MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX, &mut page);
        run(VERB, &self.kernel, &mut command)?;
        super::dm::map(self, start, page, dm.length()).map_err(|errno: Errno| {
            Error::os(VERB, format!("device memory of {}", self.kernel.name()), errno)
        })
    }
}

impl PacingEntry {
    /// Its index in commands.
    #[must_use]
    pub fn index(&self) -> u16 {
        self.index
    }
}

impl Drop for PacingEntry {
    fn drop(&mut self) {
        let (method, attr) = (MLX5_IB_METHOD_PP_OBJ_DESTROY, MLX5_IB_ATTR_PP_OBJ_DESTROY_HANDLE);
        free(&self.kernel, MLX5_IB_OBJECT_PP, method, attr, self.handle);
    }
}

impl VirtioPage {
    /// The kernel's number of the page.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Drops this value without freeing the page, because another context has it, too.
    pub fn release(mut self) {
        self.kernel = None;
    }

    /// The offset by which the kernel maps it.
    #[must_use]
    pub fn mmap_offset(&self) -> u64 {
        self.mmap_offset
    }

    /// Bytes to map.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Its number in commands.
    #[must_use]
    pub fn page_id(&self) -> u32 {
        self.page_id
    }
}

impl Drop for VirtioPage {
    fn drop(&mut self) {
        if let Some(kernel) = &self.kernel {
            let (method, attr) = (MLX5_IB_METHOD_VAR_OBJ_DESTROY, MLX5_IB_ATTR_VAR_OBJ_DESTROY_HANDLE);
            free(kernel, MLX5_IB_OBJECT_VAR, method, attr, self.handle);
        }
    }
}
