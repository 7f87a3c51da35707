// SPDX-License-Identifier: MIT OR Apache-2.0
//! What EFA does not have, and what its users trip over, is an error that says so.

use crate::bed::{CAP, End, QKEY, RIGHTS, attr, on_both, pair};
use uverbs::attr::{QpState, SendOpsFlags, SrqAttr, SrqInitAttr};
use uverbs::efa::Efa;
use uverbs::{
    AnyDriver, Context, Dci, Driver, Errno, Error, PostError, Rc, SendFlags, Srd, Uc, Ud, WcStatus,
};
use uverbs_efa_device::{EfaDevice, Fabric, Generation};

on_both! { what_the_device_lacks_is_unsupported posts_in_the_wrong_state an_unsignaled_post_says_so a_peer_without_our_address_refuses }

fn message(error: &Error) -> String {
    assert!(matches!(error, Error::Unsupported { .. }) && error.errno() == Errno::EOPNOTSUPP, "{error:?}");
    error.to_string()
}

fn what_the_device_lacks_is_unsupported<D: Driver>() {
    let (a, ..) = pair::<D>(1);
    let pd = &a.pd;
    let rc = message(&pd.qp::<Rc>().cq(&a.cq).cap(CAP).create().unwrap_err());
    assert!(rc.contains("efa has no RC QPs") && rc.contains("SRD"), "{rc}");
    assert!(message(&pd.qp::<Uc>().cq(&a.cq).cap(CAP).create().unwrap_err()).contains("SRD"));
    let dc = message(&pd.qp::<Dci>().cq(&a.cq).cap(CAP).create().unwrap_err());
    assert!(dc.contains("create_qp") && dc.contains("efa has no DC QPs"), "{dc}");
    let atomic = SendOpsFlags::SEND | SendOpsFlags::ATOMIC_FETCH_AND_ADD;
    let atomic = pd.qp::<Srd>().cq(&a.cq).cap(CAP).send_ops(atomic).create().unwrap_err();
    assert!(message(&atomic).contains("ATOMIC_FETCH_AND_ADD"));
    message(
        &pd.srq(&SrqInitAttr::new(SrqAttr::new(8)))
            .map(|_: uverbs::Srq<uverbs::Exclusive, D>| ())
            .unwrap_err(),
    );
    // Windows of memory: neither of a region nor of a buffer.
    let window = pd.alloc_mw(uverbs::attr::MwType::Type2).map(|_| ()).unwrap_err();
    assert_eq!(window.errno(), Errno::EOPNOTSUPP, "{window}");
    message(&a.context.query_raw_clock().unwrap_err());
    // Datagrams without the reliability are there.
    pd.qp::<Ud>().cq(&a.cq).cap(CAP).create().unwrap();
}

/// The type of QP is the same number for the kernel, so the driver is asked.
#[test]
fn other_devices_have_no_srd() {
    let any = Context::<AnyDriver>::from_kernel(uverbs_hca::Hca::new().open()).unwrap();
    let mlx5 = Context::<uverbs::mlx5::Mlx5>::from_kernel(uverbs_hca::Hca::new().open()).unwrap();
    fn refused<D: Driver>(context: &Context<D>) -> String {
        let cq = context.cq_with::<uverbs::Exclusive>(16, None).unwrap();
        message(&context.alloc_pd().unwrap().qp::<Srd>().cq(&cq).cap(CAP).create().unwrap_err())
    }
    for refused in [refused(&any), refused(&mlx5)] {
        assert!(refused.contains("create_qp") && refused.contains("mlx5 has no SRD QPs"), "{refused}");
    }
}

/// The generations differ: the first has neither writes nor retries.
#[test]
fn the_first_generation_only_reads() {
    let fabric = Fabric::deterministic(3);
    let device = fabric.device("efa_0").generation(Generation::First).build();
    let context = Context::<Efa>::from_kernel(device.open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let cq = context.cq_with::<uverbs::Exclusive>(16, None).unwrap();
    let write = pd.qp::<Srd>().cq(&cq).cap(CAP).send_ops(SendOpsFlags::RDMA_WRITE).create().unwrap_err();
    assert!(message(&write).contains("RDMA_WRITE"), "{write}");
    let mut qp = pd.qp::<Srd>().cq(&cq).cap(CAP).create().unwrap();
    // It has no retries, which `connect` asks for where there are some.
    let here = crate::bed::start(&qp);
    let ah = pd.create_ah(&attr().on(&context).unwrap().ah_attr(&here)).unwrap();
    let pool = pd.pool(2, 64).unwrap();
    let exposed = pd.pool_with(1, 64).exposed(uverbs::attr::AccessFlags::REMOTE_READ).build().unwrap();
    let table = exposed.get().unwrap();
    let region = table.remote_region();
    let refused = qp.sq().post_to(1, &ah, here.qp_num, QKEY).write(pool.get().unwrap(), &region).unwrap_err();
    assert_eq!(refused.error.reason, PostError::IllegalOpcode);
    qp.sq().post_to(1, &ah, here.qp_num, QKEY).read(pool.get().unwrap(), &region).unwrap();
    let exposed = pd.pool_with(1, 64).exposed(RIGHTS).build().unwrap_err();
    assert_eq!(exposed.errno(), Errno::EOPNOTSUPP, "{exposed}");
}

fn posts_in_the_wrong_state<D: Driver>() {
    let (mut a, mut b, to_b, _to_a) = pair::<D>(4);
    let fresh = a.pd.qp::<Srd>().cq(&a.cq).cap(CAP).create();
    let mut fresh = fresh.unwrap();
    let refused = fresh.sq().post_to(1, &to_b, b.here.qp_num, QKEY).send_inline(b"early").unwrap_err();
    assert_eq!(refused.reason, PostError::BadState);
    assert!(refused.to_string().contains("post_send(qp"), "{refused}");

    // What is in flight when the QP goes to ERR is flushed, and then posts fail.
    b.receives(2);
    let buf = a.filled(b"in flight");
    a.qp.sq().post_to(1, &to_b, 77, QKEY).send(buf).unwrap();
    b.qp.control().modify_state(QpState::ERR).unwrap();
    for _ in 0..2 {
        assert_eq!(b.next().wc.status, WcStatus::WR_FLUSH_ERR);
    }
    let buf = b.filled(b"too late");
    let refused = b.qp.sq().post_to(2, &to_b, b.here.qp_num, QKEY).send(buf).unwrap_err();
    assert_eq!((refused.error.reason, refused.error.reason.errno()), (PostError::BadState, Errno::EINVAL));
    assert!(refused.returned.is_some());
    // And it is used again after a RESET.
    b.qp.reset().unwrap();
    crate::bed::start(&b.qp);
    b.receives(1);
    assert_eq!(a.next().wc.status, WcStatus::REM_INV_RD_REQ_ERR, "there is no QP 77");
    let buf = a.filled(b"again");
    a.qp.sq().post_to(3, &to_b, b.here.qp_num, QKEY).send(buf).unwrap();
    drop(a.ok());
    assert_eq!(&*b.ok().buf().unwrap(), b"again");
}

fn an_unsignaled_post_says_so<D: Driver>() {
    let (a, b, to_b, _to_a) = pair::<D>(5);
    let cq = a.context.create_cq(16, None).unwrap();
    let mut raw = a.pd.raw_qp::<Srd>().cq(&cq).cap(CAP).create().unwrap();
    raw.init(&attr()).unwrap();
    raw.connect(&a.here, &a.here, &attr()).unwrap();
    let refused = raw.sq().post_to(1, &to_b, b.here.qp_num, QKEY).send_inline(b"x").unwrap_err();
    assert_eq!((refused.reason, refused.reason.errno()), (PostError::Unsignaled, Errno::EINVAL));
    for flag in [SendFlags::FENCE, SendFlags::SOLICITED] {
        let refused =
            raw.sq().post_to(1, &to_b, b.here.qp_num, QKEY).signaled().flags(flag).send_inline(b"x");
        assert_eq!(refused.unwrap_err().reason, PostError::IllegalFlag);
    }
    raw.sq().post_to(1, &to_b, b.here.qp_num, QKEY).signaled().send_inline(b"x").unwrap();
}

/// Both sides need an address handle for reads and writes.
fn a_peer_without_our_address_refuses<D: Driver>() {
    let fabric = Fabric::deterministic(6);
    let [mut a, b] = ["efa_0", "efa_1"].map(|name| End::<D>::new(&fabric.device(name).build()));
    let to_b = a.ah(&b.here);
    let table = b.exposed.get().unwrap();
    let region = table.remote_region();
    let buf = a.filled(b"to a stranger");
    a.qp.sq().post_to(1, &to_b, b.here.qp_num, QKEY).write(buf, &region).unwrap();
    let done = a.next();
    assert_eq!((done.wc.status, done.wc.vendor_err), (WcStatus::REM_OP_ERR, 14));
    assert!(done.buf().is_some());
    let _to_a = b.ah(&a.here);
    let buf = a.filled(b"to a peer");
    a.qp.sq().post_to(2, &to_b, b.here.qp_num, QKEY).write(buf, &region).unwrap();
    drop(a.ok());
    // A wrong key is refused by the peer, and the QP goes on.
    let wrong = uverbs::RemoteRegion::new(region.addr(), 8, region.rkey() ^ 1).unwrap();
    let mut buf = a.pool.get().unwrap();
    buf.set_len(8).unwrap();
    a.qp.sq().post_to(3, &to_b, b.here.qp_num, QKEY).read(buf, &wrong).unwrap();
    assert_eq!(a.next().wc.status, WcStatus::REM_ACCESS_ERR);
    let mut buf = a.pool.get().unwrap();
    buf.set_len(8).unwrap();
    a.qp.sq().post_to(4, &to_b, b.here.qp_num, QKEY).read(buf, &region).unwrap();
    drop(a.ok());
}

/// The names of software EFAs, if no device of the machine has them.
#[cfg(feature = "efa-device")]
#[test]
fn a_software_efa_is_opened_by_its_name() {
    let [a, b] = ["efa0", "efa1"].map(|name| uverbs::open(name).unwrap());
    assert_eq!((a.name(), b.name()), ("efa0", "efa1"));
    assert!(uverbs::open("efa16").unwrap_err().to_string().contains("efa16"));
    assert!(uverbs::open("efa00").is_err());
    let pd = a.alloc_pd().unwrap();
    let mut cq = a.cq(16).unwrap();
    let mut qp = pd.qp::<Srd>().cq(&cq).depth(4, 4).create().unwrap();
    let here = crate::bed::start(&qp);
    let ah = pd.create_ah(&attr().on(&a).unwrap().ah_attr(&here)).unwrap();
    let pool = pd.pool(2, 64).unwrap();
    qp.recv(pool.get().unwrap()).unwrap();
    qp.sq()
        .post_to(1, &ah, here.qp_num, QKEY)
        .send(pool.get().unwrap().filled(b"hello").into_buf().unwrap())
        .unwrap();
    drop(cq.wait().unwrap().ok().unwrap());
    drop(cq.wait().unwrap().ok().unwrap());
}

#[test]
fn a_device_of_this_driver_is_found() {
    let context = uverbs::open(EfaDevice::new().open()).unwrap();
    assert_eq!(context.name(), "efa_0");
}
