// SPDX-License-Identifier: MIT OR Apache-2.0
//! The queues of a QP, in the same form for a QP that owns its buffers and for a raw one.

use crate::qp::control::QpControl;
use uverbs_core::provider::{Driver, PostError, QueueError, QueueKind, QueueName};

/// The error of a QP that has no receive queue of its own.
#[cold]
pub(crate) fn no_recv_queue<D: Driver>(control: &QpControl<D>) -> QueueError {
    QueueError::new(PostError::NoQueue, QueueName::new(QueueKind::Recv, control.qp_num(), 0))
}

/// Methods of `Qp`, whose fields are `send`, `recv` and `control`: `sq` and `rq`, through `&mut` for queues without a lock and
/// through `&` for queues with one, and `sq_mut` and `rq_mut`, which do not depend on the locking.
macro_rules! halves {
    () => {
        impl<D: Driver, T: Sends, L: Locking> Qp<T, L, D> {
            /// The send queue, for a function that is generic over the locking. Other functions use `sq`.
            #[cfg_attr(not(debug_assertions), inline(always))]
            #[must_use]
            pub const fn sq_mut(&mut self) -> &mut SendQueue<T, L, D> {
                &mut self.send
            }

            /// The receive queue, for a function that is generic over the locking. Other functions use `rq`.
            ///
            /// # Errors
            /// [`PostError::NoQueue`](crate::PostError::NoQueue), with the QP, if an SRQ takes the receives or the type of the QP has no
            /// receive queue.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn rq_mut(&mut self) -> Result<&mut RecvQueue<L, D>, QueueError> {
                self.recv.as_mut().ok_or_else(|| crate::qp::halves::no_recv_queue(&self.control))
            }
        }
        crate::qp::halves::halves!(Exclusive, as_mut, mut);
        crate::qp::halves::halves!(Shared, as_ref,);
    };
    ($locking:ident, $as_ref:ident, $($mutable:tt)?) => {
        impl<D: Driver, T: Sends> Qp<T, $locking, D> {
            /// The send queue.
            #[cfg_attr(not(debug_assertions), inline(always))]
            #[must_use]
            pub const fn sq(& $($mutable)? self) -> & $($mutable)? SendQueue<T, $locking, D> {
                & $($mutable)? self.send
            }

            /// The receive queue.
            ///
            /// # Errors
            /// [`PostError::NoQueue`](crate::PostError::NoQueue), with the QP, if an SRQ takes the receives or the type of the QP has no
            /// receive queue.
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub fn rq(& $($mutable)? self) -> Result<& $($mutable)? RecvQueue<$locking, D>, QueueError> {
                self.recv.$as_ref().ok_or_else(|| crate::qp::halves::no_recv_queue(&self.control))
            }
        }
    };
}
pub(crate) use halves;
