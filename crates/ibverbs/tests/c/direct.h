/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A queue pair and its completion queue, accessed only through the addresses from mlx5dv_init_obj(3). */
#ifndef DIRECT_H
#define DIRECT_H

#include "common.h"
#include <infiniband/mlx5dv.h>

struct hand {
	struct mlx5dv_qp qp;
	struct mlx5dv_cq cq;
	uint32_t sent, received, consumed;
};

static inline void barrier(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void take(struct hand *hand, struct end *end)
{
	memset(hand, 0, sizeof(*hand));
	hand->qp.comp_mask = MLX5DV_QP_MASK_UAR_MMAP_OFFSET;
	struct mlx5dv_obj obj = { .qp = { end->qp, &hand->qp }, .cq = { end->cq, &hand->cq } };
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ) == 0);
	/* The consumer index, if this program has polled the queue before. */
	hand->consumed = be32toh(hand->cq.dbrec[0]) & 0xffffff;
}

static inline void recv_by_hand(struct hand *hand, void *buf, uint32_t length, uint32_t lkey)
{
	uint32_t index = hand->received++ & (hand->qp.rq.wqe_cnt - 1);
	struct mlx5_wqe_data_seg *seg = (void *)((char *)hand->qp.rq.buf + index * hand->qp.rq.stride);
	mlx5dv_set_data_seg(&seg[0], length, lkey, (uintptr_t)buf);
	if (hand->qp.rq.stride > sizeof(*seg))
		mlx5dv_set_data_seg(&seg[1], 0, MLX5_INVALID_LKEY, 0);
	barrier();
	hand->qp.dbrec[MLX5_RCV_DBR] = htobe32(hand->received & 0xffff);
}

static inline void send_by_hand(struct hand *hand, uint32_t qpn, void *buf, uint32_t length, uint32_t lkey)
{
	uint32_t index = hand->sent & (hand->qp.sq.wqe_cnt - 1);
	struct mlx5_wqe_ctrl_seg *ctrl = (void *)((char *)hand->qp.sq.buf + index * hand->qp.sq.stride);
	mlx5dv_set_ctrl_seg(ctrl, hand->sent, MLX5_OPCODE_SEND, 0, qpn, MLX5_WQE_CTRL_CQ_UPDATE, 2, 0, 0);
	mlx5dv_set_data_seg((void *)(ctrl + 1), length, lkey, (uintptr_t)buf);
	hand->sent++;
	barrier();
	hand->qp.dbrec[MLX5_SND_DBR] = htobe32(hand->sent & 0xffff);
	barrier();
	*(volatile uint64_t *)hand->qp.bf.reg = *(uint64_t *)ctrl;
	barrier();
}

/* The next completion: a copy, because its entry is returned to the device. */
static inline struct mlx5_cqe64 *poll_by_hand(struct hand *hand)
{
	static struct mlx5_cqe64 copy;
	uint32_t index = hand->consumed & (hand->cq.cqe_cnt - 1);
	char *entry = (char *)hand->cq.buf + index * hand->cq.cqe_size;
	struct mlx5_cqe64 *cqe = (void *)(entry + hand->cq.cqe_size - sizeof(*cqe));
	uint8_t lap = !!(hand->consumed & hand->cq.cqe_cnt);
	volatile uint8_t *op_own = &cqe->op_own;
	while (*op_own >> 4 == MLX5_CQE_INVALID || (*op_own & MLX5_CQE_OWNER_MASK) != lap)
		;
	barrier();
	copy = *cqe;
	hand->consumed++;
	barrier();
	hand->cq.dbrec[0] = htobe32(hand->consumed & 0xffffff);
	return &copy;
}

/* Requests an event for the next completion. */
static inline void arm_by_hand(struct hand *hand)
{
	uint32_t command = hand->consumed & 0xffffff;
	hand->cq.dbrec[1] = htobe32(command);
	barrier();
	uint32_t doorbell[2] = { htobe32(command), htobe32(hand->cq.cqn) };
	uint64_t value;
	memcpy(&value, doorbell, sizeof(value));
	*(volatile uint64_t *)((char *)hand->cq.cq_uar + 0x20) = value;
	barrier();
}

#endif
