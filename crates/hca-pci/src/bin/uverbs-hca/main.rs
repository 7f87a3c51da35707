// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-hca`: software mlx5 HCAs as PCI devices, for VMs, and programs under many orders of their accesses to memory.

#[cfg(test)]
mod control;
mod order;
mod sweep;

use clap::{Parser, Subcommand, ValueEnum};
use core::cell::Cell;
use core::net::IpAddr;
use std::process::ExitCode;
use uverbs_hca::Link;
use uverbs_hca_pci::{PciFunction, Registration};
use uverbs_vfio::Options;

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
/// ...`, `order MODE[:SEED]`, `rule RULE` (adds a rule to the script of faults), `rules [off]` (prints the rules, or ends the
/// script), `repairs`, `packets N`, `stat N`, `queue N QPN send|recv|send-cq|recv-cq`, `violations` (their number), `forgive [KIND...]`
/// (prints and clears them, or those of these kinds), `quit`, `help`. At the end the program prints a summary to standard output: the
/// firmware commands and registers that a driver used and the device does not have, in lines that begin with `unknown:`, and the
/// violations of drivers, in lines that begin with `violation:`.
#[derive(Debug, Parser)]
#[command(
    name = "uverbs-hca",
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Sub>,
    #[command(flatten)]
    options: Options,
    /// The link layer of all devices
    #[arg(long, value_enum, default_value = "ib")]
    link: LinkArg,
    /// How the kernel of a VM registers memory
    #[arg(long, value_enum, default_value = "command")]
    mkeys: Mkeys,
    /// Gives the Nth device the Nth of these addresses of the host: it exchanges packets of RoCE version 2 with devices outside of the
    /// fabric, by UDP port 4791. The VM must use the same address, and has no answer to ARP there: `ip neigh add PEER lladdr
    /// 02:00:00:00:00:01 dev DEV` in the VM names a peer
    #[arg(long, value_name = "ADDRESS")]
    udp: Vec<IpAddr>,
    /// Does not accept WQEs in doorbell registers
    #[arg(long)]
    no_blue_flame: bool,
}

#[derive(Debug, Subcommand)]
enum Sub {
    Order(order::Order),
    Sweep(Box<sweep::Args>),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match &cli.command {
        Some(Sub::Order(order)) => return order.main(),
        Some(Sub::Sweep(args)) => {
            return sweep::main(args).unwrap_or_else(|error| {
                eprintln!("uverbs-hca: {error:#}");
                ExitCode::from(2)
            });
        }
        None => {}
    }
    let link = match cli.link {
        LinkArg::Ib => Link::InfiniBand,
        LinkArg::Roce => Link::Ethernet,
    };
    let registration = match cli.mkeys {
        Mkeys::Command => Registration::Command,
        Mkeys::Umr => Registration::Umr,
    };
    let built = Cell::new(0);
    uverbs_vfio::main::<PciFunction>("uverbs-hca", "hca", &cli.options, |fabric, name| {
        let device = fabric.device(name).link(link).blue_flame(!cli.no_blue_flame);
        let function = PciFunction::new(device, registration);
        if let Some(ip) = cli.udp.get(built.replace(built.get() + 1)) {
            function.attach_udp(*ip)?;
        }
        Ok(function)
    })
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::Parser;
    use clap::error::ErrorKind;

    #[test]
    fn commands_of_the_documentation_are_valid() {
        for command in uverbs_book::commands(&["uverbs-hca"]) {
            let Err(error) = Cli::try_parse_from(&command.words) else { continue };
            // A sentence may name a command without its arguments.
            let is_name = !command.is_block && error.kind() == ErrorKind::MissingRequiredArgument;
            assert!(is_name, "{}: {error}", command.at);
        }
    }
}
