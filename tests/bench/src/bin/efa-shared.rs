// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of shared queues of EFA.

fn main() {
    uverbs_bench::run_efa::<uverbs::Shared>();
}
