// SPDX-License-Identifier: MIT OR Apache-2.0
//! Removal of a device in use: its driver is unloaded, or the PCI device is removed. Only for mlx5, because the removal
//! of an rxe device waits for its users (see `deletion`).
//!
//! The kernel then destroys all objects and raises an event in every context; calls return `EIO`, doorbells have no
//! effect, and destroying an object succeeds (`ib_uverbs_free_hw_resources()` in uverbs_main.c).

use anyhow::{Context as _, Result, ensure};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use core::time::Duration;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use uverbs::{
    CompletionChannel, ConnectAttr, Context, Driver, Errno, Error, EventSource, Exclusive, Rc, Shared,
    WorkCompletion, raw::Cq,
};
use uverbs::{
    Exposed,
    attr::{
        AccessFlags, EventType, MwType, QpAttr, QpAttrMask, QpCap, QpState, SrqAttr, SrqAttrMask, SrqInitAttr,
    },
};
use uverbs::{PollError, ScopeError};
use uverbs_aio::{Dispatcher, Error as AioError};
use uverbs_tests::child::spawn;
use uverbs_tests::env::End;
use uverbs_tests::lab::PORT;
use uverbs_tests::pair::{builder_ops, region};
use uverbs_tests::wait::{LIMIT, readable, until};
use uverbs_tests::{Child, Face, Lab, LabEnv, Op, Outcome, Pair, PairEnd, Req, Spec, run};

/// The time limit for the kernel to remove a device, or to probe it again.
const REMOVAL_LIMIT: Duration = Duration::from_secs(120);

/// A way to remove the device at end A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// `rmmod mlx5_ib`: the RDMA devices of both ends.
    Driver,
    /// `remove` of the PCI device of A.
    Pci,
}

impl How {
    /// Starts the removal.
    fn begin(self, env: &LabEnv) -> Result<Child> {
        let mut command = match self {
            Self::Driver => {
                let mut command = Command::new("/usr/bin/rmmod");
                command.arg("mlx5_ib");
                command
            }
            Self::Pci => {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", "echo 1 > \"/sys/class/infiniband/$1/device/remove\"", "remove"]);
                command.arg(env.dev(End::A));
                command
            }
        };
        spawn(command.stdin(Stdio::null()))
    }

    /// Restores the device and its addresses.
    fn undo(self) -> Result<()> {
        if self == Self::Pci {
            std::fs::write("/sys/bus/pci/rescan", "1").context("rescan")?;
        }
        run(&mut Command::new("lab-mlx5-up"), REMOVAL_LIMIT).map(drop)
    }
}

/// Restores the devices at the end of the test, also after a failure, for the following tests.
struct Undo(How);

impl Drop for Undo {
    fn drop(&mut self) {
        if let Err(e) = self.0.undo() {
            eprintln!("    the devices were not restored: {e:#}");
        }
    }
}

/// Checks that the call returned `EIO`.
fn gone<T>(what: &str, result: Result<T, Error>) -> Result<()> {
    let errno = result.err().map(|e| e.errno());
    ensure!(errno == Some(Errno::EIO), "{what} on a removed device: {errno:?}");
    Ok(())
}

/// Waits for events of both kinds, as a service does; ends with the event that the device was removed. Returns the
/// number of completion events.
fn listen<D: Driver>(
    context: &Context<D>,
    channel: &CompletionChannel<D>,
    cq: &Cq<Shared, D>,
) -> Result<usize> {
    let mut events = 0;
    let mut wc = [WorkCompletion::default(); 16];
    cq.req_notify(false)?;
    loop {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [context.async_fd(), channel.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let limit = PollTimeout::try_from(REMOVAL_LIMIT).unwrap_or(PollTimeout::MAX);
        ensure!(poll(&mut fds, limit)? > 0, "no event at all within {REMOVAL_LIMIT:?}");
        let [of_device, of_cq] = fds.map(|fd| fd.any().unwrap_or(false));
        if of_device {
            let event = context.get_async_event()?;
            if event.event_type == EventType::DEVICE_FATAL {
                ensure!(event.source == EventSource::Device, "{event:?}");
                return Ok(events);
            }
        }
        if of_cq {
            match channel.get_event() {
                Ok(_) => events += 1,
                // The channel may be closed before the other event was read.
                Err(e) if e.errno() == Errno::EIO => continue,
                Err(e) => return Err(e.into()),
            }
            // Arming is a doorbell, which may have no effect by now.
            cq.req_notify(false)?;
            loop {
                match cq.poll(&mut wc) {
                    Ok(done) if !done.is_empty() => {}
                    // Another thread has noticed the removal; the event is about to come.
                    Ok(_) | Err(PollError::Removed) => break,
                    Err(e) => return Err(e.into()),
                }
            }
        }
    }
}

/// Objects of device A of each kind, besides those of a pair.
struct Objects<D: Driver> {
    channel: CompletionChannel<D>,
    cq: Cq<Shared, D>,
    srq: uverbs::raw::Srq<Exclusive, D>,
    mr: uverbs::MemoryRegion<uverbs::PageBuf, Exposed, D>,
    mw: Option<uverbs::MemoryWindow<D>>,
    pd: uverbs::ProtectionDomain<D>,
}

impl<D: Driver> Objects<D> {
    fn new(context: &Context<D>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let channel = context.create_comp_channel()?;
        let attr = SrqAttr::new(8);
        Ok(Self {
            cq: context.create_cq(16, Some(&channel))?,
            channel,
            srq: pd.create_srq(&SrqInitAttr::new(attr))?,
            mr: region(&pd, 1 << 20, AccessFlags::LOCAL_WRITE)?,
            mw: pd.alloc_mw(MwType::Type2).ok(),
            pd,
        })
    }
}

/// Every verb on a removed device.
fn every_call<D: Driver>(
    lab: &Lab<D>,
    objects: &mut Objects<D>,
    side: &PairEnd<D, Rc, Exclusive>,
) -> Result<()> {
    let context = &lab.a;
    let pd = &objects.pd;
    let attr = lab.connect_attr();
    gone("query_device", context.query_device())?;
    gone("query_port", context.query_port(PORT))?;
    gone("query_gid", context.query_gid_ex(PORT, lab.gid_index.into()))?;
    gone("query_gid_table", context.query_gid_table())?;
    gone("alloc_pd", context.alloc_pd())?;
    gone("create_cq", context.create_cq(4, None))?;
    gone("create_comp_channel", context.create_comp_channel())?;
    gone("open_xrcd", context.open_xrcd(None, true, false))?;
    gone("reg_mr", pd.reg_mr(uverbs::PageBuf::new(4096)?, AccessFlags::LOCAL_WRITE).map_err(|e| e.error))?;
    gone("alloc_mw", pd.alloc_mw(MwType::Type1))?;
    gone("create_ah", pd.create_ah(&attr.ah_attr(&side.here)))?;
    let srq = SrqInitAttr::new(SrqAttr::new(8));
    gone("create_srq", pd.create_srq::<Exclusive>(&srq))?;
    gone("create_qp", pd.raw_qp::<Rc>().cq(&objects.cq).cap(Spec::new(lab).cap).create())?;
    gone("query_qp", side.qp.query(QpAttrMask::STATE))?;
    gone("query_srq", objects.srq.query())?;
    gone("modify_srq", objects.srq.modify(&srq.attr.srq_limit(1), SrqAttrMask::LIMIT))?;
    let error = QpAttr::new().qp_state(QpState::ERR);
    gone("modify_qp", side.qp.modify(&error, QpAttrMask::STATE))?;
    gone("resize_cq", objects.cq.resize(32))?;
    // The sysfs directory was removed with the device.
    ensure!(context.query_pkey(PORT, 0).is_err(), "a removed device has a P_Key");
    context.set_async_nonblocking(true)?;
    // There are no unread events, and the kernel does not close this channel.
    let errno = context.get_async_event().err().map(|e| e.errno());
    ensure!([Some(Errno::EAGAIN), Some(Errno::EIO)].contains(&errno), "another event: {errno:?}");
    gone("get_cq_event", objects.channel.get_event())
}

/// Futures on the device that is removed: all end, and so does the stream of events. Ends after the removal.
fn futures<D: Driver>(a: &Context<D>, b: &Context<D>, attr: &ConnectAttr, sent: &AtomicUsize) -> Outcome {
    let here = Dispatcher::new(a)?;
    let there = Dispatcher::new(b)?;
    let (pd, domain) = (a.alloc_pd()?, b.alloc_pd()?);
    let (pool, incoming) = (pd.pool(8, 4096)?, pd.pool(16, 4096)?);
    let access = AccessFlags::REMOTE_WRITE;
    let table = domain.pool_with(1, 4096).exposed(access).build()?.get().context("the only buffer")?;
    let at = table.remote_region();
    let qp = here.qp(&pd).depth(4, 8).pool(&incoming).create()?;
    let peer = there.qp(&domain).depth(4, 0).create()?;
    qp.init(attr)?;
    peer.init(attr)?;
    let (one, two) = (qp.endpoint(0x51, attr)?, peer.endpoint(0x52, attr)?);
    qp.connect(&one, &two, attr)?;
    peer.connect(&two, &one, attr)?;
    let mut events = here.events();
    here.block_on(here.timeout(REMOVAL_LIMIT, async {
        let recv = qp.recv();
        let mut buf = pool.try_get();
        let error = loop {
            match qp.write(buf.take().ok_or(AioError::Closed)?, &at).await {
                Ok(back) => buf = Some(back),
                Err(failed) => break failed.error,
            }
            sent.fetch_add(1, Ordering::Release);
        };
        // B may be removed before A.
        let expected = matches!(error, AioError::DeviceRemoved | AioError::Completion { .. });
        if !expected || recv.await.is_ok() {
            return Err(error);
        }
        while let Some(event) = events.next().await {
            sent.fetch_add(usize::from(event.event_type == EventType::DEVICE_FATAL), Ordering::Release);
        }
        Ok(())
    }))?;
    let late = here.block_on(qp.send_inline(b"late"));
    let removed = |error: &AioError| matches!(error, AioError::DeviceRemoved);
    ensure!(late.as_ref().is_err_and(|failed| removed(&failed.error)), "{late:?}");
    for ended in [here.block_on(qp.shutdown()), here.block_on(qp.abort()), here.block_on(qp.recv()).map(drop)]
    {
        ensure!(ended.as_ref().is_err_and(|error| !matches!(error, AioError::TimedOut)), "{ended:?}");
    }
    ensure!(here.qp(&pd).create().is_err());
    Ok(())
}

/// A scope without a limit on the device that is removed: its memory is that of its owner again when the removal has ended the
/// objects.
fn scope<D: Driver>(a: &Context<D>, attr: &ConnectAttr, waits: &AtomicBool) -> Outcome {
    let (pd, mut cq) = (a.alloc_pd()?, a.cq_with::<Exclusive>(8, None)?);
    let cap = QpCap::new(4, 4);
    let mut qp = pd.qp::<Rc>().cq(&cq).cap(cap).create()?;
    qp.init(attr)?;
    let here = qp.control().endpoint(0x61, attr)?;
    qp.connect(&here, &here, attr)?;
    let mut memory = vec![0; 1 << 20];
    let ended = qp.scope(&mut cq, Duration::MAX, |scope| {
        let op = scope.recv(&mut memory);
        waits.store(true, Ordering::Release);
        op.is_ok()
    });
    ensure!(matches!(ended, Err(ScopeError::Device(_))), "{ended:?}");
    memory.fill(1);
    qp.close().context("close the QP of a scope")?;
    Ok(())
}

/// The device of A is removed while A writes to B continuously, and threads of A wait for events and in a scope.
fn removed<D: Driver>(lab: &Lab<D>, how: How) -> Outcome {
    let env = lab.env()?;
    if !env.mlx5 {
        lab.note("the removal of rxe waits for its users: see lifecycle::deletion_waits_for_users");
        return Ok(());
    }
    let mut objects = Objects::new(&lab.a)?;
    let spec = Spec::new(lab);
    let mut pair = Pair::<D, Rc, Exclusive>::unconnected(lab, &spec)?;
    let cq = lab.a.create_cq(spec.cqe, Some(&objects.channel))?;
    let ops = builder_ops::<D, Rc>(lab)?;
    pair.a = PairEnd::on(lab.a.alloc_pd()?, cq, &spec, ops, 0x33, None::<&uverbs::raw::Srq<Shared, D>>)?;
    pair.connect(&spec.attr)?;

    let (sent, ended, written) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicUsize::new(0));
    let (one, two, three) = (lab.bed.open(End::A)?, lab.bed.open(End::B)?, lab.bed.open(End::A)?);
    let waits = AtomicBool::new(false);
    let _undo = Undo(how);
    let Pair { a, b } = &mut pair;
    let (remote, data) = (b.remote(0), [a.sge(0..4096)]);
    let PairEnd { qp, cq, .. } = a;
    let (objects_ref, context, cq) = (&objects, &lab.a, &*cq);
    let (events, posted) = thread::scope(|scope| -> Result<(usize, usize)> {
        let listener = scope.spawn(|| {
            let result = listen(context, &objects_ref.channel, cq);
            ended.store(true, Ordering::Release);
            result
        });
        // Posts until the listener has got the event, so also after the removal, when the queue becomes full.
        let poster = scope.spawn(|| -> Result<usize> {
            let mut posted = 0;
            while !ended.load(Ordering::Acquire) {
                let write = Req::new(posted as u64, Op::Write(remote)).signaled().sges(&data);
                match uverbs_tests::post(qp, Face::Batch, &[write]) {
                    Ok(()) => {
                        posted += 1;
                        sent.store(posted, Ordering::Release);
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
            Ok(posted)
        });
        let (one, two, written, attr) = (&one, &two, &written, &spec.attr);
        let futures = scope.spawn(move || futures(one, two, attr, written));
        let borrower = scope.spawn(|| self::scope(&three, attr, &waits));
        let begun = until("traffic flows", LIMIT, || {
            let waits = waits.load(Ordering::Acquire);
            Ok(waits && sent.load(Ordering::Acquire) > 300 && written.load(Ordering::Acquire) > 30)
        });
        let removal = how.begin(env)?;
        removal.success(REMOVAL_LIMIT).context("the removal")?;
        let join = |e: &str| anyhow::anyhow!("the {e} panicked");
        let events = listener.join().map_err(|_| join("listener"))?.context("the listener")?;
        let posted = poster.join().map_err(|_| join("poster"))?.context("the poster")?;
        futures.join().map_err(|_| join("futures"))?.context("the futures")?;
        borrower.join().map_err(|_| join("scope"))?.context("the scope")?;
        begun?;
        Ok((events, posted))
    })?;
    ensure!(events > 0, "no completion event before the removal");
    drop((one, two, three));
    lab.note(format_args!("{posted} writes posted, {events} completion events, then the fatal one"));

    every_call(lab, &mut objects, &pair.a)?;
    // Rings and registers may still be written, without effect.
    let mut wc = [WorkCompletion::default(); 16];
    // What was complete before can be polled; then the removal is the error.
    let end = loop {
        match pair.a.cq.poll(&mut wc) {
            Ok(done) => ensure!(!done.is_empty(), "an empty poll of a removed device is no error"),
            Err(end) => break end,
        }
    };
    ensure!(end == PollError::Removed, "{end:?}");
    pair.a.cq.req_notify(false)?;
    for face in Face::ALL {
        let _ = pair.a.post(face, &[Req::new(1, Op::Send).signaled()]);
        let _ = pair.a.recv(face, 2, 0..64);
    }
    if how == How::Driver {
        ensure!(readable(lab.b.async_fd(), LIMIT)?, "B got no event");
        let event = lab.b.get_async_event()?;
        ensure!(event.event_type == EventType::DEVICE_FATAL, "{event:?}");
        gone("alloc_pd at B", lab.b.alloc_pd())?;
    } else {
        // B still works: its requests fail because A does not answer.
        drop(lab.b.alloc_pd()?);
        ensure!(lab.b.query_device()?.max_qp > 0);
    }

    // All objects of the removed device can be closed; otherwise their memory would be leaked.
    let Objects { channel, cq, srq, mr, mw, pd } = objects;
    let Pair { a, b } = pair;
    let PairEnd { qp, ah, cq: cq_a, mr: mr_a, pd: pd_a, .. } = a;
    ensure!(ah.is_none());
    qp.close().context("close a QP")?;
    cq_a.close().map_err(|(_, e)| e).context("close a CQ")?;
    mr_a.close().map_err(|(_, e)| e).context("close a region")?;
    pd_a.close().map_err(|(_, e)| e).context("close a domain")?;
    if let Some(mw) = mw {
        mw.close().context("close a window")?;
    }
    mr.close().map_err(|(_, e)| e).context("close a region")?;
    srq.close().map_err(|(_, e)| e).context("close an SRQ")?;
    cq.close().map_err(|(_, e)| e).context("close a CQ with a channel")?;
    pd.close().map_err(|(_, e)| e).context("close a domain")?;
    drop((channel, b));
    // A program that posts during the removal can't know that its QPs are already destroyed.
    lab.bed.forgive(&["NoSuchQp", "NoSuchCq", "NotReady"])?;
    Ok(())
}

/// The devices are there again, and work.
fn back<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = Pair::<D, Rc, Exclusive>::new(lab)?;
    for face in Face::ALL {
        pair.message(face, 5000, 3)?;
    }
    Ok(())
}

fn driver_unload_ends_all_objects<D: Driver>(lab: &Lab<D>) -> Outcome {
    removed(lab, How::Driver)
}

fn devices_work_after_the_driver_is_loaded<D: Driver>(lab: &Lab<D>) -> Outcome {
    back(lab)
}

fn pci_removal_ends_all_objects<D: Driver>(lab: &Lab<D>) -> Outcome {
    removed(lab, How::Pci)
}

fn devices_work_after_the_device_is_probed<D: Driver>(lab: &Lab<D>) -> Outcome {
    back(lab)
}

uverbs_tests::tests!(
    driver_unload_ends_all_objects,
    devices_work_after_the_driver_is_loaded,
    pci_removal_ends_all_objects,
    devices_work_after_the_device_is_probed,
);
