/* vision.h: the vision tower, forward and backward (equations.md, "Vision tower"): turns pixels
 * into visual rows for the token stream and one deepstack feature for each chosen block.
 *
 * S patches, D hidden, d head width, M = S / 4 merged rows, H text hidden, B blocks. Patches lie in
 * merge order, so merging four of them into a row is a reshape (merge.h). */
#ifndef TESSERA_TRAINER_MODEL_VISION_H
#define TESSERA_TRAINER_MODEL_VISION_H

#include "trainer/model/merge.h"
#include "trainer/model/vision_block.h"

typedef struct vision {
    /* parameters */
    linear patch; /* [D, 1536] */
    const param *pos;
    vision_block *block;              /* [B] */
    merger merger[1 + MAX_DEEPSTACK]; /* 0: the final merger; 1 + j: deepstack merger j */
    bool embed_trained;               /* patch embedding or position table are trained */
    int64_t lowest;                   /* first block that backward must reach; B: none */
    /* activations */
    recompute recomputed;        /* what blocks compute again */
    recompute merger_recomputed; /* what mergers compute again */
    void **x;                    /* [B + 1] of [S, D]: inputs of the blocks, then the last output */
    vision_saved *saved;         /* [B]; arrays that are computed again lie in shared memory */
    merger_saved merger_saved[1 + MAX_DEEPSTACK];
    void *cos, *sin;                   /* [S, d/2] acc */
    void *patches;                     /* [S, 1536] scratch: normalised pixels */
    void *feature[1 + MAX_DEEPSTACK];  /* [M, H]: visual rows, then deepstack features */
    void *dfeature[1 + MAX_DEEPSTACK]; /* [M, H]: their gradients, written by decoder_bwd */
    void *dx;                          /* [S, D] gradient on its way down */
    vision_scratch block_scratch;
    merger_scratch merger_scratch;
} vision;

typedef struct vision_modes {
    bool training; /* inputs of all blocks are kept, and gradients are computed */
    recompute recomputed;
    bool frozen; /* only mergers are trained: of the tower only their inputs are kept */
} vision_modes;

/* Prepares a tower (heap memory only). */
WARN_UNUSED status vision_init(vision *tower, const model_dims *dims);
/* Finds its parameters in the registry, and how far down backward must go. */
void vision_bind(vision *tower, params *registry, const model_dims *dims);
void vision_done(vision *tower); /* accepts a half-initialised tower */
/* Take the device arrays from sp: vision_layout those that are kept from forward to backward,
 * vision_layout_scratch those that may share memory with other parts' scratch. */
void vision_layout(vision *tower, space *sp, const shape *sizes, vision_modes mode);
void vision_layout_scratch(vision *tower, space *sp, const shape *sizes, vision_modes mode);

/* Computes tower->feature from the pixels of the batch and sets the rotary tables of ctx. Without
 * patches it only enters and leaves FSDP units, as every rank must. */
WARN_UNUSED status vision_fwd(vision *tower, pass_context *ctx);
/* Adds the gradients of all trained vision parameters, from tower->dfeature. */
WARN_UNUSED status vision_bwd(vision *tower, pass_context *ctx);

#endif
