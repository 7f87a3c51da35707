// SPDX-License-Identifier: MIT OR Apache-2.0
//! Shared receive queues (ibv_create_srq_ex(3), ibv_modify_srq(3)).

/// `enum ibv_srq_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum SrqType {
    /// `IBV_SRQT_BASIC`: QPs of its protection domain receive from it.
    #[default]
    Basic = 0,
    /// `IBV_SRQT_XRC`: XRC senders name it by number.
    Xrc = 1,
    /// `IBV_SRQT_TM`: with tag matching.
    Tm = 2,
}

/// `struct ibv_srq_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Outstanding WRs.
    pub max_wr: u32,
    /// SGEs of a WR.
    pub max_sge: u32,
    /// An event is raised when fewer WRs than this are left; 0 disables it. It is raised once; the limit must then be
    /// set again.
    pub srq_limit: u32,
}

impl SrqAttr {
    /// A queue with this many outstanding WRs, of one SGE each, without a limit event.
    #[must_use]
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, srq_limit: 0 }
    }

    setters! {
        max_wr: u32,
        max_sge: u32,
        srq_limit: u32,
    }
}

bitflags::bitflags! {
    /// `enum ibv_srq_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct SrqAttrMask: u32 {
        /// [`SrqAttr::max_wr`]: resize.
        const MAX_WR = 1 << 0;
        /// [`SrqAttr::srq_limit`]: arm the limit event.
        const LIMIT = 1 << 1;
    }
}

/// `struct ibv_srq_init_attr_ex` without the objects that it refers to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqInitAttr {
    /// Sizes; `srq_limit` is not used at creation by most devices.
    pub attr: SrqAttr,
    /// Type.
    pub srq_type: SrqType,
    /// Tags in the list, with [`SrqType::Tm`].
    pub max_num_tags: u32,
    /// Outstanding list operations, with [`SrqType::Tm`]; used by the driver only.
    pub max_ops: u32,
}

impl SrqInitAttr {
    /// A basic SRQ of these sizes.
    #[must_use]
    pub const fn new(attr: SrqAttr) -> Self {
        Self { attr, srq_type: SrqType::Basic, max_num_tags: 0, max_ops: 0 }
    }

    setters! {
        attr: SrqAttr,
        srq_type: SrqType,
        max_num_tags: u32,
        max_ops: u32,
    }
}
