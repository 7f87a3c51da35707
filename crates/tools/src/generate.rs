// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs completions` and `uverbs man`: files for shells and for man(1), generated from the definition of the command
//! line.

use anyhow::{Context as _, Result};
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Print the completions of a shell
///
/// For bash: uverbs completions bash > /usr/share/bash-completion/completions/uverbs
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Write the man pages to a folder
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// The folder, such as /usr/local/share/man/man1. It is created
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Prints the completions.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    Ok(crate::Output.write_all(&text)?)
}

/// Writes a page for the program and for each of its commands.
pub(crate) fn man(args: &ManArgs, mut command: Command) -> Result<()> {
    fs::create_dir_all(&args.dir).with_context(|| args.dir.display().to_string())?;
    command.build();
    page(&args.dir, &command, command.get_name())
}

/// Writes the page of a command and those of its subcommands: `uverbs-perf-send-lat.1`.
fn page(dir: &Path, command: &Command, name: &str) -> Result<()> {
    let path = dir.join(format!("{name}.1"));
    let mut text = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).title(name.to_uppercase());
    man.render(&mut text).context("cannot make the page")?;
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        page(dir, inner, &format!("{name}-{}", inner.get_name()))?;
    }
    Ok(())
}
