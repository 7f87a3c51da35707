// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of the objects that exist, by address.
//!
//! rdma-core passes the `handle` in the public part of an object to the kernel, which answers `ENOENT` if it has no such
//! object, and `EINVAL` if that is of another kind. Here the object is found by its address, and the number in its public
//! part is compared with that of its creation: a program that has changed it, or the pointer to the context, gets these
//! errors, and the object stays as it was. An address that is not in the table, such as that of an object which was
//! destroyed before, is `EINVAL`; it is not dereferenced.
//!
//! An object is not destroyed while another thread's verb uses it, and no verb begins to use an object while another thread
//! tries to destroy it: the later one waits. Where the kernel has this conflict, it answers `EBUSY` at once
//! (`uverbs_try_lock_object()`); here that is the answer after [`PATIENCE`], which only a verb that is called inside of another
//! one on the same object can see. Events are acknowledged meanwhile.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to objects.

use crate::abi::context::ibv_context;
use crate::abi::flow::{ibv_counters, ibv_flow};
use crate::abi::object::{ibv_comp_channel, ibv_cq, ibv_dm, ibv_pd, ibv_srq, ibv_td, ibv_xrcd};
use crate::abi::qp::ibv_qp;
use crate::abi::wq::{ibv_rwq_ind_table, ibv_wq};
use crate::address::AddressMap;
use crate::arg::Arg;
use crate::context::{self, Private};
use crate::errno::{Errno, Outcome};
use crate::recent;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;
use uverbs_core::sync::StaticMutex;
use uverbs_core::wr::{IbvAh, IbvMr, IbvMw};

/// The kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Pd,
    Td,
    Xrcd,
    Mr,
    Mw,
    Channel,
    Cq,
    Srq,
    Qp,
    Ah,
    Wq,
    Table,
    Flow,
    Counters,
    Dm,
}

/// What a program may have changed in the public part of an object.
#[derive(Clone, Copy)]
pub(crate) struct Public {
    pub(crate) context: *mut ibv_context,
    /// The kernel's number, if the public part has it.
    number: Option<u32>,
}

/// The public parts with which the objects of this library begin.
pub(crate) trait Object: Sized {
    const KIND: Kind;

    /// # Safety
    /// `object` is valid for reads.
    unsafe fn public(object: *mut Self) -> Public;
}

macro_rules! objects {
    ($($kind:ident $ty:ty $(, $number:ident)?;)*) => {
        $(
            impl Object for $ty {
                const KIND: Kind = Kind::$kind;

                unsafe fn public(object: *mut Self) -> Public {
                    // SAFETY: valid for reads (the contract of this function). The field is copied.
                    let context = unsafe { (*object).context }.cast();
                    // SAFETY: as for the context.
                    let number = None $(.or(Some(unsafe { (*object).$number } as u32)))?;
                    Public { context, number }
                }
            }
        )*
    };
}

objects! {
    Pd ibv_pd, handle;
    Td ibv_td;
    Xrcd ibv_xrcd;
    Mr IbvMr, handle;
    Mw IbvMw, handle;
    Channel ibv_comp_channel;
    Cq ibv_cq, handle;
    Srq ibv_srq, handle;
    Qp ibv_qp, handle;
    Ah IbvAh, handle;
    Wq ibv_wq, handle;
    Table ibv_rwq_ind_table, ind_tbl_handle;
    Flow ibv_flow, handle;
    Counters ibv_counters;
    Dm ibv_dm, handle;
}

/// An object of the table.
struct Entry {
    kind: Kind,
    /// The number of its context: the address of a closed context may be that of a new one.
    owner: u64,
    number: Option<u32>,
    /// Distinguishes objects that have had the same address.
    serial: u64,
    users: u32,
    /// The process that counted the users. The threads of a parent do not exist in its child.
    process: u32,
    state: State,
}

/// Whether an object can be used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Alive,
    /// A thread of this process tries to destroy it.
    Claimed(u32),
    /// It was destroyed in the kernel. Its memory is freed when its events are acknowledged.
    Gone,
}

impl Entry {
    fn users(&mut self) -> &mut u32 {
        // `Process` counts children as their parents in this library.
        let process = std::process::id();
        if self.process != process {
            (self.process, self.users) = (process, 0);
        }
        &mut self.users
    }
}

/// How long a verb waits for another one on the same object.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_micros(20);

type Shard = AddressMap<Entry>;

/// Several maps, so that threads seldom wait for each other.
static SHARDS: [StaticMutex<Shard>; 16] = [const { StaticMutex::new() }; 16];

fn shard(address: usize) -> &'static StaticMutex<Shard> {
    &SHARDS[recent::spread(address) % SHARDS.len()]
}

static SERIALS: AtomicU64 = AtomicU64::new(1);

/// A number that no other context or object has.
pub(crate) fn new_serial() -> u64 {
    SERIALS.fetch_add(1, Ordering::Relaxed)
}

/// Adds a new object of a context to the table. `compares` is whether the number in its public part is compared: it is that of a kernel's
/// object.
///
/// # Safety
/// `object` is a new object of this library.
pub(crate) unsafe fn add<T: Object>(here: &Private, object: *mut T, compares: bool) {
    // SAFETY: a new object (contract of this function).
    let number = unsafe { T::public(object) }.number.filter(|_| compares);
    here.count_number(number, true);
    let (owner, kind, serial) = (here.id(), T::KIND, new_serial());
    let entry = Entry { kind, owner, number, serial, users: 0, process: 0, state: State::Alive };
    shard(object.addr()).lock().insert(object.addr(), entry);
}

/// An object of this library that is not freed as long as this value exists, and its context.
pub(crate) struct Live<'a, T> {
    here: &'a Private,
    context: *mut ibv_context,
    object: *mut T,
    serial: u64,
}

impl<'a, T> Live<'a, T> {
    /// C's pointer to the context.
    pub(crate) fn context(&self) -> *mut ibv_context {
        self.context
    }

    /// [`context`](Self::context), as the argument of a call.
    pub(crate) fn context_arg(&self) -> Arg<'a, ibv_context> {
        // SAFETY: an open context, which is not closed during the call (`find`).
        unsafe { Arg::new(self.context) }
    }

    /// The context.
    pub(crate) fn here(&self) -> &'a Private {
        self.here
    }

    /// C's pointer to the object.
    pub(crate) fn pointer(&self) -> *mut T {
        self.object
    }

    /// The kernel's number in the public part, if it has one there.
    pub(crate) fn handle(&self) -> Option<u32>
    where
        T: Object,
    {
        // SAFETY: the object exists as long as this value.
        unsafe { T::public(self.object) }.number
    }

    /// Changes the entry, if it is still in the table.
    fn with_entry(&self, change: impl FnOnce(&mut Entry)) {
        let address = self.object.addr();
        if let Some(entry) = shard(address).lock().get_mut(&address)
            && entry.serial == self.serial
        {
            change(entry);
        }
    }
}

impl<T> Deref for Live<'_, T> {
    type Target = Private;

    fn deref(&self) -> &Private {
        self.here
    }
}

/// An object that a verb uses.
#[must_use = "the object may be destroyed after this value is dropped"]
pub(crate) struct Used<'a, T>(Live<'a, T>);

impl<'a, T> Deref for Used<'a, T> {
    type Target = Live<'a, T>;

    fn deref(&self) -> &Live<'a, T> {
        &self.0
    }
}

impl<T> Drop for Used<'_, T> {
    fn drop(&mut self) {
        self.with_entry(|entry| {
            let users = entry.users();
            *users = users.saturating_sub(1);
        });
    }
}

/// Finds an object, whose public part is compared with the table, and changes its entry. Waits while that can't be changed
/// (`EBUSY`).
///
/// # Safety
/// The contexts of the object and in its public part are not closed as long as the value is used; the caller prevents that the object is
/// freed by that change.
unsafe fn find<'a, T: Object>(
    object: *mut T,
    change: impl Fn(&mut Entry) -> Outcome<()>,
) -> Outcome<Live<'a, T>> {
    let start = Instant::now();
    loop {
        // SAFETY: the contract of this function.
        match unsafe { find_now(object, &change) } {
            Err(Errno::EBUSY) if start.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            found => return found,
        }
    }
}

/// [`find`] without waiting.
///
/// # Safety
/// As [`find`].
unsafe fn find_now<'a, T: Object>(
    object: *mut T,
    change: impl Fn(&mut Entry) -> Outcome<()>,
) -> Outcome<Live<'a, T>> {
    let address = object.addr();
    let mut shard = shard(address).lock();
    let entry = shard.get_mut(&address).filter(|entry| entry.kind == T::KIND).ok_or(Errno::EINVAL)?;
    match entry.state {
        State::Alive => {}
        State::Gone => return Err(Errno::EINVAL),
        // A thread of the parent process, which does not exist in this child, has left the object in an unknown state.
        State::Claimed(process) if process != std::process::id() => return Err(Errno::ESTALE),
        State::Claimed(_) => return Err(Errno::EBUSY),
    }
    // SAFETY: the object is in the table, which is locked, and no thread tries to destroy it, so it is not freed before the
    // lock is released.
    let Public { context, number } = unsafe { T::public(object) };
    // SAFETY: the context is not closed while the reference is used (contract of this function).
    let here = unsafe { context::of(context) }?;
    let is_right = entry.number.is_none() || entry.number == number;
    if here.id() != entry.owner || !is_right {
        return Err(here.answer_to(number));
    }
    change(entry)?;
    Ok(Live { here, context, object, serial: entry.serial })
}

/// The object of a verb; `EINVAL` if it is NULL or unknown.
///
/// # Safety
/// The contexts of the object and in its public part are not closed as long as the value is used.
pub(crate) unsafe fn enter<'a, T: Object>(object: *mut T) -> Outcome<Used<'a, T>> {
    let enter = |entry: &mut Entry| {
        *entry.users() += 1;
        Ok(())
    };
    // SAFETY: the contract of this function; an object with a user is not destroyed.
    unsafe { find(object, enter) }.map(Used)
}

/// An object which the caller only reads in this process: the number in its public part is not compared, and its destruction may be in
/// progress.
///
/// # Safety
/// The context in the public part is not closed as long as the reference is used, and the program does not destroy the object during this
/// call, unless the destruction waits for the acknowledgement that is in progress.
#[inline]
pub(crate) unsafe fn peek<'a, T: Object>(object: *mut T) -> Outcome<Live<'a, T>> {
    // SAFETY: the contract of this function.
    match unsafe { recent::find(object) } {
        Some((here, context)) => Ok(Live { here, context, object, serial: 0 }),
        // SAFETY: the contract of this function.
        None => unsafe { peek_in_table(object) },
    }
}

/// # Safety
/// As [`peek`].
#[cold]
#[inline(never)]
unsafe fn peek_in_table<'a, T: Object>(object: *mut T) -> Outcome<Live<'a, T>> {
    let shard = shard(object.addr()).lock();
    let entry = shard.get(&object.addr()).filter(|entry| entry.kind == T::KIND).ok_or(Errno::EINVAL)?;
    // SAFETY: the object is in the table, which is locked, and it is removed from the table before it is freed.
    let Public { context, .. } = unsafe { T::public(object) };
    // SAFETY: the context is not closed while the reference is used (contract of this function).
    let here = unsafe { context::of(context) }?;
    if here.id() != entry.owner {
        return Err(Errno::EINVAL);
    }
    recent::put(T::KIND, object.addr(), context, here);
    Ok(Live { here, context, object, serial: entry.serial })
}

/// To be called before a context is closed.
pub(crate) fn forget_all(here: &Private) {
    for (index, shard) in SHARDS.iter().enumerate() {
        let _shard = shard.lock();
        recent::forget_all(here, index, SHARDS.len());
    }
}

/// An object that a verb destroys. If the verb fails, and so has not called [`remove`], the object stays.
#[must_use = "other verbs may use the object after this value is dropped"]
pub(crate) struct Claim<'a, T>(Live<'a, T>);

impl<'a, T> Deref for Claim<'a, T> {
    type Target = Live<'a, T>;

    fn deref(&self) -> &Live<'a, T> {
        &self.0
    }
}

impl<T> Drop for Claim<'_, T> {
    fn drop(&mut self) {
        self.with_entry(|entry| entry.state = State::Alive);
    }
}

/// The object of a verb that destroys it.
///
/// # Safety
/// As [`enter`].
pub(crate) unsafe fn claim<'a, T: Object>(object: *mut T) -> Outcome<Claim<'a, T>> {
    let claim = |entry: &mut Entry| {
        if *entry.users() != 0 {
            return Err(Errno::EBUSY);
        }
        entry.state = State::Claimed(std::process::id());
        Ok(())
    };
    // SAFETY: the contract of this function; a claimed object is destroyed by nobody else.
    unsafe { find(object, claim) }.map(Claim)
}

/// Notes that the kernel has destroyed an object, whose memory stays until its events are acknowledged.
pub(crate) fn mark_gone<T: Object>(object: *mut T) {
    if let Some(entry) = shard(object.addr()).lock().get_mut(&object.addr()) {
        entry.state = State::Gone;
    }
}

/// Removes an object that is about to be freed, or whose context is.
pub(crate) fn remove<T: Object>(here: &Private, object: *mut T) {
    let mut shard = shard(object.addr()).lock();
    recent::forget(T::KIND, object.addr());
    let removed = shard.remove(&object.addr());
    drop(shard);
    here.count_number(removed.and_then(|entry| entry.number), false);
}
