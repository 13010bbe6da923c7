/* SPDX-License-Identifier: Apache-2.0 */
/* world.c: implements world.h. The table `starters` has a line for each way in which ranks are
 * started. */
#include "trainer/parallel/world.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/program/bar.h"
#include "common/program/log.h"
#include "common/base/proc.h"
#include "trainer/parallel/comm/comm_module.h"

/* A way of starting ranks, known by the environment variables it sets. A process was started in
 * this way if `mark` is set. */
typedef struct starter {
    const char *name, *mark;
    const char *rank, *size, *local_rank, *local_size;
    const char *other_size; /* read if `size` is not set */
} starter;

/* A launcher that may run inside another comes first: torchrun inside srun, mpirun in a Slurm job.
 * Slurm's mark is SLURM_STEP_ID, which a batch script does not have, since it is not a rank. */
static const starter starters[] = {
    {"torchrun's variables", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
    {"mpirun's variables", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"Slurm's variables", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
     NULL, "SLURM_NTASKS"},
    {"PMI's variables", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     NULL},
};
_Static_assert((int)COMM_ID_BYTES == (int)CONTROL_ID_BYTES, "WELCOME carries the engine's id");
enum { N_STARTERS = sizeof starters / sizeof *starters, RANKS_MAX = 1 << 20 };

static status read_variable(const starter *start, const char *variable, int least, int *out)
{
    const char *text = getenv(variable);
    if (!text || !*text)
        return FAIL(ST_CONFIG, "%s: %s is set but %s is not", start->name, start->mark, variable);
    char *end;
    errno = 0;
    long count = strtol(text, &end, 10);
    if (*end || errno || count < least || count > RANKS_MAX)
        return FAIL(ST_CONFIG, "%s: %s is \"%s\", which is not a whole number of at least %d",
                    start->name, variable, text, least);
    *out = (int)count;
    return ST_OK;
}

/* Reads a variable that may be missing; *out is then `otherwise`. */
static status number_if(const starter *start, const char *variable, int least, int otherwise,
                        int *out)
{
    *out = otherwise;
    if (!variable || !getenv(variable))
        return ST_OK;
    return read_variable(start, variable, least, out);
}

/* The first number of Slurm's "4", "4(x2)" or "4(x2),3"; without it, as many ranks as there must be
 * for this one to be among them. */
static int ranks_per_node(int local_rank)
{
    const char *text = getenv("SLURM_STEP_TASKS_PER_NODE");
    long count = text ? strtol(text, NULL, 10) : 0;
    return count > local_rank && count <= RANKS_MAX ? (int)count : local_rank + 1;
}

static status place_by(const starter *start, world_place *out)
{
    world_place place = {.source = start->name};
    const char *size = start->other_size && !getenv(start->size) ? start->other_size : start->size;
    TRY(read_variable(start, start->rank, 0, &place.rank));
    TRY(read_variable(start, size, 1, &place.size));
    TRY(number_if(start, start->local_rank, 0, place.rank, &place.local_rank));
    TRY(number_if(start, start->local_size, 1, ranks_per_node(place.local_rank),
                  &place.local_size));
    if (place.rank >= place.size)
        return FAIL(ST_CONFIG, "%s: %s is %d, but %s is %d", start->name, start->rank, place.rank,
                    size, place.size);
    *out = place;
    return ST_OK;
}

status world_place_find(world_place *out)
{
    for (int i = 0; i < N_STARTERS; i++)
        if (getenv(starters[i].mark))
            return place_by(&starters[i], out);
    *out = (world_place){.size = 1, .local_size = 1, .source = "no launcher's variables"};
    return ST_OK;
}

int world_gpu(const world_place *place)
{
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    bool bound = getenv("SLURM_STEP_ID") && seen && *seen && !strchr(seen, ',');
    return bound ? 0 : place->local_rank;
}

static status open_engine(const conf *settings, const comm_engine **out)
{
    comm_module_entry entry;
    if (settings->comm_engine == ENGINE_NCCL)
        TRY(module_open("libtessera_nccl.so", "tessera_nccl_engine", "NCCL engine",
                        "where nvcc and nccl.h are found", (void **)&entry));
    else
        TRY(module_open("libtessera_mpi.so", "tessera_mpi_engine", "MPI engine",
                        "where libopenmpi-dev is found", (void **)&entry));
    *out = entry(module_program());
    return ST_OK;
}

/* Only rank 0 prints results; the others would print the same again. */
static status print_nothing(void)
{
    if (!freopen("/dev/null", "we", stdout))
        return FAIL_IN(ST_OS, "/dev/null", "cannot be opened: %s", strerror(errno));
    bar_set_rule(BAR_NEVER);
    return ST_OK;
}

static status options_text(const conf *settings, char **out)
{
    size_t size;
    FILE *file = open_memstream(out, &size);
    if (!file)
        return FAIL(ST_NO_MEMORY, "no memory for the options as text");
    conf_print(settings, file);
    fclose(file);
    return ST_OK;
}

static status meet_others(const conf *settings, void *id, world *job)
{
    char *options = NULL;
    rank_link_options how = {.rank = job->place.rank,
                             .size = job->place.size,
                             .timeout_s = settings->comm_init_timeout_seconds,
                             .silence_s = settings->comm_heartbeat_timeout_seconds,
                             .ledger = job->ledger,
                             .one_machine = job->place.local_size == job->place.size};
    TRY(rank_link_find(how.one_machine, &how.at));
    TRY(options_text(settings, &options));
    how.options = options;
    if (job->place.rank == 0)
        log_info("%d ranks, by %s; rank 0 listens at %s port %d", job->place.size,
                 job->place.source, how.at.host, how.at.port);
    status st = rank_link_open(&how, id, &job->rank_link);
    free(options);
    return st;
}

static status check_control(void *of)
{
    return rank_link_check(of);
}

static bool a_rank_waits(void *of)
{
    return rank_link_is_waiting(of) || rank_link_others_wait(of);
}

static void say_held(void *of, bool held)
{
    rank_link_held(of, held);
}

static void say_late(void *of, const char *why)
{
    rank_link_late(of, why);
}

static status open_ranks(const conf *settings, world *all)
{
    uint8_t id[COMM_ID_BYTES] = {0};
    TRY(comm_ledger_new(&all->ledger));
    TRY(open_engine(settings, &all->engine));
    if (all->place.rank == 0 && all->engine->make_id)
        TRY(all->engine->make_id(id));
    TRY(meet_others(settings, id, all));
    all->job = hash_bytes(id, sizeof id);
    comm_join join = {.rank = all->place.rank,
                      .size = all->place.size,
                      .deterministic = settings->training_deterministic,
                      .timeout_s = settings->comm_init_timeout_seconds,
                      .id = id,
                      .check = check_control,
                      .patient = a_rank_waits,
                      .held = say_held,
                      .late = say_late,
                      .context = all->rank_link};
    return all->engine->join(&join, &all->joined);
}

status world_open(const conf *settings, world *out)
{
    world all = {0};
    char role[32];
    TRY(world_place_find(&all.place));
    if (all.place.size > 1) {
        snprintf(role, sizeof role, "trainer[%d]", all.place.rank);
        log_init(role, settings->log_level, settings->log_json);
        if (all.place.rank > 0)
            TRY(print_nothing());
        status st = open_ranks(settings, &all);
        if (st != ST_OK)
            return world_close(&all, st);
    }
    *out = all;
    return ST_OK;
}

status world_attach(const world *job, device *opened)
{
    return job && job->joined && job->engine->attach ? job->engine->attach(job->joined, opened)
                                                     : ST_OK;
}

void world_detach(const world *job)
{
    if (job && job->joined && job->engine->detach)
        job->engine->detach(job->joined);
}

void world_fit(const world *job, conf *settings)
{
    if (job->place.size == 1)
        return;
    if (settings->parallelism_world_size ==
        0) /* so that data_parallel_shard_degree -1 takes all ranks */
        settings->parallelism_world_size = job->place.size;
    if (strcmp(job->engine->name, "mpi") == 0 && strcmp(settings->cuda_graph_scope, "off") != 0) {
        if (settings->training_backend != BACKEND_CPU)
            log_info("cuda_graph.scope is set to off: collectives of MPI cannot be captured");
        settings->cuda_graph_scope = "off";
    }
    if (settings->training_threads == 0)
        settings->training_threads = proc_cpus_each(job->place.local_size);
}

enum { LOG_BYTES = 64 << 20 /* at which the log of a rank is renamed */ };

status world_log(const world *job, const conf *settings)
{
    char folder[STATUS_PATH_MAX], path[STATUS_PATH_MAX + 32];
    if (job->place.size == 1)
        return ST_OK;
    snprintf(folder, sizeof folder, "%s/log", settings->job_dump_folder);
    TRY(file_make_folders(folder));
    snprintf(path, sizeof path, "%s/rank-%d.log", folder, job->place.rank);
    return log_keep(path, LOG_BYTES, job->place.rank == 0 ? settings->log_level : LOG_WARN);
}

void world_is_steady(const world *job, const conf *settings)
{
    if (!job || !job->joined)
        return;
    job->engine->set_timeout(job->joined, settings->comm_train_timeout_seconds);
    rank_link_set_timeout(job->rank_link, settings->comm_train_timeout_seconds);
}

status world_close(world *job, status how)
{
    status_note note = *status_last();
    if (job->joined)
        job->engine->leave(job->joined, how == ST_OK);
    if (how != ST_OK)
        status_set(&note);
    status st = rank_link_close(&job->rank_link, how == ST_OK ? NULL : status_text());
    comm_ledger_free(&job->ledger);
    memset(job, 0, sizeof *job);
    if (how == ST_OK)
        return st;
    status_set(&note);
    return how;
}
