/* SPDX-License-Identifier: MIT OR Apache-2.0 */
// A benchmark of MPI that checks all data: `mpi_bench pingpong [COUNT]` between ranks 0 and 1, or `mpi_bench collectives
// [COUNT]` among all ranks (barrier, bcast, allreduce, allgather, alltoall). It prints the time of each operation and size.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static long count = 20;

static void *memory(size_t length)
{
	void *at = malloc(length);
	if (!at) {
		fprintf(stderr, "mpi_bench: no memory\n");
		MPI_Abort(MPI_COMM_WORLD, 4);
	}
	return at;
}

static void wrong(const char *what, size_t size, long round)
{
	fprintf(stderr, "mpi_bench: rank %d: wrong data: %s, %zu bytes, round %ld\n", rank, what, size, round);
	MPI_Abort(MPI_COMM_WORLD, 3);
}

// The contents of the block that rank `from` sends to rank `to` in a round. Collectives with one block for all have `to` 0.
static uint32_t word_of(int from, int to, long round, size_t at)
{
	return (uint32_t)(from * 1000003 + to * 10007 + round * 101) + (uint32_t)at * 7;
}

static void fill(uint32_t *data, size_t words, int from, int to, long round)
{
	for (size_t at = 0; at < words; at++)
		data[at] = word_of(from, to, round, at);
}

static int is_right(const uint32_t *data, size_t words, int from, int to, long round)
{
	for (size_t at = 0; at < words; at++)
		if (data[at] != word_of(from, to, round, at))
			return 0;
	return 1;
}

// Prints the longest time of any rank.
static void report(const char *what, size_t size, double seconds)
{
	double longest = 0;
	MPI_Reduce(&seconds, &longest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%-10s %8zu bytes %10.1f us\n", what, size, longest / count * 1e6);
}

static void pingpong(size_t size)
{
	size_t words = size / 4;
	uint32_t *data = memory(size + 4);
	double spent = 0;
	for (long round = 0; round < count && rank < 2; round++) {
		if (rank == 0)
			fill(data, words, 0, 1, round);
		double start = MPI_Wtime();
		if (rank == 0) {
			MPI_Send(data, words, MPI_UINT32_T, 1, round, MPI_COMM_WORLD);
			memset(data, 0xee, size);
			MPI_Recv(data, words, MPI_UINT32_T, 1, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			spent += MPI_Wtime() - start;
			if (!is_right(data, words, 1, 0, round))
				wrong("pong", size, round);
		} else {
			MPI_Recv(data, words, MPI_UINT32_T, 0, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			if (!is_right(data, words, 0, 1, round))
				wrong("ping", size, round);
			fill(data, words, 1, 0, round);
			MPI_Send(data, words, MPI_UINT32_T, 0, round, MPI_COMM_WORLD);
		}
	}
	report("pingpong", size, spent);
	free(data);
}

static void barrier(void)
{
	double start = MPI_Wtime();
	for (long round = 0; round < count; round++)
		MPI_Barrier(MPI_COMM_WORLD);
	report("barrier", 0, MPI_Wtime() - start);
}

static void bcast(size_t size)
{
	size_t words = size / 4;
	uint32_t *data = memory(size);
	double spent = 0;
	for (long round = 0; round < count; round++) {
		int root = round % ranks;
		if (rank == root)
			fill(data, words, root, 0, round);
		else
			memset(data, 0xee, size);
		double start = MPI_Wtime();
		MPI_Bcast(data, words, MPI_UINT32_T, root, MPI_COMM_WORLD);
		spent += MPI_Wtime() - start;
		if (!is_right(data, words, root, 0, round))
			wrong("bcast", size, round);
	}
	report("bcast", size, spent);
	free(data);
}

static void allreduce(size_t size)
{
	size_t words = size / 4;
	uint32_t *mine = memory(size), *sum = memory(size);
	double spent = 0;
	for (long round = 0; round < count; round++) {
		fill(mine, words, rank, 0, round);
		memset(sum, 0xee, size);
		double start = MPI_Wtime();
		MPI_Allreduce(mine, sum, words, MPI_UINT32_T, MPI_SUM, MPI_COMM_WORLD);
		spent += MPI_Wtime() - start;
		for (size_t at = 0; at < words; at++) {
			uint32_t expected = 0;
			for (int from = 0; from < ranks; from++)
				expected += word_of(from, 0, round, at);
			if (sum[at] != expected)
				wrong("allreduce", size, round);
		}
	}
	report("allreduce", size, spent);
	free(mine);
	free(sum);
}

// One block from each rank to all.
static void allgather(size_t size)
{
	size_t words = size / 4;
	uint32_t *mine = memory(size), *all = memory(size * ranks);
	double spent = 0;
	for (long round = 0; round < count; round++) {
		fill(mine, words, rank, 0, round);
		memset(all, 0xee, size * ranks);
		double start = MPI_Wtime();
		MPI_Allgather(mine, words, MPI_UINT32_T, all, words, MPI_UINT32_T, MPI_COMM_WORLD);
		spent += MPI_Wtime() - start;
		for (int from = 0; from < ranks; from++)
			if (!is_right(all + from * words, words, from, 0, round))
				wrong("allgather", size, round);
	}
	report("allgather", size, spent);
	free(mine);
	free(all);
}

// Another block from each rank to each.
static void alltoall(size_t size)
{
	size_t words = size / 4;
	uint32_t *mine = memory(size * ranks), *all = memory(size * ranks);
	double spent = 0;
	for (long round = 0; round < count; round++) {
		for (int to = 0; to < ranks; to++)
			fill(mine + to * words, words, rank, to, round);
		memset(all, 0xee, size * ranks);
		double start = MPI_Wtime();
		MPI_Alltoall(mine, words, MPI_UINT32_T, all, words, MPI_UINT32_T, MPI_COMM_WORLD);
		spent += MPI_Wtime() - start;
		for (int from = 0; from < ranks; from++)
			if (!is_right(all + from * words, words, from, rank, round))
				wrong("alltoall", size, round);
	}
	report("alltoall", size, spent);
	free(mine);
	free(all);
}

int main(int argc, char **argv)
{
	// Eager and rendezvous protocols.
	static const size_t sizes[] = {4, 1024, 16384, 262144};
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc > 2)
		count = strtol(argv[2], NULL, 10);
	if (argc < 2 || ranks < 2 || count < 1) {
		fprintf(stderr, "usage: mpi_bench pingpong|collectives [COUNT], with at least two ranks\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	int is_pingpong = !strcmp(argv[1], "pingpong");
	if (is_pingpong)
		pingpong(0);
	else
		barrier();
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		if (is_pingpong) {
			pingpong(sizes[i]);
			continue;
		}
		bcast(sizes[i]);
		allreduce(sizes[i]);
		allgather(sizes[i]);
		alltoall(sizes[i]);
	}
	if (rank == 0)
		printf("%d ranks: all data correct\n", ranks);
	MPI_Finalize();
	return 0;
}
