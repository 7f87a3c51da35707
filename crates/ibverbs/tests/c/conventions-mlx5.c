/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The failure of each function of libmlx5 that is implemented: it returns the errno, NULL or -1, and sets errno. All
 * pointers are NULL; then the context is open, and all others are NULL. */
#include "common.h"
#include <infiniband/mlx5dv.h>

/* Functions that the header of some version lacks, under names that no header has. */
#define NUMBER(name) int any_##name() __asm__(#name)
NUMBER(_mlx5dv_query_port);
NUMBER(mlx5dv_dci_stream_id_reset);
NUMBER(mlx5dv_map_ah_to_qp);
NUMBER(mlx5dv_get_data_direct_sysfs_path);
NUMBER(_mlx5dv_get_export_sizes);

NUMBER(mlx5dv_devx_uar_export_dmabuf_fd);
NUMBER(mlx5dv_devx_obj_export);
NUMBER(mlx5dv_devx_obj_unimport);
NUMBER(mlx5dv_devx_umem_export);
NUMBER(mlx5dv_devx_umem_unimport);
NUMBER(mlx5dv_var_export);
NUMBER(mlx5dv_var_unimport);
/* Functions that return a pointer. */
void *any_mlx5dv_reg_dmabuf_mr() __asm__("mlx5dv_reg_dmabuf_mr");
void *any___mlx5dv_create_flow() __asm__("__mlx5dv_create_flow");
void *any_mlx5dv_devx_obj_import() __asm__("mlx5dv_devx_obj_import");
void *any_mlx5dv_devx_umem_import() __asm__("mlx5dv_devx_umem_import");
void *any_mlx5dv_var_import() __asm__("mlx5dv_var_import");

#define RETURNS(number, call) CHECK((errno = 0, call) == (number) && errno == abs(number))
#define SETS(result, number, call) CHECK((errno = 0, (call) == (result)) && errno == (number))
#define IS_NULL(number, call) SETS(NULL, number, (void *)(call))
#define RETURNS_NOTHING(call) (call)

/* The functions of a context, with an open context or NULL. */
static void of_context(struct ibv_context *context)
{
	void *null = NULL;
	RETURNS(EINVAL, mlx5dv_query_device(context, null));
	RETURNS(EINVAL, mlx5dv_get_clock_info(context, null));
	IS_NULL(EINVAL, mlx5dv_create_cq(context, null, null));
	IS_NULL(EINVAL, mlx5dv_create_qp(context, null, null));
	struct mlx5dv_mkey_err mkey_err;
	IS_NULL(EINVAL, mlx5dv_create_mkey(null));
	RETURNS(EINVAL, mlx5dv_destroy_mkey(null));
	RETURNS(EINVAL, _mlx5dv_mkey_check(null, &mkey_err, sizeof(mkey_err)));
	RETURNS(-EINVAL, mlx5dv_qp_cancel_posted_send_wrs(null, 0));
	IS_NULL(EINVAL, mlx5dv_alloc_dm(context, null, null));
	IS_NULL(EINVAL, mlx5dv_create_flow_matcher(context, null));
	IS_NULL(EINVAL, mlx5dv_devx_obj_create(context, null, 16, null, 16));
	RETURNS(EINVAL, mlx5dv_devx_general_cmd(context, null, 16, null, 16));
	IS_NULL(EINVAL, mlx5dv_devx_umem_reg_ex(context, null));
	RETURNS(EINVAL, mlx5dv_devx_query_eqn(context, 0, null));
	RETURNS(EINVAL, mlx5dv_reserved_qpn_alloc(context, null));
	RETURNS(EINVAL, mlx5dv_reserved_qpn_dealloc(context, 0));
	RETURNS(EINVAL, any__mlx5dv_query_port(context, 1, null, (size_t)8));
	RETURNS(EINVAL, any_mlx5dv_get_data_direct_sysfs_path(context, null, (size_t)8));
	IS_NULL(EINVAL, mlx5dv_pp_alloc(context, 8, null, 0));
	IS_NULL(EINVAL, any_mlx5dv_devx_obj_import(context, null));
	IS_NULL(EINVAL, any_mlx5dv_devx_umem_import(context, null));
	IS_NULL(EINVAL, any_mlx5dv_var_import(context, null));
	IS_NULL(EINVAL, mlx5dv_dr_domain_create(context, MLX5DV_DR_DOMAIN_TYPE_FDB + 1));
}

/* Export of objects, and steering by tables. */
static void of_objects(void *null)
{
	FILE *file = stdout;
	RETURNS(EINVAL, any_mlx5dv_devx_obj_export(null, null));
	RETURNS(EINVAL, any_mlx5dv_devx_umem_export(null, null));
	RETURNS(EINVAL, any_mlx5dv_var_export(null, null));
	RETURNS_NOTHING(any_mlx5dv_devx_obj_unimport(null));
	RETURNS_NOTHING(any_mlx5dv_devx_umem_unimport(null));
	RETURNS_NOTHING(any_mlx5dv_var_unimport(null));
	RETURNS(EINVAL, mlx5dv_dr_domain_destroy(null));
	RETURNS(EINVAL, mlx5dv_dr_domain_sync(null, 1));
	IS_NULL(EINVAL, mlx5dv_dr_table_create(null, 0));
	RETURNS(EINVAL, mlx5dv_dr_table_destroy(null));
	IS_NULL(EINVAL, mlx5dv_dr_matcher_create(null, 0, 0, null));
	RETURNS(EINVAL, mlx5dv_dr_matcher_destroy(null));
	IS_NULL(EINVAL, mlx5dv_dr_rule_create(null, null, 0, null));
	RETURNS(EINVAL, mlx5dv_dr_rule_destroy(null));
	IS_NULL(EINVAL, mlx5dv_dr_action_create_dest_ibv_qp(null));
	IS_NULL(EINVAL, mlx5dv_dr_action_create_dest_devx_tir(null));
	IS_NULL(EINVAL, mlx5dv_dr_action_create_flow_counter(null, 0));
	RETURNS(EINVAL, mlx5dv_dr_action_destroy(null));
	/* These return it negative, as rdma-core's library does. */
	RETURNS(-EINVAL, mlx5dv_dump_dr_domain(null, null));
	RETURNS(-EINVAL, mlx5dv_dump_dr_domain(file, null));
	RETURNS(-EINVAL, mlx5dv_dump_dr_table(file, null));
	RETURNS(-EINVAL, mlx5dv_dump_dr_matcher(file, null));
	RETURNS(-EINVAL, mlx5dv_dump_dr_rule(file, null));
}

int main(void)
{
	void *null = NULL;
	struct mlx5dv_devx_umem_in memory = { .comp_mask = 2 };
	CHECK(!mlx5dv_is_supported(NULL));
	IS_NULL(EINVAL, mlx5dv_open_device(NULL, null));
	RETURNS(EINVAL, mlx5dv_init_obj(null, MLX5DV_OBJ_QP));
	of_context(NULL);
	of_objects(null);
	IS_NULL(EINVAL, mlx5dv_devx_umem_reg(NULL, null, 0, 0));
	IS_NULL(EINVAL, mlx5dv_alloc_var(NULL, 0));
	IS_NULL(EINVAL, mlx5dv_devx_alloc_uar(NULL, 0));
	IS_NULL(EINVAL, mlx5dv_devx_create_cmd_comp(NULL));
	IS_NULL(EINVAL, mlx5dv_devx_create_event_channel(NULL, 0));
	CHECK(mlx5dv_qp_ex_from_ibv_qp_ex(null) == NULL);

	RETURNS(EINVAL, mlx5dv_devx_obj_query(null, null, 16, null, 16));
	RETURNS(EINVAL, mlx5dv_devx_obj_modify(null, null, 16, null, 16));
	RETURNS(EINVAL, mlx5dv_devx_obj_destroy(null));
	RETURNS(EINVAL, mlx5dv_devx_obj_query_async(null, null, 16, 16, 0, null));
	RETURNS(EINVAL, mlx5dv_devx_get_async_cmd_comp(null, null, 16));
	SETS(-1, EINVAL, mlx5dv_devx_get_event(null, null, 16));
	RETURNS(EINVAL, mlx5dv_devx_subscribe_devx_event(null, null, 2, null, 0));
	RETURNS(EINVAL, mlx5dv_devx_subscribe_devx_event_fd(null, 0, null, 0));
	RETURNS(EINVAL, mlx5dv_devx_umem_dereg(null));
	RETURNS_NOTHING(mlx5dv_devx_destroy_cmd_comp(null));
	RETURNS_NOTHING(mlx5dv_devx_destroy_event_channel(null));
	RETURNS_NOTHING(mlx5dv_devx_free_uar(null));
	RETURNS_NOTHING(mlx5dv_pp_free(null));
	RETURNS_NOTHING(mlx5dv_free_var(null));
	RETURNS_NOTHING(any__mlx5dv_get_export_sizes(null, (size_t)8));

	char command[16] = { 0 }, answer[16];
	RETURNS(EINVAL, mlx5dv_devx_cq_query(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_cq_modify(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_qp_query(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_qp_modify(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_srq_query(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_srq_modify(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_wq_query(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_wq_modify(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_ind_tbl_query(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_ind_tbl_modify(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_obj_query(null, command, 16, answer, 16));
	RETURNS(EINVAL, mlx5dv_devx_general_cmd(NULL, command, 16, answer, 16));

	RETURNS(EINVAL, mlx5dv_modify_qp_udp_sport(null, 0));
	RETURNS(EINVAL, mlx5dv_query_qp_lag_port(null, null, null));
	RETURNS(EINVAL, mlx5dv_modify_qp_lag_port(null, 1));
	RETURNS(EINVAL, any_mlx5dv_dci_stream_id_reset(null, 1));
	RETURNS(EINVAL, any_mlx5dv_map_ah_to_qp(null, 1));
	IS_NULL(EINVAL, mlx5dv_dm_map_op_addr(null, 0));
	IS_NULL(EINVAL, (mlx5dv_create_flow)(null, null, 0, null));
	IS_NULL(EINVAL, any___mlx5dv_create_flow(null, null, (size_t)0, null, (size_t)24));
	RETURNS(EINVAL, mlx5dv_destroy_flow_matcher(null));
	IS_NULL(EINVAL, any_mlx5dv_reg_dmabuf_mr(null, (uint64_t)0, (size_t)1, (uint64_t)0, 0, 0, 0));
	SETS(-1, EINVAL, any_mlx5dv_devx_uar_export_dmabuf_fd(null));

	struct ibv_context *context = open_hca(0);
	of_context(context);
	IS_NULL(EOPNOTSUPP, mlx5dv_devx_umem_reg_ex(context, &memory));
	memory = (struct mlx5dv_devx_umem_in){ .comp_mask = MLX5DV_UMEM_MASK_DMABUF, .dmabuf_fd = -1 };
	IS_NULL(EBADF, mlx5dv_devx_umem_reg_ex(context, &memory));
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
