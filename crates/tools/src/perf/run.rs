// SPDX-License-Identifier: MIT OR Apache-2.0
//! The run of one end, on an open device and over an open stream to the peer: the exchange, the connection, a test for each
//! size, and the output. The order of the steps is perftest's, because its programs wait for each other at fixed points.

use super::bandwidth;
use super::carrier::Carrier;
use super::channel::Channel;
use super::end::{self, End, Layout};
use super::latency;
use super::options::{Kind, Plan, Verb};
use super::progress::Progress;
use super::report::{self, Facts, Row};
use super::wire::{self, Form, Report, Wire};
use crate::cm::Line;
use crate::patience::Patience;
use crate::{device, limits};
use anyhow::{Context as _, Result, anyhow, ensure};
use std::io::{Read, Write};
use uverbs::attr::{DriverQp, LinkLayer};
use uverbs::{Context, Driver};

/// Bytes of the part of a buffer through which short messages move, and of a cache line, before the exchange with the peer.
const CYCLE: u32 = 4096;
const CACHE_LINE: u32 = 64;

/// Runs an end: exchange, connection, a test for each size, report.
pub(super) fn run<D: Driver, T: Carrier<D>>(
    plan: &Plan,
    context: &Context<D>,
    // One type for all streams: the code below is compiled for each driver and transport.
    stream: &mut dyn Channel,
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
    let is_srd = T::DRIVER_QP == Some(DriverQp::Srd);
    let datagram = if is_srd { port.max_msg_sz } else { mtu.bytes().unwrap_or(256) };
    let sizes = plan.sizes(datagram).map_err(|reason| anyhow!(reason))?;
    let largest = sizes.iter().copied().max().unwrap_or(plan.size);
    // Reads and writes of SRD have another limit, which no attribute of the verbs has.
    if !is_srd || plan.verb == Verb::Send {
        limits::at_most("--size", largest, port.max_msg_sz, "messages of the port")?;
    }
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
pub(super) fn has_progress(plan: &Plan) -> bool {
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
