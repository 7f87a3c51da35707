/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The costs of a post and a poll by libibverbs on EFA: the C side of `cargo xtask bench`, with measure.c and ops.c.
 * It runs under the preload library of shim.c. The rows are those of the Rust programs, with the same names.
 */
#define _GNU_SOURCE
#include "world.h"

static struct ibv_send_wr sends[CHUNK];
static struct ibv_recv_wr receives[CHUNK];
static struct ibv_sge sges[CHUNK][2];

static void prepare_sends(int batch)
{
	for (int i = 0; i < CHUNK; i++) {
		sges[i][0] = (struct ibv_sge){ (uintptr_t)data, 64, mr->lkey };
		sends[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = sges[i], .num_sge = 1, .opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED, .next = i % batch == batch - 1 ? NULL : &sends[i + 1] };
		sends[i].wr.ud.ah = ah;
	}
}
static void prepare_receives(int batch, int entries)
{
	for (int i = 0; i < CHUNK; i++) {
		for (int k = 0; k < entries; k++)
			sges[i][k] = (struct ibv_sge){ (uintptr_t)data + 64 * k, 64, mr->lkey };
		receives[i] = (struct ibv_recv_wr){ .wr_id = i, .sg_list = sges[i], .num_sge = entries,
			.next = i % batch == batch - 1 ? NULL : &receives[i + 1] };
	}
}
static void one_entry(int batch) { prepare_receives(batch, 1); }
static void two_entries(int batch) { prepare_receives(batch, 2); }

/* ----------------------------------------------------------------------------------------------------------------- receives */
static void post(struct qp *q, int batch)
{
	struct ibv_recv_wr *bad;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_post_recv(q->qp, &receives[i], &bad), "ibv_post_recv");
	end();
	complete_receives(q);
	drain(q->cq);
}
static void post_recv(int batch) { post(&srd, batch); }
static void post_recv2(int batch) { post(&srd_sge2, batch); }

/* -------------------------------------------------------------------------------------------------------------------- polls */
static void fill_sends(struct qp *q)
{
	struct ibv_send_wr *bad;

	for (int i = 0; i < CHUNK; i += BATCH)
		CHECK(!ibv_post_send(q->qp, &sends[i], &bad), "ibv_post_send");
	complete_sends(q);
}
static void fill_receives(struct qp *q)
{
	struct ibv_recv_wr *bad;

	for (int i = 0; i < CHUNK; i += BATCH)
		CHECK(!ibv_post_recv(q->qp, &receives[i], &bad), "ibv_post_recv");
	complete_receives(q);
}
static void poll(int batch, void (*fill)(struct qp *))
{
	struct ibv_wc wc[BATCH];
	int n = 0;

	fill(&srd);
	begin();
	for (int i = 0; i < CHUNK; i += batch)
		n += ibv_poll_cq(plain_cq.cq, batch, wc);
	end();
	CHECK(n == CHUNK && wc[batch - 1].wr_id == CHUNK - 1, "ibv_poll_cq");
}
static void poll_sends(int batch) { poll(batch, fill_sends); }
static void poll_receives(int batch) { poll(batch, fill_receives); }
static void poll_empty(int batch)
{
	struct ibv_wc wc;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_poll_cq(plain_cq.cq, 1, &wc), "ibv_poll_cq: not empty");
	end();
}

static volatile uint64_t sink;

static void start_poll(int batch, void (*fill)(struct qp *), int more)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_cq_ex *x = ex_cq.ex;
	uint64_t sum = 0;

	fill(&srd_of_ex);
	begin();
	for (int i = 0; i < CHUNK; i += batch) {
		CHECK(!ibv_start_poll(x, &attr), "ibv_start_poll");
		for (int k = 1;; k++) {
			sum += x->wr_id + x->status;
			if (more)
				sum += ibv_wc_read_opcode(x) + ibv_wc_read_byte_len(x) + ibv_wc_read_qp_num(x) + ibv_wc_read_wc_flags(x);
			if (k == batch)
				break;
			CHECK(!ibv_next_poll(x), "ibv_next_poll");
		}
		ibv_end_poll(x);
	}
	end();
	sink = sum;
}
static void start_sends(int batch) { start_poll(batch, fill_sends, 0); }
static void start_receives(int batch) { start_poll(batch, fill_receives, 0); }
static void start_receives_more(int batch) { start_poll(batch, fill_receives, 1); }
static void start_empty(int batch)
{
	struct ibv_poll_cq_attr attr = { 0 };

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(ibv_start_poll(ex_cq.ex, &attr) == ENOENT, "ibv_start_poll: not empty");
	end();
}

/* ------------------------------------------------------------------------------------------------------------------- events */
static struct event_cq *event_cq(void)
{
	static struct event_cq e;

	if (!e.cq)
		create_event_cq(&e);
	return &e;
}
static void arm(int batch)
{
	/* A CQ without a channel has no doorbell. */
	struct ibv_cq *cq = event_cq()->cq;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	end();
}
static void events(int batch)
{
	struct event_cq *e = event_cq();
	struct ibv_cq *cq;
	void *context;

	for (int i = 0; i < CHUNK; i++)
		make_event(e);
	begin();
	for (int i = 0; i < CHUNK; i += batch) {
		CHECK(!ibv_get_cq_event(e->channel, &cq, &context), "ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(cq, 0), "ibv_req_notify_cq");
	}
	end();
}

/* --------------------------------------------------------------------------------------------------------------------- rows */
static void nothing(int batch) { (void)batch; }
static void to_send(int batch) { (void)batch, prepare_sends(BATCH); }
static void to_receive(int batch) { (void)batch, one_entry(BATCH); }

const struct row rows[] = {
	{ "efa post_recv", ONE | LIST, one_entry, post_recv, CHUNK },
	{ "efa post_recv sge2", ONE | LIST, two_entries, post_recv2, CHUNK },
	{ "efa poll sends", ONE | LIST, to_send, poll_sends, CHUNK },
	{ "efa poll receives", ONE | LIST, to_receive, poll_receives, CHUNK },
	{ "efa poll empty", ONE, nothing, poll_empty, CHUNK },
	{ "efa start_poll sends", ONE | LIST, to_send, start_sends, CHUNK },
	{ "efa start_poll receives", ONE | LIST, to_receive, start_receives, CHUNK },
	{ "efa start_poll receives more", ONE | LIST, to_receive, start_receives_more, CHUNK },
	{ "efa start_poll empty", ONE, nothing, start_empty, CHUNK },
	{ "efa arm", ONE, nothing, arm, CHUNK },
	{ "efa event", ONE, nothing, events, CHUNK },
};
const int row_count = sizeof(rows) / sizeof(*rows);
