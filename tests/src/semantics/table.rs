// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of docs/src/reference/semantics.md. A row that does not have the format is an error.

use super::{On, STATES};
use anyhow::{Context as _, Result, bail, ensure};
use uverbs::PostError;
use uverbs::attr::{QpState, QpType};

/// The chapter.
pub const TEXT: &str = include_str!("../../../docs/src/reference/semantics.md");

/// The WR that `bad_wr` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The invalid WR.
    It,
    /// The first WR of the list.
    First,
    /// None: it is NULL.
    Null,
    /// There is no `bad_wr`.
    Absent,
}

/// A row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Line in the chapter.
    pub line: usize,
    /// Name of the case.
    pub case: String,
    /// Faces.
    pub faces: Vec<String>,
    /// QPs.
    pub qps: Vec<QpIs>,
    /// States in which it holds.
    pub states: Vec<QpState>,
    /// The result.
    pub result: Result<(), PostError>,
    /// The WR in `bad_wr`.
    pub named: Named,
    /// The errnos of drivers that differ from the common one.
    dialects: Vec<(String, String)>,
    /// The reason why it differs from one of the C providers.
    pub why: Option<String>,
    /// The corresponding rule of the reference vectors.
    pub rule: Option<String>,
}

/// A QP on which a row holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpIs {
    /// Its type.
    pub qp_type: QpType,
    /// The driver, or special device, to which the row is limited.
    pub device: Option<String>,
}

impl QpIs {
    fn is(&self, on: On) -> bool {
        let device = self.device.as_deref().unwrap_or(on.driver);
        self.qp_type == on.qp_type && device == on.device
    }

    /// Whether a QP can match both.
    fn meets(&self, other: &Self) -> bool {
        self.qp_type == other.qp_type
            && (self.device == other.device || self.device.is_none() && other.is_of_driver())
    }

    /// Whether it is an ordinary device.
    fn is_of_driver(&self) -> bool {
        self.device.as_deref().is_none_or(|device| DRIVERS.contains(&device))
    }
}

impl Row {
    /// Name of the errno that C gets with this driver.
    #[must_use]
    pub fn errno(&self, driver: &str) -> &str {
        let own = self.dialects.iter().find(|(name, _)| name == driver).map(|(_, errno)| errno.as_str());
        own.unwrap_or_else(|| self.result.err().map_or("0", |e| e.errno().name().unwrap_or("?")))
    }

    /// Whether the row applies to one of these faces on this QP.
    #[must_use]
    pub fn is_for(&self, on: On, faces: &[&str]) -> bool {
        self.qps.iter().any(|qp| qp.is(on)) && self.faces.iter().any(|f| faces.contains(&f.as_str()))
    }
}

/// All rows.
#[derive(Clone, Debug)]
pub struct Table {
    /// In the order of the chapter.
    pub rows: Vec<Row>,
    /// The names of the reasons.
    pub reasons: Vec<String>,
    /// The rules of the reference vectors, and how a post is refused by them.
    pub rules: Vec<(String, Option<PostError>)>,
}

/// Drivers, by their names.
const DRIVERS: [&str; 2] = ["rxe", "mlx5"];
/// Special devices, which return `Unsupported` for the feature that they lack.
const DEVICES: [&str; 1] = ["mlx5-without-atomics"];

/// Faces that have a `bad_wr`.
pub const LISTS: [&str; 3] = ["post_send", "post_recv", "post_srq_recv"];
/// All faces.
pub const FACES: [&str; 7] =
    ["post_send", "wr_*", "batch", "post_recv", "recv_batch", "post_srq_recv", "srq_batch"];

impl Table {
    /// Reads the chapter.
    pub fn read() -> Result<Self> {
        Self::parse(TEXT)
    }

    /// Reads any text of this format.
    pub fn parse(text: &str) -> Result<Self> {
        let (mut rows, mut inside) = (Vec::new(), false);
        for (i, line) in text.lines().enumerate() {
            match line {
                "<!-- rows -->" => inside = true,
                "<!-- end of rows -->" => inside = false,
                _ if inside && line.starts_with('|') => {
                    let head = line.starts_with("| case |") || line.starts_with("|---");
                    if !head {
                        let row = row(i + 1, line)
                            .with_context(|| format!("docs/src/reference/semantics.md:{}", i + 1))?;
                        rows.push(row);
                    }
                }
                _ => {}
            }
        }
        ensure!(!inside, "the table has no end");
        ensure!(!rows.is_empty(), "the table has no rows");
        let table = Self { rows, reasons: names(text, "why"), rules: rules(text)? };
        table.check_doubles()?;
        table.check_names()?;
        Ok(table)
    }

    /// Checks that every reason and rule that a row names has an entry, and that a row names every reason.
    fn check_names(&self) -> Result<()> {
        for row in &self.rows {
            let why = row.why.as_ref().is_none_or(|why| self.reasons.contains(why));
            ensure!(why, "docs/src/reference/semantics.md:{}: there is no reason {:?}", row.line, row.why);
            let rule = row.rule.as_ref().is_none_or(|rule| self.rules.iter().any(|(name, _)| name == rule));
            ensure!(rule, "docs/src/reference/semantics.md:{}: there is no rule {:?}", row.line, row.rule);
        }
        for reason in &self.reasons {
            let named = self.rows.iter().any(|row| row.why.as_ref() == Some(reason));
            ensure!(named, "docs/src/reference/semantics.md: no row has the reason {reason}");
        }
        Ok(())
    }

    /// Checks that there is one result for each case, face, transport and state.
    fn check_doubles(&self) -> Result<()> {
        for (i, a) in self.rows.iter().enumerate() {
            for b in &self.rows[i + 1..] {
                let same = a.case == b.case
                    && a.faces.iter().any(|f| b.faces.contains(f))
                    && a.qps.iter().any(|p| b.qps.iter().any(|q| p.meets(q) || q.meets(p)))
                    && a.states.iter().any(|s| b.states.contains(s));
                ensure!(
                    !same,
                    "docs/src/reference/semantics.md: lines {} and {} have the same case",
                    a.line,
                    b.line
                );
            }
        }
        Ok(())
    }
}

/// The lines of the table whose head begins with this cell, without the head.
fn lines<'a>(text: &'a str, head: &str) -> impl Iterator<Item = Vec<&'a str>> {
    let head = format!("| {head} |");
    let lines = text.lines().skip_while(move |line| !line.starts_with(&head)).skip(2);
    lines.take_while(|line| line.starts_with('|')).map(cells)
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// The first cells of a table, without quotes.
fn names(text: &str, head: &str) -> Vec<String> {
    lines(text, head).map(|cells| cells[0].trim_matches('`').to_owned()).collect()
}

fn rules(text: &str) -> Result<Vec<(String, Option<PostError>)>> {
    let rule = |cells: Vec<&str>| {
        let [name, _input, _libmlx5, _here, error] = cells[..] else {
            bail!("docs/src/reference/semantics.md: a rule has {} cells", cells.len());
        };
        let error = if error == "-" { None } else { Some(post_error(error)?) };
        Ok((name.trim_matches('`').to_owned(), error))
    };
    lines(text, "rule").map(rule).collect()
}

fn row(line: usize, text: &str) -> Result<Row> {
    let cells = cells(text);
    let [case, faces, qp, states, error, errno, bad_wr, rxe, libmlx5, why] = cells[..] else {
        bail!("{} cells", cells.len());
    };
    ensure!(!case.is_empty(), "no case");
    let faces: Vec<String> = faces.split_whitespace().map(|f| f.trim_matches('`').to_owned()).collect();
    ensure!(!faces.is_empty(), "no face");
    for face in &faces {
        ensure!(FACES.contains(&face.as_str()), "unknown face {face}");
    }
    let qps = qp.split_whitespace().map(qp_is).collect::<Result<Vec<_>>>()?;
    ensure!(!qps.is_empty(), "no QP type");
    let result = match error {
        "ok" => Ok(()),
        name => Err(post_error(name)?),
    };
    // The table has the names of errno values.
    let want = result.err().map_or("0", |e| e.errno().name().unwrap_or("?"));
    let mut words = errno.split(", ");
    let first = words.next().unwrap_or_default();
    ensure!(first == want, "the errno of {error} is {want}, not {first}");
    let dialects: Vec<(String, String)> = words
        .map(|word| {
            let (driver, errno) = word.split_once(' ').with_context(|| format!("dialect {word}"))?;
            ensure!(DRIVERS.contains(&driver) && errno.starts_with('E'), "dialect {word}");
            Ok((driver.to_owned(), errno.to_owned()))
        })
        .collect::<Result<_>>()?;
    let named = match bad_wr {
        "it" => Named::It,
        "first" => Named::First,
        "NULL" => Named::Null,
        "-" => Named::Absent,
        other => bail!("bad_wr {other}"),
    };
    let has_list = faces.iter().any(|f| LISTS.contains(&f.as_str()));
    ensure!(
        (named == Named::Absent) == (result.is_ok() || !has_list),
        "bad_wr {bad_wr} does not fit the faces"
    );
    let differs = !rxe.is_empty() || !libmlx5.is_empty();
    ensure!(differs != why.is_empty(), "a reason is given where a C provider differs, and only there");
    Ok(Row {
        line,
        case: case.to_owned(),
        faces,
        qps,
        states: state_range(states)?,
        result,
        named,
        dialects,
        why: Some(why.to_owned()).filter(|why| !why.is_empty()),
        rule: libmlx5.split('`').nth(1).map(str::to_owned),
    })
}

fn qp_is(name: &str) -> Result<QpIs> {
    let (name, device) = name.split_once('/').map_or((name, None), |(name, device)| (name, Some(device)));
    let qp_type = match name {
        "RC" => QpType::Rc,
        "UC" => QpType::Uc,
        "UD" => QpType::Ud,
        "XRC" => QpType::XrcSend,
        "RAW" => QpType::RawPacket,
        "DC" => QpType::Driver,
        other => bail!("QP type {other}"),
    };
    if let Some(device) = device {
        ensure!(DRIVERS.contains(&device) || DEVICES.contains(&device), "device {device}");
    }
    Ok(QpIs { qp_type, device: device.map(str::to_owned) })
}

fn state(name: &str) -> Result<QpState> {
    STATES.into_iter().find(|s| format!("{s:?}") == name).with_context(|| format!("state {name}"))
}

fn state_range(text: &str) -> Result<Vec<QpState>> {
    let Some((from, to)) = text.split_once("..") else { return Ok(vec![state(text)?]) };
    let (from, to) = (state(from)?, state(to)?);
    ensure!(from.0 < to.0, "an empty range");
    Ok(STATES.into_iter().filter(|s| (from.0..=to.0).contains(&s.0)).collect())
}

fn post_error(name: &str) -> Result<PostError> {
    use PostError as E;
    let all = [
        E::QueueFull,
        E::TooManySge,
        E::InlineTooLong,
        E::BadState,
        E::IllegalOpcode,
        E::IllegalFlag,
        E::InvalidLength,
        E::Misaligned,
        E::InvalidArgument,
        E::Unsupported,
        E::MissingSetter,
        E::DoubledSetter,
        E::OrphanSetter,
        E::SessionOpen,
        E::NoSession,
        E::NullList,
        E::NoQueue,
    ];
    all.into_iter().find(|e| format!("{e:?}") == name).with_context(|| format!("error {name}"))
}
