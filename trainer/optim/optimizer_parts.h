/* optimizer_parts.h: what the files of an optimizer share; private to this folder. */
#ifndef TESSERA_TRAINER_OPTIM_OPTIMIZER_PARTS_H
#define TESSERA_TRAINER_OPTIM_OPTIMIZER_PARTS_H

#include "trainer/optim/optim.h"

/* A unit's tensors: all of them, and the run of each group. */
typedef struct unit_lists {
    optim_list all, group[GROUP_COUNT];
} unit_lists;

/* What updates in the middle of a backward pass need besides (optim_units.c). */
typedef struct unit_updates {
    unit_lists *unit;            /* heap, [highest + 1] by unit number */
    int lowest, highest;         /* the units with something that is trained */
    const double *loss, *weight; /* this rank's sums of the step, on the device; borrowed */
    /* On the device. */
    double *agreed;    /* [2] loss and weight of all ranks */
    double *squares;   /* [GROUP_COUNT] of the unit that is updated */
    double *last_norm; /* [1] as in unit_finish_args */
} unit_updates;

struct optimizer {
    params *params;
    double beta1, beta2, eps, max_norm;
    /* What is trained: all of it, and each group's run of tensors; the runs are empty with
     * optimizer.in_backward, which has units instead. */
    optim_list all, group[GROUP_COUNT];
    unit_updates units;
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
/* Gives the memory of the units back. */
void optimizer_units_done(optimizer *optim, device *dev);

#endif
