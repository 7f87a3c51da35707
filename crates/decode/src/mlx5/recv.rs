// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receive WQEs.

use super::{SEG, data};
use crate::entry::Entry;
use crate::reader::{Order, Reader, Show};

/// A receive WQE: `bytes` are the stride of the queue.
#[must_use]
pub fn recv(bytes: &[u8]) -> Entry {
    list(Reader::new("mlx5 receive WQE", Order::Big, bytes), 0)
}

/// A WQE of a shared receive queue: `bytes` are the stride of the queue.
#[must_use]
pub fn srq(bytes: &[u8]) -> Entry {
    let mut r = Reader::new("mlx5 SRQ WQE", Order::Big, bytes);
    r.num(2, 2, "next_wqe_index", Show::Dec);
    r.mean("the WQE that follows in the list");
    r.num(4, 1, "signature", Show::Hex);
    list(r, SEG)
}

fn list(mut r: Reader<'_>, mut at: usize) -> Entry {
    let stride = r.len();
    let first = at;
    // At least one, so that a stride without entries is named as too short.
    while at + SEG <= stride || at == first {
        let goes_on = data(&mut r, at, true);
        at += SEG;
        if !goes_on {
            // What follows is from the laps before.
            r.limit(at);
            break;
        }
    }
    let room = r.local_bytes();
    r.say(format!("receive with room for {room} bytes"));
    r.finish()
}
