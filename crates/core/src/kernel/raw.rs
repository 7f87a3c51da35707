// SPDX-License-Identifier: MIT OR Apache-2.0
//! A finished command: the ioctl's attributes, and the buffers that they refer to.

use crate::errno::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use uverbs_uapi::ioctl::{UVERBS_ATTR_F_VALID_OUTPUT, ib_uverbs_attr, ib_uverbs_ioctl_hdr};
use zerocopy::IntoBytes;

/// The data of an attribute, in addition to its 16 bytes.
#[derive(Debug)]
pub(super) enum AttrValue<'a> {
    /// Nothing: the value is in the data word (short input, or the handle of an existing object).
    Word,
    /// Input bytes behind an address.
    Input(&'a [u8]),
    /// Output bytes behind an address.
    Output(&'a mut [u8]),
    /// Output bytes behind an address, of which four at an offset are the number of a new file descriptor.
    OutputFd(&'a mut [u8], usize, Option<OwnedFd>),
    /// An existing file descriptor, in the data word.
    Fd(BorrowedFd<'a>),
    /// The kernel stores the handle of a new object in the data word.
    NewHandle,
    /// The kernel stores a new file descriptor in the data word.
    NewFd(Option<OwnedFd>),
}

/// One attribute of the caller's command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawAttr {
    /// Its id within the method.
    pub id: u16,
    /// Bytes of input or output; 0 for handles and file descriptors.
    pub len: u16,
    /// `UVERBS_ATTR_F_*`.
    pub flags: u16,
    /// Element of an enum attribute.
    pub elem_id: u8,
}

/// A command for the kernel: object, method, attributes, and the buffers that they point to.
///
/// A port that is not a kernel reads inputs and writes answers by attribute id, and never uses addresses. The port of
/// the real kernel converts the command to the ioctl's array.
#[derive(Debug)]
pub struct RawCommand<'c, 'a> {
    pub(super) object: u16,
    pub(super) method: u16,
    pub(super) driver_id: u32,
    pub(super) attrs: &'c mut [ib_uverbs_attr],
    pub(super) values: &'c mut [AttrValue<'a>],
}

impl RawCommand<'_, '_> {
    /// `UVERBS_OBJECT_*`
    #[must_use]
    pub fn object(&self) -> u16 {
        self.object
    }

    /// `UVERBS_METHOD_*`
    #[must_use]
    pub fn method(&self) -> u16 {
        self.method
    }

    /// `enum rdma_driver_id`, as the header carries it.
    #[must_use]
    pub fn driver_id(&self) -> u32 {
        self.driver_id
    }

    /// The attributes in the caller's order.
    pub fn attrs(&self) -> impl Iterator<Item = RawAttr> + '_ {
        self.attrs.iter().map(|a| RawAttr { id: a.attr_id, len: a.len, flags: a.flags, elem_id: a.elem_id() })
    }

    /// Whether there is such an attribute.
    #[must_use]
    pub fn has(&self, id: u16) -> bool {
        self.index(id).is_some()
    }

    /// The bytes of an input attribute, from the attribute itself or from its buffer.
    #[must_use]
    pub fn input(&self, id: u16) -> Option<&[u8]> {
        let i = self.index(id)?;
        match &self.values[i] {
            AttrValue::Input(bytes) => Some(bytes),
            AttrValue::Word => self.attrs[i].data.as_bytes().get(..usize::from(self.attrs[i].len)),
            _ => None,
        }
    }

    /// The bytes that an output attribute has room for.
    #[must_use]
    pub fn output(&mut self, id: u16) -> Option<&mut [u8]> {
        let i = self.index(id)?;
        match &mut self.values[i] {
            AttrValue::Output(bytes) | AttrValue::OutputFd(bytes, ..) => Some(bytes),
            _ => None,
        }
    }

    /// Answers an output attribute as the kernel does (`uverbs_copy_to_struct_or_zero()`): cut to the caller's room,
    /// filled up with zeros, marked as valid. Returns whether there is such an attribute.
    pub fn answer(&mut self, id: u16, bytes: &[u8]) -> bool {
        let Some(output) = self.output(id) else { return false };
        let n = output.len().min(bytes.len());
        output[..n].copy_from_slice(&bytes[..n]);
        output[n..].fill(0);
        self.mark_valid(id)
    }

    /// Marks an output attribute as valid, for one that was filled through [`RawCommand::output`]. Returns whether
    /// there is such an attribute.
    pub fn mark_valid(&mut self, id: u16) -> bool {
        let Some(i) = self.index(id) else { return false };
        self.attrs[i].flags |= UVERBS_ATTR_F_VALID_OUTPUT;
        true
    }

    /// The data word of an attribute that has no bytes: the handle of an existing object.
    #[must_use]
    pub fn handle(&self, id: u16) -> Option<u64> {
        let i = self.index(id)?;
        (matches!(self.values[i], AttrValue::Word) && self.attrs[i].len == 0).then_some(self.attrs[i].data)
    }

    /// The file descriptor of an existing object.
    #[must_use]
    pub fn fd(&self, id: u16) -> Option<BorrowedFd<'_>> {
        match &self.values[self.index(id)?] {
            AttrValue::Fd(fd) => Some(fd.as_fd()),
            _ => None,
        }
    }

    /// Stores the handle of a new object. Any number is possible, so that tests can cover the caller's checks. Returns
    /// whether the caller requested one.
    pub fn new_handle(&mut self, id: u16, handle: u64) -> bool {
        let Some(i) = self.index(id) else { return false };
        if !matches!(self.values[i], AttrValue::NewHandle) {
            return false;
        }
        self.attrs[i].data = handle;
        true
    }

    /// Stores a new file descriptor, in the data word or in the output bytes, depending on the attribute. Returns
    /// whether the caller requested one.
    pub fn new_fd(&mut self, id: u16, fd: OwnedFd) -> bool {
        let Some(i) = self.index(id) else { return false };
        match &mut self.values[i] {
            AttrValue::NewFd(new_fd) => {
                self.attrs[i].data = u64::from_ne_bytes(i64::from(fd.as_raw_fd()).to_ne_bytes());
                *new_fd = Some(fd);
            }
            AttrValue::OutputFd(bytes, offset, new_fd) => {
                if let Some(place) = bytes.get_mut(*offset..).and_then(|b| b.get_mut(..4)) {
                    place.copy_from_slice(&fd.as_raw_fd().to_ne_bytes());
                }
                *new_fd = Some(fd);
            }
            _ => return false,
        }
        true
    }

    /// The ioctl's bytes, with 0 for every address, for recordings, fuzzers and tests.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header().as_bytes().to_vec();
        bytes.extend_from_slice(self.attrs.as_bytes());
        bytes
    }

    /// The header, with the number of attributes. A command with more attributes than `u16` can count can't be built.
    pub(super) fn header(&self) -> ib_uverbs_ioctl_hdr {
        let length = size_of::<ib_uverbs_ioctl_hdr>() + size_of_val(&*self.attrs);
        ib_uverbs_ioctl_hdr {
            length: u16::try_from(length).unwrap_or(u16::MAX),
            object_id: self.object,
            method_id: self.method,
            num_attrs: u16::try_from(self.attrs.len()).unwrap_or(u16::MAX),
            driver_id: self.driver_id,
            ..Default::default()
        }
    }

    /// Writes the ioctl's array with the addresses of all buffers, and returns its length in words.
    ///
    /// The addresses are taken here and not when the command was built, so that nothing uses a buffer between this
    /// and the system call.
    pub(super) fn encode(&mut self, words: &mut [u64]) -> Result<usize, Errno> {
        const HEADER: usize = size_of::<ib_uverbs_ioctl_hdr>() / 8;
        let len = HEADER + self.attrs.len() * 2;
        let words = words.get_mut(..len).ok_or(Errno::EOVERFLOW)?;
        let (head, tail) = words.split_at_mut(HEADER);
        head.as_mut_bytes().copy_from_slice(self.header().as_bytes());
        for ((attr, value), place) in
            self.attrs.iter().zip(self.values.iter_mut()).zip(tail.chunks_exact_mut(2))
        {
            let mut attr = *attr;
            match value {
                AttrValue::Input(bytes) => attr.data = bytes.as_ptr().expose_provenance() as u64,
                AttrValue::Output(bytes) | AttrValue::OutputFd(bytes, ..) => {
                    attr.data = bytes.as_mut_ptr().expose_provenance() as u64;
                }
                AttrValue::Fd(fd) => attr.set_data_s64(fd.as_raw_fd().into()),
                AttrValue::Word | AttrValue::NewHandle | AttrValue::NewFd(_) => {}
            }
            place.as_mut_bytes().copy_from_slice(attr.as_bytes());
        }
        Ok(len)
    }

    fn index(&self, id: u16) -> Option<usize> {
        self.attrs.iter().position(|a| a.attr_id == id)
    }
}
