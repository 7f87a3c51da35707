// SPDX-License-Identifier: MIT OR Apache-2.0
//! A simulated kernel that answers as the mlx5 driver does and records the commands.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex};
use uverbs_core::Errno;
use uverbs_core::kernel::{
    DoorbellPage, DoorbellPort, Kernel, Mapping, Protection, RawCommand, WriteCommand, page_size,
};
use uverbs_testkit::kernel::{Script, mapping};
use uverbs_uapi::be::Be32;
use uverbs_uapi::cmd::*;
use uverbs_uapi::ids::*;
use uverbs_uapi::mlx5::cmds::*;
use uverbs_uapi::mlx5::devx::{MLX5_IB_METHOD_DEVX_UMEM_REG, MLX5_IB_OBJECT_DEVX_UMEM};
use uverbs_uapi::mlx5::*;
use uverbs_uapi::verbs::{
    RDMA_DRIVER_MLX5, ib_uverbs_gid_entry, ib_uverbs_qp_cap, ib_uverbs_query_port_resp_ex,
};
use zerocopy::{FromBytes, IntoBytes};

const EX: u32 = IB_USER_VERBS_CMD_FLAG_EXTENDED;
const QUERY_DEVICE: u32 = EX | IB_USER_VERBS_EX_CMD_QUERY_DEVICE;
const MODIFY_QP: u32 = EX | IB_USER_VERBS_EX_CMD_MODIFY_QP;

const MODIFY_WQ: u32 = EX | IB_USER_VERBS_EX_CMD_MODIFY_WQ;
const CREATE_TABLE: u32 = EX | IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL;

/// A doorbell page that records writes.
#[derive(Debug)]
pub(super) struct Bells {
    pub(super) offset: u64,
    rung: Mutex<Vec<(u32, usize)>>,
}

impl DoorbellPort for Bells {
    fn ring(&self, offset: u32, value: [u8; 8]) {
        self.rung.lock().unwrap().push((offset, value.len()));
    }

    fn blueflame(&self, offset: u32, wqe: &[u8]) {
        self.rung.lock().unwrap().push((offset, wqe.len()));
    }
}

pub(super) struct FakeKernel {
    pub(super) context: Mutex<mlx5_ib_alloc_ucontext_resp>,
    pub(super) link_layer: u8,
    pub(super) atomic_cap: u32,
    pub(super) max_tso: u32,
    /// Compressed entries in a block, and bits of `mlx5_ib_query_device_resp::flags`.
    pub(super) compressed: (u32, u32),
    /// The number of UAR objects that can be allocated.
    pub(super) uars_left: AtomicU32,
    pub(super) refuse_destroy: AtomicBool,
    /// Objects are destroyed slowly, which the log has when it is done.
    pub(super) slow_destroy: AtomicBool,
    pub(super) refuse_modify: AtomicBool,
    /// The answer to a resize has fewer entries than requested.
    pub(super) nonsense_resize: AtomicBool,
    pub(super) refuse_mmap: AtomicBool,
    /// The kernel pins no more memory: creations and resizes fail.
    pub(super) refuse_pin: AtomicBool,
    /// Contexts with commands for the firmware are refused.
    pub(super) refuse_devx: AtomicBool,
    /// The object number in the answers to create and modify commands.
    pub(super) number: AtomicU32,
    pub(super) bfreg_index: AtomicU32,
    pub(super) qp_state: AtomicU32,
    pub(super) next_handle: AtomicU32,
    log: Mutex<Vec<String>>,
    /// The private input of the last command that had one.
    private: Mutex<Vec<u8>>,
    pub(super) bells: Mutex<Vec<Arc<Bells>>>,
}

impl Default for FakeKernel {
    fn default() -> Self {
        let context = mlx5_ib_alloc_ucontext_resp {
            qp_tab_size: 1 << 18,
            bf_reg_size: 512,
            cache_line_size: 64,
            max_sq_desc_sz: 1024,
            max_rq_desc_sz: 512,
            max_send_wqebb: 32768,
            max_recv_wr: 32768,
            max_srq_recv_wr: 32768,
            num_ports: 1,
            response_length: size_of::<mlx5_ib_alloc_ucontext_resp>() as u32,
            cqe_version: 1,
            cmds_supp_uhw: MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
            eth_min_inline: MLX5_USER_INLINE_MODE_NONE,
            log_uar_size: 12,
            num_uars_per_page: 1,
            comp_mask: MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY | MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE,
            dump_fill_mkey: 0x300,
            ..Default::default()
        };
        Self {
            context: Mutex::new(context),
            link_layer: 2,
            atomic_cap: 1,
            max_tso: 1 << 18,
            compressed: (0, 0),
            uars_left: AtomicU32::new(u32::MAX),
            refuse_destroy: AtomicBool::default(),
            slow_destroy: AtomicBool::default(),
            refuse_modify: AtomicBool::default(),
            nonsense_resize: AtomicBool::default(),
            refuse_mmap: AtomicBool::default(),
            refuse_pin: AtomicBool::default(),
            refuse_devx: AtomicBool::default(),
            number: AtomicU32::new(0xa1_b2c3),
            bfreg_index: AtomicU32::new(u32::MAX),
            qp_state: AtomicU32::default(),
            next_handle: AtomicU32::new(1),
            log: Mutex::default(),
            private: Mutex::default(),
            bells: Mutex::default(),
        }
    }
}

impl FakeKernel {
    fn note(&self, what: impl Into<String>) {
        self.log.lock().unwrap().push(what.into());
    }

    pub(super) fn has_logged(&self, line: &str) -> bool {
        self.log.lock().unwrap().iter().any(|logged| logged == line)
    }

    pub(super) fn take_log(&self) -> Vec<String> {
        core::mem::take(&mut self.log.lock().unwrap())
    }

    /// The private input of the last command that had one.
    pub(super) fn private<T: FromBytes>(&self) -> T {
        T::read_from_bytes(&self.private.lock().unwrap()).expect("private input of this size")
    }

    /// The doorbells that were written: page, offset and length.
    pub(super) fn rung(&self) -> Vec<(u64, u32, usize)> {
        let bells = self.bells.lock().unwrap();
        bells
            .iter()
            .flat_map(|b| {
                core::mem::take(&mut *b.rung.lock().unwrap()).into_iter().map(|(at, n)| (b.offset, at, n))
            })
            .collect()
    }

    fn handle(&self) -> u32 {
        self.next_handle.fetch_add(1, Ordering::Relaxed)
    }

    fn number(&self) -> u32 {
        self.number.fetch_add(1, Ordering::Relaxed)
    }

    fn destroy(&self, what: &str) -> Result<(), Errno> {
        if self.refuse_destroy.load(Ordering::Relaxed) {
            return Err(Errno::EBUSY);
        }
        self.note(format!("destroy {what}"));
        if self.slow_destroy.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
            self.note(format!("{what} destroyed"));
        }
        Ok(())
    }

    fn pin(&self) -> Result<(), Errno> {
        if self.refuse_pin.load(Ordering::Relaxed) { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    fn write_command(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        let number = c.input(UVERBS_ATTR_WRITE_CMD).map(|b| u64::read_from_bytes(b).unwrap()).unwrap() as u32;
        let input = c.input(UVERBS_ATTR_CORE_IN).unwrap_or_default().to_vec();
        match number {
            QUERY_DEVICE => {
                let mut resp = ib_uverbs_ex_query_device_resp {
                    response_length: size_of::<ib_uverbs_ex_query_device_resp>() as u32,
                    device_cap_flags_ex: 1 << 26,
                    ..Default::default()
                };
                resp.base.atomic_cap = self.atomic_cap;
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                let private = mlx5_ib_query_device_resp {
                    tso_caps: mlx5_ib_tso_caps { max_tso: self.max_tso, supported_qpts: 1 << 8 },
                    cqe_comp_caps: mlx5_ib_cqe_comp_caps { max_num: self.compressed.0, supported_format: 3 },
                    flags: self.compressed.1,
                    dci_streams_caps: mlx5_ib_dci_streams_caps {
                        max_log_num_concurent: 5,
                        max_log_num_errored: 4,
                    },
                    ..Default::default()
                };
                c.answer(UVERBS_ATTR_UHW_OUT, private.as_bytes());
            }
            IB_USER_VERBS_CMD_ALLOC_PD => {
                assert!(c.has(UVERBS_ATTR_UHW_OUT), "the kernel requires room for the number");
                let resp = ib_uverbs_alloc_pd_resp { pd_handle: self.handle(), ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            IB_USER_VERBS_CMD_OPEN_XRCD => {
                let resp = ib_uverbs_open_xrcd_resp { xrcd_handle: self.handle(), ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            MODIFY_QP => {
                let request = ib_uverbs_ex_modify_qp::read_from_bytes(&input).unwrap();
                self.note(format!("modify qp {:#x} to {}", request.base.attr_mask, request.base.qp_state));
                if self.refuse_modify.load(Ordering::Relaxed) {
                    return Err(Errno::ENOMEM);
                }
                let resp = ib_uverbs_ex_modify_qp_resp::default();
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                let dctn = self.number.load(Ordering::Relaxed);
                let resp = mlx5_ib_modify_qp_resp { response_length: 16, dctn, ..Default::default() };
                c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes());
            }
            IB_USER_VERBS_CMD_QUERY_QP => {
                let qp_state = self.qp_state.load(Ordering::Relaxed) as u8;
                let resp = ib_uverbs_query_qp_resp { qp_state, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            IB_USER_VERBS_CMD_CREATE_AH => {
                let resp = ib_uverbs_create_ah_resp { ah_handle: self.handle(), ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
                let resp = mlx5_ib_create_ah_resp { dmac: [2, 0x11, 1, 2, 3, 4], ..Default::default() };
                c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes());
            }
            IB_USER_VERBS_CMD_RESIZE_CQ => {
                self.pin()?;
                let request = ib_uverbs_resize_cq::read_from_bytes(&input).unwrap();
                let cqe = if self.nonsense_resize.load(Ordering::Relaxed) { 0 } else { request.cqe };
                let resp = ib_uverbs_resize_cq_resp { cqe, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            MODIFY_WQ => {
                let request = ib_uverbs_ex_modify_wq::read_from_bytes(&input).unwrap();
                self.note(format!("modify wq {:#x} to {}", request.attr_mask, request.wq_state));
            }
            CREATE_TABLE => {
                let resp = ib_uverbs_ex_create_rwq_ind_table_resp {
                    ind_tbl_handle: self.handle(),
                    ..Default::default()
                };
                assert!(c.answer(UVERBS_ATTR_CORE_OUT, resp.as_bytes()));
            }
            IB_USER_VERBS_CMD_QUERY_DEVICE => return Err(Errno::EOPNOTSUPP),
            IB_USER_VERBS_CMD_MODIFY_SRQ => self.note("modify srq"),
            other => panic!("unexpected write command {other:#x}"),
        }
        Ok(())
    }

    fn create_qp(&self, c: &mut RawCommand<'_, '_>) {
        let asked = ib_uverbs_qp_cap::read_from_bytes(c.input(UVERBS_ATTR_CREATE_QP_CAP).unwrap()).unwrap();
        let mut got = asked;
        if asked.max_recv_wr == 0 {
            got.max_recv_sge = 0;
        }
        assert!(c.new_handle(UVERBS_ATTR_CREATE_QP_HANDLE, self.handle().into()));
        assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_CAP, got.as_bytes()));
        assert!(c.answer(UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, &self.number().to_ne_bytes()));
        let bfreg_index = self.bfreg_index.load(Ordering::Relaxed);
        let resp = mlx5_ib_create_qp_resp { bfreg_index, ..Default::default() };
        assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
    }
}

impl Script for FakeKernel {
    fn ioctl(&self, c: &mut RawCommand<'_, '_>) -> Result<(), Errno> {
        if let Some(bytes) = c.input(UVERBS_ATTR_UHW_IN).filter(|_| c.object() < UVERBS_ID_DRIVER_NS) {
            *self.private.lock().unwrap() = bytes.to_vec();
        }
        if let (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE)
        | (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE)
        | (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE)
        | (UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE)
        | (MLX5_IB_OBJECT_DEVX_UMEM, MLX5_IB_METHOD_DEVX_UMEM_REG) = (c.object(), c.method())
        {
            self.pin()?;
        }
        match (c.object(), c.method()) {
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE) => return self.write_command(c),
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT) => {
                let request: mlx5_ib_alloc_ucontext_req_v2 = self.private();
                let devx = request.flags & MLX5_IB_ALLOC_UCTX_DEVX != 0;
                if devx && self.refuse_devx.load(Ordering::Relaxed) {
                    return Err(Errno::EINVAL);
                }
                assert!(c.answer(UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, &4_u32.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &1_u64.to_ne_bytes()));
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, self.context.lock().unwrap().as_bytes()));
            }
            (UVERBS_OBJECT_ASYNC_EVENT, _) => {
                let fd = std::fs::File::open("/dev/null").unwrap();
                assert!(c.new_fd(UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE, fd.into()));
            }
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT) => {
                let mut resp = ib_uverbs_query_port_resp_ex::default();
                resp.legacy_resp.link_layer = self.link_layer;
                resp.legacy_resp.max_msg_sz = 1 << 30;
                assert!(c.answer(UVERBS_ATTR_QUERY_PORT_RESP, resp.as_bytes()));
            }
            (UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY) => {
                let entry = ib_uverbs_gid_entry { gid_type: 2, ..Default::default() };
                assert!(c.answer(UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, entry.as_bytes()));
            }
            (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC) => {
                let left = self.uars_left.load(Ordering::Relaxed);
                if left == 0 {
                    return Err(Errno::ENOSPC);
                }
                self.uars_left.store(left - 1, Ordering::Relaxed);
                let handle = self.handle();
                let kind = c.input(MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE).unwrap()[0];
                self.note(format!("alloc uar type {kind}"));
                assert!(c.new_handle(MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE, handle.into()));
                let offset = u64::from(handle) * u64::from(page_size());
                assert!(c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, offset.as_bytes()));
                assert!(c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, &page_size().to_ne_bytes()));
                assert!(c.answer(MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, &(0x10 + handle).to_ne_bytes()));
            }
            (MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_DESTROY) => return self.destroy("uar"),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE) => {
                let cqe = c.input(UVERBS_ATTR_CREATE_CQ_CQE).unwrap().to_vec();
                assert!(c.new_handle(UVERBS_ATTR_CREATE_CQ_HANDLE, self.handle().into()));
                assert!(c.answer(UVERBS_ATTR_CREATE_CQ_RESP_CQE, &cqe));
                let resp = mlx5_ib_create_cq_resp { cqn: self.number(), reserved: 0 };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
            }
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE) => {
                let word = |id: u16| c.input(id).unwrap().to_vec();
                let (wr, sge) = (word(UVERBS_ATTR_CREATE_SRQ_MAX_WR), word(UVERBS_ATTR_CREATE_SRQ_MAX_SGE));
                let number = self.number();
                assert!(c.new_handle(UVERBS_ATTR_CREATE_SRQ_HANDLE, self.handle().into()));
                assert!(c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, &wr));
                assert!(c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, &sge));
                c.answer(UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, &number.to_ne_bytes());
                let resp = mlx5_ib_create_srq_resp { srqn: number, reserved: 0 };
                assert!(c.answer(UVERBS_ATTR_UHW_OUT, resp.as_bytes()));
            }
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE) => self.create_qp(c),
            (UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_CREATE) => {
                let word = |id: u16| c.input(id).unwrap().to_vec();
                let (wr, sge) = (word(UVERBS_ATTR_CREATE_WQ_MAX_WR), word(UVERBS_ATTR_CREATE_WQ_MAX_SGE));
                assert!(c.new_handle(UVERBS_ATTR_CREATE_WQ_HANDLE, self.handle().into()));
                assert!(c.answer(UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR, &wr));
                assert!(c.answer(UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE, &sge));
                assert!(c.answer(UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM, &self.number().to_ne_bytes()));
            }
            (UVERBS_OBJECT_WQ, UVERBS_METHOD_WQ_DESTROY) => return self.destroy("wq"),
            (UVERBS_OBJECT_DM, UVERBS_METHOD_DM_ALLOC) => {
                assert!(c.new_handle(UVERBS_ATTR_ALLOC_DM_HANDLE, self.handle().into()));
                assert!(c.answer(MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET, &0x5_0040_u64.to_ne_bytes()));
                assert!(c.answer(MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX, &0x102_u16.to_ne_bytes()));
            }
            (UVERBS_OBJECT_DM, UVERBS_METHOD_DM_FREE) => return self.destroy("dm"),
            (UVERBS_OBJECT_QP, UVERBS_METHOD_QP_DESTROY) => return self.destroy("qp"),
            (UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_DESTROY) => return self.destroy("cq"),
            (UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_DESTROY) => return self.destroy("srq"),
            (UVERBS_OBJECT_COUNTERS, UVERBS_METHOD_COUNTERS_CREATE) => {
                assert!(c.new_handle(UVERBS_ATTR_CREATE_COUNTERS_HANDLE, self.handle().into()));
            }
            (UVERBS_OBJECT_AH, UVERBS_METHOD_AH_DESTROY) => return self.destroy("ah"),
            other => panic!("unexpected command {other:?}"),
        }
        Ok(())
    }

    fn write(&self, _: &mut WriteCommand<'_>) -> Result<(), Errno> {
        Err(Errno::EACCES)
    }

    fn mmap(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.note(format!("mmap {offset:#x} {len} {protection:?}"));
        if self.refuse_mmap.load(Ordering::Relaxed) {
            return Err(Errno::ENOMEM);
        }
        let memory: Arc<[AtomicU64]> = (0..len.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        Ok(mapping(memory, len))
    }

    fn doorbells(&self, _: &dyn Kernel, offset: u64, len: usize) -> Result<DoorbellPage, Errno> {
        assert_eq!(len, page_size() as usize);
        let bells = Arc::new(Bells { offset, rung: Mutex::default() });
        self.bells.lock().unwrap().push(Arc::clone(&bells));
        Ok(DoorbellPage::Port(bells))
    }

    fn driver_id(&self) -> u32 {
        RDMA_DRIVER_MLX5
    }
}

/// A word of a doorbell record, read at the address that was passed to the kernel.
pub(super) fn record_word(record: &crate::memory::dbrec::DbRec, which: usize) -> u32 {
    Be32::from_bits(record.word(which).load(Ordering::Relaxed)).get()
}
