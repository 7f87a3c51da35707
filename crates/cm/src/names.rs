// SPDX-License-Identifier: MIT OR Apache-2.0
//! The QPs and peers of identifiers, by which the events of `tracing` name them (feature `tracing`).
//!
//! An event has the number of its identifier, and may be read by a channel that has many identifiers. So the process has a table, with an
//! entry from the first change of the QP's state to the end of the identifier.

use crate::event::{Event, EventKind};
use crate::id::Token;
use core::net::SocketAddr;
use core::panic::AssertUnwindSafe;
use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::OnceLock;
use uverbs::trace::tracing;
use uverbs_core::sync::ProcessMutex;

/// What an identifier has.
#[derive(Clone, Debug)]
struct Named {
    device: String,
    qp_num: u32,
    peer: Option<SocketAddr>,
}

fn table() -> &'static ProcessMutex<BTreeMap<u64, Named>> {
    static TABLE: OnceLock<ProcessMutex<BTreeMap<u64, Named>>> = OnceLock::new();
    TABLE.get_or_init(ProcessMutex::default)
}

/// The identifier has this QP.
pub(crate) fn set(token: Token, device: &str, qp_num: u32, peer: Option<SocketAddr>) {
    if let Ok(mut table) = table().lock() {
        table.insert(token.0, Named { device: device.to_owned(), qp_num, peer });
    }
}

/// The identifier has ended.
pub(crate) fn remove(token: Token) {
    if let Ok(mut table) = table().lock() {
        table.remove(&token.0);
    }
}

/// Reports an event that was read. What gets the report is code of the program: if it panics, the event is not lost.
pub(crate) fn report(event: &Event, id: u32) {
    let _panicked = catch_unwind(AssertUnwindSafe(|| report_event(event, id)));
}

fn report_event(event: &Event, id: u32) {
    let named = table().lock().ok().and_then(|table| table.get(&event.token.0).cloned());
    let (device, qp_num) = (named.as_ref().map(|n| n.device.as_str()), named.as_ref().map(|n| n.qp_num));
    let peer = match &event.kind {
        EventKind::ConnectRequest(request) => request.id.bound().ok().and_then(|bound| bound.remote),
        _ => named.as_ref().and_then(|named| named.peer),
    };
    let peer = peer.map(tracing::field::display);
    let peer_qp_num = match &event.kind {
        EventKind::ConnectRequest(request) => Some(request.peer.qp_num),
        EventKind::ConnectResponse(peer) | EventKind::Established(peer) => Some(peer.qp_num),
        _ => None,
    };
    let (name, token) = (event.name(), event.token);
    match &event.kind {
        EventKind::Failed(error) => {
            tracing::warn!({ event = name, id, device, qp_num, peer, peer_qp_num }, "{token:?}: {error}");
        }
        EventKind::DeviceRemoval => {
            tracing::warn!({ event = name, id, device, qp_num, peer, peer_qp_num }, "{token:?}: {name}");
        }
        EventKind::ConnectRequest(_) | EventKind::Established(_) | EventKind::Disconnected => {
            tracing::info!({ event = name, id, device, qp_num, peer, peer_qp_num }, "{token:?}: {name}");
        }
        _ => tracing::debug!({ event = name, id, device, qp_num, peer, peer_qp_num }, "{token:?}: {name}"),
    }
}
