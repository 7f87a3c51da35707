// SPDX-License-Identifier: MIT OR Apache-2.0
//! The server's side: messages and slots of a client.

use super::proto::{Answer, HEADER, Header, MAX_KEY, MAX_SMALL, MESSAGE, Op, Request, Status, Welcome};
use super::session::{Broken, Executor, Reply, Session};
use super::store::Store;
use arbitrary::Arbitrary;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use uverbs::attr::AccessFlags;
use uverbs::mlx5::Mlx5;
use uverbs::{Context, ProtectionDomain, RemoteRegion};
use uverbs_hca::Fabric;

/// The sizes of the server.
const CREDITS: usize = 3;
const KEYS: usize = 6;
const LARGE: usize = 3;
const VALUE: u32 = 2048;
const SLOTS: u32 = 2;
const SLOT: u32 = VALUE + (HEADER + MAX_KEY) as u32;

#[derive(Arbitrary, Debug)]
pub enum Message<'a> {
    /// A message with correct lengths.
    Ask(Ask<'a>),
    /// The same in a slot, which is named by immediate data or by a message.
    Slot { slot: u8, ask: Ask<'a>, by_message: bool },
    /// A message of any bytes.
    Bytes(&'a [u8]),
    /// The client writes any bytes to the slots.
    Write(u16, &'a [u8]),
    /// Immediate data.
    Imm(u32),
}

#[derive(Arbitrary, Debug)]
pub struct Ask<'a> {
    op: u8,
    id: u32,
    arg: u8,
    key: u8,
    front: &'a [u8],
    len: u16,
}

const OPS: [Op; 6] = [Op::Hello, Op::Get, Op::Put, Op::PutSlot, Op::Delete, Op::Release];

impl Ask<'_> {
    fn encode(&self, op: Op, most: usize) -> Vec<u8> {
        let mut value = self.front.to_vec();
        value.resize(usize::from(self.len) % (most + 1), 7);
        // Few keys, so that they are asked for again.
        let key = vec![self.key; usize::from(self.key % 8)];
        let request = Request { op, id: self.id, arg: self.arg.into(), key: &key, value: &value };
        assert!(!request.is_empty(), "a request has a header");
        let mut message = vec![0; request.len()];
        request.encode(&mut message);
        message
    }
}

/// What the server must do.
#[derive(Debug)]
enum Expected {
    Disconnect,
    Nothing,
    Answer(u32, Status, Vec<u8>),
    /// The description of this many bytes, and a lease.
    Lease(u32, usize),
    Hello(u32),
}

/// Keys, values and leases.
#[derive(Default)]
struct Model {
    map: HashMap<Vec<u8>, Rc<Vec<u8>>>,
    /// Every large value, as long as the map or a lease has it.
    large: Vec<Weak<Vec<u8>>>,
    leases: HashMap<u32, Rc<Vec<u8>>>,
    max_value: usize,
}

impl Model {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Status {
        self.large.retain(|value| value.strong_count() > 0);
        if value.len() > self.max_value {
            return Status::TooLarge;
        }
        if self.map.len() >= KEYS && !self.map.contains_key(key) {
            return Status::Full;
        }
        let is_large = value.len() > MAX_SMALL;
        if is_large && self.large.len() >= LARGE {
            return Status::Full;
        }
        let value = Rc::new(value.to_vec());
        if is_large {
            self.large.push(Rc::downgrade(&value));
        }
        self.map.insert(key.to_vec(), value);
        Status::Ok
    }

    fn request(&mut self, request: &Request<'_>, next_lease: u32, slots: &[u8]) -> Expected {
        let id = request.id;
        let plain = |status| Expected::Answer(id, status, Vec::new());
        match request.op {
            Op::Hello => Expected::Hello(id),
            Op::Get => match self.map.get(request.key) {
                None => plain(Status::NotFound),
                Some(value) if value.len() <= MAX_SMALL => Expected::Answer(id, Status::Ok, value.to_vec()),
                Some(_) if self.leases.len() >= CREDITS => plain(Status::Busy),
                Some(value) => {
                    self.leases.insert(next_lease, value.clone());
                    Expected::Lease(id, value.len())
                }
            },
            Op::Put => plain(self.put(request.key, request.value)),
            Op::Delete if self.map.remove(request.key).is_some() => plain(Status::Ok),
            Op::Delete => plain(Status::NotFound),
            Op::Release if self.leases.remove(&request.arg).is_some() => Expected::Nothing,
            Op::Release => plain(Status::Malformed),
            Op::PutSlot => self.slot(request.arg, slots),
        }
    }

    fn slot(&mut self, slot: u32, slots: &[u8]) -> Expected {
        let Some(bytes) = slots.chunks_exact(SLOT as usize).nth(slot as usize) else {
            return Expected::Disconnect;
        };
        let header = Header::decode(bytes).expect("a slot has a header");
        let malformed = Expected::Answer(header.id, Status::Malformed, Vec::new());
        let Some((Op::Put, key_len)) = header.request() else { return malformed };
        let Some((key, value)) = bytes[HEADER..].split_at_checked(key_len) else { return malformed };
        let Some(value) = value.get(..header.value_len as usize) else { return malformed };
        Expected::Answer(header.id, self.put(key, value), Vec::new())
    }
}

thread_local! {
    /// The same for all inputs. Each input has its own memory.
    static PD: ProtectionDomain<Mlx5> = {
        let hca = Fabric::deterministic(1).device("hca0").build();
        Context::<Mlx5>::from_kernel(hca.open()).and_then(|context| context.alloc_pd()).expect("a protection domain")
    };
}

fn server(pd: &ProtectionDomain<Mlx5>) -> uverbs::Result<(Session<Mlx5>, Executor<Mlx5>)> {
    let slots = pd.pool_with(1, SLOTS * SLOT).exposed(AccessFlags::REMOTE_WRITE).build()?;
    let welcome = Welcome {
        credits: CREDITS as u32,
        max_value: VALUE,
        slot_size: SLOT,
        slot_stride: SLOT,
        slots: SLOTS,
        immediate: true,
        region: RemoteRegion::new(0, (SLOTS * SLOT).into(), 0)?,
    };
    let store = Store::new(pd, KEYS, LARGE as u32, VALUE)?;
    let executor = Executor { store, scratch: Vec::new(), welcome, requests: 0, malformed: 0 };
    Ok((Session::new(slots.get().expect("a new pool has its buffer")), executor))
}

pub fn run(messages: &[Message<'_>]) {
    let (mut session, mut executor) = PD.with(server).expect("the memory of a server");
    let mut slots = vec![0; (SLOTS * SLOT) as usize];
    session.slots.write_at(0, &slots).expect("the memory of the slots");
    let mut model = Model { max_value: executor.store.max_value(), ..Model::default() };
    let mut next_lease = 0;
    for message in messages.iter().take(60) {
        let write = |slots: &mut Vec<u8>, session: &Session<Mlx5>, at: usize, bytes: &[u8]| {
            let bytes = &bytes[..bytes.len().min(slots.len() - at)];
            slots[at..at + bytes.len()].copy_from_slice(bytes);
            session.slots.write_at(at, bytes).expect("it is in the slots");
        };
        let (expected, reply) = match message {
            Message::Ask(ask) => {
                let message = ask.encode(OPS[usize::from(ask.op) % OPS.len()], MAX_SMALL);
                let request = Request::decode(&message).expect("the lengths are correct");
                let expected = model.request(&request, next_lease, &slots);
                (expected, session.message(&mut executor, &message))
            }
            Message::Bytes(bytes) => {
                let expected = match Request::decode(bytes) {
                    Ok(request) => model.request(&request, next_lease, &slots),
                    Err(Some(id)) => Expected::Answer(id, Status::Malformed, Vec::new()),
                    Err(None) => Expected::Disconnect,
                };
                (expected, session.message(&mut executor, bytes))
            }
            Message::Slot { slot, ask, by_message } => {
                let slot = u32::from(*slot) % SLOTS;
                let message = ask.encode(Op::Put, VALUE as usize);
                write(&mut slots, &session, (slot * SLOT) as usize, &message);
                let expected = model.slot(slot, &slots);
                let reply = if *by_message {
                    let tell = Request { op: Op::PutSlot, id: ask.id, arg: slot, key: &[], value: &[] };
                    let mut message = [0; HEADER];
                    tell.encode(&mut message);
                    session.message(&mut executor, &message)
                } else {
                    session.written(&mut executor, slot)
                };
                (expected, reply)
            }
            Message::Write(at, bytes) => {
                let at = usize::from(*at) % slots.len();
                write(&mut slots, &session, at, bytes);
                continue;
            }
            Message::Imm(slot) => (model.slot(*slot, &slots), session.written(&mut executor, *slot)),
        };
        if matches!(expected, Expected::Lease(..)) {
            next_lease += 1;
        }
        if compare(&expected, reply, next_lease) {
            break;
        }
    }
    drop(session);
    assert_eq!(executor.store.clear(), 0, "buffers of values are lost");
}

/// Compares a reply. Returns whether the client is disconnected.
fn compare(expected: &Expected, reply: Result<Reply, Broken>, next_lease: u32) -> bool {
    let Ok(reply) = reply else {
        assert!(matches!(expected, Expected::Disconnect), "disconnected instead of {expected:?}");
        return true;
    };
    assert!(reply.bytes().len() <= MESSAGE);
    if let Expected::Nothing = expected {
        assert_eq!(reply.bytes(), []);
        return false;
    }
    let answer = Answer::decode(reply.bytes()).expect("the server's own answer");
    match expected {
        Expected::Answer(id, status, value) => {
            assert_eq!((answer.id, answer.status, answer.value), (*id, *status, &value[..]));
        }
        Expected::Lease(id, len) => {
            let region = RemoteRegion::decode(answer.value).expect("the server's own description");
            assert_eq!((answer.id, answer.status, answer.arg), (*id, Status::Large, next_lease - 1));
            assert_eq!(region.len(), *len as u64);
        }
        Expected::Hello(id) => {
            assert_eq!((answer.id, answer.status), (*id, Status::Ok));
            let welcome = Welcome::decode(answer.value).expect("the server's own welcome");
            assert_eq!((welcome.slots, welcome.region.len()), (SLOTS, u64::from(SLOTS * SLOT)));
        }
        Expected::Disconnect | Expected::Nothing => panic!("{answer:?} instead of {expected:?}"),
    }
    false
}
