// SPDX-License-Identifier: MIT OR Apache-2.0
//! The posting half against what the reference wrote, and against models of its queues.

mod access;
mod faces;
mod fork;
mod rings;
mod vectors;
