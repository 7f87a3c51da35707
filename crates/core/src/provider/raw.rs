// SPDX-License-Identifier: MIT OR Apache-2.0
//! The raw face: C-shaped calls on a shared reference, for any locking, and the `wr_*` vtable.
//!
//! The C ABI calls these; Rust programs that need lists or a QP whose type is known only at run time may, too. One set
//! of function pointers exists per {driver, locking}, chosen at creation, so no call branches on either.
#![expect(unsafe_code)]
// UNSAFETY: C's contracts (lists, pointers, thread domains) can't be expressed as borrows.

use super::error::{BadWr, PollError, PostError};
use super::inline::{Inline, InlineBufs};
use super::op::{FlushArgs, MwBind, Op, TsoArgs};
use super::recv::RecvQueue;
use super::send::WrBuilder;
use super::wire::WireRemote;
use super::wr::Head;
use super::{CompletionQueue, SendQueue};
use crate::sync::{Locked, Locking};
use crate::wc::WorkCompletion;
use crate::wr::{
    IbvAh, IbvDataBuf, IbvMr, IbvMw, IbvMwBindInfo, ImmData, RawAh, RecvWr, SendFlags, SendWr, Sge,
};
use core::hint::cold_path;
use core::marker::PhantomData;

/// `ibv_post_send` on a queue of any locking.
///
/// # Errors
/// The first work request that was not posted, with the reason; those before it were.
///
/// # Safety
/// As [`SendQueue::post_send`]; and with an [`Exclusive`](crate::sync::Exclusive) queue no other thread uses it during
/// the call.
#[inline]
pub unsafe fn post_send<Q: SendQueue, L: Locking>(
    queue: &Locked<Q, L>,
    list: *const SendWr,
) -> Result<(), BadWr<SendWr>> {
    // SAFETY: this function leaves the queue below. No other thread uses a queue without a lock (the contract of this
    // function).
    let q = match unsafe { queue.enter() } {
        Ok(q) => q,
        Err(reentered) => return Err(BadWr { error: reentered.into(), wr: list }),
    };
    // SAFETY: `list` fulfils the contract of `SendQueue::post_send` (the contract of this function).
    let result = unsafe { q.post_send(list) };
    // SAFETY: entered above, and `q` is not used any more.
    unsafe { queue.leave() };
    result
}

/// `ibv_post_recv` and `ibv_post_srq_recv` on a queue of any locking.
///
/// # Errors
/// The first work request that was not posted, with the reason; those before it were.
///
/// # Safety
/// As [`RecvQueue::post_recv`]; and with an exclusive queue no other thread uses it during the call.
#[inline]
pub unsafe fn post_recv<Q: RecvQueue, L: Locking>(
    queue: &Locked<Q, L>,
    list: *const RecvWr,
) -> Result<(), BadWr<RecvWr>> {
    // SAFETY: this function leaves the queue below. No other thread uses a queue without a lock (the contract of this
    // function).
    let q = match unsafe { queue.enter() } {
        Ok(q) => q,
        Err(reentered) => return Err(BadWr { error: reentered.into(), wr: list }),
    };
    // SAFETY: `list` fulfils the contract of `RecvQueue::post_recv` (the contract of this function).
    let result = unsafe { q.post_recv(list) };
    // SAFETY: entered above, and `q` is not used any more.
    unsafe { queue.leave() };
    result
}

/// `ibv_poll_cq` on a queue of any locking.
///
/// # Errors
/// [`PollError::SessionOpen`] if this thread polls the queue already; otherwise those of the queue.
///
/// # Safety
/// With an exclusive queue no other thread uses it during the call.
#[inline]
pub unsafe fn poll_cq<Q: CompletionQueue, L: Locking>(
    queue: &Locked<Q, L>,
    wc: &mut [WorkCompletion],
) -> Result<usize, PollError> {
    // SAFETY: this function leaves the queue below. No other thread uses a queue without a lock (the contract of this
    // function).
    let q = unsafe { queue.enter() }?;
    let result = q.poll_cq(wc);
    // SAFETY: entered above, and `q` is not used any more.
    unsafe { queue.leave() };
    result
}

/// A slice from a C pointer and count. `None` if the pointer is NULL or not aligned and the count is not 0, or if the slice
/// would exceed `isize::MAX` bytes.
///
/// # Safety
/// `ptr` is NULL or points to `len` valid values that outlive `'a`.
#[must_use]
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn slice_from_c<'a, T>(ptr: *const T, len: usize) -> Option<&'a [T]> {
    // One compare detects both a count of 0 and one that is too large.
    if ptr.is_null()
        || !ptr.is_aligned()
        || len.wrapping_sub(1) >= isize::MAX as usize / size_of::<T>().max(1)
    {
        cold_path();
        return (len == 0).then_some(&[]);
    }
    // SAFETY: `ptr` is aligned and not NULL, so it points to `len` valid values (the contract of this function), whose size is
    // at most `isize::MAX` (checked above).
    Some(unsafe { core::slice::from_raw_parts(ptr, len) })
}

/// The only entry of a C list, which need not be aligned; `None` if the pointer is NULL.
///
/// # Safety
/// `ptr` is NULL or points to a valid entry.
#[must_use]
#[cfg_attr(not(debug_assertions), inline(always))]
pub unsafe fn entry_from_c(ptr: *const Sge) -> Option<Sge> {
    // SAFETY: `ptr` is not NULL, so it points to a valid entry (the contract of this function).
    (!ptr.is_null()).then(|| unsafe { ptr.read_unaligned() })
}

/// Entries that [`Room`] has; no queue has a WR of more.
const ROOM: usize = 64;

/// Room for a copy of a C list that is not aligned: C programs have such lists in packed structs, and processors read them.
#[derive(Debug)]
pub struct Room(core::mem::MaybeUninit<[Sge; ROOM]>);

impl Room {
    /// Room that is not initialised.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub const fn new() -> Self {
        Self(core::mem::MaybeUninit::uninit())
    }

    /// As [`slice_from_c`], for a list that need not be aligned. It has at most 64 entries if it is not.
    ///
    /// # Safety
    /// `ptr` is NULL or points to `len` valid entries that outlive the result.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn entries(&mut self, ptr: *const Sge, len: usize) -> Option<&[Sge]> {
        // SAFETY: the contract of this function.
        let aligned = unsafe { slice_from_c(ptr, len) };
        if aligned.is_some() {
            return aligned;
        }
        cold_path();
        if ptr.is_null() || len > ROOM {
            return None;
        }
        let start = self.0.as_mut_ptr().cast::<Sge>();
        // SAFETY: `ptr` points to `len` valid entries (the contract of this function), which are copied as bytes; the room
        // has at least as many.
        unsafe { ptr.cast::<u8>().copy_to_nonoverlapping(start.cast(), len * size_of::<Sge>()) };
        // SAFETY: the first `len` entries of the room, which is aligned, were written.
        Some(unsafe { core::slice::from_raw_parts(start, len) })
    }
}

impl Default for Room {
    fn default() -> Self {
        Self::new()
    }
}

/// Resolves a window bind's pointers.
///
/// # Errors
/// [`PostError::InvalidArgument`] if `mw` is NULL, or `info.mr` is and the range is not empty.
///
/// # Safety
/// `mw` and `info.mr` are NULL or valid.
#[inline]
pub unsafe fn resolve_bind(mw: *const IbvMw, rkey: u32, info: &IbvMwBindInfo) -> Result<MwBind, PostError> {
    // SAFETY: `mw` is NULL or valid (the contract of this function).
    let mw: Option<&IbvMw> = unsafe { mw.as_ref() };
    // SAFETY: `info.mr` is NULL or valid (the contract of this function).
    let mr: Option<&IbvMr> = unsafe { info.mr.as_ref() };
    let Some(mw) = mw else { return Err(PostError::InvalidArgument) };
    // Unbinding names no region (ibv_bind_mw(3)); libibverbs lets `mr` be NULL only then.
    let mr_lkey = match mr {
        Some(mr) => mr.lkey,
        None if info.length == 0 => 0,
        None => return Err(PostError::InvalidArgument),
    };
    Ok(MwBind {
        mw_rkey: mw.rkey,
        mw_type: mw.mw_type,
        rkey,
        mr_lkey,
        addr: info.addr,
        length: info.length,
        access: info.mw_access_flags,
    })
}

macro_rules! wr_vtable {
    (
        builders {
            $($(#[$meta:meta])* $name:ident ( $($arg:ident : $ty:ty),* ) |$q:ident, $wr:ident| $body:expr;)*
        }
        setters {
            $($(#[$smeta:meta])* $setter:ident ( $($sarg:ident : $sty:ty),* ) |$sq:ident| $sbody:expr;)*
        }
    ) => {
        /// The functions of ibv_wr_post(3) for one {driver, locking}.
        ///
        /// The first argument points to a `Locked` queue of the type for which [`WrVtable::of`] created the table.
        #[derive(Debug, Clone, Copy)]
        #[expect(missing_docs, reason = "named after the functions of ibv_wr_post(3)")]
        pub struct WrVtable {
            pub wr_start: unsafe fn(*const ()),
            $(pub $name: unsafe fn(*const (), Head, $($ty),*),)*
            $(pub $setter: unsafe fn(*const (), $($sty),*),)*
            pub wr_complete: unsafe fn(*const ()) -> Result<(), PostError>,
            pub wr_abort: unsafe fn(*const ()),
        }

        struct Entry<Q, L>(PhantomData<(Q, L)>);

        impl<Q: WrBuilder + 'static, L: Locking> Entry<Q, L> {
            const VTABLE: WrVtable = WrVtable {
                wr_start: Self::wr_start,
                $($name: Self::$name,)*
                $($setter: Self::$setter,)*
                wr_complete: Self::wr_complete,
                wr_abort: Self::wr_abort,
            };

            $(
                #[expect(clippy::too_many_arguments, reason = "C's signature")]
                #[allow(unfulfilled_lint_expectations, clippy::allow_attributes, reason = "only some have that many")]
                unsafe fn $name(this: *const (), $wr: Head, $($arg: $ty),*) {
                    // SAFETY: the vtable's contract: `this` is a queue of the type for which it was created.
                    let locked = unsafe { &*this.cast::<Locked<Q, L>>() };
                    // SAFETY: the call is inside the session that `wr_start` entered, and no other thread calls at the
                    // same time (the contract of the builders). Outside a session the queue refuses the call, also a
                    // queue without a lock.
                    let $q = unsafe { locked.entered() };
                    $body
                }
            )*

            $(
                unsafe fn $setter(this: *const (), $($sarg: $sty),*) {
                    // SAFETY: the vtable's contract: `this` is a queue of the type for which it was created.
                    let locked = unsafe { &*this.cast::<Locked<Q, L>>() };
                    // SAFETY: the call is inside the session that `wr_start` entered, and no other thread calls at the
                    // same time (the contract of the setters). Outside a session the queue refuses the call, also a
                    // queue without a lock.
                    let $sq = unsafe { locked.entered() };
                    $sbody
                }
            )*
        }

        /// A QP's builder face, as C's `struct ibv_qp_ex`: sticky `wr_id` and `wr_flags`, and the functions.
        impl QpEx<'_> {
            $(
                $(#[$meta])*
                ///
                /// # Safety
                /// Called inside a session, by one thread at a time, with valid pointers and, where a window is bound,
                /// with the contract of [`SendBatch::push`](super::SendBatch::push) fulfilled.
                #[cfg_attr(not(debug_assertions), inline(always))]
                pub unsafe fn $name(&mut self, $($arg: $ty),*) {
                    let wr = Head { wr_id: self.wr_id, flags: SendFlags::from_bits_retain(self.wr_flags) };
                    // SAFETY: `self.queue` is the queue of this vtable (`new`); the session and the arguments fulfil
                    // the contract of this function, which is that of the vtable's entry.
                    unsafe { (self.vtable.$name)(self.queue, wr, $($arg),*) }
                }
            )*
            $(
                $(#[$smeta])*
                ///
                /// # Safety
                /// Called inside a session, by one thread at a time, with valid pointers and, where memory is named by
                /// scatter/gather entries, with the contract of [`SendBatch::push`](super::SendBatch::push) fulfilled.
                #[cfg_attr(not(debug_assertions), inline(always))]
                pub unsafe fn $setter(&mut self, $($sarg: $sty),*) {
                    // SAFETY: `self.queue` is the queue of this vtable (`new`); the session and the arguments fulfil
                    // the contract of this function, which is that of the vtable's entry.
                    unsafe { (self.vtable.$setter)(self.queue, $($sarg),*) }
                }
            )*
        }
    };
}

/// A remote address in the queue's own form.
#[cfg_attr(not(debug_assertions), inline(always))]
fn remote<Q: SendQueue>(addr: u64, rkey: u32) -> Q::Remote {
    Q::Remote::new(addr, rkey)
}

/// A builder other than that of a bind.
#[cfg_attr(not(debug_assertions), inline(always))]
fn begin<Q: WrBuilder>(q: &mut Q, wr: Head, op: Op<'_, Q::Remote>) {
    if matches!(op, Op::BindMw(_)) {
        return q.wr_latch(PostError::IllegalOpcode);
    }
    // SAFETY: not a bind, so there is no requirement.
    unsafe { q.wr_begin(wr, op) };
}

wr_vtable! {
    builders {
        /// `ibv_wr_send`
        wr_send() |q, wr| begin(q, wr, Op::Send);
        /// `ibv_wr_send_imm`
        wr_send_imm(imm: ImmData) |q, wr| begin(q, wr, Op::SendImm(imm.get()));
        /// `ibv_wr_send_inv`
        wr_send_inv(invalidate_rkey: u32) |q, wr| begin(q, wr, Op::SendInv(invalidate_rkey));
        /// `ibv_wr_rdma_write`
        wr_rdma_write(rkey: u32, remote_addr: u64) |q, wr| begin(q, wr, Op::Write(remote::<Q>(remote_addr, rkey)));
        /// `ibv_wr_rdma_write_imm`
        wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm: ImmData)
            |q, wr| begin(q, wr, Op::WriteImm(remote::<Q>(remote_addr, rkey), imm.get()));
        /// `ibv_wr_rdma_read`
        wr_rdma_read(rkey: u32, remote_addr: u64) |q, wr| begin(q, wr, Op::Read(remote::<Q>(remote_addr, rkey)));
        /// `ibv_wr_atomic_cmp_swp`
        wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64)
            |q, wr| begin(q, wr, Op::CmpSwp(remote::<Q>(remote_addr, rkey), compare, swap));
        /// `ibv_wr_atomic_fetch_add`
        wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64)
            |q, wr| begin(q, wr, Op::FetchAdd(remote::<Q>(remote_addr, rkey), add));
        /// `ibv_wr_local_inv`
        wr_local_inv(invalidate_rkey: u32) |q, wr| begin(q, wr, Op::LocalInv(invalidate_rkey));
        /// `ibv_wr_bind_mw`
        wr_bind_mw(mw: *const IbvMw, rkey: u32, bind_info: *const IbvMwBindInfo) |q, wr| {
            // SAFETY: `bind_info` is NULL or valid (the contract of the builders: valid pointers).
            let bind = match unsafe { bind_info.as_ref() } {
                // SAFETY: the window and the region are NULL or valid (the contract of the builders: valid pointers).
                Some(info) => unsafe { resolve_bind(mw, rkey, info) },
                None => Err(PostError::InvalidArgument),
            };
            match bind {
                // SAFETY: the bind fulfils the contract of `SendBatch::push` (the contract of the builders).
                Ok(bind) => unsafe { q.wr_begin(wr, Op::BindMw(bind)) },
                Err(e) => q.wr_latch(e),
            }
        };
        /// `ibv_wr_send_tso`
        wr_send_tso(hdr: *const u8, hdr_sz: u16, mss: u16) |q, wr| {
            // SAFETY: `hdr` is NULL or points to `hdr_sz` readable bytes (the contract of the builders: valid
            // pointers).
            match unsafe { slice_from_c(hdr, usize::from(hdr_sz)) } {
                Some(header) => begin(q, wr, Op::Tso(TsoArgs { header, mss })),
                None => q.wr_latch(PostError::InvalidArgument),
            }
        };
        /// `ibv_wr_flush`
        wr_flush(rkey: u32, remote_addr: u64, length: usize, placement: u8, level: u8) |q, wr| {
            match u32::try_from(length) {
                Ok(length) => {
                    let args = FlushArgs { length, placement, level };
                    begin(q, wr, Op::Flush(remote::<Q>(remote_addr, rkey), args));
                }
                Err(_) => q.wr_latch(PostError::InvalidLength),
            }
        };
        /// `ibv_wr_atomic_write`; `data` points to 8 bytes.
        wr_atomic_write(rkey: u32, remote_addr: u64, data: *const u8) |q, wr| {
            if data.is_null() {
                return q.wr_latch(PostError::InvalidArgument);
            }
            // SAFETY: `data` is not NULL, so 8 bytes are readable (the contract of the builders: valid pointers); the
            // read needs no alignment.
            let data = unsafe { data.cast::<[u8; 8]>().read_unaligned() };
            begin(q, wr, Op::AtomicWrite(remote::<Q>(remote_addr, rkey), data));
        };
    }
    setters {
        /// `ibv_wr_set_ud_addr`; `ah` was created by this QP's driver.
        wr_set_ud_addr(ah: *const IbvAh, remote_qpn: u32, remote_qkey: u32) |q| {
            // SAFETY: `ah` is NULL or the `RawAh` of this driver (the contract of the setters: valid pointers).
            match unsafe { ah.cast::<RawAh<Q::Ah>>().as_ref() } {
                Some(ah) => q.wr_set_ud_addr(&ah.driver, remote_qpn, remote_qkey),
                None => q.wr_latch(PostError::InvalidArgument),
            }
        };
        /// `ibv_wr_set_xrc_srqn`
        wr_set_xrc_srqn(remote_srqn: u32) |q| q.wr_set_xrc_srqn(remote_srqn);
        /// `ibv_wr_set_inline_data`
        wr_set_inline_data(addr: *const u8, length: usize) |q| {
            // SAFETY: `addr` is NULL or points to `length` readable bytes (the contract of the setters: valid
            // pointers).
            match unsafe { slice_from_c(addr, length) } {
                Some(data) => q.wr_set_inline(Inline::Bytes(data)),
                None => q.wr_latch(PostError::InvalidArgument),
            }
        };
        /// `ibv_wr_set_inline_data_list`
        wr_set_inline_data_list(num_buf: usize, buf_list: *const IbvDataBuf) |q| {
            // SAFETY: `buf_list` is NULL or points to `num_buf` valid entries (the contract of the setters: valid
            // pointers).
            let bufs = unsafe { slice_from_c(buf_list, num_buf) };
            match bufs.filter(|bufs| !bufs.iter().any(|b| b.addr.is_null() && b.length != 0)) {
                // SAFETY: every buffer of non-zero length is readable (the contract of the setters: valid pointers),
                // and none of them is NULL.
                Some(bufs) => q.wr_set_inline(Inline::Bufs(unsafe { InlineBufs::new(bufs) })),
                None => q.wr_latch(PostError::InvalidArgument),
            }
        };
        /// `ibv_wr_set_sge`
        wr_set_sge(lkey: u32, addr: u64, length: u32) |q| {
            // SAFETY: the entry's memory fulfils the contract of `SendBatch::push` (the contract of the setters).
            unsafe { q.wr_set_sge(Sge { addr, length, lkey }) };
        };
        /// `ibv_wr_set_sge_list`
        wr_set_sge_list(num_sge: usize, sg_list: *const Sge) |q| {
            let mut room = Room::new();
            // SAFETY: `sg_list` is NULL or points to `num_sge` valid entries (the contract of the setters: valid
            // pointers).
            match unsafe { room.entries(sg_list, num_sge) } {
                // SAFETY: the entries' memory fulfils the contract of `SendBatch::push` (the contract of the setters).
                Some(sges) => unsafe { q.wr_set_sges(sges) },
                None => q.wr_latch(PostError::InvalidArgument),
            }
        };
    }
}

impl<Q: WrBuilder + 'static, L: Locking> Entry<Q, L> {
    unsafe fn wr_start(this: *const ()) {
        // SAFETY: the vtable's contract: `this` is a queue of the type for which it was created.
        let locked = unsafe { &*this.cast::<Locked<Q, L>>() };
        // SAFETY: `wr_complete` or `wr_abort` leaves the queue. No other thread uses a queue without a lock (the
        // contract of `wr_start`).
        match unsafe { locked.enter() } {
            Ok(q) => q.wr_start(),
            // SAFETY: this thread has entered already, and uses no reference from then.
            Err(_) => unsafe { locked.entered() }.wr_latch(PostError::SessionOpen),
        }
    }

    unsafe fn wr_complete(this: *const ()) -> Result<(), PostError> {
        // SAFETY: the vtable's contract: `this` is a queue of the type for which it was created.
        let locked = unsafe { &*this.cast::<Locked<Q, L>>() };
        if !locked.is_entered() {
            return Err(PostError::NoSession);
        }
        // SAFETY: the call is inside the session that `wr_start` entered, and no other thread calls at the same time
        // (the contract of `wr_complete`).
        let result = unsafe { locked.entered() }.wr_complete();
        // SAFETY: entered by `wr_start`; no reference is used any more.
        unsafe { locked.leave() };
        result
    }

    unsafe fn wr_abort(this: *const ()) {
        // SAFETY: the vtable's contract: `this` is a queue of the type for which it was created.
        let locked = unsafe { &*this.cast::<Locked<Q, L>>() };
        if !locked.is_entered() {
            return;
        }
        // SAFETY: the call is inside the session that `wr_start` entered, and no other thread calls at the same time
        // (the contract of `wr_abort`).
        unsafe { locked.entered() }.wr_abort();
        // SAFETY: entered by `wr_start`; no reference is used any more.
        unsafe { locked.leave() };
    }
}

impl WrVtable {
    /// The functions for a queue type and locking.
    #[must_use]
    pub fn of<Q: WrBuilder + 'static, L: Locking>() -> &'static Self {
        const { &Entry::<Q, L>::VTABLE }
    }
}

/// A QP's builder face, as C's `struct ibv_qp_ex`.
///
/// `wr_id` and `wr_flags` are sticky and sampled by each builder call.
#[derive(Debug)]
pub struct QpEx<'q> {
    /// Id of the next WR.
    pub wr_id: u64,
    /// [`SendFlags`] of the next WR, raw.
    pub wr_flags: u32,
    queue: *const (),
    vtable: &'static WrVtable,
    _queue: PhantomData<&'q ()>,
}

// SAFETY: the queue is `Sync` (`Locked`); C moves `ibv_qp_ex` between threads, under the lock or by a thread domain.
unsafe impl Send for QpEx<'_> {}

impl<'q> QpEx<'q> {
    /// The builder face of `queue`.
    #[must_use]
    pub fn new<Q: WrBuilder + 'static, L: Locking>(queue: &'q Locked<Q, L>) -> Self {
        Self {
            wr_id: 0,
            wr_flags: 0,
            queue: core::ptr::from_ref(queue).cast(),
            vtable: WrVtable::of::<Q, L>(),
            _queue: PhantomData,
        }
    }

    /// `ibv_wr_start`
    ///
    /// # Safety
    /// With an exclusive queue no other thread uses it until `wr_complete` or `wr_abort`.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn wr_start(&mut self) {
        // SAFETY: `self.queue` is the queue of this vtable (`new`). No other thread uses a queue without a lock (the
        // contract of this function).
        unsafe { (self.vtable.wr_start)(self.queue) }
    }

    /// `ibv_wr_complete`
    ///
    /// # Errors
    /// The first error of the session; nothing was posted then, except after [`PostError::Doorbell`].
    ///
    /// # Safety
    /// Called inside a session, by the thread that called `wr_start`, or by one that it handed the session to.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn wr_complete(&mut self) -> Result<(), PostError> {
        // SAFETY: `self.queue` is the queue of this vtable (`new`), and this thread has the session (the contract of
        // this function).
        unsafe { (self.vtable.wr_complete)(self.queue) }
    }

    /// `ibv_wr_abort`
    ///
    /// # Safety
    /// Called inside a session, by the thread that called `wr_start`, or by one that it handed the session to.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub unsafe fn wr_abort(&mut self) {
        // SAFETY: `self.queue` is the queue of this vtable (`new`), and this thread has the session (the contract of
        // this function).
        unsafe { (self.vtable.wr_abort)(self.queue) }
    }
}
