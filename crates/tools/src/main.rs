// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs`: the command line of the provider. Names and flags are those of rdma-core's tools.

mod cm;
mod decode;
mod device;
mod devinfo;
mod generate;
mod limits;
mod logger;
mod number;
mod patience;
mod pcap;
mod perf;
mod pingpong;
mod selftest;
mod tcp;
mod top;
mod trace;

use anyhow::Result;
use clap::{CommandFactory, Parser, Subcommand};
use core::fmt;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;

/// Query and test RDMA devices, without libibverbs
#[derive(Debug, Parser)]
#[command(name = "uverbs", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Write the packets of the software NICs of this process (hca0) to this file (pcapng), for Wireshark
    #[arg(long, global = true, value_name = "FILE")]
    pcap: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Completions(generate::CompletionsArgs),
    Decode(decode::Args),
    Devinfo(devinfo::Args),
    Man(generate::ManArgs),
    Perf(perf::Args),
    Pingpong(pingpong::Args),
    Selftest(selftest::Args),
    Top(top::Args),
    Trace(trace::Args),
}

fn run(cli: Cli) -> Result<()> {
    let Some(file) = cli.pcap else { return command(cli.command) };
    pcap::begin(file);
    command(cli.command)?;
    pcap::end()
}

fn command(command: Command) -> Result<()> {
    match command {
        Command::Completions(args) => generate::completions(&args, Cli::command()),
        Command::Decode(args) => decode::main(&args),
        Command::Devinfo(args) => devinfo::main(&args),
        Command::Man(args) => generate::man(&args, Cli::command()),
        Command::Perf(args) => perf::main(args),
        Command::Pingpong(args) => pingpong::main(args),
        Command::Selftest(args) => selftest::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Trace(args) => trace::main(&args),
    }
}

fn main() -> ExitCode {
    logger::install();
    let result = match Cli::try_parse() {
        Ok(cli) => run(cli),
        Err(error) if error.use_stderr() => error.exit(),
        // Help or the version, which is output as any other.
        Err(text) => text.print().map_err(Into::into),
    };
    device::flush();
    match result {
        Ok(()) if logger::has_failed() => ExitCode::FAILURE,
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed the pipe.
        Err(error) if is_broken_pipe(&error) => ExitCode::FAILURE,
        Err(error) => {
            complain(format_args!("uverbs: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Standard output, whose errors say that they are its errors.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes).map_err(of_output)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().map_err(of_output)
    }
}

fn of_output(error: io::Error) -> io::Error {
    match error.kind() {
        // Repeated by the caller.
        kind @ io::ErrorKind::Interrupted => kind.into(),
        kind => io::Error::new(kind, format!("cannot write the output: {error}")),
    }
}

/// Writes a line to stderr. `eprintln!` panics if that is not possible.
pub(crate) fn complain(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Whether the error is that of the output. A connection to another program can have the same error.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe) && has_no_reader(io::stdout().as_fd())
}

/// Whether the other end of a pipe or a connection is closed.
fn has_no_reader(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::empty())];
    let closed = PollFlags::POLLERR | PollFlags::POLLHUP;
    poll(&mut fds, PollTimeout::ZERO).is_ok()
        && fds[0].revents().is_some_and(|found| found.intersects(closed))
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::error::ErrorKind;
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_of_the_documentation_are_valid() {
        for command in uverbs_book::commands(&["uverbs"]) {
            let Err(error) = Cli::try_parse_from(&command.words) else { continue };
            // A sentence may name a command without its arguments.
            let is_name = !command.is_block
                && matches!(
                    error.kind(),
                    ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                        | ErrorKind::MissingSubcommand
                        | ErrorKind::MissingRequiredArgument
                );
            assert!(is_name, "{}: {error}", command.at);
        }
    }

    #[test]
    fn each_command_is_documented() {
        for command in Cli::command().get_subcommands() {
            let name = format!("| `uverbs {}` |", command.get_name());
            assert!(uverbs_book::reference("commands.md").contains(&name), "commands.md has no row {name}");
        }
    }
}
