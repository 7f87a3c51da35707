// SPDX-License-Identifier: MIT OR Apache-2.0
//! What more than one fuzz target needs.

pub mod kernel;
pub mod request;
pub mod steps;
