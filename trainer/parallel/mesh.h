/* SPDX-License-Identifier: Apache-2.0 */
/* mesh.h: which place a rank has in a layout, and which ranks form a group with it.
 *
 * Ranks are numbered with the tensor coordinate running fastest:
 *
 *   rank = (((pipeline * R + replicate) * S + shard) * C + context) * T + tensor
 *
 * with R, S, C, T the degrees of replicate, shard, context and tensor. Experts divide the ranks of
 * one stage and replica once more, by their flat number:
 *
 *   flat         = (shard * C + context) * T + tensor    without expert-tensor parallelism
 *   flat         = shard * C + context                   with it, among ranks of one tensor
 *   expert       = flat mod E                            E: the expert degree
 *   expert_shard = flat / E
 *
 * mesh_open makes an engine's communicators of the groups; everything else is arithmetic. What each
 * group is used for is in layouts.md, "The mesh". */
#ifndef TESSERA_TRAINER_PARALLEL_MESH_H
#define TESSERA_TRAINER_PARALLEL_MESH_H

#include "trainer/parallel/layout.h"
#include "trainer/parallel/comm/comm.h"

/* Groups, by what their ranks may differ in. */
typedef enum mesh_group {
    MESH_WORLD,        /* everything */
    MESH_STAGE,        /* everything but pipeline */
    MESH_PIPELINE,     /* pipeline */
    MESH_REPLICATE,    /* replicate */
    MESH_WHOLE,        /* shard, context, tensor */
    MESH_DENSE,        /* shard, context */
    MESH_EXPERT,       /* expert */
    MESH_EXPERT_SHARD, /* expert_shard */
    MESH_EXPERT_WHOLE, /* expert_shard, and tensor with expert-tensor parallelism */
    MESH_CONTEXT,      /* context */
    MESH_TENSOR,       /* tensor */
    MESH_ROW,          /* context, tensor */
    MESH_GROUPS
} mesh_group;

/* The coordinates of a rank. */
typedef struct mesh_place {
    int pipeline, replicate, shard, context, tensor;
    int expert;       /* which share of the experts it has */
    int expert_shard; /* which piece of that share it stores */
    int consumer;     /* data-parallel consumer of rows: replicate * S + shard */
} mesh_place;

const char *mesh_group_name(mesh_group group); /* such as "expert_shard" */
mesh_place mesh_place_of(const layout *degrees, int rank);
/* out [world]: the ranks of the group that `rank` belongs to, in the order of the group. Returns
 * how many there are. */
int mesh_members(const layout *degrees, int rank, mesh_group group, int *out);
/* How many communicators a rank has: its groups of several ranks, where groups of the same ranks
 * count once. */
int mesh_communicators(const layout *degrees, int rank);
/* out [world]: the ranks of all stages that need the rows of this rank's consumer, the one that
 * receives them first. Returns how many there are. */
int mesh_feed_members(const layout *degrees, int rank, int *out);

typedef struct mesh {
    layout layout;
    int rank; /* this process' rank in the job */
    mesh_place place;
    comm group[MESH_GROUPS];
} mesh;

/* A job of one rank: every group is a group of one. */
void mesh_alone(mesh *out);
/* The place of a rank and the sizes of its groups, without an engine, for plans. There is nothing
 * to close. */
void mesh_sketch(const layout *degrees, int rank, mesh *out);
/* Makes the groups. Every rank calls it; degrees->world must be the number of ranks that joined
 * `world`. The ledger may be NULL and is borrowed like engine and world. Close it with mesh_close.
 * The error's note names the group that could not be made. */
WARN_UNUSED status mesh_open(const layout *degrees, int rank, const comm_engine *engine,
                             void *world, struct comm_ledger *ledger, mesh *out);
void mesh_close(mesh *ranks);

static inline const comm *mesh_comm(const mesh *ranks, mesh_group group)
{
    return &ranks->group[group];
}

#endif
