/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Direct verbs: the device's capabilities, the addresses of objects, and messages that the program
 * itself writes to the rings and reads from them. */
#include "direct.h"

static void device(struct ibv_context *context)
{
	struct ibv_device *device = context->device;
	CHECK(mlx5dv_is_supported(device) && !mlx5dv_is_supported(NULL));
	struct mlx5dv_context attr;
	memset(&attr, 0xa5, sizeof(attr));
	attr.comp_mask = 0;
	CHECK(mlx5dv_query_device(context, &attr) == 0);
	CHECK(attr.version == 0 && attr.comp_mask == 0 && attr.flags & MLX5DV_CONTEXT_FLAGS_CQE_V1);
	CHECK(attr.max_dynamic_bfregs == 0xa5a5a5a5); /* Fields that are not requested are not written. */
	attr.comp_mask = MLX5DV_CONTEXT_MASK_STRIDING_RQ | MLX5DV_CONTEXT_MASK_CLOCK_INFO_UPDATE |
			 MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD | MLX5DV_CONTEXT_MASK_DYN_BFREGS;
	CHECK(mlx5dv_query_device(context, &attr) == 0);
	CHECK(attr.comp_mask & MLX5DV_CONTEXT_MASK_DYN_BFREGS && attr.max_dynamic_bfregs != 0xa5a5a5a5);
	CHECK(attr.comp_mask & MLX5DV_CONTEXT_MASK_STRIDING_RQ);
	/* Answered, but empty: the devices of this test refuse the commands that read them. */
	CHECK(attr.comp_mask & MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD && attr.sig_caps.block_prot == 0);
	CHECK(mlx5dv_query_device(NULL, &attr) == EINVAL);

	struct mlx5dv_context_attr open = { 0 };
	struct ibv_context *other = mlx5dv_open_device(device, &open);
	CHECK(other && other->device == device);
	struct mlx5dv_clock_info clock;
	CHECK(mlx5dv_get_clock_info(other, &clock) == 0 && clock.mask != 0 && clock.mult != 0);
	uint64_t second = 1000000000;
	uint64_t ticks = (second << clock.shift) / clock.mult;
	uint64_t passed = mlx5dv_ts_to_ns(&clock, clock.last_cycles + ticks) -
			  mlx5dv_ts_to_ns(&clock, clock.last_cycles);
	CHECK(passed > second * 99 / 100 && passed < second * 101 / 100);
	CHECK(ibv_close_device(other) == 0);
	open.comp_mask = ~0ULL;
	errno = 0;
	CHECK(mlx5dv_open_device(device, &open) == NULL && errno == EOPNOTSUPP);
	/* The devices of this test refuse contexts with commands: see no_commands. */
	open = (struct mlx5dv_context_attr){ .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	errno = 0;
	CHECK(mlx5dv_open_device(device, &open) == NULL && errno == EINVAL);
	errno = 0;
	CHECK(mlx5dv_open_device(NULL, &(struct mlx5dv_context_attr){ 0 }) == NULL && errno == EINVAL);
}

/* Addresses and numbers of objects whose memory this program does not use. */
static void objects(struct end *end)
{
	struct mlx5dv_pd pd[2];
	struct ibv_pd *second = ibv_alloc_pd(end->context);
	CHECK(second);
	struct mlx5dv_obj obj = { .pd = { end->pd, &pd[0] } };
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD) == 0);
	obj.pd.in = second;
	obj.pd.out = &pd[1];
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD) == 0 && pd[0].pdn != pd[1].pdn);
	CHECK(ibv_dealloc_pd(second) == 0);

	struct ibv_ah_attr address = address_of(end);
	struct ibv_ah *ah = ibv_create_ah(end->pd, &address);
	struct mlx5dv_ah raw_ah;
	CHECK(ah);
	obj.ah.in = ah;
	obj.ah.out = &raw_ah;
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH) == 0);
	CHECK(memcmp(raw_ah.av->rgid, end->gid.raw, sizeof(end->gid)) == 0 && raw_ah.av->hop_limit == 64);
	CHECK(ibv_destroy_ah(ah) == 0);

	struct ibv_srq_init_attr srq_attr = { .attr = { .max_wr = 10, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(end->pd, &srq_attr);
	struct mlx5dv_srq raw_srq = { .comp_mask = MLX5DV_SRQ_MASK_SRQN };
	CHECK(srq);
	obj.srq.in = srq;
	obj.srq.out = &raw_srq;
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_SRQ) == 0);
	CHECK(raw_srq.buf && raw_srq.dbrec && raw_srq.stride >= 32 && raw_srq.head == 0 && raw_srq.tail >= 10);
	uint32_t srqn;
	CHECK(raw_srq.comp_mask == MLX5DV_SRQ_MASK_SRQN);
	CHECK(ibv_get_srq_num(srq, &srqn) == 0 && srqn == raw_srq.srqn);
	struct mlx5_wqe_srq_next_seg *first = raw_srq.buf;
	CHECK(be16toh(first->next_wqe_index) == 1);
	CHECK(ibv_destroy_srq(srq) == 0);

	struct ibv_wq_init_attr wq_attr = { .wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 1, .pd = end->pd, .cq = end->cq };
	struct ibv_wq *wq = ibv_create_wq(end->context, &wq_attr);
	struct mlx5dv_rwq raw_wq = { 0 };
	CHECK(wq);
	obj.rwq.in = wq;
	obj.rwq.out = &raw_wq;
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_RWQ) == 0);
	CHECK(raw_wq.buf && raw_wq.dbrec && raw_wq.wqe_cnt == 16 && raw_wq.stride == 16);
	CHECK(ibv_destroy_wq(wq) == 0);

	struct ibv_alloc_dm_attr dm_attr = { .length = 64 };
	struct mlx5dv_alloc_dm_attr mlx5_dm_attr = { .type = MLX5DV_DM_TYPE_MEMIC };
	struct ibv_dm *dm = mlx5dv_alloc_dm(end->context, &dm_attr, &mlx5_dm_attr);
	struct mlx5dv_dm raw_dm = { 0 };
	CHECK(dm);
	obj.dm.in = dm;
	obj.dm.out = &raw_dm;
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_DM) == 0 && raw_dm.length == 64);
	uint32_t word = 0x01020304;
	CHECK(ibv_memcpy_to_dm(dm, 8, &word, sizeof(word)) == 0);
	CHECK(((volatile uint32_t *)raw_dm.buf)[2] == word);
	CHECK(ibv_free_dm(dm) == 0);
	mlx5_dm_attr.type = MLX5DV_DM_TYPE_STEERING_SW_ICM;
	errno = 0;
	CHECK(mlx5dv_alloc_dm(end->context, &dm_attr, &mlx5_dm_attr) == NULL && errno == EOPNOTSUPP);

	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(end->context, MLX5DV_UAR_ALLOC_TYPE_NC);
	CHECK(uar && uar->reg_addr == (char *)uar->base_addr + 0x800 && uar->page_id && uar->mmap_off);
	mlx5dv_devx_free_uar(uar);

	CHECK(mlx5dv_init_obj(NULL, MLX5DV_OBJ_QP) == EINVAL);
	CHECK(mlx5dv_init_obj(&obj, 1ULL << 63) == EOPNOTSUPP);
	memset(&obj, 0, sizeof(obj));
	CHECK(mlx5dv_init_obj(&obj, MLX5DV_OBJ_QP) == EINVAL);
}

/* Messages: this program writes receives and sends to the rings, and reads completions from them. */
static void by_hand(struct end *a, struct end *b)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(a, IBV_QPT_RC);
	attr.sq_sig_all = 1;
	CHECK(a->qp = ibv_create_qp_ex(a->context, &attr));
	attr = qp_attr(b, IBV_QPT_RC);
	struct mlx5dv_qp_init_attr mlx5_attr = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
						 .create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE };
	CHECK(b->qp = mlx5dv_create_qp(b->context, &attr, &mlx5_attr));
	struct hand sender, receiver;
	take(&sender, a);
	take(&receiver, b);
	CHECK(sender.qp.sq.stride == 64 && sender.qp.bf.reg && sender.qp.comp_mask & MLX5DV_QP_MASK_UAR_MMAP_OFFSET);
	CHECK(receiver.qp.rq.wqe_cnt >= DEPTH && receiver.cq.cqe_cnt >= 4 * DEPTH && receiver.cq.cqe_size == 64);
	connect_ends(a, b);

	/* More messages than the rings have room for, so that every index wraps. */
	for (uint32_t i = 0; i < 5 * DEPTH; i++) {
		recv_by_hand(&receiver, b->buf, 8, b->mr->lkey);
		uint64_t message = i * 3 + 1;
		memcpy(a->buf + 64, &message, sizeof(message));
		send_by_hand(&sender, a->qp->qp_num, a->buf + 64, 8, a->mr->lkey);
		struct mlx5_cqe64 *cqe = poll_by_hand(&sender);
		CHECK(mlx5dv_get_cqe_opcode(cqe) == MLX5_CQE_REQ && be16toh(cqe->wqe_counter) == (i & 0xffff));
		CHECK((be32toh(cqe->sop_drop_qpn) & 0xffffff) == a->qp->qp_num);
		cqe = poll_by_hand(&receiver);
		CHECK(mlx5dv_get_cqe_opcode(cqe) == MLX5_CQE_RESP_SEND && be32toh(cqe->byte_cnt) == 8);
		CHECK(memcmp(b->buf, &message, sizeof(message)) == 0);
	}
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
}

/* A CQ with mlx5's options, which this program arms. */
static void events_by_hand(struct end *a, struct end *b)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = 10, .cq_context = a, .channel = a->channel };
	struct mlx5dv_cq_init_attr mlx5_attr = { .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE, .cqe_size = 128 };
	struct ibv_cq_ex *cq_ex = mlx5dv_create_cq(a->context, &attr, &mlx5_attr);
	CHECK(cq_ex);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(cq_ex), *other = a->cq, *reported;
	void *context;
	a->cq = cq;
	struct ibv_qp_init_attr_ex qp = qp_attr(a, IBV_QPT_RC);
	CHECK(a->qp = ibv_create_qp_ex(a->context, &qp));
	qp = qp_attr(b, IBV_QPT_RC);
	CHECK(b->qp = ibv_create_qp_ex(b->context, &qp));
	struct hand receiver;
	take(&receiver, a);
	CHECK(receiver.cq.cqe_size == 128 && receiver.cq.cq_uar);
	connect_ends(a, b);
	recv_by_hand(&receiver, a->buf, 8, a->mr->lkey);
	arm_by_hand(&receiver);
	struct ibv_sge sge = { (uintptr_t)b->buf, 8, b->mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	wr.send_flags = IBV_SEND_SIGNALED;
	/* The doorbell that arms is found some time after it was written; an armed queue reports any completion. */
	CHECK(ibv_post_send(b->qp, &wr, &bad) == 0);
	CHECK(ibv_get_cq_event(a->channel, &reported, &context) == 0 && reported == cq && context == a);
	ibv_ack_cq_events(cq, 1);
	CHECK(mlx5dv_get_cqe_opcode(poll_by_hand(&receiver)) == MLX5_CQE_RESP_SEND);
	CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	a->cq = other;

	mlx5_attr.cqe_size = 96;
	errno = 0;
	CHECK(mlx5dv_create_cq(a->context, &attr, &mlx5_attr) == NULL && errno == EINVAL);
}

/* Messages with one doorbell, whose completions have so many entries of a CQ with compression. */
#define TOGETHER DEPTH

static uint32_t poll(struct ibv_cq *cq, struct ibv_wc *wc, int most)
{
	int n;
	do
		n = ibv_poll_cq(cq, most, wc);
	while (n == 0);
	CHECK(n > 0);
	return n;
}

static void send_together(struct end *from, struct end *to)
{
	struct ibv_sge sge[TOGETHER];
	struct ibv_send_wr wr[TOGETHER] = { 0 }, *bad;
	for (uint32_t i = 0; i < TOGETHER; i++) {
		struct ibv_sge room = { (uintptr_t)to->buf, 200, to->mr->lkey };
		struct ibv_recv_wr recv = { .wr_id = 100 + i, .sg_list = &room, .num_sge = 1 }, *bad_recv;
		CHECK(ibv_post_recv(to->qp, &recv, &bad_recv) == 0);
		sge[i] = (struct ibv_sge){ (uintptr_t)from->buf, 100 + i, from->mr->lkey };
		wr[i].sg_list = &sge[i];
		wr[i].num_sge = 1;
		wr[i].opcode = IBV_WR_SEND;
		wr[i].next = i + 1 < TOGETHER ? &wr[i + 1] : NULL;
	}
	CHECK(ibv_post_send(from->qp, wr, &bad) == 0);
}

/* The completions of such messages, expanded by this program. Whether some of them were compressed. */
static int expand_by_hand(struct hand *hand)
{
	int compressed = 0;
	for (uint32_t i = 0; i < TOGETHER;) {
		uint32_t start = hand->consumed, count = 1, lengths[TOGETHER];
		struct mlx5_cqe64 title = *poll_by_hand(hand);
		CHECK(mlx5dv_get_cqe_opcode(&title) == MLX5_CQE_RESP_SEND && be16toh(title.wqe_counter) == i);
		lengths[0] = be32toh(title.byte_cnt);
		if (mlx5dv_get_cqe_format(&title) == 3) {
			compressed = 1;
			count = be32toh(title.byte_cnt);
			CHECK(count >= 2 && count <= TOGETHER - i);
			for (uint32_t n = 0; n < count; n++) {
				uint32_t at = start + (n < 8 ? 1 : n / 8 * 8);
				char *entry = (char *)hand->cq.buf + (at & (hand->cq.cqe_cnt - 1)) * hand->cq.cqe_size;
				char *mini = entry + hand->cq.cqe_size - 64 + n % 8 * 8;
				uint32_t length;
				memcpy(&length, mini + 4, sizeof(length));
				lengths[n] = be32toh(length);
			}
			hand->consumed = start + count;
			barrier();
			hand->cq.dbrec[0] = htobe32(hand->consumed & 0xffffff);
		}
		for (uint32_t n = 0; n < count; n++)
			CHECK(lengths[n] == 100 + i + n);
		i += count;
	}
	return compressed;
}

/* A CQ whose entries the device compresses: the library polls it, or this program. */
static void compression(struct end *a, struct end *b)
{
	struct mlx5dv_context caps = { .comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION };
	CHECK(mlx5dv_query_device(a->context, &caps) == 0);
	CHECK(caps.comp_mask & MLX5DV_CONTEXT_MASK_CQE_COMPRESION);
	uint32_t formats = caps.cqe_comp_caps.supported_format;
	struct ibv_cq_init_attr_ex attr = { .cqe = 100, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct mlx5dv_cq_init_attr mlx5_attr = { .comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE };
	/* Not one format, or one that no device has. */
	for (int format = 0; format < 256; format++) {
		mlx5_attr.cqe_comp_res_format = format;
		int good = format && !(format & (format - 1)) && format & formats && caps.cqe_comp_caps.max_num;
		errno = 0;
		struct ibv_cq_ex *cq = mlx5dv_create_cq(a->context, &attr, &mlx5_attr);
		CHECK(!cq == !good && (good || errno == EINVAL));
		CHECK(!cq || ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	}
	if (!caps.cqe_comp_caps.max_num)
		return;
	CHECK(caps.flags & MLX5DV_CONTEXT_FLAGS_CQE_128B_COMP);
	mlx5_attr.comp_mask |= MLX5DV_CQ_INIT_ATTR_MASK_CQE_SIZE;
	struct ibv_cq *other = a->cq;
	int compressed = 0;
	for (int round = 0; round < 12; round++) {
		int by_hand = round % 2;
		mlx5_attr.cqe_size = round % 4 < 2 ? 64 : 128;
		mlx5_attr.cqe_comp_res_format = 1 << round / 4;
		struct ibv_cq_ex *cq_ex = mlx5dv_create_cq(a->context, &attr, &mlx5_attr);
		CHECK(cq_ex);
		a->cq = ibv_cq_ex_to_cq(cq_ex);
		struct ibv_qp_init_attr_ex qp = qp_attr(a, IBV_QPT_RC);
		CHECK(a->qp = ibv_create_qp_ex(a->context, &qp));
		qp = qp_attr(b, IBV_QPT_RC);
		CHECK(b->qp = ibv_create_qp_ex(b->context, &qp));
		struct hand receiver;
		if (by_hand)
			take(&receiver, a);
		connect_ends(a, b);
		send_together(b, a);
		if (by_hand)
			compressed += expand_by_hand(&receiver);
		for (uint32_t i = 0, n; !by_hand && i < TOGETHER; i += n) {
			struct ibv_wc wc[3];
			n = i % 4 ? poll(a->cq, wc, 3) : poll(a->cq, wc, 1);
			for (uint32_t j = 0; j < n; j++)
				CHECK(wc[j].wr_id == 100 + i + j && wc[j].byte_len == 100 + i + j && !wc[j].status);
		}
		CHECK(ibv_destroy_qp(a->qp) == 0 && ibv_destroy_qp(b->qp) == 0);
		CHECK(ibv_destroy_cq(a->cq) == 0);
	}
	CHECK(compressed > 0);
	a->cq = other;
}

/* Commands for the firmware on a device that refuses them (UVERBS_HCA_DEVX=0), so that ibv_open_device(3) has opened
 * the context without them: each function fails as its man page specifies. */
static void no_commands(struct ibv_context *context)
{
	char in[16] = { 1 }, out[16];
	CHECK(mlx5dv_devx_general_cmd(context, in, sizeof(in), out, sizeof(out)) > 0);
	CHECK(mlx5dv_devx_general_cmd(NULL, in, sizeof(in), out, sizeof(out)) == EINVAL);
	CHECK(mlx5dv_devx_general_cmd(context, NULL, sizeof(in), out, sizeof(out)) == EINVAL);
#define FAILS(call) CHECK((errno = 0, (call) == NULL) && errno > 0)
	FAILS(mlx5dv_devx_obj_create(context, in, sizeof(in), out, sizeof(out)));
	FAILS(mlx5dv_devx_umem_reg(context, in, sizeof(in), 0));
	FAILS(mlx5dv_devx_umem_reg_ex(context, NULL));
	FAILS(mlx5dv_devx_alloc_uar(context, 9));
	uint32_t eqn;
	CHECK(mlx5dv_devx_query_eqn(NULL, 0, &eqn) == EINVAL);
	CHECK(mlx5dv_devx_obj_query(NULL, in, sizeof(in), out, sizeof(out)) == EINVAL);
	CHECK(mlx5dv_devx_obj_modify(NULL, in, sizeof(in), out, sizeof(out)) == EINVAL);
	CHECK(mlx5dv_devx_obj_query_async(NULL, in, sizeof(in), sizeof(out), 1, NULL) == EINVAL);
	CHECK(mlx5dv_devx_obj_destroy(NULL) == EINVAL && mlx5dv_devx_umem_dereg(NULL) == EINVAL);
	CHECK(mlx5dv_devx_qp_query(NULL, in, sizeof(in), out, sizeof(out)) == EINVAL);
	CHECK(mlx5dv_devx_cq_modify(NULL, in, sizeof(in), out, sizeof(out)) == EINVAL);
	CHECK(mlx5dv_devx_get_async_cmd_comp(NULL, NULL, 0) == EINVAL);
	uint16_t event = 0;
	CHECK(mlx5dv_devx_subscribe_devx_event(NULL, NULL, sizeof(event), &event, 1) == EINVAL);
	CHECK(mlx5dv_devx_subscribe_devx_event_fd(NULL, 0, NULL, 0) == EINVAL);
	errno = 0;
	CHECK(mlx5dv_devx_get_event(NULL, NULL, 0) == -1 && errno == EINVAL);
	mlx5dv_devx_destroy_cmd_comp(NULL);
	mlx5dv_devx_destroy_event_channel(NULL);
	mlx5dv_devx_free_uar(NULL);
}

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	device(a.context);
	no_commands(a.context);
	objects(&a);
	by_hand(&a, &b);
	close_end(&a);
	close_end(&b);
	open_end(&a, 0);
	open_end(&b, 1);
	events_by_hand(&a, &b);
	compression(&a, &b);
	close_end(&a);
	close_end(&b);
	return 0;
}
