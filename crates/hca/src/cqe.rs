// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queue entries as bytes (`struct mlx5_cqe64`, `struct mlx5_err_cqe` of `<infiniband/mlx5dv.h>`).

use crate::bytes::put;
use crate::engine::signature::SigError;
use uverbs_mlx5_hw::cqe as hw;

/// An error syndrome with the vendor's code.
///
/// The vendor's codes are those that ConnectX devices were seen to report for the same errors; programs must not depend
/// on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Syndrome(pub(crate) u8, pub(crate) u8);

impl Syndrome {
    pub(crate) const LOCAL_LENGTH: Self = Self(hw::MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, 0x66);
    pub(crate) const LOCAL_QP_OP: Self = Self(hw::MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, 0x68);
    pub(crate) const LOCAL_PROT: Self = Self(hw::MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, 0x33);
    pub(crate) const FLUSH: Self = Self(hw::MLX5_CQE_SYNDROME_WR_FLUSH_ERR, 0xf9);
    pub(crate) const MW_BIND: Self = Self(hw::MLX5_CQE_SYNDROME_MW_BIND_ERR, 0x20);
    pub(crate) const BAD_RESP: Self = Self(hw::MLX5_CQE_SYNDROME_BAD_RESP_ERR, 0x59);
    pub(crate) const LOCAL_ACCESS: Self = Self(hw::MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, 0x57);
    pub(crate) const REMOTE_INVALID: Self = Self(hw::MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, 0x8a);
    pub(crate) const REMOTE_ACCESS: Self = Self(hw::MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, 0x88);
    /// Only by script.
    pub(crate) const REMOTE_ABORTED: Self = Self(hw::MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR, 0);
    /// Only by script: a code that drivers do not know.
    pub(crate) const UNKNOWN: Self = Self(0xff, 0);
    pub(crate) const REMOTE_OP: Self = Self(hw::MLX5_CQE_SYNDROME_REMOTE_OP_ERR, 0x8b);
    pub(crate) const RETRY: Self = Self(hw::MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, 0x81);
    pub(crate) const RNR: Self = Self(hw::MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, 0x87);
}

/// The fields of an entry; those that its kind does not have stay 0.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cqe {
    pub(crate) kind: u8,
    /// User index of the resource, or the SRQ's number with entries of version 0.
    pub(crate) srqn_uidx: u32,
    /// Immediate data, invalidated key, or the index of the P_Key.
    pub(crate) imm: u32,
    pub(crate) byte_cnt: u32,
    pub(crate) timestamp: u64,
    /// Hardware opcode of the completed WQE, or a flow tag's upper byte.
    pub(crate) opcode: u8,
    pub(crate) qpn: u32,
    pub(crate) wqe_counter: u16,
    /// Whether it is a solicited completion.
    pub(crate) solicited: bool,
    pub(crate) syndrome: Option<Syndrome>,
    /// Path of a datagram: source LID.
    pub(crate) slid: u16,
    /// Path bits and multicast flag.
    pub(crate) ml_path: u8,
    /// GRH, service level or RoCE header type, and the sender's QP.
    pub(crate) flags_rqpn: u32,
    /// One's complement sum of a frame behind its Ethernet header.
    pub(crate) check_sum: u16,
    /// Checksums of a frame (`hds_ip_ext`) and its headers (`l4_hdr_type_etc`).
    pub(crate) checks: (u8, u8),
    /// Data in the entry itself.
    pub(crate) inline: Option<Vec<u8>>,
    /// The entry is about a signature (`struct mlx5_sigerr_cqe` of libmlx5), and has no other fields.
    pub(crate) signature: Option<SigError>,
}

impl Cqe {
    /// Whether it completes a request of a send queue.
    pub(crate) fn is_of_request(&self) -> bool {
        matches!(self.kind, hw::MLX5_CQE_REQ | hw::MLX5_CQE_REQ_ERR)
    }

    /// Whether it completes such a request successfully.
    pub(crate) fn is_success_of_request(&self) -> bool {
        self.kind == hw::MLX5_CQE_REQ
    }
}

/// Offset in the entry proper of the first field that entries without data have.
const WORDS: usize = 16;

/// Offset of the 64-byte entry in an entry of this size.
const fn proper(size: usize) -> usize {
    size - 64
}

impl Cqe {
    /// The bytes of an entry of 64 or 128 bytes, with this owner bit in the last one.
    pub(crate) fn encode<const SIZE: usize>(&self, owner: u8) -> [u8; SIZE] {
        let (mut bytes, size) = ([0; SIZE], SIZE);
        let at = proper(size);
        if let Some(error) = &self.signature {
            let halves = [error.expected >> 32, error.actual >> 32, error.expected, error.actual];
            for (i, half) in halves.into_iter().enumerate() {
                put(&mut bytes, at + 16 + i * 4, &(half as u32).to_be_bytes());
            }
            put(&mut bytes, at + 32, &error.syndrome.to_be_bytes());
            put(&mut bytes, at + 35, &[error.domain]);
            put(&mut bytes, at + 36, &error.key.to_be_bytes());
            put(&mut bytes, at + 40, &error.offset.to_be_bytes());
            put(&mut bytes, at + 63, &[hw::MLX5_CQE_SIG_ERR << 4 | owner & 1]);
            return bytes;
        }
        let mut format = 0;
        if let Some(data) = &self.inline {
            // Up to 32 bytes at the start of the entry proper, up to 64 in the half before it.
            format = match size == 128 && data.len() <= 64 {
                true => hw::MLX5_INLINE_SCATTER_64,
                false => hw::MLX5_INLINE_SCATTER_32,
            };
        }
        for (i, word) in self.words(format, owner).into_iter().enumerate() {
            put(&mut bytes, at + WORDS + i * 8, &word.to_be_bytes());
        }
        if let Some(data) = &self.inline {
            put(&mut bytes, if format == hw::MLX5_INLINE_SCATTER_64 { 0 } else { at }, data);
        }
        bytes
    }

    /// As [`encode`](Self::encode), of an entry of 64 bytes; `None` if it has data, or is about a signature.
    #[inline]
    pub(crate) fn plain(&self, owner: u8) -> Option<[u8; 64]> {
        if self.signature.is_some() || self.inline.is_some() {
            return None;
        }
        let mut bytes = [0; 64];
        let (places, _) = bytes.as_chunks_mut();
        for (place, word) in places.iter_mut().skip(WORDS / 8).zip(self.words(0, owner)) {
            *place = word.to_be_bytes();
        }
        Some(bytes)
    }

    /// The words of the entry proper from [`WORDS`] on, without data, with these bits of the format.
    #[inline]
    fn words(&self, format: u8, owner: u8) -> [u64; 6] {
        let srqn_uidx = u64::from(self.srqn_uidx) << 32;
        let op_own = self.kind << 4 | format | u8::from(self.solicited) << 1 | owner & 1;
        let head = u64::from(self.opcode) << 56 | u64::from(self.qpn & 0xff_ffff) << 32;
        let last = head | u64::from(self.wqe_counter) << 16 | u64::from(op_own);
        if let Some(Syndrome(syndrome, vendor)) = self.syndrome {
            return [0, 0, srqn_uidx, 0, u64::from(vendor) << 8 | u64::from(syndrome), last];
        }
        let path = u64::from(self.ml_path) << 48 | u64::from(self.check_sum) << 16;
        let checks = u64::from(self.checks.0) << 24 | u64::from(self.checks.1) << 16;
        [
            path | u64::from(self.slid),
            u64::from(self.flags_rqpn) << 32 | checks,
            srqn_uidx | u64::from(self.imm),
            u64::from(self.byte_cnt),
            self.timestamp,
            last,
        ]
    }
}
