// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address handles, and the device's ways to memory.
#![expect(unsafe_code)]
// UNSAFETY: executing a command is unsafe, because its input may contain addresses; the one here contains none.

use super::Efa;
use crate::wqe::Ah;
use uverbs_core::attr::AhAttr;
use uverbs_core::control::{AhHandle, MrHandle, PdHandle, ah};
use uverbs_core::kernel::{Command, Uhw};
use uverbs_core::{Error, Result};
use uverbs_uapi::efa::{
    EFA_IB_ATTR_QUERY_MR_HANDLE, EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY,
    EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID, EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID,
    EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, EFA_IB_METHOD_MR_QUERY, EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID,
    EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID, EFA_QUERY_MR_VALIDITY_RECV_IC_ID, efa_ibv_create_ah_resp,
};
use uverbs_uapi::ids::UVERBS_OBJECT_MR;
use zerocopy::IntoBytes;

/// The interconnects by which the device reaches a region (`efadv_query_mr`); `None` if it does not report one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrInterconnects {
    /// For receives.
    pub recv: Option<u16>,
    /// For reads.
    pub rdma_read: Option<u16>,
    /// For writes that arrive.
    pub rdma_recv: Option<u16>,
}

impl Efa {
    /// Creates an address handle. The device knows a peer by its GID alone.
    pub(super) fn new_ah(pd: &PdHandle, attr: &AhAttr) -> Result<(AhHandle, Ah)> {
        if attr.grh.is_none() {
            return Err(Error::invalid(
                "create_ah",
                "grh",
                "EFA has no LIDs: a peer is addressed by its GID",
            ));
        }
        let mut resp = efa_ibv_create_ah_resp::default();
        let handle = ah::create(pd, attr, Uhw::answer(resp.as_mut_bytes()))?;
        Ok((handle, Ah(resp.efa_address_handle)))
    }

    /// The interconnects by which the device reaches a region.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel does not report them; otherwise its error.
    pub fn query_mr(&self, mr: &MrHandle) -> Result<MrInterconnects> {
        self.query_mr_of(mr.handle())
    }

    /// [`query_mr`](Self::query_mr), by the kernel's handle of a region.
    pub(super) fn query_mr_of(&self, mr: u32) -> Result<MrInterconnects> {
        const VERB: &str = "query_mr";
        let (mut validity, mut recv, mut rdma_read, mut rdma_recv) = (0_u16, 0_u16, 0_u16, 0_u16);
        let mut command = Command::<5>::new(UVERBS_OBJECT_MR, EFA_IB_METHOD_MR_QUERY);
        command
            .handle_in(EFA_IB_ATTR_QUERY_MR_HANDLE, mr)
            .output(EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY, &mut validity)
            .output(EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, &mut recv)
            .output(EFA_IB_ATTR_QUERY_MR_RESP_RDMA_READ_IC_ID, &mut rdma_read)
            .output(EFA_IB_ATTR_QUERY_MR_RESP_RDMA_RECV_IC_ID, &mut rdma_recv);
        // SAFETY: the command names no memory but its outputs, which it borrows.
        let done = unsafe { command.execute(&*self.kernel) };
        drop(command);
        done.map_err(|errno| Error::os(VERB, format!("mr {mr} on device {}", self.kernel.name()), errno))?;
        let valid = |bit, id| (validity & bit != 0).then_some(id);
        Ok(MrInterconnects {
            recv: valid(EFA_QUERY_MR_VALIDITY_RECV_IC_ID, recv),
            rdma_read: valid(EFA_QUERY_MR_VALIDITY_RDMA_READ_IC_ID, rdma_read),
            rdma_recv: valid(EFA_QUERY_MR_VALIDITY_RDMA_RECV_IC_ID, rdma_recv),
        })
    }
}
