// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues of EFA: sends on all faces, receives and completions, with a device that keeps to its side, or writes any bytes at any time.
//!
//! Checked: what is valid by the limits of the queue is posted, other requests are not; the device finds each entry, read by a decoder that
//! shares no code with the encoder, with the fields of the request, in the phase of its round, after a doorbell that comes in time; a poll
//! returns each completion once, with the `wr_id` of its request. Whatever the device writes, nothing panics or is reported twice.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`; the simulated device accesses no memory, and lists live as long as the call.

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;
use uverbs_core::attr::QpState;
use uverbs_core::provider::wire::MAX_SGE_LENGTH;
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, Data, Dest, Inline, Op, PollError, RecvQueue as _, RemoteAddr, To,
    Wr,
};
use uverbs_core::wr::{RawAh, SendFlags, Sge};
use uverbs_efa::testing::{CQ_BELL, Entry, Posted, Rig, SEND_BELL, Sent, Shape, send_config};
use uverbs_efa::{Ah, SendConfig};
use uverbs_fuzz::steps::{self, MAX_STEPS};
use uverbs_testkit::{Face, handle, post};

#[derive(Arbitrary, Debug)]
struct Program {
    log2: (u8, u8, u8),
    receives: u8,
    wide: bool,
    subs: bool,
    generation: u16,
    inline_write: bool,
    max: (u8, u8, u8),
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Send(u8, Vec<Request>),
    Recv(u64, Vec<steps::Entry>),
    /// The device completes one of its requests.
    Complete {
        is_send: bool,
        which: u16,
        sub: bool,
        status: u8,
        length: u32,
    },
    /// The device writes what it may not.
    Write(u8, [u8; 32]),
    Poll(u8, u8),
    Arm,
    /// RESET and back, or a state.
    Reset,
    State(u8),
}

#[derive(Arbitrary, Clone, Debug)]
struct Request {
    wr_id: u64,
    /// Signaled unless a low bit is set, with other flags in the high half.
    flags: u8,
    op: u8,
    imm: u32,
    remote: (u64, u32),
    to: Option<(u16, u32, u32)>,
    sges: Vec<steps::Entry>,
    inline: Option<Vec<u8>>,
}

impl Request {
    fn op(&self) -> Op<'static> {
        let at = RemoteAddr { addr: self.remote.0, rkey: self.remote.1 };
        match self.op % 7 {
            0 => Op::Send,
            1 => Op::SendImm(self.imm),
            2 => Op::Read(at),
            3 => Op::Write(at),
            4 => Op::WriteImm(at, self.imm),
            5 => Op::SendInv(self.imm),
            _ => Op::FetchAdd(at, 1),
        }
    }

    fn flags(&self) -> SendFlags {
        let signaled = if self.flags & 3 == 3 { SendFlags::empty() } else { SendFlags::SIGNALED };
        signaled
            | SendFlags::from_bits_retain(if self.flags >= 0xf0 { u32::from(self.flags & 0xf) } else { 0 })
    }

    /// What the device must see, but for the number; `None` if the request is not valid on this face.
    fn expected(&self, limits: &Limits, face: Face) -> Option<Sent> {
        let others = self.flags().bits() & !(SendFlags::SIGNALED | SendFlags::INLINE).bits();
        let signaled = self.flags().contains(SendFlags::SIGNALED);
        let (ah, qpn, qkey) = self.to?;
        let (op, imm, remote) = match self.op % 7 {
            0 => (0, None, false),
            1 => (0, Some(self.imm), false),
            2 => (1, None, true),
            3 => (2, None, true),
            4 => (2, Some(self.imm), true),
            _ => return None,
        };
        let qpn = u16::try_from(qpn).ok()?;
        if others != 0 || !signaled || (face == Face::List && remote) {
            return None;
        }
        let sges: Vec<_> =
            steps::sges(&self.sges).iter().map(|s| (s.addr, s.length, s.lkey & 0xff_ffff)).collect();
        let (length, inline, sges) = match &self.inline {
            Some(_) if op == 1 || (op == 2 && !limits.inline_write) => return None,
            Some(bytes) if bytes.len() > limits.inline => return None,
            Some(bytes) => (bytes.len() as u64, Some(bytes.clone()), Vec::new()),
            None if sges.len() > if remote { 1 } else { limits.sges } => return None,
            None => (sges.iter().map(|s| u64::from(s.1)).sum(), None, sges),
        };
        let remote = remote.then_some((self.remote.0, length as u32, self.remote.1));
        Some(Sent { req_id: 0, op, imm, ah, qpn, qkey, hints: 0, remote, inline, sges })
    }
}

/// The limits in force.
struct Limits {
    sges: usize,
    inline: usize,
    inline_write: bool,
}

struct Model {
    rig: Rig,
    limits: Limits,
    max_batch: u32,
    recv_sges: usize,
    /// The requests that the device has, by kind and number.
    device: HashMap<(bool, u16), u64>,
    /// Completions that are written and not polled, of each sub-CQ.
    written: [Vec<(bool, u64)>; 2],
    shape: Shape,
    /// The device keeps to its side.
    is_trusted: bool,
    state: QpState,
    posted: u32,
}

fuzz_target!(|program: Program| {
    let shape = Shape {
        sends: 1 << (program.log2.0 % 5),
        wide: program.wide,
        descriptors: 1 << (program.log2.1 % 5),
        receives: 0,
        cqes: 1 << (program.log2.2 % 5),
        subs: 1 + u16::from(program.subs),
        generation: program.generation,
        ..Shape::default()
    };
    let shape = Shape { receives: 1 + u32::from(program.receives) % shape.descriptors, ..shape };
    let config = SendConfig {
        max_sge: u32::from(program.max.0 % 4),
        max_inline: program.max.1.into(),
        inline_write: program.inline_write,
        max_batch: program.max.2.into(),
        ..send_config()
    };
    let limits = Limits {
        sges: config.max_sge.min(2) as usize,
        inline: config.max_inline.min(if shape.wide { 80 } else { 32 }) as usize,
        inline_write: shape.wide && config.inline_write,
    };
    let max_batch = config.max_batch.clamp(1, shape.sends);
    let rig = Rig::new(shape, config);
    let recv_sges = (shape.descriptors / shape.receives) as usize;
    let mut model = Model {
        rig,
        limits,
        max_batch,
        recv_sges,
        device: HashMap::new(),
        written: Default::default(),
        shape,
        is_trusted: true,
        state: QpState::RTS,
        posted: 0,
    };
    for step in program.steps.iter().take(MAX_STEPS) {
        model.step(step);
    }
});

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Send(face, requests) => self.send(Face::ALL[usize::from(face % 4)], requests),
            Step::Recv(wr_id, entries) => self.receive(*wr_id, &steps::sges(entries)),
            Step::Complete { is_send, which, sub, status, length } => {
                self.complete(*is_send, *which, *sub, *status, *length)
            }
            Step::Write(index, bytes) => {
                self.is_trusted = false;
                let entries = self.shape.cqes as usize * usize::from(self.shape.subs);
                self.rig.device.cq().put(usize::from(*index) % entries * 32, bytes);
            }
            Step::Poll(kind, max) => self.poll(*kind, usize::from(*max)),
            Step::Arm => {
                assert_eq!(self.rig.cq.req_notify(false), Ok(()));
                let bells = self.rig.device.bells.take();
                assert!(matches!(bells[..], [(CQ_BELL, 0x8000_0000..)]), "{bells:?}");
            }
            Step::Reset => {
                self.rig.shared.close_all().expect("membarrier(2)");
                self.rig.device.reset();
                self.rig.device.bells.take();
                assert!(self.rig.shared.reset());
                self.rig.shared.open(QpState::RESET);
                self.rig.shared.open(QpState::RTS);
                (self.state, self.posted) = (QpState::RTS, 0);
                self.device.clear();
                self.written = Default::default();
            }
            Step::State(state) => {
                self.state = QpState(u32::from(state % 6) + 1);
                self.rig.shared.open(self.state);
            }
        }
    }

    fn outstanding(&self, is_send: bool) -> usize {
        let written = self.written.iter().flatten().filter(|(kind, _)| *kind == is_send).count();
        self.device.keys().filter(|(kind, _)| *kind == is_send).count() + written
    }

    fn send(&mut self, face: Face, requests: &[Request]) {
        let handles: Vec<RawAh<Ah>> =
            requests.iter().map(|r| handle(Ah(r.to.unwrap_or_default().0))).collect();
        let entries: Vec<Vec<Sge>> = requests.iter().map(|r| steps::sges(&r.sges)).collect();
        let wrs: Vec<Wr<'_, RawAh<Ah>>> = requests
            .iter()
            .zip(handles.iter().zip(&entries))
            .map(|(r, (ah, sges))| {
                let to = r.to.map_or(Dest::Peer, |(_, remote_qpn, remote_qkey)| {
                    Dest::Ud(To { ah, remote_qpn, remote_qkey })
                });
                let data =
                    r.inline.as_deref().map_or(Data::Sges(sges), |bytes| Data::Inline(Inline::Bytes(bytes)));
                // In a list this flag makes the entries inline data, whose memory is read; elsewhere the type of the data decides.
                let of_list = if face == Face::List { SendFlags::INLINE } else { SendFlags::empty() };
                Wr { wr_id: r.wr_id, flags: r.flags().difference(of_list), to, op: r.op(), data }
            })
            .collect();
        // The typed faces refuse entries above the limit; the others pass them on, and the device refuses them.
        if entries.iter().flatten().any(|sge| sge.length > MAX_SGE_LENGTH) {
            return;
        }
        // A list names its destination in each node; one without an address handle has a remote address in its place.
        if face == Face::List && requests.iter().any(|r| r.to.is_none() || r.op().remote().is_some()) {
            return;
        }
        // SAFETY: there is no device that would access the memory.
        let result = unsafe { post(&mut self.rig.send, face, &wrs) };
        let bells = self.rig.device.bells.take();
        let sent = self.rig.device.sends(&bells);
        let may = matches!(self.state, QpState::RTS | QpState::SQD);
        // A device that writes anything may free any request.
        if self.is_trusted {
            let room = if may { self.shape.sends as usize - self.outstanding(true) } else { 0 };
            let expected: Vec<_> = requests.iter().map(|r| r.expected(&self.limits, face)).collect();
            let valid = expected.iter().take(room).take_while(|sent| sent.is_some()).count();
            let posted = match face {
                Face::List | Face::Single => valid,
                Face::Batch | Face::Builder if valid == requests.len() => valid,
                Face::Batch | Face::Builder => 0,
            };
            assert_eq!(sent.len(), posted);
            if posted < requests.len() {
                assert!(result.is_err());
            }
            for (sent, expected) in sent.iter().zip(expected.into_iter().flatten()) {
                assert_eq!(*sent, Sent { req_id: sent.req_id, ..expected });
            }
        }
        if matches!(face, Face::Single) {
            assert!(bells.len() == sent.len());
        }
        let mut before = self.posted;
        for (offset, value) in &bells {
            assert_eq!(*offset, SEND_BELL);
            let count = value.wrapping_sub(before) & 0xffff;
            assert!((1..=self.max_batch).contains(&count), "{count} entries before a doorbell");
            before = *value;
        }
        self.posted = before;
        for (sent, request) in sent.iter().zip(requests) {
            let old = self.device.insert((true, sent.req_id), request.wr_id);
            assert!(old.is_none() || !self.is_trusted);
        }
    }

    fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        // SAFETY: there is no device that would access the memory.
        let result = unsafe { self.rig.recv.post(wr_id, sges) };
        let bells = self.rig.device.bells.take();
        let posted = self.rig.device.receives(&bells);
        let may = !matches!(self.state, QpState::RESET | QpState::ERR);
        if self.is_trusted {
            let room = self.outstanding(false) < self.shape.receives as usize;
            let is_valid = may && room && (1..=self.recv_sges).contains(&sges.len());
            assert_eq!(result.is_ok(), is_valid, "{result:?}");
        }
        assert_eq!(posted.len(), usize::from(result.is_ok()));
        for Posted { req_id, sges: seen } in posted {
            let expected: Vec<_> =
                sges.iter().map(|s| (s.addr, s.length.min(0xffff), s.lkey & 0xff_ffff)).collect();
            assert_eq!(seen, expected);
            let old = self.device.insert((false, req_id), wr_id);
            assert!(old.is_none() || !self.is_trusted);
        }
    }

    fn complete(&mut self, is_send: bool, which: u16, sub: bool, status: u8, length: u32) {
        let sub = u16::from(sub) % self.shape.subs;
        let mut numbers: Vec<u16> =
            self.device.keys().filter(|(kind, _)| *kind == is_send).map(|(_, n)| *n).collect();
        // A CQ that is full is the program's error.
        if numbers.is_empty() || self.written[usize::from(sub)].len() == self.shape.cqes as usize {
            return;
        }
        numbers.sort_unstable();
        let number = numbers[usize::from(which) % numbers.len()];
        let wr_id = self.device.remove(&(is_send, number)).expect("one of its requests");
        let entry =
            if is_send { self.rig.device.sent(number) } else { self.rig.device.received(number, length) };
        self.rig.device.complete(sub, &Entry { status, ..entry });
        self.written[usize::from(sub)].push((is_send, wr_id));
    }

    fn poll(&mut self, kind: u8, max: usize) {
        let mut polled = Vec::new();
        let cq = &mut self.rig.cq;
        let result = match kind % 3 {
            0 => cq.poll_each(max, |c| polled.push((c.is_receive() == Some(false), c.wr_id()))),
            1 => {
                let mut wcs = vec![Default::default(); max];
                let result = cq.poll_cq(&mut wcs);
                let n = result.unwrap_or_default();
                polled.extend(wcs[..n].iter().map(|wc| (wc.opcode.0 < 128, wc.wr_id)));
                result
            }
            _ => {
                let mut result = cq.start_poll();
                while result.is_ok() && polled.len() < 64 {
                    polled.extend(cq.current().map(|c| (c.is_receive() == Some(false), c.wr_id())));
                    result = cq.next_poll();
                }
                cq.end_poll();
                match result {
                    Err(error @ PollError::Corrupt) if polled.is_empty() => Err(error),
                    _ => Ok(polled.len()),
                }
            }
        };
        self.rig.device.bells.take();
        let room = self.shape.cqes as usize * usize::from(self.shape.subs);
        assert!(polled.len() <= room.max(64));
        if !self.is_trusted {
            assert!(matches!(result, Ok(_) | Err(PollError::Corrupt)));
            return;
        }
        assert_eq!(result, Ok(polled.len()));
        for one in polled {
            // In each sub-CQ completions are in order.
            let sub = self.written.iter_mut().find(|written| written.first() == Some(&one));
            sub.expect("the next completion of a sub-CQ").remove(0);
        }
        if self.written.iter().all(Vec::is_empty) {
            assert!(self.rig.cq.is_surely_empty());
        }
    }
}
