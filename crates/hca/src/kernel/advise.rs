// SPDX-License-Identifier: MIT OR Apache-2.0
//! Advice about regions with on-demand paging (`mlx5_ib_advise_mr()`).

use super::call::Call;
use crate::engine::mkey::{Kind, access};
use crate::memory::Memory;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::attr::{flags, handle, known, number32};
use uverbs_uapi::cmd::ib_uverbs_sge;
use uverbs_uapi::ids::{
    UVERBS_ATTR_ADVISE_MR_ADVICE, UVERBS_ATTR_ADVISE_MR_FLAGS, UVERBS_ATTR_ADVISE_MR_PD_HANDLE,
    UVERBS_ATTR_ADVISE_MR_SGE_LIST,
};
use uverbs_uapi::verbs::{
    IB_UVERBS_ACCESS_ON_DEMAND, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH,
    IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE,
    IB_UVERBS_ADVISE_MR_FLAG_FLUSH,
};
use zerocopy::FromBytes;

const PAGE: usize = 4096;

impl Call<'_, '_> {
    /// Faults in the pages of ranges, if that is to be complete when the command returns. Otherwise the first access
    /// does it.
    pub(super) fn advise_mr(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_ADVISE_MR_PD_HANDLE,
                UVERBS_ATTR_ADVISE_MR_ADVICE,
                UVERBS_ATTR_ADVISE_MR_FLAGS,
                UVERBS_ATTR_ADVISE_MR_SGE_LIST,
            ],
        )?;
        let pd = self.pdn(handle(c, UVERBS_ATTR_ADVISE_MR_PD_HANDLE)?)?;
        let advice = number32(c, UVERBS_ATTR_ADVISE_MR_ADVICE)?;
        let flags = flags(c, UVERBS_ATTR_ADVISE_MR_FLAGS)?;
        if flags & !IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0 {
            return Err(Errno::EINVAL);
        }
        let (need, faults) = match advice {
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => (0, true),
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => (access::LOCAL_WRITE, true),
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => (0, false),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        let list = c.input(UVERBS_ATTR_ADVISE_MR_SGE_LIST).unwrap_or_default();
        let (entries, rest) = list.as_chunks::<{ size_of::<ib_uverbs_sge>() }>();
        if entries.is_empty() || !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        for entry in entries {
            let sge = ib_uverbs_sge::read_from_bytes(entry).map_err(|_| Errno::EINVAL)?;
            let mkey = self.device.mkeys.get(sge.lkey).ok_or(Errno::ENOENT)?;
            let Kind::Region { memory, iova } = &mkey.kind else { return Err(Errno::ENOENT) };
            if mkey.access & IB_UVERBS_ACCESS_ON_DEMAND == 0 {
                return Err(Errno::ENOENT);
            }
            if mkey.pd != pd || mkey.access & need != need {
                return Err(Errno::EPERM);
            }
            let offset = sge.addr.checked_sub(*iova).ok_or(Errno::EFAULT)?;
            let end = offset.checked_add(sge.length.into()).ok_or(Errno::EFAULT)?;
            if end > memory.len() {
                return Err(Errno::EFAULT);
            }
            if faults && flags & IB_UVERBS_ADVISE_MR_FLAG_FLUSH != 0 {
                touch(&**memory, offset, end)?;
            }
        }
        Ok(())
    }
}

/// Reads a byte of each page.
fn touch(memory: &dyn Memory, start: u64, end: u64) -> Result<(), Errno> {
    (start..end).step_by(PAGE).try_for_each(|at| memory.read(at, &mut [0])).map_err(|_| Errno::EFAULT)
}
