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
static void check_group(const layout *l, mesh_group g, int64_t size)
{
    int mine[MOST], theirs[MOST];
    for (int rank = 0; rank < (int)l->world; rank++) {
        int n = mesh_members(l, rank, g, mine);
        assert_int_equal(n, size);
        int self = 0;
        for (int i = 0; i < n; i++) {
            self += mine[i] == rank;
            assert_true(i == 0 || mine[i] > mine[i - 1]);
            assert_int_equal(mesh_members(l, mine[i], g, theirs), n);
            assert_memory_equal(mine, theirs, (size_t)n * sizeof(int));
        }
        assert_int_equal(self, 1);
    }
}

static int shared_with(const layout *l, int rank, mesh_group a, mesh_group b)
{
    int in_a[MOST], in_b[MOST], n = 0;
    int size_a = mesh_members(l, rank, a, in_a), size_b = mesh_members(l, rank, b, in_b);
    for (int i = 0; i < size_a; i++)
        for (int j = 0; j < size_b; j++)
            n += in_a[i] == in_b[j];
    return n;
}

/* A sketch, which a rank makes without talking to others, has the groups that a mesh would have. */
static void check_sketch(const layout *l, int rank)
{
    mesh m;
    mesh_sketch(l, rank, &m);
    for (int g = 0; g < MESH_GROUPS; g++) {
        int member[MOST], n = mesh_members(l, rank, (mesh_group)g, member);
        assert_int_equal(m.group[g].size, n);
        assert_int_equal(member[m.group[g].rank], rank);
    }
}

static void check_groups(layout l)
{
    int64_t whole = l.shard * l.context * l.tensor;
    check_group(&l, MESH_WORLD, l.world);
    check_group(&l, MESH_STAGE, l.world / l.pipeline);
    check_group(&l, MESH_PIPELINE, l.pipeline);
    check_group(&l, MESH_REPLICATE, l.replicate);
    check_group(&l, MESH_WHOLE, whole);
    check_group(&l, MESH_DENSE, l.shard * l.context);
    check_group(&l, MESH_CONTEXT, l.context);
    check_group(&l, MESH_TENSOR, l.tensor);
    check_group(&l, MESH_ROW, l.context * l.tensor);
    check_group(&l, MESH_EXPERT, l.expert);
    check_group(&l, MESH_EXPERT_SHARD, whole / l.expert / l.expert_tensor);
    check_group(&l, MESH_EXPERT_WHOLE, whole / l.expert);
    for (int rank = 0; rank < (int)l.world; rank++) {
        mesh_place p = mesh_place_of(&l, rank);
        check_sketch(&l, rank);
        /* Groups that meet in this rank alone: together they reach every rank that shares
         * parameters exactly once. */
        assert_int_equal(shared_with(&l, rank, MESH_DENSE, MESH_TENSOR), 1);
        assert_int_equal(shared_with(&l, rank, MESH_EXPERT, MESH_EXPERT_SHARD), 1);
        assert_true(p.expert < l.expert && p.consumer < l.replicate * l.shard);
        /* a rank's place is its rank in the group */
        int member[MOST];
        mesh_members(&l, rank, MESH_EXPERT, member);
        assert_int_equal(member[p.expert], rank);
        mesh_members(&l, rank, MESH_EXPERT_SHARD, member);
        assert_int_equal(member[p.expert_shard], rank);
        mesh_members(&l, rank, MESH_TENSOR, member);
        assert_int_equal(member[p.tensor], rank);
        mesh_members(&l, rank, MESH_PIPELINE, member);
        assert_int_equal(member[p.pipeline], rank);
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
    layout l = mesh_layout(2, 2, 2, 2, 2, 1, 1);
    int member[MOST];
    assert_int_equal(mesh_members(&l, 13, MESH_ROW, member), 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(member[i], 12 + i);
    mesh_place p = mesh_place_of(&l, 13);
    assert_int_equal(p.pipeline, 0);
    assert_int_equal(p.replicate, 1);
    assert_int_equal(p.shard, 1);
    assert_int_equal(p.context, 0);
    assert_int_equal(p.tensor, 1);
    assert_int_equal(p.consumer, 3);
}

/* Groups of the same ranks share one communicator. */
static void test_mesh__same_ranks_share_a_communicator(void **state)
{
    (void)state;
    const struct {
        layout l;
        int n;
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
        for (int rank = 0; rank < (int)cases[i].l.world; rank++)
            assert_int_equal(mesh_communicators(&cases[i].l, rank), cases[i].n);
}

/* Each consumer has one rank that receives, and its peers in all stages; together they are every
 * rank once. */
static void test_mesh__rows_are_shared_by_the_ranks_of_a_consumer(void **state)
{
    (void)state;
    layout l = mesh_layout(2, 2, 2, 2, 2, 1, 1);
    int member[MOST], seen[MOST] = {0};
    for (int rank = 0; rank < (int)l.world; rank++) {
        int n = mesh_feed_members(&l, rank, member);
        mesh_place me = mesh_place_of(&l, rank), first = mesh_place_of(&l, member[0]);
        assert_int_equal(n, 8);
        assert_int_equal(first.consumer, me.consumer);
        assert_int_equal(first.pipeline + first.context + first.tensor, 0);
        for (int i = 0; i < n; i++)
            seen[member[i]] += member[0] == rank;
    }
    for (int rank = 0; rank < (int)l.world; rank++)
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
