// SPDX-License-Identifier: MIT OR Apache-2.0
/* The control calls, one after the other, with every command that they make. */
#define _GNU_SOURCE
#include "record.h"
#include <stdlib.h>
#include <stdarg.h>

static void note(const char *format, ...)
{
	va_list list;
	fprintf(device.trace, "{\"note\":\"");
	va_start(list, format);
	vfprintf(device.trace, format, list);
	va_end(list);
	fprintf(device.trace, "\"}\n");
}

static struct ibv_qp *create(struct ibv_cq *cq, bool ud, unsigned flags, unsigned sl, unsigned inline_data, uint64_t ops)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .cap = { 16, 10, 2, 3, inline_data }, .qp_type = ud ? IBV_QPT_UD : IBV_QPT_DRIVER,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .pd = pd, .send_ops_flags = ops,
	};
	struct efadv_qp_init_attr efa = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD, .flags = flags, .sl = sl };
	note("create_qp %d %u %u %u %llu", ud, flags, sl, inline_data, (unsigned long long)ops);
	struct ibv_qp *qp = ud ? ibv_create_qp_ex(context, &attr) : efadv_create_qp_ex(context, &attr, &efa, sizeof(efa));
	if (!qp)
		abort();
	return qp;
}

static void change(struct ibv_qp *qp, bool ud)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234, .rnr_retry = 3, .sq_psn = 0x5678 };
	note("modify_qp 1");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY))
		abort();
	attr.qp_state = IBV_QPS_RTR;
	note("modify_qp 2");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		abort();
	attr.qp_state = IBV_QPS_RTS;
	note("modify_qp 3");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | (ud ? 0 : IBV_QP_RNR_RETRY)))
		abort();
	attr.qp_state = IBV_QPS_ERR;
	note("modify_qp 6");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		abort();
	attr.qp_state = IBV_QPS_RESET;
	note("modify_qp 0");
	if (ibv_modify_qp(qp, &attr, IBV_QP_STATE))
		abort();
	note("destroy_qp");
	if (ibv_destroy_qp(qp))
		abort();
}

void walk(const char *path)
{
	static const struct generation all = { "write", 1 | 2 | 4 | 8 | 1 << 5 | 1 << 6, 32, 80, 32, 0, 2, 1 };
	static char memory[4096];
	struct ibv_device **list = ibv_get_device_list(NULL);

	device.trace = fopen(path, "w");
	if (!device.trace || !list || !list[0])
		abort();
	device.generation = &all;
	device.next_qpn = 0x105;
	note("open_device");
	context = ibv_open_device(list[0]);
	if (!context)
		abort();
	struct ibv_device_attr_ex attr;
	note("query_device");
	if (ibv_query_device_ex(context, NULL, &attr))
		abort();
	note("alloc_pd");
	pd = ibv_alloc_pd(context);
	note("create_ah");
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 0, .dgid.raw = { 0xfe, 0x80, [15] = 9 } } };
	device.next_ahn = 0x1234;
	struct ibv_ah *ah = ibv_create_ah(pd, &ah_attr);
	static const int access[] = { 0, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE };
	struct ibv_mr *mrs[4];
	for (int i = 0; i < 4; i++) {
		note("reg_mr %d", access[i]);
		mrs[i] = ibv_reg_mr(pd, memory, sizeof(memory), access[i]);
		if (!mrs[i])
			abort();
	}
	struct efadv_mr_attr mr_attr = { 0 };
	note("query_mr");
	if (efadv_query_mr(mrs[0], &mr_attr, sizeof(mr_attr)))
		abort();
	for (int i = 0; i < 4; i++) {
		note("dereg_mr");
		ibv_dereg_mr(mrs[i]);
	}
	note("create_comp_channel");
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cqs[4];
	for (int i = 0; i < 4; i++) {
		struct ibv_cq_init_attr_ex ex = { .cqe = 100, .channel = i & 1 ? channel : NULL, .wc_flags = IBV_WC_STANDARD_FLAGS, .comp_vector = i };
		struct efadv_cq_init_attr efa = { .wc_flags = i & 2 ? EFADV_WC_EX_WITH_SGID : 0 };
		note("create_cq %d %d %d", i & 1, i >> 1, i);
		cqs[i] = ibv_cq_ex_to_cq(efadv_create_cq(context, &ex, &efa, sizeof(efa)));
		if (!cqs[i])
			abort();
	}
	change(create(cqs[0], true, 0, 0, 0, IBV_QP_EX_WITH_SEND), true);
	change(create(cqs[0], false, 0, 0, 32, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_READ), false);
	change(create(cqs[1], false, EFADV_QP_FLAGS_UNSOLICITED_WRITE_RECV, 5, 0, IBV_QP_EX_WITH_RDMA_WRITE), false);
	change(create(cqs[2], false, EFADV_QP_FLAGS_INLINE_WRITE, 0, 80, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM), false);
	for (int i = 0; i < 4; i++) {
		note("destroy_cq");
		ibv_destroy_cq(cqs[i]);
	}
	note("destroy_ah");
	ibv_destroy_ah(ah);
	note("dealloc_pd");
	ibv_dealloc_pd(pd);
	note("close");
	ibv_close_device(context);
	fclose(device.trace);
	device.trace = NULL;
}
