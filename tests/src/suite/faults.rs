// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults for which the order of the checks, or the completion at the other end, is observable: the rows of "Faults during
//! execution" in docs/src/reference/semantics.md.

use super::errors::{LOCAL_PROTECTION, REMOTE_ACCESS, hasty, revive, unknown_key};
use super::mw::{bound, types};
use crate::pair::region;
use crate::sges::sge;
use crate::wait::{self, list, statuses};
use crate::{Dialect, Face, Lab, Op, Outcome, Pair, RemoteAddr, Req, Spec};
use anyhow::{Context as _, Result, ensure};
use core::sync::atomic::Ordering;
use uverbs::attr::{AccessFlags, MwType, QpState};
use uverbs::wr::Sge;
use uverbs::{Driver, Exclusive, Rc, Uc, WcStatus};

type RcPair<D> = Pair<D, Rc, Exclusive>;

/// An operation at a place of the peer's.
type At = fn(RemoteAddr) -> Op;

/// The requests that the peer answers with data. They leave 2, 3 and 3 of the peer's 2.
const ASKS: [(At, u64); 3] = [(Op::Read, 2), (|at| Op::FetchAdd(at, 1), 3), (|at| Op::CmpSwp(at, 2, 3), 3)];

/// Posts a request that fails. Returns its status, and the peer's word after it. Nothing is written at A.
fn outcome<D: Driver>(pair: &mut RcPair<D>, op: Op, sges: &[Sge]) -> Result<(WcStatus, u64)> {
    pair.a.word(0)?.store(1, Ordering::Release);
    pair.b.word(0)?.store(2, Ordering::Release);
    pair.a.post(Face::Single, &[Req::new(1, op).signaled().sges(sges)])?;
    let status = pair.a.wait(1)?[0].status;
    ensure!(pair.a.word(0)?.load(Ordering::Acquire) == 1, "{op:?}: written to A's region");
    ensure!(pair.a.state()? == QpState::ERR);
    Ok((status, pair.b.word(0)?.load(Ordering::Acquire)))
}

/// The local memory of a request with an answer is checked when the answer arrives: the peer has executed it.
fn local_memory_of_answers_is_checked_last<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let good = pair.a.sge(0..8);
    let end = pair.a.mr.len();
    let read_only = region(&pair.a.pd, 4096, AccessFlags::REMOTE_READ)?;
    let other = lab.a.alloc_pd()?;
    let foreign = region(&other, 4096, lab.full_access())?;
    let gone = region(&pair.a.pd, 4096, lab.full_access())?;
    let deregistered = sge(&gone, 0..8);
    gone.close().map_err(|(_, e)| e)?;
    let at = pair.b.remote(0);
    for (what, entry) in [
        ("an unknown key", Sge { lkey: unknown_key(good.lkey), ..good }),
        ("an address beyond the region", pair.a.sge(end - 7..end + 1)),
        ("a region without write access", sge(&read_only, 0..8)),
        ("a region of another domain", sge(&foreign, 0..8)),
        ("a region that was deregistered", deregistered),
    ] {
        for (op, left) in ASKS {
            let op = op(at);
            let (status, word) = outcome(&mut pair, op, &[entry]).context(what)?;
            ensure!(LOCAL_PROTECTION.contains(&status), "{what}, {op:?}: {status:?}");
            ensure!(word == left, "{what}, {op:?}: {word} at the peer");
            ensure!(pair.b.state()? == QpState::RTS, "{what}, {op:?}: the peer has an error");
            revive(lab, &mut pair)?;
        }
    }
    Ok(())
}

/// If both keys are invalid, the remote error is reported for a request with an answer, the local one for data.
fn remote_key_is_checked_before_the_memory_of_answers<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let good = pair.a.sge(0..8);
    let entry = [Sge { lkey: unknown_key(good.lkey), ..good }];
    let at = pair.b.remote(0);
    let writes: [At; 2] = [Op::Write, |at| Op::WriteImm(at, 1)];
    let ops = ASKS.iter().map(|(op, _)| (*op, REMOTE_ACCESS)).chain(writes.map(|op| (op, LOCAL_PROTECTION)));
    // The end of the region is a multiple of 8, as the address of an atomic must be.
    for wrong in [RemoteAddr { rkey: unknown_key(at.rkey), ..at }, pair.b.remote(pair.b.mr.len())] {
        for (op, allowed) in ops.clone() {
            let op = op(wrong);
            let (status, word) = outcome(&mut pair, op, &entry)?;
            ensure!(allowed.contains(&status), "{op:?}: {status:?}, expected {allowed:?}");
            ensure!(word == 2, "{op:?}: {word} at the peer");
            revive(lab, &mut pair)?;
        }
    }
    Ok(())
}

/// A read whose last entry is invalid: the entries before it may be written, nothing else is.
fn read_with_an_invalid_last_entry_fails<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    for len in [100, 5000] {
        pair.b.fill(0..len + 50, 7)?;
        pair.a.clear(0..16 << 10)?;
        let good = pair.a.sge(0..len);
        let last = Sge { lkey: unknown_key(good.lkey), ..pair.a.sge(8192..8242) };
        let read = Req::new(1, Op::Read(pair.b.remote(0))).signaled();
        pair.a.post(Face::Batch, &[read.sges(&[good, last])])?;
        let status = pair.a.wait(1)?[0].status;
        ensure!(LOCAL_PROTECTION.contains(&status), "{len} bytes: {status:?}");
        ensure!(pair.a.bytes(len..16 << 10)? == vec![0; (16 << 10) - len], "{len} bytes: written elsewhere");
        revive(lab, &mut pair)?;
    }
    Ok(())
}

/// The receive of a write with immediate data that is refused has an error of its own; the others are flushed.
fn refused_write_with_immediate_fails_its_receive<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = RcPair::new(lab)?;
    let mtu = lab.port.active_mtu.bytes().context("an MTU")? as usize;
    let at = pair.b.remote(0);
    let wrong = RemoteAddr { rkey: unknown_key(at.rkey), ..at };
    let end = pair.b.mr.len();
    // The first packet of a longer message has no immediate data, so it takes no receive.
    for (to, len) in [(wrong, 8), (pair.b.remote(end - 7), 8), (wrong, mtu + 1)] {
        pair.b.recv(Face::Single, 21, 0..0)?;
        pair.b.recv(Face::Single, 22, 0..0)?;
        let sges = [pair.a.sge(0..len)];
        pair.a.post(Face::Single, &[Req::new(1, Op::WriteImm(to, 5)).signaled().sges(&sges)])?;
        let sent = statuses(&pair.a.wait(1)?);
        ensure!(sent == [(1, WcStatus::REM_ACCESS_ERR)], "{sent:?}");
        let got = pair.b.wait(2)?;
        let first = got[0].status;
        lab.note(format_args!("a write of {len} bytes with immediate data is refused: {first:?}"));
        match Dialect::of::<D>().refused_immediate {
            Some(status) => {
                let want = if len > mtu { WcStatus::WR_FLUSH_ERR } else { status };
                ensure!(first == want, "{len} bytes: {}, expected {want:?}", list(&got));
            }
            None => ensure!(!first.is_success(), "{len} bytes: {}", list(&got)),
        }
        ensure!(got[0].wr_id == 21 && statuses(&got)[1] == (22, WcStatus::WR_FLUSH_ERR), "{}", list(&got));
        ensure!(pair.b.state()? == QpState::ERR);
        revive(lab, &mut pair)?;
    }
    Ok(())
}

/// A message that is to invalidate a key that it may not: the receiver gets an error, the sender no answer.
fn failed_invalidation_is_not_answered<D: Driver>(lab: &Lab<D>) -> Outcome {
    let dialect = Dialect::of::<D>();
    let Some(status) = dialect.failed_invalidation else {
        // rxe of 6.1 does not flush a receive that is posted after such a fault, nor answer the sender.
        lab.note("left out: this device does not specify what follows a failed invalidation");
        return Ok(());
    };
    for what in ["an unknown key", "a region", "a free window", "another QP's window", "a window of type 1"] {
        let needed = if what == "a window of type 1" { MwType::Type1 } else { MwType::Type2 };
        let unchecked = ["another QP's window", "a free window"].contains(&what);
        let checked = dialect.invalidates_own_windows_only || !unchecked;
        if !types(lab).contains(&needed) || !checked {
            continue;
        }
        let mut pair = RcPair::with(lab, &hasty(lab))?;
        let mut second = RcPair::new(lab)?;
        let window = match what {
            "a free window" => Some(pair.b.pd.alloc_mw(needed)?),
            "another QP's window" => Some(bound(&mut second, needed, AccessFlags::REMOTE_WRITE)?),
            "a window of type 1" => Some(bound(&mut pair, needed, AccessFlags::REMOTE_WRITE)?),
            _ => None,
        };
        let region = pair.b.mr.rkey();
        let other = if what == "a region" { region } else { unknown_key(region) };
        let rkey = window.as_ref().map_or(other, uverbs::MemoryWindow::rkey);
        pair.b.recv(Face::Single, 21, 0..100)?;
        pair.b.recv(Face::Single, 22, 0..100)?;
        let data = [9; 40];
        let send = Req::new(1, Op::SendInv(rkey)).signaled().inline(&data);
        pair.a.post(Face::Batch, &[send, Req::new(2, Op::Send)])?;
        let got = pair.b.wait(2)?;
        lab.note(format_args!("invalidation of {what}: {:?}", got[0].status));
        let ids = [(21, status), (22, WcStatus::WR_FLUSH_ERR)];
        ensure!(statuses(&got) == ids, "{what}: {}", list(&got));
        ensure!(pair.b.state()? == QpState::ERR, "{what}");
        // A later receive is flushed. The sender's retries are exceeded.
        pair.b.recv(Face::Single, 23, 0..100)?;
        ensure!(statuses(&pair.b.wait(1)?) == [(23, WcStatus::WR_FLUSH_ERR)], "{what}");
        let sent = statuses(&pair.a.wait(2)?);
        let want = [(1, WcStatus::RETRY_EXC_ERR), (2, WcStatus::WR_FLUSH_ERR)];
        ensure!(sent == want, "{what}: {sent:?}");
        if let Some(window) = window {
            window.close()?;
        }
    }
    Ok(())
}

/// Without a timeout, a sender waits for the answer that does not come, and is freed by a reset.
fn failed_invalidation_without_a_timeout_waits<D: Driver>(lab: &Lab<D>) -> Outcome {
    if Dialect::of::<D>().failed_invalidation.is_none() || !types(lab).contains(&MwType::Type2) {
        return Ok(());
    }
    let mut spec = Spec::new(lab);
    spec.attr.timeout = 0;
    let mut pair = RcPair::with(lab, &spec)?;
    pair.b.recv_empty(1)?;
    let key = unknown_key(pair.b.mr.rkey());
    pair.a.post(Face::Single, &[Req::new(1, Op::SendInv(key)).signaled()])?;
    ensure!(!pair.b.wait(1)?[0].status.is_success());
    pair.a.idle().context("the sender has no completion")?;
    ensure!(pair.a.state()? == QpState::RTS);
    revive(lab, &mut pair)
}

/// On UC a message longer than the receive is dropped, or its receive has an error; nothing is written beyond it.
fn uc_message_longer_than_the_receive<D: Driver>(lab: &Lab<D>) -> Outcome {
    for len in [101, 5000] {
        let Pair { mut a, mut b } = Pair::<D, Uc, Exclusive>::new(lab)?;
        b.recv(Face::Single, 21, 0..100)?;
        b.recv(Face::Single, 22, 4096..4196)?;
        let sges = [a.sge(0..len)];
        a.post(Face::Single, &[Req::new(1, Op::Send).signaled().sges(&sges)])?;
        a.ok(1)?;
        wait::rest(wait::QUIET);
        ensure!(b.bytes(100..200)? == [0; 100], "{len} bytes: written beyond the receive");
        let mut wc = [uverbs::WorkCompletion::default()];
        if let Some(wc) = b.cq.poll(&mut wc)?.first() {
            lab.note(format_args!("UC: {len} bytes into 100: {:?}", wc.status));
            ensure!(!Dialect::of::<D>().drops_long_datagrams && !wc.status.is_success(), "{wc:?}");
            continue;
        }
        if !Dialect::of::<D>().drops_long_datagrams {
            lab.note(format_args!("UC: {len} bytes into 100 are dropped"));
            continue;
        }
        // The next messages use both receives, in order.
        for (wr_id, at) in [(21, 0), (22, 4096)] {
            let data = [wr_id as u8; 60];
            a.post(Face::Batch, &[Req::new(2, Op::Send).signaled().inline(&data)])?;
            a.ok(1)?;
            let wc = b.ok(1)?[0];
            ensure!((wc.wr_id, wc.byte_len) == (wr_id, 60), "{len} bytes: {wc:?}");
            ensure!(b.bytes(at..at + 60)? == data);
        }
    }
    Ok(())
}

crate::tests!(
    local_memory_of_answers_is_checked_last,
    remote_key_is_checked_before_the_memory_of_answers,
    read_with_an_invalid_last_entry_fails,
    refused_write_with_immediate_fails_its_receive,
    failed_invalidation_is_not_answered,
    failed_invalidation_without_a_timeout_waits,
    uc_message_longer_than_the_receive,
);
