// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbells: the UAR registers by which a queue notifies the device.
//!
//! A send doorbell is 8 bytes (the start of the last WQE), or a whole WQE written to the same register, which saves the
//! device a fetch (BlueFlame). A register has two halves that are used alternately, so that a burst that is still in a
//! write-combining buffer is not mixed with the next one. A register that several QPs use needs a lock for this; a
//! dedicated one does not. Facts from PRM, "UAR Page Format" (8.7), and rdma-core's `udma_barrier.h` for the order of
//! stores.
#![expect(unsafe_code)]
// UNSAFETY: stores to device registers, at offsets that were checked against the mapping.

use crate::memory::{BlockCount, BlockIndex, SendQueueRef, SqView};
use crate::sq::cursor::LastWqe;
use crate::wqe::plain::Carries;
use core::fmt;
use core::hint::cold_path;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs_core::kernel::{DoorbellPage, DoorbellPort, Register, WordRegister};
use uverbs_core::sync::barrier::{write_combining_flush, write_combining_start};
use uverbs_core::sync::{Guard, Locked, Shared, burst};
use uverbs_mlx5_hw::doorbell::MLX5_CQ_DOORBELL;

/// Copies a block to a register, as its `nth`. (The fence before it has emptied the store buffer, so a 16-byte load after smaller stores
/// does not stall.)
#[cfg_attr(not(debug_assertions), inline(always))]
fn copy_block(register: NonNull<u64>, nth: u32, ring: SqView<'_>, block: BlockIndex) {
    // SAFETY: the blocks of a burst fit into a half of the register (the callers use at most [`BlueFlame::half`] bytes),
    // which is inside the mapping ([`Register::new`]).
    let to = unsafe { register.byte_add(nth as usize * 64) };
    // SAFETY: a block of the ring, which is aligned to 64; only this poster stores to a block that is not published. The block of the register
    // is inside the mapping (see above), and [`Doorbell::new`] checked that it is aligned to 64.
    unsafe { burst::copy_block(NonNull::from(ring.at(block)).cast(), to) };
}

/// A burst to a software device: passes the bytes as they would be on the bus.
#[cold]
fn port_burst(port: &dyn DoorbellPort, at: u32, ring: SqView<'_>, first: BlockIndex, blocks: u32) {
    let mut bytes = [0_u8; MAX_BURST as usize];
    let blocks = blocks.min(MAX_BURST / 64);
    for i in 0..blocks {
        for (j, word) in ring.at(first.after(i)).iter().enumerate() {
            let at = i as usize * 64 + j * 8;
            bytes[at..at + 8].copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
    }
    port.blueflame(at, &bytes[..blocks as usize * 64]);
}

/// The longest burst: half of the largest register.
const MAX_BURST: u32 = 512;

/// The properties of a register, according to the context's answer and the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlueFlame {
    /// Bytes of a half: the longest burst, and the distance of the halves. A power of two from 64 to 512; 0 for a register
    /// without halves (one that is mapped uncached).
    pub half: u32,
    /// Whether bursts are allowed: `MLX5_SHUT_UP_BF` and the first register of an old kernel's UARs forbid them.
    pub burst: bool,
    /// Whether WQEs without inline data are written as bursts (`MLX5_POST_SEND_PREFER_BF`).
    pub prefer: bool,
}

/// The lock of a register that several QPs use; its value is the offset of the next half.
pub type SharedHalf = Locked<u32, Shared>;

/// A send queue's doorbell.
///
/// # Invariants
/// If `register` is mapped and `sharing` is `Sharing::Own`, `next` is the address of its next half, and the other half's
/// address differs in the bit `toggle`. `toggle` is 0 if there is only one.
///
/// If `register` is mapped and `sharing` is `Sharing::Locked`, `next` is the address of its first half, which does not change.
// codegen: lines
#[repr(C)]
pub struct Doorbell {
    register: Register,
    /// The offset of the next half of a software device's register: 0, or `half_size`.
    half: u32,
    half_size: u32,
    sharing: Sharing,
    /// The longest WQE that is written as a burst, by the kind of its data ([`Carries`]).
    burst: [BlockCount; 4],
    toggle: usize,
    next: NonNull<u64>,
    /// Whether no other queue uses the register and a block with entries is written as a burst.
    bursts_alone: bool,
}

/// How the register is used.
enum Sharing {
    /// By stores, by this queue only.
    Own,
    /// By stores, by several queues.
    Locked(Arc<SharedHalf>),
    /// By calls of a software device, with the lock if several queues use it.
    Port(Option<Arc<SharedHalf>>),
}

// SAFETY: `next` is the address of a register in a mapping that `register` keeps alive; it may be used by any thread.
unsafe impl Send for Doorbell {}
// SAFETY: `&Doorbell` only allows constant fields to be read.
unsafe impl Sync for Doorbell {}

#[cfg(test)]
impl Doorbell {
    /// The fields that a post uses are from here to the end.
    pub(crate) const USED: usize = core::mem::offset_of!(Self, half_size);
}

impl Doorbell {
    /// The register at `offset` of `page`. If other QPs use it, all of them pass the same `shared`. `None` if the register
    /// is not inside the page, or has halves that are not aligned to 64 bytes.
    #[must_use]
    pub fn new(
        page: &DoorbellPage,
        offset: u32,
        bf: BlueFlame,
        shared: Option<Arc<SharedHalf>>,
    ) -> Option<Self> {
        if bf.half != 0 && (!bf.half.is_power_of_two() || !(64..=MAX_BURST).contains(&bf.half)) {
            return None;
        }
        let register = Register::new(page, offset, (bf.half * 2).max(8), 8)?;
        let (next, sharing) = match (&register, shared) {
            (Register::Mapped(register), None) => (register.address().cast(), Sharing::Own),
            (Register::Mapped(register), Some(shared)) => {
                (register.address().cast(), Sharing::Locked(shared))
            }
            (Register::Port(..), shared) => (NonNull::dangling(), Sharing::Port(shared)),
        };
        if matches!(register, Register::Mapped(..)) && bf.half != 0 && !next.addr().get().is_multiple_of(64) {
            return None;
        }
        // The addresses of the halves differ in one bit.
        let half = bf.half as usize;
        let toggle = if next.addr().get() & half == 0 { half } else { 0 };
        let longest = |wanted| BlockCount::of(if bf.burst && wanted { bf.half / 64 } else { 0 });
        let mut burst = [BlockCount::NONE; 4];
        burst[Carries::Entries as usize] = longest(bf.prefer);
        burst[Carries::Inline as usize] = longest(true);
        let bursts_alone =
            matches!(sharing, Sharing::Own) && burst[Carries::Entries as usize] != BlockCount::NONE;
        Some(Self { register, half: 0, half_size: bf.half, sharing, burst, toggle, next, bursts_alone })
    }

    /// Whether the register has a lock because several QPs use it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.sharing, Sharing::Locked(_) | Sharing::Port(Some(_)))
    }

    /// Notifies the device of the WQEs from `first` to `end`, of which `last` is the last one; a single WQE may be written as
    /// a burst. `ring` is the ring of `queue`. The doorbell record must have been written, and the queue must be busy.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post(
        &mut self,
        queue: &SendQueueRef,
        ring: SqView<'_>,
        first: BlockIndex,
        last: LastWqe,
        end: BlockIndex,
    ) {
        let (span, at) = (last.span(), end.before(last.span()));
        // codegen: live
        if let Sharing::Own = self.sharing {
            let is_burst = at == first && span <= self.burst[last.carries()];
            write_combining_start();
            if is_burst {
                copy_block(self.next, 0, ring, at);
                for i in 1..span.blocks() {
                    copy_block(self.next, i, ring, at.after(i));
                }
            } else {
                put_word(self.next, 0, ring.at(at)[0].load(Ordering::Relaxed));
            }
            self.turn();
        } else {
            let is_burst = at == first && span <= self.burst[last.carries()];
            self.post_shared(queue, at, if is_burst { span.blocks() } else { 0 });
        }
    }

    /// [`post`](Self::post) of a single WQE of one block, whose words the caller has in registers. It has `ds` units, at
    /// least 2; the remaining words of the block are written as 0.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn post_block(&mut self, queue: &SendQueueRef, at: BlockIndex, words: &[u64; 8], ds: u32) {
        if !self.bursts_alone {
            // This case is not rare. codegen: layout
            cold_path();
            let last = LastWqe::new(BlockCount::of(1), Carries::Entries);
            return self.post(queue, queue.view(), at, last, at.after(1));
        }
        // Loaded before the fence, because loads after it are slow.
        let next = self.next;
        write_combining_start();
        for (unit, &[first, second]) in (0..).zip(words.as_chunks::<2>().0) {
            if unit < ds {
                put_word(next, unit * 16, first);
                put_word(next, unit * 16 + 8, second);
            } else {
                put_zero_unit(next, unit * 16);
            }
        }
        self.turn();
    }

    /// Changes to the other half.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn turn(&mut self) {
        write_combining_flush();
        // For an address with the bit clear the toggle sets it, otherwise it is 0 (see `new`); so the result is not 0.
        let other = self.next.as_ptr().map_addr(|addr| addr ^ self.toggle);
        // SAFETY: `other` is the address of a half of the register (invariant), so it is not NULL.
        self.next = unsafe { NonNull::new_unchecked(other) };
    }

    /// [`post`](Self::post) to a register with a lock or of a software device: a burst of `blocks` blocks, or 8 bytes if
    /// `blocks` is 0. It calls no function if the lock is free, so it saves no registers.
    // codegen: call
    #[inline(never)]
    fn post_shared(&mut self, queue: &SendQueueRef, last: BlockIndex, blocks: u32) {
        if let Sharing::Locked(shared) = &self.sharing
            && let Some(half) = shared.try_lock()
        {
            return self.write_locked(half, queue, last, blocks);
        }
        self.post_waiting(queue, last, blocks);
    }

    /// [`post_shared`](Self::post_shared) to a register that has a lock and is mapped.
    #[cfg_attr(not(debug_assertions), inline(always))]
    fn write_locked(&self, mut half: Guard<'_, u32>, queue: &SendQueueRef, last: BlockIndex, blocks: u32) {
        let ring = queue.view();
        // SAFETY: `next` is the first half of a mapped register (invariant), and the offset, 0 or `half_size`, is the start of a half;
        // `Register::new` checked that both halves are inside the mapping.
        let next = unsafe { self.next.byte_add((*half & self.half_size) as usize) };
        write_combining_start();
        if blocks == 0 {
            put_word(next, 0, ring.at(last)[0].load(Ordering::Relaxed));
        } else {
            for i in 0..blocks {
                copy_block(next, i, ring, last.after(i));
            }
        }
        // Before the lock is released: the next holder's store must not reach the device before this one.
        write_combining_flush();
        *half ^= self.half_size;
    }

    /// [`post_shared`](Self::post_shared) if another thread has the lock, or to a software device.
    #[cold]
    #[inline(never)]
    fn post_waiting(&mut self, queue: &SendQueueRef, last: BlockIndex, blocks: u32) {
        let ring = queue.view();
        let Sharing::Port(shared) = &self.sharing else {
            let Sharing::Locked(shared) = &self.sharing else { return };
            // The lock is held for the stores only, so this thread does not hold it.
            if let Ok(half) = shared.lock() {
                self.write_locked(half, queue, last, blocks);
            }
            return;
        };
        let Register::Port(port, offset) = &self.register else { return };
        let write = |half, blocks| write_port(&**port, offset + half, ring, last, blocks);
        // The call may panic; dropping this leaves the queue then.
        let _busy = queue.qp.access().send.busy();
        let Some(shared) = shared else {
            write(self.half, blocks);
            self.half ^= self.half_size;
            return;
        };
        // A software device does not call back, so this thread does not hold the lock.
        let Ok(mut half) = shared.lock() else { return write(0, 0) };
        write(*half & self.half_size, blocks);
        *half ^= self.half_size;
    }
}

/// Writes a burst of `blocks` blocks, or 8 bytes if `blocks` is 0, to a software device.
fn write_port(port: &dyn DoorbellPort, at: u32, ring: SqView<'_>, last: BlockIndex, blocks: u32) {
    write_combining_start();
    if blocks != 0 {
        port_burst(port, at, ring, last, blocks);
    } else {
        port.ring(at, ring.at(last)[0].load(Ordering::Relaxed).to_ne_bytes());
    }
    // Before a lock is released: the next holder's store must not reach the device before this one.
    write_combining_flush();
}

/// Writes 8 bytes to a register. They must be inside the mapping: the callers stay inside the halves of a register that
/// [`Register::new`] checked.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_word(register: NonNull<u64>, at: u32, word: u64) {
    // SAFETY: the callers pass an offset inside the register, whose halves are inside the mapping ([`Register::new`]).
    let to = unsafe { register.byte_add(at as usize) };
    // SAFETY: 8 bytes of a mapped register; `Register::new` checked the alignment.
    unsafe { to.write_volatile(word) };
}

/// Writes 16 zero bytes to a register that is aligned to 64 bytes, by one store on x86-64. `at` must be a multiple of 16,
/// and the bytes must be inside the register.
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_zero_unit(register: NonNull<u64>, at: u32) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m128i, _mm_setzero_si128};
        // SAFETY: every x86-64 CPU has SSE2.
        let zeros = unsafe { _mm_setzero_si128() };
        // SAFETY: the callers pass an offset inside the register, whose halves are inside the mapping ([`Register::new`]).
        let to = unsafe { register.byte_add(at as usize) };
        // SAFETY: 16 bytes of a mapped register, aligned to 16, because the register is aligned to 64 ([`Doorbell::new`]).
        unsafe { to.cast::<__m128i>().write_volatile(zeros) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    for word in 0..2 {
        put_word(register, at + word * 8, 0);
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell")
            .field("register", &self.register)
            .field("halves", &self.half_size)
            .field("burst", &self.burst)
            .field("shared", &self.is_shared())
            .finish_non_exhaustive()
    }
}

/// The register by which CQs request events. It takes single stores of 8 bytes, so all CQs of a context share it without a
/// lock.
#[derive(Debug)]
pub struct ArmRegister(WordRegister<u64>);

impl ArmRegister {
    /// The register in the UAR that starts at `offset` of `page`.
    #[must_use]
    pub fn new(page: &DoorbellPage, offset: u32) -> Option<Self> {
        WordRegister::new(page, offset.checked_add(MLX5_CQ_DOORBELL as u32)?).map(Self)
    }

    /// The register, if it is mapped, so that a write is one store.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn mapped(&self) -> Option<MappedArm<'_>> {
        Some(MappedArm { register: self.0.address()?, owner: PhantomData })
    }

    /// Writes the bytes of a `CqDoorbell`. The arm word of the doorbell record must have been written.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub fn arm(&self, bytes: [u8; 8]) {
        // The record is in ordinary memory and the register is not, so this fence orders the two stores.
        write_combining_start();
        self.0.store(u64::from_ne_bytes(bytes));
        write_combining_flush();
    }
}

/// An [`ArmRegister`] that is mapped.
pub(crate) struct MappedArm<'a> {
    register: NonNull<u64>,
    owner: PhantomData<&'a ArmRegister>,
}

impl MappedArm<'_> {
    /// [`ArmRegister::arm`]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn arm(self, bytes: [u8; 8]) {
        write_combining_start();
        put_word(self.register, 0, u64::from_ne_bytes(bytes));
        write_combining_flush();
    }
}
