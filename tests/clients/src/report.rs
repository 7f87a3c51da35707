// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of a run, and its verdict.

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;
use std::collections::BTreeMap;

/// The beginning of a line that is printed when a row has finished.
pub const FINISHED: &str = "clients: done: ";

/// The libraries of the two ends of a row; a program of one process has the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Both with rdma-core's.
    C,
    /// Both with ours.
    Ours,
    /// The server with rdma-core's, the client with ours.
    CServesOurs,
    /// The server with ours, the client with rdma-core's.
    OursServesC,
}

impl Ends {
    /// The heading of its column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::C => "C",
            Self::Ours => "ours",
            Self::CServesOurs => "C serves ours",
            Self::OursServesC => "ours serves C",
        }
    }
}

/// The result of a row with some libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// It passed.
    Pass,
    /// It passed, with these numbers.
    Counts(String),
    /// It passed in a second run; the reason why the first failed was printed.
    SecondRun,
    /// It failed; what was printed last.
    Fail(String),
}

impl Cell {
    fn passed(&self) -> bool {
        !matches!(self, Self::Fail(_))
    }

    /// The text in the table.
    fn text(&self) -> String {
        match self {
            Self::Pass => "ok".to_owned(),
            Self::Counts(counts) => counts.clone(),
            Self::SecondRun => "ok, 2nd run".to_owned(),
            Self::Fail(_) => "FAILED".to_owned(),
        }
    }
}

/// Runs a row, and runs it once more if it fails: on a busy machine a program that polls may reach a time limit, and perftest
/// and librdmacm have limits of their own. The table shows that there was a second run.
///
/// # Errors
/// The error of a run.
pub fn twice(name: &str, mut run: impl FnMut() -> Result<Cell>) -> Result<Cell> {
    let first = run()?;
    let Cell::Fail(reason) = first else { return Ok(first) };
    eprintln!("clients: {name}: failed, runs again\n{reason}");
    let again = run()?;
    Ok(if again.passed() { Cell::SecondRun } else { again })
}

/// The results of a row.
#[derive(Clone, Debug)]
pub struct Line {
    /// The row.
    pub name: String,
    /// The results, by the libraries of the ends.
    pub cells: Vec<(Ends, Cell)>,
}

impl Line {
    /// The results in one line.
    pub fn text(&self) -> String {
        let cells = self.cells.iter().map(|(ends, cell)| format!("{}: {}", ends.name(), cell.text()));
        cells.collect::<Vec<_>>().join(", ")
    }

    /// The result with some libraries.
    fn cell(&self, ends: Ends) -> Option<&Cell> {
        self.cells.iter().find(|(e, _)| *e == ends).map(|(_, cell)| cell)
    }

    /// The regressions: runs that failed with our library, and with rdma-core's library passed or were not measured.
    fn regressions(&self) -> impl Iterator<Item = &(Ends, Cell)> {
        let fails_with_c = self.cell(Ends::C).is_some_and(|cell| !cell.passed());
        self.cells.iter().filter(move |(ends, cell)| *ends != Ends::C && !cell.passed() && !fails_with_c)
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    lines: Vec<Line>,
    /// The rows that the device can't run, by the reason.
    left_out: BTreeMap<String, Vec<String>>,
    /// The rows that were not reached within the time limit.
    unreached: Vec<String>,
}

/// The numbers of a run. As text, it is a line that another process can [find](Self::find).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The rows that ran.
    pub rows: usize,
    /// Those that failed with rdma-core's library.
    pub failed_with_c: usize,
    /// Those that passed with rdma-core's library and failed with ours.
    pub regressions: usize,
    /// Those that the device can't run.
    pub left_out: usize,
    /// Those that were not reached within the time limit.
    pub unreached: usize,
    /// The results of rdma-core's suite with its library and with ours; empty if it did not run.
    pub suite: [String; 2],
}

impl Summary {
    /// The first word of the line.
    const MARK: &str = "clients-summary";
    /// What separates its parts.
    const TAB: &str = "\t";

    /// The last summary in the output of a run.
    pub fn find(output: &str) -> Option<Self> {
        let parse = |line: &str| {
            let mut words = line.split(Self::TAB).filter(|_| line.starts_with(Self::MARK)).skip(1);
            let mut number = || words.next()?.parse().ok();
            let [rows, failed_with_c, regressions, left_out, unreached] =
                [number()?, number()?, number()?, number()?, number()?];
            let suite = [words.next()?.to_owned(), words.next()?.to_owned()];
            Some(Self { rows, failed_with_c, regressions, left_out, unreached, suite })
        };
        output.lines().rev().find_map(parse)
    }
}

impl core::fmt::Display for Summary {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let numbers = [self.rows, self.failed_with_c, self.regressions, self.left_out, self.unreached];
        let words = [Self::MARK.to_owned()].into_iter().chain(numbers.map(|number| number.to_string()));
        f.write_str(&words.chain(self.suite.iter().cloned()).collect::<Vec<_>>().join(Self::TAB))
    }
}

impl Report {
    /// Adds the results of a row. Failures are printed at once.
    pub fn add(&mut self, line: Line) {
        for (ends, cell) in &line.cells {
            if let Cell::Fail(reason) = cell {
                println!("{}: {}: failed\n{reason}\n", line.name, ends.name());
            }
        }
        self.lines.push(line);
    }

    /// The table, with the columns that have results.
    pub fn table(&self) -> String {
        let all = [Ends::C, Ends::Ours, Ends::CServesOurs, Ends::OursServesC];
        let measured = |ends: &Ends| self.lines.iter().any(|line| line.cells.iter().any(|(e, _)| e == ends));
        let columns: Vec<Ends> = all.into_iter().filter(measured).collect();
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN);
        table.set_header(["client"].into_iter().chain(columns.iter().map(|ends| ends.name())));
        for line in &self.lines {
            let cells = columns.iter().map(|ends| line.cell(*ends).map_or("-".to_owned(), Cell::text));
            table.add_row([line.name.clone()].into_iter().chain(cells));
        }
        table.to_string()
    }

    /// The rows that pass with rdma-core's library, or are expected to, and fail with ours.
    pub fn regressions(&self) -> Vec<&str> {
        let wrong = self.lines.iter().filter(|line| line.regressions().next().is_some());
        wrong.map(|line| line.name.as_str()).collect()
    }

    /// Adds a row that the device can't run, for this reason.
    pub fn leave_out(&mut self, name: String, why: impl Into<String>) {
        self.left_out.entry(why.into()).or_default().push(name);
    }

    /// Adds a row that is not run because the time limit was reached.
    pub fn not_reached(&mut self, name: String) {
        self.unreached.push(name);
    }

    /// The numbers.
    pub fn summary(&self) -> Summary {
        let failed = |line: &&Line| line.cell(Ends::C).is_some_and(|cell| !cell.passed());
        let suite = self.lines.iter().find(|line| line.name.starts_with("pyverbs"));
        let counts = |ends| match suite.and_then(|line| line.cell(ends)) {
            None => String::new(),
            Some(Cell::Fail(reason)) => reason.lines().next().unwrap_or_default().to_owned(),
            Some(cell) => cell.text(),
        };
        Summary {
            rows: self.lines.len(),
            failed_with_c: self.lines.iter().filter(failed).count(),
            regressions: self.regressions().len(),
            left_out: self.left_out.values().map(Vec::len).sum(),
            unreached: self.unreached.len(),
            suite: [counts(Ends::C), counts(Ends::Ours)],
        }
    }

    /// Prints the table and the verdict. Returns whether there is no regression and every row was reached; a filter that
    /// selects nothing is a failure, too.
    pub fn print(&self) -> bool {
        println!("{}", self.table());
        for (why, names) in &self.left_out {
            println!("clients: left out here, because {why}: {}", names.join("; "));
        }
        if !self.unreached.is_empty() {
            println!("clients: not run, because the time limit was reached: {}", self.unreached.join("; "));
        }
        let regressions = self.regressions();
        match regressions.is_empty() {
            true => println!("clients: {} rows, no regression", self.lines.len()),
            false => println!("clients: regressions: {}", regressions.join("; ")),
        }
        let has_rows = !self.lines.is_empty() || !self.left_out.is_empty();
        regressions.is_empty() && self.unreached.is_empty() && has_rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, cells: &[(Ends, Cell)]) -> Line {
        Line { name: name.into(), cells: cells.to_vec() }
    }

    #[test]
    fn a_row_is_a_regression_if_only_ours_fails() {
        let fail = || Cell::Fail("x".into());
        let mut report = Report::default();
        report.add(line("both", &[(Ends::C, fail()), (Ends::Ours, fail())]));
        report.add(line("none", &[(Ends::C, Cell::Pass), (Ends::Ours, Cell::Counts("3 of 3".into()))]));
        assert!(report.print());
        report.add(line("ours", &[(Ends::C, Cell::Pass), (Ends::Ours, fail())]));
        report.add(line(
            "mixed",
            &[(Ends::C, Cell::Pass), (Ends::Ours, Cell::Pass), (Ends::OursServesC, fail())],
        ));
        report.add(line("not measured with C", &[(Ends::Ours, fail())]));
        assert_eq!(report.regressions(), ["ours", "mixed", "not measured with C"]);
        assert!(!report.print());
        assert!(report.table().contains("| both                | FAILED | FAILED | -             |"));
    }

    #[test]
    fn a_summary_is_found_in_the_output() {
        let mut report = Report::default();
        report.add(line("both", &[(Ends::C, Cell::Fail("x".into())), (Ends::Ours, Cell::Pass)]));
        report.add(line(
            "pyverbs",
            &[(Ends::C, Cell::Counts("2 ok".into())), (Ends::Ours, Cell::Fail("1 ok\nz".into()))],
        ));
        report.leave_out("a".into(), "why");
        report.not_reached("b".into());
        assert!(!report.print());
        let summary = report.summary();
        assert_eq!((summary.rows, summary.failed_with_c, summary.regressions), (2, 1, 1));
        assert_eq!(summary.suite, ["2 ok", "1 ok"]);
        assert_eq!(Summary::find(&format!("a\n{summary}\nb\n")), Some(summary));
        assert_eq!(Summary::find("clients-summary\t1\n"), None);
        // A run that is not complete fails, even without a regression, and so does one without rows.
        let mut report = Report::default();
        assert!(!report.print());
        report.not_reached("b".into());
        assert!(!report.print());
    }
}
