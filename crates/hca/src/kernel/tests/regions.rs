// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory regions: checks, re-registration, files.

use super::*;

#[test]
fn regions_are_checked_and_reregistered() {
    let ctx = Ctx::new(&hca());
    let (pd, other) = (ctx.pd(), ctx.pd());
    assert_eq!(errno(ctx.reg(&pd, AccessFlags::REMOTE_WRITE)), Errno::EINVAL);
    let mut mr = ctx.reg(&pd, AccessFlags::LOCAL_WRITE).unwrap();
    let (key, info) = (mr.lkey(), mr.query().unwrap());
    assert_eq!((mr.rkey(), info.length), (key, 8192));
    let change = Rereg { pd: Some(&other), ..Rereg::default() };
    // SAFETY: the memory stays.
    unsafe { mr.rereg(CoreSupport(1), &change, Uhw::none()) }.unwrap();
    assert_eq!((mr.lkey(), mr.rkey()), (key, key), "other rights and domains keep the key");
    let addr = memory(8192);
    let change = Rereg { range: Some(MrRange { addr, length: 8192, iova: addr }), ..Rereg::default() };
    // SAFETY: the memory is never freed and consists of atomics.
    unsafe { mr.rereg(CoreSupport(1), &change, Uhw::none()) }.unwrap();
    assert_ne!(mr.lkey(), key, "other memory has another key");
    pd.destroy().unwrap();
    assert_eq!(other.destroy().unwrap_err().1.errno(), Errno::EBUSY);
}

#[test]
fn a_region_of_a_dmabuf_is_the_files_memory() {
    use std::os::unix::fs::FileExt;
    let hca = hca();
    let ctx = Ctx::new(&hca);
    let pd = ctx.pd();
    let file = memfd();
    let page = u64::from(page_size());
    file.set_len(2 * page).unwrap();
    file.write_all_at(b"hello", page + 4).unwrap();
    seal(&file);
    let reg = |offset, length| {
        control::mr::reg_dmabuf(
            CoreSupport(1),
            &pd,
            file.as_fd(),
            offset,
            length,
            0x70_0000 + offset % page,
            AccessFlags::LOCAL_WRITE,
        )
    };
    assert_eq!(errno(reg(page, page + 1)), Errno::EINVAL);
    let mr = reg(page + 4, 100).unwrap();
    let mut bytes = [0; 5];
    hca.with_device(|device, _| {
        let user = crate::engine::mkey::User { pd: device.mkeys.get(mr.lkey()).unwrap().pd, qpn: 0 };
        let found = device.mkeys.resolve(user, mr.lkey(), 0x70_0004, 5, 1).unwrap().unwrap();
        found.0.read(found.1, &mut bytes).unwrap();
        found.0.write(found.1, b"HELLO").unwrap();
    });
    assert_eq!(&bytes, b"hello");
    file.read_exact_at(&mut bytes, page + 4).unwrap();
    assert_eq!(&bytes, b"HELLO");
}

fn memfd() -> std::fs::File {
    let flags = nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING;
    std::fs::File::from(nix::sys::memfd::memfd_create(c"region", flags).unwrap())
}

fn seal(file: &std::fs::File) {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    fcntl(file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
}

/// An access behind the end of a truncated file would end the process.
#[test]
fn a_file_that_can_be_truncated_is_no_dmabuf() {
    let hca = hca();
    let ctx = Ctx::new(&hca);
    let pd = ctx.pd();
    let reg = |file: &std::fs::File| {
        control::mr::reg_dmabuf(CoreSupport(1), &pd, file.as_fd(), 0, 8192, 0, AccessFlags::LOCAL_WRITE)
    };
    let open = memfd();
    open.set_len(8192).unwrap();
    assert_eq!(errno(reg(&open)), Errno::EINVAL);
    let path = std::env::temp_dir().join(format!("uverbs-hca-truncated-{}", std::process::id()));
    let file = std::fs::File::options().create_new(true).read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(8192).unwrap();
    assert_eq!(errno(reg(&file)), Errno::EINVAL);
    assert_eq!(errno(reg(&std::fs::File::open("/proc/self/exe").unwrap())), Errno::EINVAL);
    // The seal makes the difference.
    seal(&open);
    reg(&open).unwrap();
    assert!(open.set_len(0).is_err());
}

/// What the attributes of the device say is its limit.
#[test]
fn objects_beyond_the_limit_are_refused_and_leave_nothing() {
    use crate::kernel::limits::{MAX_CQ, MAX_MR, MAX_PD};
    let hca = hca();
    let ctx = Ctx::new(&hca);
    let pd = ctx.pd();
    // As if there were so many: a further one of the kind is refused.
    let limited = |name, max: u32, create: &dyn Fn() -> Result<(), Error>| {
        let count = hca.with_kernel(|state| state.pretend(name, max as usize));
        assert_eq!(create().unwrap_err().errno(), Errno::ENOMEM, "{name}");
        hca.with_kernel(|state| state.pretend(name, count));
    };
    limited("pd", MAX_PD, &|| control::pd::alloc(&ctx.kernel, Uhw::none()).map(drop));
    limited("mr", MAX_MR, &|| ctx.reg(&pd, AccessFlags::LOCAL_WRITE).map(drop));
    limited("mw", MAX_MR, &|| control::mw::alloc(&pd, MwType::Type2, Uhw::none()).map(drop));
    limited("cq", MAX_CQ, &|| ctx.cq_with(3, ctx.page, 64, None, 1).map(drop));
    hca.with_device(|device, _| assert!(device.cqs.is_empty()));
    // The refused objects do not use the domain.
    pd.destroy().unwrap();
    control::pd::alloc(&ctx.kernel, Uhw::none()).unwrap().destroy().unwrap();
}
