// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces of the test's model, and their files.

use super::{Hop, Step, StepKind, chart, read};
use crate::Fabric;
use crate::testing::{Device, Frame};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

fn step(at: u64, kind: StepKind, hop: Option<Hop>) -> Step {
    Step { at, port: 3, qpn: 0x101, kind, hop, words: "what\thappened\n".into(), detail: "where".into() }
}

#[test]
fn a_line_is_the_step_again() {
    let hop = Some(Hop { id: 7, peer: 1, peer_qpn: 0xff_ffff });
    for (i, kind) in StepKind::ALL.into_iter().enumerate() {
        let step = step(5, kind, hop.filter(|_| i % 2 == 0));
        let line = step.line(1000, "12-0");
        // What would end a column is a space.
        let expected = Step {
            at: 1005,
            words: "what happened ".into(),
            hop: step.hop.map(|hop| Hop { id: 1, ..hop }),
            ..step
        };
        assert_eq!(read(&line), Ok(vec![expected]), "{line}");
    }
}

#[test]
fn files_of_several_fabrics_are_merged() {
    let hop = |id| Some(Hop { id, peer: 1, peer_qpn: 2 });
    let text = [
        step(5, StepKind::Sent, hop(9)).line(100, "12-0"),
        step(1, StepKind::Sent, hop(9)).line(101, "13-0"),
        step(6, StepKind::Received, hop(9)).line(100, "12-0"),
        "# the trace of fabric 12-0 ends\n".into(),
        "106\t12-0\tcut off".into(),
    ]
    .concat();
    let steps = read(&text).unwrap();
    let seen: Vec<_> = steps.iter().map(|step| (step.at, step.hop.unwrap().id)).collect();
    // The packets of the two fabrics have different numbers, those of one the same.
    assert_eq!(seen, [(102, 2), (105, 1), (106, 1)]);
    let error = read("# a\n5\t1-0\tx\n").unwrap_err();
    assert_eq!((error.line, error.to_string().as_str()), (2, "line 2 is not one of a trace"));
}

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("uverbs-fabric-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn send(fabric: &Fabric<Device>, from: usize, to: usize, count: usize) {
    fabric.enter(|world| {
        for i in 0..count {
            let frame = Frame { source: from, queue: 0, data: vec![i as u8] };
            world.net.send(world.now, to, frame);
        }
    });
}

#[test]
fn a_file_has_the_packets_up_to_its_limit() {
    let place = Place::new("trace");
    let fabric: Fabric<Device> = Fabric::deterministic(1);
    let (a, b) = (fabric.device("a").index(), fabric.device("b").index());
    let path = place.0.join("t");
    fabric.trace_to(&path, &[]).unwrap();
    send(&fabric, a, b, 1);
    fabric.loss(1.0);
    send(&fabric, a, b, 1);
    fabric.loss(0.0).duplicate(1.0);
    send(&fabric, a, b, 1);
    let steps = read(&std::fs::read_to_string(&path).unwrap()).unwrap();
    use StepKind::{Lost, Received, Sent};
    let kinds: Vec<_> = steps.iter().map(|step| step.kind).collect();
    assert_eq!(kinds, [Sent, Received, Lost, Sent, Sent, Received, Received]);
    assert!(steps[2].words.ends_with(": lost"), "{}", steps[2]);
    let ids: Vec<_> = steps.iter().map(|step| step.hop.unwrap().id).collect();
    assert_eq!(ids, [1, 1, 0, 2, 3, 2, 3]);
    // A filter for a QP that has no packets.
    fabric.trace_to(&path, &[5]).unwrap();
    send(&fabric, a, b, 1);
    assert_eq!(read(&std::fs::read_to_string(&path).unwrap()).unwrap().len(), 7);
    // 8 MiB, and a line that says so.
    fabric.trace_to(&path, &[]).unwrap();
    for _ in 0..40 {
        send(&fabric, a, b, 1000);
    }
    let text = std::fs::read_to_string(&path).unwrap();
    assert!((8 << 20..(8 << 20) + 2000).contains(&text.len()), "{}", text.len());
    assert!(text.ends_with("ends: it has 8388608 bytes\n"));
    read(&text).unwrap();
}

#[test]
fn a_chart_has_an_arrow_for_each_packet() {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let fabric: Fabric<Device> = Fabric::deterministic(1);
    let (a, b) = (fabric.device("a").index(), fabric.device("b").index());
    let sink = Arc::clone(&steps);
    fabric.trace(&[], Some(Box::new(move |step: &Step| sink.lock().unwrap().push(step.clone()))));
    send(&fabric, a, b, 3);
    fabric.loss(1.0);
    send(&fabric, b, a, 2);
    fabric.trace(&[], None);
    let mut steps = steps.lock().unwrap();
    for step in &mut *steps {
        // The test's model has no QPs.
        step.qpn = 1;
        step.hop.as_mut().unwrap().peer_qpn = 1;
    }
    let svg = chart("packets", &steps);
    let count = |what: &str| svg.matches(what).count();
    assert_eq!(
        (count("<line class=\"packet\""), count("class=\"tip\""), count("class=\"cross\"")),
        (5, 3, 2)
    );
    assert_eq!((count("class=\"life\""), count("class=\"head\"")), (2, 2));
    // In another process the numbers differ: the words join the two steps.
    for (i, step) in steps.iter_mut().enumerate() {
        step.hop.as_mut().unwrap().id = i as u64 + 100;
    }
    assert_eq!(chart("packets", &steps), svg);
    // Only so many steps are drawn, and nothing is drawn of no steps.
    let many = vec![step(1, StepKind::Event, None); 600];
    assert!(chart("", &many).contains("and 100 more steps"));
    assert!(chart("", &[]).ends_with("</svg>\n"));
}
