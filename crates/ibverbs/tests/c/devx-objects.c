/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Commands for the firmware on a software HCA of this process: settings of queue pairs, reserved numbers, memory of a
 * file, wrong commands, and events against the end of the channel and of the object. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <infiniband/mlx5dv.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	QUERY_HCA_CAP = 0x100, CREATE_CQ = 0x400, QUERY_CQ = 0x402, RST2INIT_QP = 0x502, RTS2RTS_QP = 0x505, QUERY_QP = 0x50b,
	ALLOC_PD = 0x800, NOP = 0x80d, CREATE_GENERAL = 0xa00, QUERY_GENERAL = 0xa02, RESERVED_QPN = 0x2c, COMPLETION = 0,
	CQ_ERROR = 4, PORT_CHANGE = 9, BAD_PARAM = 3,
};

int any_map_ah_to_qp() __asm__("mlx5dv_map_ah_to_qp");

static struct ibv_context *open_devx(int index)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	CHECK(list && count > index);
	struct ibv_context *context = mlx5dv_open_device(list[index], &attr);
	CHECK(context);
	ibv_free_device_list(list);
	return context;
}

static void set(void *in, size_t bit, size_t len, uint32_t value)
{
	_devx_set(in, value, bit, len);
}

static char in[1024] __attribute__((aligned(8))), out[16 + 4096] __attribute__((aligned(8)));

static char *command(int opcode)
{
	memset(in, 0, sizeof(in));
	memset(out, 0x5a, sizeof(out));
	set(in, 0, 16, opcode);
	return in;
}

/* Settings of a queue pair of verbs. */
static void settings(void)
{
	struct end a, b;
	open_end(&b, 1);
	memset(&a, 0, sizeof(a));
	a.context = open_devx(0);
	CHECK(a.pd = ibv_alloc_pd(a.context));
	CHECK(a.cq = ibv_create_cq(a.context, DEPTH, NULL, NULL, 0));
	CHECK(ibv_query_gid(a.context, PORT, GID_INDEX, &a.gid) == 0);
	struct ibv_qp_init_attr_ex attr = qp_attr(&a, IBV_QPT_RC);
	CHECK(a.qp = ibv_create_qp_ex(a.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	CHECK(mlx5dv_modify_qp_udp_sport(a.qp, 0xd123) == EOPNOTSUPP);
	connect_ends(&a, &b);
	CHECK(mlx5dv_modify_qp_udp_sport(a.qp, 0xd123) == 0);
	command(QUERY_QP);
	set(in, 0x48, 24, a.qp->qp_num);
	CHECK(mlx5dv_devx_qp_query(a.qp, in, 16, out, 0x110) == 0);
	CHECK(_devx_get(out + 0x18, 0, 4) == 3 && _devx_get(out + 0x18, 0xc0 + 0x110, 16) == 0xd123);
	CHECK(_devx_get(out + 0x18, 0xa8, 24) == b.qp->qp_num);
	set(in, 0x48, 24, a.qp->qp_num + 1);
	CHECK(mlx5dv_devx_qp_query(a.qp, in, 16, out, 0x110) == EINVAL);
	command(RST2INIT_QP);
	set(in, 0x48, 24, a.qp->qp_num);
	CHECK(mlx5dv_devx_qp_modify(a.qp, in, 0x110, out, 16) == EREMOTEIO && out[0] == 0x10);

	/* The queue pair still works. */
	post_recv(&b, 1, 0, 64);
	struct ibv_send_wr wr = { .wr_id = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	poll_ok(a.cq, 2);
	poll_ok(b.cq, 1);

	uint8_t port, active;
	CHECK(mlx5dv_query_qp_lag_port(a.qp, &port, &active) == EOPNOTSUPP);
	CHECK(mlx5dv_modify_qp_lag_port(a.qp, 1) == EOPNOTSUPP);
	CHECK(ibv_query_qp_data_in_order(a.qp, IBV_WR_SEND, 1) == 0);

	struct ibv_ah_attr address = address_of(&b);
	struct ibv_ah *ah = ibv_create_ah(a.pd, &address);
	CHECK(ah && any_map_ah_to_qp(ah, 0x1000000) == EINVAL && any_map_ah_to_qp(ah, 77) == 0);
	CHECK(any_map_ah_to_qp(ah, 78) == 0 && ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_cq(a.cq) == 0 && ibv_dealloc_pd(a.pd) == 0);
	CHECK(ibv_close_device(a.context) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&b);
}

/* Numbers that no queue pair gets, and that are not given out twice. */
static void reserved(struct ibv_context *context)
{
	uint32_t qpn[8], again;
	for (int i = 0; i < 8; i++) {
		CHECK(mlx5dv_reserved_qpn_alloc(context, &qpn[i]) == 0);
		for (int j = 0; j < i; j++)
			CHECK(qpn[i] != qpn[j]);
	}
	CHECK(mlx5dv_reserved_qpn_dealloc(context, qpn[3]) == 0);
	CHECK(mlx5dv_reserved_qpn_dealloc(context, qpn[3]) == EINVAL);
	CHECK(mlx5dv_reserved_qpn_dealloc(context, 0xffffff) == EINVAL);
	CHECK(mlx5dv_reserved_qpn_alloc(context, &again) == 0 && again != qpn[3]);
	CHECK(mlx5dv_reserved_qpn_dealloc(context, again) == 0);
	for (int i = 0; i < 8; i++)
		CHECK(i == 3 || mlx5dv_reserved_qpn_dealloc(context, qpn[i]) == 0);
}

static void commands(struct ibv_context *context)
{
	CHECK(mlx5dv_devx_general_cmd(context, command(NOP), 16, out, 16) == 0 && out[0] == 0);
	CHECK(mlx5dv_devx_general_cmd(context, command(NOP), 15, out, 16) == EINVAL);
	CHECK(mlx5dv_devx_general_cmd(context, command(NOP), 16, out, 4) == EINVAL);
	CHECK(mlx5dv_devx_general_cmd(context, command(ALLOC_PD), 16, out, 16) == EINVAL);
	set(command(QUERY_HCA_CAP), 0x30, 16, 0x7f << 1);
	CHECK(mlx5dv_devx_general_cmd(context, in, 16, out, sizeof(out)) == EREMOTEIO && out[0] == BAD_PARAM);
	errno = 0;
	CHECK(!mlx5dv_devx_obj_create(context, command(NOP), 16, out, 16) && errno == EINVAL);
	set(command(CREATE_GENERAL), 0x30, 16, 0x3e);
	CHECK(!mlx5dv_devx_obj_create(context, in, 32, out, 16) && errno == EREMOTEIO && out[0] == BAD_PARAM);

	/* A domain, and a general object: created, queried, not modified, destroyed. */
	struct mlx5dv_devx_obj *pd = mlx5dv_devx_obj_create(context, command(ALLOC_PD), 16, out, 16), *object;
	CHECK(pd && _devx_get(out, 0x48, 24) != 0);
	CHECK(mlx5dv_devx_obj_query(pd, command(QUERY_CQ), 16, out, 80) == EINVAL);
	set(command(CREATE_GENERAL), 0x30, 16, RESERVED_QPN);
	set(in, 0x63, 5, 2);
	CHECK(object = mlx5dv_devx_obj_create(context, in, 32, out, 16));
	uint32_t id = _devx_get(out, 0x40, 32);
	set(command(QUERY_GENERAL), 0x30, 16, RESERVED_QPN);
	set(in, 0x40, 32, id);
	CHECK(mlx5dv_devx_obj_query(object, in, 16, out, 32) == 0 && out[0] == 0);
	set(in, 0, 16, QUERY_GENERAL - 1);
	CHECK(mlx5dv_devx_obj_modify(object, in, 32, out, 16) == EREMOTEIO && out[0] == BAD_PARAM);
	set(in, 0x40, 32, id + 1);
	CHECK(mlx5dv_devx_obj_query(object, in, 16, out, 32) == EINVAL);
	CHECK(mlx5dv_devx_obj_destroy(object) == 0 && mlx5dv_devx_obj_destroy(pd) == 0);

	uint32_t eqn, other;
	CHECK(mlx5dv_devx_query_eqn(context, 0, &eqn) == 0 && mlx5dv_devx_query_eqn(context, 7, &other) == 0 && eqn != other);
	CHECK(mlx5dv_devx_query_eqn(context, 8, &eqn) == EINVAL);
}

/* A completion queue in registered memory. */
struct queue {
	char *memory;
	struct mlx5dv_devx_umem *umem;
	struct mlx5dv_devx_uar *uar;
	struct mlx5dv_devx_obj *obj;
	uint32_t cqn;
};

static struct queue create_queue(struct ibv_context *context, struct mlx5dv_devx_umem *umem, struct mlx5dv_devx_uar *uar)
{
	struct queue cq = { .umem = umem, .uar = uar };
	uint32_t eqn;
	CHECK(mlx5dv_devx_query_eqn(context, 0, &eqn) == 0);
	char *cqc = command(CREATE_CQ) + 0x10;
	set(in, 0x2c0, 32, umem->umem_id);
	set(in, 0x2e0, 1, 1);
	set(cqc, 6, 1, 1);
	set(cqc, 0x20, 32, umem->umem_id);
	set(cqc, 0x63, 5, 4);
	set(cqc, 0x68, 24, uar->page_id);
	set(cqc, 0xb8, 8, eqn);
	_devx_set64(cqc, 1024, 0x1c0);
	cq.obj = mlx5dv_devx_obj_create(context, in, 0x110, out, 16);
	CHECK(cq.obj && out[0] == 0);
	cq.cqn = _devx_get(out, 0x48, 24);
	return cq;
}

/* Limits of DC, of which this device reports none: MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM, and its two fields after the end of the
 * struct of rdma-core 44. */
static void limits(struct ibv_context *context)
{
	enum { MAX_DC_RD_ATOM = 1 << 14, FIRST = 152 / 8 };
	union {
		struct mlx5dv_context attr;
		uint64_t words[32];
	} device;
	memset(&device, 0xa5, sizeof(device));
	device.attr.comp_mask = MAX_DC_RD_ATOM;
	CHECK(mlx5dv_query_device(context, &device.attr) == 0 && device.attr.comp_mask == MAX_DC_RD_ATOM);
	CHECK(device.words[FIRST] == 1 && device.words[FIRST + 1] == 1);
	CHECK(device.words[FIRST - 1] == 0xa5a5a5a5a5a5a5a5 && device.words[FIRST + 2] == 0xa5a5a5a5a5a5a5a5);
}

/* Memory of this process and of a file, which stands for a DMA-BUF here. */
static void memory(struct ibv_context *context)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	int fd = memfd_create("buffer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CHECK(uar && fd >= 0 && ftruncate(fd, 8192) == 0);
	/* As the size of a DMA-BUF, that of the file cannot change. */
	CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	struct mlx5dv_devx_umem_in attr = {
		.addr = (void *)4096, .size = 4096, .access = IBV_ACCESS_LOCAL_WRITE, .pgsz_bitmap = 4096,
		.comp_mask = MLX5DV_UMEM_MASK_DMABUF, .dmabuf_fd = fd,
	};
	struct mlx5dv_devx_umem *umem = mlx5dv_devx_umem_reg_ex(context, &attr);
	CHECK(umem);
	struct queue cq = create_queue(context, umem, uar);
	CHECK(mlx5dv_devx_umem_dereg(umem) == EBUSY);
	command(QUERY_CQ);
	set(in, 0x48, 24, cq.cqn);
	CHECK(mlx5dv_devx_obj_query(cq.obj, in, 16, out, 80) == 0 && _devx_get(out + 0x10, 0x63, 5) == 4);
	CHECK(mlx5dv_devx_obj_destroy(cq.obj) == 0 && mlx5dv_devx_umem_dereg(umem) == 0);

	attr.addr = (void *)8192;
	CHECK(!mlx5dv_devx_umem_reg_ex(context, &attr) && errno == EINVAL);
	attr.addr = NULL;
	attr.pgsz_bitmap = 1 << 21;
	CHECK(!mlx5dv_devx_umem_reg_ex(context, &attr) && errno == EINVAL);
	attr.dmabuf_fd = 0x7000000;
	errno = 0;
	CHECK(!mlx5dv_devx_umem_reg_ex(context, &attr) && errno == EBADF);
	close(fd);
	mlx5dv_devx_free_uar(uar);
}

/* Subscriptions: wrong ones, several of one object, counted by an eventfd. */
static void subscriptions(struct ibv_context *context)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	char *bytes = aligned_alloc(4096, 4096);
	memset(bytes, 0, 4096);
	struct mlx5dv_devx_umem *umem = mlx5dv_devx_umem_reg(context, bytes, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(uar && umem);
	struct queue cq = create_queue(context, umem, uar);
	struct mlx5dv_devx_event_channel *channel = mlx5dv_devx_create_event_channel(context, 0);
	CHECK(channel && !mlx5dv_devx_create_event_channel(context, 2) && errno == EINVAL);
	uint16_t types[] = { COMPLETION, CQ_ERROR }, port = PORT_CHANGE, unknown = 0x7f;
	CHECK(mlx5dv_devx_subscribe_devx_event(channel, cq.obj, sizeof(types), types, 7) == 0);
	CHECK(mlx5dv_devx_subscribe_devx_event(channel, cq.obj, sizeof(port), &port, 7) == EINVAL);
	CHECK(mlx5dv_devx_subscribe_devx_event(channel, NULL, sizeof(port), &port, 7) == 0);
	CHECK(mlx5dv_devx_subscribe_devx_event(channel, NULL, sizeof(types), types, 7) == EINVAL);
	CHECK(mlx5dv_devx_subscribe_devx_event(channel, cq.obj, sizeof(unknown), &unknown, 7) == EINVAL);
	CHECK(mlx5dv_devx_subscribe_devx_event(channel, cq.obj, 0, types, 7) == EINVAL);
	CHECK(mlx5dv_devx_subscribe_devx_event(channel, cq.obj, 3, types, 7) == EINVAL);
	int counter = eventfd(0, EFD_NONBLOCK);
	CHECK(counter >= 0 && mlx5dv_devx_subscribe_devx_event_fd(channel, counter, cq.obj, COMPLETION) == 0);
	CHECK(mlx5dv_devx_subscribe_devx_event_fd(channel, -1, cq.obj, COMPLETION) == EBADF);
	CHECK(mlx5dv_devx_subscribe_devx_event_fd(channel, counter, cq.obj, PORT_CHANGE) == EINVAL);
	CHECK(mlx5dv_devx_obj_destroy(cq.obj) == 0);
	mlx5dv_devx_destroy_event_channel(channel);
	close(counter);
	CHECK(mlx5dv_devx_umem_dereg(umem) == 0);
	mlx5dv_devx_free_uar(uar);
	free(bytes);
}

/* Events of queues that come and go, against channels that come and go in another thread. */
enum { ROUNDS = 200 };
static atomic_int replaced, is_done;
static struct mlx5dv_devx_event_channel *_Atomic current;

/* Replaces the channel and waits on it. A channel is destroyed by the thread that takes it. */
static void *replace_channels(void *context)
{
	uint16_t type = COMPLETION;
	while (!is_done) {
		struct mlx5dv_devx_event_channel *channel = mlx5dv_devx_create_event_channel(context, 0);
		CHECK(channel);
		CHECK(mlx5dv_devx_subscribe_devx_event(channel, NULL, sizeof(type), &type, 1) == EINVAL);
		/* The other thread may close the channel, and its number may be that of a newer file. */
		struct pollfd fd = { channel->fd, POLLIN, 0 };
		mlx5dv_devx_destroy_event_channel(atomic_exchange(&current, channel));
		CHECK(poll(&fd, 1, 1) >= 0);
		atomic_fetch_add(&replaced, 1);
	}
	mlx5dv_devx_destroy_event_channel(atomic_exchange(&current, NULL));
	return NULL;
}

static void races(struct ibv_context *context)
{
	struct mlx5dv_devx_uar *uar = mlx5dv_devx_alloc_uar(context, MLX5DV_UAR_ALLOC_TYPE_NC);
	char *bytes = aligned_alloc(4096, 4096);
	memset(bytes, 0, 4096);
	struct mlx5dv_devx_umem *umem = mlx5dv_devx_umem_reg(context, bytes, 4096, IBV_ACCESS_LOCAL_WRITE);
	CHECK(uar && umem);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, replace_channels, context) == 0);
	uint16_t type = COMPLETION;
	for (int i = 0; i < ROUNDS || replaced < 20; i++) {
		struct queue cq = create_queue(context, umem, uar);
		/* The other thread does not destroy a channel that was taken. */
		struct mlx5dv_devx_event_channel *channel = atomic_exchange(&current, NULL);
		if (channel) {
			CHECK(mlx5dv_devx_subscribe_devx_event(channel, cq.obj, sizeof(type), &type, i) == 0);
			if (i % 2)
				mlx5dv_devx_destroy_event_channel(channel);
		}
		CHECK(mlx5dv_devx_obj_destroy(cq.obj) == 0);
		if (channel && i % 2 == 0)
			mlx5dv_devx_destroy_event_channel(channel);
	}
	is_done = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(mlx5dv_devx_umem_dereg(umem) == 0);
	mlx5dv_devx_free_uar(uar);
	free(bytes);
}

/* Each way to open a device gives a context with commands, if the device permits them. */
static void contexts(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *opened[3];
	CHECK(opened[0] = ibv_open_device(list[0]));
	CHECK(opened[1] = mlx5dv_open_device(list[0], &(struct mlx5dv_context_attr){ 0 }));
	CHECK(opened[2] = ibv_import_device(dup(opened[0]->cmd_fd)));
	ibv_free_device_list(list);
	for (int i = 0; i < 3; i++) {
		uint32_t qpn;
		set(command(QUERY_HCA_CAP), 0x30, 16, 1);
		CHECK(mlx5dv_devx_general_cmd(opened[i], in, 16, out, sizeof(out)) == 0);
		CHECK(mlx5dv_reserved_qpn_alloc(opened[i], &qpn) == 0);
		CHECK(mlx5dv_reserved_qpn_dealloc(opened[i], qpn) == 0);
	}
	for (int i = 2; i >= 0; i--)
		CHECK(ibv_close_device(opened[i]) == 0);
}

int main(void)
{
	contexts();
	settings();
	struct ibv_context *context = open_devx(0);
	reserved(context);
	commands(context);
	limits(context);
	memory(context);
	subscriptions(context);
	races(context);

	/* What is left ends with the context. */
	struct mlx5dv_devx_event_channel *channel = mlx5dv_devx_create_event_channel(context, 0);
	CHECK(channel && mlx5dv_devx_obj_create(context, command(ALLOC_PD), 16, out, 16));
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
