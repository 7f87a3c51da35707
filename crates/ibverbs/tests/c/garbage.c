/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Work requests with arbitrary contents: lists and builder sessions that no correct program contains. Each is posted or refused,
 * and the process continues; a panic in the library would end it, and so would a read beyond the end of an array.
 *
 * Pointers are NULL or valid for as much as the queue accepts, which is what the man pages require. A count that is above the
 * limit of its queue is refused before the array is read, so the array may be shorter: it ends where a page without access
 * begins. GARBAGE_SEED and GARBAGE_ROUNDS select another run.
 */
#include "common.h"
#include <fcntl.h>
#include <limits.h>
#include <sys/mman.h>

/* A queue accepts more entries than requested, but at most as many as the arrays have. */
enum { SGES = 2, ARRAY = 8, INLINE = 64, MAX_LIST = 6, BIG = 1 << 16 };

static uint64_t state;
static struct end a, b;
static char *big;
static struct ibv_sge *last_sges[MAX_LIST];
static struct ibv_data_buf *last_bufs;
static struct ibv_ah *ah;
static struct ibv_mw *mws[2];
static struct ibv_srq *srq;
static struct ibv_xrcd *xrcd;
/* Whether the poll copies short data, to addresses that the device does not check. */
static int is_scattered;
static struct ibv_wq *wq;
static unsigned posted, refused, completed[2], oddity = 1;

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

/* Whether a field gets a value that no correct program would set. */
static int is_odd(void)
{
	return below(oddity) == 0;
}

/* Small numbers, limits, and arbitrary numbers. */
static uint64_t number(void)
{
	static const uint64_t edges[] = { 0,	   1,	       2,	  8,	      63,	 64,	   65,
					  0xffff,  0x10000,    INT_MAX,	  1ULL << 31, UINT_MAX,	 1ULL << 32,
					  1ULL << 63, UINT64_MAX, UINT64_MAX - 7 };
	switch (below(3)) {
	case 0:
		return below(130);
	case 1:
		return edges[below(sizeof(edges) / sizeof(*edges))];
	default:
		return any();
	}
}

/* `size` bytes that end where a page without access begins. */
static void *before_the_end(size_t size)
{
	char *pages = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED && mprotect(pages + 4096, 4096, PROT_NONE) == 0);
	return pages + 4096 - size;
}

/* An entry. If its data are copied by the post, its address is that of memory, as far as the limit of the copy. */
static struct ibv_sge an_entry(int is_inline)
{
	struct ibv_sge sge = { (uintptr_t)a.buf + below(SIZE / 2), below(100), a.mr->lkey };
	if (is_odd())
		sge.length = number();
	if (is_odd())
		sge.lkey = number();
	if (is_odd() && !is_inline && !is_scattered)
		sge.addr = number();
	if (is_inline)
		sge.addr = sge.length <= BIG ? (uintptr_t)big : (uintptr_t)any();
	return sge;
}

/* Entries and their number. If the number is too high, there are fewer entries. */
static struct ibv_sge *entries(int element, int is_inline, int *num_sge)
{
	struct ibv_sge *sges = last_sges[element];
	static const int odd[] = { -1, INT_MIN, INT_MAX, 1 << 28, 1000, ARRAY + 1 };
	*num_sge = 1 + below(SGES);
	if (is_odd())
		*num_sge = below(4) ? odd[below(sizeof(odd) / sizeof(*odd))] : 0;
	if (is_odd())
		return NULL;
	for (int i = 0; i < ARRAY; i++)
		sges[i] = an_entry(is_inline);
	return *num_sge == 1 ? sges + ARRAY - 1 : sges;
}

static struct ibv_mw_bind_info a_bind(void)
{
	struct ibv_mw_bind_info info = { a.mr, (uintptr_t)a.buf, below(SIZE), IBV_ACCESS_REMOTE_WRITE };
	if (is_odd())
		info.mr = NULL;
	if (is_odd())
		info.addr = number();
	if (is_odd())
		info.length = number();
	if (is_odd())
		info.mw_access_flags = number();
	return info;
}

static void fill_send(int element, struct ibv_send_wr *wr)
{
	int is_ud = a.qp->qp_type == IBV_QPT_UD;
	memset(wr, is_odd() ? 0xff : 0, sizeof(*wr));
	wr->wr_id = any();
	wr->opcode = is_odd() ? number() : below(is_ud ? 4 : IBV_WR_TSO + 1);
	wr->send_flags = is_odd() ? number() : below(16);
	wr->sg_list = entries(element, !!(wr->send_flags & IBV_SEND_INLINE), &wr->num_sge);
	wr->imm_data = number();
	if (is_ud) {
		wr->wr.ud.ah = is_odd() ? NULL : ah;
		wr->wr.ud.remote_qpn = is_odd() ? number() : b.qp->qp_num;
		wr->wr.ud.remote_qkey = is_odd() ? number() : QKEY;
	} else {
		wr->wr.atomic.remote_addr = is_odd() ? number() : (uintptr_t)b.buf + 8 * below(SIZE / 16);
		wr->wr.atomic.compare_add = number();
		wr->wr.atomic.swap = number();
		if (wr->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
			wr->wr.atomic.rkey = is_odd() ? number() : b.mr->rkey;
		else
			wr->wr.rdma.rkey = is_odd() ? number() : b.mr->rkey;
	}
	wr->qp_type.xrc.remote_srqn = number();
	if (wr->opcode == IBV_WR_BIND_MW) {
		wr->bind_mw.mw = is_odd() ? NULL : mws[below(2)];
		wr->bind_mw.rkey = number();
		wr->bind_mw.bind_info = a_bind();
	} else if (wr->opcode == IBV_WR_TSO) {
		wr->tso.hdr = is_odd() ? NULL : big;
		wr->tso.hdr_sz = is_odd() ? number() : 54;
		wr->tso.mss = is_odd() ? number() : 100;
	}
}

static void count(int error)
{
	CHECK(error >= 0 && error < 4096);
	if (error == 0)
		posted++;
	else
		refused++;
}

/* A list, which may be circular. `bad_wr` is one of its elements, if it has any. */
static void post_sends(void)
{
	static struct ibv_send_wr wrs[MAX_LIST];
	int length = 1 + below(below(2) ? 1 : MAX_LIST);
	for (int i = 0; i < length; i++) {
		fill_send(i, &wrs[i]);
		wrs[i].next = i + 1 < length ? &wrs[i + 1] : NULL;
	}
	if (below(32) == 0)
		wrs[length - 1].next = wrs; /* The post ends when the queue is full or an element is refused. */
	struct ibv_send_wr *bad = NULL, *list = below(64) ? wrs : NULL;
	int error = ibv_post_send(a.qp, list, below(8) ? &bad : NULL);
	count(error);
	CHECK(bad == NULL || (error && bad >= wrs && bad < wrs + length));
}

static void post_receives(void)
{
	static struct ibv_recv_wr wrs[MAX_LIST];
	int length = 1 + below(below(2) ? 1 : MAX_LIST);
	for (int i = 0; i < length; i++) {
		wrs[i].wr_id = any();
		wrs[i].sg_list = entries(i, 0, &wrs[i].num_sge);
		wrs[i].next = i + 1 < length ? &wrs[i + 1] : NULL;
	}
	if (below(32) == 0)
		wrs[length - 1].next = wrs;
	struct ibv_recv_wr *bad = NULL, *list = below(64) ? wrs : NULL, **to = below(8) ? &bad : NULL;
	int error;
	switch (below(4)) {
	case 0:
		error = ibv_post_srq_recv(srq, list, to);
		break;
	case 1:
		error = ibv_post_wq_recv(wq, list, to);
		break;
	default:
		error = ibv_post_recv(below(2) ? a.qp : b.qp, list, to);
	}
	count(error);
	CHECK(bad == NULL || (error && bad >= wrs && bad < wrs + length));
}

/* A request of the builders, with or without its destination and data. */
static void build_one(struct ibv_qp_ex *qp, struct ibv_mw_bind_info *info)
{
	uint32_t rkey = is_odd() ? number() : b.mr->rkey;
	uint64_t remote = is_odd() ? number() : (uintptr_t)b.buf + 8 * below(SIZE / 16);
	switch (below(22)) {
	case 0:
		qp->wr_id = any();
		qp->wr_flags = is_odd() ? number() : below(16);
		return;
	case 1:
		return ibv_wr_send(qp);
	case 2:
		return ibv_wr_send_imm(qp, number());
	case 3:
		return ibv_wr_send_inv(qp, number());
	case 4:
		return ibv_wr_rdma_write(qp, rkey, remote);
	case 5:
		return ibv_wr_rdma_write_imm(qp, rkey, remote, number());
	case 6:
		return ibv_wr_rdma_read(qp, rkey, remote);
	case 7:
		return ibv_wr_atomic_cmp_swp(qp, rkey, remote, any(), any());
	case 8:
		return ibv_wr_atomic_fetch_add(qp, rkey, remote, any());
	case 9:
		return ibv_wr_local_inv(qp, number());
	case 10:
		*info = a_bind();
		return ibv_wr_bind_mw(qp, is_odd() ? NULL : mws[below(2)], number(), info);
	case 11:
		return ibv_wr_send_tso(qp, is_odd() ? NULL : big, number(), number());
	case 12:
	case 13:
		return ibv_wr_set_ud_addr(qp, is_odd() ? NULL : ah, b.qp->qp_num, QKEY);
	case 14:
		return ibv_wr_set_xrc_srqn(qp, number());
	case 15: {
		size_t length = is_odd() ? number() : below(INLINE);
		return ibv_wr_set_inline_data(qp, is_odd() ? NULL : big, length);
	}
	case 16: {
		size_t n = is_odd() ? number() : below(SGES + 1);
		for (int i = 0; i < SGES; i++) {
			size_t length = is_odd() ? number() : below(INLINE / 2);
			last_bufs[i] = (struct ibv_data_buf){ big, length };
		}
		/* The library reads all buffers to compute their total length, so a number that is too high comes with NULL. */
		return ibv_wr_set_inline_data_list(qp, n, n <= SGES ? last_bufs + SGES - n : NULL);
	}
	case 17:
	case 18: {
		struct ibv_sge sge = an_entry(0);
		return ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
	}
	case 19:
	case 20: {
		int n;
		struct ibv_sge *sges = entries(0, 0, &n);
		return ibv_wr_set_sge_list(qp, n, sges);
	}
	default:
		return ibv_wr_start(qp);
	}
}

static void build(struct ibv_qp_ex *qp)
{
	struct ibv_mw_bind_info info = { 0 };
	ibv_wr_start(qp);
	for (int n = below(8); n >= 0; n--)
		build_one(qp, &info);
	if (below(4))
		count(ibv_wr_complete(qp));
	else
		ibv_wr_abort(qp);
}

/* Reads completions, and counts those with an error. */
static void poll_all(struct ibv_cq *cq)
{
	struct ibv_wc wc[4];
	int n;
	CHECK(ibv_poll_cq(cq, -(int)below(INT_MAX), wc) == 0);
	while ((n = ibv_poll_cq(cq, 1 + below(4), wc)) > 0)
		for (int i = 0; i < n; i++)
			completed[wc[i].status != IBV_WC_SUCCESS]++;
	CHECK(n == 0);
}

static void reset(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
}

static struct ibv_qp *make(struct end *end, enum ibv_qp_type type, int has_builder)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(end, type);
	attr.cap = (struct ibv_qp_cap){ DEPTH, DEPTH, SGES, SGES, INLINE };
	attr.sq_sig_all = below(2);
	if (type == IBV_QPT_XRC_RECV) {
		attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
		attr.xrcd = xrcd;
	} else if (has_builder) {
		uint64_t all = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
		if (type != IBV_QPT_UD && type != IBV_QPT_RAW_PACKET)
			all |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = type == IBV_QPT_RAW_PACKET ? IBV_QP_EX_WITH_SEND : all;
	}
	struct ibv_qp *qp = ibv_create_qp_ex(end->context, &attr);
	CHECK(qp && attr.cap.max_send_sge <= ARRAY && attr.cap.max_recv_sge <= ARRAY);
	return qp;
}

static void run(enum ibv_qp_type type, enum ibv_qp_type peer, int rounds)
{
	int has_builder = below(2);
	a.qp = make(&a, type, has_builder);
	b.qp = make(&b, peer, 0);
	struct ibv_qp_ex *qp_ex = has_builder ? ibv_qp_to_qp_ex(a.qp) : NULL;
	CHECK(!has_builder || qp_ex);
	for (int i = 0; i < rounds; i++) {
		/* Some posts go to queues in RESET and in ERR. */
		if (below(8)) {
			reset(a.qp);
			reset(b.qp);
			connect_ends(&a, &b);
		}
		static const unsigned oddities[] = { 2, 8, 64, 1000 };
		oddity = oddities[below(4)];
		for (int n = 0; n < 4; n++)
			post_receives();
		for (int n = 0; n < 8; n++) {
			if (qp_ex && below(2))
				build(qp_ex);
			else
				post_sends();
			poll_all(b.cq);
			poll_all(a.cq);
		}
		if (below(8) == 0) {
			reset(a.qp);
			reset(b.qp);
		}
	}
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	poll_all(b.cq);
	poll_all(a.cq);
}

static long variable(const char *name, long otherwise)
{
	const char *text = getenv(name);
	return text ? atol(text) : otherwise;
}

int main(void)
{
	state = variable("GARBAGE_SEED", 1) * 0x9e3779b97f4a7c15ULL + 1;
	int rounds = variable("GARBAGE_ROUNDS", 120);
	is_scattered = variable("MLX5_SCATTER_TO_CQE", 1);
	open_end(&a, 0);
	open_end(&b, 1);
	CHECK(big = calloc(1, BIG));
	for (int i = 0; i < MAX_LIST; i++)
		last_sges[i] = before_the_end(ARRAY * sizeof(struct ibv_sge));
	last_bufs = before_the_end(SGES * sizeof(*last_bufs));
	struct ibv_ah_attr address = address_of(&b);
	CHECK(ah = ibv_create_ah(a.pd, &address));
	CHECK(mws[0] = ibv_alloc_mw(a.pd, IBV_MW_TYPE_1));
	CHECK(mws[1] = ibv_alloc_mw(a.pd, IBV_MW_TYPE_2));
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = DEPTH, .max_sge = SGES } };
	CHECK((srq = ibv_create_srq(a.pd, &srq_attr)) && srq_attr.attr.max_sge <= ARRAY);
	struct ibv_wq_init_attr wq_attr = { .max_wr = DEPTH, .max_sge = SGES, .pd = a.pd, .cq = a.cq };
	CHECK((wq = ibv_create_wq(a.context, &wq_attr)) && wq_attr.max_sge <= ARRAY);
	struct ibv_xrcd_init_attr xrcd_attr = { .comp_mask = 3, .fd = -1, .oflags = O_CREAT };
	CHECK(xrcd = ibv_open_xrcd(b.context, &xrcd_attr));

	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET };
	for (int again = 0; again < 4; again++) {
		for (int i = 0; i < 4; i++)
			run(types[i], types[i], rounds);
		run(IBV_QPT_XRC_SEND, IBV_QPT_XRC_RECV, rounds);
	}
	CHECK(posted > (unsigned)rounds && refused > (unsigned)rounds);
	CHECK(completed[0] > (unsigned)rounds && completed[1] > (unsigned)rounds);
	printf("%u posted, %u refused, %u completed, %u failed\n", posted, refused, completed[0], completed[1]);

	CHECK(ibv_close_xrcd(xrcd) == 0 && ibv_destroy_wq(wq) == 0 && ibv_destroy_srq(srq) == 0);
	CHECK(ibv_dealloc_mw(mws[0]) == 0 && ibv_dealloc_mw(mws[1]) == 0 && ibv_destroy_ah(ah) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
