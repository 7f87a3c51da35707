/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The commands of the fake device: those that both drivers need to create queues and post to them, and no others.
 *
 * The answers are those of a ConnectX-6 Dx on RoCE, with dynamic UAR pages and CQE version 1. Objects are never destroyed: the
 * benchmarks keep theirs until the process exits.
 */
#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include "shim.h"

__attribute__((visibility("default"))) struct shim_seen shim_seen;

static uint32_t next_handle = 1, next_page = 16, next_qpn = 0xa1b200, next_cqn = 0x400, next_srqn = 0xd00, next_key = 0x181a00;

/* ------------------------------------------------------------------------------------------------------------- attributes */
typedef struct ib_uverbs_ioctl_hdr call_t;

static struct ib_uverbs_attr *attr(call_t *call, unsigned id)
{
	for (int i = 0; i < call->num_attrs; i++)
		if (call->attrs[i].attr_id == id)
			return &call->attrs[i];
	return NULL;
}
/* An input of at most so many bytes; bytes that the caller did not send are 0. */
static void in(call_t *call, unsigned id, void *to, size_t size)
{
	struct ib_uverbs_attr *a = attr(call, id);

	memset(to, 0, size);
	if (a)
		memcpy(to, a->len <= 8 ? (void *)&a->data : (void *)(uintptr_t)a->data, a->len < size ? a->len : size);
}
static uint32_t in_u32(call_t *call, unsigned id)
{
	uint32_t value;

	in(call, id, &value, sizeof(value));
	return value;
}
/* An output. The rest of the caller's buffer is set to 0. `from` may be the same memory. */
static void out(call_t *call, unsigned id, const void *from, size_t size)
{
	struct ib_uverbs_attr *a = attr(call, id);

	if (!a)
		return;
	size = size < a->len ? size : a->len;
	memmove((void *)(uintptr_t)a->data, from, size);
	memset((char *)(uintptr_t)a->data + size, 0, a->len - size);
	a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}
static void out_u32(call_t *call, unsigned id, uint32_t value) { out(call, id, &value, sizeof(value)); }
static void out_u64(call_t *call, unsigned id, uint64_t value) { out(call, id, &value, sizeof(value)); }
static void out_object(call_t *call, unsigned id)
{
	struct ib_uverbs_attr *a = attr(call, id);

	if (a)
		a->data = next_handle++;
}

/* ----------------------------------------------------------------------------------------------- attributes of the device */
static const struct ib_uverbs_query_device_resp device = {
	.fw_ver = 22ull << 32 | 36 << 16 | 1010,
	.max_mr_size = ~0ull,
	.page_size_cap = ~0xfffull,
	.vendor_id = 0x02c9,
	.vendor_part_id = 4125,
	.max_qp = 1 << 17,
	.max_qp_wr = 1 << 15,
	.device_cap_flags = 0xed721c36,
	.max_sge = 30,
	.max_sge_rd = 30,
	.max_cq = 1 << 24,
	.max_cqe = (1 << 22) - 1,
	.max_mr = 1 << 24,
	.max_pd = 1 << 24,
	.max_qp_rd_atom = 16,
	.max_res_rd_atom = 1 << 22,
	.max_qp_init_rd_atom = 16,
	.atomic_cap = 1, /* IB_ATOMIC_HCA */
	.max_mw = 1 << 24,
	.max_ah = 0x7fffffff,
	.max_srq = 1 << 23,
	.max_srq_wr = (1 << 15) - 1,
	.max_srq_sge = 31,
	.max_pkeys = 128,
	.local_ca_ack_delay = 16,
	.phys_port_cnt = 1,
};
static const struct ib_uverbs_query_port_resp port = {
	.port_cap_flags = 0x04010000,
	.max_msg_sz = 1 << 30,
	.gid_tbl_len = 255,
	.pkey_tbl_len = 1,
	.state = 4, /* active */
	.max_mtu = 5,
	.active_mtu = 3,
	.active_width = 2,
	.active_speed = 64,
	.phys_state = 5,
	.link_layer = 2, /* Ethernet */
};
/* The GID of 192.168.1.10, RoCE v2. */
static const uint8_t gid[16] = { [10] = 0xff, [11] = 0xff, [12] = 192, [13] = 168, [14] = 1, [15] = 10 };

static void get_context(call_t *call)
{
	struct mlx5_ib_alloc_ucontext_resp r = {
		.qp_tab_size = 1 << 18,
		.bf_reg_size = 512,
		.cache_line_size = 64,
		.max_sq_desc_sz = 1024,
		.max_rq_desc_sz = 512,
		.max_send_wqebb = 1 << 15,
		.max_recv_wr = 1 << 15,
		.max_srq_recv_wr = 1 << 15,
		.num_ports = 1,
		.response_length = sizeof(r),
		.cqe_version = 1,
		.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH,
		.eth_min_inline = MLX5_USER_INLINE_MODE_NONE,
		.log_uar_size = 12,
		.num_uars_per_page = 1,
	};

	out_u32(call, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 8);
	out_u64(call, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS);
	out(call, UVERBS_ATTR_UHW_OUT, &r, sizeof(r));
}

static int query_gid(call_t *call)
{
	struct ib_uverbs_gid_entry entry = {
		.gid_index = in_u32(call, UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX),
		.port_num = 1,
		.gid_type = 2, /* RoCE v2 */
		.netdev_ifindex = 1,
	};

	if (entry.gid_index > 3)
		return ENODATA;
	memcpy(entry.gid, gid, sizeof(gid));
	out(call, UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY, &entry, sizeof(entry));
	return 0;
}

/* ----------------------------------------------------------------------------------------------------------------- queues */
static void create_cq(call_t *call)
{
	struct mlx5_ib_create_cq request;
	struct mlx5_ib_create_cq_resp response = { .cqn = ++next_cqn };

	in(call, UVERBS_ATTR_UHW_IN, &request, sizeof(request));
	shim_seen.cq_ring = request.buf_addr;
	in(call, UVERBS_ATTR_CREATE_CQ_USER_HANDLE, &shim_seen.cq_handle, sizeof(shim_seen.cq_handle));
	out_object(call, UVERBS_ATTR_CREATE_CQ_HANDLE);
	out_u32(call, UVERBS_ATTR_CREATE_CQ_RESP_CQE, in_u32(call, UVERBS_ATTR_CREATE_CQ_CQE));
	out(call, UVERBS_ATTR_UHW_OUT, &response, sizeof(response));
}

static void create_qp(call_t *call)
{
	struct mlx5_ib_create_qp request;
	struct mlx5_ib_create_qp_resp response = { .bfreg_index = ~0u }; /* the caller brought a UAR page */
	struct ib_uverbs_qp_cap cap;

	in(call, UVERBS_ATTR_UHW_IN, &request, sizeof(request));
	in(call, UVERBS_ATTR_CREATE_QP_CAP, &cap, sizeof(cap));
	shim_seen.user_index = request.uidx;
	shim_seen.qp_record = request.db_addr;
	out_object(call, UVERBS_ATTR_CREATE_QP_HANDLE);
	out(call, UVERBS_ATTR_CREATE_QP_RESP_CAP, &cap, sizeof(cap));
	out_u32(call, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, ++next_qpn);
	out(call, UVERBS_ATTR_UHW_OUT, &response, sizeof(response));
}

static void create_srq(call_t *call)
{
	struct mlx5_ib_create_srq request;
	struct mlx5_ib_create_srq_resp response = { .srqn = ++next_srqn };

	in(call, UVERBS_ATTR_UHW_IN, &request, sizeof(request));
	shim_seen.srq_ring = request.buf_addr;
	out_object(call, UVERBS_ATTR_CREATE_SRQ_HANDLE);
	out_u32(call, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_WR, in_u32(call, UVERBS_ATTR_CREATE_SRQ_MAX_WR));
	out_u32(call, UVERBS_ATTR_CREATE_SRQ_RESP_MAX_SGE, in_u32(call, UVERBS_ATTR_CREATE_SRQ_MAX_SGE));
	out_u32(call, UVERBS_ATTR_CREATE_SRQ_RESP_SRQ_NUM, response.srqn);
	out(call, UVERBS_ATTR_UHW_OUT, &response, sizeof(response));
}

static void alloc_uar(call_t *call)
{
	uint32_t page = next_page++;

	out_object(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
	out_u64(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET, (uint64_t)page << 28);
	out_u32(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH, 4096);
	out_u32(call, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID, page);
}

/* ------------------------------------------------------------------------------------------- commands of the write interface */
#define EXTENDED(command) ((command) | IB_USER_VERBS_CMD_FLAG_EXTENDED)
#define RESPOND(...)                                                                   \
	do {                                                                           \
		__VA_ARGS__;                                                           \
		out(call, UVERBS_ATTR_CORE_OUT, &r, sizeof(r));                        \
	} while (0)

static void query_device(call_t *call)
{
	struct mlx5_ib_query_device_resp d = {
		.response_length = sizeof(d),
		.tso_caps = { .max_tso = 1 << 18, .supported_qpts = 1 << 8 /* IBV_QPT_RAW_PACKET */ },
	};

	RESPOND(struct ib_uverbs_ex_query_device_resp r = { .base = device, .response_length = sizeof(r) });
	out(call, UVERBS_ATTR_UHW_OUT, &d, sizeof(d));
}

static void create_ah(call_t *call)
{
	struct mlx5_ib_create_ah_resp d = { .response_length = sizeof(d), .dmac = { 2, 0, 10, 0, 0, 7 } };

	RESPOND(struct ib_uverbs_create_ah_resp r = { .ah_handle = next_handle++ });
	out(call, UVERBS_ATTR_UHW_OUT, &d, sizeof(d));
}

/* A channel: a read returns one event, as that of the kernel does. */
static int create_channel(call_t *call)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds))
		return errno;
	shim_seen.event_fd = fds[1];
	RESPOND(struct ib_uverbs_create_comp_channel_resp r = { .fd = fds[0] });
	return 0;
}

static int invoke_write(call_t *call)
{
	switch (in_u32(call, UVERBS_ATTR_WRITE_CMD)) {
	case EXTENDED(IB_USER_VERBS_EX_CMD_QUERY_DEVICE):
		query_device(call);
		return 0;
	case IB_USER_VERBS_CMD_QUERY_DEVICE:
		/* Without an output, the caller queries whether the command exists. */
		if (!attr(call, UVERBS_ATTR_CORE_OUT))
			return ENOSPC;
		RESPOND(struct ib_uverbs_query_device_resp r = device);
		return 0;
	case IB_USER_VERBS_CMD_QUERY_PORT:
		RESPOND(struct ib_uverbs_query_port_resp r = port);
		return 0;
	case IB_USER_VERBS_CMD_ALLOC_PD: {
		struct mlx5_ib_alloc_pd_resp d = { .pdn = next_handle };

		RESPOND(struct ib_uverbs_alloc_pd_resp r = { .pd_handle = next_handle++ });
		out(call, UVERBS_ATTR_UHW_OUT, &d, sizeof(d));
		return 0;
	}
	case IB_USER_VERBS_CMD_REG_MR:
		next_key += 0x100;
		RESPOND(struct ib_uverbs_reg_mr_resp r = { .mr_handle = next_handle++, .lkey = next_key, .rkey = next_key });
		return 0;
	case IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL:
		return create_channel(call);
	case IB_USER_VERBS_CMD_ALLOC_MW:
		next_key += 0x100;
		RESPOND(struct ib_uverbs_alloc_mw_resp r = { .mw_handle = next_handle++, .rkey = next_key });
		return 0;
	case IB_USER_VERBS_CMD_CREATE_AH:
		create_ah(call);
		return 0;
	case IB_USER_VERBS_CMD_MODIFY_QP:
		return 0;
	case EXTENDED(IB_USER_VERBS_EX_CMD_MODIFY_QP): {
		struct mlx5_ib_modify_qp_resp d = { .response_length = sizeof(d) };

		RESPOND(struct ib_uverbs_ex_modify_qp_resp r = { .response_length = sizeof(r) });
		out(call, UVERBS_ATTR_UHW_OUT, &d, sizeof(d));
		return 0;
	}
	}
	return EOPNOTSUPP;
}

#define METHOD(object, method) ((object) << 16 | (method))

int kernel_ioctl(call_t *call)
{
	switch (METHOD(call->object_id, call->method_id)) {
	case METHOD(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE):
		return invoke_write(call);
	case METHOD(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT):
		get_context(call);
		return 0;
	case METHOD(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_PORT): {
		struct ib_uverbs_query_port_resp_ex r = { .legacy_resp = port };

		out(call, UVERBS_ATTR_QUERY_PORT_RESP, &r, sizeof(r));
		return 0;
	}
	case METHOD(UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_GID_ENTRY):
		return query_gid(call);
	case METHOD(UVERBS_OBJECT_ASYNC_EVENT, UVERBS_METHOD_ASYNC_EVENT_ALLOC):
		attr(call, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)->data_s64 = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		return 0;
	case METHOD(UVERBS_OBJECT_CQ, UVERBS_METHOD_CQ_CREATE):
		create_cq(call);
		return 0;
	case METHOD(UVERBS_OBJECT_QP, UVERBS_METHOD_QP_CREATE):
		create_qp(call);
		return 0;
	case METHOD(UVERBS_OBJECT_SRQ, UVERBS_METHOD_SRQ_CREATE):
		create_srq(call);
		return 0;
	case METHOD(MLX5_IB_OBJECT_UAR, MLX5_IB_METHOD_UAR_OBJ_ALLOC):
		alloc_uar(call);
		return 0;
	}
	return EPROTONOSUPPORT;
}
