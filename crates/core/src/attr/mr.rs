// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions and windows: access rights and requests (ibv_reg_mr(3), ibv_alloc_mw(3), ibv_advise_mr(3)).

use crate::error::{Error, Result};

bitflags::bitflags! {
    /// `enum ibv_access_flags`. Local reads are always permitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct AccessFlags: u32 {
        /// Local work requests may write.
        const LOCAL_WRITE = 1 << 0;
        /// Peers may write; needs `LOCAL_WRITE`.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 2;
        /// Peers may execute atomics; needs `LOCAL_WRITE`.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region.
        const MW_BIND = 1 << 4;
        /// Addresses count from 0, not from the virtual address.
        const ZERO_BASED = 1 << 5;
        /// Pages are faulted in when they are touched instead of being pinned.
        const ON_DEMAND = 1 << 6;
        /// The memory is made of huge pages; with `ON_DEMAND`.
        const HUGETLB = 1 << 7;
        /// Peers may flush to global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may flush to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// The device may reorder its accesses to the memory. Optional: removed if the kernel does not support it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl AccessFlags {
    /// The bits that a kernel may ignore (`IBV_ACCESS_OPTIONAL_RANGE`). They are removed for a kernel that would refuse
    /// them.
    pub const OPTIONAL_RANGE: Self = Self::from_bits_retain(0x3ff0_0000);

    /// The bits that let a peer change the memory.
    pub const REMOTE_CHANGE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC);

    /// Refuses combinations that no device accepts (`ib_check_mr_access()` in the kernel's ib_verbs.h).
    pub(crate) fn check(self, verb: &'static str, field: &'static str) -> Result<()> {
        if self.intersects(Self::REMOTE_CHANGE) && !self.contains(Self::LOCAL_WRITE) {
            return Err(Error::invalid(verb, field, "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE"));
        }
        let unknown = self.difference(Self::all() | Self::OPTIONAL_RANGE);
        if !unknown.is_empty() {
            return Err(Error::invalid(verb, field, format!("unknown bits {:#x}", unknown.bits())));
        }
        Ok(())
    }
}

bitflags::bitflags! {
    /// `enum ibv_rereg_mr_flags`: what a re-registration changes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct ReregFlags: u32 {
        /// The memory.
        const CHANGE_TRANSLATION = 1 << 0;
        /// The protection domain.
        const CHANGE_PD = 1 << 1;
        /// The access rights.
        const CHANGE_ACCESS = 1 << 2;
    }
}

/// `enum ibv_advise_mr_advice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum MrAdvice {
    /// Fault the pages in, for reading.
    Prefetch = 0,
    /// Fault the pages in, for writing.
    PrefetchWrite = 1,
    /// Map the present pages, without faulting in others.
    PrefetchNoFault = 2,
}

bitflags::bitflags! {
    /// `enum ibv_advise_mr_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[repr(transparent)]
    pub struct AdviseFlags: u32 {
        /// Complete the operation before the call returns.
        const FLUSH = 1 << 0;
    }
}

/// `enum ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum MwType {
    /// Bound by `ibv_bind_mw`, which determines the rkey.
    Type1 = 1,
    /// Bound by a posted WR, which specifies the low 8 bits of the rkey.
    Type2 = 2,
}

impl MwType {
    /// Converts C's number.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            1 => Some(Self::Type1),
            2 => Some(Self::Type2),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_write_needs_local_write_and_unknown_bits_are_named() {
        let both = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        both.check("reg_mr", "access").unwrap();
        (both | AccessFlags::RELAXED_ORDERING | AccessFlags::from_bits_retain(1 << 25))
            .check("reg_mr", "access")
            .unwrap();
        for bad in
            [AccessFlags::REMOTE_WRITE, AccessFlags::REMOTE_ATOMIC, AccessFlags::from_bits_retain(1 << 12)]
        {
            let text = bad.check("reg_mr", "access").unwrap_err().to_string();
            assert!(text.starts_with("reg_mr: invalid access:"), "{text}");
        }
    }
}
