/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the parts of the recorder share. */
#ifndef EFA_RECORDER_RECORD_H
#define EFA_RECORDER_RECORD_H
#include "device.h"
#include <stdbool.h>
#include <infiniband/verbs.h>
#include <infiniband/efadv.h>

/* Memory with data: byte i is i * 7 + 3. */
#define DATA 0x200000000000ull
#define DATA_LEN 0x10000
/* The contents of queues before each step. */
extern uint8_t fill;

/* How a request names its data. */
enum by { SGES, SGE, INLINE, INLINE_LIST };

struct request {
	uint64_t id;
	enum ibv_wr_opcode op;
	unsigned flags;
	uint32_t imm;
	unsigned ah; /* index of `handles` */
	uint32_t qpn, qkey;
	uint64_t addr;
	uint32_t rkey;
	enum by by;
	int num_sge;
	struct ibv_sge sges[4];
};

struct receive {
	uint64_t id;
	int num_sge;
	struct ibv_sge sges[4];
};

/* The QP and CQ of a case. */
struct shape {
	bool ud;
	uint32_t send_wr, recv_wr, send_sge, recv_sge, inline_data;
	bool sig_all;
	uint64_t ops; /* send_ops_flags; 0 for a QP without builders */
	unsigned flags, sl; /* of efadv_create_qp_ex */
	unsigned cqe;
	enum { LEGACY, EXTENDED, EFADV } cq;
	bool channel;
	unsigned start; /* requests that were posted and completed before */
};

#define HANDLES 4
extern const uint16_t handle_numbers[HANDLES];

/* A case: begin, steps, end. */
bool begin(const char *category, const struct shape *shape);
void post_list(const struct request *requests, int n);
void post_builders(const struct request *requests, int n, bool abort);
void post_receives(const struct receive *receives, int n);
/* The completion of a request: its position among all posted, or -1 for a number that was not posted. */
struct entry {
	bool is_send;
	int position;
	unsigned status, op, imm_flag, unsolicited;
	uint32_t imm, length;
	uint16_t ah, src_qp, qpn_xor;
	bool gid;
	unsigned sub;
};
void complete(const struct entry *entries, int n);
void poll_list(int max);
void poll_extended(int max);
void notify(bool solicited_only);
void event(void);
void modify(enum ibv_qp_state state);
void end(void);

void use(const struct generation *generation);
extern struct ibv_context *context;
extern struct ibv_pd *pd;
extern FILE *output;
extern unsigned sent, received;

void walk(const char *path);
#endif
