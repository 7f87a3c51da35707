// SPDX-License-Identifier: MIT OR Apache-2.0
//! Unreliable datagrams.

use super::rig::{End, Shape, pair, pattern};
use uverbs_core::attr::QpType;
use uverbs_efa_hw::io::{
    EFA_IO_COMP_STATUS_LOCAL_ERROR_UNSUPPORTED_OP as UNSUPPORTED, EFA_IO_COMP_STATUS_OK as OK,
};

const UD: Shape = Shape {
    qp_type: QpType::Ud,
    wide: false,
    unsolicited: false,
    rnr_retry: 0,
    events: false,
    source_gid: false,
    cq_entry: 16,
};

#[test]
fn a_datagram_has_a_header_in_front_and_is_complete_when_it_is_sent() {
    let (_fabric, a, b) = pair(1);
    let (mut x, mut y) = (End::written(&a, UD), End::written(&b, UD));
    let (to_y, to_x) = (x.ah_to(&y), y.ah_to(&x));
    x.memory.put(0, &pattern(1000, 1));
    y.recv(7, 0, 1040);
    x.send(3, 0, 1000, &y, to_y);
    assert_eq!(x.status(), OK);
    let got = y.poll().unwrap();
    assert_eq!((got.req_id, got.status, got.len, got.ah, got.src_qpn), (7, OK, 1040, to_x, x.qpn));
    assert_eq!(y.memory.get(40, 1000), pattern(1000, 1));
    assert_eq!(y.memory.get(8, 32), [x.ctx.gid().0, y.ctx.gid().0].concat());
    // Without a receive, or to an unknown queue, it is lost.
    x.send(4, 0, 1000, &y, to_y);
    assert_eq!((x.status(), y.poll(), b.stats().rx_drops), (OK, None, 1));
    let mut meta = x.meta(5, 0, &y, to_y);
    (meta.length, meta.qkey) = (1, 1);
    let buffer = x.buffer(0, 10);
    y.recv(8, 0, 1040);
    x.post(meta, zerocopy::IntoBytes::as_bytes(&buffer));
    assert_eq!((x.status(), y.poll(), b.stats().qkey_viol), (OK, None, 1));
    x.read(6, 0, 8, &y, to_y);
    assert_eq!(x.status(), UNSUPPORTED);
}

#[test]
fn lost_datagrams_stay_lost_and_none_is_sent_to_a_reliable_queue() {
    let (fabric, a, b) = pair(2);
    let (mut x, mut y) = (End::written(&a, UD), End::written(&b, UD));
    let srd = End::written(&b, Shape::default());
    let to_y = x.ah_to(&y);
    fabric.loss(0.5);
    let mut lost = 0;
    for i in 0..60 {
        y.recv(i, 0, 100);
        x.send(i, 0, 8, &y, to_y);
        assert_eq!(x.status(), OK);
        lost += usize::from(y.poll().is_none());
    }
    assert!((10..50).contains(&lost), "{lost}");
    fabric.loss(0.0);
    let drops = b.stats().rx_drops;
    x.send(0, 0, 8, &srd, to_y);
    assert_eq!((x.status(), b.stats().rx_drops), (OK, drops + 1));
}
