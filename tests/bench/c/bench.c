/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The costs of a post and a poll by libibverbs on mlx5: the C side of `cargo xtask bench`, with measure.c and ops.c.
 * It runs under the preload library of shim.c. The rows are those of the Rust program beside it, with the same names.
 */
#define _GNU_SOURCE
#include "world.h"

/* ------------------------------------------------------------------------------------------------------------ ibv_post_send */
static struct ibv_send_wr wrs[CHUNK];
static struct ibv_sge sges[CHUNK][3];
static struct ibv_recv_wr recvs[CHUNK];

static void prepare_sends(int batch, int opcode, unsigned flags, int entries, uint32_t length)
{
	memset(wrs, 0, sizeof(wrs));
	for (int i = 0; i < CHUNK; i++) {
		for (int k = 0; k < 3; k++)
			sges[i][k] = (struct ibv_sge){ (uintptr_t)data + 64 * k, length, mr->lkey };
		wrs[i].wr_id = i;
		wrs[i].sg_list = sges[i];
		wrs[i].num_sge = entries;
		wrs[i].opcode = opcode;
		wrs[i].send_flags = IBV_SEND_SIGNALED | flags;
		wrs[i].wr.rdma.remote_addr = 0x100000 + i * 64;
		wrs[i].wr.rdma.rkey = 0x1234;
		wrs[i].next = i % batch == batch - 1 ? NULL : &wrs[i + 1];
	}
}
static void prepare_write(int batch) { prepare_sends(batch, IBV_WR_RDMA_WRITE, 0, 1, 64); }
static void prepare_inline(int batch) { prepare_sends(batch, IBV_WR_RDMA_WRITE, IBV_SEND_INLINE, 1, 32); }
static void prepare_send3(int batch) { prepare_sends(batch, IBV_WR_SEND, 0, 3, 64); }

static void post_sends(struct qp *q, int batch, int blocks)
{
	struct ibv_send_wr *bad;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_post_send(q->qp, &wrs[i], &bad), "ibv_post_send");
	end();
	retire_sends(q, blocks);
}
static void post_inline(int batch) { post_sends(&rc, batch, 2); }
static void post_send3(int batch) { post_sends(&rc_sge3, batch, 1); }
static void post_fifth(int batch)
{
	if (!fifth.qp)
		create_fifth();
	post_sends(&fifth, batch, 1);
}

/*
 * A stand-in for the doorbell register's write-combining memory: after each post, non-temporal stores of as many words as the
 * register gets (the whole WQE of a single post, else 8 bytes) and the fence that flushes them.
 */
static long long burst_target[2][32] __attribute__((aligned(256)));

static inline void burst(int i, int batch)
{
	for (int k = 0; k < (batch == 1 ? 8 : 1); k++)
		_mm_stream_si64(&burst_target[i & 1][k], k);
	_mm_sfence();
}
static void post_burst(int batch)
{
	struct ibv_send_wr *bad;

	begin();
	for (int i = 0; i < CHUNK; i += batch) {
		CHECK(!ibv_post_send(rc.qp, &wrs[i], &bad), "ibv_post_send");
		burst(i / batch, batch);
	}
	end();
	retire_sends(&rc, 1);
}

/* ------------------------------------------------------------------------------------------------------------------ ibv_wr_* */
#define BUILDER(name, queue, blocks, ...)                                              \
	static void name(int batch)                                                    \
	{                                                                              \
		struct ibv_qp_ex *x = queue.ex;                                        \
		uint32_t lkey = mr->lkey;                                              \
		uintptr_t addr = (uintptr_t)data;                                      \
                                                                                       \
		(void)lkey, (void)addr;                                                \
		begin();                                                               \
		for (int first = 0; first < CHUNK; first += batch) {                   \
			ibv_wr_start(x);                                               \
			for (int i = first; i < first + batch; i++) {                  \
				uint64_t remote = 0x100000 + i * 64;                   \
                                                                                       \
				(void)remote;                                          \
				x->wr_id = i;                                          \
				x->wr_flags = IBV_SEND_SIGNALED;                       \
				__VA_ARGS__                                            \
			}                                                              \
			CHECK(!ibv_wr_complete(x), "ibv_wr_complete");                 \
		}                                                                      \
		end();                                                                 \
		retire_sends(&queue, blocks);                                          \
	}
BUILDER(wr_inline, rc_ex, 2, ibv_wr_rdma_write(x, 0x1234, remote); ibv_wr_set_inline_data(x, data, 32);)
BUILDER(wr_send_inline, rc_ex, 1, ibv_wr_send(x); ibv_wr_set_inline_data(x, data, 32);)
BUILDER(wr_send3, rc_sge3_ex, 1, ibv_wr_send(x); ibv_wr_set_sge_list(x, 3, sges[i]);)

/* ----------------------------------------------------------------------------------------------------------------- receives */
static void prepare_recvs(int batch)
{
	for (int i = 0; i < CHUNK; i++) {
		sges[i][0] = (struct ibv_sge){ (uintptr_t)data, 64, mr->lkey };
		recvs[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = sges[i], .num_sge = 1,
						 .next = i % batch == batch - 1 ? NULL : &recvs[i + 1] };
	}
}
static void complete_recvs(struct cq *c, struct qp *q, int scattered)
{
	for (int i = 0; i < CHUNK; i++)
		complete(c, q, q->received++, RESPONDER_SEND, scattered ? 32 : 64, scattered);
}
static void post_recvs(int batch)
{
	struct ibv_recv_wr *bad;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_post_recv(rc.qp, &recvs[i], &bad), "ibv_post_recv");
	end();
	complete_recvs(&recv_cq, &rc, 0);
	drain(&recv_cq, CHUNK, CHUNK - 1);
}

/* Completes receives from the head of the SRQ's free list on, in its order. */
static void complete_srq(struct cq *c)
{
	/* A segment of 16 bytes, in which the next index is at offset 2, and an entry. */
	enum { STRIDE = 32 };

	for (int i = 0; i < CHUNK; i++) {
		const uint8_t *wqe = srq_elements + srq_head * STRIDE;

		complete(c, &rc_srq, srq_head, RESPONDER_SEND, 64, 0);
		srq_head = wqe[2] << 8 | wqe[3];
	}
}
static void post_srq_recvs(int batch)
{
	struct ibv_recv_wr *bad;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_post_srq_recv(srq, &recvs[i], &bad), "ibv_post_srq_recv");
	end();
	complete_srq(&recv_cq);
	drain(&recv_cq, CHUNK, CHUNK - 1);
}

/* -------------------------------------------------------------------------------------------------------------------- polls */
/* The QP whose completions a row polls. */
static struct qp *polled_qp(struct cq *c) { return c == &ex_cq ? &rc_of_ex : &rc; }

static void fill_requester(struct cq *c)
{
	struct qp *q = polled_qp(c);
	uint16_t first = posted(q);
	struct ibv_send_wr *bad;

	for (int i = 0; i < CHUNK; i += BATCH)
		CHECK(!ibv_post_send(q->qp, &wrs[i], &bad), "ibv_post_send");
	for (int i = 0; i < CHUNK; i++)
		complete(c, q, first + i, REQUESTER, 0, 0);
}
static void fill_recvs(struct cq *c, int scattered)
{
	struct qp *q = polled_qp(c);
	struct ibv_recv_wr *bad;

	for (int i = 0; i < CHUNK; i += BATCH)
		CHECK(!ibv_post_recv(q->qp, &recvs[i], &bad), "ibv_post_recv");
	complete_recvs(c, q, scattered);
}
static void fill_responder(struct cq *c) { fill_recvs(c, 0); }
static void fill_scattered(struct cq *c) { fill_recvs(c, 1); }
static void fill_srq(struct cq *c)
{
	struct ibv_recv_wr *bad;

	for (int i = 0; i < CHUNK; i += BATCH)
		CHECK(!ibv_post_srq_recv(srq, &recvs[i], &bad), "ibv_post_srq_recv");
	complete_srq(c);
}
/* QPs that complete to one CQ, in turn. */
struct many {
	int count, operations;
	uint16_t completed; /* of each QP */
	struct qp *qps;
	struct cq cq;
};
static struct many many64 = { .count = 64, .operations = CHUNK }, many1024 = { .count = 1024, .operations = 1024 },
		   many10000 = { .count = 10000, .operations = 10000 };

static void create_many(struct many *m)
{
	m->qps = calloc(m->count, sizeof(*m->qps));
	CHECK(m->qps, "calloc");
	create_cq(&m->cq, 2 * m->operations, 0);
	for (int i = 0; i < m->count; i++)
		create_qp(&m->qps[i], pd, (struct qp_kind){ .type = IBV_QPT_RC, .entries = 1, .wrs = 4, .cq = &m->cq });
}
/* Posts as many operations as the row has; measured, or before a measured poll. */
static void post_to_many(struct many *m)
{
	struct ibv_send_wr *bad;

	for (int i = 0; i < m->operations; i++)
		CHECK(!ibv_post_send(m->qps[i % m->count].qp, &wrs[i % CHUNK], &bad), "ibv_post_send");
}
static void complete_many(struct many *m)
{
	for (int i = 0; i < m->operations; i++)
		complete(&m->cq, &m->qps[i % m->count], m->completed + i / m->count, REQUESTER, 0, 0);
	m->completed += m->operations / m->count;
}
static void poll_them(int batch, struct many *m)
{
	struct ibv_wc wc[BATCH];
	int n = 0;

	for (int i = 0; i < m->operations; i += batch)
		n += ibv_poll_cq(m->cq.cq, batch, wc);
	CHECK(n == m->operations, "ibv_poll_cq");
}
static void post_many(int batch, struct many *m)
{
	(void)batch;
	if (!m->qps)
		create_many(m);
	begin();
	post_to_many(m);
	end();
	complete_many(m);
	poll_them(BATCH, m);
}
static void poll_many(int batch, struct many *m)
{
	if (!m->qps)
		create_many(m);
	post_to_many(m);
	complete_many(m);
	begin();
	poll_them(batch, m);
	end();
}
static void small_ring(int batch)
{
	enum { RING = 4 };
	struct ibv_send_wr *bad;
	static struct qp small;

	(void)batch;
	if (!small.qp)
		create_qp(&small, pd, (struct qp_kind){ .type = IBV_QPT_RC, .entries = 1, .wrs = RING });
	for (int first = 0; first < CHUNK; first += RING) {
		begin();
		for (int i = first; i < first + RING; i++)
			CHECK(!ibv_post_send(small.qp, &wrs[i], &bad), "ibv_post_send");
		end();
		complete(&send_cq, &small, posted(&small) - 1, REQUESTER, 0, 0);
		drain(&send_cq, 1, first + RING - 1);
	}
}

/* ------------------------------------------------------------------------------------------------------------------- events */
static void arm(int batch)
{
	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_req_notify_cq(send_cq.cq, 0), "ibv_req_notify_cq");
	end();
}
static void events(int batch)
{
	static struct event_cq e;
	struct ibv_cq *cq;
	void *context;

	if (!e.cq)
		create_event_cq(&e);
	for (int i = 0; i < CHUNK; i++)
		make_event(&e);
	begin();
	for (int i = 0; i < CHUNK; i += batch) {
		CHECK(!ibv_get_cq_event(e.channel, &cq, &context), "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	}
	end();
}
static void poll(int batch, void (*fill)(struct cq *))
{
	struct ibv_wc wc[BATCH];
	int n = 0;

	fill(&send_cq);
	begin();
	for (int i = 0; i < CHUNK; i += batch)
		n += ibv_poll_cq(send_cq.cq, batch, wc);
	end();
	CHECK(n == CHUNK && wc[batch - 1].wr_id == CHUNK - 1, "ibv_poll_cq");
}
static void poll_requester(int batch) { poll(batch, fill_requester); }
static void poll_responder(int batch) { poll(batch, fill_responder); }
static void poll_scattered(int batch)
{
	poll(batch, fill_scattered);
	CHECK(data[0] == SCATTERED_BYTE, "the data of a completion");
}
static void poll_srq(int batch) { poll(batch, fill_srq); }
static void poll_64(int batch) { poll_many(batch, &many64); }
static void poll_1024(int batch) { poll_many(batch, &many1024); }
static void poll_10000(int batch) { poll_many(batch, &many10000); }
static void post_64(int batch) { post_many(batch, &many64); }
static void post_1024(int batch) { post_many(batch, &many1024); }
static void post_10000(int batch) { post_many(batch, &many10000); }
static void poll_empty(int batch)
{
	struct ibv_wc wc;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_poll_cq(send_cq.cq, 1, &wc), "ibv_poll_cq: not empty");
	end();
}

static volatile uint64_t sink;

static void start_poll(int batch, void (*fill)(struct cq *), int more)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_cq_ex *x = ex_cq.ex;
	uint64_t sum = 0;

	fill(&ex_cq);
	begin();
	for (int i = 0; i < CHUNK; i += batch) {
		CHECK(!ibv_start_poll(x, &attr), "ibv_start_poll");
		for (int k = 1;; k++) {
			sum += x->wr_id + x->status;
			if (more)
				sum += ibv_wc_read_opcode(x) + ibv_wc_read_byte_len(x) + ibv_wc_read_qp_num(x) +
				       ibv_wc_read_wc_flags(x);
			if (k == batch)
				break;
			CHECK(!ibv_next_poll(x), "ibv_next_poll");
		}
		ibv_end_poll(x);
	}
	end();
	sink = sum;
}
static void start_requester(int batch) { start_poll(batch, fill_requester, 0); }
static void start_responder(int batch) { start_poll(batch, fill_responder, 0); }
static void start_responder_more(int batch) { start_poll(batch, fill_responder, 1); }
static void start_empty(int batch)
{
	struct ibv_poll_cq_attr attr = { 0 };

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(ibv_start_poll(ex_cq.ex, &attr) == ENOENT, "ibv_start_poll: not empty");
	end();
}

/* --------------------------------------------------------------------------------------------------------------------- rows */
static void nothing(int batch) { (void)batch; }
static void fill_writes(int batch) { (void)batch, prepare_write(BATCH); }
static void write_singles(int batch) { (void)batch, prepare_write(1); }
static void fill_receives(int batch) { (void)batch, prepare_recvs(BATCH); }

const struct row rows[] = {
	{ "post_send inline", ONE | LIST, prepare_inline, post_inline, CHUNK },
	{ "post_send send3", ONE | LIST, prepare_send3, post_send3, CHUNK },
	{ "post_send write burst", ONE | LIST | TD, prepare_write, post_burst, CHUNK },
	{ "post_send write 5th", ONE | TD, prepare_write, post_fifth, CHUNK },
	{ "wr inline", ONE | LIST, nothing, wr_inline, CHUNK },
	{ "wr send inline", ONE | LIST, nothing, wr_send_inline, CHUNK },
	{ "wr send3", ONE | LIST, prepare_send3, wr_send3, CHUNK },
	{ "post_recv", ONE | LIST, prepare_recvs, post_recvs, CHUNK },
	{ "post_srq_recv", ONE | LIST, prepare_recvs, post_srq_recvs, CHUNK },
	{ "poll requester", ONE | LIST, fill_writes, poll_requester, CHUNK },
	{ "poll responder", ONE | LIST, fill_receives, poll_responder, CHUNK },
	{ "poll scatter", ONE | LIST, fill_receives, poll_scattered, CHUNK },
	{ "poll srq", ONE | LIST, fill_receives, poll_srq, CHUNK },
	{ "poll empty", ONE, nothing, poll_empty, CHUNK },
	{ "poll 64 QPs", LIST, write_singles, poll_64, CHUNK },
	{ "poll 1024 QPs", LIST, write_singles, poll_1024, 1024 },
	{ "poll 10000 QPs", LIST, write_singles, poll_10000, 10000 },
	{ "post 64 QPs", ONE, write_singles, post_64, CHUNK },
	{ "post 1024 QPs", ONE, write_singles, post_1024, 1024 },
	{ "post 10000 QPs", ONE, write_singles, post_10000, 10000 },
	{ "post small ring", ONE, write_singles, small_ring, CHUNK },
	{ "arm", ONE, nothing, arm, CHUNK },
	{ "event", ONE, nothing, events, CHUNK },
	{ "start_poll requester", ONE | LIST, fill_writes, start_requester, CHUNK },
	{ "start_poll responder", ONE | LIST, fill_receives, start_responder, CHUNK },
	{ "start_poll responder more", ONE | LIST, fill_receives, start_responder_more, CHUNK },
	{ "start_poll empty", ONE, nothing, start_empty, CHUNK },
};

const int row_count = sizeof(rows) / sizeof(*rows);
