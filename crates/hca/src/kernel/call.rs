// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command that is being executed.

use super::object::Object;
use super::state::State;
use super::{devx, dispatch};
use crate::engine::{Device, Port};
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::{Call as _, Entered, Key};

/// A command that is being executed, and the state that it uses.
pub(super) struct Call<'w, 'n> {
    pub(super) device: &'w mut Device,
    pub(super) state: &'w mut State,
    pub(super) port: &'w mut Port<'n>,
    pub(super) context: u32,
}

impl<'w, 'n> Call<'w, 'n> {
    pub(super) fn new(entered: Entered<'w, 'n, State>) -> Self {
        let Entered { device, state, port, context } = entered;
        Self { device, state, port, context }
    }
}

impl<'n> uverbs_softkernel::Call<'n> for Call<'_, 'n> {
    type Driver = State;

    fn entered(&mut self) -> Entered<'_, 'n, State> {
        let Self { device, state, port, context } = self;
        Entered { device, state, port, context: *context }
    }

    fn is_destroy(key: Key) -> bool {
        dispatch::is_destroy(key) || devx::is_destroy(key)
    }

    fn verb(key: Key) -> Option<&'static str> {
        dispatch::verb(key)
    }

    fn get_context(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        self.open_context(c)
    }

    fn method(&mut self, c: &mut RawCommand<'_, '_>, key: Key) -> Result<(), Errno> {
        self.dispatch(c, key)
    }

    fn write(&mut self, c: &mut RawCommand<'_, '_>, command: u32) -> Result<(), Errno> {
        self.write_command(c, command)
    }
}

impl Call<'_, '_> {
    /// Number of the protection domain with this handle.
    pub(super) fn pdn(&mut self, handle: u32) -> Result<u32, Errno> {
        self.object_as(handle, |object| match object {
            Object::Pd { pdn } => Some(*pdn),
            _ => None,
        })
    }

    /// Number of the CQ with this handle.
    pub(super) fn cqn(&mut self, handle: u32) -> Result<u32, Errno> {
        self.object_as(handle, |object| match object {
            Object::Cq { cqn, .. } => Some(*cqn),
            _ => None,
        })
    }
}
