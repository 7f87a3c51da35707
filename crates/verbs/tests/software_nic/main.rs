// SPDX-License-Identifier: MIT OR Apache-2.0
//! The crate as a user has it, on software NICs: what a call accepts, refuses and gives back.

mod memory;

use uverbs::Context;
use uverbs::mlx5::Mlx5;
use uverbs_hca::Hca;

/// A context of a new software NIC.
fn context() -> Context<Mlx5> {
    Context::from_kernel(Hca::new().open()).unwrap()
}
