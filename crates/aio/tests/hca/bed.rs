// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two connected ends, and an executor in virtual time.

use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context as TaskContext, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs::{Buf, Exposed, Pool};
use uverbs::{ConnectAttr, Context, ProtectionDomain};
use uverbs::{Private, attr::AccessFlags};
use uverbs_aio::{Clock, Dispatcher, Qp, Result};
use uverbs_hca::{DeviceBuilder, Fabric, Hca};

/// Buffers of a pool, and their bytes.
pub(crate) const BUFS: u32 = 64;
pub(crate) const SIZE: u32 = 4096;
/// Depth of a QP's queues.
pub(crate) const DEPTH: u32 = 8;

/// The time of a fabric.
#[derive(Debug)]
struct Virtual(Fabric);

impl Clock for Virtual {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

/// The rights of the peer. The ACK timeout is 17 ms: a loaded machine keeps it, and it is few rounds of virtual time.
pub(crate) fn attr() -> ConnectAttr {
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    ConnectAttr::new().access(access).timeout(12).max_rd_atomic(4).max_dest_rd_atomic(4)
}

/// A device with a dispatcher, and a QP with its pools.
pub(crate) struct End {
    pub(crate) qp: Qp<Rc, Mlx5>,
    /// For sends.
    pub(crate) pool: Pool<Private, Mlx5>,
    /// For receives.
    pub(crate) incoming: Pool<Private, Mlx5>,
    pub(crate) pd: ProtectionDomain<Mlx5>,
    pub(crate) dispatcher: Dispatcher<Mlx5>,
    pub(crate) hca: Hca,
}

impl End {
    pub(crate) fn new(hca: Hca, virtual_time: bool) -> Self {
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let builder = Dispatcher::builder(&context).cqe(1024).spin(Duration::ZERO);
        let builder = match virtual_time {
            true => builder.clock(Arc::new(Virtual(hca.fabric()))),
            false => builder,
        };
        let dispatcher = builder.build().unwrap();
        let pd = context.alloc_pd().unwrap();
        let [pool, incoming] = [(); 2].map(|()| pd.pool(BUFS, SIZE).unwrap());
        let qp = dispatcher.qp(&pd).depth(DEPTH, DEPTH).pool(&incoming).create().unwrap();
        Self { qp, pool, incoming, pd, dispatcher, hca }
    }

    /// A buffer with these bytes.
    pub(crate) fn filled(&self, data: &[u8]) -> Buf<Private, Mlx5> {
        let mut buf = self.pool.get().expect("a free buffer");
        buf.fill(data).unwrap();
        buf
    }

    /// A buffer that the peer may access.
    pub(crate) fn exposed(&self) -> Buf<Exposed, Mlx5> {
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        self.pd.pool_with(1, SIZE).exposed(access).build().unwrap().get().unwrap()
    }

    /// All buffers are in their pools, except the receives that are posted: less than a quarter of the queue may be missing.
    pub(crate) fn assert_no_leak(&self, depth: u32) {
        assert_eq!(self.pool.available() as u32, BUFS, "buffers of sends");
        let posted = BUFS - self.incoming.available() as u32;
        assert!(
            (depth - (depth / 4).saturating_sub(1)..=depth).contains(&posted),
            "{posted} receives of {depth}"
        );
        assert_eq!(self.hca.violations(), []);
    }
}

/// Connects two QPs.
pub(crate) fn connect(a: &Qp<Rc, Mlx5>, b: &Qp<Rc, Mlx5>) {
    let attr = attr();
    a.init(&attr).unwrap();
    b.init(&attr).unwrap();
    let (here, there) = (a.endpoint(1, &attr).unwrap(), b.endpoint(2, &attr).unwrap());
    a.connect(&here, &there, &attr).unwrap();
    b.connect(&there, &here, &attr).unwrap();
}

/// Two connected ends in virtual time.
pub(crate) struct Bed {
    pub(crate) a: End,
    pub(crate) b: End,
    pub(crate) fabric: Fabric,
}

impl Bed {
    pub(crate) fn new() -> Self {
        Self::seeded(7)
    }

    pub(crate) fn seeded(seed: u64) -> Self {
        Self::of(Fabric::deterministic(seed), |device| device)
    }

    /// With devices that are built in another way.
    pub(crate) fn of(fabric: Fabric, build: impl Fn(DeviceBuilder) -> DeviceBuilder) -> Self {
        let [a, b] = ["hca0", "hca1"].map(|name| End::new(build(fabric.device(name)).build(), true));
        connect(&a.qp, &b.qp);
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

    /// Lets the devices do one step of work.
    pub(crate) fn step(&self) {
        self.fabric.run_for(Duration::from_micros(100));
        self.settle();
    }

    /// Runs a future to its end; `None` if it is not ready after five seconds of virtual time.
    pub(crate) fn try_run<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = core::pin::pin!(future);
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(flag.clone());
        let mut cx = TaskContext::from_waker(&waker);
        for _ in 0..5000 {
            while flag.0.swap(false, Ordering::Relaxed) {
                if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
                    return Some(output);
                }
                self.settle();
            }
            self.fabric.run_for(Duration::from_millis(1));
            self.settle();
        }
        None
    }

    /// As `try_run`, for a future that must end.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        self.try_run(future).expect("the future is not ready, and nothing happens any more")
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

/// A task of [`join`].
pub(crate) type Task<'a> = Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Runs tasks until all have ended; the first error.
pub(crate) async fn join(mut tasks: Vec<Task<'_>>) -> Result<()> {
    core::future::poll_fn(|cx| {
        let mut i = 0;
        while i < tasks.len() {
            match tasks[i].as_mut().poll(cx) {
                Poll::Ready(Ok(())) => drop(tasks.remove(i)),
                Poll::Ready(error) => return Poll::Ready(error),
                Poll::Pending => i += 1,
            }
        }
        if tasks.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    })
    .await
}
