// SPDX-License-Identifier: MIT OR Apache-2.0
/* Runs the calls of a case by the public interfaces of libibverbs and libefa, and writes what the device would see. */
#define _GNU_SOURCE
#include "record.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint8_t fill = 0xa5;
struct ibv_context *context;
struct ibv_pd *pd;
FILE *output;
/* Requests that the queues of the case took. */
unsigned sent, received;

const uint16_t handle_numbers[HANDLES] = { 0, 1, 0x1234, 0xfffe };
static struct ibv_ah *handles[HANDLES];
static struct ibv_qp *qp;
static struct ibv_qp_ex *qp_ex;
static struct ibv_cq *cq;
static struct ibv_cq_ex *cq_ex;
static struct ibv_comp_channel *channel;
static struct shape shape;
static unsigned ids, entry_size, descriptors, sq_entries, rq_entries, cq_entries;
/* The numbers of all requests by position, and the completions of each sub-CQ. */
static uint16_t send_numbers[0x20000], recv_numbers[0x20000];
static unsigned written[8];
static const char *comma;

static void die(const char *what)
{
	fprintf(stderr, "efa-recorder: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void hex(const void *bytes, unsigned len)
{
	const uint8_t *b = bytes;
	putc('"', output);
	for (unsigned i = 0; i < len; i++)
		fprintf(output, "%02x", b[i]);
	putc('"', output);
}

/* Opens the device as one of a generation. */
void use(const struct generation *generation)
{
	if (context) {
		for (int i = 0; i < HANDLES; i++)
			ibv_destroy_ah(handles[i]);
		ibv_dealloc_pd(pd);
		ibv_close_device(context);
	}
	device.generation = generation;
	struct ibv_device **list = ibv_get_device_list(NULL);
	if (!list || !list[0])
		die("no device");
	context = ibv_open_device(list[0]);
	if (!context)
		die("open_device");
	ibv_free_device_list(list);
	pd = ibv_alloc_pd(context);
	if (!pd)
		die("alloc_pd");
	for (int i = 0; i < HANDLES; i++) {
		struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
		attr.grh.dgid.raw[15] = i;
		device.next_ahn = handle_numbers[i];
		handles[i] = ibv_create_ah(pd, &attr);
		if (!handles[i])
			die("create_ah");
	}
}

/* EFA_QUERY_DEVICE_CAPS_UNSOLICITED_WRITE_RECV. */
static bool has_unsolicited(void) { return device.generation->caps & 1 << 6; }

static void create_cq(void)
{
	channel = shape.channel ? ibv_create_comp_channel(context) : NULL;
	if (shape.cq == LEGACY) {
		cq = ibv_create_cq(context, shape.cqe, NULL, channel, 0);
		cq_ex = NULL;
	} else {
		struct ibv_cq_init_attr_ex attr = { .cqe = shape.cqe, .channel = channel, .wc_flags = IBV_WC_STANDARD_FLAGS };
		struct efadv_cq_init_attr efa = { .wc_flags = EFADV_WC_EX_WITH_SGID | (has_unsolicited() ? EFADV_WC_EX_WITH_IS_UNSOLICITED : 0) };
		cq_ex = shape.cq == EXTENDED ? ibv_create_cq_ex(context, &attr) : efadv_create_cq(context, &attr, &efa, sizeof(efa));
		cq = cq_ex ? ibv_cq_ex_to_cq(cq_ex) : NULL;
	}
	if (!cq)
		die("create_cq");
	uint32_t size;
	memcpy(&size, device.cq_request + 4, sizeof(size));
	entry_size = size;
	cq_entries = cq->cqe;
	memset(device.cq.at, 0, device.cq.len);
	memset(written, 0, sizeof(written));
}

static int create_qp(struct ibv_qp_cap *cap)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = cq, .recv_cq = cq, .cap = *cap, .qp_type = shape.ud ? IBV_QPT_UD : IBV_QPT_DRIVER, .sq_sig_all = shape.sig_all,
		.comp_mask = IBV_QP_INIT_ATTR_PD | (shape.ops ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0), .pd = pd, .send_ops_flags = shape.ops,
	};
	struct efadv_qp_init_attr efa = { .driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD, .flags = shape.flags, .sl = shape.sl };
	errno = 0;
	qp = shape.ud ? ibv_create_qp_ex(context, &attr) : efadv_create_qp_ex(context, &attr, &efa, sizeof(efa));
	if (!qp)
		return errno ? errno : -1;
	*cap = attr.cap;
	qp_ex = shape.ops ? ibv_qp_to_qp_ex(qp) : NULL;
	return 0;
}

static void set_state(enum ibv_qp_state state)
{
	struct ibv_qp_attr attr = { .qp_state = state, .port_num = 1, .qkey = 0x1111 };
	int mask = IBV_QP_STATE;
	if (state == IBV_QPS_INIT)
		mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
	if (state == IBV_QPS_RTS)
		mask |= IBV_QP_SQ_PSN;
	if (ibv_modify_qp(qp, &attr, mask))
		die("modify_qp");
}

static void bring_up(void)
{
	set_state(IBV_QPS_INIT);
	set_state(IBV_QPS_RTR);
	set_state(IBV_QPS_RTS);
}

static void cap_of(const struct ibv_qp_cap *cap, const char *name)
{
	fprintf(output, ",\"%s\":[%u,%u,%u,%u,%u]", name, cap->max_send_wr, cap->max_recv_wr, cap->max_send_sge, cap->max_recv_sge,
		cap->max_inline_data);
}

static uint8_t *send_at(unsigned i) { return device.llq.at + LLQ_START + (size_t)(i % sq_entries) * descriptors; }
static uint8_t *recv_at(unsigned i) { return device.rq.at + (size_t)(i % rq_entries) * 16; }
static unsigned recv_descriptors;

static void refill(void)
{
	memset(send_at(0), fill, (size_t)sq_entries * descriptors);
	memset(recv_at(0), fill, (size_t)rq_entries * 16);
	memset(device.sq_bell.at + SQ_BELL, 0xff, 4);
	memset(device.rq_bell.at + RQ_BELL, 0xff, 4);
	if (shape.channel)
		memset(device.cq_bell.at + CQ_BELL, 0xff, 4);
}

static void bell(const uint8_t *at)
{
	uint32_t value;
	memcpy(&value, at, sizeof(value));
	if (value == 0xffffffff)
		fprintf(output, ",\"bell\":null");
	else
		fprintf(output, ",\"bell\":%u", value);
}

/* Entries that were written, from a position on; also their numbers. */
static void sq_changes(void)
{
	unsigned first = sent;
	const char *sep = "";
	fprintf(output, ",\"sq\":[");
	for (unsigned n = 0; n < sq_entries; n++) {
		const uint8_t *at = send_at(first + n);
		unsigned k = 0;
		while (k < descriptors && at[k] == fill)
			k++;
		if (k == descriptors)
			break;
		fprintf(output, "%s", sep);
		hex(at, descriptors);
		sep = ",";
		memcpy(&send_numbers[sent++ % 0x20000], at, 2);
	}
	fprintf(output, "]");
	bell(device.sq_bell.at + SQ_BELL);
}

static void rq_changes(void)
{
	const char *sep = "";
	fprintf(output, ",\"rq\":[");
	for (unsigned n = 0; n < rq_entries; n++) {
		const uint8_t *at = recv_at(recv_descriptors);
		unsigned k = 0;
		while (k < 16 && at[k] == fill)
			k++;
		if (k == 16)
			break;
		fprintf(output, "%s", sep);
		hex(at, 16);
		sep = ",";
		if (at[15] & 0x40)
			memcpy(&recv_numbers[received++ % 0x20000], at + 8, 2);
		recv_descriptors++;
	}
	fprintf(output, "]");
	bell(device.rq_bell.at + RQ_BELL);
}

static void step(void)
{
	fprintf(output, "%s", comma);
	comma = ",";
	refill();
}

static uint8_t *put_entry(unsigned sub)
{
	return device.cq.at + ((size_t)sub * cq_entries + written[sub] % cq_entries) * entry_size;
}

/* Posts and completes one request, unrecorded. */
static void advance(unsigned n)
{
	struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_wc wc;
	wr.wr.ud.ah = handles[0];
	for (; n; n--) {
		refill();
		if (ibv_post_send(qp, &wr, &bad))
			die("advance");
		memcpy(&send_numbers[sent % 0x20000], send_at(sent), 2);
		struct entry e = { .is_send = true, .position = sent++ };
		FILE *real = output;
		output = fopen("/dev/null", "w");
		complete(&e, 1);
		fclose(output);
		output = real;
		if (cq_ex) {
			struct ibv_poll_cq_attr attr = { 0 };
			if (ibv_start_poll(cq_ex, &attr))
				die("advance: start_poll");
			ibv_end_poll(cq_ex);
		} else if (ibv_poll_cq(cq, 1, &wc) != 1)
			die("advance: poll_cq");
	}
}

bool begin(const char *category, const struct shape *wanted)
{
	shape = *wanted;
	if (!shape.cqe)
		shape.cqe = 64;
	sent = received = recv_descriptors = 0;
	comma = "";
	create_cq();
	struct ibv_qp_cap cap = { shape.send_wr, shape.recv_wr, shape.send_sge, shape.recv_sge, shape.inline_data };
	device.next_qpn = 0x100 + ids * 7 % 0x300;
	device.qp_request_len = 0;
	fprintf(output, "{\"id\":%u,\"category\":\"%s\",\"generation\":\"%s\"", ++ids, category, device.generation->name);
	fprintf(output, ",\"cq\":{\"kind\":%d,\"channel\":%s,\"cqe\":%u,\"out\":%u,\"request\":", shape.cq, shape.channel ? "true" : "false",
		shape.cqe, cq_entries);
	hex(device.cq_request, device.cq_request_len);
	fprintf(output, "},\"qp\":{\"ud\":%s,\"sig\":%s,\"ops\":%llu,\"flags\":%u,\"sl\":%u,\"qpn\":%u", shape.ud ? "true" : "false",
		shape.sig_all ? "true" : "false", (unsigned long long)shape.ops, shape.flags, shape.sl, device.next_qpn);
	cap_of(&cap, "cap");
	int error = create_qp(&cap);
	fprintf(output, ",\"ret\":%d", error);
	if (error) {
		fprintf(output, "}}\n");
		ibv_destroy_cq(cq);
		if (channel)
			ibv_destroy_comp_channel(channel);
		return false;
	}
	cap_of(&cap, "out");
	fprintf(output, ",\"request\":");
	hex(device.qp_request, device.qp_request_len);
	fprintf(output, "},\"start\":%u,\"steps\":[", shape.start);
	struct efadv_wq_attr sq = { 0 }, rq = { 0 };
	if (efadv_query_qp_wqs(qp, &sq, &rq, sizeof(sq)))
		die("query_qp_wqs");
	descriptors = sq.entry_size;
	sq_entries = sq.num_entries;
	rq_entries = rq.num_entries;
	bring_up();
	advance(shape.start);
	comma = "";
	return true;
}

void end(void)
{
	fprintf(output, "]}\n");
	if (ibv_destroy_qp(qp) || ibv_destroy_cq(cq) || (channel && ibv_destroy_comp_channel(channel)))
		die("destroy");
}

static const char *op_name(enum ibv_wr_opcode op)
{
	static const char *const names[] = { "RDMA_WRITE", "RDMA_WRITE_WITH_IMM", "SEND", "SEND_WITH_IMM", "RDMA_READ",
		"ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD" };
	return op < sizeof(names) / sizeof(*names) ? names[op] : "SEND_WITH_INV";
}

static void print_sges(const struct ibv_sge *sges, int n)
{
	fprintf(output, ",\"sges\":[");
	for (int i = 0; i < n; i++)
		fprintf(output, "%s[%llu,%u,%u]", i ? "," : "", (unsigned long long)sges[i].addr, sges[i].length, sges[i].lkey);
	fprintf(output, "]}");
}

static void print_requests(const struct request *requests, int n)
{
	for (int i = 0; i < n; i++) {
		const struct request *r = &requests[i];
		fprintf(output, "%s{\"id\":%llu,\"op\":\"%s\",\"flags\":%u,\"to\":[%u,%u,%u],\"by\":%d", i ? "," : "", (unsigned long long)r->id,
			op_name(r->op), r->flags, handle_numbers[r->ah], r->qpn, r->qkey, r->by);
		if (r->op == IBV_WR_SEND_WITH_IMM || r->op == IBV_WR_RDMA_WRITE_WITH_IMM)
			fprintf(output, ",\"imm\":%u", r->imm);
		if (r->op != IBV_WR_SEND && r->op != IBV_WR_SEND_WITH_IMM)
			fprintf(output, ",\"remote\":[%llu,%u]", (unsigned long long)r->addr, r->rkey);
		print_sges(r->sges, r->num_sge);
	}
}

void post_list(const struct request *requests, int n)
{
	struct ibv_send_wr list[256], *bad = NULL;
	struct ibv_sge sges[256][4];

	step();
	memset(list, 0, sizeof(list));
	for (int i = 0; i < n; i++) {
		const struct request *r = &requests[i];
		memcpy(sges[i], r->sges, sizeof(sges[i]));
		list[i] = (struct ibv_send_wr){ .wr_id = r->id, .next = i + 1 < n ? &list[i + 1] : NULL, .sg_list = sges[i], .num_sge = r->num_sge,
			.opcode = r->op, .send_flags = r->flags, .imm_data = htobe32(r->imm) };
		list[i].wr.ud.ah = handles[r->ah];
		list[i].wr.ud.remote_qpn = r->qpn;
		list[i].wr.ud.remote_qkey = r->qkey;
	}
	int ret = ibv_post_send(qp, list, &bad);
	fprintf(output, "{\"do\":\"list\",\"wrs\":[");
	print_requests(requests, n);
	fprintf(output, "],\"ret\":%d,\"bad\":%d", ret, ret ? (int)(bad - list) : -1);
	sq_changes();
	fprintf(output, "}");
}

static void build(const struct request *r)
{
	qp_ex->wr_id = r->id;
	qp_ex->wr_flags = r->flags;
	switch (r->op) {
	case IBV_WR_SEND: ibv_wr_send(qp_ex); break;
	case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(qp_ex, htobe32(r->imm)); break;
	case IBV_WR_RDMA_READ: ibv_wr_rdma_read(qp_ex, r->rkey, r->addr); break;
	case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(qp_ex, r->rkey, r->addr); break;
	case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(qp_ex, r->rkey, r->addr, htobe32(r->imm)); break;
	default: abort();
	}
	struct ibv_data_buf buffers[4];
	for (int i = 0; i < r->num_sge; i++)
		buffers[i] = (struct ibv_data_buf){ (void *)(uintptr_t)r->sges[i].addr, r->sges[i].length };
	switch (r->by) {
	case SGES: ibv_wr_set_sge_list(qp_ex, r->num_sge, r->sges); break;
	case SGE: ibv_wr_set_sge(qp_ex, r->sges[0].lkey, r->sges[0].addr, r->sges[0].length); break;
	case INLINE: ibv_wr_set_inline_data(qp_ex, buffers[0].addr, buffers[0].length); break;
	case INLINE_LIST: ibv_wr_set_inline_data_list(qp_ex, r->num_sge, buffers); break;
	}
	ibv_wr_set_ud_addr(qp_ex, handles[r->ah], r->qpn, r->qkey);
}

void post_builders(const struct request *requests, int n, bool abort)
{
	int ret = 0;
	step();
	ibv_wr_start(qp_ex);
	for (int i = 0; i < n; i++)
		build(&requests[i]);
	if (abort)
		ibv_wr_abort(qp_ex);
	else
		ret = ibv_wr_complete(qp_ex);
	fprintf(output, "{\"do\":\"%s\",\"wrs\":[", abort ? "abort" : "builders");
	print_requests(requests, n);
	fprintf(output, "],\"ret\":%d", ret);
	sq_changes();
	fprintf(output, "}");
}

void post_receives(const struct receive *receives, int n)
{
	struct ibv_recv_wr list[256], *bad = NULL;
	struct ibv_sge sges[256][4];

	step();
	for (int i = 0; i < n; i++) {
		memcpy(sges[i], receives[i].sges, sizeof(sges[i]));
		list[i] = (struct ibv_recv_wr){ .wr_id = receives[i].id, .next = i + 1 < n ? &list[i + 1] : NULL, .sg_list = sges[i],
			.num_sge = receives[i].num_sge };
	}
	int ret = ibv_post_recv(qp, list, &bad);
	fprintf(output, "{\"do\":\"receives\",\"receives\":[");
	for (int i = 0; i < n; i++) {
		fprintf(output, "%s{\"id\":%llu", i ? "," : "", (unsigned long long)receives[i].id);
		print_sges(receives[i].sges, receives[i].num_sge);
	}
	fprintf(output, "],\"ret\":%d,\"bad\":%d", ret, ret ? (int)(bad - list) : -1);
	rq_changes();
	fprintf(output, "}");
}

static void put16(uint8_t *at, uint16_t value) { memcpy(at, &value, 2); }

/* Writes completions as the device: the number, then the fields of struct efa_io_rx_cdesc_ex (the kernel's efa_io_defs.h). */
void complete(const struct entry *entries, int n)
{
	step();
	fprintf(output, "{\"do\":\"complete\",\"entries\":[");
	for (int i = 0; i < n; i++) {
		const struct entry *e = &entries[i];
		uint8_t bytes[32] = { 0 };
		uint16_t number = e->position < 0 ? 0x7fff : (e->is_send ? send_numbers : recv_numbers)[e->position % 0x20000];
		bool phase = written[e->sub] / cq_entries % 2 == 0;
		put16(bytes, number);
		bytes[2] = e->status;
		bytes[3] = phase | (e->is_send ? 1 : 2) << 1 | e->imm_flag << 3 | e->op << 4 | e->unsolicited << 7;
		put16(bytes + 4, qp->qp_num ^ e->qpn_xor);
		put16(bytes + 6, e->length);
		put16(bytes + 8, e->ah);
		put16(bytes + 10, e->src_qp);
		memcpy(bytes + 12, &e->imm, 4);
		if (e->gid)
			for (int k = 0; k < 16; k++)
				bytes[16 + k] = 0xf0 + k;
		else
			put16(bytes + 16, e->length >> 16);
		memcpy(put_entry(e->sub), bytes, entry_size < 32 ? entry_size : 32);
		written[e->sub]++;
		fprintf(output, "%s{\"sub\":%u,\"position\":%d,\"hex\":", i ? "," : "", e->sub, e->position);
		hex(bytes, entry_size);
		fprintf(output, "}");
	}
	fprintf(output, "]}");
}

static void cq_bell(void)
{
	if (shape.channel)
		bell(device.cq_bell.at + CQ_BELL);
	fprintf(output, "}");
}

#define FIELD(name, value) fprintf(output, ",\"%s\":%llu", name, (unsigned long long)(value))

void poll_list(int max)
{
	struct ibv_wc wcs[64];
	step();
	memset(wcs, 0, sizeof(wcs));
	int ret = ibv_poll_cq(cq, max, wcs);
	fprintf(output, "{\"do\":\"poll\",\"max\":%d,\"ret\":%d,\"wcs\":[", max, ret);
	for (int i = 0; i < ret; i++) {
		const struct ibv_wc *w = &wcs[i];
		fprintf(output, "%s{\"wr_id\":%llu", i ? "," : "", (unsigned long long)w->wr_id);
		FIELD("status", w->status);
		FIELD("opcode", w->opcode);
		FIELD("vendor_err", w->vendor_err);
		FIELD("byte_len", w->byte_len);
		FIELD("imm_data", be32toh(w->imm_data));
		FIELD("qp_num", w->qp_num);
		FIELD("src_qp", w->src_qp);
		FIELD("wc_flags", w->wc_flags);
		FIELD("slid", w->slid);
		fprintf(output, "}");
	}
	fprintf(output, "]");
	cq_bell();
}

void poll_extended(int max)
{
	struct ibv_poll_cq_attr attr = { 0 };
	struct efadv_cq *efa = shape.cq == EFADV ? efadv_cq_from_ibv_cq_ex(cq_ex) : NULL;
	step();
	int ret = ibv_start_poll(cq_ex, &attr), next = ret;
	fprintf(output, "{\"do\":\"start_poll\",\"max\":%d,\"ret\":%d,\"wcs\":[", max, ret);
	for (int i = 0; !next && i < max; i++) {
		fprintf(output, "%s{\"wr_id\":%llu", i ? "," : "", (unsigned long long)cq_ex->wr_id);
		FIELD("status", cq_ex->status);
		FIELD("vendor_err", ibv_wc_read_vendor_err(cq_ex));
		FIELD("opcode", ibv_wc_read_opcode(cq_ex));
		FIELD("byte_len", ibv_wc_read_byte_len(cq_ex));
		FIELD("imm_data", be32toh(ibv_wc_read_imm_data(cq_ex)));
		FIELD("qp_num", ibv_wc_read_qp_num(cq_ex));
		FIELD("src_qp", ibv_wc_read_src_qp(cq_ex));
		FIELD("wc_flags", ibv_wc_read_wc_flags(cq_ex));
		FIELD("slid", ibv_wc_read_slid(cq_ex));
		FIELD("sl", ibv_wc_read_sl(cq_ex));
		FIELD("dlid_path_bits", ibv_wc_read_dlid_path_bits(cq_ex));
		if (efa) {
			union ibv_gid gid;
			memset(&gid, 0, sizeof(gid));
			if (has_unsolicited())
				FIELD("unsolicited", efadv_wc_is_unsolicited(efa));
			if (!efadv_wc_read_sgid(efa, &gid)) {
				fprintf(output, ",\"sgid\":");
				hex(&gid, sizeof(gid));
			}
		}
		fprintf(output, "}");
		if (i + 1 < max)
			next = ibv_next_poll(cq_ex);
	}
	if (!ret)
		ibv_end_poll(cq_ex);
	fprintf(output, "],\"next\":%d", next);
	cq_bell();
}

void notify(bool solicited_only)
{
	step();
	int ret = ibv_req_notify_cq(cq, solicited_only);
	fprintf(output, "{\"do\":\"notify\",\"solicited\":%s,\"ret\":%d", solicited_only ? "true" : "false", ret);
	cq_bell();
}

/* The kernel reports an event, and the program reads it. */
void event(void)
{
	struct ibv_cq *from;
	void *user;
	uint64_t handle = device.cq_user_handle;
	step();
	if (write(device.channel, &handle, sizeof(handle)) != sizeof(handle) || ibv_get_cq_event(channel, &from, &user))
		die("event");
	device.events++;
	ibv_ack_cq_events(from, 1);
	fprintf(output, "{\"do\":\"event\"}");
}

void modify(enum ibv_qp_state state)
{
	step();
	set_state(state);
	if (state == IBV_QPS_RESET)
		sent = received = recv_descriptors = 0;
	fprintf(output, "{\"do\":\"modify\",\"state\":%d}", state);
}
