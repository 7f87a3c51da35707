// SPDX-License-Identifier: MIT OR Apache-2.0
//! General objects: reserved QP numbers, mappings of addresses to queue pairs. No type of them can be modified.

use super::{Call, Status};
use crate::limits::{LOG_MAX_GENERAL, room};
use uverbs_hca::prm::general::Object;

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    room(call.function.general_objects.len(), LOG_MAX_GENERAL)?;
    let object = Object::create(call.device, input, output)?;
    call.function.general_objects.insert(object.name(), object);
    Ok(())
}

/// The object that a command names.
fn find<'a>(call: &'a Call<'_, '_>, input: &[u8]) -> Result<&'a Object, Status> {
    call.function.general_objects.get(&Object::name_in(input)).ok_or(Status::BAD_RESOURCE)
}

pub(super) fn modify(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    find(call, input)?;
    Err(Status::BAD_PARAM)
}

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    find(call, input)?.query(output);
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let object = call.function.general_objects.remove(&Object::name_in(input)).ok_or(Status::BAD_RESOURCE)?;
    object.destroy(call.device);
    Ok(())
}
