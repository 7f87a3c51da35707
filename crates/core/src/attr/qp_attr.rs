// SPDX-License-Identifier: MIT OR Apache-2.0
//! `struct ibv_qp_attr`: the attributes that `modify_qp` sets and `query_qp` returns (ibv_modify_qp(3),
//! ibv_query_qp(3)).

use super::{AccessFlags, AhAttr, Mtu, QpCap, QpState};
use crate::error::{Error, Result};

bitflags::bitflags! {
    /// `enum ibv_qp_attr_mask`: selects fields of [`QpAttr`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct QpAttrMask: u32 {
        /// [`QpAttr::qp_state`]
        const STATE = 1 << 0;
        /// [`QpAttr::cur_qp_state`]
        const CUR_STATE = 1 << 1;
        /// [`QpAttr::en_sqd_async_notify`]
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// [`QpAttr::qp_access_flags`]
        const ACCESS_FLAGS = 1 << 3;
        /// [`QpAttr::pkey_index`]
        const PKEY_INDEX = 1 << 4;
        /// [`QpAttr::port_num`]
        const PORT = 1 << 5;
        /// [`QpAttr::qkey`]
        const QKEY = 1 << 6;
        /// [`QpAttr::ah_attr`]
        const AV = 1 << 7;
        /// [`QpAttr::path_mtu`]
        const PATH_MTU = 1 << 8;
        /// [`QpAttr::timeout`]
        const TIMEOUT = 1 << 9;
        /// [`QpAttr::retry_cnt`]
        const RETRY_CNT = 1 << 10;
        /// [`QpAttr::rnr_retry`]
        const RNR_RETRY = 1 << 11;
        /// [`QpAttr::rq_psn`]
        const RQ_PSN = 1 << 12;
        /// [`QpAttr::max_rd_atomic`]
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// [`QpAttr::alt_ah_attr`], [`QpAttr::alt_pkey_index`], [`QpAttr::alt_port_num`], [`QpAttr::alt_timeout`]
        const ALT_PATH = 1 << 14;
        /// [`QpAttr::min_rnr_timer`]
        const MIN_RNR_TIMER = 1 << 15;
        /// [`QpAttr::sq_psn`]
        const SQ_PSN = 1 << 16;
        /// [`QpAttr::max_dest_rd_atomic`]
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// [`QpAttr::path_mig_state`]
        const PATH_MIG_STATE = 1 << 18;
        /// [`QpAttr::cap`]; no Linux driver can change it.
        const CAP = 1 << 19;
        /// [`QpAttr::dest_qp_num`]
        const DEST_QPN = 1 << 20;
        /// [`QpAttr::rate_limit`]
        const RATE_LIMIT = 1 << 25;
    }
}

impl QpAttrMask {
    /// The names of the set bits, as in C without `IBV_QP_`, separated by a comma and a space.
    #[must_use]
    pub fn names(self) -> String {
        self.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    }
}

open_values! {
    /// `enum ibv_mig_state`: path migration.
    MigState(u32), "IBV_MIG_" {
        MIGRATED = 0 "migrated",
        REARM = 1 "rearm",
        ARMED = 2 "armed",
    }
}

/// `struct ibv_ece`: the options of enhanced connection establishment, which a connection manager exchanges before a
/// connection exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ece {
    /// The PCI vendor that defines the options.
    pub vendor_id: u32,
    /// Vendor-specific options.
    pub options: u32,
}

/// `struct ibv_qp_rate_limit_attr`: pacing of a send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct QpRateLimitAttr {
    /// Limit in kb/s; 0 means no limit.
    pub rate_limit: u32,
    /// Bytes that may be sent in one burst; 0 selects the device's default.
    pub max_burst_sz: u32,
    /// Bytes of a typical packet; 0 selects the device's default.
    pub typical_pkt_sz: u16,
}

impl QpRateLimitAttr {
    /// A limit in kb/s, with the device's other values.
    #[must_use]
    pub const fn new(rate_limit: u32) -> Self {
        Self { rate_limit, max_burst_sz: 0, typical_pkt_sz: 0 }
    }

    setters! {
        max_burst_sz: u32,
        typical_pkt_sz: u16,
    }
}

/// `struct ibv_qp_attr`. A [`QpAttrMask`] selects the valid fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// State to move to.
    pub qp_state: QpState,
    /// The current state of the QP that the caller assumes.
    pub cur_qp_state: QpState,
    /// Path MTU; connected QPs only.
    pub path_mtu: Mtu,
    /// Path migration state.
    pub path_mig_state: MigState,
    /// Q_Key of the QP; UD. A value with the top bit set needs `CAP_NET_RAW`.
    pub qkey: u32,
    /// Packet sequence number that the first received packet must carry, 24 bits.
    pub rq_psn: u32,
    /// Packet sequence number of the first sent packet, 24 bits.
    pub sq_psn: u32,
    /// QP number of the peer, 24 bits.
    pub dest_qp_num: u32,
    /// Operations that the peer may use: remote read, write, atomic.
    pub qp_access_flags: AccessFlags,
    /// Sizes; returned by `query_qp`.
    pub cap: QpCap,
    /// Primary path.
    pub ah_attr: AhAttr,
    /// Alternate path.
    pub alt_ah_attr: AhAttr,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// The same attribute for the alternate path.
    pub alt_pkey_index: u16,
    /// Raise an event when the send queue is drained.
    pub en_sqd_async_notify: bool,
    /// The send queue is being drained; returned by `query_qp`.
    pub sq_draining: bool,
    /// RDMA reads and atomics that may be outstanding to the peer.
    pub max_rd_atomic: u8,
    /// RDMA reads and atomics of the peer that are served at once.
    pub max_dest_rd_atomic: u8,
    /// Time that a peer must wait after "receiver not ready": a code of 5 bits (InfiniBand specification, table 45).
    pub min_rnr_timer: u8,
    /// Primary port, from 1.
    pub port_num: u8,
    /// Time to wait for an acknowledgement: 4.096 us * 2^value, 5 bits; 0 means infinite.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error, 3 bits.
    pub retry_cnt: u8,
    /// Retries after "receiver not ready", 3 bits; 7 means infinite.
    pub rnr_retry: u8,
    /// Port of the alternate path.
    pub alt_port_num: u8,
    /// Timeout of the alternate path.
    pub alt_timeout: u8,
    /// Rate limit in kb/s of a raw packet QP; 0 means no limit.
    pub rate_limit: u32,
}

impl QpAttr {
    /// All fields zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        qp_state: QpState,
        cur_qp_state: QpState,
        path_mtu: Mtu,
        path_mig_state: MigState,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: AccessFlags,
        cap: QpCap,
        ah_attr: AhAttr,
        alt_ah_attr: AhAttr,
        pkey_index: u16,
        alt_pkey_index: u16,
        en_sqd_async_notify: bool,
        sq_draining: bool,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: u8,
        alt_timeout: u8,
        rate_limit: u32,
    }

    /// Refuses values of the masked fields that are invalid for every device. The error names the field.
    pub(crate) fn check(&self, mask: QpAttrMask) -> Result<()> {
        const VERB: &str = "modify_qp";
        let fits = |bit: QpAttrMask, field: &'static str, value: u32, bits: u32| {
            if mask.contains(bit) && value >> bits != 0 {
                return Err(Error::invalid(VERB, field, format!("{value:#x} does not fit in {bits} bits")));
            }
            Ok(())
        };
        let unknown = mask.difference(QpAttrMask::all());
        if !unknown.is_empty() {
            return Err(Error::invalid(VERB, "attr_mask", format!("unknown bits {:#x}", unknown.bits())));
        }
        for (bit, field, state) in [
            (QpAttrMask::STATE, "qp_state", self.qp_state),
            (QpAttrMask::CUR_STATE, "cur_qp_state", self.cur_qp_state),
        ] {
            if mask.contains(bit) && state > QpState::ERR {
                return Err(Error::invalid(VERB, field, format!("{state:?} is not a QP state")));
            }
        }
        if mask.contains(QpAttrMask::PATH_MTU) && self.path_mtu.bytes().is_none() {
            return Err(Error::invalid(VERB, "path_mtu", format!("{:?} is not an MTU code", self.path_mtu)));
        }
        if mask.contains(QpAttrMask::PATH_MIG_STATE) && self.path_mig_state > MigState::ARMED {
            return Err(Error::invalid(VERB, "path_mig_state", format!("{:?}", self.path_mig_state)));
        }
        if mask.contains(QpAttrMask::PORT) && self.port_num == 0 {
            return Err(Error::invalid(VERB, "port_num", "ports count from 1"));
        }
        fits(QpAttrMask::RQ_PSN, "rq_psn", self.rq_psn, 24)?;
        fits(QpAttrMask::SQ_PSN, "sq_psn", self.sq_psn, 24)?;
        fits(QpAttrMask::DEST_QPN, "dest_qp_num", self.dest_qp_num, 24)?;
        fits(QpAttrMask::TIMEOUT, "timeout", self.timeout.into(), 5)?;
        fits(QpAttrMask::RETRY_CNT, "retry_cnt", self.retry_cnt.into(), 3)?;
        fits(QpAttrMask::RNR_RETRY, "rnr_retry", self.rnr_retry.into(), 3)?;
        fits(QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer", self.min_rnr_timer.into(), 5)?;
        if mask.contains(QpAttrMask::AV) {
            self.ah_attr.check(VERB, "ah_attr")?;
        }
        if mask.contains(QpAttrMask::ALT_PATH) {
            fits(QpAttrMask::ALT_PATH, "alt_timeout", self.alt_timeout.into(), 5)?;
            self.alt_ah_attr.check(VERB, "alt_ah_attr")?;
            // uverbs compares them (modify_qp() in uverbs_cmd.c).
            if self.alt_port_num != self.alt_ah_attr.port_num {
                return Err(Error::invalid(VERB, "alt_port_num", "differs from alt_ah_attr.port_num"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_masked_fields_are_checked_and_the_wrong_one_is_named() {
        let wrong = QpAttr {
            qp_state: QpState::UNKNOWN,
            rq_psn: 1 << 24,
            sq_psn: u32::MAX,
            dest_qp_num: 1 << 24,
            timeout: 32,
            retry_cnt: 8,
            rnr_retry: 8,
            min_rnr_timer: 32,
            ..QpAttr::default()
        };
        wrong.check(QpAttrMask::PKEY_INDEX).unwrap();
        for (bit, field) in [
            (QpAttrMask::STATE, "qp_state"),
            (QpAttrMask::PATH_MTU, "path_mtu"),
            (QpAttrMask::RQ_PSN, "rq_psn"),
            (QpAttrMask::SQ_PSN, "sq_psn"),
            (QpAttrMask::DEST_QPN, "dest_qp_num"),
            (QpAttrMask::TIMEOUT, "timeout"),
            (QpAttrMask::RETRY_CNT, "retry_cnt"),
            (QpAttrMask::RNR_RETRY, "rnr_retry"),
            (QpAttrMask::MIN_RNR_TIMER, "min_rnr_timer"),
            (QpAttrMask::PORT, "port_num"),
            (QpAttrMask::AV, "ah_attr"),
            (QpAttrMask::ALT_PATH, "alt_ah_attr"),
            (QpAttrMask::from_bits_retain(1 << 30), "attr_mask"),
        ] {
            let error = wrong.check(bit).unwrap_err();
            assert!(error.to_string().starts_with(&format!("modify_qp: invalid {field}:")), "{error}");
        }
    }

    #[test]
    fn mask_names_are_those_of_c() {
        assert_eq!((QpAttrMask::PATH_MTU | QpAttrMask::DEST_QPN).names(), "PATH_MTU, DEST_QPN");
    }
}
