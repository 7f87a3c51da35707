// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbell pages (UARs): as objects, or allocated with the context as by older kernels.

use super::call::Call;
use super::object::{Numbered, Object};
use super::state::State;
use super::watch::Watched;
use crate::front::Plugged;
use std::sync::{Arc, OnceLock};
use uverbs_core::Errno;
use uverbs_core::kernel::{DoorbellPort, RawCommand, Registers, page_size};
use uverbs_softkernel::attr::{known, number};
use uverbs_softkernel::{Call as _, ring};
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE,
};
use uverbs_uapi::mlx5::{
    MLX5_IB_MMAP_NC_PAGE, MLX5_IB_MMAP_REGULAR_PAGE, MLX5_IB_MMAP_WC_PAGE, MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF,
    MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC,
};

/// The mmap(2) offsets of pages that are objects. They are above all offsets of commands.
const OBJECTS: u64 = 1 << 44;

/// Bytes of a page that is mapped. Each page has one UAR, as on a device whose UARs have the size of the machine's pages.
fn page_bytes() -> u64 {
    page_size().into()
}

/// A page, with the interface for drivers.
#[derive(Debug)]
pub(super) struct Page {
    plugged: Plugged<State>,
    context: u32,
    page: u32,
    /// The page as memory, from the first request on.
    memory: OnceLock<Option<(Arc<Watched>, Registers)>>,
}

impl Page {
    pub(super) fn new(plugged: Plugged<State>, context: u32, page: u32) -> Self {
        Self { plugged, context, page, memory: OnceLock::new() }
    }

    fn doorbell(&self, offset: u32, value: [u8; 8], burst: Option<&[u8]>) {
        ring(&self.plugged, self.context, |device, port| {
            device.doorbell(port, self.page, offset, value, burst);
        });
    }
}

impl DoorbellPort for Page {
    fn ring(&self, offset: u32, value: [u8; 8]) {
        self.doorbell(offset, value, None);
    }

    fn blueflame(&self, offset: u32, wqe: &[u8]) {
        let value = wqe.first_chunk().copied().unwrap_or_default();
        self.doorbell(offset, value, Some(wqe));
    }

    fn registers(&self) -> Option<Registers> {
        let memory = self.memory.get_or_init(|| {
            // The record may be ahead of the value when a store to this memory is found.
            self.plugged.enter_device(|device, _| device.late_doorbells = true);
            Watched::start(&self.plugged, self.page)
        });
        memory.as_ref().map(|(_, registers)| registers.clone())
    }
}

impl Call<'_, '_> {
    pub(super) fn alloc_uar(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        if !self.state.config.dynamic_uars {
            return Err(Errno::EPROTONOSUPPORT);
        }
        known(
            c,
            &[
                MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE,
                MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE,
                MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET,
                MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH,
                MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID,
            ],
        )?;
        match number(c, MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE) {
            Some(MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC) => {}
            Some(MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF) if self.state.config.blue_flame => {}
            Some(MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF) => return Err(Errno::EOPNOTSUPP),
            _ => return Err(Errno::EINVAL),
        }
        let page = self.state.add_page()?;
        let offset = OBJECTS + u64::from(page) * page_bytes();
        c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &offset.to_ne_bytes());
        c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &page_size().to_ne_bytes());
        c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &page.to_ne_bytes());
        self.give(c, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, Object::Uar { page }, &[], 0)
    }

    pub(super) fn destroy_uar(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        known(c, &[MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE])?;
        self.destroy(c, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, |o| matches!(o, Object::Uar { .. }))?;
        Ok(())
    }

    /// The page of an mmap(2) offset, which is that of an object, or has a command and an index (`mlx5_ib_mmap()`).
    pub(super) fn map_page(&mut self, offset: u64, len: usize) -> Result<u32, Errno> {
        let bytes = page_bytes();
        if len as u64 != bytes || !offset.is_multiple_of(bytes) {
            return Err(Errno::EINVAL);
        }
        let context = self.state.tables.context(self.context)?;
        let number = offset / bytes;
        if let Some(page) = offset.checked_sub(OBJECTS).and_then(|o| u32::try_from(o / bytes).ok()) {
            return context.find((Numbered::Page, page)).map(|_| page).ok_or(Errno::EINVAL);
        }
        // Bits 15:8 of the page number are the command, the others the index.
        let (command, index) = (number >> 8 & 0xff, number & 0xff | number >> 16 << 8);
        if !matches!(command, MLX5_IB_MMAP_REGULAR_PAGE | MLX5_IB_MMAP_WC_PAGE | MLX5_IB_MMAP_NC_PAGE) {
            return Err(Errno::EINVAL);
        }
        let index = usize::try_from(index).map_err(|_| Errno::EINVAL)?;
        context.data.static_pages.get(index).copied().ok_or(Errno::EINVAL)
    }
}
