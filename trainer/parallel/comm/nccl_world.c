/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_world.c: opens and closes the communicators of this process (nccl_world.h). The calls, and
 * the thread that watches them, are in nccl_watch.c.
 *
 * Communicators block, as they do by default: NCCL starts a thread for every group of calls of one
 * that does not. */
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "trainer/parallel/comm/nccl.h"
#include "trainer/parallel/comm/nccl_world.h"

/* ---- groups ---- */

static void free_group(nccl_group *group)
{
    if (group)
        free(group->world_rank);
    free(group);
}

static nccl_group *new_group(nccl_world *world, const int *world_rank, int size)
{
    nccl_group *group = calloc(1, sizeof *group);
    if (group)
        group->world_rank = malloc((size_t)size * sizeof *group->world_rank);
    if (!group || !group->world_rank) {
        free_group(group);
        return NULL;
    }
    group->world = world;
    group->size = size;
    for (int i = 0; i < size; i++)
        group->world_rank[i] = world_rank ? world_rank[i] : i;
    return group;
}

/* Adds a group at the end of the list. It has no communicator yet. */
static status add_group(nccl_world *world, const int *world_rank, int size, nccl_group **out)
{
    nccl_group **last = &world->groups;
    if (world->n_groups == NCCL_GROUPS_MAX)
        return FAIL(ST_INTERNAL, "more than %d groups of ranks", NCCL_GROUPS_MAX);
    nccl_group *group = new_group(world, world_rank, size);
    if (!group)
        return FAIL(ST_NO_MEMORY, "no memory for a group of %d ranks", size);
    pthread_mutex_lock(&world->listing);
    while (*last)
        last = &(*last)->next;
    *last = group;
    world->n_groups++;
    pthread_mutex_unlock(&world->listing);
    *out = group;
    return ST_OK;
}

/* Sets a group's communicator, which NCCL has just made, or NULL once it is closed. */
static void set_comm(nccl_group *group, ncclComm_t made)
{
    pthread_mutex_lock(&group->world->listing);
    group->comm = made;
    pthread_mutex_unlock(&group->world->listing);
}

static status join_all(nccl_world *world)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    nccl_group *group;
    ncclComm_t made = NULL;
    config.blocking = 1;
    config.commName = "world";
    TRY(add_group(world, NULL, world->size, &group));
    TRY(nccl_enter(world, "the ranks' communicator (ncclCommInitRankConfig)"));
    ncclResult_t result =
        nccl_api()->CommInitRankConfig(&made, world->size, world->id, world->rank, &config);
    set_comm(group, made);
    return nccl_leave(group, result);
}

static nccl_group *find_group(const nccl_world *world, const int *world_rank, int size)
{
    for (nccl_group *group = world->groups; group; group = group->next)
        if (group->size == size &&
            memcmp(group->world_rank, world_rank, (size_t)size * sizeof(int)) == 0)
            return group;
    return NULL;
}

/* All ranks split the world's communicator at the same time, each into its own group of the same
 * size. The groups of a mesh are arithmetic series over the ranks, all with the same step and
 * length, so if one rank finds that it has the group already, all do. */
status nccl_world_group(nccl_world *world, const int *world_rank, int size, nccl_group **out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t made = NULL;
    int place = 0;
    *out = find_group(world, world_rank, size);
    if (*out)
        return ST_OK;
    config.blocking = 1;
    while (world_rank[place] != world->rank)
        place++;
    TRY(add_group(world, world_rank, size, out));
    TRY(nccl_enter(world, "a group's communicator (ncclCommSplit)"));
    ncclResult_t result =
        nccl_api()->CommSplit(world->groups->comm, world_rank[0], place, &made, &config);
    set_comm(*out, made);
    return nccl_leave(world->groups, result);
}

/* Closes the last group first: communicators that were split off go before their parent. */
static void close_groups(nccl_group *group)
{
    if (!group)
        return;
    close_groups(group->next);
    const ncclComm_t closing = group->comm;
    if (!closing || nccl_enter(group->world, "closing a communicator") != ST_OK)
        return;
    const ncclResult_t result = nccl_api()->CommFinalize(closing);
    if (result == ncclSuccess) /* in this turn, since in its own the watcher asks all listed ones */
        set_comm(group, NULL);
    if (nccl_leave(group, result) == ST_OK) {
        nccl_api()->CommDestroy(closing);
        return;
    }
    log_warn("%s", status_text());
    set_comm(group, closing); /* all that are listed are aborted */
}

static void free_groups(nccl_world *world)
{
    while (world->groups) {
        nccl_group *group = world->groups;
        world->groups = group->next;
        free_group(group);
    }
}

/* ---- the stage ---- */

static void set_watch(nccl_world *world, peer_watch *watch)
{
    pthread_mutex_lock(&world->listing);
    world->watch = watch;
    pthread_mutex_unlock(&world->listing);
    nccl_watch_allow(world);
}

static status open_stage(nccl_world *world)
{
    const backend_vtable *backend = world->device->backend;
    void *device_memory = NULL, *host = NULL, *watch = NULL;
    TRY(device_urgent_stream(world->device, &world->stage.stream));
    TRY(backend->alloc(world->device, COMM_STAGE_BYTES, &device_memory));
    world->stage.device = device_memory;
    TRY(backend->alloc_host(world->device, COMM_STAGE_BYTES, &host));
    world->stage.host = host;
    TRY(backend->alloc_host(world->device, sizeof *world->stage.watch, &watch));
    world->stage.watch = watch;
    set_watch(world, watch);
    return ST_OK;
}

static void close_stage(nccl_world *world)
{
    const backend_vtable *backend = world->device->backend;
    nccl_stage *stage = &world->stage;
    set_watch(world, NULL);
    if (stage->stream)
        backend->stream_free(&stage->stream);
    if (stage->device)
        backend->release(world->device, stage->device);
    if (stage->host)
        backend->release_host(world->device, stage->host);
    if (stage->watch)
        backend->release_host(world->device, stage->watch);
    *stage = (nccl_stage){0};
}

const nccl_stage *nccl_world_stage(const nccl_world *world)
{
    return &world->stage;
}

/* ---- the world ---- */

status nccl_world_new(const comm_join *options, nccl_world **out)
{
    TRY(nccl_open());
    nccl_world *world = calloc(1, sizeof *world);
    if (!world)
        return FAIL(ST_NO_MEMORY, "no memory for the NCCL engine");
    world->rank = options->rank;
    world->size = options->size;
    world->check = options->check;
    world->patient = options->patient;
    world->held = options->held;
    world->late = options->late;
    world->context = options->context;
    memcpy(&world->id, options->id, sizeof world->id);
    pthread_mutex_init(&world->calling, NULL);
    pthread_mutex_init(&world->listing, NULL);
    nccl_world_set_timeout(world, options->timeout_s);
    nccl_settings(options->deterministic, world->rank == 0);
    *out = world;
    return ST_OK;
}

void nccl_world_set_timeout(nccl_world *world, double seconds)
{
    atomic_store(&world->timeout_ns, (int64_t)(seconds * 1e9));
    nccl_watch_allow(world);
}

status nccl_world_attach(nccl_world *world, device *opened)
{
    world->device = opened;
    TRY(nccl_watch_start(world));
    if (!world->groups)
        TRY(join_all(world));
    TRY(open_stage(world));
    opened->watch = (device_watch){world, nccl_watch_wait_begins, nccl_watch_wait_ended};
    return ST_OK;
}

void nccl_world_detach(nccl_world *world)
{
    if (!world->device)
        return;
    close_stage(world);
    world->device->watch = (device_watch){0};
    world->device = NULL;
}

void nccl_world_free(nccl_world *world, bool well)
{
    if (!world)
        return;
    nccl_world_detach(world);
    if (well) {
        close_groups(world->groups);
    } else {
        nccl_watch_end(world, ST_UNAVAILABLE); /* the run's error is this thread's note */
    }
    nccl_watch_stop(world);
    free_groups(world);
    pthread_mutex_destroy(&world->calling);
    pthread_mutex_destroy(&world->listing);
    free(world);
}
