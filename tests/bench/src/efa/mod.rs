// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows of EFA, on the fake device of the preload library `c/efa/shim.c`: the table of posts, receives, polls and events.

mod device;
mod places;
mod posts;
mod queues;
mod world;

use crate::face::Face;
use crate::{Rows, events};
use world::World;

/// Adds the rows.
pub fn rows<L: Face>(rows: &mut Rows) {
    let world = &*Box::leak(Box::new(World::<L>::create()));
    posts::rows(rows, world);
    queues::rows(rows, world);
    events::rows_of_channel::<_, L>(rows, ["efa arm", "efa event"], &world.context, device::Fake::events);
}
