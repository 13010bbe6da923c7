/* optim_tensor.h: describes a parameter to an op of the optimiser (ops/loss_ops.h). */
#ifndef TESSERA_TRAINER_OPTIM_TENSOR_H
#define TESSERA_TRAINER_OPTIM_TENSOR_H

#include "common/conf/conf.h"
#include "trainer/model/params.h"
#include "trainer/ops/loss_ops.h"

/* The tensor of a trained row, as a list's chunk `first_chunk` and those after it. */
optim_tensor optim_tensor_of(const conf *options, const param *row, int64_t first_chunk);

#endif
