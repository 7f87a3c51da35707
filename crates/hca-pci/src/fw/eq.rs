// SPDX-License-Identifier: MIT OR Apache-2.0
//! Event queues.

use super::{Call, Layout, Status};
use crate::caps::LOG_MAX_EQ_SIZE;
use crate::eq::Eq;
use crate::function::VECTORS;
use crate::layout::{create_eq_in, create_eq_out, destroy_eq_in, eqc, query_eq_out};
use crate::limits::{LOG_MAX_EQ, room};

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let context = create_eq_in::EQ_CONTEXT_ENTRY.bytes(input);
    let (log_size, vector) = (eqc::LOG_EQ_SIZE.get32(context), eqc::INTR.get(context) as u16);
    if log_size > LOG_MAX_EQ_SIZE || vector >= VECTORS {
        return Err(Status::BAD_PARAM);
    }
    if !call.function.uars.has(eqc::UAR_PAGE.get32(context)) {
        return Err(Status::BAD_RESOURCE);
    }
    room(call.function.eqs.len(), LOG_MAX_EQ)?;
    let entries = 1 << log_size;
    let layout = Layout {
        log_page_size: eqc::LOG_PAGE_SIZE.get32(context),
        page_offset: eqc::PAGE_OFFSET.get(context),
        len: Eq::bytes(entries),
    };
    let pages = call.queue(&layout, create_eq_in::PAS.rest(input))?;
    let ring = pages.area(0, layout.len).ok_or(Status::BAD_PARAM)?;
    let mask = create_eq_in::EVENT_BITMASK.bytes(input);
    let events = core::array::from_fn(|i| uverbs_hca::bytes::be64(mask, i * 8));
    let eqn = (0..u8::MAX).find(|n| !call.function.eqs.contains_key(n)).ok_or(Status::LIMIT)?;
    call.function.eqs.insert(eqn, Eq::new(ring, entries, vector, events, context.to_vec()));
    create_eq_out::EQ_NUMBER.set(output, eqn);
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let eqn = destroy_eq_in::EQ_NUMBER.get(input) as u8;
    if call.function.eqs.get(&eqn).ok_or(Status::BAD_RESOURCE)?.cqs > 0 {
        return Err(Status::BUSY);
    }
    call.function.eqs.remove(&eqn);
    Ok(())
}

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let eqn = destroy_eq_in::EQ_NUMBER.get(input) as u8;
    let eq = call.function.eqs.get(&eqn).ok_or(Status::BAD_RESOURCE)?;
    let context = query_eq_out::EQ_CONTEXT_ENTRY.bytes_mut(output);
    let len = context.len().min(eq.context.len());
    context[..len].copy_from_slice(&eq.context[..len]);
    Ok(())
}
