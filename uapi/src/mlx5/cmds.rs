// SPDX-License-Identifier: MIT OR Apache-2.0
//! Objects, methods and attributes that the mlx5 driver adds to the ioctl interface.
//!
//! Facts from `<rdma/mlx5_user_ioctl_cmds.h>`, SPDX-less with the text of `GPL-2.0 OR Linux-OpenIB`. Ids are in the
//! driver namespace; conventions as in [`ids`](crate::ids).

use crate::ids::{UVERBS_ID_DRIVER_NS, UVERBS_ID_DRIVER_NS_WITH_UHW};
use crate::layout::abi_consts;

abi_consts! {
    /// Steering matcher.
    pub const MLX5_IB_OBJECT_FLOW_MATCHER: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// Creates a matcher.
    pub const MLX5_IB_METHOD_FLOW_MATCHER_CREATE: u16 = UVERBS_ID_DRIVER_NS;
    /// Destroys a matcher.
    pub const MLX5_IB_METHOD_FLOW_MATCHER_DESTROY: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// New matcher.
    pub const MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In: the mask, in the format of the PRM.
    pub const MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// In, `MLX5_IB_FLOW_TYPE_*`: the u16 priority of [`MLX5_IB_FLOW_TYPE_NORMAL`].
    pub const MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// In, u8: the parts of the mask that are used.
    pub const MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// In, flags: `enum ib_flow_flags`.
    pub const MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS: u16 = UVERBS_ID_DRIVER_NS + 4;
    /// In, constant: `MLX5_IB_UAPI_FLOW_TABLE_TYPE_*`.
    pub const MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE: u16 = UVERBS_ID_DRIVER_NS + 5;
    /// In, u32: the port. Kernels of 2025 and later.
    pub const MLX5_IB_ATTR_FLOW_MATCHER_IB_PORT: u16 = UVERBS_ID_DRIVER_NS + 6;
    /// The matcher to destroy.
    pub const MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// A matcher of rules of a program.
    pub const MLX5_IB_FLOW_TYPE_NORMAL: u8 = 0;

    /// Adds a rule to a matcher. A method of the flow object.
    pub const MLX5_IB_METHOD_CREATE_FLOW: u16 = UVERBS_ID_DRIVER_NS;
    /// New rule.
    pub const MLX5_IB_ATTR_CREATE_FLOW_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In: the value, as long as the mask.
    pub const MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// The QP that receives the packets.
    pub const MLX5_IB_ATTR_CREATE_FLOW_DEST_QP: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// The object of a command that gets the packets.
    pub const MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// The matcher.
    pub const MLX5_IB_ATTR_CREATE_FLOW_MATCHER: u16 = UVERBS_ID_DRIVER_NS + 4;
    /// In, u32: the flow tag.
    pub const MLX5_IB_ATTR_CREATE_FLOW_TAG: u16 = UVERBS_ID_DRIVER_NS + 6;
    /// In: a list of one counter, the object of a command.
    pub const MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX: u16 = UVERBS_ID_DRIVER_NS + 7;
    /// In: a list of one u32, the offset of the counter in a bulk.
    pub const MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX_OFFSET: u16 = UVERBS_ID_DRIVER_NS + 8;
    /// In, flags: `MLX5_IB_ATTR_CREATE_FLOW_FLAGS_*`.
    pub const MLX5_IB_ATTR_CREATE_FLOW_FLAGS: u16 = UVERBS_ID_DRIVER_NS + 9;
    /// Packets go where those without a rule go.
    pub const MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS: u32 = 1 << 0;
    /// Packets are dropped.
    pub const MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP: u32 = 1 << 1;

    /// Doorbell page.
    pub const MLX5_IB_OBJECT_UAR: u16 = UVERBS_ID_DRIVER_NS + 8;

    /// Allocates a UAR.
    pub const MLX5_IB_METHOD_UAR_OBJ_ALLOC: u16 = UVERBS_ID_DRIVER_NS;
    /// Frees a UAR.
    pub const MLX5_IB_METHOD_UAR_OBJ_DESTROY: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// New UAR.
    pub const MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In, constant: [`MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF`](super::MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF) or the other.
    pub const MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out, u64: offset for mmap.
    pub const MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// Out, u32: bytes to map.
    pub const MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// Out, u32: page number that QPs and CQs name.
    pub const MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID: u16 = UVERBS_ID_DRIVER_NS + 4;
    /// The UAR to free.
    pub const MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE: u16 = UVERBS_ID_DRIVER_NS;

    /// Out, u64, on allocating device memory: its offset in the mapped page.
    pub const MLX5_IB_ATTR_ALLOC_DM_RESP_START_OFFSET: u16 = UVERBS_ID_DRIVER_NS;
    /// Out, u16, on allocating device memory: page for mmap.
    pub const MLX5_IB_ATTR_ALLOC_DM_RESP_PAGE_INDEX: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// In, constant, on allocating device memory: `MLX5_IB_UAPI_DM_TYPE_*`.
    pub const MLX5_IB_ATTR_ALLOC_DM_REQ_TYPE: u16 = UVERBS_ID_DRIVER_NS + 2;

    /// Reads a PD's hardware number.
    pub const MLX5_IB_METHOD_PD_QUERY: u16 = UVERBS_ID_DRIVER_NS;
    /// The PD.
    pub const MLX5_IB_ATTR_QUERY_PD_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// Out, u32: the number.
    pub const MLX5_IB_ATTR_QUERY_PD_RESP_PDN: u16 = UVERBS_ID_DRIVER_NS + 1;

    /// Reports the location and size of device memory.
    pub const MLX5_IB_METHOD_DM_QUERY: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// The device memory.
    pub const MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// Out, u64: offset in the first page.
    pub const MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out, u16: index of the page to map.
    pub const MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// Out, u64: bytes.
    pub const MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH: u16 = UVERBS_ID_DRIVER_NS + 3;

    /// Out, on querying the context: [`mlx5_ib_alloc_ucontext_resp`](super::mlx5_ib_alloc_ucontext_resp).
    pub const MLX5_IB_ATTR_QUERY_CONTEXT_RESP_UCTX: u16 = UVERBS_ID_DRIVER_NS;

    /// Packet pacing entry.
    pub const MLX5_IB_OBJECT_PP: u16 = UVERBS_ID_DRIVER_NS + 7;
    /// Allocates a packet pacing entry.
    pub const MLX5_IB_METHOD_PP_OBJ_ALLOC: u16 = UVERBS_ID_DRIVER_NS;
    /// Frees a packet pacing entry.
    pub const MLX5_IB_METHOD_PP_OBJ_DESTROY: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// New entry.
    pub const MLX5_IB_ATTR_PP_OBJ_ALLOC_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In: its context in the format of the PRM.
    pub const MLX5_IB_ATTR_PP_OBJ_ALLOC_CTX: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// In, constant: [`MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX`].
    pub const MLX5_IB_ATTR_PP_OBJ_ALLOC_FLAGS: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// Out, u16: its index.
    pub const MLX5_IB_ATTR_PP_OBJ_ALLOC_INDEX: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// The entry to free.
    pub const MLX5_IB_ATTR_PP_OBJ_DESTROY_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// No other entry has the same index.
    pub const MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX: u32 = 1;

    /// Doorbell page of an emulated virtio device (VAR).
    pub const MLX5_IB_OBJECT_VAR: u16 = UVERBS_ID_DRIVER_NS + 6;
    /// Allocates such a page.
    pub const MLX5_IB_METHOD_VAR_OBJ_ALLOC: u16 = UVERBS_ID_DRIVER_NS;
    /// Frees such a page.
    pub const MLX5_IB_METHOD_VAR_OBJ_DESTROY: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// New page.
    pub const MLX5_IB_ATTR_VAR_OBJ_ALLOC_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// Out, u64: offset for mmap.
    pub const MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_OFFSET: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out, u32: bytes to map.
    pub const MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_LENGTH: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// Out, u32: page number.
    pub const MLX5_IB_ATTR_VAR_OBJ_ALLOC_PAGE_ID: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// The page to free.
    pub const MLX5_IB_ATTR_VAR_OBJ_DESTROY_HANDLE: u16 = UVERBS_ID_DRIVER_NS;

    /// Reads a port's virtual port and steering data.
    pub const MLX5_IB_METHOD_QUERY_PORT: u16 = UVERBS_ID_DRIVER_NS;
    /// In, u32: the port.
    pub const MLX5_IB_ATTR_QUERY_PORT_PORT_NUM: u16 = UVERBS_ID_DRIVER_NS;
    /// Out: `struct mlx5_ib_uapi_query_port`.
    pub const MLX5_IB_ATTR_QUERY_PORT: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Reads the sysfs path of the PCI function for direct data transfers. Kernels of 2024 and later.
    pub const MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out: the path, with a 0 byte at its end.
    pub const MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH: u16 = UVERBS_ID_DRIVER_NS;

    /// In, optional u32 flags, on registering a dma-buf: `MLX5_IB_UAPI_REG_DMABUF_ACCESS_*`. Kernels of 2024 and later.
    pub const MLX5_IB_ATTR_REG_DMABUF_MR_ACCESS_FLAGS: u16 = UVERBS_ID_DRIVER_NS;
    /// The device reads and writes the memory through its PCI function for direct data transfers.
    pub const MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT: u32 = 1 << 0;

    /// In, optional u32 constant, on creating a CQ: UAR page. Kernels of 2024 and later.
    pub const MLX5_IB_ATTR_CREATE_CQ_UAR_INDEX: u16 = UVERBS_ID_DRIVER_NS_WITH_UHW;
}
