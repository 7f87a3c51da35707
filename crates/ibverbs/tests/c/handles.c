/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The public part of an object that the program has changed: its number in the kernel, its context, the descriptor of a
 * channel. Verbs answer as the kernel does, set errno, and leave the object as it was. Objects that were destroyed before are
 * unknown.
 */
#include "common.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct end a;
/* A second context of the same device, without objects. */
static struct ibv_context *other;

#define NUMBER(number, call) CHECK((errno = 0, call) == (number) && errno == (number))
#define NUL(number, call) CHECK((errno = 0, (void *)(call)) == NULL && errno == (number))
#define MINUS(number, call) CHECK((errno = 0, call) == -1 && errno == (number))

/* `body` with a number that no object has, and with that of an object of another kind. */
#define WRONG(object, handle, body)                                     \
	do {                                                            \
		uint32_t right = (object)->handle;                      \
		const int no_such = ENOENT;                             \
		(object)->handle = 0xdeadbeef;                          \
		{                                                       \
			const int answer = no_such;                     \
			body                                            \
		}                                                       \
		(object)->handle = right == a.pd->handle ? a.cq->handle : a.pd->handle; \
		{                                                       \
			const int answer = EINVAL;                      \
			body                                            \
		}                                                       \
		(object)->handle = right;                               \
	} while (0)

/* `body` while the object claims to be of the other context, which has no object. */
#define ELSEWHERE(object, body)                   \
	do {                                      \
		struct ibv_context *right = (object)->context; \
		const int answer = ENOENT;        \
		(object)->context = other;        \
		body                              \
		(object)->context = right;        \
	} while (0)

/* Both. */
#define STRANGE(object, body)                 \
	do {                                  \
		WRONG(object, handle, body);  \
		ELSEWHERE(object, body);      \
	} while (0)

static struct ibv_qp *new_qp(void)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	return ibv_create_qp_ex(a.context, &attr);
}

static void domains(void)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	struct ibv_qp_init_attr plain = { .send_cq = a.cq, .recv_cq = a.cq, .cap = attr.cap, .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr ah = address_of(&a);
	struct ibv_parent_domain_init_attr parent = { .pd = a.pd };
	struct ibv_pd *pd = ibv_alloc_pd(a.context);
	struct ibv_wq_init_attr wq = { .max_wr = 4, .max_sge = 1, .pd = pd, .cq = a.cq };
	CHECK(pd);
	attr.pd = parent.pd = pd;
	WRONG(pd, handle, {
		NUMBER(answer, ibv_dealloc_pd(pd));
		NUL(answer, ibv_reg_mr(pd, a.buf, SIZE, IBV_ACCESS_LOCAL_WRITE));
		NUL(answer, ibv_alloc_null_mr(pd));
		NUL(answer, ibv_alloc_mw(pd, IBV_MW_TYPE_1));
		NUL(answer, ibv_create_qp_ex(a.context, &attr));
		NUL(answer, ibv_create_qp(pd, &plain));
		NUL(answer, ibv_create_srq(pd, &srq));
		NUL(answer, ibv_create_ah(pd, &ah));
		NUL(answer, ibv_create_wq(a.context, &wq));
		NUL(answer, ibv_alloc_parent_domain(a.context, &parent));
		CHECK((errno = 0, ibv_rereg_mr(a.mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0)) != 0 && errno == answer);
		CHECK(a.mr->pd == a.pd);
		NUMBER(answer, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &(struct ibv_sge){ 0 }, 1));
	});
	ELSEWHERE(pd, {
		NUMBER(answer, ibv_dealloc_pd(pd));
		NUL(answer, ibv_reg_mr(pd, a.buf, SIZE, IBV_ACCESS_LOCAL_WRITE));
		NUL(answer, ibv_alloc_mw(pd, IBV_MW_TYPE_1));
		NUL(answer, ibv_create_qp(pd, &plain));
		NUL(answer, ibv_create_qp_ex(a.context, &attr));
	});
	struct ibv_mr *mr = ibv_reg_mr(pd, a.buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	NUMBER(EBUSY, ibv_dealloc_pd(pd));
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void regions(void)
{
	struct ibv_mr *mr = ibv_reg_mr(a.pd, a.buf, SIZE, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	STRANGE(mr, {
		NUMBER(answer, ibv_dereg_mr(mr));
		CHECK((errno = 0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0)) != 0 && errno == answer);
	});
	CHECK(ibv_dereg_mr(mr) == 0);
	/* The null region has no number. */
	CHECK(mr = ibv_alloc_null_mr(a.pd));
	mr->handle = 77;
	CHECK(ibv_dereg_mr(mr) == 0);
	for (int type = IBV_MW_TYPE_1; type <= IBV_MW_TYPE_2; type++) {
		struct ibv_mw *mw = ibv_alloc_mw(a.pd, type);
		CHECK(mw);
		STRANGE(mw, NUMBER(answer, ibv_dealloc_mw(mw)););
		CHECK(ibv_dealloc_mw(mw) == 0);
	}
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(a.context, &attr);
	CHECK(dm);
	STRANGE(dm, {
		NUMBER(answer, ibv_free_dm(dm));
		NUL(answer, ibv_reg_dm_mr(a.pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED));
	});
	CHECK(ibv_free_dm(dm) == 0);
}

static void queues(void)
{
	struct ibv_cq *cq = ibv_create_cq(a.context, 8, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	struct ibv_wq_init_attr wq_attr = { .max_wr = 4, .max_sge = 1, .pd = a.pd, .cq = cq };
	struct ibv_modify_cq_attr moderation = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 1, 1 } };
	STRANGE(cq, {
		NUMBER(answer, ibv_destroy_cq(cq));
		NUMBER(answer, ibv_resize_cq(cq, 16));
		NUMBER(answer, ibv_modify_cq(cq, &moderation));
		attr.send_cq = cq;
		attr.recv_cq = a.cq;
		CHECK(!ibv_create_qp_ex(a.context, &attr) && (errno == answer || errno == EINVAL));
		attr.send_cq = a.cq;
		attr.recv_cq = cq;
		CHECK(!ibv_create_qp_ex(a.context, &attr) && (errno == answer || errno == EINVAL));
		CHECK(!ibv_create_wq(a.context, &wq_attr) && (errno == answer || errno == EINVAL));
	});
	attr.send_cq = attr.recv_cq = cq;
	struct ibv_qp *qp = ibv_create_qp_ex(a.context, &attr);
	CHECK(qp);
	NUMBER(EBUSY, ibv_destroy_cq(cq));
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);

	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(a.pd, &init);
	CHECK(srq);
	attr = qp_attr(&a, IBV_QPT_RC);
	attr.srq = srq;
	struct ibv_srq_attr limit = { .srq_limit = 1 };
	STRANGE(srq, {
		NUMBER(answer, ibv_destroy_srq(srq));
		NUMBER(answer, ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
		NUMBER(answer, ibv_query_srq(srq, &limit));
		CHECK(!ibv_create_qp_ex(a.context, &attr) && (errno == answer || errno == EINVAL));
	});
	CHECK(ibv_destroy_srq(srq) == 0);

	CHECK(qp = new_qp());
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	struct ibv_qp_init_attr created;
	union ibv_gid group = { .raw = { 0xff } };
	int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
	STRANGE(qp, {
		NUMBER(answer, ibv_modify_qp(qp, &change, mask));
		NUMBER(answer, ibv_query_qp(qp, &change, IBV_QP_STATE, &created));
		NUMBER(answer, ibv_destroy_qp(qp));
		NUMBER(answer, ibv_attach_mcast(qp, &group, 0));
	});
	CHECK(qp->state == IBV_QPS_RESET && ibv_modify_qp(qp, &change, mask) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);

	wq_attr.cq = a.cq;
	struct ibv_wq *wq = ibv_create_wq(a.context, &wq_attr);
	CHECK(wq);
	struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	struct ibv_rwq_ind_table_init_attr table_attr = { .log_ind_tbl_size = 0, .ind_tbl = &wq };
	STRANGE(wq, {
		NUMBER(answer, ibv_modify_wq(wq, &ready));
		NUMBER(answer, ibv_destroy_wq(wq));
		CHECK(!ibv_create_rwq_ind_table(a.context, &table_attr) && (errno == answer || errno == EINVAL));
	});
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(a.context, &table_attr);
	CHECK(table);
	int right = table->ind_tbl_handle;
	table->ind_tbl_handle = 0x7eadbeef;
	NUMBER(ENOENT, ibv_destroy_rwq_ind_table(table));
	table->ind_tbl_handle = right;
	CHECK(ibv_destroy_rwq_ind_table(table) == 0 && ibv_destroy_wq(wq) == 0);
}

static void others(void)
{
	struct ibv_ah_attr attr = address_of(&a);
	struct ibv_ah *ah = ibv_create_ah(a.pd, &attr);
	CHECK(ah);
	STRANGE(ah, NUMBER(answer, ibv_destroy_ah(ah)););
	CHECK(ibv_destroy_ah(ah) == 0);

	/* These have no number in their public parts. */
	struct ibv_xrcd_init_attr xrcd_attr = { .comp_mask = 3, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = ibv_open_xrcd(a.context, &xrcd_attr);
	struct ibv_counters_init_attr counters_attr = { 0 };
	struct ibv_counters *counters = ibv_create_counters(a.context, &counters_attr);
	struct ibv_td_init_attr td_attr = { 0 };
	struct ibv_td *td = ibv_alloc_td(a.context, &td_attr);
	CHECK(xrcd && counters && td);
	xrcd->context = counters->context = td->context = other;
	NUMBER(EINVAL, ibv_close_xrcd(xrcd));
	NUMBER(EINVAL, ibv_destroy_counters(counters));
	NUMBER(EINVAL, ibv_dealloc_td(td));
	xrcd->context = counters->context = td->context = a.context;
	CHECK(ibv_close_xrcd(xrcd) == 0 && ibv_destroy_counters(counters) == 0 && ibv_dealloc_td(td) == 0);

	struct ibv_qp_init_attr_ex raw_attr = qp_attr(&a, IBV_QPT_RAW_PACKET);
	struct ibv_qp *raw = ibv_create_qp_ex(a.context, &raw_attr);
	CHECK(raw);
	to_init(raw);
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} __attribute__((packed, aligned(8))) rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .num_of_specs = 1, .port = PORT },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth), .val.dst_mac = { 2 }, .mask.dst_mac = { 0xff } },
	};
	struct ibv_flow_attr *start = (void *)&rule;
	STRANGE(raw, NUL(answer, ibv_create_flow(raw, start)););
	struct ibv_flow *flow = ibv_create_flow(raw, start);
	CHECK(flow);
	STRANGE(flow, NUMBER(answer, ibv_destroy_flow(flow)););
	CHECK(ibv_destroy_flow(flow) == 0 && ibv_destroy_qp(raw) == 0);
}

static void channels(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(a.context);
	CHECK(channel);
	int right = channel->fd, file = eventfd(0, 0);
	CHECK(file >= 0);
	for (int wrong = -1; wrong <= file; wrong += file + 1) {
		channel->fd = wrong;
		NUL(EBADF, ibv_create_cq(a.context, 4, NULL, channel, 0));
		NUMBER(EBADF, ibv_destroy_comp_channel(channel));
	}
	/* Another descriptor of the same file. */
	channel->fd = dup(right);
	CHECK(channel->fd >= 0);
	struct ibv_cq *cq = ibv_create_cq(a.context, 4, NULL, channel, 0);
	CHECK(cq && ibv_destroy_cq(cq) == 0 && close(channel->fd) == 0 && close(file) == 0);
	channel->fd = right;
	channel->context = other;
	NUL(EINVAL, ibv_create_cq(a.context, 4, NULL, channel, 0));
	NUMBER(EINVAL, ibv_destroy_comp_channel(channel));
	channel->context = a.context;
	CHECK(ibv_destroy_comp_channel(channel) == 0);
}

/* Objects of two contexts can't be used together. */
static void mixed(void)
{
	struct ibv_pd *pd = ibv_alloc_pd(other);
	struct ibv_cq *cq = ibv_create_cq(other, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(pd && cq);
	attr.send_cq = cq;
	NUL(EINVAL, ibv_create_qp_ex(a.context, &attr));
	attr.send_cq = a.cq;
	attr.pd = pd;
	NUL(EINVAL, ibv_create_qp_ex(a.context, &attr));
	NUL(EINVAL, ibv_create_qp_ex(other, &attr));
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
}

/* An object that was destroyed is not used: neither by the same verb again nor by others. */
static void destroyed(void)
{
	struct ibv_mw *mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_1);
	struct ibv_qp *qp = new_qp();
	struct ibv_pd *pd = ibv_alloc_pd(a.context);
	struct ibv_mr *mr = ibv_reg_mr(a.pd, a.buf, SIZE, 0);
	CHECK(mw && qp && pd && mr);
	CHECK(ibv_dealloc_mw(mw) == 0 && ibv_destroy_qp(qp) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_dereg_mr(mr) == 0);
	for (int i = 0; i < 2; i++) {
		/* Through the context: the compiler knows that the header's functions read the object. */
		NUMBER(EINVAL, a.context->ops.dealloc_mw(mw));
		NUMBER(EINVAL, ibv_destroy_qp(qp));
		NUMBER(EINVAL, ibv_dealloc_pd(pd));
		NUMBER(EINVAL, ibv_dereg_mr(mr));
		NUL(EINVAL, a.context->ops.alloc_mw(pd, IBV_MW_TYPE_1));
	}
	/* Of another kind. */
	NUMBER(EINVAL, ibv_destroy_qp((struct ibv_qp *)a.cq));
	NUMBER(EINVAL, ibv_dealloc_pd((struct ibv_pd *)a.mr));
	/* Copies are no objects. */
	struct ibv_pd copy = *a.pd;
	NUMBER(EINVAL, ibv_dealloc_pd(&copy));
}

/* A queue whose channel in the public part was changed is destroyed, and counts in its own channel only. */
static void channels_of_queues(void)
{
	struct ibv_comp_channel *own, *foreign;
	CHECK(own = ibv_create_comp_channel(a.context));
	CHECK(foreign = ibv_create_comp_channel(a.context));
	struct ibv_comp_channel *const values[] = { NULL, foreign, (struct ibv_comp_channel *)8 };
	for (unsigned i = 0; i < 3; i++) {
		struct ibv_cq *cq = ibv_create_cq(a.context, 4, NULL, own, 0);
		struct ibv_cq *neighbour = ibv_create_cq(a.context, 4, NULL, foreign, 0);
		CHECK(cq && neighbour);
		cq->channel = values[i];
		NUMBER(EBUSY, ibv_destroy_comp_channel(own));
		CHECK(ibv_destroy_cq(cq) == 0);
		NUMBER(EBUSY, ibv_destroy_comp_channel(foreign));
		CHECK(ibv_destroy_cq(neighbour) == 0);
	}
	CHECK(ibv_destroy_comp_channel(own) == 0 && ibv_destroy_comp_channel(foreign) == 0);
}

static atomic_int over, destroys;

/* Threads destroy the same object, of which one succeeds, while others use it. */
static void *destroy(void *qp)
{
	int result;
	while ((result = ibv_destroy_qp(qp)) == EBUSY)
		;
	CHECK(result == 0 || result == EINVAL);
	destroys += result == 0;
	return NULL;
}

static void *query(void *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	int result;
	do
		result = ibv_query_qp(qp, &attr, IBV_QP_STATE, &init);
	while (!over && (result == 0 || result == EBUSY));
	CHECK(result == 0 || result == EINVAL || result == EBUSY);
	return NULL;
}

static void at_the_same_time(void)
{
	for (int round = 0; round < 50; round++) {
		struct ibv_qp *qp = new_qp();
		pthread_t threads[4];
		CHECK(qp);
		destroys = over = 0;
		for (int i = 0; i < 4; i++)
			CHECK(pthread_create(&threads[i], NULL, i & 1 ? destroy : query, qp) == 0);
		for (int i = 1; i < 4; i += 2)
			CHECK(pthread_join(threads[i], NULL) == 0);
		over = 1;
		for (int i = 0; i < 4; i += 2)
			CHECK(pthread_join(threads[i], NULL) == 0);
		CHECK(destroys == 1);
	}
}

int main(void)
{
	open_end(&a, 0);
	other = open_hca(0);
	domains();
	regions();
	queues();
	others();
	channels();
	channels_of_queues();
	mixed();
	destroyed();
	at_the_same_time();
	CHECK(ibv_close_device(other) == 0);
	close_end(&a);
	return 0;
}
