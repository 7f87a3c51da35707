// SPDX-License-Identifier: MIT OR Apache-2.0
//! The methods of uverbs and efa, and the functions that execute them.

use super::call::Call;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::{Key, commands};
use uverbs_uapi::cmd as abi;
use uverbs_uapi::efa::EFA_IB_METHOD_MR_QUERY;
use uverbs_uapi::ids::{
    UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_QP_CREATE, UVERBS_METHOD_QUERY_CONTEXT,
    UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_METHOD_QUERY_GID_TABLE, UVERBS_METHOD_QUERY_MR,
    UVERBS_METHOD_QUERY_PORT, UVERBS_METHOD_REG_DMABUF_MR, UVERBS_OBJECT_CQ, UVERBS_OBJECT_DEVICE,
    UVERBS_OBJECT_MR, UVERBS_OBJECT_QP,
};

const EX: u32 = abi::IB_USER_VERBS_CMD_FLAG_EXTENDED;
const EX_QUERY_DEVICE: u32 = abi::IB_USER_VERBS_EX_CMD_QUERY_DEVICE | EX;
const EX_MODIFY_QP: u32 = abi::IB_USER_VERBS_EX_CMD_MODIFY_QP | EX;

impl Call<'_, '_> {
    /// Executes a method.
    pub(super) fn dispatch(&mut self, c: &mut RawCommand<'_, '_>, key: Key) -> Result<(), Errno> {
        match key {
            // The driver has no such function.
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT) => Err(Errno::EOPNOTSUPP),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT) => self.query_port(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE) => self.query_gid_table(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY) => self.query_gid_entry(c),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => self.create_cq(c),
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => self.create_qp(c),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR) => self.query_mr(c),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR) => self.reg_dmabuf_mr(c),
            (UVERBS_OBJECT_MR, EFA_IB_METHOD_MR_QUERY) => self.query_interconnects(c),
            _ => Err(Errno::EPROTONOSUPPORT),
        }
    }

    /// The commands of the legacy write interface, which are called through the ioctl.
    pub(super) fn write_command(&mut self, c: &mut RawCommand<'_, '_>, command: u32) -> Result<(), Errno> {
        match command {
            abi::IB_USER_VERBS_CMD_QUERY_DEVICE => self.query_device(c),
            EX_QUERY_DEVICE => self.query_device_ex(c),
            abi::IB_USER_VERBS_CMD_ALLOC_PD => self.alloc_pd(c),
            abi::IB_USER_VERBS_CMD_REG_MR => self.reg_mr(c),
            abi::IB_USER_VERBS_CMD_MODIFY_QP | EX_MODIFY_QP => {
                self.modify_qp(c, &commands::modify_qp(c, command)?)
            }
            abi::IB_USER_VERBS_CMD_QUERY_QP => self.query_qp(c),
            abi::IB_USER_VERBS_CMD_CREATE_AH => self.create_ah(c),
            // Commands that have an ioctl method are not available here, and those of objects that the driver lacks neither.
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}
