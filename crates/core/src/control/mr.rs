// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions (ibv_reg_mr(3), ibv_rereg_mr(3), ibv_reg_dmabuf_mr(3), ibv_advise_mr(3), ibv_import_mr(3)).
// UNSAFETY: registering memory gives the device access to it, so the verbs that register are `unsafe`. This module has
// no unsafe block.
#![expect(unsafe_code)]

use super::{CoreSupport, Object, PdHandle, Result, device_error, handle_common, invoke, locked, new_object};
use crate::attr::{AccessFlags, AdviseFlags, MrAdvice, ReregFlags};
use crate::error::Error;
use crate::kernel::{Command, Kernel, Uhw};
use crate::wr::Sge;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_REREG_MR, ib_uverbs_reg_mr, ib_uverbs_reg_mr_resp,
    ib_uverbs_rereg_mr, ib_uverbs_rereg_mr_resp, ib_uverbs_sge,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_ADVISE_MR_ADVICE, UVERBS_ATTR_ADVISE_MR_FLAGS, UVERBS_ATTR_ADVISE_MR_PD_HANDLE,
    UVERBS_ATTR_ADVISE_MR_SGE_LIST, UVERBS_ATTR_DESTROY_MR_HANDLE, UVERBS_ATTR_QUERY_MR_HANDLE,
    UVERBS_ATTR_QUERY_MR_RESP_IOVA, UVERBS_ATTR_QUERY_MR_RESP_LENGTH, UVERBS_ATTR_QUERY_MR_RESP_LKEY,
    UVERBS_ATTR_QUERY_MR_RESP_RKEY, UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, UVERBS_ATTR_REG_DMABUF_MR_FD,
    UVERBS_ATTR_REG_DMABUF_MR_HANDLE, UVERBS_ATTR_REG_DMABUF_MR_IOVA, UVERBS_ATTR_REG_DMABUF_MR_LENGTH,
    UVERBS_ATTR_REG_DMABUF_MR_OFFSET, UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE,
    UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, UVERBS_METHOD_ADVISE_MR,
    UVERBS_METHOD_MR_DESTROY, UVERBS_METHOD_QUERY_MR, UVERBS_METHOD_REG_DMABUF_MR, UVERBS_OBJECT_MR,
};
use zerocopy::IntoBytes;

/// The smallest page size of any architecture: the kernel compares the offset within its own pages, which are as
/// large or larger.
const PAGE_MASK: u64 = 4096 - 1;

/// A memory region.
#[derive(Debug)]
pub struct MrHandle {
    object: Object,
    lkey: u32,
    rkey: u32,
}

handle_common!(MrHandle, "mr");

/// The memory that a region covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrRange {
    /// First byte, a virtual address of this process.
    pub addr: u64,
    /// Bytes.
    pub length: u64,
    /// Address by which work requests name the first byte; `addr` for `ibv_reg_mr`.
    pub iova: u64,
}

/// The result of `query_mr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MrInfo {
    /// Bytes.
    pub length: u64,
    /// First address; `None` if the kernel does not report it.
    pub iova: Option<u64>,
}

impl MrRange {
    fn check(&self, verb: &'static str, access: AccessFlags) -> Result<()> {
        // addr 0, length u64::MAX, on demand: the whole address space.
        let implicit = access.contains(AccessFlags::ON_DEMAND) && self.addr == 0 && self.length == u64::MAX;
        if !implicit && self.addr.checked_add(self.length).is_none() {
            return Err(Error::invalid(verb, "length", "the region wraps around the address space"));
        }
        if self.iova & PAGE_MASK != self.addr & PAGE_MASK {
            return Err(Error::invalid(verb, "iova", "its offset within a page differs from that of addr"));
        }
        Ok(())
    }
}

/// Registers memory. Optional access flags that this kernel would refuse are dropped.
///
/// # Safety
/// From now until the region is destroyed or re-registered elsewhere, the range is mapped, and the accesses that the
/// flags allow to the device and to peers do not conflict with Rust references: there is no shared reference to memory
/// that they may write, and no exclusive reference to memory that they may read or write. If the call fails with
/// `EPROTO`, this applies permanently, because the kernel may have registered the range.
///
/// # Errors
/// An invalid argument, or the kernel's error (`ENOMEM` above the locked-memory limit).
pub unsafe fn reg(
    core: CoreSupport,
    pd: &PdHandle,
    range: MrRange,
    access: AccessFlags,
    uhw: Uhw<'_>,
) -> Result<MrHandle> {
    const VERB: &str = "reg_mr";
    access.check(VERB, "access")?;
    range.check(VERB, access)?;
    let request = ib_uverbs_reg_mr {
        start: range.addr,
        length: range.length,
        hca_va: range.iova,
        pd_handle: pd.handle(),
        access_flags: core.effective_access(access).bits(),
        ..Default::default()
    };
    let resp: ib_uverbs_reg_mr_resp = invoke(&**pd.kernel(), IB_USER_VERBS_CMD_REG_MR, &request, uhw)
        .map_err(|errno| locked::explain(&**pd.kernel(), pd.error(VERB, errno), pinned(range, access)))?;
    let object = Object::new(VERB, pd.kernel(), resp.mr_handle)?;
    Ok(MrHandle { object, lkey: resp.lkey, rkey: resp.rkey })
}

/// The memory that a registration pins: none of a region on demand.
fn pinned(range: MrRange, access: AccessFlags) -> Option<(u64, u64)> {
    (!access.contains(AccessFlags::ON_DEMAND)).then_some((range.addr, range.length))
}

/// Registers `length` bytes at `offset` of a dma-buf. The region keeps the dma-buf alive.
///
/// # Errors
/// An invalid argument, or the kernel's error. [`Error::Unsupported`] where the driver has no dma-buf.
pub fn reg_dmabuf(
    core: CoreSupport,
    pd: &PdHandle,
    dmabuf: BorrowedFd<'_>,
    offset: u64,
    length: u64,
    iova: u64,
    access: AccessFlags,
) -> Result<MrHandle> {
    reg_dmabuf_with(core, pd, dmabuf, MrRange { addr: offset, length, iova }, access, None)
}

/// [`reg_dmabuf`] with flags of the driver, if there are any: the number of their attribute and their value. The address of
/// the range is the offset in the dma-buf.
///
/// # Errors
/// As for [`reg_dmabuf`].
pub fn reg_dmabuf_with(
    core: CoreSupport,
    pd: &PdHandle,
    dmabuf: BorrowedFd<'_>,
    range: MrRange,
    access: AccessFlags,
    driver_flags: Option<(u16, u32)>,
) -> Result<MrHandle> {
    const VERB: &str = "reg_dmabuf_mr";
    let MrRange { addr: offset, length, iova } = range;
    access.check(VERB, "access")?;
    range.check(VERB, access)?;
    let allowed = AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::RELAXED_ORDERING;
    let other = access.difference(allowed | AccessFlags::OPTIONAL_RANGE);
    if !other.is_empty() {
        return Err(Error::invalid(VERB, "access", format!("{other:?} on a dma-buf")));
    }
    let fd = dmabuf.as_raw_fd().cast_unsigned();
    let (mut lkey, mut rkey) = (0_u32, 0_u32);
    let mut command = Command::<10>::new(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR);
    if let Some((attr, flags)) = driver_flags {
        command.u32(attr, flags);
    }
    command
        .handle_new(UVERBS_ATTR_REG_DMABUF_MR_HANDLE)
        .handle_in(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, pd.handle())
        .u64(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, offset)
        .u64(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, length)
        .u64(UVERBS_ATTR_REG_DMABUF_MR_IOVA, iova)
        // Four bytes of input to this method, not a file descriptor attribute.
        .u32(UVERBS_ATTR_REG_DMABUF_MR_FD, fd)
        .flags(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, (core.effective_access(access) & allowed).bits())
        .output(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &mut lkey)
        .output(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &mut rkey)
        .run(&**pd.kernel())
        .map_err(|errno| {
            let range = format!("{length:#x} bytes at {offset:#x} of fd {fd}, iova {iova:#x}");
            Error::os(VERB, format!("{range}, device {}", pd.kernel().name()), errno)
        })?;
    let object = new_object(VERB, pd.kernel(), &command, UVERBS_ATTR_REG_DMABUF_MR_HANDLE)?;
    Ok(MrHandle { object, lkey, rkey })
}

/// Advises the device how parts of on-demand regions will be used. `sges` name them by lkey.
///
/// # Errors
/// An empty or too long list, or the kernel's error. [`Error::Unsupported`] if the driver does not support advice.
pub fn advise(pd: &PdHandle, advice: MrAdvice, flags: AdviseFlags, sges: &[Sge]) -> Result<()> {
    const VERB: &str = "advise_mr";
    if sges.is_empty() || size_of_val(sges) > usize::from(u16::MAX) {
        return Err(Error::invalid(VERB, "sg_list", format!("{} entries", sges.len())));
    }
    let list: Vec<_> =
        sges.iter().map(|s| ib_uverbs_sge { addr: s.addr, length: s.length, lkey: s.lkey }).collect();
    Command::<4>::new(UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR)
        .handle_in(UVERBS_ATTR_ADVISE_MR_PD_HANDLE, pd.handle())
        .constant(UVERBS_ATTR_ADVISE_MR_ADVICE, advice as u32)
        .flags(UVERBS_ATTR_ADVISE_MR_FLAGS, flags.bits())
        .input_bytes(UVERBS_ATTR_ADVISE_MR_SGE_LIST, list.as_bytes())
        .run(&**pd.kernel())
        .map_err(|errno| pd.error(VERB, errno))
}

/// Imports a region that another process registered on the same (shared) device file, by its kernel handle.
///
/// # Safety
/// The handle is that of a region whose owner permits this process to use it, and to destroy it if the result is
/// destroyed: posted work requests rely on regions that are not destroyed by others.
///
/// # Errors
/// The kernel's error (`ENOENT` if there is no such region).
pub unsafe fn import(kernel: &Arc<dyn Kernel>, handle: u32) -> Result<(MrHandle, MrInfo)> {
    const VERB: &str = "import_mr";
    super::check_handle(VERB, handle)
        .map_err(|_| Error::invalid(VERB, "mr_handle", format!("{handle:#x}")))?;
    let (keys, info) = query(&**kernel, handle).map_err(|errno| device_error(VERB, &**kernel, errno))?;
    Ok((MrHandle { object: Object::new(VERB, kernel, handle)?, lkey: keys.0, rkey: keys.1 }, info))
}

fn query(kernel: &dyn Kernel, handle: u32) -> Result<((u32, u32), MrInfo), crate::Errno> {
    let (mut lkey, mut rkey, mut length, mut iova) = (0_u32, 0_u32, 0_u64, 0_u64);
    let mut command = Command::<5>::new(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR);
    command
        .handle_in(UVERBS_ATTR_QUERY_MR_HANDLE, handle)
        .output(UVERBS_ATTR_QUERY_MR_RESP_LKEY, &mut lkey)
        .output(UVERBS_ATTR_QUERY_MR_RESP_RKEY, &mut rkey)
        .output(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, &mut length)
        .output(UVERBS_ATTR_QUERY_MR_RESP_IOVA, &mut iova)
        .optional()
        .run(kernel)?;
    let has_iova = command.is_answered(UVERBS_ATTR_QUERY_MR_RESP_IOVA);
    Ok(((lkey, rkey), MrInfo { length, iova: has_iova.then_some(iova) }))
}

/// The changes of a re-registration; `None` keeps the present value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rereg<'a> {
    /// The memory.
    pub range: Option<MrRange>,
    /// The protection domain.
    pub pd: Option<&'a PdHandle>,
    /// The access rights.
    pub access: Option<AccessFlags>,
}

impl MrHandle {
    /// A region that another verb registered.
    pub(super) fn new(object: Object, lkey: u32, rkey: u32) -> Self {
        Self { object, lkey, rkey }
    }

    /// Key by which this process names the region.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key by which peers name the region.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Re-registers the region. Its keys may change; the caller must read them again.
    ///
    /// If the kernel refuses, the region may be as before or unusable (ibv_rereg_mr(3): `IBV_REREG_MR_ERR_CMD`); it
    /// must still be destroyed.
    ///
    /// # Safety
    /// The contract of [`reg`] applies to the new range and access rights; until this call has succeeded, also to the
    /// old ones.
    ///
    /// # Errors
    /// Nothing to change, an invalid argument, or the kernel's error. [`Error::Unsupported`] if the driver does not
    /// support it (rxe before kernel 6.3).
    pub unsafe fn rereg(&mut self, core: CoreSupport, change: &Rereg<'_>, uhw: Uhw<'_>) -> Result<()> {
        const VERB: &str = "rereg_mr";
        let mut request = ib_uverbs_rereg_mr { mr_handle: self.handle(), ..Default::default() };
        let mut flags = ReregFlags::empty();
        if let Some(range) = change.range {
            range.check(VERB, change.access.unwrap_or_default())?;
            flags |= ReregFlags::CHANGE_TRANSLATION;
            (request.start, request.length, request.hca_va) = (range.addr, range.length, range.iova);
        }
        if let Some(pd) = change.pd {
            flags |= ReregFlags::CHANGE_PD;
            request.pd_handle = pd.handle();
        }
        if let Some(access) = change.access {
            access.check(VERB, "access")?;
            flags |= ReregFlags::CHANGE_ACCESS;
            request.access_flags = core.effective_access(access).bits();
        }
        if flags.is_empty() {
            return Err(Error::invalid(VERB, "flags", "nothing to change"));
        }
        request.flags = flags.bits();
        let resp: ib_uverbs_rereg_mr_resp =
            invoke(&**self.kernel(), IB_USER_VERBS_CMD_REREG_MR, &request, uhw).map_err(|errno| {
                let memory = change.range.and_then(|range| pinned(range, change.access.unwrap_or_default()));
                locked::explain(&**self.kernel(), self.error(VERB, errno), memory)
            })?;
        (self.lkey, self.rkey) = (resp.lkey, resp.rkey);
        Ok(())
    }

    /// Length and first address, as reported by the kernel.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn query(&self) -> Result<MrInfo> {
        let (_, info) =
            query(&**self.kernel(), self.handle()).map_err(|errno| self.error("query_mr", errno))?;
        Ok(info)
    }

    /// Deregisters the region.
    ///
    /// # Errors
    /// `EBUSY` while a window is bound to it; the handle is returned, and the device may still use the memory.
    pub fn destroy(self) -> Result<(), (Self, Error)> {
        match self.object.destroy(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, UVERBS_ATTR_DESTROY_MR_HANDLE) {
            Ok(()) => Ok(()),
            Err(errno) => {
                let error = self.error("dereg_mr", errno);
                Err((self, error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Errno;
    use crate::kernel::script::{Script, scripted};
    use uverbs_uapi::cmd::{IB_USER_VERBS_CMD_ALLOC_PD, ib_uverbs_alloc_pd};
    use uverbs_uapi::ids::{UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT};

    const ALL: CoreSupport = CoreSupport(1);
    const RANGE: MrRange = MrRange { addr: 0x1234_5000, length: 0x2000, iova: 0x7000 };

    fn alloc_pd(script: &Arc<Script>) -> PdHandle {
        script.expect_write::<ib_uverbs_alloc_pd>(IB_USER_VERBS_CMD_ALLOC_PD, |_, c| {
            c.answer(UVERBS_ATTR_CORE_OUT, &7_u32.to_ne_bytes());
            Ok(())
        });
        super::super::pd::alloc(&script.kernel(), Uhw::none()).unwrap()
    }

    fn try_reg(pd: &PdHandle, range: MrRange, access: AccessFlags) -> Result<MrHandle> {
        // SAFETY: the scripted kernel accesses no memory.
        unsafe { reg(ALL, pd, range, access, Uhw::none()) }
    }

    fn registered(script: &Arc<Script>, pd: &PdHandle) -> MrHandle {
        script.expect_write::<ib_uverbs_reg_mr>(IB_USER_VERBS_CMD_REG_MR, |_, c| {
            c.answer(UVERBS_ATTR_CORE_OUT, [4_u32, 5, 6].as_bytes());
            Ok(())
        });
        try_reg(pd, RANGE, AccessFlags::LOCAL_WRITE).unwrap()
    }

    #[test]
    fn optional_access_flags_depend_on_the_kernels_support() {
        let script = Script::new();
        let pd = alloc_pd(&script);
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ | AccessFlags::RELAXED_ORDERING;
        for (core, bits) in [(ALL, 0x10_0005), (CoreSupport(0), 0x5)] {
            script.expect_write::<ib_uverbs_reg_mr>(IB_USER_VERBS_CMD_REG_MR, move |request, c| {
                assert_eq!((request.start, request.length, request.hca_va), (0x1234_5000, 0x2000, 0x7000));
                assert_eq!((request.pd_handle, request.access_flags), (7, bits));
                assert_eq!(c.input(UVERBS_ATTR_UHW_IN), Some(&[1, 2, 3][..]));
                c.answer(UVERBS_ATTR_UHW_OUT, &[9]);
                c.answer(UVERBS_ATTR_CORE_OUT, [4_u32, 5, 6].as_bytes());
                Ok(())
            });
            let mut answer = [0; 2];
            // SAFETY: the bytes name no memory.
            let uhw = unsafe { Uhw::new(&[1, 2, 3], &mut answer) };
            // SAFETY: the scripted kernel accesses no memory.
            let mr = unsafe { reg(core, &pd, RANGE, access, uhw) }.unwrap();
            assert_eq!((mr.handle(), mr.lkey(), mr.rkey(), answer), (4, 5, 6, [9, 0]));
        }
        script.done();
    }

    #[test]
    fn an_invalid_region_is_refused_without_a_command() {
        let script = Script::new();
        let pd = alloc_pd(&script);
        let field = |range, access| match try_reg(&pd, range, access) {
            Err(Error::Invalid { verb: "reg_mr", field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(RANGE, AccessFlags::REMOTE_WRITE), "access");
        assert_eq!(field(MrRange { iova: 1, ..RANGE }, AccessFlags::empty()), "iova");
        assert_eq!(field(MrRange { length: u64::MAX, ..RANGE }, AccessFlags::ON_DEMAND), "length");
        // The whole address space, on demand.
        script.expect_write::<ib_uverbs_reg_mr>(IB_USER_VERBS_CMD_REG_MR, |_, _| Err(Errno::EINVAL));
        let whole = MrRange { addr: 0, length: u64::MAX, iova: 0 };
        assert_eq!(try_reg(&pd, whole, AccessFlags::ON_DEMAND).unwrap_err().errno(), Errno::EINVAL);
        script.done();
    }

    #[test]
    fn rereg_sends_only_the_changes_and_stores_the_new_keys() {
        let script = Script::new();
        let pd = alloc_pd(&script);
        let mut mr = registered(&script, &pd);
        script.expect_write::<ib_uverbs_rereg_mr>(IB_USER_VERBS_CMD_REREG_MR, |request, c| {
            assert_eq!(
                (request.mr_handle, request.flags, request.pd_handle, request.access_flags),
                (4, 6, 7, 1)
            );
            assert_eq!((request.start, request.length), (0, 0));
            c.answer(UVERBS_ATTR_CORE_OUT, [8_u32, 9].as_bytes());
            Ok(())
        });
        let change = Rereg { range: None, pd: Some(&pd), access: Some(AccessFlags::LOCAL_WRITE) };
        // SAFETY: the scripted kernel accesses no memory.
        unsafe { mr.rereg(ALL, &change, Uhw::none()) }.unwrap();
        assert_eq!((mr.lkey(), mr.rkey()), (8, 9));
        script.expect_write::<ib_uverbs_rereg_mr>(IB_USER_VERBS_CMD_REREG_MR, |_, _| Err(Errno::EOPNOTSUPP));
        // SAFETY: the scripted kernel accesses no memory.
        assert!(unsafe { mr.rereg(ALL, &change, Uhw::none()) }.unwrap_err().is_unsupported());
        // SAFETY: the scripted kernel accesses no memory.
        let nothing = unsafe { mr.rereg(ALL, &Rereg::default(), Uhw::none()) };
        assert!(matches!(nothing, Err(Error::Invalid { field: "flags", .. })));
        assert_eq!((mr.lkey(), mr.rkey()), (8, 9));
        script.done();
    }

    #[test]
    fn a_dmabuf_is_passed_by_descriptor_with_its_own_access_flags() {
        let script = Script::new();
        let pd = alloc_pd(&script);
        let file = tempfile::tempfile().unwrap();
        let number = file.as_raw_fd();
        let dmabuf = std::os::fd::AsFd::as_fd(&file);
        script.expect(UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, move |c| {
            assert_eq!(c.input(UVERBS_ATTR_REG_DMABUF_MR_FD), Some(&number.to_ne_bytes()[..]));
            assert_eq!(c.input(UVERBS_ATTR_REG_DMABUF_MR_OFFSET), Some(&4096_u64.to_ne_bytes()[..]));
            c.new_handle(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 4);
            c.answer(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, &5_u32.to_ne_bytes());
            c.answer(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, &6_u32.to_ne_bytes());
            Ok(())
        });
        let mr = reg_dmabuf(ALL, &pd, dmabuf, 4096, 4096, 0, AccessFlags::LOCAL_WRITE).unwrap();
        assert_eq!((mr.handle(), mr.lkey(), mr.rkey()), (4, 5, 6));
        let odp = reg_dmabuf(ALL, &pd, dmabuf, 0, 4096, 0, AccessFlags::ON_DEMAND);
        assert!(matches!(odp, Err(Error::Invalid { field: "access", .. })));
        script.done();
    }

    #[test]
    fn import_and_query_return_the_kernels_values() {
        let script = Script::new();
        let expect = |tells_iova: bool| {
            script.expect(UVERBS_OBJECT_MR, UVERBS_METHOD_QUERY_MR, move |c| {
                assert_eq!(c.handle(UVERBS_ATTR_QUERY_MR_HANDLE), Some(4));
                c.answer(UVERBS_ATTR_QUERY_MR_RESP_LKEY, &5_u32.to_ne_bytes());
                c.answer(UVERBS_ATTR_QUERY_MR_RESP_RKEY, &6_u32.to_ne_bytes());
                c.answer(UVERBS_ATTR_QUERY_MR_RESP_LENGTH, &4096_u64.to_ne_bytes());
                if tells_iova {
                    c.answer(UVERBS_ATTR_QUERY_MR_RESP_IOVA, &8192_u64.to_ne_bytes());
                }
                Ok(())
            });
        };
        expect(true);
        let (mr, info) = scripted!(import(&script.kernel(), 4)).unwrap();
        assert_eq!((mr.lkey(), mr.rkey(), info), (5, 6, MrInfo { length: 4096, iova: Some(8192) }));
        expect(false);
        assert_eq!(mr.query().unwrap(), MrInfo { length: 4096, iova: None });
        assert!(matches!(scripted!(import(&script.kernel(), u32::MAX)), Err(Error::Invalid { .. })));
        script.expect(UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, |_| Err(Errno::EBUSY));
        assert_eq!(mr.destroy().unwrap_err().1.errno(), Errno::EBUSY);
        script.done();
    }

    #[test]
    fn advice_is_sent_as_a_list_of_entries() {
        let script = Script::new();
        let pd = alloc_pd(&script);
        script.expect(UVERBS_OBJECT_MR, UVERBS_METHOD_ADVISE_MR, |c| {
            assert_eq!(c.input(UVERBS_ATTR_ADVISE_MR_ADVICE), Some(&1_u64.to_ne_bytes()[..]));
            assert_eq!(c.input(UVERBS_ATTR_ADVISE_MR_SGE_LIST).unwrap().len(), 16);
            Ok(())
        });
        let sge = Sge { addr: 1, length: 2, lkey: 3 };
        advise(&pd, MrAdvice::PrefetchWrite, AdviseFlags::empty(), &[sge]).unwrap();
        assert!(advise(&pd, MrAdvice::Prefetch, AdviseFlags::empty(), &[]).is_err());
        let many = vec![sge; 4096];
        assert!(advise(&pd, MrAdvice::Prefetch, AdviseFlags::empty(), &many).is_err());
        script.done();
    }
}
