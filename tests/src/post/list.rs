// SPDX-License-Identifier: MIT OR Apache-2.0
//! C's lists.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests, which takes a promise about the memory that they name; see the module above.

use super::lock::Lock;
use super::req::{Data, Op, Refused, Remote, Req, opcode};
use super::typed::Typed;
use core::ptr;
use uverbs::provider::BadWr;
use uverbs::provider::op::MwBind;
use uverbs::qp::SendQueue;
use uverbs::wr::{
    IbvMr, IbvMw, IbvMwBindInfo, RecvWr, SendWr, Sge, WrAtomic, WrBindMw, WrRdma, WrTail, WrUd, WrUnion,
};
use uverbs::{Driver, ImmData, SendFlags};

/// Nodes of a list of receives, linked.
#[must_use]
pub fn recv_nodes(recvs: &[(u64, &[Sge])]) -> Vec<RecvWr> {
    let node = |(wr_id, sges): &(u64, &[Sge])| RecvWr {
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as i32,
        ..RecvWr::new(*wr_id)
    };
    let mut nodes: Vec<_> = recvs.iter().map(node).collect();
    for i in 1..nodes.len() {
        nodes[i - 1].next = &raw const nodes[i];
    }
    nodes
}

/// The result of a list call, by index.
#[must_use]
pub fn refused<W>(nodes: &[W], bad: &BadWr<W>) -> Refused {
    Refused::new(bad.error, nodes.iter().position(|n| ptr::from_ref(n) == bad.wr))
}

/// Requests as C's list, with everything that its nodes point to.
#[derive(Debug, Default)]
pub struct List {
    nodes: Vec<SendWr>,
    _sges: Vec<Vec<Sge>>,
    #[expect(clippy::vec_box, reason = "nodes point to them, so they must not move when there are more")]
    _windows: Vec<Box<(IbvMw, IbvMr)>>,
}

impl List {
    /// The first node; NULL of an empty list.
    #[must_use]
    pub fn first(&self) -> *const SendWr {
        if self.nodes.is_empty() { ptr::null() } else { self.nodes.as_ptr() }
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[SendWr] {
        &self.nodes
    }

    /// Changes a node to one that [`Req`] can't express.
    pub fn change(&mut self, index: usize, f: impl FnOnce(&mut SendWr)) {
        let next = self.nodes[index].next;
        f(&mut self.nodes[index]);
        self.nodes[index].next = next;
    }

    /// Makes the list.
    #[must_use]
    pub fn new<D: Driver>(reqs: &[Req<'_, D>]) -> Self {
        let mut list = Self::default();
        for req in reqs {
            list.add(req);
        }
        for i in 1..list.nodes.len() {
            list.nodes[i - 1].next = &raw const list.nodes[i];
        }
        list
    }

    fn add<D: Driver>(&mut self, req: &Req<'_, D>) {
        let mut wr = SendWr::new(req.wr_id, opcode(req.op));
        wr.send_flags = req.flags.bits();
        let inline = |b: &[u8]| Sge {
            addr: b.as_ptr().expose_provenance() as u64,
            length: b.len() as u32,
            lkey: 0xdead_beef,
        };
        let sges: Vec<Sge> = match req.data {
            Data::None => vec![],
            Data::Sges(sges) => sges.to_vec(),
            Data::Inline(bytes) => vec![inline(bytes)],
            Data::InlineList(list) => list.iter().map(|b| inline(b)).collect(),
        };
        if matches!(req.data, Data::Inline(_) | Data::InlineList(_)) {
            wr.send_flags |= SendFlags::INLINE.bits();
        }
        wr.sg_list = sges.as_ptr();
        wr.num_sge = sges.len() as i32;
        self._sges.push(sges);
        let rdma = |r: Remote| WrUnion { rdma: WrRdma { remote_addr: r.addr, rkey: r.rkey } };
        let atomic = |r: Remote, compare_add, swap| WrUnion {
            atomic: WrAtomic { remote_addr: r.addr, compare_add, swap, rkey: r.rkey },
        };
        match req.op {
            Op::Send => {}
            Op::SendImm(imm) => wr.imm_data_or_invalidate_rkey = ImmData::new(imm).to_be(),
            Op::SendInv(rkey) | Op::LocalInv(rkey) => wr.imm_data_or_invalidate_rkey = rkey,
            Op::Write(r) | Op::Read(r) | Op::Flush(r, _) | Op::AtomicWrite(r, _) => wr.wr = rdma(r),
            Op::WriteImm(r, imm) => {
                wr.wr = rdma(r);
                wr.imm_data_or_invalidate_rkey = ImmData::new(imm).to_be();
            }
            Op::CmpSwp(r, compare, swap) => wr.wr = atomic(r, compare, swap),
            Op::FetchAdd(r, add) => wr.wr = atomic(r, add, 0),
            Op::BindMw(bind) => wr.tail = WrTail { bind_mw: self.window(&bind) },
        }
        if let Some(to) = &req.to {
            wr.wr = WrUnion { ud: WrUd { ah: to.ah.as_raw(), remote_qpn: to.qpn, remote_qkey: to.qkey } };
        }
        if let Some(srqn) = req.srqn {
            wr.xrc_remote_srqn = srqn;
        }
        self.nodes.push(wr);
    }

    /// C's structs of a window and a region, with the keys that the bind names.
    pub(super) fn window(&mut self, bind: &MwBind) -> WrBindMw {
        let null = ptr::null_mut();
        let mw = IbvMw { context: null, pd: null, rkey: bind.mw_rkey, handle: 0, mw_type: bind.mw_type };
        let mr =
            IbvMr { context: null, pd: null, addr: null, length: 0, handle: 0, lkey: bind.mr_lkey, rkey: 0 };
        let both = Box::new((mw, mr));
        let bind_info = IbvMwBindInfo {
            mr: &raw const both.1,
            addr: bind.addr,
            length: bind.length,
            mw_access_flags: bind.access,
        };
        let mw = &raw const both.0;
        self._windows.push(both);
        WrBindMw { mw, rkey: bind.rkey, bind_info }
    }
}

pub(super) fn post_list<D: Driver, T: Typed, L: Lock>(
    sq: &SendQueue<D, T, L>,
    reqs: &[Req<'_, D>],
) -> Result<(), Refused> {
    post_prepared(sq, &List::new(reqs))
}

/// `ibv_post_send` of a list made before.
pub fn post_prepared<D: Driver, T: Typed, L: Lock>(
    sq: &SendQueue<D, T, L>,
    list: &List,
) -> Result<(), Refused> {
    // SAFETY: `list` owns all that its nodes point to, and one thread uses the queue; memory as described in `super`.
    let result = unsafe { sq.post_send(list.first()) };
    result.map_err(|bad| refused(list.nodes(), &bad))
}
