// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures of the beginning and the end of a connection that are dropped after each poll: nothing is lost or leaked, and another
//! attempt succeeds.

use crate::bed::{Bed, DEPTH, End, Task, attr, connect, join, poll_once};
use core::future::Future;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::net::{TcpListener, TcpStream};
use uverbs::Rc;
use uverbs::mlx5::Mlx5;
use uverbs_aio::{Error, Listener, Qp, RdmaStream, Result};
use uverbs_cm::{ConnParam, EventChannel};

/// The most polls until a future is ready.
const POLLS: usize = 60;

/// Polls the tasks up to `n` times, with a step of the devices after each, and drops them. Returns whether all were ready.
fn drop_after(bed: &Bed, tasks: Vec<Task<'_>>, n: usize) -> bool {
    let mut tasks: Vec<_> = tasks.into_iter().map(Some).collect();
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..n {
        for slot in &mut tasks {
            if let Some(task) = slot
                && let Poll::Ready(result) = task.as_mut().poll(&mut cx)
            {
                result.unwrap();
                *slot = None;
            }
        }
        bed.step();
    }
    tasks.iter().all(Option::is_none)
}

/// Two more QPs, of which the second one may have an SRQ.
fn pair(bed: &Bed, srq: bool) -> (Qp<Rc, Mlx5>, Qp<Rc, Mlx5>) {
    let (a, b) = (&bed.a, &bed.b);
    let one = a.dispatcher.qp(&a.pd).depth(DEPTH, 4).pool(&a.incoming).create().unwrap();
    let two = match srq {
        false => b.dispatcher.qp(&b.pd).depth(DEPTH, 4).pool(&b.incoming).create().unwrap(),
        true => {
            let srq = b.dispatcher.srq(&b.pd, &b.incoming, 8).unwrap();
            b.dispatcher.qp(&b.pd).depth(DEPTH, 0).srq(&srq).create().unwrap()
        }
    };
    connect(&one, &two);
    (one, two)
}

/// Nothing is left of other QPs than those of the bed.
fn assert_nothing_left(bed: &Bed) {
    bed.run(bed.a.dispatcher.sleep(Duration::from_millis(5)));
    for end in [&bed.a, &bed.b] {
        end.assert_no_leak(DEPTH);
        assert_eq!((end.hca.objects().get("qp"), end.hca.objects().get("srq")), (Some(&1), None));
    }
}

#[test]
fn ends_of_qps() {
    let mut ready = 0;
    for (srq, abort, loss) in
        [(false, false, 0.0), (false, true, 1.0), (true, false, 0.0), (true, true, 1.0), (true, true, 0.0)]
    {
        for n in 0..6 {
            let bed = Bed::new();
            let (one, two) = pair(&bed, srq);
            bed.fabric.loss(loss);
            let mut sends: Vec<_> = (0..4).map(|i| two.send(bed.b.filled(&[i]))).collect();
            assert!(sends.iter_mut().all(|send| poll_once(send).is_pending()));
            let end = async || if abort { two.abort().await } else { two.shutdown().await };
            ready += usize::from(drop_after(&bed, vec![Box::pin(end())], n));
            bed.fabric.loss(0.0);
            bed.run(end()).unwrap();
            bed.run(join(vec![Box::pin(end()), Box::pin(one.abort())])).unwrap();
            assert!(sends.iter_mut().all(|send| poll_once(send).is_ready()));
            assert!(bed.run(two.send(bed.b.filled(b"late"))).is_err() && bed.run(two.recv()).is_err());
            drop((sends, one, two));
            assert_nothing_left(&bed);
        }
    }
    assert!(ready > 0, "no end is ready in time");
}

/// Data pass from one stream to the other.
fn passes(bed: &Bed, a: RdmaStream<Mlx5>, b: RdmaStream<Mlx5>) {
    use core::pin::Pin;
    use futures_io::{AsyncRead, AsyncWrite};
    let (mut a, mut b) = (a, b);
    bed.run(async {
        core::future::poll_fn(|cx| Pin::new(&mut a).poll_write(cx, b"hello")).await.unwrap();
        let mut buf = [0; 8];
        let n = core::future::poll_fn(|cx| Pin::new(&mut b).poll_read(cx, &mut buf)).await.unwrap();
        assert_eq!(&buf[..n], b"hello");
        join(vec![Box::pin(a.shutdown()), Box::pin(b.shutdown())]).await.unwrap();
    });
}

#[test]
fn connections_by_the_connection_manager() {
    let mut polls = 0;
    loop {
        let bed = Bed::new();
        let [at_a, at_b] =
            [&bed.a, &bed.b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
        let address = (bed.b.hca.addresses()[0], 7471).into();
        let listener = Listener::bind(&bed.b.dispatcher, &at_b, address).unwrap();
        let [of_a, of_b] =
            [(); 2].map(|()| [&bed.a, &bed.b].map(|end| RdmaStream::builder(&end.dispatcher, &end.pd)));
        let [client, server] = of_a;
        let tasks: Vec<Task<'_>> = vec![
            Box::pin(async { client.connect(&at_a, address).await.map(drop) }),
            Box::pin(async { server.accept(&listener).await.map(drop) }),
        ];
        let ready = drop_after(&bed, tasks, polls);
        let [client, _] = of_b;
        // The request of the attempt that was dropped may still be there.
        let limit = Duration::from_millis(100);
        let accept = async || loop {
            let server = RdmaStream::builder(&bed.b.dispatcher, &bed.b.pd);
            if let Ok(stream) = bed.b.dispatcher.timeout(limit, server.accept(&listener)).await {
                return stream;
            }
        };
        let (mut one, mut two) = (None, None);
        bed.run(join(vec![
            Box::pin(async {
                one = Some(client.connect(&at_a, address).await?);
                Ok(())
            }),
            Box::pin(async {
                two = Some(accept().await);
                Ok(())
            }),
        ]))
        .unwrap();
        passes(&bed, one.unwrap(), two.unwrap());
        assert_nothing_left(&bed);
        if ready {
            break;
        }
        polls += 1;
        assert!(polls < POLLS, "the connection is not made");
    }
    assert!(polls > 0, "it needs the devices");
}

#[test]
fn exchanges_over_tcp() {
    let attr = attr();
    let tcp = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    };
    let mut polls = 0;
    loop {
        let bed = Bed::new();
        let builder = |end: usize| {
            let end = [&bed.a, &bed.b][end];
            RdmaStream::builder(&end.dispatcher, &end.pd)
        };
        let (near, far) = tcp();
        let ready = {
            let tasks: Vec<Task<'_>> = vec![
                Box::pin(async { builder(0).exchange(&near, &attr).await.map(drop) }),
                Box::pin(async { builder(1).exchange(&far, &attr).await.map(drop) }),
            ];
            drop_after(&bed, tasks, polls)
        };
        let (near, far) = tcp();
        let (mut one, mut two) = (None, None);
        bed.run(join(vec![
            Box::pin(async {
                one = Some(builder(0).exchange(&near, &attr).await?);
                Ok(())
            }),
            Box::pin(async {
                two = Some(builder(1).exchange(&far, &attr).await?);
                Ok(())
            }),
        ]))
        .unwrap();
        passes(&bed, one.unwrap(), two.unwrap());
        assert_nothing_left(&bed);
        if ready {
            break;
        }
        polls += 1;
        assert!(polls < POLLS, "the connection is not made");
    }
}

/// A listener keeps the request whose future was dropped.
#[test]
fn requests_to_a_listener() {
    for n in 0..6 {
        let bed = Bed::new();
        let [at_a, at_b] =
            [&bed.a, &bed.b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
        let address = (bed.b.hca.addresses()[0], 7471).into();
        let listener = Listener::bind(&bed.b.dispatcher, &at_b, address).unwrap();
        let qp = bed.a.dispatcher.qp(&bed.a.pd).depth(4, 4).pool(&bed.a.incoming).create().unwrap();
        let param = ConnParam::default();
        let serve = async || -> Result<()> {
            let mut cx = Context::from_waker(Waker::noop());
            // The first futures are dropped.
            for _ in 0..n {
                let mut accept = core::pin::pin!(listener.accept());
                if let Poll::Ready(request) = accept.as_mut().poll(&mut cx) {
                    return request?.reject(b"seen");
                }
                bed.b.dispatcher.sleep(Duration::from_micros(200)).await;
            }
            listener.accept().await?.reject(b"seen")
        };
        let mut refused = None;
        bed.run(join(vec![
            Box::pin(async {
                refused = Some(qp.connect_to(&at_a, address, &param).await);
                Ok(())
            }),
            Box::pin(serve()),
        ]))
        .unwrap();
        assert!(refused.unwrap().is_err(), "it was rejected");
    }
}

/// A server that gives up after it has accepted: the client has its reason, also if it reads the acceptance later.
#[test]
fn a_server_that_gives_up_after_its_acceptance() {
    let bed = Bed::new();
    let [at_a, at_b] =
        [&bed.a, &bed.b].map(|end| EventChannel::from_port(end.hca.connection_manager().unwrap()));
    let address = (bed.b.hca.addresses()[0], 7471).into();
    let listener = Listener::bind(&bed.b.dispatcher, &at_b, address).unwrap();
    let builder = |end: &End| end.dispatcher.qp(&end.pd).depth(4, 4).pool(&end.incoming).create().unwrap();
    let (client, server, param) = (builder(&bed.a), builder(&bed.b), ConnParam::default());
    let mut connect = Box::pin(client.connect_to(&at_a, address, &param));
    let mut accept = Box::pin(listener.accept());
    let request = loop {
        assert!(poll_once(&mut connect).is_pending());
        bed.step();
        if let Poll::Ready(request) = poll_once(&mut accept) {
            break request.unwrap();
        }
    };
    // Dropped after its first poll, which accepts.
    assert!(poll_once(&mut Box::pin(request.accept(&server, &param))).is_pending());
    bed.step();
    match bed.run(connect) {
        Err(Error::Cm(error)) => assert!(matches!(*error, uverbs_cm::Error::Rejected { .. }), "{error}"),
        other => panic!("{other:?}"),
    }
}
