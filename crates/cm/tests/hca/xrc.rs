// SPDX-License-Identifier: MIT OR Apache-2.0
//! XRC: identifiers of its QP types, and QPs that carry data.

use crate::{LIMIT, LONG, PORT, channel, failure, hosts};
use core::net::SocketAddr;
use uverbs::remote::REMOTE_REGION_LEN;
use uverbs::{Context, PageBuf, RemoteRegion, WorkCompletion, XrcSend, mlx5::Mlx5, raw::Srq};
use uverbs::{
    Exclusive,
    attr::{AccessFlags, QpAttrMask, QpCap, QpState, QpType, SrqAttr, SrqInitAttr, SrqType},
};
use uverbs_cm::{ConnParam, Error, Listener, PortSpace, Resolved};
use uverbs_hca::Fabric;

#[test]
fn xrc_identifiers_have_their_own_attributes() {
    let hosts = hosts();
    let address = hosts.address();
    let listener = hosts.listen(PortSpace::Ib(QpType::XrcRecv), 0);
    // A listener of another type refuses.
    let wrong = hosts.resolve(PortSpace::Ib(QpType::Rc), address);
    wrong.connect(&ConnParam::default()).unwrap();
    assert!(matches!(failure(&hosts.at_client, &wrong), Error::Rejected { .. }));
    let active = hosts.resolve(PortSpace::Ib(QpType::XrcSend), address);
    active.connect(&ConnParam::new().qp_num(9)).unwrap();
    let request = hosts.request(&listener);
    let (_, mask) = request.id.init_qp_attr(QpState::RTS).unwrap();
    assert!(mask.contains(QpAttrMask::SQ_PSN | QpAttrMask::TIMEOUT));
    assert!(!mask.contains(QpAttrMask::RETRY_CNT), "{mask:?}");
    let error = hosts.at_client.create_id(PortSpace::Ib(QpType::RawPacket)).unwrap_err();
    assert!(error.to_string().contains("has no connections"), "{error}");
}

#[test]
fn xrc_qps_are_connected_and_carry_data() {
    let fabric = Fabric::new(5);
    let (client, server) = (fabric.device("hca0").build(), fabric.device("hca1").build());
    let address: SocketAddr = (server.addresses()[0], PORT).into();
    let listener = Listener::with(&channel(&server), PortSpace::Ib(QpType::XrcRecv), address, 0).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let context = Context::<Mlx5>::from_kernel(server.open()).unwrap();
            let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
            let xrcd = context.open_xrcd(None, true, false).unwrap();
            let attr = SrqInitAttr::new(SrqAttr::new(4)).srq_type(SrqType::Xrc);
            let srq: Srq<Exclusive, Mlx5> = Srq::create_xrc(&pd, &attr, &xrcd, &cq).unwrap();
            let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
            let region = pd.reg_mr(PageBuf::new(64).unwrap(), access).map_err(|e| e.error).unwrap();
            let request = listener.wait(LONG).unwrap().expect("a request");
            let mut data = srq.srq_num().unwrap().to_be_bytes().to_vec();
            data.extend(region.remote_region(0..64).unwrap().encode());
            let param = ConnParam::with_private_data(data).access(AccessFlags::REMOTE_WRITE);
            let qp = xrcd.recv_qp().create_recv().unwrap();
            let connection = request.accept(qp, &param, LONG).unwrap();
            assert!(connection.wait_disconnected(LONG).unwrap());
            let mut arrived = [0; 5];
            region.read_at(0, &mut arrived).unwrap();
            connection.close().unwrap();
            arrived
        });
        let context = Context::<Mlx5>::from_kernel(client.open()).unwrap();
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(4, None).unwrap());
        let cap = QpCap::new(1, 0).sge(1, 0).inline(8);
        let qp = pd.raw_qp::<XrcSend>().send_cq(&cq).cap(cap).create().unwrap();
        let port_space = PortSpace::Ib(QpType::XrcSend);
        let resolved = Resolved::with(&channel(&client), port_space, None, address, LIMIT).unwrap();
        let mut connection = resolved.connect(qp, &ConnParam::default(), LONG).unwrap();
        let data = connection.peer().private_data.clone();
        let (srq_num, region) = data.split_first_chunk().unwrap();
        let region = RemoteRegion::decode(&region[..REMOTE_REGION_LEN]).unwrap();
        let to = region.remote(0..5).unwrap();
        let sq = connection.qp.sq();
        sq.post_srq(1, u32::from_be_bytes(*srq_num)).signaled().write_inline(b"hello", to).unwrap();
        let mut wc = [WorkCompletion::default(); 1];
        while cq.poll(&mut wc).unwrap().is_empty() {
            std::thread::yield_now();
        }
        wc[0].status.ok().unwrap();
        connection.disconnect().unwrap();
        assert_eq!(serving.join().unwrap(), *b"hello");
    });
}
