// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists of buffers: gathered by sends and writes, scattered to by reads and receives.

use crate::bed::{BUFS, CAP, End, SIZE, connect};
use uverbs::mlx5::Mlx5;
use uverbs::{Buf, BufList, Exposed, MAX_BUFS};
use uverbs::{PostError, Rc};
use uverbs::{Private, attr::AccessFlags};
use uverbs_hca::Fabric;

/// Two connected ends whose QPs have entries for lists.
fn pair() -> (End, End) {
    let fabric = Fabric::deterministic(7);
    let cap = CAP.max_send_sge(4).max_recv_sge(4);
    let [a, b] = ["hca0", "hca1"].map(|name| {
        let mut end = End::new(fabric.device(name).build());
        end.qp = end.pd.qp::<Rc>().cq(&end.cq).cap(cap).create().unwrap();
        end
    });
    connect(&a.qp, &b.qp).unwrap();
    (a, b)
}

/// Empty buffers.
fn list(end: &End, n: usize) -> BufList<Private, Mlx5> {
    (0..n).fold(BufList::new(), |mut list, _| {
        list.push(end.pool.get().expect("a free buffer")).unwrap();
        list
    })
}

fn contents(list: &BufList<Private, Mlx5>) -> Vec<u8> {
    list.iter().flat_map(|buf| buf.to_vec()).collect()
}

#[test]
fn a_send_gathers_and_a_receive_scatters() {
    let (mut a, mut b) = pair();
    let to = list(&b, 3);
    b.qp.rq().unwrap().post(9, to).unwrap();
    let message: Vec<u8> = (0..300).map(|i| i as u8).collect();
    let from =
        BufList::from([a.filled(&message[..10]), a.filled(&message[10..100]), a.filled(&message[100..])]);
    assert_eq!(from.total(), 300);
    a.qp.sq().post(1).signaled().send(from).unwrap();

    let from: BufList<Private, Mlx5> = a.next().take().expect("the list of the send");
    assert_eq!(contents(&from), message, "the buffers in their order");
    let done = b.next();
    assert_eq!((done.wc.wr_id, done.wc.byte_len), (9, 300));
    let to: BufList<Private, Mlx5> = done.take().expect("the list of the receive");
    let lens: Vec<_> = to.iter().map(|buf| buf.len()).collect();
    assert_eq!((lens, contents(&to)), (vec![SIZE as usize, 300 - SIZE as usize, 0], message));
    drop((from, to));
    assert_eq!((a.available(), b.available()), (BUFS, BUFS));
    assert!(a.hca.violations().is_empty() && b.hca.violations().is_empty());
}

#[test]
fn writes_gather_and_reads_scatter() {
    let (mut a, b) = pair();
    let rights = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let table = b.pd.pool_with(1, 1024).exposed(rights).build().unwrap().get().unwrap();
    let from = BufList::from([a.filled(b"two "), a.filled(b"parts")]);
    let mut batch = a.qp.sq().batch();
    batch.wr(1).write(from, &table.remote_region());
    batch.complete().unwrap();
    let mut parts = list(&a, 2);
    parts[0].set_len(6).unwrap();
    parts[1].set_len(3).unwrap();
    a.qp.sq().post(2).signaled().read(parts, &table.remote_region()).unwrap();
    let parts: BufList<Private, Mlx5> = a.next().take().expect("the list of the read");
    assert_eq!((&*parts[0], &*parts[1]), (&b"two pa"[..], &b"rts"[..]));
    drop(parts);
    assert_eq!(a.available(), BUFS, "the list of the unsignaled write, too");
    // A region that is shorter than the sum refuses the list and returns it.
    let short = table.remote_region().slice(0..8).unwrap();
    let from = BufList::from([a.filled(b"12345"), a.filled(b"6789")]);
    let rejected = a.qp.sq().post(3).write(from, &short).unwrap_err();
    assert_eq!((rejected.error.reason, rejected.returned.unwrap().len()), (PostError::InvalidLength, 2));
}

#[test]
fn lists_that_a_queue_can_not_take_come_back() {
    let (mut a, b) = pair();
    let too_long = list(&a, 5);
    let rejected = a.qp.sq().post(1).send(too_long).unwrap_err();
    assert_eq!(
        (rejected.error.reason, rejected.returned.as_ref().unwrap().len()),
        (PostError::TooManySge, 5)
    );
    let rejected = a.qp.rq().unwrap().post(1, rejected.returned.unwrap()).unwrap_err();
    assert_eq!((rejected.error.reason, rejected.returned.unwrap().len()), (PostError::TooManySge, 5));
    let rejected = a.qp.sq().post(1).send(BufList::<Private, Mlx5>::new()).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument, "no buffers");
    let mixed = BufList::from([a.pool.get().unwrap(), b.pool.get().unwrap()]);
    let rejected = a.qp.sq().post(1).send(mixed).unwrap_err();
    assert_eq!(rejected.error, PostError::InvalidArgument, "buffers of two domains");
    drop(rejected);

    let mut full = list(&a, 30);
    let exposed = a.pd.pool(4, 64).unwrap();
    for _ in full.len()..MAX_BUFS {
        full.push(exposed.get().unwrap()).unwrap();
    }
    assert!(full.push(exposed.get().unwrap()).is_err());
    assert_eq!(full.drain().count(), MAX_BUFS);
    assert!(full.pop().is_none());
    assert_eq!((a.available(), b.available()), (BUFS, BUFS));
}

#[test]
fn lists_in_flight_end_as_buffers_do() {
    let (mut a, mut b) = pair();
    // Of a batch that is dropped, of a queue that is destroyed, taken as another type, and dropped with the completion.
    let lists = [list(&a, 2), list(&a, 2), list(&a, 2)];
    let mut batch = a.qp.rq().unwrap().batch();
    lists.into_iter().for_each(|list| batch.push(1, list));
    drop(batch);
    assert_eq!(a.available(), BUFS);
    let exposed = a.pd.pool_with(2, 64).exposed(AccessFlags::REMOTE_WRITE).build().unwrap();
    let bufs: [Buf<Exposed, Mlx5>; 2] = [exposed.get().unwrap(), exposed.get().unwrap()];
    let receives = list(&a, 2);
    a.qp.rq().unwrap().post(1, BufList::from(bufs)).unwrap();
    a.qp.rq().unwrap().post(2, receives).unwrap();
    for _ in 0..2 {
        b.qp.sq().post(1).signaled().send_inline(b"x").unwrap();
        drop(b.next());
    }
    assert!(a.next().take::<BufList<Private, Mlx5>>().is_none(), "a list of exposed buffers");
    assert_eq!(exposed.available(), 2);
    drop(a.next());
    assert_eq!(a.available(), BUFS);
    let receives = list(&a, 2);
    a.qp.rq().unwrap().post(1, receives).unwrap();
    let End { qp, pool, .. } = a;
    drop(qp);
    assert_eq!(pool.available() as u32, BUFS);
}
