// SPDX-License-Identifier: MIT OR Apache-2.0
//! Comparisons of bytes, doorbell records and completions with those of the reference.

use crate::model::{Pattern, Wc};
use anyhow::{Result, bail, ensure};
use uverbs_core::provider::Completion;
use uverbs_core::wc::WorkCompletion;

pub(crate) fn compare_bytes(what: &str, want: &Pattern, got: &[u8]) -> Result<()> {
    match want.differs(got) {
        None => Ok(()),
        Some(at) => {
            let hex: String = got.iter().map(|b| format!("{b:02x}")).collect();
            bail!("{what}: byte {at}\n      want {}\n      got  {hex}", want.text())
        }
    }
}

pub(crate) fn compare_record(what: &str, want: Option<u32>, got: Option<u32>) -> Result<()> {
    ensure!(want == got, "doorbell record of {what}: {got:?}, not {want:?}");
    Ok(())
}

macro_rules! compare {
    ($want:expr, $got:expr, $what:literal) => {
        if let Some(want) = $want {
            let got = $got;
            ensure!(got == want, concat!($what, ": {:#x}, not {:#x}"), got, want);
        }
    };
}

pub(crate) fn compare_wc(want: &Wc, got: &WorkCompletion) -> Result<()> {
    compare!(Some(want.status), got.status.0, "status");
    compare!(Some(want.wr_id.0), got.wr_id, "wr_id");
    compare!(Some(want.qp_num), got.qp_num, "qp_num");
    compare!(want.vendor_err, got.vendor_err, "vendor_err");
    if want.status != 0 {
        return Ok(());
    }
    compare!(want.opcode, got.opcode.0, "opcode");
    compare!(want.wc_flags, got.wc_flags.bits(), "wc_flags");
    compare!(want.byte_len, got.byte_len, "byte_len");
    compare!(want.imm_data.map(|n| n.u32()), u32::from_be(got.imm_data_or_invalidated_rkey), "imm_data");
    compare!(want.invalidated_rkey.map(|n| n.u32()), got.imm_data_or_invalidated_rkey, "invalidated_rkey");
    compare!(want.src_qp, got.src_qp, "src_qp");
    compare!(want.pkey_index, got.pkey_index, "pkey_index");
    compare!(want.slid, u32::from(got.slid), "slid");
    compare!(want.sl, got.sl, "sl");
    compare!(want.dlid_path_bits, got.dlid_path_bits, "dlid_path_bits");
    Ok(())
}

/// The fields of a completion, read one by one.
pub(crate) struct Lazy {
    wc: WorkCompletion,
    slid: u32,
    completion_ts: Option<u64>,
    completion_wallclock_ns: Option<u64>,
    cvlan: Option<u16>,
    flow_tag: Option<u32>,
}

impl Lazy {
    pub(crate) fn of<C: Completion>(c: &C) -> Self {
        let wc = WorkCompletion {
            wr_id: c.wr_id(),
            status: c.status(),
            opcode: c.opcode(),
            vendor_err: c.vendor_err(),
            byte_len: c.byte_len(),
            imm_data_or_invalidated_rkey: c.imm_data_or_invalidated_rkey(),
            qp_num: c.qp_num(),
            src_qp: c.src_qp(),
            wc_flags: c.wc_flags(),
            pkey_index: c.pkey_index(),
            slid: 0,
            sl: c.sl(),
            dlid_path_bits: c.dlid_path_bits(),
        };
        Self {
            wc,
            slid: c.slid(),
            completion_ts: c.completion_ts(),
            completion_wallclock_ns: c.completion_wallclock_ns(),
            cvlan: c.cvlan(),
            flow_tag: c.flow_tag(),
        }
    }

    pub(crate) fn compare(&self, want: &Wc) -> Result<()> {
        compare_wc(&Wc { slid: None, ..want.clone() }, &self.wc)?;
        if want.status != 0 {
            return Ok(());
        }
        compare!(want.slid, self.slid, "slid");
        compare!(want.completion_ts.map(|n| n.0), self.completion_ts.unwrap_or(0), "completion_ts");
        let wall = self.completion_wallclock_ns.unwrap_or(0);
        compare!(want.completion_wallclock_ns.map(|n| n.0), wall, "completion_wallclock_ns");
        compare!(want.cvlan, self.cvlan.unwrap_or(0), "cvlan");
        compare!(want.flow_tag, self.flow_tag.unwrap_or(0), "flow_tag");
        Ok(())
    }
}
