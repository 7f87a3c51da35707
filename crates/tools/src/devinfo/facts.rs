// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of a device. They are queried first, and then printed as text or as JSON.

use super::Args;
use anyhow::{Context as _, Error, Result, anyhow};
use uverbs::attr::{DeviceAttr, GidEntry, PortAttr};
use uverbs::device::DeviceInfo;
use uverbs::{Context, Driver, DriverVisitor, open_with};

/// A device, with its attributes or the reason why there are none.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) info: DeviceInfo,
    pub(crate) opened: Result<Opened>,
}

/// The attributes of an open device.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) driver: &'static str,
    pub(crate) num_comp_vectors: u32,
    pub(crate) attr: DeviceAttr,
    pub(crate) ports: Vec<Port>,
    /// The queries that failed.
    pub(crate) failures: Vec<Error>,
}

/// A port, with the GIDs in use (if requested).
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) number: u32,
    pub(crate) attr: PortAttr,
    pub(crate) gids: Vec<GidEntry>,
}

/// Opens the device and queries it.
pub(crate) fn gather(info: DeviceInfo, args: &Args) -> Facts {
    let opened = match open_with(&info, Visit { port: args.ib_port, verbose: args.verbose }) {
        Ok(opened) => opened,
        Err(error) => Err(error.into()),
    };
    Facts { info, opened }
}

/// Queries an open device.
pub(crate) fn query<D: Driver>(info: DeviceInfo, context: Context<D>, args: &Args) -> Facts {
    let opened = Visit { port: args.ib_port, verbose: args.verbose }.visit(context);
    Facts { info, opened }
}

struct Visit {
    port: Option<u8>,
    verbose: bool,
}

impl DriverVisitor for Visit {
    type Out = Result<Opened>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<Opened> {
        let attr = context.query_device()?;
        let mut opened = Opened {
            driver: D::NAME,
            num_comp_vectors: context.num_comp_vectors(),
            attr,
            ports: Vec::new(),
            failures: Vec::new(),
        };
        let count = opened.attr.phys_port_cnt;
        let numbers = match self.port {
            Some(port) if port > count => {
                opened.failures.push(anyhow!("query_port: invalid port {port}: the device has {count}"));
                return Ok(opened);
            }
            Some(port) => port..=port,
            None => 1..=count,
        };
        for number in numbers {
            match context.query_port(number).with_context(|| format!("port {number}")) {
                Ok(attr) => opened.ports.push(Port { number: number.into(), attr, gids: Vec::new() }),
                Err(error) => opened.failures.push(error),
            }
        }
        if self.verbose {
            match context.query_gid_table() {
                Ok(table) => {
                    for port in &mut opened.ports {
                        port.gids.extend(table.iter().filter(|gid| gid.port_num == port.number));
                        port.gids.sort_by_key(|gid| gid.gid_index);
                    }
                }
                Err(error) => opened.failures.push(error.into()),
            }
        }
        Ok(opened)
    }
}
