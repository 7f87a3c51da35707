// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue of owned queues: a completion gives back what its work request owned.
#![expect(unsafe_code)]
// UNSAFETY: takes the values of work requests out of the slab, once.

use crate::access::Access;
use crate::brief::brief;
use crate::comp_channel::CompletionChannel;
use crate::context::Context;
use crate::count::CqCounts;
use crate::done::Done;
use crate::flight::{Entry, is_receive};
use crate::held::{HeldKind, HeldOnce};
use crate::known::{Claim, Known};
use crate::mr::Private;
use crate::open::AnyDriver;
use crate::pool::Buf;
use crate::rejected::Lend;
use crate::wait::Waits;
use crate::{id::CqId, raw};
use core::fmt;
use std::collections::VecDeque;
use std::sync::Arc;
use uverbs_core::attr::CqInitAttr;
use uverbs_core::error::Result;
use uverbs_core::provider::completion::{Claimant, Completion, CompletionQueue as Engine};
use uverbs_core::provider::{Driver, PollError};
use uverbs_core::sync::{Exclusive, Locked, Locking, Shared};
use uverbs_core::wc::{WcError, WcFlags, WcOpcode, WcStatus, WorkCompletion};
use uverbs_core::wr::ImmData;

/// A completion queue of owned queues. Only owned queues can complete to it, because the `wr_id`s of others would be mistaken
/// for those of owned work requests.
pub struct Cq<L: Locking = Exclusive, D: Driver = AnyDriver> {
    queue: raw::Cq<L, D>,
    state: Locked<State<D>, L>,
    /// For [`wait`](Self::wait).
    waits: Arc<Waits<D>>,
    /// Those of the poller.
    #[cfg_attr(not(feature = "counters"), expect(dead_code, reason = "counts nothing"))]
    counts: CqCounts,
}

brief!([L: Locking, D: Driver] Cq<L, D>, |this| "{:?}", this.queue);

/// What a poll uses besides the queue.
struct State<D: Driver> {
    known: Known<D>,
    /// Completions that a [scope](super::Scope) polled and that are not its own.
    kept: VecDeque<Completed<D>>,
}

brief!([D: Driver] State<D>, |this| "State {{ kept: {} }}", this.kept.len());

impl<D: Driver> Context<D> {
    /// `ibv_create_cq`, with a completion channel of its own for [`Cq::wait`], which is a file descriptor. It is used through `&mut`;
    /// [`shared_cq`](Self::shared_cq) makes one for several threads.
    ///
    /// # Errors
    /// As [`create_cq_ex`](Self::create_cq_ex), and [`create_comp_channel`](Self::create_comp_channel).
    pub fn cq(&self, cqe: u32) -> Result<Cq<Exclusive, D>> {
        self.waiting_cq(cqe)
    }

    /// As [`cq`](Self::cq), with a lock.
    ///
    /// # Errors
    /// As `cq`.
    pub fn shared_cq(&self, cqe: u32) -> Result<Cq<Shared, D>> {
        self.waiting_cq(cqe)
    }

    fn waiting_cq<L: Locking>(&self, cqe: u32) -> Result<Cq<L, D>> {
        let channel = self.create_comp_channel()?;
        channel.set_nonblocking(true)?;
        let cq = self.cq_with(cqe, Some(&channel))?;
        Ok(Cq { waits: Arc::new(Waits::new(Some(channel))), ..cq })
    }

    /// `ibv_create_cq_ex`, with the locking `L`, and with a channel of the program or without one.
    ///
    /// # Errors
    /// As [`create_cq_ex`](Self::create_cq_ex).
    pub fn cq_with<L: Locking>(&self, cqe: u32, channel: Option<&CompletionChannel<D>>) -> Result<Cq<L, D>> {
        self.cq_ex(&CqInitAttr::new(cqe), channel)
    }

    /// As [`cq_with`](Self::cq_with), with all attributes.
    ///
    /// # Errors
    /// As [`create_cq_ex`](Self::create_cq_ex).
    pub fn cq_ex<L: Locking>(
        &self,
        attr: &CqInitAttr,
        channel: Option<&CompletionChannel<D>>,
    ) -> Result<Cq<L, D>> {
        let queue = self.create_cq_ex::<L>(attr, channel)?;
        let known = Known::new(self.inner().clone(), queue.id().0);
        let counts = known.counts().clone();
        Ok(Cq {
            queue,
            counts,
            state: Locked::new(State { known, kept: VecDeque::new() }),
            waits: Arc::new(Waits::new(None)),
        })
    }
}

impl<D: Driver, L: Locking> Cq<L, D> {
    /// What its waits share.
    pub(crate) fn waits(&self) -> &Arc<Waits<D>> {
        &self.waits
    }

    #[cfg(feature = "counters")]
    pub(crate) fn counts(&self) -> &CqCounts {
        &self.counts
    }

    /// The name of its device.
    pub(crate) fn device(&self) -> &str {
        self.queue.inner().context().name()
    }

    pub(super) fn queue(&self) -> &raw::Cq<L, D> {
        &self.queue
    }

    /// Identifies this CQ in the events of its completion channel and in asynchronous events.
    #[must_use]
    pub fn id(&self) -> CqId {
        self.queue.id()
    }
}

/// The fields of a completion: in the ring, or copied.
enum Fields<'a, 'c, D: Driver>
where
    D::CompletionQueue: 'c,
{
    Ring(&'a <D::CompletionQueue as Engine>::Completion<'c>),
    Kept(&'a WorkCompletion),
}

macro_rules! fields {
    ($($(#[$meta:meta])* $name:ident: $ty:ty;)*) => {
        impl<D: Driver> Fields<'_, '_, D> {
            $(
                #[inline]
                fn $name(&self) -> $ty {
                    match self {
                        Self::Ring(completion) => completion.$name(),
                        Self::Kept(wc) => wc.$name,
                    }
                }
            )*
        }
        impl<D: Driver> Polled<'_, '_, D> {
            $(
                $(#[$meta])*
                #[cfg_attr(not(debug_assertions), inline(always))]
                #[must_use]
                pub fn $name(&self) -> $ty {
                    self.fields.$name()
                }
            )*
        }
    };
}

fields! {
    /// Opcode of the completed work request.
    opcode: WcOpcode;
    /// Bytes: receives, reads, atomics.
    byte_len: u32;
    /// The local QP.
    qp_num: u32;
    /// The sender's QP (UD).
    src_qp: u32;
    /// Vendor's reason of an error.
    vendor_err: u32;
    /// Which fields are valid, and which checks the device made.
    wc_flags: WcFlags;
    /// `imm_data` (`__be32`) or `invalidated_rkey`, by [`wc_flags`](Self::wc_flags).
    imm_data_or_invalidated_rkey: u32;
}

/// A completion in the callback of [`Cq::poll_each`]. What its work request owned is dropped with it, unless it is
/// [taken](Self::take).
#[must_use = "the buffer goes back to its pool when this is dropped"]
pub struct Polled<'a, 'c, D: Driver>
where
    D::CompletionQueue: 'c,
{
    fields: Fields<'a, 'c, D>,
    known: &'a Known<D>,
    wr_id: u64,
    status: WcStatus,
    /// Whether it is a receive.
    received: bool,
    held: HeldOnce<D>,
}

impl<D: Driver> fmt::Debug for Polled<'_, '_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Polled")
            .field("wr_id", &self.wr_id)
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Fields<'_, '_, D> {
    /// See [`Completion::received_len`].
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn received_len(&self) -> u32 {
        match self {
            Self::Ring(completion) => completion.received_len(),
            Self::Kept(wc) if wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM => 0,
            Self::Kept(wc) => wc.byte_len,
        }
    }
}

impl<D: Driver> Polled<'_, '_, D> {
    /// The id that the post was given.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    /// The result of the work request.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn status(&self) -> WcStatus {
        self.status
    }

    /// `Ok` for success, else an error with the QP, the device, the `wr_id` and the reason.
    ///
    /// # Errors
    /// A status other than success.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn ok(&self) -> Result<(), WcError> {
        if self.status.is_success() { Ok(()) } else { Err(self.error()) }
    }

    #[cold]
    fn error(&self) -> WcError {
        let error = of_device(&self.wc(), self.received, self.known.device_name());
        if let Fields::Ring(_) = self.fields {
            self.known.note(&error);
        }
        error
    }

    /// What [`Completed::error`] needs.
    #[cold]
    #[inline(never)]
    fn failure(&self) -> Box<Failure> {
        let _noted = self.error();
        Box::new(Failure { received: self.received, device: self.known.device_name().clone() })
    }

    /// Immediate data, if the message had any.
    #[must_use]
    pub fn imm_data(&self) -> Option<ImmData> {
        self.wc().imm_data()
    }

    /// All fields of `ibv_wc`.
    #[must_use]
    pub fn wc(&self) -> WorkCompletion {
        let wc = match &self.fields {
            Fields::Ring(completion) => completion.to_wc(),
            Fields::Kept(wc) => **wc,
        };
        WorkCompletion { wr_id: self.wr_id, ..wc }
    }

    /// What the work request owned, if it was a `B`: a [`Buf`] or a [`Window`](super::Window). The buffer of a successful receive has the length
    /// of the message.
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn take<B: Lend<D>>(self) -> Option<B> {
        let Self { fields, held, received, status, .. } = self;
        // SAFETY: `held` had the only copy.
        let mut value = unsafe {
            B::give_back(held.into_inner(), || {
                (received && status.is_success()).then(|| fields.received_len())
            })
        }?;
        value.completed(status);
        Some(value)
    }

    /// The private buffer of the work request; see [`take`](Self::take).
    #[cfg_attr(not(debug_assertions), inline(always))]
    #[must_use]
    pub fn buf(self) -> Option<Buf<Private, D>> {
        self.take()
    }

    /// The completion as a value of its own.
    pub fn complete(self) -> Completed<D> {
        let wc = self.wc();
        let received = self.received && wc.status.is_success();
        let len = received.then(|| self.fields.received_len());
        let failed = (!wc.status.is_success()).then(|| self.failure());
        Completed { wc, held: self.held, len, failed }
    }
}

/// The error of a completion of this device.
pub(crate) fn of_device(wc: &WorkCompletion, received: bool, device: &Arc<str>) -> WcError {
    let error = wc.to_error().on(device.clone());
    if received { error.with_opcode(WcOpcode::RECV) } else { error }
}

/// What the error of a completion has besides its fields.
#[derive(Debug)]
struct Failure {
    received: bool,
    device: Arc<str>,
}

/// A completion, with what its work request owned.
#[must_use = "the buffer goes back to its pool when this is dropped"]
pub struct Completed<D: Driver = AnyDriver> {
    /// The fields of `ibv_wc`. `wr_id` is that of the post.
    pub wc: WorkCompletion,
    held: HeldOnce<D>,
    /// The length of the message, for the buffer of a receive.
    len: Option<u32>,
    /// With a status other than success. One word, because a completion is moved.
    failed: Option<Box<Failure>>,
}

impl<D: Driver> fmt::Debug for Completed<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completed").field("wc", &self.wc).finish_non_exhaustive()
    }
}

impl<D: Driver> Completed<D> {
    /// What the work request did, with the buffer that it owned.
    ///
    /// # Errors
    /// The work request has failed. Its buffer goes back to its pool; a program that wants it looks at [`wc`](Self::wc) and calls
    /// [`take`](Self::take) instead.
    pub fn ok(self) -> Result<Done<D>, WcError> {
        match self.error() {
            None => Ok(Done::of(self)),
            Some(error) => Err(error),
        }
    }

    /// The error of a completion whose status is not success: with the QP, the device, the `wr_id` and the reason.
    #[inline]
    #[must_use]
    pub fn error(&self) -> Option<WcError> {
        match &self.failed {
            None => self.wc.ok().err(),
            Some(failed) => Some(of_device(&self.wc, failed.received, &failed.device)),
        }
    }

    /// Whether it owned a private buffer, or a part of one.
    pub(crate) fn has_buf(&self) -> bool {
        self.held.is(HeldKind::PRIVATE) || self.held.is(HeldKind::PRIVATE_PART)
    }

    /// Whether it owned no memory.
    pub(crate) fn has_nothing(&self) -> bool {
        self.held.is_nothing()
    }

    /// The private buffer of the work request; otherwise the completion, unchanged.
    pub(crate) fn into_buf(self) -> Result<Buf<Private, D>, Self> {
        if !self.has_buf() {
            return Err(self);
        }
        let (wc, len) = (self.wc, self.len);
        self.buf().ok_or_else(|| Self { wc, held: HeldOnce::nothing(), len, failed: None })
    }

    /// What the work request owned, if it was a `B`. The buffer of a successful receive has the length of the message.
    #[must_use]
    pub fn take<B: Lend<D>>(self) -> Option<B> {
        // SAFETY: `held` had the only copy.
        let mut value = unsafe { B::give_back(self.held.into_inner(), || self.len) }?;
        value.completed(self.wc.status);
        Some(value)
    }

    /// The private buffer of the work request.
    #[must_use]
    pub fn buf(self) -> Option<Buf<Private, D>> {
        self.take()
    }

    /// The buffer of the work request, from a pool with this kind of access.
    #[must_use]
    pub fn buf_of<A: Access>(self) -> Option<Buf<A, D>> {
        self.take()
    }
}

/// Passes completions of the ring to a closure.
struct Pass<'k, D: Driver, F> {
    known: &'k mut Known<D>,
    f: F,
}

/// Whether it is a completion of its own work request only, as far as the program knows when it is compiled: that of a receive, or of a
/// send on a device without an order. Another one is asked by [`Flight::in_order`](crate::flight::Flight::in_order).
#[cfg_attr(not(debug_assertions), inline(always))]
fn is_alone<C: Completion>(completion: &C) -> bool {
    !C::IN_ORDER || is_received(completion)
}

/// Whether it is a completion of a receive.
#[cfg_attr(not(debug_assertions), inline(always))]
fn is_received(completion: &impl Completion) -> bool {
    // The driver has the number from the receive queue if it says so.
    completion.is_receive().unwrap_or_else(|| is_receive(completion.wr_id()))
}

impl<D: Driver, F: FnMut(Polled<'_, '_, D>)> Claimant<D::CompletionQueue> for Pass<'_, D, F> {
    type Claim = Claim<D>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn claim(&mut self, completion: &<D::CompletionQueue as Engine>::Completion<'_>) -> Claim<D> {
        self.known.claim(completion.wr_id(), is_alone(completion))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pass(&mut self, completion: &<D::CompletionQueue as Engine>::Completion<'_>, claim: Claim<D>) {
        let Self { known, f } = self;
        let status = completion.status();
        let Entry { wr_id, held } = match claim {
            Claim::Entry(entry) => entry,
            Claim::Rest if known.resume(completion.wr_id(), status.0, completion.byte_len()) => {
                let Some(entry) = known.aside() else { return };
                entry
            }
            Claim::Rest => return,
        };
        // SAFETY: the entry was taken out of the slab, so this is the only copy.
        let held = unsafe { HeldOnce::new(held) };
        let (fields, received) = (Fields::Ring(completion), is_received(completion));
        #[cfg(feature = "counters")]
        if !status.is_success() {
            known.count_error(status.0);
        }
        #[cfg(feature = "tracing")]
        if !status.is_success() {
            let (opcode, vendor_err) = (completion.opcode(), completion.vendor_err());
            let wc = WorkCompletion { wr_id, status, opcode, vendor_err, ..WorkCompletion::default() };
            known.report_error(&WorkCompletion { qp_num: completion.qp_num(), ..wc }, received);
        }
        f(Polled { fields, known, wr_id, status, received, held });
    }
}

impl<D: Driver> State<D> {
    /// Passes on what a scope has kept.
    // codegen: call
    #[cold]
    #[inline(never)]
    fn deliver(&mut self, max: usize, f: &mut dyn FnMut(Polled<'_, '_, D>)) -> usize {
        let mut n = 0;
        while n < max
            && let Some(Completed { wc, held, len, failed }) = self.kept.pop_front()
        {
            n += 1;
            let WorkCompletion { wr_id, status, .. } = wc;
            let received = failed.map_or(len.is_some(), |failed| failed.received);
            let known = &self.known;
            f(Polled { fields: Fields::Kept(&wc), known, wr_id, status, received, held });
        }
        n
    }
}

/// Polling for a [scope](super::Scope): through `&mut` of an exclusive queue, or `&` of a shared one.
pub trait ScopePoll<D: Driver>: sealed::ScopePoll<D> {}

mod sealed {
    use super::{Driver, PollError};

    pub trait ScopePoll<D: Driver> {
        /// The queue, as [`CqId`](super::CqId) numbers it.
        fn number(&self) -> u64;
        /// Polls; what does not belong to a scope is kept for the next poll of the user. Returns the number of completions.
        fn poll_scoped(&mut self) -> Result<usize, PollError>;
    }
}

/// The polling calls: through `&mut` without a lock, through `&` with one.
macro_rules! polling {
    ($locking:ident, [$($this:tt)*], [$($state:tt)*]) => {
        impl<D: Driver> Cq<$locking, D> {
            /// Polls up to `max` completions, passes them to `f`, and returns the number of those that were polled. It is
            /// greater than the number of calls of `f` if completions of [scopes](super::Scope) or
            /// [unmatched ones](Self::unmatched) were among them; 0 means that the queue was empty.
            ///
            /// # Errors
            /// [`PollError::SessionOpen`] if this thread polls the queue already; otherwise those of the queue.
            #[inline]
            pub fn poll_each(
                $($this)* self,
                max: usize,
                f: impl FnMut(Polled<'_, '_, D>),
            ) -> Result<usize, PollError> {
                let state = &mut *self.state.$($state)*;
                if !state.kept.is_empty() {
                    let mut f = f;
                    return Ok(state.deliver(max, &mut f));
                }
                // codegen: address
                self.queue.poll_claiming(max, Pass { known: &mut state.known, f })
            }

            /// The next completion as a value, if there is one.
            ///
            /// # Errors
            /// [`PollError::SessionOpen`] if this thread polls the queue already; otherwise those of the queue.
            #[inline]
            pub fn poll_one($($this)* self) -> Result<Option<Completed<D>>, PollError> {
                let mut completed = None;
                while self.poll_each(1, |done| completed = Some(done.complete()))? > 0 && completed.is_none() {}
                Ok(completed)
            }

            /// Completions that were reported with a number that belongs to no work request in flight: those of a device that is
            /// out of order. They are not passed on.
            ///
            /// # Errors
            /// [`PollError::SessionOpen`] if this thread polls the queue already; otherwise those of the queue.
            pub fn unmatched($($this)* self) -> Result<u64, PollError> {
                Ok(self.state.$($state)*.known.unmatched())
            }

            /// `ibv_req_notify_cq`: requests one event for the next (solicited) completion.
            ///
            /// Poll again after arming, because a completion that arrived before raises no event.
            ///
            /// # Errors
            /// [`PollError::Arm`] with the errno of the request; [`PollError::SessionOpen`] if this thread polls the queue.
            pub fn req_notify($($this)* self, solicited_only: bool) -> Result<(), PollError> {
                self.queue.req_notify(solicited_only)
            }
        }

        impl<D: Driver> ScopePoll<D> for $($this)* Cq<$locking, D> {}
        impl<D: Driver> sealed::ScopePoll<D> for $($this)* Cq<$locking, D> {
            fn number(&self) -> u64 {
                self.queue.id().0
            }

            fn poll_scoped(&mut self) -> Result<usize, PollError> {
                let this = $($this)* **self;
                let State { known, kept } = &mut *this.state.$($state)*;
                this.queue.poll_claiming(16, Pass { known, f: |done: Polled<'_, '_, D>| kept.push_back(done.complete()) })
            }
        }
    };
}

impl<D: Driver> Cq<Exclusive, D> {
    /// Whether a poll would find neither a completion nor an error; `false` if only a poll can tell. It costs less than a poll that
    /// finds nothing, for example that after [`req_notify`](Self::req_notify).
    #[inline]
    pub fn is_surely_empty(&mut self) -> bool {
        self.state.get_mut().kept.is_empty() && self.queue.is_surely_empty()
    }
}

polling!(Exclusive, [&mut], [get_mut()]);
polling!(Shared, [&], [lock()?]);

#[cfg(all(test, feature = "mlx5"))]
mod tests;
