// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queues against models of them, and against changes of state and forks. (`tests/vectors` compares them with the
//! reference.)

mod access;
mod faces;
mod fork;
mod rings;
