// SPDX-License-Identifier: MIT OR Apache-2.0
//! The scheduler alone: lanes, marks and ways, with memory that a test sees.

use super::*;
use crate::memory::Fault;
use crate::wire::{Malformed, Reader, Writer};
use std::sync::Mutex;

/// Memory of lines.
#[derive(Debug)]
struct Lines(Mutex<Vec<u8>>);

impl Lines {
    fn new(lines: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(vec![0; lines * LINE])))
    }

    /// The first byte of each line.
    fn firsts(&self) -> Vec<u8> {
        self.0.lock().unwrap().iter().step_by(LINE).copied().collect()
    }
}

impl Memory for Lines {
    fn len(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read(&self, offset: u64, to: &mut [u8]) -> Result<(), Fault> {
        let at = offset as usize;
        to.copy_from_slice(self.0.lock().unwrap().get(at..at + to.len()).ok_or(Fault)?);
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), Fault> {
        let at = offset as usize;
        self.0.lock().unwrap().get_mut(at..at + from.len()).ok_or(Fault)?.copy_from_slice(from);
        Ok(())
    }

    fn update(&self, _: u64, _: &dyn Fn(u64) -> u64) -> Result<u64, Fault> {
        Err(Fault)
    }

    fn load_be32(&self, _: u64) -> Result<u32, Fault> {
        Err(Fault)
    }

    fn publish(&self, offset: u64, bytes: [u8; 8]) -> Result<(), Fault> {
        self.write(offset, &bytes)
    }
}

/// A packet with data.
#[derive(Clone, Debug)]
struct Data {
    bytes: Vec<u8>,
    atomic: bool,
}

impl Packet for Data {
    const PROTOCOL: [u8; 8] = *b"uvorder\0";

    fn source(&self) -> usize {
        0
    }

    fn set_source(&mut self, _: usize) {}

    fn cost(&self) -> usize {
        self.bytes.len()
    }

    fn data_mut(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.bytes)
    }

    fn is_atomic(&self) -> bool {
        self.atomic
    }

    fn encode(&self, _: &mut Writer) {}

    fn decode(_: usize, _: &mut Reader<'_>) -> Result<Self, Malformed> {
        Err(Malformed)
    }
}

const LANE: Lane = Lane { device: 1, queue: 7, side: Side::Responder, message: 0 };
const ROUTE: Route = Route { src: 5, dest: 7, is_response: false };

fn store(memory: &Arc<Lines>, line: usize, lines: usize, relaxed: bool) -> Store {
    let memory = Arc::clone(memory) as Arc<dyn Memory>;
    let bytes = vec![1; lines * LINE];
    Store { memory, offset: (line * LINE) as u64, bytes, relaxed, atomic: false, label: Label::default() }
}

fn take(order: &mut Order<Data>, step: Step) -> Rest<Data> {
    order.take(0, step, |_, _| {}).expect("a step that is possible")
}

/// Takes all steps as the seed chooses. Returns the memory's lines after each, and the tokens.
fn run(order: &mut Order<Data>, memory: &Lines) -> (Vec<Vec<u8>>, Vec<u64>) {
    let (mut states, mut tokens) = (Vec::new(), Vec::new());
    while let Some(step) = order.choose(u64::MAX) {
        if let Rest::Model { token, .. } = take(order, step) {
            tokens.push(token);
        }
        states.push(memory.firsts());
    }
    (states, tokens)
}

#[test]
fn a_completion_comes_after_all_lines_in_each_mode_and_lines_pass_only_where_they_may() {
    for (mode, relaxed, passes) in [
        (Mode::Pcie, true, false),
        (Mode::Relaxed, false, false),
        (Mode::Relaxed, true, true),
        (Mode::Model, false, true),
    ] {
        let mut passed = false;
        for seed in 0..200 {
            let memory = Lines::new(4);
            let mut order = Order::new(mode, By::Seed(seed));
            order.place(0, LANE, store(&memory, 0, 3, relaxed));
            order.place_step(0, LANE, completion(9));
            order.place(0, LANE, store(&memory, 3, 1, relaxed));
            let mut done = 0;
            while let Some(step) = order.choose(u64::MAX) {
                if let Rest::Model { token, .. } = take(&mut order, step) {
                    assert_eq!(token, 9);
                    assert_eq!(memory.firsts()[..3], [1, 1, 1], "{mode}: the completion is early");
                    done += 1;
                }
                let lines = memory.firsts();
                passed |= lines.windows(2).any(|pair| pair == [0, 1]);
            }
            assert_eq!((done, memory.firsts()), (1, vec![1; 4]));
        }
        assert_eq!(passed, passes, "{mode}, relaxed {relaxed}");
    }
}

/// The completion of a request without an acknowledgement.
fn completion(token: u64) -> ModelStep {
    ModelStep { token, object: 0, after_reads: true, label: Label::default() }
}

#[test]
fn two_writes_to_the_same_line_have_an_order_unless_the_region_gives_it_up() {
    for (mode, possible) in [(Mode::Pcie, 1), (Mode::Model, 2), (Mode::Relaxed, 3)] {
        let memory = Lines::new(2);
        let mut order: Order<Data> = Order::new(mode, By::Hand);
        for line in [0, 0, 1] {
            order.place(0, LANE, store(&memory, line, 1, true));
        }
        assert_eq!(order.steps().len(), possible, "{mode}");
    }
}

#[test]
fn a_fenced_packet_waits_for_the_writes_before_it() {
    let memory = Lines::new(1);
    let mut order = Order::new(Mode::Model, By::Hand);
    order.place(0, LANE, store(&memory, 0, 1, false));
    let after = Some(order.mark(LANE));
    order.hold(
        (0, 0),
        (0, 1),
        ROUTE,
        Data { bytes: Vec::new(), atomic: false },
        Waits { fills: Vec::new(), after },
        false,
    );
    let [write] = order.steps()[..] else { panic!("only the write: {:?}", order.steps()) };
    assert!(matches!(take(&mut order, write), Rest::Done));
    let [arrival] = order.steps()[..] else { panic!("the packet can arrive: {:?}", order.steps()) };
    assert!(matches!(take(&mut order, arrival), Rest::Arrive { .. }));
}

#[test]
fn a_fill_waits_for_its_mark_and_a_packet_for_its_fills() {
    for seed in 0..100 {
        let memory = Lines::new(2);
        let mut order = Order::new(Mode::Model, By::Seed(seed));
        order.place(0, LANE, store(&memory, 0, 2, false));
        let after = Some(order.mark(LANE));
        let shared = Arc::clone(&memory) as Arc<dyn Memory>;
        let fill = Fill { memory: shared, offset: 0, at: 0, len: 2 * LINE, after };
        order.hold(
            (0, 0),
            (0, 1),
            ROUTE,
            Data { bytes: vec![0; 2 * LINE], atomic: false },
            Waits { fills: vec![fill], after: None },
            false,
        );
        let mut arrived = false;
        while let Some(step) = order.choose(u64::MAX) {
            if let Rest::Arrive { to, packet } = take(&mut order, step) {
                assert_eq!((to, packet.bytes), (1, vec![1; 2 * LINE]));
                arrived = true;
            }
        }
        assert!(arrived);
    }
}

#[test]
fn an_atomic_waits_for_the_writes_before_it_and_for_the_atomic_of_another_peer() {
    let memory = Lines::new(1);
    let mut order = Order::new(Mode::Model, By::Hand);
    let atomic = Store { atomic: true, bytes: vec![1; 8], ..store(&memory, 0, 1, false) };
    order.place(0, Lane { queue: 8, ..LANE }, atomic);
    order.hold((0, 0), (0, 1), ROUTE, Data { bytes: Vec::new(), atomic: true }, Waits::default(), false);
    let [result] = order.steps()[..] else { panic!("only the result can be written: {:?}", order.steps()) };
    assert!(matches!(take(&mut order, result), Rest::Done));
    order.place(0, LANE, store(&memory, 0, 1, false));
    let [line] = order.steps()[..] else { panic!("only the line can be written: {:?}", order.steps()) };
    assert!(matches!(take(&mut order, line), Rest::Done));
    let [arrival] = order.steps()[..] else { panic!("the atomic can arrive: {:?}", order.steps()) };
    assert!(!order.is_quiet(arrival) && order.footprint(arrival).everything);
    assert!(matches!(take(&mut order, arrival), Rest::Arrive { .. }));
    assert_eq!(order.steps(), []);
}

#[test]
fn a_command_finds_all_accesses_done() {
    let (memory, other) = (Lines::new(3), Lines::new(1));
    let mut order = Order::new(Mode::Model, By::Seed(1));
    order.place(0, LANE, store(&memory, 0, 3, false));
    order.place_step(0, LANE, completion(4));
    order.place(0, Lane { device: 2, ..LANE }, store(&other, 0, 1, false));
    let fill = Fill { memory: memory.clone(), offset: 0, at: 0, len: 8, after: None };
    order.hold(
        (0, 0),
        (1, 0),
        ROUTE,
        Data { bytes: vec![0; 8], atomic: false },
        Waits { fills: vec![fill], after: None },
        false,
    );
    assert_eq!(order.drain(0, 1), [4]);
    assert_eq!((memory.firsts(), other.firsts()), (vec![1; 3], vec![0]));
    let (_, tokens) = run(&mut order, &memory);
    assert_eq!((tokens, other.firsts()), (vec![], vec![1]));
}

#[test]
fn too_many_writes_that_wait_are_executed_in_their_order() {
    let memory = Lines::new(2);
    let mut order: Order<Data> = Order::new(Mode::Model, By::Hand);
    let mut lines = 0;
    while order.waiting <= MAX_WAITING {
        order.place(0, LANE, store(&memory, lines % 2, 1, false));
        lines += 1;
    }
    // The record of a write counts, too: many short ones have the same limit.
    assert!(lines < MAX_WAITING / LINE, "{lines} lines wait");
    assert!(matches!(order.overdue(0), Some(Rest::Done)));
    assert_eq!(memory.firsts(), [1, 0]);
    assert!(order.overdue(0).is_none());
}
