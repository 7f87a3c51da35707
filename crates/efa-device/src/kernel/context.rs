// SPDX-License-Identifier: MIT OR Apache-2.0
//! The context.

use super::call::{Call, errno};
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::attr::{uhw, uhw_out};
use uverbs_softkernel::{Call as _, commands};
use uverbs_uapi::efa::{
    EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH, EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
    EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE, efa_ibv_alloc_ucontext_cmd, efa_ibv_alloc_ucontext_resp,
};
use zerocopy::IntoBytes;

/// Completion vectors: event queues.
pub(super) const VECTORS: u32 = 8;

impl Call<'_, '_> {
    pub(super) fn open_context(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        self.new_context(c)?;
        let request: efa_ibv_alloc_ucontext_cmd = uhw(c, 0)?;
        let caps = self.device.caps;
        // A program must know the limit to obey it (`efa_user_comp_handshake()`).
        if caps.max_tx_batch != 0 && request.supported_caps & EFA_ALLOC_UCONTEXT_CMD_SUPP_CAPS_TX_BATCH == 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let uar = self.device.alloc_uar().map_err(errno)?;
        let context = self.state.tables.context(self.context)?;
        (context.is_open, context.data.uar) = (true, Some(uar));
        commands::answer_context(c, VECTORS);
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
        self.state.tables.context(self.context)?.data.uar.ok_or(Errno::EINVAL)
    }
}
