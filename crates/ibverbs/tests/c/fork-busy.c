/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A child that is forked while other threads execute control verbs waits for none of them. While the child runs, the threads
   rest: what they held is as it was at the fork, and the child has the processor. */
#include "common.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, FORKS = 100 };

static struct end end;
static atomic_int stop, rest;
static atomic_uint rounds;

/* Verbs that take the locks of the context, of the driver and of the library. */
static void *work(void *unused)
{
	(void)unused;
	while (!stop) {
		rounds++;
		while (rest && !stop)
			usleep(500);
		int count;
		struct ibv_device **list = ibv_get_device_list(&count);
		CHECK(list && count == 2);
		ibv_free_device_list(list);
		struct ibv_comp_channel *channel = ibv_create_comp_channel(end.context);
		CHECK(channel);
		struct ibv_cq *cq = ibv_create_cq(end.context, 4, NULL, channel, 0);
		CHECK(cq);
		struct ibv_qp_init_attr attr = {
			.send_cq = cq, .recv_cq = end.cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC
		};
		struct ibv_qp *qp = ibv_create_qp(end.pd, &attr);
		CHECK(qp);
		to_init(qp);
		CHECK(ibv_destroy_qp(qp) == 0);
		ibv_ack_cq_events(cq, 0);
		CHECK(ibv_destroy_cq(cq) == 0);
		CHECK(ibv_destroy_comp_channel(channel) == 0);
	}
	return NULL;
}

/* Each verb returns. What it returns depends on which locks were held at the time of the fork. */
static void child(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);
	CHECK(list && count == 2);
	ibv_free_device_list(list);
	/* A lock that was held as well as the call of the kernel: ESTALE; a new list of contexts: EINVAL. */
	errno = 0;
	CHECK(ibv_alloc_pd(end.context) == NULL && (errno == ESTALE || errno == EINVAL));
	errno = 0;
	CHECK(ibv_create_comp_channel(end.context) == NULL && (errno == ESTALE || errno == EINVAL));
	errno = 0;
	CHECK(ibv_create_cq(end.context, 4, NULL, end.channel, 0) == NULL &&
	      (errno == ESTALE || errno == EINVAL));
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RESET };
	int failure = ibv_modify_qp(end.qp, &attr, IBV_QP_STATE);
	CHECK(failure == ESTALE || failure == EINVAL);
	ibv_destroy_qp(end.qp);
	ibv_dereg_mr(end.mr);
	ibv_destroy_cq(end.cq);
	ibv_destroy_comp_channel(end.channel);
	ibv_close_device(end.context);
}

int main(void)
{
	open_end(&end, 0);
	struct ibv_qp_init_attr_ex attr = qp_attr(&end, IBV_QPT_RC);
	CHECK(end.qp = ibv_create_qp_ex(end.context, &attr));
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, work, NULL) == 0);
	for (int i = 0; i < FORKS; i++) {
		/* All threads work again, each at another place. */
		for (unsigned now = rounds; rounds - now < 2 * THREADS;)
			usleep(50);
		usleep(i * 37 % 500);
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			alarm(30);
			child();
			_exit(0);
		}
		rest = 1;
		int status;
		CHECK(waitpid(pid, &status, 0) == pid);
		rest = 0;
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
			fprintf(stderr, "fork %d: the child's status is %#x\n", i, status);
			exit(1);
		}
	}
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(ibv_destroy_qp(end.qp) == 0);
	close_end(&end);
	return 0;
}
