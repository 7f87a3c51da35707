// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work queues and receive hashing (ibv_create_wq(3), ibv_create_rwq_ind_table(3)).

bitflags::bitflags! {
    /// `enum ibv_wq_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct WqFlags: u32 {
        /// Receives lose the VLAN tag.
        const CVLAN_STRIPPING = 1 << 0;
        /// Receives keep the FCS.
        const SCATTER_FCS = 1 << 1;
        /// A packet without a receive waits instead of being dropped.
        const DELAY_DROP = 1 << 2;
        /// PCI writes are padded to a cache line.
        const PCI_WRITE_END_PADDING = 1 << 3;
    }
}

open_values! {
    /// `enum ibv_wq_state`.
    WqState(u32), "IBV_WQS_" {
        RESET = 0 "reset",
        RDY = 1 "ready",
        ERR = 2 "error",
    }
}

/// `struct ibv_wq_init_attr` without the objects that it refers to. The only type is `IBV_WQT_RQ`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WqInitAttr {
    /// Outstanding receives.
    pub max_wr: u32,
    /// SGEs of a receive.
    pub max_sge: u32,
    /// Flags.
    pub create_flags: WqFlags,
}

impl WqInitAttr {
    /// A queue with this many outstanding receives, of one SGE each.
    #[must_use]
    pub const fn new(max_wr: u32) -> Self {
        Self { max_wr, max_sge: 1, create_flags: WqFlags::empty() }
    }

    setters! {
        max_wr: u32,
        max_sge: u32,
        create_flags: WqFlags,
    }
}

/// `struct ibv_wq_attr`: the attributes that `modify_wq` changes; those that are `None` are not changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WqAttr {
    /// New state.
    pub wq_state: Option<WqState>,
    /// The current state that the caller assumes.
    pub curr_wq_state: Option<WqState>,
    /// New flags, and the mask of the flags to change.
    pub flags: Option<(WqFlags, WqFlags)>,
}

impl WqAttr {
    /// No change.
    #[must_use]
    pub const fn new() -> Self {
        Self { wq_state: None, curr_wq_state: None, flags: None }
    }

    /// Sets [`wq_state`](field@Self::wq_state).
    #[must_use]
    pub const fn wq_state(mut self, state: WqState) -> Self {
        self.wq_state = Some(state);
        self
    }

    /// Sets [`curr_wq_state`](field@Self::curr_wq_state).
    #[must_use]
    pub const fn curr_wq_state(mut self, state: WqState) -> Self {
        self.curr_wq_state = Some(state);
        self
    }

    /// Sets [`flags`](field@Self::flags).
    #[must_use]
    pub const fn flags(mut self, flags: WqFlags, mask: WqFlags) -> Self {
        self.flags = Some((flags, mask));
        self
    }
}

bitflags::bitflags! {
    /// `enum ibv_rx_hash_fields`: the fields of a packet that are hashed.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct RxHashFields: u64 {
        /// IPv4 source.
        const SRC_IPV4 = 1 << 0;
        /// IPv4 destination.
        const DST_IPV4 = 1 << 1;
        /// IPv6 source.
        const SRC_IPV6 = 1 << 2;
        /// IPv6 destination.
        const DST_IPV6 = 1 << 3;
        /// TCP source port.
        const SRC_PORT_TCP = 1 << 4;
        /// TCP destination port.
        const DST_PORT_TCP = 1 << 5;
        /// UDP source port.
        const SRC_PORT_UDP = 1 << 6;
        /// UDP destination port.
        const DST_PORT_UDP = 1 << 7;
        /// IPsec SPI.
        const IPSEC_SPI = 1 << 8;
        /// The headers inside a tunnel.
        const INNER = 1 << 31;
    }
}

/// `struct ibv_rx_hash_conf`, for the Toeplitz function, the only one that is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RxHashConf<'a> {
    /// The function's key; its length depends on the device (40 bytes on mlx5).
    pub key: &'a [u8],
    /// Fields that are hashed.
    pub fields: RxHashFields,
}

impl<'a> RxHashConf<'a> {
    /// The function with this key, over these fields.
    #[must_use]
    pub const fn new(key: &'a [u8], fields: RxHashFields) -> Self {
        Self { key, fields }
    }
}
