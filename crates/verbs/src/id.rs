// SPDX-License-Identifier: MIT OR Apache-2.0
//! The identities of CQs and SRQs in events.

/// Identifies a CQ in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub(crate) u64);

/// Identifies an SRQ in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub(crate) u64);
