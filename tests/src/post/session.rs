// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builder.
#![expect(unsafe_code)]
// UNSAFETY: posts work requests, which takes a promise about the memory that they name; see the module above.

use super::list::List;
use super::lock::Lock;
use super::req::{Data, Op, Req, To, has_data};
use super::typed::Typed;
use core::ptr;
use uverbs::provider::raw::QpEx;
use uverbs::qp::SendQueue;
use uverbs::wr::{IbvDataBuf, WrBindMw};
use uverbs::{Driver, ImmData, PostError, SendFlags};

pub(super) fn post_builder<D: Driver, T: Typed, L: Lock>(
    sq: &SendQueue<D, T, L>,
    reqs: &[Req<'_, D>],
) -> Result<(), PostError> {
    session(sq, |wr| {
        for req in reqs {
            wr.request(req);
        }
    })
}

/// A builder session, safe for the reasons in `super`.
pub struct Session<'q>(QpEx<'q>);

impl core::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(f)
    }
}

/// Opens a session, builds, and completes it.
pub fn session<D: Driver, T: Typed, L: Lock>(
    sq: &SendQueue<D, T, L>,
    build: impl FnOnce(&mut Session<'_>),
) -> Result<(), PostError> {
    let mut session = Session::of(sq);
    session.start();
    build(&mut session);
    session.complete()
}

impl<'q> Session<'q> {
    /// The builder face of a queue, with no session open.
    ///
    /// # Panics
    /// If the QP was created without `send_ops_flags`.
    pub fn of<D: Driver, T: Typed, L: Lock>(sq: &'q SendQueue<D, T, L>) -> Self {
        Self(sq.qp_ex().expect("the QP has wr_* builders"))
    }

    /// Sets the sticky fields.
    pub fn sticky(&mut self, wr_id: u64, flags: SendFlags) {
        self.0.wr_id = wr_id;
        self.0.wr_flags = flags.bits();
    }

    /// `wr_start`
    pub fn start(&mut self) {
        // SAFETY: one thread uses the queue.
        unsafe { self.0.wr_start() }
    }

    /// `wr_complete`
    pub fn complete(&mut self) -> Result<(), PostError> {
        // SAFETY: the thread that started.
        unsafe { self.0.wr_complete() }
    }

    /// `wr_abort`
    pub fn abort(&mut self) {
        // SAFETY: the thread that started.
        unsafe { self.0.wr_abort() }
    }

    /// Everything of one request: sticky fields, builder, setters.
    pub fn request<D: Driver>(&mut self, req: &Req<'_, D>) {
        self.sticky(req.wr_id, req.flags);
        self.op(req.op);
        if has_data(req.op) {
            self.data(req.data);
        }
        if let Some(to) = &req.to {
            self.to(to);
        }
        if let Some(srqn) = req.srqn {
            self.srqn(srqn);
        }
    }

    /// A builder.
    pub fn op(&mut self, op: Op) {
        let ex = &mut self.0;
        // SAFETY: inside a session of this thread (or the call does nothing); pointers are to locals that outlive the
        // call.
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call of many is made")]
        unsafe {
            match op {
                Op::Send => ex.wr_send(),
                Op::SendImm(imm) => ex.wr_send_imm(ImmData::new(imm)),
                Op::SendInv(rkey) => ex.wr_send_inv(rkey),
                Op::Write(r) => ex.wr_rdma_write(r.rkey, r.addr),
                Op::WriteImm(r, imm) => ex.wr_rdma_write_imm(r.rkey, r.addr, ImmData::new(imm)),
                Op::Read(r) => ex.wr_rdma_read(r.rkey, r.addr),
                Op::CmpSwp(r, compare, swap) => ex.wr_atomic_cmp_swp(r.rkey, r.addr, compare, swap),
                Op::FetchAdd(r, add) => ex.wr_atomic_fetch_add(r.rkey, r.addr, add),
                Op::LocalInv(rkey) => ex.wr_local_inv(rkey),
                Op::BindMw(bind) => {
                    let mut list = List::default();
                    let WrBindMw { mw, rkey, bind_info } = list.window(&bind);
                    ex.wr_bind_mw(mw, rkey, &raw const bind_info);
                }
                Op::Flush(r, a) => ex.wr_flush(r.rkey, r.addr, a.length as usize, a.placement, a.level),
                Op::AtomicWrite(r, data) => ex.wr_atomic_write(r.rkey, r.addr, data.as_ptr()),
            }
        }
    }

    /// A data setter: of one, of a list, inline, inline list.
    pub fn data(&mut self, data: Data<'_>) {
        let ex = &mut self.0;
        // SAFETY: inside a session of this thread (or the call does nothing); arrays are borrowed for the call, memory
        // as described in `super`.
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call of many is made")]
        unsafe {
            match data {
                Data::None => ex.wr_set_sge_list(0, ptr::null()),
                Data::Sges([one]) => ex.wr_set_sge(one.lkey, one.addr, one.length),
                Data::Sges(sges) => ex.wr_set_sge_list(sges.len(), sges.as_ptr()),
                Data::Inline(bytes) => ex.wr_set_inline_data(bytes.as_ptr(), bytes.len()),
                Data::InlineList(list) => {
                    let bufs: Vec<_> =
                        list.iter().map(|b| IbvDataBuf { addr: b.as_ptr(), length: b.len() }).collect();
                    ex.wr_set_inline_data_list(bufs.len(), bufs.as_ptr());
                }
            }
        }
    }

    /// `wr_set_ud_addr`
    pub fn to<D: Driver>(&mut self, to: &To<'_, D>) {
        // SAFETY: a live handle of this driver.
        unsafe { self.0.wr_set_ud_addr(to.ah.as_raw(), to.qpn, to.qkey) }
    }

    /// `wr_set_xrc_srqn`
    pub fn srqn(&mut self, srqn: u32) {
        // SAFETY: inside a session of this thread, or the call does nothing.
        unsafe { self.0.wr_set_xrc_srqn(srqn) }
    }

    /// `wr_set_ud_addr` with NULL.
    pub fn to_null(&mut self) {
        // SAFETY: NULL is allowed.
        unsafe { self.0.wr_set_ud_addr(ptr::null(), 1, 1) }
    }
}
