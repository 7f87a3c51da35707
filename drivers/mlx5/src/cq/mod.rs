// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues: polling, extended polling, arming, resizing.
//!
//! | module       | what                                                                               |
//! |--------------|------------------------------------------------------------------------------------|
//! | `poll`       | the poller: `ibv_poll_cq`, typed iteration, arming, resizing                       |
//! | `cursor`     | where a poll stands, and the way to the next completion                            |
//! | `sink`       | where a poll puts its completions                                                  |
//! | `session`    | extended polling                                                                   |
//! | `shared`     | how the poller and the control path exclude each other                             |
//! | `state`      | consumer position, ring and lookup table; what the control path changes            |
//! | `parse`      | from an entry to a completion                                                      |
//! | `at_hand`    | the resource of the last entry                                                     |
//! | `lookup`     | from a number in an entry to its resource                                          |
//! | `user_index` | the numbers by which completions name resources                                    |
//! | `ring`       | the entries in memory that the device writes                                       |
//! | `entry`      | one entry: whether it is written, and its fields                                   |
//! | `cqe`        | what the fields say, as verbs say it                                               |
//! | `completion` | a completion                                                                       |
//! | `scatter`    | data that came in the completion                                                   |
//! | `clock`      | wall clock time                                                                    |

mod at_hand;
mod clock;
mod completion;
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
mod user_index;

pub use clock::Clock;
pub use completion::Completion;
pub use parse::CqeVersion;
pub use poll::{CompletionQueue, CqConfig, RingOwner};
pub use ring::CqRing;
pub use shared::CqShared;
pub use user_index::{UserIndex, UserIndices};
