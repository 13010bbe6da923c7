/* SPDX-License-Identifier: Apache-2.0 */
/* sim_jobs.c: processes that play every J-th schedule each. What they have played lies in memory
 * that they share with their parent, so nothing of it is lost when one of them dies, or when the
 * run is cut short. */
#include "tests/sim/common/sim_jobs.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/sim/common/sim_random.h"

enum { TELL_EVERY_S = 60 };

/* What a process tells its parent. */
typedef struct shared_job {
    sim_tally tally;
    uint64_t at;     /* which schedule it plays, counted from 0 */
    int64_t since_s; /* since when */
    bool done;
} shared_job;

typedef struct run {
    const sim_request *asked;
    const sim_program *program;
    int64_t began_s;
    shared_job *job;    /* [jobs] */
    uint64_t *counters; /* [jobs][n_counters] */
    pid_t *pid;         /* [jobs]; 0: it has ended */
    size_t bytes;       /* of what is shared */
} run;

static volatile sig_atomic_t cut_short;

static void note_signal(int number)
{
    cut_short = number;
}

static int64_t seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

static void must(bool held, const char *what)
{
    if (held)
        return;
    perror(what);
    exit(1);
}

static void tell_broken(const sim_request *asked, const sim_program *program, uint64_t seed,
                        const char *how)
{
    printf("broken: %s; its story: %s%s --schedules 1 --seed %" PRIu64 " --trace\n", how,
           asked->name, program->words ? program->words : "", seed);
    fflush(stdout);
}

void sim_play_one(const sim_request *asked, const sim_program *program, uint64_t seed,
                  sim_tally *tally)
{
    const sim_played played = program->play(seed, asked->trace ? stdout : NULL);
    tally->events += played.events;
    tally->hash += sim_random_mix(played.hash);
    tally->schedules++;
    if (!played.broken[0])
        return;
    tally->violations++;
    tell_broken(asked, program, seed, played.broken);
}

static bool goes_on(const run *all, uint64_t number)
{
    const sim_request *asked = all->asked;
    if (number >= asked->schedules ||
        (asked->hours > 0 && (double)(seconds() - all->began_s) >= asked->hours * 3600))
        return false;
    for (uint64_t i = 0; asked->stop && i < asked->jobs; i++)
        if (all->job[i].tally.violations > 0)
            return false;
    return true;
}

/* The life of a process: it plays from schedule `number` on. */
static void play_part(const run *all, uint64_t which, uint64_t number)
{
    shared_job *mine = &all->job[which];
    const size_t count = all->program->n_counters;
    for (; goes_on(all, number); number += all->asked->jobs) {
        mine->since_s = seconds();
        mine->at = number;
        sim_play_one(all->asked, all->program, all->asked->seed + number, &mine->tally);
        if (count)
            memcpy(all->counters + which * count, all->program->counters, count * sizeof(uint64_t));
    }
    mine->done = true;
}

static void start(run *all, uint64_t which, uint64_t number)
{
    fflush(NULL);
    all->job[which].since_s = seconds();
    all->pid[which] = fork();
    must(all->pid[which] >= 0, "fork");
    if (all->pid[which] > 0)
        return;
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* The counters go on where those of the process before it ended. */
    const size_t count = all->program->n_counters;
    if (count)
        memcpy(all->program->counters, all->counters + which * count, count * sizeof(uint64_t));
    play_part(all, which, number);
    fflush(stdout);
    _exit(0);
}

/* A process has ended: by itself, or in the middle of a schedule. */
static void has_ended(run *all, uint64_t which, int how)
{
    shared_job *job = &all->job[which];
    char words[80];
    all->pid[which] = 0;
    if (job->done || cut_short)
        return;
    if (WIFSIGNALED(how) && WTERMSIG(how) == SIGALRM)
        snprintf(words, sizeof words, "a schedule took more than %d s", SIM_LONGEST_S);
    else if (WIFSIGNALED(how))
        snprintf(words, sizeof words, "the process ended by signal %d", WTERMSIG(how));
    else
        snprintf(words, sizeof words, "the process ended with code %d", WEXITSTATUS(how));
    job->tally.schedules++;
    job->tally.violations++;
    tell_broken(all->asked, all->program, all->asked->seed + job->at, words);
    if (goes_on(all, job->at + all->asked->jobs))
        start(all, which, job->at + all->asked->jobs);
}

static sim_tally add_up(const run *all)
{
    sim_tally sum = {0};
    for (uint64_t i = 0; i < all->asked->jobs; i++) {
        const sim_tally *one = &all->job[i].tally;
        sum.schedules += one->schedules;
        sum.events += one->events;
        sum.violations += one->violations;
        sum.hash += one->hash;
    }
    return sum;
}

static void tell_progress(const run *all)
{
    const sim_tally sum = add_up(all);
    const int64_t passed_s = seconds() - all->began_s;
    fprintf(stderr,
            "after %" PRId64 " s: %" PRIu64 " schedules, %" PRIu64 " events, %" PRIu64
            " violations; %" PRIu64 " events a second\n",
            passed_s, sum.schedules, sum.events, sum.violations,
            passed_s > 0 ? sum.events / (uint64_t)passed_s : 0);
}

/* Ends what hangs, and everything if the run is cut short. */
static bool look_after(const run *all)
{
    bool any = false;
    for (uint64_t i = 0; i < all->asked->jobs; i++) {
        any |= all->pid[i] > 0;
        if (all->pid[i] > 0 && cut_short)
            kill(all->pid[i], SIGKILL);
        else if (all->pid[i] > 0 && seconds() - all->job[i].since_s > SIM_LONGEST_S)
            kill(all->pid[i], SIGALRM);
    }
    return any;
}

static void wait_for_all(run *all)
{
    int64_t told_s = all->began_s;
    int how;
    while (look_after(all)) {
        pid_t ended = waitpid(-1, &how, WNOHANG);
        for (uint64_t i = 0; ended > 0 && i < all->asked->jobs; i++)
            if (all->pid[i] == ended)
                has_ended(all, i, how);
        if (ended > 0)
            continue;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        if (seconds() - told_s < TELL_EVERY_S)
            continue;
        told_s = seconds();
        tell_progress(all);
    }
}

sim_tally sim_jobs_play(const sim_request *asked, const sim_program *program)
{
    const size_t count = program->n_counters;
    run all = {.asked = asked, .program = program, .began_s = seconds()};
    all.bytes = asked->jobs * (sizeof *all.job + count * sizeof(uint64_t));
    void *memory = mmap(NULL, all.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED, "mmap");
    all.job = memory;
    all.counters = (uint64_t *)(all.job + asked->jobs);
    all.pid = calloc(asked->jobs, sizeof *all.pid);
    must(all.pid != NULL, "calloc");
    signal(SIGINT, note_signal);
    signal(SIGTERM, note_signal);
    for (uint64_t i = 0; i < asked->jobs; i++)
        start(&all, i, i);
    wait_for_all(&all);
    if (cut_short)
        fprintf(stderr, "cut short by signal %d\n", (int)cut_short);
    const sim_tally sum = add_up(&all);
    for (uint64_t i = 0; i < asked->jobs; i++)
        for (size_t k = 0; k < count; k++)
            program->counters[k] += all.counters[i * count + k];
    free(all.pid);
    munmap(memory, all.bytes);
    return sum;
}
