/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The failure of each function of libefa: with NULL, with an object of another driver, and with a struct that is too short. The
 * functions are declared here, because the header of an older version lacks some. */
#include "common.h"
#include <infiniband/efadv.h>

#define DECLARE(name) __asm__(#name)
int any_efadv_query_device() DECLARE(efadv_query_device);
int any_efadv_query_ah() DECLARE(efadv_query_ah);
int any_efadv_query_mr() DECLARE(efadv_query_mr);
int any_efadv_query_cq() DECLARE(efadv_query_cq);
int any_efadv_query_qp_wqs() DECLARE(efadv_query_qp_wqs);
int any_efadv_get_max_sq_depth() DECLARE(efadv_get_max_sq_depth);
int any_efadv_get_max_rq_depth() DECLARE(efadv_get_max_rq_depth);
void *any_efadv_create_qp_ex() DECLARE(efadv_create_qp_ex);
void *any_efadv_create_cq() DECLARE(efadv_create_cq);
void *any_efadv_create_driver_qp() DECLARE(efadv_create_driver_qp);
void *any_efadv_create_comp_cntr() DECLARE(efadv_create_comp_cntr);
void *any_efadv_cq_from_ibv_cq_ex() DECLARE(efadv_cq_from_ibv_cq_ex);
void *any_efadv_qp_from_ibv_qp_ex() DECLARE(efadv_qp_from_ibv_qp_ex);

#define RETURNS(number, call) CHECK((errno = 0, call) == (number) && errno == abs(number))
#define IS_NULL(number, call) CHECK((errno = 0, (void *)(call) == NULL) && errno == (number))

int main(void)
{
	void *null = NULL;
	char zeros[256] = { 0 };
	uint32_t room = sizeof(zeros);
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 4);
	for (int i = 0; i < count; i++) {
		struct ibv_context *context;
		CHECK(context = ibv_open_device(list[i]));
		int is_efa = strncmp(ibv_get_device_name(list[i]), "efa", 3) == 0;
		CHECK(is_efa == (i >= 2));
		/* NULL is no struct; a device of another driver is refused before. */
		int error = is_efa ? EINVAL : EOPNOTSUPP;
		struct ibv_pd *pd;
		struct ibv_cq *cq;
		CHECK(pd = ibv_alloc_pd(context));
		CHECK(cq = ibv_create_cq(context, 8, NULL, NULL, 0));
		struct ibv_mr *mr;
		CHECK(mr = ibv_reg_mr(pd, zeros, sizeof(zeros), IBV_ACCESS_LOCAL_WRITE));
		struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_UD };
		struct ibv_qp *qp;
		CHECK(qp = ibv_create_qp(pd, &attr));
		CHECK(ibv_qp_to_qp_ex(qp) == NULL);
		struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
		CHECK(ibv_query_gid(context, 1, is_efa ? 0 : 3, &to.grh.dgid) == 0);
		to.grh.sgid_index = is_efa ? 0 : 3;
		struct ibv_ah *ah;
		CHECK(ah = ibv_create_ah(pd, &to));

		RETURNS(error, any_efadv_query_device(context, null, room));
		RETURNS(error, any_efadv_query_ah(ah, null, room));
		RETURNS(error, any_efadv_query_mr(mr, null, room));
		RETURNS(error, any_efadv_query_cq(cq, null, room));
		/* A software device has no doorbells in memory. */
		RETURNS(EOPNOTSUPP, any_efadv_query_qp_wqs(qp, zeros, zeros, room));
		RETURNS(-error, any_efadv_get_max_sq_depth(context, null, room));
		RETURNS(-error, any_efadv_get_max_rq_depth(context, null, room));
		IS_NULL(error, any_efadv_create_driver_qp(pd, null, 0));
		IS_NULL(error, any_efadv_create_driver_qp(pd, &attr, 0));
		IS_NULL(error, any_efadv_create_qp_ex(context, null, zeros, room));
		IS_NULL(error, any_efadv_create_qp_ex(context, zeros, null, room));
		IS_NULL(error, any_efadv_create_cq(context, null, zeros, room));
		IS_NULL(error, any_efadv_create_cq(context, zeros, null, room));
		IS_NULL(EOPNOTSUPP, any_efadv_create_comp_cntr(context, zeros, zeros, room));
		CHECK((any_efadv_cq_from_ibv_cq_ex(cq) != NULL) == is_efa);
		CHECK((any_efadv_qp_from_ibv_qp_ex(qp) != NULL) == is_efa);
		if (is_efa) {
			/* One byte less than the fields that every version has. */
			RETURNS(EINVAL, any_efadv_query_device(context, zeros, 23));
			RETURNS(EINVAL, any_efadv_query_ah(ah, zeros, 9));
			RETURNS(EINVAL, any_efadv_query_mr(mr, zeros, 15));
			RETURNS(EINVAL, any_efadv_query_cq(cq, zeros, 23));
			RETURNS(-EINVAL, any_efadv_get_max_sq_depth(context, zeros, 23));
			RETURNS(-EINVAL, any_efadv_get_max_rq_depth(context, zeros, 11));
			IS_NULL(EINVAL, any_efadv_create_cq(context, zeros, zeros, 15));
			IS_NULL(EINVAL, any_efadv_create_qp_ex(context, zeros, zeros, 11));
		}
		CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
		RETURNS(EINVAL, any_efadv_query_ah(ah, zeros, room));
		RETURNS(EINVAL, any_efadv_query_cq(cq, zeros, room));
		RETURNS(EINVAL, any_efadv_query_qp_wqs(qp, zeros, zeros, room));
		CHECK(any_efadv_cq_from_ibv_cq_ex(cq) == NULL && any_efadv_qp_from_ibv_qp_ex(qp) == NULL);
		CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	}
	ibv_free_device_list(list);
	RETURNS(EINVAL, any_efadv_query_device(null, zeros, room));
	RETURNS(EINVAL, any_efadv_query_ah(null, zeros, room));
	RETURNS(EINVAL, any_efadv_query_mr(null, zeros, room));
	RETURNS(EINVAL, any_efadv_query_cq(null, zeros, room));
	RETURNS(EINVAL, any_efadv_query_qp_wqs(null, zeros, zeros, room));
	RETURNS(-EINVAL, any_efadv_get_max_sq_depth(null, zeros, room));
	RETURNS(-EINVAL, any_efadv_get_max_rq_depth(null, zeros, room));
	IS_NULL(EINVAL, any_efadv_create_driver_qp(null, zeros, 0));
	IS_NULL(EINVAL, any_efadv_create_qp_ex(null, zeros, zeros, room));
	IS_NULL(EINVAL, any_efadv_create_cq(null, zeros, zeros, room));
	CHECK(any_efadv_cq_from_ibv_cq_ex(null) == NULL && any_efadv_qp_from_ibv_qp_ex(null) == NULL);
	return 0;
}
