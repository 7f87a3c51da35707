/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Commands for the firmware: a completion queue, a queue pair and a key that are not objects of the kernel's verbs, in
 * memory of this program. A message goes from the queue pair to itself. Needs a device with user contexts. */
#include "direct.h"

/* Opcodes and event types of the PRM. */
enum {
	QUERY_HCA_CAP = 0x100, CREATE_MKEY = 0x200, CREATE_CQ = 0x400, QUERY_CQ = 0x402, CREATE_QP = 0x500, RST2INIT_QP = 0x502,
	INIT2RTR_QP, RTR2RTS_QP, QUERY_QP = 0x50b, COMPLETION = 0,
};

/* The layout of the memory. */
enum { CQ_RING = 0, RQ_RING = 0x1000, SQ_RING = 0x1040, CQ_RECORD = 0x2000, QP_RECORD = 0x2040, DATA = 0x3000, BYTES = 0x4000 };

static struct ibv_context *context;
static struct ibv_port_attr port;

static void *command(void *in, int opcode)
{
	memset(in, 0, 1024);
	_devx_set(in, opcode, 0, 16);
	return in;
}

static uint32_t number_of(const void *out)
{
	return _devx_get(out, 0x48, 24);
}

static void set64(void *at, size_t bit, uint64_t value)
{
	_devx_set64(at, value, bit);
}

static struct mlx5dv_devx_obj *create(void *in, size_t len, uint32_t *number)
{
	char out[16] = { 0 };
	struct mlx5dv_devx_obj *obj = mlx5dv_devx_obj_create(context, in, len, out, sizeof(out));
	if (!obj)
		fprintf(stderr, "status %#x\n", out[0]);
	CHECK(obj && out[0] == 0);
	*number = number_of(out);
	return obj;
}

static void modify(struct mlx5dv_devx_obj *qp, uint32_t qpn, int opcode, const struct ibv_gid_entry *gid, struct mlx5_wqe_av *av)
{
	char in[1024] __attribute__((aligned(8))), out[16] = { 0 };
	char *qpc = (char *)command(in, opcode) + 0x18, *path = qpc + 0xc0 / 8;
	_devx_set(in, qpn, 0x48, 24);
	_devx_set(qpc, 3, 0x40, 3);	  /* MTU 1024 */
	_devx_set(qpc, 30, 0x43, 5);	  /* The longest message. */
	_devx_set(qpc, qpn, 0xa8, 24);	  /* The peer. */
	_devx_set(qpc, 7, 0x38d, 3);	  /* Retries. */
	_devx_set(qpc, 7, 0x390, 3);
	_devx_set(qpc, 12, 0x4a3, 5);
	_devx_set(qpc, 1, 0x491, 1);	  /* Remote writes. */
	_devx_set(path, PORT, 0x128, 8);
	_devx_set(path, 14, 0x40, 5);	  /* Timeout. */
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		_devx_set(path, gid->gid_index, 0x48, 8);
		_devx_set(path, 64, 0x58, 8);
		memcpy(path + 0x80 / 8, gid->gid.raw, 16);
		_devx_set(path, 0xc000, 0x110, 16);
		memcpy(path + 0x130 / 8, av->rmac, 6);
	} else {
		_devx_set(path, port.lid, 0x30, 16);
	}
	CHECK(mlx5dv_devx_obj_modify(qp, in, 0x110, out, sizeof(out)) == 0 && out[0] == 0);
}

int main(int argc, char **argv)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count > 0);
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	CHECK(context = mlx5dv_open_device(list[0], &attr));
	ibv_free_device_list(list);
	CHECK(ibv_query_port(context, PORT, &port) == 0);
	int gid_index = argc > 1 ? atoi(argv[1]) : 0;

	/* The device's capabilities; a command that the device does not have; one that the kernel refuses. */
	char in[1024] __attribute__((aligned(8))), out[16 + 4096] __attribute__((aligned(8)));
	command(in, QUERY_HCA_CAP);
	_devx_set(in, 1, 0x30, 16);
	CHECK(mlx5dv_devx_general_cmd(context, in, 16, out, sizeof(out)) == 0 && out[0] == 0);
	CHECK(_devx_get(out + 16, 0x463, 5) != 0);
	CHECK(mlx5dv_devx_general_cmd(context, NULL, 16, out, sizeof(out)) == EINVAL);
	command(in, CREATE_CQ);
	CHECK(mlx5dv_devx_general_cmd(context, in, 0x110, out, 16) != 0);

	/* Memory, doorbells, a domain. */
	char *memory = aligned_alloc(4096, BYTES);
	memset(memory, 0, BYTES);
	for (int i = 0; i < 16; i++)
		memory[CQ_RING + 64 * i + 63] = MLX5_CQE_INVALID << 4 | 1;
	struct mlx5dv_devx_umem *umem = mlx5dv_devx_umem_reg(context, memory, BYTES, IBV_ACCESS_LOCAL_WRITE);
	CHECK(umem);
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	CHECK(uar);
	/* MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED, which the header of rdma-core 44 lacks: a page of its own. */
	struct mlx5dv_devx_uar *dedicated = mlx5dv_devx_alloc_uar(context, 1u << 31);
	CHECK(dedicated && dedicated->page_id != uar->page_id && dedicated->base_addr != uar->base_addr);
	mlx5dv_devx_free_uar(dedicated);
	errno = 0;
	CHECK(!mlx5dv_devx_alloc_uar(context, 1u << 30) && errno == EOPNOTSUPP);
	uint32_t eqn, cqn, qpn, mkey;
	CHECK(mlx5dv_devx_query_eqn(context, 0, &eqn) == 0);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct mlx5dv_pd raw_pd;
	struct mlx5dv_obj obj = { .pd = { pd, &raw_pd } };
	CHECK(pd && mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD) == 0);

	char *cqc = (char *)command(in, CREATE_CQ) + 0x10;
	set64(in, 0x280, CQ_RING);
	_devx_set(in, umem->umem_id, 0x2c0, 32);
	_devx_set(in, 1, 0x2e0, 1);
	_devx_set(cqc, 1, 6, 1);
	_devx_set(cqc, umem->umem_id, 0x20, 32);
	_devx_set(cqc, 4, 0x63, 5);
	_devx_set(cqc, uar->page_id, 0x68, 24);
	_devx_set(cqc, eqn, 0xb8, 8);
	set64(cqc, 0x1c0, CQ_RECORD);
	struct mlx5dv_devx_obj *cq = create(in, 0x110, &cqn);

	char *qpc = (char *)command(in, CREATE_QP) + 0x18;
	set64(in, 0x800, RQ_RING);
	_devx_set(in, umem->umem_id, 0x840, 32);
	_devx_set(in, 1, 0x860, 1);
	_devx_set(qpc, 3, 0x13, 2);	     /* Migrated. */
	_devx_set(qpc, raw_pd.pdn, 0x28, 24);
	_devx_set(qpc, 2, 0x49, 4);	     /* 4 receives of 16 bytes, */
	_devx_set(qpc, 2, 0x51, 4);	     /* 4 blocks. */
	_devx_set(qpc, uar->page_id, 0x68, 24);
	_devx_set(qpc, cqn, 0x3e8, 24);
	_devx_set(qpc, cqn, 0x4e8, 24);
	set64(qpc, 0x500, QP_RECORD);
	_devx_set(qpc, 1, 0x683, 1);
	_devx_set(qpc, umem->umem_id, 0x720, 32);
	struct mlx5dv_devx_obj *qp = create(in, 0x110, &qpn);

	char *mkc = (char *)command(in, CREATE_MKEY) + 0x10;
	_devx_set(in, umem->umem_id, 0x320, 32);
	set64(in, 0x340, DATA);
	_devx_set(in, 1, 0x61, 1);
	_devx_set(mkc, 1, 0x16, 2);	     /* Pages. */
	_devx_set(mkc, 3, 0x14, 2);	     /* Writes and reads on this side. */
	_devx_set(mkc, 0xffffff, 0x20, 24);  /* Of any QP. */
	_devx_set(mkc, 0x42, 0x38, 8);
	_devx_set(mkc, raw_pd.pdn, 0x68, 24);
	set64(mkc, 0x80, (uintptr_t)memory + DATA);
	set64(mkc, 0xc0, 4096);
	_devx_set(mkc, 12, 0x1db, 5);
	struct mlx5dv_devx_obj *key = create(in, 0x110, &mkey);
	mkey = mkey << 8 | 0x42;
	CHECK(mlx5dv_devx_umem_dereg(umem) != 0); /* In use. (A CQ that could not be destroyed would raise no more events.) */

	struct ibv_gid_entry gid;
	CHECK(ibv_query_gid_ex(context, PORT, gid_index, &gid, 0) == 0);
	struct mlx5dv_ah raw_ah = { 0 };
	struct ibv_ah *ah = NULL;
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		struct ibv_ah_attr address = { .is_global = 1, .port_num = PORT };
		address.grh = (struct ibv_global_route){ .dgid = gid.gid, .sgid_index = gid_index, .hop_limit = 64 };
		CHECK(ah = ibv_create_ah(pd, &address));
		obj.ah.in = ah;
		obj.ah.out = &raw_ah;
		CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH) == 0);
	}
	for (int opcode = RST2INIT_QP; opcode <= RTR2RTS_QP; opcode++)
		modify(qp, qpn, opcode, &gid, raw_ah.av);

	/* The state of the queue pair, queried synchronously and asynchronously. */
	struct mlx5dv_devx_cmd_comp *comp = mlx5dv_devx_create_cmd_comp(context);
	struct {
		struct mlx5dv_devx_async_cmd_hdr header;
		char out[0x110];
	} answer;
	CHECK(comp);
	command(in, QUERY_QP);
	_devx_set(in, qpn, 0x48, 24);
	CHECK(mlx5dv_devx_obj_query(qp, in, 16, out, 0x110) == 0 && _devx_get(out + 0x18, 0, 4) == 3);
	CHECK(mlx5dv_devx_obj_query_async(qp, in, 16, 0x110, 77, comp) == 0);
	CHECK(mlx5dv_devx_get_async_cmd_comp(comp, &answer.header, sizeof(answer)) == 0);
	CHECK(answer.header.wr_id == 77 && _devx_get(answer.out + 0x18, 0, 4) == 3);
	mlx5dv_devx_destroy_cmd_comp(comp);

	/* An event for the next completion. */
	struct mlx5dv_devx_event_channel *events =
		mlx5dv_devx_create_event_channel(context, MLX5DV_DEVX_CREATE_EVENT_CHANNEL_FLAGS_OMIT_EV_DATA);
	uint16_t type = COMPLETION;
	CHECK(events && mlx5dv_devx_subscribe_devx_event(events, cq, sizeof(type), &type, 0x1234) == 0);
	struct hand hand = {
		.qp = { .dbrec = (void *)(memory + QP_RECORD), .sq = { memory + SQ_RING, 4, 64 },
			.rq = { memory + RQ_RING, 4, 16 }, .bf = { uar->reg_addr, 0 } },
		.cq = { memory + CQ_RING, (void *)(memory + CQ_RECORD), 16, 64, uar->base_addr, cqn, 0 },
	};
	arm_by_hand(&hand);

	/* Messages from the queue pair to itself. */
	for (int i = 0; i < 40; i++) {
		sprintf(memory + DATA, "message %d", i);
		recv_by_hand(&hand, memory + DATA + 64, 32, mkey);
		send_by_hand(&hand, qpn, memory + DATA, 32, mkey);
		for (int j = 0; j < 2; j++) {
			uint8_t opcode = mlx5dv_get_cqe_opcode(poll_by_hand(&hand));
			CHECK(opcode == MLX5_CQE_REQ || opcode == MLX5_CQE_RESP_SEND);
		}
		CHECK(strcmp(memory + DATA, memory + DATA + 64) == 0);
	}
	struct mlx5dv_devx_async_event_hdr event = { 0 };
	CHECK(mlx5dv_devx_get_event(events, &event, sizeof(event)) == sizeof(event) && event.cookie == 0x1234);
	mlx5dv_devx_destroy_event_channel(events);

	CHECK(mlx5dv_devx_obj_destroy(qp) == 0 && mlx5dv_devx_obj_destroy(key) == 0 && mlx5dv_devx_obj_destroy(cq) == 0);
	CHECK(mlx5dv_devx_umem_dereg(umem) == 0);
	mlx5dv_devx_free_uar(uar);
	CHECK((!ah || ibv_destroy_ah(ah) == 0) && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	free(memory);
	puts("devx: ok");
	return 0;
}
