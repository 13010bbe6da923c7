/* SPDX-License-Identifier: Apache-2.0 */
/* test_mesh.c: the groups of ranks that a layout makes. Every rank is in one group of each kind,
 * the sizes of groups are the degrees of the layout and their products, and groups of the same
 * ranks share a communicator. */
#include "tests/harness.h"

#include "trainer/parallel/mesh.h"

enum { MOST = 64 };

static layout mesh_layout(int64_t replicate, int64_t shard, int64_t context, int64_t tensor,
                          int64_t pipeline, int64_t expert, int64_t expert_tensor)
{
    return (layout){.replicate = replicate,
                    .shard = shard,
                    .context = context,
                    .tensor = tensor,
                    .pipeline = pipeline,
                    .expert = expert,
                    .expert_tensor = expert_tensor,
                    .world = replicate * shard * context * tensor * pipeline,
                    .accumulation = 1};
}

/* Every rank is in exactly one group of the kind, which all its members list alike and which has
 * `size` ranks. */
static void check_group(const layout *degrees, mesh_group group, int64_t size)
{
    int mine[MOST], theirs[MOST];
    for (int rank = 0; rank < (int)degrees->world; rank++) {
        int members = mesh_members(degrees, rank, group, mine);
        assert_int_equal(members, size);
        int self = 0;
        for (int i = 0; i < members; i++) {
            self += mine[i] == rank;
            assert_true(i == 0 || mine[i] > mine[i - 1]);
            assert_int_equal(mesh_members(degrees, mine[i], group, theirs), members);
            assert_memory_equal(mine, theirs, (size_t)members * sizeof(int));
        }
        assert_int_equal(self, 1);
    }
}

static int shared_with(const layout *degrees, int rank, mesh_group first, mesh_group second)
{
    int in_a[MOST], in_b[MOST], members = 0;
    int size_a = mesh_members(degrees, rank, first, in_a),
        size_b = mesh_members(degrees, rank, second, in_b);
    for (int i = 0; i < size_a; i++)
        for (int j = 0; j < size_b; j++)
            members += in_a[i] == in_b[j];
    return members;
}

/* A sketch, which a rank makes without talking to others, has the groups that a mesh would have. */
static void check_sketch(const layout *degrees, int rank)
{
    mesh ranks;
    mesh_sketch(degrees, rank, &ranks);
    for (int group = 0; group < MESH_GROUPS; group++) {
        int member[MOST], members = mesh_members(degrees, rank, (mesh_group)group, member);
        assert_int_equal(ranks.group[group].size, members);
        assert_int_equal(member[ranks.group[group].rank], rank);
    }
}

static void check_groups(layout degrees)
{
    int64_t whole = degrees.shard * degrees.context * degrees.tensor;
    check_group(&degrees, MESH_WORLD, degrees.world);
    check_group(&degrees, MESH_STAGE, degrees.world / degrees.pipeline);
    check_group(&degrees, MESH_PIPELINE, degrees.pipeline);
    check_group(&degrees, MESH_REPLICATE, degrees.replicate);
    check_group(&degrees, MESH_WHOLE, whole);
    check_group(&degrees, MESH_DENSE, degrees.shard * degrees.context);
    check_group(&degrees, MESH_CONTEXT, degrees.context);
    check_group(&degrees, MESH_TENSOR, degrees.tensor);
    check_group(&degrees, MESH_ROW, degrees.context * degrees.tensor);
    check_group(&degrees, MESH_EXPERT, degrees.expert);
    check_group(&degrees, MESH_EXPERT_SHARD, whole / degrees.expert / degrees.expert_tensor);
    check_group(&degrees, MESH_EXPERT_WHOLE, whole / degrees.expert);
    for (int rank = 0; rank < (int)degrees.world; rank++) {
        mesh_place place = mesh_place_of(&degrees, rank);
        check_sketch(&degrees, rank);
        /* Groups that meet in this rank alone: together they reach every rank that shares
         * parameters exactly once. */
        assert_int_equal(shared_with(&degrees, rank, MESH_DENSE, MESH_TENSOR), 1);
        assert_int_equal(shared_with(&degrees, rank, MESH_EXPERT, MESH_EXPERT_SHARD), 1);
        assert_true(place.expert < degrees.expert &&
                    place.consumer < degrees.replicate * degrees.shard);
        /* a rank's place is its rank in the group */
        int member[MOST];
        mesh_members(&degrees, rank, MESH_EXPERT, member);
        assert_int_equal(member[place.expert], rank);
        mesh_members(&degrees, rank, MESH_EXPERT_SHARD, member);
        assert_int_equal(member[place.expert_shard], rank);
        mesh_members(&degrees, rank, MESH_TENSOR, member);
        assert_int_equal(member[place.tensor], rank);
        mesh_members(&degrees, rank, MESH_PIPELINE, member);
        assert_int_equal(member[place.pipeline], rank);
    }
}

static void test_mesh__groups_of_every_dimension_and_of_products(void **state)
{
    (void)state;
    check_groups(mesh_layout(1, 1, 1, 1, 1, 1, 1));
    check_groups(mesh_layout(8, 1, 1, 1, 1, 1, 1));
    check_groups(mesh_layout(1, 8, 1, 1, 1, 4, 1));
    check_groups(mesh_layout(1, 2, 2, 2, 1, 1, 1));
    check_groups(mesh_layout(1, 4, 1, 1, 2, 2, 1));
    check_groups(mesh_layout(1, 2, 1, 4, 1, 2, 4));
    check_groups(mesh_layout(1, 4, 1, 2, 1, 8, 1));
    check_groups(mesh_layout(2, 4, 1, 1, 1, 2, 1));
    check_groups(mesh_layout(2, 2, 2, 2, 2, 4, 1));
    check_groups(mesh_layout(2, 4, 2, 2, 2, 4, 2));
    check_groups(mesh_layout(1, 2, 2, 2, 1, 2, 2));
}

static void test_mesh__neighbours_of_a_row_are_neighbours_in_the_world(void **state)
{
    (void)state;
    layout degrees = mesh_layout(2, 2, 2, 2, 2, 1, 1);
    int member[MOST];
    assert_int_equal(mesh_members(&degrees, 13, MESH_ROW, member), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(member[i], 12 + i);
    mesh_place place = mesh_place_of(&degrees, 13);
    assert_int_equal(place.pipeline, 0);
    assert_int_equal(place.replicate, 1);
    assert_int_equal(place.shard, 1);
    assert_int_equal(place.context, 0);
    assert_int_equal(place.tensor, 1);
    assert_int_equal(place.consumer, 3);
}

/* Groups of the same ranks share one communicator. */
static void test_mesh__same_ranks_share_a_communicator(void **state)
{
    (void)state;
    const struct {
        layout degrees;
        int members;
    } cases[] = {
        {mesh_layout(1, 1, 1, 1, 1, 1, 1), 0},
        {mesh_layout(1, 8, 1, 1, 1, 1, 1), 1},
        {mesh_layout(1, 8, 1, 1, 1, 8, 1), 1},
        {mesh_layout(2, 4, 1, 1, 1, 1, 1), 3}, /* world, replicate, whole */
        {mesh_layout(1, 8, 1, 1, 1, 4, 1), 3}, /* world, expert and its shards */
        {mesh_layout(1, 2, 2, 2, 1, 1, 1), 5}, /* world, dense, context, tensor, row */
        {mesh_layout(1, 4, 1, 1, 2, 2, 1), 5}, /* world, stage, pipeline, expert and its shards */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int rank = 0; rank < (int)cases[i].degrees.world; rank++)
            assert_int_equal(mesh_communicators(&cases[i].degrees, rank), cases[i].members);
}

/* Each consumer has one rank that receives, and its peers in all stages; together they are every
 * rank once. */
static void test_mesh__rows_are_shared_by_the_ranks_of_a_consumer(void **state)
{
    (void)state;
    layout degrees = mesh_layout(2, 2, 2, 2, 2, 1, 1);
    int member[MOST], seen[MOST] = {0};
    for (int rank = 0; rank < (int)degrees.world; rank++) {
        int members = mesh_feed_members(&degrees, rank, member);
        mesh_place me = mesh_place_of(&degrees, rank), first = mesh_place_of(&degrees, member[0]);
        assert_int_equal(members, 8);
        assert_int_equal(first.consumer, me.consumer);
        assert_int_equal(first.pipeline + first.context + first.tensor, 0);
        for (int i = 0; i < members; i++)
            seen[member[i]] += member[0] == rank;
    }
    for (int rank = 0; rank < (int)degrees.world; rank++)
        assert_int_equal(seen[rank], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh__groups_of_every_dimension_and_of_products),
        cmocka_unit_test(test_mesh__neighbours_of_a_row_are_neighbours_in_the_world),
        cmocka_unit_test(test_mesh__same_ranks_share_a_communicator),
        cmocka_unit_test(test_mesh__rows_are_shared_by_the_ranks_of_a_consumer),
    };
    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
