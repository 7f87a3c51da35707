// SPDX-License-Identifier: MIT OR Apache-2.0
//! Creating and resizing completion queues.

use super::dv::CqOptions;
use super::{Mlx5, no_memory};
use crate::control::calls::{self, CqRequest};
use crate::control::size;
use crate::cq::{Clock, CompletionQueue, CqConfig, CqRing, CqShared, CqeVersion, RingOwner};
use crate::memory::{Allocator, MemoryUse, Pages, QueueBuf};
use crate::shared::UserIndices;
use std::sync::Arc;
use uverbs_core::attr::{CqFlags, CqInitAttr, WcExFlags};
use uverbs_core::control::{CompChannelHandle, CqEvents, CqHandle};
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::{CompletionQueue as _, CqObject, CqParts, Kept, Notify, Object};
use uverbs_uapi::mlx5::{MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS, MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX};

/// Fields that an extended poll can have.
const FIELDS: WcExFlags =
    WcExFlags::STANDARD.union(WcExFlags::TIMESTAMPS).union(WcExFlags::CVLAN).union(WcExFlags::FLOW_TAG);

/// Entries that are filled without a question: at most 8 MiB.
const FEW: u32 = 1 << 16;

/// A completion queue.
#[derive(Debug)]
pub struct Cq(Kept<CqHandle, State>);

/// What the device may use until the kernel has destroyed the queue, and the kind of memory for other rings.
#[derive(Debug)]
struct State {
    shared: Arc<CqShared>,
    pages: Pages,
    context: Arc<UserIndices>,
}

impl Cq {
    /// The state that its poller and control calls share.
    #[must_use]
    pub fn shared(&self) -> &Arc<CqShared> {
        &self.0.shared
    }

    /// By which its context is known.
    pub(super) fn context(&self) -> &Arc<UserIndices> {
        &self.0.context
    }
}

impl Object for Cq {
    type Handle = CqHandle;
    type Reported = CqEvents;

    fn handle(&self) -> &CqHandle {
        self.0.handle()
    }

    /// No poll is in progress when the kernel destroys the queue, and its engine arms nothing later: its number may be that of another CQ.
    fn destroy(self) -> Result<CqEvents, (Self, Error)> {
        let destroyed = self.0.destroy(|state, handle| state.shared.destroyed(handle, CqHandle::destroy));
        destroyed.map_err(|(kept, error)| (Self(kept), error))
    }
}

impl Notify for CqShared {
    fn cq_event(&self) {
        self.event();
    }
}

impl CqObject for Cq {
    type Engine = CompletionQueue;

    fn resize(&self, queue: &mut CompletionQueue, cqe: u32) -> Result<u32> {
        const VERB: &str = "resize_cq";
        let handle = self.handle();
        if !Arc::ptr_eq(self.shared(), queue.shared()) {
            return Err(Error::invalid(VERB, "cq", "the engine of another CQ"));
        }
        if queue.is_open() {
            return Err(Error::invalid(VERB, "cq", "an extended poll is open on it"));
        }
        let entries = size::completion_queue(VERB, cqe)?;
        if entries - 1 == queue.cqe() {
            return Ok(entries - 1);
        }
        if entries > FEW {
            // To clear the ring touches all its pages, and it has to be clear before the kernel gives it to the device.
            handle.check_resize(entries - 1)?;
        }
        let cqe_size = queue.cqe_size();
        let allocator = queue.ring().buf().allocator();
        let (ring, buf) = ring(VERB, handle.kernel(), entries, (cqe_size, allocator, self.0.pages))?;
        let ring = ring.with_compression(queue.ring().compression());
        ring.clear();
        let give = || {
            calls::resize_cq(handle, entries - 1, cqe_size, &buf).map(drop).map_err(|error| {
                // After EPROTO the kernel may have resized the CQ, so it is unknown which ring the device writes.
                let unsure = error.errno() == uverbs_core::Errno::EPROTO;
                if unsure {
                    core::mem::forget(Arc::clone(&buf));
                }
                (error, if unsure { RingOwner::Unknown } else { RingOwner::Old })
            })
        };
        queue.resize(ring, give, |error| {
            // The device may write to the new ring, now or after a failed resize, so its memory is not freed.
            core::mem::forget(Arc::clone(&buf));
            Error::protocol(VERB, format!("the old ring: {error}"))
        })?;
        Ok(entries - 1)
    }

    fn notify(&self) -> Arc<dyn Notify> {
        Arc::clone(self.shared()) as Arc<dyn Notify>
    }
}

/// The ring for `entries` entries of `cqe_size` bytes, and its memory. It is to be cleared.
fn ring(
    verb: &'static str,
    kernel: &Arc<dyn Kernel>,
    entries: u32,
    (cqe_size, allocator, pages): (u32, Allocator<'_>, Pages),
) -> Result<(CqRing, Arc<QueueBuf>)> {
    let bytes = entries as usize * cqe_size as usize;
    let buf = QueueBuf::allocated(allocator, bytes, pages, MemoryUse::Cq)
        .map_err(|e| no_memory(verb, kernel, &e))?;
    let ring = CqRing::new(Arc::clone(&buf), entries, cqe_size)
        .ok_or_else(|| Error::invalid(verb, "cqe", format!("{} is too many", entries - 1)))?;
    Ok((ring, buf))
}

/// Creates a CQ.
pub(super) fn create(
    mlx5: &Mlx5,
    attr: &CqInitAttr,
    options: CqOptions<'_>,
    channel: Option<&CompChannelHandle>,
    user_handle: u64,
) -> Result<CqParts<Mlx5>> {
    const VERB: &str = "create_cq";
    let missing = attr.wc_flags.difference(FIELDS);
    if !missing.is_empty() {
        return Err(Error::unsupported(VERB, format!("mlx5 has no completion fields {missing:?}")));
    }
    let missing = attr.flags.difference(CqFlags::SINGLE_THREADED | CqFlags::IGNORE_OVERRUN);
    if !missing.is_empty() {
        return Err(Error::unsupported(VERB, format!("mlx5 has no CQ flags {missing:?}")));
    }
    let cqe_size = options.cqe_size.unwrap_or(mlx5.options.cqe_size);
    if !matches!(cqe_size, 64 | 128) {
        return Err(Error::invalid(VERB, "cqe_size", format!("{cqe_size} is neither 64 nor 128")));
    }
    let compression = if attr.compressed || options.compression.is_some() {
        let format = mlx5.facts.cqe_compression.format(cqe_size, options.compression);
        Some(format.ok_or_else(|| {
            let what = options.compression.map_or(String::new(), |format| format!(" with {format:?}"));
            let name = mlx5.kernel.name();
            Error::unsupported(VERB, format!("{name}: {cqe_size}-byte entries that are compressed{what}"))
        })?)
    } else {
        None
    };
    let entries = size::completion_queue(VERB, attr.cqe)?;
    let (allocator, pages) = (options.allocator, mlx5.options.cq_pages);
    let (ring, buf) = ring(VERB, &mlx5.kernel, entries, (cqe_size, allocator, pages))?;
    let ring = ring.with_compression(compression);
    let dbrec = mlx5.dbrecs.alloc_from(allocator).map_err(|e| mlx5.no_memory(VERB, &e))?;

    let mut request = CqRequest { cqe_size, compression, ..CqRequest::default() };
    let wallclock = attr.wc_flags.contains(WcExFlags::COMPLETION_TIMESTAMP_WALLCLOCK);
    let ticks = attr.wc_flags.contains(WcExFlags::COMPLETION_TIMESTAMP);
    let clock = if wallclock && !ticks && mlx5.facts.real_time_ts {
        request.flags |= MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS;
        None
    } else if wallclock {
        Some(clock(mlx5, VERB)?)
    } else {
        None
    };
    if let Some(page) = mlx5.uars.arm_page() {
        request.uar_page_index = u16::try_from(page).map_err(|_| {
            Error::unsupported(VERB, format!("UAR page {page:#x}: its number has more than 16 bits"))
        })?;
        request.flags |= MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX;
    }

    let access = mlx5.queue_access(VERB)?;
    let attr = attr.cqe(entries - 1);
    let (handle, cqn, dbrec) =
        calls::create_cq(&mlx5.kernel, &attr, channel, user_handle, request, &buf, dbrec)?;
    if cqn > 0xff_ffff {
        let _ = handle.destroy().map_err(|_| core::mem::forget((ring, dbrec)));
        return Err(Error::protocol(VERB, format!("CQ number {cqn:#x}")));
    }
    // Not before the kernel has accepted the size, because this touches all pages. The device does not write yet: no QP has this CQ.
    ring.clear();
    let (queue, shared) = CompletionQueue::new(CqConfig {
        cqn,
        ring,
        dbrec,
        access,
        arm: Arc::clone(&mlx5.arm),
        version: if mlx5.facts.cqe_version == 0 { CqeVersion::V0 } else { CqeVersion::V1 },
        dump_fill_mkey: mlx5.facts.dump_fill_mkey,
        fields: attr.wc_flags,
        clock,
        mkeys: Arc::clone(&mlx5.mkeys),
    });
    let state = State { shared, pages, context: Arc::clone(&mlx5.indices) };
    Ok(CqParts { cq: Cq(Kept::new(handle, state)), queue, cqe: entries - 1 })
}

/// The page with the parameters of the device's clock.
pub(super) fn clock(mlx5: &Mlx5, verb: &'static str) -> Result<Clock> {
    if !mlx5.facts.clock_info {
        return Err(Error::unsupported(verb, "wall clock time: the kernel has no clock page"));
    }
    let page = calls::map_clock_info(&*mlx5.kernel)
        .map_err(|errno| Error::os(verb, format!("clock page of {}", mlx5.kernel.name()), errno))?;
    Clock::new(Arc::new(page)).ok_or_else(|| Error::protocol(verb, "a clock page that is too short"))
}
