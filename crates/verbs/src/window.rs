// SPDX-License-Identifier: MIT OR Apache-2.0
//! Windows: access of a peer to one exposed buffer that ends when the window is dropped.
//!
//! The key of an exposed pool opens the whole pool for as long as the pool is registered. A window has a key of its own, for
//! one buffer. When the window is dropped, the device refuses the key, and then the buffer goes back to its pool. A work request
//! ends the key, too, without a system call: [`Wr::local_inv`](super::Wr::local_inv).
#![expect(unsafe_code)]
// UNSAFETY: takes a window out of the word that a work request holds, and its parts out of the window.

use crate::held::{Held, Value};
use crate::mr::Exposed;
use crate::mw::{MemoryWindow, inc_rkey};
use crate::open::AnyDriver;
use crate::pool::{Buf, NO_DOMAIN, RawBuf, describe, domain_of};
use crate::rejected::{Lend, sealed};
use crate::remote::RemoteRegion;
use core::fmt;
use core::mem::ManuallyDrop;
use core::sync::atomic::AtomicU64;
use uverbs_core::attr::{AccessFlags, MwType};
use uverbs_core::error::Result;
use uverbs_core::provider::Driver;
use uverbs_core::provider::op::MwBind;
use uverbs_core::wc::WcStatus;

/// The parts of a window. A drop ends the key before it gives the buffer back, as [`Window::close`].
///
/// Aligned so that the low bits of its address are free for the kind, see [`Held`].
#[repr(align(16))]
pub(super) struct WindowParts<D: Driver>(ManuallyDrop<Parts<D>>);

struct Parts<D: Driver> {
    window: MemoryWindow<D>,
    buf: RawBuf<D>,
    /// The bind that was posted last.
    bind: Option<MwBind>,
    /// The bind that has opened it.
    open: Option<MwBind>,
    /// Whether an invalidation is posted.
    ends: bool,
    /// Whether a bind has ended with an error after which the device may have executed it.
    is_unsure: bool,
}

impl<D: Driver> WindowParts<D> {
    fn into_parts(self) -> Parts<D> {
        // SAFETY: the value is not used again, and its drop does not run.
        unsafe { ManuallyDrop::take(&mut ManuallyDrop::new(self).0) }
    }
}

impl<D: Driver> Drop for WindowParts<D> {
    fn drop(&mut self) {
        // SAFETY: the value is not used again.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        if let Err(error) = parts.close() {
            log::error!("{error}; a buffer is lost");
        }
    }
}

impl<D: Driver> Parts<D> {
    /// Ends the key and returns the buffer. If the kernel refuses, the buffer is leaked, because the peer may still access it.
    fn close(self) -> Result<RawBuf<D>> {
        let Self { window, buf, .. } = self;
        match window.close() {
            Ok(()) => Ok(buf),
            Err(error) => {
                core::mem::forget(buf);
                Err(error)
            }
        }
    }
}

/// A window to an exposed buffer.
///
/// A drop is a [`close`](Self::close) that gives the buffer back to its pool; a failure is logged.
pub struct Window<D: Driver = AnyDriver> {
    parts: Box<WindowParts<D>>,
}

impl<D: Driver> fmt::Debug for Window<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("open", &self.parts.0.open.is_some())
            .field("rkey", &self.parts.0.window.rkey())
            .finish()
    }
}

impl<D: Driver> Window<D> {
    /// A closed window to the buffer, whose pool was created with `MW_BIND`. It is opened by
    /// [`bind`](super::Wr::bind).
    #[must_use]
    pub fn new(window: MemoryWindow<D>, buf: Buf<Exposed, D>) -> Self {
        let mut buf = buf.into_raw();
        // If its pool is not in the window's domain, a bind is refused.
        buf.move_to(domain_of(window.pd()));
        let parts = Parts { window, buf, bind: None, open: None, ends: false, is_unsure: false };
        Self { parts: Box::new(WindowParts(ManuallyDrop::new(parts))) }
    }

    /// The description for the peer; `None` if the window is not open.
    #[must_use]
    pub fn remote_region(&self) -> Option<RemoteRegion> {
        let Parts { window, buf, open, .. } = &*self.parts.0;
        open.as_ref().map(|bind| {
            // The peer counts the bytes of such a window from 0.
            let zero_based = AccessFlags::from_bits_retain(bind.access).contains(AccessFlags::ZERO_BASED);
            let addr = if zero_based { 0 } else { buf.addr() };
            describe(addr, buf, window.rkey())
        })
    }

    /// Copies bytes of the buffer out, from `offset` on. Data that a peer writes at the same time may be copied in part.
    ///
    /// # Errors
    /// A range outside the capacity.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        self.parts.0.buf.read_at(offset, out)
    }

    /// Copies bytes into the buffer, from `offset` on.
    ///
    /// # Errors
    /// A range outside the capacity.
    pub fn write_at(&self, offset: usize, data: &[u8]) -> Result<()> {
        self.parts.0.buf.write_at(offset, data)
    }

    /// The aligned word of 8 bytes at `offset` of the buffer. [`Buf::atomic_u64`] says with what its accesses are atomic.
    ///
    /// # Errors
    /// A word outside the capacity, or not aligned.
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64> {
        self.parts.0.buf.atomic_u64(offset)
    }

    /// The window and the buffer, each for itself, without a system call.
    ///
    /// # Errors
    /// The window, if it is open: [`local_inv`](super::Wr::local_inv) ends the access of the peer, and so does [`close`](Self::close). Also if
    /// its bind was flushed: the device may have executed it before the error of an earlier work request.
    pub fn into_parts(self) -> Result<(MemoryWindow<D>, Buf<Exposed, D>), Self> {
        let Parts { open, is_unsure, .. } = &*self.parts.0;
        if open.is_some() || *is_unsure {
            return Err(self);
        }
        let Parts { window, buf, .. } = self.parts.into_parts();
        Ok((window, Buf::from_raw(buf)))
    }

    /// Ends the access of the peer and returns the buffer.
    ///
    /// # Errors
    /// The kernel's refusal to deallocate the window. The buffer is then lost, because the peer may still access it.
    pub fn close(self) -> Result<Buf<Exposed, D>> {
        self.parts.into_parts().close().map(Buf::from_raw)
    }

    /// The identity of its domain; that of no queue, if the window and the buffer are of two domains.
    pub(super) fn domain(&self) -> u64 {
        let domain = self.parts.0.buf.domain();
        if domain_of(self.parts.0.window.pd()) == domain { domain } else { NO_DOMAIN }
    }

    /// The bind that opens it.
    pub(super) fn begin(&mut self, access: AccessFlags) -> MwBind {
        let Parts { window, buf, bind, .. } = &mut *self.parts.0;
        *bind.insert(MwBind {
            mw_rkey: window.rkey(),
            mw_type: window.mw_type() as u32,
            rkey: inc_rkey(window.rkey()),
            mr_lkey: buf.lkey(),
            addr: buf.addr(),
            length: buf.capacity().into(),
            access: access.bits(),
        })
    }

    /// The key, if the window is open and a work request can end it.
    pub(super) fn begin_end(&mut self) -> Option<u32> {
        let Parts { window, open, ends, .. } = &mut *self.parts.0;
        *ends = open.is_some() && window.mw_type() == MwType::Type2;
        ends.then(|| window.rkey())
    }

    /// After the completion of the bind, or of the invalidation.
    fn end(&mut self, status: WcStatus) {
        let Parts { window, bind, open, ends, is_unsure, .. } = &mut *self.parts.0;
        if core::mem::take(ends) && status.is_success() {
            *open = None;
        }
        let Some(bind) = bind.take() else { return };
        *is_unsure = may_be_executed(status);
        if status.is_success() {
            window.bound(&bind);
            *open = Some(bind);
        }
    }
}

impl<D: Driver> Lend<D> for Window<D> {}
#[expect(private_interfaces, reason = "only this crate implements it")]
impl<D: Driver> sealed::Lend<D> for Window<D> {
    type Note = ();
    fn note(&self) {}
    fn lend(self) -> Held<D> {
        Held::window(self.parts)
    }
    unsafe fn give_back(held: Held<D>, _: impl FnOnce() -> Option<u32>) -> Option<Self> {
        // SAFETY: the contract of this function.
        match unsafe { held.open() } {
            Value::Window(parts) => Some(Self { parts }),
            _ => None,
        }
    }
    fn noted(mut self, (): ()) -> Self {
        let Parts { bind, ends, .. } = &mut *self.parts.0;
        (*bind, *ends) = (None, false);
        self
    }
    fn completed(&mut self, status: WcStatus) {
        self.end(status);
    }
}

/// Whether the device may have executed a local work request that has this error. A flush says no more than that an earlier work request had
/// an error, perhaps one of its peer, which it did not wait for.
pub(super) fn may_be_executed(status: WcStatus) -> bool {
    const REFUSED: [WcStatus; 4] =
        [WcStatus::MW_BIND_ERR, WcStatus::LOC_QP_OP_ERR, WcStatus::LOC_PROT_ERR, WcStatus::LOC_LEN_ERR];
    !status.is_success() && !REFUSED.contains(&status)
}
