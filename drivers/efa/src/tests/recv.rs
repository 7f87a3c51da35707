// SPDX-License-Identifier: MIT OR Apache-2.0
//! Receives, as the device sees them.
#![expect(unsafe_code)]
// UNSAFETY: posts receives whose memory no device accesses.

use super::sge;
use crate::memory::RecvRing;
use crate::testing::{Posted, RECV_BELL, Rig, Shape, Words, send_config};
use proptest::prelude::*;
use uverbs_core::attr::QpState;
use uverbs_core::kernel::MemoryError;
use uverbs_core::provider::requests::Requests;
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, PostError, RecvBatch as _, RecvQueue as _,
};
use uverbs_core::wr::Sge;
use uverbs_testkit::recv_nodes;

fn rig() -> Rig {
    Rig::new(Shape::default(), send_config())
}

#[test]
fn every_buffer_has_a_descriptor() {
    let mut rig = rig();
    let sges = [sge(0x1122_3344_5566_7788, 0x8000, 0xab_cdef), sge(0x9000, 70_000, 0x01ff_0001)];
    // SAFETY: there is no device that would access the memory.
    unsafe { rig.recv.post(7, &sges) }.unwrap();
    // SAFETY: as above.
    unsafe { rig.recv.post(8, &sges[..1]) }.unwrap();
    let bells = rig.device.bells.take();
    assert_eq!(bells, [(RECV_BELL, 2), (RECV_BELL, 3)]);
    let first = (0x1122_3344_5566_7788, 0x8000, 0xab_cdef);
    let expected = [
        // The device has no longer buffer, and no key of more than 24 bits.
        Posted { req_id: 3 << 3, sges: vec![first, (0x9000, 0xffff, 0xff_0001)] },
        Posted { req_id: 3 << 3 | 1, sges: vec![first] },
    ];
    assert_eq!(rig.device.receives(&bells), expected);
}

#[test]
fn errors_post_nothing() {
    let mut rig = rig();
    let sges = [sge(1, 1, 1); 3];
    // SAFETY: there is no device that would access the memory.
    let post = |rig: &mut Rig, sges: &[Sge]| unsafe { rig.recv.post(1, sges) };
    assert_eq!(post(&mut rig, &sges), Err(PostError::TooManySge));
    assert_eq!(post(&mut rig, &[]), Err(PostError::InvalidArgument));
    let mut batch = rig.recv.batch();
    // SAFETY: as above.
    unsafe { batch.push(1, &sges[..1]) };
    // SAFETY: as above.
    unsafe { batch.push(2, &sges) };
    assert_eq!(batch.complete(), Err(PostError::TooManySge));
    assert_eq!(rig.device.bells.take(), []);
    for _ in 0..8 {
        post(&mut rig, &sges[..2]).unwrap();
    }
    assert_eq!(post(&mut rig, &sges[..1]), Err(PostError::QueueFull));
    assert_eq!(rig.device.take().1.len(), 8);

    for (state, result) in [
        (QpState::RESET, Err(PostError::BadState)),
        (QpState::INIT, Ok(())),
        (QpState::RTR, Ok(())),
        (QpState::ERR, Err(PostError::BadState)),
    ] {
        let mut rig = Rig::in_state(Shape::default(), send_config(), state);
        assert_eq!(post(&mut rig, &sges[..1]), result, "{state:?}");
    }
}

#[test]
fn a_list_posts_what_is_before_the_bad_receive() {
    let mut rig = rig();
    let sges = [sge(1, 1, 1); 3];
    let nodes = recv_nodes(&[(1, &sges[..1]), (2, &sges[..2]), (3, &sges)]);
    // SAFETY: a valid list; there is no device that would access the memory.
    let bad = unsafe { rig.recv.post_recv(nodes.as_ptr()) }.unwrap_err();
    assert_eq!((bad.error, bad.wr), (PostError::TooManySge, &raw const nodes[2]));
    let bells = rig.device.bells.take();
    assert_eq!(bells, [(RECV_BELL, 3)]);
    assert_eq!(rig.device.receives(&bells).len(), 2);
    // SAFETY: NULL is refused.
    assert_eq!(unsafe { rig.recv.post_recv(core::ptr::null()) }.unwrap_err().error, PostError::NullList);
}

/// The doorbell has 16 bits of the position. It is another one than before.
#[test]
fn a_batch_of_the_longest_queue_reaches_the_device() {
    let shape = Shape { receives: Requests::MAX, descriptors: Requests::MAX, ..Shape::default() };
    let mut rig = Rig::new(shape, send_config());
    let mut batch = rig.recv.batch();
    for id in 0..u64::from(Requests::MAX) {
        // SAFETY: there is no device that would access the memory.
        unsafe { batch.push(id, &[sge(1, 1, 1)]) };
    }
    batch.complete().unwrap();
    assert_eq!(rig.device.take().1.len(), Requests::MAX as usize);
    let longer = RecvRing::new(Words::new(1 << 20).map(), 1 << 16);
    assert_eq!(longer.unwrap_err(), MemoryError::Elements(1 << 16));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Over many rounds of the ring, whose receives are not a power of two.
    #[test]
    fn receives_survive_wraps_and_completions_in_any_order(
        steps in prop::collection::vec((1..4_usize, any::<u16>(), any::<bool>()), 1..200),
    ) {
        let shape = Shape { receives: 5, descriptors: 16, cqes: 8, ..Shape::default() };
        let mut rig = Rig::new(shape, send_config());
        let sges = [sge(0x1000, 1, 1), sge(0x2000, 2, 2), sge(0x3000, 3, 3)];
        let mut outstanding = Vec::new();
        for (id, (num, which, complete)) in (0_u64..).zip(steps) {
            if complete && !outstanding.is_empty() {
                let (number, id): (u16, u64) = outstanding.swap_remove(usize::from(which) % outstanding.len());
                rig.device.complete(1, &rig.device.received(number, 9));
                let mut polled = Vec::new();
                rig.cq.poll_each(16, |c| polled.push((c.wr_id(), c.is_receive(), c.byte_len()))).unwrap();
                prop_assert_eq!(polled, [(id, Some(true), 9)]);
                rig.device.bells.take();
                continue;
            }
            // SAFETY: there is no device that would access the memory.
            let result = unsafe { rig.recv.post(id, &sges[..num]) };
            let (_, posted) = rig.device.take();
            if outstanding.len() == 5 {
                prop_assert_eq!(result, Err(PostError::QueueFull));
                prop_assert_eq!(posted, []);
                continue;
            }
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(posted.len(), 1);
            prop_assert_eq!(posted[0].sges.len(), num);
            outstanding.push((posted[0].req_id, id));
        }
    }
}
