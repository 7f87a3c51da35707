// SPDX-License-Identifier: MIT OR Apache-2.0
//! Object, method and attribute ids of the ioctl interface.
//!
//! Facts from `<rdma/ib_user_ioctl_cmds.h>`, which has the licence text
//! (`GPL-2.0 OR Linux-OpenIB`) in place of an SPDX line.
//!
//! Attribute ids count from 0 in every method, so only the pair (method, attribute) is unique. `In` and `Out` are from
//! the caller's view; an attribute that is only a handle has it in the `data` word. A *constant* and *flags* are
//! written as a u64, independent of the type in the kernel. A *raw fd* is a file that isn't an object of this
//! interface; it is in `data`, like a handle. Attributes that are not called optional are mandatory.

use crate::layout::abi_consts;

abi_consts! {
    /// Bits of an id that name its namespace.
    pub const UVERBS_ID_NS_MASK: u16 = 0xf000;
    /// Position of the namespace in an id.
    pub const UVERBS_ID_NS_SHIFT: u16 = 12;
    /// Namespace bit of driver-private objects, methods and attributes.
    pub const UVERBS_ID_DRIVER_NS: u16 = 1 << UVERBS_ID_NS_SHIFT;
    /// Older kernels' name for the driver namespace's number.
    pub const UVERBS_UDATA_DRIVER_DATA_NS: u16 = 1;
    /// Older kernels' name for [`UVERBS_ID_DRIVER_NS`].
    pub const UVERBS_UDATA_DRIVER_DATA_FLAG: u16 = 1 << UVERBS_ID_NS_SHIFT;
    /// Driver-private request bytes, of any method that accepts them.
    pub const UVERBS_ATTR_UHW_IN: u16 = UVERBS_ID_DRIVER_NS;
    /// Driver-private response bytes, of any method that returns them.
    pub const UVERBS_ATTR_UHW_OUT: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// First driver attribute id of a method that also takes the two UHW attributes.
    pub const UVERBS_ID_DRIVER_NS_WITH_UHW: u16 = UVERBS_ID_DRIVER_NS + 2;

    /// The device itself: methods without an object.
    pub const UVERBS_OBJECT_DEVICE: u16 = 0;
    /// Protection domain.
    pub const UVERBS_OBJECT_PD: u16 = 1;
    /// Completion channel; its handle is a file descriptor.
    pub const UVERBS_OBJECT_COMP_CHANNEL: u16 = 2;
    /// Completion queue.
    pub const UVERBS_OBJECT_CQ: u16 = 3;
    /// Queue pair.
    pub const UVERBS_OBJECT_QP: u16 = 4;
    /// Shared receive queue.
    pub const UVERBS_OBJECT_SRQ: u16 = 5;
    /// Address handle.
    pub const UVERBS_OBJECT_AH: u16 = 6;
    /// Memory region.
    pub const UVERBS_OBJECT_MR: u16 = 7;
    /// Memory window.
    pub const UVERBS_OBJECT_MW: u16 = 8;
    /// Steering rule.
    pub const UVERBS_OBJECT_FLOW: u16 = 9;
    /// XRC domain.
    pub const UVERBS_OBJECT_XRCD: u16 = 10;
    /// Receive queue indirection table (RSS).
    pub const UVERBS_OBJECT_RWQ_IND_TBL: u16 = 11;
    /// Work queue.
    pub const UVERBS_OBJECT_WQ: u16 = 12;
    /// Action that a steering rule refers to.
    pub const UVERBS_OBJECT_FLOW_ACTION: u16 = 13;
    /// Device memory.
    pub const UVERBS_OBJECT_DM: u16 = 14;
    /// Counter set.
    pub const UVERBS_OBJECT_COUNTERS: u16 = 15;
    /// Asynchronous event file; its handle is a file descriptor.
    pub const UVERBS_OBJECT_ASYNC_EVENT: u16 = 16;
    /// DMA handle: PCIe TLP processing hints for memory registrations. Kernels of 2025 and later.
    pub const UVERBS_OBJECT_DMAH: u16 = 17;
    /// A mapping of the device exported as dma-buf; its handle is a file descriptor. Kernels of 2026.
    pub const UVERBS_OBJECT_DMABUF: u16 = 18;

    /// Runs one command of the write interface.
    pub const UVERBS_METHOD_INVOKE_WRITE: u16 = 0;
    /// Lists the live handles of one object type.
    pub const UVERBS_METHOD_INFO_HANDLES: u16 = 1;
    /// Reads the attributes of a port.
    pub const UVERBS_METHOD_QUERY_PORT: u16 = 2;
    /// Creates the context of this open file; must come first.
    pub const UVERBS_METHOD_GET_CONTEXT: u16 = 3;
    /// Reads the properties of the existing context.
    pub const UVERBS_METHOD_QUERY_CONTEXT: u16 = 4;
    /// Reads the valid GIDs of all ports.
    pub const UVERBS_METHOD_QUERY_GID_TABLE: u16 = 5;
    /// Reads one GID.
    pub const UVERBS_METHOD_QUERY_GID_ENTRY: u16 = 6;
    /// Reads the effective speed of a port.
    pub const UVERBS_METHOD_QUERY_PORT_SPEED: u16 = 7;

    /// In, bytes: the command's request struct, without the write header.
    pub const UVERBS_ATTR_CORE_IN: u16 = 0;
    /// Out, bytes: the command's response struct.
    pub const UVERBS_ATTR_CORE_OUT: u16 = 1;
    /// In, u32 constant: command number, with
    /// [`IB_USER_VERBS_CMD_FLAG_EXTENDED`](crate::cmd::IB_USER_VERBS_CMD_FLAG_EXTENDED) where it is one.
    pub const UVERBS_ATTR_WRITE_CMD: u16 = 2;
    /// In, u8 constant: port, from 1.
    pub const UVERBS_ATTR_QUERY_PORT_PORT_NUM: u16 = 0;
    /// Out: [`ib_uverbs_query_port_resp_ex`](crate::verbs::ib_uverbs_query_port_resp_ex).
    pub const UVERBS_ATTR_QUERY_PORT_RESP: u16 = 1;
    /// In, u32 constant: port, from 1.
    pub const UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM: u16 = 0;
    /// Out, u64: speed in units of 100 Mbit/s.
    pub const UVERBS_ATTR_QUERY_PORT_SPEED_RESP: u16 = 1;
    /// Out, u32: number of completion vectors.
    pub const UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS: u16 = 0;
    /// Out, u64: `IB_UVERBS_CORE_SUPPORT_*`.
    pub const UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT: u16 = 1;
    /// In, optional array of s32: open files of `/dev/infiniband/*` capabilities (ucaps) that the context may
    /// use.
    pub const UVERBS_ATTR_GET_CONTEXT_FD_ARR: u16 = 2;
    /// Out, u32: number of completion vectors.
    pub const UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS: u16 = 0;
    /// Out, u64: `IB_UVERBS_CORE_SUPPORT_*`.
    pub const UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT: u16 = 1;
    /// In, u16 constant: the requested object type.
    pub const UVERBS_ATTR_INFO_OBJECT_ID: u16 = 0;
    /// Out, u32: how many handles were written.
    pub const UVERBS_ATTR_INFO_TOTAL_HANDLES: u16 = 1;
    /// Out, array of u32: the handles, as many as fit.
    pub const UVERBS_ATTR_INFO_HANDLES_LIST: u16 = 2;
    /// In, u64 constant: size of one entry that the caller expects.
    pub const UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE: u16 = 0;
    /// In, u32 flags: none is defined.
    pub const UVERBS_ATTR_QUERY_GID_TABLE_FLAGS: u16 = 1;
    /// Out: array of [`ib_uverbs_gid_entry`](crate::verbs::ib_uverbs_gid_entry).
    pub const UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES: u16 = 2;
    /// Out, u64: how many entries were written.
    pub const UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES: u16 = 3;
    /// In, u32 constant: port, from 1.
    pub const UVERBS_ATTR_QUERY_GID_ENTRY_PORT: u16 = 0;
    /// In, u32 constant: index in the port's table.
    pub const UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX: u16 = 1;
    /// In, u32 flags: none is defined.
    pub const UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS: u16 = 2;
    /// Out: one [`ib_uverbs_gid_entry`](crate::verbs::ib_uverbs_gid_entry).
    pub const UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY: u16 = 3;

    /// Opens a further asynchronous event file.
    pub const UVERBS_METHOD_ASYNC_EVENT_ALLOC: u16 = 0;
    /// New file descriptor.
    pub const UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE: u16 = 0;

    /// Frees a protection domain.
    pub const UVERBS_METHOD_PD_DESTROY: u16 = 0;
    /// The PD to free.
    pub const UVERBS_ATTR_DESTROY_PD_HANDLE: u16 = 0;

    /// Creates a completion queue.
    pub const UVERBS_METHOD_CQ_CREATE: u16 = 0;
    /// Destroys a completion queue.
    pub const UVERBS_METHOD_CQ_DESTROY: u16 = 1;
    /// New CQ.
    pub const UVERBS_ATTR_CREATE_CQ_HANDLE: u16 = 0;
    /// In, u32: least number of entries.
    pub const UVERBS_ATTR_CREATE_CQ_CQE: u16 = 1;
    /// In, u64: value that events carry.
    pub const UVERBS_ATTR_CREATE_CQ_USER_HANDLE: u16 = 2;
    /// In, optional fd: completion channel.
    pub const UVERBS_ATTR_CREATE_CQ_COMP_CHANNEL: u16 = 3;
    /// In, u32: completion vector.
    pub const UVERBS_ATTR_CREATE_CQ_COMP_VECTOR: u16 = 4;
    /// In, optional u32 flags: `IB_UVERBS_CQ_FLAGS_*`.
    pub const UVERBS_ATTR_CREATE_CQ_FLAGS: u16 = 5;
    /// Out, u32: number of entries of the CQ.
    pub const UVERBS_ATTR_CREATE_CQ_RESP_CQE: u16 = 6;
    /// In, optional fd: asynchronous event file for this CQ.
    pub const UVERBS_ATTR_CREATE_CQ_EVENT_FD: u16 = 7;
    /// In, optional u64: address of a ring that the caller provides.
    pub const UVERBS_ATTR_CREATE_CQ_BUFFER_VA: u16 = 8;
    /// In, optional u64: length of that ring in bytes.
    pub const UVERBS_ATTR_CREATE_CQ_BUFFER_LENGTH: u16 = 9;
    /// In, optional raw fd: dma-buf that holds the ring.
    pub const UVERBS_ATTR_CREATE_CQ_BUFFER_FD: u16 = 10;
    /// In, optional u64: offset of the ring in the dma-buf.
    pub const UVERBS_ATTR_CREATE_CQ_BUFFER_OFFSET: u16 = 11;
    /// In, optional [`ib_uverbs_buffer_desc`](crate::verbs::ib_uverbs_buffer_desc): the ring.
    pub const UVERBS_ATTR_CREATE_CQ_BUF_UMEM: u16 = 12;
    /// The CQ to destroy.
    pub const UVERBS_ATTR_DESTROY_CQ_HANDLE: u16 = 0;
    /// Out: [`ib_uverbs_destroy_cq_resp`](crate::cmd::ib_uverbs_destroy_cq_resp).
    pub const UVERBS_ATTR_DESTROY_CQ_RESP: u16 = 1;

    /// Creates a queue pair.
    pub const UVERBS_METHOD_QP_CREATE: u16 = 0;
    /// Destroys a queue pair.
    pub const UVERBS_METHOD_QP_DESTROY: u16 = 1;
    /// New QP.
    pub const UVERBS_ATTR_CREATE_QP_HANDLE: u16 = 0;
    /// In, optional: XRC domain, of an XRC target.
    pub const UVERBS_ATTR_CREATE_QP_XRCD_HANDLE: u16 = 1;
    /// In, optional: protection domain; an XRC target has none.
    pub const UVERBS_ATTR_CREATE_QP_PD_HANDLE: u16 = 2;
    /// In, optional: shared receive queue.
    pub const UVERBS_ATTR_CREATE_QP_SRQ_HANDLE: u16 = 3;
    /// In, optional: CQ of the send queue.
    pub const UVERBS_ATTR_CREATE_QP_SEND_CQ_HANDLE: u16 = 4;
    /// In, optional: CQ of the receive queue.
    pub const UVERBS_ATTR_CREATE_QP_RECV_CQ_HANDLE: u16 = 5;
    /// In, optional: receive indirection table (RSS).
    pub const UVERBS_ATTR_CREATE_QP_IND_TABLE_HANDLE: u16 = 6;
    /// In, u64: value that events carry.
    pub const UVERBS_ATTR_CREATE_QP_USER_HANDLE: u16 = 7;
    /// In: [`ib_uverbs_qp_cap`](crate::verbs::ib_uverbs_qp_cap), the requested capacities.
    pub const UVERBS_ATTR_CREATE_QP_CAP: u16 = 8;
    /// In, u32 constant: `IB_UVERBS_QPT_*`.
    pub const UVERBS_ATTR_CREATE_QP_TYPE: u16 = 9;
    /// In, optional u32 flags: `IB_UVERBS_QP_CREATE_*`.
    pub const UVERBS_ATTR_CREATE_QP_FLAGS: u16 = 10;
    /// In, optional u32: source QP number of outgoing packets.
    pub const UVERBS_ATTR_CREATE_QP_SOURCE_QPN: u16 = 11;
    /// In, optional fd: asynchronous event file for this QP.
    pub const UVERBS_ATTR_CREATE_QP_EVENT_FD: u16 = 12;
    /// Out: [`ib_uverbs_qp_cap`](crate::verbs::ib_uverbs_qp_cap), the capacities of the QP.
    pub const UVERBS_ATTR_CREATE_QP_RESP_CAP: u16 = 13;
    /// Out, u32: QP number.
    pub const UVERBS_ATTR_CREATE_QP_RESP_QP_NUM: u16 = 14;
    /// In, optional [`ib_uverbs_buffer_desc`](crate::verbs::ib_uverbs_buffer_desc): ring of both queues.
    pub const UVERBS_ATTR_CREATE_QP_BUF_UMEM: u16 = 15;
    /// In, optional [`ib_uverbs_buffer_desc`](crate::verbs::ib_uverbs_buffer_desc): ring of the receive
    /// queue.
    pub const UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM: u16 = 16;
    /// In, optional [`ib_uverbs_buffer_desc`](crate::verbs::ib_uverbs_buffer_desc): ring of the send queue.
    pub const UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM: u16 = 17;
    /// The QP to destroy.
    pub const UVERBS_ATTR_DESTROY_QP_HANDLE: u16 = 0;
    /// Out: [`ib_uverbs_destroy_qp_resp`](crate::cmd::ib_uverbs_destroy_qp_resp).
    pub const UVERBS_ATTR_DESTROY_QP_RESP: u16 = 1;

    /// Creates a shared receive queue.
    pub const UVERBS_METHOD_SRQ_CREATE: u16 = 0;
    /// Destroys a shared receive queue.
    pub const UVERBS_METHOD_SRQ_DESTROY: u16 = 1;
    /// New SRQ.
    pub const UVERBS_ATTR_CREATE_SRQ_HANDLE: u16 = 0;
    /// In: protection domain.
    pub const UVERBS_ATTR_CREATE_SRQ_PD_HANDLE: u16 = 1;
    /// In, optional: XRC domain, of an XRC SRQ.
    pub const UVERBS_ATTR_CREATE_SRQ_XRCD_HANDLE: u16 = 2;
    /// In, optional: CQ, of an XRC or tag-matching SRQ.
    pub const UVERBS_ATTR_CREATE_SRQ_CQ_HANDLE: u16 = 3;
    /// In, u64: value that events carry.
    pub const UVERBS_ATTR_CREATE_SRQ_USER_HANDLE: u16 = 4;
    /// In, u32: receives that it must hold.
    pub const UVERBS_ATTR_CREATE_SRQ_MAX_WR: u16 = 5;
    /// In, u32: scatter entries of one receive.
    pub const UVERBS_ATTR_CREATE_SRQ_MAX_SGE: u16 = 6;
    /// In, u32: fill level below which the limit event is raised.
    pub const UVERBS_ATTR_CREATE_SRQ_LIMIT: u16 = 7;
    /// In, optional u32: tags, of a tag-matching SRQ.
    pub const UVERBS_ATTR_CREATE_SRQ_MAX_NUM_TAGS: u16 = 8;
    /// In, u32 constant: `IB_UVERBS_SRQT_*`.
    pub const UVERBS_ATTR_CREATE_SRQ_TYPE: u16 = 9;
    /// In, optional fd: asynchronous event file for this SRQ.
    pub const UVERBS_ATTR_CREATE_SRQ_EVENT_FD: u16 = 10;
    /// Out, u32: receives that it holds.
    pub const UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR: u16 = 11;
    /// Out, u32: scatter entries of one receive.
    pub const UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE: u16 = 12;
    /// Out, optional u32: number of an XRC SRQ.
    pub const UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM: u16 = 13;
    /// The SRQ to destroy.
    pub const UVERBS_ATTR_DESTROY_SRQ_HANDLE: u16 = 0;
    /// Out: [`ib_uverbs_destroy_srq_resp`](crate::cmd::ib_uverbs_destroy_srq_resp).
    pub const UVERBS_ATTR_DESTROY_SRQ_RESP: u16 = 1;

    /// Creates a work queue.
    pub const UVERBS_METHOD_WQ_CREATE: u16 = 0;
    /// Destroys a work queue.
    pub const UVERBS_METHOD_WQ_DESTROY: u16 = 1;
    /// New WQ.
    pub const UVERBS_ATTR_CREATE_WQ_HANDLE: u16 = 0;
    /// In: protection domain.
    pub const UVERBS_ATTR_CREATE_WQ_PD_HANDLE: u16 = 1;
    /// In, optional: CQ.
    pub const UVERBS_ATTR_CREATE_WQ_CQ_HANDLE: u16 = 2;
    /// In, u64: value that events carry.
    pub const UVERBS_ATTR_CREATE_WQ_USER_HANDLE: u16 = 3;
    /// In, u32 constant: `IB_UVERBS_WQT_*`.
    pub const UVERBS_ATTR_CREATE_WQ_TYPE: u16 = 4;
    /// In, optional fd: asynchronous event file for this WQ.
    pub const UVERBS_ATTR_CREATE_WQ_EVENT_FD: u16 = 5;
    /// In, u32: work requests that it must hold.
    pub const UVERBS_ATTR_CREATE_WQ_MAX_WR: u16 = 6;
    /// In, u32: scatter entries of one request.
    pub const UVERBS_ATTR_CREATE_WQ_MAX_SGE: u16 = 7;
    /// In, u32 flags: `IB_UVERBS_WQ_FLAGS_*`.
    pub const UVERBS_ATTR_CREATE_WQ_FLAGS: u16 = 8;
    /// Out, u32: work requests that it holds.
    pub const UVERBS_ATTR_CREATE_WQ_RESP_MAX_WR: u16 = 9;
    /// Out, u32: scatter entries of one request.
    pub const UVERBS_ATTR_CREATE_WQ_RESP_MAX_SGE: u16 = 10;
    /// Out, optional u32: WQ number.
    pub const UVERBS_ATTR_CREATE_WQ_RESP_WQ_NUM: u16 = 11;
    /// The WQ to destroy.
    pub const UVERBS_ATTR_DESTROY_WQ_HANDLE: u16 = 0;
    /// Out, u32: asynchronous events reported for it.
    pub const UVERBS_ATTR_DESTROY_WQ_RESP: u16 = 1;

    /// Destroys a receive indirection table.
    pub const UVERBS_METHOD_RWQ_IND_TBL_DESTROY: u16 = 0;
    /// The table to destroy.
    pub const UVERBS_ATTR_DESTROY_RWQ_IND_TBL_HANDLE: u16 = 0;

    /// Registers device memory.
    pub const UVERBS_METHOD_DM_MR_REG: u16 = 0;
    /// Deregisters a memory region.
    pub const UVERBS_METHOD_MR_DESTROY: u16 = 1;
    /// Gives advice on ranges of regions (prefetch).
    pub const UVERBS_METHOD_ADVISE_MR: u16 = 2;
    /// Reads a region's keys and range.
    pub const UVERBS_METHOD_QUERY_MR: u16 = 3;
    /// Registers a dma-buf.
    pub const UVERBS_METHOD_REG_DMABUF_MR: u16 = 4;
    /// Registers memory of any kind. Kernels of 2025 and later.
    pub const UVERBS_METHOD_REG_MR: u16 = 5;
    /// New MR.
    pub const UVERBS_ATTR_REG_DM_MR_HANDLE: u16 = 0;
    /// In, u64: offset in the device memory, bytes.
    pub const UVERBS_ATTR_REG_DM_MR_OFFSET: u16 = 1;
    /// In, u64: length in bytes.
    pub const UVERBS_ATTR_REG_DM_MR_LENGTH: u16 = 2;
    /// In: protection domain.
    pub const UVERBS_ATTR_REG_DM_MR_PD_HANDLE: u16 = 3;
    /// In, optional u32 flags: `IB_UVERBS_ACCESS_*`, of which `ZERO_BASED` is required.
    pub const UVERBS_ATTR_REG_DM_MR_ACCESS_FLAGS: u16 = 4;
    /// In: the device memory.
    pub const UVERBS_ATTR_REG_DM_MR_DM_HANDLE: u16 = 5;
    /// Out, u32: local key.
    pub const UVERBS_ATTR_REG_DM_MR_RESP_LKEY: u16 = 6;
    /// Out, u32: remote key.
    pub const UVERBS_ATTR_REG_DM_MR_RESP_RKEY: u16 = 7;
    /// The MR to deregister.
    pub const UVERBS_ATTR_DESTROY_MR_HANDLE: u16 = 0;
    /// In: protection domain of the regions.
    pub const UVERBS_ATTR_ADVISE_MR_PD_HANDLE: u16 = 0;
    /// In, u32 constant: `IB_UVERBS_ADVISE_MR_ADVICE_*`.
    pub const UVERBS_ATTR_ADVISE_MR_ADVICE: u16 = 1;
    /// In, u32 flags: `IB_UVERBS_ADVISE_MR_FLAG_*`.
    pub const UVERBS_ATTR_ADVISE_MR_FLAGS: u16 = 2;
    /// In: array of [`ib_uverbs_sge`](crate::cmd::ib_uverbs_sge).
    pub const UVERBS_ATTR_ADVISE_MR_SGE_LIST: u16 = 3;
    /// In: the MR.
    pub const UVERBS_ATTR_QUERY_MR_HANDLE: u16 = 0;
    /// Out, u32: local key.
    pub const UVERBS_ATTR_QUERY_MR_RESP_LKEY: u16 = 1;
    /// Out, u32: remote key.
    pub const UVERBS_ATTR_QUERY_MR_RESP_RKEY: u16 = 2;
    /// Out, u64: length in bytes.
    pub const UVERBS_ATTR_QUERY_MR_RESP_LENGTH: u16 = 3;
    /// Out, optional u64: address that work requests use.
    pub const UVERBS_ATTR_QUERY_MR_RESP_IOVA: u16 = 4;
    /// New MR.
    pub const UVERBS_ATTR_REG_DMABUF_MR_HANDLE: u16 = 0;
    /// In: protection domain.
    pub const UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE: u16 = 1;
    /// In, u64: offset in the dma-buf, bytes.
    pub const UVERBS_ATTR_REG_DMABUF_MR_OFFSET: u16 = 2;
    /// In, u64: length in bytes.
    pub const UVERBS_ATTR_REG_DMABUF_MR_LENGTH: u16 = 3;
    /// In, u64: address that work requests will use.
    pub const UVERBS_ATTR_REG_DMABUF_MR_IOVA: u16 = 4;
    /// In, u32: dma-buf file descriptor.
    pub const UVERBS_ATTR_REG_DMABUF_MR_FD: u16 = 5;
    /// In, optional u32 flags: `IB_UVERBS_ACCESS_*`.
    pub const UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS: u16 = 6;
    /// Out, u32: local key.
    pub const UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY: u16 = 7;
    /// Out, u32: remote key.
    pub const UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY: u16 = 8;
    /// New MR.
    pub const UVERBS_ATTR_REG_MR_HANDLE: u16 = 0;
    /// In: protection domain.
    pub const UVERBS_ATTR_REG_MR_PD_HANDLE: u16 = 1;
    /// In, optional: DMA handle.
    pub const UVERBS_ATTR_REG_MR_DMA_HANDLE: u16 = 2;
    /// In, u64: address that work requests will use.
    pub const UVERBS_ATTR_REG_MR_IOVA: u16 = 3;
    /// In, optional u64: user address, if there is no dma-buf.
    pub const UVERBS_ATTR_REG_MR_ADDR: u16 = 4;
    /// In, u64: length in bytes.
    pub const UVERBS_ATTR_REG_MR_LENGTH: u16 = 5;
    /// In, u32 flags: `IB_UVERBS_ACCESS_*`.
    pub const UVERBS_ATTR_REG_MR_ACCESS_FLAGS: u16 = 6;
    /// In, optional raw fd: dma-buf.
    pub const UVERBS_ATTR_REG_MR_FD: u16 = 7;
    /// In, optional u64: offset in the dma-buf, bytes.
    pub const UVERBS_ATTR_REG_MR_FD_OFFSET: u16 = 8;
    /// Out, u32: local key.
    pub const UVERBS_ATTR_REG_MR_RESP_LKEY: u16 = 9;
    /// Out, u32: remote key.
    pub const UVERBS_ATTR_REG_MR_RESP_RKEY: u16 = 10;

    /// Frees a memory window.
    pub const UVERBS_METHOD_MW_DESTROY: u16 = 0;
    /// The MW to free.
    pub const UVERBS_ATTR_DESTROY_MW_HANDLE: u16 = 0;

    /// Allocates device memory.
    pub const UVERBS_METHOD_DM_ALLOC: u16 = 0;
    /// Frees device memory.
    pub const UVERBS_METHOD_DM_FREE: u16 = 1;
    /// New DM.
    pub const UVERBS_ATTR_ALLOC_DM_HANDLE: u16 = 0;
    /// In, u64: length in bytes.
    pub const UVERBS_ATTR_ALLOC_DM_LENGTH: u16 = 1;
    /// In, u32: log2 of the alignment.
    pub const UVERBS_ATTR_ALLOC_DM_ALIGNMENT: u16 = 2;
    /// The DM to free.
    pub const UVERBS_ATTR_FREE_DM_HANDLE: u16 = 0;
    /// Creates a DMA handle.
    pub const UVERBS_METHOD_DMAH_ALLOC: u16 = 0;
    /// Frees a DMA handle.
    pub const UVERBS_METHOD_DMAH_FREE: u16 = 1;
    /// New DMAH.
    pub const UVERBS_ATTR_ALLOC_DMAH_HANDLE: u16 = 0;
    /// In, optional u32: processor whose cache the hints steer to.
    pub const UVERBS_ATTR_ALLOC_DMAH_CPU_ID: u16 = 1;
    /// In, optional enum attribute without payload: memory type, volatile (0) or persistent (1).
    pub const UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE: u16 = 2;
    /// In, optional u8: processing hint of the TLP, 2 bits.
    pub const UVERBS_ATTR_ALLOC_DMAH_PH: u16 = 3;
    /// The DMAH to free.
    pub const UVERBS_ATTR_FREE_DMA_HANDLE: u16 = 0;
    /// Exports a mapping as dma-buf.
    pub const UVERBS_METHOD_DMABUF_ALLOC: u16 = 0;
    /// New file descriptor.
    pub const UVERBS_ATTR_ALLOC_DMABUF_HANDLE: u16 = 0;
    /// In, u64 constant: page offset of the mapping in the uverbs file.
    pub const UVERBS_ATTR_ALLOC_DMABUF_PGOFF: u16 = 1;

    /// Closes an XRC domain.
    pub const UVERBS_METHOD_XRCD_DESTROY: u16 = 0;
    /// The XRCD to close.
    pub const UVERBS_ATTR_DESTROY_XRCD_HANDLE: u16 = 0;

    /// Destroys an address handle.
    pub const UVERBS_METHOD_AH_DESTROY: u16 = 0;
    /// The AH to destroy.
    pub const UVERBS_ATTR_DESTROY_AH_HANDLE: u16 = 0;

    /// Removes a steering rule.
    pub const UVERBS_METHOD_FLOW_DESTROY: u16 = 0;
    /// The rule to remove.
    pub const UVERBS_ATTR_DESTROY_FLOW_HANDLE: u16 = 0;
    /// Creates an ESP action.
    pub const UVERBS_METHOD_FLOW_ACTION_ESP_CREATE: u16 = 0;
    /// Destroys a flow action.
    pub const UVERBS_METHOD_FLOW_ACTION_DESTROY: u16 = 1;
    /// Changes an ESP action.
    pub const UVERBS_METHOD_FLOW_ACTION_ESP_MODIFY: u16 = 2;
    /// New flow action.
    pub const UVERBS_ATTR_CREATE_FLOW_ACTION_ESP_HANDLE: u16 = 0;
    /// In: [`ib_uverbs_flow_action_esp`](crate::verbs::ib_uverbs_flow_action_esp).
    pub const UVERBS_ATTR_FLOW_ACTION_ESP_ATTRS: u16 = 1;
    /// In, u32: high half of the extended sequence number.
    pub const UVERBS_ATTR_FLOW_ACTION_ESP_ESN: u16 = 2;
    /// In, enum attribute: key material, its kind in the element id.
    pub const UVERBS_ATTR_FLOW_ACTION_ESP_KEYMAT: u16 = 3;
    /// In, enum attribute: replay protection, its kind in the element id.
    pub const UVERBS_ATTR_FLOW_ACTION_ESP_REPLAY: u16 = 4;
    /// In: [`ib_uverbs_flow_action_esp_encap`](crate::verbs::ib_uverbs_flow_action_esp_encap).
    pub const UVERBS_ATTR_FLOW_ACTION_ESP_ENCAP: u16 = 5;
    /// The ESP action to change.
    pub const UVERBS_ATTR_MODIFY_FLOW_ACTION_ESP_HANDLE: u16 = 0;
    /// The flow action to destroy.
    pub const UVERBS_ATTR_DESTROY_FLOW_ACTION_HANDLE: u16 = 0;

    /// Creates a counter set.
    pub const UVERBS_METHOD_COUNTERS_CREATE: u16 = 0;
    /// Destroys a counter set.
    pub const UVERBS_METHOD_COUNTERS_DESTROY: u16 = 1;
    /// Reads a counter set.
    pub const UVERBS_METHOD_COUNTERS_READ: u16 = 2;
    /// New counter set.
    pub const UVERBS_ATTR_CREATE_COUNTERS_HANDLE: u16 = 0;
    /// The counter set to destroy.
    pub const UVERBS_ATTR_DESTROY_COUNTERS_HANDLE: u16 = 0;
    /// In: the counter set.
    pub const UVERBS_ATTR_READ_COUNTERS_HANDLE: u16 = 0;
    /// Out, array of u64: the values.
    pub const UVERBS_ATTR_READ_COUNTERS_BUFF: u16 = 1;
    /// In, optional u32 flags: `IB_UVERBS_READ_COUNTERS_*`.
    pub const UVERBS_ATTR_READ_COUNTERS_FLAGS: u16 = 2;
}
