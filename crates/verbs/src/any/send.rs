// SPDX-License-Identifier: MIT OR Apache-2.0
//! The send queue of each driver: work requests in the first driver's format, converted for the others.
#![expect(unsafe_code)]
// UNSAFETY: passes the caller's guarantee about memory on to the driver's queue, and follows C's lists.

use super::{Any, Member, WqeRemote, WqeSge, format, parts};
use core::{fmt, ptr};
use uverbs_core::provider::{
    BadWr, Data, Driver, Head, Inline, Op, PostError, SendBatch, SendQueue, Wr, WrBuilder,
};
use uverbs_core::wr::{IbvAh, RawAh, SendWr, Sge};

type AnyAh = Any<parts::Ah>;

/// The send queue.
#[derive(Debug)]
pub struct AnySendQueue {
    queue: Any<parts::SendQueue>,
    /// Whether each WR of a list has an address handle.
    is_datagram: bool,
}

impl AnySendQueue {
    pub(super) const fn new(queue: Any<parts::SendQueue>, is_datagram: bool) -> Self {
        Self { queue, is_datagram }
    }

    /// The queue of the driver, if it is one of this driver.
    pub(super) fn own<D: Member>(&mut self) -> Option<&mut D::SendQueue> {
        D::part_mut::<parts::SendQueue>(&mut self.queue)
    }
}

/// An open batch of an [`AnySendQueue`].
pub struct AnySendBatch<'q> {
    batch: Any<parts::SendBatch<'q>>,
    /// Why a WR could not be converted to one of the driver.
    refused: Option<PostError>,
}

impl fmt::Debug for AnySendBatch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnySendBatch").finish_non_exhaustive()
    }
}

/// A work request of this type.
type AnyWr<'a> = Wr<'a, AnyAh, WqeSge, WqeRemote>;
/// A work request of a driver.
type WrOf<'a, D> = Wr<'a, <D as Driver>::Ah, <D as Driver>::Sge, <D as Driver>::Remote>;

/// The work request of a driver, with its entries in `room` if they have to be converted.
///
/// # Errors
/// Its address handle is that of another driver, or an entry has no form in this one's format.
#[cfg_attr(not(debug_assertions), inline(always))]
fn own<'a, D: Member>(wr: &AnyWr<'a>, room: &'a mut format::Room<D::Sge>) -> Result<WrOf<'a, D>, PostError> {
    let AnyWr { wr_id, flags, to, op, data } = *wr;
    let to = to.try_map(D::part::<parts::Ah>).ok_or(PostError::InvalidArgument)?;
    let data = match data {
        Data::Sges(sges) => Data::Sges(match D::as_own(sges) {
            Some(sges) => sges,
            None => format::convert(sges, room)?,
        }),
        Data::Inline(data) => Data::Inline(data),
    };
    Ok(Wr { wr_id, flags, to, op: D::op(op), data })
}

/// Posts a WR with the driver's parts.
///
/// # Safety
/// As [`SendQueue::post`].
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn post<D: Member>(queue: &mut D::SendQueue, wr: &AnyWr<'_>) -> Result<(), PostError> {
    let mut room = format::room();
    let wr = own::<D>(wr, &mut room)?;
    // SAFETY: the WR names the same memory, which fulfils the contract of this function.
    unsafe { queue.post(&wr) }
}

/// As [`post`], for a driver with another format: the code of the first driver does not make room for it.
///
/// # Safety
/// As [`SendQueue::post`].
#[cold]
#[inline(never)]
unsafe fn post_converted<D: Member>(queue: &mut D::SendQueue, wr: &AnyWr<'_>) -> Result<(), PostError> {
    // SAFETY: the contract of this function.
    unsafe { post::<D>(queue, wr) }
}

impl SendBatch for AnySendBatch<'_> {
    type Sge = WqeSge;
    type Remote = WqeRemote;
    type Ah = AnyAh;

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn push(&mut self, wr: &AnyWr<'_>) {
        let Self { batch, refused } = self;
        // Not a call for the other drivers: then a batch of the first one would not stay in registers.
        first_of_each!(batch, D(batch) => match own::<D>(wr, &mut format::room()) {
            // SAFETY: the WR fulfils the contract of this function, which is that of the driver's.
            Ok(wr) => unsafe { batch.push(&wr) },
            Err(error) => *refused = refused.or(Some(error)),
        })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn complete(self) -> Result<(), PostError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        first_of_each!(self.batch, D(batch) => batch.complete())
    }
}

impl SendQueue for AnySendQueue {
    type Sge = WqeSge;
    type Remote = WqeRemote;
    type Ah = AnyAh;
    type Batch<'q> = AnySendBatch<'q>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn batch(&mut self) -> AnySendBatch<'_> {
        let batch = first_of_each!(&mut self.queue, D(queue) => D::any(queue.batch()));
        AnySendBatch { batch, refused: None }
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn post(&mut self, wr: &AnyWr<'_>) -> Result<(), PostError> {
        first_of_each!(&mut self.queue, D(queue) => if D::CONVERTS {
            // A copy, because a WR whose address is passed on does not stay in registers.
            let wr = *wr;
            // SAFETY: the WR fulfils the contract of this function, which is that of the driver's.
            unsafe { post_converted::<D>(queue, &wr) }
        } else {
            // SAFETY: as above.
            unsafe { post::<D>(queue, wr) }
        })
    }

    /// A list of datagrams is posted one by one, because its address handles have this type's data, not the driver's.
    unsafe fn post_send(&mut self, list: *const SendWr) -> Result<(), BadWr<SendWr>> {
        if !self.is_datagram || list.is_null() {
            // SAFETY: `list` fulfils the contract of this function, which is that of the driver's; it names no address
            // handle.
            return each!(&mut self.queue, queue => unsafe { queue.post_send(list) });
        }
        let mut at = list;
        // SAFETY: `at` is NULL or a node of the list, which is valid during the call (the contract of this function).
        while let Some(wr) = unsafe { at.as_ref() } {
            let one = SendWr { next: ptr::null(), ..*wr };
            let posted: Result<(), BadWr<SendWr>> =
                // SAFETY: the WR fulfils the contract of this function.
                each!(&mut self.queue, D(queue) => unsafe { post_datagram::<D>(queue, one) });
            if let Err(bad) = posted {
                let node = if bad.wr.is_null() { ptr::null() } else { at };
                return Err(BadWr { error: bad.error, wr: node });
            }
            at = wr.next;
        }
        Ok(())
    }
}

/// Posts a WR of a list of datagrams, with the driver's address handle. The error does not name the node of the list.
///
/// # Safety
/// As [`SendQueue::post_send`], for a list of one node whose address handle has the data of [`AnyAh`].
unsafe fn post_datagram<D: Member<Ah: Copy>>(
    queue: &mut D::SendQueue,
    mut wr: SendWr,
) -> Result<(), BadWr<SendWr>> {
    // SAFETY: the union consists of integers and pointers, and a datagram uses this field.
    let ud = unsafe { wr.wr.ud };
    // SAFETY: the handle is NULL or was created by `AnyDriver` (the contract of this function), so it has this type.
    let Some(ah) = (unsafe { ud.ah.cast::<RawAh<AnyAh>>().as_ref() }) else {
        // SAFETY: a list of one node without a handle; its entries fulfil the contract of this function.
        return unsafe { queue.post_send(&raw const wr) };
    };
    let Some(&driver) = D::part::<parts::Ah>(&ah.driver) else {
        return Err(BadWr { error: PostError::InvalidArgument, wr: &raw const wr });
    };
    let base = IbvAh { context: ptr::null_mut(), pd: ptr::null_mut(), handle: 0 };
    let own = RawAh { base, driver };
    wr.wr.ud.ah = (&raw const own).cast();
    // SAFETY: a list of one node; the handle lives during the call, after which it is not used; its entries fulfil the
    // contract of this function.
    unsafe { queue.post_send(&raw const wr) }
}

impl WrBuilder for AnySendQueue {
    fn wr_start(&mut self) {
        each!(&mut self.queue, queue => queue.wr_start())
    }

    fn wr_is_open(&self) -> bool {
        each!(&self.queue, queue => queue.wr_is_open())
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_begin(&mut self, head: Head, op: Op<'_, WqeRemote>) {
        // SAFETY: a bind fulfils the contract of this function, which is that of the driver's.
        each!(&mut self.queue, D(queue) => unsafe { queue.wr_begin(head, D::op(op)) })
    }

    fn wr_set_ud_addr(&mut self, ah: &AnyAh, remote_qpn: u32, remote_qkey: u32) {
        each!(&mut self.queue, D(queue) => match D::part(ah) {
            Some(ah) => queue.wr_set_ud_addr(ah, remote_qpn, remote_qkey),
            None => queue.wr_latch(PostError::InvalidArgument),
        })
    }

    fn wr_set_xrc_srqn(&mut self, remote_srqn: u32) {
        each!(&mut self.queue, queue => queue.wr_set_xrc_srqn(remote_srqn))
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn wr_set_sge(&mut self, sge: Sge) {
        // SAFETY: the entry's memory fulfils the contract of this function, which is that of the driver's.
        each!(&mut self.queue, queue => unsafe { queue.wr_set_sge(sge) })
    }

    unsafe fn wr_set_sges(&mut self, sges: &[Sge]) {
        // SAFETY: the entries' memory fulfils the contract of this function, which is that of the driver's.
        each!(&mut self.queue, queue => unsafe { queue.wr_set_sges(sges) })
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn wr_set_inline(&mut self, data: Inline<'_>) {
        each!(&mut self.queue, queue => queue.wr_set_inline(data))
    }

    fn wr_latch(&mut self, error: PostError) {
        each!(&mut self.queue, queue => queue.wr_latch(error))
    }

    #[inline]
    fn wr_complete(&mut self) -> Result<(), PostError> {
        each!(&mut self.queue, queue => queue.wr_complete())
    }

    fn wr_abort(&mut self) {
        each!(&mut self.queue, queue => queue.wr_abort())
    }
}
