// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory keys: regions, windows and indirect keys ([`indirect`](super::indirect)), and the null region's key.

use super::Device;
use super::indirect::{Indirect, Walk};
use super::signature::{Psvs, SigErrors, Signature};
use super::table::{Table, Users};
use crate::bytes::{be32, be64};
use crate::decode::{Entries, KeyUpdate, Segment, Umr};
use crate::memory::Memory;
use std::borrow::Cow;
use std::sync::Arc;

/// The key of the null region: reads return zeros, and writes are dropped.
pub const NULL_MKEY: u32 = 0x300;

/// Access rights, `IB_UVERBS_ACCESS_*`.
pub mod access {
    /// Local reads, which every key permits.
    pub const LOCAL_READ: u32 = 0;
    /// `IB_UVERBS_ACCESS_LOCAL_WRITE`
    pub const LOCAL_WRITE: u32 = 1 << 0;
    /// `IB_UVERBS_ACCESS_REMOTE_WRITE`
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// `IB_UVERBS_ACCESS_REMOTE_READ`
    pub const REMOTE_READ: u32 = 1 << 2;
    /// `IB_UVERBS_ACCESS_REMOTE_ATOMIC`
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// `IB_UVERBS_ACCESS_RELAXED_ORDERING`
    pub const RELAXED_ORDERING: u32 = 1 << 20;
}

/// A key does not permit the requested access, or an update is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied;

/// The object of a key.
#[derive(Clone, Debug)]
pub enum Kind {
    /// Registered memory.
    Region {
        /// The memory.
        memory: Arc<dyn Memory>,
        /// Address of its first byte.
        iova: u64,
    },
    /// A window or an indirect key; see [`Mkeys::indirect`].
    Indirect(Box<Indirect>),
    /// The null region: reads return zeros, and writes are dropped.
    Null,
    /// Created, but without memory: it permits no access.
    Free,
}

/// A memory key.
#[derive(Clone, Debug)]
pub struct Mkey {
    /// The key itself: number and variant.
    pub(crate) key: u32,
    pub(crate) pd: u32,
    /// The access rights.
    pub(crate) access: u32,
    pub(crate) kind: Kind,
    /// Its pages, from updates of the key.
    pub(crate) pages: Option<Box<PageList>>,
}

impl Kind {
    /// The number of the region that a window is bound to.
    fn region(&self) -> Option<u32> {
        match self {
            Self::Indirect(indirect) => indirect.region,
            _ => None,
        }
    }
}

/// The pages of a key that is updated entry by entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct PageList {
    /// Addresses with flags in the low bits.
    entries: Vec<u64>,
    /// Bytes of a page, as a power of two.
    shift: u32,
    start: u64,
    len: u64,
}

/// Converts a list of pages to memory. A front implements it, because the addresses belong to its driver.
pub trait Translate: Send + Sync + core::fmt::Debug {
    /// `len` bytes, `skip` bytes behind the start of pages of 2^`shift` bytes; `None` if the list is invalid.
    fn pages(&self, list: Vec<u64>, shift: u32, skip: u64, len: u64) -> Option<Arc<dyn Memory>>;
}

/// The numbers of 24 bits that keys have; the first ones are reserved.
const MAX_KEYS: usize = (1 << 24) - 0x100;
/// Maximum number of entries of the lists of all keys of a device: 64 GiB of small pages.
const MAX_ENTRIES: u64 = 1 << 24;
/// The entry of an indirect key takes as much memory as so many entries of a page list.
const ENTRY: u64 = 8;
/// Entries of a window's list.
const WINDOW_ENTRIES: usize = 4;
/// Bits of `struct mlx5_mkey_seg`'s third byte and its neighbour (`mkc` of the PRM): free, atomic, remote write and read,
/// local write.
const FREE: u8 = 1 << 6;
const RIGHTS: [(usize, u8, u32); 4] = [
    (2, 1 << 6, access::REMOTE_ATOMIC),
    (2, 1 << 5, access::REMOTE_WRITE),
    (2, 1 << 4, access::REMOTE_READ),
    (2, 1 << 3, access::LOCAL_WRITE),
];

/// The user of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User {
    pub(crate) pd: u32,
    pub(crate) qpn: u32,
}

/// The memory of a key, which that of an indirect one is made for; `None` for the null region.
pub(crate) type Target<'a> = Option<(Cow<'a, Arc<dyn Memory>>, u64)>;
/// As [`Target`], without a key.
pub(super) type OwnTarget = Option<(Arc<dyn Memory>, u64)>;

/// All keys of a device by number, the upper 24 bits.
#[derive(Debug, Default)]
pub struct Mkeys {
    map: Table<Mkey>,
    next: u32,
    /// The keys of each domain.
    of_pds: Users,
    /// The windows that are bound to each region, by its number.
    windows: Users,
    /// The entries of all lists that updates have written.
    entries: u64,
    /// The values that signatures begin with.
    pub psvs: Psvs,
    /// The errors of signatures that no queue has reported yet.
    pub(super) errors: Arc<SigErrors>,
}

impl Mkeys {
    pub(crate) fn new() -> Self {
        // As on a ConnectX, keys do not begin at 1, so that small numbers are not valid keys.
        Self { next: 0x1000, ..Self::default() }
    }

    /// Adds a key with a new number. Returns the key; `None` if there is no free number.
    pub fn add(&mut self, variant: u8, pd: u32, access: u32, kind: Kind) -> Option<u32> {
        if self.map.len() >= MAX_KEYS {
            return None;
        }
        loop {
            self.next = (self.next + 1) & 0xff_ffff;
            // The first numbers are reserved: the terminator of receive lists is one of them.
            if self.next > 0xff && !self.map.contains_key(&self.next) {
                break;
            }
        }
        let key = self.next << 8 | u32::from(variant);
        self.count(pd, kind.region(), true);
        let mkey = Mkey { key, pd, access, kind, pages: None };
        self.entries += mkey.listed();
        self.map.insert(self.next, mkey);
        Some(key)
    }

    /// A window or an indirect key that is free and has no list yet: whether a peer may invalidate it, the number of entries of
    /// its list, and whether it may have a signature.
    #[must_use]
    pub fn indirect(&self, by_peer: bool, room: usize, signs: bool) -> Kind {
        let mut indirect = Indirect::new(by_peer, room);
        indirect.signature = signs.then(|| Box::new(Signature::new(&self.errors)));
        Kind::Indirect(Box::new(indirect))
    }

    /// A window: its list has one entry, which comes with padding.
    #[must_use]
    pub fn window(&self, two: bool) -> Kind {
        self.indirect(two, WINDOW_ENTRIES, false)
    }

    /// An indirect key in use from address `start` on, with this list; with a length, all parts have it.
    ///
    /// # Errors
    /// The list is invalid, or too long for the device.
    pub fn listed_key(
        &self,
        start: u64,
        len: u64,
        list: &[[u8; 16]],
        each: Option<u32>,
    ) -> Result<Kind, Denied> {
        let mut indirect = Indirect::new(false, list.len());
        let left = MAX_ENTRIES.saturating_sub(self.entries) / ENTRY;
        match each {
            Some(each) => indirect.store_equal(list, each, left)?,
            None => indirect.store(None, list, left)?,
        }
        (indirect.free, indirect.start, indirect.len) = (false, start, len);
        Ok(Kind::Indirect(Box::new(indirect)))
    }

    /// The entries of all lists.
    #[cfg(test)]
    pub(crate) fn listed(&self) -> u64 {
        self.entries
    }

    /// Counts a key of a domain, which may be a window that is bound to a region, or ceases to count it.
    fn count(&mut self, pd: u32, region: Option<u32>, is_new: bool) {
        if is_new {
            self.of_pds.add(pd);
            region.into_iter().for_each(|number| self.windows.add(number));
        } else {
            self.of_pds.remove(&pd);
            region.iter().for_each(|number| self.windows.remove(number));
        }
    }

    /// Changes the key of this number, if there is one.
    fn alter<R>(&mut self, number: u32, f: impl FnOnce(&mut Mkey) -> R) -> Option<R> {
        let key = self.map.get_mut(&number)?;
        let before = (key.pd, key.kind.region(), key.listed());
        let result = f(key);
        let after = (key.pd, key.kind.region(), key.listed());
        if before != after {
            self.count(before.0, before.1, false);
            self.count(after.0, after.1, true);
            self.entries = self.entries - before.2 + after.2;
        }
        Some(result)
    }

    /// Changes the domain and the rights of a key.
    pub(crate) fn set_rights(&mut self, key: u32, pd: u32, access: u32) {
        self.alter(key >> 8, |mkey| {
            if mkey.key == key {
                (mkey.pd, mkey.access) = (pd, access);
            }
        });
    }

    /// Adds a key with a fixed number.
    pub(crate) fn add_fixed(&mut self, key: u32, kind: Kind) {
        self.count(0, None, true);
        self.map.insert(key >> 8, Mkey { key, pd: 0, access: 0, kind, pages: None });
    }

    pub(crate) fn get(&self, key: u32) -> Option<&Mkey> {
        self.map.get(&(key >> 8)).filter(|m| m.key == key)
    }

    /// Removes a key, independent of its current variant.
    pub fn remove(&mut self, key: u32) -> Option<Mkey> {
        let removed = self.map.remove(key >> 8)?;
        self.count(removed.pd, removed.kind.region(), false);
        self.entries -= removed.listed();
        Some(removed)
    }

    /// The memory of `len` bytes at `addr`, if `user` may use them for all of `need`.
    pub(crate) fn resolve(
        &self,
        user: User,
        key: u32,
        addr: u64,
        len: u64,
        need: u32,
    ) -> Result<Target<'_>, Denied> {
        let mkey = self.get(key).ok_or(Denied)?;
        match &mkey.kind {
            Kind::Null => Ok(None),
            Kind::Free => Err(Denied),
            Kind::Region { memory, iova } => {
                if mkey.pd != user.pd || mkey.access & need != need {
                    return Err(Denied);
                }
                Ok(Some((Cow::Borrowed(memory), inside(addr, len, *iova, memory.len())?)))
            }
            Kind::Indirect(_) => {
                let found = Walk::new(self, user).resolve(key, (addr, len), need, 0)?;
                Ok(found.map(|(memory, offset)| (Cow::Owned(memory), offset)))
            }
        }
    }

    /// Executes an update of a window or an indirect key, with the new entries of its list.
    pub(crate) fn update(
        &mut self,
        user: User,
        umr: &Umr,
        entries: Option<&[[u8; 16]]>,
    ) -> Result<(), Denied> {
        // A window is found by its number only: after an invalidation the owner does not know its variant.
        let mkey = self.map.get(&(umr.mkey >> 8)).ok_or(Denied)?;
        let Kind::Indirect(now) = &mkey.kind else { return Err(Denied) };
        // Every QP may change a key that belongs to no QP.
        let foreign = now.qpn.is_some_and(|qpn| qpn != user.qpn);
        if mkey.pd != user.pd || umr.check_free && !now.free {
            return Err(Denied);
        }
        if umr.check_qpn && (now.free || foreign || mkey.key != umr.mkey) {
            return Err(Denied);
        }
        let has = |bit: u64| umr.mask & bit != 0;
        let mut next = now.clone();
        let mut access = mkey.access;
        if has(Umr::MASK_FREE) {
            next.free = umr.free;
        }
        if has(Umr::MASK_LEN) {
            next.len = umr.len;
        }
        if has(Umr::MASK_START) {
            next.start = umr.start;
        }
        if has(Umr::MASK_ACCESS) {
            access = rights(umr.access);
        }
        if next.free {
            (next.qpn, next.region) = (None, None);
        } else if is_bind(umr) {
            let region = self.bind(user, umr, access)?;
            (next.qpn, next.region) = (owner(umr), Some(region));
        } else if has(Umr::MASK_QPN) {
            next.qpn = owner(umr);
        }
        if let Some(entries) = entries {
            let others = self.entries - mkey.listed();
            next.store(umr.at, entries, (MAX_ENTRIES - others.min(MAX_ENTRIES)) / ENTRY)?;
        }
        if has(Umr::MASK_BSF | Umr::MASK_SIG_ERR) || umr.bsf.is_some() {
            let signature = next.signature.as_mut().ok_or(Denied)?;
            if let Some(bsf) = &umr.bsf {
                signature.store(bsf, &self.psvs, user.pd)?;
            }
            if has(Umr::MASK_BSF) {
                signature.enable(umr.signs);
            }
            if has(Umr::MASK_SIG_ERR) {
                signature.arm();
            }
        }
        self.alter(umr.mkey >> 8, |mkey| {
            if has(Umr::MASK_KEY) {
                mkey.key = mkey.key & !0xff | u32::from(umr.variant);
            }
            (mkey.access, mkey.kind) = (access, Kind::Indirect(next));
        });
        Ok(())
    }

    /// Checks the update that binds a window; returns the number of the region.
    fn bind(&self, user: User, umr: &Umr, access: u32) -> Result<u32, Denied> {
        let needed = Umr::MASK_LEN | Umr::MASK_START | Umr::MASK_ACCESS;
        // A type 2 window belongs to the QP that binds it; a type 1 window belongs to none. The key does not have the
        // type: libmlx5's builder names the QP for both.
        if umr.mask & needed != needed || owner(umr).is_some_and(|qpn| qpn != user.qpn) {
            return Err(Denied);
        }
        let (klm_len, mr, addr) = umr.first().ok_or(Denied)?;
        let klm_len = if klm_len == 0 { 1 << 31 } else { u64::from(klm_len) };
        if umr.len == 0 || klm_len != umr.len {
            return Err(Denied);
        }
        let region = self.get(mr).ok_or(Denied)?;
        let Kind::Region { memory, iova } = &region.kind else { return Err(Denied) };
        // There is no right to bind (`IB_UVERBS_ACCESS_MW_BIND`): a key has no bit for it (`mlx5_ifc_mkc_bits`), so the
        // device can't check it.
        let writes = access & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
        let need = if writes { access::LOCAL_WRITE } else { access::LOCAL_READ };
        if region.pd != user.pd || region.access & need != need {
            return Err(Denied);
        }
        inside(addr, umr.len, *iova, memory.len())?;
        Ok(mr >> 8)
    }

    /// Whether a key is of this domain.
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        self.of_pds.has(&pd)
    }

    /// Whether a window is bound to the region of this number.
    #[must_use]
    pub fn is_bound(&self, key: u32) -> bool {
        self.windows.has(&(key >> 8))
    }

    /// A peer's invalidation: the key must permit it, as windows of type 2 do, and belong to this QP or to none.
    pub(crate) fn invalidate(&mut self, user: User, rkey: u32) -> Result<(), Denied> {
        self.get(rkey).ok_or(Denied)?;
        let result = self.alter(rkey >> 8, |mkey| match &mut mkey.kind {
            Kind::Indirect(key)
                if key.by_peer
                    && !key.free
                    && mkey.pd == user.pd
                    && key.qpn.is_none_or(|qpn| qpn == user.qpn) =>
            {
                (key.free, key.qpn, key.region) = (true, None, None);
                Ok(())
            }
            _ => Err(Denied),
        });
        result.unwrap_or(Err(Denied))
    }
}

/// Whether an update binds a window. Updates of indirect keys change neither the key nor its first address.
fn is_bind(umr: &Umr) -> bool {
    let both = Umr::MASK_KEY | Umr::MASK_START;
    umr.mask & both == both
}

/// The QP that a key belongs to after an update.
fn owner(umr: &Umr) -> Option<u32> {
    (umr.mask & Umr::MASK_QPN != 0 && umr.qpn != 0xff_ffff).then_some(umr.qpn)
}

/// The rights of an update, `MLX5_WQE_MKEY_CONTEXT_ACCESS_FLAGS_*`.
fn rights(flags: u8) -> u32 {
    let rights = RIGHTS.iter().filter(|(_, bit, _)| flags & bit != 0);
    rights.fold(access::LOCAL_READ, |all, (_, _, right)| all | right)
}

impl Mkey {
    /// The entries of its lists.
    fn listed(&self) -> u64 {
        let pages = self.pages.as_ref().map_or(0, |pages| pages.entries.len() as u64);
        match &self.kind {
            Kind::Indirect(indirect) => pages + indirect.listed() as u64 * ENTRY,
            _ => pages,
        }
    }

    /// Applies an update of the kernel; `part` is the new part of the page list, which was already read. The list may have
    /// `room` entries.
    fn change(
        &mut self,
        update: &KeyUpdate,
        part: &[u8],
        room: u64,
        translate: &dyn Translate,
    ) -> Result<(), Denied> {
        let is_free = matches!(self.kind, Kind::Free);
        if update.must_be_free && !is_free || update.must_be_used && is_free {
            return Err(Denied);
        }
        let end = update.at.checked_add(update.entries).filter(|end| *end <= room).ok_or(Denied)?;
        let pages = self.pages.get_or_insert_default();
        let entries = &mut pages.entries;
        if update.entries > 0 {
            let (at, end) = (update.at as usize, end as usize);
            if entries.len() < end {
                entries.resize(end, 0);
            }
            for (entry, bytes) in entries[at..end].iter_mut().zip(part.chunks_exact(8)) {
                *entry = be64(bytes, 0);
            }
        }
        let (fields, has) = (&update.fields, |bit: u64| update.mask & bit != 0);
        if has(Umr::MASK_LEN) {
            pages.len = be64(fields, 24);
        }
        if has(Umr::MASK_START) {
            pages.start = be64(fields, 16);
        }
        if has(KeyUpdate::MASK_PAGE_SIZE) {
            pages.shift = be32(fields, 56) & 0x1f;
        }
        if has(KeyUpdate::MASK_PD) {
            self.pd = be32(fields, 12) & 0xff_ffff;
        }
        if has(Umr::MASK_KEY) {
            self.key = self.key & !0xff | u32::from(fields.get(7).copied().unwrap_or(0));
        }
        if has(Umr::MASK_ACCESS) {
            self.access = access::LOCAL_READ;
            for (at, bit, right) in RIGHTS {
                if fields.get(at).is_some_and(|b| b & bit != 0) {
                    self.access |= right;
                }
            }
        }
        let frees = fields.first().is_some_and(|b| b & FREE != 0);
        let free = if has(Umr::MASK_FREE) { frees } else { is_free };
        if free {
            self.kind = Kind::Free;
        } else if is_free || update.entries > 0 {
            let PageList { entries, shift, start, len } = &**pages;
            if !(12..=31).contains(shift) {
                return Err(Denied);
            }
            let skip = start & ((1 << shift) - 1);
            let count = skip.checked_add(*len).ok_or(Denied)?.div_ceil(1 << shift);
            let list = entries.get(..usize::try_from(count).map_err(|_| Denied)?).ok_or(Denied)?;
            let list = list.iter().map(|entry| entry & !0xfff).collect();
            let memory = translate.pages(list, *shift, skip, *len).ok_or(Denied)?;
            self.kind = Kind::Region { memory, iova: *start };
        }
        Ok(())
    }
}

impl Device {
    /// Executes an update of a window or an indirect key.
    pub(crate) fn update_indirect(&mut self, user: User, umr: &Umr) -> Result<(), Denied> {
        let read;
        let entries = match &umr.entries {
            Entries::Kept => None,
            Entries::Inline(entries) => Some(&entries[..]),
            Entries::Memory(count, Segment::Memory { length, lkey, addr }) => {
                let len = u64::from(*count) * 16;
                if len > u64::from(*length) {
                    return Err(Denied);
                }
                let mut bytes = vec![[0; 16]; usize::from(*count)];
                if let Some((memory, offset)) =
                    self.mkeys.resolve(user, *lkey, *addr, len, access::LOCAL_READ)?
                {
                    memory.read(offset, bytes.as_flattened_mut()).map_err(|_| Denied)?;
                }
                read = bytes;
                Some(&read[..])
            }
            Entries::Memory(..) => return Err(Denied),
        };
        self.updated += entries.map_or(0, |entries| entries.len() as u64);
        self.mkeys.update(user, umr, entries)
    }

    /// Executes an update of the kernel's queue, which has no protection domain and may change any key.
    pub(crate) fn update_key(&mut self, update: &KeyUpdate) -> Result<(), Denied> {
        let translate = self.translate.clone().ok_or(Denied)?;
        let mut part = Vec::new();
        if let Some(Segment::Memory { length, lkey, addr }) = update.list {
            let len = update.entries.checked_mul(8).ok_or(Denied)?;
            if len > u64::from(length) || update.entries > MAX_ENTRIES {
                return Err(Denied);
            }
            let pd = self.mkeys.get(lkey).ok_or(Denied)?.pd;
            let user = User { pd, qpn: 0 };
            part = vec![0; usize::try_from(len).map_err(|_| Denied)?];
            match self.mkeys.resolve(user, lkey, addr, len, access::LOCAL_READ)? {
                Some((memory, offset)) => memory.read(offset, &mut part).map_err(|_| Denied)?,
                None => return Err(Denied),
            }
        }
        // ibv_dereg_mr(3) fails if a window is still bound to the region: the kernel destroys the key with a command,
        // and returns the error of that command.
        if self.mkeys.is_bound(update.mkey) {
            return Err(Denied);
        }
        let left = MAX_ENTRIES - self.mkeys.entries;
        let changed = self.mkeys.alter(update.mkey >> 8, |key| {
            let room = left + key.listed();
            (key.change(update, &part, room, &*translate), key.listed())
        });
        let (result, listed) = changed.ok_or(Denied)?;
        self.updated += update.entries + listed;
        result
    }
}

/// The offset of `len` bytes at `addr` in a range that starts at `start`.
pub(super) fn inside(addr: u64, len: u64, start: u64, size: u64) -> Result<u64, Denied> {
    let offset = addr.checked_sub(start).ok_or(Denied)?;
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(offset),
        _ => Err(Denied),
    }
}
