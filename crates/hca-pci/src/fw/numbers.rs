// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects that consist only of a number: protection, XRC and transport domains, doorbell pages, sets of counters.

use super::{Call, Status};
use crate::layout::{
    alloc_pd_out, alloc_q_counter_out, alloc_transport_domain_out, alloc_uar_out, alloc_xrcd_out,
    dealloc_pd_in, dealloc_q_counter_in, dealloc_transport_domain_in, dealloc_uar_in, dealloc_xrcd_in,
    query_q_counter_in, query_q_counter_out,
};

pub(super) fn alloc_pd(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let pd = call.function.pds.alloc().ok_or(Status::LIMIT)?;
    alloc_pd_out::PD.set(output, pd);
    Ok(())
}

pub(super) fn dealloc_pd(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let pd = dealloc_pd_in::PD.get32(input);
    if call.device.uses_pd(pd) {
        return Err(Status::BUSY);
    }
    if call.function.pds.free(pd) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

pub(super) fn alloc_uar(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let uar = call.function.uars.alloc().ok_or(Status::LIMIT)?;
    alloc_uar_out::UAR.set(output, uar);
    Ok(())
}

pub(super) fn dealloc_uar(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let uar = dealloc_uar_in::UAR.get32(input);
    if call.function.uars.free(uar) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

pub(super) fn alloc_xrcd(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let xrcd = call.function.xrcds.alloc().ok_or(Status::LIMIT)?;
    alloc_xrcd_out::XRCD.set(output, xrcd);
    Ok(())
}

pub(super) fn dealloc_xrcd(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let xrcd = dealloc_xrcd_in::XRCD.get32(input);
    if call.function.xrcds.free(xrcd) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

pub(super) fn alloc_domain(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let domain = call.function.domains.alloc().ok_or(Status::LIMIT)?;
    alloc_transport_domain_out::TRANSPORT_DOMAIN.set(output, domain);
    Ok(())
}

pub(super) fn dealloc_domain(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let domain = dealloc_transport_domain_in::TRANSPORT_DOMAIN.get32(input);
    if call.function.domains.free(domain) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

pub(super) fn alloc_q_counter(call: &mut Call<'_, '_>, _: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let set = call.function.counters.alloc().ok_or(Status::LIMIT)?;
    alloc_q_counter_out::COUNTER_SET_ID.set(output, set);
    Ok(())
}

pub(super) fn dealloc_q_counter(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let set = dealloc_q_counter_in::COUNTER_SET_ID.get32(input);
    if call.function.counters.free(set) { Ok(()) } else { Err(Status::BAD_RESOURCE) }
}

/// Retransmissions are counted for the device, not for a counter set.
pub(super) fn query_q_counter(
    call: &mut Call<'_, '_>,
    input: &[u8],
    output: &mut [u8],
) -> Result<(), Status> {
    if !call.function.counters.has(query_q_counter_in::COUNTER_SET_ID.get32(input)) {
        return Err(Status::BAD_RESOURCE);
    }
    query_q_counter_out::PACKET_SEQ_ERR.set(output, call.device.repairs as u32);
    Ok(())
}
