// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two devices, each with a dispatcher and a QP of reliable datagrams, and an executor in virtual time.

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context as TaskContext, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;
use uverbs::attr::AccessFlags;
use uverbs::efa::Efa;
use uverbs::{Buf, ConnectAttr, Context, Endpoint, Exposed, Pool, Private, ProtectionDomain, Srd};
use uverbs_aio::{Clock, Destination, Dispatcher, Qp};
use uverbs_efa_device::{EfaDevice, Fabric};

pub(crate) const BUFS: u32 = 64;
pub(crate) const SIZE: u32 = 4096;
pub(crate) const DEPTH: u32 = 8;
const QKEY: u32 = 0x1234;

#[derive(Debug)]
struct Virtual(Fabric);

impl Clock for Virtual {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

pub(crate) fn attr() -> ConnectAttr {
    ConnectAttr::new().qkey(QKEY)
}

/// A device with a dispatcher, and a QP with its pools.
pub(crate) struct End {
    pub(crate) qp: Qp<Srd, Efa>,
    pub(crate) here: Endpoint,
    pub(crate) pool: Pool<Private, Efa>,
    pub(crate) incoming: Pool<Private, Efa>,
    pub(crate) pd: ProtectionDomain<Efa>,
    pub(crate) dispatcher: Dispatcher<Efa>,
    pub(crate) device: EfaDevice,
}

impl End {
    fn new(device: EfaDevice) -> Self {
        let context = Context::<Efa>::from_kernel(device.open()).unwrap();
        let clock = Arc::new(Virtual(device.fabric()));
        let dispatcher =
            Dispatcher::builder(&context).cqe(256).spin(Duration::ZERO).clock(clock).build().unwrap();
        let pd = context.alloc_pd().unwrap();
        let [pool, incoming] = [(); 2].map(|()| pd.pool(BUFS, SIZE).unwrap());
        let qp = dispatcher.srd_qp(&pd).depth(DEPTH, DEPTH).pool(&incoming).create().unwrap();
        let here = qp.start(&attr()).unwrap();
        Self { qp, here, pool, incoming, pd, dispatcher, device }
    }

    pub(crate) fn filled(&self, data: &[u8]) -> Buf<Private, Efa> {
        let mut buf = self.pool.get().expect("a free buffer");
        buf.fill(data).unwrap();
        buf
    }

    /// A buffer that the peer may access.
    pub(crate) fn exposed(&self) -> Buf<Exposed, Efa> {
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
        self.pd.pool_with(1, SIZE).exposed(access).build().unwrap().get().unwrap()
    }

    pub(crate) fn to(&self, there: &Endpoint) -> Destination<Efa> {
        let attr = attr().on(self.dispatcher.context()).unwrap();
        Destination::new(self.pd.create_ah(&attr.ah_attr(there)).unwrap(), there.qp_num, QKEY)
    }

    /// The address handles that the device has.
    pub(crate) fn handles(&self) -> usize {
        self.device.objects().get("ah").copied().unwrap_or(0)
    }
}

pub(crate) struct Bed {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) fabric: Fabric,
}

impl Bed {
    pub(crate) fn new(seed: u64) -> Self {
        let fabric = Fabric::deterministic(seed);
        let [a, b] = ["efa_0", "efa_1"].map(|name| End::new(fabric.device(name).build()));
        Self { a, b, fabric }
    }

    /// Polls both dispatchers until nothing happens.
    pub(crate) fn settle(&self) {
        for _ in 0..3 {
            for end in [&self.a, &self.b] {
                while end.dispatcher.poll_once().is_ok_and(|n| n > 0) {}
                end.dispatcher.after_sleep().unwrap();
            }
        }
    }

    pub(crate) fn step(&self) {
        self.fabric.run_for(Duration::from_millis(1));
        self.settle();
    }

    /// Runs a future to its end.
    #[track_caller]
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = core::pin::pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        let mut cx = TaskContext::from_waker(&waker);
        for _ in 0..5000 {
            while flag.0.swap(false, Ordering::Relaxed) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return output;
                }
                self.settle();
            }
            self.step();
        }
        panic!("the future is not ready, and nothing happens any more")
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}
