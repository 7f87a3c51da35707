/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * librdmacm on a software device, with tests/clients/c/rdma_cm.c preloaded: two threads connect, exchange a message and disconnect, several
 * times, so that numbers of connections and queue pairs are given again. A listener without a client is destroyed while another thread waits
 * for an event of its own channel.
 */
#include "common.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

enum { ROUNDS = 20 };

static struct sockaddr_in address = { .sin_family = AF_INET };

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type type, struct rdma_cm_id **id)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != type)
		fprintf(stderr, "%s in place of %s\n", rdma_event_str(event->event), rdma_event_str(type));
	CHECK(event->event == type && event->status == 0);
	if (id)
		*id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
}

static void create_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};

	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
}

static void *serve(void *arg)
{
	struct rdma_cm_id *listener = arg, *id;
	struct rdma_event_channel *channel = listener->channel;
	char data[64];

	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1 };
		struct ibv_mr *mr;
		struct ibv_wc wc;

		expect(channel, RDMA_CM_EVENT_CONNECT_REQUEST, &id);
		create_qp(id);
		CHECK(mr = rdma_reg_msgs(id, data, sizeof(data)));
		CHECK(rdma_post_recv(id, NULL, data, sizeof(data), mr) == 0);
		CHECK(rdma_accept(id, &param) == 0);
		expect(channel, RDMA_CM_EVENT_ESTABLISHED, NULL);
		CHECK(rdma_get_recv_comp(id, &wc) == 1);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.byte_len == 8 && data[0] == i);
		expect(channel, RDMA_CM_EVENT_DISCONNECTED, NULL);
		CHECK(rdma_disconnect(id) == 0);
		CHECK(rdma_dereg_mr(mr) == 0);
		rdma_destroy_qp(id);
		CHECK(rdma_destroy_id(id) == 0);
	}
	return NULL;
}

int main(void)
{
	struct rdma_event_channel *at_server, *at_client;
	struct rdma_cm_id *listener, *idle, *id;
	pthread_t server;
	union ibv_gid gid;
	struct ibv_context *context = open_hca(0);

	CHECK(ibv_query_gid(context, PORT, GID_INDEX, &gid) == 0);
	memcpy(&address.sin_addr, gid.raw + 12, 4);
	CHECK(at_server = rdma_create_event_channel());
	CHECK(at_client = rdma_create_event_channel());
	CHECK(rdma_create_id(at_server, &listener, NULL, RDMA_PS_TCP) == 0);
	CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0);
	CHECK(rdma_listen(listener, 4) == 0);
	address.sin_port = rdma_get_src_port(listener);
	CHECK(pthread_create(&server, NULL, serve, listener) == 0);

	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
		struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr = address.sin_addr };
		char data[8] = { (char)i };
		struct ibv_mr *mr;
		struct ibv_wc wc;

		CHECK(rdma_create_id(at_client, &idle, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_bind_addr(idle, (struct sockaddr *)&any) == 0);
		CHECK(rdma_listen(idle, 1) == 0);
		CHECK(rdma_create_id(at_client, &id, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000) == 0);
		expect(at_client, RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
		CHECK(rdma_resolve_route(id, 2000) == 0);
		expect(at_client, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
		create_qp(id);
		CHECK(mr = rdma_reg_msgs(id, data, sizeof(data)));
		CHECK(rdma_connect(id, &param) == 0);
		expect(at_client, RDMA_CM_EVENT_ESTABLISHED, NULL);
		CHECK(rdma_destroy_id(idle) == 0);
		CHECK(rdma_post_send(id, NULL, data, sizeof(data), mr, 0) == 0);
		CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
		CHECK(rdma_disconnect(id) == 0);
		expect(at_client, RDMA_CM_EVENT_DISCONNECTED, NULL);
		CHECK(rdma_dereg_mr(mr) == 0);
		rdma_destroy_qp(id);
		CHECK(rdma_destroy_id(id) == 0);
	}
	CHECK(pthread_join(server, NULL) == 0);
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(at_client);
	rdma_destroy_event_channel(at_server);
	CHECK(ibv_close_device(context) == 0);
	return 0;
}
