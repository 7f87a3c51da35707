// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows: posts and polls by `AnyDriver`, which selects the driver at run time, and the same by `Mlx5`, in one program.
#![expect(unsafe_code)]
// UNSAFETY: posts that name memory; no device reads or writes it.

use crate::device::{self, Kind, Ring, Seen, Whose};
use crate::measure::measured;
use crate::places::{RKEY, remote_addr};
use crate::{BATCH, CHUNK, RING_ENTRIES, Rows, ok};
use core::array;
use core::hint::black_box;
use std::cell::RefCell;
use uverbs::mlx5::Mlx5;
use uverbs::provider::{Completion as _, WireRemote as _};
use uverbs::raw::{PostTo, Wr};
use uverbs::raw::{RecvQueue, SendQueue};
use uverbs::{
    AnyDriver, ConnectAttr, Driver, Exclusive, MemoryRegion, PageBuf, Rc,
    raw::{Cq, Qp},
};
use uverbs::{
    Exposed,
    attr::{AccessFlags, CqInitAttr, QpCap, WcExFlags},
};

/// The entries and remote addresses of a chunk.
struct Places<D: Driver> {
    sge: [D::Sge; CHUNK as usize],
    remote: [D::Remote; CHUNK as usize],
}

/// The objects of the rows of one driver.
struct World<D: Driver> {
    qp: Qp<Rc, Exclusive, D>,
    cq: Cq<Exclusive, D>,
    ring: Ring,
    whose: Whose,
    posted: u16,
    received: u16,
    places: Places<D>,
    _region: MemoryRegion<PageBuf, Exposed, D>,
}

impl<D: Driver> World<D> {
    fn create() -> Self {
        let context = device::open_as::<D>();
        let td = context.alloc_td().expect("a thread domain");
        let pd = context.alloc_pd().expect("a PD").parent_domain(&td).expect("a parent domain");
        let attr = CqInitAttr::new(RING_ENTRIES - 1).wc_flags(WcExFlags::STANDARD);
        let cq = context.create_cq_ex::<Exclusive>(&attr, None).expect("a CQ");
        let ring = Ring::of_last_cq(RING_ENTRIES);
        let cap = QpCap::new(CHUNK, 2 * CHUNK);
        let qp = pd.raw_qp::<Rc>().cq(&cq).cap(cap).create().expect("a QP");
        let whose = Whose { user_index: Seen::now().user_index, qp_num: qp.control.qp_num() };
        let attr = ConnectAttr::new().sgid_index(Some(3));
        qp.init(&attr).expect("INIT");
        let here = qp.control.endpoint(1, &attr).expect("an endpoint");
        qp.control.connect(&here, &here, &attr).expect("RTS");
        let buf = PageBuf::new(4096).expect("memory");
        let region = pd.reg_mr(buf, AccessFlags::LOCAL_WRITE).map_err(|e| e.error).expect("a region");
        let places = Places {
            sge: array::from_fn(|_| region.sge(0..64).expect("an entry")),
            remote: array::from_fn(|i| D::Remote::new(remote_addr(i as u32), RKEY)),
        };
        Self { qp, cq, ring, whose, posted: 0, received: 0, places, _region: region }
    }

    /// Completes a chunk of sends or receives.
    fn complete(&mut self, kind: Kind) {
        let counter = if kind == Kind::Requester { &mut self.posted } else { &mut self.received };
        for _ in 0..CHUNK {
            self.ring.complete(self.whose, *counter, kind);
            *counter = counter.wrapping_add(1);
        }
    }

    fn drain(&mut self) {
        assert_eq!(polls(&mut self.cq, BATCH as usize), CHUNK as usize, "completions");
    }

    fn send_queue(&mut self) -> (&mut SendQueue<Rc, Exclusive, D>, &Places<D>) {
        (self.qp.sq(), &self.places)
    }

    fn recv_queue(&mut self) -> (&mut RecvQueue<Exclusive, D>, &Places<D>) {
        (self.qp.rq_mut().expect("a receive queue"), &self.places)
    }
}

#[inline(always)]
fn put<S: PostTo<D>, D: Driver, const WRITE: bool>(wr: Wr<'_, S, Rc, D>, p: &Places<D>, i: u32) -> S::Out {
    let (wr, sge) = (wr.signaled(), p.sge[i as usize]);
    if WRITE {
        // SAFETY: the region lives as long as the queues, and no device uses it.
        unsafe { wr.write(&[sge], p.remote[i as usize]) }
    } else {
        // SAFETY: as above.
        unsafe { wr.send(&[sge]) }
    }
}

#[inline(never)]
fn singles<D: Driver, const WRITE: bool>((queue, p): (&mut SendQueue<Rc, Exclusive, D>, &Places<D>)) {
    for i in 0..CHUNK {
        put::<_, D, WRITE>(queue.post(i.into()), p, i).unwrap_or_else(ok);
    }
}

#[inline(never)]
fn batches<D: Driver, const WRITE: bool>((queue, p): (&mut SendQueue<Rc, Exclusive, D>, &Places<D>)) {
    for first in (0..CHUNK).step_by(BATCH as usize) {
        let mut batch = queue.batch();
        for i in first..first + BATCH {
            put::<_, D, WRITE>(batch.wr(i.into()), p, i);
        }
        batch.complete().unwrap_or_else(ok);
    }
}

#[inline(never)]
fn recv_singles<D: Driver>((queue, p): (&mut RecvQueue<Exclusive, D>, &Places<D>)) {
    for i in 0..CHUNK {
        // SAFETY: no device writes the memory.
        unsafe { queue.post(i.into(), &[p.sge[i as usize]]) }.unwrap_or_else(ok);
    }
}

#[inline(never)]
fn recv_batches<D: Driver>((queue, p): (&mut RecvQueue<Exclusive, D>, &Places<D>)) {
    for first in (0..CHUNK).step_by(BATCH as usize) {
        let mut batch = queue.batch();
        for i in first..first + BATCH {
            // SAFETY: no device writes the memory.
            unsafe { batch.push(i.into(), &[p.sge[i as usize]]) };
        }
        batch.complete().unwrap_or_else(ok);
    }
}

#[inline(never)]
fn polls<D: Driver>(cq: &mut Cq<Exclusive, D>, batch: usize) -> usize {
    let (mut sum, mut n) = (0, 0);
    for _ in 0..CHUNK as usize / batch {
        n += cq.poll_each(batch, |wc| sum += wc.wr_id() + u64::from(wc.status().0)).unwrap_or_else(ok);
    }
    black_box(sum);
    n
}

/// Adds the rows of both drivers.
pub fn rows(rows: &mut Rows) {
    of_driver::<Mlx5>(rows, "one");
    of_driver::<AnyDriver>(rows, "any");
}

fn of_driver<D: Driver>(rows: &mut Rows, face: &str) {
    let world: &'static RefCell<World<D>> = Box::leak(Box::new(RefCell::new(World::create())));
    for batch in [1, BATCH] {
        let mut add = |name: &str, chunk: fn(&mut World<D>, u32)| {
            rows.add(face, name, batch, CHUNK, move || chunk(&mut world.borrow_mut(), black_box(batch)));
        };
        add("post_send write", |world, batch| send::<D, true>(world, batch));
        add("post_send send", |world, batch| send::<D, false>(world, batch));
        add("post_recv", |world, batch| {
            let queue = world.recv_queue();
            measured(|| match batch {
                1 => recv_singles(black_box(queue)),
                _ => recv_batches(black_box(queue)),
            });
            world.complete(Kind::Responder);
            world.drain();
        });
        add("poll requester", |world, batch| {
            batches::<D, true>(world.send_queue());
            world.complete(Kind::Requester);
            poll(world, batch);
        });
        add("poll responder", |world, batch| {
            recv_batches(world.recv_queue());
            world.complete(Kind::Responder);
            poll(world, batch);
        });
    }
}

/// Measures the posts of a chunk.
fn send<D: Driver, const WRITE: bool>(world: &mut World<D>, batch: u32) {
    let queue = world.send_queue();
    measured(|| match batch {
        1 => singles::<D, WRITE>(black_box(queue)),
        _ => batches::<D, WRITE>(black_box(queue)),
    });
    world.complete(Kind::Requester);
    world.drain();
}

/// Measures the polls of a chunk.
fn poll<D: Driver>(world: &mut World<D>, batch: u32) {
    let n = measured(|| polls(&mut world.cq, black_box(batch as usize)));
    assert_eq!(n, CHUNK as usize, "completions");
}
