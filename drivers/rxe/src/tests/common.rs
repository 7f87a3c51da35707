// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests that rxe has in common with the drivers of other such devices.

use super::config;
use crate::RxeDevice;
use crate::ring::Ring;
use crate::testing::{KernelSide, decode_recv, decode_send, ring};
use uverbs_core::attr::QpType;
use uverbs_soft::SendConfig;
use uverbs_soft::testing::suite::Bench;
use uverbs_uapi::cmd::ib_uverbs_wc;
use uverbs_uapi::rxe::{rxe_recv_wqe, rxe_send_wqe};

struct Rings;

impl Bench for Rings {
    type Format = RxeDevice;
    type Kernel = KernelSide;

    fn config() -> SendConfig {
        (&config(QpType::Rc)).into()
    }
    fn send_ring(slots: u32) -> (Ring<rxe_send_wqe>, KernelSide) {
        ring(9, slots, 64)
    }
    fn recv_ring(slots: u32) -> (Ring<rxe_recv_wqe>, KernelSide) {
        ring(7, slots, 32)
    }
    fn cq_ring(slots: u32) -> (Ring<ib_uverbs_wc>, KernelSide) {
        ring(7, slots, 0)
    }
    fn take_send(kernel: &KernelSide) -> Option<(u64, Vec<u8>)> {
        kernel.consume().map(|bytes| decode_send(&bytes, false)).map(|wqe| (wqe.wr_id, wqe.inline))
    }
    fn take_recv(kernel: &KernelSide) -> Option<u64> {
        kernel.consume().map(|bytes| decode_recv(&bytes).wr_id)
    }
    fn complete(kernel: &KernelSide, wr_id: u64, qp_num: u32) -> bool {
        let mut bytes = [0; 48];
        bytes[..8].copy_from_slice(&wr_id.to_ne_bytes());
        bytes[28..32].copy_from_slice(&qp_num.to_ne_bytes());
        kernel.produce(&bytes)
    }
}

uverbs_soft::suite!(Rings);
