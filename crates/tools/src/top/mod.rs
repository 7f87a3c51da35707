// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs top`: live counters of devices, ports and QPs. The library [`uverbs::stat`] reads them and makes rates of them; this module
//! prints them.

use crate::device;
use crate::number::positive;
use anyhow::Result;
use core::fmt::Write as _;
use core::time::Duration;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use uverbs::device::{DeviceInfo, devices};
use uverbs::stat::{Counters, DeviceRates, DeviceSample, QpSample, Rates, Sample};

/// Show counters of devices, ports and QPs, refreshed until Ctrl-C
///
/// The counters are those of sysfs (counters, hw_counters); QPs and the counters that are bound to them
/// (rdma-statistic(8)) come from RDMA netlink. Only root sees the QPs of other users. Those of software NICs that other programs
/// drive come from the control socket of uverbs-hca.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Show only this device [default: all]
    #[arg(short = 'd', long, value_name = "DEV")]
    ib_dev: Option<String>,
    /// Also show the devices of a running uverbs-hca, by its control socket
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
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

/// The values of this moment.
fn take(args: &Args) -> Result<Sample> {
    // A device may be added or removed at any time.
    let infos: Vec<DeviceInfo> = match (&args.ib_dev, &args.control) {
        (Some(name), None) => vec![device::choose(Some(name))?],
        (Some(name), Some(_)) => {
            devices().unwrap_or_default().into_iter().filter(|d| d.name == *name).collect()
        }
        (None, Some(_)) => devices().unwrap_or_default(),
        (None, None) => devices()?,
    };
    let mut sample = Sample::take(&infos);
    if let Some(path) = &args.control {
        sample.add_control(path)?;
        sample.devices.retain(|device| args.ib_dev.as_ref().is_none_or(|name| device.name == *name));
    }
    Ok(sample)
}

/// Runs the subcommand.
pub(crate) fn main(args: &Args) -> Result<()> {
    if args.control.is_none() && device::Software::of(args.ib_dev.as_deref()).is_some() {
        anyhow::bail!(
            "top: a software NIC is in the process that uses it, which shows it by uverbs::stat; --control SOCKET shows those of uverbs-hca"
        );
    }
    let mut before: Option<Sample> = None;
    let is_terminal = std::io::stdout().is_terminal();
    loop {
        let now = take(args)?;
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

fn lines(out: &mut String, now: &Counters, rates: Option<&BTreeMap<String, f64>>, all: bool) {
    for (name, value) in now.iter().filter(|(_, value)| all || **value != 0) {
        let rate = rates.and_then(|rates| rates.get(name));
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
    let rates = before.map_or(Rates::default(), |before| now.rates_since(before));
    for device in &now.devices {
        let rates = rates.devices.iter().find(|rates| rates.name == device.name);
        let _ = writeln!(out, "{}", device.name);
        lines(&mut out, &device.counters, rates.map(|rates| &rates.counters), all);
        for port in &device.ports {
            let rates = rates.and_then(|rates| rates.ports.iter().find(|rates| rates.number == port.number));
            let _ = writeln!(out, "  port {} {}", port.number, port.state);
            lines(&mut out, &port.counters, rates.map(|rates| &rates.counters), all);
        }
        for bound in &device.bound {
            let rates = rates.and_then(|rates| rates.bound.iter().find(|rates| rates.id == bound.id));
            let _ = writeln!(out, "  counter {} of QPs {:?}", bound.id, bound.qps);
            lines(&mut out, &bound.counters, rates.map(|rates| &rates.counters), all);
        }
        qps(&mut out, device, rates);
    }
    out
}

/// The QPs of a device.
fn qps(out: &mut String, device: &DeviceSample, rates: Option<&DeviceRates>) {
    let qps = match &device.qps {
        Ok(qps) if qps.is_empty() => return,
        Ok(qps) => qps,
        Err(error) => {
            let _ = writeln!(out, "  QPs: {error}");
            return;
        }
    };
    let _ = writeln!(
        out,
        "  {:<10} {:<10} {:<6} {:<10} {:>14} {:>14}  owner",
        "QPN", "type", "state", "remote", "packets out/s", "packets in/s"
    );
    let rates: BTreeMap<_, _> =
        rates.iter().flat_map(|rates| &rates.qps).map(|rates| (rates.number, rates)).collect();
    for qp in qps {
        let rates = rates.get(&qp.number);
        let packets = |rate: Option<f64>| rate.map_or("-".to_owned(), |rate| format!("{rate:.0}"));
        let _ = writeln!(
            out,
            "  {:<#010x} {:<10} {:<6} {:<10} {:>14} {:>14}  {}",
            qp.number,
            qp.type_name(),
            qp.state_name(),
            qp.remote.map_or("-".to_owned(), |remote| format!("{remote:#08x}")),
            packets(rates.and_then(|rates| rates.packets_out)),
            packets(rates.and_then(|rates| rates.packets_in)),
            qp.owner()
        );
    }
}

fn as_json(sample: &Sample) -> Value {
    let device = |device: &DeviceSample| {
        let qp = |qp: &QpSample| {
            json!({
                "qpn": qp.number, "port": qp.port, "type": qp.type_name(), "state": qp.state_name(), "remote_qpn": qp.remote,
                "sq_psn": qp.sq_psn, "rq_psn": qp.rq_psn, "pid": qp.pid, "owner": qp.owner(),
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
            "error": qps.as_ref().err().map(ToString::to_string),
        })
    };
    json!({ "devices": sample.devices.iter().map(device).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use uverbs::mlx5::Mlx5;
    use uverbs::{ConnectAttr, Context, Rc};
    use uverbs_hca::Fabric;

    /// Two samples, two seconds apart, of a NIC with a QP that sends itself 10 messages meanwhile.
    fn samples() -> [Sample; 2] {
        let hca = Fabric::deterministic(1).device("hca0").build();
        let ctx = Context::<Mlx5>::from_kernel(hca.open()).unwrap();
        let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.cq(64).unwrap());
        let mut qp = pd.qp::<Rc>().cq(&cq).depth(16, 16).create().unwrap();
        let attr = ConnectAttr::new();
        qp.init(&attr).unwrap();
        let here = qp.control().endpoint(1, &attr).unwrap();
        qp.connect(&here, &here, &attr).unwrap();
        let pool = pd.pool(32, 64).unwrap();
        let take = || {
            let mut sample = Sample::empty();
            sample.add_software(&hca);
            sample
        };
        let mut before = take();
        for _ in 0..10 {
            qp.recv(pool.get().unwrap()).unwrap();
            qp.send(pool.get().unwrap()).unwrap();
            hca.run();
            assert_eq!(cq.poll_each(2, |_done| ()).unwrap(), 2);
        }
        let now = take();
        before.at = now.at.checked_sub(Duration::from_secs(2)).unwrap_or_else(Instant::now);
        [before, now]
    }

    #[test]
    fn rates_are_those_of_the_interval() {
        let [before, now] = samples();
        let text = as_text(&now, Some(&before), false);
        let line = |start: &str| text.lines().find(|l| l.trim().starts_with(start)).unwrap_or_default();
        // A message and its acknowledgement are packets.
        assert!(line("sent_pkts").ends_with("20              10/s"), "{text}");
        assert!(!text.contains("repairs"), "{text}");
        let qp = line("0x").split_whitespace().collect::<Vec<_>>();
        assert_eq!((qp[1], qp[2], qp[4], qp[5]), ("RC", "RTS", "5", "5"), "{text}");
        assert!(as_text(&now, None, true).contains("repairs"));
        assert!(!as_text(&now, None, true).contains("/s\n"));
        assert_eq!(as_text(&Sample::empty(), None, true), "no RDMA devices\n");
    }

    #[test]
    fn json_has_counters_of_ports_and_qps() {
        let value = as_json(&samples()[1]);
        let device = &value["devices"][0];
        assert_eq!(device["name"], "hca0");
        assert_eq!(device["ports"][0]["counters"]["sent_pkts"], 20);
        assert_eq!(device["qps"][0]["type"], "RC");
        assert_eq!(device["qps"][0]["state"], "RTS");
        assert_eq!(device["error"], Value::Null);
    }
}
