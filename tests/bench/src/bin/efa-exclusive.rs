// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of exclusive queues of EFA.

fn main() {
    uverbs_bench::run_efa::<uverbs::Exclusive>();
}
