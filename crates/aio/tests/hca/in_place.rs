// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes of a stream without a copy.

use crate::bed::Bed;
use crate::stream::{Stream, both, by_cm, close, pattern, read_to_end, write_all};
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use futures_io::{AsyncBufRead, AsyncRead};
use std::io::{Error as IoError, ErrorKind};
use uverbs_aio::{Error, Result};

async fn fill_buf(stream: &mut Stream) -> Result<Vec<u8>, IoError> {
    poll_fn(|cx| Pin::new(&mut *stream).poll_fill_buf(cx).map_ok(<[u8]>::to_vec)).await
}

/// Writes all bytes in place, at most 100 in one call.
async fn put_all(stream: &mut Stream, data: &[u8]) -> Result<()> {
    let mut rest = data;
    while !rest.is_empty() {
        let copy = |room: &mut [u8]| {
            room.copy_from_slice(&rest[..room.len()]);
            room.len()
        };
        let n = stream.write_with(rest.len().min(100), copy).await?;
        rest = &rest[n..];
    }
    Ok(())
}

/// The reader takes 1, 2, 3 ... bytes of each message in turn, and reads some by a copy.
#[test]
fn data_are_read_where_they_were_received() {
    let bed = Bed::new();
    for (mut a, mut b) in [by_cm(&bed, 3, 1024), by_cm(&bed, 1, 64)] {
        let data = pattern(20_000);
        let writer = async {
            put_all(&mut a, &data[..10_000]).await?;
            write_all(&mut a, &data[10_000..]).await?;
            Ok::<_, Error>(close(&mut a).await?)
        };
        let reader = async {
            let (mut all, mut step) = (Vec::new(), 0);
            loop {
                let there = fill_buf(&mut b).await?;
                assert_eq!(fill_buf(&mut b).await?, there, "nothing was consumed");
                if there.is_empty() {
                    return Ok::<_, IoError>(all);
                }
                step = step % 90 + 1;
                let n = step.min(there.len());
                all.extend_from_slice(&there[..n]);
                Pin::new(&mut b).consume(n);
                if step % 7 == 0 && all.len() < data.len() {
                    let mut buf = [0; 5];
                    let n = poll_fn(|cx| Pin::new(&mut b).poll_read(cx, &mut buf)).await?;
                    all.extend_from_slice(&buf[..n]);
                }
            }
        };
        let (sent, all) = both(&bed, writer, reader);
        sent.unwrap();
        assert!(all.unwrap() == data);
    }
    assert_eq!((bed.a.hca.repairs(), bed.b.hca.repairs()), (0, 0), "a receiver was not ready");
}

/// As `BufReader` does: the end of one message is the end of what is consumed.
#[test]
fn more_than_there_is_can_not_be_consumed() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 4, 64);
    bed.run(async {
        Pin::new(&mut b).consume(7);
        write_all(&mut a, b"one").await?;
        write_all(&mut a, b"two").await?;
        assert_eq!(fill_buf(&mut b).await?, b"one");
        Pin::new(&mut b).consume(usize::MAX);
        assert_eq!(fill_buf(&mut b).await?, b"two");
        Pin::new(&mut b).consume(0);
        assert_eq!(fill_buf(&mut b).await?, b"two");
        Pin::new(&mut b).consume(2);
        assert_eq!(fill_buf(&mut b).await?, b"o");
        close(&mut a).await?;
        Pin::new(&mut b).consume(1);
        assert_eq!(fill_buf(&mut b).await?, b"", "the end");
        Pin::new(&mut b).consume(1);
        assert_eq!(fill_buf(&mut b).await?, b"", "the end stays");
        Ok::<_, IoError>(())
    })
    .unwrap();
}

#[test]
fn a_write_in_place_has_the_room_of_a_message() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 4, 64);
    bed.run(async {
        assert_eq!(a.write_with(0, |_| panic!("no room was wanted")).await?, 0);
        let all = |room: &mut [u8]| {
            room.fill(b'x');
            room.len()
        };
        assert_eq!(a.write_with(usize::MAX, all).await?, 56, "a message without its header");
        assert_eq!(
            a.write_with(10, |room| {
                assert_eq!(room.len(), 10);
                0
            })
            .await?,
            0,
            "nothing"
        );
        let error = a.write_with(10, |room| room.len() + 1).await.unwrap_err();
        assert_eq!(IoError::from(error).kind(), ErrorKind::InvalidInput);
        assert_eq!(
            a.write_with(10, |room| {
                room[..2].copy_from_slice(b"yz");
                2
            })
            .await?,
            2
        );
        close(&mut a).await?;
        let late = a.write_with(1, |_| 1).await.unwrap_err();
        assert_eq!(IoError::from(late).kind(), ErrorKind::BrokenPipe);
        assert_eq!(read_to_end(&mut b).await?, [&[b'x'; 56][..], b"yz"].concat());
        Ok::<_, Error>(())
    })
    .unwrap();
}

/// Neither the buffer nor the credit of a write whose `fill` refuses or panics is lost.
#[test]
fn a_write_in_place_that_sends_nothing_costs_nothing() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 2, 64);
    for _ in 0..100 {
        bed.run(a.write_with(8, |_| 0)).unwrap();
        bed.run(a.write_with(8, |_| 9)).unwrap_err();
        let panics =
            core::panic::AssertUnwindSafe(|| bed.run(a.write_with(8, |_| panic!("as it was asked to"))));
        std::panic::catch_unwind(panics).unwrap_err();
    }
    bed.run(async {
        write_all(&mut a, b"still").await?;
        write_all(&mut a, b" open").await?;
        close(&mut a).await?;
        assert_eq!(read_to_end(&mut b).await?, b"still open");
        Ok::<_, IoError>(())
    })
    .unwrap();
}

/// The future of each write is dropped after one poll. `fill` is called only for what is sent.
#[test]
fn a_write_in_place_can_be_dropped_after_each_poll() {
    let bed = Bed::new();
    let (mut a, mut b) = by_cm(&bed, 2, 64);
    let data = pattern(3000);
    let (mut sent, mut called, mut all, mut pending) = (0, 0, Vec::new(), 0);
    for _ in 0..10_000 {
        let mut cx = Context::from_waker(Waker::noop());
        if sent < data.len() {
            let rest = &data[sent..];
            let write = pin!(a.write_with(rest.len(), |room| {
                called += 1;
                room.copy_from_slice(&rest[..room.len()]);
                room.len()
            }));
            match write.poll(&mut cx) {
                Poll::Ready(n) => sent += n.unwrap(),
                Poll::Pending => pending += 1,
            }
        }
        bed.step();
        let read = match Pin::new(&mut b).poll_fill_buf(&mut cx) {
            Poll::Ready(there) => {
                all.extend_from_slice(there.unwrap());
                true
            }
            Poll::Pending => false,
        };
        if read {
            Pin::new(&mut b).consume(usize::MAX);
        }
        if all.len() == data.len() {
            break;
        }
    }
    assert!(all == data);
    assert_eq!(called, data.len().div_ceil(56));
    assert!(pending > 0, "no write had to wait");
}
