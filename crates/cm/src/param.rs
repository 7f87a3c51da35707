// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters of a connection, of this side and of the peer (`struct rdma_conn_param`, `struct rdma_ud_param`).

use crate::error::{Error, Result};
use crate::qp::ah_attr;
use uverbs::attr::{AccessFlags, AhAttr, Ece};
use uverbs_uapi::rdma_cm::{rdma_ucm_conn_param, rdma_ucm_ece, rdma_ucm_event_resp};

/// The parameters of this side, for `connect` and `accept`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// Data for the peer's program. InfiniBand and RoCE carry at most 56 bytes in a request of a connection, 196 in its
    /// acceptance, 148 in a rejection; 180 in a request for datagrams and 136 in its answer. The peer gets them padded
    /// with zeros to that size.
    pub private_data: Vec<u8>,
    /// The maximum number of outstanding reads and atomics of the peer.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics of this side.
    pub initiator_depth: u8,
    /// Whether the hardware has end-to-end flow control.
    pub flow_control: bool,
    /// Retransmissions before the connection fails, 3 bits.
    pub retry_count: u8,
    /// Retries when the peer has no receive posted, 3 bits; 7 means no limit.
    pub rnr_retry_count: u8,
    /// Whether the QP has an SRQ.
    pub srq: bool,
    /// Number of the QP. The calls that take a QP set it.
    pub qp_num: u32,
    /// Queue key of a datagram QP; 0 is the default of the kernel.
    pub qkey: u32,
    /// Options of enhanced connection establishment.
    pub ece: Ece,
    /// The access of the peer to exposed regions of the QP's domain. It is not sent.
    pub access: AccessFlags,
}

impl Default for ConnParam {
    /// No private data, one read each way, retries without limit for a receiver that is not ready, no access.
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: 0,
            qkey: 0,
            ece: Ece::default(),
            access: AccessFlags::empty(),
        }
    }
}

impl ConnParam {
    /// The default with this private data.
    pub fn with_private_data(data: impl Into<Vec<u8>>) -> Self {
        Self { private_data: data.into(), ..Self::default() }
    }

    /// The kernel's struct.
    pub(crate) fn encode(&self, verb: &'static str) -> Result<rdma_ucm_conn_param> {
        let mut raw = rdma_ucm_conn_param {
            qp_num: self.qp_num,
            qkey: self.qkey,
            private_data_len: private_data_len(verb, &self.private_data)?,
            srq: self.srq.into(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: self.flow_control.into(),
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            valid: 1,
            ..Default::default()
        };
        for (field, value) in [("retry_count", self.retry_count), ("rnr_retry_count", self.rnr_retry_count)] {
            if value > 7 {
                return Err(Error::invalid(verb, field, format!("{value} does not fit in 3 bits")));
            }
        }
        raw.private_data.0[..self.private_data.len()].copy_from_slice(&self.private_data);
        Ok(raw)
    }

    pub(crate) fn encode_ece(&self) -> rdma_ucm_ece {
        rdma_ucm_ece { vendor_id: self.ece.vendor_id, attr_mod: self.ece.options }
    }
}

/// The length of private data in the kernel's format.
pub(crate) fn private_data_len(verb: &'static str, data: &[u8]) -> Result<u8> {
    u8::try_from(data.len()).map_err(|_| {
        Error::invalid(
            verb,
            "private_data",
            format!("{} bytes; no transport carries more than 255", data.len()),
        )
    })
}

/// The parameters of the peer, in an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its private data, padded with zeros to the size of the message. Empty if the event has none.
    pub private_data: Vec<u8>,
    /// Number of its QP.
    pub qp_num: u32,
    /// The maximum number of its outstanding reads and atomics.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics that it accepts.
    pub initiator_depth: u8,
    /// Whether its hardware has end-to-end flow control.
    pub flow_control: bool,
    /// Retransmissions that this side should make.
    pub retry_count: u8,
    /// Retries when it has no receive posted.
    pub rnr_retry_count: u8,
    /// Whether its QP has an SRQ.
    pub srq: bool,
    /// Queue key of datagrams.
    pub qkey: u32,
    /// For datagrams, its address attributes, for an address handle.
    pub ah_attr: Option<AhAttr>,
    /// Its options of enhanced connection establishment.
    pub ece: Ece,
}

impl Peer {
    /// The parameters in an event.
    pub(crate) fn decode(event: &rdma_ucm_event_resp, is_datagram: bool) -> Self {
        let ece = Ece { vendor_id: event.ece.vendor_id, options: event.ece.attr_mod };
        if is_datagram {
            let ud = event.param.ud();
            return Self {
                private_data: ud.private_data.0[..usize::from(ud.private_data_len)].to_vec(),
                qp_num: ud.qp_num,
                qkey: ud.qkey,
                ah_attr: (ud.ah_attr.port_num != 0).then(|| ah_attr(&ud.ah_attr)),
                ece,
                ..Self::default()
            };
        }
        let conn = event.param.conn();
        Self {
            private_data: conn.private_data.0[..usize::from(conn.private_data_len)].to_vec(),
            qp_num: conn.qp_num,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            flow_control: conn.flow_control != 0,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            srq: conn.srq != 0,
            qkey: conn.qkey,
            ah_attr: None,
            ece,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros, IntoBytes};

    #[test]
    fn private_data_that_is_too_long_is_refused_before_the_kernel_sees_it() {
        let param = ConnParam::with_private_data(vec![1; 255]);
        assert_eq!(param.encode("connect").unwrap().private_data_len, 255);
        let error = ConnParam::with_private_data(vec![1; 256]).encode("connect").unwrap_err();
        assert_eq!(
            error.to_string(),
            "connect: invalid private_data: 256 bytes; no transport carries more than 255"
        );
        let error = ConnParam { retry_count: 8, ..ConnParam::default() }.encode("accept").unwrap_err();
        assert!(error.to_string().contains("retry_count"), "{error}");
    }

    #[test]
    fn any_bytes_of_an_event_are_decoded() {
        let mut event = rdma_ucm_event_resp::new_zeroed();
        event.as_mut_bytes().fill(0xff);
        for is_datagram in [false, true] {
            let peer = Peer::decode(&event, is_datagram);
            assert_eq!(peer.private_data.len(), 255);
            assert_eq!(peer.qp_num, u32::MAX);
        }
    }
}
