/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Indirect keys: created, configured by work requests with lists, interleaved layouts and signatures, used at both ends; and
 * work requests that are refused. */
#include "common.h"
#include <infiniband/mlx5dv.h>

enum { MKEYS = MLX5DV_QP_EX_WITH_MR_LIST | MLX5DV_QP_EX_WITH_MR_INTERLEAVED | MLX5DV_QP_EX_WITH_MKEY_CONFIGURE };
enum { WRITABLE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

static struct ibv_qp *create(struct end *end, uint64_t ops, uint32_t flags)
{
	struct ibv_qp_init_attr_ex attr = qp_attr(end, IBV_QPT_RC);
	attr.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	attr.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
	attr.cap.max_inline_data = 252;
	struct mlx5dv_qp_init_attr mlx5_attr = {
		.comp_mask = MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS | MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS,
		.send_ops_flags = ops,
		.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE | flags,
	};
	errno = 0;
	return mlx5dv_create_qp(end->context, &attr, &mlx5_attr);
}

static struct mlx5dv_mkey *create_key(struct end *end, uint32_t flags, uint16_t entries)
{
	struct mlx5dv_mkey_init_attr attr = { end->pd, flags, entries };
	errno = 0;
	struct mlx5dv_mkey *mkey = mlx5dv_create_mkey(&attr);
	if (mkey)
		CHECK(attr.max_entries >= entries && mkey->lkey == mkey->rkey);
	return mkey;
}

static struct mlx5dv_qp_ex *start(struct end *end, uint64_t wr_id, unsigned int flags)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(end->qp);
	ibv_wr_start(qp);
	qp->wr_id = wr_id;
	qp->wr_flags = flags;
	return mlx5dv_qp_ex_from_ibv_qp_ex(qp);
}

static int complete(struct end *end)
{
	return ibv_wr_complete(ibv_qp_to_qp_ex(end->qp));
}

static struct ibv_sge part(struct end *end, int at, int length)
{
	return (struct ibv_sge){ (uintptr_t)end->buf + at, length, end->mr->lkey };
}

static void configured(struct end *end, uint64_t wr_id)
{
	CHECK(complete(end) == 0);
	CHECK(poll_ok(end->cq, wr_id).opcode == (enum ibv_wc_opcode)MLX5DV_WC_UMR);
}

static int write_to(struct end *from, uint32_t rkey, uint64_t at, int length)
{
	struct ibv_sge sge = part(from, 0, length);
	struct ibv_send_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED, .wr.rdma = { at, rkey } }, *bad;
	CHECK(ibv_post_send(from->qp, &wr, &bad) == 0);
	return poll_one(from->cq).status;
}

static const unsigned int INLINED = IBV_SEND_SIGNALED | IBV_SEND_INLINE;

static void lists(struct end *a, struct end *b)
{
	struct mlx5dv_mkey *mkey;
	CHECK(mkey = create_key(b, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, 5));
	for (int i = 0; i < 70; i++) {
		/* One to eight entries, so that WQEs wrap at the end of the ring at different units. */
		struct ibv_sge list[8];
		int count = 1 + i % 8;
		for (int k = 0; k < count; k++)
			list[k] = part(b, 2000 - 100 * k, 10 + k);
		struct mlx5dv_qp_ex *mqp = start(b, i, INLINED);
		if (i % 2) {
			mlx5dv_wr_mr_list(mqp, mkey, WRITABLE, count, list);
		} else {
			struct mlx5dv_mkey_conf_attr attr = { 0 };
			mlx5dv_wr_mkey_configure(mqp, mkey, 2, &attr);
			mlx5dv_wr_set_mkey_layout_list(mqp, count, list);
			mlx5dv_wr_set_mkey_access_flags(mqp, WRITABLE);
		}
		configured(b, i);
		memset(b->buf, 0, SIZE);
		int total = 0;
		for (int k = 0; k < count; k++)
			total += list[k].length;
		for (int k = 0; k < total; k++)
			a->buf[k] = i + k + 1;
		CHECK(write_to(a, mkey->rkey, 0, total) == IBV_WC_SUCCESS);
		int at = 0;
		for (int k = 0; k < count; at += list[k++].length) {
			CHECK(memcmp((void *)(uintptr_t)list[k].addr, a->buf + at, list[k].length) == 0);
			CHECK(b->buf[2000 - 100 * k + list[k].length] == 0);
		}
	}

	/* Only the rights. */
	struct mlx5dv_mkey_conf_attr attr = { 0 };
	struct mlx5dv_qp_ex *mqp = start(b, 100, INLINED);
	mlx5dv_wr_mkey_configure(mqp, mkey, 1, &attr);
	mlx5dv_wr_set_mkey_access_flags(mqp, IBV_ACCESS_REMOTE_READ);
	configured(b, 100);
	/* Nothing. */
	mqp = start(b, 101, INLINED);
	mlx5dv_wr_mkey_configure(mqp, mkey, 0, &attr);
	configured(b, 101);
	CHECK(mlx5dv_destroy_mkey(mkey) == 0);
}

static void interleaved(struct end *a, struct end *b)
{
	struct mlx5dv_mkey *mkey;
	CHECK(mkey = create_key(b, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, 3));
	struct mlx5dv_mr_interleaved data[2] = {
		{ (uintptr_t)b->buf + 100, 8, 2, b->mr->lkey },
		{ (uintptr_t)b->buf + 1000, 3, 0, b->mr->lkey },
	};
	struct mlx5dv_qp_ex *mqp = start(b, 1, INLINED);
	mlx5dv_wr_mr_interleaved(mqp, mkey, WRITABLE, 3, 2, data);
	configured(b, 1);
	for (int i = 0; i < 33; i++)
		a->buf[i] = i + 1;
	memset(b->buf, 0, SIZE);
	CHECK(write_to(a, mkey->rkey, 0, 33) == IBV_WC_SUCCESS);
	for (int i = 0; i < 3; i++) {
		CHECK(memcmp(b->buf + 100 + 10 * i, a->buf + 11 * i, 8) == 0 && b->buf[108 + 10 * i] == 0);
		CHECK(memcmp(b->buf + 1000 + 3 * i, a->buf + 11 * i + 8, 3) == 0);
	}

	/* A part that is too long for its field; libmlx5 would cut it. */
	data[0].bytes_count = 70000;
	mqp = start(b, 2, INLINED);
	mlx5dv_wr_mr_interleaved(mqp, mkey, WRITABLE, 3, 2, data);
	CHECK(complete(b) == EINVAL);
	/* It needs an entry for itself. */
	struct mlx5dv_mr_interleaved many[4] = { data[1], data[1], data[1], data[1] };
	mqp = start(b, 3, INLINED);
	mlx5dv_wr_mr_interleaved(mqp, mkey, WRITABLE, 3, 4, many);
	CHECK(complete(b) == ENOMEM);

	/* An invalidated key gives no access. */
	struct ibv_send_wr wr = { .wr_id = 4, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
				  .invalidate_rkey = mkey->rkey }, *bad;
	CHECK(ibv_post_send(b->qp, &wr, &bad) == 0);
	CHECK(poll_ok(b->cq, 4).opcode == IBV_WC_LOCAL_INV);
	CHECK(write_to(a, mkey->rkey, 0, 1) == IBV_WC_REM_ACCESS_ERR);
	CHECK(mlx5dv_destroy_mkey(mkey) == 0);
}

static void refused(struct end *end)
{
	CHECK(!create_key(end, 0, 4) && errno == EOPNOTSUPP);
	CHECK(!create_key(end, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT | MLX5DV_MKEY_INIT_ATTR_FLAGS_CRYPTO, 4));
	CHECK(errno == EOPNOTSUPP);
	struct mlx5dv_mkey *mkey;
	CHECK(mkey = create_key(end, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, 4));
	struct mlx5dv_mkey_err err;
	CHECK(mlx5dv_mkey_check(mkey, &err) == EINVAL);
	struct ibv_sge list[20];
	for (int i = 0; i < 20; i++)
		list[i] = part(end, 64 * i, 8);
	struct mlx5dv_mkey_conf_attr none = { 0 }, unknown = { .conf_flags = 1 << 5 };
	struct mlx5dv_sig_block_attr signature = { 0 };

#define REFUSED(error, flags, ...)                                     \
	do {                                                           \
		struct mlx5dv_qp_ex *mqp = start(end, 9, flags);       \
		__VA_ARGS__;                                           \
		CHECK(complete(end) == error);                         \
	} while (0)

	REFUSED(EOPNOTSUPP, IBV_SEND_SIGNALED, mlx5dv_wr_mr_list(mqp, mkey, WRITABLE, 1, list));
	REFUSED(EOPNOTSUPP, INLINED, mlx5dv_wr_mkey_configure(mqp, mkey, 0, &unknown));
	REFUSED(ENOMEM, INLINED, mlx5dv_wr_mr_list(mqp, mkey, WRITABLE, 5, list));
	REFUSED(EINVAL, INLINED, mlx5dv_wr_mr_list(mqp, NULL, WRITABLE, 1, list));
	REFUSED(EINVAL, INLINED, mlx5dv_wr_mr_list(mqp, mkey, IBV_ACCESS_MW_BIND, 1, list));
	REFUSED(EINVAL, INLINED, mlx5dv_wr_mr_list(mqp, mkey, WRITABLE, 1, NULL));
	/* A setter is missing, is called twice, or without a builder. */
	REFUSED(EINVAL, INLINED, mlx5dv_wr_mkey_configure(mqp, mkey, 1, &none));
	REFUSED(EINVAL, INLINED, mlx5dv_wr_mkey_configure(mqp, mkey, 2, &none),
		mlx5dv_wr_set_mkey_access_flags(mqp, 0), mlx5dv_wr_set_mkey_access_flags(mqp, 0));
	REFUSED(EINVAL, INLINED, mlx5dv_wr_set_mkey_access_flags(mqp, 0));
	REFUSED(EINVAL, INLINED, mlx5dv_wr_mkey_configure(mqp, mkey, 1, &none),
		ibv_wr_set_sge(ibv_qp_to_qp_ex(end->qp), list[0].lkey, list[0].addr, 8));
	REFUSED(EINVAL, INLINED, mlx5dv_wr_mkey_configure(mqp, mkey, 2, &none),
		mlx5dv_wr_set_mkey_access_flags(mqp, 0), ibv_wr_send(ibv_qp_to_qp_ex(end->qp)),
		ibv_wr_set_sge(ibv_qp_to_qp_ex(end->qp), list[0].lkey, list[0].addr, 8));
	/* The key has no signature. */
	REFUSED(EINVAL, INLINED, mlx5dv_wr_mkey_configure(mqp, mkey, 1, &none),
		mlx5dv_wr_set_mkey_sig_block(mqp, &signature));
	/* More than the queue has room for. */
	struct mlx5dv_mkey *wide;
	CHECK(wide = create_key(end, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT, 100));
	REFUSED(ENOMEM, INLINED, mlx5dv_wr_mr_list(mqp, wide, WRITABLE, 20, list));
	REFUSED(ENOMEM, INLINED, for (int i = 0; i < 20 * DEPTH; i++) mlx5dv_wr_mr_list(mqp, wide, WRITABLE, 16, list));
	CHECK(mlx5dv_destroy_mkey(wide) == 0);

	/* None of these was posted, and a work request that is right still is. A session may have several. */
	struct mlx5dv_qp_ex *mqp = start(end, 10, INLINED);
	mlx5dv_wr_mr_list(mqp, mkey, WRITABLE, 4, list);
	ibv_qp_to_qp_ex(end->qp)->wr_id = 11;
	mlx5dv_wr_mr_list(mqp, mkey, WRITABLE, 2, list);
	CHECK(complete(end) == 0);
	poll_ok(end->cq, 10);
	poll_ok(end->cq, 11);
	CHECK(mlx5dv_destroy_mkey(mkey) == 0);
}

/* CRC-32 as Fibre Channel computes it. */
static uint32_t crc32_of(const char *data, int length)
{
	uint32_t crc = UINT32_MAX;
	for (int i = 0; i < length; i++) {
		crc ^= (uint8_t)data[i];
		for (int k = 0; k < 8; k++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return ~crc;
}

static void sign(struct end *end, struct mlx5dv_mkey *mkey, uint64_t wr_id)
{
	struct mlx5dv_sig_crc crc = { MLX5DV_SIG_CRC_TYPE_CRC32, UINT32_MAX };
	struct mlx5dv_sig_block_domain domain = { MLX5DV_SIG_TYPE_CRC, { .crc = &crc }, MLX5DV_BLOCK_SIZE_512, 0 };
	struct mlx5dv_sig_block_attr attr = { .mem = &domain, .check_mask = MLX5DV_SIG_MASK_CRC32 };
	struct mlx5dv_mkey_conf_attr none = { 0 };
	struct ibv_sge list[2] = { part(end, 0, 512), part(end, 1000, 4) };
	struct mlx5dv_qp_ex *mqp = start(end, wr_id, INLINED);
	mlx5dv_wr_mkey_configure(mqp, mkey, 3, &none);
	mlx5dv_wr_set_mkey_access_flags(mqp, IBV_ACCESS_LOCAL_WRITE);
	mlx5dv_wr_set_mkey_layout_list(mqp, 2, list);
	mlx5dv_wr_set_mkey_sig_block(mqp, &attr);
	configured(end, wr_id);
}

static void signatures(struct end *a, struct end *b)
{
	struct mlx5dv_context caps = { .comp_mask = MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD };
	CHECK(mlx5dv_query_device(a->context, &caps) == 0 && caps.comp_mask == MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD);
	CHECK(caps.sig_caps.block_prot == (MLX5DV_SIG_PROT_CAP_T10DIF | MLX5DV_SIG_PROT_CAP_CRC));
	CHECK(caps.sig_caps.block_size == 0x1f && caps.sig_caps.crc_type == 7 && caps.sig_caps.t10dif_bg == 3);

	struct mlx5dv_mkey *mkey;
	struct mlx5dv_mkey_err err;
	CHECK(mkey = create_key(a, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT | MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE, 4));
	for (int i = 0; i < 6; i++) {
		memset(a->buf, 'a' + i, 512);
		uint32_t crc = htole32(crc32_of(a->buf, 512) ^ (i % 2 ? 0x100 : 0));
		memcpy(a->buf + 1000, &crc, 4);
		/* After an error, the key must be configured again. */
		if (i < 3)
			sign(a, mkey, 20);
		else {
			struct mlx5dv_mkey_conf_attr none = { 0 };
			mlx5dv_wr_mkey_configure(start(a, 20, INLINED), mkey, 0, &none);
			configured(a, 20);
		}
		post_recv(b, 21, 0, 512);
		struct ibv_sge sge = { 0, 512, mkey->lkey };
		struct ibv_send_wr wr = { .wr_id = 22, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
					  .send_flags = IBV_SEND_SIGNALED }, *bad;
		CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
		poll_ok(a->cq, 22);
		CHECK(poll_ok(b->cq, 21).byte_len == 512 && memcmp(a->buf, b->buf, 512) == 0);
		CHECK(mlx5dv_mkey_check(mkey, &err) == 0);
		CHECK(err.err_type == (i % 2 ? MLX5DV_MKEY_SIG_BLOCK_BAD_GUARD : MLX5DV_MKEY_NO_ERR));
		if (i % 2) {
			CHECK(err.err.sig.actual_value == crc32_of(a->buf, 512));
			CHECK(err.err.sig.expected_value == (crc32_of(a->buf, 512) ^ 0x100));
			CHECK(mlx5dv_mkey_check(mkey, &err) == 0 && err.err_type == MLX5DV_MKEY_NO_ERR);
		}
	}
	/* Without the signature, the memory has 516 bytes. */
	struct mlx5dv_mkey_conf_attr reset = { .conf_flags = MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR };
	mlx5dv_wr_mkey_configure(start(a, 23, INLINED), mkey, 0, &reset);
	configured(a, 23);
	post_recv(b, 24, 0, 516);
	struct ibv_sge sge = { 0, 516, mkey->lkey };
	struct ibv_send_wr wr = { .wr_id = 25, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(a->qp, &wr, &bad) == 0);
	poll_ok(a->cq, 25);
	CHECK(poll_ok(b->cq, 24).byte_len == 516);
	CHECK(mlx5dv_destroy_mkey(mkey) == 0);

	/* A wrong seed, and a domain without a struct. */
	CHECK(mkey = create_key(a, MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT | MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE, 4));
	struct mlx5dv_sig_crc crc = { MLX5DV_SIG_CRC_TYPE_CRC32, 5 };
	for (int i = 0; i < 2; i++) {
		struct mlx5dv_sig_block_domain domain = { MLX5DV_SIG_TYPE_CRC, { .crc = i ? NULL : &crc }, 0, 0 };
		struct mlx5dv_sig_block_attr attr = { .wire = &domain };
		struct mlx5dv_qp_ex *mqp = start(a, 26, INLINED);
		mlx5dv_wr_mkey_configure(mqp, mkey, 1, &reset);
		mlx5dv_wr_set_mkey_sig_block(mqp, &attr);
		CHECK(complete(a) == EINVAL);
	}
	CHECK(mlx5dv_destroy_mkey(mkey) == 0);
}

int main(void)
{
	struct end a, b;
	open_end(&a, 0);
	open_end(&b, 1);
	/* The functions that were requested, and no others. */
	CHECK(a.qp = create(&a, MLX5DV_QP_EX_WITH_MR_LIST, 0));
	struct mlx5dv_qp_ex *mqp = mlx5dv_qp_ex_from_ibv_qp_ex(ibv_qp_to_qp_ex(a.qp));
	CHECK(mqp->wr_mr_list && !mqp->wr_mr_interleaved && !mqp->wr_mkey_configure && !mqp->wr_set_mkey_sig_block);
	CHECK(ibv_destroy_qp(a.qp) == 0);
	CHECK(!create(&a, MLX5DV_QP_EX_WITH_MEMCPY, 0) && errno == EOPNOTSUPP);

	CHECK(a.qp = create(&a, MKEYS, 0));
	CHECK(b.qp = create(&b, MKEYS, MLX5DV_QP_CREATE_SIG_PIPELINING));
	connect_ends(&a, &b);
	refused(&a);
	refused(&b);
	signatures(&a, &b);
	lists(&a, &b);
	interleaved(&a, &b);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
