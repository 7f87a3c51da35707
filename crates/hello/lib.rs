// SPDX-License-Identifier: MIT OR Apache-2.0
//! The package of `examples/hello.rs`, the program of README.
