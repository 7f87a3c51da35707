// SPDX-License-Identifier: MIT OR Apache-2.0
//! The firmware commands, a file for each family.
//!
//! A command that is not in the table fails with `BAD_OP` and is counted. A command that is shorter than its layout
//! fails with an error for its length, so that no handler gets fewer bytes than it reads.

mod access_reg;
mod caps;
mod cq;
mod dct;
mod eq;
mod flow;
mod general;
mod hca;
mod mad;
mod mkey;
mod numbers;
mod qp;
mod raw;
mod srq;
mod umem;
mod vport;

use crate::pages::Pages;
use crate::state::Function;
use std::sync::Arc;
use uverbs_hca::bytes::{be16, put};
use uverbs_hca::front::{Device, Port};
use uverbs_hca::memory::{Area, Memory};

pub(crate) use uverbs_hca::prm::Status;

/// The arguments for the execution of a command.
pub(super) struct Call<'a, 'n> {
    pub(super) device: &'a mut Device,
    pub(super) function: &'a mut Function,
    pub(super) port: &'a mut Port<'n>,
}

type Handler = fn(&mut Call<'_, '_>, &[u8], &mut [u8]) -> Result<(), Status>;

/// A command: its name as in the kernel's headers (`2ERR_QP` is not a valid name in Rust), and the minimum lengths of
/// its input and its answer.
struct Command {
    opcode: u16,
    name: &'static str,
    input: usize,
    output: usize,
    run: Handler,
}

macro_rules! commands {
    ($($opcode:literal $name:ident $input:literal $output:literal $run:path;)*) => {
        &[$(Command { opcode: $opcode, name: stringify!($name), input: $input, output: $output, run: $run }),*]
    };
}

/// `MLX5_CMD_OP_*`, in the order of the numbers.
const COMMANDS: &[Command] = commands! {
    0x100 QUERY_HCA_CAP 16 8 caps::query;
    0x101 QUERY_ADAPTER 16 272 hca::query_adapter;
    0x102 INIT_HCA 16 8 hca::nothing;
    0x103 TEARDOWN_HCA 16 8 hca::teardown;
    0x104 ENABLE_HCA 16 8 hca::nothing;
    0x105 DISABLE_HCA 16 8 hca::teardown;
    0x107 QUERY_PAGES 16 8 hca::query_pages;
    0x108 MANAGE_PAGES 16 8 hca::manage_pages;
    0x109 SET_HCA_CAP 16 8 caps::set;
    0x10a QUERY_ISSI 16 112 hca::query_issi;
    0x10b SET_ISSI 16 8 hca::set_issi;
    0x200 CREATE_MKEY 272 12 mkey::create;
    0x201 QUERY_MKEY 16 80 mkey::query;
    0x202 DESTROY_MKEY 16 8 mkey::destroy;
    0x203 QUERY_SPECIAL_CONTEXTS 16 20 mkey::special_contexts;
    0x301 CREATE_EQ 272 12 eq::create;
    0x302 DESTROY_EQ 16 8 eq::destroy;
    0x303 QUERY_EQ 16 80 eq::query;
    0x400 CREATE_CQ 272 12 cq::create;
    0x401 DESTROY_CQ 16 8 cq::destroy;
    0x402 QUERY_CQ 16 80 cq::query;
    0x403 MODIFY_CQ 272 8 cq::modify;
    0x500 CREATE_QP 272 12 qp::create;
    0x501 DESTROY_QP 16 8 qp::destroy;
    0x502 RST2INIT_QP 256 8 qp::modify;
    0x503 INIT2RTR_QP 256 8 qp::modify;
    0x504 RTR2RTS_QP 256 8 qp::modify;
    0x505 RTS2RTS_QP 256 8 qp::modify;
    0x506 SQERR2RTS_QP 256 8 qp::modify;
    0x507 TO_ERR_QP 16 8 qp::modify;
    0x50a TO_RST_QP 16 8 qp::modify;
    0x50b QUERY_QP 16 256 qp::query;
    0x50d MAD_IFC 272 272 mad::mad_ifc;
    0x50e INIT2INIT_QP 256 8 qp::modify;
    0x700 CREATE_SRQ 272 12 srq::create;
    0x701 DESTROY_SRQ 16 8 srq::destroy;
    0x702 QUERY_SRQ 16 80 srq::query;
    0x703 ARM_RQ 16 8 srq::arm;
    0x705 CREATE_XRC_SRQ 272 12 srq::create_xrc;
    0x706 DESTROY_XRC_SRQ 16 8 srq::destroy;
    0x707 QUERY_XRC_SRQ 16 80 srq::query;
    0x708 ARM_XRC_SRQ 16 8 srq::arm;
    0x710 CREATE_DCT 128 12 dct::create;
    0x711 DESTROY_DCT 16 8 dct::destroy;
    0x712 DRAIN_DCT 16 8 dct::drain;
    0x713 QUERY_DCT 16 128 dct::query;
    0x750 QUERY_VPORT_STATE 16 8 vport::query_state;
    0x751 MODIFY_VPORT_STATE 16 8 vport::modify_state;
    0x754 QUERY_NIC_VPORT_CONTEXT 16 272 vport::query_nic;
    0x755 MODIFY_NIC_VPORT_CONTEXT 512 8 vport::modify_nic;
    0x761 SET_ROCE_ADDRESS 48 8 vport::set_roce_address;
    0x762 QUERY_HCA_VPORT_CONTEXT 16 528 vport::query_hca;
    0x764 QUERY_HCA_VPORT_GID 16 32 vport::query_gid;
    0x765 QUERY_HCA_VPORT_PKEY 16 20 vport::query_pkey;
    0x770 QUERY_VPORT_COUNTER 16 272 hca::zeros;
    0x771 ALLOC_Q_COUNTER 16 12 numbers::alloc_q_counter;
    0x772 DEALLOC_Q_COUNTER 16 8 numbers::dealloc_q_counter;
    0x773 QUERY_Q_COUNTER 32 256 numbers::query_q_counter;
    0x800 ALLOC_PD 16 12 numbers::alloc_pd;
    0x801 DEALLOC_PD 16 8 numbers::dealloc_pd;
    0x802 ALLOC_UAR 16 12 numbers::alloc_uar;
    0x803 DEALLOC_UAR 16 8 numbers::dealloc_uar;
    0x805 ACCESS_REG 16 8 access_reg::access;
    0x806 ATTACH_TO_MCG 32 8 qp::attach;
    0x807 DETACH_FROM_MCG 32 8 qp::detach;
    0x80d NOP 16 8 hca::nothing;
    0x80e ALLOC_XRCD 16 12 numbers::alloc_xrcd;
    0x80f DEALLOC_XRCD 16 8 numbers::dealloc_xrcd;
    0x816 ALLOC_TRANSPORT_DOMAIN 16 12 numbers::alloc_domain;
    0x817 DEALLOC_TRANSPORT_DOMAIN 16 8 numbers::dealloc_domain;
    0x829 SET_L2_TABLE_ENTRY 16 8 hca::nothing;
    0x82b DELETE_L2_TABLE_ENTRY 16 8 hca::nothing;
    0x842 QUERY_LAG 16 16 hca::without_capability;
    0x900 CREATE_TIR 272 12 raw::create_tir;
    0x901 MODIFY_TIR 272 8 raw::modify_tir;
    0x902 DESTROY_TIR 16 8 raw::destroy_tir;
    0x904 CREATE_SQ 272 12 raw::create_sq;
    0x905 MODIFY_SQ 272 8 raw::modify_sq;
    0x906 DESTROY_SQ 16 8 raw::destroy_sq;
    0x907 QUERY_SQ 16 272 raw::query_sq;
    0x908 CREATE_RQ 272 12 raw::create_rq;
    0x909 MODIFY_RQ 272 8 raw::modify_rq;
    0x90a DESTROY_RQ 16 8 raw::destroy_rq;
    0x90b QUERY_RQ 16 272 raw::query_rq;
    0x90c CREATE_RMP 272 12 srq::create_pool;
    0x90d MODIFY_RMP 272 8 srq::modify_pool;
    0x90e DESTROY_RMP 16 8 srq::destroy;
    0x90f QUERY_RMP 16 272 srq::query;
    0x912 CREATE_TIS 192 12 raw::create_tis;
    0x913 MODIFY_TIS 192 8 raw::modify_tis;
    0x914 DESTROY_TIS 16 8 raw::destroy_tis;
    0x916 CREATE_RQT 272 12 raw::create_rqt;
    0x917 MODIFY_RQT 272 8 raw::modify_rqt;
    0x918 DESTROY_RQT 16 8 raw::destroy_rqt;
    0x92f SET_FLOW_TABLE_ROOT 64 8 flow::set_root;
    0x930 CREATE_FLOW_TABLE 64 12 flow::create_table;
    0x931 DESTROY_FLOW_TABLE 64 8 flow::destroy_table;
    0x933 CREATE_FLOW_GROUP 1024 12 flow::create_group;
    0x934 DESTROY_FLOW_GROUP 64 8 flow::destroy_group;
    0x936 SET_FLOW_TABLE_ENTRY 832 8 flow::set_entry;
    0x938 DELETE_FLOW_TABLE_ENTRY 64 8 flow::delete_entry;
    0x939 ALLOC_FLOW_COUNTER 16 12 flow::alloc_counter;
    0x93a DEALLOC_FLOW_COUNTER 16 8 flow::dealloc_counter;
    0x93b QUERY_FLOW_COUNTER 32 16 flow::query_counter;
    0x93c MODIFY_FLOW_TABLE 64 8 flow::modify_table;
    0xa00 CREATE_GENERAL_OBJECT 16 16 general::create;
    0xa01 MODIFY_GENERAL_OBJECT 16 8 general::modify;
    0xa02 QUERY_GENERAL_OBJECT 16 16 general::query;
    0xa03 DESTROY_GENERAL_OBJECT 16 8 general::destroy;
    0xa04 CREATE_UCTX 16 12 umem::create_uctx;
    0xa06 DESTROY_UCTX 16 8 umem::destroy_uctx;
    0xa08 CREATE_UMEM 48 12 umem::create;
    0xa0a DESTROY_UMEM 16 8 umem::destroy;
};

/// Names of commands that Linux has and this device does not.
const NAMES: &[(u16, &str)] = &[
    (0x10d, "SET_DRIVER_VERSION"),
    (0x205, "ALLOC_MEMIC"),
    (0x304, "GEN_EQE"),
    (0x50c, "SQD_RTS_QP"),
    (0x600, "CREATE_PSV"),
    (0x717, "CREATE_XRQ"),
    (0x740, "QUERY_ESW_FUNCTIONS"),
    (0x752, "QUERY_ESW_VPORT_CONTEXT"),
    (0x753, "MODIFY_ESW_VPORT_CONTEXT"),
    (0x760, "QUERY_ROCE_ADDRESS"),
    (0x763, "MODIFY_HCA_VPORT_CONTEXT"),
    (0x76f, "QUERY_VNIC_ENV"),
    (0x774, "SET_MONITOR_COUNTER"),
    (0x780, "SET_PP_RATE_LIMIT"),
    (0x80a, "GET_DROPPED_PACKET_LOG"),
    (0x822, "QUERY_CONG_STATUS"),
    (0x823, "MODIFY_CONG_STATUS"),
    (0x824, "QUERY_CONG_PARAMS"),
    (0x825, "MODIFY_CONG_PARAMS"),
    (0x826, "QUERY_CONG_STATISTICS"),
    (0x827, "ADD_VXLAN_UDP_DPORT"),
    (0x830, "SET_WOL_ROL"),
    (0x831, "QUERY_WOL_ROL"),
    (0x840, "CREATE_LAG"),
];

/// The name of a command.
pub(crate) fn name(opcode: u16) -> Option<&'static str> {
    let known = COMMANDS.iter().find(|c| c.opcode == opcode).map(|c| c.name);
    known.or_else(|| NAMES.iter().find(|(op, _)| *op == opcode).map(|(_, name)| *name))
}

/// Every command that there is.
#[cfg(test)]
pub(crate) fn opcodes() -> Vec<u16> {
    COMMANDS.iter().map(|c| c.opcode).collect()
}

/// Executes a command; the answer's first bytes are its status.
pub(crate) fn execute(
    device: &mut Device,
    function: &mut Function,
    port: &mut Port<'_>,
    input: &[u8],
    output: &mut [u8],
) {
    // A command takes effect after the accesses to memory that the device has begun.
    port.drain(device);
    let opcode = be16(input, 0);
    let shown = name(opcode).unwrap_or("a command without a name");
    let result = match COMMANDS.iter().find(|c| c.opcode == opcode) {
        None => {
            *function.unknown.entry(opcode).or_default() += 1;
            log::warn!("{}: {shown} ({opcode:#x}) is not implemented", function.name);
            Err(Status::BAD_OP)
        }
        Some(command) if input.len() < command.input => Err(Status::BAD_INPUT_LEN),
        Some(command) if output.len() < command.output => Err(Status::BAD_OUTPUT_LEN),
        Some(command) => (command.run)(&mut Call { device, function, port }, input, output),
    };
    log::debug!("{}: {shown} ({opcode:#x}), {} bytes: {result:?}", function.name, input.len());
    if result.is_err() {
        log::trace!("{}: its input: {input:02x?}", function.name);
    }
    if let Err(status) = result {
        if status != Status::BAD_OP {
            log::warn!("{}: {shown} ({opcode:#x}) fails: {status:x?}", function.name);
        }
        output.fill(0);
        put(output, 0, &[status.0]);
    }
}

/// The layout of a queue in its page list.
struct Layout {
    /// Bytes of a page, as a power of two above 4096.
    log_page_size: u32,
    /// Offset of the queue in the first page, in 64ths of a page.
    page_offset: u64,
    /// Bytes of the queue.
    len: u64,
}

impl Call<'_, '_> {
    fn guest(&self) -> &Arc<uverbs_vfio::Guest> {
        &self.function.vm.memory
    }

    /// The memory of a queue, by the list at the end of a command.
    fn queue(&self, layout: &Layout, list: &[u8]) -> Result<Arc<Pages>, Status> {
        let shift = 12 + layout.log_page_size;
        if shift > 40 {
            return Err(Status::BAD_PARAM);
        }
        let skip = layout.page_offset * (1 << shift) / 64;
        let end = skip.checked_add(layout.len).ok_or(Status::BAD_PARAM)?;
        let list = Pages::list(list, end.div_ceil(1 << shift)).ok_or(Status::BAD_INPUT_LEN)?;
        let pages = Pages::new(self.guest(), list, shift, skip, layout.len)?;
        Ok(Arc::new(pages))
    }

    /// A doorbell record of 8 bytes.
    fn record(&self, addr: u64) -> Result<Area, Status> {
        if !addr.is_multiple_of(8) {
            return Err(Status::BAD_PARAM);
        }
        Area::new(Arc::clone(self.guest()) as Arc<dyn Memory>, addr, 8).ok_or(Status::BAD_PARAM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn firmware_commands_are_sorted_and_in_one_table_only() {
        assert!(COMMANDS.windows(2).all(|w| w[0].opcode < w[1].opcode));
        assert!(NAMES.iter().all(|(op, _)| COMMANDS.iter().all(|c| c.opcode != *op)));
    }
}
