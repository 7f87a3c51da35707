// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a queue at a time, for a person who reads its entries (`uverbs decode`).

use crate::memory::Area;
use core::fmt;
use core::fmt::Write as _;
use core::str::FromStr;

/// A queue that a QP uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Its send queue.
    Send,
    /// Its receive queue, or its shared receive queue.
    Recv,
    /// The completion queue of its sends.
    SendCq,
    /// The completion queue of its receives.
    RecvCq,
}

impl Queue {
    /// All.
    pub const ALL: [Self; 4] = [Self::Send, Self::Recv, Self::SendCq, Self::RecvCq];

    /// Its name in commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Recv => "recv",
            Self::SendCq => "send-cq",
            Self::RecvCq => "recv-cq",
        }
    }
}

impl FromStr for Queue {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|queue| queue.name() == name).ok_or(())
    }
}

/// The memory of a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RingDump {
    /// The name of the driver whose format it has.
    pub device: String,
    /// The entries: `wqe`, `recv`, `srq` or `cqe`.
    pub what: String,
    /// The type of the QP: `rc`, `ud` and so on.
    pub kind: String,
    /// Bytes from one entry to the next.
    pub stride: u32,
    /// The slot of the entry that the device takes or writes next.
    pub next: u32,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Bytes of a queue that are read at most.
const MAX: u64 = 4 << 20;

impl RingDump {
    /// Reads a queue; `None` if its memory is gone, or there is too much of it.
    #[must_use]
    pub fn read(
        area: &Area,
        (device, what, kind): (&str, &str, &str),
        stride: u32,
        next: u32,
    ) -> Option<Self> {
        let len = usize::try_from(area.size()).ok().filter(|len| *len as u64 <= MAX)?;
        let mut bytes = vec![0; len];
        area.read(0, &mut bytes).ok()?;
        let (device, what, kind) = (device.into(), what.into(), kind.into());
        Some(Self { device, what, kind, stride, next, bytes })
    }

    /// Parses what is printed; `None` for another text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        let mut next = || words.next();
        let (device, what, kind) = (next()?.to_owned(), next()?.to_owned(), next()?.to_owned());
        let (stride, slot) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let digits = next().unwrap_or_default();
        if !digits.len().is_multiple_of(2) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).ok();
        let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Option<_>>()?;
        Some(Self { device, what, kind, stride, next: slot, bytes })
    }
}

impl fmt::Display for RingDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, what, kind, stride, next, bytes } = self;
        let mut digits = String::with_capacity(2 * bytes.len());
        for byte in bytes {
            write!(digits, "{byte:02x}")?;
        }
        write!(f, "{device} {what} {kind} {stride} {next} {digits}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_back() {
        let dump = RingDump {
            device: "mlx5".into(),
            what: "wqe".into(),
            kind: "rc".into(),
            stride: 64,
            next: 3,
            bytes: vec![0, 0xab, 0x10],
        };
        assert_eq!(dump.to_string(), "mlx5 wqe rc 64 3 00ab10");
        assert_eq!(RingDump::parse(&dump.to_string()), Some(dump.clone()));
        let empty = RingDump { bytes: Vec::new(), ..dump };
        assert_eq!(RingDump::parse(&empty.to_string()), Some(empty));
        for text in
            ["", "mlx5 wqe rc 64 3 0", "mlx5 wqe rc 64 3 0g", "mlx5 wqe rc 64 x 00", "mlx5 wqe rc 64 3 é0"]
        {
            assert_eq!(RingDump::parse(text), None, "{text}");
        }
        for queue in Queue::ALL {
            assert_eq!(queue.name().parse(), Ok(queue));
        }
    }
}
