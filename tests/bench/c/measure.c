/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The main function of the C programs, which measures rows one after the other.
 *
 *   bench td|shared FACE count|ns|trace [NAME...]
 *
 * The loader decides which libibverbs.so.1 is measured: rdma-core's or this project's. "td" puts the queues into a thread
 * domain, "shared" keeps their locks. FACE begins the names of the measurements: NAME is "FACE ROW xBATCH".
 *
 * In the mode "trace" a section of each row is between two stores to a variable; the output has its address.
 *
 * Only the calls are measured: CHUNK operations between two readings of the clock. The work of a device, writing CQEs,
 * and the retirement of the posts of a chunk are not measured. In the mode "count" callgrind collects in the same section (client
 * requests), and each row ends with a dump that has its name.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <time.h>
#include "measure.h"

int counting, tracing, thread_domain;
uint64_t elapsed;
volatile uint64_t mark;

/* Prints the addresses of registers, the stack, the mark and the program, for readers of a trace. */
static void print_places(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096];

	CHECK(maps, "/proc/self/maps");
	print_registers();
	printf("mark\t%#lx\n", (uint64_t)&mark);
	printf("stack\t%#lx\n", (uint64_t)line);
	while (fgets(line, sizeof(line), maps))
		printf("map\t%s", line);
	fclose(maps);
}

static double tsc_per_ns(void)
{
	struct timespec a, b;
	uint64_t start;
	double ns;

	clock_gettime(CLOCK_MONOTONIC, &a);
	start = now();
	do {
		clock_gettime(CLOCK_MONOTONIC, &b);
		ns = (b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec);
	} while (ns < 5e7);
	return (now() - start) / ns;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void count(const struct row *r, int batch, const char *name)
{
	enum { CHUNKS = 4 };

	for (int i = 0; i < 2; i++)
		r->run(batch);
	CALLGRIND_ZERO_STATS;
	for (int i = 0; i < CHUNKS; i++)
		r->run(batch);
	CALLGRIND_DUMP_STATS_AT(name);
	printf("%s\t%d\n", name, CHUNKS * r->operations);
}
static void time_row(const struct row *r, int batch, const char *name, double per_ns)
{
	enum { WARM = 50, CHUNKS = 100, REPEATS = 9 };
	/* A row with long chunks runs fewer of them. */
	int chunks = r->operations == CHUNK ? CHUNKS : 8;
	double ns[REPEATS];

	for (int i = 0; i < WARM && i < chunks; i++)
		r->run(batch);
	for (int k = 0; k < REPEATS; k++) {
		elapsed = 0;
		for (int i = 0; i < chunks; i++)
			r->run(batch);
		ns[k] = elapsed / per_ns / (chunks * r->operations);
	}
	qsort(ns, REPEATS, sizeof(*ns), by_value);
	printf("%s\t%.3f\n", name, ns[REPEATS / 2]);
}

/* A chunk as it is in the long run, between marks. */
static void trace(const struct row *r, int batch, const char *name)
{
	tracing = 0;
	for (int i = 0; i < 2; i++)
		r->run(batch);
	tracing = 1;
	r->run(batch);
	printf("row\t%s\n", name);
}

static void measure(const struct row *r, int batch, const char *name, double per_ns)
{
	r->prepare(batch);
	if (counting)
		count(r, batch, name);
	else if (tracing)
		trace(r, batch, name);
	else
		time_row(r, batch, name, per_ns);
	fflush(stdout);
}

static int wanted(const char *name, int n, char **names)
{
	for (int i = 0; i < n; i++)
		if (!strcmp(name, names[i]))
			return 1;
	return !n;
}

int main(int argc, char **argv)
{
	double per_ns = 1;
	cpu_set_t cpus;

	if (argc < 4) {
		fprintf(stderr, "usage: bench td|shared FACE count|ns|trace [NAME...]\n");
		return 2;
	}
	thread_domain = !strcmp(argv[1], "td");
	counting = !strcmp(argv[3], "count");
	tracing = !strcmp(argv[3], "trace");
	/* One of the last CPUs: interrupts and other work begin at the first. */
	CPU_ZERO(&cpus);
	CPU_SET(1, &cpus);
	sched_setaffinity(0, sizeof(cpus), &cpus);
	create_objects();
	if (tracing)
		print_places();
	else if (!counting)
		per_ns = tsc_per_ns();
	for (const struct row *r = rows; r < rows + row_count; r++)
		for (int batch = 1; batch <= BATCH; batch += BATCH - 1) {
			char name[64];

			snprintf(name, sizeof(name), "%s %s x%d", argv[2], r->name, batch);
			if (!(r->batches & (batch == 1 ? ONE : LIST)) || (r->batches & TD && !thread_domain))
				continue;
			if (wanted(name, argc - 4, argv + 4))
				measure(r, batch, name, per_ns);
		}
	/* Rows of the table of posts: "FACE ROW xBATCH". */
	for (int i = 4; i < argc; i++) {
		char name[64];
		const char *face = strchr(argv[i], ' '), *batch = strrchr(argv[i], ' ');
		struct row r;

		if (!face || face == batch || batch[1] != 'x')
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)(batch - face - 1), face + 1);
		if (find_post(name, &r))
			measure(&r, atoi(batch + 2), argv[i], per_ns);
	}
	return 0;
}
