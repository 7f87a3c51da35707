// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of scripts, and their faults on the fabric.

use super::names::{Event, Key, Opcode, Point, Queue, Refusal, Status};
use super::rule::{Action, Change, Rule, Span, Value};
use super::{MAX_RULES, MAX_TEXT, Script, ScriptError};
use crate::Fabric;
use crate::model::PortEvent;
use crate::testing::{Device, Frame};
use core::time::Duration;
use proptest::prelude::*;
use uverbs_core::Errno;

/// A script of this text.
fn script(text: &str) -> Script {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Where, and in which words, a text is refused.
fn refused(text: &str) -> (usize, usize, String) {
    let ScriptError { line, column, message } = text.parse::<Script>().expect_err(text);
    (line, column, message)
}

#[test]
fn a_script_has_a_rule_in_each_line() {
    let text = "# of the guide\n\npacket device=hca0 qp=0x102 opcode=send wr=7 packet=1-2 : drop # lost\n\
                completion queue=recv nth=3- time=2ms-3s : status LOC_PROT_ERR\n\
                call verb=create_qp process=2: errno ENOMEM\nclock time=5000us device=hca1 : port down\n\
                packet:gid add fe80::1 on hca1\n";
    let rules = script(text).0;
    assert_eq!(rules.len(), 5);
    assert_eq!(rules[0].span(Key::Packet), Some(Span { first: 1, last: 2 }));
    assert_eq!(rules[1].span(Key::Nth), Some(Span { first: 3, last: u64::MAX }));
    assert_eq!(rules[2].action, Action::Errno(Errno::ENOMEM));
    assert_eq!(rules[3].to_string(), "clock time=5ms device=hca1 : port down");
    assert_eq!(rules[4].to_string(), "packet : gid add fe80::1 on hca1");
}

#[test]
fn what_is_wrong_is_named_with_its_line_and_column() {
    let cases = [
        ("packet\n", 1, 7, "\":\" and an action are missing"),
        ("\npackets : drop", 2, 1, "packets: not one of packet, completion, call, clock"),
        ("packet wr : drop", 1, 8, "wr: a selector is NAME=VALUE"),
        ("packet who=1 : drop", 1, 8, "who=1: not one of process"),
        ("packet  wr=x : drop", 1, 12, "x: not a number"),
        ("packet wr=0 : drop", 1, 11, "0: the first one is 1"),
        ("packet wr=5-3 : drop", 1, 11, "5-3: the last one is before the first one"),
        ("packet qp=0x1000000 : drop", 1, 11, "0x1000000: more than 16777215"),
        ("packet wr=1 wr=2 : drop", 1, 13, "wr=2: this selector is there already"),
        ("packet verb=x : drop", 1, 8, "verb=x: no selector of a packet"),
        ("completion wr=1 : duplicate 2", 1, 19, "duplicate: no action of a completion"),
        ("packet :", 1, 9, "an action is missing"),
        ("packet : delay", 1, 15, "delay: a word is missing"),
        ("packet : delay 5", 1, 16, "5: not a number with one of the units ns, us, ms, s"),
        ("packet : delay 99999999999s", 1, 16, "99999999999s: too much"),
        ("packet : bandwidth 0mbit", 1, 20, "0mbit: nothing would arrive"),
        ("packet : nak maybe", 1, 14, "maybe: not one of sequence"),
        ("packet : drop it", 1, 15, "it: the action has ended"),
        ("packet : vanish", 1, 10, "vanish: not an action"),
        ("clock : port down", 1, 1, "a device is missing"),
        ("clock device=a : event QP_FATAL", 1, 1, "QP_FATAL needs the QP"),
        ("call : errno EMAGIC", 1, 14, "EMAGIC: not the name of an errno"),
        ("call : errno 0", 1, 14, "0: no error"),
        ("packet : lid 65536", 1, 14, "65536: more than 65535"),
        ("packet : port down on", 1, 22, "on: a device is missing"),
    ];
    for (text, line, column, words) in cases {
        let (l, c, message) = refused(text);
        assert_eq!((l, c), (line, column), "{text}: {message}");
        assert!(message.starts_with(words), "{text}: {message}");
    }
}

/// A program may make a script of its parts, too: what no text has would never end, or have no limit.
#[test]
fn rules_that_no_text_has_are_refused() {
    let rule =
        |point, selectors: &[(Key, Value)], action| Rule { point, selectors: selectors.to_vec(), action };
    let device = |name: &str| (Key::Device, Value::Name(name.into()));
    let span = |key, first, last| (key, Value::Span(Span { first, last }));
    let fabric = Fabric::<Device>::deterministic(1);
    for rule in [
        rule(Point::Clock, &[], Action::Drop),
        rule(Point::Clock, &[], Action::Change(Change::Remove, None)),
        rule(Point::Packet, &[], Action::Duplicate(u32::MAX)),
        rule(Point::Packet, &[], Action::Duplicate(0)),
        rule(Point::Packet, &[], Action::Delay(u64::MAX)),
        rule(Point::Packet, &[], Action::Bandwidth(0)),
        rule(Point::Packet, &[], Action::Errno(Errno::ENOMEM)),
        rule(Point::Packet, &[device("a b")], Action::Drop),
        rule(Point::Packet, &[device("a\npacket")], Action::Drop),
        rule(Point::Packet, &[device("a"), device("b")], Action::Drop),
        rule(Point::Packet, &[span(Key::Wr, 0, 1)], Action::Drop),
        rule(Point::Packet, &[span(Key::Wr, 3, 2)], Action::Drop),
        rule(Point::Packet, &[(Key::Wr, Value::Name("1".into()))], Action::Drop),
        rule(Point::Packet, &[], Action::Change(Change::Kill, Some("a : b".into()))),
    ] {
        let good = script("packet : drop").0.remove(0);
        let error = fabric.set_script(Script(vec![good, rule.clone()])).expect_err(&rule.to_string());
        assert_eq!(error.line, 2, "{error}");
        assert_eq!(fabric.rules(), None);
    }
    let many = script(&"packet : drop\n".repeat(MAX_RULES)).0;
    assert_eq!(fabric.set_script(Script(many.clone())), Ok(()));
    let error = fabric.set_script(Script([&many[..], &many[..1]].concat())).unwrap_err();
    assert_eq!(error.line, MAX_RULES + 1);
}

#[test]
fn the_size_of_a_script_is_limited() {
    let most = "packet : drop\n".repeat(MAX_RULES);
    assert_eq!(script(&most).0.len(), MAX_RULES);
    assert_eq!(refused(&format!("{most}packet : drop")).0, MAX_RULES + 1);
    assert_eq!(refused(&"#".repeat(MAX_TEXT + 1)).0, 0);
    assert_eq!(script(&"#".repeat(MAX_TEXT)), Script::default());
    let fabric: Fabric<Device> = Fabric::deterministic(0);
    fabric.script(&most).unwrap();
    assert!(fabric.add_rules("packet : drop").is_err());
}

fn name() -> impl Strategy<Value = String> {
    "[a-z][a-z0-9_.-]{0,8}"
}

fn span(most: u64) -> impl Strategy<Value = Value> {
    (1..=most, 1..=most, any::<bool>()).prop_map(|(a, b, is_open)| {
        let last = if is_open { u64::MAX } else { a.max(b) };
        Value::Span(Span { first: a.min(b), last })
    })
}

fn one_of<T: Copy + core::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    proptest::sample::select(all)
}

fn selector(key: Key) -> BoxedStrategy<(Key, Value)> {
    let value = match key {
        Key::Device | Key::To | Key::Verb => name().prop_map(Value::Name).boxed(),
        Key::Opcode => one_of(Opcode::ALL).prop_map(Value::Opcode).boxed(),
        Key::Queue => one_of(Queue::ALL).prop_map(Value::Queue).boxed(),
        Key::Time => span(3_600_000_000_000).boxed(),
        Key::Qp | Key::Dest | Key::Psn => span(0xff_ffff).boxed(),
        _ => span(u32::MAX.into()).boxed(),
    };
    value.prop_map(move |value| (key, value)).boxed()
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        any::<bool>().prop_map(|up| Change::Port { up }),
        any::<u128>().prop_map(|bits| Change::AddGid(bits.into())),
        any::<u16>().prop_map(Change::RemoveGid),
        any::<u16>().prop_map(Change::Lid),
        Just(Change::Remove),
        Just(Change::Kill),
        Just(Change::Exit),
        one_of(Event::ALL).prop_map(Change::Event),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let time = 0..=3_600_000_000_000_u64;
    prop_oneof![
        Just(Action::Drop),
        Just(Action::Corrupt),
        Just(Action::Full),
        time.clone().prop_map(Action::Delay),
        time.prop_map(Action::Slow),
        (1..=1000_u32).prop_map(Action::Duplicate),
        (1..=1000_u32).prop_map(Action::Reorder),
        one_of(Refusal::ALL).prop_map(Action::Nak),
        (0..=31_u8).prop_map(Action::Rnr),
        (1..=1_000_000_000_000_u64).prop_map(Action::Bandwidth),
        one_of(Status::ALL).prop_map(Action::Status),
        (1..=200_i32).prop_map(|errno| Action::Errno(Errno::from_raw(errno))),
        (change(), proptest::option::of(name())).prop_map(|(change, on)| Action::Change(change, on)),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let selectors: Vec<_> = Key::ALL.iter().map(|key| proptest::option::of(selector(*key))).collect();
    (one_of(Point::ALL), selectors, action()).prop_map(|(point, selectors, action)| {
        let selectors = selectors.into_iter().flatten().filter(|(key, _)| key.is_of(point)).collect();
        Rule { point, selectors, action }
    })
}

proptest! {
    /// A rule that the text can express is the same after it was written and read.
    #[test]
    fn rules_survive_their_text(rules in proptest::collection::vec(rule(), 0..6)) {
        let is_valid = |rule: &Rule| rule.action.is_of(rule.point) && rule.check().is_ok();
        let script = Script(rules.into_iter().filter(is_valid).collect());
        prop_assert_eq!(script.to_string().parse::<Script>(), Ok(script));
    }

    /// Any text is a script or an error.
    #[test]
    fn any_text_is_a_script_or_an_error(text in "(packet|call|clock|completion)?[ -~\n]{0,60}") {
        if let Ok(script) = text.parse::<Script>() {
            prop_assert_eq!(script.to_string().parse::<Script>(), Ok(script));
        }
    }
}

/// The fabric, with the devices a and b.
fn fabric(text: &str) -> (Fabric<Device>, usize, usize) {
    let fabric: Fabric<Device> = Fabric::deterministic(3);
    let (a, b) = (fabric.device("a").index(), fabric.device("b").index());
    fabric.script(text).unwrap();
    (fabric, a, b)
}

/// Sends packets 0 to `count` from a to b, in one call, and returns what arrives with its time.
fn sent(text: &str, count: u8) -> Vec<(u64, u8)> {
    let (fabric, a, b) = fabric(text);
    fabric.enter(|world| {
        for i in 0..count {
            world.net.send(world.now, b, Frame { source: a, queue: 0, data: vec![i; 63] });
        }
    });
    arrived(&fabric, b)
}

fn arrived(fabric: &Fabric<Device>, device: usize) -> Vec<(u64, u8)> {
    let frames = fabric.read(|world| world.read(device).unwrap().arrived.clone());
    frames.iter().map(|(at, frame)| (*at, frame.data[0])).collect()
}

#[test]
fn packets_are_lost_delayed_and_repeated() {
    assert_eq!(sent("packet device=a nth=2 : drop", 3), [(0, 0), (0, 2)]);
    assert_eq!(sent("packet device=a nth=2- : corrupt", 3), [(0, 0)]);
    assert_eq!(sent("packet device=b : drop", 2), [(0, 0), (0, 1)]);
    assert_eq!(sent("packet to=b nth=1 : delay 5us", 2), [(0, 1), (5000, 0)]);
    assert_eq!(sent("packet nth=1 : duplicate 2", 2), [(0, 0), (0, 0), (0, 0), (0, 1)]);
    assert_eq!(sent("packet opcode=send : drop", 1), [(0, 0)]);
}

#[test]
fn a_packet_arrives_behind_later_ones() {
    assert_eq!(sent("packet nth=1 : reorder 1", 4), [(0, 1), (0, 0), (0, 2), (0, 3)]);
    assert_eq!(sent("packet nth=2 : reorder 2", 4), [(0, 0), (0, 2), (0, 3), (0, 1)]);
    // Without later packets it arrives after a millisecond.
    assert_eq!(sent("packet nth=2 : reorder 3", 3), [(0, 0), (0, 2), (1_000_000, 1)]);
}

#[test]
fn a_slow_sender_and_a_link_take_their_time() {
    assert_eq!(sent("packet device=a : slow 3us", 3), [(3000, 0), (6000, 1), (9000, 2)]);
    // 63 bytes and 62 of headers are 1000 bits.
    assert_eq!(sent("packet device=a to=b : bandwidth 1gbit", 3), [(1000, 0), (2000, 1), (3000, 2)]);
    assert_eq!(sent("packet : bandwidth 1gbit\npacket : delay 2us", 2), [(3000, 0), (4000, 1)]);
}

#[test]
fn a_port_goes_down_at_a_packet() {
    assert_eq!(sent("packet nth=3 : port down on b", 5), [(0, 0), (0, 1)]);
    let (fabric, a, b) = fabric("packet nth=2 : port down on b\npacket nth=4 : port up on b");
    fabric.enter(|world| {
        for i in 0..6 {
            world.net.send(world.now, b, Frame { source: a, queue: 0, data: vec![i] });
        }
    });
    assert_eq!(arrived(&fabric, b), [(0, 0), (0, 3), (0, 4), (0, 5)]);
    let events = fabric.read(|world| world.read(b).unwrap().port_events.clone());
    // The front has taken them, or not yet.
    assert!(events.is_empty() || events == [PortEvent::Error, PortEvent::Active]);
}

#[test]
fn the_clock_runs_rules_at_their_time() {
    let (fabric, a, b) = fabric("clock time=5us device=b : port down\nclock time=9us device=b : port up");
    let up = || fabric.read(|world| world.net.ports[b].up);
    let send = |i| {
        fabric.enter(|world| world.net.send(world.now, b, Frame { source: a, queue: 0, data: vec![i] }));
    };
    send(0);
    assert!(up());
    fabric.run_for(Duration::from_micros(6));
    assert!(!up());
    send(1);
    // A virtual clock advances to the rules that are left.
    fabric.run();
    assert!(up());
    assert_eq!(fabric.now(), Duration::from_micros(9));
    send(2);
    assert_eq!(arrived(&fabric, b), [(0, 0), (9000, 2)]);
}

#[test]
fn the_clock_of_a_fabric_in_real_time_runs_rules() {
    let fabric: Fabric<Device> = Fabric::new(0);
    let b = fabric.device("b").index();
    fabric.script("clock time=2ms device=b : port down").unwrap();
    let end = std::time::Instant::now() + Duration::from_secs(10);
    while fabric.read(|world| world.net.ports[b].up) {
        assert!(std::time::Instant::now() < end, "the rule does not run");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn rules_are_added_and_ended() {
    let (fabric, a, b) = fabric("packet nth=2 : drop");
    let send = |i| {
        fabric.enter(|world| world.net.send(world.now, b, Frame { source: a, queue: 0, data: vec![i] }));
    };
    send(0);
    fabric.add_rules("packet nth=2 : drop").unwrap();
    (1..4).for_each(send);
    // Each rule counts for itself: the second packet since it was added.
    assert_eq!(arrived(&fabric, b).iter().map(|(_, i)| *i).collect::<Vec<_>>(), [0, 3]);
    assert_eq!(fabric.rules().map(|script| script.0.len()), Some(2));
    fabric.no_script();
    assert_eq!(fabric.rules(), None);
    send(4);
    assert_eq!(arrived(&fabric, b).len(), 3);
}

#[test]
fn rules_of_other_processes_are_left_out() {
    assert_eq!(sent("packet process=2 : drop\npacket process=1 nth=1 : drop", 2), [(0, 1)]);
}
