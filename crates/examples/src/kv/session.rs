// SPDX-License-Identifier: MIT OR Apache-2.0
//! The execution of a client's requests: its slots and its leases. The synchronous and the asynchronous server share it.

use super::proto::{Answer, HEADER, Header, MESSAGE, Op, Request, Status, Welcome};
use super::store::{Large, Store, Value};
use std::collections::HashMap;
use std::sync::Arc;
use uverbs::Driver;
use uverbs::{Buf, Exposed};

/// The client broke the protocol, or its connection has failed: it must be disconnected.
#[derive(Debug)]
pub(super) struct Broken;

/// What the execution of requests needs besides the client.
#[derive(Debug)]
pub(super) struct Executor<D: Driver> {
    pub(super) store: Store<D>,
    pub(super) scratch: Vec<u8>,
    pub(super) welcome: Welcome,
    pub(super) requests: u64,
    pub(super) malformed: u64,
}

/// The bytes of an answer. Empty if the request has none.
#[derive(Debug)]
pub(super) struct Reply {
    bytes: [u8; MESSAGE],
    len: usize,
}

impl Reply {
    fn none() -> Self {
        Self { bytes: [0; MESSAGE], len: 0 }
    }

    fn of(answer: &Answer<'_>) -> Self {
        let mut reply = Self { len: answer.len(), ..Self::none() };
        answer.encode(&mut reply.bytes);
        reply
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What a client has at the server, except its queue.
#[derive(Debug)]
pub(super) struct Session<D: Driver> {
    /// The memory to which the client writes.
    pub(super) slots: Buf<Exposed, D>,
    leases: HashMap<u32, Arc<Large<D>>>,
    next_lease: u32,
}

impl<D: Driver> Session<D> {
    pub(super) fn new(slots: Buf<Exposed, D>) -> Self {
        Self { slots, leases: HashMap::new(), next_lease: 0 }
    }

    /// A message by SEND.
    pub(super) fn message(&mut self, executor: &mut Executor<D>, message: &[u8]) -> Result<Reply, Broken> {
        executor.requests += 1;
        match Request::decode(message) {
            Ok(Request { op: Op::PutSlot, arg, .. }) => self.slot(executor, arg),
            Ok(request) => self.execute(executor, &request),
            Err(id) => Self::malformed(executor, id),
        }
    }

    /// A slot was written. Immediate data or a message named it.
    pub(super) fn written(&mut self, executor: &mut Executor<D>, slot: u32) -> Result<Reply, Broken> {
        executor.requests += 1;
        self.slot(executor, slot)
    }

    fn slot(&mut self, executor: &mut Executor<D>, slot: u32) -> Result<Reply, Broken> {
        let Welcome { slots, slot_stride, slot_size, .. } = executor.welcome;
        if slot >= slots {
            return Self::malformed(executor, None);
        }
        let offset = slot as usize * slot_stride as usize;
        // The client may write to the slot at any time: each byte is copied once, and only the copy is used.
        let mut header = [0; HEADER];
        self.slots.read_at(offset, &mut header).map_err(|_| Broken)?;
        let Some(fields) = Header::decode(&header) else { return Err(Broken) };
        let len =
            HEADER as u64 + fields.request().map_or(0, |(_, key)| key as u64) + u64::from(fields.value_len);
        if fields.request().is_none_or(|(op, _)| op != Op::Put) || len > u64::from(slot_size) {
            return Self::malformed(executor, Some(fields.id));
        }
        let mut message = core::mem::take(&mut executor.scratch);
        message.resize(len as usize, 0);
        message[..HEADER].copy_from_slice(&header);
        let copied = self.slots.read_at(offset + HEADER, &mut message[HEADER..]);
        let done = match (copied, Request::decode(&message)) {
            (Ok(()), Ok(request)) => self.execute(executor, &request),
            _ => Self::malformed(executor, Some(fields.id)),
        };
        executor.scratch = message;
        done
    }

    /// Answers an invalid request, if it has a number; otherwise the client is disconnected.
    fn malformed(executor: &mut Executor<D>, id: Option<u32>) -> Result<Reply, Broken> {
        executor.malformed += 1;
        let id = id.ok_or(Broken)?;
        Ok(Reply::of(&Answer { status: Status::Malformed, id, arg: 0, value: &[] }))
    }

    fn execute(&mut self, executor: &mut Executor<D>, request: &Request<'_>) -> Result<Reply, Broken> {
        let id = request.id;
        let plain = |status| Answer { status, id, arg: 0, value: &[] };
        let done = |status| Ok(Reply::of(&plain(status)));
        match request.op {
            Op::Hello => {
                let Welcome { region, .. } = executor.welcome;
                let region = self.slots.remote_region().slice(0..region.len()).map_err(|_| Broken)?;
                let welcome = Welcome { region, ..executor.welcome }.encode();
                Ok(Reply::of(&Answer { value: &welcome, ..plain(Status::Ok) }))
            }
            Op::Get => {
                let large = match executor.store.get(request.key) {
                    None => return done(Status::NotFound),
                    Some(Value::Small(value)) => {
                        return Ok(Reply::of(&Answer { value, ..plain(Status::Ok) }));
                    }
                    Some(Value::Large(_)) if self.leases.len() >= executor.welcome.credits as usize => {
                        return done(Status::Busy);
                    }
                    Some(Value::Large(large)) => large.clone(),
                };
                let region = large.region().map_err(|_| Broken)?.encode();
                let lease = self.next_lease;
                self.next_lease = lease.wrapping_add(1);
                self.leases.insert(lease, large);
                Ok(Reply::of(&Answer { value: &region, arg: lease, ..plain(Status::Large) }))
            }
            Op::Put => done(executor.store.put(request.key, request.value)),
            Op::Delete => done(executor.store.delete(request.key)),
            Op::Release => match self.leases.remove(&request.arg) {
                Some(_) => Ok(Reply::none()),
                None => Self::malformed(executor, Some(id)),
            },
            // A slot can't name another slot.
            Op::PutSlot => Self::malformed(executor, Some(id)),
        }
    }
}
