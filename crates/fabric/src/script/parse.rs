// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of a script.

use super::names::{Event, Key, Opcode, Point, Queue, Refusal, Status};
use super::rule::{Action, Change, Rule, Span, Value};
use super::{MAX_RULES, MAX_TEXT, Script, ScriptError};
use core::net::Ipv6Addr;
use uverbs_core::Errno;

/// The numbers of errno: those of Linux are below this (`MAX_ERRNO` of `linux/err.h`).
const MAX_ERRNO: u64 = 4095;
/// Copies of a packet, and packets that one waits for, at most.
const MAX_COUNT: u64 = 1000;
/// The codes of RNR timers have 5 bits (InfiniBand specification, table 45).
const MAX_RNR: u64 = 31;

/// A word of a line, with its column.
#[derive(Clone, Copy)]
struct Word<'t> {
    column: usize,
    text: &'t str,
}

impl Word<'_> {
    /// An error at this word.
    fn error(self, message: impl core::fmt::Display) -> (usize, String) {
        let shown: String = self.text.chars().take(40).collect();
        (self.column, format!("{shown}: {message}"))
    }
}

/// A column, and what is wrong there.
type Result<T> = core::result::Result<T, (usize, String)>;

/// The words of a part of a line, whose first byte is at this offset.
fn words(text: &str, offset: usize) -> impl Iterator<Item = Word<'_>> {
    text.split_ascii_whitespace().map(move |word| {
        // `word` is a part of `text`.
        let column = offset + (word.as_ptr().addr() - text.as_ptr().addr()) + 1;
        Word { column, text: word }
    })
}

/// The rules of a text. `refuses` says why a rule would have no effect.
pub(super) fn script(
    text: &str,
    refuses: impl Fn(&Rule) -> Option<&'static str>,
) -> core::result::Result<Script, ScriptError> {
    let mut rules = Vec::new();
    if text.len() > MAX_TEXT {
        return Err(ScriptError { line: 0, column: 0, message: format!("more than {MAX_TEXT} bytes") });
    }
    for (i, line) in text.lines().enumerate() {
        let error = |(column, message)| ScriptError { line: i + 1, column, message };
        let line = line.split('#').next().unwrap_or_default();
        if line.trim_ascii().is_empty() {
            continue;
        }
        if rules.len() == MAX_RULES {
            return Err(error((1, format!("more than {MAX_RULES} rules"))));
        }
        rules.push(rule(line, &refuses).map_err(error)?);
    }
    Ok(Script(rules))
}

fn rule(line: &str, refuses: impl Fn(&Rule) -> Option<&'static str>) -> Result<Rule> {
    let Some(colon) = line.find(':') else {
        return Err((line.trim_ascii_end().len() + 1, "\":\" and an action are missing".into()));
    };
    let mut left = words(&line[..colon], 0);
    let first = left.next().ok_or((1, "a rule begins with what it is about".to_owned()))?;
    let point = Point::of(first.text).ok_or_else(|| first.error(one_of(Point::ALL)))?;
    let mut selectors: Vec<(Key, Value)> = Vec::new();
    for word in left {
        let (key, value) = selector(word)?;
        if !key.is_of(point) {
            return Err(word.error(format!("no selector of a {point}")));
        }
        if selectors.iter().any(|(k, _)| *k == key) {
            return Err(word.error("this selector is there already"));
        }
        selectors.push((key, value));
    }
    let mut right = words(&line[colon + 1..], colon + 1);
    let named = right.next().ok_or((colon + 2, "an action is missing".to_owned()))?;
    let action = action(named, &mut right, line.len())?;
    if !action.is_of(point) {
        return Err(named.error(format!("no action of a {point}")));
    }
    if let Some(word) = right.next() {
        return Err(word.error("the action has ended"));
    }
    let this = Rule { point, selectors, action };
    this.check().map_err(|message| (first.column, message))?;
    match refuses(&this) {
        Some(reason) => Err(named.error(reason)),
        None => Ok(this),
    }
}

impl Rule {
    /// What several parts of a rule must have in common.
    pub(super) fn check(&self) -> core::result::Result<(), String> {
        let Action::Change(change, on) = &self.action else { return Ok(()) };
        let has_device = on.is_some() || self.get(Key::Device).is_some();
        match change {
            Change::Exit if on.is_some() => Err("exit is of the process, not of a device".into()),
            Change::Exit => Ok(()),
            _ if self.point == Point::Clock && !has_device => Err("a device is missing".into()),
            Change::Event(event) if event.is_of_qp() && (self.point == Point::Clock || on.is_some()) => {
                Err(format!("{event} needs the QP of a packet or completion"))
            }
            _ => Ok(()),
        }
    }
}

/// "one of" these names.
fn one_of<T: core::fmt::Display>(all: &[T]) -> String {
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    format!("not one of {}", names.join(", "))
}

fn selector(word: Word<'_>) -> Result<(Key, Value)> {
    let Some((name, text)) = word.text.split_once('=') else {
        return Err(word.error("a selector is NAME=VALUE"));
    };
    let key = Key::of(name).ok_or_else(|| word.error(one_of(Key::ALL)))?;
    let value = Word { column: word.column + name.len() + 1, text };
    let value = match key {
        Key::Device | Key::To | Key::Verb => {
            if text.is_empty() {
                return Err(word.error("a name is missing"));
            }
            Value::Name(text.into())
        }
        Key::Opcode => Value::Opcode(Opcode::of(text).ok_or_else(|| value.error(one_of(Opcode::ALL)))?),
        Key::Queue => Value::Queue(Queue::of(text).ok_or_else(|| value.error(one_of(Queue::ALL)))?),
        Key::Time => Value::Span(span(value, time)?),
        Key::Qp | Key::Dest | Key::Psn => Value::Span(span(value, |word| number(word, 0xff_ffff))?),
        Key::Process | Key::Wr | Key::Packet | Key::Nth => {
            let span = span(value, |word| number(word, u64::from(u32::MAX)))?;
            if span.first == 0 {
                return Err(value.error("the first one is 1"));
            }
            Value::Span(span)
        }
    };
    Ok((key, value))
}

/// `A`, `A-B` or `A-`.
fn span(word: Word<'_>, of: impl Fn(Word<'_>) -> Result<u64>) -> Result<Span> {
    let Some((first, last)) = word.text.split_once('-') else {
        let number = of(word)?;
        return Ok(Span { first: number, last: number });
    };
    let at = word.column + first.len() + 1;
    let first = of(Word { text: first, ..word })?;
    let last = if last.is_empty() { u64::MAX } else { of(Word { column: at, text: last })? };
    if last < first {
        Err(word.error("the last one is before the first one"))
    } else {
        Ok(Span { first, last })
    }
}

fn number(word: Word<'_>, max: u64) -> Result<u64> {
    let parsed = match word.text.strip_prefix("0x") {
        Some(hex) if !hex.starts_with('+') => u64::from_str_radix(hex, 16).ok(),
        None if !word.text.starts_with('+') => word.text.parse().ok(),
        _ => None,
    };
    match parsed {
        Some(number) if number <= max => Ok(number),
        Some(_) => Err(word.error(format!("more than {max}"))),
        None => Err(word.error("not a number")),
    }
}

/// A number with a unit.
fn with_unit(word: Word<'_>, units: &[(&str, u64)], max: u64) -> Result<u64> {
    let digits = word.text.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = word.text.split_at(digits);
    let unit = units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor);
    let Some(unit) = unit else {
        let names: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
        return Err(word.error(format!("not a number with one of the units {}", names.join(", "))));
    };
    let count = number(Word { text: count, ..word }, u64::MAX)?;
    count.checked_mul(unit).filter(|n| *n <= max).ok_or_else(|| word.error("too much"))
}

/// A time, at most an hour.
fn time(word: Word<'_>) -> Result<u64> {
    let units = [("ns", 1), ("us", 1000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    with_unit(word, &units, 3_600_000_000_000)
}

/// Bits in a second.
fn rate(word: Word<'_>) -> Result<u64> {
    let units = [("bit", 1), ("kbit", 1000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];
    match with_unit(word, &units, 1_000_000_000_000_000)? {
        0 => Err(word.error("nothing would arrive")),
        bits => Ok(bits),
    }
}

fn action<'t>(word: Word<'t>, words: &mut impl Iterator<Item = Word<'t>>, end: usize) -> Result<Action> {
    let mut next = || words.next().ok_or_else(|| (end + 1, format!("{}: a word is missing", word.text)));
    let mut on_device = false;
    let action = match word.text {
        "drop" => Action::Drop,
        "corrupt" => Action::Corrupt,
        "full" => Action::Full,
        "delay" => Action::Delay(time(next()?)?),
        "slow" => Action::Slow(time(next()?)?),
        "bandwidth" => Action::Bandwidth(rate(next()?)?),
        "duplicate" => Action::Duplicate(count(next()?)?),
        "reorder" => Action::Reorder(count(next()?)?),
        "nak" => {
            let word = next()?;
            Action::Nak(Refusal::of(word.text).ok_or_else(|| word.error(one_of(Refusal::ALL)))?)
        }
        "rnr" => Action::Rnr(number(next()?, MAX_RNR)? as u8),
        "status" => {
            let word = next()?;
            Action::Status(Status::of(word.text).ok_or_else(|| word.error(one_of(Status::ALL)))?)
        }
        "errno" => Action::Errno(errno(next()?)?),
        _ => {
            on_device = true;
            Action::Change(change(word, &mut next)?, None)
        }
    };
    let Action::Change(change, _) = action else { return Ok(action) };
    let on = match words.next() {
        Some(word) if on_device && word.text == "on" => {
            let name = words.next().ok_or_else(|| (end + 1, "on: a device is missing".to_owned()))?;
            Some(name.text.to_owned())
        }
        Some(word) => return Err(word.error("the action has ended")),
        None => None,
    };
    Ok(Action::Change(change, on))
}

fn count(word: Word<'_>) -> Result<u32> {
    match number(word, MAX_COUNT)? {
        0 => Err(word.error("at least 1")),
        count => Ok(count as u32),
    }
}

fn errno(word: Word<'_>) -> Result<Errno> {
    if word.text.starts_with(|c: char| c.is_ascii_digit()) {
        return match number(word, MAX_ERRNO)? {
            0 => Err(word.error("no error")),
            errno => Ok(Errno::from_raw(errno as i32)),
        };
    }
    let named = (1..=MAX_ERRNO as i32).map(Errno::from_raw).find(|errno| errno.name() == Some(word.text));
    named.ok_or_else(|| word.error("not the name of an errno that verbs use; others are numbers"))
}

fn change<'t>(word: Word<'t>, next: &mut impl FnMut() -> Result<Word<'t>>) -> Result<Change> {
    Ok(match word.text {
        "remove" => Change::Remove,
        "kill" => Change::Kill,
        "exit" => Change::Exit,
        "lid" => Change::Lid(number(next()?, u64::from(u16::MAX))? as u16),
        "port" => match next()? {
            Word { text: "up", .. } => Change::Port { up: true },
            Word { text: "down", .. } => Change::Port { up: false },
            word => return Err(word.error("not up or down")),
        },
        "gid" => match next()? {
            Word { text: "add", .. } => {
                let word = next()?;
                let gid: Option<Ipv6Addr> = word.text.parse().ok();
                Change::AddGid(gid.ok_or_else(|| word.error("not an IPv6 address"))?)
            }
            Word { text: "remove", .. } => Change::RemoveGid(number(next()?, u64::from(u16::MAX))? as u16),
            word => return Err(word.error("not add or remove")),
        },
        "event" => {
            let word = next()?;
            Change::Event(Event::of(word.text).ok_or_else(|| word.error(one_of(Event::ALL)))?)
        }
        _ => return Err(word.error("not an action")),
    })
}
