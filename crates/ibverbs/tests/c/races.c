/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Pairs of calls that threads make at the same time: objects are destroyed while others read their events, rules while others
 * read their counters, a queue is resized while others query its addresses, and numbers are reused while another queue pair posts.
 */
#include "common.h"
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { ROUNDS = 150, LIVE = 4096 };

static struct end a, b;
static atomic_int over;

static pthread_t start(void *(*f)(void *), void *arg)
{
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, f, arg) == 0);
	return thread;
}

static void end_of(pthread_t thread)
{
	CHECK(pthread_join(thread, NULL) == 0);
}

/* The objects that exist. An object is removed after the verb that destroys it has returned. */
static void *_Atomic live[LIVE];
static atomic_int lives;

static int enter(void *object)
{
	int place = lives++;
	CHECK(place < LIVE);
	live[place] = object;
	return place;
}

static int is_live(void *object)
{
	for (int i = 0; i < lives; i++)
		if (live[i] == object)
			return 1;
	return 0;
}

static atomic_int by_kind[4];

/* Reads asynchronous events, keeps each for some time, and acknowledges it. Its object exists until then. */
static void *read_events(void *unused)
{
	(void)unused;
	struct ibv_async_event event;
	while (!over) {
		if (ibv_get_async_event(b.context, &event)) {
			CHECK(errno == EAGAIN);
			sched_yield();
			continue;
		}
		void *object = NULL;
		switch (event.event_type) {
		case IBV_EVENT_SRQ_LIMIT_REACHED:
			object = event.element.srq;
			by_kind[0]++;
			break;
		case IBV_EVENT_QP_LAST_WQE_REACHED:
		case IBV_EVENT_COMM_EST:
		case IBV_EVENT_QP_FATAL:
		case IBV_EVENT_QP_ACCESS_ERR:
		case IBV_EVENT_QP_REQ_ERR:
			object = event.element.qp;
			by_kind[1]++;
			break;
		case IBV_EVENT_CQ_ERR:
			object = event.element.cq;
			by_kind[2]++;
			break;
		case IBV_EVENT_WQ_FATAL:
			object = event.element.wq;
			by_kind[3]++;
			break;
		default:
			break;
		}
		for (int i = 0; object && i < 20; i++) {
			CHECK(is_live(object));
			sched_yield();
		}
		ibv_ack_async_event(&event);
	}
	return NULL;
}

/* Reads completion events in the same way. */
static void *read_completions(void *unused)
{
	(void)unused;
	while (!over) {
		struct ibv_cq *cq;
		void *context;
		if (ibv_get_cq_event(b.channel, &cq, &context)) {
			CHECK(errno == EAGAIN);
			sched_yield();
			continue;
		}
		CHECK(context == &b);
		for (int i = 0; i < 20; i++) {
			CHECK(is_live(cq));
			sched_yield();
		}
		ibv_ack_cq_events(cq, 1);
	}
	return NULL;
}

static void set_nonblocking(int fd)
{
	CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

/* When an object is destroyed, another thread has not yet read its event, or has read it, or has acknowledged it. */
static void destroy_with_events(void)
{
	over = 0;
	set_nonblocking(b.context->async_fd);
	set_nonblocking(b.channel->fd);
	pthread_t readers[] = { start(read_events, NULL), start(read_events, NULL), start(read_completions, NULL) };
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_cq *own = b.cq;
		CHECK(b.cq = ibv_create_cq(b.context, DEPTH, &b, b.channel, 0));
		int cq_place = enter(b.cq);
		struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
		struct ibv_srq *srq = ibv_create_srq(b.pd, &init);
		CHECK(srq);
		int srq_place = enter(srq);
		struct ibv_qp_init_attr_ex attr = qp_attr(&b, IBV_QPT_RC), peer = qp_attr(&a, IBV_QPT_RC);
		attr.srq = srq;
		CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
		int qp_place = enter(b.qp);
		CHECK(a.qp = ibv_create_qp_ex(a.context, &peer));
		connect_ends(&a, &b);
		struct ibv_recv_wr recv = { .wr_id = 3 }, *bad_recv;
		CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
		struct ibv_srq_attr limit = { .srq_limit = 1 };
		CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
		CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
		struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
		poll_ok(a.cq, 2);
		/* The second has neither a receive nor rights. */
		wr.opcode = IBV_WR_RDMA_WRITE;
		struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
		wr.sg_list = &sge;
		wr.num_sge = 1;
		CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
		CHECK(poll_one(a.cq).status == IBV_WC_REM_ACCESS_ERR);
		for (int n = i % 5 * 8; n > 0; n--)
			sched_yield();
		CHECK(ibv_destroy_qp(b.qp) == 0);
		live[qp_place] = NULL;
		CHECK(ibv_destroy_srq(srq) == 0);
		live[srq_place] = NULL;
		CHECK(ibv_destroy_cq(b.cq) == 0);
		live[cq_place] = NULL;
		b.cq = own;
		CHECK(ibv_destroy_qp(a.qp) == 0);
	}
	over = 1;
	for (int i = 0; i < 3; i++)
		end_of(readers[i]);
	CHECK(by_kind[0] > 0 && by_kind[1] > 0);
}

static struct ibv_counters *counters;
static atomic_int read_some;

static void *read_counters(void *unused)
{
	(void)unused;
	uint64_t values[2];
	while (!over) {
		int error = ibv_read_counters(counters, values, 2, 0);
		/* Without a rule the counters can't be read. */
		CHECK(error == 0 || error == EINVAL);
		read_some += error == 0;
	}
	return NULL;
}

/* Counters are read while rules that use them are created and destroyed. */
static void destroy_rules(void)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(&b, IBV_QPT_RAW_PACKET);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	to_init(b.qp);
	struct ibv_counters_init_attr init = { 0 };
	CHECK(counters = ibv_create_counters(b.context, &init));
	struct ibv_counter_attach_attr packets = { IBV_COUNTER_PACKETS, 0, 0 }, bytes = { IBV_COUNTER_BYTES, 1, 0 };
	CHECK(ibv_attach_counters_point_flow(counters, &packets, NULL) == 0);
	CHECK(ibv_attach_counters_point_flow(counters, &bytes, NULL) == 0);
	/* The parts follow each other directly: with the tag none of them needs padding. */
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
		struct ibv_flow_spec_action_tag tag;
		struct ibv_flow_spec_counter_action count;
	} rule = {
		.attr = { .size = sizeof(rule), .num_of_specs = 3, .port = PORT },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) },
		.tag = { IBV_FLOW_SPEC_ACTION_TAG, sizeof(rule.tag), 1 },
		.count = { IBV_FLOW_SPEC_ACTION_COUNT, sizeof(rule.count), counters },
	};
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	over = 0;
	read_some = 0;
	pthread_t readers[] = { start(read_counters, NULL), start(read_counters, NULL) };
	for (int i = 0; i < ROUNDS || read_some < 10; i++) {
		rule.eth.val.dst_mac[5] = i;
		struct ibv_flow *flow = ibv_create_flow(b.qp, &rule.attr);
		CHECK(flow);
		CHECK(ibv_destroy_counters(counters) == EBUSY);
		if (i % 4 == 0)
			sched_yield();
		CHECK(ibv_destroy_flow(flow) == 0);
	}
	over = 1;
	for (int i = 0; i < 2; i++)
		end_of(readers[i]);
	CHECK(ibv_destroy_counters(counters) == 0);
	CHECK(ibv_destroy_qp(b.qp) == 0);
}

static struct ibv_cq *resized;

static void *ask_for_addresses(void *unused)
{
	(void)unused;
	while (!over) {
		struct mlx5dv_cq raw = { 0 };
		struct mlx5dv_obj obj = { .cq = { resized, &raw } };
		CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ) == 0);
		CHECK(raw.buf && raw.dbrec && (raw.cqe_cnt == 16 || raw.cqe_cnt == 1024) && raw.cqe_size == 64);
	}
	return NULL;
}

/* The addresses and the number of entries of a queue are those before a resize, or those after it. */
static void resize(void)
{
	CHECK(resized = ibv_create_cq(a.context, 15, NULL, NULL, 0));
	over = 0;
	pthread_t askers[] = { start(ask_for_addresses, NULL), start(ask_for_addresses, NULL) };
	for (int i = 0; i < ROUNDS; i++) {
		CHECK(ibv_resize_cq(resized, i % 2 ? 15 : 1023) == 0);
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(resized, 1, &wc) == 0);
	}
	over = 1;
	for (int i = 0; i < 2; i++)
		end_of(askers[i]);
	CHECK(ibv_destroy_cq(resized) == 0);
}

/* Creates and destroys queue pairs that complete to the same queue, with distinct numbers of their requests. */
static void *come_and_go(void *of)
{
	struct end *end = of;
	while (!over) {
		struct ibv_qp_init_attr_ex attr = qp_attr(end, IBV_QPT_RC);
		struct ibv_qp *qp = ibv_create_qp_ex(end->context, &attr);
		struct ibv_mr *mr = ibv_reg_mr(end->pd, end->buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
		struct ibv_srq *srq = ibv_create_srq(end->pd, &init);
		CHECK(qp && mr && srq);
		to_init(qp);
		struct ibv_sge sge = { (uintptr_t)end->buf, 8, mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = UINT64_MAX, .sg_list = &sge, .num_sge = 1 }, *bad;
		for (int i = 0; i < 4; i++)
			CHECK(ibv_post_recv(qp, &recv, &bad) == 0 && ibv_post_srq_recv(srq, &recv, &bad) == 0);
		/* Its receives are flushed. */
		struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
		CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
		CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_srq(srq) == 0 && ibv_dereg_mr(mr) == 0);
	}
	return NULL;
}

/* The next completion of the permanent queue pair; those of the other queue pairs are flushed receives. */
static struct ibv_wc poll_own(struct end *end)
{
	for (;;) {
		struct ibv_wc wc = poll_one(end->cq);
		if (wc.qp_num == end->qp->qp_num)
			return wc;
		CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.wr_id == UINT64_MAX);
	}
}

/* A permanent queue pair posts all the time. Its completions arrive in order, with its own data. */
static void post_beside(void)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC), peer = qp_attr(&b, IBV_QPT_RC);
	/* There is room for the flushed receives of the other queue pairs, which are not polled yet. */
	struct ibv_cq *own[] = { a.cq, b.cq };
	CHECK(a.cq = attr.send_cq = attr.recv_cq = ibv_create_cq(a.context, 4096, NULL, NULL, 0));
	CHECK(b.cq = peer.send_cq = peer.recv_cq = ibv_create_cq(b.context, 4096, NULL, NULL, 0));
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	CHECK(b.qp = ibv_create_qp_ex(b.context, &peer));
	connect_ends(&a, &b);
	over = 0;
	pthread_t neighbours[] = { start(come_and_go, &a), start(come_and_go, &b), start(come_and_go, &b) };
	for (uint64_t i = 0; i < 10 * ROUNDS; i++) {
		post_recv(&b, i, 2048, 64);
		memcpy(a.buf + 1024, &i, sizeof(i));
		struct ibv_sge sge = { (uintptr_t)a.buf + 1024, 64, a.mr->lkey };
		struct ibv_send_wr wr = {
			.wr_id = i,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
		}, *bad;
		CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
		struct ibv_wc sent = poll_own(&a), got = poll_own(&b);
		CHECK(sent.status == IBV_WC_SUCCESS && sent.wr_id == i);
		CHECK(got.status == IBV_WC_SUCCESS && got.wr_id == i && got.byte_len == 64);
		CHECK(memcmp(b.buf + 2048, &i, sizeof(i)) == 0);
	}
	over = 1;
	for (int i = 0; i < 3; i++)
		end_of(neighbours[i]);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_destroy_cq(a.cq) == 0 && ibv_destroy_cq(b.cq) == 0);
	a.cq = own[0];
	b.cq = own[1];
}

static void *poll_all(void *of)
{
	struct end *end = of;
	struct ibv_wc wc[4];
	struct ibv_async_event event;
	int n;
	while (!over) {
		while ((n = ibv_poll_cq(end->cq, 4, wc)) > 0)
			for (int i = 0; i < n; i++)
				CHECK(wc[i].status == IBV_WC_WR_FLUSH_ERR);
		CHECK(n == 0);
		if (ibv_get_async_event(end->context, &event) == 0)
			ibv_ack_async_event(&event);
	}
	return NULL;
}

/* Devices are closed while their objects exist, and other threads poll queues of contexts that stay open: one of the same
 * device, and one that shares its file with the closed contexts. */
static void close_beside(void)
{
	over = 0;
	set_nonblocking(a.context->async_fd);
	pthread_t pollers[] = { start(poll_all, &a), start(come_and_go, &a) };
	for (int i = 0; i < ROUNDS / 5; i++) {
		struct end end;
		open_end(&end, 0);
		struct ibv_qp_init_attr_ex attr = qp_attr(&end, IBV_QPT_RC);
		CHECK(end.qp = ibv_create_qp_ex(end.context, &attr));
		to_init(end.qp);
		post_recv(&end, 1, 0, 64);
		int fd = dup(a.context->cmd_fd);
		CHECK(fd >= 0);
		struct ibv_context *imported = ibv_import_device(fd);
		CHECK(imported);
		struct ibv_pd *pd = ibv_alloc_pd(imported);
		struct ibv_cq *cq = ibv_create_cq(imported, DEPTH, NULL, NULL, 0);
		CHECK(pd && cq);
		CHECK(ibv_close_device(i % 2 ? imported : end.context) == 0);
		CHECK(ibv_close_device(i % 2 ? end.context : imported) == 0);
		free(end.buf);
	}
	over = 1;
	for (int i = 0; i < 2; i++)
		end_of(pollers[i]);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	destroy_with_events();
	destroy_rules();
	resize();
	post_beside();
	close_beside();
	close_end(&a);
	close_end(&b);
	return 0;
}
