// SPDX-License-Identifier: MIT OR Apache-2.0
//! The port: state, addresses, partition keys.

use super::{Call, Status};
use crate::caps::ROCE_ADDRESSES;
use crate::layout::{
    hca_vport_context, modify_nic_vport_context_in, modify_nic_vport_field_select as select,
    nic_vport_context, pkey, query_hca_vport_context_out, query_hca_vport_gid_in, query_hca_vport_gid_out,
    query_hca_vport_pkey_in, query_hca_vport_pkey_out, query_nic_vport_context_in,
    query_nic_vport_context_out, query_vport_state_out, roce_addr_layout, set_roce_address_in,
};
use uverbs_hca::bytes::{array, put};
use uverbs_hca::front::Address;
use uverbs_hca::front::{Notice, event};

/// `IB_PORT_*`, `IB_PORT_PHYS_STATE_*`
const DOWN: u32 = 1;
const ACTIVE: u32 = 4;
const PHYSICAL_POLLING: u32 = 2;
const PHYSICAL_UP: u32 = 5;

/// Entries of the partition table; all except the first one are empty.
const PKEYS: usize = 128;
const DEFAULT_PKEY: u32 = 0xffff;
/// Entries of the GID table of an InfiniBand port.
const GIDS: usize = 8;
/// The index that selects the whole table.
const ALL: usize = 0xffff;
/// The capabilities of the port's agents: `IB_PORT_SYS_IMAGE_GUID_SUP`, `IB_PORT_CM_SUP`, `IB_PORT_CLIENT_REG_SUP`.
const CAPABILITIES: u32 = 1 << 11 | 1 << 16 | 1 << 25;
/// `MLX5_ROCE_VERSION_2`
const ROCE_V2: u64 = 2;

impl Call<'_, '_> {
    fn address(&self) -> Result<&Address, Status> {
        self.port.address().ok_or(Status::BAD_RESOURCE)
    }

    fn address_mut(&mut self) -> Result<&mut Address, Status> {
        self.port.address_mut().ok_or(Status::BAD_RESOURCE)
    }
}

pub(super) fn query_hca(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let address = call.address()?;
    let (up, lid, guid) = (address.up, address.lid, call.function.guid);
    let context = query_hca_vport_context_out::HCA_VPORT_CONTEXT.bytes_mut(output);
    let fields = [
        (hca_vport_context::HAS_SMI, 1),
        (hca_vport_context::PORT_PHYSICAL_STATE, if up { PHYSICAL_UP } else { PHYSICAL_POLLING }),
        (hca_vport_context::PORT_STATE, if up { ACTIVE } else { DOWN }),
        (hca_vport_context::VPORT_STATE, if up { ACTIVE } else { DOWN }),
        (hca_vport_context::CAP_MASK1, CAPABILITIES),
        (hca_vport_context::LID, u32::from(lid)),
        (hca_vport_context::SUBNET_TIMEOUT, 18),
        // There is no subnet manager; the first LID is used for it.
        (hca_vport_context::SM_LID, 1),
    ];
    for (field, value) in fields {
        field.set(context, value);
    }
    for field in
        [hca_vport_context::SYSTEM_IMAGE_GUID, hca_vport_context::PORT_GUID, hca_vport_context::NODE_GUID]
    {
        field.set(context, guid);
    }
    Ok(())
}

pub(super) fn query_gid(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let index = query_hca_vport_gid_in::GID_INDEX.get(input) as usize;
    let indices = match index {
        ALL => 0..GIDS,
        index if index < GIDS => index..index + 1,
        _ => return Err(Status::BAD_PARAM),
    };
    let gids = &call.address()?.gids;
    query_hca_vport_gid_out::GIDS_NUM.set(output, indices.len() as u32);
    let place = query_hca_vport_gid_out::GID.rest_mut(output);
    for (i, index) in indices.enumerate() {
        let gid = gids.get(index).map_or([0; 16], |(gid, _)| *gid);
        put(place, i * 16, &gid);
    }
    Ok(())
}

pub(super) fn query_pkey(_: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let index = query_hca_vport_pkey_in::PKEY_INDEX.get(input) as usize;
    let first = match index {
        ALL => 0,
        index if index < PKEYS => index,
        _ => return Err(Status::BAD_PARAM),
    };
    if first == 0 {
        pkey::PKEY.set(query_hca_vport_pkey_out::PKEY.rest_mut(output), DEFAULT_PKEY);
    }
    Ok(())
}

pub(super) fn query_state(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    query_vport_state_out::ADMIN_STATE.set(output, 1_u32);
    query_vport_state_out::STATE.set(output, u32::from(call.address()?.up));
    Ok(())
}

/// The link state that the driver requests, which is ignored.
#[expect(clippy::unnecessary_wraps, reason = "a handler")]
pub(super) fn modify_state(_: &mut Call<'_, '_>, _: &[u8], _: &mut [u8]) -> Result<(), Status> {
    Ok(())
}

pub(super) fn query_nic(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let mac = call.address()?.mac;
    let guid = call.function.guid;
    let kind = query_nic_vport_context_in::ALLOWED_LIST_TYPE.get32(input);
    let ethernet = &call.function.ethernet_objects;
    let context = query_nic_vport_context_out::NIC_VPORT_CONTEXT.bytes_mut(output);
    nic_vport_context::ROCE_EN.set(context, u32::from(ethernet.roce));
    nic_vport_context::MTU.set(context, ethernet.mtu);
    for field in
        [nic_vport_context::SYSTEM_IMAGE_GUID, nic_vport_context::PORT_GUID, nic_vport_context::NODE_GUID]
    {
        field.set(context, guid);
    }
    nic_vport_context::ALLOWED_LIST_TYPE.set(context, kind);
    // The address is in the lower six of eight bytes.
    put(nic_vport_context::PERMANENT_ADDRESS.bytes_mut(context), 2, &mac);
    Ok(())
}

pub(super) fn modify_nic(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let mask = modify_nic_vport_context_in::FIELD_SELECT.rest(input);
    let context = modify_nic_vport_context_in::NIC_VPORT_CONTEXT.bytes(input);
    if select::ROCE_EN.is_set(mask) {
        call.function.ethernet_objects.roce = nic_vport_context::ROCE_EN.is_set(context);
    }
    if select::MTU.is_set(mask) {
        call.function.ethernet_objects.mtu = nic_vport_context::MTU.get(context) as u16;
    }
    if select::PERMANENT_ADDRESS.is_set(mask) {
        let mac = array(nic_vport_context::PERMANENT_ADDRESS.bytes(context), 2).ok_or(Status::BAD_PARAM)?;
        call.address_mut()?.mac = mac;
    }
    Ok(())
}

pub(super) fn set_roce_address(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let index = set_roce_address_in::ROCE_ADDRESS_INDEX.get(input) as usize;
    if index >= ROCE_ADDRESSES as usize || !call.function.ethernet {
        return Err(Status::BAD_PARAM);
    }
    let address = set_roce_address_in::ROCE_ADDRESS.bytes(input);
    let gid: [u8; 16] =
        array(roce_addr_layout::SOURCE_L3_ADDRESS.bytes(address), 0).ok_or(Status::BAD_INPUT_LEN)?;
    let is_v2 = roce_addr_layout::ROCE_VERSION.get(address) == ROCE_V2;
    let gids = &mut call.address_mut()?.gids;
    if gids.len() <= index {
        gids.resize(index + 1, ([0; 16], false));
    }
    gids[index] = (gid, is_v2);
    Ok(())
}

/// Raises the event for the current state of the link.
pub(super) fn report_link(call: &mut Call<'_, '_>) -> Result<(), Status> {
    let event = if call.address()?.up { event::PORT_ACTIVE } else { event::PORT_ERR };
    call.device.notices.push(Notice::Port { event });
    Ok(())
}
