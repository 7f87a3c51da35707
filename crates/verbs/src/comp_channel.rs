// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion channels: waiting for completions instead of polling for them (ibv_create_comp_channel(3),
//! ibv_get_cq_event(3)).

use crate::brief::brief;
use crate::context::{Context, ContextInner, Object};
use crate::id::CqId;
use crate::open::AnyDriver;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};
use uverbs_core::control::{self, CompChannelHandle};
use uverbs_core::error::Result;
use uverbs_core::provider::{Driver, Notify};

/// The channel that its CQs hold.
pub(crate) struct ChannelInner<D: Driver> {
    handle: CompChannelHandle,
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] ChannelInner<D>, |this| "CompletionChannel of {}", this.context.name());

impl<D: Driver> ChannelInner<D> {
    pub(crate) fn handle(&self) -> &CompChannelHandle {
        &self.handle
    }

    pub(crate) fn context(&self) -> &Arc<ContextInner<D>> {
        &self.context
    }
}

/// The CQ of the last event that [`CompletionChannel::next_event_of`] returned.
#[derive(Default)]
pub struct CqEvents {
    last: Option<(u64, Weak<dyn Notify>)>,
}

brief!([] CqEvents, |this| "CqEvents {:?}", this.last.as_ref().map(|(id, _)| id));

/// A completion channel: a descriptor that becomes readable when an armed CQ gets a completion (ibv_get_cq_event(3)).
///
/// The example of [`Cq`](crate::raw::Cq) shows the order of arming, polling and waiting, which misses
/// no completion. The channel is closed when it and all CQs created with it are dropped.
pub struct CompletionChannel<D: Driver = AnyDriver> {
    inner: Arc<ChannelInner<D>>,
}

brief!([D: Driver] CompletionChannel<D>, |this| "{:?}", this.inner);

impl<D: Driver> Context<D> {
    /// `ibv_create_comp_channel`: creates a channel, in which each wait blocks.
    ///
    /// # Errors
    /// The kernel's error, such as `EMFILE`.
    pub fn create_comp_channel(&self) -> Result<CompletionChannel<D>> {
        let context = self.inner();
        let handle = control::comp_channel::create(context.kernel())?;
        Ok(CompletionChannel { inner: Arc::new(ChannelInner { handle, context: context.clone() }) })
    }
}

impl<D: Driver> CompletionChannel<D> {
    pub(crate) fn inner(&self) -> &Arc<ChannelInner<D>> {
        &self.inner
    }

    /// Sets whether [`get_event`](Self::get_event) returns `EAGAIN` instead of waiting (`O_NONBLOCK`).
    ///
    /// # Errors
    /// The error of fcntl(2).
    pub fn set_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.inner.handle.set_nonblocking(nonblocking)
    }

    /// `ibv_get_cq_event`: waits for an event and returns the id of its CQ. Arm the CQ again and then poll it;
    /// otherwise a completion can be missed.
    ///
    /// An event is a number: it needs no acknowledgement, and a CQ can be destroyed at any time (events of a destroyed
    /// CQ are skipped). `EAGAIN` if the descriptor is non-blocking and there is no event.
    ///
    /// # Errors
    /// `EAGAIN` as above; `EIO` if the device was removed.
    pub fn get_event(&self) -> Result<CqId> {
        loop {
            if let Some(id) = self.known(self.inner.handle.read_event()?) {
                return Ok(id);
            }
        }
    }

    /// As [`get_event`](Self::get_event), but `None` if there is no event and the descriptor is non-blocking: a loop that takes
    /// all events makes no error for the last one.
    ///
    /// # Errors
    /// `EIO` if the device was removed.
    pub fn next_event(&self) -> Result<Option<CqId>> {
        while let Some(id) = self.inner.handle.next_event()? {
            if let Some(id) = self.known(id) {
                return Ok(Some(id));
            }
        }
        Ok(None)
    }

    /// As [`next_event`](Self::next_event), for a channel with few CQs: if the event is that of the same CQ as the last one, the
    /// CQ is not looked up.
    ///
    /// # Errors
    /// `EIO` if the device was removed.
    #[inline]
    pub fn next_event_of(&self, last: &mut CqEvents) -> Result<Option<CqId>> {
        while let Some(id) = self.inner.handle.next_event()? {
            if let Some((last, cq)) = &last.last
                && *last == id
                && let Some(cq) = cq.upgrade()
            {
                cq.cq_event();
                return Ok(Some(CqId(id)));
            }
            if let Some(found) = self.look_up(id, last) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds the CQ of an event, for the next ones.
    #[cold]
    fn look_up(&self, id: u64, last: &mut CqEvents) -> Option<CqId> {
        let found = self.known(id)?;
        if let Some(Object::Cq(Some(cq))) = self.inner.context.object(id) {
            last.last = Some((id, Arc::downgrade(&cq)));
        }
        Some(found)
    }

    /// The CQ of an event, if it was not destroyed.
    fn known(&self, id: u64) -> Option<CqId> {
        self.inner.context.note_cq_event(id).then_some(CqId(id))
    }
}

impl<D: Driver> AsFd for CompletionChannel<D> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.handle.as_fd()
    }
}

impl<D: Driver> AsRawFd for CompletionChannel<D> {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
