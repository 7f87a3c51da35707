// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device memory: memory of the device itself, which can be registered and mapped.
// UNSAFETY: lends memory of the device as a mapping.
#![expect(unsafe_code)]

use super::call::Call;
use super::device_memory::{DeviceMemory, page_bytes};
use super::memory::check_present;
use super::object::{Numbered, Object};
use crate::engine::mkey::Kind;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{Mapping, RawCommand};
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{flags, handle, known, number};
use uverbs_uapi::ids::{
    UVERBS_ATTR_ALLOC_DM_ALIGNMENT, UVERBS_ATTR_ALLOC_DM_HANDLE, UVERBS_ATTR_ALLOC_DM_LENGTH,
    UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DM_MR_DM_HANDLE, UVERBS_ATTR_REG_DM_MR_HANDLE,
    UVERBS_ATTR_REG_DM_MR_LENGTH, UVERBS_ATTR_REG_DM_MR_OFFSET, UVERBS_ATTR_REG_DM_MR_PD_HANDLE,
    UVERBS_ATTR_REG_DM_MR_RESP_LKEY, UVERBS_ATTR_REG_DM_MR_RESP_RKEY,
};
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE, MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX,
    MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE,
    MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX,
    MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET,
};
use uverbs_uapi::mlx5::{MLX5_IB_MMAP_CLOCK_INFO, MLX5_IB_MMAP_DEVICE_MEM, MLX5_IB_UAPI_DM_TYPE_MEMIC};
use uverbs_uapi::verbs::IB_UVERBS_ACCESS_ZERO_BASED;

impl Call<'_, '_> {
    pub(super) fn alloc_dm(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_ALLOC_DM_HANDLE,
                UVERBS_ATTR_ALLOC_DM_LENGTH,
                UVERBS_ATTR_ALLOC_DM_ALIGNMENT,
                MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET,
                MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX,
                MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE,
            ],
        )?;
        let kind = number(c, MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE).unwrap_or(MLX5_IB_UAPI_DM_TYPE_MEMIC);
        if kind != MLX5_IB_UAPI_DM_TYPE_MEMIC {
            return Err(Errno::EOPNOTSUPP);
        }
        let len = number(c, UVERBS_ATTR_ALLOC_DM_LENGTH).ok_or(Errno::EINVAL)?;
        let size = len.checked_next_multiple_of(page_bytes()).filter(|n| *n > 0).ok_or(Errno::EINVAL)?;
        let page = self.state.dm.alloc(size / page_bytes()).ok_or(Errno::ENOMEM)?;
        let words = (0..size / 8).map(|_| AtomicU64::new(0)).collect();
        let memory = Arc::new(DeviceMemory { words, len, page });
        c.answer(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, &0_u64.to_ne_bytes());
        c.answer(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, &page.to_ne_bytes());
        self.give(c, UVERBS_ATTR_ALLOC_DM_HANDLE, Object::Dm { memory }, &[], 0)
    }

    pub(super) fn query_dm(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let handle = handle(c, MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE)?;
        let Object::Dm { memory } = self.object(handle)? else { return Err(Errno::ENOENT) };
        let (page, len) = (memory.page, memory.len);
        c.answer(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, &0_u64.to_ne_bytes());
        c.answer(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, &page.to_ne_bytes());
        c.answer(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, &len.to_ne_bytes());
        Ok(())
    }

    pub(super) fn reg_dm_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_REG_DM_MR_HANDLE,
                UVERBS_ATTR_REG_DM_MR_OFFSET,
                UVERBS_ATTR_REG_DM_MR_LENGTH,
                UVERBS_ATTR_REG_DM_MR_PD_HANDLE,
                UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS,
                UVERBS_ATTR_REG_DM_MR_DM_HANDLE,
                UVERBS_ATTR_REG_DM_MR_RESP_LKEY,
                UVERBS_ATTR_REG_DM_MR_RESP_RKEY,
            ],
        )?;
        let pd_handle = handle(c, UVERBS_ATTR_REG_DM_MR_PD_HANDLE)?;
        let dm_handle = handle(c, UVERBS_ATTR_REG_DM_MR_DM_HANDLE)?;
        let pd = self.pdn(pd_handle)?;
        let Object::Dm { memory } = self.object(dm_handle)? else { return Err(Errno::ENOENT) };
        let access = check_present(flags(c, UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS)?)?;
        // Device memory has no address in the program, so its regions start at 0.
        if access & IB_UVERBS_ACCESS_ZERO_BASED == 0 {
            return Err(Errno::EINVAL);
        }
        let offset = number(c, UVERBS_ATTR_REG_DM_MR_OFFSET).ok_or(Errno::EINVAL)?;
        let len = number(c, UVERBS_ATTR_REG_DM_MR_LENGTH).ok_or(Errno::EINVAL)?;
        let part = memory.part(offset, len).ok_or(Errno::EINVAL)?;
        let kind = Kind::Region { memory: Arc::new(part), iova: 0 };
        let key = self.device.mkeys.add(0, pd, access, kind).ok_or(Errno::ENOMEM)?;
        c.answer(UVERBS_ATTR_REG_DM_MR_RESP_LKEY, &key.to_ne_bytes());
        c.answer(UVERBS_ATTR_REG_DM_MR_RESP_RKEY, &key.to_ne_bytes());
        let object = Object::Mr { key, iova: 0, len };
        self.give(c, UVERBS_ATTR_REG_DM_MR_HANDLE, object, &[pd_handle, dm_handle], 0)
    }

    /// Maps pages other than doorbells: bits 15:8 of the page number are a command, the other bits an index.
    pub(super) fn map(&mut self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        let number = offset / page_bytes();
        let (command, index) = (number >> 8 & 0xff, number & 0xff | number >> 16 << 8);
        if !offset.is_multiple_of(page_bytes()) {
            return Err(Errno::EINVAL);
        }
        match command {
            MLX5_IB_MMAP_DEVICE_MEM => self.map_dm(index, len),
            MLX5_IB_MMAP_CLOCK_INFO if index == 0 => super::clock::map(self.port.now, len),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Maps device memory by its first page.
    fn map_dm(&mut self, index: u64, len: usize) -> Result<Mapping, Errno> {
        let index = u32::try_from(index).map_err(|_| Errno::EINVAL)?;
        let found = self.state.tables.context(self.context)?.find((Numbered::Dm, index));
        let Some(Object::Dm { memory }) = found else { return Err(Errno::EINVAL) };
        let words = Arc::clone(&memory.words);
        if len == 0 || len > size_of_val(&*words) {
            return Err(Errno::EINVAL);
        }
        let ptr = NonNull::from(&*words).cast();
        // SAFETY: `len` bytes of the words (checked), which are atomics, alive while the owner holds them.
        Ok(unsafe { Mapping::new(ptr, len, words) })
    }
}
