/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads that post to one queue pair and poll one completion queue: nothing is lost, nothing comes twice. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 4, EACH = 500 };

static struct end a, b;
static atomic_int sent[THREADS * EACH], done;

static void *post(void *first)
{
	for (int i = 0; i < EACH; i++) {
		int number = (int)(intptr_t)first * EACH + i, error;
		struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
		struct ibv_send_wr wr = {
			.wr_id = number,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)b.buf, b.mr->rkey },
		}, *bad;
		/* The queue is full until a poller makes room. */
		while ((error = ibv_post_send(a.qp, &wr, &bad)) == ENOMEM)
			sched_yield();
		CHECK(error == 0);
	}
	return NULL;
}

static void *poll(void *unused)
{
	(void)unused;
	struct ibv_wc wc[4];
	while (done < THREADS * EACH) {
		int n = ibv_poll_cq(a.cq, 4, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].wr_id < THREADS * EACH);
			sent[wc[i].wr_id]++;
			done++;
		}
		if (n == 0)
			sched_yield();
	}
	return NULL;
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&a, &b);
	pthread_t posters[THREADS], pollers[2];
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
	close_end(&a);
	close_end(&b);
	return 0;
}
