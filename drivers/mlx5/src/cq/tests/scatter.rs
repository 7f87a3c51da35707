// SPDX-License-Identifier: MIT OR Apache-2.0
//! Data in completions, from a correct device and from one that reports wrong completions.
#![expect(unsafe_code)]
// UNSAFETY: posts receives; each test keeps their memory.

use super::*;
use crate::{RecvConfig, RecvQueue, Sge, SharedRecvQueue};
use uverbs_core::attr::QpType;
use uverbs_core::provider::{RecvBatch, RecvQueue as _, WireSge as _};

trait Scattered {
    fn scattered(self) -> Self;
}

impl Scattered for Cqe64 {
    fn scattered(self) -> Self {
        Self { op_own: self.op_own | 4, ..self }
    }
}

#[test]
fn data_of_a_qp_destroyed_during_the_poll_are_not_copied() {
    let mut b = bench(8, 64, CqeVersion::V1);
    let qp = b.qp(1, None);
    b.poll(1).unwrap();
    let mut memory = [0_u8; 16];
    let addr = memory.as_mut_ptr().expose_provenance() as u64;
    let rq = qp.rq.as_ref().unwrap();
    words(rq.ring.buf(), 0, DataSeg::new(16, 1, addr).as_bytes());
    let other = b.qp(2, None);
    b.complete(cqe(0, &other, 0));
    b.complete(Cqe64 { rsvd4: [7; 13], byte_cnt: Be32::new(16), ..cqe(2, &qp, 0) }.scattered());
    // The QP is destroyed in the callback for the completion before.
    let shared = Arc::clone(&b.shared);
    let n = b.queue.poll_each(8, |_| shared.detach_qp(&qp)).unwrap();
    assert_eq!((n, memory), (1, [0; 16]));
    assert_eq!(b.poll(8), Ok(vec![]));
}

#[test]
fn data_in_a_completion_are_copied_to_the_scatter_entries() {
    for size in [64, 128] {
        let mut b = bench(8, size, CqeVersion::V1);
        let qp = b.qp(1, None);
        let mut memory = [[0_u8; 8]; 3];
        let addr = memory.each_mut().map(|m| m.as_mut_ptr().expose_provenance() as u64);
        let sq = qp.sq.as_ref().unwrap();
        // A read at the last block, whose second scatter entry is at the ring's start.
        let read = |opcode: u8, ds: u8| {
            let mut block = [0_u8; 64];
            (block[3], block[7]) = (opcode, ds);
            block[32..48].copy_from_slice(DataSeg::new(8, 1, addr[0]).as_bytes());
            block[48..].copy_from_slice(DataSeg::new(8, 0x300, addr[1]).as_bytes());
            block
        };
        words(sq.ring.buf(), (BLOCKS as usize - 1) * 64, &read(0x10, 5));
        words(sq.ring.buf(), 0, DataSeg::new(8, 1, addr[2]).as_bytes());
        let mut done = cqe(0, &qp, BLOCKS - 1).scattered();
        done.sop_drop_qpn = Be32::new(0x10 << 24 | 1);
        done.byte_cnt = Be32::new(20);
        done.rsvd0 = [1, 2];
        done.rsvd4 = [3; 13];
        done.ml_path = 4;
        done.rsvd20 = [5; 4];
        // First the correct completion; then data that do not fit, a send with data, data before the entry, and a WR that
        // has completed.
        b.complete(done);
        assert_eq!(b.queue.poll_cq(&mut [WorkCompletion::default()]), Ok(1));
        assert_eq!(memory, [[1, 2, 0, 0, 3, 3, 3, 3], [0; 8], [3, 4, 5, 5, 0, 0, 0, 0]]);
        let mut again = |change: &dyn Fn(&mut Cqe64), block: [u8; 64]| {
            qp.set_state(QpState::RESET);
            qp.set_state(QpState::RTS);
            words(sq.ring.buf(), (BLOCKS as usize - 1) * 64, &block);
            let mut cqe = done;
            change(&mut cqe);
            b.complete(cqe);
            let mut wc = [WorkCompletion::default()];
            assert_eq!(b.queue.poll_cq(&mut wc), Ok(1));
            wc[0].status
        };
        assert_eq!(again(&|_| {}, read(0x10, 3)), WcStatus::LOC_LEN_ERR, "one entry of 8");
        assert_eq!(
            again(&|c| c.byte_cnt = Be32::new(33), read(0x10, 5)),
            WcStatus::LOC_LEN_ERR,
            "32 at most"
        );
        assert_eq!(again(&|_| {}, read(0x0a, 5)), WcStatus::REM_INV_REQ_ERR);
        let before = again(&|c| c.op_own = c.op_own & !0xc | 8, read(0x10, 5));
        let want = if size == 128 { WcStatus::SUCCESS } else { WcStatus::GENERAL_ERR };
        assert_eq!(before, want, "data before the entry");
        b.complete(done);
        let mut wc = [WorkCompletion::default()];
        assert_eq!(b.queue.poll_cq(&mut wc), Ok(1));
        assert_eq!(wc[0].status, WcStatus::GENERAL_ERR, "that WR is done");
    }
}

/// Completions with data for a receive that has completed already, that was written but not published, or that was posted
/// before a reset are `GENERAL_ERR` and write no memory.
#[test]
fn data_for_a_receive_that_is_not_outstanding_are_discarded() {
    for with_srq in [false, true] {
        let mut b = bench(8, 64, CqeVersion::V1);
        let ring = || StrideRing::new(QueueBuf::new(4096).unwrap(), 0, 16, 64).unwrap();
        let srq = with_srq.then(|| Arc::new(SrqShared::new(9, ring(), 8).unwrap()));
        let rq = (!with_srq).then(|| Arc::new(RqShared::new(ring())));
        let qp =
            QpShared::new(qp_access(), 1, 1, None, rq, srq.clone()).with_index(b.indices.take().unwrap());
        let qp = Arc::new(qp.with_data_in_completions());
        qp.set_state(QpState::RTS);
        b.shared.attach_qp(&qp);
        let record = Arc::new(DbRecPages::default().alloc().unwrap());
        let config = RecvConfig { qp_type: QpType::Rc, max_recv_wr: 8, max_recv_sge: 2, max_msg_sz: 1 << 30 };
        let mut own = RecvQueue::new(&config, Arc::clone(&qp), record.recv_word());
        let mut shared =
            srq.map(|srq| SharedRecvQueue::new(srq, cq_access(), 2, 1 << 30, record.recv_word()));
        let mut memory = [0_u8; 16];
        let sge = Sge::new(memory.as_mut_ptr().expose_provenance() as u64, 16, 1).unwrap();
        let mut post = |complete: bool| {
            /// # Safety
            /// `sge` must name memory that is valid for writes until the receive completes.
            unsafe fn one<B: RecvBatch<Sge = Sge>>(mut batch: B, sge: Sge, complete: bool) {
                // SAFETY: the memory of `sge` is valid until the receive completes (the contract of this function).
                unsafe { batch.push(5, &[sge]) };
                if complete {
                    batch.complete().unwrap();
                }
            }
            match (&mut own, &mut shared) {
                // SAFETY: `memory` lives until the end of the iteration, after which no completion is polled.
                (Some(queue), _) => unsafe { one(queue.batch(), sge, complete) },
                // SAFETY: `memory` lives until the end of the iteration, after which no completion is polled.
                (None, Some(queue)) => unsafe { one(queue.batch(), sge, complete) },
                (None, None) => unreachable!(),
            }
        };
        let mut report = |index: u32| {
            memory = [0; 16];
            b.complete(Cqe64 { rsvd4: [7; 13], byte_cnt: Be32::new(16), ..cqe(2, &qp, index) }.scattered());
            let mut wc = [WorkCompletion::default()];
            assert_eq!(b.queue.poll_cq(&mut wc), Ok(1));
            (wc[0].status, memory != [0; 16])
        };
        post(true);
        assert_eq!(report(0), (WcStatus::SUCCESS, true));
        assert_eq!(report(0), (WcStatus::GENERAL_ERR, false), "twice");
        post(false);
        assert_eq!(report(1), (WcStatus::GENERAL_ERR, false), "not posted");
        if !with_srq {
            qp.set_state(QpState::RESET);
            record.set_recv(0);
            qp.set_state(QpState::RTS);
            post(true);
            record.set_recv(1);
            qp.set_state(QpState::RESET);
            assert_eq!(report(0), (WcStatus::GENERAL_ERR, false), "reset");
            record.set_recv(0);
            qp.set_state(QpState::INIT);
            assert_eq!(report(0), (WcStatus::GENERAL_ERR, false), "posted before a reset");
        }
    }
}

/// Data for a QP without data in completions are not copied: the address of a scatter entry need not be a pointer then.
#[test]
fn data_of_a_qp_without_the_feature_are_discarded() {
    for with_srq in [false, true] {
        let mut b = bench(8, 64, CqeVersion::V1);
        let ring = || StrideRing::new(QueueBuf::new(4096).unwrap(), 0, 16, 64).unwrap();
        let srq = with_srq.then(|| Arc::new(SrqShared::new(9, ring(), 8).unwrap()));
        let rq = (!with_srq).then(|| Arc::new(RqShared::new(ring())));
        let sq = Arc::new(SqShared::new(SqRing::new(QueueBuf::new(4096).unwrap(), 0, BLOCKS).unwrap()));
        let index = b.indices.take().unwrap();
        let qp = Arc::new(QpShared::new(qp_access(), 1, 1, Some(sq), rq, srq.clone()).with_index(index));
        qp.set_state(QpState::RTS);
        b.shared.attach_qp(&qp);
        let record = Arc::new(DbRecPages::default().alloc().unwrap());
        let config = RecvConfig { qp_type: QpType::Rc, max_recv_wr: 8, max_recv_sge: 2, max_msg_sz: 1 << 30 };
        let mut memory = [0_u8; 16];
        let addr = memory.as_mut_ptr().expose_provenance() as u64;
        let sge = Sge::new(addr, 16, 1).unwrap();
        match srq {
            // SAFETY: `memory` lives until the end of the iteration, after which no completion is polled.
            Some(srq) => unsafe {
                SharedRecvQueue::new(srq, cq_access(), 2, 1 << 30, record.recv_word()).post(5, &[sge])
            },
            // SAFETY: `memory` lives until the end of the iteration, after which no completion is polled.
            None => unsafe {
                RecvQueue::new(&config, Arc::clone(&qp), record.recv_word()).unwrap().post(5, &[sge])
            },
        }
        .unwrap();
        let data = |kind| Cqe64 { rsvd4: [7; 13], byte_cnt: Be32::new(16), ..cqe(kind, &qp, 0) }.scattered();
        b.complete(data(2));
        // The second completion is that of a read at the first block.
        let sq = qp.sq.as_ref().unwrap();
        let mut block = [0_u8; 64];
        (block[3], block[7]) = (0x10, 3);
        block[32..48].copy_from_slice(DataSeg::new(16, 1, addr).as_bytes());
        words(sq.ring.buf(), 0, &block);
        record.set_send(1);
        sq.published_by(record.send_word());
        b.complete(Cqe64 { sop_drop_qpn: Be32::new(0x10 << 24 | 1), ..data(0) });
        let mut wc = [WorkCompletion::default(); 2];
        assert_eq!(b.queue.poll_cq(&mut wc), Ok(2));
        assert_eq!(wc.map(|wc| wc.status), [WcStatus::GENERAL_ERR; 2]);
        assert_eq!(memory, [0; 16]);
    }
}
