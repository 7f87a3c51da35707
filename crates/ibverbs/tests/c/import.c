/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Contexts, protection domains, regions and device memory that are imported by their numbers. */
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

int main(void)
{
	struct end a, b, copy;
	open_end(&a, 0);
	open_end(&b, 1);
	memset(&copy, 0, sizeof(copy));
	errno = 0;
	CHECK(ibv_import_device(-1) == NULL && errno == EBADF);
	int null = open("/dev/null", O_RDWR);
	errno = 0;
	CHECK(ibv_import_device(null) == NULL && errno == ENODEV && close(null) == 0);

	int fd = dup(a.context->cmd_fd);
	CHECK(copy.context = ibv_import_device(fd));
	CHECK(copy.context != a.context && copy.context->device == a.context->device);
	CHECK(copy.context->cmd_fd == fd && copy.context->async_fd != a.context->async_fd);
	CHECK(copy.pd = ibv_import_pd(copy.context, a.pd->handle));
	CHECK(copy.pd->handle == a.pd->handle && copy.pd->context == copy.context);
	errno = 0;
	CHECK(ibv_import_pd(copy.context, 0x7000000) == NULL && errno == ENOENT);
	CHECK(copy.mr = ibv_import_mr(copy.pd, a.mr->handle));
	CHECK(copy.mr->lkey == a.mr->lkey && copy.mr->rkey == a.mr->rkey && copy.mr->length == SIZE);
	errno = 0;
	CHECK(ibv_import_mr(copy.pd, 0x7000000) == NULL && errno == ENOENT);

	struct ibv_alloc_dm_attr dm_attr = { .length = 4096 };
	struct ibv_dm *dm = ibv_alloc_dm(a.context, &dm_attr), *same;
	CHECK(dm && (same = ibv_import_dm(copy.context, dm->handle)));
	char text[24] = "memory of the device", read[sizeof(text)];
	CHECK(ibv_memcpy_to_dm(dm, 64, text, sizeof(text)) == 0);
	CHECK(ibv_memcpy_from_dm(read, same, 64, sizeof(text)) == 0 && strcmp(read, text) == 0);
	CHECK(ibv_memcpy_from_dm(read, same, 4080, sizeof(text)) == EINVAL);
	errno = 0;
	CHECK(ibv_import_dm(copy.context, 0x7000000) == NULL && errno == ENOENT);

	/* A queue pair of the imported context sends from the imported region. */
	copy.gid = a.gid;
	copy.buf = a.buf;
	CHECK(copy.cq = ibv_create_cq(copy.context, DEPTH, NULL, NULL, 0));
	struct ibv_qp_init_attr_ex attr = qp_attr(&copy, IBV_QPT_RC);
	CHECK(copy.qp = ibv_create_qp_ex(copy.context, &attr));
	attr = qp_attr(&b, IBV_QPT_RC);
	CHECK(b.qp = ibv_create_qp_ex(b.context, &attr));
	connect_ends(&copy, &b);
	strcpy(a.buf, "imported");
	post_recv(&b, 1, 0, 64);
	struct ibv_sge sge = { (uintptr_t)a.buf, 9, copy.mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
	}, *bad;
	CHECK(ibv_post_send(copy.qp, &wr, &bad) == 0);
	poll_ok(copy.cq, 2);
	poll_ok(b.cq, 1);
	CHECK(strcmp(b.buf, "imported") == 0);
	CHECK(ibv_destroy_qp(copy.qp) == 0 && ibv_destroy_qp(b.qp) == 0 && ibv_destroy_cq(copy.cq) == 0);

	/* The end of an import does not change the owner's objects. */
	ibv_unimport_dm(same);
	ibv_unimport_mr(copy.mr);
	ibv_unimport_pd(copy.pd);
	CHECK(ibv_close_device(copy.context) == 0 && fcntl(fd, F_GETFD) == -1);
	CHECK(ibv_free_dm(dm) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
