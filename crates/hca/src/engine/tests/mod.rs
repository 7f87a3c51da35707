// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine under queues that the tests write by hand.

mod clock;
mod cqs;
mod frames;
mod mistakes;
mod network;
mod processes;
mod reliable;
mod rig;
mod windows;
