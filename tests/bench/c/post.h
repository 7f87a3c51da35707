/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Rows of the table of posts, "CALL TRANSPORT OPERATION [DATA]", as src/matrix.rs has it. */
#ifndef POST_H
#define POST_H
#include <infiniband/verbs.h>
#include "measure.h"

#define N(array) (int)(sizeof(array) / sizeof(*(array)))

struct transport {
	const char *name;
	int type;
};
struct operation {
	const char *name;
	int opcode;
	uint64_t builder;
};
extern const struct operation operations[];

/* A row, taken apart. */
struct post {
	int extended; /* ibv_wr_* */
	const struct transport *transport;
	const struct operation *operation;
	int entries, inlined, buffers;
};
/* Takes a name apart; 0 if it is not that of a post of one of these transports. */
int parse_post(const char *name, const struct transport *transports, int count, struct post *post);

#endif
