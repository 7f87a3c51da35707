// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code that several fuzz targets use.

pub mod kernel;
pub mod model;
pub mod request;
pub mod steps;
