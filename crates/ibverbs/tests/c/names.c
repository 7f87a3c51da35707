/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Prints the results of the functions that need no device; the test compares those of two libraries. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	for (int i = -1; i < 30; i++)
		printf("wc %d %s\n", i, ibv_wc_status_str(i));
	for (int i = -1; i < 12; i++)
		printf("node %d %s\n", i, ibv_node_type_str(i));
	for (int i = -1; i < 10; i++)
		printf("port %d %s\n", i, ibv_port_state_str(i));
	/* Up to the last event of rdma-core 44. */
	for (int i = -1; i <= IBV_EVENT_WQ_FATAL; i++)
		printf("event %d %s\n", i, ibv_event_type_str(i));
	for (int i = -1; i < 30; i++)
		printf("rate %d %d %d\n", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i));
	for (int i = -1; i < 1000; i++)
		printf("mult %d %d\n", i, mult_to_ibv_rate(i));
	for (int i = -1; i < 2000000; i++)
		if (mbps_to_ibv_rate(i) != IBV_RATE_MAX)
			printf("mbps %d %d\n", i, mbps_to_ibv_rate(i));
	return 0;
}
