// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end-to-end suite on software mlx5 HCAs in this process: the themes of the VM, and what only an mlx5 device has.
//! No root, no kernel module, no VM.
//!
//! Each test gets a fabric of its own with a virtual clock, so waiting costs no time and a failure comes again. After
//! it, no object may be left in the device's kernel, no file open, and the driver must have made no mistake that the
//! device saw.

mod bed;
mod handshake;
mod kinds;
mod programs;
mod sharing;
#[path = "../themes/mod.rs"]
mod themes;

use bed::{Hca, InfiniBand, RealTime};
use themes::*;

fn main() -> std::process::ExitCode {
    if std::env::var_os(handshake::WITHOUT_MEMBARRIER).is_some()
        && let Err(e) = handshake::refuse_membarrier()
    {
        eprintln!("{e:#}");
        return std::process::ExitCode::FAILURE;
    }
    bed::install();
    let themes = [
        opcodes::tests::<Hca>,
        faces::tests::<Hca>,
        inline::tests::<Hca>,
        ring::tests::<Hca>,
        errors::tests::<Hca>,
        polling::tests::<Hca>,
        events::tests::<Hca>,
        srq::tests::<Hca>,
        ud::tests::<Hca>,
        mcast::tests::<Hca>,
        memory::tests::<Hca>,
        big::tests::<Hca>,
        mw::tests::<Hca>,
        states::tests::<Hca>,
        objects::tests::<Hca>,
        semantics::tests::<Hca>,
        constructors::tests::<Hca>,
        xrc::tests::<Hca>,
        xrc_traffic::tests::<Hca>,
        dc::tests::<Hca>,
        raw::tests::<Hca>,
        threads::tests::<Hca>,
        sharing::tests::<Hca>,
        netem::tests::<Hca>,
        threads::tests::<RealTime>,
        sharing::tests::<RealTime>,
        events::tests::<RealTime>,
        stress::tests::<RealTime>,
        opcodes::tests::<InfiniBand>,
        errors::tests::<InfiniBand>,
        ud::tests::<InfiniBand>,
        mcast::tests::<InfiniBand>,
        states::tests::<InfiniBand>,
        objects::tests::<InfiniBand>,
        constructors::tests::<InfiniBand>,
        xrc_traffic::tests::<InfiniBand>,
        dc::tests::<InfiniBand>,
        netem::tests::<InfiniBand>,
        kinds::tests,
        handshake::tests,
        programs::tests::<Hca>,
    ];
    uverbs_tests::runner::run(themes.into_iter().flat_map(|t| t()).collect(), true).exit_code()
}
