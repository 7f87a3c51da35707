/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A device and its kernel, as far as libefa sees them: see device.c. */
#ifndef EFA_RECORDER_DEVICE_H
#define EFA_RECORDER_DEVICE_H
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* What a generation of the device has. */
struct generation {
	const char *name;
	uint32_t caps; /* EFA_QUERY_DEVICE_CAPS_* */
	uint16_t inline_size, inline_size_ex;
	uint16_t max_tx_batch, min_sq_wr;
	uint16_t sub_cqs, max_rdma_sge;
};

/* Memory of a queue or the page of a doorbell, as the library mapped it last. */
struct area {
	uint8_t *at;
	size_t len;
};

struct device {
	/* Read when the library asks. */
	const struct generation *generation;
	uint16_t next_qpn, next_ahn;
	/* The mappings of the last QP and CQ. */
	struct area llq, sq_bell, rq, rq_bell, cq, cq_bell;
	/* The private input of the last create_qp and create_cq. */
	uint8_t qp_request[64], cq_request[64];
	unsigned qp_request_len, cq_request_len;
	uint64_t cq_user_handle;
	/* Its events, all of which the program must acknowledge before it is destroyed. */
	uint32_t events;
	/* The write end of the last completion channel. */
	int channel;
	/* Every command is written to this file, one JSON object a line. */
	FILE *trace;
};

/* Offsets of the registers in their pages, and of the first entry in the mapping of the send queue. */
#define SQ_BELL 0x20
#define RQ_BELL 0x24
#define CQ_BELL 0x30
#define LLQ_START 0x40

extern struct device device;

void device_start(void);

#endif
