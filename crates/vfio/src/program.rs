// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that offers devices to VMs, whichever they are: its options, its threads and its end.

use crate::{Control, Device, serve};
use anyhow::{Context as _, Result, bail};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use uverbs_fabric::order::Setting;
use uverbs_fabric::{Fabric, Model};

/// The options that all programs have.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Socket of a device; may be given more than once
    #[arg(long, required_unless_present = "fabric", value_name = "PATH")]
    pub socket: Vec<PathBuf>,
    /// Socket for commands
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Socket at which other processes join this fabric
    #[arg(long, value_name = "PATH")]
    pub fabric: Option<PathBuf>,
    /// Joins the fabric of the process that has --fabric OTHER; waits a limited time for that process
    #[arg(long, value_name = "OTHER", conflicts_with = "fabric", requires = "socket")]
    pub join: Option<PathBuf>,
    /// Loses packets with this probability
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub loss: f64,
    /// Delivers packets twice with this probability
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub duplicate: f64,
    /// Delivers packets after later ones with this probability
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    pub reorder: f64,
    /// Seed of the faults
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write the packets to this file (pcapng), for Wireshark
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Append what happens, in words, to this file, for `uverbs trace --read`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Names of the devices, in the order of the sockets, instead of those with a number
    #[arg(long)]
    pub name: Vec<String>,
    /// Level of the log on standard error: error, warn, info, debug, trace
    #[arg(long, default_value = "info", value_name = "LEVEL", value_parser = level)]
    pub log: log::LevelFilter,
    /// The order in which accesses of the devices to memory become visible: ordered, pcie, relaxed or model, and a seed after a colon
    #[arg(long, value_name = "MODE[:SEED]")]
    pub order: Option<Setting>,
    /// Exits when every VM has disconnected, instead of waiting for others
    #[arg(long)]
    pub once: bool,
}

fn level(name: &str) -> Result<log::LevelFilter, String> {
    name.parse().map_err(|_| "error, warn, info, debug or trace".to_owned())
}

fn probability(name: &str, p: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&p) { Ok(p) } else { bail!("--{name} {p}: not a probability (0 to 1)") }
}

/// Writes log lines to standard error.
struct Logger;

impl log::Log for Logger {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let own = record.target().starts_with("uverbs");
        if own || record.level() <= log::Level::Warn {
            eprintln!("{:5} {}", record.level(), record.args());
        }
    }

    fn flush(&self) {}
}

/// The time limit for the other process to listen.
const JOIN: Duration = Duration::from_secs(45);

/// Joins a fabric. Its process may still be starting.
fn join<M: Model>(fabric: &Fabric<M>, other: &Path) -> std::io::Result<()> {
    let start = Instant::now();
    loop {
        match fabric.join(other) {
            Err(error) if is_early(&error) && start.elapsed() < JOIN => {
                std::thread::sleep(Duration::from_millis(50));
            }
            result => return result,
        }
    }
}

fn is_early(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}

impl Options {
    /// The fabric, with its faults, joined to other processes.
    fn open<M: Model>(&self) -> Result<Fabric<M>> {
        let fabric = Fabric::new(self.seed);
        fabric
            .loss(probability("loss", self.loss)?)
            .duplicate(probability("duplicate", self.duplicate)?)
            .reorder(probability("reorder", self.reorder)?);
        if let Some(setting) = self.order {
            let seed = fabric.order(setting);
            log::info!("the order is {}", setting.repeated_by(seed));
        }
        // Before others can send.
        if let Some(path) = &self.pcap {
            fabric.capture(path).with_context(|| format!("cannot capture to {}", path.display()))?;
        }
        if let Some(path) = &self.trace {
            fabric.trace_to(path, &[]).with_context(|| format!("cannot trace to {}", path.display()))?;
        }
        if let Some(other) = &self.join {
            join(&fabric, other).with_context(|| format!("cannot join {}", other.display()))?;
        }
        if let Some(path) = &self.fabric {
            fabric.listen(path).with_context(|| format!("cannot listen at {}", path.display()))?;
            log::info!("other processes join at {}", path.display());
        }
        Ok(fabric)
    }

    fn run<D: Device>(
        &self,
        prefix: &str,
        make: impl Fn(&Fabric<D::Model>, &str) -> Result<D>,
    ) -> Result<()> {
        let fabric = self.open()?;
        let device = |i| {
            let name = self.name.get(i).cloned().unwrap_or_else(|| format!("{prefix}{i}"));
            make(&fabric, &name)
        };
        let devices: Vec<D> = (0..self.socket.len()).map(device).collect::<Result<_>>()?;
        let devices = Arc::new(devices);
        let once = Arc::new(AtomicBool::new(self.once));
        let (done, ended) = std::sync::mpsc::channel();
        for (i, socket) in self.socket.iter().enumerate() {
            let (device, socket, once, done) =
                (devices[i].clone(), socket.clone(), Arc::clone(&once), done.clone());
            std::thread::Builder::new().name(format!("device {i}")).spawn(move || {
                let result = serve(&device, &socket, || once.load(Ordering::Relaxed))
                    .with_context(|| format!("cannot serve {}", socket.display()));
                let _ = done.send(result.map(|()| false));
            })?;
        }
        // A fabric without devices ends by a command. It has no other user when standard input is closed, so it is kept here.
        let is_fabric_only = self.socket.is_empty();
        let control = Control { fabric: fabric.clone(), devices: Arc::clone(&devices), quit: done.clone() };
        if let Some(path) = &self.control {
            let listen = control.clone().listen(path);
            listen.with_context(|| format!("cannot take commands at {}", path.display()))?;
        }
        let stdin = std::thread::Builder::new().name("stdin".into());
        stdin.spawn(move || control.run(std::io::stdin().lock(), std::io::stdout()))?;
        let mut serving = self.socket.len();
        let mut result = Ok(());
        while serving > 0 || is_fabric_only {
            match ended.recv() {
                Ok(Ok(false)) => serving -= 1,
                Ok(Ok(true)) | Err(_) => break,
                Ok(Err(error)) => {
                    result = Err(error);
                    break;
                }
            }
        }
        for device in devices.iter() {
            device.unknown().iter().for_each(|line| println!("unknown: {line}"));
            device.plugged().violations().iter().for_each(|line| println!("violation: {line}"));
        }
        for socket in self.socket.iter().chain(&self.control) {
            let _ = uverbs_fabric::socket::remove(socket);
        }
        result
    }
}

/// Runs a program: `make` builds a device of this name. The devices have the prefix and a number as names by default. At the end it
/// prints a summary to standard output: what drivers used and the devices do not have, in lines that begin with `unknown:`, and the
/// violations of drivers, in lines that begin with `violation:`.
pub fn main<D: Device>(
    program: &str,
    prefix: &str,
    options: &Options,
    make: impl Fn(&Fabric<D::Model>, &str) -> Result<D>,
) -> ExitCode {
    log::set_max_level(options.log);
    if log::set_logger(&Logger).is_err() {
        return ExitCode::FAILURE;
    }
    match options.run(prefix, make) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{program}: {error:#}");
            ExitCode::FAILURE
        }
    }
}
