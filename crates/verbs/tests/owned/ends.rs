// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ends of work requests other than success: flush, RESET, destruction, refused destruction, overflow, fork, and values that
//! are forgotten.

use crate::bed::{BUFS, CAP, End, attr, connect_self, loopback, pair, srq};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use uverbs::mlx5::Mlx5;
use uverbs::{Cq, Window};
use uverbs::{
    Exclusive,
    attr::{AccessFlags, MwType, QpState},
};
use uverbs::{PostError, Rc, WcOpcode, WcStatus};
use uverbs_core::Errno;
use uverbs_core::kernel::{Kernel, RawCommand};
use uverbs_hca::{Fabric, Hca};
use uverbs_testkit::kernel::{Script, Scripted};
use uverbs_uapi::ids::{UVERBS_METHOD_QP_DESTROY, UVERBS_OBJECT_MW, UVERBS_OBJECT_QP};
use uverbs_uapi::mlx5::devx::MLX5_IB_OBJECT_DEVX_OBJ;

#[test]
fn unsignaled_sends_come_back_with_a_later_completion() {
    let (mut a, mut b) = pair();
    b.receives(3);
    for i in 0..2 {
        let buf = a.filled(b"quiet");
        a.qp.sq().post(i).send(buf).unwrap();
    }
    a.nothing();
    assert_eq!(a.available(), BUFS - 2, "complete, but not known to be");
    let buf = a.filled(b"loud");
    a.qp.sq().post(2).signaled().send(buf).unwrap();
    let done = a.next();
    assert_eq!((done.wc.wr_id, a.available()), (2, BUFS - 1));
}

#[test]
fn an_earlier_completion_does_not_give_later_buffers_back() {
    let (mut a, mut b) = pair();
    b.receives(1);
    for i in 0..2 {
        let buf = a.filled(b"x");
        a.qp.sq().post(i).signaled().send(buf).unwrap();
    }
    drop(a.next());
    assert_eq!(a.available(), BUFS - 1, "the second waits for a receive");
}

#[test]
fn flushed_work_requests_give_their_buffers_back() {
    let (mut a, mut b) = pair();
    b.receives(2);
    let buf = a.filled(b"never sent");
    a.receives(1);
    a.qp.control().modify_state(QpState::ERR).unwrap();
    // In ERR, sends are taken and flushed.
    a.qp.sq().post(1).send(buf).unwrap();
    let mut seen = [a.next(), a.next()].map(|done| {
        assert_eq!(done.wc.status, WcStatus::WR_FLUSH_ERR);
        let id = done.wc.wr_id;
        assert!(done.buf().is_some());
        id
    });
    seen.sort_unstable();
    assert_eq!((seen, a.available()), ([1, 100], BUFS));
}

#[test]
fn a_dropped_qp_keeps_buffers_until_it_is_destroyed() {
    let (mut a, b) = pair();
    let buf = a.filled(b"in flight");
    a.qp.sq().post(1).signaled().send(buf).unwrap();
    a.receives(3);
    let End { qp, mut cq, pool, hca, .. } = a;
    let (send, recv, control) = qp.split();
    drop((send, recv));
    assert_eq!(pool.available() as u32, BUFS - 4, "the kernel object is there");
    drop(control);
    assert_eq!((pool.available() as u32, hca.objects().get("qp")), (BUFS, None));
    hca.run();
    assert!(cq.poll_one().unwrap().is_none());
    assert!(hca.violations().is_empty());
    drop(b);
}

#[test]
fn a_reset_gives_buffers_back() {
    let (mut a, _b) = pair();
    let buf = a.filled(b"in flight");
    a.qp.sq().post(1).signaled().send(buf).unwrap();
    a.receives(3);
    a.qp.reset().unwrap();
    assert_eq!(a.available(), BUFS);
    a.nothing();
    // The queues are as new.
    loopback(&a);
    a.receives(16);
    for i in 0..40 {
        let buf = a.filled(b"again");
        a.qp.sq().post(i).signaled().send(buf).unwrap();
        let done = [a.next(), a.next()];
        assert!(done.iter().any(|done| done.wc.wr_id == i));
        let received = done.into_iter().find(|done| done.wc.opcode == WcOpcode::RECV).unwrap();
        let id = received.wc.wr_id;
        a.qp.rq().unwrap().post(id, received.buf().unwrap()).unwrap();
    }
    assert_eq!(a.cq.unmatched(), Ok(0));
}

#[test]
fn a_reset_needs_all_parts_of_one_qp() {
    let (mut a, mut b) = pair();
    let buf = a.filled(b"in flight");
    a.qp.sq().post(1).signaled().send(buf).unwrap();
    a.receives(3);
    b.receives(3);
    let (mut send, mut recv, control) = a.qp.split();
    let (mut other_send, mut other_recv, other) = b.qp.split();
    assert!(send.reset(None, &control).is_err() && send.reset(recv.as_mut(), &other).is_err());
    assert!(send.reset(other_recv.as_mut(), &control).is_err());
    assert!(other_send.reset(other_recv.as_mut(), &control).is_err());
    assert_eq!((a.pool.available() as u32, control.state().unwrap()), (BUFS - 4, QpState::RTS));
    send.reset(recv.as_mut(), &control).unwrap();
    assert_eq!((a.pool.available() as u32, control.state().unwrap()), (BUFS, QpState::RESET));
    assert_eq!(b.pool.available() as u32, BUFS - 3);
}

#[test]
fn a_reset_by_the_control_keeps_buffers_until_later_completions() {
    let (mut a, _b) = pair();
    let buf = a.filled(b"in flight");
    a.qp.sq().post(1).signaled().send(buf).unwrap();
    a.receives(2);
    a.qp.control().modify_state(QpState::RESET).unwrap();
    assert_eq!(a.available(), BUFS - 3);
    loopback(&a);
    a.receives(1);
    a.qp.sq().post(2).signaled().send_inline(b"x").unwrap();
    let ids = [a.next().wc.wr_id, a.next().wc.wr_id];
    assert!(ids.contains(&2), "{ids:?}");
    assert_eq!(a.available(), BUFS - 2, "of the send it is back, of the receives not");
    let End { qp, pool, cq, .. } = a;
    drop((qp, cq));
    assert_eq!(pool.available() as u32, BUFS);
}

/// What a kernel refuses.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum What {
    DestroyQp,
    Windows,
    /// Objects of the firmware: indirect keys.
    Firmware,
    Everything,
}

/// A kernel that refuses this while the flag is set.
struct Refuses {
    inner: Arc<dyn Kernel>,
    refuse: Arc<AtomicBool>,
    what: What,
}

impl Script for Refuses {
    fn inner(&self) -> Option<&dyn Kernel> {
        Some(&*self.inner)
    }
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let refused = match self.what {
            What::DestroyQp => {
                (command.object(), command.method()) == (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY)
            }
            What::Windows => command.object() == UVERBS_OBJECT_MW,
            What::Firmware => command.object() == MLX5_IB_OBJECT_DEVX_OBJ,
            What::Everything => true,
        };
        if self.refuse.load(Ordering::Relaxed) && refused {
            return Err(Errno::EIO);
        }
        self.inner.ioctl(command)
    }
}

/// A kernel that refuses this while the flag is set.
pub(crate) fn refuses(inner: Arc<dyn Kernel>, what: What) -> (Arc<dyn Kernel>, Arc<AtomicBool>) {
    let refuse = Arc::new(AtomicBool::new(false));
    (Arc::new(Scripted(Refuses { inner, refuse: refuse.clone(), what })), refuse)
}

pub(crate) fn refusing(what: What) -> (End, Arc<AtomicBool>) {
    let hca = Fabric::deterministic(7).device("hca0").build();
    let (kernel, refuse) = refuses(hca.open(), what);
    let end = End::on(hca, kernel, 64);
    loopback(&end);
    (end, refuse)
}

#[test]
fn a_refused_destruction_leaks_the_buffers() {
    let (mut a, refuse) = refusing(What::DestroyQp);
    a.receives(3);
    refuse.store(true, Ordering::Relaxed);
    let End { qp, cq, pool, pd, context, hca } = a;
    assert!(qp.close().is_err());
    assert_eq!(pool.available() as u32, BUFS - 3);
    let weak = pool.clone();
    drop((pool, cq, pd, context));
    assert_eq!(weak.available() as u32, BUFS - 3);
    drop(weak);
    assert_eq!(hca.objects().get("mr"), Some(&1), "the memory stays registered, and mapped");
}

/// The peer may still write to the buffer of such a window, so nobody gets it.
#[test]
fn a_window_that_the_kernel_does_not_end_leaks_its_buffer() {
    for close in [false, true] {
        let (mut a, refuse) = refusing(What::Windows);
        let rights = AccessFlags::REMOTE_WRITE | AccessFlags::MW_BIND;
        let pool = a.pd.pool_with(2, 64).exposed(rights).build().unwrap();
        let mut windows = [(); 2].map(|()| {
            let window = Window::new(a.pd.alloc_mw(MwType::Type2).unwrap(), pool.get().unwrap());
            a.qp.sq().post(1).signaled().bind(window, AccessFlags::REMOTE_WRITE).unwrap();
            a.next().take::<Window<Mlx5>>()
        });
        drop(windows[0].take());
        assert_eq!(pool.available(), 1);
        refuse.store(true, Ordering::Relaxed);
        let window = windows[1].take().unwrap();
        let to = window.remote_region().unwrap();
        if close {
            assert!(window.close().is_err());
        } else {
            drop(window);
        }
        assert_eq!(pool.available(), 1);
        a.qp.sq().post(2).signaled().write_inline(b"late", &to).unwrap();
        assert!(a.next().wc.status.is_success(), "the key is that of the lost buffer");
    }
}

/// After its removal the kernel answers EIO to everything.
#[test]
fn a_removed_device_leaks_what_it_may_use() {
    let (mut a, refuse) = refusing(What::Everything);
    a.receives(2);
    refuse.store(true, Ordering::Relaxed);
    let mut own = a.pool.get().unwrap();
    own.fill(b"still mine").unwrap();
    let End { qp, cq, pool, pd, context, hca } = a;
    drop((qp, cq, pd, context));
    assert_eq!(pool.available() as u32, BUFS - 3);
    drop(pool);
    assert_eq!(&*own, b"still mine");
    drop(own);
    assert_eq!(hca.objects().get("mr"), Some(&1));
}

#[test]
fn receives_of_an_srq_for_a_destroyed_qp_come_back() {
    let hca = Hca::new();
    let mut end = End::new(hca);
    let mut srq = srq(&end.pd, 8);
    let mut qp = end.pd.qp::<Rc>().cq(&end.cq).srq(&srq).cap(CAP).create().unwrap();
    let text = format!("post_recv(qp {:#x}): the QP has no such queue", qp.qp_num());
    assert_eq!(qp.rq().unwrap_err(), PostError::NoQueue);
    assert_eq!(
        [qp.rq().unwrap_err(), qp.rq_mut().unwrap_err()].map(|error| error.to_string()),
        [text.as_str(); 2]
    );
    connect_self(&qp);
    for i in 0..4 {
        srq.post(i, end.pool.get().unwrap()).unwrap();
    }
    qp.sq().post(1).send_inline(b"taken, not polled").unwrap();
    end.hca.run();
    drop(qp);
    assert!(end.cq.poll_one().unwrap().is_none(), "its completions are removed");
    assert_eq!(end.available(), BUFS - 3, "the one that it took comes back");
    // The others are still there.
    let mut qp = end.pd.qp::<Rc>().cq(&end.cq).srq(&srq).cap(CAP).create().unwrap();
    connect_self(&qp);
    for i in 0..5 {
        srq.post(10 + i, end.pool.get().unwrap()).unwrap();
        qp.sq().post(50 + i).signaled().send_inline(b"taken").unwrap();
        let done = [end.next(), end.next()];
        assert!(done.iter().all(|done| done.wc.status == WcStatus::SUCCESS));
    }
    // A QP in ERR whose completions are polled gives back all that it took.
    qp.sq().post(60).send_inline(b"taken").unwrap();
    qp.control().modify_state(QpState::ERR).unwrap();
    assert_eq!(&*end.next().buf().unwrap(), b"taken");
    drop(qp);
    drop(srq);
    assert_eq!(end.available(), BUFS);
}

#[test]
fn an_overflowed_cq_loses_completions_and_no_memory() {
    let hca = Hca::new();
    let kernel = hca.open();
    let mut end = End::on(hca, kernel, 1);
    loopback(&end);
    end.receives(16);
    for i in 0..16 {
        let buf = end.filled(b"x");
        if end.qp.sq().post(i).signaled().send(buf).is_err() {
            break;
        }
    }
    end.hca.run();
    assert_eq!(end.available(), 0, "nothing is known to be complete");
    let End { qp, mut cq, pool, hca, .. } = end;
    while let Ok(Some(done)) = cq.poll_one() {
        drop(done);
    }
    assert!((pool.available() as u32) < BUFS, "completions were lost");
    drop(qp);
    assert_eq!(pool.available() as u32, BUFS);
    assert!(!hca.take_violations().is_empty(), "the overrun");
}

#[test]
fn forgotten_values_keep_their_memory() {
    let (mut a, mut b) = pair();
    a.receives(1);
    b.receives(1);
    let buf = a.filled(b"forgotten");
    a.qp.sq().post(1).signaled().send(buf).unwrap();
    core::mem::forget(a.pool.get().unwrap());
    let End { qp, cq, pool, pd, context, hca } = a;
    core::mem::forget((qp, cq));
    hca.run();
    assert_eq!(pool.available() as u32, BUFS - 3);
    drop((pool, pd, context));
    assert_eq!((hca.objects().get("mr"), hca.objects().get("qp")), (Some(&1), Some(&1)));
    assert_eq!(&*b.next().buf().unwrap(), b"forgotten", "the device used it after all that");
}

#[test]
fn a_buffer_keeps_its_pool() {
    let hca = Hca::new();
    let context = uverbs::Context::<Mlx5>::from_kernel(hca.open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let pool = pd.pool(2, 100).unwrap();
    let (mut one, two) = (pool.get().unwrap(), pool.get().unwrap());
    assert!(pool.try_get().is_none());
    assert_eq!(one.as_ptr().addr() % 64, 0);
    assert_eq!(two.as_ptr().addr() - one.as_ptr().addr(), 128, "no cache line is shared");
    drop((pool, pd, context, two));
    one.fill(b"alive").unwrap();
    assert_eq!((&*one, hca.objects().get("mr")), (&b"alive"[..], Some(&1)));
    drop(one);
    assert_eq!(hca.objects().get("mr"), None);
}

/// A child of fork(2) posts nothing, and what it drops does not end what the parent has.
#[test]
fn a_forked_child_leaves_the_parents_queues_alone() {
    let (mut a, mut b) = pair();
    b.receives(1);
    a.receives(1);
    let buf = a.filled(b"of the parent");
    let mut waiting = a.context.cq(4).unwrap();
    // SAFETY: the child calls this crate only, which takes no lock that another thread can hold (the fabric has no thread),
    // and ends by `_exit`.
    #[expect(unsafe_code, reason = "fork")]
    let child = unsafe { nix::unistd::fork() }.unwrap();
    if let nix::unistd::ForkResult::Parent { child } = child {
        let status = nix::sys::wait::waitpid(child, None).unwrap();
        assert_eq!(status, nix::sys::wait::WaitStatus::Exited(child, 0));
        a.qp.sq().post(1).signaled().send(buf).unwrap();
        assert!(a.next().wc.status.is_success());
        assert_eq!(&*b.next().buf().unwrap(), b"of the parent");
        return;
    }
    let result = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        let rejected = a.qp.sq().post(2).send(buf).unwrap_err();
        assert_eq!(rejected.error, PostError::Forked);
        assert_eq!(&*rejected.returned.unwrap(), b"of the parent");
        assert!(a.cq.poll_one().is_err());
        assert!(waiting.wait().is_err(), "a wait in the child would not end");
        drop(a);
    }));
    // SAFETY: ends the child without what the parent registered.
    #[expect(unsafe_code, reason = "_exit")]
    unsafe {
        nix::libc::_exit(i32::from(result.is_err()))
    }
}

/// A memfd that can't shrink, which the software NIC takes for a dma-buf.
fn dma_buf(len: u64) -> std::fs::File {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    let file = std::fs::File::from(memfd_create(c"dma-buf", MFdFlags::MFD_ALLOW_SEALING).unwrap());
    file.set_len(len).unwrap();
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
    file
}

/// The device would access a page that the file has no longer, which ends the process.
#[test]
fn a_file_that_can_be_truncated_is_no_dma_buf() {
    use std::os::fd::AsFd;
    let (a, _b) = pair();
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let error = a.pd.dmabuf_pool(file.as_fd(), 0, 0, (2, 4096), AccessFlags::LOCAL_WRITE).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    assert!(error.to_string().starts_with("reg_dmabuf_mr"), "{error}");
}

/// A dma-buf, here of a memfd: the device uses it, this process can't read it by the pool.
#[test]
fn dma_bufs_are_posted_without_being_mapped() {
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::AsFd;
    let (mut a, mut b) = pair();
    let mut file = dma_buf(8192);
    file.write_all(&[7; 8192]).unwrap();
    let rights = AccessFlags::LOCAL_WRITE;
    let pool = b.pd.dmabuf_pool(file.as_fd(), 0, 0, (4, 2048), rights).unwrap();
    let (first, second) = (pool.get().unwrap(), pool.get().unwrap());
    assert_eq!(second.remote_region().addr() - first.remote_region().addr(), 2048);
    b.qp.rq().unwrap().post(1, second).unwrap();
    a.qp.sq().post(1).signaled().send_inline(b"into the dma-buf").unwrap();
    assert!(a.next().wc.status.is_success());
    let done = b.next();
    assert!(done.wc.status.is_success(), "{:?}", done.wc);
    let back: uverbs::Buf<uverbs::Unmapped, Mlx5> = done.buf_of().unwrap();
    assert_eq!(back.len(), 16);
    let mut bytes = [0; 16];
    file.seek(SeekFrom::Start(2048)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"into the dma-buf");
    // And as the source of a message.
    b.qp.sq().post(2).signaled().send(back).unwrap();
    a.receives(1);
    assert!(b.next().wc.status.is_success());
    assert_eq!(&*a.next().buf().unwrap(), b"into the dma-buf");
}

/// No description for a peer could name such a buffer.
#[test]
fn a_dma_buf_that_would_end_after_the_last_address_is_refused() {
    use std::os::fd::AsFd;
    let (a, _b) = pair();
    let file = dma_buf(8192);
    let pool = |iova| a.pd.dmabuf_pool(file.as_fd(), 0, iova, (2, 4096), AccessFlags::LOCAL_WRITE);
    for iova in [u64::MAX - 4095, u64::MAX - 8191] {
        let error = pool(iova).unwrap_err().to_string();
        assert!(error.starts_with("pool: invalid iova"), "{error}");
    }
    let pool = pool(u64::MAX - 12287).unwrap();
    let bufs = [pool.get().unwrap(), pool.get().unwrap()];
    assert_eq!(bufs.map(|buf| buf.remote_region().addr()), [u64::MAX - 12287, u64::MAX - 8191]);
}

/// A CQ without completions, used only to see that queues of two CQs are kept apart.
#[test]
fn each_cq_reports_the_completions_of_its_queues() {
    let mut end = End::new(Hca::new());
    let mut sends: Cq<Exclusive, Mlx5> = end.context.cq_with(16, None).unwrap();
    let mut qp = end.pd.qp::<Rc>().send_cq(&sends).recv_cq(&end.cq).cap(CAP).create().unwrap();
    qp.init(&attr()).unwrap();
    let here = qp.control().endpoint(1, &attr()).unwrap();
    qp.connect(&here, &here, &attr()).unwrap();
    qp.rq().unwrap().post(1, end.pool.get().unwrap()).unwrap();
    qp.sq().post(2).signaled().send_inline(b"x").unwrap();
    assert_eq!(end.next().wc.wr_id, 1);
    assert_eq!(sends.poll_one().unwrap().unwrap().wc.wr_id, 2);
    assert_eq!((sends.unmatched(), end.cq.unmatched()), (Ok(0), Ok(0)));
}
