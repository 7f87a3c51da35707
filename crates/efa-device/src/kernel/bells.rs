// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages of doorbells, with the interface for drivers.

use super::maps::Bells;
use super::state::State;
use crate::Plugged;
use uverbs_core::kernel::DoorbellPort;
use uverbs_softkernel::ring;

/// The offsets of doorbells in a page. They are not 0, so that a driver that ignores them is detected.
pub(super) const SQ_BELL: u32 = 0x40;
pub(super) const RQ_BELL: u32 = 0x80;
pub(super) const CQ_BELL: u32 = 0xc0;

/// A page of doorbells.
#[derive(Debug)]
pub(super) struct BellPage {
    pub(super) plugged: Plugged<State>,
    pub(super) context: u32,
    pub(super) bells: Bells,
}

impl DoorbellPort for BellPage {
    /// The device has registers of 4 bytes.
    fn ring(&self, offset: u32, value: [u8; 8]) {
        let [a, b, c, d, ..] = value;
        self.ring_word(offset, [a, b, c, d]);
    }

    fn ring_word(&self, offset: u32, value: [u8; 4]) {
        let value = u32::from_le_bytes(value);
        ring(&self.plugged, self.context, |device, port| match (self.bells, offset) {
            (Bells::Qp(qpn), SQ_BELL) => device.sq_doorbell(port, qpn, value),
            (Bells::Qp(qpn), RQ_BELL) => device.rq_doorbell(port, qpn, value),
            (Bells::Cq(cq), CQ_BELL) => device.cq_doorbell(port, cq, value),
            (bells, _) => device.wrong_doorbell(port, bells.object(), offset),
        });
    }

    /// Send entries are written to a mapping, not to a page of doorbells.
    fn blueflame(&self, offset: u32, _: &[u8]) {
        ring(&self.plugged, self.context, |device, port| {
            device.wrong_doorbell(port, self.bells.object(), offset);
        });
    }
}
