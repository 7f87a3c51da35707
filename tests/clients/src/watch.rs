// SPDX-License-Identifier: MIT OR Apache-2.0
//! `ibv_asyncwatch`: it must print the events of a port that goes down and up.

use crate::process::{End, Group};
use crate::report::Cell;
use anyhow::Result;
use core::time::Duration;
use std::process::Command;

/// How long the program and both changes of the link may take.
const LIMIT: Duration = Duration::from_secs(60);
/// What it prints when it listens.
const READY: &str = "async event FD";
/// The commands of the guest, and what the program prints after each.
const STEPS: [(&str, &str); 2] = [("down", "PORT_ERR"), ("up", "PORT_ACTIVE")];

/// Runs the program, which has the device at end A of the link.
///
/// # Errors
/// A program can't be started.
pub fn run(cmd: &mut Command) -> Result<Cell> {
    let mut group = Group::new(LIMIT)?;
    let watch = group.start(cmd)?;
    let mut missing = (!group.wait_for_text(watch, READY)).then_some(READY);
    for (change, text) in STEPS {
        // The link is up again after a failure, too: other rows need it. So these have a time limit of their own.
        let mut helper = Group::new(LIMIT)?;
        let link = helper.start(Command::new("lab-link").args([change, "A"]))?;
        let end = helper.wait(link);
        if end != End::Exit(0) {
            return Ok(Cell::Fail(format!("lab-link {change} A: {end}\n{}", helper.last_lines(link))));
        }
        if missing.is_none() && !group.wait_for_text(watch, text) {
            missing = Some(text);
        }
    }
    Ok(match missing {
        None => Cell::Pass,
        Some(text) => Cell::Fail(format!("no line with `{text}`\n{}", group.last_lines(watch))),
    })
}
