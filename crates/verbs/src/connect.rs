// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connecting two QPs: the exchange of endpoints over any byte stream, and one call from INIT to RTS.
//!
//! The exchange is that of rdma-core's pingpong programs (`libibverbs/examples`): one line of hexadecimal text each
//! way, so either end may be a C program.

use core::fmt;
use core::str::FromStr;
use std::io::{self, Read, Write};
use uverbs_core::attr::{AccessFlags, AhAttr, Gid, GlobalRoute, Mtu};

/// The address of a QP: the values that its peer needs to connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// Local identifier of the port; 0 on RoCE.
    pub lid: u16,
    /// QP number, 24 bits.
    pub qp_num: u32,
    /// First packet sequence number that it sends, 24 bits.
    pub psn: u32,
    /// The GID of the port and index that it uses.
    pub gid: Gid,
}

/// Bytes of an endpoint's text: `lid:qpn:psn:gid` in hexadecimal, and a NUL that C's programs send along.
pub const ENDPOINT_LEN: usize = 52;

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:06x}:{:06x}:", self.lid, self.qp_num, self.psn)?;
        self.gid.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

/// The text is not an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseEndpointError;

impl fmt::Display for ParseEndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not an endpoint: expected lid:qpn:psn:gid in hexadecimal")
    }
}

impl core::error::Error for ParseEndpointError {}

impl FromStr for Endpoint {
    type Err = ParseEndpointError;

    fn from_str(text: &str) -> Result<Self, ParseEndpointError> {
        let mut fields = text.split(':');
        let mut field = |max_len: usize| -> Result<&str, ParseEndpointError> {
            let f = fields.next().ok_or(ParseEndpointError)?;
            let is_hex = f.bytes().all(|b| b.is_ascii_hexdigit());
            if f.is_empty() || f.len() > max_len || !is_hex { Err(ParseEndpointError) } else { Ok(f) }
        };
        let number = |f: &str| u32::from_str_radix(f, 16).map_err(|_| ParseEndpointError);
        let lid = u16::try_from(number(field(4)?)?).map_err(|_| ParseEndpointError)?;
        let qp_num = number(field(6)?)?;
        let psn = number(field(6)?)?;
        let gid_text = field(32)?;
        if gid_text.len() != 32 || fields.next().is_some() {
            return Err(ParseEndpointError);
        }
        let gid = u128::from_str_radix(gid_text, 16).map_err(|_| ParseEndpointError)?;
        Ok(Self { lid, qp_num, psn, gid: Gid(gid.to_be_bytes()) })
    }
}

impl Endpoint {
    /// Sends this endpoint.
    pub fn send(&self, mut stream: impl Write) -> io::Result<()> {
        let mut text = self.to_string().into_bytes();
        text.resize(ENDPOINT_LEN, 0);
        stream.write_all(&text)?;
        stream.flush()
    }

    /// Receives the peer's.
    pub fn receive(mut stream: impl Read) -> io::Result<Self> {
        let mut text = [0u8; ENDPOINT_LEN];
        stream.read_exact(&mut text)?;
        let end = text.iter().position(|b| *b == 0).unwrap_or(ENDPOINT_LEN);
        let text = core::str::from_utf8(&text[..end]).map_err(|_| ParseEndpointError);
        text.and_then(str::parse).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
    }

    /// Sends this endpoint and receives the peer's, as the active side (client) does.
    pub fn exchange(&self, mut stream: impl Read + Write) -> io::Result<Self> {
        self.send(&mut stream)?;
        Self::receive(&mut stream)
    }
}

/// The parameters of a connection, except its two endpoints.
#[derive(Clone, Copy, Debug)]
pub struct ConnectAttr {
    /// Local port, from 1.
    pub port_num: u8,
    /// Index of the local GID; `None` for InfiniBand without a global route.
    pub sgid_index: Option<u8>,
    /// Index of the partition key.
    pub pkey_index: u16,
    /// Path MTU.
    pub path_mtu: Mtu,
    /// Service level.
    pub sl: u8,
    /// The access of the peer to exposed regions of this QP's domain. None by default: a QP for RDMA needs rights here and
    /// at each region.
    pub access: AccessFlags,
    /// Traffic class (DSCP and ECN on RoCE v2) of packets with a global route.
    pub traffic_class: u8,
    /// Flow label of packets with a global route, 20 bits.
    pub flow_label: u32,
    /// `enum ibv_rate`: the rate to which packets are spread; 0 is the port's.
    pub static_rate: u8,
    /// Hops that packets may take.
    pub hop_limit: u8,
    /// `ack_timeout`: 4.096 us times 2 to this power; 0 is infinite. 5 bits.
    pub timeout: u8,
    /// Retransmissions before [`WcStatus::RETRY_EXC_ERR`](uverbs_core::wc::WcStatus). 3 bits.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive posted; 7 is forever. 3 bits.
    pub rnr_retry: u8,
    /// How long the peer must wait before it retries if no receive is posted here: a code of 5 bits.
    pub min_rnr_timer: u8,
    /// Reads and atomics that this side has outstanding at once.
    pub max_rd_atomic: u8,
    /// Reads and atomics that this side serves at once.
    pub max_dest_rd_atomic: u8,
    /// Queue key of a datagram QP.
    pub qkey: u32,
}

impl Default for ConnectAttr {
    /// The values of rdma-core's pingpong programs, which grant the peer no access.
    fn default() -> Self {
        Self {
            port_num: 1,
            sgid_index: None,
            pkey_index: 0,
            path_mtu: Mtu::MTU_1024,
            sl: 0,
            access: AccessFlags::empty(),
            traffic_class: 0,
            flow_label: 0,
            static_rate: 0,
            hop_limit: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            qkey: 0x1111_1111,
        }
    }
}

impl ConnectAttr {
    /// The way to `remote`.
    #[must_use]
    pub fn ah_attr(&self, remote: &Endpoint) -> AhAttr {
        let route = |sgid_index| GlobalRoute {
            dgid: remote.gid,
            sgid_index,
            hop_limit: self.hop_limit,
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
        };
        let has_gid = remote.gid != Gid::default();
        AhAttr {
            grh: self.sgid_index.filter(|_| has_gid).map(route),
            dlid: remote.lid,
            sl: self.sl,
            static_rate: self.static_rate,
            port_num: self.port_num,
            ..AhAttr::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoints_text_is_that_of_the_c_programs() {
        let mut gid = [0u8; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 10, 0, 0, 2]);
        let e = Endpoint { lid: 0x12, qp_num: 0x11, psn: 0xabc123, gid: Gid(gid) };
        let text = "0012:000011:abc123:00000000000000000000ffff0a000002";
        assert_eq!(e.to_string(), text);
        assert_eq!(text.parse(), Ok(e));
        let mut wire = Vec::new();
        e.send(&mut wire).unwrap();
        assert_eq!(wire.len(), ENDPOINT_LEN);
        assert_eq!(Endpoint::receive(&wire[..]).unwrap(), e);
    }

    #[test]
    fn the_way_has_every_attribute_of_the_path() {
        let attr = ConnectAttr {
            sgid_index: Some(3),
            sl: 4,
            traffic_class: 0x60,
            flow_label: 0x12345,
            static_rate: 5,
            hop_limit: 9,
            ..ConnectAttr::default()
        };
        let way = attr.ah_attr(&Endpoint { gid: Gid([1; 16]), lid: 7, ..Endpoint::default() });
        let grh = way.grh.unwrap();
        assert_eq!((grh.traffic_class, grh.flow_label, grh.hop_limit, grh.sgid_index), (0x60, 0x12345, 9, 3));
        assert_eq!((way.sl, way.static_rate, way.dlid, way.port_num), (4, 5, 7, 1));
    }

    #[test]
    fn invalid_text_is_an_error() {
        for text in ["", ":::", "0:0:0:0", "0012:000011:abc123:+0000000000000000000ffff0a000002", "12:1:1:é"]
        {
            assert_eq!(text.parse::<Endpoint>(), Err(ParseEndpointError), "{text}");
        }
        assert!(Endpoint::receive(&[0xff; ENDPOINT_LEN][..]).is_err());
        assert!(Endpoint::receive(&[b'0'; 10][..]).is_err());
    }
}
