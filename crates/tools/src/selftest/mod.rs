// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs selftest`: posts every opcode on every face, in loopback on any device, and prints a report for the
//! maintainers.
//!
//! Each case runs on new QPs ([`ends`]), so that a failure does not affect other cases. A feature that the device lacks
//! is not reported as a failure.

mod cases;
mod ends;
mod post;
mod raw;
mod report;

use crate::device;
use crate::limits;
use crate::number::{number, positive};
use anyhow::{Context as _, Result, bail};
use cases::Opcode;
use core::any::Any;
use core::time::Duration;
use ends::Loop;
use post::{Face, Kind};
use report::{About, Case, Report};
use std::io::Write;
use std::time::Instant;
use uverbs::attr::{DriverQp, QpType};
use uverbs::device::DeviceInfo;
use uverbs::mlx5::Mlx5;
use uverbs::{Context, Dci, Driver, Rc, Srd, Uc, Ud, XrcSend};

/// Test every opcode on every interface of a device, in loopback, and print a report
///
/// The device's port is connected to itself, so no peer is needed. The exit status is 1 if a case failed. A feature
/// that the device lacks is not a failure. The report names the device, driver, firmware and kernel.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Device [default: the first]
    #[arg(short = 'd', long, value_name = "DEV")]
    ib_dev: Option<String>,
    /// Port
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = positive::<u8>)]
    ib_port: u8,
    /// Index of the local GID [default: the first of RoCE version 2; none on InfiniBand]
    #[arg(short = 'g', long, value_name = "INDEX", value_parser = number::<u8>)]
    gid_idx: Option<u8>,
    /// Seconds that a completion may take
    #[arg(long, value_name = "SECS", default_value = "5", value_parser = positive::<u32>)]
    timeout: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn main(args: &Args) -> Result<()> {
    let report = device::open(args.ib_dev.as_deref(), Visit(args)).context("selftest")??;
    let mut out = crate::Output;
    if args.json {
        writeln!(out, "{:#}", report.json())?;
    } else {
        out.write_all(report.text().as_bytes())?;
    }
    match report.failures() {
        0 => Ok(()),
        1 => bail!("selftest: one case failed"),
        n => bail!("selftest: {n} cases failed"),
    }
}

struct Visit<'a>(&'a Args);

impl device::Visitor for Visit<'_> {
    type Out = Result<Report>;

    fn visit<D: Driver>(self, [context, _]: [Context<D>; 2], info: Option<DeviceInfo>) -> Result<Report> {
        let args = self.0;
        let port = limits::port(&context, args.ib_port)?;
        let gid = device::gid_index(&context, args.ib_port, ("--gid-idx", args.gid_idx))?;
        let l = Loop::new(&context, args.ib_port, gid, Duration::from_secs(args.timeout.into()))?;
        let start = Instant::now();
        let mut cases = Vec::new();
        transport::<D, Rc>(&l, &mut cases);
        transport::<D, Uc>(&l, &mut cases);
        transport::<D, Ud>(&l, &mut cases);
        transport::<D, XrcSend>(&l, &mut cases);
        if context.driver_qp() == Some(DriverQp::Srd) {
            transport::<D, Srd>(&l, &mut cases);
        }
        // Only mlx5 has dynamic connections.
        if let Some(mlx5) = (&context as &dyn Any).downcast_ref::<Context<Mlx5>>() {
            let l = Loop::new(mlx5, args.ib_port, gid, Duration::from_secs(args.timeout.into()))?;
            transport::<Mlx5, Dci>(&l, &mut cases);
        }
        raw::frames(&l, &mut cases);
        let about = About::new::<D>(&context, info, &l.device, &port, args.ib_port, gid)?;
        Ok(Report { about, cases, elapsed: start.elapsed() })
    }
}

/// The name of a QP type in the report.
fn name_of(qp_type: QpType, driver_qp: Option<DriverQp>) -> String {
    match driver_qp {
        Some(DriverQp::Srd) => "SRD".into(),
        _ => qp_type.to_string(),
    }
}

/// Every opcode that the transport has, by every face.
fn transport<D: Driver, T: Kind<D>>(l: &Loop<'_, D>, cases: &mut Vec<Case>) {
    let is_srd = cases::is_srd::<D, T>();
    let has = |opcode: &Opcode| if is_srd { opcode.is_on_srd() } else { opcode.is_on(T::QP_TYPE) };
    for opcode in Opcode::ALL.into_iter().filter(has) {
        for face in Face::ALL {
            let verdict = cases::run::<D, T>(l, opcode, face);
            cases.push(Case { qp_type: name_of(T::QP_TYPE, T::DRIVER_QP), opcode, face, verdict });
        }
    }
}

#[cfg(test)]
mod tests;
