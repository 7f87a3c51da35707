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

#[test]
fn an_answer_is_delayed_by_what_is_held_or_placed_for_its_queue_pair() {
    let memory = Lines::new(1);
    let packet = || Data { bytes: Vec::new(), atomic: false };
    let mut order = Order::new(Mode::Model, By::Seed(1));
    let delayed = |order: &Order<Data>| {
        let all = [(0, 5), (0, 7), (1, 5), (1, 7)];
        all.into_iter().filter(|(device, queue)| order.delays_answer(*device, *queue)).collect::<Vec<_>>()
    };
    // Two requests of QP 5 of device 0, then the answer to it, then its data.
    for _ in 0..2 {
        order.hold((0, 0), (0, 1), ROUTE, packet(), Waits::default(), false);
    }
    assert_eq!(delayed(&order), [(0, 5)]);
    let arrives = |order: &mut Order<Data>| {
        let step = order.choose(u64::MAX).expect("a packet");
        assert!(matches!(take(order, step), Rest::Arrive { .. }));
    };
    arrives(&mut order);
    assert_eq!(delayed(&order), [(0, 5)], "one request is left");
    arrives(&mut order);
    assert_eq!(delayed(&order), []);
    let answer = Route { src: 7, dest: 5, is_response: true };
    order.hold((0, 0), (1, 0), answer, packet(), Waits::default(), false);
    assert_eq!(delayed(&order), [(0, 5)]);
    arrives(&mut order);
    order.place(
        0,
        Lane { device: 0, queue: 5, side: Side::Requester, message: 3 },
        store(&memory, 0, 1, false),
    );
    assert_eq!(delayed(&order), [(0, 5)]);
    // The data of the peer's requests are no answer.
    order.place(0, LANE, store(&memory, 0, 1, false));
    run(&mut order, &memory);
    assert_eq!(delayed(&order), []);
    order.place(0, LANE, store(&memory, 0, 1, false));
    assert_eq!(delayed(&order), []);
}

#[test]
fn the_next_step_is_due_when_the_first_possible_one_is_but_not_before_the_pause() {
    let memory = Lines::new(2);
    let mut order: Order<Data> = Order::new(Mode::Model, By::Seed(1));
    assert_eq!(order.next_due(), None);
    order.hold(
        (0, 900_000),
        (0, 1),
        ROUTE,
        Data { bytes: Vec::new(), atomic: false },
        Waits::default(),
        false,
    );
    assert_eq!(order.next_due(), Some(900_000), "it is in flight until then");
    let pause = order.not_before;
    assert!((1..900_000).contains(&pause));
    order.place(100, LANE, store(&memory, 0, 1, false));
    assert_eq!(order.next_due(), Some(pause));
    order.place(pause + 5, Lane { queue: 8, ..LANE }, store(&memory, 1, 1, false));
    assert_eq!(order.next_due(), Some(pause));
}

#[test]
fn the_oldest_step_is_the_first_of_all_that_are_due() {
    let memory = Lines::new(8);
    for (mode, seed) in [(Mode::Pcie, 1), (Mode::Relaxed, 2), (Mode::Model, 3), (Mode::Model, 4)] {
        let mut random = Random::new(seed);
        let mut order = Order::new(mode, By::Seed(seed));
        for now in 0..3000 {
            let queue = 7 + random.below(3) as u32;
            match random.below(7) {
                0 => {
                    let (line, lines) = (random.below(6) as usize, 1 + random.below(2) as usize);
                    order.place(
                        now,
                        Lane { queue, ..LANE },
                        store(&memory, line, lines, random.below(2) == 0),
                    );
                }
                1 => order.place_step(now, Lane { queue, ..LANE }, completion(1)),
                2 => {
                    let after = (random.below(2) == 0).then(|| order.mark(Lane { queue, ..LANE }));
                    let shared = Arc::clone(&memory) as Arc<dyn Memory>;
                    let fill = Fill { memory: shared, offset: 0, at: 0, len: 2 * LINE, after };
                    let fills = if random.below(2) == 0 { vec![fill] } else { Vec::new() };
                    let packet = Data { bytes: vec![0; 2 * LINE], atomic: random.below(4) == 0 };
                    let route = Route { src: queue, ..ROUTE };
                    let arrives = now + random.below(3) * 10;
                    order.hold((now, arrives), (0, 1), route, packet, Waits { fills, after: None }, false);
                }
                3 if random.below(50) == 0 => drop(order.drain(now, 1)),
                _ => {
                    let mut first: Option<Step> = None;
                    let mut all = order.steps();
                    all.sort_by_key(|step| step.number);
                    order.each(|step, at| {
                        if at <= now && first.is_none_or(|first| step.number < first.number) {
                            first = Some(step);
                        }
                        true
                    });
                    assert_eq!(order.oldest(now), first, "{mode}, at {now}");
                    if let Some(step) = order.choose(u64::MAX) {
                        assert!(all.contains(&step));
                        drop(take(&mut order, step));
                    }
                }
            }
            let fronts: Vec<u64> = {
                let lanes = order.lanes.values().filter_map(|placed| Some(placed.front()?.number));
                let ways = order.ways.values().filter_map(|held| Some(held.front()?.number));
                let mut all: Vec<u64> = lanes.chain(ways).collect();
                all.sort_unstable();
                all
            };
            assert!(order.fronts.keys().eq(fronts));
        }
        let (.., tokens) = run(&mut order, &memory);
        assert!(!tokens.is_empty() && order.fronts.is_empty() && order.answers.is_empty());
    }
}

#[test]
fn a_line_that_waits_for_an_earlier_one_is_free_when_that_is_there() {
    let memory = Lines::new(3);
    let mut order: Order<Data> = Order::new(Mode::Model, By::Hand);
    // The third one writes what the first one writes; the second one keeps it from being the first.
    for line in [0, 1, 0] {
        order.place(0, LANE, store(&memory, line, 1, false));
    }
    let numbers = |order: &Order<Data>| order.steps().iter().map(|step| step.number).collect::<Vec<_>>();
    assert_eq!(numbers(&order), [1, 2]);
    let first = order.steps()[0];
    drop(take(&mut order, first));
    // Twice: what was found the first time is kept.
    assert_eq!((numbers(&order), numbers(&order)), (vec![2, 3], vec![2, 3]));
}
