// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cost of creating, querying, changing and destroying an object does not grow with the number of objects.
//!
//! A search through all objects costs little among a hundred and much among thousands, so the time that the thread has run is
//! compared for both. The NIC runs in this thread, too.

use crate::CAP;
use nix::time::{ClockId, clock_gettime};
use uverbs::attr::{
    AccessFlags, AhAttr, FlowAttr, Gid, GlobalRoute, MwType, QpState, SrqAttr, SrqInitAttr, WqInitAttr,
};
use uverbs::mlx5::Mlx5;
use uverbs::{
    ConnectAttr, Context, Exclusive, ProtectionDomain, RawPacket, Rc, Ud,
    raw::{Qp, Srq, Wq},
};
use uverbs_hca::Hca;
use uverbs_testkit::machine::in_own_process;

/// The numbers of objects that are compared, and the factor that a tree's depth and a cold cache may cost.
const FEW: usize = 200;
const MANY: usize = 10_000;
const FACTOR: u64 = 4;
/// Objects of a measurement, and measurements of which the shortest counts.
const BATCH: usize = 30;
const TRIES: usize = 5;

/// Nanoseconds that this thread has run.
fn now() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap();
    (time.tv_sec() * 1_000_000_000 + time.tv_nsec()).cast_unsigned()
}

fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4
}

/// The shortest time of making, using and dropping objects, ns for each.
fn cost<T>(from: usize, make: &impl Fn(usize) -> T, using: &impl Fn(&T)) -> u64 {
    let run = |try_: usize| {
        let start = now();
        let objects: Vec<T> = (0..BATCH).map(|i| make(from + try_ * BATCH + i)).collect();
        objects.iter().for_each(using);
        drop(objects);
        (now() - start) / BATCH as u64
    };
    (0..TRIES).map(run).min().unwrap()
}

/// Compares the cost among few and among many objects.
fn compare<T>(name: &str, make: impl Fn(usize) -> T, using: impl Fn(&T)) {
    let mut all: Vec<T> = Vec::new();
    let (start, before) = (now(), resident());
    let mut fill = |count: usize| {
        while all.len() < count {
            let object = make(all.len());
            using(&object);
            all.push(object);
        }
        cost(count, &make, &using)
    };
    let few = fill(FEW);
    let many = fill(MANY);
    let (whole, memory) = ((now() - start) / 1_000_000, resident().saturating_sub(before));
    println!("{name}: {few} ns each among {FEW}, {many} among {MANY}; {whole} ms, {memory} KiB for all");
    assert!(many <= few * FACTOR, "{name}: {few} ns each among {FEW}, {many} ns among {MANY}");
    // The order of the destruction is that of a program which ends.
    let start = now();
    drop(all);
    let each = (now() - start) / MANY as u64;
    assert!(each <= few * FACTOR, "{name}: {each} ns each for the destruction of all, {few} ns among {FEW}");
}

/// A software NIC. Each test has a process of its own: each `membarrier` and `munmap` interrupts the other threads of a process that run at the
/// moment, which under virtualisation costs more than all else.
fn nic() -> (Context<Mlx5>, ProtectionDomain<Mlx5>) {
    let context = Context::from_kernel(Hca::new().open()).unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

#[test]
fn domains_regions_and_windows_cost_the_same_among_many() {
    if !in_own_process("many::domains_regions_and_windows_cost_the_same_among_many") {
        return;
    }
    let (context, pd) = nic();
    compare("pd", |_| context.alloc_pd().unwrap(), |_| ());
    let rights = AccessFlags::LOCAL_WRITE;
    compare(
        "mr",
        |_| pd.reg_mr(vec![0_u8; 64], rights).unwrap(),
        |mr| {
            let _ = mr.remote_region(0..64).unwrap();
        },
    );
    compare("mw", |_| pd.alloc_mw(MwType::Type2).unwrap(), |_| ());
    compare("xrcd", |_| context.open_xrcd(None, true, false).unwrap(), |_| ());
    compare("counters", |_| context.create_counters().unwrap(), |_| ());
}

#[test]
fn handles_of_addresses_and_rules_cost_the_same_among_many() {
    if !in_own_process("many::handles_of_addresses_and_rules_cost_the_same_among_many") {
        return;
    }
    let (context, pd) = nic();
    let dgid = context.query_gid(1, 3).unwrap();
    let route = GlobalRoute::new(dgid).sgid_index(3);
    let attr = AhAttr::new(1).grh(Some(route));
    compare("ah", |_| pd.create_ah(&attr).unwrap(), |_| ());
    let cq = context.create_cq(4, None).unwrap();
    let qp: Qp<RawPacket, Exclusive, Mlx5> = pd.raw_qp::<RawPacket>().cq(&cq).cap(CAP).create().unwrap();
    let rule = FlowAttr::new(1);
    compare("flow", |_| qp.control.create_flow(&rule).unwrap(), |_| ());
}

#[test]
fn completion_queues_cost_the_same_among_many() {
    if !in_own_process("many::completion_queues_cost_the_same_among_many") {
        return;
    }
    let (context, _pd) = nic();
    compare("cq", |_| context.create_cq(1, None).unwrap(), |cq| cq.req_notify(false).unwrap());
    let channel = context.create_comp_channel().unwrap();
    compare("cq with a channel", |_| context.create_cq(1, Some(&channel)).unwrap(), |_| ());
}

#[test]
fn receive_queues_cost_the_same_among_many() {
    if !in_own_process("many::receive_queues_cost_the_same_among_many") {
        return;
    }
    let (context, pd) = nic();
    let attr = SrqInitAttr::new(SrqAttr::new(1));
    let srq = |_| -> Srq<Exclusive, Mlx5> { pd.create_srq(&attr).unwrap() };
    compare("srq", srq, |srq| {
        srq.query().unwrap();
    });
    let cq = context.create_cq(4, None).unwrap();
    let wq = |_| -> Wq<Exclusive, Mlx5> { pd.create_wq(&cq, &WqInitAttr::new(1)).unwrap() };
    compare("wq", wq, |_| ());
}

/// Compares queue pairs of a transport.
macro_rules! pairs {
    ($transport:ty, $name:literal, $using:expr) => {{
        let (context, pd) = nic();
        let cq = context.create_cq(4, None).unwrap();
        let using: fn(&Qp<$transport, Exclusive, Mlx5>) = $using;
        compare($name, |_| pd.raw_qp::<$transport>().cq(&cq).cap(CAP).create().unwrap(), using);
    }};
}

#[test]
fn connected_queue_pairs_cost_the_same_among_many() {
    if !in_own_process("many::connected_queue_pairs_cost_the_same_among_many") {
        return;
    }
    pairs!(Rc, "rc", |qp| {
        let attr = ConnectAttr::default();
        qp.init(&attr).unwrap();
        let here = qp.control.endpoint(7, &attr).unwrap();
        qp.connect(&here, &here, &attr).unwrap();
        assert_eq!(qp.control.state().unwrap(), QpState::RTS);
    });
}

#[test]
fn queue_pairs_in_error_cost_the_same_among_many() {
    if !in_own_process("many::queue_pairs_in_error_cost_the_same_among_many") {
        return;
    }
    pairs!(Rc, "rc in error", |qp| {
        qp.init(&ConnectAttr::default()).unwrap();
        qp.control.modify_state(QpState::ERR).unwrap();
    });
}

#[test]
fn queue_pairs_of_a_group_cost_the_same_among_many() {
    if !in_own_process("many::queue_pairs_of_a_group_cost_the_same_among_many") {
        return;
    }
    pairs!(Ud, "ud in a group", |qp| {
        let group = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        qp.init(&ConnectAttr::default()).unwrap();
        // A QP that is in a group can't be destroyed.
        qp.control.attach_mcast(group, 0).unwrap();
        qp.control.detach_mcast(group, 0).unwrap();
    });
}
