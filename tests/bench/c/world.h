/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The C benchmark's objects, and the device's side of its queues. */
#ifndef WORLD_H
#define WORLD_H
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include "measure.h"

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
