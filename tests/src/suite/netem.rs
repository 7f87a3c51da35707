// SPDX-License-Identifier: MIT OR Apache-2.0
//! A link that loses, delays, reorders, repeats and damages packets: reliable QPs deliver everything once, in order and
//! intact.

use crate::env::End;
use crate::wait::{QUIET, list, opcodes};
use crate::{Disturbance, Face, Lab, Lock, Op, Outcome, Pair, Req, Spec};
use anyhow::{Context as _, Result, ensure};
use core::sync::atomic::Ordering;
use core::time::Duration;
use uverbs::provider::Completion;
use uverbs::{Driver, Exclusive, Rc, Shared, Uc, WcOpcode};

/// Requests of a round.
const ROUND: usize = 8;
/// Bytes of each: three packets, the last one short.
const LEN: usize = 2500;
/// The distance between the places of two messages.
const STEP: usize = 4096;
/// The value that each atomic adds.
const ADD: u64 = 0x1_0000_0001;
/// The word that atomics add to, and where their answers go.
const WORD: usize = ROUND * STEP;

const NONE: Disturbance =
    Disturbance { loss: 0, delay: Duration::ZERO, reorder: None, duplicate: 0, corrupt: 0 };
const LOSS_5: Disturbance = Disturbance { loss: 5, ..NONE };
const MS: Duration = Duration::from_millis(1);
const EVERYTHING: Disturbance =
    Disturbance { loss: 1, delay: MS, reorder: Some((95, 25)), duplicate: 1, corrupt: 0 };

/// The attributes of connections: short timeouts, because every loss waits for one.
fn spec<D: Driver>(lab: &Lab<D>) -> Spec {
    let mut spec = Spec::new(lab);
    // 4.096 us << 13 is 34 ms.
    spec.attr.timeout = 13;
    spec
}

/// A kind of request.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Send,
    Write,
    Read,
    Add,
}
use Kind::{Add, Read, Send, Write};

/// Requests of all kinds, in flight at the same time.
const MIXED: [Kind; 4] = [Send, Write, Read, Add];

/// Rounds of requests of alternating kinds that are in flight at the same time; everything is checked after each round.
fn rounds<D: Driver, L: Lock>(pair: &mut Pair<D, Rc, L>, face: Face, n: u64, kinds: [Kind; 4]) -> Result<()> {
    let Pair { a, b } = pair;
    let mut word = b.word(WORD)?.load(Ordering::Acquire);
    for round in 0..n {
        let seed = |i: usize| round * 100 + i as u64 + 7;
        let at = |i: usize| i * STEP..i * STEP + LEN;
        let of = |i: usize| kinds[i % 4];
        b.clear(0..WORD)?;
        // The memory of the atomics' answers is cleared, so that no answer of the previous round is accepted.
        a.clear(0..WORD + ROUND * 8)?;
        for i in 0..ROUND {
            match of(i) {
                Send => {
                    a.fill(at(i), seed(i))?;
                    b.recv(Face::Batch, seed(i), at(i))?;
                }
                Write => a.fill(at(i), seed(i))?,
                Read => b.fill(at(i), seed(i))?,
                Add => {}
            }
        }
        let sges: Vec<_> = (0..ROUND).map(|i| [a.sge(at(i))]).collect();
        let answers: Vec<_> = (0..ROUND).map(|i| [a.sge(WORD + i * 8..WORD + i * 8 + 8)]).collect();
        let req = |i: usize| {
            let remote = b.remote(i * STEP);
            match of(i) {
                Send => Req::new(seed(i), Op::SendImm(i as u32)).sges(&sges[i]),
                Write => Req::new(seed(i), Op::Write(remote)).sges(&sges[i]),
                Read => Req::new(seed(i), Op::Read(remote)).sges(&sges[i]),
                Add => Req::new(seed(i), Op::FetchAdd(b.remote(WORD), ADD)).sges(&answers[i]),
            }
            .signaled()
        };
        let reqs: Vec<_> = (0..ROUND).map(req).collect();
        a.post(face, &reqs)?;

        let done = a.ok(ROUND).with_context(|| format!("round {round}"))?;
        let opcode = |i: usize| match of(i) {
            Send => WcOpcode::SEND,
            Write => WcOpcode::RDMA_WRITE,
            Read => WcOpcode::RDMA_READ,
            Add => WcOpcode::FETCH_ADD,
        };
        let expected: Vec<_> = (0..ROUND).map(|i| (seed(i), opcode(i))).collect();
        ensure!(opcodes(&done) == expected, "round {round}: another order: {}", list(&done));
        let sends: Vec<usize> = (0..ROUND).filter(|i| of(*i) == Send).collect();
        let got = b.ok(sends.len())?;
        for (i, wc) in sends.into_iter().zip(&got) {
            let imm = wc.imm_data().map(|i| i.get());
            ensure!(
                wc.wr_id == seed(i) && wc.byte_len as usize == LEN && imm == Some(i as u32),
                "round {round}: receive of {i}: {wc:?}"
            );
        }
        for i in 0..ROUND {
            let what = || format!("round {round}, request {i}");
            match of(i) {
                Send | Write => b.check(at(i), seed(i)).with_context(what)?,
                Read => a.check(at(i), seed(i)).with_context(what)?,
                Add => {
                    // Each was executed exactly once, in order.
                    let answer = a.word(WORD + i * 8)?.load(Ordering::Acquire);
                    ensure!(answer == word, "{}: returned {answer:#x}, expected {word:#x}", what());
                    word = word.wrapping_add(ADD);
                }
            }
        }
    }
    let end = b.word(WORD)?.load(Ordering::Acquire);
    ensure!(end == word, "{end:#x} after {n} rounds, expected {word:#x}");
    a.idle()?;
    b.idle()
}

/// Runs rounds on a disturbed link, during which there must be retransmissions, and then on the clean link.
fn disturbed<D: Driver, L: Lock>(lab: &Lab<D>, what: Disturbance, n: u64, repaired: bool) -> Outcome {
    let mut pair = Pair::<D, Rc, L>::with(lab, &spec(lab))?;
    // With reordered packets, rxe (rxe0, rxh1 and so on) may fail requests that are in flight behind a read, or never answer them: on 6.1,
    // 6.12 and 7.2, also for programs of libibverbs. Rounds without reads work.
    let apart = [[Send, Write, Send, Write], [Read; 4], [Add; 4]];
    let is_rxe = |end| lab.bed.name(end).starts_with("rx");
    let together = what.reorder.is_none() || !(is_rxe(End::A) || is_rxe(End::B));
    let parts = if together { &[MIXED][..] } else { &apart[..] };
    let before = lab.bed.repairs();
    let disturbed = lab.bed.disturb(&what)?;
    for (i, face) in Face::ALL.into_iter().enumerate() {
        for kinds in parts {
            rounds(&mut pair, face, n, *kinds).with_context(|| format!("{what}: {face:?}, part {i}"))?;
        }
    }
    let repairs = lab.bed.repairs() - before;
    lab.note(format_args!("{what}: {repairs} repairs"));
    ensure!(!repaired || repairs > 0, "the link was not disturbed");
    drop(disturbed);
    rounds(&mut pair, Face::Single, 5, MIXED).context("on the clean link")
}

/// An outage that is shorter than the timeouts causes no error. The ports stay up, because a device may fail requests
/// immediately if its port is down.
fn short_outage_causes_no_error<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut spec = spec(lab);
    // 4.096 us << 17 is 0.5 s.
    spec.attr.timeout = 17;
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    pair.message(Face::Batch, 3000, 1)?;
    let Pair { a, b } = &mut pair;
    for turn in 0..3 {
        let outage = lab.bed.disturb(&Disturbance { loss: 100, ..NONE })?;
        a.fill(0..3000, turn)?;
        b.clear(0..3000)?;
        b.recv(Face::Single, turn, 0..3000)?;
        let sges = [a.sge(0..3000)];
        a.post(Face::Batch, &[Req::new(turn, Op::Send).signaled().sges(&sges)])?;
        crate::wait::rest(100 * MS);
        drop(outage);
        a.ok(1)?;
        b.ok(1)?;
        b.check(0..3000, turn)?;
    }
    Ok(())
}

/// Unreliable QPs lose only whole messages: those that arrive are intact and in order, and nothing fails.
fn unreliable_messages_arrive_whole_and_in_order<D: Driver>(lab: &Lab<D>) -> Outcome {
    const MESSAGES: usize = 40;
    const LEN: usize = 1500;
    let place = |i: usize| i * 1600..i * 1600 + LEN;
    let mut pair = Pair::<D, Uc, Exclusive>::with(lab, &spec(lab))?;
    let disturbed = lab.bed.disturb(&LOSS_5)?;
    let Pair { a, b } = &mut pair;
    let mut arrived = 0;
    for round in 0..4_u64 {
        let seed = |i: usize| round * 100 + i as u64;
        for i in 0..MESSAGES {
            a.fill(place(i), seed(i))?;
            b.clear(place(i))?;
        }
        if round == 0 {
            (0..MESSAGES).try_for_each(|i| b.recv(Face::Batch, i as u64, place(i)))?;
        }
        for i in 0..MESSAGES {
            let sges = [a.sge(place(i))];
            let req = Req::new(1, Op::SendImm(seed(i) as u32)).signaled().sges(&sges);
            a.post(Face::Batch, &[req])?;
            a.ok(1)?;
        }
        crate::wait::rest(QUIET);
        let mut got = Vec::new();
        while b.cq.poll_each(MESSAGES, |c| got.push(c.to_wc()))? > 0 {}
        let mut last = None;
        for wc in &got {
            let imm = wc.imm_data().map(|i| i.get());
            ensure!(wc.status.is_success() && wc.byte_len as usize == LEN, "{}", list(&got));
            ensure!(imm > last, "message {imm:?} after {last:?}");
            last = imm;
            let message = u64::from(imm.unwrap_or_default());
            // On a busy machine a message may arrive after its round. Its memory is that of this round then.
            if message / 100 == round {
                b.check(place(wc.wr_id as usize), message).with_context(|| format!("message {message}"))?;
            }
        }
        // Used receives are posted again.
        for wc in &got {
            b.recv(Face::Batch, wc.wr_id, place(wc.wr_id as usize))?;
        }
        arrived += got.len();
    }
    lab.note(format_args!("{arrived} of {} messages arrived", 4 * MESSAGES));
    ensure!((2 * MESSAGES..4 * MESSAGES).contains(&arrived), "{arrived} of {} arrived", 4 * MESSAGES);
    drop(disturbed);
    Ok(())
}

crate::tests!(
    reliable_qps_survive_loss =
        |lab| disturbed::<D, Exclusive>(lab, Disturbance { loss: 1, ..NONE }, 12, true),
    reliable_qps_survive_heavy_loss = |lab| disturbed::<D, Shared>(lab, LOSS_5, 4, true),
    reliable_qps_survive_delay =
        |lab| disturbed::<D, Exclusive>(lab, Disturbance { delay: MS, ..NONE }, 3, false),
    reliable_qps_survive_reordering = |lab| disturbed::<D, Exclusive>(
        lab,
        Disturbance { delay: MS, reorder: Some((90, 25)), ..NONE },
        4,
        true
    ),
    reliable_qps_survive_duplicates =
        |lab| disturbed::<D, Exclusive>(lab, Disturbance { duplicate: 10, ..NONE }, 12, true),
    reliable_qps_survive_damage =
        |lab| disturbed::<D, Exclusive>(lab, Disturbance { corrupt: 2, ..NONE }, 6, true),
    reliable_qps_survive_all_faults = |lab| disturbed::<D, Shared>(lab, EVERYTHING, 8, true),
    short_outage_causes_no_error,
    unreliable_messages_arrive_whole_and_in_order,
);
