// SPDX-License-Identifier: MIT OR Apache-2.0
//! Asynchronous events (ibv_get_async_event(3)).

use super::comp_channel::{read_record, set_nonblocking};
use super::{Result, device_error};
use crate::attr::{AsyncEvent, EventType};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Command, Kernel};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use uverbs_uapi::event::ib_uverbs_async_event_desc;
use uverbs_uapi::ids::{
    UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, UVERBS_METHOD_ASYNC_EVENT_ALLOC, UVERBS_OBJECT_ASYNC_EVENT,
};
use zerocopy::{FromBytes, IntoBytes};

/// A file from which asynchronous events are read. It is closed on drop.
///
/// The first file of a context gets the events of every object that is created after it, so it is created directly
/// after the context (`ib_uverbs_init_async_event_file()`). Events of ports and of the device go to all files.
#[derive(Debug)]
pub struct AsyncFd {
    fd: OwnedFd,
    device: Box<str>,
}

/// Creates an asynchronous event file. A read blocks, unless [`AsyncFd::set_nonblocking`] was called.
///
/// # Errors
/// The kernel's error.
pub fn alloc(kernel: &Arc<dyn Kernel>) -> Result<AsyncFd> {
    const VERB: &str = "alloc_async_event_fd";
    let mut command = Command::<1>::new(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC);
    command
        .fd_new_inner(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)
        .run(&**kernel)
        .map_err(|errno| device_error(VERB, &**kernel, errno))?;
    let fd = command.take_fd(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE);
    let fd = fd.ok_or_else(|| Error::protocol(VERB, "no file descriptor"))?;
    Ok(AsyncFd { fd, device: kernel.name().into() })
}

impl AsyncFd {
    /// Sets or clears `O_NONBLOCK`. If it is set and there is no event, a read fails with `EAGAIN`, and
    /// [`next_event`](Self::next_event) returns `None`.
    ///
    /// # Errors
    /// The error of fcntl(2).
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        set_nonblocking(self.fd.as_fd(), nonblocking).map_err(|errno| self.error("fcntl", errno))
    }

    /// Takes the next event; `None` if there is no event and the file is non-blocking.
    ///
    /// # Errors
    /// `EIO` from kernels that close the file when the device is removed. Current kernels leave it open: the last event
    /// is `DEVICE_FATAL` (`uverbs_async_event_destroy_uobj()`).
    pub fn next_event(&self) -> Result<Option<AsyncEvent>> {
        const VERB: &str = "get_async_event";
        let mut event = ib_uverbs_async_event_desc::default();
        match read_record(self.fd.as_fd(), event.as_mut_bytes()) {
            Ok(Some(true)) => Ok(Some(from_kernel(&event))),
            Ok(Some(false)) => Err(Error::protocol(VERB, "part of an event")),
            Ok(None) => Ok(None),
            Err(errno) => Err(self.error(VERB, errno)),
        }
    }

    /// As [`AsyncFd::next_event`], with `EAGAIN` as an error.
    ///
    /// # Errors
    /// `EAGAIN` if there is no event and the file is non-blocking; otherwise as [`AsyncFd::next_event`].
    pub fn read(&self) -> Result<AsyncEvent> {
        self.next_event()?.ok_or_else(|| self.error("get_async_event", Errno::EAGAIN))
    }

    /// The file, as an owned descriptor.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::os(verb, format!("async events of {}", self.device), errno)
    }
}

impl AsFd for AsyncFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A record read from an asynchronous event file.
#[must_use]
pub fn parse_event(record: &[u8]) -> Option<AsyncEvent> {
    ib_uverbs_async_event_desc::read_from_bytes(record).ok().map(|event| from_kernel(&event))
}

fn from_kernel(event: &ib_uverbs_async_event_desc) -> AsyncEvent {
    AsyncEvent { event_type: EventType(event.event_type), element: event.element }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::script::Script;

    #[test]
    fn an_event_record_of_a_kernel_is_decoded() {
        let (read, write) = nix::unistd::pipe().unwrap();
        let script = Script::new();
        let mut given = Some(read);
        script.expect(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, move |command| {
            assert!(command.new_fd(0, given.take().unwrap()));
            Ok(())
        });
        let events = alloc(&script.kernel()).unwrap();
        events.set_nonblocking(true).unwrap();
        assert_eq!(events.next_event().unwrap(), None);
        assert_eq!(events.read().unwrap_err().errno(), Errno::EAGAIN);
        let record = ib_uverbs_async_event_desc { element: 0x1_0000_0002, event_type: 15, reserved: 0 };
        nix::unistd::write(&write, record.as_bytes()).unwrap();
        let expected = AsyncEvent { event_type: EventType::SRQ_LIMIT_REACHED, element: 0x1_0000_0002 };
        assert_eq!(events.next_event().unwrap(), Some(expected));
        assert_eq!(parse_event(record.as_bytes()), Some(expected));
        assert_eq!(parse_event(&[0; 15]), None);
    }

    #[test]
    fn a_missing_descriptor_is_a_protocol_error_and_an_old_kernel_is_unsupported() {
        let script = Script::new();
        script.expect(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, |_| Ok(()));
        script.expect(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC, |_| {
            Err(Errno::EPROTONOSUPPORT)
        });
        assert!(matches!(alloc(&script.kernel()), Err(Error::Protocol { .. })));
        assert!(alloc(&script.kernel()).unwrap_err().is_unsupported());
    }
}
