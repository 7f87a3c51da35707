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
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "each post of a block has the same contract")]

use arbitrary::Arbitrary;
use core::ptr::{null, null_mut};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;
use uverbs_core::provider::op::MwBind;
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{
    Connected, InlineList, NoData, Operation, PostError, RemoteSrq, SendBatch as _, SendQueue as _, To,
    WrBuilder,
};
use uverbs_core::wr::{
    IbvMr, IbvMw, IbvMwBindInfo, RawAh, SendWr, Sge, WrAtomic, WrBindMw, WrOpcode, WrRdma, WrTail, WrUd,
    WrUnion,
};
use uverbs_fuzz::end_batch;
use uverbs_fuzz::model::{Model, link};
use uverbs_fuzz::request::{Data, Dest, INLINE, Op, Request, Rules, flags_are_right, rest_is_zero};
use uverbs_fuzz::steps::{End, MAX_STEPS, sges};
use uverbs_rxe::testing::{DecodedSend, FakeBell, ah, decode_send, send_queue};
use uverbs_rxe::{Ah, QpShared, SendBatch, SendQueue};
use uverbs_testkit::{self as testkit, Handle as _, Remote, Visit, visit};

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
                self.qp.set_qkey(*key);
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
            // SAFETY: the ring is in plain memory: nothing is bound.
            unsafe { visit(request.op.op, Push { batch: &mut batch, request }) };
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
        let mut arena = Arena::default();
        let mut list: Vec<SendWr> = nodes.iter().take(20).map(|n| arena.node(n, &self.rules)).collect();
        link(&mut list, |wr| &mut wr.next);
        let Some(first) = list.first() else { return };
        // SAFETY: the list and all that it points to are alive.
        let result = unsafe { self.queue.post_send(first) };
        let closed = self.session.is_some() || !self.can_send();
        let (rules, qkey) = (&self.rules, self.qkey);
        self.model.publish_list(&list, result, closed, true, |i| {
            nodes[i].is_right(rules).then(|| nodes[i].wqe(qkey, rules))
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
        // SAFETY: the ring is in plain memory: nothing is bound.
        unsafe { testkit::begin(&mut self.queue, wr_id, request.wr().flags, op.op) };
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
            self.queue.wr_set_inline(InlineList(&slices));
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

/// Adds a request to a batch.
struct Push<'a, 'q> {
    batch: &'a mut SendBatch<'q, FakeBell>,
    request: &'a Request,
}

impl Visit<RemoteAddr> for Push<'_, '_> {
    fn visit<O: Operation<Remote = RemoteAddr>>(self, op: O) {
        let Self { batch, request } = self;
        let (sges, bufs) = (request.data.sges(), request.data.bufs());
        let slices: Vec<&[u8]> = bufs.iter().map(Vec::as_slice).collect();
        let inline = InlineList(&slices);
        let handle = match request.to {
            Dest::To(num, byte, ..) => ah(num, byte),
            _ => Ah::default(),
        };
        // SAFETY: the named memory is not accessed.
        unsafe {
            match (request.to, &request.data) {
                (Dest::Connected, Data::None) => batch.push(request.wr(), Connected, op, NoData),
                (Dest::Connected, Data::Sges(_)) => batch.push(request.wr(), Connected, op, &sges[..]),
                (Dest::Connected, Data::Inline(_)) => batch.push(request.wr(), Connected, op, inline),
                (Dest::To(_, _, remote_qpn, remote_qkey), data) => {
                    let to = To { ah: &handle, remote_qpn, remote_qkey };
                    match data {
                        Data::Inline(_) => batch.push(request.wr(), to, op, inline),
                        _ => batch.push(request.wr(), to, op, &sges[..]),
                    }
                }
                (Dest::RemoteSrq(number), _) => {
                    batch.push(request.wr(), RemoteSrq(number), op, &sges[..]);
                }
            }
        }
    }
}

impl Node {
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
            testkit::Op::LocalInv(_) => true,
            testkit::Op::BindMw(b) => num == 0 && !op.null_mw && (!op.null_mr || b.length == 0),
            _ => (num == 0 || !self.null_sges) && data.is_right(op, rules, rules.max_sge() as usize),
        };
        let to = !rules.is_datagram() || matches!(to, Dest::To(..));
        data && to && op.is_right() && flags_are_right(*flags)
    }

    fn wqe(&self, qkey: u32, rules: &Rules) -> DecodedSend {
        let mut request = self.request.clone();
        if let Op { op: testkit::Op::BindMw(bind), null_mr: true, .. } = &mut request.op {
            bind.mr_lkey = 0;
        }
        request.wqe(qkey, rules.is_datagram())
    }
}

/// The data that a list points to.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "lists point at the values, which must not move when the vector grows")]
struct Arena {
    sges: Vec<Vec<Sge>>,
    bufs: Vec<Vec<u8>>,
    handles: Vec<Box<RawAh<Ah>>>,
    mrs: Vec<Box<IbvMr>>,
    mws: Vec<Box<IbvMw>>,
}

impl Arena {
    fn node(&mut self, node: &Node, rules: &Rules) -> SendWr {
        let request = &node.request;
        let mut wr = SendWr::new(request.wr_id, WrOpcode(node.opcode()));
        // Without inline data, this bit would make the entries pointers to arbitrary addresses.
        wr.send_flags = u32::from(request.flags) & !INLINE;
        let entries = match &request.data {
            Data::None => Vec::new(),
            Data::Sges(entries) => sges(entries),
            Data::Inline(_) => {
                wr.send_flags |= INLINE;
                let bufs = request.data.bufs();
                let entries = bufs.iter().map(|b| Sge {
                    addr: b.as_ptr().expose_provenance() as u64,
                    length: b.len() as u32,
                    lkey: 0xdead,
                });
                let entries = entries.collect();
                self.bufs.extend(bufs);
                entries
            }
        };
        wr.num_sge = node.num_sge(rules).unwrap_or(entries.len() as i32);
        wr.sg_list = if node.null_sges { null() } else { entries.as_ptr() };
        self.sges.push(entries);
        let garbage = 0xbad_bad_u32;
        wr.imm_data_or_invalidate_rkey = garbage;
        let remote = request.op.remote().unwrap_or(Remote { addr: !0, rkey: !0 });
        let Remote { addr: remote_addr, rkey } = remote;
        wr.wr = WrUnion { rdma: WrRdma { remote_addr, rkey } };
        match request.op.op {
            testkit::Op::SendImm(imm) | testkit::Op::WriteImm(_, imm) => {
                wr.imm_data_or_invalidate_rkey = imm.to_be();
            }
            testkit::Op::SendInv(key) | testkit::Op::LocalInv(key) => wr.imm_data_or_invalidate_rkey = key,
            testkit::Op::CmpSwp(_, compare_add, swap) => {
                wr.wr = WrUnion { atomic: WrAtomic { remote_addr, compare_add, swap, rkey } };
            }
            testkit::Op::FetchAdd(_, compare_add) => {
                wr.wr = WrUnion { atomic: WrAtomic { remote_addr, compare_add, swap: !0, rkey } };
            }
            testkit::Op::BindMw(bind) => wr.tail = self.bind(&bind, &request.op),
            _ => {}
        }
        if rules.is_datagram() {
            let mut ud = WrUd { ah: null(), remote_qpn: 0, remote_qkey: 0 };
            if let Dest::To(num, byte, remote_qpn, remote_qkey) = request.to {
                let handle = Box::new(testkit::handle(ah(num, byte)));
                ud = WrUd { ah: handle.raw(), remote_qpn, remote_qkey };
                self.handles.push(handle);
            }
            wr.wr = WrUnion { ud };
        }
        wr
    }

    fn bind(&mut self, bind: &MwBind, op: &Op) -> WrTail {
        let (context, pd) = (null_mut(), null_mut());
        let MwBind { mw_rkey, mw_type, rkey, mr_lkey, addr, length, access } = *bind;
        let mr =
            Box::new(IbvMr { context, pd, addr: null_mut(), length: 0, handle: 0, lkey: mr_lkey, rkey: 0 });
        let mw = Box::new(IbvMw { context, pd, rkey: mw_rkey, handle: 0, mw_type });
        let bind_info = IbvMwBindInfo {
            mr: if op.null_mr { null() } else { &raw const *mr },
            addr,
            length,
            mw_access_flags: access,
        };
        let mw_ptr = if op.null_mw { null() } else { &raw const *mw };
        self.mrs.push(mr);
        self.mws.push(mw);
        WrTail { bind_mw: WrBindMw { mw: mw_ptr, rkey, bind_info } }
    }
}
