// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests that siw has in common with the drivers of other such devices.

use super::config;
use crate::SiwDevice;
use crate::ring::{CompletionRing, Ring};
use crate::testing::{KernelSide, completion, decode_recv, decode_send, ring};
use uverbs_soft::SendConfig;
use uverbs_soft::testing::suite::Bench;
use uverbs_uapi::siw::{siw_rqe, siw_sqe};

struct Rings;

impl Bench for Rings {
    type Format = SiwDevice;
    type Kernel = KernelSide;

    fn config() -> SendConfig {
        (&config()).into()
    }
    fn send_ring(slots: u32) -> (Ring<siw_sqe>, KernelSide) {
        let (mapping, kernel) = ring(slots, 120, 0);
        (Ring::new(mapping, slots).unwrap(), kernel)
    }
    fn recv_ring(slots: u32) -> (Ring<siw_rqe>, KernelSide) {
        let (mapping, kernel) = ring(slots, 112, 0);
        (Ring::new(mapping, slots).unwrap(), kernel)
    }
    fn cq_ring(slots: u32) -> (CompletionRing, KernelSide) {
        let (mapping, kernel) = ring(slots, 32, 8);
        (CompletionRing::new(mapping, slots).unwrap(), kernel)
    }
    fn take_send(kernel: &KernelSide) -> Option<(u64, Vec<u8>)> {
        kernel.consume().map(|bytes| decode_send(&bytes)).map(|wqe| (wqe.id, wqe.inline))
    }
    fn take_recv(kernel: &KernelSide) -> Option<u64> {
        kernel.consume().map(|bytes| decode_recv(&bytes).0)
    }
    fn complete(kernel: &KernelSide, wr_id: u64, qp_num: u32) -> bool {
        kernel.produce(&completion(wr_id, 8, 0, 0, qp_num.into()))
    }
}

uverbs_soft::suite!(Rings);
