// SPDX-License-Identifier: MIT OR Apache-2.0
//! Contexts, which `ibv_open_device` returns, and the lookup of the driver by a C pointer.

#![expect(unsafe_code)]
// UNSAFETY: C's pointers to contexts.

use crate::abi::context::{ibv_context, ibv_device, verbs_context};
use crate::abi::object::{ibv_comp_channel, ibv_cq};
use crate::address::AddressSet;
use crate::data;
use crate::errno::{Errno, Outcome};
use crate::events::Numbered;
use crate::live;
use crate::object::channel;
use crate::recent::{PLACES, Place};
use crate::verbs::{Open, Verbs};
use core::mem::{self, offset_of};
use core::ptr;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use uverbs_core::control::slab::Slab;
use uverbs_core::control::{AsyncFd, ContextInfo};
use uverbs_core::kernel::Kernel;
use uverbs_core::provider::Driver;
use uverbs_core::sync::{ProcessMutex, StaticMutex};

/// A context: C's part, to whose last field programs hold a pointer, and ours.
#[repr(C)]
pub(crate) struct Context {
    public: verbs_context,
    private: Private,
}

/// The offset in a context of the field to which C's pointer points.
const POINTER: usize = offset_of!(Context, public) + offset_of!(verbs_context, context);

/// Our part of a context. References exist to this part only, because C programs write the other part.
pub(crate) struct Private {
    verbs: Box<dyn Verbs>,
    /// Open until the context is closed. It is read through the number in C's part.
    _async_fd: AsyncFd,
    /// The file of `cmd_fd` if the port has none.
    #[cfg_attr(
        not(feature = "hca"),
        expect(dead_code, reason = "kept open; only contexts with software HCAs compare it")
    )]
    stand_in: Option<OwnedFd>,
    /// Shared by all contexts with the same port; the last of them closes the port.
    port: Arc<()>,
    /// Objects by the number in their events.
    objects: ProcessMutex<Slab<Numbered>>,
    /// CQs that events named last. Changed with the lock of `objects` held.
    recent_cqs: [Place; PLACES],
    /// Channels. Those that the program has not destroyed are closed with the context.
    channels: ProcessMutex<Channels>,
    /// Distinguishes contexts that have had the same address.
    id: u64,
    /// The kernel's numbers of its objects, and how many objects have each: an imported one has the number of another.
    numbers: ProcessMutex<HashMap<u32, u32>>,
}

/// The channels of a context.
#[derive(Default)]
pub(crate) struct Channels(pub(crate) Vec<*mut ibv_comp_channel>);

// SAFETY: the pointers are dereferenced only in functions that C calls, whose contract allows any thread.
unsafe impl Send for Channels {}

/// Addresses of the open contexts. A context that is not in the list belongs to another library.
static OPEN: StaticMutex<AddressSet> = StaticMutex::new();

/// Opens a context on a device behind `kernel`.
pub(crate) fn open<D: Driver>(kernel: Arc<dyn Kernel>, device: *mut ibv_device) -> Outcome<*mut ibv_context> {
    open_with(kernel, device, D::open)
}

/// Opens a context by a function of the driver.
pub(crate) fn open_with<D: Driver>(
    kernel: Arc<dyn Kernel>,
    device: *mut ibv_device,
    open: impl FnOnce(Arc<dyn Kernel>) -> uverbs_core::Result<(D, ContextInfo)>,
) -> Outcome<*mut ibv_context> {
    let opened = open(kernel)?;
    let stand_in = match opened.0.kernel().fd() {
        Some(_) => None,
        None => Some(stand_in(opened.0.kernel().name())?),
    };
    finish(opened, device, stand_in, Arc::default())
}

/// Creates a context from its parts.
fn finish<D: Driver>(
    (driver, info): (D, ContextInfo),
    device: *mut ibv_device,
    stand_in: Option<OwnedFd>,
    port: Arc<()>,
) -> Outcome<*mut ibv_context> {
    let ContextInfo { num_comp_vectors, core_support, async_fd } = info;
    let cmd_fd = match (&stand_in, driver.kernel().fd()) {
        (Some(fd), _) => fd.as_raw_fd(),
        (None, Some(fd)) => fd.as_raw_fd(),
        (None, None) => -1,
    };
    let mut public = data::functions::<D>();
    #[cfg(feature = "hca")]
    data::faulty::set_posts::<D>(&mut public.context.ops, device);
    public.sz = size_of::<verbs_context>();
    public.context.device = device;
    public.context.cmd_fd = cmd_fd;
    public.context.async_fd = async_fd.as_fd().as_raw_fd();
    public.context.num_comp_vectors = i32::try_from(num_comp_vectors).unwrap_or(i32::MAX);
    // "Extended": it is part of a `verbs_context`.
    public.context.abi_compat = ptr::without_provenance_mut(usize::MAX);
    let private = Private {
        verbs: Box::new(Open { driver, core_support, num_comp_vectors }),
        _async_fd: async_fd,
        stand_in,
        port,
        objects: ProcessMutex::default(),
        recent_cqs: [const { Place::new() }; PLACES],
        channels: ProcessMutex::default(),
        id: live::new_serial(),
        numbers: ProcessMutex::default(),
    };
    let context = Box::into_raw(Box::new(Context { public, private }));
    OPEN.lock().insert(context.expose_provenance() + POINTER);
    Ok(context.cast::<u8>().wrapping_add(POINTER).cast())
}

/// Creates a file for `cmd_fd` of a device that has none. Programs duplicate and close `cmd_fd`.
fn stand_in(name: &str) -> Outcome<OwnedFd> {
    Ok(nix::sys::memfd::memfd_create(name, nix::sys::memfd::MFdFlags::MFD_CLOEXEC)?)
}

/// Closes a context. Objects that the program has not destroyed are leaked here; the kernel destroys them with the
/// file.
///
/// # Safety
/// The contract of `ibv_close_device`: the context and its objects are not used at the same time or later.
pub(crate) unsafe fn close(context: *mut ibv_context) -> Outcome<()> {
    if !OPEN.lock().remove(&context.addr()) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the address was in the list, so it is that of a context which `open` allocated as a `Box`, plus
    // `POINTER`, and which is not closed yet.
    let context = unsafe { Box::from_raw(context.cast::<u8>().wrapping_sub(POINTER).cast::<Context>()) };
    live::forget_all(&context.private);
    // In a child of fork(2) that can't use the context, they are leaked. fork(2) copies the table of files before the memory, so
    // the list may contain a channel whose file was opened in between and is not open in the child.
    let channels = match context.private.channels() {
        Ok(mut channels) if context.private.kernel().is_creator_process() => mem::take(&mut channels.0),
        _ => Vec::new(),
    };
    for channel in channels {
        live::remove(&context.private, channel);
        // SAFETY: the program has not destroyed the channel, or it would not be in the list, and does not use it later
        // (the contract of this function).
        unsafe { channel::free(channel) };
    }
    // Objects belong to the port, and another context with the same port may use them.
    if Arc::strong_count(&context.private.port) == 1 {
        // SAFETY: no verb of this context is in progress, and none of its objects is used later (the contract of this
        // function); no other context has the port.
        unsafe { context.private.kernel().close() };
    }
    Ok(())
}

/// Our part of the context at a C pointer; `EINVAL` if it is not a context of this library.
///
/// # Safety
/// The context stays open as long as the reference is used.
pub(crate) unsafe fn of<'a>(context: *mut ibv_context) -> Outcome<&'a Private> {
    if !OPEN.lock().contains(&context.addr()) {
        return Err(Errno::EINVAL);
    }
    let context = context.cast::<u8>().wrapping_sub(POINTER).cast::<Context>();
    // SAFETY: the address is in the list, so it is that of a context which `open` created and which is not closed. No
    // mutable reference to this part of it exists.
    Ok(unsafe { &(*context).private })
}

impl Private {
    pub(crate) fn verbs(&self) -> &dyn Verbs {
        &*self.verbs
    }

    pub(crate) fn kernel(&self) -> &Arc<dyn Kernel> {
        self.verbs.kernel()
    }

    /// The number of this context, which no other has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Notes that an object with a number of the kernel was created, or is gone.
    pub(crate) fn count_number(&self, number: Option<u32>, is_new: bool) {
        let (Some(number), Ok(mut numbers)) = (number, self.numbers.lock()) else { return };
        match numbers.entry(number) {
            Entry::Occupied(entry) if !is_new && *entry.get() <= 1 => drop(entry.remove()),
            Entry::Occupied(mut entry) if is_new => *entry.get_mut() += 1,
            Entry::Occupied(mut entry) => *entry.get_mut() -= 1,
            Entry::Vacant(entry) if is_new => drop(entry.insert(1)),
            Entry::Vacant(_) => {}
        }
    }

    /// The kernel's answer to a number that is not that of the object: `EINVAL` for that of another one, `ENOENT` for that
    /// of none (`rdma_lookup_get_uobject()`).
    pub(crate) fn answer_to(&self, number: Option<u32>) -> Errno {
        let is_known = |number| self.numbers.lock().is_ok_and(|numbers| numbers.contains_key(&number));
        match number {
            Some(number) if !is_known(number) => Errno::ENOENT,
            _ => Errno::EINVAL,
        }
    }

    /// The objects by number. As for all locks of a context, the error is `ESTALE`: in a child of fork(2), if a thread of the
    /// parent had the lock.
    pub(crate) fn objects(&self) -> Outcome<MutexGuard<'_, Slab<Numbered>>> {
        self.objects.lock().map_err(|_| Errno::ESTALE)
    }

    /// The number for an object that is about to be created.
    pub(crate) fn new_number(&self) -> Outcome<u64> {
        Ok(self.objects()?.insert(Numbered::NONE))
    }

    /// The object of a number.
    pub(crate) fn numbered(&self, number: u64) -> Option<Numbered> {
        self.objects().ok()?.get(number).copied()
    }

    /// The CQ of a number.
    #[inline]
    pub(crate) fn numbered_cq(&self, number: u64) -> Option<*mut ibv_cq> {
        // The low half of a number is an index.
        match self.recent_cqs[number as usize % PLACES].get(number as usize) {
            Some([cq, _]) => Some(cq.cast()),
            None => self.search_cq(number),
        }
    }

    #[cold]
    fn search_cq(&self, number: u64) -> Option<*mut ibv_cq> {
        let objects = self.objects().ok()?;
        let Some(Numbered::Cq(cq)) = objects.get(number).copied() else { return None };
        self.recent_cqs[number as usize % PLACES].put(number as usize, [cq.cast(), ptr::null_mut()]);
        Some(cq)
    }

    /// Removes a number. Events that have it name no object from now on.
    pub(crate) fn forget(&self, number: u64) {
        if let Ok(mut objects) = self.objects() {
            self.recent_cqs[number as usize % PLACES].forget(number as usize);
            objects.remove(number);
        }
    }

    pub(crate) fn channels(&self) -> Outcome<MutexGuard<'_, Channels>> {
        self.channels.lock().map_err(|_| Errno::ESTALE)
    }
}

/// Contexts that share a port without a file, because they were imported from each other: a software HCA's.
#[cfg(feature = "hca")]
pub(crate) mod shared {
    use super::*;
    use std::os::fd::BorrowedFd;

    /// A context that shares its port with others, because they were imported from each other and the port has no file.
    pub(crate) struct SharedPort {
        pub(crate) device: *mut ibv_device,
        pub(crate) kernel: Arc<dyn Kernel>,
        port: Arc<()>,
    }

    /// The port of the context whose `cmd_fd`, or a duplicate of it, is `fd`.
    pub(crate) fn by_stand_in(fd: BorrowedFd<'_>) -> Outcome<Option<SharedPort>> {
        let wanted = nix::sys::stat::fstat(fd)?;
        for address in OPEN.lock().iter() {
            let context = ptr::with_exposed_provenance_mut::<Context>(address - POINTER);
            // SAFETY: the address is in the list, which is locked, so it is that of a context which `open` created and
            // exposed, and which is not freed meanwhile.
            let private = unsafe { &(*context).private };
            let Some(stand_in) = &private.stand_in else { continue };
            let found = nix::sys::stat::fstat(stand_in)?;
            if (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino) {
                // SAFETY: as above; the field is not changed after the context was created.
                let device = unsafe { (*context).public.context.device };
                let (kernel, port) = (Arc::clone(private.kernel()), Arc::clone(&private.port));
                return Ok(Some(SharedPort { device, kernel, port }));
            }
        }
        Ok(None)
    }

    /// A second context on a port that has no file. `fd` becomes its `cmd_fd`.
    pub(crate) fn share<D: Driver>(shared: SharedPort, fd: OwnedFd) -> Outcome<*mut ibv_context> {
        let SharedPort { device, kernel, port } = shared;
        finish(D::import(kernel)?, device, Some(fd), port)
    }
}
