/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The objects of the C benchmark of EFA, and the work of a device on them: see world.h. */
#define _GNU_SOURCE
#include "world.h"
#include <dlfcn.h>
#include <unistd.h>
#include "../../../efa-recorder/device.h"

struct cq plain_cq, ex_cq;
struct qp srd, srd_of_ex, srd_sge2;
struct ibv_ah *ah;
struct ibv_mr *mr;
uint8_t data[4096] __attribute__((aligned(64)));

/* The preload library's. */
static struct device *fake;
static struct ibv_context *context;
static struct ibv_pd *pd;

/* The beginning of struct efadv_qp_init_attr, of which older headers have less. */
struct srd_attr {
	uint64_t comp_mask;
	uint32_t driver_qp_type;
	uint16_t flags;
	uint8_t sl, reserved;
};
/* EFADV_QP_FLAGS_INLINE_WRITE */
enum { INLINE_WRITE = 1 << 1 };

/* The function of libefa.so.1, which is loaded before the program: rdma-core's or this project's. */
static struct ibv_qp *create_srd(struct ibv_qp_init_attr_ex *attr, bool inline_write)
{
	struct srd_attr efa = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD, .flags = inline_write ? INLINE_WRITE : 0 };
	void *function = dlsym(RTLD_DEFAULT, "efadv_create_qp_ex");

	CHECK(function, "efadv_create_qp_ex");
	return ((struct ibv_qp * (*)(struct ibv_context *, struct ibv_qp_init_attr_ex *, struct srd_attr *, uint32_t)) function)(
		context, attr, &efa, sizeof(efa));
}

static void create_cq(struct cq *c, int extended)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 2 * CHUNK, .wc_flags = IBV_WC_STANDARD_FLAGS };

	if (extended) {
		c->ex = ibv_create_cq_ex(context, &attr);
		CHECK(c->ex, "ibv_create_cq_ex");
		c->cq = ibv_cq_ex_to_cq(c->ex);
	} else {
		c->cq = ibv_create_cq(context, attr.cqe, NULL, NULL, 0);
		CHECK(c->cq, "ibv_create_cq");
	}
	c->ring = fake->cq.at;
	c->entries = c->cq->cqe;
	/* cq_entry_size of struct efa_ibv_create_cq. */
	memcpy(&c->entry_size, fake->cq_request + 4, 4);
}

void create_event_cq(struct event_cq *e)
{
	e->channel = ibv_create_comp_channel(context);
	CHECK(e->channel, "ibv_create_comp_channel");
	e->cq = ibv_create_cq(context, CHUNK, NULL, e->channel, 0);
	CHECK(e->cq, "ibv_create_cq");
	e->fd = fake->channel;
	e->handle = fake->cq_user_handle;
}
void make_event(const struct event_cq *e)
{
	CHECK(write(e->fd, &e->handle, sizeof(e->handle)) == sizeof(e->handle), "write");
}

static void to_state(struct ibv_qp *qp, int state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .qkey = 0x11111111 };
	int mask = IBV_QP_STATE;

	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	if (state == IBV_QPS_RTS)
		mask |= IBV_QP_SQ_PSN;
	CHECK(!ibv_modify_qp(qp, &attr, mask), "ibv_modify_qp");
}

static void print_area(const char *what, struct area area)
{
	if (tracing)
		printf("%s\t%p\t%#zx\n", what, (void *)area.at, area.len);
}

void create_qp(struct qp *q, struct qp_kind k)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = k.srd ? IBV_QPT_DRIVER : IBV_QPT_UD, .send_cq = k.cq->cq, .recv_cq = k.cq->cq, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (k.builders ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0), .send_ops_flags = k.builders,
		.cap = { .max_send_wr = CHUNK, .max_recv_wr = CHUNK, .max_send_sge = k.entries, .max_recv_sge = k.entries,
			 .max_inline_data = k.inlined },
	};

	fake->next_qpn++;
	q->qp = k.srd ? create_srd(&attr, k.inline_write) : ibv_create_qp_ex(context, &attr);
	CHECK(q->qp, "create_qp");
	q->ex = k.builders ? ibv_qp_to_qp_ex(q->qp) : NULL;
	q->cq = k.cq;
	/* rq_ring_size and sq_ring_size of struct efa_ibv_create_qp. */
	memcpy(&q->receives_len, fake->qp_request + 4, 4);
	memcpy(&q->sends_len, fake->qp_request + 8, 4);
	q->entry_size = k.inlined > 32 || k.inline_write ? 128 : 64;
	q->sends = fake->llq.at + LLQ_START;
	q->receives = fake->rq.at;
	print_area("combined", fake->llq);
	print_area("registers", fake->sq_bell);
	print_area("registers", fake->rq_bell);
	to_state(q->qp, IBV_QPS_INIT);
	to_state(q->qp, IBV_QPS_RTR);
	to_state(q->qp, IBV_QPS_RTS);
}

void create_objects(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1 };

	fake = dlsym(RTLD_DEFAULT, "device");
	if (!fake) {
		fprintf(stderr, "bench: run it with LD_PRELOAD=efa-shim.so\n");
		exit(2);
	}
	CHECK(list && list[0], "ibv_get_device_list");
	context = ibv_open_device(list[0]);
	CHECK(context, "ibv_open_device");
	pd = ibv_alloc_pd(context);
	CHECK(pd, "ibv_alloc_pd");
	mr = ibv_reg_mr(pd, data, sizeof(data), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr, "ibv_reg_mr");
	ah_attr.grh.dgid.raw[15] = 7;
	ah = ibv_create_ah(pd, &ah_attr);
	CHECK(ah, "ibv_create_ah");
	if (thread_domain) {
		struct ibv_parent_domain_init_attr attr = { .pd = pd, .td = ibv_alloc_td(context, &td_attr) };

		/* libefa has none: all its queues have locks. */
		if (attr.td) {
			pd = ibv_alloc_parent_domain(context, &attr);
			CHECK(pd, "ibv_alloc_parent_domain");
		}
	}
	create_cq(&plain_cq, 0);
	create_cq(&ex_cq, 1);
	create_qp(&srd, (struct qp_kind){ .srd = true, .entries = 1, .inlined = 32, .cq = &plain_cq });
	create_qp(&srd_of_ex, (struct qp_kind){ .srd = true, .entries = 1, .inlined = 32, .cq = &ex_cq });
	create_qp(&srd_sge2, (struct qp_kind){ .srd = true, .entries = 2, .inlined = 32, .cq = &plain_cq });
}

/* Writes a completion in the format of efa_io_rx_cdesc (the kernel's efa_io_defs.h). */
static void complete(struct qp *q, int sub, const volatile uint8_t *number)
{
	struct cq *c = q->cq;
	uint8_t *entry = c->ring + (size_t)(sub * c->entries + c->written[sub] % c->entries) * c->entry_size;
	uint16_t qpn = q->qp->qp_num, length = 64, ah_number = 9, source = 0x77;

	memset(entry, 0, c->entry_size);
	entry[0] = number[0];
	entry[1] = number[1];
	entry[3] = (c->written[sub] / c->entries % 2 == 0) | (sub == SENDS ? 1 : 2) << 1;
	memcpy(entry + 4, &qpn, 2);
	if (sub == RECEIVES) {
		memcpy(entry + 6, &length, 2);
		memcpy(entry + 8, &ah_number, 2);
		memcpy(entry + 10, &source, 2);
	}
	c->written[sub]++;
}

void complete_sends(struct qp *q)
{
	for (int i = 0; i < CHUNK; i++)
		complete(q, SENDS, q->sends + q->sent++ * q->entry_size % q->sends_len);
}

void complete_receives(struct qp *q)
{
	enum { DESCRIPTOR = 16, NUMBER = 8, CONTROL = 15, FIRST = 0x40 };

	for (int i = 0; i < CHUNK;) {
		const volatile uint8_t *descriptor = q->receives + q->received++ * DESCRIPTOR % q->receives_len;

		if (descriptor[CONTROL] & FIRST) {
			complete(q, RECEIVES, descriptor + NUMBER);
			i++;
		}
	}
}

void drain(struct cq *c)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_wc wc[BATCH];

	for (int n = CHUNK; !c->ex && n;) {
		int k = ibv_poll_cq(c->cq, BATCH, wc);

		CHECK(k > 0 && !wc[k - 1].status, "ibv_poll_cq");
		n -= k;
		CHECK(n || wc[k - 1].wr_id == CHUNK - 1, "the last wr_id");
	}
	for (int n = CHUNK; c->ex && n; n--) {
		CHECK(!ibv_start_poll(c->ex, &attr) && !c->ex->status, "ibv_start_poll");
		ibv_end_poll(c->ex);
	}
}

/* Those of the queues are printed when they are created. */
void print_registers(void) {}
