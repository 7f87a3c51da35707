// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queues in the memory of a running process.

use anyhow::{Context as _, Result, bail};
use core::time::Duration;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use uverbs_decode::ring::RxeHeader;
use uverbs_decode::{Device, Format};
use uverbs_fabric::ring::{Queue, RingDump};

/// The time limit of a part of an answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Reads the memory of a process as a debugger does: it needs the right to trace the process (ptrace(2)).
pub(super) fn read(pid: u32, address: u64, length: usize) -> Result<Vec<u8>> {
    let place = || format!("cannot read {length} bytes at {address:#x} of process {pid}");
    let memory = File::open(format!("/proc/{pid}/mem")).with_context(place)?;
    let mut bytes = vec![0; length];
    memory.read_exact_at(&mut bytes, address).with_context(place)?;
    Ok(bytes)
}

/// Bytes of an answer at most.
const MAX_ANSWER: u64 = 16 << 20;

/// Asks a program with software devices for the memory of a queue.
pub(super) fn ask(socket: &Path, nic: u32, qpn: u32, queue: Queue) -> Result<RingDump> {
    let ask = || {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        stream.write_all(format!("queue {nic} {qpn:#x} {}\n", queue.name()).as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream.take(MAX_ANSWER)).read_line(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    let answer = ask().with_context(|| format!("control socket {}", socket.display()))?;
    if let Some(reason) = answer.strip_prefix("error ") {
        bail!("{}", reason.trim());
    }
    let dump = answer.strip_prefix("ok ").and_then(RingDump::parse);
    dump.with_context(|| format!("control socket {}: it is no answer to queue", socket.display()))
}

/// A mapping of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    device: String,
}

/// The mappings of RDMA devices in the text of `/proc/PID/maps`.
fn mappings(maps: &str) -> Vec<Mapping> {
    let parse = |line: &str| {
        // Addresses, rights, offset, device, inode, path.
        let mut columns = line.split_whitespace();
        let (start, end) = columns.next()?.split_once('-')?;
        let path = columns.nth(4)?;
        let device = path.strip_prefix("/dev/infiniband/")?.to_owned();
        let hex = |text| u64::from_str_radix(text, 16).ok();
        Some(Mapping { start: hex(start)?, end: hex(end)?, device })
    };
    maps.lines().filter_map(parse).collect()
}

/// Lists the mappings of RDMA devices. Of rxe they are rings, whose headers tell what they are.
pub(super) fn list(pid: u32, format: Format, out: &mut dyn Write) -> Result<()> {
    let path = format!("/proc/{pid}/maps");
    let maps = std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let all = mappings(&maps);
    if all.is_empty() {
        writeln!(out, "process {pid} has mapped nothing of an RDMA device")?;
    }
    for Mapping { start, end, device } in all {
        write!(out, "--address {start:#x} --length {}  {device}", end - start)?;
        if format.device == Device::Rxe
            && let Some(header) = read(pid, start, 384).ok().and_then(|bytes| RxeHeader::of(&bytes))
        {
            let RxeHeader { stride, count, producer, consumer, .. } = header;
            write!(out, "  {count} slots of {stride} bytes, producer {producer}, consumer {consumer}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_rdma_devices_are_found() {
        let maps = "7f0000000000-7f0000001000 rw-s 00000000 00:05 123  /dev/infiniband/uverbs0\n\
                    7f0000002000-7f0000003000 r--p 00000000 08:01 5    /usr/lib/libc.so.6\n\
                    7f0000004000-7f0000005000 rw-p 00000000 00:00 0\n\
                    broken\n";
        let expected = Mapping { start: 0x7f00_0000_0000, end: 0x7f00_0000_1000, device: "uverbs0".into() };
        assert_eq!(mappings(maps), [expected]);
        let mut out = Vec::new();
        let format = Format::new(Device::Rxe, uverbs_decode::What::Send);
        list(std::process::id(), format, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().ends_with("has mapped nothing of an RDMA device\n"));
    }
}
