/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Posts that rdma-core's providers accept and that can't succeed: those that this library accepts, too, end as on a device; the others
 * are refused with errno and bad_wr, and nothing is posted.
 */
#include "common.h"

static struct end a, b;

static void open_pair(enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, type);
	if (type == IBV_QPT_RC) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	}
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, type);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
}

static void close_pair(void)
{
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
}

/* An atomic on an address that is not a multiple of 8: the peer refuses it, and no memory changes. */
static void misaligned(int is_swap, int by_builder, int offset)
{
	open_pair(IBV_QPT_RC);
	connect_ends(&a, &b);
	uint64_t *mine = (void *)a.buf, *theirs = (void *)b.buf;
	mine[0] = 1;
	theirs[0] = theirs[1] = 2;
	struct ibv_sge sge = { (uintptr_t)mine, 8, a.mr->lkey };
	uint64_t remote = (uintptr_t)theirs + offset;
	if (by_builder) {
		struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
		ibv_wr_start(qp);
		qp->wr_id = 7;
		qp->wr_flags = IBV_SEND_SIGNALED;
		if (is_swap)
			ibv_wr_atomic_cmp_swp(qp, b.mr->rkey, remote, 2, 3);
		else
			ibv_wr_atomic_fetch_add(qp, b.mr->rkey, remote, 1);
		ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
		CHECK(ibv_wr_complete(qp) == 0);
	} else {
		struct ibv_send_wr wr = {
			.wr_id = 7,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = is_swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.atomic = { remote, 2, 3, b.mr->rkey },
		}, *bad;
		CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	}
	struct ibv_wc wc = poll_one(a.cq);
	CHECK(wc.wr_id == 7 && wc.qp_num == a.qp->qp_num);
	CHECK(wc.status == IBV_WC_REM_INV_REQ_ERR);
	CHECK(mine[0] == 1 && theirs[0] == 2 && theirs[1] == 2);
	close_pair();
}

/* Nothing is posted: after a valid WR before it, nothing completes. */
static void is_refused(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	struct ibv_wc wc;
	errno = 0;
	CHECK(ibv_post_send(a.qp, wr, &bad) == EINVAL && errno == EINVAL && bad == wr);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
}

/* Operations that datagrams do not have. */
static void datagrams(void)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_READ,		 IBV_WR_RDMA_WRITE,
						      IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_CMP_AND_SWP,
						      IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV };
	open_pair(IBV_QPT_UD);
	connect_ends(&a, &b);
	struct ibv_ah_attr to = address_of(&b);
	struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
	CHECK(ah);
	struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED }, *bad;
	for (size_t i = 0; i < sizeof(opcodes) / sizeof(*opcodes); i++) {
		wr.opcode = opcodes[i];
		is_refused(&wr);
	}
	/* The queue pair still works. */
	wr.opcode = IBV_WR_SEND;
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = b.qp->qp_num;
	wr.wr.ud.remote_qkey = QKEY;
	post_recv(&b, 2, 0, 64);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	poll_ok(a.cq, 1);
	poll_ok(b.cq, 2);
	CHECK(ibv_destroy_ah(ah) == 0);
	close_pair();
}

/* States in which nothing can be posted. */
static void early(void)
{
	open_pair(IBV_QPT_RC);
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr recv = { .wr_id = 2 }, *bad_recv = NULL;
	is_refused(&wr);
	errno = 0;
	CHECK(ibv_post_recv(b.qp, &recv, &bad_recv) == EINVAL && errno == EINVAL && bad_recv == &recv);
	to_init(a.qp);
	to_init(b.qp);
	is_refused(&wr);
	CHECK(ibv_post_recv(b.qp, &recv, &bad_recv) == 0);
	to_rts(b.qp, &a, a.qp->qp_num);
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = b.qp->qp_num,
		.rq_psn = 77,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = address_of(&b),
	};
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(a.qp, &rtr, mask) == 0);
	is_refused(&wr);
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .sq_psn = 77, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT;
	CHECK(ibv_modify_qp(a.qp, &rts, mask) == 0);
	/* None of them was kept. */
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	poll_ok(a.cq, 1);
	poll_ok(b.cq, 2);
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
	close_pair();
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	for (int i = 0; i < 8; i++)
		misaligned(i & 1, i & 2, i & 4 ? 4 : 1);
	datagrams();
	early();
	close_end(&a);
	close_end(&b);
	return 0;
}
