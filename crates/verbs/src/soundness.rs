// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why posts that own their buffers are sound: the cases, what happens to the buffer in each, and the test of each.
//!
//! # Soundness
//! The device uses the memory of a work request until the work request is complete. So each queue has a slab with the buffers of its work
//! requests in flight, which the queue's kernel object holds. A buffer leaves the slab only when one of the rules in "What a completion
//! guarantees" (the internals in the book) says that its work request is complete. `transfer`, `transports`, `lists`, `parts`, `shares`,
//! `homes`, `waits`, `windows`, `mkeys`, `mkey_ends`, `ends`, `drain`, `scopes`, `removal`, `unmatched`, `threads` and `unplugged` are the modules of
//! `tests/owned`; `known`, `cq`, `memory` and `in_flight` have unit tests beside the code.
//!
//! | case | what happens to the buffer | test |
//! |---|---|---|
//! | success | the completion gives it back | `transfer::completions_give_buffers_back` |
//! | unsignaled send | the next completion of the same queue returns it to its pool, because sends complete in order | `ends::unsignaled_sends_come_back_with_a_later_completion`, `ends::an_earlier_completion_does_not_give_later_buffers_back` |
//! | receives, in any order | each waits for its own completion | `known::receives_complete_in_any_order` |
//! | a post that fails | returned with the error; after `PostError::Doorbell`, as in flight | `transfer::a_full_queue_gives_the_buffer_back`, `transfer::buffers_of_another_domain_are_refused` |
//! | a batch that fails, is dropped or is forgotten | back to the pool; of a forgotten one with a later completion | `transfer::batches_post_all_or_give_all_back` |
//! | flush (ERR) | its completion gives it back | `ends::flushed_work_requests_give_their_buffers_back` |
//! | RESET by [`Qp::reset`], which excludes posts | back to the pool | `ends::a_reset_gives_buffers_back` |
//! | RESET by the control, at the same time as posts | stays with the queue: a send until a later one completes, a receive until the QP is destroyed | `ends::a_reset_by_the_control_keeps_buffers_until_later_completions` |
//! | one half or the whole QP is dropped | stays until the kernel has destroyed the QP | `ends::a_dropped_qp_keeps_buffers_until_it_is_destroyed` |
//! | a post to a device that was removed, when the library knows it | comes back with the error | `unplugged::posts_and_polls_fail_and_what_has_completed_is_polled_first` |
//! | the kernel refuses to destroy the QP, or the device is removed | leaked: it stays mapped and registered | `ends::a_refused_destruction_leaks_the_buffers`, `ends::a_removed_device_leaks_what_it_may_use` |
//! | receive of an SRQ, delivered to a QP or DC target that was destroyed or reset before the poll | back to the pool, without a completion; of a message that was not complete, too, if the device has flushed it | `ends::receives_of_an_srq_for_a_destroyed_qp_come_back`, `drain::receives_whose_completions_are_removed_come_back`, `drain::receives_of_messages_that_are_not_complete_come_back` |
//! | receive of an SRQ whose QP is ended by [`Srq::drain`] | its completion gives it back, also while other threads post and poll | `drain::every_buffer_of_a_shared_queue_comes_back`, `drain::other_threads_post_and_poll_while_qps_are_drained` |
//! | [`BufList`]: in flight, refused, in a batch that is dropped, taken as another type | as a buffer: all of its buffers together | `lists::lists_in_flight_end_as_buffers_do`, `lists::lists_that_a_queue_can_not_take_come_back` |
//! | [`SharedBuf`]: in flight in several work requests and queues, refused, taken as another type | its owners are counted, those in the slabs, too; the last one gives it back, in whatever thread | `shares::one_buffer_is_the_source_of_several_posts`, `shares::a_refused_part_comes_back_as_it_was`, `shares::an_owner_is_not_given_out_as_a_buffer`, `shares::owners_are_dropped_during_polls` |
//! | queues of a [`SharedBuf`] end, or their device is removed | as a buffer: an owner that is leaked with its queue keeps the memory mapped, and the buffer out of the pool | `shares::queues_end_with_shared_buffers_in_flight`, `shares::a_device_is_removed_with_shared_buffers_in_flight`, `shares::a_kernel_that_refuses_keeps_shared_buffers`, `shares::forgotten_owners_keep_the_buffer` |
//! | a shared buffer is written while others read it | not possible: it is no target of reads, receives and atomics, and becomes a buffer again with its only owner | sixth example below, `shares::one_buffer_is_the_source_of_several_posts` |
//! | a part outside a buffer | refused before the post | `shares::parts_of_a_shared_buffer_are_inside_it`, `parts::a_part_outside_the_buffer_is_refused` |
//! | [`BufPart`]: dropped, refused, in flight | the whole buffer, with its own address and size | `parts::a_part_that_is_dropped_is_a_whole_buffer_again`, `parts::a_part_receives` |
//! | a receive without memory | there is none; a message with bytes completes with an error | `parts::receives_without_memory_take_immediates`, `parts::receives_without_memory_of_a_shared_queue` |
//! | CQ overflow: completions are lost | stays until the QP is destroyed | `ends::an_overflowed_cq_loses_completions_and_no_memory` |
//! | a `wr_id` is reported twice, was never given, or is that of another CQ or of an earlier queue | nothing: numbers have generations, and a value is taken out once | `known::a_completion_that_is_reported_twice_gives_nothing`, `known::numbers_that_were_never_given_find_nothing`, `known::the_number_of_another_cqs_queue_finds_nothing`, `known::the_number_of_an_earlier_queue_finds_nothing`, `in_flight::states_and_guards_are_no_numbers`, `in_flight::any_numbers_agree_with_a_list_of_values` |
//! | a send is reported too early | taken for complete, with those before it. A device that reports this wrongly can also write to all memory that is registered with it | `known::a_later_send_that_is_reported_first_completes_those_before_it` |
//! | a poll stalls, and meanwhile the queue of its completion ends and its number is given to a new queue | the poll took what the completion names while the end of the queue waited | `cq::a_poll_that_stalls_reports_no_completion_of_a_new_queue`, `cq::a_poll_that_stalls_completes_no_sends_of_the_next_life`; in each driver: `completions_are_claimed_while_control_calls_wait` |
//! | poll by another thread than the poster; QPs that are reset or dropped during the poll | one of them takes it | `threads::poster_and_poller_are_two_threads`, `threads::queues_end_while_their_cq_is_polled`, the tests of `unmatched`, `drain::other_threads_post_and_poll_while_qps_are_dropped_and_reset`, loom: `in_flight::a_value_goes_to_one_of_several`, `in_flight::a_slot_is_reused_after_its_value_was_moved_out`, `in_flight::earlier_values_are_taken_once`, `index_stack::no_number_is_given_to_two` |
//! | `mem::forget` of buffers, queues, CQs | leaked with what it holds | `ends::forgotten_values_keep_their_memory` |
//! | the pool is dropped while buffers are lent | the region lives until the last buffer is dropped | `ends::a_buffer_keeps_its_pool` |
//! | fork | a child's post fails and returns the buffer; its drops do not reach the device | `ends::a_forked_child_leaves_the_parents_queues_alone` |
//! | a read or a receive writes while the program has the buffer | not possible before the completion: the post took it | first example below |
//! | a peer writes while the program reads | an exposed buffer is no slice; it is copied | second example below, `transfer::exposed_buffers_are_written_and_read_by_the_peer` |
//! | a dma-buf is read by the CPU | it is no slice either | third example below, `ends::dma_bufs_are_posted_without_being_mapped` |
//! | a buffer is posted to a queue of another domain or device, where its key is that of other memory | refused: a free slot of the slab is one for memory of the queue's domain only | `transfer::buffers_of_another_domain_are_refused`, `in_flight::another_tag_finds_no_vacant_slot` |
//! | a pool in several domains: a buffer is posted to a queue of any of them, by single posts, batches, lists, parts and owners of a shared one | it moves to the entry with the key of that domain, and stays there; other domains refuse it | `homes::a_buffer_is_posted_to_any_of_its_devices`, `homes::batches_lists_parts_and_shared_queues_choose_the_key`, `homes::a_shared_buffer_is_in_flight_on_both_devices`, `homes::a_part_that_was_moved_is_a_whole_buffer_again`, `homes::two_threads_post_the_same_buffers`, `homes::other_domains_refuse_it_as_before`, `homes::peers_have_a_key_for_each_device` |
//! | one of the devices of a pool is removed, or refuses the registration | the others go on; what was registered is deregistered | `homes::the_other_device_takes_over`, `homes::a_device_that_refuses_ends_the_creation` |
//! | threads and futures wait for a buffer; they give up, are dropped, leaked or not polled; their wakers panic or use the pool | a buffer that comes back is given to the first of them, with its number; one that stops to wait gives it on | the tests of `waits`, loom: `index_stack::no_number_is_lost_while_one_waits` |
//! | a queue with `wr_id`s of the user completes to an [`Cq`] | does not compile | fourth example below |
//! | a window's key is used after its end | the device refuses it; then the buffer goes back | `transfer::a_window_ends_when_it_is_dropped` |
//! | this process reads or changes a window's buffer while the peer does | by copies, or by atomic words of 8 bytes; no references to its bytes | `windows::an_open_window_is_read_and_has_words` |
//! | a window is ended by a post; the post fails, is flushed, or is that of a window that is not open | the completion gives it back: closed, and after an error as it was | `windows::a_work_request_ends_a_window`, `windows::a_window_that_can_not_be_ended_by_a_post_comes_back`, `windows::a_flushed_invalidation_leaves_the_window_open` |
//! | the kernel refuses to deallocate a window | leaked: the peer may still access it | `ends::a_window_that_the_kernel_does_not_end_leaks_its_buffer` |
//! | [`MkeyRegion`]: the device uses its buffers by a key of their own, in posts and for peers | the region owns them until the device refuses the key: closed by a completion, or destroyed | `mkeys::a_peer_uses_several_buffers_as_one_region`, `mkeys::a_region_is_the_source_and_the_target_of_work_requests` |
//! | a region that is refused, flushed, not open, taken as another type | comes back as it was; of another type, it ends | `mkey_ends::a_region_that_a_queue_can_not_take_comes_back`, `mkey_ends::flushed_work_requests_leave_a_region_as_it_was`, `mkey_ends::regions_in_flight_end_with_their_queue` |
//! | the queue or the device of a region ends, or it is forgotten | the key belongs to no queue; what is in flight ends as buffers do; leaked | `mkey_ends::a_region_outlives_its_queue`, `mkey_ends::regions_in_flight_end_with_their_queue`, `mkey_ends::a_region_of_a_removed_device_keeps_its_bytes`, `mkey_ends::a_drop_ends_the_access_and_a_forgotten_region_keeps_it` |
//! | the kernel refuses to destroy its key | leaked: the device may still access the buffers | `mkey_ends::a_key_that_the_kernel_does_not_destroy_leaks_its_buffers` |
//! | a key number is used again | the low bits of the key are others | `mkey_ends::numbers_are_used_again_with_other_keys` |
//! | two threads post, poll and drop regions | a post reads the layout before the doorbell; a poll drops a region after its completion | `mkey_ends::regions_go_round_between_threads` |
//! | a region is opened to peers while this process has slices of its bytes; its buffers are exchanged | does not compile, see `mkey_region` | examples in [`mkey_region`](crate::mkey_region) |
//! | a scope's closure panics, leaves work requests in flight, or forgets what it got | the scope waits; in the end it resets the QP, or deregisters the memory | `scopes::a_panic_in_the_closure_waits_too`, `scopes::a_scope_that_is_not_complete_in_time_flushes` |
//! | the device is removed while a scope waits | the memory is deregistered, which the kernel does after it has destroyed the device's objects | `removal::the_wait_notices_that_the_device_is_removed`, `removal::a_removal_ends_a_scope_with_a_limit_or_a_panic_or_a_forgotten_op`, `removal::a_removal_ends_scopes_of_other_transports` |
//! | the kernel refuses to reset the QP of a scope | the memory is deregistered; the device refuses its key. If the kernel refuses this, too, for 10 seconds, the process is aborted | `removal::deregistered_memory_is_not_written`, `removal::a_kernel_that_refuses_for_a_while_is_asked_again` |
//!
//! A posted buffer is gone:
//! ```compile_fail,E0382
//! use uverbs::{Buf, Exclusive, Private, Qp};
//! use uverbs::{Driver, Exclusive, Private, Rc, RemoteRegion};
//! fn early<D: Driver>(qp: &mut Qp<Rc, Exclusive, D>, buf: Buf<Private, D>, from: &RemoteRegion) -> u8 {
//!     let _ = qp.sq().post(1).read(buf, from);
//!     buf[0]
//! }
//! ```
//! An exposed buffer has no bytes to borrow:
//! ```compile_fail,E0608
//! use uverbs::Driver;
//! use uverbs::{Buf, Exposed};
//! fn first<D: Driver>(buf: &Buf<Exposed, D>) -> u8 {
//!     buf[0]
//! }
//! ```
//! Nor has a buffer of a dma-buf, and it can't be copied either:
//! ```compile_fail,E0599
//! use uverbs::Driver;
//! use uverbs::{Buf, Unmapped};
//! fn first<D: Driver>(buf: &Buf<Unmapped, D>, to: &mut [u8]) {
//!     buf.read_at(0, to);
//! }
//! ```
//! A QP whose `wr_id`s are the user's can't complete to an owned CQ:
//! ```compile_fail,E0308
//! use uverbs::{Cq, Exclusive};
//! use uverbs::{Driver, Exclusive, ProtectionDomain, Rc};
//! fn forge<D: Driver>(pd: &ProtectionDomain<D>, cq: &Cq<Exclusive, D>) {
//!     let _ = pd.raw_qp::<Rc>().cq(cq).create();
//! }
//! ```
//!
//! A shared buffer has no mutable bytes:
//! ```compile_fail,E0596
//! use uverbs::{Driver, Private, SharedBuf};
//! fn change<D: Driver>(mut shared: SharedBuf<Private, D>) {
//!     shared[0] = 1;
//! }
//! ```
//! And it is no target:
//! ```compile_fail,E0277
//! use uverbs::{Driver, Exclusive, Private, Qp, Rc, RemoteRegion, SharedBuf};
//! fn read<D: Driver>(qp: &mut Qp<Rc, Exclusive, D>, shared: SharedBuf<Private, D>, from: &RemoteRegion) {
//!     let _ = qp.sq().post(1).read(shared, from);
//! }
//! ```
//!
//! # Cost
//! A [`Buf`] is a pointer. A post moves it to a slot of the slab; a poll moves it out by one compare-and-swap. Posts and polls
//! of buffers allocate nothing, except the first poll that reports a completion of a queue; windows and scopes allocate. No
//! lock is taken on exclusive queues. `cargo xtask bench --check` counts the instructions.
//!
//! A panic of a driver or a logger while a buffer is given back is reported by the panic hook and ends there. So posts and polls
//! need no code for a panic that is not the program's own.

#[cfg(doc)]
use crate::{Buf, BufList, BufPart, Cq, MkeyRegion, Pool, PoolBuilder, Qp, SharedBuf, Srq, Window};
