// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the in-process kernel with the control verbs of `uverbs-core`, which check the answers, and with commands
//! that the tests build.
#![expect(unsafe_code)]
// UNSAFETY: commands give the device access to memory of the tests.

mod regions;

use crate::{Fabric, Hca, Link};
use core::sync::atomic::{AtomicU64, Ordering};
use std::os::fd::AsFd;
use std::sync::Arc;
use uverbs_core::attr::{
    AccessFlags, AhAttr, EventType, GidType, GlobalRoute, MwType, QpAttr, QpAttrMask as M, QpInitAttr,
    QpState, QpType, SrqAttr, SrqAttrMask, SrqInitAttr, SrqType,
};
use uverbs_core::control::{
    self, CoreSupport, CqHandle, MrHandle, MrRange, PdHandle, QpHandle, QpParents, Rereg, SrqHandle,
    SrqParents,
};
use uverbs_core::kernel::{Command, Kernel, Uhw, page_size};
use uverbs_core::{Errno, Error};
use uverbs_uapi::cmd::{IB_USER_VERBS_CMD_QUERY_DEVICE, ib_uverbs_alloc_pd};
use uverbs_uapi::ids::{
    UVERBS_ATTR_WRITE_CMD, UVERBS_METHOD_INVOKE_WRITE, UVERBS_METHOD_PD_DESTROY, UVERBS_OBJECT_DEVICE,
    UVERBS_OBJECT_PD,
};
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, MLX5_IB_METHOD_UAR_OBJ_ALLOC,
    MLX5_IB_METHOD_UAR_OBJ_DESTROY, MLX5_IB_OBJECT_UAR,
};
use uverbs_uapi::mlx5::{
    MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX, MLX5_LIB_CAP_4K_UAR, MLX5_LIB_CAP_DYN_UAR,
    MLX5_QP_FLAG_ALLOW_SCATTER_CQE, MLX5_QP_FLAG_SCATTER_CQE, MLX5_QP_FLAG_UAR_PAGE_INDEX,
    mlx5_ib_alloc_ucontext_req_v2, mlx5_ib_alloc_ucontext_resp, mlx5_ib_create_cq, mlx5_ib_create_cq_resp,
    mlx5_ib_create_qp, mlx5_ib_create_qp_resp, mlx5_ib_create_srq, mlx5_ib_create_srq_resp,
};
use zerocopy::{FromZeros, IntoBytes};

/// Calls an `unsafe` verb of an object whose queues the test does not use.
macro_rules! unused {
    ($call:expr) => {{
        // SAFETY: the tests neither post nor poll, and the memory outlives every device.
        let result = unsafe { $call };
        result
    }};
}

/// Memory that outlives every device of a test.
fn memory(bytes: usize) -> u64 {
    static KEPT: std::sync::Mutex<Vec<Box<[AtomicU64]>>> = std::sync::Mutex::new(Vec::new());
    let words: Box<[AtomicU64]> =
        (0..(bytes + page_size() as usize).div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
    let at = (words.as_ptr().expose_provenance() as u64).next_multiple_of(page_size().into());
    KEPT.lock().unwrap().push(words);
    at
}

struct Ctx {
    kernel: Arc<dyn Kernel>,
    asyncs: control::AsyncFd,
    resp: mlx5_ib_alloc_ucontext_resp,
    page: u32,
    uar: u32,
}

fn open_kernel(
    kernel: &Arc<dyn Kernel>,
    lib_caps: u64,
) -> Result<(control::AsyncFd, mlx5_ib_alloc_ucontext_resp), Error> {
    let request = mlx5_ib_alloc_ucontext_req_v2 {
        total_num_bfregs: 16,
        num_low_latency_bfregs: 4,
        max_cqe_version: 1,
        lib_caps,
        ..Default::default()
    };
    let mut resp = mlx5_ib_alloc_ucontext_resp::default();
    // SAFETY: the request names no memory.
    let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
    let info = control::context::open(kernel, uhw)?;
    info.async_fd.set_nonblocking(true)?;
    Ok((info.async_fd, resp))
}

fn alloc_uar(kernel: &Arc<dyn Kernel>) -> Result<(u32, u32, u64), Errno> {
    let (mut offset, mut length, mut page) = (0_u64, 0_u32, 0_u32);
    let mut command = Command::<5>::new(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC);
    command
        .handle_new(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)
        .constant(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, 0_u32)
        .output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &mut offset)
        .output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &mut length)
        .output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &mut page);
    // SAFETY: the command names no memory.
    unsafe { command.execute(&**kernel) }?;
    let handle = command.handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE).unwrap();
    assert_eq!(length, page_size());
    Ok((handle, page, offset))
}

impl Ctx {
    fn new(hca: &Hca) -> Self {
        let kernel = hca.open();
        let (asyncs, resp) = open_kernel(&kernel, MLX5_LIB_CAP_4K_UAR | MLX5_LIB_CAP_DYN_UAR).unwrap();
        let (uar, page, offset) = alloc_uar(&kernel).unwrap();
        kernel.doorbells(offset, page_size() as usize).unwrap();
        Self { kernel, asyncs, resp, page, uar }
    }

    fn pd(&self) -> PdHandle {
        control::pd::alloc(&self.kernel, Uhw::none()).unwrap()
    }

    fn reg(&self, pd: &PdHandle, access: AccessFlags) -> Result<MrHandle, Error> {
        let addr = memory(8192);
        let range = MrRange { addr, length: 8192, iova: addr };
        // SAFETY: the memory is never freed and consists of atomics.
        unsafe { control::mr::reg(CoreSupport(1), pd, range, access, Uhw::none()) }
    }

    fn cq_with(
        &self,
        cqe: u32,
        page: u32,
        size: u32,
        channel: Option<&control::CompChannelHandle>,
        user: u64,
    ) -> Result<CqHandle, Error> {
        let private = mlx5_ib_create_cq {
            buf_addr: memory(128 * 1024),
            db_addr: memory(8),
            cqe_size: size,
            flags: MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX,
            uar_page_index: page as u16,
            ..Default::default()
        };
        let mut resp = mlx5_ib_create_cq_resp::default();
        // SAFETY: the memory is never freed and consists of atomics.
        let uhw = unsafe { Uhw::new(private.as_bytes(), resp.as_mut_bytes()) };
        let attr = uverbs_core::attr::CqInitAttr::new(cqe);
        control::cq::create(&self.kernel, &attr, channel, user, uhw)
    }

    fn cq(&self) -> CqHandle {
        self.cq_with(100, self.page, 64, None, 1).unwrap()
    }

    fn qp_with(&self, parents: QpParents<'_>, qp_type: QpType, user: u64) -> Result<QpHandle, Error> {
        self.qp_with_flags(parents, &QpInitAttr::new(qp_type), user, 0)
    }

    fn qp_with_flags(
        &self,
        parents: QpParents<'_>,
        init: &QpInitAttr,
        user: u64,
        flags: u32,
    ) -> Result<QpHandle, Error> {
        let private = mlx5_ib_create_qp {
            buf_addr: memory(8192),
            db_addr: memory(8),
            sq_wqe_count: 64,
            rq_wqe_count: 16,
            rq_wqe_shift: 6,
            flags: MLX5_QP_FLAG_UAR_PAGE_INDEX | flags,
            uidx: 3,
            bfreg_index: self.page,
            ..FromZeros::new_zeroed()
        };
        let mut resp = mlx5_ib_create_qp_resp::default();
        // SAFETY: the memory is never freed and consists of atomics.
        let uhw = unsafe { Uhw::new(private.as_bytes(), resp.as_mut_bytes()) };
        let (qp, _) = control::qp::create(parents, init, user, uhw)?;
        Ok(qp)
    }

    fn rc(&self, pd: &PdHandle, cq: &CqHandle) -> QpHandle {
        let parents =
            QpParents { pd: Some(pd), send_cq: Some(cq), recv_cq: Some(cq), ..QpParents::default() };
        self.qp_with(parents, QpType::Rc, 9).unwrap()
    }

    fn srq(&self, parents: SrqParents<'_>, srq_type: SrqType) -> Result<SrqHandle, Error> {
        let private = mlx5_ib_create_srq { buf_addr: memory(8192), db_addr: memory(8), ..Default::default() };
        let mut resp = mlx5_ib_create_srq_resp::default();
        // SAFETY: the memory is never freed and consists of atomics.
        let uhw = unsafe { Uhw::new(private.as_bytes(), resp.as_mut_bytes()) };
        let attr = SrqAttr::new(10);
        let init = SrqInitAttr::new(attr).srq_type(srq_type);
        control::srq::create(parents, &init, 4, uhw).map(|(srq, _)| srq)
    }
}

fn hca() -> Hca {
    Fabric::deterministic(1).device("hca0").build()
}

/// The errno of an error, independent of its message.
fn errno<T>(result: Result<T, Error>) -> Errno {
    result.err().expect("it was not refused").errno()
}

#[test]
fn a_context_is_created_once_and_first() {
    let hca = hca();
    let kernel = hca.open();
    // The probe of a library is a write command without sizes.
    let mut command = Command::<1>::new(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE);
    command.constant(UVERBS_ATTR_WRITE_CMD, IB_USER_VERBS_CMD_QUERY_DEVICE);
    // SAFETY: the command names no memory.
    assert_eq!(unsafe { command.execute(&*kernel) }, Err(Errno::ENOSPC));
    assert_eq!(errno(control::pd::alloc(&kernel, Uhw::none())), Errno::EINVAL);
    open_kernel(&kernel, 3).unwrap();
    assert_eq!(errno(open_kernel(&kernel, 3)), Errno::EINVAL);
    control::pd::alloc(&kernel, Uhw::none()).unwrap();
}

#[test]
fn unknown_drivers_and_mandatory_attributes_are_refused() {
    let ctx = Ctx::new(&hca());
    let pd = ctx.pd();
    let destroy = |driver_id: u32, optional: bool| {
        let mut command = Command::<2>::new(UVERBS_OBJECT_PD, UVERBS_METHOD_PD_DESTROY);
        command.handle_in(0, pd.handle()).u32(77, 1);
        if optional {
            command.optional();
        }
        // SAFETY: the command names no memory.
        let mut raw = unsafe { command.raw(driver_id) }.unwrap();
        ctx.kernel.ioctl(&mut raw)
    };
    assert_eq!(destroy(14, true), Err(Errno::EINVAL));
    assert_eq!(destroy(ctx.kernel.driver_id(), false), Err(Errno::EPROTONOSUPPORT));
    assert_eq!(destroy(ctx.kernel.driver_id(), true), Ok(()));
    assert_eq!(destroy(ctx.kernel.driver_id(), true), Err(Errno::ENOENT));
    let unknown = Command::<0>::new(99, 0);
    let mut unknown = unknown;
    // SAFETY: the command names no memory.
    assert_eq!(unsafe { unknown.execute(&*ctx.kernel) }, Err(Errno::EPROTONOSUPPORT));
}

#[test]
fn objects_in_use_are_busy_and_handles_are_the_lowest_free() {
    let hca = hca();
    let ctx = Ctx::new(&hca);
    let pd = ctx.pd();
    let (mr, cq) = (ctx.reg(&pd, AccessFlags::LOCAL_WRITE).unwrap(), ctx.cq());
    let qp = ctx.rc(&pd, &cq);
    assert_eq!(hca.objects().values().sum::<usize>(), 5);
    let (pd, e) = pd.destroy().unwrap_err();
    let (cq, f) = cq.destroy().unwrap_err();
    assert_eq!([e.errno(), f.errno()], [Errno::EBUSY; 2]);
    let freed = mr.handle();
    mr.destroy().unwrap();
    assert_eq!(ctx.reg(&pd, AccessFlags::empty()).unwrap().handle(), freed);
    assert_eq!(unused!(qp.destroy()).unwrap(), 0);
    cq.destroy().unwrap();
    // The device file is closed when the last owner of the port is dropped.
    drop((ctx, pd));
    assert!(hca.objects().is_empty(), "{:?}", hca.objects());
}

#[test]
fn queries_report_the_devices_attributes() {
    let fabric = Fabric::deterministic(1);
    for (link, gids) in [(Link::Ethernet, 4), (Link::InfiniBand, 1)] {
        let hca = fabric.device("x").link(link).build();
        let ctx = Ctx::new(&hca);
        let device = control::query::device(&ctx.kernel, Uhw::none()).unwrap();
        assert_eq!((device.vendor_part_id, device.phys_port_cnt), (0x101d, 1));
        let port = control::query::port(&ctx.kernel, 1_u8).unwrap();
        assert_eq!(port.lid != 0, link == Link::InfiniBand);
        assert_eq!(errno(control::query::port(&ctx.kernel, 2_u8)), Errno::EINVAL);
        let table = control::query::gid_table(&ctx.kernel).unwrap();
        assert_eq!(table.len(), gids);
        let last = control::query::gid_entry(&ctx.kernel, 1_u8, gids as u32 - 1).unwrap();
        assert_eq!((last.gid, last.gid_type), (table[gids - 1].gid, table[gids - 1].gid_type));
        if link == Link::Ethernet {
            assert_eq!(last.gid_type, GidType::ROCE_V2);
        }
        assert_eq!(errno(control::query::gid_entry(&ctx.kernel, 1_u8, gids as u32)), Errno::ENODATA);
        assert_eq!(errno(control::query::gid_entry(&ctx.kernel, 1_u8, 256)), Errno::EINVAL);
        assert_eq!(control::query::pkey(&ctx.kernel, 1_u8, 0).unwrap(), 0xffff);
        assert_eq!(errno(control::query::pkey(&ctx.kernel, 1_u8, 200)), Errno::ENOENT);
        assert_eq!((ctx.resp.cqe_version, ctx.resp.tot_bfregs), (1, 0));
    }
}

#[test]
fn invalid_sizes_and_pages_of_cqs_are_refused() {
    let ctx = Ctx::new(&hca());
    assert_eq!(ctx.cq().cqe(), 127);
    assert_eq!(ctx.cq_with(127, ctx.page, 128, None, 0).unwrap().cqe(), 127);
    assert_eq!(errno(ctx.cq_with(10, ctx.page, 32, None, 0)), Errno::EINVAL);
    assert_eq!(errno(ctx.cq_with(10, ctx.page + 1, 64, None, 0)), Errno::EINVAL);
    assert_eq!(errno(ctx.cq_with(1 << 22, ctx.page, 64, None, 0)), Errno::EINVAL);
}

fn to_rtr(ctx: &Ctx, dest_qp_num: u32) -> (QpAttr, M) {
    let gid = control::query::gid_entry(&ctx.kernel, 1_u8, 3).unwrap().gid;
    let grh = GlobalRoute::new(gid).sgid_index(3).hop_limit(9);
    let attr = QpAttr::new()
        .qp_state(QpState::RTR)
        .path_mtu(uverbs_core::attr::Mtu(3))
        .dest_qp_num(dest_qp_num)
        .rq_psn(77)
        .max_dest_rd_atomic(4)
        .min_rnr_timer(12)
        .ah_attr(AhAttr::new(1).grh(Some(grh)));
    let mask =
        M::STATE | M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    (attr, mask)
}

#[test]
fn a_qp_follows_its_states_and_keeps_its_attributes() {
    let ctx = Ctx::new(&hca());
    let (pd, cq) = (ctx.pd(), ctx.cq());
    let qp = ctx.rc(&pd, &cq);
    let modify = |attr: &QpAttr, mask| unused!(qp.modify(None, attr, mask, Uhw::none()));
    let init = QpAttr::new().qp_state(QpState::INIT).port_num(1);
    assert_eq!(errno(modify(&init, M::STATE | M::PORT)), Errno::EINVAL);
    modify(&init, M::STATE | M::PORT | M::PKEY_INDEX | M::ACCESS_FLAGS).unwrap();
    let (rtr, mask) = to_rtr(&ctx, 0x123);
    assert_eq!(errno(modify(&rtr.path_mtu(uverbs_core::attr::Mtu(6)), mask)), Errno::EINVAL);
    let mut nowhere = rtr;
    nowhere.ah_attr.grh.as_mut().unwrap().dgid.0[15] ^= 0xff;
    assert_eq!(errno(modify(&nowhere, mask)), Errno::EHOSTUNREACH);
    modify(&rtr, mask).unwrap();
    // C programs request all attributes with a mask that has unknown bits.
    let (now, init) = qp.query(M::from_bits_retain(0x1ff_ffff)).unwrap();
    assert_eq!((init.cap.max_recv_wr, init.cap.max_recv_sge), (16, 4), "the ring's");
    assert_eq!((now.qp_state, now.dest_qp_num, now.rq_psn, now.min_rnr_timer), (QpState::RTR, 0x123, 77, 12));
    assert_eq!(now.ah_attr.grh, rtr.ah_attr.grh);
    let back = QpAttr::new().qp_state(QpState::INIT);
    assert_eq!(errno(modify(&back, M::STATE)), Errno::EINVAL);
    modify(&QpAttr::new().qp_state(QpState::RESET), M::STATE).unwrap();
    assert_eq!(qp.query(M::STATE).unwrap().0.dest_qp_num, 0);
}

/// Data come in completions only if they were requested at the creation of the QP (`MLX5_QP_FLAG_SCATTER_CQE`); those of
/// requests only if all of its WRs are signaled, or if that was requested, too.
#[test]
fn data_come_only_in_completions_of_qps_that_request_it() {
    const ALLOW: u32 = MLX5_QP_FLAG_ALLOW_SCATTER_CQE;
    const SCATTER: u32 = MLX5_QP_FLAG_SCATTER_CQE;
    let hca = hca();
    let ctx = Ctx::new(&hca);
    let (pd, small) = (ctx.pd(), ctx.cq());
    let large = ctx.cq_with(100, ctx.page, 128, None, 1).unwrap();
    for (qp_type, sq_sig_all, flags, want) in [
        (QpType::Rc, true, 0, (0, 0)),
        (QpType::Rc, true, ALLOW, (0, 0)),
        (QpType::Rc, false, SCATTER, (0, 64)),
        (QpType::Rc, true, SCATTER, (32, 64)),
        (QpType::Rc, false, SCATTER | ALLOW, (32, 64)),
        (QpType::Uc, true, SCATTER, (0, 64)),
        (QpType::Ud, true, SCATTER | ALLOW, (0, 0)),
    ] {
        let parents =
            QpParents { pd: Some(&pd), send_cq: Some(&small), recv_cq: Some(&large), ..QpParents::default() };
        let init = QpInitAttr { sq_sig_all, ..QpInitAttr::new(qp_type) };
        let qp = ctx.qp_with_flags(parents, &init, 9, flags).unwrap();
        let got = hca.with_device(|device, _| {
            let qp = &device.qps[&qp.qp_num()];
            (qp.scatter_req, qp.scatter_resp)
        });
        assert_eq!(got, want, "{qp_type}, all signaled: {sq_sig_all}, flags {flags:#x}");
    }
}

/// Destroying an object waits until the program has acknowledged all events that are reported, so those that were dropped are not.
#[test]
fn events_that_a_file_has_no_room_for_are_not_reported() {
    const MANY: u32 = 70_000;
    let hca = hca();
    let ctx = Ctx::new(&hca);
    let channel = control::comp_channel::create(&ctx.kernel).unwrap();
    let cq = ctx.cq_with(10, ctx.page, 64, Some(&channel), 11).unwrap();
    let srq = ctx.srq(SrqParents { pd: &ctx.pd(), xrcd: None, cq: None }, SrqType::Basic).unwrap();
    let limit = crate::engine::event::SRQ_LIMIT_REACHED;
    hca.with_device(|device, _| {
        let cqn = device.cqs.keys().next().unwrap();
        let srqn = device.srqs.keys().next().unwrap();
        for _ in 0..MANY {
            device.notices.push(crate::engine::Notice::Completion { cqn });
            device.notices.push(crate::engine::Notice::Srq { srqn, event: limit });
        }
    });
    assert_eq!((channel.read_event().unwrap(), ctx.asyncs.read().unwrap().element), (11, 4));
    assert_eq!(cq.destroy().unwrap().comp_events_reported, 1);
    assert_eq!(unused!(srq.destroy()).unwrap(), 1);
}

#[test]
fn events_arrive_at_their_files_and_end_with_their_objects() {
    let hca = hca();
    let ctx = Ctx::new(&hca);
    let channel = control::comp_channel::create(&ctx.kernel).unwrap();
    channel.set_nonblocking(true).unwrap();
    let cqs = [11, 22].map(|user| ctx.cq_with(10, ctx.page, 64, Some(&channel), user).unwrap());
    let fire = |times: usize| {
        hca.with_device(|device, _| {
            for cqn in device.cqs.keys() {
                for _ in 0..times {
                    device.notices.push(crate::engine::Notice::Completion { cqn });
                }
            }
        });
    };
    fire(2);
    assert_eq!([channel.read_event().unwrap(), channel.read_event().unwrap()], [11, 11]);
    let [first, second] = cqs;
    // Both events of the second object are unread, and are removed with it.
    assert_eq!(second.destroy().unwrap().comp_events_reported, 0);
    assert_eq!(channel.next_event().unwrap(), None);
    assert_eq!(first.destroy().unwrap().comp_events_reported, 2);
    hca.set_link_up(false);
    let event = ctx.asyncs.read().unwrap();
    assert_eq!((event.event_type, event.element), (EventType::PORT_ERR, 1));
    let srq = ctx.srq(SrqParents { pd: &ctx.pd(), xrcd: None, cq: None }, SrqType::Basic).unwrap();
    // No receive is posted, so the count is below any limit.
    srq.modify(&SrqAttr::new(0).srq_limit(3).max_sge(0), SrqAttrMask::LIMIT, Uhw::none()).unwrap();
    let event = ctx.asyncs.read().unwrap();
    assert_eq!((event.event_type, event.element), (EventType::SRQ_LIMIT_REACHED, 4));
    assert_eq!(srq.query().unwrap().srq_limit, 0);
    assert_eq!(unused!(srq.destroy()).unwrap(), 1);
    let Ctx { kernel, asyncs, .. } = ctx;
    drop(kernel);
    // The kernel's end of the channel exists until the device is dropped.
    assert_eq!(asyncs.next_event().unwrap_err().errno(), Errno::EIO);
}

#[test]
fn a_port_can_get_another_lid() {
    let fabric = Fabric::deterministic(1);
    let [a, b] = ["a", "b"].map(|name| fabric.device(name).link(Link::InfiniBand).build());
    let ctx = Ctx::new(&a);
    let lid = |ctx: &Ctx| control::query::port(&ctx.kernel, 1_u8).unwrap().lid;
    let old = lid(&ctx);
    ctx.asyncs.set_nonblocking(true).unwrap();
    // An invalid LID, multicast LIDs, and the LID of another port.
    for wrong in [0, 0xc000, 0xffff, lid(&Ctx::new(&b))] {
        assert!(!a.set_lid(wrong), "{wrong:#x}");
    }
    assert!(a.set_lid(old) && ctx.asyncs.next_event().unwrap().is_none());
    assert!(a.set_lid(0x77));
    let event = ctx.asyncs.read().unwrap();
    assert_eq!((event.event_type, event.element), (EventType::LID_CHANGE, 1));
    assert_eq!(lid(&ctx), 0x77);
    assert!(b.set_lid(old), "it is free now");
    let ethernet = fabric.device("c").link(Link::Ethernet).build();
    assert!(!ethernet.set_lid(5));
}

#[test]
fn uar_pages_are_limited_objects_or_part_of_the_context() {
    let fabric = Fabric::deterministic(1);
    let few = fabric.device("few").max_uars(2).build();
    let ctx = Ctx::new(&few);
    let (handle, page, _) = alloc_uar(&ctx.kernel).unwrap();
    assert_ne!(page, ctx.page);
    assert_eq!(alloc_uar(&ctx.kernel).unwrap_err(), Errno::ENOMEM);
    for handle in [handle, ctx.uar] {
        let mut command = Command::<1>::new(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY);
        command.handle_in(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, handle);
        // SAFETY: the command names no memory.
        unsafe { command.execute(&*ctx.kernel) }.unwrap();
    }
    assert_eq!(alloc_uar(&ctx.kernel).unwrap().1, ctx.page);
    let old = fabric.device("old").dynamic_uars(false).build();
    let kernel = old.open();
    let (_, resp) = open_kernel(&kernel, 3).unwrap();
    assert_eq!(resp.tot_bfregs, 16);
    assert_eq!(alloc_uar(&kernel).unwrap_err(), Errno::EPROTONOSUPPORT);
    let page = |number| kernel.doorbells(number * u64::from(page_size()), page_size() as usize);
    // Two registers in a page, so there are eight pages.
    for index in 0..8_u64 {
        page(index).unwrap();
        page(2 << 8 | index).unwrap();
    }
    assert_eq!(page(8).unwrap_err(), Errno::EINVAL);
    assert_eq!(page(5 << 8).unwrap_err(), Errno::EINVAL);
    // A length or an offset that is not that of a page.
    assert_eq!(kernel.doorbells(0, 2048).unwrap_err(), Errno::EINVAL);
    assert_eq!(kernel.doorbells(2048, page_size() as usize).unwrap_err(), Errno::EINVAL);
}

#[test]
fn xrc_domains_and_targets_are_shared_by_file() {
    let hca = hca();
    let (a, b) = (Ctx::new(&hca), Ctx::new(&hca));
    let file = std::fs::File::from(
        nix::sys::memfd::memfd_create(c"domain", nix::sys::memfd::MFdFlags::empty()).unwrap(),
    );
    let open = |ctx: &Ctx, create, exclusive| {
        control::xrcd::open(&ctx.kernel, Some(file.as_fd()), create, exclusive)
    };
    assert_eq!(errno(open(&a, false, false)), Errno::EAGAIN);
    let mine = open(&a, true, true).unwrap();
    assert_eq!(errno(open(&b, true, true)), Errno::EINVAL);
    let theirs = open(&b, false, false).unwrap();
    let target =
        a.qp_with(QpParents { xrcd: Some(&mine), ..QpParents::default() }, QpType::XrcRecv, 5).unwrap();
    let other = control::xrcd::open(&b.kernel, None, true, false).unwrap();
    assert_eq!(errno(control::qp::open(&other, target.qp_num(), 6, Uhw::none())), Errno::EINVAL);
    let opened = control::qp::open(&theirs, target.qp_num(), 6, Uhw::none()).unwrap();
    assert_eq!(theirs.destroy().unwrap_err().1.errno(), Errno::EBUSY);
    unused!(target.destroy()).unwrap();
    // It still exists for the context that opened it.
    hca.with_device(|device, _| assert!(device.qps.contains_key(&opened.qp_num())));
    let number = opened.qp_num();
    unused!(opened.destroy()).unwrap();
    hca.with_device(|device, _| assert!(!device.qps.contains_key(&number)));
    let (pd, cq) = (a.pd(), a.cq());
    let srq = a.srq(SrqParents { pd: &pd, xrcd: Some(&mine), cq: Some(&cq) }, SrqType::Xrc).unwrap();
    assert!(srq.srq_num().is_some_and(|n| n != 0));
}

#[test]
fn windows_groups_and_addresses_are_checked() {
    let ctx = Ctx::new(&hca());
    let (pd, cq) = (ctx.pd(), ctx.cq());
    let mw = control::mw::alloc(&pd, MwType::Type2, Uhw::none()).unwrap();
    assert_ne!(mw.rkey(), 0);
    let parents = QpParents { pd: Some(&pd), send_cq: Some(&cq), recv_cq: Some(&cq), ..QpParents::default() };
    let ud = ctx.qp_with(parents, QpType::Ud, 5).unwrap();
    let group = uverbs_core::attr::Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    control::mcast::attach(&ud, group, 0).unwrap();
    control::mcast::attach(&ud, group, 0).unwrap();
    let (ud, e) = unused!(ud.destroy()).unwrap_err();
    assert_eq!(e.errno(), Errno::EBUSY);
    control::mcast::detach(&ud, group, 0).unwrap();
    assert_eq!(errno(control::mcast::detach(&ud, group, 0)), Errno::EINVAL);
    unused!(ud.destroy()).unwrap();
    let attr = AhAttr::new(1);
    // RoCE needs a global route.
    assert_eq!(errno(control::ah::create(&pd, &attr, Uhw::none())), Errno::EINVAL);
    let grh = GlobalRoute::new(group).sgid_index(3);
    let mut resp = uverbs_uapi::mlx5::mlx5_ib_create_ah_resp::default();
    let ah = control::ah::create(&pd, &attr.grh(Some(grh)), Uhw::answer(resp.as_mut_bytes())).unwrap();
    assert_eq!(resp.dmac, [0x33, 0x33, 0, 0, 0, 1]);
    ah.destroy().unwrap();
}

#[test]
fn any_room_for_an_answer_suffices_or_is_an_error() {
    let ctx = Ctx::new(&hca());
    for room in 0..8 {
        let mut answer = vec![0; room];
        let request = ib_uverbs_alloc_pd::default();
        let mut command = Command::invoke_write(3, &request, &mut answer, Uhw::none());
        // SAFETY: the command names no memory.
        let result = unsafe { command.execute(&*ctx.kernel) };
        assert_eq!(result.is_ok(), room > 0, "{room}");
    }
}

#[test]
fn the_clock_page_shows_a_clock_of_nanoseconds() {
    let ctx = Ctx::new(&hca());
    let map = |command: u64| {
        let (offset, len) = ((command << 8) * u64::from(page_size()), page_size() as usize);
        ctx.kernel.mmap(offset, len, uverbs_core::kernel::Protection::Read)
    };
    let page = map(7).unwrap();
    let word = |i: usize| {
        // SAFETY: the mapping has 512 words.
        let at = unsafe { page.as_ptr().cast::<AtomicU64>().add(i) };
        // SAFETY: the mapping is alive, and made of atomics.
        unsafe { at.as_ref() }.load(Ordering::Relaxed)
    };
    assert_eq!((word(0), word(4) as u32, word(4) >> 32), (0, 1, 0));
    assert!(word(1) > 1_500_000_000_000_000_000);
    assert!(map(6).is_err());
}
