// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path of sysfs, and its files: functions that librdmacm and other libraries use, although no header declares
//! them.
#![expect(unsafe_code)]
// UNSAFETY: C's strings and buffers.

use crate::errno::{Errno, ensure, minus_one};
use core::ffi::{CStr, c_char, c_int};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;

/// The path of sysfs: `/sys`, or the value of the environment variable `SYSFS_PATH`, which is ignored if this process
/// has more privileges than its user.
fn path() -> &'static CString {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        let is_trusted = nix::unistd::getuid() == nix::unistd::geteuid()
            && nix::unistd::getgid() == nix::unistd::getegid();
        let given = std::env::var_os("SYSFS_PATH").filter(|path| is_trusted && !path.is_empty());
        let path = given.map_or_else(|| b"/sys".to_vec(), |path| path.as_bytes().to_vec());
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        CString::new(&path[..end]).unwrap_or_default()
    })
}

/// The path of sysfs, for this library.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(OsStr::from_bytes(path().to_bytes()))
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    path().as_ptr()
}

/// Reads the file `dir/file` without the final newline, and appends a NUL if there is room. Returns the number of
/// bytes, or -1.
///
/// # Safety
/// `dir` and `file` are NULL or strings, and `buf` is NULL or has room for `size` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    minus_one(|| {
        ensure(!dir.is_null() && !file.is_null() && !buf.is_null())?;
        // SAFETY: `dir` is not NULL (checked above), so it is a string (the contract of this function).
        let dir = unsafe { CStr::from_ptr(dir) };
        // SAFETY: `file` is not NULL (checked above), so it is a string (the contract of this function).
        let file = unsafe { CStr::from_ptr(file) };
        let path = PathBuf::from(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        let bytes =
            std::fs::read(path).map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO)))?;
        let mut length = bytes.len().min(size);
        if length > 0 && bytes[length - 1] == b'\n' {
            length -= 1;
        }
        // SAFETY: `length` is at most `size`, for which `buf` is valid (the contract of this function), and at most the
        // length of `bytes`.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr().cast::<c_char>(), buf, length) };
        if length < size {
            // SAFETY: `length` is below `size`, for which `buf` is valid (the contract of this function).
            unsafe { buf.wrapping_add(length).write(0) };
        }
        c_int::try_from(length).map_err(|_| Errno::EOVERFLOW)
    })
}
