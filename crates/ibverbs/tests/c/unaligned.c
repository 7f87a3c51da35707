/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Lists of entries at any address: C programs have them in packed structs (libiscsi), and rdma-core's providers read them as any other.
 */
#include "common.h"

/* The most entries of a list here. */
#define MOST 4

static struct end a, b;

/* A list at an odd address. */
static struct __attribute__((packed)) list {
	char before;
	struct ibv_sge entries[MOST];
} sends, receives;

static struct ibv_sge *list_of(struct list *list, const struct end *end, uint32_t offset, int num)
{
	for (int i = 0; i < num; i++) {
		struct ibv_sge sge = { (uintptr_t)end->buf + offset + 64 * i, 16, end->mr->lkey };
		memcpy((char *)list + offsetof(struct list, entries) + i * sizeof sge, &sge, sizeof sge);
	}
	return (struct ibv_sge *)((char *)list + offsetof(struct list, entries));
}

enum face { POST, INLINE, BUILDER };

static void send(enum face face, int num, int round)
{
	for (int i = 0; i < num; i++) {
		memset((char *)a.buf + 64 * i, 16 * round + i + 1, 16);
		memset((char *)b.buf + 1024 + 64 * i, 0, 16);
	}
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = list_of(&receives, &b, 1024, num), .num_sge = num }, *bad_receive;
	CHECK(ibv_post_recv(b.qp, &receive, &bad_receive) == 0);
	struct ibv_sge *entries = list_of(&sends, &a, 0, num);
	if (face == BUILDER) {
		struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
		ibv_wr_start(qp);
		qp->wr_id = 1;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qp);
		ibv_wr_set_sge_list(qp, num, entries);
		CHECK(ibv_wr_complete(qp) == 0);
	} else {
		struct ibv_send_wr wr = {
			.wr_id = 1,
			.sg_list = entries,
			.num_sge = num,
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED | (face == INLINE ? IBV_SEND_INLINE : 0),
		}, *bad;
		CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	}
	poll_ok(a.cq, 1);
	CHECK(poll_ok(b.cq, 2).byte_len == 16u * num);
	for (int i = 0; i < num; i++)
		CHECK(memcmp((char *)a.buf + 64 * i, (char *)b.buf + 1024 + 64 * i, 16) == 0);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	attr.cap.max_send_sge = MOST;
	attr.cap.max_inline_data = 16 * MOST;
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	attr.cap.max_recv_sge = MOST;
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&a, &b);
	int round = 0;
	for (int num = 1; num <= MOST; num++)
		for (enum face face = POST; face <= BUILDER; face++)
			send(face, num, round++);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
