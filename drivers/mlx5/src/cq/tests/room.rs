// SPDX-License-Identifier: MIT OR Apache-2.0
//! The room in the ring when QPs are created and destroyed while a poll is open.

use super::*;

/// The number of entries that have not been returned to the device.
fn taken(b: &Bench) -> u32 {
    b.producer.wrapping_sub(b.consumed()) & 0xff_ffff
}

/// Creates a QP, completes WRs of it, and destroys it.
fn create_and_close(b: &mut Bench, round: u32) {
    let qp = b.qp(100 + round, None);
    (0..3).for_each(|i| b.complete(cqe(0, &qp, i)));
    assert!(taken(b) <= b.entries(), "round {round}: the device overruns the ring");
    b.shared.detach_qp(&qp);
}

#[test]
fn qps_destroyed_during_an_open_poll_return_their_room() {
    let mut b = bench(16, 64, CqeVersion::V1);
    let stays = b.qp(1, None);
    (0..2).for_each(|i| b.complete(cqe(0, &stays, i)));
    b.queue.start_poll().unwrap();
    for round in 0..40 {
        let current = send_id(1, round % BLOCKS);
        assert_eq!(b.queue.current().unwrap().wr_id(), current);
        create_and_close(&mut b, round);
        assert_eq!(b.queue.current().unwrap().qp_num(), 1, "the current entry stays");
        b.queue.next_poll().unwrap();
        b.complete(cqe(0, &stays, (round + 2) % BLOCKS));
    }
    b.queue.end_poll();
    assert_eq!(b.poll(8), Ok(vec![send_id(1, 41 % BLOCKS)]));
    assert_eq!(taken(&b), 0);
}

#[test]
fn the_current_entry_of_an_open_poll_is_not_returned() {
    let mut b = bench(16, 64, CqeVersion::V1);
    let qp = b.qp(1, None);
    (0..4).for_each(|i| b.complete(cqe(0, &qp, i)));
    b.queue.start_poll().unwrap();
    (0..2).for_each(|_| b.queue.next_poll().unwrap());
    // Four rounds without a step: the entries before the current one are returned at once, the rest when the poll
    // continues.
    for round in 0..4 {
        create_and_close(&mut b, round);
        assert_eq!(b.consumed(), 2);
        assert_eq!(b.queue.current().unwrap().wr_id(), send_id(1, 2));
    }
    b.queue.next_poll().unwrap();
    create_and_close(&mut b, 4);
    assert_eq!(b.queue.current().unwrap().wr_id(), send_id(1, 3));
    assert_eq!(b.consumed(), b.producer - 4, "all but the current entry and those of the last round");
    // The next entry names an unknown QP: the poll fails and keeps its current entry.
    b.complete(Cqe64 { srqn_uidx: Be32::new(0x1234), ..cqe(0, &qp, 0) });
    assert_eq!(b.queue.next_poll(), Err(PollError::Corrupt));
    create_and_close(&mut b, 5);
    assert_eq!(b.queue.current().unwrap().wr_id(), send_id(1, 3));
    assert_eq!(b.consumed(), b.producer - 8);
    b.queue.end_poll();
    assert_eq!((taken(&b), b.poll(8)), (0, Ok(vec![])));
}

#[test]
fn qps_destroyed_in_callbacks_return_their_room() {
    let mut b = bench(16, 64, CqeVersion::V1);
    let stays = b.qp(1, None);
    for round in 0..40_u32 {
        let ends = b.qp(100 + round, None);
        b.complete(cqe(0, &stays, 0));
        (0..5).for_each(|i| b.complete(cqe(0, &ends, i)));
        b.complete(cqe(0, &stays, 1));
        assert!(taken(&b) <= b.entries(), "round {round}: the device overruns the ring");
        let (shared, mut ids) = (Arc::clone(&b.shared), Vec::new());
        b.queue
            .poll_each(64, |c| {
                ids.push(c.wr_id());
                if ids.len() == 1 + round as usize % 3 {
                    shared.detach_qp(&ends);
                }
            })
            .unwrap();
        assert!(ids.len() <= 3, "{ids:?}");
        assert_eq!(b.poll(8).map(|rest| ids.into_iter().chain(rest).last()), Ok(Some(send_id(1, 1))));
        assert_eq!(taken(&b), 0);
    }
}
