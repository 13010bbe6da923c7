/* optimizer_parts.h: what the files of an optimizer share; private to this folder. */
#ifndef TESSERA_TRAINER_OPTIM_OPTIMIZER_PARTS_H
#define TESSERA_TRAINER_OPTIM_OPTIMIZER_PARTS_H

#include "trainer/optim/host_states.h"
#include "trainer/optim/optim.h"

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

/* Appends the trained tensors of a group, of one unit or of all (unit -1), to `host` and to
 * optim->all. *out: their run. */
void optimizer_list_group(optimizer *optim, const conf *options, int group, int unit,
                          optim_tensor *host, optim_list *out);
/* Lists all trained tensors by unit and group, as optimizer_list_group does. ST_NO_MEMORY. */
WARN_UNUSED status optimizer_list_units(optimizer *optim, const conf *options, optim_tensor *host);
/* Updates the tensors of a unit, whose states it brings and takes back if they rest on the host. */
WARN_UNUSED status optimizer_update_unit(const optimizer *optim, stream *queue, int unit);
/* Gives the memory of the units back. */
void optimizer_units_done(optimizer *optim, device *dev);

#endif
