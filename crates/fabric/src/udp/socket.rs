// SPDX-License-Identifier: MIT OR Apache-2.0
//! The socket of a port: bound to one address and RoCE's UDP port, its packets are never cut into fragments.
#![expect(unsafe_code)]
// UNSAFETY: the options of sockets, the MTU of an interface, and messages with the fields of the IP header have no safe interface.

use core::mem::MaybeUninit;
use core::net::{IpAddr, SocketAddr};
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{SockaddrLike as _, SockaddrStorage, setsockopt, sockopt};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};
use uverbs_roce::frame::UDP_PORT;

/// Bytes that the kernel keeps for the socket, if the program may have so many: a peer sends a window of packets of each of its QPs at a
/// time.
const BUFFER: usize = 8 << 20;
/// The longest headers of a packet (IPv6, UDP, BTH, XRCETH, RETH, ImmDt, ICRC), as Linux' rxe counts them.
const HEADERS: u32 = 80;
/// The sizes of payload that RoCE has.
const MTUS: [u32; 5] = [4096, 2048, 1024, 512, 256];
/// `UDP_NO_CHECK6_RX` of linux/udp.h, which libc does not have: rxe sends packets on IPv6 without a checksum.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

/// Sets an option that is a number.
fn set(socket: &UdpSocket, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of_val(&value) as libc::socklen_t;
    let value = core::ptr::from_ref(&value).cast();
    // SAFETY: `value` points to a number of `len` bytes, which is alive in the call. The kernel only reads it.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A socket of this address.
pub(super) fn bind(ip: IpAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(ip, UDP_PORT))?;
    socket.set_nonblocking(true)?;
    match ip {
        IpAddr::V4(_) => {
            set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
            set(&socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1)?;
            set(&socket, libc::IPPROTO_IP, libc::IP_RECVTTL, 1)?;
        }
        IpAddr::V6(_) => {
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1)?;
            set(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)?;
        }
    }
    // The limit of the system applies to programs without privileges.
    if setsockopt(&socket.as_fd(), sockopt::RcvBufForce, &BUFFER).is_err() {
        setsockopt(&socket.as_fd(), sockopt::RcvBuf, &BUFFER)?;
    }
    setsockopt(&socket.as_fd(), sockopt::SndBuf, &BUFFER)?;
    Ok(socket)
}

/// Whether datagrams wait.
pub(super) fn has_input(socket: &UdpSocket) -> bool {
    let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// The bytes of payload in a packet that the interface of the address has room for.
pub(super) fn mtu(socket: &UdpSocket, ip: IpAddr) -> io::Result<u32> {
    let of = |name: &str| {
        // SAFETY: zeros are a valid `ifreq`: it has numbers only.
        let mut request: libc::ifreq = unsafe { core::mem::zeroed() };
        // The last byte stays 0.
        let last = request.ifr_name.len() - 1;
        for (to, byte) in request.ifr_name[..last].iter_mut().zip(name.bytes()) {
            *to = byte.cast_signed() as libc::c_char;
        }
        // SAFETY: the request reads the name of an `ifreq` and writes its MTU; `request` is one, and ends with a 0 byte.
        match unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) } {
            // SAFETY: the kernel has written this field.
            0 => Ok(unsafe { request.ifr_ifru.ifru_mtu }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    let has = |interface: &nix::ifaddrs::InterfaceAddress| {
        let address = interface.address.as_ref();
        match ip {
            IpAddr::V4(ip) => address.and_then(|a| a.as_sockaddr_in()).is_some_and(|a| a.ip() == ip),
            IpAddr::V6(ip) => address.and_then(|a| a.as_sockaddr_in6()).is_some_and(|a| a.ip() == ip),
        }
    };
    let interface = getifaddrs()?.find(has);
    // All of 127.0.0.0/8 is local, but has only one address.
    let name = interface.map_or_else(|| "lo".to_owned(), |interface| interface.interface_name);
    let bytes = u32::try_from(of(&name)?).unwrap_or(0).saturating_sub(HEADERS);
    MTUS.into_iter().find(|mtu| *mtu <= bytes).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("the MTU of {name} is too small for RoCE"))
    })
}

/// The fields of a datagram's IP header that a program may know and select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    /// Type of service, or traffic class.
    pub(super) class: u8,
    /// Time to live, or hop limit. `None` is that of the system.
    pub(super) hops: Option<u8>,
}

/// Room for two control messages of a number, aligned as their header.
#[repr(align(8))]
struct Control([u8; Self::LEN]);

impl Control {
    // SAFETY: it computes a length.
    const ONE: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) } as usize;
    const LEN: usize = 2 * Self::ONE;
}

/// A message of these bytes, without an address.
fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: zeros are a valid `msghdr`: numbers, and pointers that may be null.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = Control::LEN as _;
    message
}

/// Sends a datagram, if the kernel has room for it.
pub(super) fn send(socket: &UdpSocket, to: SocketAddr, fields: Fields, bytes: &[u8]) -> Result<(), Errno> {
    let (level, class, hops) = match to {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS, libc::IP_TTL),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, libc::IPV6_HOPLIMIT),
    };
    let address = SockaddrStorage::from(to);
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; Control::LEN]);
    let mut message = message(&mut part, &mut control);
    message.msg_name = address.as_ptr().cast_mut().cast();
    message.msg_namelen = address.len();
    let numbers = [(class, Some(fields.class)), (hops, fields.hops)];
    let mut used = 0;
    for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
        let header = libc::cmsghdr {
            // SAFETY: it computes a length.
            cmsg_len: unsafe { libc::CMSG_LEN(size_of::<libc::c_int>() as u32) } as _,
            cmsg_level: level,
            cmsg_type: name,
        };
        // SAFETY: `used` is 0 or `ONE`, so the header and the number behind it are within the two parts of `control`, which is aligned
        // for a header.
        let at = unsafe { message.msg_control.cast::<u8>().add(used) }.cast::<libc::cmsghdr>();
        // SAFETY: as above.
        unsafe { at.write(header) };
        // SAFETY: as above; the data of a control message are behind its header, and `at` is one.
        let data = unsafe { libc::CMSG_DATA(at) }.cast::<libc::c_int>();
        // SAFETY: as above.
        unsafe { data.write_unaligned(number.into()) };
        used += Control::ONE;
    }
    message.msg_controllen = used as _;
    // SAFETY: the address, the part and the control messages of `message` are alive in the call, which only reads them.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT) };
    Errno::result(sent).map(drop)
}

/// Receives a datagram, if there is one: its sender, fields, and length. Of a longer one than `bytes`, the rest is lost.
pub(super) fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Result<(SocketAddr, Fields, usize), Errno> {
    let mut address = MaybeUninit::<libc::sockaddr_storage>::zeroed();
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = Control([0; Control::LEN]);
    let mut message = message(&mut part, &mut control);
    message.msg_name = address.as_mut_ptr().cast();
    message.msg_namelen = size_of_val(&address) as _;
    // SAFETY: the memory for the address, the bytes and the control messages of `message` is alive in the call, which writes at most as
    // many bytes as their lengths in `message` say.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
    let len = Errno::result(len)?.cast_unsigned();
    let mut fields = Fields { class: 0, hops: None };
    // SAFETY: the kernel has written the control messages of `message`, and their length.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: `next` is null, or points to a header that the kernel has written to `control`.
    while let Some(header) = unsafe { next.as_ref() } {
        // SAFETY: as above. The data are behind the header; the two kinds of messages that `bind` has requested have at least a byte.
        let data = unsafe { libc::CMSG_DATA(next) };
        let byte = || {
            // SAFETY: as above.
            unsafe { data.read() }
        };
        let number = || {
            // SAFETY: as above; these messages have a number.
            unsafe { data.cast::<libc::c_int>().read_unaligned() }
        };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::IPPROTO_IP, libc::IP_TOS) => fields.class = byte(),
            (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                fields.hops = Some(number() as u8);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => fields.class = number() as u8,
            _ => {}
        }
        // SAFETY: `next` is a header in the control messages of `message`.
        next = unsafe { libc::CMSG_NXTHDR(&raw const message, next) };
    }
    // SAFETY: all bytes are initialised: zeros, or the address that the kernel has written.
    let address = unsafe { address.assume_init() };
    // SAFETY: `address` has the family that the kernel has written, and as many bytes as any address.
    let address =
        unsafe { SockaddrStorage::from_raw((&raw const address).cast(), Some(message.msg_namelen)) };
    let address = address.ok_or(Errno::EINTR)?;
    let from = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
        (Some(v4), _) => SocketAddr::new(IpAddr::V4(v4.ip()), v4.port()),
        (_, Some(v6)) => SocketAddr::new(IpAddr::V6(v6.ip()), v6.port()),
        (None, None) => return Err(Errno::EINTR),
    };
    Ok((from, fields, len))
}
