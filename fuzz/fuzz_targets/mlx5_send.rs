// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends of mlx5 on all three faces, decoded by the software HCA, whose decoder shares no code with the encoder.
//!
//! Checked: a valid request is posted if there is room, an invalid one is not; each WQE decodes to the request, at the
//! index of the doorbell record, over any stale bytes; refused requests change neither record nor register. The last
//! doorbell of a call is that of its last WQE, either the whole WQE or its first 8 bytes.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`. Memory that a post reads stays valid during the call, and there is no device that
// accesses other memory.

#[path = "mlx5_send/post.rs"]
mod post;
#[path = "mlx5_send/request.rs"]
mod request;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use request::{Face, Request, Shape};
use uverbs_core::attr::{QpState, QpType};
use uverbs_core::provider::PostError;
use uverbs_hca::decode::{self, send_wqe};
use uverbs_mlx5::testing::{self, BLUE_FLAME, Sends};

#[derive(Arbitrary, Debug)]
struct Program {
    shape: Shape,
    log_blocks: u8,
    max_wr: u8,
    dirt: u8,
    start: u16,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    List(Vec<Request>),
    Batch(Vec<Request>),
    Session(Vec<Request>),
    /// A batch that is dropped, or a session that is aborted.
    Lost(Vec<Request>, bool),
    /// This many of the outstanding WRs are executed.
    Retire(u8),
    Reset,
}

const MAX_STEPS: usize = 40;
const MAX_WRS: usize = 12;
/// Blocks of the longest WQE, which is a segmented send with a long header and inline data.
const LONGEST: u32 = 4;

struct World {
    sends: Sends,
    shape: Shape,
    blocks: u32,
    max_wr: u32,
    /// The number of posted blocks, and the first blocks of outstanding WRs.
    at: u32,
    outstanding: Vec<u32>,
    /// Whether the last WR was a local operation.
    waits: bool,
}

fuzz_target!(|program: Program| {
    let shape = program.shape;
    let blocks = 1 << (program.log_blocks % 7);
    let max_wr = u32::from(program.max_wr % 32 + 1).min(blocks);
    let mut sends = Sends::new(&shape.config(max_wr), blocks, BLUE_FLAME);
    sends.qp.set_csum(shape.csum());
    sends.fill(program.dirt);
    let at = u32::from(program.start);
    sends.queue.start_at(at);
    let mut world = World { sends, shape, blocks, max_wr, at, outstanding: Vec::new(), waits: false };
    for step in program.steps.iter().take(MAX_STEPS) {
        world.run(step);
    }
});

impl World {
    fn run(&mut self, step: &Step) {
        let cut = |all: &Vec<Request>| all[..all.len().min(MAX_WRS)].to_vec();
        let (shape, queue) = (self.shape, &mut self.sends.queue);
        match step {
            Step::List(all) => self.list(&cut(all)),
            Step::Batch(all) => {
                let all = cut(all);
                let result = post::batch(queue, shape, &all, false);
                self.whole(&all, result, Face::Batch);
            }
            Step::Session(all) => {
                let all = cut(all);
                let result = post::session(queue, shape, &all, false);
                self.whole(&all, result, Face::Session);
            }
            Step::Lost(all, session) => {
                let face = if *session { post::session } else { post::batch };
                let lost = face(queue, shape, &cut(all), true);
                assert!(lost.is_ok(), "a dropped batch reports no error");
                self.posted(&[], Face::Batch);
            }
            Step::Retire(n) => {
                let n = usize::from(*n).min(self.outstanding.len());
                if let Some(last) = self.outstanding.drain(..n).next_back() {
                    self.sends.retire(last as u16);
                }
            }
            Step::Reset => {
                testing::set_state(&self.sends.qp, QpState::RESET);
                let refused = post::batch(queue, shape, &[], false);
                assert_eq!(refused, Err(PostError::BadState));
                testing::set_state(&self.sends.qp, QpState::RTS);
                (self.at, self.waits) = (0, false);
                self.outstanding.clear();
                self.sends.record.set_send(0);
            }
        }
    }

    /// Either all WRs are posted or none.
    fn whole(&mut self, all: &[Request], result: Result<(), PostError>, face: Face) {
        let right = all.iter().all(|r| r.is_right(self.shape, face));
        match result {
            Ok(()) => {
                assert!(right, "posted {all:?}");
                self.posted(all, face);
            }
            Err(PostError::QueueFull) => self.must_be_full(all),
            Err(error) => {
                assert!(!right, "{error:?} for {all:?}");
                self.posted(&[], face);
            }
        }
    }

    /// A queue may be full if there is no room for the WRs, or for their maximum number of blocks.
    fn must_be_full(&mut self, all: &[Request]) {
        let wrs = self.outstanding.len() + all.len();
        let first = self.outstanding.first().map_or(0, |first| self.at.wrapping_sub(*first));
        let blocks = first + all.len() as u32 * LONGEST;
        // A WQE of more blocks than a WR has on average counts as more than one.
        let counted = wrs as u32 * LONGEST;
        assert!(wrs as u32 > self.max_wr || blocks > self.blocks || counted > self.max_wr, "{wrs} WRs");
        self.posted(&[], Face::Batch);
    }

    fn list(&mut self, all: &[Request]) {
        let wrong = all.iter().position(|r| !r.is_right(self.shape, Face::List));
        match post::list(&mut self.sends.queue, self.shape, all) {
            Ok(()) => {
                assert!(wrong.is_none() && !all.is_empty(), "posted {all:?}");
                self.posted(all, Face::List);
            }
            Err((error, at)) => {
                match error {
                    PostError::NullList => assert!(all.is_empty()),
                    PostError::QueueFull => assert!(at <= wrong.or(Some(all.len()))),
                    error => assert_eq!(at, wrong, "{error:?} for {all:?}"),
                }
                self.posted(&all[..at.unwrap_or(0)], Face::List);
            }
        }
    }

    /// Checks that the posted requests are in the ring, and that the doorbell was rung for them.
    fn posted(&mut self, all: &[Request], face: Face) {
        let rings = self.sends.bell.take();
        if all.is_empty() {
            assert!(rings.is_empty(), "a doorbell for nothing");
            return;
        }
        let mut last = (0, 0);
        for r in all {
            let bytes = self.sends.blocks(self.at, self.blocks.min(LONGEST));
            assert_eq!(bytes[4..7], request::QPN.to_be_bytes()[1..]);
            let got = send_wqe(self.shape.kind(), &bytes);
            let got = got.unwrap_or_else(|e| panic!("{e:?} of {r:?}: {bytes:02x?}"));
            self.compare(r, &got, face);
            last = (self.at, got.blocks());
            self.outstanding.push(self.at);
            self.at = self.at.wrapping_add(got.blocks().into());
            self.waits = !r.what.has_data();
        }
        assert!(self.outstanding.len() <= self.max_wr as usize);
        let first = self.outstanding[0];
        assert!(self.at.wrapping_sub(first) <= self.blocks, "the ring is overrun");
        assert_eq!(self.sends.posted(), self.at & 0xffff, "doorbell record");
        let [rung] = &rings[..] else { panic!("{} doorbells", rings.len()) };
        let wqe = self.sends.blocks(last.0, last.1.into());
        assert_eq!(rung.bytes[..8], wqe[..8]);
        assert!(rung.bytes.len() == 8 || rung.bytes == wqe, "the burst differs from the WQE");
    }

    fn compare(&self, r: &Request, got: &decode::Request, face: Face) {
        let mut want = r.expected(self.shape, face, self.at as u16, self.waits);
        (want.ds, want.opcode) = (got.ds, got.opcode);
        if r.what.has_data() {
            let qp_type = self.shape.qp_type();
            let av = got.av.as_ref().map(|av| (av.dest, av.key, av.sl, av.rmac, av.hop_limit, av.rgid));
            let vector = post::vector();
            let key = if qp_type == QpType::Ud { u64::from(r.key) << 32 } else { post::dc_key(r) };
            let expected = (r.number & 0xff_ffff, key, 3, vector.rmac, 64, vector.rgid);
            assert_eq!(av, matches!(qp_type, QpType::Ud | QpType::Driver).then_some(expected));
            assert_eq!(got.srqn, (qp_type == QpType::XrcSend).then_some(r.number & 0xff_ffff));
        }
        (want.av, want.srqn) = (got.av.clone(), got.srqn);
        assert_eq!(got, &want, "{r:?}");
    }
}
