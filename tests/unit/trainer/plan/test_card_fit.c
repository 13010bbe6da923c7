/* test_card_fit: what the search for what fits on a card finds does fit, and what is tried before
 * it does not. */
#include "trainer/plan/card_fit.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/cards_page.h"
#include "trainer/plan/recompute_plan.h"

static const card_saving savings[] = {
    {"", {{0}}},
    {"small", {{"optimizer.states", "int8"}, {"training.master", "bf16"}}},
    {"least",
     {{"optimizer.states", "int8"},
      {"training.master", "bf16"},
      {"optimizer.in_backward", "true"}}}};
static const card_method whole = {"all", {{0}}, {{0}}, savings, 3};

typedef struct setup {
    conf options;
    model_dims dims;
    plan_device card;
} setup;

static void begin_setup(const char *preset, setup *out)
{
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    assert_ok(conf_load(&out->options, &argc, argv));
    out->options.memory_limit = 1;
    assert_ok(dims_preset(preset, &out->dims));
    assert_ok(plan_device_named("h200", &out->card));
}

static card_fit find_on(setup *of, int64_t bytes)
{
    card_fit found;
    of->card.memory = of->card.usable = (double)bytes;
    assert_ok(card_fit_find(&of->options, &of->dims, &whole, &of->card, &found));
    return found;
}

/* The plan of these settings with one row, all of which is recomputed. */
static int64_t least_of(const setup *of, const card_saving *saving, int64_t seq_len, int64_t cards)
{
    conf options;
    params *registry;
    layout degrees;
    recomputes all;
    memory_plan plan;
    assert_ok(conf_copy(&of->options, &options));
    for (int i = 0; i < CARD_SETTINGS && saving->set[i].key; i++)
        assert_ok(conf_set(&options, saving->set[i].key, saving->set[i].value));
    options.checkpoint_enable = true;
    options.training_seq_len = seq_len;
    options.training_local_batch_size = 1;
    options.training_global_batch_size = options.optimizer_in_backward ? cards : 32;
    options.parallelism_world_size = options.parallelism_data_parallel_shard_degree = cards;
    assert_ok(params_new(&of->dims, &registry));
    assert_ok(groups_apply(&options, registry));
    assert_ok(layout_of(&options, NULL, &degrees));
    const plan_input in = {.conf = &options,
                           .layout = &degrees,
                           .dims = &of->dims,
                           .params = registry,
                           .device = &of->card};
    assert_ok(recompute_plan_with(&in, 1, AC_FULL, &all));
    assert_ok(layout_plan_make(&in, 1, &all, &plan));
    params_free(&registry);
    conf_done(&options);
    return plan.total;
}

/* A card with just the bytes of some settings gets these, and with a byte less the next ones. */
static void test_card_fit__takes_what_changes_least(void **state)
{
    (void)state;
    setup of;
    begin_setup("qwen3-vl-2b", &of);
    const int64_t plain = least_of(&of, &savings[0], 8192, 1),
                  small = least_of(&of, &savings[1], 8192, 1),
                  least = least_of(&of, &savings[2], 8192, 1),
                  shorter = least_of(&of, &savings[2], 6144, 1),
                  shortest = least_of(&of, &savings[2], 1024, 1);
    card_fit found = find_on(&of, plain);
    assert_true(found.cards == 1 && found.saving == &savings[0] && found.seq_len == 8192);
    assert_true(found.mode == AC_FULL && found.rows == 1 && found.total == plain);
    assert_true(found.host > 0 && found.lacking == 0);
    found = find_on(&of, plain - 1);
    assert_true(found.saving == &savings[1] && found.seq_len == 8192 && found.total < plain);
    found = find_on(&of, small - 1);
    assert_true(found.saving == &savings[2] && found.seq_len == 8192);
    found = find_on(&of, least - 1);
    assert_true(found.saving == &savings[2] || least_of(&of, found.saving, 6144, 1) < least);
    assert_true(found.seq_len == 6144 && found.cards == 1 && found.total < least);
    found = find_on(&of, shorter - 1);
    assert_true(found.seq_len < 6144 && found.cards == 1);
    found = find_on(&of, shortest - 1000);
    assert_true(found.cards == 2 && found.lacking == 1000 && found.total <= shortest - 1000);
    found = find_on(&of, 1 << 20);
    assert_true(found.cards == 0 && found.lacking == shortest - (1 << 20));
    conf_done(&of.options);
}

/* With more room nothing is recomputed, which is predicted to be faster. */
static void test_card_fit__uses_the_room(void **state)
{
    (void)state;
    setup of;
    begin_setup("tile", &of);
    const int64_t plain = least_of(&of, &savings[0], 8192, 1);
    const card_fit tight = find_on(&of, plain), roomy = find_on(&of, 10 * plain);
    assert_true(tight.mode == AC_FULL && roomy.mode == AC_NONE && roomy.total > tight.total);
    assert_true(roomy.tokens_per_s > tight.tokens_per_s && roomy.mfu > tight.mfu);
    conf_done(&of.options);
}

/* A card that cuDNN is not used on runs our own attention. */
static void test_card_fit__predicts_the_kernels_of_the_card(void **state)
{
    (void)state;
    setup of;
    begin_setup("tile", &of);
    const int64_t room = 10 * least_of(&of, &savings[0], 8192, 1);
    const double hopper = find_on(&of, room).tokens_per_s;
    of.card.card = gpu_card_named("l40s");
    const double older = find_on(&of, room).tokens_per_s;
    assert_true(older > 0 && older < hopper);
    conf_done(&of.options);
}

/* Experts are shared by as many cards as is fastest, and the page names them. */
static void test_cards_page__has_a_line_for_every_cell(void **state)
{
    (void)state;
    setup of;
    char *page;
    size_t bytes, lines = 0;
    begin_setup("tile", &of);
    FILE *to = open_memstream(&page, &bytes);
    assert_non_null(to);
    assert_ok(cards_page_write(&of.options, &of.dims, to));
    assert_int_equal(fclose(to), 0);
    for (const char *at = strstr(page, "\n## tile\n"); at && (at = strstr(at, " GB | ")); at++)
        lines++;
    assert_int_equal(lines, 25); /* of 5 cards and 5 things to train */
    assert_non_null(strstr(page, "| all parameters | 24 GB | 1 x 8192 | none | "));
    assert_non_null(strstr(page, " | GiB of the host for each card | "));
    assert_non_null(strstr(
        page,
        "\nOn cards of 24 GB, 48 GB, 180 GB the experts' products run on the portable kernel"));
    assert_non_null(strstr(page, "On cards of 24 GB, 48 GB attention runs on our own kernels"));
    free(page);
    conf_done(&of.options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_card_fit__takes_what_changes_least),
        cmocka_unit_test(test_card_fit__uses_the_room),
        cmocka_unit_test(test_card_fit__predicts_the_kernels_of_the_card),
        cmocka_unit_test(test_cards_page__has_a_line_for_every_cell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
