/* test_memory_change: whatever a refused configuration is told would fit does fit, with just the
 * bytes that are named, and only what can be set is named. */
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/plan/memory_change.h"
#include "trainer/plan/memory_search.h"
#include "trainer/plan/memory_text.h"
#include "trainer/plan/plan_trial.h"

typedef struct setup {
    model_dims dims;
    plan_device card;
    plan_trial asked;
} setup;

/* The options are pairs of keys and values, ended by NULL. */
static void begin_setup(const char *preset, const char *card, const char *const *options,
                        setup *out)
{
    char name[] = "trainer", *argv[] = {name, NULL};
    int argc = 1;
    conf loaded;
    assert_ok(conf_load(&loaded, &argc, argv));
    loaded.memory_limit = 0.9;
    assert_ok(dims_preset(preset, &out->dims));
    assert_ok(plan_device_named(card, &out->card));
    assert_ok(plan_trial_begin(&loaded, &out->asked));
    for (; *options; options += 2)
        assert_ok(conf_set(&out->asked.options, options[0], options[1]));
    assert_ok(plan_trial_make(&out->asked, &out->dims, &out->card));
    conf_done(&loaded);
}

static void end_setup(setup *of)
{
    plan_trial_end(&of->asked);
}

static int64_t total_of(const plan_trial *one, int mode)
{
    recomputes recomputed;
    memory_plan plan;
    const int64_t rows = one->options.training_local_batch_size;
    assert_ok(memory_search_recompute(&one->in, rows, mode, &recomputed));
    assert_ok(layout_plan_make(&one->in, rows, &recomputed, &plan));
    return plan.total;
}

/* Sets "key value, key value (N GiB)" and compares what is planned with N. */
static void follow_advice(const setup *of, char *words)
{
    char bytes[MEMORY_BYTES_TEXT], *end = strrchr(words, '('), *rest = NULL;
    plan_trial one;
    assert_non_null(end);
    end[strcspn(end, ")")] = 0;
    end[-1] = 0;
    assert_ok(plan_trial_begin(&of->asked.options, &one));
    for (char *pair = strtok_r(words, ",", &rest); pair; pair = strtok_r(NULL, ",", &rest)) {
        pair += strspn(pair, " ");
        char *value = strchr(pair, ' ');
        assert_non_null(value);
        *value++ = 0;
        assert_ok(conf_set(&one.options, pair, strcmp(value, "\"\"") == 0 ? "" : value));
    }
    assert_ok(plan_trial_make(&one, &of->dims, &of->card));
    const int64_t total = total_of(&one, SEARCH_AS_CONFIGURED);
    assert_string_equal(memory_bytes_text(total, bytes), end + 1);
    assert_true((double)total <= one.options.memory_limit * of->card.usable);
    plan_trial_end(&one);
}

/* Checks all that is advised on a device of this size, and returns it. */
static const char *advice_for(setup *of, int64_t bytes, char out[CHANGE_TEXT_MAX])
{
    static const char begin[] = "what fits: ", again[] = "; or ";
    char text[CHANGE_TEXT_MAX];
    of->card.memory = of->card.usable = (double)bytes;
    assert_ok(memory_smallest_change(&of->asked.in, out));
    print_message("%.2f GiB: %s\n", (double)bytes / 1073741824.0, out);
    assert_true(strncmp(out, "no batch of this model fits", 27) == 0 ||
                strncmp(out, begin, strlen(begin)) == 0);
    if (out[0] == 'n')
        return out;
    strcpy(text, out + strlen(begin));
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
    const int64_t total = total_of(&of->asked, SEARCH_AS_CONFIGURED);
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

/* One after another, until the rows fit as they are. */
static void test_change__saves_as_little_as_is_enough(void **state)
{
    (void)state;
    setup of;
    static const char *const full[] = {"training.seq_len",
                                       "8192",
                                       "activation_checkpoint.mode",
                                       "full",
                                       "training.local_batch_size",
                                       "1",
                                       NULL};
    begin_setup("qwen3-vl-2b", "h200", full, &of);
    const int64_t total = total_of(&of.asked, SEARCH_AS_CONFIGURED);
    expect_words(&of, total, "; or optimizer.states int8, training.local_batch_size 1, ", "bf16");
    expect_words(&of, total * 3 / 4, "optimizer.states int8, training.master bf16, training.local",
                 "in_backward");
    expect_words(&of, total / 2,
                 "optimizer.states int8, training.master bf16, optimizer.in_backward true, "
                 "training.local_batch_size 1, training.seq_len 8192, "
                 "training.global_batch_size 1 (",
                 NULL);
    end_setup(&of);
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
    const double total = (double)total_of(&of.asked, SEARCH_AS_CONFIGURED);
    advice_for(&of, (int64_t)(total / 0.96), text);
    assert_true(strncmp(text, "what fits: memory.limit 0.97 (", 30) == 0);
    assert_non_null(strstr(text, "; or optimizer.states int8, "));
    expect_words(&of, (int64_t)(total / 0.98), "what fits: ", "memory.limit");
    of.asked.options.memory_limit = 0.98;
    expect_words(&of, (int64_t)(total / 0.985), "what fits: ", "memory.limit");
    end_setup(&of);
}

/* Options under which training takes the least memory of a GPU. */
#define SMALLEST                                                                                   \
    "training.seq_len", "8192", "activation_checkpoint.mode", "full", "training.master", "bf16",   \
        "optimizer.states", "int8", "optimizer.in_backward", "true", "training.local_batch_size",  \
        "1"

/* Moments rest on the host only if it has the memory for them. */
static void test_change__knows_what_the_host_has(void **state)
{
    (void)state;
    setup of;
    static const char *const full[] = {SMALLEST, "training.global_batch_size", "1", NULL};
    begin_setup("qwen3-vl-2b", "h200", full, &of);
    const int64_t total = total_of(&of.asked, SEARCH_AS_CONFIGURED);
    of.card.host = 64e9;
    expect_words(&of, total, "; or memory.host moments, ", NULL);
    of.card.host = 1e9;
    expect_words(&of, total, "what fits: ", "memory.host");
    end_setup(&of);
}

/* Of four ranks, only those of one host share its memory. */
static void test_change__counts_the_ranks_of_a_host(void **state)
{
    (void)state;
    setup of;
    recomputes recomputed;
    memory_plan plan;
    static const char *const shared[] = {SMALLEST, "training.global_batch_size",
                                         "4",      "parallelism.data_parallel_shard_degree",
                                         "4",      NULL};
    begin_setup("qwen3-vl-2b", "h200", shared, &of);
    assert_ok(memory_search_recompute(&of.asked.in, 1, SEARCH_AS_CONFIGURED, &recomputed));
    assert_ok(layout_plan_make(&of.asked.in, 1, &recomputed, &plan));
    const int64_t bytes = plan.total * 49 / 45; /* with the limit, 2 % too little */
    of.card.host = 2.2 * (double)plan.moments;  /* what rests there for two ranks */
    of.card.host_ranks = 2;
    expect_words(&of, bytes, "memory.host moments, ", NULL);
    of.card.host_ranks = 4;
    expect_words(&of, bytes, "what fits: ", "memory.host");
    end_setup(&of);
}

/* What saves next to nothing is left out: adapters of a high rank are made smaller, those of a low
 * rank are not. */
static void test_change__leaves_out_what_saves_little(void **state)
{
    (void)state;
    setup of;
    static const char *const wide[] = {"training.seq_len",
                                       "4096",
                                       "activation_checkpoint.mode",
                                       "full",
                                       "lora.rank",
                                       "1024",
                                       "lora.targets",
                                       "gate_proj,up_proj,down_proj",
                                       NULL};
    static const char *const narrow[] = {
        "training.seq_len", "4096", "activation_checkpoint.mode", "full", "lora.rank", "8", NULL};
    begin_setup("qwen3-vl-2b", "h200", wide, &of);
    expect_words(&of, total_of(&of.asked, SEARCH_AS_CONFIGURED) * 1 / 4, "lora.rank ",
                 "seq_len 2048");
    end_setup(&of);
    begin_setup("qwen3-vl-2b", "h200", narrow, &of);
    expect_words(&of, total_of(&of.asked, SEARCH_AS_CONFIGURED), "what fits: ", "optimizer.");
    end_setup(&of);
}

/* Stages of a pipeline pass several micro-batches, which updates in backward cannot. */
static void test_change__names_what_can_be_set(void **state)
{
    (void)state;
    setup of;
    char text[CHANGE_TEXT_MAX];
    static const char *const staged[] = {"training.seq_len",
                                         "8192",
                                         "parallelism.pipeline_parallel_degree",
                                         "2",
                                         "parallelism.world_size",
                                         "2",
                                         NULL};
    begin_setup("qwen3-vl-8b", "h200", staged, &of);
    const int64_t total = total_of(&of.asked, SEARCH_AS_CONFIGURED);
    for (int64_t bytes = total; bytes > total / 8; bytes = bytes * 2 / 3)
        assert_null(strstr(advice_for(&of, bytes, text), "in_backward"));
    end_setup(&of);
}

/* On a CPU the copies for a crash are memory like any other, and BF16 saves nothing. */
static void test_change__counts_copies_on_a_cpu(void **state)
{
    (void)state;
    setup of;
    static const char *const kept[] = {
        "training.seq_len", "256", "training.backend", "cpu", "checkpoint.enable", "true", NULL};
    begin_setup("tile", "cpu", kept, &of);
    const int64_t total = total_of(&of.asked, AC_FULL);
    of.asked.options.memory_limit = 1;
    expect_words(&of, total - total / 8, "checkpoint.memory_folder \"\", ", "training.master");
    end_setup(&of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_change__is_enough_whatever_is_asked),
        cmocka_unit_test(test_change__saves_as_little_as_is_enough),
        cmocka_unit_test(test_change__a_higher_limit_is_the_least),
        cmocka_unit_test(test_change__knows_what_the_host_has),
        cmocka_unit_test(test_change__counts_the_ranks_of_a_host),
        cmocka_unit_test(test_change__leaves_out_what_saves_little),
        cmocka_unit_test(test_change__names_what_can_be_set),
        cmocka_unit_test(test_change__counts_copies_on_a_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
