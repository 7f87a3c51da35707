// SPDX-License-Identifier: MIT OR Apache-2.0
//! Doorbells: the registers of a UAR through which a queue tells the device that there is work.
//!
//! A send doorbell is 8 bytes (the start of the last WQE), or a whole WQE written to the same place, which saves the device the
//! fetch (BlueFlame). A register has two halves, used in turn, so that a burst that still sits in a write-combining buffer
//! is not mixed with the next. A register of several QPs needs a lock around all of that; a dedicated one does not.
//! Facts from PRM, "UAR Page Format" (8.7), and rdma-core's `udma_barrier.h` for the order of stores.
#![expect(unsafe_code)]
// UNSAFETY: stores to device registers, at offsets that were checked against the mapping.

use crate::buf::{Place, SqRing, SqView};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::sync::Arc;
use uverbs_core::kernel::{DoorbellPage, DoorbellPort, Mapping};
use uverbs_core::sync::barrier::{write_combining_flush, write_combining_start};
use uverbs_core::sync::{Locked, Shared};
use uverbs_mlx5_hw::doorbell::MLX5_CQ_DOORBELL;

/// A register, or two halves of one, at some offset of a page.
enum Register {
    /// Mapped from a device. The pointer is that of the register.
    Mapped(NonNull<u64>, #[expect(dead_code, reason = "keeps the page mapped")] Arc<Mapping>),
    /// A software device's, with the register's offset in the page.
    Port(Arc<dyn DoorbellPort>, u32),
}

// SAFETY: the address of a register, good from any thread while the mapping lives, which it owns.
unsafe impl Send for Register {}
// SAFETY: likewise; concurrent stores to a register are the device's to order.
unsafe impl Sync for Register {}

impl Register {
    /// The register at `offset`, if `len` bytes from there on are inside the page.
    fn new(page: &DoorbellPage, offset: u32, len: u32) -> Option<Self> {
        if !offset.is_multiple_of(8) {
            return None;
        }
        match page {
            DoorbellPage::Mapped(map) => {
                let end = (offset as usize).checked_add(len as usize)?;
                if end > map.len() || !map.as_ptr().addr().get().is_multiple_of(8) {
                    return None;
                }
                // SAFETY: `offset` is inside the mapping.
                let register = unsafe { map.as_ptr().add(offset as usize) };
                Some(Self::Mapped(register.cast(), Arc::clone(map)))
            }
            DoorbellPage::Port(port) => Some(Self::Port(Arc::clone(port), offset)),
        }
    }

    /// One store of 8 bytes. `at` is below the `len` of `new`, and a multiple of 8.
    #[inline(always)]
    fn ring(&self, at: u32, value: u64) {
        match self {
            Self::Mapped(register, _) => put_word(*register, at, value),
            Self::Port(port, offset) => port.ring(offset + at, value.to_ne_bytes()),
        }
    }

    /// A burst: the `blocks` basic blocks from `first` on. No longer than a half.
    #[inline(always)]
    fn burst(&self, at: u32, ring: SqView<'_>, first: Place, blocks: u32) {
        match self {
            Self::Mapped(register, _) => {
                for i in 0..blocks {
                    copy_block(*register, at + i * 64, ring, first.after(i));
                }
            }
            Self::Port(port, offset) => port_burst(&**port, offset + at, ring.ring(), first, blocks),
        }
    }
}

/// Writes 64 bytes to a register. `at` and what is written is inside the mapping: the callers stay in the register's halves,
/// which [`Register::new`] checked.
#[inline(always)]
fn put_block(register: NonNull<u64>, at: u32, words: &[u64; 8]) {
    for (i, word) in words.iter().enumerate() {
        // SAFETY: inside the mapping, see above.
        let to = unsafe { register.byte_add(at as usize + i * 8) };
        // SAFETY: a mapped register, aligned to 8.
        unsafe { to.write_volatile(*word) };
    }
}

/// Copies a basic block to a register, as [`put_block`] writes one. Word by word: a few registers do, and a load of 8 bytes
/// after a store of 8 is forwarded to it.
#[inline(always)]
fn copy_block(register: NonNull<u64>, at: u32, ring: SqView<'_>, block: Place) {
    // SAFETY: inside the mapping, see `put_block`.
    let half = unsafe { register.byte_add(at as usize) };
    for (i, word) in ring.at(block).iter().enumerate() {
        put_word(half, i as u32 * 8, word.load(Ordering::Relaxed));
    }
}

/// The blocks after the first.
#[inline(never)]
fn copy_rest(register: NonNull<u64>, at: u32, ring: &SqRing, first: Place, blocks: u32) {
    for i in 1..blocks {
        copy_block(register, at + i * 64, ring.view(), first.after(i));
    }
}

/// A burst to a software device: the bytes as they would pass the bus.
#[cold]
fn port_burst(port: &dyn DoorbellPort, at: u32, ring: &SqRing, first: Place, blocks: u32) {
    let ring = ring.view();
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

/// What a register can do, by the context's answer and the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlueFlame {
    /// Bytes of a half: the longest burst, and how far apart the halves are. A power of two from 64 to 512; 0 for a register
    /// without halves (one that is mapped uncached).
    pub half: u32,
    /// Whether bursts are allowed: `MLX5_SHUT_UP_BF` and the first register of an old kernel's UARs forbid them.
    pub burst: bool,
    /// Whether a WQE without inline data is worth one (`MLX5_POST_SEND_PREFER_BF`).
    pub prefer: bool,
}

/// A register that several QPs ring: its lock, and which half is next.
pub type SharedHalf = Locked<u32, Shared>;

/// A send queue's doorbell.
pub struct Doorbell {
    /// The register, if it is a device's and this queue's alone; else [`post_slow`](Self::post_slow) has it.
    fast: Option<NonNull<u64>>,
    /// Which half is next, as its offset: 0, or what is below.
    half: u32,
    /// How far the halves are apart.
    toggle: u32,
    /// Most units of a WQE that is written whole; 0 for none.
    max_ds: u32,
    /// The same for a WQE with inline data.
    max_ds_inline: u32,
    register: Register,
    shared: Option<Arc<SharedHalf>>,
}

// SAFETY: the address of a register that `register` keeps mapped, good from any thread.
unsafe impl Send for Doorbell {}
// SAFETY: `&Doorbell` gives nothing but its description.
unsafe impl Sync for Doorbell {}

/// The doorbell of a WQE, or of several.
#[derive(Clone, Copy)]
struct Call {
    last: Place,
    ctrl: u64,
    burst: bool,
    blocks: u32,
}

impl Doorbell {
    /// The register at `offset` of `page`. With `shared`, other QPs ring it, too, and use the same `shared`. `None` if
    /// it does not fit in the page.
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
        let register = Register::new(page, offset, (bf.half * 2).max(8))?;
        let fast = match &register {
            Register::Mapped(register, _) if shared.is_none() => Some(*register),
            _ => None,
        };
        let max_ds = |wanted| if bf.burst && wanted { bf.half / 16 } else { 0 };
        Some(Self {
            fast,
            half: 0,
            toggle: bf.half,
            max_ds: max_ds(bf.prefer),
            max_ds_inline: max_ds(true),
            register,
            shared,
        })
    }

    /// Whether the register has a lock because other QPs may ring it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Tells the device of the WQEs up to the one at `last`. A single one that is short enough is written whole; one of
    /// one unit says no more than its first 8 bytes. The doorbell record was written before.
    #[inline(always)]
    pub(crate) fn post(&mut self, ring: SqView<'_>, last: Place, single: bool, inline: bool) {
        let ctrl = ring.at(last)[0].load(Ordering::Relaxed);
        let ds = u64::from_be(ctrl) as u32 & 0x3f;
        let max_ds = if inline { self.max_ds_inline } else { self.max_ds };
        let Some(register) = self.fast else {
            let burst = single && ds > 1 && ds <= max_ds;
            let call = Call { last, ctrl, burst, blocks: ds.div_ceil(4) };
            return self.post_slow(ring.ring(), call);
        };
        write_combining_start();
        if single && ds > 1 && ds <= max_ds {
            copy_block(register, self.half, ring, last);
            if ds > 4 {
                copy_rest(register, self.half, ring.ring(), last, ds.div_ceil(4));
            }
        } else {
            put_word(register, self.half, ctrl);
        }
        write_combining_flush();
        self.half ^= self.toggle;
    }

    /// The same for a single WQE of up to four units whose `words` are at hand.
    #[inline(always)]
    pub(crate) fn post_block(&mut self, ring: SqView<'_>, at: Place, words: &[u64; 8], ds: u32) {
        let burst = ds > 1 && ds <= self.max_ds;
        let Some(register) = self.fast else {
            return self.post_slow(ring.ring(), Call { last: at, ctrl: words[0], burst, blocks: 1 });
        };
        write_combining_start();
        if burst {
            put_block(register, self.half, words);
        } else {
            put_word(register, self.half, words[0]);
        }
        write_combining_flush();
        self.half ^= self.toggle;
    }

    /// A register with a lock, or a software device's.
    #[inline(never)]
    fn post_slow(&mut self, ring: &SqRing, call: Call) {
        let Some(shared) = &self.shared else {
            self.write(self.half, ring.view(), call);
            self.half ^= self.toggle;
            return;
        };
        // Held for the stores only, so this thread can't have it; and a software device does not call back.
        let Ok(mut half) = shared.lock() else {
            return self.write(0, ring.view(), Call { burst: false, ..call });
        };
        self.write(*half & self.toggle, ring.view(), call);
        *half ^= self.toggle;
    }

    fn write(&self, half: u32, ring: SqView<'_>, call: Call) {
        write_combining_start();
        if call.burst {
            self.register.burst(half, ring, call.last, call.blocks);
        } else {
            self.register.ring(half, call.ctrl);
        }
        // Before a lock is released: the next holder's store must not overtake this one on its way out of this CPU.
        write_combining_flush();
    }
}

/// Writes 8 bytes to a register, as [`put_block`] does 64.
#[inline(always)]
fn put_word(register: NonNull<u64>, at: u32, word: u64) {
    // SAFETY: inside the mapping, see `put_block`.
    let to = unsafe { register.byte_add(at as usize) };
    // SAFETY: a mapped register, aligned to 8.
    unsafe { to.write_volatile(word) };
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell")
            .field("register", &self.register)
            .field("halves", &self.toggle)
            .field("max_ds", &self.max_ds)
            .field("shared", &self.is_shared())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mapped(register, _) => f.debug_tuple("Mapped").field(register).finish(),
            Self::Port(port, offset) => f.debug_tuple("Port").field(port).field(offset).finish(),
        }
    }
}

/// The register by which CQs ask for events. One store of 8 bytes, so all CQs of a context share it without a lock.
#[derive(Debug)]
pub struct ArmRegister(Register);

impl ArmRegister {
    /// That of `page`, a UAR that starts at `offset`.
    #[must_use]
    pub fn new(page: &DoorbellPage, offset: u32) -> Option<Self> {
        Register::new(page, offset.checked_add(MLX5_CQ_DOORBELL as u32)?, 8).map(Self)
    }

    /// Rings with the bytes of a `CqDoorbell`. The arm word of the doorbell record was written before.
    #[inline]
    pub fn arm(&self, bytes: [u8; 8]) {
        // The record is in ordinary memory and the register is not.
        write_combining_start();
        self.0.ring(0, u64::from_ne_bytes(bytes));
        write_combining_flush();
    }
}
