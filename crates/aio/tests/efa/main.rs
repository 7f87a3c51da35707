// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reliable datagrams (SRD) as futures, on the software EFA. Most tests run in virtual time on one thread, so each run is the same.

mod bed;
mod ends;
mod srd;
