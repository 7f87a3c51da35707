// SPDX-License-Identifier: MIT OR Apache-2.0
//! GIDs and the port's GID table (ibv_query_gid_ex(3), ibv_query_gid_table(3)).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// `union ibv_gid`: 16 bytes in network byte order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The zero GID: an empty entry of the table.
    pub const ZERO: Self = Self([0; 16]);

    /// The upper half (`global.subnet_prefix`), in host order.
    #[must_use]
    pub fn subnet_prefix(self) -> u64 {
        (u128::from_be_bytes(self.0) >> 64) as u64
    }

    /// The lower half (`global.interface_id`), in host order.
    #[must_use]
    pub fn interface_id(self) -> u64 {
        u128::from_be_bytes(self.0) as u64
    }

    /// Whether this is the zero GID.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }

    /// Whether it names a multicast group: `ff00::/8`, or the IPv4-mapped form of `224.0.0.0/4`.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.0[0] == 0xff || self.ipv4().is_some_and(|v4| v4.is_multicast())
    }

    /// The IPv4 address of an IPv4-mapped GID, as RoCE v2 over IPv4 uses them.
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

/// Eight groups of four digits, as sysfs and the RDMA tools print a GID: never shortened.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, group) in self.0.chunks_exact(2).enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            write!(f, "{:02x}{:02x}", group[0], group[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// The text is not a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseGidError;

impl fmt::Display for ParseGidError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a GID: expected an IPv6 address such as fe80:0000:0000:0000:0000:0000:0000:0001")
    }
}

impl core::error::Error for ParseGidError {}

/// Accepts the format of `Display`, any other spelling of an IPv6 address, and an IPv4 address (as IPv4-mapped).
impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, ParseGidError> {
        text.trim().parse::<IpAddr>().map(Self::from).map_err(|_| ParseGidError)
    }
}

impl From<Ipv6Addr> for Gid {
    fn from(address: Ipv6Addr) -> Self {
        Self(address.octets())
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().into(),
            IpAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<Gid> for Ipv6Addr {
    fn from(gid: Gid) -> Self {
        Self::from(gid.0)
    }
}

open_values! {
    /// `enum ibv_gid_type`: how packets with this source GID are built.
    GidType(u32), "IBV_GID_TYPE_" {
        IB = 0 "IB",
        ROCE_V1 = 1 "RoCE v1",
        ROCE_V2 = 2 "RoCE v2",
    }
}

/// `struct ibv_gid_entry`: one entry of a port's GID table that is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its index in the port's table, for `sgid_index`.
    pub gid_index: u32,
    /// The port, from 1.
    pub port_num: u32,
    /// Its type.
    pub gid_type: GidType,
    /// Index of the network interface that it belongs to; 0 if there is none.
    pub ndev_ifindex: u32,
}

impl GidEntry {
    /// An entry of the first port, without an index, of RoCE version 2 and of no network interface.
    #[must_use]
    pub const fn new(gid: Gid) -> Self {
        Self { gid, gid_index: 0, port_num: 1, gid_type: GidType::ROCE_V2, ndev_ifindex: 0 }
    }

    setters! {
        gid_index: u32,
        port_num: u32,
        gid_type: GidType,
        ndev_ifindex: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mapped_ipv4_and_multicast_addresses_are_recognised() {
        let gid: Gid = "10.0.0.1".parse().unwrap();
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert!(!gid.is_multicast());
        assert!("224.1.2.3".parse::<Gid>().unwrap().is_multicast());
        assert!("ff0e::1".parse::<Gid>().unwrap().is_multicast());
        assert_eq!("fe80::1".parse::<Gid>().unwrap().subnet_prefix(), 0xfe80_0000_0000_0000);
        assert_eq!("fe80::1".parse::<Gid>().unwrap().interface_id(), 1);
        for bad in ["", "fe80", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "fe80::1%eth0"] {
            assert_eq!(bad.parse::<Gid>(), Err(ParseGidError), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn displayed_gids_are_parsed_again(bytes: [u8; 16]) {
            let gid = Gid(bytes);
            prop_assert_eq!(gid.to_string().parse::<Gid>(), Ok(gid));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,64}") {
            let _ = text.parse::<Gid>();
        }
    }
}
