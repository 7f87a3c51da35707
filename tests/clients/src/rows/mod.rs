// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tables of rows, a file for each project.
//!
//! All of them have few iterations: a row shows whether a feature works, and programs that poll compete for the processors.

mod libfabric;
mod librdmacm;
mod openmpi;
mod perftest;
mod qperf;
mod rdma_core;
mod suite;
mod ucx;

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
    suite::ROWS,
];

/// All rows.
pub fn all() -> impl Iterator<Item = &'static Row> + Clone {
    TABLES.iter().copied().flatten()
}
