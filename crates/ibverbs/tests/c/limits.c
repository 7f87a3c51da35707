/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Prints, for many sizes of queues, whether a queue is created and the sizes that it has. The test compares the output with that of
 * rdma-core's libmlx5 on a device with the same limits.
 */
#include "common.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_srq *srq;

static const char *const names[] = {
	[IBV_QPT_RC] = "RC",
	[IBV_QPT_UC] = "UC",
	[IBV_QPT_UD] = "UD",
	[IBV_QPT_RAW_PACKET] = "RAW",
	[IBV_QPT_XRC_SEND] = "XRC",
};

static void print_qp(const char *face, enum ibv_qp_type type, struct ibv_qp_cap asked, struct ibv_qp *qp, struct ibv_qp_cap got)
{
	printf("%s %s %u %u %u %u %u: ", face, names[type], asked.max_send_wr, asked.max_send_sge, asked.max_inline_data,
	       asked.max_recv_wr, asked.max_recv_sge);
	if (qp)
		printf("%u %u %u %u %u\n", got.max_send_wr, got.max_send_sge, got.max_inline_data, got.max_recv_wr,
		       got.max_recv_sge);
	else
		printf("%s\n", strerror(errno));
}

static void qp(enum ibv_qp_type type, struct ibv_qp_cap cap)
{
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = cap, .qp_type = type };
	struct ibv_qp *made = ibv_create_qp(pd, &attr);
	print_qp("plain", type, cap, made, attr.cap);
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;
	if (made && ibv_query_qp(made, &now, IBV_QP_CAP, &init) == 0)
		CHECK(memcmp(&init.cap, &attr.cap, sizeof(attr.cap)) == 0);
	if (made)
		ibv_destroy_qp(made);
}

static void qp_ex(enum ibv_qp_type type, struct ibv_qp_cap cap, uint64_t ops, struct ibv_srq *shared)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = shared,
		.cap = cap,
		.qp_type = type,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
		.pd = pd,
		.send_ops_flags = ops,
	};
	struct ibv_qp *made = ibv_create_qp_ex(context, &attr);
	char face[64];
	snprintf(face, sizeof(face), "ops %#llx srq %d", (unsigned long long)ops, shared != NULL);
	print_qp(face, type, cap, made, attr.cap);
	if (made)
		ibv_destroy_qp(made);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static void queue_pairs(void)
{
	static const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND };
	static const uint32_t wrs[] = { 0, 1, 2, 3, 5, 64, 100, 1000, 4096, 5461, 5462, 8191, 8192, 8193, 10922, 10923, 16384,
					16385, 21845, 21846, 32767, 32768, 32769, 65535, 65536, 1 << 20, 0x1fffff, 0x200000,
					0x7fffffff, 0x80000000, ~0U };
	static const uint32_t sges[] = { 0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 29, 30, 31, 32, 33, 47, 48, 49, 50, 51, 52, 53,
					 54, 57, 58, 59, 60, 61, 62, 63, 64, 65, 100, 1 << 20, 0x7fffffff, ~0U };
	static const uint32_t inlines[] = { 0,	 1,   4,   12,	13,  28,  29,  36,  60,	 61,  64,  96,	124, 125,  216,	 256, 400, 512,
					    580, 700, 764, 768, 780, 800, 812, 827, 828, 829, 844, 860, 876, 892,  893,  908, 924,
					    939, 940, 956, 960, 961, 972, 988, 989, 1000, 1004, 1005, 1020, 1024, 1 << 20 };
	static const uint64_t ops[] = {
		IBV_QP_EX_WITH_SEND,
		IBV_QP_EX_WITH_RDMA_WRITE,
		IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND_WITH_IMM,
		IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
		IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
		IBV_QP_EX_WITH_LOCAL_INV,
		IBV_QP_EX_WITH_BIND_MW,
		IBV_QP_EX_WITH_SEND_WITH_INV,
	};
	for (size_t t = 0; t < COUNT(types); t++) {
		enum ibv_qp_type type = types[t];
		for (size_t i = 0; i < COUNT(wrs); i++)
			for (uint32_t sge = 0; sge < 3; sge++) {
				qp(type, (struct ibv_qp_cap){ .max_send_wr = wrs[i], .max_send_sge = sge, .max_recv_wr = 1 });
				qp(type, (struct ibv_qp_cap){ .max_send_wr = 1, .max_recv_wr = wrs[i], .max_recv_sge = sge });
			}
		for (size_t i = 0; i < COUNT(sges); i++) {
			qp(type, (struct ibv_qp_cap){ .max_send_wr = 10, .max_send_sge = sges[i] });
			qp(type, (struct ibv_qp_cap){ .max_send_wr = 0, .max_send_sge = sges[i], .max_recv_wr = 1 });
			qp(type, (struct ibv_qp_cap){ .max_recv_wr = 10, .max_recv_sge = sges[i], .max_send_wr = 1 });
			qp(type, (struct ibv_qp_cap){ .max_recv_wr = 0, .max_recv_sge = sges[i], .max_send_wr = 1 });
			qp(type, (struct ibv_qp_cap){ 1000, 1000, sges[i], sges[i], 64 });
		}
		for (size_t i = 0; i < COUNT(inlines); i++)
			for (uint32_t sge = 1; sge < 40; sge += 12) {
				qp(type, (struct ibv_qp_cap){ 10, 1, sge, 1, inlines[i] });
				qp(type, (struct ibv_qp_cap){ 3000, 1, sge, 1, inlines[i] });
			}
		for (size_t i = 0; i < COUNT(ops); i++) {
			int is_datagram = type == IBV_QPT_UD || type == IBV_QPT_RAW_PACKET;
			if ((is_datagram && ops[i] != IBV_QP_EX_WITH_SEND) || type == IBV_QPT_UC)
				continue;
			for (size_t j = 0; j < COUNT(inlines); j += 3)
				qp_ex(type, (struct ibv_qp_cap){ 10, 1, 2, 1, inlines[j] }, ops[i], NULL);
			for (size_t j = 0; j < COUNT(wrs); j++)
				qp_ex(type, (struct ibv_qp_cap){ wrs[j], 1, 1, 1, 0 }, ops[i], NULL);
			for (size_t j = 0; j < COUNT(sges); j++)
				qp_ex(type, (struct ibv_qp_cap){ 10, 1, sges[j], 1, 0 }, ops[i], NULL);
		}
		if (type != IBV_QPT_RAW_PACKET && type != IBV_QPT_XRC_SEND)
			qp_ex(type, (struct ibv_qp_cap){ 10, 100, 1, 3, 0 }, 0, srq);
	}
}

static void shared_queues(void)
{
	static const uint32_t wrs[] = { 0,	1,     2,     3,     31,    32,	   100,	  1000,	 8191,	8192,	 16382,
					16383, 16384, 16385, 32766, 32767, 32768, 32769, 65536, 1 << 20, ~0U };
	static const uint32_t sges[] = { 0, 1, 2, 3, 4, 7, 8, 15, 16, 29, 30, 31, 32, 33, 1 << 20, ~0U };
	for (size_t i = 0; i < COUNT(wrs); i++)
		for (size_t j = 0; j < COUNT(sges); j++) {
			struct ibv_srq_init_attr attr = { .attr = { .max_wr = wrs[i], .max_sge = sges[j] } };
			struct ibv_srq *made = ibv_create_srq(pd, &attr);
			printf("srq %u %u: ", wrs[i], sges[j]);
			if (made)
				printf("%u %u\n", attr.attr.max_wr, attr.attr.max_sge);
			else
				printf("%s\n", strerror(errno));
			if (made)
				ibv_destroy_srq(made);
		}
}

static void completion_queues(void)
{
	static const int entries[] = { -2147483647, -1, 0, 1, 2, 3, 4, 63, 64, 100, 127, 128, 4095, 4096, 65535, 65536,
				       1 << 24, (1 << 24) + 1, 0x7ffffffe, 0x7fffffff };
	for (size_t i = 0; i < COUNT(entries); i++)
		for (int vector = -1; vector < 10; vector += 3) {
			struct ibv_cq *made = ibv_create_cq(context, entries[i], NULL, NULL, vector);
			printf("cq %d %d: ", entries[i], vector);
			if (made)
				printf("%d\n", made->cqe);
			else
				printf("%s\n", strerror(errno));
			if (made)
				ibv_destroy_cq(made);
		}
}

int main(void)
{
	context = open_hca(0);
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 4, .max_sge = 1 } };
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 10, NULL, NULL, 0)));
	CHECK(srq = ibv_create_srq(pd, &attr));
	queue_pairs();
	shared_queues();
	completion_queues();
	return 0;
}
