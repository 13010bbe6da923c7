/* SPDX-License-Identifier: Apache-2.0 */
/* params_states.h: where the optimiser's states of every row lie: moments, scales of moments in 8
 * bits, and master values of the rows that have some in the blocks of moments. For params_store.c,
 * and for the optimizer and checkpoints where the states lie on the host (params.moments_on_host).
 */
#ifndef TESSERA_TRAINER_MODEL_PARAMS_STATES_H
#define TESSERA_TRAINER_MODEL_PARAMS_STATES_H

#include "trainer/model/params/params.h"

static inline int64_t round_up(int64_t count, int64_t align)
{
    return (count + align - 1) / align * align;
}

/* The element `at` of an array; NULL if there is no such array. */
static inline void *locate_part(void *array, int64_t at, size_t size)
{
    return array ? (char *)array + (size_t)at * size : NULL;
}

static inline void *locate_in(const param_block *block, int64_t at)
{
    return locate_part(block->at, at, st_dtype_size(block->dtype));
}

/* How many elements of a row rank `rank` of the span's stores, from *out_first on. */
int64_t states_own_of(const unit_span *in, const param *row, int rank, int64_t *out_first);

/* Whether rows have their own places in the blocks of moments. */
bool states_are_placed(const params *registry, st_dtype act, st_dtype acc);

/* Bytes of states, as many on every rank, so that all plan alike: of each span what the rank needs
 * whose piece needs most. */
typedef struct states_sizes {
    int64_t block;              /* of a block of moments */
    int64_t turn[STATES_TURNS]; /* of what the largest unit of each parity has in a block */
} states_sizes;
/* After the spans are made. ST_NO_MEMORY. */
WARN_UNUSED status states_sizes_of(const params *registry, st_dtype act, st_dtype acc,
                                   states_sizes *out);

/* Sets the places of the states of all rows where they are not those of its act: unit by unit, and
 * in a unit in the order of rows. After the blocks have their places. */
void states_place(params *registry);

/* What a unit has in each block of moments: `bytes` from byte `first` on; 0: nothing. */
typedef struct states_range {
    int64_t first, bytes;
} states_range;
/* After states_place. */
states_range states_range_of(const params *registry, int unit);

/* To be called before states are read outside of a step. If they rest on the host, it waits until
 * the last step has brought them back: a copy from host to host need not keep a stream's order. */
WARN_UNUSED status states_settle(const params *registry, stream *queue);

#endif
