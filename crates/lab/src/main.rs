// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs-lab`: runs commands in VMs that have two RDMA devices joined by a link.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use std::env;
use std::path::PathBuf;
use std::process::ExitCode;
use uverbs_lab::args::{BootArgs, DeviceArg, LinkArg, Programs};
use uverbs_lab::{Device, Lab, Task};

/// Run commands in VMs that have two RDMA devices (rxe, siw, mlx5 or efa) joined by a link
///
/// The exit status is that of the command, 124 if the time limit was reached, or 125 if the guest's kernel or the lab
/// failed.
#[derive(Parser)]
struct Cli {
    /// Directory for packages, kernels and logs [default: uverbs-lab in $XDG_CACHE_HOME or ~/.cache]
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    programs: Programs,
    #[command(subcommand)]
    verb: Verb,
}

/// The subcommands.
#[derive(Subcommand)]
enum Verb {
    /// Boot a guest and run a command in it
    Run {
        #[command(flatten)]
        boot: BootArgs,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Boot a guest and start an interactive shell
    Shell {
        #[command(flatten)]
        boot: BootArgs,
    },
    /// Boot two guests whose mlx5 or EFA devices are on one fabric, and run a command in both. It gets LAB_SIDE, 1 or 2, and
    /// LAB_PEER, the address of the other guest
    Pair {
        #[command(flatten)]
        boot: BootArgs,
        /// The command and its arguments
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Fetch everything that these options need, so that later boots need no network
    Fetch {
        #[command(flatten)]
        boot: BootArgs,
    },
}

impl Cli {
    fn lab(&self, boot: &BootArgs) -> Result<Lab> {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => cache().context("no home directory: use --dir")?.join("uverbs-lab"),
        };
        Ok(Lab::open(dir)?.verbose(boot.verbose))
    }

    fn devices(&self, boot: &BootArgs) -> Result<Vec<Device>> {
        boot.devices(LinkArg::Ib, |device| {
            let program = self.programs.of(device);
            program.map(Into::into).with_context(|| format!("{} needs no program", device.name()))
        })
    }
}

/// The user's directory for caches, by the XDG base directory specification.
fn cache() -> Option<PathBuf> {
    let set = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))
}

fn run(cli: &Cli) -> Result<ExitCode> {
    let (boot, task) = match &cli.verb {
        Verb::Run { boot, command } => (boot, Task::command(command)),
        Verb::Shell { boot } => (boot, Task::Shell),
        Verb::Pair { boot, command } => {
            // The default of the option is a kind without a program.
            let device = if boot.device.program().is_some() { boot.device } else { DeviceArg::Mlx5 };
            let boot = BootArgs { device, ..boot.clone() };
            let outcome = boot.pair(&cli.lab(&boot)?, &cli.devices(&boot)?, &Task::command(command))?;
            return Ok(ExitCode::from(outcome.code()));
        }
        Verb::Fetch { boot } => {
            let lab = cli.lab(boot)?;
            for series in boot.kernels()? {
                for device in cli.devices(boot)? {
                    lab.prepare(&boot.spec(series, device, Task::Shell))?;
                }
            }
            return Ok(ExitCode::SUCCESS);
        }
    };
    let outcome = boot.run(&cli.lab(boot)?, &cli.devices(boot)?, &task)?;
    Ok(ExitCode::from(outcome.code()))
}

fn main() -> ExitCode {
    run(&Cli::parse()).unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        ExitCode::from(125)
    })
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::{CommandFactory, Parser};

    #[test]
    fn commands_of_the_documentation_are_valid() {
        for command in uverbs_book::commands(&["uverbs-lab"]).into_iter().filter(|command| command.is_block) {
            if let Err(error) = Cli::try_parse_from(&command.words) {
                panic!("{}: {error}", command.at);
            }
        }
    }

    #[test]
    fn each_command_is_documented() {
        for command in Cli::command().get_subcommands() {
            let name = format!("| `uverbs-lab {}` |", command.get_name());
            assert!(uverbs_book::reference("commands.md").contains(&name), "commands.md has no row {name}");
        }
    }
}
