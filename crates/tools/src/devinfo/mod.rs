// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs devinfo`: shows the same attributes as ibv_devinfo, without libibverbs. [`facts`] queries them; [`text`]
//! prints them in the layout of ibv_devinfo, with its [`names`] of values, and [`json`] as JSON.

mod facts;
mod json;
mod names;
mod text;

use crate::device;
use crate::number::positive;
use anyhow::{Result, bail};
use facts::Facts;
use std::io::Write;
use uverbs::device::{DeviceInfo, devices};
use uverbs::{Context, Driver};

/// Show RDMA devices and their attributes, as ibv_devinfo does
///
/// A device that can't be used is listed with the reason. The exit status is 1 if a query failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show only this device [default: all]
    #[arg(short = 'd', long, value_name = "DEV")]
    ib_dev: Option<String>,
    /// Show only this port [default: all]
    #[arg(short = 'i', long, value_name = "PORT", value_parser = positive::<u8>)]
    ib_port: Option<u8>,
    /// Show only the devices' names
    #[arg(short, long)]
    list: bool,
    /// Show all attributes, and the GIDs
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Queries a software device.
struct Query<'a>(&'a Args);

impl device::Visitor for Query<'_> {
    type Out = Option<Facts>;

    fn visit<D: Driver>(self, [context, _]: [Context<D>; 2], info: Option<DeviceInfo>) -> Option<Facts> {
        Some(facts::query(info?, context, self.0))
    }
}

/// Runs the subcommand.
pub(crate) fn main(args: &Args) -> Result<()> {
    let mut out = crate::Output;
    let name = args.ib_dev.as_deref();
    let software = match device::Software::of(name) {
        Some(kind) => kind.here(Query(args))?,
        None => None,
    };
    let devices: Vec<DeviceInfo> = match name {
        Some(_) if let Some(facts) = &software => vec![facts.info.clone()],
        Some(_) => vec![device::choose(name)?],
        None => devices()?,
    };
    if args.list {
        let listing = if args.json { format!("{:#}\n", json::list(&devices)) } else { text::list(&devices) };
        out.write_all(listing.as_bytes())?;
        return Ok(());
    }
    if devices.is_empty() {
        if args.json {
            writeln!(out, "[]")?;
        }
        bail!("no RDMA devices found ({})", device::hint());
    }
    let facts: Vec<_> = match software {
        Some(facts) => vec![facts],
        None => devices.into_iter().map(|info| facts::gather(info, args)).collect(),
    };
    if args.json {
        writeln!(out, "{:#}", json::devices(&facts))?;
    } else {
        for device in &facts {
            out.write_all(text::device(device, args.verbose).as_bytes())?;
        }
    }
    let mut failures = 0;
    for device in &facts {
        let of_device = match &device.opened {
            Ok(opened) => opened.failures.iter().collect(),
            Err(error) => vec![error],
        };
        failures += of_device.len();
        for error in of_device {
            crate::complain(format_args!("uverbs: {}: {error:#}", device.info.name));
        }
    }
    match failures {
        0 => Ok(()),
        1 => bail!("devinfo: one query failed"),
        n => bail!("devinfo: {n} queries failed"),
    }
}
