// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program of the page "Finding a bug with a trace", its trace, and the picture of the page.

use core::time::Duration;
use std::path::Path;
use std::sync::{Arc, Mutex};
use uverbs::hca::Fabric;
use uverbs::hca::trace::{Step, StepKind, chart};
use uverbs_examples::burst::{RECEIVES, run};

/// How the page makes its picture.
const COMMAND: &str = "uverbs trace --svg docs/src/img/burst.svg --title \"A burst of 5 messages, 4 receives\" -- burst --virtual";

/// What the page shows, by the run that its command makes.
fn traced(receives: u32) -> (Duration, Vec<Step>) {
    let fabric = Fabric::deterministic(1);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&steps);
    fabric.trace(&[], Some(Box::new(move |step: &Step| sink.lock().unwrap().push(step.clone()))));
    let took = run(&fabric, receives).unwrap();
    fabric.trace(&[], None);
    let steps = steps.lock().unwrap().clone();
    (took, steps)
}

#[test]
fn the_fifth_message_waits_for_a_receive() {
    let (took, steps) = traced(RECEIVES);
    assert!(took >= Duration::from_millis(655), "{took:?}");
    let refused: Vec<_> = steps.iter().filter(|step| step.words.starts_with("RNR NAK")).collect();
    assert!(refused.iter().all(|step| step.words.contains("wait 655.36 ms, PSN 104")), "{refused:#?}");
    assert!(!refused.is_empty());
    // Each completion is successful, so no status shows that the requests waited.
    let failed = |step: &&Step| step.kind == StepKind::Completion && step.words.contains("failed");
    assert_eq!(steps.iter().find(failed), None);
}

#[test]
fn a_receive_for_each_message_needs_no_wait() {
    let (took, steps) = traced(5);
    assert_eq!(took, Duration::ZERO);
    assert!(steps.iter().all(|step| step.kind != StepKind::Timer));
}

/// The picture and the excerpt are of this version of the program and of the devices.
#[test]
fn the_page_shows_this_trace() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src");
    let page = std::fs::read_to_string(docs.join("guides/finding-a-bug.md")).unwrap();
    assert!(page.contains(COMMAND), "the page has no line {COMMAND}");
    let (_, steps) = traced(RECEIVES);
    let svg = chart("A burst of 5 messages, 4 receives", &steps);
    let file = docs.join("img/burst.svg");
    let drawn = std::fs::read_to_string(&file).unwrap_or_default();
    let is_same = drawn == svg;
    if !is_same {
        std::fs::write(docs.join("../../target/burst.svg"), &svg).unwrap();
    }
    assert!(is_same, "{} is not target/burst.svg, the chart of the program: {COMMAND}", file.display());
    // Lines of the excerpt: addresses, which differ from run to run, are left out.
    let lines: Vec<String> = steps
        .iter()
        .map(|step| {
            let step = Step { detail: String::new(), ..step.clone() };
            format!("{:>5}.{:09}  {step}", step.at / 1_000_000_000, step.at % 1_000_000_000)
        })
        .collect();
    let excerpt = page.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    for line in excerpt.lines().filter(|line| *line != "...") {
        assert!(
            lines.iter().any(|known| known == line),
            "the run has no line {line:?}:\n{}",
            lines.join("\n")
        );
    }
}
