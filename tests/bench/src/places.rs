// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses that requests name, in memory as in a program, and for the typed face in the wire format.

use crate::CHUNK;
use core::array;
use uverbs::mlx5::{Mlx5, Remote, Sge};
use uverbs::provider::op::{MwBind, TsoArgs};
use uverbs::provider::{WireRemote as _, WireSge as _};
use uverbs::wr::{IbvMr, IbvMw};
use uverbs::{AddressHandle, ImmData, MemoryRegion, MemoryWindow, PageBuf, ProtectionDomain};
use uverbs::{
    Exposed,
    attr::{AccessFlags, AhAttr, Gid, MwType},
};

const N: usize = CHUNK as usize;

/// The most entries of a request.
pub const MAX_ENTRIES: usize = 30;

/// The remote key of every place.
pub const RKEY: u32 = 0x1234;

/// The segment size of segmented sends.
pub const MSS: u16 = 1000;

/// The remote address of the i-th request.
#[inline(always)]
pub fn remote_addr(i: u32) -> u64 {
    0x10_0000 + u64::from(i) * 64
}

/// Local and remote memory, and a datagram's destination.
#[derive(Debug)]
pub struct Places {
    sges: [Sge; N],
    sges3: [[Sge; 3]; N],
    sges30: Box<[[Sge; MAX_ENTRIES]]>,
    remotes: [Remote; N],
    /// The address of the local memory.
    pub addr: u64,
    /// Its key.
    pub lkey: u32,
    /// The inline data.
    pub data: [u8; 32],
    /// Longer inline data.
    pub bytes: [u8; 1024],
    bufs: [&'static [u8]; 4],
    /// The header of segmented sends.
    pub header: [u8; 54],
    /// The destination of datagrams.
    pub ah: AddressHandle<Mlx5>,
    window: MemoryWindow<Mlx5>,
    /// The window's key.
    pub window_key: u32,
    /// A bind of the window to the region.
    pub bind: MwBind,
    region: MemoryRegion<PageBuf, Exposed, Mlx5>,
}

impl Places {
    /// Registers memory and creates an address handle.
    pub fn new(pd: &ProtectionDomain<Mlx5>) -> Self {
        let buf = PageBuf::new(4096).expect("memory");
        let region = pd.reg_mr(buf, AccessFlags::LOCAL_WRITE).map_err(|e| e.error).expect("a region");
        let (addr, lkey) = (region.addr(), region.lkey());
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 7]);
        let sge = |k: u64| Sge::new(addr + 64 * k, 64, lkey).expect("a short entry");
        let window = pd.alloc_mw(MwType::Type2).expect("a window");
        let bind = window.bind(&region, addr, 4096, AccessFlags::REMOTE_WRITE);
        let buf: &'static [u8] = vec![5; 64].leak();
        Self {
            sges30: vec![array::from_fn(|k| sge(k as u64)); N].into_boxed_slice(),
            bytes: [5; 1024],
            bufs: [buf; 4],
            header: [1; 54],
            window_key: window.rkey(),
            bind,
            window,
            sges: array::from_fn(|_| sge(0)),
            sges3: array::from_fn(|_| [sge(0), sge(1), sge(2)]),
            remotes: array::from_fn(|i| Remote::new(remote_addr(i as u32), RKEY)),
            addr,
            lkey,
            data: [5; 32],
            ah: pd.create_ah(&AhAttr::global(1, 3, gid)).expect("an address handle"),
            region,
        }
    }

    /// The memory of the i-th request.
    #[inline(always)]
    pub fn sge(&self, i: u32) -> Sge {
        self.sges[i as usize]
    }

    /// The memory of the i-th request with three entries.
    #[inline(always)]
    pub fn sges3(&self, i: u32) -> &[Sge; 3] {
        &self.sges3[i as usize]
    }

    /// The first `COUNT` entries of the i-th request.
    #[inline(always)]
    pub fn sges_of<const COUNT: usize>(&self, i: u32) -> &[Sge; COUNT] {
        self.sges30[i as usize].first_chunk().expect("as many entries")
    }

    /// Four buffers of 64 bytes.
    #[inline(always)]
    pub fn bufs(&self) -> &[&'static [u8]; 4] {
        &self.bufs
    }

    /// The immediate data of the i-th request.
    #[inline(always)]
    pub fn imm(&self, i: u32) -> ImmData {
        ImmData::new(i)
    }

    /// Header and segment size of a segmented send.
    #[inline(always)]
    pub fn tso(&self) -> TsoArgs<'_> {
        TsoArgs { header: &self.header, mss: MSS }
    }

    /// The window, for C's calls.
    pub fn raw_window(&self) -> *const IbvMw {
        self.window.as_raw()
    }

    /// The region, for C's calls.
    pub fn raw_region(&self) -> *const IbvMr {
        self.region.as_raw()
    }

    /// The first byte of the local memory, which receives.
    pub fn first_byte(&self) -> u8 {
        let mut byte = [0];
        self.region.read_at(0, &mut byte).expect("a byte of the region");
        byte[0]
    }

    /// The i-th remote place.
    #[inline(always)]
    pub fn remote(&self, i: u32) -> Remote {
        self.remotes[i as usize]
    }
}
