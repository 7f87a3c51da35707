// SPDX-License-Identifier: MIT OR Apache-2.0
//! Streams: data both ways, windows, ends, failures.

use crate::bed::{Bed, Task, attr, connect, join};
use core::cell::RefCell;
use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use futures_io::{AsyncRead, AsyncWrite};
use std::io::{Error as IoError, ErrorKind, IoSlice};
use std::net::{TcpListener, TcpStream};
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Error, Listener, RdmaStream, Result};
use uverbs_cm::EventChannel;

pub(crate) type Stream = RdmaStream<Mlx5>;

async fn read(stream: &mut Stream, buf: &mut [u8]) -> Result<usize, IoError> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, buf)).await
}

async fn write(stream: &mut Stream, data: &[u8]) -> Result<usize, IoError> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, data)).await
}

pub(crate) async fn close(stream: &mut Stream) -> Result<(), IoError> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_close(cx)).await
}

pub(crate) async fn write_all(stream: &mut Stream, mut data: &[u8]) -> Result<(), IoError> {
    while !data.is_empty() {
        let n = write(stream, data).await?;
        data = &data[n..];
    }
    Ok(())
}

pub(crate) async fn read_to_end(stream: &mut Stream) -> Result<Vec<u8>, IoError> {
    let (mut all, mut buf) = (Vec::new(), [0; 1000]);
    loop {
        match read(stream, &mut buf).await? {
            0 => return Ok(all),
            n => all.extend_from_slice(&buf[..n]),
        }
    }
}

/// Bytes that show when some are lost or out of order.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 256) as u8).collect()
}

/// Runs two tasks to their ends.
pub(crate) fn both<A, B>(bed: &Bed, a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut first, mut second) = (None, None);
    let tasks: Vec<Task<'_>> = vec![
        Box::pin(async {
            first = Some(a.await);
            Ok(())
        }),
        Box::pin(async {
            second = Some(b.await);
            Ok(())
        }),
    ];
    bed.run(join(tasks)).unwrap();
    (first.unwrap(), second.unwrap())
}

/// Two ends of a stream, connected by the connection manager.
pub(crate) fn by_cm(bed: &Bed, window: u16, message: u32) -> (Stream, Stream) {
    let [(at_a, of_a), (at_b, of_b)] = [&bed.a, &bed.b].map(|end| {
        let channel = EventChannel::from_port(end.hca.connection_manager().unwrap());
        let builder = RdmaStream::builder(&end.dispatcher, &end.pd).window(window).message_size(message);
        (channel, builder)
    });
    let listener = Listener::bind(&bed.b.dispatcher, &at_b, (bed.b.hca.addresses()[0], 7471).into()).unwrap();
    let server = listener.local_addr().unwrap();
    let (a, b) = both(bed, of_a.connect(&at_a, server), of_b.accept(&listener));
    (a.unwrap(), b.unwrap())
}

/// Two ends of a stream, connected over TCP.
fn by_tcp(bed: &Bed) -> (Stream, Stream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let attr = attr();
    let [of_a, of_b] = [&bed.a, &bed.b].map(|end| RdmaStream::builder(&end.dispatcher, &end.pd));
    let (a, b) = both(bed, of_a.exchange(&near, &attr), of_b.exchange(&far, &attr));
    (a.unwrap(), b.unwrap())
}

/// Writes and reads at the same time, in two tasks that share the stream.
async fn duplex(stream: &mut Stream, data: &[u8]) -> Result<Vec<u8>> {
    let stream = RefCell::new(stream);
    let mut all = Vec::new();
    let write = async {
        let mut rest = data;
        while !rest.is_empty() {
            let n = poll_fn(|cx| Pin::new(&mut **stream.borrow_mut()).poll_write(cx, rest)).await?;
            rest = &rest[n..];
        }
        Ok(poll_fn(|cx| Pin::new(&mut **stream.borrow_mut()).poll_close(cx)).await?)
    };
    let read = async {
        let mut buf = [0; 1000];
        loop {
            match poll_fn(|cx| Pin::new(&mut **stream.borrow_mut()).poll_read(cx, &mut buf)).await? {
                0 => return Ok(()),
                n => all.extend_from_slice(&buf[..n]),
            }
        }
    };
    join(vec![Box::pin(write), Box::pin(read)]).await?;
    Ok(all)
}

#[test]
fn data_pass_both_ways_at_once() {
    let bed = Bed::new();
    for (mut a, mut b) in [by_tcp(&bed), by_cm(&bed, 3, 1024), by_cm(&bed, 1, 64)] {
        let (there, back) = (pattern(50_000), pattern(30_000));
        let (received, arrived) = both(&bed, duplex(&mut a, &there), duplex(&mut b, &back));
        assert!(received.unwrap() == back && arrived.unwrap() == there);
    }
    assert_eq!((bed.a.hca.repairs(), bed.b.hca.repairs()), (0, 0), "a receiver was not ready");
}

/// Such a program has not read that the messages are those of the stream. The stream loses none, and is told of each.
#[test]
fn a_task_that_waits_for_a_message_of_the_qp_does_not_stop_the_stream() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 4, 128);
    let mut byte = [0];
    let (written, read_one) = both(&bed, write(&mut b, b"x"), read(&mut a, &mut byte));
    assert_eq!((written.unwrap(), read_one.unwrap()), (1, 1));
    let qp = a.qp().clone();
    let mut waiting = core::pin::pin!(qp.recv());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let data = pattern(2000);
    let (sent, all) = both(
        &bed,
        async {
            write_all(&mut b, &data).await?;
            close(&mut b).await
        },
        read_to_end(&mut a),
    );
    sent.unwrap();
    assert_eq!(all.unwrap(), data);
}

#[test]
fn one_direction_can_end_before_the_other() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 4, 1024);
    bed.run(async {
        close(&mut a).await?;
        assert_eq!(write(&mut a, b"late").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(read(&mut b, &mut [0; 8]).await?, 0);
        assert_eq!(read(&mut b, &mut [0; 8]).await?, 0, "the end stays");
        write_all(&mut b, b"still open").await?;
        close(&mut b).await?;
        assert_eq!(read_to_end(&mut a).await?, b"still open");
        close(&mut a).await
    })
    .unwrap();
    let (one, two) = both(&bed, a.shutdown(), b.shutdown());
    one.unwrap();
    two.unwrap();
}

#[test]
fn a_slow_reader_stops_the_writer_and_not_the_queue() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 8, 256);
    let data = pattern(60_000);
    let writer = async {
        write_all(&mut a, &data).await?;
        close(&mut a).await
    };
    let reader = async {
        let (mut all, mut buf) = (Vec::new(), [0; 500]);
        loop {
            bed.b.dispatcher.sleep(Duration::from_millis(2)).await;
            match read(&mut b, &mut buf).await? {
                0 => return Ok::<_, IoError>(all),
                n => all.extend_from_slice(&buf[..n]),
            }
        }
    };
    let (sent, all) = both(&bed, writer, reader);
    sent.unwrap();
    assert!(all.unwrap() == data);
    assert_eq!((bed.a.hca.repairs(), bed.b.hca.repairs()), (0, 0), "a receiver was not ready");
}

#[test]
fn lost_packets_change_nothing() {
    let bed = Bed::seeded(3);
    let (mut a, mut b) = by_cm(&bed, 8, 2048);
    bed.fabric.loss(0.01).reorder(0.01);
    let data = pattern(300_000);
    let writer = async {
        write_all(&mut a, &data).await?;
        close(&mut a).await
    };
    let (sent, all) = both(&bed, writer, read_to_end(&mut b));
    sent.unwrap();
    assert!(all.unwrap() == data);
    assert!(bed.a.hca.repairs() + bed.b.hca.repairs() > 0);
}

#[test]
fn slices_are_written_as_one() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 4, 64);
    let data = pattern(200);
    let slices = [&data[..10], &[], &data[10..11], &data[11..150], &data[150..]].map(IoSlice::new);
    bed.run(async {
        let n = poll_fn(|cx| Pin::new(&mut a).poll_write_vectored(cx, &slices)).await?;
        assert_eq!(n, 200, "four messages of 56 bytes");
        assert_eq!(poll_fn(|cx| Pin::new(&mut a).poll_write_vectored(cx, &[])).await?, 0);
        close(&mut a).await?;
        assert!(read_to_end(&mut b).await? == data);
        Ok::<_, IoError>(())
    })
    .unwrap();
}

/// The future of each read and write is dropped after one poll.
#[test]
fn reads_and_writes_can_be_dropped_after_each_poll() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 2, 128);
    let data = pattern(5000);
    let (mut sent, mut all, mut buf) = (0, Vec::new(), [0; 50]);
    for _ in 0..10_000 {
        let mut cx = Context::from_waker(Waker::noop());
        if sent < data.len()
            && let Poll::Ready(n) = Pin::new(&mut a).poll_write(&mut cx, &data[sent..])
        {
            sent += n.unwrap();
        }
        bed.step();
        if let Poll::Ready(n) = Pin::new(&mut b).poll_read(&mut cx, &mut buf) {
            all.extend_from_slice(&buf[..n.unwrap()]);
        }
        if all.len() == data.len() {
            break;
        }
    }
    assert!(all == data);
}

#[test]
fn a_stream_that_is_dropped_ends_its_peer() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 4, 1024);
    bed.run(write_all(&mut a, b"last words")).unwrap();
    bed.run(async {
        let mut buf = [0; 4];
        assert_eq!(read(&mut b, &mut buf).await?, 4);
        drop(a);
        let mut rest = [0; 100];
        assert_eq!(read(&mut b, &mut rest).await?, 6, "what has arrived can be read");
        assert!(read(&mut b, &mut rest).await.is_err(), "the peer did not close");
        assert!(write(&mut b, b"x").await.is_err());
        Ok::<_, IoError>(())
    })
    .unwrap();
}

#[test]
fn a_killed_peer_is_an_error_of_reads_and_writes() {
    let bed = Bed::new();
    let (mut a, mut b) = by_tcp(&bed);
    bed.run(async {
        write_all(&mut b, b"hello").await?;
        assert_eq!(read(&mut a, &mut [0; 8]).await?, 5);
        Ok::<_, IoError>(())
    })
    .unwrap();
    bed.b.hca.kill();
    // The write is posted; the read learns that it failed.
    bed.run(write_all(&mut a, b"anyone?")).unwrap();
    assert_eq!(bed.run(read(&mut a, &mut [0; 8])).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(bed.run(write(&mut a, b"x")).is_err());
    assert!(bed.run(close(&mut a)).is_err());
}

#[test]
fn a_peer_that_is_no_stream_is_an_error() {
    let bed = Bed::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    let qp = bed.a.dispatcher.qp(&bed.a.pd).depth(4, 8).pool(&bed.a.incoming).create().unwrap();
    let attr = attr();
    let builder = RdmaStream::builder(&bed.b.dispatcher, &bed.b.pd);
    let (exchanged, stream) = both(&bed, qp.exchange(&near, &attr), builder.exchange(&far, &attr));
    exchanged.unwrap();
    let mut stream = stream.unwrap();
    bed.run(qp.send(bed.a.filled(b"GET / HTTP/1.1"))).unwrap();
    assert_eq!(bed.run(read(&mut stream, &mut [0; 8])).unwrap_err().kind(), ErrorKind::InvalidData);
}

/// Messages without data count, too.
#[test]
fn data_without_credit_are_an_error() {
    const WINDOW: usize = 16;
    let bed = Bed::new();
    for (messages, is_right) in [(WINDOW, true), (WINDOW + 1, false)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let qp = bed.a.dispatcher.qp(&bed.a.pd).depth(32, 8).pool(&bed.a.incoming).create().unwrap();
        let attr = attr();
        let builder = RdmaStream::builder(&bed.b.dispatcher, &bed.b.pd);
        let (exchanged, stream) = both(&bed, qp.exchange(&near, &attr), builder.exchange(&far, &attr));
        exchanged.unwrap();
        let mut stream = stream.unwrap();
        // A hello, data without a byte, the end. The stream reads none of them before all have arrived.
        bed.run(qp.send(bed.a.filled(b"h\x01\0\x10\0\0\x10\0"))).unwrap();
        for _ in 0..messages {
            bed.run(qp.send(bed.a.filled(b"d\x01\0\0\0\0\0\0"))).unwrap();
        }
        bed.run(qp.send(bed.a.filled(b"f\x01\0\0\0\0\0\0"))).unwrap();
        match bed.run(read(&mut stream, &mut [0; 8])) {
            Ok(n) => assert!(is_right && n == 0, "{messages}"),
            Err(error) => assert!(!is_right && error.kind() == ErrorKind::InvalidData, "{messages}: {error}"),
        }
    }
}

#[test]
fn an_exchange_with_something_else_fails() {
    use std::io::Write;
    let bed = Bed::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    far.write_all(&[b'x'; 52]).unwrap();
    let qp = bed.a.dispatcher.qp(&bed.a.pd).create().unwrap();
    assert!(matches!(bed.run(qp.exchange(&near, &attr())), Err(Error::Io(_))));
    let qp = bed.a.dispatcher.qp(&bed.a.pd).create().unwrap();
    drop(far);
    assert!(matches!(bed.run(qp.exchange(&near, &attr())), Err(Error::Io(_))));
}

#[test]
fn the_local_address_of_a_connection_selects_its_device() {
    let bed = Bed::new();
    let [at_a, at_b] =
        [&bed.a, &bed.b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
    let [of_a, of_b] = [&bed.a, &bed.b].map(|end| SocketAddr::from((end.hca.addresses()[0], 0)));
    let listener = Listener::bind(&bed.b.dispatcher, &at_b, of_b).unwrap();
    let server = listener.local_addr().unwrap();
    let builder = || RdmaStream::builder(&bed.a.dispatcher, &bed.a.pd);
    // The client's host has no device with the server's address.
    let elsewhere = bed.run(builder().connect_from(&at_a, Some(of_b), server));
    assert!(matches!(elsewhere, Err(Error::Cm(_))), "{elsewhere:?}");
    let (stream, request) = both(&bed, builder().connect_from(&at_a, Some(of_a), server), async {
        listener.accept().await?.reject(b"")
    });
    request.unwrap();
    let Err(Error::Cm(error)) = stream else { panic!("{stream:?}") };
    assert!(matches!(&*error, uverbs_cm::Error::Rejected { .. }), "{error}");
}

#[test]
fn connections_are_rejected_and_time_out() {
    let bed = Bed::new();
    let [at_a, at_b] =
        [&bed.a, &bed.b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
    let address = (bed.b.hca.addresses()[0], 7471).into();
    let listener = Listener::bind(&bed.b.dispatcher, &at_b, address).unwrap();
    let builder = || RdmaStream::builder(&bed.a.dispatcher, &bed.a.pd);
    let (refused, rejected) =
        both(&bed, builder().connect(&at_a, address), async { listener.accept().await?.reject(b"full") });
    rejected.unwrap();
    let Err(Error::Cm(error)) = refused else { panic!("{refused:?}") };
    assert!(
        matches!(&*error, uverbs_cm::Error::Rejected { private_data, .. } if private_data.starts_with(b"full")),
        "{error}"
    );
    // Nobody accepts.
    let limit = Duration::from_millis(20);
    let timed_out = bed.run(bed.a.dispatcher.timeout(limit, builder().connect(&at_a, address)));
    assert!(matches!(timed_out, Err(Error::TimedOut)), "{timed_out:?}");
    // The client has given up: the acceptance fails at once.
    let late = bed.run(RdmaStream::builder(&bed.b.dispatcher, &bed.b.pd).accept(&listener));
    let Err(Error::Cm(error)) = late else { panic!("{late:?}") };
    assert!(matches!(&*error, uverbs_cm::Error::Disconnected { .. }), "{error}");
    let [x, y] = [(); 2].map(|()| bed.a.dispatcher.qp(&bed.a.pd).create().unwrap());
    connect(&x, &y);
}
