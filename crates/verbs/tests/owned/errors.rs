// SPDX-License-Identifier: MIT OR Apache-2.0
//! The errors of the data path say which queue, which work request and why; `?` takes each of them.

use crate::bed::{End, pair, srq};
use core::time::Duration;
use std::sync::{Mutex, OnceLock};
use std::thread::{self, ThreadId};
use uverbs::mlx5::Mlx5;
use uverbs::raw::Qp as RawQp;
use uverbs::{
    Errno, Error, Fault, PollError, PostError, QueueKind, Rc, RemoteRegion, ScopeError, Shared, WcStatus,
};
use uverbs_hca::{Fabric, Hca};

/// The warnings of this process, by thread.
static LOG: Mutex<Vec<(ThreadId, String)>> = Mutex::new(Vec::new());

struct Collects;

impl log::Log for Collects {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::Level::Warn {
            LOG.lock().unwrap().push((thread::current().id(), record.args().to_string()));
        }
    }
    fn flush(&self) {}
}

/// The warnings of `f`.
fn warnings(f: impl FnOnce()) -> Vec<String> {
    static SET: OnceLock<()> = OnceLock::new();
    SET.get_or_init(|| {
        log::set_logger(&Collects).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
    });
    let me = thread::current().id();
    LOG.lock().unwrap().retain(|(thread, _)| *thread != me);
    f();
    LOG.lock().unwrap().iter().filter(|(thread, _)| *thread == me).map(|(_, line)| line.clone()).collect()
}

/// A region of the peer with a key that it does not have.
fn wrong_region() -> RemoteRegion {
    RemoteRegion::new(0x1000, 64, 0x1234).unwrap()
}

#[test]
fn a_completion_with_an_error_says_everything() {
    let (mut a, mut b) = pair();
    let qp_num = a.qp.qp_num();
    let buf = a.filled(b"12345678");
    a.qp.sq().post(7).signaled().write(buf, &wrong_region()).unwrap();
    let done = a.next();
    let error = done.error().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "qp {qp_num:#x} of hca0, wr_id 7, RDMA_WRITE: remote access error (10), vendor {:#x}",
            done.wc.vendor_err
        )
    );
    assert!(done.wc.vendor_err != 0, "the device reports a syndrome");
    assert_eq!(
        (error.fault(), error.wr_id(), error.status()),
        (Fault::Remote, Some(7), WcStatus::REM_ACCESS_ERR)
    );
    assert!(done.buf().is_some(), "the buffer comes back, too");
    // What comes after it is flushed; a receive is named as such.
    let buf = b.filled(b"x");
    let _ = buf;
    a.receives(1);
    let mut texts = Vec::new();
    a.hca.run();
    while a
        .cq
        .poll_each(16, |done| texts.extend(done.ok().map_err(|e| (e.fault(), e.to_string())).err()))
        .unwrap()
        > 0
    {}
    let [(Fault::Flushed, text)] = &texts[..] else { panic!("{texts:?}") };
    assert!(
        text.starts_with(&format!("qp {qp_num:#x} of hca0, wr_id 100, RECV: work request flushed (5)")),
        "{text}"
    );
    b.nothing();
}

#[test]
fn a_post_that_fails_names_its_queue() {
    let (mut a, _b) = pair();
    let qp_num = a.qp.qp_num();
    let full = loop {
        if let Err(error) = a.qp.sq().post(1).send_inline(b"x") {
            break error;
        }
    };
    let depth = a.qp.cap().max_send_wr;
    assert_eq!(
        full.to_string(),
        format!(
            "post_send(qp {qp_num:#x}): the work queue is full: it was created for {depth} work requests"
        )
    );
    assert_eq!(
        (full.queue.kind(), full.queue.number(), full.errno()),
        (QueueKind::Send, qp_num, Errno::ENOMEM)
    );
    let full = loop {
        let buf = a.pool.get().unwrap();
        if let Err(error) = a.qp.rq().unwrap().post(1, buf) {
            break error;
        }
    };
    assert_eq!(full.to_string().split(':').next().unwrap(), format!("post_recv(qp {qp_num:#x})"));
    let mut srq = srq(&a.pd, 4);
    let full = loop {
        let buf = a.pd.pool(1, 64).unwrap().get().unwrap();
        if let Err(error) = srq.post(1, buf) {
            break error;
        }
    };
    assert!(full.to_string().starts_with("post_srq_recv(srq "), "{full}");
    // The typed face: a QP in RESET.
    let cq = a.context.create_cq(8, None).unwrap();
    let mut raw: RawQp<Rc, _, Mlx5> = a.pd.raw_qp::<Rc>().cq(&cq).cap(crate::bed::CAP).create().unwrap();
    let number = raw.qp_num();
    let error = raw.sq().post(1).send_inline(b"x").unwrap_err();
    let text = format!("post_send(qp {number:#x}): the QP's state does not allow posting to this queue");
    assert_eq!(error.to_string(), text);
    let mut batch = raw.sq().batch();
    batch.wr(1).send_inline(b"x");
    assert_eq!(batch.complete().unwrap_err().to_string(), text);
    drop(raw.recv.take());
    assert_eq!(
        raw.rq().unwrap_err().to_string(),
        format!("post_recv(qp {number:#x}): the QP has no such queue")
    );
}

/// Each `?` below must compile and keep the text.
#[test]
fn every_error_becomes_one_by_the_question_mark() {
    fn post(a: &mut End) -> uverbs::Result<()> {
        let buf = a.filled(b"12345678");
        a.qp.sq().post(1).write(buf, &wrong_region().slice(0..1)?)?;
        Ok(())
    }
    fn inline(a: &mut End) -> uverbs::Result<()> {
        Ok(a.qp.sq().post(1).write_inline(b"12345678", &wrong_region().slice(0..1)?)?)
    }
    fn locked(srq: &uverbs::Srq<Shared, Mlx5>) -> uverbs::Result<()> {
        let _first = srq.lock()?;
        srq.lock()?;
        Ok(())
    }
    fn reason() -> uverbs::Result<()> {
        Err(PostError::BadState)?
    }
    fn poll() -> uverbs::Result<()> {
        Err(PollError::Corrupt)?
    }
    fn status() -> uverbs::Result<()> {
        Ok(WcStatus::RETRY_EXC_ERR.ok()?)
    }
    fn scope() -> uverbs::Result<()> {
        Err(ScopeError::TimedOut)?
    }
    fn register(a: &End) -> uverbs::Result<()> {
        a.pd.reg_mr(uverbs::PageBuf::new(4096)?, uverbs::attr::AccessFlags::REMOTE_WRITE)?;
        Ok(())
    }
    let mut a = End::new(Fabric::deterministic(1).device("hca0").build());
    let name = format!("post_send(qp {:#x})", a.qp.qp_num());
    for error in [post(&mut a).unwrap_err(), inline(&mut a).unwrap_err()] {
        assert!(matches!(error, Error::Post(e) if e == PostError::InvalidLength), "{error}");
        assert!(error.to_string().starts_with(&name) && error.verb() == "post_send", "{error}");
        assert_eq!(error.errno(), Errno::EINVAL);
    }
    let srq = a.pd.srq::<Shared>(&uverbs::attr::SrqInitAttr::new(uverbs::attr::SrqAttr::new(4)));
    assert_eq!(
        locked(&srq.unwrap()).unwrap_err().to_string(),
        "lock: the calling thread already holds this queue"
    );
    assert_eq!(reason().unwrap_err().to_string(), PostError::BadState.to_string());
    assert_eq!(poll().unwrap_err().to_string(), "poll_cq: the completion queue's memory is corrupt");
    let retries = status().unwrap_err();
    assert_eq!((retries.errno(), retries.verb()), (Errno::ETIMEDOUT, "poll_cq"));
    assert_eq!(scope().unwrap_err().errno(), Errno::ETIMEDOUT);
    assert!(register(&a).is_err(), "remote rights without local ones");
}

#[test]
fn a_batch_that_is_forgotten_is_logged_once() {
    let (mut a, _b) = pair();
    let qp_num = a.qp.qp_num();
    let text = |verb| {
        format!(
            "{verb}(qp {qp_num:#x}): a batch with work requests was dropped without `complete` or `abort`: none was posted"
        )
    };
    let free = a.available();
    let lines = warnings(|| {
        for _ in 0..3 {
            let buf = a.filled(b"lost");
            a.qp.sq().batch().wr(1).send(buf);
            a.qp.sq().batch().wr(1).send_inline(b"x");
        }
    });
    assert_eq!(lines, [text("post_send")]);
    let lines = warnings(|| {
        for _ in 0..2 {
            let buf = a.pool.get().unwrap();
            a.qp.rq().unwrap().batch().push(1, buf);
        }
    });
    assert_eq!(lines, [text("post_recv")]);
    assert_eq!(a.available(), free);
    // The typed face.
    let cq = a.context.create_cq(8, None).unwrap();
    let mut raw: RawQp<Rc, _, Mlx5> = a.pd.raw_qp::<Rc>().cq(&cq).cap(crate::bed::CAP).create().unwrap();
    let lines = warnings(|| {
        for _ in 0..2 {
            raw.sq().batch().wr(1).send_inline(b"x");
        }
    });
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_batch_that_ends_by_a_call_or_a_panic_is_not_logged() {
    let (mut a, mut b) = pair();
    let lines = warnings(|| {
        // Empty, completed, refused and aborted ones.
        drop(a.qp.sq().batch());
        b.receives(1);
        let mut batch = a.qp.sq().batch();
        batch.wr(1).signaled().send_inline(b"x");
        batch.complete().unwrap();
        let mut batch = a.qp.sq().batch();
        batch.wr(1).send_inline(&[0; 1000]);
        batch.complete().unwrap_err();
        let buf = a.filled(b"12345678");
        let mut batch = a.qp.sq().batch();
        batch.wr(1).write(buf, &wrong_region().slice(0..1).unwrap());
        batch.complete().unwrap_err();
        let buf = a.filled(b"aborted");
        let mut batch = a.qp.sq().batch();
        batch.wr(1).send(buf);
        batch.abort();
        let buf = a.pool.get().unwrap();
        let mut batch = a.qp.rq().unwrap().batch();
        batch.push(1, buf);
        batch.abort();
        let panicked = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
            let mut batch = a.qp.sq().batch();
            batch.wr(1).send_inline(b"x");
            panic!("of the test");
        }));
        assert!(panicked.is_err());
    });
    assert_eq!(lines, [""; 0]);
    assert_eq!(a.available(), crate::bed::BUFS);
    assert!(a.next().ok().is_ok());
}

/// A scope's post that fails says why.
#[test]
fn a_scope_passes_the_error_on() {
    let mut end = End::new(Hca::new());
    let mut data = [0; 8];
    let posted = end.qp.scope(&mut end.cq, Duration::from_secs(10), |scope| scope.recv(&mut data).map(drop));
    // In RESET.
    let error = posted.unwrap().unwrap_err();
    assert!(matches!(error, Error::Post(e) if e == PostError::BadState), "{error}");
}

/// The queues of a QP have one shape in both faces: `sq` is the queue, `rq` is a `Result`, and with locks `&self` is enough.
/// A QP that only receives: mlx5 makes no send queue of 0 work requests, and the type of a QP says that it has one.
#[test]
fn a_qp_for_receives_only_has_a_send_queue_of_one_request() {
    let end = End::new(Fabric::deterministic(5).device("hca0").build());
    let cq = end.context.create_cq(8, None).unwrap();
    let one = end.pd.qp::<Rc>().cq(&end.cq).depth(0, 4).create().unwrap();
    let raw: RawQp<Rc, _, Mlx5> =
        end.pd.raw_qp::<Rc>().cq(&cq).cap(uverbs::attr::QpCap::new(0, 4)).create().unwrap();
    let unset: RawQp<Rc, _, Mlx5> = end.pd.raw_qp::<Rc>().cq(&cq).create().unwrap();
    for cap in [one.control().cap(), raw.control.cap(), unset.control.cap()] {
        assert!(cap.max_send_wr >= 1, "{cap:?}");
    }
}

#[test]
fn the_queues_of_a_qp_have_one_shape() {
    let end = End::new(Fabric::deterministic(5).device("hca0").build());
    let cq = end.context.create_cq(8, None).unwrap();
    let mut one = end.pd.qp::<Rc>().cq(&end.cq).cap(crate::bed::CAP).create().unwrap();
    let mut raw: RawQp<Rc, _, Mlx5> = end.pd.raw_qp::<Rc>().cq(&cq).cap(crate::bed::CAP).create().unwrap();
    let errors = [
        one.sq().post(1).send_inline(b"x").unwrap_err(),
        raw.sq().post(1).send_inline(b"x").unwrap_err(),
        one.sq_mut().post(1).send_inline(b"x").unwrap_err(),
        raw.sq_mut().post(1).send_inline(b"x").unwrap_err(),
    ];
    assert_eq!(errors.map(|error| error == PostError::BadState), [true; 4]);
    assert!([one.rq().is_ok(), raw.rq().is_ok(), one.rq_mut().is_ok(), raw.rq_mut().is_ok()] == [true; 4]);
    let locked = end.pd.qp::<Rc>().shared().cq(&end.cq).cap(crate::bed::CAP).create().unwrap();
    let raw_locked: RawQp<Rc, _, Mlx5> =
        end.pd.raw_qp::<Rc>().shared().cq(&cq).cap(crate::bed::CAP).create().unwrap();
    let errors = [
        locked.sq().lock().unwrap().post(1).send_inline(b"x").unwrap_err(),
        raw_locked.sq().lock().unwrap().post(1).send_inline(b"x").unwrap_err(),
    ];
    assert_eq!(errors.map(|error| error == PostError::BadState), [true; 2]);
    assert!(locked.rq().is_ok() && raw_locked.rq().is_ok());
}
