/* SPDX-License-Identifier: MIT OR Apache-2.0 */
// RMA bandwidth of libfabric's verbs provider, with a check of all data: fi_write, fi_read and fi_writedata, over connected
// endpoints (provider verbs) or datagram-like ones (verbs;ofi_rxm). Debian has no package of fabtests.
//
//   fi_rma -b OWN_ADDRESS -p PORT [-e msg|rdm] [-o write|read|writedata] [-n COUNT] [-S SIZE] [SERVER_ADDRESS]
//
// Without SERVER_ADDRESS it is the server: it owns the memory that the client writes or reads. A TCP connection carries
// addresses and keys, and the word with which each end reports its result. The exit status is 0 if both ends have seen the
// expected data.
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define WINDOW 8
#define REMOTE_KEY 0x5eed

static const char *own, *server;
static int port = 7480, is_rdm, sock = -1;
static enum { WRITE, READ, WRITEDATA } op;
static unsigned long count = 100, size = 65536;

static struct fi_info *info;
static struct fid_fabric *fabric;
static struct fid_domain *domain;
static struct fid_eq *eq;
static struct fid_pep *pep;
static struct fid_cq *cq;
static struct fid_av *av;
static struct fid_ep *ep;
static struct fid_mr *mr;
static fi_addr_t peer = FI_ADDR_UNSPEC;
static uint8_t *memory;
// Completions of operations, and those of the peer's data.
static unsigned long done, arrived;

// What each end needs to know of the other one.
struct hello {
	uint64_t address, key, name_length;
	uint8_t name[64];
};

static void fail(const char *what, long error)
{
	fprintf(stderr, "fi_rma: %s: %s\n", what, fi_strerror(error < 0 ? -error : error));
	exit(1);
}

static void must(const char *what, long result)
{
	if (result < 0)
		fail(what, result);
}

static void wrong(const char *what, unsigned long number)
{
	fprintf(stderr, "fi_rma: wrong data: %s %lu\n", what, number);
	exit(3);
}

// The contents of message `number`: each byte depends on its position and on the number.
static uint8_t byte_of(unsigned long number, unsigned long at)
{
	return (number * 37 + at * 11 + (at >> 8) * 3 + 5) & 0xff;
}

static void fill(uint8_t *to, unsigned long number)
{
	for (unsigned long at = 0; at < size; at++)
		to[at] = byte_of(number, at);
}

static void check(const uint8_t *from, unsigned long number)
{
	for (unsigned long at = 0; at < size; at++)
		if (from[at] != byte_of(number, at))
			wrong("message", number);
}

static struct sockaddr_in address_of(const char *text, int number)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(number)};
	if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
		fail(text, EINVAL);
	return address;
}

static void open_socket(void)
{
	struct sockaddr_in address = address_of(server ? server : own, port);
	int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
	if (listener < 0)
		fail("socket", errno);
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (server) {
		if (connect(listener, (struct sockaddr *)&address, sizeof address))
			fail("connect", errno);
		sock = listener;
	} else {
		if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 1))
			fail("listen", errno);
		sock = accept(listener, NULL, NULL);
		if (sock < 0)
			fail("accept", errno);
		close(listener);
	}
	setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void put(const void *data, size_t length)
{
	if (send(sock, data, length, MSG_NOSIGNAL) != (ssize_t)length)
		fail("the peer is gone", ECONNRESET);
}

static void progress(void);

// Reads from the peer. The endpoint makes progress meanwhile, which a provider may need.
static void get(void *data, size_t length)
{
	for (size_t have = 0; have < length;) {
		ssize_t n = recv(sock, (char *)data + have, length - have, MSG_DONTWAIT);
		if (n > 0)
			have += n;
		else if (n < 0 && (errno == EAGAIN || errno == EINTR))
			progress();
		else
			fail("the peer is gone", ECONNRESET);
	}
}

static void report(const char *what, struct fid_eq *queue)
{
	struct fi_eq_err_entry entry = {0};
	if (fi_eq_readerr(queue, &entry, 0) > 0)
		fail(what, entry.err);
	fail(what, FI_EOTHER);
}

// Waits for an event of connections.
static void expect(uint32_t wanted, struct fi_eq_cm_entry *entry)
{
	uint32_t event;
	ssize_t n = fi_eq_sread(eq, &event, entry, sizeof *entry, 30000, 0);
	if (n == -FI_EAVAIL)
		report("an event", eq);
	must("fi_eq_sread", n);
	if (event != wanted)
		fail("an unexpected event", FI_EOTHER);
}

// A receive for the completion of the peer's data, if the provider consumes one for each.
static void post_receive(void)
{
	if (op == WRITEDATA && !server && (info->mode & FI_RX_CQ_DATA))
		must("fi_recv", fi_recv(ep, memory, 0, fi_mr_desc(mr), peer, NULL));
}

static void progress(void)
{
	struct fi_cq_data_entry entry;
	if (!cq) {
		sched_yield();
		return;
	}
	ssize_t n = fi_cq_read(cq, &entry, 1);
	if (n == -FI_EAGAIN) {
		sched_yield();
		return;
	}
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry error = {0};
		must("fi_cq_readerr", fi_cq_readerr(cq, &error, 0));
		fail("a completion", error.err);
	}
	must("fi_cq_read", n);
	if (entry.flags & FI_REMOTE_CQ_DATA) {
		if (entry.data != (uint32_t)(arrived * 2654435761u))
			wrong("remote CQ data", arrived);
		arrived++;
		post_receive();
	} else {
		done++;
	}
}

static void open_endpoint(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .size = 4 * WINDOW, .wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = 4};
	must("fi_domain", fi_domain(fabric, info, &domain, NULL));
	must("fi_cq_open", fi_cq_open(domain, &cq_attr, &cq, NULL));
	must("fi_endpoint", fi_endpoint(domain, info, &ep, NULL));
	if (is_rdm) {
		must("fi_av_open", fi_av_open(domain, &av_attr, &av, NULL));
		must("fi_ep_bind", fi_ep_bind(ep, &av->fid, 0));
	} else {
		must("fi_ep_bind", fi_ep_bind(ep, &eq->fid, 0));
	}
	must("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	must("fi_enable", fi_enable(ep));

	memory = aligned_alloc(4096, (WINDOW * size + 4095) & ~4095ul);
	if (!memory)
		fail("memory", ENOMEM);
	memset(memory, 0, WINDOW * size);
	uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
	must("fi_mr_reg", fi_mr_reg(domain, memory, WINDOW * size, access, 0, REMOTE_KEY, 0, &mr, NULL));
	if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
		must("fi_mr_bind", fi_mr_bind(mr, &ep->fid, 0));
		must("fi_mr_enable", fi_mr_enable(mr));
	}
}

// Opens the device of the own address, or the one that the peer's address is reached by.
static void open_fabric(void)
{
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_info *hints = fi_allocinfo();
	char service[16];
	if (!hints)
		fail("hints", ENOMEM);
	hints->ep_attr->type = is_rdm ? FI_EP_RDM : FI_EP_MSG;
	hints->fabric_attr->prov_name = strdup(is_rdm ? "verbs;ofi_rxm" : "verbs");
	hints->caps = FI_MSG | FI_RMA;
	hints->mode = FI_CONTEXT | FI_RX_CQ_DATA;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
	snprintf(service, sizeof service, "%d", port);
	must("fi_getinfo", fi_getinfo(FI_VERSION(1, 14), server ? server : own, service, server ? 0 : FI_SOURCE, hints, &info));
	if (info->mode & FI_CONTEXT)
		fail("the provider needs contexts", ENOSYS);
	must("fi_fabric", fi_fabric(info->fabric_attr, &fabric, NULL));
	must("fi_eq_open", fi_eq_open(fabric, &eq_attr, &eq, NULL));
}

static void connect_message_endpoints(void)
{
	struct fi_eq_cm_entry entry;
	char ready = 1;
	if (server) {
		// The server listens.
		get(&ready, 1);
		open_endpoint();
		must("fi_connect", fi_connect(ep, info->dest_addr, NULL, 0));
	} else {
		must("fi_passive_ep", fi_passive_ep(fabric, info, &pep, NULL));
		must("fi_pep_bind", fi_pep_bind(pep, &eq->fid, 0));
		must("fi_listen", fi_listen(pep));
		put(&ready, 1);
		expect(FI_CONNREQ, &entry);
		fi_freeinfo(info);
		info = entry.info;
		open_endpoint();
		must("fi_accept", fi_accept(ep, NULL, 0));
	}
	expect(FI_CONNECTED, &entry);
}

// Exchanges keys, and the addresses of endpoints without connections.
static struct hello greet(void)
{
	struct hello mine = {0}, theirs;
	size_t length = sizeof mine.name;
	mine.address = info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)memory : 0;
	mine.key = fi_mr_key(mr);
	if (is_rdm)
		must("fi_getname", fi_getname(&ep->fid, mine.name, &length));
	put(&mine, sizeof mine);
	get(&theirs, sizeof theirs);
	if (is_rdm && fi_av_insert(av, theirs.name, 1, &peer, 0, NULL) != 1)
		fail("fi_av_insert", FI_EADDRNOTAVAIL);
	return theirs;
}

static void issue(const struct hello *to, unsigned long number)
{
	uint8_t *local = memory + number % WINDOW * size;
	uint64_t remote = to->address + number % WINDOW * size;
	void *desc = fi_mr_desc(mr);
	ssize_t n;
	if (op != READ)
		fill(local, number);
	do {
		if (op == WRITE)
			n = fi_write(ep, local, size, desc, peer, remote, to->key, NULL);
		else if (op == READ)
			n = fi_read(ep, local, size, desc, peer, remote, to->key, NULL);
		else
			n = fi_writedata(ep, local, size, desc, (uint32_t)(number * 2654435761u), peer, remote, to->key, NULL);
		if (n == -FI_EAGAIN)
			progress();
	} while (n == -FI_EAGAIN);
	must("an operation", n);
}

static void client(const struct hello *to)
{
	struct timespec start, end;
	char word = 0;
	// The server's memory has its first contents.
	get(&word, 1);
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (unsigned long number = 0; number < count + WINDOW; number++) {
		// The buffer's operation before this one must be complete. They complete in order.
		while (number >= WINDOW && done <= number - WINDOW)
			progress();
		if (number >= WINDOW && op == READ)
			check(memory + number % WINDOW * size, (number - WINDOW) % WINDOW);
		if (number < count) {
			if (op == READ)
				memset(memory + number % WINDOW * size, 0xee, size);
			issue(to, number);
		}
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	double seconds = end.tv_sec - start.tv_sec + (end.tv_nsec - start.tv_nsec) / 1e9;
	printf("%lu x %lu bytes in %.3f s: %.2f MB/s\n", count, size, seconds, count * size / seconds / 1e6);
	put("d", 1);
	// The server has checked its memory.
	get(&word, 1);
	if (word != 'k')
		wrong("the server reports", 0);
}

static void serve(void)
{
	char word;
	for (unsigned long slot = 0; slot < WINDOW; slot++) {
		if (op == READ)
			fill(memory + slot * size, slot);
		post_receive();
	}
	put("g", 1);
	get(&word, 1);
	while (op == WRITEDATA && arrived < count)
		progress();
	for (unsigned long number = count > WINDOW ? count - WINDOW : 0; op != READ && number < count; number++)
		check(memory + number % WINDOW * size, number);
	put("k", 1);
	printf("served\n");
}

static void finish(void)
{
	char word = 'e';
	// Neither end closes its endpoint while the other one uses it.
	put(&word, 1);
	get(&word, 1);
	must("fi_close", fi_close(&ep->fid));
	must("fi_close", fi_close(&mr->fid));
	must("fi_close", fi_close(&cq->fid));
	if (av)
		must("fi_close", fi_close(&av->fid));
	if (pep)
		must("fi_close", fi_close(&pep->fid));
	must("fi_close", fi_close(&domain->fid));
	must("fi_close", fi_close(&eq->fid));
	must("fi_close", fi_close(&fabric->fid));
	fi_freeinfo(info);
	free(memory);
}

int main(int argc, char **argv)
{
	for (int option; (option = getopt(argc, argv, "b:p:e:o:n:S:")) != -1;) {
		switch (option) {
		case 'b': own = optarg; break;
		case 'p': port = atoi(optarg); break;
		case 'e': is_rdm = !strcmp(optarg, "rdm"); break;
		case 'o': op = !strcmp(optarg, "read") ? READ : !strcmp(optarg, "writedata") ? WRITEDATA : WRITE; break;
		case 'n': count = strtoul(optarg, NULL, 10); break;
		case 'S': size = strtoul(optarg, NULL, 10); break;
		default: return 2;
		}
	}
	server = argv[optind];
	if (!own || !count || !size)
		return 2;
	// There is one peer. The default, 256, makes CQs that are larger than rxe's largest.
	setenv("FI_UNIVERSE_SIZE", "2", 0);
	open_socket();
	open_fabric();
	if (is_rdm)
		open_endpoint();
	else
		connect_message_endpoints();
	struct hello theirs = greet();
	if (server)
		client(&theirs);
	else
		serve();
	finish();
	return 0;
}
