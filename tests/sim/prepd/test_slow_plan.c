/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that the plan of the daemon and the slow one (tests/sim/plan), which share no code, place
 * the same documents in the same rows: for thousands of data sets and options that a seed draws. */
#include <stdlib.h>

#include "prepd/plan/plan.h"
#include "prepd/sample/clip.h"
#include "proto/row/assign.h"
#include "tests/harness.h"
#include "tests/sim/prepd/expected.h"
#include "tests/unit/prepd/conf_defaults.h"

enum { TIMES = HARNESS_SANITIZED ? 400 : 4000 };

static int64_t pick(sim_random *luck, const int64_t *from, size_t count)
{
    return from[sim_random_below(luck, count)];
}
#define PICK(...)                                                                                  \
    pick(luck, (const int64_t[]){__VA_ARGS__},                                                     \
         sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static conf draw_options(sim_random *luck)
{
    conf out = conf_defaults();
    out.training_seq_len = PICK(64, 100, 257, 512, 768, 2000, 8192);
    out.training_global_batch_size = PICK(1, 2, 3, 8, 64);
    out.training_epochs = (double)PICK(0, 2, 4, 4, 5, 7, 12) / 4;
    out.training_seed = (int64_t)sim_random_below(luck, INT64_MAX);
    out.data_generation = PICK(0, 0, 1, 7);
    out.data_window = PICK(1, 8, 16, 64, 300, 16384);
    out.data_group = (int)PICK(GROUP_NONE, GROUP_SHARED_IMAGE, GROUP_SHARED_PREFIX);
    out.data_pack = PICK(0, 1, 1, 1, 1) == 1;
    out.data_shuffle = PICK(0, 1, 1, 1) == 1;
    out.data_oversize = (int)PICK(OVERSIZE_SHRINK, OVERSIZE_SHRINK, OVERSIZE_REFUSE);
    out.data_patch_budget = PICK(0, 0, 300, 1000, 5000);
    out.data_prefix_branches = PICK(2, 3, 16);
    out.data_prefix_min_tokens = PICK(1, 40, 64);
    out.image_max_pixels = PICK(0, 0, 50000, 100000);
    out.image_min_pixels = out.image_max_pixels > 0 ? PICK(1024, 40000) : PICK(0, 40000);
    out.video_max_pixels = PICK(0, 0, 300000);
    out.video_fps = (double)PICK(0, 0, 1, 6) / 2;
    out.video_max_frames = PICK(0, 0, 9, 16);
    return out;
}

static sim_data_rules draw_rules(sim_random *luck, const conf *options)
{
    sim_data_rules out = {.n_samples = PICK(3, 20, 60, 100, 160, 400),
                          .begins = options->data_group == GROUP_SHARED_PREFIX,
                          .n_sources = (int)PICK(1, 1, 2, 3),
                          .piece_samples = PICK(0, 0, 4, 15),
                          .common_text = (int32_t)PICK(0, 3, 40, 80),
                          .longest_text = (int32_t)options->training_seq_len * 2,
                          .bad_header = (int)PICK(0, 0, 60),
                          .not_adapted = (int)PICK(0, 0, 60),
                          .refused = (int)PICK(0, 0, 60),
                          .clips = (int)PICK(0, 0, 300),
                          .plain = (int)PICK(0, 0, 60, 500),
                          .without_picture = (int)PICK(0, 20, 500, 1000)};
    const bool weighted = sim_random_chance(luck, 1, 2);
    out.n_pictures = 1 + (int64_t)sim_random_below(luck, (uint64_t)out.n_samples);
    for (int i = 0; weighted && i < out.n_sources; i++)
        out.weight[i] = (int)sim_random_between(luck, 0, 9) + (i == 0);
    return out;
}

static void compare_docs(const planned_doc *one, const slow_doc *other)
{
    assert_int_equal(one->sample, other->sample);
    assert_int_equal(one->part, other->part);
    assert_int_equal(one->tokens, other->tokens);
    assert_int_equal(one->from, other->from);
    assert_int_equal(one->whole, other->whole);
    assert_int_equal(one->patches, other->patches);
    assert_int_equal(one->n_images, other->n_shown);
    assert_int_equal(one->shared, other->shared);
    assert_int_equal(one->prefix, other->prefix);
    assert_int_equal(one->before, other->before);
    for (int32_t i = 0; i < one->n_images; i++) {
        assert_int_equal(one->images[i], other->shows[i]);
        assert_int_equal(one->grids[i].rows, other->grids[i].rows);
        assert_int_equal(one->grids[i].columns, other->grids[i].columns);
        assert_int_equal(one->grids[i].pairs, other->grids[i].pairs);
    }
}

static void compare_rows(plan *planned, slow_plan *slow, uint64_t number, arena *memory)
{
    planned_row one;
    const slow_row *other = slow_plan_row(slow, number);
    row_measure measure = {0};
    arena_reset(memory);
    assert_ok(plan_row(planned, NULL, number, memory, &one));
    assert_non_null(other);
    assert_int_equal(one.epoch, other->epoch);
    assert_int_equal(one.window, other->window);
    assert_int_equal(one.n_docs, other->n_docs);
    assert_int_equal(one.tokens, other->tokens);
    assert_int_equal(one.patches, other->patches);
    for (int64_t i = 0; i < one.n_docs; i++) {
        compare_docs(&one.docs[i], &other->docs[i]);
        measure.squares +=
            one.docs[i].tokens * ((int64_t)one.docs[i].tokens + 2 * (int64_t)one.docs[i].before);
    }
    measure.tokens = one.tokens;
    measure.patches = one.patches;
    assert_int_equal(assign_cost(&measure), other->cost);
}

static void test_plans__agree_over_random_data(void **state)
{
    (void)state;
    static const plan_kind kinds[] = {PLAN_PACKED, PLAN_PACKED, PLAN_PACKED, PLAN_SAMPLES};
    static const slow_kind slow_kinds[] = {SLOW_PACKED, SLOW_PACKED, SLOW_PACKED, SLOW_SAMPLES};
    int64_t rows = 0, none = 0;
    arena memory;
    arena_init(&memory, 0);
    for (int time = 0; time < TIMES; time++) {
        sim_random drawn = sim_random_of(harness_seed() * 1000003 + (uint64_t)time), *luck = &drawn;
        const conf options = draw_options(luck);
        const sim_data_rules rules = draw_rules(luck, &options);
        const size_t kind = sim_random_below(luck, sizeof kinds / sizeof *kinds);
        sim_data data;
        plan *planned = NULL;
        sim_data_init(&data, &rules, sim_random_u64(luck));
        data_index *index = reference_index(&data);
        slow_data facts = reference_facts(&data);
        slow_plan *slow = slow_plan_new(&facts, &options, slow_kinds[kind]);
        const status st = plan_new(&options, &data.base, index, kinds[kind], &planned);
        assert_int_equal(st == ST_OK, slow != NULL);
        none += !slow;
        if (slow) {
            const uint64_t end = slow_plan_rows(slow), epoch = plan_epoch_rows(planned);
            assert_int_equal(plan_rows(planned, NULL), end);
            for (int64_t i = 0; i < data.n_samples; i++)
                assert_int_equal(plan_cause(planned, i) != NULL, slow_plan_refuses(slow, i));
            for (uint64_t i = 0; i < (end < UINT64_MAX ? end : 2 * epoch + 3); i++, rows++)
                compare_rows(planned, slow, i, &memory);
        }
        slow_plan_free(&slow);
        reference_facts_done(&facts);
        plan_free(&planned);
        index_free(&index);
        sim_data_done(&data);
    }
    print_message("%d streams, %lld rows; %lld without a usable sample\n", TIMES, (long long)rows,
                  (long long)none);
    arena_done(&memory);
    assert_true(rows > 10 * (int64_t)TIMES && none < TIMES / 5);
}

static void test_ranks__get_the_same_rows(void **state)
{
    (void)state;
    enum { MOST = 200 };
    for (int time = 0; time < TIMES; time++) {
        sim_random drawn = sim_random_of(harness_seed() + (uint64_t)time), *luck = &drawn;
        int64_t cost[MOST];
        int one[MOST], other[MOST];
        const int64_t count = sim_random_between(luck, 0, MOST), many = PICK(2, 100, 1000000);
        const int ranks = (int)sim_random_between(luck, 1, 70);
        for (int64_t i = 0; i < count; i++)
            cost[i] = sim_random_between(luck, 0, many) + PICK(0, 0, 0, 1000000);
        assert_ok(assign_rows(cost, count, ranks, one));
        slow_assign(cost, count, ranks, other);
        assert_memory_equal(one, other, (size_t)count * sizeof *one);
    }
}

/* What prepd makes of a picture or a clip with at most `room` patches. */
static status grid_of_prepd(const slow_picture *own, const conf *options, int64_t room,
                            fit_grid *out)
{
    fit_limits limits;
    clip_limits clips;
    int64_t count;
    TRY(fit_limits_load(options, &limits));
    TRY(clip_limits_load(options, &clips));
    if (own->frames == 0)
        return fit_shrink(own->height, own->width, limits, room, out);
    TRY(clip_count(own->frames, own->fps, &clips, &count));
    return clip_shrink(count, own->height, own->width, &clips, room, out);
}

static void test_grids__are_the_same(void **state)
{
    (void)state;
    int64_t fitting = 0;
    for (int time = 0; time < 10 * TIMES; time++) {
        sim_random drawn = sim_random_of(harness_seed() + (uint64_t)time), *luck = &drawn;
        const conf options = draw_options(luck);
        const int64_t room = sim_random_between(luck, 0, PICK(8, 500, 20000, 1000000));
        const slow_picture own = {.height = sim_random_between(luck, 1, PICK(40, 900, 8000)),
                                  .width = sim_random_between(luck, 1, PICK(40, 900, 8000)),
                                  .frames = sim_random_between(luck, 1, 900) * PICK(0, 1),
                                  .fps = (double)sim_random_between(luck, 0, 90) / 3};
        fit_grid one;
        slow_grid other;
        const bool fits = slow_grid_of(&own, &options, room, &other);
        assert_int_equal(grid_of_prepd(&own, &options, room, &one) == ST_OK, fits);
        fitting += fits;
        if (!fits)
            continue;
        assert_int_equal(one.rows, other.rows);
        assert_int_equal(one.columns, other.columns);
        assert_int_equal(one.pairs, other.pairs);
        assert_int_equal(fit_patches(one), slow_patches(other));
    }
    assert_true(fitting > 4 * TIMES && fitting < 10 * TIMES);
}

static void test_frames__are_the_same(void **state)
{
    (void)state;
    arena memory;
    arena_init(&memory, 0);
    for (int time = 0; time < TIMES; time++) {
        sim_random drawn = sim_random_of(harness_seed() + (uint64_t)time), *luck = &drawn;
        const conf options = draw_options(luck);
        const slow_picture own = {.frames = sim_random_between(luck, 1, 2000),
                                  .fps = (double)sim_random_between(luck, 0, 90) / 3};
        clip_limits clips;
        int64_t *frame, count, other[2000];
        arena_reset(&memory);
        assert_ok(clip_limits_load(&options, &clips));
        assert_ok(clip_choose(own.frames, own.fps, &clips, &memory, &frame, &count));
        assert_int_equal(slow_frames(&own, &options, other), count);
        for (int64_t i = 0; i < count; i++)
            assert_int_equal(frame[i], other[i]);
    }
    arena_done(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans__agree_over_random_data),
        cmocka_unit_test(test_ranks__get_the_same_rows),
        cmocka_unit_test(test_grids__are_the_same),
        cmocka_unit_test(test_frames__are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
