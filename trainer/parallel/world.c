#include "trainer/parallel/world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "trainer/parallel/comm_module.h"

/* A way of starting ranks, by the variables it leaves. `mark` is there in a process it started. */
typedef struct starter {
    const char *name, *mark;
    const char *rank, *size, *local_rank, *local_size;
    const char *other_size; /* where size is not set */
} starter;

/* Those that run inside another come first: mpirun in a Slurm job, torchrun below srun. A Slurm
 * batch script is no rank of a step: SLURM_STEP_ID tells them apart. */
static const starter starters[] = {
    {"torchrun's variables", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
    {"mpirun's variables", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"Slurm's variables", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
     NULL, "SLURM_NTASKS"},
    {"PMI's variables", "PMI_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
     NULL},
};
enum { N_STARTERS = sizeof starters / sizeof *starters, RANKS_MAX = 1 << 20 };

static status number(const starter *s, const char *variable, int least, int *out)
{
    const char *text = getenv(variable);
    if (!text || !*text)
        return FAIL(ST_CONFIG, "%s: %s is set and %s is not", s->name, s->mark, variable);
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (*end || errno || n < least || n > RANKS_MAX)
        return FAIL(ST_CONFIG, "%s: %s is \"%s\", not a number from %d on", s->name, variable, text,
                    least);
    *out = (int)n;
    return ST_OK;
}

/* A variable that not all of its kind set. */
static status number_if(const starter *s, const char *variable, int least, int otherwise, int *out)
{
    *out = otherwise;
    if (!variable || !getenv(variable))
        return ST_OK;
    return number(s, variable, least, out);
}

static status place_by(const starter *s, world_place *out)
{
    world_place p = {.source = s->name};
    const char *size = s->other_size && !getenv(s->size) ? s->other_size : s->size;
    TRY(number(s, s->rank, 0, &p.rank));
    TRY(number(s, size, 1, &p.size));
    TRY(number_if(s, s->local_rank, 0, p.rank, &p.local_rank));
    TRY(number_if(s, s->local_size, 1, p.local_rank + 1, &p.local_size));
    if (p.rank >= p.size)
        return FAIL(ST_CONFIG, "%s: %s is %d of %s %d", s->name, s->rank, p.rank, size, p.size);
    *out = p;
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

static status open_engine(const conf *c, const comm_engine **out)
{
    comm_module_entry entry;
    if (c->comm_engine == ENGINE_NCCL)
        return FAIL(ST_CONFIG, "comm.engine nccl is not there yet; mpi is");
    TRY(module_open("libtessera_mpi.so", "tessera_mpi_engine", "MPI engine",
                    "where libopenmpi-dev is found", (void **)&entry));
    *out = entry(module_program());
    return ST_OK;
}

/* Answers are rank 0's; what others print would be the same again. */
static status print_nothing(void)
{
    if (!freopen("/dev/null", "we", stdout))
        return FAIL_IN(ST_OS, "/dev/null", "can not be opened: %s", strerror(errno));
    return ST_OK;
}

status world_open(const conf *c, world *out)
{
    world w = {0};
    char role[32];
    TRY(world_place_find(&w.place));
    if (w.place.size == 1) {
        *out = w;
        return ST_OK;
    }
    snprintf(role, sizeof role, "trainer[%d]", w.place.rank);
    log_init(role, c->log_level, c->log_json);
    if (w.place.rank > 0)
        TRY(print_nothing());
    else
        log_info("%d ranks, by %s", w.place.size, w.place.source);
    TRY(open_engine(c, &w.engine));
    comm_join join = {w.place.rank, w.place.size, c->comm_init_timeout};
    TRY(comm_ledger_new(&w.ledger));
    status st = w.engine->join(&join, &w.joined);
    if (st != ST_OK)
        comm_ledger_free(&w.ledger);
    else
        *out = w;
    return st;
}

void world_close(world *w)
{
    if (w->joined)
        w->engine->leave(w->joined);
    comm_ledger_free(&w->ledger);
    memset(w, 0, sizeof *w);
}
