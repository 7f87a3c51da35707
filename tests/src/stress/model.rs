// SPDX-License-Identifier: MIT OR Apache-2.0
//! The completions that may exist.
//!
//! An [`Era`] is the time from one RESET (or creation) of a connection's two QPs to the next: each of its four queues
//! has one life in it. A `wr_id` has queue, era, lane (the thread that posts) and a number that increases in the lane,
//! so each completion identifies its post, and the state of that post determines whether the completion may exist:
//!
//! ```text
//! FREE -> INTENT -> POSTED -> DONE          the usual way; EARLY if it completes before the post returned
//!                -> REFUSED                 the post failed
//!                -> STRADDLED -> DONE       the life ended during the post: it belongs to this life or a later one
//!                   POSTED -> TAKEN_BACK    the life ended: reset or destroy returned
//! ```
//!
//! The model uses relaxed atomics only. Otherwise it would order the threads, and the thread sanitizer would miss races
//! of the driver.

use super::memory::Memory;
use anyhow::{Context as _, Result, bail, ensure};
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use uverbs::attr::QpState;
use uverbs::{Driver, WcStatus, WorkCompletion};

/// Threads that post to a queue, and one more for the end of a round.
pub(super) const LANES: usize = 3;
/// Posts of a lane in one life.
pub(super) const SEQS: usize = 512;

/// Relaxed atomics (see the module documentation) are sufficient on x86-64, which keeps loads, and stores, in order. On
/// other architectures the model would see its own events out of order.
pub(super) const LOAD: Ordering =
    if cfg!(target_arch = "x86_64") { Ordering::Relaxed } else { Ordering::Acquire };
pub(super) const STORE: Ordering =
    if cfg!(target_arch = "x86_64") { Ordering::Relaxed } else { Ordering::Release };

/// The kind of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Send = 0,
    Write = 1,
    Read = 2,
    Recv = 3,
}

/// Identifies a post.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Id {
    /// The connection, from 0.
    pub(super) conn: usize,
    /// The end, 0 or 1.
    pub(super) side: usize,
    /// Whether it is a receive.
    pub(super) recv: bool,
    /// The era of the connection, from 1.
    pub(super) era: u32,
    pub(super) lane: usize,
    pub(super) seq: usize,
}

impl Id {
    pub(super) const fn wr_id(self) -> u64 {
        let queue = (self.conn as u64 + 1) << 2 | (self.side as u64) << 1 | self.recv as u64;
        queue << 56 | (self.era as u64) << 32 | (self.lane as u64) << 28 | self.seq as u64
    }

    pub(super) fn parse(wr_id: u64) -> Option<Self> {
        let queue = wr_id >> 56;
        let conn = ((queue >> 2) as usize).checked_sub(1)?;
        let (lane, seq) = ((wr_id >> 28) as usize & 15, wr_id as usize & 0xfff_ffff);
        let (side, recv) = ((queue >> 1) as usize & 1, queue & 1 != 0);
        let id = Self { conn, side, recv, era: (wr_id >> 32) as u32 & 0xff_ffff, lane, seq };
        (lane < LANES && seq < SEQS).then_some(id)
    }

    /// The index of the queue in an era.
    pub(super) const fn queue(self) -> usize {
        self.side * 2 + self.recv as usize
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { conn, side, recv, era, lane, seq } = *self;
        let end = ["A", "B"][side];
        let queue = if recv { "receive" } else { "send" };
        write!(f, "{queue} {seq} of lane {lane} in era {era} of connection {conn}, end {end}")
    }
}

/// Counts events: polls that begin and control calls that return.
#[derive(Debug, Default)]
pub(super) struct Clock(AtomicU64);

impl Clock {
    /// The current tick.
    pub(super) fn now(&self) -> u64 {
        self.0.load(LOAD)
    }

    /// Counts an event and returns its tick. Later calls of `now` return at least this.
    pub(super) fn tick(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

const FREE: u32 = 0;
const INTENT: u32 = 1;
const POSTED: u32 = 2;
const DONE: u32 = 3;
const EARLY: u32 = 4;
const REFUSED: u32 = 5;
const STRADDLED: u32 = 6;
const TAKEN_BACK: u32 = 7;
const STATE: u32 = 15;
const SIGNALED: u32 = 1 << 4;
const SUCCEEDED: u32 = 1 << 5;
const DELIVERED: u32 = 1 << 6;
const KIND: u32 = 8;

const NAMES: [&str; 8] = ["free", "intent", "posted", "done", "early", "refused", "straddled", "taken back"];

/// One post.
#[derive(Debug, Default)]
struct Wr {
    state: AtomicU32,
    /// The buffer that it lent, if any, plus one.
    buffer: AtomicU32,
    /// The last era in which a straddled post may complete.
    until: AtomicU32,
}

impl Wr {
    fn state(&self) -> u32 {
        self.state.load(LOAD)
    }

    /// Changes the state, and returns the previous one.
    fn go(&self, next: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        let step = |all: u32| next(all & STATE).map(|to| all & !STATE | to);
        let order = (Ordering::Relaxed, Ordering::Relaxed);
        self.state.fetch_update(order.0, order.1, step).map(|all| all & STATE).map_err(|all| all & STATE)
    }

    fn buffer(&self) -> Option<u32> {
        self.buffer.load(LOAD).checked_sub(1)
    }

    fn kind(&self) -> Kind {
        [Kind::Send, Kind::Write, Kind::Read, Kind::Recv][(self.state() >> KIND & 3) as usize]
    }
}

/// A queue in an era.
#[derive(Debug)]
pub(super) struct Life {
    wrs: Box<[Wr]>,
    next: [AtomicU32; LANES],
    /// All posts of the lane before this number are complete, or will never complete.
    settled: [AtomicU32; LANES],
    /// Whether it accepts posts.
    open: AtomicBool,
    /// When the call that ended it returned.
    ended: AtomicU64,
    /// For each lane, the last completed post, and the tick at which it was polled.
    high: [AtomicU64; LANES],
}

impl Default for Life {
    fn default() -> Self {
        Self {
            wrs: (0..LANES * SEQS).map(|_| Wr::default()).collect(),
            next: Default::default(),
            settled: Default::default(),
            open: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            high: Default::default(),
        }
    }
}

/// The lives of a connection's queues between two resets.
#[derive(Debug)]
pub(super) struct Era {
    pub(super) conn: usize,
    pub(super) number: u32,
    /// The QPs' numbers.
    pub(super) qp_num: [u32; 2],
    lives: [Life; 4],
    /// A control call that ends it is in progress, or a control thread has moved a QP to ERR.
    closing: AtomicBool,
    broken: AtomicBool,
    /// On iWARP, where a message without a receive ends the connection: for each end, its receives for which no message was sent.
    credits: Option<[AtomicU32; 2]>,
}

/// The outcome of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posted {
    Yes,
    No,
    /// The call failed after the doorbell.
    Perhaps,
}

impl Era {
    pub(super) fn new(conn: usize, number: u32, qp_num: [u32; 2], is_iwarp: bool) -> Self {
        let (closing, broken) = (AtomicBool::new(false), AtomicBool::new(false));
        let credits = is_iwarp.then(Default::default);
        Self { conn, number, qp_num, lives: Default::default(), closing, broken, credits }
    }

    /// Whether the connection is one of iWARP.
    pub(super) fn is_iwarp(&self) -> bool {
        self.credits.is_some()
    }

    /// An end has posted receives, or a message to it was not sent.
    pub(super) fn add_credits(&self, side: usize, n: usize) {
        if let Some(credits) = &self.credits {
            credits[side].fetch_add(n as u32, Ordering::Relaxed);
        }
    }

    /// Whether a message may be sent to an end; reserves a receive for it.
    pub(super) fn take_credit(&self, side: usize) -> bool {
        let one_less = |n: u32| n.checked_sub(1);
        self.credits.as_ref().is_none_or(|credits| {
            credits[side].fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
        })
    }

    fn wr(&self, id: Id) -> &Wr {
        &self.lives[id.queue()].wrs[id.lane * SEQS + id.seq]
    }

    /// A queue begins to accept posts.
    pub(super) fn open(&self, queue: usize) {
        self.lives[queue].open.store(true, STORE);
    }

    /// Called before the control call that ends the era.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Completions with errors are expected from now on.
    pub(super) fn allow_errors(&self) {
        self.broken.store(true, STORE);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(LOAD) || self.is_closing()
    }

    /// The next number in a lane; `None` if the queue accepts no posts.
    pub(super) fn next(&self, side: usize, recv: bool, lane: usize) -> Option<Id> {
        let mut id = Id { conn: self.conn, side, recv, era: self.number, lane, seq: 0 };
        let life = &self.lives[id.queue()];
        if !life.open.load(LOAD) || self.is_closing() {
            return None;
        }
        id.seq = life.next[lane].fetch_add(1, Ordering::Relaxed) as usize;
        if id.seq >= SEQS {
            life.next[lane].store(SEQS as u32, Ordering::Relaxed);
            return None;
        }
        Some(id)
    }

    /// The number of posts of a lane that may still complete. Only the lane's own thread calls this.
    pub(super) fn outstanding(&self, side: usize, recv: bool, lane: usize) -> usize {
        let mut id = Id { conn: self.conn, side, recv, era: self.number, lane, seq: 0 };
        let life = &self.lives[id.queue()];
        let next = (life.next[lane].load(LOAD) as usize).min(SEQS);
        let last = (life.high[lane].load(LOAD) & 0xffff) as usize;
        id.seq = life.settled[lane].load(LOAD) as usize;
        while id.seq < next {
            let state = self.wr(id).state();
            // An unsignaled post is complete when a later one of its queue is.
            let is_silent = !recv && state & SIGNALED == 0 && id.seq < last;
            if !is_silent && matches!(state & STATE, INTENT | POSTED | STRADDLED) {
                break;
            }
            id.seq += 1;
        }
        life.settled[lane].store(id.seq as u32, STORE);
        next - id.seq
    }

    /// Called before a post.
    pub(super) fn intend(&self, id: Id, kind: Kind, signaled: bool, buffer: Option<u32>) {
        let wr = self.wr(id);
        wr.buffer.store(buffer.map_or(0, |b| b + 1), STORE);
        let flags = (kind as u32) << KIND | if signaled { SIGNALED } else { 0 };
        wr.state.store(INTENT | flags, STORE);
    }

    /// Called after a post. `Some` if the buffer belongs to the poster again. `current` is the connection's current
    /// era.
    pub(super) fn posted(&self, id: Id, how: Posted, current: u32) -> Result<Option<u32>> {
        let wr = self.wr(id);
        if how == Posted::No {
            wr.go(|s| (s == INTENT).then_some(REFUSED)).map_err(|s| {
                anyhow::anyhow!("{id:?}: the post was refused, and it is {}", NAMES[s as usize])
            })?;
            return Ok(wr.buffer());
        }
        let straddled = how == Posted::Perhaps || self.is_closing();
        wr.until.store(current, STORE);
        let to = if straddled { STRADDLED } else { POSTED };
        let _ = wr.go(|s| match s {
            INTENT => Some(to),
            EARLY => Some(DONE),
            _ => None,
        });
        Ok(None)
    }

    /// Whether a post straddled the end of this era; then it must be taken back later.
    pub(super) fn is_straddled(&self, id: Id) -> bool {
        self.wr(id).state() & STATE == STRADDLED
    }

    /// Takes back a straddled post whose last life ended. `Some` if its buffer belongs to the test again.
    pub(super) fn take_back_straddled(&self, id: Id, ended: u32) -> Option<Option<u32>> {
        let wr = self.wr(id);
        if wr.until.load(LOAD) > ended {
            return None;
        }
        Some(wr.go(|s| (s == STRADDLED).then_some(TAKEN_BACK)).ok().and_then(|_| wr.buffer()))
    }

    /// Called when the call that ended the life of an end's queues returned: returns their buffers.
    pub(super) fn end<D: Driver>(&self, side: usize, clock: &Clock, memory: &Memory<D>) -> Result<()> {
        let tick = clock.tick();
        for life in &self.lives[side * 2..side * 2 + 2] {
            life.ended.store(tick, STORE);
            for wr in &life.wrs {
                if wr.state() & STATE == POSTED
                    && wr.go(|s| (s == POSTED).then_some(TAKEN_BACK)).is_ok()
                    && let Some(buffer) = wr.buffer()
                {
                    memory.give_back(buffer)?;
                }
            }
        }
        Ok(())
    }

    /// Whether the life of an end's queues ended before `tick`.
    pub(super) fn ended_before(&self, side: usize, tick: u64) -> bool {
        let ended = self.lives[side * 2].ended.load(LOAD);
        ended != 0 && ended <= tick
    }

    /// Checks a completion of a poll that began at `began`. `ended_before` answers the same for a later era of the
    /// connection.
    pub(super) fn completed(
        &self,
        id: Id,
        wc: &WorkCompletion,
        began: u64,
        later_ended: impl Fn(u32) -> bool,
    ) -> Result<Completed> {
        let wr = self.wr(id);
        let before = wr.go(|s| match s {
            INTENT => Some(EARLY),
            POSTED | STRADDLED | TAKEN_BACK => Some(DONE),
            _ => None,
        });
        let state = match before {
            Ok(state) => state,
            Err(state) => bail!("it is {}", NAMES[state as usize]),
        };
        match state {
            INTENT => {}
            STRADDLED | TAKEN_BACK if wr.until.load(LOAD) > self.number => {
                let until = wr.until.load(LOAD);
                ensure!(!later_ended(until), "its last life, era {until}, ended before the poll began");
            }
            _ => {
                ensure!(!self.ended_before(id.side, began), "its life ended before the poll began");
                ensure!(
                    wc.qp_num == self.qp_num[id.side],
                    "QP {:#x} instead of {:#x}",
                    wc.qp_num,
                    self.qp_num[id.side]
                );
            }
        }
        // The completions of each lane are in order.
        let high = self.lives[id.queue()].high[id.lane].load(LOAD);
        let (last, known) = (high & 0xffff, high >> 16);
        if state == POSTED && last > id.seq as u64 + 1 && known <= began {
            bail!("{} of its lane completed before the poll began", last - 1);
        }
        let signaled = id.recv || wr.state() & SIGNALED != 0;
        if wc.status.is_success() {
            ensure!(signaled, "it is not signaled");
            wr.state.fetch_or(SUCCEEDED, Ordering::Relaxed);
        } else {
            ensure!(self.is_broken(), "{:?} without a cause", wc.status);
            let expected = [WcStatus::WR_FLUSH_ERR, WcStatus::RETRY_EXC_ERR, WcStatus::RNR_RETRY_EXC_ERR];
            // A responder that enters ERR may report the reason.
            let other = [WcStatus::REM_OP_ERR, WcStatus::REM_INV_REQ_ERR, WcStatus::REM_ACCESS_ERR];
            // siw's status if the connection ends during a send, or within a message.
            let of_siw = [WcStatus::LOC_QP_OP_ERR, WcStatus::GENERAL_ERR];
            let is_known = expected.contains(&wc.status)
                || other.contains(&wc.status)
                || self.is_iwarp() && of_siw.contains(&wc.status);
            ensure!(is_known, "{:?}", wc.status);
        }
        let ours = state != TAKEN_BACK;
        Ok(Completed { kind: wr.kind(), buffer: wr.buffer().filter(|_| ours), ours })
    }

    /// Called after the poll: later completions of the lane must be of later posts.
    pub(super) fn seen(&self, id: Id, tick: u64) {
        let high = tick << 16 | (id.seq as u64 + 1);
        let raise = |old: u64| (old & 0xffff < high & 0xffff).then_some(high);
        let _ =
            self.lives[id.queue()].high[id.lane].fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise);
    }

    /// Called when the peer has received this send.
    pub(super) fn delivered(&self, id: Id) -> Result<()> {
        let wr = self.wr(id);
        let before = wr.state.fetch_or(DELIVERED, Ordering::Relaxed);
        ensure!(before & DELIVERED == 0, "it is delivered twice");
        let state = before & STATE;
        ensure!(state != FREE && state != REFUSED, "it is {}", NAMES[state as usize]);
        ensure!(wr.kind() == Kind::Send, "it is a {:?}", wr.kind());
        Ok(())
    }

    /// The first send that should have completed and did not, or succeeded and was not delivered.
    pub(super) fn missing(&self, side: usize) -> Option<String> {
        let queue = side * 2;
        for lane in 0..LANES {
            for seq in 0..SEQS {
                let id = Id { conn: self.conn, side, recv: false, era: self.number, lane, seq };
                let all = self.lives[queue].wrs[lane * SEQS + seq].state();
                if all & STATE == POSTED && all & SIGNALED != 0 {
                    return Some(format!("{id:?} has no completion"));
                }
                let is_send = all >> KIND & 3 == Kind::Send as u32;
                if is_send && all & SUCCEEDED != 0 && all & DELIVERED == 0 && !self.is_broken() {
                    return Some(format!("{id:?} succeeded and was not delivered"));
                }
            }
        }
        None
    }

    /// The outcomes of all posts, for messages.
    pub(super) fn summary(&self) -> String {
        let mut counts = [[0_u32; 8]; 4];
        for (life, counts) in self.lives.iter().zip(&mut counts) {
            for wr in &life.wrs {
                counts[(wr.state() & 7) as usize] += 1;
            }
        }
        let queue = |(i, counts): (usize, &[u32; 8])| {
            let some = counts.iter().zip(NAMES).skip(1).filter(|(n, _)| **n != 0);
            let some: Vec<_> = some.map(|(n, name)| format!("{n} {name}")).collect();
            format!("{}: {}", ["A sends", "A receives", "B sends", "B receives"][i], some.join(", "))
        };
        let queues: Vec<_> = counts.iter().enumerate().map(queue).collect();
        format!(
            "connection {}, era {}{}: {}",
            self.conn,
            self.number,
            if self.is_broken() { " (broken)" } else { "" },
            queues.join("; ")
        )
    }
}

/// The buffer that a completion returns.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) kind: Kind,
    pub(super) buffer: Option<u32>,
    /// `false` if a control call returned in the meantime, and took the buffer back.
    pub(super) ours: bool,
}

/// The state of a failed connection.
pub(super) const BROKEN: QpState = QpState::ERR;

/// Finds the post of a completion.
pub(super) fn parse(wc: &WorkCompletion) -> Result<Id> {
    Id::parse(wc.wr_id).with_context(|| format!("it was not posted: {wc:?}"))
}
