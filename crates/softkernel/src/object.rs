// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tables must know about a model's objects.

use core::fmt;
use std::os::fd::OwnedFd;
use uverbs_fabric::map::Key;

/// The object of a handle.
pub trait Object: fmt::Debug + Send + 'static {
    /// A number by which a program or another command names an object, besides its handle.
    type Number: Key + fmt::Debug + Send;
    /// What a model stores with each context.
    type Data: fmt::Debug + Default + Send;

    /// Its name in the output of `rdma resource`.
    fn name(&self) -> &'static str;

    /// The objects of its kind that there may be in all contexts. Further ones are refused with `ENOMEM`, as by a kernel whose
    /// firmware has no more.
    fn most(&self) -> usize;

    /// Its number besides its handle.
    fn other_number(&self) -> Option<Self::Number>;

    /// Its kind and number in events of the device.
    fn number(&self) -> Option<(Kind, u32)>;

    /// The number of its completion channel, and a copy of the program's end.
    fn channel(&self) -> Option<(usize, &OwnedFd)>;
}

/// Kinds of objects that have events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A completion queue.
    Cq,
    /// A queue pair.
    Qp,
    /// A shared receive queue.
    Srq,
    /// A work queue.
    Wq,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Cq, Self::Qp, Self::Srq, Self::Wq];
}

impl Key for Kind {
    const BITS: u32 = 2;

    fn number(self) -> u128 {
        self as u128
    }

    fn of(number: u128) -> Self {
        Self::ALL[number as usize % Self::ALL.len()]
    }
}
