/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Values of attributes that do not fit: those that rdma-core and the kernel's mlx5 truncate, and those that they refuse. */
#include "common.h"

static struct end a, b;

enum {
	RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
	      IBV_QP_MIN_RNR_TIMER,
	RTS = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	      IBV_QP_MAX_QP_RD_ATOMIC,
};

static struct ibv_qp_attr rtr(const struct end *peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->qp->qp_num,
		.rq_psn = 77,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = address_of(peer),
	};
	return attr;
}

static struct ibv_qp_attr rts(void)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = 77,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};
	return attr;
}

/* A change that is refused, with errno, and leaves the queue pair in its state. */
#define REFUSED(number, qp, attr, mask)                                                           \
	do {                                                                                      \
		enum ibv_qp_state state = (qp)->state;                                            \
		errno = 0;                                                                        \
		CHECK(ibv_modify_qp(qp, attr, mask) == (number) && errno == (number));            \
		struct ibv_qp_attr now;                                                           \
		struct ibv_qp_init_attr init;                                                     \
		CHECK(ibv_query_qp(qp, &now, IBV_QP_STATE, &init) == 0 && now.qp_state == state); \
	} while (0)

#define REFUSES(number, qp, base, mask, field, value) \
	do {                                          \
		struct ibv_qp_attr wrong = base;      \
		wrong.field = value;                  \
		REFUSED(number, qp, &wrong, mask);    \
	} while (0)

static void refused(void)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	int mask = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS;
	REFUSES(EINVAL, a.qp, init, mask, port_num, 0);
	REFUSES(EINVAL, a.qp, init, mask, port_num, 9);
	REFUSES(EINVAL, a.qp, init, mask, pkey_index, 0xffff);
	REFUSES(EINVAL, a.qp, init, mask, qp_state, IBV_QPS_ERR + 2);
	REFUSED(EOPNOTSUPP, a.qp, &init, mask | 1 << 30);
	REFUSED(EOPNOTSUPP, a.qp, &init, mask | 1 << 22);
	REFUSED(EOPNOTSUPP, a.qp, &init, -1);
	to_init(a.qp);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, path_mtu, 0);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, path_mtu, IBV_MTU_4096 + 1);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, max_dest_rd_atomic, 255);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, ah_attr.port_num, 0);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, ah_attr.port_num, 9);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, ah_attr.is_global, 0);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, ah_attr.static_rate, 1);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, ah_attr.static_rate, 255);
	REFUSES(EINVAL, a.qp, rtr(&b), RTR, ah_attr.grh.sgid_index, 255);
}

/* Both ends have only values that do not fit, and what remains of them. */
static void truncated(struct end *end, struct end *peer)
{
	struct ibv_qp_attr attr = rtr(peer), now;
	struct ibv_qp_init_attr init;
	attr.dest_qp_num |= 0xab000000;
	attr.rq_psn |= 0xff000000;
	/* DLSlime passes this timer. */
	attr.min_rnr_timer = 0x20 | 3;
	attr.ah_attr.sl = 0xf0 | 2;
	attr.ah_attr.src_path_bits = 0x80 | 1;
	attr.ah_attr.grh.flow_label = 0xfff12345;
	CHECK(ibv_modify_qp(end->qp, &attr, RTR) == 0);
	attr = rts();
	attr.sq_psn |= 0x5c000000;
	attr.timeout = 0xe0 | 14;
	attr.retry_cnt = 0xf8 | 6;
	attr.rnr_retry = 0x10 | 7;
	attr.path_mig_state = IBV_MIG_REARM;
	attr.alt_port_num = PORT;
	attr.alt_timeout = 0x60 | 13;
	attr.alt_ah_attr = address_of(peer);
	attr.alt_ah_attr.sl = 0x70 | 4;
	REFUSES(EINVAL, end->qp, attr, RTS | IBV_QP_ALT_PATH, alt_port_num, PORT + 1);
	REFUSES(EINVAL, end->qp, attr, RTS | IBV_QP_ALT_PATH, alt_port_num, 0);
	REFUSES(EINVAL, end->qp, attr, RTS | IBV_QP_ALT_PATH, alt_ah_attr.port_num, 9);
	REFUSES(EINVAL, end->qp, attr, RTS | IBV_QP_PATH_MIG_STATE, path_mig_state, IBV_MIG_ARMED + 1);
	REFUSES(EINVAL, end->qp, attr, RTS, max_rd_atomic, 255);
	CHECK(ibv_modify_qp(end->qp, &attr, RTS | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE) == 0);
	CHECK(ibv_query_qp(end->qp, &now, RTR | RTS | IBV_QP_ALT_PATH, &init) == 0);
	CHECK(now.alt_timeout == 13 && now.alt_port_num == PORT && now.alt_ah_attr.sl == 4);
	CHECK(now.dest_qp_num == peer->qp->qp_num && now.rq_psn == 77 && now.sq_psn == 77);
	CHECK(now.min_rnr_timer == 3 && now.timeout == 14 && now.retry_cnt == 6 && now.rnr_retry == 7);
	CHECK(now.ah_attr.sl == 2 && now.ah_attr.src_path_bits == 1 && now.ah_attr.grh.flow_label == 0x12345);
	REFUSES(EINVAL, end->qp, attr, IBV_QP_MIN_RNR_TIMER | IBV_QP_CUR_STATE, cur_qp_state, IBV_QPS_INIT);
	struct ibv_qp_attr timer = { .min_rnr_timer = 0xe0 | 9 };
	CHECK(ibv_modify_qp(end->qp, &timer, IBV_QP_MIN_RNR_TIMER) == 0);
	CHECK(ibv_query_qp(end->qp, &now, IBV_QP_MIN_RNR_TIMER, &init) == 0 && now.min_rnr_timer == 9);
}

static void address_handles(void)
{
	struct ibv_ah_attr attr = address_of(&b);
	attr.sl = 0xf7;
	attr.src_path_bits = 0xff;
	attr.static_rate = 255;
	attr.grh.flow_label = 0xffffffff;
	struct ibv_ah *ah = ibv_create_ah(a.pd, &attr);
	CHECK(ah && ibv_destroy_ah(ah) == 0);
	attr.port_num = 0;
	CHECK((errno = 0, ibv_create_ah(a.pd, &attr)) == NULL && errno == EINVAL);
	attr.port_num = 9;
	CHECK((errno = 0, ibv_create_ah(a.pd, &attr)) == NULL && errno == EINVAL);
	attr.port_num = PORT;
	attr.is_global = 0;
	CHECK((errno = 0, ibv_create_ah(a.pd, &attr)) == NULL && errno == EINVAL);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	refused();
	to_init(b.qp);
	truncated(&a, &b);
	truncated(&b, &a);
	address_handles();
	struct ibv_send_wr wr = { .wr_id = 5, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	post_recv(&b, 4, 0, 64);
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	poll_ok(b.cq, 4);
	poll_ok(a.cq, 5);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
