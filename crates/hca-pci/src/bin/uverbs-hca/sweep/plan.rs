// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is made to fail: each call and each completion that the run without faults has recorded.

use super::run::Ran;
use uverbs_core::Errno;
use uverbs_fabric::random::Random;
use uverbs_fabric::script::{Action, Key, Point, Queue, Refusal, Rule, Script, Span, Status, Value};

/// Rules of a random script at most.
const MAX_RANDOM: u64 = 6;

/// A kind of trials, for the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A verb that a command carries.
    Call,
    /// A post.
    Post,
    /// A completion.
    Completion,
    /// A random script.
    Random,
    /// The script of the command line.
    Script,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Call => "verbs",
            Self::Post => "posts",
            Self::Completion => "completions",
            Self::Random => "random scripts",
            Self::Script => "the script",
        }
    }
}

/// A run with a script.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pub(super) kind: Kind,
    /// What fails.
    pub(super) name: String,
    pub(super) script: Script,
}

/// A verb is called so often in a process, or so many WRs complete on queues of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Recorded {
    /// The number of the process.
    pub(super) process: u64,
    pub(super) what: What,
    pub(super) count: u64,
}

/// What is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    Call(String),
    Completion(Queue),
    Packet,
}

impl What {
    /// Of a line of a report.
    pub(super) fn of(words: &[&str]) -> Option<Self> {
        match words {
            ["call", verb] => Some(Self::Call((*verb).into())),
            ["completion", queue] => Some(Self::Completion(Queue::of(queue)?)),
            ["packet"] => Some(Self::Packet),
            _ => None,
        }
    }
}

fn number(n: u64) -> Value {
    Value::Span(Span { first: n, last: n })
}

/// The usual error of a verb: an object in use for those that destroy, no memory for those that make something, another one for those
/// that change or query.
fn errno(verb: &str) -> Errno {
    let has = |parts: &[&str]| parts.iter().any(|part| verb.contains(part));
    // The names of the first ones contain those of the second ones.
    if has(&["destroy", "dealloc", "dereg", "free", "close"]) {
        Errno::EBUSY
    } else if has(&["create", "alloc", "reg_", "open", "mmap", "post", "wr_complete", "resize", "import"]) {
        Errno::ENOMEM
    } else {
        Errno::EINVAL
    }
}

/// The rule that makes an event fail.
fn rule(process: u64, what: &What, nth: u64) -> Rule {
    let mut selectors = vec![(Key::Process, number(process))];
    let (point, action) = match what {
        What::Call(verb) => {
            selectors.push((Key::Verb, Value::Name(verb.clone())));
            (Point::Call, Action::Errno(errno(verb)))
        }
        What::Completion(queue) => {
            selectors.push((Key::Queue, Value::Queue(*queue)));
            let status = if *queue == Queue::Send { Status::RetryExc } else { Status::LocProt };
            (Point::Completion, Action::Status(status))
        }
        What::Packet => (Point::Packet, Action::Drop),
    };
    selectors.push((Key::Nth, number(nth)));
    Rule { point, selectors, action }
}

/// At most `most` of the numbers 1 to `count`, with the first and the last.
pub(super) fn spread(count: u64, most: u32) -> Vec<u64> {
    let most = u64::from(most);
    if count <= most {
        return (1..=count).collect();
    }
    match most {
        0 => Vec::new(),
        1 => vec![1],
        _ => (0..most).map(|i| 1 + i * (count - 1) / (most - 1)).collect(),
    }
}

/// A trial for each call and completion.
pub(super) fn trials(first: &Ran, most: u32) -> Vec<Trial> {
    let mut all = Vec::new();
    for Recorded { process, what, count } in first.recorded() {
        let (kind, name) = match &what {
            What::Call(verb) if is_post(verb) => (Kind::Post, verb.clone()),
            What::Call(verb) => (Kind::Call, verb.clone()),
            What::Completion(queue) => (Kind::Completion, format!("{queue} completion")),
            What::Packet => continue,
        };
        let trial = |nth| Trial { kind, name: name.clone(), script: Script(vec![rule(process, &what, nth)]) };
        all.extend(spread(count, most).into_iter().map(trial));
    }
    all
}

fn is_post(verb: &str) -> bool {
    verb.starts_with("post_") || verb == "wr_complete"
}

/// Scripts of several rules, about events that the run without faults has recorded.
pub(super) fn random(first: &Ran, count: u32, seed: u64) -> Vec<Trial> {
    let recorded: Vec<Recorded> = first.recorded().into_iter().filter(|r| r.count > 0).collect();
    let packets: Vec<Recorded> = recorded.iter().filter(|r| r.what == What::Packet).cloned().collect();
    if recorded.is_empty() {
        return Vec::new();
    }
    let mut numbers = Random::new(seed);
    let one = |i: u32, numbers: &mut Random| {
        let rules = (0..2 + numbers.below(MAX_RANDOM - 1)).map(|_| {
            // One half of the rules is about packets: most programs end at the first verb that fails.
            let of = if numbers.below(2) == 0 && !packets.is_empty() { &packets } else { &recorded };
            let Recorded { process, what, count } = &of[numbers.below(of.len() as u64) as usize];
            let mut rule = rule(*process, what, 1 + numbers.below(*count));
            if *what == What::Packet {
                rule.action = of_packet(numbers);
            }
            rule
        });
        Trial { kind: Kind::Random, name: format!("random script {i}"), script: Script(rules.collect()) }
    };
    (0..count).map(|i| one(i, &mut numbers)).collect()
}

fn of_packet(numbers: &mut Random) -> Action {
    match numbers.below(8) {
        0 => Action::Corrupt,
        1 => Action::Delay(1000 << numbers.below(12)),
        2 => Action::Duplicate(1 + numbers.below(3) as u32),
        3 => Action::Reorder(1 + numbers.below(4) as u32),
        4 => Action::Nak(Refusal::Sequence),
        5 => Action::Rnr(1 + numbers.below(12) as u8),
        _ => Action::Drop,
    }
}
