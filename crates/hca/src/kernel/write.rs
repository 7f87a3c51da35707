// SPDX-License-Identifier: MIT OR Apache-2.0
//! The commands of the legacy write interface, which are called through the ioctl.

use super::call::Call;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::commands;
use uverbs_uapi::cmd as abi;

const EX: u32 = abi::IB_USER_VERBS_CMD_FLAG_EXTENDED;
const EX_QUERY_DEVICE: u32 = abi::IB_USER_VERBS_EX_CMD_QUERY_DEVICE | EX;
const EX_MODIFY_QP: u32 = abi::IB_USER_VERBS_EX_CMD_MODIFY_QP | EX;
const EX_MODIFY_CQ: u32 = abi::IB_USER_VERBS_EX_CMD_MODIFY_CQ | EX;
const EX_CREATE_FLOW: u32 = abi::IB_USER_VERBS_EX_CMD_CREATE_FLOW | EX;
const EX_DESTROY_FLOW: u32 = abi::IB_USER_VERBS_EX_CMD_DESTROY_FLOW | EX;
const EX_CREATE_WQ: u32 = abi::IB_USER_VERBS_EX_CMD_CREATE_WQ | EX;
const EX_MODIFY_WQ: u32 = abi::IB_USER_VERBS_EX_CMD_MODIFY_WQ | EX;
const EX_DESTROY_WQ: u32 = abi::IB_USER_VERBS_EX_CMD_DESTROY_WQ | EX;
const EX_CREATE_TABLE: u32 = abi::IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL | EX;
const EX_DESTROY_TABLE: u32 = abi::IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL | EX;

impl Call<'_, '_> {
    pub(super) fn write_command(&mut self, c: &mut RawCommand<'_, '_>, command: u32) -> Result<(), Errno> {
        match command {
            abi::IB_USER_VERBS_CMD_QUERY_DEVICE => self.query_device(c),
            EX_QUERY_DEVICE => self.query_device_ex(c),
            abi::IB_USER_VERBS_CMD_ALLOC_PD => self.alloc_pd(c),
            abi::IB_USER_VERBS_CMD_REG_MR => self.reg_mr(c),
            abi::IB_USER_VERBS_CMD_REREG_MR => self.rereg_mr(c),
            abi::IB_USER_VERBS_CMD_ALLOC_MW => self.alloc_mw(c),
            abi::IB_USER_VERBS_CMD_RESIZE_CQ => self.resize_cq(c),
            EX_MODIFY_CQ => self.modify_cq(c),
            abi::IB_USER_VERBS_CMD_MODIFY_SRQ => self.modify_srq(c),
            abi::IB_USER_VERBS_CMD_QUERY_SRQ => self.query_srq(c),
            abi::IB_USER_VERBS_CMD_MODIFY_QP | EX_MODIFY_QP => {
                self.modify_qp(c, &commands::modify_qp(c, command)?)
            }
            abi::IB_USER_VERBS_CMD_QUERY_QP => self.query_qp(c),
            abi::IB_USER_VERBS_CMD_CREATE_AH => self.create_ah(c),
            abi::IB_USER_VERBS_CMD_ATTACH_MCAST => self.attach_mcast(c),
            abi::IB_USER_VERBS_CMD_DETACH_MCAST => self.detach_mcast(c),
            abi::IB_USER_VERBS_CMD_OPEN_XRCD => self.open_xrcd(c),
            abi::IB_USER_VERBS_CMD_OPEN_QP => self.open_qp(c),
            EX_CREATE_FLOW => self.create_flow(c),
            EX_DESTROY_FLOW => self.destroy_flow(c),
            EX_CREATE_WQ => self.create_wq_ex(c),
            EX_MODIFY_WQ => self.modify_wq(c),
            EX_DESTROY_WQ => self.destroy_wq_ex(c),
            EX_CREATE_TABLE => self.create_table(c),
            EX_DESTROY_TABLE => self.destroy_table(c),
            // Commands that have an ioctl method are not available here.
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}
