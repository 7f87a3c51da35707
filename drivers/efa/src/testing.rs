// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues in ordinary memory whose device is the caller: for tests, fuzz targets and benchmarks.
//!
//! The decoder reads bytes at the offsets of `efa_io_defs.h`. It shares no code with the encoder.
#![expect(unsafe_code)]
// UNSAFETY: heap memory is passed on as a mapping of a device.

pub use crate::memory::{CqRing, Doorbell, RecvRing, SendRing};
use crate::{CompletionQueue, CqBell, CqState, QpShared, RecvQueue, SendConfig, SendQueue};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use uverbs_core::attr::{QpState, SendOpsFlags};
use uverbs_core::kernel::{DoorbellPage, DoorbellPort, Mapping, Registers};
use uverbs_core::provider::opcodes::{builder_opcodes, opcodes};
use uverbs_core::sync::ControlBarrier;
use uverbs_core::wr::{SendFlags, WrOpcode};

/// Memory in the role of the device, which can write any value.
#[derive(Clone, Debug)]
pub struct Words(Arc<[AtomicU64]>, usize);

impl Words {
    /// Memory of zeros. An entry of the device is aligned to 64 bytes, so this is, too.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self((0..bytes.div_ceil(8) + 8).map(|_| AtomicU64::new(0)).collect(), bytes)
    }

    fn start(&self) -> usize {
        (self.0.as_ptr().addr().wrapping_neg() % 64) / 8
    }

    /// The memory as a mapping.
    #[must_use]
    pub fn map(&self) -> Mapping {
        let words = &self.0[self.start()..];
        let ptr = NonNull::from(words).cast();
        // SAFETY: the words, which are at least as long, live as long as the `Arc` that becomes the mapping's owner, and consist of
        // atomics.
        unsafe { Mapping::new(ptr, self.1, Arc::clone(&self.0)) }
    }

    /// Reads bytes from an offset, both multiples of 8.
    #[must_use]
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let words = &self.0[self.start()..][offset / 8..][..len / 8];
        words.iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect()
    }

    /// Writes bytes from an offset, both multiples of 8; the first word last, because it has the phase.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        let words = &self.0[self.start()..][offset / 8..];
        for (word, bytes) in words.iter().zip(bytes.as_chunks::<8>().0).rev() {
            word.store(u64::from_le_bytes(*bytes), Ordering::Release);
        }
    }
}

/// The doorbells, which record what is stored to them.
#[derive(Debug, Default)]
pub struct Bells(Mutex<Vec<(u32, u32)>>);

impl Bells {
    /// Offset and value of the stores since the last call.
    pub fn take(&self) -> Vec<(u32, u32)> {
        core::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl DoorbellPort for Bells {
    fn ring(&self, offset: u32, value: [u8; 8]) {
        unreachable!("EFA has no registers of 8 bytes: {value:?} at {offset}");
    }
    fn ring_word(&self, offset: u32, value: [u8; 4]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((offset, u32::from_le_bytes(value)));
    }
    fn blueflame(&self, offset: u32, _: &[u8]) {
        unreachable!("EFA has no bursts to doorbells: at {offset}");
    }
}

/// Offset of the send queue's doorbell.
pub const SEND_BELL: u32 = 0x20;
/// Offset of the receive queue's doorbell.
pub const RECV_BELL: u32 = 0x44;
/// Offset of the CQ's doorbell.
pub const CQ_BELL: u32 = 0x60;

/// In the place of a doorbell register: nothing was stored to it. No doorbell has this value.
const NOT_RUNG: [u8; 8] = [0xff; 8];

/// The shape of a rig.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Entries of the send queue, a power of two.
    pub sends: u32,
    /// Whether they have 128 bytes.
    pub wide: bool,
    /// Receives.
    pub receives: u32,
    /// Descriptors of the receive queue, a power of two.
    pub descriptors: u32,
    /// Entries of a sub-CQ, a power of two.
    pub cqes: u32,
    /// Sub-CQs.
    pub subs: u16,
    /// The QP.
    pub qp_num: u16,
    /// The generation of its numbers.
    pub generation: u16,
    /// Whether it has completions of writes that consume no receive.
    pub unsolicited: bool,
    /// Whether the doorbells are mapped registers, as those of a real device are. Then [`Device::rung`] knows the last value of each.
    pub mapped: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            sends: 8,
            wide: false,
            receives: 8,
            descriptors: 16,
            cqes: 16,
            subs: 2,
            qp_num: 0x0102,
            generation: 3,
            unsolicited: false,
            mapped: false,
        }
    }
}

/// What a device with all operations allows for SRD.
#[must_use]
pub fn send_config() -> SendConfig {
    let ops = opcodes(&[
        WrOpcode::SEND,
        WrOpcode::SEND_WITH_IMM,
        WrOpcode::RDMA_READ,
        WrOpcode::RDMA_WRITE,
        WrOpcode::RDMA_WRITE_WITH_IMM,
    ]);
    SendConfig {
        ops,
        builder: builder_opcodes(SendOpsFlags::all()),
        max_sge: 2,
        max_rdma_sge: 1,
        max_inline: 80,
        inline_write: true,
        always: SendFlags::empty(),
        max_batch: u32::MAX,
    }
}

/// The queues of a QP.
#[derive(Debug)]
pub struct Rig {
    /// Send queue.
    pub send: SendQueue,
    /// Receive queue.
    pub recv: RecvQueue,
    /// Completes both.
    pub cq: CompletionQueue,
    /// The state of the QP.
    pub shared: Arc<QpShared>,
    /// The device.
    pub device: Device,
}

/// The device's side of a QP and its CQ.
#[derive(Debug)]
pub struct Device {
    shape: Shape,
    llq: Words,
    rq: Words,
    cq: Words,
    /// The doorbells, if they are not mapped.
    pub bells: Arc<Bells>,
    /// The doorbells, if they are mapped.
    registers: Words,
    /// Entries that were taken from the send queue and from the receive queue.
    taken: (u32, u32),
    /// The phase of the send queue's entries in the first round since the last reset.
    first_phase: u32,
    /// Completions that were written to each sub-CQ.
    written: Vec<u32>,
}

impl Rig {
    /// The queues of a QP in RTS.
    ///
    /// # Panics
    /// If memory can't be allocated, or the shape has numbers that are no powers of two.
    #[must_use]
    pub fn new(shape: Shape, config: SendConfig) -> Self {
        Self::in_state(shape, config, QpState::RTS)
    }

    /// The queues of a QP in a state.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn in_state(shape: Shape, config: SendConfig, state: QpState) -> Self {
        let size = if shape.wide { 128 } else { 64 };
        let llq = Words::new(shape.sends as usize * size);
        let rq = Words::new(shape.descriptors as usize * 16);
        let cq = Words::new(shape.cqes as usize * usize::from(shape.subs) * 32);
        let bells = Arc::<Bells>::default();
        let registers = Words::new(0x80);
        for offset in (0..0x80).step_by(8) {
            registers.put(offset, &NOT_RUNG);
        }
        let page = if shape.mapped {
            DoorbellPage::Mapped(Registers::new(Arc::new(registers.map())).expect("writable memory"))
        } else {
            DoorbellPage::Port(bells.clone())
        };
        let bell = |offset| Doorbell::new(&page, offset).expect("an aligned offset");
        let barrier = ControlBarrier::register();

        let ring = CqRing::new(cq.map(), shape.cqes, shape.subs).expect("a ring");
        let queue = CompletionQueue::new(CqState::new(ring, 256), barrier, Some(CqBell::new(bell(CQ_BELL))))
            .expect("a page of memory");
        let shared = QpShared::create(
            state,
            barrier,
            (
                shape.qp_num,
                [shape.sends, shape.receives]
                    .map(|len| shape.generation.wrapping_mul(len.next_power_of_two() as u16)),
            ),
            (shape.sends, shape.receives),
            (queue.shared(), queue.shared()),
            shape.unsolicited,
        );
        let shared = Arc::new(shared.expect("a page of memory"));
        assert!(shared.attach());
        let ring = SendRing::new(llq.map(), 0, shape.sends, shape.wide).expect("a ring");
        let send = SendQueue::new(ring, bell(SEND_BELL), config, Arc::clone(&shared));
        let ring = RecvRing::new(rq.map(), shape.descriptors).expect("a ring");
        let recv = RecvQueue::new(ring, bell(RECV_BELL), u32::MAX, Arc::clone(&shared));
        let written = vec![0; shape.subs.into()];
        Self {
            send,
            recv,
            cq: queue,
            shared,
            device: Device { shape, llq, rq, cq, bells, registers, taken: (0, 0), first_phase: 0, written },
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Address, length, key.
pub type Memory = (u64, u32, u32);

/// A send as the device sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the verbs")]
pub struct Sent {
    pub req_id: u16,
    /// 0 send, 1 read, 2 write.
    pub op: u8,
    pub imm: Option<u32>,
    pub ah: u16,
    pub qpn: u16,
    pub qkey: u32,
    pub hints: u8,
    /// Of a read or write.
    pub remote: Option<Memory>,
    pub inline: Option<Vec<u8>>,
    pub sges: Vec<Memory>,
}

/// A receive as the device sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the verbs")]
pub struct Posted {
    pub req_id: u16,
    pub sges: Vec<Memory>,
}

/// Decodes a send entry.
///
/// # Panics
/// If a bit that must be set is not, or one that must be 0 is.
#[must_use]
pub fn decode(bytes: &[u8], phase: bool) -> Sent {
    let (ctrl1, ctrl2, ctrl3) = (bytes[2], bytes[3], bytes[14]);
    assert_eq!(ctrl1 & 0xc0, 0x80, "a meta descriptor, without extension");
    assert_eq!(ctrl2, u8::from(phase) | 0b1_1100, "phase, first, last, completion");
    assert_eq!((ctrl3 & !3, bytes[15]), (0, 0));
    assert_eq!(bytes[20..32], [0; 12], "reserved");
    let (op, length) = (ctrl1 & 0xf, usize::from(u16_at(bytes, 6)));
    assert!(op <= 2);
    let (imm, has_imm) = (u32_at(bytes, 8), ctrl1 & 0x10 != 0);
    assert!(has_imm || imm == 0);
    let memory = |at| (u64_at(bytes, at + 8), u32_at(bytes, at), u32_at(bytes, at + 4));
    let start = if op == 0 { 32 } else { 48 };
    let is_inline = ctrl1 & 0x20 != 0;
    let (inline, sges, end) = if is_inline {
        (Some(bytes[start..start + length].to_vec()), Vec::new(), start + length)
    } else {
        assert!(length <= if op == 0 { 2 } else { 1 });
        (None, (0..length).map(|i| memory(start + 16 * i)).collect(), start + 16 * length)
    };
    assert!(bytes[end..].iter().all(|byte| *byte == 0), "the rest of the entry");
    Sent {
        req_id: u16_at(bytes, 0),
        op,
        imm: has_imm.then_some(imm),
        ah: u16_at(bytes, 12),
        qpn: u16_at(bytes, 4),
        qkey: u32_at(bytes, 16),
        hints: ctrl3,
        remote: (op != 0).then(|| memory(32)),
        inline,
        sges,
    }
}

/// A completion to write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in `efa_io_defs.h`")]
pub struct Entry {
    pub req_id: u16,
    pub status: u8,
    pub is_send: bool,
    pub imm: Option<u32>,
    pub op: u8,
    pub unsolicited: bool,
    pub qp_num: u16,
    pub length: u32,
    pub ah: u16,
    pub src_qp: u16,
    pub gid: Option<[u8; 16]>,
}

impl Entry {
    /// The bytes, with this phase.
    #[must_use]
    pub fn bytes(&self, phase: bool) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&self.req_id.to_le_bytes());
        bytes[2] = self.status;
        let q_type = if self.is_send { 1 } else { 2 };
        bytes[3] = u8::from(phase)
            | q_type << 1
            | u8::from(self.imm.is_some()) << 3
            | self.op << 4
            | u8::from(self.unsolicited) << 7;
        bytes[4..6].copy_from_slice(&self.qp_num.to_le_bytes());
        if !self.is_send {
            bytes[6..8].copy_from_slice(&(self.length as u16).to_le_bytes());
            bytes[8..10].copy_from_slice(&self.ah.to_le_bytes());
            bytes[10..12].copy_from_slice(&self.src_qp.to_le_bytes());
            bytes[12..16].copy_from_slice(&self.imm.unwrap_or(0).to_le_bytes());
            match self.gid {
                Some(gid) => bytes[16..].copy_from_slice(&gid),
                None => bytes[16..18].copy_from_slice(&((self.length >> 16) as u16).to_le_bytes()),
            }
        }
        bytes
    }
}

impl Device {
    /// Offset and value of the doorbells since the last call; if they are mapped, the last value of each.
    pub fn rung(&self) -> Vec<(u32, u32)> {
        let mut rung = self.bells.take();
        for offset in [SEND_BELL, RECV_BELL, CQ_BELL] {
            let word = offset as usize & !7;
            let bytes = self.registers.bytes(word, 8);
            if bytes != NOT_RUNG {
                rung.push((offset, u32_at(&bytes, offset as usize & 7)));
                self.registers.put(word, &NOT_RUNG);
            }
        }
        rung
    }

    /// The sends up to the last doorbell of the values that are passed, since the last call.
    ///
    /// # Panics
    /// If an entry is not valid.
    pub fn sends(&mut self, bells: &[(u32, u32)]) -> Vec<Sent> {
        let (shape, mut sends) = (self.shape, Vec::new());
        let size = if shape.wide { 128 } else { 64 };
        for (_, value) in bells.iter().filter(|(offset, _)| *offset == SEND_BELL) {
            while self.taken.0 & 0xffff != *value {
                let at = (self.taken.0 % shape.sends) as usize * size;
                let phase = (self.taken.0 / shape.sends + self.first_phase) % 2 == 1;
                sends.push(decode(&self.llq.bytes(at, size), phase));
                self.taken.0 += 1;
            }
        }
        sends
    }

    /// As [`sends`](Self::sends), of receives.
    ///
    /// # Panics
    /// If a descriptor is not valid.
    pub fn receives(&mut self, bells: &[(u32, u32)]) -> Vec<Posted> {
        let mut receives: Vec<Posted> = Vec::new();
        let mut is_done = true;
        for (_, value) in bells.iter().filter(|(offset, _)| *offset == RECV_BELL) {
            while self.taken.1 & 0xffff != *value {
                let at = (self.taken.1 % self.shape.descriptors) as usize * 16;
                let bytes = self.rq.bytes(at, 16);
                let (req_id, ctrl) = (u16_at(&bytes, 8), u32_at(&bytes, 12));
                assert_eq!(ctrl & 0x3f00_0000, 0, "reserved");
                assert_eq!(ctrl & 1 << 30 != 0, is_done, "first");
                if is_done {
                    receives.push(Posted { req_id, sges: Vec::new() });
                } else {
                    assert_eq!(req_id, 0);
                }
                let sge = (u64_at(&bytes, 0), u32::from(u16_at(&bytes, 10)), ctrl & 0xff_ffff);
                receives.last_mut().expect("a first one").sges.push(sge);
                is_done = ctrl & 1 << 31 != 0;
                self.taken.1 += 1;
            }
        }
        assert!(is_done, "last");
        receives
    }

    /// Rings through to the device, and takes what was posted.
    pub fn take(&mut self) -> (Vec<Sent>, Vec<Posted>) {
        let bells = self.rung();
        (self.sends(&bells), self.receives(&bells))
    }

    /// The device was told to reset the QP.
    pub fn reset(&mut self) {
        self.first_phase += self.taken.0 / self.shape.sends;
        self.taken = (0, 0);
    }

    /// Writes a completion to a sub-CQ.
    pub fn complete(&mut self, sub: u16, entry: &Entry) {
        let (written, cqes) = (&mut self.written[usize::from(sub)], self.shape.cqes);
        let phase = *written / cqes % 2 == 0;
        let at = (u32::from(sub) * cqes + *written % cqes) as usize * 32;
        *written += 1;
        self.cq.put(at, &entry.bytes(phase));
    }

    /// The completion of a send of the QP.
    #[must_use]
    pub fn sent(&self, req_id: u16) -> Entry {
        Entry { req_id, is_send: true, qp_num: self.shape.qp_num, ..Entry::default() }
    }

    /// The completion of a receive of the QP.
    #[must_use]
    pub fn received(&self, req_id: u16, length: u32) -> Entry {
        Entry { req_id, qp_num: self.shape.qp_num, length, ah: 9, src_qp: 0x77, ..Entry::default() }
    }

    /// The bytes of the CQ.
    #[must_use]
    pub fn cq(&self) -> &Words {
        &self.cq
    }
}
