// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues in ordinary memory whose device is simulated by the caller: for tests, fuzz targets and benchmarks.

pub use crate::cq::{CompletionQueue, CqConfig, CqRing, CqShared, CqeCompression, CqeVersion};
pub use crate::doorbell::{ArmRegister, BlueFlame, Doorbell, SharedHalf};
pub use crate::memory::dbrec::{DbRec, DbRecPages};
pub use crate::memory::{QueueBuf, SqRing, StrideRing};
pub use crate::shared::SqShared;
pub use crate::shared::UserIndices;
pub use crate::shared::{QpAccess, QpShared};
pub use crate::shared::{RqShared, SrqShared};
use crate::{RecvConfig, RecvQueue, SendConfig, SendQueue, SharedRecvQueue};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use uverbs_core::attr::{QpState, QpType, SendOpsFlags};
use uverbs_core::kernel::{DoorbellPage, DoorbellPort, Mapping, QueueAccess, Registers};
use uverbs_core::sync::ControlBarrier;

/// Stores the state of a QP, as control calls do.
pub fn set_state(qp: &QpShared, state: QpState) {
    qp.set_state(state);
}

/// Adds a QP to a CQ, as its creation does.
pub fn attach_qp(cq: &CqShared, qp: &Arc<QpShared>) {
    cq.attach_qp(qp);
}

/// Removes the entries of a QP from a CQ, as `modify_qp` to RESET does.
pub fn reset_qp(cq: &CqShared, qp: &Arc<QpShared>) {
    cq.reset_qp(qp);
}

/// Removes a QP from a CQ, as its destruction does.
pub fn detach_qp(cq: &CqShared, qp: &Arc<QpShared>) {
    cq.detach_qp(qp);
}

/// A write to a doorbell register. A burst has 64 or more bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Offset in the page.
    pub offset: u32,
    /// The bytes as on the bus.
    pub bytes: Vec<u8>,
}

/// A doorbell page that records all writes.
#[derive(Debug, Default)]
pub struct Bell(Mutex<Vec<Ring>>);

impl Bell {
    /// All writes since the last call.
    pub fn take(&self) -> Vec<Ring> {
        core::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, offset: u32, bytes: &[u8]) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(Ring { offset, bytes: bytes.to_vec() });
    }
}

impl DoorbellPort for Bell {
    fn ring(&self, offset: u32, value: [u8; 8]) {
        self.note(offset, &value);
    }
    fn blueflame(&self, offset: u32, wqe: &[u8]) {
        self.note(offset, wqe);
    }
}

/// The properties of the registers in the usual configuration of a device.
pub const BLUE_FLAME: BlueFlame = BlueFlame { half: 256, burst: true, prefer: true };

/// The usual configuration of a send queue: all builders that the transport has.
#[must_use]
pub fn send_config(qp_type: QpType) -> SendConfig {
    SendConfig {
        qp_type,
        qp_num: 0xa1_b2c3,
        sq_sig_all: false,
        send_ops_flags: SendOpsFlags::all(),
        max_send_wr: 16,
        max_send_sge: 4,
        max_inline_data: 64,
        atomics: true,
        max_msg_sz: 1 << 30,
        max_tso: 1 << 18,
        max_tso_header: 128,
        l2_inline: false,
    }
}

/// A send queue with its memory, doorbell record and doorbell.
#[derive(Debug)]
pub struct Sends {
    /// The queue.
    pub queue: SendQueue,
    /// For state changes, and to retire WRs.
    pub qp: Arc<QpShared>,
    /// The memory of its ring.
    pub buf: Arc<QueueBuf>,
    /// Its doorbell record.
    pub record: Arc<DbRec>,
    /// Its doorbell.
    pub bell: Arc<Bell>,
    blocks: u32,
}

impl Sends {
    /// A queue of `blocks` basic blocks (a power of two), in RTS.
    ///
    /// # Panics
    /// If the geometry is invalid or there is no memory.
    #[must_use]
    pub fn new(config: &SendConfig, blocks: u32, bf: BlueFlame) -> Self {
        Self::with_access(config, blocks, bf, qp_access())
    }

    /// [`new`](Self::new) with the QP's access.
    ///
    /// # Panics
    /// If the geometry is invalid or there is no memory.
    #[must_use]
    pub fn with_access(config: &SendConfig, blocks: u32, bf: BlueFlame, access: QpAccess) -> Self {
        let bell = Arc::new(Bell::default());
        let page = DoorbellPage::Port(bell.clone());
        let (queue, qp, buf, record) = send_parts_with(config, blocks, bf, &page, None, access);
        Self { queue, qp, buf, record, bell, blocks }
    }

    /// The bytes of `count` blocks from `index` on, which may wrap at the ring's end.
    #[must_use]
    pub fn blocks(&self, index: u32, count: u32) -> Vec<u8> {
        let blocks = (0..count).map(|i| (index.wrapping_add(i) & (self.blocks - 1)) as usize * 8);
        let words = blocks.flat_map(|at| &self.buf.words()[at..at + 8]);
        words.flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect()
    }

    /// Fills the ring with this byte.
    pub fn fill(&self, byte: u8) {
        let words = &self.buf.words()[..self.blocks as usize * 8];
        words.iter().for_each(|w| w.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed));
    }

    /// The send word of the doorbell record.
    #[must_use]
    pub fn posted(&self) -> u32 {
        u32::from_be(self.record.word(1).load(Ordering::Relaxed))
    }

    /// Retires the WQE that begins at this block, and all before it; returns its `wr_id`.
    ///
    /// # Panics
    /// Never: the QP has a send queue.
    pub fn retire(&self, wqe_counter: u16) -> u64 {
        self.qp.sq.as_ref().expect("a send queue").retire(wqe_counter).wr_id
    }
}

/// A send queue in RTS with any doorbell page.
///
/// # Panics
/// If the geometry is invalid or there is no memory.
#[must_use]
pub fn send_parts(
    config: &SendConfig,
    blocks: u32,
    bf: BlueFlame,
    page: &DoorbellPage,
    shared: Option<Arc<SharedHalf>>,
) -> (SendQueue, Arc<QpShared>, Arc<QueueBuf>, Arc<DbRec>) {
    send_parts_with(config, blocks, bf, page, shared, qp_access())
}

/// [`send_parts`] with the QP's access.
///
/// # Panics
/// If the geometry is invalid or there is no memory.
#[must_use]
pub fn send_parts_with(
    config: &SendConfig,
    blocks: u32,
    bf: BlueFlame,
    page: &DoorbellPage,
    shared: Option<Arc<SharedHalf>>,
    access: QpAccess,
) -> (SendQueue, Arc<QpShared>, Arc<QueueBuf>, Arc<DbRec>) {
    let buf = QueueBuf::new(blocks as usize * 64).expect("memory");
    let ring = SqRing::new(Arc::clone(&buf), 0, blocks).expect("a power of two of blocks");
    let record = Arc::new(DbRecPages::default().alloc().expect("memory"));
    let bell = Doorbell::new(page, 0x800, bf, shared).expect("a register in the page");
    let sq = Arc::new(SqShared::new(ring));
    let qp = Arc::new(QpShared::new(access, config.qp_num, 0, Some(sq), None, None));
    qp.set_csum(true);
    qp.set_state(QpState::RTS);
    let queue = SendQueue::new(config, Arc::clone(&qp), record.send_word(), bell).expect("a send queue");
    (queue, qp, buf, record)
}

/// The access of a CQ.
///
/// # Panics
/// If there is no memory.
#[must_use]
pub fn cq_access() -> QueueAccess {
    QueueAccess::new(1, ControlBarrier::register()).expect("memory")
}

/// The access of a QP.
///
/// # Panics
/// If there is no memory.
#[must_use]
pub fn qp_access() -> QpAccess {
    QpAccess::new(ControlBarrier::register()).expect("memory")
}

/// A page of registers in ordinary memory.
///
/// # Panics
/// If there is no memory.
#[must_use]
pub fn heap_page() -> DoorbellPage {
    let page = Arc::new(mapping_of(Arc::new(Page([const { AtomicU64::new(0) }; 512]))));
    DoorbellPage::Mapped(Registers::new(page).expect("memory that can be written"))
}

/// A page with the alignment of one.
#[repr(align(4096))]
struct Page([AtomicU64; 512]);

/// A mapping of memory that consists of atomics.
#[expect(unsafe_code, reason = "`Mapping::new` takes an address")]
fn mapping_of(page: Arc<Page>) -> Mapping {
    let (ptr, len) = (core::ptr::NonNull::from(&page.0).cast(), size_of::<Page>());
    // SAFETY: the memory consists of atomics and lives as long as the `Arc`, which the mapping owns.
    unsafe { Mapping::new(ptr, len, page) }
}

/// A receive queue with its doorbell record.
#[derive(Debug)]
pub struct Receives {
    /// The queue.
    pub queue: RecvQueue,
    /// For state changes, and to retire WRs.
    pub qp: Arc<QpShared>,
    /// Its doorbell record.
    pub record: Arc<DbRec>,
}

impl Receives {
    /// A queue of `count` elements of `stride` bytes (both powers of two), in RTS.
    ///
    /// # Panics
    /// If the geometry is invalid or there is no memory.
    #[must_use]
    pub fn new(config: &RecvConfig, count: u32, stride: u32) -> Self {
        let buf = QueueBuf::new(count as usize * stride as usize).expect("memory");
        let ring = StrideRing::new(buf, 0, count, stride).expect("powers of two");
        let record = Arc::new(DbRecPages::default().alloc().expect("memory"));
        let rq = Arc::new(RqShared::new(ring));
        let qp = Arc::new(QpShared::new(qp_access(), 0xa1_b2c3, 0, None, Some(rq), None));
        qp.set_state(QpState::RTS);
        let queue = RecvQueue::new(config, Arc::clone(&qp), record.recv_word()).expect("a receive queue");
        Self { queue, qp, record }
    }

    /// The shared part of the queue.
    ///
    /// # Panics
    /// Never: the QP has a receive queue.
    #[must_use]
    pub fn rq(&self) -> &Arc<RqShared> {
        self.qp.rq.as_ref().expect("a receive queue")
    }

    /// The receive word of the doorbell record.
    #[must_use]
    pub fn posted(&self) -> u32 {
        u32::from_be(self.record.word(0).load(Ordering::Relaxed))
    }
}

/// A shared receive queue with its doorbell record.
#[derive(Debug)]
pub struct SharedReceives {
    /// The queue.
    pub queue: SharedRecvQueue,
    /// To retire WRs.
    pub srq: Arc<SrqShared>,
    /// Its doorbell record.
    pub record: Arc<DbRec>,
}

impl SharedReceives {
    /// A queue with a list of `slots` elements of `stride` bytes (both powers of two), in a ring of twice that size.
    ///
    /// # Panics
    /// If the geometry is invalid or there is no memory.
    #[must_use]
    pub fn new(slots: u32, stride: u32, max_sge: u32) -> Self {
        let buf = QueueBuf::new(slots as usize * 2 * stride as usize).expect("memory");
        let ring = StrideRing::new(buf, 0, slots * 2, stride).expect("powers of two");
        let record = Arc::new(DbRecPages::default().alloc().expect("memory"));
        let srq = Arc::new(SrqShared::new(0xd01, ring, slots).expect("powers of two"));
        let queue = SharedRecvQueue::new(Arc::clone(&srq), cq_access(), max_sge, 1 << 30, record.recv_word());
        Self { queue, srq, record }
    }

    /// The receive word of the doorbell record.
    #[must_use]
    pub fn posted(&self) -> u32 {
        u32::from_be(self.record.word(0).load(Ordering::Relaxed))
    }
}

/// The bytes of an element of the ring.
#[must_use]
pub fn element(ring: &StrideRing, index: u32) -> Vec<u8> {
    ring.element(index).iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect()
}
