// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the engine, with queues that the tests write without a driver.

mod clock;
mod compress;
mod copies;
mod cqs;
mod faults;
mod frames;
mod indirect;
mod limits;
mod long;
mod mistakes;
mod mtu;
mod near;
mod network;
mod outside;
mod processes;
mod reliable;
mod rig;
mod script;
mod signatures;
mod streams;
mod trace;
mod windows;
