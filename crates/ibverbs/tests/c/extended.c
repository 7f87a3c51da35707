/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The functions of ibv_wr_post(3) and of extended completion queues, on RC and UD; sessions that are handed to another thread. */
#include "common.h"
#include <pthread.h>

static struct ibv_cq_ex *create_cq_ex(struct end *end, uint64_t wc_flags)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 4 * DEPTH,
		.cq_context = end,
		.wc_flags = wc_flags,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(end->context, &attr);
	CHECK(cq && cq->cq_context == end);
	return cq;
}

static struct ibv_qp_ex *create_qp_ex(struct end *end, enum ibv_qp_type type, struct ibv_cq_ex *cq, uint64_t ops)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(end, type);
	attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = ops;
	CHECK(end->qp = ibv_create_qp_ex(end->context, &attr));
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(end->qp);
	CHECK(qp);
	return qp;
}

/* Waits for a completion and begins a session at it. */
static void start_poll(struct ibv_cq_ex *cq, uint64_t wr_id)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int error;
	while ((error = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	CHECK(error == 0 && cq->status == IBV_WC_SUCCESS && cq->wr_id == wr_id);
}

static void *complete(void *qp)
{
	return (void *)(intptr_t)ibv_wr_complete(qp);
}

static void connected(struct end *a, struct end *b)
{
	struct ibv_cq_ex *cq_a = create_cq_ex(a, IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
	struct ibv_cq_ex *cq_b = create_cq_ex(b, IBV_WC_STANDARD_FLAGS);
	uint64_t ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_WRITE |
		       IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	struct ibv_qp_ex *qp = create_qp_ex(a, IBV_QPT_RC, cq_a, ops);
	create_qp_ex(b, IBV_QPT_RC, cq_b, ops);
	connect_ends(a, b);
	struct ibv_poll_cq_attr none = { 0 }, unknown = { 1 };
	CHECK(ibv_start_poll(cq_a, &none) == ENOENT && ibv_start_poll(cq_a, &unknown) == EINVAL);

	post_recv(b, 1, 0, 64);
	strcpy(a->buf, "session");
	ibv_wr_start(qp);
	qp->wr_id = 2;
	qp->wr_flags = 0;
	ibv_wr_rdma_write(qp, b->mr->rkey, (uintptr_t)b->buf + 256);
	ibv_wr_set_inline_data(qp, "inline", 7);
	qp->wr_id = 3;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_imm(qp, htobe32(9));
	struct ibv_sge list[2] = { { (uintptr_t)a->buf, 4, a->mr->lkey }, { (uintptr_t)a->buf + 4, 4, a->mr->lkey } };
	ibv_wr_set_sge_list(qp, 2, list);
	qp->wr_id = 4;
	ibv_wr_atomic_fetch_add(qp, b->mr->rkey, (uintptr_t)b->buf + 1024, 1);
	ibv_wr_set_sge(qp, a->mr->lkey, (uintptr_t)a->buf + 1024, 8);
	/* Another thread may end the session. */
	pthread_t thread;
	void *error;
	CHECK(pthread_create(&thread, NULL, complete, qp) == 0 && pthread_join(thread, &error) == 0);
	CHECK(error == NULL);

	start_poll(cq_a, 3);
	CHECK(ibv_wc_read_opcode(cq_a) == IBV_WC_SEND && ibv_wc_read_qp_num(cq_a) == a->qp->qp_num);
	CHECK(ibv_wc_read_completion_ts(cq_a) != 0);
	int next;
	while ((next = ibv_next_poll(cq_a)) == ENOENT)
		;
	CHECK(next == 0 && cq_a->wr_id == 4 && ibv_wc_read_opcode(cq_a) == IBV_WC_FETCH_ADD);
	ibv_end_poll(cq_a);
	start_poll(cq_b, 1);
	CHECK(ibv_wc_read_opcode(cq_b) == IBV_WC_RECV && ibv_wc_read_byte_len(cq_b) == 8);
	CHECK(ibv_wc_read_wc_flags(cq_b) == IBV_WC_WITH_IMM && ibv_wc_read_imm_data(cq_b) == htobe32(9));
	CHECK(ibv_next_poll(cq_b) == ENOENT);
	ibv_end_poll(cq_b);
	/* After the session the last completion of each queue is still there, because nothing has been posted since. */
	for (int i = 0; i < 2; i++) {
		CHECK(ibv_wc_read_opcode(cq_a) == IBV_WC_FETCH_ADD && ibv_wc_read_qp_num(cq_a) == a->qp->qp_num);
		CHECK(ibv_wc_read_byte_len(cq_a) == 8 && ibv_wc_read_completion_ts(cq_a) != 0);
		CHECK(ibv_wc_read_opcode(cq_b) == IBV_WC_RECV && ibv_wc_read_byte_len(cq_b) == 8);
		CHECK(ibv_wc_read_imm_data(cq_b) == htobe32(9));
		/* A poll that finds nothing changes nothing. */
		CHECK(ibv_start_poll(cq_a, &none) == ENOENT && ibv_start_poll(cq_b, &none) == ENOENT);
	}
	CHECK(strcmp(b->buf, "session") == 0 && strcmp(b->buf + 256, "inline") == 0);

	/* An error in a session is returned at its end, and nothing is posted; an abort posts nothing, too. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	CHECK(ibv_wr_complete(qp) == EINVAL);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, a->mr->lkey, (uintptr_t)a->buf, 8);
	ibv_wr_abort(qp);
	CHECK(ibv_start_poll(cq_a, &none) == ENOENT);

	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_a)) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq_b)) == 0);
}

static void datagrams(struct end *a, struct end *b)
{
	struct ibv_cq_ex *cq_a = create_cq_ex(a, IBV_WC_STANDARD_FLAGS);
	struct ibv_cq_ex *cq_b = create_cq_ex(b, IBV_WC_STANDARD_FLAGS);
	struct ibv_qp_ex *qp = create_qp_ex(a, IBV_QPT_UD, cq_a, IBV_QP_EX_WITH_SEND);
	create_qp_ex(b, IBV_QPT_UD, cq_b, IBV_QP_EX_WITH_SEND);
	to_init(a->qp);
	to_init(b->qp);
	to_rts(a->qp, b, 0);
	to_rts(b->qp, a, 0);
	struct ibv_ah_attr address = address_of(b);
	struct ibv_ah *ah = ibv_create_ah(a->pd, &address);
	CHECK(ah);
	post_recv(b, 1, 0, 256);
	ibv_wr_start(qp);
	qp->wr_id = 2;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, b->qp->qp_num, QKEY);
	ibv_wr_set_inline_data(qp, "datagram", 9);
	CHECK(ibv_wr_complete(qp) == 0);
	start_poll(cq_a, 2);
	ibv_end_poll(cq_a);
	start_poll(cq_b, 1);
	CHECK(ibv_wc_read_src_qp(cq_b) == a->qp->qp_num && ibv_wc_read_byte_len(cq_b) == 49);
	CHECK(ibv_wc_read_wc_flags(cq_b) & IBV_WC_GRH);
	ibv_end_poll(cq_b);
	CHECK(strcmp(b->buf + 40, "datagram") == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_a)) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq_b)) == 0);
}

/* A queue pair of a thread domain, and its parents. */
static void thread_domain(struct end *a)
{
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(a->context, &td_attr);
	CHECK(td);
	struct ibv_parent_domain_init_attr attr = { .pd = a->pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(a->context, &attr);
	CHECK(parent && parent->handle == a->pd->handle);
	CHECK(ibv_dealloc_td(td) == EBUSY && ibv_dealloc_pd(a->pd) == EBUSY);
	struct ibv_qp_init_attr_ex qp = qp_attr(a, IBV_QPT_RC);
	qp.pd = parent;
	CHECK(a->qp = ibv_create_qp_ex(a->context, &qp));
	to_init(a->qp);
	to_rts(a->qp, a, a->qp->qp_num);
	post_recv(a, 1, 0, 64);
	struct ibv_sge sge = { (uintptr_t)a->buf + 512, 8, a->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
	poll_ok(a->cq, 1);
	CHECK(ibv_destroy_qp(a->qp) == 0);
	CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_td(td) == 0);
}

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	connected(&a, &b);
	datagrams(&a, &b);
	thread_domain(&b);
	close_end(&a);
	close_end(&b);
	return 0;
}
