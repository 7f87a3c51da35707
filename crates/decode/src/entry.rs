// SPDX-License-Identifier: MIT OR Apache-2.0
//! A decoded entry.

use core::fmt;

/// A field of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its first byte.
    pub at: usize,
    /// Its bytes.
    pub len: usize,
    /// Its bits, the highest first, if it is not whole bytes.
    pub bits: Option<(u32, u32)>,
    /// Its name in the C struct or in the manual; `reserved` for bits without one that are not 0.
    pub name: &'static str,
    /// The value.
    pub value: String,
    /// What it means; empty if the value says it.
    pub meaning: String,
}

impl Field {
    /// The name of bits that no field has.
    pub const RESERVED: &'static str = "reserved";

    /// Where it is, in words.
    fn location(&self) -> String {
        match self.bits {
            Some((high, low)) if high == low => format!("{:#04x}[{high}]", self.at),
            Some((high, low)) => format!("{:#04x}[{high}:{low}]", self.at),
            None => format!("{:#04x}", self.at),
        }
    }
}

/// Memory that an entry names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Whether it is the peer's.
    pub remote: bool,
    /// Bytes.
    pub len: u64,
    /// The first address.
    pub addr: u64,
    /// Its key.
    pub key: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { remote, len, addr, key } = self;
        match remote {
            false => write!(f, "{len} bytes at {addr:#x} (lkey {key:#x})"),
            true => write!(f, "the peer's {addr:#x} (rkey {key:#x})"),
        }
    }
}

/// A decoded entry. `{}` is one line, `{:#}` a table of the fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The format.
    pub format: &'static str,
    /// What it does, in parts that are separated by commas.
    pub words: Vec<String>,
    /// The memory that it names.
    pub places: Vec<Place>,
    /// The fields in the order of their bytes. Those of other forms of the entry are not among them.
    pub fields: Vec<Field>,
    /// What is wrong, such as bytes that are missing.
    pub problems: Vec<String>,
    /// The bytes that it takes.
    pub len: usize,
}

impl Entry {
    /// What it does, in one line.
    #[must_use]
    pub fn summary(&self) -> String {
        self.words.join(", ")
    }

    /// The first field with this name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    fn line(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.summary())?;
        for place in &self.places {
            write!(f, "; {place}")?;
        }
        self.problems.iter().try_for_each(|problem| write!(f, "; problem: {problem}"))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return self.line(f);
        }
        write!(f, "{}: ", self.format)?;
        self.line(f)?;
        let width = |of: fn(&Field) -> usize| self.fields.iter().map(of).max().unwrap_or(0);
        let (at, name) = (width(|field| field.location().len()), width(|field| field.name.len()));
        // A long value, such as inline data, does not move the others.
        let value = width(|field| field.value.len()).min(18);
        for field in &self.fields {
            let Field { name: title, value: text, meaning, .. } = field;
            let line = format!("  {:<at$}  {title:<name$}  {text:<value$}  {meaning}", field.location());
            write!(f, "\n{}", line.trim_end())?;
        }
        Ok(())
    }
}
