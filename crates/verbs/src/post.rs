// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts by one call on the QP: a completion for each, `wr_id` 0, no other flags.
//!
//! [`Qp::sq`] and [`Qp::rq`] have the whole set: ids, flags, batches, every operation.

use crate::access::Access;
use crate::flight::Flight;
use crate::list::{BufList, Memory, Source};
use crate::mkey_region::{MkeyRegion, Piece};
use crate::mr::Private;
use crate::pool::{Buf, BufPart, Filled, SharedBuf};
use crate::qp::transport::{Connected, HasPeer, Reliable, Sends};
use crate::qp::{Qp, QpControl};
use crate::rejected::Rejected;
use crate::remote::RemoteRegion;
use uverbs_core::provider::{Driver, PostError, QueueError, QueueKind, QueueName};
use uverbs_core::sync::{Exclusive, Shared};

/// What a post of [`Qp`] takes: a [`Buf`] or a part of it, a [`BufList`], a buffer that was just [filled](Buf::filled), and, if the device only
/// reads, a [`SharedBuf`].
pub trait IntoMemory<D: Driver> {
    /// What the work request owns.
    type Memory: Source<D>;

    /// The memory.
    ///
    /// # Errors
    /// A buffer that is too small for the bytes that it was given; the post fails with this error.
    fn into_memory(self) -> Result<Self::Memory, Rejected<Self::Memory>>;
}

macro_rules! as_it_is {
    ($($memory:ident),*) => {$(
        impl<D: Driver, A: Access> IntoMemory<D> for $memory<A, D> {
            type Memory = Self;

            #[cfg_attr(not(debug_assertions), inline(always))]
            fn into_memory(self) -> Result<Self, Rejected<Self>> {
                Ok(self)
            }
        }
    )*};
}

as_it_is!(Buf, BufList, BufPart, SharedBuf);

impl<D: Driver, B: Piece<D>> IntoMemory<D> for MkeyRegion<B, D> {
    type Memory = Self;

    fn into_memory(self) -> Result<Self, Rejected<Self>> {
        Ok(self)
    }
}

impl<D: Driver> IntoMemory<D> for Filled<D> {
    type Memory = Buf<Private, D>;

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn into_memory(self) -> Result<Self::Memory, Rejected<Self::Memory>> {
        self.into_buf()
    }
}

/// A post by a queue that is not there.
#[cold]
fn no_queue<D: Driver, B>(control: &QpControl<D>, data: B) -> Rejected<B> {
    let queue = QueueName::new(QueueKind::Recv, control.qp_num(), 0);
    Rejected { error: QueueError::new(PostError::NoQueue, queue), returned: Some(data) }
}

/// The error of a post to this queue.
#[cold]
fn named<D: Driver, B>(flight: &Flight<D>, rejected: Rejected<B>) -> Rejected<B> {
    Rejected { error: flight.error(rejected.error.reason), ..rejected }
}

macro_rules! posts {
    ($locking:ident, [$($this:tt)*], $as_ref:ident) => {
        impl<D: Driver, T: Sends> Qp<T, $locking, D> {
            /// `ibv_post_recv` of one buffer, or of a list. The device may write its whole capacity.
            ///
            /// # Errors
            /// [`PostError::NoQueue`] if an SRQ takes the receives; [`PostError::QueueFull`]; [`PostError::InvalidArgument`] for a
            /// buffer of another domain. The buffer is returned with the error.
            pub fn recv<B: IntoMemory<D, Memory: Memory<D>>>($($this)* self, buf: B) -> Result<(), Rejected<B::Memory>> {
                let memory = buf.into_memory();
                let Some(rq) = self.recv.$as_ref() else {
                    return Err(memory.map_or_else(|rejected| rejected, |data| no_queue(&self.control, data)));
                };
                let data = memory.map_err(|rejected| named(rq.flight(), rejected))?;
                posts!(@recv $locking, rq, data)
            }
        }

        impl<D: Driver, T: Sends + Connected> Qp<T, $locking, D> {
            /// `IBV_WR_SEND` of a buffer, or of a list. Its completion gives it back.
            ///
            /// # Errors
            /// [`PostError::QueueFull`], [`PostError::InvalidArgument`] for a buffer of another domain,
            /// [`PostError::InvalidLength`] for a buffer that is too small for its bytes, or another error of the queue. The buffer is
            /// returned with the error.
            pub fn send<B: IntoMemory<D>>($($this)* self, data: B) -> Result<(), Rejected<B::Memory>> {
                let data = data.into_memory().map_err(|rejected| named(self.send.flight(), rejected))?;
                posts!(@send $locking, self.send, data, |sq| sq.post(0).signaled().send(data))
            }

            /// `IBV_WR_SEND` of bytes that are copied during the call; see [`max_inline_data`](uverbs_core::attr::QpCap).
            ///
            /// # Errors
            /// [`PostError::InvalidLength`] for more than `max_inline_data` bytes, [`PostError::QueueFull`], or another error of the
            /// queue.
            pub fn send_inline($($this)* self, data: &[u8]) -> Result<(), QueueError> {
                posts!(@plain $locking, self.send, |sq| sq.post(0).signaled().send_inline(data))
            }
        }

        impl<D: Driver, T: Sends + Connected + HasPeer> Qp<T, $locking, D> {
            /// `IBV_WR_RDMA_WRITE` of a buffer, or of a list, to the front of `to`.
            ///
            /// # Errors
            /// As [`send`](Self::send), and [`PostError::InvalidLength`] if `to` is shorter.
            pub fn write<B: IntoMemory<D>>($($this)* self, data: B, to: &RemoteRegion) -> Result<(), Rejected<B::Memory>> {
                let data = data.into_memory().map_err(|rejected| named(self.send.flight(), rejected))?;
                posts!(@send $locking, self.send, data, |sq| sq.post(0).signaled().write(data, to))
            }
        }

        impl<D: Driver, T: Sends + Connected + Reliable> Qp<T, $locking, D> {
            /// `IBV_WR_RDMA_READ` of as many bytes as the buffer has, from the front of `from`.
            ///
            /// # Errors
            /// As [`send`](Self::send), and [`PostError::InvalidLength`] if `from` is shorter.
            pub fn read<B: IntoMemory<D, Memory: Memory<D>>>($($this)* self, into: B, from: &RemoteRegion) -> Result<(), Rejected<B::Memory>> {
                let data = into.into_memory().map_err(|rejected| named(self.send.flight(), rejected))?;
                posts!(@send $locking, self.send, data, |sq| sq.post(0).signaled().read(data, from))
            }
        }
    };
    (@send Exclusive, $queue:expr, $data:ident, |$sq:ident| $post:expr) => {{
        let $sq = &mut $queue;
        $post
    }};
    (@send Shared, $queue:expr, $data:ident, |$sq:ident| $post:expr) => {
        match $queue.lock() {
            Ok(mut guard) => {
                let $sq = &mut guard;
                $post
            }
            Err(error) => Err(Rejected { error: $queue.flight().error(error.into()), returned: Some($data) }),
        }
    };
    (@plain Exclusive, $queue:expr, |$sq:ident| $post:expr) => {{
        let $sq = &mut $queue;
        $post
    }};
    (@plain Shared, $queue:expr, |$sq:ident| $post:expr) => {{
        let $sq = &mut $queue.lock().map_err(|error| $queue.flight().error(error.into()))?;
        $post
    }};
    (@recv Exclusive, $rq:ident, $data:ident) => {
        $rq.post(0, $data)
    };
    (@recv Shared, $rq:ident, $data:ident) => {
        match $rq.lock() {
            Ok(mut guard) => guard.post(0, $data),
            Err(error) => Err(Rejected { error: $rq.flight().error(error.into()), returned: Some($data) }),
        }
    };
}

posts!(Exclusive, [&mut], as_mut);
posts!(Shared, [&], as_ref);
