// SPDX-License-Identifier: MIT OR Apache-2.0
//! The `wr_*` builder.
#![expect(unsafe_code)]
// UNSAFETY: calls the functions of ibv_wr_post(3), under the contract of `Session::new`.

use crate::list::window;
use crate::request::Handle;
use core::ptr;
use uverbs_core::provider::raw::QpEx;
use uverbs_core::provider::{Data, Dest, Inline, Op, PostError, Wr};
use uverbs_core::wr::{IbvDataBuf, ImmData, SendFlags, Sge};

/// A builder of a queue.
#[derive(Debug)]
pub struct Session<'q>(QpEx<'q>);

impl<'q> Session<'q> {
    /// The builder of a queue, with no session open.
    ///
    /// # Safety
    /// - While a session is open, only this thread uses the queue, or the queue is locked.
    /// - Address handles are those of the queue's driver.
    /// - Registered memory that requests name stays valid, as ibv_wr_post(3) requires, and a window is bound only over
    ///   memory that the device may access.
    #[must_use]
    pub unsafe fn new(ex: QpEx<'q>) -> Self {
        Self(ex)
    }

    /// Sets `wr_id` and `wr_flags`.
    pub fn sticky(&mut self, wr_id: u64, flags: SendFlags) {
        (self.0.wr_id, self.0.wr_flags) = (wr_id, flags.bits());
    }

    /// `wr_start`
    pub fn start(&mut self) {
        // SAFETY: only this thread uses the queue (`new`).
        unsafe { self.0.wr_start() }
    }

    /// `wr_complete`
    ///
    /// # Errors
    /// The first error of the session.
    pub fn complete(&mut self) -> Result<(), PostError> {
        // SAFETY: only this thread uses the queue (`new`), so it is the thread that started.
        unsafe { self.0.wr_complete() }
    }

    /// `wr_abort`
    pub fn abort(&mut self) {
        // SAFETY: only this thread uses the queue (`new`), so it is the thread that started.
        unsafe { self.0.wr_abort() }
    }

    /// Adds requests.
    pub fn requests<H: Handle>(&mut self, reqs: &[Wr<'_, H>]) {
        for req in reqs {
            self.request(req);
        }
    }

    /// Adds a request: sticky fields, builder, setters.
    pub fn request<H: Handle>(&mut self, req: &Wr<'_, H>) {
        self.sticky(req.wr_id, req.flags);
        self.op(req.op);
        if req.op.has_data() {
            self.data(req.data);
        }
        self.dest(&req.to);
    }

    /// A builder.
    pub fn op(&mut self, op: Op<'_>) {
        let ex = &mut self.0;
        // SAFETY: the contract of `new` includes that of a bind. Outside of a session of this thread the call does
        // nothing. Pointers are to headers that the request borrows and to locals, which outlive the call.
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
                    let (bind, _window) = window(&bind);
                    ex.wr_bind_mw(bind.mw, bind.rkey, &raw const bind.bind_info);
                }
                Op::Flush(r, a) => ex.wr_flush(r.rkey, r.addr, a.length as usize, a.placement, a.level),
                Op::AtomicWrite(r, data) => ex.wr_atomic_write(r.rkey, r.addr, data.as_ptr()),
                Op::Tso(t) => ex.wr_send_tso(t.header.as_ptr(), t.header.len() as u16, t.mss),
            }
        }
    }

    /// A data setter: of one entry, of a list, of inline bytes, of a list of inline buffers.
    pub fn data(&mut self, data: Data<'_>) {
        let ex = &mut self.0;
        // SAFETY: the contract of `new` requires registered memory. Outside of a session of this thread the call does
        // nothing. Inline bytes and arrays are borrowed for the call.
        #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one call of many is made")]
        unsafe {
            match data {
                Data::Sges([]) => ex.wr_set_sge_list(0, ptr::null()),
                Data::Sges([one]) => ex.wr_set_sge(one.lkey, one.addr, one.length),
                Data::Sges(sges) => ex.wr_set_sge_list(sges.len(), sges.as_ptr()),
                Data::Inline(Inline::Bytes(bytes)) => ex.wr_set_inline_data(bytes.as_ptr(), bytes.len()),
                Data::Inline(Inline::List(list)) => {
                    let bufs: Vec<_> =
                        list.iter().map(|b| IbvDataBuf { addr: b.as_ptr(), length: b.len() }).collect();
                    ex.wr_set_inline_data_list(bufs.len(), bufs.as_ptr());
                }
                Data::Inline(Inline::Sges(_) | Inline::Bufs(_)) => unreachable!("the data of C programs"),
            }
        }
    }

    /// `wr_set_sge_list`, also of one entry.
    pub fn sge_list(&mut self, sges: &[Sge]) {
        // SAFETY: the contract of `new` requires registered memory, and the array is borrowed for the call. Outside of
        // a session of this thread the call does nothing.
        unsafe { self.0.wr_set_sge_list(sges.len(), sges.as_ptr()) }
    }

    /// The setter of a destination, if it has one.
    pub fn dest<H: Handle>(&mut self, dest: &Dest<'_, H>) {
        match dest {
            Dest::Peer | Dest::Frame => {}
            // SAFETY: the contract of `new` requires a handle of this driver; the handle is borrowed for the call.
            // Outside of a session of this thread the call does nothing.
            Dest::Ud(to) => unsafe { self.0.wr_set_ud_addr(to.ah.raw(), to.remote_qpn, to.remote_qkey) },
            // SAFETY: outside of a session of this thread the call does nothing.
            Dest::Xrc(srqn) => unsafe { self.0.wr_set_xrc_srqn(*srqn) },
            Dest::Dc(_) => unreachable!("ibv_wr_post(3) has no DC address"),
        }
    }

    /// `wr_set_ud_addr` with NULL.
    pub fn to_null(&mut self) {
        // SAFETY: NULL is allowed.
        unsafe { self.0.wr_set_ud_addr(ptr::null(), 1, 1) }
    }
}
