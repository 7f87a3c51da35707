// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ping-pongs over connections of rdma_cm: it selects the device, exchanges the numbers of the QPs, and moves them
//! through their states. The other end is `uverbs pingpong --cm`, too.

use super::completions::Completions;
use super::drive::Queues;
use super::options::{Options, Program};
use super::{Objects, Table, rc_uc, srq, ud};
use crate::cm::{self, Line, Side};
use crate::{device, limits};
use anyhow::{Context as _, Result, bail, ensure};
use core::net::SocketAddr;
use std::io::Write;
use uverbs::attr::{AhAttr, Gid, QpState, QpType};
use uverbs::qp::QpControl;
use uverbs::software::Device;
use uverbs::{ConnectAttr, Context, Driver, DriverVisitor, Endpoint, Rc, Uc, Ud, open_with};
use uverbs_cm::{ConnParam, EventChannel, PortSpace};

/// Queues that rdma_cm connects.
pub(super) trait ByCm<D: Driver>: Queues {
    /// A QP.
    fn control(&self, index: usize) -> Result<&QpControl<D>>;

    /// The destination of datagrams. Connected QPs have none.
    fn set_peer(&mut self, _: &AhAttr, _qp_num: u32, _qkey: u32) -> Result<()> {
        Ok(())
    }
}

/// Queues with the number of their first receives.
struct Posting<'a, Q>(&'a mut Q, u32);

impl<D: Driver, Q: ByCm<D>> cm::Queues<D> for Posting<'_, Q> {
    fn control(&self, index: usize) -> Result<&QpControl<D>> {
        self.0.control(index)
    }

    /// The receives belong to all QPs.
    fn post_first(&mut self, index: usize) -> Result<()> {
        if index == 0 { self.0.post_recv(self.1) } else { Ok(()) }
    }
}

/// The port space of a ping-pong.
fn space(options: &Options) -> PortSpace {
    match options.program {
        Program::Rc | Program::Srq => PortSpace::Tcp,
        Program::Uc => PortSpace::Ib(QpType::Uc),
        Program::Ud | Program::Srd => PortSpace::Udp,
    }
}

/// Runs an end; both ends on software devices.
pub(super) fn main(options: Options) -> Result<()> {
    if device::is_here(options.common.ib_dev.as_deref()) {
        return here(options).context("on software devices");
    }
    let hca = device::outside(options.common.ib_dev.as_deref())?;
    let manager = match &hca {
        Some(hca) => EventChannel::from_port(hca.connection_manager()?),
        None => cm::open()?,
    };
    let line = match &options.common.host {
        Some(host) => Line::Call { manager, address: cm::resolve(host, options.common.port)? },
        None => {
            let line = listen(&manager, &options)?;
            let ip = hca.as_ref().and_then(|hca| hca.addresses().first().copied());
            if let Some(ip) = ip.filter(|_| !options.common.json) {
                // The network of a fabric has addresses of its own.
                writeln!(crate::Output, "waiting for a client on {ip}, port {}", options.common.port)?;
            }
            line
        }
    };
    let side = line.side(space(&options), None, options.patience())?;
    if let Some(hca) = hca {
        return open_with(hca.open(), Visit { options, line: &line, side })?
            .context("on the software device");
    }
    let info = side.device()?;
    if let Some(name) = &options.common.ib_dev {
        ensure!(*name == info.name, "the address is reached by the device {}, not by {name}", info.name);
    }
    let place = format!("{} on {}", options.program.name(), info.name);
    open_with(&info, Visit { options, line: &line, side }).map_err(Into::into).flatten().context(place)
}

/// Listens on the port.
fn listen(manager: &EventChannel, options: &Options) -> Result<Line> {
    Line::serve(manager, &[space(options)], options.common.bind, options.common.port)
}

/// Both ends in this process, on two software devices. Only the client prints.
pub(super) fn here(options: Options) -> Result<()> {
    let [a, b] = device::Software::of_or_first(options.common.ib_dev.as_deref())?.two()?;
    let [server, client] = super::ends(options)?;
    // The server listens before the client begins.
    let serving = listen(&EventChannel::from_port(b.connection_manager()?), &server)?;
    let ip = *b.addresses().first().context("the device has no address")?;
    let address = SocketAddr::new(ip, server.common.port);
    let calling = Line::Call { manager: EventChannel::from_port(a.connection_manager()?), address };
    let visit = |options: Options, line, device: &Device| {
        let side = Line::side(line, space(&options), None, options.patience())?;
        open_with(device.open(), Visit { options, line, side })?
    };
    super::both(server, client, |server| visit(server, &serving, &b), |client| visit(client, &calling, &a))
}

/// The run on an open device, compiled for each driver.
struct Visit<'a> {
    options: Options,
    line: &'a Line,
    side: Side,
}

impl DriverVisitor for Visit<'_> {
    type Out = Result<()>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
        let Self { options, line, side } = self;
        let common = &options.common;
        let device = context.query_device()?;
        let port = limits::port(&context, common.ib_port)?;
        let Objects { pd, buffer, completions, message } = Objects::new(&context, &options, &device, &port)?;
        let attr =
            ConnectAttr::new().port_num(common.ib_port).sgid_index(common.gid_idx).hop_limit(ud::HOP_LIMIT);
        let table = Table { context: &context, options: &options, device: &device, port: &port, buffer };
        match options.program {
            Program::Rc => {
                let queues =
                    rc_uc::OneConnected::<D, Rc>::in_reset(&pd, &completions, message, &options, attr)?;
                table.play_by_cm(completions, queues, (line, side))?;
            }
            Program::Uc => {
                let queues =
                    rc_uc::OneConnected::<D, Uc>::in_reset(&pd, &completions, message, &options, attr)?;
                table.play_by_cm(completions, queues, (line, side))?;
            }
            Program::Ud => {
                let queues = ud::Datagrams::<D, Ud>::in_reset(&pd, &completions, message, &options, attr)?;
                table.play_by_cm(completions, queues, (line, side))?;
            }
            // The options refuse it.
            Program::Srd => bail!("SRD has no connection manager"),
            Program::Srq => {
                let queues = srq::SharedReceives::in_reset(&pd, &completions, message, &options, attr)?;
                table.play_by_cm(completions, queues, (line, side))?;
            }
        }
        pd.close().map_err(|(_, error)| error).context("cannot deallocate the protection domain")
    }
}

impl<D: Driver> Table<'_, D> {
    /// Connects each QP, runs, reports, and closes everything.
    fn play_by_cm<Q: ByCm<D>>(
        self,
        mut completions: Completions<D>,
        mut queues: Q,
        (line, side): (&Line, Side),
    ) -> Result<()> {
        let (options, common) = (self.options, &self.options.common);
        let mut out = self.output();
        completions.arm()?;
        let qp_nums = queues.qp_nums();
        let (mut side, mut ids, mut ends) = (Some(side), Vec::new(), [Vec::new(), Vec::new()]);
        for (i, qp_num) in qp_nums.into_iter().enumerate() {
            let side = match side.take() {
                Some(side) => side,
                None => line.side(space(options), None, options.patience())?,
            };
            let addresses = side.addresses()?;
            let [local, remote] = addresses.map(|address| Gid::from(address.ip()));
            // The server of datagrams has no event with the client's QP.
            let mut param = ConnParam::with_private_data(qp_num.to_be_bytes());
            param.srq = options.program == Program::Srq;
            let (id, peer) =
                side.establish(&mut Posting(&mut queues, common.rx_depth), i, &param, options.patience())?;
            let sent = peer.private_data.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            let remote_qp = if peer.qp_num == 0 { sent } else { peer.qp_num };
            let endpoint = |qp_num, gid| Endpoint { qp_num, gid, ..Endpoint::default() };
            let pair = [endpoint(qp_num, local), endpoint(remote_qp, remote)];
            if options.program == Program::Ud {
                let qkey = id.init_qp_attr(QpState::INIT)?.0.qkey;
                let attr = match peer.ah_attr {
                    Some(attr) => attr,
                    None => {
                        let attr = ConnectAttr::new().sgid_index(common.gid_idx).hop_limit(ud::HOP_LIMIT);
                        attr.on(self.context)?.ah_attr(&pair[1])
                    }
                };
                queues.set_peer(&attr, remote_qp, qkey)?;
            }
            if !common.json {
                for (side, address, end) in
                    [("local", addresses[0], &pair[0]), ("remote", addresses[1], &pair[1])]
                {
                    let side = format!("{side} address:");
                    writeln!(out, "  {side:<15} {address}, QPN {:#08x}", end.qp_num)?;
                }
            }
            for (ends, end) in ends.iter_mut().zip(pair) {
                ends.push(end);
            }
            // A connection ends when its identifier is dropped.
            ids.push(id);
        }
        let patience = self.patience();
        self.exchange(&mut out, completions, queues, patience, (&ends[0], &ends[1]))
    }
}
