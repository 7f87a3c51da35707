// SPDX-License-Identifier: MIT OR Apache-2.0
//! The legacy write() interface, for two commands: rxe's doorbell and its arming of a CQ.
//!
//! All other commands use ioctl(2). These two are on a data path, and write(2) takes a shorter path through the kernel.
//! It refuses a process that changed its credentials after opening the device (`ib_safe_file_access()`).
// UNSAFETY: declares the `unsafe` constructor of a command that may name memory. This module has no unsafe block.
#![expect(unsafe_code)]

use super::Kernel;
use crate::errno::Errno;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_POST_SEND, IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, ib_uverbs_cmd_hdr, ib_uverbs_post_send,
    ib_uverbs_post_send_resp, ib_uverbs_req_notify_cq, ib_uverbs_send_wr,
};
use zerocopy::{IntoBytes, transmute};

/// A command of the write interface: a header word, the address of the response if there is one, the request.
#[derive(Debug)]
pub struct WriteCommand<'a> {
    words: &'a mut [u64],
    response: &'a mut [u8],
}

impl<'a> WriteCommand<'a> {
    /// A command in `words`: the first word is the header, filled in here; if there is a response, the second is its
    /// address, filled in when it runs; the rest is the request (the command struct after its `response` field).
    ///
    /// # Safety
    /// The caller may give the kernel and the device access to the memory that the request names by address, and the
    /// memory stays valid for them as long as they use it.
    ///
    /// # Errors
    /// `EOVERFLOW` if request or response don't fit the header's fields, or there is no room for the header.
    pub unsafe fn new(command: u32, words: &'a mut [u64], response: &'a mut [u8]) -> Result<Self, Errno> {
        Self::build(command, words, response)
    }

    #[inline]
    fn build(command: u32, words: &'a mut [u64], response: &'a mut [u8]) -> Result<Self, Errno> {
        let (Ok(in_words), Ok(out_words)) =
            (u16::try_from(words.len() * 2), u16::try_from(response.len() / 4))
        else {
            return Err(Errno::EOVERFLOW);
        };
        if words.len() < 1 + usize::from(!response.is_empty()) {
            return Err(Errno::EOVERFLOW);
        }
        words[0] = transmute!(ib_uverbs_cmd_hdr { command, in_words, out_words });
        Ok(Self { words, response })
    }

    /// `IB_USER_VERBS_CMD_*`
    #[must_use]
    pub fn command(&self) -> u32 {
        let header: ib_uverbs_cmd_hdr = transmute!(self.words[0]);
        header.command
    }

    /// The request without header and response address.
    #[must_use]
    pub fn request(&self) -> &[u8] {
        self.words[1 + usize::from(!self.response.is_empty())..].as_bytes()
    }

    /// Room for the response.
    #[must_use]
    pub fn response(&mut self) -> &mut [u8] {
        self.response
    }

    /// All bytes, with the address of the response. Taken right before the system call.
    #[inline]
    pub(super) fn encode(&mut self) -> &[u8] {
        if !self.response.is_empty() {
            self.words[1] = self.response.as_mut_ptr().expose_provenance() as u64;
        }
        self.words.as_bytes()
    }
}

/// Makes the kernel's rxe process a QP's send queue: `POST_SEND` without work requests, because they are in the shared
/// ring.
///
/// # Errors
/// The error that the kernel found in the ring, or its errno. WRs before the bad one are executed.
#[inline]
pub fn post_send_doorbell(kernel: &dyn Kernel, qp_handle: u32) -> Result<(), Errno> {
    const WORDS: usize = 1 + size_of::<ib_uverbs_post_send>() / 8;
    // uverbs requires the size of a work request even if there is none (`ib_uverbs_post_send()`).
    let request = ib_uverbs_post_send {
        qp_handle,
        wqe_size: size_of::<ib_uverbs_send_wr>() as u32,
        ..Default::default()
    };
    let mut words = [0_u64; WORDS];
    words[1..].as_mut_bytes().copy_from_slice(request.as_bytes());
    let mut response = ib_uverbs_post_send_resp::default();
    kernel.write(&mut WriteCommand::build(IB_USER_VERBS_CMD_POST_SEND, &mut words, response.as_mut_bytes())?)
}

/// Asks the kernel for an event at the CQ's next completion, or at its next solicited one (ibv_req_notify_cq(3)).
///
/// # Errors
/// The kernel's errno.
#[inline]
pub fn req_notify_cq(kernel: &dyn Kernel, cq_handle: u32, solicited_only: bool) -> Result<(), Errno> {
    let request = ib_uverbs_req_notify_cq { cq_handle, solicited_only: solicited_only.into() };
    let mut words = [0, transmute!(request)];
    kernel.write(&mut WriteCommand::build(IB_USER_VERBS_CMD_REQ_NOTIFY_CQ, &mut words, &mut [])?)
}
