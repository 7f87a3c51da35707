// SPDX-License-Identifier: MIT OR Apache-2.0
//! General objects: reserved QP numbers, mappings of addresses to queue pairs. No type of them can be modified.

use super::{Call, Status};
use uverbs_hca::prm::general::Object;

pub(super) fn create(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    call.function.general_objects.push(Object::create(call.device, input, output)?);
    Ok(())
}

/// The position of the object that a command names.
fn find(call: &Call<'_, '_>, input: &[u8]) -> Result<usize, Status> {
    let objects = &call.function.general_objects;
    objects.iter().position(|object| object.is_named_by(input)).ok_or(Status::BAD_RESOURCE)
}

pub(super) fn modify(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    find(call, input)?;
    Err(Status::BAD_PARAM)
}

pub(super) fn query(call: &mut Call<'_, '_>, input: &[u8], output: &mut [u8]) -> Result<(), Status> {
    let index = find(call, input)?;
    call.function.general_objects[index].query(output);
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, input: &[u8], _: &mut [u8]) -> Result<(), Status> {
    let index = find(call, input)?;
    call.function.general_objects.swap_remove(index).destroy(call.device);
    Ok(())
}
