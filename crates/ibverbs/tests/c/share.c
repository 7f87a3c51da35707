/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Export and import of memory for commands, and of the objects that commands create (mlx5dv_devx_umem_export(3)), in the same
 * context and in one that shares its resources. */
#include "common.h"
#include <infiniband/mlx5dv.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

/* Newer than the header of rdma-core 44. */
struct sizes {
	uint32_t var, umem, object;
};
void get_sizes(struct sizes *sizes, size_t len) __asm__("_mlx5dv_get_export_sizes");
int export_umem(struct mlx5dv_devx_umem *umem, void *data) __asm__("mlx5dv_devx_umem_export");
struct mlx5dv_devx_umem *import_umem(struct ibv_context *context, void *data) __asm__("mlx5dv_devx_umem_import");
void unimport_umem(struct mlx5dv_devx_umem *umem) __asm__("mlx5dv_devx_umem_unimport");
int export_object(struct mlx5dv_devx_obj *object, void *data) __asm__("mlx5dv_devx_obj_export");
struct mlx5dv_devx_obj *import_object(struct ibv_context *context, void *data) __asm__("mlx5dv_devx_obj_import");
void unimport_object(struct mlx5dv_devx_obj *object) __asm__("mlx5dv_devx_obj_unimport");
struct mlx5dv_var *import_var(struct ibv_context *context, void *data) __asm__("mlx5dv_var_import");
int export_var(struct mlx5dv_var *var, void *data) __asm__("mlx5dv_var_export");
void unimport_var(struct mlx5dv_var *var) __asm__("mlx5dv_var_unimport");

enum { QUERY_CQ = 0x402, ALLOC_PD = 0x800, NOP = 0x80d };

static char memory[8192] __attribute__((aligned(4096))), command[16], answer[16];
static char umem_record[64], object_record[64];
static struct ibv_context *copy;

static struct mlx5dv_devx_umem *new_umem(struct ibv_context *context)
{
	return mlx5dv_devx_umem_reg(context, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
}

static void imported(struct ibv_context *owner, struct ibv_context *other)
{
	struct sizes sizes = { 0 };
	get_sizes(&sizes, sizeof(sizes));
	CHECK(sizes.umem && sizes.umem <= 64 && sizes.object && sizes.object <= 64 && sizes.var && sizes.var <= 64);
	struct mlx5dv_devx_umem *umem = new_umem(owner), *same;
	CHECK(umem);
	memset(umem_record, 0x5a, sizeof(umem_record));
	CHECK(export_umem(umem, umem_record) == 0 && umem_record[sizes.umem] == 0x5a);
	CHECK((same = import_umem(other, umem_record)) && same != umem && same->umem_id == umem->umem_id);
	unimport_umem(same);
	/* Either of them deregisters it, once. */
	CHECK(same = import_umem(other, umem_record));
	CHECK(mlx5dv_devx_umem_dereg(same) == 0 && mlx5dv_devx_umem_dereg(umem) != 0);
	unimport_umem(umem);

	_devx_set(command, ALLOC_PD, 0, 16);
	struct mlx5dv_devx_obj *pd = mlx5dv_devx_obj_create(owner, command, 16, answer, 16), *again;
	CHECK(pd && export_object(pd, object_record) == 0 && (again = import_object(other, object_record)));
	_devx_set(command, QUERY_CQ, 0, 16);
	CHECK(mlx5dv_devx_obj_query(again, command, 16, answer, 16) == EINVAL);
	unimport_object(again);
	CHECK((again = import_object(other, object_record)) && mlx5dv_devx_obj_destroy(pd) == 0);
	CHECK(mlx5dv_devx_obj_destroy(again) != 0);
	unimport_object(again);
}

/* A record of another kind, or of none. */
static void refused(struct ibv_context *context)
{
	char garbage[64] = "garbage";
	struct mlx5dv_devx_umem *umem = new_umem(context);
	CHECK(umem && export_umem(umem, umem_record) == 0);
	errno = 0;
	CHECK(!import_object(context, umem_record) && errno == EINVAL && !import_umem(context, object_record));
	CHECK(!import_umem(context, garbage) && !import_object(context, garbage) && !import_var(context, garbage));
	CHECK(mlx5dv_devx_umem_dereg(umem) == 0);
}

/* Imports and ends imports of memory that another thread deregisters. */
static void *import(void *context)
{
	for (int i = 0; i < 500; i++) {
		struct mlx5dv_devx_umem *umem = import_umem(context, umem_record);
		CHECK(umem);
		if (i % 3 || mlx5dv_devx_umem_dereg(umem))
			unimport_umem(umem);
	}
	return NULL;
}

static void threads(struct ibv_context *owner)
{
	pthread_t thread;
	struct mlx5dv_devx_umem *umem = new_umem(owner);
	CHECK(umem && export_umem(umem, umem_record) == 0);
	CHECK(pthread_create(&thread, NULL, import, copy) == 0);
	for (int i = 0; i < 200; i++) {
		if (mlx5dv_devx_umem_dereg(umem))
			unimport_umem(umem);
		CHECK(umem = new_umem(owner));
	}
	CHECK(pthread_join(thread, NULL) == 0);
	if (mlx5dv_devx_umem_dereg(umem))
		unimport_umem(umem);

	/* The end of an import in a child is not the parent's. */
	CHECK((umem = new_umem(owner)) && export_umem(umem, umem_record) == 0);
	pid_t child = fork();
	if (child == 0) {
		struct mlx5dv_devx_umem *here = import_umem(copy, umem_record);
		if (here)
			unimport_umem(here);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0 && mlx5dv_devx_umem_dereg(umem) == 0);
}

int main(void)
{
	struct ibv_context *context = open_hca(0);
	CHECK(copy = ibv_import_device(dup(context->cmd_fd)));
	imported(context, context);
	imported(context, copy);
	imported(copy, context);
	refused(context);
	threads(context);
	CHECK(ibv_close_device(copy) == 0 && ibv_close_device(context) == 0);
	return 0;
}
