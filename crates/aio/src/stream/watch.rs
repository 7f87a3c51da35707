// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a stream's connection, by the connection manager.

use crate::sync::{AtomicBool, Ordering};
use crate::tasks::Tasks;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Waker};
use std::sync::Arc;
use std::task::Wake;

/// Waits until the peer has disconnected.
pub(super) struct Watch {
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    fired: Arc<Fired>,
    waker: Waker,
}

impl Watch {
    pub(super) fn new(future: impl Future<Output = ()> + Send + 'static, tasks: Arc<Tasks>) -> Self {
        let fired = Arc::new(Fired { any: AtomicBool::new(true), tasks });
        Self { future: Box::pin(future), waker: fired.clone().into(), fired }
    }

    /// Whether it has. The future is polled only after it was woken: a stream looks after each message.
    pub(super) fn has_ended(&mut self) -> bool {
        self.fired.any.load(Ordering::Relaxed)
            && self.fired.any.swap(false, Ordering::Acquire)
            && self.future.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready()
    }
}

/// Whether the future of a [`Watch`] was woken.
struct Fired {
    any: AtomicBool,
    tasks: Arc<Tasks>,
}

impl Wake for Fired {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the wake of the tasks, which look at it. The release pairs with the acquire in `has_ended`.
        self.any.store(true, Ordering::Release);
        self.tasks.wake_by_ref();
    }
}
