// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sets of counters of steering rules, as `mlx5_ib` has them (uverbs_std_types_counters.c, counters.c).

use super::call::Call;
use super::object::{Counters, Object};
use crate::engine::flow::Counted;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{flags, handle, known};
use uverbs_softkernel::program_memory::memory_at;
use uverbs_uapi::ids::{
    UVERBS_ATTR_CREATE_COUNTERS_HANDLE, UVERBS_ATTR_READ_COUNTERS_BUFF, UVERBS_ATTR_READ_COUNTERS_FLAGS,
    UVERBS_ATTR_READ_COUNTERS_HANDLE, UVERBS_ATTR_UHW_IN,
};
use uverbs_uapi::mlx5::{mlx5_ib_create_flow, mlx5_ib_flow_counters_data, mlx5_ib_flow_counters_desc};
use uverbs_uapi::verbs::IB_UVERBS_READ_COUNTERS_PREFER_CACHED;
use zerocopy::{FromBytes, IntoBytes};

/// The limit of counters in a set (`MAX_COUNTERS_NUM`).
const MAX_COUNTERS: u32 = u16::MAX as u32 / 8;
/// The quantities that can be counted (`MLX5_IB_COUNTER_PACKETS`, `MLX5_IB_COUNTER_BYTES`).
const BYTES: u32 = 1;

impl Call<'_, '_> {
    pub(super) fn create_counters(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(c, &[UVERBS_ATTR_CREATE_COUNTERS_HANDLE])?;
        let number = self.state.number();
        self.device.steering.counters.insert(number, Counted::default());
        let object = Object::Counters(Counters { number, descs: Vec::new() });
        self.give(c, UVERBS_ATTR_CREATE_COUNTERS_HANDLE, object, &[], 0)
    }

    pub(super) fn read_counters(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_READ_COUNTERS_HANDLE,
                UVERBS_ATTR_READ_COUNTERS_BUFF,
                UVERBS_ATTR_READ_COUNTERS_FLAGS,
            ],
        )?;
        let handle = handle(c, UVERBS_ATTR_READ_COUNTERS_HANDLE)?;
        let entry = self.state.tables.context(self.context)?.objects.get(&handle).ok_or(Errno::ENOENT)?;
        let Object::Counters(counters) = &entry.object else { return Err(Errno::ENOENT) };
        if entry.users == 0
            || flags(c, UVERBS_ATTR_READ_COUNTERS_FLAGS)? & !IB_UVERBS_READ_COUNTERS_PREFER_CACHED != 0
        {
            return Err(Errno::EINVAL);
        }
        let room = c.output(UVERBS_ATTR_READ_COUNTERS_BUFF).map_or(0, |bytes| bytes.len() / 8);
        let counted = self.device.steering.counters.get(&counters.number).copied().unwrap_or_default();
        let mut values = vec![0_u64; room];
        for (what, index) in &counters.descs {
            let value = values.get_mut(*index as usize).ok_or(Errno::EINVAL)?;
            *value += if *what == BYTES { counted.bytes } else { counted.packets };
        }
        c.answer(UVERBS_ATTR_READ_COUNTERS_BUFF, values.as_bytes());
        Ok(())
    }

    /// Assigns a set to a rule that is being created. Returns the set's number in the device.
    pub(super) fn bind_counters(&mut self, c: &RawCommand<'_, '_>, set: u32) -> Result<u32, Errno> {
        let descs = descriptions(c)?;
        let entry = self.state.tables.context(self.context)?.objects.get_mut(&set).ok_or(Errno::ENOENT)?;
        let Object::Counters(counters) = &mut entry.object else { return Err(Errno::ENOENT) };
        // The first rule has the description; later rules must not have one.
        match (descs, entry.users) {
            (Some(descs), 0) => counters.descs = descs,
            (None, 1..) => {}
            _ => return Err(Errno::EINVAL),
        }
        Ok(counters.number)
    }
}

/// The description in the driver's private input; `None` if there is none.
fn descriptions(c: &RawCommand<'_, '_>) -> Result<Option<Vec<(u32, u32)>>, Errno> {
    let bytes = c.input(UVERBS_ATTR_UHW_IN).unwrap_or_default();
    if bytes.is_empty() {
        return Ok(None);
    }
    let (head, rest) = mlx5_ib_create_flow::read_from_prefix(bytes).map_err(|_| Errno::EINVAL)?;
    if head.reserved != 0 || head.ncounters_data > 1 {
        return Err(Errno::EINVAL);
    }
    if head.ncounters_data == 0 {
        return Ok(None);
    }
    let (data, rest) = mlx5_ib_flow_counters_data::read_from_prefix(rest).map_err(|_| Errno::EINVAL)?;
    if rest.iter().any(|byte| *byte != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    if data.reserved != 0 || data.ncounters == 0 || data.ncounters > MAX_COUNTERS {
        return Err(Errno::EINVAL);
    }
    let size = size_of::<mlx5_ib_flow_counters_desc>();
    let mut list = vec![0; data.ncounters as usize * size];
    memory_at(c, data.counters_data, list.len() as u64)?.read(0, &mut list).map_err(|_| Errno::EFAULT)?;
    let mut descs = Vec::new();
    for desc in list.chunks_exact(size) {
        let desc = mlx5_ib_flow_counters_desc::read_from_bytes(desc).map_err(|_| Errno::EINVAL)?;
        if desc.description > BYTES {
            return Err(Errno::EINVAL);
        }
        descs.push((desc.description, desc.index));
    }
    Ok(Some(descs))
}
