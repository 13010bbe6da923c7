/* mesh.h: who is who among the ranks of a layout (README.md, design section 7). Pure arithmetic;
 * comm groups are made from it by mesh_open. */
#ifndef TESSERA_TRAINER_PARALLEL_MESH_H
#define TESSERA_TRAINER_PARALLEL_MESH_H

#include "trainer/parallel/layout.h"
#include "trainer/parallel/comm.h"

typedef enum mesh_group {
    MESH_WORLD,
    MESH_STAGE,
    MESH_PIPELINE,
    MESH_REPLICATE,
    MESH_WHOLE,
    MESH_DENSE,
    MESH_EXPERT,
    MESH_EXPERT_SHARD,
    MESH_EXPERT_WHOLE,
    MESH_CONTEXT,
    MESH_TENSOR,
    MESH_ROW,
    MESH_GROUPS
} mesh_group;

/* Coordinates of a rank. */
typedef struct mesh_place {
    int pipeline, replicate, shard, context, tensor;
    int expert;       /* which share of the experts */
    int expert_shard; /* which piece of that share's FSDP */
    int consumer;     /* data-parallel consumer: replicate * shards + shard */
} mesh_place;

const char *mesh_group_name(mesh_group g);
mesh_place mesh_place_of(const layout *l, int rank);
/* The ranks of `rank`'s group in the group's order. out [world]; returns how many. */
int mesh_members(const layout *l, int rank, mesh_group g, int *out);
/* Communicators of a rank: its groups of several ranks, those of the same ones counted once. */
int mesh_communicators(const layout *l, int rank);
/* The ranks that need the rows of this rank's consumer, of all stages, the one that receives them
 * first. out [world]; returns how many. */
int mesh_feed_members(const layout *l, int rank, int *out);

typedef struct mesh {
    layout layout;
    int rank;
    mesh_place place;
    comm group[MESH_GROUPS];
} mesh;

/* Every group is a group of one. */
void mesh_alone(mesh *out);
/* A rank's place and the sizes of its groups, without an engine: for plans. Nothing to close. */
void mesh_sketch(const layout *l, int rank, mesh *out);
/* l->world must be the engine's world. Collective: every rank calls it. Heap; mesh_close. */
WARN_UNUSED status mesh_open(const layout *l, int rank, const comm_engine *engine, void *world,
                             struct comm_ledger *ledger, mesh *out);
void mesh_close(mesh *m);

static inline const comm *mesh_comm(const mesh *m, mesh_group g)
{
    return &m->group[g];
}

#endif
