// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue of each driver: operations, addresses and payloads in mlx5's format, converted for rxe and siw.
#![expect(unsafe_code)]
// UNSAFETY: passes the caller's guarantee about memory on to the driver's queue, and follows C's lists.

use super::recv::{EMPTY, to_plain};
use super::{Any, Mlx5, Rxe, Siw, WqeRemote, WqeSge};
use core::ptr;
use uverbs_core::provider::Driver;
use uverbs_core::provider::op::{Address, AtomicArgs, FlushArgs, MwBind, Operation, TsoArgs};
use uverbs_core::provider::payload::Payload;
use uverbs_core::provider::send::Wr;
use uverbs_core::provider::wire::RemoteAddr;
use uverbs_core::provider::{BadWr, PostError, SendBatch, SendQueue, WireRemote, WrBuilder};
use uverbs_core::wr::{IbvAh, ImmData, RawAh, SendWr, Sge, WrOpcode};

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

/// An operation with its remote address in the kernel's format, that of rxe and siw.
#[derive(Clone, Copy)]
struct PlainOp<O>(O);

macro_rules! same {
    ($($name:ident -> $ty:ty;)*) => {$(
        #[cfg_attr(not(debug_assertions), inline(always))]
        fn $name(&self) -> Option<$ty> {
            self.0.$name()
        }
    )*};
}

impl<O: Operation<Remote = WqeRemote>> Operation for PlainOp<O> {
    type Remote = RemoteAddr;
    const OPCODE: WrOpcode = O::OPCODE;
    const HAS_DATA: bool = O::HAS_DATA;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn remote(&self) -> Option<RemoteAddr> {
        self.0.remote().map(|remote| RemoteAddr { addr: remote.addr(), rkey: remote.rkey() })
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn tso(&self) -> Option<TsoArgs<'_>> {
        self.0.tso()
    }
    same! {
        imm_data -> ImmData;
        invalidate_rkey -> u32;
        atomic -> AtomicArgs;
        bind_mw -> MwBind;
        flush -> FlushArgs;
        atomic_write -> [u8; 8];
    }
}

/// A payload with its entries in the kernel's format, that of rxe and siw.
#[derive(Clone, Copy)]
struct PlainData<'a, P> {
    data: P,
    sges: &'a [Sge],
}

impl<P: Payload<WqeSge>> Payload<Sge> for PlainData<'_, P> {
    const INLINE: bool = P::INLINE;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn sges(&self) -> &[Sge] {
        self.sges
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn for_each_buf(&self, f: impl FnMut(&[u8])) {
        self.data.for_each_buf(f);
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn inline_len(&self) -> usize {
        self.data.inline_len()
    }
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn one_buf(&self) -> Option<&[u8]> {
        self.data.one_buf()
    }
}

macro_rules! address {
    ($of:ident, $driver:ident) => {
        /// A destination whose address handle is that of this driver.
        #[derive(Clone, Copy)]
        struct $of<A>(A);

        impl<A: Address<AnyAh>> Address<<$driver as Driver>::Ah> for $of<A> {
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn datagram(&self) -> Option<(&<$driver as Driver>::Ah, u32, u32)> {
                match self.0.datagram() {
                    Some((Any::$driver(ah), remote_qpn, remote_qkey)) => Some((ah, remote_qpn, remote_qkey)),
                    _ => None,
                }
            }
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn remote_srqn(&self) -> Option<u32> {
                self.0.remote_srqn()
            }
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn dc_target(&self) -> Option<(&<$driver as Driver>::Ah, u32, u64)> {
                match self.0.dc_target() {
                    Some((Any::$driver(ah), remote_dctn, key)) => Some((ah, remote_dctn, key)),
                    _ => None,
                }
            }
            #[cfg_attr(not(debug_assertions), inline(always))]
            fn is_frame(&self) -> bool {
                self.0.is_frame()
            }
        }
    };
}
address!(OfMlx5, Mlx5);
address!(OfRxe, Rxe);
address!(OfSiw, Siw);

/// Whether the address handle of a destination, if it has one, is that of a driver.
#[cfg_attr(not(debug_assertions), inline(always))]
fn is_of<A: Address<AnyAh>>(to: &A, is_own: impl FnOnce(&AnyAh) -> bool) -> bool {
    let ah = to.datagram().map(|(ah, ..)| ah).or_else(|| to.dc_target().map(|(ah, ..)| ah));
    ah.is_none_or(is_own)
}

/// The entries of a work request for rxe and siw.
macro_rules! plain {
    ($data:ident, $plain:ident => $post:expr) => {{
        let sges = &mut { EMPTY };
        let $plain = PlainData { data: $data, sges: to_plain($data.sges(), sges) };
        $post
    }};
}

impl SendBatch for AnySendBatch<'_> {
    type Sge = WqeSge;
    type Remote = WqeRemote;
    type Ah = AnyAh;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push<A, O, P>(&mut self, wr: Wr, to: A, op: O, data: P)
    where
        A: Address<AnyAh>,
        O: Operation<Remote = WqeRemote>,
        P: Payload<WqeSge>,
    {
        match &mut self.batch {
            Any::Mlx5(batch) if is_of(&to, |ah| matches!(ah, Any::Mlx5(_))) => {
                // SAFETY: the entries' memory fulfils the contract of this function, which is that of the driver's.
                unsafe { batch.push(wr, OfMlx5(to), op, data) };
            }
            Any::Rxe(batch) if is_of(&to, |ah| matches!(ah, Any::Rxe(_))) => {
                // SAFETY: as above; the entries are the same.
                plain!(data, plain => unsafe { batch.push(wr, OfRxe(to), PlainOp(op), plain) });
            }
            Any::Siw(batch) if is_of(&to, |ah| matches!(ah, Any::Siw(_))) => {
                // SAFETY: as above.
                plain!(data, plain => unsafe { batch.push(wr, OfSiw(to), PlainOp(op), plain) });
            }
            _ => self.is_foreign = true,
        }
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
    unsafe fn post<A, O, P>(&mut self, wr: Wr, to: A, op: O, data: P) -> Result<(), PostError>
    where
        A: Address<AnyAh>,
        O: Operation<Remote = WqeRemote>,
        P: Payload<WqeSge>,
    {
        match &mut self.queue {
            Any::Mlx5(queue) if is_of(&to, |ah| matches!(ah, Any::Mlx5(_))) => {
                // SAFETY: the entries' memory fulfils the contract of this function, which is that of the driver's.
                unsafe { queue.post(wr, OfMlx5(to), op, data) }
            }
            Any::Rxe(queue) if is_of(&to, |ah| matches!(ah, Any::Rxe(_))) => {
                // SAFETY: as above; the entries are the same.
                plain!(data, plain => unsafe { queue.post(wr, OfRxe(to), PlainOp(op), plain) })
            }
            Any::Siw(queue) if is_of(&to, |ah| matches!(ah, Any::Siw(_))) => {
                // SAFETY: as above.
                plain!(data, plain => unsafe { queue.post(wr, OfSiw(to), PlainOp(op), plain) })
            }
            _ => Err(PostError::InvalidArgument),
        }
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
    fn wr_begin<O: Operation<Remote = WqeRemote>>(&mut self, wr: Wr, op: O) {
        match &mut self.queue {
            Any::Mlx5(queue) => queue.wr_begin(wr, op),
            Any::Rxe(queue) => queue.wr_begin(wr, PlainOp(op)),
            Any::Siw(queue) => queue.wr_begin(wr, PlainOp(op)),
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
    fn wr_set_inline<P: Payload<WqeSge>>(&mut self, data: P) {
        match &mut self.queue {
            Any::Mlx5(queue) => queue.wr_set_inline(data),
            Any::Rxe(queue) => queue.wr_set_inline(PlainData { data, sges: &[] }),
            Any::Siw(queue) => queue.wr_set_inline(PlainData { data, sges: &[] }),
        }
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
