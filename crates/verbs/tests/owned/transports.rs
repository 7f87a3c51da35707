// SPDX-License-Identifier: MIT OR Apache-2.0
//! The transports whose work requests name their destination: UD, XRC, dynamic connections.

use crate::bed::{BUFS, CAP, End, attr, srq};
use uverbs::mlx5::Mlx5;
use uverbs::{BufList, Srq};
use uverbs::{Endpoint, Ud, WcOpcode, WcStatus, XrcSend};
use uverbs::{
    Exclusive, Private,
    attr::{AccessFlags, QpCap, SrqAttr, SrqInitAttr, SrqType},
};
use uverbs_hca::Fabric;

const SEND: QpCap = CAP.max_recv_wr(0).max_recv_sge(0).max_send_sge(2);
const KEY: u64 = 0x1122_3344_5566_7788;

fn ends() -> (End, End) {
    let fabric = Fabric::deterministic(7);
    let [a, b] = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build()));
    (a, b)
}

/// Where the port of an end is.
fn port(end: &End) -> Endpoint {
    let gid = end.context.query_gid(1, 3).unwrap();
    Endpoint { gid, lid: end.context.query_port(1).unwrap().lid, ..Endpoint::default() }
}

#[test]
fn xrc_messages_arrive_in_owned_shared_queues() {
    let (mut a, mut b) = ends();
    let xrcd = b.context.open_xrcd(None, true, false).unwrap();
    let limits = SrqAttr::new(8);
    let init = SrqInitAttr::new(limits).srq_type(SrqType::Xrc);
    let mut queues: [Srq<Exclusive, Mlx5>; 2] = [(); 2].map(|()| b.pd.xrc_srq(&init, &xrcd, &b.cq).unwrap());
    let receiver = xrcd.recv_qp().create_recv().unwrap();
    let mut sender = a.pd.qp::<XrcSend>().send_cq(&a.cq).cap(SEND).create().unwrap();
    let attr = attr();
    let (here, there) = (sender.control().endpoint(1, &attr).unwrap(), receiver.endpoint(2, &attr).unwrap());
    sender.init(&attr).unwrap();
    sender.connect(&here, &there, &attr).unwrap();
    receiver.init(&attr).unwrap();
    receiver.connect(&there, &here, &attr).unwrap();

    for (n, queue) in queues.iter_mut().enumerate() {
        queue.post(10 + n as u64, b.pool.get().unwrap()).unwrap();
        let buf = a.filled(&[n as u8; 5]);
        sender.sq().post_srq(1, queue.srq_num().unwrap()).signaled().send(buf).unwrap();
        assert_eq!(&*a.next().buf().unwrap(), [n as u8; 5]);
        let done = b.next();
        assert_eq!((done.wc.wr_id, done.wc.status), (10 + n as u64, WcStatus::SUCCESS));
        assert_eq!(&*done.buf().unwrap(), [n as u8; 5]);
    }
    let table = b.pd.pool_with(1, 64).exposed(AccessFlags::REMOTE_WRITE).build().unwrap().get().unwrap();
    let list = BufList::from([a.filled(b"one"), a.filled(b"two")]);
    let number = queues[0].srq_num().unwrap();
    let mut batch = sender.sq().batch();
    batch.wr_srq(2, number).signaled().write(list, &table.remote_region());
    batch.complete().unwrap();
    assert!(a.next().take::<BufList<Private, Mlx5>>().is_some());
    let mut bytes = [0; 6];
    table.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"onetwo");

    queues[1].post(3, b.pool.get().unwrap()).unwrap();
    drop((receiver, xrcd));
    for queue in queues {
        queue.close().map_err(|(_, error)| error).unwrap();
    }
    assert_eq!((a.available(), b.available()), (BUFS, BUFS));
    assert!(a.hca.violations().is_empty() && b.hca.violations().is_empty());
}

#[test]
fn an_xrc_send_qp_needs_one_cq_and_others_two() {
    let (a, _b) = ends();
    let builder = || a.pd.qp::<uverbs::Rc>().cap(CAP);
    assert!(builder().send_cq(&a.cq).create().unwrap_err().to_string().contains("recv_cq"));
    assert!(builder().recv_cq(&a.cq).create().unwrap_err().to_string().contains("send_cq"));
    assert!(a.pd.qp::<XrcSend>().cap(SEND).create().is_err());
}

#[test]
fn dynamic_connections_own_their_buffers() {
    let (mut a, mut b) = ends();
    let attr = attr();
    let mut queue = srq(&b.pd, 8);
    let target = b.pd.dct(&b.cq, &queue, KEY).unwrap();
    let dctn = target.connect(&attr, &attr.ah_attr(&port(&a))).unwrap();
    let mut initiator = a.pd.dci().cq(&a.cq).cap(SEND).create().unwrap();
    initiator.control().connect_dci(&attr).unwrap();
    let ah = a.pd.create_ah(&attr.ah_attr(&port(&b))).unwrap();

    queue.post(7, b.pool.get().unwrap()).unwrap();
    let buf = a.filled(b"by DC");
    initiator.sq().post_dc(1, &ah, dctn, KEY).signaled().send(buf).unwrap();
    assert_eq!(&*a.next().buf().unwrap(), b"by DC");
    let done = b.next();
    assert_eq!((done.wc.wr_id, done.wc.opcode), (7, WcOpcode::RECV));
    assert_eq!(&*done.buf().unwrap(), b"by DC");

    // A wrong key: the buffer comes back with the error.
    let buf = a.filled(b"refused");
    let mut batch = initiator.sq().batch();
    batch.wr_dc(2, &ah, dctn, KEY + 1).signaled().send(buf);
    batch.complete().unwrap();
    let done = a.next();
    assert!(!done.wc.status.is_success());
    assert_eq!(&*done.buf().unwrap(), b"refused");
    queue.post(8, b.pool.get().unwrap()).unwrap();
    drop(target);
    queue.close().map_err(|(_, error)| error).unwrap();
    assert_eq!((a.available(), b.available()), (BUFS, BUFS));
}

#[test]
fn datagrams_own_their_buffers() {
    let (mut a, mut b) = ends();
    let attr = attr().qkey(7);
    let [mut from, mut to] = [&a, &b].map(|end| {
        let qp = end.pd.qp::<Ud>().cq(&end.cq).cap(CAP).create().unwrap();
        qp.init(&attr).unwrap();
        let here = qp.control().endpoint(1, &attr).unwrap();
        qp.connect(&here, &here, &attr).unwrap();
        qp
    });
    to.rq().unwrap().post(1, b.pool.get().unwrap()).unwrap();
    let ah = a.pd.create_ah(&attr.ah_attr(&port(&b))).unwrap();
    let buf = a.filled(b"datagram");
    from.sq().post_to(2, &ah, to.qp_num(), 7).signaled().send(buf).unwrap();
    assert_eq!(&*a.next().buf().unwrap(), b"datagram");
    // The first 40 bytes are those of the GRH.
    assert_eq!(&b.next().buf().unwrap()[40..], b"datagram");
    drop((from, to));
    assert_eq!((a.available(), b.available()), (BUFS, BUFS));
}

/// Operations that are known at run time only: one that the transport or the data do not have is refused, with the data.
#[test]
fn an_operation_as_a_value_is_checked_when_it_is_posted() {
    use uverbs::{Operation, PostError, RemoteRegion};
    let (a, b) = ends();
    let attr = attr();
    let mut datagrams = a.pd.qp::<Ud>().cq(&a.cq).cap(CAP).create().unwrap();
    let ah = a.pd.create_ah(&attr.ah_attr(&port(&b))).unwrap();
    let region = RemoteRegion::new(0x1000, 64, 1).unwrap();
    let connected = [
        Operation::SendInv(1),
        Operation::Write(region),
        Operation::WriteImm(region, 1),
        Operation::Read(region),
        Operation::CmpSwp(region, 0, 0),
        Operation::FetchAdd(region, 0),
    ];
    for op in &connected {
        let wr = datagrams.sq().post_to(1, &ah, 2, 3);
        let rejected = wr.op_with(op, a.filled(&[0; 8])).unwrap_err();
        assert!(rejected.error == PostError::IllegalOpcode && rejected.returned.is_some(), "{op:?}");
        assert!(datagrams.sq().post_to(1, &ah, 2, 3).op_inline(op, &[]).is_err(), "{op:?}");
    }
    // Not what writes to shared memory, in a batch or alone.
    let mut qp = a.pd.qp::<uverbs::Rc>().cq(&a.cq).cap(CAP).create().unwrap();
    let shared = a.filled(&[0; 8]).share();
    for op in &connected[3..] {
        let rejected = qp.sq().post(1).op(op, shared.clone()).unwrap_err();
        assert!(rejected.error == PostError::IllegalOpcode && rejected.returned.is_some(), "{op:?}");
        let mut batch = qp.sq().batch();
        batch.wr(1).op(op, shared.clone());
        assert!(batch.complete().unwrap_err() == PostError::IllegalOpcode, "{op:?}");
    }
    // Nor what is too long for the memory of the peer, or no word.
    for op in [Operation::Write(region), Operation::Read(region), Operation::FetchAdd(region, 0)] {
        let rejected = qp.sq().post(1).op_with(&op, a.filled(&[0; 65])).unwrap_err();
        assert!(rejected.error == PostError::InvalidLength, "{op:?}");
    }
    let flush =
        Operation::Flush(region, uverbs::provider::op::FlushArgs { length: 8, placement: 1, level: 0 });
    let rejected = qp.sq().post(1).op_with(&flush, a.filled(b"x")).unwrap_err();
    assert!(rejected.error == PostError::IllegalOpcode);
    drop(shared);
    drop((qp, datagrams, rejected));
    assert_eq!(a.available(), BUFS);
    assert!(a.hca.violations().is_empty());
}
