// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sends on all three faces, in any order, against a queue model.
//!
//! Checked: requests that are valid by the verbs are posted, others are not; each WQE, read by a decoder that shares no
//! code with the encoder, has the fields of the request and no bytes of an earlier lap; a batch or session that fails,
//! is aborted, dropped or forgotten changes nothing; the published index advances by the posted WRs, and the doorbell
//! is rung once.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`; the simulated kernel accesses no memory, and lists live as long as the call.

use arbitrary::Arbitrary;
use core::ptr::null;
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use uverbs_core::provider::{
    self, Head, Inline, PostError, SendBatch as _, SendQueue as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::{RawAh, SendFlags, SendWr, WrOpcode, WrUd};
use uverbs_fuzz::end_batch;
use uverbs_fuzz::model::Model;
use uverbs_fuzz::request::{Data, Dest, Op, Request, Rules, flags_are_right, rest_is_zero};
use uverbs_fuzz::steps::{End, MAX_STEPS};
use uverbs_rxe::testing::{DecodedSend, FakeBell, ah, decode_send, send_queue};
use uverbs_rxe::{Ah, QpShared, SendBatch, SendQueue};
use uverbs_testkit::{List, OwnedData, OwnedDest, OwnedRequest, begin, push};

#[derive(Arbitrary, Debug)]
struct Program {
    rules: Rules,
    log2_slots: u8,
    dirt: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Batch { requests: Vec<Request>, eat: bool, state: Option<u8>, end: End },
    List(Vec<Node>),
    NullList,
    Start,
    Begin { wr_id: u64, flags: u8, op: Op },
    SetUdAddr(u32, u8, u32, u32),
    SetXrcSrqn(u32),
    SetData(Data),
    Latch,
    Complete,
    Abort,
    Consume(u8),
    State(u8),
    Qkey(u32),
    Bell(bool),
}

/// A node of a C list.
#[derive(Arbitrary, Debug)]
struct Node {
    request: Request,
    /// An invalid opcode, if there is one.
    opcode: Option<u32>,
    /// An invalid number of entries, which must be refused before the entries are read.
    num_sge: Option<i32>,
    null_sges: bool,
}

/// The state of a builder session.
struct Session {
    resets: u32,
    failed: bool,
    wrs: Vec<DecodedSend>,
    current: Option<Current>,
}

/// The builder that setters belong to.
struct Current {
    op: Op,
    needs_data: bool,
    needs_address: bool,
}

struct World {
    rules: Rules,
    queue: SendQueue<FakeBell>,
    qp: Arc<QpShared>,
    model: Model<DecodedSend>,
    qkey: u32,
    session: Option<Session>,
}

fuzz_target!(|program: Program| {
    let slots = 1 << (program.log2_slots % 5);
    let (queue, kernel, bell, qp) = send_queue(slots, &program.rules.config()).expect("a well-formed ring");
    let model = Model::new(kernel, bell, Some(qp.clone()), program.dirt);
    let mut world = World { rules: program.rules, queue, qp, model, qkey: 0, session: None };
    for step in program.steps.iter().take(MAX_STEPS) {
        world.run(step);
        world.model.check(FakeBell::rings, step);
    }
    world.consume(u32::MAX);
});

/// Decodes a WQE, whose other bytes must be 0.
fn decode(bytes: &[u8], expected: Option<&DecodedSend>, rules: &Rules) -> DecodedSend {
    assert!(expected.is_none_or(|e| rest_is_zero(bytes, &e.part)), "stale bytes beside {expected:?}");
    decode_send(bytes, rules.is_datagram())
}

impl World {
    fn run(&mut self, step: &Step) {
        match step {
            Step::Batch { requests, eat, state, end } => self.batch(requests, *eat, *state, *end),
            Step::List(nodes) => self.list(nodes),
            Step::NullList => {
                // SAFETY: NULL is a list that may be given.
                let bad = unsafe { self.queue.post_send(null()) }.expect_err("NULL");
                let open = self.session.is_some();
                let error = if open { PostError::SessionOpen } else { PostError::NullList };
                assert_eq!((bad.error, bad.wr), (error, null()));
            }
            Step::Start => self.start(),
            Step::Begin { wr_id, flags, op } => self.begin(*wr_id, *flags, op),
            Step::SetUdAddr(num, byte, qpn, qkey) => self.set_ud_addr(*num, *byte, *qpn, *qkey),
            Step::SetXrcSrqn(number) => {
                self.queue.wr_set_xrc_srqn(*number);
                self.fail_session();
            }
            Step::SetData(data) => self.set_data(data),
            Step::Latch => {
                self.queue.wr_latch(PostError::InvalidArgument);
                self.fail_session();
            }
            Step::Complete => self.complete(),
            Step::Abort => {
                self.queue.wr_abort();
                self.session = None;
            }
            Step::Consume(n) => self.consume((*n).into()),
            Step::State(state) => self.model.set_state(*state),
            Step::Qkey(key) => {
                self.qp.own().set(*key);
                self.qkey = *key;
            }
            Step::Bell(fails) => self.model.fail_doorbells(*fails),
        }
    }

    fn can_send(&self) -> bool {
        (3..=6).contains(&self.qp.state().0)
    }

    fn consume(&mut self, n: u32) {
        self.model.consume(n, |bytes, expected| decode(bytes, expected, &self.rules));
    }

    fn fail_session(&mut self) {
        if let Some(session) = &mut self.session {
            session.failed = true;
        }
    }

    fn batch(&mut self, requests: &[Request], eat: bool, state: Option<u8>, end: End) {
        let resets = self.model.resets;
        let (in_session, closed) = (self.session.is_some(), !self.can_send());
        let mut wrong = in_session || closed;
        let mut only_full = !wrong;
        let mut wrs = Vec::new();
        let mut batch = self.queue.batch();
        for request in requests.iter().take(20) {
            OwnedRequest::with_wrs(&[request.owned()], |lent| {
                // SAFETY: the named memory is not accessed, and nothing is bound.
                if unsafe { push(&mut batch, &lent[0]) }.is_err() {
                    push_long(&mut batch, request);
                }
            });
            let right = request.is_right_in_a_batch(&self.rules);
            only_full &= right;
            wrong |= !right || !self.model.has_room(wrs.len());
            if !wrong {
                wrs.push(request.wqe(self.qkey, self.rules.is_datagram()));
            }
            if eat {
                self.model.consume(1, |bytes, expected| decode(bytes, expected, &self.rules));
            }
        }
        if let Some(state) = state {
            self.model.set_state(state);
        }
        let Some(result) = end_batch!(batch, end) else { return };
        if wrong || !self.can_send() || self.model.resets != resets {
            let error = result.expect_err("a batch with an invalid WR");
            assert_ne!(error, PostError::Corrupt);
            assert!(!wrong || !only_full || error == PostError::QueueFull, "{error}");
            assert!(!in_session || error == PostError::SessionOpen, "{error}");
        } else {
            assert_eq!(result, self.model.publish(wrs, true));
        }
    }

    fn list(&mut self, nodes: &[Node]) {
        let nodes = &nodes[..nodes.len().min(20)];
        if nodes.is_empty() {
            return;
        }
        let closed = self.session.is_some() || !self.can_send();
        let (rules, qkey) = (&self.rules, self.qkey);
        let requests: Vec<_> = nodes.iter().map(|node| node.owned(rules)).collect();
        OwnedRequest::with_wrs(&requests, |requests| {
            let mut list = List::new(requests);
            for (i, node) in nodes.iter().enumerate() {
                list.change(i, |wr| node.change(wr, rules));
            }
            // SAFETY: the list and all that it points to are alive.
            let result = unsafe { self.queue.post_send(list.first()) };
            self.model.publish_list(list.nodes(), result, closed, true, |i| {
                nodes[i].is_right(rules).then(|| nodes[i].wqe(qkey, rules))
            });
        });
    }

    fn start(&mut self) {
        self.queue.wr_start();
        match &mut self.session {
            Some(session) => session.failed = true,
            None => {
                let (resets, failed) = (self.model.resets, !self.can_send());
                self.session = Some(Session { resets, failed, wrs: Vec::new(), current: None });
            }
        }
    }

    fn begin(&mut self, wr_id: u64, flags: u8, op: &Op) {
        let request = Request { wr_id, flags, op: *op, data: Data::None, to: Dest::Connected };
        let head = Head { wr_id, flags: SendFlags::from_bits_retain(flags.into()) };
        // SAFETY: the ring is in plain memory: nothing is bound.
        unsafe { begin(&mut self.queue, head, op.op) };
        let written = self.session.as_ref().map_or(0, |s| s.wrs.len());
        let has_room = self.model.has_room(written);
        let Some(session) = &mut self.session else { return };
        session.end_wr();
        if session.failed {
            return;
        }
        if !self.rules.has_builder(op) || !flags_are_right(flags) || !op.is_right() || !has_room {
            session.failed = true;
            return;
        }
        session.wrs.push(request.head(self.qkey, false));
        let (needs_data, needs_address) = (op.has_data(), self.rules.is_datagram());
        session.current = Some(Current { op: *op, needs_data, needs_address });
    }

    fn set_ud_addr(&mut self, num: u32, byte: u8, qpn: u32, qkey: u32) {
        self.queue.wr_set_ud_addr(&ah(num, byte), qpn, qkey);
        let Some(session) = self.session.as_mut().filter(|s| !s.failed) else { return };
        match (&mut session.current, session.wrs.last_mut()) {
            (Some(current), Some(wqe)) if current.needs_address => {
                current.needs_address = false;
                let to = Dest::To(num, byte, qpn, qkey);
                let request = Request { wr_id: 0, flags: 0, op: current.op, data: Data::None, to };
                wqe.part = request.head(self.qkey, true).part;
            }
            _ => session.failed = true,
        }
    }

    fn set_data(&mut self, data: &Data) {
        let bufs = data.bufs();
        let slices: Vec<&[u8]> = bufs.iter().map(Vec::as_slice).collect();
        if data.is_inline() {
            self.queue.wr_set_inline(Inline::List(&slices));
        } else {
            // SAFETY: the named memory is not accessed.
            unsafe { self.queue.wr_set_sges(&data.sges()) };
        }
        let Some(session) = self.session.as_mut().filter(|s| !s.failed) else { return };
        match (&mut session.current, session.wrs.last_mut()) {
            (Some(current), Some(wqe))
                if current.needs_data && data.is_right(&current.op, &self.rules, usize::MAX) =>
            {
                current.needs_data = false;
                data.describe(wqe);
            }
            _ => session.failed = true,
        }
    }

    fn complete(&mut self) {
        let result = self.queue.wr_complete();
        let Some(mut session) = self.session.take() else {
            assert_eq!(result, Err(PostError::NoSession));
            return;
        };
        session.end_wr();
        if session.failed || !self.can_send() || session.resets != self.model.resets {
            assert_ne!(result.expect_err("a session with an invalid WR"), PostError::Corrupt);
        } else {
            assert_eq!(result, self.model.publish(session.wrs, true));
        }
    }
}

impl Session {
    /// A WR without all of its setters fails the session.
    fn end_wr(&mut self) {
        if let Some(current) = self.current.take() {
            self.failed |= current.needs_data || current.needs_address;
        }
    }
}

/// Adds a request with an entry that is too long for the typed interface. The batch must refuse it, unless the operation
/// has no data.
fn push_long(batch: &mut SendBatch<'_, FakeBell>, request: &Request) {
    let sges = request.data.sges();
    if request.op.has_data() || matches!(request.op.op, provider::Op::BindMw(_)) {
        // SAFETY: the named memory is not accessed.
        return unsafe { batch.push(&Wr::new(request.wr_id, provider::Op::Send).sges(&sges)) };
    }
    let without_data = OwnedRequest { data: OwnedData::None, ..request.owned() };
    OwnedRequest::with_wrs(&[without_data], |lent| {
        // SAFETY: names no memory, and nothing is bound.
        unsafe { push(batch, &lent[0]) }.expect("a request without entries");
    });
}

impl Node {
    /// Makes the node invalid in the ways that a request can't express.
    fn change(&self, wr: &mut SendWr, rules: &Rules) {
        wr.opcode = WrOpcode(self.opcode());
        if let Some(num) = self.num_sge(rules) {
            wr.num_sge = num;
        }
        if self.null_sges {
            wr.sg_list = null();
        }
        if rules.is_datagram() && !matches!(self.request.to, Dest::To(..)) {
            wr.wr.ud = WrUd { ah: null(), remote_qpn: 0, remote_qkey: 0 };
        }
        if self.request.op.null_mw {
            wr.tail.bind_mw.mw = null();
        }
        if self.request.op.null_mr {
            wr.tail.bind_mw.bind_info.mr = null();
        }
    }

    /// The request of the node. Its destination is that of the QP's type.
    fn owned(&self, rules: &Rules) -> OwnedRequest<'static, RawAh<Ah>> {
        let mut request = self.request.owned();
        // Without inline data, this bit would make the entries pointers to arbitrary addresses.
        request.flags.remove(SendFlags::INLINE);
        if !rules.is_datagram() {
            request.to = OwnedDest::Peer;
        }
        request
    }

    fn opcode(&self) -> u32 {
        self.opcode.filter(|o| *o > 9).unwrap_or(self.request.op.opcode())
    }

    fn num_sge(&self, rules: &Rules) -> Option<i32> {
        // Any other number would be a list that is longer than its memory.
        self.num_sge.filter(|n| *n < 0 || n.unsigned_abs() > rules.max_sge())
    }

    fn num_entries(&self) -> usize {
        match &self.request.data {
            Data::None => 0,
            Data::Sges(entries) => entries.len(),
            Data::Inline(bufs) => bufs.len(),
        }
    }

    fn is_right(&self, rules: &Rules) -> bool {
        let Request { op, data, to, flags, .. } = &self.request;
        if self.opcode() > 9 || !rules.has(op) {
            return false;
        }
        let num = self.num_entries();
        if self.num_sge(rules).is_some() || num > rules.max_sge() as usize {
            return false;
        }
        let data = match op.op {
            provider::Op::LocalInv(_) => true,
            provider::Op::BindMw(b) => num == 0 && !op.null_mw && (!op.null_mr || b.length == 0),
            _ => (num == 0 || !self.null_sges) && data.is_right(op, rules, rules.max_sge() as usize),
        };
        let to = !rules.is_datagram() || matches!(to, Dest::To(..));
        data && to && op.is_right() && flags_are_right(*flags)
    }

    fn wqe(&self, qkey: u32, rules: &Rules) -> DecodedSend {
        let mut request = self.request.clone();
        if let Op { op: provider::Op::BindMw(bind), null_mr: true, .. } = &mut request.op {
            bind.mr_lkey = 0;
        }
        request.wqe(qkey, rules.is_datagram())
    }
}
