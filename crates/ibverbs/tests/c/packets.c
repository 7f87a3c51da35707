/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Raw packets: steering rules, work queues, and queue pairs that distribute packets over them. */
#include "common.h"
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { HEADERS = 14 + 20 + 8, FRAME = HEADERS + 32, QUEUES = 4, FLOWS = 16, TAG = 0x1234 };

static const uint8_t mac[6] = { 2, 9, 9, 9, 9, 9 };
static struct end a, b;

/* A UDP packet between two ports. */
static void write_frame(char *at, uint16_t from, uint16_t to)
{
	uint8_t ip[20] = { 0x45, 0, 0, FRAME - 14, 0, 7, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2 };
	uint8_t udp[8] = { from >> 8, from, to >> 8, to, 0, FRAME - 34, 0, 0 };
	memset(at, 0, FRAME);
	memcpy(at, mac, 6);
	memcpy(at + 6, "\2\0\0\0\0\11\10\0", 8);
	memcpy(at + 14, ip, 20);
	memcpy(at + 34, udp, 8);
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

static void send_frame(uint16_t from, uint16_t to)
{
	write_frame(a.buf, from, to);
	struct ibv_sge sge = { (uintptr_t)a.buf, FRAME, a.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 9,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	CHECK(ibv_post_send(a.qp, &wr, &bad) == 0);
	poll_ok(a.cq, 9);
}

/* A rule: packets to `mac`, and to one port if it is not 0. */
struct rule {
	struct ibv_flow_attr attr;
	struct ibv_flow_spec_eth eth;
	struct ibv_flow_spec_ipv4_ext ip;
	struct ibv_flow_spec_tcp_udp udp;
	struct ibv_flow_spec_action_tag tag;
	struct ibv_flow_spec_counter_action count;
};

static struct rule rule_for(uint16_t port)
{
	struct rule rule = {
		.attr = { .size = sizeof(rule), .num_of_specs = 4, .port = PORT },
		.eth = { .type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.eth) },
		.ip = { .type = IBV_FLOW_SPEC_IPV4_EXT, .size = sizeof(rule.ip) },
		.udp = { .type = IBV_FLOW_SPEC_UDP, .size = sizeof(rule.udp) },
		.tag = { .type = IBV_FLOW_SPEC_ACTION_TAG, .size = sizeof(rule.tag), .tag_id = TAG },
	};
	memcpy(rule.eth.val.dst_mac, mac, 6);
	memset(rule.eth.mask.dst_mac, 0xff, 6);
	rule.eth.val.ether_type = htobe16(0x800);
	rule.eth.mask.ether_type = 0xffff;
	rule.ip.val.dst_ip = htobe32(0x0a000002);
	rule.ip.mask.dst_ip = 0xffffffff;
	rule.udp.val.dst_port = htobe16(port);
	rule.udp.mask.dst_port = port ? 0xffff : 0;
	return rule;
}

/* Checks that no packet arrives: the device processes packets while it is polled. */
static void nothing_arrives(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	for (int i = 0; i < 1000; i++)
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
}

static void steer(void)
{
	post_recv(&b, 1, 1024, 512);
	send_frame(7, 8);
	nothing_arrives(b.cq);
	struct rule rule = rule_for(8), wrong = rule_for(8);
	struct ibv_flow *flow = ibv_create_flow(b.qp, &rule.attr);
	CHECK(flow && flow->context == b.context);
	CHECK(ibv_destroy_qp(b.qp) == EBUSY);
	send_frame(7, 9);
	nothing_arrives(b.cq);
	send_frame(7, 8);
	struct ibv_wc wc = poll_ok(b.cq, 1);
	CHECK(wc.byte_len == FRAME && memcmp(a.buf, b.buf + 1024, FRAME) == 0);
	CHECK(ibv_destroy_flow(flow) == 0);
	post_recv(&b, 2, 1024, 512);
	send_frame(7, 8);
	nothing_arrives(b.cq);

	/* Invalid rules. */
	errno = 0;
	wrong.eth.type = 0x77;
	CHECK(ibv_create_flow(b.qp, &wrong.attr) == NULL && errno == EINVAL);
	wrong = rule_for(8);
	wrong.ip.size = 8;
	errno = 0;
	CHECK(ibv_create_flow(b.qp, &wrong.attr) == NULL && errno == EINVAL);
	wrong.attr.port = 0;
	wrong.attr.num_of_specs = 0;
	errno = 0;
	CHECK(ibv_create_flow(b.qp, &wrong.attr) == NULL && errno == EINVAL);
	wrong = rule_for(8);
	wrong.udp.type = IBV_FLOW_SPEC_ESP;
	errno = 0;
	CHECK(ibv_create_flow(b.qp, &wrong.attr) == NULL && errno == EOPNOTSUPP);
	struct ibv_flow_action_esp_attr esp = { 0 };
	errno = 0;
	CHECK(ibv_create_flow_action_esp(b.context, &esp) == NULL && errno == EOPNOTSUPP);
}

/* Counters are added to a set before a rule uses it, and count the packets that rules match. */
static void count(void)
{
	struct ibv_counters_init_attr init = { 0 };
	struct ibv_counters *counters = ibv_create_counters(b.context, &init);
	CHECK(counters && counters->context == b.context);
	struct rule rule = rule_for(8), other = rule_for(9);
	rule.attr.num_of_specs = other.attr.num_of_specs = 5;
	rule.count = (struct ibv_flow_spec_counter_action){
		.type = IBV_FLOW_SPEC_ACTION_COUNT,
		.size = sizeof(rule.count),
		.counters = counters,
	};
	other.count = rule.count;
	errno = 0;
	CHECK(ibv_create_flow(b.qp, &rule.attr) == NULL && errno == EINVAL);
	uint64_t values[4] = { 1, 1, 1, 1 };
	CHECK(ibv_read_counters(counters, values, 4, 0) == EINVAL);
	struct ibv_counter_attach_attr packets = { IBV_COUNTER_PACKETS, 3, 0 }, bytes = { IBV_COUNTER_BYTES, 1, 0 };
	struct ibv_counter_attach_attr unknown = { 7, 0, 0 };
	CHECK(ibv_attach_counters_point_flow(counters, &packets, NULL) == 0);
	CHECK(ibv_attach_counters_point_flow(counters, &bytes, NULL) == 0);
	CHECK(ibv_attach_counters_point_flow(counters, &unknown, NULL) == EOPNOTSUPP);
	struct ibv_flow *first = ibv_create_flow(b.qp, &rule.attr);
	struct ibv_flow *second = ibv_create_flow(b.qp, &other.attr);
	CHECK(first && second);
	CHECK(ibv_attach_counters_point_flow(counters, &bytes, first) == EOPNOTSUPP);
	CHECK(ibv_attach_counters_point_flow(counters, &bytes, NULL) == EBUSY);
	CHECK(ibv_destroy_counters(counters) == EBUSY);
	CHECK(ibv_read_counters(counters, values, 3, 0) == EINVAL);
	CHECK(ibv_read_counters(counters, values, 4, 0) == 0);
	CHECK(values[0] == 0 && values[1] == 0 && values[2] == 0 && values[3] == 0);
	post_recv(&b, 2, 1024, 512);
	post_recv(&b, 3, 1024, 512);
	send_frame(7, 8);
	send_frame(7, 10);
	send_frame(7, 9);
	poll_ok(b.cq, 2);
	poll_ok(b.cq, 2);
	CHECK(ibv_read_counters(counters, values, 4, IBV_READ_COUNTERS_ATTR_PREFER_CACHED) == 0);
	CHECK(values[3] == 2 && values[1] == 2 * FRAME && values[0] == 0);
	CHECK(ibv_destroy_flow(first) == 0 && ibv_destroy_flow(second) == 0);
	CHECK(ibv_read_counters(counters, values, 4, 0) == EINVAL);
	CHECK(ibv_attach_counters_point_flow(counters, &bytes, NULL) == 0);
	CHECK(ibv_destroy_counters(counters) == 0);
}

/* The queue that a packet of this flow arrived at. */
static int queue_of(struct ibv_cq_ex *cq, uint16_t from)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int error;
	send_frame(from, 8);
	while ((error = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	CHECK(error == 0 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_byte_len(cq) == FRAME);
	CHECK(ibv_wc_read_flow_tag(cq) == TAG);
	int queue = cq->wr_id;
	ibv_end_poll(cq);
	return queue;
}

static void spread(void)
{
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 256,
		.wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_FLOW_TAG,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(b.context, &cq_attr);
	CHECK(cq);
	struct ibv_wq *wqs[QUEUES];
	for (int i = 0; i < QUEUES; i++) {
		struct ibv_wq_init_attr attr = {
			.wq_context = &b,
			.wq_type = IBV_WQT_RQ,
			.max_wr = 2 * FLOWS,
			.max_sge = 1,
			.pd = b.pd,
			.cq = ibv_cq_ex_to_cq(cq),
		};
		CHECK(wqs[i] = ibv_create_wq(b.context, &attr));
		CHECK(attr.max_wr >= 2 * FLOWS && wqs[i]->wq_context == &b && wqs[i]->state == IBV_WQS_RESET);
		struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
		CHECK(ibv_modify_wq(wqs[i], &ready) == 0 && wqs[i]->state == IBV_WQS_RDY);
		struct ibv_sge sge = { (uintptr_t)b.buf, 512, b.mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1 }, *bad;
		for (int n = 0; n < 2 * FLOWS; n++)
			CHECK(ibv_post_wq_recv(wqs[i], &wr, &bad) == 0);
		wr.num_sge = 1000;
		CHECK(ibv_post_wq_recv(wqs[i], &wr, &bad) != 0 && bad == &wr);
	}
	struct ibv_rwq_ind_table_init_attr table_attr = { .log_ind_tbl_size = 2, .ind_tbl = wqs };
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(b.context, &table_attr);
	CHECK(table && table->context == b.context);
	CHECK(ibv_destroy_wq(wqs[0]) == EBUSY);

	uint8_t key[40];
	for (int i = 0; i < 40; i++)
		key[i] = i * 37 + 11;
	struct ibv_qp_init_attr_ex attr = {
		.qp_context = &b,
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE,
		.pd = b.pd,
		.rwq_ind_tbl = table,
		.rx_hash_conf = { IBV_RX_HASH_FUNC_TOEPLITZ, 40, key,
				  IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP | IBV_RX_HASH_SRC_IPV4 |
					  IBV_RX_HASH_DST_IPV4 },
	};
	errno = 0;
	CHECK(ibv_create_qp_ex(b.context, &attr) == NULL && errno == EINVAL);
	attr.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH;
	attr.rx_hash_conf.rx_hash_function = 2;
	errno = 0;
	CHECK(ibv_create_qp_ex(b.context, &attr) == NULL && errno == EOPNOTSUPP);
	attr.rx_hash_conf.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
	struct ibv_qp *qp = ibv_create_qp_ex(b.context, &attr);
	CHECK(qp && qp->qp_context == &b && qp->qp_type == IBV_QPT_RAW_PACKET);
	CHECK(ibv_destroy_rwq_ind_table(table) == EBUSY);
	/* It has neither a state nor queues. */
	struct ibv_qp_attr state = { .qp_state = IBV_QPS_INIT };
	struct ibv_qp_init_attr init;
	CHECK(ibv_modify_qp(qp, &state, IBV_QP_STATE) == EOPNOTSUPP);
	CHECK(ibv_query_qp(qp, &state, IBV_QP_STATE, &init) == EOPNOTSUPP);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad = NULL;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
	struct rule rule = rule_for(8);
	struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);
	CHECK(flow);
	int used[QUEUES] = { 0 }, first[FLOWS], different = 0;
	for (int i = 0; i < FLOWS; i++)
		used[first[i] = queue_of(cq, 100 + i)]++;
	for (int i = 0; i < FLOWS; i++)
		CHECK(queue_of(cq, 100 + i) == first[i]);
	for (int i = 0; i < QUEUES; i++)
		different += used[i] != 0;
	CHECK(different > 1);

	CHECK(ibv_destroy_flow(flow) == 0);
	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_rwq_ind_table(table) == 0);
	for (int i = 0; i < QUEUES; i++)
		CHECK(ibv_destroy_wq(wqs[i]) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

static void *acknowledge_late(void *event)
{
	usleep(100000);
	ibv_ack_async_event(event);
	return NULL;
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

/* A queue whose receive has an invalid key fails at the next packet. Its destruction waits for the acknowledgement of its event. */
static void fail_a_queue(void)
{
	struct ibv_wq_init_attr init = { .max_wr = 4, .max_sge = 1, .pd = b.pd, .cq = b.cq };
	struct ibv_wq *wq = ibv_create_wq(b.context, &init);
	CHECK(wq);
	struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY };
	CHECK(ibv_modify_wq(wq, &ready) == 0);
	struct ibv_sge sge = { (uintptr_t)b.buf, 512, b.mr->lkey + 0x100 };
	struct ibv_recv_wr wr = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad;
	CHECK(ibv_post_wq_recv(wq, &wr, &bad) == 0);
	struct ibv_rwq_ind_table_init_attr table_attr = { .ind_tbl = &wq };
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(b.context, &table_attr);
	CHECK(table);
	uint8_t key[40] = { 1 };
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH,
		.pd = b.pd,
		.rwq_ind_tbl = table,
		.rx_hash_conf = { IBV_RX_HASH_FUNC_TOEPLITZ, 40, key, IBV_RX_HASH_SRC_IPV4 },
	};
	struct ibv_qp *qp = ibv_create_qp_ex(b.context, &attr);
	CHECK(qp);
	struct rule rule = rule_for(8);
	struct ibv_flow *flow = ibv_create_flow(qp, &rule.attr);
	CHECK(flow);
	send_frame(7, 8);
	CHECK(poll_one(b.cq).status == IBV_WC_LOC_PROT_ERR);
	struct ibv_async_event event;
	do {
		CHECK(ibv_get_async_event(b.context, &event) == 0);
		if (event.event_type != IBV_EVENT_WQ_FATAL)
			ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_WQ_FATAL);
	CHECK(event.element.wq == wq);
	CHECK(ibv_destroy_flow(flow) == 0 && ibv_destroy_qp(qp) == 0 && ibv_destroy_rwq_ind_table(table) == 0);
	pthread_t thread;
	double before = now();
	CHECK(pthread_create(&thread, NULL, acknowledge_late, &event) == 0);
	CHECK(ibv_destroy_wq(wq) == 0);
	CHECK(now() - before > 0.08);
	CHECK(pthread_join(thread, NULL) == 0);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	open_raw(&a);
	open_raw(&b);
	steer();
	count();
	spread();
	fail_a_queue();
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
