// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues: polling, arming, resizing (ibv_create_cq(3), ibv_poll_cq(3), ibv_req_notify_cq(3),
//! ibv_resize_cq(3)).

use crate::brief::brief;
use crate::comp_channel::{ChannelInner, CompletionChannel};
use crate::context::{Context, ContextInner, Object, same_context};
pub use crate::id::CqId;
use crate::open::AnyDriver;
use std::sync::Arc;
use uverbs_core::attr::{CqInitAttr, CqModeration};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Removal;
use uverbs_core::provider::completion::{Claimant, CompletionQueue as Engine};
use uverbs_core::provider::{CqObject as _, CqParts, Driver, Life, Object as _, PollError, raw};
use uverbs_core::sync::{Exclusive, LockError, Locked, Locking, Shared};
use uverbs_core::wc::WorkCompletion;

/// The kernel object of a CQ; QPs hold it, so it outlives them.
pub(crate) struct CqInner<D: Driver> {
    object: Life<D::Cq>,
    event_id: u64,
    channel: Option<Arc<ChannelInner<D>>>,
    context: Arc<ContextInner<D>>,
}

brief!([D: Driver] CqInner<D>, |this| "Cq {:?} of {}", this.object.object().ok().map(|cq| cq.handle().handle()), this.context.name());

impl<D: Driver> CqInner<D> {
    pub(crate) fn context(&self) -> &Arc<ContextInner<D>> {
        &self.context
    }

    /// For its verbs, and for the creation of QPs and SRQs.
    pub(crate) fn object(&self) -> Result<&D::Cq> {
        self.object.object()
    }
}

impl<D: Driver> Drop for CqInner<D> {
    fn drop(&mut self) {
        self.context.forget_object(self.event_id);
    }
}

/// A completion queue.
///
/// With [`Exclusive`] locking it is polled through `&mut`; with [`Shared`], by any thread through `&`.
///
/// A program that sleeps arms the queue, polls once more, and then waits:
/// ```
/// # use uverbs::{ConnectAttr, Rc, attr::QpCap};
/// use uverbs::{Context, WorkCompletion, mlx5::Mlx5};
/// use uverbs_hca::Hca;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// let channel = context.create_comp_channel()?;
/// let cq = context.create_cq(16, Some(&channel))?;
/// # let pd = context.alloc_pd()?;
/// # let cap = QpCap::new(4, 4).inline(64);
/// # let (mut qp, attr) = (pd.raw_qp::<Rc>().cq(&cq).cap(cap).create()?, ConnectAttr::default());
/// # qp.init(&attr)?;
/// # let end = qp.control.endpoint(1, &attr)?;
/// # qp.connect(&end, &end, &attr)?;
/// # // SAFETY: the receive names no memory.
/// # unsafe { qp.rq()?.post(2, &[])? };
/// cq.req_notify(false)?;
/// // A QP of this queue completes a send and a receive.
/// # qp.sq().post(1).signaled().send_inline(b"")?;
///
/// let mut wc = [WorkCompletion::default(); 8];
/// let mut done = Vec::new();
/// loop {
///     let polled = cq.poll(&mut wc)?;
///     done.extend(polled.iter().map(|wc| (wc.wr_id, wc.status.is_success())));
///     if done.len() == 2 {
///         break;
///     }
///     // The queue was armed before this poll, so a later completion raises an event.
///     assert_eq!(channel.get_event()?, cq.id());
///     cq.req_notify(false)?;
/// }
/// assert!(done.contains(&(1, true)) && done.contains(&(2, true)));
/// # Ok(())
/// # }
/// ```
pub struct Cq<L: Locking = Exclusive, D: Driver = AnyDriver> {
    engine: Locked<D::CompletionQueue, L>,
    inner: Arc<CqInner<D>>,
    removal: Arc<Removal>,
}

brief!([L: Locking, D: Driver] Cq<L, D>, |this| "{:?}", this.inner);

impl<D: Driver> Context<D> {
    /// `ibv_create_cq`: creates a CQ that any thread can use, as in C.
    ///
    /// # Errors
    /// As [`create_cq_ex`](Self::create_cq_ex).
    pub fn create_cq(&self, cqe: u32, channel: Option<&CompletionChannel<D>>) -> Result<Cq<Shared, D>> {
        self.create_cq_ex(&CqInitAttr::new(cqe), channel)
    }

    /// `ibv_create_cq_ex`, with the locking `L`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a size or a vector above the device's limit, or a channel of another context;
    /// `Unsupported` for fields or flags that the device does not have; otherwise the kernel's error, such as `ENOMEM`.
    pub fn create_cq_ex<L: Locking>(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompletionChannel<D>>,
    ) -> Result<Cq<L, D>> {
        Cq::create(self.inner(), attr, channel.map(CompletionChannel::inner))
    }
}

impl<D: Driver, L: Locking> Cq<L, D> {
    fn create(
        context: &Arc<ContextInner<D>>,
        attr: &CqInitAttr,
        channel: Option<&Arc<ChannelInner<D>>>,
    ) -> Result<Self> {
        let vectors = context.num_comp_vectors();
        if attr.comp_vector >= vectors.max(1) {
            let reason = format!("{}: the device has {vectors}", attr.comp_vector);
            return Err(Error::invalid("create_cq", "comp_vector", reason));
        }
        if let Some(channel) = channel {
            same_context(context, channel.context(), "create_cq", "channel")?;
        }
        let event_id = context.remember_object(Object::Cq(None));
        let channel_handle = channel.map(|c| c.handle());
        let parts = context.driver().create_cq(attr, channel_handle, event_id);
        let CqParts { cq, queue, cqe: _ } = parts.inspect_err(|_| context.forget_object(event_id))?;
        context.update_object(event_id, Object::Cq(Some(cq.notify())));
        let inner = CqInner {
            object: Life::new("cq", cq),
            event_id,
            channel: channel.cloned(),
            context: context.clone(),
        };
        let removal = context.removal().clone();
        Ok(Self { engine: Locked::new(queue), inner: Arc::new(inner), removal })
    }

    /// The result of a poll that has found `n`: an empty queue of a removed device stays empty.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn found(&self, n: usize) -> Result<usize, PollError> {
        if n == 0 && self.removal.is_removed() { Err(PollError::Removed) } else { Ok(n) }
    }

    pub(crate) fn inner(&self) -> &Arc<CqInner<D>> {
        &self.inner
    }

    /// Identifies this CQ in the events of its completion channel and in asynchronous events.
    #[must_use]
    pub fn id(&self) -> CqId {
        CqId(self.inner.event_id)
    }

    /// Whether it was created with a completion channel.
    #[must_use]
    pub fn has_channel(&self) -> bool {
        self.inner.channel.is_some()
    }

    /// `ibv_modify_cq`: the number of completions, and the time in microseconds, by which an event may be delayed.
    ///
    /// # Errors
    /// `Unsupported` if the device can't hold events back; otherwise the kernel's error.
    pub fn modify_moderation(&self, moderation: CqModeration) -> Result<()> {
        self.inner.object()?.moderate(moderation)
    }

    /// `ibv_poll_cq`, as C calls it.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] for a value in the ring that no correct device writes; [`PollError::SessionOpen`] if this
    /// thread has a poll open; [`PollError::Forked`] in a child of fork(2).
    ///
    /// # Safety
    /// With [`Exclusive`] locking no other thread uses this queue during the call.
    #[expect(unsafe_code, reason = "C's contract: the caller guarantees exclusive use")]
    pub unsafe fn poll_raw(&self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        // SAFETY: if the queue has no lock, no other thread uses it during the call (the contract of this function).
        unsafe { raw::poll_cq(&self.engine, wc) }
    }

    /// The engine behind its lock, for faces that are built on this crate. A program that swaps it with that of another CQ polls the other
    /// queue.
    #[must_use]
    pub fn as_locked(&self) -> &Locked<D::CompletionQueue, L> {
        &self.engine
    }

    /// Destroys it. On failure, which `Drop` would only log, returns it with the error. `EBUSY` while QPs or SRQs use
    /// it.
    ///
    /// # Errors
    /// `EBUSY` as above; otherwise the kernel's error.
    pub fn close(mut self) -> Result<(), (Self, Error)> {
        let destroyed = match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner.object.destroy().map(drop),
            None => Err(Error::Os {
                verb: "destroy_cq",
                object: "cq: QPs or SRQs still use it".into(),
                errno: uverbs_core::Errno::EBUSY,
            }),
        };
        destroyed.map_err(|error| (self, error))
    }
}

impl<D: Driver> Cq<Exclusive, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn with<R>(&mut self, f: impl FnOnce(&mut D::CompletionQueue) -> R) -> Result<R, LockError> {
        Ok(f(self.engine.get_mut()))
    }

    /// Whether a poll would find neither a completion nor an error; `false` if only a poll can tell. It costs less than a poll that
    /// finds nothing, for example that after [`req_notify`](Self::req_notify).
    #[inline]
    pub fn is_surely_empty(&mut self) -> bool {
        self.engine.get_mut().is_surely_empty() && !self.removal.is_removed()
    }
}

impl<D: Driver> Cq<Shared, D> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn with<R>(&self, f: impl FnOnce(&mut D::CompletionQueue) -> R) -> Result<R, LockError> {
        Ok(f(&mut *self.engine.lock()?))
    }
}

/// The polling calls: through `&mut` without a lock, through `&` with one.
macro_rules! polling {
    ($locking:ident, $($this:tt)*) => {
        impl<D: Driver> Cq<$locking, D> {
            /// Polls up to `max` completions, passes each to `f` and returns their number. A field of a completion is decoded by
            /// its method.
            ///
            /// # Errors
            /// [`PollError::Corrupt`] for a value in the ring that no correct device writes; [`PollError::SessionOpen`]
            /// if this thread has a poll open; [`PollError::Forked`] in a child of fork(2); [`PollError::Removed`] when the
            /// queue of a removed device is empty.
            #[inline]
            pub fn poll_each(
                $($this)* self,
                max: usize,
                f: impl FnMut(&<D::CompletionQueue as Engine>::Completion<'_>),
            ) -> Result<usize, PollError> {
                let n = self.with(|engine| engine.poll_each(max, f))??;
                self.found(n)
            }

            /// As `poll_each`, in two steps.
            #[inline]
            pub(crate) fn poll_claiming(
                $($this)* self,
                max: usize,
                claimant: impl Claimant<D::CompletionQueue>,
            ) -> Result<usize, PollError> {
                let n = self.with(|engine| engine.poll_claiming(max, claimant))??;
                self.found(n)
            }

            /// `ibv_poll_cq`: fills `wc` from the front and returns the part that was filled.
            ///
            /// # Errors
            /// [`PollError::Corrupt`] for a value in the ring that no correct device writes; [`PollError::SessionOpen`]
            /// if this thread has a poll open; [`PollError::Forked`] in a child of fork(2); [`PollError::Removed`] when the
            /// queue of a removed device is empty.
            #[inline]
            pub fn poll<'w>(
                $($this)* self,
                wc: &'w mut [WorkCompletion],
            ) -> Result<&'w [WorkCompletion], PollError> {
                let n = self.with(|engine| engine.poll_cq(wc))??;
                self.found(n)?;
                Ok(wc.get(..n).unwrap_or_default())
            }

            /// Extended polling (`ibv_start_poll` .. `ibv_end_poll`): `f` begins at the first completion and advances
            /// by [`Poll::next`]. [`PollError::Empty`] if there is no completion.
            ///
            /// # Errors
            /// [`PollError::Empty`] as above; otherwise as `poll`.
            #[inline]
            pub fn poll_session<R>($($this)* self, f: impl FnOnce(&mut Poll<'_, D>) -> R) -> Result<R, PollError> {
                let polled = self.with(|engine| {
                    engine.start_poll()?;
                    Ok(f(&mut Poll { engine }))
                })?;
                match polled {
                    Err(PollError::Empty) if self.removal.is_removed() => Err(PollError::Removed),
                    polled => polled,
                }
            }

            /// `ibv_req_notify_cq`: requests one event for the next (solicited) completion.
            ///
            /// Poll again after arming, because a completion that was added before does not cause an event.
            ///
            /// # Errors
            /// [`PollError::SessionOpen`] if this thread has a poll open; [`PollError::Arm`] if the doorbell failed,
            /// where it is a system call.
            pub fn req_notify($($this)* self, solicited_only: bool) -> Result<(), PollError> {
                self.with(|engine| engine.req_notify(solicited_only))?
            }

            /// `ibv_resize_cq`: room for at least `cqe` completions; none is lost. Returns the new room.
            ///
            /// # Errors
            /// `EBUSY` if this thread has a poll open; [`Error::Invalid`] for a size above the device's limit;
            /// `Unsupported` if the device can't; otherwise the kernel's error.
            pub fn resize($($this)* self, cqe: u32) -> Result<u32> {
                let inner = self.inner.clone();
                let object = inner.object()?;
                let resized = self.with(|engine| object.resize(engine, cqe));
                resized.map_err(|_| Error::os("resize_cq", "cq: a poll is open", uverbs_core::Errno::EBUSY))?
            }
        }
    };
}

polling!(Exclusive, &mut);
polling!(Shared, &);

/// An open extended poll; it ends when it is dropped.
pub struct Poll<'q, D: Driver> {
    engine: &'q mut D::CompletionQueue,
}

brief!([D: Driver] Poll<'_, D>, |this| "Poll of {} entries", this.engine.cqe());

impl<D: Driver> Poll<'_, D> {
    /// The current completion of the poll; `None` only if the queue is corrupt.
    #[inline]
    #[must_use]
    pub fn current(&self) -> Option<<D::CompletionQueue as Engine>::Completion<'_>> {
        self.engine.current()
    }

    /// Advances to the next completion. [`PollError::Empty`] after the last one.
    ///
    /// # Errors
    /// [`PollError::Empty`] as above; [`PollError::Corrupt`] for a value in the ring that no correct device writes.
    #[expect(clippy::should_implement_trait, reason = "`ibv_next_poll`; it lends, which an iterator can't")]
    #[inline]
    pub fn next(&mut self) -> Result<(), PollError> {
        self.engine.next_poll()
    }
}

impl<D: Driver> Drop for Poll<'_, D> {
    fn drop(&mut self) {
        self.engine.end_poll();
    }
}
