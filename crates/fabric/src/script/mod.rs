// SPDX-License-Identifier: MIT OR Apache-2.0
//! Faults by script: rules that select an event of a fabric and say what happens then.
//!
//! ```text
//! # The first packet of the 7th send of a QP is lost.
//! packet device=hca0 qp=0x102 opcode=send wr=7 packet=1 : drop
//! completion device=hca0 queue=recv nth=3 : status LOC_PROT_ERR
//! call verb=create_qp nth=2 : errno ENOMEM
//! clock time=5ms device=hca1 : port down
//! ```
//!
//! The guide "Faults by script" has the grammar. A script is set by [`Fabric::script`](crate::Fabric::script), by the environment variable
//! `UVERBS_HCA_FAULTS`, or by a control socket. Without one, an event costs one comparison.
//!
//! | module | contents |
//! |---|---|
//! | `names` | the names of opcodes, statuses, events |
//! | `rule`, `parse` | rules and their text |
//! | `engine` | which rules match an event |
//! | `net` | the events of packets, completions and verbs |
//! | `world` | the changes of devices |
//! | `report` | what was called and completed, for a sweep |

mod engine;
mod environment;
mod names;
mod net;
mod parse;
mod report;
mod rule;
#[cfg(test)]
mod tests;
mod world;

pub(crate) use engine::Engine;
pub use engine::Event as Seen;
pub use environment::{of_environment, of_environment_for};
pub use names::{Event, Key, Opcode, Point, Queue, Refusal, Status};
pub use net::{Answer, Completed, Failure, PacketFacts};
pub(crate) use report::watch;
pub use rule::{Action, Change, Rule, Span, Value};

use crate::model::Model;
use core::fmt;
use core::str::FromStr;

/// Bytes of a script at most.
pub const MAX_TEXT: usize = 64 << 10;
/// Rules of a script at most.
pub const MAX_RULES: usize = 256;

/// A script: rules, of which all that match an event apply to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script(pub Vec<Rule>);

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|rule| writeln!(f, "{rule}"))
    }
}

impl Script {
    /// The first rule that no text has, or that has no effect on any device of a model, and why.
    #[must_use]
    pub fn refused<M: Model>(&self) -> Option<ScriptError> {
        let refused = |(i, rule): (usize, &Rule)| {
            let error = |message| Some(ScriptError { line: i + 1, column: 1, message });
            if i >= MAX_RULES {
                return error(format!("more than {MAX_RULES} rules"));
            }
            // A program may have made the rule of its parts: an action at another point, or a number beyond its limit.
            match rule.to_string().parse::<Self>() {
                Ok(Self(same)) if same == [rule.clone()] => {}
                Ok(_) => return error(format!("{rule}: another rule has this text")),
                Err(ScriptError { message, .. }) => return error(format!("{rule}: {message}")),
            }
            error(format!("{rule}: {}", M::refuses(rule)?))
        };
        self.0.iter().enumerate().find_map(refused)
    }
}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        parse::script(text, |_| None)
    }
}

/// Why a text is not a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptError {
    /// The line, from 1; 0 for the whole text.
    pub line: usize,
    /// The column in bytes, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "the script: {}", self.message),
            line => write!(f, "line {line}, column {}: {}", self.column, self.message),
        }
    }
}

impl core::error::Error for ScriptError {}
