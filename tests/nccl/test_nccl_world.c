/* SPDX-License-Identifier: Apache-2.0 */
/* test_nccl_world.c: the watcher thread of the NCCL engine (trainer/parallel/comm/nccl_world.c): which
 * ranks are waited for and for how long, and how a job ends. Ranks are processes of this program
 * without a launcher, so that ThreadSanitizer sees everything. Each case starts this program once
 * per rank, and the exit code of a rank says whether it saw what it should. */
#include "tests/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "tests/emulated/emulated.h"
#include "trainer/ops/peers.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/world.h"

enum { COUNT = 3000, ROUNDS = 20, MOST_RANKS = 4 };
/* How long a rank waits for rows: more than twice the time that a call may take in that case. */
static const int64_t ROWS_NS = INT64_C(12000) * 1000 * 1000;
/* Of that time the watcher, which looks every 50 ms, spends the most beside other work. */
enum { TIMES_ANEW = 40 };
static const int64_t PATIENCE_NS = INT64_C(60) * 1000 * 1000 * 1000; /* then the test gives up */

/* ---- a rank ---- */

typedef struct place {
    const world *job;
    device *dev;
    mesh ranks;
    stream *queue, *other;
    float *values; /* [COUNT] */
} place;

static void sleep_ns(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

static status sum_world(const place *spot, stream *queue)
{
    return comm_all_reduce(mesh_comm(&spot->ranks, MESH_WORLD), queue, (comm_at){"sum", -1},
                           spot->values, COUNT, DT_F32, COMM_SUM);
}

static status wait_streams(const place *spot)
{
    TRY(spot->dev->backend->wait(spot->queue));
    return spot->dev->backend->wait(spot->other);
}

/* Waits until another rank has said that it waits for rows. */
static status hear_waiting(const place *spot)
{
    const int64_t start = clock_ns();
    while (!rank_link_others_wait(spot->job->rank_link)) {
        if (clock_ns() - start > PATIENCE_NS)
            return FAIL(ST_TIMEOUT, "no rank says that it waits for rows");
        sleep_ns(1000000);
    }
    return ST_OK;
}

/* The last rank makes its call and then waits for rows, longer than any call may take. The others
 * wait for it. */
static status wait_for_rows(const place *spot)
{
    TRY(sum_world(spot, spot->queue));
    if (spot->job->place.rank == spot->job->place.size - 1) {
        rank_link_waits(spot->job->rank_link, "rows");
        sleep_ns(ROWS_NS);
        rank_link_waits(spot->job->rank_link, NULL);
    } else {
        TRY(hear_waiting(spot));
    }
    TRY(wait_streams(spot));
    TRY(sum_world(spot, spot->queue));
    return wait_streams(spot);
}

/* What a kernel that waits for another rank is told, as far as this program can see it: a wait may
 * last longer than the watcher allows, and while ranks are patient it begins anew. */
static status waits_for_rows(const place *spot)
{
    static const int64_t ALLOWED_NS = INT64_C(30) * 1000 * 1000 * 1000; /* 4 x call_s + 10 s */
    const comm *all = mesh_comm(&spot->ranks, MESH_WORLD);
    comm_window window;
    status st = comm_window_open(all, all, spot->queue, COUNT, &window);
    if (st == ST_UNAVAILABLE) { /* built without them */
        if (spot->job->place.rank == 0)
            printf("skipped: what a waiting kernel is told: %s\n", status_text());
        status_clear();
        return wait_for_rows(spot);
    }
    TRY(st);
    const int32_t before = __atomic_load_n(&window.watch->anew, __ATOMIC_RELAXED);
    st = wait_for_rows(spot);
    const int32_t times = __atomic_load_n(&window.watch->anew, __ATOMIC_RELAXED) - before;
    const int64_t longest_ns = __atomic_load_n(&window.watch->longest_ns, __ATOMIC_RELAXED);
    if (st == ST_OK &&
        (longest_ns != ALLOWED_NS || __atomic_load_n(&window.watch->stop, __ATOMIC_RELAXED)))
        st = FAIL(ST_INTERNAL, "a kernel may wait for %lld ns", (long long)longest_ns);
    if (st == ST_OK && times < TIMES_ANEW)
        st = FAIL(ST_INTERNAL, "a kernel's wait began anew only %d times", times);
    comm_window_close(all, spot->queue, &window);
    return st;
}

/* Waits until this rank is told that the job is over. */
static status wait_for_end(const place *spot)
{
    const int64_t start = clock_ns();
    status st = ST_OK;
    while (st == ST_OK && clock_ns() - start < PATIENCE_NS) {
        sleep_ns(1000000);
        st = rank_link_check(spot->job->rank_link);
    }
    return st;
}

/* The last rank does not make its call and says nothing. */
static status stays_away(const place *spot)
{
    const bool away = spot->job->place.rank == spot->job->place.size - 1;
    if (away)
        return wait_for_end(spot);
    TRY(sum_world(spot, spot->queue));
    return wait_streams(spot);
}

/* The last rank never comes to where communicators are opened, in which the others wait for it. */
static status is_missing(const place *spot)
{
    if (spot->job->place.rank == spot->job->place.size - 1)
        return wait_for_end(spot);
    return FAIL(ST_INTERNAL, "a communicator was opened without the last rank");
}

/* The last rank fails while the others wait for it. */
static status fail_last_rank(const place *spot)
{
    if (spot->job->place.rank == spot->job->place.size - 1) {
        sleep_ns(INT64_C(300) * 1000 * 1000);
        return FAIL(ST_BAD_INPUT, "told to fail");
    }
    TRY(sum_world(spot, spot->queue));
    return wait_streams(spot);
}

/* As above, and one of the other ranks does not return from its call. */
static status is_stuck(const place *spot)
{
    if (spot->job->place.rank == 0)
        setenv("TESSERA_NCCL_STUCK", "1", 1);
    return fail_last_rank(spot);
}

static status sum_pair(const place *spot, stream *queue)
{
    return comm_all_reduce(&spot->ranks.group[MESH_REPLICATE], queue, (comm_at){"sum", -1},
                           spot->values, COUNT, DT_F32, COMM_SUM);
}

/* Captures a call of either communicator. */
static status capture_sums(const place *spot, graph **out)
{
    const backend_vtable *backend = spot->dev->backend;
    TRY(backend->capture_begin(spot->queue));
    status st = sum_world(spot, spot->queue);
    if (st == ST_OK)
        st = sum_pair(spot, spot->queue);
    TRY(backend->capture_end(spot->queue, out));
    return st;
}

/* The last rank fails while the others wait for it in calls of two communicators on two streams, of
 * which one is a captured graph. An abort of one communicator would wait for the kernels of the
 * other, and for the graph, which this thread frees only when its wait has ended. */
static status fail_in_graphs(const place *spot)
{
    const backend_vtable *backend = spot->dev->backend;
    graph *made = NULL;
    status st = capture_sums(spot, &made);
    if (st == ST_OK && spot->job->place.rank == spot->job->place.size - 1) {
        sleep_ns(INT64_C(300) * 1000 * 1000);
        st = FAIL(ST_BAD_INPUT, "told to fail");
    } else if (st == ST_OK) {
        st = backend->graph_launch(spot->queue, made);
        if (st == ST_OK)
            st = sum_pair(spot, spot->other);
        if (st == ST_OK)
            st = wait_streams(spot);
    }
    status_note why = *status_last();
    backend->graph_free(&made);
    status_set(&why);
    return st;
}

/* As above, and NCCL never returns from the abort of rank 0,
 * whose process must end all the same. */
static status abort_without_end(const place *spot)
{
    if (spot->job->place.rank == 0)
        setenv("TESSERA_NCCL_HELD", "1", 1);
    return fail_in_graphs(spot);
}

/* Sums are reproducible only if the NVLink switch makes none of them, neither within a machine nor
 * between machines. */
static status sums_repeat(const place *spot)
{
    const char *algorithms = getenv("NCCL_ALGO");
    if (!algorithms || strcmp(algorithms, "^NVLS,NVLSTree") != 0)
        return FAIL(ST_INTERNAL, "NCCL_ALGO is %s", algorithms ? algorithms : "not set");
    return wait_streams(spot);
}

/* The communicator of all ranks, from which the others were split, does not close; that must only
 * give a warning. */
static status is_not_closed(const place *spot)
{
    if (!spot->ranks.group[MESH_REPLICATE].handle ||
        spot->ranks.group[MESH_REPLICATE].handle == mesh_comm(&spot->ranks, MESH_WORLD)->handle)
        return FAIL(ST_INTERNAL, "nothing was split");
    setenv("TESSERA_NCCL_UNCLOSED", "1", 1);
    TRY(sum_world(spot, spot->queue));
    return wait_streams(spot);
}

/* Calls on two streams in turn, with host values between them. */
static status many_calls(const place *spot)
{
    const comm *group = mesh_comm(&spot->ranks, MESH_WORLD);
    for (int i = 0; i < ROUNDS; i++) {
        int all[MOST_RANKS];
        TRY(sum_world(spot, i % 2 ? spot->queue : spot->other));
        TRY(wait_streams(spot));
        TRY(comm_host_all_gather(group, (comm_at){"ranks", -1}, &group->rank, all,
                                 sizeof group->rank));
        for (int peer = 0; peer < group->size; peer++)
            if (all[peer] != peer)
                return FAIL(ST_INTERNAL, "rank %d says that it is %d", peer, all[peer]);
    }
    return ST_OK;
}

static const char hangs[] = ") keeps the others waiting: it hangs in its work or is stopped (";

static const struct play {
    const char *name;
    status (*run)(const place *spot);
    double call_s;       /* how long a call may take */
    status others, last; /* how the other ranks must end, and how the last */
    int ended;           /* how many processes, from rank 0 on, do not end by themselves */
    const char *named;   /* in the error of the last rank, which hears how it is named, */
    const char *by;      /* and in that of which call; NULL: anything */
} plays[] = {{"waits for rows", waits_for_rows, 5.0, ST_OK, ST_OK},
             {"stays away", stays_away, 3.0, ST_TIMEOUT, ST_UNAVAILABLE, .named = hangs},
             {"is missing", is_missing, 6.0, ST_TIMEOUT, ST_UNAVAILABLE, .ended = 2, .named = hangs,
              .by = "the ranks' communicator (ncclCommInitRankConfig) has not returned within"},
             {"fails", fail_last_rank, 60.0, ST_UNAVAILABLE, ST_BAD_INPUT},
             {"is stuck", is_stuck, 60.0, ST_UNAVAILABLE, ST_BAD_INPUT},
             {"fails in graphs", fail_in_graphs, 60.0, ST_UNAVAILABLE, ST_BAD_INPUT},
             {"aborts without end", abort_without_end, 60.0, ST_UNAVAILABLE, ST_BAD_INPUT, 1},
             {"sums repeat", sums_repeat, 60.0, ST_OK, ST_OK},
             {"is not closed", is_not_closed, 60.0, ST_OK, ST_OK},
             {"many calls", many_calls, 60.0, ST_OK, ST_OK}};

static status open_place(const world *job, place *spot)
{
    const int64_t size = job->place.size, replicas = size == MOST_RANKS ? 2 : 1;
    layout degrees = {replicas, size / replicas, 1, 1, 1, 1, 1, size, 1};
    void *values;
    spot->job = job;
    TRY(emulated_open(0, true, &spot->dev));
    TRY(world_attach(job, spot->dev));
    TRY(mesh_open(&degrees, job->place.rank, job->engine, job->joined, job->ledger, &spot->ranks));
    TRY(spot->dev->backend->stream_new(spot->dev, &spot->queue));
    TRY(spot->dev->backend->stream_new(spot->dev, &spot->other));
    TRY(spot->dev->backend->alloc(spot->dev, COUNT * sizeof(float), &values));
    spot->values = values;
    return ST_OK;
}

static void close_place(place *spot)
{
    spot->dev->backend->stream_free(&spot->queue);
    spot->dev->backend->stream_free(&spot->other);
    spot->dev->backend->release(spot->dev, spot->values);
    mesh_close(&spot->ranks);
    world_detach(spot->job);
    device_close(&spot->dev);
}

static status run_play(const struct play *play, const conf *options)
{
    world job;
    place spot = {0};
    TRY(world_open(options, &job));
    const bool missing = play->run == is_missing && job.place.rank == job.place.size - 1;
    spot.job = &job;
    status st = missing ? play->run(&spot) : open_place(&job, &spot);
    if (missing)
        return world_close(&job, st);
    if (st == ST_OK) {
        world_is_steady(&job, options);
        st = play->run(&spot);
        status_note why = *status_last();
        close_place(&spot);
        status_set(&why);
    }
    return world_close(&job, st);
}

static const struct play *find_play(const char *name)
{
    const struct play *play = plays;
    while (strcmp(play->name, name) != 0)
        play++;
    return play;
}

static int be_rank(const char *name)
{
    const struct play *play = find_play(name);
    char timeout[32];
    char *argv[] = {(char *)"rank", (char *)"--comm.engine",
                    (char *)"nccl", (char *)"--comm.train_timeout_seconds",
                    timeout,        (char *)"--comm.init_timeout_seconds",
                    timeout,        NULL};
    int argc = play->run == is_missing ? 7 : 5;
    conf options;
    snprintf(timeout, sizeof timeout, "%g", play->call_s);
    log_init(name, LOG_ERROR, false);
    status st = conf_load(&options, &argc, argv);
    if (st == ST_OK) {
        st = run_play(play, &options);
        conf_done(&options);
    }
    const int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
    const status expected = rank == size - 1 ? play->last : play->others;
    const bool hears = rank == size - 1 && play->named;
    if (st == expected && (!hears || (strstr(status_text(), play->named) &&
                                      (!play->by || strstr(status_text(), play->by)))))
        return 0;
    fprintf(stderr, "rank %d: wanted %s%s%s, got %s: %s\n", rank, status_name(expected),
            hears ? ": .." : "", hears ? play->named : "", status_name(st),
            st == ST_OK ? "" : status_text());
    return 1;
}

/* ---- the test ---- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* What the process of a rank must leave with. */
static int find_code(const char *name, int rank)
{
    const struct play *play = find_play(name);
    return rank < play->ended ? status_exit_code(ST_UNAVAILABLE) : 0;
}

/* Starts the ranks as processes with torchrun's variables, and waits for them. The stand-in for
 * NCCL is in a folder beside this program. */
static void fork_ranks(const char *name, int ranks)
{
    char self[STATUS_PATH_MAX], folder[STATUS_PATH_MAX + 16];
    pid_t pid[MOST_RANKS];
    assert_ok(proc_self_path(self, sizeof self));
    snprintf(folder, sizeof folder, "%.*s/nccl_shim", (int)(strrchr(self, '/') - self), self);
    setenv("LD_LIBRARY_PATH", folder, 1);
    unsetenv("NCCL_ALGO");
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", harness_port(NULL));
    set_number("WORLD_SIZE", ranks);
    set_number("LOCAL_WORLD_SIZE", ranks);
    for (int rank = 0; rank < ranks; rank++) {
        set_number("RANK", rank);
        set_number("LOCAL_RANK", rank);
        pid[rank] = fork();
        if (pid[rank] == 0) {
            execl(self, self, name, (char *)NULL);
            _exit(127);
        }
        assert_true(pid[rank] > 0);
    }
    for (int rank = 0; rank < ranks; rank++) {
        int how;
        assert_int_equal(waitpid(pid[rank], &how, 0), pid[rank]);
        const bool is_right = WIFEXITED(how) && WEXITSTATUS(how) == find_code(name, rank);
        if (!is_right)
            print_error("rank %d of \"%s\": %x\n", rank, name, how);
        pid[rank] = is_right ? 0 : -1;
    }
    for (int rank = 0; rank < ranks; rank++)
        assert_int_equal(pid[rank], 0);
}

static void test_patience__a_rank_that_waits_for_rows_is_waited_for(void **state)
{
    (void)state;
    fork_ranks("waits for rows", 2);
}

static void test_patience__a_rank_that_stays_away_is_not(void **state)
{
    (void)state;
    fork_ranks("stays away", 2); /* with more, another rank could end the job first */
}

static void test_open__a_missing_rank_is_named(void **state)
{
    (void)state;
    fork_ranks("is missing", 3);
}

static void test_end__a_rank_that_fails_ends_the_others_waits(void **state)
{
    (void)state;
    fork_ranks("fails", 3);
}

static void test_end__a_stuck_call_ends_before_its_communicator(void **state)
{
    (void)state;
    fork_ranks("is stuck", 2);
}

static void test_end__communicators_end_together(void **state)
{
    (void)state;
    fork_ranks("fails in graphs", MOST_RANKS);
}

static void test_end__an_abort_that_never_returns(void **state)
{
    (void)state;
    fork_ranks("aborts without end", MOST_RANKS);
}

static void test_end__a_communicator_that_does_not_close(void **state)
{
    (void)state;
    fork_ranks("is not closed", MOST_RANKS);
}

static void test_open__sums_repeat(void **state)
{
    (void)state;
    fork_ranks("sums repeat", 2);
}

static void test_calls__two_streams_and_host_values(void **state)
{
    (void)state;
    fork_ranks("many calls", 3);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_patience__a_rank_that_waits_for_rows_is_waited_for),
        cmocka_unit_test(test_patience__a_rank_that_stays_away_is_not),
        cmocka_unit_test(test_end__a_rank_that_fails_ends_the_others_waits),
        cmocka_unit_test(test_end__a_stuck_call_ends_before_its_communicator),
        cmocka_unit_test(test_end__communicators_end_together),
        cmocka_unit_test(test_end__an_abort_that_never_returns),
        cmocka_unit_test(test_end__a_communicator_that_does_not_close),
        cmocka_unit_test(test_open__a_missing_rank_is_named),
        cmocka_unit_test(test_open__sums_repeat),
        cmocka_unit_test(test_calls__two_streams_and_host_values),
    };
    if (argc > 1)
        return be_rank(argv[1]);
    return cmocka_run_group_tests_name("nccl_world", tests, NULL, NULL);
}
