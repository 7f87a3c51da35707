// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many devices and queue pairs of the software ConnectX in one process: what each costs to make, to connect, to use and to destroy, in
//! eighths of all, which shows a cost that grows; and the resident memory. An example, because `cargo xtask bench` does not run it.
//!
//! `hca-scale DEVICES QPS`: as many devices, an even number, with as many queue pairs each.
#![expect(unsafe_code)]
// UNSAFETY: requests name memory of the regions, which live as long as the queues.

use std::time::{Duration, Instant};
use uverbs::attr::{AccessFlags, QpCap};
use uverbs::mlx5::{Mlx5, Remote, Sge};
use uverbs::provider::{Completion as _, WireRemote as _, WireSge as _};
use uverbs::raw::{Cq, Qp};
use uverbs::{ConnectAttr, Context, Exclusive, Exposed, MemoryRegion, PageBuf, ProtectionDomain, Rc, Shared};
use uverbs_bench::ok;
use uverbs_hca::{Fabric, Hca};

const RIGHTS: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);
/// The parts whose times are compared.
const PARTS: usize = 8;

/// A device with its queue pairs.
struct End {
    qps: Vec<Qp<Rc, Exclusive, Mlx5>>,
    cq: Cq<Shared, Mlx5>,
    region: MemoryRegion<PageBuf, Exposed, Mlx5>,
    pd: ProtectionDomain<Mlx5>,
    _hca: Hca,
}

impl End {
    fn new(fabric: &Fabric, index: usize) -> Self {
        let hca = fabric.device(&format!("hca{index}")).build();
        let context = Context::<Mlx5>::from_kernel(hca.open()).expect("a context");
        let pd = context.alloc_pd().expect("a PD");
        let cq = context.create_cq(63, None).expect("a CQ");
        let buf = PageBuf::new(4096).expect("memory");
        let region = pd.reg_mr(buf, RIGHTS).map_err(|e| e.error).expect("a region");
        Self { qps: Vec::new(), cq, region, pd, _hca: hca }
    }
}

/// The resident memory, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Calls `f` with each number below `count`, and prints the time of a call in each part.
fn measure(what: &str, count: usize, mut f: impl FnMut(usize)) {
    let mut parts = Vec::new();
    for part in 0..PARTS {
        let (first, end) = (count * part / PARTS, count * (part + 1) / PARTS);
        let start = Instant::now();
        (first..end).for_each(&mut f);
        let each = start.elapsed() / u32::try_from(end - first).unwrap_or(1).max(1);
        parts.push(each);
    }
    let us = |time: &Duration| format!("{:.1}", time.as_secs_f64() * 1e6);
    println!("{what}, us each: {}", parts.iter().map(us).collect::<Vec<_>>().join(" "));
}

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let [devices, per_device] = numbers[..] else { panic!("usage: hca-scale DEVICES QPS") };
    let (fabric, all, before) = (Fabric::new(0), devices * per_device, resident());
    let mut ends = Vec::new();
    measure("devices", devices, |index| ends.push(End::new(&fabric, index)));
    let with_devices = resident();
    println!(
        "memory: {} KiB for each device with a context, a CQ and a region",
        (with_devices - before) / devices as u64
    );
    measure("QPs", all, |i| {
        let end = &mut ends[i / per_device];
        let qp = end.pd.raw_qp::<Rc>().cq(&end.cq).cap(QpCap::new(1, 1)).create();
        end.qps.push(qp.expect("a QP"));
    });
    println!("memory: {:.1} KiB for each of {all} QPs", (resident() - with_devices) as f64 / all as f64);
    let attr = ConnectAttr::default().sgid_index(Some(3)).access(RIGHTS);
    measure("connections", all, |i| {
        let (device, qp) = (i / per_device, i % per_device);
        let (own, peer) = (&ends[device].qps[qp], &ends[device ^ 1].qps[qp]);
        own.init(&attr).expect("INIT");
        let [a, b] = [own, peer].map(|qp| qp.control.endpoint(1, &attr).expect("an endpoint"));
        own.connect(&a, &b, &attr).expect("RTS");
    });
    measure("writes", all, |i| {
        let (device, qp) = (i / per_device, i % per_device);
        let remote = Remote::new(ends[device ^ 1].region.addr(), ends[device ^ 1].region.rkey());
        let end = &mut ends[device];
        let sge = Sge::new(end.region.addr(), 64, end.region.lkey()).expect("an entry");
        let mut list = end.qps[qp].send.batch();
        // SAFETY: the regions live as long as the queues.
        unsafe { list.wr(0).signaled().write(&[sge], remote) };
        list.complete().unwrap_or_else(ok);
        let mut left = 1;
        while left > 0 {
            left -= end
                .cq
                .poll_each(1, |wc| assert!(wc.status().ok().is_ok(), "a failed request"))
                .unwrap_or_else(ok);
        }
    });
    println!("memory: {} MiB resident", resident() >> 10);
    measure("destruction", all, |i| drop(ends[i / per_device].qps.pop()));
}
