// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the device does, in words, for a trace. Without one, each of these costs one comparison.

use super::mr::Buffer;
use super::{Notice, Port};
use crate::packet::{Body, Packet};
use core::fmt::Write as _;
use uverbs_decode::{Entry, efa};
use uverbs_fabric::trace::StepKind;

/// An entry: what it does, and its memory.
fn entry(entry: &Entry) -> (String, String) {
    let places: Vec<String> = entry.places.iter().map(ToString::to_string).collect();
    (entry.summary(), places.join("; "))
}

/// The device has taken a request.
pub(super) fn request(port: &Port<'_>, qpn: u16, bytes: &[u8]) {
    port.trace(qpn.into(), StepKind::Request, || entry(&efa::send(bytes)));
}

/// The device has written a completion.
pub(super) fn completion(port: &Port<'_>, cq: u16, bytes: &[u8]) {
    // `CdescCommon::qp_num`.
    let qpn = bytes.get(4..6).map_or(0, |qpn| u16::from_le_bytes([qpn[0], qpn[1]]));
    port.trace(qpn.into(), StepKind::Completion, || (efa::cqe(bytes).summary(), format!("CQ {cq:#x}")));
}

/// The timer of a QP has expired.
pub(super) fn timer(port: &Port<'_>, qpn: u16) {
    port.trace(qpn.into(), StepKind::Timer, || ("the queue goes on".into(), String::new()));
}

/// The front gets a notice.
pub(super) fn event(port: &Port<'_>, notice: &Notice) {
    port.trace(0, StepKind::Event, || (format!("{notice:?}"), String::new()));
}

/// Data were written to the buffers.
pub(super) fn placed(port: &Port<'_>, qpn: u16, buffers: &[Buffer], (offset, len): (u64, usize)) {
    port.trace(qpn.into(), StepKind::Placed, || {
        let keys: Vec<String> = buffers.iter().map(|buffer| format!("{:#x}", buffer.lkey)).collect();
        let first = buffers.first().map_or(0, |buffer| buffer.addr);
        let words = format!("{len} bytes to key {}, at byte {offset} of the buffers", keys.join(", "));
        (words, format!("the first buffer is at {first:#x}"))
    });
}

/// Data of a write were written to memory of a key.
pub(super) fn written(port: &Port<'_>, qpn: u16, rkey: u32, addr: u64, len: usize) {
    port.trace(qpn.into(), StepKind::Placed, || {
        (format!("{len} bytes to key {rkey:#x}"), format!("{addr:#x}"))
    });
}

/// A packet in words, and the addresses in it.
pub(crate) fn packet(packet: &Packet) -> (String, String) {
    let Packet { place, body, .. } = packet;
    let mut detail = String::new();
    let mut words = match body {
        Body::Datagram { data, .. } => format!("datagram of {} bytes", data.len()),
        Body::Send { data, .. } => format!("SEND, {} bytes", data.len()),
        Body::Write { remote, count, data, .. } => {
            detail = format!("{:#x}, rkey {:#x}", remote.addr, remote.rkey);
            format!("RDMA WRITE, {} bytes at {}, one of {count}", data.len(), remote.offset)
        }
        Body::Read { remote, len, .. } => {
            detail = format!("{:#x}, rkey {:#x}", remote.addr, remote.rkey);
            format!("RDMA READ request for {len} bytes at {}", remote.offset)
        }
        Body::Ack { status } => format!("answer: {}", efa::status(*status)),
        Body::ReadData { data } => format!("RDMA READ response, {} bytes", data.len()),
    };
    if !matches!(body, Body::Datagram { .. }) {
        // Writing to a String does not fail.
        let _ = write!(words, ", message {} packet {}", place.message, place.index);
    }
    if let Body::Datagram { imm: Some(imm), .. }
    | Body::Send { imm: Some(imm), .. }
    | Body::Write { imm: Some(imm), .. } = body
    {
        let _ = write!(words, ", imm {imm:#x}");
    }
    (words, detail)
}
