// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of a driver that is selected at run time.

fn main() {
    uverbs_bench::run_any();
}
