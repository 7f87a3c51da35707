// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues: polling, extended polling, arming, resizing.
//!
//! | module       | what                                                                               |
//! |--------------|------------------------------------------------------------------------------------|
//! | `poll`       | the poller: `ibv_poll_cq`, typed iteration, arming, resizing                       |
//! | `cursor`     | a poll's position in the ring, and the search for the next completion              |
//! | `sink`       | the destination of a poll's completions: C structs or a closure                    |
//! | `session`    | extended polling                                                                   |
//! | `shared`     | mutual exclusion of the poller and the control path                                |
//! | `state`      | consumer position, ring and lookup table, and their changes by the control path    |
//! | `parse`      | parses an entry into a completion                                                  |
//! | `cached`    | a cache of the last entry's resource                                               |
//! | `lookup`     | maps a number in an entry to its resource                                          |
//! | `ring`       | the memory with the entries, which the device writes                               |
//! | `entry`      | one entry: its valid test and its fields                                           |
//! | `compressed` | expands compressed entries                                                         |
//! | `cqe`        | converts an entry's values to those of the verbs                                   |
//! | `completion` | a completion                                                                       |
//! | `scatter`    | copies data that came in a completion                                              |
//! | `clock`      | converts timestamps to wall clock time                                             |

mod cached;
mod clock;
mod completion;
mod compressed;
pub(crate) mod cqe;
mod cursor;
mod entry;
mod lookup;
mod parse;
mod poll;
mod ring;
mod scatter;
mod session;
mod shared;
mod sink;
mod state;
#[cfg(test)]
mod tests;

pub use clock::{Clock, ClockInfo};
pub use completion::Completion;
pub use compressed::CqeCompression;
pub use parse::CqeVersion;
pub use poll::{CompletionQueue, CqConfig, RingOwner};
pub use ring::CqRing;
pub use shared::CqShared;
