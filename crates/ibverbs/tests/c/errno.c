/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The failure of each function that the header's inline functions call to post, poll, bind and arm: each sets errno. That a
 * poll finds nothing is no failure. `conventions.c` has all other functions. */
#include "common.h"

/* The errno is returned and set. */
#define FAILS(number, call) CHECK((errno = 0, call) == (number) && errno == (number))
#define FAILS_NEGATIVE(number, call) CHECK((errno = 0, call) == -(number) && errno == (number))
#define LEAVES(number, call) CHECK((errno = EPERM, call) == (number) && errno == EPERM)

static struct end a, b;

static void windows(void)
{
	struct ibv_context_ops ops = a.context->ops;
	struct ibv_mw_bind bind = { .wr_id = 1 };
	struct ibv_mw *mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_1);
	CHECK(mw);
	CHECK((errno = 0, ops.alloc_mw(NULL, IBV_MW_TYPE_1)) == NULL && errno == EINVAL);
	CHECK((errno = 0, ops.alloc_mw(a.pd, 77)) == NULL && errno == EINVAL);
	FAILS(EINVAL, ops.bind_mw(a.qp, NULL, &bind));
	FAILS(EINVAL, ops.bind_mw(a.qp, mw, NULL));
	FAILS(EINVAL, ops.dealloc_mw(NULL));
	CHECK(ibv_dealloc_mw(mw) == 0);
}

static void posts(void)
{
	struct ibv_context_ops ops = a.context->ops;
	struct ibv_sge many[1000] = { { 0 } };
	struct ibv_send_wr wr = { .sg_list = many, .num_sge = 1000, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr recv = { .sg_list = many, .num_sge = 1000 }, *bad_recv;
	errno = 0;
	int result = ops.post_send(a.qp, &wr, &bad);
	CHECK(result != 0 && errno == result && bad == &wr);
	errno = 0;
	result = ops.post_recv(a.qp, &recv, &bad_recv);
	CHECK(result != 0 && errno == result && bad_recv == &recv);
	FAILS(EINVAL, ops.post_send(a.qp, NULL, &bad));
	FAILS(EINVAL, ops.post_recv(a.qp, NULL, &bad_recv));
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(a.pd, &init);
	CHECK(srq);
	errno = 0;
	result = ops.post_srq_recv(srq, &recv, &bad_recv);
	CHECK(result != 0 && errno == result && bad_recv == &recv);
	CHECK(ibv_destroy_srq(srq) == 0);
	struct ibv_wq_init_attr wq_init = { .max_wr = 4, .max_sge = 1, .pd = a.pd, .cq = a.cq };
	struct ibv_wq *wq = ibv_create_wq(a.context, &wq_init);
	CHECK(wq);
	errno = 0;
	result = wq->post_recv(wq, &recv, &bad_recv);
	CHECK(result != 0 && errno == result && bad_recv == &recv);
	CHECK(ibv_destroy_wq(wq) == 0);
	/* A builder without data. */
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	CHECK(qp);
	qp->wr_start(qp);
	qp->wr_send(qp);
	errno = 0;
	result = qp->wr_complete(qp);
	CHECK(result != 0 && errno == result);
	/* A call inside of the same thread's session. */
	qp->wr_start(qp);
	FAILS(EBUSY, ops.post_send(a.qp, &wr, &bad));
	qp->wr_abort(qp);
}

static void polls(void)
{
	struct ibv_context_ops ops = b.context->ops;
	struct ibv_cq_init_attr_ex init = { .cqe = DEPTH, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(b.context, &init);
	CHECK(cq);
	struct ibv_cq *plain = ibv_cq_ex_to_cq(cq);
	struct ibv_qp_init_attr_ex attr = qp_attr(&b, IBV_QPT_RC);
	attr.send_cq = attr.recv_cq = plain;
	struct ibv_qp *qp = ibv_create_qp_ex(b.context, &attr);
	CHECK(qp);
	struct ibv_poll_cq_attr none = { 0 }, unknown = { .comp_mask = 1 };
	struct ibv_wc wc;
	FAILS(EINVAL, cq->start_poll(cq, &unknown));
	LEAVES(ENOENT, cq->start_poll(cq, &none));
	LEAVES(0, ops.poll_cq(plain, 1, &wc));
	/* A flushed receive. */
	to_init(qp);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0);
	struct ibv_recv_wr recv = { .wr_id = 1 }, *bad;
	CHECK(ops.post_recv(qp, &recv, &bad) == 0);
	int result;
	while ((result = cq->start_poll(cq, &none)) == ENOENT)
		;
	CHECK(result == 0 && cq->status == IBV_WC_WR_FLUSH_ERR);
	/* Inside of the same thread's session. */
	FAILS(EBUSY, cq->start_poll(cq, &none));
	FAILS(EBUSY, ops.req_notify_cq(plain, 0));
	FAILS_NEGATIVE(EBUSY, ops.poll_cq(plain, 1, &wc));
	LEAVES(ENOENT, cq->next_poll(cq));
	cq->end_poll(cq);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(plain) == 0);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&a, &b);
	windows();
	posts();
	polls();
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
