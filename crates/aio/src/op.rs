// SPDX-License-Identifier: MIT OR Apache-2.0
//! Operations of the send queue as futures: send, read, write, atomics.
//!
//! A future has its buffer until it is polled first and the queue has a free entry. Then the queue has the buffer until the
//! work request is complete. If the future is dropped in between, the completion returns the buffer to its pool.

use crate::destination::Destination;
use crate::error::{Error, Failed, Result};
use crate::fair_queue::Ticket;
use crate::life::FORKED;
use crate::pair::Qp;
use crate::qp::QpInner;
use crate::sends::Queue;
use crate::slots::Left;
use crate::sync::lock;
use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;
use uverbs::attr::AccessFlags;
use uverbs::wr::ImmData;
use uverbs::{
    Access, AnyDriver, Buf, Completed, Driver, PostError, Rc, Rejected, RemoteRegion, SendFlags, WcStatus,
    Window,
};
use uverbs_core::wake::{Caller, Wakes, discard};

/// What a work request does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    Send,
    SendImm(ImmData),
    SendInv(u32),
    Write(RemoteRegion),
    WriteImm(RemoteRegion, ImmData),
    Read(RemoteRegion),
    FetchAdd(RemoteRegion, u64),
    CompareSwap(RemoteRegion, u64, u64),
    Bind(AccessFlags),
}

mod sealed {
    use super::{Completed, Destination, Driver, PostError, Queue, Rejected, Request, SendFlags};

    pub trait Payload<D: Driver>: Sized {
        /// Posts it. It is returned if that fails.
        #[expect(private_interfaces, reason = "only this crate implements it")]
        fn post(
            self,
            queue: &mut Queue<D>,
            to: Option<&Destination<D>>,
            wr: (u64, SendFlags),
            request: &Request,
        ) -> Result<(), Rejected<Self>>;

        /// An opcode that the payload does not have.
        fn refuse(self) -> Result<(), Rejected<Self>> {
            Err(Rejected { error: PostError::IllegalOpcode.into(), returned: Some(self) })
        }

        /// What the future returns.
        type Back;
        fn unposted(self) -> Self::Back;
        fn completed(completed: Completed<D>) -> Option<Self::Back>;
    }
}

/// What an operation takes: a [`Buf`] or a [`Window`], which it gives back, or bytes that are copied when it is posted.
pub trait Payload<D: Driver>: sealed::Payload<D> {}

impl<D: Driver, A: Access> Payload<D> for Buf<A, D> {}
impl<D: Driver, A: Access> sealed::Payload<D> for Buf<A, D> {
    #[expect(private_interfaces, reason = "only this crate implements it")]
    #[inline]
    fn post(
        self,
        queue: &mut Queue<D>,
        to: Option<&Destination<D>>,
        (wr_id, flags): (u64, SendFlags),
        request: &Request,
    ) -> Result<(), Rejected<Self>> {
        let queue = match (queue, to) {
            (Queue::Rc(queue), None) => queue,
            (Queue::Ud(queue), Some(to)) => {
                let wr = queue.post_to(wr_id, &to.ah, to.qp_num, to.qkey).flags(flags);
                return match *request {
                    Request::Send => wr.send(self),
                    Request::SendImm(imm) => wr.send_imm(self, imm),
                    _ => sealed::Payload::refuse(self),
                };
            }
            _ => return sealed::Payload::refuse(self),
        };
        let wr = queue.post(wr_id).flags(flags);
        match *request {
            Request::Send => wr.send(self),
            Request::SendImm(imm) => wr.send_imm(self, imm),
            Request::SendInv(rkey) => wr.send_inv(self, rkey),
            Request::Write(to) => wr.write(self, &to),
            Request::WriteImm(to, imm) => wr.write_imm(self, &to, imm),
            Request::Read(from) => wr.read(self, &from),
            Request::FetchAdd(at, add) => wr.fetch_add(self, &at, add),
            Request::CompareSwap(at, compare, swap) => wr.compare_swap(self, &at, compare, swap),
            Request::Bind(_) => sealed::Payload::refuse(self),
        }
    }

    type Back = Self;

    fn unposted(self) -> Self {
        self
    }

    fn completed(completed: Completed<D>) -> Option<Self> {
        completed.buf_of()
    }
}

impl<D: Driver> Payload<D> for &[u8] {}
impl<D: Driver> sealed::Payload<D> for &[u8] {
    #[expect(private_interfaces, reason = "only this crate implements it")]
    #[inline]
    fn post(
        self,
        queue: &mut Queue<D>,
        to: Option<&Destination<D>>,
        (wr_id, flags): (u64, SendFlags),
        request: &Request,
    ) -> Result<(), Rejected<Self>> {
        let posted = match (queue, to) {
            (Queue::Rc(queue), None) => {
                let wr = queue.post(wr_id).flags(flags);
                match *request {
                    Request::Send => wr.send_inline(self),
                    Request::SendImm(imm) => wr.send_imm_inline(self, imm),
                    Request::Write(to) => wr.write_inline(self, &to),
                    Request::WriteImm(to, imm) => wr.write_imm_inline(self, &to, imm),
                    _ => return sealed::Payload::<D>::refuse(self),
                }
            }
            (Queue::Ud(queue), Some(to)) => {
                let wr = queue.post_to(wr_id, &to.ah, to.qp_num, to.qkey).flags(flags);
                match *request {
                    Request::Send => wr.send_inline(self),
                    Request::SendImm(imm) => wr.send_imm_inline(self, imm),
                    _ => return sealed::Payload::<D>::refuse(self),
                }
            }
            _ => return sealed::Payload::<D>::refuse(self),
        };
        posted.map_err(|error| Rejected { error, returned: Some(self) })
    }

    type Back = ();

    fn unposted(self) {}

    fn completed(_: Completed<D>) -> Option<()> {
        Some(())
    }
}

impl<D: Driver> Payload<D> for Window<D> {}
impl<D: Driver> sealed::Payload<D> for Window<D> {
    #[expect(private_interfaces, reason = "only this crate implements it")]
    fn post(
        self,
        queue: &mut Queue<D>,
        to: Option<&Destination<D>>,
        (wr_id, flags): (u64, SendFlags),
        request: &Request,
    ) -> Result<(), Rejected<Self>> {
        match (queue, to, *request) {
            (Queue::Rc(queue), None, Request::Bind(access)) => {
                queue.post(wr_id).flags(flags).bind(self, access)
            }
            _ => self.refuse(),
        }
    }

    type Back = Self;

    fn unposted(self) -> Self {
        self
    }

    fn completed(completed: Completed<D>) -> Option<Self> {
        completed.take()
    }
}

pub(crate) enum State<P> {
    /// Before the post, perhaps waiting for a free entry.
    New {
        payload: P,
        ticket: Ticket,
    },
    /// In flight, in this slot.
    Posted(u64),
    Finished,
}

/// An operation of the send queue. It is posted when it is polled first, or as soon as the queue has a free entry; it is ready
/// when it is complete.
///
/// It can be dropped at any time. What was posted takes place nevertheless.
#[must_use = "futures do nothing unless they are polled"]
pub struct Op<P: Payload<D>, D: Driver = AnyDriver> {
    pub(crate) qp: Arc<QpInner<D>>,
    pub(crate) request: Request,
    pub(crate) flags: SendFlags,
    pub(crate) state: State<P>,
    /// Of a datagram.
    pub(crate) to: Option<Destination<D>>,
}

/// Nothing in it is pinned.
impl<D: Driver, P: Payload<D>> Unpin for Op<P, D> {}

impl<D: Driver, P: Payload<D>> fmt::Debug for Op<P, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<D: Driver, P: Payload<D>> Op<P, D> {
    fn new(qp: &Qp<Rc, D>, request: Request, payload: P) -> Self {
        Self::begin(&qp.inner, None, request, payload)
    }

    /// An operation, of a datagram QP with its destination.
    pub(crate) fn begin(
        qp: &Arc<QpInner<D>>,
        to: Option<Destination<D>>,
        request: Request,
        payload: P,
    ) -> Self {
        let state = State::New { payload, ticket: Ticket::default() };
        Self { qp: qp.clone(), request, flags: SendFlags::SIGNALED, state, to }
    }

    /// Waits for all earlier reads and atomics of this QP (`IBV_SEND_FENCE`).
    pub fn fenced(mut self) -> Self {
        self.flags |= SendFlags::FENCE;
        self
    }

    /// Asks for a solicited event at the peer (`IBV_SEND_SOLICITED`).
    pub fn solicited(mut self) -> Self {
        self.flags |= SendFlags::SOLICITED;
        self
    }
}

type Done<D, P> = Result<<P as sealed::Payload<D>>::Back, Failed<<P as sealed::Payload<D>>::Back>>;

/// The result of a completed work request.
fn finish<D: Driver, P: Payload<D>>(completed: Completed<D>) -> Done<D, P> {
    let uverbs::WorkCompletion { status, vendor_err, qp_num, .. } = completed.wc;
    let returned = P::completed(completed);
    match returned {
        Some(back) if status == WcStatus::SUCCESS => Ok(back),
        returned => Err(Failed { error: Error::Completion { status, vendor_err, qp_num }, returned }),
    }
}

impl<D: Driver, P: Payload<D>> Future for Op<P, D> {
    type Output = Done<D, P>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { qp, request, flags, state, to } = self.get_mut();
        if qp.is_forked() {
            let returned = match core::mem::replace(state, State::Finished) {
                State::New { payload, .. } => Some(payload.unposted()),
                _ => None,
            };
            return Poll::Ready(Err(Failed { error: FORKED, returned }));
        }
        if let State::Posted(key) = *state {
            let mut caller = Caller::new(cx.waker());
            let outcome = loop {
                let polled = lock(&qp.sends).slots.poll(key, &mut caller);
                match polled {
                    Poll::Ready(outcome) => break outcome,
                    Poll::Pending if caller.supply() => {}
                    Poll::Pending => return Poll::Pending,
                }
            };
            *state = State::Finished;
            return Poll::Ready(match outcome {
                Some(Ok(completed)) => finish::<D, P>(completed),
                Some(Err(error)) => Err(error.into()),
                // The slot is that of this future until the future takes the result.
                None => Err(Error::Closed.into()),
            });
        }
        let State::New { payload, mut ticket } = core::mem::replace(state, State::Finished) else {
            panic!("polled after it was ready");
        };
        // The clone is stored in any case, except if nothing can be posted.
        let mut caller = Caller::with_clone(cx.waker());
        let mut wakes = Wakes::new();
        let mut guard = lock(&qp.sends);
        let sends = &mut *guard;
        let fail = |error, returned: Option<P>| {
            Poll::Ready(Err(Failed { error, returned: returned.map(P::unposted) }))
        };
        let result = if let Some(error) = sends.refusal(&mut ticket) {
            caller.leave(sends.leave(&mut ticket, &mut wakes));
            fail(error, Some(payload))
        } else if !sends.waiters.pass(&mut ticket, 1, sends.free, &mut caller) {
            *state = State::New { payload, ticket };
            return Poll::Pending;
        } else {
            let key = sends.insert_slot(&mut caller);
            match (&mut sends.queue, key) {
                (Some(queue), Some(key)) => {
                    match payload.post(queue, to.as_ref(), (qp.route().send(key), *flags), request) {
                        Ok(()) => {
                            sends.posted(key, 1);
                            *state = State::Posted(key);
                            return Poll::Pending;
                        }
                        Err(Rejected { error, returned })
                            if matches!(error.reason, PostError::Doorbell(_)) =>
                        {
                            // The device may execute it: it is in flight, and its completion may arrive.
                            sends.posted(key, 1);
                            caller.leave(sends.abandon(key, to).and_then(Left::waker));
                            fail(error.into(), returned)
                        }
                        Err(Rejected { error, returned }) => {
                            caller.leave(sends.slots.remove(key).and_then(Left::waker));
                            // It does not use its entry.
                            sends.waiters.wake(sends.free, &mut wakes);
                            fail(error.into(), returned)
                        }
                    }
                }
                _ => fail(PostError::QueueFull.into(), Some(payload)),
            }
        };
        drop(guard);
        wakes.wake();
        result
    }
}

impl<D: Driver, P: Payload<D>> Drop for Op<P, D> {
    #[inline]
    fn drop(&mut self) {
        if !matches!(self.state, State::Finished) {
            self.give_up();
        }
    }
}

impl<D: Driver, P: Payload<D>> Op<P, D> {
    /// The future is dropped before it was ready.
    #[inline(never)]
    fn give_up(&mut self) {
        if self.qp.is_forked() {
            return;
        }
        let mut wakes = Wakes::new();
        match &mut self.state {
            State::New { ticket, .. } if ticket.is_waiting() => {
                let left = lock(&self.qp.sends).leave(ticket, &mut wakes);
                discard(left);
            }
            State::Posted(key) => {
                let mut sends = lock(&self.qp.sends);
                let left = sends.abandon(*key, &mut self.to);
                drop(sends);
                left.into_iter().for_each(Left::discard);
            }
            _ => {}
        }
    }
}

impl<D: Driver> Qp<Rc, D> {
    /// `IBV_WR_SEND`: sends a message, which uses the next receive of the peer.
    ///
    /// # Errors
    /// Those of the post, of the completion, or [`Error::Closed`]; all operations have these.
    pub fn send<A: Access>(&self, buf: Buf<A, D>) -> Op<Buf<A, D>, D> {
        Op::new(self, Request::Send, buf)
    }

    /// `IBV_WR_SEND_WITH_IMM`: the immediate arrives in the peer's message.
    pub fn send_imm<A: Access>(&self, buf: Buf<A, D>, imm: ImmData) -> Op<Buf<A, D>, D> {
        Op::new(self, Request::SendImm(imm), buf)
    }

    /// `IBV_WR_SEND_WITH_INV`: the peer's `rkey` is invalidated when the message arrives.
    pub fn send_inv<A: Access>(&self, buf: Buf<A, D>, rkey: u32) -> Op<Buf<A, D>, D> {
        Op::new(self, Request::SendInv(rkey), buf)
    }

    /// `IBV_WR_SEND`, of bytes that are copied when it is posted; at most the QP's `max_inline_data`.
    pub fn send_inline<'a>(&self, data: &'a [u8]) -> Op<&'a [u8], D> {
        Op::new(self, Request::Send, data)
    }

    /// As [`send_inline`](Self::send_inline), with an immediate.
    pub fn send_imm_inline<'a>(&self, data: &'a [u8], imm: ImmData) -> Op<&'a [u8], D> {
        Op::new(self, Request::SendImm(imm), data)
    }

    /// `IBV_WR_RDMA_WRITE`: writes to the front of `to`.
    pub fn write<A: Access>(&self, buf: Buf<A, D>, to: &RemoteRegion) -> Op<Buf<A, D>, D> {
        Op::new(self, Request::Write(*to), buf)
    }

    /// `IBV_WR_RDMA_WRITE`, of bytes that are copied when it is posted.
    pub fn write_inline<'a>(&self, data: &'a [u8], to: &RemoteRegion) -> Op<&'a [u8], D> {
        Op::new(self, Request::Write(*to), data)
    }

    /// `IBV_WR_RDMA_WRITE_WITH_IMM`: as [`write`](Self::write); the peer also gets an empty message with the immediate.
    pub fn write_imm<A: Access>(&self, buf: Buf<A, D>, to: &RemoteRegion, imm: ImmData) -> Op<Buf<A, D>, D> {
        Op::new(self, Request::WriteImm(*to, imm), buf)
    }

    /// As [`write_imm`](Self::write_imm), of bytes that are copied when it is posted.
    pub fn write_imm_inline<'a>(&self, data: &'a [u8], to: &RemoteRegion, imm: ImmData) -> Op<&'a [u8], D> {
        Op::new(self, Request::WriteImm(*to, imm), data)
    }

    /// `IBV_WR_RDMA_READ`: reads as many bytes as the buffer's length from the front of `from`.
    pub fn read<A: Access>(&self, buf: Buf<A, D>, from: &RemoteRegion) -> Op<Buf<A, D>, D> {
        Op::new(self, Request::Read(*from), buf)
    }

    /// `IBV_WR_ATOMIC_FETCH_AND_ADD`: adds `add` to the first 8 bytes of `at`, whose address is a multiple of 8. The old value
    /// arrives in the first 8 bytes of the buffer. All values are in host byte order.
    pub fn fetch_add<A: Access>(&self, buf: Buf<A, D>, at: &RemoteRegion, add: u64) -> Op<Buf<A, D>, D> {
        Op::new(self, Request::FetchAdd(*at, add), buf)
    }

    /// `IBV_WR_ATOMIC_CMP_AND_SWP`: stores `swap` to the first 8 bytes of `at` if they are `compare`. Alignment, old value and
    /// byte order are those of [`fetch_add`](Self::fetch_add).
    pub fn compare_swap<A: Access>(
        &self,
        buf: Buf<A, D>,
        at: &RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> Op<Buf<A, D>, D> {
        Op::new(self, Request::CompareSwap(*at, compare, swap), buf)
    }

    /// `IBV_WR_BIND_MW`: opens the window to the peer with the rights `access`.
    pub fn bind(&self, window: Window<D>, access: AccessFlags) -> Op<Window<D>, D> {
        Op::new(self, Request::Bind(access), window)
    }
}
