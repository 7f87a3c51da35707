// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways in which verbs report failures, as their man pages specify, and the handling of panics.
//!
//! | failure | function | example |
//! |---|---|---|
//! | the errno is returned | [`number`] | `ibv_modify_qp` |
//! | NULL | [`pointer`] | `ibv_create_qp` |
//! | -1 | [`minus_one`] | `ibv_get_cq_event` |
//! | the errno is returned, negative | [`negative`] | `ibv_query_gid_table` |
//! | the errno is returned, on the data path | [`returned`] | `ibv_post_send` |
//!
//! All of them set `errno`, also those that return it: in rdma-core, most such errors are those of ioctl(2), which sets it, and
//! programs call perror(3) after either kind.
//!
//! A panic is a fault of this library. It must not unwind into C, so it is caught here and reported as `EIO`.

use core::ffi::c_int;
use core::panic::AssertUnwindSafe;
use core::ptr;
use std::panic::catch_unwind;
pub(crate) use uverbs_core::Errno;

/// The result of a verb inside this library.
pub(crate) type Outcome<T> = Result<T, Errno>;

/// Runs the body of a verb.
fn run<T>(verb: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    catch_unwind(AssertUnwindSafe(verb)).unwrap_or(Err(Errno::EIO))
}

/// Sets `errno`. Every failure of an exported function is reported through this function.
fn set(errno: Errno) -> Errno {
    nix::errno::Errno::set_raw(errno.raw());
    errno
}

/// The result of a function of the data path that failed, which returns the errno.
#[cold]
pub(crate) fn returned(errno: Errno) -> c_int {
    set(errno).raw()
}

/// 0, or the errno, which is also set.
pub(crate) fn number(verb: impl FnOnce() -> Outcome<()>) -> c_int {
    match run(verb) {
        Ok(()) => 0,
        Err(errno) => set(errno).raw(),
    }
}

/// A pointer, or NULL and `errno`.
pub(crate) fn pointer<T>(verb: impl FnOnce() -> Outcome<*mut T>) -> *mut T {
    run(verb).unwrap_or_else(|errno| {
        set(errno);
        ptr::null_mut()
    })
}

/// The result of the verb, or -1 and `errno`.
pub(crate) fn minus_one(verb: impl FnOnce() -> Outcome<c_int>) -> c_int {
    run(verb).unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}

/// The result of the verb, or the negative errno, which is also set.
pub(crate) fn negative(verb: impl FnOnce() -> Outcome<isize>) -> isize {
    run(verb).unwrap_or_else(|errno| -(set(errno).raw() as isize))
}

/// Runs a verb that reports no failure.
pub(crate) fn nothing(verb: impl FnOnce() -> Outcome<()>) {
    let _ = run(verb);
}

/// `EINVAL` unless it holds.
pub(crate) fn ensure(condition: bool) -> Outcome<()> {
    if condition { Ok(()) } else { Err(Errno::EINVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_convention_reports_an_error() {
        set(Errno::EPERM);
        assert_eq!(number(|| Ok(())), 0);
        assert_eq!(nix::errno::Errno::last_raw(), libc::EPERM, "a success does not change it");
        assert_eq!(number(|| Err(Errno::EBUSY)), libc::EBUSY);
        assert_eq!(nix::errno::Errno::last_raw(), libc::EBUSY);
        assert_eq!(negative(|| Err(Errno::EIO)), -(libc::EIO as isize));
        assert_eq!(nix::errno::Errno::last_raw(), libc::EIO);
        assert_eq!(returned(Errno::ENOENT), libc::ENOENT);
        assert_eq!(nix::errno::Errno::last_raw(), libc::ENOENT);
        assert!(pointer::<u8>(|| Err(Errno::ENOMEM)).is_null());
        assert_eq!(nix::errno::Errno::last_raw(), libc::ENOMEM);
        assert_eq!(minus_one(|| Err(Errno::EAGAIN)), -1);
        assert_eq!(nix::errno::Errno::last_raw(), libc::EAGAIN);
    }

    #[test]
    fn a_panic_is_eio() {
        assert_eq!(number(|| panic!("a fault, made for the test")), libc::EIO);
    }
}
