// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases of sends, on every face that can express them.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests by C's faces and below the types of the safe ones. They name either the memory of a
// bench, which is alive and accessed by atomics only, or memory that is refused before the device could access it.
// Lists, arrays and handles belong to the `Stage`, which outlives every call.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "the calls of one builder, which have the same contract"
)]

mod cases;
mod stage;

use super::table::{Named, Row};
use super::{On, RowCounts, Want, check_cases, check_list, check_row, hold_all, shows_empty};
use anyhow::{Context as _, Result, ensure};
use cases::{Case, Form, cases};
use core::ptr::{self, null};
use stage::Stage;
use uverbs::PostError;
use uverbs::attr::{QpState, QpType, SendOpsFlags};
use uverbs::provider::raw::{self, QpEx};
use uverbs::provider::{Data, SendBatch as _, SendQueue as _, WrBuilder};
use uverbs::wc::WcStatus;
use uverbs::wr::IbvAh;
use uverbs_core::sync::{Locked, Locking};

/// A queue on which rows are checked.
pub trait SendBench {
    /// The engine.
    type Queue: WrBuilder + 'static;
    /// Its locking.
    type Lock: Locking;
    /// The driver's name.
    const DRIVER: &'static str;

    /// The device, if it is a special one: then only rows that name it are checked.
    fn device(&self) -> &'static str {
        Self::DRIVER
    }
    /// The QP's type.
    fn qp_type(&self) -> QpType;
    /// The queue.
    fn queue(&self) -> &Locked<Self::Queue, Self::Lock>;
    /// The parameters of work requests.
    fn facts(&self) -> Facts;
    /// Brings the QP into a state; `false` if it can't get there.
    fn enter(&mut self, state: QpState) -> Result<bool>;
    /// The ids of the WRs that were posted since the last call. If the device executes them, the case completes with the
    /// status `answer`.
    fn posted(&mut self, answer: WcStatus) -> Result<Vec<u64>>;
    /// Checks that nothing else was posted in this state.
    fn leave(&mut self) -> Result<()>;
}

/// The parameters of a bench.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// 8 KiB of local memory.
    pub local: (u64, u32),
    /// An aligned word at the peer.
    pub remote: (u64, u32),
    /// An address of the driver.
    pub ah: *const IbvAh,
    /// Number and queue key of a datagram's receiver.
    pub receiver: (u32, u32),
    /// Entries that a WR may have.
    pub max_sge: usize,
    /// Inline bytes that a WR may have.
    pub max_inline: usize,
    /// WRs that fit.
    pub capacity: usize,
}

const FACES: [&str; 3] = ["post_send", "wr_*", "batch"];

impl Facts {
    /// The parameters of a bench without a device. Nothing accesses the memory, so the addresses and numbers only need
    /// to differ.
    #[must_use]
    pub fn without_device(ah: *const IbvAh, max_sge: u32, capacity: u32) -> Self {
        Self {
            local: (0x1000, 1),
            remote: (0x2000, 2),
            ah,
            receiver: (5, 6),
            max_sge: max_sge as usize,
            max_inline: 64,
            capacity: capacity as usize,
        }
    }
}

/// The send operation that the QPs of all benches are created without, for the rows of an operation that a QP lacks.
#[must_use]
pub fn operation_left_out(qp_type: QpType) -> SendOpsFlags {
    match qp_type {
        QpType::Ud => SendOpsFlags::SEND_WITH_IMM,
        _ => SendOpsFlags::RDMA_WRITE_WITH_IMM,
    }
}

/// Checks every row of sends for this QP type, in every state that the bench can reach.
pub fn hold<B: SendBench>(bench: &mut B) -> Result<RowCounts> {
    let qp_type = bench.qp_type();
    let cases = cases::<B::Queue>();
    let faces_of = |c: &Case<B::Queue>| [c.list.is_some(), c.wr.is_some(), c.batch.is_some()];
    check_cases(FACES, cases.iter().map(|c| (c.name, faces_of(c))))?;
    let mut next_id = 1;
    let on = On { driver: B::DRIVER, device: bench.device(), qp_type };
    hold_all(
        bench,
        on,
        &FACES,
        B::enter,
        |bench, row, face, want| {
            let case = cases.iter().find(|c| c.name == row.case).context("a row without a case")?;
            let stage = Stage::<B::Queue>::new(bench.facts(), qp_type)?;
            let posted = hold_one(bench.queue(), case, face, want, &stage, &mut next_id)?;
            check_row(row, B::DRIVER, &bench.posted(answer(row))?, &posted, B::Queue::errno)
        },
        B::leave,
    )
}

/// The status of the completion of a case that is posted, on a QP that works.
fn answer(row: &Row) -> WcStatus {
    match row.case.as_str() {
        "misaligned atomic" if row.result.is_ok() => WcStatus::REM_INV_REQ_ERR,
        _ => WcStatus::SUCCESS,
    }
}

/// Posts a case on a face, and compares the result. Returns the ids that must be posted.
fn hold_one<Q: WrBuilder + 'static, L: Locking>(
    queue: &Locked<Q, L>,
    case: &Case<Q>,
    face: &str,
    want: Want,
    stage: &Stage<'_, Q>,
    next_id: &mut u64,
) -> Result<Vec<u64>> {
    let right = cases::<Q>().into_iter().find(|c| c.name == "valid").context("the valid WR")?;
    // The number of WRs, and the index of the case.
    let (n, it) = match case.form {
        Form::Between => (3, 1),
        Form::First => (2, 0),
        Form::NoList => (0, 0),
        Form::Full => (stage.facts.capacity + 2, stage.facts.capacity),
        Form::InSession | Form::NotStarted => (1, 0),
    };
    let ids: Vec<u64> = (0..n as u64).map(|i| *next_id + i).collect();
    *next_id += n as u64;
    let which = |i: usize| {
        stage.id.set(ids[i]);
        if i == it { case } else { &right }
    };
    let mut ex = QpEx::new(queue);
    let in_session = case.form == Form::InSession;
    if in_session {
        // SAFETY: one thread uses the queue, and the session is aborted below.
        unsafe { ex.wr_start() };
        stage.build_main(&mut ex, 0, &stage.right);
    }
    let all_or_nothing = |result: Result<(), PostError>| {
        ensure!(result == want.result, "{result:?}, expected {:?}", want.result);
        Ok(if result.is_ok() { ids.len() } else { 0 })
    };
    let posted = match face {
        "post_send" => {
            let mut nodes = Vec::with_capacity(n);
            for i in 0..n {
                nodes.push(which(i).list.context("a list can't express this")?(stage));
            }
            for i in 1..n {
                nodes[i - 1].next = &raw const nodes[i];
            }
            let first = nodes.first().map_or(null(), ptr::from_ref);
            // SAFETY: the nodes and what they point to belong to the `Stage`, which outlives the call. Entries name memory
            // of a bench that is accessed by atomics only, or the call refuses them.
            let got = unsafe { raw::post_send(queue, first) };
            let posted = check_list(want, got, &nodes, it)?;
            // At the front of a list, nothing is posted.
            if want.named == Named::It && it != 0 && case.form != Form::Full {
                // SAFETY: the node and what it points to belong to the `Stage`, which outlives the call; the call refuses
                // it.
                let got = unsafe { raw::post_send(queue, &raw const nodes[it]) };
                check_list(want, got, &nodes, it).context("as the first of a list")?;
            }
            posted
        }
        "wr_*" => {
            let start = case.form != Form::NotStarted;
            let mut run = |from: usize, to: usize| -> Result<Result<(), PostError>> {
                if start {
                    // SAFETY: one thread uses the queue, and `wr_complete` below ends the session.
                    unsafe { ex.wr_start() };
                }
                for i in from..to {
                    which(i).wr.context("a builder can't express this")?(&mut ex, stage);
                }
                // SAFETY: this thread opened the session, or the queue refuses the call.
                Ok(unsafe { ex.wr_complete() })
            };
            let posted = all_or_nothing(run(0, n)?)?;
            if want.result.is_err() && case.form != Form::Full {
                all_or_nothing(run(it, it + 1)?).context("as the last of a session")?;
            }
            posted
        }
        "batch" => {
            // SAFETY: left below; no reference is used in between but this.
            let result = match unsafe { queue.enter() } {
                Err(reentered) => Err(reentered.into()),
                Ok(q) => {
                    let mut batch = q.batch();
                    for i in 0..n {
                        which(i).batch.context("a batch can't express this")?(&mut batch, stage);
                    }
                    let result = batch.complete();
                    // SAFETY: entered above.
                    unsafe { queue.leave() };
                    result
                }
            };
            all_or_nothing(result)?
        }
        other => anyhow::bail!("not a face of sends: {other}"),
    };
    if in_session {
        // SAFETY: this thread opened the session.
        unsafe { ex.wr_abort() };
    }
    Ok(ids[..posted].to_vec())
}

/// Whether the queue is empty, without posting: posts a batch of as many as fit, of which the last one is invalid.
pub fn is_empty<Q: WrBuilder + 'static, L: Locking>(
    queue: &Locked<Q, L>,
    facts: Facts,
    qp_type: QpType,
) -> Result<bool> {
    let stage = Stage::<Q>::new(facts, qp_type)?;
    // SAFETY: left below; no reference is used in between but this.
    let q = unsafe { queue.enter() }.map_err(PostError::from)?;
    let mut batch = q.batch();
    for _ in 0..facts.capacity - 1 {
        stage.push_main(&mut batch, 0, Data::NONE);
    }
    stage.push_sges(&mut batch, 0, &stage.many);
    let result = batch.complete();
    // SAFETY: entered above.
    unsafe { queue.leave() };
    shows_empty(result)
}

/// Posts a valid work request with C's list. Benches use it to mark the end.
pub fn post_right<Q: WrBuilder + 'static, L: Locking>(
    queue: &Locked<Q, L>,
    facts: Facts,
    qp_type: QpType,
    wr_id: u64,
) -> Result<()> {
    let stage = Stage::<Q>::new(facts, qp_type)?;
    stage.id.set(wr_id);
    let node = stage.main(&stage.right, 0);
    // SAFETY: the node is a local, and what it points to belongs to the lab; its entries name memory of a bench that is
    // accessed by atomics only.
    unsafe { raw::post_send(queue, &raw const node) }.map_err(|bad| bad.error).context("a valid WR")
}
