// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rings of siw: sends, receives and completions, with a kernel that keeps to its side, or writes any bytes at any time.
//!
//! Checked: as long as the kernel writes what it may, it finds the elements of each batch that was posted, in order and with
//! the fields of the request, and nothing of one that was not; a poll returns each completion once, with its fields.
//! Whatever the kernel writes, no queue panics, accesses memory outside of its ring (which the address sanitizer detects), or
//! takes or returns more than it has room for.
#![no_main]
#![expect(unsafe_code)]
// UNSAFETY: posting is an `unsafe fn`; the simulated kernel accesses no memory.

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use std::collections::VecDeque;
use uverbs_core::Errno;
use uverbs_core::attr::{QpState, SendOpsFlags};
use uverbs_core::provider::{
    Completion as _, CompletionQueue as _, Head, Inline, Op, PollError, PostError, RecvBatch as _,
    RecvQueue as _, RemoteAddr, SendBatch as _, SendQueue as _, Wr, WrBuilder as _,
};
use uverbs_core::wr::{SendFlags, Sge};
use uverbs_fuzz::steps::{Entry, MAX_STEPS, counting, expected_sges, sges};
use uverbs_siw::testing::{
    DecodedSend, DecodedSge, FakeBell, KernelSide, completion, completion_queue, decode_recv, decode_send,
    recv_queue, send_queue,
};
use uverbs_siw::{CompletionQueue, QpShared, RecvQueue, SendConfig, SendQueue};

#[derive(Arbitrary, Debug)]
struct Program {
    kind: Kind,
    log2_slots: u8,
    dirt: u8,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Send { max_sge: u8, max_inline: u8, signal_all: bool },
    Recv { max_sge: u8 },
    Completion,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Posts a batch, or polls as many completions. The kernel may write in between.
    Batch(Vec<Request>, Option<Write>),
    /// The same by a builder, or by an extended poll.
    Session(Vec<Request>, Option<Write>),
    /// The kernel takes work requests, or writes completions.
    Kernel(u8, u64, u8, u16, u32),
    /// The kernel writes what it may not.
    Write(Write),
    /// The doorbell fails, or succeeds again.
    Bell(Option<bool>),
    State(bool),
    Arm(bool),
    Show,
}

#[derive(Arbitrary, Clone, Debug)]
struct Request {
    wr_id: u64,
    flags: u8,
    what: u8,
    remote: (u64, u32),
    data: Data,
}

#[derive(Arbitrary, Clone, Debug)]
enum Data {
    Sges(Vec<Entry>),
    Inline(u8, u8),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
struct Write {
    index: u32,
    offset: u8,
    bytes: [u8; 16],
    len: u8,
}

impl Write {
    fn to(self, kernel: &KernelSide) {
        kernel.put_element(self.index, self.offset.into(), &self.bytes[..usize::from(self.len % 17)]);
    }
}

fuzz_target!(|program: Program| {
    let slots = 1 << (program.log2_slots % 6);
    let steps = &program.steps[..program.steps.len().min(MAX_STEPS)];
    match program.kind {
        Kind::Send { max_sge, max_inline, signal_all } => {
            let config = SendConfig {
                send_ops_flags: SendOpsFlags::all(),
                max_sge: max_sge.into(),
                max_inline: max_inline.into(),
                sq_sig_all: signal_all,
            };
            let (queue, kernel, bell, shared) = send_queue(slots, &config, QpState::RTS);
            kernel.fill(program.dirt);
            let limits = (u32::from(max_sge).min(6) as usize, u32::from(max_inline).min(80) as usize);
            let posted = Posted { kernel, wrs: VecDeque::new(), is_trusted: true };
            Sends { queue, posted, bell, shared, limits, signal_all, is_open: true }.run(steps);
        }
        Kind::Recv { max_sge } => {
            let (queue, kernel, shared) = recv_queue(slots, max_sge.into());
            kernel.fill(program.dirt);
            let posted = Posted { kernel, wrs: VecDeque::new(), is_trusted: true };
            let max_sge = usize::from(max_sge).min(6);
            Receives { queue, posted, shared, max_sge, is_open: true }.run(steps);
        }
        Kind::Completion => {
            let (queue, kernel) = completion_queue(slots);
            kernel.fill(program.dirt);
            Completions { queue, kernel, written: VecDeque::new(), is_trusted: true, session: false }
                .run(steps);
        }
    }
});

/// What the kernel must find.
struct Posted<W> {
    kernel: KernelSide,
    wrs: VecDeque<W>,
    /// The kernel has written only what it may.
    is_trusted: bool,
}

impl<W: PartialEq + core::fmt::Debug> Posted<W> {
    fn write(&mut self, what: Write) {
        what.to(&self.kernel);
        self.is_trusted = false;
    }

    fn has_room(&self, more: usize) -> bool {
        self.wrs.len() + more < self.kernel.slots() as usize
    }

    fn consume(&mut self, count: u8, decode: impl Fn(&[u8]) -> W) {
        for _ in 0..count {
            let bytes = self.kernel.consume();
            if !self.is_trusted {
                continue;
            }
            assert_eq!(bytes.as_deref().map(&decode), self.wrs.pop_front());
        }
    }
}

struct Sends {
    queue: SendQueue<FakeBell>,
    posted: Posted<DecodedSend>,
    bell: FakeBell,
    shared: std::sync::Arc<QpShared>,
    limits: (usize, usize),
    signal_all: bool,
    is_open: bool,
}

impl Sends {
    fn run(mut self, steps: &[Step]) {
        let mut errno = None;
        for step in steps {
            match step {
                Step::Batch(requests, meanwhile) => self.post(requests, *meanwhile, false, errno),
                Step::Session(requests, meanwhile) => self.post(requests, *meanwhile, true, errno),
                Step::Kernel(count, ..) => self.posted.consume(*count, decode_send),
                Step::Write(what) => self.posted.write(*what),
                Step::Bell(fails) => {
                    errno = fails.map(|off| if off { Errno::ENOTCONN } else { Errno::EIO });
                    self.bell.fail(errno);
                }
                Step::State(open) => {
                    self.is_open = *open;
                    self.shared.set_state(if *open { QpState::RTS } else { QpState::ERR });
                }
                Step::Arm(_) | Step::Show => assert!(!format!("{:?}", self.queue).is_empty()),
            }
        }
        self.posted.consume(u8::MAX, decode_send);
    }

    fn post(&mut self, requests: &[Request], meanwhile: Option<Write>, session: bool, errno: Option<Errno>) {
        let requests = &requests[..requests.len().min(20)];
        let mut wrs = Vec::new();
        let mut is_right = self.is_open;
        for request in requests {
            is_right &= request.is_right(self.limits) && self.posted.has_room(wrs.len());
            if is_right {
                wrs.push(request.decoded(self.signal_all));
            }
        }
        let before = self.bell.rings();
        let result = if session {
            self.queue.wr_start();
            for request in requests {
                request.build(&mut self.queue);
                if let Some(what) = meanwhile {
                    self.posted.write(what);
                }
            }
            self.queue.wr_complete()
        } else {
            let mut batch = self.queue.batch();
            for request in requests {
                request.push(&mut batch);
                if let Some(what) = meanwhile {
                    self.posted.write(what);
                }
            }
            batch.complete()
        };
        if !self.posted.is_trusted {
            assert!(result.is_err() || requests.len() <= self.posted.kernel.slots() as usize);
            return;
        }
        match result {
            Ok(()) => {
                assert!(is_right && errno.is_none_or(|_| wrs.is_empty()), "{requests:?}");
                self.posted.wrs.extend(wrs);
            }
            // Published, if a doorbell found the QP connected before: the first doorbell fails without a publication.
            Err(PostError::Doorbell(_)) => {
                assert!(is_right && errno.is_some());
                if self
                    .posted
                    .kernel
                    .element(self.posted.kernel.position())
                    .get(8)
                    .is_some_and(|f| f & 1 != 0)
                {
                    let missing = wrs.len();
                    self.posted.wrs.extend(wrs);
                    assert!(missing > 0);
                }
            }
            Err(PostError::BadState) if errno == Some(Errno::ENOTCONN) && is_right => {
                assert_eq!(self.bell.rings(), before + 1, "only the first doorbell reports it so");
            }
            Err(_) => assert!(!is_right, "{result:?}: {requests:?}"),
        }
    }
}

impl Request {
    fn flags(&self) -> SendFlags {
        // Without INLINE, which the type of the payload determines.
        SendFlags::from_bits_retain(u32::from(self.flags)).difference(SendFlags::INLINE)
    }

    fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.remote.0, rkey: self.remote.1 }
    }

    fn is_read(&self) -> bool {
        self.what % 4 == 2
    }

    /// Whether the device takes it, on the typed face.
    fn is_right(&self, (max_sge, max_inline): (usize, usize)) -> bool {
        let known = SendFlags::FENCE | SendFlags::SIGNALED | SendFlags::SOLICITED;
        let data = match &self.data {
            Data::Inline(_, len) => usize::from(*len) <= max_inline && self.what % 4 < 2,
            Data::Sges(entries) => {
                let list = sges(entries);
                let (sum, kept) = expected_sges(&list);
                list.len() <= max_sge && sum < 1 << 31 && (!self.is_read() || kept.len() <= 1)
            }
        };
        data && known.contains(self.flags())
    }

    fn decoded(&self, signal_all: bool) -> DecodedSend {
        let set = |flag, bit: u16| if self.flags().contains(flag) { bit } else { 0 };
        let signaled = if signal_all { 1 << 2 } else { set(SendFlags::SIGNALED, 1 << 2) };
        let fence = if self.is_read() { 0 } else { set(SendFlags::FENCE, 1 << 4) };
        let mut flags = 1 | signaled | set(SendFlags::SOLICITED, 1 << 3) | fence;
        let (mut list, mut inline) = (Vec::<DecodedSge>::new(), Vec::new());
        match &self.data {
            Data::Inline(first, len) => {
                flags |= 1 << 1;
                inline = counting(*first, *len).to_vec();
            }
            Data::Sges(entries) => list = expected_sges(&sges(entries)).1,
        }
        if self.is_read() && list.is_empty() {
            list.push((0, 0, 0));
        }
        let (opcode, rkey, raddr) = match self.what % 4 {
            0 => (3, 0, 0),
            1 => (0, self.remote.1, self.remote.0),
            2 => (1, self.remote.1, self.remote.0),
            _ => (5, self.remote.1, 0),
        };
        DecodedSend { id: self.wr_id, flags, opcode, rkey, raddr, sges: list, inline }
    }

    fn op(&self) -> Op<'static> {
        match self.what % 4 {
            0 => Op::Send,
            1 => Op::Write(self.remote()),
            2 => Op::Read(self.remote()),
            _ => Op::SendInv(self.remote.1),
        }
    }

    fn push(&self, batch: &mut uverbs_siw::SendBatch<'_, FakeBell>) {
        let wr = Wr::new(self.wr_id, self.op()).flags(self.flags());
        match &self.data {
            Data::Inline(first, len) => {
                // SAFETY: inline data are copied by the call, so no memory is used later.
                unsafe { batch.push(&wr.inline(counting(*first, *len))) }
            }
            Data::Sges(entries) => {
                // SAFETY: the named memory is not accessed.
                unsafe { batch.push(&wr.sges(&sges(entries))) }
            }
        }
    }

    fn build(&self, queue: &mut SendQueue<FakeBell>) {
        let head = Head { wr_id: self.wr_id, flags: self.flags() };
        // SAFETY: not a bind.
        unsafe { queue.wr_begin(head, self.op()) };
        match &self.data {
            Data::Inline(first, len) => queue.wr_set_inline(Inline::Bytes(counting(*first, *len))),
            // SAFETY: the named memory is not accessed.
            Data::Sges(entries) => unsafe { queue.wr_set_sges(&sges(entries)) },
        }
    }

    fn entries(&self) -> Vec<Sge> {
        match &self.data {
            Data::Sges(entries) => sges(entries),
            Data::Inline(..) => Vec::new(),
        }
    }
}

/// The fields of a receive.
type DecodedRecv = (u64, u16, Vec<DecodedSge>);

struct Receives {
    queue: RecvQueue,
    posted: Posted<DecodedRecv>,
    shared: std::sync::Arc<QpShared>,
    max_sge: usize,
    is_open: bool,
}

impl Receives {
    fn run(mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Batch(requests, meanwhile) | Step::Session(requests, meanwhile) => {
                    self.post(requests, *meanwhile);
                }
                Step::Kernel(count, ..) => self.posted.consume(*count, decode_recv),
                Step::Write(what) => self.posted.write(*what),
                Step::State(open) => {
                    self.is_open = *open;
                    self.shared.set_state(if *open { QpState::RTS } else { QpState::ERR });
                }
                Step::Bell(_) | Step::Arm(_) | Step::Show => {
                    assert!(!format!("{:?}", self.queue).is_empty());
                }
            }
        }
        self.posted.consume(u8::MAX, decode_recv);
    }

    fn post(&mut self, requests: &[Request], meanwhile: Option<Write>) {
        let requests = &requests[..requests.len().min(20)];
        let mut wrs = Vec::new();
        let mut is_right = self.is_open;
        let mut batch = self.queue.batch();
        for request in requests {
            let list = request.entries();
            let (sum, kept) = expected_sges(&list);
            is_right &= list.len() <= self.max_sge && sum < 1 << 31 && self.posted.has_room(wrs.len());
            if is_right {
                wrs.push((request.wr_id, 1, kept));
            }
            // SAFETY: the named memory is not accessed.
            unsafe { batch.push(request.wr_id, &list) };
            if let Some(what) = meanwhile {
                self.posted.write(what);
            }
        }
        let result = batch.complete();
        if self.posted.is_trusted {
            assert_eq!(result.is_ok(), is_right, "{result:?}: {requests:?}");
            if is_right {
                self.posted.wrs.extend(wrs);
            }
        } else {
            assert!(result.is_err() || requests.len() <= self.posted.kernel.slots() as usize);
        }
    }
}

struct Completions {
    queue: CompletionQueue,
    kernel: KernelSide,
    /// The fields of the completions that are not polled: ID, bytes, QP number.
    written: VecDeque<(u64, u32, u32)>,
    is_trusted: bool,
    session: bool,
}

impl Completions {
    fn run(mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Batch(requests, meanwhile) => self.poll(requests.len(), *meanwhile),
                Step::Session(requests, meanwhile) => self.session(requests.len(), *meanwhile),
                Step::Kernel(count, id, opcode, status, len) => {
                    for n in 0..*count % 16 {
                        let (id, qp_num) = (id.wrapping_add(n.into()), u32::from(*status));
                        let written =
                            self.kernel.produce(&completion(id, *opcode, *status, *len, qp_num.into()));
                        if self.is_trusted {
                            let slots = self.kernel.slots() as usize;
                            assert_eq!(written, self.written.len() < slots);
                            self.written.extend(written.then_some((id, *len, qp_num)));
                        }
                    }
                }
                Step::Write(what) => {
                    what.to(&self.kernel);
                    self.is_trusted = false;
                }
                Step::Arm(solicited) => {
                    assert_eq!(self.queue.req_notify(*solicited), Ok(()));
                    assert_eq!(self.kernel.notify(), if *solicited { 1 } else { 3 });
                }
                Step::Bell(_) | Step::State(_) | Step::Show => {
                    assert!(!format!("{:?}", self.queue).is_empty());
                }
            }
        }
    }

    fn poll(&mut self, max: usize, meanwhile: Option<Write>) {
        let Self { queue, kernel, written, is_trusted, .. } = self;
        let (mut count, before) = (0, written.len());
        let trusted = *is_trusted && meanwhile.is_none();
        let result = queue.poll_each(max, |wc| {
            count += 1;
            let _ = wc.to_wc();
            if let Some(what) = meanwhile {
                what.to(kernel);
            } else if trusted {
                assert_eq!(written.pop_front(), Some((wc.wr_id(), wc.byte_len(), wc.qp_num())));
            }
        });
        *is_trusted = trusted;
        if self.session {
            assert_eq!((result, count), (Err(PollError::SessionOpen), 0));
        } else {
            assert_eq!(result, Ok(count));
            assert!(count <= max && count <= queue.cqe() as usize);
            assert!(!trusted || count == before.min(max));
        }
    }

    /// Opens an extended poll, continues it, and ends it if anything is left of `count`.
    fn session(&mut self, count: usize, meanwhile: Option<Write>) {
        for n in 0..count.min(40) {
            let first = !self.session;
            let next = if first { self.queue.start_poll() } else { self.queue.next_poll() };
            let expected = self.written.pop_front();
            match next {
                Ok(()) => {
                    self.session = true;
                    let wc = self.queue.current().expect("a completion");
                    if self.is_trusted {
                        assert_eq!(Some((wc.wr_id(), wc.byte_len(), wc.qp_num())), expected);
                    }
                }
                Err(error) => {
                    assert!(error == PollError::Empty && (!self.is_trusted || expected.is_none()));
                    break;
                }
            }
            if let Some(what) = meanwhile {
                what.to(&self.kernel);
                self.is_trusted = false;
            }
            if n % 5 == 4 {
                break;
            }
        }
        if count.is_multiple_of(2) {
            self.queue.end_poll();
            self.session = false;
        }
    }
}
