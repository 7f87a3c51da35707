// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues.

use super::bells::CQ_BELL;
use super::call::{Call, errno};
use super::context::VECTORS;
use super::maps::{Bells, Mapped, Pages};
use super::object::Object;
use crate::caps::Caps;
use crate::device::CqParams;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_efa_hw::io::{RxCdesc, RxCdescEx};
use uverbs_softkernel::Call as _;
use uverbs_softkernel::Driver as _;
use uverbs_softkernel::attr::{uhw, uhw_out};
use uverbs_softkernel::commands::{self, CreateCq};
use uverbs_uapi::efa::{
    EFA_CREATE_CQ_RESP_DB_OFF, EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL, EFA_CREATE_CQ_WITH_SGID,
    efa_ibv_create_cq, efa_ibv_create_cq_resp,
};
use uverbs_uapi::ids::{UVERBS_ATTR_CREATE_CQ_HANDLE, UVERBS_ATTR_CREATE_CQ_RESP_CQE};
use zerocopy::IntoBytes;

impl Call<'_, '_> {
    pub(super) fn create_cq(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let CreateCq { cqe: depth, user_handle, flags } = CreateCq::of(c, &[], VECTORS)?;
        if flags != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        if depth == 0 || depth > Caps::MAX_CQE {
            return Err(Errno::EINVAL);
        }
        let channel = commands::channel_of_cq(c, &mut self.state.tables.channels)?;
        // Up to `num_sub_cqs` the request must be there. Unknown bytes are EINVAL here, as in the driver.
        let private: efa_ibv_create_cq = uhw(c, 10).map_err(|_| Errno::EINVAL)?;
        if private.comp_mask != 0 || private.reserved_58 != [0; 5] {
            return Err(Errno::EINVAL);
        }
        let source_gid = private.flags & EFA_CREATE_CQ_WITH_SGID != 0;
        let entry = match private.cq_entry_size as usize {
            size if size == size_of::<RxCdescEx>() => size as u8,
            size if size == size_of::<RxCdesc>() && !source_gid => size as u8,
            _ => return Err(Errno::EINVAL),
        };
        if private.num_sub_cqs != self.device.caps.sub_cqs {
            return Err(Errno::EINVAL);
        }
        let uar = self.uar()?;
        let events = private.flags & EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL != 0;
        let size = depth as usize * usize::from(entry) * usize::from(private.num_sub_cqs);
        let pages = Pages::new(size);
        let ring = pages.area(size as u64).ok_or(Errno::ENOMEM)?;
        let params = CqParams { ring, depth, entry, sub_cqs: private.num_sub_cqs, events, source_gid, uar };
        let cq = self.device.create_cq(params).map_err(errno)?;
        let data = &mut self.state.tables.context(self.context)?.data;
        let q_mmap_size = pages.len() as u64;
        let q_mmap_key = data.maps.add(Mapped::Ring(pages));
        let db_mmap_key =
            if events { data.maps.add(Mapped::Bells(Bells::Cq(cq))).map(Some) } else { Ok(None) };
        let maps = [q_mmap_key.ok(), db_mmap_key.ok().flatten()].into_iter().flatten().collect();
        let object = Object::Cq { cq, channel, maps };
        let (Ok(q_mmap_key), Ok(db_mmap_key)) = (q_mmap_key, db_mmap_key) else {
            self.state.undo(self.device, self.port, self.context, object);
            return Err(Errno::ENOMEM);
        };
        let resp = efa_ibv_create_cq_resp {
            comp_mask: if events { EFA_CREATE_CQ_RESP_DB_OFF } else { 0 },
            q_mmap_key,
            q_mmap_size,
            cq_idx: cq,
            db_off: if events { CQ_BELL } else { 0 },
            db_mmap_key: db_mmap_key.unwrap_or(0),
            ..Default::default()
        };
        c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &depth.to_ne_bytes());
        uhw_out(c, resp.as_bytes());
        self.give(c, UVERBS_ATTR_CREATE_CQ_HANDLE, object, &[], user_handle)
    }
}
