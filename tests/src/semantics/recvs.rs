// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases of receives, of a QP and shared.
#![expect(unsafe_code)]
// UNSAFETY: posts receives by C's face and below the types. They name either the memory of a bench, which is alive and
// accessed by atomics only, or memory that is refused before the device could access it. Lists and arrays outlive the
// calls.

use super::table::{LISTS, Named};
use super::{On, RowCounts, Want, check_cases, check_list, check_row, hold_all, shows_empty};
use anyhow::{Context as _, Result, ensure};
use core::ptr::{self, null};
use uverbs::PostError;
use uverbs::attr::{QpState, QpType};
use uverbs::provider::raw;
use uverbs::provider::{RecvBatch as _, RecvQueue, WireSge};
use uverbs::wr::{RecvWr, Sge};
use uverbs_core::sync::{Locked, Locking};

/// A queue on which rows are checked.
pub trait RecvBench {
    /// The engine.
    type Queue: RecvQueue + 'static;
    /// Its locking.
    type Lock: Locking;
    /// The driver's name.
    const DRIVER: &'static str;

    /// The type of the QP that receives.
    fn qp_type(&self) -> QpType;
    /// Whether the queue is shared.
    fn is_srq(&self) -> bool;
    /// The queue.
    fn queue(&self) -> &Locked<Self::Queue, Self::Lock>;
    /// The parameters of receives.
    fn facts(&self) -> RecvFacts;
    /// Brings the QP into a state; `false` if it can't get there.
    fn enter(&mut self, state: QpState) -> Result<bool>;
    /// The ids of the WRs that were posted since the last call.
    fn posted(&mut self) -> Result<Vec<u64>>;
}

/// The parameters of a bench.
#[derive(Clone, Copy, Debug)]
pub struct RecvFacts {
    /// Local memory, at least 64 bytes.
    pub local: (u64, u32),
    /// Entries that a WR may have.
    pub max_sge: usize,
    /// WRs that fit.
    pub capacity: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Between,
    NoList,
    Full,
}

/// A case: its entries, and whether a batch can express it.
struct Case {
    name: &'static str,
    form: Form,
    sges: Vec<Sge>,
    /// Overrides of the list's fields.
    num_sge: Option<i32>,
    null: bool,
    batch: bool,
}

fn cases(facts: RecvFacts) -> Vec<Case> {
    let (addr, lkey) = facts.local;
    let sge = |length| Sge { addr, length, lkey };
    let case = |name, sges| Case { name, form: Form::Between, sges, num_sge: None, null: false, batch: true };
    vec![
        case("valid", vec![sge(64)]),
        Case { form: Form::NoList, batch: false, ..case("NULL list", vec![]) },
        Case { form: Form::Full, ..case("queue full", vec![sge(64)]) },
        case("too many sges", vec![sge(64); facts.max_sge + 1]),
        case("too many empty sges", vec![Sge::default(); facts.max_sge + 1]),
        Case { num_sge: Some(-1), batch: false, ..case("negative num_sge", vec![sge(64)]) },
        Case { null: true, num_sge: Some(1), batch: false, ..case("NULL sg_list", vec![]) },
        // A typed entry of this length can't be made.
        Case { batch: false, ..case("sge > 2^31", vec![sge((1 << 31) + 1)]) },
        case("sge of 2^31", vec![sge(1 << 31)]),
        case("sum of 2^31", vec![sge(1 << 30); 2]),
        case("no data", vec![]),
        case("empty sges", vec![Sge::default(); facts.max_sge]),
    ]
}

impl Case {
    fn node(&self, wr_id: u64) -> RecvWr {
        RecvWr {
            sg_list: if self.null { null() } else { self.sges.as_ptr() },
            num_sge: self.num_sge.unwrap_or(self.sges.len() as i32),
            ..RecvWr::new(wr_id)
        }
    }
}

/// Checks every row of receives for this QP type, in every state that the bench can reach.
pub fn hold<B: RecvBench>(bench: &mut B) -> Result<RowCounts> {
    let qp_type = bench.qp_type();
    let faces = if bench.is_srq() { ["post_srq_recv", "srq_batch"] } else { ["post_recv", "recv_batch"] };
    let cases = cases(bench.facts());
    check_cases(faces, cases.iter().map(|c| (c.name, [true, c.batch])))?;
    let mut next_id = 1;
    hold_all(
        bench,
        On { driver: B::DRIVER, device: B::DRIVER, qp_type },
        &faces,
        B::enter,
        |bench, row, face, want| {
            let case = cases.iter().find(|c| c.name == row.case).context("a row without a case")?;
            let posted = hold_one(bench.queue(), &cases, case, face, want, bench.facts(), &mut next_id)?;
            check_row(row, B::DRIVER, &bench.posted()?, &posted, B::Queue::errno)
        },
        |_| Ok(()),
    )
}

fn hold_one<Q: RecvQueue + 'static, L: Locking>(
    queue: &Locked<Q, L>,
    cases: &[Case],
    case: &Case,
    face: &str,
    want: Want,
    facts: RecvFacts,
    next_id: &mut u64,
) -> Result<Vec<u64>> {
    let (n, it) = match case.form {
        Form::Between => (3, 1),
        Form::NoList => (0, 0),
        Form::Full => (facts.capacity + 2, facts.capacity),
    };
    let ids: Vec<u64> = (0..n as u64).map(|i| *next_id + i).collect();
    *next_id += n as u64;
    let which = |i: usize| if i == it { case } else { &cases[0] };
    let posted = if LISTS.contains(&face) {
        let mut nodes: Vec<_> = (0..n).map(|i| which(i).node(ids[i])).collect();
        for i in 1..n {
            nodes[i - 1].next = &raw const nodes[i];
        }
        let first = nodes.first().map_or(null(), ptr::from_ref);
        // SAFETY: the nodes and their entries outlive the call. The entries name memory of a bench that is accessed by
        // atomics only, or the call refuses them.
        let got = unsafe { raw::post_recv(queue, first) };
        let posted = check_list(want, got, &nodes, it)?;
        if want.named == Named::It && case.form == Form::Between {
            // SAFETY: the node and its entries outlive the call, which refuses it.
            let got = unsafe { raw::post_recv(queue, &raw const nodes[it]) };
            check_list(want, got, &nodes, it).context("as the first of a list")?;
        }
        posted
    } else {
        let wire: Vec<Vec<Q::Sge>> = (0..n)
            .map(|i| which(i).sges.iter().map(|s| Q::Sge::new(s.addr, s.length, s.lkey)).collect())
            .collect::<Result<_, PostError>>()?;
        // SAFETY: left below; no reference is used in between but this.
        let q = unsafe { queue.enter() }.map_err(PostError::from)?;
        let mut batch = q.batch();
        for (id, sges) in ids.iter().zip(&wire) {
            // SAFETY: the entries name memory of a bench that is accessed by atomics only, or the batch refuses them.
            unsafe { batch.push(*id, sges) };
        }
        let result = batch.complete();
        // SAFETY: entered above.
        unsafe { queue.leave() };
        ensure!(result == want.result, "{result:?}, expected {:?}", want.result);
        if result.is_ok() { n } else { 0 }
    };
    Ok(ids[..posted].to_vec())
}

/// Whether the queue is empty, without posting: posts a batch of as many as fit, of which the last one is invalid.
pub fn is_empty<Q: RecvQueue + 'static, L: Locking>(queue: &Locked<Q, L>, facts: RecvFacts) -> Result<bool> {
    let many = vec![Q::Sge::new(0, 0, 0)?; facts.max_sge + 1];
    // SAFETY: left below; no reference is used in between but this.
    let q = unsafe { queue.enter() }.map_err(PostError::from)?;
    let mut batch = q.batch();
    for _ in 0..facts.capacity - 1 {
        // SAFETY: the receive has no entries, so it names no memory.
        unsafe { batch.push(0, &[]) };
    }
    // SAFETY: the batch refuses the receive, because it has too many entries or the queue is full.
    unsafe { batch.push(0, &many) };
    let result = batch.complete();
    // SAFETY: entered above.
    unsafe { queue.leave() };
    shows_empty(result)
}

/// Posts a valid receive with C's list. Benches use it to mark the end.
pub fn post_right<Q: RecvQueue, L: Locking>(queue: &Locked<Q, L>, wr_id: u64) -> Result<()> {
    let node = RecvWr::new(wr_id);
    // SAFETY: the receive has no entries, so it names no memory.
    unsafe { raw::post_recv(queue, &raw const node) }.map_err(|bad| bad.error).context("a valid receive")
}
