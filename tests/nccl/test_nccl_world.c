/* test_nccl_world.c: the watcher thread of the NCCL engine (trainer/parallel/nccl_world.c): which
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
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/world.h"

enum { COUNT = 3000, ROUNDS = 20, MOST_RANKS = 4 };
/* How long a rank waits for rows: more than twice the time that a call may take in that case. */
static const int64_t ROWS_NS = INT64_C(12000) * 1000 * 1000;
static const int64_t PATIENCE_NS = INT64_C(60) * 1000 * 1000 * 1000; /* then the test gives up */

/* ---- a rank ---- */

typedef struct place {
    const world *w;
    device *d;
    mesh m;
    stream *s, *other;
    float *values; /* [COUNT] */
} place;

static void sleep_ns(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

static status sum_world(const place *p, stream *s)
{
    return comm_all_reduce(mesh_comm(&p->m, MESH_WORLD), s, (comm_at){"sum", -1}, p->values, COUNT,
                           DT_F32, COMM_SUM);
}

static status wait_streams(const place *p)
{
    TRY(p->d->backend->wait(p->s));
    return p->d->backend->wait(p->other);
}

/* Waits until another rank has said that it waits for rows. */
static status hear_waiting(const place *p)
{
    const int64_t start = clock_ns();
    while (!rank_link_others_wait(p->w->rank_link)) {
        if (clock_ns() - start > PATIENCE_NS)
            return FAIL(ST_TIMEOUT, "no rank says that it waits for rows");
        sleep_ns(1000000);
    }
    return ST_OK;
}

/* The last rank makes its call and then waits for rows, longer than any call may take. The others
 * wait for it. */
static status waits_for_rows(const place *p)
{
    TRY(sum_world(p, p->s));
    if (p->w->place.rank == p->w->place.size - 1) {
        rank_link_waits(p->w->rank_link, "rows");
        sleep_ns(ROWS_NS);
        rank_link_waits(p->w->rank_link, NULL);
    } else {
        TRY(hear_waiting(p));
    }
    TRY(wait_streams(p));
    TRY(sum_world(p, p->s));
    return wait_streams(p);
}

/* Waits until this rank is told that the job is over. */
static status wait_for_end(const place *p)
{
    const int64_t start = clock_ns();
    status st = ST_OK;
    while (st == ST_OK && clock_ns() - start < PATIENCE_NS) {
        sleep_ns(1000000);
        st = rank_link_check(p->w->rank_link);
    }
    return st;
}

/* The last rank does not make its call and says nothing. */
static status stays_away(const place *p)
{
    const bool away = p->w->place.rank == p->w->place.size - 1;
    if (away)
        return wait_for_end(p);
    TRY(sum_world(p, p->s));
    return wait_streams(p);
}

/* The last rank fails while the others wait for it. */
static status fail_last_rank(const place *p)
{
    if (p->w->place.rank == p->w->place.size - 1) {
        sleep_ns(INT64_C(300) * 1000 * 1000);
        return FAIL(ST_BAD_INPUT, "told to fail");
    }
    TRY(sum_world(p, p->s));
    return wait_streams(p);
}

/* As above, and one of the other ranks does not return from its call. */
static status is_stuck(const place *p)
{
    if (p->w->place.rank == 0)
        setenv("TESSERA_NCCL_STUCK", "1", 1);
    return fail_last_rank(p);
}

/* Sums are reproducible only if the NVLink switch makes none of them, neither within a machine nor
 * between machines. */
static status sums_repeat(const place *p)
{
    const char *algorithms = getenv("NCCL_ALGO");
    if (!algorithms || strcmp(algorithms, "^NVLS,NVLSTree") != 0)
        return FAIL(ST_INTERNAL, "NCCL_ALGO is %s", algorithms ? algorithms : "not set");
    return wait_streams(p);
}

/* The communicator of all ranks, from which the others were split, does not close; that must only
 * give a warning. */
static status is_not_closed(const place *p)
{
    if (!p->m.group[MESH_REPLICATE].handle ||
        p->m.group[MESH_REPLICATE].handle == mesh_comm(&p->m, MESH_WORLD)->handle)
        return FAIL(ST_INTERNAL, "nothing was split");
    setenv("TESSERA_NCCL_UNCLOSED", "1", 1);
    TRY(sum_world(p, p->s));
    return wait_streams(p);
}

/* Calls on two streams in turn, with host values between them. */
static status many_calls(const place *p)
{
    const comm *c = mesh_comm(&p->m, MESH_WORLD);
    for (int i = 0; i < ROUNDS; i++) {
        int all[MOST_RANKS];
        TRY(sum_world(p, i % 2 ? p->s : p->other));
        TRY(wait_streams(p));
        TRY(comm_host_all_gather(c, (comm_at){"ranks", -1}, &c->rank, all, sizeof c->rank));
        for (int r = 0; r < c->size; r++)
            if (all[r] != r)
                return FAIL(ST_INTERNAL, "rank %d says that it is %d", r, all[r]);
    }
    return ST_OK;
}

static const struct play {
    const char *name;
    status (*run)(const place *p);
    double call_s;       /* how long a call may take */
    status others, last; /* how the other ranks must end, and how the last */
} plays[] = {{"waits for rows", waits_for_rows, 5.0, ST_OK, ST_OK},
             {"stays away", stays_away, 3.0, ST_TIMEOUT, ST_UNAVAILABLE},
             {"fails", fail_last_rank, 60.0, ST_UNAVAILABLE, ST_BAD_INPUT},
             {"is stuck", is_stuck, 60.0, ST_UNAVAILABLE, ST_BAD_INPUT},
             {"sums repeat", sums_repeat, 60.0, ST_OK, ST_OK},
             {"is not closed", is_not_closed, 60.0, ST_OK, ST_OK},
             {"many calls", many_calls, 60.0, ST_OK, ST_OK}};

static status open_place(const world *w, place *p)
{
    const int64_t size = w->place.size, replicas = size == MOST_RANKS ? 2 : 1;
    layout l = {replicas, size / replicas, 1, 1, 1, 1, 1, size, 1};
    void *values;
    p->w = w;
    TRY(emulated_open(0, false, &p->d));
    TRY(world_attach(w, p->d));
    TRY(mesh_open(&l, w->place.rank, w->engine, w->joined, w->ledger, &p->m));
    TRY(p->d->backend->stream_new(p->d, &p->s));
    TRY(p->d->backend->stream_new(p->d, &p->other));
    TRY(p->d->backend->alloc(p->d, COUNT * sizeof(float), &values));
    p->values = values;
    return ST_OK;
}

static void close_place(place *p)
{
    p->d->backend->stream_free(&p->s);
    p->d->backend->stream_free(&p->other);
    p->d->backend->release(p->d, p->values);
    mesh_close(&p->m);
    world_detach(p->w);
    device_close(&p->d);
}

static status run_play(const struct play *play, const conf *c)
{
    world w;
    place p = {0};
    TRY(world_open(c, &w));
    status st = open_place(&w, &p);
    if (st == ST_OK) {
        world_is_steady(&w, c);
        st = play->run(&p);
        status_note why = *status_last();
        close_place(&p);
        status_set(&why);
    }
    return world_close(&w, st);
}

static int be_rank(const char *name)
{
    const struct play *play = plays;
    char timeout[32];
    char *argv[] = {(char *)"rank", (char *)"--comm.engine",
                    (char *)"nccl", (char *)"--comm.train_timeout_seconds",
                    timeout,        NULL};
    int argc = 5;
    conf c;
    while (strcmp(play->name, name) != 0)
        play++;
    snprintf(timeout, sizeof timeout, "%g", play->call_s);
    log_init(name, LOG_ERROR, false);
    status st = conf_load(&c, &argc, argv);
    if (st == ST_OK) {
        st = run_play(play, &c);
        conf_done(&c);
    }
    const int rank = atoi(getenv("RANK")), size = atoi(getenv("WORLD_SIZE"));
    const status expected = rank == size - 1 ? play->last : play->others;
    if (st == expected)
        return 0;
    fprintf(stderr, "rank %d: wanted %s, got %s: %s\n", rank, status_name(expected),
            status_name(st), st == ST_OK ? "" : status_text());
    return 1;
}

/* ---- the test ---- */

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
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
    for (int r = 0; r < ranks; r++) {
        set_number("RANK", r);
        set_number("LOCAL_RANK", r);
        pid[r] = fork();
        if (pid[r] == 0) {
            execl(self, self, name, (char *)NULL);
            _exit(127);
        }
        assert_true(pid[r] > 0);
    }
    for (int r = 0; r < ranks; r++) {
        int how;
        assert_int_equal(waitpid(pid[r], &how, 0), pid[r]);
        if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
            print_error("rank %d of \"%s\": %x\n", r, name, how);
        pid[r] = WIFEXITED(how) && WEXITSTATUS(how) == 0 ? 0 : -1;
    }
    for (int r = 0; r < ranks; r++)
        assert_int_equal(pid[r], 0);
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
        cmocka_unit_test(test_end__a_communicator_that_does_not_close),
        cmocka_unit_test(test_open__sums_repeat),
        cmocka_unit_test(test_calls__two_streams_and_host_values),
    };
    if (argc > 1)
        return be_rank(argv[1]);
    return cmocka_run_group_tests_name("nccl_world", tests, NULL, NULL);
}
