/* SPDX-License-Identifier: MIT OR Apache-2.0 */
// Every operation of librpma's connections, with a check of all data: reads, writes, flushes, atomic writes and messages.
//
//   rpma_rw -p PORT ADDRESS        serves at an address
//   rpma_rw -c -p PORT ADDRESS     is the client of that address
#include <infiniband/verbs.h>
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REGION = 1 << 20, STEP = 64 << 10, MESSAGE = 64 };

// After the region there is room for messages.
static uint8_t *memory;
static struct rpma_peer *peer;
static struct rpma_mr_local *local;
static struct rpma_conn *conn;

static void must(const char *what, int result)
{
	if (result) {
		fprintf(stderr, "rpma_rw: %s: %s\n", what, rpma_err_2str(result));
		exit(1);
	}
}

static void check(const char *what, int is_true)
{
	if (!is_true) {
		fprintf(stderr, "rpma_rw: wrong: %s\n", what);
		exit(1);
	}
	printf("ok: %s\n", what);
}

static uint8_t byte_of(int seed, size_t at)
{
	return (uint8_t)(seed * 37 + at * 11 + (at >> 8) * 5);
}

static void fill(int seed)
{
	for (size_t at = 0; at < REGION; at++)
		memory[at] = byte_of(seed, at);
}

static int is_filled(int seed, size_t from)
{
	for (size_t at = from; at < REGION; at++)
		if (memory[at] != byte_of(seed, at))
			return 0;
	return 1;
}

// Waits for a completion, which must be that of an operation.
static void complete(const char *what, enum ibv_wc_opcode opcode, const void *context)
{
	struct rpma_cq *cq;
	struct ibv_wc wc;
	must("rpma_conn_get_cq", rpma_conn_get_cq(conn, &cq));
	must("rpma_cq_wait", rpma_cq_wait(cq));
	must("rpma_cq_get_wc", rpma_cq_get_wc(cq, 1, &wc, NULL));
	if (wc.status != IBV_WC_SUCCESS || wc.opcode != opcode || wc.wr_id != (uintptr_t)context) {
		fprintf(stderr, "rpma_rw: %s: status %s, opcode %d\n", what, ibv_wc_status_str(wc.status), wc.opcode);
		exit(1);
	}
}

static void established(void)
{
	enum rpma_conn_event event;
	must("rpma_conn_next_event", rpma_conn_next_event(conn, &event));
	check(rpma_utils_conn_event_2str(event), event == RPMA_CONN_ESTABLISHED);
}

static void closed(void)
{
	enum rpma_conn_event event;
	must("rpma_conn_next_event", rpma_conn_next_event(conn, &event));
	check(rpma_utils_conn_event_2str(event), event == RPMA_CONN_CLOSED);
	must("rpma_conn_disconnect", rpma_conn_disconnect(conn));
}

static void serve(const char *address, const char *port)
{
	struct rpma_ep *ep;
	struct rpma_conn_req *request;
	struct rpma_conn_private_data data = {0};
	size_t length;
	uint8_t descriptor[64];

	fill(1);
	must("rpma_mr_get_descriptor_size", rpma_mr_get_descriptor_size(local, &length));
	check("the size of a descriptor", length <= sizeof descriptor);
	must("rpma_mr_get_descriptor", rpma_mr_get_descriptor(local, descriptor));
	data.ptr = descriptor;
	data.len = (uint8_t)length;
	must("rpma_ep_listen", rpma_ep_listen(peer, address, port, &ep));
	must("rpma_ep_next_conn_req", rpma_ep_next_conn_req(ep, NULL, &request));
	must("rpma_conn_req_recv", rpma_conn_req_recv(request, local, REGION, MESSAGE, &memory));
	must("rpma_conn_req_connect", rpma_conn_req_connect(&request, &data, &conn));
	established();
	complete("rpma_conn_req_recv", IBV_WC_RECV, &memory);
	check("the message", !memcmp(memory + REGION, "written", 8));
	uint64_t word;
	memcpy(&word, memory, sizeof word);
	check("the atomic write", word == 0x1122334455667788);
	check("the data written", is_filled(2, 8));
	memcpy(memory + REGION + MESSAGE, "received", 9);
	must("rpma_send", rpma_send(conn, local, REGION + MESSAGE, MESSAGE, RPMA_F_COMPLETION_ALWAYS, memory));
	complete("rpma_send", IBV_WC_SEND, memory);
	closed();
	must("rpma_conn_delete", rpma_conn_delete(&conn));
	must("rpma_ep_shutdown", rpma_ep_shutdown(&ep));
}

static void request(const char *address, const char *port)
{
	struct rpma_conn_req *request;
	struct rpma_conn_private_data data;
	struct rpma_mr_remote *remote;
	size_t length, at;
	uint64_t word = 0x1122334455667788;
	char bytes[8];

	must("rpma_conn_req_new", rpma_conn_req_new(peer, address, port, NULL, &request));
	must("rpma_conn_req_connect", rpma_conn_req_connect(&request, NULL, &conn));
	established();
	must("rpma_conn_get_private_data", rpma_conn_get_private_data(conn, &data));
	must("rpma_mr_remote_from_descriptor", rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote));
	must("rpma_mr_remote_get_size", rpma_mr_remote_get_size(remote, &length));
	check("the size of the region", length == REGION + 2 * MESSAGE);
	for (at = 0; at < REGION; at += STEP) {
		must("rpma_read", rpma_read(conn, local, at, remote, at, STEP, RPMA_F_COMPLETION_ALWAYS, &at));
		complete("rpma_read", IBV_WC_RDMA_READ, &at);
	}
	check("the data read", is_filled(1, 0));
	fill(2);
	for (at = 0; at < REGION; at += STEP) {
		must("rpma_write", rpma_write(conn, remote, at, local, at, STEP, RPMA_F_COMPLETION_ON_ERROR, NULL));
		must("rpma_flush", rpma_flush(conn, remote, at, STEP, RPMA_FLUSH_TYPE_VISIBILITY,
					      RPMA_F_COMPLETION_ALWAYS, &at));
		complete("rpma_flush", IBV_WC_RDMA_READ, &at);
	}
	memcpy(bytes, &word, sizeof bytes);
	must("rpma_atomic_write", rpma_atomic_write(conn, remote, 0, bytes, RPMA_F_COMPLETION_ALWAYS, bytes));
	complete("rpma_atomic_write", IBV_WC_RDMA_WRITE, bytes);
	must("rpma_recv", rpma_recv(conn, local, REGION + MESSAGE, MESSAGE, memory));
	memcpy(memory + REGION, "written", 8);
	must("rpma_send", rpma_send(conn, local, REGION, MESSAGE, RPMA_F_COMPLETION_ON_ERROR, NULL));
	complete("rpma_recv", IBV_WC_RECV, memory);
	check("the answer", !memcmp(memory + REGION + MESSAGE, "received", 9));
	must("rpma_mr_remote_delete", rpma_mr_remote_delete(&remote));
	must("rpma_conn_disconnect", rpma_conn_disconnect(conn));
	closed();
	must("rpma_conn_delete", rpma_conn_delete(&conn));
}

int main(int argc, char **argv)
{
	const char *port = "7471";
	int is_client = 0, option;
	struct ibv_context *device;

	while ((option = getopt(argc, argv, "cp:")) != -1) {
		if (option == 'c')
			is_client = 1;
		else if (option == 'p')
			port = optarg;
		else
			return 2;
	}
	if (optind + 1 != argc)
		return 2;
	const char *address = argv[optind];
	must("rpma_utils_get_ibv_context",
	     rpma_utils_get_ibv_context(address,
					is_client ? RPMA_UTIL_IBV_CONTEXT_REMOTE : RPMA_UTIL_IBV_CONTEXT_LOCAL,
					&device));
	must("rpma_peer_new", rpma_peer_new(device, &peer));
	memory = aligned_alloc(4096, REGION + 4096);
	check("memory", memory != NULL);
	must("rpma_mr_reg",
	     rpma_mr_reg(peer, memory, REGION + 2 * MESSAGE,
			 RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC |
				 RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND |
				 RPMA_MR_USAGE_RECV,
			 &local));
	if (is_client)
		request(address, port);
	else
		serve(address, port);
	must("rpma_mr_dereg", rpma_mr_dereg(&local));
	must("rpma_peer_delete", rpma_peer_delete(&peer));
	free(memory);
	return 0;
}
