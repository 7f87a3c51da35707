// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of shared queues, which have locks.

fn main() {
    uverbs_bench::run::<uverbs::Shared>(|_, _| ());
}
