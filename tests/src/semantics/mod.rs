// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the table of invalid posts in docs/src/reference/semantics.md: [`table`] reads its rows; [`sends`] and [`recvs`] have the
//! cases, and check a row on a queue in one state.
//!
//! A [`SendBench`] or [`RecvBench`] provides the queue: a ring in plain memory, or a QP of a real device. It brings the
//! queue into a state and returns the ids that were really posted.

pub mod recvs;
pub mod sends;
pub mod table;

pub use recvs::{RecvBench, RecvFacts};
pub use sends::{Facts, SendBench};
pub use table::{Row, Table};

use anyhow::{Context as _, Result, bail, ensure};
use table::Named;
use uverbs::attr::{QpState, QpType};
use uverbs::provider::BadWr;
use uverbs::{Errno, PostError};

/// All states, in the order of their numbers.
pub const STATES: [QpState; 7] =
    [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::SQE, QpState::ERR];

/// The expected result of a row in a state: the error, and the WR in `bad_wr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The result.
    pub result: Result<(), PostError>,
    /// The WR in `bad_wr`.
    pub named: Named,
}

impl Want {
    /// The result of the row, or of the rule for states that the row does not name.
    #[must_use]
    pub fn of(row: &Row, state: QpState) -> Self {
        if row.states.contains(&state) {
            Self { result: row.result, named: row.named }
        } else {
            Self { result: Err(PostError::BadState), named: Named::First }
        }
    }
}

/// The device and QP type of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct On {
    /// The driver's name.
    pub driver: &'static str,
    /// The driver's name, or a special device: then only rows that name it are checked.
    pub device: &'static str,
    /// The QP's type.
    pub qp_type: QpType,
}

/// Counts of checked rows and posts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Rows that apply.
    pub rows: usize,
    /// Posts that were compared: rows by faces by states.
    pub posts: usize,
}

impl core::ops::AddAssign for RowCounts {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.posts += other.posts;
    }
}

/// Compares the result of a list call with the expected one. Returns how many of the nodes are posted.
fn check_list<W>(want: Want, got: Result<(), BadWr<W>>, nodes: &[W], it: usize) -> Result<usize> {
    let index = |bad: &BadWr<W>| match bad.wr {
        wr if wr.is_null() => "NULL".to_owned(),
        wr => match nodes.iter().position(|n| core::ptr::from_ref(n) == wr) {
            Some(i) => format!("number {i}"),
            None => "none of the list".to_owned(),
        },
    };
    let named = match want.named {
        Named::It => format!("number {it}"),
        Named::First => "number 0".to_owned(),
        Named::Null => "NULL".to_owned(),
        Named::Absent => String::new(),
    };
    match (want.result, &got) {
        (Ok(()), Ok(())) => Ok(nodes.len()),
        (Err(error), Err(bad)) if bad.error == error => {
            ensure!(index(bad) == named, "{error:?}: bad_wr is {}, expected {named}", index(bad));
            Ok(if want.named == Named::It { it } else { 0 })
        }
        (want, Ok(())) => bail!("posted, expected {want:?}"),
        (want, Err(bad)) => bail!("{:?} with bad_wr {}, expected {want:?}", bad.error, index(bad)),
    }
}

/// Checks that each case of the tests has a row for exactly those of the `faces` that can express it.
fn check_cases<const N: usize>(
    faces: [&str; N],
    cases: impl IntoIterator<Item = (&'static str, [bool; N])>,
) -> Result<()> {
    let table = Table::read()?;
    for (case, expressible) in cases {
        for (face, test) in faces.into_iter().zip(expressible) {
            let row = table.rows.iter().any(|r| r.case == case && r.faces.iter().any(|f| f == face));
            ensure!(
                test == row,
                "docs/src/reference/semantics.md: {case} by {face}: has a row: {row}, has a test: {test}"
            );
        }
    }
    Ok(())
}

/// Compares the ids of the posted WRs with the expected ones, and the errno of the row's error with the table.
fn check_row(
    row: &Row,
    driver: &str,
    got: &[u64],
    posted: &[u64],
    errno: impl Fn(PostError) -> Errno,
) -> Result<()> {
    ensure!(got == posted, "posted {got:?}, expected {posted:?}");
    if let Err(error) = row.result {
        let (errno, want) = (errno(error).name(), row.errno(driver));
        ensure!(errno == Some(want), "the errno of {error:?} is {errno:?}, expected {want}");
    }
    Ok(())
}

/// Whether a queue is empty, without posting: from the error of a batch that has as many WRs as fit into an empty queue,
/// and has too many entries in the last one.
fn shows_empty(result: Result<(), PostError>) -> Result<bool> {
    match result {
        Err(PostError::TooManySge) => Ok(true),
        Err(PostError::QueueFull) => Ok(false),
        other => anyhow::bail!("{other:?}"),
    }
}

/// Checks all rows of one kind on one bench, in all states. `hold` posts one row on one face.
fn hold_all<B>(
    bench: &mut B,
    on: On,
    faces: &[&str],
    mut enter: impl FnMut(&mut B, QpState) -> Result<bool>,
    mut hold: impl FnMut(&mut B, &Row, &str, Want) -> Result<()>,
    mut leave: impl FnMut(&mut B) -> Result<()>,
) -> Result<RowCounts> {
    let table = Table::read()?;
    let mut held = RowCounts::default();
    let rows: Vec<_> = table.rows.iter().filter(|r| r.is_for(on, faces)).collect();
    held.rows = rows.len();
    for state in STATES {
        if !enter(bench, state).with_context(|| format!("to {state:?}"))? {
            continue;
        }
        for row in &rows {
            for face in row.faces.iter().filter(|f| faces.contains(&f.as_str())) {
                // Another row may have this state.
                let other =
                    |r: &&Row| r.case == row.case && r.faces.contains(face) && r.states.contains(&state);
                if !row.states.contains(&state) && rows.iter().copied().any(|r| other(&r)) {
                    continue;
                }
                hold(bench, row, face, Want::of(row, state)).with_context(|| {
                    format!("line {}: {} by {face} on {} in {state:?}", row.line, row.case, on.qp_type)
                })?;
                held.posts += 1;
            }
        }
        leave(bench).with_context(|| format!("after all rows in {state:?}"))?;
    }
    ensure!(held.posts != 0, "no row is for {faces:?} on {on:?}");
    Ok(held)
}
