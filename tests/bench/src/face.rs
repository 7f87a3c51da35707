// SPDX-License-Identifier: MIT OR Apache-2.0
//! The typed calls over both lockings, so that a row is written once.
//!
//! An exclusive queue is used through `&mut`; of a shared one, each post, batch or poll takes the lock.

#![expect(unsafe_code)]
// UNSAFETY: receives name memory.

use crate::BATCH;
use crate::matrix::Call;
use crate::places::Places;
use crate::world::{Pair, World};
use core::cell::RefCell;
use uverbs::mlx5::Mlx5;
use uverbs::provider::CompletionQueue as Engine;
use uverbs::qp::transport::{Sends, Transport};
use uverbs::raw::Poll;
use uverbs::raw::SendGuard;
use uverbs::raw::{AtOnce, PostTo, ToBatch, Wr};
use uverbs::{
    ConnectAttr, Dci, Driver, Exclusive, PollError, QueueError, RawPacket, Rc, Shared, Uc, Ud,
    WorkCompletion, XrcSend,
    raw::{Cq, Srq},
};
use uverbs::{
    qp::QpControl,
    raw::{Batch, QpBuilder, RecvQueue, SendQueue},
};
use uverbs_core::sync::Locking;

/// The completion that the driver passes to a poller.
pub type Completion<'a, D> = <<D as Driver>::CompletionQueue as Engine>::Completion<'a>;

/// A driver whose posts are measured.
pub trait Device: Driver {
    /// What the requests name.
    type Places;
    /// The memory of the i-th receive.
    fn sges<const N: usize>(p: &Self::Places, i: u32) -> [Self::Sge; N];
}

impl Device for Mlx5 {
    type Places = Places;
    #[inline(always)]
    fn sges<const N: usize>(p: &Places, i: u32) -> [Self::Sge; N] {
        [p.sge(i); N]
    }
}

/// A transport of mlx5.
pub trait Peer: Posts<Mlx5> {
    /// The QP of the world for single entries, by lists and the typed face or by the `wr_*` calls.
    fn usual<L: Face>(_: &'static World<L>, _: Call) -> Option<&'static RefCell<Pair<Self, L>>> {
        None
    }
}

/// A transport, and the address of its requests.
pub trait Posts<D: Device>: Sends + Sized {
    /// A request that an exclusive queue posts at once.
    fn exclusive<'q>(
        queue: &'q mut SendQueue<Self, Exclusive, D>,
        p: &'q D::Places,
        wr_id: u64,
    ) -> Wr<'q, AtOnce<'q, D>, Self, D>;
    /// A request that a locked queue posts at once.
    fn guarded<'q>(
        queue: &'q mut SendGuard<'_, Self, D>,
        p: &'q D::Places,
        wr_id: u64,
    ) -> Wr<'q, AtOnce<'q, D>, Self, D>;
    /// A request of a batch.
    fn batched<'b, 'q>(
        batch: &'b mut Batch<'q, Self, D>,
        p: &'b D::Places,
        wr_id: u64,
    ) -> Wr<'b, ToBatch<'b, 'q, D>, Self, D>;
}

/// The QP number of datagrams' destination.
pub const REMOTE_QPN: u32 = 0x123;
/// Their queue key.
pub const REMOTE_QKEY: u32 = 0x1111_1111;
/// The number of the remote SRQ.
pub const REMOTE_SRQN: u32 = 0x77;
/// The key of the target of dynamic connections.
const DC_KEY: u64 = 0x1122_3344_5566_7788;

/// Moves a QP to RTS.
pub fn start(qp: &QpControl<Mlx5>) {
    let attr = ConnectAttr::new().sgid_index(Some(3));
    if qp.qp_type() == Dci::QP_TYPE {
        return qp.connect_dci(&attr).expect("RTS");
    }
    qp.init(&attr).expect("INIT");
    let here = qp.endpoint(1, &attr).expect("an endpoint");
    qp.connect(&here, &here, &attr).expect("RTS");
}

/// Defines how the calls of a transport begin a request: the arguments of `$post` and `$wr` behind the `wr_id`.
macro_rules! posts {
    ($driver:ty, $transport:ty, $post:ident, $wr:ident, |$p:ident| $($arg:expr),*) => {
        impl $crate::face::Posts<$driver> for $transport {
            #[inline(always)]
            fn exclusive<'q>(
                queue: &'q mut SendQueue<Self, Exclusive, $driver>,
                $p: &'q Places,
                wr_id: u64,
            ) -> Wr<'q, AtOnce<'q, $driver>, Self, $driver> {
                let _ = $p;
                queue.$post(wr_id, $($arg),*)
            }
            #[inline(always)]
            fn guarded<'q>(
                queue: &'q mut SendGuard<'_, Self, $driver>,
                $p: &'q Places,
                wr_id: u64,
            ) -> Wr<'q, AtOnce<'q, $driver>, Self, $driver> {
                let _ = $p;
                queue.$post(wr_id, $($arg),*)
            }
            #[inline(always)]
            fn batched<'b, 'q>(
                batch: &'b mut Batch<'q, Self, $driver>,
                $p: &'b Places,
                wr_id: u64,
            ) -> Wr<'b, ToBatch<'b, 'q, $driver>, Self, $driver> {
                let _ = $p;
                batch.$wr(wr_id, $($arg),*)
            }
        }
    };
}
pub(crate) use posts;

macro_rules! peer {
    ($transport:ty, $post:ident, $wr:ident, |$p:ident| $($arg:expr),* $(; $usual:item)?) => {
        impl Peer for $transport {
            $($usual)?
        }
        posts!(Mlx5, $transport, $post, $wr, |$p| $($arg),*);
    };
}
peer! {
    Rc, post, wr, |_p|;
    fn usual<L: Face>(w: &'static World<L>, call: Call) -> Option<&'static RefCell<Pair<Self, L>>> {
        Some(if call == Call::List { &w.rc } else { &w.rc_ex })
    }
}
peer!(Uc, post, wr, |_p|);
peer!(RawPacket, post_frame, frame, |_p|);
peer!(XrcSend, post_srq, wr_srq, |_p| REMOTE_SRQN);
peer!(Dci, post_dc, wr_dc, |p| &p.ah, REMOTE_QPN, DC_KEY);
peer!(Ud, post_to, wr_to, |p| &p.ah, REMOTE_QPN, REMOTE_QKEY);

/// A request of transport `T`, as a program writes it: the flags, the operation, what it names.
pub trait Operation<T: Posts<D>, D: Device = Mlx5> {
    /// Passes the request to a sink.
    fn put<S: PostTo<D>>(wr: Wr<'_, S, T, D>, p: &D::Places, i: u32) -> S::Out;
}

/// A locking: how the typed calls reach a queue.
pub trait Face: Locking {
    /// The locking of a QP that is created.
    fn of_qp<D: Driver, T: Transport>(builder: QpBuilder<'_, T, Exclusive, D>) -> QpBuilder<'_, T, Self, D>;
    /// Posts one request.
    fn post<D: Device, T: Posts<D>, O: Operation<T, D>>(
        q: &mut SendQueue<T, Self, D>,
        p: &D::Places,
        i: u32,
    ) -> Posted;
    /// Posts a batch of [`BATCH`] requests, the first of which is `first`.
    fn post_batch<D: Device, T: Posts<D>, O: Operation<T, D>>(
        q: &mut SendQueue<T, Self, D>,
        p: &D::Places,
        first: u32,
    ) -> Posted;
    /// Posts one receive.
    fn recv<D: Device, const N: usize>(q: &mut RecvQueue<Self, D>, p: &D::Places, i: u32) -> Posted;
    /// Posts a batch of receives.
    fn recv_batch<D: Device, const N: usize>(q: &mut RecvQueue<Self, D>, p: &D::Places, first: u32)
    -> Posted;
    /// Posts one receive to an SRQ.
    fn srq_recv<D: Device, const N: usize>(q: &mut Srq<Self, D>, p: &D::Places, i: u32) -> Posted;
    /// Posts a batch of receives to an SRQ.
    fn srq_recv_batch<D: Device, const N: usize>(q: &mut Srq<Self, D>, p: &D::Places, first: u32) -> Posted;
    /// Polls by a callback.
    fn poll_each<D: Driver>(q: &mut Cq<Self, D>, max: usize, f: impl FnMut(&Completion<'_, D>)) -> Polled;
    /// Polls into an array.
    fn poll<D: Driver>(q: &mut Cq<Self, D>, wc: &mut [WorkCompletion]) -> Polled;
    /// Requests an event.
    fn req_notify<D: Driver>(q: &mut Cq<Self, D>) -> Result<(), PollError>;
    /// Polls in a session.
    fn poll_session<D: Driver>(
        q: &mut Cq<Self, D>,
        f: impl FnOnce(&mut Poll<'_, D>),
    ) -> Result<(), PollError>;
}

/// The result of a post.
pub type Posted = Result<(), QueueError>;
/// The result of a poll.
pub type Polled = Result<usize, PollError>;

/// The calls that post receives to one kind of queue: a single one, and a batch.
macro_rules! receive_calls {
    ($queue:ident, $single:ident, $batch:ident, |$q:ident| $enter:expr) => {
        #[inline(always)]
        fn $single<D: Device, const N: usize>($q: &mut $queue<Self, D>, p: &D::Places, i: u32) -> Posted {
            let session = &mut *$enter;
            // SAFETY: no device writes the memory.
            unsafe { session.post(i.into(), &D::sges::<N>(p, i)) }
        }
        #[inline(always)]
        fn $batch<D: Device, const N: usize>($q: &mut $queue<Self, D>, p: &D::Places, first: u32) -> Posted {
            let session = &mut *$enter;
            let mut batch = session.batch();
            for i in first..first + BATCH {
                // SAFETY: no device writes the memory.
                unsafe { batch.push(i.into(), &D::sges::<N>(p, i)) };
            }
            batch.complete()
        }
    };
}

/// The calls of one locking: `$single` posts one request, `$enter` opens a session `$s` of the queue `$q`.
macro_rules! face {
    ($locking:ty, $single:ident, |$builder:ident| $of_qp:expr, |$q:ident| $enter:expr) => {
        impl Face for $locking {
            fn of_qp<D: Driver, T: Transport>(
                $builder: QpBuilder<'_, T, Exclusive, D>,
            ) -> QpBuilder<'_, T, Self, D> {
                $of_qp
            }
            #[inline(always)]
            fn post<D: Device, T: Posts<D>, O: Operation<T, D>>(
                $q: &mut SendQueue<T, Self, D>,
                p: &D::Places,
                i: u32,
            ) -> Posted {
                let session = &mut *$enter;
                O::put(T::$single(session, p, i.into()), p, i)
            }
            #[inline(always)]
            fn post_batch<D: Device, T: Posts<D>, O: Operation<T, D>>(
                $q: &mut SendQueue<T, Self, D>,
                p: &D::Places,
                first: u32,
            ) -> Posted {
                let session = &mut *$enter;
                let mut batch = session.batch();
                for i in first..first + BATCH {
                    O::put(T::batched(&mut batch, p, i.into()), p, i);
                }
                batch.complete()
            }
            receive_calls!(RecvQueue, recv, recv_batch, |$q| $enter);
            receive_calls!(Srq, srq_recv, srq_recv_batch, |$q| $enter);
            #[inline(always)]
            fn poll_each<D: Driver>(
                q: &mut Cq<Self, D>,
                max: usize,
                f: impl FnMut(&Completion<'_, D>),
            ) -> Polled {
                q.poll_each(max, f)
            }
            #[inline(always)]
            fn poll<D: Driver>(q: &mut Cq<Self, D>, wc: &mut [WorkCompletion]) -> Polled {
                Ok(q.poll(wc)?.len())
            }
            #[inline(always)]
            fn req_notify<D: Driver>(q: &mut Cq<Self, D>) -> Result<(), PollError> {
                q.req_notify(false)
            }
            #[inline(always)]
            fn poll_session<D: Driver>(
                q: &mut Cq<Self, D>,
                f: impl FnOnce(&mut Poll<'_, D>),
            ) -> Result<(), PollError> {
                q.poll_session(f)
            }
        }
    };
}
face!(Exclusive, exclusive, |builder| builder, |q| q);
face!(Shared, guarded, |builder| builder.shared(), |q| &mut q.lock()?);
