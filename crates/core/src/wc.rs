// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work completions: `ibv_wc` as C lays it out, and the values that its fields take (ibv_poll_cq(3)).
//!
//! Status and opcode come from a device or a kernel, so they are integer newtypes: an unknown value is data, not UB.

use crate::wr::ImmData;
use core::fmt;

/// Declares an integer newtype that prints its words and its number.
macro_rules! wc_values {
    ($(#[$meta:meta])* $name:ident { $($values:tt)* }) => {
        crate::attr::values::named_values! { $(#[$meta])* $name(u32), "IBV_WC_" { $($values)* } }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{} ({})", self.describe(), self.0)
            }
        }
    };
}

wc_values! {
    /// `enum ibv_wc_status`.
    WcStatus {
        SUCCESS = 0 "success",
        LOC_LEN_ERR = 1 "local length error",
        LOC_QP_OP_ERR = 2 "local QP operation error",
        LOC_EEC_OP_ERR = 3 "local EE context operation error",
        LOC_PROT_ERR = 4 "local protection error",
        WR_FLUSH_ERR = 5 "work request flushed",
        MW_BIND_ERR = 6 "memory window bind error",
        BAD_RESP_ERR = 7 "bad response",
        LOC_ACCESS_ERR = 8 "local access error",
        REM_INV_REQ_ERR = 9 "remote invalid request",
        REM_ACCESS_ERR = 10 "remote access error",
        REM_OP_ERR = 11 "remote operation error",
        RETRY_EXC_ERR = 12 "transport retry counter exceeded",
        RNR_RETRY_EXC_ERR = 13 "RNR retry counter exceeded",
        LOC_RDD_VIOL_ERR = 14 "local RDD violation",
        REM_INV_RD_REQ_ERR = 15 "remote invalid RD request",
        REM_ABORT_ERR = 16 "aborted by the remote side",
        INV_EECN_ERR = 17 "invalid EE context number",
        INV_EEC_STATE_ERR = 18 "invalid EE context state",
        FATAL_ERR = 19 "fatal error",
        RESP_TIMEOUT_ERR = 20 "response timeout",
        GENERAL_ERR = 21 "general error",
        TM_ERR = 22 "tag matching error",
        TM_RNDV_INCOMPLETE = 23 "tag matching rendezvous incomplete",
    }
}

wc_values! {
    /// `enum ibv_wc_opcode`. Receives have [`WcOpcode::RECV`]'s bit set.
    WcOpcode {
        SEND = 0 "send",
        RDMA_WRITE = 1 "RDMA write",
        RDMA_READ = 2 "RDMA read",
        COMP_SWAP = 3 "compare and swap",
        FETCH_ADD = 4 "fetch and add",
        BIND_MW = 5 "memory window bind",
        LOCAL_INV = 6 "local invalidate",
        TSO = 7 "segmented send",
        FLUSH = 8 "flush",
        ATOMIC_WRITE = 9 "atomic write",
        RECV = 128 "receive",
        RECV_RDMA_WITH_IMM = 129 "receive of an RDMA write with immediate",
        TM_ADD = 130 "tag added",
        TM_DEL = 131 "tag deleted",
        TM_SYNC = 132 "tag list synchronised",
        TM_RECV = 133 "tagged receive",
        TM_NO_TAG = 134 "tagged receive without a tag",
        DRIVER1 = 135 "driver operation 1",
        DRIVER2 = 136 "driver operation 2",
        DRIVER3 = 137 "driver operation 3",
    }
}

impl WcStatus {
    /// Whether the work request succeeded.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }

    /// `Ok` for success, else the status as an error.
    ///
    /// # Errors
    /// The status, if it is not success.
    #[inline]
    pub const fn ok(self) -> Result<(), WcError> {
        if self.is_success() { Ok(()) } else { Err(WcError(self)) }
    }
}

impl WcOpcode {
    /// Whether this completes a posted receive.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn is_recv(self) -> bool {
        self.0 & Self::RECV.0 != 0
    }
}

/// A completion status other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WcError(pub WcStatus);

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "completion with error: {}", self.0)
    }
}

impl core::error::Error for WcError {}

bitflags::bitflags! {
    /// `enum ibv_wc_flags`: the fields of a completion that are valid, and the checks that the device made.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    #[repr(transparent)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffer hold a GRH (UD only).
        const GRH = 1 << 0;
        /// `imm_data` is valid.
        const WITH_IMM = 1 << 1;
        /// The device found the IP and L4 checksums correct.
        const IP_CSUM_OK = 1 << 2;
        /// `invalidated_rkey` is valid.
        const WITH_INV = 1 << 3;
        /// Tag matching: the software list must be synchronised.
        const TM_SYNC_REQ = 1 << 4;
        /// Tag matching: matched.
        const TM_MATCH = 1 << 5;
        /// Tag matching: the data is in the buffer.
        const TM_DATA_VALID = 1 << 6;
        const _ = !0;
    }
}

/// `struct ibv_wc`. With a status other than success only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct WorkCompletion {
    /// `wr_id` of the work request.
    pub wr_id: u64,
    /// Status.
    pub status: WcStatus,
    /// Opcode of the completed work request.
    pub opcode: WcOpcode,
    /// Vendor-specific error code.
    pub vendor_err: u32,
    /// Bytes transferred: receives, reads and atomics. On UD it counts the 40 bytes of the GRH.
    pub byte_len: u32,
    /// `imm_data` (`__be32`) or `invalidated_rkey`, by `wc_flags`.
    pub imm_data_or_invalidated_rkey: u32,
    /// The local QP.
    pub qp_num: u32,
    /// The sender's QP (UD receives).
    pub src_qp: u32,
    /// Which other fields are valid.
    pub wc_flags: WcFlags,
    /// Index of the P_Key (GSI receives).
    pub pkey_index: u16,
    /// Source LID (UD receives on InfiniBand).
    pub slid: u16,
    /// Service level (UD receives).
    pub sl: u8,
    /// Low bits of the destination LID (UD receives).
    pub dlid_path_bits: u8,
}

impl WorkCompletion {
    /// Immediate data, if the message carried some.
    #[must_use]
    pub const fn imm_data(&self) -> Option<ImmData> {
        if self.wc_flags.contains(WcFlags::WITH_IMM) {
            Some(ImmData::from_be(self.imm_data_or_invalidated_rkey))
        } else {
            None
        }
    }

    /// The rkey that the peer's send invalidated, if it did.
    #[must_use]
    pub const fn invalidated_rkey(&self) -> Option<u32> {
        if self.wc_flags.contains(WcFlags::WITH_INV) { Some(self.imm_data_or_invalidated_rkey) } else { None }
    }
}
