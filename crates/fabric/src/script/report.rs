// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the programs of a sweep called and completed, and what they left: a file for each process, written when it exits, and without
//! what it left also before.
#![expect(unsafe_code)]
// UNSAFETY: atexit(3).

use super::names::Queue;
use crate::alive::Alive;
use crate::fabric::Fabric;
use crate::model::Model;
use core::fmt::Write as _;
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The folder of the files.
const FOLDER: &str = "UVERBS_HCA_FAULTS_REPORT";
/// Processes of a sweep at most.
const MAX_PROCESSES: u64 = 1000;
/// Names of verbs that are counted at most.
const MAX_VERBS: usize = 1000;
/// How often a lock is tried at the end of a fabric and of the process, and the pauses.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(2);
/// The counts are written after so many posts and completions.
const OFTEN: u64 = 16;
/// Violations that a report has at most.
const MAX_VIOLATIONS: usize = 100;

/// What was called and completed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    calls: BTreeMap<String, u64>,
    sends: u64,
    receives: u64,
    pub(super) packets: u64,
    /// Whether the counts are also written before the process exits.
    pub(super) is_written: bool,
    /// The posts and completions.
    events: u64,
}

impl Counts {
    pub(super) fn call(&mut self, verb: &str) {
        if let Some(count) = self.calls.get_mut(verb) {
            *count += 1;
        } else if self.calls.len() < MAX_VERBS {
            self.calls.insert(verb.into(), 1);
        }
    }

    pub(super) fn complete(&mut self, queue: Option<Queue>) {
        match queue {
            Some(Queue::Recv) => self.receives += 1,
            _ => self.sends += 1,
        }
    }

    /// Writes the counts, for a process that ends without exit(3): after each call of a verb that is no post, and now and then after posts
    /// and completions.
    pub(super) fn write(&mut self, is_call: bool) {
        if !self.is_written {
            return;
        }
        self.events += 1;
        if (is_call || self.events.is_power_of_two() || self.events.is_multiple_of(OFTEN))
            && let Some(place) = Place::of_process().filter(|place| place.pid == std::process::id())
        {
            let report = Report { counts: self.clone(), ..Report::default() };
            let _ = std::fs::write(&place.path, report.text());
        }
    }

    fn add(&mut self, other: &Self) {
        for (verb, count) in &other.calls {
            *self.calls.entry(verb.clone()).or_default() += count;
        }
        self.sends += other.sends;
        self.receives += other.receives;
        self.packets += other.packets;
    }
}

/// What a report has.
#[derive(Debug, Default)]
pub(crate) struct Report {
    counts: Counts,
    objects: BTreeMap<&'static str, usize>,
    violations: Vec<String>,
}

impl Report {
    fn text(&self) -> String {
        let mut text = String::new();
        for (verb, count) in &self.counts.calls {
            let _ = writeln!(text, "call {verb} {count}");
        }
        let Counts { sends, receives, packets, .. } = &self.counts;
        let _ = writeln!(text, "completion send {sends}\ncompletion recv {receives}\npacket {packets}");
        for (name, count) in &self.objects {
            let _ = writeln!(text, "object {name} {count}");
        }
        for violation in &self.violations {
            let _ = writeln!(text, "violation {violation}");
        }
        text
    }
}

/// The file of this process, and its number among the processes of the sweep.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) number: u64,
    path: PathBuf,
    pid: u32,
}

impl Place {
    /// The place of this process, which is made at the first call.
    pub(super) fn of_process() -> Option<&'static Self> {
        static PLACE: OnceLock<Option<Place>> = OnceLock::new();
        PLACE.get_or_init(|| Self::make(Path::new(&std::env::var_os(FOLDER)?))).as_ref()
    }

    /// Takes the next free number: a file of it is made.
    fn make(folder: &Path) -> Option<Self> {
        for number in 1..=MAX_PROCESSES {
            let path = folder.join(number.to_string());
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => return Some(Self { number, path, pid: std::process::id() }),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    log::warn!("no report at {}: {error}", folder.display());
                    return None;
                }
            }
        }
        None
    }
}

/// Adds what a fabric has to a report. `false` if the fabric is in use.
type Add = Box<dyn Fn(&mut Report) -> bool + Send>;

/// The report of the fabrics that have ended, and those that have not.
static REPORT: Mutex<(Option<Report>, Vec<Add>)> = Mutex::new((None, Vec::new()));

/// Adds what a fabric has to the report, when it ends.
pub(crate) fn watch<M: Model>(alive: &Alive<M>) {
    if Place::of_process().is_none() {
        return;
    }
    for _ in 0..TRIES {
        match REPORT.try_lock() {
            Ok(mut report) => {
                add(alive, report.0.get_or_insert_default());
                return;
            }
            // The caller may be `write` itself, which has the lock: its copy of the fabric was the last one. It has added the fabric.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn add<M: Model>(alive: &Alive<M>, report: &mut Report) -> bool {
    let Some(world) = alive.shared.try_world() else { return false };
    if let Some(engine) = &world.net.script {
        report.counts.add(&engine.counts);
    }
    for index in world.here.iter().copied() {
        if let Some(front) = world.front(index) {
            for (name, count) in front.objects() {
                *report.objects.entry(name).or_default() += count;
            }
        }
        if let Some(device) = world.read(index) {
            let room = MAX_VIOLATIONS.saturating_sub(report.violations.len());
            report.violations.extend(device.violations().all().iter().take(room).map(ToString::to_string));
        }
    }
    true
}

impl<M: Model> Fabric<M> {
    /// Writes the report of this fabric when the process exits.
    pub(super) fn report(&self) {
        let weak: Weak<Alive<M>> = Arc::downgrade(self.alive());
        let mut report = REPORT.lock().unwrap_or_else(PoisonError::into_inner);
        if report.1.is_empty() && report.0.is_none() {
            // SAFETY: the function stays mapped: it is part of the program, or of a library that is never unloaded (`-z nodelete`).
            unsafe { libc::atexit(write) };
        }
        report.0.get_or_insert_default();
        // One that has ended has added its own part.
        report.1.push(Box::new(move |report| weak.upgrade().is_none_or(|alive| add(&alive, report))));
    }
}

/// Writes the file at exit(3).
extern "C" fn write() {
    let Some(place) = Place::of_process().filter(|place| place.pid == std::process::id()) else { return };
    // A thread that has the lock at this time makes a fabric.
    let Ok(mut guard) = REPORT.try_lock() else { return };
    let (report, fabrics) = &mut *guard;
    let report = report.get_or_insert_default();
    for add in fabrics.drain(..) {
        // Another thread may be in a call of the fabric.
        for _ in 0..TRIES {
            if add(report) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
    let _ = std::fs::write(&place.path, report.text());
}
