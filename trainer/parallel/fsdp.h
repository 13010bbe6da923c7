/* fsdp.h: parameters that ranks store in equal pieces and hold whole only while they are used
 * (README.md: FSDP).
 *
 * A unit is what is used together: a decoder layer, a vision block, the embedding. Its tensors that
 * one group of ranks shares lie end to end in a span; each rank of the group stores one piece of
 * it. fsdp_units_enter gathers a unit's compute weights into one of two buffers that take turns,
 * and begins to gather the unit that comes next; fsdp_units_leave behind a backward reduces the
 * unit's gradients (acc, in rank order), adds this rank's piece to what it stores and clears the
 * buffer. Both happen on a stream of their own beside the compute, ordered by events.
 *
 * A unit's buffer is that of its number's parity, so addresses are fixed: tensors are bound once
 * and steps may be captured. Units are entered in rising order forward, falling order back. Every
 * rank enters the same units in the same order, whatever rows it has.
 *
 * One rank has no units (NULL): the calls do nothing, and the tensors stand where they are stored.
 */
#ifndef TESSERA_TRAINER_PARALLEL_FSDP_H
#define TESSERA_TRAINER_PARALLEL_FSDP_H

#include "trainer/device/space.h"
#include "trainer/parallel/mesh.h"

typedef struct fsdp_units fsdp_units;

typedef struct unit_span {
    int unit;
    mesh_group group;
    int ranks, rank;              /* of the group; 1: stored whole, nothing is gathered */
    bool trained;                 /* has gradients */
    bool stays;                   /* whole from its first use to its last: used at two places */
    bool forward_only;            /* no backward reads it: UNIT_GRADIENT, or nothing gets there */
    int64_t count, piece;         /* elements: of the span, of a rank; piece * ranks >= count */
    int64_t first, first_trained; /* of the piece in what the rank stores; the caller's own */
    int64_t layer;                /* of the decoder, -1: none; for the ledger */
    bool vision;
    /* this rank's piece in device memory; grad NULL where not trained */
    void *act, *grad;
    /* [ranks * piece], made by fsdp_units_new; of one rank act and grad themselves */
    void *whole_act, *whole_grad;
} unit_span;

/* What the collectives are called in the ledger and in messages. */
#define UNITS_GATHER        "gather weights"
#define UNITS_REDUCE        "reduce gradients"
#define UNITS_GATHER_VISION "gather vision weights"
#define UNITS_REDUCE_VISION "reduce vision gradients"

enum { UNIT_ALIGN = 64 }; /* elements: pieces begin at multiples of it */

typedef struct unit_options {
    bool training; /* there are gradients */
    bool reshard;  /* weights are let go behind forward, and gathered again for backward */
} unit_options;

/* Elements that a rank stores of a span. */
int64_t unit_piece(int64_t count, int ranks);
/* Bytes of the buffers; list [n] in rising order of unit. act, acc: bytes of an element. */
int64_t fsdp_units_bytes(unit_span *list, int64_t n, const unit_options *o, size_t act, size_t acc);

/* Fills whole_act and whole_grad of list [n], which is borrowed, as m. *out NULL where no span is
 * shared. */
WARN_UNUSED status fsdp_units_new(stream *s, const mesh *m, unit_span *list, int64_t n,
                                  const unit_options *o, fsdp_units **out);
void fsdp_units_free(fsdp_units **u, stream *s);

typedef enum unit_use {
    UNIT_FORWARD,  /* weights; the next unit is the one above */
    UNIT_BACKWARD, /* weights and gradients; the next is the one below */
    UNIT_TURN,     /* the last one: forward and backward at once */
    UNIT_GRADIENT  /* a backward that reads no weights; the next is the one below */
} unit_use;

/* Around the units of a micro-batch: nothing is held from before, all is done behind. */
WARN_UNUSED status fsdp_units_begin(fsdp_units *u, stream *s);
WARN_UNUSED status fsdp_units_end(fsdp_units *u, stream *s);
WARN_UNUSED status fsdp_units_enter(fsdp_units *u, stream *s, int unit, unit_use use);
WARN_UNUSED status fsdp_units_leave(fsdp_units *u, stream *s, int unit, unit_use use);

#endif
