/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Completion events and asynchronous events: waiting, signals, acknowledgement, and destruction, which waits for it. */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

static void on_alarm(int signal)
{
	(void)signal;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static void *acknowledge_late(void *cq)
{
	usleep(100000);
	ibv_ack_cq_events(cq, 1);
	return NULL;
}

static void nap(void)
{
	usleep(100000);
}

static void *acknowledge_event_late(void *event)
{
	nap();
	ibv_ack_async_event(event);
	return NULL;
}

/* A message that is not solicited, and its two completions. */
static void exchange(struct end *from, struct end *to)
{
	struct ibv_send_wr wr = { .wr_id = 5, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	post_recv(to, 4, 0, 64);
	CHECK(ibv_post_send(from->qp, &wr, &bad) == 0);
	poll_ok(to->cq, 4);
	poll_ok(from->cq, 5);
}

/* Of two requests before an event, the one for any completion is in force, in either order. */
static void request_twice(struct end *from, struct end *to)
{
	struct ibv_cq *cq;
	void *context;
	for (int solicited = 0; solicited < 2; solicited++) {
		CHECK(ibv_req_notify_cq(to->cq, solicited) == 0);
		CHECK(ibv_req_notify_cq(to->cq, !solicited) == 0);
		exchange(from, to);
		alarm(20);
		CHECK(ibv_get_cq_event(to->channel, &cq, &context) == 0 && cq == to->cq);
		ibv_ack_cq_events(cq, 1);
		/* After the event, a request for solicited completions is alone. */
		CHECK(ibv_req_notify_cq(to->cq, 1) == 0);
		exchange(from, to);
		ualarm(50000, 0);
		CHECK(ibv_get_cq_event(to->channel, &cq, &context) == -1 && errno == EINTR);
	}
	/* Completions that wait when the second request is made. */
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	post_recv(to, 4, 0, 64);
	CHECK(ibv_post_send(from->qp, &wr, &bad) == 0);
	poll_ok(from->cq, 0);
	CHECK(ibv_req_notify_cq(to->cq, 0) == 0 && ibv_req_notify_cq(to->cq, 1) == 0);
	alarm(20);
	CHECK(ibv_get_cq_event(to->channel, &cq, &context) == 0 && cq == to->cq);
	alarm(0);
	ibv_ack_cq_events(cq, 1);
	poll_ok(to->cq, 4);
}

/* Whether the call for an event of a channel without events finds the channel. */
static int is_found(struct ibv_comp_channel *channel)
{
	struct ibv_cq *cq;
	void *context;
	CHECK(ibv_get_cq_event(channel, &cq, &context) == -1 && (errno == EAGAIN || errno == EINVAL));
	return errno == EAGAIN;
}

static struct ibv_comp_channel *silent_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	CHECK(channel && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(is_found(channel) && is_found(channel));
	return channel;
}

/* An object that calls have found is not found after it was changed or destroyed, or its context was closed. */
static void objects_end(void)
{
	struct ibv_context *one = open_hca(0), *other = open_hca(1);
	struct ibv_comp_channel *channel = silent_channel(one);
	channel->context = other;
	CHECK(!is_found(channel));
	channel->context = one;
	CHECK(is_found(channel));
	struct ibv_cq *cq = ibv_create_cq(one, DEPTH, NULL, channel, 0);
	CHECK(cq);
	for (int i = 0; i < 2; i++)
		ibv_ack_cq_events(cq, 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	ibv_ack_cq_events(cq, 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(!is_found(channel));
	/* More objects than are remembered. */
	enum { MANY = 200 };
	struct ibv_comp_channel *many[MANY];
	for (int i = 0; i < MANY; i++)
		many[i] = silent_channel(i % 2 ? one : other);
	for (int i = 0; i < MANY; i++)
		CHECK(is_found(many[i]));
	CHECK(ibv_close_device(one) == 0);
	for (int i = 0; i < MANY; i++)
		CHECK(is_found(many[i]) == !(i % 2));
	CHECK(ibv_close_device(other) == 0);
	for (int i = 0; i < MANY; i++)
		CHECK(!is_found(many[i]));
}

int main(void)
{
	struct end a, b;
	objects_end();
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&a, &b);

	/* Without an event, a read of a non-blocking channel fails with EAGAIN, and a signal ends a blocking read. */
	struct ibv_cq *cq;
	void *context;
	int flags = fcntl(b.channel->fd, F_GETFL);
	CHECK(fcntl(b.channel->fd, F_SETFL, flags | O_NONBLOCK) == 0);
	CHECK(ibv_get_cq_event(b.channel, &cq, &context) == -1 && errno == EAGAIN);
	CHECK(fcntl(b.channel->fd, F_SETFL, flags) == 0);
	struct sigaction action = { .sa_handler = on_alarm };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	ualarm(50000, 0);
	CHECK(ibv_get_cq_event(b.channel, &cq, &context) == -1 && errno == EINTR);
	struct ibv_async_event event;
	ualarm(50000, 0);
	/* The events of the port, raised when it became active, are read first. */
	int result;
	while ((result = ibv_get_async_event(b.context, &event)) == 0)
		ibv_ack_async_event(&event);
	CHECK(result == -1 && errno == EINTR);

	request_twice(&a, &b);

	/* An event for an armed queue, once. */
	CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
	post_recv(&b, 1, 0, 64);
	struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	CHECK(ibv_get_cq_event(b.channel, &cq, &context) == 0 && cq == b.cq && context == &b);
	poll_ok(b.cq, 1);
	poll_ok(a.cq, 2);
	CHECK(ibv_destroy_comp_channel(b.channel) == EBUSY);

	/* A queue pair in error has an event; its destruction waits until the event is acknowledged. */
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(b.qp, &error, IBV_QP_STATE) == 0);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	struct ibv_wc wc = poll_one(a.cq);
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR && wc.wr_id == 2);

	/* Destroying the queue waits for the acknowledgement of its event. */
	CHECK(ibv_destroy_qp(b.qp) == 0);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, acknowledge_late, b.cq) == 0);
	double before = now();
	CHECK(ibv_destroy_cq(b.cq) == 0);
	CHECK(now() - before > 0.08);
	CHECK(pthread_join(thread, NULL) == 0);

	/* The same for an asynchronous event: a shared receive queue under its limit. */
	CHECK(b.cq = ibv_create_cq(b.context, DEPTH, &b, b.channel, 0));
	struct ibv_srq_init_attr init = { .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(b.pd, &init);
	CHECK(srq);
	attr = qp_attr(&b, IBV_QPT_RC);
	attr.srq = srq;
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	CHECK(ibv_destroy_qp(a.qp) == 0);
	attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	connect_ends(&a, &b);
	struct ibv_recv_wr recv = { .wr_id = 3 }, *bad_recv;
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == 0);
	wr.num_sge = 0;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	poll_ok(b.cq, 3);
	do {
		CHECK(ibv_get_async_event(b.context, &event) == 0);
		if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED)
			ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	CHECK(pthread_create(&thread, NULL, acknowledge_event_late, &event) == 0);
	before = now();
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(now() - before > 0.08);
	CHECK(pthread_join(thread, NULL) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
