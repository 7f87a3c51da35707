// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of the ping-pongs. Flags and defaults are those of rdma-core's `ibv_{rc,uc,ud,srq}_pingpong`.

use crate::number::{number, positive, size};
use core::net::IpAddr;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use uverbs::attr::Mtu;

/// Endpoints that the SRQ ping-pong exchanges, independent of the number of QPs.
pub(crate) const SRQ_ENDPOINTS: usize = 256;

/// Exchange messages with a peer, which may be rdma-core's ibv_{rc,uc,ud,srq}_pingpong
///
/// Without HOST, uverbs is the server and waits for a client. The figures are those of the C programs: bytes and
/// iterations of both directions together, and the time per exchange.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) transport: TransportArgs,
}

/// The transport, with its own options.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TransportArgs {
    /// Reliable connection (ibv_rc_pingpong)
    Rc {
        #[command(flatten)]
        connected: Connected,
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        memory: Memory,
    },
    /// Unreliable connection (ibv_uc_pingpong)
    Uc {
        #[command(flatten)]
        connected: Connected,
        #[command(flatten)]
        common: Common,
    },
    /// Unreliable datagrams (ibv_ud_pingpong)
    Ud {
        #[command(flatten)]
        common: Common,
    },
    /// Scalable reliable datagrams (no program of rdma-core)
    Srd {
        #[command(flatten)]
        common: Common,
    },
    /// Reliable connections that share a receive queue (ibv_srq_pingpong)
    Srq {
        #[command(flatten)]
        connected: Connected,
        /// Number of QPs
        #[arg(short = 'q', long, value_name = "NUM", default_value = "16", value_parser = positive::<u8>)]
        num_qp: u8,
        #[command(flatten)]
        common: Common,
        #[command(flatten)]
        memory: Memory,
    },
}

/// The options of connected transports.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Connected {
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096
    #[arg(short, long, value_name = "SIZE", default_value = "1024", value_parser = mtu)]
    pub(crate) mtu: Mtu,
}

/// Kinds of memory, on reliable transports.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct Memory {
    /// Use on-demand paging
    #[arg(short, long)]
    pub(crate) odp: bool,
    /// Use device memory
    #[arg(short = 'j', long, conflicts_with = "odp")]
    pub(crate) dm: bool,
}

/// The options of every ping-pong.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Common {
    /// TCP host of the server; without it, run as the server
    #[arg(value_name = "HOST")]
    pub(crate) host: Option<String>,
    /// TCP port to listen on or to connect to
    #[arg(short, long, default_value = "18515", value_parser = positive::<u16>)]
    pub(crate) port: u16,
    /// RDMA device [default: the first that can be used]
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Connect by rdma_cm; HOST is then an IP address of the server's RDMA device, and selects the device
    #[arg(long)]
    pub(crate) cm: bool,
    /// Port of the device
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = positive::<u8>)]
    pub(crate) ib_port: u8,
    /// Bytes of a message; k, m and g are units [default: 4096; ud, srd: 1024]
    #[arg(short, long, value_parser = size)]
    pub(crate) size: Option<u32>,
    /// Receives to keep posted
    #[arg(short, long, value_name = "DEPTH", default_value = "500", value_parser = positive::<u32>)]
    pub(crate) rx_depth: u32,
    /// Number of exchanges
    #[arg(short = 'n', long, default_value = "1000", value_parser = positive::<u32>)]
    pub(crate) iters: u32,
    /// Service level
    #[arg(short = 'l', long, default_value = "0", value_parser = sl)]
    pub(crate) sl: u8,
    /// Sleep on completion events instead of polling
    #[arg(short, long)]
    pub(crate) events: bool,
    /// Index of the port's GID to use [default on RoCE: the first of version 2, preferably of an IPv4 address]
    #[arg(short, long, value_name = "INDEX", value_parser = number::<u8>)]
    pub(crate) gid_idx: Option<u8>,
    /// Check the received data (both ends need this option)
    #[arg(short, long)]
    pub(crate) chk: bool,
    /// Post sends by the wr_* builders
    #[arg(short = 'N', long = "new_send", visible_alias = "new-send")]
    pub(crate) new_send: bool,
    /// Read the completions' timestamps
    #[arg(short, long)]
    pub(crate) ts: bool,
    /// Address to listen on [default: all]
    #[arg(long, value_name = "IP", conflicts_with = "host")]
    pub(crate) bind: Option<IpAddr>,
    /// Fail after this number of seconds without progress; 0 means never
    #[arg(long, value_name = "SECS", default_value = "60", value_parser = number::<u32>)]
    pub(crate) timeout: u32,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn mtu(text: &str) -> Result<Mtu, String> {
    Mtu::from_bytes(number(text)?).ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".into())
}

fn sl(text: &str) -> Result<u8, String> {
    match number::<u8>(text)? {
        sl @ 0..=15 => Ok(sl),
        _ => Err("must be 0..15".into()),
    }
}

/// The program: one of rdma-core's four, or SRD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Rc,
    Uc,
    Ud,
    Srd,
    Srq,
}

impl Program {
    /// Whether each message names its destination.
    pub(crate) const fn is_datagram(self) -> bool {
        matches!(self, Self::Ud | Self::Srd)
    }

    /// The name of the subcommand.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srd => "srd",
            Self::Srq => "srq",
        }
    }
}

/// The options, in one form for all programs.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) program: Program,
    pub(crate) size: u32,
    pub(crate) mtu: Mtu,
    pub(crate) num_qp: u8,
    pub(crate) memory: Memory,
    pub(crate) common: Common,
    /// The other end, if it is in this process. Then TCP is not used, and the server prints nothing.
    pub(crate) here: Option<Arc<UnixStream>>,
    /// Whether an end in this process failed, so that the other one must not wait for it.
    pub(crate) has_failed: Arc<AtomicBool>,
}

impl Args {
    /// Applies the defaults, and refuses invalid combinations.
    pub(crate) fn resolve(self) -> Result<Options, String> {
        let mtu_of = |connected: Connected| connected.mtu;
        let none = Memory::default();
        let (program, mtu, num_qp, memory, common) = match self.transport {
            TransportArgs::Rc { connected, common, memory } => {
                (Program::Rc, mtu_of(connected), 1, memory, common)
            }
            TransportArgs::Uc { connected, common } => (Program::Uc, mtu_of(connected), 1, none, common),
            // Not used: a datagram is one packet, of the port's MTU.
            TransportArgs::Ud { common } => (Program::Ud, Mtu::MTU_1024, 1, none, common),
            TransportArgs::Srd { common } => (Program::Srd, Mtu::MTU_1024, 1, none, common),
            TransportArgs::Srq { connected, num_qp, common, memory } => {
                (Program::Srq, mtu_of(connected), num_qp, memory, common)
            }
        };
        if u32::from(num_qp) > common.rx_depth {
            return Err(format!(
                "--rx-depth {} is too small for {num_qp} QPs: each needs a receive",
                common.rx_depth
            ));
        }
        if common.cm && program == Program::Srd {
            return Err("--cm: SRD has no connection, and no connection manager".into());
        }
        let size = common.size.unwrap_or(if program.is_datagram() { 1024 } else { 4096 });
        if size > 1 << 30 {
            return Err(format!("--size {size} is more than 1 GiB"));
        }
        Ok(Options { program, size, mtu, num_qp, memory, common, here: None, has_failed: Arc::default() })
    }
}

impl Options {
    /// Whether it begins the exchange.
    pub(crate) fn is_client(&self) -> bool {
        self.common.host.is_some()
    }

    /// Whether this end prints nothing, because the other end, in this process, prints the result.
    pub(crate) fn is_silent(&self) -> bool {
        self.here.is_some() && !self.is_client()
    }

    /// How long to wait without progress; `None` is for ever.
    pub(crate) fn patience(&self) -> Option<Duration> {
        (self.common.timeout != 0).then(|| Duration::from_secs(self.common.timeout.into()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    pub(crate) fn parse(line: &str) -> Result<Options, String> {
        let words = core::iter::once("pingpong").chain(line.split_whitespace());
        Line::try_parse_from(words).map_err(|e| e.to_string())?.args.resolve()
    }

    #[test]
    fn defaults_are_those_of_the_c_programs() {
        for (line, program, size, num_qp) in [
            ("rc", Program::Rc, 4096, 1),
            ("uc", Program::Uc, 4096, 1),
            ("ud", Program::Ud, 1024, 1),
            ("srd", Program::Srd, 1024, 1),
            ("srq", Program::Srq, 4096, 16),
        ] {
            let o = parse(line).unwrap();
            assert_eq!((o.program, o.size, o.num_qp), (program, size, num_qp), "{line}");
            assert_eq!(o.mtu, Mtu::MTU_1024);
            let c = o.common;
            assert_eq!((c.port, c.ib_port, c.rx_depth, c.iters, c.sl), (18515, 1, 500, 1000, 0));
            assert_eq!((c.host, c.ib_dev, c.gid_idx), (None, None, None));
            assert!(!(c.events || c.chk || c.new_send || c.ts || c.json));
        }
    }

    #[test]
    fn short_and_long_flags_mean_the_same() {
        let short =
            parse("srq -p 1 -d rxe0 -i 2 -s 8 -m 256 -q 3 -r 9 -n 7 -l 4 -e -g 1 -c -N -t -o h").unwrap();
        let long = parse(
            "srq --port 1 --ib-dev rxe0 --ib-port 2 --size 8 --mtu 256 --num-qp 3 --rx-depth 9 --iters 7 --sl 4 \
             --events --gid-idx 1 --chk --new_send --ts --odp h",
        )
        .unwrap();
        assert_eq!(format!("{short:?}"), format!("{long:?}"));
        assert!(short.is_client() && short.memory.odp);
        assert_eq!(parse("rc -s 1k").unwrap().size, 1024);
        assert_eq!(short.common.ib_dev.as_deref(), Some("rxe0"));
    }

    #[test]
    fn invalid_options_are_refused() {
        for line in [
            "",
            "xrc",
            "rc -p 0",
            "rc -p 65536",
            "rc -i 0",
            "rc -i 256",
            "rc -m 1000",
            "rc -l 16",
            "rc -g 256",
            "rc -g -1",
            "rc -n 0",
            "rc -r 0",
            "rc -s 0",
            "rc -s 0x40000001",
            "rc -q 2",
            "ud -m 1024",
            "ud -o",
            "srd -m 1024",
            "srd --cm",
            "rc -o -j",
            "srq -q 0",
            "srq -q 256",
            "srq -q 16 -r 15",
            "rc --bind 10.0.0.1 host",
            "rc --bind nowhere",
            "rc host other",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
