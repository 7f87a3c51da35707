// SPDX-License-Identifier: MIT OR Apache-2.0
//! The objects with queues, and their verbs.
//!
//! A value of these traits is one object: it owns the kernel's handle, the state that its engines share with control calls, and the
//! memory that the device uses for it. So its verbs are safe, and it is destroyed once. The engines, by which a program posts and polls,
//! are separate values, because each has one user; they may be dropped before or after their object.

use super::completion::CompletionQueue;
use super::recv::RecvQueue;
use crate::attr::{
    CqModeration, Ece, FlowAttr, QpAttr, QpAttrMask, QpInitAttr, QpRateLimitAttr, SrqAttr, SrqAttrMask,
    WqAttr,
};
use crate::control::{self, CountersHandle, CqEvents, CqHandle, FlowHandle, QpHandle, SrqHandle, WqHandle};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, Uhw};
use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;
use std::sync::Arc;

/// An object of the kernel, and the memory of this process that the device uses for it.
///
/// Only [`destroy`](Self::destroy) ends the object. A value that is dropped is leaked, because the device may still use its memory:
/// see [`Kept`].
///
/// It can't be destroyed twice:
/// ```compile_fail,E0382
/// use uverbs_core::provider::{Driver, Object};
/// fn twice<D: Driver>(cq: D::Cq) {
///     let _ = cq.destroy();
///     let _ = cq.destroy();
/// }
/// ```
pub trait Object: Sized + Send + Sync + fmt::Debug + 'static {
    /// The kernel's name of the object.
    type Handle;
    /// What the kernel reports of a destroyed object: the number of its events that were read.
    type Reported;

    /// The kernel's name of the object, for verbs that no driver changes.
    fn handle(&self) -> &Self::Handle;

    /// Destroys the object in the kernel, while no post and no poll of it is in progress, and removes what is left of it in other
    /// objects. The memory is freed when its engines are dropped, too; until then they are refused posts and events, and a poll finds what the
    /// ring has. In a child of fork(2) it succeeds, and the parent's object stays.
    ///
    /// # Errors
    /// The object and the kernel's error: `EBUSY` while another object uses this one.
    fn destroy(self) -> Result<Self::Reported, (Self, Error)>;
}

/// What happens to an object, for the owner of the events. It does not keep the kernel's object.
pub trait Notify: Send + Sync {
    /// An event of the CQ was read (`ibv_get_cq_event`); the doorbell that arms it next may depend on that. Called with a lock of the
    /// caller: it does not wait, and calls nothing of the caller.
    fn cq_event(&self) {}

    /// The device was removed: posts to the object's own queues fail with [`PostError::Removed`](super::PostError::Removed) from now on.
    /// Not called inside a queue.
    fn device_removed(&self) {}
}

/// For objects that need to know nothing.
impl Notify for () {}

/// A completion queue.
pub trait CqObject: Object<Handle = CqHandle, Reported = CqEvents> {
    /// By which it is polled.
    type Engine: CompletionQueue;

    /// Resizes the queue of this engine. Completions may arrive in the meantime; none is lost. Returns the new capacity.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the engine of another queue, or if an extended poll is open; [`Error::Unsupported`] if the device does
    /// not resize queues; otherwise the completions that are not polled do not fit, or the kernel refuses. The queue is unchanged then.
    fn resize(&self, engine: &mut Self::Engine, cqe: u32) -> Result<u32> {
        let _ = (engine, cqe);
        Err(unsupported("resize_cq", self.handle().kernel(), "resized CQs"))
    }

    /// `ibv_modify_cq`: how many completions one event may report, and for how long it may be delayed.
    ///
    /// # Errors
    /// The kernel's error.
    fn moderate(&self, moderation: CqModeration) -> Result<()> {
        self.handle().moderate(moderation)
    }

    /// To be told about its events. It lives as long as the object or its engine, if it does anything.
    fn notify(&self) -> Arc<dyn Notify> {
        Arc::new(())
    }
}

/// A shared receive queue.
pub trait SrqObject: Object<Handle = SrqHandle, Reported = u32> {
    /// By which receives are posted.
    type Engine: RecvQueue;

    /// The device's number of the queue, if the driver has it (`ibv_get_srq_num`): that of an XRC queue, and, where C programs with DC
    /// targets need it, that of another one.
    fn number(&self) -> Option<u32> {
        self.handle().srq_num()
    }

    /// Changes the limit of the queue of this engine, or its size if the device supports that.
    ///
    /// # Errors
    /// [`Error::Invalid`] for the engine of another queue; [`Error::Unsupported`] if the device does not resize queues; otherwise a
    /// value is out of range, or the kernel refuses.
    fn modify(&self, engine: &mut Self::Engine, attr: &SrqAttr, mask: SrqAttrMask) -> Result<()>;

    /// To be told that the device was removed. It lives as long as the object or its engines, if it does anything.
    fn notify(&self) -> Arc<dyn Notify> {
        Arc::new(())
    }
}

/// A work queue: receives without a QP.
pub trait WqObject: Object<Handle = WqHandle, Reported = u32> {
    /// `ibv_modify_wq`; the engine sees the new state.
    ///
    /// # Errors
    /// The transition is not allowed, or the kernel refuses.
    fn modify(&self, attr: &WqAttr) -> Result<()>;

    /// To be told that the device was removed. It lives as long as the object or its engines, if it does anything.
    fn notify(&self) -> Arc<dyn Notify> {
        Arc::new(())
    }
}

/// What is left of a QP that was destroyed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpEnd {
    /// The number of its events that were read.
    pub events_reported: u32,
    /// As [`QpObject::take_removed`].
    pub removed: Vec<u64>,
}

/// A QP, with or without queues of its own.
pub trait QpObject: Object<Handle = QpHandle, Reported = QpEnd> {
    /// `ibv_modify_qp`; the engines see the new state.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a QP over a table of work queues; otherwise the transition or an attribute is not allowed, or the
    /// kernel refuses.
    fn modify(&self, attr: &QpAttr, mask: QpAttrMask) -> Result<()>;

    /// `ibv_query_qp`. A driver adds what its kernel driver does not report.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a QP over a table of work queues; otherwise the kernel refuses the query.
    fn query(&self, mask: QpAttrMask) -> Result<(QpAttr, QpInitAttr)> {
        self.handle().query(mask)
    }

    /// The number of a DC target, 24 bits, which it gets when it goes to RTR.
    fn dct_number(&self) -> Option<u32> {
        None
    }

    /// Whether [`modify`](Self::modify) has moved the QP to ERR, and it is certain that all its completions are in its CQs and that it
    /// takes no more receives. The kernel drivers of most devices flush later, and raise `QP_LAST_WQE_REACHED` then; for their QPs it is
    /// `false`.
    fn is_flushed(&self) -> bool {
        false
    }

    /// From now on what is removed is kept. For a new QP whose shared receive queue owns its buffers.
    fn keep_removed(&self) {}

    /// The `wr_id`s of the completions that a RESET of the QP has removed from its CQs since the last call. No poll reports these. The
    /// driver may leave out those that are not of receives of a shared queue.
    fn take_removed(&self) -> Vec<u64> {
        Vec::new()
    }

    /// The options of enhanced connection establishment that the QP offers, or has agreed on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such options.
    fn query_ece(&self) -> Result<Ece> {
        Err(unsupported("query_ece", self.handle().kernel(), "ECE"))
    }

    /// Sets the options that the next [`modify`](Self::modify) passes on to the device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such options; otherwise the options are of another vendor.
    fn set_ece(&self, ece: Ece) -> Result<()> {
        let _ = ece;
        Err(unsupported("set_ece", self.handle().kernel(), "ECE"))
    }

    /// `ibv_modify_qp_rate_limit`. Only for devices that pace packets.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device does not pace packets; otherwise the limit is out of range, or the kernel
    /// refuses.
    fn modify_rate_limit(&self, attr: &QpRateLimitAttr) -> Result<()> {
        let _ = attr;
        Err(unsupported("modify_qp_rate_limit", self.handle().kernel(), "paced packets"))
    }

    /// Adds a steering rule; `counters` count its packets.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if `counters` is given and the device does not count packets; otherwise the kernel
    /// refuses the rule.
    fn create_flow(&self, attr: &FlowAttr, counters: Option<&CountersHandle>) -> Result<FlowHandle> {
        if counters.is_some() {
            return Err(unsupported("create_flow", self.handle().kernel(), "counters of packets"));
        }
        control::flow::create(self.handle(), attr, None, Uhw::none())
    }

    /// To be told that the device was removed. It lives as long as the object or its engines, if it does anything.
    fn notify(&self) -> Arc<dyn Notify> {
        Arc::new(())
    }
}

/// The work queues of a driver whose device has none. No value of it exists; the field is private, so that code of other crates does not
/// depend on that.
#[derive(Debug)]
pub struct NoWq(Never);

#[derive(Debug)]
enum Never {}

impl Object for NoWq {
    type Handle = WqHandle;
    type Reported = u32;

    fn handle(&self) -> &WqHandle {
        match self.0 {}
    }

    fn destroy(self) -> Result<u32, (Self, Error)> {
        match self.0 {}
    }
}

impl WqObject for NoWq {
    fn modify(&self, _: &WqAttr) -> Result<()> {
        match self.0 {}
    }
}

/// The shared receive queues of a driver whose device has none; `Q` is in the place of their engine.
#[derive(Debug)]
pub struct NoSrq<Q>(Never, PhantomData<fn() -> Q>);

impl<Q: RecvQueue + fmt::Debug + 'static> Object for NoSrq<Q> {
    type Handle = SrqHandle;
    type Reported = u32;

    fn handle(&self) -> &SrqHandle {
        match self.0 {}
    }

    fn destroy(self) -> Result<u32, (Self, Error)> {
        match self.0 {}
    }
}

impl<Q: RecvQueue + fmt::Debug + 'static> SrqObject for NoSrq<Q> {
    type Engine = Q;

    fn modify(&self, _: &mut Q, _: &SrqAttr, _: SrqAttrMask) -> Result<()> {
        match self.0 {}
    }
}

/// The answer of a verb that the device does not have.
fn unsupported(verb: &'static str, kernel: &Arc<dyn Kernel>, what: &str) -> Error {
    Error::unsupported(verb, format!("{} has no {what}", kernel.name()))
}

/// A new object of the kernel, and what was made of its answer. If that failed, the object, which has no other user yet, is destroyed.
///
/// # Errors
/// That of `made`.
pub fn or_destroy<H, T, R>(handle: H, made: Result<T>, destroy: impl FnOnce(H) -> R) -> Result<(H, T)> {
    match made {
        Ok(made) => Ok((handle, made)),
        Err(error) => {
            destroy(handle);
            Err(error)
        }
    }
}

/// The parts of an object: its kernel's handle, and what the device may use until the kernel has destroyed it. They are leaked unless
/// [`destroy`](Self::destroy) succeeds.
#[derive(Debug)]
pub struct Kept<H, S> {
    handle: ManuallyDrop<H>,
    state: ManuallyDrop<S>,
}

impl<H, S> Kept<H, S> {
    /// A new object of the kernel.
    pub fn new(handle: H, state: S) -> Self {
        Self { handle: ManuallyDrop::new(handle), state: ManuallyDrop::new(state) }
    }

    /// The kernel's handle.
    pub fn handle(&self) -> &H {
        &self.handle
    }

    /// Has `destroy` destroy the kernel's object, and drops the state if it succeeds.
    ///
    /// # Errors
    /// The parts as they were, and the error of `destroy`.
    pub fn destroy<R>(
        self,
        destroy: impl FnOnce(&S, H) -> Result<R, (H, Error)>,
    ) -> Result<R, (Self, Error)> {
        let Self { handle, state } = self;
        match destroy(&state, ManuallyDrop::into_inner(handle)) {
            Ok(reported) => {
                drop(ManuallyDrop::into_inner(state));
                Ok(reported)
            }
            Err((handle, error)) => Err((Self { handle: ManuallyDrop::new(handle), state }, error)),
        }
    }
}

impl<H, S> Deref for Kept<H, S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.state
    }
}

/// An object from its creation to its end: when this value is dropped, the object is destroyed, or leaked if the kernel refuses that.
#[derive(Debug)]
pub struct Life<O: Object> {
    /// `None` once it is destroyed.
    object: Option<O>,
    /// Its kind, as in errors.
    kind: &'static str,
}

impl<O: Object> Life<O> {
    /// A new object of this kind: `cq`, `srq`, `qp`, `wq`.
    pub fn new(kind: &'static str, object: O) -> Self {
        Self { object: Some(object), kind }
    }

    /// The object.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is destroyed.
    pub fn object(&self) -> Result<&O> {
        self.object.as_ref().ok_or_else(|| Error::invalid(self.kind, "handle", "the object is destroyed"))
    }

    /// Destroys the object. Returns `None` if that was done before, or if it was leaked. If the kernel refuses, the object stays.
    ///
    /// # Errors
    /// As [`Object::destroy`].
    pub fn destroy(&mut self) -> Result<Option<O::Reported>> {
        let Some(object) = self.object.take() else { return Ok(None) };
        match object.destroy() {
            Ok(reported) => Ok(Some(reported)),
            Err((object, error)) => {
                self.object = Some(object);
                Err(error)
            }
        }
    }

    /// As [`destroy`](Self::destroy), but an object that the kernel does not destroy is leaked: nobody uses it any more.
    ///
    /// # Errors
    /// As [`Object::destroy`].
    pub fn end(&mut self) -> Result<Option<O::Reported>> {
        self.destroy().inspect_err(|_| drop(self.object.take()))
    }
}

impl<O: Object> Drop for Life<O> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            log::error!("{}: {error}; its memory is leaked", self.kind);
        }
    }
}

/// Whether two contexts are the same one. The kernel numbers the handles of each context separately, so a handle of another context could
/// name another object.
///
/// # Errors
/// [`Error::Invalid`] that names the first field whose kernel is another one.
pub fn same_context(
    verb: &'static str,
    kernel: &Arc<dyn Kernel>,
    parents: &[(&'static str, Option<&Arc<dyn Kernel>>)],
) -> Result<()> {
    for (field, other) in parents {
        if let Some(other) = other
            && !core::ptr::addr_eq(Arc::as_ptr(kernel), Arc::as_ptr(other))
        {
            let reason = format!("created from another context (of {}, not {})", other.name(), kernel.name());
            return Err(Error::invalid(verb, field, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;

    /// An object whose destruction is refused as often as its handle says.
    #[derive(Debug)]
    struct Thing(Kept<u32, Arc<()>>);

    impl Object for Thing {
        type Handle = u32;
        type Reported = u32;

        fn handle(&self) -> &u32 {
            self.0.handle()
        }

        fn destroy(self) -> Result<u32, (Self, Error)> {
            let destroyed = self.0.destroy(|_, refusals| match refusals {
                0 => Ok(7),
                n => Err((n - 1, Error::os("destroy_thing", "thing", Errno::EBUSY))),
            });
            destroyed.map_err(|(kept, error)| (Self(kept), error))
        }
    }

    fn thing(refusals: u32) -> (Thing, Arc<()>) {
        let memory = Arc::new(());
        (Thing(Kept::new(refusals, Arc::clone(&memory))), memory)
    }

    #[test]
    fn an_object_that_is_dropped_keeps_its_memory() {
        let (object, memory) = thing(0);
        let _ = Some(object);
        assert_eq!(Arc::strong_count(&memory), 2);
        let (object, memory) = thing(1);
        let (object, _) = object.destroy().unwrap_err();
        assert_eq!((*object.handle(), Arc::strong_count(&memory)), (0, 2));
        assert_eq!((object.destroy().ok(), Arc::strong_count(&memory)), (Some(7), 1));
    }

    #[test]
    fn a_life_ends_with_the_object_or_its_leak() {
        let (object, memory) = thing(0);
        drop(Life::new("thing", object));
        assert_eq!(Arc::strong_count(&memory), 1);

        // The object stays after a refusal, and is destroyed at the second attempt, once.
        let (object, memory) = thing(1);
        let mut life = Life::new("thing", object);
        assert_eq!(life.destroy().unwrap_err().errno(), Errno::EBUSY);
        assert!(life.object().is_ok());
        assert_eq!(life.destroy().unwrap(), Some(7));
        let later = (life.destroy().unwrap(), life.end().unwrap());
        assert_eq!((later, Arc::strong_count(&memory)), ((None, None), 1));
        assert_eq!(life.object().unwrap_err().to_string(), "thing: invalid handle: the object is destroyed");

        // Nobody asks the kernel again after the end.
        let (object, memory) = thing(1);
        let mut life = Life::new("thing", object);
        assert_eq!(life.end().unwrap_err().errno(), Errno::EBUSY);
        assert_eq!(life.end().unwrap(), None);
        drop(life);
        assert_eq!(Arc::strong_count(&memory), 2);
    }
}
