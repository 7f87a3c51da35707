/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A parent domain whose functions allocate the memory of its queues and doorbell records. */
#include "common.h"
#include <infiniband/mlx5dv.h>

enum { TYPES = 6, PLACES = 64 };

/* The behaviour of the functions. */
static enum { ALLOCATE, DEFAULT, FAIL, MISALIGN } mode;
static struct ibv_pd *domain;
static int pd_context, allocated[TYPES], freed[TYPES];
static struct {
	void *memory;
	size_t size;
	int type;
} places[PLACES];

static int type_of(uint64_t resource_type)
{
	int type = (uint32_t)resource_type;
	CHECK(resource_type >> 32 == MLX5DV_RES_TYPE_QP >> 32 && type > 0 && type < TYPES);
	return type;
}

static void *allocate(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t resource_type)
{
	int type = type_of(resource_type);
	CHECK(pd == domain && context == &pd_context && size);
	CHECK(type == (uint32_t)MLX5DV_RES_TYPE_DBR ? size >= 8 && alignment >= 8 : alignment == 4096);
	if (mode == DEFAULT)
		return IBV_ALLOCATOR_USE_DEFAULT;
	if (mode == FAIL)
		return NULL;
	for (int i = 0; i < PLACES; i++) {
		if (places[i].memory)
			continue;
		CHECK(posix_memalign(&places[i].memory, alignment, size + alignment) == 0);
		/* The library clears it. */
		memset(places[i].memory, 0x5a, size);
		places[i].size = size;
		places[i].type = type;
		allocated[type]++;
		return (char *)places[i].memory + (mode == MISALIGN ? 4 : 0);
	}
	CHECK(!"room");
	return NULL;
}

static void release(struct ibv_pd *pd, void *context, void *memory, uint64_t resource_type)
{
	CHECK(pd == domain && context == &pd_context);
	for (int i = 0; i < PLACES; i++) {
		if (!places[i].memory || (uintptr_t)memory - (uintptr_t)places[i].memory > 4)
			continue;
		CHECK(places[i].type == type_of(resource_type));
		memset(places[i].memory, 0xee, places[i].size);
		free(places[i].memory);
		places[i].memory = NULL;
		freed[type_of(resource_type)]++;
		return;
	}
	CHECK(!"memory of this allocator");
}

static int is_ours(const void *at)
{
	for (int i = 0; i < PLACES; i++)
		if (places[i].memory && (uintptr_t)at - (uintptr_t)places[i].memory < places[i].size)
			return 1;
	return 0;
}

static struct ibv_cq *make_cq(struct end *end)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 4 * DEPTH,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
		.parent_domain = domain,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(end->context, &attr);
	return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

/* Messages between a QP in the program's memory and one in the library's. */
static void exchange(struct end *a, struct end *b)
{
	struct ibv_sge sge = { (uintptr_t)a->buf, 100, a->mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	for (int i = 0; i < 5 * DEPTH; i++) {
		post_recv(b, i, 2048, 100);
		memset(a->buf, i + 1, 100);
		wr.wr_id = i;
		CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
		poll_ok(a->cq, i);
		poll_ok(b->cq, i);
		CHECK(memcmp(a->buf, b->buf + 2048, 100) == 0);
	}
}

static void use(struct end *a, struct end *b)
{
	struct ibv_cq *own = a->cq;
	struct ibv_qp_init_attr_ex attr = qp_attr(a, IBV_QPT_RC), peer = qp_attr(b, IBV_QPT_RC);
	CHECK(a->cq = attr.send_cq = attr.recv_cq = make_cq(a));
	attr.pd = domain;
	CHECK(a->qp = ibv_create_qp_ex(a->context, &attr));
	CHECK(b->qp = ibv_create_qp_ex(b->context, &peer));
	connect_ends(a, b);
	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 10, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(domain, &srq_attr);
	struct ibv_wq_init_attr wq_attr = { .max_wr = 16, .max_sge = 1, .pd = domain, .cq = a->cq };
	struct ibv_wq *wq = ibv_create_wq(a->context, &wq_attr);
	CHECK(srq && wq);
	struct mlx5dv_qp raw_qp = { 0 };
	struct mlx5dv_cq raw_cq = { 0 };
	struct mlx5dv_obj obj = { .qp = { a->qp, &raw_qp }, .cq = { a->cq, &raw_cq } };
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ) == 0);
	int ours = mode == ALLOCATE;
	CHECK(is_ours(raw_qp.sq.buf) == ours && is_ours(raw_qp.rq.buf) == ours && is_ours(raw_qp.dbrec) == ours);
	CHECK(is_ours(raw_cq.buf) == ours && is_ours(raw_cq.dbrec) == ours);
	exchange(a, b);
	exchange(b, a);
	/* A larger ring, from the same functions; completions of both are found. */
	int before = allocated[(uint32_t)MLX5DV_RES_TYPE_CQ];
	post_recv(a, 7, 0, 100);
	struct ibv_sge sge = { (uintptr_t)b->buf, 100, b->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 8, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(b->qp, &wr, &bad) == 0);
	poll_ok(b->cq, 8);
	CHECK(ibv_resize_cq(a->cq, 1000) == 0 && allocated[(uint32_t)MLX5DV_RES_TYPE_CQ] == before + ours);
	poll_ok(a->cq, 7);
	exchange(b, a);
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_CQ) == 0 && raw_cq.cqe_cnt == 1024 && is_ours(raw_cq.buf) == ours);
	if (ours)
		CHECK(ibv_dealloc_pd(domain) == EBUSY);
	CHECK(ibv_destroy_wq(wq) == 0 && ibv_destroy_srq(srq) == 0);
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0 && ibv_destroy_cq(a->cq) == 0);
	a->cq = own;
}

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_parent_domain_init_attr attr = {
		.pd = a.pd,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.free = release,
		.pd_context = &pd_context,
	};
	errno = 0;
	CHECK(ibv_alloc_parent_domain(a.context, &attr) == NULL && errno == EINVAL);
	attr.alloc = allocate;
	CHECK(domain = ibv_alloc_parent_domain(a.context, &attr));
	CHECK(ibv_dealloc_pd(a.pd) == EBUSY);

	mode = ALLOCATE;
	use(&a, &b);
	for (int i = 1; i < TYPES; i++)
		CHECK(allocated[i] > 0 && allocated[i] == freed[i]);
	mode = DEFAULT;
	int before = allocated[1];
	use(&a, &b);
	CHECK(allocated[1] == before);

	struct ibv_qp_init_attr_ex qp = qp_attr(&a, IBV_QPT_RC);
	struct ibv_srq_init_attr srq = { .attr = { .max_wr = 10, .max_sge = 1 } };
	qp.pd = domain;
	mode = FAIL;
	errno = 0;
	CHECK(make_cq(&a) == NULL && errno == ENOMEM);
	errno = 0;
	CHECK(ibv_create_qp_ex(a.context, &qp) == NULL && errno == ENOMEM);
	errno = 0;
	CHECK(ibv_create_srq(domain, &srq) == NULL && errno == ENOMEM);
	/* Memory that is not aligned is freed again. */
	mode = MISALIGN;
	errno = 0;
	CHECK(make_cq(&a) == NULL && errno == EINVAL);
	errno = 0;
	CHECK(ibv_create_qp_ex(a.context, &qp) == NULL && errno == EINVAL);
	for (int i = 1; i < TYPES; i++)
		CHECK(allocated[i] == freed[i]);

	CHECK(ibv_dealloc_pd(domain) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
