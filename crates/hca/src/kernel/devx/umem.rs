// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of a program that commands name by a number (UMEM).

use crate::kernel::call::Call;
use crate::kernel::memory::check_present;
use crate::kernel::object::{Numbered, Object};
use crate::memory::{Area, Fault, Memory};
use crate::prm::Status;
use crate::prm::place::Place;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{flags, known, number};
use uverbs_softkernel::program_memory::{memory_at, memory_of_file};
use uverbs_uapi::mlx5::devx as abi;

/// Registered memory. The objects that use it hold it, too.
#[derive(Debug)]
pub(crate) struct Umem {
    id: u32,
    memory: Arc<dyn Memory>,
}

impl Umem {
    pub(in crate::kernel) fn id(&self) -> u32 {
        self.id
    }

    /// Whether an object of the device uses it.
    pub(in crate::kernel) fn is_busy(&self) -> bool {
        Arc::strong_count(&self.memory) > 1
    }
}

/// A part of a memory, for a key.
#[derive(Debug)]
struct Part {
    area: Area,
}

impl Memory for Part {
    fn len(&self) -> u64 {
        self.area.size()
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        self.area.read(offset, to)
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        self.area.write(offset, from)
    }

    fn update(&self, offset: u64, f: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        self.area.update(offset, f)
    }

    fn load_be32(&self, offset: u64) -> Result<u32, Fault> {
        self.area.load_be32(offset)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.area.publish(offset, bytes)
    }
}

impl Call<'_, '_> {
    pub(super) fn devx_reg_umem(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                abi::MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE,
                abi::MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR,
                abi::MLX5_IB_ATTR_DEVX_UMEM_REG_LEN,
                abi::MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS,
                abi::MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID,
                abi::MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP,
                abi::MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD,
            ],
        )?;
        self.need_devx()?;
        let addr = number(c, abi::MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR).ok_or(Errno::EINVAL)?;
        let len = number(c, abi::MLX5_IB_ATTR_DEVX_UMEM_REG_LEN).ok_or(Errno::EINVAL)?;
        check_present(flags(c, abi::MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS)?)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let memory = match c.has(abi::MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD) {
            true => {
                let fd = c.fd(abi::MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD).ok_or(Errno::EBADF)?;
                memory_of_file(std::os::fd::AsRawFd::as_raw_fd(&fd), addr, len)?
            }
            false => memory_at(c, addr, len)?,
        };
        if c.has(abi::MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP) {
            // Pages of the process have 4 KiB, which the mask must permit.
            let sizes = number(c, abi::MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP).unwrap_or(0);
            if sizes & 0x1000 == 0 {
                return Err(Errno::EINVAL);
            }
        }
        let id = self.state.number();
        c.answer(abi::MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, &id.to_ne_bytes());
        let object = Object::Umem(Umem { id, memory });
        self.give(c, abi::MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, object, &[], 0)
    }

    /// The memory of this context with a number.
    fn umem(&mut self, id: u32) -> Result<&Arc<dyn Memory>, Status> {
        let context = self.state.tables.context(self.context).map_err(|_| Status::BAD_RESOURCE)?;
        match context.find((Numbered::Umem, id)) {
            Some(Object::Umem(umem)) => Ok(&umem.memory),
            _ => Err(Status::BAD_RESOURCE),
        }
    }

    /// `len` bytes behind the first `at` of the memory that a command describes. Programs have no other memory.
    pub(super) fn in_umem(&mut self, bytes: &[u8], place: &Place, at: u64, len: u64) -> Result<Area, Status> {
        if !place.valid.is_set(bytes) {
            return Err(Status::BAD_PARAM);
        }
        let memory = Arc::clone(self.umem(place.id.get32(bytes))?);
        let start = place.offset.get(bytes).checked_add(at).ok_or(Status::BAD_PARAM)?;
        Area::new(memory, start, len).ok_or(Status::BAD_PARAM)
    }

    /// The doorbell record that a context describes.
    pub(super) fn record_in_umem(&mut self, context: &[u8], place: &Place) -> Result<Area, Status> {
        match self.in_umem(context, place, 0, 8)? {
            area if place.offset.get(context).is_multiple_of(8) => Ok(area),
            _ => Err(Status::BAD_PARAM),
        }
    }

    /// The region that a command describes.
    pub(super) fn region_in_umem(
        &mut self,
        bytes: &[u8],
        place: &Place,
        len: u64,
    ) -> Result<Arc<dyn Memory>, Status> {
        Ok(Arc::new(Part { area: self.in_umem(bytes, place, 0, len)? }))
    }
}
