// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes from hexadecimal digits, as programs and kernels print them.
//!
//! Read are digits with any spaces, commas or `0x` between them, in the order of the bytes, and the lines of xxd, of `hexdump -C` and of
//! the kernel: an offset in front and the characters behind are left out, as is the time in brackets of the kernel's log, and what it
//! says of a line in front of a colon (`dump_cqe` of mlx5).

use core::fmt;

/// A text that is not a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHex {
    /// The line, from 1.
    pub line: usize,
    /// What is not a number of whole bytes.
    pub found: String,
}

impl fmt::Display for NotHex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {:?} are not hexadecimal digits of whole bytes", self.line, self.found)
    }
}

impl core::error::Error for NotHex {}

/// The bytes of a dump.
///
/// # Errors
/// Something is not a number of whole bytes.
pub fn parse(text: &str) -> Result<Vec<u8>, NotHex> {
    let mut bytes = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let is_token = |c: char| !c.is_whitespace() && c != ',';
        for token in strip(line).split(|c| !is_token(c)).filter(|token| !token.is_empty()) {
            let digits = token.strip_prefix("0x").unwrap_or(token);
            let wrong = || NotHex { line: number + 1, found: token.chars().take(40).collect() };
            if digits.is_empty() || digits.len() % 2 != 0 || !digits.bytes().all(|c| c.is_ascii_hexdigit()) {
                return Err(wrong());
            }
            for i in (0..digits.len()).step_by(2) {
                bytes.push(u8::from_str_radix(&digits[i..i + 2], 16).map_err(|_| wrong())?);
            }
        }
    }
    Ok(bytes)
}

/// The part of a line that has the bytes.
fn strip(line: &str) -> &str {
    let line = line.split('#').next().unwrap_or_default();
    // The characters of `hexdump -C`.
    let line = line.split('|').next().unwrap_or_default().trim();
    // The time of the kernel's log.
    let line = match line.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or(line, |(_, rest)| rest.trim()),
        None => line,
    };
    let is_hex = |token: &str| !token.is_empty() && token.bytes().all(|c| c.is_ascii_hexdigit());
    if let Some((before, after)) = line.rsplit_once(": ") {
        // Two spaces are in front of the characters of xxd, which may have colons: the offset's is the first.
        let (offset, after) = match line.split_once(": ") {
            Some((offset, after)) if is_hex(offset) => (offset, after),
            _ => (before, after),
        };
        let is_prefix = is_hex(offset) || offset.rsplit([' ', ':']).next().is_some_and(is_hex);
        return match is_prefix {
            true if is_hex(offset) => after.trim_start().split("  ").next().unwrap_or_default(),
            // A name and an offset.
            true => after,
            // A line of the kernel's log without bytes.
            false => "",
        };
    }
    if line.ends_with(':') {
        return "";
    }
    // The offset of hexdump: more digits than the bytes behind it.
    match line.split_once(' ') {
        Some((offset, rest)) if offset.len() >= 7 && is_hex(offset) => {
            let rest = rest.trim_start();
            let are_bytes = rest.split_whitespace().all(|token| token.len() == 2 && is_hex(token));
            if are_bytes && !rest.is_empty() { rest } else { line }
        }
        // The last line of hexdump is an offset alone: so are 8 digits, which are bytes.
        _ => line,
    }
}
