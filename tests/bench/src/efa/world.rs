// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects of the rows of one locking, and how a chunk of posts is measured and retired.

use super::device::{self, Fake, Queues, Ring};
use super::places::{Places, REMOTE_QKEY};
use crate::face::{Face, Posts};
use crate::measure::measured;
use crate::{CHUNK, RING_ENTRIES};
use std::cell::RefCell;
use uverbs::attr::{CqInitAttr, QpAttr, QpAttrMask, QpCap, QpState, SendOpsFlags, WcExFlags};
use uverbs::raw::{self, Qp, SendQueue};
use uverbs::{Context, ProtectionDomain, Srd, WorkCompletion};
use uverbs_efa::Efa;

/// A CQ and the device's end of it.
#[derive(Debug)]
pub struct Cq<L: Face> {
    /// The CQ.
    pub queue: raw::Cq<L, Efa>,
    /// The device's end.
    pub ring: Ring,
}

impl<L: Face> Cq<L> {
    fn new(context: &Context<Efa>) -> Self {
        let attr = CqInitAttr::new(RING_ENTRIES).wc_flags(WcExFlags::STANDARD);
        let queue = context.create_cq_ex::<L>(&attr, None).expect("a CQ");
        Self { queue, ring: Ring::of_last_cq(RING_ENTRIES) }
    }

    /// Polls a chunk of completions, the last of which has the last `wr_id`.
    pub fn drain(&mut self) {
        let mut wc = [WorkCompletion::default(); CHUNK as usize];
        let got = L::poll(&mut self.queue, &mut wc).expect("a poll");
        assert_eq!(got, CHUNK as usize, "completions");
        wc.iter().for_each(|wc| wc.status.ok().expect("success"));
        assert_eq!(wc[got - 1].wr_id, u64::from(CHUNK) - 1, "the last wr_id");
    }
}

/// A QP, and the device's end of its queues.
#[derive(Debug)]
pub struct Pair<T: Posts<Efa>, L: Face> {
    /// The QP.
    pub qp: Qp<T, L, Efa>,
    /// The device's end.
    pub queues: Queues,
}

/// The properties of a QP.
#[derive(Clone, Copy, Debug)]
pub struct Wants {
    /// The operations of the `wr_*` calls.
    pub ops: SendOpsFlags,
    /// Entries of a request.
    pub entries: u32,
    /// Bytes of inline data.
    pub inline: u32,
}

impl Default for Wants {
    fn default() -> Self {
        Self { ops: SendOpsFlags::empty(), entries: 1, inline: 32 }
    }
}

impl<T: Posts<Efa>, L: Face> Pair<T, L> {
    /// Creates a QP and moves it to RTS.
    pub fn new(pd: &ProtectionDomain<Efa>, cq: &Cq<L>, wants: Wants) -> Self {
        Fake::next_qp_num();
        let cap = QpCap::new(CHUNK, CHUNK).sge(wants.entries, wants.entries).inline(wants.inline);
        let builder = L::of_qp(pd.raw_qp::<T>()).cq(&cq.queue).cap(cap).send_ops(wants.ops);
        let qp = builder.create().expect("a QP");
        let queues = Queues::of_last_qp(qp.qp_num(), wants.inline > 32);
        let state = QpAttrMask::STATE;
        let init = state | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::QKEY;
        for (qp_state, mask) in
            [(QpState::INIT, init), (QpState::RTR, state), (QpState::RTS, state | QpAttrMask::SQ_PSN)]
        {
            let mut attr = QpAttr::default();
            (attr.qp_state, attr.port_num, attr.qkey) = (qp_state, 1, REMOTE_QKEY);
            qp.modify(&attr, mask).expect("a transition");
        }
        Self { qp, queues }
    }

    /// Measures posts of a chunk by a value that is created from the queue before the measurement, and retires them.
    pub fn chunk_by<'q, Q: 'q>(
        &'q mut self,
        cq: &RefCell<Cq<L>>,
        open: impl FnOnce(&'q mut SendQueue<T, L, Efa>) -> Q,
        posts: impl FnOnce(&mut Q),
    ) {
        let mut queue = open(&mut self.qp.send);
        measured(|| posts(&mut queue));
        let cq = &mut *cq.borrow_mut();
        self.queues.complete_sends(&mut cq.ring);
        cq.drain();
    }
}

/// The objects of one locking.
#[derive(Debug)]
pub struct World<L: Face> {
    /// The device.
    pub context: Context<Efa>,
    /// The domain of the queues: a thread domain for exclusive ones.
    pub pd: ProtectionDomain<Efa>,
    /// The addresses that the requests name.
    pub p: Places,
    /// All completions.
    pub cq: RefCell<Cq<L>>,
    /// A QP for receives and polls.
    pub srd: RefCell<Pair<Srd, L>>,
    /// With two entries.
    pub srd2: RefCell<Pair<Srd, L>>,
}

impl<L: Face> World<L> {
    /// Creates the objects.
    pub fn create() -> Self {
        let context = device::open();
        let plain = context.alloc_pd().expect("a PD");
        let pd = if L::SHARED {
            plain.clone()
        } else {
            let td = context.alloc_td().expect("a thread domain");
            plain.parent_domain(&td).expect("a parent domain")
        };
        let cq = Cq::new(&context);
        let srd = |entries| RefCell::new(Pair::new(&pd, &cq, Wants { entries, ..Wants::default() }));
        Self { srd: srd(1), srd2: srd(2), p: Places::new(&plain), cq: RefCell::new(cq), pd, context }
    }
}
