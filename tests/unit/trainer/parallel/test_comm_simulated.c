/* test_comm_simulated.c: the engine that simulates all other ranks of a layout. Each collective
 * leaves this rank's own values where those of others would be, and takes at least the time of its
 * bytes. Whole steps of several layouts receive the bytes of the formula and recompute what the
 * plan counts, and a simulated run refuses to save anything. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "trainer/bench/text_rows.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/state/train_state.h"
#include "trainer/ops/open.h"
#include "trainer/ops/table.h"
#include "trainer/plan/recompute_plan.h"
#include "trainer/run/step.h"

enum { RANKS = 4, RANK = 1, NUMBERS = 6 };

typedef struct alone {
    device *dev;
    stream *queue;
    comm_ledger *ledger;
    comm_simulated *simulated;
    comm group;
} alone;

static const comm_at at = {"test", -1};

/* A group of RANKS with this bandwidth in bytes a second and this latency. */
static void open_alone(alone *setup, double bytes_per_s, int64_t latency_ns)
{
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &setup->dev));
    assert_ok(setup->dev->backend->stream_new(setup->dev, &setup->queue));
    assert_ok(comm_ledger_new(&setup->ledger));
    setup->simulated = calloc(1, sizeof *setup->simulated);
    assert_non_null(setup->simulated);
    *setup->simulated =
        (comm_simulated){.bytes_per_s = bytes_per_s, .latency_ns = latency_ns, .blocks = 1};
    setup->group = (comm){.engine = &comm_simulated_engine,
                          .name = "world",
                          .rank = RANK,
                          .size = RANKS,
                          .ledger = setup->ledger};
    assert_ok(comm_simulated_engine.group_new(setup->simulated, NULL, RANKS, &setup->group.handle));
}

static void close_alone(alone *setup)
{
    comm_simulated_engine.leave(setup->simulated, true);
    comm_ledger_free(&setup->ledger);
    setup->dev->backend->stream_free(&setup->queue);
    device_close(&setup->dev);
}

static void fill_floats(float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(i + 1);
}

/* All bytes of the calls so far. */
static int64_t sum_bytes(const alone *setup)
{
    const comm_tally *list;
    int64_t bytes = 0;
    int count = comm_ledger_list(setup->ledger, &list);
    for (int i = 0; i < count; i++)
        bytes += list[i].bytes;
    return bytes;
}

static void test_simulated__collectives_leave_own_values(void **state)
{
    (void)state;
    alone setup;
    float send[RANKS * NUMBERS], recv[RANKS * NUMBERS];
    open_alone(&setup, 1e12, 0);
    fill_floats(send, RANKS * NUMBERS);

    assert_ok(comm_all_gather(&setup.group, setup.queue, at, send, recv, NUMBERS, DT_F32));
    for (int i = 0; i < RANKS * NUMBERS; i++)
        assert_true(recv[i] == send[i % NUMBERS]);
    fill_floats(recv, RANKS * NUMBERS); /* in place */
    assert_ok(comm_all_gather(&setup.group, setup.queue, at, recv + RANK * NUMBERS, recv, NUMBERS,
                              DT_F32));
    for (int i = 0; i < RANKS * NUMBERS; i++)
        assert_true(recv[i] == (float)(RANK * NUMBERS + i % NUMBERS + 1));

    assert_ok(comm_reduce_scatter(&setup.group, setup.queue, at, send, recv, NUMBERS, DT_F32));
    for (int i = 0; i < NUMBERS; i++)
        assert_true(recv[i] == 4 * send[i] + NUMBERS * (0 + 1 + 2 + 3));

    double sum[3] = {1, 2, 3};
    assert_ok(comm_all_reduce(&setup.group, setup.queue, at, sum, 3, DT_F64, COMM_SUM));
    assert_true(sum[0] == 1 && sum[1] == 2 && sum[2] == 3);
    assert_ok(comm_broadcast(&setup.group, setup.queue, at, sum, 3, DT_F64, 0));
    assert_true(sum[2] == 3);
    close_alone(&setup);
}

static void test_simulated__all_to_all_repeats_own_values(void **state)
{
    (void)state;
    alone setup;
    enum { MANY = 40 }; /* more ranks than one launch has room for */
    const int64_t first[RANKS] = {0, 2, 5, 5}, count[RANKS] = {2, 3, 0, 4};
    const int64_t there[RANKS] = {0, 10, 3, 20}, come[RANKS] = {3, 3, 7, 0};
    float send[9], recv[24], want[24];
    int64_t from[MANY], one[MANY];
    float many[MANY];
    open_alone(&setup, 1e12, 0);
    fill_floats(send, 9);
    memset(recv, 0, sizeof recv);
    memset(want, 0, sizeof want);
    for (int peer = 0; peer < RANKS; peer++)
        for (int i = 0; i < come[peer]; i++)
            want[there[peer] + i] = send[first[RANK] + i % 3];
    assert_ok(comm_all_to_all(&setup.group, setup.queue, at, send, first, count, recv, there, come,
                              DT_F32));
    assert_memory_equal(recv, want, sizeof want);
    assert_int_equal(sum_bytes(&setup), (3 + 7 + 0) * 4);

    setup.group.size = MANY;
    memset(many, 0, sizeof many);
    for (int peer = 0; peer < MANY; peer++) {
        from[peer] = peer;
        one[peer] = 1;
    }
    float sent[MANY];
    fill_floats(sent, MANY);
    assert_ok(
        comm_all_to_all(&setup.group, setup.queue, at, sent, from, one, many, from, one, DT_F32));
    for (int peer = 0; peer < MANY; peer++)
        assert_true(many[peer] == sent[RANK]);

    one[RANK] = 0; /* nothing of its own to repeat: zeros arrive */
    assert_ok(
        comm_all_to_all(&setup.group, setup.queue, at, sent, from, one, many, from, one, DT_F32));
    assert_true(many[0] == 0 && many[RANK] == sent[RANK] && many[MANY - 1] == 0);
    close_alone(&setup);
}

/* At 1 MB/s and 2 ms a call. Only the least time is checked, since a busy machine can take
 * longer. */
static void test_simulated__takes_the_time_of_the_bytes(void **state)
{
    (void)state;
    alone setup;
    float values[RANKS * NUMBERS];
    open_alone(&setup, 1e6, 2000000);
    fill_floats(values, RANKS * NUMBERS);
    const int64_t start = clock_ns();
    assert_ok(comm_all_gather(&setup.group, setup.queue, at, values, values + 0, 0,
                              DT_F32)); /* no bytes take no time */
    assert_ok(comm_reduce_scatter(&setup.group, setup.queue, at, values, values + RANK * NUMBERS,
                                  NUMBERS, DT_F32));
    assert_ok(comm_all_gather(&setup.group, setup.queue, at, values + RANK * NUMBERS, values,
                              NUMBERS, DT_F32));
    const int64_t bytes = sum_bytes(&setup), took = clock_ns() - start;
    assert_int_equal(bytes, 2 * (RANKS - 1) * NUMBERS * 4);
    assert_true(took >= 2 * comm_simulated_ns(setup.simulated, bytes / 2));
    assert_int_equal(comm_simulated_ns(setup.simulated, bytes / 2), 2000000 + 72000);
    assert_int_equal(comm_simulated_ns(setup.simulated, 0), 0);
    close_alone(&setup);
}

/* ---- whole steps ---- */

typedef struct run {
    conf options;
    world job;
    session run;
    char path[STATUS_PATH_MAX];
} run;

enum { WORDS = 64 };

/* `more`: further options, separated by spaces. */
static status open_run(run *setup, const char *more)
{
    char text[1024], program[] = "test", *word[WORDS] = {program};
    int count = 1;
    snprintf(text, sizeof text,
             "--model.path debug --training.backend cpu --training.threads 1 --training.seq_len 96 "
             "--training.local_batch_size 1 --comm.engine replay --optimizer.lr 1e-2 "
             "--comm.replay_bandwidth 100000 --comm.replay_latency 0 --bench.document 30 %s",
             more);
    for (char *save = NULL, *width = strtok_r(text, " ", &save); width;
         width = strtok_r(NULL, " ", &save))
        word[count++] = width;
    memset(setup, 0, sizeof *setup);
    TRY(conf_load(&setup->options, &count, word));
    model_dims dims;
    TRY(dims_load("debug", &dims));
    TRY(text_rows_own(&setup->options, &dims, setup->path));
    setup->options.feed_replay = setup->path;
    TRY(world_replay(&setup->options, &setup->job));
    world_fit(&setup->job, &setup->options);
    return session_resume(&setup->options, &setup->job, NULL, &setup->run);
}

static void close_run(run *setup)
{
    session_close(&setup->run);
    if (setup->job.engine)
        assert_ok(world_close(&setup->job, ST_OK));
    unlink(setup->path);
    conf_done(&setup->options);
}

/* The expert slots that cross between this rank and the others if all have this rank's counts of
 * the last micro-step (which is the only one). The caller frees them. */
static received_slots *alike_slots(const session *opened)
{
    const comm *group = mesh_comm(&opened->mesh, MESH_EXPERT);
    const text_dims *dims = &opened->dims.text;
    const int64_t own = dims->experts / group->size, wide = opened->mesh.layout.expert_tensor;
    int32_t *count = calloc((size_t)(dims->layers * dims->experts), sizeof *count);
    received_slots *slots = calloc((size_t)dims->layers, sizeof *slots);
    assert_true(count && slots);
    assert_ok(
        opened->device->backend->to_host(opened->stream, count, model_expert_count(opened->model),
                                         (size_t)(dims->layers * dims->experts) * sizeof *count));
    assert_ok(opened->device->backend->wait(opened->stream));
    for (int64_t i = 0; i < dims->layers * dims->experts; i++) {
        const bool mine = i % dims->experts / own == group->rank;
        slots[i / dims->experts].come += mine ? (group->size - 1) * count[i] * wide : 0;
        slots[i / dims->experts].go += mine ? 0 : count[i] * wide;
    }
    free(count);
    return slots;
}

static void check_formula(const run *setup, const step_report *step)
{
    const session *opened = &setup->run;
    received_line line[RECEIVED_LINES];
    received_slots *slots = alike_slots(opened);
    received_work work = step_received_work(opened, step);
    work.slots = slots;
    const comm_tally *list;
    int64_t formula = 0, ledger = 0;
    const int lines = received_lines(opened->params, &opened->dims, &opened->mesh, &work, line);
    free(slots);
    const int listed = comm_ledger_list(setup->job.ledger, &list);
    for (int i = 0; i < lines; i++) {
        int64_t got = 0;
        for (int k = 0; k < listed; k++)
            got += strcmp(list[k].what, line[i].what) == 0 ? list[k].step_bytes : 0;
        if (got != line[i].bytes)
            fail_msg("%s: %lld bytes, by the formula %lld", line[i].what, (long long)got,
                     (long long)line[i].bytes);
        formula += line[i].bytes;
    }
    for (int k = 0; k < listed; k++)
        ledger += list[k].step_bytes;
    assert_true(formula > 0);
    assert_int_equal(ledger, formula);
}

static void test_steps__have_the_bytes_of_the_formula(void **state)
{
    (void)state;
    static const char *const layouts[] = {
        "--parallelism.world_size 8 --training.global_batch_size 8",
        "--parallelism.world_size 8 --training.global_batch_size 8 --comm.replay_rank 5 "
        "--activation_checkpoint.mode full --loss.router_aux_coef 0.01",
        "--parallelism.data_parallel_replicate_degree 2 --parallelism.data_parallel_shard_degree 4 "
        "--training.global_batch_size 8 --comm.replay_rank 6",
        "--parallelism.world_size 8 --parallelism.expert_parallel_degree 8 "
        "--training.global_batch_size 8 --comm.replay_rank 3",
        "--parallelism.data_parallel_shard_degree 2 --parallelism.tensor_parallel_degree 2 "
        "--parallelism.context_parallel_degree 2 --training.global_batch_size 2 "
        "--comm.replay_rank 7",
        "--parallelism.data_parallel_shard_degree 2 --parallelism.tensor_parallel_degree 2 "
        "--parallelism.expert_parallel_degree 2 --parallelism.expert_tensor_parallel_degree 2 "
        "--training.global_batch_size 2 --comm.replay_rank 3",
    };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        run setup;
        step_report first, last;
        assert_ok(open_run(&setup, layouts[i]));
        assert_ok(step_run(&setup.run, 1, &first));
        for (int64_t step = 2; step <= 5; step++) /* the same row as in the first */
            assert_ok(step_run(&setup.run, step, &last));
        check_formula(&setup, &last);
        assert_true(isfinite(first.grad_norm) && first.grad_norm > 0 && !last.skipped);
        assert_true(isfinite(last.loss) && last.loss < first.loss);
        assert_int_equal(last.rows, 1); /* only this rank's own row */
        assert_true(last.balance == 1);
        close_run(&setup);
    }
}

/* Multiply-adds of the experts' products, by their mode. */
static struct {
    int64_t macs[3];
    const ops_table *real;
} counted;

static status counted_grouped(stream *queue, const grouped_gemm_args *args)
{
    counted.macs[args->mode] += args->offset[args->experts] * args->k * args->n;
    return counted.real->grouped_gemm(queue, args);
}

/* FLOPs that the plan says the experts recompute, for those of a forward pass over one token. */
static double planned_again(const session *opened)
{
    const text_dims *text = &opened->dims.text;
    training_share share;
    recompute_flops again;
    groups_share(opened->params, &opened->dims, &share);
    recompute_plan_count(&opened->recomputed, &opened->mesh.layout, &opened->dims, &share,
                         &(flops){0}, 1, 0, &again);
    return (double)again.experts /
           (double)(2 * text->layers * text->top_k * 3 * text->hidden * text->expert_width);
}

/* Products that a backward pass repeats are of the forward kind; one gradient of the inputs takes
 * as many multiply-adds as a forward pass. */
static void test_steps__recompute_what_the_plan_counts(void **state)
{
    (void)state;
    static const char *const layouts[] = {
        "--parallelism.world_size 2 --parallelism.expert_parallel_degree 2",
        "--parallelism.tensor_parallel_degree 2 --parallelism.expert_tensor_parallel_degree 2",
        "--parallelism.world_size 2"};
    static const struct {
        const char *options;
        double shared, own; /* passes over both products that are repeated */
    } modes[] = {{"none", 2.0 / 3, 0},
                 {"full", 5.0 / 3, 1},
                 {"selective --activation_checkpoint.save fc2", 2.0 / 3, 2.0 / 3},
                 {"selective --activation_checkpoint.save fc1", 5.0 / 3, 1.0 / 3}};
    for (size_t i = 0; i < 3; i++)
        for (size_t k = 0; k < sizeof modes / sizeof *modes; k++) {
            run setup;
            step_report report;
            char options[256];
            snprintf(options, sizeof options,
                     "%s --training.global_batch_size 2 --activation_checkpoint.mode %s",
                     layouts[i], modes[k].options);
            assert_ok(open_run(&setup, options));
            ops_table counting = *setup.run.stream->ops;
            memset(&counted, 0, sizeof counted);
            counted.real = setup.run.stream->ops;
            counting.grouped_gemm = counted_grouped;
            setup.run.stream->ops = &counting;
            assert_ok(step_run(&setup.run, 1, &report));
            setup.run.stream->ops = counted.real;
            const double again =
                (double)counted.macs[GROUPED_FWD] / (double)counted.macs[GROUPED_DGRAD] - 1;
            assert_float_equal(again, i < 2 ? modes[k].shared : modes[k].own, 1e-12);
            assert_float_equal(planned_again(&setup.run), again, 1e-12);
            close_run(&setup);
        }
}

static void test_steps__nothing_is_kept(void **state)
{
    (void)state;
    run setup;
    char *folder = harness_temp();
    assert_ok(open_run(&setup, "--parallelism.world_size 4"));
    const hf_export_options options = {.source = "debug", .dtype = HF_EXPORT_AS_SOURCE};
    assert_fails(ST_CONFIG,
                 hf_export(setup.run.params, setup.run.stream, &setup.run.dims, folder, &options),
                 "its values cannot be written");
    assert_fails(
        ST_CONFIG,
        train_state_write(setup.run.params, setup.run.stream, (state_writer){0, 1}, folder),
        "its values cannot be written");
    assert_int_equal(rmdir(folder), 0); /* still empty */
    close_run(&setup);
    harness_remove(&folder);
}

static void refuse_run(const char *more, const char *why)
{
    run setup;
    assert_fails(ST_CONFIG, open_run(&setup, more), why);
    close_run(&setup);
}

static void test_simulated__refuses_what_it_cannot_simulate(void **state)
{
    (void)state;
    refuse_run("", "no other ranks to simulate");
    refuse_run("--parallelism.world_size 8 --comm.replay_rank 8", "ranks 0 to 7");
    refuse_run("--parallelism.world_size 8 --checkpoint.enable true", "checkpoint.enable");
    refuse_run("--parallelism.pipeline_parallel_degree 2", "a pipeline stage waits");
    refuse_run("--parallelism.world_size 8 --metrics.enable_tensorboard true", "TensorBoard");
    refuse_run("--parallelism.world_size 8 --eval.enable true", "eval.enable");
    refuse_run("--parallelism.world_size 8 --comm.expert_exchange device", "comm.expert_exchange");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_simulated__collectives_leave_own_values),
        cmocka_unit_test(test_simulated__all_to_all_repeats_own_values),
        cmocka_unit_test(test_simulated__takes_the_time_of_the_bytes),
        cmocka_unit_test(test_steps__have_the_bytes_of_the_formula),
        cmocka_unit_test(test_steps__recompute_what_the_plan_counts),
        cmocka_unit_test(test_steps__nothing_is_kept),
        cmocka_unit_test(test_simulated__refuses_what_it_cannot_simulate),
    };
    return cmocka_run_group_tests_name("simulated", tests, NULL, NULL);
}
