// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's side: gets the addresses of queues from the preload library, and writes completions to their rings.
#![expect(unsafe_code)]
// UNSAFETY: a variable belongs to another library; the rings belong to the driver, whose public face does not show them.

use crate::CHUNK;
use crate::measure::print_area;
use core::ffi::c_void;
use core::ptr;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;
use uverbs::{Context, Driver as _};
use uverbs_core::kernel::UverbsFd;
use uverbs_efa::Efa;

/// Memory of a queue or the page of a doorbell: `struct area` of `tests/efa-recorder/device.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Area {
    at: *mut u8,
    len: usize,
}

impl Area {
    fn print(self, what: &str) {
        print_area(what, self.at.expose_provenance() as u64, self.len as u64);
    }
}

/// The beginning of the preload library's `struct device`, and where the last objects are.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Fake {
    generation: *const c_void,
    next_qpn: u16,
    next_ahn: u16,
    llq: Area,
    sq_bell: Area,
    rq: Area,
    rq_bell: Area,
    cq: Area,
    cq_bell: Area,
    qp_request: [u32; 16],
    cq_request: [u32; 16],
    _request_lens: [u32; 2],
    cq_user_handle: u64,
    _events: u32,
    channel: RawFd,
}

impl Fake {
    fn symbol() -> *mut Self {
        // SAFETY: the name is a C string.
        let device = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"device".as_ptr()) }.cast::<Self>();
        assert!(!device.is_null(), "run it with LD_PRELOAD=efa-shim.so");
        device
    }

    fn now() -> Self {
        // SAFETY: the preload library's variable begins with this layout and lives as long as the process. It is written in system
        // calls of this thread only, so not now.
        unsafe { ptr::read_volatile(Self::symbol()) }
    }

    /// Where the events of the last completion channel are written, and the last CQ in events.
    pub fn events() -> (RawFd, u64) {
        let Self { channel, cq_user_handle, .. } = Self::now();
        (channel, cq_user_handle)
    }

    /// The next QP has another number.
    pub fn next_qp_num() {
        let next_qpn = Self::now().next_qpn + 1;
        // SAFETY: as in [`now`](Self::now).
        let at = unsafe { &raw mut (*Self::symbol()).next_qpn };
        // SAFETY: as in [`now`](Self::now).
        unsafe { ptr::write_volatile(at, next_qpn) };
    }
}

/// Opens the fake device.
pub fn open() -> Context<Efa> {
    let path = Path::new("/dev/infiniband/uverbs0");
    let kernel = UverbsFd::open_path(path, "efa_0", &[Efa::DRIVER_ID]).expect("the fake device");
    Context::from_kernel(Arc::new(kernel)).expect("a context")
}

/// The device's end of a CQ.
#[derive(Debug)]
pub struct Ring {
    entries: *mut [u8; 32],
    count: u32,
    /// Completions that were written to each sub-CQ: of sends, of receives.
    written: [u32; 2],
}

impl Ring {
    /// The rings of the CQ that was created last, which have `count` entries each.
    pub fn of_last_cq(count: u32) -> Self {
        let fake = Fake::now();
        // `cq_entry_size` of `struct efa_ibv_create_cq`.
        assert_eq!(fake.cq_request[1], 32);
        Self { entries: fake.cq.at.cast(), count, written: [0; 2] }
    }

    /// Writes a completion in the format of `efa_io_rx_cdesc_ex`; the caller has polled the previous one in that slot.
    fn complete(&mut self, number: u16, qp_num: u16, is_send: bool) {
        let sub = usize::from(!is_send);
        let mut cqe = [0_u8; 32];
        cqe[..2].copy_from_slice(&number.to_le_bytes());
        cqe[3] =
            u8::from((self.written[sub] / self.count).is_multiple_of(2)) | if is_send { 1 } else { 2 } << 1;
        cqe[4..6].copy_from_slice(&qp_num.to_le_bytes());
        if !is_send {
            cqe[6..8].copy_from_slice(&64_u16.to_le_bytes());
            cqe[8..10].copy_from_slice(&9_u16.to_le_bytes());
            cqe[10..12].copy_from_slice(&0x77_u16.to_le_bytes());
        }
        let at = sub as u32 * self.count + self.written[sub] % self.count;
        // SAFETY: the mapping of the rings has two times `count` entries, is writable here, and lives as long as the CQ, which lives as
        // long as the process; one thread.
        unsafe { ptr::write_volatile(self.entries.wrapping_add(at as usize), cqe) };
        self.written[sub] += 1;
    }
}

/// The device's end of a QP's queues.
#[derive(Debug)]
pub struct Queues {
    qp_num: u16,
    sends: *const u8,
    /// Bytes of the ring, and of one entry.
    sends_len: u32,
    entry_size: u32,
    receives: *const u8,
    receives_len: u32,
    sent: u32,
    received: u32,
}

impl Queues {
    /// Those of the QP that was created last, whose entries have 128 bytes if `wide`.
    pub fn of_last_qp(qp_num: u32, wide: bool) -> Self {
        // `LLQ_START` of `tests/efa-recorder/device.h`.
        const START: usize = 0x40;
        let fake = Fake::now();
        fake.llq.print("combined");
        fake.sq_bell.print("registers");
        fake.rq_bell.print("registers");
        // `rq_ring_size` and `sq_ring_size` of `struct efa_ibv_create_qp`.
        let [_, receives_len, sends_len, ..] = fake.qp_request;
        Self {
            qp_num: qp_num as u16,
            sends: fake.llq.at.wrapping_add(START),
            sends_len,
            entry_size: if wide { 128 } else { 64 },
            receives: fake.rq.at,
            receives_len,
            sent: 0,
            received: 0,
        }
    }

    fn number(from: *const u8) -> u16 {
        // SAFETY: `from` is aligned and inside a ring that lives as long as the QP, which lives as long as the process; one thread.
        u16::from_le(unsafe { ptr::read_volatile(from.cast()) })
    }

    /// Completes a chunk of sends.
    pub fn complete_sends(&mut self, ring: &mut Ring) {
        for _ in 0..CHUNK {
            let at = self.sent.wrapping_mul(self.entry_size) % self.sends_len;
            ring.complete(Self::number(self.sends.wrapping_add(at as usize)), self.qp_num, true);
            self.sent = self.sent.wrapping_add(1);
        }
    }

    /// Completes a chunk of receives, each of which has as many descriptors.
    pub fn complete_receives(&mut self, ring: &mut Ring, descriptors: u32) {
        const DESCRIPTOR: u32 = 16;
        for _ in 0..CHUNK {
            // The number is in the second half of the first descriptor.
            let at = self.received.wrapping_mul(DESCRIPTOR) % self.receives_len + 8;
            ring.complete(Self::number(self.receives.wrapping_add(at as usize)), self.qp_num, false);
            self.received = self.received.wrapping_add(descriptors);
        }
    }
}
