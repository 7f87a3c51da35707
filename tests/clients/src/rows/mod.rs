// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of rows, a file for each project.
//!
//! All of them have few iterations: a row shows whether a feature works, and programs that poll compete for the processors.

mod crates;
mod dpdk;
mod efa;
mod fio;
mod gloo;
mod iser;
mod libfabric;
mod librdmacm;
mod mpich;
mod openmpi;
mod perftest;
mod qperf;
mod rdma_core;
mod rpma;
mod suite;
mod ucx;
mod wheels;

use crate::row::Row;

/// The tables, in the order in which they run.
const TABLES: &[&[Row]] = &[
    rdma_core::ROWS,
    perftest::ROWS,
    librdmacm::ROWS,
    ucx::ROWS,
    libfabric::ROWS,
    openmpi::ROWS,
    qperf::ROWS,
    fio::ROWS,
    rpma::ROWS,
    iser::ROWS,
    gloo::ROWS,
    mpich::ROWS,
    dpdk::ROWS,
    wheels::ROWS,
    suite::ROWS,
    efa::ROWS,
    efa::NEWER,
];

/// The rows of published Rust crates, whose programs are built for a run.
pub fn crates() -> impl Iterator<Item = &'static Row> + Clone {
    crates::ROWS.iter()
}

/// The rows of a run: those of published Rust crates, or all others.
pub fn of(crates: bool) -> impl Iterator<Item = &'static Row> + Clone {
    all().filter(move |_| !crates).chain(self::crates().filter(move |_| crates))
}

/// Whether a row needs programs that are newer than those of Debian 12.
pub fn is_newer(row: &Row) -> bool {
    efa::NEWER.iter().any(|newer| newer.name() == row.name())
}

/// All rows, except those of published Rust crates.
pub fn all() -> impl Iterator<Item = &'static Row> + Clone {
    TABLES.iter().copied().flatten()
}
