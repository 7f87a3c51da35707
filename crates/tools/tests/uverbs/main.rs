// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the program `uverbs`.

mod book;
mod generated;
mod software_nic;
mod trace;
