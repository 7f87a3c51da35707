/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* SRD between two EFA devices: QPs and CQs with EFA's options, sends, reads and writes by lists and by builders, the GID of an unknown
 * peer, unsolicited writes, inline writes, and the queries of libefa. The header is that of rdma-core 44; what newer versions have is
 * declared here. */
#include "common.h"
#include <infiniband/efadv.h>
#include <stdbool.h>

enum { UNSOLICITED = 1 << 0, INLINE_WRITE = 1 << 1 };
/* `IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS` and `IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES`. */
enum { RETURN_CAPS = 1 << 0, BLOCKS_IN_ORDER = 1 << 1 };
enum { WITH_SGID = 1 << 0, WITH_IS_UNSOLICITED = 1 << 1 };

struct newer_qp_attr {
	uint64_t comp_mask;
	uint32_t driver_qp_type;
	uint16_t flags;
	uint8_t sl;
	uint8_t reserved;
	uint64_t wr_flags;
};

struct newer_cq {
	uint64_t comp_mask;
	int (*wc_read_sgid)(struct newer_cq *cq, union ibv_gid *gid);
	bool (*wc_is_unsolicited)(struct newer_cq *cq);
};

struct newer_qp {
	uint64_t comp_mask;
	void (*wr_set_processing_hints)(struct newer_qp *qp, uint32_t hints);
};

struct queue {
	uint64_t comp_mask;
	uint8_t *buffer;
	uint32_t entry_size;
	uint32_t num_entries;
	uint32_t *doorbell;
};

struct sq_depth {
	uint64_t comp_mask;
	uint32_t flags, max_send_sge, max_rdma_sge, max_inline_data;
};

struct rq_depth {
	uint64_t comp_mask;
	uint32_t max_recv_sge;
};

struct ibv_qp *create_qp_ex(struct ibv_context *, struct ibv_qp_init_attr_ex *, struct newer_qp_attr *,
			    uint32_t) __asm__("efadv_create_qp_ex");
struct newer_cq *functions_of_cq(struct ibv_cq_ex *) __asm__("efadv_cq_from_ibv_cq_ex");
struct newer_qp *functions_of_qp(struct ibv_qp_ex *) __asm__("efadv_qp_from_ibv_qp_ex");
int query_cq(struct ibv_cq *, struct queue *, uint32_t) __asm__("efadv_query_cq");
int query_mr(struct ibv_mr *, void *, uint32_t) __asm__("efadv_query_mr");
int max_sq_depth(struct ibv_context *, struct sq_depth *, uint32_t) __asm__("efadv_get_max_sq_depth");
int max_rq_depth(struct ibv_context *, struct rq_depth *, uint32_t) __asm__("efadv_get_max_rq_depth");

/* One end. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	char *buf;
	struct ibv_cq_ex *cq;
	struct newer_cq *cq_functions;
	struct ibv_qp *qp;
	struct ibv_ah *peer;
	union ibv_gid gid;
};

static struct ibv_cq_ex *new_cq(struct ibv_context *context, uint64_t wc_flags)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 64, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct efadv_cq_init_attr efa = { .wc_flags = wc_flags };
	return efadv_create_cq(context, &attr, &efa, sizeof(efa));
}

static struct ibv_qp *new_qp(struct side *side, struct newer_qp_attr efa)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = ibv_cq_ex_to_cq(side->cq),
		.recv_cq = ibv_cq_ex_to_cq(side->cq),
		.cap = { DEPTH, DEPTH, 2, 2, 32 },
		.qp_type = IBV_QPT_DRIVER,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = side->pd,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ |
				  IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	};
	struct ibv_qp *qp = create_qp_ex(side->context, &attr, &efa, sizeof(efa));
	if (qp)
		CHECK(attr.cap.max_send_wr >= DEPTH && attr.cap.max_recv_wr >= DEPTH);
	return qp;
}

static void to_ready(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
	attr.qp_state = IBV_QPS_RTR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	attr.qp_state = IBV_QPS_RTS;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
}

static void open_side(struct side *side, int index, struct newer_qp_attr efa)
{
	memset(side, 0, sizeof(*side));
	side->context = open_hca(index);
	CHECK(side->pd = ibv_alloc_pd(side->context));
	CHECK(side->buf = aligned_alloc(4096, SIZE));
	memset(side->buf, 'a' + index, SIZE);
	CHECK(side->mr = ibv_reg_mr(side->pd, side->buf, SIZE,
				    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	CHECK(side->cq = new_cq(side->context, WITH_SGID | WITH_IS_UNSOLICITED));
	CHECK((side->cq_functions = functions_of_cq(side->cq)) && side->cq_functions == functions_of_cq(side->cq));
	CHECK(side->qp = new_qp(side, efa));
	CHECK(ibv_query_gid(side->context, 1, 0, &side->gid) == 0);
	to_ready(side->qp);
}

static void meet(struct side *side, const struct side *other)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh.dgid = other->gid };
	CHECK(side->peer = ibv_create_ah(side->pd, &attr));
	struct efadv_ah_attr found;
	memset(&found, 0xff, sizeof(found));
	CHECK(efadv_query_ah(side->peer, &found, sizeof(found)) == 0);
	CHECK(found.comp_mask == 0 && found.ahn != 0xffff && found.reserved[0] == 0);
}

static void receive(struct side *side, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)side->buf, 1024, side->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_recv(side->qp, &wr, &bad) == 0);
}

/* Begins an extended poll at a successful completion. */
static void next(struct side *side, uint64_t wr_id)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int error;
	while ((error = ibv_start_poll(side->cq, &attr)) == ENOENT)
		;
	CHECK(error == 0);
	if (side->cq->status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s\n", ibv_wc_status_str(side->cq->status));
	CHECK(side->cq->status == IBV_WC_SUCCESS && side->cq->wr_id == wr_id);
}

static void done(struct side *side, uint64_t wr_id)
{
	next(side, wr_id);
	ibv_end_poll(side->cq);
}

static void queries(struct side *side)
{
	struct efadv_device_attr device;
	memset(&device, 0xff, sizeof(device));
	CHECK(efadv_query_device(side->context, &device, sizeof(device)) == 0);
	CHECK(device.comp_mask == 0 && device.max_sq_wr == 4096 && device.max_rq_wr == 32768);
	CHECK(device.max_sq_sge == 2 && device.max_rq_sge == 3 && device.inline_buf_size == 32);
	CHECK(device.device_caps == 0x1f && device.max_rdma_size == 1 << 30);
	/* A struct without its last fields. */
	memset(&device, 0xff, sizeof(device));
	CHECK(efadv_query_device(side->context, &device, 24) == 0);
	CHECK(device.max_sq_wr == 4096 && device.device_caps == 0xffffffff);
	struct ibv_device_attr attr;
	CHECK(ibv_query_device(side->context, &attr) == 0 && attr.vendor_id == 0x1d0f);
	CHECK(strcmp(attr.fw_ver, "0.0.0.0") == 0);
	CHECK(ibv_query_qp_data_in_order(side->qp, IBV_WR_RDMA_WRITE, RETURN_CAPS) == BLOCKS_IN_ORDER);
	CHECK(ibv_query_qp_data_in_order(side->qp, IBV_WR_RDMA_WRITE, 0) == 0);
	struct { uint64_t comp_mask; uint16_t validity, ids[3]; } mr;
	CHECK(query_mr(side->mr, &mr, sizeof(mr)) == 0 && mr.comp_mask == 0 && (mr.validity & ~7) == 0);
	struct queue cq;
	CHECK(query_cq(ibv_cq_ex_to_cq(side->cq), &cq, sizeof(cq)) == 0);
	CHECK(cq.buffer && cq.entry_size == 32 && cq.num_entries == (uint32_t)side->cq->cqe && !cq.doorbell);
	struct sq_depth sends = { .max_send_sge = 2, .max_rdma_sge = 1, .max_inline_data = 32 };
	CHECK(max_sq_depth(side->context, &sends, sizeof(sends)) == 8192);
	sends.flags = 1;
	CHECK(max_sq_depth(side->context, &sends, sizeof(sends)) == 4096);
	sends.flags = 2;
	CHECK(max_sq_depth(side->context, &sends, sizeof(sends)) == -EINVAL);
	sends.flags = 0, sends.max_send_sge = 3;
	CHECK(max_sq_depth(side->context, &sends, sizeof(sends)) == -EINVAL);
	struct rq_depth receives = { .max_recv_sge = 3 };
	CHECK(max_rq_depth(side->context, &receives, sizeof(receives)) == 10922);
	receives.max_recv_sge = 4;
	CHECK(max_rq_depth(side->context, &receives, sizeof(receives)) == -EINVAL);
}

/* What is refused at creation. */
static void refused(struct side *side)
{
#define REFUSED(number, ...) CHECK((errno = 0, new_qp(side, (struct newer_qp_attr){ __VA_ARGS__ }) == NULL) && errno == (number))
	REFUSED(EOPNOTSUPP, .driver_qp_type = 1);
	REFUSED(EOPNOTSUPP, .flags = 4);
	REFUSED(EOPNOTSUPP, .wr_flags = 2);
	REFUSED(EINVAL, .comp_mask = 1);
	REFUSED(EINVAL, .reserved = 1);
	CHECK((errno = 0, new_cq(side->context, 4) == NULL) && errno == EOPNOTSUPP);
	struct ibv_qp_init_attr rc = {
		.send_cq = ibv_cq_ex_to_cq(side->cq), .recv_cq = ibv_cq_ex_to_cq(side->cq),
		.cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC,
	};
	CHECK((errno = 0, ibv_create_qp(side->pd, &rc) == NULL) && errno == EOPNOTSUPP);
	CHECK((errno = 0, efadv_create_driver_qp(side->pd, &rc, 0) == NULL) && errno == EINVAL);
	rc.qp_type = IBV_QPT_DRIVER;
	CHECK((errno = 0, ibv_create_qp(side->pd, &rc) == NULL) && errno == EOPNOTSUPP);
	CHECK((errno = 0, efadv_create_driver_qp(side->pd, &rc, 1) == NULL) && errno == EOPNOTSUPP);
	struct ibv_qp *srd = efadv_create_driver_qp(side->pd, &rc, EFADV_QP_DRIVER_TYPE_SRD);
	CHECK(srd && srd->qp_type == IBV_QPT_DRIVER && rc.cap.max_send_wr >= 1);
	CHECK(functions_of_qp((struct ibv_qp_ex *)srd)->wr_set_processing_hints == NULL);
	CHECK(ibv_destroy_qp(srd) == 0);
	struct ibv_cq_init_attr_ex plain = { .cqe = 4 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(side->context, &plain);
	CHECK(cq && functions_of_cq(cq)->wc_read_sgid == NULL && functions_of_cq(cq)->wc_is_unsolicited == NULL);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

int main(void)
{
	struct side a, b;
	open_side(&a, 0, (struct newer_qp_attr){ .flags = UNSOLICITED | INLINE_WRITE, .sl = 1, .wr_flags = 1 });
	open_side(&b, 1, (struct newer_qp_attr){ .flags = UNSOLICITED });
	queries(&a);
	refused(&a);
	meet(&a, &b);
	union ibv_gid gid;

	/* A list; the receiver does not know the sender yet. */
	receive(&b, 1);
	struct ibv_sge sge = { (uintptr_t)a.buf, 100, a.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(77),
		.send_flags = IBV_SEND_SIGNALED, .wr.ud = { a.peer, b.qp->qp_num, QKEY },
	}, *bad;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	next(&b, 1);
	CHECK(ibv_wc_read_opcode(b.cq) == IBV_WC_RECV && ibv_wc_read_byte_len(b.cq) == 100);
	CHECK(ibv_wc_read_wc_flags(b.cq) == IBV_WC_WITH_IMM && be32toh(ibv_wc_read_imm_data(b.cq)) == 77);
	CHECK(ibv_wc_read_src_qp(b.cq) == a.qp->qp_num && b.buf[99] == 'a' && b.buf[100] == 'b');
	CHECK(b.cq_functions->wc_read_sgid(b.cq_functions, &gid) == 0 && memcmp(&gid, &a.gid, 16) == 0);
	CHECK(!b.cq_functions->wc_is_unsolicited(b.cq_functions));
	ibv_end_poll(b.cq);
	done(&a, 2);
	CHECK(a.cq_functions->wc_read_sgid(a.cq_functions, &gid) == -ENOENT);
	wr.send_flags = 0;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == EINVAL && bad == &wr);

	/* Builders. Now the peer has an address handle, which reads and writes need. */
	meet(&b, &a);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	struct newer_qp *functions = functions_of_qp(qp);
	CHECK(qp && functions && functions->wr_set_processing_hints);
	qp->wr_flags = IBV_SEND_SIGNALED;
	receive(&b, 3);
	ibv_wr_start(qp);
	qp->wr_id = 4;
	ibv_wr_send(qp);
	functions->wr_set_processing_hints(functions, 1);
	ibv_wr_set_ud_addr(qp, a.peer, b.qp->qp_num, QKEY);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buf, 8);
	CHECK(ibv_wr_complete(qp) == 0);
	next(&b, 3);
	CHECK(b.cq_functions->wc_read_sgid(b.cq_functions, &gid) == -ENOENT);
	ibv_end_poll(b.cq);
	done(&a, 4);

	b.buf[2000] = 'r';
	ibv_wr_start(qp);
	qp->wr_id = 5;
	ibv_wr_rdma_read(qp, b.mr->rkey, (uintptr_t)b.buf + 2000);
	ibv_wr_set_ud_addr(qp, a.peer, b.qp->qp_num, QKEY);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.buf + 3000, 1);
	CHECK(ibv_wr_complete(qp) == 0);
	done(&a, 5);
	CHECK(a.buf[3000] == 'r');

	/* Inline, and without a receive of the peer. */
	ibv_wr_start(qp);
	qp->wr_id = 6;
	ibv_wr_rdma_write_imm(qp, b.mr->rkey, (uintptr_t)b.buf + 2500, htobe32(88));
	ibv_wr_set_ud_addr(qp, a.peer, b.qp->qp_num, QKEY);
	ibv_wr_set_inline_data(qp, "write", 5);
	CHECK(ibv_wr_complete(qp) == 0);
	next(&b, 0);
	CHECK(b.cq_functions->wc_is_unsolicited(b.cq_functions) && be32toh(ibv_wc_read_imm_data(b.cq)) == 88);
	CHECK(ibv_wc_read_opcode(b.cq) == IBV_WC_RECV_RDMA_WITH_IMM && memcmp(b.buf + 2500, "writeb", 6) == 0);
	ibv_end_poll(b.cq);
	done(&a, 6);

	/* A CQ is in use as long as its QP exists. */
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(a.cq)) == EBUSY);
	struct side *sides[] = { &a, &b };
	for (int i = 0; i < 2; i++) {
		struct side *side = sides[i];
		CHECK(ibv_destroy_ah(side->peer) == 0 && ibv_destroy_qp(side->qp) == 0);
		CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(side->cq)) == 0 && ibv_dereg_mr(side->mr) == 0);
		CHECK(ibv_dealloc_pd(side->pd) == 0 && ibv_close_device(side->context) == 0);
		free(side->buf);
	}
	return 0;
}
