// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds out whether the limit of locked memory caused an `ENOMEM` of the kernel, and what the call would have needed.
//!
//! The kernel adds the pages of each region and of each queue in a program's memory to the process's pinned pages, and
//! refuses with `ENOMEM` if the sum is above `RLIMIT_MEMLOCK` and the process lacks `CAP_IPC_LOCK` in the initial user
//! namespace (`ib_umem_get` in drivers/infiniband/core/umem.c). These values are read after an error only. If one can't be
//! read, the error remains the kernel's errno.

use crate::errno::Errno;
use crate::error::{Error, LockedSizes};
use crate::kernel::Kernel;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, rlim_t};
use nix::unistd::{SysconfVar, sysconf};
use std::fs;

/// The number of `CAP_IPC_LOCK` (capabilities(7)).
const CAP_IPC_LOCK: u32 = 14;

/// The state of this process on which the kernel decides. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Locked {
    /// `RLIMIT_MEMLOCK`; `None` is no limit.
    limit: Option<u64>,
    /// Pinned already.
    pinned: u64,
    /// Whether the limit does not apply.
    exempt: bool,
}

impl Locked {
    fn of_this_process() -> Option<Self> {
        let read = |name: &str| fs::read_to_string(format!("/proc/self/{name}")).ok();
        let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
        Self::parse(limit, &read("status")?, &read("uid_map")?)
    }

    /// From getrlimit(2), and the files of proc_pid_status(5) and user_namespaces(7).
    fn parse(limit: rlim_t, status: &str, uid_map: &str) -> Option<Self> {
        let limit = (limit != RLIM_INFINITY).then_some(limit);
        let value = |key: &str| status.lines().find_map(|l| l.strip_prefix(key)?.split_whitespace().next());
        let pinned = value("VmPin:")?.parse::<u64>().ok()?.checked_mul(1024)?;
        let capabilities = u64::from_str_radix(value("CapEff:")?, 16).ok()?;
        // The initial namespace maps all identifiers to themselves.
        let is_initial = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
        Some(Self { limit, pinned, exempt: is_initial && capabilities >> CAP_IPC_LOCK & 1 != 0 })
    }

    /// The error instead of an `ENOMEM`, if pinning `needed` bytes more is above the limit.
    fn judge(self, verb: &'static str, object: &str, needed: u64) -> Option<Error> {
        let limit = self.limit.filter(|limit| !self.exempt && self.pinned.saturating_add(needed) > *limit)?;
        let sizes = Box::new(LockedSizes { limit, pinned: self.pinned, needed });
        Some(Error::LockedMemory { verb, object: object.to_owned().into(), sizes })
    }
}

/// The bytes of the pages in which `len` bytes at `addr` are.
fn whole_pages((addr, len): (u64, u64), page: u64) -> u64 {
    if len == 0 {
        return 0;
    }
    let (first, last) = (addr / page, addr.saturating_add(len - 1) / page);
    (last - first).saturating_add(1).saturating_mul(page)
}

/// Explains the `error` of a call that pins the memory of `ranges` (addresses and lengths): an `ENOMEM` becomes
/// [`Error::LockedMemory`] if the limit of locked memory is the cause. Other errors are returned as they are.
#[must_use]
pub fn explain(kernel: &dyn Kernel, error: Error, ranges: impl IntoIterator<Item = (u64, u64)>) -> Error {
    let Error::Os { verb, object, errno: Errno::ENOMEM } = &error else { return error };
    // A device in this process (which has a clock) pins nothing.
    if kernel.device_clock().is_some() {
        return error;
    }
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|page| u64::try_from(page).ok());
    let page = page.filter(|page| *page != 0).unwrap_or(4096);
    let needed = ranges.into_iter().map(|range| whole_pages(range, page)).fold(0, u64::saturating_add);
    Locked::of_this_process().and_then(|locked| locked.judge(verb, object, needed)).unwrap_or(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\ttest\nVmLck:\t      64 kB\nVmPin:\t    4096 kB\nCapEff:\t0000000000000000\n";
    const INITIAL: &str = "         0          0 4294967295\n";

    #[test]
    fn limit_pinned_pages_and_capability_are_read() {
        let user = Locked { limit: Some(8 << 20), pinned: 4 << 20, exempt: false };
        assert_eq!(Locked::parse(8 << 20, STATUS, INITIAL), Some(user));
        let root = STATUS.replace("CapEff:\t0000000000000000", "CapEff:\t000001ffffffffff");
        assert_eq!(Locked::parse(8 << 20, &root, INITIAL), Some(Locked { exempt: true, ..user }));
        // root of a container with identifiers of its own
        assert_eq!(Locked::parse(8 << 20, &root, "0 100000 65536\n"), Some(user));
        let unlimited = Locked::parse(RLIM_INFINITY, STATUS, INITIAL);
        assert_eq!(unlimited, Some(Locked { limit: None, ..user }));
        assert_eq!(Locked::parse(8 << 20, "", INITIAL), None);
        assert!(Locked::of_this_process().is_some());
    }

    #[test]
    fn the_error_names_the_limit_and_what_is_needed() {
        let locked = Locked { limit: Some(8 << 20), pinned: 4 << 20, exempt: false };
        let error = locked.judge("reg_mr", "pd 1 of mlx5_0", (4 << 20) + 4096).unwrap();
        assert_eq!(error.errno(), Errno::ENOMEM);
        assert_eq!(
            error.to_string(),
            "reg_mr(pd 1 of mlx5_0): Out of memory (ENOMEM): it needs 4100 KiB of locked memory, 4096 KiB are in use, and \
             the limit (`ulimit -l`) is 8192 KiB; it must be at least 8196"
        );
        assert!(locked.judge("reg_mr", "pd 1 of mlx5_0", 4 << 20).is_none());
        assert!(Locked { exempt: true, ..locked }.judge("reg_mr", "pd 1", 1 << 30).is_none());
        assert!(Locked { limit: None, ..locked }.judge("reg_mr", "pd 1", 1 << 30).is_none());
        assert!(locked.judge("reg_mr", "pd 1", u64::MAX).is_some());
    }

    #[test]
    fn memory_is_pinned_in_whole_pages() {
        let pages = |addr, len| whole_pages((addr, len), 4096);
        assert_eq!((pages(0x1000, 0), pages(0x1000, 1), pages(0x1000, 4096)), (0, 4096, 4096));
        assert_eq!((pages(0x1fff, 2), pages(0x1800, 4096)), (8192, 8192));
        assert_eq!(pages(u64::MAX, u64::MAX), 4096);
        assert!(pages(0, u64::MAX) > u64::MAX - 4096);
    }
}
