// SPDX-License-Identifier: MIT OR Apache-2.0
//! The language of litmus programs.

use core::fmt;

/// Nodes.
pub const NODES: usize = 3;
/// Words of a node, each in a line of its own. All are 0 at first.
pub const WORDS: usize = 3;
/// The word of a node that gets the data of each SEND.
pub const MAILBOX: u8 = 2;
/// The connections: the nodes of both ends. Two nodes have two connections.
pub const LINKS: [(u8, u8); 3] = [(0, 1), (0, 1), (2, 1)];

/// A word, by the number of its node and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Word {
    /// The node.
    pub node: u8,
    /// The word.
    pub at: u8,
}

impl Word {
    /// Its index in the memory of all nodes.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.node) * WORDS + usize::from(self.at)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = char::from(b'A' + self.node);
        match self.at {
            MAILBOX => write!(f, "{node}.mail"),
            at => write!(f, "{node}.{}", char::from(b'x' + at)),
        }
    }
}

/// The data of a WRITE or a SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum From {
    /// Inline data.
    Value(u8),
    /// A word of the requester.
    Word(u8),
}

/// What a request does. Words of the requester and of its peer are given by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// RDMA WRITE to a word of the peer.
    Write {
        /// Where to.
        to: u8,
        /// The data.
        from: From,
    },
    /// RDMA READ.
    Read {
        /// The word of the requester.
        to: u8,
        /// The word of the peer.
        from: u8,
    },
    /// FETCH AND ADD.
    Add {
        /// The word of the requester that gets the old value.
        to: u8,
        /// The word of the peer.
        at: u8,
        /// What is added.
        value: u8,
    },
    /// COMPARE AND SWAP: replaces 0.
    Swap {
        /// The word of the requester that gets the old value.
        to: u8,
        /// The word of the peer.
        at: u8,
        /// The new value.
        value: u8,
    },
    /// SEND to the mailbox of the peer. Receives are posted before the program begins.
    Send {
        /// The data.
        from: From,
    },
}

/// A step of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    /// Loads a word, to the next register.
    Load(u8),
    /// Stores a value.
    Store(u8, u8),
    /// Loads a word until it is not 0; the last value is in the next register.
    Await(u8),
    /// Posts a signaled request.
    Post {
        /// The connection.
        link: u8,
        /// The request.
        verb: Verb,
        /// `IBV_SEND_FENCE`
        fence: bool,
    },
    /// Polls the completions of the requests of a connection until there is one.
    WaitSent(u8),
    /// Polls them once; the next register gets the number of completions.
    PollSent(u8),
    /// Polls the completions of the receives of a connection until there is one.
    WaitReceived(u8),
}

impl Op {
    /// Whether it has a register.
    #[must_use]
    pub fn has_register(self) -> bool {
        matches!(self, Self::Load(_) | Self::Await(_) | Self::PollSent(_))
    }

    /// The connection that it uses.
    #[must_use]
    pub fn link(self) -> Option<u8> {
        match self {
            Self::Post { link, .. }
            | Self::WaitSent(link)
            | Self::PollSent(link)
            | Self::WaitReceived(link) => Some(link),
            Self::Load(_) | Self::Store(..) | Self::Await(_) => None,
        }
    }
}

/// A thread. Each node has one at most.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Thread {
    /// Its node.
    pub node: u8,
    /// Its steps.
    pub ops: Vec<Op>,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Program {
    /// The threads.
    pub threads: Vec<Thread>,
}

/// What a run of a program leaves: the registers of the threads, one thread after the other, and the memory of all nodes.
pub type Outcome = Vec<u8>;

/// The peer of a node on a connection, if it has an end of it.
#[must_use]
pub fn peer(node: u8, link: u8) -> Option<u8> {
    let (a, b) = *LINKS.get(usize::from(link))?;
    if node == a { Some(b) } else { (node == b).then_some(a) }
}

/// A step of a thread of this node, in words.
fn words(f: &mut fmt::Formatter<'_>, node: u8, op: Op) -> fmt::Result {
    let own = |at| Word { node, at };
    match op {
        Op::Load(at) => write!(f, "load {}", own(at)),
        Op::Store(at, value) => write!(f, "{} = {value}", own(at)),
        Op::Await(at) => write!(f, "await {}", own(at)),
        Op::WaitSent(link) => write!(f, "wait {link}"),
        Op::PollSent(link) => write!(f, "poll {link}"),
        Op::WaitReceived(link) => write!(f, "receive {link}"),
        Op::Post { link, verb, fence } => {
            if fence {
                f.write_str("fenced ")?;
            }
            let far = |at| Word { node: peer(node, link).unwrap_or(node), at };
            let from = |from| match from {
                From::Value(value) => value.to_string(),
                From::Word(at) => own(at).to_string(),
            };
            match verb {
                Verb::Write { to, from: data } => write!(f, "{} =WRITE= {}", far(to), from(data)),
                Verb::Read { to, from } => write!(f, "{} =READ= {}", own(to), far(from)),
                Verb::Add { to, at, value } => write!(f, "{} =ADD= {} + {value}", own(to), far(at)),
                Verb::Swap { to, at, value } => write!(f, "{} =SWAP= {} {value}", own(to), far(at)),
                Verb::Send { from: data } => write!(f, "SEND {}", from(data)),
            }?;
            write!(f, " /{link}")
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct Step(u8, Op);
        impl fmt::Display for Step {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                words(f, self.0, self.1)
            }
        }
        for (i, Thread { node, ops }) in self.threads.iter().enumerate() {
            let separator = if i > 0 { " || " } else { "" };
            write!(f, "{separator}{}:", char::from(b'A' + *node))?;
            for (n, op) in ops.iter().enumerate() {
                write!(f, "{} {}", if n > 0 { ";" } else { "" }, Step(*node, *op))?;
            }
        }
        Ok(())
    }
}

impl Program {
    /// The number of registers.
    #[must_use]
    pub fn registers(&self) -> usize {
        self.threads.iter().flat_map(|thread| &thread.ops).filter(|op| op.has_register()).count()
    }

    /// The number of steps.
    #[must_use]
    pub fn size(&self) -> usize {
        self.threads.iter().map(|thread| thread.ops.len()).sum()
    }
}
