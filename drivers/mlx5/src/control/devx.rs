// SPDX-License-Identifier: MIT OR Apache-2.0
//! DEVX: commands in the format of the PRM that a program sends to the firmware, the objects that they create, memory
//! that they name, and the events of those objects. The context must be opened with [`Options::devx`](crate::Options).
//!
//! A command and its answer are mailboxes: the first 16 bits of a command are its opcode, the first byte of an answer
//! is its status. The kernel checks which commands a process may send, and adds the process's identity. If the firmware
//! refuses a command, the errno is `EREMOTEIO` and the answer has the status.
//!
//! Dropping a value does not destroy its object: the program destroys it explicitly or closes the context. The program
//! determines the order, because the firmware refuses to destroy an object that is in use.
#![expect(unsafe_code)]
// UNSAFETY: commands may name memory, and the device uses it as long as the objects exist.

use super::Mlx5;
use core::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use uverbs_core::Errno;
use uverbs_core::control::locked;
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Command, Kernel};
use uverbs_uapi::mlx5::devx::{
    MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE, MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS,
    MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN,
    MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE,
    MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN,
    MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE,
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD,
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE, MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN,
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID, MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN,
    MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, MLX5_IB_ATTR_DEVX_OTHER_CMD_IN,
    MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN,
    MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE,
    MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM,
    MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE, MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST,
    MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE, MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS, MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR,
    MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD, MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE, MLX5_IB_ATTR_DEVX_UMEM_REG_LEN,
    MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP,
    MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC, MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC,
    MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY, MLX5_IB_METHOD_DEVX_OBJ_CREATE, MLX5_IB_METHOD_DEVX_OBJ_DESTROY,
    MLX5_IB_METHOD_DEVX_OBJ_MODIFY, MLX5_IB_METHOD_DEVX_OBJ_QUERY, MLX5_IB_METHOD_DEVX_OTHER,
    MLX5_IB_METHOD_DEVX_QUERY_EQN, MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT, MLX5_IB_METHOD_DEVX_UMEM_DEREG,
    MLX5_IB_METHOD_DEVX_UMEM_REG, MLX5_IB_OBJECT_DEVX, MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD,
    MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_OBJECT_DEVX_UMEM,
};
use zerocopy::IntoBytes as _;

/// Page sizes of memory that a command can have: any from 4 KiB on.
pub const ANY_PAGE_SIZE: u64 = !0xfff;

/// An object that a command created.
#[derive(Debug)]
pub struct DevxObject {
    kernel: Arc<dyn Kernel>,
    handle: u32,
    opcode: u16,
}

/// Memory of the process that commands name by a number.
#[derive(Debug)]
pub struct Umem {
    kernel: Arc<dyn Kernel>,
    handle: u32,
    id: u32,
}

/// A file with the answers of queries that run in the background. Each record is the query's `wr_id` and the answer.
#[derive(Debug)]
pub struct CommandChannel {
    kernel: Arc<dyn Kernel>,
    fd: OwnedFd,
}

/// A file with events. Each record is the subscription's cookie and, unless the channel was created without event data,
/// the event in the format of the PRM.
#[derive(Debug)]
pub struct EventChannel {
    kernel: Arc<dyn Kernel>,
    fd: OwnedFd,
}

/// Runs a command whose inputs may name memory.
///
/// # Safety
/// As for [`Command::execute`].
unsafe fn run<const N: usize>(
    verb: &'static str,
    kernel: &Arc<dyn Kernel>,
    command: &mut Command<'_, N>,
) -> Result<()> {
    // SAFETY: the caller meets the contract of `Command::execute` (contract of this function).
    let done = unsafe { command.execute(&**kernel) };
    done.map_err(|errno| Error::os(verb, format!("device {}", kernel.name()), errno))
}

/// The opcode of a command; 0 if there is none.
fn opcode(command: &[u8]) -> u16 {
    command.first_chunk().map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

/// The bytes of a mailbox, from a C pointer and a length.
///
/// # Errors
/// `EINVAL` for a NULL pointer, or more bytes than a slice can have.
///
/// # Safety
/// `start` is NULL, or valid for reads of `len` bytes that are not written while the slice exists.
pub unsafe fn mailbox<'a>(start: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    if start.is_null() || len > isize::MAX as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so valid for reads of `len` bytes (the contract of this function), at most `isize::MAX`
    // (checked).
    Ok(unsafe { core::slice::from_raw_parts(start.cast(), len) })
}

/// The bytes of an answer's mailbox, from a C pointer and a length.
///
/// # Errors
/// `EINVAL` for a NULL pointer, or more bytes than a slice can have.
///
/// # Safety
/// `start` is NULL, or valid for reads and writes of `len` bytes that no other pointer and no device accesses while the
/// slice exists.
pub unsafe fn mailbox_mut<'a>(start: *mut c_void, len: usize) -> Result<&'a mut [u8], Errno> {
    if start.is_null() || len > isize::MAX as usize {
        return Err(Errno::EINVAL);
    }
    // SAFETY: not NULL, so valid for `len` bytes (the contract of this function), at most `isize::MAX` (checked).
    Ok(unsafe { core::slice::from_raw_parts_mut(start.cast(), len) })
}

impl Mlx5 {
    /// Sends a command that creates no object.
    ///
    /// # Safety
    /// Memory that the command names by a number (of a [`Umem`], of a key) may be used as the command says.
    ///
    /// # Errors
    /// The kernel's error; `EREMOTEIO` if the firmware refuses, with the status in the answer.
    pub unsafe fn devx_general_command(&self, command: &[u8], answer: &mut [u8]) -> Result<()> {
        let mut ioctl = Command::<2>::new(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER);
        ioctl
            .input_bytes(MLX5_IB_ATTR_DEVX_OTHER_CMD_IN, command)
            .output_bytes(MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, answer);
        // SAFETY: the firmware may use the memory that the command names as the command says (contract of this
        // function).
        unsafe { run("devx_general_cmd", &self.kernel, &mut ioctl) }
    }

    /// Sends a command that creates an object.
    ///
    /// # Safety
    /// Memory that the command names stays valid, and is used as the device may use it, until the object is destroyed.
    ///
    /// # Errors
    /// As [`devx_general_command`](Self::devx_general_command).
    pub unsafe fn devx_create(&self, command: &[u8], answer: &mut [u8]) -> Result<DevxObject> {
        const VERB: &str = "devx_obj_create";
        let mut ioctl = Command::<3>::new(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE);
        ioctl
            .handle_new(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE)
            .input_bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, command)
            .output_bytes(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, answer);
        // SAFETY: the memory that the command names stays valid, and is used as the device may use it, until the object
        // is destroyed (contract of this function).
        unsafe { run(VERB, &self.kernel, &mut ioctl) }?;
        let handle = ioctl.handle(MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE);
        let handle = handle.ok_or_else(|| Error::protocol(VERB, "no handle of the new object"))?;
        Ok(self.devx_import(handle, opcode(command)))
    }

    /// An object of another context that shares this context's resources in the kernel (`ibv_import_device`), by its
    /// [`handle`](DevxObject::handle) there and the [`opcode`](DevxObject::opcode) that created it. Nothing checks the
    /// number; the calls of an object that does not exist fail.
    #[must_use]
    pub fn devx_import(&self, handle: u32, opcode: u16) -> DevxObject {
        DevxObject { kernel: Arc::clone(&self.kernel), handle, opcode }
    }

    /// Memory that another context, as for [`devx_import`](Self::devx_import), has registered, by its
    /// [`handle`](Umem::handle) and its [`id`](Umem::id).
    #[must_use]
    pub fn devx_import_umem(&self, handle: u32, id: u32) -> Umem {
        Umem { kernel: Arc::clone(&self.kernel), handle, id }
    }

    /// Sends a command that queries a verbs object: a QP, CQ, SRQ, WQ or table of WQs, by its handle.
    ///
    /// # Errors
    /// As [`devx_general_command`](Self::devx_general_command).
    pub fn devx_query(&self, handle: u32, command: &[u8], answer: &mut [u8]) -> Result<()> {
        query(&self.kernel, handle, command, answer)
    }

    /// Sends a command that modifies a verbs object, by its handle.
    ///
    /// # Safety
    /// The object's queues and the memory that it uses agree with its new state.
    ///
    /// # Errors
    /// As [`devx_general_command`](Self::devx_general_command).
    pub unsafe fn devx_modify(&self, handle: u32, command: &[u8], answer: &mut [u8]) -> Result<()> {
        // SAFETY: the object's queues and memory agree with its new state (contract of this function).
        unsafe { modify(&self.kernel, handle, command, answer) }
    }

    /// Registers `len` bytes of memory for commands. `access` is a set of `IBV_ACCESS_*`, `page_sizes` a mask of page
    /// sizes.
    ///
    /// # Safety
    /// The memory stays valid, and no Rust reference contradicts the device's accesses, until it is deregistered.
    ///
    /// # Errors
    /// The kernel's error.
    pub unsafe fn devx_reg_umem(
        &self,
        addr: *mut c_void,
        len: usize,
        access: u32,
        page_sizes: u64,
    ) -> Result<Umem> {
        // SAFETY: the contract of this function is that of `reg_umem`.
        unsafe { self.reg_umem(addr.expose_provenance() as u64, len, access, page_sizes, None) }
    }

    /// Registers `len` bytes of a DMA-BUF, from `offset` on, for commands; otherwise as
    /// [`devx_reg_umem`](Self::devx_reg_umem).
    ///
    /// # Safety
    /// The device may access the memory as `access` says until it is deregistered.
    ///
    /// # Errors
    /// The kernel's error. Kernels before 6.1 do not know the attribute: `EOPNOTSUPP`.
    pub unsafe fn devx_reg_dmabuf_umem(
        &self,
        dmabuf: BorrowedFd<'_>,
        offset: u64,
        len: usize,
        access: u32,
        page_sizes: u64,
    ) -> Result<Umem> {
        // SAFETY: the device may access the memory (contract of this function), and it is not memory of Rust.
        unsafe { self.reg_umem(offset, len, access, page_sizes, Some(dmabuf)) }
    }

    /// Registers memory of this process, or of a DMA-BUF.
    ///
    /// # Safety
    /// As for [`devx_reg_umem`](Self::devx_reg_umem).
    unsafe fn reg_umem(
        &self,
        addr: u64,
        len: usize,
        access: u32,
        page_sizes: u64,
        dmabuf: Option<BorrowedFd<'_>>,
    ) -> Result<Umem> {
        const VERB: &str = "devx_umem_reg";
        let mut id = 0_u32;
        let mut command = Command::<7>::new(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG);
        command
            .handle_new(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE)
            .u64(MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR, addr)
            .u64(MLX5_IB_ATTR_DEVX_UMEM_REG_LEN, len as u64)
            .flags(MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS, access)
            .u64(MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP, page_sizes)
            .output(MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID, &mut id);
        if let Some(dmabuf) = dmabuf {
            command.fd_in(MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD, dmabuf);
        }
        // SAFETY: until the memory is deregistered it stays valid, and no Rust reference contradicts the device's
        // accesses (contract of this function).
        unsafe { run(VERB, &self.kernel, &mut command) }.map_err(|error| {
            let pinned = dmabuf.is_none().then_some((addr, len as u64));
            locked::explain(&*self.kernel, error, pinned)
        })?;
        let handle = command.handle(MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE);
        let handle = handle.ok_or_else(|| Error::protocol(VERB, "no handle of the new object"))?;
        Ok(self.devx_import_umem(handle, id))
    }

    /// The event queue of a completion vector, for commands that create CQs.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn devx_query_eqn(&self, vector: u32) -> Result<u32> {
        let mut eqn = 0_u32;
        let mut command = Command::<2>::new(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_QUERY_EQN);
        command
            .u32(MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC, vector)
            .output(MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN, &mut eqn);
        // SAFETY: the input is a number and names no memory.
        unsafe { run("devx_query_eqn", &self.kernel, &mut command) }?;
        Ok(eqn)
    }

    /// Creates a channel for asynchronous queries.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn devx_command_channel(&self) -> Result<CommandChannel> {
        const VERB: &str = "devx_create_cmd_comp";
        let method = MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC;
        let mut command = Command::<1>::new(MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD, method);
        // SAFETY: in this method the attribute is a file that the kernel makes (`mlx5_user_ioctl_cmds.h`).
        unsafe { command.fd_new(MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE) };
        // SAFETY: the command has no input.
        unsafe { run(VERB, &self.kernel, &mut command) }?;
        let fd = command.take_fd(MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE);
        let fd = fd.ok_or_else(|| Error::protocol(VERB, "no file descriptor"))?;
        Ok(CommandChannel { kernel: Arc::clone(&self.kernel), fd })
    }

    /// Creates a channel for events. `flags` are `MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_*`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn devx_event_channel(&self, flags: u32) -> Result<EventChannel> {
        const VERB: &str = "devx_create_event_channel";
        let method = MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC;
        let mut command = Command::<2>::new(MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD, method);
        // SAFETY: in this method the attribute is a file that the kernel makes (`mlx5_user_ioctl_cmds.h`).
        unsafe { command.fd_new(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE) };
        command.flags(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS, flags);
        // SAFETY: the input is a number and names no memory.
        unsafe { run(VERB, &self.kernel, &mut command) }?;
        let fd = command.take_fd(MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE);
        let fd = fd.ok_or_else(|| Error::protocol(VERB, "no file descriptor"))?;
        Ok(EventChannel { kernel: Arc::clone(&self.kernel), fd })
    }
}

fn query(kernel: &Arc<dyn Kernel>, handle: u32, command: &[u8], answer: &mut [u8]) -> Result<()> {
    let mut ioctl = Command::<3>::new(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_QUERY);
    ioctl
        .handle_in(MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE, handle)
        .input_bytes(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN, command)
        .output_bytes(MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT, answer);
    // SAFETY: the kernel accepts only query commands here, which change no memory except the answer.
    unsafe { run("devx_obj_query", kernel, &mut ioctl) }
}

/// # Safety
/// As for [`Mlx5::devx_modify`].
pub(super) unsafe fn modify(
    kernel: &Arc<dyn Kernel>,
    handle: u32,
    command: &[u8],
    answer: &mut [u8],
) -> Result<()> {
    let mut ioctl = Command::<3>::new(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_MODIFY);
    ioctl
        .handle_in(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE, handle)
        .input_bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN, command)
        .output_bytes(MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT, answer);
    // SAFETY: the caller meets the contract of `Mlx5::devx_modify` (contract of this function).
    unsafe { run("devx_obj_modify", kernel, &mut ioctl) }
}

/// Destroys an object by its handle.
pub(super) fn destroy(
    verb: &'static str,
    kernel: &Arc<dyn Kernel>,
    mut command: Command<'_, 1>,
) -> Result<()> {
    // In a child of fork(2) the object belongs to the parent.
    if !kernel.is_creator_process() {
        return Ok(());
    }
    // SAFETY: the input is a handle and names no memory.
    unsafe { run(verb, kernel, &mut command) }
}

impl DevxObject {
    /// The kernel's number of the object.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// The opcode of the command that created it.
    #[must_use]
    pub fn opcode(&self) -> u16 {
        self.opcode
    }

    /// Sends a command that queries the object.
    ///
    /// # Errors
    /// As [`Mlx5::devx_general_command`].
    pub fn query(&self, command: &[u8], answer: &mut [u8]) -> Result<()> {
        query(&self.kernel, self.handle, command, answer)
    }

    /// Sends a command that modifies the object.
    ///
    /// # Safety
    /// As for [`Mlx5::devx_create`].
    ///
    /// # Errors
    /// As [`Mlx5::devx_general_command`].
    pub unsafe fn modify(&self, command: &[u8], answer: &mut [u8]) -> Result<()> {
        // SAFETY: the memory that the command names stays valid until the object is destroyed, and the object's users
        // agree with its new state (contract of this function).
        unsafe { modify(&self.kernel, self.handle, command, answer) }
    }

    /// Sends a query command and does not wait: the answer, of `answer_len` bytes, arrives on the channel.
    ///
    /// # Errors
    /// As [`Mlx5::devx_general_command`].
    pub fn query_async(
        &self,
        command: &[u8],
        answer_len: u16,
        wr_id: u64,
        channel: &CommandChannel,
    ) -> Result<()> {
        let mut ioctl = Command::<5>::new(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY);
        ioctl
            .handle_in(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE, self.handle)
            .input_bytes(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN, command)
            .constant(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN, u64::from(answer_len))
            .u64(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID, wr_id)
            .fd_in(MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD, channel.fd.as_fd());
        // SAFETY: as in `query`; the answer is memory of the kernel.
        unsafe { run("devx_obj_query_async", &self.kernel, &mut ioctl) }
    }

    /// Destroys the object.
    ///
    /// # Errors
    /// The kernel's error, with the object.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        let mut command = Command::<1>::new(MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_DESTROY);
        command.handle_in(MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE, self.handle);
        destroy("devx_obj_destroy", &self.kernel, command).map_err(|error| (self, error))
    }
}

impl Umem {
    /// Its number in commands.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The kernel's number of the registration.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Deregisters the memory.
    ///
    /// # Errors
    /// The kernel's error, for instance because an object uses the memory, with this value.
    pub fn dereg(self) -> Result<(), (Self, Error)> {
        let mut command = Command::<1>::new(MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_DEREG);
        command.handle_in(MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE, self.handle);
        destroy("devx_umem_dereg", &self.kernel, command).map_err(|error| (self, error))
    }
}

impl AsFd for CommandChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl CommandChannel {
    /// The kernel interface of the context that created the channel.
    #[must_use]
    pub fn kernel(&self) -> &Arc<dyn Kernel> {
        &self.kernel
    }
}

impl EventChannel {
    /// Subscribes to events of an object, or of the device if `object` is `None`. `events` are event types of the PRM.
    /// Each event carries `cookie`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn subscribe(&self, object: Option<&DevxObject>, events: &[u16], cookie: u64) -> Result<()> {
        let mut command = Command::<4>::new(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT);
        self.begin(&mut command, object, events);
        command.u64(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE, cookie);
        // SAFETY: the inputs are numbers and handles; they name no memory.
        unsafe { run("devx_subscribe_event", &self.kernel, &mut command) }
    }

    /// Subscribes to one event, which is counted by an eventfd(2) instead of reported on this channel.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn subscribe_fd(&self, fd: BorrowedFd<'_>, object: Option<&DevxObject>, event: u16) -> Result<()> {
        use std::os::fd::AsRawFd as _;
        let events = [event];
        let mut command = Command::<4>::new(MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT);
        self.begin(&mut command, object, &events);
        command.u32(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM, fd.as_raw_fd().cast_unsigned());
        // SAFETY: the inputs are numbers and handles; they name no memory.
        unsafe { run("devx_subscribe_event", &self.kernel, &mut command) }
    }

    fn begin<'a>(&'a self, command: &mut Command<'a, 4>, object: Option<&DevxObject>, events: &'a [u16]) {
        command
            .fd_in(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE, self.fd.as_fd())
            .input_bytes(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST, events.as_bytes());
        if let Some(object) = object {
            command.handle_in(MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE, object.handle);
        }
    }
}
