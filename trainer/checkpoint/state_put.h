/* state_put.h: the elements that a file has of a parameter to the place in device memory where this
 * rank has them. The layouts of the writers and of the readers need not be the same. Private to
 * train_state_load.c. */
#ifndef TESSERA_TRAINER_CHECKPOINT_STATE_PUT_H
#define TESSERA_TRAINER_CHECKPOINT_STATE_PUT_H

#include "trainer/checkpoint/state_list.h"

/* Host memory for values on their way, [STATE_CHUNK] each. */
typedef struct state_room {
    double *values;
    uint8_t *narrow; /* in the type in which they are stored */
    uint8_t *was;    /* what a frozen row had before */
} state_room;

/* Where a row's values go, and what was found of them. */
typedef struct state_target {
    void *to;
    st_dtype dtype;
    int64_t found;
    bool frozen, differs; /* differs: a frozen row had other values before */
    bool second;          /* it is the second moment */
    float *scale;         /* device memory of the scales of codes, else NULL */
    float *numbers;       /* [own_n] on the host, for moments that are converted, else NULL */
} state_target;

/* A file's tensor, and the scales of its codes; NULL: it has numbers. */
typedef struct state_tensor {
    const st_tensor *tensor, *scale;
} state_tensor;

/* Copies to the target, or keeps as its numbers, those of this rank's elements of `weight` that the
 * file's tensor has, and counts them as found. `part` says what the tensor is of the parameter.
 * The queue has done it on return. ST_CONFIG: blocks of codes do not fit this layout. */
WARN_UNUSED status state_take(const param *weight, stream *queue, const state_tensor *of,
                              const state_slice *part, const state_room *room,
                              state_target *target);
/* Writes the numbers that were kept, as codes or in the type of this device. */
WARN_UNUSED status state_put_numbers(const param *weight, stream *queue, const state_room *room,
                                     state_target *target);

#endif
