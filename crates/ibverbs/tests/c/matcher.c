/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Matchers and their rules (mlx5dv_create_flow(3)): packets that match, errors, the order of destruction, and other threads. */
#include "frames.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static struct mlx5dv_flow_matcher *new_matcher(struct ibv_context *context, uint16_t priority)
{
	struct match mask = { 0 };
	memset(mask.source, 0xff, 6);
	struct mlx5dv_flow_matcher_attr attr = {
		.type = IBV_FLOW_ATTR_NORMAL, .priority = priority, .match_criteria_enable = OUTER, .match_mask = to(&mask),
	};
	return mlx5dv_create_flow_matcher(context, &attr);
}

/* A rule for the packets from `last`: they go to a queue pair, or are dropped without one. */
static struct ibv_flow *new_rule(struct mlx5dv_flow_matcher *matcher, uint8_t last, struct ibv_qp *qp)
{
	struct match value = { 0 };
	memcpy(value.source, group, 5);
	value.source[5] = last;
	struct mlx5dv_flow_action_attr actions[2] = { { .type = MLX5DV_FLOW_ACTION_DROP } };
	if (qp)
		actions[0] = (struct mlx5dv_flow_action_attr){ .type = MLX5DV_FLOW_ACTION_DEST_IBV_QP, .qp = qp };
	actions[1].type = MLX5DV_FLOW_ACTION_TAG;
	actions[1].tag_value = TAG;
	return mlx5dv_create_flow(matcher, to(&value), 2, actions);
}

static void steered(void)
{
	struct mlx5dv_flow_matcher *matcher = new_matcher(b.context, 3), *first = new_matcher(b.context, 1);
	CHECK(matcher && first);
	post_recv(&b, 1, 1024, 512);
	send_from(1);
	nothing_arrives();
	struct ibv_flow *rule = new_rule(matcher, 1, b.qp);
	CHECK(rule && rule->context == b.context);
	send_from(2);
	nothing_arrives();
	send_from(1);
	CHECK(poll_ok(b.cq, 1).byte_len == FRAME && memcmp(a.buf, b.buf + 1024, FRAME) == 0);

	/* A rule of a better priority. */
	post_recv(&b, 2, 1024, 512);
	struct ibv_flow *drop = new_rule(first, 1, NULL);
	CHECK(drop);
	send_from(1);
	nothing_arrives();
	CHECK(ibv_destroy_flow(drop) == 0);
	send_from(1);
	poll_ok(b.cq, 2);

	/* What is in use is not destroyed. */
	CHECK(mlx5dv_destroy_flow_matcher(matcher) == EBUSY);
	CHECK(ibv_destroy_qp(b.qp) == EBUSY);
	CHECK(ibv_destroy_flow(rule) == 0);
	CHECK(mlx5dv_destroy_flow_matcher(matcher) == 0 && mlx5dv_destroy_flow_matcher(first) == 0);
	send_from(1);
	nothing_arrives();
}

static void refused(void)
{
#define FAILS(call, with) CHECK((errno = 0, (call) == NULL) && errno == (with))
	struct match mask = { 0 }, value = { 0 };
	struct mlx5dv_flow_matcher_attr attr = { .match_criteria_enable = OUTER, .match_mask = to(&mask) };
	FAILS(mlx5dv_create_flow_matcher(NULL, &attr), EINVAL);
	FAILS(mlx5dv_create_flow_matcher(b.context, NULL), EINVAL);
	attr.comp_mask = 1 << 7;
	FAILS(mlx5dv_create_flow_matcher(b.context, &attr), EOPNOTSUPP);
	attr.comp_mask = MLX5DV_FLOW_MATCHER_MASK_FT_TYPE;
	attr.ft_type = MLX5DV_FLOW_TABLE_TYPE_FDB;
	FAILS(mlx5dv_create_flow_matcher(b.context, &attr), EOPNOTSUPP);
	attr.comp_mask = 0;
	attr.type = IBV_FLOW_ATTR_SNIFFER;
	FAILS(mlx5dv_create_flow_matcher(b.context, &attr), EOPNOTSUPP);
	attr.type = IBV_FLOW_ATTR_NORMAL;
	attr.priority = 99;
	FAILS(mlx5dv_create_flow_matcher(b.context, &attr), EINVAL);
	attr.priority = 0;
	mask.size = 1 << 20;
	FAILS(mlx5dv_create_flow_matcher(b.context, &attr), EINVAL);
	attr.match_mask = NULL;
	FAILS(mlx5dv_create_flow_matcher(b.context, &attr), EINVAL);
	attr.match_mask = to(&mask);
	struct mlx5dv_flow_matcher *matcher = mlx5dv_create_flow_matcher(b.context, &attr);
	CHECK(matcher);

	struct mlx5dv_flow_action_attr to_qp[2] = { { .type = MLX5DV_FLOW_ACTION_DEST_IBV_QP, .qp = b.qp },
						    { .type = MLX5DV_FLOW_ACTION_DROP } };
	FAILS(mlx5dv_create_flow(NULL, to(&value), 1, to_qp), EINVAL);
	FAILS(mlx5dv_create_flow(matcher, NULL, 1, to_qp), EINVAL);
	FAILS(mlx5dv_create_flow(matcher, to(&value), 1, NULL), EINVAL);
	FAILS(mlx5dv_create_flow(matcher, to(&value), 0, NULL), EINVAL);
	FAILS(mlx5dv_create_flow(matcher, to(&value), 2, to_qp), EOPNOTSUPP);
	to_qp[0].qp = NULL;
	FAILS(mlx5dv_create_flow(matcher, to(&value), 1, to_qp), EINVAL);
	to_qp[0].qp = a.qp; /* Of another context. */
	FAILS(mlx5dv_create_flow(matcher, to(&value), 1, to_qp), EINVAL);
	to_qp[0].qp = b.qp;
	value.size = 0;
	FAILS(mlx5dv_create_flow(matcher, (void *)&value, 1, to_qp), EINVAL);
	struct mlx5dv_flow_action_attr other = { .type = 77 };
	FAILS(mlx5dv_create_flow(matcher, to(&value), 1, &other), EOPNOTSUPP);
	other.type = MLX5DV_FLOW_ACTION_DEST_DEVX;
	FAILS(mlx5dv_create_flow(matcher, to(&value), 1, &other), EINVAL);
	CHECK(mlx5dv_destroy_flow_matcher(matcher) == 0);
	CHECK(mlx5dv_destroy_flow_matcher(NULL) == EINVAL);
}

static _Atomic int running = 1;
static struct mlx5dv_flow_matcher *shared;

/* Adds and removes rules of a matcher that another thread tries to destroy. */
static void *rules(void *arg)
{
	uint8_t last = (uintptr_t)arg;
	for (int i = 0; i < 500; i++) {
		struct ibv_flow *rule = new_rule(shared, last, b.qp);
		CHECK(rule && ibv_destroy_flow(rule) == 0);
	}
	return NULL;
}

static void *traffic(void *arg)
{
	struct ibv_wc wc;
	(void)arg;
	while (running)
		CHECK(ibv_poll_cq(b.cq, 1, &wc) >= 0);
	return NULL;
}

static void threads(void)
{
	pthread_t thread[3];
	CHECK(shared = new_matcher(b.context, 0));
	struct ibv_flow *held = new_rule(shared, 99, b.qp);
	CHECK(held);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&thread[i], NULL, rules, (void *)(uintptr_t)(i + 1)) == 0);
	CHECK(pthread_create(&thread[2], NULL, traffic, NULL) == 0);
	for (int i = 0; i < 200; i++) {
		send_from(i % 4);
		CHECK(mlx5dv_destroy_flow_matcher(shared) == EBUSY);
		CHECK(ibv_destroy_qp(b.qp) == EBUSY);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	running = 0;
	CHECK(pthread_join(thread[2], NULL) == 0);
	CHECK(ibv_destroy_flow(held) == 0);

	/* A child's end of the objects is not the parent's. */
	CHECK(held = new_rule(shared, 1, b.qp));
	pid_t child = fork();
	if (child == 0) {
		ibv_destroy_flow(held);
		mlx5dv_destroy_flow_matcher(shared);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(mlx5dv_destroy_flow_matcher(shared) == EBUSY);
	CHECK(ibv_destroy_flow(held) == 0 && mlx5dv_destroy_flow_matcher(shared) == 0);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	open_raw(&a);
	open_raw(&b);
	steered();
	refused();
	for (int i = 0; i < DEPTH - 4; i++)
		post_recv(&b, 100 + i, 1024, 512);
	threads();
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	/* What is left ends with the context. */
	struct ibv_context *context = open_hca(0);
	CHECK(new_matcher(context, 0) && ibv_close_device(context) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
