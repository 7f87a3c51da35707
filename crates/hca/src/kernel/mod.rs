// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's half: answers the uverbs ioctl ABI as bytes, as `ib_uverbs` and `mlx5_ib` do.
//!
//! One file per kind of object, as in the kernel. Errors are those that the kernel gives for the same: `EPROTONOSUPPORT`
//! for what uverbs does not know, `ENOENT` for a handle that there is not, `EBUSY` for what is in use, `EINVAL` for
//! the rest. Facts from drivers/infiniband/core/uverbs_*.c and drivers/infiniband/hw/mlx5.

mod ah;
mod clock;
mod context;
mod cq;
mod dm;
mod events;
mod flow;
mod lend;
mod memory;
mod modify;
mod qp;
mod query;
mod rss;
mod srq;
mod state;
#[cfg(test)]
mod tests;
mod uar;
mod write;
mod xrc;

use crate::engine::{Device, Port};
use crate::plugged::Plugged;
use core::sync::atomic::{AtomicBool, Ordering};
pub(crate) use state::State;
use state::{Object, Reported};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::kernel::{DoorbellPage, Kernel, Mapping, Protection, RawCommand, WriteCommand};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
    UVERBS_METHOD_ADVISE_MR, UVERBS_METHOD_AH_DESTROY, UVERBS_METHOD_ASYNC_EVENT_ALLOC,
    UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_CQ_DESTROY, UVERBS_METHOD_DM_ALLOC, UVERBS_METHOD_DM_FREE,
    UVERBS_METHOD_DM_MR_REG, UVERBS_METHOD_FLOW_DESTROY, UVERBS_METHOD_GET_CONTEXT,
    UVERBS_METHOD_INFO_HANDLES, UVERBS_METHOD_INVOKE_WRITE, UVERBS_METHOD_MR_DESTROY,
    UVERBS_METHOD_MW_DESTROY, UVERBS_METHOD_PD_DESTROY, UVERBS_METHOD_QP_CREATE, UVERBS_METHOD_QP_DESTROY,
    UVERBS_METHOD_QUERY_CONTEXT, UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_METHOD_QUERY_GID_TABLE,
    UVERBS_METHOD_QUERY_MR, UVERBS_METHOD_QUERY_PORT, UVERBS_METHOD_REG_DMABUF_MR,
    UVERBS_METHOD_RWQ_IND_TBL_DESTROY, UVERBS_METHOD_SRQ_CREATE, UVERBS_METHOD_SRQ_DESTROY,
    UVERBS_METHOD_WQ_CREATE, UVERBS_METHOD_WQ_DESTROY, UVERBS_METHOD_XRCD_DESTROY, UVERBS_OBJECT_AH,
    UVERBS_OBJECT_ASYNC_EVENT, UVERBS_OBJECT_CQ, UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_DM, UVERBS_OBJECT_FLOW,
    UVERBS_OBJECT_MR, UVERBS_OBJECT_MW, UVERBS_OBJECT_PD, UVERBS_OBJECT_QP, UVERBS_OBJECT_RWQ_IND_TBL,
    UVERBS_OBJECT_SRQ, UVERBS_OBJECT_WQ, UVERBS_OBJECT_XRCD,
};
use uverbs_uapi::ioctl::UVERBS_ATTR_F_MANDATORY;
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_METHOD_UAR_OBJ_ALLOC, MLX5_IB_METHOD_UAR_OBJ_DESTROY, MLX5_IB_OBJECT_UAR,
};
use uverbs_uapi::verbs::RDMA_DRIVER_MLX5;
use zerocopy::{FromBytes, IntoBytes};

/// One context of a device: what an open `/dev/infiniband/uverbsN` is.
#[derive(Debug)]
pub(crate) struct HcaKernel {
    plugged: Plugged<State>,
    context: u32,
    name: String,
    is_closed: AtomicBool,
}

/// A command in execution, with the state that it works on.
struct Call<'w, 'n> {
    device: &'w mut Device,
    state: &'w mut State,
    cx: &'w mut Port<'n>,
    context: u32,
}

impl HcaKernel {
    /// A new context of a device.
    pub(crate) fn open(plugged: &Plugged<State>, name: &str) -> Self {
        // A context that does not exist answers each call with an error.
        let context = plugged.enter(|_, state, _| state.open()).unwrap_or_default();
        Self { plugged: plugged.clone(), context, name: name.into(), is_closed: AtomicBool::new(false) }
    }

    /// Ends the context with all its objects, once.
    fn end(&self) {
        if self.plugged.is_here() && !self.is_closed.swap(true, Ordering::Relaxed) {
            let _ = self.call(|call| {
                call.state.close(call.device, call.cx, call.context);
                Ok(())
            });
        }
    }

    fn call<R>(&self, f: impl FnOnce(&mut Call<'_, '_>) -> Result<R, Errno>) -> Result<R, Errno> {
        let context = self.context;
        let result = self.plugged.enter(|device, state, cx| f(&mut Call { device, state, cx, context }));
        result.unwrap_or(Err(Errno::EIO))
    }
}

impl Kernel for HcaKernel {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        if command.driver_id() != RDMA_DRIVER_MLX5 {
            return Err(Errno::EINVAL);
        }
        self.call(|call| call.run(command))
    }

    /// mlx5 posts and arms without the kernel.
    fn write(&self, _: &mut WriteCommand<'_>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn mmap(&self, offset: u64, len: usize, _: Protection) -> Result<Mapping, Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        self.call(|call| call.map(offset, len))
    }

    fn doorbells(&self, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        if !self.is_creator_process() {
            return Err(Errno::ESTALE);
        }
        let page = self.call(|call| call.map_page(offset, len))?;
        let port = uar::Page { plugged: self.plugged.clone(), page };
        Ok(DoorbellPage::Port(Arc::new(port)))
    }

    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        self.call(|call| call.sysfs(path))
    }

    fn driver_id(&self) -> u32 {
        RDMA_DRIVER_MLX5
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_creator_process(&self) -> bool {
        self.plugged.is_here() && !self.is_closed.load(Ordering::Relaxed)
    }

    #[expect(unsafe_code, reason = "the port's contract")]
    unsafe fn close(&self) {
        self.end();
    }
}

impl Drop for HcaKernel {
    fn drop(&mut self) {
        self.end();
    }
}

impl Call<'_, '_> {
    fn run(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let key = (c.object(), c.method());
        if key == (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) {
            return self.get_context(c);
        }
        if !self.state.context(self.context)?.is_open {
            // The one method that works before is the probing of a write command, which fails in its own way.
            return if key == (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) {
                self.write_command(c)
            } else {
                Err(Errno::EINVAL)
            };
        }
        match key {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => self.write_command(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT) => self.query_context(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT) => self.query_port(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_TABLE) => self.query_gid_table(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY) => self.query_gid_entry(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INFO_HANDLES) => self.info_handles(c),
            (UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC) => self.alloc_async_event(c),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => self.create_cq(c),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY) => self.destroy_cq(c),
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => self.create_qp(c),
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY) => {
                self.destroy_counted(c, |o| matches!(o, Object::Qp(_)))
            }
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE) => self.create_srq(c),
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY) => {
                self.destroy_counted(c, |o| matches!(o, Object::Srq { .. }))
            }
            (UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE) => self.create_wq(c),
            (UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_DESTROY) => {
                self.destroy_counted(c, |o| matches!(o, Object::Wq { .. }))
            }
            (UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR) => self.query_mr(c),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR) => self.reg_dmabuf_mr(c),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR) => Err(Errno::EOPNOTSUPP),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_DM_MR_REG) => self.reg_dm_mr(c),
            (UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC) => self.alloc_dm(c),
            (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC) => self.alloc_uar(c),
            (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY) => self.destroy_uar(c),
            _ => self.destroy_plain(c, key),
        }
    }

    /// The destroy methods that answer nothing.
    fn destroy_plain(&mut self, c: &RawCommand<'_, '_>, key: (u16, u16)) -> Result<(), Errno> {
        let is: fn(&Object) -> bool = match key {
            (UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY) => |o| matches!(o, Object::Pd { .. }),
            (UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY) => |o| matches!(o, Object::Mr { .. }),
            (UVERBS_OBJECT_MW, UVERBS_METHOD_MW_DESTROY) => |o| matches!(o, Object::Mw { .. }),
            (UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY) => |o| matches!(o, Object::Ah),
            (UVERBS_OBJECT_XRCD, UVERBS_METHOD_XRCD_DESTROY) => |o| matches!(o, Object::Xrcd { .. }),
            (UVERBS_OBJECT_FLOW, UVERBS_METHOD_FLOW_DESTROY) => |o| matches!(o, Object::Flow { .. }),
            (UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE) => |o| matches!(o, Object::Dm { .. }),
            (UVERBS_OBJECT_RWQ_IND_TBL, UVERBS_METHOD_RWQ_IND_TBL_DESTROY) => {
                |o| matches!(o, Object::Table { .. })
            }
            _ => return Err(Errno::EPROTONOSUPPORT),
        };
        known(c, &[0])?;
        self.destroy(c, 0, is)?;
        Ok(())
    }

    /// The destroy methods that answer the number of asynchronous events.
    fn destroy_counted(
        &mut self,
        c: &mut RawCommand<'_, '_>,
        is: impl Fn(&Object) -> bool,
    ) -> Result<(), Errno> {
        known(c, &[0, 1])?;
        let reported = self.destroy(c, 0, is)?;
        c.answer(1, &reported.asyncs.to_ne_bytes());
        Ok(())
    }

    fn destroy(
        &mut self,
        c: &RawCommand<'_, '_>,
        id: u16,
        is: impl Fn(&Object) -> bool,
    ) -> Result<Reported, Errno> {
        let handle = handle(c, id)?;
        self.state.destroy(self.device, self.cx, self.context, handle, is)
    }

    /// An object of this context.
    fn object(&mut self, handle: u32) -> Result<&Object, Errno> {
        self.state.context(self.context)?.get(handle)
    }

    /// Number of the protection domain with this handle.
    fn pdn(&mut self, handle: u32) -> Result<u32, Errno> {
        match self.object(handle)? {
            Object::Pd { pdn } => Ok(*pdn),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Number of the CQ with this handle.
    fn cqn(&mut self, handle: u32) -> Result<u32, Errno> {
        match self.object(handle)? {
            Object::Cq { cqn, .. } => Ok(*cqn),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Adds an object and leaves its handle in the command.
    fn give(
        &mut self,
        c: &mut RawCommand<'_, '_>,
        id: u16,
        object: Object,
        parents: &[u32],
        user_handle: u64,
    ) -> Result<(), Errno> {
        let handle = self.state.add(self.context, object, parents, user_handle)?;
        c.new_handle(id, handle.into());
        Ok(())
    }
}

/// Refuses attributes that uverbs would not know.
fn known(c: &RawCommand<'_, '_>, ids: &[u16]) -> Result<(), Errno> {
    let unknown = |id: u16| !ids.contains(&id);
    if c.attrs().any(|a| a.flags & UVERBS_ATTR_F_MANDATORY != 0 && unknown(a.id)) {
        return Err(Errno::EPROTONOSUPPORT);
    }
    Ok(())
}

/// The handle of an existing object.
fn handle(c: &RawCommand<'_, '_>, id: u16) -> Result<u32, Errno> {
    c.handle(id).and_then(|h| u32::try_from(h).ok()).ok_or(Errno::EINVAL)
}

/// An optional one.
fn optional_handle(c: &RawCommand<'_, '_>, id: u16) -> Result<Option<u32>, Errno> {
    if c.has(id) { handle(c, id).map(Some) } else { Ok(None) }
}

/// Input of 4 or 8 bytes as a number.
fn number(c: &RawCommand<'_, '_>, id: u16) -> Option<u64> {
    let bytes = c.input(id)?;
    match bytes.len() {
        4 => u32::read_from_bytes(bytes).ok().map(u64::from),
        8 => u64::read_from_bytes(bytes).ok(),
        _ => None,
    }
}

/// A mandatory number of 32 bits.
fn number32(c: &RawCommand<'_, '_>, id: u16) -> Result<u32, Errno> {
    number(c, id).and_then(|n| u32::try_from(n).ok()).ok_or(Errno::EINVAL)
}

/// Optional flags.
fn flags(c: &RawCommand<'_, '_>, id: u16) -> Result<u32, Errno> {
    if c.has(id) { number32(c, id) } else { Ok(0) }
}

/// A struct of which the caller may give less (an older one; the rest is 0) or more (a newer one; it must be 0).
fn extensible<T: FromBytes + IntoBytes + Default>(bytes: Option<&[u8]>, least: usize) -> Result<T, Errno> {
    let bytes = bytes.unwrap_or_default();
    if bytes.len() < least {
        return Err(Errno::EINVAL);
    }
    let mut value = T::default();
    let place = value.as_mut_bytes();
    let n = place.len().min(bytes.len());
    place[..n].copy_from_slice(&bytes[..n]);
    if bytes[n..].iter().any(|b| *b != 0) {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(value)
}

/// The driver-private input.
fn uhw<T: FromBytes + IntoBytes + Default>(c: &RawCommand<'_, '_>, least: usize) -> Result<T, Errno> {
    extensible(c.input(UVERBS_ATTR_UHW_IN), least)
}

/// The request of a write command. uverbs reports a shorter one by `ENOSPC`.
fn core_in<T: FromBytes + IntoBytes + Default>(c: &RawCommand<'_, '_>) -> Result<T, Errno> {
    let bytes = c.input(UVERBS_ATTR_CORE_IN).unwrap_or_default();
    if bytes.len() < size_of::<T>() {
        return Err(Errno::ENOSPC);
    }
    extensible(Some(bytes), 0)
}

/// The answer of a write command.
fn core_out(c: &mut RawCommand<'_, '_>, bytes: &[u8]) -> Result<(), Errno> {
    if c.answer(UVERBS_ATTR_CORE_OUT, bytes) { Ok(()) } else { Err(Errno::ENOSPC) }
}

/// Stores the driver-private answer, if it is requested.
fn uhw_out(c: &mut RawCommand<'_, '_>, bytes: &[u8]) {
    c.answer(UVERBS_ATTR_UHW_OUT, bytes);
}
