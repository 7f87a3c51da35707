// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of a run, and its verdict.

use anyhow::Result;
use comfy_table::Table;
use comfy_table::presets::ASCII_MARKDOWN;

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
    fn name(self) -> &'static str {
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
    /// The regressions: runs that failed with our library, and with rdma-core's library passed or were not measured.
    fn regressions(&self) -> impl Iterator<Item = &(Ends, Cell)> {
        let c = self.cells.iter().find(|(ends, _)| *ends == Ends::C);
        let fails_with_c = c.is_some_and(|(_, cell)| !cell.passed());
        self.cells.iter().filter(move |(ends, cell)| *ends != Ends::C && !cell.passed() && !fails_with_c)
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    lines: Vec<Line>,
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
            let cells = columns.iter().map(|ends| {
                match line.cells.iter().find(|(e, _)| e == ends).map(|(_, cell)| cell) {
                    None => "-".to_owned(),
                    Some(Cell::Pass) => "ok".to_owned(),
                    Some(Cell::Counts(counts)) => counts.clone(),
                    Some(Cell::SecondRun) => "ok, 2nd run".to_owned(),
                    Some(Cell::Fail(_)) => "FAILED".to_owned(),
                }
            });
            table.add_row([line.name.clone()].into_iter().chain(cells));
        }
        table.to_string()
    }

    /// The rows that pass with rdma-core's library, or are expected to, and fail with ours.
    pub fn regressions(&self) -> Vec<&str> {
        let wrong = self.lines.iter().filter(|line| line.regressions().next().is_some());
        wrong.map(|line| line.name.as_str()).collect()
    }

    /// Prints the table and the verdict. Returns whether there is no regression.
    pub fn print(&self) -> bool {
        println!("{}", self.table());
        let regressions = self.regressions();
        match regressions.is_empty() {
            true => println!("clients: {} rows, no regression", self.lines.len()),
            false => println!("clients: regressions: {}", regressions.join("; ")),
        }
        regressions.is_empty()
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
}
