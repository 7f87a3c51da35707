/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Dynamic connections: an initiator on one device sends and writes to targets on both. */
#include "common.h"
#include <infiniband/mlx5dv.h>

enum { KEY = 0x1234 };

struct target {
	struct end end;
	struct ibv_srq *srq;
};

static void is_refused(struct ibv_context *context, struct ibv_qp_init_attr_ex *attr, struct mlx5dv_qp_init_attr *mlx5_attr)
{
	errno = 0;
	CHECK(mlx5dv_create_qp(context, attr, mlx5_attr) == NULL && errno == EINVAL);
}

/* Options of other queue pairs are not ignored. */
static void check_options(struct ibv_context *context, const struct ibv_qp_init_attr_ex *attr,
			  const struct mlx5dv_qp_init_attr *mlx5_attr)
{
	static const uint32_t flags[] = {
		MLX5DV_QP_CREATE_TUNNEL_OFFLOADS,	      MLX5DV_QP_CREATE_TIR_ALLOW_SELF_LOOPBACK_UC,
		MLX5DV_QP_CREATE_TIR_ALLOW_SELF_LOOPBACK_MC, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE,
		MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE,
	};
	static const uint32_t masks[] = { IBV_QP_INIT_ATTR_XRCD, IBV_QP_INIT_ATTR_CREATE_FLAGS,
					  IBV_QP_INIT_ATTR_MAX_TSO_HEADER, IBV_QP_INIT_ATTR_IND_TABLE,
					  IBV_QP_INIT_ATTR_RX_HASH, IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	struct mlx5dv_qp_init_attr other = *mlx5_attr;
	other.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
	for (unsigned i = 0; i < sizeof(flags) / sizeof(*flags); i++) {
		struct ibv_qp_init_attr_ex same = *attr;
		other.create_flags = flags[i];
		is_refused(context, &same, &other);
	}
	for (unsigned i = 0; i < sizeof(masks) / sizeof(*masks); i++) {
		struct ibv_qp_init_attr_ex with = *attr;
		other = *mlx5_attr;
		with.comp_mask |= masks[i];
		is_refused(context, &with, &other);
	}
	/* Short data of a target are not in completions. */
	struct ibv_qp_init_attr_ex same = *attr;
	other.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS;
	other.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
	struct ibv_qp *qp = mlx5dv_create_qp(context, &same, &other);
	CHECK(qp && ibv_destroy_qp(qp) == 0);
}

static void open_target(struct target *target, int index)
{
	struct end *end = &target->end;
	open_end(end, index);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	CHECK(target->srq = ibv_create_srq(end->pd, &srq_attr));
	struct ibv_qp_init_attr_ex attr = { .send_cq = end->cq, .recv_cq = end->cq, .srq = target->srq,
					    .qp_type = IBV_QPT_DRIVER, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = end->pd };
	struct mlx5dv_qp_init_attr mlx5_attr = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCT, .dct_access_key = KEY },
	};
	check_options(end->context, &attr, &mlx5_attr);
	CHECK(end->qp = mlx5dv_create_qp(end->context, &attr, &mlx5_attr));
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_INIT, .port_num = PORT,
				      .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	CHECK(ibv_modify_qp(end->qp, &change,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	change.qp_state = IBV_QPS_RTR;
	change.path_mtu = IBV_MTU_1024;
	change.min_rnr_timer = 12;
	change.ah_attr = address_of(end);
	CHECK(ibv_modify_qp(end->qp, &change,
			    IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_AV | IBV_QP_MIN_RNR_TIMER) == 0);
	CHECK(end->qp->qp_num != 0 && end->qp->state == IBV_QPS_RTR);
}

static void post_srq(struct target *target, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)target->end.buf, 64, target->end.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_srq_recv(target->srq, &wr, &bad) == 0);
}

static void close_target(struct target *target)
{
	CHECK(ibv_destroy_qp(target->end.qp) == 0 && ibv_destroy_srq(target->srq) == 0);
	close_end(&target->end);
}

int main(void)
{
	struct end a;
	struct target targets[2];
	open_end(&a, 0);
	open_target(&targets[0], 0);
	open_target(&targets[1], 1);

	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_DRIVER);
	struct mlx5dv_qp_init_attr mlx5_attr = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC,
		.dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCI },
	};
	errno = 0;
	CHECK(ibv_create_qp_ex(a.context, &attr) == NULL && errno == EOPNOTSUPP);
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
	attr.cap.max_recv_wr = attr.cap.max_recv_sge = 0;
	CHECK(a.qp = mlx5dv_create_qp(a.context, &attr, &mlx5_attr));
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	struct mlx5dv_qp_ex *mqp = mlx5dv_qp_ex_from_ibv_qp_ex(qp);
	CHECK(qp && mqp && mlx5dv_qp_ex_from_ibv_qp_ex(qp) == mqp && !mlx5dv_qp_ex_from_ibv_qp_ex(NULL));
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	CHECK(ibv_modify_qp(a.qp, &change, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT) == 0);
	change.qp_state = IBV_QPS_RTR;
	change.path_mtu = IBV_MTU_1024;
	CHECK(ibv_modify_qp(a.qp, &change, IBV_QP_STATE | IBV_QP_PATH_MTU) == 0);
	change.qp_state = IBV_QPS_RTS;
	change.timeout = 14;
	change.retry_cnt = change.rnr_retry = 7;
	change.max_rd_atomic = 1;
	CHECK(ibv_modify_qp(a.qp, &change, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						   IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_SQ_PSN) == 0);

	for (uint64_t i = 0; i < 4 * DEPTH; i++) {
		struct target *target = &targets[i & 1];
		struct end *end = &target->end;
		struct ibv_ah_attr address = address_of(end);
		struct ibv_ah *ah = ibv_create_ah(a.pd, &address);
		CHECK(ah);
		post_srq(target, i);
		sprintf(a.buf, "message %u", (unsigned)i);
		ibv_wr_start(qp);
		qp->wr_id = 2 * i;
		qp->wr_flags = 0;
		ibv_wr_rdma_write(qp, end->mr->rkey, (uintptr_t)end->buf + 1024);
		mlx5dv_wr_set_dc_addr(mqp, ah, end->qp->qp_num, KEY);
		ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buf, 32);
		qp->wr_id = 2 * i + 1;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qp);
		mlx5dv_wr_set_dc_addr(mqp, ah, end->qp->qp_num, KEY);
		ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buf, 32);
		CHECK(ibv_wr_complete(qp) == 0);
		poll_ok(a.cq, 2 * i + 1);
		struct ibv_wc wc = poll_ok(end->cq, i);
		CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 32 && wc.qp_num == end->qp->qp_num);
		CHECK(strcmp(end->buf, a.buf) == 0 && strcmp(end->buf + 1024, a.buf) == 0);
		CHECK(ibv_destroy_ah(ah) == 0);
	}

	/* A work request without a target, and one with a key that is not the target's. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buf, 32);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	mlx5dv_wr_set_dc_addr(mqp, NULL, 1, KEY);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buf, 32);
	CHECK(ibv_wr_complete(qp) == EINVAL);

	/* Options that are not implemented are refused, with the errno. */
	mlx5_attr.comp_mask |= MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS;
	mlx5_attr.send_ops_flags = MLX5DV_QP_EX_WITH_MR_LIST;
	errno = 0;
	CHECK(mlx5dv_create_qp(a.context, &attr, &mlx5_attr) == NULL && errno == EOPNOTSUPP);
	mlx5_attr.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC;
	mlx5_attr.dc_init_attr.dc_type = 9;
	errno = 0;
	CHECK(mlx5dv_create_qp(a.context, &attr, &mlx5_attr) == NULL && errno == EINVAL);

	CHECK(ibv_destroy_qp(a.qp) == 0);
	close_target(&targets[0]);
	close_target(&targets[1]);
	close_end(&a);
	return 0;
}
