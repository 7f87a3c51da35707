// SPDX-License-Identifier: MIT OR Apache-2.0
//! The report: the columns of perftest, so that scripts can read both; or JSON.

use super::latency::Times;
use super::options::{Connection, Kind, Output, Plan, Verb};
use super::wire::{Keys, Report};
use anyhow::{Context as _, Result};
use core::time::Duration;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::io::{self, Write};
use uverbs::attr::Mtu;

const LINE: &str = "---------------------------------------------------------------------------------------";
const BANDWIDTH: &str = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]";
const BANDWIDTH_GBITS: &str =
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]";
const LATENCY: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
                       t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] ";
const LATENCY_TIMED: &str = " #bytes        #iterations       t_avg[usec]    tps average";

/// Percentiles of `--percentiles` and JSON.
const PERCENTILES: [f64; 8] = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// A row of the table.
#[derive(Clone, Debug)]
pub(super) enum Row {
    /// The result of a bandwidth test; if it measured both directions, also that of the other end.
    Bandwidth(Report, Option<Report>),
    Latency(u32, Times),
}

/// The facts before the table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) device: &'a str,
    pub(super) driver: &'a str,
    pub(super) mtu: Mtu,
    pub(super) is_ethernet: bool,
    pub(super) sgid_index: Option<u8>,
    pub(super) inline: u32,
    pub(super) reads: u8,
}

/// The title of a test.
fn title(plan: &Plan) -> String {
    let verb = match plan.verb {
        Verb::Send => "Send".to_owned(),
        Verb::Write => "RDMA_Write".to_owned(),
        Verb::Read => "RDMA_Read".to_owned(),
        Verb::Atomic => format!("Atomic {:?}", plan.common.atomic_type.unwrap_or_default()),
    };
    let kind = match plan.kind {
        Kind::Latency => "Latency",
        Kind::Bandwidth if plan.bidirectional => "Bidirectional BW",
        Kind::Bandwidth => "BW",
    };
    format!("{verb} {kind} Test")
}

/// Prints the parameters of the test.
pub(super) fn parameters(out: &mut dyn Write, plan: &Plan, facts: &Facts<'_>) -> io::Result<()> {
    let connection = plan.common.connection;
    let gid = facts.sgid_index.map_or("none".into(), |index| index.to_string());
    let srq = plan.common.use_srq || matches!(connection, Connection::Xrc | Connection::Dc);
    let limit = match (plan.verb, facts.inline) {
        (Verb::Read | Verb::Atomic, _) => ("Outstand reads", facts.reads.to_string()),
        (_, inline) => ("Max inline data", format!("{inline}[B]")),
    };
    let columns = [
        [("Device", facts.device.to_owned()), ("Driver", facts.driver.to_owned())],
        [("Number of qps", plan.num_qp.to_string()), ("Connection type", connection.name().to_owned())],
        [("TX depth", plan.tx_depth.to_string()), ("RX depth", plan.rx_depth.to_string())],
        [("Post List", plan.post_list.to_string()), ("CQ Moderation", plan.cq_mod.to_string())],
        [
            ("Mtu", format!("{}[B]", facts.mtu.bytes().unwrap_or(0))),
            ("Link type", if facts.is_ethernet { "Ethernet" } else { "IB" }.to_owned()),
        ],
        [("GID index", gid), ("Using SRQ", if srq { "ON" } else { "OFF" }.to_owned())],
        [limit, ("Events", if plan.common.events { "ON" } else { "OFF" }.to_owned())],
    ];
    writeln!(out, "{LINE}\n{:20}{}", "", title(plan))?;
    for [(a, x), (b, y)] in columns {
        writeln!(out, " {a:<16}: {x:<16} {b:<16}: {y}")?;
    }
    writeln!(out, "{LINE}")
}

/// Prints the addresses of the QPs of one end.
pub(super) fn addresses(out: &mut dyn Write, plan: &Plan, side: &str, keys: &[Keys]) -> io::Result<()> {
    for keys in keys {
        let Keys { lid, qp_num, psn, rkey, addr, gid, srq_num, out_reads } = keys;
        write!(out, " {side} address: LID {lid:#04x} QPN {qp_num:#06x} PSN {psn:#06x}")?;
        if plan.verb == Verb::Read {
            write!(out, " OUT {out_reads:#04x}")?;
        }
        if matches!(plan.verb, Verb::Read | Verb::Write) {
            write!(out, " RKey {rkey:#08x} VAddr {addr:#018x}")?;
        }
        if plan.common.connection == Connection::Xrc {
            write!(out, " SRQn {srq_num:#08x}")?;
        }
        writeln!(out)?;
        if !gid.is_zero() {
            writeln!(out, " GID: {gid}")?;
        }
    }
    Ok(())
}

/// Prints the heading of the table.
pub(super) fn heading(out: &mut dyn Write, plan: &Plan) -> io::Result<()> {
    let heading = match plan.kind {
        Kind::Bandwidth if plan.gbits => BANDWIDTH_GBITS,
        Kind::Bandwidth => BANDWIDTH,
        Kind::Latency if plan.duration.is_some() => LATENCY_TIMED,
        Kind::Latency => LATENCY,
    };
    writeln!(out, "{LINE}\n{heading}")
}

/// Prints the end of the table.
pub(super) fn end(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{LINE}")
}

/// The figure that `--output` selects.
pub(super) fn figure(plan: &Plan, output: Output, row: &Row) -> f64 {
    match row {
        Row::Bandwidth(mine, theirs) => {
            let theirs = theirs.unwrap_or_default();
            if output == Output::MessageRate {
                mine.rate + theirs.rate
            } else {
                mine.average + theirs.average
            }
        }
        Row::Latency(_, Times::Sum(count, measured)) => {
            measured.as_secs_f64() * 1e6 / factor(plan) / (*count).max(1) as f64
        }
        Row::Latency(_, Times::Each(times)) => Figures::new(plan, times).average,
    }
}

/// The limits that a row does not reach.
pub(super) fn missed(plan: &Plan, row: &Row) -> Option<String> {
    let Row::Bandwidth(..) = row else { return None };
    let [bandwidth, rate] = plan.limits;
    let below = |output, limit: Option<f64>| {
        let (found, limit) = (figure(plan, output, row), limit?);
        (found < limit).then(|| format!("{output:?} {found:.2} is less than the limit {limit}"))
    };
    below(Output::Bandwidth, bandwidth).or_else(|| below(Output::MessageRate, rate))
}

/// Prints a row, and before it what the options request.
pub(super) fn row(out: &mut dyn Write, plan: &Plan, row: &Row) -> Result<()> {
    match row {
        Row::Bandwidth(mine, theirs) => {
            let theirs = theirs.unwrap_or_default();
            let Report { bytes, iters, .. } = mine;
            let (peak, average) = (mine.peak + theirs.peak, mine.average + theirs.average);
            let rate = mine.rate + theirs.rate;
            writeln!(out, " {bytes:<10} {iters:<14} {peak:<18.2} {average:<20.2} {rate:<.6}")?;
        }
        Row::Latency(bytes, Times::Sum(count, measured)) => {
            let seconds = measured.as_secs_f64() / (*count).max(1) as f64;
            let (average, rate) = (seconds * 1e6 / factor(plan), 1.0 / seconds);
            writeln!(out, " {bytes:<13} {count:<17} {average:<14.2} {rate:<.2}")?;
        }
        Row::Latency(bytes, Times::Each(times)) => {
            let micros = |time: &Duration| time.as_secs_f64() * 1e6 / factor(plan);
            let mut sorted = times.clone();
            sorted.sort_unstable();
            for (_, times) in [(plan.each_unsorted, times), (plan.each_sorted, &sorted)]
                .into_iter()
                .filter(|(wanted, _)| *wanted)
            {
                writeln!(out, "#, usec")?;
                for (i, time) in times.iter().enumerate() {
                    writeln!(out, "{}, {}", i + 1, micros(time))?;
                }
            }
            let f = Figures::new(plan, &sorted);
            let Figures { min, max, typical, average, deviation, p99, p999 } = f;
            let iters = plan.iters;
            writeln!(
                out,
                " {bytes:<6} {iters:<14} {min:<14.2} {max:<12.2} {typical:<18.2} {average:<14.2} {deviation:<15.2} \
                 {p99:<22.2} {p999:<.2}"
            )?;
            if plan.percentiles {
                percentiles(out, &histogram(plan, times)?)?;
            }
        }
    }
    Ok(())
}

/// A round trip is two messages, except for reads and atomics.
fn factor(plan: &Plan) -> f64 {
    if matches!(plan.verb, Verb::Read | Verb::Atomic) { 1.0 } else { 2.0 }
}

/// The numbers of a latency test, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Figures {
    min: f64,
    max: f64,
    typical: f64,
    average: f64,
    deviation: f64,
    p99: f64,
    p999: f64,
}

impl Figures {
    fn new(plan: &Plan, sorted: &[Duration]) -> Self {
        let micros: Vec<f64> = sorted.iter().map(|time| time.as_secs_f64() * 1e6 / factor(plan)).collect();
        let (Some(min), Some(max)) = (micros.first(), micros.last()) else { return Self::default() };
        let count = micros.len() as f64;
        // The smallest time that is not exceeded by this part of the messages.
        let at = |part: f64| micros.get((count * part).ceil() as usize - 1).copied().unwrap_or(*max);
        let average = micros.iter().sum::<f64>() / count;
        let variance = micros.iter().map(|time| (time - average).powi(2)).sum::<f64>() / count;
        Self {
            min: *min,
            max: *max,
            typical: at(0.5),
            average,
            deviation: variance.sqrt(),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

/// The times in nanoseconds, with three significant digits.
fn histogram(plan: &Plan, times: &[Duration]) -> Result<Histogram<u64>> {
    let mut histogram = Histogram::new(3).context("cannot make a histogram")?;
    for time in times {
        let nanos = (time.as_nanos() as f64 / factor(plan)) as u64;
        histogram.record(nanos.max(1)).context("cannot add to the histogram")?;
    }
    Ok(histogram)
}

/// The buckets of a histogram: powers of 2 of nanoseconds, up to the largest time.
fn buckets(histogram: &Histogram<u64>) -> Vec<(u64, u64, u64)> {
    let mut buckets = Vec::new();
    let mut from = 0;
    for value in histogram.iter_log(64, 2.0) {
        let to = value.value_iterated_to();
        let count = value.count_since_last_iteration();
        // Empty buckets are shown between others only.
        if count > 0 || !buckets.is_empty() {
            buckets.push((from, to + 1, count));
        }
        from = to + 1;
    }
    buckets
}

/// Prints percentiles and a histogram.
fn percentiles(out: &mut dyn Write, histogram: &Histogram<u64>) -> io::Result<()> {
    writeln!(out, " percentile   usec")?;
    for percentile in PERCENTILES {
        let nanos = histogram.value_at_percentile(percentile);
        writeln!(out, " {percentile:<12} {:.2}", nanos as f64 / 1e3)?;
    }
    writeln!(out, " usec (from, below)           messages")?;
    for (from, to, count) in buckets(histogram) {
        let share = count as f64 / histogram.len().max(1) as f64;
        let bar = "#".repeat((share * 40.0).ceil() as usize);
        writeln!(out, " {:>10.2} {:>10.2} {count:>12} {bar}", from as f64 / 1e3, to as f64 / 1e3)?;
    }
    Ok(())
}

/// A row as JSON.
pub(super) fn row_json(plan: &Plan, row: &Row) -> Result<Value> {
    Ok(match row {
        Row::Bandwidth(mine, theirs) => {
            let one = |r: &Report| json!({ "bytes": r.bytes, "iters": r.iters, "bw_peak": r.peak, "bw_average": r.average, "msg_rate": r.rate });
            let mut value = one(mine);
            if let Some(theirs) = theirs {
                value["remote"] = one(theirs);
            }
            value
        }
        Row::Latency(bytes, Times::Sum(count, measured)) => {
            let seconds = measured.as_secs_f64() / (*count).max(1) as f64;
            json!({ "bytes": bytes, "iters": count, "t_avg": seconds * 1e6 / factor(plan), "tps_average": 1.0 / seconds })
        }
        Row::Latency(bytes, Times::Each(times)) => {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let f = Figures::new(plan, &sorted);
            let histogram = histogram(plan, times)?;
            let percentiles: serde_json::Map<_, _> = PERCENTILES
                .into_iter()
                .map(|p| (p.to_string(), json!(histogram.value_at_percentile(p) as f64 / 1e3)))
                .collect();
            let buckets: Vec<_> = buckets(&histogram)
                .into_iter()
                .map(|(from, to, count)| json!({ "from": from as f64 / 1e3, "below": to as f64 / 1e3, "count": count }))
                .collect();
            json!({
                "bytes": bytes, "iters": plan.iters, "t_min": f.min, "t_max": f.max, "t_typical": f.typical,
                "t_avg": f.average, "t_stdev": f.deviation, "percentiles": percentiles, "histogram": buckets,
            })
        }
    })
}

/// The whole result as JSON; times are in microseconds.
pub(super) fn json(plan: &Plan, facts: &Facts<'_>, rows: Vec<Value>) -> Value {
    json!({
        "test": plan.name(),
        "role": if plan.is_client() { "client" } else { "server" },
        "device": facts.device,
        "driver": facts.driver,
        "connection": plan.common.connection.name(),
        "mtu": facts.mtu.bytes(),
        "num_qp": plan.num_qp,
        "tx_depth": plan.tx_depth,
        "post_list": plan.post_list,
        "cq_mod": plan.cq_mod,
        "inline_size": facts.inline,
        "bidirectional": plan.bidirectional,
        "duration": plan.duration.map(|span| span.total.as_secs()),
        "unit": match (plan.kind, plan.gbits) {
            (Kind::Latency, _) => "usec",
            (Kind::Bandwidth, true) => "Gb/sec",
            (Kind::Bandwidth, false) => "MiB/sec",
        },
        "results": rows,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::options::tests::parse;

    fn text(line: &str, r: &Row) -> (String, String) {
        let plan = parse(line).unwrap();
        let (mut head, mut body) = (Vec::new(), Vec::new());
        heading(&mut head, &plan).unwrap();
        row(&mut body, &plan, r).unwrap();
        let head = String::from_utf8(head).unwrap();
        (head.lines().last().unwrap().to_owned(), String::from_utf8(body).unwrap())
    }

    fn micros(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn bandwidth_is_below_its_heading() {
        let report = Report { bytes: 65536, iters: 1000, peak: 1234.5, average: 1200.25, rate: 0.0192 };
        let (head, body) = text("write-bw", &Row::Bandwidth(report, None));
        assert_eq!(body, " 65536      1000           1234.50            1200.25              0.019200\n");
        for (column, value) in [("#bytes", "65536"), ("BW peak", "1234.50"), ("MsgRate", "0.019200")] {
            assert_eq!(head.find(column), body.find(value), "{column}");
        }
        let (head, body) = text("write-bw --report_gbits -b", &Row::Bandwidth(report, Some(report)));
        assert!(head.contains("BW peak[Gb/sec]") && body.contains(" 2400.50 "), "{head}\n{body}");
    }

    #[test]
    fn latency_is_below_its_heading() {
        let times = (1..=100).map(|n| micros(2 * n)).collect();
        let (head, body) = text("send-lat", &Row::Latency(2, Times::Each(times)));
        let values: Vec<f64> = body.split_whitespace().map(|word| word.parse().unwrap()).collect();
        // Half of a round trip each.
        assert_eq!(values, [2.0, 1000.0, 1.0, 100.0, 50.0, 50.5, 28.87, 99.0, 100.0]);
        assert_eq!(head.find("#iterations"), body.find("1000"));
        assert_eq!(head.split_whitespace().count(), values.len() + 2, "two columns have two words");
        let (head, body) = text("read-lat -D 4", &Row::Latency(8, Times::Sum(1000, Duration::from_secs(2))));
        assert_eq!(body, " 8             1000              2000.00        500.00\n");
        assert_eq!(head.find("t_avg"), body.find("2000.00"));
    }

    #[test]
    fn percentiles_and_histogram_cover_all_times() {
        let plan = parse("read-lat --percentiles").unwrap();
        let times: Vec<_> = (0..99).map(|_| micros(3)).chain([micros(700)]).collect();
        let all = histogram(&plan, &times).unwrap();
        let buckets = buckets(&all);
        assert_eq!(buckets.iter().map(|(.., count)| count).sum::<u64>(), 100);
        let (from, to, count) = buckets[0];
        assert!(from <= 3000 && 3000 < to && count == 99, "{buckets:?}");
        let value = row_json(&plan, &Row::Latency(2, Times::Each(times.clone()))).unwrap();
        assert!((value["percentiles"]["50"].as_f64().unwrap() - 3.0).abs() < 0.01, "{value}");
        assert!((value["percentiles"]["100"].as_f64().unwrap() - 700.0).abs() < 1.0, "{value}");
        let (_, body) = text("read-lat --percentiles", &Row::Latency(2, Times::Each(times)));
        assert!(body.contains(" 99.99 ") && body.contains("####"), "{body}");
    }

    #[test]
    fn each_time_is_printed_on_request() {
        let times = Times::Each(vec![micros(9), micros(3)]);
        let (_, body) = text("read-lat -H -U", &Row::Latency(2, times));
        assert!(body.starts_with("#, usec\n1, 9\n2, 3\n#, usec\n1, 3\n2, 9\n 2 "), "{body}");
    }
}
