// SPDX-License-Identifier: MIT OR Apache-2.0
//! What carries a transport packet: Ethernet with IP and UDP (RoCE version 2) or with GRH (version 1), or InfiniBand's LRH, with or without
//! GRH. A frame ends with its CRCs; the checksum of Ethernet is not part of it.

use crate::transport::Packet;
use crate::{Error, Result, crc};
use etherparse::{
    EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6Header, SingleVlanHeader, UdpHeader, VlanId,
};

/// The UDP port of RoCE version 2.
pub const UDP_PORT: u16 = 4791;
/// The type of Ethernet frames of RoCE version 1.
pub const ROCE_V1: u16 = 0x8915;
/// The next header of GRH: the base transport header.
const BTH_FOLLOWS: u8 = 0x1b;
/// The links of LRH: what follows it.
const LNH_BTH: u8 = 2;
const LNH_GRH: u8 = 3;
const LRH_LEN: usize = 8;
const GRH_LEN: usize = 40;
pub(crate) const BTH_LEN: usize = 12;
pub(crate) const UDP_LEN: usize = 8;
pub(crate) const ICRC_LEN: usize = 4;
const VCRC_LEN: usize = 2;

/// A global route header, or the fields of an IPv6 header, which has the same form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grh {
    /// The sender.
    pub sgid: [u8; 16],
    /// The receiver.
    pub dgid: [u8; 16],
    /// Traffic class.
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

/// The fields of an IPv4 header that are not always the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// The sender.
    pub source: [u8; 4],
    /// The receiver.
    pub destination: [u8; 4],
    /// Type of service: the DSCP and two bits for congestion.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
}

/// The network header of a frame on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// RoCE version 2 on IPv4, with the source port of UDP.
    V4(Ipv4, u16),
    /// RoCE version 2 on IPv6, with the source port of UDP.
    V6(Grh, u16),
    /// RoCE version 1.
    Grh(Grh),
}

/// A frame's headers on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ethernet {
    /// The sender.
    pub source: [u8; 6],
    /// The receiver.
    pub destination: [u8; 6],
    /// The tag of a virtual LAN: its id of 12 bits.
    pub vlan: Option<u16>,
    /// The network header.
    pub net: Net,
}

impl Ethernet {
    /// RoCE version 2 on IPv4 with 64 hops and a source port of the range that RoCE uses.
    #[must_use]
    pub const fn v4(
        source: [u8; 6],
        source_ip: [u8; 4],
        destination: [u8; 6],
        destination_ip: [u8; 4],
    ) -> Self {
        let ip = Ipv4 { source: source_ip, destination: destination_ip, tos: 0, ttl: 64 };
        Self { source, destination, vlan: None, net: Net::V4(ip, 0xc000) }
    }
}

/// A frame's headers on InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Infiniband {
    /// The sender's local identifier.
    pub slid: u16,
    /// The receiver's.
    pub dlid: u16,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Virtual lane, 4 bits.
    pub vl: u8,
    /// The global route.
    pub grh: Option<Grh>,
}

/// The headers before the transport's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Ethernet.
    Ethernet(Ethernet),
    /// InfiniBand.
    Infiniband(Infiniband),
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The headers before the transport's.
    pub link: Link,
    /// The transport packet.
    pub packet: Packet,
}

impl Frame {
    /// The bytes of the frame.
    ///
    /// # Errors
    /// Those of [`Packet::encode`]; the packet is too long for the length of a header; a number has more bits than its field.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut transport = Vec::with_capacity(self.packet.payload.len() + 64);
        self.packet.encode(&mut transport)?;
        let mut frame = Vec::with_capacity(transport.len() + 96);
        match &self.link {
            Link::Ethernet(ethernet) => {
                ethernet.encode(transport.len() + ICRC_LEN, &mut frame)?;
                let icrc = ethernet.net.icrc(&frame[frame.len() - ethernet.net.len()..], &transport);
                frame.extend(&transport);
                frame.extend(icrc.to_le_bytes());
            }
            Link::Infiniband(link) => {
                link.encode(transport.len() + ICRC_LEN, &mut frame)?;
                let bth_at = frame.len();
                frame.extend(&transport);
                let icrc = link.icrc(&frame, bth_at);
                frame.extend(icrc.to_le_bytes());
                frame.extend(crc::vcrc(&frame).to_le_bytes());
            }
        }
        Ok(frame)
    }

    /// The frame that these bytes are on Ethernet. Bytes that fill a frame to its least length are ignored.
    ///
    /// # Errors
    /// The frame is not RoCE's, is cut, has a wrong length or CRC, or a header has a field that is not known.
    pub fn decode_ethernet(bytes: &[u8]) -> Result<Self> {
        let (ethernet, net_at, bth_at, end) = Ethernet::decode(bytes)?;
        let body = bytes.get(bth_at..end).ok_or(Error::Short("frame"))?;
        let (transport, icrc) = body.split_last_chunk().ok_or(Error::Short("ICRC"))?;
        if transport.len() < BTH_LEN {
            return Err(Error::Short("BTH"));
        }
        let expected = ethernet.net.icrc(&bytes[net_at..bth_at], transport);
        check("ICRC", u32::from_le_bytes(*icrc), expected)?;
        Ok(Self { link: Link::Ethernet(ethernet), packet: Packet::decode(transport)? })
    }

    /// The frame that these bytes are on InfiniBand.
    ///
    /// # Errors
    /// As [`decode_ethernet`](Self::decode_ethernet).
    pub fn decode_infiniband(bytes: &[u8]) -> Result<Self> {
        let (link, bth_at) = Infiniband::decode(bytes)?;
        let (covered, vcrc) = bytes.split_last_chunk().ok_or(Error::Short("VCRC"))?;
        check("VCRC", u16::from_le_bytes(*vcrc).into(), crc::vcrc(covered).into())?;
        let (invariant, icrc) = covered.split_last_chunk().ok_or(Error::Short("ICRC"))?;
        if invariant.len() < bth_at + BTH_LEN {
            return Err(Error::Short("BTH"));
        }
        check("ICRC", u32::from_le_bytes(*icrc), link.icrc(invariant, bth_at))?;
        Ok(Self { link: Link::Infiniband(link), packet: Packet::decode(&invariant[bth_at..])? })
    }
}

fn check(name: &'static str, found: u32, expected: u32) -> Result<()> {
    if found == expected { Ok(()) } else { Err(Error::Crc { name, found, expected }) }
}

/// A length as a field of 16 bits.
fn length(name: &'static str, len: usize) -> Result<u16> {
    u16::try_from(len).map_err(|_| Error::TooLarge(name, len as u64))
}

impl Grh {
    /// The header, for so many bytes after it.
    fn encode(&self, name: &'static str, next: u8, len: usize) -> Result<[u8; GRH_LEN]> {
        if self.flow_label >> 20 != 0 {
            return Err(Error::TooLarge("flow label", self.flow_label.into()));
        }
        let mut bytes = [0; GRH_LEN];
        let first = 6 << 28 | u32::from(self.tclass) << 20 | self.flow_label;
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&length(name, len)?.to_be_bytes());
        bytes[6] = next;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.sgid);
        bytes[24..].copy_from_slice(&self.dgid);
        Ok(bytes)
    }

    /// The header, and the number of bytes after it.
    fn decode(name: &'static str, next: u8, bytes: &[u8]) -> Result<(Self, usize)> {
        let header = Ipv6Header::from_slice(bytes).map_err(|_| Error::Short(name))?.0;
        if header.next_header.0 != next {
            return Err(Error::Field(name, header.next_header.0.into()));
        }
        let grh = Self {
            sgid: header.source,
            dgid: header.destination,
            tclass: header.traffic_class,
            flow_label: header.flow_label.value(),
            hop_limit: header.hop_limit,
        };
        Ok((grh, header.payload_length.into()))
    }

    /// Replaces the fields that switches may change by ones.
    fn mask(bytes: &mut [u8]) {
        bytes[0] |= 0x0f;
        bytes[1..4].fill(0xff);
        bytes[7] = 0xff;
    }
}

impl Net {
    /// Bytes of the headers from the network's to UDP's.
    const fn len(&self) -> usize {
        match self {
            Self::V4(..) => Ipv4Header::MIN_LEN + UDP_LEN,
            Self::V6(..) => GRH_LEN + UDP_LEN,
            Self::Grh(_) => GRH_LEN,
        }
    }

    /// The invariant CRC of the headers from the network's on, and of the transport packet.
    pub(crate) fn icrc(&self, headers: &[u8], transport: &[u8]) -> u32 {
        let (bth, rest) = transport.split_at(BTH_LEN);
        let bth_at = headers.len();
        let mut masked = [0; GRH_LEN + UDP_LEN + BTH_LEN];
        let masked = &mut masked[..bth_at + BTH_LEN];
        masked[..bth_at].copy_from_slice(headers);
        masked[bth_at..].copy_from_slice(bth);
        match self {
            Self::V4(..) => {
                masked[1] = 0xff;
                masked[8] = 0xff;
                masked[10..12].fill(0xff);
            }
            Self::V6(..) | Self::Grh(_) => Grh::mask(masked),
        }
        if !matches!(self, Self::Grh(_)) {
            masked[bth_at - 2..bth_at].fill(0xff);
        }
        masked[bth_at + 4] = 0xff;
        crc::icrc_of_ip(masked, rest)
    }

    /// Appends the headers, for so many bytes after them.
    pub(crate) fn encode(&self, len: usize, to: &mut Vec<u8>) -> Result<()> {
        let udp = |source_port| -> Result<[u8; UDP_LEN]> {
            let length = length("UDP length", len + UDP_LEN)?;
            // Without a checksum, which the ICRC makes superfluous.
            Ok(UdpHeader { source_port, destination_port: UDP_PORT, length, checksum: 0 }.to_bytes())
        };
        match *self {
            Self::V4(Ipv4 { source, destination, tos, ttl }, port) => {
                let payload = length("IP length", len + UDP_LEN)?;
                let mut header = Ipv4Header::new(payload, ttl, IpNumber::UDP, source, destination)
                    .map_err(|_| Error::TooLarge("IP length", payload.into()))?;
                let ecn = etherparse::IpEcn::try_new(tos & 3);
                let dscp = etherparse::IpDscp::try_new(tos >> 2);
                header.ecn = ecn.map_err(|_| Error::TooLarge("ECN", tos.into()))?;
                header.dscp = dscp.map_err(|_| Error::TooLarge("DSCP", tos.into()))?;
                header.header_checksum = header.calc_header_checksum();
                to.extend(header.to_bytes());
                to.extend(udp(port)?);
            }
            Self::V6(grh, port) => {
                to.extend(grh.encode("IP length", IpNumber::UDP.0, len + UDP_LEN)?);
                to.extend(udp(port)?);
            }
            Self::Grh(grh) => to.extend(grh.encode("GRH length", BTH_FOLLOWS, len)?),
        }
        Ok(())
    }

    /// The headers, with the numbers of bytes of these and of all.
    fn decode(kind: EtherType, bytes: &[u8]) -> Result<(Self, usize, usize)> {
        let port = |at: usize, len: usize| -> Result<u16> {
            let udp = bytes.get(at..).ok_or(Error::Short("UDP"))?;
            let (udp, _) = UdpHeader::from_slice(udp).map_err(|_| Error::Short("UDP"))?;
            if udp.destination_port != UDP_PORT {
                return Err(Error::Field("UDP destination port", udp.destination_port.into()));
            }
            if usize::from(udp.length) != len {
                return Err(Error::Field("UDP length", udp.length.into()));
            }
            Ok(udp.source_port)
        };
        match kind {
            EtherType::IPV4 => {
                let (header, _) = Ipv4Header::from_slice(bytes).map_err(|_| Error::Short("IP"))?;
                let at = header.header_len();
                if header.protocol != IpNumber::UDP {
                    return Err(Error::Field("IP protocol", header.protocol.0.into()));
                }
                if at != Ipv4Header::MIN_LEN || header.is_fragmenting_payload() {
                    return Err(Error::Field("IP options or fragment", at as u64));
                }
                let end = usize::from(header.total_len);
                let ip = Ipv4 {
                    source: header.source,
                    destination: header.destination,
                    tos: header.dscp.value() << 2 | header.ecn.value(),
                    ttl: header.time_to_live,
                };
                let len = end.checked_sub(at).ok_or(Error::Short("IP length"))?;
                Ok((Self::V4(ip, port(at, len)?), at + UDP_LEN, end))
            }
            EtherType::IPV6 => {
                let (grh, len) = Grh::decode("IP", IpNumber::UDP.0, bytes)?;
                Ok((Self::V6(grh, port(GRH_LEN, len)?), GRH_LEN + UDP_LEN, GRH_LEN + len))
            }
            EtherType(ROCE_V1) => {
                let (grh, len) = Grh::decode("GRH", BTH_FOLLOWS, bytes)?;
                Ok((Self::Grh(grh), GRH_LEN, GRH_LEN + len))
            }
            EtherType(other) => Err(Error::Field("Ethernet type", other.into())),
        }
    }
}

impl Ethernet {
    fn encode(&self, len: usize, to: &mut Vec<u8>) -> Result<()> {
        let Self { source, destination, vlan, net } = *self;
        let kind = match net {
            Net::V4(..) => EtherType::IPV4,
            Net::V6(..) => EtherType::IPV6,
            Net::Grh(_) => EtherType(ROCE_V1),
        };
        let ether_type = if vlan.is_some() { EtherType::VLAN_TAGGED_FRAME } else { kind };
        to.extend(Ethernet2Header { source, destination, ether_type }.to_bytes());
        if let Some(vlan) = vlan {
            let vlan_id = VlanId::try_new(vlan).map_err(|_| Error::TooLarge("VLAN", vlan.into()))?;
            to.extend(
                SingleVlanHeader { vlan_id, ether_type: kind, ..SingleVlanHeader::default() }.to_bytes(),
            );
        }
        net.encode(len, to)
    }

    /// The headers, where the network's begin, where the transport's do, and where the ICRC ends.
    fn decode(bytes: &[u8]) -> Result<(Self, usize, usize, usize)> {
        let (header, rest) = Ethernet2Header::from_slice(bytes).map_err(|_| Error::Short("Ethernet"))?;
        let Ethernet2Header { source, destination, ether_type } = header;
        let (vlan, kind, rest) = if ether_type == EtherType::VLAN_TAGGED_FRAME {
            let (tag, rest) = SingleVlanHeader::from_slice(rest).map_err(|_| Error::Short("VLAN"))?;
            (Some(tag.vlan_id.value()), tag.ether_type, rest)
        } else {
            (None, ether_type, rest)
        };
        let net_at = bytes.len() - rest.len();
        let (net, headers, len) = Net::decode(kind, rest)?;
        if len < headers {
            return Err(Error::Short("IP length"));
        }
        Ok((Self { source, destination, vlan, net }, net_at, net_at + headers, net_at + len))
    }
}

impl Infiniband {
    const fn headers_len(&self) -> usize {
        if self.grh.is_some() { LRH_LEN + GRH_LEN } else { LRH_LEN }
    }

    fn encode(&self, len: usize, to: &mut Vec<u8>) -> Result<()> {
        let Self { slid, dlid, sl, vl, grh } = *self;
        for (name, value) in [("service level", sl), ("virtual lane", vl)] {
            if value > 15 {
                return Err(Error::TooLarge(name, value.into()));
            }
        }
        // In words, with the ICRC, without the VCRC.
        let words = (self.headers_len() + len) / 4;
        if words >> 11 != 0 {
            return Err(Error::TooLarge("LRH length", words as u64));
        }
        to.extend([vl << 4, sl << 4 | if grh.is_some() { LNH_GRH } else { LNH_BTH }]);
        to.extend(dlid.to_be_bytes());
        to.extend((words as u16).to_be_bytes());
        to.extend(slid.to_be_bytes());
        if let Some(grh) = grh {
            to.extend(grh.encode("GRH length", BTH_FOLLOWS, len)?);
        }
        Ok(())
    }

    /// The headers, and where the transport's begin. The lengths are those of the bytes.
    fn decode(bytes: &[u8]) -> Result<(Self, usize)> {
        let lrh: &[u8; LRH_LEN] = bytes.first_chunk().ok_or(Error::Short("LRH"))?;
        let word = |at: usize| u16::from_be_bytes([lrh[at], lrh[at + 1]]);
        let words = usize::from(word(4) & 0x7ff);
        if lrh[0] & 0x0f != 0 || words * 4 + VCRC_LEN != bytes.len() {
            return Err(Error::Field("LRH version or length", (lrh[0] & 0x0f).into()));
        }
        let grh = match lrh[1] & 3 {
            LNH_BTH => None,
            LNH_GRH => {
                let (grh, len) = Grh::decode("GRH", BTH_FOLLOWS, &bytes[LRH_LEN..])?;
                if LRH_LEN + GRH_LEN + len + VCRC_LEN != bytes.len() {
                    return Err(Error::Field("GRH length", len as u64));
                }
                Some(grh)
            }
            other => return Err(Error::Field("LRH next header", other.into())),
        };
        let link = Self { slid: word(6), dlid: word(2), sl: lrh[1] >> 4, vl: lrh[0] >> 4, grh };
        Ok((link, link.headers_len()))
    }

    /// The invariant CRC of the bytes from LRH on.
    fn icrc(&self, bytes: &[u8], bth_at: usize) -> u32 {
        let (headers, rest) = bytes.split_at(bth_at + BTH_LEN);
        let mut masked = [0; LRH_LEN + GRH_LEN + BTH_LEN];
        let masked = &mut masked[..headers.len()];
        masked.copy_from_slice(headers);
        // The virtual lane changes from link to link.
        masked[0] |= 0xf0;
        if self.grh.is_some() {
            Grh::mask(&mut masked[LRH_LEN..]);
        }
        masked[bth_at + 4] = 0xff;
        crc::icrc_of_lrh(masked, rest)
    }
}
