// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context, and its file of asynchronous events.

use super::call::{Call, errno};
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::attr::{known, uhw, uhw_out};
use uverbs_uapi::efa::{
    EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH, EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
    EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE, efa_ibv_alloc_ucontext_cmd, efa_ibv_alloc_ucontext_resp,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
    UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
};
use uverbs_uapi::verbs::IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
use zerocopy::IntoBytes;

/// Completion vectors: event queues.
pub(super) const VECTORS: u32 = 8;

impl Call<'_, '_> {
    pub(super) fn get_context(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
                UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
                UVERBS_ATTR_UHW_IN,
                UVERBS_ATTR_UHW_OUT,
            ],
        )?;
        if self.state.context(self.context)?.is_open {
            return Err(Errno::EINVAL);
        }
        let request: efa_ibv_alloc_ucontext_cmd = uhw(c, 0)?;
        let caps = self.device.caps;
        // A program must know the limit to obey it (`efa_user_comp_handshake()`).
        if caps.max_tx_batch != 0 && request.supported_caps & EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let uar = self.device.alloc_uar().map_err(errno)?;
        let context = self.state.context(self.context)?;
        (context.is_open, context.data.uar) = (true, Some(uar));
        c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &VECTORS.to_ne_bytes());
        let support = IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS;
        c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &support.to_ne_bytes());
        let resp = efa_ibv_alloc_ucontext_resp {
            cmds_supp_udata_mask: EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
            sub_cqs_per_cq: caps.sub_cqs,
            inline_buf_size: caps.inline,
            max_llq_size: caps.max_llq,
            max_tx_batch: caps.max_tx_batch,
            // A device without longer entries has the same value twice (`efa_com_get_device_attr()`).
            inline_buf_size_ex: caps.inline.max(caps.inline_wide),
            ..Default::default()
        };
        uhw_out(c, resp.as_bytes());
        Ok(())
    }

    /// The context's page of doorbells.
    pub(super) fn uar(&mut self) -> Result<u16, Errno> {
        self.state.context(self.context)?.data.uar.ok_or(Errno::EINVAL)
    }

    pub(super) fn alloc_async_event(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(c, &[UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE])?;
        let fd = self.state.context(self.context)?.open_asyncs()?;
        c.new_fd(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, fd);
        Ok(())
    }
}
