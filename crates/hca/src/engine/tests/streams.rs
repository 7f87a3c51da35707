// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of a DC initiator: errors end a stream, and enough of them the queue.

use super::network::dc;
use super::rig::*;
use crate::Fabric;
use crate::engine::qp::State;
use crate::engine::streams::Streams;
use uverbs_mlx5_hw::cqe::*;
use uverbs_mlx5_hw::wqe::*;
use zerocopy::IntoBytes;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    /// The local key is wrong.
    Local,
    /// The key of the peer is wrong.
    Remote,
}
use Kind::{Local, Remote, Send};

const OK: u8 = 0;
const LOC_PROT: u8 = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
const FLUSH: u8 = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
const ACCESS: u8 = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;

/// Writes requests with their streams and rings once.
fn post(a: &mut End, to: &Av, requests: &[(u16, Kind)]) {
    let mut last = None;
    for (stream, kind) in requests {
        let mut sge = a.sge(0, 700);
        if *kind == Local {
            sge = DataSeg::new(700, a.key ^ 0x100, BASE);
        }
        let raddr = remote(0, 0x77);
        let index = match kind {
            Remote => a.write_wqe(
                MLX5_OPCODE_RDMA_WRITE,
                true,
                0,
                &[to.as_bytes(), raddr.as_bytes(), sge.as_bytes()],
            ),
            _ => a.write_wqe(MLX5_OPCODE_SEND, true, 0, &[to.as_bytes(), sge.as_bytes()]),
        };
        let slot = index as usize % BLOCKS as usize;
        a.sq.set(slot * 64 + 9, &stream.to_be_bytes());
        last = Some(index);
    }
    a.ring(last.unwrap());
}

fn syndromes(a: &mut End, fabric: &Fabric) -> Vec<u8> {
    fabric.run();
    core::iter::from_fn(|| a.send_cq.poll()).map(|wc| wc.syndrome).collect()
}

fn streams(seed: u64, loss: f64, log_errored: u8) -> (Fabric, End, End, Av) {
    let fabric = Fabric::deterministic(seed);
    fabric.loss(loss);
    let (a, mut b, to) = dc(&fabric);
    a.qp(|_, _, qp| qp.streams = Streams::new(3, log_errored));
    for _ in 0..8 {
        b.recv(0, 1000);
    }
    (fabric, a, b, to)
}

#[test]
fn an_error_ends_its_stream_only() {
    for (kind, syndrome) in [(Local, LOC_PROT), (Remote, ACCESS)] {
        for (seed, loss) in [(1, 0.0), (2, 0.2), (3, 0.2), (4, 0.2)] {
            let (fabric, mut a, mut b, to) = streams(seed, loss, 2);
            let data = a.fill(0, 700, 3);
            post(&mut a, &to, &[(1, Send), (2, kind), (3, Send), (2, Send), (2, kind), (1, Send)]);
            assert_eq!(syndromes(&mut a, &fabric), [OK, syndrome, OK, FLUSH, FLUSH, OK], "{kind:?} {seed}");
            assert_eq!((a.state(), b.state()), (State::Rts, State::Rts));
            // Each message arrived once.
            for _ in 0..3 {
                assert_eq!(b.recv_cq.poll().unwrap().bytes, 700);
            }
            assert!(b.recv_cq.poll().is_none());
            assert_eq!(b.memory.get(0, 700), data);
            // It stays in its state until it is reset; others are not reset.
            post(&mut a, &to, &[(2, Send), (9, Send)]);
            assert_eq!(syndromes(&mut a, &fabric), [FLUSH, OK]);
            a.qp(|_, _, qp| {
                let streams = qp.streams.as_mut().unwrap();
                assert!(!streams.reset(3) && streams.reset(2) && !streams.reset(2));
            });
            post(&mut a, &to, &[(2, Send)]);
            assert_eq!(syndromes(&mut a, &fabric), [OK]);
            assert!(a.hca.violations().is_empty());
        }
    }
}

#[test]
fn enough_streams_with_errors_end_the_queue() {
    let (fabric, mut a, _b, to) = streams(1, 0.0, 1);
    post(&mut a, &to, &[(5, Local), (5, Local), (6, Send)]);
    assert_eq!(syndromes(&mut a, &fabric), [LOC_PROT, FLUSH, OK]);
    assert_eq!(a.state(), State::Rts);
    post(&mut a, &to, &[(7, Local), (6, Send), (5, Send)]);
    assert_eq!(syndromes(&mut a, &fabric), [LOC_PROT, FLUSH, FLUSH]);
    assert_eq!(a.state(), State::Err);
    // A reset of the queue forgets them.
    a.set_state(State::Reset);
    a.posted = 0;
    a.connect(0, 2, 0);
    post(&mut a, &to, &[(5, Send), (7, Send), (7, Local), (5, Send)]);
    assert_eq!(syndromes(&mut a, &fabric), [OK, OK, LOC_PROT, OK]);

    // Without streams, and with one that may fail, the first error ends it.
    for log_errored in [None, Some(0)] {
        let (fabric, mut a, _b, to) = streams(1, 0.0, 0);
        if log_errored.is_none() {
            a.qp(|_, _, qp| qp.streams = None);
        }
        post(&mut a, &to, &[(5, Local), (6, Send)]);
        assert_eq!(syndromes(&mut a, &fabric), [LOC_PROT, FLUSH]);
        assert_eq!(a.state(), State::Err);
    }
    assert!(Streams::new(9, 0).is_none() && Streams::new(0, 7).is_none());
}
