// SPDX-License-Identifier: MIT OR Apache-2.0
//! All programs of a size, without those that another one stands for.
//!
//! A program is left out if renaming of words, nodes or connections makes it another one, if a step of it can't matter (a word that nothing
//! else accesses; a wait at the end), if its threads have nothing in common, or if a thread waits for what nobody does.

use crate::program::{From, LINKS, MAILBOX, NODES, Op, Program, Thread, Verb, WORDS, Word, peer};

/// The nodes with threads, and the connections between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The nodes of the threads.
    pub nodes: &'static [u8],
    /// The connections, each of which is used.
    pub links: &'static [u8],
}

/// Two nodes with one connection, two nodes with two connections, three nodes.
pub const SHAPES: [Shape; 3] = [
    Shape { nodes: &[0, 1], links: &[0] },
    Shape { nodes: &[0, 1], links: &[0, 1] },
    Shape { nodes: &[0, 1, 2], links: &[0, 2] },
];

/// How a step accesses a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes, or reads and writes.
    Write,
    /// The result of a READ or an atomic.
    Result,
}

/// The accesses of a step of a thread.
pub fn accesses(node: u8, op: Op, mut f: impl FnMut(Word, Access)) {
    let own = |at| Word { node, at };
    match op {
        Op::Load(at) | Op::Await(at) => f(own(at), Access::Read),
        Op::Store(at, _) => f(own(at), Access::Write),
        Op::WaitSent(_) | Op::PollSent(_) | Op::WaitReceived(_) => {}
        Op::Post { link, verb, .. } => {
            let far = |at| Word { node: peer(node, link).unwrap_or(node), at };
            match verb {
                Verb::Write { from, to } => {
                    if let From::Word(at) = from {
                        f(own(at), Access::Read);
                    }
                    f(far(to), Access::Write);
                }
                Verb::Send { from } => {
                    if let From::Word(at) = from {
                        f(own(at), Access::Read);
                    }
                    f(far(MAILBOX), Access::Write);
                }
                Verb::Read { to, from } => {
                    f(far(from), Access::Read);
                    f(own(to), Access::Result);
                }
                Verb::Add { to, at, .. } | Verb::Swap { to, at, .. } => {
                    f(far(at), Access::Write);
                    f(own(to), Access::Result);
                }
            }
        }
    }
}

/// The steps that a thread of this node can take next. `value` is the value that it writes.
fn choices(shape: Shape, node: u8, before: &[Op], value: u8) -> Vec<Op> {
    const NAMED: [u8; 2] = [0, 1];
    let mut found = vec![Op::Load(MAILBOX)];
    for at in NAMED {
        found.extend([Op::Load(at), Op::Store(at, value), Op::Await(at)]);
    }
    for &link in shape.links.iter().filter(|link| peer(node, **link).is_some()) {
        let (mut posts, mut answers, mut polls) = (0, 0, 0);
        for op in before {
            match *op {
                Op::Post { link: of, verb, .. } if of == link => {
                    posts += 1;
                    answers += usize::from(!matches!(verb, Verb::Write { .. } | Verb::Send { .. }));
                }
                Op::WaitSent(of) | Op::PollSent(of) if of == link => polls += 1,
                _ => {}
            }
        }
        if polls < posts {
            found.extend([Op::WaitSent(link), Op::PollSent(link)]);
        }
        found.push(Op::WaitReceived(link));
        let mut verbs = vec![Verb::Send { from: From::Value(value) }, Verb::Send { from: From::Word(0) }];
        for to in NAMED {
            let from = [From::Value(value), From::Word(0), From::Word(1)];
            verbs.extend(from.map(|from| Verb::Write { to, from }));
            verbs.extend(NAMED.map(|from| Verb::Read { to, from }));
            verbs.extend(NAMED.map(|at| Verb::Add { to, at, value: 16 }));
            verbs.extend(NAMED.map(|at| Verb::Swap { to, at, value }));
        }
        for verb in verbs {
            found.push(Op::Post { link, verb, fence: false });
            if answers > 0 {
                found.push(Op::Post { link, verb, fence: true });
            }
        }
    }
    found
}

/// Words and connections in the order of their first use.
#[derive(Clone, Debug, Default)]
struct Names {
    words: [u8; NODES],
    links: u8,
}

impl Names {
    /// Adds those of a step; `false` if they are not in order.
    fn add(&mut self, shape: Shape, node: u8, op: Op) -> bool {
        let mut in_order = true;
        accesses(node, op, |word, _| {
            if word.at != MAILBOX {
                let used = &mut self.words[usize::from(word.node)];
                in_order &= word.at <= *used;
                *used = (*used).max(word.at + 1);
            }
        });
        // Only two connections of the same nodes can be exchanged.
        if let Op::Post { link, .. } = op
            && shape.nodes.len() == 2
        {
            in_order &= link <= self.links;
            self.links = self.links.max(link + 1);
        }
        in_order
    }
}

/// Whether each step of a program matters, and no thread waits for what nobody does.
fn matters(shape: Shape, program: &Program) -> bool {
    let mut posts = 0;
    let mut links = [false; LINKS.len()];
    // By word: reads, writes, results, and the threads that access it.
    let mut words = [(0, 0, 0, [false; NODES]); NODES * WORDS];
    let (mut sends, mut receives) = ([[0; NODES]; LINKS.len()], [[0; NODES]; LINKS.len()]);
    for (i, Thread { node, ops }) in program.threads.iter().enumerate() {
        for op in ops {
            if let Op::Post { link, verb, .. } = *op {
                posts += 1;
                links[usize::from(link)] = true;
                if let (Verb::Send { .. }, Some(to)) = (verb, peer(*node, link)) {
                    sends[usize::from(link)][usize::from(to)] += 1;
                }
            }
            if let Op::WaitReceived(link) = *op {
                receives[usize::from(link)][usize::from(*node)] += 1;
            }
            accesses(*node, *op, |word, access| {
                let (reads, writes, results, threads) = &mut words[word.index()];
                match access {
                    Access::Read => *reads += 1,
                    Access::Write => *writes += 1,
                    Access::Result => *results += 1,
                }
                threads[i] = true;
            });
        }
        if matches!(ops.last(), Some(Op::WaitSent(_) | Op::WaitReceived(_) | Op::Await(_))) {
            return false;
        }
    }
    if posts == 0 || !shape.links.iter().all(|link| links[usize::from(*link)]) || sends != receives {
        return false;
    }
    for (index, (reads, writes, results, _)) in words.iter().enumerate() {
        let is_mailbox = index % WORDS == usize::from(MAILBOX);
        let all = reads + writes + results;
        if all == 0 || is_mailbox && *writes > 0 {
            continue;
        }
        if writes + results == 0 || all == 1 && *results == 0 {
            return false;
        }
    }
    // Each thread has something in common with another one.
    let count = program.threads.len();
    let mut reached = [false; NODES];
    reached[0] = true;
    for _ in 0..count {
        for (_, _, _, threads) in &words {
            if (0..count).any(|i| threads[i] && reached[i]) {
                (0..count).for_each(|i| reached[i] |= threads[i]);
            }
        }
    }
    (0..count).all(|i| reached[i] || program.threads[i].ops.is_empty())
}

/// The same program with both nodes exchanged and all names in order.
fn exchanged(program: &Program) -> Program {
    let mut threads: Vec<Thread> = program.threads.iter().rev().cloned().collect();
    let mut value = 0;
    let mut words = [[None; WORDS]; NODES];
    let (mut used, mut links, mut used_links) = ([0; NODES], [None; LINKS.len()], 0);
    for (i, thread) in threads.iter_mut().enumerate() {
        thread.node = i as u8;
        let (here, there) = (i, 1 - i);
        let mut name = |node: usize, at: u8| -> u8 {
            if at == MAILBOX {
                return at;
            }
            *words[node][usize::from(at)].get_or_insert_with(|| {
                used[node] += 1;
                used[node] - 1
            })
        };
        for op in &mut thread.ops {
            value += 1;
            let mut link_name = |link: u8| -> u8 {
                *links[usize::from(link)].get_or_insert_with(|| {
                    used_links += 1;
                    used_links - 1
                })
            };
            match op {
                Op::Load(at) | Op::Await(at) => *at = name(here, *at),
                Op::Store(at, v) => (*at, *v) = (name(here, *at), value),
                Op::WaitSent(link) | Op::PollSent(link) | Op::WaitReceived(link) => *link = link_name(*link),
                Op::Post { link, verb, .. } => {
                    *link = link_name(*link);
                    let mut data = |from: &mut From| match from {
                        From::Value(v) => *v = value,
                        From::Word(at) => *at = name(here, *at),
                    };
                    match verb {
                        Verb::Write { to, from } => {
                            data(from);
                            *to = name(there, *to);
                        }
                        Verb::Send { from } => data(from),
                        Verb::Read { to, from } => {
                            *from = name(there, *from);
                            *to = name(here, *to);
                        }
                        Verb::Add { to, at, .. } => {
                            *at = name(there, *at);
                            *to = name(here, *to);
                        }
                        Verb::Swap { to, at, value: v } => {
                            *v = value;
                            *at = name(there, *at);
                            *to = name(here, *to);
                        }
                    }
                }
            }
        }
    }
    Program { threads }
}

struct Search<'f> {
    shape: Shape,
    size: usize,
    program: Program,
    /// One in so many beginnings, which lack one step, and one in so many of the programs that have it; and those so far.
    beginnings: Every,
    endings: Every,
    found: &'f mut dyn FnMut(&Program),
}

/// One in so many: those whose number has this remainder.
#[derive(Debug)]
struct Every {
    every: usize,
    remainder: usize,
    so_far: usize,
}

impl Every {
    fn takes(&mut self) -> bool {
        self.so_far += 1;
        self.so_far % self.every == self.remainder
    }
}

/// A part of the programs: one in about `every`, some programs of some beginnings. Each program is in one of the [`parts`](Self::parts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// One in so many.
    pub every: usize,
    /// Which of them.
    pub part: usize,
}

impl Sample {
    /// The strides of beginnings and of endings for programs of a size.
    fn strides(self, size: usize) -> (usize, usize) {
        let every = self.every.max(1);
        // Few programs are all that is wanted of a small size.
        let beginnings = if size > 3 { every.isqrt() } else { 1 };
        (beginnings, every / beginnings)
    }

    /// The number of parts that have all programs of a size.
    #[must_use]
    pub fn parts(self, size: usize) -> usize {
        let (beginnings, endings) = self.strides(size);
        beginnings * endings
    }
}

impl Search<'_> {
    fn extend(&mut self, names: &Names) {
        let done = self.program.size();
        if done == self.size {
            let program = &self.program;
            let is_first = self.shape.nodes.len() > 2 || *program <= exchanged(program);
            if is_first && matters(self.shape, program) && self.endings.takes() {
                (self.found)(program);
            }
            return;
        }
        if done + 1 == self.size && !self.beginnings.takes() {
            return;
        }
        // A further step of the last thread, or the first step of a further thread.
        let last = self.program.threads.len();
        for new in [false, true] {
            if !new && last == 0 || new && last == self.shape.nodes.len() {
                continue;
            }
            if new {
                let node = self.shape.nodes[last];
                self.program.threads.push(Thread { node, ops: Vec::new() });
            }
            let i = self.program.threads.len() - 1;
            let node = self.program.threads[i].node;
            for op in choices(self.shape, node, &self.program.threads[i].ops, done as u8 + 1) {
                let mut names = names.clone();
                if names.add(self.shape, node, op) {
                    self.program.threads[i].ops.push(op);
                    self.extend(&names);
                    self.program.threads[i].ops.pop();
                }
            }
            if new {
                self.program.threads.pop();
            }
        }
    }
}

/// Calls `found` with each program of this shape and size.
pub fn programs(shape: Shape, size: usize, found: impl FnMut(&Program)) {
    sample(shape, size, Sample { every: 1, part: 0 }, found);
}

/// Calls `found` with a part of the programs of this shape and size. There is none whose number is not below [`Sample::parts`].
pub fn sample(shape: Shape, size: usize, sample: Sample, mut found: impl FnMut(&Program)) {
    let program = Program { threads: Vec::new() };
    let (every_beginning, every_ending) = sample.strides(size);
    if sample.part >= sample.parts(size) {
        return;
    }
    let every = |every, remainder| Every { every, remainder, so_far: 0 };
    let beginnings = every(every_beginning, sample.part / every_ending);
    let endings = every(every_ending, sample.part % every_ending);
    Search { shape, size, program, beginnings, endings, found: &mut found }.extend(&Names::default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn each_program_is_in_one_part() {
        let in_one_part = |shape, size, every| {
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            programs(shape, size, |program| {
                counts.insert(program.to_string(), 0);
            });
            assert!(!counts.is_empty());
            let all = Sample { every, part: 0 };
            let parts = all.parts(size);
            assert!((2..=every).contains(&parts));
            for part in 0..=parts {
                sample(shape, size, Sample { part, ..all }, |program| {
                    *counts.get_mut(&program.to_string()).expect("a program of the list") += 1;
                });
            }
            assert!(counts.values().all(|count| *count == 1), "{shape:?} of {size} steps");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| in_one_part(SHAPES[0], 3, 7));
            scope.spawn(|| in_one_part(SHAPES[2], 3, 4));
            in_one_part(SHAPES[2], 4, 10);
        });
    }
}
