// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests and receives as C's lists.

use crate::request::{Handle, Refused};
use core::marker::PhantomData;
use core::ptr;
use uverbs_core::provider::op::MwBind;
use uverbs_core::provider::{BadWr, Data, Dest, Inline, Op, RemoteAddr, To, Wr};
use uverbs_core::wr::{
    IbvMr, IbvMw, IbvMwBindInfo, ImmData, RecvWr, SendFlags, SendWr, Sge, WrAtomic, WrBindMw, WrRdma, WrTail,
    WrTso, WrUd, WrUnion,
};

/// The immediate data of operations without any, which the driver must not read.
const UNUSED: u32 = 0xbad_bad;

/// C's structs of a window and a region, with the keys of a bind. They are boxed, so that their addresses do not
/// change.
type Window = Box<(IbvMw, IbvMr)>;

/// Creates the structs of a bind, and C's arguments that point to them.
pub(crate) fn window(bind: &MwBind) -> (WrBindMw, Window) {
    let null = ptr::null_mut();
    let mw = IbvMw { context: null, pd: null, rkey: bind.mw_rkey, handle: 0, mw_type: bind.mw_type };
    let mr = IbvMr { context: null, pd: null, addr: null, length: 0, handle: 0, lkey: bind.mr_lkey, rkey: 0 };
    let both = Box::new((mw, mr));
    let bind_info = IbvMwBindInfo {
        mr: &raw const both.1,
        addr: bind.addr,
        length: bind.length,
        mw_access_flags: bind.access,
    };
    (WrBindMw { mw: &raw const both.0, rkey: bind.rkey, bind_info }, both)
}

/// Requests as C's list, with the arrays and structs that its nodes point to. Inline bytes, headers and address handles
/// are borrowed from the requests.
#[derive(Debug, Default)]
pub struct List<'a> {
    nodes: Vec<SendWr>,
    sges: Vec<Vec<Sge>>,
    windows: Vec<Window>,
    _borrowed: PhantomData<&'a [u8]>,
}

impl<'a> List<'a> {
    /// Builds the list.
    #[must_use]
    pub fn new<H: Handle>(reqs: &[Wr<'a, H>]) -> Self {
        let mut list = Self::default();
        for req in reqs {
            list.add(req);
        }
        for i in 1..list.nodes.len() {
            list.nodes[i - 1].next = &raw const list.nodes[i];
        }
        list
    }

    /// The first node; NULL for an empty list.
    #[must_use]
    pub fn first(&self) -> *const SendWr {
        if self.nodes.is_empty() { ptr::null() } else { self.nodes.as_ptr() }
    }

    /// The nodes.
    #[must_use]
    pub fn nodes(&self) -> &[SendWr] {
        &self.nodes
    }

    /// Changes a node to one that a [`Wr`] can't express. Its link stays.
    pub fn change(&mut self, index: usize, f: impl FnOnce(&mut SendWr)) {
        let next = self.nodes[index].next;
        f(&mut self.nodes[index]);
        self.nodes[index].next = next;
    }

    fn add<H: Handle>(&mut self, req: &Wr<'a, H>) {
        let mut wr = SendWr::new(req.wr_id, req.op.opcode());
        wr.send_flags = req.flags.bits();
        wr.imm_data_or_invalidate_rkey = UNUSED;
        // The key of inline data has no meaning, so it is one that no region has.
        let inline = |b: &[u8]| Sge {
            addr: b.as_ptr().expose_provenance() as u64,
            length: b.len() as u32,
            lkey: 0xdead_beef,
        };
        let sges: Vec<Sge> = match req.data {
            Data::Sges(sges) => sges.to_vec(),
            Data::Inline(Inline::Bytes(bytes)) => vec![inline(bytes)],
            Data::Inline(Inline::List(list)) => list.iter().map(|b| inline(b)).collect(),
            Data::Inline(Inline::Sges(_) | Inline::Bufs(_)) => unreachable!("the data of C programs"),
        };
        if matches!(req.data, Data::Inline(_)) {
            wr.send_flags |= SendFlags::INLINE.bits();
        }
        (wr.sg_list, wr.num_sge) = (sges.as_ptr(), sges.len() as i32);
        self.sges.push(sges);
        let rdma = |r: RemoteAddr| WrUnion { rdma: WrRdma { remote_addr: r.addr, rkey: r.rkey } };
        let atomic = |r: RemoteAddr, compare_add, swap| WrUnion {
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
            Op::FetchAdd(r, add) => wr.wr = atomic(r, add, u64::MAX),
            Op::BindMw(bind) => {
                let (bind_mw, window) = window(&bind);
                wr.tail = WrTail { bind_mw };
                self.windows.push(window);
            }
            Op::Tso(tso) => {
                let (hdr, hdr_sz) = (tso.header.as_ptr(), tso.header.len() as u16);
                wr.tail = WrTail { tso: WrTso { hdr, hdr_sz, mss: tso.mss } };
            }
        }
        match req.to {
            Dest::Peer | Dest::Frame => {}
            Dest::Ud(To { ah, remote_qpn, remote_qkey }) => {
                wr.wr = WrUnion { ud: WrUd { ah: ah.raw(), remote_qpn, remote_qkey } };
            }
            Dest::Xrc(srqn) => wr.xrc_remote_srqn = srqn,
            Dest::Dc(_) => unreachable!("C's lists have no DC address"),
        }
        self.nodes.push(wr);
    }
}

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

/// Calls `post` with receives as C's list: NULL if there are none.
///
/// # Errors
/// The error of the post, and the index of the receive in `bad_wr`.
pub fn as_recv_list(
    recvs: &[(u64, &[Sge])],
    post: impl FnOnce(*const RecvWr) -> Result<(), BadWr<RecvWr>>,
) -> Result<(), Refused> {
    let nodes = recv_nodes(recvs);
    let list = if nodes.is_empty() { ptr::null() } else { nodes.as_ptr() };
    post(list).map_err(|bad| refused(&nodes, &bad))
}

/// The error of a list call, with the index of the node in `bad_wr`.
#[must_use]
pub fn refused<W>(nodes: &[W], bad: &BadWr<W>) -> Refused {
    Refused::new(bad.error, nodes.iter().position(|n| ptr::from_ref(n) == bad.wr))
}
