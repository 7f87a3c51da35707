/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The names of posts: see post.h. */
#include "post.h"

const struct operation operations[] = {
	{ "send", IBV_WR_SEND, IBV_QP_EX_WITH_SEND },
	{ "send_imm", IBV_WR_SEND_WITH_IMM, IBV_QP_EX_WITH_SEND_WITH_IMM },
	{ "send_inv", IBV_WR_SEND_WITH_INV, IBV_QP_EX_WITH_SEND_WITH_INV },
	{ "write", IBV_WR_RDMA_WRITE, IBV_QP_EX_WITH_RDMA_WRITE },
	{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM },
	{ "read", IBV_WR_RDMA_READ, IBV_QP_EX_WITH_RDMA_READ },
	{ "cmp_swp", IBV_WR_ATOMIC_CMP_AND_SWP, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP },
	{ "fetch_add", IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD },
	{ "local_inv", IBV_WR_LOCAL_INV, IBV_QP_EX_WITH_LOCAL_INV },
	{ "bind_mw", IBV_WR_BIND_MW, IBV_QP_EX_WITH_BIND_MW },
	{ "tso", IBV_WR_TSO, IBV_QP_EX_WITH_TSO },
};

static int starts(const char **text, const char *word)
{
	size_t length = strlen(word);

	if (strncmp(*text, word, length) || ((*text)[length] && (*text)[length] != ' '))
		return 0;
	*text += length + ((*text)[length] == ' ');
	return 1;
}

int parse_post(const char *name, const struct transport *transports, int count, struct post *post)
{
	*post = (struct post){ .entries = 1, .extended = starts(&name, "wr") };
	if (!post->extended && !starts(&name, "post_send"))
		return 0;
	for (int i = 0; i < count; i++)
		if (starts(&name, transports[i].name))
			post->transport = &transports[i];
	for (int i = 0; post->transport && i < N(operations); i++)
		if (starts(&name, operations[i].name)) {
			post->operation = &operations[i];
			break;
		}
	if (!post->operation)
		return 0;
	if (!strncmp(name, "sge", 3)) {
		post->entries = atoi(name + 3);
	} else if (!strncmp(name, "inline_list", 11)) {
		post->buffers = atoi(name + 11);
		post->inlined = 64 * post->buffers;
	} else if (!strncmp(name, "inline", 6)) {
		post->inlined = atoi(name + 6);
	} else if (*name) {
		return 0;
	}
	return 1;
}
