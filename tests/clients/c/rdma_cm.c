// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A library to preload for programs of librdmacm on software devices: /dev/infiniband/rdma_cm is the connection manager of the first device
 * (crates/ibverbs/src/software_cm.rs).
 *
 *   cc -O2 -fPIC -shared -o rdma_cm.so rdma_cm.c -ldl
 *   mkdir -p sysfs/class/misc/rdma_cm && echo 4 > sysfs/class/misc/rdma_cm/abi_version
 *   SYSFS_PATH=sysfs LD_PRELOAD=./rdma_cm.so LD_LIBRARY_PATH=target/dist UVERBS_HCA=1 rping -s
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

struct calls {
	int (*open)(void);
	int (*write)(int, const void *, size_t);
	void (*close)(int);
};

#define NUMBERS 65536
#define GET_EVENT 12
#define NAME "/dev/infiniband/rdma_cm"

static const struct calls *calls;
/* 1: a channel, 2: one whose reads do not wait. */
static volatile char kinds[NUMBERS];

#define REAL(name) ({ \
	static __typeof__(&name) real; \
	if (!real) \
		real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
	real; })

void uverbs_software_cm(const struct calls *given)
{
	calls = given;
}

static int is_channel(int fd)
{
	return fd >= 0 && fd < NUMBERS && kinds[fd];
}

static int open_channel(int flags)
{
	int fd = calls ? calls->open() : -ENOENT;

	if (fd < 0) {
		errno = -fd;
		return -1;
	}
	if (fd < NUMBERS)
		kinds[fd] = flags & O_NONBLOCK ? 2 : 1;
	return fd;
}

#define OPEN(name) \
	int name(const char *path, int flags, ...) \
	{ \
		va_list list; \
		mode_t mode; \
\
		va_start(list, flags); \
		mode = va_arg(list, mode_t); \
		va_end(list); \
		if (!strcmp(path, NAME)) \
			return open_channel(flags); \
		return REAL(name)(path, flags, mode); \
	}

OPEN(open)
OPEN(open64)

int close(int fd)
{
	if (is_channel(fd)) {
		kinds[fd] = 0;
		calls->close(fd);
		return 0;
	}
	return REAL(close)(fd);
}

static void describe(mode_t *mode, dev_t *device)
{
	*mode = S_IFCHR | 0666;
	*device = makedev(10, 58);
}

int fstat(int fd, struct stat *st)
{
	int result = REAL(fstat)(fd, st);

	if (!result && is_channel(fd))
		describe(&st->st_mode, &st->st_rdev);
	return result;
}

int fstat64(int fd, struct stat64 *st)
{
	int result = REAL(fstat64)(fd, st);

	if (!result && is_channel(fd))
		describe(&st->st_mode, &st->st_rdev);
	return result;
}

#define FCNTL(name) \
	int name(int fd, int cmd, ...) \
	{ \
		va_list list; \
		void *arg; \
\
		va_start(list, cmd); \
		arg = va_arg(list, void *); \
		va_end(list); \
		if (is_channel(fd) && cmd == F_SETFL) { \
			kinds[fd] = (long)arg & O_NONBLOCK ? 2 : 1; \
			return 0; \
		} \
		if (is_channel(fd) && cmd == F_GETFL) \
			return O_RDWR | (kinds[fd] == 2 ? O_NONBLOCK : 0); \
		return REAL(name)(fd, cmd, arg); \
	}

FCNTL(fcntl)
FCNTL(fcntl64)

ssize_t write(int fd, const void *bytes, size_t len)
{
	int result;

	if (!is_channel(fd))
		return REAL(write)(fd, bytes, len);
	for (;;) {
		struct pollfd wait = { .fd = fd, .events = POLLIN };

		result = calls->write(fd, bytes, len);
		if (result != -EAGAIN || kinds[fd] == 2 || len < 4 || *(const unsigned *)bytes != GET_EVENT)
			break;
		/* As the kernel, a channel waits for its next event. */
		poll(&wait, 1, 100);
	}
	if (result < 0) {
		errno = -result;
		return -1;
	}
	return len;
}
