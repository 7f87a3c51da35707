// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end-to-end suite, run in the VM by `cargo xtask vm test`: [`uverbs_tests::suite`], and tests that need a real
//! kernel.
//!
//! The tests run in this order in one boot; those that disturb the link or the devices come last.

mod cm;
mod deletion;
mod devx;
mod efa;
mod examples;
mod frames;
mod lifecycle;
mod outside;
mod peers;
mod removal;
mod siw;
mod tools;

use uverbs_tests::suite::{self, aio, drain, netem, stress};
use uverbs_tests::{LabEnv, Vm};

fn main() -> std::process::ExitCode {
    if let Some(code) = uverbs_tests::roles::play() {
        return code;
    }
    lifecycle::beginning();
    if LabEnv::get().is_some_and(|env| env.siw) {
        let themes = [
            siw::tests,
            drain::tests::<Vm>,
            aio::tests::<Vm>,
            cm::tests,
            tools::siw_tests,
            examples::tests,
            stress::tests::<Vm>,
        ];
        return uverbs_tests::runner::main(themes.into_iter().flat_map(|t| t()).collect()).exit_code();
    }
    if LabEnv::get().is_some_and(|env| env.efa) {
        return uverbs_tests::runner::main(efa::tests()).exit_code();
    }
    let themes = [
        suite::tests::<Vm>,
        aio::tests::<Vm>,
        peers::tests,
        cm::tests,
        tools::tests,
        examples::tests,
        netem::tests::<Vm>,
        outside::tests,
        devx::tests,
        frames::tests,
        lifecycle::tests::<Vm>,
        stress::tests::<Vm>,
        removal::tests::<Vm>,
        lifecycle::last_tests,
    ];
    uverbs_tests::runner::main(themes.into_iter().flat_map(|t| t()).collect()).exit_code()
}
