// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams of a DC initiator: errors end a stream, and enough of them the queue.

use super::network::dc;
use super::rig::*;
use crate::Fabric;
use crate::engine::qp::State;
use crate::engine::streams::Streams;
use core::time::Duration;
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
    /// A read whose local key is wrong: the target executes it.
    Answer,
}
use Kind::{Answer, Local, Remote, Send};

const OK: u8 = 0;
const LOC_PROT: u8 = MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
const FLUSH: u8 = MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
const ACCESS: u8 = MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR;

/// Writes requests with their streams and rings once.
fn post(a: &mut End, to: &Av, requests: &[(u16, Kind)]) {
    // The keys of both ends are the same: each is the first one of its device.
    let key = a.key;
    post_with(a, to, requests, (MLX5_WQE_CTRL_CQ_UPDATE, key));
}

/// As [`post`], with other flags of completion, and the peer's key.
fn post_with(a: &mut End, to: &Av, requests: &[(u16, Kind)], (flags, key): (u8, u32)) {
    let mut last = None;
    for (stream, kind) in requests {
        let mut sge = a.sge(0, 700);
        if matches!(kind, Local | Answer) {
            sge = DataSeg::new(700, a.key ^ 0x100, BASE);
        }
        let raddr = remote(0, 0x77);
        let index = match kind {
            Answer => a.write_ctrl(
                MLX5_OPCODE_RDMA_READ,
                flags,
                0,
                &[to.as_bytes(), remote(BASE, key).as_bytes(), sge.as_bytes()],
            ),
            Remote => a.write_ctrl(
                MLX5_OPCODE_RDMA_WRITE,
                flags,
                0,
                &[to.as_bytes(), raddr.as_bytes(), sge.as_bytes()],
            ),
            _ => a.write_ctrl(MLX5_OPCODE_SEND, flags, 0, &[to.as_bytes(), sge.as_bytes()]),
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

/// The requests of other streams are executed once, also if they were on their way when another one failed.
#[test]
fn requests_behind_an_error_are_executed_once() {
    for (kind, syndrome) in [(Local, LOC_PROT), (Remote, ACCESS), (Answer, LOC_PROT)] {
        for (seed, delay, loss) in
            [(1, 0, 0.0), (1, 3, 0.0), (2, 3, 0.2), (3, 3, 0.2), (4, 3, 0.2), (5, 3, 0.2)]
        {
            let (fabric, mut a, mut b, to) = streams(seed, loss, 2);
            fabric.delay(Duration::from_micros(delay));
            post(&mut a, &to, &[(1, Send), (2, kind), (3, Send), (2, Send), (1, Send)]);
            let name = format!("{kind:?}, seed {seed}, {delay} us");
            assert_eq!(syndromes(&mut a, &fabric), [OK, syndrome, OK, FLUSH, OK], "{name}");
            let messages = core::iter::from_fn(|| b.recv_cq.poll()).count();
            // The one of the failed stream may have been executed, as after the error of a queue.
            assert!(messages == 3 || kind == Answer && messages == 4, "{name}: {messages} messages");
            assert!(a.hca.violations().is_empty());
        }
    }
}

/// A target that does not answer may have executed all that it got.
#[test]
fn requests_without_an_answer_are_not_sent_again() {
    let (fabric, mut a, mut b, to) = streams(1, 0.0, 2);
    fabric.delay(Duration::from_micros(3));
    fabric.script("packet device=hca1 : drop").unwrap();
    post(&mut a, &to, &[(1, Send), (2, Send), (3, Send)]);
    let retry = MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR;
    assert_eq!(syndromes(&mut a, &fabric), [retry; 3]);
    assert_eq!(core::iter::from_fn(|| b.recv_cq.poll()).count(), 3);
    assert_eq!(a.state(), State::Rts);
    fabric.script("").unwrap();
    post(&mut a, &to, &[(4, Send), (1, Send)]);
    assert_eq!(syndromes(&mut a, &fabric), [OK, FLUSH]);
    assert_eq!(core::iter::from_fn(|| b.recv_cq.poll()).count(), 1);
}

#[test]
fn an_error_of_a_script_ends_its_stream_only() {
    let (fabric, mut a, mut b, to) = streams(1, 0.0, 2);
    fabric.script("completion device=hca0 queue=send wr=2 : status REM_OP_ERR").unwrap();
    post(&mut a, &to, &[(1, Send), (2, Send), (3, Send), (2, Send)]);
    assert_eq!(syndromes(&mut a, &fabric), [OK, MLX5_CQE_SYNDROME_REMOTE_OP_ERR, OK, FLUSH]);
    // The last one was on its way.
    assert_eq!((core::iter::from_fn(|| b.recv_cq.poll()).count(), a.state()), (4, State::Rts));
}

/// A request may ask for a completion of the first error only (`ce` of 1): that is the first one of its stream.
#[test]
fn each_stream_has_a_first_error() {
    let (fabric, mut a, _b, to) = streams(1, 0.0, 2);
    let key = a.key;
    post_with(&mut a, &to, &[(1, Local), (1, Send), (2, Local), (2, Send), (3, Send)], (4, key));
    assert_eq!(syndromes(&mut a, &fabric), [LOC_PROT, LOC_PROT]);
    // After the reset of a stream there is another one, and one of the queue.
    a.qp(|_, _, qp| assert!(qp.streams.as_mut().unwrap().reset(1)));
    post_with(&mut a, &to, &[(1, Local), (2, Send), (1, Send)], (4, key));
    assert_eq!(syndromes(&mut a, &fabric), [LOC_PROT]);
    a.set_state(State::Err);
    post_with(&mut a, &to, &[(5, Send), (6, Send)], (4, key));
    assert_eq!(syndromes(&mut a, &fabric), [FLUSH]);
}
