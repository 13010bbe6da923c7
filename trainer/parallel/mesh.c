/* SPDX-License-Identifier: Apache-2.0 */
/* mesh.c: implements mesh.h. A group is a relation: two ranks are in it together if certain
 * coordinates of theirs are equal (`together`). Members, sizes and communicators all follow from
 * that. */
#include "trainer/parallel/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *mesh_group_name(mesh_group group)
{
    static const char *const name[MESH_GROUPS] = {
        "world",  "stage",        "pipeline",     "replicate", "whole",  "dense",
        "expert", "expert_shard", "expert_whole", "context",   "tensor", "row"};
    return name[group];
}

/* The flat number of a rank among those that experts are divided over: the ranks of its stage and
 * replica, or with expert-tensor parallelism those of its tensor coordinate too. */
static int expert_flat(const layout *degrees, const mesh_place *at)
{
    int flat = at->shard * (int)degrees->context + at->context;
    return degrees->expert_tensor > 1 ? flat : flat * (int)degrees->tensor + at->tensor;
}

mesh_place mesh_place_of(const layout *degrees, int rank)
{
    mesh_place at;
    at.tensor = rank % (int)degrees->tensor;
    rank /= (int)degrees->tensor;
    at.context = rank % (int)degrees->context;
    rank /= (int)degrees->context;
    at.shard = rank % (int)degrees->shard;
    rank /= (int)degrees->shard;
    at.replicate = rank % (int)degrees->replicate;
    at.pipeline = rank / (int)degrees->replicate;
    at.consumer = at.replicate * (int)degrees->shard + at.shard;
    int flat = expert_flat(degrees, &at);
    at.expert = flat % (int)degrees->expert;
    at.expert_shard = flat / (int)degrees->expert;
    return at;
}

/* Whether experts are divided over both ranks: they are in the same stage and replica and, with
 * expert-tensor parallelism, have the same tensor coordinate. */
static bool expert_peers(const layout *degrees, const mesh_place *first, const mesh_place *second)
{
    return first->pipeline == second->pipeline && first->replicate == second->replicate &&
           (degrees->expert_tensor == 1 || first->tensor == second->tensor);
}

static bool together(const layout *degrees, mesh_group group, const mesh_place *first,
                     const mesh_place *second)
{
    bool pipeline = first->pipeline == second->pipeline,
         replicate = first->replicate == second->replicate;
    bool shard = first->shard == second->shard, context = first->context == second->context;
    bool tensor = first->tensor == second->tensor;
    switch (group) {
    case MESH_STAGE:
        return pipeline;
    case MESH_PIPELINE:
        return replicate && shard && context && tensor;
    case MESH_REPLICATE:
        return pipeline && shard && context && tensor;
    case MESH_WHOLE:
        return pipeline && replicate;
    case MESH_DENSE:
        return pipeline && replicate && tensor;
    case MESH_EXPERT:
        return expert_peers(degrees, first, second) && first->expert_shard == second->expert_shard;
    case MESH_EXPERT_SHARD:
        return expert_peers(degrees, first, second) && first->expert == second->expert;
    case MESH_EXPERT_WHOLE:
        return pipeline && replicate && first->expert == second->expert;
    case MESH_CONTEXT:
        return pipeline && replicate && shard && tensor;
    case MESH_TENSOR:
        return pipeline && replicate && shard && context;
    case MESH_ROW:
        return pipeline && replicate && shard;
    default:
        return true;
    }
}

int mesh_members(const layout *degrees, int rank, mesh_group group, int *out)
{
    mesh_place me = mesh_place_of(degrees, rank);
    int count = 0;
    for (int other = 0; other < (int)degrees->world; other++) {
        mesh_place at = mesh_place_of(degrees, other);
        if (together(degrees, group, &me, &at))
            out[count++] = other;
    }
    return count;
}

/* Whether two kinds of groups have the same ranks, seen from one rank. */
static bool same_group(const layout *degrees, const mesh_place *me, mesh_group first,
                       mesh_group second)
{
    bool same = true;
    for (int other = 0; other < (int)degrees->world && same; other++) {
        const mesh_place place = mesh_place_of(degrees, other);
        same = together(degrees, first, me, &place) == together(degrees, second, me, &place);
    }
    return same;
}

int mesh_communicators(const layout *degrees, int rank)
{
    const mesh_place me = mesh_place_of(degrees, rank);
    int size[MESH_GROUPS] = {0}, count = 0;
    for (int other = 0; other < (int)degrees->world; other++) {
        const mesh_place place = mesh_place_of(degrees, other);
        for (int i = 0; i < MESH_GROUPS; i++)
            size[i] += together(degrees, (mesh_group)i, &me, &place);
    }
    for (int i = 0; i < MESH_GROUPS; i++) {
        bool first = size[i] > 1;
        for (int before = 0; before < i && first; before++)
            first = size[before] != size[i] ||
                    !same_group(degrees, &me, (mesh_group)before, (mesh_group)i);
        count += first;
    }
    return count;
}

/* The first of them has coordinate 0 in all dimensions but replicate and shard. */
int mesh_feed_members(const layout *degrees, int rank, int *out)
{
    int consumer = mesh_place_of(degrees, rank).consumer, count = 0;
    for (int other = 0; other < (int)degrees->world; other++)
        if (mesh_place_of(degrees, other).consumer == consumer)
            out[count++] = other;
    return count;
}

void mesh_alone(mesh *out)
{
    *out = (mesh){.layout = {.replicate = 1,
                             .shard = 1,
                             .context = 1,
                             .tensor = 1,
                             .pipeline = 1,
                             .expert = 1,
                             .expert_tensor = 1,
                             .world = 1,
                             .accumulation = 1}};
    for (int i = 0; i < MESH_GROUPS; i++)
        out->group[i] = comm_alone(mesh_group_name((mesh_group)i));
}

void mesh_sketch(const layout *degrees, int rank, mesh *out)
{
    const mesh_place me = mesh_place_of(degrees, rank);
    mesh_alone(out);
    out->layout = *degrees;
    out->rank = rank;
    out->place = me;
    for (int i = 0; i < MESH_GROUPS; i++) {
        comm *group = &out->group[i];
        group->size = 0;
        for (int other = 0; other < (int)degrees->world; other++) {
            mesh_place place = mesh_place_of(degrees, other);
            if (other == rank)
                group->rank = group->size;
            group->size += together(degrees, (mesh_group)i, &me, &place);
        }
    }
}

static status open_group(mesh *ranks, mesh_group group, const comm_engine *engine, void *world,
                         struct comm_ledger *ledger, int *members)
{
    comm *made = &ranks->group[group];
    int count = mesh_members(&ranks->layout, ranks->rank, group, members);
    if (count == 1)
        return ST_OK;
    int *world_rank = malloc((size_t)count * sizeof *world_rank);
    if (!world_rank)
        return FAIL(ST_NO_MEMORY, "no memory for a group of %d ranks", count);
    memcpy(world_rank, members, (size_t)count * sizeof *world_rank);
    made->engine = engine;
    made->size = count;
    made->world_rank = world_rank;
    made->ledger = ledger;
    while (members[made->rank] != ranks->rank)
        made->rank++;
    return engine->group_new(world, world_rank, count, &made->handle);
}

status mesh_open(const layout *degrees, int rank, const comm_engine *engine, void *world,
                 struct comm_ledger *ledger, mesh *out)
{
    mesh_alone(out);
    out->layout = *degrees;
    out->rank = rank;
    out->place = mesh_place_of(degrees, rank);
    int *members = malloc((size_t)degrees->world * sizeof *members);
    if (!members)
        return FAIL(ST_NO_MEMORY, "no memory for a mesh of %lld ranks", (long long)degrees->world);
    status st = ST_OK;
    for (int i = 0; i < MESH_GROUPS && st == ST_OK; i++) {
        st = open_group(out, (mesh_group)i, engine, world, ledger, members);
        if (st != ST_OK)
            st = status_context(st, "group %s", mesh_group_name((mesh_group)i));
    }
    free(members);
    if (st != ST_OK)
        mesh_close(out);
    return st;
}

void mesh_close(mesh *ranks)
{
    for (int i = 0; i < MESH_GROUPS; i++) {
        comm *group = &ranks->group[i];
        if (group->handle)
            group->engine->group_free(group->handle);
        free((int *)group->world_rank);
        *group = comm_alone(mesh_group_name((mesh_group)i));
    }
}
