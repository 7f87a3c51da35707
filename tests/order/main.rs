// SPDX-License-Identifier: MIT OR Apache-2.0
//! The modes of order of the software HCA: small programs under every order that a mode permits.

mod bad;
mod basics;
mod bench;
mod commands;
mod equal;
mod nodes;
mod table;
