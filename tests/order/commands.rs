// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands at any time between the accesses of devices: after a command has returned, the device does not use what it took away.

use crate::nodes::{End, LINE, Node, words};
use core::sync::atomic::Ordering;
use uverbs::attr::AccessFlags;
use uverbs::mlx5::Mlx5;
use uverbs::{Exposed, MemoryRegion, PageBuf};
use uverbs_hca::explore::{Cpu, Explorer, Footprint, Mode, Run, Thread};
use uverbs_tests::post::{Op, RemoteAddr, Req};
use uverbs_tests::sges::sge;

/// Runs a program under every order of each mode that has more than one.
fn explore(program: impl Fn(&Run)) {
    for mode in [Mode::Pcie, Mode::Relaxed, Mode::Model] {
        let report = Explorer::new().mode(mode).explore(&program);
        assert!(report.is_complete && report.runs > 2, "{mode}: {report:?}");
    }
}

fn nodes(run: &Run) -> [Node; 2] {
    let nodes = ["hca0", "hca1"].map(|name| Node::new(run.fabric(), name, 4, AccessFlags::empty()));
    (0..4).for_each(|line| nodes[0].word(line).store(1, Ordering::Relaxed));
    nodes
}

/// A region of two lines.
fn region(node: &Node) -> MemoryRegion<PageBuf, Exposed, Mlx5> {
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ;
    let buf = PageBuf::new(2 * LINE).expect("memory");
    node.pd.reg_mr(buf, access).map_err(|e| e.error).expect("a region")
}

/// A step that may conflict with any other one.
fn command<T>(cpu: &Cpu<'_>, name: &str, act: impl FnOnce() -> T) -> T {
    let footprint = Footprint { everything: true, ..Footprint::default() };
    cpu.step(footprint, || (act(), name.to_owned()))
}

/// The memory of a region that is deregistered between two steps.
fn deregister(cpu: &Cpu<'_>, region: MemoryRegion<PageBuf, Exposed, Mlx5>) -> PageBuf {
    command(cpu, "deregisters the region", || region.close().map_err(|(_, e)| e).expect("dereg_mr"))
}

#[test]
fn a_region_is_not_written_after_it_was_deregistered() {
    explore(|run| {
        let [a, b] = nodes(run);
        let (mut from, _to) = End::pair(&a, &b);
        let target = region(&b);
        let to = RemoteAddr { addr: target.addr(), rkey: target.rkey() };
        let mut kept = None;
        run.together([
            Thread::new("A", |cpu| {
                let data = [sge(&a.mr, 0..2 * LINE)];
                from.post(cpu, &[Req::new(1, Op::Write(to)).signaled().sges(&data)]);
            }),
            Thread::new("B", |cpu| {
                let buf = deregister(cpu, target);
                let before = buf.to_vec();
                kept = Some((buf, before));
            }),
        ]);
        let (buf, before) = kept.expect("the memory");
        assert_eq!(*buf, *before, "the memory was written after dereg_mr");
    });
}

#[test]
fn a_region_is_not_read_after_it_was_deregistered() {
    explore(|run| {
        let [a, b] = nodes(run);
        let (mut from, _to) = End::pair(&a, &b);
        let source = region(&a);
        run.together([Thread::new("A", |cpu| {
            let data = [sge(&source, 0..2 * LINE)];
            from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
            let mut buf = deregister(cpu, source);
            // The memory is used for something else.
            buf.fill(9);
        })]);
        let seen = [0, 1].map(|line| b.word(line).load(Ordering::Relaxed));
        assert_eq!(seen, [0, 0], "the memory was read after dereg_mr");
    });
}

#[test]
fn a_queue_pair_that_was_reset_completes_nothing() {
    explore(|run| {
        let [a, b] = nodes(run);
        let (mut from, mut to) = End::pair(&a, &b);
        to.ready(1, 3);
        run.together([
            Thread::new("A", |cpu| {
                let data = words(&a, 0, 1);
                from.post(cpu, &[Req::new(1, Op::WriteImm(b.remote(0), 7)).signaled().sges(&data)]);
                from.reset(cpu);
                while from.poll_one().is_some() {}
            }),
            Thread::new("B", |cpu| {
                to.reset(cpu);
                while to.poll_one().is_some() {}
            }),
        ]);
        // A's end can be reset after B has polled its completion, but nothing comes behind a reset.
        assert!(from.poll_one().is_none() && to.poll_one().is_none(), "a completion after the reset");
    });
}

#[test]
fn a_device_that_was_removed_accesses_nothing() {
    explore(|run| {
        let [a, b] = nodes(run);
        let (mut from, _to) = End::pair(&a, &b);
        let mut kept = [7; 2];
        let read = || [0, 1].map(|line| b.word(line).load(Ordering::Relaxed));
        run.together([
            Thread::new("A", |cpu| {
                let data = [sge(&a.mr, 0..2 * LINE)];
                from.post(cpu, &[Req::new(1, Op::Write(b.remote(0))).signaled().sges(&data)]);
            }),
            Thread::new("B", |cpu| {
                kept = command(cpu, "is unplugged", || {
                    b.hca.unplug();
                    read()
                });
            }),
        ]);
        assert_eq!(read(), kept, "the memory was written after the removal");
    });
}
