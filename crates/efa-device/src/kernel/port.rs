// SPDX-License-Identifier: MIT OR Apache-2.0
//! A context of a device, as the [`Kernel`] port that drivers use.

use super::call::Call;
use super::maps::Bells;
use super::state::State;
use crate::station::Plugged;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{
    DoorbellPage, DoorbellPort, Kernel, Mapping, Protection, RawCommand, WriteCommand,
};
use uverbs_uapi::verbs::RDMA_DRIVER_EFA;

/// The offsets of doorbells in a page. They are not 0, so that a driver that ignores them is detected.
pub(super) const SQ_BELL: u32 = 0x40;
pub(super) const RQ_BELL: u32 = 0x80;
pub(super) const CQ_BELL: u32 = 0xc0;

/// One context of a device. It corresponds to an open file of `/dev/infiniband/uverbsN`.
#[derive(Debug)]
pub(crate) struct EfaKernel {
    plugged: Plugged<State>,
    context: u32,
    name: String,
    is_closed: AtomicBool,
}

impl EfaKernel {
    /// A new context of a device.
    pub(crate) fn open(plugged: &Plugged<State>, name: &str) -> Self {
        // If the device does not exist, every call of the context returns an error.
        let context = plugged.enter(|_, state, _| state.tables.open()).unwrap_or_default();
        Self { plugged: plugged.clone(), context, name: name.into(), is_closed: AtomicBool::new(false) }
    }

    /// Ends the context with all its objects, once.
    fn end(&self) {
        if self.plugged.is_here() && !self.is_closed.swap(true, Ordering::Relaxed) {
            let _ = self.call(|call| {
                call.state.close(call.device, call.port, call.context);
                Ok(())
            });
        }
    }

    fn call<R>(&self, f: impl FnOnce(&mut Call<'_, '_>) -> Result<R, Errno>) -> Result<R, Errno> {
        if !self.plugged.is_here() {
            return Err(Errno::ESTALE);
        }
        let context = self.context;
        let result = self.plugged.enter(|device, state, port| f(&mut Call { device, state, port, context }));
        result.unwrap_or(Err(Errno::EIO))
    }
}

impl Kernel for EfaKernel {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        if command.driver_id() != RDMA_DRIVER_EFA {
            return Err(Errno::EINVAL);
        }
        self.call(|call| call.run(command))
    }

    /// efa posts and arms without system calls.
    fn write(&self, _: &mut WriteCommand<'_>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        self.call(|call| call.state.context(call.context)?.data.maps.ring(offset, len, protection))
    }

    fn doorbells(&self, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        let bells = self.call(|call| call.state.context(call.context)?.data.maps.bells(offset, len))?;
        Ok(DoorbellPage::Port(Arc::new(BellPage {
            plugged: self.plugged.clone(),
            context: self.context,
            bells,
        })))
    }

    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        self.call(|call| call.sysfs(path))
    }

    fn driver_id(&self) -> u32 {
        RDMA_DRIVER_EFA
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

impl Drop for EfaKernel {
    fn drop(&mut self) {
        self.end();
    }
}

/// A page of doorbells.
#[derive(Debug)]
struct BellPage {
    plugged: Plugged<State>,
    context: u32,
    bells: Bells,
}

impl DoorbellPort for BellPage {
    /// The device has registers of 4 bytes.
    fn ring(&self, offset: u32, value: [u8; 8]) {
        let [a, b, c, d, ..] = value;
        self.ring_word(offset, [a, b, c, d]);
    }

    fn ring_word(&self, offset: u32, value: [u8; 4]) {
        // The device does not exist in a child of fork(2).
        if !self.plugged.is_here() {
            return;
        }
        let value = u32::from_le_bytes(value);
        self.plugged.enter(|device, kernel, port| {
            // The kernel replaces the pages of a removed device by pages without a device.
            if kernel.tables.has_ended(self.context) {
                return;
            }
            match (self.bells, offset) {
                (Bells::Qp(qpn), SQ_BELL) => device.sq_doorbell(port, qpn, value),
                (Bells::Qp(qpn), RQ_BELL) => device.rq_doorbell(port, qpn, value),
                (Bells::Cq(cq), CQ_BELL) => device.cq_doorbell(port, cq, value),
                (bells, _) => device.wrong_doorbell(port, bells.object(), offset),
            }
        });
    }

    /// Send entries are written to a mapping, not to a page of doorbells.
    fn blueflame(&self, offset: u32, _: &[u8]) {
        self.plugged.enter_device(|device, port| device.wrong_doorbell(port, self.bells.object(), offset));
    }
}
