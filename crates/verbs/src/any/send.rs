// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue of each driver: work requests in mlx5's format, converted for rxe and siw.
#![expect(unsafe_code)]
// UNSAFETY: passes the caller's guarantee about memory on to the driver's queue, and follows C's lists.

use super::recv::{EMPTY, MAX_SGE, to_plain};
use super::{Any, Mlx5, Rxe, Siw, WqeRemote, WqeSge};
use core::ptr;
use uverbs_core::provider::Driver;
use uverbs_core::provider::{
    BadWr, Data, Head, Inline, Op, PostError, RemoteAddr, SendBatch, SendQueue, WireRemote as _, Wr,
    WrBuilder,
};
use uverbs_core::wr::{IbvAh, RawAh, SendWr, Sge};

/// The driver's data of an address handle.
pub(super) type AnyAh = Any<<Mlx5 as Driver>::Ah, <Rxe as Driver>::Ah, <Siw as Driver>::Ah>;

type Queue = Any<<Mlx5 as Driver>::SendQueue, <Rxe as Driver>::SendQueue, <Siw as Driver>::SendQueue>;
/// An open batch of a driver's queue.
type BatchOf<'q, D> = <<D as Driver>::SendQueue as SendQueue>::Batch<'q>;
type Batch<'q> = Any<BatchOf<'q, Mlx5>, BatchOf<'q, Rxe>, BatchOf<'q, Siw>>;

/// The send queue.
#[derive(Debug)]
pub struct AnySendQueue {
    queue: Queue,
    /// Whether each WR of a list has an address handle.
    is_datagram: bool,
}

impl AnySendQueue {
    pub(super) fn new(queue: Queue, is_datagram: bool) -> Self {
        Self { queue, is_datagram }
    }
}

/// An open batch of an [`AnySendQueue`].
pub struct AnySendBatch<'q> {
    batch: Batch<'q>,
    /// An address handle of another driver was used.
    is_foreign: bool,
}

impl core::fmt::Debug for AnySendBatch<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AnySendBatch").finish_non_exhaustive()
    }
}

/// A work request of this type.
type AnyWr<'a> = Wr<'a, AnyAh, WqeSge, WqeRemote>;

/// The destination, if its address handle, if it has one, is that of a driver.
macro_rules! dest_of {
    ($driver:ident, $to:expr) => {
        $to.try_map(|ah| match ah {
            Any::$driver(ah) => Some(ah),
            _ => None,
        })
    };
}

/// A remote address in the kernel's format, that of rxe and siw.
#[cfg_attr(not(debug_assertions), inline(always))]
fn plain(remote: WqeRemote) -> RemoteAddr {
    RemoteAddr { addr: remote.addr(), rkey: remote.rkey() }
}

/// Passes a work request to a driver's function: to that of mlx5 as it is, to the others with entries and addresses in the
/// kernel's format. `$foreign` if its address handle is that of another driver.
macro_rules! pass {
    ($any:expr, $wr:ident, |$to:ident, $own:ident| $post:expr, $foreign:expr) => {{
        let AnyWr { wr_id, flags, op, data, .. } = *$wr;
        match $any {
            Any::Mlx5($to) if let Some(to) = dest_of!(Mlx5, $wr.to) => {
                let $own = &Wr { wr_id, flags, to, op, data };
                $post
            }
            Any::Rxe($to) if let Some(to) = dest_of!(Rxe, $wr.to) => {
                let sges = &mut { EMPTY };
                let $own = &Wr { wr_id, flags, to, op: op.map(plain), data: plain_data(data, sges) };
                $post
            }
            Any::Siw($to) if let Some(to) = dest_of!(Siw, $wr.to) => {
                let sges = &mut { EMPTY };
                let $own = &Wr { wr_id, flags, to, op: op.map(plain), data: plain_data(data, sges) };
                $post
            }
            _ => $foreign,
        }
    }};
}

/// Data with the entries in the kernel's format, in `room`.
#[cfg_attr(not(debug_assertions), inline(always))]
fn plain_data<'a>(data: Data<'a, WqeSge>, room: &'a mut [Sge; MAX_SGE]) -> Data<'a> {
    match data {
        Data::Sges(sges) => Data::Sges(to_plain(sges, room)),
        Data::Inline(data) => Data::Inline(data),
    }
}

impl SendBatch for AnySendBatch<'_> {
    type Sge = WqeSge;
    type Remote = WqeRemote;
    type Ah = AnyAh;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr: &AnyWr<'_>) {
        let Self { batch, is_foreign } = self;
        // SAFETY: the WR fulfils the contract of this function, which is that of the driver's.
        pass!(batch, wr, |batch, wr| unsafe { batch.push(wr) }, *is_foreign = true);
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        if self.is_foreign {
            return Err(PostError::InvalidArgument);
        }
        match self.batch {
            Any::Mlx5(batch) => batch.complete(),
            Any::Rxe(batch) => batch.complete(),
            Any::Siw(batch) => batch.complete(),
        }
    }
}

impl SendQueue for AnySendQueue {
    type Sge = WqeSge;
    type Remote = WqeRemote;
    type Ah = AnyAh;
    type Batch<'q> = AnySendBatch<'q>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> AnySendBatch<'_> {
        let batch = match &mut self.queue {
            Any::Mlx5(queue) => Any::Mlx5(queue.batch()),
            Any::Rxe(queue) => Any::Rxe(queue.batch()),
            Any::Siw(queue) => Any::Siw(queue.batch()),
        };
        AnySendBatch { batch, is_foreign: false }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr: &AnyWr<'_>) -> Result<(), PostError> {
        let foreign = Err(PostError::InvalidArgument);
        // SAFETY: the WR fulfils the contract of this function, which is that of the driver's.
        pass!(&mut self.queue, wr, |queue, wr| unsafe { queue.post(wr) }, foreign)
    }

    /// A list of datagrams is posted one by one, because its address handles have this type's data, not the driver's.
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        if !self.is_datagram || list.is_null() {
            // SAFETY: `list` fulfils the contract of this function, which is that of the driver's; it names no address
            // handle.
            return unsafe { post_list(&mut self.queue, list) };
        }
        let mut at = list;
        // SAFETY: `at` is NULL or a node of the list, which is valid during the call (the contract of this function).
        while let Some(wr) = unsafe { at.as_ref() } {
            // SAFETY: the union consists of integers and pointers, and a datagram uses this field.
            let ud = unsafe { wr.wr.ud };
            // SAFETY: the handle is NULL or was created by this driver (the contract of this function), so it has this
            // type.
            let ah = unsafe { ud.ah.cast::<RawAh<AnyAh>>().as_ref() };
            let base = IbvAh { context: ptr::null_mut(), pd: ptr::null_mut(), handle: 0 };
            let mut one = SendWr { next: ptr::null(), ..*wr };
            let posted = match (&self.queue, ah.map(|ah| ah.driver)) {
                (_, None) => {
                    // SAFETY: a list of one node without a handle; its entries fulfil the contract of this function.
                    unsafe { post_list(&mut self.queue, &raw const one) }
                }
                (Any::Mlx5(_), Some(Any::Mlx5(driver))) => {
                    let own = RawAh { base, driver };
                    one.wr.ud.ah = (&raw const own).cast();
                    // SAFETY: a list of one node; the handle lives during the call, after which it is not used; its
                    // entries fulfil the contract of this function.
                    unsafe { post_list(&mut self.queue, &raw const one) }
                }
                (Any::Rxe(_), Some(Any::Rxe(driver))) => {
                    let own = RawAh { base, driver };
                    one.wr.ud.ah = (&raw const own).cast();
                    // SAFETY: as above.
                    unsafe { post_list(&mut self.queue, &raw const one) }
                }
                _ => Err(BadWr { error: PostError::InvalidArgument, wr: at }),
            };
            if let Err(bad) = posted {
                let node = if bad.wr.is_null() { ptr::null() } else { at };
                return Err(BadWr { error: bad.error, wr: node });
            }
            at = wr.next;
        }
        Ok(())
    }
}

/// # Safety
/// As [`SendQueue::post_send`], with address handles of the queue's driver.
unsafe fn post_list(queue: &mut Queue, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
    match queue {
        // SAFETY: the contract of this function.
        Any::Mlx5(queue) => unsafe { queue.post_send(list) },
        // SAFETY: the contract of this function.
        Any::Rxe(queue) => unsafe { queue.post_send(list) },
        // SAFETY: the contract of this function.
        Any::Siw(queue) => unsafe { queue.post_send(list) },
    }
}

macro_rules! forward {
    ($self:ident, $queue:ident => $call:expr) => {
        match &mut $self.queue {
            Any::Mlx5($queue) => $call,
            Any::Rxe($queue) => $call,
            Any::Siw($queue) => $call,
        }
    };
}

impl WrBuilder for AnySendQueue {
    fn wr_start(&mut self) {
        forward!(self, queue => queue.wr_start());
    }

    fn wr_is_open(&self) -> bool {
        match &self.queue {
            Any::Mlx5(queue) => queue.wr_is_open(),
            Any::Rxe(queue) => queue.wr_is_open(),
            Any::Siw(queue) => queue.wr_is_open(),
        }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_begin(&mut self, head: Head, op: Op<'_, WqeRemote>) {
        match &mut self.queue {
            // SAFETY: a bind fulfils the contract of this function, which is that of the driver's.
            Any::Mlx5(queue) => unsafe { queue.wr_begin(head, op) },
            // SAFETY: as above.
            Any::Rxe(queue) => unsafe { queue.wr_begin(head, op.map(plain)) },
            // SAFETY: as above.
            Any::Siw(queue) => unsafe { queue.wr_begin(head, op.map(plain)) },
        }
    }

    fn wr_set_ud_addr(&mut self, ah: &AnyAh, remote_qpn: u32, remote_qkey: u32) {
        match (&mut self.queue, ah) {
            (Any::Mlx5(queue), Any::Mlx5(ah)) => queue.wr_set_ud_addr(ah, remote_qpn, remote_qkey),
            (Any::Rxe(queue), Any::Rxe(ah)) => queue.wr_set_ud_addr(ah, remote_qpn, remote_qkey),
            _ => self.wr_latch(PostError::InvalidArgument),
        }
    }

    fn wr_set_xrc_srqn(&mut self, remote_srqn: u32) {
        forward!(self, queue => queue.wr_set_xrc_srqn(remote_srqn));
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sge(&mut self, sge: Sge) {
        // SAFETY: the entry's memory fulfils the contract of this function, which is that of the driver's.
        forward!(self, queue => unsafe { queue.wr_set_sge(sge) });
    }

    unsafe fn wr_set_sges(&mut self, sges: &[Sge]) {
        // SAFETY: the entries' memory fulfils the contract of this function, which is that of the driver's.
        forward!(self, queue => unsafe { queue.wr_set_sges(sges) });
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_set_inline(&mut self, data: Inline<'_>) {
        forward!(self, queue => queue.wr_set_inline(data));
    }

    fn wr_latch(&mut self, error: PostError) {
        forward!(self, queue => queue.wr_latch(error));
    }

    #[inline]
    fn wr_complete(&mut self) -> Result<(), PostError> {
        forward!(self, queue => queue.wr_complete())
    }

    fn wr_abort(&mut self) {
        forward!(self, queue => queue.wr_abort());
    }
}
