// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that is slow, on two software NICs of this process: [`uverbs_examples::burst`].
#![forbid(unsafe_code)]

use anyhow::Result;
use clap::Parser;
use uverbs::hca::Fabric;
use uverbs_examples::burst::{BURST, RECEIVES, run};

/// Send a burst of messages, and print how long it took
#[derive(Debug, Parser)]
struct Args {
    /// The receives that the server posts
    #[arg(long, default_value_t = RECEIVES)]
    receives: u32,
    /// A virtual clock, so that each run is the same
    #[arg(long = "virtual")]
    is_virtual: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let fabric = if args.is_virtual { Fabric::deterministic(1) } else { Fabric::new(1) };
    let took = run(&fabric, args.receives)?;
    println!("{BURST} messages took {:.2} ms", took.as_secs_f64() * 1000.0);
    Ok(())
}
