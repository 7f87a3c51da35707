// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues (ibv_create_cq(3), ibv_create_cq_ex(3), ibv_modify_cq(3)).

use crate::error::{Error, Result};

bitflags::bitflags! {
    /// `enum ibv_create_cq_wc_flags`: the completion fields that the extended poll must be able to read.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct WcExFlags: u64 {
        /// `byte_len`
        const BYTE_LEN = 1 << 0;
        /// `imm_data`
        const IMM = 1 << 1;
        /// `qp_num`
        const QP_NUM = 1 << 2;
        /// `src_qp`
        const SRC_QP = 1 << 3;
        /// `slid`
        const SLID = 1 << 4;
        /// `sl`
        const SL = 1 << 5;
        /// `dlid_path_bits`
        const DLID_PATH_BITS = 1 << 6;
        /// `completion_ts`, in ticks of the device's clock
        const COMPLETION_TIMESTAMP = 1 << 7;
        /// `cvlan`
        const CVLAN = 1 << 8;
        /// `flow_tag`
        const FLOW_TAG = 1 << 9;
        /// `tm_info`
        const TM_INFO = 1 << 10;
        /// `completion_wallclock_ns`
        const COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11;
    }
}

impl WcExFlags {
    /// `IBV_WC_STANDARD_FLAGS`: the fields that `ibv_poll_cq` reports.
    pub const STANDARD: Self = Self::BYTE_LEN
        .union(Self::IMM)
        .union(Self::QP_NUM)
        .union(Self::SRC_QP)
        .union(Self::SLID)
        .union(Self::SL)
        .union(Self::DLID_PATH_BITS);

    /// Either kind of timestamp.
    pub const TIMESTAMPS: Self = Self::COMPLETION_TIMESTAMP.union(Self::COMPLETION_TIMESTAMP_WALLCLOCK);
}

bitflags::bitflags! {
    /// `enum ibv_create_cq_attr_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct CqFlags: u32 {
        /// One thread polls at a time, so the driver takes no lock. This flag is not passed to the kernel.
        const SINGLE_THREADED = 1 << 0;
        /// The device does not detect overruns; the user must prevent them.
        const IGNORE_OVERRUN = 1 << 1;
    }
}

/// `struct ibv_cq_init_attr_ex` without the objects that it refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CqInitAttr {
    /// Entries; the created CQ may have more.
    pub cqe: u32,
    /// Completion vector (interrupt) that signals events, below the context's `num_comp_vectors`.
    pub comp_vector: u32,
    /// Fields that the extended poll must have; empty for a CQ that only `ibv_poll_cq` polls.
    pub wc_flags: WcExFlags,
    /// Flags.
    pub flags: CqFlags,
    /// The device may write several completions in the memory of one or two, if they are alike and follow each other (mlx5's CQE
    /// compression). They all have the timestamp of the first. The creation fails with `Unsupported` if the device has no such
    /// completions.
    pub compressed: bool,
}

impl CqInitAttr {
    /// A CQ with this many entries, on the first completion vector.
    #[must_use]
    pub const fn new(cqe: u32) -> Self {
        Self { cqe, comp_vector: 0, wc_flags: WcExFlags::empty(), flags: CqFlags::empty(), compressed: false }
    }

    /// Refuses fields that the driver with this name does not report, flags except the one of every CQ, and compressed completions.
    ///
    /// # Errors
    /// [`Error::Unsupported`] as above.
    pub fn only_standard(&self, driver: &str) -> Result<()> {
        let fields = self.wc_flags.difference(WcExFlags::STANDARD);
        if !fields.is_empty() {
            return Err(Error::unsupported(
                "create_cq",
                format!("{driver} has no completion fields {fields:?}"),
            ));
        }
        let flags = self.flags.difference(CqFlags::SINGLE_THREADED);
        if !flags.is_empty() {
            return Err(Error::unsupported("create_cq", format!("{driver} has no CQ flags {flags:?}")));
        }
        if self.compressed {
            return Err(Error::unsupported("create_cq", format!("{driver} has no compressed completions")));
        }
        Ok(())
    }

    setters! {
        cqe: u32,
        comp_vector: u32,
        wc_flags: WcExFlags,
        flags: CqFlags,
        compressed: bool,
    }
}

/// `struct ibv_moderate_cq`: one event for several completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CqModeration {
    /// Number of completions that raise an event.
    pub cq_count: u16,
    /// Microseconds after which an event is raised even for fewer completions.
    pub cq_period: u16,
}

impl CqModeration {
    /// An event after `cq_count` completions, or after `cq_period` microseconds.
    #[must_use]
    pub const fn new(cq_count: u16, cq_period: u16) -> Self {
        Self { cq_count, cq_period }
    }
}
