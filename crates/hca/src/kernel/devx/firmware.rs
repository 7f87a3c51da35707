// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands of programs: their opcodes, and the objects that they create. Those for queues are in
//! [`queues`](super::queues).

use crate::bytes::be16;
use crate::engine::indirect::{LOG_MAX_LIST, MAX_INDIRECTION};
use crate::engine::mkey::NULL_MKEY;
use crate::engine::{Device, Port};
use crate::kernel::call::Call;
use crate::kernel::object::Object;
use crate::prm::layout::{alloc_pd_out, cmd_hca_cap as cap, query_hca_cap_in, query_special_contexts_out};
use crate::prm::{Status, general};
use uverbs_core::Errno;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::Kind;

/// Bytes of the shortest command and of the shortest answer.
pub(super) const HEADER: usize = 16;
pub(super) const ANSWER: usize = 8;
/// Bytes of an answer with a number.
const NUMBERED: usize = 12;
/// Bytes of a group of capabilities, and the groups (`enum mlx5_cap_type`).
const CAPS: usize = 4096;
const GENERAL: u64 = 0;
const GENERAL_2: u64 = 0x20;

/// `MLX5_CMD_OP_*`
pub(super) mod op {
    pub(in super::super) const QUERY_HCA_CAP: u16 = 0x100;
    pub(in super::super) const QUERY_ADAPTER: u16 = 0x101;
    pub(in super::super) const CREATE_MKEY: u16 = 0x200;
    pub(in super::super) const QUERY_MKEY: u16 = 0x201;
    pub(in super::super) const QUERY_SPECIAL_CONTEXTS: u16 = 0x203;
    pub(in super::super) const CREATE_CQ: u16 = 0x400;
    pub(in super::super) const QUERY_CQ: u16 = 0x402;
    pub(in super::super) const MODIFY_CQ: u16 = 0x403;
    pub(in super::super) const CREATE_QP: u16 = 0x500;
    pub(in super::super) const RST2INIT_QP: u16 = 0x502;
    pub(in super::super) const TO_RST_QP: u16 = 0x50a;
    pub(in super::super) const QUERY_QP: u16 = 0x50b;
    pub(in super::super) const INIT2INIT_QP: u16 = 0x50e;
    pub(in super::super) const CREATE_PSV: u16 = 0x600;
    pub(in super::super) const ALLOC_PD: u16 = 0x800;
    pub(in super::super) const NOP: u16 = 0x80d;
    pub(in super::super) const QUERY_LAG: u16 = 0x842;
}

pub(super) fn opcode(input: &[u8]) -> u16 {
    be16(input, 0)
}

/// The commands without an object, as far as the kernel passes them on and this device knows them
/// (`devx_is_general_cmd()`).
pub(super) fn is_general(input: &[u8]) -> bool {
    matches!(
        opcode(input),
        op::QUERY_HCA_CAP | op::QUERY_ADAPTER | op::QUERY_SPECIAL_CONTEXTS | op::NOP | op::QUERY_LAG
    )
}

/// `devx_is_obj_create_cmd()`
pub(super) fn is_create(input: &[u8]) -> bool {
    matches!(
        opcode(input),
        op::CREATE_MKEY | op::CREATE_CQ | op::CREATE_QP | op::CREATE_PSV | op::ALLOC_PD | general::op::CREATE
    )
}

/// `devx_is_obj_modify_cmd()`
pub(super) fn is_modify(input: &[u8]) -> bool {
    matches!(
        opcode(input),
        op::MODIFY_CQ | op::RST2INIT_QP..=op::TO_RST_QP | op::INIT2INIT_QP | general::op::MODIFY
    )
}

/// `devx_is_obj_query_cmd()`
pub(super) fn is_query(input: &[u8]) -> bool {
    matches!(opcode(input), op::QUERY_MKEY | op::QUERY_CQ | op::QUERY_QP | general::op::QUERY)
}

/// An object that a command created.
#[derive(Debug)]
pub(crate) struct Firmware {
    pub(super) item: Item,
    /// Its context, which queries return.
    pub(super) context: Vec<u8>,
}

/// Its kind and number.
#[derive(Debug)]
pub(super) enum Item {
    Pd { pdn: u32 },
    Cq { cqn: u32 },
    Qp { qpn: u32 },
    Mkey { key: u32 },
    Psv { index: u32 },
    General(general::Object),
}

impl Firmware {
    /// The kind and number in notices, of an object that has events.
    pub(in crate::kernel) fn events(&self) -> Option<(Kind, u32)> {
        match self.item {
            Item::Cq { cqn } => Some((Kind::Cq, cqn)),
            Item::Qp { qpn } => Some((Kind::Qp, qpn)),
            _ => None,
        }
    }

    /// The number of a protection domain.
    pub(in crate::kernel) fn pd(&self) -> Option<u32> {
        match self.item {
            Item::Pd { pdn } => Some(pdn),
            _ => None,
        }
    }

    pub(in crate::kernel) fn is_qp(&self) -> bool {
        matches!(self.item, Item::Qp { .. })
    }

    /// Whether the firmware refuses to destroy it.
    pub(in crate::kernel) fn is_busy(&self, device: &Device, port: &Port<'_>) -> bool {
        match self.item {
            Item::Pd { pdn } => device.uses_pd(pdn),
            Item::Cq { cqn } => device.uses_cq(cqn),
            Item::Qp { qpn } => port.net.is_member(port.me, qpn),
            Item::Mkey { key } => device.mkeys.is_bound(key),
            Item::Psv { .. } | Item::General(_) => false,
        }
    }

    /// Removes it from the device.
    pub(in crate::kernel) fn undo(&self, device: &mut Device) {
        match &self.item {
            Item::Cq { cqn } => device.remove_cq(*cqn),
            Item::Qp { qpn } => device.remove_qp(*qpn),
            Item::Mkey { key } => drop(device.mkeys.remove(*key)),
            Item::Psv { index } => {
                device.mkeys.psvs.remove(*index);
            }
            Item::General(object) => object.destroy(device),
            Item::Pd { .. } => {}
        }
    }

    /// Whether a query or a modification with this opcode names it.
    fn is_named_by(&self, input: &[u8]) -> bool {
        let number = general::OBJ_ID.get32(input) & 0xff_ffff;
        match (&self.item, opcode(input)) {
            (Item::Cq { cqn }, op::QUERY_CQ | op::MODIFY_CQ) => *cqn == number,
            (Item::Qp { qpn }, op::QUERY_QP | op::RST2INIT_QP..=op::TO_RST_QP | op::INIT2INIT_QP) => {
                *qpn == number
            }
            (Item::Mkey { key }, op::QUERY_MKEY) => key >> 8 == number,
            (Item::General(object), general::op::QUERY | general::op::MODIFY) => object.is_named_by(input),
            _ => false,
        }
    }
}

/// Fails with the firmware's status if a command or an answer is shorter.
pub(super) fn lengths(
    input: &[u8],
    output: &[u8],
    (least_in, least_out): (usize, usize),
) -> Result<(), Status> {
    match () {
        () if input.len() < least_in => Err(Status::BAD_INPUT_LEN),
        () if output.len() < least_out => Err(Status::BAD_OUTPUT_LEN),
        () => Ok(()),
    }
}

/// Copies as much of a context as there is room for.
pub(super) fn copy(to: &mut [u8], from: &[u8]) {
    let len = to.len().min(from.len());
    to[..len].copy_from_slice(&from[..len]);
}

impl Call<'_, '_> {
    /// Whether a command names the object with this handle, an object of commands or a queue pair of verbs
    /// (`devx_is_valid_obj_id()`).
    pub(super) fn is_number_of(&mut self, handle: u32, input: &[u8]) -> Result<bool, Errno> {
        Ok(match self.object(handle)? {
            Object::Devx(object) => object.is_named_by(input),
            Object::Qp(qp) => {
                let item = Item::Qp { qpn: qp.qpn };
                Firmware { item, context: Vec::new() }.is_named_by(input)
            }
            Object::Cq { cqn, .. } => {
                let item = Item::Cq { cqn: *cqn };
                opcode(input) == op::QUERY_CQ && Firmware { item, context: Vec::new() }.is_named_by(input)
            }
            _ => return Err(Errno::EINVAL),
        })
    }

    pub(super) fn general_command(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
        match opcode(input) {
            op::NOP => Ok(()),
            op::QUERY_HCA_CAP => self.capabilities(input, output),
            op::QUERY_SPECIAL_CONTEXTS => {
                lengths(input, output, (HEADER, 20))?;
                query_special_contexts_out::NULL_MKEY.set(output, NULL_MKEY);
                query_special_contexts_out::DUMP_FILL_MKEY.set(output, NULL_MKEY);
                Ok(())
            }
            // The device has one port.
            op::QUERY_LAG => Err(Status::BAD_PARAM),
            _ => Err(Status::BAD_OP),
        }
    }

    fn capabilities(&self, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
        let mut caps = vec![0; CAPS];
        // Bit 0 selects the current capabilities instead of the maximum, which are equal here.
        match query_hca_cap_in::OP_MOD.get(input) >> 1 {
            GENERAL => self.general_capabilities(&mut caps),
            GENERAL_2 => {
                general::cap::LOG_RESERVED_QPN_GRANULARITY.set(&mut caps, 1_u32);
                general::cap::DP_ORDERING_FORCE.set(&mut caps, 1_u32);
            }
            _ => return Err(Status::BAD_PARAM),
        }
        copy(output.get_mut(HEADER..).ok_or(Status::BAD_OUTPUT_LEN)?, &caps);
        Ok(())
    }

    fn general_capabilities(&self, caps: &mut [u8]) {
        let config = &self.state.config;
        general::cap::GENERAL_OBJ_TYPES.set(caps, general::TYPES);
        for field in general::cap::DP_ORDERING_OOO_ALL {
            field.set(caps, 1_u32);
        }
        for (field, value) in [
            (general::cap::HCA_CAP_2, 1),
            (general::cap::QPC_EXTENSION, 1),
            (general::cap::RTS2RTS_QP_UDP_SPORT, u32::from(self.device.ethernet)),
            (cap::LOG_MAX_QP_SZ, super::queues::LOG_MAX_QP_SIZE),
            (cap::LOG_MAX_CQ_SZ, super::queues::LOG_MAX_CQ_SIZE),
            (cap::LOG_MAX_QP, 18),
            (cap::LOG_MAX_CQ, 18),
            (cap::LOG_MAX_MKEY, 20),
            (cap::LOG_MAX_KLM_LIST_SIZE, LOG_MAX_LIST),
            (cap::MAX_INDIRECTION, MAX_INDIRECTION),
            (cap::SHO, 1),
            (general::cap::SIGERR_DOMAIN_AND_SIG_TYPE, 1),
            (general::cap::SIG_BLOCK_4048, 1),
            (general::cap::SIG_CRC32C, 1),
            (general::cap::SIG_CRC64_XP10, 1),
            (cap::LOG_MAX_PD, 16),
            (cap::LOG_MAX_UCTX, 8),
            (cap::LOG_MAX_UMEM, 16),
            (cap::DUMP_FILL_MKEY, 1),
            (cap::NUM_PORTS, 1),
            (cap::PORT_TYPE, u32::from(self.device.ethernet)),
            (cap::ROCE, u32::from(self.device.ethernet)),
            (cap::CQE_VERSION, config.cqe_version.into()),
            (cap::ATOMIC, config.atomics.into()),
            (cap::BF, config.blue_flame.into()),
            (cap::LOG_BF_REG_SIZE, 9),
            (cap::NUM_OF_UARS_PER_PAGE, 1),
            (cap::RC, 1),
            (cap::UC, 1),
            (cap::UD, 1),
            (cap::XRC, 1),
            (cap::DCT, 1),
            (cap::CQ_OI, 1),
            (cap::CQ_MODERATION, 1),
            (cap::DEVICE_FREQUENCY_KHZ, 1_000_000),
        ] {
            field.set(caps, value);
        }
    }

    pub(super) fn create_by_command(&mut self, input: &[u8], output: &mut [u8]) -> Result<Firmware, Status> {
        match opcode(input) {
            op::CREATE_CQ => self.create_cq_by_command(input, output),
            op::CREATE_QP => self.create_qp_by_command(input, output),
            op::CREATE_MKEY => self.create_mkey_by_command(input, output),
            op::CREATE_PSV => self.create_psv_by_command(input, output),
            op::ALLOC_PD => {
                lengths(input, output, (HEADER, NUMBERED))?;
                let pdn = self.state.pdns.alloc().ok_or(Status::LIMIT)?;
                alloc_pd_out::PD.set(output, pdn);
                Ok(Firmware { item: Item::Pd { pdn }, context: Vec::new() })
            }
            general::op::CREATE => {
                let object = general::Object::create(self.device, input, output)?;
                Ok(Firmware { item: Item::General(object), context: Vec::new() })
            }
            _ => Err(Status::BAD_OP),
        }
    }

    pub(super) fn query_by_command(
        &mut self,
        handle: u32,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<(), Status> {
        if opcode(input) != general::op::QUERY {
            return self.query_queue(handle, input, output);
        }
        let Ok(Object::Devx(object)) = self.object(handle) else { return Err(Status::BAD_RESOURCE) };
        let Item::General(object) = &object.item else { return Err(Status::BAD_RESOURCE) };
        object.query(output);
        Ok(())
    }

    pub(super) fn modify_by_command(&mut self, handle: u32, input: &[u8]) -> Result<(), Status> {
        match opcode(input) {
            // Neither type of general objects can be modified.
            general::op::MODIFY => Err(Status::BAD_PARAM),
            _ => self.modify_queue(handle, input),
        }
    }
}
