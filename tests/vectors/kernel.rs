// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel of the reference run: a port that gives the same fixed answers, records the requests, and provides
//! doorbell pages that record the writes to them.
//!
//! The capabilities of the device are those in the recorded answers of the control trace; other configurations change a
//! few bytes.

use crate::mkeys::CTX;
use crate::trace::{Ioctl, Trace};
use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uverbs_core::Errno;
use uverbs_core::kernel::{DoorbellPage, DoorbellPort, Kernel, Mapping, Protection, RawCommand};
use uverbs_testkit::kernel::{Script, Scripted, mapping};
use uverbs_uapi::cmd::{
    IB_USER_VERBS_CMD_ALLOC_MW, IB_USER_VERBS_CMD_ALLOC_PD, IB_USER_VERBS_CMD_CREATE_AH,
    IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, IB_USER_VERBS_CMD_FLAG_EXTENDED, IB_USER_VERBS_CMD_OPEN_XRCD,
    IB_USER_VERBS_CMD_QUERY_QP, IB_USER_VERBS_CMD_REG_MR, IB_USER_VERBS_CMD_REREG_MR,
    IB_USER_VERBS_CMD_RESIZE_CQ, IB_USER_VERBS_EX_CMD_QUERY_DEVICE, ib_uverbs_create_ah,
    ib_uverbs_ex_query_device_resp, ib_uverbs_query_port_resp, ib_uverbs_resize_cq,
};
use uverbs_uapi::ids::{
    UVERBS_ATTR_CORE_IN, UVERBS_ATTR_CORE_OUT, UVERBS_ATTR_CREATE_CQ_CQE, UVERBS_ATTR_CREATE_CQ_RESP_CQE,
    UVERBS_ATTR_CREATE_QP_CAP, UVERBS_ATTR_CREATE_QP_RESP_CAP, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM,
    UVERBS_ATTR_CREATE_SRQ_MAX_SGE, UVERBS_ATTR_CREATE_SRQ_MAX_WR, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE,
    UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM,
    UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS,
    UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY,
    UVERBS_ATTR_QUERY_PORT_RESP, UVERBS_ATTR_UHW_IN, UVERBS_ATTR_UHW_OUT, UVERBS_ATTR_WRITE_CMD,
    UVERBS_METHOD_CQ_CREATE, UVERBS_METHOD_GET_CONTEXT, UVERBS_METHOD_INVOKE_WRITE, UVERBS_METHOD_QP_CREATE,
    UVERBS_METHOD_QUERY_GID_ENTRY, UVERBS_METHOD_QUERY_PORT, UVERBS_METHOD_SRQ_CREATE,
    UVERBS_OBJECT_ASYNC_EVENT, UVERBS_OBJECT_CQ, UVERBS_OBJECT_DEVICE, UVERBS_OBJECT_PD, UVERBS_OBJECT_QP,
    UVERBS_OBJECT_SRQ,
};
use uverbs_uapi::mlx5::cmds::{
    MLX5_IB_ATTR_QUERY_PD_RESP_PDN, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET,
    MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, MLX5_IB_METHOD_PD_QUERY, MLX5_IB_METHOD_UAR_OBJ_ALLOC,
    MLX5_IB_OBJECT_UAR,
};
use uverbs_uapi::mlx5::devx::{
    MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN, MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT,
    MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE, MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, MLX5_IB_METHOD_DEVX_OBJ_CREATE,
    MLX5_IB_METHOD_DEVX_OTHER, MLX5_IB_OBJECT_DEVX, MLX5_IB_OBJECT_DEVX_OBJ,
};
use uverbs_uapi::mlx5::{
    MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS, MLX5_IB_MMAP_CLOCK_INFO, MLX5_USER_INLINE_MODE_L2,
    mlx5_ib_alloc_ucontext_resp, mlx5_ib_create_ah_resp, mlx5_ib_create_cq, mlx5_ib_create_cq_resp,
    mlx5_ib_create_qp, mlx5_ib_create_qp_resp, mlx5_ib_create_srq, mlx5_ib_create_srq_resp,
};
use uverbs_uapi::verbs::RDMA_DRIVER_MLX5;
use zerocopy::{FromBytes, IntoBytes};

/// A write to a doorbell register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rung {
    /// mmap offset of the page.
    pub page: u64,
    /// Offset in the page.
    pub offset: u32,
    /// The bytes, of one register write or of a burst.
    pub bytes: Vec<u8>,
}

/// All writes to registers, in order.
pub(crate) type Rings = Arc<Mutex<Vec<Rung>>>;

#[derive(Debug)]
struct Page {
    page: u64,
    rings: Rings,
}

impl Page {
    fn note(&self, offset: u32, bytes: &[u8]) {
        let mut rings = self.rings.lock().unwrap_or_else(PoisonError::into_inner);
        rings.push(Rung { page: self.page, offset, bytes: bytes.to_vec() });
    }
}

impl DoorbellPort for Page {
    fn ring(&self, offset: u32, value: [u8; 8]) {
        self.note(offset, &value);
    }
    fn blueflame(&self, offset: u32, wqe: &[u8]) {
        self.note(offset, wqe);
    }
}

/// The driver-private requests, in order of creation.
#[derive(Debug, Default, Clone)]
pub(crate) struct Made {
    pub qps: Vec<mlx5_ib_create_qp>,
    pub cqs: Vec<(mlx5_ib_create_cq, u32)>,
    pub srqs: Vec<mlx5_ib_create_srq>,
    /// The commands for the firmware that create objects.
    pub commands: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct State {
    handle: u32,
    uar: u32,
    mkey: u32,
    window: u32,
    made: Made,
    /// Every command, if they are kept.
    ioctls: Option<Vec<Ioctl>>,
    /// The new object of the current command: attribute and handle.
    given: Option<(u16, u32)>,
}

/// The kernel of the reference run; see the module documentation.
pub(crate) struct FixedKernel {
    ctx: String,
    trace: Arc<Trace>,
    state: Mutex<State>,
    rings: Rings,
}

const CLOCK: [u64; 8] = [
    0,
    1_700_000_000_000_000_000,
    0x1234_5678_9abc,
    0x12345,
    27 << 32 | 0x800_0000,
    0x7fff_ffff_ffff_ffff,
    0,
    0,
];

fn bytes<T: IntoBytes + zerocopy::Immutable>(value: &T) -> &[u8] {
    value.as_bytes()
}

fn input<T: FromBytes>(c: &RawCommand<'_, '_>, id: u16) -> Option<T> {
    T::read_from_prefix(c.input(id)?).ok().map(|(value, _)| value)
}

/// A value from the start of an input that may be shorter, because drivers may leave out fields that they do not use.
fn input_padded<T: FromBytes + IntoBytes>(c: &RawCommand<'_, '_>, id: u16) -> T {
    let mut value = T::new_zeroed();
    if let Some(given) = c.input(id) {
        let n = given.len().min(size_of::<T>());
        value.as_mut_bytes()[..n].copy_from_slice(&given[..n]);
    }
    value
}

impl FixedKernel {
    pub(crate) fn new(ctx: &str, trace: &Arc<Trace>) -> Arc<Scripted<Self>> {
        Self::with_ioctls(ctx, trace, None)
    }

    /// One that keeps all commands. They are more work than the answers, so only [`walk`](crate::walk) has them.
    pub(crate) fn keeping(ctx: &str, trace: &Arc<Trace>) -> Arc<Scripted<Self>> {
        Self::with_ioctls(ctx, trace, Some(Vec::new()))
    }

    fn with_ioctls(ctx: &str, trace: &Arc<Trace>, ioctls: Option<Vec<Ioctl>>) -> Arc<Scripted<Self>> {
        let state = State {
            handle: 0,
            uar: 0x10,
            mkey: 0x18_1a00,
            window: 0x28_0b00,
            made: Made::default(),
            ioctls,
            given: None,
        };
        Arc::new(Scripted(Self {
            ctx: ctx.to_owned(),
            trace: Arc::clone(trace),
            state: Mutex::new(state),
            rings: Rings::default(),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The objects created so far.
    pub(crate) fn made(&self) -> Made {
        self.state().made.clone()
    }

    /// Every command since the last call, with its answer.
    pub(crate) fn take_ioctls(&self) -> Vec<Ioctl> {
        self.state().ioctls.as_mut().map(core::mem::take).expect("commands are kept")
    }

    /// The writes to doorbell registers since the last call.
    pub(crate) fn take_rings(&self) -> Vec<Rung> {
        core::mem::take(&mut *self.rings.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn context(&self) -> mlx5_ib_alloc_ucontext_resp {
        let mut resp: mlx5_ib_alloc_ucontext_resp = self.trace.context();
        match self.ctx.as_str() {
            "eth_cqe_v0" => resp.cqe_version = 0,
            "eth_l2" => resp.eth_min_inline = MLX5_USER_INLINE_MODE_L2,
            "eth_real_time_ts" => resp.comp_mask |= MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS,
            // As an old kernel, allocates the requested number of registers.
            "eth_legacy_uar" => resp.tot_bfregs = 16,
            _ => {}
        }
        resp
    }

    fn device(&self) -> ib_uverbs_ex_query_device_resp {
        let mut resp: ib_uverbs_ex_query_device_resp = self.trace.device();
        if self.ctx == "eth_no_atomics" {
            resp.base.atomic_cap = 0;
        }
        resp
    }

    fn invoke_write(&self, state: &mut State, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        const QUERY_DEVICE: u32 = IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED;
        let number: u32 = input(c, UVERBS_ATTR_WRITE_CMD).ok_or(Errno::EINVAL)?;
        match number {
            QUERY_DEVICE => {
                c.answer(UVERBS_ATTR_CORE_OUT, bytes(&self.device()));
                c.answer(UVERBS_ATTR_UHW_OUT, self.trace.device_private());
            }
            IB_USER_VERBS_CMD_ALLOC_PD => {
                let handle = state.handle();
                c.answer(UVERBS_ATTR_CORE_OUT, &handle.to_ne_bytes());
                c.answer(UVERBS_ATTR_UHW_OUT, &0x31_u32.to_ne_bytes());
            }
            IB_USER_VERBS_CMD_REG_MR => {
                let (handle, key) = (state.handle(), state.mkey);
                state.mkey += 0x100;
                c.answer(UVERBS_ATTR_CORE_OUT, bytes(&[handle, key, key]));
            }
            IB_USER_VERBS_CMD_REREG_MR => {
                let key = state.mkey;
                state.mkey += 0x100;
                c.answer(UVERBS_ATTR_CORE_OUT, bytes(&[key, key]));
            }
            IB_USER_VERBS_CMD_ALLOC_MW => {
                let (handle, key) = (state.handle(), state.window);
                state.window += 0x100;
                c.answer(UVERBS_ATTR_CORE_OUT, bytes(&[handle, key]));
            }
            IB_USER_VERBS_CMD_CREATE_AH => {
                let request: ib_uverbs_create_ah = input_padded(c, UVERBS_ATTR_CORE_IN);
                let handle = state.handle();
                c.answer(UVERBS_ATTR_CORE_OUT, &handle.to_ne_bytes());
                let resp = mlx5_ib_create_ah_resp {
                    response_length: 16,
                    dmac: dmac(request.attr.grh.dgid),
                    ..Default::default()
                };
                c.answer(UVERBS_ATTR_UHW_OUT, bytes(&resp));
            }
            IB_USER_VERBS_CMD_RESIZE_CQ => {
                let request: ib_uverbs_resize_cq = input_padded(c, UVERBS_ATTR_CORE_IN);
                c.answer(UVERBS_ATTR_CORE_OUT, bytes(&request.cqe));
            }
            IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL => {
                c.new_fd(UVERBS_ATTR_CORE_OUT, File::open("/dev/null").map_err(|_| Errno::EMFILE)?.into());
            }
            IB_USER_VERBS_CMD_OPEN_XRCD => {
                let handle = state.handle();
                c.answer(UVERBS_ATTR_CORE_OUT, &handle.to_ne_bytes());
            }
            IB_USER_VERBS_CMD_QUERY_QP => {
                c.answer(UVERBS_ATTR_CORE_OUT, &[]);
            }
            // Commands such as modify-QP and modify-SRQ always succeed, with an answer of zeros.
            _ => {
                c.answer(UVERBS_ATTR_CORE_OUT, &[]);
                c.answer(UVERBS_ATTR_UHW_OUT, &[]);
            }
        }
        Ok(())
    }

    fn run(&self, state: &mut State, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let ids: Vec<u16> = c.attrs().map(|a| a.id).collect();
        match (c.object(), c.method()) {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => return self.invoke_write(state, c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) => {
                c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &8_u32.to_ne_bytes());
                c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &1_u64.to_ne_bytes());
                c.answer(UVERBS_ATTR_UHW_OUT, bytes(&self.context()));
            }
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT) => {
                const INFINIBAND: u8 = 1;
                let mut port = self.trace.port().to_vec();
                if self.ctx == "ib" {
                    // The answer begins with this struct.
                    port[offset_of!(ib_uverbs_query_port_resp, link_layer)] = INFINIBAND;
                }
                c.answer(UVERBS_ATTR_QUERY_PORT_RESP, &port);
            }
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY) => {
                let index: u32 = input(c, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX).ok_or(Errno::EINVAL)?;
                c.answer(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &gid_entry(index)?);
            }
            (UVERBS_OBJECT_ASYNC_EVENT, _) => {
                c.new_fd(0, File::open("/dev/null").map_err(|_| Errno::EMFILE)?.into());
            }
            (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC) => {
                if self.ctx == "eth_legacy_uar" {
                    return Err(Errno::EOPNOTSUPP);
                }
                let page = state.uar;
                state.uar += 1;
                state.give(c, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
                let offset = 0x1001_0000_0000_u64 + u64::from(page - 0x10) * 0x1000_0000;
                c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, bytes(&offset));
                c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, bytes(&4096_u32));
                c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, bytes(&page));
            }
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => {
                let cqe: u32 = input(c, UVERBS_ATTR_CREATE_CQ_CQE).ok_or(Errno::EINVAL)?;
                state.made.cqs.push((input_padded(c, UVERBS_ATTR_UHW_IN), cqe));
                let cqn = 0x400 + state.made.cqs.len() as u32;
                state.give(c, 0);
                c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, bytes(&cqe));
                c.answer(UVERBS_ATTR_UHW_OUT, bytes(&mlx5_ib_create_cq_resp { cqn, reserved: 0 }));
            }
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE) => {
                let max_wr: u32 = input(c, UVERBS_ATTR_CREATE_SRQ_MAX_WR).ok_or(Errno::EINVAL)?;
                let max_sge: u32 = input(c, UVERBS_ATTR_CREATE_SRQ_MAX_SGE).ok_or(Errno::EINVAL)?;
                state.made.srqs.push(input_padded(c, UVERBS_ATTR_UHW_IN));
                let srqn = 0xd00 + state.made.srqs.len() as u32;
                state.give(c, 0);
                c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, bytes(&max_wr));
                c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, bytes(&max_sge));
                c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, bytes(&srqn));
                c.answer(UVERBS_ATTR_UHW_OUT, bytes(&mlx5_ib_create_srq_resp { srqn, reserved: 0 }));
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => {
                let cap: [u32; 5] = input(c, UVERBS_ATTR_CREATE_QP_CAP).ok_or(Errno::EINVAL)?;
                state.made.qps.push(input_padded(c, UVERBS_ATTR_UHW_IN));
                let qpn = 0xa1_b2c2 + state.made.qps.len() as u32;
                state.give(c, 0);
                c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, bytes(&cap));
                c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, bytes(&qpn));
                let bfreg_index = if self.ctx == "eth_legacy_uar" { 8 } else { 0 };
                let resp = mlx5_ib_create_qp_resp { bfreg_index, ..Default::default() };
                c.answer(UVERBS_ATTR_UHW_OUT, bytes(&resp));
            }
            (UVERBS_OBJECT_PD, MLX5_IB_METHOD_PD_QUERY) => {
                c.answer(MLX5_IB_ATTR_QUERY_PD_RESP_PDN, &0x31_u32.to_ne_bytes());
            }
            (MLX5_IB_OBJECT_DEVX, MLX5_IB_METHOD_DEVX_OTHER) if self.ctx == CTX => {
                c.answer(MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT, &signature_capabilities());
            }
            (MLX5_IB_OBJECT_DEVX_OBJ, MLX5_IB_METHOD_DEVX_OBJ_CREATE) if self.ctx == CTX => {
                let command = c.input(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN).ok_or(Errno::EINVAL)?.to_vec();
                let made = |made: &Made, opcode| {
                    made.commands.iter().filter(|command| command.starts_with(opcode)).count() as u32
                };
                let mut answer = [0; 32];
                match command[..] {
                    [2, 0, ..] => answer[8..12]
                        .copy_from_slice(&(0x3300 + made(&state.made, &CREATE_MKEY)).to_be_bytes()),
                    [6, 0, ..] => answer[16..20]
                        .copy_from_slice(&(0xa11 + made(&state.made, &CREATE_PSV)).to_be_bytes()),
                    _ => return Err(Errno::EOPNOTSUPP),
                }
                state.made.commands.push(command);
                state.give(c, MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE);
                c.answer(MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT, &answer);
            }
            // Objects of driver extensions that this device does not have, for example flow matchers.
            (object, _) if object >= 0x1000 && object != MLX5_IB_OBJECT_UAR && self.ctx != CTX => {
                return Err(Errno::EOPNOTSUPP);
            }
            // Destruction.
            _ => {
                for id in ids {
                    c.answer(id, &[]);
                }
            }
        }
        Ok(())
    }
}

impl State {
    fn handle(&mut self) -> u32 {
        self.handle += 1;
        self.handle
    }

    /// Returns the handle of a new object.
    fn give(&mut self, c: &mut RawCommand<'_, '_>, id: u16) {
        let handle = self.handle();
        self.given = Some((id, handle));
        c.new_handle(id, handle.into());
    }
}

/// `MLX5_CMD_OP_*`
const CREATE_MKEY: [u8; 2] = [2, 0];
const CREATE_PSV: [u8; 2] = [6, 0];

/// The answer to a query of capabilities: those about signatures (`sho`, `sigerr_domain_and_sig_type`, `sig_block_4048`, `sig_crc32c`,
/// `sig_crc64_xp10` of `struct mlx5_ifc_cmd_hca_cap_bits` in the kernel).
fn signature_capabilities() -> Vec<u8> {
    let mut answer = vec![0; 16 + 4096];
    for bit in [0x217, 0x480, 0x1f0, 0x148, 0x147] {
        answer[16 + bit / 8] |= 0x80 >> (bit % 8);
    }
    answer
}

/// The MAC address to which the kernel resolves a GID: from the EUI-64 of a link-local GID, by the rules of Ethernet
/// for a multicast GID, and otherwise an invented one.
fn dmac(gid: [u8; 16]) -> [u8; 6] {
    let g = gid;
    match g {
        [0xff, ..] => [0x33, 0x33, g[12], g[13], g[14], g[15]],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224..=239, ..] => [1, 0, 0x5e, g[13] & 0x7f, g[14], g[15]],
        [0xfe, 0x80, ..] => [g[8] ^ 2, g[9], g[10], g[13], g[14], g[15]],
        _ => [2, 0x11, g[12], g[13], g[14], g[15]],
    }
}

/// The GID table as `struct ib_uverbs_gid_entry`: link-local for RoCE v1 and v2, then IPv4-mapped for both.
fn gid_entry(index: u32) -> Result<[u8; 32], Errno> {
    const LOCAL: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0xbe, 0x97, 0xe1, 0xff, 0xfe, 0x12, 0x34, 0x56];
    const MAPPED: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 1, 10];
    if index > 3 {
        return Err(Errno::ENODATA);
    }
    let mut entry = [0; 32];
    entry[..16].copy_from_slice(if index < 2 { &LOCAL } else { &MAPPED });
    for (i, word) in [index, 1, 1 + index % 2, 1].into_iter().enumerate() {
        entry[16 + i * 4..][..4].copy_from_slice(&word.to_ne_bytes());
    }
    Ok(entry)
}

impl Script for FixedKernel {
    fn ioctl(&self, command: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let mut state = self.state();
        let asked = state.ioctls.is_some().then(|| Ioctl::asked(command));
        state.given = None;
        let result = self.run(&mut state, command);
        let given = state.given;
        if let (Some(ioctls), Some(mut ioctl)) = (&mut state.ioctls, asked) {
            ioctl.answered(command, result, given);
            ioctls.push(ioctl);
        }
        result
    }

    fn mmap(&self, offset: u64, len: usize, _: Protection) -> Result<Mapping, Errno> {
        /// In mmap offsets, the command starts at this bit of the page number.
        const CMD_SHIFT: u32 = 8;
        if offset != (MLX5_IB_MMAP_CLOCK_INFO << CMD_SHIFT) * 4096 || len < size_of_val(&CLOCK) {
            return Err(Errno::EINVAL);
        }
        let word = |i| AtomicU64::new(CLOCK.get(i).copied().unwrap_or(0));
        Ok(mapping((0..len.div_ceil(8)).map(word).collect(), len))
    }

    fn doorbells(&self, _: &dyn Kernel, offset: u64, _: usize) -> Result<DoorbellPage, Errno> {
        Ok(DoorbellPage::Port(Arc::new(Page { page: offset, rings: Arc::clone(&self.rings) })))
    }

    fn driver_id(&self) -> u32 {
        RDMA_DRIVER_MLX5
    }
}
