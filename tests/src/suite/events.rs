// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion events: waiting instead of polling, solicited events, several CQs on one channel; and a CQ overrun.

use crate::pair::builder_ops;
use crate::post::Typed;
use crate::wait::{LIMIT, QUIET, readable};
use crate::{Face, Lab, Op, Outcome, Pair, PairEnd, Req, Spec};
use anyhow::{Result, bail, ensure};
use core::time::Duration;
use std::os::fd::AsFd;
use uverbs::attr::EventType;
use uverbs::{CompletionChannel, Driver, Errno, EventSource, Exclusive, Rc, SendFlags, Shared, Ud, raw::Cq};

type Srq<D> = uverbs::raw::Srq<Shared, D>;

/// A pair whose B has a channel.
fn pair_with_channel<D: Driver, T: Typed<D>>(
    lab: &Lab<D>,
    channel: &CompletionChannel<D>,
) -> Result<Pair<D, T, Exclusive>> {
    let spec = Spec::new(lab);
    let mut pair = Pair::<D, T, Exclusive>::unconnected(lab, &spec)?;
    let cq: Cq<Shared, D> = lab.b.create_cq(spec.cqe, Some(channel))?;
    ensure!(cq.has_channel());
    pair.b = PairEnd::on(lab.b.alloc_pd()?, cq, &spec, builder_ops::<D, T>(lab)?, 77, None::<&Srq<D>>)?;
    pair.connect(&spec.attr)?;
    Ok(pair)
}

/// Waits for the CQ's event.
fn expect<D: Driver>(channel: &CompletionChannel<D>, cq: &Cq<Shared, D>) -> Result<()> {
    ensure!(readable(channel.as_fd(), LIMIT)?, "no event within {LIMIT:?}");
    ensure!(channel.get_event()? == cq.id(), "an event of another CQ");
    Ok(())
}

fn expect_none<D: Driver>(channel: &CompletionChannel<D>) -> Result<()> {
    ensure!(!readable(channel.as_fd(), QUIET)?, "an unexpected event");
    Ok(())
}

/// Arms, waits and polls hundreds of times: no event is lost.
fn no_event_is_lost<D: Driver>(lab: &Lab<D>) -> Outcome {
    let channel = lab.b.create_comp_channel()?;
    let Pair { mut a, mut b } = pair_with_channel::<D, Rc>(lab, &channel)?;
    for turn in 0..200_u64 {
        b.recv(Face::Single, turn, 0..64)?;
        b.cq.req_notify(false)?;
        let data = turn.to_le_bytes();
        a.post(Face::ALL[turn as usize % 4], &[Req::new(turn, Op::Send).signaled().inline(&data)])?;
        expect(&channel, &b.cq)?;
        ensure!(b.ok(1)?[0].wr_id == turn);
        ensure!(b.bytes(0..8)? == data);
        a.ok(1)?;
    }
    // One event for each time it was armed, however many completions come.
    expect_none(&channel)?;
    b.recv_empty(5)?;
    b.cq.req_notify(false)?;
    let many = [Req::new(1, Op::Send); 5];
    a.post(Face::Batch, &many)?;
    b.ok(5)?;
    expect(&channel, &b.cq)?;
    expect_none(&channel)
}

/// Without arming there is no event. A non-blocking channel returns `EAGAIN`.
fn each_arming_raises_one_event<D: Driver>(lab: &Lab<D>) -> Outcome {
    let channel = lab.b.create_comp_channel()?;
    let Pair { mut a, mut b } = pair_with_channel::<D, Rc>(lab, &channel)?;
    b.recv_empty(1)?;
    a.post(Face::Single, &[Req::new(1, Op::Send).signaled()])?;
    b.ok(1)?;
    expect_none(&channel)?;
    channel.set_nonblocking(true)?;
    let errno = channel.get_event().map_err(|e| e.errno());
    ensure!(errno == Err(Errno::EAGAIN), "{errno:?}");
    channel.set_nonblocking(false)?;
    Ok(())
}

/// If the CQ is armed for solicited completions, other completions raise no event, except errors.
fn unsolicited_completions_raise_no_solicited_event<D: Driver>(lab: &Lab<D>) -> Outcome {
    let channel = lab.b.create_comp_channel()?;
    let Pair { mut a, mut b } = pair_with_channel::<D, Rc>(lab, &channel)?;
    for face in Face::ALL {
        b.recv_empty(2)?;
        b.cq.req_notify(true)?;
        a.post(face, &[Req::new(1, Op::Send).signaled()])?;
        b.ok(1)?;
        a.ok(1)?;
        expect_none(&channel)?;
        a.post(face, &[Req::new(2, Op::Send).signaled().flags(SendFlags::SOLICITED)])?;
        expect(&channel, &b.cq)?;
        b.ok(1)?;
        a.ok(1)?;
    }
    b.recv_empty(1)?;
    b.cq.req_notify(true)?;
    b.set_state(uverbs::attr::QpState::ERR)?;
    b.wait(1)?;
    // An error counts as solicited (ibv_req_notify_cq(3)); kernels whose rxe posts a flushed receive as any other
    // (`flush_recv_wqe()`, from 6.4 on) do not do that.
    if readable(channel.as_fd(), QUIET)? {
        expect(&channel, &b.cq)
    } else {
        lab.note("an error raised no solicited event");
        Ok(())
    }
}

/// A solicited write with immediate, and a solicited datagram, raise an event.
fn solicited_writes_and_datagrams_raise_events<D: Driver>(lab: &Lab<D>) -> Outcome {
    let channel = lab.b.create_comp_channel()?;
    let Pair { mut a, mut b } = pair_with_channel::<D, Rc>(lab, &channel)?;
    b.recv_empty(1)?;
    b.cq.req_notify(true)?;
    let write = Req::new(1, Op::WriteImm(b.remote(0), 1)).flags(SendFlags::SOLICITED).inline(&[1]);
    a.post(Face::Batch, &[write])?;
    expect(&channel, &b.cq)?;
    b.ok(1)?;
    let Pair { mut a, mut b } = pair_with_channel::<D, Ud>(lab, &channel)?;
    b.recv(Face::Single, 1, 0..64)?;
    b.recv(Face::Single, 1, 0..64)?;
    b.cq.req_notify(true)?;
    a.post(Face::Batch, &[Req::new(1, Op::Send)])?;
    b.ok(1)?;
    expect_none(&channel)?;
    a.post(Face::Batch, &[Req::new(1, Op::Send).flags(SendFlags::SOLICITED)])?;
    expect(&channel, &b.cq)
}

/// A completion from before the arming may raise no event, so a program must poll after arming.
fn completions_before_arming_are_polled<D: Driver>(lab: &Lab<D>) -> Outcome {
    let channel = lab.b.create_comp_channel()?;
    let Pair { mut a, mut b } = pair_with_channel::<D, Rc>(lab, &channel)?;
    for turn in 0..20 {
        b.recv_empty(1)?;
        a.post(Face::Single, &[Req::new(turn, Op::Send).signaled()])?;
        a.ok(1)?;
        b.cq.req_notify(false)?;
        // Whether there is an event or not (devices differ), the completion is there.
        b.ok(1)?;
        if readable(channel.as_fd(), Duration::ZERO)? {
            channel.get_event()?;
        }
    }
    Ok(())
}

/// Events of several CQs on one channel are distinguished, and a destroyed CQ has no events.
fn events_on_one_channel_name_their_cq<D: Driver>(lab: &Lab<D>) -> Outcome {
    let channel = lab.b.create_comp_channel()?;
    let mut pairs = Vec::new();
    for _ in 0..4 {
        pairs.push(pair_with_channel::<D, Rc>(lab, &channel)?);
    }
    for turn in [2, 0, 3, 1, 1, 2] {
        let Pair { a, b } = &mut pairs[turn];
        b.recv_empty(1)?;
        b.cq.req_notify(false)?;
        a.post(Face::Single, &[Req::new(1, Op::Send)])?;
        expect(&channel, &b.cq)?;
        b.ok(1)?;
    }
    // An unread event of a destroyed CQ is skipped.
    let Pair { mut a, mut b } = pairs.remove(0);
    b.recv_empty(1)?;
    b.cq.req_notify(false)?;
    a.post(Face::Single, &[Req::new(1, Op::Send)])?;
    ensure!(readable(channel.as_fd(), LIMIT)?);
    drop(b);
    channel.set_nonblocking(true)?;
    match channel.get_event() {
        Err(e) if e.errno() == Errno::EAGAIN => Ok(()),
        other => bail!("{other:?}"),
    }
}

/// More completions than fit: if the kernel reports it, there is an event; the other completions can be polled.
fn cq_overrun_raises_an_event<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = Spec::new(lab);
    spec.cqe = 4;
    let Pair { mut a, b } = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    let at = b.remote(0);
    lab.a.set_async_nonblocking(true)?;
    for id in 0..60 {
        a.post(Face::Single, &[Req::new(id, Op::Write(at)).signaled().inline(&[1])])?;
    }
    crate::wait::rest(QUIET);
    let mut seen = None;
    if readable(lab.a.async_fd(), QUIET * 4)? {
        let event = lab.a.get_async_event()?;
        seen = Some(event);
        ensure!(event.event_type == EventType::CQ_ERR, "{event:?}");
        ensure!(event.source == EventSource::Cq(a.cq.id()), "{event:?}");
    }
    lab.note(format_args!("the event of a full CQ: {seen:?}"));
    let mut n = 0;
    while a.cq.poll_each(8, |_| n += 1)? > 0 {}
    ensure!((4..60).contains(&n), "{n} completions of a CQ for 4");
    ensure!(seen.is_some(), "an overrun without an event");
    // The overrun is intentional. In other tests it is an error of the driver.
    let seen = lab.bed.forgive(&["CqOverrun"])?;
    ensure!(seen.is_none_or(|n| n == 1), "the devices recorded {seen:?} overruns");
    Ok(())
}

crate::tests!(
    no_event_is_lost,
    each_arming_raises_one_event,
    unsolicited_completions_raise_no_solicited_event,
    solicited_writes_and_datagrams_raise_events,
    completions_before_arming_are_polled,
    events_on_one_channel_name_their_cq,
    cq_overrun_raises_an_event,
);
