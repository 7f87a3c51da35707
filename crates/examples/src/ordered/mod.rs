// SPDX-License-Identifier: MIT OR Apache-2.0
//! Messages in order over SRD, a transport which is reliable and has no order.
//!
//! A message may overtake those before it, so each has a number, and the receiver keeps what has come early in a [window]. The
//! sender may be at most that many messages ahead of what the receiver has delivered; messages to it tell how far that is. So the receiver
//! has memory for everything that can arrive, and its receives never run out.
//!
//! SRD delivers each message once, or fails it. Nothing is repeated here, and a number that comes twice is an error of the peer.
//!
//! | module | contents |
//! |---|---|
//! | [`window`] | the order: what came early waits for what is late |
//! | [`channel`] | a QP with a peer: numbers, credits, buffers |

pub mod channel;
pub mod window;

pub use channel::{Channel, Stats};

use anyhow::{Result, ensure};
use core::hash::Hasher as _;
use serde::Serialize;
use std::hash::DefaultHasher;
use std::time::Instant;
use uverbs::Driver;

/// What an end has seen.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Messages that were sent and received.
    pub messages: u64,
    /// Seconds.
    pub seconds: f64,
    /// What the window did.
    pub stats: Stats,
}

/// The content of message `n`, whose length depends on its number.
fn content(n: u64) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(n);
    let seed = hasher.finish();
    let len = 8 + (seed % 1000) as usize;
    n.to_be_bytes().into_iter().chain((0..).map(|i: u32| (seed >> (i % 8 * 8)) as u8)).take(len).collect()
}

/// Sends `count` messages to the peer, and receives as many from it, in order.
///
/// # Errors
/// The connection has failed, or a message was not the expected one.
pub fn run<D: Driver>(channel: &mut Channel<D>, count: u64) -> Result<Figures> {
    let begin = Instant::now();
    let (mut sent, mut received) = (0, 0);
    while sent < count || received < count {
        let next = count.min(sent + channel.room() as u64);
        if sent < next {
            channel.send((sent..next).map(content))?;
            sent = next;
        }
        while let Some(message) = channel.try_recv()? {
            ensure!(*message == *content(received), "message {received} is another one");
            received += 1;
        }
        ensure!(received <= count, "the peer has sent more than {count} messages");
        channel.progress()?;
    }
    channel.finish()?;
    Ok(Figures { messages: count, seconds: begin.elapsed().as_secs_f64(), stats: channel.stats() })
}
