// SPDX-License-Identifier: MIT OR Apache-2.0
//! A model of the order of RDMA accesses to memory, and small programs to compare it with the software HCA.
//!
//! [`program`] is a language of litmus programs: threads on up to three nodes, with a few words of memory each. [`generate`] enumerates all
//! such programs of a size. [`oracle`] is the model: it computes all outcomes of a program. Test `order` of package `uverbs-tests` executes
//! the same programs on the software HCA, under every order that the explorer finds, and compares the outcomes.
//!
//! This package has no dependency, so that the model shares no code with the device.

pub mod generate;
mod list;
pub mod oracle;
pub mod program;
