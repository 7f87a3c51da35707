// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's index of a device, which only RDMA netlink reports (`RDMA_NLDEV_CMD_GET` in `<rdma/rdma_netlink.h>`).

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::os::fd::AsRawFd;

/// `RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_GET)`
const GET: u16 = 5 << 10 | 1;
/// `NLM_F_REQUEST | NLM_F_DUMP`: all devices.
const DUMP: u16 = 0x301;
/// `NLMSG_DONE`, `NLMSG_ERROR`
const ENDS: [u16; 2] = [3, 2];
/// `RDMA_NLDEV_ATTR_DEV_INDEX`, `RDMA_NLDEV_ATTR_DEV_NAME`
const INDEX: u16 = 1;
const NAME: u16 = 2;
/// Bytes of the head of a message, and of an attribute.
const MESSAGE: usize = 16;
const ATTRIBUTE: usize = 4;

/// The contents of a datagram about a device.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Index(u32),
    /// More datagrams follow.
    More,
    /// There is no such device.
    End,
}

/// The index of the device with this name; `None` if the kernel does not report it.
pub(super) fn index(name: &str) -> Option<u32> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkRDMA);
    let socket = socket.ok()?;
    // The kernel answers at once; the timeout guards against one that does not.
    setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(2)).ok()?;
    let mut request = Vec::from((MESSAGE as u32).to_ne_bytes());
    request.extend([GET.to_ne_bytes(), DUMP.to_ne_bytes()].concat());
    request.resize(MESSAGE, 0);
    send(socket.as_raw_fd(), &request, MsgFlags::empty()).ok()?;
    let mut datagram = vec![0; 1 << 16];
    loop {
        let length = recv(socket.as_raw_fd(), &mut datagram, MsgFlags::empty()).ok()?;
        match read(datagram.get(..length)?, name) {
            Answer::Index(index) => return Some(index),
            Answer::More if length > 0 => {}
            _ => return None,
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Reads the messages of a datagram, up to one that is truncated.
fn read(mut bytes: &[u8], name: &str) -> Answer {
    while let (Some(length), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        if ENDS.contains(&kind) {
            return Answer::End;
        }
        let length = length as usize;
        let Some(attributes) = bytes.get(MESSAGE..length) else { return Answer::End };
        if let Some(index) = device(attributes, name) {
            return Answer::Index(index);
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Answer::More
}

/// The index in the attributes of a device, if it has this name.
fn device(mut bytes: &[u8], name: &str) -> Option<u32> {
    let (mut index, mut is_it) = (None, false);
    while let (Some(length), Some(kind)) = (u16_at(bytes, 0), u16_at(bytes, 2)) {
        let value = bytes.get(ATTRIBUTE..length.into())?;
        match kind {
            INDEX => index = u32_at(value, 0),
            NAME => is_it = value.split(|byte| *byte == 0).next() == Some(name.as_bytes()),
            _ => {}
        }
        bytes = bytes.get(usize::from(length).next_multiple_of(4)..).unwrap_or_default();
    }
    index.filter(|_| is_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = (ATTRIBUTE + value.len()) as u16;
        let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, attributes: &[Vec<u8>]) -> Vec<u8> {
        let body = attributes.concat();
        let length = (MESSAGE + body.len()) as u32;
        [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 10], &body].concat()
    }

    fn of(index: u32, name: &str) -> Vec<u8> {
        let name = [name.as_bytes(), &[0]].concat();
        message(GET, &[attribute(INDEX, &index.to_ne_bytes()), attribute(NAME, &name), attribute(77, &[1])])
    }

    #[test]
    fn the_index_is_that_of_the_name() {
        let datagram = [of(0, "rxe0"), of(3, "mlx5_10"), of(7, "mlx5_1")].concat();
        assert_eq!(read(&datagram, "mlx5_1"), Answer::Index(7));
        assert_eq!(read(&datagram, "rxe0"), Answer::Index(0));
        assert_eq!(read(&datagram, "rxe"), Answer::More);
        assert_eq!(read(&[datagram, message(3, &[])].concat(), "rxe"), Answer::End);
    }

    #[test]
    fn a_datagram_that_is_cut_short_ends() {
        let whole = of(3, "rxe0");
        for length in 0..whole.len() - 8 {
            assert!(!matches!(read(&whole[..length], "rxe0"), Answer::Index(_)), "{length}");
        }
        for junk in [vec![0; 64], vec![0xff; 64], message(GET, &[vec![0; 8]]), message(GET, &[vec![0xff; 8]])]
        {
            assert!(!matches!(read(&junk, "rxe0"), Answer::Index(_)));
        }
        // No device has an empty name.
        assert_eq!(index(""), None);
    }
}
