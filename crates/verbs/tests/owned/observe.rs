// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the objects say about themselves.

use crate::bed::{CAP, End, pair, srq};
use uverbs::attr::{AccessFlags, MwType, QpState};
use uverbs::{Fault, Rc, RemoteRegion};
use uverbs_hca::Fabric;

#[test]
fn debug_is_one_short_line_with_a_thousand_qps() {
    let mut end = End::new(Fabric::deterministic(1).device("hca0").build());
    let cq = end.context.create_cq(64, None).unwrap();
    let mut raw = end.pd.raw_qp::<Rc>().cq(&cq).cap(CAP).create().unwrap();
    let qps: Vec<_> =
        (0..1000).map(|_| end.pd.qp::<Rc>().shared().cq(&end.cq).cap(CAP).create().unwrap()).collect();
    let srq = srq(&end.pd, 4);
    let window = end.pd.alloc_mw(MwType::Type2).unwrap();
    let region = end.pd.reg_mr(uverbs::PageBuf::new(4096).unwrap(), AccessFlags::LOCAL_WRITE).unwrap();
    let dm = end.context.alloc_dm(64, 0).ok();
    let mut texts = vec![
        format!("{:?}", qps[0]),
        format!("{:?}", end.qp),
        format!("{:?}", end.qp.control()),
        format!("{:?}", end.cq),
        format!("{:?}", end.context),
        format!("{:?}", end.context.async_events()),
        format!("{:?}", end.pd),
        format!("{:?}", end.pool),
        format!("{:?}", end.pool.get()),
        format!("{cq:?}"),
        format!("{raw:?}"),
        format!("{:?}", raw.send),
        format!("{:?}", raw.recv),
        format!("{srq:?}"),
        format!("{window:?}"),
        format!("{region:?}"),
        format!("{dm:?}"),
        format!("{:?}", end.context.create_comp_channel().unwrap()),
        format!("{:?}", raw.sq().batch()),
        format!("{:?}", end.pd.qp::<Rc>().shared().cq(&end.cq).cap(CAP).create().unwrap().split()),
    ];
    texts.push(format!("{:?}", end.qp.sq()));
    texts.push(format!("{:?}", end.qp.rq()));
    for text in &texts {
        assert!(text.len() < 200 && !text.contains('\n'), "{} bytes: {text}", text.len());
    }
    let number = format!("{:#x}", qps[0].qp_num());
    assert!(texts[0].contains(&number) && texts[0].contains("hca0"), "{}", texts[0]);
    assert!(format!("{:#?}", end.cq).len() < 200);
}

#[test]
fn a_dump_says_what_a_qp_is_doing() {
    let (mut a, b) = pair();
    let dump = a.qp.dump();
    assert_eq!(*dump.device, *"hca0");
    let (state, peer) = dump.state.unwrap();
    assert_eq!((state, peer.unwrap().0), (QpState::RTS, b.qp.qp_num()));
    assert_eq!((dump.send.posted, dump.send.in_flight, dump.send.free()), (0, 0, dump.send.depth));
    assert_eq!(dump.send.oldest, None);
    a.receives(3);
    let wrong = RemoteRegion::new(0x1000, 64, 0x1234).unwrap();
    let buf = a.filled(b"12345678");
    a.qp.sq().post(7).signaled().write(buf, &wrong).unwrap();
    a.qp.sq().post(8).signaled().send_inline(b"x").unwrap();
    let dump = a.qp.dump();
    assert_eq!((dump.send.posted, dump.send.in_flight, dump.send.oldest), (2, 2, Some(1)));
    let recv = dump.recv.as_ref().unwrap();
    assert_eq!((recv.posted, recv.in_flight, recv.free(), recv.oldest), (3, 3, recv.depth - 3, Some(2)));
    drop(a.next());
    let dump = a.qp.dump();
    assert_eq!((dump.send.posted, dump.send.in_flight, dump.send.oldest), (2, 1, Some(0)));
    let error = dump.send.last_error.as_ref().unwrap();
    assert_eq!((error.fault(), error.wr_id()), (Fault::Remote, Some(7)));
    let text = a.qp.dump().to_string();
    assert!(text.contains("last error: qp ") && text.contains("\n  recv: posted 3, in flight 3"), "{text}");
    a.hca.unplug();
    assert!(a.context.try_async_event().unwrap().is_some());
    let dump = a.qp.dump();
    assert!(dump.is_removed && dump.state.is_err());
    assert!(dump.to_string().contains("the device was removed"));
}
