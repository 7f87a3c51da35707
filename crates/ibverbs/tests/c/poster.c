/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A queue pair to which another process posts, as a GPU or a DPU does. The owner creates the objects with their queues and doorbell
 * records in shared memory. The poster is a process that has that memory and a description, and no object: it writes
 * WQEs, the doorbell record and a doorbell, and reads completions.
 *
 * The registers of the software device are memory of the owner, so the poster writes its doorbells to a word that a thread
 * of the owner passes on: the way of posters that cannot map the register ("CPU proxy").
 */
#define _GNU_SOURCE
#include "direct.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20, QUEUES = 8192, DATA = 4096, MESSAGES = 5 * DEPTH, LENGTH = 8 };

/* The beginning of the shared memory. Places are offsets, because the two processes map it at different addresses. */
struct shared {
	uint64_t bell;
	uint32_t stopped;
	uint32_t sq, sq_blocks, qp_record, qpn;
	uint32_t cq, cqes, cqe_size, cq_record;
	uint32_t lkey;
	/* The address of the data for the device: that of the owner. */
	uint64_t data;
};

static struct shared *shared;
static uint32_t used = QUEUES;

static void *map(int fd)
{
	void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(memory != MAP_FAILED);
	return memory;
}

/* --- The poster --- */

static int post(int fd, int ends_early)
{
	shared = map(fd);
	char *base = (char *)shared;
	struct hand hand = { 0 };
	hand.qp.sq.buf = base + shared->sq;
	hand.qp.sq.wqe_cnt = shared->sq_blocks;
	hand.qp.sq.stride = 64;
	hand.qp.dbrec = (void *)(base + shared->qp_record);
	hand.qp.bf.reg = &shared->bell;
	hand.cq.buf = base + shared->cq;
	hand.cq.cqe_cnt = shared->cqes;
	hand.cq.cqe_size = shared->cqe_size;
	hand.cq.dbrec = (void *)(base + shared->cq_record);
	for (uint32_t i = 0; i < MESSAGES; i++) {
		uint64_t message = i * 3 + 1;
		memcpy(base + DATA, &message, sizeof(message));
		send_by_hand(&hand, shared->qpn, (void *)(uintptr_t)shared->data, LENGTH, shared->lkey);
		struct mlx5_cqe64 *cqe = poll_by_hand(&hand);
		CHECK(cqe->op_own >> 4 == MLX5_CQE_REQ && be16toh(cqe->wqe_counter) == i);
		if (ends_early && i == DEPTH)
			_exit(0);
	}
	/* An error is a completion, too. One that waits for MLX5_CQE_REQ only would wait for ever. */
	send_by_hand(&hand, shared->qpn, (void *)(uintptr_t)shared->data, LENGTH, shared->lkey ^ 0x100);
	struct mlx5_cqe64 *cqe = poll_by_hand(&hand);
	CHECK(cqe->op_own >> 4 == MLX5_CQE_REQ_ERR);
	CHECK(((struct mlx5_err_cqe *)cqe)->syndrome == MLX5_CQE_SYNDROME_LOCAL_PROT_ERR);
	return 0;
}

/* --- The owner --- */

static void *allocate(struct ibv_pd *pd, void *context, size_t size, size_t alignment, uint64_t type)
{
	(void)pd, (void)context, (void)type;
	used = (used + alignment - 1) / alignment * alignment;
	void *memory = (char *)shared + used;
	used += size;
	CHECK(used <= BYTES);
	return memory;
}

static void release(struct ibv_pd *pd, void *context, void *memory, uint64_t type)
{
	(void)pd, (void)context, (void)memory, (void)type;
}

static void *pass_on(void *reg)
{
	while (!__atomic_load_n(&shared->stopped, __ATOMIC_RELAXED)) {
		uint64_t value = __atomic_exchange_n(&shared->bell, 0, __ATOMIC_ACQUIRE);
		if (value)
			__atomic_store_n((uint64_t *)reg, value, __ATOMIC_RELEASE);
		else
			usleep(10);
	}
	return NULL;
}

static uint32_t place(const void *at)
{
	CHECK((const char *)at > (char *)shared && (const char *)at < (char *)shared + BYTES);
	return (const char *)at - (char *)shared;
}

static void own(const char *program, int ends_early)
{
	int fd = memfd_create("queues", 0);
	CHECK(fd >= 0 && ftruncate(fd, BYTES) == 0);
	shared = map(fd);
	used = QUEUES;
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_mr *data = ibv_reg_mr(a.pd, (char *)shared + DATA, LENGTH, 0);
	struct ibv_parent_domain_init_attr domain_attr = {
		.pd = a.pd,
		.alloc = allocate,
		.free = release,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS,
	};
	struct ibv_pd *domain = ibv_alloc_parent_domain(a.context, &domain_attr);
	CHECK(data && domain);
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 2 * DEPTH,
		.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
		.parent_domain = domain,
	};
	struct ibv_cq *own_cq = a.cq;
	CHECK(a.cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(a.context, &cq_attr)));
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC), peer = qp_attr(&b, IBV_QPT_RC);
	attr.pd = domain;
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	CHECK(b.qp = ibv_create_qp_ex(b.context, &peer));
	connect_ends(&a, &b);
	/* From here on the queue and its completions are the poster's. */
	struct hand hand;
	take(&hand, &a);
	shared->sq = place(hand.qp.sq.buf);
	shared->sq_blocks = hand.qp.sq.wqe_cnt;
	shared->qp_record = place(hand.qp.dbrec);
	shared->qpn = a.qp->qp_num;
	shared->cq = place(hand.cq.buf);
	shared->cqes = hand.cq.cqe_cnt;
	shared->cqe_size = hand.cq.cqe_size;
	shared->cq_record = place(hand.cq.dbrec);
	shared->lkey = data->lkey;
	shared->data = (uintptr_t)shared + DATA;
	for (uint32_t i = 0; i < DEPTH; i++)
		post_recv(&b, i, 0, LENGTH);
	pthread_t proxy;
	CHECK(pthread_create(&proxy, NULL, pass_on, hand.qp.bf.reg) == 0);

	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		char number[16];
		snprintf(number, sizeof(number), "%d", fd);
		execl(program, program, number, ends_early ? "early" : "all", NULL);
		_exit(127);
	}
	uint32_t expected = ends_early ? DEPTH + 1 : MESSAGES;
	for (uint32_t i = 0; i < expected; i++) {
		uint64_t message;
		poll_ok(b.cq, i % DEPTH);
		memcpy(&message, b.buf, sizeof(message));
		/* Later messages may have come already. */
		CHECK(message >= i * 3 + 1 && message % 3 == 1);
		post_recv(&b, i % DEPTH, 0, LENGTH);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	shared->stopped = 1;
	CHECK(pthread_join(proxy, NULL) == 0);
	/* The queue pair and its completions end as any others; the memory is the program's until then. */
	struct ibv_qp_attr now;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(a.qp, &now, IBV_QP_STATE, &init) == 0);
	CHECK(now.qp_state == (ends_early ? IBV_QPS_RTS : IBV_QPS_ERR));
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_cq(a.cq) == 0 && ibv_dealloc_pd(domain) == 0);
	CHECK(ibv_dereg_mr(data) == 0);
	a.cq = own_cq;
	a.qp = NULL;
	CHECK(ibv_destroy_cq(a.cq) == 0 && ibv_destroy_comp_channel(a.channel) == 0 && ibv_dereg_mr(a.mr) == 0);
	CHECK(ibv_dealloc_pd(a.pd) == 0 && ibv_close_device(a.context) == 0);
	CHECK(ibv_destroy_qp(b.qp) == 0);
	close_end(&b);
	CHECK(munmap(shared, BYTES) == 0 && close(fd) == 0);
}

int main(int count, char **arguments)
{
	if (count == 3)
		return post(atoi(arguments[1]), strcmp(arguments[2], "early") == 0);
	own(arguments[0], 0);
	/* A poster that ends between two messages. */
	own(arguments[0], 1);
	return 0;
}
