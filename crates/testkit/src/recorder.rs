// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a thread reports by `tracing` (feature `tracing`).

use core::fmt::Debug;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// An event: its level, and its fields as text.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its level.
    pub level: Level,
    target: String,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name(), value.to_owned());
    }
}

impl Seen {
    /// A field as text; empty if there is none. The message is the field `message`.
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
}

/// Keeps the events of a thread.
#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<Seen>>>);

impl Subscriber for Recorder {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let meta = event.metadata();
        let mut seen =
            Seen { level: *meta.level(), target: meta.target().to_owned(), fields: BTreeMap::new() };
        event.record(&mut seen);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// Two dispatches that live as long as the process. While there is only one, `tracing-core` asks the dispatch of the
/// thread that reaches an event for the first time (`Rebuilder::JustOne`). A thread without a recorder then notes, for
/// all threads, that nobody wants the event.
static KEPT: LazyLock<[Dispatch; 2]> = LazyLock::new(|| [(); 2].map(|()| Dispatch::new(Recorder::default())));

/// The result of a call, and the events of the crates `uverbs*` in this thread during it.
pub fn events<R>(f: impl FnOnce() -> R) -> (R, Vec<Seen>) {
    let recorder = Recorder::default();
    LazyLock::force(&KEPT);
    let result = tracing::subscriber::with_default(recorder.clone(), || {
        // Another thread may have begun to reach an event for the first time before the two were there.
        tracing::callsite::rebuild_interest_cache();
        f()
    });
    let seen = recorder.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (result, seen.into_iter().filter(|event| event.target.starts_with("uverbs")).collect())
}
