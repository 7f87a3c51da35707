// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs top`: live counters of devices, ports and QPs. [`sample`] reads them, partly by [`netlink`]; this module prints
//! them with their rates.

mod netlink;
mod sample;

use crate::device;
use crate::number::positive;
use anyhow::Result;
use core::fmt::Write as _;
use core::time::Duration;
use netlink::Qp;
use sample::{Device, Sample};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use uverbs::device::{DeviceInfo, devices};

/// Show counters of devices, ports and QPs, refreshed until Ctrl-C
///
/// The counters are those of sysfs (counters, hw_counters); QPs and the counters that are bound to them
/// (rdma-statistic(8)) come from RDMA netlink. Only root sees the QPs of other users.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show only this device [default: all]
    #[arg(short = 'd', long, value_name = "DEV")]
    ib_dev: Option<String>,
    /// Seconds between two refreshes
    #[arg(long, value_name = "SECS", default_value = "1", value_parser = positive::<u32>)]
    interval: u32,
    /// Print once, without rates
    #[arg(long)]
    once: bool,
    /// Also counters that are 0
    #[arg(short, long)]
    all: bool,
    /// Print JSON, a line for each refresh
    #[arg(long)]
    json: bool,
}

/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Runs the subcommand.
pub(crate) fn main(args: &Args) -> Result<()> {
    if device::is_software(args.ib_dev.as_deref()) {
        anyhow::bail!("top: a software NIC exists in one process only, so there are no counters to read");
    }
    let mut before: Option<Sample> = None;
    let is_terminal = std::io::stdout().is_terminal();
    loop {
        // A device may be added or removed at any time.
        let infos: Vec<DeviceInfo> = match &args.ib_dev {
            Some(name) => vec![device::choose(Some(name))?],
            None => devices()?,
        };
        let now = Sample::take(&infos);
        let mut out = crate::Output;
        if args.json {
            writeln!(out, "{}", as_json(&now))?;
        } else {
            let clear = if is_terminal && !args.once { CLEAR } else { "" };
            write!(out, "{clear}{}", as_text(&now, before.as_ref(), args.all))?;
        }
        out.flush()?;
        if args.once {
            return Ok(());
        }
        before = Some(now);
        std::thread::sleep(Duration::from_secs(args.interval.into()));
    }
}

/// The difference of a counter per second.
fn rate(now: u64, before: Option<&u64>, seconds: f64) -> Option<f64> {
    before.map(|before| now.saturating_sub(*before) as f64 / seconds.max(1e-9))
}

fn lines(
    out: &mut String,
    now: &BTreeMap<String, u64>,
    before: Option<&BTreeMap<String, u64>>,
    (seconds, all): (f64, bool),
) {
    for (name, value) in now.iter().filter(|(_, value)| all || **value != 0) {
        let rate = rate(*value, before.and_then(|before| before.get(name)), seconds);
        let rate = rate.map_or(String::new(), |rate| format!("{rate:>16.0}/s"));
        // Writing to a String does not fail.
        let _ = writeln!(out, "    {name:<32} {value:>20}{rate}");
    }
}

fn as_text(now: &Sample, before: Option<&Sample>, all: bool) -> String {
    let mut out = String::new();
    if now.devices.is_empty() {
        out.push_str("no RDMA devices\n");
    }
    let seconds = before.map_or(0.0, |before| (now.at - before.at).as_secs_f64());
    for device in &now.devices {
        let old = before.and_then(|b| b.devices.iter().find(|old| old.name == device.name));
        let _ = writeln!(out, "{}", device.name);
        lines(&mut out, &device.counters, old.map(|old| &old.counters), (seconds, all));
        for port in &device.ports {
            let old = old.and_then(|old| old.ports.iter().find(|old| old.number == port.number));
            let _ = writeln!(out, "  port {} {}", port.number, port.state);
            lines(&mut out, &port.counters, old.map(|old| &old.counters), (seconds, all));
        }
        for bound in &device.bound {
            let old = old.and_then(|old| old.bound.iter().find(|old| old.id == bound.id));
            let _ = writeln!(out, "  counter {} of QPs {:?}", bound.id, bound.qps);
            lines(&mut out, &bound.counters, old.map(|old| &old.counters), (seconds, all));
        }
        qps(&mut out, device, old, seconds);
    }
    out
}

/// The QPs of a device. The difference of packet sequence numbers is the number of packets.
fn qps(out: &mut String, device: &Device, old: Option<&Device>, seconds: f64) {
    let qps = match &device.qps {
        Ok(qps) if qps.is_empty() => return,
        Ok(qps) => qps,
        Err(error) => {
            let _ = writeln!(out, "  QPs: {error:#}");
            return;
        }
    };
    let _ = writeln!(
        out,
        "  {:<10} {:<10} {:<6} {:<10} {:>14} {:>14}  owner",
        "QPN", "type", "state", "remote", "packets out/s", "packets in/s"
    );
    for qp in qps {
        let old = old.and_then(|old| old.qps.as_ref().ok()?.iter().find(|old| old.number == qp.number));
        let packets = |now: Option<u32>, before: Option<u32>| match (now, before) {
            (Some(now), Some(before)) => {
                format!("{:.0}", f64::from(now.wrapping_sub(before) & 0xff_ffff) / seconds.max(1e-9))
            }
            _ => "-".to_owned(),
        };
        let _ = writeln!(
            out,
            "  {:<#010x} {:<10} {:<6} {:<10} {:>14} {:>14}  {}",
            qp.number,
            kind(qp),
            state(qp),
            qp.remote.map_or("-".to_owned(), |remote| format!("{remote:#08x}")),
            packets(qp.sq_psn, old.and_then(|old| old.sq_psn)),
            packets(qp.rq_psn, old.and_then(|old| old.rq_psn)),
            owner(qp)
        );
    }
}

/// `enum ib_qp_type`
fn kind(qp: &Qp) -> String {
    match qp.kind {
        Some(0) => "SMI",
        Some(1) => "GSI",
        Some(2) => "RC",
        Some(3) => "UC",
        Some(4) => "UD",
        Some(8) => "RAW_PACKET",
        Some(9) => "XRC_INI",
        Some(10) => "XRC_TGT",
        Some(0xff) => "DRIVER",
        Some(other) => return other.to_string(),
        None => "-",
    }
    .to_owned()
}

/// `enum ib_qp_state`
fn state(qp: &Qp) -> String {
    match qp.state {
        Some(state @ 0..=6) => {
            ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"][usize::from(state)].to_owned()
        }
        Some(other) => other.to_string(),
        None => "-".to_owned(),
    }
}

/// The program, or the part of the kernel.
fn owner(qp: &Qp) -> String {
    match (qp.pid, &qp.kernel_name) {
        (Some(pid), _) => {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("{} ({pid})", name.trim())
        }
        (None, Some(name)) => format!("[{name}]"),
        (None, None) => "-".to_owned(),
    }
}

fn as_json(sample: &Sample) -> Value {
    let device = |device: &Device| {
        let qp = |qp: &Qp| {
            json!({
                "qpn": qp.number, "port": qp.port, "type": kind(qp), "state": state(qp), "remote_qpn": qp.remote,
                "sq_psn": qp.sq_psn, "rq_psn": qp.rq_psn, "pid": qp.pid, "owner": owner(qp),
            })
        };
        let qps = device.qps.as_ref().map(|qps| qps.iter().map(qp).collect::<Vec<_>>());
        json!({
            "name": device.name,
            "counters": device.counters,
            "ports": device.ports.iter().map(|port| {
                json!({ "port": port.number, "state": port.state, "counters": port.counters })
            }).collect::<Vec<_>>(),
            "qp_counters": device.bound.iter().map(|bound| {
                json!({ "id": bound.id, "port": bound.port, "qps": bound.qps, "counters": bound.counters })
            }).collect::<Vec<_>>(),
            "qps": qps.as_ref().ok(),
            "error": qps.as_ref().err().map(|error| format!("{error:#}")),
        })
    };
    json!({ "devices": sample.devices.iter().map(device).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink::Bound;
    use sample::Port;
    use std::time::Instant;

    fn one(at: Instant, packets: u64, psn: u32) -> Sample {
        let counters = BTreeMap::from([("sent_pkts".to_owned(), packets), ("rcvd_pkts".to_owned(), 0)]);
        let qp = Qp { number: 17, kind: Some(2), state: Some(3), sq_psn: Some(psn), ..Qp::default() };
        let device = Device {
            name: "rxe0".into(),
            counters: BTreeMap::new(),
            ports: vec![Port { number: 1, state: "ACTIVE".into(), counters: counters.clone() }],
            qps: Ok(vec![qp]),
            bound: vec![Bound { id: 3, port: Some(1), qps: vec![17], counters }],
        };
        Sample { at, devices: vec![device] }
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let begin = Instant::now();
        // The sequence number wraps at 24 bits.
        let (old, new) = (one(begin, 100, 0xff_fffe), one(begin + Duration::from_secs(2), 300, 2));
        let text = as_text(&new, Some(&old), false);
        let line = |start: &str| text.lines().find(|l| l.trim().starts_with(start)).unwrap_or_default();
        assert!(line("sent_pkts").ends_with("300             100/s"), "{text}");
        assert!(!text.contains("rcvd_pkts"), "{text}");
        assert_eq!(
            line("0x").split_whitespace().collect::<Vec<_>>(),
            ["0x00000011", "RC", "RTS", "-", "2", "-", "-"]
        );
        assert!(as_text(&new, None, true).contains("rcvd_pkts"));
        assert!(!as_text(&new, None, true).contains("/s\n"));
    }

    #[test]
    fn json_has_counters_of_ports_and_qps() {
        let value = as_json(&one(Instant::now(), 5, 1));
        let device = &value["devices"][0];
        assert_eq!(device["ports"][0]["counters"]["sent_pkts"], 5);
        assert_eq!(device["qps"][0]["type"], "RC");
        assert_eq!(device["qp_counters"][0]["qps"][0], 17);
        assert_eq!(device["error"], Value::Null);
    }
}
