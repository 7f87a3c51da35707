// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs perf`: measures a link with a peer, which may be perftest, or with itself.
//!
//! The modules: [`options`]; the exchange with the peer ([`wire`]); the objects of an [`end`], and those of [`dc`]; the loops of [`latency`]
//! and [`bandwidth`] with their [`clock`]; the [`report`] with the [`progress`] before it; and connections by rdma_cm
//! ([`cm`]).

mod bandwidth;
mod carrier;
mod channel;
mod clock;
mod cm;
mod dc;
mod end;
mod latency;
mod options;
mod progress;
mod queues;
mod report;
mod wire;

pub(crate) use options::Args;

use crate::cm::{Line, Side, resolve};
use crate::patience::{OtherEndFailed, Patience};
use crate::tcp;
use crate::{device, limits};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use carrier::Carrier;
use channel::Channel;
use cm::Exchange;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};
use end::{End, Layout};
use options::{Connection, Kind, Plan, Verb};
use progress::Progress;
use report::{Facts, Row};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use uverbs::attr::LinkLayer;
use uverbs::device::DeviceInfo;
use uverbs::mlx5::Mlx5;
use uverbs::{Context, Dci, Driver, DriverVisitor, Rc, Uc, Ud, XrcSend};
use uverbs_cm::{EventChannel, PortSpace};
use uverbs_hca::{Fabric, Hca};
use wire::{Form, Report, Wire};

/// Bytes of the part of a buffer through which short messages move, and of a cache line, before the exchange with the peer.
const CYCLE: u32 = 4096;
const CACHE_LINE: u32 = 64;

/// Runs the subcommand.
pub(crate) fn main(args: Args) -> Result<()> {
    let plan = args.resolve().map_err(|reason| anyhow!("perf: {reason}"))?;
    let name = plan.common.ib_dev.clone();
    let place = format!("perf {}", plan.name().replace('_', "-"));
    if plan.exchanges_by_cm() {
        return if device::is_here(name.as_deref()) { here_by_cm(&plan) } else { by_cm(plan) }.context(place);
    }
    device::open(name.as_deref(), Visit(plan)).flatten().context(place)
}

struct Visit(Plan);

impl device::Visitor for Visit {
    type Out = Result<()>;

    fn visit<D: Driver>(self, [a, b]: [Context<D>; 2], _: Option<DeviceInfo>) -> Result<()> {
        let plan = self.0;
        let is_here = plan.common.loopback || device::is_here(plan.common.ib_dev.as_deref());
        if is_here {
            return here(&plan, &a, &b);
        }
        let patience = Patience::new(plan.patience());
        let stream = match &plan.common.host {
            Some(host) => tcp::dial(host, plan.common.port, &patience)?,
            None => {
                let listener = tcp::listen(plan.common.bind, plan.common.port)?;
                if !plan.common.json && plan.common.output.is_none() {
                    writeln!(crate::Output, "* Waiting for a client on port {} *", plan.common.port)?;
                }
                tcp::accept(&listener, &patience)?
            }
        };
        stream.set_nodelay()?;
        dispatch(&plan, &a, stream, None, (patience, false), &mut crate::Output)
    }
}

/// An end on a device of the machine, which the address of rdma_cm selects, or on the fabric of several processes.
fn by_cm(plan: Plan) -> Result<()> {
    let hca = device::hca_of_fabric(plan.common.ib_dev.as_deref())?;
    let manager = match &hca {
        Some(hca) => EventChannel::from_port(hca.connection_manager()?),
        None => crate::cm::open()?,
    };
    let line = match &plan.common.host {
        Some(host) => Line::Call { manager, address: resolve(host, plan.common.port)? },
        None => {
            let line = serve(&manager, &plan)?;
            if !plan.common.json && plan.common.output.is_none() {
                // The network of a fabric has addresses of its own.
                let ip = hca.as_ref().and_then(|hca| hca.addresses().first().copied());
                let at = ip.map_or(String::new(), |ip| format!("{ip}, "));
                writeln!(crate::Output, "* Waiting for a client on {at}port {} *", plan.common.port)?;
            }
            line
        }
    };
    let side = line.side(PortSpace::Tcp, None, plan.patience())?;
    if let Some(hca) = hca {
        let context = Context::<Mlx5>::from_kernel(hca.open())?;
        return ByCm { plan, line, side }.visit(context);
    }
    let info = side.device()?;
    if let Some(name) = plan.common.ib_dev.as_deref().filter(|name| plan.common.rdma_cm && *name != info.name)
    {
        // As perftest does.
        log::warn!("rdma_cm selects {} for this address, not {name}", info.name);
    }
    uverbs::open_with(&info, ByCm { plan, line, side }).map_err(Into::into).flatten()
}

/// The server's listeners: that of the exchange, and of datagrams, which have their own ports.
fn serve(manager: &EventChannel, plan: &Plan) -> Result<Line> {
    let has_datagrams = plan.port_space() == PortSpace::Udp && plan.common.rdma_cm;
    let spaces = [PortSpace::Tcp, PortSpace::Udp];
    let spaces = if has_datagrams { &spaces[..] } else { &spaces[..1] };
    Line::serve(manager, spaces, plan.common.bind, plan.common.port)
}

/// The run on an open device, compiled for each driver.
struct ByCm {
    plan: Plan,
    line: Line,
    side: Side,
}

impl DriverVisitor for ByCm {
    type Out = Result<()>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
        let Self { plan, line, side } = self;
        let patience = Patience::new(plan.patience());
        let exchange = exchange(&context, (&line, side), &patience)?;
        match plan.common.ib_dev.clone().filter(|name| !plan.common.rdma_cm && *name != context.name()) {
            // The exchange and the test may have different devices.
            Some(name) => device::open(Some(&name), Elsewhere { plan, exchange }).flatten(),
            None => {
                let out = &mut crate::Output;
                dispatch(&plan, &context, exchange, Some(&line), (patience, false), out)
            }
        }
    }
}

/// A test on another device than that of its exchange.
struct Elsewhere<D: Driver> {
    plan: Plan,
    exchange: Exchange<D>,
}

impl<D: Driver> device::Visitor for Elsewhere<D> {
    type Out = Result<()>;

    fn visit<E: Driver>(self, [context, _]: [Context<E>; 2], _: Option<DeviceInfo>) -> Result<()> {
        let Self { plan, exchange } = self;
        // The line connects only with --rdma_cm.
        let line = Line::Serve(Vec::new());
        let patience = Patience::new(plan.patience());
        // One type of streams for all drivers.
        let mut exchange: Box<dyn Channel> = Box::new(exchange);
        let out = &mut crate::Output;
        dispatch(&plan, &context, &mut *exchange, Some(&line), (patience, false), out)
    }
}

/// Establishes the connection of the exchange.
fn exchange<D: Driver>(
    context: &Context<D>,
    (line, side): (&Line, Side),
    patience: &Patience,
) -> Result<Exchange<D>> {
    let mut side = Some(side);
    cm::retry(|| {
        let side = match side.take() {
            Some(side) => side,
            None => line.side(PortSpace::Tcp, None, patience.left("a connection")?)?,
        };
        Exchange::new(context, side, patience.clone())
    })
}

/// Both ends in this process, on two software HCAs with their connection managers.
fn here_by_cm(plan: &Plan) -> Result<()> {
    let fabric = Fabric::new(0);
    let [a, b] = [(); 2].map(|()| fabric.device(device::SOFTWARE).build());
    let (client_manager, server_manager) = (a.connection_manager()?, b.connection_manager()?);
    // The server listens before the client begins.
    let serving = serve(&EventChannel::from_port(server_manager), plan)?;
    let address = (*b.addresses().first().context("the device has no address")?, plan.common.port).into();
    let calling = Line::Call { manager: EventChannel::from_port(client_manager), address };
    let end = |plan: &Plan, hca: &Hca, line: &Line, patience: Patience, out: &mut dyn Write| {
        let context = Context::<Mlx5>::from_kernel(hca.open())?;
        let side = line.side(PortSpace::Tcp, None, patience.left("a connection")?)?;
        let exchange = exchange(&context, (line, side), &patience)?;
        dispatch(plan, &context, exchange, Some(line), (patience, true), out)
    };
    both(
        plan,
        |plan, patience, out| end(plan, &b, &serving, patience, out),
        |plan, patience, out| end(plan, &a, &calling, patience, out),
    )
}

/// Both ends in this process.
fn here<D: Driver>(plan: &Plan, a: &Context<D>, b: &Context<D>) -> Result<()> {
    let (one, other) = UnixStream::pair()?;
    both(
        plan,
        |plan, patience, out| dispatch(plan, b, other, None, (patience, true), out),
        |plan, patience, out| dispatch(plan, a, one, None, (patience, true), out),
    )
}

/// Runs both ends in this process. Only the client prints.
fn both(
    plan: &Plan,
    serve: impl FnOnce(&Plan, Patience, &mut dyn Write) -> Result<()> + Send,
    call: impl FnOnce(&Plan, Patience, &mut dyn Write) -> Result<()>,
) -> Result<()> {
    ensure!(!plan.is_client(), "both ends are in this process: HOST is not allowed");
    let (mut server, mut client) = (plan.clone(), plan.clone());
    server.common.loopback = true;
    client.common.host = Some("here".to_owned());
    let has_failed = Arc::new(AtomicBool::new(false));
    // The other end must not wait for an end that has failed.
    let patience = || Patience::new(plan.patience()).or_failure(has_failed.clone());
    let ended = |result: Result<()>, end: &'static str| {
        has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
        result.context(end)
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(|| ended(serve(&server, patience(), &mut std::io::sink()), "server"));
        let client = ended(call(&client, patience(), &mut crate::Output), "client");
        let server = server.join().map_err(|_| anyhow!("the server panicked"))?;
        match (client, server) {
            // The server's error is the reason.
            (Err(client), Err(server)) if follows(&client) && !follows(&server) => Err(server),
            (client, server) => client.and(server),
        }
    })
}

/// Whether an error only shows that the other end has failed: it says so, or has closed the stream of the exchange.
fn follows(error: &anyhow::Error) -> bool {
    let kind = error.chain().find_map(|e| e.downcast_ref::<std::io::Error>()).map(std::io::Error::kind);
    let is_closed = |kind| {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        matches!(kind, BrokenPipe | ConnectionReset | UnexpectedEof)
    };
    error.is::<OtherEndFailed>() || kind.is_some_and(is_closed)
}

/// Runs an end with the transport of the plan.
fn dispatch<D: Driver>(
    plan: &Plan,
    context: &Context<D>,
    stream: impl Channel,
    line: Option<&Line>,
    wait: (Patience, bool),
    out: &mut dyn Write,
) -> Result<()> {
    match plan.common.connection {
        Connection::Rc => run::<D, Rc>(plan, context, stream, line, wait, out),
        Connection::Uc => run::<D, Uc>(plan, context, stream, line, wait, out),
        Connection::Ud => run::<D, Ud>(plan, context, stream, line, wait, out),
        Connection::Xrc => run::<D, XrcSend>(plan, context, stream, line, wait, out),
        // Only this driver has DC.
        Connection::Dc => match (context as &dyn Any).downcast_ref::<Context<Mlx5>>() {
            Some(context) => run::<Mlx5, Dci>(plan, context, stream, line, wait, out),
            None => bail!("devices of the driver {} have no DC", D::NAME),
        },
    }
}

/// Runs an end: exchange, connection, a test for each size, report.
fn run<D: Driver, T: Carrier<D>>(
    plan: &Plan,
    context: &Context<D>,
    stream: impl Channel,
    line: Option<&Line>,
    wait: (Patience, bool),
    out: &mut dyn Write,
) -> Result<()> {
    let common = &plan.common;
    let port = limits::port(context, common.ib_port)?;
    let is_ethernet = port.link_layer == LinkLayer::ETHERNET;
    let sgid_index = device::gid_index(context, common.ib_port, ("--gid-index", common.gid_index))?;
    let last_pkey = u32::from(port.pkey_tbl_len).saturating_sub(1);
    limits::at_most("--pkey_index", common.pkey_index.into(), last_pkey, "the port's table")?;
    ensure!(
        is_ethernet || port.lid != 0 || sgid_index.is_some(),
        "the port has no LID: is a subnet manager running?"
    );
    let reads = match plan.verb {
        Verb::Read | Verb::Atomic => {
            let most = u8::try_from(context.query_device()?.max_qp_rd_atom).unwrap_or(u8::MAX);
            common.outs.map_or(most, |outs| outs.min(most)).max(1)
        }
        Verb::Send | Verb::Write => 1,
    };

    let form = match line {
        Some(_) => Form::Struct,
        None => Form::Text { has_gid: sgid_index.is_some() },
    };
    let mut wire = Wire::new(stream, plan.is_client(), form);
    wire.versions()?;
    let (cycle, cache_line) = wire.system(CYCLE, CACHE_LINE)?;
    let active = port.active_mtu;
    let mtu = wire.mtu(common.mtu.filter(|mtu| mtu.bytes() < active.bytes()).unwrap_or(active))?;
    let sizes = plan.sizes(mtu.bytes().unwrap_or(256)).map_err(|reason| anyhow!(reason))?;
    let largest = sizes.iter().copied().max().unwrap_or(plan.size);
    limits::at_most("--size", largest, port.max_msg_sz, "messages of the port")?;
    let attr = end::connect_attr(plan, mtu, sgid_index, reads);
    let mut end = End::<D, T>::new(context, plan, attr, Layout::new(cycle, cache_line, largest), wait)?;
    end.cqs.watch = Some(wire.stream().watch()?);

    let facts = Facts {
        device: context.name(),
        driver: D::NAME,
        mtu,
        is_ethernet,
        sgid_index,
        inline: end.inline,
        reads,
    };
    let mut table = Table { plan, facts: &facts, out, rows: Vec::new(), missed: None };
    table.begin()?;
    let mine = end.keys.clone();
    if let Some(line) = line.filter(|_| plan.common.rdma_cm) {
        // perftest's server listens again between these two.
        wire.sync(&[])?;
        end.connect_by_cm(line, plan)?;
        wire.sync(&[])?;
    }
    // perftest's programs differ in where they wait for each other.
    let is_send = plan.verb == Verb::Send;
    if plan.kind == Kind::Latency && !is_send {
        wire.sync(&mine)?;
    }
    let theirs = wire.all_keys(&mine)?;
    end.connect(&theirs)?;
    if is_send {
        wire.sync(&mine)?;
    }
    // A DC target has got its number.
    let mine = end.keys.clone();
    let theirs = wire.all_keys(&mine)?;
    end.renew(&theirs);
    table.addresses(&mine, &theirs)?;
    if !is_send {
        wire.sync(&mine)?;
    }
    wire.stream().set_limit(plan.patience_of_exchange())?;
    let result = match plan.kind {
        Kind::Latency => latency_tests(&mut end, &mut wire, &mut table, &sizes),
        Kind::Bandwidth => bandwidth_tests(&mut end, &mut wire, &mut table, &sizes),
    };
    if let Err(error) = result {
        table.failed(&error);
        return Err(error);
    }
    table.end()?;
    // In this test the last message shows each end that the other one is done.
    if (plan.verb, plan.kind) != (Verb::Write, Kind::Latency) {
        wire.close(&mine)?;
    }
    match table.missed {
        Some(missed) => Err(anyhow!(missed)),
        None => Ok(()),
    }
}

/// The output of an end.
struct Table<'a> {
    plan: &'a Plan,
    facts: &'a Facts<'a>,
    out: &'a mut dyn Write,
    rows: Vec<serde_json::Value>,
    /// The first limit that a row did not reach.
    missed: Option<String>,
}

impl Table<'_> {
    fn has_text(&self) -> bool {
        !self.plan.common.json && self.plan.common.output.is_none()
    }

    fn begin(&mut self) -> Result<()> {
        if self.has_text() {
            report::parameters(self.out, self.plan, self.facts)?;
        }
        Ok(())
    }

    fn addresses(&mut self, mine: &[wire::Keys], theirs: &[wire::Keys]) -> Result<()> {
        if self.has_text() {
            report::addresses(self.out, self.plan, "local", mine)?;
            report::addresses(self.out, self.plan, "remote", theirs)?;
            report::heading(self.out, self.plan)?;
        }
        Ok(())
    }

    fn row(&mut self, row: &Row) -> Result<()> {
        self.missed = self.missed.take().or_else(|| report::missed(self.plan, row));
        if let Some(output) = self.plan.common.output {
            writeln!(self.out, "{:.6}", report::figure(self.plan, output, row))?;
        } else if self.plan.common.json {
            self.rows.push(report::row_json(self.plan, row)?);
        } else {
            report::row(self.out, self.plan, row)?;
        }
        Ok(())
    }

    /// Prints the results before the error of a test. Rows of text have been printed.
    fn failed(&mut self, error: &anyhow::Error) {
        if self.plan.common.json {
            let mut value = report::json(self.plan, self.facts, core::mem::take(&mut self.rows));
            value["error"] = format!("{error:#}").into();
            // The error of the test is the one that is reported.
            let _ = writeln!(self.out, "{value:#}");
        }
    }

    fn end(&mut self) -> Result<()> {
        if self.plan.common.json {
            let value = report::json(self.plan, self.facts, core::mem::take(&mut self.rows));
            writeln!(self.out, "{value:#}")?;
        } else if self.has_text() {
            report::end(self.out)?;
        }
        Ok(())
    }
}

/// Whether this end prints the progress: of two in this process, the client.
fn has_progress(plan: &Plan) -> bool {
    plan.is_client() || !plan.common.loopback
}

/// The progress of a test of this size, if this end prints it.
fn progress(plan: &Plan, bytes: u32, messages: u64) -> Progress {
    let total = if plan.duration.is_some() { 0 } else { messages };
    Progress::new(total, format!("{} {bytes} bytes", plan.name()), has_progress(plan))
}

/// Posts the receives of all QPs.
fn post_receives<D: Driver, T: Carrier<D>>(end: &mut End<D, T>, plan: &Plan, bytes: u32) -> Result<()> {
    for i in end.receivers() {
        end.post_recv(i, bytes, plan.rx_depth)?;
    }
    Ok(())
}

fn latency_tests<D: Driver, T: Carrier<D>, S: Read + Write>(
    end: &mut End<D, T>,
    wire: &mut Wire<S>,
    table: &mut Table<'_>,
    sizes: &[u32],
) -> Result<()> {
    let plan = table.plan;
    if !plan.is_client() && matches!(plan.verb, Verb::Read | Verb::Atomic) {
        return Ok(());
    }
    for bytes in sizes.iter().copied() {
        if plan.verb == Verb::Send {
            post_receives(end, plan, bytes)?;
            wire.sync(&end.keys)?;
        }
        let progress = progress(plan, bytes, plan.iters.into());
        let times = latency::run(end, plan, bytes, &progress).with_context(|| format!("{bytes} bytes"))?;
        drop(progress);
        table.row(&Row::Latency(bytes, times))?;
    }
    Ok(())
}

fn bandwidth_tests<D: Driver, T: Carrier<D>, S: Read + Write>(
    end: &mut End<D, T>,
    wire: &mut Wire<S>,
    table: &mut Table<'_>,
    sizes: &[u32],
) -> Result<()> {
    let plan = table.plan;
    let is_send = plan.verb == Verb::Send;
    let mut last = Report::default();
    if let Some(role) = bandwidth::Role::of(plan) {
        for bytes in sizes.iter().copied() {
            if role.receives {
                post_receives(end, plan, bytes)?;
            }
            if is_send || plan.bidirectional {
                wire.sync(&end.keys)?;
            }
            let progress = progress(plan, bytes, u64::from(plan.iters) * plan.num_qp as u64);
            let ran = bandwidth::run(end, plan, role, bytes, &progress);
            last = ran.with_context(|| format!("{bytes} bytes"))?;
            drop(progress);
            // perftest's order: writes and reads of all sizes wait before the reports, sends after them.
            if plan.common.all && plan.bidirectional && !is_send {
                wire.sync(&end.keys)?;
            }
            let is_exchanged = plan.bidirectional && !(is_send && plan.duration.is_some());
            let theirs = if is_exchanged { Some(wire.report(&last)?) } else { None };
            table.row(&Row::Bandwidth(last, theirs))?;
            if plan.common.all && is_send {
                wire.sync(&end.keys)?;
            }
        }
    }
    if !is_send && !plan.bidirectional {
        // The server waits here until the client is done, and prints its last result.
        wire.sync(&end.keys)?;
        let theirs = wire.report(&last)?;
        if !plan.is_client() {
            table.row(&Row::Bandwidth(theirs, None))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::options::tests::parse;
    use super::*;

    /// Runs a test in this process and returns the client's result as JSON.
    fn run(line: &str) -> serde_json::Value {
        let [a, b] = device::software().unwrap();
        let plan = parse(&format!("{line} --json --timeout 300")).unwrap();
        let mut client = plan.clone();
        client.common.host = Some("here".into());
        let (one, other) = UnixStream::pair().unwrap();
        let wait = |plan: &Plan| (Patience::new(plan.patience()), true);
        let mut out = Vec::new();
        std::thread::scope(|scope| {
            let server = scope.spawn(|| dispatch(&plan, &b, one, None, wait(&plan), &mut std::io::sink()));
            let client = dispatch(&client, &a, other, None, wait(&client), &mut out);
            let server = server.join().unwrap();
            client.and(server).with_context(|| line.to_owned()).unwrap();
        });
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn every_test_runs_on_the_software_hca() {
        for test in ["send", "write", "read", "atomic"] {
            for connection in ["RC", "UC", "UD", "XRC", "DC"] {
                for (kind, options) in
                    [("lat", ""), ("bw", ""), ("bw", "-b -q 2 -Q 3"), ("bw", "-l 4 -n 40 -N")]
                {
                    let size = if test == "atomic" { "" } else { "-s 100" };
                    let line = format!("{test}-{kind} -c {connection} {size} -n 40 {options}");
                    if parse(&line).is_err() {
                        continue;
                    }
                    let value = run(&line);
                    let row = &value["results"][0];
                    let figure = if kind == "lat" { "t_typical" } else { "bw_average" };
                    assert!(row[figure].as_f64().is_some_and(|n| n > 0.0), "{line}: {value}");
                    let expected = if options.contains("-q 2") { 80 } else { 40 };
                    assert_eq!(row["iters"], expected, "{line}");
                }
            }
        }
    }

    #[test]
    fn options_change_the_run() {
        for line in [
            "send-bw -n 40 --use-srq -q 3 -e",
            "send-lat -n 40 -e",
            "send-lat -n 40 -c UD -I 0",
            "send-lat -n 40 -t 8 -r 8",
            "read-lat -n 40 -e -o 1",
            "atomic-bw -n 40 -A CMP_AND_SWAP -q 2",
            "write-bw -n 40 -I 64 -s 64 --report_gbits",
            "send-bw -n 90 -r 16 --recv_post_list 8 -s 64 -q 2",
            "send-bw -n 40 -c UD -s 64 --flow_label 1000",
            "write-lat -D 1",
            "send-bw -D 1 -s 64",
            "send-bw -D 1 -s 64 -b",
            "write-bw -D 1",
        ] {
            let value = run(line);
            assert_eq!(value["results"].as_array().map(Vec::len), Some(1), "{line}");
            assert!(value["results"][0]["iters"].as_u64() > Some(0), "{line}: {value}");
        }
        let value = run("send-bw -n 5 -c UD -a");
        assert_eq!(value["results"].as_array().map(Vec::len), Some(12), "2 to the MTU of 4096");
        let value = run("write-bw -n 5 -a -b");
        assert_eq!(value["results"].as_array().map(Vec::len), Some(23));
    }

    #[test]
    fn one_end_prints_the_progress() {
        let plan = parse("send-bw -d hca0").unwrap();
        let server = |plan: &Plan, _: Patience, _: &mut dyn Write| {
            assert!(!has_progress(plan) && !plan.is_client());
            Ok(())
        };
        let client = |plan: &Plan, _: Patience, _: &mut dyn Write| {
            assert!(has_progress(plan) && plan.is_client());
            Ok(())
        };
        both(&plan, server, client).unwrap();
        assert!(has_progress(&plan), "a server on its own");
    }

    #[test]
    fn json_has_the_error_of_a_test() {
        let [a, b] = device::software().unwrap();
        // Datagrams without a receive are lost, so the server waits in vain.
        let plan = parse("send-bw -c UD -s 8 -r 8 -n 5000 --json --timeout 2").unwrap();
        let mut client = plan.clone();
        client.common.host = Some("here".into());
        let (one, other) = UnixStream::pair().unwrap();
        let wait = |plan: &Plan| (Patience::new(plan.patience()), true);
        let mut out = Vec::new();
        std::thread::scope(|scope| {
            let call = scope.spawn(|| dispatch(&client, &a, one, None, wait(&client), &mut std::io::sink()));
            dispatch(&plan, &b, other, None, wait(&plan), &mut out).unwrap_err();
            call.join().unwrap().unwrap_err();
        });
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert!(value["error"].as_str().is_some_and(|text| text.contains("timed out")), "{value}");
        assert_eq!(
            (value["test"].as_str(), value["results"].as_array().map(Vec::len)),
            (Some("send_bw"), Some(0))
        );
    }

    #[test]
    fn an_end_that_fails_ends_the_other() {
        let [a, b] = device::software().unwrap();
        let plan = parse("send-bw -n 10 --timeout 0 -i 7").unwrap();
        let error = here(&plan, &a, &b).unwrap_err();
        assert!(!error.is::<OtherEndFailed>(), "{error:#}");
    }

    #[test]
    fn the_error_is_that_of_the_end_that_fails_first() {
        let [a, b] = device::software().unwrap();
        // Datagrams without a receive are lost, so the server waits in vain.
        let plan = parse("send-bw -c UD -s 8 -r 8 -n 5000 --json --timeout 2").unwrap();
        let error = format!("{:#}", here(&plan, &a, &b).unwrap_err());
        assert!(error.starts_with("server: 8 bytes: timed out"), "{error}");
    }
}
