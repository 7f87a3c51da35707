// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the data path over heap rings, with a simulated kernel that may also behave wrongly, and of the control path
//! with scripted answers.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs, which is `unsafe`; the memory that the WRs name is never accessed.

mod common;
mod control;
mod cq;
mod ring;
mod roundtrip;

use crate::SendConfig;
use uverbs_core::attr::SendOpsFlags;
use uverbs_core::wr::Sge;

/// The configuration of a QP with all features of siw.
pub(crate) fn config() -> SendConfig {
    SendConfig { send_ops_flags: SendOpsFlags::all(), max_sge: 6, max_inline: 80, sq_sig_all: false }
}

pub(crate) fn sge(addr: u64, length: u32, lkey: u32) -> Sge {
    Sge { addr, length, lkey }
}
