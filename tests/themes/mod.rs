// SPDX-License-Identifier: MIT OR Apache-2.0
//! The themes that every driver and device is held to, in the VM and on the software HCA. One file for each.
//!
//! The tests query the device for its features; other differences are documented in the tests.

pub(crate) mod big;
pub(crate) mod constructors;
pub(crate) mod dc;
pub(crate) mod errors;
pub(crate) mod events;
pub(crate) mod faces;
pub(crate) mod inline;
pub(crate) mod mcast;
pub(crate) mod memory;
pub(crate) mod mw;
pub(crate) mod netem;
pub(crate) mod objects;
pub(crate) mod opcodes;
pub(crate) mod polling;
pub(crate) mod raw;
pub(crate) mod ring;
pub(crate) mod semantics;
pub(crate) mod srq;
pub(crate) mod states;
pub(crate) mod stress;
pub(crate) mod threads;
pub(crate) mod ud;
pub(crate) mod xrc;
pub(crate) mod xrc_traffic;
