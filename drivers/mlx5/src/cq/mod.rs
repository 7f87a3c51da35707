// SPDX-License-Identifier: MIT OR Apache-2.0
//! Completion queues: polling, extended polling, arming, resizing.
//!
//! | module       | what                                                                                |
//! |--------------|-------------------------------------------------------------------------------------|
//! | `poll`       | the engine                                                                          |
//! | `ring`       | the entries, where the device writes them                                           |
//! | `entry`      | one entry: whether it is written, and its fields                                    |
//! | `parse`      | whose an entry is; sweeping out what is nobody's                                    |
//! | `completion` | the fields of a completion                                                          |
//! | `scatter`    | data that came in the completion                                                    |
//! | `clock`      | wall clock time                                                                     |
//! | `shared`     | the mailbox through which the control path tells of new, reset and destroyed queues |

mod clock;
mod completion;
pub(crate) mod cqe;
mod entry;
pub mod lookup;
mod parse;
mod poll;
mod ring;
mod scatter;
mod shared;
#[cfg(test)]
mod tests;

pub use clock::Clock;
pub use completion::Completion;
pub use parse::CqeVersion;
pub use poll::{CompletionQueue, CqConfig};
pub use ring::CqRing;
pub use shared::CqShared;
