/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads that create, connect, use and destroy queue pairs of one completion queue, while others poll it and wait for its
 * events; and devices that are closed while all their objects exist. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { MAKERS = 3, ROUNDS = 40, WRITES = 4 };

static struct end a, b;
static atomic_int done[MAKERS], over, events;

static void *make(void *which)
{
	int me = (int)(intptr_t)which;
	for (int round = 0; round < ROUNDS; round++) {
		struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC), peer_attr = qp_attr(&b, IBV_QPT_RC);
		struct ibv_qp *qp = ibv_create_qp_ex(a.context, &attr);
		struct ibv_qp *peer = ibv_create_qp_ex(b.context, &peer_attr);
		CHECK(qp && peer);
		to_init(qp);
		to_init(peer);
		to_rts(qp, &b, peer->qp_num);
		to_rts(peer, &a, qp->qp_num);
		int before = done[me];
		for (int i = 0; i < WRITES; i++) {
			struct ibv_sge sge = { (uintptr_t)a.buf + 64 * me, 8, a.mr->lkey };
			struct ibv_send_wr wr = {
				.wr_id = me,
				.sg_list = &sge,
				.num_sge = 1,
				.opcode = IBV_WR_RDMA_WRITE,
				.send_flags = IBV_SEND_SIGNALED,
				.wr.rdma = { (uintptr_t)b.buf + 64 * me, b.mr->rkey },
			}, *bad;
			CHECK(ibv_post_send(qp, &wr, &bad) == 0);
		}
		/* In every other round the queue pair is destroyed while its requests are outstanding. */
		while (round % 2 && done[me] - before < WRITES)
			sched_yield();
		CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_qp(peer) == 0);
	}
	return NULL;
}

static void *poll(void *unused)
{
	(void)unused;
	struct ibv_wc wc[4];
	while (!over) {
		int n = ibv_poll_cq(a.cq, 4, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			CHECK(wc[i].wr_id < MAKERS);
			if (wc[i].status == IBV_WC_SUCCESS)
				done[wc[i].wr_id]++;
		}
		if (n == 0)
			sched_yield();
	}
	return NULL;
}

static void *wait_for_events(void *unused)
{
	(void)unused;
	struct ibv_async_event event;
	struct ibv_cq *cq;
	void *context;
	while (!over) {
		CHECK(ibv_req_notify_cq(a.cq, 0) == 0);
		if (ibv_get_cq_event(a.channel, &cq, &context) == 0) {
			CHECK(cq == a.cq && context == &a);
			ibv_ack_cq_events(cq, 1);
			events++;
		} else {
			CHECK(errno == EAGAIN);
		}
		if (ibv_get_async_event(a.context, &event) == 0)
			ibv_ack_async_event(&event);
		else
			CHECK(errno == EAGAIN);
		sched_yield();
	}
	return NULL;
}

static void set_nonblocking(int fd)
{
	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

static int count_fds(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Creates an object of each kind, and closes the device. */
static void close_with_live_objects(void)
{
	struct end end;
	open_end(&end, 0);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_td_init_attr td = { 0 };
	struct ibv_alloc_dm_attr dm = { .length = 4096 };
	struct ibv_counters_init_attr counters = { 0 };
	struct ibv_cq_init_attr_ex cq = { .cqe = 8, .channel = end.channel };
	struct ibv_xrcd_init_attr xrcd = { .comp_mask = 3, .fd = -1, .oflags = O_CREAT };
	struct ibv_wq_init_attr wq = { .max_wr = 8, .max_sge = 1, .pd = end.pd, .cq = end.cq };
	struct ibv_qp_init_attr_ex qp = qp_attr(&end, IBV_QPT_RC);
	struct ibv_ah_attr ah = address_of(&end);
	CHECK(ibv_create_srq(end.pd, &srq) && ibv_alloc_td(end.context, &td));
	CHECK(ibv_alloc_dm(end.context, &dm) && ibv_create_counters(end.context, &counters));
	CHECK(ibv_create_cq_ex(end.context, &cq) && ibv_open_xrcd(end.context, &xrcd));
	CHECK(ibv_create_wq(end.context, &wq) && ibv_create_qp_ex(end.context, &qp));
	CHECK(ibv_create_ah(end.pd, &ah) && ibv_alloc_mw(end.pd, IBV_MW_TYPE_2));
	CHECK(ibv_create_comp_channel(end.context));
	CHECK(ibv_close_device(end.context) == 0);
	free(end.buf);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	set_nonblocking(a.channel->fd);
	set_nonblocking(a.context->async_fd);
	pthread_t makers[MAKERS], pollers[2], waiter;
	for (intptr_t i = 0; i < 2; i++)
		CHECK(pthread_create(&pollers[i], NULL, poll, NULL) == 0);
	CHECK(pthread_create(&waiter, NULL, wait_for_events, NULL) == 0);
	for (intptr_t i = 0; i < MAKERS; i++)
		CHECK(pthread_create(&makers[i], NULL, make, (void *)i) == 0);
	for (int i = 0; i < MAKERS; i++)
		CHECK(pthread_join(makers[i], NULL) == 0);
	over = 1;
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(pollers[i], NULL) == 0);
	CHECK(pthread_join(waiter, NULL) == 0);
	for (int i = 0; i < MAKERS; i++)
		CHECK(done[i] >= ROUNDS / 2 * WRITES);
	close_end(&a);
	close_end(&b);

	int before = count_fds();
	for (int i = 0; i < 5; i++)
		close_with_live_objects();
	CHECK(count_fds() == before);
	return 0;
}
