/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Threads that post to one queue pair and poll one completion queue, by lists and ibv_poll_cq, and by sessions of both kinds:
 * no completion is lost or reported twice.
 */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, EACH = 500 };

static struct end a, b;
static atomic_int sent[THREADS * EACH], done;
/* NULL while lists are posted and ibv_poll_cq is called. */
static struct ibv_qp_ex *qp_ex;
static struct ibv_cq_ex *cq_ex;

static int post_list(uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = wr_id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)b.buf, b.mr->rkey },
	}, *bad;
	return ibv_post_send(a.qp, &wr, &bad);
}

static int post_session(uint64_t wr_id)
{
	ibv_wr_start(qp_ex);
	qp_ex->wr_id = wr_id;
	qp_ex->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp_ex, b.mr->rkey, (uintptr_t)b.buf);
	ibv_wr_set_sge(qp_ex, a.mr->lkey, (uintptr_t)a.buf, 8);
	return ibv_wr_complete(qp_ex);
}

static void *post(void *first)
{
	for (int i = 0; i < EACH; i++) {
		int number = (int)(intptr_t)first * EACH + i, error;
		/* The queue is full until a poller makes room. */
		while ((error = qp_ex ? post_session(number) : post_list(number)) == ENOMEM)
			sched_yield();
		CHECK(error == 0);
	}
	return NULL;
}

static void count(uint64_t wr_id, enum ibv_wc_status status)
{
	CHECK(status == IBV_WC_SUCCESS && wr_id < THREADS * EACH);
	sent[wr_id]++;
	done++;
}

/* Returns the number of completions. */
static int poll_session(void)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int n = 0, error = ibv_start_poll(cq_ex, &attr);
	if (error == ENOENT)
		return 0;
	for (; error == 0; error = ibv_next_poll(cq_ex)) {
		CHECK(ibv_wc_read_opcode(cq_ex) == IBV_WC_RDMA_WRITE && ibv_wc_read_qp_num(cq_ex) == a.qp->qp_num);
		count(cq_ex->wr_id, cq_ex->status);
		n++;
	}
	CHECK(error == ENOENT);
	ibv_end_poll(cq_ex);
	return n;
}

static int poll_array(void)
{
	struct ibv_wc wc[4];
	int n = ibv_poll_cq(a.cq, 4, wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		count(wc[i].wr_id, wc[i].status);
	return n;
}

static void *poll(void *unused)
{
	(void)unused;
	while (done < THREADS * EACH)
		if ((cq_ex ? poll_session() : poll_array()) == 0)
			sched_yield();
	return NULL;
}

static void run(void)
{
	pthread_t posters[THREADS], pollers[2];
	done = 0;
	memset(sent, 0, sizeof(sent));
	connect_ends(&a, &b);
	for (intptr_t i = 0; i < 2; i++)
		CHECK(pthread_create(&pollers[i], NULL, poll, NULL) == 0);
	for (intptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&posters[i], NULL, post, (void *)i) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(posters[i], NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(pollers[i], NULL) == 0);
	for (int i = 0; i < THREADS * EACH; i++)
		CHECK(sent[i] == 1);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC), peer = qp_attr(&b, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	CHECK(b.qp = ibv_create_qp_ex(b.context, &peer));
	run();

	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 4 * DEPTH, .wc_flags = IBV_WC_EX_WITH_QP_NUM };
	CHECK(cq_ex = ibv_create_cq_ex(a.context, &cq_attr));
	attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq_ex);
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	CHECK(qp_ex = ibv_qp_to_qp_ex(a.qp));
	CHECK(b.qp = ibv_create_qp_ex(b.context, &peer));
	run();
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
