/* SPDX-License-Identifier: Apache-2.0 */
/* ranks_loop.c: a program that runs collectives and nothing else, step after step, until it is
 * ended or has done `steps` of them; on the CPU, or with comm.engine nccl on the emulated device.
 * Tests of what happens when a rank is lost use it. Every rank writes its process id to
 * FOLDER/pid.RANK, and rank 0 the last step done to FOLDER/step. SIGUSR1 closes the rank's TCP
 * connections, which cuts its link; SIGUSR2 makes it fail with its own error.
 *
 *   ranks_loop FOLDER STEPS [--section.key VALUE ..] */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/program/log.h"
#include "tests/emulated/emulated.h"
#include "trainer/ops/open.h"
#include "trainer/parallel/mesh.h"
#include "trainer/parallel/world.h"

enum { VALUES = 10000, LAYERS = 4, FDS = 256 };

static volatile sig_atomic_t cut, fails, hangs;

static void on_signal(int number)
{
    if (number == SIGUSR1)
        cut = 1;
    else if (number == SIGHUP)
        hangs = 1;
    else
        fails = 1;
}

/* Shuts down every TCP connection of this process. */
static void cut_links(void)
{
    for (int fd = 3; fd < FDS; fd++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        if (getsockname(fd, (struct sockaddr *)&address, &size) == 0 &&
            address.ss_family == AF_INET)
            shutdown(fd, SHUT_RDWR);
    }
    cut = 0;
}

static status write_number(const char *folder, const char *name, int rank, int64_t number)
{
    char path[STATUS_PATH_MAX];
    if (rank >= 0)
        snprintf(path, sizeof path, "%s/%s.%d", folder, name, rank);
    else
        snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    if (!file)
        return FAIL_IN(ST_IO, path, "cannot be written");
    fprintf(file, "%lld\n", (long long)number);
    fclose(file);
    return ST_OK;
}

static status one_step(const world *job, const mesh *ranks, stream *queue, float *values,
                       int64_t step)
{
    uint64_t sample[3] = {(uint64_t)step * 100 + (uint64_t)job->place.rank, 7, 8};
    rank_link_at_step(job->rank_link, step, sample, 3);
    const comm *group = mesh_comm(ranks, MESH_WORLD);
    for (int layer = 0; layer < LAYERS; layer++)
        TRY(comm_all_reduce(group, queue, (comm_at){"sum of nothing", layer}, values, VALUES,
                            DT_F32, COMM_SUM));
    TRY(queue->dev->backend->wait(queue));
    if (cut)
        cut_links();
    while (hangs)
        pause();
    return fails ? FAIL(ST_BAD_INPUT, "told to fail") : ST_OK;
}

static status loop_steps(const world *job, const char *folder, int64_t steps, const conf *options)
{
    device_options how = {.threads = 1};
    device *dev = NULL;
    stream *queue = NULL;
    mesh ranks;
    layout degrees = {1, job->place.size, 1, 1, 1, 1, 1, job->place.size, 1};
    float *values = calloc(VALUES, sizeof *values);
    TRY(options->comm_engine == ENGINE_NCCL ? emulated_open(0, false, &dev)
                                            : device_open(BACKEND_CPU, &how, &dev));
    TRY(world_attach(job, dev));
    TRY(mesh_open(&degrees, job->place.rank, job->engine, job->joined, job->ledger, &ranks));
    TRY(dev->backend->stream_new(dev, &queue));
    TRY(write_number(folder, "pid", job->place.rank, getpid()));
    status st = ST_OK;
    for (int64_t step = 1; st == ST_OK && step <= steps; step++) {
        st = one_step(job, &ranks, queue, values, step);
        if (step == 1)
            world_is_steady(job, options);
        if (st == ST_OK && job->place.rank == 0)
            st = write_number(folder, "step", -1, step);
    }
    dev->backend->stream_free(&queue);
    mesh_close(&ranks);
    world_detach(job);
    device_close(&dev);
    free(values);
    return st;
}

int main(int argc, char **argv)
{
    conf options;
    world job = {0};
    status st = conf_load(&options, &argc, argv);
    if (st == ST_OK && argc != 3)
        st = FAIL(ST_USAGE, "ranks_loop FOLDER STEPS [--section.key VALUE ..]");
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    signal(SIGHUP, on_signal);
    if (st == ST_OK)
        st = world_open(&options, &job);
    if (st == ST_OK) {
        st = loop_steps(&job, argv[1], strtoll(argv[2], NULL, 10), &options);
        st = world_close(&job, st);
    }
    if (st != ST_OK)
        log_status();
    else if (job.place.rank == 0)
        printf("done\n");
    conf_done(&options);
    return status_exit_code(st);
}
