/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Steering by root tables (mlx5dv_dr_domain_create(3)): packets, errors, the order of destruction, descriptions, threads, and
 * a child. */
#include "frames.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#define FAILS(call, with) CHECK((errno = 0, (call) == NULL) && errno == (with))

static struct mlx5dv_dr_domain *domain;
static struct mlx5dv_dr_table *table;
static struct mlx5dv_dr_action *to_qp, *drop, *tag;

static struct mlx5dv_dr_matcher *new_matcher(uint16_t priority)
{
	struct match mask = { 0 };
	memset(mask.source, 0xff, 6);
	return mlx5dv_dr_matcher_create(table, priority, OUTER, to(&mask));
}

/* A rule for the packets from `last`. */
static struct mlx5dv_dr_rule *new_rule(struct mlx5dv_dr_matcher *matcher, uint8_t last, struct mlx5dv_dr_action *target)
{
	struct match value = { 0 };
	memcpy(value.source, group, 5);
	value.source[5] = last;
	value.size = 6; /* The mask is longer; the bytes that the value lacks are 0. */
	struct mlx5dv_dr_action *actions[2] = { target, tag };
	return mlx5dv_dr_rule_create(matcher, (void *)&value, 2, actions);
}

static void steered(void)
{
	struct mlx5dv_dr_matcher *matcher = new_matcher(3), *first = new_matcher(1);
	CHECK(matcher && first);
	post_recv(&b, 1, 1024, 512);
	struct mlx5dv_dr_rule *rule = new_rule(matcher, 1, to_qp), *same = new_rule(matcher, 3, to_qp);
	CHECK(rule && same);
	send_from(2);
	nothing_arrives();
	send_from(1);
	CHECK(poll_ok(b.cq, 1).byte_len == FRAME && memcmp(a.buf, b.buf + 1024, FRAME) == 0);
	post_recv(&b, 2, 1024, 512);
	struct mlx5dv_dr_rule *better = new_rule(first, 1, drop);
	CHECK(better);
	send_from(1);
	nothing_arrives();
	send_from(3);
	poll_ok(b.cq, 2);

	/* What is in use is not destroyed. */
	CHECK(mlx5dv_dr_domain_destroy(domain) == EBUSY && mlx5dv_dr_table_destroy(table) == EBUSY);
	CHECK(mlx5dv_dr_matcher_destroy(matcher) == EBUSY && mlx5dv_dr_matcher_destroy(first) == EBUSY);
	CHECK(mlx5dv_dr_action_destroy(to_qp) == EBUSY && mlx5dv_dr_action_destroy(drop) == EBUSY);
	CHECK(mlx5dv_dr_action_destroy(tag) == EBUSY && ibv_destroy_qp(b.qp) == EBUSY);
	CHECK(mlx5dv_dr_rule_destroy(better) == 0 && mlx5dv_dr_matcher_destroy(first) == 0);
	CHECK(mlx5dv_dr_rule_destroy(rule) == 0 && mlx5dv_dr_matcher_destroy(matcher) == EBUSY);
	CHECK(mlx5dv_dr_rule_destroy(same) == 0 && mlx5dv_dr_matcher_destroy(matcher) == 0);
	send_from(1);
	nothing_arrives();
}

static void refused(void)
{
	struct match mask = { 0 }, value = { 0 };
	struct mlx5dv_dr_action *actions[3] = { to_qp, drop, NULL };
	FAILS(mlx5dv_dr_domain_create(b.context, MLX5DV_DR_DOMAIN_TYPE_FDB + 1), EINVAL);
	FAILS(mlx5dv_dr_table_create(domain, 1), EOPNOTSUPP);
	CHECK(mlx5dv_dr_domain_sync(domain, MLX5DV_DR_DOMAIN_SYNC_FLAGS_SW | MLX5DV_DR_DOMAIN_SYNC_FLAGS_MEM) == 0);
	CHECK(mlx5dv_dr_domain_sync(domain, 1 << 9) == EOPNOTSUPP);
	mlx5dv_dr_domain_set_reclaim_device_memory(domain, true);
	FAILS(mlx5dv_dr_matcher_create(table, 99, OUTER, to(&mask)), EINVAL);
	FAILS(mlx5dv_dr_matcher_create(table, 0, OUTER, NULL), EINVAL);
	FAILS(mlx5dv_dr_action_create_dest_table(table), EOPNOTSUPP);
	FAILS(mlx5dv_dr_action_create_pop_vlan(), EOPNOTSUPP);
	struct ibv_qp_init_attr_ex attr = qp_attr(&b, IBV_QPT_RC);
	struct ibv_qp *connected = ibv_create_qp_ex(b.context, &attr);
	CHECK(connected);
	FAILS(mlx5dv_dr_action_create_dest_ibv_qp(connected), EINVAL);
	CHECK(ibv_destroy_qp(connected) == 0);

	/* An object of a command that is neither a counter nor a receiver. */
	char command[16] = { 0 }, answer[16];
	_devx_set(command, 0x800, 0, 16); /* ALLOC_PD */
	struct mlx5dv_devx_obj *object = mlx5dv_devx_obj_create(b.context, command, 16, answer, 16);
	CHECK(object);
	FAILS(mlx5dv_dr_action_create_dest_devx_tir(object), EINVAL);
	FAILS(mlx5dv_dr_action_create_flow_counter(object, 0), EINVAL);
	CHECK(mlx5dv_devx_obj_destroy(object) == 0);

	struct mlx5dv_dr_matcher *matcher = new_matcher(0);
	struct mlx5dv_dr_matcher_layout layout = { .flags = MLX5DV_DR_MATCHER_LAYOUT_RESIZABLE };
	CHECK(matcher && mlx5dv_dr_matcher_set_layout(matcher, &layout) == EOPNOTSUPP);
	FAILS(mlx5dv_dr_rule_create(matcher, NULL, 1, actions), EINVAL);
	FAILS(mlx5dv_dr_rule_create(matcher, to(&value), 1, NULL), EINVAL);
	FAILS(mlx5dv_dr_rule_create(matcher, to(&value), 0, NULL), EINVAL);
	FAILS(mlx5dv_dr_rule_create(matcher, to(&value), 2, actions), EOPNOTSUPP);
	FAILS(mlx5dv_dr_rule_create(matcher, to(&value), 1, actions + 2), EINVAL);
	/* A failure holds nothing. */
	CHECK(mlx5dv_dr_action_destroy(drop) == 0 && (drop = mlx5dv_dr_action_create_drop()));
	struct mlx5dv_dr_domain *other = mlx5dv_dr_domain_create(a.context, MLX5DV_DR_DOMAIN_TYPE_NIC_RX);
	struct mlx5dv_dr_table *others = mlx5dv_dr_table_create(other, 0);
	memset(mask.source, 0xff, 6);
	struct mlx5dv_dr_matcher *foreign = mlx5dv_dr_matcher_create(others, 0, OUTER, to(&mask));
	CHECK(other && others && foreign);
	FAILS(new_rule(foreign, 1, to_qp), EINVAL);
	CHECK(mlx5dv_dr_matcher_destroy(foreign) == 0 && mlx5dv_dr_matcher_destroy(matcher) == 0);
	CHECK(mlx5dv_dr_table_destroy(others) == 0 && mlx5dv_dr_domain_destroy(other) == 0);
}

/* The first numbers of a file's lines. */
static int records(FILE *file, int numbers[16])
{
	char line[256];
	int n = 0;
	rewind(file);
	while (n < 16 && fgets(line, sizeof(line), file))
		numbers[n++] = atoi(line);
	CHECK(fclose(file) == 0);
	return n;
}

static void described(void)
{
	struct mlx5dv_dr_matcher *matcher = new_matcher(0);
	struct mlx5dv_dr_rule *rule = new_rule(matcher, 1, to_qp), *other = new_rule(matcher, 2, drop);
	struct mlx5dv_dr_table *second = mlx5dv_dr_table_create(domain, 0);
	FILE *file;
	int found[16];
	CHECK(matcher && rule && other && second);
	CHECK((file = tmpfile()) && mlx5dv_dump_dr_domain(file, domain) == 0);
	CHECK(records(file, found) == 3 && found[0] == 3000 && found[1] == 3100 && found[2] == 3100);
	CHECK(mlx5dv_dr_table_destroy(second) == 0);
	CHECK((file = tmpfile()) && mlx5dv_dump_dr_domain(file, domain) == 0 && records(file, found) == 2);
	CHECK((file = tmpfile()) && mlx5dv_dump_dr_table(file, table) == 0 && records(file, found) == 2);
	CHECK((file = tmpfile()) && mlx5dv_dump_dr_matcher(file, matcher) == 0);
	CHECK(records(file, found) == 3 && found[2] == 3200);
	CHECK((file = tmpfile()) && mlx5dv_dump_dr_rule(file, rule) == 0);
	CHECK(records(file, found) == 6 && found[3] == 3300 && found[4] == 3404 && found[5] == 3407);
	CHECK((file = tmpfile()) && mlx5dv_dump_dr_rule(file, other) == 0);
	CHECK(records(file, found) == 6 && found[4] == 3403);
	CHECK((file = fopen("/dev/full", "w")) && setvbuf(file, NULL, _IONBF, 0) == 0);
	CHECK(mlx5dv_dump_dr_domain(file, domain) == -ENOSPC && fclose(file) == 0);
	CHECK(mlx5dv_dr_rule_destroy(rule) == 0 && mlx5dv_dr_rule_destroy(other) == 0);
	CHECK(mlx5dv_dr_matcher_destroy(matcher) == 0);
}

static struct mlx5dv_dr_matcher *shared;

/* Makes and removes objects of a table that another thread tries to destroy. */
static void *objects(void *arg)
{
	uint8_t last = (uintptr_t)arg;
	for (int i = 0; i < 300; i++) {
		struct mlx5dv_dr_rule *rule = new_rule(shared, last, to_qp);
		CHECK(rule && mlx5dv_dr_rule_destroy(rule) == 0);
		struct mlx5dv_dr_table *other = mlx5dv_dr_table_create(domain, 0);
		CHECK(other && mlx5dv_dr_table_destroy(other) == 0);
		struct mlx5dv_dr_matcher *matcher = new_matcher(last);
		CHECK(matcher && mlx5dv_dr_matcher_destroy(matcher) == 0);
		struct mlx5dv_dr_action *action = mlx5dv_dr_action_create_tag(i);
		CHECK(action && mlx5dv_dr_action_destroy(action) == 0);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t thread[2];
	CHECK(shared = new_matcher(0));
	struct mlx5dv_dr_rule *kept = new_rule(shared, 99, to_qp);
	FILE *null = fopen("/dev/null", "w");
	CHECK(kept && null);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&thread[i], NULL, objects, (void *)(uintptr_t)(i + 1)) == 0);
	for (int i = 0; i < 200; i++) {
		CHECK(mlx5dv_dr_matcher_destroy(shared) == EBUSY && mlx5dv_dr_table_destroy(table) == EBUSY);
		CHECK(mlx5dv_dr_domain_destroy(domain) == EBUSY && mlx5dv_dr_action_destroy(to_qp) == EBUSY);
		CHECK(mlx5dv_dump_dr_domain(null, domain) == 0 && mlx5dv_dump_dr_rule(null, kept) == 0);
		CHECK(ibv_destroy_qp(b.qp) == EBUSY);
	}
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(fclose(null) == 0);

	/* A child's end of the objects is not the parent's. */
	pid_t child = fork();
	if (child == 0) {
		mlx5dv_dr_rule_destroy(kept);
		mlx5dv_dr_matcher_destroy(shared);
		mlx5dv_dr_table_destroy(table);
		mlx5dv_dr_domain_destroy(domain);
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(mlx5dv_dr_matcher_destroy(shared) == EBUSY);
	CHECK(mlx5dv_dr_rule_destroy(kept) == 0 && mlx5dv_dr_matcher_destroy(shared) == 0);
}

int main(void)
{
	open_end(&a, 0);
	open_end(&b, 1);
	open_raw(&a);
	open_raw(&b);
	CHECK(domain = mlx5dv_dr_domain_create(b.context, MLX5DV_DR_DOMAIN_TYPE_NIC_RX));
	CHECK(table = mlx5dv_dr_table_create(domain, 0));
	CHECK(to_qp = mlx5dv_dr_action_create_dest_ibv_qp(b.qp));
	CHECK((drop = mlx5dv_dr_action_create_drop()) && (tag = mlx5dv_dr_action_create_tag(TAG)));
	steered();
	refused();
	described();
	threads();
	CHECK(mlx5dv_dr_action_destroy(to_qp) == 0 && mlx5dv_dr_action_destroy(drop) == 0);
	CHECK(mlx5dv_dr_action_destroy(tag) == 0 && mlx5dv_dr_domain_destroy(domain) == EBUSY);
	CHECK(mlx5dv_dr_table_destroy(table) == 0 && mlx5dv_dr_domain_destroy(domain) == 0);
	CHECK(ibv_destroy_qp(a.qp) == 0 && ibv_destroy_qp(b.qp) == 0);
	close_end(&a);
	close_end(&b);
	return 0;
}
