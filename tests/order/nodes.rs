// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small programs on software HCAs: nodes with a few words of memory each, and reliable connections between them.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use uverbs::attr::{AccessFlags, QpCap, QpState};
use uverbs::mlx5::Mlx5;
use uverbs::raw::{Cq, Qp};
use uverbs::wr::Sge;
use uverbs::{
    ConnectAttr, Context, Exclusive, Exposed, MemoryRegion, PageBuf, ProtectionDomain, Rc, Shared, WcOpcode,
    WorkCompletion,
};
use uverbs_hca::explore::{Cpu, Footprint};
use uverbs_hca::{Fabric, Hca};
use uverbs_tests::post::{Face, RemoteAddr, Req, post, post_recv};
use uverbs_tests::sges::sge;

/// Bytes between the words of a node, so that each is in a line of its own.
pub(crate) const LINE: usize = 64;

/// A node: a device, and memory.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) hca: Hca,
    pub(crate) mr: MemoryRegion<PageBuf, Exposed, Mlx5>,
    pub(crate) pd: ProtectionDomain<Mlx5>,
    context: Context<Mlx5>,
}

impl Node {
    /// A node whose memory has `lines` lines and these rights besides all others.
    pub(crate) fn new(fabric: &Fabric, name: &str, lines: usize, access: AccessFlags) -> Self {
        let hca = fabric.device(name).build();
        let context = Context::<Mlx5>::from_kernel(hca.open()).expect("a context");
        let pd = context.alloc_pd().expect("a domain");
        let all = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        let buf = PageBuf::new(lines * LINE).expect("memory");
        let mr = pd.reg_mr(buf, all | access).map_err(|e| e.error).expect("a region");
        Self { hca, mr, pd, context }
    }

    /// A completion queue, and its number.
    pub(crate) fn queue(&self) -> (Cq<Shared, Mlx5>, u32) {
        let before = self.hca.completion_queues();
        let cq = self.context.create_cq(64, None).expect("a CQ");
        let new = self.hca.completion_queues().into_iter().find(|cqn| !before.contains(cqn));
        (cq, new.expect("the number of the CQ"))
    }

    /// The first word of a line.
    pub(crate) fn word(&self, line: usize) -> &AtomicU64 {
        self.mr.atomic_u64(line * LINE).expect("a word of the region")
    }

    /// The place of a line, for a peer.
    pub(crate) fn remote(&self, line: usize) -> RemoteAddr {
        RemoteAddr { addr: self.mr.addr() + (line * LINE) as u64, rkey: self.mr.rkey() }
    }
}

/// One end of a connection, with a completion queue of its own.
#[derive(Debug)]
pub(crate) struct End<'n> {
    pub(crate) node: &'n Node,
    qp: Qp<Rc, Exclusive, Mlx5>,
    cq: Cq<Shared, Mlx5>,
    cqn: u32,
    /// Receives of `ready` that are posted and not complete.
    waiting: usize,
}

impl<'n> End<'n> {
    fn new(node: &'n Node) -> Self {
        let (cq, cqn) = node.queue();
        let cap = QpCap::new(32, 32).inline(64);
        let qp = node.pd.raw_qp::<Rc>().cq(&cq).cap(cap).create().expect("a QP");
        Self { node, qp, cq, cqn, waiting: 0 }
    }

    /// Two connected ends.
    pub(crate) fn pair(a: &'n Node, b: &'n Node) -> (Self, Self) {
        Self::pair_with(a, b, ConnectAttr::new())
    }

    /// Two ends that are connected with these attributes.
    pub(crate) fn pair_with(a: &'n Node, b: &'n Node, attr: ConnectAttr) -> (Self, Self) {
        let (mut one, mut other) = (Self::new(a), Self::new(b));
        let rights = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        let attr = attr.access(rights).max_rd_atomic(4).max_dest_rd_atomic(4);
        let endpoints = [&one, &other].map(|end| end.qp.control.endpoint(7, &attr).expect("an endpoint"));
        for (end, [here, peer]) in [(&mut one, [0, 1]), (&mut other, [1, 0])] {
            end.qp.init(&attr).expect("INIT");
            end.qp.connect(&endpoints[here], &endpoints[peer], &attr).expect("RTS");
        }
        (one, other)
    }

    /// Posts requests at once.
    pub(crate) fn post_now(&mut self, reqs: &[Req<'_, Mlx5>]) {
        post(&mut self.qp, Face::Single, reqs).expect("a post");
    }

    /// Posts requests.
    pub(crate) fn post(&mut self, cpu: &Cpu<'_>, reqs: &[Req<'_, Mlx5>]) {
        let (hca, qp_num) = (&self.node.hca, self.qp.qp_num());
        let qp = &mut self.qp;
        cpu.post(hca, qp_num, || post(qp, Face::Single, reqs)).expect("a post");
    }

    /// Posts a receive for `words` words of a line.
    pub(crate) fn recv(&mut self, cpu: &Cpu<'_>, wr_id: u64, line: usize, words: usize) {
        let sges = [sge(&self.node.mr, line * LINE..line * LINE + words * 8)];
        let (hca, qp_num) = (&self.node.hca, self.qp.qp_num());
        let rq = self.qp.rq_mut().expect("a receive queue");
        cpu.post(hca, qp_num, || post_recv(rq, Face::Single, &[(wr_id, &sges[..])])).expect("a receive");
    }

    /// Posts a receive for the first word of a line, before the threads begin, unless there is one of an earlier run.
    pub(crate) fn ready(&mut self, wr_id: u64, line: usize) {
        if self.waiting > 0 {
            return;
        }
        self.waiting += 1;
        let sges = words(self.node, line, 1);
        let rq = self.qp.rq_mut().expect("a receive queue");
        post_recv(rq, Face::Single, &[(wr_id, &sges[..])]).expect("a receive");
    }

    /// Resets the queue pair.
    pub(crate) fn reset(&mut self, cpu: &Cpu<'_>) {
        let footprint = Footprint { everything: true, ..Footprint::default() };
        let reset = || self.qp.control.modify_state(QpState::RESET);
        cpu.step(footprint, || (reset(), "resets the queue pair".into())).expect("RESET");
    }

    /// Polls at once.
    pub(crate) fn poll_one(&mut self) -> Option<WorkCompletion> {
        let mut wcs = [WorkCompletion::default()];
        let wc = self.cq.poll(&mut wcs).expect("a poll").first().copied()?;
        if matches!(wc.opcode, WcOpcode::RECV | WcOpcode::RECV_RDMA_WITH_IMM) {
            self.waiting = self.waiting.saturating_sub(1);
        }
        Some(wc)
    }

    /// Takes what an earlier run has left.
    fn forget(&mut self) {
        while self.poll_one().is_some() {}
    }

    /// Waits for a successful completion.
    pub(crate) fn wait(&mut self, cpu: &Cpu<'_>) -> WorkCompletion {
        let (hca, cqn) = (&self.node.hca, self.cqn);
        let wc = cpu.wait(hca, cqn, || self.poll_one()).expect("a completion");
        wc.ok().expect("a successful completion");
        wc
    }
}

/// The first words of a line, as an entry.
pub(crate) fn words(node: &Node, line: usize, words: usize) -> [Sge; 1] {
    [sge(&node.mr, line * LINE..line * LINE + words * 8)]
}

/// Nodes and connections that many runs use one after the other: to make them costs more than a run.
#[derive(Debug)]
pub(crate) struct Bed<'n> {
    pub(crate) a: &'n Node,
    pub(crate) b: &'n Node,
    pairs: [Mutex<(End<'n>, End<'n>)>; 2],
    own: Mutex<(End<'n>, End<'n>)>,
}

/// The lines of a node of a [`Bed`].
pub(crate) const BED_LINES: usize = 8;

impl<'n> Bed<'n> {
    pub(crate) fn new(a: &'n Node, b: &'n Node) -> Self {
        let pair = |a, b| Mutex::new(End::pair(a, b));
        Self { a, b, pairs: [pair(a, b), pair(a, b)], own: pair(b, b) }
    }

    /// The ends of a connection from A to B.
    pub(crate) fn pair(&self, number: usize) -> MutexGuard<'_, (End<'n>, End<'n>)> {
        self.pairs[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ends of a connection from B to B.
    pub(crate) fn own(&self) -> MutexGuard<'_, (End<'n>, End<'n>)> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares a run: no completion is left, and memory is 0, but for the first word of the first four lines of A, which is 1.
    pub(crate) fn reset(&self) {
        for mut ends in [self.pair(0), self.pair(1), self.own()] {
            ends.0.forget();
            ends.1.forget();
        }
        for (node, ones) in [(self.a, 4), (self.b, 0)] {
            for at in (0..BED_LINES * LINE).step_by(8) {
                let value = u64::from(at < ones * LINE && at % LINE == 0);
                node.mr.atomic_u64(at).expect("a word of the region").store(value, Ordering::Relaxed);
            }
        }
    }
}
