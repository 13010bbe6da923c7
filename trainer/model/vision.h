/* vision.h: the vision tower (spec section 3): pixels -> visual rows for the token stream and one
 * deepstack feature per chosen block, and the whole way back.
 *
 * S patches, D hidden, M = S/4 merged rows, H text hidden, B blocks. */
#ifndef TESSERA_TRAINER_MODEL_VISION_H
#define TESSERA_TRAINER_MODEL_VISION_H

#include "trainer/model/merge.h"
#include "trainer/model/vision_block.h"

typedef struct vision {
    /* parameters */
    linear patch; /* [D, 1536] */
    const param *pos;
    vision_block *block;              /* [B] */
    merger merger[1 + MAX_DEEPSTACK]; /* 0 the final one, 1 + j deepstack j */
    bool embed_trained;               /* patch embedding or position table */
    int64_t lowest;                   /* first block that backward must reach; B: none */
    /* activations */
    recompute recomputed;        /* of blocks */
    recompute merger_recomputed; /* of mergers */
    void **x;                    /* [B + 1] of [S, D]: block inputs, and the last output */
    vision_saved *saved;         /* [B]; what is computed again is in memory that all share */
    merger_saved merger_saved[1 + MAX_DEEPSTACK];
    void *cos, *sin;                   /* [S, d/2] acc */
    void *patches;                     /* [S, 1536] scratch */
    void *feature[1 + MAX_DEEPSTACK];  /* [M, H]: visual rows, deepstack features */
    void *dfeature[1 + MAX_DEEPSTACK]; /* [M, H] their gradients, written by the text backward */
    void *dx;                          /* [S, D] */
    vision_scratch block_scratch;
    merger_scratch merger_scratch;
} vision;

typedef struct vision_modes {
    bool training; /* inputs of all blocks are kept, and there are gradients */
    recompute recomputed;
    bool frozen; /* all but the mergers: of the tower only what mergers read is kept */
} vision_modes;

WARN_UNUSED status vision_init(vision *v, const model_dims *d);
void vision_bind(vision *v, params *p, const model_dims *d);
void vision_done(vision *v);
/* What lives through the step; then what may be shared with other parts' scratch. */
void vision_layout(vision *v, space *sp, const shape *z, vision_modes mode);
void vision_layout_scratch(vision *v, space *sp, const shape *z, vision_modes mode);

/* Fills v->feature. No patches: nothing is computed. Sets the rotary tables of r. */
WARN_UNUSED status vision_fwd(vision *v, pass_context *r);
/* From v->dfeature to the gradients of all vision parameters. */
WARN_UNUSED status vision_bwd(vision *v, pass_context *r);

#endif
