// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end-to-end suite, run in the VM by `cargo xtask vm test`. One file for each theme.
//!
//! The tests run in this order in one boot; those that disturb the link or the devices come last.

mod constructors;
mod errors;
mod events;
mod faces;
mod inline;
mod lifecycle;
mod mcast;
mod memory;
mod mw;
mod netem;
mod objects;
mod opcodes;
mod peers;
mod polling;
mod ring;
mod semantics;
mod srq;
mod states;
mod threads;
mod ud;
mod xrc;

fn main() -> std::process::ExitCode {
    if let Some(code) = uverbs_tests::roles::play() {
        return code;
    }
    let themes = [
        opcodes::tests,
        faces::tests,
        inline::tests,
        ring::tests,
        errors::tests,
        polling::tests,
        events::tests,
        srq::tests,
        ud::tests,
        mcast::tests,
        memory::tests,
        mw::tests,
        states::tests,
        objects::tests,
        semantics::tests,
        constructors::tests,
        xrc::tests,
        threads::tests,
        peers::tests,
        netem::tests,
        lifecycle::all_tests,
    ];
    uverbs_tests::runner::main(themes.into_iter().flat_map(|t| t()).collect()).exit_code()
}
