// SPDX-License-Identifier: MIT OR Apache-2.0
//! The messages of connection managers to those of other processes of the fabric, as bytes.
//!
//! The socket between the processes loses nothing, so a message is sent once. It names the identifiers of both ends, which
//! are numbers of their processes, and their addresses. The other process may be malicious: a message is for an
//! identifier only if it comes from the address to which that is connected.

use super::ident::Ident;
use super::message::{Body, Param};
use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use uverbs_uapi::rdma_cm::{rdma_ucm_conn_param, rdma_ucm_ece};
use zerocopy::{FromBytes, IntoBytes};

/// A message, with its ends.
#[derive(Debug)]
pub(crate) struct Letter {
    /// The identifier that sends it; 0 if it was refused before there was one.
    pub(super) from: u32,
    /// The identifier that it is for; 0 for a request, and for the rejection of one by its own sender, which gives up before it
    /// knows the identifier. (Processes of older versions ignore such a rejection.)
    pub(super) to: u32,
    pub(super) source: SocketAddr,
    pub(super) destination: SocketAddr,
    pub(super) ps: u16,
    pub(super) qp_type: u8,
    pub(super) body: Body,
}

/// An address as 18 bytes.
fn address(address: SocketAddr) -> [u8; 18] {
    let mut bytes = [0; 18];
    bytes[..16].copy_from_slice(&super::ident::gid(address.ip()));
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

/// The fields that are left.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn address(&mut self) -> Option<SocketAddr> {
        let v6 = Ipv6Addr::from(self.array::<16>()?);
        let ip = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4);
        Some(SocketAddr::new(ip, u16::from_be_bytes(self.array()?)))
    }

    fn value<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    fn param(&mut self) -> Option<Param> {
        let (conn, ece) = (self.value::<rdma_ucm_conn_param>()?, self.value::<rdma_ucm_ece>()?);
        Some(Param { conn, ece, psn: self.u32()? & 0xff_ffff })
    }

    /// Private data, to the end.
    fn data(&mut self) -> Option<Vec<u8>> {
        let data = core::mem::take(&mut self.0);
        (data.len() <= usize::from(u8::MAX)).then(|| data.to_vec())
    }
}

impl Letter {
    /// A message of an identifier. `None` if it has no addresses.
    pub(super) fn of(from: u32, ident: &Ident, to: u32, body: Body) -> Option<Self> {
        let (source, destination) = (ident.local?, ident.remote?);
        Some(Self { from, to, source, destination, ps: ident.ps, qp_type: ident.qp_type, body })
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self { from, to, source, destination, ps, qp_type, body } = self;
        let mut bytes = [from.to_be_bytes(), to.to_be_bytes()].concat();
        bytes.extend(address(*source));
        bytes.extend(address(*destination));
        bytes.extend(ps.to_be_bytes());
        bytes.push(*qp_type);
        let mut kind = |kind: u8, param: Option<&Param>| {
            bytes.push(kind);
            if let Some(Param { conn, ece, psn }) = param {
                bytes.extend(conn.as_bytes());
                bytes.extend(ece.as_bytes());
                bytes.extend(psn.to_be_bytes());
            }
        };
        match body {
            Body::Request(param) => kind(0, Some(param)),
            Body::Reply(param) => kind(1, Some(param)),
            Body::ReadyToUse => kind(2, None),
            Body::Disconnect => kind(3, None),
            Body::DisconnectReply => kind(4, None),
            Body::Datagrams(param, gid) => {
                kind(5, Some(param));
                bytes.extend(gid);
            }
            Body::Reject(reason, data) | Body::DatagramsRefused(reason, data) => {
                kind(if matches!(body, Body::Reject(..)) { 6 } else { 7 }, None);
                bytes.extend(reason.to_be_bytes());
                bytes.extend(data);
            }
            // They are of one process.
            Body::Event(..) | Body::Joined => kind(u8::MAX, None),
        }
        bytes
    }

    /// `None` for bytes that are not a message.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut f = Fields(bytes);
        let (from, to) = (f.u32()?, f.u32()?);
        let (source, destination) = (f.address()?, f.address()?);
        let (ps, [qp_type]) = (u16::from_be_bytes(f.array()?), f.array()?);
        let [kind] = f.array()?;
        let body = match kind {
            0 => Body::Request(f.param()?),
            1 => Body::Reply(f.param()?),
            2 => Body::ReadyToUse,
            3 => Body::Disconnect,
            4 => Body::DisconnectReply,
            5 => Body::Datagrams(f.param()?, f.array()?),
            6 => Body::Reject(f.u32()?, f.data()?),
            7 => Body::DatagramsRefused(f.u32()?, f.data()?),
            _ => return None,
        };
        f.0.is_empty().then_some(Self { from, to, source, destination, ps, qp_type, body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_encoded_and_decoded() {
        let param = || Param {
            conn: rdma_ucm_conn_param { qp_num: 7, ..Default::default() },
            psn: 9,
            ..Param::default()
        };
        for body in [
            Body::Request(param()),
            Body::Reply(param()),
            Body::ReadyToUse,
            Body::Disconnect,
            Body::DisconnectReply,
            Body::Datagrams(param(), [3; 16]),
            Body::Reject(28, vec![1, 2]),
            Body::DatagramsRefused(1, vec![]),
        ] {
            let (source, destination) = ("10.77.0.1:5".parse().unwrap(), "[fe80::1]:6".parse().unwrap());
            let letter = Letter { from: 1, to: 2, source, destination, ps: 0x106, qp_type: 2, body };
            let bytes = letter.bytes();
            let parsed = Letter::parse(&bytes).unwrap();
            assert_eq!(format!("{parsed:?}"), format!("{letter:?}"));
            assert!(Letter::parse(&bytes[..46]).is_none());
        }
        assert!(Letter::parse(&[0; 48]).is_none());
        assert!(Letter::parse(&[]).is_none());
    }
}
