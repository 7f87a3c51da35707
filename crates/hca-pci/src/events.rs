// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events: writes the notices of the device, and the events of the firmware, to event queues.

use crate::state::Function;
use uverbs_hca::bytes::put;
use uverbs_hca::front::{Device, Notice, QpKind, event};

/// `enum mlx5_event`
pub(crate) mod kind {
    pub(crate) const COMP: u8 = 0x00;
    pub(crate) const COMM_EST: u8 = 0x02;
    pub(crate) const SQ_DRAINED: u8 = 0x03;
    pub(crate) const CQ_ERROR: u8 = 0x04;
    pub(crate) const WQ_CATAS_ERROR: u8 = 0x05;
    pub(crate) const PORT_CHANGE: u8 = 0x09;
    pub(crate) const CMD: u8 = 0x0a;
    pub(crate) const WQ_INVAL_REQ_ERROR: u8 = 0x10;
    pub(crate) const WQ_ACCESS_ERROR: u8 = 0x11;
    pub(crate) const SRQ_CATAS_ERROR: u8 = 0x12;
    pub(crate) const SRQ_LAST_WQE: u8 = 0x13;
    pub(crate) const SRQ_RQ_LIMIT: u8 = 0x14;
    pub(crate) const DCT_DRAINED: u8 = 0x1c;
}

/// `MLX5_PORT_CHANGE_SUBTYPE_*`
const PORT_DOWN: u8 = 1;
const PORT_ACTIVE: u8 = 4;
const PORT_LID: u8 = 6;
const PORT_GUID: u8 = 8;

/// `MLX5_EVENT_QUEUE_TYPE_*`: the kind of object that the number in a QP or SRQ event names.
const QUEUE_QP: u8 = 0;
const QUEUE_RQ: u8 = 1;
const QUEUE_DCT: u8 = 6;

impl Function {
    /// Writes an event to the queues that receive its kind.
    fn post(&mut self, kind: u8, subtype: u8, data: &[u8; 28]) {
        for eq in self.eqs.values_mut().filter(|eq| eq.takes(kind)) {
            if eq.push(kind, subtype, data) {
                self.vm.vectors.raise(eq.vector);
            }
        }
    }

    /// Whether a queue receives the events of commands.
    pub(crate) fn reports_commands(&self) -> bool {
        self.eqs.values().any(|eq| eq.takes(kind::CMD))
    }

    /// Raises the event that the commands of these slots are complete.
    pub(crate) fn post_commands(&mut self, slots: u32) {
        let mut data = [0; 28];
        put(&mut data, 0, &slots.to_be_bytes());
        self.post(kind::CMD, 0, &data);
    }

    /// The driver's write to an EQ's doorbell: its number and consumer index.
    pub(crate) fn eq_doorbell(&mut self, word: u32, arm: bool) {
        if let Some(eq) = self.eqs.get_mut(&((word >> 24) as u8))
            && eq.update(word, arm)
        {
            self.vm.vectors.raise(eq.vector);
        }
    }

    /// A DC target has no open message, and accepts none.
    pub(crate) fn post_dct_drained(&mut self, dctn: u32) {
        let mut data = [0; 28];
        put(&mut data, 24, &dctn.to_be_bytes());
        self.post(kind::DCT_DRAINED, 0, &data);
    }

    fn post_queue(&mut self, kind: u8, of: u8, number: u32) {
        let mut data = [0; 28];
        put(&mut data, 20, &[of]);
        put(&mut data, 24, &(number & 0xff_ffff).to_be_bytes());
        self.post(kind, 0, &data);
    }

    /// Writes the device's notices to event queues.
    pub(crate) fn post_notices(&mut self, device: &mut Device) {
        for notice in core::mem::take(&mut device.notices) {
            match notice {
                Notice::Completion { cqn } => {
                    let Some(eq) = self.cqs.get(&cqn).and_then(|cq| self.eqs.get_mut(&cq.eqn)) else {
                        continue;
                    };
                    let mut data = [0; 28];
                    put(&mut data, 24, &cqn.to_be_bytes());
                    if eq.push(kind::COMP, 0, &data) {
                        self.vm.vectors.raise(eq.vector);
                    }
                }
                Notice::CqError { cqn } => {
                    let mut data = [0; 28];
                    put(&mut data, 0, &cqn.to_be_bytes());
                    // `MLX5_CQ_ERROR_SYNDROME_CQ_OVERRUN`
                    put(&mut data, 11, &[1]);
                    self.post(kind::CQ_ERROR, 0, &data);
                }
                Notice::Qp { qpn, event } => {
                    let kind = match event {
                        event::QP_FATAL => kind::WQ_CATAS_ERROR,
                        event::QP_REQ_ERR => kind::WQ_INVAL_REQ_ERROR,
                        event::QP_ACCESS_ERR => kind::WQ_ACCESS_ERROR,
                        event::COMM_EST => kind::COMM_EST,
                        event::SQ_DRAINED => kind::SQ_DRAINED,
                        event::QP_LAST_WQE_REACHED => kind::SRQ_LAST_WQE,
                        _ => continue,
                    };
                    let is_dct = device.qps.get(&qpn).is_some_and(|qp| qp.kind == QpKind::Dct);
                    self.post_queue(kind, if is_dct { QUEUE_DCT } else { QUEUE_QP }, qpn);
                }
                Notice::Srq { srqn, event } => {
                    let kind = if event == event::SRQ_LIMIT_REACHED {
                        kind::SRQ_RQ_LIMIT
                    } else {
                        kind::SRQ_CATAS_ERROR
                    };
                    self.post_queue(kind, QUEUE_QP, srqn);
                }
                Notice::Wq { wqn, .. } => self.post_queue(kind::WQ_CATAS_ERROR, QUEUE_RQ, wqn),
                Notice::Port { event } => {
                    let subtype = match event {
                        event::PORT_ACTIVE => PORT_ACTIVE,
                        event::PORT_ERR => PORT_DOWN,
                        event::LID_CHANGE => PORT_LID,
                        _ => PORT_GUID,
                    };
                    let mut data = [0; 28];
                    // The port's number is in the upper half of a byte.
                    put(&mut data, 8, &[1 << 4]);
                    self.post(kind::PORT_CHANGE, subtype, &data);
                }
            }
        }
    }
}
