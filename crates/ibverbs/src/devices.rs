// SPDX-License-Identifier: MIT OR Apache-2.0
//! The devices of this machine as `struct ibv_device` (ibv_get_device_list(3)).
//!
//! A device that is found again has the same pointer, because librdmacm compares the pointers of different lists. So
//! devices are never freed; their number is that of all devices that were ever present.
#![expect(unsafe_code)]
// UNSAFETY: C's pointers to devices and lists.

use crate::abi::context::{ibv_context, ibv_device};
use crate::context;
use crate::convert::device::text;
use crate::errno::{Errno, Outcome, pointer};
use crate::export::sysfs;
use crate::logger;
use core::ffi::{c_char, c_int, c_void};
use core::{mem, ptr};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use uverbs_core::device::{DeviceInfo, DriverMatch, NodeType, Roots, TransportType, Unusable, parse};
use uverbs_core::drivers;
use uverbs_core::kernel::{Kernel, Process, UverbsFd};
use uverbs_core::provider::{Driver, Import as _};
use uverbs_core::sync::StaticMutex;
use uverbs_mlx5::{Devx, Mlx5, Options, Pages};

/// A device: C's part and ours.
#[repr(C)]
struct Device {
    public: ibv_device,
    /// rdma-core's providers compare this field; this device has none of them.
    provider: *mut c_void,
    source: Source,
}

/// The origin of a device.
#[derive(PartialEq)]
pub(crate) enum Source {
    /// The kernel.
    Kernel(Box<DeviceInfo>),
    /// A software device of this process, by its index.
    #[cfg(feature = "hca")]
    Software(usize),
}

/// All devices that were ever listed.
#[derive(Default)]
struct Known(Vec<*mut Device>);

// SAFETY: this library does not change a device after its creation; C programs may change its public part, from any
// thread.
unsafe impl Send for Known {}

static KNOWN: StaticMutex<Known> = StaticMutex::new();

macro_rules! all_matches {
    (() $([$name:ident $feature:literal $module:ident $krate:ident])*) => {
        &[$(<$krate::$name as Driver>::MATCH),*]
    };
}

/// The drivers, in the order in which they are probed.
const DRIVERS: &[DriverMatch] = drivers!(all_matches());

/// The expression for the driver with an id, in which `$D` is the driver.
macro_rules! for_id {
    (($id:expr, $D:ident => $then:expr) $([$name:ident $feature:literal $module:ident $krate:ident])*) => {
        match $id {
            $(<$krate::$name as Driver>::DRIVER_ID => {
                type $D = $krate::$name;
                $then
            })*
            _ => Err(Errno::EOPNOTSUPP),
        }
    };
}

/// Whether a driver may be for a device, as far as the PCI ids of the device say. A device that is not a PCI device has none.
fn may_be(info: &DeviceInfo, driver: &DriverMatch) -> bool {
    info.pci_id().is_none_or(driver.pci)
}

/// Opens the device file, if the kernel's driver is one of ours.
fn open_file(info: &DeviceInfo) -> Outcome<UverbsFd> {
    if !DRIVERS.iter().any(|driver| may_be(info, driver)) {
        return Err(Errno::ENOSYS);
    }
    Ok(info.open(DRIVERS)?)
}

/// Whether this library has a driver for the device. If this process may not open the device file, the answer is yes.
fn is_ours(info: &DeviceInfo) -> bool {
    match &info.uverbs {
        Ok(_) => !matches!(open_file(info), Err(errno) if errno.is_unsupported()),
        Err(Unusable::Inaccessible(..)) => DRIVERS.iter().any(|driver| may_be(info, driver)),
        Err(_) => false,
    }
}

/// C's part of a kernel's device.
fn public(info: &DeviceInfo) -> ibv_device {
    let mut device = empty();
    let node = info.node_type.unwrap_or(NodeType(0));
    let transport = node.transport();
    device.node_type = if node == NodeType(0) { -1 } else { node.0.into() };
    device.transport_type = if transport == TransportType(u8::MAX) { -1 } else { c_int::from(transport.0) };
    device.name = text(&info.name);
    device.ibdev_path = text(&info.sysfs.to_string_lossy());
    let file = match &info.uverbs {
        Ok(node) => Some(&node.path),
        Err(Unusable::Inaccessible(path, _)) => Some(path),
        Err(_) => None,
    };
    if let Some(name) = file.and_then(|path| path.file_name()) {
        let name = name.to_string_lossy();
        device.dev_name = text(&name);
        device.dev_path = text(&sysfs::root().join("class/infiniband_verbs").join(&*name).to_string_lossy());
    }
    device
}

/// C's part, all zeros.
fn empty() -> ibv_device {
    // SAFETY: integers and optional functions: zeros are values of all of them.
    unsafe { mem::zeroed() }
}

/// The software devices of this process.
#[cfg(feature = "hca")]
fn software() -> Outcome<Vec<(ibv_device, Source)>> {
    let device = |(i, found): (usize, &uverbs_software::Device)| {
        let (mut device, name) = (empty(), found.name());
        device.node_type = found.node_type().0.into();
        device.transport_type = found.node_type().transport().0.into();
        device.name = text(name);
        device.dev_name = text(name);
        // There are no such files in sysfs, unless somebody has made them; the verbs return the same information.
        device.dev_path = text(&format!("/nonexistent/{name}"));
        let made = sysfs::root().join("class/infiniband").join(name);
        device.ibdev_path =
            if made.exists() { text(&made.to_string_lossy()) } else { text(&format!("/nonexistent/{name}")) };
        (device, Source::Software(i))
    };
    Ok(crate::software::devices()?.iter().enumerate().map(device).collect())
}

/// Without the feature there are none.
#[cfg(not(feature = "hca"))]
fn software() -> Outcome<Vec<(ibv_device, Source)>> {
    Ok(Vec::new())
}

/// The devices that are present now.
fn scan() -> Outcome<Vec<(ibv_device, Source)>> {
    logger::init();
    let roots = Roots { sysfs: sysfs::root(), ..Roots::default() };
    let found = roots.devices()?.into_iter().filter(|info| {
        let is_ours = is_ours(info);
        if !is_ours {
            log::warn!("{}: this library has no driver for the device", info.name);
        }
        is_ours
    });
    let devices = found.map(|info| (public(&info), Source::Kernel(Box::new(info))));
    Ok(devices.chain(software()?).collect())
}

impl Known {
    /// The device of this source, which is created if it was not listed before.
    fn find(&mut self, public: ibv_device, source: Source) -> *mut ibv_device {
        // SAFETY: a box that is never freed.
        let same = self.0.iter().find(|device| unsafe { &(***device).source } == &source);
        let device = same.copied().unwrap_or_else(|| {
            let device = Box::into_raw(Box::new(Device { public, provider: ptr::null_mut(), source }));
            self.0.push(device);
            device
        });
        device.cast()
    }
}

/// # Safety
/// As in ibv_get_device_list(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: `num_devices` is NULL or valid for writes (contract of the man page).
    let count = unsafe { num_devices.as_mut() };
    let mut found = 0;
    let list = pointer(|| {
        let devices = scan()?;
        let mut known = KNOWN.lock();
        let mut list: Vec<_> =
            devices.into_iter().map(|(public, source)| known.find(public, source)).collect();
        found = c_int::try_from(list.len()).unwrap_or(c_int::MAX);
        list.push(ptr::null_mut());
        // SAFETY: a plain allocation, which is checked.
        let array = unsafe { libc::calloc(list.len(), size_of::<*mut ibv_device>()) };
        let array: *mut *mut ibv_device = array.cast();
        if array.is_null() {
            return Err(Errno::ENOMEM);
        }
        // SAFETY: allocated above, with room for all of them.
        unsafe { ptr::copy_nonoverlapping(list.as_ptr(), array, list.len()) };
        Ok(array)
    });
    if let Some(count) = count {
        *count = if list.is_null() { 0 } else { found };
    }
    list
}

/// # Safety
/// As in ibv_get_device_list(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: `list` is NULL, or was allocated by `ibv_get_device_list` (contract of the man page).
    unsafe { libc::free(list.cast()) };
}

/// The source of a device that was listed; `EINVAL` for any other pointer.
///
/// # Safety
/// No requirement: a device of this library is never freed.
fn source(device: *mut ibv_device) -> Outcome<&'static Source> {
    let known = KNOWN.lock();
    let found = known.0.iter().find(|ours| ours.addr() == device.addr()).ok_or(Errno::EINVAL)?;
    // SAFETY: the box is never freed, and no mutable reference to this part exists.
    Ok(unsafe { &(**found).source })
}

/// Whether a device is a software device with a script of faults.
#[cfg(feature = "hca")]
pub(crate) fn is_scripted(device: *mut ibv_device) -> bool {
    match source(device) {
        Ok(Source::Software(index)) => {
            crate::software::device(*index).is_ok_and(|device| device.is_scripted())
        }
        _ => false,
    }
}

/// The error that the script of a software device gives a work request.
#[cfg(feature = "hca")]
pub(crate) fn script_post(device: *mut ibv_device, verb: &str, queue: u32) -> Option<Errno> {
    match source(device) {
        Ok(Source::Software(index)) => crate::software::device(*index).ok()?.script_post(verb, queue),
        _ => None,
    }
}

/// Opens a device.
///
/// # Safety
/// As in ibv_open_device(3).
pub(crate) unsafe fn open(device: *mut ibv_device) -> Outcome<*mut ibv_context> {
    match source(device)? {
        Source::Kernel(info) => {
            let file: Arc<dyn Kernel> = Arc::new(open_file(info)?);
            // C programs call daemon(3) after opening a device, and then call verbs in the child.
            Process::adopt_children();
            open_kernel(file, device)
        }
        #[cfg(feature = "hca")]
        Source::Software(index) => open_kernel(crate::software::open(*index)?, device),
    }
}

/// Opens a device behind a kernel port.
fn open_kernel(kernel: Arc<dyn Kernel>, device: *mut ibv_device) -> Outcome<*mut ibv_context> {
    match kernel.driver_id() {
        Mlx5::DRIVER_ID => open_with_options(kernel, device, Devx::IfPermitted),
        id => drivers!(for_id (id, D => context::open::<D>(kernel, device))),
    }
}

/// Whether a device is one of mlx5, as far as that is known before it is opened.
pub(crate) fn is_mlx5_device(device: *mut ibv_device) -> bool {
    match source(device) {
        Ok(Source::Kernel(info)) => info.pci_id().is_some_and(Mlx5::MATCH.pci),
        #[cfg(feature = "hca")]
        Ok(Source::Software(index)) => {
            crate::software::device(*index).is_ok_and(|device| device.driver_id() == Mlx5::DRIVER_ID)
        }
        Err(_) => false,
    }
}

/// Opens a device of mlx5, with or without commands for the firmware (DEVX).
pub(crate) fn open_mlx5(device: *mut ibv_device, devx: Devx) -> Outcome<*mut ibv_context> {
    let kernel: Arc<dyn Kernel> = match source(device)? {
        Source::Kernel(info) => {
            let file = Arc::new(open_file(info)?);
            Process::adopt_children();
            file
        }
        #[cfg(feature = "hca")]
        Source::Software(index) => crate::software::open(*index)?,
    };
    if kernel.driver_id() != Mlx5::DRIVER_ID {
        return Err(Errno::EOPNOTSUPP);
    }
    open_with_options(kernel, device, devx)
}

/// Opens a device of mlx5 with the options of the environment. As in libmlx5, variables that name the pages of queues are read
/// when a queue is created.
fn open_with_options(
    kernel: Arc<dyn Kernel>,
    device: *mut ibv_device,
    devx: Devx,
) -> Outcome<*mut ibv_context> {
    let mut options = Options::from_env()?;
    options.devx = devx;
    options.qp_pages = Pages::Variable("MLX_QP_ALLOC_TYPE");
    options.cq_pages = Pages::Variable("MLX_CQ_ALLOC_TYPE");
    options.srq_pages = Pages::Variable("MLX_SRQ_ALLOC_TYPE");
    options.wq_pages = Pages::Variable("MLX_RWQ_ALLOC_TYPE");
    context::open_with(kernel, device, |kernel| Mlx5::open_with(kernel, &options))
}

/// Creates a context on an open device file. As in C, the file is closed with the new context, or if this function
/// fails after it has found the device.
///
/// # Safety
/// As in ibv_import_device(3).
pub(crate) unsafe fn import(cmd_fd: c_int) -> Outcome<*mut ibv_context> {
    logger::init();
    if cmd_fd < 0 {
        return Err(Errno::EBADF);
    }
    // SAFETY: the descriptor is not negative, and nothing else closes it during this call (contract of the man page).
    let borrowed = unsafe { BorrowedFd::borrow_raw(cmd_fd) };
    #[cfg(feature = "hca")]
    if let Some(shared) = context::shared::by_stand_in(borrowed)? {
        // SAFETY: the caller transfers the ownership of the descriptor (contract of the man page).
        let fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
        return drivers!(for_id (shared.kernel.driver_id(), D => context::shared::share::<D>(shared, fd)));
    }
    let found = nix::sys::stat::fstat(borrowed)?;
    if found.st_mode & libc::S_IFMT != libc::S_IFCHR {
        return Err(Errno::EINVAL);
    }
    let dev = (libc::major(found.st_rdev), libc::minor(found.st_rdev));
    let roots = Roots { sysfs: sysfs::root(), ..Roots::default() };
    let is_it = |info: &DeviceInfo| info.uverbs.as_ref().is_ok_and(|node| node.dev == dev);
    let info = roots.devices()?.into_iter().find(is_it).ok_or(Errno::ENODEV)?;
    let mut known = KNOWN.lock();
    let device = known.find(public(&info), Source::Kernel(Box::new(info.clone())));
    drop(known);
    // SAFETY: the caller transfers the ownership of the descriptor (contract of the man page).
    let fd = unsafe { OwnedFd::from_raw_fd(cmd_fd) };
    let ids: Vec<u32> = DRIVERS.iter().map(|driver| driver.driver_id).collect();
    let file: Arc<dyn Kernel> = Arc::new(UverbsFd::from_fd(fd, &info.name, &ids)?);
    Process::adopt_children();
    drivers!(for_id (file.driver_id(), D => context::open_with(file, device, D::import)))
}

/// # Safety
/// As in ibv_get_device_name(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    pointer(|| {
        if device.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: `device` is not NULL (checked above) and points to a device of a list (contract of the man page).
        Ok(unsafe { &raw mut (*device).name }.cast::<c_char>())
    })
    .cast_const()
}

/// The GUID in network byte order; 0 if it is unknown.
///
/// # Safety
/// As in ibv_get_device_guid(3).
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    let mut guid = 0;
    crate::errno::nothing(|| {
        guid = match source(device)? {
            // Read now, because the GUID may be set after the device was listed.
            Source::Kernel(info) => {
                let text = info.sysfs_text("node_guid").ok_or(Errno::ENOENT)?;
                parse::guid(text.as_bytes()).ok_or(Errno::EIO)?
            }
            #[cfg(feature = "hca")]
            Source::Software(index) => {
                let bytes = crate::software::open(*index)?.attribute("node_guid")?;
                parse::guid(&bytes).ok_or(Errno::EIO)?
            }
        };
        Ok(())
    });
    guid.to_be()
}

/// The index; -1 if the kernel does not report it, and for software devices.
///
/// # Safety
/// No requirement: a pointer that was not in a list is only compared, not dereferenced.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    let mut index = -1;
    crate::errno::nothing(|| {
        index = match source(device)? {
            Source::Kernel(info) => info.index().and_then(|index| c_int::try_from(index).ok()).unwrap_or(-1),
            #[cfg(feature = "hca")]
            Source::Software(_) => -1,
        };
        Ok(())
    });
    index
}
