// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command that is being executed, and its access to the objects of its context.

use super::object::Object;
use super::state::State;
use crate::device::{Device, Port, Refusal};
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::Reported;
use uverbs_softkernel::attr::handle;

/// The errno of a command that the device refuses (`efa_com_comp_status_to_errno()`).
pub(super) fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::NoResources => Errno::ENOMEM,
        Refusal::Unsupported => Errno::EOPNOTSUPP,
        Refusal::Illegal | Refusal::Busy => Errno::EINVAL,
    }
}

/// A command that is being executed, and the state that it uses.
pub(super) struct Call<'w, 'n> {
    pub(super) device: &'w mut Device,
    pub(super) state: &'w mut State,
    pub(super) port: &'w mut Port<'n>,
    pub(super) context: u32,
}

impl Call<'_, '_> {
    /// Destroys the object with the handle in this attribute, if `is` is true for it.
    pub(super) fn destroy(
        &mut self,
        c: &RawCommand<'_, '_>,
        id: u16,
        is: impl Fn(&Object) -> bool,
    ) -> Result<Reported, Errno> {
        let handle = handle(c, id)?;
        self.state.destroy(self.device, self.port, self.context, handle, is)
    }

    /// An object of this context.
    pub(super) fn object(&mut self, handle: u32) -> Result<&Object, Errno> {
        self.state.context(self.context)?.get(handle)
    }

    /// Number of the protection domain with this handle.
    pub(super) fn pd(&mut self, handle: u32) -> Result<u16, Errno> {
        match self.object(handle)? {
            Object::Pd { pd } => Ok(*pd),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Number of the CQ with this handle.
    pub(super) fn cq(&mut self, handle: u32) -> Result<u16, Errno> {
        match self.object(handle)? {
            Object::Cq { cq, .. } => Ok(*cq),
            _ => Err(Errno::ENOENT),
        }
    }

    /// Adds an object, and stores its handle in the command.
    pub(super) fn give(
        &mut self,
        c: &mut RawCommand<'_, '_>,
        id: u16,
        object: Object,
        parents: &[u32],
        user_handle: u64,
    ) -> Result<(), Errno> {
        let handle = self.add(object, parents, user_handle)?;
        c.new_handle(id, handle.into());
        Ok(())
    }

    /// Adds an object that the device has already. If there are too many of its kind, it is removed from the device again.
    pub(super) fn add(&mut self, object: Object, parents: &[u32], user_handle: u64) -> Result<u32, Errno> {
        self.state.tables.add(self.context, object, parents, user_handle).map_err(|(errno, object)| {
            self.state.undo(self.device, self.port, self.context, object);
            errno
        })
    }
}
