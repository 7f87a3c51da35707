// SPDX-License-Identifier: MIT OR Apache-2.0
//! Allocating doorbell registers.
//!
//! A UAR page has two registers that a process may use. A QP that one thread at a time posts to (an exclusive QP, or
//! one of a thread domain) gets its own register until the kernel has no more pages, because only a register that is
//! not shared needs no lock. A QP with a lock gets its own register up to `num_low_lat_uuars`, as with libmlx5. The
//! other QPs share registers, each with a lock, up to `total_uuars`; if there are none, they use the uncached page of
//! the context. Pages are kernel objects that are allocated when they are needed. A kernel that has no such objects
//! (`tot_bfregs` in its answer) gives a context fixed pages, and returns a QP's register when it creates the QP; a
//! second set of pages has registers for exclusive QPs (`num_dyn_bfregs`).

use crate::control::calls;
use crate::control::options::Options;
use crate::doorbell::{ArmRegister, BlueFlame, Doorbell, SharedHalf};
use core::fmt;
use core::ptr::NonNull;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};
use uverbs_core::Errno;
use uverbs_core::control::dmabuf;
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{DoorbellPage, Kernel};
use uverbs_core::sync::{Locked, ProcessMutex};
use uverbs_mlx5_hw::doorbell::{ALL_BFREGS_PER_UAR, BF_OFFSET, BFREGS_PER_UAR, UAR_BYTES};
use uverbs_uapi::mlx5::{
    MLX5_IB_MMAP_ALLOC_WC, MLX5_IB_MMAP_NC_PAGE, MLX5_IB_MMAP_REGULAR_PAGE, MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF,
    MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC, MLX5_QP_FLAG_BFREG_INDEX, MLX5_QP_FLAG_UAR_PAGE_INDEX,
};

/// The longest register that is accepted from the kernel: two halves of 512 bytes.
const MAX_BF_REG: u32 = 1024;

/// The doorbell parameters in the context's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UarFacts {
    /// Bytes of a register, both halves; 0 without BlueFlame.
    pub(crate) bf_reg_size: u32,
    /// UARs in a page of the machine.
    pub(crate) uars_per_page: u32,
    /// Registers that the kernel gave the context; 0 if UARs are objects.
    pub(crate) tot_bfregs: u32,
    /// Registers that can be allocated later, on a kernel without UAR objects.
    pub(crate) num_dyn_bfregs: u32,
}

/// A page of UARs, freed when its last register is dropped.
struct UarPage {
    page: DoorbellPage,
    /// Number of the first UAR in it.
    page_id: u32,
    object: Option<PageObject>,
}

/// The kernel's object behind a page.
struct PageObject {
    kernel: Arc<dyn Kernel>,
    handle: u32,
    mmap_offset: u64,
}

impl UarPage {
    /// The address at an offset of the page.
    fn raw(&self, offset: u32) -> Option<NonNull<u8>> {
        let registers = self.page.registers()?;
        let at = registers.as_ptr().as_ptr().wrapping_add(offset as usize);
        NonNull::new(at).filter(|_| (offset as usize) < registers.len())
    }
}

impl Drop for UarPage {
    fn drop(&mut self) {
        if let Some(PageObject { kernel, handle, .. }) = self.object.take()
            && kernel.is_creator_process()
            && let Err(errno) = calls::destroy_uar(&*kernel, handle)
        {
            log::error!("{}: uar {handle}: destroy: {errno}", kernel.name());
        }
    }
}

impl fmt::Debug for UarPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UarPage")
            .field("page_id", &self.page_id)
            .field("page", &self.page)
            .finish_non_exhaustive()
    }
}

/// A page that a program uses itself.
#[derive(Debug)]
pub(crate) struct OwnPage(Arc<UarPage>);

impl OwnPage {
    /// The address at an offset of the page; `None` on a software device without memory-mapped registers.
    pub(crate) fn raw(&self, offset: u32) -> Option<NonNull<u8>> {
        self.0.raw(offset)
    }

    /// The number of its first UAR.
    pub(crate) fn page_id(&self) -> u32 {
        self.0.page_id
    }

    /// The page as a dma-buf.
    pub(crate) fn export_dmabuf(&self) -> Result<OwnedFd> {
        match &self.0.object {
            Some(object) => dmabuf::export(&object.kernel, object.mmap_offset),
            None => Err(Error::unsupported("export_dmabuf_fd", "the page is not an object of the kernel")),
        }
    }

    /// The offset by which the kernel maps it.
    pub(crate) fn mmap_offset(&self) -> u64 {
        self.0.object.as_ref().map_or(0, |object| object.mmap_offset)
    }
}

/// The number of a register for the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BfRegIndex {
    /// `bfreg_index` of the request.
    pub(crate) index: u32,
    /// The flag for the meaning of the index.
    pub(crate) flag: u32,
}

/// One register.
#[derive(Clone, Debug)]
struct Register {
    page: Arc<UarPage>,
    offset: u32,
    index: BfRegIndex,
    bf: BlueFlame,
    /// The lock of a register that several QPs use.
    shared: Option<Arc<SharedHalf>>,
}

/// Which threads post to a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Posters {
    /// Any thread, behind the queue's lock.
    Many,
    /// One thread at a time.
    One,
    /// One thread at a time: the contract of a thread domain.
    ThreadDomain,
}

/// The set to which a register is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// Used by one QP. It counts as one of `num_low_lat_uuars`, or does not.
    Dedicated {
        low_latency: bool,
    },
    Shared(usize),
    /// Not returned to a set: there is only one, or the kernel manages them.
    Fixed,
}

/// A register in use by a QP. Drop it only after the kernel has destroyed the QP.
pub(crate) struct BfReg {
    register: Register,
    home: Home,
    of: Arc<Uars>,
}

impl BfReg {
    /// The register's number in the request to create a QP.
    pub(crate) fn index(&self) -> BfRegIndex {
        self.register.index
    }

    /// Whether no other QP rings it.
    pub(crate) fn is_dedicated(&self) -> bool {
        matches!(self.home, Home::Dedicated { .. })
    }

    /// The address of the register, the bytes of the longest burst (0 if bursts are forbidden), and the offset by which
    /// the kernel maps its page, if the page is an object. `None` on a software device without memory-mapped registers.
    pub(crate) fn raw(&self) -> Option<(NonNull<u8>, u32, Option<u64>)> {
        let Register { page, offset, bf, .. } = &self.register;
        // A register that several queues use has a lock, which a program that writes it itself can't take.
        let burst = if bf.burst && self.is_dedicated() { bf.half } else { 0 };
        Some((page.raw(*offset)?, burst, page.object.as_ref().map(|object| object.mmap_offset)))
    }

    /// The doorbell of a send queue.
    pub(crate) fn doorbell(&self, verb: &'static str) -> Result<Doorbell> {
        let Register { page, offset, bf, shared, .. } = &self.register;
        Doorbell::new(&page.page, *offset, *bf, shared.clone())
            .ok_or_else(|| Error::protocol(verb, format!("no doorbell register at {offset:#x} of its page")))
    }
}

impl Drop for BfReg {
    fn drop(&mut self) {
        // In a child of fork(2) whose parent's thread had the lock, the register is not used again.
        let Ok(mut pool) = self.of.lock() else { return };
        match self.home {
            Home::Dedicated { low_latency } => {
                pool.low_latency -= u32::from(low_latency);
                pool.dedicated.push(self.register.clone());
            }
            Home::Shared(i) => {
                if let Some((_, users)) = pool.shared.get_mut(i) {
                    *users = users.saturating_sub(1);
                }
            }
            Home::Fixed => {}
        }
    }
}

impl fmt::Debug for BfReg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BfReg")
            .field("kind", &self.home)
            .field("offset", &self.register.offset)
            .field("page", &self.register.page)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Pool {
    /// Registers that no QP uses.
    dedicated: Vec<Register>,
    /// The number of QPs with a lock that have a dedicated register.
    low_latency: u32,
    /// Shared registers, each with the number of QPs that use it.
    shared: Vec<(Register, u32)>,
    /// Pages of the second set that were mapped, on kernels without UAR objects.
    legacy_pages: u32,
}

/// The registers of a context.
pub(crate) struct Uars {
    kernel: Arc<dyn Kernel>,
    facts: UarFacts,
    options: Options,
    page_bytes: u32,
    /// The uncached page: CQs are armed there, and QPs ring there if BlueFlame is off. `None` on old kernels.
    nc: Option<Arc<UarPage>>,
    /// The fixed pages of a kernel without UAR objects.
    legacy: Vec<Arc<UarPage>>,
    /// Locks of the fixed registers that are shared, by the kernel's index.
    legacy_locks: Vec<Arc<SharedHalf>>,
    pool: ProcessMutex<Pool>,
}

impl fmt::Debug for Uars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uars").field("facts", &self.facts).field("pool", &self.pool).finish_non_exhaustive()
    }
}

fn half_lock() -> Arc<SharedHalf> {
    Arc::new(Locked::new(0))
}

impl Uars {
    /// The registers that a context starts with.
    pub(crate) fn open(kernel: &Arc<dyn Kernel>, mut facts: UarFacts, options: Options) -> Result<Arc<Self>> {
        const VERB: &str = "open_device";
        let half = facts.bf_reg_size / 2;
        if !half.is_power_of_two() || !(64..=MAX_BF_REG / 2).contains(&half) {
            if facts.bf_reg_size != 0 {
                log::warn!(
                    "{}: BlueFlame registers of {} bytes are not used",
                    kernel.name(),
                    facts.bf_reg_size
                );
            }
            facts.bf_reg_size = 0;
        }
        facts.uars_per_page = facts.uars_per_page.max(1);
        let page_bytes = uverbs_core::kernel::page_size();
        if u64::from(facts.uars_per_page) * UAR_BYTES as u64 > u64::from(page_bytes) {
            return Err(Error::protocol(VERB, format!("{} UARs in a page", facts.uars_per_page)));
        }
        let mut this = Self {
            kernel: Arc::clone(kernel),
            facts,
            options,
            page_bytes,
            nc: None,
            legacy: Vec::new(),
            legacy_locks: Vec::new(),
            pool: ProcessMutex::default(),
        };
        if facts.tot_bfregs == 0 {
            this.nc = Some(this.alloc_page(MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC)?);
        } else {
            this.map_legacy(VERB)?;
        }
        Ok(Arc::new(this))
    }

    fn lock(&self) -> Result<MutexGuard<'_, Pool>> {
        let forked = |_| Error::os("alloc_uar", "doorbell registers of the parent process", Errno::ESTALE);
        self.pool.lock().map_err(forked)
    }

    /// The register by which the context's CQs are armed.
    pub(crate) fn arm_register(&self) -> Option<ArmRegister> {
        let page = self.nc.as_ref().or(self.legacy.first())?;
        ArmRegister::new(&page.page, 0)
    }

    /// The address of the page with that register.
    pub(crate) fn raw_arm_page(&self) -> Option<NonNull<u8>> {
        self.nc.as_ref().or(self.legacy.first())?.raw(0)
    }

    /// Allocates a page for a program that rings doorbells itself. `uar_type` is `MLX5_IB_UAPI_UAR_ALLOC_TYPE_*`.
    pub(crate) fn own_page(&self, uar_type: u64) -> Result<OwnPage> {
        self.alloc_page(uar_type).map(OwnPage)
    }

    /// The page number that CQs are created with; `None` if the kernel chooses the page.
    pub(crate) fn arm_page(&self) -> Option<u32> {
        self.nc.as_ref().map(|page| page.page_id)
    }

    fn alloc_page(&self, uar_type: u64) -> Result<Arc<UarPage>> {
        const VERB: &str = "alloc_uar";
        let object = calls::alloc_uar(&self.kernel, uar_type)?;
        let free = || {
            let _ = calls::destroy_uar(&*self.kernel, object.handle);
        };
        if object.length < self.facts.uars_per_page * UAR_BYTES as u32 {
            free();
            return Err(Error::protocol(VERB, format!("a page of {} bytes", object.length)));
        }
        let page = self.kernel.doorbells(object.mmap_offset, object.length as usize).map_err(|errno| {
            free();
            Error::os(VERB, format!("uar page {} of {}", object.page_id, self.kernel.name()), errno)
        })?;
        let owner = PageObject {
            kernel: Arc::clone(&self.kernel),
            handle: object.handle,
            mmap_offset: object.mmap_offset,
        };
        Ok(Arc::new(UarPage { page, page_id: object.page_id, object: Some(owner) }))
    }

    /// The registers of a page.
    fn registers(&self, page: &Arc<UarPage>) -> impl Iterator<Item = Register> {
        let (page, size) = (Arc::clone(page), self.facts.bf_reg_size);
        let bf = self.blueflame();
        (0..self.facts.uars_per_page * BFREGS_PER_UAR as u32).map(move |i| {
            let (uar, register) = (i / BFREGS_PER_UAR as u32, i % BFREGS_PER_UAR as u32);
            Register {
                page: Arc::clone(&page),
                offset: uar * UAR_BYTES as u32 + BF_OFFSET as u32 + register * size,
                index: BfRegIndex {
                    index: page.page_id.wrapping_add(uar),
                    flag: MLX5_QP_FLAG_UAR_PAGE_INDEX,
                },
                bf,
                shared: None,
            }
        })
    }

    fn blueflame(&self) -> BlueFlame {
        let burst = self.facts.bf_reg_size != 0 && !self.options.shut_up_bf;
        BlueFlame { half: self.facts.bf_reg_size / 2, burst, prefer: self.options.prefer_bf }
    }

    /// A register for a new QP. `None` where the kernel names one when it creates the QP: see [`fixed`](Self::fixed).
    pub(crate) fn for_qp(self: &Arc<Self>, posters: Posters) -> Result<Option<BfReg>> {
        let made = |register, home| Ok(Some(BfReg { register, home, of: Arc::clone(self) }));
        let burst = self.blueflame().burst;
        let mut pool = self.lock()?;
        // Without bursts the uncached register has no lock either: see `uncached`. A thread domain still has a register
        // of its own, and alternates between its halves, as with libmlx5.
        let dedicated = match posters {
            Posters::ThreadDomain => self.facts.bf_reg_size != 0,
            Posters::One => burst,
            Posters::Many => burst && self.nc.is_some() && pool.low_latency < self.options.num_low_lat_uuars,
        };
        if dedicated && let Some(register) = self.take_dedicated(&mut pool) {
            let low_latency = posters == Posters::Many;
            pool.low_latency += u32::from(low_latency);
            drop(pool);
            return made(register, Home::Dedicated { low_latency });
        }
        if self.nc.is_none() {
            return Ok(None);
        }
        let at_most = self.options.total_uuars.saturating_sub(self.options.num_low_lat_uuars);
        if burst && (pool.shared.len() as u32) < at_most {
            match self.alloc_page(MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF) {
                Ok(page) => {
                    let new = self.registers(&page).map(|r| (Register { shared: Some(half_lock()), ..r }, 0));
                    pool.shared.extend(new);
                }
                Err(error) => log::debug!("{}: no more doorbell registers: {error}", self.kernel.name()),
            }
        }
        // Registers are never removed from the list, so an index stays valid.
        let least = (0..).zip(&pool.shared).min_by_key(|(_, (_, users))| *users).map(|(i, _): (usize, _)| i);
        let Some((register, users)) = least.and_then(|i| pool.shared.get_mut(i)) else {
            drop(pool);
            let Some(register) = self.uncached() else {
                return Err(Error::protocol("alloc_uar", "no register"));
            };
            return made(register, Home::Fixed);
        };
        *users += 1;
        let register = register.clone();
        drop(pool);
        made(register, Home::Shared(least.unwrap_or_default()))
    }

    /// The register of the uncached page. A doorbell of 8 bytes is one store, so any number of QPs ring there without a
    /// lock, but none writes a whole WQE.
    fn uncached(&self) -> Option<Register> {
        let nc = self.nc.as_ref()?;
        let index = BfRegIndex { index: nc.page_id, flag: MLX5_QP_FLAG_UAR_PAGE_INDEX };
        let bf = BlueFlame { half: 0, burst: false, prefer: false };
        Some(Register { page: Arc::clone(nc), offset: BF_OFFSET as u32, index, bf, shared: None })
    }

    /// The register number for the creation of a QP without a send queue: a page that the QP does not use.
    pub(crate) fn unused(&self) -> BfRegIndex {
        self.nc.as_ref().map_or_else(BfRegIndex::default, |nc| BfRegIndex {
            index: nc.page_id,
            flag: MLX5_QP_FLAG_UAR_PAGE_INDEX,
        })
    }

    /// Takes a register that no other QP uses. It is not an error if the device or the kernel has no more pages.
    fn take_dedicated(&self, pool: &mut Pool) -> Option<Register> {
        if pool.dedicated.is_empty() {
            match self.more_dedicated(pool) {
                Ok(more) => {
                    pool.dedicated = more;
                    pool.dedicated.reverse();
                }
                Err(error) => log::debug!("{}: no doorbell register of its own: {error}", self.kernel.name()),
            }
        }
        pool.dedicated.pop()
    }

    /// The registers of one more page; none if there are no more pages.
    fn more_dedicated(&self, pool: &mut Pool) -> Result<Vec<Register>> {
        if self.nc.is_some() {
            let page = self.alloc_page(MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF)?;
            return Ok(self.registers(&page).collect());
        }
        let per_page = self.facts.uars_per_page * BFREGS_PER_UAR as u32;
        if pool.legacy_pages >= self.facts.num_dyn_bfregs / per_page {
            return Ok(Vec::new());
        }
        let number = pool.legacy_pages;
        let page = self.map_page("alloc_uar", MLX5_IB_MMAP_ALLOC_WC, number)?;
        pool.legacy_pages += 1;
        let named = (0..).zip(self.registers(&page)).map(|(i, register)| {
            let index = BfRegIndex { index: number * per_page + i, flag: MLX5_QP_FLAG_BFREG_INDEX };
            Register { index, ..register }
        });
        Ok(named.collect())
    }

    /// Maps a page of a kernel without UAR objects.
    fn map_page(&self, verb: &'static str, command: u64, index: u32) -> Result<Arc<UarPage>> {
        let page = self
            .kernel
            .doorbells(calls::mmap_offset(command, index), self.page_bytes as usize)
            .map_err(|errno| Error::os(verb, format!("uar page {index} of {}", self.kernel.name()), errno))?;
        Ok(Arc::new(UarPage { page, page_id: 0, object: None }))
    }

    fn map_legacy(&mut self, verb: &'static str) -> Result<()> {
        let per_page = self.facts.uars_per_page * BFREGS_PER_UAR as u32;
        let pages = self.facts.tot_bfregs / per_page;
        if pages == 0 || self.facts.tot_bfregs > self.options.total_uuars.next_multiple_of(per_page) {
            let what = format!(
                "{} doorbell registers instead of {}",
                self.facts.tot_bfregs, self.options.total_uuars
            );
            return Err(Error::protocol(verb, what));
        }
        let command = if self.options.shut_up_bf { MLX5_IB_MMAP_NC_PAGE } else { MLX5_IB_MMAP_REGULAR_PAGE };
        for i in 0..pages {
            let page = self.map_page(verb, command, i)?;
            self.legacy.push(page);
        }
        let all = pages * self.facts.uars_per_page * ALL_BFREGS_PER_UAR as u32;
        self.legacy_locks = (0..all).map(|_| half_lock()).collect();
        Ok(())
    }

    /// The register that a kernel without UAR objects named.
    ///
    /// Register 0 may be rung by any QP, by 8 bytes; the last `num_low_lat_uuars` belong to one QP each; those between
    /// are shared. Register 0 has no halves. (`mlx5_ib_create_qp()` in the kernel, `alloc_bfreg()`.)
    pub(crate) fn fixed(self: &Arc<Self>, verb: &'static str, bfreg_index: u32) -> Result<BfReg> {
        let all = ALL_BFREGS_PER_UAR as u32;
        let (uar, k) = (bfreg_index / all, bfreg_index % all);
        let (page, in_page) = (uar / self.facts.uars_per_page, uar % self.facts.uars_per_page);
        let (Some(page), Some(lock)) =
            (self.legacy.get(page as usize), self.legacy_locks.get(bfreg_index as usize))
        else {
            return Err(Error::protocol(verb, format!("doorbell register {bfreg_index}")));
        };
        let bf = match bfreg_index {
            0 => BlueFlame { half: 0, burst: false, prefer: false },
            _ => self.blueflame(),
        };
        let medium = self.facts.tot_bfregs.saturating_sub(self.options.num_low_lat_uuars);
        let is_shared = bfreg_index != 0 && bfreg_index.div_ceil(2) < medium;
        let register = Register {
            page: Arc::clone(page),
            offset: in_page * UAR_BYTES as u32 + BF_OFFSET as u32 + k * self.facts.bf_reg_size,
            index: BfRegIndex::default(),
            bf,
            shared: is_shared.then(|| Arc::clone(lock)),
        };
        Ok(BfReg { register, home: Home::Fixed, of: Arc::clone(self) })
    }
}
