// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs perf`: measures a link with a peer, which may be perftest, or with itself.
//!
//! This module determines where the two ends are (in this process, or one of them on a device of the machine) and how they
//! reach each other. The other modules: [`options`]; the [`run`] of an end; the exchange with the peer ([`wire`]); the
//! objects of an [`end`], and those of [`dc`]; the loops of [`latency`] and [`bandwidth`] with their [`clock`]; the [`report`]
//! with the [`progress`] before it; and connections by rdma_cm ([`cm`]).

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
mod run;
mod wire;

pub(crate) use options::Args;

use crate::cm::{Line, Side, resolve};
use crate::device;
use crate::patience::{Patience, follows};
use crate::tcp;
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use channel::Channel;
use cm::Exchange;
use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};
use options::{Connection, Plan};
use run::run;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use uverbs::device::DeviceInfo;
use uverbs::mlx5::Mlx5;
use uverbs::{Context, Dci, Driver, DriverVisitor, Rc, Srd, Uc, Ud, XrcSend};
use uverbs_cm::{EventChannel, PortSpace};

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
        let mut stream = match &plan.common.host {
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
        dispatch(&plan, &a, &mut stream, None, (patience, false), &mut crate::Output)
    }
}

/// An end on a device of the machine, which the address of rdma_cm selects, or on the fabric of several processes.
fn by_cm(plan: Plan) -> Result<()> {
    let hca = device::outside(plan.common.ib_dev.as_deref())?;
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
        return uverbs::open_with(hca.open(), ByCm { plan, line, side })?;
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
        let mut exchange = exchange(&context, (&line, side), &patience)?;
        match plan.common.ib_dev.clone().filter(|name| !plan.common.rdma_cm && *name != context.name()) {
            // The exchange and the test may have different devices.
            Some(name) => device::open(Some(&name), Elsewhere { plan, exchange }).flatten(),
            None => {
                let out = &mut crate::Output;
                dispatch(&plan, &context, &mut exchange, Some(&line), (patience, false), out)
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
        let mut exchange = exchange;
        let out = &mut crate::Output;
        dispatch(&plan, &context, &mut exchange, Some(&line), (patience, false), out)
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

/// Both ends in this process, on two software devices with their connection managers.
fn here_by_cm(plan: &Plan) -> Result<()> {
    let [a, b] = device::Software::of_or_first(plan.common.ib_dev.as_deref())?.two()?;
    let (client_manager, server_manager) = (a.connection_manager()?, b.connection_manager()?);
    // The server listens before the client begins.
    let serving = serve(&EventChannel::from_port(server_manager), plan)?;
    let address = (*b.addresses().first().context("the device has no address")?, plan.common.port).into();
    let calling = Line::Call { manager: EventChannel::from_port(client_manager), address };
    both(
        plan,
        |plan, patience, out| uverbs::open_with(b.open(), End { plan, line: &serving, patience, out })?,
        |plan, patience, out| uverbs::open_with(a.open(), End { plan, line: &calling, patience, out })?,
    )
}

/// One of two ends in this process.
struct End<'a> {
    plan: &'a Plan,
    line: &'a Line,
    patience: Patience,
    out: &'a mut dyn Write,
}

impl DriverVisitor for End<'_> {
    type Out = Result<()>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
        let Self { plan, line, patience, out } = self;
        let side = line.side(PortSpace::Tcp, None, patience.left("a connection")?)?;
        let mut exchange = exchange(&context, (line, side), &patience)?;
        dispatch(plan, &context, &mut exchange, Some(line), (patience, true), out)
    }
}

/// Both ends in this process.
fn here<D: Driver>(plan: &Plan, a: &Context<D>, b: &Context<D>) -> Result<()> {
    // Each end closes its stream when it is done.
    let (mut one, mut other) = UnixStream::pair()?;
    both(
        plan,
        move |plan, patience, out| dispatch(plan, b, &mut other, None, (patience, true), out),
        move |plan, patience, out| dispatch(plan, a, &mut one, None, (patience, true), out),
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

/// Runs an end with the transport of the plan.
fn dispatch<D: Driver>(
    plan: &Plan,
    context: &Context<D>,
    stream: &mut dyn Channel,
    line: Option<&Line>,
    wait: (Patience, bool),
    out: &mut dyn Write,
) -> Result<()> {
    match plan.common.connection {
        Connection::Rc => run::<D, Rc>(plan, context, stream, line, wait, out),
        Connection::Uc => run::<D, Uc>(plan, context, stream, line, wait, out),
        Connection::Ud => run::<D, Ud>(plan, context, stream, line, wait, out),
        Connection::Srd => run::<D, Srd>(plan, context, stream, line, wait, out),
        Connection::Xrc => run::<D, XrcSend>(plan, context, stream, line, wait, out),
        // Only this driver has DC.
        Connection::Dc => match (context as &dyn Any).downcast_ref::<Context<Mlx5>>() {
            Some(context) => run::<Mlx5, Dci>(plan, context, stream, line, wait, out),
            None => bail!("devices of the driver {} have no DC", D::NAME),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::options::tests::parse;
    use super::run::has_progress;
    use super::*;

    /// Runs a test in this process and returns the client's result as JSON.
    fn run(line: &str) -> serde_json::Value {
        on(device::tests::hcas(), line)
    }

    fn on<D: Driver>([a, b]: [Context<D>; 2], line: &str) -> serde_json::Value {
        let plan = parse(&format!("{line} --json --timeout 300")).unwrap();
        let mut client = plan.clone();
        client.common.host = Some("here".into());
        let (one, other) = UnixStream::pair().unwrap();
        let wait = |plan: &Plan| (Patience::new(plan.patience()), true);
        let mut out = Vec::new();
        std::thread::scope(|scope| {
            let (plan, b) = (&plan, &b);
            let serve = move || dispatch(plan, b, &mut { one }, None, wait(plan), &mut std::io::sink());
            let server = scope.spawn(serve);
            let client = dispatch(&client, &a, &mut { other }, None, wait(&client), &mut out);
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
    fn every_test_of_efa_runs_on_the_software_efa() {
        for line in [
            "send-lat -c SRD",
            "send-lat -c SRD -e",
            "send-bw -c SRD -s 64",
            "send-bw -c SRD -b -q 2 -l 4",
            "write-bw -c SRD -s 64",
            "write-bw -c SRD -b -q 2",
            "read-lat -c SRD",
            "read-bw -c SRD -s 4096 -l 4",
            "send-lat -c UD",
            "send-bw -c UD -s 64 -l 4",
        ] {
            let value = on(device::tests::efas(), &format!("{line} -n 40"));
            let row = &value["results"][0];
            let figure = if line.contains("lat") { "t_typical" } else { "bw_average" };
            assert!(row[figure].as_f64().is_some_and(|n| n > 0.0), "{line}: {value}");
            assert_eq!(row["iters"], if line.contains("-q 2") { 80 } else { 40 }, "{line}");
        }
        for (line, what) in [
            ("write-lat -c SRD", "any order"),
            ("send-bw -c SRD -Q 4", "each request"),
            ("atomic-bw -c SRD", "atomic"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(what), "{line}: {error}");
        }
        let value = on(device::tests::efas(), "send-bw -n 5 -c SRD -a");
        assert_eq!(
            value["results"].as_array().map(Vec::len),
            Some(13),
            "2 to 8192, below the port's limit: {value}"
        );
    }

    #[test]
    fn options_change_the_run() {
        let lines = [
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
        ];
        let has_a_result = |line| {
            let value = run(line);
            assert_eq!(value["results"].as_array().map(Vec::len), Some(1), "{line}");
            assert!(value["results"][0]["iters"].as_u64() > Some(0), "{line}: {value}");
        };
        // Beside each other: those with -D take a second each.
        std::thread::scope(|scope| lines.map(|line| _ = scope.spawn(move || has_a_result(line))));
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
        let [a, b] = device::tests::hcas();
        // Datagrams without a receive are lost, so the server waits in vain.
        let plan = parse("send-bw -c UD -s 8 -r 8 -n 5000 --json --timeout 1").unwrap();
        let mut client = plan.clone();
        client.common.host = Some("here".into());
        let (one, other) = UnixStream::pair().unwrap();
        let wait = |plan: &Plan| (Patience::new(plan.patience()), true);
        let mut out = Vec::new();
        std::thread::scope(|scope| {
            let (client, a) = (&client, &a);
            let call = move || dispatch(client, a, &mut { one }, None, wait(client), &mut std::io::sink());
            let call = scope.spawn(call);
            dispatch(&plan, &b, &mut { other }, None, wait(&plan), &mut out).unwrap_err();
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
        let [a, b] = device::tests::hcas();
        let plan = parse("send-bw -n 10 --timeout 0 -i 7").unwrap();
        let error = here(&plan, &a, &b).unwrap_err();
        assert!(!error.is::<crate::patience::OtherEndFailed>(), "{error:#}");
    }

    #[test]
    fn the_error_is_that_of_the_end_that_fails_first() {
        let [a, b] = device::tests::hcas();
        // Datagrams without a receive are lost, so the server waits in vain.
        let plan = parse("send-bw -c UD -s 8 -r 8 -n 5000 --json --timeout 2").unwrap();
        let error = format!("{:#}", here(&plan, &a, &b).unwrap_err());
        assert!(error.starts_with("server: 8 bytes: timed out"), "{error}");
    }
}
