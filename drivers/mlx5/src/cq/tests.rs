// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the poller; the tests simulate the device.

mod compressed;
mod programs;
mod rings;
mod room;
mod scatter;

use super::*;
use crate::doorbell::ArmRegister;
use crate::memory::dbrec::DbRecPages;
use crate::memory::{BlockIndex, CompletedCount, QueueBuf, SqRing, StrideRing};
use crate::shared::QpShared;
use crate::shared::SqShared;
use crate::shared::UserIndices;
use crate::shared::mkey::MkeyTable;
use crate::shared::{RqShared, SrqShared};
use crate::testing::{cq_access, qp_access};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use uverbs_core::attr::{QpState, WcExFlags};
use uverbs_core::kernel::{DoorbellPage, DoorbellPort};
use uverbs_core::provider::{Completion as _, CompletionQueue as _, PollError};
use uverbs_core::wc::{WcFlags, WcOpcode, WcStatus, WorkCompletion};
use uverbs_mlx5_hw::cqe::{Cqe64, ErrCqe};
use uverbs_mlx5_hw::wqe::DataSeg;
use uverbs_mlx5_hw::{Be16, Be32, Be64};
use zerocopy::IntoBytes;

const BLOCKS: u32 = 16;

#[derive(Debug, Default)]
struct Port(Mutex<Vec<(u32, [u8; 8])>>);

impl DoorbellPort for Port {
    fn ring(&self, offset: u32, value: [u8; 8]) {
        self.0.lock().unwrap().push((offset, value));
    }
    fn blueflame(&self, _: u32, _: &[u8]) {
        panic!("a completion queue writes no WQEs");
    }
}

/// A completion queue and a simulated device that writes to it.
struct Bench {
    queue: CompletionQueue,
    shared: Arc<CqShared>,
    buf: Arc<QueueBuf>,
    size: usize,
    /// The position of the device's next entry.
    producer: u32,
    port: Arc<Port>,
    indices: Arc<UserIndices>,
    mkeys: Arc<MkeyTable>,
}

fn bench(entries: u32, cqe_size: u32, version: CqeVersion) -> Bench {
    bench_with(entries, cqe_size, version, None)
}

fn bench_with(
    entries: u32,
    cqe_size: u32,
    version: CqeVersion,
    compression: Option<CqeCompression>,
) -> Bench {
    let buf = QueueBuf::new((entries * cqe_size) as usize).unwrap();
    let ring = CqRing::new(Arc::clone(&buf), entries, cqe_size).unwrap().with_compression(compression);
    ring.clear();
    let port = Arc::new(Port::default());
    let page = DoorbellPage::Port(Arc::clone(&port) as Arc<dyn DoorbellPort>);
    let mkeys = Arc::<MkeyTable>::default();
    let (queue, shared) = CompletionQueue::new(CqConfig {
        cqn: 0x401,
        ring,
        dbrec: DbRecPages::default().alloc().unwrap(),
        access: cq_access(),
        arm: Arc::new(ArmRegister::new(&page, 0).unwrap()),
        version,
        dump_fill_mkey: 0x300,
        fields: WcExFlags::STANDARD | WcExFlags::COMPLETION_TIMESTAMP,
        clock: None,
        mkeys: Arc::clone(&mkeys),
    });
    Bench { queue, shared, buf, size: cqe_size as usize, producer: 0, port, indices: Arc::default(), mkeys }
}

fn words(buf: &QueueBuf, at: usize, bytes: &[u8]) {
    for (word, bytes) in buf.words()[at / 8..].iter().zip(bytes.chunks(8)) {
        word.store(u64::from_ne_bytes(bytes.try_into().unwrap()), Relaxed);
    }
}

impl Bench {
    fn entries(&self) -> u32 {
        self.queue.cqe() + 1
    }

    /// Writes an entry with the owner bit of the lap.
    fn complete(&mut self, cqe: Cqe64) {
        self.complete_with(cqe, &[]);
    }

    fn complete_with(&mut self, mut cqe: Cqe64, before: &[u8]) {
        let slot = (self.producer & self.queue.cqe()) as usize;
        cqe.op_own = cqe.op_own & !1 | u8::from(self.producer & self.entries() != 0);
        words(&self.buf, slot * self.size, before);
        words(&self.buf, (slot + 1) * self.size - 64, cqe.as_bytes());
        self.producer += 1;
    }

    fn consumed(&self) -> u32 {
        u32::from_be(self.shared.dbrec().word(0).load(Relaxed))
    }

    fn poll(&mut self, max: usize) -> Result<Vec<u64>, PollError> {
        let mut ids = Vec::new();
        let was_empty = self.queue.is_surely_empty();
        let polled = self.queue.poll_each(max, |c| ids.push(c.wr_id()));
        assert!(!was_empty || polled == Ok(0));
        polled.map(|_| ids)
    }

    fn qp(&self, qp_num: u32, srq: Option<Arc<SrqShared>>) -> Arc<QpShared> {
        self.qp_with(qp_num, srq, |qp| qp)
    }

    fn qp_with(
        &self,
        qp_num: u32,
        srq: Option<Arc<SrqShared>>,
        with: impl FnOnce(QpShared) -> QpShared,
    ) -> Arc<QpShared> {
        let sq = SqShared::new(SqRing::new(QueueBuf::new(4096).unwrap(), 0, BLOCKS).unwrap());
        let rq = RqShared::new(StrideRing::new(QueueBuf::new(4096).unwrap(), 0, BLOCKS, 64).unwrap());
        for i in 0..BLOCKS {
            sq.ring.view().wr_id(i).store(send_id(qp_num, i), Relaxed);
            sq.ring.view().record(BlockIndex::of(i)).set_done(CompletedCount::new((i + 1).into(), 0));
            rq.wr_id.get(i).store(recv_id(qp_num, i), Relaxed);
        }
        let qp = QpShared::new(
            qp_access(),
            qp_num,
            qp_num,
            Some(Arc::new(sq)),
            srq.is_none().then_some(Arc::new(rq)),
            srq,
        )
        .with_index(self.indices.take().unwrap())
        .with_data_in_completions();
        let qp = Arc::new(with(qp));
        let record = Arc::new(DbRecPages::default().alloc().unwrap());
        record.set_send(BLOCKS);
        qp.sq.as_ref().unwrap().published_by(record.send_word());
        if let Some(rq) = &qp.rq {
            rq.set_published(BLOCKS.into());
        }
        qp.set_state(QpState::RTS);
        self.shared.attach_qp(&qp);
        qp
    }
}

fn send_id(qp_num: u32, index: u32) -> u64 {
    u64::from(qp_num) << 32 | u64::from(index)
}

fn recv_id(qp_num: u32, index: u32) -> u64 {
    send_id(qp_num, index) | 1 << 63
}

/// An entry with `opcode` (`MLX5_CQE_*`) of a QP.
fn cqe(opcode: u8, qp: &QpShared, index: u32) -> Cqe64 {
    Cqe64 {
        srqn_uidx: Be32::new(qp.uidx),
        sop_drop_qpn: Be32::new(0x0a << 24 | qp.qp_num),
        wqe_counter: Be16::new(index as u16),
        op_own: opcode << 4,
        ..Cqe64::default()
    }
}

fn srq(srqn: u32) -> SrqShared {
    let ring = StrideRing::new(QueueBuf::new(4096).unwrap(), 0, 32, 64).unwrap();
    let srq = SrqShared::new(srqn, ring, 16).unwrap();
    (0..16).for_each(|i| srq.records.get(i).wr_id.store(recv_id(srqn, i), Relaxed));
    srq
}

/// Every kind of completion, of two QPs in turn, in an array that was not initialised.
#[expect(unsafe_code, reason = "reads an array that a poll initialised")]
#[test]
fn an_uninitialised_array_is_filled_like_any_other() {
    let mut filled = Vec::new();
    for uninit in [false, true] {
        let mut b = bench(16, 64, CqeVersion::V1);
        let qps = [b.qp(0xa1, None), b.qp(0xa2, None)];
        for i in 0..3 {
            qps.iter().for_each(|qp| b.complete(cqe(0, qp, i)));
            qps.iter().for_each(|qp| b.complete(cqe(2, qp, i)));
        }
        b.complete(cqe(13, &qps[0], 3));
        let mut wc = [WorkCompletion::default(); 16];
        let n = if uninit {
            let mut room = [const { MaybeUninit::<WorkCompletion>::uninit() }; 16];
            assert_eq!(b.queue.poll_cq_uninit(&mut room[..0]), Ok(0));
            let n = b.queue.poll_cq_uninit(&mut room).unwrap();
            for (wc, room) in wc.iter_mut().zip(&room[..n]) {
                // SAFETY: the poll initialised the first `n` elements.
                *wc = unsafe { room.assume_init() };
            }
            n
        } else {
            b.queue.poll_cq(&mut wc).unwrap()
        };
        filled.push(wc[..n].to_vec());
    }
    let ids: Vec<u64> = filled[0].iter().map(|wc| wc.wr_id).collect();
    let [one, two] = [0xa1, 0xa2];
    assert_eq!(
        ids[..5],
        [send_id(one, 0), send_id(two, 0), recv_id(one, 0), recv_id(two, 0), send_id(one, 1)]
    );
    assert_eq!(filled[0].len(), 13);
    assert_eq!(format!("{:?}", filled[0]), format!("{:?}", filled[1]));
}

/// What a completion names is taken while the reset or the destruction of its QP waits, whatever function of the poll parses it.
#[test]
fn completions_are_claimed_while_control_calls_wait() {
    let mut b = bench(32, 64, CqeVersion::V1);
    let (qps, other) = ([b.qp(0xa1, None), b.qp(0xa2, None)], b.qp(0xa3, None));
    let shared = Arc::clone(&b.shared);
    let control = || shared.reset_qp(&other);
    // Each is the first of a poll: of a new queue, of the last one's, of another kind.
    let first = [(0, 0, 0), (0, 0, 1), (2, 0, 0), (13, 0, 2), (2, 0, 1), (0, 1, 0)];
    for (opcode, qp, index) in first {
        b.complete(cqe(opcode, &qps[qp], index));
        uverbs_testkit::check_claims(&mut b.queue, 1, control);
    }
    // Several in a poll. It returns after a control call that came during the second, so each poll has two.
    for (opcode, qp, index) in
        [(0, 1, 1), (0, 1, 2), (2, 1, 0), (2, 1, 1), (13, 1, 3), (13, 1, 4), (0, 0, 3), (2, 1, 2)]
    {
        b.complete(cqe(opcode, &qps[qp], index));
    }
    uverbs_testkit::check_claims(&mut b.queue, 8, control);
    assert_eq!(b.poll(1), Ok(vec![]));
}

/// While a callback runs, a QP is reset, and as many control calls are made as a count of 24 bits has values.
#[test]
fn any_number_of_control_calls_during_a_callback_is_noticed() {
    let mut b = bench(16, 64, CqeVersion::V1);
    let [gone, other] = [b.qp(0xa1, None), b.qp(0xa2, None)];
    for index in 0..4 {
        b.complete(cqe(0, &gone, index));
    }
    b.complete(cqe(0, &other, 0));
    let (shared, mut ids) = (Arc::clone(&b.shared), Vec::new());
    let polled = b.queue.poll_each(9, |completion| {
        ids.push(completion.wr_id());
        if ids.len() == 2 {
            shared.reset_qp(&gone);
            shared.count_on((1 << 24) - 1);
        }
    });
    assert_eq!(polled, Ok(2));
    assert_eq!(ids, [send_id(0xa1, 0), send_id(0xa1, 1)]);
    assert_eq!(b.poll(9), Ok(vec![send_id(0xa2, 0)]));
}

#[test]
fn try_start_poll_opens_a_poll_or_does_nothing() {
    let mut b = bench(8, 64, CqeVersion::V1);
    let qp = b.qp(0xa1, None);
    // The first call takes the slow path, and the first entry of a QP is not of the cached one.
    assert_eq!(b.poll(1), Ok(vec![]));
    assert_eq!(b.queue.try_start_poll(), Some(false));
    assert!(b.queue.is_surely_empty());
    b.complete(cqe(0, &qp, 0));
    assert!(!b.queue.is_surely_empty());
    assert_eq!((b.queue.try_start_poll(), b.queue.is_open()), (None, false));
    assert_eq!(b.poll(1), Ok(vec![send_id(0xa1, 0)]));
    b.complete(cqe(0, &qp, 1));
    assert_eq!(b.queue.try_start_poll(), Some(true));
    assert_eq!(b.queue.current().map(|c| c.wr_id()), Some(send_id(0xa1, 1)));
    assert_eq!(b.queue.try_start_poll(), None, "a poll is open");
    assert!(!b.queue.is_surely_empty(), "a poll would fail");
    b.queue.end_poll();
    assert!(b.queue.is_surely_empty());
    assert_eq!(b.consumed(), 2);
}

#[test]
fn both_cqe_versions_find_the_resource() {
    for version in [CqeVersion::V0, CqeVersion::V1] {
        let mut b = bench(8, 64, version);
        let srq = Arc::new(match version {
            CqeVersion::V0 => srq(0xd01),
            CqeVersion::V1 => srq(0xd01).with_index(b.indices.take().unwrap()),
        });
        let (one, two) = (b.qp(0xa1, None), b.qp(0xa2, Some(Arc::clone(&srq))));
        b.shared.attach_srq(&srq);
        let number = |qp: &QpShared| if version == CqeVersion::V0 { 0 } else { qp.uidx };
        b.complete(Cqe64 { srqn_uidx: Be32::new(number(&one)), ..cqe(0, &one, 3) });
        b.complete(Cqe64 { srqn_uidx: Be32::new(number(&one)), ..cqe(2, &one, 0) });
        b.complete(Cqe64 { srqn_uidx: Be32::new(number(&two)), ..cqe(0, &two, 1) });
        b.complete(Cqe64 {
            srqn_uidx: Be32::new(srq.uidx()),
            sop_drop_qpn: Be32::new(0x99),
            ..cqe(2, &two, 5)
        });
        if version == CqeVersion::V1 {
            b.complete(cqe(2, &two, 6));
        }
        let ids = b.poll(9).unwrap();
        assert_eq!(ids[..4], [send_id(0xa1, 3), recv_id(0xa1, 0), send_id(0xa2, 1), recv_id(0xd01, 5)]);
        assert_eq!(b.consumed(), b.producer);
        b.shared.detach_srq(&srq);
        b.complete(Cqe64 {
            srqn_uidx: Be32::new(srq.uidx()),
            sop_drop_qpn: Be32::new(0x99),
            ..cqe(2, &two, 5)
        });
        assert_eq!(b.poll(9), Err(PollError::Corrupt), "written after the SRQ was removed");
    }
}

/// An entry about the signature of a key (`struct mlx5_sigerr_cqe` of libmlx5).
fn signature_error(key: u32) -> Cqe64 {
    let mut bytes = [0; 64];
    for (at, word) in [(16, 0x1111_2222), (20, 0x3333_4444), (24, 0x5555_6666), (28, 0x7777_8888_u32)] {
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
    }
    // The syndrome of a guard, a block's signature, in memory.
    bytes[32..36].copy_from_slice(&[0x20, 0, 0, 1]);
    bytes[36..40].copy_from_slice(&key.to_be_bytes());
    bytes[40..48].copy_from_slice(&516_u64.to_be_bytes());
    bytes[63] = 12 << 4;
    zerocopy::transmute!(bytes)
}

#[test]
fn an_error_of_a_signature_is_stored_with_its_key_and_is_no_completion() {
    use crate::shared::mkey::{MkeyShared, RawError};
    let error_of = |mkey: &MkeyShared| {
        let signature = *mkey.signature.as_ref().unwrap().0.lock().unwrap();
        (signature.errors, signature.counts, signature.error)
    };
    let mut b = bench(8, 64, CqeVersion::V1);
    let qp = b.qp(7, None);
    let mkey = Arc::new(MkeyShared::new(0x1234_5600, 4, Some([1, 2])));
    b.mkeys.add(&mkey);
    b.complete(signature_error(0x1234_5677));
    b.complete(cqe(0, &qp, 0));
    assert_eq!(b.poll(8), Ok(vec![send_id(7, 0)]));
    let found = RawError {
        syndrome: 0x2000,
        sig_type: 0,
        domain: 1,
        expected: 0x1111_2222_5555_6666,
        actual: 0x3333_4444_7777_8888,
        offset: 516,
    };
    assert_eq!(error_of(&mkey), (2, true, Some(found)));
    // Of a key that does not exist, and of one that was destroyed: nothing.
    b.complete(signature_error(0x9999_9900));
    drop(mkey);
    b.complete(signature_error(0x1234_5600));
    assert_eq!(b.poll(8), Ok(vec![]));
    assert_eq!(b.consumed(), 4);
    // A reset of a QP does not remove it, also if its first bytes are like the QP's number.
    let mkey = Arc::new(MkeyShared::new(0x1234_5600, 4, Some([1, 2])));
    b.mkeys.add(&mkey);
    b.complete(signature_error(0x1234_5600));
    let one = b.qp(1, None);
    b.complete(Cqe64 { srqn_uidx: Be32::new(one.uidx), ..cqe(0, &one, 0) });
    b.shared.reset_qp(&one);
    assert_eq!(b.poll(8), Ok(vec![]));
    assert!(error_of(&mkey).2.is_some());
}

#[test]
fn an_error_does_not_lose_the_completions_before_it() {
    let mut b = bench(8, 64, CqeVersion::V1);
    let qp = b.qp(7, None);
    b.complete(cqe(0, &qp, 0));
    b.complete(Cqe64 { srqn_uidx: Be32::new(0x1234), ..cqe(0, &qp, 0) });
    b.complete(cqe(0, &qp, 1));
    assert_eq!(b.poll(8), Ok(vec![send_id(7, 0)]));
    assert_eq!(b.consumed(), 2);
    assert_eq!(b.poll(8), Err(PollError::Corrupt));
    assert_eq!(b.poll(8), Ok(vec![send_id(7, 1)]));
    // Kinds that the driver does not request, and an SRQ element that does not exist.
    let shared = Arc::new(srq(1));
    let other = b.qp(8, Some(shared));
    for bad in [cqe(6, &qp, 0), cqe(11, &qp, 0), cqe(9, &qp, 0), cqe(2, &other, 16)] {
        b.complete(bad);
        assert_eq!(b.queue.start_poll(), Err(PollError::Corrupt));
        assert_eq!(b.queue.start_poll(), Err(PollError::Empty));
    }
    b.complete(cqe(5, &qp, 0));
    b.complete(cqe(0, &qp, 2));
    assert_eq!(b.poll(8), Ok(vec![send_id(7, 2)]), "the mark of a resize is no completion");
}

#[test]
fn the_fields_of_an_extended_poll_are_those_of_the_entry() {
    let mut b = bench(8, 64, CqeVersion::V1);
    let qp = b.qp(0xa1_b2c3, None);
    b.complete(Cqe64 {
        flags_rqpn: Be32::new(0x1512_3456),
        imm_inval_pkey: Be32::new(0xc1c2_c3c4),
        slid: Be16::new(0x5657),
        ml_path: 0xd1,
        byte_cnt: Be32::new(100),
        timestamp: Be64::new(77),
        ..cqe(4, &qp, 0)
    });
    b.queue.start_poll().unwrap();
    let c = b.queue.current().unwrap();
    assert_eq!((c.imm_data_or_invalidated_rkey(), c.wc_flags().bits()), (0xc1c2_c3c4, 8 | 1));
    assert_eq!((c.slid(), c.sl(), c.src_qp(), c.dlid_path_bits()), (0x5657, 5, 0x12_3456, 0x51));
    assert_eq!((c.completion_ts(), c.cvlan(), c.flow_tag()), (Some(77), None, None));
    assert_eq!((c.byte_len(), c.opcode(), c.vendor_err()), (100, WcOpcode::RECV, 0));
    assert_eq!(b.queue.next_poll(), Err(PollError::Empty));
    assert_eq!(b.queue.poll_cq(&mut [WorkCompletion::default()]), Err(PollError::SessionOpen));
    assert_eq!(b.consumed(), 0);
    b.queue.end_poll();
    assert_eq!((b.consumed(), b.queue.next_poll()), (1, Err(PollError::NoSession)));
    assert!(b.queue.current().is_none());
    let c = b.queue.last().unwrap();
    assert_eq!((c.byte_len(), c.opcode(), c.completion_ts()), (100, WcOpcode::RECV, Some(77)));
    let err = ErrCqe {
        srqn: Be32::new(qp.uidx),
        s_wqe_opcode_qpn: Be32::new(qp.qp_num),
        vendor_err_synd: 0x88,
        syndrome: 0x13,
        op_own: 0xd0,
        ..ErrCqe::default()
    };
    b.complete(err.into());
    let mut wc = [WorkCompletion::default(); 2];
    assert_eq!(b.queue.poll_cq(&mut wc), Ok(1));
    assert_eq!((wc[0].status, wc[0].vendor_err, wc[0].qp_num), (WcStatus::REM_ACCESS_ERR, 0x88, 0xa1_b2c3));
}

#[test]
fn valid_checksums_are_reported_if_the_qp_and_its_port_compute_them() {
    for (qp_may, port_does) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut b = bench(8, 64, CqeVersion::V1);
        let qp = b.qp_with(0xa1, None, |qp| if qp_may { qp.with_checksums() } else { qp });
        qp.set_csum(port_does);
        // The first entry of a QP and the next one take different paths.
        for i in 0..2 {
            b.complete(Cqe64 { hds_ip_ext: 6, l4_hdr_type_etc: 2 << 2, ..cqe(2, &qp, i) });
        }
        let mut wc = [WorkCompletion::default(); 2];
        assert_eq!(b.queue.poll_cq(&mut wc), Ok(2));
        let reported = wc.map(|wc| wc.wc_flags.contains(WcFlags::IP_CSUM_OK));
        assert_eq!(reported, [qp_may && port_does; 2], "{qp_may}, {port_does}");
    }
}

#[test]
fn requests_for_events_ring_the_doorbell_with_the_event_count() {
    let mut b = bench(8, 64, CqeVersion::V1);
    let qp = b.qp(1, None);
    b.complete(cqe(0, &qp, 0));
    b.poll(1).unwrap();
    b.queue.req_notify(false).unwrap();
    b.shared.event();
    b.queue.req_notify(true).unwrap();
    let want = [(0x20, [0, 0, 0, 1, 0, 0, 4, 1]), (0x20, [0x11, 0, 0, 1, 0, 0, 4, 1])];
    assert_eq!(*b.port.0.lock().unwrap(), want);
    assert_eq!(b.shared.dbrec().word(1).load(Relaxed).to_ne_bytes(), [0x11, 0, 0, 1]);
}

#[test]
fn a_destroyed_qp_has_no_entries_and_its_index_is_free() {
    let mut b = bench(8, 64, CqeVersion::V1);
    let (dead, alive) = (b.qp(1, None), b.qp(2, None));
    for i in 0..3 {
        b.complete(cqe(0, &dead, i));
        b.complete(cqe(2, &alive, i));
    }
    b.shared.detach_qp(&dead);
    assert_eq!(b.consumed(), 3, "the control call returns the room to the device");
    let index = dead.uidx;
    drop(dead);
    let again = b.qp(3, None);
    assert_eq!(again.uidx, index);
    let ids = b.poll(8).unwrap();
    assert_eq!(ids, [recv_id(2, 0), recv_id(2, 1), recv_id(2, 2)]);
    assert_eq!(b.consumed(), 6);
}

#[test]
fn a_reset_during_an_extended_poll_keeps_the_current_completion() {
    let mut b = bench(4, 128, CqeVersion::V1);
    let srq = Arc::new(srq(5));
    let (qp, other) = (b.qp(1, Some(Arc::clone(&srq))), b.qp(2, None));
    b.complete(cqe(0, &other, 1));
    b.complete(cqe(2, &qp, 9));
    b.complete(cqe(14, &qp, 4));
    b.queue.start_poll().unwrap();
    b.shared.reset_qp(&qp);
    assert_eq!(b.consumed(), 0, "the current entry is not given back");
    b.complete(cqe(0, &qp, 0));
    assert_eq!(b.queue.current().unwrap().wr_id(), send_id(2, 1));
    b.queue.next_poll().unwrap();
    assert_eq!(b.queue.current().unwrap().wr_id(), send_id(1, 0));
    b.queue.end_poll();
    assert_eq!((b.queue.start_poll(), b.consumed()), (Err(PollError::Empty), 4));
    let free: Vec<_> = (0..16).filter(|i| srq.is_done(*i)).collect();
    assert_eq!(free, [4, 9]);
}

#[test]
fn a_reset_in_a_callback_ends_the_completions_of_the_qp() {
    let mut b = bench(8, 64, CqeVersion::V1);
    let (qp, other) = (b.qp(1, None), b.qp(2, None));
    for i in 0..3 {
        b.complete(cqe(0, &qp, i));
        b.complete(cqe(0, &other, i));
    }
    for by_another_thread in [true, false] {
        let (shared, mut ids) = (Arc::clone(&b.shared), Vec::new());
        let mut poll = || {
            b.queue.poll_each(8, |c| {
                ids.push(c.wr_id());
                if by_another_thread {
                    std::thread::scope(|s| s.spawn(|| shared.reset_qp(&qp)).join().unwrap());
                } else {
                    shared.reset_qp(&qp);
                }
            })
        };
        while poll().unwrap() != 0 {}
        let want = if by_another_thread {
            vec![send_id(1, 0), send_id(2, 0), send_id(2, 1), send_id(2, 2)]
        } else {
            vec![]
        };
        assert_eq!(ids, want);
        assert_eq!(b.consumed(), 6);
    }
}

#[test]
fn a_qp_destroyed_during_a_resize_has_no_entries_in_either_ring() {
    for (marked, version) in
        [(false, CqeVersion::V1), (true, CqeVersion::V1), (false, CqeVersion::V0), (true, CqeVersion::V0)]
    {
        let mut b = bench(8, 64, version);
        // The mark has user index 0, which is also that of the first QP.
        let (dead, alive) = (b.qp(0, None), b.qp(2, None));
        let complete = |b: &mut Bench, qp: &QpShared, i| {
            let number = if version == CqeVersion::V1 { qp.uidx } else { 0 };
            b.complete(Cqe64 { srqn_uidx: Be32::new(number), ..cqe(0, qp, i) });
        };
        complete(&mut b, &dead, 0);
        complete(&mut b, &alive, 0);
        complete(&mut b, &dead, 1);
        let buf = QueueBuf::new(16 * 64).unwrap();
        let ring = CqRing::new(Arc::clone(&buf), 16, 64).unwrap();
        ring.clear();
        assert!(b.shared.begin_resize(ring.clone()));
        if !marked {
            b.shared.detach_qp(&dead);
        }
        b.complete(Cqe64 { op_own: 0x50, ..Cqe64::default() });
        b.buf = buf;
        let write_new = |b: &mut Bench, qp: &QpShared, i| {
            let number = if version == CqeVersion::V1 { qp.uidx } else { 0 };
            let mut entry = Cqe64 { srqn_uidx: Be32::new(number), ..cqe(0, qp, i) };
            entry.op_own |= u8::from(b.producer & 16 != 0);
            words(&b.buf, (b.producer & 15) as usize * 64, entry.as_bytes());
            b.producer += 1;
        };
        if marked {
            write_new(&mut b, &dead, 2);
        }
        write_new(&mut b, &alive, 1);
        if marked {
            write_new(&mut b, &dead, 3);
            b.shared.detach_qp(&dead);
        }
        write_new(&mut b, &alive, 2);
        // The end of a resize after the kernel has given the ring to the device.
        assert_eq!(b.queue.finish_resize(ring), Ok(()));
        assert_eq!(b.poll(16), Ok(vec![send_id(2, 0), send_id(2, 1), send_id(2, 2)]));
        assert_eq!(b.consumed(), b.producer);
    }
}

#[test]
fn a_poll_whose_callback_panics_returns_the_consumed_entries() {
    let mut b = bench(8, 64, CqeVersion::V1);
    let qp = b.qp(1, None);
    (0..3).for_each(|i| b.complete(cqe(0, &qp, i)));
    let mut n = 0;
    let poll = core::panic::AssertUnwindSafe(|| {
        b.queue.poll_each(8, |_| {
            n += 1;
            assert!(n < 2, "on purpose");
        })
    });
    assert!(std::panic::catch_unwind(poll).is_err());
    assert_eq!(b.consumed(), 2);
    assert_eq!(b.poll(8), Ok(vec![send_id(1, 2)]));
}

#[test]
fn a_resize_without_its_mark_loses_the_queue() {
    let mut b = bench(4, 64, CqeVersion::V1);
    let qp = b.qp(1, None);
    b.complete(cqe(0, &qp, 0));
    let ring = || CqRing::new(QueueBuf::new(4096).unwrap(), 16, 64).unwrap();
    b.queue.start_poll().unwrap();
    assert_eq!(b.queue.replace_ring(ring()), Err(PollError::SessionOpen));
    b.queue.end_poll();
    assert_eq!(b.queue.replace_ring(ring()), Err(PollError::Corrupt));
    assert_eq!(b.poll(1), Err(PollError::Corrupt));
    assert_eq!(b.poll(1), Err(PollError::Corrupt), "every later poll, too");
}

#[test]
fn a_poll_during_a_destroy_reports_the_first_completions_or_none() {
    let mut b = bench(64, 64, CqeVersion::V1);
    let ended = AtomicU64::new(0);
    let shared = Arc::clone(&b.shared);
    for round in 0..200_u32 {
        let qp = b.qp(1000 + round, None);
        (0..10).for_each(|i| b.complete(cqe(0, &qp, i)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                shared.detach_qp(&qp);
                ended.fetch_add(1, Relaxed);
            });
            let ids = b.poll(64).unwrap();
            // The completions that were polled before the destroy, from the first one on.
            let want: Vec<_> = (0..ids.len() as u32).map(|i| send_id(1000 + round, i)).collect();
            assert_eq!(ids, want);
        });
        assert_eq!(b.poll(64), Ok(vec![]), "round {round}");
        assert_eq!(b.consumed(), b.producer & 0xff_ffff);
    }
    assert_eq!(ended.load(Relaxed), 200);
}
