/* SPDX-License-Identifier: Apache-2.0 */
/* test_memory_change: whatever a refused configuration is told would fit does fit, with just the
 * bytes that are named, and only what can be set is named. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/memory_search.h"
#include "trainer/optim/groups.h"
#include "trainer/plan/memory_search.h"

/* The input of a plan; `in` points into this struct. */
typedef struct setup {
    conf options;
    model_dims dims;
    plan_device card;
    params *registry;
    layout layout;
    plan_input in;
} setup;

static void make_input(setup *of)
{
    assert_ok(conf_check(&of->options));
    assert_ok(params_new(&of->dims, &of->registry));
    assert_ok(groups_apply(&of->options, of->registry));
    assert_ok(layout_of(&of->options, NULL, &of->layout));
    of->in = (plan_input){.conf = &of->options,
                          .layout = &of->layout,
                          .dims = &of->dims,
                          .params = of->registry,
                          .device = &of->card};
}

/* The options are pairs of keys and values, ended by NULL. */
static void begin_setup(const char *preset, const char *card, const char *const *options,
                        setup *out)
{
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    assert_ok(conf_load(&out->options, &argc, argv));
    out->options.memory_limit = 0.9;
    assert_ok(dims_preset(preset, &out->dims));
    assert_ok(plan_device_named(card, &out->card));
    for (; *options; options += 2)
        assert_ok(conf_set(&out->options, options[0], options[1]));
    make_input(out);
}

static void end_setup(setup *of)
{
    params_free(&of->registry);
    conf_done(&of->options);
}

static int64_t total_of(const setup *of, int mode)
{
    recomputes recomputed;
    memory_plan plan;
    const int64_t rows = of->options.training_local_batch_size;
    assert_ok(memory_search_recompute(&of->in, rows, mode, &recomputed));
    assert_ok(layout_plan_make(&of->in, rows, &recomputed, &plan));
    return plan.total;
}

/* Sets "key value, key value (N GiB)" and compares what is planned with N. */
static void follow_advice(const setup *asked, char *words)
{
    char bytes[MEMORY_BYTES_TEXT], *end = strrchr(words, '('), *rest = NULL;
    setup of = {.dims = asked->dims, .card = asked->card};
    assert_non_null(end);
    end[strcspn(end, ")")] = 0;
    end[-1] = 0;
    assert_ok(conf_copy(&asked->options, &of.options));
    for (char *pair = strtok_r(words, ",", &rest); pair; pair = strtok_r(NULL, ",", &rest)) {
        pair += strspn(pair, " ");
        char *value = strchr(pair, ' ');
        assert_non_null(value);
        *value++ = 0;
        assert_ok(conf_set(&of.options, pair, value));
    }
    make_input(&of);
    const int64_t total = total_of(&of, SEARCH_AS_CONFIGURED);
    assert_string_equal(memory_bytes_text(total, bytes), end + 1);
    assert_true((double)total <= of.options.memory_limit * of.card.usable);
    end_setup(&of);
}

/* Checks all that is advised on a device of this size, and returns it. */
static const char *advice_for(setup *of, int64_t bytes, char out[CHANGE_TEXT_MAX])
{
    static const char begin[] = "what fits: ", again[] = "; or ";
    char text[CHANGE_TEXT_MAX];
    of->card.memory = of->card.usable = (double)bytes;
    assert_ok(memory_smallest_change(&of->in, out));
    print_message("%.2f GiB: %s\n", (double)bytes / 1073741824.0, out);
    assert_true(strncmp(out, "no batch of this model fits", 27) == 0 ||
                strncmp(out, begin, strlen(begin)) == 0);
    if (out[0] == 'n')
        return out;
    strcpy(text, out + strlen(begin));
    *strstr(text, "; deploy/what-fits tries options that save memory") = 0;
    for (char *each = text, *next; each; each = next) {
        next = strstr(each, again);
        if (next) {
            *next = 0;
            next += strlen(again);
        }
        follow_advice(of, each);
    }
    return out;
}

/* Goes from what is just too little down to nothing. */
static void advise_all(setup *of)
{
    char text[CHANGE_TEXT_MAX];
    const int64_t total = total_of(of, SEARCH_AS_CONFIGURED);
    for (int64_t bytes = total; bytes > total / 40; bytes = bytes * 2 / 3)
        advice_for(of, bytes, text);
    assert_non_null(strstr(advice_for(of, total / 256, text), " too much"));
}

static void test_change__is_enough_whatever_is_asked(void **state)
{
    (void)state;
    static const char *const cases[][12] = {
        {"training.seq_len", "8192", "training.local_batch_size", "4"},
        {"training.seq_len", "4096", "lora.rank", "64", "training.local_batch_size", "2"},
        {"training.seq_len", "8192", "parallelism.data_parallel_shard_degree", "4",
         "data.patch_budget", "16384"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup of;
        begin_setup("qwen3-vl-2b", "h200", cases[i], &of);
        advise_all(&of);
        end_setup(&of);
    }
}

static void expect_words(setup *of, int64_t bytes, const char *words, const char *never)
{
    char text[CHANGE_TEXT_MAX];
    advice_for(of, bytes, text);
    if (!strstr(text, words))
        fail_msg("\"%s\" is not in \"%s\"", words, text);
    if (never && strstr(text, never))
        fail_msg("\"%s\" is in \"%s\"", never, text);
}

/* Of a GPU a run may use a little more than by default, if that is all that it lacks. */
static void test_change__a_higher_limit_is_the_least(void **state)
{
    (void)state;
    setup of;
    char text[CHANGE_TEXT_MAX];
    static const char *const full[] = {"training.seq_len",
                                       "8192",
                                       "activation_checkpoint.mode",
                                       "full",
                                       "training.local_batch_size",
                                       "1",
                                       NULL};
    begin_setup("qwen3-vl-2b", "h200", full, &of);
    const double total = (double)total_of(&of, SEARCH_AS_CONFIGURED);
    advice_for(&of, (int64_t)(total / 0.96), text);
    assert_true(strncmp(text, "what fits: memory.limit 0.97 (", 30) == 0);
    expect_words(&of, (int64_t)(total / 0.98), "what fits: ", "memory.limit");
    of.options.memory_limit = 0.98;
    expect_words(&of, (int64_t)(total / 0.985), "what fits: ", "memory.limit");
    end_setup(&of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_change__is_enough_whatever_is_asked),
        cmocka_unit_test(test_change__a_higher_limit_is_the_least),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
