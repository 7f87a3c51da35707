// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random sequences of calls, compared with models of the queues: posts through every interface, aborts, completions,
//! wrap-around, full queues.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs; no device reads or writes the memory that they name.

use crate::testing::{BLUE_FLAME, Receives, Sends, SharedReceives, element, send_config};
use crate::{Ah, RecvConfig, Remote, Sge};
use proptest::prelude::*;
use std::collections::VecDeque;
use uverbs_core::attr::{QpState, QpType};
use uverbs_core::provider::{
    Op, PostError, RecvBatch as _, RecvQueue as _, RemoteAddr, SendBatch as _, SendQueue as _,
    WireRemote as _, WireSge as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::{RawAh, RecvWr, SendFlags};
use uverbs_mlx5_hw::wqe::{
    CtrlSeg, DataSeg, InlineSeg, MLX5_INVALID_LKEY, MLX5_WQE_CTRL_CQ_UPDATE, MLX5_WQE_CTRL_FENCE, RaddrSeg,
};
use uverbs_mlx5_hw::{Be32, Be64};
use uverbs_testkit::{self as testkit, Face, OwnedData, OwnedDest, OwnedRequest, Refused, build, push};
use zerocopy::IntoBytes as _;

/// The WR that is posted.
#[derive(Clone, Copy, Debug)]
enum What {
    Write,
    SendOf(u8),
    Inline,
    Inv,
    Fenced,
}

#[derive(Clone, Debug)]
enum Step {
    Post(Face, Vec<What>),
    Abort(Face, u8),
    Retire(u8),
    Reset,
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        4 => Just(What::Write),
        3 => (0_u8..5).prop_map(What::SendOf),
        2 => Just(What::Inline),
        1 => Just(What::Inv),
        1 => Just(What::Fenced),
    ]
}

fn face() -> impl Strategy<Value = Face> {
    prop::sample::select(Face::ALL.to_vec())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (face(), proptest::collection::vec(what(), 1..6)).prop_map(|(f, w)| Step::Post(f, w)),
        1 => (face(), 0_u8..4).prop_map(|(f, n)| Step::Abort(f, n)),
        4 => (1_u8..20).prop_map(Step::Retire),
        1 => Just(Step::Reset),
    ]
}

const DATA: [u8; 32] = [0xd7; 32];

impl What {
    fn flags(self) -> SendFlags {
        if matches!(self, Self::Fenced) { SendFlags::FENCE } else { SendFlags::SIGNALED }
    }
    /// Opcode and units of the WQE.
    fn wqe(self) -> (u8, u32) {
        match self {
            Self::Write | Self::Fenced => (0x08, 3),
            Self::SendOf(n) => (0x0a, 1 + u32::from(n)),
            Self::Inline => (0x08, 2 + 3),
            Self::Inv => (0x25, 8),
        }
    }
    /// The bytes of the WQE at index 1; of an invalidation, only the control segment.
    fn bytes(self) -> Vec<u8> {
        let (opcode, units) = self.wqe();
        let imm = if matches!(self, Self::Inv) { 5 } else { 0 };
        let fm_ce_se =
            if matches!(self, Self::Fenced) { MLX5_WQE_CTRL_FENCE } else { MLX5_WQE_CTRL_CQ_UPDATE };
        let ctrl = CtrlSeg::new(0, 1, opcode, 0xa1_b2c3, units as u8, fm_ce_se, Be32::new(imm));
        let raddr = RaddrSeg { raddr: Be64::new(0xbeef), rkey: Be32::new(9), reserved: Be32::new(0) };
        let entry = |i: u8| DataSeg::new(64, 7, 0x1000 * u64::from(i)).as_bytes().to_vec();
        let rest = match self {
            Self::Write | Self::Fenced => [raddr.as_bytes(), &entry(0)].concat(),
            Self::SendOf(n) => (0..n).flat_map(entry).collect(),
            Self::Inline => [raddr.as_bytes(), InlineSeg::new(32).as_bytes(), &DATA].concat(),
            Self::Inv => Vec::new(),
        };
        [ctrl.as_bytes(), &rest].concat()
    }
}

/// The lengths of the entries of a receive.
fn receive() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(prop_oneof![1 => Just(0), 3 => 1_u32..4096], 0..=2)
}

fn sges_of(lengths: &[u32]) -> Vec<Sge> {
    lengths.iter().map(|length| Sge::new(0x2000, *length, 7).unwrap()).collect()
}

/// The first bytes of a receive in an element with room for two entries.
fn receive_bytes(lengths: &[u32]) -> Vec<u8> {
    let entries =
        lengths.iter().filter(|length| **length != 0).map(|length| DataSeg::new(*length, 7, 0x2000));
    let end = DataSeg::new(0, MLX5_INVALID_LKEY, 0);
    entries.chain([end]).take(2).flat_map(|entry| entry.as_bytes().to_vec()).collect()
}

fn sges(n: u8) -> Vec<Sge> {
    (0..n).map(|i| Sge::new(0x1000 * u64::from(i), 64, 7).unwrap()).collect()
}

impl What {
    fn request(self, wr_id: u64) -> OwnedRequest<'static, RawAh<Ah>> {
        let entry = |i: u8| uverbs_core::wr::Sge { addr: 0x1000 * u64::from(i), length: 64, lkey: 7 };
        let remote = RemoteAddr { addr: 0xbeef, rkey: 9 };
        let (op, data) = match self {
            Self::Write | Self::Fenced => (Op::Write(remote), OwnedData::Sges(vec![entry(0)])),
            Self::SendOf(n) => (Op::Send, OwnedData::Sges((0..n).map(entry).collect())),
            Self::Inline => (Op::Write(remote), OwnedData::Inline(vec![DATA.to_vec()])),
            Self::Inv => (Op::LocalInv(5), OwnedData::None),
        };
        OwnedRequest { wr_id, flags: self.flags(), op, data, to: OwnedDest::Peer }
    }

    /// Calls `f` with the WR, with arrays of constant length where it has any.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn with_wr<R>(self, wr_id: u64, f: impl FnOnce(&Wr<'_, Ah, Sge, Remote>) -> R) -> R {
        let (remote, one) = (Remote::new(0xbeef, 9), [Sge::new(0, 64, 7).unwrap()]);
        let wr = |op| Wr::new(wr_id, op).flags(self.flags());
        match self {
            Self::Write | Self::Fenced => f(&wr(Op::Write(remote)).sges(&one)),
            Self::SendOf(n) => f(&wr(Op::Send).sges(&sges(n))),
            Self::Inline => f(&wr(Op::Write(remote)).inline(&DATA)),
            Self::Inv => f(&wr(Op::LocalInv(5))),
        }
    }
}

/// Posts through an interface. Returns the number of WRs posted, and the error.
fn post(s: &mut Sends, face: Face, all: &[What], first_id: u64) -> (usize, Result<(), PostError>) {
    let queue = &mut s.queue;
    let result = match face {
        Face::Single => all.iter().zip(first_id..).enumerate().try_for_each(|(i, (what, wr_id))| {
            // SAFETY: there is no device that would read the memory.
            let posted = what.with_wr(wr_id, |wr| unsafe { queue.post(wr) });
            posted.map_err(|error| Refused::new(error, Some(i)))
        }),
        Face::Batch => {
            let mut batch = queue.batch();
            for (what, wr_id) in all.iter().zip(first_id..) {
                // SAFETY: there is no device that would read the memory.
                what.with_wr(wr_id, |wr| unsafe { batch.push(wr) });
            }
            batch.complete().map_err(Refused::from)
        }
        Face::List | Face::Builder => {
            let all: Vec<_> = all.iter().zip(first_id..).map(|(what, wr_id)| what.request(wr_id)).collect();
            // SAFETY: there is no device that would read the memory.
            OwnedRequest::with_wrs(&all, |all| unsafe { testkit::post(queue, face, all) })
        }
    };
    match result {
        Ok(()) => (all.len(), Ok(())),
        Err(Refused { error, bad }) => (bad.unwrap_or(0), error.map_or(Ok(()), Err)),
    }
}

/// A WQE that is posted and has not completed.
struct Posted {
    wr_id: u64,
    block: u32,
}

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut config = send_config(QpType::Rc);
    (config.max_send_wr, config.max_send_sge) = (8, 4);
    let mut s = Sends::new(&config, 32, BLUE_FLAME);
    let (mut at, mut ids, mut fence) = (0_u32, 0_u64, false);
    let mut posted: VecDeque<Posted> = VecDeque::new();
    for step in steps {
        match step {
            Step::Post(face, all) => {
                let room = 8 - posted.len();
                let (n, result) = post(&mut s, *face, all, ids);
                let whole = matches!(face, Face::Batch | Face::Builder);
                let expected = if all.len() <= room {
                    all.len()
                } else if whole {
                    0
                } else {
                    room
                };
                prop_assert_eq!(n, expected);
                let full = if n == all.len() { Ok(()) } else { Err(PostError::QueueFull) };
                prop_assert_eq!(result, full);
                let rings = s.bell.take();
                let each = if *face == Face::Single { n } else { usize::from(n != 0) };
                prop_assert_eq!(rings.len(), each);
                for (i, w) in all[..n].iter().enumerate() {
                    let (opcode, ds) = w.wqe();
                    let wqe = s.blocks(at, ds.div_ceil(4));
                    prop_assert_eq!(&wqe[..4], &[0, (at >> 8) as u8, at as u8, opcode]);
                    prop_assert_eq!(&wqe[4..8], &[0xa1, 0xb2, 0xc3, ds as u8]);
                    let fm = match w {
                        What::Fenced => 0x80,
                        _ if fence => 0x28,
                        _ => 0x08,
                    };
                    prop_assert_eq!(wqe[11], fm, "{:?} after a local operation: {}", w, fence);
                    fence = matches!(w, What::Inv);
                    posted.push_back(Posted { wr_id: ids + i as u64, block: at });
                    at += ds.div_ceil(4);
                }
                ids += n as u64;
                if n != 0 {
                    prop_assert_eq!(s.posted(), at & 0xffff);
                }
            }
            Step::Abort(face, n) => {
                let all = (0..*n).map(|_| What::Write.request(0)).collect::<Vec<_>>();
                OwnedRequest::with_wrs(&all, |all| {
                    if *face == Face::Builder {
                        s.queue.wr_start();
                        // SAFETY: the session is aborted, so nothing is posted.
                        all.iter().for_each(|wr| unsafe { build(&mut s.queue, wr) });
                        s.queue.wr_abort();
                    } else {
                        let mut batch = s.queue.batch();
                        // SAFETY: the batch is dropped, so nothing is posted.
                        all.iter().for_each(|wr| unsafe { push(&mut batch, wr) }.unwrap());
                        drop(batch);
                    }
                });
                prop_assert!(s.bell.take().is_empty());
            }
            // A completion of a WQE retires all before it, too.
            Step::Retire(n) => {
                let n = usize::from(*n).min(posted.len());
                if let Some(last) = posted.drain(..n).next_back() {
                    prop_assert_eq!(s.retire(last.block as u16), last.wr_id);
                }
            }
            Step::Reset => {
                s.qp.set_state(QpState::RESET);
                s.qp.set_state(QpState::RTS);
                (at, fence) = (0, false);
                posted.clear();
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_send_queue_behaves_as_its_model(steps in proptest::collection::vec(step(), 1..60)) {
        run(&steps)?;
    }

    /// A device that reports any WQE at any time causes only errors of posts.
    #[test]
    fn completions_of_wrong_wqes_cause_only_errors(completions in proptest::collection::vec((any::<u16>(), face(), what()), 1..60)) {
        let mut s = Sends::new(&send_config(QpType::Rc), 64, BLUE_FLAME);
        for (counter, face, what) in completions {
            s.retire(counter);
            let (_, result) = post(&mut s, face, &[what], 1);
            prop_assert!(matches!(result, Ok(()) | Err(PostError::QueueFull | PostError::Corrupt)));
        }
    }

    /// The simulated device follows one link per receive: it finds the receives in the order of the posts, whatever the
    /// order of their completions.
    #[test]
    fn a_shared_receive_queue_behaves_as_its_model(
        steps in proptest::collection::vec((proptest::collection::vec(receive(), 0..6), proptest::collection::vec(any::<prop::sample::Index>(), 0..6)), 1..40),
    ) {
        let mut s = SharedReceives::new(8, 64, 2);
        let link = |s: &SharedReceives, at: u32| u32::from(element(&s.srq.ring, at)[3]);
        let (mut device, mut ids) = (0_u32, 0_u64);
        let mut running: Vec<(u32, u64)> = Vec::new();
        for (posts, completions) in steps {
            for lengths in posts {
                // SAFETY: there is no device that would write the memory.
                let result = unsafe { s.queue.post(ids, &sges_of(&lengths)) };
                if running.len() == 7 {
                    prop_assert_eq!(result, Err(PostError::QueueFull));
                    continue;
                }
                prop_assert_eq!(result, Ok(()));
                let bytes = receive_bytes(&lengths);
                prop_assert_eq!(&element(&s.srq.ring, device)[16..][..bytes.len()], bytes);
                running.push((device, ids));
                device = link(&s, device);
                ids += 1;
                prop_assert_eq!(s.posted(), ids as u32 & 0xffff);
            }
            for which in completions {
                if !running.is_empty() {
                    let (at, id) = running.swap_remove(which.index(running.len()));
                    prop_assert_eq!(s.srq.retire(at as u16), id);
                }
            }
            // A batch that is dropped posts nothing, even if it linked elements.
            let mut batch = s.queue.batch();
            // SAFETY: the batch is dropped, so nothing is posted.
            unsafe { batch.push(99, &sges(1)) };
            drop(batch);
        }
    }

    #[test]
    fn a_receive_queue_behaves_as_its_model(
        steps in proptest::collection::vec((proptest::collection::vec(receive(), 0..6), proptest::collection::vec(any::<prop::sample::Index>(), 0..6)), 1..40),
    ) {
        let config = RecvConfig { qp_type: QpType::Rc, max_recv_wr: 8, max_recv_sge: 2, max_msg_sz: 1 << 30 };
        let mut s = Receives::new(&config, 8, 32);
        let mut ids = 0_u64;
        // The ids of all receives since the first one that has not completed; `None` for completed ones.
        let mut window: VecDeque<Option<u64>> = VecDeque::new();
        for (posts, completions) in steps {
            for lengths in posts {
                // SAFETY: there is no device that would write the memory.
                let result = unsafe { s.queue.post(ids, &sges_of(&lengths)) };
                if window.len() == 8 {
                    prop_assert_eq!(result, Err(PostError::QueueFull));
                    continue;
                }
                prop_assert_eq!(result, Ok(()));
                let bytes = receive_bytes(&lengths);
                prop_assert_eq!(&element(&s.rq().ring, ids as u32)[..bytes.len()], bytes);
                window.push_back(Some(ids));
                ids += 1;
                prop_assert_eq!(s.posted(), ids as u32 & 0xffff);
            }
            for which in completions {
                let open: Vec<_> = (0..window.len()).filter(|i| window[*i].is_some()).collect();
                if !open.is_empty() {
                    let id = window[*which.get(&open)].take().unwrap();
                    prop_assert_eq!(s.rq().retire(id as u16), id);
                }
                while window.front().is_some_and(Option::is_none) {
                    window.pop_front();
                }
            }
        }
    }
}

/// A WR has one encoding: a single post, which composes the WQE in registers, writes the bytes that a batch writes.
#[test]
fn every_interface_writes_the_same_bytes() {
    use What::{Fenced, Inline, Inv, SendOf, Write};
    for what in [Write, Fenced, SendOf(0), SendOf(1), SendOf(4), Inline, Inv] {
        let written = |face| {
            let mut s = Sends::new(&send_config(QpType::Rc), 64, BLUE_FLAME);
            s.fill(0xee);
            // Only a queue that was used before posts from registers.
            assert_eq!(post(&mut s, Face::Batch, &[SendOf(1)], 0), (1, Ok(())));
            s.bell.take();
            assert_eq!(post(&mut s, face, &[what], 1), (1, Ok(())));
            let rings = s.bell.take();
            assert_eq!(rings.len(), 1);
            // A burst has whole blocks; the device ignores the bytes after the WQE.
            let len = rings[0].bytes.len().min(what.wqe().1 as usize * 16);
            (s.blocks(1, 3), rings[0].bytes[..len].to_vec())
        };
        let batch = written(Face::Batch);
        assert!(batch.0.starts_with(&what.bytes()), "{what:?}: {batch:x?}");
        for face in [Face::Single, Face::List, Face::Builder] {
            assert_eq!(written(face), batch, "{what:?} by {face:?}");
        }
    }
}

/// The block after the last WQE of a full ring is that of the oldest one, whose record must stay.
#[test]
fn a_full_ring_keeps_the_record_of_each_wr() {
    let mut config = send_config(QpType::Rc);
    (config.max_send_wr, config.max_send_sge, config.max_inline_data) = (8, 2, 0);
    for face in Face::ALL {
        let mut s = Sends::new(&config, 8, BLUE_FLAME);
        assert_eq!(post(&mut s, face, &[What::Write; 8], 0), (8, Ok(())));
        let sq = s.qp.sq.as_ref().unwrap();
        let outstanding: Vec<_> = (0..8).filter(|block| sq.is_outstanding(*block)).collect();
        assert_eq!(outstanding, [0, 1, 2, 3, 4, 5, 6, 7], "{face:?}");
    }
}

#[test]
fn a_wqe_longer_than_the_queue_was_sized_for_counts_as_several() {
    // The queue has one block per WR; an invalidation has two.
    let mut config = send_config(QpType::Rc);
    (config.max_send_wr, config.max_send_sge, config.max_inline_data) = (8, 2, 0);
    let mut s = Sends::new(&config, 8, BLUE_FLAME);
    assert_eq!(post(&mut s, Face::List, &[What::Inv; 5], 0), (4, Err(PostError::QueueFull)));
    assert_eq!(s.posted(), 8);
    assert_eq!(s.retire(2), 1);
    assert_eq!(post(&mut s, Face::Batch, &[What::Write; 5], 9), (0, Err(PostError::QueueFull)));
    assert_eq!(post(&mut s, Face::Batch, &[What::Write; 4], 9), (4, Ok(())));
    assert_eq!(post(&mut s, Face::Builder, &[What::Inv], 9), (0, Err(PostError::QueueFull)));
}

#[test]
fn indices_wrap_at_16_and_at_32_bits() {
    for start in [0xfffe_u32, 0x0fff_fffe, u32::MAX - 1] {
        let mut s = Sends::new(&send_config(QpType::Rc), 64, BLUE_FLAME);
        s.queue.start_at(start);
        for i in 0..5_u32 {
            assert_eq!(post(&mut s, Face::Batch, &[What::Write, What::SendOf(4)], i.into()), (2, Ok(())));
            let at = start.wrapping_add(i * 3);
            assert_eq!(s.blocks(at, 1)[..4], [0, (at >> 8) as u8, at as u8, 8]);
            assert_eq!(s.posted(), at.wrapping_add(3) & 0xffff);
            assert_eq!(s.retire(at.wrapping_add(1) as u16), u64::from(i) + 1);
        }
    }
}

/// Only lengths from 2^31 on are compared with the longest message.
#[test]
fn a_receive_longer_than_the_longest_message_is_refused() {
    let config = RecvConfig { qp_type: QpType::Rc, max_recv_wr: 8, max_recv_sge: 2, max_msg_sz: 1 << 30 };
    let mut s = Receives::new(&config, 8, 32);
    // SAFETY: there is no device that would write the memory.
    let result = unsafe { s.queue.post(1, &sges_of(&[1 << 30, 1 << 30])) };
    assert_eq!((result, s.posted()), (Err(PostError::InvalidLength), 0));
    // SAFETY: there is no device that would write the memory.
    let result = unsafe { s.queue.post(1, &sges_of(&[1 << 30, (1 << 30) - 1])) };
    assert_eq!((result, s.posted()), (Ok(()), 1));
}

#[test]
fn receive_lists_stop_at_the_first_bad_wr() {
    let config = RecvConfig { qp_type: QpType::Rc, max_recv_wr: 8, max_recv_sge: 2, max_msg_sz: 1 << 30 };
    let mut s = Receives::new(&config, 8, 32);
    let entries = [uverbs_core::wr::Sge { addr: 0x2000, length: 64, lkey: 7 }; 2];
    let mut wrs = [RecvWr::new(1), RecvWr::new(2), RecvWr::new(3)];
    (wrs[0].sg_list, wrs[0].num_sge) = (entries.as_ptr(), 2);
    wrs[1].num_sge = -1;
    wrs[1].next = &raw const wrs[2];
    wrs[0].next = &raw const wrs[1];
    // SAFETY: the list is well formed, and its valid entries name no memory.
    let bad = unsafe { s.queue.post_recv(wrs.as_ptr()) }.unwrap_err();
    assert_eq!((bad.error, bad.wr), (PostError::TooManySge, &raw const wrs[1]));
    assert_eq!(s.posted(), 1);
    let bytes = [64; 2].map(|length| DataSeg::new(length, 7, 0x2000));
    assert_eq!(element(&s.rq().ring, 0), bytes.as_bytes());
    // In RESET nothing is posted or published, and earlier receives are gone.
    s.qp.set_state(QpState::RESET);
    s.record.set_recv(0);
    // SAFETY: the list is well formed, and its valid entries name no memory.
    let bad = unsafe { s.queue.post_recv(wrs.as_ptr()) }.unwrap_err();
    assert_eq!((bad.error, bad.wr, s.posted()), (PostError::BadState, &raw const wrs[0], 0));
}
