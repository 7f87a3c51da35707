// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rows of the software ConnectX: what a message costs in total, with its post, its execution by both devices and the poll.
#![expect(unsafe_code)]
// UNSAFETY: requests name memory of the regions, which live as long as the queues.

use core::hint::black_box;
use std::cell::RefCell;
use uverbs::attr::{AccessFlags, Mtu, QpCap, SrqAttr, SrqInitAttr};
use uverbs::mlx5::{Mlx5, Remote, Sge};
use uverbs::provider::{Completion as _, WireRemote as _, WireSge as _};
use uverbs::raw::{Batch, Cq, Qp, Srq};
use uverbs::{
    ConnectAttr, Context, Exclusive, Exposed, ImmData, MemoryRegion, PageBuf, ProtectionDomain, Rc, Shared,
};
use uverbs_bench::{Rows, measured, ok};
use uverbs_hca::{Fabric, Hca};

/// Bytes of the memory of an end.
const BYTES: usize = 4 << 20;
/// The access of the other end, and of the device.
const RIGHTS: AccessFlags =
    AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE).union(AccessFlags::REMOTE_READ);
/// Requests in flight.
const DEPTH: u32 = 128;
/// Bytes of inline data.
const INLINE: u32 = 220;

/// One end of a connection.
struct End {
    qp: Qp<Rc, Exclusive, Mlx5>,
    srq: Option<Srq<Exclusive, Mlx5>>,
    cq: Cq<Shared, Mlx5>,
    region: MemoryRegion<PageBuf, Exposed, Mlx5>,
    _pd: ProtectionDomain<Mlx5>,
}

impl End {
    fn new(hca: &Hca, shares: bool) -> Self {
        let context = Context::<Mlx5>::from_kernel(hca.open()).expect("a context");
        let pd = context.alloc_pd().expect("a PD");
        let cq = context.create_cq(2 * DEPTH - 1, None).expect("a CQ");
        let srq = shares.then(|| pd.create_srq(&SrqInitAttr::new(SrqAttr::new(DEPTH))).expect("an SRQ"));
        let builder = pd.raw_qp::<Rc>().cq(&cq);
        let qp = match &srq {
            Some(srq) => builder.srq(srq).cap(QpCap::new(DEPTH, 0).inline(INLINE)).create(),
            None => builder.cap(QpCap::new(DEPTH, DEPTH).inline(INLINE)).create(),
        };
        let qp = qp.expect("a QP");
        let buf = PageBuf::new(BYTES).expect("memory");
        let region = pd.reg_mr(buf, RIGHTS).map_err(|e| e.error).expect("a region");
        region.write_at(0, &vec![1; BYTES]).expect("memory");
        Self { qp, srq, cq, region, _pd: pd }
    }

    fn sge(&self, bytes: u32) -> Sge {
        Sge::new(self.region.addr(), bytes, self.region.lkey()).expect("an entry")
    }

    fn remote(&self) -> Remote {
        Remote::new(self.region.addr(), self.region.rkey())
    }

    /// Posts so many receives.
    fn receive(&mut self, count: u32, into: Sge) {
        if let Some(srq) = &mut self.srq {
            let mut list = srq.batch();
            // SAFETY: the region lives as long as the queue.
            (0..count).for_each(|i| unsafe { list.push(i.into(), &[into]) });
            list.complete().unwrap_or_else(ok);
            return;
        }
        let mut list = self.qp.recv.as_mut().expect("a receive queue").batch();
        // SAFETY: the region lives as long as the queue.
        (0..count).for_each(|i| unsafe { list.push(i.into(), &[into]) });
        list.complete().unwrap_or_else(ok);
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
    /// Between two devices of these names, or in one device. The receives may be those of an SRQ.
    fn new(names: [&str; 2], shares: bool) -> Self {
        let fabric = Fabric::new(0);
        let first = fabric.device(names[0]).build();
        let second = if names[0] == names[1] { first.clone() } else { fabric.device(names[1]).build() };
        let ends = [first, second].map(|hca| End::new(&hca, shares));
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
                b.receive(batch, into);
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

/// Bytes of the data of the rows with inline data.
const SHORT: usize = 32;
/// A value for the peer.
const IMM: ImmData = ImmData::new(7);

type Ends = &'static RefCell<Two>;

fn ends(names: [&str; 2], shares: bool) -> Ends {
    Box::leak(Box::new(RefCell::new(Two::new(names, shares))))
}

/// Adds a row: a message that `post` posts, with a receive or without one.
fn row(
    rows: &mut Rows,
    (name, bytes): (&str, u32),
    (batch, count, receives): (u32, u32, bool),
    two: Ends,
    post: impl Fn(&mut Batch<'_, Rc, Mlx5>, u64, Sge, Remote) + Copy + 'static,
) {
    rows.add("hca", &format!("{name} {bytes}"), batch, count, move || {
        measured(|| two.borrow_mut().run((count, batch, receives), bytes, post));
    });
}

fn rows() -> Rows {
    let two = ends(["hca0", "hca1"], false);
    let (srq, one) = (ends(["hca0", "hca1"], true), ends(["hca0", "hca0"], false));
    let mut rows = Rows::default();
    for (bytes, batch, count) in [(64, 32, 128), (64, 1, 128), (65536, 1, 32), (1 << 20, 1, 8)] {
        let (plain, received) = ((batch, count, false), (batch, count, true));
        // SAFETY: the regions live as long as the queues.
        row(&mut rows, ("write", bytes), plain, two, |list, id, sge, to| unsafe {
            list.wr(id).signaled().write(&[sge], to);
        });
        // SAFETY: the regions live as long as the queues.
        row(&mut rows, ("read", bytes), plain, two, |list, id, sge, to| unsafe {
            list.wr(id).signaled().read(&[sge], to);
        });
        // SAFETY: the regions live as long as the queues.
        row(&mut rows, ("send", bytes), received, two, |list, id, sge, _| unsafe {
            list.wr(id).signaled().send(&[sge]);
        });
    }
    for batch in [32, 1] {
        let (plain, received) = ((batch, 128, false), (batch, 128, true));
        row(&mut rows, ("write inline", SHORT as u32), plain, two, |list, id, _, to| {
            list.wr(id).signaled().write_array(&[5; SHORT], to);
        });
        row(&mut rows, ("send inline", SHORT as u32), received, two, |list, id, _, _| {
            list.wr(id).signaled().send_array(&[5; SHORT]);
        });
        // SAFETY: the regions live as long as the queues.
        row(&mut rows, ("send imm", 64), received, two, |list, id, sge, _| unsafe {
            list.wr(id).signaled().send_imm(&[sge], IMM);
        });
        // SAFETY: the regions live as long as the queues.
        row(&mut rows, ("write imm", 64), received, two, |list, id, sge, to| unsafe {
            list.wr(id).signaled().write_imm(&[sge], to, IMM);
        });
        // SAFETY: the regions live as long as the queues.
        row(&mut rows, ("send to an SRQ", 64), received, srq, |list, id, sge, _| unsafe {
            list.wr(id).signaled().send(&[sge]);
        });
        // SAFETY: the regions live as long as the queues.
        row(&mut rows, ("loopback write", 64), plain, one, |list, id, sge, to| unsafe {
            list.wr(id).signaled().write(&[sge], to);
        });
        // SAFETY: the regions live as long as the queues.
        row(&mut rows, ("loopback send", 64), received, one, |list, id, sge, _| unsafe {
            list.wr(id).signaled().send(&[sge]);
        });
    }
    rows
}

fn main() {
    uverbs_bench::run_rows(rows);
}
