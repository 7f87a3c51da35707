// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of docs/semantics.md. One format, and whatever does not fit it is an error.

use super::STATES;
use anyhow::{Context as _, Result, bail, ensure};
use uverbs::PostError;
use uverbs::attr::{QpState, QpType};

/// The chapter.
pub const TEXT: &str = include_str!("../../../docs/semantics.md");

/// Whom `bad_wr` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The wrong one.
    It,
    /// The first of the list.
    First,
    /// Nobody: NULL.
    Null,
    /// There is no `bad_wr`.
    Nobody,
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
    /// Transports.
    pub qp_types: Vec<QpType>,
    /// States in which it holds.
    pub states: Vec<QpState>,
    /// The answer.
    pub result: Result<(), PostError>,
    /// The one to blame.
    pub named: Named,
    /// What C sees of the answer, where a driver has its own number for it.
    dialects: Vec<(String, String)>,
}

impl Row {
    /// Name of the errno that C sees with this driver.
    #[must_use]
    pub fn errno(&self, driver: &str) -> &str {
        let own = self.dialects.iter().find(|(name, _)| name == driver).map(|(_, errno)| errno.as_str());
        own.unwrap_or_else(|| self.result.err().map_or("0", |e| e.errno().name().unwrap_or("?")))
    }

    /// Whether it says something about one of these faces on this transport.
    #[must_use]
    pub fn is_for(&self, qp_type: QpType, faces: &[&str]) -> bool {
        self.qp_types.contains(&qp_type) && self.faces.iter().any(|f| faces.contains(&f.as_str()))
    }
}

/// All rows.
#[derive(Clone, Debug)]
pub struct Table {
    /// In the order of the chapter.
    pub rows: Vec<Row>,
}

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
                        let row = row(i + 1, line).with_context(|| format!("docs/semantics.md:{}", i + 1))?;
                        rows.push(row);
                    }
                }
                _ => {}
            }
        }
        ensure!(!inside, "the table has no end");
        ensure!(!rows.is_empty(), "the table has no rows");
        let table = Self { rows };
        table.check_doubles()?;
        Ok(table)
    }

    /// One answer for each case, face, transport and state.
    fn check_doubles(&self) -> Result<()> {
        for (i, a) in self.rows.iter().enumerate() {
            for b in &self.rows[i + 1..] {
                let same = a.case == b.case
                    && a.faces.iter().any(|f| b.faces.contains(f))
                    && a.qp_types.iter().any(|t| b.qp_types.contains(t))
                    && a.states.iter().any(|s| b.states.contains(s));
                ensure!(!same, "docs/semantics.md: lines {} and {} say the same case", a.line, b.line);
            }
        }
        Ok(())
    }
}

fn row(line: usize, text: &str) -> Result<Row> {
    let cells: Vec<&str> = text.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [case, faces, qp, states, error, errno, bad_wr, _rxe, _libmlx5] = cells[..] else {
        bail!("{} cells", cells.len());
    };
    ensure!(!case.is_empty(), "no case");
    let faces: Vec<String> = faces.split_whitespace().map(|f| f.trim_matches('`').to_owned()).collect();
    ensure!(!faces.is_empty(), "no face");
    for face in &faces {
        ensure!(FACES.contains(&face.as_str()), "unknown face {face}");
    }
    let qp_types = qp.split_whitespace().map(qp_type).collect::<Result<Vec<_>>>()?;
    ensure!(!qp_types.is_empty(), "no QP type");
    let result = match error {
        "ok" => Ok(()),
        name => Err(post_error(name)?),
    };
    // Numbers of errno are C's; the table has names.
    let want = result.err().map_or("0", |e| e.errno().name().unwrap_or("?"));
    let mut words = errno.split(", ");
    let first = words.next().unwrap_or_default();
    ensure!(first == want, "{error} is {want}, not {first}");
    let dialects: Vec<(String, String)> = words
        .map(|word| {
            let (driver, errno) = word.split_once(' ').with_context(|| format!("dialect {word}"))?;
            ensure!(["rxe", "mlx5"].contains(&driver) && errno.starts_with('E'), "dialect {word}");
            Ok((driver.to_owned(), errno.to_owned()))
        })
        .collect::<Result<_>>()?;
    let named = match bad_wr {
        "it" => Named::It,
        "first" => Named::First,
        "NULL" => Named::Null,
        "-" => Named::Nobody,
        other => bail!("bad_wr {other}"),
    };
    let has_list = faces.iter().any(|f| LISTS.contains(&f.as_str()));
    ensure!(
        (named == Named::Nobody) == (result.is_ok() || !has_list),
        "bad_wr {bad_wr} does not fit the faces"
    );
    Ok(Row {
        line,
        case: case.to_owned(),
        faces,
        qp_types,
        states: state_range(states)?,
        result,
        named,
        dialects,
    })
}

fn qp_type(name: &str) -> Result<QpType> {
    Ok(match name {
        "RC" => QpType::Rc,
        "UC" => QpType::Uc,
        "UD" => QpType::Ud,
        other => bail!("QP type {other}"),
    })
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
