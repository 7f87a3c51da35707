// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executes litmus programs on software HCAs. The devices, connections and memory are made once, since a program has many runs.

use crate::nodes::{LINE, Node, words};
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;
use uverbs::attr::{AccessFlags, QpCap};
use uverbs::mlx5::Mlx5;
use uverbs::raw::{Cq, Qp};
use uverbs::wr::SendFlags;
use uverbs::{ConnectAttr, Exclusive, Rc, Shared, WorkCompletion};
use uverbs_hca::Fabric;
use uverbs_hca::explore::{ATOMICS, Explorer, Footprint, Mode, Report, StepList};
use uverbs_litmus::generate::{Access, accesses};
use uverbs_litmus::program::{From, LINKS, MAILBOX, NODES, Op, Outcome, Program, Thread, Verb, WORDS, peer};
use uverbs_tests::post::{Face, Req, post, post_recv};

type Queue = (Cq<Shared, Mlx5>, u32);

/// One end of a connection, with a completion queue for requests and one for receives.
struct End {
    node: usize,
    qp: RefCell<Qp<Rc, Exclusive, Mlx5>>,
    sent: Queue,
    received: Queue,
    /// Receives that are posted and not complete.
    waiting: Cell<usize>,
}

impl End {
    fn new(nodes: &[Node], node: usize) -> Self {
        let queue = || nodes[node].queue();
        let (sent, received) = (queue(), queue());
        let cap = QpCap::new(32, 32).inline(64);
        let qp = nodes[node].pd.raw_qp::<Rc>().send_cq(&sent.0).recv_cq(&received.0).cap(cap);
        let qp = RefCell::new(qp.create().expect("a QP"));
        Self { node, qp, sent, received, waiting: Cell::new(0) }
    }

    fn connect(&self, peer: &Self) {
        let rights = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        let attr = ConnectAttr::new().access(rights).max_rd_atomic(8).max_dest_rd_atomic(8);
        let endpoints =
            [self, peer].map(|end| end.qp.borrow().control.endpoint(7, &attr).expect("an endpoint"));
        for (end, [here, there]) in [(self, [0, 1]), (peer, [1, 0])] {
            let qp = end.qp.borrow();
            qp.init(&attr).expect("INIT");
            qp.connect(&endpoints[here], &endpoints[there], &attr).expect("RTS");
        }
    }
}

/// Polls a queue once.
fn poll((cq, _): &Queue) -> Option<WorkCompletion> {
    let mut wcs = [WorkCompletion::default()];
    let wc = cq.poll(&mut wcs).expect("a poll").first().copied()?;
    wc.ok().expect("a successful completion");
    Some(wc)
}

/// The devices of all programs.
pub(crate) struct Bench {
    fabric: Fabric,
    nodes: Vec<Node>,
    links: Vec<[End; 2]>,
}

impl Bench {
    /// Devices whose memory has these rights besides all others.
    pub(crate) fn new(access: AccessFlags) -> Self {
        let fabric = Fabric::deterministic(0);
        let node = |name| Node::new(&fabric, name, WORDS, access);
        let nodes: Vec<Node> = ["hca0", "hca1", "hca2"].map(node).into();
        let links = LINKS.map(|(a, b)| {
            let ends = [a, b].map(|node| End::new(&nodes, node.into()));
            ends[0].connect(&ends[1]);
            ends
        });
        Self { fabric, nodes, links: links.into() }
    }

    fn word(&self, node: usize, at: u8) -> &AtomicU64 {
        self.nodes[node].word(at.into())
    }

    fn end(&self, node: u8, link: u8) -> &End {
        let [a, b] = &self.links[usize::from(link)];
        if a.node == usize::from(node) { a } else { b }
    }

    /// Prepares a run: memory is 0, no completion is left, and the receives of the program are posted.
    fn reset(&self, receives: &[[usize; 2]]) {
        for node in 0..NODES {
            (0..WORDS).for_each(|at| self.word(node, at as u8).store(0, Ordering::Relaxed));
        }
        for (ends, receives) in self.links.iter().zip(receives) {
            for (end, receives) in ends.iter().zip(receives) {
                while poll(&end.sent).is_some() {}
                while poll(&end.received).is_some() {
                    end.waiting.set(end.waiting.get() - 1);
                }
                while end.waiting.get() < *receives {
                    let sges = words(&self.nodes[end.node], MAILBOX.into(), 1);
                    let mut qp = end.qp.borrow_mut();
                    let rq = qp.rq_mut().expect("a receive queue");
                    post_recv(rq, Face::Single, &[(0, &sges[..])]).expect("a receive");
                    end.waiting.set(end.waiting.get() + 1);
                }
            }
        }
    }

    /// All outcomes of a program, and the number of runs.
    pub(crate) fn outcomes(&self, program: &Program, mode: Mode) -> (BTreeSet<Outcome>, Report) {
        let mut receives = vec![[0; 2]; LINKS.len()];
        for thread in &program.threads {
            for op in &thread.ops {
                if let Op::Post { link, verb: Verb::Send { .. }, .. } = *op {
                    let is_first = LINKS[usize::from(link)].0 == thread.node;
                    receives[usize::from(link)][usize::from(is_first)] += 1;
                }
            }
        }
        let private = Private::new(self, program);
        let found = RefCell::new(BTreeSet::new());
        let report = Explorer::new().mode(mode).search_on(&self.fabric, |run| {
            self.reset(&receives);
            let mut players: Vec<Player<'_>> =
                program.threads.iter().map(|thread| Player::new(self, thread)).collect();
            let mut step_lists: Vec<&mut dyn StepList> =
                players.iter_mut().map(|player| player as _).collect();
            run.step_lists(&mut step_lists, &|footprint| private.has(footprint));
            let mut outcome: Outcome =
                players.iter().flat_map(|player| player.seen.iter().copied()).collect();
            for node in 0..NODES {
                outcome.extend((0..WORDS).map(|at| self.word(node, at as u8).load(Ordering::Relaxed) as u8));
            }
            found.borrow_mut().insert(outcome);
        });
        (found.into_inner(), report)
    }
}

/// What the steps of a program access, to tell which of them conflict with no other one.
struct Private {
    /// Words that nothing writes, and words that one step accesses.
    read: Vec<u64>,
    alone: Vec<u64>,
    /// Completion queues that are polled, and queue pairs of requests.
    used: Vec<(usize, u32)>,
    /// Atomics, by the device that executes them.
    atomics: [usize; NODES],
}

impl Private {
    fn new(bench: &Bench, program: &Program) -> Self {
        let mut words = [(0, 0); NODES * WORDS];
        let (mut used, mut atomics) = (Vec::new(), [0; NODES]);
        for thread in &program.threads {
            let index = bench.nodes[usize::from(thread.node)].hca.index();
            for op in &thread.ops {
                // The arrival of an answer matters only for a later request.
                let is_on = |op: &Op, link| matches!(op, Op::Post { link: other, .. } if *other == link);
                if let Op::Post { link, .. } = *op
                    && thread.ops.iter().filter(|op| is_on(op, link)).count() > 1
                {
                    used.push((index, bench.end(thread.node, link).qp.borrow().qp_num()));
                }
                accesses(thread.node, *op, |word, access| {
                    let (all, writes) = &mut words[word.index()];
                    *all += 1;
                    *writes += usize::from(access != Access::Read);
                });
                match *op {
                    Op::WaitSent(link) | Op::PollSent(link) => {
                        used.push((index, bench.end(thread.node, link).sent.1))
                    }
                    Op::WaitReceived(link) => used.push((index, bench.end(thread.node, link).received.1)),
                    Op::Post { link, verb: Verb::Add { .. } | Verb::Swap { .. }, .. } => {
                        let there = peer(thread.node, link).expect("a peer");
                        atomics[bench.nodes[usize::from(there)].hca.index()] += 1;
                    }
                    _ => {}
                }
            }
        }
        let place = |i: usize| bench.word(i / WORDS, (i % WORDS) as u8).as_ptr().addr() as u64;
        let all = || words.iter().enumerate();
        let read = all().filter(|(_, (_, writes))| *writes == 0).map(|(i, _)| place(i)).collect();
        let alone = all().filter(|(_, (all, _))| *all <= 1).map(|(i, _)| place(i)).collect();
        Self { read, alone, used, atomics }
    }

    fn has(&self, footprint: &Footprint) -> bool {
        let Footprint { reads, writes, object, everything } = footprint;
        let object = object.is_none_or(|(device, number)| match number {
            ATOMICS => self.atomics[device] <= 1,
            _ => !self.used.contains(&(device, number)),
        });
        let reads = reads.is_none_or(|(at, _)| self.read.contains(&at) || self.alone.contains(&at));
        object && !everything && reads && writes.is_none_or(|(at, _)| self.alone.contains(&at))
    }
}

/// A thread of a program.
struct Player<'b> {
    bench: &'b Bench,
    node: u8,
    ops: &'b [Op],
    at: usize,
    seen: Vec<u8>,
}

impl<'b> Player<'b> {
    fn new(bench: &'b Bench, thread: &'b Thread) -> Self {
        Self { bench, node: thread.node, ops: &thread.ops, at: 0, seen: Vec::new() }
    }

    fn word(&self, at: u8) -> &AtomicU64 {
        self.bench.word(self.node.into(), at)
    }

    fn post(&self, link: u8, verb: Verb, fence: bool) {
        let here = &self.bench.nodes[usize::from(self.node)];
        let there = &self.bench.nodes[usize::from(peer(self.node, link).expect("a peer"))];
        let (to_here, inline);
        let (op, data) = match verb {
            Verb::Write { to, from } => (uverbs_tests::post::Op::Write(there.remote(to.into())), from),
            Verb::Send { from } => (uverbs_tests::post::Op::Send, from),
            Verb::Read { to, from } => {
                (uverbs_tests::post::Op::Read(there.remote(from.into())), From::Word(to))
            }
            Verb::Add { to, at, value } => {
                (uverbs_tests::post::Op::FetchAdd(there.remote(at.into()), value.into()), From::Word(to))
            }
            Verb::Swap { to, at, value } => {
                (uverbs_tests::post::Op::CmpSwp(there.remote(at.into()), 0, value.into()), From::Word(to))
            }
        };
        let req = Req::new(0, op);
        let req = match data {
            From::Word(at) => {
                to_here = words(here, at.into(), 1);
                req.sges(&to_here)
            }
            From::Value(value) => {
                inline = u64::from(value).to_ne_bytes();
                req.inline(&inline)
            }
        };
        let flags = if fence { SendFlags::FENCE | SendFlags::SIGNALED } else { SendFlags::SIGNALED };
        let mut qp = self.bench.end(self.node, link).qp.borrow_mut();
        post(&mut qp, Face::Single, &[req.flags(flags)]).expect("a post");
    }
}

impl StepList for Player<'_> {
    fn next(&self) -> Option<Footprint> {
        let range = |at| Some((self.word(at).as_ptr().addr() as u64, 8));
        let mut footprint = Footprint::default();
        let end = |link| self.bench.end(self.node, link);
        let number = match *self.ops.get(self.at)? {
            Op::Load(at) | Op::Await(at) => {
                footprint.reads = range(at);
                return Some(footprint);
            }
            Op::Store(at, _) => {
                footprint.writes = range(at);
                return Some(footprint);
            }
            Op::Post { link, .. } => {
                // Without a mode the devices execute the request in the call.
                footprint.everything = self.bench.fabric.mode() == Mode::Ordered;
                end(link).qp.borrow().qp_num()
            }
            Op::WaitSent(link) | Op::PollSent(link) => end(link).sent.1,
            Op::WaitReceived(link) => end(link).received.1,
        };
        footprint.object = Some((self.bench.nodes[usize::from(self.node)].hca.index(), number));
        Some(footprint)
    }

    fn is_ready(&self) -> bool {
        let end = |link| self.bench.end(self.node, link);
        let has =
            |cqn| self.bench.nodes[usize::from(self.node)].hca.unread(cqn).is_some_and(|unread| unread > 0);
        match self.ops[self.at] {
            Op::Await(at) => self.word(at).load(Ordering::Relaxed) != 0,
            Op::WaitSent(link) => has(end(link).sent.1),
            Op::WaitReceived(link) => has(end(link).received.1),
            _ => true,
        }
    }

    fn has_condition(&self) -> bool {
        matches!(self.ops[self.at], Op::Await(_) | Op::WaitSent(_) | Op::WaitReceived(_))
    }

    fn act(&mut self) -> Option<String> {
        let op = self.ops[self.at];
        self.at += 1;
        let bench = self.bench;
        match op {
            Op::Load(at) | Op::Await(at) => {
                let value = self.word(at).load(Ordering::Relaxed) as u8;
                self.seen.push(value);
            }
            Op::Store(at, value) => self.word(at).store(value.into(), Ordering::Relaxed),
            Op::Post { link, verb, fence } => self.post(link, verb, fence),
            Op::WaitSent(link) => drop(poll(&bench.end(self.node, link).sent).expect("a completion")),
            Op::PollSent(link) => {
                let found = poll(&bench.end(self.node, link).sent).is_some();
                self.seen.push(found.into());
            }
            Op::WaitReceived(link) => {
                let end = bench.end(self.node, link);
                poll(&end.received).expect("a completion");
                end.waiting.set(end.waiting.get() - 1);
            }
        }
        None
    }
}

#[test]
fn lines_are_apart() {
    let bench = Bench::new(AccessFlags::empty());
    let place = |at| bench.word(0, at).as_ptr().addr();
    assert_eq!(place(1) - place(0), LINE);
}
