// SPDX-License-Identifier: MIT OR Apache-2.0
//! DEVX: commands that programs send to the firmware, as `drivers/infiniband/hw/mlx5/devx.c` passes them on.
//!
//! | module | contents |
//! |---|---|
//! | `firmware` | the commands: their opcodes, and the objects that they create |
//! | `queues` | commands for completion queues, queue pairs and keys |
//! | `umem` | memory of the program that commands name |
//! | `events` | files with events, and with the answers of asynchronous queries |
//!
//! The kernel refuses commands that it does not know as such of its method, and those whose number is not that of the
//! object (`EINVAL`). If the firmware refuses one, the errno is `EREMOTEIO`, and the answer has the status.

mod events;
mod firmware;
mod queues;
mod umem;

pub(super) use events::Channels;
pub(super) use firmware::Firmware;
pub(super) use umem::Umem;

use super::call::Call;
use super::limits::VECTORS;
use super::object::Object;
use crate::prm::Status;
use uverbs_core::Errno;
use uverbs_core::kernel::RawCommand;
use uverbs_softkernel::Call as _;
use uverbs_softkernel::Kind;
use uverbs_softkernel::attr::{flags, handle, known, number, number32, optional_handle};
use uverbs_uapi::mlx5::devx as abi;

/// The number of the first vector's event queue.
pub(super) const FIRST_EQN: u32 = 1;

/// Whether the method destroys an object of DEVX.
pub(super) fn is_destroy(key: (u16, u16)) -> bool {
    matches!(
        key,
        (abi::MLX5_IB_OBJECT_DEVX_OBJ, abi::MLX5_IB_METHOD_DEVX_OBJ_DESTROY)
            | (abi::MLX5_IB_OBJECT_DEVX_UMEM, abi::MLX5_IB_METHOD_DEVX_UMEM_DEREG)
    )
}

/// The result of a command for the kernel: an answer with its status, and the errno.
fn finish(mut output: Vec<u8>, result: Result<(), Status>) -> (Vec<u8>, Result<(), Errno>) {
    let Err(Status(status)) = result else { return (output, Ok(())) };
    output.fill(0);
    output[0] = status;
    (output, Err(Errno::EREMOTEIO))
}

/// The bytes of a command; it has at least a header.
fn mailbox(c: &RawCommand<'_, '_>, id: u16) -> Result<Vec<u8>, Errno> {
    let bytes = c.input(id).ok_or(Errno::EINVAL)?;
    if bytes.len() < firmware::HEADER { Err(Errno::EINVAL) } else { Ok(bytes.to_vec()) }
}

/// An empty answer of the length that the program has room for.
fn room(c: &mut RawCommand<'_, '_>, id: u16) -> Result<Vec<u8>, Errno> {
    let len = c.output(id).map_or(0, |bytes| bytes.len());
    if len < firmware::ANSWER { Err(Errno::EINVAL) } else { Ok(vec![0; len]) }
}

impl Call<'_, '_> {
    /// Executes a method of DEVX; `None` if it is another method.
    pub(super) fn devx(&mut self, c: &mut RawCommand<'_, '_>, key: (u16, u16)) -> Option<Result<(), Errno>> {
        Some(match key {
            (abi::MLX5_IB_OBJECT_DEVX, abi::MLX5_IB_METHOD_DEVX_OTHER) => self.devx_other(c),
            (abi::MLX5_IB_OBJECT_DEVX, abi::MLX5_IB_METHOD_DEVX_QUERY_EQN) => Self::devx_query_eqn(c),
            (abi::MLX5_IB_OBJECT_DEVX, abi::MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT) => self.devx_subscribe(c),
            (abi::MLX5_IB_OBJECT_DEVX_OBJ, abi::MLX5_IB_METHOD_DEVX_OBJ_CREATE) => self.devx_create(c),
            (abi::MLX5_IB_OBJECT_DEVX_OBJ, abi::MLX5_IB_METHOD_DEVX_OBJ_MODIFY) => self.devx_modify(c),
            (abi::MLX5_IB_OBJECT_DEVX_OBJ, abi::MLX5_IB_METHOD_DEVX_OBJ_QUERY) => self.devx_query(c),
            (abi::MLX5_IB_OBJECT_DEVX_OBJ, abi::MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY) => {
                self.devx_query_async(c)
            }
            (abi::MLX5_IB_OBJECT_DEVX_OBJ, abi::MLX5_IB_METHOD_DEVX_OBJ_DESTROY) => {
                self.devx_destroy(c, |o| matches!(o, Object::Devx(_)))
            }
            (abi::MLX5_IB_OBJECT_DEVX_UMEM, abi::MLX5_IB_METHOD_DEVX_UMEM_REG) => self.devx_reg_umem(c),
            (abi::MLX5_IB_OBJECT_DEVX_UMEM, abi::MLX5_IB_METHOD_DEVX_UMEM_DEREG) => {
                self.devx_destroy(c, |o| matches!(o, Object::Umem(_)))
            }
            (abi::MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD, abi::MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC) => {
                self.devx_command_channel(c)
            }
            (abi::MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, abi::MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC) => {
                self.devx_event_channel(c)
            }
            _ => return None,
        })
    }

    /// Refuses contexts that were not opened for commands (`devx_get_uid()`).
    fn need_devx(&mut self) -> Result<(), Errno> {
        if self.state.tables.context(self.context)?.data.devx { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn devx_other(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(c, &[abi::MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, abi::MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT])?;
        self.need_devx()?;
        let input = mailbox(c, abi::MLX5_IB_ATTR_DEVX_OTHER_CMD_IN)?;
        let mut output = room(c, abi::MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT)?;
        if !firmware::is_general(&input) {
            return Err(Errno::EINVAL);
        }
        let result = self.general_command(&input, &mut output);
        let (output, result) = finish(output, result);
        c.answer(abi::MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, &output);
        result
    }

    fn devx_create(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE,
                abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN,
                abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT,
            ],
        )?;
        self.need_devx()?;
        let input = mailbox(c, abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN)?;
        let mut output = room(c, abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT)?;
        if !firmware::is_create(&input) {
            return Err(Errno::EINVAL);
        }
        let created = self.create_by_command(&input, &mut output);
        let (object, result) = match created {
            Ok(object) => (Some(object), Ok(())),
            Err(status) => (None, Err(status)),
        };
        let (output, result) = finish(output, result);
        c.answer(abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, &output);
        result?;
        let object = Object::Devx(Box::new(object.ok_or(Errno::EIO)?));
        self.give(c, abi::MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, object, &[], 0)
    }

    fn devx_modify(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                abi::MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE,
                abi::MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN,
                abi::MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT,
            ],
        )?;
        self.need_devx()?;
        let handle = handle(c, abi::MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE)?;
        let input = mailbox(c, abi::MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN)?;
        let output = room(c, abi::MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT)?;
        if !firmware::is_modify(&input) || !self.is_number_of(handle, &input)? {
            return Err(Errno::EINVAL);
        }
        let result = self.modify_by_command(handle, &input);
        let (output, result) = finish(output, result);
        c.answer(abi::MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, &output);
        result
    }

    /// The answer of a query of an object, and the errno.
    fn answer_query(
        &mut self,
        handle: u32,
        input: &[u8],
        mut output: Vec<u8>,
    ) -> Result<(Vec<u8>, Result<(), Errno>), Errno> {
        if !firmware::is_query(input) || !self.is_number_of(handle, input)? {
            return Err(Errno::EINVAL);
        }
        let result = self.query_by_command(handle, input, &mut output);
        Ok(finish(output, result))
    }

    fn devx_query(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE,
                abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN,
                abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT,
            ],
        )?;
        self.need_devx()?;
        let handle = handle(c, abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE)?;
        let input = mailbox(c, abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN)?;
        let output = room(c, abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT)?;
        let (output, result) = self.answer_query(handle, &input, output)?;
        c.answer(abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, &output);
        result
    }

    fn devx_query_async(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE,
                abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN,
                abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD,
                abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID,
                abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN,
            ],
        )?;
        self.need_devx()?;
        let handle = handle(c, abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE)?;
        let input = mailbox(c, abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN)?;
        let wr_id = number(c, abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID).ok_or(Errno::EINVAL)?;
        let len = number(c, abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN).ok_or(Errno::EINVAL)?;
        let len = usize::from(u16::try_from(len).map_err(|_| Errno::EINVAL)?);
        if len < firmware::ANSWER {
            return Err(Errno::EINVAL);
        }
        let fd = c.fd(abi::MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD).ok_or(Errno::EINVAL)?;
        let channel = self.state.devx.command_channel(self.context, fd)?;
        // The status is in the answer.
        let (output, _) = self.answer_query(handle, &input, vec![0; len])?;
        self.state.devx.answer(channel, wr_id, &output);
        Ok(())
    }

    /// Destroys an object, or deregisters memory.
    fn devx_destroy(&mut self, c: &RawCommand<'_, '_>, is: impl Fn(&Object) -> bool) -> Result<(), Errno> {
        const {
            assert!(abi::MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE == abi::MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE);
        }
        known(c, &[abi::MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE])?;
        self.destroy(c, abi::MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, is)?;
        Ok(())
    }

    fn devx_query_eqn(c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        known(c, &[abi::MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC, abi::MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN])?;
        let vector = number32(c, abi::MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC)?;
        if vector >= VECTORS {
            return Err(Errno::EINVAL);
        }
        c.answer(abi::MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, &(FIRST_EQN + vector).to_ne_bytes());
        Ok(())
    }

    fn devx_command_channel(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        const HANDLE: u16 = abi::MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE;
        known(c, &[HANDLE])?;
        let fd = self.state.devx.add_command_channel(self.context)?;
        c.new_fd(HANDLE, fd);
        Ok(())
    }

    fn devx_event_channel(&mut self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        const HANDLE: u16 = abi::MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE;
        known(c, &[HANDLE, abi::MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS])?;
        let flags = flags(c, abi::MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS)?;
        if flags & !abi::MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA != 0 {
            return Err(Errno::EINVAL);
        }
        let fd = self.state.devx.add_event_channel(self.context, flags != 0)?;
        c.new_fd(HANDLE, fd);
        Ok(())
    }

    fn devx_subscribe(&mut self, c: &RawCommand<'_, '_>) -> Result<(), Errno> {
        known(
            c,
            &[
                abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE,
                abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE,
                abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST,
                abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM,
                abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE,
            ],
        )?;
        self.need_devx()?;
        let fd = c.fd(abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE).ok_or(Errno::EINVAL)?;
        let object = optional_handle(c, abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE)?;
        let target: Option<(Kind, u32)> = match object {
            None => None,
            Some(handle) => match self.object(handle)? {
                Object::Devx(object) => Some(object.events().ok_or(Errno::EINVAL)?),
                _ => return Err(Errno::ENOENT),
            },
        };
        let types = c.input(abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST).ok_or(Errno::EINVAL)?;
        let (types, rest) = types.as_chunks::<2>();
        let types: Vec<u16> = types.iter().map(|bytes| u16::from_ne_bytes(*bytes)).collect();
        if types.is_empty() || !rest.is_empty() {
            return Err(Errno::EINVAL);
        }
        let cookie = number(c, abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE).unwrap_or(0);
        let signal = match c.has(abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM) {
            true => Some(number32(c, abi::MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM)?),
            false => None,
        };
        self.state.devx.subscribe((self.context, fd), target, &types, cookie, signal)
    }
}
