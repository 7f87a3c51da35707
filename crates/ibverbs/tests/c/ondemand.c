/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* On-demand paging: regions whose pages come and go, and one that is the whole address space. */
#include "common.h"
#include <sys/mman.h>

enum { PAGES = 4, PAGE = 4096, LENGTH = PAGES * PAGE };

static struct end a, b;
static const int all_rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			      IBV_ACCESS_REMOTE_ATOMIC;

static void connect_new(void)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC), peer = qp_attr(&b, IBV_QPT_RC);
	attr.cap.max_inline_data = 0;
	CHECK((a.qp = ibv_create_qp_ex(a.context, &attr)) && (b.qp = ibv_create_qp_ex(b.context, &peer)));
	connect_ends(&a, &b);
}

static void disconnect(void)
{
	struct ibv_wc wc;
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	CHECK(ibv_poll_cq(a.cq, 1, &wc) == 0 && ibv_poll_cq(b.cq, 1, &wc) == 0);
}

/* A request with one entry; the status of its completion. */
static enum ibv_wc_status run(enum ibv_wr_opcode opcode, void *local, uint32_t length, uint32_t lkey, void *remote,
			      uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)local, length, lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { (uintptr_t)remote, rkey },
	}, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote;
		wr.wr.atomic.compare_add = 5;
		wr.wr.atomic.rkey = rkey;
	}
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	return poll_one(a.cq).status;
}

static int advise(struct ibv_pd *pd, enum ib_uverbs_advise_mr_advice advice, void *at, uint32_t length, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)at, length, lkey };
	return ibv_advise_mr(pd, advice, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1);
}

/* Pages that nobody has touched, that are unmapped, and that are mapped again. */
static void region(void)
{
	connect_new();
	char *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	struct ibv_mr *mr = ibv_reg_mr(b.pd, memory, LENGTH, all_rights | IBV_ACCESS_ON_DEMAND);
	CHECK(mr);
	memset(a.buf, 7, 512);
	CHECK(run(IBV_WR_RDMA_WRITE, a.buf, 512, a.mr->lkey, memory + PAGE - 256, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(memcmp(memory + PAGE - 256, a.buf, 512) == 0 && memory[0] == 0);
	CHECK(run(IBV_WR_ATOMIC_FETCH_AND_ADD, a.buf, 8, a.mr->lkey, memory + 3 * PAGE, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(*(uint64_t *)(memory + 3 * PAGE) == 5 && *(uint64_t *)a.buf == 0);
	CHECK(advise(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, memory, LENGTH, mr->lkey) == 0);
	CHECK(advise(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, memory, LENGTH + 1, mr->lkey) == EFAULT);
	CHECK(advise(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, b.buf, 8, b.mr->lkey) == ENOENT);

	CHECK(munmap(memory + PAGE, PAGE) == 0);
	CHECK(run(IBV_WR_RDMA_WRITE, a.buf, 512, a.mr->lkey, memory + 2 * PAGE, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(advise(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH, memory, LENGTH, mr->lkey) == EFAULT);
	CHECK(advise(b.pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, memory, LENGTH, mr->lkey) == 0);
	CHECK(run(IBV_WR_RDMA_READ, a.buf, 512, a.mr->lkey, memory + PAGE, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
	disconnect();
	connect_new();
	CHECK(mmap(memory + PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
	      memory + PAGE);
	memset(memory + PAGE, 9, 512);
	CHECK(run(IBV_WR_RDMA_READ, a.buf, 512, a.mr->lkey, memory + PAGE, mr->rkey) == IBV_WC_SUCCESS);
	CHECK(memcmp(memory + PAGE, a.buf, 512) == 0);
	disconnect();
	CHECK(ibv_dereg_mr(mr) == 0 && munmap(memory, LENGTH) == 0);
}

/* One region on each side is everything. */
static void address_space(void)
{
	connect_new();
	errno = 0;
	CHECK(ibv_reg_mr(a.pd, NULL, SIZE_MAX, all_rights) == NULL);
	struct ibv_mr *near = ibv_reg_mr(a.pd, NULL, SIZE_MAX, all_rights | IBV_ACCESS_ON_DEMAND);
	struct ibv_mr *far = ibv_reg_mr(b.pd, NULL, SIZE_MAX, all_rights | IBV_ACCESS_ON_DEMAND);
	CHECK(near && far);
	char on_stack[100], *on_heap = malloc(100);
	static char in_data[100];
	memset(on_stack, 3, sizeof(on_stack));
	CHECK(run(IBV_WR_RDMA_WRITE, on_stack, 100, near->lkey, on_heap, far->rkey) == IBV_WC_SUCCESS);
	CHECK(memcmp(on_stack, on_heap, 100) == 0);
	CHECK(run(IBV_WR_RDMA_READ, in_data, 100, near->lkey, on_heap, far->rkey) == IBV_WC_SUCCESS);
	CHECK(memcmp(in_data, on_heap, 100) == 0);
	/* A page that is not mapped: the local fault is found first. */
	char *page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED && munmap(page, PAGE) == 0);
	CHECK(run(IBV_WR_RDMA_WRITE, page, 100, near->lkey, on_heap, far->rkey) == IBV_WC_LOC_PROT_ERR);
	disconnect();
	connect_new();
	CHECK(run(IBV_WR_RDMA_WRITE, on_stack, 100, near->lkey, page, far->rkey) == IBV_WC_REM_ACCESS_ERR);
	disconnect();
	free(on_heap);
	CHECK(ibv_dereg_mr(near) == 0 && ibv_dereg_mr(far) == 0);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_device_attr_ex attr;
	CHECK(ibv_query_device_ex(a.context, NULL, &attr) == 0);
	CHECK(attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_ATOMIC);
	CHECK(attr.xrc_odp_caps & IBV_ODP_SUPPORT_SRQ_RECV);
	region();
	address_space();
	close_end(&a);
	close_end(&b);
	return 0;
}
