// SPDX-License-Identifier: MIT OR Apache-2.0
//! Socket addresses as the kernel stores them.

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use nix::libc::{AF_INET, AF_INET6};
use uverbs_uapi::be::{Be16, Be32};
use uverbs_uapi::rdma_cm::__kernel_sockaddr_storage as Storage;
use uverbs_uapi::rxe::{sockaddr_in, sockaddr_in6};
use zerocopy::{FromBytes, IntoBytes};

/// The storage of an address, and the number of its bytes that are used.
pub(crate) fn encode(address: SocketAddr) -> (Storage, u16) {
    let mut storage = Storage::default();
    let bytes = storage.as_mut_bytes();
    let len = match address {
        SocketAddr::V4(v4) => {
            let raw = sockaddr_in {
                sin_family: AF_INET as u16,
                sin_port: Be16::new(v4.port()),
                sin_addr: Be32::new(v4.ip().to_bits()),
                sin_zero: [0; 8],
            };
            copy(bytes, raw.as_bytes())
        }
        SocketAddr::V6(v6) => {
            let raw = sockaddr_in6 {
                sin6_family: AF_INET6 as u16,
                sin6_port: Be16::new(v6.port()),
                sin6_flowinfo: Be32::new(v6.flowinfo()),
                sin6_addr: v6.ip().octets(),
                sin6_scope_id: v6.scope_id(),
            };
            copy(bytes, raw.as_bytes())
        }
    };
    (storage, len)
}

fn copy(to: &mut [u8], from: &[u8]) -> u16 {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    u16::try_from(from.len()).unwrap_or(0)
}

/// The address in a storage; `None` if it is of another family, or has no address yet.
pub(crate) fn decode(storage: &Storage) -> Option<SocketAddr> {
    let bytes = storage.as_bytes();
    let (family, _) = u16::read_from_prefix(bytes).ok()?;
    match i32::from(family) {
        AF_INET => {
            let (raw, _) = sockaddr_in::read_from_prefix(bytes).ok()?;
            let ip = Ipv4Addr::from_bits(raw.sin_addr.get());
            Some(SocketAddrV4::new(ip, raw.sin_port.get()).into())
        }
        AF_INET6 => {
            let (raw, _) = sockaddr_in6::read_from_prefix(bytes).ok()?;
            let ip = Ipv6Addr::from(raw.sin6_addr);
            Some(
                SocketAddrV6::new(ip, raw.sin6_port.get(), raw.sin6_flowinfo.get(), raw.sin6_scope_id).into(),
            )
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_encoded_and_decoded() {
        for (text, len) in [("10.0.0.1:7471", 16), ("[fe80::1%3]:80", 28), ("[2001:db8::2]:0", 28)] {
            let address: SocketAddr = text.parse().unwrap();
            let (storage, size) = encode(address);
            assert_eq!((decode(&storage), size), (Some(address), len), "{text}");
        }
        let (v4, _) = encode("10.0.0.1:258".parse().unwrap());
        assert_eq!(v4.as_bytes()[..9], [2, 0, 1, 2, 10, 0, 0, 1, 0]);
    }

    #[test]
    fn another_family_is_no_address() {
        let mut storage = Storage::default();
        assert_eq!(decode(&storage), None);
        // AF_IB
        storage.words[0] = 27;
        assert_eq!(decode(&storage), None);
    }
}
