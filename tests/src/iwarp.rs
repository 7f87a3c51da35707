// SPDX-License-Identifier: MIT OR Apache-2.0
//! Connecting the QPs of a pair on iWARP devices, which only the kernel's connection manager can.

use crate::env::{End, LabEnv};
use crate::wait::LIMIT;
use anyhow::{Context as _, Result, bail};
use core::net::SocketAddr;
use uverbs::Driver;
use uverbs::attr::AccessFlags;
use uverbs::qp::QpControl;
use uverbs_cm::{ConnParam, Event, EventChannel, EventKind, Id, PortSpace};

/// Connects the QP at end B to that at end A, and returns the identifiers of the ends, which must live as long as the
/// connection.
pub fn connect<D: Driver>(env: &LabEnv, a: &QpControl<D>, b: &QpControl<D>) -> Result<[Id; 2]> {
    let here = |end: End| Ok::<_, anyhow::Error>(SocketAddr::new(env.ip[end as usize].parse()?, 0));
    let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE;
    let param =
        |qp_num| ConnParam::new().qp_num(qp_num).access(access).responder_resources(4).initiator_depth(4);

    let passive = EventChannel::open()?;
    let listener = passive.create_id(PortSpace::Tcp)?;
    listener.bind_addr(here(End::A)?)?;
    listener.listen(1)?;
    let server = listener.bound()?.local.context("the address of the listener")?;

    let active = EventChannel::open()?;
    let client = active.create_id(PortSpace::Tcp)?;
    client.resolve_addr(Some(here(End::B)?), server, LIMIT)?;
    expect(&active, |kind| matches!(kind, EventKind::AddrResolved).then_some(()))?;
    client.resolve_route(LIMIT)?;
    expect(&active, |kind| matches!(kind, EventKind::RouteResolved).then_some(()))?;
    let own = param(b.qp_num());
    client.init_qp(b, &own)?;
    client.connect(&own)?;

    let request = expect(&passive, |kind| match kind {
        EventKind::ConnectRequest(request) => Some(request),
        _ => None,
    })?;
    let own = param(a.qp_num());
    request.id.init_qp(a, &own)?;
    request.id.connect_qp(a, &own)?;
    request.id.accept(&own)?;
    expect(&active, |kind| matches!(kind, EventKind::Established(_)).then_some(()))?;
    expect(&passive, |kind| matches!(kind, EventKind::Established(_)).then_some(()))?;
    Ok([request.id, client])
}

/// The next event, which must be the one that `wanted` takes.
pub fn expect<R>(channel: &EventChannel, wanted: impl FnOnce(EventKind) -> Option<R>) -> Result<R> {
    let Some(event) = channel.wait(Some(LIMIT))? else { bail!("no event of the connection manager") };
    let name = event.name();
    let Event { kind, .. } = event.ok("connect")?;
    wanted(kind).with_context(|| format!("the event {name}"))
}
