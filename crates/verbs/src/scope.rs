// SPDX-License-Identifier: MIT OR Apache-2.0
//! Posts of memory that the caller borrows: a closure, and a wait for the device before the borrow ends.
//!
//! ```no_run
//! use core::time::Duration;
//! use uverbs::{Cq, Exclusive, Qp};
//! use uverbs::{Driver, Rc, RemoteRegion};
//!
//! fn store<D: Driver>(
//!     qp: &mut Qp<Rc, Exclusive, D>, cq: &mut Cq<Exclusive, D>, value: &[u8], to: &RemoteRegion,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     qp.scope(cq, Duration::from_secs(1), |scope| scope.write(value, to))??.ok()?;
//!     Ok(())
//! }
//! ```
//!
//! The scope itself succeeds if all is complete in time; whether the write has succeeded is in its [`ScopedOp`], so that is checked, too.
//!
//! The wait is in a function of this crate and not in a guard that the caller could forget. It also takes place if the closure
//! panics. Memory that does not live as long as the scope can't be posted:
//!
//! ```compile_fail,E0597
//! use core::time::Duration;
//! use uverbs::{Cq, Exclusive, Qp};
//! use uverbs::{Driver, Rc};
//! fn leave<D: Driver>(qp: &mut Qp<Rc, Exclusive, D>, cq: &mut Cq<Exclusive, D>) {
//!     let _ = qp.scope(cq, Duration::from_secs(1), |scope| {
//!         let local = [1u8; 64];
//!         scope.send(&local)
//!     });
//! }
//! ```
//! Nor can memory be written that a receive or a read of the scope writes:
//!
//! ```compile_fail,E0499
//! use core::time::Duration;
//! use uverbs::{Cq, Exclusive, Qp};
//! use uverbs::{Driver, Rc};
//! fn twice<D: Driver>(qp: &mut Qp<Rc, Exclusive, D>, cq: &mut Cq<Exclusive, D>, buf: &mut [u8]) {
//!     let _ = qp.scope(cq, Duration::from_secs(1), |scope| {
//!         let _ = scope.recv(buf);
//!         let _ = scope.recv(buf);
//!     });
//! }
//! ```
//!
//! On a QP whose work requests name their peer (UD, SRD), [`Scope::to`] is the destination: `scope.to(&ah, qpn, qkey).write(value, &region)`.
//!
//! Each post registers its memory, which is a system call: scopes are for large or rare transfers. Other transfers use
//! [pools](super::Pool).
#![expect(unsafe_code)]
// UNSAFETY: registers and posts memory that is borrowed for longer than the wait.

use crate::ah::AddressHandle;
use crate::brief::brief;
use crate::buf::ForeignBuf;
use crate::cq::ScopePoll;
use crate::flight::Flight;
use crate::held::contain;
use crate::mr::{MemoryRegion, Private};
use crate::pd::ProtectionDomain;
use crate::qp::Qp;
use crate::qp::QpControl;
use crate::qp::transport::{Connected, Datagram, HasPeer, Reads, Receives, Reliable, Sends, Writes};
use crate::recv::RecvQueue;
use crate::remote::RemoteRegion;
use crate::send::SendQueue;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;
use uverbs_core::Errno;
use uverbs_core::attr::{AccessFlags, QpState};
use uverbs_core::error::{Error, Result};
use uverbs_core::provider::Op;
use uverbs_core::provider::{Driver, PollError};
use uverbs_core::sync::Exclusive;
use uverbs_core::wc::{WcError, WcStatus};

/// The posts of a scope that are in flight.
#[derive(Debug, Default)]
struct Pending {
    count: AtomicUsize,
}

/// The result of a post.
#[derive(Debug)]
struct Report {
    status: AtomicU32,
    byte_len: AtomicU32,
}

/// No completion yet.
const UNKNOWN: u32 = u32::MAX;

/// What the slab holds for a post of a scope: the scope waits until it is dropped.
///
/// Aligned so that the low bits of its address are free for the kind, see [`Held`](super::held::Held).
#[derive(Debug)]
#[repr(align(16))]
pub(super) struct Ticket {
    pending: Arc<Pending>,
    report: Arc<Report>,
}

impl Ticket {
    fn new(pending: &Arc<Pending>, report: &Arc<Report>) -> Self {
        pending.count.fetch_add(1, Ordering::Relaxed);
        Self { pending: pending.clone(), report: report.clone() }
    }

    /// Notes the completion.
    pub(super) fn finish(self, status: WcStatus, byte_len: u32) {
        self.report.byte_len.store(byte_len, Ordering::Relaxed);
        self.report.status.store(status.0, Ordering::Release);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Release pairs with the Acquire in `Pending::is_empty`: the poll that took the completion was before.
        self.pending.count.fetch_sub(1, Ordering::Release);
    }
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }
}

/// A post of a scope. Its result is there at the latest when the scope has ended; the scope does not check it.
#[derive(Clone, Debug)]
pub struct ScopedOp {
    report: Arc<Report>,
}

impl ScopedOp {
    /// The result; `None` if it is not complete, or if the QP was reset before its completion.
    #[must_use]
    pub fn status(&self) -> Option<WcStatus> {
        let status = self.report.status.load(Ordering::Acquire);
        (status != UNKNOWN).then_some(WcStatus(status))
    }

    /// The bytes of a receive or a read, after success.
    #[must_use]
    pub fn byte_len(&self) -> Option<usize> {
        self.status()?.is_success().then(|| self.report.byte_len.load(Ordering::Relaxed) as usize)
    }

    /// `Ok` after success.
    ///
    /// # Errors
    /// The status of the completion, or `WR_FLUSH_ERR` if there is none.
    pub fn ok(&self) -> Result<(), WcError> {
        self.status().unwrap_or(WcStatus::WR_FLUSH_ERR).ok()
    }
}

/// Memory that is borrowed, while the device may access it.
type Borrowed<D> = MemoryRegion<ForeignBuf, Private, D>;

/// The posts of a closure; see [`Qp::scope`].
pub struct Scope<'scope, 'env, T, D: Driver> {
    send: &'scope mut SendQueue<T, Exclusive, D>,
    recv: Option<&'scope mut RecvQueue<Exclusive, D>>,
    pd: &'scope ProtectionDomain<D>,
    pending: &'scope Arc<Pending>,
    regions: &'scope mut Vec<Borrowed<D>>,
    cq: u64,
    /// Invariant: memory of a shorter life must not be accepted for memory of `'env`.
    _env: PhantomData<&'env mut &'env ()>,
}

brief!([T, D: Driver] Scope<'_, '_, T, D>, |this| "Scope with {:?}", this.send);

impl<'scope, 'env, D: Driver, T: Sends> Scope<'scope, 'env, T, D> {
    /// Registers the memory for as long as the scope, and returns its entry; none for memory of 0 bytes.
    ///
    /// # Safety
    /// The memory is borrowed for `'env`: shared without `LOCAL_WRITE`, else exclusively.
    unsafe fn entry(&mut self, at: NonNull<u8>, len: usize, access: AccessFlags) -> Result<Option<D::Sge>> {
        if len == 0 {
            return Ok(None);
        }
        // SAFETY: the memory is borrowed for `'env` (the contract of this function), which is longer than the scope. The region
        // is dropped before the scope ends, and lends no references.
        let buf = unsafe { ForeignBuf::new(at, len) };
        let region = self.pd.reg_private(buf, access)?;
        let sge = region.sge(0..len)?;
        self.regions.push(region);
        Ok(Some(sge))
    }

    fn ticket(&self) -> (Ticket, ScopedOp) {
        let report = Arc::new(Report { status: AtomicU32::new(UNKNOWN), byte_len: AtomicU32::new(0) });
        (Ticket::new(self.pending, &report), ScopedOp { report })
    }

    /// The completions of `flight` must be those that the scope waits for.
    fn check(&self, flight: &Flight<D>) -> Result<()> {
        if flight.cq() == Some(self.cq) {
            return Ok(());
        }
        Err(Error::invalid("scope", "cq", "the completions of this queue go to another CQ"))
    }

    /// # Safety
    /// As [`entry`](Self::entry); exclusively if `op` writes local memory.
    unsafe fn put(
        &mut self,
        op: Op<'_, D::Remote>,
        at: NonNull<u8>,
        len: usize,
        access: AccessFlags,
    ) -> Result<ScopedOp>
    where
        T: Connected,
    {
        // SAFETY: the contract of this function.
        let (sge, ticket, report) = unsafe { self.prepare(at, len, access)? };
        let wr = self.send.post(0).signaled();
        // SAFETY: the memory is borrowed for `'env`, and registered as long as the scope, which ends after the ticket is
        // dropped.
        let posted = unsafe { wr.put_scoped(op, sge.as_slice(), ticket) };
        posted?;
        Ok(report)
    }

    /// The entry, and what is dropped with the completion.
    ///
    /// # Safety
    /// As [`entry`](Self::entry).
    unsafe fn prepare(
        &mut self,
        at: NonNull<u8>,
        len: usize,
        access: AccessFlags,
    ) -> Result<(Option<D::Sge>, Ticket, ScopedOp)> {
        self.check(self.send.flight())?;
        // SAFETY: the contract of this function.
        let sge = unsafe { self.entry(at, len, access)? };
        let (ticket, report) = self.ticket();
        Ok((sge, ticket, report))
    }

    /// The destination of the next post of a QP whose work requests name one: UD, SRD.
    pub fn to<'s>(
        &'s mut self,
        ah: &'s AddressHandle<D>,
        remote_qpn: u32,
        remote_qkey: u32,
    ) -> ScopeTo<'s, 'scope, 'env, T, D>
    where
        T: Datagram,
    {
        ScopeTo { scope: self, ah, remote_qpn, remote_qkey }
    }

    /// `IBV_WR_SEND`: sends `data`.
    ///
    /// # Errors
    /// The memory can't be registered, or the post failed.
    pub fn send(&mut self, data: &'env [u8]) -> Result<ScopedOp>
    where
        T: Connected,
    {
        // SAFETY: a shared slice of `'env`; a send only reads it.
        unsafe { self.put(Op::Send, NonNull::from_ref(data).cast(), data.len(), AccessFlags::empty()) }
    }

    /// `IBV_WR_RDMA_WRITE`: writes `data` to the front of `to`.
    ///
    /// # Errors
    /// `to` is shorter than `data`, the memory can't be registered, or the post failed.
    pub fn write(&mut self, data: &'env [u8], to: &RemoteRegion) -> Result<ScopedOp>
    where
        T: Connected + HasPeer,
    {
        let to = to.remote(0..data.len() as u64)?;
        // SAFETY: a shared slice of `'env`; a write only reads it.
        unsafe { self.put(Op::Write(to), NonNull::from_ref(data).cast(), data.len(), AccessFlags::empty()) }
    }

    /// `IBV_WR_RDMA_READ`: reads the front of `from` into `buf`.
    ///
    /// # Errors
    /// `from` is shorter than `buf`, the memory can't be registered, or the post failed.
    pub fn read(&mut self, buf: &'env mut [u8], from: &RemoteRegion) -> Result<ScopedOp>
    where
        T: Connected + Reliable,
    {
        let from = from.remote(0..buf.len() as u64)?;
        let (at, len) = (NonNull::from_mut(buf).cast(), buf.len());
        // SAFETY: an exclusive slice of `'env`.
        unsafe { self.put(Op::Read(from), at, len, AccessFlags::LOCAL_WRITE) }
    }

    /// Posts a receive to the QP's own receive queue.
    ///
    /// # Errors
    /// The QP has an SRQ, the memory can't be registered, or the post failed.
    pub fn recv(&mut self, buf: &'env mut [u8]) -> Result<ScopedOp>
    where
        T: Receives,
    {
        let flight = self.recv.as_ref().map(|recv| recv.flight().clone());
        self.check(
            &*flight.ok_or_else(|| Error::invalid("scope", "qp", "its receives are those of an SRQ"))?,
        )?;
        let (at, len) = (NonNull::from_mut(buf).cast(), buf.len());
        // SAFETY: an exclusive slice of `'env`.
        let sge = unsafe { self.entry(at, len, AccessFlags::LOCAL_WRITE)? };
        let (ticket, report) = self.ticket();
        if let Some(recv) = &mut self.recv {
            // SAFETY: the memory is borrowed for `'env`, and registered as long as the scope, which ends after the ticket is
            // dropped.
            let posted = unsafe { recv.post_scoped(sge.as_slice(), ticket) };
            posted?;
        }
        Ok(report)
    }
}

/// The next post of a scope goes to one peer; see [`Scope::to`].
#[must_use = "nothing is posted yet"]
pub struct ScopeTo<'s, 'scope, 'env, T, D: Driver> {
    scope: &'s mut Scope<'scope, 'env, T, D>,
    ah: &'s AddressHandle<D>,
    remote_qpn: u32,
    remote_qkey: u32,
}

brief!([T, D: Driver] ScopeTo<'_, '_, '_, T, D>, |this| "{:?} to qp {:#x}", this.scope, this.remote_qpn);

impl<'env, D: Driver, T: Sends + Datagram> ScopeTo<'_, '_, 'env, T, D> {
    /// # Safety
    /// As [`Scope::entry`]; exclusively if `op` writes local memory.
    unsafe fn put(
        self,
        op: Op<'_, D::Remote>,
        at: NonNull<u8>,
        len: usize,
        access: AccessFlags,
    ) -> Result<ScopedOp> {
        let Self { scope, ah, remote_qpn, remote_qkey } = self;
        // SAFETY: the contract of this function.
        let (sge, ticket, report) = unsafe { scope.prepare(at, len, access)? };
        let wr = scope.send.post_to(0, ah, remote_qpn, remote_qkey).signaled();
        // SAFETY: the memory is borrowed for `'env`, and registered as long as the scope, which ends after the ticket is
        // dropped.
        let posted = unsafe { wr.put_scoped(op, sge.as_slice(), ticket) };
        posted?;
        Ok(report)
    }

    /// As [`Scope::send`].
    ///
    /// # Errors
    /// As [`Scope::send`].
    pub fn send(self, data: &'env [u8]) -> Result<ScopedOp> {
        // SAFETY: a shared slice of `'env`; a send only reads it.
        unsafe { self.put(Op::Send, NonNull::from_ref(data).cast(), data.len(), AccessFlags::empty()) }
    }

    /// As [`Scope::write`].
    ///
    /// # Errors
    /// As [`Scope::write`].
    pub fn write(self, data: &'env [u8], to: &RemoteRegion) -> Result<ScopedOp>
    where
        T: Writes,
    {
        let to = to.remote(0..data.len() as u64)?;
        // SAFETY: a shared slice of `'env`; a write only reads it.
        unsafe { self.put(Op::Write(to), NonNull::from_ref(data).cast(), data.len(), AccessFlags::empty()) }
    }

    /// As [`Scope::read`].
    ///
    /// # Errors
    /// As [`Scope::read`].
    pub fn read(self, buf: &'env mut [u8], from: &RemoteRegion) -> Result<ScopedOp>
    where
        T: Reads,
    {
        let from = from.remote(0..buf.len() as u64)?;
        let (at, len) = (NonNull::from_mut(buf).cast(), buf.len());
        // SAFETY: an exclusive slice of `'env`.
        unsafe { self.put(Op::Read(from), at, len, AccessFlags::LOCAL_WRITE) }
    }
}

/// A scope that ended before its work requests were complete.
#[derive(Debug)]
#[non_exhaustive]
pub enum ScopeError {
    /// The time is over. The QP was moved to ERR, and its work requests were flushed.
    TimedOut,
    /// The CQ could not be polled. The QP was reset.
    Poll(PollError),
    /// The kernel neither flushes nor resets the QP, for example because the device was removed. The memory of the scope was
    /// deregistered, so the device does not access it any more. Buffers of reads and receives may have been written in part.
    Device(Error),
}

impl fmt::Display for ScopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut => {
                f.write_str("the work requests of the scope were not complete in time; the QP is in ERR")
            }
            Self::Poll(error) => write!(f, "the completion queue failed, and the QP was reset: {error}"),
            Self::Device(error) => {
                write!(f, "the memory of the scope was deregistered, because its QP can't be reset: {error}")
            }
        }
    }
}

impl core::error::Error for ScopeError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::TimedOut => None,
            Self::Poll(error) => Some(error),
            Self::Device(error) => Some(error),
        }
    }
}

/// The end of a time limit that begins now; `None` if the clock has no such time.
fn deadline(limit: Duration) -> Option<Instant> {
    Instant::now().checked_add(limit)
}

impl From<ScopeError> for Error {
    fn from(error: ScopeError) -> Self {
        match error {
            ScopeError::TimedOut => Self::os("scope", error.to_string(), Errno::ETIMEDOUT),
            ScopeError::Poll(error) => error.into(),
            ScopeError::Device(error) => error,
        }
    }
}

/// How long the kernel may refuse to end the access, as it may while it removes the device.
const REFUSES: Duration = Duration::from_secs(10);

/// Waits when it is dropped, so also when the closure panics.
struct Wait<'a, D: Driver, C: ScopePoll<D>> {
    control: &'a QpControl<D>,
    cq: C,
    pending: Arc<Pending>,
    flights: [Option<Arc<Flight<D>>>; 2],
    limit: Duration,
    outcome: &'a mut Result<(), ScopeError>,
    /// Whether the closure returned, and did not panic.
    returned: bool,
    /// The memory that the scope has posted.
    regions: Vec<Borrowed<D>>,
    /// It is not known whether a region is deregistered.
    lost: bool,
}

impl<D: Driver, C: ScopePoll<D>> Drop for Wait<'_, D, C> {
    fn drop(&mut self) {
        if let Err(error) = self.wait() {
            *self.outcome = Err(error);
        }
    }
}

/// Calls a function of the queues or the kernel. A panic, of a logger for example, is an error like any other: it must not end the
/// wait.
fn call<R>(verb: &'static str, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let mut result = Err(Error::os(verb, "scope: a panic", Errno::EIO));
    contain(|| result = f());
    result
}

/// When the wait looks next whether the device is there: a removed device completes nothing.
struct Look {
    next: Option<Instant>,
    interval: Duration,
}

impl Look {
    fn new() -> Self {
        let interval = Duration::from_millis(10);
        Self { next: deadline(interval), interval }
    }

    fn is_due(&mut self) -> bool {
        if self.next.is_none_or(|next| Instant::now() < next) {
            return false;
        }
        self.interval = (self.interval * 2).min(Duration::from_millis(500));
        self.next = deadline(self.interval);
        true
    }
}

impl<D: Driver, C: ScopePoll<D>> Wait<'_, D, C> {
    /// Returns when the device does not access the memory any more. No panic leaves it.
    fn wait(&mut self) -> Result<(), ScopeError> {
        let (mut until, mut look) = (deadline(self.limit), Look::new());
        let (mut outcome, mut flushes) = (Ok(()), false);
        if !self.returned && !self.pending.is_empty() {
            flushes = true;
            if let Err(error) = self.flush() {
                return self.end(ScopeError::Device(error));
            }
        }
        while !self.pending.is_empty() {
            let mut polled = Err(PollError::Corrupt);
            contain(|| polled = self.cq.poll_scoped());
            match polled {
                Ok(0) => std::thread::yield_now(),
                Ok(_) => continue,
                // What was posted before the removal is not completed.
                Err(PollError::Removed) => {
                    let error = Error::os("poll_cq", "scope: the device was removed", Errno::EIO);
                    return self.end(ScopeError::Device(error));
                }
                Err(error) => return self.end(ScopeError::Poll(error)),
            }
            if look.is_due()
                && let Err(error) = self.look()
            {
                return self.end(ScopeError::Device(error));
            }
            if until.is_none_or(|until| Instant::now() < until) {
                continue;
            }
            if flushes {
                // The device did not flush.
                return self.end(ScopeError::TimedOut);
            }
            (outcome, flushes) = (Err(ScopeError::TimedOut), true);
            if let Err(error) = self.flush() {
                return self.end(ScopeError::Device(error));
            }
            until = deadline(self.limit.max(Duration::from_secs(1)));
        }
        outcome
    }

    /// An error if the device was removed. The kernel answers EIO to all verbs except those that destroy, from the beginning of the
    /// removal (`uverbs_disassociate_api_pre()`).
    fn look(&self) -> Result<()> {
        match call("query_qp", || self.control.state()) {
            Err(error) if matches!(error.errno(), Errno::EIO | Errno::ENODEV) => Err(error),
            _ => Ok(()),
        }
    }

    /// Moves the QP to ERR: the device flushes what is in flight.
    fn flush(&self) -> Result<()> {
        call("modify_qp", || self.control.modify_state(QpState::ERR))
    }

    /// Ends the device's access to the memory, in one of two ways:
    ///
    /// - RESET discards what is in flight.
    /// - Deregistration: the device refuses the keys of the memory. This also serves a device that was removed: destroying an object
    ///   succeeds then, and waits until the kernel has destroyed all objects of the device (`uobj_destroy()` takes `hw_destroy_rwsem`,
    ///   which `uverbs_destroy_ufile_hw()` has during that).
    ///
    /// If the kernel refuses both, the device may still use the borrowed memory, and this function may not return.
    fn end(&mut self, why: ScopeError) -> Result<(), ScopeError> {
        let until = deadline(REFUSES);
        loop {
            let error = match call("modify_qp", || self.control.modify_state(QpState::RESET)) {
                Ok(()) => {
                    // The queues are borrowed by the scope, so no post runs: what is in flight was posted before the RESET.
                    self.flights.iter().flatten().for_each(|flight| flight.settle_all());
                    return Err(why);
                }
                Err(error) => error,
            };
            self.deregister();
            // Without regions nothing is borrowed.
            if self.regions.is_empty() && !self.lost {
                contain(|| log::error!("scope: {error}"));
                return Err(ScopeError::Device(error));
            }
            if until.is_none_or(|until| Instant::now() >= until) {
                contain(|| log::error!("scope: {error}; the device may use memory that is borrowed"));
                contain(|| {
                    eprintln!("uverbs: a scope can't end, because the device may use its memory: {error}")
                });
                std::process::abort();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Deregisters the regions; those that the kernel refuses to deregister are left.
    fn deregister(&mut self) {
        for region in core::mem::take(&mut self.regions) {
            // Until the call has returned: a panic leaves it open whether the region is deregistered.
            let lost = core::mem::replace(&mut self.lost, true);
            contain(|| {
                if let Err((region, _)) = region.close() {
                    self.regions.push(region);
                }
                self.lost = lost;
            });
        }
    }
}

impl<D: Driver, T: Sends> Qp<T, Exclusive, D> {
    /// Calls `f`, which posts memory that it borrows, and waits until all that it posted is complete. `cq` is the CQ of the
    /// QP's queues; other completions that it reports meanwhile are kept for its next poll.
    ///
    /// If the work requests are not complete `limit` after the closure has returned, or immediately if the closure panics, the
    /// QP is moved to ERR, which flushes them. If the device then does not flush, the QP is reset. If the kernel refuses that, or the
    /// device was removed, which the wait notices, the memory is deregistered. If the kernel refuses this, too, for 10 seconds, the
    /// process is aborted, because the device may still access the memory.
    ///
    /// # Errors
    /// The limit was reached, the CQ failed, or the device was removed. A post that completes with an error is not an error of the scope: its [`ScopedOp`] has
    /// the result.
    pub fn scope<'env, C: ScopePoll<D>, R>(
        &mut self,
        cq: C,
        limit: Duration,
        f: impl FnOnce(&mut Scope<'_, 'env, T, D>) -> R,
    ) -> Result<R, ScopeError> {
        let mut outcome = Ok(());
        let Self { send, recv, control, pd } = self;
        let pending = Arc::new(Pending::default());
        let flights = [Some(send.flight().clone()), recv.as_ref().map(|recv| recv.flight().clone())];
        let number = cq.number();
        let mut wait = Wait {
            control,
            cq,
            pending: pending.clone(),
            flights,
            limit,
            outcome: &mut outcome,
            returned: false,
            regions: Vec::new(),
            lost: false,
        };
        let result = f(&mut Scope {
            send,
            recv: recv.as_mut(),
            pd,
            pending: &pending,
            regions: &mut wait.regions,
            cq: number,
            _env: PhantomData,
        });
        wait.returned = true;
        drop(wait);
        outcome.map(|()| result)
    }
}
