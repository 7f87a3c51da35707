// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the queues are.

use super::*;
use crate::DoorbellPlace;

#[test]
fn a_program_finds_the_queues_and_their_doorbells() {
    let page = Words::new(4096);
    let registers = page.map().as_ptr().addr().get();
    let stage = Stage::new(|state| state.registers = Some(page.clone()));
    let channel = comp_channel::create(stage.efa.kernel()).unwrap();
    let cq = stage.efa.create_cq(&CqInitAttr::new(100), Some(&channel), 0).unwrap();
    let place = cq.cq.place();
    assert_eq!((place.entry_size, place.num_entries, place.max_batch), (32, 128, 0));
    assert_eq!(place.doorbell, DoorbellPlace::Address(registers + 0x30));

    let mut qp = stage.qp(&cq, &srd(17, 0)).unwrap();
    let places = *qp.qp.places();
    let queue = stage.kernel.with(|state| state.send_queue.map().as_ptr().addr().get());
    assert_eq!(places.send.buffer, queue + SQ_OFFSET as usize);
    assert_eq!((places.send.entry_size, places.send.num_entries, places.send.max_batch), (64, 32, 4));
    assert_eq!(places.send.doorbell, DoorbellPlace::Address(registers + 0x20));
    assert_eq!((places.recv.entry_size, places.recv.num_entries, places.recv.max_batch), (16, 32, 32));
    assert_eq!(places.recv.doorbell, DoorbellPlace::Address(registers + 0x24));
    for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
        stage.modify(&qp, state).unwrap();
    }
    post(&mut qp).unwrap();
    assert_eq!(page.bytes(0x20, 8), [1, 0, 0, 0, 0, 0, 0, 0], "the doorbell of the send queue is there");

    let wide = stage.qp(&cq, &srd(17, 33)).unwrap();
    assert_eq!((wide.qp.places().send.entry_size, wide.qp.places().send.max_batch), (128, 2));
}

#[test]
fn a_queue_may_have_no_doorbell_in_memory() {
    let stage = Stage::new(|state| state.cq.comp_mask = 0);
    let cq = stage.cq();
    assert_eq!(cq.cq.place().doorbell, DoorbellPlace::None);
    let qp = stage.qp(&cq, &srd(1, 0)).unwrap();
    assert_eq!(qp.qp.places().recv.doorbell, DoorbellPlace::Call);
}

#[test]
fn depths_are_those_of_libefa() {
    let efa = Stage::new(|_| ()).efa;
    // 0x1_0000 bytes of entries; 2048 descriptors.
    assert_eq!(
        [efa.max_sq_depth(32, false), efa.max_sq_depth(33, false), efa.max_sq_depth(0, true)],
        [1024, 512, 512]
    );
    assert_eq!([0, 1, 3].map(|sge| efa.max_rq_depth(sge)), [2048, 2048, 682]);
}
