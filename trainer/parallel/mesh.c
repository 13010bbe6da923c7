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
static int expert_flat(const layout *l, const mesh_place *p)
{
    int flat = p->shard * (int)l->context + p->context;
    return l->expert_tensor > 1 ? flat : flat * (int)l->tensor + p->tensor;
}

mesh_place mesh_place_of(const layout *degrees, int rank)
{
    mesh_place p;
    p.tensor = rank % (int)degrees->tensor;
    rank /= (int)degrees->tensor;
    p.context = rank % (int)degrees->context;
    rank /= (int)degrees->context;
    p.shard = rank % (int)degrees->shard;
    rank /= (int)degrees->shard;
    p.replicate = rank % (int)degrees->replicate;
    p.pipeline = rank / (int)degrees->replicate;
    p.consumer = p.replicate * (int)degrees->shard + p.shard;
    int flat = expert_flat(degrees, &p);
    p.expert = flat % (int)degrees->expert;
    p.expert_shard = flat / (int)degrees->expert;
    return p;
}

/* Whether experts are divided over both ranks: they are in the same stage and replica and, with
 * expert-tensor parallelism, have the same tensor coordinate. */
static bool expert_peers(const layout *degrees, const mesh_place *a, const mesh_place *b)
{
    return a->pipeline == b->pipeline && a->replicate == b->replicate &&
           (degrees->expert_tensor == 1 || a->tensor == b->tensor);
}

static bool together(const layout *degrees, mesh_group group, const mesh_place *a,
                     const mesh_place *b)
{
    bool pipeline = a->pipeline == b->pipeline, replicate = a->replicate == b->replicate;
    bool shard = a->shard == b->shard, context = a->context == b->context;
    bool tensor = a->tensor == b->tensor;
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
        return expert_peers(degrees, a, b) && a->expert_shard == b->expert_shard;
    case MESH_EXPERT_SHARD:
        return expert_peers(degrees, a, b) && a->expert == b->expert;
    case MESH_EXPERT_WHOLE:
        return pipeline && replicate && a->expert == b->expert;
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
    int n = 0;
    for (int other = 0; other < (int)degrees->world; other++) {
        mesh_place p = mesh_place_of(degrees, other);
        if (together(degrees, group, &me, &p))
            out[n++] = other;
    }
    return n;
}

/* Whether two kinds of groups have the same ranks, seen from one rank. */
static bool same_group(const layout *degrees, const mesh_place *me, mesh_group a, mesh_group b)
{
    bool same = true;
    for (int other = 0; other < (int)degrees->world && same; other++) {
        const mesh_place place = mesh_place_of(degrees, other);
        same = together(degrees, a, me, &place) == together(degrees, b, me, &place);
    }
    return same;
}

int mesh_communicators(const layout *degrees, int rank)
{
    const mesh_place me = mesh_place_of(degrees, rank);
    int size[MESH_GROUPS] = {0}, n = 0;
    for (int other = 0; other < (int)degrees->world; other++) {
        const mesh_place place = mesh_place_of(degrees, other);
        for (int g = 0; g < MESH_GROUPS; g++)
            size[g] += together(degrees, (mesh_group)g, &me, &place);
    }
    for (int g = 0; g < MESH_GROUPS; g++) {
        bool first = size[g] > 1;
        for (int before = 0; before < g && first; before++)
            first = size[before] != size[g] ||
                    !same_group(degrees, &me, (mesh_group)before, (mesh_group)g);
        n += first;
    }
    return n;
}

/* The first of them has coordinate 0 in all dimensions but replicate and shard. */
int mesh_feed_members(const layout *degrees, int rank, int *out)
{
    int consumer = mesh_place_of(degrees, rank).consumer, n = 0;
    for (int other = 0; other < (int)degrees->world; other++)
        if (mesh_place_of(degrees, other).consumer == consumer)
            out[n++] = other;
    return n;
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
    for (int g = 0; g < MESH_GROUPS; g++)
        out->group[g] = comm_alone(mesh_group_name((mesh_group)g));
}

void mesh_sketch(const layout *degrees, int rank, mesh *out)
{
    const mesh_place me = mesh_place_of(degrees, rank);
    mesh_alone(out);
    out->layout = *degrees;
    out->rank = rank;
    out->place = me;
    for (int g = 0; g < MESH_GROUPS; g++) {
        comm *group = &out->group[g];
        group->size = 0;
        for (int other = 0; other < (int)degrees->world; other++) {
            mesh_place place = mesh_place_of(degrees, other);
            if (other == rank)
                group->rank = group->size;
            group->size += together(degrees, (mesh_group)g, &me, &place);
        }
    }
}

static status open_group(mesh *ranks, mesh_group group, const comm_engine *engine, void *world,
                         struct comm_ledger *ledger, int *members)
{
    comm *c = &ranks->group[group];
    int n = mesh_members(&ranks->layout, ranks->rank, group, members);
    if (n == 1)
        return ST_OK;
    int *world_rank = malloc((size_t)n * sizeof *world_rank);
    if (!world_rank)
        return FAIL(ST_NO_MEMORY, "no memory for a group of %d ranks", n);
    memcpy(world_rank, members, (size_t)n * sizeof *world_rank);
    c->engine = engine;
    c->size = n;
    c->world_rank = world_rank;
    c->ledger = ledger;
    while (members[c->rank] != ranks->rank)
        c->rank++;
    return engine->group_new(world, world_rank, n, &c->handle);
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
    for (int g = 0; g < MESH_GROUPS && st == ST_OK; g++) {
        st = open_group(out, (mesh_group)g, engine, world, ledger, members);
        if (st != ST_OK)
            st = status_context(st, "group %s", mesh_group_name((mesh_group)g));
    }
    free(members);
    if (st != ST_OK)
        mesh_close(out);
    return st;
}

void mesh_close(mesh *ranks)
{
    for (int g = 0; g < MESH_GROUPS; g++) {
        comm *c = &ranks->group[g];
        if (c->handle)
            c->engine->group_free(c->handle);
        free((int *)c->world_rank);
        *c = comm_alone(mesh_group_name((mesh_group)g));
    }
}
