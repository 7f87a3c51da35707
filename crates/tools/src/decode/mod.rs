// SPDX-License-Identifier: MIT OR Apache-2.0
//! `uverbs decode`: entries of queues in words. The library `uverbs_decode` reads them; this module gets the bytes and prints.

mod live;

use crate::number::{number, positive};
use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use uverbs_decode::ring::{Ring, RxeHeader};
use uverbs_decode::{Device, Format, QueueKind, What, decode, text};
use uverbs_fabric::ring::{Queue, RingDump};

/// Show the WQEs and CQEs of a queue in words: field, value, meaning
///
/// The bytes are hexadecimal digits: as arguments, in a file, or on standard input, as xxd, hexdump -C, a debugger or the kernel's log
/// prints them. One entry is printed as a table, a ring (--ring) as a line for each entry. Bits that no field has are shown as reserved.
///
/// A live queue of another process is read from its memory with --pid, --address and --length. With --pid alone, the queues are
/// listed that the process has mapped from RDMA devices.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The device whose format the entries have
    #[arg(long, value_parser = device())]
    device: Device,
    /// What the entries are
    #[arg(value_enum)]
    what: WhatArg,
    /// The bytes in hexadecimal digits [default: standard input]
    hex: Vec<String>,
    /// The type of the QP, which determines the fields of send WQEs of mlx5 and rxe
    #[arg(long, value_enum, default_value = "rc", value_name = "TYPE")]
    qp_type: KindArg,
    /// Read the digits from this file
    #[arg(long, value_name = "FILE", conflicts_with = "hex")]
    file: Option<PathBuf>,
    /// The file, or standard input, has the bytes themselves
    #[arg(long, conflicts_with = "hex")]
    binary: bool,
    /// The bytes are a whole ring
    #[arg(long)]
    ring: bool,
    /// Bytes from one entry of the ring to the next [default: the usual ones]
    #[arg(long, value_name = "BYTES", value_parser = positive::<usize>, requires = "ring")]
    stride: Option<usize>,
    /// Begin with this slot of the ring; the ones in front of it follow at the end
    #[arg(long, value_name = "SLOT", value_parser = number::<usize>, requires = "ring")]
    first: Option<usize>,
    /// The ring of rxe begins with its header, which has the stride and the indices
    #[arg(long, requires = "ring", conflicts_with = "stride")]
    header: bool,
    /// Print a table for each entry of the ring
    #[arg(long, requires = "ring")]
    table: bool,
    /// Read the queue of a QP from the devices of uverbs-hca or uverbs-efa, by its control socket
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["hex", "file", "binary", "pid"], requires = "qp")]
    control: Option<PathBuf>,
    /// The number of the QP, with --control. `cqe` is the CQ of its sends, or with --recv-cq that of its receives
    #[arg(long, value_name = "QPN", value_parser = number::<u32>, requires = "control")]
    qp: Option<u32>,
    /// The CQ of the QP's receives, with --control
    #[arg(long, requires = "control")]
    recv_cq: bool,
    /// The number of the device, with --control
    #[arg(long, value_name = "N", default_value = "0", requires = "control")]
    nic: u32,
    /// Read the memory of this process
    #[arg(long, conflicts_with_all = ["hex", "file", "binary"])]
    pid: Option<u32>,
    /// The first address, with --pid
    #[arg(long, value_name = "ADDR", value_parser = number::<u64>, requires_all = ["pid", "length"])]
    address: Option<u64>,
    /// The number of bytes, with --pid
    #[arg(long, value_name = "BYTES", value_parser = positive::<u32>, requires = "address")]
    length: Option<u32>,
}

/// The names of devices, as values of an option.
fn device() -> impl TypedValueParser<Value = Device> {
    let values = Device::ALL.map(|device| PossibleValue::new(device.name()).help(device.about()));
    PossibleValuesParser::new(values).try_map(|name| Device::named(&name).context("no such device"))
}

/// The kind of a queue
#[derive(Clone, Copy, Debug, ValueEnum)]
enum WhatArg {
    /// Send queue
    Wqe,
    /// Receive queue
    Recv,
    /// Shared receive queue
    Srq,
    /// Completion queue
    Cqe,
}

/// The type of a QP
#[derive(Clone, Copy, Debug, ValueEnum)]
enum KindArg {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Datagrams
    Ud,
    /// XRC initiator
    Xrc,
    /// DC initiator
    Dci,
    /// Ethernet frames
    Raw,
    /// The kernel's queue for memory keys
    Keys,
}

impl WhatArg {
    const fn get(self) -> What {
        match self {
            Self::Wqe => What::Send,
            Self::Recv => What::Recv,
            Self::Srq => What::Srq,
            Self::Cqe => What::Cqe,
        }
    }
}

impl KindArg {
    const fn get(self) -> QueueKind {
        match self {
            Self::Rc => QueueKind::Rc,
            Self::Uc => QueueKind::Uc,
            Self::Ud => QueueKind::Ud,
            Self::Xrc => QueueKind::Xrc,
            Self::Dci => QueueKind::Dci,
            Self::Raw => QueueKind::Raw,
            Self::Keys => QueueKind::Keys,
        }
    }
}

/// Bytes that are read at most.
const MAX: u64 = 64 << 20;

impl Args {
    fn format(&self) -> Format {
        Format { device: self.device, what: self.what.get(), kind: self.qp_type.get() }
    }

    /// The value of an option in a text.
    fn value<T: ValueEnum>(text: &str) -> Option<T> {
        T::from_str(text, false).ok()
    }

    /// The bytes of the file or of standard input.
    fn input(&self) -> Result<Vec<u8>> {
        let read = |from: &mut dyn Read| {
            let mut bytes = Vec::new();
            let len = from.take(MAX + 1).read_to_end(&mut bytes)?;
            ensure!(len as u64 <= MAX, "more than {MAX} bytes");
            Ok(bytes)
        };
        let bytes = match &self.file {
            Some(path) if path != Path::new("-") => {
                let open = || read(&mut std::fs::File::open(path)?);
                open().with_context(|| format!("cannot read {}", path.display()))?
            }
            _ => read(&mut std::io::stdin().lock()).context("cannot read standard input")?,
        };
        if self.binary {
            return Ok(bytes);
        }
        Ok(text::parse(&String::from_utf8_lossy(&bytes))?)
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        match (self.pid, self.address, self.length) {
            (Some(pid), Some(address), Some(length)) => live::read(pid, address, length as usize),
            _ if self.hex.is_empty() => self.input(),
            _ => Ok(text::parse(&self.hex.join(" "))?),
        }
    }
}

/// Runs the subcommand.
pub(crate) fn main(args: &Args) -> Result<()> {
    let mut out = crate::Output;
    if let (Some(socket), Some(qpn)) = (&args.control, args.qp) {
        let queue = match (args.what, args.recv_cq) {
            (WhatArg::Wqe, _) => Queue::Send,
            (WhatArg::Recv | WhatArg::Srq, _) => Queue::Recv,
            (WhatArg::Cqe, false) => Queue::SendCq,
            (WhatArg::Cqe, true) => Queue::RecvCq,
        };
        let dump = live::ask(socket, args.nic, qpn, queue).context("decode")?;
        live_ring(args, &dump, &mut out).context("decode")?;
    } else if let (Some(pid), None) = (args.pid, args.address) {
        live::list(pid, args.format(), &mut out).context("decode")?;
    } else {
        print(args, &args.bytes().context("decode")?, &mut out)?;
    }
    Ok(out.flush()?)
}

/// Prints a queue of a software device, whose format it has told.
fn live_ring(args: &Args, dump: &RingDump, out: &mut dyn Write) -> Result<()> {
    let is_known = Device::named(&dump.device) == Some(args.device);
    ensure!(is_known, "the device has the format of {}", dump.device);
    let kind = Args::value::<KindArg>(&dump.kind).context("an unknown type of QP")?;
    let what = Args::value::<WhatArg>(&dump.what).context("an unknown kind of queue")?;
    let format = Format { kind: kind.get(), what: what.get(), ..args.format() };
    let (stride, next) = (dump.stride as usize, dump.next as usize);
    writeln!(out, "the device's next slot is {next}")?;
    let ring = Ring { stride, first: args.first.unwrap_or(next), ..Ring::new(format, &dump.bytes) };
    slots(&ring, None, args.table, out)
}

fn print(args: &Args, bytes: &[u8], out: &mut dyn Write) -> Result<()> {
    let format = args.format();
    if bytes.is_empty() {
        bail!("decode: there are no bytes");
    }
    if !args.ring {
        writeln!(out, "{:#}", decode(format, bytes))?;
        return Ok(());
    }
    let mut ring = Ring::new(format, bytes);
    ring.stride = args.stride.unwrap_or(ring.stride);
    ring.first = args.first.unwrap_or(0);
    let mut header = None;
    if args.header {
        let found = RxeHeader::of(bytes).filter(|found| bytes.len() >= found.len);
        let found = found.context("decode: the bytes do not begin with the header of a ring of rxe")?;
        let end = found.stride.saturating_mul(found.count).saturating_add(found.len).min(bytes.len());
        (ring.bytes, ring.stride) = (&bytes[found.len..end], found.stride);
        ring.first = args.first.unwrap_or(found.consumer);
        let RxeHeader { stride, count, producer, consumer, .. } = found;
        writeln!(out, "{count} slots of {stride} bytes, producer {producer}, consumer {consumer}")?;
        header = Some(found);
    }
    slots(&ring, header, args.table, out)
}

/// Prints the entries of a ring.
fn slots(ring: &Ring<'_>, header: Option<RxeHeader>, table: bool, out: &mut dyn Write) -> Result<()> {
    ensure!(ring.count() > 0, "decode: {} bytes are less than an entry of {}", ring.bytes.len(), ring.stride);
    for slot in ring.slots() {
        let waits = match header {
            Some(RxeHeader { count, producer, consumer, .. }) => {
                let behind = |index: usize| (index + count - consumer) % count;
                if behind(slot.index) < behind(producer) { " waits" } else { " free " }
            }
            None => "",
        };
        let wraps = if slot.wraps { " (continues in slot 0)" } else { "" };
        match &slot.entry {
            Some(entry) if table => writeln!(out, "[{}]{waits}{wraps} {entry:#}", slot.index)?,
            Some(entry) => writeln!(out, "[{}]{waits}{wraps} {entry}", slot.index)?,
            None => writeln!(out, "[{}]{waits} empty", slot.index)?,
        }
    }
    let left = ring.bytes.len() - ring.count() * ring.stride;
    if left > 0 {
        writeln!(out, "{left} bytes behind the last whole slot")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Args, live, live_ring, print};
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::try_parse_from(format!("decode {line}").split_whitespace()).unwrap().args
    }

    fn printed(line: &str) -> String {
        let args = args(line);
        let mut out = Vec::new();
        print(&args, &args.bytes().unwrap(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const NOP: &str = "00000100000101010000000800000000";

    #[test]
    fn an_entry_is_a_table_and_a_ring_has_lines() {
        let table = printed(&format!("--device mlx5 wqe {NOP}"));
        assert!(table.starts_with("mlx5 send WQE: NOP, WQE 1 of QP 0x000101, signaled\n  0x00"), "{table}");
        let (block, empty) = (format!("{NOP}{}", "0".repeat(96)), "0".repeat(128));
        let ring = printed(&format!("--device mlx5 wqe --ring --first 1 {block} {empty} {block} 1122"));
        let line = "NOP, WQE 1 of QP 0x000101, signaled";
        assert_eq!(ring, format!("[1] empty\n[2] {line}\n[0] {line}\n2 bytes behind the last whole slot\n"));
        let cqes = printed(&format!(
            "--device efa cqe --ring --stride 16 {} {}",
            "0".repeat(32),
            "0a000003120000000000000000000000"
        ));
        assert_eq!(cqes, "[0] empty\n[1] SEND complete, request 10 of QP 0x000012, phase 1\n");
    }

    #[test]
    fn the_header_of_rxe_tells_which_entries_wait() {
        let mut bytes = vec![0_u8; 384 + 4 * 64];
        for (at, value) in [(0, 6_u32), (4, 3), (128, 1), (256, 3), (384, 7)] {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        let mut out = Vec::new();
        print(&args("--device rxe cqe --ring --header 00"), &bytes, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "4 slots of 64 bytes, producer 1, consumer 3");
        assert_eq!(lines[1], "[3] waits empty");
        assert!(lines[2].starts_with("[0] waits SEND complete, wr_id 0x7"), "{text}");
        assert_eq!(lines[3..], ["[1] free  empty", "[2] free  empty"]);
        let error =
            print(&args("--device rxe cqe --ring --header 00"), &[0; 9], &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "decode: the bytes do not begin with the header of a ring of rxe");
    }

    #[test]
    fn a_live_queue_is_read_from_a_process() {
        let mut ring = [0_u8; 128];
        ring[..16].copy_from_slice(&[0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 8, 0, 0, 0, 0]);
        let (pid, address) = (std::process::id(), ring.as_ptr().addr());
        let text = printed(&format!(
            "--device mlx5 wqe --ring --pid {pid} --address {address} --length {}",
            ring.len()
        ));
        assert_eq!(text, "[0] NOP, WQE 1 of QP 0x000101, signaled\n[1] empty\n");
        let error = live::read(pid, 16, 8).unwrap_err().to_string();
        assert_eq!(error, format!("cannot read 8 bytes at 0x10 of process {pid}"));
    }

    #[test]
    fn a_queue_of_a_software_device_has_its_own_format() {
        let dump = uverbs_fabric::ring::RingDump::parse(&format!(
            "mlx5 wqe ud 64 1 {}{NOP}{}",
            "0".repeat(128),
            "0".repeat(96)
        ));
        let dump = dump.unwrap();
        let mut out = Vec::new();
        live_ring(&args("--device mlx5 wqe --control x --qp 1"), &dump, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "the device's next slot is 1\n[1] NOP, WQE 1 of QP 0x000101, signaled\n[0] empty\n");
        let error =
            live_ring(&args("--device efa wqe --control x --qp 1"), &dump, &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "the device has the format of mlx5");
    }

    /// A program that answers as `uverbs-hca` does.
    #[test]
    fn the_control_socket_is_asked() {
        use std::io::{BufRead, BufReader, Write};
        let path = std::env::temp_dir().join(format!("uverbs-decode-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let serving = std::thread::spawn(move || {
            for answer in ["ok mlx5 cqe rc 64 0 00\n", "error QP 0x101 has no such queue\n", "hello\n"] {
                let (stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(&stream).read_line(&mut line).unwrap();
                assert_eq!(line, "queue 2 0x101 recv-cq\n");
                (&stream).write_all(answer.as_bytes()).unwrap();
            }
        });
        let ask = || live::ask(&path, 2, 0x101, uverbs_fabric::ring::Queue::RecvCq);
        assert_eq!(ask().unwrap().what, "cqe");
        assert_eq!(ask().unwrap_err().to_string(), "QP 0x101 has no such queue");
        assert!(ask().unwrap_err().to_string().ends_with("it is no answer to queue"));
        serving.join().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
