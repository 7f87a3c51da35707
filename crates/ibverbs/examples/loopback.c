/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sends a message from a device to itself, over a reliable connection, and prints what arrived.
 *
 * As an executable without any shared library, which runs in an empty container or in an initramfs:
 *
 *     cargo xtask dist
 *     cc -O2 -static -s -Wl,--gc-sections -o loopback crates/ibverbs/examples/loopback.c target/dist/libibverbs.a -lm
 *     ./loopback                  # the first device; another one: ./loopback mlx5_1
 *
 * The drivers are in the executable: it reads no configuration and loads nothing. With `cargo xtask dist --hca` and
 * UVERBS_HCA=1 in its environment it runs on the software HCA.
 */
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 1, SIZE = 4096, PSN = 1 };

static void must(int holds, const char *what)
{
	if (!holds) {
		perror(what);
		exit(1);
	}
}

static struct ibv_context *open_device(const char *name)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	must(list != NULL, "ibv_get_device_list");
	struct ibv_context *context = NULL;
	for (int i = 0; i < count && !context; i++)
		if (!name || strcmp(ibv_get_device_name(list[i]), name) == 0)
			context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	if (!context)
		fprintf(stderr, "no device %s\n", name ? name : "");
	must(context != NULL, "ibv_open_device");
	return context;
}

/* The queue pair is connected to itself. */
static void connect_to_itself(struct ibv_qp *qp)
{
	struct ibv_port_attr port;
	must(ibv_query_port(qp->context, PORT, &port) == 0, "ibv_query_port");
	int is_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
	must(ibv_modify_qp(qp, &attr, mask) == 0, "to INIT");

	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = port.active_mtu,
		.dest_qp_num = qp->qp_num,
		.rq_psn = PSN,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = { .port_num = PORT, .dlid = port.lid, .is_global = is_ethernet },
	};
	if (is_ethernet) {
		must(ibv_query_gid(qp->context, PORT, 0, &attr.ah_attr.grh.dgid) == 0, "ibv_query_gid");
		attr.ah_attr.grh.hop_limit = 64;
	}
	mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	must(ibv_modify_qp(qp, &attr, mask) == 0, "to RTR");

	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS,
		.sq_psn = PSN,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 1,
	};
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
	       IBV_QP_MAX_QP_RD_ATOMIC;
	must(ibv_modify_qp(qp, &attr, mask) == 0, "to RTS");
}

int main(int argc, char **argv)
{
	struct ibv_context *context = open_device(argc > 1 ? argv[1] : NULL);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	must(pd != NULL, "ibv_alloc_pd");
	static char memory[2][SIZE];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	must(mr != NULL, "ibv_reg_mr");
	struct ibv_cq *cq = ibv_create_cq(context, 2, NULL, NULL, 0);
	must(cq != NULL, "ibv_create_cq");
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	must(qp != NULL, "ibv_create_qp");
	connect_to_itself(qp);

	int length = snprintf(memory[0], SIZE, "hello from %s", ibv_get_device_name(context->device));
	struct ibv_sge from = { (uintptr_t)memory[0], length + 1, mr->lkey };
	struct ibv_sge to = { (uintptr_t)memory[1], SIZE, mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
	struct ibv_send_wr send = {
		.sg_list = &from,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad_send;
	must(ibv_post_recv(qp, &recv, &bad_recv) == 0, "ibv_post_recv");
	must(ibv_post_send(qp, &send, &bad_send) == 0, "ibv_post_send");
	for (int done = 0; done < 2;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(cq, 1, &wc);
		must(n >= 0, "ibv_poll_cq");
		if (n && wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "failed: %s\n", ibv_wc_status_str(wc.status));
			return 1;
		}
		done += n;
	}
	puts(memory[1]);

	must(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp");
	must(ibv_destroy_cq(cq) == 0, "ibv_destroy_cq");
	must(ibv_dereg_mr(mr) == 0, "ibv_dereg_mr");
	must(ibv_dealloc_pd(pd) == 0, "ibv_dealloc_pd");
	must(ibv_close_device(context) == 0, "ibv_close_device");
	return 0;
}
