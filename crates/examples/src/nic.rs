// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device of a program: one of the machine, or a software NIC.

use anyhow::{Context as _, Result, bail};
use core::time::Duration;
use std::path::Path;
use std::time::Instant;
use uverbs::device::DeviceInfo;
use uverbs::efa_device::{self, EfaDevice};
use uverbs::hca::{Fabric, Hca};
use uverbs::{Context, Driver};
use uverbs_cm::EventChannel;

/// A device.
#[derive(Clone, Debug)]
pub enum Nic {
    /// A device of this machine.
    Machine(Box<DeviceInfo>),
    /// A software NIC of this process.
    Software(Hca),
    /// A software EFA of this process, which has no connections.
    SoftwareEfa(EfaDevice),
}

/// How this process takes part in the network of software NICs of several processes.
#[derive(Clone, Copy, Debug)]
pub enum Joint<'a> {
    /// Not at all.
    None,
    /// Other processes join through this socket.
    Listen(&'a Path),
    /// This process joins through the socket of another one.
    Join(&'a Path),
}

/// The time limit for the socket of the other process to appear.
const JOIN_LIMIT: Duration = Duration::from_secs(30);

/// Whether the name selects a software NIC: `hca` or `efa` and a number, unless the machine has such a device.
fn is_software(prefix: &str, name: &str) -> bool {
    let number = name.strip_prefix(prefix).is_some_and(|n| n.parse::<u8>().is_ok());
    number && !uverbs::devices().is_ok_and(|all| all.iter().any(|d| d.name == name))
}

/// The devices with these names. Software NICs are created, those of a kind on one network.
///
/// # Errors
/// There is no such device, or the socket of the network can't be used.
pub fn find(names: &[String], joint: Joint<'_>) -> Result<Vec<Nic>> {
    let (mut fabric, mut efas) = (None, None);
    let mut nics = Vec::new();
    for name in names {
        if is_software("efa", name) {
            let fabric = match &efas {
                Some(fabric) => fabric,
                None => efas.insert(software_efa(joint)?),
            };
            nics.push(Nic::SoftwareEfa(fabric.device(name).build()));
        } else if is_software("hca", name) {
            let fabric = match &fabric {
                Some(fabric) => fabric,
                None => fabric.insert(software(joint)?),
            };
            nics.push(Nic::Software(fabric.device(name).build()));
        } else {
            let all = uverbs::devices()?;
            let there: Vec<_> = all.iter().map(|d| d.name.clone()).collect();
            match all.into_iter().find(|d| d.name == *name) {
                Some(info) => nics.push(Nic::Machine(info.into())),
                None => bail!("no RDMA device {name} among {there:?} (-d hca0 is a software NIC)"),
            }
        }
    }
    Ok(nics)
}

fn software(joint: Joint<'_>) -> Result<Fabric> {
    let fabric = Fabric::new(0);
    meet(joint, |path| fabric.listen(path), |path| fabric.join(path))?;
    Ok(fabric)
}

fn software_efa(joint: Joint<'_>) -> Result<efa_device::Fabric> {
    let fabric = efa_device::Fabric::new(0);
    meet(joint, |path| fabric.listen(path), |path| fabric.join(path))?;
    Ok(fabric)
}

/// Lets other processes join a network, or joins it.
fn meet(
    joint: Joint<'_>,
    listen: impl Fn(&Path) -> std::io::Result<()>,
    join: impl Fn(&Path) -> std::io::Result<()>,
) -> Result<()> {
    match joint {
        Joint::None => {}
        Joint::Listen(path) => {
            listen(path).with_context(|| format!("cannot listen on {}", path.display()))?
        }
        Joint::Join(path) => {
            // The other process may have been started at the same time.
            let begin = Instant::now();
            while let Err(error) = join(path) {
                if begin.elapsed() >= JOIN_LIMIT {
                    return Err(error).with_context(|| format!("cannot join {}", path.display()));
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    Ok(())
}

impl Nic {
    /// Opens a context.
    ///
    /// # Errors
    /// Those of [`Context::open`].
    pub fn open<D: Driver>(&self) -> uverbs::Result<Context<D>> {
        match self {
            Self::Machine(info) => Context::open(info),
            Self::Software(hca) => Context::from_kernel(hca.open()),
            Self::SoftwareEfa(efa) => Context::from_kernel(efa.open()),
        }
    }

    /// Opens the connection manager of its host.
    ///
    /// # Errors
    /// Those of [`EventChannel::open`].
    pub fn connection_manager(&self) -> uverbs_cm::Result<EventChannel> {
        match self {
            // The manager of the machine knows no software EFA, and reports that.
            Self::Machine(_) | Self::SoftwareEfa(_) => EventChannel::open(),
            Self::Software(hca) => Ok(EventChannel::from_port(hca.connection_manager()?)),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Machine(info) => &info.name,
            Self::Software(hca) => hca.name(),
            Self::SoftwareEfa(efa) => efa.name(),
        }
    }

    /// The beginning of the names of software devices of its kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if matches!(self, Self::SoftwareEfa(_)) { "efa" } else { "hca" }
    }

    /// Another device on the network of a software NIC; a device of the machine itself. For both ends in one process.
    #[must_use]
    pub fn neighbour(&self, name: &str) -> Self {
        match self {
            Self::Machine(_) => self.clone(),
            Self::Software(hca) => Self::Software(hca.fabric().device(name).build()),
            Self::SoftwareEfa(efa) => Self::SoftwareEfa(efa.fabric().device(name).build()),
        }
    }
}
