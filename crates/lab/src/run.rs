// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs programs of the host, with errors that have the failed command and its output.

use anyhow::{Context, Result, bail};
use std::process::{Command, ExitStatus, Stdio};

/// The command line, for messages.
pub fn shown(cmd: &Command) -> String {
    let mut text = cmd.get_program().to_string_lossy().into_owned();
    for arg in cmd.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    text
}

/// Runs a command whose streams are those of this process.
///
/// # Errors
/// It cannot be started, or fails.
pub fn inherit(cmd: &mut Command) -> Result<()> {
    let status = status(cmd)?;
    if !status.success() {
        bail!("`{}` failed: {status}", shown(cmd));
    }
    Ok(())
}

/// Runs a command whose streams are those of this process, and returns its status.
///
/// # Errors
/// It cannot be started.
pub fn status(cmd: &mut Command) -> Result<ExitStatus> {
    cmd.status().with_context(|| format!("cannot start `{}`", shown(cmd)))
}

/// Runs a command and returns its stdout.
///
/// # Errors
/// It cannot be started, or fails: then the error has its whole output.
pub fn output(cmd: &mut Command) -> Result<String> {
    let out = cmd.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{}`", shown(cmd)))?;
    if !out.status.success() {
        bail!(
            "`{}` failed: {}\n{}{}",
            shown(cmd),
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
    String::from_utf8(out.stdout)
        .with_context(|| format!("`{}` printed something that is not UTF-8", shown(cmd)))
}
