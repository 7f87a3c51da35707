// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of the tests: names, defaults and rules are those of perftest.

use crate::number::{number, positive, rate, size};
use clap::ValueEnum;
use core::net::IpAddr;
use core::time::Duration;
use uverbs::attr::Mtu;
use uverbs_cm::PortSpace;

/// Measure a link with a peer, which may be perftest (ib_send_lat, ib_send_bw, ib_write_lat ...)
///
/// Without HOST, uverbs is the server and waits for a client. Both ends need the same test and the same options.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(super) test: TestArgs,
}

/// The tests.
#[derive(Debug, clap::Subcommand)]
pub(super) enum TestArgs {
    /// Latency of sends (ib_send_lat)
    SendLat(LatArgs),
    /// Bandwidth of sends (ib_send_bw)
    SendBw(BwArgs),
    /// Latency of RDMA writes (ib_write_lat)
    WriteLat(LatArgs),
    /// Bandwidth of RDMA writes (ib_write_bw)
    WriteBw(BwArgs),
    /// Latency of RDMA reads (ib_read_lat)
    ReadLat(LatArgs),
    /// Bandwidth of RDMA reads (ib_read_bw)
    ReadBw(BwArgs),
    /// Latency of atomics (ib_atomic_lat)
    AtomicLat(LatArgs),
    /// Bandwidth of atomics (ib_atomic_bw)
    AtomicBw(BwArgs),
}

/// The options of every test.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Common {
    /// TCP host of the server; without it, run as the server
    #[arg(value_name = "HOST")]
    pub(super) host: Option<String>,
    /// Device [default: the first that can be used]
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(super) ib_dev: Option<String>,
    /// Port of the device
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = positive::<u8>)]
    pub(super) ib_port: u8,
    /// Index of the local GID [default on RoCE: the first of version 2, preferably of an IPv4 address]
    #[arg(short = 'x', long, value_name = "INDEX", value_parser = number::<u8>)]
    pub(super) gid_index: Option<u8>,
    /// TCP port to listen on or to connect to
    #[arg(short, long, default_value = "18515", value_parser = positive::<u16>)]
    pub(super) port: u16,
    /// Bytes of a message; k, m and g are units [default: 65536; latency: 2; atomics: 8]
    #[arg(short, long, value_parser = size)]
    pub(super) size: Option<u32>,
    /// All sizes from 2 to 2^23 (UD: to the MTU)
    #[arg(short, long, conflicts_with = "size")]
    pub(super) all: bool,
    /// Number of messages of each size [default: 1000; write-bw: 5000]
    #[arg(short = 'n', long, value_name = "NUM", value_parser = iters)]
    pub(super) iters: Option<u32>,
    /// Run for this number of seconds instead of a number of messages
    #[arg(short = 'D', long, value_name = "SECS", value_parser = positive::<u32>,
        conflicts_with_all = ["iters", "all", "events"])]
    pub(super) duration: Option<u32>,
    /// Seconds at the beginning and at the end of --duration that are not measured [default: a quarter, at most 2]
    #[arg(short = 'f', long, value_name = "SECS", requires = "duration", value_parser = number::<u32>)]
    pub(super) margin: Option<u32>,
    /// Connection type
    #[arg(short = 'c', long, value_name = "TYPE", default_value = "RC", ignore_case = true)]
    pub(super) connection: Connection,
    /// Path MTU in bytes [default: that of the port]
    #[arg(short, long, value_name = "SIZE", value_parser = mtu)]
    pub(super) mtu: Option<Mtu>,
    /// Service level
    #[arg(short = 'S', long, default_value = "0", value_parser = clap::value_parser!(u8).range(0..=15))]
    pub(super) sl: u8,
    /// Traffic class of packets with a global route
    #[arg(long, value_name = "CLASS", default_value = "0", value_parser = number::<u8>)]
    pub(super) tclass: u8,
    /// Flow label of packets with a global route, 20 bits
    #[arg(long = "flow_label", value_name = "LABEL", default_value = "0",
        value_parser = clap::value_parser!(u32).range(0..1 << 20))]
    pub(super) flow_label: u32,
    /// Index of the partition key
    #[arg(long = "pkey_index", value_name = "INDEX", default_value = "0", value_parser = number::<u16>)]
    pub(super) pkey_index: u16,
    /// Acknowledgement timeout: 4.096 us times 2 to this power
    #[arg(short = 'u', long, value_name = "CODE", default_value = "14",
        value_parser = clap::value_parser!(u8).range(0..=31))]
    pub(super) qp_timeout: u8,
    /// Depth of the send queue [default: 128; latency: 1]
    #[arg(short, long, value_name = "NUM", value_parser = positive::<u32>)]
    pub(super) tx_depth: Option<u32>,
    /// Receives to keep posted (sends only) [default: 512; UC and UD: the number of messages]
    #[arg(short, long, value_name = "NUM", value_parser = positive::<u32>)]
    pub(super) rx_depth: Option<u32>,
    /// Outstanding reads or atomics (tests of these only) [default: the device's maximum]
    #[arg(short = 'o', long, value_name = "NUM", value_parser = positive::<u8>)]
    pub(super) outs: Option<u8>,
    /// Send messages of up to this size inline (sends and writes only) [default: 0; latency: as perftest]
    #[arg(short = 'I', long = "inline_size", value_name = "SIZE", value_parser = number::<u32>)]
    pub(super) inline_size: Option<u32>,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    pub(super) events: bool,
    /// Completion vector of the events, below the device's number of vectors [default: 0]
    #[arg(short = 'X', long, value_name = "NUM", requires = "events", value_parser = number::<u32>)]
    pub(super) vector: Option<u32>,
    /// Atomic operation (atomic tests only) [default: FETCH_AND_ADD]
    #[arg(short = 'A', long = "atomic_type", value_name = "TYPE", ignore_case = true)]
    pub(super) atomic_type: Option<AtomicType>,
    /// Connect the QPs by rdma_cm to the address HOST (RC and UD); the exchange is that of --comm_rdma_cm
    #[arg(short = 'R', long = "rdma_cm", conflicts_with = "loopback")]
    pub(super) rdma_cm: bool,
    /// Exchange the keys over a connection of rdma_cm, not over TCP
    #[arg(short = 'z', long = "comm_rdma_cm", alias = "com_rdma_cm", conflicts_with = "loopback")]
    pub(super) comm_rdma_cm: bool,
    /// Type of service of the connections of --rdma_cm
    #[arg(short = 'T', long, requires = "rdma_cm", value_parser = number::<u8>)]
    pub(super) tos: Option<u8>,
    /// Receive into a shared receive queue (sends only)
    #[arg(long)]
    pub(super) use_srq: bool,
    /// Retransmissions before a QP fails, 3 bits
    #[arg(long = "retry_count", value_name = "NUM", default_value = "7",
        value_parser = clap::value_parser!(u8).range(0..=7))]
    pub(super) retry_count: u8,
    /// Print only this figure
    #[arg(long, value_name = "FIGURE", conflicts_with = "json")]
    pub(super) output: Option<Output>,
    /// Accepted for compatibility with perftest: there is one way to post
    #[arg(long = "use_old_post_send")]
    pub(super) use_old_post_send: bool,
    /// Accepted for compatibility with perftest: the frequency of the CPU is not used
    #[arg(short = 'F', long = "CPU-freq")]
    pub(super) cpu_freq: bool,
    /// Both ends in this process, on one device (always with hca0 without a fabric)
    #[arg(long, conflicts_with = "host")]
    pub(super) loopback: bool,
    /// Address to listen on [default: all]
    #[arg(long, value_name = "IP", conflicts_with = "host")]
    pub(super) bind: Option<IpAddr>,
    /// Fail after this number of seconds without progress; 0 means never
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = number::<u32>)]
    pub(super) timeout: u32,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// The options of a latency test.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct LatArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Print each time, sorted
    #[arg(short = 'H', long, alias = "report-histogrm")]
    pub(super) report_histogram: bool,
    /// Print each time, in the order of the messages
    #[arg(short = 'U', long)]
    pub(super) report_unsorted: bool,
    /// Print percentiles and a histogram
    #[arg(long)]
    pub(super) percentiles: bool,
}

/// The options of a bandwidth test.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct BwArgs {
    #[command(flatten)]
    pub(super) common: Common,
    /// Number of QPs
    #[arg(short = 'q', long = "qp", value_name = "NUM", default_value = "1", value_parser = positive::<u16>)]
    pub(super) num_qp: u16,
    /// Messages per doorbell
    #[arg(short = 'l', long = "post_list", value_name = "NUM", default_value = "1", value_parser = positive::<u32>)]
    pub(super) post_list: u32,
    /// Receives that are posted as one list (sends only)
    #[arg(long = "recv_post_list", value_name = "NUM", default_value = "1", value_parser = positive::<u32>)]
    pub(super) recv_post_list: u32,
    /// A completion for this number of messages [default: 100; that of --post_list; 1 above 8192 bytes]
    #[arg(short = 'Q', long, value_name = "NUM", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) cq_mod: Option<u32>,
    /// Measure both directions at the same time
    #[arg(short, long)]
    pub(super) bidirectional: bool,
    /// Do not compute the peak
    #[arg(short = 'N', long = "noPeak")]
    pub(super) no_peak: bool,
    /// Gbit/s instead of MiB/s
    #[arg(long = "report_gbits")]
    pub(super) report_gbits: bool,
    /// Fail if the average bandwidth is below this, in the unit of the table
    #[arg(short = 'w', long = "limit_bw", value_name = "RATE", value_parser = rate)]
    pub(super) limit_bw: Option<f64>,
    /// Fail if the rate is below this number of millions of messages a second
    #[arg(short = 'y', long = "limit_msgrate", value_name = "RATE", value_parser = rate)]
    pub(super) limit_msgrate: Option<f64>,
}

/// The connection types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(super) enum Connection {
    Rc,
    Uc,
    Ud,
    Xrc,
    Dc,
    Srd,
}

impl Connection {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::Xrc => "XRC",
            Self::Dc => "DC",
            Self::Srd => "SRD",
        }
    }
}

/// The figures of `--output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Output {
    Bandwidth,
    MessageRate,
    Latency,
}

/// The atomic operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "SCREAMING_SNAKE")]
pub(super) enum AtomicType {
    #[default]
    FetchAndAdd,
    CmpAndSwap,
}

/// The operation of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Send,
    Write,
    Read,
    Atomic,
}

impl Verb {
    const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }
}

/// What a test measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Latency,
    Bandwidth,
}

fn mtu(text: &str) -> Result<Mtu, String> {
    Mtu::from_bytes(number(text)?).ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".into())
}

fn iters(text: &str) -> Result<u32, String> {
    match number::<u64>(text)? {
        n @ 5..=100_000_000 => Ok(n as u32),
        _ => Err("must be 5..100000000".into()),
    }
}

/// The largest message of `--all`, as a power of 2.
const LARGEST: u32 = 23;
/// The default of `--cq-mod`, and the largest message for which it applies.
const CQ_MOD: u32 = 100;
const CQ_MOD_BYTES: u32 = 8192;
/// Messages above which no peak is computed.
const PEAK_ITERS: u32 = 20_000;
/// Receives of UC and UD by default, at most.
const UNRELIABLE_RX: u32 = 16_000;

/// The options of a test with the defaults and rules applied.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) verb: Verb,
    pub(super) kind: Kind,
    pub(super) common: Common,
    /// The sizes of `--all` for UD depend on the MTU: [`Plan::sizes`].
    pub(super) size: u32,
    pub(super) iters: u32,
    pub(super) duration: Option<Span>,
    pub(super) tx_depth: u32,
    pub(super) rx_depth: u32,
    pub(super) num_qp: usize,
    pub(super) post_list: u32,
    pub(super) recv_post_list: u32,
    pub(super) cq_mod: u32,
    pub(super) bidirectional: bool,
    pub(super) no_peak: bool,
    pub(super) gbits: bool,
    /// The least bandwidth and rate.
    pub(super) limits: [Option<f64>; 2],
    pub(super) each_sorted: bool,
    pub(super) each_unsorted: bool,
    pub(super) percentiles: bool,
}

/// The times of `--duration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) total: Duration,
    /// Not measured at the beginning and at the end.
    pub(super) margin: Duration,
}

impl Args {
    /// Applies the defaults, and refuses invalid combinations.
    pub(super) fn resolve(self) -> Result<Plan, String> {
        use Kind::{Bandwidth, Latency};
        let (verb, kind) = match &self.test {
            TestArgs::SendLat(_) => (Verb::Send, Latency),
            TestArgs::SendBw(_) => (Verb::Send, Bandwidth),
            TestArgs::WriteLat(_) => (Verb::Write, Latency),
            TestArgs::WriteBw(_) => (Verb::Write, Bandwidth),
            TestArgs::ReadLat(_) => (Verb::Read, Latency),
            TestArgs::ReadBw(_) => (Verb::Read, Bandwidth),
            TestArgs::AtomicLat(_) => (Verb::Atomic, Latency),
            TestArgs::AtomicBw(_) => (Verb::Atomic, Bandwidth),
        };
        match self.test {
            TestArgs::SendLat(args)
            | TestArgs::WriteLat(args)
            | TestArgs::ReadLat(args)
            | TestArgs::AtomicLat(args) => {
                let (sorted, unsorted) = (args.report_histogram, args.report_unsorted);
                let bw = BwArgs {
                    common: args.common,
                    num_qp: 1,
                    post_list: 1,
                    recv_post_list: 1,
                    cq_mod: None,
                    bidirectional: false,
                    no_peak: true,
                    report_gbits: false,
                    limit_bw: None,
                    limit_msgrate: None,
                };
                let plan = Plan::new(verb, kind, bw)?;
                Ok(Plan {
                    each_sorted: sorted,
                    each_unsorted: unsorted,
                    percentiles: args.percentiles,
                    ..plan
                })
            }
            TestArgs::SendBw(args)
            | TestArgs::WriteBw(args)
            | TestArgs::ReadBw(args)
            | TestArgs::AtomicBw(args) => Plan::new(verb, kind, args),
        }
    }
}

impl Plan {
    fn new(verb: Verb, kind: Kind, args: BwArgs) -> Result<Self, String> {
        let BwArgs { common, num_qp, post_list, cq_mod, bidirectional, no_peak, report_gbits, .. } = args;
        if let Some(output) = common.output.filter(|o| (*o == Output::Latency) != (kind == Kind::Latency)) {
            return Err(format!("this test does not measure --output {output:?}").to_lowercase());
        }
        let connection = common.connection;
        let allowed = match connection {
            Connection::Rc | Connection::Xrc | Connection::Dc => true,
            Connection::Uc => matches!(verb, Verb::Send | Verb::Write),
            Connection::Ud => verb == Verb::Send,
            Connection::Srd => verb != Verb::Atomic,
        };
        if !allowed {
            return Err(format!("--connection {} has no {}", connection.name(), verb.name()));
        }
        if (connection, verb, kind) == (Connection::Srd, Verb::Write, Kind::Latency) {
            return Err(
                "--connection SRD has no write-lat: the bytes of a write arrive in any order, so the last one does not show that all have"
                    .into(),
            );
        }
        if cq_mod.is_some_and(|cq_mod| cq_mod > 1) && connection == Connection::Srd {
            return Err("--cq-mod: SRD completes each request".into());
        }
        if verb == Verb::Atomic && common.all {
            return Err("--all is not for atomics, which have 8 bytes".into());
        }
        if let Some(size) = common.size.filter(|size| verb == Verb::Atomic && *size != 8) {
            return Err(format!("--size {size}: an atomic has 8 bytes"));
        }
        let reads = matches!(verb, Verb::Read | Verb::Atomic);
        for (is_given, option, is_allowed, tests) in [
            (
                common.use_srq,
                "--use-srq",
                verb == Verb::Send && connection != Connection::Srd,
                "sends, and not of SRD",
            ),
            (args.recv_post_list > 1, "--recv_post_list", verb == Verb::Send, "sends"),
            (common.rx_depth.is_some_and(|depth| depth > 1), "--rx-depth", verb == Verb::Send, "sends"),
            (common.inline_size.is_some(), "--inline_size", !reads, "sends and writes"),
            (common.outs.is_some(), "--outs", reads, "reads and atomics"),
            (common.atomic_type.is_some(), "--atomic_type", verb == Verb::Atomic, "atomics"),
        ] {
            if is_given && !is_allowed {
                return Err(format!("{option} is for {tests}"));
            }
        }
        if kind == Kind::Latency && verb == Verb::Write && common.events {
            return Err("--events: write-lat polls memory, so it has no events".into());
        }
        if common.rdma_cm && !matches!(connection, Connection::Rc | Connection::Ud) {
            return Err(format!("--rdma_cm does not connect {}, as in perftest", connection.name()));
        }
        let largest = match (verb, kind) {
            (Verb::Atomic, _) => 8,
            (_, Kind::Latency) => 2,
            (_, Kind::Bandwidth) => 65536,
        };
        let size = if common.all { 1 << LARGEST } else { common.size.unwrap_or(largest) };
        if size > 1 << 30 {
            return Err(format!("--size {size} is more than 1 GiB"));
        }
        let defaults = if (verb, kind) == (Verb::Write, Kind::Bandwidth) { 5000 } else { 1000 };
        let iters = common.iters.unwrap_or(defaults);
        let duration = match common.duration {
            None => None,
            Some(seconds) => {
                let total = Duration::from_secs(seconds.into());
                let margin = common
                    .margin
                    .map_or((total / 4).min(Duration::from_secs(2)), |s| Duration::from_secs(s.into()));
                if margin * 2 >= total {
                    return Err("nothing is left between the margins of --duration".into());
                }
                Some(Span { total, margin })
            }
        };
        let limit = if duration.is_some() { u32::MAX } else { iters };
        let tx_depth = common.tx_depth.unwrap_or(if kind == Kind::Latency { 1 } else { 128 }).min(limit);
        let is_unreliable = matches!(connection, Connection::Uc | Connection::Ud);
        let rx_depth = match common.rx_depth {
            Some(depth) => depth,
            None if is_unreliable && duration.is_none() => iters.min(UNRELIABLE_RX),
            None => 512,
        };
        let rx_depth = if verb == Verb::Send { rx_depth.min(limit) } else { 1 };
        if rx_depth % args.recv_post_list != 0 {
            return Err(format!("--rx-depth {rx_depth} is not a multiple of --recv_post_list"));
        }
        if post_list > tx_depth {
            return Err(format!("--post_list {post_list} is more than --tx-depth {tx_depth}"));
        }
        if duration.is_none() && iters % post_list != 0 {
            return Err(format!("--iters {iters} is not a multiple of --post_list {post_list}"));
        }
        let cq_mod = match cq_mod {
            Some(n) if post_list > 1 && post_list % n != 0 => {
                return Err(format!("--post_list {post_list} is not a multiple of --cq-mod {n}"));
            }
            Some(n) => n,
            None if connection == Connection::Srd => 1,
            None if post_list > 1 => post_list,
            None if size > CQ_MOD_BYTES && connection != Connection::Ud && !common.all && !common.events => 1,
            None => CQ_MOD,
        };
        Ok(Self {
            verb,
            kind,
            size,
            iters,
            duration,
            tx_depth,
            rx_depth,
            num_qp: num_qp.into(),
            post_list,
            recv_post_list: args.recv_post_list,
            cq_mod: cq_mod.min(tx_depth),
            bidirectional,
            no_peak: no_peak || duration.is_some() || iters > PEAK_ITERS,
            gbits: report_gbits,
            limits: [args.limit_bw, args.limit_msgrate],
            common,
            each_sorted: false,
            each_unsorted: false,
            percentiles: false,
        })
    }

    /// The name of the test in JSON, as perftest's programs are called.
    pub(super) fn name(&self) -> String {
        let kind = if self.kind == Kind::Latency { "lat" } else { "bw" };
        format!("{}_{kind}", self.verb.name())
    }

    /// Whether the exchange is that of rdma_cm.
    pub(super) fn exchanges_by_cm(&self) -> bool {
        self.common.rdma_cm || self.common.comm_rdma_cm
    }

    /// The port space of the QPs that rdma_cm connects.
    pub(super) fn port_space(&self) -> PortSpace {
        if self.common.connection == Connection::Ud { PortSpace::Udp } else { PortSpace::Tcp }
    }

    /// Whether a message is one packet.
    fn is_datagram(&self) -> bool {
        let connection = self.common.connection;
        connection == Connection::Ud || connection == Connection::Srd && self.verb == Verb::Send
    }

    pub(super) fn is_client(&self) -> bool {
        self.common.host.is_some()
    }

    /// Whether both ends send and receive in one test: latencies of sends and writes go both ways.
    pub(super) fn is_symmetric(&self) -> bool {
        self.kind == Kind::Latency || self.bidirectional
    }

    /// The sizes to measure. `longest` is the longest datagram: of UD the MTU, of SRD the longest message of the port.
    pub(super) fn sizes(&self, longest: u32) -> Result<Vec<u32>, String> {
        let is_datagram = self.is_datagram();
        if self.common.all {
            let largest = if is_datagram { longest.ilog2() } else { LARGEST };
            return Ok((1..=largest).map(|power| 1 << power).collect());
        }
        if is_datagram && self.size > longest {
            return match self.common.size {
                Some(size) => Err(format!("--size {size}: the longest datagram has {longest} bytes")),
                None => Ok(vec![longest]),
            };
        }
        Ok(vec![self.size])
    }

    /// How long to wait without progress; `None` is for ever.
    pub(super) fn patience(&self) -> Option<Duration> {
        (self.common.timeout != 0).then(|| Duration::from_secs(self.common.timeout.into()))
    }

    /// How long to wait for a message of the exchange when the test runs. The server of a test in which only the client's
    /// device works waits for the whole test, and sees no progress. `None` is for ever.
    pub(super) fn patience_of_exchange(&self) -> Option<Duration> {
        let is_bandwidth = self.kind == Kind::Bandwidth;
        let client_works = match self.verb {
            Verb::Send => false,
            Verb::Write => is_bandwidth && !self.bidirectional,
            Verb::Read | Verb::Atomic => !self.bidirectional,
        };
        let limit = self.patience()?;
        match self.duration {
            _ if self.is_client() || !client_works => Some(limit),
            Some(span) => Some(limit + span.total),
            None => None,
        }
    }

    /// The longest message that is sent inline, if the device can; perftest's defaults.
    pub(super) fn inline_size(&self) -> u32 {
        let is_latency = self.kind == Kind::Latency;
        match (self.verb, self.common.inline_size) {
            (Verb::Read | Verb::Atomic, _) => 0,
            (_, Some(size)) => size,
            (_, None) if is_latency && self.common.connection == Connection::Dc => 150,
            (_, None) if is_latency && self.common.connection == Connection::Srd => 32,
            (Verb::Write, None) if is_latency => 220,
            (Verb::Send, None) if is_latency && self.common.connection == Connection::Ud => 188,
            (Verb::Send, None) if is_latency => 236,
            (_, None) => 0,
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
