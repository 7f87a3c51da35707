// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools that are empty when a receive queue needs a buffer: it is refilled when one comes back, although nothing reports that.

use crate::bed::{Bed, DEPTH, SIZE, connect};
use uverbs::Rc;
use uverbs::{Buf, Pool};
use uverbs::{Private, mlx5::Mlx5};
use uverbs_aio::{Error, Qp};

/// Takes all buffers of a pool.
fn all(pool: &Pool<Private, Mlx5>) -> Vec<Buf<Private, Mlx5>> {
    core::iter::from_fn(|| pool.try_get()).collect()
}

/// A message reaches `qp`.
fn reaches(bed: &Bed, peer: &Qp<Rc, Mlx5>, qp: &Qp<Rc, Mlx5>) {
    bed.run(async {
        peer.send(bed.a.filled(b"at last")).await?;
        assert_eq!(&*qp.recv().await?, b"at last");
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_pool_that_is_empty_when_the_qp_is_connected() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let pool = b.pd.pool(4, SIZE).unwrap();
    let taken = all(&pool);
    let qp = b.dispatcher.qp(&b.pd).depth(4, 4).pool(&pool).create().unwrap();
    let peer = a.dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create().unwrap();
    connect(&peer, &qp);
    bed.step();
    drop(taken);
    reaches(&bed, &peer, &qp);
    bed.step();
    assert!(pool.available() <= 1, "the other buffers are posted");
}

#[test]
fn a_pool_that_is_empty_when_an_srq_is_created() {
    let bed = Bed::new();
    let (a, b) = (&bed.a, &bed.b);
    let pool = b.pd.pool(4, SIZE).unwrap();
    let taken = all(&pool);
    let srq = b.dispatcher.srq(&b.pd, &pool, 4).unwrap();
    let qp = b.dispatcher.qp(&b.pd).depth(4, 0).srq(&srq).create().unwrap();
    let peer = a.dispatcher.qp(&a.pd).depth(4, 4).pool(&a.incoming).create().unwrap();
    connect(&peer, &qp);
    bed.step();
    drop(taken);
    reaches(&bed, &peer, &qp);
}

/// The program has all messages of a queue whose pool has no more buffers than the queue has entries.
#[test]
fn a_pool_whose_buffers_are_all_with_the_program() {
    for by_try in [false, true] {
        let bed = Bed::new();
        let (a, b) = (&bed.a, &bed.b);
        let pool = b.pd.pool(DEPTH, SIZE).unwrap();
        let qp = b.dispatcher.qp(&b.pd).depth(4, DEPTH).pool(&pool).create().unwrap();
        let peer = a.dispatcher.qp(&a.pd).depth(DEPTH, 4).pool(&a.incoming).create().unwrap();
        connect(&peer, &qp);
        for i in 0..DEPTH as u8 {
            bed.run(peer.send(a.filled(&[i]))).unwrap();
        }
        bed.step();
        let messages: Vec<_> = (0..DEPTH)
            .map(|_| match by_try {
                true => qp.try_recv().expect("it has arrived"),
                false => bed.run(qp.recv()).unwrap(),
            })
            .collect();
        assert_eq!(pool.available(), 0);
        // A task waits already when the buffers come back, and is not polled again.
        let mut recv = qp.recv();
        assert!(crate::bed::poll_once(&mut recv).is_pending());
        drop(recv);
        let waiting = async {
            let next = qp.recv();
            let send = async {
                b.dispatcher.sleep(core::time::Duration::from_millis(1)).await;
                drop(messages);
                peer.send(a.filled(b"next")).await.map(drop).map_err(Error::from)
            };
            let receive = async { next.await.map(|message| assert_eq!(&*message, b"next")) };
            crate::bed::join(vec![Box::pin(receive), Box::pin(send)]).await
        };
        bed.run(waiting).unwrap();
    }
}
