// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of the software ConnectX: what a message costs in total, with its post, its execution by both devices and the poll.
#![expect(unsafe_code)]
// UNSAFETY: requests name memory of the regions, which live as long as the queues.

use core::hint::black_box;
use std::cell::RefCell;
use uverbs::attr::{AccessFlags, Mtu, QpCap};
use uverbs::mlx5::{Mlx5, Remote, Sge};
use uverbs::provider::{Completion as _, WireRemote as _, WireSge as _};
use uverbs::raw::{Batch, Cq, Qp};
use uverbs::{ConnectAttr, Context, Exclusive, Exposed, MemoryRegion, PageBuf, ProtectionDomain, Rc, Shared};
use uverbs_bench::{Rows, measured, ok};
use uverbs_hca::{Fabric, Hca};

/// Bytes of the memory of an end.
const BYTES: usize = 4 << 20;
/// The access of the other end, and of the device.
const RIGHTS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);
/// Requests in flight.
const DEPTH: u32 = 128;

/// One end of a connection.
struct End {
    qp: Qp<Rc, Exclusive, Mlx5>,
    cq: Cq<Shared, Mlx5>,
    region: MemoryRegion<PageBuf, Exposed, Mlx5>,
    _pd: ProtectionDomain<Mlx5>,
}

impl End {
    fn new(hca: &Hca) -> Self {
        let context = Context::<Mlx5>::from_kernel(hca.open()).expect("a context");
        let pd = context.alloc_pd().expect("a PD");
        let cq = context.create_cq(2 * DEPTH - 1, None).expect("a CQ");
        let qp = pd.raw_qp::<Rc>().cq(&cq).cap(QpCap::new(DEPTH, DEPTH)).create().expect("a QP");
        let buf = PageBuf::new(BYTES).expect("memory");
        let region = pd.reg_mr(buf, RIGHTS).map_err(|e| e.error).expect("a region");
        region.write_at(0, &vec![1; BYTES]).expect("memory");
        Self { qp, cq, region, _pd: pd }
    }

    fn sge(&self, bytes: u32) -> Sge {
        Sge::new(self.region.addr(), bytes, self.region.lkey()).expect("an entry")
    }

    fn remote(&self) -> Remote {
        Remote::new(self.region.addr(), self.region.rkey())
    }

    /// Polls until so many completions have arrived.
    fn drain(&mut self, count: u32) {
        let mut left = count as usize;
        while left > 0 {
            left -= self
                .cq
                .poll_each(left, |wc| assert!(wc.status().ok().is_ok(), "a failed request"))
                .unwrap_or_else(ok);
        }
    }
}

/// The two ends.
struct Two([End; 2]);

impl Two {
    fn new(fabric: &Fabric) -> Self {
        let ends = ["hca0", "hca1"].map(|name| End::new(&fabric.device(name).build()));
        let attr = ConnectAttr::default().path_mtu(Mtu::MTU_4096).sgid_index(Some(3)).access(RIGHTS);
        ends.iter().for_each(|end| end.qp.init(&attr).expect("INIT"));
        let [a, b] = ends.each_ref().map(|end| end.qp.control.endpoint(1, &attr).expect("an endpoint"));
        ends[0].qp.connect(&a, &b, &attr).expect("RTS");
        ends[1].qp.connect(&b, &a, &attr).expect("RTS");
        Self(ends)
    }

    /// Posts requests in batches, and polls their completions after each batch.
    fn run(
        &mut self,
        (count, batch, receives): (u32, u32, bool),
        bytes: u32,
        post: impl Fn(&mut Batch<'_, Rc, Mlx5>, u64, Sge, Remote),
    ) {
        let [a, b] = &mut self.0;
        let (from, to, into) = (a.sge(bytes), b.remote(), b.sge(bytes));
        for _ in 0..count / batch {
            if receives {
                let mut list = b.qp.recv.as_mut().expect("a receive queue").batch();
                // SAFETY: the region lives as long as the queue.
                (0..batch).for_each(|i| unsafe { list.push(i.into(), &[into]) });
                list.complete().unwrap_or_else(ok);
            }
            let mut list = a.qp.send.batch();
            (0..batch).for_each(|i| post(&mut list, i.into(), black_box(from), black_box(to)));
            list.complete().unwrap_or_else(ok);
            a.drain(batch);
            if receives {
                b.drain(batch);
            }
        }
    }
}

fn rows() -> Rows {
    let two: &'static RefCell<Two> = Box::leak(Box::new(RefCell::new(Two::new(&Fabric::new(0)))));
    let mut rows = Rows::default();
    for (bytes, batch, count) in [(64, 32, 128), (64, 1, 128), (65536, 1, 32), (1 << 20, 1, 8)] {
        let shape = (count, batch, false);
        rows.add("hca", &format!("write {bytes}"), batch, count, move || {
            measured(|| {
                // SAFETY: the regions live as long as the queues.
                two.borrow_mut().run(shape, bytes, |list, id, sge, to| unsafe {
                    list.wr(id).signaled().write(&[sge], to);
                });
            });
        });
        rows.add("hca", &format!("read {bytes}"), batch, count, move || {
            measured(|| {
                // SAFETY: the regions live as long as the queues.
                two.borrow_mut().run(shape, bytes, |list, id, sge, to| unsafe {
                    list.wr(id).signaled().read(&[sge], to);
                });
            });
        });
        rows.add("hca", &format!("send {bytes}"), batch, count, move || {
            measured(|| {
                // SAFETY: the regions live as long as the queues.
                two.borrow_mut().run((count, batch, true), bytes, |list, id, sge, _| unsafe {
                    list.wr(id).signaled().send(&[sge]);
                });
            });
        });
    }
    rows.add("hca", "write inline 32", 32, 128, move || {
        measured(|| {
            two.borrow_mut().run((128, 32, false), 32, |list, id, _, to| {
                list.wr(id).signaled().write_array(&[5; 32], to);
            });
        });
    });
    rows
}

fn main() {
    uverbs_bench::run_rows(rows);
}
