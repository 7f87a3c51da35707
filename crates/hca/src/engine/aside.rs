// SPDX-License-Identifier: MIT OR Apache-2.0
//! Long RDMA WRITEs whose data are copied without the fabric's lock ([`Aside`]).
//!
//! When the next packets of a message would be executed at their receiver with one copy, the requester leaves the copy of as many of them
//! as a thread should make at a time, and executes nothing until it has ended. Then it executes the packets as usual. Each finds its memory
//! again at both ends; if it is the memory of the copy, its data are there.
//!
//! Only RDMA WRITEs are copied so. The memory of a receive, or of the answer to a read, belongs to the program again when the request is
//! flushed, which may happen during the copy; that of an RDMA WRITE belongs to nobody until the region is deregistered, which waits.

use super::near::Part;
use super::packet::Source;
use super::{Device, Port};
use crate::decode::Op;
use crate::memory::Memory;
use std::sync::{Arc, Weak};
use uverbs_fabric::{Aside, Near};

/// The bytes of a copy: at least, so that it costs more than the lock, and at most.
const LEAST: u64 = 64 << 10;
const MOST: u64 = 1 << 20;

/// A place in memory that may be gone.
#[derive(Clone, Debug)]
pub(super) struct Place {
    memory: Weak<dyn Memory>,
    offset: u64,
}

impl Place {
    fn new((memory, offset): &(Arc<dyn Memory>, u64)) -> Self {
        Self { memory: Arc::downgrade(memory), offset: *offset }
    }

    /// The place so many bytes behind.
    fn behind(&self, bytes: u64) -> Self {
        Self { memory: Weak::clone(&self.memory), offset: self.offset.wrapping_add(bytes) }
    }

    /// Whether it is this one.
    pub(super) fn is(&self, memory: &Arc<dyn Memory>, offset: u64) -> bool {
        core::ptr::addr_eq(self.memory.as_ptr(), Arc::as_ptr(memory)) && self.offset == offset
    }
}

/// A part of a message that was copied.
#[derive(Clone, Debug)]
pub(super) struct Copied {
    /// The number of the request on its queue.
    number: u32,
    /// Its first byte in the message, and its bytes.
    at: u64,
    len: u64,
    from: Place,
    to: Place,
}

/// The copy of a queue.
#[derive(Debug, Default)]
pub(super) enum Progress {
    #[default]
    None,
    /// The number of the request, and the first byte.
    Running(u32, u64),
    Done(Copied),
}

impl Progress {
    /// Whether data of the next packet are being copied.
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Self::Running(..))
    }

    /// Where the receiver finds bytes of a request, from this memory, if they are copied.
    pub(super) fn copied(&self, number: u32, at: u64, source: &Source, len: usize) -> Option<Place> {
        let Self::Done(copied) = self else { return None };
        let skip = at.checked_sub(copied.at)?;
        let is_inside = copied.number == number && skip.checked_add(len as u64)? <= copied.len;
        (is_inside && source.is(&copied.from.behind(skip))).then(|| copied.to.behind(skip))
    }

    /// Whether the first byte of a part of a request is copied, or could not be.
    fn was_copied(&self, number: u32, at: u64) -> bool {
        match self {
            Self::Done(copied) => {
                copied.number == number && (copied.at..copied.at + copied.len.max(1)).contains(&at)
            }
            Self::None | Self::Running(..) => false,
        }
    }
}

impl Device {
    /// Leaves the copy of a part of an RDMA WRITE to the thread, if it is long. The part has all bytes that may be copied together, from
    /// byte `at` of the message of the request with this number.
    pub(super) fn copy_aside(
        &self,
        cx: &mut Port<'_>,
        near: &mut Near<'_, Self>,
        to: usize,
        (qpn, number, at): (u32, u32, u64),
        (part, source): (&Part<'_>, impl FnOnce(usize) -> Option<Source>),
        before: &Progress,
    ) -> Option<Progress> {
        if part.bytes < LEAST || before.was_copied(number, at) {
            return None;
        }
        let receiver = if to == cx.me { self } else { &*near.device(to)? };
        let target = receiver.target(part)?;
        let source = source(part.bytes as usize)?;
        let copy =
            Aside { device: cx.me, queue: qpn, from: source.place(), to: target, len: part.bytes as usize };
        cx.net.copy_aside(copy);
        Some(Progress::Running(number, at))
    }

    /// The bytes of a message that are copied together: they end where a packet of the message does whose number is a multiple of
    /// `every`, or with the message.
    pub(super) fn bytes_aside(psn: u32, every: u32, (mtu, left): (u64, u64)) -> u64 {
        let first = u64::from(1 + (every - psn % every) % every) * mtu;
        let step = u64::from(every) * mtu;
        (first + MOST.saturating_sub(first) / step * step).min(left)
    }

    /// The memory of a part of an RDMA WRITE, if a QP of this device executes all of it.
    fn target(&self, part: &Part<'_>) -> Option<(Arc<dyn Memory>, u64)> {
        if !self.takes(part) {
            return None;
        }
        let (qp, Op::Write { addr, rkey, .. }) = (self.qps.get(&part.dest_qpn)?, part.op) else {
            return None;
        };
        let (addr, rkey) = match qp.resp.writing {
            Some(writing) if !part.is_first => (writing.addr, writing.rkey),
            _ => (*addr, *rkey),
        };
        let need = super::mkey::access::REMOTE_WRITE;
        let (memory, offset) = self.mapped(qp.user(), rkey, addr, part.bytes as usize, need)?;
        Some((Arc::clone(memory), offset))
    }

    /// A copy of a queue has ended.
    pub(super) fn end_aside(&mut self, cx: &mut Port<'_>, copy: &Aside, is_done: bool) {
        self.with_qp(cx, copy.queue, |device, _, qp| {
            let Progress::Running(number, at) = core::mem::take(&mut qp.aside) else { return };
            // After an error the packets are executed with their copies, and report it.
            let len = if is_done { copy.len as u64 } else { 0 };
            let (from, to) = (Place::new(&copy.from), Place::new(&copy.to));
            qp.aside = Progress::Done(Copied { number, at, len, from, to });
            if qp.has_more() {
                device.make_ready(qp);
            }
        });
    }
}
