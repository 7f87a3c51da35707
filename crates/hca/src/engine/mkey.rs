// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory keys: regions, windows, and the key that swallows everything.

use crate::decode::Umr;
use crate::memory::Memory;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Access rights, `IB_UVERBS_ACCESS_*`.
pub(crate) mod access {
    pub(crate) const LOCAL_READ: u32 = 0;
    pub(crate) const LOCAL_WRITE: u32 = 1 << 0;
    pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
    pub(crate) const REMOTE_READ: u32 = 1 << 2;
    pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
    pub(crate) const MW_BIND: u32 = 1 << 4;
}

/// Why a key does not open what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

/// What a key stands for.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Registered memory: its first byte has this address.
    Region { memory: Arc<dyn Memory>, iova: u64 },
    /// A window, bound or free.
    Window { two: bool, bound: Option<Bound> },
    /// Reads zeros, swallows writes.
    Null,
    /// Made, but not told what it stands for: opens nothing.
    #[cfg(feature = "pci")]
    Free,
}

/// What a window is bound to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// First address in the window.
    start: u64,
    len: u64,
    access: u32,
    /// The QP, of a type 2 window.
    qpn: Option<u32>,
    /// Region, and the address in it of the window's first byte.
    mr: u32,
    addr: u64,
}

/// A memory key.
#[derive(Clone, Debug)]
pub(crate) struct Mkey {
    /// The key itself: number and variant.
    pub(crate) key: u32,
    pub(crate) pd: u32,
    /// Of regions; a window's are with what it is bound to.
    pub(crate) access: u32,
    pub(crate) kind: Kind,
}

/// Who uses a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) pd: u32,
    pub(crate) qpn: u32,
}

/// Memory behind a key; `None` for the key that swallows everything.
pub(crate) type Target = Option<(Arc<dyn Memory>, u64)>;

/// All keys of a device by number, the upper 24 bits.
#[derive(Debug, Default)]
pub(crate) struct Mkeys {
    map: BTreeMap<u32, Mkey>,
    next: u32,
}

impl Mkeys {
    pub(crate) fn new() -> Self {
        // As a ConnectX, not from 1, so that a key is no small number by chance.
        Self { map: BTreeMap::new(), next: 0x1000 }
    }

    /// Adds one under a new number and returns its key.
    pub(crate) fn add(&mut self, variant: u8, pd: u32, access: u32, kind: Kind) -> u32 {
        loop {
            self.next = (self.next + 1) & 0xff_ffff;
            // The first numbers are reserved: the terminator of receive lists is one of them.
            if self.next > 0xff && !self.map.contains_key(&self.next) {
                break;
            }
        }
        let key = self.next << 8 | u32::from(variant);
        self.map.insert(self.next, Mkey { key, pd, access, kind });
        key
    }

    /// Adds one under a fixed key.
    pub(crate) fn add_fixed(&mut self, key: u32, kind: Kind) {
        self.map.insert(key >> 8, Mkey { key, pd: 0, access: 0, kind });
    }

    pub(crate) fn get(&self, key: u32) -> Option<&Mkey> {
        self.map.get(&(key >> 8)).filter(|m| m.key == key)
    }

    pub(crate) fn get_mut(&mut self, key: u32) -> Option<&mut Mkey> {
        self.map.get_mut(&(key >> 8)).filter(|m| m.key == key)
    }

    /// Removes it, whatever its variant is by now.
    pub(crate) fn remove(&mut self, key: u32) -> Option<Mkey> {
        self.map.remove(&(key >> 8))
    }

    /// The memory of `len` bytes at `addr`, if `user` may use them for all of `need`.
    pub(crate) fn resolve(
        &self,
        user: User,
        key: u32,
        addr: u64,
        len: u64,
        need: u32,
    ) -> Result<Target, Denied> {
        let mkey = self.get(key).ok_or(Denied)?;
        match &mkey.kind {
            Kind::Null => Ok(None),
            #[cfg(feature = "pci")]
            Kind::Free => Err(Denied),
            Kind::Region { memory, iova } => {
                if mkey.pd != user.pd || mkey.access & need != need {
                    return Err(Denied);
                }
                Ok(Some((Arc::clone(memory), inside(addr, len, *iova, memory.len())?)))
            }
            Kind::Window { bound, .. } => {
                let bound = bound.as_ref().ok_or(Denied)?;
                if bound.qpn.is_some_and(|qpn| qpn != user.qpn) || mkey.pd != user.pd {
                    return Err(Denied);
                }
                if bound.access & need != need {
                    return Err(Denied);
                }
                let offset = inside(addr, len, bound.start, bound.len)?;
                // The window's rights count; the region's were looked at when it was bound.
                match self.get(bound.mr).map(|mr| &mr.kind) {
                    Some(Kind::Region { memory, iova }) => {
                        let addr = bound.addr.checked_add(offset).ok_or(Denied)?;
                        Ok(Some((Arc::clone(memory), inside(addr, len, *iova, memory.len())?)))
                    }
                    _ => Err(Denied),
                }
            }
        }
    }

    /// Executes a key update: binds a window, or frees it.
    pub(crate) fn update(&mut self, user: User, umr: &Umr) -> Result<(), Denied> {
        // A window is named by its number alone: after an invalidation its variant is not what the owner knows.
        let key = self.map.get(&(umr.mkey >> 8)).ok_or(Denied)?;
        let Kind::Window { two, bound } = &key.kind else { return Err(Denied) };
        let (two, now) = (*two, *bound);
        if key.pd != user.pd || umr.mask & (Umr::MASK_FREE | Umr::MASK_KEY) != Umr::MASK_FREE | Umr::MASK_KEY
        {
            return Err(Denied);
        }
        if umr.check_free && now.is_some() {
            return Err(Denied);
        }
        // A window that belongs to no QP is anyone's.
        let foreign = now.is_none_or(|b| b.qpn.is_some_and(|qpn| qpn != user.qpn));
        if umr.check_qpn && (foreign || key.key != umr.mkey) {
            return Err(Denied);
        }
        let bound = if umr.free { None } else { Some(self.bind(user, umr)?) };
        if let Some(key) = self.map.get_mut(&(umr.mkey >> 8)) {
            key.key = key.key & !0xff | u32::from(umr.variant);
            key.kind = Kind::Window { two, bound };
        }
        Ok(())
    }

    fn bind(&self, user: User, umr: &Umr) -> Result<Bound, Denied> {
        let needed = Umr::MASK_LEN | Umr::MASK_START | Umr::MASK_ACCESS;
        // A type 2 window belongs to the QP that binds it, a type 1 window to none. To the key they are the same:
        // libmlx5's builder names the QP for both.
        let named = umr.mask & Umr::MASK_QPN != 0 && umr.qpn != 0xff_ffff;
        if umr.mask & needed != needed || named && umr.qpn != user.qpn {
            return Err(Denied);
        }
        let (klm_len, mr, addr) = umr.klm.ok_or(Denied)?;
        let klm_len = if klm_len == 0 { 1 << 31 } else { u64::from(klm_len) };
        if umr.len == 0 || klm_len != umr.len {
            return Err(Denied);
        }
        let mut access = 0;
        // `MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_*`
        for (bit, right) in [
            (1 << 3, access::LOCAL_WRITE),
            (1 << 4, access::REMOTE_READ),
            (1 << 5, access::REMOTE_WRITE),
            (1 << 6, access::REMOTE_ATOMIC),
        ] {
            if umr.access & bit != 0 {
                access |= right;
            }
        }
        let region = self.get(mr).ok_or(Denied)?;
        let Kind::Region { memory, iova } = &region.kind else { return Err(Denied) };
        let mut need = access::MW_BIND;
        if access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0 {
            need |= access::LOCAL_WRITE;
        }
        if region.pd != user.pd || region.access & need != need {
            return Err(Denied);
        }
        inside(addr, umr.len, *iova, memory.len())?;
        Ok(Bound { start: umr.start, len: umr.len, access, qpn: named.then_some(user.qpn), mr, addr })
    }

    /// Whether a key is of this domain.
    #[cfg(feature = "pci")]
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        self.map.values().any(|key| key.pd == pd)
    }

    /// Whether a window is bound to the region of this number.
    pub(crate) fn is_bound(&self, key: u32) -> bool {
        let to = |kind: &Kind| matches!(kind, Kind::Window { bound: Some(b), .. } if b.mr >> 8 == key >> 8);
        self.map.values().any(|mkey| to(&mkey.kind))
    }

    /// A peer's invalidation: the key must be a type 2 window bound by this QP.
    pub(crate) fn invalidate(&mut self, user: User, rkey: u32) -> Result<(), Denied> {
        let key = self.get_mut(rkey).ok_or(Denied)?;
        match &mut key.kind {
            Kind::Window { two: true, bound } if bound.is_some_and(|b| b.qpn == Some(user.qpn)) => {
                *bound = None;
                Ok(())
            }
            _ => Err(Denied),
        }
    }
}

/// The offset of `len` bytes at `addr` in a range that starts at `start`.
fn inside(addr: u64, len: u64, start: u64, size: u64) -> Result<u64, Denied> {
    let offset = addr.checked_sub(start).ok_or(Denied)?;
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(offset),
        _ => Err(Denied),
    }
}
