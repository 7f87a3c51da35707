// SPDX-License-Identifier: MIT OR Apache-2.0
//! The counters in a recorder of the facade `metrics`.

use crate::bed::{End, loopback, srq};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use uverbs_hca::Hca;

/// The values by `name{label=value,..}`.
type Values = Arc<Mutex<BTreeMap<String, f64>>>;

#[derive(Default)]
struct Recorded {
    values: Values,
    described: Mutex<BTreeSet<String>>,
}

struct Cell(String, Values);

impl Cell {
    fn set(&self, value: f64) {
        self.1.lock().unwrap().insert(self.0.clone(), value);
    }
}

impl CounterFn for Cell {
    fn increment(&self, _: u64) {
        panic!("values are absolute");
    }
    fn absolute(&self, value: u64) {
        self.set(value as f64);
    }
}

impl GaugeFn for Cell {
    fn increment(&self, _: f64) {
        panic!("values are absolute");
    }
    fn decrement(&self, _: f64) {
        panic!("values are absolute");
    }
    fn set(&self, value: f64) {
        Self::set(self, value);
    }
}

impl Recorded {
    fn cell(&self, key: &Key) -> Arc<Cell> {
        let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(Cell(format!("{}{{{}}}", key.name(), labels.join(",")), self.values.clone()))
    }

    fn get(&self, name: &str) -> Option<f64> {
        self.values.lock().unwrap().get(name).copied()
    }

    fn describe(&self, key: &KeyName) {
        self.described.lock().unwrap().insert(key.as_str().to_owned());
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&key);
    }
    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe(&key);
    }
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.cell(key))
    }
    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.cell(key))
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn counters_are_published_with_device_and_qp() {
    let mut end = End::new(Hca::new());
    loopback(&end);
    let shared = srq(&end.pd, 4);
    let recorder = Recorded::default();
    let publish = |end: &End| {
        metrics::with_local_recorder(&recorder, || {
            uverbs::metrics::describe();
            uverbs::metrics::publish(&end.context).unwrap();
            uverbs::metrics::publish_pool("messages", &end.pool);
        });
    };
    publish(&end);
    assert_eq!(recorder.get("uverbs_posts_total{device=hca0,queue=send}"), Some(0.0));
    end.receives(2);
    end.qp.send_inline(b"x").unwrap();
    drop((end.next(), end.next()));
    publish(&end);
    let qp = format!("{:#x}", end.qp.qp_num());
    for (name, value) in [
        ("uverbs_posts_total{device=hca0,queue=send}", 1.0),
        ("uverbs_posts_total{device=hca0,queue=recv}", 2.0),
        ("uverbs_completed_total{device=hca0,queue=recv}", 1.0),
        ("uverbs_cq_completions_total{device=hca0}", 2.0),
        (&format!("uverbs_qp_posts{{device=hca0,qp_num={qp},queue=send}}"), 1.0),
        (&format!("uverbs_qp_posts{{device=hca0,qp_num={qp},queue=recv}}"), 2.0),
        ("uverbs_pool_buffers{pool=messages}", f64::from(crate::bed::BUFS)),
        ("uverbs_pool_available{pool=messages}", f64::from(crate::bed::BUFS - 1)),
        ("uverbs_pool_empty_total{pool=messages}", 0.0),
    ] {
        assert_eq!(recorder.get(name), Some(value), "{name}");
    }
    let values = recorder.values.lock().unwrap().clone();
    let srqs = values.keys().filter(|name| name.starts_with("uverbs_srq_posts{device=hca0,srq=")).count();
    assert_eq!(srqs, 1);
    drop(shared);
    // Each name that is published is described.
    let described = recorder.described.lock().unwrap();
    for name in values.keys() {
        let name = name.split('{').next().unwrap();
        assert!(described.contains(name), "{name}");
    }
    drop(described);

    // The sums of two contexts of a device.
    let other = End::new(end.hca.clone());
    loopback(&other);
    let mut other = other;
    other.qp.send_inline(b"x").unwrap();
    metrics::with_local_recorder(&recorder, || {
        uverbs::metrics::publish_sums([&end.context, &other.context]).unwrap();
    });
    assert_eq!(recorder.get("uverbs_posts_total{device=hca0,queue=send}"), Some(2.0));
}
