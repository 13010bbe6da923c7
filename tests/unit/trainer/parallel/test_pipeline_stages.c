/* SPDX-License-Identifier: Apache-2.0 */
/* test_pipeline_stages.c: how layers are divided over the stages of a pipeline, and in which order
 * each stage runs the micro-batches: no other division is faster, and the order never gets
 * stuck. */
#include <stdio.h>
#include <string.h>

#include "tests/harness.h"

#include "trainer/parallel/pipeline_stages.h"

enum { MOST = 12 };

static double stage_sum(const stage_costs *costs, const layout *degrees, int stage)
{
    double sum =
        (stage == 0 ? costs->before : 0) + (stage + 1 == degrees->pipeline ? costs->after : 0);
    for (int64_t i = layout_first_layer(degrees, stage);
         i < layout_end_layer(degrees, stage, costs->layers); i++)
        sum += costs->layer[i];
    return sum;
}

static double slowest(const stage_costs *costs, const layout *degrees)
{
    double most = 0;
    for (int stage = 0; stage < degrees->pipeline; stage++)
        most = stage_sum(costs, degrees, stage) > most ? stage_sum(costs, degrees, stage) : most;
    return most;
}

/* The slowest stage of the best division of the layers from `stage` on, by trying all of them. */
static double best_of_all(const stage_costs *costs, layout *degrees, int stage)
{
    double best = -1;
    int64_t least = costs->first_layers > 1 ? costs->first_layers : 1;
    if (stage + 1 == degrees->pipeline)
        return slowest(costs, degrees);
    int64_t begin = stage == 0 ? least : degrees->stage_end[stage - 1] + 1;
    for (int64_t end = begin; end <= costs->layers - (degrees->pipeline - 1 - stage); end++) {
        degrees->stage_end[stage] = (int32_t)end;
        double got = best_of_all(costs, degrees, stage + 1);
        best = best < 0 || got < best ? got : best;
    }
    return best;
}

static void test_stages_balance__no_other_cut_is_faster(void **state)
{
    (void)state;
    const stage_costs cases[] = {
        {(const double[]){1, 1, 1, 1}, 4, 0, 0, 0},
        {(const double[]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 10, 3.5, 1.2, 3},
        {(const double[]){5, 1, 1, 1, 5, 1, 1, 1, 9}, 9, 0, 2, 1},
        {(const double[]){1, 2, 3, 4, 5, 6, 7}, 7, 0, 40, 2},
        {(const double[]){0.1, 0.2, 0.3, 0.1, 0.2, 0.7}, 6, 7, 0.3, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const stage_costs *costs = &cases[i];
        int64_t least = costs->first_layers > 1 ? costs->first_layers : 1;
        for (int64_t stages = 1; stages <= costs->layers - least + 1; stages++) {
            layout degrees = {.pipeline = stages}, other = degrees;
            stages_balance(costs, &degrees);
            assert_true(layout_end_layer(&degrees, 0, costs->layers) >= least);
            for (int stage = 0; stage < stages; stage++)
                assert_true(layout_first_layer(&degrees, stage) <
                            layout_end_layer(&degrees, stage, costs->layers));
            double best = best_of_all(costs, &other, 0);
            assert_true(slowest(costs, &degrees) <= best * (1 + 1e-12));
        }
    }
}

static void test_stages_balance__earlier_stages_get_no_more_than_needed(void **state)
{
    (void)state;
    const double one[7] = {1, 1, 1, 1, 1, 1, 1};
    layout degrees = {.pipeline = 3};
    stages_balance(&(stage_costs){one, 7, 0, 0, 0}, &degrees);
    assert_int_equal(degrees.stage_end[0], 1);
    assert_int_equal(degrees.stage_end[1], 4);
}

/* A vision tower that takes longer than all layers together: the other stages are still even among
 * themselves. */
static void test_stages_balance__others_are_even_beside_the_slowest(void **state)
{
    (void)state;
    double one[48];
    for (int i = 0; i < 48; i++)
        one[i] = 1;
    layout degrees = {.pipeline = 4};
    stages_balance(&(stage_costs){one, 48, 60, 3, 3}, &degrees);
    assert_int_equal(degrees.stage_end[0], 3);
    assert_int_equal(degrees.stage_end[1], 19);
    assert_int_equal(degrees.stage_end[2], 35);
}

static void test_stages_read__names_bad_split_points(void **state)
{
    (void)state;
    const struct {
        const char *text, *words; /* expected error; NULL: none */
    } cases[] = {{"layers.3,layers.7", NULL},
                 {"layers.4, layers.11", NULL},
                 {"layers.3", "makes 2 stages, but there are 3"},
                 {"layers.3,layers.4,layers.5", "makes 4 stages, but there are 3"},
                 {"layers.2,layers.5", "stage 1 cannot begin with layers.2 (of the 12 layers the "
                                       "first stage must have at least 3"},
                 {"layers.5,layers.5", "every stage must have one); these fit: layers.5, layers.6"},
                 {"layers.5,layers.12", "these fit: layers.5, layers.11"},
                 {"layers.20,layers.0", "these fit: layers.10, layers.11"},
                 {"layers.-1,layers.0", "these fit: layers.3, layers.4"},
                 {"layers.5 7", "\"7\" does not have the form layers.N"},
                 {"layers.5x,layers.6", "does not have the form layers.N"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        layout degrees = {.pipeline = 3};
        if (cases[i].words)
            assert_fails(ST_CONFIG, stages_read(cases[i].text, 12, 3, &degrees), cases[i].words);
        else
            assert_ok(stages_read(cases[i].text, 12, 3, &degrees));
    }
}

/* A stage that exchanges with its neighbours: the pass it has reached, and what it has done so
 * far. */
typedef struct actor {
    int64_t at; /* passes done */
    int64_t forwards, backwards;
    int64_t sent_on, sent_back; /* offered to the neighbours */
} actor;

static bool is_forward(stage_pass pass)
{
    return pass.kind != PASS_BACKWARD;
}

/* Can the stage begin its next pass: have its neighbours offered what the pass needs? */
static bool can_begin(const actor *actors, int stage, int stages, int64_t count)
{
    if (actors[stage].at == stage_passes(stage, stages, count))
        return false;
    stage_pass pass = stage_pass_at(stage, stages, count, actors[stage].at);
    if (is_forward(pass))
        return stage == 0 || actors[stage - 1].sent_on > pass.micro_batch;
    return actors[stage + 1].sent_back > pass.micro_batch;
}

static void make_pass(actor *actors, int stage, int stages, int64_t count)
{
    actor *me = &actors[stage];
    stage_pass pass = stage_pass_at(stage, stages, count, me->at++);
    if (is_forward(pass)) {
        assert_int_equal(pass.micro_batch, me->forwards++);
        me->sent_on++;
    }
    assert_in_range(me->forwards - me->backwards, 1, stage_flights(stage, stages, count));
    if (pass.kind == PASS_FORWARD)
        return;
    assert_int_equal(pass.micro_batch, me->backwards++);
    me->sent_back++;
}

/* Has the neighbour taken what this stage sent last? The stage goes on only then, so a schedule
 * that finishes under this rule cannot get stuck under any order of events. */
static bool is_taken(const actor *actors, int stage, int stages, int64_t count)
{
    if (actors[stage].at == 0)
        return true;
    stage_pass pass = stage_pass_at(stage, stages, count, actors[stage].at - 1);
    int other = pass.kind == PASS_FORWARD ? stage + 1 : stage - 1;
    if (other < 0)
        return true;
    /* The neighbour has reached the pass that takes it, or is past it. */
    if (actors[other].at == stage_passes(other, stages, count))
        return true;
    stage_pass part = stage_pass_at(other, stages, count, actors[other].at);
    int64_t done = pass.kind == PASS_FORWARD ? actors[other].forwards : actors[other].backwards;
    bool takes = pass.kind == PASS_FORWARD ? is_forward(part) : part.kind == PASS_BACKWARD;
    return done > pass.micro_batch || (takes && part.micro_batch == pass.micro_batch);
}

static void run_schedule(int stages, int64_t count)
{
    actor actors[MOST] = {0};
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < stages; stage++)
            if (is_taken(actors, stage, stages, count) && can_begin(actors, stage, stages, count)) {
                make_pass(actors, stage, stages, count);
                moved = true;
            }
    }
    for (int stage = 0; stage < stages; stage++) {
        assert_int_equal(actors[stage].at, stage_passes(stage, stages, count));
        assert_int_equal(actors[stage].backwards, count);
    }
}

static void test_stage_passes__end_without_getting_stuck(void **state)
{
    (void)state;
    for (int stages = 1; stages <= MOST; stages++)
        for (int64_t count = 1; count <= 2 * MOST; count++)
            run_schedule(stages, count);
}

static void test_stage_passes__are_1f1b(void **state)
{
    (void)state;
    /* The second of four stages, with five micro-batches. */
    static const char want[] = "F0F1F2B0F3B1F4B2B3B4";
    char got[sizeof want] = "";
    for (int64_t i = 0; i < stage_passes(1, 4, 5); i++) {
        stage_pass pass = stage_pass_at(1, 4, 5, i);
        snprintf(got + 2 * i, 3, "%c%d", pass.kind == PASS_FORWARD ? 'F' : 'B',
                 (int)pass.micro_batch);
    }
    assert_string_equal(got, want);
    assert_int_equal(stage_flights(1, 4, 5), 3);
    assert_int_equal(stage_pass_at(3, 4, 5, 2).kind, PASS_BOTH);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_balance__no_other_cut_is_faster),
        cmocka_unit_test(test_stages_balance__others_are_even_beside_the_slowest),
        cmocka_unit_test(test_stages_balance__earlier_stages_get_no_more_than_needed),
        cmocka_unit_test(test_stages_read__names_bad_split_points),
        cmocka_unit_test(test_stage_passes__end_without_getting_stuck),
        cmocka_unit_test(test_stage_passes__are_1f1b),
    };
    return cmocka_run_group_tests_name("stages", tests, NULL, NULL);
}
