// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tests that every driver and device must pass, in the VM and on the software HCA, with one module for each
//! subject.
//!
//! The tests query the device for its features; other differences are documented in the tests.

use crate::{Test, TestBed};

pub mod aio;
pub mod big;
pub mod compressed;
pub mod constructors;
pub mod dc;
pub mod drain;
pub mod errors;
pub mod events;
pub mod faces;
pub mod faults;
pub mod features;
pub mod inline;
pub mod mcast;
pub mod memory;
pub mod mw;
pub mod netem;
pub mod objects;
pub mod opcodes;
pub mod polling;
pub mod raw;
pub mod ring;
pub mod semantics;
pub mod srq;
pub mod states;
pub mod stress;
pub mod threads;
pub mod ud;
pub mod xrc;

/// The tests that do not change the link or the devices.
pub fn tests<P: TestBed>() -> Vec<Test> {
    let themes = [
        opcodes::tests::<P>,
        faces::tests::<P>,
        inline::tests::<P>,
        ring::tests::<P>,
        errors::tests::<P>,
        faults::tests::<P>,
        polling::tests::<P>,
        compressed::tests::<P>,
        events::tests::<P>,
        srq::tests::<P>,
        ud::tests::<P>,
        mcast::tests::<P>,
        memory::tests::<P>,
        big::tests::<P>,
        mw::tests::<P>,
        states::tests::<P>,
        objects::tests::<P>,
        semantics::tests::<P>,
        constructors::tests::<P>,
        features::tests::<P>,
        xrc::tests::<P>,
        dc::tests::<P>,
        raw::tests::<P>,
        threads::tests::<P>,
    ];
    themes.into_iter().flat_map(|theme| theme()).collect()
}
