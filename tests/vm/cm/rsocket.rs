// SPDX-License-Identifier: MIT OR Apache-2.0
//! librdmacm's sockets over RDMA (rsocket(7)), as far as its program rstream uses them: a stream of bytes in each direction.
//!
//! A side writes to the receive buffer of its peer. The buffer has two halves, and the peer describes the half that may be
//! written next in one of two entries, which it writes to this side's memory. Each write has a message of 32 bits: its
//! immediate data or, on iWARP, a SEND after it. (Facts from `librdmacm/rsocket.c`.)
//!
//! | bits 31..29 of a message | the others |
//! |---|---|
//! | 0: data were written | their length |
//! | 4: an entry was written, or credits are returned | the number of messages with data that may have been sent |
//! | 7: control | 0: the connection ends |
#![expect(unsafe_code)]
// UNSAFETY: posts of registered memory.

use super::wire::{Gear, SLOT};
use anyhow::{Context as _, Result, bail, ensure};
use std::collections::VecDeque;
use uverbs::{Driver, ImmData, Rc, raw::Qp};
use uverbs::{Exclusive, provider::wire::WireRemote as _};
use uverbs_tests::wait::{Deadline, successes};

/// The places in the region, as slots: the receive buffer, the entries that the peer writes, and so on.
const BUFFER: usize = 0;
const ENTRIES: usize = 8;
const MESSAGES: usize = 9;
const OWN_ENTRY: usize = 10;
const OUTGOING: usize = 11;

/// Bytes of a half of the receive buffer.
const HALF: usize = ENTRIES / 2 * SLOT;
/// Messages with data that the peer may send before it gets new credits. Others need no credit, so more receives are posted.
const CREDITS: u16 = 8;
const RECEIVES: usize = 2 * CREDITS as usize;
/// Bytes of a message.
const MESSAGE: usize = 4;

const DATA: u32 = 0;
const ENTRY: u32 = 4;
const CONTROL: u32 = 7;
const DATA_BITS: u32 = 29;

/// `struct rs_sge`: memory of a side.
#[derive(Clone, Copy, Debug)]
struct Entry {
    addr: u64,
    key: u32,
    length: u32,
}

impl Entry {
    const LEN: usize = 16;

    /// The bytes, with the byte order of the private data or, in an entry that is written, of the machine.
    fn encode(self, is_network: bool) -> [u8; Self::LEN] {
        let Self { addr, key, length } = self;
        let (addr, words) = match is_network {
            true => (addr.to_be_bytes(), [key, length].map(u32::to_be_bytes)),
            false => (addr.to_ne_bytes(), [key, length].map(u32::to_ne_bytes)),
        };
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&addr);
        bytes[8..].copy_from_slice(words.as_flattened());
        bytes
    }

    fn decode(bytes: &[u8; Self::LEN], is_network: bool) -> Self {
        let [a, b, c, d, e, f, g, h, key @ .., w, x, y, z] = *bytes;
        let (addr, key, length) = ([a, b, c, d, e, f, g, h], key, [w, x, y, z]);
        match is_network {
            true => Self {
                addr: u64::from_be_bytes(addr),
                key: u32::from_be_bytes(key),
                length: u32::from_be_bytes(length),
            },
            false => Self {
                addr: u64::from_ne_bytes(addr),
                key: u32::from_ne_bytes(key),
                length: u32::from_ne_bytes(length),
            },
        }
    }
}

/// The private data of a side (`struct rs_conn_data`): version, flags, credits, the list of its entries, and the first half of its
/// receive buffer.
pub(super) fn private_data<D: Driver>(gear: &Gear<D>) -> Vec<u8> {
    let mut data = vec![1, u8::from(cfg!(target_endian = "big"))];
    data.extend(CREDITS.to_be_bytes());
    data.extend([0; 4]);
    let at = |slot: usize, length: u32| Entry {
        addr: gear.mr.addr() + (slot * SLOT) as u64,
        key: gear.mr.rkey(),
        length,
    };
    data.extend(at(ENTRIES, 2).encode(true));
    data.extend(at(BUFFER, HALF as u32).encode(true));
    data
}

/// Posts the receives, before the connection.
pub(super) fn prepare<D: Driver>(gear: &Gear<D>, qp: &mut Qp<Rc, Exclusive, D>) -> Result<()> {
    (0..RECEIVES).try_for_each(|at| receive(gear, qp, at))
}

fn receive<D: Driver>(gear: &Gear<D>, qp: &mut Qp<Rc, Exclusive, D>, at: usize) -> Result<()> {
    let place = MESSAGES * SLOT + at * MESSAGE;
    let sge = [gear.mr.sge(place..place + MESSAGE)?];
    // SAFETY: the region lives as long as the QP, and the place is not accessed until the completion.
    unsafe { qp.rq()?.post(at as u64, &sge)? };
    Ok(())
}

/// One side of a connection.
pub(super) struct Socket<'a, D: Driver> {
    gear: &'a Gear<D>,
    qp: &'a mut Qp<Rc, Exclusive, D>,
    /// Otherwise messages are SENDs.
    has_immediate: bool,
    /// The peer's list of entries, and the entry that is written next.
    peer: Entry,
    next: u32,
    /// The own entry that is in use.
    current: usize,
    /// Messages with data: sent, and those that may have been sent.
    sent: u16,
    allowed: u16,
    written: u64,
    /// Lengths of the data that have arrived and were not read.
    arrived: VecDeque<usize>,
    /// Messages with data that were read, and their number at which credits are returned.
    taken: u16,
    returned_at: u16,
    /// Bytes of the receive buffer that were read since its last half was offered, and that half.
    unused: usize,
    offer: usize,
    read: u64,
    ended: bool,
    /// The peer does not acknowledge messages any more.
    is_alone: bool,
}

impl<'a, D: Driver> Socket<'a, D> {
    pub(super) fn new(
        gear: &'a Gear<D>,
        qp: &'a mut Qp<Rc, Exclusive, D>,
        has_immediate: bool,
        peer: &[u8],
    ) -> Result<Self> {
        let entry = |at: usize| {
            let bytes = peer.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map(|bytes| Entry::decode(bytes, true)).with_context(|| format!("short data: {peer:?}"))
        };
        let (list, buffer) = (entry(8)?, entry(24)?);
        ensure!(peer[0] == 1, "version {}", peer[0]);
        gear.mr.write_at(ENTRIES * SLOT, &buffer.encode(false))?;
        Ok(Self {
            gear,
            qp,
            has_immediate,
            peer: list,
            next: 1,
            current: 0,
            sent: 0,
            allowed: u16::from_be_bytes([peer[2], peer[3]]),
            written: 0,
            arrived: VecDeque::new(),
            taken: 0,
            returned_at: CREDITS / 2,
            // The private data has offered the first half only.
            unused: HALF,
            offer: HALF,
            read: 0,
            ended: false,
            is_alone: false,
        })
    }

    /// Sends so many bytes of the sequence that rstream makes and verifies: each is one more than the one before.
    pub(super) fn send(&mut self, len: usize) -> Result<()> {
        let mut left = len;
        while left > 0 {
            let place = ENTRIES * SLOT + self.current * Entry::LEN;
            let mut entry = None;
            self.wait("room at the peer", |socket| {
                let mut bytes = [0; Entry::LEN];
                socket.gear.mr.read_at(place, &mut bytes)?;
                entry = Some(Entry::decode(&bytes, false)).filter(|entry| entry.length > 0);
                Ok(socket.sent != socket.allowed && entry.is_some())
            })?;
            let Entry { addr, key, length } = entry.context("an entry")?;
            let n = left.min(SLOT).min(length as usize);
            // Before the message: after it, the peer may write the entry.
            let rest = Entry { addr: addr + n as u64, key, length: length - n as u32 };
            self.gear.mr.write_at(place, &rest.encode(false))?;
            if rest.length == 0 {
                self.current = 1 - self.current;
            }
            let data: Vec<u8> = (self.written..).map(|byte| byte as u8).take(n).collect();
            self.gear.mr.write_at(OUTGOING * SLOT, &data)?;
            self.sent = self.sent.wrapping_add(1);
            self.written += n as u64;
            self.message(DATA << DATA_BITS | n as u32, Some((OUTGOING, n, addr, key)))?;
            left -= n;
        }
        Ok(())
    }

    /// Reads so many bytes, and checks that they are the sequence.
    pub(super) fn recv(&mut self, len: usize) -> Result<()> {
        let mut left = len;
        while left > 0 {
            // If data is missing, the wait fails. Nothing is returned after the last data.
            self.unless_alone(Self::return_credits)?;
            self.wait("data", |socket| Ok(!socket.arrived.is_empty()))?;
            let Some(there) = self.arrived.front_mut() else { continue };
            let at = (self.read % (2 * HALF) as u64) as usize;
            let n = left.min(*there).min(2 * HALF - at);
            *there -= n;
            let mut data = vec![0; n];
            self.gear.mr.read_at(BUFFER * SLOT + at, &mut data)?;
            let wrong = (self.read..).zip(&data).find(|(number, byte)| *number as u8 != **byte);
            ensure!(wrong.is_none(), "another byte: {wrong:?}");
            if *there == 0 {
                self.arrived.pop_front();
                self.taken = self.taken.wrapping_add(1);
            }
            self.read += n as u64;
            self.unused += n;
            left -= n;
        }
        Ok(())
    }

    /// Sends a message that a peer which has sent and received all data does not need. It may have ended: then it does not acknowledge the
    /// message, and gets no other one.
    fn unless_alone(&mut self, send: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        if self.is_alone {
            return Ok(());
        }
        send(self).or_else(|error| {
            self.is_alone = format!("{error:#}").contains("RETRY_EXC");
            if self.is_alone { Ok(()) } else { Err(error) }
        })
    }

    /// Offers the half of the receive buffer that was read, or returns credits.
    fn return_credits(&mut self) -> Result<()> {
        let message = ENTRY << DATA_BITS | u32::from(self.taken.wrapping_add(CREDITS));
        if self.unused >= HALF {
            let Self { gear, peer, .. } = self;
            let addr = gear.mr.addr() + (BUFFER * SLOT + self.offer) as u64;
            let entry = Entry { addr, key: gear.mr.rkey(), length: HALF as u32 };
            gear.mr.write_at(OWN_ENTRY * SLOT, &entry.encode(false))?;
            let to = peer.addr + u64::from(self.next) * Entry::LEN as u64;
            let key = peer.key;
            self.unused -= HALF;
            self.offer = (self.offer + HALF) % (2 * HALF);
            self.next = (self.next + 1) % peer.length.max(1);
            self.message(message, Some((OWN_ENTRY, Entry::LEN, to, key)))?;
        } else if self.taken.wrapping_sub(self.returned_at) as i16 >= 0 {
            self.message(message, None)?;
        } else {
            return Ok(());
        }
        self.returned_at = self.taken.wrapping_add(CREDITS / 2);
        Ok(())
    }

    /// Sends a message, after it has written the bytes of a slot to the peer.
    fn message(&mut self, message: u32, write: Option<(usize, usize, u64, u32)>) -> Result<()> {
        let (slot, len, addr, key) = write.unwrap_or_default();
        let sge = [self.gear.mr.sge(Gear::<D>::slot(slot, len))?];
        let (sges, to) = (if len > 0 { &sge[..] } else { &[] }, D::Remote::new(addr, key));
        let mut posted = 1;
        let queue = self.qp.sq();
        if self.has_immediate {
            // SAFETY: the region lives as long as the QP, and the slot is not written until the completion.
            unsafe { queue.post(0).signaled().write_imm(sges, to, ImmData::new(message))? };
        } else {
            if len > 0 {
                // SAFETY: as above.
                unsafe { queue.post(0).signaled().write(sges, to)? };
                posted = 2;
            }
            queue.post(0).signaled().send_inline(&message.to_ne_bytes())?;
        }
        successes(&self.gear.sends, posted)?;
        Ok(())
    }

    /// Takes messages until `f` returns true.
    fn wait(&mut self, what: &str, mut f: impl FnMut(&mut Self) -> Result<bool>) -> Result<()> {
        let mut deadline = Deadline::usual();
        while !f(self)? {
            let mut some = [uverbs::WorkCompletion::default(); 1];
            let [wc] = *self.gear.recvs.poll(&mut some)? else {
                ensure!(!self.ended, "the peer ended the connection before there was {what}");
                ensure!(!deadline.passed(), "no {what}");
                deadline.pause();
                continue;
            };
            ensure!(wc.status.is_success(), "{wc:?}");
            deadline.progress();
            let at = usize::try_from(wc.wr_id)?;
            let message = match wc.imm_data() {
                Some(imm) => imm.get(),
                None => {
                    let mut bytes = [0; MESSAGE];
                    self.gear.mr.read_at(MESSAGES * SLOT + at * MESSAGE, &mut bytes)?;
                    u32::from_ne_bytes(bytes)
                }
            };
            receive(self.gear, self.qp, at)?;
            let data = message & ((1 << DATA_BITS) - 1);
            match message >> DATA_BITS {
                DATA => self.arrived.push_back(data as usize),
                ENTRY => self.allowed = data as u16,
                CONTROL => self.ended = true,
                other => bail!("message {other} with {data:#x}"),
            }
        }
        Ok(())
    }

    /// Tells the peer that the connection ends.
    pub(super) fn end(&mut self) -> Result<()> {
        self.unless_alone(|socket| socket.message(CONTROL << DATA_BITS, None))
    }

    /// Waits until the peer has told that.
    pub(super) fn wait_ended(&mut self) -> Result<()> {
        self.wait("an end", |socket| Ok(socket.ended))
    }
}
