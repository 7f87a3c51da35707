// SPDX-License-Identifier: MIT OR Apache-2.0
//! A replicated log on software NICs: two leaders and their followers in one process.
//!
//! The first leader appends, the second one takes over and locks it out, and both say what they see.
#![forbid(unsafe_code)]

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;
use uverbs::hca::Fabric;
use uverbs_examples::log::{Entry, Follower, Leader};

/// A replicated log: election by compare-and-swap, fencing by memory windows.
#[derive(Debug, Parser)]
struct Args {
    /// Followers.
    #[arg(short, long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
    followers: u8,
    /// Entries of each leader.
    #[arg(short, long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=30))]
    entries: u8,
    /// Part of the packets that the network loses.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
}

/// A follower, until the end.
fn follow(hca: &uverbs::hca::Hca, streams: &Receiver<UnixStream>, stop: &AtomicBool) -> Result<Vec<Entry>> {
    let mut follower = Follower::new(&uverbs::open(hca.open())?)?;
    while !stop.load(Ordering::Relaxed) {
        while let Ok(stream) = streams.try_recv() {
            follower.join(stream)?;
        }
        follower.serve(Duration::from_millis(1))?;
    }
    follower.durable()
}

fn main() -> Result<()> {
    let args = Args::parse();
    ensure!((0.0..0.5).contains(&args.loss), "--loss: between 0 and 0.5");
    let fabric = Fabric::new(1);
    fabric.loss(args.loss);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut followers = Vec::new();
        for n in 0..args.followers {
            let (sender, streams) = channel();
            let (hca, stop) = (fabric.device(&format!("hca{n}")).build(), &stop);
            followers.push((sender, scope.spawn(move || follow(&hca, &streams, stop))));
        }
        let lead = || -> Result<()> {
            let mut before: Option<Leader> = None;
            for id in [1, 2] {
                let hca = fabric.device(&format!("hca{}", 100 + id)).build();
                let mut leader = Leader::new(&uverbs::open(hca.open())?, id)?;
                for (follower, _) in &followers {
                    let (here, there) = UnixStream::pair()?;
                    follower.send(there).ok().context("a follower has ended")?;
                    leader.join(here)?;
                }
                let begin = Instant::now();
                leader.elect()?;
                println!(
                    "leader {id}: term {} after {:?}, {} entries before",
                    leader.term(),
                    begin.elapsed(),
                    leader.last()
                );
                if let Some(mut before) = before.take() {
                    let error =
                        before.append(b"too late").err().context("the old leader is not locked out")?;
                    println!("leader {}: {error}", id - 1);
                }
                let begin = Instant::now();
                for n in 0..args.entries {
                    leader.append(format!("entry {n} of leader {id}").as_bytes())?;
                }
                leader.publish()?;
                println!(
                    "leader {id}: {} entries, {:?} each",
                    args.entries,
                    begin.elapsed() / u32::from(args.entries)
                );
                before = Some(leader);
            }
            Ok(())
        };
        let led = lead();
        stop.store(true, Ordering::Relaxed);
        for (n, (_, follower)) in followers.into_iter().enumerate() {
            let entries = follower.join().expect("a follower does not panic")?;
            println!("follower {n}: {} durable entries", entries.len());
        }
        led
    })
}
