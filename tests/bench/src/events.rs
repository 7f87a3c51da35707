// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: requests for an event of a CQ, and the events.
#![expect(unsafe_code)]
// UNSAFETY: a descriptor of the preload library.

use crate::device::Seen;
use crate::face::Face;
use crate::measure::measured;
use crate::world::{Cq, World};
use crate::{CHUNK, Rows, ok};
use std::cell::OnceCell;
use std::fs::File;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd as _;
use uverbs::attr::CqInitAttr;
use uverbs::mlx5::Mlx5;
use uverbs::{CompletionChannel, raw};

/// A CQ with a channel, and the other end of the channel.
struct Evented<L: Face> {
    channel: CompletionChannel<Mlx5>,
    queue: std::cell::RefCell<raw::Cq<L, Mlx5>>,
    fd: ManuallyDrop<File>,
    handle: u64,
}

impl<L: Face> Evented<L> {
    fn new(w: &World<L>) -> Self {
        let channel = w.context.create_comp_channel().expect("a channel");
        let attr = CqInitAttr::new(CHUNK - 1);
        let queue = w.context.create_cq_ex::<L>(&attr, Some(&channel)).expect("a CQ");
        let seen = Seen::now();
        // SAFETY: the preload library has made the descriptor and leaves it to this program, which does not close it.
        let fd = ManuallyDrop::new(unsafe { File::from_raw_fd(seen.event_fd) });
        Self { channel, queue: queue.into(), fd, handle: seen.cq_handle }
    }
}

#[inline(never)]
fn arms<L: Face>(cq: &mut Cq<L>) {
    for _ in 0..CHUNK {
        L::req_notify(&mut cq.queue).unwrap_or_else(ok);
    }
}

#[inline(never)]
fn events<L: Face>(channel: &CompletionChannel<Mlx5>, queue: &mut raw::Cq<L, Mlx5>) {
    for _ in 0..CHUNK {
        let _id = channel.get_event().unwrap_or_else(ok);
        L::req_notify(queue).unwrap_or_else(ok);
    }
}

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    rows.add("typed", "arm", 1, CHUNK, move || {
        let cq = &mut *w.send_cq.borrow_mut();
        measured(|| arms(cq));
    });
    let evented = OnceCell::new();
    rows.add("typed", "event", 1, CHUNK, move || {
        let evented = evented.get_or_init(|| Evented::new(w));
        for _ in 0..CHUNK {
            (&*evented.fd).write_all(&evented.handle.to_ne_bytes()).expect("an event");
        }
        let queue = &mut *evented.queue.borrow_mut();
        measured(|| events(&evented.channel, queue));
    });
}
