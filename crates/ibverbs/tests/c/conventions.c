/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The failure of each exported function, which its man page specifies: it returns the errno, NULL or -1. All of them set errno. */
#include "common.h"

/* Functions that the header of some version lacks, under names that no header has. */
#define POINTER(name) void *any_##name() __asm__(#name)
#define NUMBER(name) int any_##name() __asm__(#name)
POINTER(ibv_reg_mr_ex);
POINTER(ibv_alloc_dmah);
POINTER(ibv_alloc_buf);
POINTER(ibv_reg_buf_mr);
POINTER(ibv_create_comp_cntr);
NUMBER(ibv_dealloc_dmah);
NUMBER(ibv_query_port_speed);
NUMBER(_ibv_query_comp_cntr_caps);
NUMBER(ibv_destroy_comp_cntr);
NUMBER(ibv_set_comp_cntr);
NUMBER(ibv_set_err_comp_cntr);
NUMBER(ibv_inc_comp_cntr);
NUMBER(ibv_inc_err_comp_cntr);
NUMBER(ibv_read_comp_cntr);
NUMBER(ibv_read_err_comp_cntr);
NUMBER(ibv_qp_attach_comp_cntr);
NUMBER(ibv_dm_export_dmabuf_fd);
NUMBER(ibv_export_buf_dmabuf_fd);
NUMBER(ibv_query_gid_type);
NUMBER(ibv_read_sysfs_file);
void any_ibv_free_buf() __asm__("ibv_free_buf");

static int functions;

/* The number is returned, or its negative, and errno is set. */
#define RETURNS(number, call) CHECK((functions++, errno = 0, call) == (number) && errno == abs(number))
/* The function can't fail in this way, and leaves errno. */
#define JUST_RETURNS(number, call) CHECK((functions++, errno = 0, call) == (number) && errno == 0)
#define SETS(result, number, call) CHECK((functions++, errno = 0, (call) == (result)) && errno == (number))
#define IS_NULL(number, call) SETS(NULL, number, (void *)(call))
#define IS_MINUS_ONE(number, call) SETS(-1, number, call)
#define RETURNS_NOTHING(call) (functions++, call)

/* A function of the context, called with NULL. */
#define SLOT(name, check, result, ...) check(result, context->name(__VA_ARGS__))
#define IS_NULL_SLOT(number, call) IS_NULL(number, call)
#define RETURNS_SLOT(number, call) RETURNS(number, call)

/* The functions that the header's inline functions call through the context. */
static void slots(void)
{
	struct ibv_context *opened = open_hca(0);
	struct verbs_context *context = verbs_get_ctx(opened);
	CHECK(context);
	SLOT(query_port, RETURNS_SLOT, EINVAL, NULL, 1, NULL, 0);
	SLOT(query_device_ex, RETURNS_SLOT, EINVAL, NULL, NULL, NULL, 0);
	SLOT(advise_mr, RETURNS_SLOT, EINVAL, NULL, 0, 0, NULL, 0);
	SLOT(alloc_null_mr, IS_NULL_SLOT, EINVAL, NULL);
	/* The header of rdma-core 44 lacks it: SLOT(reg_mr_ex, ...) is ibv_reg_mr_ex(), see below. */
	SLOT(alloc_dm, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(free_dm, RETURNS_SLOT, EINVAL, NULL);
	SLOT(reg_dm_mr, IS_NULL_SLOT, EINVAL, NULL, NULL, 0, 0, 0);
	SLOT(alloc_td, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(dealloc_td, RETURNS_SLOT, EINVAL, NULL);
	SLOT(alloc_parent_domain, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(open_xrcd, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(close_xrcd, RETURNS_SLOT, EINVAL, NULL);
	SLOT(create_cq_ex, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(modify_cq, RETURNS_SLOT, EINVAL, NULL, NULL);
	SLOT(create_srq_ex, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(get_srq_num, RETURNS_SLOT, EINVAL, NULL, NULL);
	SLOT(create_qp_ex, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(open_qp, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(modify_qp_rate_limit, RETURNS_SLOT, EINVAL, NULL, NULL);
	SLOT(query_rt_values, RETURNS_SLOT, EINVAL, NULL, NULL);
	SLOT(create_wq, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(modify_wq, RETURNS_SLOT, EINVAL, NULL, NULL);
	SLOT(destroy_wq, RETURNS_SLOT, EINVAL, NULL);
	SLOT(create_rwq_ind_table, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(destroy_rwq_ind_table, RETURNS_SLOT, EINVAL, NULL);
	SLOT(ibv_create_flow, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(ibv_destroy_flow, RETURNS_SLOT, EINVAL, NULL);
	SLOT(create_counters, IS_NULL_SLOT, EINVAL, NULL, NULL);
	SLOT(destroy_counters, RETURNS_SLOT, EINVAL, NULL);
	SLOT(attach_counters_point_flow, RETURNS_SLOT, EINVAL, NULL, NULL, NULL);
	SLOT(read_counters, RETURNS_SLOT, EINVAL, NULL, NULL, 0, 0);
	/* The open context; all other arguments are NULL or 0. */
	SLOT(query_port, RETURNS_SLOT, EINVAL, opened, 1, NULL, 0);
	SLOT(alloc_dm, IS_NULL_SLOT, EINVAL, opened, NULL);
	SLOT(create_cq_ex, IS_NULL_SLOT, EINVAL, opened, NULL);
	SLOT(create_srq_ex, IS_NULL_SLOT, EINVAL, opened, NULL);
	SLOT(create_qp_ex, IS_NULL_SLOT, EINVAL, opened, NULL);
	SLOT(create_wq, IS_NULL_SLOT, EINVAL, opened, NULL);
	SLOT(create_rwq_ind_table, IS_NULL_SLOT, EINVAL, opened, NULL);
	SLOT(create_counters, IS_NULL_SLOT, EINVAL, opened, NULL);
	CHECK(ibv_close_device(opened) == 0);
}

int main(void)
{
	struct ibv_context *no_context = NULL;
	struct ibv_pd *pd = NULL;
	struct ibv_qp *qp = NULL;
	struct ibv_srq *srq = NULL;
	struct ibv_cq *cq = NULL;
	struct ibv_ah *ah = NULL;
	struct ibv_mr *mr = NULL;
	void *null = NULL;
	union ibv_gid gid;
	__be16 pkey;

	IS_NULL(EINVAL, ibv_open_device(NULL));
	IS_MINUS_ONE(EINVAL, ibv_close_device(no_context));
	RETURNS(EINVAL, ibv_query_device(no_context, null));
	RETURNS(EINVAL, (ibv_query_port)(no_context, 1, null));
	IS_MINUS_ONE(EINVAL, ibv_query_gid(no_context, 1, 0, &gid));
	RETURNS(EINVAL, _ibv_query_gid_ex(no_context, 1, 0, null, 0, 0));
	RETURNS(-EINVAL, _ibv_query_gid_table(no_context, null, 0, 0, 0));
	IS_MINUS_ONE(EINVAL, any_ibv_query_gid_type(no_context, 1, 0, null));
	IS_MINUS_ONE(EINVAL, ibv_query_pkey(no_context, 1, 0, &pkey));
	IS_MINUS_ONE(EINVAL, ibv_get_pkey_index(no_context, 1, 0));
	IS_NULL(EINVAL, ibv_get_device_name(NULL));
	JUST_RETURNS(-1, ibv_get_device_index(NULL));
	CHECK((functions++, ibv_get_device_guid(NULL)) == 0);

	IS_NULL(EINVAL, ibv_alloc_pd(no_context));
	RETURNS(EINVAL, ibv_dealloc_pd(pd));
	IS_NULL(EINVAL, (ibv_reg_mr)(pd, null, 0, 0));
	IS_NULL(EINVAL, (ibv_reg_mr_iova)(pd, null, 0, 0, 0));
	IS_NULL(EINVAL, ibv_reg_mr_iova2(pd, null, 0, 0, 0));
	IS_NULL(EINVAL, ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0));
	IS_NULL(EINVAL, any_ibv_reg_mr_ex(pd, null));
	SETS(IBV_REREG_MR_ERR_INPUT, EINVAL, ibv_rereg_mr(mr, 0, pd, null, 0, 0));
	RETURNS(EINVAL, ibv_dereg_mr(mr));
	IS_NULL(EINVAL, ibv_create_comp_channel(no_context));
	RETURNS(EINVAL, ibv_destroy_comp_channel(NULL));
	IS_MINUS_ONE(EINVAL, ibv_get_cq_event(NULL, &cq, &null));
	RETURNS_NOTHING(ibv_ack_cq_events(cq, 1));
	IS_NULL(EINVAL, ibv_create_cq(no_context, 1, null, NULL, 0));
	RETURNS(EINVAL, ibv_resize_cq(cq, 1));
	RETURNS(EINVAL, ibv_destroy_cq(cq));
	IS_NULL(EINVAL, ibv_create_srq(pd, null));
	RETURNS(EINVAL, ibv_modify_srq(srq, null, 0));
	RETURNS(EINVAL, ibv_query_srq(srq, null));
	RETURNS(EINVAL, ibv_destroy_srq(srq));
	IS_NULL(EINVAL, ibv_create_qp(pd, null));
	RETURNS(EINVAL, ibv_modify_qp(qp, null, 0));
	RETURNS(EINVAL, ibv_query_qp(qp, null, 0, null));
	RETURNS(EINVAL, ibv_destroy_qp(qp));
	RETURNS(EINVAL, ibv_query_ece(qp, null));
	RETURNS(EINVAL, ibv_set_ece(qp, null));
	JUST_RETURNS(0, ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0));
	CHECK((functions++, ibv_qp_to_qp_ex(qp)) == NULL);
	RETURNS(EINVAL, ibv_attach_mcast(qp, null, 0));
	RETURNS(EINVAL, ibv_detach_mcast(qp, null, 0));
	IS_NULL(EINVAL, ibv_create_ah(pd, null));
	IS_NULL(EINVAL, ibv_create_ah_from_wc(pd, null, null, 1));
	IS_MINUS_ONE(EINVAL, ibv_init_ah_from_wc(no_context, 1, null, null, null));
	RETURNS(EINVAL, ibv_destroy_ah(ah));
	RETURNS(-EINVAL, ibv_resolve_eth_l2_from_gid(no_context, null, null, null));
	IS_MINUS_ONE(EINVAL, ibv_get_async_event(no_context, null));
	RETURNS_NOTHING(ibv_ack_async_event(NULL));
	JUST_RETURNS(0, ibv_fork_init());
	IS_MINUS_ONE(EINVAL, any_ibv_read_sysfs_file(null, null, null, (size_t)0));
	IS_MINUS_ONE(ENOENT, any_ibv_read_sysfs_file("/nonexistent", "file", (char *)&gid, sizeof(gid)));

	RETURNS(EINVAL, any_ibv_query_port_speed(null, 1, null));
	IS_NULL(EBADF, ibv_import_device(-1));
	IS_NULL(EINVAL, ibv_import_pd(no_context, 0));
	IS_NULL(EINVAL, ibv_import_mr(pd, 0));
	IS_NULL(EINVAL, ibv_import_dm(no_context, 0));
	RETURNS_NOTHING(ibv_unimport_pd(pd));
	RETURNS_NOTHING(ibv_unimport_mr(mr));
	RETURNS_NOTHING(ibv_unimport_dm(NULL));
	IS_NULL(EINVAL, any_ibv_alloc_buf(null, (size_t)0, null));
	IS_NULL(EINVAL, any_ibv_reg_buf_mr(null, null, null, (size_t)0, 0));
	RETURNS_NOTHING(any_ibv_free_buf(null));
	IS_MINUS_ONE(EINVAL, any_ibv_export_buf_dmabuf_fd(null));

	/* Not implemented. */
	IS_NULL(EOPNOTSUPP, any_ibv_alloc_dmah(null, null));
	RETURNS(EOPNOTSUPP, any_ibv_dealloc_dmah(null));
	IS_MINUS_ONE(EINVAL, any_ibv_dm_export_dmabuf_fd(null));
	RETURNS(EOPNOTSUPP, any__ibv_query_comp_cntr_caps(null, null, (size_t)0));
	IS_NULL(EOPNOTSUPP, any_ibv_create_comp_cntr(null, null));
	RETURNS(EOPNOTSUPP, any_ibv_destroy_comp_cntr(null));
	RETURNS(EOPNOTSUPP, any_ibv_set_comp_cntr(null, 0ULL));
	RETURNS(EOPNOTSUPP, any_ibv_set_err_comp_cntr(null, 0ULL));
	RETURNS(EOPNOTSUPP, any_ibv_inc_comp_cntr(null, 0ULL));
	RETURNS(EOPNOTSUPP, any_ibv_inc_err_comp_cntr(null, 0ULL));
	RETURNS(EOPNOTSUPP, any_ibv_read_comp_cntr(null, null));
	RETURNS(EOPNOTSUPP, any_ibv_read_err_comp_cntr(null, null));
	RETURNS(EOPNOTSUPP, any_ibv_qp_attach_comp_cntr(null, null, null));

	slots();
	CHECK(functions > 100);
	return 0;
}
