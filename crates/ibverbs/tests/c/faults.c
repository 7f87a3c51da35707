/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Faults by script: UVERBS_HCA_FAULTS names a file with the rules below (see library.rs). Each of them fails one call.
 */
#include "common.h"

static struct end a, b;

static int recv_list(int count, struct ibv_recv_wr *wrs, struct ibv_recv_wr **bad)
{
	static struct ibv_sge sge;
	sge = (struct ibv_sge){ (uintptr_t)b.buf, 64, b.mr->lkey };
	for (int i = 0; i < count; i++)
		wrs[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i + 1 < count ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1 };
	return ibv_post_recv(b.qp, wrs, bad);
}

static struct ibv_send_wr send_wr(struct ibv_sge *sge, int id, struct ibv_send_wr *next)
{
	return (struct ibv_send_wr){
		.wr_id = id, .next = next, .sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	};
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);

	/* call verb=create_qp nth=1 : errno ENOMEM */
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	errno = 0;
	CHECK(ibv_create_qp_ex(a.context, &attr) == NULL && errno == ENOMEM);
	attr = qp_attr(&a, IBV_QPT_RC);
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND;
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&a, &b);

	/* call verb=post_recv wr=3 : errno ENOSPC: two are posted, the third is reported, and the list is as before. */
	struct ibv_recv_wr recvs[4], *bad_recv = NULL;
	CHECK(recv_list(4, recvs, &bad_recv) == ENOSPC && bad_recv == &recvs[2]);
	CHECK(recvs[1].next == &recvs[2]);
	CHECK(recv_list(2, recvs, &bad_recv) == 0);

	/* call verb=post_send wr=2 : errno ENOMEM */
	struct ibv_sge sge = { (uintptr_t)a.buf, 8, a.mr->lkey };
	struct ibv_send_wr second = send_wr(&sge, 2, NULL), first = send_wr(&sge, 1, &second), *bad = NULL;
	CHECK(ibv_post_send(a.qp, &first, &bad) == ENOMEM && bad == &second && first.next == &second);
	struct ibv_wc wc = poll_one(a.cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0);

	/* call verb=wr_complete nth=1 : errno EAGAIN: nothing of the session is posted. */
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	for (int i = 0; i < 2; i++) {
		ibv_wr_start(qp);
		qp->wr_id = 10 + i;
		qp->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(qp);
		ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
		CHECK(ibv_wr_complete(qp) == (i == 0 ? EAGAIN : 0));
	}
	wc = poll_one(a.cq);
	CHECK(wc.wr_id == 11 && wc.status == IBV_WC_SUCCESS);

	/* completion device=hca0 queue=send wr=3 : status RNR_RETRY_EXC_ERR */
	first = send_wr(&sge, 3, NULL);
	CHECK(ibv_post_send(a.qp, &first, &bad) == 0);
	wc = poll_one(a.cq);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_RNR_RETRY_EXC_ERR);
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(a.qp, &now, IBV_QP_STATE, &init) == 0 && now.qp_state == IBV_QPS_ERR);

	/* call verb=destroy_qp nth=1 : errno EBUSY: the queue pair is still there. */
	CHECK(ibv_destroy_qp(a.qp) == EBUSY);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);

	/* call verb=dealloc_pd device=hca1 : event DEVICE_FATAL on hca0 */
	CHECK(ibv_dereg_mr(b.mr) == 0 && ibv_destroy_cq(b.cq) == 0 && ibv_dealloc_pd(b.pd) == 0);
	struct ibv_async_event event;
	CHECK(ibv_get_async_event(a.context, &event) == 0 && event.event_type == IBV_EVENT_DEVICE_FATAL);
	ibv_ack_async_event(&event);
	printf("ok\n");
	return 0;
}
