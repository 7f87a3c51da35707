/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The queries of a device, and their failures. */
#include "common.h"
#include <fcntl.h>
#include <unistd.h>

static int count_fds(void)
{
	int n = 0;
	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

int main(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 2 && list[2] == NULL);
	CHECK(strcmp(ibv_get_device_name(list[0]), "hca0") == 0);
	CHECK(list[0]->node_type == IBV_NODE_CA && list[0]->transport_type == IBV_TRANSPORT_IB);
	CHECK(ibv_get_device_guid(list[0]) != 0 && ibv_get_device_guid(list[0]) != ibv_get_device_guid(list[1]));
	struct ibv_device *first = list[0];
	ibv_free_device_list(list);
	list = ibv_get_device_list(NULL);
	CHECK(list && list[0] == first);

	int fds = count_fds();
	struct ibv_context *context = ibv_open_device(list[0]);
	CHECK(context && context->device == first && context->num_comp_vectors > 0);
	CHECK(fcntl(context->cmd_fd, F_GETFD) >= 0 && fcntl(context->async_fd, F_GETFD) >= 0);
	ibv_free_device_list(list);

	struct ibv_device_attr attr;
	CHECK(ibv_query_device(context, &attr) == 0);
	CHECK(strcmp(attr.fw_ver, "22.36.1010") == 0 && attr.max_qp > 0 && attr.phys_port_cnt == 1);
	CHECK(attr.node_guid == ibv_get_device_guid(first));
	struct ibv_device_attr_ex ex;
	memset(&ex, 0xff, sizeof(ex));
	CHECK(ibv_query_device_ex(context, NULL, &ex) == 0);
	CHECK(ex.orig_attr.max_qp == attr.max_qp && ex.orig_attr.node_guid == attr.node_guid && ex.comp_mask == 0);
	CHECK(ex.phys_port_cnt_ex == 1 && ex.completion_timestamp_mask != 0);

	struct ibv_port_attr port;
	memset(&port, 0xff, sizeof(port));
	CHECK(ibv_query_port(context, PORT, &port) == 0);
	CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.gid_tbl_len > 0);
	CHECK(ibv_query_port(context, 9, &port) == EINVAL);
	/* The exported function, which old programs call, writes no more than the size of the old struct. */
	struct ibv_port_attr old;
	memset(&old, 0xff, sizeof(old));
	CHECK((ibv_query_port)(context, PORT, (struct _compat_ibv_port_attr *)&old) == 0);
	CHECK(old.state == IBV_PORT_ACTIVE && old.port_cap_flags2 == 0xffff);

	union ibv_gid gid;
	CHECK(ibv_query_gid(context, PORT, GID_INDEX, &gid) == 0 && gid.raw[10] == 0xff);
	CHECK(ibv_query_gid(context, PORT, -1, &gid) == -1 && errno == EINVAL);
	struct ibv_gid_entry entry;
	CHECK(ibv_query_gid_ex(context, PORT, GID_INDEX, &entry, 0) == 0);
	CHECK(memcmp(&entry.gid, &gid, sizeof(gid)) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
	struct ibv_gid_entry entries[8];
	CHECK(ibv_query_gid_table(context, entries, 8, 0) == 4);
	CHECK(ibv_query_gid_table(context, entries, 1, 0) == -EINVAL);
	__be16 pkey;
	CHECK(ibv_query_pkey(context, PORT, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_query_pkey(context, PORT, 1000, &pkey) == -1);
	CHECK(ibv_get_pkey_index(context, PORT, 0xffff) == 0);
	CHECK(ibv_get_pkey_index(context, PORT, 0x1234) == -1);
	CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED && ibv_fork_init() == 0);

	/* NULL, and objects of no context of this library. */
	struct ibv_context foreign = { 0 };
	struct ibv_pd stranger = { .context = &foreign };
	errno = 0;
	CHECK(ibv_alloc_pd(NULL) == NULL && errno == EINVAL);
	errno = 0;
	CHECK(ibv_alloc_pd(&foreign) == NULL && errno == EINVAL);
	CHECK(ibv_dealloc_pd(NULL) == EINVAL && ibv_dealloc_pd(&stranger) == EINVAL);
	CHECK(ibv_query_device(&foreign, &attr) == EINVAL);
	CHECK(ibv_destroy_qp(NULL) == EINVAL && ibv_destroy_cq(NULL) == EINVAL && ibv_dereg_mr(NULL) == EINVAL);
	errno = 0;
	CHECK(ibv_open_device(NULL) == NULL && errno == EINVAL);

	/* The clock of the device advances. */
	struct ibv_values_ex before = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK }, after = before, wrong = { .comp_mask = 2 };
	CHECK(ibv_query_rt_values_ex(context, &before) == 0 && before.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	usleep(1000);
	CHECK(ibv_query_rt_values_ex(context, &after) == 0 && after.raw_clock.tv_nsec > before.raw_clock.tv_nsec);
	CHECK(ibv_query_rt_values_ex(context, &wrong) == EINVAL);

	/* Missing functions return EOPNOTSUPP. */
	errno = 0;
	CHECK(ibv_import_device(STDERR_FILENO) == NULL && (errno == EINVAL || errno == ENODEV));

	/* Closing a device destroys its objects and leaves no descriptor open. */
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	CHECK(pd && cq);
	CHECK(ibv_close_device(context) == 0);
	CHECK(count_fds() == fds);
	CHECK(ibv_close_device(context) == -1);
	return 0;
}
