// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands for flow tables and flow counters.

use super::{Call, Status};
use crate::layout::{
    alloc_flow_counter_out, create_flow_group_in, create_flow_group_out, create_flow_table_in,
    create_flow_table_out, dealloc_flow_counter_in, delete_fte_in, dest_format_struct, destroy_flow_group_in,
    destroy_flow_table_in, flow_context, flow_table_context, modify_flow_table_in, query_flow_counter_in,
    query_flow_counter_out, set_flow_table_root_in, set_fte_in, traffic_counter,
};
use crate::limits::MAX_FLOW_COUNTERS;
use crate::tables::{Destination, Entry, Group, RECEIVE, TRANSMIT, Table, action};

/// Bytes of a destination.
const DESTINATION: usize = 8;
/// Destinations of an entry at most.
const MAX_DESTINATIONS: usize = 256;

/// `MLX5_IFC_FLOW_DESTINATION_TYPE_*`
const TO_TABLE: u64 = 1;
const TO_TIR: u64 = 2;

fn miss(context: &[u8]) -> Option<u32> {
    (flow_table_context::TABLE_MISS_ACTION.get(context) == 1)
        .then(|| flow_table_context::TABLE_MISS_ID.get32(context))
}

pub(super) fn create_table(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let kind = create_flow_table_in::TABLE_TYPE.get(input);
    if !matches!(kind, RECEIVE | TRANSMIT) || !call.function.ethernet {
        return Err(Status::BAD_PARAM);
    }
    let context = create_flow_table_in::FLOW_TABLE_CONTEXT.bytes(input);
    let mut state = call.function.ethernet_objects.tables.state();
    let id = state.add_table(Table::new(kind, miss(context)))?;
    create_flow_table_out::TABLE_ID.set(output, id);
    Ok(())
}

pub(super) fn modify_table(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let mut state = call.function.ethernet_objects.tables.state();
    let id = modify_flow_table_in::TABLE_ID.get32(input);
    let table = state.tables.get_mut(&id).ok_or(Status::BAD_RESOURCE)?;
    table.miss = miss(modify_flow_table_in::FLOW_TABLE_CONTEXT.bytes(input));
    Ok(())
}

pub(super) fn destroy_table(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let mut state = call.function.ethernet_objects.tables.state();
    state.remove_table(destroy_flow_table_in::TABLE_ID.get32(input)).ok_or(Status::BAD_RESOURCE)
}

pub(super) fn set_root(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let mut state = call.function.ethernet_objects.tables.state();
    let id = set_flow_table_root_in::TABLE_ID.get32(input);
    let kind = set_flow_table_root_in::TABLE_TYPE.get(input);
    if state.tables.get(&id).is_none_or(|t| t.kind != kind) {
        return Err(Status::BAD_RESOURCE);
    }
    // Tables for outgoing frames are accepted but not used.
    if kind == RECEIVE {
        state.root = (set_flow_table_root_in::OP_MOD.get(input) == 0).then_some(id);
    }
    Ok(())
}

pub(super) fn create_group(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let mut state = call.function.ethernet_objects.tables.state();
    let table = create_flow_group_in::TABLE_ID.get32(input);
    let (start, end) = (
        create_flow_group_in::START_FLOW_INDEX.get32(input),
        create_flow_group_in::END_FLOW_INDEX.get32(input),
    );
    let enabled = create_flow_group_in::MATCH_CRITERIA_ENABLE.get(input);
    let mut mask = create_flow_group_in::MATCH_CRITERIA.bytes(input).to_vec();
    // A bit for each 64 bytes of criteria.
    for (i, part) in mask.chunks_mut(64).enumerate() {
        if enabled >> i & 1 == 0 {
            part.fill(0);
        }
    }
    let id = state.add_group(table, Group { mask, start, end })?;
    create_flow_group_out::GROUP_ID.set(output, id);
    Ok(())
}

pub(super) fn destroy_group(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let mut state = call.function.ethernet_objects.tables.state();
    // `destroy_flow_group_in` has the table's ID at the same offset as `destroy_flow_table_in`.
    let table = destroy_flow_table_in::TABLE_ID.get32(input);
    state.remove_group(table, destroy_flow_group_in::GROUP_ID.get32(input))
}

pub(super) fn set_entry(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let context = set_fte_in::FLOW_CONTEXT.bytes(input);
    let action = flow_context::ACTION.get32(context);
    let destinations = flow_context::DESTINATION_LIST_SIZE.get(context) as usize;
    let counters = flow_context::FLOW_COUNTER_LIST_SIZE.get(context) as usize;
    if action & !action::KNOWN != 0 || destinations > MAX_DESTINATIONS || counters > MAX_DESTINATIONS {
        return Err(Status::BAD_PARAM);
    }
    let list = flow_context::DESTINATION.rest(set_fte_in::FLOW_CONTEXT.rest(input));
    let mut items = list.chunks_exact(DESTINATION);
    let mut next = || items.next().ok_or(Status::BAD_INPUT_LEN);
    let mut to = Vec::new();
    for _ in 0..destinations {
        let item = next()?;
        let id = dest_format_struct::DESTINATION_ID.get32(item);
        to.push(match dest_format_struct::DESTINATION_TYPE.get(item) {
            TO_TABLE => Destination::Table(id),
            TO_TIR => Destination::Tir(id),
            _ => return Err(Status::BAD_PARAM),
        });
    }
    let mut counted = Vec::new();
    for _ in 0..counters {
        counted.push(uverbs_hca::bytes::be32(next()?, 0));
    }
    if action & action::FORWARD == 0 {
        to.clear();
    }
    let mut state = call.function.ethernet_objects.tables.state();
    let id = set_fte_in::TABLE_ID.get32(input);
    let index = set_fte_in::FLOW_INDEX.get32(input);
    let group = flow_context::GROUP_ID.get32(context);
    // `op_mod` 1 changes an existing entry.
    let is_change = set_fte_in::OP_MOD.get(input) == 1;
    let entry = Entry {
        group,
        value: flow_context::MATCH_VALUE.bytes(context).to_vec(),
        tag: flow_context::FLOW_TAG.get32(context),
        action,
        destinations: to,
        counters: counted,
    };
    state.set_entry(id, index, entry, is_change)
}

pub(super) fn delete_entry(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let mut state = call.function.ethernet_objects.tables.state();
    let (table, index) = (delete_fte_in::TABLE_ID.get32(input), delete_fte_in::FLOW_INDEX.get32(input));
    state.remove_entry(table, index).ok_or(Status::BAD_RESOURCE)
}

pub(super) fn alloc_counter(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let mut state = call.function.ethernet_objects.tables.state();
    if state.counters.len() >= MAX_FLOW_COUNTERS as usize {
        return Err(Status::LIMIT);
    }
    let id = state.number();
    state.counters.insert(id, (0, 0));
    alloc_flow_counter_out::FLOW_COUNTER_ID.set(output, id);
    Ok(())
}

pub(super) fn dealloc_counter(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let mut state = call.function.ethernet_objects.tables.state();
    let id = dealloc_flow_counter_in::FLOW_COUNTER_ID.get32(input);
    state.counters.remove(&id).map(drop).ok_or(Status::BAD_RESOURCE)
}

/// The answer has as many counters as it has room for, from the first one on. Counters that do not exist are 0.
pub(super) fn query_counter(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let state = call.function.ethernet_objects.tables.state();
    let first = query_flow_counter_in::FLOW_COUNTER_ID.get32(input);
    let place = query_flow_counter_out::FLOW_STATISTICS.rest_mut(output);
    for (i, part) in place.chunks_exact_mut(16).enumerate() {
        let id = first.wrapping_add(i as u32);
        if let Some((packets, bytes)) = state.counters.get(&id) {
            traffic_counter::PACKETS.set(part, *packets);
            traffic_counter::OCTETS.set(part, *bytes);
        }
    }
    Ok(())
}
