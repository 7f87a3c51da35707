// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of exclusive queues, in a thread domain.

fn main() {
    uverbs_bench::run::<uverbs::Exclusive>(uverbs_bench::more_rows);
}
