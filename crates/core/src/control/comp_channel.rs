// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion channels (ibv_create_comp_channel(3), ibv_get_cq_event(3)).

use super::{Result, device_error};
use crate::errno::Errno;
use crate::error::Error;
use crate::kernel::{Command, Kernel};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, ib_uverbs_create_comp_channel, ib_uverbs_create_comp_channel_resp,
};
use uverbs_uapi::event::ib_uverbs_comp_event_desc;
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE,
    UVERBS_OBJECT_DEVICE,
};
use zerocopy::{FromBytes, IntoBytes};

/// A completion channel: a file from which completion events are read. It is closed on drop; the kernel frees its
/// object when the last CQ of the channel is destroyed.
#[derive(Debug)]
pub struct CompChannelHandle {
    fd: OwnedFd,
    device: Box<str>,
}

/// Creates a completion channel. A read blocks, unless [`CompChannelHandle::set_nonblocking`] was called.
///
/// # Errors
/// The kernel's error.
pub fn create(kernel: &Arc<dyn Kernel>) -> Result<CompChannelHandle> {
    const VERB: &str = "create_comp_channel";
    let request = ib_uverbs_create_comp_channel::default();
    let mut resp = ib_uverbs_create_comp_channel_resp::default();
    let mut command = Command::<3>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    command
        .constant(UVERBS_ATTR_WRITE_CMD, IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL)
        .input(UVERBS_ATTR_CORE_IN, &request)
        // The file descriptor is the only answer.
        .output_with_fd_inner(UVERBS_ATTR_CORE_OUT, resp.as_mut_bytes(), 0)
        .run(&**kernel)
        .map_err(|errno| device_error(VERB, &**kernel, errno))?;
    let fd =
        command.take_fd(UVERBS_ATTR_CORE_OUT).ok_or_else(|| Error::protocol(VERB, "no file descriptor"))?;
    Ok(CompChannelHandle { fd, device: kernel.name().into() })
}

impl CompChannelHandle {
    /// Sets or clears `O_NONBLOCK`. If it is set and there is no event, a read fails with `EAGAIN`, and
    /// [`next_event`](Self::next_event) returns `None`.
    ///
    /// # Errors
    /// The error of fcntl(2).
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        set_nonblocking(self.fd.as_fd(), nonblocking).map_err(|errno| self.error("fcntl", errno))
    }

    /// Takes the next event and returns the `user_handle` of its CQ; `None` if there is no event and the channel is
    /// non-blocking. The number may be that of a destroyed CQ, or invalid: the caller must look it up.
    ///
    /// # Errors
    /// `EIO` if the device was removed.
    #[inline]
    pub fn next_event(&self) -> Result<Option<u64>> {
        const VERB: &str = "get_cq_event";
        let mut event = ib_uverbs_comp_event_desc::default();
        match read_record(self.fd.as_fd(), event.as_mut_bytes()) {
            Ok(Some(true)) => Ok(Some(event.cq_handle)),
            Ok(Some(false)) => Err(Error::protocol(VERB, "part of an event")),
            Ok(None) => Ok(None),
            Err(errno) => Err(self.error(VERB, errno)),
        }
    }

    /// As [`CompChannelHandle::next_event`], with `EAGAIN` as an error.
    ///
    /// # Errors
    /// `EAGAIN` if there is no event and the channel is non-blocking; otherwise as [`CompChannelHandle::next_event`].
    pub fn read_event(&self) -> Result<u64> {
        self.next_event()?.ok_or_else(|| self.error("get_cq_event", Errno::EAGAIN))
    }

    /// The file, for poll(2) or for another owner.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    #[cold]
    fn error(&self, verb: &'static str, errno: Errno) -> Error {
        Error::os(verb, format!("completion channel of {}", self.device), errno)
    }
}

impl AsFd for CompChannelHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The `user_handle` of the CQ in a record that was read from a completion channel.
#[must_use]
pub fn parse_event(record: &[u8]) -> Option<u64> {
    ib_uverbs_comp_event_desc::read_from_bytes(record).ok().map(|event| event.cq_handle)
}

/// Sets or clears `O_NONBLOCK`.
pub(super) fn set_nonblocking(fd: BorrowedFd<'_>, nonblocking: bool) -> Result<(), Errno> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    let mut wanted = flags;
    wanted.set(OFlag::O_NONBLOCK, nonblocking);
    if wanted != flags {
        fcntl(fd, FcntlArg::F_SETFL(wanted))?;
    }
    Ok(())
}

/// Reads one record: `None` if there is none and the file is non-blocking, otherwise whether the record was complete.
/// The kernel returns one complete record per read or none (`ib_uverbs_event_read()`); end of file means that the
/// device was removed.
#[inline]
pub(super) fn read_record(fd: BorrowedFd<'_>, record: &mut [u8]) -> Result<Option<bool>, Errno> {
    loop {
        match nix::unistd::read(fd, record) {
            Ok(0) => return Err(Errno::EIO),
            Ok(n) => return Ok(Some(n == record.len())),
            Err(nix::errno::Errno::EAGAIN) => return Ok(None),
            Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::script::Script;

    fn channel() -> (CompChannelHandle, OwnedFd) {
        let (read, write) = nix::unistd::pipe().unwrap();
        let script = Script::new();
        let mut given = Some(read);
        script.expect_write::<ib_uverbs_create_comp_channel>(
            IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL,
            move |request, command| {
                assert_eq!(request, ib_uverbs_create_comp_channel::default());
                assert!(command.mark_valid(UVERBS_ATTR_CORE_OUT));
                assert!(command.new_fd(UVERBS_ATTR_CORE_OUT, given.take().unwrap()));
                Ok(())
            },
        );
        (create(&script.kernel()).unwrap(), write)
    }

    #[test]
    fn events_are_read_one_by_one_and_none_is_eagain_if_nonblocking() {
        let (channel, write) = channel();
        channel.set_nonblocking(true).unwrap();
        assert_eq!(channel.next_event().unwrap(), None);
        assert_eq!(channel.read_event().unwrap_err().errno(), Errno::EAGAIN);
        nix::unistd::write(&write, [7_u64, 9].as_bytes()).unwrap();
        assert_eq!(channel.next_event().unwrap(), Some(7));
        assert_eq!(channel.next_event().unwrap(), Some(9));
        assert_eq!(channel.next_event().unwrap(), None);
        nix::unistd::write(&write, &[1, 2, 3]).unwrap();
        assert!(matches!(channel.next_event(), Err(Error::Protocol { .. })));
        drop(write);
        assert_eq!(channel.next_event().unwrap_err().errno(), Errno::EIO);
    }

    #[test]
    fn an_answer_without_a_descriptor_is_a_protocol_error() {
        let script = Script::new();
        script.expect_write::<ib_uverbs_create_comp_channel>(
            IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL,
            |_, command| {
                command.answer(UVERBS_ATTR_CORE_OUT, &0_u32.to_ne_bytes());
                Ok(())
            },
        );
        assert!(matches!(create(&script.kernel()), Err(Error::Protocol { .. })));
    }
}
