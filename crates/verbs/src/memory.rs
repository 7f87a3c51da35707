// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a pool: an anonymous mapping, of huge pages and on a NUMA node where these are requested.
#![expect(unsafe_code)]
// UNSAFETY: two system calls about a mapping that this module owns, and the promise of a stable buffer.

use crate::buf::StableBuf;
use core::ptr::NonNull;
use nix::libc;
use std::sync::Arc;
use uverbs_core::errno::Errno;
use uverbs_core::error::{Error, Result};

/// The pages of a pool's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// The usual pages of the machine.
    #[default]
    Usual,
    /// Huge pages of the default size (`Hugepagesize` in /proc/meminfo).
    Huge,
    /// Huge pages of 2 MiB.
    Huge2M,
    /// Huge pages of 1 GiB.
    Huge1G,
}

impl PageSize {
    /// The base 2 logarithm for mmap(2); 0 is the machine's default. `None` without huge pages.
    const fn bits(self) -> Option<u8> {
        match self {
            Self::Usual => None,
            Self::Huge => Some(0),
            Self::Huge2M => Some(21),
            Self::Huge1G => Some(30),
        }
    }

    /// The bytes to which a length is rounded up.
    const fn bytes(self) -> usize {
        match self {
            Self::Usual => 4096,
            // A multiple of every architecture's default huge page that is not larger; the kernel rounds up itself.
            Self::Huge | Self::Huge2M => 1 << 21,
            Self::Huge1G => 1 << 30,
        }
    }
}

/// Where the memory of a pool is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Placement {
    pub(super) pages: PageSize,
    pub(super) node: Option<u32>,
}

/// The mapping of a pool.
#[derive(Debug)]
pub(super) struct PoolMemory {
    map: memmap2::MmapRaw,
    /// The bytes that are used: the mapping is a whole number of pages.
    len: usize,
}

impl PoolMemory {
    pub(super) fn new(len: usize, place: Placement) -> Result<Self> {
        let page = place.pages.bytes();
        let mapped = len.max(1).checked_next_multiple_of(page).ok_or_else(|| too_long(len))?;
        let mut options = memmap2::MmapOptions::new();
        options.len(mapped);
        if let Some(bits) = place.pages.bits() {
            options.huge(Some(bits));
        }
        let map = options.map_anon().map_err(|error| {
            let errno = Errno::from_raw(error.raw_os_error().unwrap_or(0));
            let object = match place.pages {
                PageSize::Usual => format!("{mapped} bytes"),
                pages => format!(
                    "{mapped} bytes of {pages:?} pages: too few are free; see HugePages_Free in /proc/meminfo, \
                     and vm.nr_hugepages"
                ),
            };
            Error::Os { verb: "mmap", object: object.into(), errno }
        })?;
        let memory = Self { map: map.into(), len };
        if let Some(node) = place.node {
            memory.bind(node)?;
        }
        if place.node.is_some() || place.pages != PageSize::Usual {
            memory.populate(place)?;
        }
        Ok(memory)
    }

    /// mbind(2): the pages come from this node only.
    fn bind(&self, node: u32) -> Result<()> {
        /// The nodes that a mask of this many words can name.
        const WORDS: usize = 16;
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut mask: [libc::c_ulong; WORDS] = [0; WORDS];
        let word = mask.get_mut(node as usize / BITS).ok_or_else(|| {
            Error::invalid("mbind", "numa_node", format!("{node}: nodes are below {}", WORDS * BITS))
        })?;
        *word = 1 << (node as usize % BITS);
        // SAFETY: the range is this value's own mapping, which nothing else uses yet, and the mask is a live array of the
        // length that is passed. (The kernel reads one bit less than the number says.)
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.map.as_mut_ptr(),
                self.map.len(),
                libc::MPOL_BIND,
                mask.as_ptr(),
                WORDS * BITS + 1,
                0,
            )
        };
        if result != 0 {
            let errno = Errno::from_raw(nix::errno::Errno::last_raw());
            return Err(Error::Os {
                verb: "mbind",
                object: format!("NUMA node {node}; see /sys/devices/system/node/online").into(),
                errno,
            });
        }
        Ok(())
    }

    /// Allocates the pages now. Otherwise a node or a kind of pages that has too few would end the process by SIGBUS or by
    /// the OOM killer at the first access.
    fn populate(&self, place: Placement) -> Result<()> {
        // SAFETY: the range is this value's own mapping; the call writes no other memory, and zeros stay zeros.
        let result =
            unsafe { libc::madvise(self.map.as_mut_ptr().cast(), self.map.len(), libc::MADV_POPULATE_WRITE) };
        if result != 0 {
            let errno = Errno::from_raw(nix::errno::Errno::last_raw());
            // Kernels before 5.14.
            if errno == Errno::EINVAL {
                return Ok(());
            }
            let object = format!("{} bytes of memory: {place:?} has too few pages", self.map.len());
            return Err(Error::Os { verb: "madvise", object: object.into(), errno });
        }
        Ok(())
    }
}

fn too_long(len: usize) -> Error {
    Error::invalid("pool", "size", format!("{len} bytes are too many"))
}

impl PoolMemory {
    fn ptr(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_mut_ptr()).unwrap_or(NonNull::dangling())
    }
}

/// The memory of a pool, for one of its registrations.
///
/// It has no access to the bytes but by its region. The pool accesses those of its regions that lend no references, or lends each
/// buffer itself, to one owner or read-only.
#[derive(Debug)]
pub(super) struct HomeMemory(Arc<PoolMemory>);

impl HomeMemory {
    pub(super) fn new(memory: &Arc<PoolMemory>) -> Self {
        Self(memory.clone())
    }
}

// SAFETY: the mapping does not change, and lives as long as one of these values. It is accessed through the owners only, which are the
// regions of one pool. The pool calls no function by which a region lends references to bytes.
unsafe impl StableBuf for HomeMemory {
    fn ptr(&self) -> NonNull<u8> {
        self.0.ptr()
    }
    fn len(&self) -> usize {
        self.0.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_exist_is_named_in_the_error() {
        let error = PoolMemory::new(4096, Placement { node: Some(700), ..Placement::default() }).unwrap_err();
        let text = error.to_string();
        // Without NUMA in the kernel, the call does not exist.
        assert!(text.contains("mbind") && (text.contains("node 700") || text.contains("ENOSYS")), "{text}");
        let error =
            PoolMemory::new(4096, Placement { node: Some(1 << 20), ..Placement::default() }).unwrap_err();
        assert!(error.to_string().contains("nodes are below"), "{error}");
    }

    #[test]
    fn memory_on_the_first_node_is_zero() {
        match PoolMemory::new(10_000, Placement { node: Some(0), ..Placement::default() }) {
            Ok(memory) => {
                assert_eq!(memory.len, 10_000);
                // SAFETY: the mapping's own bytes, which nothing writes.
                let bytes = unsafe { core::slice::from_raw_parts(memory.ptr().as_ptr(), memory.len) };
                assert!(bytes.iter().all(|byte| *byte == 0));
            }
            // A container may forbid the call, and a kernel may have no NUMA.
            Err(error) => assert!(error.to_string().contains("mbind"), "{error}"),
        }
    }

    #[test]
    fn too_few_huge_pages_are_an_error_that_says_so() {
        // 1 TiB of them: no machine of these tests has so many free.
        let place = Placement { pages: PageSize::Huge2M, ..Placement::default() };
        let text = PoolMemory::new(1 << 40, place).unwrap_err().to_string();
        assert!(text.contains("nr_hugepages"), "{text}");
    }

    #[test]
    fn huge_pages_are_used_where_there_are_some() {
        let place = Placement { pages: PageSize::Huge2M, ..Placement::default() };
        match PoolMemory::new(4096, place) {
            Ok(memory) => assert_eq!(memory.ptr().as_ptr().addr() % (1 << 21), 0),
            Err(error) => assert!(error.to_string().contains("HugePages_Free"), "{error}"),
        }
    }
}
