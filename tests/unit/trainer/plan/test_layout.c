/* SPDX-License-Identifier: Apache-2.0 */
/* test_layout.c: which layouts fit together, and refusals of random layouts of random models.
 * Whatever a refusal suggests (another layout, batch or split points) must itself be accepted by
 * the same check. */
#include "tests/harness.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "trainer/model/params/params.h"
#include "trainer/parallel/pipeline_stages.h"

enum { TRIED = 1000 };

static const char FITS[] = "the nearest layout that fits: ",
                  BATCH[] = "set training.global_batch_size to ",
                  POINTS[] = "; these fit: ", NONE[] = "; no layout of ";

/* Checks what a run checks: options against each other, the layout, then the stages. */
static status check_layout(const conf *options, const layout_limits *limits)
{
    layout degrees;
    assert_true(options->parallelism_expert_tensor_parallel_degree == 1 ||
                options->parallelism_expert_tensor_parallel_degree ==
                    options->parallelism_tensor_parallel_degree);
    TRY(layout_of(options, limits, &degrees));
    if (!options->parallelism_pipeline_parallel_split_points[0] || degrees.pipeline == 1)
        return ST_OK;
    return stages_read(options->parallelism_pipeline_parallel_split_points, limits->layers,
                       limits->first_layers, &degrees);
}

/* Sets the degrees that the text names: "context_parallel_degree 2, expert_parallel_degree 4". */
static void take_degrees(conf *options, const char *words)
{
    char key[128], value[32];
    int used;
    while (sscanf(words, "%90[a-z_] %30[0-9]%n", key + 12, value, &used) == 2) {
        memcpy(key, "parallelism.", 12);
        assert_ok(conf_set(options, key, value));
        words += used;
        if (strncmp(words, ", ", 2) != 0)
            return;
        words += 2;
    }
    fail_msg("no degrees: %s", words);
}

typedef struct tally {
    int refused, layouts, batches, points, none;
} tally;

/* Tries what the current refusal suggests, and fails if that is refused. Returns false if it
 * suggests nothing. */
static bool try_named(const conf *asked, const layout_limits *limits, tally *tallied)
{
    char words[STATUS_MESSAGE_MAX];
    snprintf(words, sizeof words, "%s", status_last()->message);
    char *batch = strstr(words, BATCH), *fits = strstr(words, FITS),
         *points = strstr(words, POINTS);
    for (int way = 0; way < 3; way++) {
        const char *named = way == 0 ? fits : way == 1 ? batch : points;
        conf options;
        if (!named)
            continue;
        assert_ok(conf_copy(asked, &options));
        if (way == 0)
            take_degrees(&options, fits + sizeof FITS - 1);
        else if (way == 1)
            options.training_global_batch_size = strtoll(batch + sizeof BATCH - 1, NULL, 10);
        else
            assert_ok(conf_set(&options, "parallelism.pipeline_parallel_split_points",
                               points + sizeof POINTS - 1));
        if (check_layout(&options, limits) != ST_OK &&
            !(way != 2 && strstr(status_last()->message, POINTS)))
            fail_msg("%s\nnamed, and refused itself: %s", words, status_last()->message);
        tallied->layouts += way == 0;
        tallied->batches += way == 1;
        tallied->points += way == 2;
        conf_done(&options);
    }
    return fits || points || batch;
}

/* Tries every layout of this many ranks, without the search that made the refusal. */
static bool any_fits(const conf *asked, const layout_limits *limits, int64_t world)
{
    conf options = *asked;
    options.parallelism_world_size = world;
    for (options.parallelism_data_parallel_replicate_degree = 1;
         options.parallelism_data_parallel_replicate_degree <= world;
         options.parallelism_data_parallel_replicate_degree++)
        for (options.parallelism_context_parallel_degree = 1;
             options.parallelism_context_parallel_degree <= world;
             options.parallelism_context_parallel_degree++)
            for (options.parallelism_tensor_parallel_degree = 1;
                 options.parallelism_tensor_parallel_degree <= world;
                 options.parallelism_tensor_parallel_degree++)
                for (options.parallelism_pipeline_parallel_degree = 1;
                     options.parallelism_pipeline_parallel_degree <= world;
                     options.parallelism_pipeline_parallel_degree++) {
                    const int64_t rest = options.parallelism_data_parallel_replicate_degree *
                                         options.parallelism_context_parallel_degree *
                                         options.parallelism_tensor_parallel_degree *
                                         options.parallelism_pipeline_parallel_degree;
                    layout degrees;
                    if (world % rest)
                        continue;
                    options.parallelism_data_parallel_shard_degree = world / rest;
                    options.parallelism_expert_parallel_degree =
                        options.parallelism_expert_tensor_parallel_degree = 1;
                    if (layout_of(&options, NULL, &degrees) == ST_OK &&
                        layout_check(&degrees, limits) == ST_OK)
                        return true;
                }
    return false;
}

static int64_t draw_item(uint64_t drawn, const int64_t *of, int64_t size)
{
    static const rng_key key = {{7, 9}};
    return of[rng_below(key, drawn, (uint64_t)size)];
}

#define DRAW(n, ...)                                                                               \
    draw_item((n)++, (const int64_t[]){__VA_ARGS__},                                               \
              sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static void draw_model(uint64_t *drawn, layout_limits *limits)
{
    static const char *const presets[] = {"qwen3-vl-30b-a3b", "qwen3-vl-235b-a22b", "debug",
                                          "tile"};
    const int64_t which = DRAW(*drawn, 0, 0, 1, 2, 3, 4, 4, 4);
    model_dims dims;
    if (which < 4) {
        assert_ok(dims_preset(presets[which], &dims));
        *limits = params_limits(&dims);
        return;
    }
    *limits = (layout_limits){.heads = DRAW(*drawn, 1, 4, 6, 12, 16, 64),
                              .intermediate = DRAW(*drawn, 0, 0, 96, 768, 1000),
                              .experts = DRAW(*drawn, 0, 6, 8, 60, 128),
                              .layers = DRAW(*drawn, 1, 2, 3, 6, 28, 48),
                              .tied = DRAW(*drawn, 0, 0, 1)};
    limits->kv_heads = limits->heads % 3 ? limits->heads : limits->heads / 3;
    limits->expert_width = limits->experts ? DRAW(*drawn, 96, 768, 1000) : 0;
    limits->first_layers = limits->layers > 3 ? DRAW(*drawn, 0, 3) : 0;
}

static void draw_options(uint64_t *drawn, conf *options)
{
    options->parallelism_data_parallel_replicate_degree = DRAW(*drawn, 1, 1, 1, 2, 3, 4);
    options->parallelism_data_parallel_shard_degree = DRAW(*drawn, -1, -1, 1, 1, 2, 4, 5, 8);
    options->parallelism_context_parallel_degree = DRAW(*drawn, 1, 1, 1, 1, 2, 3, 6);
    options->parallelism_tensor_parallel_degree = DRAW(*drawn, 1, 1, 1, 1, 2, 4, 3);
    options->parallelism_pipeline_parallel_degree = DRAW(*drawn, 1, 1, 1, 1, 2, 3);
    options->parallelism_expert_parallel_degree = DRAW(*drawn, 1, 1, 2, 3, 4, 6, 8, 12);
    options->parallelism_expert_tensor_parallel_degree =
        DRAW(*drawn, 0, 1, 1) ? 1 : options->parallelism_tensor_parallel_degree;
    options->parallelism_world_size = DRAW(*drawn, 0, 0, 0, 4, 6, 8, 12, 16, 60, 64);
    options->training_local_batch_size = DRAW(*drawn, 1, 1, 2, 3);
    options->training_global_batch_size = DRAW(*drawn, 1, 4, 6, 12, 32, 64, 96);
}

static void draw_points(uint64_t *drawn, conf *options, const layout_limits *limits)
{
    char text[128];
    const int64_t first = (int64_t)DRAW(*drawn, 0, 1, 3, 5, 9, 60),
                  more = DRAW(*drawn, 0, 1, 4, 90);
    if (DRAW(*drawn, 0, 0, 1) == 0)
        snprintf(text, sizeof text, "%s", "");
    else if (DRAW(*drawn, 0, 1))
        snprintf(text, sizeof text, "layers.%" PRId64, first % (limits->layers + 3));
    else
        snprintf(text, sizeof text, "layers.%" PRId64 ", layers.%" PRId64, first, first + more);
    assert_ok(conf_set(options, "parallelism.pipeline_parallel_split_points", text));
    /* Make the split points the only thing that is wrong. */
    if (DRAW(*drawn, 0, 1, 1) && text[0]) {
        options->parallelism_pipeline_parallel_degree = stages_listed(text) + 1;
        options->parallelism_data_parallel_replicate_degree =
            options->parallelism_context_parallel_degree =
                options->parallelism_tensor_parallel_degree =
                    options->parallelism_expert_parallel_degree = 1;
        options->parallelism_expert_tensor_parallel_degree = 1;
        options->parallelism_world_size = 0;
    }
}

static void check_one(uint64_t *drawn, const conf *fresh, tally *tallied)
{
    layout_limits limits;
    conf options;
    assert_ok(conf_copy(fresh, &options));
    draw_model(drawn, &limits);
    draw_options(drawn, &options);
    draw_points(drawn, &options, &limits);
    if (check_layout(&options, &limits) != ST_OK) {
        const bool none = strstr(status_last()->message, NONE) != NULL;
        tallied->refused++;
        tallied->none += none;
        const int64_t world =
            none ? strtoll(strstr(status_last()->message, NONE) + sizeof NONE - 1, NULL, 10) : 0;
        const bool named = try_named(&options, &limits, tallied);
        if (none && world <= 12 && any_fits(&options, &limits, world))
            fail_msg("there is a layout of %lld ranks", (long long)world);
        if (!named && !none)
            fail_msg("a refusal without a way out: %s", status_last()->message);
    }
    conf_done(&options);
}

static void test_layout__what_a_refusal_suggests_is_accepted(void **state)
{
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    uint64_t drawn = 0;
    tally tallied = {0};
    conf fresh;
    (void)state;
    assert_ok(conf_load(&fresh, &argc, argv));
    for (int i = 0; i < TRIED; i++)
        check_one(&drawn, &fresh, &tallied);
    conf_done(&fresh);
    print_message("of %d layouts %d refused: %d name a layout, %d a batch, %d split points; of %d "
                  "there is none\n",
                  TRIED, tallied.refused, tallied.layouts, tallied.batches, tallied.points,
                  tallied.none);
    assert_true(tallied.layouts > 300 && tallied.batches > 20 && tallied.points > 20 &&
                tallied.none > 50);
}

/* The suggested layout must suit the model: for each of these, one that ignored the model would be
 * refused. */
static void test_layout__suggestions_suit_the_model(void **state)
{
    static const struct {
        const char *preset;
        int64_t shard, context, expert, rows, batch;
        const char *words;
    } cases[] = {
        {"qwen3-vl-30b-a3b", 1, 6, 12, 1, 12,
         "; the nearest layout that fits: expert_parallel_degree 1"},
        {"qwen3-vl-30b-a3b", 5, 1, 1, 1, 12,
         "; the nearest layout that fits: data_parallel_shard_degree 1, context_parallel_degree 5; "
         "or set training.global_batch_size to 10"},
        {"qwen3-vl-30b-a3b", 1, 1, 3, 1, 12, "expert_parallel_degree 1"},
        {"qwen3-vl-30b-a3b", 1, 1, 1, 2, 7,
         "; no layout of 1 rank fits this model and this batch size; set "
         "training.global_batch_size to 6"},
    };
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    conf options;
    (void)state;
    assert_ok(conf_load(&options, &argc, argv));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_dims dims;
        layout degrees;
        assert_ok(dims_preset(cases[i].preset, &dims));
        const layout_limits limits = params_limits(&dims);
        options.parallelism_data_parallel_shard_degree = cases[i].shard;
        options.parallelism_context_parallel_degree = cases[i].context;
        options.parallelism_expert_parallel_degree = cases[i].expert;
        options.training_local_batch_size = cases[i].rows;
        options.training_global_batch_size = cases[i].batch;
        assert_fails(ST_CONFIG, layout_of(&options, &limits, &degrees), cases[i].words);
        assert_int_equal(layout_of(&options, NULL, &degrees), ST_CONFIG);
        assert_null(
            strstr(status_text(), FITS)); /* the model is not known here and might refuse it */
    }
    conf_done(&options);
}

static void test_layout__ranks_fit_each_other(void **state)
{
    (void)state;
    const struct {
        int64_t world, shard, tensor, context, expert, expert_tensor, local, global;
        const char *words; /* expected error; NULL: none */
        int64_t accumulation;
    } cases[] = {
        {0, -1, 1, 1, 1, 1, 1, 6, NULL, 6},
        {8, -1, 1, 1, 8, 1, 2, 32, NULL, 2},
        {8, -1, 4, 1, 2, 4, 2, 8, NULL, 2}, /* the expert ranks divide the two shards */
        {8, -1, 4, 1, 2, 1, 2, 8, "must divide 8 ranks and be a multiple of 4", 0},
        {8, 3, 1, 1, 1, 1, 1, 8, "8 ranks are not the product", 0},
        {16, -1, 2, 2, 4, 1, 1, 4, NULL, 1},
        {8, -1, 1, 1, 3, 1, 1, 8, "expert_parallel_degree 3", 0},
        {8, -1, 1, 1, 1, 1, 3, 8, "local_batch_size 3 x 8", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        conf options = {.model_path = "",
                        .parallelism_data_parallel_replicate_degree = 1,
                        .parallelism_pipeline_parallel_degree = 1,
                        .parallelism_pipeline_parallel_split_points = "",
                        .parallelism_world_size = cases[i].world,
                        .parallelism_data_parallel_shard_degree = cases[i].shard,
                        .parallelism_tensor_parallel_degree = cases[i].tensor,
                        .parallelism_context_parallel_degree = cases[i].context,
                        .parallelism_expert_parallel_degree = cases[i].expert,
                        .parallelism_expert_tensor_parallel_degree = cases[i].expert_tensor,
                        .training_local_batch_size = cases[i].local,
                        .training_global_batch_size = cases[i].global};
        layout degrees;
        if (cases[i].words) {
            assert_fails(ST_CONFIG, layout_of(&options, NULL, &degrees), cases[i].words);
            continue;
        }
        assert_ok(layout_of(&options, NULL, &degrees));
        assert_int_equal(degrees.accumulation, cases[i].accumulation);
        assert_int_equal(degrees.shard * degrees.tensor * degrees.context, degrees.world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout__ranks_fit_each_other),
        cmocka_unit_test(test_layout__what_a_refusal_suggests_is_accepted),
        cmocka_unit_test(test_layout__suggestions_suit_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
