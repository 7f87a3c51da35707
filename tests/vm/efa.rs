// SPDX-License-Identifier: MIT OR Apache-2.0
//! EFA under the kernel's own driver, with ours: SRD and datagrams, events, errors, resets of a QP, and what happens if the device
//! stops, is reset, or is removed. With C's programs, libefa is the other driver.
//!
//! Most themes of `uverbs_tests::suite` connect QPs and use operations that EFA does not have, so the device has tests of its own.

use anyhow::{Context as _, Result, ensure};
use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use uverbs::attr::{AccessFlags, LinkLayer, PortState, QpCap, QpState};
use uverbs::wr::ImmData;
use uverbs::{
    AddressHandle, Completed, ConnectAttr, Context, Cq, Done, Driver, Endpoint, Errno, Exclusive, Exposed,
    Pool, Private, ProtectionDomain, Qp, Srd, Ud, WcOpcode, WcStatus,
};
use uverbs_tests::bed::hca;
use uverbs_tests::child::spawn;
use uverbs_tests::env::End as Side;
use uverbs_tests::wait::until;
use uverbs_tests::{Deadline, Disturbance, LIMIT, Lab, LabEnv, LabTest, Outcome, Test, Vm, pattern, run};

/// `ETIME` of `<asm-generic/errno.h>`: a command was not answered in time.
const ETIME: Errno = Errno::from_raw(62);

const QKEY: u32 = 0x1234;
const CAP: QpCap = QpCap::new(16, 16).sge(2, 2).inline(32);
/// Bytes of a buffer.
const SIZE: u32 = 4096;
const BUFS: u32 = 64;
/// The time limit for the kernel to remove a device, or to probe it again.
const REMOVAL_LIMIT: Duration = Duration::from_secs(120);

/// A test of one name.
#[derive(Clone, Copy, Debug)]
enum Case {
    Query,
    Sends,
    Rdma,
    Large,
    Datagrams,
    Events,
    Resets,
    Errors,
    LinkDown,
    Stress,
}

const CASES: [(&str, Case); 10] = [
    ("query", Case::Query),
    ("sends", Case::Sends),
    ("rdma", Case::Rdma),
    ("large", Case::Large),
    ("datagrams", Case::Datagrams),
    ("events", Case::Events),
    ("resets", Case::Resets),
    ("errors", Case::Errors),
    ("link_down", Case::LinkDown),
    ("stress", Case::Stress),
];

/// A test that opens no device itself.
type OfPrograms = fn(&LabEnv) -> Outcome;

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    if !LabEnv::get().is_some_and(|env| env.efa) {
        return Vec::new();
    }
    let mut tests: Vec<_> =
        CASES.iter().map(|(name, case)| Test::new::<Vm>(&format!("efa::{name}"), *case)).collect();
    const C: &str = "ibv_ud_pingpong -g 0 -n 50";
    const OURS: &str = "uverbs pingpong ud --timeout 60 -g 0 -n 50";
    const SRD: &str = "ib_send_lat -x 0 -c SRD -n 50 -s 1000 -F";
    const OUR_SRD: &str = "uverbs perf send-lat -x 0 -c SRD -n 50 -s 1000";
    const OUR_READS: &str = "uverbs perf read-lat -x 0 -c SRD -n 50 -s 20000";
    const OUR_PINGPONG: &str = "uverbs pingpong srd --timeout 60 -g 0 -n 50 -e";
    let programs: [(&str, OfPrograms); 11] = [
        ("peers::ud::c_serves_c", |env| pair_of(env, C, C, 18700)),
        ("peers::ud::ours_serves_c", |env| pair_of(env, OURS, C, 18701)),
        ("peers::ud::c_serves_ours", |env| pair_of(env, C, OURS, 18702)),
        ("peers::srd::c_serves_c", |env| pair_of(env, SRD, SRD, 18703)),
        ("peers::srd::ours_serves_c", |env| pair_of(env, OUR_SRD, SRD, 18704)),
        ("peers::srd::c_serves_ours", |env| pair_of(env, SRD, OUR_SRD, 18705)),
        ("peers::srd::reads", |env| pair_of(env, OUR_READS, OUR_READS, 18706)),
        ("peers::srd::pingpong", |env| pair_of(env, OUR_PINGPONG, OUR_PINGPONG, 18707)),
        ("removal_waits_for_users", removal_waits_for_users),
        ("a_device_that_stops_is_used_again_after_a_reset", stopped),
        ("a_fatal_error_is_reported_by_the_kernel", fatal),
    ];
    tests.extend(programs.map(|(name, test)| Test::without_devices(&format!("efa::{name}"), test)));
    tests
}

impl LabTest for Case {
    fn run<D: Driver>(self, lab: &Lab<D>) -> Outcome {
        match self {
            Self::Query => query(lab),
            Self::Sends => sends(lab),
            Self::Rdma => rdma(lab),
            Self::Large => large(lab),
            Self::Datagrams => datagrams(lab),
            Self::Events => events(lab),
            Self::Resets => resets(lab),
            Self::Errors => errors(lab),
            Self::LinkDown => link_down(lab),
            Self::Stress => stress(lab),
        }
    }
}

fn attr() -> ConnectAttr {
    ConnectAttr::new().qkey(QKEY)
}

/// An end of SRD: a domain, a CQ, buffers and a QP in RTS.
struct End<D: Driver> {
    qp: Qp<Srd, Exclusive, D>,
    cq: Cq<Exclusive, D>,
    pool: Pool<Private, D>,
    pd: ProtectionDomain<D>,
    context: Context<D>,
    here: Endpoint,
}

fn start<D: Driver>(qp: &Qp<Srd, Exclusive, D>) -> Result<Endpoint> {
    qp.init(&attr())?;
    let here = qp.control().endpoint(0, &attr())?;
    qp.connect(&here, &here, &attr())?;
    Ok(here)
}

impl<D: Driver> End<D> {
    fn new(context: &Context<D>) -> Result<Self> {
        let pd = context.alloc_pd()?;
        let cq = context.cq(128)?;
        let pool = pd.pool(BUFS, SIZE)?;
        let qp = pd.qp::<Srd>().cq(&cq).cap(CAP).create()?;
        let here = start(&qp)?;
        Ok(Self { qp, cq, pool, pd, context: context.clone(), here })
    }

    fn ah(&self, peer: &Endpoint) -> Result<AddressHandle<D>> {
        Ok(self.pd.create_ah(&attr().on(&self.context)?.ah_attr(peer))?)
    }

    fn receives(&mut self, n: u64) -> Result<()> {
        for i in 0..n {
            let buf = self.pool.get()?;
            self.qp.rq()?.post(100 + i, buf)?;
        }
        Ok(())
    }

    fn send(&mut self, wr_id: u64, to: &AddressHandle<D>, qpn: u32, data: &[u8]) -> Result<()> {
        let mut buf = self.pool.get()?;
        buf.fill(data)?;
        self.qp.sq().post_to(wr_id, to, qpn, QKEY).send(buf)?;
        Ok(())
    }

    /// The next completion.
    fn next(&mut self) -> Result<Completed<D>> {
        let mut deadline = Deadline::usual();
        loop {
            if let Some(done) = self.cq.poll_one()? {
                return Ok(done);
            }
            ensure!(!deadline.passed(), "no completion after {LIMIT:?}");
            deadline.pause();
        }
    }

    fn ok(&mut self) -> Result<Completed<D>> {
        let done = self.next()?;
        ensure!(done.wc.status.is_success(), "{:?}", done.wc);
        Ok(done)
    }

    /// The next completion is a message with these bytes.
    fn message(&mut self, data: &[u8]) -> Result<()> {
        let done = self.ok()?;
        let buf = done.buf().context("a receive has a buffer")?;
        ensure!(buf[..] == *data, "{} bytes, not {}", buf.len(), data.len());
        Ok(())
    }
}

/// Two ends with address handles of each other.
struct Ends<D: Driver> {
    a: End<D>,
    b: End<D>,
    to_b: AddressHandle<D>,
    _to_a: AddressHandle<D>,
}

impl<D: Driver> Ends<D> {
    fn new(lab: &Lab<D>) -> Result<Self> {
        let (a, b) = (End::new(&lab.a).context("end A")?, End::new(&lab.b).context("end B")?);
        let (to_b, _to_a) = (a.ah(&b.here)?, b.ah(&a.here)?);
        Ok(Self { a, b, to_b, _to_a })
    }
}

/// The rights of peers that this kernel and device grant.
fn rights<D: Driver>(pd: &ProtectionDomain<D>) -> Result<AccessFlags> {
    let both = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    match pd.pool_with(1, 64).exposed(both).build() {
        Ok(_) => Ok(both),
        Err(e) if e.errno() == Errno::EOPNOTSUPP => Ok(AccessFlags::REMOTE_READ),
        Err(e) => Err(e.into()),
    }
}

fn exposed<D: Driver>(end: &End<D>, bytes: u32) -> Result<Pool<Exposed, D>> {
    Ok(end.pd.pool_with(1, bytes).exposed(rights(&end.pd)?).build()?)
}

/// What the kernel says of the device.
fn query<D: Driver>(lab: &Lab<D>) -> Outcome {
    ensure!(D::NAME == "efa", "the driver is {}", D::NAME);
    ensure!(lab.device.max_qp == 256 && lab.device.max_srq == 0, "{:?}", lab.device);
    ensure!(lab.port.state == PortState::ACTIVE, "{:?}", lab.port);
    ensure!(lab.port.link_layer == LinkLayer::UNSPECIFIED, "{:?}", lab.port);
    let (a, b) = (lab.a.query_gid_ex(1, 0)?, lab.b.query_gid_ex(1, 0)?);
    ensure!(a.gid != b.gid, "both devices have {}", a.gid);
    let report = run(Command::new("/usr/bin/uverbs").args(["devinfo", "-d", lab.a.name()]), LIMIT)?;
    ensure!(report.contains("efa"), "{report}");
    Ok(())
}

fn sends<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Ends { mut a, mut b, to_b, _to_a } = Ends::new(lab)?;
    let qpn = b.here.qp_num;
    b.receives(16)?;
    for (n, len) in [1, 31, 700, 4096].into_iter().enumerate() {
        let data = pattern::bytes(n as u64, len);
        a.send(n as u64, &to_b, qpn, &data)?;
        ensure!(a.ok()?.wc.wr_id == n as u64);
        b.message(&data)?;
    }
    a.qp.sq().post_to(5, &to_b, qpn, QKEY).send_imm_inline(b"inline", ImmData::new(7))?;
    drop(a.ok()?);
    let done = b.ok()?;
    ensure!(done.wc.imm_data() == Some(ImmData::new(7)) && done.wc.src_qp == a.here.qp_num, "{:?}", done.wc);
    // A batch: its messages come in any order.
    let mut batch = a.qp.sq().batch();
    for n in 0..8_u8 {
        let mut buf = a.pool.get()?;
        buf.fill(&[n; 3000])?;
        batch.wr_to(n.into(), &to_b, qpn, QKEY).send(buf);
    }
    batch.complete()?;
    let sent: BTreeSet<_> = (0..8).map(|_| Ok(a.ok()?.wc.wr_id)).collect::<Result<_>>()?;
    let mut received = BTreeSet::new();
    for _ in 0..8 {
        match b.ok()?.ok() {
            Ok(Done::Received(message)) => {
                ensure!(message.len() == 3000 && message.iter().all(|byte| *byte == message[0]));
                received.insert(u64::from(message[0]));
            }
            _ => anyhow::bail!("not a message"),
        }
    }
    ensure!(sent == (0..8).collect() && received == sent, "{sent:?} {received:?}");
    Ok(())
}

fn rdma<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Ends { mut a, mut b, to_b, _to_a } = Ends::new(lab)?;
    let qpn = b.here.qp_num;
    let pool = exposed(&b, SIZE)?;
    let table = pool.get()?;
    table.write_at(0, b"in the memory of b")?;
    let region = table.remote_region();
    let mut buf = a.pool.get()?;
    buf.set_len(18)?;
    a.qp.sq().post_to(1, &to_b, qpn, QKEY).read(buf, &region)?;
    ensure!(&a.ok()?.buf().context("a buffer")?[..] == b"in the memory of b");
    if !rights(&b.pd)?.contains(AccessFlags::REMOTE_WRITE) {
        lab.note("this kernel or device has no RDMA write");
        return Ok(());
    }
    b.receives(1)?;
    let mut buf = a.pool.get()?;
    buf.fill(b"written")?;
    a.qp.sq().post_to(2, &to_b, qpn, QKEY).write_imm(buf, &region, ImmData::new(5))?;
    ensure!(a.ok()?.wc.opcode == WcOpcode::RDMA_WRITE);
    let done = b.ok()?;
    ensure!(done.wc.opcode == WcOpcode::RECV_RDMA_WITH_IMM && done.wc.byte_len == 7, "{:?}", done.wc);
    let mut bytes = [0; 18];
    table.read_at(0, &mut bytes)?;
    ensure!(&bytes == b"writtenmemory of b");
    Ok(())
}

/// Regions of many pages, whose lists the kernel passes in pages and chunks, and reads of many packets.
fn large<D: Driver>(lab: &Lab<D>) -> Outcome {
    const BYTES: u32 = 5 << 20;
    let Ends { mut a, b, to_b, _to_a } = Ends::new(lab)?;
    let pool = exposed(&b, BYTES)?;
    let table = pool.get()?;
    let data = pattern::bytes(3, BYTES as usize);
    table.write_at(0, &data)?;
    let local = a.pd.pool(1, BYTES)?;
    let mut buf = local.get()?;
    buf.set_len(BYTES as usize)?;
    a.qp.sq().post_to(1, &to_b, b.here.qp_num, QKEY).read(buf, &table.remote_region())?;
    let done = a.ok()?;
    let buf = done.buf().context("a buffer")?;
    ensure!(pattern::first_difference(3, &buf).is_none(), "the bytes differ");
    Ok(())
}

fn datagrams<D: Driver>(lab: &Lab<D>) -> Outcome {
    struct Datagrams<D: Driver>(
        Qp<Ud, Exclusive, D>,
        Cq<Exclusive, D>,
        Pool<Private, D>,
        ProtectionDomain<D>,
    );
    let end = |context: &Context<D>| -> Result<(Datagrams<D>, Endpoint)> {
        let pd = context.alloc_pd()?;
        let cq = context.cq(32)?;
        let qp = pd.qp::<Ud>().cq(&cq).cap(CAP).create()?;
        qp.init(&attr())?;
        let here = qp.control().endpoint(0, &attr())?;
        qp.connect(&here, &here, &attr())?;
        let pool = pd.pool(8, SIZE)?;
        Ok((Datagrams(qp, cq, pool, pd), here))
    };
    let ((mut a, _), (mut b, there)) = (end(&lab.a)?, end(&lab.b)?);
    let to_b = a.3.create_ah(&attr().on(&lab.a)?.ah_attr(&there))?;
    b.0.rq()?.post(1, b.2.get()?)?;
    // Doorbells of two devices have no order, so the first datagrams may come before the receive, and are lost.
    let mut received = None;
    until("a datagram", LIMIT, || {
        let mut buf = a.2.get()?;
        buf.fill(b"a datagram")?;
        a.0.sq().post_to(1, &to_b, there.qp_num, QKEY).send(buf)?;
        ensure!(a.1.wait()?.wc.status.is_success());
        received = b.1.poll_one()?;
        Ok(received.is_some())
    })?;
    let done = received.context("a datagram")?;
    ensure!(done.wc.status.is_success() && done.wc.byte_len >= 10, "{:?}", done.wc);
    let buf = done.buf().context("a buffer")?;
    ensure!(buf.ends_with(b"a datagram"), "{:?}", &buf[..]);
    Ok(())
}

/// A thread sleeps until a completion raises an interrupt; many times, because each wait requests one event.
fn events<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Ends { mut a, mut b, to_b, _to_a } = Ends::new(lab)?;
    for n in 0..50_u64 {
        b.receives(1)?;
        let data = n.to_le_bytes();
        let qpn = b.here.qp_num;
        let (a, b, to_b) = (&mut a, &mut b, &to_b);
        thread::scope(|scope| -> Result<()> {
            let waiter = scope.spawn(move || b.cq.wait());
            if n % 4 == 0 {
                thread::sleep(Duration::from_millis(20));
            }
            a.send(n, to_b, qpn, &data)?;
            ensure!(a.cq.wait()?.wc.wr_id == n);
            let done = waiter.join().map_err(|_| anyhow::anyhow!("the waiter panicked"))??;
            ensure!(done.buf().context("a buffer")?[..] == data);
            Ok(())
        })?;
    }
    Ok(())
}

/// RESET in each phase of the ring: the device takes the entries of the next life.
fn resets<D: Driver>(lab: &Lab<D>) -> Outcome {
    let Ends { mut a, mut b, to_b, _to_a } = Ends::new(lab)?;
    for (life, posts) in [16, 5, 20, 0, 33, 16, 16, 7].into_iter().enumerate() {
        for n in 0..posts {
            b.receives(1)?;
            let data = pattern::bytes(n, 64);
            a.send(n, &to_b, b.here.qp_num, &data).with_context(|| format!("life {life}"))?;
            drop(a.ok().with_context(|| format!("post {n} of life {life}"))?);
            b.message(&data)?;
        }
        a.qp.reset()?;
        ensure!(a.qp.control().state()? == QpState::RESET);
        start(&a.qp)?;
    }
    Ok(())
}

fn errors<D: Driver>(lab: &Lab<D>) -> Outcome {
    let (mut a, mut b) = (End::new(&lab.a)?, End::new(&lab.b)?);
    let to_b = a.ah(&b.here)?;
    // There is no such QP.
    a.send(1, &to_b, b.here.qp_num ^ 0x80, b"nobody")?;
    ensure!(a.next()?.wc.status == WcStatus::REM_INV_RD_REQ_ERR);
    // A read of a peer that has no address handle of ours.
    let pool = exposed(&b, SIZE)?;
    let table = pool.get()?;
    let region = table.remote_region();
    let read = |a: &mut End<D>, region| -> Result<_> {
        let mut buf = a.pool.get()?;
        buf.set_len(8)?;
        a.qp.sq().post_to(2, &to_b, b.here.qp_num, QKEY).read(buf, region)?;
        Ok(a.next()?.wc)
    };
    let wc = read(&mut a, &region)?;
    ensure!((wc.status, wc.vendor_err) == (WcStatus::REM_OP_ERR, 14), "{wc:?}");
    let _to_a = b.ah(&a.here)?;
    ensure!(read(&mut a, &region)?.status.is_success());
    let wrong = uverbs::RemoteRegion::new(region.addr(), 8, region.rkey() ^ 1).context("a region")?;
    let wc = read(&mut a, &wrong)?;
    ensure!(wc.status == WcStatus::REM_ACCESS_ERR, "{wc:?}");
    // The receives of a QP in ERR are flushed.
    b.receives(2)?;
    b.qp.control().modify_state(QpState::ERR)?;
    for _ in 0..2 {
        ensure!(b.next()?.wc.status == WcStatus::WR_FLUSH_ERR);
    }
    Ok(())
}

/// The port stays ACTIVE, and there is no event; requests fail after a while, and the QP goes on when the link is up again.
fn link_down<D: Driver>(lab: &Lab<D>) -> Outcome {
    struct Up;
    impl Drop for Up {
        fn drop(&mut self) {
            if let Err(e) = hca(&["link", "1", "up"]) {
                eprintln!("    the link stays down: {e:#}");
            }
        }
    }
    let Ends { mut a, mut b, to_b, _to_a } = Ends::new(lab)?;
    b.receives(2)?;
    {
        let _up = Up;
        hca(&["link", "1", "down"])?;
        a.send(1, &to_b, b.here.qp_num, b"lost")?;
        let wc = a.next()?.wc;
        ensure!(wc.status == WcStatus::RESP_TIMEOUT_ERR, "{wc:?}");
        ensure!(lab.b.query_port(1)?.state == PortState::ACTIVE, "the driver does not know the link");
    }
    lab.b.set_async_nonblocking(true)?;
    let event = lab.b.get_async_event();
    lab.b.set_async_nonblocking(false)?;
    ensure!(event.is_err(), "{event:?}");
    a.send(2, &to_b, b.here.qp_num, b"there")?;
    drop(a.ok()?);
    b.message(b"there")
}

/// Sends both ways and reads, with losses: each message arrives once and is whole, in any order.
fn stress<D: Driver>(lab: &Lab<D>) -> Outcome {
    const MESSAGES: u64 = 1200;
    let Ends { mut a, mut b, to_b, _to_a: to_a } = Ends::new(lab)?;
    let _loss = lab.bed.disturb(&Disturbance { loss: 1, ..Disturbance::default() })?;
    let pool = exposed(&b, 256 << 10)?;
    let table = pool.get()?;
    table.write_at(0, &pattern::bytes(9, 256 << 10))?;
    let region = table.remote_region();
    let local = a.pd.pool(2, 256 << 10)?;
    a.receives(16)?;
    b.receives(16)?;
    let peers = [b.here.qp_num, a.here.qp_num];
    let mut next = [0_u64; 2];
    let mut in_flight = [0_u32; 2];
    let (mut arrived, mut reads) = ([BTreeSet::new(), BTreeSet::new()], 0);
    let mut deadline = Deadline::after(4 * LIMIT);
    while arrived.iter().any(|set| (set.len() as u64) < MESSAGES) || in_flight != [0, 0] {
        ensure!(!deadline.passed(), "{next:?} sent, {} and {} arrived", arrived[0].len(), arrived[1].len());
        let mut idle = true;
        for (side, (end, to)) in [(&mut a, &to_b), (&mut b, &to_a)].into_iter().enumerate() {
            while next[side] < MESSAGES && in_flight[side] < 12 {
                let n = next[side];
                if side == 0 && n % 37 == 5 && local.available() > 0 {
                    let mut buf = local.get()?;
                    buf.set_len(256 << 10)?;
                    end.qp.sq().post_to(u64::MAX, to, peers[0], QKEY).read(buf, &region)?;
                    (in_flight[0], reads) = (in_flight[0] + 1, reads + 1);
                }
                let len = 8 + (n as usize * 613) % 4000;
                let mut data = pattern::bytes(n, len);
                data[..8].copy_from_slice(&n.to_le_bytes());
                end.send(n, to, peers[side], &data)?;
                (next[side], in_flight[side]) = (n + 1, in_flight[side] + 1);
            }
            while let Some(done) = end.cq.poll_one()? {
                idle = false;
                ensure!(done.wc.status.is_success(), "{:?}", done.wc);
                match done.ok() {
                    Ok(Done::Received(message)) => {
                        let n = u64::from_le_bytes(message[..8].try_into()?);
                        ensure!(message.len() == 8 + (n as usize * 613) % 4000, "message {n}");
                        ensure!(message[8..] == pattern::bytes(n, message.len())[8..], "message {n} differs");
                        ensure!(arrived[1 - side].insert(n), "message {n} came twice");
                        drop(message);
                        end.receives(1)?;
                    }
                    _ => in_flight[side] -= 1,
                }
            }
        }
        if idle { deadline.pause() } else { deadline.progress() }
    }
    let repairs = lab.bed.repairs();
    lab.note(format_args!("{reads} reads, {repairs} packets were repeated"));
    Ok(())
}

/// A server at A and a client at B, of rdma-core, perftest or ours.
fn pair_of(env: &LabEnv, server: &str, client: &str, port: u16) -> Outcome {
    let program = |side, words: &str| {
        let mut words = words.split(' ');
        let mut command = env.command(side, &format!("/usr/bin/{}", words.next().unwrap_or_default()));
        command.args(words).args(["-d", env.dev(side), "-p", &port.to_string()]).stdin(Stdio::null());
        command
    };
    let mut server = spawn(&mut program(Side::A, server))?;
    server.wait_listening(port)?;
    let client = spawn(program(Side::B, client).arg(&env.tcp_host[0]))?.success(LIMIT);
    let server = server.success(LIMIT);
    client.with_context(|| format!("client; server: {server:?}"))?;
    server.context("server")?;
    Ok(())
}

fn pci(env: &LabEnv, side: Side) -> Result<String> {
    let path = format!("/sys/class/infiniband/{}/device", env.dev(side));
    let path = fs::canonicalize(&path).context(path)?;
    Ok(path.file_name().context("a PCI address")?.to_string_lossy().into_owned())
}

/// Binds the driver again, and waits for the devices.
fn bind(address: &str) -> Result<()> {
    fs::write("/sys/bus/pci/drivers/efa/bind", address).context("bind")?;
    up()
}

fn up() -> Result<()> {
    run(&mut Command::new("lab-efa-up"), REMOVAL_LIMIT).map(drop)
}

/// The kernel's driver has no `disassociate_ucontext`: a removal waits until the last user has closed the device, and these can go on.
fn removal_waits_for_users(env: &LabEnv) -> Outcome {
    let exists = || Path::new("/sys/class/infiniband").join(env.dev(Side::A)).exists();
    let context = uverbs::open(env.dev(Side::A))?;
    let mut end = End::new(&context)?;
    let to_self = end.ah(&end.here)?;
    let script = "echo 1 > \"/sys/class/infiniband/$1/device/remove\"";
    let mut removal =
        spawn(Command::new("/bin/sh").args(["-c", script, "remove", env.dev(Side::A)]).stdin(Stdio::null()))?;
    thread::sleep(Duration::from_secs(2));
    ensure!(removal.is_running()?, "the removal does not wait");
    // Queues and commands work meanwhile.
    end.receives(1)?;
    let qpn = end.here.qp_num;
    end.send(1, &to_self, qpn, b"still here")?;
    for _ in 0..2 {
        drop(end.ok()?);
    }
    ensure!(context.query_device()?.max_qp > 0);
    ensure!(removal.is_running()?);
    drop((to_self, end, context));
    removal.success(REMOVAL_LIMIT)?;
    ensure!(!exists(), "the device is still there");
    fs::write("/sys/bus/pci/rescan", "1").context("rescan")?;
    up()?;
    let again = uverbs::open(env.dev(Side::A))?;
    End::new(&again).map(drop)
}

/// A device that does not answer commands: the command fails after the time that the device announces, and all later ones at once, until
/// the driver is bound again, which resets the device. The driver does nothing because of the missing signs of life.
fn stopped(env: &LabEnv) -> Outcome {
    let counter = || -> Result<u64> {
        let path = format!("/sys/class/infiniband/{}/hw_counters/keep_alive_rcvd", env.dev(Side::A));
        Ok(fs::read_to_string(&path).context(path)?.trim().parse()?)
    };
    let before = counter()?;
    until("a sign of life", LIMIT, || Ok(counter()? > before))?;
    hca(&["stop", "0"])?;
    let errno = |result: Result<Context<uverbs::AnyDriver>, uverbs::Error>| result.err().map(|e| e.errno());
    let first = errno(uverbs::open(env.dev(Side::A)));
    let later = errno(uverbs::open(env.dev(Side::A)));
    let address = pci(env, Side::A)?;
    fs::write("/sys/bus/pci/drivers/efa/unbind", &address).context("unbind")?;
    // Not before the reset that unbind makes: the kernel's driver would copy the late completion to memory of the call that had
    // given up, which is on a stack (`user_cqe` in efa_com_handle_single_admin_completion()).
    hca(&["go", "0"])?;
    bind(&address)?;
    ensure!(
        (first, later) == (Some(ETIME), Some(Errno::ENODEV)),
        "a command of a device that stopped: {first:?}, later {later:?}"
    );
    let again = uverbs::open(env.dev(Side::A))?;
    End::new(&again).map(drop)
}

/// The driver prints the event, and goes on.
fn fatal(env: &LabEnv) -> Outcome {
    let lines = || -> Result<usize> {
        let log = run(&mut Command::new("/bin/dmesg"), LIMIT)?;
        Ok(log.lines().filter(|line| line.contains("Unknown event was received")).count())
    };
    let before = lines()?;
    hca(&["fatal", "0"])?;
    until("the event is reported", LIMIT, || Ok(lines()? > before))?;
    let context = uverbs::open(env.dev(Side::A))?;
    End::new(&context).map(drop)
}
