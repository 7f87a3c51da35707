// SPDX-License-Identifier: MIT OR Apache-2.0
//! Guarantees of the faces besides single requests: batches, sticky fields, aborts without effects, all faces on one
//! queue.

use crate::post::{Lost, Session, builder, lose, post_queue, session};
use crate::wait::{opcodes, statuses};
use crate::{Data, Face, Lab, Lock, Op, Outcome, Pair, Req, post_recv};
use anyhow::{Result, ensure};
use uverbs::{Driver, Exclusive, PostError, Rc, SendFlags, Shared, WcOpcode};

fn both<D: Driver>(
    lab: &Lab<D>,
    exclusive: impl FnOnce(&Lab<D>) -> Outcome,
    shared: impl FnOnce(&Lab<D>) -> Outcome,
) -> Outcome {
    exclusive(lab)?;
    shared(lab)
}

/// Twenty writes in one batch, of which only the last one is signaled.
fn batch_may_have_one_completion<D: Driver>(lab: &Lab<D>) -> Outcome {
    both(lab, batch_in::<D, Exclusive>, batch_in::<D, Shared>)
}

fn batch_in<D: Driver, L: Lock>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, b } = Pair::<D, Rc, L>::new(lab)?;
    for (turn, face) in Face::ALL.into_iter().enumerate() {
        let seed = 70 + turn as u64;
        a.fill(0..20 * 300, seed)?;
        b.clear(0..20 * 300)?;
        let sges: Vec<_> = (0..20).map(|i| [a.sge(i * 300..(i + 1) * 300)]).collect();
        let reqs: Vec<_> = (0..20)
            .map(|i| {
                let req = Req::new(i as u64, Op::Write(b.remote(i * 300))).sges(&sges[i]);
                if i == 19 { req.signaled() } else { req }
            })
            .collect();
        a.post(face, &reqs)?;
        ensure!(opcodes(&a.ok(1)?) == [(19, WcOpcode::RDMA_WRITE)], "{face:?}");
        a.idle()?;
        b.check(0..6000, seed)?;
    }
    Ok(())
}

/// `wr_id` and `wr_flags` stay until they are changed, and are sampled by the builder, not by `wr_complete`.
fn builder_fields_stay_set<D: Driver>(lab: &Lab<D>) -> Outcome {
    both(lab, sticky_in::<D, Exclusive>, sticky_in::<D, Shared>)
}

fn sticky_in<D: Driver, L: Lock>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, L>::new(lab)?;
    b.recv_empty(6)?;
    let sq = a.qp.sq_mut();
    let send = |wr: &mut Session<'_>| {
        wr.op(Op::Send);
        wr.data(Data::NONE);
    };
    session(sq, |wr| {
        wr.sticky(0x51, SendFlags::SIGNALED);
        send(wr);
        send(wr);
        wr.sticky(0x52, SendFlags::empty());
        send(wr);
        wr.sticky(0x53, SendFlags::SIGNALED);
        send(wr);
        // They are set after the last WR, so they have no effect in this session.
        wr.sticky(0x54, SendFlags::empty());
    })?;
    // They keep their values after the session.
    let mut wr = builder(sq);
    wr.sticky(0x55, SendFlags::SIGNALED);
    for _ in 0..2 {
        wr.start();
        send(&mut wr);
        wr.complete()?;
    }
    let ids: Vec<_> = a.ok(5)?.iter().map(|wc| wc.wr_id).collect();
    ensure!(ids == [0x51, 0x51, 0x53, 0x55, 0x55], "{ids:x?}");
    b.ok(6)?;
    a.idle()
}

/// WRs that are aborted, dropped or refused have no effect: no completion, no data, no room used.
fn abort_changes_nothing<D: Driver>(lab: &Lab<D>) -> Outcome {
    both(lab, abort_in::<D, Exclusive>, abort_in::<D, Shared>)
}

fn abort_in<D: Driver, L: Lock>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, L>::new(lab)?;
    let sges = [a.sge(0..4096)];
    a.fill(0..4096, 9)?;
    let room = a.qp.cap().max_send_wr as usize;
    let write: Req<'_, D> = Req::new(1, Op::Write(b.remote(0))).signaled().sges(&sges);
    // The loop builds more WRs than the queue holds, so it would fail if an aborted WR kept its room.
    for turn in 0..room {
        let sq = a.qp.sq_mut();
        let mut wr = builder(sq);
        wr.start();
        wr.request(&write);
        wr.request(&write);
        wr.abort();
        lose(sq, &[write, write], if turn % 2 == 0 { Lost::Abort } else { Lost::Drop })?;
        // If one request of a batch is invalid, none is posted.
        let wrong = write.inline(&[1; 4096]);
        ensure!(post_queue(sq, Face::Batch, &[write, wrong, write]) == Err(PostError::InlineTooLong.into()));
        let result = session(sq, |wr| {
            wr.request(&write);
            wr.request(&wrong);
            wr.request(&write);
        });
        ensure!(result == Err(PostError::InlineTooLong), "{result:?}");
    }
    a.idle()?;
    ensure!(b.bytes(0..4096)? == vec![0; 4096], "an aborted write was done");
    // The queue is unchanged: all of it can be used.
    b.recv_empty(1)?;
    let mut many = vec![write; room];
    many[room - 1] = Req::new(2, Op::Send).signaled();
    a.post(Face::Builder, &many)?;
    ensure!(a.ok(room)?.last().is_some_and(|wc| wc.wr_id == 2));
    b.ok(1)?;
    b.check(0..4096, 9)
}

/// Batches of all faces on one queue complete in the order of posting.
fn faces_share_a_queue_in_order<D: Driver>(lab: &Lab<D>) -> Outcome {
    both(lab, interleaved_in::<D, Exclusive>, interleaved_in::<D, Shared>)
}

fn interleaved_in<D: Driver, L: Lock>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, L>::new(lab)?;
    let mut next = 0_u64;
    for turn in 0..24 {
        let n = 1 + turn % 5;
        let ids: Vec<u64> = (next..next + n as u64).collect();
        next += n as u64;
        let ranges: Vec<_> = (0..n).map(|i| [b.sge(i * 8..i * 8 + 8)]).collect();
        let recvs: Vec<_> = ids.iter().zip(&ranges).map(|(id, sges)| (*id, &sges[..])).collect();
        post_recv(b.qp.rq_mut()?, [Face::List, Face::Batch, Face::Single][turn % 3], &recvs)?;
        let data: Vec<_> = ids.iter().map(|id| id.to_le_bytes()).collect();
        let reqs: Vec<_> =
            ids.iter().zip(&data).map(|(id, data)| Req::new(*id, Op::Send).signaled().inline(data)).collect();
        a.post(Face::ALL[turn % 4], &reqs)?;
        let sent: Vec<_> = a.ok(n)?.iter().map(|wc| wc.wr_id).collect();
        let got: Vec<_> = b.ok(n)?.iter().map(|wc| wc.wr_id).collect();
        ensure!(sent == ids && got == ids, "{ids:?} became {sent:?} and {got:?}");
        ensure!(b.bytes(0..8 * n)? == data.concat(), "the messages came in another order");
    }
    Ok(())
}

/// The halves of a QP work independently, and the QP exists until the last one is dropped.
fn halves_of_a_qp_are_independent<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    b.recv_empty(2)?;
    let crate::PairEnd { qp, cq, .. } = a;
    let uverbs::raw::Qp { send: mut sq, recv: rq, control } = qp;
    drop(control);
    sq.post(1).signaled().send_inline(&[])?;
    drop(rq);
    sq.post(2).signaled().send_inline(&[])?;
    crate::wait::successes(&cq, 2)?;
    b.ok(2)?;
    drop(sq);
    // Now it is destroyed, so the CQ can be closed.
    cq.close().map_err(|(_, e)| e)?;
    Ok(())
}

/// Receives work on each face; aborted ones are not posted.
fn receives_work_on_every_face<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { mut a, mut b } = Pair::<D, Rc, Exclusive>::new(lab)?;
    let rq = b.qp.rq()?;
    let sges = [[crate::sges::sge(&b.mr, 0..8)], [crate::sges::sge(&b.mr, 8..16)]];
    let pair = |first| [(first, &sges[0][..]), (first + 1, &sges[1][..])];
    drop(rq.batch());
    rq.batch().abort();
    ensure!(post_recv(rq, Face::List, &[]) == Err(crate::Refused::new(PostError::NullList, None)));
    for (i, face) in [Face::List, Face::Batch, Face::Single].into_iter().enumerate() {
        post_recv(rq, face, &pair(i as u64 * 2))?;
    }
    let data = [[1_u8; 8], [2; 8], [3; 8], [4; 8], [5; 8], [6; 8]];
    let reqs: Vec<_> = data.iter().map(|d| Req::new(0, Op::Send).inline(d)).collect();
    a.post(Face::Batch, &reqs)?;
    let got = b.ok(6)?;
    ensure!(statuses(&got).iter().map(|s| s.0).eq(0..6), "{got:?}");
    ensure!(b.bytes(0..16)? == [data[4], data[5]].concat());
    Ok(())
}

/// A thread that locks a queue twice gets an error instead of a deadlock.
fn a_second_lock_is_an_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Pair { a, mut b } = Pair::<D, Rc, Shared>::new(lab)?;
    b.recv_empty(1)?;
    let sq = a.qp.sq();
    let guard = sq.lock().map_err(PostError::from)?;
    ensure!(sq.lock().is_err(), "locked twice");
    let one: Req<'_, D> = Req::new(1, Op::Send).signaled();
    let list = crate::post::List::new(&[one]);
    let refused = crate::post::post_prepared(sq, &list);
    ensure!(refused == Err(crate::Refused::new(PostError::SessionOpen, Some(0))), "{refused:?}");
    drop(guard);
    crate::post::post_prepared(sq, &list)?;
    a.ok(1)?;
    Ok(())
}

/// Builders of a QP support exactly the operations in `send_ops_flags`.
fn only_requested_builders_work<D: Driver>(lab: &Lab<D>) -> Result<()> {
    use uverbs::attr::{QpCap, SendOpsFlags};
    let Pair { a, .. } = Pair::<D, Rc, Exclusive>::new(lab)?;
    let cap = QpCap::new(4, 4).inline(8);
    let without = a.pd.raw_qp::<Rc>().cq(&a.cq).cap(cap).create()?;
    ensure!(without.send.qp_ex().is_none(), "a builder face without send_ops_flags");
    let mut with = a.pd.raw_qp::<Rc>().cq(&a.cq).cap(cap).send_ops(SendOpsFlags::SEND).create()?;
    with.init(&lab.connect_attr())?;
    with.connect(&a.here, &a.here, &lab.connect_attr())?;
    let write: Req<'_, D> = Req::new(1, Op::Write(a.remote(0)));
    let result = session(with.sq(), |wr| wr.request(&write));
    ensure!(result == Err(PostError::IllegalOpcode), "{result:?}");
    Ok(())
}

crate::tests!(
    batch_may_have_one_completion,
    builder_fields_stay_set,
    abort_changes_nothing,
    faces_share_a_queue_in_order,
    halves_of_a_qp_are_independent,
    receives_work_on_every_face,
    a_second_lock_is_an_error,
    only_requested_builders_work,
);
