// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue of each driver.

use super::{Any, Mlx5, Rxe, Siw};
use core::mem::MaybeUninit;
use uverbs_core::provider::completion::Claimant;
use uverbs_core::provider::{Completion, CompletionQueue, Driver, PollError};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};

/// The queue.
pub(super) type AnyCompletionQueue = Any<
    <Mlx5 as Driver>::CompletionQueue,
    <Rxe as Driver>::CompletionQueue,
    <Siw as Driver>::CompletionQueue,
>;

/// A completion of a driver's queue.
type CompletionOf<'c, D> = <<D as Driver>::CompletionQueue as CompletionQueue>::Completion<'c>;

macro_rules! fields {
    ($($name:ident: $ty:ty;)*) => {
        impl<M: Completion, R: Completion, S: Completion> Completion for Any<M, R, S> {
            $(#[cfg_attr(not(debug_assertions), inline(always))]
            fn $name(&self) -> $ty {
                match self {
                    Self::Mlx5(c) => c.$name(),
                    Self::Rxe(c) => c.$name(),
                    Self::Siw(c) => c.$name(),
                }
            })*
        }
    };
}

fields! {
    wr_id: u64;
    status: WcStatus;
    opcode: WcOpcode;
    vendor_err: u32;
    byte_len: u32;
    received_len: u32;
    is_receive: Option<bool>;
    qp_num: u32;
    src_qp: u32;
    wc_flags: WcFlags;
    imm_data_or_invalidated_rkey: u32;
    pkey_index: u16;
    slid: u32;
    sl: u8;
    dlid_path_bits: u8;
    completion_ts: Option<u64>;
    completion_wallclock_ns: Option<u64>;
    cvlan: Option<u16>;
    flow_tag: Option<u32>;
    to_wc: WorkCompletion;
}

/// A claimant of completions of any driver, for the queue of one.
struct OfMlx5<C>(C);
struct OfRxe<C>(C);
struct OfSiw<C>(C);

macro_rules! claimants {
    ($($of:ident, $driver:ident;)*) => {$(
        impl<C: Claimant<AnyCompletionQueue>> Claimant<<$driver as Driver>::CompletionQueue> for $of<C> {
            type Claim = C::Claim;
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn claim(&mut self, completion: &CompletionOf<'_, $driver>) -> C::Claim {
                self.0.claim(&Any::$driver(*completion))
            }
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn pass(&mut self, completion: &CompletionOf<'_, $driver>, claim: C::Claim) {
                self.0.pass(&Any::$driver(*completion), claim);
            }
        }
    )*};
}

claimants! {
    OfMlx5, Mlx5;
    OfRxe, Rxe;
    OfSiw, Siw;
}

macro_rules! forward {
    ($self:ident, $queue:ident => $call:expr) => {
        match $self {
            Self::Mlx5($queue) => $call,
            Self::Rxe($queue) => $call,
            Self::Siw($queue) => $call,
        }
    };
}

impl CompletionQueue for AnyCompletionQueue {
    type Completion<'c> = Any<CompletionOf<'c, Mlx5>, CompletionOf<'c, Rxe>, CompletionOf<'c, Siw>>;

    #[inline]
    fn poll_each(
        &mut self,
        max: usize,
        mut f: impl FnMut(&Self::Completion<'_>),
    ) -> Result<usize, PollError> {
        match self {
            Self::Mlx5(queue) => queue.poll_each(max, |c| f(&Any::Mlx5(*c))),
            Self::Rxe(queue) => queue.poll_each(max, |c| f(&Any::Rxe(*c))),
            Self::Siw(queue) => queue.poll_each(max, |c| f(&Any::Siw(*c))),
        }
    }

    #[inline]
    fn poll_claiming(&mut self, max: usize, claimant: impl Claimant<Self>) -> Result<usize, PollError> {
        match self {
            Self::Mlx5(queue) => queue.poll_claiming(max, OfMlx5(claimant)),
            Self::Rxe(queue) => queue.poll_claiming(max, OfRxe(claimant)),
            Self::Siw(queue) => queue.poll_claiming(max, OfSiw(claimant)),
        }
    }

    #[inline]
    fn poll_cq(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        forward!(self, queue => queue.poll_cq(wc))
    }

    #[inline]
    fn poll_cq_uninit(&mut self, wc: &mut [MaybeUninit<WorkCompletion>]) -> Result<usize, PollError> {
        forward!(self, queue => queue.poll_cq_uninit(wc))
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        forward!(self, queue => queue.start_poll())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_start_poll(&mut self) -> Option<bool> {
        forward!(self, queue => queue.try_start_poll())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        forward!(self, queue => queue.next_poll())
    }

    #[inline]
    fn end_poll(&mut self) {
        forward!(self, queue => queue.end_poll());
    }

    #[inline]
    fn current(&self) -> Option<Self::Completion<'_>> {
        match self {
            Self::Mlx5(queue) => queue.current().map(Any::Mlx5),
            Self::Rxe(queue) => queue.current().map(Any::Rxe),
            Self::Siw(queue) => queue.current().map(Any::Siw),
        }
    }

    #[inline]
    fn last(&self) -> Option<Self::Completion<'_>> {
        match self {
            Self::Mlx5(queue) => queue.last().map(Any::Mlx5),
            Self::Rxe(queue) => queue.last().map(Any::Rxe),
            Self::Siw(queue) => queue.last().map(Any::Siw),
        }
    }

    #[inline]
    fn is_surely_empty(&mut self) -> bool {
        forward!(self, queue => queue.is_surely_empty())
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        forward!(self, queue => queue.req_notify(solicited_only))
    }

    fn cqe(&self) -> u32 {
        forward!(self, queue => queue.cqe())
    }
}
