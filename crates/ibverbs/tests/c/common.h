/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Shared by the programs of this folder: checks that print their expression, and two connected queue pairs. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                     \
	do {                                                                                                 \
		if (!(condition)) {                                                                          \
			fprintf(stderr, "%s:%d: %s: errno %d (%s)\n", __FILE__, __LINE__, #condition, errno, \
				strerror(errno));                                                            \
			exit(1);                                                                             \
		}                                                                                            \
	} while (0)

enum { PORT = 1, GID_INDEX = 3, SIZE = 4096, DEPTH = 16, QKEY = 0x11111111 };

/* One end: a context and its objects. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	char *buf;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	union ibv_gid gid;
};

static inline struct ibv_context *open_hca(int index)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count > index);
	struct ibv_context *context = ibv_open_device(list[index]);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static inline void open_end(struct end *end, int index)
{
	memset(end, 0, sizeof(*end));
	end->context = open_hca(index);
	CHECK(end->pd = ibv_alloc_pd(end->context));
	CHECK(end->buf = aligned_alloc(4096, SIZE));
	memset(end->buf, 0, SIZE);
	CHECK(end->mr = ibv_reg_mr(end->pd, end->buf, SIZE,
				   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
					   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND));
	CHECK(end->channel = ibv_create_comp_channel(end->context));
	CHECK(end->cq = ibv_create_cq(end->context, 4 * DEPTH, end, end->channel, 0));
	CHECK(ibv_query_gid(end->context, PORT, GID_INDEX, &end->gid) == 0);
}

static inline struct ibv_qp_init_attr_ex qp_attr(struct end *end, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_context = end,
		.send_cq = end->cq,
		.recv_cq = end->cq,
		.cap = { DEPTH, DEPTH, 2, 2, 64 },
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = end->pd,
	};
	return attr;
}

static inline void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = PORT,
		.qkey = QKEY,
		.qp_access_flags =
			IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};
	int mask = IBV_QP_STATE | IBV_QP_PORT;
	if (qp->qp_type == IBV_QPT_UD)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_QKEY;
	else if (qp->qp_type != IBV_QPT_RAW_PACKET)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static inline struct ibv_ah_attr address_of(const struct end *peer)
{
	struct ibv_ah_attr ah = { .is_global = 1, .port_num = PORT };
	ah.grh.dgid = peer->gid;
	ah.grh.sgid_index = GID_INDEX;
	ah.grh.hop_limit = 64;
	return ah;
}

static inline void to_rts(struct ibv_qp *qp, const struct end *peer, uint32_t qp_num)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp_num,
		.rq_psn = 77,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = address_of(peer),
	};
	int type = qp->qp_type, mask = IBV_QP_STATE;
	if (type != IBV_QPT_UD && type != IBV_QPT_RAW_PACKET)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = 77;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE;
	if (type != IBV_QPT_RAW_PACKET)
		mask |= IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
		mask |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND || type == IBV_QPT_XRC_RECV)
		mask |= IBV_QP_TIMEOUT;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static inline void connect_ends(struct end *a, struct end *b)
{
	to_init(a->qp);
	to_init(b->qp);
	to_rts(a->qp, b, b->qp->qp_num);
	to_rts(b->qp, a, a->qp->qp_num);
}

static inline struct ibv_wc poll_one(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	memset(&wc, 0xa5, sizeof(wc));
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(n == 1);
	return wc;
}

/* A successful completion. */
static inline struct ibv_wc poll_ok(struct ibv_cq *cq, uint64_t wr_id)
{
	struct ibv_wc wc = poll_one(cq);
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "wr_id %llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == wr_id);
	return wc;
}

static inline void post_recv(struct end *end, uint64_t wr_id, uint32_t offset, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)end->buf + offset, length, end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(end->qp, &wr, &bad) == 0);
}

static inline void close_end(struct end *end)
{
	CHECK(ibv_destroy_cq(end->cq) == 0);
	CHECK(ibv_destroy_comp_channel(end->channel) == 0);
	CHECK(ibv_dereg_mr(end->mr) == 0);
	CHECK(ibv_dealloc_pd(end->pd) == 0);
	CHECK(ibv_close_device(end->context) == 0);
	free(end->buf);
}

#endif
