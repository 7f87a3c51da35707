/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The recorder's EFA device as a preload library: tests/efa-recorder/device.c answers the system calls, this file says what the device
 * has. The symbol "device" tells the programs where the queues are.
 *
 *   gcc -O2 -fPIC -shared -o efa-shim.so shim.c ../../../efa-recorder/device.c
 */
#include "../../../efa-recorder/device.h"

/* RDMA read, RNR retry, notifications, source GID, RDMA write, unsolicited write: EFA_QUERY_DEVICE_CAPS_* of efa-abi.h. */
static const struct generation generation = {
	.name = "bench", .caps = 1 | 2 | 4 | 8 | 1 << 5 | 1 << 6, .inline_size = 32, .inline_size_ex = 80, .max_tx_batch = 32, .sub_cqs = 2,
	.max_rdma_sge = 1,
};

static __attribute__((constructor)) void start(void)
{
	device.generation = &generation;
	device.next_qpn = 1;
	device.next_ahn = 7;
}
