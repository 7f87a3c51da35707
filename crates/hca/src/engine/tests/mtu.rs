// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ends whose path MTUs differ: a packet has another length than its place in the message requires, or an answer than the request.

use super::near::Travelling;
use super::rig::{BASE, End, pair};
use crate::Fabric;
use crate::engine::qp::{QpKind, State};
use uverbs_mlx5_hw::cqe::{
    MLX5_CQE_SYNDROME_BAD_RESP_ERR as BAD_RESP, MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR as INVALID,
};

const LENGTHS: [u32; 5] = [0, 100, 300, 1000, 3000];

/// The pairs that a test has: with path MTUs of this end and of the other one, and with packets that travel or not.
fn pairs(kind: QpKind) -> impl Iterator<Item = (Fabric, [u32; 2], End, End)> {
    let mtus = [(1024, 256), (256, 1024), (4096, 256), (256, 256)];
    let all = mtus.into_iter().flat_map(|mtus| [true, false].map(|travels| (mtus, travels)));
    all.map(move |((mtu_a, mtu_b), travels)| {
        let fabric = Fabric::new(1);
        let (a, b) = pair(&fabric, kind, 7);
        a.attr(|attr| attr.mtu = mtu_a);
        b.attr(|attr| attr.mtu = mtu_b);
        if travels {
            fabric.tap(Some(Box::new(Travelling)));
        }
        (fabric, [mtu_a, mtu_b], a, b)
    })
}

/// Whether a message of this length consists of packets that are right for both ends.
fn fits(len: u32, [of_a, of_b]: [u32; 2]) -> bool {
    of_a == of_b || len <= of_a.min(of_b)
}

#[test]
fn a_reliable_connection_refuses_packets_of_another_length() {
    for len in LENGTHS {
        for what in ["read", "write", "send"] {
            for (fabric, mtus, mut a, mut b) in pairs(QpKind::Rc) {
                b.recv(0, 4096);
                match what {
                    "read" => a.read(0, len.max(1), BASE, b.key),
                    "write" => a.write(0, len, BASE, b.key),
                    _ => a.send(0, len.max(1)),
                };
                fabric.run();
                let syndrome = a.send_cq.poll().map(|wc| wc.syndrome);
                let expected = match (fits(len, mtus), what) {
                    (true, _) => 0,
                    (false, "read") => BAD_RESP,
                    (false, _) => INVALID,
                };
                assert_eq!(syndrome, Some(expected), "{what} of {len} bytes, {mtus:?}");
                let failed = if expected == 0 { State::Rts } else { State::Err };
                assert_eq!(a.state(), failed, "{what} of {len} bytes, {mtus:?}");
            }
        }
    }
}

#[test]
fn an_unreliable_connection_drops_messages_of_such_packets() {
    for len in LENGTHS {
        for (fabric, mtus, mut a, mut b) in pairs(QpKind::Uc) {
            b.recv(0, 4096);
            a.send(0, len.max(1));
            fabric.run();
            assert_eq!(a.send_cq.poll().map(|wc| wc.syndrome), Some(0));
            let received = b.recv_cq.poll().map(|wc| (wc.syndrome, wc.bytes));
            assert_eq!(received, fits(len, mtus).then_some((0, len.max(1))), "{len} bytes, {mtus:?}");
            // The next message uses the receive.
            a.send(0, 8);
            fabric.run();
            let received = b.recv_cq.poll().map(|wc| wc.bytes);
            assert_eq!(received, (!fits(len, mtus)).then_some(8), "{len} bytes, {mtus:?}");
            assert_eq!([a.state(), b.state()], [State::Rts; 2]);
        }
    }
}
