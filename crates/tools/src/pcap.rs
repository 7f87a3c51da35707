// SPDX-License-Identifier: MIT OR Apache-2.0
//! The option `--pcap`: captures the packets of the fabric that a command creates.

use anyhow::{Context as _, Result, bail};
use core::sync::atomic::{AtomicBool, Ordering};
use std::path::PathBuf;
use std::sync::OnceLock;
use uverbs::software::{Fabric, Model};

/// The file.
static FILE: OnceLock<PathBuf> = OnceLock::new();
/// Whether a fabric is captured to it. A command creates one fabric.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// The option was given: the fabric of the command is captured.
pub(crate) fn begin(file: PathBuf) {
    let _ = FILE.set(file);
}

/// The command has ended.
pub(crate) fn end() -> Result<()> {
    match (FILE.get(), IS_USED.load(Ordering::Relaxed)) {
        (Some(file), false) => {
            bail!("--pcap {}: the command has used no software NIC (-d hca0)", file.display())
        }
        _ => Ok(()),
    }
}

/// A fabric of software devices, which is captured if the option was given: an error if their packets have no public format.
pub(crate) fn fabric(model: Model, seed: u64) -> Result<Fabric> {
    let fabric = model.fabric(seed);
    if let Some(file) = FILE.get() {
        fabric.capture(file).with_context(|| format!("cannot capture to {}", file.display()))?;
        IS_USED.store(true, Ordering::Relaxed);
    }
    Ok(fabric)
}
