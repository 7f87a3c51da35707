/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Queue pairs whose receives may be consumed out of order (MLX5DV_QP_CREATE_OOO_DP): the device's limits, the size of the queue, and
 * messages, on every type; and a device that does not report them, because it has no commands for the firmware.
 */
#include "common.h"
#include <infiniband/mlx5dv.h>

/* The header of rdma-core 44 lacks them. */
enum { OOO_DP = 1 << 7, OOO_RECV_WRS = 1 << 16, CAPS_AT = 176, MOST = 16384 };
enum { MAX_RC, MAX_XRC, MAX_DCT, MAX_UD, MAX_UC, TYPES };

static struct end a, b;
static uint32_t caps[TYPES];

static void query(void)
{
	uint64_t space[32] = { 0 };
	struct mlx5dv_context *attrs = (void *)space;
	attrs->comp_mask = OOO_RECV_WRS;
	CHECK(mlx5dv_query_device(a.context, attrs) == 0 && attrs->comp_mask == OOO_RECV_WRS);
	memcpy(caps, (char *)space + CAPS_AT, sizeof(caps));
}

static struct mlx5dv_qp_init_attr flags(void)
{
	return (struct mlx5dv_qp_init_attr){
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
		.create_flags = OOO_DP,
	};
}

static struct ibv_qp *create(struct end *end, enum ibv_qp_type type, uint32_t receives, struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(end, type);
	struct mlx5dv_qp_init_attr mlx5_attr = flags();
	attr.cap.max_recv_wr = receives;
	attr.cap.max_recv_sge = 1;
	errno = 0;
	struct ibv_qp *qp = mlx5dv_create_qp(end->context, &attr, &mlx5_attr);
	if (cap)
		*cap = attr.cap;
	return qp;
}

/* Half of the ring can be posted; a ring of one receive is not divided. */
static void sizes(void)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_cap cap;
		struct ibv_qp *qp = create(&a, types[i], 5, &cap);
		CHECK(qp && cap.max_recv_wr == 8);
		struct ibv_qp_attr now;
		struct ibv_qp_init_attr init;
		CHECK(ibv_query_qp(qp, &now, IBV_QP_CAP, &init) == 0);
		CHECK(init.cap.max_recv_wr == 8 && now.cap.max_recv_wr == 8);
		to_init(qp);
		struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
		for (int n = 0; n < 8; n++)
			CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
		CHECK(ibv_post_recv(qp, &wr, &bad) == ENOMEM && bad == &wr);
		CHECK(ibv_destroy_qp(qp) == 0);
		CHECK(qp = create(&a, types[i], 1, &cap));
		CHECK(cap.max_recv_wr == 4 && ibv_destroy_qp(qp) == 0);
		CHECK(qp = create(&a, types[i], MOST, &cap));
		CHECK(cap.max_recv_wr == MOST && ibv_destroy_qp(qp) == 0);
		CHECK(!create(&a, types[i], MOST + 1, NULL) && errno == EINVAL);
	}
	struct ibv_qp *initiator = create(&a, IBV_QPT_XRC_SEND, 0, NULL);
	CHECK(initiator && ibv_destroy_qp(initiator) == 0);
	CHECK(!create(&a, IBV_QPT_RAW_PACKET, 4, NULL) && errno == EOPNOTSUPP);
}

static void messages(enum ibv_qp_type type)
{
	CHECK((a.qp = create(&a, type, 8, NULL)) && (b.qp = create(&b, type, 8, NULL)));
	connect_ends(&a, &b);
	struct ibv_ah *ah = NULL;
	struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	if (type == IBV_QPT_UD) {
		struct ibv_ah_attr to = address_of(&b);
		CHECK(ah = ibv_create_ah(a.pd, &to));
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = b.qp->qp_num;
		wr.wr.ud.remote_qkey = QKEY;
	}
	/* Three laps of the ring. */
	for (int n = 0; n < 48; n += 8) {
		for (int i = 0; i < 8; i++)
			post_recv(&b, n + i, 64 * i, 64);
		for (int i = 0; i < 8; i++) {
			wr.wr_id = n + i;
			wr.imm_data = n + i;
			memset(a.buf, n + i, 8);
			CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
			poll_ok(a.cq, n + i);
		}
		for (int i = 0; i < 8; i++) {
			struct ibv_wc wc = poll_one(b.cq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wc.imm_data);
		}
	}
	/* A queue pair that is reset and used again is in any order, too. */
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(b.qp, &reset, IBV_QP_STATE) == 0);
	to_init(b.qp);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	if (ah)
		CHECK(ibv_destroy_ah(ah) == 0);
}

static void targets(void)
{
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(a.pd, &srq_attr);
	CHECK(srq);
	for (int type = MLX5DV_DCTYPE_DCT; type <= MLX5DV_DCTYPE_DCI; type++) {
		struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_DRIVER);
		struct mlx5dv_qp_init_attr mlx5_attr = flags();
		mlx5_attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_DC;
		mlx5_attr.dc_init_attr.dc_type = type;
		attr.srq = type == MLX5DV_DCTYPE_DCT ? srq : NULL;
		struct ibv_qp *qp = mlx5dv_create_qp(a.context, &attr, &mlx5_attr);
		CHECK(qp);
		struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
		int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
		CHECK(ibv_modify_qp(qp, &init, mask | (attr.srq ? IBV_QP_ACCESS_FLAGS : 0)) == 0);
		CHECK(ibv_destroy_qp(qp) == 0);
	}
	CHECK(ibv_destroy_srq(srq) == 0);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	query();
	const char *devx = getenv("UVERBS_HCA_DEVX");
	if (devx && strcmp(devx, "0") == 0) {
		for (int i = 0; i < TYPES; i++)
			CHECK(caps[i] == 0);
		CHECK(!create(&a, IBV_QPT_RC, 4, NULL) && errno == EOPNOTSUPP);
	} else {
		CHECK(caps[MAX_RC] == MOST && caps[MAX_UC] == MOST && caps[MAX_UD] == MOST);
		CHECK(caps[MAX_XRC] == 2 * MOST && caps[MAX_DCT] == 2 * MOST);
		sizes();
		messages(IBV_QPT_RC);
		messages(IBV_QPT_UC);
		messages(IBV_QPT_UD);
		targets();
	}
	close_end(&a);
	close_end(&b);
	return 0;
}
