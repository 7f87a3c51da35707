// SPDX-License-Identifier: MIT OR Apache-2.0
//! All configurations of the software HCA: link layers, versions of completions, doorbell pages. Also QPs that many
//! threads create and destroy on one device.
#![expect(unsafe_code)]
// UNSAFETY: posts WRs whose memory each test keeps until their completions are polled.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;
use uverbs::mlx5::Mlx5;
use uverbs::wc::WorkCompletion;
use uverbs::{
    ConnectAttr, Context, MemoryRegion, PageBuf, ProtectionDomain, Rc, RegError, Shared, WcStatus,
    raw::{Cq, Qp},
};
use uverbs::{
    Exclusive, Exposed,
    attr::{AccessFlags, CqInitAttr, QpCap},
};
use uverbs_core::Errno;
use uverbs_core::kernel::{Kernel, RawCommand};
use uverbs_hca::{Fabric, Hca, Link};
use uverbs_testkit::kernel::{Script, Scripted};
use uverbs_tests::{Outcome, Test};
use uverbs_uapi::cmd::{IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_REREG_MR};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_OBJECT_DEVICE,
};

struct End {
    context: Context<Mlx5>,
    pd: ProtectionDomain<Mlx5>,
    cq: Cq<Exclusive, Mlx5>,
    mr: MemoryRegion<PageBuf, Exposed, Mlx5>,
}

const ALL: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_ATOMIC);

impl End {
    fn new(hca: &Hca) -> Self {
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq_ex(&CqInitAttr::new(64), None).unwrap();
        let mr = pd.reg_mr(PageBuf::new(8192).unwrap(), ALL).map_err(|e| e.error).unwrap();
        Self { context, pd, cq, mr }
    }

    /// The next completion; runs the fabric until there is one.
    fn poll(&mut self, hca: &Hca) -> WorkCompletion {
        for _ in 0..1000 {
            let mut wc = [WorkCompletion::default()];
            if let [wc] = self.cq.poll(&mut wc).unwrap() {
                return *wc;
            }
            hca.run();
        }
        panic!("no completion");
    }

    fn poll_ok(&mut self, hca: &Hca) -> WorkCompletion {
        let wc = self.poll(hca);
        assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
        wc
    }

    fn nothing(&mut self, hca: &Hca) {
        hca.run();
        assert!(self.cq.poll(&mut [WorkCompletion::default()]).unwrap().is_empty());
    }
}

const CAP: QpCap = QpCap::new(8, 8).sge(2, 1).inline(64);

fn clean(hca: &Hca) {
    assert!(hca.violations().is_empty(), "{:?}", hca.violations());
}

fn rc_pair(a: &End, b: &End, attr: &ConnectAttr) -> (Qp<Rc, Exclusive, Mlx5>, Qp<Rc, Exclusive, Mlx5>) {
    let qp = |end: &End| {
        let qp = end.pd.raw_qp::<Rc>().cq(&end.cq).cap(CAP).create().unwrap();
        qp.init(attr).unwrap();
        let endpoint = qp.control.endpoint(17, attr).unwrap();
        (qp, endpoint)
    };
    let ((qa, ea), (qb, eb)) = (qp(a), qp(b));
    qa.connect(&ea, &eb, attr).unwrap();
    qb.connect(&eb, &ea, attr).unwrap();
    (qa, qb)
}

/// Sends, writes, reads and atomics on one device, with this many pages of registers (`None`: those that are allocated
/// with the context).
fn traffic(hca: &Hca, sgid_index: Option<u8>, atomics: bool, pages: Option<usize>) {
    let (mut a, mut b) = (End::new(hca), End::new(hca));
    let attr = ConnectAttr::new().sgid_index(sgid_index).access(ALL);
    // More QPs than a context has registers; the last few are in a thread domain.
    let mut pairs: Vec<_> = (0..12).map(|_| rc_pair(&a, &b, &attr)).collect();
    let td = a.context.alloc_td().unwrap();
    let parent = a.pd.parent_domain(&td).unwrap();
    let plain = core::mem::replace(&mut a.pd, parent);
    pairs.extend((0..3).map(|_| rc_pair(&a, &b, &attr)));
    a.pd = plain;
    assert_eq!(hca.objects().get("uar").copied(), pages);
    for (n, (qa, qb)) in pairs.iter_mut().enumerate() {
        let n = n as u64;
        let at = n as usize * 64;
        let sge = b.mr.sge(at..at + 64).unwrap();
        // SAFETY: the regions live until the completions are polled.
        unsafe { qb.rq().unwrap().post(n, &[sge]) }.unwrap();
        let sq = qa.sq();
        sq.post(n).signaled().send_inline(&n.to_ne_bytes()).unwrap();
        assert_eq!((a.poll_ok(hca).wr_id, b.poll_ok(hca).wr_id), (n, n));
        let mut got = [0; 8];
        b.mr.read_at(at, &mut got).unwrap();
        assert_eq!(u64::from_ne_bytes(got), n);
        let back = a.mr.sge(at..at + 8).unwrap();
        let (sq, from) = (qa.sq(), b.mr.remote(at).unwrap());
        if atomics {
            // SAFETY: the regions live until the completions are polled.
            unsafe { sq.post(100 + n).signaled().fetch_add(&[back], from, 5) }.unwrap();
        } else {
            // SAFETY: the regions live until the completions are polled.
            unsafe { sq.post(100 + n).signaled().read(&[back], from) }.unwrap();
        }
        assert_eq!(a.poll_ok(hca).wr_id, 100 + n);
        a.mr.read_at(at, &mut got).unwrap();
        assert_eq!(u64::from_ne_bytes(got), n);
    }
    drop(pairs);
    a.nothing(hca);
    b.nothing(hca);
    drop((td, a, b));
    assert!(hca.objects().values().all(|n| *n == 0), "{:?}", hca.objects());
    clean(hca);
}

/// Every configuration carries traffic, with more QPs than registers.
fn every_configuration_carries_traffic() -> Outcome {
    let fabric = Fabric::deterministic(4);
    // Each context uses one page to arm CQs. The others have two registers each, enough for 15 QPs.
    let all = Some(2 * (1 + 8));
    traffic(&fabric.device("plain").build(), Some(3), true, all);
    traffic(&fabric.device("ib").link(Link::InfiniBand).build(), None, true, all);
    traffic(&fabric.device("v0").cqe_version(0).build(), Some(3), true, all);
    traffic(&fabric.device("no_bf").blue_flame(false).build(), Some(3), true, Some(2));
    traffic(&fabric.device("old").dynamic_uars(false).build(), Some(3), true, None);
    traffic(&fabric.device("few").max_uars(5).build(), Some(3), true, Some(5));
    traffic(&fabric.device("no_atomics").atomics(false).build(), Some(3), false, all);
    Ok(())
}

/// Many threads, which share one CQ, create and destroy QPs. Each thread polls the completions of all.
fn threads_create_and_destroy_qps_on_one_cq() -> Outcome {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 60;
    let hca = Hca::new();
    let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    // One CQ for all threads: each poll may return completions of all QPs, which other threads destroy at the same
    // time.
    let cq: Cq<Shared, Mlx5> = context.create_cq(4096, None).unwrap();
    let mr = pd.reg_mr(PageBuf::new(4096).unwrap(), ALL).map_err(|e| e.error).unwrap();
    let done: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let attr = ConnectAttr::new().sgid_index(Some(3)).access(ALL);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pd, cq, mr, done, attr) = (&pd, &cq, &mr, &done, &attr);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let mut qp = pd.raw_qp::<Rc>().cq(cq).cap(CAP).create().unwrap();
                    qp.init(attr).unwrap();
                    let here = qp.control.endpoint(round as u32, attr).unwrap();
                    qp.connect(&here, &here, attr).unwrap();
                    let to = mr.remote(thread as usize * 8).unwrap();
                    let sq = qp.sq();
                    sq.post(thread).signaled().write_inline(&round.to_ne_bytes(), to).unwrap();
                    // The thread does not wait for this completion, which is reported or is removed with its QP.
                    if round % 3 == 0 {
                        sq.post(u64::MAX).signaled().write_inline(&round.to_ne_bytes(), to).unwrap();
                    }
                    let started = Instant::now();
                    while done[thread as usize].load(Ordering::Relaxed) <= round {
                        let mut wcs = [WorkCompletion::default(); 8];
                        for wc in cq.poll(&mut wcs).unwrap() {
                            assert_eq!(wc.status, WcStatus::SUCCESS);
                            if let Some(done) = done.get(wc.wr_id as usize) {
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                        assert!(
                            started.elapsed() < Duration::from_secs(60),
                            "thread {thread}, round {round}"
                        );
                    }
                    qp.close().unwrap();
                }
            });
        }
    });
    for thread in 0..THREADS {
        let mut last = [0; 8];
        mr.read_at(thread as usize * 8, &mut last).unwrap();
        assert_eq!(u64::from_ne_bytes(last), ROUNDS - 1);
    }
    drop((cq, mr, pd, context));
    assert!(hca.objects().values().all(|n| *n == 0), "{:?}", hca.objects());
    clean(&hca);
    Ok(())
}

/// A kernel that registers memory and, if the flag is set, returns an invalid answer.
struct InvalidAnswers(Arc<dyn Kernel>, Arc<AtomicBool>);

impl Script for InvalidAnswers {
    fn inner(&self) -> Option<&dyn Kernel> {
        Some(&*self.0)
    }

    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        self.0.ioctl(command)?;
        if !self.1.load(Ordering::Relaxed) {
            return Ok(());
        }
        let number = match (command.object(), command.method()) {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => command.input(UVERBS_ATTR_WRITE_CMD),
            _ => None,
        };
        let number = number.and_then(|bytes| bytes.first_chunk()).map_or(0, |n| u32::from_ne_bytes(*n));
        match number {
            // An invalid handle.
            IB_USER_VERBS_CMD_REG_MR => command.output(UVERBS_ATTR_CORE_OUT).unwrap()[..4].fill(0xff),
            IB_USER_VERBS_CMD_REREG_MR => return Err(Errno::EPROTO),
            _ => {}
        }
        Ok(())
    }
}

/// A buffer that counts its drops.
#[derive(Debug)]
struct CountsDrops(PageBuf, Arc<AtomicU64>);

impl Drop for CountsDrops {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: as `PageBuf`.
unsafe impl uverbs::StableBuf for CountsDrops {
    fn ptr(&self) -> NonNull<u8> {
        self.0.ptr()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// If the kernel may have registered the memory despite its answer, the buffer is not returned to the caller.
fn memory_that_the_kernel_may_use_is_not_returned() -> Outcome {
    let hca = Hca::new();
    let is_invalid = Arc::new(AtomicBool::new(false));
    let context =
        Context::<Mlx5>::from_kernel(Arc::new(Scripted(InvalidAnswers(hca.open(), is_invalid.clone()))))
            .unwrap();
    let pd = context.alloc_pd().unwrap();
    let dropped = Arc::new(AtomicU64::new(0));
    let buf = || CountsDrops(PageBuf::new(4096).unwrap(), dropped.clone());
    let mut moved = pd.reg_mr(buf(), ALL).map_err(|e| e.error).unwrap();
    is_invalid.store(true, Ordering::Relaxed);
    let RegError { buf: back, error, .. } = pd.reg_mr(buf(), ALL).unwrap_err();
    assert_eq!((back.is_none(), error.errno()), (true, Errno::EPROTO), "{error}");
    let RegError { buf: back, error, .. } = pd.reg_private(buf(), AccessFlags::LOCAL_WRITE).unwrap_err();
    assert_eq!((back.is_none(), error.errno()), (true, Errno::EPROTO), "{error}");
    assert_eq!(hca.objects().get("mr"), Some(&3), "the device can write both");
    let RegError { buf: back, error, .. } = moved.rereg_buf(buf()).unwrap_err();
    assert_eq!((back.is_none(), error.errno()), (true, Errno::EPROTO), "{error}");
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    // If the kernel is not called, or returns an error, the buffer is returned.
    let failed = pd.reg_mr(buf(), AccessFlags::REMOTE_WRITE).unwrap_err();
    assert!(failed.buf.is_some());
    Ok(())
}

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    const LIMIT: Duration = Duration::from_secs(240);
    vec![
        Test::long("kinds::every_configuration_carries_traffic", LIMIT, every_configuration_carries_traffic),
        Test::long(
            "kinds::threads_create_and_destroy_qps_on_one_cq",
            LIMIT,
            threads_create_and_destroy_qps_on_one_cq,
        ),
        Test::long(
            "kinds::memory_that_the_kernel_may_use_is_not_returned",
            LIMIT,
            memory_that_the_kernel_may_use_is_not_returned,
        ),
    ]
}
