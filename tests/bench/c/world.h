/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The C benchmark's objects, the device's side of its queues, and the measured section. */
#ifndef WORLD_H
#define WORLD_H
#include <endian.h>
#include <errno.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>
#include <x86intrin.h>

#define CHUNK 128 /* operations of a measured stretch */
#define BATCH 32

#define FAIL(what) do { fprintf(stderr, "bench: %s: %s\n", what, strerror(errno)); exit(1); } while (0)
#define CHECK(ok, what) do { if (__builtin_expect(!(ok), 0)) FAIL(what); } while (0)

extern int counting, tracing, thread_domain;

/* Ticks of the measured sections. */
extern uint64_t elapsed;
/* A store to it begins and ends a traced section. */
extern volatile uint64_t mark;

static inline uint64_t now(void)
{
	unsigned aux;
	uint64_t t;

	_mm_lfence();
	t = __rdtscp(&aux);
	_mm_lfence();
	return t;
}
static inline void begin(void)
{
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
	else if (tracing)
		mark = tracing;
	else
		elapsed -= now();
}
static inline void end(void)
{
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
	else if (tracing)
		mark = tracing;
	else
		elapsed += now();
}

struct cq {
	struct ibv_cq *cq;
	struct ibv_cq_ex *ex;
	uint8_t *ring;
	uint32_t entries, produced;
};
struct qp {
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	struct mlx5dv_qp_ex *dv; /* of a DC initiator */
	const volatile uint32_t *record; /* the doorbell record */
	uint32_t user_index;
	uint16_t received; /* receives that were completed */
};
struct qp_kind {
	int type, entries, inlined;
	uint32_t wrs, tso_header;
	uint64_t builders;
	struct ibv_srq *srq;
	struct cq *cq; /* of both directions; else the usual ones */
};
struct row {
	const char *name;
	int batches; /* and TD: only with a thread domain */
	void (*prepare)(int batch), (*run)(int batch);
	int operations; /* of a chunk */
};
extern struct cq send_cq, recv_cq, ex_cq;
/* rc_of_ex completes to ex_cq, the others to send_cq and recv_cq. */
extern struct qp rc, rc_of_ex, rc_ex, rc_srq, rc_sge3, rc_sge3_ex, fifth;
extern struct ibv_srq *srq;
/* The elements of the SRQ, and the head of its free list, from which a device takes. */
extern const uint8_t *srq_elements;
extern uint16_t srq_head;
extern struct ibv_pd *pd;
extern struct ibv_ah *ah;
extern struct ibv_mr *mr;
extern uint8_t data[4096];

void create_objects(void);
/* Prints the addresses of registers, the stack, the mark and the program, for readers of a trace. */
void print_places(void);
void create_cq(struct cq *c, int entries, int extended);
void create_qp(struct qp *q, struct ibv_pd *domain, struct qp_kind k);
/* The fifth QP of a PD without a thread domain. */
void create_fifth(void);

/* A CQ with a channel, to which the fake kernel's side writes events. */
struct event_cq {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	int fd;
	uint64_t handle;
};
void create_event_cq(struct event_cq *e);
void make_event(const struct event_cq *e);

/* The operations of a transport (ops.c). */
uint64_t builders_of(int type);
/* Makes the row of this name, without face and batch; 0 if it is no row of the table of posts (ops.c). */
int find_post(const char *name, struct row *row);

/* The number of basic blocks that were posted. */
static inline uint16_t posted(const struct qp *q) { return be32toh(q->record[1]); }

enum { REQUESTER = 0, RESPONDER_SEND = 2, RDMA_WRITE = 8, SCATTERED_BYTE = 7 };

/* Writes a completion, with or without data in it. */
void complete(struct cq *c, const struct qp *q, uint16_t counter, int opcode, uint32_t bytes, int scattered);
/* Polls n completions, the last of which has this wr_id. */
void drain(struct cq *c, int n, uint64_t last);
/* All posted work requests are complete; the last WQE has so many basic blocks. */
void retire_sends(struct qp *q, int blocks);

#endif
