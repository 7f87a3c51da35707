// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue a driver provides: typed iteration, `ibv_poll_cq`, and extended polling with lazy fields.

use super::error::PollError;
use crate::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use core::mem::MaybeUninit;

/// One completion; each field is decoded by its method. A field that the device does not have is 0.
///
/// With a status other than success only `wr_id`, `status`, `qp_num` and `vendor_err` are valid.
pub trait Completion {
    /// Whether the sends of a QP complete in the order of the posts, so that a completion is also that of the sends before it. If not, each
    /// send must be signaled, and the posts of others have the error [`PostError::Unsignaled`](super::PostError::Unsignaled).
    const IN_ORDER: bool = true;

    /// The id of the work request.
    fn wr_id(&self) -> u64;
    /// The result of the work request.
    fn status(&self) -> WcStatus;
    /// Opcode of the completed WR.
    fn opcode(&self) -> WcOpcode;
    /// Vendor-specific error code.
    fn vendor_err(&self) -> u32;
    /// Bytes: receives, reads, atomics.
    fn byte_len(&self) -> u32;
    /// Of a receive: the bytes that the message wrote to its buffer. A write with immediate consumes a receive and writes nothing
    /// to it.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn received_len(&self) -> u32 {
        if self.opcode() == WcOpcode::RECV_RDMA_WITH_IMM { 0 } else { self.byte_len() }
    }
    /// Whether it is that of a receive, with any status; `None` if the completion does not say so for errors. The `wr_id` of a
    /// send is never reported with `Some(true)`, nor that of a receive with `Some(false)`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_receive(&self) -> Option<bool> {
        None
    }
    /// The local QP.
    fn qp_num(&self) -> u32;
    /// The sender's QP (UD).
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn src_qp(&self) -> u32 {
        0
    }
    /// Which fields are valid, and which checks the device made.
    fn wc_flags(&self) -> WcFlags;
    /// `imm_data` (`__be32`) or `invalidated_rkey`, by [`wc_flags`](Self::wc_flags).
    fn imm_data_or_invalidated_rkey(&self) -> u32;
    /// Index of the P_Key (GSI).
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pkey_index(&self) -> u16 {
        0
    }
    /// Source LID.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn slid(&self) -> u32 {
        0
    }
    /// Service level.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sl(&self) -> u8 {
        0
    }
    /// Low bits of the destination LID.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn dlid_path_bits(&self) -> u8 {
        0
    }
    /// Completion time in device clock ticks, if the device and the CQ support it.
    fn completion_ts(&self) -> Option<u64> {
        None
    }
    /// Completion time in wall clock nanoseconds, if supported.
    fn completion_wallclock_ns(&self) -> Option<u64> {
        None
    }
    /// Customer VLAN tag, if supported.
    fn cvlan(&self) -> Option<u16> {
        None
    }
    /// Flow tag, if supported.
    fn flow_tag(&self) -> Option<u32> {
        None
    }

    /// All of `ibv_wc`'s fields at once.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn to_wc(&self) -> WorkCompletion {
        WorkCompletion {
            wr_id: self.wr_id(),
            status: self.status(),
            opcode: self.opcode(),
            vendor_err: self.vendor_err(),
            byte_len: self.byte_len(),
            imm_data_or_invalidated_rkey: self.imm_data_or_invalidated_rkey(),
            qp_num: self.qp_num(),
            src_qp: self.src_qp(),
            wc_flags: self.wc_flags(),
            pkey_index: self.pkey_index(),
            slid: self.slid() as u16,
            sl: self.sl(),
            dlid_path_bits: self.dlid_path_bits(),
        }
    }
}

/// Takes the completions of a poll. Unlike a closure, its function can be one that is always inlined.
pub trait Visitor<Q: CompletionQueue + ?Sized> {
    /// Takes one.
    fn visit(&mut self, completion: &Q::Completion<'_>);
}

/// Takes the completions of a poll in two steps, for a caller that keeps something for each work request.
///
/// A `wr_id` may name another work request when its queue has been reset or destroyed. So what it names is taken while the poll is
/// still inside the queue: a control call that ends a queue waits until then. The rest is done outside.
pub trait Claimant<Q: CompletionQueue + ?Sized> {
    /// What was taken for a completion.
    type Claim;

    /// Takes what belongs to the completion. Control calls wait for the end of this function, so it runs no code of the program (also
    /// no logger), and waits for nothing that a control call may hold.
    fn claim(&mut self, completion: &Q::Completion<'_>) -> Self::Claim;

    /// Passes the completion on, with what [`claim`](Self::claim) returned for it. Called outside of the queue.
    fn pass(&mut self, completion: &Q::Completion<'_>, claim: Self::Claim);
}

/// The claimant of a poll by a closure: it claims nothing.
struct Call<F>(F);

impl<Q: CompletionQueue + ?Sized, F: FnMut(&Q::Completion<'_>)> Claimant<Q> for Call<F> {
    type Claim = ();
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn claim(&mut self, _: &Q::Completion<'_>) {}
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn pass(&mut self, completion: &Q::Completion<'_>, (): ()) {
        (self.0)(completion);
    }
}

/// A driver's completion queue engine. No lock; see [`Locked`](crate::sync::Locked).
pub trait CompletionQueue: Send + core::fmt::Debug {
    /// A completion where the device wrote it.
    type Completion<'c>: Completion
    where
        Self: 'c;

    /// Passes up to `max` completions to `f`, then returns their slots to the device. Returns their number.
    ///
    /// If `f` panics, the completion that was passed to it counts as polled. An error after one or more completions is
    /// reported by the next call, so no completion is lost.
    ///
    /// # Errors
    /// [`PollError::Corrupt`] for a value in the ring that no correct device writes; [`PollError::SessionOpen`] while a poll
    /// of [`start_poll`](Self::start_poll) is open; [`PollError::Forked`] in a child of fork(2).
    #[inline]
    fn poll_each(&mut self, max: usize, f: impl FnMut(&Self::Completion<'_>)) -> Result<usize, PollError> {
        self.poll_claiming(max, Call(f))
    }

    /// As [`poll_each`](Self::poll_each), for a value in place of a closure.
    ///
    /// # Errors
    /// As [`poll_each`](Self::poll_each).
    #[inline]
    fn visit(&mut self, max: usize, mut visitor: impl Visitor<Self>) -> Result<usize, PollError> {
        self.poll_each(max, |completion| visitor.visit(completion))
    }

    /// As [`poll_each`](Self::poll_each), in two steps, of which the first is inside the queue.
    ///
    /// A driver that removes the completions of a queue which is reset or destroyed calls [`Claimant::claim`] while these control
    /// calls wait.
    ///
    /// # Errors
    /// As [`poll_each`](Self::poll_each).
    fn poll_claiming(&mut self, max: usize, claimant: impl Claimant<Self>) -> Result<usize, PollError>;

    /// `ibv_poll_cq`: fills `wc` from the front and returns the number of completions.
    ///
    /// # Errors
    /// As [`poll_each`](Self::poll_each).
    #[inline]
    fn poll_cq(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        let max = wc.len();
        let mut slots = wc.iter_mut();
        self.poll_each(max, |c| {
            if let Some(slot) = slots.next() {
                *slot = c.to_wc();
            }
        })
    }

    /// [`poll_cq`](Self::poll_cq) for an array that may be uninitialised, as C's is. Initialises as many elements as the
    /// result says.
    ///
    /// # Errors
    /// As [`poll_each`](Self::poll_each).
    #[inline]
    fn poll_cq_uninit(&mut self, wc: &mut [MaybeUninit<WorkCompletion>]) -> Result<usize, PollError> {
        let max = wc.len();
        let mut slots = wc.iter_mut();
        self.poll_each(max, |c| {
            if let Some(slot) = slots.next() {
                slot.write(c.to_wc());
            }
        })
    }

    /// `ibv_start_poll`: opens a poll at the first completion, or [`PollError::Empty`] (and no poll is open).
    ///
    /// # Errors
    /// [`PollError::Empty`] as above; otherwise as [`poll_each`](Self::poll_each).
    fn start_poll(&mut self) -> Result<(), PollError>;

    /// [`start_poll`](Self::start_poll) for a caller that saves no registers, because this calls no function. Returns
    /// whether a poll was opened (if not, the queue is empty), or `None` if nothing was done and the caller must call
    /// `start_poll`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_start_poll(&mut self) -> Option<bool> {
        None
    }

    /// `ibv_next_poll`: advances to the next completion, or returns [`PollError::Empty`]; the poll stays open. A driver
    /// whose completions are copies may return the slots of those that the poll has visited.
    ///
    /// # Errors
    /// [`PollError::Empty`] as above; [`PollError::NoSession`] if no poll is open; otherwise as
    /// [`poll_each`](Self::poll_each).
    fn next_poll(&mut self) -> Result<(), PollError>;

    /// `ibv_end_poll`: returns the slots of all entries that the poll visited.
    fn end_poll(&mut self);

    /// The current completion of an open poll.
    fn current(&self) -> Option<Self::Completion<'_>>;

    /// As [`current`](Self::current) while a poll is open; otherwise the current completion of the last poll, with the
    /// values that its entry has now. The device may have written a newer completion to the entry. C programs read it after
    /// `ibv_end_poll`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn last(&self) -> Option<Self::Completion<'_>> {
        self.current()
    }

    /// [`req_notify`](Self::req_notify) by a short path; `false` if there is none now, and nothing was done.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_req_notify(&mut self, _solicited_only: bool) -> bool {
        false
    }

    /// `ibv_req_notify_cq`: requests one event for the next (solicited) completion. The caller must poll again after
    /// arming, because a completion that arrived before raises no event.
    ///
    /// # Errors
    /// [`PollError::Arm`] if the doorbell failed, with its errno; [`PollError::Forked`] in a child of fork(2).
    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError>;

    /// Whether a poll would find neither a completion nor an error. `false` if only a poll can tell. It costs less than a poll
    /// that finds nothing.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_surely_empty(&mut self) -> bool {
        false
    }

    /// The number of completions that fit.
    fn cqe(&self) -> u32;
}
