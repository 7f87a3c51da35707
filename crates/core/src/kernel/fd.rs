// SPDX-License-Identifier: MIT OR Apache-2.0
//! The real port: an open `/dev/infiniband/uverbsN`.
// UNSAFETY: the ioctl system call, taking ownership of file descriptors that it made, and closing the device's own early.
#![expect(unsafe_code)]

use super::process::{Owner, Process};
use super::raw::AttrValue;
use super::{Command, Kernel, Mapping, Protection, RawCommand, WriteCommand};
use crate::device::{self, DeviceInfo, Unusable};
use crate::errno::Errno;
use crate::error::{Error, Result};
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use uverbs_uapi::ids::UVERBS_OBJECT_DEVICE;
use uverbs_uapi::ioctl::{RDMA_VERBS_IOCTL, UVERBS_ATTR_F_VALID_OUTPUT, ib_uverbs_attr, ib_uverbs_ioctl_hdr};
use zerocopy::FromBytes;

/// Attributes of the longest command that is sent; the kernel's own limit is one page.
const MAX_ATTRS: usize = 32;
const HEADER_WORDS: usize = size_of::<ib_uverbs_ioctl_hdr>() / 8;
const MAX_WORDS: usize = HEADER_WORDS + MAX_ATTRS * 2;

/// A method that no object has. The kernel checks the driver id first and the method next, so the errno shows whether
/// the driver id is correct, and the command has no effect.
const PROBE_METHOD: u16 = 0x0fff;

/// An open uverbs device file.
#[derive(Debug)]
pub struct UverbsFd {
    /// Open until `creator` is given up.
    fd: ManuallyDrop<OwnedFd>,
    name: Box<str>,
    sysfs: PathBuf,
    driver_id: u32,
    /// The process that opened it.
    creator: Owner,
}

impl UverbsFd {
    /// Opens the device file of a device and determines which of the drivers in `candidates` (`enum rdma_driver_id`)
    /// the kernel has for it.
    ///
    /// # Errors
    /// The reason why the device can't be used, the errno of open(2), or [`Error::Unsupported`] if the driver is not
    /// one of the candidates.
    pub fn open(device: &DeviceInfo, candidates: &[u32]) -> Result<Self> {
        let path = match &device.uverbs {
            Ok(node) => &node.path,
            // The list may be out of date: a file that was missing or inaccessible may be available now.
            Err(Unusable::NoNode(path) | Unusable::WrongNode(path) | Unusable::Inaccessible(path, _)) => path,
            Err(reason) => {
                return Err(Error::unsupported("open_device", format!("{}: {reason}", device.name)));
            }
        };
        let mut this = Self::open_path(path, &device.name, candidates)?;
        this.sysfs.clone_from(&device.sysfs);
        Ok(this)
    }

    /// As [`UverbsFd::open`], for a device file at a path; `name` is the device's.
    ///
    /// # Errors
    /// As [`UverbsFd::open`].
    pub fn open_path(path: &Path, name: &str, candidates: &[u32]) -> Result<Self> {
        let fd = open(path, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|e| Error::os("open_device", format!("{name} at {}", path.display()), e.into()))?;
        Self::from_fd(fd, name, candidates)
    }

    /// As [`UverbsFd::open`], for a device file that is open already (ibv_import_device(3)).
    ///
    /// # Errors
    /// As [`UverbsFd::open`].
    pub fn from_fd(fd: OwnedFd, name: &str, candidates: &[u32]) -> Result<Self> {
        let mut this = Self {
            fd: ManuallyDrop::new(fd),
            name: name.into(),
            sysfs: device::Roots::default().sysfs.join("class/infiniband").join(name),
            driver_id: 0,
            creator: Owner::new(Process::register()),
        };
        for &candidate in candidates {
            this.driver_id = candidate;
            match this.probe() {
                Ok(true) => return Ok(this),
                Ok(false) => {}
                Err(errno) => {
                    return Err(Error::Os { verb: "open_device", object: name.to_owned().into(), errno });
                }
            }
        }
        Err(Error::unsupported(
            "open_device",
            format!("{name}: no driver of this library matches the kernel's driver"),
        ))
    }

    /// Whether the kernel accepts the driver id (`ib_uverbs_cmd_verbs()` in uverbs_ioctl.c).
    fn probe(&self) -> Result<bool, Errno> {
        match Command::<0>::new(UVERBS_OBJECT_DEVICE, PROBE_METHOD).run(self) {
            Err(Errno::EINVAL) => Ok(false),
            Ok(()) | Err(Errno::EPROTONOSUPPORT) => Ok(true),
            Err(errno) => Err(errno),
        }
    }

    fn check_process(&self) -> Result<(), Errno> {
        if self.is_creator_process() { Ok(()) } else { Err(Errno::ESTALE) }
    }
}

impl Drop for UverbsFd {
    fn drop(&mut self) {
        if self.creator.give_up() {
            // SAFETY: the descriptor is open and is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

impl Kernel for UverbsFd {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        self.check_process()?;
        let mut words = [0_u64; MAX_WORDS];
        loop {
            command.encode(&mut words)?;
            // SAFETY: `words` is an aligned ioctl header followed by the number of attributes in it. Each address in it
            // is that of a live slice of the attribute's length, which is borrowed exclusively if it is an output. The
            // memory that the inputs name by address is valid: the contract of the `unsafe` functions that create a
            // `RawCommand`.
            let ret = unsafe { libc::ioctl(self.fd.as_raw_fd(), RDMA_VERBS_IOCTL as _, words.as_mut_ptr()) };
            if ret >= 0 {
                break;
            }
            match Errno::last() {
                Errno::EINTR => {}
                errno => return Err(errno),
            }
        }
        read_back(command, &words);
        Ok(())
    }

    fn write(&self, command: &mut WriteCommand<'_>) -> Result<(), Errno> {
        self.check_process()?;
        loop {
            match nix::unistd::write(&*self.fd, command.encode()) {
                // The kernel processes a command completely or not at all.
                Ok(_) => return Ok(()),
                Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.check_process()?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let mut options = memmap2::MmapOptions::new();
        options.offset(offset).len(len);
        let map = match protection {
            Protection::Read => options.map_raw_read_only(&*self.fd),
            Protection::ReadWrite => options.map_raw(&*self.fd),
        }
        .map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EINVAL)))?;
        let ptr = NonNull::new(map.as_mut_ptr()).ok_or(Errno::EFAULT)?;
        Ok(match protection {
            // SAFETY: `map` is a mapping of `len` bytes at `ptr`, which exists until it is dropped and to which there are
            // no references.
            Protection::Read => unsafe { Mapping::read_only(ptr, len, map) },
            // SAFETY: `map` is a writable mapping of `len` bytes at `ptr`, which exists until it is dropped and to which
            // there are no references.
            Protection::ReadWrite => unsafe { Mapping::new(ptr, len, map) },
        })
    }

    fn attribute(&self, path: &str) -> Result<Vec<u8>, Errno> {
        device::read(&self.sysfs.join(path))
    }

    fn driver_id(&self) -> u32 {
        self.driver_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_creator_process(&self) -> bool {
        self.creator.is_current()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.is_creator_process().then(|| self.fd.as_fd())
    }

    unsafe fn close(&self) {
        if self.creator.give_up() {
            // SAFETY: the descriptor was open until now: `give_up` returns true only once. Every method checks the creator
            // before it uses the descriptor, and none is in progress (the contract of `Kernel::close`).
            drop(unsafe { OwnedFd::from_raw_fd(self.fd.as_raw_fd()) });
        }
    }
}

/// Copies the results of a successful command from the attributes: flags, handles, file descriptors.
fn read_back(command: &mut RawCommand<'_, '_>, words: &[u64]) {
    let answered = words[HEADER_WORDS..].chunks_exact(2);
    for ((attr, value), answer) in command.attrs.iter_mut().zip(command.values.iter_mut()).zip(answered) {
        let Ok(answer) = ib_uverbs_attr::read_from_bytes(zerocopy::IntoBytes::as_bytes(answer)) else {
            continue;
        };
        attr.flags = answer.flags;
        match value {
            AttrValue::NewHandle => attr.data = answer.data,
            AttrValue::NewFd(fd) => {
                attr.data = answer.data;
                *fd = i32::try_from(answer.data_s64()).ok().and_then(own);
            }
            AttrValue::OutputFd(bytes, offset, fd) if answer.flags & UVERBS_ATTR_F_VALID_OUTPUT != 0 => {
                let number = bytes.get(*offset..).and_then(|b| b.first_chunk());
                *fd = number.map(|n| i32::from_ne_bytes(*n)).and_then(own);
            }
            _ => {}
        }
    }
}

/// Owns a file descriptor that the kernel just made.
fn own(fd: i32) -> Option<OwnedFd> {
    if fd < 0 {
        return None;
    }
    // SAFETY: the command succeeded, so the kernel installed this descriptor for the caller (the contract of `fd_new`
    // and `output_with_fd`), and no other code owns it.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::super::page_size;
    use super::*;
    use std::fs::File;
    use std::os::fd::IntoRawFd;
    use zerocopy::IntoBytes;

    fn port(file: File, creator: Process) -> UverbsFd {
        UverbsFd {
            fd: ManuallyDrop::new(file.into()),
            name: "file0".into(),
            sysfs: "/nonexistent".into(),
            driver_id: 14,
            creator: Owner::new(creator),
        }
    }

    #[test]
    fn a_mapping_is_the_files_memory_until_it_is_dropped() {
        let file = tempfile::tempfile().unwrap();
        let page = page_size() as usize;
        file.set_len(3 * page as u64).unwrap();
        let port = port(file.try_clone().unwrap(), Process::register());
        let map = port.mmap(page as u64, 2 * page, Protection::ReadWrite).unwrap();
        let read = port.mmap(page as u64, 2 * page, Protection::Read).unwrap();
        drop(port);
        let last = |map: &Mapping| map.as_ptr().as_ptr().wrapping_add(2 * page - 1);
        // SAFETY: the last byte of a mapping that exists; only this test writes to it.
        unsafe { last(&map).write_volatile(0x5a) };
        // SAFETY: the last byte of a mapping that exists; only this test writes to it.
        assert_eq!(unsafe { last(&read).read_volatile() }, 0x5a);
        let mut byte = [0];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut byte, 3 * page as u64 - 1).unwrap();
        assert_eq!(byte, [0x5a]);
    }

    #[test]
    fn an_impossible_mapping_is_an_error() {
        let port = port(File::open("/").unwrap(), Process::register());
        assert_eq!(port.mmap(0, 0, Protection::Read).unwrap_err(), Errno::EINVAL);
        for (offset, len) in [(0, usize::MAX), (u64::MAX, 4096), (0, 4096), (u64::MAX, usize::MAX)] {
            assert!(port.mmap(offset, len, Protection::Read).is_err(), "{offset:#x} {len:#x}");
        }
    }

    #[test]
    fn a_process_that_did_not_open_the_device_gets_estale() {
        let port = port(File::open("/dev/null").unwrap(), Process::other());
        assert!(!port.is_creator_process());
        assert_eq!(Command::<0>::new(0, 0).run(&port), Err(Errno::ESTALE));
        assert_eq!(port.mmap(0, 4096, Protection::Read).unwrap_err(), Errno::ESTALE);
        assert_eq!(super::super::post_send_doorbell(&port, 1), Err(Errno::ESTALE));
    }

    #[test]
    fn a_closed_device_leaves_no_descriptor_and_refuses() {
        let port = port(File::open("/dev/null").unwrap(), Process::register());
        let number = port.fd().unwrap().as_raw_fd();
        assert!(number >= 0);
        // SAFETY: no other call of the port is in progress.
        unsafe { port.close() };
        // Another thread's file may have its number now, which a second close would close.
        let reused = OwnedFd::from(File::open("/").unwrap());
        // SAFETY: no other call of the port is in progress.
        unsafe { port.close() };
        assert!(port.fd().is_none());
        assert_eq!(Command::<0>::new(0, 0).run(&port), Err(Errno::ESTALE));
        drop(port);
        assert!(nix::fcntl::fcntl(&reused, nix::fcntl::FcntlArg::F_GETFD).is_ok());
    }

    #[test]
    fn the_kernels_errno_is_returned() {
        let port = port(File::open("/dev/null").unwrap(), Process::register());
        assert_eq!(port.attribute("fw_ver"), Err(Errno::ENOENT));
        assert_eq!(Command::<0>::new(0, 0).run(&port).unwrap_err().raw(), libc::ENOTTY);
        // Not open for writing.
        assert_eq!(super::super::post_send_doorbell(&port, 1), Err(Errno::EBADF));
    }

    #[test]
    fn answers_are_read_back_by_kind() {
        let mut bytes = [0_u8; 8];
        let mut not_valid = [0_u8; 4];
        let mut command = Command::<6>::new(0, 0);
        command
            .handle_new(0)
            .fd_new_inner(1)
            .output_with_fd_inner(2, &mut bytes, 4)
            .u32(3, 7)
            .output_with_fd_inner(4, &mut not_valid, 0)
            .fd_new_inner(5);
        let fds = [0; 2].map(|_| File::open("/").unwrap().into_raw_fd());
        // SAFETY: the inputs name no memory.
        let mut raw = unsafe { command.raw(14) }.unwrap();
        raw.output(2).unwrap()[4..].copy_from_slice(&fds[1].to_ne_bytes());
        let mut words = [0; MAX_WORDS];
        raw.encode(&mut words).unwrap();
        // The answer of a kernel: flags and data words. -1 is not a descriptor; the data of inputs are ignored.
        let data = |i: usize| HEADER_WORDS + 2 * i + 1;
        words[data(0)] = 77;
        words[data(1)] = fds[0] as u64;
        words[data(3)] = 99;
        words[data(5)] = u64::MAX;
        let valid =
            ib_uverbs_attr { attr_id: 2, len: 8, flags: UVERBS_ATTR_F_VALID_OUTPUT, ..Default::default() };
        words[HEADER_WORDS + 4].as_mut_bytes().copy_from_slice(&valid.as_bytes()[..8]);
        read_back(&mut raw, &words);
        assert_eq!(raw.input(3), Some(&7_u32.to_ne_bytes()[..]));
        assert_eq!(command.handle(0), Some(77));
        assert_eq!(command.take_fd(1).map(|fd| fd.as_raw_fd()), Some(fds[0]));
        assert_eq!(command.take_fd(2).map(|fd| fd.as_raw_fd()), Some(fds[1]));
        assert!(command.take_fd(4).is_none() && command.take_fd(5).is_none());
    }
}
