// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbell pages as memory, for programs that write doorbells themselves (`mlx5dv_init_obj`).
//!
//! A store to ordinary memory has no side effect, so a thread reads the registers of such pages repeatedly. It clears a
//! value before it passes it on, so every value that it finds is a new doorbell. A value that is overwritten before the
//! thread finds it is lost. Hardware may merge doorbells, too: the doorbell record contains the count of both. The
//! thread exists only while there are such pages, and sleeps between two rounds if nothing was written for a while.
// UNSAFETY: lends a page as a mapping.
#![expect(unsafe_code)]

use super::state::State;
use crate::front::Plugged;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use uverbs_core::kernel::{Mapping, Registers};
use uverbs_mlx5_hw::doorbell::{BF_OFFSET, MLX5_CQ_DOORBELL, UAR_BYTES};

/// The registers: the CQs', and the two halves of each of the two send doorbells that processes may use.
const REGISTERS: [usize; 5] =
    [MLX5_CQ_DOORBELL, BF_OFFSET, BF_OFFSET + 0x100, BF_OFFSET + 0x200, BF_OFFSET + 0x300];
/// Rounds without a doorbell before the thread sleeps.
const ROUNDS: u32 = 2000;
const SLEEP: Duration = Duration::from_micros(50);

/// The words of a page, aligned as a page of registers is.
#[derive(Debug)]
#[repr(C, align(4096))]
struct Words([AtomicU64; UAR_BYTES / 8]);

/// A page that is watched until this value is dropped.
#[derive(Debug)]
pub(super) struct Watched {
    plugged: Plugged<State>,
    page: u32,
    words: Arc<Words>,
}

/// The pages, and whether their thread runs.
struct Pages {
    pages: Vec<Weak<Watched>>,
    runs: bool,
}

static PAGES: Mutex<Pages> = Mutex::new(Pages { pages: Vec::new(), runs: false });

impl Watched {
    /// Starts to watch a page, and returns its memory. `None` if its thread can't be created.
    pub(super) fn start(plugged: &Plugged<State>, page: u32) -> Option<(Arc<Self>, Registers)> {
        let words = Arc::new(Words([const { AtomicU64::new(0) }; UAR_BYTES / 8]));
        let this = Arc::new(Self { plugged: plugged.clone(), page, words: Arc::clone(&words) });
        let ptr = NonNull::from(&*words).cast();
        // SAFETY: all bytes of the words, which are atomics and which the owner keeps.
        let registers = Registers::new(Arc::new(unsafe { Mapping::new(ptr, UAR_BYTES, words) }))?;
        let mut pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
        pages.pages.push(Arc::downgrade(&this));
        if !pages.runs {
            thread::Builder::new().name("uverbs-doorbells".into()).spawn(watch).ok()?;
            pages.runs = true;
        }
        Some((this, registers))
    }

    /// Passes on the doorbells that were written since the last call. Returns whether there were any.
    fn pass_on(&self) -> bool {
        let mut found = false;
        for offset in REGISTERS {
            let Some(word) = self.words.0.get(offset / 8) else { continue };
            // Acquire: the program's stores before the doorbell are visible, too.
            if word.load(Ordering::Relaxed) != 0 {
                let value = word.swap(0, Ordering::Acquire).to_ne_bytes();
                let ring = |device: &mut crate::engine::Device, port: &mut crate::engine::Port<'_>| {
                    device.doorbell(port, self.page, offset as u32, value, None);
                };
                self.plugged.enter_device_beside(ring);
                found = true;
            }
        }
        found
    }
}

/// The thread. It ends when there is no page left.
fn watch() {
    let (mut watched, mut idle) = (Vec::new(), 0_u32);
    loop {
        {
            let mut pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
            pages.pages.retain(|page| page.strong_count() != 0);
            watched.extend(pages.pages.iter().filter_map(Weak::upgrade));
            if watched.is_empty() {
                pages.runs = false;
                return;
            }
        }
        let mut found = false;
        for page in watched.drain(..) {
            found |= page.pass_on();
        }
        idle = if found { 0 } else { idle.saturating_add(1) };
        if idle < ROUNDS {
            thread::yield_now();
        } else {
            thread::sleep(SLEEP);
        }
    }
}
