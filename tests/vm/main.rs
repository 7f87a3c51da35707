// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end-to-end suite, run in the VM by `cargo xtask vm test`. One file for each theme.
//!
//! The tests run in this order in one boot; those that disturb the link or the devices come last.

mod frames;
mod lifecycle;
mod peers;
mod removal;
#[path = "../themes/mod.rs"]
mod themes;
mod tools;

use themes::*;
use uverbs_tests::Vm;

fn main() -> std::process::ExitCode {
    if let Some(code) = uverbs_tests::roles::play() {
        return code;
    }
    lifecycle::beginning();
    let themes = [
        opcodes::tests::<Vm>,
        faces::tests::<Vm>,
        inline::tests::<Vm>,
        ring::tests::<Vm>,
        errors::tests::<Vm>,
        polling::tests::<Vm>,
        events::tests::<Vm>,
        srq::tests::<Vm>,
        ud::tests::<Vm>,
        mcast::tests::<Vm>,
        memory::tests::<Vm>,
        big::tests::<Vm>,
        mw::tests::<Vm>,
        states::tests::<Vm>,
        objects::tests::<Vm>,
        semantics::tests::<Vm>,
        constructors::tests::<Vm>,
        xrc::tests::<Vm>,
        xrc_traffic::tests::<Vm>,
        dc::tests::<Vm>,
        raw::tests::<Vm>,
        threads::tests::<Vm>,
        peers::tests,
        tools::tests,
        netem::tests::<Vm>,
        frames::tests,
        lifecycle::tests::<Vm>,
        stress::tests::<Vm>,
        removal::tests::<Vm>,
        lifecycle::last_tests,
    ];
    uverbs_tests::runner::main(themes.into_iter().flat_map(|t| t()).collect()).exit_code()
}
