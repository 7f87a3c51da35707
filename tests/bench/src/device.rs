// SPDX-License-Identifier: MIT OR Apache-2.0
//! The device's side: gets the addresses of queues from the preload library, and writes completions to their rings.
#![expect(unsafe_code)]
// UNSAFETY: a variable belongs to another library; the rings belong to the driver, whose public face does not show them.

use core::ptr;
use std::path::Path;
use std::sync::Arc;
use uverbs::mlx5::Mlx5;
use uverbs::{Context, Driver};
use uverbs_core::kernel::UverbsFd;

/// Room for the doorbell registers of one process.
pub const REGISTERS: u64 = 64 << 20;

/// The preload library's data of the last objects that were created: `struct shim_seen` of shim.h.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Seen {
    /// The address of a CQ's ring.
    pub cq_ring: u64,
    /// The address of an SRQ's ring.
    pub srq_ring: u64,
    /// The address of the doorbell registers, [`REGISTERS`] bytes.
    pub registers: u64,
    /// The address of a QP's doorbell record.
    pub qp_record: u64,
    /// The user index of a QP.
    pub user_index: u32,
    /// Where the events of a completion channel are written.
    pub event_fd: i32,
    /// A CQ in events.
    pub cq_handle: u64,
}

impl Seen {
    /// Reads the current values.
    pub fn now() -> Self {
        // SAFETY: the name is a C string.
        let seen = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"shim_seen".as_ptr()) }.cast::<Self>();
        assert!(!seen.is_null(), "run it with LD_PRELOAD=shim.so");
        // SAFETY: the preload library's variable has this layout and lives as long as the process. It is written in system calls
        // of this thread only, so not now.
        unsafe { ptr::read_volatile(seen) }
    }
}

/// Opens the fake device.
pub fn open() -> Context<Mlx5> {
    open_as()
}

/// Opens the fake device as one of this driver.
pub fn open_as<D: Driver>() -> Context<D> {
    let path = Path::new("/dev/infiniband/uverbs0");
    let kernel =
        UverbsFd::open_path(path, "mlx5_0", &[<Mlx5 as Driver>::DRIVER_ID]).expect("the fake device");
    Context::from_kernel(Arc::new(kernel)).expect("a context")
}

/// A QP's doorbell record.
#[derive(Clone, Copy, Debug)]
pub struct Record(*const [u32; 2]);

impl Record {
    /// The record of the QP that was created last.
    pub fn of(seen: &Seen) -> Self {
        Self(ptr::with_exposed_provenance(seen.qp_record as usize))
    }

    /// The number of basic blocks that were posted, modulo 2^16.
    pub fn sends(self) -> u16 {
        // SAFETY: the driver registered a record of two words at this address with the fake kernel and keeps it as long as the
        // QP lives, which is as long as the process.
        let [_, sends] = unsafe { ptr::read_volatile(self.0) };
        u32::from_be(sends) as u16
    }
}

/// A kind of completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Of an RDMA write that was posted.
    Requester,
    /// Of a receive that took 64 bytes of a send.
    Responder,
    /// Of a receive of 32 bytes, which are in the CQE.
    Scattered,
}

/// The byte that data in completions consist of.
pub const SCATTERED_BYTE: u8 = 7;

/// The QP that a completion is of.
#[derive(Clone, Copy, Debug)]
pub struct Whose {
    /// Its user index.
    pub user_index: u32,
    /// Its number.
    pub qp_num: u32,
}

/// The device's end of a CQ.
#[derive(Debug)]
pub struct Ring {
    entries: *mut [u8; 64],
    count: u32,
    produced: u32,
}

impl Ring {
    /// The ring of the CQ that was created last, which has `count` entries.
    pub fn of_last_cq(count: u32) -> Self {
        assert!(count.is_power_of_two());
        Self { entries: ptr::with_exposed_provenance_mut(Seen::now().cq_ring as usize), count, produced: 0 }
    }

    /// Writes a completion; the caller has polled the previous one in that slot.
    pub fn complete(&mut self, whose: Whose, counter: u16, kind: Kind) {
        const RDMA_WRITE: u32 = 8;
        let (opcode, send_opcode, bytes, scattered) = match kind {
            Kind::Requester => (0_u8, RDMA_WRITE, 0_u32, 0),
            Kind::Responder => (2, 0, 64, 0),
            Kind::Scattered => (2, 0, 32, 4),
        };
        let mut cqe = [0_u8; 64];
        if kind == Kind::Scattered {
            cqe[..32].fill(SCATTERED_BYTE);
        }
        cqe[32..36].copy_from_slice(&whose.user_index.to_be_bytes());
        cqe[44..48].copy_from_slice(&bytes.to_be_bytes());
        cqe[56..60].copy_from_slice(&(send_opcode << 24 | whose.qp_num).to_be_bytes());
        cqe[60..62].copy_from_slice(&counter.to_be_bytes());
        cqe[63] = opcode << 4 | scattered | ((self.produced / self.count) & 1) as u8;
        let at = self.entries.wrapping_add((self.produced & (self.count - 1)) as usize);
        // SAFETY: the driver registered a ring of `count` entries at this address with the fake kernel and keeps it as long as
        // the CQ lives, which is as long as the process; one thread.
        unsafe { ptr::write_volatile(at, cqe) };
        self.produced = self.produced.wrapping_add(1);
    }
}

/// The device's end of an SRQ: the free list, from whose head it takes.
#[derive(Debug)]
pub struct FreeList {
    elements: *const u8,
    stride: usize,
    head: u16,
}

impl FreeList {
    /// The free list of the SRQ that was created last, whose elements have `stride` bytes.
    pub fn of_last_srq(stride: usize) -> Self {
        Self { elements: ptr::with_exposed_provenance(Seen::now().srq_ring as usize), stride, head: 0 }
    }

    /// Takes the next element.
    pub fn take(&mut self) -> u16 {
        let index = self.head;
        // `next_wqe_index` is at offset 2, big endian.
        let at = self.elements.wrapping_add(usize::from(index) * self.stride + 2).cast::<[u8; 2]>();
        // SAFETY: the driver's ring has elements of this size, and the index came from the list itself.
        let next = unsafe { ptr::read_volatile(at) };
        self.head = u16::from_be_bytes(next);
        index
    }
}
