/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the C programs have in common (measure.c): the measured section, and the table of rows. */
#ifndef MEASURE_H
#define MEASURE_H
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <valgrind/callgrind.h>
#include <x86intrin.h>

#define CHUNK 128 /* operations of a measured stretch */
#define BATCH 32

#define FAIL(what) do { fprintf(stderr, "bench: %s: %s\n", what, strerror(errno)); exit(1); } while (0)
#define CHECK(ok, what) do { if (__builtin_expect(!(ok), 0)) FAIL(what); } while (0)

extern int counting, tracing, thread_domain;

/* Ticks of the measured sections. */
extern uint64_t elapsed;
/* A store to it begins and ends a traced section. */
extern volatile uint64_t mark;

static inline uint64_t now(void)
{
	unsigned aux;
	uint64_t t;

	_mm_lfence();
	t = __rdtscp(&aux);
	_mm_lfence();
	return t;
}
static inline void begin(void)
{
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
	else if (tracing)
		mark = tracing;
	else
		elapsed -= now();
}
static inline void end(void)
{
	if (counting)
		CALLGRIND_TOGGLE_COLLECT;
	else if (tracing)
		mark = tracing;
	else
		elapsed += now();
}

struct row {
	const char *name;
	int batches; /* ONE, LIST; and TD: only with a thread domain */
	void (*prepare)(int batch), (*run)(int batch);
	int operations; /* of a chunk */
};
enum { ONE = 1, LIST = 2, TD = 4 };

/* Of each program: its rows but those of the table of posts, and how many there are. */
extern const struct row rows[];
extern const int row_count;
/* Makes the row of this name, without face and batch; 0 if it is no row of the table of posts. */
int find_post(const char *name, struct row *row);
void create_objects(void);
/* Prints the addresses of registers, for readers of a trace. */
void print_registers(void);

#endif
