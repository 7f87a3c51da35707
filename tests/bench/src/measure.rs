// SPDX-License-Identifier: MIT OR Apache-2.0
//! The measured section: nanoseconds by the time stamp counter, instructions by callgrind, or a trace by lackey.
//!
//! A program controls callgrind by client requests: a sequence of instructions that has no effect on a processor and
//! that valgrind recognises (valgrind.h, `__SPECIAL_INSTRUCTION_PREAMBLE` of amd64).
#![expect(unsafe_code)]
// UNSAFETY: client requests and time stamps are instructions.

use core::arch::asm;
use core::arch::x86_64::{__rdtscp, _mm_lfence};
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// The kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Mode {
    /// Nanoseconds.
    Time,
    /// Instructions.
    Count,
    /// Every access to memory, between marks.
    Trace,
    /// No measurement: the row is warmed up.
    Warm,
}

/// The [`Mode`].
static MODE: AtomicU8 = AtomicU8::new(Mode::Time as u8);
/// Ticks of the measured sections.
static ELAPSED: AtomicU64 = AtomicU64::new(0);
/// A store to it begins and ends a section that is traced.
static MARK: AtomicU64 = AtomicU64::new(0);

/// `VG_USERREQ_TOOL_BASE('C', 'T')` and more, as in callgrind.h.
const TOGGLE_COLLECT: u64 = 0x4354_0002;
const DUMP_STATS_AT: u64 = 0x4354_0003;

/// Chunks that a row runs before it is measured, and chunks that are measured.
const COUNT_CHUNKS: (u32, u32) = (2, 4);
const TIME_CHUNKS: (u32, u32) = (50, 100);
/// The number of repetitions; the median of their times is reported.
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
    // SAFETY: every x86-64 processor of the last fifteen years has this instruction.
    unsafe { _mm_lfence() };
    // SAFETY: every x86-64 processor of the last fifteen years has this instruction; `aux` is a valid local.
    let ticks = unsafe { __rdtscp(&raw mut aux) };
    // SAFETY: every x86-64 processor of the last fifteen years has this instruction.
    unsafe { _mm_lfence() };
    ticks
}

/// Runs a measured section. `f` calls a separate function, as in a user's program, so that the surrounding code here
/// uses none of its registers.
#[inline(always)]
pub fn measured<R>(f: impl FnOnce() -> R) -> R {
    edge(|| ELAPSED.store(ELAPSED.load(Relaxed).wrapping_sub(now()), Relaxed));
    let result = f();
    edge(|| ELAPSED.store(ELAPSED.load(Relaxed).wrapping_add(now()), Relaxed));
    result
}

/// The begin or the end of a section, at which `clock` reads the time.
#[inline(always)]
fn edge(clock: impl FnOnce()) {
    let mode = MODE.load(Relaxed);
    if mode == Mode::Time as u8 {
        clock();
    } else if mode == Mode::Count as u8 {
        request(TOGGLE_COLLECT, 0);
    } else if mode == Mode::Trace as u8 {
        MARK.store(1, Relaxed);
    }
}

/// Prints the address of memory of the device, for readers of a trace: `registers`, or `combined` memory.
pub fn print_area(what: &str, at: u64, len: u64) {
    if std::env::args().nth(1).is_some_and(|mode| mode == "trace") {
        println!("{what}\t{at:#x}\t{len:#x}");
    }
}

/// Measures rows one after the other.
#[derive(Debug)]
pub struct Meter {
    mode: Mode,
    ticks_per_ns: f64,
}

impl Meter {
    /// A meter of instructions.
    pub fn counting() -> Self {
        Self { mode: Mode::Count, ticks_per_ns: 1.0 }
    }

    /// A meter for a tool that traces the program. Prints the addresses of the stack, the mark and the program.
    pub fn tracing() -> Self {
        println!("mark\t{:#x}", MARK.as_ptr().addr());
        let here = 0_u8;
        println!("stack\t{:#x}", (&raw const here).addr());
        let maps = std::fs::read_to_string("/proc/self/maps").expect("the memory map");
        maps.lines().for_each(|line| println!("map\t{line}"));
        Self { mode: Mode::Trace, ticks_per_ns: 1.0 }
    }

    /// A meter of nanoseconds.
    pub fn timing() -> Self {
        let (start, ticks) = (Instant::now(), now());
        while start.elapsed() < Duration::from_millis(50) {}
        Self {
            mode: Mode::Time,
            ticks_per_ns: now().wrapping_sub(ticks) as f64 / start.elapsed().as_nanos() as f64,
        }
    }

    /// Measures a row whose chunks have `ops` operations. Returns the line to report. It has the row's name and, when
    /// counting, the number of operations in callgrind's dump of that name; when tracing, only the name; otherwise
    /// nanoseconds per operation.
    pub fn row(&self, name: &str, ops: u32, mut chunk: impl FnMut()) -> String {
        let (warm, chunks) = match self.mode {
            Mode::Time => TIME_CHUNKS,
            _ => COUNT_CHUNKS,
        };
        // A row of long chunks has fewer of them.
        let chunks = if self.mode == Mode::Time { (chunks * crate::CHUNK / ops).max(8) } else { chunks };
        MODE.store(Mode::Warm as u8, Relaxed);
        (0..warm.min(chunks)).for_each(|_| chunk());
        MODE.store(self.mode as u8, Relaxed);
        if self.mode == Mode::Trace {
            chunk();
            return format!("row\t{name}");
        }
        if self.mode == Mode::Count {
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
