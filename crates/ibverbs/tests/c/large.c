/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A completion queue of the largest size, created with this size and by a resize. Its ring has 256 MiB. */
#include "common.h"

static void exchange(struct end *a, struct end *b)
{
	struct ibv_sge sge = { (uintptr_t)a->buf, 8, a->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	for (int i = 0; i < 100; i++) {
		post_recv(b, 1, 64, 8);
		CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
		poll_ok(a->cq, 2);
		poll_ok(b->cq, 1);
	}
}

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_device_attr device;
	CHECK(ibv_query_device(a.context, &device) == 0 && device.max_cqe == (1 << 22) - 1);
	CHECK(ibv_create_cq(a.context, device.max_cqe + 1, NULL, NULL, 0) == NULL);
	struct ibv_cq *own[] = { a.cq, b.cq };
	CHECK((a.cq = ibv_create_cq(a.context, device.max_cqe, NULL, NULL, 0)) && a.cq->cqe == device.max_cqe);
	CHECK(b.cq = ibv_create_cq(b.context, 100, NULL, NULL, 0));
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC), peer = qp_attr(&b, IBV_QPT_RC);
	CHECK((a.qp = ibv_create_qp_ex(a.context, &attr)) && (b.qp = ibv_create_qp_ex(b.context, &peer)));
	connect_ends(&a, &b);
	exchange(&a, &b);
	exchange(&b, &a);
	CHECK(ibv_resize_cq(a.cq, 100) == 0 && a.cq->cqe == 127);
	CHECK(ibv_resize_cq(b.cq, device.max_cqe) == 0 && b.cq->cqe == device.max_cqe);
	exchange(&a, &b);
	exchange(&b, &a);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_destroy_cq(a.cq) == 0 && ibv_destroy_cq(b.cq) == 0);
	a.cq = own[0];
	b.cq = own[1];
	close_end(&a);
	close_end(&b);
	return 0;
}
