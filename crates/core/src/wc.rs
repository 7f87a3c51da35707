// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work completions: `ibv_wc` as C lays it out, and the values that its fields take (ibv_poll_cq(3)).
//!
//! Status and opcode come from a device or a kernel, so they are integer newtypes: an unknown value is data, not UB.

use crate::errno::Errno;
use crate::wr::ImmData;
use core::fmt;
use std::sync::Arc;

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

    /// `Ok` for success, else the status as an error. [`WorkCompletion::ok`] gives an error that also has the QP and the `wr_id`.
    ///
    /// # Errors
    /// The status, if it is not success.
    #[inline]
    pub const fn ok(self) -> Result<(), WcError> {
        if self.is_success() { Ok(()) } else { Err(WcError::of(self)) }
    }

    /// Where the cause of an error is; `None` for success. See [`Fault`].
    #[must_use]
    pub const fn fault(self) -> Option<Fault> {
        Some(match self {
            Self::SUCCESS => return None,
            Self::WR_FLUSH_ERR => Fault::Flushed,
            Self::RETRY_EXC_ERR | Self::RESP_TIMEOUT_ERR => Fault::Path,
            Self::BAD_RESP_ERR
            | Self::REM_INV_REQ_ERR
            | Self::REM_ACCESS_ERR
            | Self::REM_OP_ERR
            | Self::RNR_RETRY_EXC_ERR
            | Self::REM_INV_RD_REQ_ERR
            | Self::REM_ABORT_ERR
            | Self::TM_RNDV_INCOMPLETE => Fault::Remote,
            _ => Fault::Local,
        })
    }
}

/// Where the cause of a completion with an error is.
///
/// The meaning of a status is that of the InfiniBand specification, 11.6.2, and of ibv_poll_cq(3). "Remote" is what the peer has
/// reported or sent; the program that must be corrected may be this one, for example if it writes to a wrong address.
///
/// | status | fault | meaning |
/// |---|---|---|
/// | `LOC_LEN_ERR` | `Local` | a message is longer than the receive, or than the port or the transport allows |
/// | `LOC_QP_OP_ERR` | `Local` | the QP can't execute the work request, for example an invalid WQE |
/// | `LOC_EEC_OP_ERR` | `Local` | as above, of an end-to-end context (RD) |
/// | `LOC_PROT_ERR` | `Local` | an entry names memory that this side has not registered, or not for this access |
/// | `WR_FLUSH_ERR` | `Flushed` | the QP was in ERR or SQE: an earlier completion has the cause |
/// | `MW_BIND_ERR` | `Local` | a memory window can't be bound |
/// | `BAD_RESP_ERR` | `Remote` | the peer has sent an answer that does not fit the request |
/// | `LOC_ACCESS_ERR` | `Local` | of a receive: a request of the peer has accessed memory of this side without the right |
/// | `REM_INV_REQ_ERR` | `Remote` | the peer has refused the message: its receive is too short, or its QP does not take the operation |
/// | `REM_ACCESS_ERR` | `Remote` | the peer has refused the access: key, address or rights |
/// | `REM_OP_ERR` | `Remote` | the peer could not complete the operation |
/// | `RETRY_EXC_ERR` | `Path` | no answer after all retries: the peer, its QP or the network is down |
/// | `RNR_RETRY_EXC_ERR` | `Remote` | the peer had no receive for the message after all retries |
/// | `LOC_RDD_VIOL_ERR` | `Local` | the domain of the QP is not that of the end-to-end context (RD) |
/// | `REM_INV_RD_REQ_ERR` | `Remote` | the peer has refused the message, as above (RD) |
/// | `REM_ABORT_ERR` | `Remote` | the peer has aborted the operation (RD) |
/// | `INV_EECN_ERR`, `INV_EEC_STATE_ERR` | `Local` | an invalid end-to-end context (RD) |
/// | `FATAL_ERR` | `Local` | the device has failed |
/// | `RESP_TIMEOUT_ERR` | `Path` | no response in time |
/// | `GENERAL_ERR` | `Local` | any other error of the device |
/// | `TM_ERR` | `Local` | an operation of the list of tags has failed |
/// | `TM_RNDV_INCOMPLETE` | `Remote` | the device could not read the data of a rendezvous from the peer |
/// | others | `Local` | the device reports a status that this crate does not have |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// This side: the work request, its memory, the QP or the device.
    Local,
    /// The peer has refused or failed, or the request was wrong for it.
    Remote,
    /// The peer did not answer.
    Path,
    /// The work request was not executed, or not to its end, because of an earlier error.
    Flushed,
}

impl WcOpcode {
    /// Whether this completes a posted receive.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn is_recv(self) -> bool {
        self.0 & Self::RECV.0 != 0
    }
}

/// A completion with a status other than success.
///
/// ```
/// use uverbs_core::wc::{Fault, WcOpcode, WcStatus, WorkCompletion};
///
/// let wc = WorkCompletion {
///     wr_id: 7,
///     status: WcStatus::RETRY_EXC_ERR,
///     opcode: WcOpcode::RDMA_WRITE,
///     vendor_err: 0x81,
///     qp_num: 0x102,
///     ..WorkCompletion::default()
/// };
/// let error = wc.ok().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "qp 0x102, wr_id 7, RDMA_WRITE: transport retry counter exceeded (12), vendor 0x81"
/// );
/// assert_eq!(error.fault(), Fault::Path);
/// assert!(WorkCompletion::default().ok().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WcError {
    status: WcStatus,
    opcode: Option<WcOpcode>,
    vendor_err: u32,
    /// `qp_num` and `wr_id`.
    of: Option<(u32, u64)>,
    device: Option<Arc<str>>,
}

impl WcError {
    const fn of(status: WcStatus) -> Self {
        Self { status, opcode: None, vendor_err: 0, of: None, device: None }
    }

    /// The error with the name of the device, which a completion does not have.
    #[must_use]
    pub fn on(self, device: Arc<str>) -> Self {
        Self { device: Some(device), ..self }
    }

    /// The error with the opcode of the work request, for a caller who knows it.
    #[must_use]
    pub fn with_opcode(self, opcode: WcOpcode) -> Self {
        Self { opcode: Some(opcode), ..self }
    }

    /// The status of the completion.
    #[must_use]
    pub const fn status(&self) -> WcStatus {
        self.status
    }

    /// Where the cause is.
    #[must_use]
    pub const fn fault(&self) -> Fault {
        match self.status.fault() {
            Some(fault) => fault,
            // There is no error of a success.
            None => Fault::Local,
        }
    }

    /// The opcode of the work request, if the completion says it: the verbs do not require it of errors, and some devices report 0,
    /// which is that of a send.
    #[must_use]
    pub const fn opcode(&self) -> Option<WcOpcode> {
        self.opcode
    }

    /// The vendor's reason.
    #[must_use]
    pub const fn vendor_err(&self) -> u32 {
        self.vendor_err
    }

    /// The local QP. `None` of an error that was made from a status alone.
    #[must_use]
    pub fn qp_num(&self) -> Option<u32> {
        self.of.map(|(qp_num, _)| qp_num)
    }

    /// The `wr_id` of the work request. `None` of an error that was made from a status alone.
    #[must_use]
    pub fn wr_id(&self) -> Option<u64> {
        self.of.map(|(_, wr_id)| wr_id)
    }

    /// The device's name, of the errors of [owned](https://docs.rs/uverbs) queues.
    #[must_use]
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    /// The errno that fits best: a completion has none.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self.fault() {
            Fault::Local => Errno::EIO,
            Fault::Remote => Errno::EREMOTEIO,
            Fault::Path => Errno::ETIMEDOUT,
            Fault::Flushed => Errno::ECANCELED,
        }
    }
}

impl fmt::Display for WcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, opcode, vendor_err, of, device } = self;
        match of {
            Some((qp_num, wr_id)) => {
                write!(f, "qp {qp_num:#x}")?;
                if let Some(device) = device {
                    write!(f, " of {device}")?;
                }
                write!(f, ", wr_id {wr_id}")?;
                if let Some(opcode) = opcode {
                    write!(f, ", {opcode:?}")?;
                }
                f.write_str(": ")?;
            }
            None => f.write_str("completion with error: ")?,
        }
        write!(f, "{status}")?;
        if *vendor_err != 0 {
            write!(f, ", vendor {vendor_err:#x}")?;
        }
        Ok(())
    }
}

impl From<WcError> for std::io::Error {
    fn from(error: WcError) -> Self {
        use std::io::ErrorKind;
        let kind = match error.fault() {
            Fault::Path => ErrorKind::TimedOut,
            Fault::Remote => ErrorKind::ConnectionReset,
            Fault::Flushed => ErrorKind::ConnectionAborted,
            Fault::Local => ErrorKind::Other,
        };
        Self::new(kind, error)
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
    /// `Ok` for success, else an error with the QP, the `wr_id` and the reason.
    ///
    /// # Errors
    /// A status other than success.
    #[inline]
    pub fn ok(&self) -> Result<(), WcError> {
        if self.status.is_success() { Ok(()) } else { Err(self.to_error()) }
    }

    /// The error of a completion whose status is not success.
    #[cold]
    #[must_use]
    pub fn to_error(&self) -> WcError {
        // Of an error, 0 (a send) may mean that the device does not say it; other values are not made up.
        let opcode = (self.opcode != WcOpcode::SEND).then_some(self.opcode);
        let of = Some((self.qp_num, self.wr_id));
        WcError { status: self.status, opcode, vendor_err: self.vendor_err, of, device: None }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_fault() {
        use Fault::{Flushed, Local, Path, Remote};
        let faults = [
            Local, Local, Local, Local, Flushed, Local, Remote, Local, Remote, Remote, Remote, Path, Remote,
            Local, Remote, Remote, Local, Local, Local, Path, Local, Local, Remote,
        ];
        assert_eq!(WcStatus::SUCCESS.fault(), None);
        for (at, fault) in faults.into_iter().enumerate() {
            let status = WcStatus(at as u32 + 1);
            assert!(status.name().is_some(), "{status:?}");
            assert_eq!(status.fault(), Some(fault), "{status:?}");
        }
        let next = WcStatus(faults.len() as u32 + 1);
        assert_eq!((next.name(), next.fault()), (None, Some(Local)), "the list above has all");
    }

    #[test]
    fn an_error_says_what_is_known() {
        let wc = WorkCompletion {
            wr_id: 7,
            status: WcStatus::RETRY_EXC_ERR,
            opcode: WcOpcode::RDMA_WRITE,
            vendor_err: 0x81,
            qp_num: 0x102,
            ..WorkCompletion::default()
        };
        let error = wc.ok().unwrap_err().on("mlx5_0".into());
        assert_eq!(
            error.to_string(),
            "qp 0x102 of mlx5_0, wr_id 7, RDMA_WRITE: transport retry counter exceeded (12), vendor 0x81"
        );
        assert_eq!((error.qp_num(), error.wr_id(), error.device()), (Some(0x102), Some(7), Some("mlx5_0")));
        let flushed =
            WorkCompletion { status: WcStatus::WR_FLUSH_ERR, opcode: WcOpcode(0), vendor_err: 0, ..wc };
        assert_eq!(flushed.ok().unwrap_err().to_string(), "qp 0x102, wr_id 7: work request flushed (5)");
        let alone = WcStatus::RNR_RETRY_EXC_ERR.ok().unwrap_err();
        assert_eq!(alone.to_string(), "completion with error: RNR retry counter exceeded (13)");
        assert_eq!((alone.qp_num(), alone.fault()), (None, Fault::Remote));
    }
}
