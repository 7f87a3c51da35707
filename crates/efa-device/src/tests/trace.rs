// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a trace says.

use super::rig::{End, Shape, pair, pattern};
use std::sync::{Arc, Mutex};
use uverbs_efa_hw::io::{EFA_IO_SEND, TxMetaDesc};
use uverbs_fabric::trace::{Step, StepKind};
use zerocopy::IntoBytes;

#[test]
fn a_message_is_told_from_its_request_to_its_completions() {
    let (fabric, a, b) = pair(1);
    let (mut x, mut y) = (End::written(&a, Shape::default()), End::written(&b, Shape::default()));
    let (to_y, _) = (x.ah_to(&y), y.ah_to(&x));
    let steps = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&steps);
    fabric.trace(&[], Some(Box::new(move |step: &Step| sink.lock().unwrap().push(step.clone()))));
    x.memory.put(100, &pattern(300, 1));
    y.recv_list(5, &[(0, 1000)]);
    let meta = TxMetaDesc { length: 1, ..x.meta(9, EFA_IO_SEND, &y, to_y) };
    let buffer = x.buffer(100, 300);
    x.post(meta, buffer.as_bytes());
    x.poll().unwrap();
    y.poll().unwrap();
    let steps = steps.lock().unwrap();
    let told: Vec<_> = steps.iter().map(|step| (step.port, step.kind, step.words.as_str())).collect();
    let has = |port: u16, kind: StepKind, words: &str| {
        assert!(
            told.iter().any(|(p, k, w)| (*p, *k) == (port, kind) && w.contains(words)),
            "{words}: {told:#?}"
        );
    };
    has(0, StepKind::Request, "SEND of 300 bytes, request 9");
    has(0, StepKind::Sent, "SEND, 300 bytes, message");
    has(1, StepKind::Received, "SEND, 300 bytes, message");
    has(1, StepKind::Placed, "300 bytes to key");
    has(1, StepKind::Completion, "SEND received, request 5");
    has(0, StepKind::Received, "answer: OK");
    has(0, StepKind::Completion, "SEND complete, request 9");
    let refused = fabric.capture(std::path::Path::new("/nonexistent/file")).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
}
