// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs perf`: the measurements of perftest, between two QPs of this process. These are on one device in loopback,
//! or on two linked software HCAs.

mod write_bw;

use crate::device;
use crate::number::{number, positive, size};
use anyhow::{Context as _, Result, bail};
use clap::Subcommand;
use serde_json::{Value, json};
use std::io::Write;
use uverbs::device::DeviceInfo;
use uverbs::{Context, Driver};
use write_bw::{Plan, Row};

/// Measure a device in loopback; columns and flags are those of perftest
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    test: TestArgs,
}

/// The tests.
#[derive(Debug, Subcommand)]
enum TestArgs {
    /// Bandwidth of RDMA writes (ib_write_bw)
    WriteBw(BwArgs),
}

/// Flags of a bandwidth test.
#[derive(Debug, clap::Args)]
struct BwArgs {
    /// Device [default: the first]
    #[arg(short = 'd', long, value_name = "DEV")]
    ib_dev: Option<String>,
    /// Port
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = positive::<u8>)]
    ib_port: u8,
    /// Index of the local GID [default: the first of RoCE version 2; none on InfiniBand]
    #[arg(short = 'x', long, value_name = "INDEX", value_parser = number::<u8>)]
    gid_index: Option<u8>,
    /// Bytes of a message; k, m and g are units
    #[arg(short, long, value_name = "SIZE", default_value = "65536", value_parser = size)]
    size: u32,
    /// All sizes from 2 to 2^20
    #[arg(short, long, conflicts_with = "size")]
    all: bool,
    /// Messages of each size
    #[arg(short = 'n', long, value_name = "NUM", default_value = "1000", value_parser = positive::<u32>)]
    iters: u32,
    /// Outstanding messages
    #[arg(short, long, value_name = "NUM", default_value = "128", value_parser = positive::<u32>)]
    tx_depth: u32,
    /// Messages per doorbell
    #[arg(short = 'l', long, value_name = "NUM", default_value = "1", value_parser = positive::<u32>)]
    post_list: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(crate) fn main(args: &Args) -> Result<()> {
    let TestArgs::WriteBw(args) = &args.test;
    if args.post_list > args.tx_depth {
        bail!("--post_list {} is more than --tx_depth {}", args.post_list, args.tx_depth);
    }
    device::open(args.ib_dev.as_deref(), Visit(args)).context("perf write-bw")?
}

struct Visit<'a>(&'a BwArgs);

impl device::Visitor for Visit<'_> {
    type Out = Result<()>;

    fn visit<D: Driver>(self, [a, b]: [Context<D>; 2], _: Option<DeviceInfo>) -> Result<()> {
        let args = self.0;
        let sizes: Vec<u32> = if args.all { (1..=20).map(|i| 1 << i).collect() } else { vec![args.size] };
        let largest = sizes.iter().copied().max().unwrap_or(args.size);
        let plan = Plan { iters: args.iters, tx_depth: args.tx_depth, post_list: args.post_list };
        let gid = device::gid_index(&a, args.ib_port, args.gid_index)?;
        let mut ends = write_bw::Ends::new(&a, &b, (args.ib_port, gid), &plan, largest)?;
        let mut out = std::io::stdout().lock();
        if !args.json {
            writeln!(out, "{HEADING}")?;
        }
        let mut rows = Vec::new();
        for size in sizes {
            let row = ends.run(&plan, size).with_context(|| format!("{size} bytes"))?;
            if !args.json {
                writeln!(out, "{}", text(&row))?;
            }
            rows.push(json(&row));
        }
        if args.json {
            let value = json!({
                "test": "write_bw",
                "device": a.name(),
                "driver": D::NAME,
                "tx_depth": args.tx_depth,
                "post_list": args.post_list,
                "results": rows,
            });
            writeln!(out, "{value:#}")?;
        }
        Ok(())
    }
}

/// As perftest prints it, so that scripts can read both.
const HEADING: &str = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]";

fn text(row: &Row) -> String {
    let Row { bytes, iters, peak, average, rate } = row;
    format!(" {bytes:<10} {iters:<14} {peak:<18.2} {average:<20.2} {rate:<.6}")
}

fn json(row: &Row) -> Value {
    let Row { bytes, iters, peak, average, rate } = row;
    json!({ "bytes": bytes, "iters": iters, "bw_peak": peak, "bw_average": average, "msg_rate": rate })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_with_their_headings() {
        let row = Row { bytes: 65536, iters: 1000, peak: 1234.5, average: 1200.25, rate: 0.0192 };
        let text = text(&row);
        assert_eq!(text, " 65536      1000           1234.50            1200.25              0.019200");
        for (column, start) in [("#bytes", "65536"), ("BW peak", "1234.50"), ("MsgRate", "0.019200")] {
            assert_eq!(HEADING.find(column), text.find(start), "{column}");
        }
    }

    #[test]
    fn all_sizes_run_on_the_software_hca() {
        let [a, b] = device::software().unwrap();
        let plan = Plan { iters: 20, tx_depth: 8, post_list: 3 };
        let gid = device::gid_index(&a, 1, None).unwrap();
        let mut ends = write_bw::Ends::new(&a, &b, (1, gid), &plan, 1 << 17).unwrap();
        for size in [1, 2, 4096, 5000, 1 << 17] {
            let row = ends.run(&plan, size).unwrap();
            assert!(row.iters == 20 && row.peak >= row.average && row.average > 0.0, "{row:?}");
        }
    }
}
