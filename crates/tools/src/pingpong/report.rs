// SPDX-License-Identifier: MIT OR Apache-2.0
//! The output of a ping-pong: the lines of the C programs, or JSON.

use super::drive::Outcome;
use super::options::{Options, Program};
use anyhow::Result;
use core::net::Ipv6Addr;
use serde_json::{Value, json};
use std::io::Write;
use uverbs::Endpoint;

/// The end that a line describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndpointRole {
    Local,
    Remote,
}

/// An endpoint's line.
pub(crate) fn endpoint_line(program: Program, role: EndpointRole, e: &Endpoint) -> String {
    let label = match role {
        EndpointRole::Local => "local address: ",
        EndpointRole::Remote => "remote address:",
    };
    // The C program for datagrams has a colon here, in its own line.
    let colon = if program == Program::Ud && role == EndpointRole::Local { ':' } else { ',' };
    let gid = Ipv6Addr::from(e.gid);
    format!("  {label} LID {:#06x}, QPN {:#08x}, PSN {:#08x}{colon} GID {gid}", e.lid, e.qp_num, e.psn)
}

/// The figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Figures {
    /// The sum of both directions.
    pub(crate) bytes: u64,
    pub(crate) iters: u32,
    pub(crate) seconds: f64,
    pub(crate) mbit_per_sec: f64,
    pub(crate) usec_per_iter: f64,
}

impl Figures {
    /// Computes the figures from the options and the time.
    pub(crate) fn new(options: &Options, outcome: &Outcome) -> Self {
        let iters = options.common.iters;
        let bytes = u64::from(options.size) * u64::from(iters) * 2;
        let seconds = outcome.elapsed.as_secs_f64().max(1e-9);
        let mbit_per_sec = bytes as f64 * 8.0 / (seconds * 1e6);
        Self { bytes, iters, seconds, mbit_per_sec, usec_per_iter: seconds * 1e6 / f64::from(iters) }
    }
}

/// The last lines.
pub(crate) fn text(out: &mut dyn Write, figures: &Figures, outcome: &Outcome) -> Result<()> {
    let Figures { bytes, iters, seconds, mbit_per_sec, usec_per_iter } = figures;
    writeln!(out, "{bytes} bytes in {seconds:.2} seconds = {mbit_per_sec:.2} Mbit/sec")?;
    writeln!(out, "{iters} iters in {seconds:.2} seconds = {usec_per_iter:.2} usec/iter")?;
    if let Some((ts, average)) = outcome.timestamps.as_ref().and_then(|ts| Some((ts, ts.average()?))) {
        writeln!(out, "Max receive completion clock cycles = {}", ts.max)?;
        writeln!(out, "Min receive completion clock cycles = {}", ts.min)?;
        writeln!(out, "Average receive completion clock cycles = {average:.6}")?;
    }
    Ok(())
}

fn endpoint_json(e: &Endpoint) -> Value {
    json!({ "lid": e.lid, "qp_num": e.qp_num, "psn": e.psn, "gid": e.gid.to_string() })
}

/// Everything, as one object.
pub(crate) fn json(
    options: &Options,
    device: &str,
    (local, remote): (&[Endpoint], &[Endpoint]),
    figures: &Figures,
    outcome: &Outcome,
) -> Value {
    let common = &options.common;
    let mut value = json!({
        "program": options.program.name(),
        "role": if options.is_client() { "client" } else { "server" },
        "device": device,
        "port": common.ib_port,
        "size": options.size,
        "num_qp": options.num_qp,
        "rx_depth": common.rx_depth,
        "local": local.iter().map(endpoint_json).collect::<Vec<_>>(),
        "remote": remote.iter().map(endpoint_json).collect::<Vec<_>>(),
        "bytes": figures.bytes,
        "iters": figures.iters,
        "seconds": figures.seconds,
        "mbit_per_sec": figures.mbit_per_sec,
        "usec_per_iter": figures.usec_per_iter,
        "checked": common.chk,
    });
    if common.events {
        value["cq_events"] = outcome.events.into();
    }
    if let Some((ts, average)) = outcome.timestamps.as_ref().and_then(|ts| Some((ts, ts.average()?))) {
        value["receive_clock_cycles"] = json!({ "max": ts.max, "min": ts.min, "average": average });
    }
    value
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::parse;
    use super::*;
    use core::time::Duration;

    fn outcome() -> Outcome {
        Outcome { elapsed: Duration::from_millis(250), timestamps: None, events: 3 }
    }

    #[test]
    fn lines_are_those_of_the_c_programs() {
        let gid = "::ffff:10.0.0.2".parse().unwrap();
        let e = Endpoint { lid: 0, qp_num: 0x11, psn: 0x79b5f3, gid };
        assert_eq!(
            endpoint_line(Program::Rc, EndpointRole::Local, &e),
            "  local address:  LID 0x0000, QPN 0x000011, PSN 0x79b5f3, GID ::ffff:10.0.0.2"
        );
        assert_eq!(
            endpoint_line(Program::Ud, EndpointRole::Local, &e),
            "  local address:  LID 0x0000, QPN 0x000011, PSN 0x79b5f3: GID ::ffff:10.0.0.2"
        );
        assert_eq!(
            endpoint_line(Program::Ud, EndpointRole::Remote, &Endpoint { gid: Default::default(), ..e }),
            "  remote address: LID 0x0000, QPN 0x000011, PSN 0x79b5f3, GID ::"
        );
        let mut out = Vec::new();
        text(&mut out, &Figures::new(&parse("rc").unwrap(), &outcome()), &outcome()).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "8192000 bytes in 0.25 seconds = 262.14 Mbit/sec\n1000 iters in 0.25 seconds = 250.00 usec/iter\n"
        );
    }

    #[test]
    fn json_has_figures_and_endpoints() {
        let options = parse("srq -e -q 2 --json host").unwrap();
        let ends = [Endpoint::default(); 2];
        let figures = Figures::new(&options, &outcome());
        let value = json(&options, "rxe0", (&ends, &ends), &figures, &outcome());
        assert_eq!(value["program"], "srq");
        assert_eq!(value["role"], "client");
        assert_eq!(value["local"].as_array().map(Vec::len), Some(2));
        assert_eq!(value["cq_events"], 3);
        assert_eq!(value["usec_per_iter"], 250.0);
    }
}
