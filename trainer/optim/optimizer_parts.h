/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_parts.h: what the files of an optimizer share; private to this folder. */
#ifndef TESSERA_TRAINER_OPTIM_OPTIMIZER_PARTS_H
#define TESSERA_TRAINER_OPTIM_OPTIMIZER_PARTS_H

#include "trainer/model/params/params.h"
#include "trainer/ops/loss_ops.h"
#include "trainer/optim/optim.h"

/* host_states.c keeps the optimiser's moments in host memory (memory.host). For its update a unit's
 * states are copied to one of two buffers on the device, and afterwards back.
 *
 *   host_states_begin    before the first unit of a step
 *   host_states_enter    begins to fetch the next unit's states, and waits for this one's
 *   (the update, which finds them where host_states_move says)
 *   host_states_leave    begins to copy them back
 *   host_states_end      after the last unit: what is queued next finds all states on the host
 *
 * One stream fetches and another copies back, so that both directions of the link are used while
 * the device computes. Units come in falling order of number. They use the two buffers in turn, by
 * the parity of their numbers, like those of parallel/fsdp.h, so addresses are fixed and a step may
 * be captured. On the CPU all copies happen at once. The update itself is the same, to the bit. */

typedef struct host_states host_states;

/* Takes the buffers. `registry` is borrowed and has moments_on_host; it has been allocated.
 * ST_NO_MEMORY. */
WARN_UNUSED status host_states_new(params *registry, device *dev, host_states **out);
void host_states_free(host_states **held, device *dev); /* accepts a pointer to NULL */

/* Changes the addresses of `tensor`, which is of this row, to those in the buffer of its unit. */
void host_states_move(const host_states *states, const param *row, optim_tensor *tensor);

/* `queue` is the stream of the updates, the same one from begin to end. */
WARN_UNUSED status host_states_begin(host_states *states, stream *queue);
WARN_UNUSED status host_states_enter(host_states *states, stream *queue, int unit);
WARN_UNUSED status host_states_leave(host_states *states, stream *queue, int unit);
WARN_UNUSED status host_states_end(host_states *states, stream *queue);

/* A unit's tensors: all of them, and the run of each group. */
typedef struct unit_lists {
    optim_list all, group[GROUP_COUNT];
} unit_lists;

/* What updates unit by unit need: in the middle of a backward pass (optim_units.c), or since the
 * states rest on the host, where the first two members are enough. */
typedef struct unit_updates {
    unit_lists *unit;            /* heap, [highest + 1] by unit number; none if highest is -1 */
    int lowest, highest;         /* the units with something that is trained */
    const double *loss, *weight; /* this rank's sums of the step, on the device; borrowed */
    /* On the device. */
    double *agreed;               /* [2] loss and weight of all ranks */
    double *squares;              /* [GROUP_COUNT] of the unit that is updated */
    int64_t count;                /* of the model's units */
    double *unit_squares, *share; /* [count] each, as in unit_finish_args */
} unit_updates;

struct optimizer {
    params *params;
    double beta1, beta2, eps, max_norm;
    /* What is trained: all of it, and each group's run of tensors; the runs are empty with
     * optimizer.in_backward, which has units instead. Where the states rest on the host, `all`
     * lists the tensors of the groups first and then those of the units. */
    optim_list all, group[GROUP_COUNT];
    unit_updates units;
    host_states *states; /* NULL: they lie on the device */
    /* On the device. */
    optim_tensor *tensors;
    double *sum_squares; /* [1] */
    double *after_group; /* [GROUP_COUNT] the value of sum_squares after each group */
    step_scalars *scalars;
    /* In pinned memory. */
    step_scalars *sent; /* [ahead + 1] by step */
};

/* Updates the tensors of a unit, whose states it brings and takes back if they rest on the host. */
WARN_UNUSED status optimizer_update_unit(const optimizer *optim, stream *queue, int unit);
/* Gives the memory of the units back. */
void optimizer_units_done(optimizer *optim, device *dev);

#endif
