/* test_comm_simulated.c: the engine that simulates all other ranks of a layout. Each collective
 * leaves this rank's own values where those of others would be, and takes at least the time of its
 * bytes. Whole steps of several layouts receive the bytes of the formula, and a simulated run
 * refuses to save anything. */
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "trainer/bench/text_rows.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/train_state.h"
#include "trainer/ops/open.h"
#include "trainer/run/step.h"

enum { RANKS = 4, RANK = 1, N = 6 };

typedef struct alone {
    device *d;
    stream *s;
    comm_ledger *ledger;
    comm_simulated *r;
    comm c;
} alone;

static const comm_at at = {"test", -1};

/* A group of RANKS with this bandwidth in bytes a second and this latency. */
static void open_alone(alone *a, double bytes_per_s, int64_t latency_ns)
{
    assert_ok(device_open(BACKEND_CPU, &(device_options){.threads = 1}, &a->d));
    assert_ok(a->d->backend->stream_new(a->d, &a->s));
    assert_ok(comm_ledger_new(&a->ledger));
    a->r = calloc(1, sizeof *a->r);
    assert_non_null(a->r);
    *a->r = (comm_simulated){.bytes_per_s = bytes_per_s, .latency_ns = latency_ns, .blocks = 1};
    a->c = (comm){.engine = &comm_simulated_engine,
                  .name = "world",
                  .rank = RANK,
                  .size = RANKS,
                  .ledger = a->ledger};
    assert_ok(comm_simulated_engine.group_new(a->r, NULL, RANKS, &a->c.handle));
}

static void close_alone(alone *a)
{
    comm_simulated_engine.leave(a->r, true);
    comm_ledger_free(&a->ledger);
    a->d->backend->stream_free(&a->s);
    device_close(&a->d);
}

static void fill_floats(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(i + 1);
}

/* All bytes of the calls so far. */
static int64_t sum_bytes(const alone *a)
{
    const comm_tally *list;
    int64_t bytes = 0;
    int n = comm_ledger_list(a->ledger, &list);
    for (int i = 0; i < n; i++)
        bytes += list[i].bytes;
    return bytes;
}

static void test_simulated__collectives_leave_own_values(void **state)
{
    (void)state;
    alone a;
    float send[RANKS * N], recv[RANKS * N];
    open_alone(&a, 1e12, 0);
    fill_floats(send, RANKS * N);

    assert_ok(comm_all_gather(&a.c, a.s, at, send, recv, N, DT_F32));
    for (int i = 0; i < RANKS * N; i++)
        assert_true(recv[i] == send[i % N]);
    fill_floats(recv, RANKS * N); /* in place */
    assert_ok(comm_all_gather(&a.c, a.s, at, recv + RANK * N, recv, N, DT_F32));
    for (int i = 0; i < RANKS * N; i++)
        assert_true(recv[i] == (float)(RANK * N + i % N + 1));

    assert_ok(comm_reduce_scatter(&a.c, a.s, at, send, recv, N, DT_F32));
    for (int i = 0; i < N; i++)
        assert_true(recv[i] == 4 * send[i] + N * (0 + 1 + 2 + 3));

    double sum[3] = {1, 2, 3};
    assert_ok(comm_all_reduce(&a.c, a.s, at, sum, 3, DT_F64, COMM_SUM));
    assert_true(sum[0] == 1 && sum[1] == 2 && sum[2] == 3);
    assert_ok(comm_broadcast(&a.c, a.s, at, sum, 3, DT_F64, 0));
    assert_true(sum[2] == 3);
    close_alone(&a);
}

static void test_simulated__all_to_all_repeats_own_values(void **state)
{
    (void)state;
    alone a;
    enum { MANY = 40 }; /* more ranks than one launch has room for */
    const int64_t first[RANKS] = {0, 2, 5, 5}, count[RANKS] = {2, 3, 0, 4};
    const int64_t there[RANKS] = {0, 10, 3, 20}, come[RANKS] = {3, 3, 7, 0};
    float send[9], recv[24], want[24];
    int64_t from[MANY], one[MANY];
    float many[MANY];
    open_alone(&a, 1e12, 0);
    fill_floats(send, 9);
    memset(recv, 0, sizeof recv);
    memset(want, 0, sizeof want);
    for (int p = 0; p < RANKS; p++)
        for (int i = 0; i < come[p]; i++)
            want[there[p] + i] = send[first[RANK] + i % 3];
    assert_ok(comm_all_to_all(&a.c, a.s, at, send, first, count, recv, there, come, DT_F32));
    assert_memory_equal(recv, want, sizeof want);
    assert_int_equal(sum_bytes(&a), (3 + 7 + 0) * 4);

    a.c.size = MANY;
    memset(many, 0, sizeof many);
    for (int p = 0; p < MANY; p++) {
        from[p] = p;
        one[p] = 1;
    }
    float sent[MANY];
    fill_floats(sent, MANY);
    assert_ok(comm_all_to_all(&a.c, a.s, at, sent, from, one, many, from, one, DT_F32));
    for (int p = 0; p < MANY; p++)
        assert_true(many[p] == sent[RANK]);

    one[RANK] = 0; /* nothing of its own to repeat: zeros arrive */
    assert_ok(comm_all_to_all(&a.c, a.s, at, sent, from, one, many, from, one, DT_F32));
    assert_true(many[0] == 0 && many[RANK] == sent[RANK] && many[MANY - 1] == 0);
    close_alone(&a);
}

/* At 1 MB/s and 2 ms a call. Only the least time is checked, since a busy machine can take
 * longer. */
static void test_simulated__takes_the_time_of_the_bytes(void **state)
{
    (void)state;
    alone a;
    float x[RANKS * N];
    open_alone(&a, 1e6, 2000000);
    fill_floats(x, RANKS * N);
    const int64_t start = clock_ns();
    assert_ok(comm_all_gather(&a.c, a.s, at, x, x + 0, 0, DT_F32)); /* no bytes take no time */
    assert_ok(comm_reduce_scatter(&a.c, a.s, at, x, x + RANK * N, N, DT_F32));
    assert_ok(comm_all_gather(&a.c, a.s, at, x + RANK * N, x, N, DT_F32));
    const int64_t bytes = sum_bytes(&a), took = clock_ns() - start;
    assert_int_equal(bytes, 2 * (RANKS - 1) * N * 4);
    assert_true(took >= 2 * comm_simulated_ns(a.r, bytes / 2));
    assert_int_equal(comm_simulated_ns(a.r, bytes / 2), 2000000 + 72000);
    assert_int_equal(comm_simulated_ns(a.r, 0), 0);
    close_alone(&a);
}

/* ---- whole steps ---- */

typedef struct run {
    conf c;
    world w;
    session s;
    char path[STATUS_PATH_MAX];
} run;

enum { WORDS = 64 };

/* `more`: further options, separated by spaces. */
static status open_run(run *r, const char *more)
{
    char text[1024], program[] = "test", *word[WORDS] = {program};
    int n = 1;
    snprintf(text, sizeof text,
             "--model.path debug --training.backend cpu --training.threads 1 --training.seq_len 96 "
             "--training.local_batch_size 1 --comm.engine replay --optimizer.lr 1e-2 "
             "--comm.replay_bandwidth 100000 --comm.replay_latency 0 --bench.document 30 %s",
             more);
    for (char *save = NULL, *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
        word[n++] = w;
    memset(r, 0, sizeof *r);
    TRY(conf_load(&r->c, &n, word));
    model_dims d;
    TRY(dims_load("debug", &d));
    TRY(text_rows_own(&r->c, &d, r->path));
    r->c.feed_replay = r->path;
    TRY(world_replay(&r->c, &r->w));
    world_fit(&r->w, &r->c);
    return session_resume(&r->c, &r->w, NULL, &r->s);
}

static void close_run(run *r)
{
    session_close(&r->s);
    if (r->w.engine)
        assert_ok(world_close(&r->w, ST_OK));
    unlink(r->path);
    conf_done(&r->c);
}

/* The expert slots that cross between this rank and the others if all have this rank's counts of
 * the last micro-step (which is the only one). The caller frees them. */
static received_slots *alike_slots(const session *s)
{
    const comm *c = mesh_comm(&s->mesh, MESH_EXPERT);
    const text_dims *t = &s->dims.text;
    const int64_t own = t->experts / c->size, wide = s->mesh.layout.expert_tensor;
    int32_t *count = calloc((size_t)(t->layers * t->experts), sizeof *count);
    received_slots *slots = calloc((size_t)t->layers, sizeof *slots);
    assert_true(count && slots);
    assert_ok(s->device->backend->to_host(s->stream, count, model_expert_count(s->model),
                                          (size_t)(t->layers * t->experts) * sizeof *count));
    assert_ok(s->device->backend->wait(s->stream));
    for (int64_t i = 0; i < t->layers * t->experts; i++) {
        const bool mine = i % t->experts / own == c->rank;
        slots[i / t->experts].come += mine ? (c->size - 1) * count[i] * wide : 0;
        slots[i / t->experts].go += mine ? 0 : count[i] * wide;
    }
    free(count);
    return slots;
}

static void check_formula(const run *r, const step_report *step)
{
    const session *s = &r->s;
    received_line line[RECEIVED_LINES];
    received_slots *slots = alike_slots(s);
    received_work w = step_received_work(s, step);
    w.slots = slots;
    const comm_tally *list;
    int64_t formula = 0, ledger = 0;
    const int n = received_lines(s->params, &s->dims, &s->mesh, &w, line);
    free(slots);
    const int m = comm_ledger_list(r->w.ledger, &list);
    for (int i = 0; i < n; i++) {
        int64_t got = 0;
        for (int k = 0; k < m; k++)
            got += strcmp(list[k].what, line[i].what) == 0 ? list[k].step_bytes : 0;
        if (got != line[i].bytes)
            fail_msg("%s: %lld bytes, by the formula %lld", line[i].what, (long long)got,
                     (long long)line[i].bytes);
        formula += line[i].bytes;
    }
    for (int k = 0; k < m; k++)
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
        run r;
        step_report first, last;
        assert_ok(open_run(&r, layouts[i]));
        assert_ok(step_run(&r.s, 1, &first));
        for (int64_t step = 2; step <= 5; step++) /* the same row as in the first */
            assert_ok(step_run(&r.s, step, &last));
        check_formula(&r, &last);
        assert_true(isfinite(first.grad_norm) && first.grad_norm > 0 && !last.skipped);
        assert_true(isfinite(last.loss) && last.loss < first.loss);
        assert_int_equal(last.rows, 1); /* only this rank's own row */
        assert_true(last.balance == 1);
        close_run(&r);
    }
}

static void test_steps__nothing_is_kept(void **state)
{
    (void)state;
    run r;
    char *folder = harness_temp();
    assert_ok(open_run(&r, "--parallelism.world_size 4"));
    const hf_export_options o = {.source = "debug", .dtype = HF_EXPORT_AS_SOURCE};
    assert_fails(ST_CONFIG, hf_export(r.s.params, r.s.stream, &r.s.dims, folder, &o),
                 "its values cannot be written");
    assert_fails(ST_CONFIG, train_state_write(r.s.params, r.s.stream, (state_writer){0, 1}, folder),
                 "its values cannot be written");
    assert_int_equal(rmdir(folder), 0); /* still empty */
    close_run(&r);
    harness_remove(&folder);
}

static void refuse_run(const char *more, const char *why)
{
    run r;
    assert_fails(ST_CONFIG, open_run(&r, more), why);
    close_run(&r);
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
        cmocka_unit_test(test_steps__nothing_is_kept),
        cmocka_unit_test(test_simulated__refuses_what_it_cannot_simulate),
    };
    return cmocka_run_group_tests_name("simulated", tests, NULL, NULL);
}
