/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The rows of the table of posts: every operation of every transport, by ibv_post_send and by the ibv_wr_* calls. A row is
 * "CALL TRANSPORT OPERATION [DATA]", as the table of src/matrix.rs has it; its objects are created when it is first run.
 */
#define _GNU_SOURCE
#include "post.h"
#include "world.h"

enum { HEADER = 54, MSS = 1000, RKEY = 0x1234, QPN = 0x123, QKEY = 0x11111111, SRQN = 0x77, MAX_ENTRIES = 30 };

static const struct transport transports[] = {
	{ "rc", IBV_QPT_RC },	    { "uc", IBV_QPT_UC },      { "ud", IBV_QPT_UD },
	{ "xrc", IBV_QPT_XRC_SEND }, { "raw", IBV_QPT_RAW_PACKET }, { "dc", IBV_QPT_DRIVER },
};
static struct post post;
/* Its QP. */
static struct qp *post_qp;

static struct ibv_send_wr wrs[CHUNK];
static struct ibv_sge sges[CHUNK][MAX_ENTRIES];
static struct ibv_data_buf bufs[MAX_ENTRIES];
static uint8_t header[HEADER];
static struct ibv_mw *mw;
static struct ibv_mw_bind_info bind_info;

/* ------------------------------------------------------------------------------------------------------------------ objects */
uint64_t builders_of(int type)
{
	uint64_t messages = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	uint64_t connected = messages | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE |
			     IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_BIND_MW;

	switch (type) {
	case IBV_QPT_UD:
		return messages;
	case IBV_QPT_UC:
		return connected;
	case IBV_QPT_RAW_PACKET:
		return IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_TSO;
	default:
		return connected | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		       IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	}
}

/* The QP of a row; rows with the same sizes share one. */
static struct qp *qp_of(const struct post *p)
{
	static struct known {
		int type, extended, entries, inlined;
		struct qp qp;
	} known[32];
	static int count;
	/* Rows of data only write: with the windows' operations, a WQE of libmlx5 has no room for 960 bytes. */
	int inlined = p->inlined ? p->inlined : 32, is_data = p->inlined || p->entries > 1;

	/* The usual rows have the first QPs, so that their registers are those of a program with few QPs. */
	if (p->transport->type == IBV_QPT_RC && !is_data)
		return p->extended ? &rc_ex : &rc;
	for (int i = 0; i < count; i++)
		if (known[i].type == p->transport->type && known[i].extended == p->extended &&
		    known[i].entries == p->entries && known[i].inlined == inlined)
			return &known[i].qp;
	CHECK(count < N(known), "the table of QPs");
	struct known *k = &known[count++];

	*k = (struct known){ p->transport->type, p->extended, p->entries, inlined, { 0 } };
	create_qp(&k->qp, pd,
		  (struct qp_kind){ .type = k->type, .entries = k->entries, .inlined = inlined,
				    .builders = is_data ? IBV_QP_EX_WITH_RDMA_WRITE : p->extended ? builders_of(k->type) : 0,
				    .wrs = CHUNK,
				    .tso_header = k->type == IBV_QPT_RAW_PACKET ? 64 : 0 });
	return &k->qp;
}

/* -------------------------------------------------------------------------------------------------------------------- lists */
static void prepare_list(int batch)
{
	int opcode = post.operation->opcode, is_atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	uint32_t length = is_atomic ? 8 : post.inlined ? post.inlined / (post.buffers ? post.buffers : 1) : 64;

	memset(wrs, 0, sizeof(wrs));
	for (int i = 0; i < CHUNK; i++) {
		struct ibv_send_wr *wr = &wrs[i];

		for (int k = 0; k < MAX_ENTRIES; k++)
			sges[i][k] = (struct ibv_sge){ (uintptr_t)data + 64 * k, length, mr->lkey };
		wr->wr_id = i;
		wr->sg_list = sges[i];
		wr->num_sge = post.entries;
		wr->opcode = opcode;
		wr->send_flags = IBV_SEND_SIGNALED | (post.inlined ? IBV_SEND_INLINE : 0);
		wr->next = i % batch == batch - 1 ? NULL : &wrs[i + 1];
		wr->imm_data = htobe32(i);
		wr->wr.rdma.remote_addr = 0x100000 + i * 64;
		wr->wr.rdma.rkey = RKEY;
		if (is_atomic) {
			wr->wr.atomic.remote_addr = 0x100000 + i * 64;
			wr->wr.atomic.rkey = RKEY;
			wr->wr.atomic.compare_add = i;
			wr->wr.atomic.swap = i + 1;
		}
		if (post.transport->type == IBV_QPT_UD) {
			wr->wr.ud.ah = ah;
			wr->wr.ud.remote_qpn = QPN;
			wr->wr.ud.remote_qkey = QKEY;
		}
		if (post.transport->type == IBV_QPT_XRC_SEND)
			wr->qp_type.xrc.remote_srqn = SRQN;
		if (opcode == IBV_WR_LOCAL_INV || opcode == IBV_WR_BIND_MW)
			wr->num_sge = 0;
		if (opcode == IBV_WR_LOCAL_INV)
			wr->invalidate_rkey = mw->rkey;
		if (opcode == IBV_WR_BIND_MW) {
			wr->bind_mw.mw = mw;
			wr->bind_mw.rkey = mw->rkey;
			wr->bind_mw.bind_info = bind_info;
		}
		if (opcode == IBV_WR_TSO) {
			wr->tso.hdr = header;
			wr->tso.hdr_sz = HEADER;
			wr->tso.mss = MSS;
		}
	}
}

static void run_list(int batch)
{
	struct qp *q = post_qp;
	uint16_t first = posted(q);
	struct ibv_send_wr *bad;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_post_send(q->qp, &wrs[i], &bad), "ibv_post_send");
	end();
	retire_sends(q, (uint16_t)(posted(q) - first) / CHUNK);
}

/* ----------------------------------------------------------------------------------------------------------------- builders */
typedef void (*session)(struct qp *q, int batch);

/* A function that posts a chunk by sessions. */
#define SESSIONS(name, ...)                                                            \
	static __attribute__((noinline)) void name(struct qp *q, int batch)            \
	{                                                                              \
		struct ibv_qp_ex *x = q->ex;                                           \
		struct mlx5dv_qp_ex *dv = q->dv;                                       \
		uint32_t lkey = mr->lkey;                                              \
		uintptr_t addr = (uintptr_t)data;                                      \
		int entries = post.entries, inlined = post.inlined, buffers = post.buffers; \
                                                                                       \
		(void)lkey, (void)addr, (void)entries, (void)inlined, (void)buffers, (void)dv; \
		for (int first = 0; first < CHUNK; first += batch) {                   \
			ibv_wr_start(x);                                               \
			for (int i = first; i < first + batch; i++) {                  \
				uint64_t remote = 0x100000 + i * 64;                   \
                                                                                       \
				(void)remote;                                          \
				x->wr_id = i;                                          \
				x->wr_flags = IBV_SEND_SIGNALED;                       \
				__VA_ARGS__                                            \
			}                                                              \
			CHECK(!ibv_wr_complete(x), "ibv_wr_complete");                 \
		}                                                                      \
	}
#define ENTRY(length) ibv_wr_set_sge(x, lkey, addr, length);
#define TO_UD ibv_wr_set_ud_addr(x, ah, QPN, QKEY);
#define TO_XRC ibv_wr_set_xrc_srqn(x, SRQN);
#define TO_DC mlx5dv_wr_set_dc_addr(dv, ah, QPN, 0x1122334455667788);

#define SEND ibv_wr_send(x);
#define SEND_IMM ibv_wr_send_imm(x, htobe32(i));
#define SEND_INV ibv_wr_send_inv(x, RKEY);
#define WRITE ibv_wr_rdma_write(x, RKEY, remote);
#define WRITE_IMM ibv_wr_rdma_write_imm(x, RKEY, remote, htobe32(i));
#define READ ibv_wr_rdma_read(x, RKEY, remote);
#define CMP_SWP ibv_wr_atomic_cmp_swp(x, RKEY, remote, i, i + 1);
#define FETCH_ADD ibv_wr_atomic_fetch_add(x, RKEY, remote, 7);
#define LOCAL_INV ibv_wr_local_inv(x, mw->rkey);
#define BIND_MW ibv_wr_bind_mw(x, mw, mw->rkey, &bind_info);
#define TSO ibv_wr_send_tso(x, header, HEADER, MSS);

/* The functions of a kind of destination, in the order of `operations`. */
#define MESSAGES(kind, TO)                                                             \
	SESSIONS(send_##kind, SEND TO ENTRY(64))                                       \
	SESSIONS(send_imm_##kind, SEND_IMM TO ENTRY(64))
#define CONNECTED(kind, TO)                                                            \
	MESSAGES(kind, TO)                                                             \
	SESSIONS(send_inv_##kind, SEND_INV TO ENTRY(64))                               \
	SESSIONS(write_##kind, WRITE TO ENTRY(64))                                     \
	SESSIONS(write_imm_##kind, WRITE_IMM TO ENTRY(64))                             \
	SESSIONS(read_##kind, READ TO ENTRY(64))                                       \
	SESSIONS(cmp_swp_##kind, CMP_SWP TO ENTRY(8))                                  \
	SESSIONS(fetch_add_##kind, FETCH_ADD TO ENTRY(8))
MESSAGES(ud, TO_UD)
CONNECTED(rc, )
CONNECTED(xrc, TO_XRC)
CONNECTED(dc, TO_DC)
SESSIONS(local_inv, LOCAL_INV)
SESSIONS(bind_mw, BIND_MW)
SESSIONS(tso, TSO ENTRY(64))
SESSIONS(write_list, WRITE ibv_wr_set_sge_list(x, entries, sges[i]);)
SESSIONS(write_inline, WRITE ibv_wr_set_inline_data(x, data, inlined);)
SESSIONS(write_inline_list, WRITE ibv_wr_set_inline_data_list(x, buffers, bufs);)

#define TABLE(kind) { send_##kind, send_imm_##kind, send_inv_##kind, write_##kind, write_imm_##kind, read_##kind, \
	cmp_swp_##kind, fetch_add_##kind, local_inv, bind_mw, tso }
static const session by_rc[] = TABLE(rc), by_xrc[] = TABLE(xrc), by_dc[] = TABLE(dc), by_ud[] = { send_ud, send_imm_ud };

static session session_of(const struct post *p)
{
	int operation = p->operation - operations;

	if (p->buffers)
		return write_inline_list;
	if (p->inlined)
		return write_inline;
	if (p->entries > 1)
		return write_list;
	switch (p->transport->type) {
	case IBV_QPT_UD:
		return operation < N(by_ud) ? by_ud[operation] : NULL;
	case IBV_QPT_XRC_SEND:
		return by_xrc[operation];
	case IBV_QPT_DRIVER:
		return by_dc[operation];
	default:
		return by_rc[operation];
	}
}

static void run_sessions(int batch)
{
	session run = session_of(&post);
	struct qp *q = post_qp;
	uint16_t first = posted(q);

	begin();
	run(q, batch);
	end();
	retire_sends(q, (uint16_t)(posted(q) - first) / CHUNK);
}

/* --------------------------------------------------------------------------------------------------------------------- rows */
int find_post(const char *name, struct row *row)
{
	if (!parse_post(name, transports, N(transports), &post))
		return 0;
	if (post.extended && !session_of(&post))
		return 0;
	if (!mw) {
		mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
		CHECK(mw, "ibv_alloc_mw");
		bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)data, sizeof(data), IBV_ACCESS_REMOTE_WRITE };
		for (int i = 0; i < MAX_ENTRIES; i++)
			bufs[i] = (struct ibv_data_buf){ data + 64 * i, 64 };
	}
	post_qp = qp_of(&post);
	*row = (struct row){ .prepare = prepare_list, .run = post.extended ? run_sessions : run_list, .operations = CHUNK };
	return 1;
}
