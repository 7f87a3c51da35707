// SPDX-License-Identifier: MIT OR Apache-2.0
//! The model: all outcomes of a program.
//!
//! It has the shape of RDMA^TSO (G. Ambal, B. Dongol, H. Eran, V. Klimis, O. Lahav, A. Raad, "Semantics of Remote Direct Memory Access",
//! OOPSLA 2024): each direction of a connection is a pipe of requests, with a buffer of writes at the responder, and one at the requester.
//! A WRITE is a read at the requester and a write at the responder, a READ the reverse. As in the extension of that model by atomics
//! (arXiv 2601.14642), an atomic is a read and a write at the responder, and only other atomics of the node stay out between them. SEND
//! and receive are added. Each rule below is derived from its source again; it is not copied from those papers.
//!
//! | rule | source |
//! |---|---|
//! | threads of one node, and of several, see each other's stores at once: no store buffers | the explorer has none |
//! | requests of a pipe begin in the order of the posts, and arrive in that order | InfiniBand 10.8.3.3; `ibv_post_send(3)` |
//! | a fenced request begins when all earlier READs and atomics of the pipe are complete; later requests begin after it | InfiniBand 10.8.3.3, entries "F"; `ibv_post_send(3)`, `IBV_SEND_FENCE` |
//! | the data of a WRITE or SEND are read after its begin, before it arrives | `ibv_post_send(3)`: the buffer is free after the completion; with `IBV_SEND_INLINE` after the call |
//! | Model: data of several requests are read in any order. Pcie: in the order of the requests | nothing promises an order; the device issues its reads in order |
//! | Pcie: a read of the requester waits for the writes in the buffer at its begin | PCIe: a read does not pass a posted write |
//! | the data of a READ, and the old value of an atomic, are read after the writes of all earlier requests of the pipe | InfiniBand 10.8.3.3, row "RDMA WRITE": order is maintained |
//! | an atomic reads when no other atomic of the node is between its read and its write | InfiniBand 9.4.5; `IBV_ATOMIC_HCA` of `ibv_query_device(3)` |
//! | acknowledgements and answers return in the order of the requests | InfiniBand 9.7.5: acknowledgements are in the order of the PSN |
//! | a completion becomes visible after all earlier writes of its buffer: those of the request itself, and of earlier ones | InfiniBand 10.8.5; `ibv_poll_cq(3)` |
//! | Model: data in a buffer become visible before earlier entries, unless these are for the same word. Pcie: in order | InfiniBand 9.5 and 10.8.3.3 promise memory at a completion only, and the order of two WRITEs; PCIe: posted writes stay in order |
//! | the write of an atomic becomes visible after all earlier writes of its buffer | it is of the answer: a later request of the same pipe has to see both |

use crate::list::List;
use crate::program::{From, LINKS, MAILBOX, NODES, Op, Outcome, Program, Verb, WORDS, Word, peer};
use core::hash::{BuildHasherDefault, Hash as _, Hasher};
use std::collections::{BTreeSet, HashSet};

/// Requests of a pipe and registers of a thread at most, and entries of a buffer: a SEND has two.
const REQUESTS: usize = 8;
const ENTRIES: usize = 2 * REQUESTS;

/// What the devices promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rules {
    /// As a device on PCIe.
    Pcie,
    /// Only what the specification promises.
    Model,
}

/// Memory has all outcomes; a program that can hang has no set of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hangs;

#[derive(Clone, Copy, Debug, Default, Hash)]
enum Entry {
    Data(Word, u8),
    /// The write of an atomic.
    Atomic(Word, u8),
    #[default]
    Completion,
}

impl Entry {
    fn word(self) -> Option<Word> {
        match self {
            Self::Data(word, _) | Self::Atomic(word, _) => Some(word),
            Self::Completion => None,
        }
    }
}

/// Writes that are not visible, with their numbers.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Buffer {
    last: u8,
    entries: List<(u8, Entry), ENTRIES>,
}

impl Buffer {
    fn push(&mut self, entry: Entry) {
        self.last += 1;
        self.entries.push((self.last, entry));
    }

    /// Whether all entries up to this number are visible.
    fn has_passed(&self, last: u8) -> bool {
        self.entries.first().is_none_or(|(number, _)| *number > last)
    }

    /// Whether an entry can become visible.
    fn may_leave(&self, at: usize, rules: Rules) -> bool {
        let Some((_, entry)) = self.entries.get(at) else { return false };
        let passes = rules == Rules::Model && matches!(entry, Entry::Data(..));
        let mut earlier = self.entries.iter().take(at);
        at == 0 || passes && earlier.all(|(_, other)| other.word() != entry.word())
    }
}

#[derive(Clone, Copy, Debug, Hash)]
struct Request {
    verb: Verb,
    fence: bool,
    begun: bool,
    /// The entries of the requester's buffer that its read waits for.
    after: u8,
    data: Option<u8>,
}

impl Default for Request {
    fn default() -> Self {
        let verb = Verb::Send { from: From::Value(0) };
        Self { verb, fence: false, begun: false, after: 0, data: None }
    }
}

#[derive(Clone, Copy, Debug, Default, Hash)]
enum Answer {
    #[default]
    Ack,
    Read {
        to: u8,
        from: u8,
        after: u8,
        data: Option<u8>,
    },
    Old {
        to: u8,
        data: u8,
    },
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Pipe {
    requests: List<Request, REQUESTS>,
    answers: List<Answer, REQUESTS>,
    /// Writes at the responder, and at the requester.
    remote: Buffer,
    local: Buffer,
    /// For each request that is not complete, whether it is a READ or an atomic.
    incomplete: List<bool, REQUESTS>,
    /// Completions that were not polled: of requests, and of the peer's receives.
    sent: u8,
    received: u8,
}

#[derive(Clone, Debug, Hash)]
struct State {
    memory: [u8; NODES * WORDS],
    /// The next step and the registers of each thread.
    threads: [(u8, List<u8, REQUESTS>); NODES],
    /// Two of each connection: the requests of its first end, and of its second one. Those behind the last connection that the program uses
    /// are left out.
    pipes: Vec<Pipe>,
}

/// The index of the pipe for the requests of a node, and that for the requests of its peer.
fn pipes(node: u8, link: u8) -> (usize, usize) {
    let first = usize::from(link) * 2;
    if LINKS[usize::from(link)].0 == node { (first, first + 1) } else { (first + 1, first) }
}

/// The nodes of a pipe: requester and responder.
fn ends(pipe: usize) -> (u8, u8) {
    let (a, b) = LINKS[pipe / 2];
    if pipe.is_multiple_of(2) { (a, b) } else { (b, a) }
}

impl State {
    fn load(&self, node: u8, at: u8) -> u8 {
        self.memory[Word { node, at }.index()]
    }

    /// Lets requests begin, and those arrive that have nothing to wait for. Both change nothing that others see, and only make more
    /// steps possible.
    fn advance(&mut self, at: usize, rules: Rules) {
        let (_, there) = ends(at);
        let pipe = &mut self.pipes[at];
        let pending = pipe.incomplete.len() - pipe.requests.len();
        for i in 0..pipe.requests.len() {
            let outstanding = pipe.incomplete.iter().take(pending + i).any(|is_answered| *is_answered);
            let request = &mut pipe.requests[i];
            if request.begun {
                continue;
            }
            if request.fence && outstanding {
                break;
            }
            request.begun = true;
            request.after = if rules == Rules::Pcie { pipe.local.last } else { 0 };
        }
        while let Some(request) = pipe.requests.first() {
            let word = |at| Word { node: there, at };
            match (request.verb, request.data) {
                _ if !request.begun => break,
                (Verb::Write { to, .. }, Some(data)) => {
                    pipe.remote.push(Entry::Data(word(to), data));
                    pipe.answers.push(Answer::Ack);
                }
                (Verb::Send { .. }, Some(data)) => {
                    pipe.remote.push(Entry::Data(word(MAILBOX), data));
                    pipe.remote.push(Entry::Completion);
                    pipe.answers.push(Answer::Ack);
                }
                (Verb::Read { to, from }, _) => {
                    pipe.answers.push(Answer::Read { to, from, after: pipe.remote.last, data: None });
                }
                _ => break,
            }
            pipe.requests.remove(0);
        }
    }

    /// A thread takes a step; `None` if it has to wait.
    fn execute(&self, thread: usize, node: u8, op: Op, rules: Rules) -> Option<Self> {
        let mut next = self.clone();
        let (at, registers) = &mut next.threads[thread];
        *at += 1;
        match op {
            Op::Load(word) => registers.push(self.load(node, word)),
            Op::Await(word) if self.load(node, word) == 0 => return None,
            Op::Await(word) => registers.push(self.load(node, word)),
            Op::Store(at, value) => next.memory[Word { node, at }.index()] = value,
            Op::Post { link, verb, fence } => {
                let own = pipes(node, link).0;
                let pipe = &mut next.pipes[own];
                let data = match verb {
                    Verb::Write { from: From::Value(value), .. }
                    | Verb::Send { from: From::Value(value) } => Some(value),
                    _ => None,
                };
                pipe.requests.push(Request { verb, fence, begun: false, after: 0, data });
                pipe.incomplete.push(!matches!(verb, Verb::Write { .. } | Verb::Send { .. }));
                next.advance(own, rules);
            }
            Op::WaitSent(link) => {
                let pipe = &mut next.pipes[pipes(node, link).0];
                pipe.sent = pipe.sent.checked_sub(1)?;
            }
            Op::PollSent(link) => {
                let pipe = &mut next.pipes[pipes(node, link).0];
                let found = pipe.sent.min(1);
                pipe.sent -= found;
                registers.push(found);
            }
            Op::WaitReceived(link) => {
                let pipe = &mut next.pipes[pipes(node, link).1];
                pipe.received = pipe.received.checked_sub(1)?;
            }
        }
        Some(next)
    }

    /// All states that the devices can make of this one.
    fn device_steps(&self, rules: Rules, found: &mut Vec<Self>) {
        for (at, pipe) in self.pipes.iter().enumerate() {
            let (here, there) = ends(at);
            self.fetch_requests(at, rules, found);
            self.execute_atomic(at, rules, found);
            // Data of answers.
            for (i, answer) in pipe.answers.iter().enumerate() {
                let Answer::Read { from, after, data: None, .. } = answer else { continue };
                if pipe.remote.has_passed(*after) {
                    let mut next = self.clone();
                    if let Some(Answer::Read { data, .. }) = next.pipes[at].answers.get_mut(i) {
                        *data = Some(self.load(there, *from));
                    }
                    found.push(next);
                }
                if rules == Rules::Pcie {
                    break;
                }
            }
            // An answer arrives.
            let entry = match pipe.answers.first() {
                Some(Answer::Ack) => Some(None),
                Some(Answer::Read { to, data: Some(data), .. } | Answer::Old { to, data }) => {
                    Some(Some(Entry::Data(Word { node: here, at: *to }, *data)))
                }
                _ => None,
            };
            if let Some(data) = entry {
                let mut next = self.clone();
                let pipe = &mut next.pipes[at];
                pipe.answers.remove(0);
                data.into_iter().for_each(|data| pipe.local.push(data));
                pipe.local.push(Entry::Completion);
                found.push(next);
            }
            // Writes become visible.
            for i in 0..pipe.remote.entries.len() {
                if pipe.remote.may_leave(i, rules) {
                    let mut next = self.clone();
                    match next.pipes[at].remote.entries.remove(i).1 {
                        Entry::Data(word, value) | Entry::Atomic(word, value) => {
                            next.memory[word.index()] = value
                        }
                        Entry::Completion => next.pipes[at].received += 1,
                    }
                    found.push(next);
                }
            }
            for i in 0..pipe.local.entries.len() {
                if pipe.local.may_leave(i, rules) {
                    let mut next = self.clone();
                    match next.pipes[at].local.entries.remove(i).1 {
                        Entry::Data(word, value) | Entry::Atomic(word, value) => {
                            next.memory[word.index()] = value
                        }
                        Entry::Completion => {
                            next.pipes[at].sent += 1;
                            next.pipes[at].incomplete.remove(0);
                            next.advance(at, rules);
                        }
                    }
                    found.push(next);
                }
            }
        }
    }

    /// The data of a WRITE or a SEND are read.
    fn fetch_requests(&self, at: usize, rules: Rules, found: &mut Vec<Self>) {
        let (here, pipe) = (ends(at).0, &self.pipes[at]);
        for (i, request) in pipe.requests.iter().enumerate() {
            let (Verb::Write { from: From::Word(from), .. } | Verb::Send { from: From::Word(from) }) =
                request.verb
            else {
                continue;
            };
            if !request.begun || request.data.is_some() {
                continue;
            }
            if pipe.local.has_passed(request.after) {
                let mut next = self.clone();
                next.pipes[at].requests[i].data = Some(self.load(here, from));
                next.advance(at, rules);
                found.push(next);
            }
            if rules == Rules::Pcie {
                break;
            }
        }
    }

    /// The first request arrives, if it is an atomic, and reads the old value.
    fn execute_atomic(&self, at: usize, rules: Rules, found: &mut Vec<Self>) {
        let (there, pipe) = (ends(at).1, &self.pipes[at]);
        let Some(request) = pipe.requests.first().filter(|request| request.begun) else { return };
        let (to, word, new): (u8, u8, &dyn Fn(u8) -> u8) = match request.verb {
            Verb::Add { to, at, value } => (to, at, &move |old| old + value),
            Verb::Swap { to, at, value } => (to, at, &move |old| if old == 0 { value } else { old }),
            _ => return,
        };
        let is_atomic =
            |(_, entry): &(u8, Entry)| matches!(entry, Entry::Atomic(word, _) if word.node == there);
        let busy = self.pipes.iter().any(|pipe| pipe.remote.entries.iter().any(is_atomic));
        if busy || !pipe.remote.entries.is_empty() {
            return;
        }
        let mut next = self.clone();
        let old = self.load(there, word);
        let pipe = &mut next.pipes[at];
        pipe.requests.remove(0);
        if new(old) != old {
            pipe.remote.push(Entry::Atomic(Word { node: there, at: word }, new(old)));
        }
        pipe.answers.push(Answer::Old { to, data: old });
        next.advance(at, rules);
        found.push(next);
    }
}

/// Two hashes of 64 bits. A state is known by them: the states of a program are far fewer than 2^64.
#[derive(Debug, Default)]
struct Digest(u64, u64);

impl Hasher for Digest {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u8(*byte));
    }

    fn write_u8(&mut self, byte: u8) {
        self.write_u64(byte.into());
    }

    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    fn write_isize(&mut self, n: isize) {
        self.write_u64(n as u64);
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.1 = (self.1.rotate_left(23) ^ n).wrapping_mul(0xc2b2_ae3d_27d4_eb4f).wrapping_add(1);
    }
}

impl State {
    fn digest(&self) -> (u64, u64) {
        let mut digest = Digest::default();
        self.hash(&mut digest);
        (digest.0, digest.1)
    }
}

/// All outcomes of a program.
///
/// # Errors
/// An order lets a thread wait for ever.
pub fn outcomes(program: &Program, rules: Rules) -> Result<BTreeSet<Outcome>, Hangs> {
    let links = program.threads.iter().flat_map(|thread| &thread.ops).filter_map(|op| op.link());
    let start = State {
        memory: [0; NODES * WORDS],
        threads: Default::default(),
        pipes: vec![Pipe::default(); links.max().map_or(0, |last| usize::from(last) + 1) * 2],
    };
    let mut outcomes = BTreeSet::new();
    let mut known: HashSet<(u64, u64), BuildHasherDefault<Digest>> = HashSet::from_iter([start.digest()]);
    let mut todo = vec![start];
    while let Some(state) = todo.pop() {
        let mut next = Vec::new();
        let mut has_ended = true;
        for (i, thread) in program.threads.iter().enumerate() {
            if let Some(op) = thread.ops.get(usize::from(state.threads[i].0)) {
                has_ended = false;
                next.extend(state.execute(i, thread.node, *op, rules));
            }
        }
        state.device_steps(rules, &mut next);
        if next.is_empty() {
            if !has_ended {
                return Err(Hangs);
            }
            let registers = state.threads.iter().flat_map(|(_, registers)| registers.iter());
            outcomes.insert(registers.chain(&state.memory).copied().collect());
        }
        for state in next {
            if known.insert(state.digest()) {
                todo.push(state);
            }
        }
    }
    Ok(outcomes)
}

/// Whether each thread has its end of each connection that it names.
#[must_use]
pub fn is_valid(program: &Program) -> bool {
    program.threads.iter().all(|thread| {
        thread.ops.iter().all(|op| match op {
            Op::Load(at) | Op::Store(at, _) | Op::Await(at) => usize::from(*at) < WORDS,
            _ => op.link().is_none_or(|link| peer(thread.node, link).is_some()),
        })
    })
}
