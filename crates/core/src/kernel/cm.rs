// SPDX-License-Identifier: MIT OR Apache-2.0
//! The port of the connection manager: an event channel, which is an open `/dev/infiniband/rdma_cm`.
//!
//! It is a device of its own, not of one RDMA device: its identifiers are bound to a device when an address is resolved. A
//! command is the bytes of a struct of [`uverbs_uapi::rdma_cm`]. [`RdmaCmFd`] writes them to the kernel; a software device
//! implements [`CmPort`] in the process and answers the same bytes.
// UNSAFETY: the write system call, with addresses that the kernel reads from and writes to.
#![expect(unsafe_code)]

use super::Process;
use crate::errno::Errno;
use crate::error::{Error, Result};
use core::fmt;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use uverbs_uapi::rdma_cm::{
    RDMA_USER_CM_CMD_ACCEPT, RDMA_USER_CM_CMD_BIND, RDMA_USER_CM_CMD_CONNECT, RDMA_USER_CM_CMD_CREATE_ID,
    RDMA_USER_CM_CMD_DESTROY_ID, RDMA_USER_CM_CMD_DISCONNECT, RDMA_USER_CM_CMD_GET_EVENT,
    RDMA_USER_CM_CMD_INIT_QP_ATTR, RDMA_USER_CM_CMD_JOIN_MCAST, RDMA_USER_CM_CMD_LEAVE_MCAST,
    RDMA_USER_CM_CMD_LISTEN, RDMA_USER_CM_CMD_MIGRATE_ID, RDMA_USER_CM_CMD_NOTIFY, RDMA_USER_CM_CMD_QUERY,
    RDMA_USER_CM_CMD_QUERY_ROUTE, RDMA_USER_CM_CMD_REJECT, RDMA_USER_CM_CMD_RESOLVE_ADDR,
    RDMA_USER_CM_CMD_RESOLVE_ROUTE, RDMA_USER_CM_CMD_SET_OPTION, rdma_ucm_accept, rdma_ucm_bind,
    rdma_ucm_cmd_hdr, rdma_ucm_connect, rdma_ucm_create_id, rdma_ucm_destroy_id, rdma_ucm_disconnect,
    rdma_ucm_get_event, rdma_ucm_init_qp_attr, rdma_ucm_join_mcast, rdma_ucm_listen, rdma_ucm_migrate_id,
    rdma_ucm_notify, rdma_ucm_query, rdma_ucm_reject, rdma_ucm_resolve_addr, rdma_ucm_resolve_route,
    rdma_ucm_set_option,
};
use zerocopy::IntoBytes;

/// One event channel of a connection manager. Used as `Arc<dyn CmPort>`.
///
/// An answer is not trusted: the callers check numbers and lengths, and an implementation may be malicious.
pub trait CmPort: Send + Sync + fmt::Debug {
    /// Runs one command, `RDMA_USER_CM_CMD_*`, whose struct is `input`. The field `response` (or `optval`) of the struct is
    /// ignored: the answer is written to `output`, and the value of an option follows the struct of `SET_OPTION`. Bytes of
    /// `output` that the answer does not have are left as they are. It does not wait for events.
    ///
    /// # Errors
    /// The kernel's errno; `EAGAIN` if there is no event; `ENOSYS` for a command that the port does not have; `ESTALE` in a
    /// process that did not open the channel.
    fn command(&self, cmd: u32, input: &[u8], output: &mut [u8]) -> Result<(), Errno>;

    /// The descriptor that is readable while there is an event. `MIGRATE_ID` names the channel by its number.
    fn fd(&self) -> BorrowedFd<'_>;

    /// A further channel of the same connection manager.
    ///
    /// # Errors
    /// As the opening of this one.
    fn open_channel(&self) -> Result<Arc<dyn CmPort>>;

    /// Whether this is the process that opened the channel, and not a child that it forked.
    fn is_creator_process(&self) -> bool;
}

/// The connection manager of the kernel: an open `/dev/infiniband/rdma_cm`.
#[derive(Debug)]
pub struct RdmaCmFd {
    fd: OwnedFd,
    path: PathBuf,
    creator: Process,
}

impl RdmaCmFd {
    /// The device file.
    pub const PATH: &str = "/dev/infiniband/rdma_cm";

    /// Opens the device file.
    ///
    /// # Errors
    /// The error of open(2): `ENOENT` if the module rdma_ucm is not loaded.
    pub fn open() -> Result<Self> {
        Self::open_path(Path::new(Self::PATH))
    }

    /// As [`RdmaCmFd::open`], for a device file at another path.
    ///
    /// # Errors
    /// As [`RdmaCmFd::open`].
    pub fn open_path(path: &Path) -> Result<Self> {
        let flags = OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let fd = open(path, flags, Mode::empty())
            .map_err(|e| Error::os("create_event_channel", path.display().to_string(), e.into()))?;
        Ok(Self { fd, path: path.to_owned(), creator: Process::register() })
    }
}

/// What follows the struct of a command, or where the kernel finds the room for its answer.
#[derive(Clone, Copy)]
pub(super) enum Pointer {
    /// The command has no address.
    None,
    /// The answer's address is at this offset.
    Answer(usize),
    /// The address of the bytes after the struct is at this offset.
    Value(usize),
}

/// The bytes of a command's struct, and its address. Only of commands that are known: an unknown one could have an address
/// elsewhere.
pub(super) fn layout(cmd: u32) -> Option<(usize, Pointer)> {
    use Pointer::{Answer, None as No, Value};
    macro_rules! at {
        ($name:ident.$field:ident) => {
            Answer(core::mem::offset_of!($name, $field))
        };
    }
    Some(match cmd {
        RDMA_USER_CM_CMD_CREATE_ID => (size_of::<rdma_ucm_create_id>(), at!(rdma_ucm_create_id.response)),
        RDMA_USER_CM_CMD_DESTROY_ID | RDMA_USER_CM_CMD_LEAVE_MCAST => {
            (size_of::<rdma_ucm_destroy_id>(), at!(rdma_ucm_destroy_id.response))
        }
        RDMA_USER_CM_CMD_RESOLVE_ROUTE => (size_of::<rdma_ucm_resolve_route>(), No),
        RDMA_USER_CM_CMD_QUERY_ROUTE | RDMA_USER_CM_CMD_QUERY => {
            (size_of::<rdma_ucm_query>(), at!(rdma_ucm_query.response))
        }
        RDMA_USER_CM_CMD_CONNECT => (size_of::<rdma_ucm_connect>(), No),
        RDMA_USER_CM_CMD_LISTEN => (size_of::<rdma_ucm_listen>(), No),
        RDMA_USER_CM_CMD_ACCEPT => (size_of::<rdma_ucm_accept>(), No),
        RDMA_USER_CM_CMD_REJECT => (size_of::<rdma_ucm_reject>(), No),
        RDMA_USER_CM_CMD_DISCONNECT => (size_of::<rdma_ucm_disconnect>(), No),
        RDMA_USER_CM_CMD_INIT_QP_ATTR => {
            (size_of::<rdma_ucm_init_qp_attr>(), at!(rdma_ucm_init_qp_attr.response))
        }
        RDMA_USER_CM_CMD_GET_EVENT => (size_of::<rdma_ucm_get_event>(), at!(rdma_ucm_get_event.response)),
        RDMA_USER_CM_CMD_SET_OPTION => {
            (size_of::<rdma_ucm_set_option>(), Value(core::mem::offset_of!(rdma_ucm_set_option, optval)))
        }
        RDMA_USER_CM_CMD_NOTIFY => (size_of::<rdma_ucm_notify>(), No),
        RDMA_USER_CM_CMD_MIGRATE_ID => (size_of::<rdma_ucm_migrate_id>(), at!(rdma_ucm_migrate_id.response)),
        RDMA_USER_CM_CMD_BIND => (size_of::<rdma_ucm_bind>(), No),
        RDMA_USER_CM_CMD_RESOLVE_ADDR => (size_of::<rdma_ucm_resolve_addr>(), No),
        RDMA_USER_CM_CMD_JOIN_MCAST => (size_of::<rdma_ucm_join_mcast>(), at!(rdma_ucm_join_mcast.response)),
        _ => return None,
    })
}

const HEADER: usize = size_of::<rdma_ucm_cmd_hdr>();
/// The longest command with its header.
const LONGEST: usize = HEADER + size_of::<rdma_ucm_accept>();

/// The bytes to write. The addresses are taken here, so that nothing uses a buffer between this and the system call.
fn encode<'b>(
    cmd: u32,
    input: &[u8],
    output: &mut [u8],
    buffer: &'b mut [u8; LONGEST],
) -> Result<&'b [u8], Errno> {
    let (len, pointer) = layout(cmd).ok_or(Errno::ENOSYS)?;
    let (command, value) = input.split_at_checked(len).ok_or(Errno::EINVAL)?;
    let bytes = buffer.get_mut(..HEADER + len).ok_or(Errno::EINVAL)?;
    let (head, tail) = bytes.split_at_mut(HEADER);
    let (address_at, address) = match pointer {
        Pointer::Value(at) => {
            // The kernel reads `optlen` bytes at the address.
            let len_at = core::mem::offset_of!(rdma_ucm_set_option, optlen);
            let optlen = command.get(len_at..).and_then(|b| b.first_chunk()).map(|b| u32::from_ne_bytes(*b));
            if optlen.and_then(|n| usize::try_from(n).ok()) != Some(value.len()) {
                return Err(Errno::EINVAL);
            }
            (Some(at), value.as_ptr().expose_provenance())
        }
        _ if !value.is_empty() => return Err(Errno::EINVAL),
        Pointer::Answer(at) => (Some(at), output.as_mut_ptr().expose_provenance()),
        Pointer::None => (None, 0),
    };
    let room = if matches!(pointer, Pointer::Answer(_)) { output.len() } else { 0 };
    let header = rdma_ucm_cmd_hdr {
        cmd,
        input: u16::try_from(len).map_err(|_| Errno::EINVAL)?,
        out: u16::try_from(room).unwrap_or(u16::MAX),
    };
    head.copy_from_slice(header.as_bytes());
    tail.copy_from_slice(command);
    if let Some(at) = address_at {
        let place = tail.get_mut(at..at + 8).ok_or(Errno::EINVAL)?;
        place.copy_from_slice(&(address as u64).to_ne_bytes());
    }
    Ok(bytes)
}

impl CmPort for RdmaCmFd {
    fn command(&self, cmd: u32, input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        let mut buffer = [0; LONGEST];
        let bytes = encode(cmd, input, output, &mut buffer)?;
        loop {
            // SAFETY: `bytes` are valid for reads of their length. `layout` knows every address that the kernel takes from
            // this command, and `encode` stored there the address of `output`, of which the header has the length and which
            // is borrowed exclusively, or of the option's value, which is as long as the command says.
            let written = unsafe {
                libc::write(self.fd.as_raw_fd(), bytes.as_ptr().cast::<libc::c_void>(), bytes.len())
            };
            if written >= 0 {
                return Ok(());
            }
            match Errno::last() {
                // The command was not run.
                Errno::EINTR => {}
                errno => return Err(errno),
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn open_channel(&self) -> Result<Arc<dyn CmPort>> {
        Ok(Arc::new(Self::open_path(&self.path)?))
    }

    fn is_creator_process(&self) -> bool {
        self.creator.is_current()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use uverbs_uapi::rdma_cm::{RDMA_USER_CM_CMD_RESOLVE_IP, RDMA_USER_CM_CMD_WRITE_CM_EVENT};

    pub(in crate::kernel) fn encoded(cmd: u32, input: &[u8], output: &mut [u8]) -> Result<Vec<u8>, Errno> {
        encode(cmd, input, output, &mut [0; LONGEST]).map(<[u8]>::to_vec)
    }

    #[test]
    fn an_address_in_a_command_is_replaced() {
        let mut answer = [0; 4];
        let at = answer.as_mut_ptr().expose_provenance() as u64;
        for cmd in 0..RDMA_USER_CM_CMD_WRITE_CM_EVENT {
            let Some((len, pointer)) = layout(cmd) else { continue };
            let mut input = vec![0xff; len];
            if matches!(pointer, Pointer::Value(_)) {
                let optlen = core::mem::offset_of!(rdma_ucm_set_option, optlen);
                input[optlen..optlen + 4].copy_from_slice(&0_u32.to_ne_bytes());
            }
            let Ok(bytes) = encoded(cmd, &input, &mut answer) else { panic!("{cmd}") };
            assert_eq!(bytes.len(), HEADER + len, "{cmd}");
            if let Pointer::Answer(offset) = pointer {
                let place = &bytes[HEADER + offset..][..8];
                assert_eq!(place, at.to_ne_bytes(), "{cmd}");
                assert_eq!(bytes[6..8], 4_u16.to_ne_bytes(), "{cmd}: the room for the answer");
            }
        }
    }

    #[test]
    fn a_command_of_the_wrong_length_or_of_an_unknown_number_is_not_written() {
        let errno = |cmd, input: &[u8]| encoded(cmd, input, &mut []).unwrap_err();
        assert_eq!(errno(RDMA_USER_CM_CMD_LISTEN, &[0; 7]), Errno::EINVAL);
        assert_eq!(errno(RDMA_USER_CM_CMD_LISTEN, &[0; 9]), Errno::EINVAL);
        assert_eq!(errno(RDMA_USER_CM_CMD_RESOLVE_IP, &[0; 64]), Errno::ENOSYS);
        assert_eq!(errno(u32::MAX, &[0; 64]), Errno::ENOSYS);
    }

    #[test]
    fn the_value_of_an_option_must_have_the_length_that_the_command_says() {
        let command = rdma_ucm_set_option { optlen: 4, ..Default::default() };
        let mut input = command.as_bytes().to_vec();
        assert_eq!(encoded(RDMA_USER_CM_CMD_SET_OPTION, &input, &mut []), Err(Errno::EINVAL));
        input.extend([0; 4]);
        assert!(encoded(RDMA_USER_CM_CMD_SET_OPTION, &input, &mut []).is_ok());
        input.push(0);
        assert_eq!(encoded(RDMA_USER_CM_CMD_SET_OPTION, &input, &mut []), Err(Errno::EINVAL));
    }

    #[test]
    fn a_process_that_did_not_open_the_channel_gets_estale() {
        let null = Path::new("/dev/null");
        let mut port = RdmaCmFd::open_path(null).unwrap();
        port.command(RDMA_USER_CM_CMD_LISTEN, &[0; 8], &mut []).unwrap();
        port.creator = Process::other();
        assert_eq!(port.command(RDMA_USER_CM_CMD_LISTEN, &[0; 8], &mut []), Err(Errno::ESTALE));
        let missing = RdmaCmFd::open_path(Path::new("/nonexistent")).unwrap_err();
        assert_eq!((missing.verb(), missing.errno()), ("create_event_channel", Errno::ENOENT));
    }
}
