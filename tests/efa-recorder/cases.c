// SPDX-License-Identifier: MIT OR Apache-2.0
/* The cases: every operation, size, flag, wrap, phase and error. Random values are drawn by a fixed seed. */
#define _GNU_SOURCE
#include "record.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* EFA_QUERY_DEVICE_CAPS_* of the kernel's efa-abi.h: read, RNR retry, notifications, source GID, write, unsolicited write. */
#define CAPS_READ (1 | 2 | 4 | 8)
#define CAPS_ALL (CAPS_READ | 1 << 5 | 1 << 6)

static const struct generation generations[] = {
	{ "send", 0, 32, 0, 0, 0, 1, 1 },
	{ "read", CAPS_READ, 32, 0, 16, 0, 2, 1 },
	{ "write", CAPS_ALL, 32, 80, 32, 0, 2, 1 },
	{ "batch", CAPS_ALL, 32, 80, 4, 16, 3, 1 },
};
enum { GEN_SEND, GEN_READ, GEN_WRITE, GEN_BATCH };

#define OPS_SEND (IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM)
#define OPS_READ (OPS_SEND | IBV_QP_EX_WITH_RDMA_READ)
#define OPS_ALL (OPS_READ | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)

static uint64_t seed = 0x9e3779b97f4a7c15;
static uint64_t any(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}
static unsigned below(unsigned n) { return any() % n; }

static struct shape shape_of(bool ud, uint64_t ops)
{
	return (struct shape){ .ud = ud, .send_wr = 16, .recv_wr = 16, .send_sge = 2, .recv_sge = 2, .inline_data = 32, .ops = ops };
}

/* Entries for `length` bytes of data. */
static void spread(struct request *r, unsigned length, int n)
{
	r->num_sge = n;
	for (int i = 0; i < n; i++) {
		unsigned part = i + 1 < n ? below(length + 1) : length;
		length -= part;
		r->sges[i] = (struct ibv_sge){ DATA + below(DATA_LEN - 256), part, (uint32_t)any() & 0xffffff };
	}
}

static struct request request(enum ibv_wr_opcode op)
{
	struct request r = { .id = any() >> 36 << 20, .op = op, .flags = IBV_SEND_SIGNALED, .imm = any(),
		.ah = below(HANDLES), .qpn = below(0x10000),
		.qkey = any(), .addr = any(), .rkey = any(), .by = SGES };
	int n = op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM ? below(3) : below(2);
	r.num_sge = n;
	for (int i = 0; i < n; i++)
		r.sges[i] = (struct ibv_sge){ any(), below(4) ? below(0x10000) : any() & 0x7fffffff, any() & 0xffffff };
	return r;
}

static void one(const char *category, const struct shape *shape, bool builders, const struct request *r)
{
	if (!begin(category, shape))
		return;
	if (builders)
		post_builders(r, 1, false);
	else
		post_list(r, 1);
	end();
}

static void sends(void)
{
	static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
		IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND_WITH_INV, IBV_WR_ATOMIC_FETCH_AND_ADD };
	static const unsigned flags[] = { 0, 2, 2 | 1, 2 | 4, 2 | 16, 1, 2 | 8 };

	for (unsigned g = GEN_SEND; g <= GEN_BATCH; g++) {
		use(&generations[g]);
		for (int ud = 0; ud < 2; ud++) {
			struct shape s = shape_of(ud, 0);
			for (unsigned o = 0; o < 7; o++)
				for (int n = 0; n < 4; n++) {
					struct request r = request(ops[o]);
					spread(&r, below(2000), n);
					one("list_op", &s, false, &r);
				}
			for (unsigned f = 0; f < 7; f++)
				for (int sig = 0; sig < 2; sig++) {
					struct request r = request(IBV_WR_SEND);
					r.flags = flags[f];
					spread(&r, 20, 1);
					s.sig_all = sig;
					one("list_flags", &s, false, &r);
				}
		}
	}
}

static void inlines(void)
{
	/* Lists, on entries of 64 and of 128 bytes. */
	for (unsigned g = GEN_SEND; g <= GEN_BATCH; g++) {
		use(&generations[g]);
		for (unsigned limit = 0; limit <= 80; limit += 16) {
			for (unsigned length = 0; length <= limit + 2; length++) {
				int n = 1 + below(3);
				struct shape s = shape_of(below(2), 0);
				s.inline_data = limit;
				struct request r = request(below(2) ? IBV_WR_SEND : IBV_WR_SEND_WITH_IMM);
				spread(&r, length, n);
				r.flags |= IBV_SEND_INLINE;
				one("list_inline", &s, false, &r);
			}
		}
	}
	/* Builders; RDMA writes only with the option. */
	for (unsigned g = GEN_WRITE; g <= GEN_BATCH; g++) {
		use(&generations[g]);
		for (unsigned write = 0; write < 3; write++)
			for (unsigned limit = 16; limit <= 80; limit += 32)
				for (unsigned length = 0; length <= limit + 2; length += 1 + below(2)) {
					static const enum ibv_wr_opcode ops[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM };
					struct shape s = shape_of(false, OPS_ALL);
					s.inline_data = limit;
					s.flags = write ? EFADV_QP_FLAGS_INLINE_WRITE : 0;
					struct request r = request(ops[write]);
					if (write || below(2)) {
						spread(&r, length, 1 + below(3));
						r.by = INLINE_LIST;
					} else {
						spread(&r, length, 1);
						r.by = INLINE;
					}
					one("builder_inline", &s, true, &r);
				}
	}
}

static const enum ibv_wr_opcode builder_ops[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE,
	IBV_WR_RDMA_WRITE_WITH_IMM };

static void builders(void)
{
	static const unsigned flags[] = { 2, 2 | 4, 2 | 1, 0 };
	for (unsigned g = GEN_SEND; g <= GEN_BATCH; g++) {
		unsigned count = g == GEN_SEND ? 2 : g == GEN_READ ? 3 : 5;
		uint64_t ops = g == GEN_SEND ? OPS_SEND : g == GEN_READ ? OPS_READ : OPS_ALL;
		use(&generations[g]);
		for (int ud = 0; ud < 2; ud++)
			for (unsigned o = 0; o < (ud ? 2 : count); o++)
				for (int n = 0; n < 4; n++)
					for (int k = 0; k < 6; k++) {
						struct shape s = shape_of(ud, ud ? OPS_SEND : ops);
						if (k % 3 == 2 && g >= GEN_WRITE)
							s.inline_data = 80;
						struct request r = request(builder_ops[o]);
						if (k == 5)
							r.flags = flags[n];
						spread(&r, k == 3 ? (uint32_t)any() : below(0x4000), n);
						if (n == 1 && k % 2)
							r.by = SGE;
						one("builder_op", &s, true, &r);
					}
	}
	/* Operations for which the QP was not created, and those that the device lacks. */
	use(&generations[GEN_WRITE]);
	for (unsigned o = 0; o < 5; o++) {
		struct shape s = shape_of(false, 1ull << (o % 3 + 8));
		begin("create_qp", &s) ? end() : (void)0;
		s = shape_of(o % 2, OPS_SEND | 1ull << o);
		begin("create_qp", &s) ? end() : (void)0;
	}
}

/* Lists and sessions of several requests, with completions between them, so that the rings wrap and numbers are used again. */
static void rings(void)
{
	for (unsigned c = 0; c < 120; c++) {
		unsigned g = c % 4, count = g == GEN_SEND ? 2 : g == GEN_READ ? 3 : 5;
		bool ud = below(4) == 0;
		struct shape s = shape_of(ud, ud || g == GEN_SEND ? OPS_SEND : g == GEN_READ ? OPS_READ : OPS_ALL);
		use(&generations[g]);
		s.send_wr = 1u << (2 + below(4));
		if (g >= GEN_WRITE && below(2))
			s.inline_data = 80;
		if (c % 40 == 39)
			s.start = 0x10000 - s.send_wr - below(3);
		s.cqe = 128;
		if (!begin("ring", &s))
			continue;
		unsigned capacity = s.send_wr < generations[g].min_sq_wr ? generations[g].min_sq_wr : s.send_wr;
		unsigned waiting[0x40], outstanding = 0;
		for (int round = 0; round < 7; round++) {
			struct request list[40];
			int n = 1 + below(capacity + capacity / 4);
			bool is_list = below(2);
			for (int i = 0; i < n; i++) {
				list[i] = request(is_list || ud ? builder_ops[below(2)] : builder_ops[below(count)]);
				if (below(4) == 0 && (list[i].op == IBV_WR_SEND || list[i].op == IBV_WR_SEND_WITH_IMM)) {
					spread(&list[i], below(33), 1 + below(2));
					list[i].by = INLINE_LIST;
					if (is_list)
						list[i].flags |= IBV_SEND_INLINE;
				}
			}
			unsigned before = sent;
			if (is_list)
				post_list(list, n);
			else
				post_builders(list, n, below(12) == 0);
			while (before < sent)
				waiting[outstanding++] = before++;
			/* Some of the requests complete, in another order. */
			struct entry entries[0x40];
			int done = below(outstanding + 1);
			for (int i = 0; i < done; i++) {
				unsigned at = below(outstanding);
				entries[i] = (struct entry){ .is_send = true, .position = waiting[at] };
				waiting[at] = waiting[--outstanding];
			}
			if (done) {
				complete(entries, done);
				poll_list(64);
			}
		}
		end();
	}
}

static void receives(void)
{
	for (unsigned c = 0; c < 160; c++) {
		struct shape s = shape_of(c % 2, 0);
		use(&generations[c % 4]);
		s.recv_wr = 1 + below(20);
		s.recv_sge = 1 + below(3);
		s.cqe = 256;
		if (!begin("receives", &s))
			continue;
		unsigned waiting[0x100], outstanding = 0;
		for (int round = 0; round < 5; round++) {
			struct receive list[40];
			int n = 1 + below(s.recv_wr + 2);
			for (int i = 0; i < n; i++) {
				/* Sometimes too many entries. */
				list[i] = (struct receive){ .id = any() >> 36 << 20, .num_sge = below(16) ? 1 + below(s.recv_sge) : s.recv_sge + 1 };
				for (int k = 0; k < list[i].num_sge && k < 4; k++)
					list[i].sges[k] = (struct ibv_sge){ any(), below(6) ? below(9000) : (uint32_t)any(),
						(uint32_t)any() & 0xffffff };
			}
			unsigned before = received;
			post_receives(list, n);
			while (before < received)
				waiting[outstanding++] = before++;
			struct entry entries[0x40];
			int done = below(outstanding + 1);
			if (done > 0x40)
				done = 0x40;
			for (int i = 0; i < done; i++) {
				unsigned at = below(outstanding);
				entries[i] = (struct entry){ .position = waiting[at], .length = below(9000), .ah = 3, .src_qp = 9 };
				waiting[at] = waiting[--outstanding];
			}
			if (done) {
				complete(entries, done);
				poll_list(64);
			}
		}
		end();
	}
}

/* Every status, kind of operation and flag of a completion, by each call that polls. */
static void completions(void)
{
	static const uint16_t peers[] = { 0, 7, 0xfffe, 0xffff };
	for (unsigned g = GEN_SEND; g <= GEN_BATCH; g++) {
		use(&generations[g]);
		for (unsigned kind = LEGACY; kind <= EFADV; kind++) {
			if (kind == EFADV && g == GEN_SEND)
				continue;
			for (unsigned status = 0; status < 24; status++)
				for (unsigned k = 0; k < (status ? 4 : 16); k++) {
					struct shape s = shape_of(false, 0);
					s.cq = kind;
					s.channel = g && k % 2;
					struct entry e = { .is_send = status ? k & 1 : k & 1, .status = status == 23 ? 0xff : status, .op = status ? below(3) : k / 2 % 3,
						.imm_flag = status ? below(2) : k / 8, .imm = any(), .ah = peers[k % 4], .src_qp = any(),
						.sub = below(generations[g].sub_cqs) };
					e.length = e.op == 2 ? below(1 << 30) : below(9000);
					if (e.is_send)
						e.imm = e.ah = e.src_qp = e.length = 0;
					e.gid = kind == EFADV && !e.is_send && e.ah == 0xffff && e.op == 0;
					if (!begin("completion", &s))
						abort();
					struct request r = request(IBV_WR_SEND);
					struct receive q = { .id = any() >> 36 << 20, .num_sge = 1, .sges = { { DATA, 100, 5 } } };
					if (e.is_send)
						post_list(&r, 1);
					else
						post_receives(&q, 1);
					complete(&e, 1);
					if (kind == LEGACY)
						poll_list(2);
					else
						poll_extended(2);
					if (s.channel)
						notify(false);
					end();
				}
			/* A write with immediate data that consumes no receive. */
			if (g < GEN_WRITE)
				continue;
			for (unsigned k = 0; k < 8; k++) {
				struct shape s = shape_of(false, 0);
				s.cq = kind;
				s.flags = EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV;
				struct entry e = { .position = -1, .op = 2, .imm_flag = 1, .unsolicited = 1, .imm = any(), .ah = k % 4 ? 7 : 0xffff,
					.src_qp = any(), .length = below(1 << 30), .status = k == 7 ? 1 : 0 };
				if (!begin("unsolicited", &s))
					continue;
				complete(&e, 1);
				kind == LEGACY ? poll_list(2) : poll_extended(2);
				end();
			}
		}
	}
}

/* Completions of QPs that do not exist; a poll after them. */
static void strangers(void)
{
	for (unsigned g = GEN_SEND; g <= GEN_BATCH; g++) {
		use(&generations[g]);
		for (unsigned k = 0; k < 8; k++) {
			struct shape s = shape_of(k & 1, 0);
			s.cq = k / 2 % 2;
			struct request r = request(IBV_WR_SEND);
			struct entry e[2] = { { .is_send = k & 4, .position = -1, .qpn_xor = 1 }, { .is_send = true } };
			if (!begin("stranger", &s))
				abort();
			post_list(&r, 1);
			complete(e, 2);
			for (int n = 0; n < 2; n++)
				s.cq == LEGACY ? poll_list(2) : poll_extended(2);
			end();
		}
	}
}

/* Many completions in the rings of several sub-CQs, of sends and receives, polled in parts; events. */
static void queues(void)
{
	for (unsigned c = 0; c < 48; c++) {
		unsigned g = c % 4;
		struct shape s = shape_of(c % 3 == 0, 0);
		use(&generations[g]);
		s.cq = c / 4 % (g ? 3 : 2);
		s.cqe = 16;
		s.channel = g && c % 2;
		if (!begin("cq_ring", &s))
			abort();
		for (int round = 0; round < 8; round++) {
			struct request list[8];
			struct receive receives[8];
			struct entry entries[16];
			int n = 1 + below(8), m = 1 + below(8), count = 0;
			unsigned from = sent, from_receive = received;
			for (int i = 0; i < n; i++)
				list[i] = request(builder_ops[below(2)]);
			for (int i = 0; i < m; i++)
				receives[i] = (struct receive){ .id = any() >> 36 << 20, .num_sge = 1, .sges = { { any(), 100, 5 } } };
			post_list(list, n);
			post_receives(receives, m);
			for (; from < sent; from++)
				entries[count++] = (struct entry){ .is_send = true, .position = from, .sub = below(generations[g].sub_cqs) };
			for (; from_receive < received; from_receive++)
				entries[count++] = (struct entry){ .position = from_receive, .length = below(9000), .imm_flag = below(2), .imm = any(),
					.ah = below(8), .src_qp = any(), .sub = below(generations[g].sub_cqs) };
			for (int i = count - 1; i > 0; i--) {
				int k = below(i + 1);
				struct entry e = entries[i];
				entries[i] = entries[k];
				entries[k] = e;
			}
			complete(entries, count);
			if (s.channel) {
				notify(below(4) == 0);
				if (below(2))
					event();
			}
			for (int left = count; left > 0;) {
				int max = 1 + below(6);
				s.cq == LEGACY || below(3) == 0 ? poll_list(max) : poll_extended(max);
				left -= max;
			}
			s.cq == LEGACY ? poll_list(4) : poll_extended(4);
		}
		end();
	}
}

/* Posts in other states, and after a reset. */
static void states(void)
{
	for (unsigned g = GEN_SEND; g <= GEN_BATCH; g++) {
		use(&generations[g]);
		for (unsigned k = 0; k < 8; k++) {
			struct shape s = shape_of(k % 2, OPS_SEND);
			struct request r[3];
			struct receive q = { .id = any() >> 36 << 20, .num_sge = 1, .sges = { { DATA, 100, 5 } } };
			if (!begin("state", &s))
				abort();
			static const enum ibv_qp_state states[] = { IBV_QPS_ERR, IBV_QPS_RESET, IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS, IBV_QPS_ERR };
			for (unsigned i = 0; i < 6; i++) {
				for (int n = 0; n < 3; n++)
					r[n] = request(IBV_WR_SEND);
				k & 2 ? post_list(r, 1 + below(3)) : post_builders(r, 1 + below(3), false);
				post_receives(&q, 1);
				modify(states[i]);
			}
			k & 2 ? post_list(r, 1) : post_builders(r, 1, false);
			end();
		}
	}
}

/* Sizes of QPs: what is asked of the kernel, what the program gets, and what is refused. */
static void creations(void)
{
	static const uint32_t counts[] = { 1, 2, 3, 15, 16, 17, 100, 512, 513, 1024, 1025, 4096, 4097 };
	for (unsigned g = GEN_SEND; g <= GEN_BATCH; g++) {
		use(&generations[g]);
		for (unsigned i = 0; i < 13; i++)
			for (unsigned k = 0; k < 5; k++) {
				static const uint32_t inlines[] = { 0, 32, 33, 80, 81 };
				struct shape s = shape_of(k % 2, 0);
				s.send_wr = counts[i];
				s.recv_wr = counts[(i + k * 3) % 13];
				s.send_sge = 1 + below(k == 4 ? 3 : 2);
				s.recv_sge = 1 + below(k == 3 ? 4 : 3);
				s.inline_data = inlines[k];
				s.sl = s.ud ? 0 : below(9);
				s.cqe = 1 + below(0x400);
				s.cq = below(2);
				if (begin("create_qp", &s))
					end();
			}
	}
}

int main(int argc, char **argv)
{
	if (argc != 3 && argc != 4) {
		fprintf(stderr, "usage: efa-recorder VECTORS CONTROL_TRACE [FILL]\n");
		return 2;
	}
	if (argc == 4)
		fill = strtoul(argv[3], NULL, 0);
	output = fopen(argv[1], "w");
	if (!output)
		return 1;
	uint8_t *data = mmap((void *)DATA, DATA_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (data != (void *)DATA)
		return 1;
	for (int i = 0; i < DATA_LEN; i++)
		data[i] = i * 7 + 3;
	device_start();
	sends();
	inlines();
	builders();
	rings();
	receives();
	completions();
	queues();
	strangers();
	states();
	creations();
	fclose(output);
	walk(argv[2]);
	return 0;
}
