// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the queues on ordinary memory, with an independent device.
#![expect(unsafe_code)]
// UNSAFETY: posts requests whose memory no device accesses.

mod cq;
mod handshake;
mod recv;
mod semantics;
mod send;

use crate::Ah;
use uverbs_core::provider::{Dest, PostError, To, Wr};
use uverbs_core::wr::{RawAh, SendFlags, Sge};
use uverbs_testkit::{self as testkit, Face};

pub(crate) type Request<'a> = Wr<'a, RawAh<Ah>>;

pub(crate) const fn sge(addr: u64, length: u32, lkey: u32) -> Sge {
    Sge { addr, length, lkey }
}

/// A signaled request to a QP.
pub(crate) fn to<'a>(ah: &'a RawAh<Ah>, wr: Request<'a>) -> Request<'a> {
    wr.flags(SendFlags::SIGNALED).to(Dest::Ud(To { ah, remote_qpn: 0xbeef, remote_qkey: 0x1111_1111 }))
}

/// Posts requests on an interface.
pub(crate) fn post(queue: &mut crate::SendQueue, face: Face, wrs: &[Request<'_>]) -> Result<(), PostError> {
    // SAFETY: there is no device that would access the memory.
    let result = unsafe { testkit::post(queue, face, wrs) };
    result.map_err(|refused| refused.error.expect("an error"))
}
