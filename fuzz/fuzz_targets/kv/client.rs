// SPDX-License-Identifier: MIT OR Apache-2.0
//! The client's side: welcomes and answers of a server.

use super::ledger::{Answered, Ledger};
use super::proto::{Answer, MAX_SLOTS, MAX_VALUE, MESSAGE, Status, Welcome};
use arbitrary::Arbitrary;
use std::collections::HashMap;
use uverbs::RemoteRegion;

#[derive(Arbitrary, Debug)]
pub struct Run<'a> {
    numbers: [u16; 5],
    region: (u64, u64, u32),
    /// The bytes of the welcome instead.
    bytes: Option<&'a [u8]>,
    most: u8,
    steps: Vec<Step<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Ask(bool),
    Answer { status: u8, id: u8, arg: u32, value: &'a [u8] },
    Large { id: u8, arg: u32, region: (u64, u64, u32) },
    Bytes(&'a [u8]),
    Read(u8),
}

/// The state of a request in the model.
enum State {
    Asked(Option<u32>),
    Reading(u32),
}

fn region((addr, len, rkey): (u64, u64, u32)) -> Option<RemoteRegion> {
    RemoteRegion::new(addr, len, rkey).ok()
}

fn welcome(run: &Run<'_>) -> Option<Welcome> {
    if let Some(bytes) = run.bytes {
        return Welcome::decode(bytes);
    }
    let [credits, max_value, slot_size, slot_stride, slots] = run.numbers.map(u32::from);
    let region = region(run.region)?;
    let sent = Welcome { credits, max_value, slot_size, slot_stride, slots, immediate: true, region };
    let decoded = Welcome::decode(&sent.encode());
    assert!(decoded.is_none_or(|decoded| decoded == sent));
    decoded
}

pub fn run(run: &Run<'_>) {
    let Some(welcome) = welcome(run) else { return };
    // What a client allocates for it, and where it writes.
    assert!(welcome.slots <= MAX_SLOTS && welcome.slot_size < MAX_VALUE + 4096);
    if let Some(last) = welcome.slots.checked_sub(1) {
        let at = u64::from(last) * u64::from(welcome.slot_stride);
        assert!(welcome.region.slice(at..at + u64::from(welcome.slot_size)).is_ok());
    }
    let most = u32::from(run.most);
    let mut ledger = Ledger::new(&welcome, most);
    let mut model: HashMap<u32, State> = HashMap::new();
    let mut free: Vec<u32> = (0..welcome.slots).collect();
    for step in run.steps.iter().take(100) {
        match *step {
            Step::Ask(is_large) => {
                let Some(id) = ledger.next_id() else {
                    assert!(model.len() >= welcome.credits.min(most) as usize);
                    continue;
                };
                assert_eq!(ledger.free_slot(), free.last().copied());
                if is_large && free.is_empty() {
                    continue;
                }
                ledger.asked(is_large);
                let slot = if is_large { free.pop() } else { None };
                assert!(model.insert(id, State::Asked(slot)).is_none(), "two requests have the number {id}");
            }
            Step::Answer { status, id, arg, value } => {
                let status = [Status::Ok, Status::NotFound, Status::Full, Status::Busy, Status::Large]
                    [usize::from(status) % 5];
                let value = &value[..value.len().min(MESSAGE / 2)];
                answer(
                    &mut ledger,
                    &mut model,
                    &mut free,
                    &welcome,
                    &Answer { status, id: id.into(), arg, value },
                );
            }
            Step::Large { id, arg, region: at } => {
                let Some(at) = region(at) else { continue };
                let value = at.encode();
                let large = Answer { status: Status::Large, id: id.into(), arg, value: &value };
                answer(&mut ledger, &mut model, &mut free, &welcome, &large);
            }
            Step::Bytes(bytes) => match Answer::decode(bytes) {
                Some(decoded) => answer(&mut ledger, &mut model, &mut free, &welcome, &decoded),
                None => assert!(ledger.answered(bytes).is_err()),
            },
            Step::Read(id) => {
                let id = u32::from(id);
                let expected = match model.get(&id) {
                    Some(&State::Reading(lease)) => Some(lease),
                    _ => None,
                };
                assert_eq!(ledger.read(id), expected);
                if expected.is_some() {
                    model.remove(&id);
                }
            }
        }
        assert_eq!(ledger.outstanding(), model.len());
    }
}

/// Gives an answer to the client, and compares the result.
fn answer(
    ledger: &mut Ledger,
    model: &mut HashMap<u32, State>,
    free: &mut Vec<u32>,
    welcome: &Welcome,
    answer: &Answer<'_>,
) {
    assert!(!answer.is_empty(), "an answer has a header");
    let mut message = vec![0; answer.len()];
    answer.encode(&mut message);
    let result = ledger.answered(&message);
    let Some(&State::Asked(slot)) = model.get(&answer.id) else {
        assert!(result.is_err(), "an answer to no request: {result:?}");
        return;
    };
    model.remove(&answer.id);
    free.extend(slot);
    match result {
        Ok((id, answered)) => {
            assert_eq!(id, answer.id);
            match answered {
                Answered::Value(value) => assert_eq!((value, answer.status), (answer.value, Status::Ok)),
                Answered::Large(region) => {
                    assert!(region.len() <= welcome.slot_size.into());
                    model.insert(id, State::Reading(answer.arg));
                }
                Answered::Done => assert!(answer.status == Status::Ok && answer.value.is_empty()),
                Answered::NotFound => assert_eq!(answer.status, Status::NotFound),
                Answered::Refused(status) => assert_eq!(status, answer.status),
            }
        }
        Err(_) => assert_eq!(answer.status, Status::Large),
    }
}
