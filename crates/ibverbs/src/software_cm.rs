// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection manager of the first software device that has one, in place of the kernel's `/dev/infiniband/rdma_cm`.
//!
//! librdmacm opens that file and writes commands to it. A library that is preloaded, as `tests/clients/c/rdma_cm.c`, hands its calls to this
//! one: if it has the function `uverbs_software_cm`, that is called with pointers to the functions below when the devices are made. A descriptor
//! is that of an event channel, which is readable while there is an event; it is used for nothing else.
#![expect(unsafe_code)]
// UNSAFETY: functions that C calls, dlsym(3), and the addresses in commands.

use crate::errno::{Errno, Outcome};
use crate::software;
use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use uverbs_core::kernel::{CmPort, run_written};
use uverbs_core::sync::StaticMutex;
use uverbs_uapi::rdma_cm::{RDMA_USER_CM_CMD_MIGRATE_ID, rdma_ucm_cmd_hdr, rdma_ucm_migrate_id};

/// What the preloaded library gets. Results are negative errnos.
#[repr(C)]
struct Calls {
    /// A new channel: its descriptor.
    open: extern "C" fn() -> c_int,
    /// write(2) to a channel, which never waits.
    write: unsafe extern "C" fn(c_int, *const c_void, usize) -> c_int,
    /// close(2) of a channel.
    close: extern "C" fn(c_int),
}

static CALLS: Calls = Calls { open, write, close };

/// The open channels, by the program's descriptor. That is a copy of the device's: write(2) to the device's is the signal of an event.
static CHANNELS: StaticMutex<BTreeMap<c_int, Channel>> = StaticMutex::new();

/// A channel: the program's descriptor, and the device's channel.
type Channel = (OwnedFd, Arc<dyn CmPort>);

/// Tells a preloaded library of the functions.
pub(crate) fn attach() {
    // SAFETY: the name ends with a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"uverbs_software_cm".as_ptr()) };
    if found.is_null() {
        return;
    }
    // SAFETY: a function of this name has this type (documentation of the module).
    let attach: extern "C" fn(&'static Calls) = unsafe { core::mem::transmute(found) };
    attach(&CALLS);
}

fn channel(fd: c_int) -> Option<Arc<dyn CmPort>> {
    CHANNELS.lock().get(&fd).map(|(_, port)| Arc::clone(port))
}

extern "C" fn open() -> c_int {
    let devices = software::devices().unwrap_or_default();
    let Some(device) = devices.iter().find(|device| device.has_ip()) else { return -Errno::ENODEV.raw() };
    let port = match device.connection_manager() {
        Ok(port) => port,
        Err(error) => return -error.errno().raw(),
    };
    let Ok(copy) = port.fd().try_clone_to_owned() else { return -Errno::EMFILE.raw() };
    let fd = copy.as_raw_fd();
    CHANNELS.lock().insert(fd, (copy, port));
    fd
}

/// # Safety
/// As write(2) of an open `/dev/infiniband/rdma_cm`: `bytes` is valid for reads of `len` bytes, and so are the addresses in them.
unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: usize) -> c_int {
    let Some(port) = channel(fd) else { return -Errno::EBADF.raw() };
    if bytes.is_null() || len > 1 << 16 {
        return -Errno::EINVAL.raw();
    }
    // SAFETY: not NULL (checked), valid for reads (contract of this function), and short.
    let mut bytes = unsafe { core::slice::from_raw_parts(bytes.cast::<u8>(), len) }.to_vec();
    if let Err(errno) = name_device_channel(&mut bytes) {
        return -errno.raw();
    }
    // SAFETY: the contract of this function.
    match unsafe { run_written(&*port, &bytes) } {
        Ok(()) => 0,
        Err(errno) => -errno.raw(),
    }
}

/// A command that names another channel by its descriptor gets that of the device.
fn name_device_channel(bytes: &mut [u8]) -> Outcome<()> {
    const AT: usize = size_of::<rdma_ucm_cmd_hdr>() + core::mem::offset_of!(rdma_ucm_migrate_id, fd);
    if !bytes.starts_with(&RDMA_USER_CM_CMD_MIGRATE_ID.to_ne_bytes()) {
        return Ok(());
    }
    let place = bytes.get_mut(AT..AT + 4).ok_or(Errno::EINVAL)?;
    let fd = place.first_chunk().map_or(-1, |bytes| i32::from_ne_bytes(*bytes));
    let other = channel(fd).ok_or(Errno::EINVAL)?;
    place.copy_from_slice(&other.fd().as_raw_fd().to_ne_bytes());
    Ok(())
}

extern "C" fn close(fd: c_int) {
    let closed = CHANNELS.lock().remove(&fd);
    // Not under the lock: a channel that closes ends its connections.
    drop(closed);
}
