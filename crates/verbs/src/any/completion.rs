// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completion queue of each driver.

use super::{Any, Member as _, parts};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use uverbs_core::drivers;
use uverbs_core::provider::completion::Claimant;
use uverbs_core::provider::{Completion, CompletionQueue, Driver, PollError};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};

/// The queue.
type AnyQueue = Any<parts::CompletionQueue>;
/// A completion.
type AnyCompletion<'c> = Any<parts::Completion<'c>>;

/// A completion of a driver's queue.
type CompletionOf<'c, D> = <<D as Driver>::CompletionQueue as CompletionQueue>::Completion<'c>;

macro_rules! fields {
    ($($name:ident: $ty:ty;)*) => {
        impl Completion for AnyCompletion<'_> {
            $(#[cfg_attr(not(debug_assertions), inline(always))]
            fn $name(&self) -> $ty {
                each!(self, completion => completion.$name())
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

/// A claimant of completions of any driver, for the queue of a driver `D`.
struct Of<D, C>(C, PhantomData<D>);

macro_rules! claimants {
    (() $([$name:ident $feature:literal $module:ident $krate:ident])*) => {$(
        #[cfg(feature = $feature)]
        impl<C: Claimant<AnyQueue>> Claimant<<$krate::$name as Driver>::CompletionQueue>
            for Of<$krate::$name, C>
        {
            type Claim = C::Claim;
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn claim(&mut self, completion: &CompletionOf<'_, $krate::$name>) -> C::Claim {
                self.0.claim(&Any::$name(*completion))
            }
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn pass(&mut self, completion: &CompletionOf<'_, $krate::$name>, claim: C::Claim) {
                self.0.pass(&Any::$name(*completion), claim);
            }
        }
    )*};
}
drivers!(claimants());

impl CompletionQueue for AnyQueue {
    type Completion<'c> = AnyCompletion<'c>;

    #[inline]
    fn poll_each(
        &mut self,
        max: usize,
        mut f: impl FnMut(&Self::Completion<'_>),
    ) -> Result<usize, PollError> {
        each!(self, D(queue) => queue.poll_each(max, |completion| f(&D::any(*completion))))
    }

    #[inline]
    fn poll_claiming(&mut self, max: usize, claimant: impl Claimant<Self>) -> Result<usize, PollError> {
        each!(self, D(queue) => queue.poll_claiming(max, Of::<D, _>(claimant, PhantomData)))
    }

    #[inline]
    fn poll_cq(&mut self, wc: &mut [WorkCompletion]) -> Result<usize, PollError> {
        each!(self, queue => queue.poll_cq(wc))
    }

    #[inline]
    fn poll_cq_uninit(&mut self, wc: &mut [MaybeUninit<WorkCompletion>]) -> Result<usize, PollError> {
        each!(self, queue => queue.poll_cq_uninit(wc))
    }

    #[inline]
    fn start_poll(&mut self) -> Result<(), PollError> {
        each!(self, queue => queue.start_poll())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_start_poll(&mut self) -> Option<bool> {
        each!(self, queue => queue.try_start_poll())
    }

    #[inline]
    fn next_poll(&mut self) -> Result<(), PollError> {
        each!(self, queue => queue.next_poll())
    }

    #[inline]
    fn end_poll(&mut self) {
        each!(self, queue => queue.end_poll())
    }

    #[inline]
    fn current(&self) -> Option<Self::Completion<'_>> {
        each!(self, D(queue) => queue.current().map(D::any))
    }

    #[inline]
    fn last(&self) -> Option<Self::Completion<'_>> {
        each!(self, D(queue) => queue.last().map(D::any))
    }

    #[inline]
    fn is_surely_empty(&mut self) -> bool {
        each!(self, queue => queue.is_surely_empty())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn try_req_notify(&mut self, solicited_only: bool) -> bool {
        each!(self, queue => queue.try_req_notify(solicited_only))
    }

    fn req_notify(&mut self, solicited_only: bool) -> Result<(), PollError> {
        each!(self, queue => queue.req_notify(solicited_only))
    }

    fn cqe(&self) -> u32 {
        each!(self, queue => queue.cqe())
    }
}
