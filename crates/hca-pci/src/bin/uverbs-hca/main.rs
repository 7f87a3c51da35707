// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-hca`: software mlx5 HCAs as PCI devices, for VMs.

mod control;

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};
use control::Control;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use uverbs_hca::{Fabric, Link};
use uverbs_hca_pci::{PciFunction, Registration};

/// The link layer
#[derive(Clone, Copy, Debug, ValueEnum)]
enum LinkArg {
    /// InfiniBand
    Ib,
    /// Ethernet: RoCE version 1 and 2, raw packets
    Roce,
}

/// How the kernel of a VM registers memory
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Mkeys {
    /// With page lists in commands
    Command,
    /// With the kernel's UMR queue (updates of memory keys)
    Umr,
}

/// Software mlx5 HCAs as PCI devices of VMs (vfio-user)
///
/// Provides one device for each --socket. All devices are on one fabric, so two devices in one VM, or in two VMs, can
/// communicate. Without --socket it provides only a fabric. QEMU (10.1 or newer) uses a device with the option `-device
/// '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"PATH"}}'` and needs its memory as a shared file: `-object
/// memory-backend-memfd,id=m,size=1G,share=on -machine memory-backend=m`.
///
/// Devices of several processes are on one fabric if one process has --fabric PATH and the others have --join PATH;
/// then all of them can communicate. Programs with the software HCA inside join by the environment variable
/// UVERBS_HCA_FABRIC=PATH. Faults affect packets that a process's own devices send. If a process exits, the links of its
/// devices are down; a process that joined reconnects when the first one is available again.
///
/// Standard input and the control socket accept commands, one per line. The answer is a line that begins with `ok` or
/// `error`. The commands are `link N up|down` (the Nth device, from 0), `lid N LID`, `netem off | loss 1% delay 2ms
/// ...`, `repairs`, `packets N`, `stat N`, `violations` (their number), `forgive [KIND...]` (prints and clears them, or those of
/// these kinds), `quit`, `help`. At the end the program prints a summary to standard output: the firmware commands and
/// registers that a driver used and the device does not have, in lines that begin with `unknown:`, and the violations
/// of drivers, in lines that begin with `violation:`.
#[derive(Debug, Parser)]
#[command(name = "uverbs-hca", version)]
struct Cli {
    /// Socket of a device; may be given more than once
    #[arg(long, required_unless_present = "fabric", value_name = "PATH")]
    socket: Vec<PathBuf>,
    /// Socket for commands
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Socket at which other processes join this fabric
    #[arg(long, value_name = "PATH")]
    fabric: Option<PathBuf>,
    /// Joins the fabric of the process that has --fabric OTHER; waits a limited time for that process
    #[arg(long, value_name = "OTHER", conflicts_with = "fabric", requires = "socket")]
    join: Option<PathBuf>,
    /// The link layer of all devices
    #[arg(long, value_enum, default_value = "ib")]
    link: LinkArg,
    /// Loses packets with this probability
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    loss: f64,
    /// Delivers packets twice with this probability
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    duplicate: f64,
    /// Delivers packets after later ones with this probability
    #[arg(long, default_value_t = 0.0, value_name = "P")]
    reorder: f64,
    /// Seed of the faults
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// How the kernel of a VM registers memory
    #[arg(long, value_enum, default_value = "command")]
    mkeys: Mkeys,
    /// Names of the devices, in the order of the sockets; hca0, hca1 and so on if not given
    #[arg(long)]
    name: Vec<String>,
    /// Does not accept WQEs in doorbell registers
    #[arg(long)]
    no_blue_flame: bool,
    /// Level of the log on standard error: error, warn, info, debug, trace
    #[arg(long, default_value = "info", value_name = "LEVEL", value_parser = level)]
    log: log::LevelFilter,
    /// Exits when every VM has disconnected, instead of waiting for others
    #[arg(long)]
    once: bool,
}

fn level(name: &str) -> Result<log::LevelFilter, String> {
    name.parse().map_err(|_| "error, warn, info, debug or trace".to_owned())
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

fn probability(name: &str, p: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&p) { Ok(p) } else { bail!("--{name} {p}: not a probability (0 to 1)") }
}

/// The time limit for the other process to listen.
const JOIN: Duration = Duration::from_secs(45);

/// Joins a fabric. Its process may still be starting.
fn join(fabric: &Fabric, other: &Path) -> std::io::Result<()> {
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

/// Prints the commands that drivers used and the device does not have, and the violations.
fn summary(functions: &[PciFunction]) {
    for function in functions {
        for (opcode, count) in function.unknown_commands() {
            let name = PciFunction::command_name(opcode).unwrap_or("without a name");
            println!("unknown: command {opcode:#x} {name}, {count} times");
        }
        for (register, count) in function.unknown_registers() {
            println!("unknown: register {register:#x}, {count} times");
        }
        for violation in function.device().violations() {
            println!("violation: {violation}");
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let fabric = Fabric::new(cli.seed);
    fabric
        .loss(probability("loss", cli.loss)?)
        .duplicate(probability("duplicate", cli.duplicate)?)
        .reorder(probability("reorder", cli.reorder)?);
    if let Some(other) = &cli.join {
        join(&fabric, other).with_context(|| format!("cannot join {}", other.display()))?;
    }
    if let Some(path) = &cli.fabric {
        fabric.listen(path).with_context(|| format!("cannot listen at {}", path.display()))?;
        log::info!("other processes join at {}", path.display());
    }
    let link = match cli.link {
        LinkArg::Ib => Link::InfiniBand,
        LinkArg::Roce => Link::Ethernet,
    };
    let functions: Vec<PciFunction> = (0..cli.socket.len())
        .map(|i| {
            let name = cli.name.get(i).cloned().unwrap_or_else(|| format!("hca{i}"));
            let device = fabric.device(&name).link(link).blue_flame(!cli.no_blue_flame);
            let registration = match cli.mkeys {
                Mkeys::Command => Registration::Command,
                Mkeys::Umr => Registration::Umr,
            };
            PciFunction::new(device, registration)
        })
        .collect();
    let functions = Arc::new(functions);
    let once = Arc::new(AtomicBool::new(cli.once));
    let (done, ended) = std::sync::mpsc::channel();
    for (i, socket) in cli.socket.iter().enumerate() {
        let (function, socket, once, done) =
            (functions[i].clone(), socket.clone(), Arc::clone(&once), done.clone());
        std::thread::Builder::new().name(format!("device {i}")).spawn(move || {
            let result = function
                .serve(&socket, || once.load(Ordering::Relaxed))
                .with_context(|| format!("cannot serve {}", socket.display()));
            let _ = done.send(result.map(|()| false));
        })?;
    }
    // A fabric without devices ends by a command. It has no other user when standard input is closed, so it is kept here.
    let is_fabric_only = cli.socket.is_empty();
    let control = Control { fabric: fabric.clone(), functions: Arc::clone(&functions), quit: done.clone() };
    if let Some(path) = &cli.control {
        let listen = control.clone().listen(path);
        listen.with_context(|| format!("cannot take commands at {}", path.display()))?;
    }
    let stdin = std::thread::Builder::new().name("stdin".into());
    stdin.spawn(move || control.run(std::io::stdin().lock(), std::io::stdout()))?;
    let mut serving = cli.socket.len();
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
    summary(&functions);
    for socket in cli.socket.iter().chain(&cli.control) {
        let _ = uverbs_hca::socket::remove(socket);
    }
    result
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    log::set_max_level(cli.log);
    if log::set_logger(&Logger).is_err() {
        return ExitCode::FAILURE;
    }
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("uverbs-hca: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::Parser;

    #[test]
    fn commands_of_the_documentation_are_valid() {
        for command in uverbs_book::commands(&["uverbs-hca"]) {
            if let Err(error) = Cli::try_parse_from(&command.words) {
                panic!("{}: {error}", command.at);
            }
        }
    }
}
