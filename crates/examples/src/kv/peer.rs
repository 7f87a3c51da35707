// SPDX-License-Identifier: MIT OR Apache-2.0
//! A client as the server has it: its queue, its slots, its leases, and the execution of its requests.

use super::proto::{Answer, HEADER, Header, MAX_KEY, MESSAGE, Op, Request, Status, Welcome};
use super::store::{Large, Store, Value};
use crate::link::Link;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;
use uverbs::attr::QpState;
use uverbs::owned::{Buf, Exposed, OwnedQp, Pool};
use uverbs::{Driver, PostError, Rc};

/// Every how many sends one has a completion.
const SIGNAL_EVERY: u32 = 16;

/// `wr_id` of sends.
pub(super) const SEND: u64 = 0;
/// `wr_id` of receives.
pub(super) const RECV: u64 = 1;

/// The client broke the protocol, or its connection has failed: it must be disconnected.
#[derive(Debug)]
pub(super) struct Broken;

/// What the execution of requests needs besides the peer.
#[derive(Debug)]
pub(super) struct Shop<D: Driver> {
    pub(super) store: Store<D>,
    pub(super) answers: Pool<D>,
    pub(super) scratch: Vec<u8>,
    pub(super) welcome: Welcome,
    pub(super) requests: u64,
    pub(super) malformed: u64,
}

/// A client. The order of the fields is that of their drops: the QP ends before the memory that its peer can access.
#[derive(Debug)]
pub(super) struct Peer<D: Driver> {
    qp: OwnedQp<D, Rc>,
    pub(super) link: Arc<Link>,
    /// Distinguishes it from earlier clients with the same QP number.
    pub(super) serial: u64,
    slots: Buf<D, Exposed>,
    leases: HashMap<u32, Arc<Large<D>>>,
    next_lease: u32,
    /// Answers for which the queue had no room.
    backlog: VecDeque<Vec<u8>>,
    max_inline: usize,
    posted: u32,
    /// Since when it is disconnected; the QP is in ERR.
    pub(super) closing: Option<Instant>,
    /// Whether the QP takes no more receives of the SRQ.
    pub(super) last_wqe: bool,
}

impl<D: Driver> Peer<D> {
    pub(super) fn new(qp: OwnedQp<D, Rc>, link: Arc<Link>, serial: u64, slots: Buf<D, Exposed>) -> Self {
        let max_inline = qp.cap().max_inline_data as usize;
        Self {
            qp,
            link,
            serial,
            slots,
            leases: HashMap::new(),
            next_lease: 0,
            backlog: VecDeque::new(),
            max_inline,
            posted: 0,
            closing: None,
            last_wqe: false,
        }
    }

    /// Begins the end of the connection: the QP goes to ERR, which flushes its work requests.
    pub(super) fn close(&mut self) {
        if self.closing.is_none() {
            self.closing = Some(Instant::now());
            self.backlog.clear();
            // A failure means that the device is gone; the time limit of the end applies then.
            let _ = self.qp.control().modify_state(QpState::ERR);
            self.link.close();
        }
    }

    /// A message by SEND.
    pub(super) fn message(&mut self, shop: &mut Shop<D>, message: &[u8]) -> Result<(), Broken> {
        shop.requests += 1;
        match Request::decode(message) {
            Ok(Request { op: Op::PutSlot, arg, .. }) => self.slot(shop, arg),
            Ok(request) => self.execute(shop, &request),
            Err(id) => self.malformed(shop, id),
        }
    }

    /// A slot was written, as immediate data or a message says.
    pub(super) fn written(&mut self, shop: &mut Shop<D>, slot: u32) -> Result<(), Broken> {
        shop.requests += 1;
        self.slot(shop, slot)
    }

    fn slot(&mut self, shop: &mut Shop<D>, slot: u32) -> Result<(), Broken> {
        let Welcome { slots, slot_stride, slot_size, .. } = shop.welcome;
        if slot >= slots {
            return self.malformed(shop, None);
        }
        let offset = slot as usize * slot_stride as usize;
        // The client may write to the slot at any time: each byte is copied once, and only the copy is used.
        let mut header = [0; HEADER];
        self.slots.read_at(offset, &mut header).map_err(|_| Broken)?;
        let Some(fields) = Header::decode(&header) else { return Err(Broken) };
        let len =
            HEADER as u64 + fields.request().map_or(0, |(_, key)| key as u64) + u64::from(fields.value_len);
        if fields.request().is_none_or(|(op, _)| op != Op::Put) || len > u64::from(slot_size) {
            return self.malformed(shop, Some(fields.id));
        }
        let mut message = core::mem::take(&mut shop.scratch);
        message.resize(len as usize, 0);
        message[..HEADER].copy_from_slice(&header);
        let copied = self.slots.read_at(offset + HEADER, &mut message[HEADER..]);
        let done = match (copied, Request::decode(&message)) {
            (Ok(()), Ok(request)) => self.execute(shop, &request),
            _ => self.malformed(shop, Some(fields.id)),
        };
        shop.scratch = message;
        done
    }

    /// Answers an invalid request, if it has a number; otherwise the client is disconnected.
    fn malformed(&mut self, shop: &mut Shop<D>, id: Option<u32>) -> Result<(), Broken> {
        shop.malformed += 1;
        let id = id.ok_or(Broken)?;
        self.answer(shop, &Answer { status: Status::Malformed, id, arg: 0, value: &[] })
    }

    fn execute(&mut self, shop: &mut Shop<D>, request: &Request<'_>) -> Result<(), Broken> {
        let id = request.id;
        let plain = |status| Answer { status, id, arg: 0, value: &[] };
        match request.op {
            Op::Hello => {
                let Welcome { region, .. } = shop.welcome;
                let region = self.slots.remote_region().slice(0..region.len()).map_err(|_| Broken)?;
                let welcome = Welcome { region, ..shop.welcome }.encode();
                self.answer(shop, &Answer { value: &welcome, ..plain(Status::Ok) })
            }
            Op::Get => {
                let large = match shop.store.get(request.key) {
                    None => return self.answer(shop, &plain(Status::NotFound)),
                    Some(Value::Small(value)) => {
                        let mut message = [0; MESSAGE];
                        let answer = Answer { value, ..plain(Status::Ok) };
                        answer.encode(&mut message);
                        let len = answer.len();
                        return self.send(&shop.answers, &message[..len], shop.welcome.credits);
                    }
                    Some(Value::Large(_)) if self.leases.len() >= shop.welcome.credits as usize => {
                        return self.answer(shop, &plain(Status::Busy));
                    }
                    Some(Value::Large(large)) => large.clone(),
                };
                let region = large.region().map_err(|_| Broken)?.encode();
                let lease = self.next_lease;
                self.next_lease = lease.wrapping_add(1);
                self.leases.insert(lease, large);
                self.answer(shop, &Answer { value: &region, arg: lease, ..plain(Status::Large) })
            }
            Op::Put => {
                let status = shop.store.put(request.key, request.value);
                self.answer(shop, &plain(status))
            }
            Op::Delete => {
                let status = shop.store.delete(request.key);
                self.answer(shop, &plain(status))
            }
            Op::Release => match self.leases.remove(&request.arg) {
                Some(_) => Ok(()),
                None => self.malformed(shop, Some(id)),
            },
            // A slot can't name another slot.
            Op::PutSlot => self.malformed(shop, Some(id)),
        }
    }

    fn answer(&mut self, shop: &Shop<D>, answer: &Answer<'_>) -> Result<(), Broken> {
        let mut message = [0; HEADER + MAX_KEY];
        answer.encode(&mut message);
        self.send(&shop.answers, &message[..answer.len()], shop.welcome.credits)
    }

    /// Sends an answer, or keeps it until the queue has room. A client within its credits never has more of them.
    fn send(&mut self, pool: &Pool<D>, message: &[u8], credits: u32) -> Result<(), Broken> {
        if self.closing.is_some() {
            return Ok(());
        }
        if self.backlog.is_empty() && self.post(pool, message)? {
            return Ok(());
        }
        if self.backlog.len() >= credits as usize {
            return Err(Broken);
        }
        self.backlog.push_back(message.to_vec());
        Ok(())
    }

    /// Posts what was kept.
    pub(super) fn flush(&mut self, pool: &Pool<D>) -> Result<(), Broken> {
        while let Some(message) = self.backlog.pop_front() {
            if !self.post(pool, &message)? {
                self.backlog.push_front(message);
                break;
            }
        }
        Ok(())
    }

    /// Whether it was posted; `false` if there is no room now.
    fn post(&mut self, pool: &Pool<D>, message: &[u8]) -> Result<bool, Broken> {
        let signal = (self.posted + 1).is_multiple_of(SIGNAL_EVERY);
        let wr = self.qp.sq().post(SEND);
        let wr = if signal { wr.signaled() } else { wr };
        let posted = if message.len() <= self.max_inline {
            wr.send_inline(message)
        } else {
            let Some(mut buf) = pool.get() else { return Ok(false) };
            buf.fill(message).map_err(|_| Broken)?;
            wr.send(buf).map_err(PostError::from)
        };
        match posted {
            Ok(()) => {
                self.posted += 1;
                Ok(true)
            }
            Err(PostError::QueueFull) => Ok(false),
            Err(_) => Err(Broken),
        }
    }
}
