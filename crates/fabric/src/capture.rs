// SPDX-License-Identifier: MIT OR Apache-2.0
//! A tap that writes a capture file. With the environment variable `UVERBS_HCA_CAPTURE` each fabric has one from the beginning.

use crate::model::Packet;
use crate::net::Address;
use crate::tap::{Fate, Tap};
use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use uverbs_roce::capture::{Interface, LinkType, Writer};

/// The directory of the files of all fabrics.
const DIRECTORY: &str = "UVERBS_HCA_CAPTURE";
/// Bytes of such a file at most; further packets are left out.
const MAX_BYTES: u64 = 8 << 20;

/// A packet as it is on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// The link.
    pub link: LinkType,
    /// The bytes, without the checksum of Ethernet.
    pub bytes: Vec<u8>,
    /// What the headers do not say.
    pub comment: String,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Capture {
    file: Option<Writer<File>>,
    /// An interface for each port that has sent a packet, by number and whether it is Ethernet: at most twice 2^16.
    interfaces: HashMap<(u16, bool), Interface>,
    /// The time of the fabric's clock at 0, in nanoseconds since 1970; 0 for a virtual clock.
    epoch: u64,
    /// Bytes of packets that may be written still.
    left: u64,
}

/// The path of the file of another fabric of this process, if the environment asks for one.
pub(crate) fn of_environment() -> Option<PathBuf> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let directory = std::env::var_os(DIRECTORY)?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Some(Path::new(&directory).join(format!("{}-{count}.pcapng", std::process::id())))
}

/// The time at which a fabric's clock, which shows `now`, was 0: in nanoseconds since 1970; 0 for a virtual clock.
pub(crate) fn epoch(is_virtual: bool, now: Duration) -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let epoch = if is_virtual { Duration::ZERO } else { since_1970.saturating_sub(now) };
    u64::try_from(epoch.as_nanos()).unwrap_or(0)
}

impl Capture {
    /// The file that the environment asks for.
    pub(crate) fn limited(path: &Path, is_virtual: bool) -> io::Result<Self> {
        Ok(Self { left: MAX_BYTES, ..Self::create(path, is_virtual, Duration::ZERO)? })
    }

    pub(crate) fn create(path: &Path, is_virtual: bool, now: Duration) -> io::Result<Self> {
        let file = Writer::new(File::create(path)?, "uverbs")?;
        Ok(Self {
            file: Some(file),
            interfaces: HashMap::new(),
            epoch: epoch(is_virtual, now),
            left: u64::MAX,
        })
    }

    fn write(&mut self, now: u64, from: &Address, packet: &Captured) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let key = (from.number, packet.link == LinkType::Ethernet);
        let interface = match self.interfaces.get(&key) {
            Some(interface) => *interface,
            None => {
                let interface = file.interface(packet.link, &format!("port {}", from.number))?;
                self.interfaces.insert(key, interface);
                interface
            }
        };
        file.packet(interface, self.epoch.saturating_add(now), &packet.bytes, &packet.comment)
    }
}

impl<P: Packet> Tap<P> for Capture {
    fn packet(&mut self, now: u64, from: &Address, to: &Address, packet: &P, fate: Fate) {
        if self.file.is_none() {
            return;
        }
        let Some(mut captured) = packet.captured(from, to) else { return };
        let words = fate.words();
        if !words.is_empty() {
            captured.comment = format!("{}; {words}", captured.comment);
        }
        let Some(left) = self.left.checked_sub(captured.bytes.len() as u64) else {
            log::warn!("the capture ends: its file has {MAX_BYTES} bytes");
            self.file = None;
            return;
        };
        self.left = left;
        if let Err(error) = self.write(now, from, &captured) {
            log::warn!("the capture ends: {error}");
            self.file = None;
        }
    }
}
