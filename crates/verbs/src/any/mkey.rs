// SPDX-License-Identifier: MIT OR Apache-2.0
//! The indirect keys of each driver.
#![expect(unsafe_code)]
// UNSAFETY: passes the contract of a work request on to the device's driver.

use super::Member;
use super::send::AnySendQueue;
use uverbs_core::error::Error;
use uverbs_core::provider::{Head, MkeyMemory, MkeyObject, PostError, WrBuilder as _};

/// An indirect key of a driver.
#[derive(Debug)]
pub(super) struct AnyMkey<D: Member>(Box<dyn MkeyObject<D::SendQueue>>);

impl<D: Member> AnyMkey<D> {
    pub(super) fn of(key: Box<dyn MkeyObject<D::SendQueue>>) -> Box<dyn MkeyObject<AnySendQueue>> {
        Box::new(Self(key))
    }
}

impl<D: Member> MkeyObject<AnySendQueue> for AnyMkey<D> {
    fn key(&self) -> u32 {
        self.0.key()
    }

    fn max_entries(&self) -> u32 {
        self.0.max_entries()
    }

    unsafe fn configure(&self, queue: &mut AnySendQueue, head: Head, memory: &MkeyMemory<'_>) {
        match queue.own::<D>() {
            // SAFETY: the contract of this function.
            Some(queue) => unsafe { self.0.configure(queue, head, memory) },
            None => queue.wr_latch(PostError::InvalidArgument),
        }
    }

    fn destroy(self: Box<Self>) -> Result<(), (Box<dyn MkeyObject<AnySendQueue>>, Error)> {
        self.0.destroy().map_err(|(key, error)| (Self::of(key), error))
    }
}
