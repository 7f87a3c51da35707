// SPDX-License-Identifier: MIT OR Apache-2.0
//! Software devices in this process, for programs that are run without hardware.
//!
//! Environment variables select them, such as `UVERBS_HCA=2` ([`uverbs_software::of_environment`]; all variables are in
//! `docs/src/reference/environment.md`). Without a fabric at the socket that they name, the first program listens there; when it exits, the others
//! lose their links. With a script of faults that can't be read there are no devices.
#![expect(unsafe_code)]
// UNSAFETY: atexit(3).

use crate::errno::{Errno, Outcome};
use std::sync::{Arc, Mutex, OnceLock};
use uverbs_core::kernel::Kernel;
use uverbs_software::{Device, Fabric, Made, of_environment};

/// The fabrics that reach devices of other processes, and the id of the process that joined them: a child of fork(2) has nothing to flush.
static FABRICS: Mutex<(Vec<Fabric>, u32)> = Mutex::new((Vec::new(), 0));

/// The devices, created on first use.
pub(crate) fn devices() -> Outcome<&'static [Device]> {
    static DEVICES: OnceLock<Outcome<Vec<Device>>> = OnceLock::new();
    DEVICES.get_or_init(make).as_ref().map(Vec::as_slice).map_err(|errno| *errno)
}

/// The device with an index.
pub(crate) fn device(index: usize) -> Outcome<&'static Device> {
    devices()?.get(index).ok_or(Errno::ENODEV)
}

/// The kernel port for a new context.
pub(crate) fn open(index: usize) -> Outcome<Arc<dyn Kernel>> {
    device(index).map(Device::open)
}

fn make() -> Outcome<Vec<Device>> {
    let Made { devices, shared } = of_environment()?;
    if devices.iter().any(Device::has_ip) {
        crate::software_cm::attach();
    }
    flush_at_exit(shared)?;
    Ok(devices)
}

/// Sends packets that are still queued on these fabrics when the program ends.
fn flush_at_exit(shared: Vec<Fabric>) -> Outcome<()> {
    if !shared.is_empty() {
        *FABRICS.lock().map_err(|_| Errno::EIO)? = (shared, std::process::id());
        // SAFETY: the function stays mapped: the library is never unloaded (`-z nodelete`).
        unsafe { libc::atexit(flush) };
    }
    Ok(())
}

/// Sends packets that are still queued when the program ends, as a NIC would.
extern "C" fn flush() {
    // A thread that has the lock is in the first call that lists devices: nothing was sent yet.
    if let Ok(fabrics) = FABRICS.try_lock()
        && fabrics.1 == std::process::id()
    {
        fabrics.0.iter().for_each(Fabric::flush);
    }
}
