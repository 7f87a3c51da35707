// SPDX-License-Identifier: MIT OR Apache-2.0
//! A context of a device, as the [`Kernel`] port that drivers use.

use super::call::Call;
use super::state::State;
use super::uar;
use crate::cm::HcaCm;
use crate::plugged::Plugged;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{CmPort, DoorbellPage, Kernel, Mapping, Protection, RawCommand, WriteCommand};
use uverbs_uapi::verbs::RDMA_DRIVER_MLX5;

/// One context of a device. It corresponds to an open file of `/dev/infiniband/uverbsN`.
#[derive(Debug)]
pub(crate) struct HcaKernel {
    plugged: Plugged<State>,
    context: u32,
    name: String,
    is_closed: AtomicBool,
}

impl HcaKernel {
    /// A new context of a device.
    pub(crate) fn open(plugged: &Plugged<State>, name: &str) -> Self {
        // If the device does not exist, every call of the context returns an error.
        let context = plugged.enter(|_, state, _| state.open()).unwrap_or_default();
        Self { plugged: plugged.clone(), context, name: name.into(), is_closed: AtomicBool::new(false) }
    }

    /// Ends the context with all its objects, once.
    fn end(&self) {
        if self.plugged.is_here() && !self.is_closed.swap(true, Ordering::Relaxed) {
            let _ = self.call(|call| {
                call.state.close(call.device, call.cx, call.context);
                Ok(())
            });
        }
    }

    fn call<R>(&self, f: impl FnOnce(&mut Call<'_, '_>) -> Result<R, Errno>) -> Result<R, Errno> {
        let context = self.context;
        let result = self.plugged.enter(|device, state, cx| f(&mut Call { device, state, cx, context }));
        result.unwrap_or(Err(Errno::EIO))
    }
}

impl Kernel for HcaKernel {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        if command.driver_id() != RDMA_DRIVER_MLX5 {
            return Err(Errno::EINVAL);
        }
        self.call(|call| call.run(command))
    }

    fn connection_manager(&self) -> uverbs_core::Result<Arc<dyn CmPort>> {
        Ok(Arc::new(HcaCm::open(self.plugged.fabric(), self.plugged.index())?))
    }

    /// mlx5 posts and arms without system calls.
    fn write(&self, _: &mut WriteCommand<'_>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn mmap(&self, offset: u64, len: usize, _: Protection) -> Result<Mapping, Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        self.call(|call| call.map(offset, len))
    }

    fn doorbells(&self, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        let page = self.call(|call| call.map_page(offset, len))?;
        let port = uar::Page::new(self.plugged.clone(), self.context, page);
        Ok(DoorbellPage::Port(Arc::new(port)))
    }

    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        self.call(|call| call.sysfs(path))
    }

    fn device_clock(&self) -> Option<u64> {
        // In a child of fork(2) a thread of the parent may have had the fabric's lock.
        if !self.is_creator_process() {
            return None;
        }
        self.call(|call| Ok(call.cx.now)).ok()
    }

    fn driver_id(&self) -> u32 {
        RDMA_DRIVER_MLX5
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_creator_process(&self) -> bool {
        self.plugged.is_here() && !self.is_closed.load(Ordering::Relaxed)
    }

    #[expect(unsafe_code, reason = "the port's contract")]
    unsafe fn close(&self) {
        self.end();
    }
}

impl Drop for HcaKernel {
    fn drop(&mut self) {
        self.end();
    }
}
