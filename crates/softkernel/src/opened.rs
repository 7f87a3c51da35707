// SPDX-License-Identifier: MIT OR Apache-2.0
//! A context of a device, as the [`Kernel`] port that drivers use.

use crate::driver::{Driver, Entered, PluggedOf, PortOf};
use crate::script;
use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{CmPort, DoorbellPage, Kernel, Mapping, Protection, RawCommand, WriteCommand};

/// One context of a device. It corresponds to an open file of `/dev/infiniband/uverbsN`: its objects are destroyed with it.
pub struct Opened<D: Driver> {
    plugged: PluggedOf<D>,
    context: u32,
    name: String,
    is_closed: AtomicBool,
}

impl<D: Driver> fmt::Debug for Opened<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { plugged, context, name, is_closed } = self;
        f.debug_struct("Opened")
            .field("plugged", plugged)
            .field("context", context)
            .field("name", name)
            .field("is_closed", is_closed)
            .finish()
    }
}

impl<D: Driver> Opened<D> {
    /// A new context of a device.
    pub fn open(plugged: &PluggedOf<D>, name: &str) -> Self {
        // If the device does not exist, every call of the context returns an error.
        let context = plugged.enter_beside(|_, state, _| state.tables_mut().open()).unwrap_or_default();
        Self { plugged: plugged.clone(), context, name: name.into(), is_closed: AtomicBool::new(false) }
    }

    /// Ends the context with all its objects, once.
    fn end(&self) {
        if self.plugged.is_here() && !self.is_closed.swap(true, Ordering::Relaxed) {
            let context = self.context;
            self.plugged.enter(|device, state, port| state.close(device, port, context));
        }
    }

    /// `waits` says whether the call waits for copies of long messages: [`Fabric::enter_if`](uverbs_fabric::Fabric::enter_if).
    fn call<R>(
        &self,
        waits: bool,
        f: impl FnOnce(Entered<'_, '_, D>) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        // In a child of fork(2) a thread of the parent may have had the fabric's lock.
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        let context = self.context;
        let f = |device: &mut D::Model, state: &mut D, port: &mut PortOf<'_, D>| {
            f(Entered { device, state, port, context })
        };
        let result = self.plugged.enter_if(waits, f);
        result.unwrap_or(Err(Errno::EIO))
    }
}

/// The error that a script gives a mapping of memory.
fn by_script<D: Driver>(entered: &mut Entered<'_, '_, D>) -> Result<(), Errno> {
    let port = &mut *entered.port;
    port.net.script_call(port.now, port.me, "mmap", None).map_or(Ok(()), Err)
}

impl<D: Driver> Kernel for Opened<D> {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let waits = !script::ends_nothing(command);
        self.call(waits, |entered| {
            if command.driver_id() == D::ID { D::run(entered, command) } else { Err(Errno::EINVAL) }
        })
    }

    fn connection_manager(&self) -> uverbs_core::Result<Arc<dyn CmPort>> {
        D::connection_manager(&self.plugged)
    }

    /// The drivers post and arm without system calls.
    fn write(&self, _: &mut WriteCommand<'_>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.call(false, |mut entered| {
            by_script(&mut entered)?;
            D::map(entered, offset, len, protection)
        })
    }

    fn doorbells(&self, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        self.call(false, |entered| D::doorbells(entered, &self.plugged, offset, len)).map(DoorbellPage::Port)
    }

    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.call(false, |entered| D::attribute(entered, path))
    }

    fn device_clock(&self) -> Option<u64> {
        if D::HAS_CLOCK { self.call(false, |entered| Ok(entered.port.now)).ok() } else { None }
    }

    fn driver_id(&self) -> u32 {
        D::ID
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

impl<D: Driver> Drop for Opened<D> {
    fn drop(&mut self) {
        self.end();
    }
}
