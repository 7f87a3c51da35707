// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains, memory regions, memory windows.

use super::call::Call;
use super::object::Object;
use crate::engine::mkey::{Kind, access};
use crate::memory::Memory;
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{RawCommand, page_size};
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{core_in, core_out, handle, known, uhw_out};
use uverbs_softkernel::commands::{self, RegDmabuf};
use uverbs_softkernel::program_memory::{memory_at, memory_of_file, on_demand_at};
use uverbs_uapi::cmd::{
    ib_uverbs_alloc_mw, ib_uverbs_alloc_mw_resp, ib_uverbs_alloc_pd, ib_uverbs_alloc_pd_resp,
    ib_uverbs_reg_mr, ib_uverbs_reg_mr_resp, ib_uverbs_rereg_mr, ib_uverbs_rereg_mr_resp,
};
use uverbs_uapi::ids::UVERBS_ATTR_REG_DMABUF_MR_HANDLE;
use uverbs_uapi::mlx5::cmds::{MLX5_IB_ATTR_QUERY_PD_HANDLE, MLX5_IB_ATTR_QUERY_PD_RESP_PDN};
use uverbs_uapi::mlx5::mlx5_ib_alloc_pd_resp;
use uverbs_uapi::verbs::{
    IB_MR_REREG_ACCESS, IB_MR_REREG_PD, IB_MR_REREG_TRANS, IB_MW_TYPE_1, IB_MW_TYPE_2,
    IB_UVERBS_ACCESS_HUGETLB, IB_UVERBS_ACCESS_ON_DEMAND, IB_UVERBS_ACCESS_OPTIONAL_RANGE,
    IB_UVERBS_ACCESS_ZERO_BASED,
};
use zerocopy::IntoBytes;

/// The offset of an address in its page.
fn in_page(addr: u64) -> u64 {
    addr % u64::from(page_size())
}

/// `ib_check_mr_access()`
pub(super) fn check_access(flags: u32) -> Result<u32, Errno> {
    let plain = flags & !IB_UVERBS_ACCESS_OPTIONAL_RANGE;
    let writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    if plain & writes != 0 && plain & access::LOCAL_WRITE == 0 {
        return Err(Errno::EINVAL);
    }
    let known = 0x1f | IB_UVERBS_ACCESS_ZERO_BASED | IB_UVERBS_ACCESS_ON_DEMAND | IB_UVERBS_ACCESS_HUGETLB;
    if plain & !known != 0 {
        return Err(Errno::EINVAL);
    }
    // An optional right that the device has.
    Ok(plain | flags & access::RELAXED_ORDERING)
}

/// As [`check_access`], for memory that is always present.
pub(super) fn check_present(flags: u32) -> Result<u32, Errno> {
    match check_access(flags)? {
        access if access & IB_UVERBS_ACCESS_ON_DEMAND != 0 => Err(Errno::EOPNOTSUPP),
        access => Ok(access),
    }
}

/// The memory of a region with these rights. All of the address space has the length `u64::MAX` and begins at 0
/// (`mlx5_ib_reg_user_mr()`).
fn region(
    c: &RawCommand<'_, '_>,
    access: u32,
    (start, length): (u64, u64),
) -> Result<Arc<dyn Memory>, Errno> {
    if access & IB_UVERBS_ACCESS_ON_DEMAND == 0 {
        return memory_at(c, start, length);
    }
    let is_implicit = start == 0 && length == u64::MAX;
    if !is_implicit && start.checked_add(length).is_none() {
        return Err(Errno::EINVAL);
    }
    Ok(on_demand_at(c, start, length))
}

impl Call<'_, '_> {
    pub(super) fn alloc_pd(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let _: ib_uverbs_alloc_pd = core_in(c)?;
        let pdn = self.state.pdns.alloc().ok_or(Errno::ENOMEM)?;
        let pd_handle = self.add(Object::Pd { pdn }, &[], 0)?;
        uhw_out(c, mlx5_ib_alloc_pd_resp { pdn }.as_bytes());
        core_out(c, ib_uverbs_alloc_pd_resp { pd_handle, driver_data: [] }.as_bytes())
    }

    /// A new key; `ENOMEM` if there are too many.
    fn new_key(&mut self, pd: u32, access: u32, kind: Kind) -> Result<u32, Errno> {
        self.device.mkeys.add(0, pd, access, kind).ok_or(Errno::ENOMEM)
    }

    pub(super) fn query_pd(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(c, &[MLX5_IB_ATTR_QUERY_PD_HANDLE, MLX5_IB_ATTR_QUERY_PD_RESP_PDN])?;
        let pdn = self.pdn(handle(c, MLX5_IB_ATTR_QUERY_PD_HANDLE)?)?;
        c.answer(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, &pdn.to_ne_bytes());
        Ok(())
    }

    pub(super) fn reg_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_reg_mr = core_in(c)?;
        let pd = self.pdn(request.pd_handle)?;
        let access = check_access(request.access_flags)?;
        if in_page(request.start) != in_page(request.hca_va) {
            return Err(Errno::EINVAL);
        }
        let memory = region(c, access, (request.start, request.length))?;
        let iova = if access & IB_UVERBS_ACCESS_ZERO_BASED != 0 { 0 } else { request.hca_va };
        let key = self.new_key(pd, access, Kind::Region { memory, iova })?;
        let object = Object::Mr { key, iova, len: request.length };
        let mr_handle = self.add(object, &[request.pd_handle], 0)?;
        let resp = ib_uverbs_reg_mr_resp { mr_handle, lkey: key, rkey: key, ..Default::default() };
        core_out(c, resp.as_bytes())
    }

    pub(super) fn reg_dmabuf_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let RegDmabuf { pd_handle, access, offset, len, iova, fd } = RegDmabuf::of(c)?;
        let pd = self.pdn(pd_handle)?;
        let access = check_present(access)?;
        if in_page(offset) != in_page(iova) {
            return Err(Errno::EINVAL);
        }
        let memory = memory_of_file(fd, offset, len)?;
        let key = self.new_key(pd, access, Kind::Region { memory, iova })?;
        RegDmabuf::answer(c, (key, key));
        self.give(c, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, Object::Mr { key, iova, len }, &[pd_handle], 0)
    }

    pub(super) fn rereg_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_rereg_mr = core_in(c)?;
        let flags = request.flags;
        if flags == 0 || flags & !(IB_MR_REREG_TRANS | IB_MR_REREG_PD | IB_MR_REREG_ACCESS) != 0 {
            return Err(Errno::EINVAL);
        }
        if flags & IB_MR_REREG_TRANS != 0
            && (in_page(request.start) != in_page(request.hca_va) || request.length == 0)
        {
            return Err(Errno::EINVAL);
        }
        let Object::Mr { key, mut iova, mut len } = *self.object(request.mr_handle)? else {
            return Err(Errno::ENOENT);
        };
        let old = self.device.mkeys.get(key).ok_or(Errno::EINVAL)?;
        let (mut pd, mut access, mut kind) = (old.pd, old.access, old.kind.clone());
        if !matches!(kind, Kind::Region { .. }) {
            return Err(Errno::EINVAL);
        }
        if flags & IB_MR_REREG_PD != 0 {
            pd = self.pdn(request.pd_handle)?;
        }
        if flags & IB_MR_REREG_ACCESS != 0 {
            let wanted = check_access(request.access_flags)?;
            // Without other memory, the paging of the region stays.
            access = match flags & IB_MR_REREG_TRANS {
                0 => wanted & !IB_UVERBS_ACCESS_ON_DEMAND | access & IB_UVERBS_ACCESS_ON_DEMAND,
                _ => wanted,
            };
        }
        if flags & IB_MR_REREG_TRANS != 0 {
            (iova, len) = (request.hca_va, request.length);
            kind = Kind::Region { memory: region(c, access, (request.start, len))?, iova };
        }
        let key = if flags & IB_MR_REREG_TRANS == 0 {
            // The key stays (`mlx5r_umr_rereg_pd_access()`).
            self.device.mkeys.set_rights(key, pd, access);
            key
        } else {
            // A new key, as the kernel's driver assigns one if the pages do not fit. The old key gives no access any more.
            self.device.mkeys.remove(key);
            self.new_key(pd, access, kind)?
        };
        let context = self.state.tables.context(self.context)?;
        if flags & IB_MR_REREG_PD != 0 {
            let from = context.first_parent(request.mr_handle).ok_or(Errno::EINVAL)?;
            context.change_parent(request.mr_handle, from, request.pd_handle);
        }
        if let Some(entry) = context.objects.get_mut(&request.mr_handle) {
            entry.object = Object::Mr { key, iova, len };
        }
        core_out(c, ib_uverbs_rereg_mr_resp { lkey: key, rkey: key, driver_data: [] }.as_bytes())
    }

    pub(super) fn query_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let handle = commands::queried_mr(c)?;
        let Object::Mr { key, iova, len } = *self.object(handle)? else { return Err(Errno::ENOENT) };
        commands::answer_query_mr(c, (key, key), iova, len);
        Ok(())
    }

    pub(super) fn alloc_mw(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_alloc_mw = core_in(c)?;
        let pd = self.pdn(request.pd_handle)?;
        let two = match request.mw_type {
            IB_MW_TYPE_1 => false,
            IB_MW_TYPE_2 => true,
            _ => return Err(Errno::EINVAL),
        };
        let window = self.device.mkeys.window(two);
        let rkey = self.new_key(pd, 0, window)?;
        let mw_handle = self.add(Object::Mw { key: rkey }, &[request.pd_handle], 0)?;
        core_out(c, ib_uverbs_alloc_mw_resp { mw_handle, rkey, ..Default::default() }.as_bytes())
    }
}
