// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ping-pong over a connection of rdma_cm: it selects the device, exchanges the numbers of the QPs, and moves them
//! through their states. The other end is `uverbs pingpong rc --cm`, too.

use super::buffer::Buffer;
use super::completions::Completions;
use super::drive::Queues as _;
use super::message::Message;
use super::options::Options;
use super::rc_uc::OneConnected;
use super::{Table, check_memory};
use crate::cm::{self, Side};
use crate::device;
use anyhow::{Context as _, Result, ensure};
use core::net::SocketAddr;
use std::io::Write;
use std::sync::Arc;
use uverbs::attr::Gid;
use uverbs::mlx5::Mlx5;
use uverbs::{ConnectAttr, Context, Driver, DriverVisitor, Endpoint, Rc, open_with};
use uverbs_cm::{ConnParam, EventChannel, Listener, PortSpace, Resolved};
use uverbs_hca::Fabric;

/// Runs an end; both ends on software HCAs.
pub(super) fn main(options: Options) -> Result<()> {
    if device::is_software(options.common.ib_dev.as_deref()) {
        return here(options).context("on software HCAs");
    }
    let manager = EventChannel::open()?;
    let side = match &options.common.host {
        Some(host) => {
            let address = cm::resolve(host, options.common.port)?;
            Side::Active(Resolved::new(&manager, address).with_context(|| address.to_string())?)
        }
        None => wait(&listen(&manager, &options)?, &options)?,
    };
    let info = side.device()?;
    if let Some(name) = &options.common.ib_dev {
        ensure!(*name == info.name, "the address is reached by the device {}, not by {name}", info.name);
    }
    let place = format!("rc on {}", info.name);
    open_with(&info, Visit { options, side }).map_err(Into::into).flatten().context(place)
}

/// Waits for a request.
fn wait(listener: &Listener, options: &Options) -> Result<Side> {
    cm::wait(listener, options.patience()).map(Side::Passive)
}

/// Listens on the port.
fn listen(manager: &EventChannel, options: &Options) -> Result<Listener> {
    cm::listen(manager, PortSpace::Tcp, options.common.bind, options.common.port)
}

/// Both ends in this process, on two software HCAs. Only the client prints.
pub(super) fn here(options: Options) -> Result<()> {
    let fabric = Fabric::new(0);
    let [a, b] = [(); 2].map(|()| fabric.device(device::SOFTWARE).build());
    let [server, client] = super::ends(options)?;
    // The server listens before the client begins.
    let serving = EventChannel::from_port(b.connection_manager()?);
    let listener = listen(&serving, &server)?;
    let calling = EventChannel::from_port(a.connection_manager()?);
    let ip = *b.addresses().first().context("the device has no address")?;
    let address = SocketAddr::new(ip, server.common.port);
    let visit = |options, side, hca: &uverbs_hca::Hca| {
        Visit { options, side }.visit(Context::<Mlx5>::from_kernel(hca.open())?)
    };
    super::both(
        server,
        client,
        |server| {
            let side = wait(&listener, &server)?;
            visit(server, side, &b)
        },
        |client| visit(client, Side::Active(Resolved::new(&calling, address)?), &a),
    )
}

/// The run on an open device, compiled for each driver.
struct Visit {
    options: Options,
    side: Side,
}

impl DriverVisitor for Visit {
    type Out = Result<()>;

    fn visit<D: Driver>(self, context: Context<D>) -> Result<()> {
        let Self { options, side } = self;
        let (common, param) = (&options.common, ConnParam::default());
        let device = context.query_device()?;
        let port = context.query_port(common.ib_port)?;
        check_memory(&options, &device, context.name())?;
        let pd = context.alloc_pd()?;
        let buffer = Arc::new(Buffer::new(&pd, &options, 0)?);
        let cqe = common.rx_depth.saturating_add(1);
        let mut completions = Completions::new(&context, &device, &options, cqe)?;
        let message = Message::new(&buffer, common.new_send)?;
        let attr = ConnectAttr::default();
        let queues = OneConnected::<D, Rc>::in_reset(&pd, &completions, message, &options, attr)?;
        let table = Table { context: &context, options: &options, device: &device, port: &port, buffer };
        let mut out = table.output();

        completions.arm()?;
        let addresses = side.addresses()?;
        let qp_num = queues.qp_nums()[0];
        let connection = side.establish_after(queues, &param, options.patience(), |queues| {
            Ok(queues.post_recv(common.rx_depth)?)
        })?;
        let remote = connection.peer().qp_num;
        let ends = [(qp_num, addresses[0]), (remote, addresses[1])];
        if !common.json {
            for (side, (qp_num, address)) in ["local", "remote"].iter().zip(ends) {
                let side = format!("{side} address:");
                writeln!(out, "  {side:<15} {address}, QPN {qp_num:#08x}")?;
            }
        }
        let [local, remote] = ends.map(|(qp_num, address)| Endpoint {
            qp_num,
            gid: Gid::from(address.ip()),
            ..Endpoint::default()
        });
        // The connection ends when its identifier is dropped.
        let (queues, _id) = connection.into_parts();
        let patience = table.patience();
        table.exchange(&mut out, completions, queues, patience, (&[local], &[remote]))?;
        pd.close().map_err(|(_, error)| error).context("cannot deallocate the protection domain")
    }
}
