// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands with driver-private data: the methods that mlx5_ib adds, and the creation of objects on queue memory.
#![expect(unsafe_code)]
// UNSAFETY: the input of a command may contain addresses that the kernel or the device uses, so executing it is unsafe.
// The inputs here contain no address, or those of memory that the new object owns.

use crate::cq::CqeCompression;
use crate::memory::QueueBuf;
use crate::memory::dbrec::DbRec;
use std::sync::Arc;
use uverbs_core::attr::{
    CqInitAttr, FlowAttr, QpAttr, QpAttrMask, QpCap, QpInitAttr, QpRateLimitAttr, SrqInitAttr, WqInitAttr,
};
use uverbs_core::control::{
    CompChannelHandle, CountersHandle, CqHandle, DmHandle, FlowHandle, PdHandle, QpHandle, QpParents,
    RwqIndTableHandle, SrqHandle, SrqParents, WqHandle, cq, dm, flow, locked, qp, srq, wq,
};
use uverbs_core::kernel::{Command, Kernel, Mapping, Protection, Uhw, page_size};
use uverbs_core::{Errno, Error, Result};
use uverbs_uapi::ids::{UVERBS_OBJECT_DM, UVERBS_OBJECT_PD};
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET,
    MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH,
    MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET,
    MLX5_IB_ATTR_QUERY_PD_HANDLE, MLX5_IB_ATTR_QUERY_PD_RESP_PDN, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE,
    MLX5_IB_METHOD_DM_QUERY, MLX5_IB_METHOD_PD_QUERY, MLX5_IB_METHOD_UAR_OBJ_ALLOC,
    MLX5_IB_METHOD_UAR_OBJ_DESTROY, MLX5_IB_OBJECT_UAR,
};
use uverbs_uapi::mlx5::{
    MLX5_IB_MMAP_CLOCK_INFO, MLX5_IB_MMAP_CORE_CLOCK, mlx5_ib_alloc_ucontext_req_v2,
    mlx5_ib_alloc_ucontext_resp, mlx5_ib_burst_info, mlx5_ib_create_cq, mlx5_ib_create_cq_resp,
    mlx5_ib_create_flow, mlx5_ib_create_qp, mlx5_ib_create_qp_resp, mlx5_ib_create_qp_rss,
    mlx5_ib_create_srq, mlx5_ib_create_srq_resp, mlx5_ib_create_wq, mlx5_ib_create_wq_resp,
    mlx5_ib_flow_counters_data, mlx5_ib_flow_counters_desc, mlx5_ib_modify_qp, mlx5_ib_modify_qp_resp,
    mlx5_ib_modify_wq, mlx5_ib_resize_cq,
};
use zerocopy::IntoBytes;

fn execute<const N: usize>(command: &mut Command<'_, N>, kernel: &dyn Kernel) -> Result<(), Errno> {
    // SAFETY: the inputs of this module's commands are numbers and handles; they name no memory.
    unsafe { command.execute(kernel) }
}

/// A UAR object that was allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UarObject {
    pub(crate) handle: u32,
    pub(crate) mmap_offset: u64,
    pub(crate) length: u32,
    pub(crate) page_id: u32,
}

/// Allocates a UAR; `uar_type` is `MLX5_IB_UAPI_UAR_ALLOC_TYPE_*`.
pub(crate) fn alloc_uar(kernel: &Arc<dyn Kernel>, uar_type: u64) -> Result<UarObject> {
    const VERB: &str = "alloc_uar";
    let (mut mmap_offset, mut length, mut page_id) = (0_u64, 0_u32, 0_u32);
    let mut command = Command::<5>::new(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC);
    command
        .handle_new(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)
        .constant(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE, uar_type)
        .output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, &mut mmap_offset)
        .output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &mut length)
        .output(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &mut page_id);
    execute(&mut command, &**kernel)
        .map_err(|errno| Error::os(VERB, format!("device {}", kernel.name()), errno))?;
    let handle = command
        .handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE)
        .ok_or_else(|| Error::protocol(VERB, "no handle of the new object"))?;
    Ok(UarObject { handle, mmap_offset, length, page_id })
}

/// Frees a UAR.
pub(crate) fn destroy_uar(kernel: &dyn Kernel, handle: u32) -> Result<(), Errno> {
    let mut command = Command::<1>::new(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY);
    execute(command.handle_in(MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE, handle), kernel)
}

/// Private data of the context.
pub(crate) fn context<'a>(
    request: &'a mlx5_ib_alloc_ucontext_req_v2,
    resp: &'a mut mlx5_ib_alloc_ucontext_resp,
) -> Uhw<'a> {
    // SAFETY: the struct has no address.
    unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) }
}

/// The parameters of a new CQ, except its memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CqRequest {
    /// Bytes of an entry.
    pub(crate) cqe_size: u32,
    /// `MLX5_IB_CREATE_CQ_FLAGS_*`
    pub(crate) flags: u16,
    /// The UAR page that contains the CQ's arm doorbell.
    pub(crate) uar_page_index: u16,
    /// What compressed entries have of their own; `None` if entries are not compressed.
    pub(crate) compression: Option<CqeCompression>,
}

/// Leaks `memory` if it is unknown whether the kernel still has the object, because the answer was invalid. (The caller
/// has tried to destroy the object.)
fn unless_unsure<T, M>(result: Result<T>, memory: impl FnOnce() -> M) -> Result<T> {
    result.inspect_err(|error| leak_if_unsure(error, memory))
}

fn leak_if_unsure<M>(error: &Error, memory: impl FnOnce() -> M) {
    if error.errno() == Errno::EPROTO {
        core::mem::forget(memory());
    }
}

/// Names the limit of locked memory in the error of a creation, if it is the cause: the kernel pins the queues and the page of
/// the doorbell record (`mlx5_ib_db_map_user` in the kernel's drivers/infiniband/hw/mlx5/doorbell.c).
fn explain<'a>(
    kernel: &Arc<dyn Kernel>,
    error: Error,
    bufs: impl IntoIterator<Item = &'a Arc<QueueBuf>>,
    dbrec: Option<&DbRec>,
) -> Error {
    let queues = bufs.into_iter().map(|buf| (buf.addr(), buf.len() as u64));
    locked::explain(&**kernel, error, queues.chain(dbrec.map(|dbrec| (dbrec.addr(), 8))))
}

/// Creates a CQ on `buf`, and returns its number with it. The caller keeps the memory until the CQ is destroyed.
pub(crate) fn create_cq(
    kernel: &Arc<dyn Kernel>,
    attr: &CqInitAttr,
    channel: Option<&CompChannelHandle>,
    user_handle: u64,
    request: CqRequest,
    buf: &Arc<QueueBuf>,
    dbrec: DbRec,
) -> Result<(CqHandle, u32, DbRec)> {
    let request = mlx5_ib_create_cq {
        buf_addr: buf.addr(),
        db_addr: dbrec.addr(),
        cqe_size: request.cqe_size,
        cqe_comp_en: request.compression.is_some().into(),
        cqe_comp_res_format: request.compression.map_or(0, CqeCompression::bit),
        flags: request.flags,
        uar_page_index: request.uar_page_index,
        ..Default::default()
    };
    let mut resp = mlx5_ib_create_cq_resp::default();
    // SAFETY: the addresses are those of `buf` and `dbrec`, which the new CQ owns: it keeps them until the kernel
    // has destroyed its object, or leaks them (`Kept`).
    let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
    let created = cq::create(kernel, attr, channel, user_handle, uhw);
    match created {
        Ok(handle) => Ok((handle, resp.cqn, dbrec)),
        Err(error) => {
            let error = explain(kernel, error, [buf], Some(&dbrec));
            leak_if_unsure(&error, || (Arc::clone(buf), dbrec));
            Err(error)
        }
    }
}

/// Resizes a CQ: the device writes further completions to `buf`.
pub(crate) fn resize_cq(handle: &CqHandle, cqe: u32, cqe_size: u32, buf: &Arc<QueueBuf>) -> Result<u32> {
    let request = mlx5_ib_resize_cq { buf_addr: buf.addr(), cqe_size: cqe_size as u16, ..Default::default() };
    // SAFETY: the address is that of the new ring, which the CQ keeps until the kernel's object is destroyed, or leaks
    // (`Kept`).
    let uhw = unsafe { Uhw::new(request.as_bytes(), &mut []) };
    handle.resize(cqe, uhw).map_err(|error| explain(handle.kernel(), error, [buf], None))
}

/// Creates an SRQ on `buf`, and returns its number with it. The caller keeps the memory until the SRQ is destroyed.
pub(crate) fn create_srq(
    parents: SrqParents<'_>,
    attr: &SrqInitAttr,
    user_handle: u64,
    uidx: u32,
    buf: &Arc<QueueBuf>,
    dbrec: &Arc<DbRec>,
) -> Result<(SrqHandle, u32)> {
    let request =
        mlx5_ib_create_srq { buf_addr: buf.addr(), db_addr: dbrec.addr(), uidx, ..Default::default() };
    let mut resp = mlx5_ib_create_srq_resp::default();
    // SAFETY: the addresses are those of the queue's own memory, which the new object owns: it keeps it until the kernel has
    // destroyed the kernel's object, or leaks it (`Kept`).
    let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
    let created = srq::create(parents, attr, user_handle, uhw)
        .map_err(|error| explain(parents.pd.kernel(), error, [buf], Some(dbrec)));
    let (handle, _) = unless_unsure(created, || (Arc::clone(buf), Arc::clone(dbrec)))?;
    Ok((handle, resp.srqn))
}

/// The memory of a QP.
#[derive(Clone, Debug, Default)]
pub(crate) struct QpMemory {
    /// Both queues; or the receive queue, where the send queue is apart.
    pub(crate) buf: Option<Arc<QueueBuf>>,
    /// The send queue of a raw packet QP.
    pub(crate) sq_buf: Option<Arc<QueueBuf>>,
    /// The doorbell record.
    pub(crate) dbrec: Option<Arc<DbRec>>,
}

/// Creates a QP on this memory. The caller keeps the memory until the QP is destroyed. The addresses in `request` are
/// filled in here.
pub(crate) fn create_qp(
    parents: QpParents<'_>,
    attr: &QpInitAttr,
    user_handle: u64,
    mut request: mlx5_ib_create_qp,
    memory: &QpMemory,
) -> Result<(QpHandle, QpCap, mlx5_ib_create_qp_resp)> {
    request.buf_addr = memory.buf.as_ref().map_or(0, |buf| buf.addr());
    request.db_addr = memory.dbrec.as_ref().map_or(0, |dbrec| dbrec.addr());
    if let Some(buf) = &memory.sq_buf {
        request.sq_buf_addr = buf.addr();
    }
    let mut resp = mlx5_ib_create_qp_resp::default();
    // SAFETY: the addresses are those of the queues' own memory, which the new object owns: it keeps it until the kernel has
    // destroyed the kernel's object, or leaks it (`Kept`).
    let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
    let created = qp::create(parents, attr, user_handle, uhw).map_err(|error| match parents.pd {
        Some(pd) => {
            let bufs = memory.buf.iter().chain(&memory.sq_buf);
            explain(pd.kernel(), error, bufs, memory.dbrec.as_deref())
        }
        None => error,
    });
    let (handle, cap) = unless_unsure(created, || memory.clone())?;
    Ok((handle, cap, resp))
}

/// Creates a DC target, which has no queue memory.
pub(crate) fn create_dct(
    parents: QpParents<'_>,
    attr: &QpInitAttr,
    user_handle: u64,
    request: mlx5_ib_create_qp,
) -> Result<QpHandle> {
    // `sq_buf_addr` contains the DC access key.
    let request = mlx5_ib_create_qp { buf_addr: 0, db_addr: 0, ..request };
    let mut resp = mlx5_ib_create_qp_resp::default();
    // SAFETY: a target has no queues, so the request has no address.
    let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
    Ok(qp::create(parents, attr, user_handle, uhw)?.0)
}

/// Modifies a DC target and returns its number, if the kernel returns one.
pub(crate) fn modify_dct(
    handle: &QpHandle,
    attr: &QpAttr,
    mask: QpAttrMask,
    comp_mask: u32,
) -> Result<Option<u32>> {
    let request = mlx5_ib_modify_qp { comp_mask, ..Default::default() };
    let mut resp = mlx5_ib_modify_qp_resp::default();
    // SAFETY: the struct has no address.
    let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
    // SAFETY: the target's own handle (`Qp::modify`), whose state `modify_with` tracks; a target has no queues.
    unsafe { handle.modify(None, attr, mask, uhw) }?;
    let needed = core::mem::offset_of!(mlx5_ib_modify_qp_resp, dctn) + size_of_val(&resp.dctn);
    Ok((resp.response_length as usize >= needed).then_some(resp.dctn))
}

/// Private data of modifying a QP.
pub(crate) fn modify_qp<'a>(request: &'a mlx5_ib_modify_qp, resp: &'a mut mlx5_ib_modify_qp_resp) -> Uhw<'a> {
    // SAFETY: the struct has no address.
    unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) }
}

/// Sets the pacing of a QP.
pub(crate) fn modify_qp_rate_limit(handle: &QpHandle, limit: &QpRateLimitAttr) -> Result<()> {
    let burst_info = mlx5_ib_burst_info {
        max_burst_sz: limit.max_burst_sz,
        typical_pkt_sz: limit.typical_pkt_sz,
        ..Default::default()
    };
    let request = mlx5_ib_modify_qp { burst_info, ..Default::default() };
    let mut resp = mlx5_ib_modify_qp_resp::default();
    let attr = QpAttr::new().rate_limit(limit.rate_limit);
    // SAFETY: a change of the rate limit changes neither the QP's state nor its queues.
    unsafe { handle.modify(None, &attr, QpAttrMask::RATE_LIMIT, modify_qp(&request, &mut resp)) }
}

/// Maps the page with the device's clock.
pub(crate) fn map_core_clock(kernel: &dyn Kernel) -> Result<Mapping, Errno> {
    kernel.mmap(mmap_offset(MLX5_IB_MMAP_CORE_CLOCK, 0), page_size() as usize, Protection::Read)
}

/// Creates a WQ on `buf`. The caller keeps the memory until the WQ is destroyed. The addresses in `request` are filled
/// in here.
pub(crate) fn create_wq(
    pd: &PdHandle,
    cq: &CqHandle,
    attr: &WqInitAttr,
    user_handle: u64,
    mut request: mlx5_ib_create_wq,
    buf: &Arc<QueueBuf>,
    dbrec: &Arc<DbRec>,
) -> Result<(WqHandle, WqInitAttr)> {
    (request.buf_addr, request.db_addr) = (buf.addr(), dbrec.addr());
    let mut resp = mlx5_ib_create_wq_resp::default();
    // SAFETY: the addresses are those of the queue's own memory, which the new object owns: it keeps it until the kernel has
    // destroyed the kernel's object, or leaks it (`Kept`).
    let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
    let created = wq::create(pd, cq, attr, user_handle, uhw)
        .map_err(|error| explain(pd.kernel(), error, [buf], Some(dbrec)));
    unless_unsure(created, || (Arc::clone(buf), Arc::clone(dbrec)))
}

/// Private data of modifying a WQ.
pub(crate) fn modify_wq(request: &mlx5_ib_modify_wq) -> Uhw<'_> {
    // SAFETY: the struct has no address.
    unsafe { Uhw::new(request.as_bytes(), &mut []) }
}

/// Creates a QP that spreads packets.
pub(crate) fn create_rss_qp(
    pd: &PdHandle,
    table: &RwqIndTableHandle,
    user_handle: u64,
    request: &mlx5_ib_create_qp_rss,
) -> Result<QpHandle> {
    let mut resp = mlx5_ib_create_qp_resp::default();
    // SAFETY: the struct has no address.
    let uhw = unsafe { Uhw::new(request.as_bytes(), resp.as_mut_bytes()) };
    qp::create_rss(pd, table, user_handle, uhw)
}

/// Creates a steering rule with counters that the kernel does not know yet.
pub(crate) fn create_counted_flow(
    qp: &QpHandle,
    attr: &FlowAttr,
    counters: &CountersHandle,
    descs: &[mlx5_ib_flow_counters_desc],
    ncounters: u32,
) -> Result<FlowHandle> {
    let head = mlx5_ib_create_flow { ncounters_data: 1, ..Default::default() };
    let data = mlx5_ib_flow_counters_data {
        counters_data: descs.as_ptr().expose_provenance() as u64,
        ncounters,
        ..Default::default()
    };
    let request = [head.as_bytes(), data.as_bytes()].concat();
    // SAFETY: the address is that of `descs`, which the kernel only reads, during the command.
    let uhw = unsafe { Uhw::new(&request, &mut []) };
    flow::create(qp, attr, Some(counters), uhw)
}

/// Allocates device memory. Returns the object, its offset in the device, and the index of the page to map.
pub(crate) fn alloc_dm(
    kernel: &Arc<dyn Kernel>,
    length: u64,
    log_align: u32,
) -> Result<(DmHandle, u64, u16)> {
    let (mut start, mut page) = (0_u64, 0_u16);
    let handle = dm::alloc(kernel, length, log_align, |command| {
        command
            .output(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, &mut start)
            .output(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, &mut page);
    })?;
    Ok((handle, start, page))
}

/// The hardware's number of a protection domain.
pub(crate) fn query_pd(pd: &PdHandle) -> Result<u32> {
    let mut pdn = 0_u32;
    let mut command = Command::<2>::new(UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY);
    command
        .handle_in(MLX5_IB_ATTR_QUERY_PD_HANDLE, pd.handle())
        .output(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, &mut pdn);
    execute(&mut command, &**pd.kernel())
        .map_err(|errno| Error::os("query_pd", format!("pd {}", pd.handle()), errno))?;
    Ok(pdn)
}

/// Returns the offset of device memory in its first page, the index of that page, and the length in bytes.
pub(crate) fn query_dm(kernel: &Arc<dyn Kernel>, handle: u32) -> Result<(u64, u16, u64)> {
    let (mut start, mut page, mut length) = (0_u64, 0_u16, 0_u64);
    let mut command = Command::<4>::new(UVERBS_OBJECT_DM, MLX5_IB_METHOD_DM_QUERY);
    command
        .handle_in(MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE, handle)
        .output(MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET, &mut start)
        .output(MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX, &mut page)
        .output(MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH, &mut length);
    execute(&mut command, &**kernel)
        .map_err(|errno| Error::os("import_dm", format!("dm {handle} of {}", kernel.name()), errno))?;
    Ok((start, page, length))
}

/// Maps the page with the kernel's parameters of the device's clock.
pub(crate) fn map_clock_info(kernel: &dyn Kernel) -> Result<Mapping, Errno> {
    kernel.mmap(mmap_offset(MLX5_IB_MMAP_CLOCK_INFO, 0), page_size() as usize, Protection::Read)
}

/// The mmap(2) offset for a command (`MLX5_IB_MMAP_*`) and an index. The page number has the low 8 bits of the index,
/// the command in the next 8 bits, and the rest of the index above (`MLX5_IB_MMAP_CMD_SHIFT` and `get_extended_index()`
/// of `mlx5_ib`).
pub(crate) fn mmap_offset(command: u64, index: u32) -> u64 {
    let index = u64::from(index);
    (command << 8 | index & 0xff | index >> 8 << 16) * u64::from(page_size())
}
