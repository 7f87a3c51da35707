/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The objects of the C benchmark of EFA, and the device's side of its queues. */
#ifndef EFA_WORLD_H
#define EFA_WORLD_H
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include "../measure.h"

/* The sub-CQs to which the device completes sends and receives. */
enum { SENDS, RECEIVES };

struct cq {
	struct ibv_cq *cq;
	struct ibv_cq_ex *ex;
	uint8_t *ring;
	uint32_t entry_size, entries, written[2];
};
struct qp {
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	const volatile uint8_t *sends, *receives;
	uint32_t entry_size, sends_len, receives_len;
	/* Entries and descriptors that the device has taken. */
	uint32_t sent, received;
	struct cq *cq;
};
struct qp_kind {
	bool srd, inline_write;
	int entries, inlined;
	uint64_t builders;
	struct cq *cq;
};
extern struct cq plain_cq, ex_cq;
/* One that completes to each CQ, and one whose receives have two entries. */
extern struct qp srd, srd_of_ex, srd_sge2;
extern struct ibv_ah *ah;
extern struct ibv_mr *mr;
extern uint8_t data[4096];

/* A CQ with a channel, to which the fake kernel's side writes events. */
struct event_cq {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	int fd;
	uint64_t handle;
};
void create_event_cq(struct event_cq *e);
void make_event(const struct event_cq *e);

void create_qp(struct qp *q, struct qp_kind k);

/* The device completes a chunk of sends, or of receives. */
void complete_sends(struct qp *q);
void complete_receives(struct qp *q);
/* Polls a chunk of completions, the last of which has the last wr_id. */
void drain(struct cq *c);

#endif
