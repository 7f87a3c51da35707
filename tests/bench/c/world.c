/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The C benchmark's objects, and the work of a device on them: see world.h. */
#define _GNU_SOURCE
#include "world.h"
#include <dlfcn.h>
#include <unistd.h>
#include "shim.h"

struct cq send_cq, recv_cq, ex_cq;
struct qp rc, rc_of_ex, rc_ex, rc_srq, rc_sge3, rc_sge3_ex, fifth;
struct ibv_srq *srq;
const uint8_t *srq_elements;
uint16_t srq_head;
struct ibv_pd *pd;
struct ibv_ah *ah;
struct ibv_mr *mr;
uint8_t data[4096] __attribute__((aligned(64)));

static struct shim_seen *seen;
static struct ibv_context *context;

void create_cq(struct cq *c, int entries, int extended)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = entries - 1, .wc_flags = IBV_WC_STANDARD_FLAGS };

	if (thread_domain) {
		attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
		attr.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	}
	if (extended) {
		c->ex = ibv_create_cq_ex(context, &attr);
		CHECK(c->ex, "ibv_create_cq_ex");
		c->cq = ibv_cq_ex_to_cq(c->ex);
	} else {
		c->cq = ibv_create_cq(context, attr.cqe, NULL, NULL, 0);
		CHECK(c->cq, "ibv_create_cq");
	}
	c->ring = (uint8_t *)(uintptr_t)seen->cq_ring;
	c->entries = c->cq->cqe + 1;
}

void create_event_cq(struct event_cq *e)
{
	e->channel = ibv_create_comp_channel(context);
	CHECK(e->channel, "ibv_create_comp_channel");
	e->cq = ibv_create_cq(context, CHUNK - 1, NULL, e->channel, 0);
	CHECK(e->cq, "ibv_create_cq");
	e->fd = seen->event_fd;
	e->handle = seen->cq_handle;
}
void make_event(const struct event_cq *e)
{
	CHECK(write(e->fd, &e->handle, sizeof(e->handle)) == sizeof(e->handle), "write");
}

static void to_state(struct ibv_qp *qp, int state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .path_mtu = IBV_MTU_1024 };

	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | (state == IBV_QPS_INIT ? IBV_QP_PORT : 0)), "ibv_modify_qp");
}

/*
 * The functions of libmlx5.so.1, which is loaded before the program: with rdma-core's libibverbs it is the provider, with
 * this project's it is this project's.
 */
static void *of_mlx5(const char *name)
{
	void *function = dlsym(RTLD_DEFAULT, name);

	CHECK(function, name);
	return function;
}
static struct ibv_qp *dv_create(struct ibv_context *c, struct ibv_qp_init_attr_ex *attr, struct mlx5dv_qp_init_attr *dv)
{
	return ((struct ibv_qp * (*)(struct ibv_context *, struct ibv_qp_init_attr_ex *, struct mlx5dv_qp_init_attr *))
			of_mlx5("mlx5dv_create_qp"))(c, attr, dv);
}
static struct mlx5dv_qp_ex *dv_qp_ex(struct ibv_qp_ex *ex)
{
	return ((struct mlx5dv_qp_ex * (*)(struct ibv_qp_ex *)) of_mlx5("mlx5dv_qp_ex_from_ibv_qp_ex"))(ex);
}

void create_qp(struct qp *q, struct ibv_pd *domain, struct qp_kind k)
{
	int is_dc = k.type == IBV_QPT_DRIVER, receives = !is_dc && k.type != IBV_QPT_XRC_SEND;
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = k.type, .send_cq = k.cq ? k.cq->cq : send_cq.cq,
		.recv_cq = k.cq ? k.cq->cq : recv_cq.cq, .srq = k.srq,
		.comp_mask = IBV_QP_INIT_ATTR_PD, .pd = domain,
		.cap = { .max_send_wr = k.wrs ? k.wrs : CHUNK,
			 .max_recv_wr = !receives ? 0 : k.wrs ? k.wrs : 2 * CHUNK,
			 .max_send_sge = k.entries, .max_recv_sge = receives,
			 .max_inline_data = k.inlined ? k.inlined : k.wrs ? 0 : 32 },
	};
	struct mlx5dv_qp_init_attr dv = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_DC, .dc_init_attr = { .dc_type = MLX5DV_DCTYPE_DCI } };

	if (k.builders) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		attr.send_ops_flags = k.builders;
	}
	if (k.tso_header) {
		attr.comp_mask |= IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
		attr.max_tso_header = k.tso_header;
	}
	q->qp = is_dc ? dv_create(domain->context, &attr, &dv) : ibv_create_qp_ex(domain->context, &attr);
	CHECK(q->qp, "ibv_create_qp_ex");
	q->ex = attr.send_ops_flags ? ibv_qp_to_qp_ex(q->qp) : NULL;
	q->dv = is_dc ? dv_qp_ex(q->ex) : NULL;
	q->user_index = seen->user_index;
	q->record = (const uint32_t *)(uintptr_t)seen->qp_record;
	to_state(q->qp, IBV_QPS_INIT);
	to_state(q->qp, IBV_QPS_RTR);
	to_state(q->qp, IBV_QPS_RTS);
}

void create_objects(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 3, .hop_limit = 64 } };
	const uint64_t builders = builders_of(IBV_QPT_RC);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 255, .max_sge = 1 } };

	/* Without events in between, the library would wait between empty polls. */
	setenv("MLX5_STALL_CQ_POLL", "0", 0);
	seen = dlsym(RTLD_DEFAULT, "shim_seen");
	if (!seen) {
		fprintf(stderr, "bench: run it with LD_PRELOAD=shim.so\n");
		exit(2);
	}
	CHECK(list && list[0], "ibv_get_device_list");
	context = ibv_open_device(list[0]);
	CHECK(context, "ibv_open_device");
	pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, data, sizeof(data), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr, "ibv_reg_mr");
	memcpy(ah_attr.grh.dgid.raw + 10, "\xff\xff\x0a\0\0\x07", 6);
	ah = ibv_create_ah(pd, &ah_attr);
	CHECK(ah, "ibv_create_ah");
	if (thread_domain) {
		struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = ibv_alloc_td(context, &td_attr) };

		CHECK(attr.td, "ibv_alloc_td");
		pd = ibv_alloc_parent_domain(context, &attr);
		CHECK(pd, "ibv_alloc_parent_domain");
	}
	create_cq(&send_cq, 2 * CHUNK, 0);
	create_cq(&recv_cq, 2 * CHUNK, 0);
	create_cq(&ex_cq, 2 * CHUNK, 1);
	srq = ibv_create_srq(pd, &srq_attr);
	CHECK(srq, "ibv_create_srq");
	srq_elements = (const uint8_t *)(uintptr_t)seen->srq_ring;
	create_qp(&rc, pd, (struct qp_kind){ .type = IBV_QPT_RC, .entries = 1 });
	create_qp(&rc_ex, pd, (struct qp_kind){ .type = IBV_QPT_RC, .builders = builders, .entries = 1 });
	create_qp(&rc_srq, pd, (struct qp_kind){ .type = IBV_QPT_RC, .entries = 1, .srq = srq });
	create_qp(&rc_sge3, pd, (struct qp_kind){ .type = IBV_QPT_RC, .entries = 3 });
	create_qp(&rc_sge3_ex, pd, (struct qp_kind){ .type = IBV_QPT_RC, .builders = builders, .entries = 3 });
	create_qp(&rc_of_ex, pd, (struct qp_kind){ .type = IBV_QPT_RC, .entries = 1, .cq = &ex_cq });
}

void create_fifth(void)
{
	struct ibv_pd *plain = ibv_alloc_pd(context);
	struct qp others;

	CHECK(plain, "ibv_alloc_pd");
	for (int i = 0; i < 4; i++)
		create_qp(&others, plain, (struct qp_kind){ .type = IBV_QPT_RC, .entries = 1 });
	create_qp(&fifth, plain, (struct qp_kind){ .type = IBV_QPT_RC, .entries = 1 });
}

void complete(struct cq *c, const struct qp *q, uint16_t counter, int opcode, uint32_t bytes, int scattered)
{
	struct mlx5_cqe64 *cqe = (void *)(c->ring + (c->produced & (c->entries - 1)) * 64);

	memset(cqe, 0, 63);
	if (scattered)
		memset(cqe, SCATTERED_BYTE, 32);
	cqe->srqn_uidx = htobe32(q->user_index);
	cqe->sop_drop_qpn = htobe32((opcode == REQUESTER ? RDMA_WRITE << 24 : 0) | q->qp->qp_num);
	cqe->wqe_counter = htobe16(counter);
	cqe->byte_cnt = htobe32(bytes);
	cqe->op_own = opcode << 4 | (scattered ? MLX5_INLINE_SCATTER_32 : 0) | (c->produced / c->entries & 1);
	c->produced++;
}

void drain(struct cq *c, int n, uint64_t last)
{
	struct ibv_wc wc[CHUNK];

	while (n) {
		int k = ibv_poll_cq(c->cq, n, wc);

		CHECK(k > 0 && !wc[k - 1].status, "ibv_poll_cq");
		n -= k;
		CHECK(n || wc[k - 1].wr_id == last, "the last wr_id");
	}
}
void retire_sends(struct qp *q, int blocks)
{
	complete(&send_cq, q, posted(q) - blocks, REQUESTER, 0, 0);
	drain(&send_cq, 1, CHUNK - 1);
}

void print_registers(void)
{
	printf("registers\t%#lx\t%#x\n", seen->registers, REGISTERS);
}
