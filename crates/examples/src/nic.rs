// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device of a program: one of the machine, or a software NIC.

use anyhow::{Context as _, Result, bail};
use core::time::Duration;
use std::path::Path;
use std::time::Instant;
use uverbs::attr::DriverQp;
use uverbs::device::DeviceInfo;
use uverbs::software::{Device, Fabric, MODELS, model_of};
use uverbs::{Context, Driver};
use uverbs_cm::EventChannel;

/// A device.
#[derive(Clone, Debug)]
pub enum Nic {
    /// A device of this machine.
    Machine(Box<DeviceInfo>),
    /// A software NIC of this process, of any model.
    Software(Device),
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

/// The devices with these names. Software NICs are created, those of a model on one network.
///
/// # Errors
/// There is no such device, or the socket of the network can't be used.
pub fn find(names: &[String], joint: Joint<'_>) -> Result<Vec<Nic>> {
    let mut fabrics: Vec<Fabric> = Vec::new();
    let mut nics = Vec::new();
    for name in names {
        let of_machine = uverbs::devices();
        if let Ok(all) = &of_machine
            && let Some(info) = all.iter().find(|device| device.name == *name)
        {
            nics.push(Nic::Machine(info.clone().into()));
        } else if let Some(model) = model_of(name) {
            let fabric = match fabrics.iter().find(|fabric| fabric.model() == model) {
                Some(fabric) => fabric.clone(),
                None => {
                    let fabric = model.fabric(0);
                    meet(joint, &fabric)?;
                    fabrics.push(fabric.clone());
                    fabric
                }
            };
            nics.push(Nic::Software(fabric.device(name)));
        } else {
            let there: Vec<_> = of_machine?.into_iter().map(|device| device.name).collect();
            bail!("no RDMA device {name} among {there:?} (-d hca0 is a software NIC)")
        }
    }
    Ok(nics)
}

/// A software NIC of this process that has SRD.
///
/// # Errors
/// No model of this build has SRD.
pub fn with_srd() -> Result<Nic> {
    for model in MODELS {
        let device = model.fabric(std::process::id().into()).device(&model.name(0));
        let context: Context = Context::from_kernel(device.open())?;
        if context.driver_qp() == Some(DriverQp::Srd) {
            return Ok(Nic::Software(device));
        }
    }
    bail!("no software NIC has SRD")
}

/// Lets other processes join a network, or joins it.
fn meet(joint: Joint<'_>, fabric: &Fabric) -> Result<()> {
    match joint {
        Joint::None => {}
        Joint::Listen(path) => {
            fabric.listen(path).with_context(|| format!("cannot listen on {}", path.display()))?
        }
        Joint::Join(path) => {
            // The other process may have been started at the same time.
            let begin = Instant::now();
            while let Err(error) = fabric.join(path) {
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
    /// A software NIC of this process.
    pub fn software(device: impl Into<Device>) -> Self {
        Self::Software(device.into())
    }

    /// Opens a context.
    ///
    /// # Errors
    /// Those of [`Context::open`].
    pub fn open<D: Driver>(&self) -> uverbs::Result<Context<D>> {
        match self {
            Self::Machine(info) => Context::open(info),
            Self::Software(device) => Context::from_kernel(device.open()),
        }
    }

    /// Opens the connection manager of its host.
    ///
    /// # Errors
    /// Those of [`EventChannel::open`].
    pub fn connection_manager(&self) -> uverbs_cm::Result<EventChannel> {
        match self {
            Self::Software(device) if device.has_ip() => {
                Ok(EventChannel::from_port(device.connection_manager()?))
            }
            // The manager of the machine knows no software device, and reports that.
            Self::Machine(_) | Self::Software(_) => EventChannel::open(),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Machine(info) => &info.name,
            Self::Software(device) => device.name(),
        }
    }

    /// Another device on the network of a software NIC, whose name has this number; a device of the machine itself. For both ends in one
    /// process.
    #[must_use]
    pub fn neighbour(&self, number: usize) -> Self {
        match self {
            Self::Machine(_) => self.clone(),
            Self::Software(device) => Self::Software(device.fabric().device(&device.model().name(number))),
        }
    }
}
