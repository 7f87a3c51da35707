/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Records of a page by RDMA WRITE. The receiver polls on the last byte, as ib_write_lat does, or waits for the receive of a
 * WRITE_WITH_IMM (argument "imm"). Prints how many records were not complete then.
 */
#include "common.h"

enum { RECORDS = 40 };

int main(int argc, char **argv)
{
	int with_imm = argc > 1 && strcmp(argv[1], "imm") == 0;
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&a, &b);

	volatile char *record = b.buf;
	int torn = 0;
	for (int n = 1; n <= RECORDS; n++) {
		memset(a.buf, n, SIZE);
		if (with_imm)
			post_recv(&b, n, 0, 64);
		struct ibv_sge sge = { (uintptr_t)a.buf, SIZE, a.mr->lkey };
		struct ibv_send_wr wr = {
			.wr_id = n,
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = with_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { (uintptr_t)b.buf, b.mr->rkey },
		}, *bad;
		CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
		if (with_imm)
			poll_ok(b.cq, n);
		else
			while (record[SIZE - 1] != n)
				;
		int is_torn = 0;
		for (int i = 0; i < SIZE; i += 64)
			is_torn |= record[i] != n;
		torn += is_torn;
		poll_ok(a.cq, n);
	}
	printf("%d\n", torn);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
