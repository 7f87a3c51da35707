// SPDX-License-Identifier: MIT OR Apache-2.0
//! An open device and its queries (ibv_open_device(3), ibv_query_device_ex(3), ibv_query_port(3), ibv_query_gid(3)). The calls
//! that create objects are in the files of the objects.

use crate::Flights;
use crate::brief::brief;
use crate::event::{EventReader, QpEvents};
use crate::open::AnyDriver;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use uverbs_core::attr::{DeviceAttr, DriverQp, Gid, GidEntry, PortAttr};
use uverbs_core::control::slab::Slab;
use uverbs_core::control::{AsyncFd, ContextInfo, CoreSupport, query};
use uverbs_core::device::DeviceInfo;
use uverbs_core::error::{Error, Result};
use uverbs_core::kernel::{Kernel, Removal, UverbsFd, Watched};
use uverbs_core::provider::{Driver, Notify};
use uverbs_core::sync::ProcessMutex;

/// The object that an id in an event refers to.
#[derive(Clone)]
pub(crate) enum Object {
    /// Told about its events; nobody until the CQ is created. This is not weak: the number is removed when the CQ is dropped, and a weak
    /// reference costs more at each event.
    Cq(Option<Arc<dyn Notify>>),
    /// Told that the device was removed, so that its posts are refused; nobody until the QP is created.
    Qp(QpEvents, Weak<dyn Notify>),
    /// As a QP.
    Srq(Weak<dyn Notify>),
    /// As a QP.
    Wq(u32, Weak<dyn Notify>),
}

/// Of an object that is not created yet, or that needs to know nothing.
pub(crate) fn nobody() -> Weak<dyn Notify> {
    Weak::<()>::new()
}

/// The open device that every object holds.
pub(crate) struct ContextInner<D: Driver> {
    driver: D,
    num_comp_vectors: u32,
    core_support: CoreSupport,
    async_fd: AsyncFd,
    event_reader: EventReader,
    /// Objects by the id that the kernel reports in events. Ids have a generation number, so the id of a destroyed
    /// object is not found.
    objects: ProcessMutex<Slab<Object>>,
    /// The queues whose work requests own their buffers.
    flights: Flights<D>,
    #[cfg(feature = "counters")]
    cq_totals: crate::count::CqTotals,
    name: Arc<str>,
    removal: Arc<Removal>,
    /// See [`node_guid`](Self::node_guid).
    node_guid: OnceLock<u64>,
}

brief!([D: Driver] ContextInner<D>, |this| "Context of {} ({}{})", this.name, D::NAME, if this.removal.is_removed() { ", removed" } else { "" });

impl<D: Driver> ContextInner<D> {
    pub(crate) fn driver(&self) -> &D {
        &self.driver
    }

    pub(crate) fn kernel(&self) -> &Arc<dyn Kernel> {
        self.driver.kernel()
    }

    pub(crate) fn num_comp_vectors(&self) -> u32 {
        self.num_comp_vectors
    }

    pub(crate) fn core_support(&self) -> CoreSupport {
        self.core_support
    }

    pub(crate) fn async_fd(&self) -> &AsyncFd {
        &self.async_fd
    }

    pub(crate) fn event_reader(&self) -> &EventReader {
        &self.event_reader
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn flights(&self) -> &Flights<D> {
        &self.flights
    }

    #[cfg(feature = "counters")]
    pub(crate) fn cq_totals(&self) -> &crate::count::CqTotals {
        &self.cq_totals
    }

    /// The GUID of the device, which the kernel is asked for once.
    pub(crate) fn node_guid(&self) -> Result<u64> {
        if let Some(guid) = self.node_guid.get() {
            return Ok(*guid);
        }
        let guid = self.driver.query_device()?.node_guid;
        Ok(*self.node_guid.get_or_init(|| guid))
    }

    /// Stores an object and returns its number. In a child of fork(2) whose parent's thread had the table, the number is 0,
    /// which belongs to no object; the kernel then creates no object either (`ESTALE`).
    pub(crate) fn remember_object(&self, object: Object) -> u64 {
        self.objects.lock().map_or(0, |mut objects| objects.insert(object))
    }

    pub(crate) fn update_object(&self, id: u64, object: Object) {
        if let Ok(mut objects) = self.objects.lock()
            && let Some(place) = objects.get_mut(id)
        {
            *place = object;
        }
        if self.removal.is_removed() {
            self.close_queues();
        }
    }

    /// Whether the device was removed, as far as it is known.
    pub(crate) fn removal(&self) -> &Arc<Removal> {
        &self.removal
    }

    /// The device was removed: posts fail from now on.
    #[cold]
    fn close_queues(&self) {
        let Ok(objects) = self.objects.lock() else { return };
        let queues: Vec<_> = objects
            .iter()
            .filter_map(|object| match object {
                Object::Qp(_, queues) | Object::Wq(_, queues) | Object::Srq(queues) => queues.upgrade(),
                Object::Cq(_) => None,
            })
            .collect();
        // This waits for posters; the lock is free meanwhile.
        drop(objects);
        crate::report!(warn, { device = %self.name }, "{}: the device was removed", self.name);
        queues.iter().for_each(|queues| queues.device_removed());
    }

    pub(crate) fn forget_object(&self, id: u64) {
        let Ok(mut objects) = self.objects.lock() else { return };
        let object = objects.remove(id);
        // The last reference to the shared part of a CQ frees memory; without the lock.
        drop(objects);
        drop(object);
    }

    /// Notes an event of the CQ with this number; returns whether there is one.
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn note_cq_event(&self, id: u64) -> bool {
        let Ok(objects) = self.objects.lock() else { return false };
        let Some(Object::Cq(cq)) = objects.get(id) else { return false };
        if let Some(cq) = cq {
            cq.cq_event();
        }
        true
    }

    pub(crate) fn object(&self, id: u64) -> Option<Object> {
        self.objects.lock().ok()?.get(id).cloned()
    }
}

/// Fails if `other` is not `context`: objects of two contexts can't be used together. The kernel numbers the handles of
/// each context separately, so a handle of another context could name another object.
pub(crate) fn same_context<D: Driver>(
    context: &Arc<ContextInner<D>>,
    other: &Arc<ContextInner<D>>,
    verb: &'static str,
    field: &'static str,
) -> Result<()> {
    if Arc::ptr_eq(context, other) {
        return Ok(());
    }
    let reason = format!("created from another context (of {}, not {})", other.name, context.name);
    Err(Error::invalid(verb, field, reason))
}

/// An open device. Clones share it; it is closed when the last object created from it is dropped.
///
/// ```
/// use uverbs::{Context, mlx5::Mlx5};
/// use uverbs_hca::Hca;
///
/// # fn main() -> uverbs::Result<()> {
/// // On a machine with a NIC: `Context::<Mlx5>::open(&uverbs::devices()?[0])`.
/// let context = Context::<Mlx5>::from_kernel(Hca::new().open())?;
/// assert_eq!(context.name(), "hca0");
/// assert!(context.query_device()?.max_qp > 0);
/// // The GID with which a connection on RoCE should be made.
/// let gid = context.best_gid(1)?;
/// assert_eq!(context.query_gid(1, gid.gid_index)?, gid.gid);
/// # Ok(())
/// # }
/// ```
pub struct Context<D: Driver = AnyDriver> {
    inner: Arc<ContextInner<D>>,
}

brief!([D: Driver] Context<D>, |this| "{:?}", this.inner);

impl<D: Driver> Clone for Context<D> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<D: Driver> Context<D> {
    /// Opens a device of this driver. [`open`](crate::open()) selects the driver of a device.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a device of another driver; otherwise the error of open(2), such as `EACCES`.
    pub fn open(device: &DeviceInfo) -> Result<Self> {
        let fd = UverbsFd::open(device, D::DRIVER_IDS)?;
        Self::from_kernel(Arc::new(fd))
    }

    /// Opens a device through any implementation of [`Kernel`].
    ///
    /// # Errors
    /// `Unsupported` for a kernel that lacks what the driver needs; [`Error::Protocol`] for an answer that the driver
    /// can't use; otherwise the kernel's error.
    pub fn from_kernel(kernel: Arc<dyn Kernel>) -> Result<Self> {
        Self::from_kernel_with(kernel, D::open)
    }

    /// As [`open`](Self::open), with the options that `open` passes to the driver.
    ///
    /// ```no_run
    /// use uverbs::Context;
    /// use uverbs::mlx5::{Devx, Mlx5, Options};
    ///
    /// # fn main() -> uverbs::Result<()> {
    /// let mut options = Options::from_env()?;
    /// options.devx = Devx::Required;
    /// let context = Context::open_with(&uverbs::devices()?[0], |kernel| Mlx5::open_with(kernel, &options))?;
    /// # let _: Context<Mlx5> = context;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As of [`open`](Self::open), and those of `open`.
    pub fn open_with(
        device: &DeviceInfo,
        open: impl FnOnce(Arc<dyn Kernel>) -> Result<(D, ContextInfo)>,
    ) -> Result<Self> {
        let fd = UverbsFd::open(device, D::DRIVER_IDS)?;
        Self::from_kernel_with(Arc::new(fd), open)
    }

    /// As [`from_kernel`](Self::from_kernel), with the options that `open` passes to the driver, with the kernel that it gets.
    ///
    /// # Errors
    /// As of [`from_kernel`](Self::from_kernel), and those of `open`.
    pub fn from_kernel_with(
        kernel: Arc<dyn Kernel>,
        open: impl FnOnce(Arc<dyn Kernel>) -> Result<(D, ContextInfo)>,
    ) -> Result<Self> {
        let removal = Arc::<Removal>::default();
        Self::new(open(Arc::new(Watched::new(kernel, removal.clone())))?, removal)
    }

    /// `ibv_import_device`: uses the context of a device file that another process has opened and sent, or that this
    /// process has duplicated. Objects belong to the file, so they are destroyed when the last context with this file
    /// is dropped. Events of objects go to the first context's [`async_fd`](Self::async_fd).
    ///
    /// # Errors
    /// `Unsupported` for a driver whose kernel half does not report contexts; otherwise the kernel's error.
    pub fn import(device: &DeviceInfo, fd: OwnedFd) -> Result<Self> {
        Self::import_kernel(Arc::new(UverbsFd::from_fd(fd, &device.name, D::DRIVER_IDS)?))
    }

    /// As [`import`](Self::import), through any implementation of [`Kernel`] that has a context.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    pub fn import_kernel(kernel: Arc<dyn Kernel>) -> Result<Self> {
        let removal = Arc::<Removal>::default();
        Self::new(D::import(Arc::new(Watched::new(kernel, removal.clone())))?, removal)
    }

    fn new((driver, info): (D, ContextInfo), removal: Arc<Removal>) -> Result<Self> {
        let name = Arc::from(driver.kernel().name());
        let ContextInfo { num_comp_vectors, core_support, async_fd } = info;
        // A reader waits by poll(2), without the lock for reading.
        async_fd.set_nonblocking(true)?;
        let objects = ProcessMutex::new(Slab::new());
        let on_removal = removal.clone();
        let inner = Arc::new(ContextInner {
            driver,
            num_comp_vectors,
            core_support,
            async_fd,
            event_reader: EventReader::default(),
            objects,
            flights: Flights::default(),
            #[cfg(feature = "counters")]
            cq_totals: crate::count::CqTotals::default(),
            name,
            removal,
            node_guid: OnceLock::new(),
        });
        let context = Arc::downgrade(&inner);
        on_removal.on_removal(move || {
            if let Some(context) = context.upgrade() {
                context.close_queues();
            }
        });
        Ok(Self { inner })
    }

    /// Another owner of an open device.
    pub(crate) fn of(inner: &Arc<ContextInner<D>>) -> Self {
        Self { inner: inner.clone() }
    }

    /// The device's name, such as `rxe0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Whether the device was removed, as far as this context knows: an asynchronous event says so, or the answer of a verb. Posts and
    /// polls fail then.
    #[must_use]
    pub fn is_removed(&self) -> bool {
        self.inner.removal.is_removed()
    }

    /// The number of interrupt vectors for completion events; `comp_vector` must be smaller.
    #[must_use]
    pub fn num_comp_vectors(&self) -> u32 {
        self.inner.num_comp_vectors
    }

    /// What QPs of the type `IBV_QPT_DRIVER` are on this device: [`Srd`](crate::Srd) or [`Dci`](crate::Dci); `None` if there are none.
    #[must_use]
    pub fn driver_qp(&self) -> Option<DriverQp> {
        self.inner.driver().driver_qp()
    }

    /// Whether the sends of a QP complete in the order of the posts, so that a completion is also that of those before it. If not,
    /// each send must be signaled.
    #[must_use]
    pub fn completes_in_order(&self) -> bool {
        self.inner.driver().completes_in_order()
    }

    /// `ibv_query_device_ex`: the attributes and limits of the device.
    ///
    /// # Errors
    /// The kernel's error, such as `EIO` if the device was removed.
    pub fn query_device(&self) -> Result<DeviceAttr> {
        self.inner.driver().query_device()
    }

    /// `ibv_query_port`: the attributes of a port. The first port is 1.
    ///
    /// # Errors
    /// [`Error::Invalid`] for port 0; otherwise the kernel's error, such as `EINVAL` for a port that the device does
    /// not have.
    pub fn query_port(&self, port_num: u8) -> Result<PortAttr> {
        query::port(self.inner.kernel(), port_num)
    }

    /// `ibv_query_port_speed`: the effective speed in units of 100 Mb/s. Only some kernels have this query.
    ///
    /// # Errors
    /// `Unsupported` from kernels without this query; otherwise as [`query_port`](Self::query_port).
    pub fn query_port_speed(&self, port_num: u8) -> Result<u64> {
        query::port_speed(self.inner.kernel(), port_num.into())
    }

    /// `ibv_query_rt_values_ex`: the present value of the clock of completion timestamps, in the device's ticks.
    ///
    /// # Errors
    /// `Unsupported` if the device has no such clock.
    pub fn query_raw_clock(&self) -> Result<u64> {
        self.inner.driver().query_raw_clock()
    }

    /// `ibv_query_gid`: a GID of the port's table, 16 bytes in network byte order.
    ///
    /// # Errors
    /// As [`query_gid_ex`](Self::query_gid_ex).
    pub fn query_gid(&self, port_num: u8, index: u32) -> Result<Gid> {
        Ok(self.query_gid_ex(port_num, index)?.gid)
    }

    /// `ibv_query_gid_ex`: an entry of the port's GID table, with its type and network interface.
    ///
    /// # Errors
    /// The kernel's error: for a port or an index that the device does not have, or an empty entry.
    pub fn query_gid_ex(&self, port_num: u8, index: u32) -> Result<GidEntry> {
        query::gid_entry(self.inner.kernel(), port_num, index)
    }

    /// `ibv_query_gid_table`: all valid entries of all ports.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn query_gid_table(&self) -> Result<Vec<GidEntry>> {
        query::gid_table(self.inner.kernel())
    }

    /// `ibv_query_pkey`: a P_Key of the port's table, in host byte order (C's is in network byte order).
    ///
    /// # Errors
    /// `ENOENT` for a port or an index that the device does not have; [`Error::Protocol`] for an invalid entry.
    pub fn query_pkey(&self, port_num: u8, index: u16) -> Result<u16> {
        query::pkey(self.inner.kernel(), port_num, index)
    }

    /// Sets whether [`get_async_event`](Self::get_async_event) returns `EAGAIN` instead of waiting.
    ///
    /// # Errors
    /// None.
    pub fn set_async_nonblocking(&self, nonblocking: bool) -> Result<()> {
        self.inner.event_reader.set_nonblocking(nonblocking);
        Ok(())
    }

    /// The descriptor that is readable when there is an asynchronous event, also one that
    /// [`drain`](crate::qp::QpControl::drain) has kept. It is for poll(2) only: an epoll(7) instance, which the first call
    /// creates.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        EventReader::fd(&self.inner)
    }

    pub(crate) fn inner(&self) -> &Arc<ContextInner<D>> {
        &self.inner
    }

    /// The interface to the kernel, for commands that this crate does not have.
    #[must_use]
    pub fn kernel(&self) -> &Arc<dyn Kernel> {
        self.inner.kernel()
    }
}
