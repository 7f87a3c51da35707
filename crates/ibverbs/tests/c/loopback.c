/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Messages between two devices by every verb of the data path: RC with lists, UD, a shared receive queue. */
#include "common.h"

static void post_send(struct end *end, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad = NULL;
	CHECK(ibv_post_send(end->qp, wr, &bad) == 0);
}

/* Every opcode of a connection. */
static void connected(struct end *a, struct end *b)
{
	struct ibv_qp_init_attr attr = {
		.qp_context = a,
		.send_cq = a->cq,
		.recv_cq = a->cq,
		.cap = { DEPTH, DEPTH, 2, 2, 64 },
		.qp_type = IBV_QPT_RC,
	};
	CHECK(a->qp = ibv_create_qp(a->pd, &attr));
	CHECK(attr.cap.max_send_wr >= DEPTH && attr.cap.max_inline_data >= 64);
	CHECK(a->qp->qp_context == a && a->qp->send_cq == a->cq && a->qp->pd == a->pd);
	CHECK(ibv_qp_to_qp_ex(a->qp) == NULL);
	attr.send_cq = attr.recv_cq = b->cq;
	CHECK(b->qp = ibv_create_qp(b->pd, &attr));
	connect_ends(a, b);
	CHECK(a->qp->state == IBV_QPS_RTS);

	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(a->qp, &now, 0x1ffffff, &init) == 0);
	CHECK(now.qp_state == IBV_QPS_RTS && now.dest_qp_num == b->qp->qp_num && now.timeout == 14);
	CHECK(init.send_cq == a->cq && init.qp_type == IBV_QPT_RC && init.cap.max_send_wr == attr.cap.max_send_wr);
	CHECK(memcmp(&now.ah_attr.grh.dgid, &b->gid, 16) == 0);

	/* Send with immediate. */
	strcpy(a->buf, "hello");
	post_recv(b, 1, 0, 64);
	struct ibv_sge sge = { (uintptr_t)a->buf, 6, a->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND_WITH_IMM,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htobe32(42),
	};
	post_send(a, &wr);
	poll_ok(a->cq, 2);
	struct ibv_wc wc = poll_ok(b->cq, 1);
	CHECK(wc.opcode == IBV_WC_RECV && wc.byte_len == 6 && wc.wc_flags == IBV_WC_WITH_IMM);
	CHECK(wc.imm_data == htobe32(42) && wc.qp_num == b->qp->qp_num && strcmp(b->buf, "hello") == 0);

	/* Write inline, then read back, in one list. */
	char text[] = "inline";
	struct ibv_sge back = { (uintptr_t)a->buf + 512, 7, a->mr->lkey };
	struct ibv_sge in = { (uintptr_t)text, 7, 0 };
	struct ibv_send_wr read = {
		.wr_id = 4,
		.sg_list = &back,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
		.wr.rdma = { (uintptr_t)b->buf + 256, b->mr->rkey },
	};
	struct ibv_send_wr write = {
		.wr_id = 3,
		.next = &read,
		.sg_list = &in,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_INLINE,
		.wr.rdma = { (uintptr_t)b->buf + 256, b->mr->rkey },
	};
	post_send(a, &write);
	wc = poll_ok(a->cq, 4);
	CHECK(wc.opcode == IBV_WC_RDMA_READ && wc.byte_len == 7);
	CHECK(strcmp(b->buf + 256, "inline") == 0 && strcmp(a->buf + 512, "inline") == 0);

	/* Atomics. */
	uint64_t *word = (uint64_t *)(b->buf + 1024), *old = (uint64_t *)(a->buf + 1024);
	*word = 5;
	struct ibv_sge result = { (uintptr_t)old, 8, a->mr->lkey };
	struct ibv_send_wr atomic = {
		.wr_id = 5,
		.sg_list = &result,
		.num_sge = 1,
		.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.atomic = { .remote_addr = (uintptr_t)word, .compare_add = 3, .rkey = b->mr->rkey },
	};
	post_send(a, &atomic);
	poll_ok(a->cq, 5);
	CHECK(*old == 5 && *word == 8);
	atomic.wr_id = 6;
	atomic.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	atomic.wr.atomic.compare_add = 8;
	atomic.wr.atomic.swap = 100;
	post_send(a, &atomic);
	poll_ok(a->cq, 6);
	CHECK(*old == 8 && *word == 100);

	/* The first bad request of a list is named, and those before it are posted. */
	struct ibv_send_wr bad_one = { .wr_id = 8, .num_sge = 1000, .opcode = IBV_WR_SEND }, *bad = NULL;
	struct ibv_send_wr good = wr;
	good.wr_id = 7;
	good.next = &bad_one;
	post_recv(b, 9, 0, 64);
	CHECK(ibv_post_send(a->qp, &good, &bad) != 0 && bad == &bad_one);
	poll_ok(a->cq, 7);
	poll_ok(b->cq, 9);

	/* A full queue is ENOMEM. */
	struct ibv_recv_wr recv = { .wr_id = 10 }, *bad_recv = NULL;
	int error, posted = 0;
	while ((error = ibv_post_recv(b->qp, &recv, &bad_recv)) == 0)
		CHECK(++posted < 100000);
	CHECK(error == ENOMEM && bad_recv == &recv);

	/* An object that others use is busy. */
	CHECK(ibv_destroy_cq(a->cq) == EBUSY && ibv_dealloc_pd(a->pd) == EBUSY);
	CHECK(ibv_destroy_qp(a->qp) == 0);
	CHECK(ibv_destroy_qp(b->qp) == 0);
	CHECK(ibv_poll_cq(b->cq, 1, &wc) == 0);
}

/* A memory window of type 1 and its bind. */
static void window(struct end *a, struct end *b)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(a, IBV_QPT_RC);
	CHECK(a->qp = ibv_create_qp_ex(a->context, &attr));
	attr = qp_attr(b, IBV_QPT_RC);
	CHECK(b->qp = ibv_create_qp_ex(b->context, &attr));
	connect_ends(a, b);
	struct ibv_mw *mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_1);
	CHECK(mw);
	uint32_t before = mw->rkey;
	struct ibv_mw_bind bind = {
		.wr_id = 1,
		.send_flags = IBV_SEND_SIGNALED,
		.bind_info = { b->mr, (uintptr_t)b->buf, 64, IBV_ACCESS_REMOTE_WRITE },
	};
	CHECK(ibv_bind_mw(b->qp, mw, &bind) == 0 && mw->rkey != before);
	struct ibv_wc wc = poll_ok(b->cq, 1);
	CHECK(wc.opcode == IBV_WC_BIND_MW);
	struct ibv_sge sge = { (uintptr_t)a->buf, 8, a->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)b->buf, mw->rkey },
	};
	post_send(a, &wr);
	poll_ok(a->cq, 2);
	CHECK(ibv_dealloc_mw(mw) == 0);
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
}

/* Memory in the device: written by a peer, read by the program. */
static void device_memory(struct end *a, struct end *b)
{
	struct ibv_alloc_dm_attr dm_attr = { .length = 4096 };
	struct ibv_dm *dm = ibv_alloc_dm(b->context, &dm_attr);
	CHECK(dm && dm->context == b->context);
	char there[8] = "device", back[8];
	CHECK(ibv_memcpy_to_dm(dm, 64, there, 8) == 0 && ibv_memcpy_from_dm(back, dm, 64, 8) == 0);
	CHECK(memcmp(there, back, 8) == 0);
	CHECK(ibv_memcpy_to_dm(dm, 4092, there, 8) == EINVAL);
	struct ibv_mr *mr = ibv_reg_dm_mr(b->pd, dm, 0, 4096,
					  IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr && ibv_free_dm(dm) == EBUSY);
	struct ibv_qp_init_attr_ex attr = qp_attr(a, IBV_QPT_RC);
	CHECK(a->qp = ibv_create_qp_ex(a->context, &attr));
	attr = qp_attr(b, IBV_QPT_RC);
	CHECK(b->qp = ibv_create_qp_ex(b->context, &attr));
	connect_ends(a, b);
	strcpy(a->buf, "by peer");
	struct ibv_sge sge = { (uintptr_t)a->buf, 8, a->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { 128, mr->rkey },
	};
	post_send(a, &wr);
	poll_ok(a->cq, 1);
	CHECK(ibv_memcpy_from_dm(back, dm, 128, 8) == 0 && strcmp(back, "by peer") == 0);
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0);
}

/* Datagrams in both directions; the address of the answer is taken from the completion. */
static void datagrams(struct end *a, struct end *b)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(a, IBV_QPT_UD);
	CHECK(a->qp = ibv_create_qp_ex(a->context, &attr));
	attr = qp_attr(b, IBV_QPT_UD);
	CHECK(b->qp = ibv_create_qp_ex(b->context, &attr));
	to_init(a->qp);
	to_init(b->qp);
	to_rts(a->qp, b, 0);
	to_rts(b->qp, a, 0);
	struct ibv_ah_attr address = address_of(b);
	struct ibv_ah *ah = ibv_create_ah(a->pd, &address);
	CHECK(ah && ah->pd == a->pd);
	post_recv(b, 1, 0, 256);
	strcpy(a->buf, "datagram");
	struct ibv_sge sge = { (uintptr_t)a->buf, 9, a->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { ah, b->qp->qp_num, QKEY },
	};
	post_send(a, &wr);
	poll_ok(a->cq, 2);
	struct ibv_wc wc = poll_ok(b->cq, 1);
	CHECK(wc.byte_len == 49 && wc.src_qp == a->qp->qp_num && wc.wc_flags & IBV_WC_GRH);
	CHECK(strcmp(b->buf + 40, "datagram") == 0);
	struct ibv_ah *back = ibv_create_ah_from_wc(b->pd, &wc, (struct ibv_grh *)b->buf, PORT);
	CHECK(back);
	post_recv(a, 3, 512, 256);
	sge = (struct ibv_sge){ (uintptr_t)b->buf + 40, 9, b->mr->lkey };
	wr.wr.ud.ah = back;
	wr.wr.ud.remote_qpn = wc.src_qp;
	wr.wr_id = 4;
	post_send(b, &wr);
	poll_ok(b->cq, 4);
	poll_ok(a->cq, 3);
	CHECK(strcmp(a->buf + 552, "datagram") == 0);
	union ibv_gid group = { .raw = { 0xff, 0x0e, [15] = 7 } };
	CHECK(ibv_attach_mcast(b->qp, &group, 0) == 0);
	CHECK(ibv_destroy_qp(b->qp) == EBUSY);
	CHECK(ibv_detach_mcast(b->qp, &group, 0) == 0);
	CHECK(ibv_detach_mcast(b->qp, &b->gid, 0) == EINVAL);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(back) == 0);
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
}

/* Receives of a shared queue. */
static void shared_receives(struct end *a, struct end *b)
{
	struct ibv_srq_init_attr init = { .srq_context = b, .attr = { .max_wr = DEPTH, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(b->pd, &init);
	CHECK(srq && srq->srq_context == b && init.attr.max_wr >= DEPTH);
	struct ibv_qp_init_attr_ex attr = qp_attr(b, IBV_QPT_RC);
	attr.srq = srq;
	CHECK(b->qp = ibv_create_qp_ex(b->context, &attr));
	attr = qp_attr(a, IBV_QPT_RC);
	CHECK(a->qp = ibv_create_qp_ex(a->context, &attr));
	connect_ends(a, b);
	struct ibv_sge sge = { (uintptr_t)b->buf, 64, b->mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	CHECK(ibv_post_recv(b->qp, &recv, &bad_recv) == EINVAL && bad_recv == &recv);
	CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
	struct ibv_srq_attr srq_attr = { .srq_limit = 1 };
	CHECK(ibv_modify_srq(srq, &srq_attr, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(srq, &srq_attr) == 0);
	CHECK(srq_attr.max_wr >= init.attr.max_wr && srq_attr.srq_limit == 1);
	struct ibv_sge out = { (uintptr_t)a->buf, 8, a->mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2,
		.sg_list = &out,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	};
	post_send(a, &wr);
	poll_ok(a->cq, 2);
	poll_ok(b->cq, 1);
	/* The limit was reached; the event must be acknowledged before the queue can be destroyed. */
	struct ibv_async_event event;
	do {
		CHECK(ibv_get_async_event(b->context, &event) == 0);
		if (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED)
			ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED);
	CHECK(event.element.srq == srq);
	ibv_ack_async_event(&event);
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
	CHECK(ibv_destroy_srq(srq) == 0);
}

/* Options of enhanced connection establishment are passed with the change of the state. */
static void ece(struct end *end)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(end, IBV_QPT_RC);
	struct ibv_qp *qp = ibv_create_qp_ex(end->context, &attr);
	CHECK(qp);
	struct ibv_ece ece = { 0 }, foreign = { .vendor_id = 0x1234 }, none = { 0 };
	CHECK(ibv_query_ece(qp, &ece) == 0 && ece.vendor_id == 0x15b3 && ece.options == 0x10000000);
	CHECK(ibv_set_ece(qp, &foreign) == EINVAL && ibv_set_ece(qp, &none) == EOPNOTSUPP);
	ece.options |= 5;
	CHECK(ibv_set_ece(qp, &ece) == 0);
	CHECK(ibv_query_ece(qp, &ece) == 0 && ece.options == 0);
	to_init(qp);
	CHECK(ibv_query_ece(qp, &ece) == 0 && ece.options == 0x10000000);
	struct ibv_qp_rate_limit_attr limit = { .max_burst_sz = 1 };
	CHECK(ibv_modify_qp_rate_limit(qp, &limit) == EINVAL);
	CHECK(ibv_destroy_qp(qp) == 0);
}

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	connected(&a, &b);
	window(&a, &b);
	device_memory(&a, &b);
	datagrams(&a, &b);
	ece(&a);
	shared_receives(&a, &b);
	close_end(&a);
	close_end(&b);
	return 0;
}
