// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stream of uverbs-aio whose peer may send any messages, while its program reads and writes in any order.
//!
//! Checked: what the program reads are the data of the peer's messages, in order; the stream sends a message of data for each
//! credit at most, and gives as many credits as its window and the messages that it got; its own messages have the format of
//! the protocol, and what it sends are the bytes that the program wrote; no call waits for something that is there; the device
//! reports no access that a driver may not make.
#![no_main]

use arbitrary::Arbitrary;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context as TaskContext, Poll, Waker};
use core::time::Duration;
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use libfuzzer_sys::fuzz_target;
use std::io::ErrorKind;
use std::sync::Arc;
use uverbs::Pool;
use uverbs::{Context, ProtectionDomain, Rc};
use uverbs::{Private, mlx5::Mlx5};
use uverbs_aio::{Clock, Dispatcher, Link, Listener, Qp, RdmaStream};
use uverbs_cm::{ConnParam, EventChannel};
use uverbs_hca::{Fabric, Hca};

/// Messages of the stream that may be unread.
const WINDOW: u16 = 4;
/// Bytes of a message of the stream.
const MESSAGE: u32 = 64;
/// Bytes before the data of a message.
const HEADER: usize = 8;
/// Messages of the peer that may be on their way.
const DEPTH: u32 = 64;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// The credits with which the peer begins as it should; otherwise its first message is one of the steps.
    hello: Option<u8>,
    /// Time passes after some of the steps.
    steps: Vec<(Step<'a>, bool)>,
}

#[derive(Arbitrary, Debug)]
enum Step<'a> {
    Hello {
        credits: u8,
        message: u8,
    },
    /// Messages of the protocol, perhaps at a wrong time.
    Data {
        credits: u8,
        data: &'a [u8],
    },
    Credits(u16),
    End,
    /// Any bytes.
    Raw(&'a [u8]),
    Read(u8),
    FillBuf,
    Consume(u8),
    Write(u8),
    /// The room that is wanted, and the bytes that are sent.
    WriteWith(u8, u8),
    Close,
}

#[derive(Debug)]
struct Virtual(Fabric);

impl Clock for Virtual {
    fn now(&self) -> Duration {
        self.0.now()
    }
}

struct End {
    dispatcher: Dispatcher<Mlx5>,
    pd: ProtectionDomain<Mlx5>,
    manager: EventChannel,
    hca: Hca,
}

impl End {
    fn new(hca: Hca) -> Self {
        let context = Context::<Mlx5>::from_kernel(hca.open()).expect("a device");
        let clock = Arc::new(Virtual(hca.fabric()));
        let dispatcher = Dispatcher::builder(&context).spin(Duration::ZERO).clock(clock).build();
        let manager = EventChannel::from_port(hca.connection_manager().expect("a connection manager"));
        let pd = context.alloc_pd().expect("a protection domain");
        Self { dispatcher: dispatcher.expect("a dispatcher"), pd, manager, hca }
    }
}

struct Run {
    fabric: Fabric,
    ends: [End; 2],
    stream: RdmaStream<Mlx5>,
    peer: Qp<Rc, Mlx5>,
    outgoing: Pool<Private, Mlx5>,
    _link: Link,
    model: Model,
}

/// What the two sides may see.
#[derive(Default)]
struct Model {
    /// The data of the peer's messages, and how many of these bytes were read.
    sent: Vec<u8>,
    read: usize,
    /// Messages of data that the peer has sent.
    messages: u64,
    /// Credits that the peer has given, if all of its messages count.
    given: u64,
    /// What the program wrote, and how many of these bytes have arrived.
    written: Vec<u8>,
    arrived: usize,
    /// Messages of data, and credits, that have arrived.
    got: u64,
    granted: u64,
    said_hello: bool,
}

fn poll<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}

fn run_until<F: Future>(fabric: &Fabric, ends: &[End; 2], future: F) -> F::Output {
    let mut future = pin!(future);
    for _ in 0..1000 {
        if let Poll::Ready(output) = future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            return output;
        }
        pass_time(fabric, ends);
    }
    panic!("a connection is not made");
}

fn pass_time(fabric: &Fabric, ends: &[End; 2]) {
    fabric.run_for(Duration::from_micros(100));
    for end in ends {
        while end.dispatcher.poll_once().is_ok_and(|n| n > 0) {}
        end.dispatcher.after_sleep().expect("the descriptors can be read");
    }
}

/// Connects the peer with a new stream.
fn connect(
    fabric: &Fabric,
    ends: &[End; 2],
    peer: &Qp<Rc, Mlx5>,
    listener: &Listener<Mlx5>,
) -> (Link, RdmaStream<Mlx5>) {
    let [near, far] = ends;
    let (param, address) = (ConnParam::default(), listener.local_addr().expect("an address"));
    let mut connect = pin!(peer.connect_to(&far.manager, address, &param));
    let builder = RdmaStream::builder(&near.dispatcher, &near.pd).window(WINDOW).message_size(MESSAGE);
    let mut accept = pin!(builder.accept(listener));
    let (mut link, mut stream) = (None, None);
    let both = poll_fn(|cx| {
        if link.is_none()
            && let Poll::Ready(connected) = connect.as_mut().poll(cx)
        {
            link = Some(connected.expect("a connection"));
        }
        if stream.is_none()
            && let Poll::Ready(accepted) = accept.as_mut().poll(cx)
        {
            stream = Some(accepted.expect("a stream"));
        }
        if link.is_some() && stream.is_some() { Poll::Ready(()) } else { Poll::Pending }
    });
    run_until(fabric, ends, both);
    (link.expect("it is connected"), stream.expect("it was accepted"))
}

impl Run {
    fn new() -> Self {
        let fabric = Fabric::deterministic(1);
        let ends = ["hca0", "hca1"].map(|name| End::new(fabric.device(name).build()));
        let [near, far] = &ends;
        let address = (near.hca.addresses()[0], 7471).into();
        let listener = Listener::bind(&near.dispatcher, &near.manager, address).expect("a listener");
        let [outgoing, incoming] = [(); 2].map(|()| far.pd.pool(2 * DEPTH, 256).expect("memory of the peer"));
        let peer = far.dispatcher.qp(&far.pd).depth(DEPTH, DEPTH).pool(&incoming).create().expect("a QP");
        let (link, stream) = connect(&fabric, &ends, &peer, &listener);
        Self { fabric, ends, stream, peer, outgoing, _link: link, model: Model::default() }
    }

    /// The peer sends a message, if its queue has room.
    fn send(&mut self, kind: u8, credits: u16, value: u32, data: &[u8]) {
        let bytes = [&[kind, 1][..], &credits.to_be_bytes(), &value.to_be_bytes(), data].concat();
        self.send_raw(&bytes);
    }

    fn send_raw(&mut self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(200)];
        let Some(mut buf) = self.outgoing.try_get() else { return };
        buf.fill(bytes).expect("a message fits");
        if !matches!(poll(self.peer.send(buf).detach()), Poll::Ready(Ok(()))) {
            // It waited for an entry, and was dropped; or the QP has ended.
            return;
        }
        if let &[kind, 1, a, b, ..] = bytes
            && bytes.len() >= HEADER
        {
            self.model.given += u64::from(u16::from_be_bytes([a, b]));
            if kind == b'd' {
                self.model.messages += 1;
                self.model.sent.extend_from_slice(&bytes[HEADER..]);
            }
        }
    }

    /// What the program has read.
    fn has_read(&mut self, n: usize, bytes: &[u8]) {
        let rest = &self.model.sent[self.model.read..];
        assert!(rest.starts_with(bytes), "{bytes:x?} was read, of {rest:x?}");
        self.model.read += n;
    }

    fn step(&mut self, step: &Step<'_>) {
        let mut cx = TaskContext::from_waker(Waker::noop());
        match *step {
            Step::Hello { credits, message } => self.send(b'h', credits.into(), message.into(), &[]),
            Step::Data { credits, data } => {
                self.send(b'd', credits.into(), 0, &data[..data.len().min(MESSAGE as usize - HEADER)]);
            }
            Step::Credits(credits) => self.send(b'c', credits, 0, &[]),
            Step::End => self.send(b'f', 0, 0, &[]),
            Step::Raw(bytes) => self.send_raw(bytes),
            Step::Read(n) => {
                let mut out = vec![0; n.into()];
                if let Poll::Ready(Ok(n)) = Pin::new(&mut self.stream).poll_read(&mut cx, &mut out) {
                    self.has_read(n, &out[..n]);
                }
            }
            Step::FillBuf => {
                if let Poll::Ready(Ok(there)) = Pin::new(&mut self.stream).poll_fill_buf(&mut cx) {
                    let there = there.to_vec();
                    self.has_read(0, &there);
                }
            }
            Step::Consume(n) => {
                // Only what is there is consumed.
                if let Poll::Ready(Ok(there)) = Pin::new(&mut self.stream).poll_fill_buf(&mut cx) {
                    let consumed = there[..there.len().min(n.into())].to_vec();
                    Pin::new(&mut self.stream).consume(n.into());
                    self.has_read(consumed.len(), &consumed);
                }
            }
            Step::Write(n) => {
                let data: Vec<u8> = (0..n).collect();
                match Pin::new(&mut self.stream).poll_write(&mut cx, &data) {
                    Poll::Ready(Ok(n)) => self.model.written.extend_from_slice(&data[..n]),
                    // A write that failed may have sent a part.
                    Poll::Ready(Err(_)) | Poll::Pending => {}
                }
            }
            Step::WriteWith(max, len) => {
                let mut wrote = Vec::new();
                let written = poll(self.stream.write_with(max.into(), |room| {
                    room.fill(max ^ len);
                    wrote.extend_from_slice(&room[..room.len().min(len.into())]);
                    len.into()
                }));
                match written {
                    Poll::Ready(Ok(n)) => self.model.written.extend_from_slice(&wrote[..n]),
                    Poll::Ready(Err(error)) => {
                        let is_more = std::io::Error::from(error).kind() == ErrorKind::InvalidInput;
                        assert!(!is_more || wrote.len() < len.into(), "{len} bytes were refused");
                    }
                    Poll::Pending => assert!(wrote.is_empty(), "a write that waits has sent nothing"),
                }
            }
            Step::Close => _ = Pin::new(&mut self.stream).poll_close(&mut cx),
        }
    }

    fn pass_time(&mut self) {
        pass_time(&self.fabric, &self.ends);
        while let Poll::Ready(Ok(message)) = poll(self.peer.recv()) {
            let &[kind, 1, a, b, ..] = &*message else { panic!("{:x?} was sent", &*message) };
            let model = &mut self.model;
            assert_eq!(kind == b'h', !core::mem::replace(&mut model.said_hello, true), "one hello, first");
            model.granted += u64::from(u16::from_be_bytes([a, b]));
            let data = &message[HEADER..];
            match kind {
                b'd' => {
                    model.got += 1;
                    let rest = &model.written[model.arrived..];
                    assert!(rest.starts_with(data), "{data:x?} was sent, of {rest:x?}");
                    model.arrived += data.len();
                }
                b'h' | b'c' | b'f' => assert!(data.is_empty()),
                kind => panic!("a message of kind {kind:#x} was sent"),
            }
        }
        assert!(self.model.got <= self.model.given, "data without credit");
        assert!(self.model.granted <= u64::from(WINDOW) + self.model.messages, "credits for nothing");
    }
}

fuzz_target!(|input: Input<'_>| {
    let mut run = Run::new();
    if let Some(credits) = input.hello {
        run.send(b'h', (credits % 8).into(), MESSAGE, &[]);
        run.pass_time();
    }
    for (step, passes) in input.steps.iter().take(200) {
        run.step(step);
        if *passes {
            run.pass_time();
        }
    }
    for _ in 0..3 {
        run.pass_time();
    }
    let Run { fabric, ends, stream, peer, outgoing, _link: link, .. } = run;
    drop((stream, link));
    pass_time(&fabric, &ends);
    drop(peer);
    for _ in 0..3 {
        pass_time(&fabric, &ends);
    }
    assert_eq!(outgoing.available(), 2 * DEPTH as usize, "buffers of the peer");
    for end in &ends {
        assert_eq!(end.hca.violations(), []);
    }
});
