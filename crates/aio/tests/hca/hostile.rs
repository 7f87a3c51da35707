// SPDX-License-Identifier: MIT OR Apache-2.0
//! Peers of a stream that do not follow its protocol: each ends with an error, and none keeps this side busy.

use crate::bed::{BUFS, Bed, SIZE, Task, attr, join, poll_once};
use core::future::poll_fn;
use core::pin::Pin;
use futures_io::{AsyncRead, AsyncWrite};
use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use uverbs::Pool;
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs::{Private, attr::QpState};
use uverbs_aio::{Qp, RdmaStream};

/// A stream with a window of 4 messages of 1 KiB, and a peer that sends what a test wants.
struct Case {
    bed: Bed,
    peer: Qp<Rc, Mlx5>,
    stream: RdmaStream<Mlx5>,
    messages: Pool<Private, Mlx5>,
}

const WINDOW: u16 = 4;

/// A message with a header of the protocol.
fn message(kind: u8, credits: u16, value: u32, data: &[u8]) -> Vec<u8> {
    [&[kind, 1][..], &credits.to_be_bytes(), &value.to_be_bytes(), data].concat()
}

fn hello(credits: u16) -> Vec<u8> {
    message(b'h', credits, 1024, &[])
}

fn data(credits: u16) -> Vec<u8> {
    message(b'd', credits, 0, b"x")
}

impl Case {
    fn new() -> Self {
        let bed = Bed::new();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let peer = bed.a.dispatcher.qp(&bed.a.pd).depth(32, 32).pool(&bed.a.incoming).create().unwrap();
        let builder = RdmaStream::builder(&bed.b.dispatcher, &bed.b.pd).window(WINDOW).message_size(1024);
        let attr = attr();
        let mut stream = None;
        let tasks: Vec<Task<'_>> = vec![
            Box::pin(async { peer.exchange(&near, &attr).await }),
            Box::pin(async {
                stream = Some(builder.exchange(&far, &attr).await?);
                Ok(())
            }),
        ];
        bed.run(join(tasks)).unwrap();
        let (stream, messages) = (stream.unwrap(), bed.a.pd.pool(BUFS, SIZE).unwrap());
        Self { bed, peer, stream, messages }
    }

    /// Sends a message, which may not arrive.
    fn send(&self, bytes: &[u8]) {
        let mut buf = self.messages.get().expect("a free buffer");
        buf.fill(bytes).unwrap();
        assert!(poll_once(&mut self.peer.send(buf)).is_pending());
        self.bed.step();
    }

    fn read(&mut self) -> Result<usize, std::io::Error> {
        let (bed, stream) = (&self.bed, &mut self.stream);
        bed.run(poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut [0; 64])))
    }

    /// The stream has ended with an error, also for writes, and the peer's QP learns it.
    fn ended(mut self, what: &str) {
        // What arrived before can be read.
        let error = loop {
            match self.read() {
                Ok(n) => assert!(n > 0, "{what}: the end"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}: {error}");
        let (bed, stream) = (&self.bed, &mut self.stream);
        let written = bed.run(poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, b"x")));
        assert!(written.is_err(), "{what}");
        assert_eq!(stream.qp().control().state().unwrap(), QpState::ERR, "{what}");
        assert!(bed.run(self.stream.shutdown()).is_err(), "{what}");
    }
}

#[test]
fn messages_that_the_protocol_does_not_have_end_the_stream() {
    let whole = [hello(4), data(0), message(b'c', 1, 0, &[]), message(b'f', 0, 0, &[])];
    for first in [Vec::new(), vec![0; 7], vec![0; 8], vec![0xff; 1000], data(0), message(b'f', 0, 0, &[])] {
        let case = Case::new();
        case.send(&first);
        case.ended(&format!("first {first:?}"));
    }
    for wrong in &whole {
        for cut in 0..8 {
            let case = Case::new();
            case.send(&hello(4));
            case.send(&wrong[..cut]);
            case.ended(&format!("{wrong:?} cut to {cut}"));
        }
    }
    let case = Case::new();
    case.send(&hello(4));
    case.send(&hello(4));
    case.ended("a second hello");
    for size in 1..=8 {
        let case = Case::new();
        case.send(&message(b'h', 4, size, &[]));
        case.ended("messages without room for data");
    }
}

#[test]
fn a_peer_that_sends_more_than_its_credits_is_an_error() {
    // Data, also empty ones, which nobody reads.
    for data in [data(0), message(b'd', 0, 0, &[])] {
        let case = Case::new();
        case.send(&hello(4));
        for _ in 0..=WINDOW {
            case.send(&data);
        }
        case.ended("one message too many");
    }
    let case = Case::new();
    case.send(&hello(4));
    case.send(&message(b'f', 0, 0, &[]));
    case.send(&message(b'f', 0, 0, &[]));
    let mut case = case;
    // The first end counts; the second one is an error of what follows.
    assert_eq!(case.read().unwrap(), 0);
    let (bed, stream) = (&case.bed, &mut case.stream);
    assert!(bed.run(poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, b"x"))).is_err());
}

#[test]
fn a_peer_that_lies_about_credits_is_an_error() {
    for (what, messages) in [
        ("no window", vec![hello(0)]),
        ("credits for nothing that was sent", vec![hello(4), message(b'c', 1, 0, &[])]),
        ("credits with data", vec![hello(4), data(1)]),
        ("the most", vec![hello(u16::MAX), message(b'c', u16::MAX, 0, &[])]),
        ("none", vec![hello(4), message(b'c', 0, 0, &[])]),
    ] {
        let case = Case::new();
        for message in &messages {
            case.send(message);
        }
        // What arrived before may be read.
        let mut case = case;
        while case.stream.qp().control().state().unwrap() != QpState::ERR {
            if let Err(error) = case.read() {
                assert_eq!(error.kind(), ErrorKind::InvalidData, "{what}: {error}");
            }
        }
    }
}

#[test]
fn a_message_that_is_too_long_is_an_error() {
    let mut case = Case::new();
    case.send(&hello(4));
    case.send(&message(b'd', 0, 0, &[7; 2000]));
    assert!(case.read().is_err());
    let (bed, stream) = (&case.bed, &mut case.stream);
    assert!(bed.run(poll_fn(|cx| Pin::new(&mut *stream).poll_close(cx))).is_err());
}

/// A window of 65535 that is never used: this side has its own limit.
#[test]
fn a_peer_that_gives_many_credits_and_does_not_receive_stops_the_writer() {
    let mut case = Case::new();
    case.send(&hello(u16::MAX));
    let (bed, stream) = (&case.bed, &mut case.stream);
    let mut written = 0;
    for _ in 0..100 {
        let mut cx = core::task::Context::from_waker(core::task::Waker::noop());
        if let core::task::Poll::Ready(n) = Pin::new(&mut *stream).poll_write(&mut cx, &[0; 5000]) {
            written += n.unwrap();
        }
        bed.step();
    }
    assert!((5000..100_000).contains(&written), "{written}");
}
