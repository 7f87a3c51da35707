// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs pingpong`: exchanges messages with rdma-core's C programs or with itself.
//!
//! The modules: [`options`]; [`exchange`] of endpoints over TCP; the [`buffer`] and its [`pattern`]; the
//! [`completions`]; the counts and their rules ([`ledger`]); the loop ([`drive`]); the [`report`]; and the queues of
//! each transport in [`rc_uc`], [`ud`] (SRD, too) and [`srq`], which post through [`message`]. [`cm`]: connected by rdma_cm.

mod buffer;
mod cm;
mod completions;
mod drive;
mod exchange;
mod ledger;
mod message;
mod options;
mod pattern;
mod rc_uc;
mod report;
mod srq;
mod timestamps;
mod ud;

pub(crate) use options::Args;

use crate::patience::{Patience, follows};
use crate::{device, limits, tcp};
use anyhow::{Context as _, Result, bail};
use buffer::Buffer;
use completions::Completions;
use core::hash::{BuildHasher, Hasher};
use core::sync::atomic::Ordering;
use drive::{Plan, Queues};
use message::Message;
use options::{Options, Program};
use report::{EndpointRole, Figures};
use std::hash::RandomState;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use uverbs::attr::{DeviceAttr, Gid, LinkLayer, OdpGeneralCaps, OdpTransportCaps, PortAttr};
use uverbs::device::DeviceInfo;
use uverbs::{
    ConnectAttr, Context, Driver, DriverVisitor, Endpoint, Error, ProtectionDomain, Rc, Srd, Uc, Ud,
};

/// Runs the subcommand.
pub(crate) fn main(args: Args) -> Result<()> {
    let options = args.resolve().map_err(|reason| anyhow::anyhow!("pingpong: {reason}"))?;
    let name = options.common.ib_dev.as_deref();
    if options.common.cm {
        return cm::main(options);
    }
    if device::is_here(name) {
        return here(options).context("on the software device");
    }
    let name = options.common.ib_dev.clone();
    device::open(name.as_deref(), Alone(options)).flatten()
}

/// One end in this process.
struct Alone(Options);

impl device::Visitor for Alone {
    type Out = Result<()>;

    fn visit<D: Driver>(self, [context, _]: [Context<D>; 2], _: Option<DeviceInfo>) -> Result<()> {
        let Self(options) = self;
        let place =
            format!("{} on {} port {}", options.program.name(), context.name(), options.common.ib_port);
        Visit(options).visit(context).context(place)
    }
}

/// Both ends in this process, on two software devices. Only the client prints.
fn here(options: Options) -> Result<()> {
    device::Software::of_or_first(options.common.ib_dev.as_deref())?.here(Both(options)).flatten()
}

/// Both ends in this process.
struct Both(Options);

impl device::Visitor for Both {
    type Out = Result<()>;

    fn visit<D: Driver>(self, [a, b]: [Context<D>; 2], _: Option<DeviceInfo>) -> Result<()> {
        let [server, client] = ends(self.0)?;
        both(server, client, |server| Visit(server).visit(b), |client| Visit(client).visit(a))
    }
}

/// The options of the server and of the client, if both are in this process.
fn ends(options: Options) -> Result<[Options; 2]> {
    if options.is_client() {
        bail!("both ends are in this process: HOST is not allowed");
    }
    let (one, other) = UnixStream::pair()?;
    let mut server = options.clone();
    server.here = Some(Arc::new(one));
    let mut client = options;
    (client.here, client.common.host) = (Some(Arc::new(other)), Some("here".to_owned()));
    Ok([server, client])
}

/// Runs both ends in this process.
fn both(
    server: Options,
    client: Options,
    serve: impl FnOnce(Options) -> Result<()> + Send,
    call: impl FnOnce(Options) -> Result<()>,
) -> Result<()> {
    let has_failed = client.has_failed.clone();
    // The other end must not wait for messages of an end that has failed.
    let ended = |result: Result<()>, end: &'static str| {
        has_failed.fetch_or(result.is_err(), Ordering::Relaxed);
        result.context(end)
    };
    std::thread::scope(|scope| {
        let server = scope.spawn(|| ended(serve(server), "server"));
        let client = ended(call(client), "client");
        let server = server.join().map_err(|_| anyhow::anyhow!("the server panicked"))?;
        match (client, server) {
            // The server's error is the reason.
            (Err(client), Err(server)) if follows(&client) && !follows(&server) => Err(server),
            (client, server) => client.and(server),
        }
    })
}

/// The run on an open device, compiled for each driver.
struct Visit(Options);

impl DriverVisitor for Visit {
    type Out = Result<()>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
        let mut options = self.0;
        let common = &mut options.common;
        let (device, port) = (context.query_device()?, limits::port(&context, common.ib_port)?);
        common.gid_idx = device::gid_index(&context, common.ib_port, ("--gid-idx", common.gid_idx))?;
        let attr = connect_attr(&options, &port)?;
        let Objects { pd, buffer, completions, message } = Objects::new(&context, &options, &device, &port)?;
        let table = Table { context: &context, options: &options, device: &device, port: &port, buffer };
        match options.program {
            Program::Rc => {
                let queues = rc_uc::OneConnected::<D, Rc>::new(&pd, &completions, message, &options, attr)?;
                table.play(completions, queues)?;
            }
            Program::Uc => {
                let queues = rc_uc::OneConnected::<D, Uc>::new(&pd, &completions, message, &options, attr)?;
                table.play(completions, queues)?;
            }
            Program::Ud => {
                let queues = ud::Datagrams::<D, Ud>::new(&pd, &completions, message, &options, attr)?;
                table.play(completions, queues)?;
            }
            Program::Srd => {
                let queues = ud::Datagrams::<D, Srd>::new(&pd, &completions, message, &options, attr)?;
                table.play(completions, queues)?;
            }
            Program::Srq => {
                let queues = srq::SharedReceives::new(&pd, &completions, message, &options, attr)?;
                table.play(completions, queues)?;
            }
        }
        pd.close().map_err(|(_, error)| error).context("cannot deallocate the protection domain")
    }
}

/// The attributes of the connection, as in the C programs.
fn connect_attr(options: &Options, port: &PortAttr) -> Result<ConnectAttr> {
    let common = &options.common;
    if port.link_layer != LinkLayer::ETHERNET && port.lid == 0 && common.gid_idx.is_none() {
        bail!("the port has no LID: is a subnet manager running?");
    }
    Ok(ConnectAttr::new()
        .port_num(common.ib_port)
        .sgid_index(common.gid_idx)
        .path_mtu(options.mtu)
        .sl(common.sl)
        .hop_limit(if options.program.is_datagram() { ud::HOP_LIMIT } else { 1 }))
}

/// The objects of a run that do not depend on the transport.
struct Objects<D: Driver> {
    pd: ProtectionDomain<D>,
    buffer: Arc<Buffer<D>>,
    completions: Completions<D>,
    message: Message<D>,
}

impl<D: Driver> Objects<D> {
    fn new(context: &Context<D>, options: &Options, device: &DeviceAttr, port: &PortAttr) -> Result<Self> {
        check_memory(options, device, context.name())?;
        let pd = context.alloc_pd()?;
        let offset = if options.program == Program::Ud { buffer::GRH_LEN } else { 0 };
        check_size(options, port)?;
        let buffer = Arc::new(Buffer::new(&pd, options, offset)?);
        let cqe = options.common.rx_depth.saturating_add(options.num_qp.into());
        let completions = Completions::new(context, device, options, cqe)?;
        let message = Message::new(&buffer, options.common.new_send)?;
        Ok(Self { pd, buffer, completions, message })
    }
}

/// Checks that the device has the requested kind of memory.
fn check_memory(options: &Options, device: &DeviceAttr, name: &str) -> Result<()> {
    if options.memory.dm {
        return Err(Error::unsupported("alloc_dm", "device memory (-j) is not implemented").into());
    }
    if options.memory.odp {
        let receives =
            if options.program == Program::Srq { OdpTransportCaps::SRQ_RECV } else { OdpTransportCaps::RECV };
        let has_odp = device.odp_caps.general_caps.contains(OdpGeneralCaps::SUPPORT);
        if !has_odp || !device.odp_caps.rc_odp_caps.contains(OdpTransportCaps::SEND | receives) {
            let what = format!("{name} has no on-demand paging for sends and receives of RC (-o)");
            return Err(Error::unsupported("reg_mr", what).into());
        }
    }
    Ok(())
}

/// Checks the size of a message. A datagram is one packet.
fn check_size(options: &Options, port: &PortAttr) -> Result<()> {
    match port.active_mtu.bytes() {
        _ if options.program != Program::Ud => {
            limits::at_most("--size", options.size, port.max_msg_sz, "messages of the port")
        }
        Some(mtu) => limits::at_most("--size", options.size, mtu, "datagrams, the port's MTU,"),
        None => Err(Error::protocol("query_port", format!("active_mtu {:?}", port.active_mtu)).into()),
    }
}

/// The error of a verb that creates queues, with the options of a ping-pong.
fn by_option(error: Error) -> anyhow::Error {
    const DEPTH: &str = "--rx-depth";
    limits::by_option(error, &[("max_recv_wr", DEPTH), ("max_wr", DEPTH), ("cqe", DEPTH)])
}

/// The objects of a run, besides its queues.
struct Table<'a, D: Driver> {
    context: &'a Context<D>,
    options: &'a Options,
    device: &'a DeviceAttr,
    port: &'a PortAttr,
    buffer: Arc<Buffer<D>>,
}

impl<D: Driver> Table<'_, D> {
    /// Connects to the peer, runs, reports, and closes everything.
    fn play<Q: Queues>(self, mut completions: Completions<D>, mut queues: Q) -> Result<()> {
        let Self { context, options, port, .. } = self;
        let common = &options.common;
        let patience = self.patience();
        let mut out = self.output();
        queues.post_recv(common.rx_depth)?;
        completions.arm()?;
        let local = endpoints(context, options, port, &queues.qp_nums())?;
        let mut print_endpoints = |role: EndpointRole, endpoints: &[Endpoint]| -> Result<()> {
            if !common.json {
                for e in endpoints {
                    writeln!(out, "{}", report::endpoint_line(options.program, role, e))?;
                }
            }
            Ok(())
        };
        print_endpoints(EndpointRole::Local, &local)?;
        let remote = meet(options, &mut queues, &local, &patience)?;
        print_endpoints(EndpointRole::Remote, &remote)?;
        if options.is_client() {
            queues.connect(&local, &remote)?;
        }
        self.exchange(&mut out, completions, queues, patience, (&local, &remote))
    }

    /// The limit of waits.
    fn patience(&self) -> Patience {
        let patience = Patience::new(self.options.patience());
        match self.options.here {
            Some(_) => patience.or_failure(self.options.has_failed.clone()),
            None => patience,
        }
    }

    /// Where this end prints.
    fn output(&self) -> Box<dyn Write> {
        if self.options.is_silent() { Box::new(std::io::sink()) } else { Box::new(crate::Output) }
    }

    /// Runs on connected queues, reports, and closes everything.
    fn exchange<Q: Queues>(
        self,
        out: &mut dyn Write,
        mut completions: Completions<D>,
        mut queues: Q,
        mut patience: Patience,
        (local, remote): (&[Endpoint], &[Endpoint]),
    ) -> Result<()> {
        let Self { context, options, device, buffer, .. } = self;
        let common = &options.common;
        patience.renew();
        let plan = Plan {
            iters: common.iters,
            rx_depth: common.rx_depth,
            is_client: options.is_client(),
            timestamp_mask: common.ts.then_some(device.completion_timestamp_mask),
        };
        let outcome = drive::play(&plan, &mut completions, &mut queues, &mut patience)?;
        let figures = Figures::new(options, &outcome);
        if common.json {
            let value = report::json(options, context.name(), (local, remote), &figures, &outcome);
            writeln!(out, "{value:#}")?;
        } else {
            report::text(out, &figures, &outcome)?;
        }

        // The queues are closed before the data is checked, so that no WR is outstanding.
        queues.close()?;
        completions.close()?;
        let checked = if common.chk { buffer.check() } else { Ok(()) };
        Buffer::close(buffer)?;
        checked
    }
}

/// This side's endpoints, one for each QP, with random packet sequence numbers.
fn endpoints<D: Driver>(
    context: &Context<D>,
    options: &Options,
    port: &PortAttr,
    qp_nums: &[u32],
) -> Result<Vec<Endpoint>> {
    let gid = match options.common.gid_idx {
        Some(index) => context.query_gid(options.common.ib_port, index.into())?,
        None => Gid::ZERO,
    };
    // Each state has a new seed from the system's random numbers.
    let psn = || RandomState::new().build_hasher().finish() as u32 & 0xff_ffff;
    Ok(qp_nums.iter().map(|qp_num| Endpoint { lid: port.lid, qp_num: *qp_num, psn: psn(), gid }).collect())
}

/// Exchanges endpoints, and returns those of the peer's QPs. The server's queues are then connected; the client's are
/// not.
fn meet<Q: Queues>(
    options: &Options,
    queues: &mut Q,
    local: &[Endpoint],
    patience: &Patience,
) -> Result<Vec<Endpoint>> {
    let common = &options.common;
    let num_qp = local.len();
    let mut mine = local.to_vec();
    mine.resize(queues.num_endpoints().max(num_qp), Endpoint::default());
    let theirs = match (&options.here, &common.host) {
        (Some(stream), Some(_)) => exchange::as_client(&**stream, &mine)?,
        (Some(stream), None) => exchange::as_server(&**stream, &mine, |theirs| {
            queues.connect(local, exchange::in_use(theirs, num_qp)?)
        })?,
        (None, Some(host)) => exchange::as_client(tcp::dial(host, common.port, patience)?, &mine)?,
        (None, None) => {
            let stream = tcp::accept(&tcp::listen(common.bind, common.port)?, patience)?;
            exchange::as_server(stream, &mine, |theirs| {
                queues.connect(local, exchange::in_use(theirs, num_qp)?)
            })?
        }
    };
    Ok(exchange::in_use(&theirs, num_qp)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use uverbs::attr::Mtu;

    #[test]
    fn a_datagram_must_fit_into_a_packet() {
        let check = |line: &str, port| check_size(&options::tests::parse(line).unwrap(), &port);
        let port = |active_mtu| {
            let mut port = PortAttr::default();
            (port.active_mtu, port.max_msg_sz) = (active_mtu, 1 << 23);
            port
        };
        check("ud -s 1024", port(Mtu::MTU_1024)).unwrap();
        let error = check("ud -s 1025", port(Mtu::MTU_1024)).unwrap_err().to_string();
        assert_eq!(error, "--size 1025: the limit of datagrams, the port's MTU, is 1024");
        assert!(check("ud -s 1", PortAttr::default()).is_err());
        check("rc -s 8m", port(Mtu::MTU_1024)).unwrap();
        let error = check("rc -s 9m", port(Mtu::MTU_1024)).unwrap_err().to_string();
        assert_eq!(error, "--size 9437184: the limit of messages of the port is 8388608");
    }

    #[test]
    fn both_ends_run_in_this_process() {
        for line in [
            "rc -c -n 30",
            "rc --cm -c -n 30",
            "rc --cm -e -n 30 --json",
            "uc --cm -c -n 30",
            "ud --cm -e -n 30",
            "srq --cm -q 3 -c -n 30",
            "uc -N -n 30",
            "ud -e -n 30",
            "srq -q 3 -c -n 30",
            "rc -t -e -N -c -n 30 --json",
            "srd -d efa0 -c -n 30",
            "srd -d efa0 -c -e -N -n 30 --json",
            "ud -d efa0 -c -e -n 30",
        ] {
            let options = options::tests::parse(line).unwrap();
            let run = if options.common.cm { cm::here } else { here };
            run(options).with_context(|| line.to_owned()).unwrap_or_else(|e| panic!("{e:#}"));
        }
        assert!(here(options::tests::parse("rc host").unwrap()).is_err());
        for (line, what) in
            [("rc -d efa0", "SRD"), ("srd -d hca0", "SRD"), ("rc --cm -d efa0", "connection manager")]
        {
            let options = options::tests::parse(line).unwrap();
            let run = if options.common.cm { cm::here } else { here };
            let error = format!("{:#}", run(options).unwrap_err());
            assert!(error.contains(what), "{line}: {error}");
        }
    }
}
