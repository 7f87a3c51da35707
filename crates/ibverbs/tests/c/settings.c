/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Ethernet addresses of peers, rate limits, the order of data, and functions of libmlx5 for which the context has no
 * commands for the firmware, or the device no capability. */
#include "common.h"
#include <infiniband/mlx5dv.h>

/* Later headers declare these. */
int any_query_port() __asm__("_mlx5dv_query_port");
int any_stream_id_reset() __asm__("mlx5dv_dci_stream_id_reset");
int any_map_ah_to_qp() __asm__("mlx5dv_map_ah_to_qp");
int any_data_direct() __asm__("mlx5dv_get_data_direct_sysfs_path");

static void addresses(struct end *a, struct end *b)
{
	uint8_t mac[6] = { 0 }, other_mac[6], group[6] = { 0x01, 0x00, 0x5e, 0x01, 0x02, 0x03 }, other[6] = { 0x52, 0x54, 0, 1, 2, 3 };
	uint16_t vid = 0;
	struct ibv_ah_attr attr = address_of(b);
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, &attr, mac, &vid) == 0 && vid == 0xffff);

	/* It is the address in an address handle. */
	struct ibv_ah *ah = ibv_create_ah(a->pd, &attr);
	struct mlx5dv_ah raw;
	struct mlx5dv_obj obj = { .ah = { ah, &raw } };
	CHECK(ah && mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH) == 0);
	memcpy(other_mac, raw.av->rmac, 6);
	CHECK(memcmp(other_mac, mac, 6) == 0);
	CHECK(any_map_ah_to_qp(ah, 7) == EOPNOTSUPP);
	CHECK(ibv_destroy_ah(ah) == 0);

	/* The VLAN is optional, and the route is used without `is_global`, too. */
	attr.is_global = 0;
	memset(mac, 0, 6);
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, &attr, mac, NULL) == 0 && memcmp(other_mac, mac, 6) == 0);

	attr.grh.dgid = (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 239, 0x81, 2, 3 } };
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, &attr, mac, NULL) == 0 && memcmp(mac, group, 6) == 0);
	attr.grh.dgid = (union ibv_gid){ .raw = { 0xfe, 0x80, [8] = 0x50, 0x54, 0, 0xff, 0xfe, 1, 2, 3 } };
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, &attr, mac, NULL) == 0 && memcmp(mac, other, 6) == 0);
	attr.grh.dgid = (union ibv_gid){ .raw = { [10] = 0xff, 0xff, 192, 0, 2, 1 } };
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, &attr, mac, NULL) == -EHOSTUNREACH);
	attr.grh.sgid_index = 200;
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, &attr, mac, NULL) < 0);
	attr.port_num = 9;
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, &attr, mac, NULL) < 0);
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, &attr, NULL, NULL) == -EINVAL);
	CHECK(ibv_resolve_eth_l2_from_gid(a->context, NULL, mac, NULL) == -EINVAL);
}

/* The software HCA limits no rates; a limit of 0 is none. */
static void rates(struct end *a)
{
	struct ibv_qp_rate_limit_attr limit = { .rate_limit = 1000 };
	CHECK(ibv_modify_qp_rate_limit(a->qp, &limit) != 0);
	limit.max_burst_sz = 64;
	CHECK(ibv_modify_qp_rate_limit(a->qp, &limit) == EINVAL);
	limit = (struct ibv_qp_rate_limit_attr){ .typical_pkt_sz = 64 };
	CHECK(ibv_modify_qp_rate_limit(a->qp, &limit) == EINVAL);
	limit = (struct ibv_qp_rate_limit_attr){ .comp_mask = 1 };
	CHECK(ibv_modify_qp_rate_limit(a->qp, &limit) == EINVAL);
}

static void without_commands(struct end *a)
{
	uint8_t port, active;
	uint32_t qpn;
	char text[64];
	CHECK(ibv_query_qp_data_in_order(a->qp, IBV_WR_SEND, 0) == 0);
	CHECK(ibv_query_qp_data_in_order(a->qp, IBV_WR_RDMA_WRITE, 1) == 0);
	CHECK(ibv_query_qp_data_in_order(a->qp, IBV_WR_RDMA_WRITE, 0x80000000) == 0);
	CHECK(mlx5dv_modify_qp_udp_sport(a->qp, 0xd000) == EOPNOTSUPP);
	CHECK(mlx5dv_query_qp_lag_port(a->qp, &port, &active) == EOPNOTSUPP);
	CHECK(mlx5dv_query_qp_lag_port(a->qp, NULL, &active) == EINVAL);
	CHECK(mlx5dv_modify_qp_lag_port(a->qp, 1) == EOPNOTSUPP);
	CHECK(any_stream_id_reset(a->qp, 1) == EINVAL);
	CHECK(mlx5dv_reserved_qpn_alloc(a->context, &qpn) == EOPNOTSUPP);
	CHECK(mlx5dv_reserved_qpn_alloc(a->context, NULL) == EINVAL);
	CHECK(mlx5dv_reserved_qpn_dealloc(a->context, 7) == EINVAL);
	CHECK(any_query_port(a->context, PORT, text, sizeof(text)) == EOPNOTSUPP);
	CHECK(any_data_direct(a->context, text, sizeof(text)) == EOPNOTSUPP);
	errno = 0;
	CHECK(mlx5dv_pp_alloc(a->context, 16, text, 0) == NULL && errno == EOPNOTSUPP);
	errno = 0;
	CHECK(mlx5dv_pp_alloc(a->context, 16, text, 2) == NULL && errno == EOPNOTSUPP);
	errno = 0;
	CHECK(mlx5dv_alloc_var(a->context, 0) == NULL && errno == EOPNOTSUPP);
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(a->context, &attr);
	errno = 0;
	CHECK(dm && mlx5dv_dm_map_op_addr(dm, 0) == NULL && errno == EOPNOTSUPP);
	CHECK(ibv_free_dm(dm) == 0);
}

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&a, &b);
	addresses(&a, &b);
	rates(&a);
	without_commands(&a);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
