// SPDX-License-Identifier: MIT OR Apache-2.0
//! DEVX: commands for the firmware, and the objects that they create, through the ioctl interface.
//!
//! Facts from `<rdma/mlx5_user_ioctl_cmds.h>` and `<rdma/mlx5_user_ioctl_verbs.h>`, SPDX-less with the text of `GPL-2.0 OR
//! Linux-OpenIB`. Ids are in the driver namespace; conventions as in [`ids`](crate::ids). A `CMD_IN` and a `CMD_OUT` are mailboxes
//! in the format of the PRM.

use crate::ids::UVERBS_ID_DRIVER_NS;
use crate::layout::abi_consts;

abi_consts! {
    /// The device, for commands that refer to no object.
    pub const MLX5_IB_OBJECT_DEVX: u16 = UVERBS_ID_DRIVER_NS;
    /// An object that a command creates.
    pub const MLX5_IB_OBJECT_DEVX_OBJ: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Memory of the process that commands name.
    pub const MLX5_IB_OBJECT_DEVX_UMEM: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// A file with the answers of commands that run in the background.
    pub const MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD: u16 = UVERBS_ID_DRIVER_NS + 4;
    /// A file with the events of objects.
    pub const MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD: u16 = UVERBS_ID_DRIVER_NS + 5;

    /// Executes a command that creates no object.
    pub const MLX5_IB_METHOD_DEVX_OTHER: u16 = UVERBS_ID_DRIVER_NS;
    /// Reads the device's number of a UAR.
    pub const MLX5_IB_METHOD_DEVX_QUERY_UAR: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Reads the event queue of a completion vector.
    pub const MLX5_IB_METHOD_DEVX_QUERY_EQN: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// Subscribes to events of an object, or of the device.
    pub const MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT: u16 = UVERBS_ID_DRIVER_NS + 3;

    /// In: the command.
    pub const MLX5_IB_ATTR_DEVX_OTHER_CMD_IN: u16 = UVERBS_ID_DRIVER_NS;
    /// Out: its answer.
    pub const MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// In, u32: a completion vector.
    pub const MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC: u16 = UVERBS_ID_DRIVER_NS;
    /// Out, u32: the number of its event queue.
    pub const MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN: u16 = UVERBS_ID_DRIVER_NS + 1;

    /// Creates an object.
    pub const MLX5_IB_METHOD_DEVX_OBJ_CREATE: u16 = UVERBS_ID_DRIVER_NS;
    /// Destroys an object.
    pub const MLX5_IB_METHOD_DEVX_OBJ_DESTROY: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Modifies an object of DEVX or of verbs.
    pub const MLX5_IB_METHOD_DEVX_OBJ_MODIFY: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// Queries an object of DEVX or of verbs.
    pub const MLX5_IB_METHOD_DEVX_OBJ_QUERY: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// Queries an object asynchronously.
    pub const MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY: u16 = UVERBS_ID_DRIVER_NS + 4;
    /// New object.
    pub const MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In: the command.
    pub const MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out: its answer.
    pub const MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// The object to destroy.
    pub const MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// The object to modify.
    pub const MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In: the command.
    pub const MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out: its answer.
    pub const MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// The object to query.
    pub const MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In: the command.
    pub const MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out: its answer.
    pub const MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// The object to query.
    pub const MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In: the command.
    pub const MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// The file for its answer.
    pub const MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// In, u64: returned with the answer.
    pub const MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// In, constant: bytes of the answer.
    pub const MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN: u16 = UVERBS_ID_DRIVER_NS + 4;

    /// The file for the events.
    pub const MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// The object whose events are requested; if absent, those of the device.
    pub const MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// In: event types, 16 bits each.
    pub const MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// In, u32: the descriptor of an eventfd(2) that counts the events instead.
    pub const MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// In, u64: returned with each event.
    pub const MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE: u16 = UVERBS_ID_DRIVER_NS + 4;

    /// Registers memory.
    pub const MLX5_IB_METHOD_DEVX_UMEM_REG: u16 = UVERBS_ID_DRIVER_NS;
    /// Deregisters memory.
    pub const MLX5_IB_METHOD_DEVX_UMEM_DEREG: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// New memory.
    pub const MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In, u64: its address.
    pub const MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// In, u64: its bytes.
    pub const MLX5_IB_ATTR_DEVX_UMEM_REG_LEN: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// In, flags: the device's access.
    pub const MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS: u16 = UVERBS_ID_DRIVER_NS + 3;
    /// Out, u32: its number in commands.
    pub const MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID: u16 = UVERBS_ID_DRIVER_NS + 4;
    /// In, optional u64: mask of the page sizes that the commands may use.
    pub const MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP: u16 = UVERBS_ID_DRIVER_NS + 5;
    /// In, optional u32: descriptor of the DMA-BUF with the memory, whose address is then an offset.
    pub const MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD: u16 = UVERBS_ID_DRIVER_NS + 6;
    /// The memory to deregister.
    pub const MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE: u16 = UVERBS_ID_DRIVER_NS;

    /// Creates the file.
    pub const MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC: u16 = UVERBS_ID_DRIVER_NS;
    /// New file.
    pub const MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// Creates the file.
    pub const MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC: u16 = UVERBS_ID_DRIVER_NS;
    /// New file.
    pub const MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In, flags: [`MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA`].
    pub const MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Events consist of their cookie only.
    pub const MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA: u32 = 1;

    /// Maps a page by which the CPU executes an operation on device memory.
    pub const MLX5_IB_METHOD_DM_MAP_OP_ADDR: u16 = UVERBS_ID_DRIVER_NS;
    /// The device memory.
    pub const MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE: u16 = UVERBS_ID_DRIVER_NS;
    /// In, u8: the operation.
    pub const MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_OP: u16 = UVERBS_ID_DRIVER_NS + 1;
    /// Out, u64: the offset of the memory in the page.
    pub const MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET: u16 = UVERBS_ID_DRIVER_NS + 2;
    /// Out, u16: the page for mmap.
    pub const MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX: u16 = UVERBS_ID_DRIVER_NS + 3;
}
