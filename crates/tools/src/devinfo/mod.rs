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
use std::io::Write;
use uverbs::Context;
use uverbs::device::{DeviceInfo, devices};
use uverbs::efa::Efa;
use uverbs::mlx5::Mlx5;

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

/// A software device.
enum Software {
    Hca(Context<Mlx5>),
    Efa(Context<Efa>),
}

/// Runs the subcommand.
pub(crate) fn main(args: &Args) -> Result<()> {
    let mut out = crate::Output;
    let name = args.ib_dev.as_deref();
    let software = match device::Software::of(name) {
        Some(device::Software::Hca) => {
            let [context, _] = device::software()?;
            Some((device::software_info(&context)?, Software::Hca(context)))
        }
        Some(device::Software::Efa) => {
            let [context, _] = device::software_efa()?;
            Some((device::software_info(&context)?, Software::Efa(context)))
        }
        None => None,
    };
    let devices: Vec<DeviceInfo> = match &args.ib_dev {
        Some(_) if let Some((info, _)) = &software => vec![info.clone()],
        Some(name) => vec![device::choose(Some(name))?],
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
        bail!("no RDMA devices found ({})", device::HINT);
    }
    let gather = |info| match &software {
        Some((_, Software::Hca(context))) => facts::query(info, context.clone(), args),
        Some((_, Software::Efa(context))) => facts::query(info, context.clone(), args),
        None => facts::gather(info, args),
    };
    let facts: Vec<_> = devices.into_iter().map(gather).collect();
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
