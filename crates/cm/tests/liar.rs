// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel that answers anything: every call returns, and nothing panics.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use nix::sys::eventfd::EventFd;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use uverbs::Errno;
use uverbs::attr::{QpState, QpType};
use uverbs_cm::{CmPort, ConnParam, EventChannel, EventKind, PortSpace, RejectReason};

/// Fills every answer with pseudo-random bytes, or with one byte, and fails sometimes.
#[derive(Debug)]
struct Liar {
    state: AtomicU64,
    events: Mutex<u32>,
    fd: EventFd,
}

impl Liar {
    fn new(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed), events: Mutex::new(200), fd: EventFd::new().unwrap() }
    }

    fn next(&self) -> u64 {
        let x = self.state.load(Ordering::Relaxed).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.state.store(x, Ordering::Relaxed);
        x >> 33
    }
}

impl CmPort for Liar {
    fn command(&self, cmd: u32, _input: &[u8], output: &mut [u8]) -> Result<(), Errno> {
        let kind = self.next() % 8;
        for byte in output.iter_mut() {
            *byte = match kind {
                0 => 0xff,
                1 => 0,
                _ => self.next() as u8,
            };
        }
        // GET_EVENT
        if cmd == 12 {
            let mut events = self.events.lock().unwrap();
            *events = events.checked_sub(1).ok_or(Errno::EAGAIN)?;
            // A known event, with anything in it.
            if kind > 3 {
                output[12..16].copy_from_slice(&((self.next() % 18) as u32).to_ne_bytes());
            }
            return Ok(());
        }
        if kind == 2 { Err(Errno::from_raw((self.next() % 140) as i32)) } else { Ok(()) }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn open_channel(&self) -> uverbs::Result<Arc<dyn CmPort>> {
        Ok(Arc::new(Self::new(self.next())))
    }

    fn is_creator_process(&self) -> bool {
        true
    }
}

#[test]
fn any_answer_of_a_kernel_is_decoded_or_refused() {
    for seed in 0..300 {
        let channel = EventChannel::from_port(Arc::new(Liar::new(seed)));
        let address = "10.0.0.1:1".parse().unwrap();
        for port_space in [PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib(QpType::XrcSend)] {
            let Ok(id) = channel.create_id(port_space) else { continue };
            let param = ConnParam::with_private_data([1; 200]);
            let _ = id.bind_addr(address);
            let _ = id.resolve_addr(Some(address), address, Duration::from_secs(1));
            let _ = id.resolve_route(Duration::MAX);
            let _ = id.bound().map(|bound| bound.device());
            let _ = id.route();
            let _ = (id.listen(1), id.connect(&param), id.accept(&param), id.establish());
            let _ = id.reject(RejectReason(300), &[1; 300]);
            for state in [QpState::INIT, QpState::RTR, QpState::RTS, QpState(77)] {
                let _ = id.init_qp_attr(state);
            }
            let _ = id.join_multicast(address, true).map(uverbs_cm::Membership::leave);
            let _ = id.disconnect();
        }
        while let Ok(Some(event)) = channel.next_event() {
            let _ = (event.name(), format!("{event:?}"));
            if let EventKind::ConnectRequest(request) = event.kind {
                let _ = request.id.accept(&ConnParam::default());
            }
        }
    }
}
