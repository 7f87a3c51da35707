// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the data path over heap rings, with a simulated kernel that may also behave wrongly.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs, which is `unsafe`; the memory that the WRs name is never accessed.

mod common;
mod control;
mod cq;
mod handshake;
mod ring;
mod roundtrip;
mod semantics;
mod vectors;

use crate::{Extensions, SendConfig};
use uverbs_core::attr::{QpType, SendOpsFlags};
use uverbs_core::wr::Sge;

/// The configuration of a QP of this type with all features of rxe.
pub(crate) fn config(qp_type: QpType) -> SendConfig {
    SendConfig {
        qp_type,
        send_ops_flags: SendOpsFlags::all(),
        extensions: Extensions { flush: true, atomic_write: true },
        max_sge: 4,
        max_inline: 64,
    }
}

pub(crate) fn sge(addr: u64, length: u32, lkey: u32) -> Sge {
    Sge { addr, length, lkey }
}
