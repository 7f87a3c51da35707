// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * One EFA device without hardware or kernel. The functions by which libibverbs reaches a device (open, ioctl, mmap, files of sysfs) are
 * defined here; as they are symbols of the executable, the libraries call these. Answers are fixed, queues are plain memory.
 *
 * Facts: <rdma/ib_user_verbs.h>, <rdma/ib_user_ioctl_cmds.h>, <rdma/rdma_user_ioctl_cmds.h>, <rdma/efa-abi.h>.
 */
#define _GNU_SOURCE
#include "device.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <linux/types.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <rdma/efa-abi.h>

#define CDEV "/dev/infiniband/uverbs0"
#define MAJOR 231
#define MINOR 192
#define PAGE 4096ull
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Responses whose last fields older headers do not have. */
struct context_resp {
	uint32_t comp_mask, cmds_supp_udata_mask;
	uint16_t sub_cqs_per_cq, inline_buf_size;
	uint32_t max_llq_size;
	uint16_t max_tx_batch, min_sq_wr, inline_buf_size_ex, reserved;
};

/* The driver's method of an MR and its first answer, which older headers do not have. */
#define MR_QUERY 0x1000
#define MR_QUERY_RESP 0x1001

struct device device;
static char root[64];
static unsigned char is_device[1024];
static uint32_t handles;
static uint32_t keys;

enum { KEY_LLQ = 1, KEY_SQ_BELL, KEY_RQ, KEY_RQ_BELL, KEY_CQ, KEY_CQ_BELL };

static uint64_t key(unsigned what) { return ((uint64_t)++keys << 8 | what) * PAGE; }

/* ---- sysfs ---- */

static void file(const char *name, const char *text)
{
	char path[PATH_MAX];
	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')); *s++ = '/') {
		*s = 0;
		mkdir(path, 0755);
	}
	FILE *f = REAL(fopen)(path, "w");
	if (!f)
		abort();
	fprintf(f, "%s\n", text);
	fclose(f);
}

void device_start(void)
{
	static const char *const classes[] = { "class/infiniband_verbs/uverbs0/device", "class/infiniband/efa_0/device" };
	static const struct { const char *name, *text; } common[] = {
		{ "vendor", "0x1d0f" }, { "device", "0xefa2" }, { "subsystem_vendor", "0x1d0f" }, { "subsystem_device", "0xefa2" },
		{ "modalias", "pci:v00001D0Fd0000EFA2sv00001D0Fsd0000EFA2bc02sc00i00" }, { "numa_node", "-1" },
		{ "infiniband_verbs/uverbs0/dev", "231:192" }, { "infiniband_verbs/uverbs0/abi_version", "1" },
		{ "infiniband_verbs/uverbs0/ibdev", "efa_0" },
	};
	char name[256];

	strcpy(root, "/tmp/efa-recorder-XXXXXX");
	if (!mkdtemp(root))
		abort();
	file("class/infiniband_verbs/abi_version", "6");
	file("class/infiniband_verbs/uverbs0/ibdev", "efa_0");
	file("class/infiniband_verbs/uverbs0/abi_version", "1");
	file("class/infiniband_verbs/uverbs0/dev", "231:192");
	for (int c = 0; c < 2; c++)
		for (unsigned i = 0; i < sizeof(common) / sizeof(*common); i++) {
			snprintf(name, sizeof(name), "%s/%s", classes[c], common[i].name);
			file(name, common[i].text);
		}
	file("class/infiniband/efa_0/node_type", "7: unspecified");
	file("class/infiniband/efa_0/node_guid", "0000:0000:0000:0001");
	file("class/infiniband/efa_0/fw_ver", "0.0.0.1");
	file("class/infiniband/efa_0/ports/1/gids/0", "fe80:0000:0000:0000:0001:0002:0003:0004");
	setenv("SYSFS_PATH", root, 1);
}

static const char *place(const char *path, char *buffer)
{
	if (!path || strncmp(path, "/sys/class/infiniband", 21))
		return path;
	snprintf(buffer, PATH_MAX, "%s%s", root, path + 4);
	return buffer;
}

static int is_cdev(const char *path) { return path && (!strcmp(path, CDEV) || !strcmp(path, "/dev/char/231:192")); }
static int is_ours(int fd) { return fd >= 0 && fd < (int)sizeof(is_device) && is_device[fd]; }

static int open_at(int dir, const char *path, int flags, mode_t mode)
{
	char buffer[PATH_MAX];
	if (!is_cdev(path))
		return syscall(SYS_openat, dir, place(path, buffer), flags, mode);
	int fd = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
	if (fd >= 0 && fd < (int)sizeof(is_device))
		is_device[fd] = 1;
	return fd;
}

#define MODE(mode)                              \
	mode_t mode = 0;                        \
	if (flags & (O_CREAT | __O_TMPFILE)) {  \
		va_list list;                   \
		va_start(list, flags);          \
		mode = va_arg(list, int);       \
		va_end(list);                   \
	}
int open(const char *path, int flags, ...) { MODE(mode) return open_at(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(mode) return open_at(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(mode) return open_at(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(mode) return open_at(dir, path, flags, mode); }
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __openat_2(int dir, const char *path, int flags) { return open_at(dir, path, flags, 0); }
int __openat64_2(int dir, const char *path, int flags) { return open_at(dir, path, flags, 0); }
FILE *fopen(const char *path, const char *mode) { char b[PATH_MAX]; return REAL(fopen)(place(path, b), mode); }
FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }
DIR *opendir(const char *path) { char b[PATH_MAX]; return REAL(opendir)(place(path, b)); }

static int answer_stat(struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_mode = S_IFCHR | 0666;
	st->st_rdev = makedev(MAJOR, MINOR);
	return 0;
}
int stat(const char *restrict path, struct stat *restrict st)
{
	char b[PATH_MAX];
	return is_cdev(path) ? answer_stat(st) : (int)syscall(SYS_newfstatat, AT_FDCWD, place(path, b), st, 0);
}
int lstat(const char *restrict path, struct stat *restrict st)
{
	char b[PATH_MAX];
	return is_cdev(path) ? answer_stat(st) : (int)syscall(SYS_newfstatat, AT_FDCWD, place(path, b), st, AT_SYMLINK_NOFOLLOW);
}
int fstat(int fd, struct stat *st)
{
	return is_ours(fd) ? answer_stat(st) : (int)syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH);
}
int stat64(const char *restrict path, struct stat64 *restrict st) { return stat(path, (struct stat *)st); }
int lstat64(const char *restrict path, struct stat64 *restrict st) { return lstat(path, (struct stat *)st); }
int fstat64(int fd, struct stat64 *st) { return fstat(fd, (struct stat *)st); }

/* Without netlink, libibverbs looks for devices in sysfs. */
int socket(int domain, int type, int protocol)
{
	if (domain == AF_NETLINK) {
		errno = EPROTONOSUPPORT;
		return -1;
	}
	return REAL(socket)(domain, type, protocol);
}

int close(int fd)
{
	if (is_ours(fd))
		is_device[fd] = 0;
	return syscall(SYS_close, fd);
}

static void *map(size_t len, off_t offset)
{
	struct area *areas[] = { NULL, &device.llq, &device.sq_bell, &device.rq, &device.rq_bell, &device.cq, &device.cq_bell };
	unsigned what = offset / PAGE & 0xff;
	void *at = (void *)syscall(SYS_mmap, NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || what == 0 || what > KEY_CQ_BELL)
		abort();
	*areas[what] = (struct area){ at, len };
	return at;
}
void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t offset)
{
	if (!(flags & MAP_ANONYMOUS) && is_ours(fd))
		return map(len, offset);
	return (void *)syscall(SYS_mmap, at, len, prot, flags, fd, offset);
}
void *mmap64(void *at, size_t len, int prot, int flags, int fd, off64_t offset) { return mmap(at, len, prot, flags, fd, offset); }

/* ---- commands ---- */

static struct ib_uverbs_attr *attr(struct ib_uverbs_ioctl_hdr *c, unsigned id)
{
	for (int i = 0; i < c->num_attrs; i++)
		if (c->attrs[i].attr_id == id)
			return &c->attrs[i];
	return NULL;
}

/* Copies an input to `to` and returns its length. */
static unsigned input(struct ib_uverbs_ioctl_hdr *c, unsigned id, void *to, unsigned max)
{
	struct ib_uverbs_attr *a = attr(c, id);
	memset(to, 0, max);
	if (!a)
		return 0;
	memcpy(to, a->len <= 8 ? (void *)&a->data : (void *)(uintptr_t)a->data, a->len < max ? a->len : max);
	return a->len;
}
static uint64_t number(struct ib_uverbs_ioctl_hdr *c, unsigned id)
{
	uint64_t value;
	input(c, id, &value, sizeof(value));
	return value;
}

/* Answers as a kernel: a short answer is followed by zeros. */
static void answer(struct ib_uverbs_ioctl_hdr *c, unsigned id, const void *from, unsigned len)
{
	struct ib_uverbs_attr *a = attr(c, id);
	if (!a)
		return;
	len = len < a->len ? len : a->len;
	memmove((void *)(uintptr_t)a->data, from, len);
	memset((char *)(uintptr_t)a->data + len, 0, a->len - len);
	a->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}
static void answer_u32(struct ib_uverbs_ioctl_hdr *c, unsigned id, uint32_t value) { answer(c, id, &value, sizeof(value)); }
static void new_object(struct ib_uverbs_ioctl_hdr *c, unsigned id)
{
	struct ib_uverbs_attr *a = attr(c, id);
	handles++;
	if (a)
		a->data = handles;
}

static void context(struct ib_uverbs_ioctl_hdr *c)
{
	const struct generation *g = device.generation;
	struct context_resp r = {
		.cmds_supp_udata_mask = EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH,
		.sub_cqs_per_cq = g->sub_cqs, .inline_buf_size = g->inline_size, .max_llq_size = 0x10000,
		.max_tx_batch = g->max_tx_batch, .min_sq_wr = g->min_sq_wr, .inline_buf_size_ex = g->inline_size_ex,
	};
	uint64_t support = 1;
	handles = 0;
	answer_u32(c, UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS, 4);
	answer(c, UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT, &support, sizeof(support));
	answer(c, UVERBS_ATTR_UHW_OUT, &r, sizeof(r));
}

static void query_device(struct ib_uverbs_ioctl_hdr *c)
{
	const struct generation *g = device.generation;
	struct ib_uverbs_ex_query_device_resp r = {
		.base = { .node_guid = 0x0100000000000000, .vendor_id = 0x1d0f, .vendor_part_id = 0xefa2, .max_mr_size = 1ull << 40,
			.page_size_cap = 0xfffff000, .max_qp = 1024, .max_qp_wr = 4096, .max_sge = 2, .max_sge_rd = g->max_rdma_sge,
			.max_cq = 1024, .max_cqe = 0x8000, .max_mr = 0x10000, .max_pd = 256, .max_ah = 0x1000, .phys_port_cnt = 1 },
		.response_length = sizeof(r),
	};
	struct efa_ibv_ex_query_device_resp d = {
		.max_sq_wr = 4096, .max_rq_wr = 8192, .max_sq_sge = 2, .max_rq_sge = 3, .max_rdma_size = 1 << 30, .device_caps = g->caps,
	};
	answer(c, UVERBS_ATTR_CORE_OUT, &r, sizeof(r));
	answer(c, UVERBS_ATTR_UHW_OUT, &d, sizeof(d));
}

static int old_command(struct ib_uverbs_ioctl_hdr *c)
{
	uint32_t n = number(c, UVERBS_ATTR_WRITE_CMD);
	if (n == (IB_USER_VERBS_EX_CMD_QUERY_DEVICE | IB_USER_VERBS_CMD_FLAG_EXTENDED)) {
		query_device(c);
	} else if (n == IB_USER_VERBS_CMD_ALLOC_PD) {
		struct efa_ibv_alloc_pd_resp d = { .pdn = 0x31 };
		answer_u32(c, UVERBS_ATTR_CORE_OUT, ++handles);
		answer(c, UVERBS_ATTR_UHW_OUT, &d, sizeof(d));
	} else if (n == IB_USER_VERBS_CMD_REG_MR) {
		uint32_t r[3] = { ++handles, 0x181a00 + handles, 0x181a00 + handles };
		answer(c, UVERBS_ATTR_CORE_OUT, r, sizeof(r));
	} else if (n == IB_USER_VERBS_CMD_CREATE_AH) {
		struct efa_ibv_create_ah_resp d = { .efa_address_handle = device.next_ahn };
		answer_u32(c, UVERBS_ATTR_CORE_OUT, ++handles);
		answer(c, UVERBS_ATTR_UHW_OUT, &d, sizeof(d));
	} else if (n == IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL) {
		int ends[2];
		if (pipe(ends))
			abort();
		device.channel = ends[1];
		answer_u32(c, UVERBS_ATTR_CORE_OUT, ends[0]);
	} else {
		/* Changes and destruction succeed. */
		answer(c, UVERBS_ATTR_CORE_OUT, "", 0);
		answer(c, UVERBS_ATTR_UHW_OUT, "", 0);
	}
	return 0;
}

static void create_cq(struct ib_uverbs_ioctl_hdr *c)
{
	struct efa_ibv_create_cq q;
	uint32_t cqe = number(c, UVERBS_ATTR_CREATE_CQ_CQE);
	device.cq_request_len = input(c, UVERBS_ATTR_UHW_IN, device.cq_request, sizeof(device.cq_request));
	memcpy(&q, device.cq_request, sizeof(q));
	device.events = 0;
	device.cq_user_handle = number(c, UVERBS_ATTR_CREATE_CQ_USER_HANDLE);
	struct efa_ibv_create_cq_resp r = {
		.q_mmap_key = key(KEY_CQ),
		.q_mmap_size = ((uint64_t)cqe * q.cq_entry_size * q.num_sub_cqs + PAGE - 1) / PAGE * PAGE, .cq_idx = 5,
	};
	if (q.flags & EFA_CREATE_CQ_WITH_COMPLETION_CHANNEL) {
		r.comp_mask = EFA_CREATE_CQ_RESP_DB_OFF;
		r.db_off = CQ_BELL;
		r.db_mmap_key = key(KEY_CQ_BELL);
	}
	new_object(c, UVERBS_ATTR_CREATE_CQ_HANDLE);
	answer_u32(c, UVERBS_ATTR_CREATE_CQ_RESP_CQE, cqe);
	answer(c, UVERBS_ATTR_UHW_OUT, &r, sizeof(r));
}

static void create_qp(struct ib_uverbs_ioctl_hdr *c)
{
	struct efa_ibv_create_qp q;
	struct ib_uverbs_qp_cap cap;
	device.qp_request_len = input(c, UVERBS_ATTR_UHW_IN, device.qp_request, sizeof(device.qp_request));
	memcpy(&q, device.qp_request, sizeof(q));
	input(c, UVERBS_ATTR_CREATE_QP_CAP, &cap, sizeof(cap));
	struct efa_ibv_create_qp_resp r = {
		.rq_db_offset = RQ_BELL, .sq_db_offset = SQ_BELL, .llq_desc_offset = LLQ_START, .rq_mmap_key = key(KEY_RQ),
		.rq_mmap_size = (q.rq_ring_size + PAGE - 1) / PAGE * PAGE, .rq_db_mmap_key = key(KEY_RQ_BELL),
		.sq_db_mmap_key = key(KEY_SQ_BELL), .llq_desc_mmap_key = key(KEY_LLQ), .send_sub_cq_idx = 0,
		.recv_sub_cq_idx = device.generation->sub_cqs > 1,
	};
	new_object(c, UVERBS_ATTR_CREATE_QP_HANDLE);
	answer(c, UVERBS_ATTR_CREATE_QP_RESP_CAP, &cap, sizeof(cap));
	answer_u32(c, UVERBS_ATTR_CREATE_QP_RESP_QP_NUM, device.next_qpn);
	answer(c, UVERBS_ATTR_UHW_OUT, &r, sizeof(r));
}

static int command(struct ib_uverbs_ioctl_hdr *c)
{
	switch (c->object_id << 16 | c->method_id) {
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_INVOKE_WRITE:
		return old_command(c);
	case UVERBS_OBJECT_DEVICE << 16 | UVERBS_METHOD_GET_CONTEXT:
		context(c);
		return 0;
	case UVERBS_OBJECT_ASYNC_EVENT << 16 | UVERBS_METHOD_ASYNC_EVENT_ALLOC:
		attr(c, UVERBS_ATTR_ASYNC_EVENT_ALLOC_FD_HANDLE)->data_s64 = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		return 0;
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_CREATE:
		create_cq(c);
		return 0;
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_CREATE:
		create_qp(c);
		return 0;
	case UVERBS_OBJECT_MR << 16 | MR_QUERY: {
		static const uint16_t r[] = { 5, 3, 4, 6 };
		for (int i = 0; i < 4; i++)
			answer(c, MR_QUERY_RESP + i, &r[i], 2);
		return 0;
	}
	case UVERBS_OBJECT_CQ << 16 | UVERBS_METHOD_CQ_DESTROY:
		answer_u32(c, UVERBS_ATTR_DESTROY_CQ_RESP, device.events);
		return 0;
	case UVERBS_OBJECT_QP << 16 | UVERBS_METHOD_QP_DESTROY:
		answer(c, UVERBS_ATTR_DESTROY_QP_RESP, "", 0);
		return 0;
	case UVERBS_OBJECT_PD << 16 | UVERBS_METHOD_PD_DESTROY:
	case UVERBS_OBJECT_MR << 16 | UVERBS_METHOD_MR_DESTROY:
	case UVERBS_OBJECT_AH << 16 | UVERBS_METHOD_AH_DESTROY:
		return 0;
	}
	return EPROTONOSUPPORT;
}

/* Writes a command: inputs as they were before the call, outputs as the kernel wrote them. */
static int traced(struct ib_uverbs_ioctl_hdr *c)
{
	uint8_t before[32][256];
	FILE *to = device.trace;
	int n = c->num_attrs < 32 ? c->num_attrs : 32;

	for (int i = 0; i < n; i++) {
		struct ib_uverbs_attr *a = &c->attrs[i];
		const void *from = a->len > 8 ? (void *)(uintptr_t)a->data : &a->data;
		memcpy(before[i], from, a->len < 8 ? 8 : a->len < 256 ? a->len : 256);
		a->flags &= ~UVERBS_ATTR_F_VALID_OUTPUT;
	}
	int error = command(c);
	fprintf(to, "{\"object\":%u,\"method\":%u,\"driver_id\":%u,\"errno\":%d,\"attrs\":[", c->object_id, c->method_id, c->driver_id, error);
	for (int i = 0; i < n; i++) {
		struct ib_uverbs_attr *a = &c->attrs[i];
		int is_out = a->flags & UVERBS_ATTR_F_VALID_OUTPUT;
		const uint8_t *bytes = is_out ? (uint8_t *)(uintptr_t)a->data : before[i];
		fprintf(to, "%s{\"id\":%u,\"len\":%u,\"mandatory\":%d,\"elem_id\":%u", i ? "," : "", a->attr_id, a->len, a->flags & 1,
			a->attr_data.enum_data.elem_id);
		if (a->len) {
			fprintf(to, ",\"%s\":\"", is_out ? "out" : "in");
			for (int k = 0; k < a->len && k < 256; k++)
				fprintf(to, "%02x", bytes[k]);
			fprintf(to, "\"}");
		} else
			fprintf(to, ",\"data\":%llu}", (unsigned long long)a->data);
	}
	fprintf(to, "]}\n");
	return error;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	void *argument = va_arg(list, void *);
	va_end(list);
	if (!is_ours(fd))
		return syscall(SYS_ioctl, fd, request, argument);
	errno = request != RDMA_VERBS_IOCTL ? ENOTTY : device.trace ? traced(argument) : command(argument);
	return errno ? -1 : 0;
}
