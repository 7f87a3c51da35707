// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: requests for an event of a CQ, and the events.
#![expect(unsafe_code)]
// UNSAFETY: a descriptor of the preload library.

use crate::device::Seen;
use crate::face::Face;
use crate::measure::measured;
use crate::world::World;
use crate::{CHUNK, Rows, ok};
use std::cell::{OnceCell, RefCell};
use std::fs::File;
use std::io::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd as _, RawFd};
use uverbs::attr::CqInitAttr;
use uverbs::{CompletionChannel, Context, Driver, raw};

/// A CQ with a channel, and the other end of the channel.
struct Evented<D: Driver, L: Face> {
    channel: CompletionChannel<D>,
    queue: RefCell<raw::Cq<L, D>>,
    fd: ManuallyDrop<File>,
    handle: u64,
}

impl<D: Driver, L: Face> Evented<D, L> {
    /// `end` tells where the preload library writes events, and the number of the CQ in them.
    fn new(context: &Context<D>, end: fn() -> (RawFd, u64)) -> Self {
        let channel = context.create_comp_channel().expect("a channel");
        let attr = CqInitAttr::new(CHUNK - 1);
        let queue = context.create_cq_ex::<L>(&attr, Some(&channel)).expect("a CQ");
        let (fd, handle) = end();
        // SAFETY: the preload library has made the descriptor and leaves it to this program, which does not close it.
        let fd = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
        Self { channel, queue: queue.into(), fd, handle }
    }
}

#[inline(never)]
fn arms<D: Driver, L: Face>(queue: &mut raw::Cq<L, D>) {
    for _ in 0..CHUNK {
        L::req_notify(queue).unwrap_or_else(ok);
    }
}

#[inline(never)]
fn events<D: Driver, L: Face>(channel: &CompletionChannel<D>, queue: &mut raw::Cq<L, D>) {
    for _ in 0..CHUNK {
        let _id = channel.get_event().unwrap_or_else(ok);
        L::req_notify(queue).unwrap_or_else(ok);
    }
}

/// Adds the rows of mlx5.
pub fn rows<L: Face>(rows: &mut Rows, w: &'static World<L>) {
    rows.add("typed", "arm", 1, CHUNK, move || {
        let cq = &mut *w.send_cq.borrow_mut();
        measured(|| arms(&mut cq.queue));
    });
    let end = || {
        let seen = Seen::now();
        (seen.event_fd, seen.cq_handle)
    };
    event::<_, L>(rows, "event", Box::leak(Box::default()), &w.context, end);
}

/// Adds the rows of a driver whose CQs without a channel have no doorbell.
pub fn rows_of_channel<D: Driver, L: Face>(
    rows: &mut Rows,
    [arm, event_name]: [&str; 2],
    context: &'static Context<D>,
    end: fn() -> (RawFd, u64),
) {
    let evented: &'static OnceCell<Evented<D, L>> = Box::leak(Box::default());
    rows.add("typed", arm, 1, CHUNK, move || {
        let queue = &mut *evented.get_or_init(|| Evented::new(context, end)).queue.borrow_mut();
        measured(|| arms(queue));
    });
    event(rows, event_name, evented, context, end);
}

/// Adds the row of events.
fn event<D: Driver, L: Face>(
    rows: &mut Rows,
    name: &str,
    evented: &'static OnceCell<Evented<D, L>>,
    context: &'static Context<D>,
    end: fn() -> (RawFd, u64),
) {
    rows.add("typed", name, 1, CHUNK, move || {
        let evented = evented.get_or_init(|| Evented::new(context, end));
        for _ in 0..CHUNK {
            (&*evented.fd).write_all(&evented.handle.to_ne_bytes()).expect("an event");
        }
        let queue = &mut *evented.queue.borrow_mut();
        measured(|| events(&evented.channel, queue));
    });
}
