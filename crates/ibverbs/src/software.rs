// SPDX-License-Identifier: MIT OR Apache-2.0
//! Software devices in this process, for programs that are run without hardware.
//!
//! `UVERBS_HCA=2` makes the mlx5 devices `hca0` and `hca1`; `UVERBS_HCA_LINK=infiniband` makes them InfiniBand devices instead of RoCE
//! ones; with `UVERBS_HCA_DEVX=0` they refuse commands for the firmware. `UVERBS_EFA=2` makes the EFA devices `efa0` and `efa1`, of the
//! generation `UVERBS_EFA_GENERATION`.
//!
//! With `UVERBS_HCA_UDP=ADDRESS,...` the first mlx5 devices have these addresses of the host, and exchange packets of RoCE version 2 with
//! devices outside of the process.
//!
//! With `UVERBS_HCA_FABRIC=SOCKET` several processes share a fabric of mlx5 devices: each joins the process that listens on that
//! Unix socket, `uverbs-hca --fabric SOCKET`. If there is none, the first program listens; when it exits, the others
//! lose their links. `UVERBS_EFA_FABRIC=SOCKET` is the same for EFA devices, with `uverbs-efa --fabric SOCKET`; each kind has a fabric of
//! its own.
//!
//! `UVERBS_HCA_FAULTS=FILE` is a script of faults for all of them; with one that can't be read there are no devices.
#![expect(unsafe_code)]
// UNSAFETY: atexit(3).

use crate::errno::{Errno, Outcome};
use core::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use uverbs_core::device::NodeType;
use uverbs_core::kernel::Kernel;
use uverbs_efa_device::{EfaDevice, Generation};
use uverbs_fabric::script::{Rule, of_environment_for};
use uverbs_fabric::{Fabric, Model};
use uverbs_hca::{Hca, Link};

/// The maximum number of devices of a kind.
const MAX: usize = 64;

/// A device.
pub(crate) enum Device {
    Hca(Hca),
    Efa(EfaDevice),
}

impl Device {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Hca(hca) => hca.name(),
            Self::Efa(efa) => efa.name(),
        }
    }

    pub(crate) fn node_type(&self) -> NodeType {
        match self {
            Self::Hca(_) => NodeType::CA,
            Self::Efa(_) => NodeType::UNSPECIFIED,
        }
    }

    pub(crate) fn is_mlx5(&self) -> bool {
        matches!(self, Self::Hca(_))
    }
}

/// What sends the packets of a fabric of several processes that are still queued.
type Flush = Box<dyn Fn() + Send>;

/// The fabrics that reach devices of other processes, and the id of the process that joined them: a child of fork(2) has nothing to flush.
static FABRICS: Mutex<(Vec<Flush>, u32)> = Mutex::new((Vec::new(), 0));

/// The devices, created on first use.
pub(crate) fn devices() -> Outcome<&'static [Device]> {
    static DEVICES: OnceLock<Outcome<Vec<Device>>> = OnceLock::new();
    DEVICES.get_or_init(make).as_ref().map(Vec::as_slice).map_err(|errno| *errno)
}

/// The kernel port for a new context.
pub(crate) fn open(index: usize) -> Outcome<Arc<dyn Kernel>> {
    match devices()?.get(index).ok_or(Errno::ENODEV)? {
        Device::Hca(hca) => Ok(hca.open()),
        Device::Efa(efa) => Ok(efa.open()),
    }
}

/// Whether a device has a script of faults.
pub(crate) fn is_scripted(index: usize) -> bool {
    match devices().ok().and_then(|all| all.get(index)) {
        Some(Device::Hca(hca)) => hca.is_scripted(),
        Some(Device::Efa(efa)) => efa.is_scripted(),
        None => false,
    }
}

/// The error that the script of a device gives a work request.
pub(crate) fn script_post(index: usize, verb: &str, queue: u32) -> Option<Errno> {
    match devices().ok()?.get(index)? {
        Device::Hca(hca) => hca.script_post(verb, queue),
        Device::Efa(efa) => efa.script_post(verb, queue),
    }
}

/// Reads the script. A rule that has no effect on any device of the process is an error.
fn script() -> Result<(), String> {
    fn of<M: Model>(_: Option<&Fabric<M>>, rule: &Rule) -> Option<&'static str> {
        M::refuses(rule)
    }
    let is_set = |name: &str| std::env::var_os(name).is_some();
    let has_hca = is_set("UVERBS_HCA") || is_set("UVERBS_HCA_UDP");
    let refuses = |rule: &Rule| match (has_hca, is_set("UVERBS_EFA")) {
        (true, true) => {
            of(None::<&uverbs_hca::Fabric>, rule).and(of(None::<&uverbs_efa_device::Fabric>, rule))
        }
        (true, false) => of(None::<&uverbs_hca::Fabric>, rule),
        (false, true) => of(None::<&uverbs_efa_device::Fabric>, rule),
        (false, false) => None,
    };
    of_environment_for(refuses).map(drop)
}

fn make() -> Outcome<Vec<Device>> {
    // A program whose faults are not those that were asked for would pass its test in vain.
    if let Err(error) = script() {
        log::error!("{error}");
        return Err(Errno::EINVAL);
    }
    let mut devices = Vec::new();
    let addresses = addresses("UVERBS_HCA_UDP")?;
    let count = number("UVERBS_HCA")?.or_else(|| Some(addresses.len()).filter(|count| *count > 0));
    if let Some(count) = count {
        let fabric: uverbs_hca::Fabric = fabric("UVERBS_HCA_FABRIC")?;
        let link = match std::env::var_os("UVERBS_HCA_LINK") {
            Some(link) if link == "infiniband" => Link::InfiniBand,
            _ => Link::Ethernet,
        };
        let devx = std::env::var_os("UVERBS_HCA_DEVX").is_none_or(|devx| devx != "0");
        let device = |i: usize| {
            let device = fabric.device(&format!("hca{i}")).link(link).devx(devx).ignore_reserved();
            match addresses.get(i) {
                Some(address) => device.build_udp(*address).map(Device::Hca).map_err(|e| errno(&e)),
                None => Ok(Device::Hca(device.build())),
            }
        };
        for i in 0..count.min(MAX) {
            devices.push(device(i)?);
        }
        crate::software_cm::attach();
        if !addresses.is_empty() {
            flush_at_exit(&fabric)?;
        }
    }
    if let Some(count) = number("UVERBS_EFA")? {
        let fabric: uverbs_efa_device::Fabric = fabric("UVERBS_EFA_FABRIC")?;
        let generation = match number("UVERBS_EFA_GENERATION")? {
            None => Generation::default(),
            Some(1) => Generation::First,
            Some(2) => Generation::Second,
            Some(3) => Generation::Third,
            Some(4) => Generation::Fourth,
            Some(5) => Generation::Fifth,
            Some(_) => return Err(Errno::EINVAL),
        };
        let device = |i| fabric.device(&format!("efa{i}")).generation(generation).build();
        devices.extend((0..count.min(MAX)).map(device).map(Device::Efa));
    }
    Ok(devices)
}

/// The number in an environment variable, `None` if it is not set.
fn number(variable: &str) -> Outcome<Option<usize>> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    value.to_str().and_then(|value| value.parse().ok()).map(Some).ok_or(Errno::EINVAL)
}

/// A new fabric. If the environment variable has a socket, it joins the fabric there, or listens on the socket.
fn fabric<M: Model>(variable: &str) -> Outcome<Fabric<M>> {
    let fabric = Fabric::new(u64::from(std::process::id()));
    if let Some(socket) = std::env::var_os(variable) {
        fabric.meet(Path::new(&socket)).map_err(|e| errno(&e))?;
        flush_at_exit(&fabric)?;
    }
    Ok(fabric)
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Sends packets that are still queued when the program ends.
fn flush_at_exit<M: Model>(fabric: &Fabric<M>) -> Outcome<()> {
    let kept = fabric.clone();
    let mut fabrics = FABRICS.lock().map_err(|_| Errno::EIO)?;
    fabrics.0.push(Box::new(move || kept.flush()));
    fabrics.1 = std::process::id();
    if fabrics.0.len() == 1 {
        // SAFETY: the function stays mapped: the library is never unloaded (`-z nodelete`).
        unsafe { libc::atexit(flush) };
    }
    Ok(())
}

/// The IP addresses in an environment variable, separated by commas.
fn addresses(variable: &str) -> Outcome<Vec<IpAddr>> {
    let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) else {
        return Ok(Vec::new());
    };
    let value = value.to_str().ok_or(Errno::EINVAL)?;
    value.split(',').map(|address| address.trim().parse().map_err(|_| Errno::EINVAL)).collect()
}

/// Sends packets that are still queued when the program ends, as a NIC would.
extern "C" fn flush() {
    // A thread that has the lock is in the first call that lists devices: nothing was sent yet.
    if let Ok(fabrics) = FABRICS.try_lock()
        && fabrics.1 == std::process::id()
    {
        fabrics.0.iter().for_each(|flush| flush());
    }
}
