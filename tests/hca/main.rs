// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end-to-end suite on software mlx5 HCAs in this process: the tests of the VM, and tests of features that only mlx5
//! has. It needs no root, no kernel module and no VM.
//!
//! Each test gets its own process, and a fabric with a virtual clock, so waiting costs no time and a failure is reproducible. After
//! each test, the device's kernel must have no object left, the process no additional open file, and the device must
//! have recorded no violation of the driver.

mod bed;
mod cm;
mod handshake;
mod kinds;
mod programs;
mod sharing;

use bed::{Hca, InfiniBand, RealTime, Udp};
use uverbs_tests::suite::{
    self, aio, big, constructors, dc, drain, errors, events, faces, faults, mcast, netem, objects, opcodes,
    states, stress, threads, ud, xrc,
};

fn main() -> std::process::ExitCode {
    if std::env::var_os(handshake::WITHOUT_MEMBARRIER).is_some()
        && let Err(e) = handshake::refuse_membarrier()
    {
        eprintln!("{e:#}");
        return std::process::ExitCode::FAILURE;
    }
    bed::install();
    let themes = [
        // The longest tests begin first.
        handshake::tests,
        cm::tests,
        netem::tests::<Udp>,
        programs::tests::<Hca>,
        suite::tests::<Hca>,
        drain::tests::<Hca>,
        sharing::tests::<Hca>,
        netem::tests::<Hca>,
        threads::tests::<RealTime>,
        aio::tests::<RealTime>,
        sharing::tests::<RealTime>,
        events::tests::<RealTime>,
        stress::tests::<RealTime>,
        opcodes::tests::<Udp>,
        faces::tests::<Udp>,
        errors::tests::<Udp>,
        ud::tests::<Udp>,
        big::tests::<Udp>,
        xrc::tests::<Udp>,
        threads::tests::<Udp>,
        stress::tests::<Udp>,
        opcodes::tests::<InfiniBand>,
        errors::tests::<InfiniBand>,
        faults::tests::<InfiniBand>,
        ud::tests::<InfiniBand>,
        mcast::tests::<InfiniBand>,
        states::tests::<InfiniBand>,
        objects::tests::<InfiniBand>,
        constructors::tests::<InfiniBand>,
        xrc::tests::<InfiniBand>,
        dc::tests::<InfiniBand>,
        netem::tests::<InfiniBand>,
        kinds::tests,
    ];
    uverbs_tests::runner::run_apart(themes.into_iter().flat_map(|t| t()).collect()).exit_code()
}
