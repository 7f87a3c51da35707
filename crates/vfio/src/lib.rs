// SPDX-License-Identifier: MIT OR Apache-2.0
//! What software devices have in common as PCI functions of VMs, whichever hardware they model: the vfio-user server, the
//! configuration space, access to the memory of a VM, interrupts, and the program around them.
//!
//! A model implements [`Function`] for what a VM does to it, and [`Device`] for the commands and options of its program.
//!
//! | module | contents |
//! |---|---|
//! | `config` | the configuration space of a [`Layout`] |
//! | `guest` | the memory that a VM maps for the device, by bus address |
//! | `vectors` | interrupts |
//! | `server` | vfio-user: regions, mappings, interrupts, resets |
//! | `control` | commands to a running fabric |
//! | `program` | the options that all programs have, and their run |

mod config;
mod control;
mod guest;
mod program;
mod server;
mod vectors;

pub use config::{Bar, Layout};
pub use control::Control;
pub use guest::{Guest, Mapped, Unmapped, sealed};
pub use program::{Options, main};
pub use server::{Function, serve};
pub use vectors::Vectors;

use std::sync::Arc;
use uverbs_fabric::{Model, Plugged};

/// What a function may access of its VM.
#[derive(Debug, Default)]
pub struct Vm {
    /// Memory.
    pub memory: Arc<Guest>,
    /// Interrupts.
    pub vectors: Vectors,
}

/// A device that a program offers to VMs. Clones are the same device.
pub trait Device: Function {
    /// The model of its fabric.
    type Model: Model;

    /// The commands that only this model has, for `help`.
    const COMMANDS: &'static str;

    /// Its name.
    fn name(&self) -> String;

    /// The device: its port, its counters and the violations of drivers.
    fn plugged(&self) -> Plugged<Self::Model, ()>;

    /// What drivers used and the device does not have, for the summary at the end.
    fn unknown(&self) -> Vec<String> {
        Vec::new()
    }

    /// A command of this model: its name, and the arguments after the number of the device. `None` if there is no such command.
    fn command(&self, name: &str, args: &[&str]) -> Option<Result<String, String>>;
}
