// SPDX-License-Identifier: MIT OR Apache-2.0
//! Building an ioctl command on the stack.
// UNSAFETY: declares the two `unsafe` methods that pass a command to a kernel, and the `unsafe` builder of an attribute
// whose answer becomes a file descriptor. This module has no unsafe block.
#![expect(unsafe_code)]

use super::raw::{AttrValue, RawCommand};
use super::{Kernel, Uhw};
use crate::errno::Errno;
use std::os::fd::{BorrowedFd, OwnedFd};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT,
    UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE,
};
use uverbs_uapi::ioctl::{UVERBS_ATTR_F_MANDATORY, UVERBS_ATTR_F_VALID_OUTPUT, ib_uverbs_attr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A command with room for `N` attributes. Nothing is allocated.
///
/// An attribute is mandatory (a kernel that does not support it refuses the command) unless [`Command::optional`]
/// follows it. If a command can't be built (more than `N` attributes, a buffer above 64 KiB), its execution fails with
/// `EOVERFLOW`.
#[derive(Debug)]
pub struct Command<'a, const N: usize> {
    object: u16,
    method: u16,
    len: usize,
    attrs: [ib_uverbs_attr; N],
    values: [AttrValue<'a>; N],
    error: Option<Errno>,
}

impl<'a, const N: usize> Command<'a, N> {
    /// A command without attributes.
    #[must_use]
    pub fn new(object: u16, method: u16) -> Self {
        let attrs = [ib_uverbs_attr::default(); N];
        Self { object, method, len: 0, attrs, values: [const { AttrValue::Word }; N], error: None }
    }

    fn push(&mut self, attr: ib_uverbs_attr, value: AttrValue<'a>) -> &mut Self {
        match (self.attrs.get_mut(self.len), self.values.get_mut(self.len)) {
            (Some(a), Some(s)) => {
                *a = ib_uverbs_attr { flags: UVERBS_ATTR_F_MANDATORY, ..attr };
                *s = value;
                self.len += 1;
            }
            _ => self.error = Some(Errno::EOVERFLOW),
        }
        self
    }

    /// `bytes.len()` as an attribute has it.
    fn attr_len(&mut self, len: usize) -> u16 {
        u16::try_from(len).unwrap_or_else(|_| {
            self.error = Some(Errno::EOVERFLOW);
            0
        })
    }

    /// Input of any length. Up to 8 bytes are in the attribute itself, as the ABI requires.
    pub fn input_bytes(&mut self, attr_id: u16, bytes: &'a [u8]) -> &mut Self {
        let len = self.attr_len(bytes.len());
        let mut attr = ib_uverbs_attr { attr_id, len, ..Default::default() };
        match attr.data.as_mut_bytes().get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.push(attr, AttrValue::Word)
            }
            None => self.push(attr, AttrValue::Input(bytes)),
        }
    }

    /// A struct as input.
    pub fn input<T: IntoBytes + Immutable>(&mut self, attr_id: u16, value: &'a T) -> &mut Self {
        self.input_bytes(attr_id, value.as_bytes())
    }

    /// A 32-bit input.
    pub fn u32(&mut self, attr_id: u16, value: u32) -> &mut Self {
        let mut attr = ib_uverbs_attr { attr_id, len: 4, ..Default::default() };
        attr.data.as_mut_bytes()[..4].copy_from_slice(&value.to_ne_bytes());
        self.push(attr, AttrValue::Word)
    }

    /// A 64-bit input.
    pub fn u64(&mut self, attr_id: u16, value: u64) -> &mut Self {
        self.push(ib_uverbs_attr { attr_id, len: 8, data: value, ..Default::default() }, AttrValue::Word)
    }

    /// A constant (`UVERBS_ATTR_CONST_IN`): always 8 bytes.
    pub fn constant(&mut self, attr_id: u16, value: impl Into<u64>) -> &mut Self {
        self.u64(attr_id, value.into())
    }

    /// Flags (`UVERBS_ATTR_FLAGS_IN`): always 8 bytes.
    pub fn flags(&mut self, attr_id: u16, value: impl Into<u64>) -> &mut Self {
        self.u64(attr_id, value.into())
    }

    /// One of several kinds of input (`UVERBS_ATTR_ENUM_IN`), selected by `elem_id`.
    pub fn enum_in(&mut self, attr_id: u16, elem_id: u8, bytes: &'a [u8]) -> &mut Self {
        let before = self.len;
        self.input_bytes(attr_id, bytes);
        if let Some(attr) = self.attrs.get_mut(before) {
            attr.set_elem_id(elem_id);
        }
        self
    }

    /// Room for an answer.
    pub fn output_bytes(&mut self, attr_id: u16, bytes: &'a mut [u8]) -> &mut Self {
        let len = self.attr_len(bytes.len());
        self.push(ib_uverbs_attr { attr_id, len, ..Default::default() }, AttrValue::Output(bytes))
    }

    /// Room for an answer that is a struct.
    pub fn output<T: IntoBytes + FromBytes>(&mut self, attr_id: u16, value: &'a mut T) -> &mut Self {
        self.output_bytes(attr_id, value.as_mut_bytes())
    }

    /// Room for an answer, of which four bytes at `offset` are the number of a new file descriptor; see
    /// [`Command::take_fd`].
    ///
    /// # Safety
    /// In this object's method and attribute those bytes are a file descriptor that the kernel makes for the caller.
    pub unsafe fn output_with_fd(&mut self, attr_id: u16, bytes: &'a mut [u8], offset: usize) -> &mut Self {
        self.output_with_fd_inner(attr_id, bytes, offset)
    }

    pub(crate) fn output_with_fd_inner(
        &mut self,
        attr_id: u16,
        bytes: &'a mut [u8],
        offset: usize,
    ) -> &mut Self {
        let len = self.attr_len(bytes.len());
        self.push(
            ib_uverbs_attr { attr_id, len, ..Default::default() },
            AttrValue::OutputFd(bytes, offset, None),
        )
    }

    /// An existing object.
    pub fn handle_in(&mut self, attr_id: u16, handle: u32) -> &mut Self {
        self.push(ib_uverbs_attr { attr_id, data: handle.into(), ..Default::default() }, AttrValue::Word)
    }

    /// Existing objects (`UVERBS_ATTR_IDRS_ARR`).
    pub fn handles_in(&mut self, attr_id: u16, handles: &'a [u32]) -> &mut Self {
        self.input_bytes(attr_id, handles.as_bytes())
    }

    /// The new object; see [`Command::handle`].
    pub fn handle_new(&mut self, attr_id: u16) -> &mut Self {
        self.push(ib_uverbs_attr { attr_id, ..Default::default() }, AttrValue::NewHandle)
    }

    /// An existing object that is a file descriptor.
    pub fn fd_in(&mut self, attr_id: u16, fd: BorrowedFd<'a>) -> &mut Self {
        self.push(ib_uverbs_attr { attr_id, ..Default::default() }, AttrValue::Fd(fd))
    }

    /// The new object, which is a file descriptor; see [`Command::take_fd`].
    ///
    /// # Safety
    /// In this object's method the attribute is a file descriptor that the kernel makes for the caller.
    pub unsafe fn fd_new(&mut self, attr_id: u16) -> &mut Self {
        self.fd_new_inner(attr_id)
    }

    pub(crate) fn fd_new_inner(&mut self, attr_id: u16) -> &mut Self {
        self.push(ib_uverbs_attr { attr_id, ..Default::default() }, AttrValue::NewFd(None))
    }

    /// The driver's private data, if there are any.
    pub fn uhw(&mut self, uhw: Uhw<'a>) -> &mut Self {
        if !uhw.input.is_empty() {
            self.input_bytes(UVERBS_ATTR_UHW_IN, uhw.input);
        }
        if !uhw.output.is_empty() {
            self.output_bytes(UVERBS_ATTR_UHW_OUT, uhw.output);
        }
        self
    }

    /// Makes the attribute that was added last optional: a kernel that does not support it ignores it.
    pub fn optional(&mut self) -> &mut Self {
        if let Some(attr) = self.len.checked_sub(1).and_then(|last| self.attrs.get_mut(last)) {
            attr.flags &= !UVERBS_ATTR_F_MANDATORY;
        }
        self
    }

    /// Executes the command.
    ///
    /// # Safety
    /// The caller may give the kernel and the device access to the memory that the inputs name by address (a region, a
    /// ring, an answer), and the memory stays valid for them as long as they use it.
    ///
    /// # Errors
    /// The kernel's errno; `EOVERFLOW` if the command could not be built.
    pub unsafe fn execute(&mut self, kernel: &dyn Kernel) -> Result<(), Errno> {
        self.run(kernel)
    }

    /// The finished command, for a port.
    ///
    /// # Safety
    /// As for [`Command::execute`].
    ///
    /// # Errors
    /// `EOVERFLOW` if the command could not be built.
    pub unsafe fn raw(&mut self, driver_id: u32) -> Result<RawCommand<'_, 'a>, Errno> {
        self.finish(driver_id)
    }

    /// [`Command::execute`] for this crate's own verbs: those that pass memory to the kernel are `unsafe` themselves,
    /// or take it by [`Uhw`].
    pub(crate) fn run(&mut self, kernel: &dyn Kernel) -> Result<(), Errno> {
        let mut raw = self.finish(kernel.driver_id())?;
        kernel.ioctl(&mut raw)
    }

    fn finish(&mut self, driver_id: u32) -> Result<RawCommand<'_, 'a>, Errno> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let (attrs, values) = (&mut self.attrs[..self.len], &mut self.values[..self.len]);
        Ok(RawCommand { object: self.object, method: self.method, driver_id, attrs, values })
    }

    /// Whether the kernel reported that it wrote this output. It need not report that for mandatory attributes.
    #[must_use]
    pub fn is_answered(&self, attr_id: u16) -> bool {
        self.find(attr_id).is_some_and(|i| self.attrs[i].flags & UVERBS_ATTR_F_VALID_OUTPUT != 0)
    }

    /// The handle of the new object, or `None` if the kernel stored no valid handle.
    #[must_use]
    pub fn handle(&self, attr_id: u16) -> Option<u32> {
        let i = self.find(attr_id)?;
        if !matches!(self.values[i], AttrValue::NewHandle) {
            return None;
        }
        u32::try_from(self.attrs[i].data).ok().filter(|handle| i32::try_from(*handle).is_ok())
    }

    /// The new file descriptor, at most once; `None` if the kernel stored none.
    #[must_use]
    pub fn take_fd(&mut self, attr_id: u16) -> Option<OwnedFd> {
        let i = self.find(attr_id)?;
        match &mut self.values[i] {
            AttrValue::NewFd(fd) | AttrValue::OutputFd(_, _, fd) => fd.take(),
            _ => None,
        }
    }

    fn find(&self, attr_id: u16) -> Option<usize> {
        self.attrs[..self.len].iter().position(|a| a.attr_id == attr_id)
    }
}

impl<'a> Command<'a, 5> {
    /// A command of the legacy write interface as an ioctl (`UVERBS_METHOD_INVOKE_WRITE`).
    ///
    /// `command` is `IB_USER_VERBS_CMD_*`, or `IB_USER_VERBS_EX_CMD_*` with the flag `IB_USER_VERBS_CMD_FLAG_EXTENDED`.
    /// `input` is the whole command struct without the header words; its `response` field is not used. No driver data
    /// follows it: they are attributes of their own.
    #[must_use]
    pub fn invoke_write<I: IntoBytes + Immutable>(
        command: u32,
        input: &'a I,
        output: &'a mut [u8],
        uhw: Uhw<'a>,
    ) -> Self {
        let mut this = Self::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
        this.constant(UVERBS_ATTR_WRITE_CMD, command).input(UVERBS_ATTR_CORE_IN, input);
        if !output.is_empty() {
            this.output_bytes(UVERBS_ATTR_CORE_OUT, output);
        }
        this.uhw(uhw);
        this
    }
}
