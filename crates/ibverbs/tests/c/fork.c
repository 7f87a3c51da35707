/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A child of fork(2) can't disturb its parent: its verbs fail or do nothing, and it exits normally. */
#include "common.h"
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&a, &b);
	struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)b.buf, b.mr->rkey },
	}, *bad;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct ibv_wc wc;
		CHECK(ibv_post_send(a.qp, &wr, &bad) == ESTALE && bad == &wr);
		CHECK(ibv_poll_cq(a.cq, 1, &wc) < 0);
		errno = 0;
		CHECK(ibv_alloc_pd(a.context) == NULL && errno == ESTALE);
		ibv_destroy_qp(a.qp);
		ibv_destroy_cq(a.cq);
		ibv_close_device(a.context);
		exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	strcpy(a.buf, "parent");
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	poll_ok(a.cq, 1);
	CHECK(strcmp(b.buf, "parent") == 0);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
