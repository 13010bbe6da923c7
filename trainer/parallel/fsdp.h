/* SPDX-License-Identifier: Apache-2.0 */
/* fsdp.h: parameters that ranks store in equal pieces and hold whole only while they are used
 * (FSDP; layouts.md, "Who stores which parameter").
 *
 * A unit is a set of parameters that are used together: a decoder layer, a vision block, the
 * embedding. Those of its tensors that one group of ranks shares lie end to end in a span, and each
 * rank of the group stores one piece of the span.
 *
 *   enter  gathers the unit's compute weights into one of two buffers, which take turns, and begins
 *          to gather the unit that is used next
 *   leave  after a backward pass: sums the unit's gradients over the ranks (in the accumulation
 *          type), adds this rank's piece to what it stores, and clears the buffer
 *
 * Both run on a side stream, ordered with the compute stream by events, so that they overlap with
 * computing.
 *
 * A unit with an even number uses the first buffer and one with an odd number the second. Addresses
 * are therefore fixed: tensors are bound once, and steps may be captured. Units are entered in
 * rising order in a forward and in falling order in a backward. Every rank enters the same units in
 * the same order, whatever rows it has.
 *
 * A job of one rank has no units (the pointer is NULL), unless it updates them in backward or some
 * of its weights rest on the host: the calls do nothing, and tensors are used where they are
 * stored. */
#ifndef TESSERA_TRAINER_PARALLEL_FSDP_H
#define TESSERA_TRAINER_PARALLEL_FSDP_H

#include "trainer/device/space.h"
#include "trainer/parallel/mesh.h"

typedef struct fsdp_units fsdp_units;

typedef struct unit_span {
    int unit;         /* number of the unit (model/params/unit_order.h) */
    mesh_group group; /* the ranks that share it */
    int ranks, rank;  /* of that group; ranks 1: stored whole, nothing is gathered */
    bool trained;     /* has gradients */
    bool on_host; /* its piece rests on the host (device_host_array), from where it is copied for
                   * every gather, also if ranks is 1 */
    bool stays;   /* stays whole from its first use to its last, because it is used in two places */
    bool forward_only;    /* no backward pass reads it: UNIT_GRADIENT, or no gradient reaches it */
    int64_t count, piece; /* elements of the span, of one rank; piece * ranks >= count */
    /* 0: elements are of the compute type; else how many bytes each has. They are then gathered as
     * bytes, and are not trained. */
    int64_t element_bytes;
    int64_t first; /* of the piece within what the rank stores; the caller's own */
    int64_t layer; /* decoder layer, for the ledger; -1: none */
    bool vision;   /* belongs to the vision tower, which the ledger counts apart */
    /* This rank's piece in device memory; grad is NULL if the span is not trained. With
     * unit_options.in_backward fsdp_units_new fills in grad, a part of whole_grad. */
    void *act, *grad;
    /* [ranks * piece], filled in by fsdp_units_new; act and grad themselves if ranks is 1 and it
     * does not rest on the host. */
    void *whole_act, *whole_grad;
} unit_span;

/* The names of the collectives in the ledger and in messages. */
#define UNITS_GATHER        "gather weights"
#define UNITS_REDUCE        "reduce gradients"
#define UNITS_GATHER_VISION "gather vision weights"
#define UNITS_REDUCE_VISION "reduce vision gradients"

enum { UNIT_ALIGN = 64 }; /* elements: pieces begin at multiples of this, or of the caller's */

typedef struct unit_options {
    bool training; /* there are gradients */
    bool reshard;  /* weights are dropped after a forward and gathered again for its backward */
    /* A unit's gradients exist from its backward until it is updated, which follows at once
     * (fsdp_units_update). Every unit with gradients has its turn then, also on a single rank. */
    bool in_backward;
} unit_options;

/* Called for a unit after its gradients have been summed over all ranks that compute with it: span
 * by span this rank's piece is at unit_span.grad, and after the call it is cleared. `queue` is the
 * stream on which the sum was queued. */
typedef struct unit_update {
    status (*update)(void *user, stream *queue, int unit);
    void *user;
} unit_update;

/* Elements that each of `ranks` ranks stores of a span of `count` elements,
 * a multiple of `align`. */
int64_t unit_piece(int64_t count, int ranks, int64_t align);
/* Bytes of the buffers that fsdp_units_new allocates. list [count] is in rising order of unit. act
 * and acc are the bytes of an element of the compute type and of the accumulation type. */
int64_t fsdp_units_bytes(unit_span *list, int64_t count, const unit_options *options, size_t act,
                         size_t acc);

/* Allocates the buffers and fills in whole_act and whole_grad of list [count]. `list` and `ranks`
 * are borrowed until fsdp_units_free. *out is NULL if no span is shared. ST_NO_MEMORY. */
WARN_UNUSED status fsdp_units_new(stream *queue, const mesh *ranks, unit_span *list, int64_t count,
                                  const unit_options *options, fsdp_units **out);
void fsdp_units_free(fsdp_units **units, stream *queue); /* accepts a pointer to NULL */

/* With in_backward: what updates a unit. Set before the first backward. */
void fsdp_units_update(fsdp_units *units, const unit_update *update);

/* What a unit is entered for, which also says which unit is gathered ahead. */
typedef enum unit_use {
    UNIT_FORWARD,  /* reads the weights; the next unit is the one above */
    UNIT_BACKWARD, /* reads the weights, adds to the gradients; the next unit is the one below */
    UNIT_TURN,     /* the last unit, whose forward and backward are one */
    UNIT_GRADIENT  /* a backward pass that reads no weights; the next unit is the one below */
} unit_use;

/* fsdp_units_begin and fsdp_units_end are called around the units of a micro-batch: at the
 * beginning the buffers hold nothing, and at the end all reductions are ordered before what `queue`
 * does next. enter and leave are called around each unit. All accept NULL. */
WARN_UNUSED status fsdp_units_begin(fsdp_units *units, stream *queue);
WARN_UNUSED status fsdp_units_end(fsdp_units *units, stream *queue);
WARN_UNUSED status fsdp_units_enter(fsdp_units *units, stream *queue, int unit, unit_use use);
WARN_UNUSED status fsdp_units_leave(fsdp_units *units, stream *queue, int unit, unit_use use);

#endif
