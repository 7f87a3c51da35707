// SPDX-License-Identifier: MIT OR Apache-2.0
//! The build, test and check commands of this repository.
//!
//! Each command is a module with its arguments. Several of them use [`cargo`] and the crate `uverbs-lab`. The exit
//! status is 125 if the command itself fails, and otherwise that of the program that it runs.

mod aarch64;
mod api;
mod async_bench;
mod bench;
mod book;
mod cargo;
mod ci;
mod clients;
mod corpus;
mod crates;
mod demo;
mod dist;
mod fuzz;
mod mutants;
mod nixl;
mod packets;
mod peers;
mod pyverbs;
mod rust;
mod sanitize;
mod setup;
mod steps;
mod test;
mod tools;
mod vm;
mod wheels;

use clap::{Parser, Subcommand};
use std::path::Path;
use std::process::ExitCode;
use uverbs_lab::run;

/// Tests, checks and tools of this repository
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

/// The commands; their help is that of their arguments.
#[derive(Subcommand)]
enum Chore {
    Setup(setup::Args),
    Test(test::Args),
    Vm(vm::Args),
    Fuzz(fuzz::Args),
    Mutants(mutants::Args),
    Sanitize(sanitize::Args),
    Demo(demo::Args),
    Bench(bench::Args),
    AsyncBench(async_bench::Args),
    Book(book::Args),
    Dist(dist::Args),
    Clients(clients::Args),
    Ci(ci::Args),
    Aarch64(aarch64::Args),
}

/// The top folder of the repository.
fn repo_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the repository")
}

fn main() -> ExitCode {
    let result = match Cli::parse().chore {
        Chore::Setup(args) => setup::main(&args),
        Chore::Test(args) => test::main(&args),
        Chore::Vm(args) => vm::main(args),
        Chore::Fuzz(args) => fuzz::main(&args),
        Chore::Mutants(args) => mutants::main(&args),
        Chore::Sanitize(args) => sanitize::main(&args),
        Chore::Demo(args) => demo::main(&args),
        Chore::Bench(args) => bench::main(&args),
        Chore::AsyncBench(args) => async_bench::main(&args),
        Chore::Book(args) => book::main(&args),
        Chore::Dist(args) => dist::main(&args),
        Chore::Clients(args) => clients::main(&args),
        Chore::Ci(args) => ci::main(&args),
        Chore::Aarch64(args) => aarch64::main(&args),
    };
    result.unwrap_or_else(|e| {
        eprintln!("error: {e:#}");
        ExitCode::from(125)
    })
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};

    #[test]
    fn commands_of_the_documentation_are_valid() {
        for command in uverbs_book::commands(&["cargo", "xtask"]) {
            let Err(error) = Cli::try_parse_from(&command.words[1..]) else { continue };
            // A sentence may name a command without its arguments.
            let is_name = !command.is_block
                && matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::MissingSubcommand);
            assert!(is_name, "{}: {error}", command.at);
        }
    }

    #[test]
    fn each_command_is_documented() {
        for command in Cli::command().get_subcommands() {
            let name = format!("| `cargo xtask {}` |", command.get_name());
            assert!(uverbs_book::reference("commands.md").contains(&name), "commands.md has no row {name}");
        }
    }
}
