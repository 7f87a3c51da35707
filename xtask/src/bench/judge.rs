// SPDX-License-Identifier: MIT OR Apache-2.0
//! The limits of our measurements, and the verdicts.

use super::data::{Counts, File};
use super::exceptions::Exception;
use super::rows::{Face, Limits, Line};
use anyhow::Result;

/// The tolerance of rows that must not be slower than the first data path.
const KEPT: f64 = 1.1;
/// A count that is recorded as above its limit may change by this factor: changes in the code around a call change
/// which registers are spilled.
const SPILLS: f64 = 1.03;

/// The recorded counts that limits follow from.
pub(crate) struct Judge {
    before: Counts,
    over: Counts,
}

/// The relation of a count to its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Within it.
    Ok,
    /// Within it, but still recorded as above it.
    Mended,
    /// Above it, as recorded, and not worse.
    KnownOver,
    /// Above it.
    Over,
}

impl Judge {
    /// Reads the tables.
    pub(crate) fn read() -> Result<Self> {
        Ok(Self { before: File::Before.read()?, over: File::Over.read()? })
    }

    /// The limit of a line's measurement where libmlx5 needs `c` instructions.
    pub(crate) fn limit(&self, line: &Line, face: Face, c: f64) -> Option<f64> {
        let usual = line.row.limits.of_c(face)?;
        let exception = Exception::of(face, line.row.c, line.batch);
        let share = exception.map_or(usual, |exception| exception.share) * c;
        let before = line.key(face).and_then(|key| self.before.get(&key).copied());
        Some(match before.filter(|_| line.row.limits == Limits::Kept) {
            Some(before) => share.min(before * KEPT),
            None => share,
        })
    }

    /// The recorded count of a line that is above its limit.
    pub(crate) fn known(&self, line: &Line, face: Face) -> Option<f64> {
        self.over.get(&line.key(face)?).copied()
    }

    /// The relation of a count to the limit.
    pub(crate) fn verdict(&self, line: &Line, face: Face, count: f64, limit: f64) -> Verdict {
        match self.known(line, face) {
            None if count <= limit => Verdict::Ok,
            Some(_) if count <= limit => Verdict::Mended,
            Some(known) if count <= known * SPILLS => Verdict::KnownOver,
            _ => Verdict::Over,
        }
    }

    /// The list of rows above their limits after these counts: rows within their limit are removed, and improved counts
    /// are lowered. No row is added.
    pub(crate) fn tightened(&self, judged: &[(Line, Face, f64, f64)]) -> Counts {
        let mut over = self.over.clone();
        for (line, face, count, limit) in judged {
            let Some(key) = line.key(*face) else { continue };
            if count <= limit {
                over.remove(&key);
            } else if let Some(known) = over.get_mut(&key) {
                *known = known.min(*count);
            }
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(before: f64, over: Option<f64>) -> (Judge, Line) {
        let line = Line::selected("RC WRITE x32")[0];
        let key = line.key(Face::Typed).unwrap();
        let over = over.map(|count| (key.clone(), count)).into_iter().collect();
        (Judge { before: Counts::from([(key, before)]), over }, line)
    }

    #[test]
    fn the_tighter_of_both_limits_applies() {
        let (judge, line) = judge(40.0, None);
        assert_eq!(judge.limit(&line, Face::Typed, 200.0), Some(44.0));
        assert_eq!(judge.limit(&line, Face::Typed, 60.0), Some(30.0));
        assert_eq!(judge.limit(&line, Face::Raw, 200.0), Some(190.0));
    }

    #[test]
    fn a_known_excess_may_not_grow_and_ends_below_the_limit() {
        let (judge, line) = judge(40.0, Some(100.0));
        let verdict = |count| judge.verdict(&line, Face::Typed, count, 44.0);
        assert_eq!(
            [verdict(44.0), verdict(102.0), verdict(104.0)],
            [Verdict::Mended, Verdict::KnownOver, Verdict::Over]
        );
        assert!(judge.tightened(&[(line, Face::Typed, 44.0, 44.0)]).is_empty());
        let lower = judge.tightened(&[(line, Face::Typed, 90.0, 44.0)]);
        assert_eq!(lower.values().copied().collect::<Vec<_>>(), [90.0]);
    }

    #[test]
    fn rows_without_known_excess_must_keep_their_limit() {
        let (judge, line) = judge(40.0, None);
        assert_eq!(judge.verdict(&line, Face::Typed, 44.0, 44.0), Verdict::Ok);
        assert_eq!(judge.verdict(&line, Face::Typed, 44.1, 44.0), Verdict::Over);
        assert!(judge.tightened(&[(line, Face::Typed, 50.0, 44.0)]).is_empty());
    }
}
