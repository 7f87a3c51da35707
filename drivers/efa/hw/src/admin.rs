// SPDX-License-Identifier: MIT OR Apache-2.0
//! Entries of the admin queue, its completion queue, the queue of asynchronous events, and event queues.
//!
//! The kernel's driver owns these queues. An entry is valid if its phase is that of the consumer's round through the ring; the phase of the
//! first round is 1. Facts from `efa_admin_defs.h`, `efa_common_defs.h` and, if named, `efa_verbs.c` of the kernel's
//! `drivers/infiniband/hw/efa`.

use uverbs_uapi::layout::{abi_consts, abi_structs};

abi_consts! {
    /// Status: success.
    pub const EFA_ADMIN_SUCCESS: u8 = 0;
    /// Status: no object is left.
    pub const EFA_ADMIN_RESOURCE_ALLOCATION_FAILURE: u8 = 1;
    /// Status: the opcode is unknown.
    pub const EFA_ADMIN_BAD_OPCODE: u8 = 2;
    /// Status: the device lacks the command.
    pub const EFA_ADMIN_UNSUPPORTED_OPCODE: u8 = 3;
    /// Status: the command is malformed.
    pub const EFA_ADMIN_MALFORMED_REQUEST: u8 = 4;
    /// Status: a value is not allowed; [`AcqCommonDesc::extended_status`] has more.
    pub const EFA_ADMIN_ILLEGAL_PARAMETER: u8 = 5;
    /// Status: other errors.
    pub const EFA_ADMIN_UNKNOWN_ERROR: u8 = 6;
    /// Status: the object is in use.
    pub const EFA_ADMIN_RESOURCE_BUSY: u8 = 7;

    /// [`Eqe::common`]: an armed CQ has a completion.
    pub const EFA_ADMIN_EQE_EVENT_TYPE_COMPLETION: u8 = 0;

    /// [`AqCommonDesc::command_id`]: the number.
    pub const EFA_ADMIN_AQ_COMMON_DESC_COMMAND_ID_MASK: u16 = 0xfff;
    /// [`AqCommonDesc::flags`]: the phase.
    pub const EFA_ADMIN_AQ_COMMON_DESC_PHASE_MASK: u8 = 1;
    /// [`AqCommonDesc::flags`]: the buffer's address is valid.
    pub const EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_MASK: u8 = 1 << 1;
    /// [`AqCommonDesc::flags`]: the buffer's address is that of a list of addresses.
    pub const EFA_ADMIN_AQ_COMMON_DESC_CTRL_DATA_INDIRECT_MASK: u8 = 1 << 2;
    /// [`AcqCommonDesc::command`]: the number.
    pub const EFA_ADMIN_ACQ_COMMON_DESC_COMMAND_ID_MASK: u16 = 0xfff;
    /// [`AcqCommonDesc::flags`]: the phase.
    pub const EFA_ADMIN_ACQ_COMMON_DESC_PHASE_MASK: u8 = 1;
    /// [`AenqCommonDesc::flags`]: the phase.
    pub const EFA_ADMIN_AENQ_COMMON_DESC_PHASE_MASK: u8 = 1;
    /// [`Eqe::common`]: the phase.
    pub const EFA_ADMIN_EQE_PHASE_MASK: u32 = 1;
    /// [`Eqe::common`]: `EFA_ADMIN_EQE_EVENT_TYPE_*`.
    pub const EFA_ADMIN_EQE_EVENT_TYPE_MASK: u32 = 0xff << 1;

    /// Bytes of a chunk of an indirect list of pages: addresses, and a [`CtrlBuffInfo`] of the next chunk at its end. `EFA_CHUNK_SIZE` of
    /// `efa_verbs.c`.
    #[c = ""]
    pub const PBL_CHUNK_BYTES: usize = 4096;
    /// Addresses in a chunk. `EFA_PTRS_PER_CHUNK` of `efa_verbs.c`.
    #[c = ""]
    pub const PBL_ADDRS_PER_CHUNK: usize = 510;
}

abi_structs! {
    /// An address of the machine's memory.
    #[c = "struct efa_common_mem_addr"]
    pub struct MemAddr: 8 {
        /// Low half.
        pub mem_addr_low: u32 = 0,
        /// High half.
        pub mem_addr_high: u32 = 4,
    }

    /// Start of every command.
    #[c = "struct efa_admin_aq_common_desc"]
    pub struct AqCommonDesc: 4 {
        /// Number that the answer carries (11:0).
        pub command_id: u16 = 0,
        /// `EFA_ADMIN_CREATE_QP` and others.
        pub opcode: u8 = 2,
        /// Phase (0), buffer (1), indirect buffer (2).
        pub flags: u8 = 3,
    }

    /// A buffer of a command, or the next chunk of an indirect list.
    #[c = "struct efa_admin_ctrl_buff_info"]
    pub struct CtrlBuffInfo: 12 {
        /// Bytes.
        pub length: u32 = 0,
        /// Where it is.
        pub address: MemAddr = 4,
    }

    /// An entry of the admin queue.
    #[c = "struct efa_admin_aq_entry"]
    pub struct AqEntry: 64 {
        /// The command.
        pub aq_common_descriptor: AqCommonDesc = 0,
        /// Parameters, or a [`CtrlBuffInfo`].
        pub u: [u32; 3] = 4,
        /// Parameters.
        pub inline_data_w4: [u32; 12] = 16,
    }

    /// Start of every answer.
    #[c = "struct efa_admin_acq_common_desc"]
    pub struct AcqCommonDesc: 8 {
        /// Number of the command (11:0).
        pub command: u16 = 0,
        /// [`EFA_ADMIN_SUCCESS`] and others.
        pub status: u8 = 2,
        /// Phase (0).
        pub flags: u8 = 3,
        /// Details of an error.
        pub extended_status: u16 = 4,
        /// Commands before this index are consumed.
        pub sq_head_indx: u16 = 6,
    }

    /// An entry of the admin completion queue.
    #[c = "struct efa_admin_acq_entry"]
    pub struct AcqEntry: 64 {
        /// The outcome.
        pub acq_common_descriptor: AcqCommonDesc = 0,
        /// Results.
        pub response_specific_data: [u32; 14] = 8,
    }

    /// Start of every asynchronous event.
    #[c = "struct efa_admin_aenq_common_desc"]
    pub struct AenqCommonDesc: 16 {
        /// `EFA_ADMIN_KEEP_ALIVE` and others.
        pub group: u16 = 0,
        /// What happened.
        pub syndrome: u16 = 2,
        /// Phase (0).
        pub flags: u8 = 4,
        /// Written as 0.
        pub reserved1: [u8; 3] = 5,
        /// Device clock, low half.
        pub timestamp_low: u32 = 8,
        /// Device clock, high half.
        pub timestamp_high: u32 = 12,
    }

    /// An entry of the queue of asynchronous events.
    #[c = "struct efa_admin_aenq_entry"]
    pub struct AenqEntry: 64 {
        /// The event.
        pub aenq_common_desc: AenqCommonDesc = 0,
        /// Details.
        pub inline_data_w4: [u32; 12] = 16,
    }

    /// The data of a completion event.
    #[c = "struct efa_admin_comp_event"]
    pub struct CompEvent: 8 {
        /// The CQ.
        pub cqn: u16 = 0,
        /// Written as 0.
        pub reserved: u16 = 2,
        /// Written as 0.
        pub reserved2: u32 = 4,
    }

    /// An entry of an event queue.
    #[c = "struct efa_admin_eqe"]
    pub struct Eqe: 16 {
        /// Phase (0), event type (8:1).
        pub common: u32 = 0,
        /// Written as 0.
        pub reserved: u32 = 4,
        /// The data.
        #[c = "u.comp_event"]
        pub comp_event: CompEvent = 8,
    }
}

impl MemAddr {
    /// The two halves of an address.
    #[inline]
    pub const fn new(addr: u64) -> Self {
        Self { mem_addr_low: addr as u32, mem_addr_high: (addr >> 32) as u32 }
    }

    /// The address.
    #[inline]
    pub const fn get(&self) -> u64 {
        (self.mem_addr_high as u64) << 32 | self.mem_addr_low as u64
    }
}

impl AqCommonDesc {
    /// The phase.
    #[inline]
    pub const fn phase(&self) -> bool {
        self.flags & EFA_ADMIN_AQ_COMMON_DESC_PHASE_MASK != 0
    }

    /// The command's number, 12 bits.
    #[inline]
    pub const fn id(&self) -> u16 {
        self.command_id & EFA_ADMIN_AQ_COMMON_DESC_COMMAND_ID_MASK
    }
}

impl Eqe {
    /// A completion event.
    #[inline]
    pub const fn completion(phase: bool, cqn: u16) -> Self {
        let common = phase as u32 | (EFA_ADMIN_EQE_EVENT_TYPE_COMPLETION as u32) << 1;
        Self { common, reserved: 0, comp_event: CompEvent { cqn, reserved: 0, reserved2: 0 } }
    }
}

const _: () = assert!(PBL_ADDRS_PER_CHUNK == (PBL_CHUNK_BYTES - size_of::<CtrlBuffInfo>()) / 8);

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn addresses_and_events_have_these_bytes() {
        let addr = MemAddr::new(0x1122_3344_5566_7788);
        assert_eq!(addr.as_bytes(), [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(addr.get(), 0x1122_3344_5566_7788);
        let event = Eqe::completion(true, 0x0102);
        assert_eq!(event.as_bytes(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        let desc = AqCommonDesc { command_id: 0xf123, opcode: 1, flags: 7 };
        assert_eq!((desc.id(), desc.phase()), (0x123, true));
    }
}
