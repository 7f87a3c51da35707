/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Conflicts of the newer objects (commands for the firmware, memory and channels for them, imported objects, counters, device
 * memory): threads that use an object while others try to destroy it or its parents, children of fork(2), and devices that are
 * closed while the objects exist. */
#define _GNU_SOURCE
#include "common.h"
#include <dirent.h>
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Later headers declare these. */
void *any_reg_dmabuf_mr() __asm__("mlx5dv_reg_dmabuf_mr");
int any_uar_export() __asm__("mlx5dv_devx_uar_export_dmabuf_fd");
int any_dm_export() __asm__("ibv_dm_export_dmabuf_fd");

enum { CREATE_CQ = 0x400, QUERY_CQ = 0x402, ALLOC_PD = 0x800, COMPLETION = 0, USERS = 3, ROUNDS = 100, CQ_BYTES = 16 * 64 };

static struct end a, b;
static atomic_int over, used;

static int count_fds(void)
{
	int n = 0;
	DIR *dir = opendir("/proc/self/fd");
	CHECK(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

struct command {
	char in[0x200] __attribute__((aligned(8)));
	char out[256] __attribute__((aligned(8)));
};

/* All objects that a program with commands has: a queue in registered memory, its page, and a channel for its events. */
struct objects {
	struct ibv_context *context;
	char *bytes;
	struct mlx5dv_devx_umem *umem;
	struct mlx5dv_devx_uar *uar;
	struct mlx5dv_devx_obj *cq, *pd;
	struct mlx5dv_devx_event_channel *events;
	struct mlx5dv_devx_cmd_comp *answers;
	struct ibv_counters *counters;
	struct ibv_dm *dm;
	uint32_t cqn;
};

static void create(struct objects *o, struct ibv_context *context)
{
	struct command c = { 0 };
	uint32_t eqn;
	uint16_t type = COMPLETION;
	memset(o, 0, sizeof(*o));
	o->context = context;
	CHECK(o->bytes = aligned_alloc(4096, 4096));
	memset(o->bytes, 0, 4096);
	CHECK(o->umem = mlx5dv_devx_umem_reg(context, o->bytes, 4096, IBV_ACCESS_LOCAL_WRITE));
	CHECK(o->uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC));
	CHECK(mlx5dv_devx_query_eqn(context, 0, &eqn) == 0);
	_devx_set(c.in, CREATE_CQ, 0, 16);
	_devx_set(c.in, o->umem->umem_id, 0x2c0, 32);
	_devx_set(c.in, 1, 0x2e0, 1);
	char *cqc = c.in + 0x10;
	_devx_set(cqc, 1, 6, 1);
	_devx_set(cqc, o->umem->umem_id, 0x20, 32);
	_devx_set(cqc, 4, 0x63, 5);
	_devx_set(cqc, o->uar->page_id, 0x68, 24);
	_devx_set(cqc, eqn, 0xb8, 8);
	_devx_set64(cqc, CQ_BYTES, 0x1c0);
	CHECK(o->cq = mlx5dv_devx_obj_create(context, c.in, 0x110, c.out, 16));
	o->cqn = _devx_get(c.out, 0x48, 24);
	memset(&c, 0, sizeof(c));
	_devx_set(c.in, ALLOC_PD, 0, 16);
	CHECK(o->pd = mlx5dv_devx_obj_create(context, c.in, 16, c.out, 16));
	CHECK(o->events = mlx5dv_devx_create_event_channel(context, 0));
	CHECK(mlx5dv_devx_subscribe_devx_event(o->events, o->cq, sizeof(type), &type, 7) == 0);
	CHECK(o->answers = mlx5dv_devx_create_cmd_comp(context));
	CHECK(o->counters = ibv_create_counters(context, &(struct ibv_counters_init_attr){ 0 }));
	CHECK(o->dm = ibv_alloc_dm(context, &(struct ibv_alloc_dm_attr){ .length = 4096 }));
}

static void destroy(struct objects *o)
{
	mlx5dv_devx_destroy_event_channel(o->events);
	mlx5dv_devx_destroy_cmd_comp(o->answers);
	CHECK(mlx5dv_devx_obj_destroy(o->cq) == 0 && mlx5dv_devx_obj_destroy(o->pd) == 0);
	CHECK(mlx5dv_devx_umem_dereg(o->umem) == 0);
	mlx5dv_devx_free_uar(o->uar);
	CHECK(ibv_destroy_counters(o->counters) == 0 && ibv_free_dm(o->dm) == 0);
	free(o->bytes);
}

static int query(struct objects *o)
{
	struct command c = { 0 };
	_devx_set(c.in, QUERY_CQ, 0, 16);
	_devx_set(c.in, o->cqn, 0x48, 24);
	int error = mlx5dv_devx_obj_query(o->cq, c.in, 16, c.out, 80);
	CHECK(error || _devx_get(c.out + 0x10, 0x63, 5) == 4);
	return error;
}

/* Queries the queue, also in the background, copies to device memory, and reads the answers. */
static void *use(void *of)
{
	struct objects *o = of;
	while (!over) {
		struct command c = { 0 };
		CHECK(query(o) == 0);
		_devx_set(c.in, QUERY_CQ, 0, 16);
		_devx_set(c.in, o->cqn, 0x48, 24);
		CHECK(mlx5dv_devx_obj_query_async(o->cq, c.in, 16, 80, 5, o->answers) == 0);
		union {
			struct mlx5dv_devx_async_cmd_hdr header;
			char bytes[sizeof(struct mlx5dv_devx_async_cmd_hdr) + 80];
		} answer;
		CHECK(mlx5dv_devx_get_async_cmd_comp(o->answers, &answer.header, sizeof(answer)) == 0);
		CHECK(answer.header.wr_id == 5);
		char text[16] = "device memory";
		CHECK(ibv_memcpy_to_dm(o->dm, 64, text, sizeof(text)) == 0);
		CHECK(ibv_memcpy_from_dm(text, o->dm, 64, sizeof(text)) == 0);
		atomic_fetch_add(&used, 1);
	}
	return NULL;
}

/* What is in use is not destroyed while other threads use it; a refusal changes nothing. */
static void parents_are_refused(void)
{
	struct objects o;
	create(&o, a.context);
	struct ibv_mr *mr = ibv_reg_dm_mr(a.pd, o.dm, 0, 4096, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	pthread_t users[USERS];
	over = used = 0;
	for (int i = 0; i < USERS; i++)
		CHECK(pthread_create(&users[i], NULL, use, &o) == 0);
	for (int i = 0; i < ROUNDS || used < ROUNDS; i++) {
		CHECK(mlx5dv_devx_umem_dereg(o.umem) == EBUSY);
		CHECK(ibv_free_dm(o.dm) == EBUSY);
		CHECK(ibv_dealloc_pd(a.pd) == EBUSY);
		/* Objects of its own. */
		struct objects other;
		create(&other, a.context);
		CHECK(query(&other) == 0);
		destroy(&other);
	}
	over = 1;
	for (int i = 0; i < USERS; i++)
		CHECK(pthread_join(users[i], NULL) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	destroy(&o);
}

/* Imports objects of `a`, sends from the imported region, and ends the imports. */
static void *import(void *which)
{
	struct ibv_context *copy = ibv_import_device(dup(a.context->cmd_fd));
	CHECK(copy);
	for (int i = 0; i < ROUNDS; i++) {
		struct ibv_pd *pd = ibv_import_pd(copy, a.pd->handle);
		CHECK(pd);
		struct ibv_mr *mr = ibv_import_mr(pd, a.mr->handle);
		CHECK(mr && mr->lkey == a.mr->lkey);
		struct ibv_cq *cq = ibv_create_cq(copy, 4, NULL, NULL, 0);
		CHECK(cq);
		struct end end = { .context = copy, .pd = pd, .cq = cq };
		struct ibv_qp_init_attr_ex attr = qp_attr(&end, IBV_QPT_RC);
		struct ibv_qp *qp = ibv_create_qp_ex(copy, &attr);
		CHECK(qp && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
		ibv_unimport_mr(mr);
		ibv_unimport_pd(pd);
		atomic_fetch_add(&used, 1);
		(void)which;
	}
	CHECK(ibv_close_device(copy) == 0);
	return NULL;
}

/* The owner uses the objects, and an object that it has destroyed is not imported any more. */
static void imports_beside_the_owner(void)
{
	pthread_t users[USERS];
	used = 0;
	for (int i = 0; i < USERS; i++)
		CHECK(pthread_create(&users[i], NULL, import, NULL) == 0);
	struct ibv_context *copy = ibv_import_device(dup(a.context->cmd_fd));
	CHECK(copy);
	while (used < USERS * ROUNDS) {
		static char bytes[4096] __attribute__((aligned(4096)));
		struct ibv_mr *mr = ibv_reg_mr(a.pd, bytes, sizeof(bytes), 0), *same;
		struct ibv_dm *dm = ibv_alloc_dm(a.context, &(struct ibv_alloc_dm_attr){ .length = 64 }), *memory;
		struct ibv_pd *pd = ibv_import_pd(copy, a.pd->handle);
		CHECK(mr && dm && pd && (same = ibv_import_mr(pd, mr->handle)) && (memory = ibv_import_dm(copy, dm->handle)));
		uint32_t number = mr->handle;
		CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0);
		CHECK(ibv_dealloc_pd(a.pd) == EBUSY);
		/* Another thread's region may have got its number. */
		struct ibv_mr *gone = ibv_import_mr(pd, number);
		CHECK(gone || errno == ENOENT);
		if (gone)
			ibv_unimport_mr(gone);
		ibv_unimport_dm(memory);
		ibv_unimport_mr(same);
		ibv_unimport_pd(pd);
	}
	CHECK(ibv_close_device(copy) == 0);
	for (int i = 0; i < USERS; i++)
		CHECK(pthread_join(users[i], NULL) == 0);
}

/* A child destroys its copies of all objects, and uses some: those of the parent stay. */
static void children(void)
{
	struct objects o;
	create(&o, a.context);
	struct ibv_context *copy = ibv_import_device(dup(a.context->cmd_fd));
	CHECK(copy);
	struct ibv_pd *pd = ibv_import_pd(copy, a.pd->handle);
	struct ibv_mr *mr = ibv_import_mr(pd, a.mr->handle);
	struct ibv_dm *dm = ibv_import_dm(copy, o.dm->handle);
	CHECK(pd && mr && dm);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(query(&o) != 0);
		errno = 0;
		CHECK(!ibv_create_counters(a.context, &(struct ibv_counters_init_attr){ 0 }) && errno == ESTALE);
		CHECK(!ibv_import_pd(copy, a.pd->handle));
		ibv_unimport_dm(dm);
		ibv_unimport_mr(mr);
		ibv_unimport_pd(pd);
		destroy(&o);
		ibv_close_device(copy);
		ibv_close_device(a.context);
		exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(query(&o) == 0 && mlx5dv_devx_umem_dereg(o.umem) == EBUSY);
	char text[16] = "of the parent", read[16];
	CHECK(ibv_memcpy_to_dm(o.dm, 0, text, 16) == 0 && ibv_memcpy_from_dm(read, dm, 0, 16) == 0);
	CHECK(memcmp(text, read, 16) == 0);
	ibv_unimport_dm(dm);
	ibv_unimport_mr(mr);
	ibv_unimport_pd(pd);
	CHECK(ibv_close_device(copy) == 0);
	destroy(&o);
}

/* Devices are closed with all objects alive, in several threads. No file stays open. */
static void *close_with_objects(void *index)
{
	for (int i = 0; i < ROUNDS / 10; i++) {
		struct objects o;
		struct ibv_context *context = open_hca((intptr_t)index % 2), *copy;
		create(&o, context);
		CHECK(copy = ibv_import_device(dup(context->cmd_fd)));
		CHECK(ibv_import_dm(copy, o.dm->handle));
		mlx5dv_devx_destroy_event_channel(o.events);
		mlx5dv_devx_destroy_cmd_comp(o.answers);
		/* The device is closed by the last of its contexts. */
		CHECK(ibv_close_device(i % 2 ? copy : context) == 0);
		CHECK(ibv_close_device(i % 2 ? context : copy) == 0);
	}
	return NULL;
}

/* Regions of a file, which stands for a DMA-BUF here; the software HCA has no function for direct data transfers, and exports
 * nothing. */
static void buffers(void)
{
	int fd = memfd_create("buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(fd >= 0 && ftruncate(fd, 8192) == 0);
	/* As the size of a DMA-BUF, that of the file cannot change. */
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	uint64_t zero = 0;
	size_t length = 4096;
	struct ibv_mr *mr = any_reg_dmabuf_mr(a.pd, zero, length, zero, fd, IBV_ACCESS_LOCAL_WRITE, 0);
	CHECK(mr && mr->length == length && ibv_dereg_mr(mr) == 0);
	for (int flags = 1; flags <= 2; flags++) {
		errno = 0;
		CHECK(!any_reg_dmabuf_mr(a.pd, zero, length, zero, fd, IBV_ACCESS_LOCAL_WRITE, flags) && errno == EOPNOTSUPP);
	}
	errno = 0;
	CHECK(!any_reg_dmabuf_mr(NULL, zero, length, zero, fd, 0, 0) && errno == EINVAL);
	errno = 0;
	CHECK(!any_reg_dmabuf_mr(a.pd, zero, length, zero, -1, 0, 0) && errno == EBADF);
	close(fd);

	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(a.context, MLX5DV_UAR_ALLOC_TYPE_NC);
	struct ibv_dm *dm = ibv_alloc_dm(a.context, &(struct ibv_alloc_dm_attr){ .length = 64 });
	CHECK(uar && dm);
	errno = 0;
	CHECK(any_uar_export(uar) == -1 && errno == EOPNOTSUPP);
	errno = 0;
	CHECK(any_dm_export(dm) == -1 && errno == EOPNOTSUPP);
	errno = 0;
	CHECK(any_uar_export(NULL) == -1 && errno == EINVAL);
	CHECK(ibv_free_dm(dm) == 0);
	mlx5dv_devx_free_uar(uar);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	buffers();
	parents_are_refused();
	imports_beside_the_owner();
	children();
	int before = count_fds();
	pthread_t closers[USERS];
	for (intptr_t i = 0; i < USERS; i++)
		CHECK(pthread_create(&closers[i], NULL, close_with_objects, (void *)i) == 0);
	for (int i = 0; i < USERS; i++)
		CHECK(pthread_join(closers[i], NULL) == 0);
	/* The device closes its ends of the channels of `a` some time after they were destroyed. */
	CHECK(count_fds() <= before);
	close_end(&a);
	close_end(&b);
	return 0;
}
