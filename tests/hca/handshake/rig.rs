// SPDX-License-Identifier: MIT OR Apache-2.0
//! Two software HCAs whose kernel and doorbells can be stopped, and QPs between them.
#![expect(unsafe_code)]
// UNSAFETY: posts receives into a region that owns its pages and lends no references.

use anyhow::{Context as _, Result, anyhow, ensure};
use core::fmt;
use core::time::Duration;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use uverbs::mlx5::Mlx5;
use uverbs::qp::{QpControl, Transport};
use uverbs::{
    ConnectAttr, Context, MemoryRegion, PageBuf, ProtectionDomain, Rc, Shared, WcStatus, WorkCompletion,
    raw::{self, Qp, RecvQueue},
};
use uverbs::{
    Exclusive, Exposed,
    attr::{AccessFlags, QpCap, QpState, SendOpsFlags},
};
use uverbs_core::Errno;
use uverbs_core::kernel::{DoorbellPage, DoorbellPort, Kernel, RawCommand};
use uverbs_hca::{Fabric, Hca};
use uverbs_testkit::kernel::{Script, Scripted};
use uverbs_tests::{Face, Outcome, Refused};
use uverbs_uapi::cmd::IB_USER_VERBS_CMD_RESIZE_CQ;
use uverbs_uapi::ids::{UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE};

/// An action that runs once.
type Action = Box<dyn FnOnce() + Send>;

/// Actions at certain points of a call.
#[derive(Clone, Default)]
pub(super) struct Hooks(Arc<Mutex<Actions>>);

#[derive(Default)]
struct Actions {
    /// After the device got a CQ's new ring, before the driver switches to it.
    resize: Option<Action>,
    /// Before the next doorbell.
    doorbell: Option<Action>,
}

impl Hooks {
    fn take(&self, which: impl FnOnce(&mut Actions) -> &mut Option<Action>) {
        let action = which(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)).take();
        if let Some(action) = action {
            action();
        }
    }

    /// In the middle of the next resize.
    pub(super) fn on_resize(&self, action: impl FnOnce() + Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).resize = Some(Box::new(action));
    }

    /// Before the next doorbell reaches the device.
    pub(super) fn on_doorbell(&self, action: impl FnOnce() + Send + 'static) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).doorbell = Some(Box::new(action));
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

/// A kernel port with hooks.
struct Hooked {
    inner: Arc<dyn Kernel>,
    hooks: Hooks,
}

/// Whether a command is a resize.
fn is_resize(c: &RawCommand<'_, '_>) -> bool {
    let invoke = c.object() == UVERBS_OBJECT_DEVICE && c.method() == UVERBS_METHOD_INVOKE_WRITE;
    let write = c.input(UVERBS_ATTR_WRITE_CMD);
    invoke && write.is_some_and(|b| b.first() == Some(&(IB_USER_VERBS_CMD_RESIZE_CQ as u8)))
}

impl Script for Hooked {
    fn inner(&self) -> Option<&dyn Kernel> {
        Some(&*self.inner)
    }
    fn ioctl(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let result = self.inner.ioctl(c);
        if is_resize(c) {
            self.hooks.take(|actions| &mut actions.resize);
        }
        result
    }
    fn doorbells(&self, _: &dyn Kernel, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        Ok(match self.inner.doorbells(offset, len)? {
            DoorbellPage::Port(port) => {
                DoorbellPage::Port(Arc::new(HookedPort { port, hooks: self.hooks.clone() }))
            }
            page => page,
        })
    }
}

/// Doorbells with a hook.
#[derive(Debug)]
struct HookedPort {
    port: Arc<dyn DoorbellPort>,
    hooks: Hooks,
}

impl DoorbellPort for HookedPort {
    fn ring(&self, offset: u32, value: [u8; 8]) {
        self.hooks.take(|actions| &mut actions.doorbell);
        self.port.ring(offset, value);
    }
    fn blueflame(&self, offset: u32, wqe: &[u8]) {
        self.hooks.take(|actions| &mut actions.doorbell);
        self.port.blueflame(offset, wqe);
    }
}

pub(super) type Cq = raw::Cq<Shared, Mlx5>;
/// A QP whose queues have no lock.
pub(super) type RcQp = Qp<Rc, Exclusive, Mlx5>;
pub(super) type Wc = WorkCompletion;

/// One of the two devices.
#[derive(Debug)]
pub(super) struct End {
    pub(super) hca: Hca,
    pub(super) hooks: Hooks,
    pub(super) pd: ProtectionDomain<Mlx5>,
    pub(super) mr: MemoryRegion<PageBuf, Exposed, Mlx5>,
    pub(super) context: Context<Mlx5>,
}

/// Both devices.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) fabric: Fabric,
    pub(super) a: End,
    pub(super) b: End,
    pub(super) attr: ConnectAttr,
}

/// Bytes of each receive.
pub(super) const SLOT: usize = 64;

impl End {
    fn new(hca: Hca) -> Result<Self> {
        let hooks = Hooks::default();
        let context = Context::<Mlx5>::from_kernel(Arc::new(Scripted(Hooked {
            inner: hca.open(),
            hooks: hooks.clone(),
        })))?;
        let pd = context.alloc_pd()?;
        let mr = uverbs_tests::pair::region(&pd, 1 << 16, ACCESS)?;
        Ok(Self { hca, hooks, pd, mr, context })
    }

    pub(super) fn cq(&self, cqe: u32) -> Result<Cq> {
        Ok(self.context.create_cq(cqe, None)?)
    }

    /// A QP on these CQs.
    pub(super) fn qp(&self, send: &Cq, recv: &Cq, n: u32) -> Result<Qp<Rc, Exclusive, Mlx5>> {
        let ops = SendOpsFlags::SEND | SendOpsFlags::RDMA_WRITE;
        Ok(self.pd.raw_qp::<Rc>().send_cq(send).recv_cq(recv).cap(cap(n)).send_ops(ops).create()?)
    }

    /// Posts a receive with separate memory.
    pub(super) fn recv<L: uverbs_tests::Lock>(
        &self,
        rq: &mut RecvQueue<L, Mlx5>,
        id: u64,
    ) -> Result<(), Refused> {
        let at = id as usize % 1024 * SLOT;
        let sges = [uverbs_tests::sges::sge(&self.mr, at..at + SLOT)];
        uverbs_tests::post_recv(rq, Face::Single, &[(id, &sges)])
    }
}

const ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// Sets the size of the queues.
pub(super) fn cap(n: u32) -> QpCap {
    QpCap::new(n, n).inline(64)
}

impl Rig {
    /// Sets the version of completion entries.
    pub(super) fn new(cqe_version: u8) -> Result<Self> {
        Self::on(Fabric::deterministic(1), cqe_version)
    }

    /// Creates the devices on a fabric.
    pub(super) fn on(fabric: Fabric, cqe_version: u8) -> Result<Self> {
        let end = |name| End::new(fabric.device(name).cqe_version(cqe_version).build());
        let (a, b) = (end("hca0")?, end("hca1")?);
        let attr = ConnectAttr::new().sgid_index(Some(3));
        Ok(Self { fabric, a, b, attr })
    }

    /// Creates two QPs and connects them.
    pub(super) fn connect(&self, a: &QpControl<Mlx5>, b: &QpControl<Mlx5>) -> Result<()> {
        connect(a, b, &self.attr)
    }

    /// Creates a QP on this CQ of A, and its peer, whose CQ is not polled.
    pub(super) fn pair(&self, cq: &Cq, n: u32) -> Result<(RcQp, RcQp)> {
        // Its completions are not polled, so its receives never become free again.
        let peer = self.b.cq(2047)?;
        let (a, b) = (self.a.qp(cq, cq, n)?, self.b.qp(&peer, &peer, 512)?);
        self.connect(&a.control, &b.control)?;
        Ok((a, b))
    }

    /// Checks that the devices recorded no violation and no CQ is in error.
    pub(super) fn clean(&self) -> Outcome {
        for end in [&self.a, &self.b] {
            ensure!(end.hca.violations().is_empty(), "{:?}", end.hca.violations());
            end.context.set_async_nonblocking(true)?;
            if let Ok(event) = end.context.get_async_event() {
                let harmless = matches!(
                    event.event_type,
                    uverbs::attr::EventType::QP_LAST_WQE_REACHED | uverbs::attr::EventType::COMM_EST
                );
                ensure!(harmless, "{event:?}");
            }
        }
        Ok(())
    }
}

/// From RESET to RTS.
pub(super) fn connect(a: &QpControl<Mlx5>, b: &QpControl<Mlx5>, attr: &ConnectAttr) -> Result<()> {
    a.init(attr)?;
    b.init(attr)?;
    let (here, there) = (a.endpoint(1, attr)?, b.endpoint(2, attr)?);
    a.connect(&here, &there, attr)?;
    Ok(b.connect(&there, &here, attr)?)
}

/// To RESET and back to RTS.
pub(super) fn reconnect(a: &QpControl<Mlx5>, b: &QpControl<Mlx5>, attr: &ConnectAttr) -> Result<()> {
    for control in [a, b] {
        control.modify_state(QpState::RESET)?;
    }
    connect(a, b, attr)
}

/// Sends of 0 bytes, each with a receive for it.
pub(super) fn send<T>(
    a: &mut Qp<T, Exclusive, Mlx5>,
    b: &mut Qp<T, Exclusive, Mlx5>,
    ids: core::ops::Range<u64>,
) -> Result<()>
where
    T: uverbs_tests::Typed<Mlx5> + uverbs::qp::transport::Connected + Transport,
{
    for id in ids {
        // SAFETY: names no memory.
        unsafe { b.rq()?.post(id, &[])? };
        a.sq().post(id).signaled().send_inline(b"")?;
    }
    Ok(())
}

/// The ids of the completions of a poll, all of which succeeded.
pub(super) fn polled(cq: &Cq) -> Result<Vec<u64>> {
    let mut wc = [Wc::default(); 64];
    let got = cq.poll(&mut wc)?;
    ensure!(got.iter().all(|wc| wc.status == WcStatus::SUCCESS), "{}", uverbs_tests::wait::list(got));
    Ok(got.iter().map(|wc| wc.wr_id).collect())
}

/// Checks the queues of a QP: they accept as many WRs as they have room for, and each completes once.
pub(super) fn works(
    rig: &Rig,
    a: &mut Qp<Rc, Exclusive, Mlx5>,
    b: &mut Qp<Rc, Exclusive, Mlx5>,
    cq: &Cq,
    n: u64,
) -> Outcome {
    for turn in 0..3 {
        let ids = 5000 + turn * 100..5000 + turn * 100 + n;
        send(a, b, ids.clone()).context("as many as fit")?;
        rig.fabric.run();
        let got = polled(cq)?;
        ensure!(got.iter().copied().eq(ids.clone()), "{got:?} instead of {ids:?}");
    }
    rig.clean()
}

/// Work in another thread. The test waits for it only for a short time before it continues.
#[derive(Debug)]
pub(super) struct Elsewhere<T> {
    thread: thread::JoinHandle<T>,
    done: Receiver<()>,
}

/// The time for a call that may be waiting for this thread.
const MOMENT: Duration = Duration::from_millis(100);

impl<T: Send + 'static> Elsewhere<T> {
    pub(super) fn new(f: impl FnOnce() -> T + Send + 'static) -> Self {
        let (tell, done): (Sender<()>, _) = channel();
        let thread = thread::spawn(move || {
            let _tell = tell;
            f()
        });
        Self { thread, done }
    }

    /// Waits a moment, and returns whether the work is done. It may be waiting for this thread.
    pub(super) fn moment(&self) -> bool {
        self.done.recv_timeout(MOMENT) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    }

    /// Waits a shorter moment.
    pub(super) fn moment_short(&self) -> bool {
        self.done.recv_timeout(MOMENT / 20) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
    }

    pub(super) fn join(self) -> Result<T> {
        ensure!(
            self.done.recv_timeout(Duration::from_secs(60))
                == Err(std::sync::mpsc::RecvTimeoutError::Disconnected),
            "a control call does not end"
        );
        self.thread.join().map_err(|_| anyhow!("a thread panicked"))
    }
}
