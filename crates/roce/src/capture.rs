// SPDX-License-Identifier: MIT OR Apache-2.0
//! Capture files in the format pcapng (draft-ietf-opsawg-pcapng), which Wireshark and tcpdump read. Each packet may have a comment.
//!
//! A file is written block by block, so that it is complete up to the last packet if the program is killed.

use std::io::{self, Write};

/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;

/// Options of blocks.
const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;

/// Times are in nanoseconds: ten to the power of minus this.
const NANOSECONDS: u8 = 9;

/// The longest text of an option. The length of an option has 16 bits.
const MAX_TEXT: usize = 4096;

/// The kind of an interface's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkType {
    /// Frames that begin with the Ethernet header.
    Ethernet,
    /// Packets that begin with LRH. They are written with a header of the format ERF, because Wireshark has no dissector for the link type
    /// of InfiniBand without it.
    Infiniband,
}

impl LinkType {
    /// The number in the registry of the format's link types.
    const fn number(self) -> u16 {
        match self {
            Self::Ethernet => 1,
            Self::Infiniband => 197,
        }
    }
}

/// The header of a packet in the format ERF, type 21 (InfiniBand): time in units of 2^-32 s, type, flags (the length varies), length with
/// the header, lost packets, length on the wire.
fn erf(nanoseconds: u64, len: usize) -> io::Result<[u8; 16]> {
    const SECOND: u64 = 1_000_000_000;
    let whole = u16::try_from(len + 16).map_err(|_| io::ErrorKind::InvalidInput)?;
    let time = ((nanoseconds / SECOND) << 32) | (((nanoseconds % SECOND) << 32) / SECOND);
    let mut header = [0; 16];
    header[..8].copy_from_slice(&time.to_le_bytes());
    header[8..10].copy_from_slice(&[21, 4]);
    header[10..12].copy_from_slice(&whole.to_be_bytes());
    header[14..].copy_from_slice(&(whole - 16).to_be_bytes());
    Ok(header)
}

/// An interface of a capture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    number: u32,
    kind: LinkType,
}

/// A writer of a capture file.
#[derive(Debug)]
pub struct Writer<W> {
    to: W,
    interfaces: u32,
}

impl<W: Write> Writer<W> {
    /// Begins a file. `program` is the name of the program that captures.
    ///
    /// # Errors
    /// Those of writing.
    pub fn new(to: W, program: &str) -> io::Result<Self> {
        let mut writer = Self { to, interfaces: 0 };
        let mut body = Vec::new();
        // The order of the bytes, version 1.0, a section of unknown length.
        body.extend(0x1a2b_3c4d_u32.to_le_bytes());
        body.extend(1_u16.to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        body.extend(u64::MAX.to_le_bytes());
        text(&mut body, USER_APPLICATION, program);
        writer.block(SECTION, body)?;
        Ok(writer)
    }

    /// Adds an interface, for the packets of one port.
    ///
    /// # Errors
    /// Those of writing.
    pub fn interface(&mut self, kind: LinkType, name: &str) -> io::Result<Interface> {
        let mut body = Vec::new();
        body.extend(kind.number().to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        // No limit of the captured bytes.
        body.extend(0_u32.to_le_bytes());
        text(&mut body, INTERFACE_NAME, name);
        option(&mut body, TIME_RESOLUTION, &[NANOSECONDS]);
        self.block(INTERFACE, body)?;
        let interface = Interface { number: self.interfaces, kind };
        self.interfaces += 1;
        Ok(interface)
    }

    /// Adds a packet, with its time in nanoseconds since 1970 and a comment, which may be empty.
    ///
    /// # Errors
    /// Those of writing; the packet has more than 4 GiB, or 64 KiB on InfiniBand.
    pub fn packet(&mut self, at: Interface, nanoseconds: u64, bytes: &[u8], comment: &str) -> io::Result<()> {
        let header = match at.kind {
            LinkType::Ethernet => None,
            LinkType::Infiniband => Some(erf(nanoseconds, bytes.len())?),
        };
        let header = header.as_ref().map_or(&[][..], |header| header);
        let len = u32::try_from(header.len() + bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut body = Vec::with_capacity(bytes.len() + comment.len() + 60);
        for word in [at.number, (nanoseconds >> 32) as u32, nanoseconds as u32, len, len] {
            body.extend(word.to_le_bytes());
        }
        body.extend(header);
        padded(&mut body, bytes);
        if !comment.is_empty() {
            text(&mut body, COMMENT, comment);
        }
        self.block(ENHANCED_PACKET, body)
    }

    /// Passes on what is in the writer's buffer.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }

    /// What it writes to.
    pub fn into_inner(self) -> W {
        self.to
    }

    fn block(&mut self, kind: u32, mut body: Vec<u8>) -> io::Result<()> {
        // The options end only where there are some; readers accept an end alone.
        option(&mut body, END_OF_OPTIONS, &[]);
        let len = u32::try_from(body.len() + 12).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut block = Vec::with_capacity(body.len() + 12);
        block.extend(kind.to_le_bytes());
        block.extend(len.to_le_bytes());
        block.append(&mut body);
        block.extend(len.to_le_bytes());
        self.to.write_all(&block)
    }
}

/// Appends bytes and fills the last word.
fn padded(to: &mut Vec<u8>, bytes: &[u8]) {
    to.extend(bytes);
    to.extend(&[0; 3][..bytes.len().wrapping_neg() % 4]);
}

fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_le_bytes());
    to.extend((value.len() as u16).to_le_bytes());
    padded(to, value);
}

/// An option with text, of which at most [`MAX_TEXT`] bytes are written.
fn text(to: &mut Vec<u8>, code: u16, value: &str) {
    let end = value.floor_char_boundary(MAX_TEXT);
    option(to, code, &value.as_bytes()[..end]);
}
