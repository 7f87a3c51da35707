// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of a first program: connect by a stream, post by one call, wait, and match what was done.

use crate::bed::{SIZE, attr, connect_self, pair, real_time_pair};
use core::time::Duration;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Instant;
use uverbs::attr::{AccessFlags, QpState};
use uverbs::mlx5::Mlx5;
use uverbs::{
    Context, Cq, Done, Endpoint, Errno, Error, ImmData, PostError, Rc, Shared, WcStatus, WithDeadline,
};
use uverbs_hca::{Fabric, Hca};

/// Long enough for any machine, and less than the time limit of a test.
const LONG: Duration = Duration::from_secs(20);

#[test]
fn each_operation_is_what_was_done() {
    let (mut a, mut b) = pair();
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
    let table = b.pd.pool_with(1, SIZE).exposed(access).build().unwrap().get().unwrap();
    let remote = table.remote_region();

    b.qp.recv(b.pool.get().unwrap()).unwrap();
    a.qp.send(a.pool.get().unwrap().filled(b"message")).unwrap();
    let Done::Sent(Some(buf)) = a.next().ok().unwrap() else { panic!("not sent") };
    assert_eq!(&*buf, b"message");
    let Done::Received(message) = b.next().ok().unwrap() else { panic!("not received") };
    assert_eq!(&*message, b"message");

    b.qp.recv(message).unwrap();
    a.qp.sq().post(1).signaled().send_imm(buf, ImmData::new(5)).unwrap();
    let Done::Sent(Some(buf)) = a.next().ok().unwrap() else { panic!("not sent") };
    let Done::ReceivedImm(message, imm) = b.next().ok().unwrap() else { panic!("not received") };
    assert_eq!((&*message, imm), (&b"message"[..], ImmData::new(5)));

    b.qp.recv(message).unwrap();
    a.qp.send_inline(b"inline").unwrap();
    assert!(matches!(a.next().ok().unwrap(), Done::Sent(None)));
    let Done::Received(message) = b.next().ok().unwrap() else { panic!("not received") };
    assert_eq!(&*message, b"inline");

    a.qp.write(buf, &remote).unwrap();
    let Done::Written(Some(mut buf)) = a.next().ok().unwrap() else { panic!("not written") };
    buf.fill(&[0; 7]).unwrap();
    a.qp.read(buf, &remote).unwrap();
    let Done::Read(buf) = a.next().ok().unwrap() else { panic!("not read") };
    assert_eq!(&*buf, b"message");
    a.qp.sq().post(1).signaled().write_inline(b"inline!!", &remote).unwrap();
    assert!(matches!(a.next().ok().unwrap(), Done::Written(None)));
    a.qp.sq().post(1).signaled().fetch_add(buf, &remote, 1).unwrap();
    let Done::Atomic(buf) = a.next().ok().unwrap() else { panic!("not added") };
    assert_eq!(*buf, u64::from_ne_bytes(*b"inline!!").to_ne_bytes());

    b.qp.recv(message).unwrap();
    a.qp.sq().post(1).signaled().write_imm(buf, &remote, ImmData::new(9)).unwrap();
    assert!(matches!(a.next().ok().unwrap(), Done::Written(Some(_))));
    let Done::WrittenByPeer(Some(_), imm) = b.next().ok().unwrap() else { panic!("not written") };
    assert_eq!(imm, ImmData::new(9));

    // Other memory than a private buffer is not lost.
    let exposed = a.pd.pool_with(1, SIZE).exposed(access).build().unwrap();
    a.qp.read(exposed.get().unwrap(), &remote).unwrap();
    let Done::Other(completed) = a.next().ok().unwrap() else { panic!("an exposed buffer") };
    assert!(completed.buf_of::<uverbs::Exposed>().is_some());
    assert_eq!((a.pool.available(), b.pool.available()), (32, 32));
}

#[test]
fn a_failure_is_an_error_and_gives_its_buffer_back() {
    let (mut a, b) = pair();
    let table = b.pd.pool_with(1, SIZE).exposed(AccessFlags::REMOTE_READ).build().unwrap().get().unwrap();
    a.qp.write(a.pool.get().unwrap(), &table.remote_region()).unwrap();
    let error = a.next().ok().unwrap_err();
    assert!(error.to_string().contains("remote access"), "{error}");
    assert_eq!(a.pool.available(), 32);
}

#[test]
fn refused_posts_return_the_buffer() {
    let (mut a, _b) = pair();
    let size = a.pool.buf_size();
    let rejected = a.qp.send(a.pool.get().unwrap().filled(&vec![1; size + 1])).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidLength);
    assert!(rejected.returned.is_some());
    let foreign = a.context.alloc_pd().unwrap().pool(1, SIZE).unwrap();
    let rejected = a.qp.recv(foreign.get().unwrap()).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument);
    assert!(rejected.returned.is_some());
    let taken: Vec<_> = core::iter::from_fn(|| a.pool.try_get()).collect();
    let empty = a.pool.get().unwrap_err();
    assert_eq!(empty.to_string(), "all 32 buffers of 256 bytes of the pool are lent");
    assert_eq!(Error::from(empty).errno(), Errno::ENOMEM);
    drop(taken);
}

/// One end on a device, connected by a stream.
fn end(hca: &Hca, stream: UnixStream) -> uverbs::Result<QpState> {
    let context = Context::<Mlx5>::from_kernel(hca.open())?;
    let (pd, cq) = (context.alloc_pd()?, context.cq(8)?);
    let qp = pd.qp::<Rc>().cq(&cq).depth(4, 4).connect(WithDeadline::new(stream, LONG))?;
    qp.control().state()
}

#[test]
fn both_ends_connect_by_the_same_call() {
    let fabric = Fabric::new(1);
    let (a, b) = UnixStream::pair().unwrap();
    let [first, second] = ["hca0", "hca1"].map(|name| fabric.device(name).build());
    let other = thread::spawn(move || end(&second, b));
    assert_eq!(end(&first, a).unwrap(), QpState::RTS);
    assert_eq!(other.join().unwrap().unwrap(), QpState::RTS);
}

/// What the other end does instead, and the error.
#[test]
fn a_wrong_peer_is_an_error() {
    let fabric = Fabric::new(1);
    let [hca, peer] = ["hca0", "hca1"].map(|name| fabric.device(name).build());
    let with = |act: &dyn Fn(UnixStream)| {
        let (a, b) = UnixStream::pair().unwrap();
        act(b);
        end(&hca, a).unwrap_err()
    };
    let closed = with(&|_stream| {});
    assert!(closed.errno() == Errno::ECONNRESET || closed.to_string().contains("pipe"), "{closed}");
    let noise = with(&|mut stream| {
        stream.write_all(&[b'?'; 64]).unwrap();
        // It stays open.
        core::mem::forget(stream);
    });
    assert!(matches!(noise, Error::Protocol { .. }), "{noise}");
    // An endpoint, and then no word that the QP is ready.
    let gid = Context::<Mlx5>::from_kernel(peer.open()).unwrap().best_gid(1).unwrap().gid;
    let endpoint = Endpoint { lid: 0, qp_num: 0x11, psn: 1, gid };
    let not_ready = with(&|mut stream| {
        endpoint.send(&mut stream).unwrap();
        stream.write_all(b"X").unwrap();
        core::mem::forget(stream);
    });
    assert!(matches!(not_ready, Error::Protocol { .. }), "{not_ready}");
    let late = {
        let (a, _b) = UnixStream::pair().unwrap();
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.cq(8).unwrap());
        let stream = WithDeadline::new(a, Duration::from_millis(20));
        pd.qp::<Rc>().cq(&cq).depth(4, 4).connect(stream).unwrap_err()
    };
    assert_eq!(late.errno(), Errno::ETIMEDOUT, "{late}");
}

/// The exchange has an end: what follows in the stream belongs to the program.
#[test]
fn the_stream_is_for_the_program_after_the_exchange() {
    let fabric = Fabric::new(1);
    let (mut a, mut b) = UnixStream::pair().unwrap();
    let [first, second] = ["hca0", "hca1"].map(|name| fabric.device(name).build());
    let other = thread::spawn(move || {
        let context = Context::<Mlx5>::from_kernel(second.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.cq(8).unwrap());
        let qp = pd.qp::<Rc>().cq(&cq).depth(4, 4).connect(&mut b).unwrap();
        b.write_all(b"after").unwrap();
        qp
    });
    let context = Context::<Mlx5>::from_kernel(first.open()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.cq(8).unwrap());
    let _qp = pd.qp::<Rc>().cq(&cq).depth(4, 4).connect(&mut a).unwrap();
    let mut word = [0; 5];
    a.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"after");
    other.join().unwrap();
}

#[test]
fn a_wait_ends_with_a_completion_and_at_its_limit() {
    let (mut a, b) = real_time_pair();
    let mut cq = a.context.cq(8).unwrap();
    let begin = Instant::now();
    assert!(cq.wait_timeout(Duration::from_millis(30)).unwrap().is_none());
    assert!(begin.elapsed() >= Duration::from_millis(30));
    let mut qp = a.pd.qp::<Rc>().cq(&cq).depth(4, 4).create().unwrap();
    connect_self(&qp);
    qp.recv(a.pool.get().unwrap()).unwrap();
    let poster = thread::spawn(move || {
        // The wait sleeps by then.
        thread::sleep(Duration::from_millis(50));
        qp.send(a.pool.get().unwrap().filled(b"late")).unwrap();
        (qp, a)
    });
    for _ in 0..2 {
        assert!(cq.wait().unwrap().ok().is_ok());
    }
    let (_qp, end) = poster.join().unwrap();
    a = end;
    // A CQ without a channel of its own is polled.
    a.qp.write(
        a.pool.get().unwrap(),
        &b.pd
            .pool_with(1, SIZE)
            .exposed(AccessFlags::REMOTE_WRITE)
            .build()
            .unwrap()
            .get()
            .unwrap()
            .remote_region(),
    )
    .unwrap();
    assert!(a.cq.wait_timeout(LONG).unwrap().is_some());
}

/// Waits of several threads: each completion goes to one of them, and none is left sleeping while there are completions.
#[test]
fn threads_wait_for_the_completions_of_one_queue() {
    const EACH: u32 = 500;
    const THREADS: u32 = 4;
    let fabric = Fabric::new(3);
    let hca = fabric.device("hca0").build();
    let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq: Cq<Shared, Mlx5> = context.shared_cq(64).unwrap();
    let qp = pd.qp::<Rc>().cq(&cq).depth(16, 16).shared().create().unwrap();
    qp.init(&attr()).unwrap();
    let here = qp.control().endpoint(1, &attr()).unwrap();
    qp.connect(&here, &here, &attr()).unwrap();
    let pool = pd.pool(64, 64).unwrap();
    thread::scope(|scope| {
        for waiter in 0..THREADS {
            let cq = &cq;
            // Some give up now and then, so that the place at the channel changes hands at deadlines, too.
            scope.spawn(move || {
                let mut got = 0;
                while got < EACH {
                    let limit = Duration::from_micros(50 << (waiter * 4));
                    if let Some(completed) = cq.wait_timeout(limit).unwrap() {
                        assert!(completed.ok().is_ok());
                        got += 1;
                    }
                }
            });
        }
        // Two completions of each message.
        for n in 0..EACH * THREADS / 2 {
            let (message, receive) = loop {
                if pool.available() >= 2
                    && let (Some(message), Some(receive)) = (pool.try_get(), pool.try_get())
                {
                    break (message, receive);
                }
                thread::yield_now();
            };
            let mut receive = Some(receive);
            while let Some(buf) = receive.take() {
                receive = qp.recv(buf).err().and_then(|rejected| rejected.returned);
            }
            let mut message = Some(message);
            while let Some(buf) = message.take() {
                message = qp.send(buf).err().and_then(|rejected| rejected.returned);
            }
            if n % 16 == 0 {
                // The waiters go to sleep.
                thread::sleep(Duration::from_micros(200));
            }
        }
    });
    assert!(cq.poll_one().unwrap().is_none());
}

#[test]
fn a_wait_notices_that_the_device_is_removed() {
    for unplug in [true, false] {
        let fabric = Fabric::new(3);
        let hca = fabric.device("hca0").build();
        let context = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let cq = context.shared_cq(8).unwrap();
        thread::scope(|scope| {
            let waits: Vec<_> = (0..3).map(|_| scope.spawn(|| cq.wait().unwrap_err())).collect();
            thread::sleep(Duration::from_millis(50));
            if unplug {
                hca.unplug()
            } else {
                hca.kill()
            }
            for wait in waits {
                let error = wait.join().unwrap();
                assert_eq!(error.errno(), Errno::EIO, "{error}");
            }
        });
    }
}

#[test]
fn a_flush_ends_a_wait() {
    let (mut a, _b) = real_time_pair();
    let mut cq = a.context.cq(8).unwrap();
    let mut qp = a.pd.qp::<Rc>().cq(&cq).depth(4, 4).create().unwrap();
    qp.init(&attr()).unwrap();
    qp.recv(a.pool.get().unwrap()).unwrap();
    let control = qp.control().clone();
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            control.modify_state(QpState::ERR).unwrap();
        });
        let completed = cq.wait().unwrap();
        assert_eq!(completed.wc.status, WcStatus::WR_FLUSH_ERR);
    });
    a.cq.poll_one().unwrap();
}

#[test]
fn a_name_that_no_device_has_lists_the_names() {
    for name in ["", "hca", "hca99", "hca01", "mlx5_77"] {
        let error = uverbs::open(name).unwrap_err();
        assert!(error.to_string().contains(&format!("no device is named {name:?}")), "{error}");
    }
}

#[cfg(feature = "hca")]
#[test]
fn software_nics_are_opened_by_name_and_share_a_fabric() {
    let (a, b) = UnixStream::pair().unwrap();
    let end = |name: &str, mut stream: UnixStream| {
        let ctx = uverbs::open(name)?;
        assert_eq!(ctx.name(), name);
        let (pd, cq) = (ctx.alloc_pd()?, ctx.cq(8)?);
        pd.qp::<Rc>().cq(&cq).depth(4, 4).connect(&mut stream)?.control().state()
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| end("hca6", b));
        assert_eq!(end("hca7", a).unwrap(), QpState::RTS);
        assert_eq!(other.join().unwrap().unwrap(), QpState::RTS);
    });
}
