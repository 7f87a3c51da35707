// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command that is being executed: its dispatch, and its access to the objects of its context.

use crate::attr::{handle, known};
use crate::commands;
use crate::driver::{Driver, Entered};
use crate::handles::Reported;
use crate::object::{Kind, Object};
use crate::script;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_uapi::cmd::IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL;
use uverbs_uapi::ids::{
    UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, UVERBS_ATTR_DESTROY_CQ_HANDLE, UVERBS_ATTR_DESTROY_CQ_RESP,
    UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, UVERBS_ATTR_UHW_IN,
    UVERBS_ATTR_UHW_OUT, UVERBS_METHOD_AH_DESTROY, UVERBS_METHOD_ASYNC_EVENT_ALLOC, UVERBS_METHOD_CQ_DESTROY,
    UVERBS_METHOD_GET_CONTEXT, UVERBS_METHOD_INVOKE_WRITE, UVERBS_METHOD_MR_DESTROY,
    UVERBS_METHOD_PD_DESTROY, UVERBS_METHOD_QP_DESTROY, UVERBS_OBJECT_AH, UVERBS_OBJECT_ASYNC_EVENT,
    UVERBS_OBJECT_CQ, UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_MR, UVERBS_OBJECT_PD, UVERBS_OBJECT_QP,
};

/// An object and a method of it, by their numbers.
pub type Key = (u16, u16);

const GET_CONTEXT: Key = (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT);
const INVOKE_WRITE: Key = (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
const ALLOC_ASYNC_EVENT: Key = (UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC);
const DESTROY_PD: Key = (UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY);
const DESTROY_CQ: Key = (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY);
const DESTROY_QP: Key = (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY);
const DESTROY_MR: Key = (UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY);
const DESTROY_AH: Key = (UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY);

/// A command that is being executed. A driver's type for it has the driver's methods; this trait has what no driver differs in.
pub trait Call<'n>: Sized {
    /// The driver.
    type Driver: Driver;

    /// What the command uses.
    fn entered(&mut self) -> Entered<'_, 'n, Self::Driver>;

    /// Whether a method that [`method`](Self::method) executes destroys an object. On a context that has ended these methods
    /// succeed, because all its objects are destroyed.
    fn is_destroy(key: Key) -> bool;

    /// The name of a method that only this driver has, for scripts.
    fn verb(key: Key) -> Option<&'static str> {
        let _ = key;
        None
    }

    /// The error that a script gives a command instead of its execution.
    ///
    /// # Errors
    /// That of the script.
    fn by_script(&mut self, c: &RawCommand<'_, '_>, key: Key) -> Result<(), Errno> {
        let Entered { state, port, context, .. } = self.entered();
        if !port.net.is_scripted() {
            return Ok(());
        }
        let is_open = state.tables_mut().context(context).is_ok_and(|context| context.is_open);
        let Some(verb) = script::verb(c, key, is_open, Self::verb) else { return Ok(()) };
        match port.net.script_call(port.now, port.me, verb, None) {
            Some(errno) => Err(errno),
            None => Ok(()),
        }
    }

    /// Creates the program's context.
    ///
    /// # Errors
    /// Those of the kernel.
    fn get_context(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno>;

    /// Executes a method that [`run`](Self::run) does not have.
    ///
    /// # Errors
    /// Those of the kernel; `EPROTONOSUPPORT` if there is no such method.
    fn method(&mut self, c: &mut RawCommand<'_, '_>, key: Key) -> Result<(), Errno>;

    /// Executes a command of the legacy write interface, which is called through the ioctl.
    ///
    /// # Errors
    /// Those of the kernel. Commands that have an ioctl method are `EOPNOTSUPP`.
    fn write(&mut self, c: &mut RawCommand<'_, '_>, command: u32) -> Result<(), Errno>;

    /// Executes a command.
    ///
    /// # Errors
    /// Those of the kernel.
    fn run(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let key = (c.object(), c.method());
        // A command takes effect after the accesses to memory that the device has begun.
        let Entered { device, port, .. } = self.entered();
        port.drain(device);
        self.by_script(c, key)?;
        if key == GET_CONTEXT {
            return self.get_context(c);
        }
        let Entered { state, context, .. } = self.entered();
        if state.tables().has_ended(context) {
            let is_destroy = matches!(key, DESTROY_PD | DESTROY_CQ | DESTROY_QP | DESTROY_MR | DESTROY_AH);
            return if is_destroy || Self::is_destroy(key) { Ok(()) } else { Err(Errno::EIO) };
        }
        let is_open = state.tables_mut().context(context)?.is_open;
        match key {
            // Without a context, only the probe of a write command is answered; it fails with its own error.
            INVOKE_WRITE => match commands::write_command(c, is_open)? {
                IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL => {
                    let Entered { state, context, .. } = self.entered();
                    commands::create_comp_channel(c, &mut state.tables_mut().channels, context)
                }
                command => self.write(c, command),
            },
            _ if !is_open => Err(Errno::EINVAL),
            ALLOC_ASYNC_EVENT => {
                known(c, &[UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE])?;
                let Entered { state, context, .. } = self.entered();
                let fd = state.tables_mut().context(context)?.open_asyncs()?;
                c.new_fd(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, fd);
                Ok(())
            }
            DESTROY_CQ => {
                known(c, &[UVERBS_ATTR_DESTROY_CQ_HANDLE, UVERBS_ATTR_DESTROY_CQ_RESP])?;
                let is = |o: &_| Object::number(o).is_some_and(|(kind, _)| kind == Kind::Cq);
                let reported = self.destroy(c, UVERBS_ATTR_DESTROY_CQ_HANDLE, is)?;
                commands::answer_destroy_cq(c, reported);
                Ok(())
            }
            DESTROY_QP => {
                self.destroy_counted(c, |o| Object::number(o).is_some_and(|(kind, _)| kind == Kind::Qp))
            }
            DESTROY_PD => self.destroy_plain(c, |o| o.name() == "pd"),
            DESTROY_MR => self.destroy_plain(c, |o| o.name() == "mr"),
            DESTROY_AH => self.destroy_plain(c, |o| o.name() == "ah"),
            _ => self.method(c, key),
        }
    }

    /// Checks the request of a new context.
    ///
    /// # Errors
    /// There is a context already (`EINVAL`), or an attribute is unknown.
    fn new_context(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
                UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT,
                UVERBS_ATTR_UHW_IN,
                UVERBS_ATTR_UHW_OUT,
            ],
        )?;
        let Entered { state, context, .. } = self.entered();
        if state.tables_mut().context(context)?.is_open { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Destroys the object with this handle, if `is` is true for it.
    ///
    /// # Errors
    /// There is no such object (`ENOENT`), or it is in use (`EBUSY`).
    fn destroy_handle(
        &mut self,
        handle: u32,
        is: impl Fn(&<Self::Driver as Driver>::Object) -> bool,
    ) -> Result<Reported, Errno> {
        let Entered { device, state, port, context } = self.entered();
        state.destroy(device, port, context, handle, is)
    }

    /// Destroys the object with the handle in this attribute, if `is` is true for it.
    ///
    /// # Errors
    /// Those of [`destroy_handle`](Self::destroy_handle), and there is no handle.
    fn destroy(
        &mut self,
        c: &RawCommand<'_, '_>,
        id: u16,
        is: impl Fn(&<Self::Driver as Driver>::Object) -> bool,
    ) -> Result<Reported, Errno> {
        self.destroy_handle(handle(c, id)?, is)
    }

    /// A destroy method that returns no data.
    ///
    /// # Errors
    /// Those of [`destroy`](Self::destroy), and an attribute is unknown.
    fn destroy_plain(
        &mut self,
        c: &RawCommand<'_, '_>,
        is: impl Fn(&<Self::Driver as Driver>::Object) -> bool,
    ) -> Result<(), Errno> {
        known(c, &[0])?;
        self.destroy(c, 0, is).map(drop)
    }

    /// A destroy method that returns the number of asynchronous events.
    ///
    /// # Errors
    /// Those of [`destroy_plain`](Self::destroy_plain).
    fn destroy_counted(
        &mut self,
        c: &mut RawCommand<'_, '_>,
        is: impl Fn(&<Self::Driver as Driver>::Object) -> bool,
    ) -> Result<(), Errno> {
        known(c, &[0, 1])?;
        let reported = self.destroy(c, 0, is)?;
        c.answer(1, &reported.asyncs.to_ne_bytes());
        Ok(())
    }

    /// An object of this context.
    ///
    /// # Errors
    /// There is none (`ENOENT`).
    fn object<'a>(&'a mut self, handle: u32) -> Result<&'a <Self::Driver as Driver>::Object, Errno>
    where
        'n: 'a,
    {
        let Entered { state, context, .. } = self.entered();
        state.tables_mut().context(context)?.get(handle)
    }

    /// What an object of this context has, if it is one of the wanted kind.
    ///
    /// # Errors
    /// There is none of this kind (`ENOENT`).
    fn object_as<T>(
        &mut self,
        handle: u32,
        wanted: impl FnOnce(&<Self::Driver as Driver>::Object) -> Option<T>,
    ) -> Result<T, Errno> {
        wanted(self.object(handle)?).ok_or(Errno::ENOENT)
    }

    /// Adds an object, and stores its handle in the command.
    ///
    /// # Errors
    /// Those of [`add`](Self::add).
    fn give(
        &mut self,
        c: &mut RawCommand<'_, '_>,
        id: u16,
        object: <Self::Driver as Driver>::Object,
        parents: &[u32],
        user_handle: u64,
    ) -> Result<(), Errno> {
        let handle = self.add(object, parents, user_handle)?;
        c.new_handle(id, handle.into());
        Ok(())
    }

    /// Adds an object that the device has already. If there are too many of its kind, it is removed from the device again.
    ///
    /// # Errors
    /// There are too many (`ENOMEM`).
    fn add(
        &mut self,
        object: <Self::Driver as Driver>::Object,
        parents: &[u32],
        user_handle: u64,
    ) -> Result<u32, Errno> {
        let Entered { device, state, port, context } = self.entered();
        state.tables_mut().add(context, object, parents, user_handle).map_err(|(errno, object)| {
            state.undo(device, port, context, object);
            errno
        })
    }
}
