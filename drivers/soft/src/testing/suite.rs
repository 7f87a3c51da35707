// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests that all drivers with such queues have in common.
//!
//! A driver implements [`Bench`] and calls [`suite!`](crate::suite): each function of the modules here is then a test of it. What is special
//! to the driver, such as the bytes of a WQE or an index that makes no sense, it tests by itself.

mod poll;
mod recv;
mod send;

pub use poll::*;
pub use recv::*;
pub use send::*;

use crate::SendConfig;
use crate::format::Format;

/// A driver's rings in heap memory, and its kernel.
pub trait Bench: 'static {
    /// The format.
    type Format: Format;
    /// The kernel's side of a ring.
    type Kernel: Send;

    /// A send queue whose QP has a peer, and which has sends and writes, also of builders.
    fn config() -> SendConfig;
    /// A ring of a send queue.
    fn send_ring(slots: u32) -> (<Self::Format as Format>::SendRing, Self::Kernel);
    /// A ring of a receive queue.
    fn recv_ring(slots: u32) -> (<Self::Format as Format>::RecvRing, Self::Kernel);
    /// A ring of a completion queue.
    fn cq_ring(slots: u32) -> (<Self::Format as Format>::CqRing, Self::Kernel);
    /// Takes a WQE as the kernel does: its ID and its inline data.
    fn take_send(kernel: &Self::Kernel) -> Option<(u64, Vec<u8>)>;
    /// Takes a receive as the kernel does: its ID.
    fn take_recv(kernel: &Self::Kernel) -> Option<u64>;
    /// Writes a completion as the kernel does, with this ID and of the QP with this number; `false` if the ring is full.
    fn complete(kernel: &Self::Kernel, wr_id: u64, qp_num: u32) -> bool;
}

/// The tests of [`suite`](crate::testing::suite) for a [`Bench`].
#[macro_export]
macro_rules! suite {
    ($bench:ty) => {
        $crate::suite! { $bench:
            thousands_of_wrs_are_consumed_in_order
            a_ring_behaves_as_a_queue
            a_batch_too_long_for_the_ring_is_dropped_as_a_whole
            aborted_dropped_forgotten_and_failed_batches_change_nothing
            an_empty_batch_does_not_ring
            a_failed_doorbell_is_reported_and_not_rolled_back
            refused_posts_do_not_change_an_open_session
            a_session_checks_its_setters
            a_builder_has_only_the_operations_that_were_requested
            addresses_that_no_such_device_has_are_refused
            a_batch_from_before_the_queue_was_closed_is_not_published
            a_control_call_waits_for_a_post_in_progress
            receives_fill_and_empty_the_ring_in_every_lap
            receives_that_the_kernel_has_not_taken_are_counted
            a_shared_queue_of_a_removed_device_takes_no_receives
            a_poll_takes_at_most_the_requested_and_available_completions
            a_full_queue_has_room_again_when_it_was_polled
            a_panic_in_the_callback_counts_its_completion_as_polled
            an_extended_poll_goes_on_with_completions_that_arrive
            completions_of_a_destroyed_qp_are_removed_and_their_slots_returned
            a_qp_may_be_destroyed_during_a_poll
            a_lost_ring_is_an_error_and_not_an_empty_queue
        }
        #[test]
        fn completions_are_claimed_while_control_calls_wait() {
            $crate::testing::suite::completions_are_claimed_while_control_calls_wait::<$bench>(
                |queue, completions, control| uverbs_testkit::check_claims(queue, completions, control),
            );
        }
    };
    ($bench:ty: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $crate::testing::suite::$name::<$bench>();
            }
        )*
    };
}
