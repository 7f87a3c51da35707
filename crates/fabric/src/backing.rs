// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file that somebody else passes has as memory, and whether this process can map it.
//!
//! An access to a mapping beyond the end of its file raises SIGBUS, which ends the process. Each process that has the file can
//! truncate it at any time, so a length that was checked at the time of the mapping is worth nothing. Only files that can't
//! become shorter are mapped.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::statfs::{FsType, HUGETLBFS_MAGIC, fstatfs};
use std::os::fd::AsFd;

/// `DMA_BUF_MAGIC` of `<linux/magic.h>`: the file system of dma-bufs.
const DMA_BUF_MAGIC: FsType = FsType(0x444d_4142);

/// The memory of a file, by what can happen to a mapping of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A dma-buf, whose size is fixed, or a memfd with the seal `F_SEAL_SHRINK`: every access to a mapping succeeds.
    Fixed,
    /// A memfd of huge pages with that seal. Its size is fixed, but fallocate(2) can free its pages, and there may be no
    /// huge page for the next access.
    HugePages,
    /// Any other file: it can be truncated.
    Changeable,
}

impl Backing {
    /// That of a file.
    #[must_use]
    pub fn of(file: impl AsFd) -> Self {
        let kind = fstatfs(&file).map(|stat| stat.filesystem_type());
        if kind == Ok(DMA_BUF_MAGIC) {
            return Self::Fixed;
        }
        match seals(file) {
            Ok(seals) if seals.contains(SealFlag::F_SEAL_SHRINK) => match kind {
                Ok(HUGETLBFS_MAGIC) | Err(_) => Self::HugePages,
                Ok(_) => Self::Fixed,
            },
            _ => Self::Changeable,
        }
    }
}

/// The seals of a memfd; an error for other files (fcntl(2)).
fn seals(file: impl AsFd) -> Result<SealFlag, Errno> {
    fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_truncate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::fs::File;

    #[test]
    fn only_files_that_cannot_shrink_are_fixed() {
        let file = File::from(memfd_create(c"backing", MFdFlags::MFD_ALLOW_SEALING).unwrap());
        file.set_len(8192).unwrap();
        assert_eq!(Backing::of(&file), Backing::Changeable);
        for seal in [SealFlag::F_SEAL_GROW, SealFlag::F_SEAL_SEAL] {
            let other = File::from(memfd_create(c"backing", MFdFlags::MFD_ALLOW_SEALING).unwrap());
            fcntl(&other, FcntlArg::F_ADD_SEALS(seal)).unwrap();
            assert_eq!(Backing::of(&other), Backing::Changeable, "{seal:?}");
        }
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        assert_eq!(Backing::of(&file), Backing::Fixed);
        assert!(file.set_len(0).is_err());
        for path in ["/proc/self/exe", "/dev/null", "/dev/zero", "."] {
            assert_eq!(Backing::of(File::open(path).unwrap()), Backing::Changeable, "{path}");
        }
        // Seals work without pages, so this needs none.
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
        if let Ok(huge) = memfd_create(c"backing", flags) {
            let huge = File::from(huge);
            assert_eq!(Backing::of(&huge), Backing::Changeable);
            fcntl(&huge, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
            assert_eq!(Backing::of(&huge), Backing::HugePages);
        }
    }
}
