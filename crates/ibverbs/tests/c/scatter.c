/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Short data in completions: the device writes them to the CQ, and the poll copies them to the memory of the work request.
 * MLX5_SCATTER_TO_CQE=0 disables this, as with libmlx5.
 */
#include "common.h"

enum { SHORT = 32, LONG = 33 };

static int in_completions;
static const char text[LONG + 1] = "the data of the message, thirty-3";

/* Waits for a completion without polling it. */
static void await(struct end *end)
{
	struct ibv_cq *cq;
	void *context;
	CHECK(ibv_get_cq_event(end->channel, &cq, &context) == 0 && cq == end->cq);
	ibv_ack_cq_events(cq, 1);
}

static void post(struct end *end, enum ibv_wr_opcode opcode, uint32_t length, const struct end *peer)
{
	struct ibv_sge sge = { (uintptr_t)end->buf, length, end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = opcode }, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)peer->buf;
	wr.wr.rdma.rkey = peer->mr->rkey;
	CHECK(ibv_post_send(end->qp, &wr, &bad) == 0);
}

/* Receives a message into one entry, or into two, and checks when its bytes are there. */
static void receive(struct end *a, struct end *b, struct ibv_srq *srq, uint32_t length, int entries)
{
	struct ibv_sge sges[] = { { (uintptr_t)b->buf, entries == 1 ? 64 : 5, b->mr->lkey },
				  { (uintptr_t)b->buf + 5, 64, b->mr->lkey } };
	struct ibv_recv_wr wr = { .wr_id = 8, .sg_list = sges, .num_sge = entries }, *bad;
	memset(b->buf, 0, SIZE);
	memcpy(a->buf, text, LONG);
	CHECK((srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(b->qp, &wr, &bad)) == 0);
	CHECK(ibv_req_notify_cq(b->cq, 0) == 0);
	post(a, IBV_WR_SEND, length, b);
	await(b);
	int is_there = memcmp(b->buf, text, length) == 0;
	CHECK(is_there == !(in_completions && length <= SHORT));
	CHECK(poll_ok(b->cq, 8).byte_len == length);
	CHECK(memcmp(b->buf, text, length) == 0 && b->buf[length] == 0);
	poll_ok(a->cq, 7);
}

/* Reads, which a requester gets in completions if all of its work requests are signaled. */
static void read_back(struct end *a, struct end *b)
{
	memset(a->buf, 0, SIZE);
	memcpy(b->buf, text, LONG);
	CHECK(ibv_req_notify_cq(a->cq, 0) == 0);
	post(a, IBV_WR_RDMA_READ, SHORT, b);
	await(a);
	CHECK((memcmp(a->buf, text, SHORT) == 0) == !in_completions);
	poll_ok(a->cq, 7);
	CHECK(memcmp(a->buf, text, SHORT) == 0 && a->buf[SHORT] == 0);
}

static void connected(struct ibv_srq *srq, struct end *a, struct end *b)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(a, IBV_QPT_RC);
	attr.sq_sig_all = 1;
	CHECK(a->qp = ibv_create_qp_ex(a->context, &attr));
	attr = qp_attr(b, IBV_QPT_RC);
	attr.srq = srq;
	CHECK(b->qp = ibv_create_qp_ex(b->context, &attr));
	connect_ends(a, b);
	for (int entries = 1; entries <= 2; entries++) {
		receive(a, b, srq, 1, entries);
		receive(a, b, srq, SHORT, entries);
		receive(a, b, srq, LONG, entries);
	}
	read_back(a, b);
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
}

int main(void)
{
	const char *variable = getenv("MLX5_SCATTER_TO_CQE");
	in_completions = !variable || strcmp(variable, "0");
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	connected(NULL, &a, &b);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = DEPTH, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(b.pd, &attr);
	CHECK(srq);
	connected(srq, &a, &b);
	CHECK(ibv_destroy_srq(srq) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
