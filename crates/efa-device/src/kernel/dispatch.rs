// SPDX-License-Identifier: MIT OR Apache-2.0
//! The methods of uverbs and efa, and the functions that execute them.

use super::call::Call;
use super::object::Object;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::attr::{core_in, known};
use uverbs_softkernel::commands;
use uverbs_uapi::cmd as abi;
use uverbs_uapi::efa::EFA_IB_METHOD_MR_QUERY;
use uverbs_uapi::ids::{
    UVERBS_METHOD_AH_DESTROY, UVERBS_METHOD_ASYNC_EVENT_ALLOC, UVERBS_METHOD_CQ_CREATE,
    UVERBS_METHOD_CQ_DESTROY, UVERBS_METHOD_GET_CONTEXT, UVERBS_METHOD_INVOKE_WRITE,
    UVERBS_METHOD_MR_DESTROY, UVERBS_METHOD_PD_DESTROY, UVERBS_METHOD_QP_CREATE, UVERBS_METHOD_QP_DESTROY,
    UVERBS_METHOD_QUERY_CONTEXT, UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_METHOD_QUERY_GID_TABLE,
    UVERBS_METHOD_QUERY_MR, UVERBS_METHOD_QUERY_PORT, UVERBS_METHOD_REG_DMABUF_MR, UVERBS_OBJECT_AH,
    UVERBS_OBJECT_ASYNC_EVENT, UVERBS_OBJECT_CQ, UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_MR, UVERBS_OBJECT_PD,
    UVERBS_OBJECT_QP,
};

const EX: u32 = abi::IB_USER_VERBS_CMD_FLAG_EXTENDED;
const EX_QUERY_DEVICE: u32 = abi::IB_USER_VERBS_EX_CMD_QUERY_DEVICE | EX;
const EX_MODIFY_QP: u32 = abi::IB_USER_VERBS_EX_CMD_MODIFY_QP | EX;

/// Whether the method destroys an object. On a context that has ended these methods succeed, because all its objects
/// are destroyed.
fn is_destroy(key: (u16, u16)) -> bool {
    matches!(
        key,
        (UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY)
            | (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY)
            | (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
            | (UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY)
            | (UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY)
    )
}

impl Call<'_, '_> {
    /// Executes a command.
    pub(super) fn run(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let key = (c.object(), c.method());
        if key == (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) {
            return self.get_context(c);
        }
        if self.state.tables.has_ended(self.context) {
            return if is_destroy(key) { Ok(()) } else { Err(Errno::EIO) };
        }
        if !self.state.context(self.context)?.is_open {
            // Without a context, only the probe of a write command is answered; it fails with its own error.
            return if key == (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) {
                self.write_command(c)
            } else {
                Err(Errno::EINVAL)
            };
        }
        match key {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => self.write_command(c),
            // The driver has no such function.
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT) => Err(Errno::EOPNOTSUPP),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT) => self.query_port(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE) => self.query_gid_table(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY) => self.query_gid_entry(c),
            (UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC) => self.alloc_async_event(c),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => self.create_cq(c),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY) => self.destroy_cq(c),
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => self.create_qp(c),
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY) => {
                known(c, &[0, 1])?;
                let reported = self.destroy(c, 0, |o| matches!(o, Object::Qp(_)))?;
                c.answer(1, &reported.asyncs.to_ne_bytes());
                Ok(())
            }
            (UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR) => self.query_mr(c),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR) => self.reg_dmabuf_mr(c),
            (UVERBS_OBJECT_MR, EFA_IB_METHOD_MR_QUERY) => self.query_interconnects(c),
            _ => self.destroy_plain(c, key),
        }
    }

    /// The destroy methods that return no data.
    fn destroy_plain(&mut self, c: &RawCommand<'_, '_>, key: (u16, u16)) -> Result<(), Errno> {
        let is: fn(&Object) -> bool = match key {
            (UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY) => |o| matches!(o, Object::Pd { .. }),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY) => |o| matches!(o, Object::Mr { .. }),
            (UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY) => |o| matches!(o, Object::Ah { .. }),
            _ => return Err(Errno::EPROTONOSUPPORT),
        };
        known(c, &[0])?;
        self.destroy(c, 0, is)?;
        Ok(())
    }

    /// The commands of the legacy write interface, which are called through the ioctl.
    fn write_command(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let is_open = self.state.context(self.context)?.is_open;
        let command = commands::write_command(c, is_open)?;
        match command {
            abi::IB_USER_VERBS_CMD_QUERY_DEVICE => self.query_device(c),
            EX_QUERY_DEVICE => self.query_device_ex(c),
            abi::IB_USER_VERBS_CMD_ALLOC_PD => self.alloc_pd(c),
            abi::IB_USER_VERBS_CMD_REG_MR => self.reg_mr(c),
            abi::IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL => self.create_comp_channel(c),
            abi::IB_USER_VERBS_CMD_MODIFY_QP => {
                let base: abi::ib_uverbs_modify_qp = core_in(c)?;
                self.modify_qp(c, &abi::ib_uverbs_ex_modify_qp { base, ..Default::default() })
            }
            EX_MODIFY_QP => {
                let request: abi::ib_uverbs_ex_modify_qp = core_in(c)?;
                self.modify_qp(c, &request)
            }
            abi::IB_USER_VERBS_CMD_QUERY_QP => self.query_qp(c),
            abi::IB_USER_VERBS_CMD_CREATE_AH => self.create_ah(c),
            // Commands that have an ioctl method are not available here, and those of objects that the driver lacks neither.
            _ => Err(Errno::EOPNOTSUPP),
        }
    }
}
