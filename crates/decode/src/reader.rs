// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the fields of an entry, and keeps which bits were read: the others are reserved.

use crate::entry::{Entry, Field, Place};
use core::fmt::Write as _;

/// The order of the bytes of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The most significant first: hardware of mlx5.
    Big,
    /// The least significant first: other hardware, and memory of the kernels that are supported.
    Little,
}

/// How a value is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Show {
    Dec,
    Hex,
}

use Show::{Dec, Hex};

/// Reads an entry.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    order: Order,
    /// The bits that were read, a byte for each byte.
    known: Vec<u8>,
    entry: Entry,
    is_short: bool,
    /// Whether the last field is there.
    is_shown: bool,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(format: &'static str, order: Order, bytes: &'a [u8]) -> Self {
        let entry = Entry { format, len: bytes.len(), ..Entry::default() };
        Self { bytes, order, known: vec![0; bytes.len()], entry, is_short: false, is_shown: false }
    }

    /// The bytes that there are.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The entry has so many bytes: those behind belong to others.
    pub(crate) fn limit(&mut self, len: usize) {
        self.entry.len = len;
        if len > self.bytes.len() {
            self.is_short = true;
        }
        self.bytes = &self.bytes[..len.min(self.bytes.len())];
        self.known.truncate(self.bytes.len());
    }

    /// Whether a bit is set, without making a field of it.
    pub(crate) fn has(&self, at: usize, bit: u32) -> bool {
        self.bytes.get(at).is_some_and(|byte| byte >> bit & 1 != 0)
    }

    /// Bytes, without making a field of them. Missing ones are 0.
    fn peek(&mut self, at: usize, len: usize) -> Vec<u8> {
        let there = self.bytes.get(at..).unwrap_or_default();
        self.is_short |= there.len() < len;
        let mut out = there[..len.min(there.len())].to_vec();
        out.resize(len, 0);
        out
    }

    fn number(&mut self, at: usize, len: usize) -> u64 {
        let bytes = self.peek(at, len);
        let add = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        match self.order {
            Order::Big => bytes.iter().fold(0, add),
            Order::Little => bytes.iter().rev().fold(0, add),
        }
    }

    fn mark(&mut self, at: usize, len: usize, mask: u64) {
        for i in 0..len {
            let shift = match self.order {
                Order::Big => len - 1 - i,
                Order::Little => i,
            };
            if let Some(known) = self.known.get_mut(at + i) {
                *known |= (mask >> (8 * shift)) as u8;
            }
        }
    }

    fn push(&mut self, field: Field) {
        // A field of which nothing is there is not shown.
        self.is_shown = field.at < self.bytes.len();
        if self.is_shown {
            self.entry.fields.push(field);
        }
    }

    /// A field of whole bytes, at most 8.
    pub(crate) fn num(&mut self, at: usize, len: usize, name: &'static str, show: Show) -> u64 {
        let value = self.number(at, len);
        self.mark(at, len, u64::MAX);
        let value_text = text(value, len as u32 * 8, show);
        self.push(Field { at, len, bits: None, name, value: value_text, meaning: String::new() });
        value
    }

    /// Some bits of a number of at most 8 bytes.
    pub(crate) fn bits(
        &mut self,
        (at, len): (usize, usize),
        (high, low): (u32, u32),
        name: &'static str,
        show: Show,
    ) -> u64 {
        let mask = u64::MAX >> (63 - (high - low));
        let value = self.number(at, len) >> low & mask;
        self.mark(at, len, mask << low);
        let value_text = text(value, high - low + 1, show);
        self.push(Field {
            at,
            len,
            bits: Some((high, low)),
            name,
            value: value_text,
            meaning: String::new(),
        });
        value
    }

    /// Whether a bit of a byte is set. The meaning is that of the bit that is set.
    pub(crate) fn flag(&mut self, at: usize, bit: u32, name: &'static str, meaning: &str) -> bool {
        let is_set = self.bits((at, 1), (bit, bit), name, Dec) != 0;
        if is_set {
            self.mean(meaning);
        }
        is_set
    }

    /// Bytes that are not a number. At most 256 of them are printed.
    pub(crate) fn raw(&mut self, at: usize, len: usize, name: &'static str) -> Vec<u8> {
        // A length in the entry may be anything: only what is there is read.
        let there = self.bytes.get(at..).unwrap_or_default();
        self.is_short |= there.len() < len;
        let bytes = there[..len.min(there.len())].to_vec();
        self.mark_all(at, bytes.len());
        let mut value = hex(&bytes[..bytes.len().min(256)]);
        if bytes.len() > 256 {
            value.push_str(" ...");
        }
        self.push(Field { at, len, bits: None, name, value, meaning: String::new() });
        bytes
    }

    /// Bytes without a meaning, which are shown only if they are not 0.
    pub(crate) fn unused(&mut self, at: usize, len: usize, name: &'static str) {
        let there = self.bytes.get(at..).unwrap_or_default();
        let is_set = there.iter().take(len).any(|byte| *byte != 0);
        if is_set {
            self.raw(at, len, name);
            self.mean("not used");
        }
    }

    fn mark_all(&mut self, at: usize, len: usize) {
        let end = at.saturating_add(len).min(self.known.len());
        if let Some(known) = self.known.get_mut(at..end) {
            known.fill(0xff);
        }
    }

    /// The meaning of the last field.
    pub(crate) fn mean(&mut self, meaning: impl Into<String>) {
        if let Some(field) = self.entry.fields.last_mut().filter(|_| self.is_shown) {
            field.meaning = meaning.into();
        }
    }

    /// Another part of what the entry does.
    pub(crate) fn say(&mut self, words: impl Into<String>) {
        self.entry.words.push(words.into());
    }

    /// Memory that the entry names.
    pub(crate) fn place(&mut self, remote: bool, len: u64, addr: u64, key: u64) {
        self.entry.places.push(Place { remote, len, addr, key: key as u32 });
    }

    /// The bytes in all local places.
    pub(crate) fn local_bytes(&self) -> u64 {
        self.entry
            .places
            .iter()
            .filter(|place| !place.remote)
            .fold(0, |sum, place| sum.saturating_add(place.len))
    }

    /// Something is wrong.
    pub(crate) fn problem(&mut self, problem: impl Into<String>) {
        self.entry.problems.push(problem.into());
    }

    /// The entry, with the bits that no field has.
    pub(crate) fn finish(mut self) -> Entry {
        let mut at = 0;
        while at < self.known.len() {
            let left = |at: usize| self.bytes[at] & !self.known[at];
            let end = (at..self.known.len()).find(|i| left(*i) == 0).unwrap_or(self.known.len());
            if end > at {
                let bits: Vec<u8> = (at..end).map(left).collect();
                let meaning =
                    if bits.len() == 1 { "a bit that no field has" } else { "bytes that no field has" };
                self.entry.fields.push(Field {
                    at,
                    len: end - at,
                    bits: None,
                    name: Field::RESERVED,
                    value: hex(&bits),
                    meaning: meaning.into(),
                });
            }
            at = end + 1;
        }
        // The highest bits first, as manuals print them.
        self.entry.fields.sort_by_key(|field| (field.at, field.bits.map(|(high, _)| 64 - high)));
        if self.is_short {
            let (has, needs) = (self.bytes.len(), self.entry.len.max(self.bytes.len() + 1));
            self.entry.problems.push(format!("it has {has} bytes here and needs at least {needs}"));
        }
        self.entry
    }
}

/// A number with so many bits.
fn text(value: u64, bits: u32, show: Show) -> String {
    match show {
        Dec => value.to_string(),
        Hex => format!("{value:#0width$x}", width = bits.div_ceil(4) as usize + 2),
    }
}

/// Bytes as digits.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String does not fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}
