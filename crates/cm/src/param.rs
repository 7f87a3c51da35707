// SPDX-License-Identifier: MIT OR Apache-2.0
//! The parameters of a connection, of this side and of the peer (`struct rdma_conn_param`, `struct rdma_ud_param`).

use crate::error::{Error, Result};
use crate::qp::ah_attr;
use uverbs::ConnectAttr;
use uverbs::attr::{AccessFlags, AhAttr, Ece};
use uverbs_uapi::rdma_cm::{rdma_ucm_conn_param, rdma_ucm_ece, rdma_ucm_event_resp};

/// The ACK timeout of a connection whose program selects none: 0.27 s, so that 8 tries take 2.1 s.
const ACK_TIMEOUT: u8 = 16;

/// The parameters of this side, for `connect` and `accept`.
///
/// ```
/// use uverbs::attr::AccessFlags;
/// use uverbs_cm::ConnParam;
///
/// let param = ConnParam::new().private_data(*b"version 1").access(AccessFlags::REMOTE_WRITE).ack_timeout(18);
/// # assert_eq!(param.ack_timeout, Some(18));
/// ```
///
/// # Timers
/// A connection that uses librdmacm has the timers of the kernel. They suit a fabric of any size, and not a service: a sender to a
/// receiver without a posted receive waits for 655 ms, and a dead peer is noticed after 17 s. This crate sets both of its own QP, on
/// either side of a connection:
///
/// | | the kernel, and so librdmacm | here |
/// |---|---|---|
/// | [`min_rnr_timer`](Self::min_rnr_timer) | 0: 655.36 ms | 12: 0.64 ms, as with [`ConnectAttr`](uverbs::ConnectAttr) |
/// | [`ack_timeout`](Self::ack_timeout) | RoCE: 17 to 19 (0.5 s to 2.1 s), by the version of the kernel and the delay of the device; InfiniBand: by the subnet manager | 16: 0.27 s |
/// | a dead peer is noticed after, with [`retry_count`](Self::retry_count) 7 | 4 s to 17 s | 2.1 s |
///
/// Neither timer is sent in a message of the connection manager, so a peer that uses librdmacm has the timers of its kernel:
/// - `min_rnr_timer` is a value of the receiver. A peer of librdmacm that sends waits for the time that is set *here*. This side waits for the
///   time of the peer's QP when *its* receives are late: 655 ms, unless its program sets `IBV_QP_MIN_RNR_TIMER` by ibv_modify_qp(3).
/// - `ack_timeout` is a value of the requester. The peer notices the death of this side after the time of its own kernel, or of its
///   `rdma_set_option(RDMA_OPTION_ID_ACK_TIMEOUT)`.
///
/// A larger `ack_timeout` suits a large fabric, in which packets wait longer than 0.27 s, or a network that must recover from failures of
/// its own within the retries. A device may wait up to four times as long as it says (InfiniBand specification, 9.7.6.1.3), and may have a minimum.
///
/// iWARP and datagrams have neither timer: TCP has timers of its own. The values are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnParam {
    /// Data for the peer's program. InfiniBand and RoCE carry at most 56 bytes in a request of a connection, 196 in its
    /// acceptance, 148 in a rejection; 180 in a request for datagrams and 136 in its answer. The peer gets them padded
    /// with zeros to that size.
    pub private_data: Vec<u8>,
    /// The maximum number of outstanding reads and atomics of the peer. An acceptance uses at most what the peer asks for.
    pub responder_resources: u8,
    /// The maximum number of outstanding reads and atomics of this side. An acceptance uses at most what the peer serves.
    pub initiator_depth: u8,
    /// Whether the hardware has end-to-end flow control.
    pub flow_control: bool,
    /// Retransmissions before the connection fails, 3 bits. Both sides use the value of the request (rdma_connect(3)); that of an
    /// acceptance is not sent.
    pub retry_count: u8,
    /// Retries of the peer when this side has no receive posted, 3 bits; 7 means no limit.
    pub rnr_retry_count: u8,
    /// The time that the peer must wait before it retries if no receive is posted here, a code of 5 bits: 1 is 0.01 ms, 5 is 0.06 ms, 8 is
    /// 0.16 ms, 10 is 0.32 ms, 12 is 0.64 ms, 14 is 1.28 ms, 20 is 10.24 ms, 26 is 81.92 ms, 31 is 491.52 ms, and 0 is 655.36 ms
    /// (InfiniBand specification, table 45; `enum ib_rnr_timeout` of the kernel). See [Timers](Self#timers).
    pub min_rnr_timer: u8,
    /// The time limit of an acknowledgement to this side: 4.096 us times 2 to this power, 5 bits; 0 means no limit (`timeout` of
    /// ibv_modify_qp(3); `RDMA_OPTION_ID_ACK_TIMEOUT` of rdma_set_option(3)). A peer that is dead is noticed after
    /// [`retry_count`](Self::retry_count) + 1 of them, if a request is in flight.
    ///
    /// `None` is the value of [`Id::set_ack_timeout`](crate::Id::set_ack_timeout), and 16 (0.27 s) without it. See [Timers](Self#timers).
    pub ack_timeout: Option<u8>,
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
    /// No private data, one read each way, retries without limit for a receiver that is not ready, timers that suit a service, no
    /// access.
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 1,
            initiator_depth: 1,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            min_rnr_timer: ConnectAttr::default().min_rnr_timer,
            ack_timeout: None,
            srq: false,
            qp_num: 0,
            qkey: 0,
            ece: Ece::default(),
            access: AccessFlags::empty(),
        }
    }
}

impl ConnParam {
    /// The default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The default with this private data.
    #[must_use]
    pub fn with_private_data(data: impl Into<Vec<u8>>) -> Self {
        Self::default().private_data(data)
    }

    /// Sets [`private_data`](field@Self::private_data).
    #[must_use]
    pub fn private_data(self, data: impl Into<Vec<u8>>) -> Self {
        Self { private_data: data.into(), ..self }
    }

    /// Sets [`ack_timeout`](field@Self::ack_timeout).
    #[must_use]
    pub fn ack_timeout(self, timeout: u8) -> Self {
        Self { ack_timeout: Some(timeout), ..self }
    }

    uverbs_core::setters! {
        responder_resources: u8,
        initiator_depth: u8,
        flow_control: bool,
        retry_count: u8,
        rnr_retry_count: u8,
        min_rnr_timer: u8,
        srq: bool,
        qp_num: u32,
        qkey: u32,
        ece: Ece,
        access: AccessFlags,
    }

    /// Refuses values that no message and no QP can have.
    pub(crate) fn check(&self, verb: &'static str) -> Result<()> {
        let fields = [
            ("retry_count", self.retry_count, 3),
            ("rnr_retry_count", self.rnr_retry_count, 3),
            ("min_rnr_timer", self.min_rnr_timer, 5),
            ("ack_timeout", self.ack_timeout.unwrap_or(0), 5),
        ];
        match fields.into_iter().find(|(_, value, bits)| value >> bits != 0) {
            Some((field, value, bits)) => {
                Err(Error::invalid(verb, field, format!("{value} does not fit in {bits} bits")))
            }
            None => private_data_len(verb, &self.private_data).map(drop),
        }
    }

    /// The ACK timeout of a QP, if it is not that of the kernel, which has the value of an option.
    pub(crate) fn timeout(&self, has_option: bool) -> Option<u8> {
        self.ack_timeout.or((!has_option).then_some(ACK_TIMEOUT))
    }

    /// The kernel's struct.
    pub(crate) fn encode(&self, verb: &'static str) -> Result<rdma_ucm_conn_param> {
        self.check(verb)?;
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
#[non_exhaustive]
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
    }

    #[test]
    fn values_that_do_not_fit_are_refused_and_named() {
        for (param, expected) in [
            (ConnParam::new().retry_count(8), "retry_count: 8 does not fit in 3 bits"),
            (ConnParam::new().rnr_retry_count(9), "rnr_retry_count: 9 does not fit in 3 bits"),
            (ConnParam::new().min_rnr_timer(32), "min_rnr_timer: 32 does not fit in 5 bits"),
            (ConnParam::new().ack_timeout(32), "ack_timeout: 32 does not fit in 5 bits"),
        ] {
            let error = param.encode("accept").unwrap_err();
            assert_eq!(error.to_string(), format!("accept: invalid {expected}"));
        }
        ConnParam::new().min_rnr_timer(31).ack_timeout(31).encode("accept").unwrap();
    }

    #[test]
    fn an_ack_timeout_is_that_of_the_program_or_the_default() {
        assert_eq!(ConnParam::new().timeout(false), Some(ACK_TIMEOUT));
        assert_eq!(ConnParam::new().timeout(true), None);
        assert_eq!(ConnParam::new().ack_timeout(0).timeout(true), Some(0));
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
