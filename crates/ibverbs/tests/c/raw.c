/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* WQEs that the program writes itself and posts by mlx5dv_wr_raw_wqe(3), mixed with the library's; wrong ones; and the flags
 * of mlx5dv_create_qp(3). */
#include "common.h"
#include <infiniband/mlx5dv.h>

enum { UNITS = 63 };

struct wqe {
	struct mlx5_wqe_ctrl_seg ctrl;
	struct mlx5_wqe_data_seg rest[UNITS - 1];
};

static struct ibv_qp *create(struct end *end, uint64_t raw, uint32_t max_send_wr, uint32_t flags)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(end, IBV_QPT_RC);
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	attr.cap.max_send_wr = max_send_wr;
	struct mlx5dv_qp_init_attr mlx5_attr = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
		.send_ops_flags = raw,
		.create_flags = flags,
	};
	errno = 0;
	return mlx5dv_create_qp(end->context, &attr, &mlx5_attr);
}

/* A WQE of `entries` data segments, or of the remote address and those, with stale bytes where the library writes. */
static struct wqe wqe_of(struct end *end, int opcode, int entries, uint32_t length)
{
	struct wqe wqe;
	memset(&wqe, 0, sizeof(wqe));
	int at = opcode == MLX5_OPCODE_SEND ? 0 : 1;
	mlx5dv_set_ctrl_seg(&wqe.ctrl, 0xbeef, opcode, 0, end->qp->qp_num, MLX5_WQE_CTRL_CQ_UPDATE, 1 + at + entries, 0x5a, 0);
	for (int i = 0; i < entries; i++)
		mlx5dv_set_data_seg(&wqe.rest[at + i], length, end->mr->lkey, (uintptr_t)end->buf + i * length);
	return wqe;
}

static void set_remote(struct wqe *wqe, struct end *peer, uint32_t offset)
{
	struct mlx5_wqe_raddr_seg *raddr = (void *)&wqe->rest[0];
	raddr->raddr = htobe64((uintptr_t)peer->buf + offset);
	raddr->rkey = htobe32(peer->mr->rkey);
}

static int post(struct end *end, uint64_t wr_id, const void *wqe)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(end->qp);
	struct mlx5dv_qp_ex *mqp = mlx5dv_qp_ex_from_ibv_qp_ex(qp);
	ibv_wr_start(qp);
	qp->wr_id = wr_id;
	qp->wr_flags = 0; /* The WQE has flags of its own. */
	mlx5dv_wr_raw_wqe(mqp, wqe);
	return ibv_wr_complete(qp);
}

static void mixed(struct end *a, struct end *b)
{
	for (uint64_t i = 0; i < 5 * DEPTH; i++) {
		for (int k = 0; k < 256; k++)
			a->buf[k] = i + k;
		memset(b->buf, 0, 256);
		enum ibv_wc_opcode opcode = IBV_WC_DRIVER2;
		/* Two to six units, so that WQEs wrap at the end of the ring at different units. */
		int entries = 1 + i % 4;
		if (i % 3 == 0) {
			post_recv(b, 1000 + i, 0, 256);
			struct wqe wqe = wqe_of(a, MLX5_OPCODE_SEND, entries, 16);
			CHECK(post(a, i, &wqe) == 0);
		} else if (i % 3 == 1) {
			struct wqe wqe = wqe_of(a, MLX5_OPCODE_RDMA_WRITE, entries, 16);
			set_remote(&wqe, b, 0);
			CHECK(post(a, i, &wqe) == 0);
		} else {
			struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a->qp);
			post_recv(b, 1000 + i, 0, 256);
			ibv_wr_start(qp);
			qp->wr_id = i;
			qp->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_send(qp);
			ibv_wr_set_sge(qp, a->mr->lkey, (uintptr_t)a->buf, 16 * entries);
			CHECK(ibv_wr_complete(qp) == 0);
			opcode = IBV_WC_SEND;
		}
		CHECK(poll_ok(a->cq, i).opcode == opcode);
		if (i % 3 != 1)
			CHECK(poll_ok(b->cq, 1000 + i).byte_len == 16u * entries);
		CHECK(memcmp(a->buf, b->buf, 16 * entries) == 0 && b->buf[16 * entries] == 0);
	}

	/* The data of a short read may be in its completion. */
	memcpy(b->buf + 512, "read by hand", 13);
	struct wqe wqe = wqe_of(a, MLX5_OPCODE_RDMA_READ, 1, 13);
	set_remote(&wqe, b, 512);
	CHECK(post(a, 7, &wqe) == 0);
	CHECK(poll_ok(a->cq, 7).opcode == IBV_WC_DRIVER2);
	CHECK(strcmp(a->buf, "read by hand") == 0);
}

static void refused(struct end *a, struct end *b)
{
	struct wqe wqe = wqe_of(a, MLX5_OPCODE_SEND, 1, 16);
	CHECK(post(a, 1, NULL) == EINVAL);
	wqe.ctrl.qpn_ds = htobe32(a->qp->qp_num << 8);
	CHECK(post(a, 1, &wqe) == EINVAL);

	/* Outside a session it has no effect. */
	wqe = wqe_of(a, MLX5_OPCODE_SEND, 1, 16);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a->qp);
	mlx5dv_wr_raw_wqe(mlx5dv_qp_ex_from_ibv_qp_ex(qp), &wqe);
	/* A builder whose setter is missing, and a batch that is aborted. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	mlx5dv_wr_raw_wqe(mlx5dv_qp_ex_from_ibv_qp_ex(qp), &wqe);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	mlx5dv_wr_raw_wqe(mlx5dv_qp_ex_from_ibv_qp_ex(qp), &wqe);
	ibv_wr_abort(qp);

	/* More WQEs than the queue has room for. */
	ibv_wr_start(qp);
	for (int i = 0; i < 20 * DEPTH; i++)
		mlx5dv_wr_raw_wqe(mlx5dv_qp_ex_from_ibv_qp_ex(qp), &wqe);
	CHECK(ibv_wr_complete(qp) == ENOMEM);

	/* None of these was posted. */
	post_recv(b, 2, 0, 64);
	CHECK(post(a, 3, &wqe) == 0);
	poll_ok(a->cq, 3);
	poll_ok(b->cq, 2);
}

/* A WQE that is longer than the whole queue. */
static void longer_than_the_queue(struct end *a, struct end *b)
{
	CHECK(a->qp = create(a, MLX5DV_QP_EX_WITH_RAW_WQE, 1, 0));
	CHECK(b->qp = create(b, 0, 1, 0));
	connect_ends(a, b);
	struct mlx5dv_qp raw = { 0 };
	struct mlx5dv_obj obj = { .qp = { a->qp, &raw } };
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) == 0);
	int blocks = raw.sq.wqe_cnt;
	CHECK(blocks < 16);
	char before[4096], after[4096];
	memcpy(before, raw.sq.buf, 64 * blocks);
	for (int units = 4 * blocks + 1; units <= UNITS; units++) {
		struct wqe wqe = wqe_of(a, MLX5_OPCODE_SEND, 1, 16);
		wqe.ctrl.qpn_ds = htobe32(a->qp->qp_num << 8 | units);
		CHECK(post(a, units, &wqe) == ENOMEM);
	}
	memcpy(after, raw.sq.buf, 64 * blocks);
	CHECK(memcmp(before, after, 64 * blocks) == 0);
	struct wqe wqe = wqe_of(a, MLX5_OPCODE_SEND, 1, 16);
	post_recv(b, 2, 0, 64);
	CHECK(post(a, 3, &wqe) == 0);
	poll_ok(a->cq, 3);
	poll_ok(b->cq, 2);

	/* The queue pair of the other end was created without such WQEs. */
	wqe = wqe_of(b, MLX5_OPCODE_SEND, 1, 16);
	CHECK(post(b, 4, &wqe) == EINVAL);

	/* What is left when the queue fails has its wr_id. */
	CHECK(ibv_modify_qp(a->qp, &(struct ibv_qp_attr){ .qp_state = IBV_QPS_ERR }, IBV_QP_STATE) == 0);
	wqe = wqe_of(a, MLX5_OPCODE_SEND, 1, 16);
	CHECK(post(a, 5, &wqe) == 0);
	struct ibv_wc wc = poll_one(a->cq);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == 5);
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
}

static void create_flags(struct end *a)
{
	/* The software HCA has neither tunnels nor credits by packets. */
	CHECK(!create(a, 0, 8, MLX5DV_QP_CREATE_TUNNEL_OFFLOADS) && errno == EINVAL);
	CHECK(!create(a, 0, 8, MLX5DV_QP_CREATE_PACKET_BASED_CREDIT_MODE) && errno == EINVAL);
	CHECK(!create(a, 0, 8, 1 << 8) && errno == EOPNOTSUPP);
	CHECK(!create(a, 0, 8, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE | MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE) && errno == EINVAL);
	CHECK(!create(a, MLX5DV_QP_EX_WITH_MEMCPY, 8, 0) && errno == EOPNOTSUPP);
}

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	create_flags(&a);
	CHECK(a.qp = create(&a, MLX5DV_QP_EX_WITH_RAW_WQE, DEPTH, MLX5DV_QP_CREATE_ALLOW_SCATTER_TO_CQE));
	CHECK(b.qp = create(&b, 0, DEPTH, 0));
	connect_ends(&a, &b);
	mixed(&a, &b);
	refused(&a, &b);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	longer_than_the_queue(&a, &b);
	close_end(&a);
	close_end(&b);
	return 0;
}
