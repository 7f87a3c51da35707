// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the queues with models of them, and tests changes of state and forks. (`tests/vectors` compares posts with the
//! reference.)

mod access;
mod faces;
mod fork;
mod rings;
