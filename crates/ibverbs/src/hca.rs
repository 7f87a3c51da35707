// SPDX-License-Identifier: MIT OR Apache-2.0
//! Devices of the software HCA in this process, for programs that are run without hardware.
//!
//! `UVERBS_HCA=2` makes `hca0` and `hca1`; `UVERBS_HCA_LINK=infiniband` makes them InfiniBand devices instead of RoCE
//! ones; with `UVERBS_HCA_DEVX=0` they refuse commands for the firmware. With `UVERBS_HCA_FABRIC=SOCKET` several processes share a fabric: each joins the process that listens on that
//! Unix socket, `uverbs-hca --fabric SOCKET`. If there is none, the first program listens; when it exits, the others
//! lose their links.
#![expect(unsafe_code)]
// UNSAFETY: atexit(3).

use crate::errno::{Errno, Outcome};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use uverbs_core::kernel::Kernel;
use uverbs_hca::{Fabric, Hca, Link};

/// The maximum number of devices.
const MAX: usize = 64;

/// The fabric of several processes, and the id of the process that joined it: a child of fork(2) has nothing to flush.
static FABRIC: OnceLock<(Fabric, u32)> = OnceLock::new();

/// The devices, created on first use.
static DEVICES: OnceLock<Outcome<Vec<Hca>>> = OnceLock::new();

fn devices() -> Outcome<&'static [Hca]> {
    DEVICES.get_or_init(make).as_ref().map(Vec::as_slice).map_err(|errno| *errno)
}

fn make() -> Outcome<Vec<Hca>> {
    let Some(count) = std::env::var_os("UVERBS_HCA") else { return Ok(Vec::new()) };
    let count: usize = count.to_str().and_then(|count| count.parse().ok()).ok_or(Errno::EINVAL)?;
    let link = match std::env::var_os("UVERBS_HCA_LINK") {
        Some(link) if link == "infiniband" => Link::InfiniBand,
        _ => Link::Ethernet,
    };
    let devx = std::env::var_os("UVERBS_HCA_DEVX").is_none_or(|devx| devx != "0");
    let fabric = Fabric::new(u64::from(std::process::id()));
    if let Some(socket) = std::env::var_os("UVERBS_HCA_FABRIC") {
        meet(&fabric, Path::new(&socket))?;
    }
    Ok((0..count.min(MAX))
        .map(|i| fabric.device(&format!("hca{i}")).link(link).devx(devx).ignore_reserved().build())
        .collect())
}

/// Joins the fabric at a socket, or listens on the socket.
fn meet(fabric: &Fabric, socket: &Path) -> Outcome<()> {
    let errno = |e: std::io::Error| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO));
    fabric.meet(socket).map_err(errno)?;
    if FABRIC.set((fabric.clone(), std::process::id())).is_ok() {
        // SAFETY: the function stays mapped: the library is never unloaded (`-z nodelete`).
        unsafe { libc::atexit(flush) };
    }
    Ok(())
}

/// Sends packets that are still queued when the program ends, as a NIC would.
extern "C" fn flush() {
    if let Some((fabric, pid)) = FABRIC.get()
        && *pid == std::process::id()
    {
        fabric.flush();
    }
}

/// The names of the devices.
pub(crate) fn names() -> Outcome<Vec<String>> {
    Ok(devices()?.iter().map(|hca| hca.name().to_owned()).collect())
}

/// The kernel port for a new context.
pub(crate) fn open(index: usize) -> Outcome<Arc<dyn Kernel>> {
    devices()?.get(index).map(Hca::open).ok_or(Errno::ENODEV)
}
