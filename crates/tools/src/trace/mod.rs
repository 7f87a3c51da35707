// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs trace`: what the software NICs of a program do, in words. The devices write it to a file (`UVERBS_HCA_TRACE`); this module
//! runs the program, reads the file, prints it and draws it.

use crate::number::number;
use anyhow::{Context as _, Result, bail, ensure};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use uverbs_fabric::trace::{Step, chart, read};

/// Run a program and show what its software NICs do: requests, packets, data that are placed, completions, events, timers
///
/// The program has the software NICs in it: `uverbs` with the device hca0 or efa0, a program with the C library built with --hca, a test.
/// Its steps are printed when it has ended, in the order of their times, which are seconds since the first one. The steps of all its
/// processes are together; 8 MiB of each fabric at most.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only steps of this QP, and packets from it and to it; may be given more than once [default: all]
    #[arg(long = "qp", value_name = "QPN", value_parser = number::<u32>)]
    qps: Vec<u32>,
    /// Draw a sequence chart to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// The title of the chart [default: the program]
    #[arg(long, requires = "svg")]
    title: Option<String>,
    /// Keep the trace in this file, from which --read reads it
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// Read a trace from this file instead of running a program
    #[arg(long, value_name = "FILE", conflicts_with_all = ["qps", "write", "program"])]
    read: Option<PathBuf>,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "read", value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A file that is removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn create() -> Result<Self> {
        let directory = std::env::temp_dir();
        for number in 0..100 {
            let path = directory.join(format!("uverbs-trace-{}-{number}", std::process::id()));
            // Never a file or a link that somebody else has made.
            match File::options().write(true).create_new(true).open(&path) {
                Ok(_) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error).with_context(|| format!("cannot create {}", path.display())),
            }
        }
        bail!("cannot create a file in {}", directory.display())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn text_of(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Runs the subcommand.
pub(crate) fn main(args: &Args) -> Result<()> {
    run(args).context("trace")
}

fn run(args: &Args) -> Result<()> {
    let Some((program, arguments)) = args.program.split_first() else {
        let path = args.read.as_ref().context("no file and no program")?;
        return show(args, &text_of(path)?, &path.display().to_string());
    };
    let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
    let file = Temporary::create()?;
    let mut variable = file.0.clone().into_os_string();
    let list: Vec<String> = args.qps.iter().map(|qpn| format!("{qpn:#x}")).collect();
    if !list.is_empty() {
        variable.push(format!(":{}", list.join(",")));
    }
    let status = Command::new(program).args(arguments).env("UVERBS_HCA_TRACE", variable).status();
    let status = status.with_context(|| format!("cannot run {}", program.display()))?;
    let text = text_of(&file.0)?;
    if let Some(path) = &args.write {
        std::fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    ensure!(!text.is_empty(), "{name} ({status}) has used no software NIC, or not these QPs");
    show(args, &text, &name)?;
    ensure!(status.success(), "{name}: {status}");
    Ok(())
}

/// Prints and draws a trace.
fn show(args: &Args, text: &str, name: &str) -> Result<()> {
    let steps = read(text)?;
    let mut out = crate::Output;
    print(&steps, &mut out)?;
    // Where a fabric has written no more.
    for line in text.lines().filter(|line| line.starts_with('#')) {
        writeln!(out, "{line}")?;
    }
    out.flush()?;
    if let Some(path) = &args.svg {
        let svg = chart(args.title.as_deref().unwrap_or(name), &steps);
        std::fs::write(path, svg).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Prints the steps, with the seconds since the first one.
fn print(steps: &[Step], out: &mut dyn Write) -> std::io::Result<()> {
    let begin = steps.first().map_or(0, |step| step.at);
    for step in steps {
        let at = step.at - begin;
        writeln!(out, "{:>5}.{:09}  {step}", at / 1_000_000_000, at % 1_000_000_000)?;
    }
    Ok(())
}
