// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contents of the messages, and the check of `-c`.
//!
//! The C programs fill their buffer with one byte; with `-c` the client sets the first byte of each page to 0, the
//! server sends back the received data, and at the end checks the first byte of each page. Here both ends check the
//! other bytes, too.

use super::options::Program;

/// The contents of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The value of all bytes that are not marked.
    fill: u8,
    page_size: usize,
}

/// A byte that differs from the one that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) page: usize,
    pub(crate) offset: usize,
    pub(crate) expected: u8,
    pub(crate) found: u8,
}

impl Pattern {
    /// The bytes that the C program of that name sends.
    pub(crate) fn of(program: Program, page_size: usize) -> Self {
        let fill = match program {
            Program::Rc | Program::Uc | Program::Ud | Program::Srd => 0x7b,
            Program::Srq => 0,
        };
        Self { fill, page_size: page_size.max(1) }
    }

    /// The message of the client, with marks if it will be checked.
    pub(crate) fn message(self, size: usize, marked: bool) -> Vec<u8> {
        let mut bytes = vec![self.fill; size];
        if marked {
            bytes.iter_mut().step_by(self.page_size).for_each(|b| *b = 0);
        }
        bytes
    }

    /// The first wrong byte of each page of a message that was marked.
    pub(crate) fn check(self, bytes: &[u8]) -> Vec<Wrong> {
        let wrong_in = |(page, bytes): (usize, &[u8])| {
            let expected = |i: usize| if i == 0 { 0 } else { self.fill };
            let (i, found) = bytes.iter().enumerate().find(|(i, b)| **b != expected(*i))?;
            Some(Wrong { page, offset: page * self.page_size + i, expected: expected(i), found: *found })
        };
        bytes.chunks(self.page_size).enumerate().filter_map(wrong_in).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_message_passes_and_an_unmarked_one_does_not() {
        let rc = Pattern::of(Program::Rc, 4096);
        let marked = rc.message(10_000, true);
        assert_eq!((marked[0], marked[1], marked[4096], marked[8192]), (0, 0x7b, 0, 0));
        assert_eq!(rc.check(&marked), []);
        let pages: Vec<_> = rc.check(&rc.message(10_000, false)).iter().map(|w| w.page).collect();
        assert_eq!(pages, [0, 1, 2]);
        // The SRQ program fills the buffer with the value of the mark.
        let srq = Pattern::of(Program::Srq, 4096);
        assert_eq!(srq.check(&srq.message(5000, false)), []);
    }

    #[test]
    fn any_single_wrong_byte_is_found() {
        let pattern = Pattern::of(Program::Ud, 64);
        for size in [1, 63, 64, 65, 200] {
            let good = pattern.message(size, true);
            for at in 0..size {
                let mut bad = good.clone();
                bad[at] ^= 0x80;
                let wrong = pattern.check(&bad);
                let expected = Wrong { page: at / 64, offset: at, expected: good[at], found: bad[at] };
                assert_eq!(wrong, [expected]);
            }
        }
    }
}
