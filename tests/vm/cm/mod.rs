// SPDX-License-Identifier: MIT OR Apache-2.0
//! The connection manager on the real kernel: `uverbs-cm` with itself, and with librdmacm's programs in both
//! directions, over IPv4 and IPv6. On InfiniBand there is no IP network in the lab, so nothing runs there. iWARP has no
//! datagrams and no groups, and no ucmatose: its server sends first, which MPA does not allow (RFC 5044, 7.1.2).
//!
//! A test is named `cm::{exchange}::{roles}::{family}`.

mod rsocket;
mod wire;
mod xrc;

use anyhow::{Context as _, Result, bail, ensure};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use std::fs::File;
use std::process::{Command, Stdio};
use std::thread;
use uverbs_cm::{Error, EventChannel, EventKind, Id, Listener, PortSpace, RejectReason, Resolved};
use uverbs_tests::bed::{Bed, Disturbance, DropGuard, VmBed};
use uverbs_tests::child::spawn;
use uverbs_tests::env::End;
use uverbs_tests::wait::{Deadline, LIMIT, until};
use uverbs_tests::{LabEnv, Outcome, Test, run};
use wire::Exchange;

/// The author of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Ours,
    C,
}

const ROLES: [(&str, Who, Who); 3] = [
    ("ours_serves_ours", Who::Ours, Who::Ours),
    ("ours_serves_c", Who::Ours, Who::C),
    ("c_serves_ours", Who::C, Who::Ours),
];

const EXCHANGES: [(&str, Exchange); 5] = [
    ("greeting", Exchange::Greeting),
    ("rping", Exchange::Rping(5)),
    ("ucmatose", Exchange::Cmatose(6, 200)),
    // More than the receive buffers of both sides.
    ("rstream", Exchange::Rstream(40, 3000)),
    ("udaddy", Exchange::Udaddy(6, 200)),
];

/// The port of the first test; each has its own.
const FIRST_PORT: u16 = 17400;
/// The port of udaddy, which has no option for it.
const UDADDY_PORT: u16 = 7174;

/// The tests of this file.
pub(crate) fn tests() -> Vec<Test> {
    if LabEnv::get().is_some_and(|env| env.infiniband) {
        println!("cm: no IP network on InfiniBand, so its tests are left out");
        return Vec::new();
    }
    let is_iwarp = LabEnv::get().is_some_and(|env| env.siw);
    let mut tests = Vec::new();
    let mut port = FIRST_PORT;
    for (name, exchange) in EXCHANGES {
        if is_iwarp && matches!(exchange, Exchange::Udaddy(..) | Exchange::Cmatose(..)) {
            continue;
        }
        for (roles, server, client) in ROLES {
            if matches!(exchange, Exchange::Greeting) && (server, client) != (Who::Ours, Who::Ours) {
                continue;
            }
            for is_ipv6 in [false, true] {
                let fixed = matches!(exchange, Exchange::Udaddy(..)).then_some(UDADDY_PORT);
                let case = Case { name, exchange, server, client, is_ipv6, port: fixed.unwrap_or(port) };
                let family = if is_ipv6 { "ipv6" } else { "ipv4" };
                let label = format!("cm::{name}::{roles}::{family}");
                tests.push(Test::without_devices(&label, move |env| case.run(env)));
                port += 1;
            }
        }
    }
    if is_iwarp {
        tests.push(Test::without_devices("cm::rejections", move |env| rejections(env, port)));
        return tests;
    }
    tests.push(Test::without_devices("cm::errors", move |env| errors(env, port)));
    tests.push(Test::without_devices("cm::groups", groups));
    // rxe has no XRC.
    if LabEnv::get().is_none_or(|env| env.mlx5) {
        tests.push(Test::without_devices("cm::xrc", move |env| xrc::run(env, port + 1)));
    }
    for ((name, steps), port) in uverbs_tests::cm::ALL.into_iter().zip(FIRST_PORT + 100..) {
        let run = move |env: &LabEnv| steps(&Kernel(env), port);
        tests.push(Test::without_devices(&format!("cm::steps::{name}"), run));
    }
    tests
}

/// The kernel's connection manager.
#[derive(Debug)]
struct Kernel<'a>(&'a LabEnv);

impl uverbs_tests::cm::Hosts for Kernel<'_> {
    fn channel(&self, _: End) -> Result<EventChannel> {
        Ok(EventChannel::open()?)
    }

    fn id(&self, end: End, channel: &EventChannel, port_space: PortSpace) -> Result<Id> {
        at(self.0, end, || Ok(channel.create_id(port_space)?))
    }

    fn ip(&self, end: End) -> Result<IpAddr> {
        Ok(self.0.ip[end as usize].parse()?)
    }

    fn delay(&self, time: Duration) -> Result<Option<DropGuard>> {
        // In one namespace, rxe delivers messages to its own device at once.
        if !self.0.mlx5 && self.0.ns.iter().any(Vec::is_empty) {
            return Ok(None);
        }
        let what = Disturbance { delay: time, ..Disturbance::default() };
        Bed::<uverbs::rxe::Rxe>::disturb(&VmBed(self.0.clone()), &what).map(Some)
    }
}

/// Calls `f` in the network namespace of an end: an identifier belongs to the namespace of the thread that creates it.
fn at<R: Send>(env: &LabEnv, end: End, f: impl FnOnce() -> Result<R> + Send) -> Result<R> {
    // `ip netns exec NAME`
    let Some(name) = env.ns[end as usize].last() else { return f() };
    let file = File::open(format!("/var/run/netns/{name}"));
    let file = file.or_else(|_| File::open(format!("/run/netns/{name}"))).context(name.clone())?;
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            nix::sched::setns(&file, nix::sched::CloneFlags::CLONE_NEWNET)?;
            f()
        });
        thread.join().map_err(|_| anyhow::anyhow!("the thread panicked"))?
    })
}

/// The address of an end. IPv6 addresses are added on first use.
fn address(env: &LabEnv, end: End, is_ipv6: bool, port: u16) -> Result<SocketAddr> {
    if !is_ipv6 {
        return Ok(SocketAddr::new(env.ip[end as usize].parse()?, port));
    }
    let number = end as usize + 1;
    let ip = format!("fd77::{number}");
    let device = &env.netdev[end as usize];
    let show = |words: &[&str]| run(env.command(end, "/usr/bin/ip").args(words), LIMIT);
    if !show(&["-6", "addr", "show", "dev", device])?.contains(&format!("{ip}/")) {
        show(&["-6", "addr", "add", &format!("{ip}/64"), "dev", device, "nodad"])?;
    }
    if env.siw {
        return Ok(SocketAddr::new(ip.parse()?, port));
    }
    // The kernel adds its GID from a work queue.
    let gid = uverbs::attr::Gid::from(ip.parse::<IpAddr>()?);
    let info = uverbs_tests::lab::find(env.dev(end))?;
    until(&format!("{ip} is a GID"), LIMIT, || Ok(has_gid(&info.sysfs, &gid.to_string())))?;
    Ok(SocketAddr::new(ip.parse()?, port))
}

fn has_gid(sysfs: &std::path::Path, gid: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(sysfs.join("ports/1/gids")) else { return false };
    entries.flatten().any(|e| std::fs::read_to_string(e.path()).is_ok_and(|text| text.trim() == gid))
}

/// One test.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    exchange: Exchange,
    server: Who,
    client: Who,
    is_ipv6: bool,
    port: u16,
}

impl Case {
    fn is_udaddy(&self) -> bool {
        matches!(self.exchange, Exchange::Udaddy(..))
    }

    fn port_space(&self) -> PortSpace {
        if self.is_udaddy() { PortSpace::Udp } else { PortSpace::Tcp }
    }

    /// The arguments of a C program at an end.
    fn program(&self, env: &LabEnv, end: End, server: SocketAddr) -> Command {
        let mut command = env.command(end, &format!("/usr/bin/{}", self.name));
        let is_server = end == End::A;
        let host = server.ip().to_string();
        match self.exchange {
            Exchange::Rping(count) => {
                command.args([if is_server { "-s" } else { "-c" }, "-a", &host, "-S", "64", "-V"]);
                command.args(["-C", &count.to_string()]);
            }
            Exchange::Greeting => {}
            Exchange::Rstream(count, size) => {
                command.args([if is_server { "-b" } else { "-s" }, &host]);
                command.args(["-C", &count.to_string(), "-S", &size.to_string()]);
                // It waits instead of polling, and compares the data.
                command.args(["-B", "16384", "-T", "b", "-T", "v"]);
            }
            Exchange::Cmatose(count, size) | Exchange::Udaddy(count, size) => {
                command.args([if is_server { "-b" } else { "-s" }, &host]);
                command.args(["-C", &count.to_string(), "-S", &size.to_string()]);
                if self.is_ipv6 {
                    command.args(["-f", "ipv6"]);
                }
            }
        }
        if !self.is_udaddy() {
            command.args(["-p", &server.port().to_string()]);
        }
        command.stdin(Stdio::null());
        command
    }

    fn run(&self, env: &LabEnv) -> Outcome {
        let server = address(env, End::A, self.is_ipv6, self.port)?;
        // In one network namespace, IPv6 finds no neighbour behind the link: the ends are on one device then.
        let here = address(env, End::B, self.is_ipv6, 0)?;
        let here = (!self.is_ipv6 || !env.ns[0].is_empty()).then_some(here);
        match (self.server, self.client) {
            (Who::Ours, _) => {
                let manager = EventChannel::open()?;
                let bind = || Ok(Listener::with(&manager, self.port_space(), server, 4)?);
                let listener = at(env, End::A, bind)?;
                ensure!(listener.local_addr()? == server, "{:?}", listener.id().bound());
                let serve = || -> Result<()> {
                    let request = listener.wait(Some(LIMIT))?.context("no request")?;
                    wire::serve(request, self.exchange)
                };
                thread::scope(|scope| {
                    let thread = scope.spawn(serve);
                    let client = match self.client {
                        Who::Ours => self.call(env, here, server),
                        Who::C => {
                            let child = spawn(&mut self.program(env, End::B, server))?;
                            child.success(LIMIT).map(drop)
                        }
                    };
                    let served = thread.join().map_err(|_| anyhow::anyhow!("the server panicked"))?;
                    match (served, client) {
                        (Ok(()), Ok(())) => Ok(()),
                        (served, client) => bail!("server: {served:?}\nclient: {client:?}"),
                    }
                })
            }
            (Who::C, _) => {
                let mut child = spawn(&mut self.program(env, End::A, server))?;
                let mut deadline = Deadline::usual();
                // The server has no socket that could be waited for.
                let called = loop {
                    let called = self.call(env, here, server);
                    let refused = called.as_ref().err().and_then(|e| e.downcast_ref::<Error>());
                    let not_yet = matches!(
                        refused,
                        Some(Error::Rejected {
                            reason: RejectReason::INVALID_SERVICE_ID | RejectReason::SIDR_UNSUPPORTED,
                            ..
                        })
                    );
                    if !not_yet || deadline.passed() || !child.is_running()? {
                        break called;
                    }
                    deadline.pause();
                    thread::sleep(Duration::from_millis(20));
                };
                let served = child.success(LIMIT);
                match (served, called) {
                    (Ok(_), Ok(())) => Ok(()),
                    (served, called) => bail!("server: {served:?}\nclient: {called:?}"),
                }
            }
        }
    }

    fn call(&self, env: &LabEnv, here: Option<SocketAddr>, server: SocketAddr) -> Result<()> {
        let manager = EventChannel::open()?;
        let resolve = || Ok(Resolved::with(&manager, self.port_space(), here, server, LIMIT)?);
        wire::call(at(env, End::B, resolve)?, self.exchange)
    }
}

/// The typed errors, the identifier's queries, and the options, on this kernel.
fn errors(env: &LabEnv, port: u16) -> Outcome {
    let server = address(env, End::A, false, port)?;
    let here = address(env, End::B, false, 0)?;
    let manager = EventChannel::open()?;
    let resolve = |to: SocketAddr| {
        at(env, End::B, || {
            Ok(Resolved::with(&manager, PortSpace::Tcp, None, to, Duration::from_millis(500))?)
        })
    };
    // No device has this address, and no route leads to it.
    match resolve("192.0.2.1:1".parse()?).map_err(|e| e.downcast::<Error>()) {
        Err(Ok(Error::NoRoute { verb: "resolve_addr", .. } | Error::TimedOut { .. })) => {}
        other => bail!("an address without a route: {other:?}"),
    }
    // No program listens.
    let resolved = resolve(server)?;
    let bound = resolved.id().bound()?;
    ensure!(bound.remote == Some(server) && bound.node_guid.is_some(), "{bound:?}");
    let route = resolved.id().route()?.context("a route")?;
    ensure!(route.dgid == uverbs::attr::Gid::from(server.ip()), "{route:?}");
    let name = resolved.device()?.name;
    ensure!(env.dev.contains(&name), "device {name} is not one of {:?}", env.dev);
    match wire::call(resolved, Exchange::Greeting).map_err(|e| e.downcast::<Error>()) {
        Err(Ok(Error::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. })) => {}
        other => bail!("a port without a listener: {other:?}"),
    }
    // The program refuses, with data.
    let listener = at(env, End::A, || Ok(Listener::bind(&manager, server)?))?;
    let in_use = at(env, End::A, || Ok(Listener::bind(&manager, server)?));
    let errno = in_use.err().and_then(|e| e.downcast::<Error>().ok()).map(|e| e.errno().raw());
    ensure!(errno == Some(libc::EADDRINUSE), "{errno:?}");
    thread::scope(|scope| -> Result<()> {
        let thread = scope.spawn(|| -> Result<()> {
            let request = listener.wait(Some(LIMIT))?.context("no request")?;
            Ok(request.reject(b"not today")?)
        });
        let called = wire::call(resolve(server)?, Exchange::Greeting).map_err(|e| e.downcast::<Error>());
        thread.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        match called {
            Err(Ok(Error::Rejected { reason: RejectReason::CONSUMER_DEFINED, private_data, .. })) => {
                ensure!(private_data.starts_with(b"not today"), "{private_data:?}");
                Ok(())
            }
            other => bail!("a program that refuses: {other:?}"),
        }
    })?;
    // Private data that a request can't carry.
    let long = uverbs_cm::ConnParam::with_private_data(vec![1; 57]);
    let refused = resolve(server)?.id().connect(&long).unwrap_err();
    ensure!(refused.to_string().contains("at most 56"), "{refused}");
    // Options.
    let id = at(env, End::B, || Ok(manager.open_another()?.create_id(PortSpace::Tcp)?))?;
    id.set_tos(0x20)?;
    id.set_reuse_addr(true)?;
    id.set_ack_timeout(16)?;
    ensure!(id.set_ack_timeout(32).is_err(), "a timeout of 6 bits");
    let resolved = Resolved::from_id(id, Some(here), server, LIMIT)?;
    let tos = resolved.id().route()?.context("a route")?.traffic_class;
    ensure!(tos == 0x20, "the route's traffic class is {tos:#x}");
    // An identifier is destroyed, and its channel closed, while a thread waits for events.
    let channel = manager.open_another()?;
    let id = channel.create_id(PortSpace::Tcp)?;
    thread::scope(|scope| -> Result<()> {
        let waiter = scope.spawn(|| channel.wait(Some(Duration::from_millis(200))));
        drop(id);
        let event = waiter.join().map_err(|_| anyhow::anyhow!("the waiter panicked"))??;
        ensure!(event.is_none(), "{event:?}");
        Ok(())
    })?;
    // A child of fork(2) neither uses nor destroys the parent's.
    let id = channel.create_id(PortSpace::Tcp)?;
    uverbs_tests::child::in_fork(LIMIT, || {
        let errno = channel.next_event().map(|_| ()).unwrap_err().errno();
        ensure!(errno == uverbs::Errno::ESTALE, "{errno:?}");
        Ok(())
    })?;
    id.close()?;
    Ok(())
}

/// The reasons of rejections on iWARP, which has no numbers for them.
fn rejections(env: &LabEnv, port: u16) -> Outcome {
    let server = address(env, End::A, false, port)?;
    let here = address(env, End::B, false, 0)?;
    let manager = EventChannel::open()?;
    let resolve = || Resolved::with(&manager, PortSpace::Tcp, Some(here), server, LIMIT);
    let call = || {
        resolve()
            .map_err(anyhow::Error::from)
            .and_then(|to| wire::call(to, Exchange::Greeting))
            .map_err(|e| e.downcast::<Error>())
    };
    match call() {
        Err(Ok(Error::Rejected { reason: RejectReason::INVALID_SERVICE_ID, .. })) => {}
        other => bail!("a port without a listener: {other:?}"),
    }
    let listener = Listener::bind(&manager, server)?;
    thread::scope(|scope| -> Result<()> {
        let thread = scope.spawn(|| -> Result<()> {
            let request = listener.wait(Some(LIMIT))?.context("no request")?;
            Ok(request.reject(b"not today")?)
        });
        let called = call();
        thread.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
        match called {
            Err(Ok(Error::Rejected { reason: RejectReason::CONSUMER_DEFINED, private_data, .. })) => {
                ensure!(private_data.starts_with(b"not today"), "{private_data:?}");
                Ok(())
            }
            other => bail!("a program that refuses: {other:?}"),
        }
    })
}

/// Joins and leaves a group. (The kernel has no IPv6 groups on RoCE version 2: it returns `ENOTSUPP`.)
fn groups(env: &LabEnv) -> Outcome {
    let group: SocketAddr = "239.7.7.7:0".parse()?;
    let here = address(env, End::A, false, 0)?;
    let manager = EventChannel::open()?;
    let id = at(env, End::A, || Ok(manager.create_id(PortSpace::Udp)?))?;
    id.bind_addr(here)?;
    for send_only in [false, true] {
        let member = id.join_multicast(group, send_only).context("join")?;
        let event = manager.wait(Some(LIMIT))?.context("no event")?;
        ensure!(event.token == member.token(), "{event:?}");
        let EventKind::MulticastJoin(joined) = event.kind else { bail!("{group}: {event:?}") };
        ensure!(joined.gid() == uverbs::attr::Gid::from(group.ip()), "{joined:?}");
        ensure!(joined.qp_num == 0xff_ffff && joined.qkey != 0, "{joined:?}");
        member.leave()?;
    }
    Ok(())
}
