/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Two raw packet queue pairs, a and b, frames from one to the other, and masks and values that match them. */
#include "common.h"
#include <infiniband/mlx5dv.h>

enum { FRAME = 60, TAG = 0x1234, OUTER = 1, MATCH = 64 };

static const uint8_t group[6] = { 2, 9, 9, 9, 9, 9 };
static struct end a, b;

/* A mask or a value, as `struct mlx5_ifc_fte_match_set_lyr_2_4_bits`: source address, type, destination address. */
struct match {
	size_t size;
	union {
		uint64_t words[MATCH / 8];
		struct {
			uint8_t source[6], type[2], destination[6];
		};
	};
};

static struct mlx5dv_flow_match_parameters *to(struct match *match)
{
	match->size = MATCH;
	return (void *)match;
}

static void open_raw(struct end *end)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(end, IBV_QPT_RAW_PACKET);
	CHECK(end->qp = ibv_create_qp_ex(end->context, &attr));
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	CHECK(ibv_modify_qp(end->qp, &state, IBV_QP_STATE | IBV_QP_PORT) == 0);
	for (state.qp_state = IBV_QPS_RTR; state.qp_state <= IBV_QPS_RTS; state.qp_state++)
		CHECK(ibv_modify_qp(end->qp, &state, IBV_QP_STATE) == 0);
}

static void send_from(uint8_t last)
{
	memset(a.buf, 0, FRAME);
	memcpy(a.buf, group, 6);
	memcpy(a.buf + 6, group, 5);
	a.buf[11] = last;
	a.buf[12] = 0x88;
	struct ibv_sge sge = { (uintptr_t)a.buf, FRAME, a.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 9, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	poll_ok(a.cq, 9);
}

/* The device processes packets while it is polled. */
static void nothing_arrives(void)
{
	struct ibv_wc wc;
	for (int i = 0; i < 1000; i++)
		CHECK(ibv_poll_cq(b.cq, 1, &wc) == 0);
}
