#include "trainer/parallel/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *mesh_group_name(mesh_group g)
{
    static const char *const name[MESH_GROUPS] = {
        "world",  "stage",        "pipeline",     "replicate", "whole",  "dense",
        "expert", "expert_shard", "expert_whole", "context",   "tensor", "row"};
    return name[g];
}

/* What experts re-divide: flat ranks of a stage and replica, or those of one tensor coordinate. */
static int expert_flat(const layout *l, const mesh_place *p)
{
    int flat = p->shard * (int)l->context + p->context;
    return l->expert_tensor > 1 ? flat : flat * (int)l->tensor + p->tensor;
}

mesh_place mesh_place_of(const layout *l, int rank)
{
    mesh_place p;
    p.tensor = rank % (int)l->tensor;
    rank /= (int)l->tensor;
    p.context = rank % (int)l->context;
    rank /= (int)l->context;
    p.shard = rank % (int)l->shard;
    rank /= (int)l->shard;
    p.replicate = rank % (int)l->replicate;
    p.pipeline = rank / (int)l->replicate;
    p.consumer = p.replicate * (int)l->shard + p.shard;
    int flat = expert_flat(l, &p);
    p.expert = flat % (int)l->expert;
    p.expert_shard = flat / (int)l->expert;
    return p;
}

/* Expert groups are among the ranks of one stage and replica, and with expert-tensor of one
 * tensor coordinate. */
static bool expert_peers(const layout *l, const mesh_place *a, const mesh_place *b)
{
    return a->pipeline == b->pipeline && a->replicate == b->replicate &&
           (l->expert_tensor == 1 || a->tensor == b->tensor);
}

static bool together(const layout *l, mesh_group g, const mesh_place *a, const mesh_place *b)
{
    bool pipeline = a->pipeline == b->pipeline, replicate = a->replicate == b->replicate;
    bool shard = a->shard == b->shard, context = a->context == b->context;
    bool tensor = a->tensor == b->tensor;
    switch (g) {
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
        return expert_peers(l, a, b) && a->expert_shard == b->expert_shard;
    case MESH_EXPERT_SHARD:
        return expert_peers(l, a, b) && a->expert == b->expert;
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

int mesh_members(const layout *l, int rank, mesh_group g, int *out)
{
    mesh_place me = mesh_place_of(l, rank);
    int n = 0;
    for (int other = 0; other < (int)l->world; other++) {
        mesh_place p = mesh_place_of(l, other);
        if (together(l, g, &me, &p))
            out[n++] = other;
    }
    return n;
}

/* Groups of equal size that agree on every rank are one. */
static bool same_group(const layout *l, const mesh_place *me, mesh_group a, mesh_group b)
{
    bool same = true;
    for (int other = 0; other < (int)l->world && same; other++) {
        const mesh_place p = mesh_place_of(l, other);
        same = together(l, a, me, &p) == together(l, b, me, &p);
    }
    return same;
}

int mesh_communicators(const layout *l, int rank)
{
    const mesh_place me = mesh_place_of(l, rank);
    int size[MESH_GROUPS] = {0}, n = 0;
    for (int other = 0; other < (int)l->world; other++) {
        const mesh_place p = mesh_place_of(l, other);
        for (int g = 0; g < MESH_GROUPS; g++)
            size[g] += together(l, (mesh_group)g, &me, &p);
    }
    for (int g = 0; g < MESH_GROUPS; g++) {
        bool first = size[g] > 1;
        for (int before = 0; before < g && first; before++)
            first =
                size[before] != size[g] || !same_group(l, &me, (mesh_group)before, (mesh_group)g);
        n += first;
    }
    return n;
}

/* The first has coordinates 0 in the other dimensions. */
int mesh_feed_members(const layout *l, int rank, int *out)
{
    int consumer = mesh_place_of(l, rank).consumer, n = 0;
    for (int other = 0; other < (int)l->world; other++)
        if (mesh_place_of(l, other).consumer == consumer)
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

void mesh_sketch(const layout *l, int rank, mesh *out)
{
    const mesh_place me = mesh_place_of(l, rank);
    mesh_alone(out);
    out->layout = *l;
    out->rank = rank;
    out->place = me;
    for (int g = 0; g < MESH_GROUPS; g++) {
        comm *c = &out->group[g];
        c->size = 0;
        for (int other = 0; other < (int)l->world; other++) {
            mesh_place p = mesh_place_of(l, other);
            if (other == rank)
                c->rank = c->size;
            c->size += together(l, (mesh_group)g, &me, &p);
        }
    }
}

static status open_group(mesh *m, mesh_group g, const comm_engine *engine, void *world,
                         struct comm_ledger *ledger, int *members)
{
    comm *c = &m->group[g];
    int n = mesh_members(&m->layout, m->rank, g, members);
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
    while (members[c->rank] != m->rank)
        c->rank++;
    return engine->group_new(world, world_rank, n, &c->handle);
}

status mesh_open(const layout *l, int rank, const comm_engine *engine, void *world,
                 struct comm_ledger *ledger, mesh *out)
{
    mesh_alone(out);
    out->layout = *l;
    out->rank = rank;
    out->place = mesh_place_of(l, rank);
    int *members = malloc((size_t)l->world * sizeof *members);
    if (!members)
        return FAIL(ST_NO_MEMORY, "no memory for a mesh of %lld ranks", (long long)l->world);
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

void mesh_close(mesh *m)
{
    for (int g = 0; g < MESH_GROUPS; g++) {
        comm *c = &m->group[g];
        if (c->handle)
            c->engine->group_free(c->handle);
        free((int *)c->world_rank);
        *c = comm_alone(mesh_group_name((mesh_group)g));
    }
}
