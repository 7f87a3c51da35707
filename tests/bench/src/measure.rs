// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measured stretch: nanoseconds by the time stamp counter, or instructions by callgrind.
//!
//! A program under callgrind speaks to it by client requests: a sequence of instructions that does nothing on a processor and
//! that valgrind recognises (valgrind.h, `__SPECIAL_INSTRUCTION_PREAMBLE` of amd64).
#![expect(unsafe_code)]
// UNSAFETY: client requests and time stamps are instructions.

use core::arch::asm;
use core::arch::x86_64::{__rdtscp, _mm_lfence};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// Whether instructions are counted.
static COUNTING: AtomicBool = AtomicBool::new(false);
/// Ticks of the measured stretches.
static ELAPSED: AtomicU64 = AtomicU64::new(0);

/// `VG_USERREQ_TOOL_BASE('C', 'T')` and what follows it in callgrind.h.
const ZERO_STATS: u64 = 0x4354_0001;
const TOGGLE_COLLECT: u64 = 0x4354_0002;
const DUMP_STATS_AT: u64 = 0x4354_0003;

/// Chunks that a row runs before it is measured, and chunks that are measured.
const COUNT_CHUNKS: (u32, u32) = (2, 4);
const TIME_CHUNKS: (u32, u32) = (50, 100);
/// Nanoseconds are the median of so many.
const REPEATS: usize = 9;

/// A client request; nothing happens outside valgrind.
#[inline(always)]
fn request(code: u64, arg: u64) {
    let args = [code, arg, 0, 0, 0, 0];
    // SAFETY: the rotations of RDI add up to 128 bits, so on a processor nothing changes; valgrind sets RDX. It reads `args` and,
    // for a dump, the string that the argument points to, which the caller keeps.
    unsafe {
        asm!(
            "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") args.as_ptr(),
            inout("rdx") 0_u64 => _,
            inout("rdi") 0_u64 => _,
        );
    }
}

#[inline(always)]
fn now() -> u64 {
    let mut aux = 0;
    // SAFETY: every x86-64 processor of the last fifteen years has the instruction.
    unsafe { _mm_lfence() };
    // SAFETY: as above; `aux` is a live local.
    let ticks = unsafe { __rdtscp(&raw mut aux) };
    // SAFETY: as above.
    unsafe { _mm_lfence() };
    ticks
}

/// Runs a stretch that is measured. What `f` calls is a function of its own, as a user's program has it: what surrounds it here
/// takes no register away.
#[inline(always)]
pub fn measured<R>(f: impl FnOnce() -> R) -> R {
    let counting = COUNTING.load(Relaxed);
    if counting {
        request(TOGGLE_COLLECT, 0);
    } else {
        ELAPSED.store(ELAPSED.load(Relaxed).wrapping_sub(now()), Relaxed);
    }
    let result = f();
    if counting {
        request(TOGGLE_COLLECT, 0);
    } else {
        ELAPSED.store(ELAPSED.load(Relaxed).wrapping_add(now()), Relaxed);
    }
    result
}

/// Measures rows one after the other.
#[derive(Debug)]
pub struct Meter {
    ticks_per_ns: f64,
}

impl Meter {
    /// A meter of instructions.
    pub fn counting() -> Self {
        COUNTING.store(true, Relaxed);
        Self { ticks_per_ns: 1.0 }
    }

    /// A meter of nanoseconds.
    pub fn timing() -> Self {
        let (start, ticks) = (Instant::now(), now());
        while start.elapsed() < Duration::from_millis(50) {}
        Self { ticks_per_ns: now().wrapping_sub(ticks) as f64 / start.elapsed().as_nanos() as f64 }
    }

    /// Measures a row whose chunks have `ops` operations. The line to report: when counting, how many operations callgrind's
    /// dump of that name has; else nanoseconds per operation.
    pub fn row(&self, name: &str, ops: u32, mut chunk: impl FnMut()) -> String {
        let counting = COUNTING.load(Relaxed);
        let (warm, chunks) = if counting { COUNT_CHUNKS } else { TIME_CHUNKS };
        // A row of long chunks has fewer of them.
        let chunks = if counting { chunks } else { (chunks * crate::CHUNK / ops).max(8) };
        (0..warm.min(chunks)).for_each(|_| chunk());
        if counting {
            request(ZERO_STATS, 0);
            (0..chunks).for_each(|_| chunk());
            let text = CString::new(name).expect("a name without a zero");
            request(DUMP_STATS_AT, text.as_ptr().expose_provenance() as u64);
            return format!("{name}\t{}", chunks * ops);
        }
        let mut ns: Vec<f64> = (0..REPEATS)
            .map(|_| {
                ELAPSED.store(0, Relaxed);
                (0..chunks).for_each(|_| chunk());
                ELAPSED.load(Relaxed) as f64 / self.ticks_per_ns / f64::from(chunks * ops)
            })
            .collect();
        ns.sort_by(f64::total_cmp);
        format!("{name}\t{:.3}", ns[REPEATS / 2])
    }
}
