// SPDX-License-Identifier: MIT OR Apache-2.0
//! The costs of posts and polls on mlx5 and EFA, measured through the public API of `uverbs`: the Rust programs of `cargo xtask
//! bench`.
//!
//! `exclusive|shared|any|efa-exclusive|efa-shared count|ns|trace [NAME...]`, under the preload library of `c/shim.c` or
//! `c/efa/shim.c`. The rows are those of the C programs `c/bench.c` and `c/efa/bench.c`, with the same names. NAME is a row's "FACE NAME xBATCH". Each locking has a
//! program of its own, because a user's program has one call of each kind, which affects the compiler's inlining.
//!
//! Only the calls are measured: a chunk of operations between two readings of the clock, or counted by callgrind. The
//! work of the device, and the retirement of the posts of a chunk, are not measured.

mod any;
mod builder;
mod burst;
mod device;
mod efa;
mod events;
pub mod face;
mod floor;
mod list;
mod many;
mod matrix;
mod measure;
mod owned;
mod places;
mod poll;
mod posts;
mod recv;
mod send;
pub mod world;

use face::Face;
use measure::Meter;
pub use measure::measured;
use uverbs::Exclusive;
use world::World;

/// Operations of a measured section, unless a row has another number.
const CHUNK: u32 = 128;
/// Requests of a batch.
const BATCH: u32 = 32;
/// Entries of the CQs and of the SRQ.
const RING_ENTRIES: u32 = 256;

/// A row: its name, and the function that runs one chunk of it.
struct Row {
    name: String,
    ops: u32,
    chunk: Box<dyn FnMut()>,
}

/// The rows in their order.
#[derive(Default)]
pub struct Rows(Vec<Row>);

impl Rows {
    /// Adds a row whose chunks have `ops` operations, `batch` of them per call.
    pub fn add(&mut self, face: &str, name: &str, batch: u32, ops: u32, chunk: impl FnMut() + 'static) {
        self.0.push(Row { name: format!("{face} {name} x{batch}"), ops, chunk: Box::new(chunk) });
    }
}

/// Panics, because a call failed that can't fail here: the numbers would be invalid.
#[cold]
#[inline(never)]
pub fn ok<E: core::fmt::Debug, T>(error: E) -> T {
    eprintln!("bench: {error:?}");
    std::process::abort()
}

/// The rows of one locking, and their objects, which live as long as the process.
fn rows<L: Face>() -> (Rows, &'static World<L>) {
    let (mut rows, world) = (Rows::default(), &*Box::leak(Box::new(World::<L>::create())));
    send::rows(&mut rows, world);
    list::rows(&mut rows, world);
    builder::rows(&mut rows, world);
    posts::rows(&mut rows, world);
    recv::rows(&mut rows, world);
    poll::rows(&mut rows, world);
    many::rows(&mut rows, world);
    events::rows(&mut rows, world);
    (rows, world)
}

/// Pins the thread to one CPU other than the first one, which handles interrupts and other work.
#[expect(unsafe_code, reason = "a system call that no dependency wraps")]
fn pin() {
    // SAFETY: a set of bits is valid when it is zero.
    let mut cpus: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: a live set.
    unsafe { libc::CPU_SET(1, &mut cpus) };
    // SAFETY: a live set of this size; a failure, on a machine with one CPU, changes nothing.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const cpus) };
}

/// The rows that only exclusive queues have.
pub fn more_rows(rows: &mut Rows, world: &'static World<Exclusive>) {
    send::more_rows(rows, world);
    list::more_rows(rows, world);
    owned::rows(rows);
}

/// The program of a locking, with rows of its own.
pub fn run<L: Face>(more: impl FnOnce(&mut Rows, &'static World<L>)) {
    measure(|| {
        let (mut rows, world) = rows::<L>();
        more(&mut rows, world);
        floor::rows(&mut rows);
        rows
    });
}

/// The program of EFA, with a locking.
pub fn run_efa<L: Face>() {
    measure(|| {
        let mut rows = Rows::default();
        efa::rows::<L>(&mut rows);
        rows
    });
}

/// The program that compares `AnyDriver` with the driver itself.
pub fn run_any() {
    measure(|| {
        let mut rows = Rows::default();
        any::rows(&mut rows);
        rows
    });
}

/// The program whose rows are its own.
pub fn run_rows(rows: impl FnOnce() -> Rows) {
    measure(rows);
}

/// Measures the rows that the arguments select.
fn measure(rows: impl FnOnce() -> Rows) {
    let args: Vec<_> = std::env::args().collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    let [_, mode, names @ ..] = &args[..] else { panic!("usage: count|ns|trace [NAME...]") };
    pin();
    let rows = rows();
    let meter = match *mode {
        "count" => Meter::counting(),
        "ns" => Meter::timing(),
        "trace" => Meter::tracing(),
        _ => panic!("no such mode: {mode}"),
    };
    for row in rows.0.into_iter().filter(|row| names.is_empty() || names.contains(&&*row.name)) {
        println!("{}", meter.row(&row.name, row.ops, row.chunk));
    }
}
