// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between private memory of this program and memory that a device, a peer or another thread may access at the
//! same time.
//!
//! A reference (`&[u8]`) to memory that is written at the same time is undefined behaviour, and so is a copy through
//! it. Atomics of one byte are allowed, but slow: a call per byte in a debug build, and a byte at a time in an
//! optimised build. Atomics of several sizes on the same bytes are not allowed either, and registered memory has words
//! of 8 bytes that remote atomics use. So the copies here are machine instructions in inline assembly. They are not
//! accesses of the Rust program and have no size in its memory model; they read the values that are in the machine's
//! memory.
//!
//! A copy is not atomic: it may contain any part of data that are written at the same time, in any order. It does not
//! order other accesses: to read data after a flag, load the flag with `Acquire`, or poll a completion.
//!
//! Miri does not execute assembly, and a sanitizer does not see its accesses. There the copies are atomics
//! (`cfg(uverbs_sanitize)`, which `cargo xtask sanitize` and the fuzz targets set).
#![expect(unsafe_code)]
// UNSAFETY: copies through pointers.

#[cfg(not(any(miri, uverbs_sanitize)))]
use core::arch::asm;
use core::mem::MaybeUninit;

/// Copies `to.len()` bytes from memory that others may write at the same time.
///
/// # Safety
/// The bytes from `from` on are mapped and readable during the call. During the call no reference to them that allows
/// writes (`&mut`) is used.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn load_bytes(from: *const u8, to: &mut [u8]) {
    // SAFETY: `to.len()` bytes at `from` are readable (the contract of this function); `to` is an exclusive slice, so they
    // do not overlap.
    unsafe { copy(from, to.as_mut_ptr(), to.len()) }
}

/// As [`load_bytes`], to memory that need not be initialised. Afterwards it is.
///
/// # Safety
/// As [`load_bytes`].
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn load_uninit(from: *const u8, to: &mut [MaybeUninit<u8>]) {
    // SAFETY: `to.len()` bytes at `from` are readable (the contract of this function); `to` is an exclusive slice, so they
    // do not overlap.
    unsafe { copy(from, to.as_mut_ptr().cast(), to.len()) }
}

/// Copies `from` to memory that others may read and write at the same time.
///
/// # Safety
/// The `from.len()` bytes from `to` on are mapped and writable during the call, and during it no reference to them exists,
/// except to atomics.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn store_bytes(from: &[u8], to: *mut u8) {
    // SAFETY: `from.len()` bytes at `to` are writable (the contract of this function); `from` is a slice, which is not
    // written during the call, so they do not overlap.
    unsafe { copy(from.as_ptr(), to, from.len()) }
}

/// Copies `len` bytes between two places that others may access at the same time.
///
/// # Safety
/// The bytes from `from` on are mapped and readable during the call, those from `to` on are mapped and writable, and they do not overlap.
/// During the call no reference to those at `to` exists, except to atomics, and no reference that allows writes to those at `from` is used.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn copy_shared(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the contract of this function.
    unsafe { copy(from, to, len) }
}

/// [`store_bytes`] for more than 64 bytes, in the caller: it costs a call less, and its code is longer.
///
/// # Safety
/// As [`store_bytes`]; `from` has more than 64 bytes.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn store_long(from: &[u8], to: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize))))]
    // SAFETY: the contract of this function; `from` is a slice, so the two do not overlap.
    unsafe {
        copy_long_here(from.as_ptr(), to, from.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize)))))]
    // SAFETY: the contract of this function.
    unsafe {
        store_bytes(from, to);
    }
}

/// Stores a number of 4 bytes, in this machine's byte order, to memory as in [`store_bytes`].
///
/// # Safety
/// As [`store_bytes`], for 4 bytes.
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn store_u32(value: u32, to: *mut u8) {
    #[cfg(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize))))]
    // SAFETY: 4 bytes at `to` are writable (the contract of this function).
    unsafe {
        asm!(
            "mov dword ptr [{to}], {value:e}",
            to = in(reg) to,
            value = in(reg) value,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize)))))]
    // SAFETY: 4 bytes at `to` are writable (the contract of this function).
    unsafe {
        store_bytes(&value.to_ne_bytes(), to);
    }
}

/// A copy by two accesses of `$size` bytes, the first and the last of `$len`, which may overlap. Both are loaded before one is
/// stored.
#[cfg(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize))))]
macro_rules! copy_ends {
    ($size:literal, $mov:literal, $ptr:literal, $class:ident, $form:literal, $from:ident, $to:ident, $len:ident) => {
        // SAFETY: the accesses are inside the `$len` bytes at both pointers (the contract of `copy`), because `$len` is
        // at least `$size`.
        unsafe {
            asm!(
                concat!($mov, " {first", $form, "}, ", $ptr, " ptr [{from}]"),
                concat!($mov, " {last", $form, "}, ", $ptr, " ptr [{from} + {len} - ", $size, "]"),
                concat!($mov, " ", $ptr, " ptr [{to}], {first", $form, "}"),
                concat!($mov, " ", $ptr, " ptr [{to} + {len} - ", $size, "], {last", $form, "}"),
                from = in(reg) $from,
                to = in(reg) $to,
                len = in(reg) $len,
                first = out($class) _,
                last = out($class) _,
                options(nostack, preserves_flags),
            )
        }
    };
}

/// The length determines the accesses, so that a short copy has no loop; if the length is known at compile time, only
/// one of these cases is compiled.
///
/// # Safety
/// `len` bytes can be read at `from` and written at `to`; they do not overlap, unless they are the same.
#[cfg(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize))))]
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    match len {
        16..=32 => copy_ends!(16, "movups", "xmmword", xmm_reg, "", from, to, len),
        // SAFETY: `from` and `to` are valid for `len` bytes, more than 32 here (the contract of this function).
        33..=64 => unsafe { copy_64(from, to, len) },
        // SAFETY: `from` and `to` are valid for `len` bytes, more than 64 here (the contract of this function).
        65.. => unsafe { copy_long(from, to, len) },
        8.. => copy_ends!(8, "mov", "qword", reg, "", from, to, len),
        4.. => copy_ends!(4, "mov", "dword", reg, ":e", from, to, len),
        2.. => copy_ends!(2, "mov", "word", reg, ":x", from, to, len),
        // SAFETY: `from` and `to` are valid for `len` bytes, which is 1 here (the contract of this function).
        1 => unsafe {
            asm!(
                "mov {byte}, byte ptr [{from}]",
                "mov byte ptr [{to}], {byte}",
                from = in(reg) from,
                to = in(reg) to,
                byte = out(reg_byte) _,
                options(nostack, preserves_flags),
            );
        },
        0 => {}
    }
}

/// [`copy`] for more than 64 bytes.
///
/// # Safety
/// As [`copy`].
#[cfg(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize))))]
// codegen: call
#[inline(never)]
unsafe fn copy_long(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the contract of this function.
    unsafe { copy_long_here(from, to, len) }
}

/// [`copy_long`] in the caller.
///
/// # Safety
/// As [`copy`].
#[cfg(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize))))]
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn copy_long_here(from: *const u8, to: *mut u8, len: usize) {
    match len {
        0..WIDE => {
            // SAFETY: the first 64 of at least 64 bytes (the contract of this function).
            unsafe { copy_64(from, to, 64) };
            // SAFETY: the last 64 of them.
            unsafe { copy_64(from.wrapping_add(len - 64), to.wrapping_add(len - 64), 64) };
        }
        // SAFETY: the contract of this function.
        _ => unsafe { copy_wide(from, to, len) },
    }
}

/// [`copy`] for 32 to 64 bytes: the first and the last 32 bytes, which may overlap.
///
/// # Safety
/// As [`copy`].
#[cfg(all(target_arch = "x86_64", not(any(miri, uverbs_sanitize))))]
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn copy_64(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the accesses are inside the `len` bytes at both pointers (the contract of this function), because `len` is at
    // least 32.
    unsafe {
        asm!(
            "movups {a}, xmmword ptr [{from}]",
            "movups {b}, xmmword ptr [{from} + 16]",
            "movups {c}, xmmword ptr [{from} + {len} - 32]",
            "movups {d}, xmmword ptr [{from} + {len} - 16]",
            "movups xmmword ptr [{to}], {a}",
            "movups xmmword ptr [{to} + 16], {b}",
            "movups xmmword ptr [{to} + {len} - 32], {c}",
            "movups xmmword ptr [{to} + {len} - 16], {d}",
            len = in(reg) len,
            from = in(reg) from,
            to = in(reg) to,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// # Safety
/// `len` bytes can be read at `from` and written at `to`; they do not overlap, unless they are the same.
#[cfg(all(target_arch = "aarch64", not(any(miri, uverbs_sanitize))))]
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    if len >= WIDE {
        // SAFETY: the contract of this function.
        return unsafe { copy_wide(from, to, len) };
    }
    // Pairs of words, then words, then bytes. Ordinary memory may be accessed at any address.
    // SAFETY: `from` and `to` are valid for `len` bytes (the contract of this function), after which the loops end.
    unsafe {
        asm!(
            "subs {n}, {n}, #16",
            "b.lo 3f",
            "2:",
            "ldp {a}, {b}, [{from}], #16",
            "stp {a}, {b}, [{to}], #16",
            "subs {n}, {n}, #16",
            "b.hs 2b",
            "3:",
            "tbz {n}, #3, 4f",
            "ldr {a}, [{from}], #8",
            "str {a}, [{to}], #8",
            "4:",
            "ands {n}, {n}, #7",
            "b.eq 6f",
            "5:",
            "ldrb {a:w}, [{from}], #1",
            "strb {a:w}, [{to}], #1",
            "subs {n}, {n}, #1",
            "b.ne 5b",
            "6:",
            n = inout(reg) len => _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            a = out(reg) _,
            b = out(reg) _,
            options(nostack),
        );
    }
}

/// From here on libc copies.
#[cfg(not(any(miri, uverbs_sanitize)))]
const WIDE: usize = 129;

/// [`copy`] by libc's `memmove`, which has the widest accesses that the processor has. It is called by an instruction, so its
/// accesses are not those of the Rust program either. It may read or write a byte more than once.
///
/// # Safety
/// As [`copy`].
#[cfg(not(any(miri, uverbs_sanitize)))]
#[cfg_attr(all(target_arch = "x86_64", not(debug_assertions)), inline(always))]
#[cfg_attr(not(target_arch = "x86_64"), inline(never))]
unsafe fn copy_wide(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: `from` and `to` are valid for `len` bytes (the contract of this function). The arguments and the changed registers
    // are those of the C ABI.
    unsafe {
        asm!(
            "call {memmove}",
            memmove = sym libc::memmove,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") len => _,
            clobber_abi("C"),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        asm!(
            "bl {memmove}",
            memmove = sym libc::memmove,
            inout("x0") to => _,
            inout("x1") from => _,
            inout("x2") len => _,
            clobber_abi("C"),
        );
    }
}

/// # Safety
/// `len` bytes can be read at `from` and written at `to`; they do not overlap, unless they are the same.
#[cfg(any(miri, uverbs_sanitize))]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
    let mut at = 0;
    while at < len {
        // SAFETY: `at` is below `len`, for which `from` and `to` are valid (the contract of this function).
        let (from, to) = unsafe { (from.add(at), to.add(at)) };
        // A sanitizer accepts atomics of two sizes. Words make the copy faster.
        if cfg!(not(miri)) && len - at >= 8 && from.addr().is_multiple_of(8) && to.addr().is_multiple_of(8) {
            // SAFETY: the word is readable (the contract of this function) and aligned.
            let word = unsafe { &*from.cast::<AtomicU64>() }.load(Ordering::Relaxed);
            // SAFETY: the word is writable (the contract of this function) and aligned.
            unsafe { &*to.cast::<AtomicU64>() }.store(word, Ordering::Relaxed);
            at += 8;
            continue;
        }
        // SAFETY: the byte is readable (the contract of this function); an atomic access is allowed beside other atomic
        // accesses.
        let byte = unsafe { &*from.cast::<AtomicU8>() }.load(Ordering::Relaxed);
        // SAFETY: the byte is writable (the contract of this function); an atomic access is allowed beside other atomic
        // accesses.
        unsafe { &*to.cast::<AtomicU8>() }.store(byte, Ordering::Relaxed);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length near the limits of the cases, at every offset in a word; no other byte is written.
    #[test]
    fn copies_write_every_byte_and_no_other() {
        let source: Vec<u8> = (0..700_u32).map(|i| (i * 7 + 3) as u8).collect();
        let lengths = (0..100).chain([127, 128, 129, 191, 192, 193, 255, 256, 257, 263, 512, 600]);
        for len in lengths {
            for (a, b) in [(0, 0), (1, 0), (0, 1), (3, 5), (7, 7), (8, 1)] {
                let mut to = vec![0xee; 700];
                // SAFETY: both ranges are inside local vectors.
                unsafe { store_bytes(&source[a..a + len], to[b..].as_mut_ptr()) };
                assert_eq!(to[b..b + len], source[a..a + len], "{len} from {a} to {b}");
                assert!(
                    to[..b].iter().chain(&to[b + len..]).all(|byte| *byte == 0xee),
                    "{len} from {a} to {b}"
                );
                let mut back = vec![0xdd; len + 2];
                // SAFETY: both ranges are inside local vectors.
                unsafe { load_bytes(to[b..].as_ptr(), &mut back[1..=len]) };
                assert_eq!(back[1..=len], source[a..a + len]);
                assert_eq!((back[0], back[len + 1]), (0xdd, 0xdd));
            }
        }
    }

    /// In every build. The least time of many counts, because the machine may do something else meanwhile.
    #[test]
    #[cfg(not(any(miri, uverbs_sanitize)))]
    fn copies_have_at_least_half_of_the_speed_of_memcpy() {
        use core::hint::black_box;
        use core::time::Duration;
        use std::time::Instant;

        let source = vec![1_u8; 70_000];
        let mut to = vec![0_u8; 70_000];
        let time = |copies: usize, copy: &mut dyn FnMut()| {
            let begin = Instant::now();
            (0..copies).for_each(|_| copy());
            begin.elapsed()
        };
        for len in [
            8,
            20,
            32,
            33,
            64,
            65,
            100,
            128,
            129,
            200,
            256,
            300,
            512,
            1000,
            1024,
            1500,
            2048,
            4096,
            10_000,
            1 << 16,
        ] {
            for (a, b) in [(0, 0), (3, 5)] {
                let copies = (1 << 16) / len + 1;
                let mut best = [Duration::MAX; 2];
                // The calls are the same, so that their cost in a debug build is.
                let [mut slow, mut fast] =
                    [len; 2].map(|len| (black_box(len), to[b..].as_mut_ptr(), source[a..].as_ptr()));
                let mut ours = || {
                    let (len, to, from) = black_box(&mut slow);
                    // SAFETY: both ranges are inside local vectors.
                    unsafe { copy(*from, *to, *len) };
                };
                let mut memcpy = || {
                    let (len, to, from) = black_box(&mut fast);
                    // SAFETY: as above.
                    unsafe { libc::memcpy(to.cast(), from.cast(), *len) };
                };
                for round in 0..20_000 {
                    best[0] = best[0].min(time(copies, &mut ours));
                    best[1] = best[1].min(time(copies, &mut memcpy));
                    if round > 50 && best[0] <= 2 * best[1] {
                        break;
                    }
                }
                assert!(best[0] <= 2 * best[1], "{copies} copies of {len} bytes: {best:?}");
            }
        }
    }

    #[test]
    fn a_copy_may_race_with_a_writer() {
        use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        let words: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0_u64.. {
                    words.iter().for_each(|word| word.store(n << 32 | n, Ordering::Relaxed));
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
            let mut bytes = [0; 512];
            for _ in 0..1000 {
                // SAFETY: the words exist until the threads are joined, and consist of atomics.
                unsafe { load_bytes(words.as_ptr().cast(), &mut bytes) };
            }
            stop.store(true, Ordering::Relaxed);
        });
        // SAFETY: the words consist of atomics, and the writer has ended.
        unsafe { store_bytes(&[0xff; 16], words.as_ptr().cast_mut().cast()) };
        assert_eq!(words[1].load(Ordering::Relaxed), u64::MAX);
    }
}
