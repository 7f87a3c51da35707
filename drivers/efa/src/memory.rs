// SPDX-License-Identifier: MIT OR Apache-2.0
//! All access to memory that the device reads or writes: the send queue in the device, the receive ring, completions, doorbells.
//!
//! The geometry is checked once; nothing that the device writes is used to compute an address. No reference to shared memory is made
//! but to atomics.
#![expect(unsafe_code)]
// UNSAFETY: accesses shared memory by computed addresses, which are inside the geometry that the constructors checked.

use crate::completion;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use uverbs_core::kernel::{Mapping, MemoryError, WordRegister};
use uverbs_core::provider::requests::Requests;
use uverbs_core::sync::barrier;
pub(crate) use uverbs_core::sync::burst::{BLOCK, Copies};
use uverbs_core::sync::burst::{copy_block, store_block};
use uverbs_efa_hw::io::{RxCdescEx, RxDesc, TxWqe, TxWqe128};

/// A number of entries of a ring: a power of two, at most `max`.
fn mask_of(entries: u32, max: u32) -> Result<u32, MemoryError> {
    if entries.is_power_of_two() && entries <= max {
        Ok(entries - 1)
    } else {
        Err(MemoryError::Elements(entries.into()))
    }
}

/// Words of the longest send entry.
pub(crate) const WQE_WORDS: usize = size_of::<TxWqe128>() / 8;

/// A send entry in private memory; of an entry of 64 bytes, the second half is not used.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Wqe(pub [u64; WQE_WORDS]);

impl Wqe {
    pub(crate) const ZERO: Self = Self([0; WQE_WORDS]);
}

/// The send queue in memory of the device, and entries in private memory that are not published.
///
/// # Invariant
/// `mask + 1` is a power of two and the number of staged entries; from `first` on, as many entries of `1 << shift` bytes, which are 64 or
/// 128, are inside the mapping. `first` is aligned to 64.
pub struct SendRing {
    first: NonNull<u64>,
    staged: Box<[Wqe]>,
    mask: u32,
    shift: u32,
    /// `mask + 1` if the entries before the last reset ended in a round of the second phase, else 0.
    flip: u32,
    mapping: Mapping,
}

// SAFETY: the ring owns its mapping, which is `Send`, and `first` points into it. Entries are only stored to, by `&mut self`.
unsafe impl Send for SendRing {}

/// `shift` of entries of 64 bytes.
const NARROW: u32 = size_of::<TxWqe>().ilog2();

impl SendRing {
    /// The address of the first entry.
    pub(crate) fn address(&self) -> usize {
        self.first.as_ptr().expose_provenance()
    }

    /// The entries at `offset` of a mapping.
    ///
    /// # Errors
    /// The mapping has no such entries.
    pub fn new(mapping: Mapping, offset: usize, entries: u32, wide: bool) -> Result<Self, MemoryError> {
        if !mapping.is_writable() {
            return Err(MemoryError::Mapping);
        }
        let mask = mask_of(entries, Requests::MAX)?;
        let size = if wide { size_of::<TxWqe128>() } else { size_of::<TxWqe>() };
        let first = mapping.part(offset, entries as usize, size, 64)?.cast();
        let staged = vec![Wqe::ZERO; entries as usize].into_boxed_slice();
        Ok(Self { first, staged, mask, shift: size.ilog2(), flip: 0, mapping })
    }

    /// The number of entries.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.mask + 1
    }

    /// Bytes of an entry.
    pub(crate) fn entry_size(&self) -> u32 {
        1 << self.shift
    }

    /// Whether an entry has 128 bytes.
    #[must_use]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn is_wide(&self) -> bool {
        self.shift != NARROW
    }

    /// The phase of the entry at a position: that of the first round is 0.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn phase(&self, position: u32) -> bool {
        (position ^ self.flip) & self.entries() != 0
    }

    /// Positions begin with 0 again, after a reset at this one. The phase continues, as that of libefa does
    /// (`efa_qp_init_indices()` of rdma-core's `providers/efa/verbs.c` resets the index and not the phase).
    pub(crate) fn restart(&mut self, position: u32) {
        self.flip ^= position & self.entries();
    }

    /// The private entry at a position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn staged(&mut self, position: u32) -> &mut Wqe {
        // SAFETY: a masked position is that of an entry (invariant).
        unsafe { self.staged.get_unchecked_mut((position & self.mask) as usize) }
    }

    /// The addresses of both, for a loop of copies.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn view(&mut self) -> SendView<'_> {
        let Self { first, staged, mask, shift, .. } = self;
        SendView {
            to: *first,
            from: NonNull::from(&**staged).cast(),
            mask: *mask,
            shift: *shift,
            _ring: PhantomData,
        }
    }

    /// Stores an entry whose second block, if it has one, is zero. The words are in registers.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write_block(&mut self, _: &Copies, position: u32, block: [u64; BLOCK]) {
        let view = self.view();
        let to = view.place(position);
        // SAFETY: the first block of an entry, which is only stored to.
        unsafe { store_block(block, to) };
        if view.is_wide() {
            // SAFETY: the second block of the entry.
            let to = unsafe { to.add(BLOCK) };
            // SAFETY: as above, and a block of zeros; both are aligned to 64.
            unsafe { copy_block(NonNull::from(&Wqe::ZERO.0).cast(), to) };
        }
    }
}

/// The addresses of a [`SendRing`]'s entries in the device and in private memory.
///
/// # Invariant
/// That of the ring, which lives as long as `'r`.
#[derive(Clone, Copy)]
pub(crate) struct SendView<'r> {
    to: NonNull<u64>,
    from: NonNull<Wqe>,
    mask: u32,
    shift: u32,
    _ring: PhantomData<&'r mut SendRing>,
}

impl SendView<'_> {
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn is_wide(self) -> bool {
        self.shift != NARROW
    }

    #[cfg_attr(not(debug_assertions), inline(always))]
    fn place(self, position: u32) -> NonNull<u64> {
        let offset = ((position & self.mask) as usize) << self.shift;
        // SAFETY: a masked position is that of an entry (invariant).
        unsafe { self.to.byte_add(offset) }
    }

    /// The private entry at a position.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn staged(&self, position: u32) -> &Wqe {
        // SAFETY: a masked position is that of an entry (invariant).
        let entry = unsafe { self.from.add((position & self.mask) as usize) };
        // SAFETY: it is initialised (invariant), and nothing writes it while the ring is borrowed for this value.
        unsafe { entry.as_ref() }
    }

    /// Copies an entry to its place in the device.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write(self, _: &Copies, position: u32, wqe: &Wqe) {
        let to = self.place(position);
        // SAFETY: the first block of both, which are aligned to 64.
        unsafe { copy_block(NonNull::from(&wqe.0).cast(), to) };
        if self.is_wide() {
            // SAFETY: the second block of the entry.
            let to = unsafe { to.add(BLOCK) };
            let from = NonNull::from(&wqe.0[BLOCK..]).cast();
            // SAFETY: the second block of both, which are aligned to 64.
            unsafe { copy_block(from, to) };
        }
    }
}

impl fmt::Debug for SendRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendRing")
            .field("entries", &self.entries())
            .field("wide", &self.is_wide())
            .field("mapping", &self.mapping)
            .finish_non_exhaustive()
    }
}

/// A doorbell register of 4 bytes.
pub type Doorbell = WordRegister<u32>;

/// The ring of a receive queue.
///
/// # Invariant
/// The descriptors are inside the mapping.
#[derive(Debug)]
pub struct RecvRing {
    descs: Descs<'static>,
    _mapping: Mapping,
}

// SAFETY: the ring owns its mapping, which is `Send` and has the descriptors (invariant). They are only stored to, by atomics.
unsafe impl Send for RecvRing {}

impl RecvRing {
    /// The address of the first descriptor.
    pub(crate) fn address(&self) -> usize {
        self.descs.first.as_ptr().expose_provenance()
    }

    /// The descriptors of a mapping.
    ///
    /// # Errors
    /// The mapping has no such descriptors.
    pub fn new(mapping: Mapping, entries: u32) -> Result<Self, MemoryError> {
        if !mapping.is_writable() {
            return Err(MemoryError::Mapping);
        }
        let mask = mask_of(entries, Requests::MAX)?;
        let first = mapping.part(0, entries as usize, size_of::<RxDesc>(), 8)?.cast();
        Ok(Self { descs: Descs { first, mask, _ring: PhantomData }, _mapping: mapping })
    }

    /// The number of descriptors.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.descs.mask + 1
    }

    /// The addresses of the descriptors, for a loop.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn descs(&mut self) -> Descs<'_> {
        // With the lifetime of a borrow of the ring, which keeps the mapping.
        self.descs
    }
}

/// The descriptors of a [`RecvRing`].
///
/// # Invariant
/// `mask + 1` is a power of two; from `first` on, as many descriptors are mapped as long as `'r`. `first` is aligned to 8.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Descs<'r> {
    first: NonNull<[u64; 2]>,
    mask: u32,
    _ring: PhantomData<&'r mut RecvRing>,
}

impl Descs<'_> {
    /// Writes a descriptor.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write(self, position: u32, desc: [u64; 2]) {
        const { assert!(size_of::<RxDesc>() == size_of::<[u64; 2]>()) };
        // SAFETY: the masked position is that of a descriptor (invariant).
        let to = unsafe { self.first.add((position & self.mask) as usize) };
        // SAFETY: two aligned words of the descriptor, which are used by atomics only; the mapping is alive.
        let to = unsafe { to.cast::<[AtomicU64; 2]>().as_ref() };
        to[0].store(desc[0], Ordering::Relaxed);
        to[1].store(desc[1], Ordering::Relaxed);
    }
}

/// Words of a completion.
pub(crate) const CQE_WORDS: usize = size_of::<RxCdescEx>() / 8;
/// The bytes of a completion as words.
pub type Cqe = [u64; CQE_WORDS];

/// The next entry of a sub-CQ.
#[derive(Clone, Copy, Debug)]
struct Sub {
    /// Its place.
    next: NonNull<u64>,
    /// The first place and the end of the ring.
    start: NonNull<u64>,
    end: NonNull<u64>,
    /// In the first word of a new entry, the bit of the phase.
    phase: u64,
    /// The sub-CQ whose turn is after this: how many bytes it is behind the first.
    following: usize,
}

impl Sub {
    /// Takes the next entry.
    ///
    /// # Safety
    /// It is a sub-CQ of a [`CqRing`], which is mapped.
    #[cfg_attr(not(debug_assertions), inline(always))]
    unsafe fn take(&mut self) -> Option<Cqe> {
        // Not loaded again.
        let place = self.next;
        // SAFETY: the place of an entry (invariant of the ring), and the ring is mapped (the contract of this function).
        let entry = unsafe { read(place, self.phase) }?;
        // SAFETY: behind an entry, so this is at most the end.
        self.next = unsafe { place.add(CQE_WORDS) };
        if self.next == self.end {
            // The next round. Not a call, across which the entry would have to be in memory.
            self.next = self.start;
            self.phase ^= completion::PHASE;
        }
        Some(entry)
    }
}

/// The entry at a place, if the device has written it.
///
/// # Safety
/// It is one of a ring that is mapped.
#[cfg_attr(not(debug_assertions), inline(always))]
unsafe fn read(place: NonNull<u64>, phase: u64) -> Option<Cqe> {
    // SAFETY: aligned words of an entry (the contract of this function), which are used by atomics only.
    let entry = unsafe { place.cast::<[AtomicU64; CQE_WORDS]>().as_ref() };
    // The flags are in the first word, so the rest of that word is valid, too. The copy does not have the bit of the phase.
    let first = entry[0].load(Ordering::Relaxed) ^ phase;
    if first & completion::PHASE != 0 {
        return None;
    }
    barrier::from_device();
    Some([
        first,
        entry[1].load(Ordering::Relaxed),
        entry[2].load(Ordering::Relaxed),
        entry[3].load(Ordering::Relaxed),
    ])
}

/// The rings of a completion queue, one after the other: sub-CQs of the same length.
///
/// # Invariant
/// From `first` on, as many entries of 32 bytes as all sub-CQs have are inside the mapping. `first` is aligned to 8. Each sub-CQ has
/// `entries`; `next` is the place of one of them, `start` that of the first, and `end` that behind the last. `turn` and each `following` are
/// the offset of one of `subs`.
#[derive(Debug)]
pub struct CqRing {
    subs: Box<[Sub]>,
    /// The sub-CQ that is polled next, as `following`.
    turn: usize,
    entries: u32,
    mapping: Mapping,
}

// SAFETY: the ring owns its mapping, which is `Send`, and all pointers point into it. Entries are only loaded, by atomics.
unsafe impl Send for CqRing {}

impl CqRing {
    /// The address of the first entry.
    pub(crate) fn address(&self) -> usize {
        self.mapping.as_ptr().as_ptr().expose_provenance()
    }

    /// `subs` sub-CQs of `entries` entries. The mapping may be read-only.
    ///
    /// # Errors
    /// The mapping has no such entries.
    pub fn new(mapping: Mapping, entries: u32, subs: u16) -> Result<Self, MemoryError> {
        mask_of(entries, 1 << 30)?;
        let words = entries as usize * CQE_WORDS;
        let all = (entries as usize)
            .checked_mul(subs.into())
            .filter(|all| *all != 0)
            .ok_or(MemoryError::Elements(entries.into()))?;
        let first = mapping.part(0, all, size_of::<RxCdescEx>(), 8)?.cast();
        let sub = |sub: u16| {
            // SAFETY: an entry of the rings, which are inside the mapping ([`Mapping::part`]).
            let start = unsafe { first.add(usize::from(sub) * words) };
            // SAFETY: at most the end of the rings.
            let end = unsafe { start.add(words) };
            let following = if sub + 1 == subs { 0 } else { (usize::from(sub) + 1) * size_of::<Sub>() };
            // In the first round the phase is 1.
            Sub { next: start, start, end, phase: completion::PHASE, following }
        };
        Ok(Self { subs: (0..subs).map(sub).collect(), turn: 0, entries, mapping })
    }

    /// The number of entries of a sub-CQ.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// The number of sub-CQs.
    #[must_use]
    pub fn subs(&self) -> usize {
        self.subs.len()
    }

    /// Whether the next entry of each sub-CQ is not there.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn is_empty(&self) -> bool {
        // SAFETY: the mapping is that of this ring.
        self.subs.iter().all(|sub| unsafe { read(sub.next, sub.phase) }.is_none())
    }

    /// Takes the next entry of any sub-CQ, in turns.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn take(&mut self) -> Option<Cqe> {
        let subs = NonNull::from(&mut *self.subs).cast::<Sub>();
        let mut turn = self.turn;
        loop {
            // SAFETY: the offset of a sub-CQ (invariant).
            let sub = unsafe { subs.byte_add(turn) };
            // SAFETY: as above; nothing else uses the sub-CQs now (`&mut self`).
            let sub = unsafe { &mut *sub.as_ptr() };
            turn = sub.following;
            // SAFETY: a sub-CQ of this ring, which has its mapping.
            if let Some(entry) = unsafe { sub.take() } {
                self.turn = turn;
                return Some(entry);
            }
            if turn == self.turn {
                return None;
            }
        }
    }

    /// Takes the next entry of a sub-CQ.
    pub(crate) fn take_of(&mut self, index: usize) -> Option<Cqe> {
        // SAFETY: a sub-CQ of this ring, which has its mapping.
        unsafe { self.subs.get_mut(index)?.take() }
    }
}

const _: () = assert!(CQE_WORDS == 4);
