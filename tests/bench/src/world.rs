// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects of the rows of one locking, and how a chunk of posts is measured and retired.

#![expect(unsafe_code)]
// UNSAFETY: data in completions.

use crate::builder::ops_of;
use crate::device::{self, FreeList, Kind, REGISTERS, Record, Ring, Seen, Whose};
use crate::face::{Face, Peer, start};
use crate::matrix::Transport;
use crate::measure::{measured, print_area};
use crate::places::Places;
use crate::{CHUNK, RING_ENTRIES};
use std::cell::RefCell;
use uverbs::attr::{CqInitAttr, QpCap, QpType, SendOpsFlags, SrqAttr, SrqInitAttr, WcExFlags};
use uverbs::mlx5::Mlx5;
use uverbs::raw::SendQueue;
use uverbs::{
    Context, ProtectionDomain, Rc, WorkCompletion,
    raw::{self, Qp, Srq},
};

/// A CQ and the device's end of it.
#[derive(Debug)]
pub struct Cq<L: Face> {
    /// The CQ.
    pub queue: raw::Cq<L, Mlx5>,
    /// The device's end.
    pub ring: Ring,
}

impl<L: Face> Cq<L> {
    /// Creates one.
    pub fn new(context: &Context<Mlx5>, entries: u32) -> Self {
        let attr = CqInitAttr::new(entries - 1).wc_flags(WcExFlags::STANDARD);
        let queue = context.create_cq_ex::<L>(&attr, None).expect("a CQ");
        Self { queue, ring: Ring::of_last_cq(entries) }
    }

    /// Polls `n` completions, the last of which has this `wr_id`.
    pub fn drain(&mut self, n: u32, last: u64) {
        let mut wc = [WorkCompletion::default(); CHUNK as usize];
        let got = L::poll(&mut self.queue, &mut wc[..n as usize]).expect("a poll");
        assert_eq!(got, n as usize, "completions");
        wc[..got].iter().for_each(|wc| wc.status.ok().expect("success"));
        assert_eq!(wc[got - 1].wr_id, last, "the last wr_id");
    }
}

/// A QP, its identity in completions, and its counters.
#[derive(Debug)]
pub struct Pair<T: Peer, L: Face> {
    /// The QP.
    pub qp: Qp<T, L, Mlx5>,
    /// The QP in completions.
    pub whose: Whose,
    record: Record,
    /// Basic blocks that were posted.
    pub posted: u32,
    /// Receives that were completed.
    pub received: u16,
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
    /// Requests in flight.
    pub wrs: u32,
    /// Short data in completions.
    pub scatter: bool,
}

impl Default for Wants {
    fn default() -> Self {
        Self { ops: SendOpsFlags::empty(), entries: 1, inline: 32, wrs: CHUNK, scatter: false }
    }
}

impl<T: Peer, L: Face> Pair<T, L> {
    /// Creates and connects a QP.
    pub fn new(
        pd: &ProtectionDomain<Mlx5>,
        send_cq: &Cq<L>,
        recv_cq: &Cq<L>,
        srq: Option<&Srq<L, Mlx5>>,
        wants: Wants,
    ) -> Self {
        let receives = !matches!(T::QP_TYPE, QpType::XrcSend | QpType::Driver);
        let cap = QpCap::new(wants.wrs, if receives { 2 * wants.wrs } else { 0 })
            .sge(wants.entries, receives.into())
            .inline(wants.inline);
        let mut builder = L::of_qp(pd.raw_qp::<T>()).send_cq(&send_cq.queue).cap(cap);
        if T::QP_TYPE != QpType::XrcSend {
            builder = builder.recv_cq(&recv_cq.queue);
        }
        if let Some(srq) = srq {
            builder = builder.srq(srq);
        }
        if T::QP_TYPE == QpType::RawPacket {
            builder = builder.max_tso_header(64);
        }
        builder = builder.send_ops(wants.ops);
        if wants.scatter {
            // SAFETY: receives name the places' region, whose addresses are its own memory.
            builder = unsafe { builder.data_in_completions() };
        }
        let qp = builder.create().expect("a QP");
        let seen = Seen::now();
        let whose = Whose { user_index: seen.user_index, qp_num: qp.qp_num() };
        start(&qp.control);
        Self { qp, whose, record: Record::of(&seen), posted: 0, received: 0 }
    }

    /// Measures posts of a chunk, whose requests have the same number of basic blocks, and retires them.
    pub fn chunk(&mut self, send_cq: &RefCell<Cq<L>>, posts: impl FnOnce(&mut SendQueue<T, L, Mlx5>)) {
        self.chunk_by(send_cq, |queue| queue, |queue| posts(queue));
    }

    /// [`chunk`](Self::chunk) for posts by a value that is created from the queue before the measurement.
    pub fn chunk_by<'q, Q: 'q>(
        &'q mut self,
        send_cq: &RefCell<Cq<L>>,
        open: impl FnOnce(&'q mut SendQueue<T, L, Mlx5>) -> Q,
        posts: impl FnOnce(&mut Q),
    ) {
        let Self { qp, whose, record, posted, .. } = self;
        let mut queue = open(&mut qp.send);
        measured(|| posts(&mut queue));
        let blocks = u32::from(record.sends().wrapping_sub(*posted as u16)) / CHUNK;
        *posted = posted.wrapping_add(CHUNK * blocks);
        let cq = &mut *send_cq.borrow_mut();
        cq.ring.complete(*whose, (*posted - blocks) as u16, Kind::Requester);
        cq.drain(1, u64::from(CHUNK) - 1);
    }
}

/// The objects of one locking.
#[derive(Debug)]
pub struct World<L: Face> {
    /// The device.
    pub context: Context<Mlx5>,
    /// The domain of the queues: a thread domain for exclusive ones.
    pub pd: ProtectionDomain<Mlx5>,
    /// The addresses that the requests name.
    pub p: Places,
    /// Completions of sends, and those of the rows that poll.
    pub send_cq: RefCell<Cq<L>>,
    /// Completions of receives.
    pub recv_cq: RefCell<Cq<L>>,
    /// A QP for lists and typed posts.
    pub rc: RefCell<Pair<Rc, L>>,
    /// One with the `wr_*` calls.
    pub rc_ex: RefCell<Pair<Rc, L>>,
    /// With three entries.
    pub rc3: RefCell<Pair<Rc, L>>,
    /// With three entries by the `wr_*` calls.
    pub rc3_ex: RefCell<Pair<Rc, L>>,
    /// With data in completions.
    pub rc_scatter: RefCell<Pair<Rc, L>>,
    /// One that receives from the SRQ.
    pub rc_srq: RefCell<Pair<Rc, L>>,
    /// The SRQ.
    pub srq: RefCell<Srq<L, Mlx5>>,
    /// The device's end of it.
    pub free: RefCell<FreeList>,
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
        let (send_cq, recv_cq) = (Cq::new(&context, RING_ENTRIES), Cq::new(&context, RING_ENTRIES));
        let attr = SrqAttr::new(RING_ENTRIES - 1);
        let srq = pd.create_srq::<L>(&SrqInitAttr::new(attr)).expect("an SRQ");
        // The first segment and one entry: 32 bytes.
        let free = FreeList::of_last_srq(32);
        print_area("registers", Seen::now().registers, REGISTERS);
        let three = Wants { entries: 3, ..Wants::default() };
        let builders = ops_of(Transport::Rc);
        let rc = |srq, wants| RefCell::new(Pair::new(&pd, &send_cq, &recv_cq, srq, wants));
        Self {
            rc: rc(None, Wants::default()),
            rc_ex: rc(None, Wants { ops: builders, ..Wants::default() }),
            rc3: rc(None, three),
            rc3_ex: rc(None, Wants { ops: builders, ..three }),
            rc_scatter: rc(None, Wants { scatter: true, ..Wants::default() }),
            rc_srq: rc(Some(&srq), Wants::default()),
            srq: RefCell::new(srq),
            free: RefCell::new(free),
            p: Places::new(&plain),
            send_cq: RefCell::new(send_cq),
            recv_cq: RefCell::new(recv_cq),
            context,
            pd,
        }
    }
}
