/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The rows of the table of posts on EFA, by ibv_post_send, which has sends only, and by the ibv_wr_* calls. The QP of a row is created
 * when it is first run.
 */
#define _GNU_SOURCE
#include "../post.h"
#include "world.h"

enum { RKEY = 0x1234, QPN = 0x123, QKEY = 0x11111111, MAX_ENTRIES = 2 };

static const struct transport transports[] = { { "srd", IBV_QPT_DRIVER }, { "efa_ud", IBV_QPT_UD } };
static struct post post;
/* Its QP. */
static struct qp *post_qp;

static struct ibv_send_wr wrs[CHUNK];
static struct ibv_sge sges[CHUNK][MAX_ENTRIES];

static uint64_t builders_of(bool is_srd)
{
	uint64_t sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

	return !is_srd ? sends : sends | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
}

/* The QP of a row; rows with the same sizes share one. */
static struct qp *qp_of(const struct post *p)
{
	static struct known {
		struct qp_kind kind;
		struct qp qp;
	} known[16];
	static int count;
	bool is_srd = p->transport->type == IBV_QPT_DRIVER, inline_write = p->inlined && p->operation->opcode == IBV_WR_RDMA_WRITE;
	struct qp_kind k = { is_srd, inline_write, p->entries, p->inlined > 32 ? p->inlined : 32, p->extended ? builders_of(is_srd) : 0, &plain_cq };

	for (int i = 0; i < count; i++)
		if (known[i].kind.srd == k.srd && known[i].kind.entries == k.entries && known[i].kind.inlined == k.inlined &&
		    known[i].kind.builders == k.builders && known[i].kind.inline_write == k.inline_write)
			return &known[i].qp;
	CHECK(count < N(known), "the table of QPs");
	known[count].kind = k;
	create_qp(&known[count].qp, k);
	return &known[count++].qp;
}

static void prepare(int batch)
{
	memset(wrs, 0, sizeof(wrs));
	for (int i = 0; i < CHUNK; i++) {
		for (int k = 0; k < MAX_ENTRIES; k++)
			sges[i][k] = (struct ibv_sge){ (uintptr_t)data + 64 * k, post.inlined ? post.inlined : 64, mr->lkey };
		wrs[i] = (struct ibv_send_wr){ .wr_id = i, .sg_list = sges[i], .num_sge = post.entries, .opcode = post.operation->opcode,
			.send_flags = IBV_SEND_SIGNALED | (post.inlined ? IBV_SEND_INLINE : 0), .imm_data = htobe32(i),
			.next = i % batch == batch - 1 ? NULL : &wrs[i + 1] };
		wrs[i].wr.ud.ah = ah;
		wrs[i].wr.ud.remote_qpn = QPN;
		wrs[i].wr.ud.remote_qkey = QKEY;
	}
}

static void run_list(int batch)
{
	struct ibv_send_wr *bad;

	begin();
	for (int i = 0; i < CHUNK; i += batch)
		CHECK(!ibv_post_send(post_qp->qp, &wrs[i], &bad), "ibv_post_send");
	end();
	complete_sends(post_qp);
	drain(post_qp->cq);
}

typedef void (*session)(struct ibv_qp_ex *x, int batch);

/* A function that posts a chunk by sessions. */
#define SESSIONS(name, ...)                                                            \
	static __attribute__((noinline)) void name(struct ibv_qp_ex *x, int batch)     \
	{                                                                              \
		uint32_t lkey = mr->lkey;                                              \
		uintptr_t addr = (uintptr_t)data;                                      \
		int entries = post.entries, inlined = post.inlined;                    \
                                                                                       \
		(void)lkey, (void)addr, (void)entries, (void)inlined;                  \
		for (int first = 0; first < CHUNK; first += batch) {                   \
			ibv_wr_start(x);                                               \
			for (int i = first; i < first + batch; i++) {                  \
				uint64_t remote = 0x100000 + i * 64;                   \
                                                                                       \
				(void)remote;                                          \
				x->wr_id = i;                                          \
				x->wr_flags = IBV_SEND_SIGNALED;                       \
				__VA_ARGS__                                            \
				ibv_wr_set_ud_addr(x, ah, QPN, QKEY);                  \
			}                                                              \
			CHECK(!ibv_wr_complete(x), "ibv_wr_complete");                 \
		}                                                                      \
	}
#define ENTRY ibv_wr_set_sge(x, lkey, addr, 64);

SESSIONS(send, ibv_wr_send(x); ENTRY)
SESSIONS(send_imm, ibv_wr_send_imm(x, htobe32(i)); ENTRY)
SESSIONS(write, ibv_wr_rdma_write(x, RKEY, remote); ENTRY)
SESSIONS(write_imm, ibv_wr_rdma_write_imm(x, RKEY, remote, htobe32(i)); ENTRY)
SESSIONS(read, ibv_wr_rdma_read(x, RKEY, remote); ENTRY)
SESSIONS(send_list, ibv_wr_send(x); ibv_wr_set_sge_list(x, entries, sges[i]);)
SESSIONS(send_inline, ibv_wr_send(x); ibv_wr_set_inline_data(x, data, inlined);)
SESSIONS(write_inline, ibv_wr_rdma_write(x, RKEY, remote); ibv_wr_set_inline_data(x, data, inlined);)

static session session_of(const struct post *p)
{
	if (p->inlined)
		return p->operation->opcode == IBV_WR_RDMA_WRITE ? write_inline : send_inline;
	if (p->entries > 1)
		return send_list;
	switch (p->operation->opcode) {
	case IBV_WR_SEND: return send;
	case IBV_WR_SEND_WITH_IMM: return send_imm;
	case IBV_WR_RDMA_WRITE: return write;
	case IBV_WR_RDMA_WRITE_WITH_IMM: return write_imm;
	case IBV_WR_RDMA_READ: return read;
	default: return NULL;
	}
}

static void run_sessions(int batch)
{
	session run = session_of(&post);

	begin();
	run(post_qp->ex, batch);
	end();
	complete_sends(post_qp);
	drain(post_qp->cq);
}

int find_post(const char *name, struct row *row)
{
	if (!parse_post(name, transports, N(transports), &post) || !session_of(&post))
		return 0;
	post_qp = qp_of(&post);
	*row = (struct row){ .prepare = prepare, .run = post.extended ? run_sessions : run_list, .operations = CHUNK };
	return 1;
}
