// SPDX-License-Identifier: MIT OR Apache-2.0
//! What ends the poll(2) of a thread whose event another call has read.

use core::cell::RefCell;
use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A descriptor that another thread makes readable. A thread has one, which it uses for all its waits: so the number of descriptors
/// does not grow with the number of connections.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<EventFd>);

impl Bell {
    /// The bell of this thread, which does not ring.
    ///
    /// A child of fork(2) shares the eventfd(2) of its parent, so it creates its own.
    pub(crate) fn of_this_thread() -> Result<Self, Errno> {
        thread_local!(static BELL: RefCell<Option<(u32, Bell)>> = const { RefCell::new(None) });
        let process = std::process::id();
        let known = BELL.try_with(|place| match &*place.borrow() {
            Some((home, bell)) if *home == process => Some(bell.clone()),
            _ => None,
        });
        if let Ok(Some(bell)) = known {
            // What rang for an earlier wait.
            let _ = bell.0.read();
            return Ok(bell);
        }
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let bell = Self(Arc::new(event));
        // The thread may be at its end, where it has no such variables any more.
        let _ = BELL.try_with(|place| place.replace(Some((process, bell.clone()))));
        Ok(bell)
    }

    /// Ends the poll(2) of its thread.
    pub(crate) fn ring(&self) {
        // It fails only if the counter would overflow: then it rings already.
        let _ = self.0.write(1);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
