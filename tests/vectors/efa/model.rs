// SPDX-License-Identifier: MIT OR Apache-2.0
//! The format of EFA's vectors: one JSON object per line, as `tests/efa-recorder` writes it.

use crate::model::{self, Bytes};
use anyhow::{Context as _, Result};
use serde::Deserialize;
use std::path::Path;

/// A case: a CQ, a QP and what is done with them.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Case {
    pub id: u32,
    pub category: String,
    pub generation: String,
    pub cq: Cq,
    pub qp: Qp,
    /// Requests that were posted and completed before.
    #[serde(default)]
    pub start: u32,
    #[serde(default)]
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Cq {
    /// 0 of `ibv_create_cq`, 1 of `ibv_create_cq_ex`, 2 of `efadv_create_cq`.
    pub kind: u8,
    pub channel: bool,
    pub cqe: u32,
    pub out: u32,
    pub request: Bytes,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Qp {
    pub ud: bool,
    pub sig: bool,
    pub ops: u64,
    /// `EFADV_QP_FLAGS_*`.
    pub flags: u16,
    pub sl: u8,
    pub qpn: u32,
    pub cap: [u32; 5],
    pub ret: i32,
    pub out: Option<[u32; 5]>,
    pub request: Option<Bytes>,
}

/// Address, length, key.
pub(super) type Sge = (u64, u32, u32);

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Wr {
    pub id: u64,
    pub op: String,
    pub flags: u32,
    /// Address handle, QP number, Q_Key.
    pub to: (u16, u32, u32),
    /// The setter: 0 `set_sge_list`, 1 `set_sge`, 2 `set_inline_data`, 3 `set_inline_data_list`.
    pub by: u8,
    #[serde(default)]
    pub imm: u32,
    #[serde(default)]
    pub remote: (u64, u32),
    pub sges: Vec<Sge>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Receive {
    pub id: u64,
    pub sges: Vec<Sge>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Entry {
    pub sub: u32,
    /// Of the request among all of its queue; -1 for an entry without a request.
    pub position: i64,
    pub hex: Bytes,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: u32,
    pub slid: u32,
    pub unsolicited: Option<u8>,
    pub sgid: Option<Bytes>,
}

/// A call, with what the device saw of it. `bell` is the last value of the doorbell, if it was rung.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(super) enum Step {
    List { wrs: Vec<Wr>, ret: i32, bad: i32, sq: Vec<Bytes>, bell: Option<u32> },
    Builders { wrs: Vec<Wr>, ret: i32, sq: Vec<Bytes>, bell: Option<u32> },
    Abort { wrs: Vec<Wr>, sq: Vec<Bytes>, bell: Option<u32> },
    Receives { receives: Vec<Receive>, ret: i32, bad: i32, rq: Vec<Bytes>, bell: Option<u32> },
    Complete { entries: Vec<Entry> },
    Poll { max: usize, ret: i32, wcs: Vec<Wc>, bell: Option<u32> },
    StartPoll { max: usize, ret: i32, next: i32, wcs: Vec<Wc>, bell: Option<u32> },
    Notify { solicited: bool, ret: i32, bell: Option<u32> },
    Event {},
    Modify { state: u32 },
}

impl Case {
    /// Changes one bit of what the case expects. `n` selects the place. `false` if the case expects nothing of a device.
    pub(super) fn change(&mut self, n: usize) -> bool {
        // Not the request numbers, which may differ.
        let places = |size: usize, number: usize| (0..size).filter(move |at| at - at % 2 != number);
        let bell = |bell: &mut Option<u32>| *bell = Some(bell.unwrap_or(0) ^ 0x4000);
        for step in &mut self.steps {
            let (entries, number, rung) = match step {
                Step::List { sq, bell, .. } | Step::Builders { sq, bell, .. } => (sq, 0, bell),
                Step::Receives { rq, bell, .. } => (rq, 8, bell),
                Step::Poll { wcs, .. } | Step::StartPoll { wcs, .. } if n % 2 == 1 && !wcs.is_empty() => {
                    let wc = &mut wcs[0];
                    let fields =
                        [&mut wc.status, &mut wc.opcode, &mut wc.byte_len, &mut wc.src_qp, &mut wc.slid];
                    let [a, b, c, d, e] = fields;
                    *[a, b, c, d, e].into_iter().nth(n / 2 % 5).expect("a field") ^= 1;
                    return true;
                }
                _ => continue,
            };
            if n % 2 == 1 && self.category == "completion" {
                continue;
            }
            match entries.first_mut() {
                Some(entry) if !n.is_multiple_of(7) => {
                    let places: Vec<usize> = places(entry.0.len(), number).collect();
                    entry.0[places[n % places.len()]] ^= 1 << (n % 8);
                }
                Some(_) => bell(rung),
                None => continue,
            }
            return true;
        }
        match &mut self.qp.request {
            Some(request) => request.0[n % 24] ^= 1,
            None => return false,
        }
        true
    }
}

/// Reads the cases of a file.
pub(super) fn read(path: &Path) -> Result<Vec<Case>> {
    let line =
        |(n, line)| serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), n + 1));
    model::text(path)?.lines().enumerate().map(line).collect()
}
