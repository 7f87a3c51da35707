// SPDX-License-Identifier: MIT OR Apache-2.0
//! Protection domains and memory regions.

use super::call::{Call, errno};
use super::object::Object;
use crate::caps::Generation;
use crate::device::{Access, Keys};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{RawCommand, page_size};
use uverbs_fabric::memory::Memory;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::attr::{core_in, core_out, handle, known, uhw_out};
use uverbs_softkernel::commands::{self, RegDmabuf};
use uverbs_softkernel::program_memory::{memory_at, memory_of_file};
use uverbs_uapi::cmd::{
    ib_uverbs_alloc_pd, ib_uverbs_alloc_pd_resp, ib_uverbs_reg_mr, ib_uverbs_reg_mr_resp,
};
use uverbs_uapi::efa::{
    EFA_IB_ATTR_QUERY_MR_HANDLE, EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY,
    EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID, EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID,
    EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID,
    EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID, EFA_QUERY_MR_VALIDITY_RECV_IC_ID, efa_ibv_alloc_pd_resp,
};
use uverbs_uapi::ids::UVERBS_ATTR_REG_DMABUF_MR_HANDLE;
use uverbs_uapi::verbs::{
    IB_UVERBS_ACCESS_LOCAL_WRITE, IB_UVERBS_ACCESS_OPTIONAL_RANGE, IB_UVERBS_ACCESS_REMOTE_READ,
    IB_UVERBS_ACCESS_REMOTE_WRITE,
};
use zerocopy::IntoBytes;

/// The offset of an address in its page.
fn in_page(addr: u64) -> u64 {
    addr % u64::from(page_size())
}

impl Call<'_, '_> {
    pub(super) fn alloc_pd(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let _: ib_uverbs_alloc_pd = core_in(c)?;
        let pd = self.device.alloc_pd().map_err(errno)?;
        let pd_handle = self.add(Object::Pd { pd }, &[], 0)?;
        uhw_out(c, efa_ibv_alloc_pd_resp { pdn: pd, ..Default::default() }.as_bytes());
        core_out(c, ib_uverbs_alloc_pd_resp { pd_handle, driver_data: [] }.as_bytes())
    }

    /// The rights of a region: those of `ib_check_mr_access()`, and of them those that the device has (`efa_alloc_mr()`).
    fn access(&self, flags: u32) -> Result<Access, Errno> {
        let has = |flag| flags & flag != 0;
        let access = Access {
            local_write: has(IB_UVERBS_ACCESS_LOCAL_WRITE),
            remote_read: has(IB_UVERBS_ACCESS_REMOTE_READ),
            remote_write: has(IB_UVERBS_ACCESS_REMOTE_WRITE),
        };
        if access.remote_write && !access.local_write {
            return Err(Errno::EINVAL);
        }
        let reads = if self.device.caps.reads() { IB_UVERBS_ACCESS_REMOTE_READ } else { 0 };
        let writes = if self.device.caps.writes() { IB_UVERBS_ACCESS_REMOTE_WRITE } else { 0 };
        let known = IB_UVERBS_ACCESS_LOCAL_WRITE | reads | writes | IB_UVERBS_ACCESS_OPTIONAL_RANGE;
        if flags & !known != 0 { Err(Errno::EOPNOTSUPP) } else { Ok(access) }
    }

    fn region(&mut self, pd: u16, memory: Arc<dyn Memory>, iova: u64, access: Access) -> Result<Keys, Errno> {
        self.device.reg_mr(pd, memory, iova, access).map_err(errno)
    }

    pub(super) fn reg_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let request: ib_uverbs_reg_mr = core_in(c)?;
        let pd = self.pd(request.pd_handle)?;
        let access = self.access(request.access_flags)?;
        if in_page(request.start) != in_page(request.hca_va) {
            return Err(Errno::EINVAL);
        }
        let memory = memory_at(c, request.start, request.length)?;
        let keys = self.region(pd, memory, request.hca_va, access)?;
        let object = Object::Mr { keys, iova: request.hca_va, len: request.length };
        let mr_handle = self.add(object, &[request.pd_handle], 0)?;
        let Keys { lkey, rkey } = keys;
        core_out(c, ib_uverbs_reg_mr_resp { mr_handle, lkey, rkey, ..Default::default() }.as_bytes())
    }

    pub(super) fn reg_dmabuf_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let RegDmabuf { pd_handle, access, offset, len, iova, fd } = RegDmabuf::of(c)?;
        let pd = self.pd(pd_handle)?;
        let access = self.access(access)?;
        if in_page(offset) != in_page(iova) {
            return Err(Errno::EINVAL);
        }
        let memory = memory_of_file(fd, offset, len)?;
        let keys = self.region(pd, memory, iova, access)?;
        RegDmabuf::answer(c, (keys.lkey, keys.rkey));
        self.give(c, UVERBS_ATTR_REG_DMABUF_MR_HANDLE, Object::Mr { keys, iova, len }, &[pd_handle], 0)
    }

    pub(super) fn query_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let handle = commands::queried_mr(c)?;
        let Object::Mr { keys, iova, len } = *self.object(handle)? else { return Err(Errno::ENOENT) };
        commands::answer_query_mr(c, (keys.lkey, keys.rkey), iova, len);
        Ok(())
    }

    /// The interconnects by which the device reaches a region: newer devices know them.
    pub(super) fn query_interconnects(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                EFA_IB_ATTR_QUERY_MR_HANDLE,
                EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY,
                EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID,
                EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID,
                EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID,
            ],
        )?;
        let handle = handle(c, EFA_IB_ATTR_QUERY_MR_HANDLE)?;
        if !matches!(self.object(handle)?, Object::Mr { .. }) {
            return Err(Errno::ENOENT);
        }
        let knows = self.device.caps.pci_device >= crate::Caps::of(Generation::Third).pci_device;
        let all = EFA_QUERY_MR_VALIDITY_RECV_IC_ID
            | EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID
            | EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID;
        let id = |n: u16| if knows { n } else { 0 };
        c.answer(EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY, &id(all).to_ne_bytes());
        c.answer(EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, &id(0).to_ne_bytes());
        c.answer(EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID, &id(1).to_ne_bytes());
        c.answer(EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID, &id(2).to_ne_bytes());
        Ok(())
    }
}
