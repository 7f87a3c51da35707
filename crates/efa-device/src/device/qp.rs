// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queue pairs: their rings, states and attributes.

use super::script::Late;
use super::transmit::{Flight, Key, Message};
use super::{Caps, Device, Port, Refusal};
use std::collections::{BTreeMap, VecDeque};
use uverbs_efa_hw::io::{RxDesc, TxWqe, TxWqe128};
pub use uverbs_fabric::State;
use uverbs_fabric::Timer;
use uverbs_fabric::map::Map;
use uverbs_fabric::memory::Area;
use uverbs_fabric::order::Lane;

/// The type of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpKind {
    /// Unreliable datagrams.
    Ud,
    /// Scalable reliable datagrams.
    Srd,
}

/// Whether a QP may move from a state to another one (`srd_qp_state_table` of the kernel's driver).
fn leads_to(from: State, to: State) -> bool {
    use State::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match from {
        Reset => matches!(to, Reset | Init),
        Init => matches!(to, Reset | Err | Init | Rtr),
        Rtr => matches!(to, Reset | Err | Rts),
        Rts => matches!(to, Reset | Err | Rts | Sqd),
        Sqd => matches!(to, Reset | Err | Rts | Sqd),
        Sqe => matches!(to, Reset | Err | Rts),
        Err => matches!(to, Reset | Err),
    }
}

/// The parameters of a QP.
#[derive(Debug)]
pub struct QpParams {
    /// Its type.
    pub kind: QpKind,
    /// Its protection domain.
    pub pd: u16,
    /// The CQ of the send queue.
    pub send_cq: u16,
    /// The CQ of the receive queue.
    pub recv_cq: u16,
    /// The send ring: memory of the device.
    pub sq_ring: Option<Area>,
    /// Requests that it must hold.
    pub sq_depth: u32,
    /// The receive ring.
    pub rq_ring: Option<Area>,
    /// Requests that it must hold.
    pub rq_depth: u32,
    /// The page of doorbells.
    pub uar: u16,
    /// Writes with immediate data consume no receive.
    pub unsolicited: bool,
}

/// A ring of entries that the driver posts by a doorbell.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) area: Area,
    /// Bytes of an entry.
    pub(super) entry: usize,
    /// Entries, a power of two.
    pub(super) count: u32,
    /// Entries that were executed, and posted, modulo 65536.
    pub(super) next: u16,
    pub(super) posted: u16,
    /// Rounds of before the last reset, modulo 2.
    rounds: u32,
}

impl Ring {
    fn new(area: Area, entry: usize, most: u32) -> Option<Self> {
        let count = u32::try_from(area.size() / entry as u64).ok()?;
        let is_valid = count.is_power_of_two() && count <= most && area.size().is_multiple_of(entry as u64);
        is_valid.then_some(Self { area, entry, count, next: 0, posted: 0, rounds: 0 })
    }

    /// Entries that are posted and not executed.
    pub(super) fn waiting(&self) -> u16 {
        self.posted.wrapping_sub(self.next)
    }

    /// The bytes of the entry `ahead` of the next one, and its round.
    pub(super) fn entry(&self, ahead: u16, to: &mut [u8]) -> Result<u32, uverbs_fabric::memory::Fault> {
        let index = u32::from(self.next.wrapping_add(ahead));
        self.area.read(u64::from(index % self.count) * self.entry as u64, to)?;
        Ok(index / self.count + self.rounds)
    }

    /// A reset: the first entry is the next. Its phase is the one that would have been the next, because libefa resets its index
    /// and not its phase (`efa_qp_init_indices()` of rdma-core's `providers/efa/verbs.c`).
    fn restart(&mut self) {
        self.rounds = (self.rounds + u32::from(self.posted) / self.count) % 2;
        (self.next, self.posted) = (0, 0);
    }

    /// Whether a doorbell with this number announces entries. libefa rings also for a call that it has refused, with the number that the
    /// device has (`efa_post_recv()` of rdma-core's `providers/efa/verbs.c`).
    pub(super) fn announces(&self, posted: u32) -> bool {
        posted as u16 != self.posted
    }

    /// A doorbell with the number of entries posted so far. `false` if the ring has fewer entries.
    pub(super) fn post(&mut self, posted: u16) -> bool {
        let fits = u32::from(posted.wrapping_sub(self.next)) <= self.count;
        if fits {
            self.posted = posted;
        }
        fits
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    /// Its number: the low bits are unique, the others tell QPs apart that had the same low bits.
    pub qpn: u16,
    /// Its type.
    pub kind: QpKind,
    /// Its protection domain.
    pub pd: u16,
    /// The CQ of the send queue.
    pub send_cq: u16,
    /// The CQ of the receive queue.
    pub recv_cq: u16,
    /// The page of doorbells.
    pub uar: u16,
    /// The sub-CQ of the send queue.
    pub send_sub: u16,
    /// The sub-CQ of the receive queue.
    pub recv_sub: u16,
    /// Its state.
    pub state: State,
    /// The Q_Key that peers must know.
    pub qkey: u32,
    /// The first packet sequence number, which the device only stores.
    pub sq_psn: u32,
    /// Retries of a message that found no receive; 7 is no limit.
    pub rnr_retry: u8,
    pub(super) unsolicited: bool,
    pub(super) sq: Option<Ring>,
    pub(super) rq: Option<Ring>,
    /// Messages that were taken from the send queue and not begun.
    pub(super) queued: VecDeque<Message>,
    /// Messages that found no receive, with the time of their next attempt.
    pub(super) paused: Vec<(u64, Message)>,
    /// Messages of which packets were sent.
    pub(super) out: Map<Key, Message>,
    /// The packets that were not answered.
    pub(super) flights: BTreeMap<(Key, u32), Flight>,
    /// Entries of the send queue that were taken since RESET.
    pub(super) taken: u32,
    /// Completions that a script delays, and when they are written.
    pub(super) late: Vec<(u64, Lane, Late)>,
    pub(crate) timer: Timer,
}

impl Qp {
    pub(super) fn new(qpn: u16, caps: &Caps, params: QpParams) -> Option<Self> {
        let QpParams { kind, pd, send_cq, recv_cq, sq_ring, sq_depth, rq_ring, rq_depth, uar, unsolicited } =
            params;
        let sq = match sq_ring {
            None if sq_depth == 0 => None,
            Some(area) if (1..=Caps::MAX_SQ).contains(&sq_depth) => {
                // The size of an entry follows from the sizes of the ring and of the queue, which is rounded up.
                let entry = area.size() / u64::from(sq_depth.next_power_of_two());
                let is_wide = entry == size_of::<TxWqe128>() as u64 && caps.inline_wide > 0;
                let is_valid = is_wide || entry == size_of::<TxWqe>() as u64;
                let size = if is_wide { size_of::<TxWqe128>() } else { size_of::<TxWqe>() };
                is_valid.then(|| Ring::new(area, size, Caps::MAX_SQ)).flatten().map(Some)?
            }
            _ => return None,
        };
        let rq = match rq_ring {
            None if rq_depth == 0 => None,
            Some(area) if (1..=Caps::MAX_RQ).contains(&rq_depth) => {
                let ring = Ring::new(area, size_of::<RxDesc>(), Caps::MAX_RQ)?;
                (ring.count >= rq_depth).then_some(Some(ring))?
            }
            _ => return None,
        };
        Some(Self {
            qpn,
            kind,
            pd,
            send_cq,
            recv_cq,
            uar,
            send_sub: qpn % caps.sub_cqs,
            recv_sub: (qpn / 2 + 1) % caps.sub_cqs,
            state: State::Reset,
            qkey: 0,
            sq_psn: 0,
            rnr_retry: 0,
            unsolicited,
            sq,
            rq,
            queued: VecDeque::new(),
            paused: Vec::new(),
            out: Map::new(),
            flights: BTreeMap::new(),
            taken: 0,
            late: Vec::new(),
            timer: Timer::default(),
        })
    }

    /// Its number without the bits that tell lives apart: the queue of its timer.
    pub(super) fn index(&self) -> u16 {
        self.qpn % Caps::MAX_QP
    }

    /// Whether it has requests that are not complete.
    pub(super) fn is_busy(&self) -> bool {
        !(self.queued.is_empty() && self.paused.is_empty() && self.out.is_empty())
    }

    /// Whether requests are not complete.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_busy()
    }

    pub(super) fn send_queue(&self) -> (u16, u16) {
        (self.send_cq, self.send_sub)
    }

    pub(super) fn recv_queue(&self) -> (u16, u16) {
        (self.recv_cq, self.recv_sub)
    }
}

/// The changes of a QP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Modify {
    /// The state that the driver believes it to have.
    pub from: Option<State>,
    /// The new state.
    pub to: Option<State>,
    /// The Q_Key.
    pub qkey: Option<u32>,
    /// The first packet sequence number.
    pub sq_psn: Option<u32>,
    /// Retries of a message that found no receive.
    pub rnr_retry: Option<u8>,
}

impl Device {
    /// Changes a QP.
    ///
    /// # Errors
    /// There is none; it has another state; the states do not follow each other; the device lacks retries.
    pub fn modify_qp(&mut self, port: &mut Port<'_>, qpn: u16, change: Modify) -> Result<(), Refusal> {
        let qp = self.qp(qpn).ok_or(Refusal::Illegal)?;
        let is_wrong = change.from.is_some_and(|from| from != qp.state)
            || change.to.is_some_and(|to| !leads_to(qp.state, to))
            || change.rnr_retry.is_some_and(|n| n > 7 || qp.kind != QpKind::Srd || !self.caps.retries());
        if is_wrong {
            return Err(Refusal::Illegal);
        }
        self.with_qp(qpn, |device, qp| {
            qp.qkey = change.qkey.unwrap_or(qp.qkey);
            qp.sq_psn = change.sq_psn.unwrap_or(qp.sq_psn);
            qp.rnr_retry = change.rnr_retry.unwrap_or(qp.rnr_retry);
            let Some(to) = change.to else { return };
            let from = core::mem::replace(&mut qp.state, to);
            match to {
                State::Reset => {
                    device.abandon(port, qp);
                    (qp.qkey, qp.sq_psn, qp.rnr_retry, qp.taken) = (0, 0, 0, 0);
                    [&mut qp.sq, &mut qp.rq].into_iter().flatten().for_each(Ring::restart);
                }
                State::Err => device.flush(port, qp),
                State::Rts if from != State::Rts => device.execute(port, qp),
                _ => {}
            }
        });
        Ok(())
    }
}
