// SPDX-License-Identifier: MIT OR Apache-2.0
//! The end of a peer, of the link, of a forked child; and checks that no object is left after each.

use crate::deletion::deletion_waits_for_users;
use anyhow::{Context as _, Result, anyhow, ensure};
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::process::Command;
use std::sync::OnceLock;
use uverbs::attr::{DeviceCapFlags, EventType, MwType, PortState, QpState, SrqAttr, SrqInitAttr};
use uverbs::provider::{PollError, PostError};
use uverbs::{
    Context, Driver, Errno, Event, EventSource, Exclusive, Rc, Shared, Uc, Ud, WcStatus, WorkCompletion,
};
use uverbs_tests::bed::hca;
use uverbs_tests::child::{in_fork, open_files, rdma_resources, spawn};
use uverbs_tests::env::End;
use uverbs_tests::lab::{PORT, find};
use uverbs_tests::post::Typed;
use uverbs_tests::roles::PeerProcess;
use uverbs_tests::wait::{LIMIT, list, readable, statuses, until};
use uverbs_tests::{Face, Lab, LabEnv, Lock, Op, Outcome, Pair, Req, Spec, Test, run};

/// The counts of both devices.
fn resources(env: &LabEnv) -> Result<[String; 2]> {
    Ok([rdma_resources(env.dev(End::A))?, rdma_resources(env.dev(End::B))?])
}

/// Waits until the counts have these values.
fn resources_become(env: &LabEnv, wanted: &[String; 2]) -> Result<()> {
    let mut last = resources(env)?;
    until("the counts of `rdma resource` are as before", LIMIT, || {
        last = resources(env)?;
        Ok(last == *wanted)
    })
    .with_context(|| format!("before {wanted:?}, after {last:?}"))
}

/// Detects a missing answer after six timeouts of 67 ms (4.096 us << 14). Seven retries would be endless on some devices. A
/// peer that is alive answers within this time even if its CPU is taken away for some time slices.
fn impatient<D: Driver>(lab: &Lab<D>) -> Spec {
    let mut spec = Spec::new(lab);
    spec.attr.timeout = 14;
    spec.attr.retry_cnt = 5;
    spec
}

// ---- A peer that is killed.

/// A peer is killed while messages are in flight: the first unacknowledged message fails, and the rest is flushed. The
/// QP can then be connected to another peer.
fn killed_peer_fails_outstanding_sends<D: Driver>(lab: &Lab<D>) -> Outcome {
    const MESSAGES: usize = 40;
    let before = resources(lab.env()?)?;
    let spec = impatient(lab);
    let mut pair = Pair::<D, Rc, Exclusive>::unconnected(lab, &spec)?;
    let with_pair = resources(lab.env()?)?;
    let mut child = PeerProcess::start(lab.env()?, End::B)?;
    ensure!(resources(lab.env()?)? != with_pair, "`rdma resource` does not show the peer's objects");
    let a = &mut pair.a;
    child.connect(&a.here)?;
    a.connect(&child.endpoint, &spec.attr)?;
    until("the peer's QP is connected", LIMIT, || {
        let all = run(Command::new("/usr/bin/rdma").args(["resource", "show", "qp"]), LIMIT)?;
        let qp = format!(" lqpn {} ", child.endpoint.qp_num);
        let device = format!("link {}/", lab.env()?.dev(End::B));
        Ok(all.lines().any(|l| l.contains(&device) && l.contains(&qp) && l.contains(" state RTS ")))
    })?;
    a.recv_empty(3)?;
    // The connection works.
    a.post(Face::Single, &[Req::new(99, Op::Send).signaled().inline(&[1])])?;
    a.ok(1)?;
    let send = |i: usize| Req::new(1000 + i as u64, Op::Send).signaled().inline(&[2]);
    let (early, late): (Vec<_>, Vec<_>) =
        ((0..MESSAGES / 2).map(send).collect(), (MESSAGES / 2..MESSAGES).map(send).collect());
    a.post(Face::Batch, &early)?;
    child.kill()?;
    a.post(Face::Batch, &late)?;

    let all = a.wait(MESSAGES + 3)?;
    let (sends, recvs): (Vec<&WorkCompletion>, Vec<_>) = all.iter().partition(|wc| wc.wr_id >= 1000);
    let good = sends.iter().take_while(|wc| wc.status.is_success()).count();
    lab.note(format_args!("{good} of {MESSAGES} messages arrived before the peer's end"));
    ensure!(good <= MESSAGES / 2 && sends.len() == MESSAGES, "{}", list(&all));
    ensure!(sends.iter().map(|wc| wc.wr_id).eq((0..MESSAGES as u64).map(|i| 1000 + i)), "{}", list(&all));
    ensure!(sends[good].status == WcStatus::RETRY_EXC_ERR, "{:?}", sends[good]);
    let flushed = sends[good + 1..].iter().chain(&recvs).all(|wc| wc.status == WcStatus::WR_FLUSH_ERR);
    ensure!(flushed, "{}", list(&all));
    ensure!(a.state()? == QpState::ERR, "{:?}", a.state()?);
    a.idle()?;
    resources_become(lab.env()?, &with_pair)?;

    pair.reconnect(&spec.attr)?;
    for face in Face::ALL {
        pair.message(face, 3000, 5)?;
    }
    drop(pair);
    resources_become(lab.env()?, &before)
}

// ---- The link.

/// Takes an end of the link down until this is dropped.
struct Down(End);

impl Down {
    fn new(end: End) -> Result<Self> {
        let this = Self(end);
        this.set("down")?;
        Ok(this)
    }

    fn set(&self, what: &str) -> Result<String> {
        run(Command::new("lab-link").args([what, self.0.name()]), LIMIT)
    }
}

impl Drop for Down {
    fn drop(&mut self) {
        if let Err(e) = self.set("up") {
            eprintln!("    the link was not restored: {e:#}");
        }
    }
}

/// Waits for an event of the port; others (of its addresses) may come before it.
fn port_event<D: Driver>(context: &Context<D>, wanted: EventType) -> Result<()> {
    let mut seen: Vec<Event> = Vec::new();
    until(&format!("{wanted:?} at {}", context.name()), LIMIT, || {
        if readable(context.async_fd(), Duration::from_millis(100))? {
            let event = context.get_async_event()?;
            // Newer kernels report a change of the device's speed, too.
            let of_port = event.source == EventSource::Port(PORT.into());
            ensure!(of_port || event.event_type == EventType::DEVICE_SPEED_CHANGE, "{event:?}");
            seen.push(event);
        }
        Ok(seen.last().is_some_and(|e| e.event_type == wanted))
    })
    .with_context(|| format!("seen: {seen:?}"))
}

fn port_states<D: Driver>(lab: &Lab<D>, active: bool) -> Result<()> {
    for context in [&lab.a, &lab.b] {
        let state = context.query_port(PORT)?.state;
        ensure!((state == PortState::ACTIVE) == active, "{}: {state:?}", context.name());
    }
    Ok(())
}

/// One end goes down: the ports report it, a message fails, and the rest is flushed. When it is up again, new
/// connections work.
fn down_and_up<D: Driver>(lab: &Lab<D>, end: End, first: &[WcStatus]) -> Result<()> {
    let spec = impatient(lab);
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    pair.message(Face::Batch, 3000, 1)?;

    let down = Down::new(end)?;
    for context in [&lab.a, &lab.b] {
        port_event(context, EventType::PORT_ERR)?;
    }
    port_states(lab, false)?;
    let reqs = [5, 6, 7].map(|id| Req::new(id, Op::Send).inline(&[3]));
    pair.a.post(Face::Batch, &reqs)?;
    let all = pair.a.wait(3)?;
    lab.note(format_args!("with the link down: {}", list(&all)));
    ensure!(first.contains(&all[0].status), "{}", list(&all));
    let flushed = [(6, WcStatus::WR_FLUSH_ERR), (7, WcStatus::WR_FLUSH_ERR)];
    ensure!(statuses(&all)[1..] == flushed && all[0].wr_id == 5, "{}", list(&all));
    ensure!(pair.a.state()? == QpState::ERR);

    drop(down);
    for context in [&lab.a, &lab.b] {
        port_event(context, EventType::PORT_ACTIVE)?;
    }
    port_states(lab, true)?;
    let mut last = None;
    until("the QPs can be connected again", LIMIT, || {
        last = pair.reconnect(&spec.attr).err();
        Ok(last.is_none())
    })
    .with_context(|| format!("{last:?}"))?;
    for face in Face::ALL {
        pair.message(face, 3000, 2)?;
    }
    Ok(())
}

/// A software device may detect immediately that it can't send; kernels since 6.4 report that as a flush.
fn link_down_here_is_reported<D: Driver>(lab: &Lab<D>) -> Outcome {
    let first = [WcStatus::RETRY_EXC_ERR, WcStatus::LOC_QP_OP_ERR, WcStatus::WR_FLUSH_ERR];
    down_and_up(lab, End::A, &first)
}

// ---- Addresses.

/// Changes the LID of the port at B, as a subnet manager does, until this is dropped.
struct Lid(u16);

impl Lid {
    fn set(lid: u16) -> Result<String> {
        hca(&["lid", "1", &lid.to_string()])
    }
}

impl Drop for Lid {
    fn drop(&mut self) {
        if let Err(e) = Self::set(self.0) {
            eprintln!("    the LID was not restored: {e:#}");
        }
    }
}

/// InfiniBand: the LID of a port changes. Its users get an event; connections to the old LID fail.
fn another_lid<D: Driver>(lab: &Lab<D>) -> Result<()> {
    const ANOTHER: u16 = 0x777;
    let spec = impatient(lab);
    let mut pair = Pair::<D, Rc, Exclusive>::with(lab, &spec)?;
    pair.message(Face::Batch, 3000, 1)?;
    let lid = || -> Result<u16> { Ok(lab.b.query_port(PORT)?.lid) };
    let old = Lid(lid()?);
    let back = old.0;
    Lid::set(ANOTHER)?;
    port_event(&lab.b, EventType::LID_CHANGE)?;
    ensure!(lid()? == ANOTHER, "{:#x}", lid()?);
    pair.a.post(Face::Batch, &[Req::new(5, Op::Send).inline(&[3])])?;
    ensure!(statuses(&pair.a.wait(1)?) == [(5, WcStatus::RETRY_EXC_ERR)]);
    Pair::<D, Rc, Exclusive>::new(lab)?.message(Face::Batch, 3000, 2)?;
    drop(old);
    port_event(&lab.b, EventType::LID_CHANGE)?;
    ensure!(lid()? == back, "{:#x}", lid()?);
    Pair::<D, Rc, Exclusive>::new(lab)?.message(Face::Batch, 3000, 3)
}

/// RoCE: an IP address is added to an end, which adds a GID to its port, and is removed.
fn another_gid<D: Driver>(lab: &Lab<D>) -> Result<()> {
    /// Adds the address until this is dropped.
    struct Address<'a>(&'a LabEnv);
    impl Address<'_> {
        const TEXT: &'static str = "10.0.0.99";
        fn set(&self, what: &str) -> Result<String> {
            let mut ip = self.0.command(End::A, "/usr/bin/ip");
            let prefix = format!("{}/24", Self::TEXT);
            run(ip.args(["addr", what, &prefix, "dev", &self.0.netdev[End::A as usize]]), LIMIT)
        }
    }
    impl Drop for Address<'_> {
        fn drop(&mut self) {
            if let Err(e) = self.set("del") {
                eprintln!("    the address was not removed: {e:#}");
            }
        }
    }
    let gid = format!("::ffff:{}", Address::TEXT).parse()?;
    let has = || -> Result<bool> { Ok(lab.a.query_gid_table()?.iter().any(|entry| entry.gid == gid)) };
    ensure!(!has()?);
    let address = Address(lab.env()?);
    address.set("add")?;
    port_event(&lab.a, EventType::GID_CHANGE)?;
    until("the address is a GID", LIMIT, has)?;
    drop(address);
    port_event(&lab.a, EventType::GID_CHANGE)?;
    until("the GID was removed", LIMIT, || Ok(!has()?))?;
    Pair::<D, Rc, Exclusive>::new(lab)?.message(Face::Batch, 3000, 1)
}

/// A port's address changes while it is in use.
fn address_changes_raise_events<D: Driver>(lab: &Lab<D>) -> Outcome {
    if lab.is_ethernet() { another_gid(lab) } else { another_lid(lab) }
}

// ---- A forked child.

/// The calls of a child of fork(2) on its copies have no effect here.
fn forked_child<D: Driver, L: Lock>(lab: &Lab<D>) -> Result<()> {
    let before = resources(lab.env()?)?;
    let spec = Spec::new(lab);
    let mut pair = Pair::<D, Rc, L>::with(lab, &spec)?;
    let channel = lab.b.create_comp_channel()?;
    let cq = lab.b.create_cq(4, Some(&channel))?;
    let mw =
        if lab.has(DeviceCapFlags::MEM_WINDOW) { Some(pair.a.pd.alloc_mw(MwType::Type1)?) } else { None };
    pair.message(Face::Batch, 3000, 1)?;
    let during = resources(lab.env()?)?;

    let mut copies = Some((pair, channel, cq, mw));
    in_fork(LIMIT, || {
        let (mut pair, channel, cq, mw) = copies.take().context("no copies")?;
        let stale = |what: &str, errno: Option<Errno>| -> Result<()> {
            ensure!(errno == Some(Errno::ESTALE), "{what} in the child: {errno:?}");
            Ok(())
        };
        stale("query_device", lab.a.query_device().err().map(|e| e.errno()))?;
        stale("alloc_pd", lab.a.alloc_pd().err().map(|e| e.errno()))?;
        stale("create_cq", lab.a.create_cq(4, None).err().map(|e| e.errno()))?;
        stale("query_qp", pair.a.qp.control.state().err().map(|e| e.errno()))?;
        stale("modify_qp", pair.a.qp.control.modify_state(QpState::ERR).err().map(|e| e.errno()))?;
        stale("create_comp_channel", lab.a.create_comp_channel().err().map(|e| e.errno()))?;
        ensure!(cq.req_notify(false).is_err(), "the child armed a CQ");
        let mut wc = [WorkCompletion::default()];
        let polled = pair.a.cq.poll(&mut wc).map(|wc| wc.len());
        ensure!(polled == Err(PollError::Forked), "the child polled: {polled:?}");
        for face in Face::ALL {
            let refused = pair.a.post(face, &[Req::new(66, Op::Send).signaled().inline(&[6])]);
            let refused = refused.err().and_then(|r| r.error);
            ensure!(refused == Some(PostError::Forked), "the child posted by {face:?}: {refused:?}");
            let refused = pair.b.recv(face, 67, 0..8).err();
            ensure!(refused.is_some(), "the child posted a receive by {face:?}");
        }
        drop((pair, channel, cq, mw));
        Ok(())
    })?;

    let (mut pair, channel, cq, mw) = copies.take().context("the parent's objects")?;
    ensure!(resources(lab.env()?)? == during, "the child destroyed something");
    for face in Face::ALL {
        pair.message(face, 3000, 2).context("after the child's end")?;
    }
    pair.a.idle()?;
    pair.b.idle()?;
    // A child that does nothing, as before exec(2), has no effect, either.
    pair.a.fill(0..3000, 77)?;
    let mut sleeper = spawn(Command::new("/bin/sleep").arg("1000"))?;
    pair.message(Face::Batch, 3000, 3)?;
    ensure!(sleeper.is_running()?);
    drop((pair, channel, cq, mw));
    resources_become(lab.env()?, &before)
}

// ---- Nothing is left.

/// The number of mappings of RDMA devices in this process.
pub(crate) fn mappings() -> Result<usize> {
    Ok(fs::read_to_string("/proc/self/maps")?.lines().filter(|l| l.contains("/dev/infiniband/")).count())
}

/// The counts of objects by kind, from a line of `rdma resource`.
fn counts(line: &str) -> BTreeMap<&str, u64> {
    let words: Vec<_> = line.split_whitespace().collect();
    words.chunks_exact(2).filter_map(|w| Some((w[0], w[1].parse().ok()?))).collect()
}

fn traffic<D: Driver, T: Typed<D>>(lab: &Lab<D>) -> Result<()> {
    Pair::<D, T, Exclusive>::new(lab)?.message(Face::List, 700, 1)?;
    Pair::<D, T, Shared>::new(lab)?.message(Face::Single, 700, 1)
}

/// Creates, uses and drops one object of each kind.
fn cycle<D: Driver>(lab: &Lab<D>, before: &str) -> Result<()> {
    let channel = lab.a.create_comp_channel()?;
    let cq = lab.a.create_cq(16, Some(&channel))?;
    drop(channel);
    let td = lab.a.alloc_td()?;
    let pd = lab.a.alloc_pd()?;
    let own = pd.parent_domain(&td)?;
    drop(td);
    let mr = uverbs_tests::pair::region(&pd, 1 << 16, lab.full_access())?;
    let mut windows = Vec::new();
    for (cap, mw_type) in
        [(DeviceCapFlags::MEM_WINDOW, MwType::Type1), (DeviceCapFlags::MEM_WINDOW_TYPE_2B, MwType::Type2)]
    {
        if lab.has(cap) {
            windows.push(pd.alloc_mw(mw_type)?);
        }
    }
    let attr = SrqAttr::new(16).max_sge(2);
    let srq = pd.create_srq::<Exclusive>(&SrqInitAttr::new(attr))?;
    let spec = Spec::new(lab);
    let qp = own.raw_qp::<Rc>().cq(&cq).srq(&srq).cap(spec.cap).create()?;
    let here = qp.control.endpoint(1, &spec.attr)?;
    let ah = pd.create_ah(&spec.attr.ah_attr(&here))?;
    match lab.a.open_xrcd(None, true, false) {
        Ok(xrcd) => drop(xrcd),
        Err(e) => ensure!(e.is_unsupported(), "{e}"),
    }

    let line = rdma_resources(lab.env()?.dev(End::A))?;
    let (old, new) = (counts(before), counts(&line));
    for kind in ["pd", "cq", "qp", "mr"] {
        let more = new.get(kind) > old.get(kind);
        ensure!(more, "no {kind} was made, says `rdma resource`: {before} before, {line} now");
    }
    traffic::<D, Rc>(lab)?;
    traffic::<D, Uc>(lab)?;
    traffic::<D, Ud>(lab)?;
    // In an order that C does not allow: an object is kept until its last user is dropped.
    drop((pd, srq, cq, own, mr));
    drop((windows, ah));
    drop(qp);
    Ok(())
}

/// Repeatedly creates, uses and drops all kinds of objects: the counts of kernel objects, files and mappings do not
/// change.
fn repeated_use_leaves_no_objects<D: Driver>(lab: &Lab<D>) -> Outcome {
    let before = resources(lab.env()?)?;
    let files = open_files()?;
    let maps = mappings()?;
    for turn in 0..3 {
        cycle(lab, &before[0]).with_context(|| format!("turn {turn}"))?;
        resources_become(lab.env()?, &before).with_context(|| format!("turn {turn}"))?;
        let left = open_files()?;
        ensure!(left == files, "turn {turn}: files before {files:?}, after {left:?}");
        ensure!(mappings()? == maps, "turn {turn}: {maps} mappings before, {} after", mappings()?);
    }
    Ok(())
}

/// A context is closed when the last object created from it is dropped.
fn contexts_are_closed_with_their_last_object<D: Driver>(lab: &Lab<D>) -> Outcome {
    let before = resources(lab.env()?)?;
    let files = open_files()?;
    for dev in [End::A, End::B] {
        let context = Context::<D>::open(&find(lab.env()?.dev(dev))?)?;
        ensure!(open_files()?.len() > files.len());
        let cq = context.create_cq(16, None)?;
        let pd = context.alloc_pd()?;
        drop(context);
        let mr = uverbs_tests::pair::region(&pd, 4096, lab.full_access())?;
        drop((cq, pd));
        mr.write_at(0, &[1])?;
        ensure!(open_files()?.len() > files.len(), "closed too early");
        drop(mr);
        ensure!(open_files()? == files, "{:?}", open_files()?);
    }
    resources_become(lab.env()?, &before)
}

// ---- Credentials.

/// Replaces the credentials of this thread by equal ones: no supplementary groups, as root has in the VM. (The function
/// of the C library would replace those of all threads.)
fn replace_credentials() -> Result<()> {
    #[expect(unsafe_code, reason = "no crate has this call for one thread")]
    // SAFETY: with a count of 0 the list is not read.
    let status = unsafe { libc::syscall(libc::SYS_setgroups, 0_i64, 0_i64) };
    ensure!(status == 0, "{}", std::io::Error::last_os_error());
    Ok(())
}

/// After a change of credentials, the kernel refuses writes to files that were opened before it
/// (`ib_safe_file_access()`). All calls continue to work, by ioctl.
fn other_credentials_change_nothing<D: Driver>(lab: &Lab<D>) -> Outcome {
    let mut pair = Pair::<D, Rc, Exclusive>::new(lab)?;
    let mut file = fs::File::options().write(true).open(&find(lab.env()?.dev(End::A))?.uverbs?.path)?;
    let turn = || {
        replace_credentials()?;
        let refused = file.write(&[0; 8]).err().context("a write after the change")?;
        ensure!(refused.raw_os_error() == Some(libc::EACCES), "{refused}");
        for face in Face::ALL {
            pair.message(face, 3000, 1)?;
        }
        Ok(pair.a.cq.req_notify(true)?)
    };
    std::thread::scope(|scope| scope.spawn(turn).join()).map_err(|_| anyhow!("the thread panicked"))?
}

/// The objects before the first test.
static BEGINNING: OnceLock<Option<([String; 2], Vec<String>)>> = OnceLock::new();

/// Records the objects before the first test.
pub(crate) fn beginning() -> &'static Option<([String; 2], Vec<String>)> {
    BEGINNING.get_or_init(|| {
        let env = LabEnv::get()?;
        Some((resources(&env).ok()?, open_files().ok()?))
    })
}

/// After all tests, the devices and this process are as they were before the first.
fn suite_leaves_no_objects(env: &LabEnv) -> Outcome {
    let (resources, files) =
        beginning().as_ref().context("the objects before the first test were not recorded")?;
    if env.mlx5 {
        // The driver was loaded again, and creates some of its own objects on first use: only objects with an owner are
        // counted.
        for kind in ["pd", "cq", "qp", "mr", "srq"] {
            let all = run(Command::new("/usr/bin/rdma").args(["resource", "show", kind]), LIMIT)?;
            let owned: Vec<_> = all.lines().filter(|line| line.contains(" pid ")).collect();
            ensure!(owned.is_empty(), "{kind}s of processes are left: {owned:?}");
        }
    } else {
        resources_become(env, resources)?;
    }
    let mut left = open_files()?;
    // A thread that has waited for a connection keeps one eventfd(2) for its next waits. The tests run in one thread.
    if let Some(bell) = left.iter().position(|file| file == "anon_inode:[eventfd]") {
        left.remove(bell);
    }
    ensure!(left == *files, "open at the beginning {files:?}, now {left:?}");
    ensure!(mappings()? == 0, "mappings of devices are left");
    Ok(())
}

uverbs_tests::tests!(
    killed_peer_fails_outstanding_sends,
    link_down_at_the_peer_is_reported = |lab| down_and_up(lab, End::B, &[WcStatus::RETRY_EXC_ERR]),
    link_down_here_is_reported,
    address_changes_raise_events,
    calls_of_a_forked_child_have_no_effect_exclusive = forked_child::<D, Exclusive>,
    calls_of_a_forked_child_have_no_effect_shared = forked_child::<D, Shared>,
    repeated_use_leaves_no_objects,
    contexts_are_closed_with_their_last_object,
    other_credentials_change_nothing,
);

/// The tests of this file that come after all others. The last one checks that the whole suite left no objects.
pub(crate) fn last_tests() -> Vec<Test> {
    let mut tests = Vec::new();
    // `rdma link delete` does not remove an mlx5 device: see `removal`.
    if LabEnv::get().is_none_or(|env| !env.mlx5) {
        tests.push(Test::without_devices("lifecycle::deletion_waits_for_users", deletion_waits_for_users));
    }
    tests.push(Test::without_devices("lifecycle::suite_leaves_no_objects", suite_leaves_no_objects));
    tests
}
