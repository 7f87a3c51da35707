/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Pairs of calls on the same objects: each thread calls one verb after another, of its own choice. Each call succeeds or fails; the
 * process continues, each poll reports requests that were posted, and the objects work afterwards.
 */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 6, QPS = 3, CALLS = 4000, ENTRIES = 4000 };

static struct end a, b;
static struct ibv_qp *qps[QPS], *ud;
static struct ibv_qp *peers[QPS];
static struct ibv_srq *srq;
static struct ibv_mw *mw;
static atomic_uint completed;

/* The wr_id of a request has this mark. */
static const uint64_t MARK = 0x5a5a5a0000000000;

static uint64_t any(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state * 0x2545f4914f6cdd1dULL >> 8;
}

static struct ibv_sge entry(void)
{
	return (struct ibv_sge){ (uintptr_t)a.buf, 8, a.mr->lkey };
}

static void post(struct ibv_qp *qp, uint64_t random)
{
	struct ibv_sge sge = entry();
	struct ibv_send_wr wr = {
		.wr_id = MARK | (random & 0xffff),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = random & 1 ? IBV_WR_RDMA_WRITE : IBV_WR_SEND,
		.send_flags = random & 2 ? IBV_SEND_SIGNALED : IBV_SEND_INLINE,
		.wr.rdma = { (uintptr_t)b.buf, b.mr->rkey },
	}, *bad;
	int error = ibv_post_send(qp, &wr, &bad);
	CHECK(error == 0 || error == EINVAL || error == ENOMEM);
}

static void post_receive(struct ibv_srq *to)
{
	struct ibv_sge sge = entry();
	struct ibv_recv_wr wr = { .wr_id = MARK, .sg_list = &sge, .num_sge = 1 }, *bad;
	int error = ibv_post_srq_recv(to, &wr, &bad);
	CHECK(error == 0 || error == ENOMEM);
}

static void poll(struct ibv_cq *cq)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(cq, 8, wc);
	CHECK(n >= 0 && n <= 8);
	for (int i = 0; i < n; i++) {
		CHECK((wc[i].wr_id & ~0xffffULL) == MARK);
		completed++;
	}
}

static void event(void)
{
	struct ibv_cq *cq;
	void *context;
	if (ibv_get_cq_event(a.channel, &cq, &context) == 0) {
		CHECK(cq == a.cq && context == &a);
		ibv_ack_cq_events(cq, 1);
	} else {
		CHECK(errno == EAGAIN);
	}
	struct ibv_async_event event;
	if (ibv_get_async_event(a.context, &event) == 0)
		ibv_ack_async_event(&event);
}

static void set_state(struct ibv_qp *qp, int state)
{
	struct ibv_qp_attr attr = { .qp_state = state };
	int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	CHECK(error == 0 || error == EINVAL);
}

static int modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	int error = ibv_modify_qp(qp, attr, mask);
	CHECK(error == 0 || error == EINVAL);
	return error;
}

/* To RTS, unless another thread changes the state in between. */
static void up(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp_num,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 1,
		.ah_attr = address_of(&b),
		.timeout = 14,
		.retry_cnt = 1,
		.max_rd_atomic = 4,
	};
	if (modify(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		return;
	attr.qp_state = IBV_QPS_RTR;
	if (modify(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		return;
	attr.qp_state = IBV_QPS_RTS;
	modify(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				  IBV_QP_MAX_QP_RD_ATOMIC);
}

static void call(uint64_t random, uint64_t more)
{
	struct ibv_qp *qp = qps[more % QPS];
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	struct ibv_srq_attr srq_attr = { .srq_limit = more % 8 };
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = more & 3 } };
	switch (random % 24) {
	case 0:
		set_state(qp, IBV_QPS_RESET);
		up(qp, peers[more % QPS]);
		return;
	case 1:
		return set_state(qp, IBV_QPS_ERR);
	case 2:
		CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
		return;
	case 3: {
		int error = ibv_resize_cq(a.cq, more & 1 ? ENTRIES : 2 * ENTRIES);
		/* EBUSY: this thread polls, which it does not. EINVAL: more completions wait than the new size. */
		CHECK(error == 0 || error == EINVAL);
		return;
	}
	case 4:
		CHECK(ibv_req_notify_cq(a.cq, more & 1) == 0);
		return;
	case 5:
		return event();
	case 6:
		CHECK(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT) == 0);
		return;
	case 7:
		CHECK(ibv_query_srq(srq, &srq_attr) == 0);
		return;
	case 8:
		ibv_attach_mcast(ud, &group, 0);
		return;
	case 9:
		ibv_detach_mcast(ud, &group, 0);
		return;
	case 10: {
		struct ibv_ah_attr address = address_of(&b);
		struct ibv_ah *ah = ibv_create_ah(a.pd, &address);
		CHECK(ah && ibv_destroy_ah(ah) == 0);
		return;
	}
	case 11: {
		struct ibv_mw_bind bind = {
			.wr_id = MARK,
			.bind_info = { a.mr, (uintptr_t)a.buf, 64, IBV_ACCESS_REMOTE_READ },
		};
		int error = ibv_bind_mw(qp, mw, &bind);
		CHECK(error == 0 || error == EINVAL || error == ENOMEM);
		struct ibv_mr *mr = ibv_reg_mr(a.pd, a.buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
		CHECK(mr && ibv_dereg_mr(mr) == 0);
		return;
	}
	case 12: {
		struct ibv_qp_init_attr_ex init_ex = qp_attr(&a, IBV_QPT_RC);
		struct ibv_qp *temporary = ibv_create_qp_ex(a.context, &init_ex);
		CHECK(temporary);
		to_init(temporary);
		CHECK(ibv_destroy_qp(temporary) == 0);
		return;
	}
	case 13:
	case 14:
		return post_receive(srq);
	case 15:
	case 16:
	case 17:
	case 18:
		return post(qp, more);
	default:
		return poll(a.cq);
	}
}

static void *run(void *seed)
{
	uint64_t state = (uintptr_t)seed * 0x9e3779b97f4a7c15ULL + 1;
	for (int i = 0; i < CALLS; i++) {
		uint64_t random = any(&state);
		call(random, any(&state));
	}
	return NULL;
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	CHECK(fcntl(a.channel->fd, F_SETFL, O_NONBLOCK) == 0 && fcntl(a.context->async_fd, F_SETFL, O_NONBLOCK) == 0);
	CHECK(ibv_resize_cq(a.cq, ENTRIES) == 0);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 64, .max_sge = 1 } };
	CHECK(srq = ibv_create_srq(a.pd, &srq_attr));
	CHECK(mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_1));
	for (int i = 0; i < QPS; i++) {
		struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
		attr.srq = srq;
		CHECK(qps[i] = ibv_create_qp_ex(a.context, &attr));
		attr = qp_attr(&b, IBV_QPT_RC);
		CHECK(peers[i] = ibv_create_qp_ex(b.context, &attr));
	}
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_UD);
	CHECK(ud = ibv_create_qp_ex(a.context, &attr));
	to_init(ud);
	pthread_t threads[THREADS];
	for (uintptr_t i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, run, (void *)(i + 1)) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	printf("%u completions\n", completed);

	/* Everything works. */
	for (int i = 0; i < QPS; i++) {
		set_state(qps[i], IBV_QPS_RESET);
		set_state(peers[i], IBV_QPS_RESET);
	}
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);
	for (int i = 0; i < QPS; i++) {
		a.qp = qps[i];
		b.qp = peers[i];
		connect_ends(&a, &b);
		sprintf(a.buf, "from %d", i);
		post(a.qp, 3);
		while (ibv_poll_cq(a.cq, 1, &wc) == 0)
			;
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (MARK | 3) && strcmp(b.buf, a.buf) == 0);
		CHECK(ibv_destroy_qp(qps[i]) == 0 && ibv_destroy_qp(peers[i]) == 0);
	}
	for (int i = 0; i < 4; i++) {
		union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = i } };
		while (ibv_detach_mcast(ud, &group, 0) == 0)
			;
	}
	CHECK(ibv_destroy_qp(ud) == 0 && ibv_destroy_srq(srq) == 0 && ibv_dealloc_mw(mw) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
