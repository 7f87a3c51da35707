// SPDX-License-Identifier: MIT OR Apache-2.0
//! The addresses that requests name.

use crate::CHUNK;
use crate::face::{Device, posts};
use crate::places::{RKEY, remote_addr};
use core::array;
use uverbs::attr::{AccessFlags, AhAttr, Gid};
use uverbs::provider::RemoteAddr;
use uverbs::raw::{AtOnce, Batch, SendGuard, SendQueue, ToBatch, Wr};
use uverbs::wr::Sge;
use uverbs::{AddressHandle, Exclusive, Exposed, ImmData, MemoryRegion, PageBuf, ProtectionDomain, Srd, Ud};
use uverbs_efa::Efa;

const N: usize = CHUNK as usize;

/// The QP number of datagrams' destination.
pub const REMOTE_QPN: u32 = 0x123;
/// Their queue key.
pub const REMOTE_QKEY: u32 = 0x1111_1111;

/// Local and remote memory, and the destination.
#[derive(Debug)]
pub struct Places {
    pairs: [[Sge; 2]; N],
    remotes: [RemoteAddr; N],
    /// The address of the local memory.
    pub addr: u64,
    /// Its key.
    pub lkey: u32,
    /// Inline data.
    pub bytes: [u8; 64],
    /// The destination.
    pub ah: AddressHandle<Efa>,
    _region: MemoryRegion<PageBuf, Exposed, Efa>,
}

impl Places {
    /// Registers memory and creates an address handle.
    pub fn new(pd: &ProtectionDomain<Efa>) -> Self {
        let buf = PageBuf::new(4096).expect("memory");
        let region = pd.reg_mr(buf, AccessFlags::LOCAL_WRITE).map_err(|e| e.error).expect("a region");
        let (addr, lkey) = (region.addr(), region.lkey());
        let sge = |k: u64| Sge { addr: addr + 64 * k, length: 64, lkey };
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        Self {
            pairs: array::from_fn(|_| [sge(0), sge(1)]),
            remotes: array::from_fn(|i| RemoteAddr { addr: remote_addr(i as u32), rkey: RKEY }),
            addr,
            lkey,
            bytes: [5; 64],
            ah: pd.create_ah(&AhAttr::global(1, 0, gid)).expect("an address handle"),
            _region: region,
        }
    }

    /// The memory of the i-th request with two entries.
    #[inline(always)]
    pub fn pair(&self, i: u32) -> &[Sge; 2] {
        &self.pairs[i as usize]
    }

    /// The i-th remote place.
    #[inline(always)]
    pub fn remote(&self, i: u32) -> RemoteAddr {
        self.remotes[i as usize]
    }

    /// The immediate data of the i-th request.
    #[inline(always)]
    pub fn imm(&self, i: u32) -> ImmData {
        ImmData::new(i)
    }
}

impl Device for Efa {
    type Places = Places;
    #[inline(always)]
    fn sges<const ENTRIES: usize>(p: &Places, i: u32) -> [Sge; ENTRIES] {
        const { assert!(ENTRIES <= 2) };
        array::from_fn(|k| p.pairs[i as usize][k])
    }
}

posts!(Efa, Srd, post_to, wr_to, |p| &p.ah, REMOTE_QPN, REMOTE_QKEY);
posts!(Efa, Ud, post_to, wr_to, |p| &p.ah, REMOTE_QPN, REMOTE_QKEY);
