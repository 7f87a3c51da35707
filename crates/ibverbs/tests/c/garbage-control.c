/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Control verbs with arbitrary attributes. Each verb fails or makes an object, which is queried, modified and destroyed; the process
 * continues. Pointers are valid, as the man pages require; numbers, enumerations and masks are not. GARBAGE_SEED and
 * GARBAGE_ROUNDS select another run.
 */
#include "common.h"
#include <fcntl.h>
#include <limits.h>

/* Declared by a header that is not installed. */
void ibv_copy_ah_attr_from_kern(void *to, void *from);
void ibv_copy_qp_attr_from_kern(void *to, void *from);
void ibv_copy_path_rec_from_kern(void *to, void *from);
void ibv_copy_path_rec_to_kern(void *to, void *from);

static uint64_t state;
static struct end a;
static unsigned made, refused, oddity;

static uint64_t any(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state * 0x2545f4914f6cdd1dULL >> 8;
}

static uint64_t below(uint64_t n)
{
	return any() % n;
}

/* Limits, small numbers, and arbitrary numbers. */
static uint64_t number(void)
{
	static const uint64_t edges[] = { 0,	      1,	   0x7fff,     0x8000,	    0xffff,	  0x10000,    INT_MAX,
					  1ULL << 31, UINT_MAX,	   1ULL << 32, 1ULL << 63,  UINT64_MAX,	  UINT_MAX - 1,
					  0xffffff,   0x1000000 };
	switch (below(3)) {
	case 0:
		return below(300);
	case 1:
		return edges[below(sizeof(edges) / sizeof(*edges))];
	default:
		return any();
	}
}

/* `usual`, or a number that no correct program would use. */
static uint64_t mostly(uint64_t usual)
{
	return below(oddity) ? usual : number();
}

static void fill(void *to, size_t size)
{
	for (size_t i = 0; i < size; i++)
		((unsigned char *)to)[i] = any();
}

/* Counts the result of a verb. */
static int is_made(const void *object)
{
	if (object)
		made++;
	else
		refused++;
	return object != NULL;
}

static void result(int error)
{
	CHECK(error > -4096 && error < 4096);
	if (error)
		refused++;
	else
		made++;
}

static struct ibv_ah_attr address(void)
{
	struct ibv_ah_attr attr;
	if (below(oddity) == 0) {
		fill(&attr, sizeof(attr));
		return attr;
	}
	attr = address_of(&a);
	attr.port_num = mostly(PORT);
	attr.is_global = mostly(1);
	attr.grh.sgid_index = mostly(GID_INDEX);
	attr.static_rate = mostly(0);
	attr.sl = mostly(0);
	return attr;
}

static void qps(void)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND };
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, mostly(types[below(5)]));
	attr.cap.max_send_wr = mostly(DEPTH);
	attr.cap.max_recv_wr = mostly(DEPTH);
	attr.cap.max_send_sge = mostly(2);
	attr.cap.max_recv_sge = mostly(2);
	attr.cap.max_inline_data = mostly(64);
	attr.sq_sig_all = mostly(0);
	attr.create_flags = mostly(0);
	attr.max_tso_header = mostly(0);
	attr.source_qpn = mostly(0);
	attr.send_ops_flags = mostly(IBV_QP_EX_WITH_SEND);
	attr.comp_mask |= below(2) ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0;
	attr.comp_mask |= below(oddity) ? 0 : 1 << below(12);
	if (below(oddity) == 0)
		attr.recv_cq = NULL;
	struct ibv_qp *qp = ibv_create_qp_ex(a.context, &attr);
	if (!is_made(qp))
		return;
	for (int i = 0; i < 6; i++) {
		struct ibv_qp_attr change;
		if (below(2))
			fill(&change, sizeof(change));
		else
			memset(&change, 0, sizeof(change));
		change.qp_state = mostly(below(IBV_QPS_ERR + 1));
		change.cur_qp_state = mostly(below(IBV_QPS_ERR + 1));
		change.port_num = mostly(PORT);
		change.path_mtu = mostly(IBV_MTU_1024);
		change.ah_attr = address();
		static const int masks[] = {
			IBV_QP_STATE,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
			IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
			IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
			IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				IBV_QP_MAX_QP_RD_ATOMIC,
			IBV_QP_STATE | IBV_QP_SQ_PSN,
		};
		result(ibv_modify_qp(qp, &change, mostly(masks[below(6)])));
		result(ibv_query_qp(qp, &change, number(), &(struct ibv_qp_init_attr){ 0 }));
	}
	union ibv_gid gid;
	fill(&gid, sizeof(gid));
	if (below(2))
		gid.raw[0] = 0xff;
	uint16_t lid = number();
	int attached = ibv_attach_mcast(qp, &gid, lid);
	result(attached);
	if (!attached)
		CHECK(ibv_detach_mcast(qp, &gid, lid) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
}

static void cqs(void)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = mostly(DEPTH),
		.channel = below(2) ? a.channel : NULL,
		.comp_vector = mostly(0),
		.wc_flags = mostly(IBV_WC_STANDARD_FLAGS),
		.comp_mask = below(oddity) ? 0 : number(),
		.flags = mostly(0),
	};
	struct ibv_cq *cq = below(2) ? ibv_create_cq(a.context, attr.cqe, NULL, attr.channel, attr.comp_vector) :
				       ibv_cq_ex_to_cq(ibv_create_cq_ex(a.context, &attr));
	if (!is_made(cq))
		return;
	CHECK(cq->cqe > 0);
	for (int i = 0; i < 3; i++) {
		result(ibv_resize_cq(cq, mostly(2 * DEPTH)));
		struct ibv_modify_cq_attr change = { mostly(1), { number(), number() } };
		result(ibv_modify_cq(cq, &change));
		result(ibv_req_notify_cq(cq, number()));
	}
	CHECK(ibv_destroy_cq(cq) == 0);
}

static void srqs(void)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { mostly(DEPTH), mostly(1), mostly(0) },
		.comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
		.srq_type = mostly(IBV_SRQT_BASIC),
		.pd = a.pd,
	};
	attr.comp_mask |= below(oddity) ? 0 : number();
	if (below(oddity) == 0)
		attr.pd = NULL;
	struct ibv_srq *srq = ibv_create_srq_ex(a.context, &attr);
	if (!is_made(srq))
		return;
	for (int i = 0; i < 3; i++) {
		struct ibv_srq_attr change = { number(), number(), number() };
		result(ibv_modify_srq(srq, &change, mostly(1 + below(3))));
		result(ibv_query_srq(srq, &change));
	}
	CHECK(ibv_destroy_srq(srq) == 0);
}

static void wqs(void)
{
	struct ibv_wq_init_attr attr = {
		.wq_type = mostly(IBV_WQT_RQ),
		.max_wr = mostly(DEPTH),
		.max_sge = mostly(1),
		.pd = a.pd,
		.cq = a.cq,
		.comp_mask = below(oddity) ? 0 : number(),
		.create_flags = number(),
	};
	struct ibv_wq *wq = ibv_create_wq(a.context, &attr);
	if (!is_made(wq))
		return;
	for (int i = 0; i < 3; i++) {
		struct ibv_wq_attr change = { mostly(IBV_WQ_ATTR_STATE), number(), number(), number(), number() };
		if (below(2))
			change.wq_state = below(3);
		result(ibv_modify_wq(wq, &change));
	}
	struct ibv_rwq_ind_table_init_attr table = { mostly(0), &wq, below(oddity) ? 0 : number() };
	/* The array has one element. */
	if (table.log_ind_tbl_size < 24)
		table.log_ind_tbl_size = 0;
	struct ibv_rwq_ind_table *made_table = ibv_create_rwq_ind_table(a.context, &table);
	if (is_made(made_table))
		CHECK(ibv_destroy_rwq_ind_table(made_table) == 0);
	CHECK(ibv_destroy_wq(wq) == 0);
}

static void memory(void)
{
	size_t length = mostly(below(SIZE));
	/* Only memory of the buffer, or none: the device would access other memory of this process. */
	uint64_t offset = below(SIZE);
	if (length <= SIZE - offset || (uintptr_t)a.buf + offset + length < length) {
		struct ibv_mr *mr = ibv_reg_mr_iova2(a.pd, a.buf + offset, length, number(), mostly(IBV_ACCESS_LOCAL_WRITE));
		if (is_made(mr)) {
			result(ibv_rereg_mr(mr, mostly(IBV_REREG_MR_CHANGE_ACCESS), a.pd, a.buf, below(SIZE), number() & 0xfffff));
			struct ibv_sge sge = { number(), number(), number() };
			result(ibv_advise_mr(a.pd, number(), number(), &sge, 1));
			CHECK(ibv_dereg_mr(mr) == 0);
		}
	}
	struct ibv_alloc_dm_attr attr = { mostly(4096), mostly(0), below(oddity) ? 0 : number() };
	struct ibv_dm *dm = ibv_alloc_dm(a.context, &attr);
	if (is_made(dm)) {
		uint64_t at = number();
		size_t n = number();
		char bytes[64];
		if (n <= sizeof(bytes) || n > SIZE * 1000) {
			int to = ibv_memcpy_to_dm(dm, at, bytes, n), from = ibv_memcpy_from_dm(bytes, dm, at, n);
			result(to);
			result(from);
			CHECK((to && from) || n <= sizeof(bytes));
		}
		struct ibv_mr *mr = ibv_reg_dm_mr(a.pd, dm, number(), number(), mostly(IBV_ACCESS_ZERO_BASED));
		if (is_made(mr))
			CHECK(ibv_dereg_mr(mr) == 0);
		CHECK(ibv_free_dm(dm) == 0);
	}
	struct ibv_mw *mw = ibv_alloc_mw(a.pd, mostly(IBV_MW_TYPE_1));
	if (is_made(mw))
		CHECK(ibv_dealloc_mw(mw) == 0);
}

static void others(void)
{
	struct ibv_ah_attr attr = address();
	struct ibv_ah *ah = ibv_create_ah(a.pd, &attr);
	if (is_made(ah))
		CHECK(ibv_destroy_ah(ah) == 0);
	struct ibv_wc wc;
	struct ibv_grh grh;
	fill(&wc, sizeof(wc));
	fill(&grh, sizeof(grh));
	result(ibv_init_ah_from_wc(a.context, mostly(PORT), &wc, &grh, &attr) ? 1 : 0);
	struct ibv_xrcd_init_attr xrcd_attr = { mostly(3), mostly(-1), mostly(O_CREAT) };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(a.context, &xrcd_attr);
	if (is_made(xrcd))
		CHECK(ibv_close_xrcd(xrcd) == 0);
	union ibv_gid gid;
	__be16 pkey;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry, entries[4];
	result(ibv_query_gid(a.context, number(), number(), &gid) ? 1 : 0);
	result(ibv_query_pkey(a.context, number(), number(), &pkey) ? 1 : 0);
	result(ibv_query_port(a.context, number(), &port));
	result(ibv_query_gid_ex(a.context, number(), number(), &entry, number()));
	CHECK(ibv_query_gid_table(a.context, entries, below(5), mostly(0)) <= 4);
	result(ibv_get_pkey_index(a.context, number(), number()) < 0);
	struct ibv_counters_init_attr counters_attr = { mostly(0) };
	struct ibv_counters *counters = ibv_create_counters(a.context, &counters_attr);
	if (is_made(counters)) {
		struct ibv_counter_attach_attr attach = { number(), number(), mostly(0) };
		result(ibv_attach_counters_point_flow(counters, &attach, NULL));
		uint64_t values[2];
		result(ibv_read_counters(counters, values, below(3), number()));
		CHECK(ibv_destroy_counters(counters) == 0);
	}
	CHECK(ibv_rate_to_mult(number()) >= -1 && ibv_rate_to_mbps(number()) >= -1);
	CHECK(ibv_wc_status_str(number()) && ibv_event_type_str(number()) && ibv_node_type_str(number()) &&
	      ibv_port_state_str(number()));
}

static long variable(const char *name, long otherwise)
{
	const char *text = getenv(name);
	return text ? atol(text) : otherwise;
}

int main(void)
{
	state = variable("GARBAGE_SEED", 1) * 0x9e3779b97f4a7c15ULL + 1;
	int rounds = variable("GARBAGE_ROUNDS", 400);
	open_end(&a, 0);
	for (int i = 0; i < rounds; i++) {
		static const unsigned oddities[] = { 2, 8, 64 };
		oddity = oddities[below(3)];
		qps();
		cqs();
		srqs();
		wqs();
		memory();
		others();
	}
	/* These have no result by which they could fail. */
	ibv_copy_ah_attr_from_kern(NULL, NULL);
	ibv_copy_qp_attr_from_kern(NULL, NULL);
	ibv_copy_path_rec_from_kern(NULL, NULL);
	ibv_copy_path_rec_to_kern(NULL, NULL);
	CHECK(made > (unsigned)rounds && refused > (unsigned)rounds);
	printf("%u made, %u refused\n", made, refused);
	close_end(&a);
	return 0;
}
