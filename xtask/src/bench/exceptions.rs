// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measurements that can't reach the limit of their row, each with its reason. Their limit is another share of
//! libmlx5's count, which they must keep. `docs/src/guides/bench.md` has the same table.

use super::rows::Face;

/// Measurements with another limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exception {
    /// What is measured, as the guide names it.
    pub(crate) what: &'static str,
    /// The face.
    pub(crate) face: Face,
    /// The programs' names of the rows, without face and batch.
    pub(crate) names: &'static [&'static str],
    /// The batches.
    pub(crate) batches: &'static [u32],
    /// The largest part of libmlx5's count.
    pub(crate) share: f64,
    /// Why it is more than for other rows.
    pub(crate) reason: &'static str,
}

const BOTH: &[u32] = &[1, 32];
const ONE: &[u32] = &[1];
const LIST: &[u32] = &[32];

/// The table.
pub(crate) const EXCEPTIONS: &[Exception] = &[
    Exception {
        what: "`wr_*` requests of 3 and 4 entries: send3, rc write sge4, x32",
        face: Face::Abi,
        names: &["wr send3", "wr rc write sge4"],
        batches: LIST,
        share: 0.97,
        reason: SEVERAL,
    },
    Exception {
        what: "long inline data: inline128, inline256, x1",
        face: Face::Abi,
        names: &["post_send rc write inline128", "post_send rc write inline256"],
        batches: ONE,
        share: 1.08,
        reason: INLINE,
    },
    Exception {
        what: "long inline data: inline448, inline960",
        face: Face::Abi,
        names: &["post_send rc write inline448", "post_send rc write inline960"],
        batches: BOTH,
        share: 1.22,
        reason: INLINE,
    },
    Exception {
        what: "long inline data: inline448, inline960",
        face: Face::Raw,
        names: &["post_send rc write inline448", "post_send rc write inline960"],
        batches: BOTH,
        share: 1.18,
        reason: INLINE,
    },
    Exception {
        what: "long inline data: inline448, inline960",
        face: Face::Typed,
        names: &["post_send rc write inline448", "post_send rc write inline960"],
        batches: BOTH,
        share: 1.02,
        reason: INLINE,
    },
    Exception {
        what: "`wr_*` inline data: inline, x32",
        face: Face::Abi,
        names: &["wr inline"],
        batches: LIST,
        share: 0.97,
        reason: INLINE,
    },
    Exception {
        what: "`wr_*` inline data: inline128, inline256, inline64",
        face: Face::Abi,
        names: &["wr rc write inline128", "wr rc write inline256", "wr rc write inline64"],
        batches: BOTH,
        share: 1.18,
        reason: INLINE,
    },
    Exception {
        what: "`wr_*` inline data: inline448, inline960",
        face: Face::Abi,
        names: &["wr rc write inline448", "wr rc write inline960"],
        batches: BOTH,
        share: 1.36,
        reason: INLINE,
    },
    Exception {
        what: "`wr_*` inline data: inline128, inline256",
        face: Face::Raw,
        names: &["wr rc write inline128", "wr rc write inline256"],
        batches: BOTH,
        share: 1.09,
        reason: INLINE,
    },
    Exception {
        what: "`wr_*` inline data: inline448, inline960",
        face: Face::Raw,
        names: &["wr rc write inline448", "wr rc write inline960"],
        batches: BOTH,
        share: 1.32,
        reason: INLINE,
    },
    Exception {
        what: "`wr_*` inline of 4 buffers",
        face: Face::Abi,
        names: &["wr rc write inline_list4"],
        batches: BOTH,
        share: 1.46,
        reason: BUFFERS,
    },
    Exception {
        what: "`wr_*` inline of 4 buffers",
        face: Face::Raw,
        names: &["wr rc write inline_list4"],
        batches: BOTH,
        share: 1.4,
        reason: BUFFERS,
    },
    Exception {
        what: "`wr_*` inline of 4 buffers, x32",
        face: Face::Typed,
        names: &["wr rc write inline_list4"],
        batches: LIST,
        share: 0.73,
        reason: BUFFERS,
    },
    Exception {
        what: "`wr_*` LOCAL_INV: dc local_inv, rc local_inv, uc local_inv, xrc local_inv",
        face: Face::Abi,
        names: &["wr dc local_inv", "wr rc local_inv", "wr uc local_inv", "wr xrc local_inv"],
        batches: BOTH,
        share: 1.15,
        reason: LOCAL,
    },
    Exception {
        what: "`wr_*` LOCAL_INV: rc local_inv, uc local_inv, xrc local_inv, x1",
        face: Face::Raw,
        names: &["wr rc local_inv", "wr uc local_inv", "wr xrc local_inv"],
        batches: ONE,
        share: 1.11,
        reason: LOCAL,
    },
    Exception {
        what: "`wr_*` LOCAL_INV: dc local_inv",
        face: Face::Typed,
        names: &["wr dc local_inv"],
        batches: BOTH,
        share: 0.64,
        reason: LOCAL,
    },
    Exception {
        what: "LOCAL_INV: uc local_inv",
        face: Face::Typed,
        names: &["post_send uc local_inv"],
        batches: BOTH,
        share: 0.59,
        reason: LOCAL,
    },
    Exception {
        what: "LOCAL_INV: xrc local_inv, x1",
        face: Face::Typed,
        names: &["post_send xrc local_inv"],
        batches: ONE,
        share: 0.57,
        reason: LOCAL,
    },
    Exception {
        what: "`wr_*` BIND_MW: dc bind_mw, rc bind_mw, uc bind_mw, xrc bind_mw",
        face: Face::Abi,
        names: &["wr dc bind_mw", "wr rc bind_mw", "wr uc bind_mw", "wr xrc bind_mw"],
        batches: BOTH,
        share: 1.11,
        reason: BIND,
    },
    Exception {
        what: "`wr_*` BIND_MW: rc bind_mw, uc bind_mw, xrc bind_mw",
        face: Face::Raw,
        names: &["wr rc bind_mw", "wr uc bind_mw", "wr xrc bind_mw"],
        batches: BOTH,
        share: 1.09,
        reason: BIND,
    },
    Exception {
        what: "`wr_*` BIND_MW: dc bind_mw",
        face: Face::Typed,
        names: &["wr dc bind_mw"],
        batches: BOTH,
        share: 0.74,
        reason: BIND,
    },
    Exception {
        what: "BIND_MW: rc bind_mw, uc bind_mw, xrc bind_mw",
        face: Face::Typed,
        names: &["post_send rc bind_mw", "post_send uc bind_mw", "post_send xrc bind_mw"],
        batches: BOTH,
        share: 0.61,
        reason: BIND,
    },
    Exception {
        what: "`wr_*` atomics of XRC and DC: dc cmp_swp, dc fetch_add, xrc cmp_swp, xrc fetch_add",
        face: Face::Abi,
        names: &["wr dc cmp_swp", "wr dc fetch_add", "wr xrc cmp_swp", "wr xrc fetch_add"],
        batches: BOTH,
        share: 1.21,
        reason: ATOMIC,
    },
    Exception {
        what: "`wr_*` atomics of XRC and DC: xrc cmp_swp, xrc fetch_add",
        face: Face::Raw,
        names: &["wr xrc cmp_swp", "wr xrc fetch_add"],
        batches: BOTH,
        share: 1.09,
        reason: ATOMIC,
    },
    Exception {
        what: "`wr_*` atomics of XRC and DC: dc cmp_swp, dc fetch_add",
        face: Face::Typed,
        names: &["wr dc cmp_swp", "wr dc fetch_add"],
        batches: BOTH,
        share: 0.56,
        reason: ATOMIC,
    },
    Exception {
        what: "`wr_*` DC with data: dc read, dc write, x32",
        face: Face::Abi,
        names: &["wr dc read", "wr dc write"],
        batches: LIST,
        share: 0.98,
        reason: LOCKED,
    },
    Exception {
        what: "`wr_*` DC with data: dc write_imm",
        face: Face::Abi,
        names: &["wr dc write_imm"],
        batches: BOTH,
        share: 1.05,
        reason: LOCKED,
    },
    Exception {
        what: "`wr_*` TSO",
        face: Face::Abi,
        names: &["wr raw tso"],
        batches: BOTH,
        share: 1.07,
        reason: TSO,
    },
    Exception {
        what: "`wr_*` TSO",
        face: Face::Raw,
        names: &["wr raw tso"],
        batches: BOTH,
        share: 1.04,
        reason: TSO,
    },
    Exception {
        what: "request for an event",
        face: Face::Abi,
        names: &["arm"],
        batches: ONE,
        share: 1.68,
        reason: ARM,
    },
    Exception {
        what: "request for an event",
        face: Face::Typed,
        names: &["arm"],
        batches: ONE,
        share: 1.5,
        reason: ARM,
    },
    Exception {
        what: "event and the next request",
        face: Face::Abi,
        names: &["event"],
        batches: ONE,
        share: 1.33,
        reason: EVENT,
    },
    Exception {
        what: "event and the next request",
        face: Face::Typed,
        names: &["event"],
        batches: ONE,
        share: 1.05,
        reason: EVENT,
    },
    Exception {
        what: "EFA: request for an event",
        face: Face::Abi,
        names: &["efa arm"],
        batches: ONE,
        share: 1.97,
        reason: EFA_ARM,
    },
    Exception {
        what: "EFA: request for an event",
        face: Face::Typed,
        names: &["efa arm"],
        batches: ONE,
        share: 1.97,
        reason: EFA_ARM,
    },
    Exception {
        what: "EFA: event and the next request",
        face: Face::Abi,
        names: &["efa event"],
        batches: ONE,
        share: 1.33,
        reason: EVENT,
    },
    Exception {
        what: "EFA: event and the next request",
        face: Face::Typed,
        names: &["efa event"],
        batches: ONE,
        share: 0.95,
        reason: EVENT,
    },
];

const INLINE: &str = "the records of the WQE's blocks are marked, so that a completion that names one of them is refused; the copy \
    of the bytes, which is libc's, is the same";
const BUFFERS: &str = "each buffer is checked before it is copied: its address, the sum of the lengths, and the room in the queue";
const LOCAL: &str = "the WQE after it needs a fence, which libmlx5 keeps in one variable; here the queue is closed for other \
    interfaces until that WQE is written";
const BIND: &str =
    "a WQE of 192 bytes, 24 stores that have to be made; and the fence of the next WQE, as for LOCAL_INV";
const ATOMIC: &str = "the setter of an entry checks that it has room for 8 bytes, in a function that is not inlined; for DC, the WQE \
    has a second block";
const LOCKED: &str = "the count of libmlx5's `wr_*` call is compared, which is a tenth shorter than that of a list; with shared \
    queues, the call and the lock of a register that several QPs share are in both counts";
const TSO: &str =
    "the header has a length that is not constant, and its copy is checked against the end of the ring";
const ARM: &str = "the request enters the queue as a poll does, so that a resize, a removal or a fork(2) at the same time is \
    safe; libmlx5 checks nothing";
const EVENT: &str = "the channel, the CQ and the number of the event are looked up, \
    so that a destroyed or changed one is found; libmlx5 uses the pointers and the kernel's number as they are";

const EFA_ARM: &str = "the request enters the queue as a poll does, so that a destruction, a removal or a fork(2) at the same time is \
    safe; libefa only stores to the doorbell";

const SEVERAL: &str = "an array of entries may be at any address, which is checked";

impl Exception {
    /// Whether it is one of this measurement.
    pub(crate) fn is_of(&self, face: Face, name: &str, batch: u32) -> bool {
        self.face == face && self.batches.contains(&batch) && self.names.contains(&name)
    }

    /// The exception of a measurement.
    pub(crate) fn of(face: Face, name: &str, batch: u32) -> Option<&'static Self> {
        EXCEPTIONS.iter().find(|exception| exception.is_of(face, name, batch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::rows::ROWS;

    #[test]
    fn every_exception_is_of_rows_has_a_reason_and_is_in_the_guide() {
        let guide = std::fs::read_to_string(crate::repo_root().join("docs/src/guides/bench.md")).unwrap();
        for exception in EXCEPTIONS {
            let Exception { what, face, names, batches, share, reason } = exception;
            assert!(!names.is_empty() && !batches.is_empty() && !reason.is_empty(), "{what}");
            for name in *names {
                let row = ROWS.iter().find(|row| row.c == *name && row.name(*face, 1).is_some());
                let row = row.unwrap_or_else(|| panic!("{what}: no row {name}"));
                assert!(batches.iter().all(|batch| row.batches.contains(batch)), "{what}: {name}");
                let usual = row.limits.of_c(*face).unwrap_or_else(|| panic!("{what}: {name} has no limit"));
                assert!(*share > usual, "{what}: {name} has the limit {usual}");
            }
            let line = format!("| {what} | {} | {share} | {reason} |", face.shown());
            assert!(guide.contains(&line), "the guide has no line {line:?}");
        }
    }

    #[test]
    fn a_measurement_has_one_exception() {
        for row in ROWS.iter() {
            for face in Face::OURS {
                for batch in row.batches {
                    let of = EXCEPTIONS.iter().filter(|exception| exception.is_of(face, row.c, *batch));
                    assert!(of.count() <= 1, "{} x{batch}, {}", row.c, face.name());
                }
            }
        }
    }
}
