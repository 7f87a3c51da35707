// SPDX-License-Identifier: MIT OR Apache-2.0
//! The progress of a test on the terminal. A thread draws it, so that the measured loop only stores a number.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Interval of the drawings.
const INTERVAL: Duration = Duration::from_millis(100);

/// Shared by the loop and the thread.
#[derive(Debug, Default)]
struct State {
    done: AtomicU64,
    is_over: AtomicBool,
}

/// The messages of one size that are complete.
#[derive(Debug)]
pub(super) struct Progress {
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Draws on standard error if it is a terminal and `is_shown`. `total` is 0 for a run that ends by time.
    pub(super) fn new(total: u64, label: String, is_shown: bool) -> Self {
        let state = Arc::<State>::default();
        let shown = is_shown && std::io::stderr().is_terminal();
        let thread = shown.then(|| {
            let state = state.clone();
            std::thread::spawn(move || draw(&state, total, label))
        });
        Self { state, thread }
    }

    /// Stores the number of complete messages.
    pub(super) fn set(&self, done: u64) {
        self.state.done.store(done, Ordering::Relaxed);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // Its panic has been printed, and has no other consequence.
            let _ = thread.join();
        }
    }
}

fn draw(state: &State, total: u64, label: String) {
    let target = ProgressDrawTarget::stderr();
    let (bar, template) = match total {
        0 => (ProgressBar::new_spinner(), "{spinner} {msg}: {pos} messages, {elapsed}"),
        _ => (ProgressBar::new(total), "{msg} [{bar:40}] {pos}/{len}"),
    };
    bar.set_draw_target(target);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(label);
    while !state.is_over.load(Ordering::Relaxed) {
        bar.set_position(state.done.load(Ordering::Relaxed));
        std::thread::park_timeout(INTERVAL);
    }
    bar.finish_and_clear();
}
