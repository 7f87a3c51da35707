// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's commands.

use super::rig::{CQ_DEPTH, Ctx, DEPTH, End, Memory, Shape, create_qp, pair};
use crate::Stat;
use crate::device::{QpKind, State};
use crate::{Fabric, Generation, Mistake};
use std::sync::Arc;
use uverbs_core::attr::{AccessFlags, EventType, QpAttr, QpAttrMask as M, QpState, QpType};
use uverbs_core::control;
use uverbs_core::kernel::{Command, Kernel, Protection, Uhw, page_size};
use uverbs_core::{Errno, Error};
use uverbs_uapi::efa::{
    EFA_CREATE_CQ_WITH_SGID, EFA_IB_ATTR_QUERY_MR_HANDLE, EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY,
    EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, EFA_IB_METHOD_MR_QUERY, EFA_QUERY_DEVICE_CAPS_RDMA_WRITE,
    efa_ibv_ex_query_device_resp,
};
use uverbs_uapi::ids::UVERBS_OBJECT_MR;
use zerocopy::IntoBytes;

/// The errno of an error, independent of its message.
fn errno<T>(result: Result<T, Error>) -> Errno {
    result.err().expect("it was not refused").errno()
}

#[test]
fn objects_are_counted_and_destroyed_with_their_context() {
    let (_fabric, a, b) = pair(1);
    let (x, y) = (End::written(&a, Shape::default()), End::written(&b, Shape::default()));
    x.ah_to(&y);
    let counts = a.objects();
    let of = |name| counts.get(name).copied().unwrap_or(0);
    assert_eq!(["pd", "mr", "cq", "qp", "ah"].map(of), [1; 5]);
    assert_eq!(x.busy(), [Errno::EBUSY; 2]);
    assert!(a.objects().is_empty(), "{:?}", a.objects());
    // Nothing is left in the device: as many contexts can be opened as there are pages.
    for _ in 0..600 {
        drop(Ctx::new(&a));
    }
}

#[test]
fn the_device_says_what_it_can_do() {
    for generation in [Generation::First, Generation::Third, Generation::Fifth] {
        let device = Fabric::deterministic(1).device("efa_0").generation(generation).build();
        let ctx = Ctx::new(&device);
        let mut private = efa_ibv_ex_query_device_resp::default();
        // SAFETY: the request names no memory.
        let uhw = unsafe { Uhw::new(&[], private.as_mut_bytes()) };
        let attr = control::query::device(&ctx.kernel, uhw).unwrap();
        assert_eq!((attr.vendor_id, attr.vendor_part_id & !7), (0x1d0f, 0xefa0));
        let writes = private.device_caps & EFA_QUERY_DEVICE_CAPS_RDMA_WRITE != 0;
        assert_eq!(writes, generation >= Generation::Third);
        assert_eq!(ctx.resp.inline_buf_size_ex, if generation >= Generation::Fourth { 80 } else { 32 });
        let port = control::query::port(&ctx.kernel, 1_u8).unwrap();
        assert_eq!((port.gid_tbl_len, port.max_msg_sz, port.lid), (1, 8928, 0));
        assert_eq!(errno(control::query::port(&ctx.kernel, 2_u8)), Errno::EINVAL);
        assert_eq!(control::query::gid_table(&ctx.kernel).unwrap()[0].gid, ctx.gid());
        assert_eq!(errno(control::query::gid_entry(&ctx.kernel, 1_u8, 1)), Errno::EINVAL);
        assert_eq!(control::query::pkey(&ctx.kernel, 1_u8, 0).unwrap(), 0xffff);
    }
}

#[test]
fn a_program_must_know_the_limit_of_a_batch() {
    let device = Fabric::deterministic(1).device("efa_0").max_tx_batch(64).build();
    assert_eq!(errno(Ctx::try_new(&device, 2).map(|_| ())), Errno::EOPNOTSUPP);
    assert_eq!(Ctx::new(&device).resp.max_tx_batch, 64);
}

#[test]
fn queues_of_wrong_sizes_and_kinds_are_refused() {
    let (_fabric, a, _) = pair(1);
    let ctx = Ctx::new(&a);
    assert_eq!(errno(ctx.cq_with(24, 2, 0, None)), Errno::EINVAL);
    assert_eq!(errno(ctx.cq_with(16, 2, EFA_CREATE_CQ_WITH_SGID, None)), Errno::EINVAL);
    assert_eq!(errno(ctx.cq_with(32, 3, 0, None)), Errno::EINVAL);
    let (cq, resp) = ctx.cq_with(32, 2, 0, None).unwrap();
    assert_eq!(
        (resp.q_mmap_size, resp.comp_mask, cq.cqe()),
        ((u64::from(CQ_DEPTH) * 64).next_multiple_of(page_size().into()), 0, CQ_DEPTH)
    );
    let pd = ctx.pd();
    let make = |shape, sends, receives| create_qp(&pd, &cq, shape, sends, receives).map(|_| ());
    let rc = Shape { qp_type: QpType::Rc, ..Shape::default() };
    assert_eq!(errno(make(rc, 64, 64)), Errno::EOPNOTSUPP);
    assert_eq!(errno(make(Shape::default(), 8192, 64)), Errno::EINVAL);
    assert_eq!(errno(make(Shape::default(), 64, 65_536)), Errno::EINVAL);
    assert_eq!(errno(make(Shape::default(), 3, 64)), Errno::EINVAL, "a ring that is no power of two");
    assert_eq!(errno(make(Shape::default(), 64, 3)), Errno::EINVAL);
    make(Shape::default(), 64, 64).unwrap();
}

#[test]
fn offsets_map_only_what_they_stand_for() {
    let (_fabric, a, _) = pair(1);
    let ctx = Ctx::new(&a);
    let (cq, resp) = ctx.cq_with(16, 2, 0, None).unwrap();
    let pd = ctx.pd();
    let (qp, made) = create_qp(&pd, &cq, Shape::default(), DEPTH, DEPTH).unwrap();
    let map =
        |kernel: &Arc<dyn Kernel>, key, len| kernel.mmap(key, len, Protection::Read).map(|map| map.len());
    let (ring, page) = (resp.q_mmap_size as usize, page_size() as usize);
    assert_eq!(map(&ctx.kernel, resp.q_mmap_key, ring), Ok(ring));
    assert!(!ctx.kernel.mmap(resp.q_mmap_key, ring, Protection::Read).unwrap().is_writable());
    assert_eq!(map(&ctx.kernel, resp.q_mmap_key, ring + page), Err(Errno::EINVAL));
    assert_eq!(map(&ctx.kernel, resp.q_mmap_key + 8, ring), Err(Errno::EINVAL));
    assert_eq!(map(&ctx.kernel, made.sq_db_mmap_key, page), Err(Errno::EINVAL), "doorbells are no memory");
    assert_eq!(ctx.kernel.doorbells(made.rq_mmap_key, page).err(), Some(Errno::EINVAL));
    assert_eq!(map(&Ctx::new(&a).kernel, resp.q_mmap_key, ring), Err(Errno::EINVAL), "of another context");
    // SAFETY: its queues are the kernel's.
    unsafe { qp.destroy() }.unwrap();
    assert_eq!(map(&ctx.kernel, made.rq_mmap_key, page), Err(Errno::EINVAL));
    assert_eq!(ctx.kernel.doorbells(made.sq_db_mmap_key, page).err(), Some(Errno::EINVAL));
}

#[test]
fn rights_and_interconnects_of_regions() {
    let (_fabric, a, _) = pair(1);
    let ctx = Ctx::new(&a);
    let pd = ctx.pd();
    let memory = Memory::new(8192);
    assert_eq!(errno(ctx.reg(&pd, memory, AccessFlags::REMOTE_WRITE)), Errno::EINVAL);
    assert_eq!(
        errno(ctx.reg(&pd, memory, AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC)),
        Errno::EOPNOTSUPP
    );
    let mr = ctx.reg(&pd, memory, AccessFlags::RELAXED_ORDERING).unwrap();
    assert_ne!(mr.lkey(), mr.rkey());
    assert_eq!(mr.query().unwrap().length, 8192);
    let (mut validity, mut id) = (0_u16, 9_u16);
    let mut command = Command::<3>::new(UVERBS_OBJECT_MR, EFA_IB_METHOD_MR_QUERY);
    command
        .handle_in(EFA_IB_ATTR_QUERY_MR_HANDLE, mr.handle())
        .output(EFA_IB_ATTR_QUERY_MR_RESP_IC_ID_VALIDITY, &mut validity)
        .output(EFA_IB_ATTR_QUERY_MR_RESP_RECV_IC_ID, &mut id);
    // SAFETY: the command names no memory.
    unsafe { command.execute(&*ctx.kernel) }.unwrap();
    assert_eq!((validity, id), (7, 0));
    mr.destroy().unwrap();
}

#[test]
fn states_follow_each_other_and_are_reported() {
    let (_fabric, a, _) = pair(1);
    let x = End::written(&a, Shape { rnr_retry: 5, ..Shape::default() });
    let query = |mask| x.qp.query(mask);
    let (attr, init) = query(M::STATE | M::QKEY | M::RNR_RETRY | M::CAP).unwrap();
    assert_eq!(
        (attr.qp_state, attr.qkey, attr.rnr_retry, init.cap.max_send_wr),
        (QpState::RTS, 0x1234, 5, DEPTH)
    );
    assert_eq!(errno(query(M::AV)), Errno::EOPNOTSUPP);
    let to = |state| x.modify(&QpAttr::new().qp_state(state), M::STATE);
    assert_eq!(errno(to(QpState::INIT)), Errno::EINVAL);
    let path = QpAttr::new().qp_state(QpState::RTS);
    assert_eq!(errno(x.modify(&path, M::STATE | M::TIMEOUT)), Errno::EOPNOTSUPP);
    to(QpState::SQD).unwrap();
    to(QpState::RTS).unwrap();
    to(QpState::ERR).unwrap();
    assert_eq!(errno(to(QpState::RTS)), Errno::EINVAL);
    to(QpState::RESET).unwrap();
}

#[test]
fn an_armed_queue_raises_one_event_and_an_unarmed_one_none() {
    let (_fabric, a, b) = pair(1);
    let shape = Shape { events: true, ..Shape::default() };
    let (mut x, mut y) = (End::written(&a, shape), End::written(&b, shape));
    let to_y = x.ah_to(&y);
    let channel = |end: &End| {
        let channel = end.channel.as_ref().unwrap();
        channel.set_nonblocking(true).unwrap();
        channel.next_event().unwrap()
    };
    for i in 0..3 {
        y.recv(i, 0, 8);
    }
    x.send(0, 0, 8, &y, to_y);
    assert_eq!((channel(&y), y.all().len()), (None, 1));
    y.arm(0);
    x.send(1, 0, 8, &y, to_y);
    x.send(2, 0, 8, &y, to_y);
    assert_eq!((channel(&y), channel(&y)), (Some(7), None));
    // It is armed while there are completions that were not taken.
    y.arm(1);
    assert_eq!((channel(&y), y.all().len()), (Some(7), 2));
    y.arm(2);
    assert_eq!(channel(&y), None);
    let End { qp, cq_handle, .. } = y;
    // SAFETY: its queues are the kernel's.
    unsafe { qp.destroy() }.unwrap();
    assert_eq!(cq_handle.destroy().unwrap().comp_events_reported, 2);
}

#[test]
fn a_removed_device_raises_an_event_and_answers_nothing() {
    let (fabric, a, b) = pair(1);
    let (mut x, y) = (End::written(&a, Shape::default()), End::written(&b, Shape::default()));
    let to_y = x.ah_to(&y);
    b.set_link_up(false);
    let event = y.ctx.asyncs.next_event().unwrap().unwrap();
    assert_eq!((event.event_type, event.element), (EventType::PORT_ERR, 1));
    b.set_link_up(true);
    assert_eq!(y.ctx.asyncs.next_event().unwrap().unwrap().event_type, EventType::PORT_ACTIVE);
    b.unplug();
    assert_eq!(y.ctx.asyncs.next_event().unwrap().unwrap().event_type, EventType::DEVICE_FATAL);
    assert_eq!(errno(control::pd::alloc(&y.ctx.kernel, Uhw::none())), Errno::EIO);
    x.send(0, 0, 8, &y, to_y);
    fabric.run();
    assert_eq!(x.status(), 15);
    y.ring_send(1);
    let End { qp, mr, .. } = y;
    mr.destroy().unwrap();
    // SAFETY: its queues are the kernel's.
    unsafe { qp.destroy() }.unwrap();
    assert!(b.objects().is_empty() && b.violations().is_empty());
    // A killed device can be opened again.
    a.kill();
    assert_eq!(errno(control::pd::alloc(&x.ctx.kernel, Uhw::none())), Errno::EIO);
    Ctx::new(&a).pd();
}

#[test]
fn an_operator_sees_the_port_the_queues_and_the_repairs() {
    let (fabric, a, b) = pair(1);
    let (mut x, mut y) = (End::written(&a, Shape::default()), End::written(&b, Shape::default()));
    let to_y = x.ah_to(&y);
    let quiet = a.stat();
    assert_eq!((quiet.sent, quiet.received, quiet.repairs), (0, 0, 0));
    fabric.loss(0.3);
    for i in 0..20 {
        y.recv(i, 0, 8);
        x.send(i, 0, 8, &y, to_y);
    }
    fabric.run();
    assert_eq!((x.all().len(), y.all().len()), (20, 20));
    let stat = a.stat();
    assert!(stat.sent > 20 && stat.received >= 20 && stat.repairs > 0, "{stat}");
    assert_eq!((stat.repairs, stat.up), (a.repairs(), true));
    let qp = &stat.qps[0];
    assert_eq!((stat.qps.len(), qp.qpn, qp.kind, qp.state), (1, x.qpn.into(), QpKind::Srd, State::Rts));
    assert_eq!(Stat::parse(&stat.to_string()), Some(stat));
    x.to(QpState::ERR);
    assert_eq!(a.stat().qps[0].state, State::Err);
    drop(x);
    a.set_link_up(false);
    let stat = a.stat();
    assert_eq!((stat.up, stat.qps), (false, vec![]));
}

#[test]
fn a_context_has_no_connection_manager() {
    let (_fabric, a, _) = pair(1);
    assert_eq!(errno(a.open().connection_manager()), Errno::ENOENT);
    assert_eq!(a.open().device_clock(), None);
}

#[test]
fn a_device_has_a_limited_number_of_objects() {
    let (_fabric, a, _) = pair(1);
    let ctx = Ctx::new(&a);
    let pds: Vec<_> = (0..256).map(|_| ctx.pd()).collect();
    assert_eq!(errno(control::pd::alloc(&ctx.kernel, Uhw::none())), Errno::ENOMEM);
    let (cq, _) = ctx.cq_with(16, 2, 0, None).unwrap();
    let qps: Vec<_> = (0..256).map(|_| create_qp(&pds[0], &cq, Shape::default(), 1, 1).unwrap()).collect();
    assert_eq!(errno(create_qp(&pds[0], &cq, Shape::default(), 1, 1)), Errno::ENOMEM);
    drop(qps);
}

#[test]
fn mistakes_are_recorded() {
    let (_fabric, a, b) = pair(1);
    let mut x = End::written(&a, Shape::default());
    let y = End::written(&b, Shape::default());
    x.ring_send(DEPTH + 1);
    x.ring_recv(DEPTH + 1);
    x.ring_at(4);
    let mut meta = x.meta(0, 0, &y, 0);
    meta.ctrl1 &= 0x7f;
    x.post(meta, &[]);
    let kinds: Vec<_> = a.take_violations_if(|_| true).into_iter().map(|v| v.mistake).collect();
    let overrun = Mistake::RingOverrun { posted: DEPTH as u16 + 1, size: DEPTH };
    assert_eq!(kinds, [overrun.clone(), overrun, Mistake::NoSuchRegister(4), Mistake::Reserved]);
    assert_eq!(kinds[2].kind(), "NoSuchRegister");
    assert_eq!(x.qp.query(M::STATE).unwrap().0.qp_state, QpState::ERR);
    let mut z = End::written(&a, Shape::default());
    let meta = z.meta(0, 0, &y, 0);
    z.posted = DEPTH as u16;
    z.write_entry(meta, &[]);
    z.ring_send(1);
    assert_eq!(a.violations()[0].mistake, Mistake::WrongPhase);
}

#[test]
fn a_doorbell_without_new_entries_is_no_mistake_in_any_state() {
    let (_fabric, a, b) = pair(1);
    let (mut x, y) = (End::written(&a, Shape::default()), End::written(&b, Shape::default()));
    let ah = x.ah_to(&y);
    x.recv(0, 0, 8);
    x.send(0, 0, 8, &y, ah);
    x.ring_send(1);
    x.ring_recv(1);
    x.to(QpState::RESET);
    // As libefa does for a receive that it refuses in RESET.
    x.ring_recv(0);
    x.ring_send(0);
    assert!(a.violations().is_empty(), "{:?}", a.violations());
    x.ring_recv(1);
    x.ring_send(1);
    let kinds: Vec<_> = a.take_violations_if(|_| true).into_iter().map(|v| v.mistake).collect();
    assert_eq!(kinds, [Mistake::NotReady, Mistake::NotReady]);
}
