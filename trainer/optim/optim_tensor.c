/* optim_tensor.c: see optim_tensor.h. */
#include "trainer/optim/optim_tensor.h"

#include <assert.h>
#include <stdio.h>

#include "common/base/rng.h"

/* The random numbers of a row. Its rank's local tensor is a box of the published one, which may be
 * cut along the first axis, where its elements stay neighbours, and along one other. */
static optim_random random_of(int64_t seed, const param *row)
{
    char purpose[160];
    snprintf(purpose, sizeof purpose, "round/%s", row->name);
    const rng_key key = rng_key_make((uint64_t)seed, purpose);
    const slice *box = &row->held;
    int64_t stride[SLICE_AXES], place = 0;
    int cut = 0;
    stride[SLICE_AXES - 1] = 1;
    for (int axis = SLICE_AXES - 1; axis > 0; axis--)
        stride[axis - 1] = stride[axis] * box->size[axis];
    for (int axis = 0; axis < SLICE_AXES; axis++) {
        place += box->first[axis] * stride[axis];
        if (axis > 0 && box->count[axis] != box->size[axis]) {
            assert(cut == 0);
            cut = axis;
        }
    }
    const int64_t most = cut ? box->count[cut] * stride[cut] : slice_count(box);
    return (optim_random){.key = {key.word[0], key.word[1]},
                          .first = row->own_first,
                          .run = most > 0 ? most : 1,
                          .stride = cut ? stride[cut - 1] : most,
                          .base = place};
}

optim_tensor optim_tensor_of(const conf *options, const param *row, int64_t first_chunk)
{
    const double decay = row->decay ? options->optimizer_weight_decay : 0.0;
    optim_tensor out = {.n = row->own_n,
                        .first_chunk = first_chunk,
                        .lr_factor = row->lr_factor,
                        .decay = row->own_decay >= 0 ? row->own_decay : decay,
                        .p = row->value,
                        .m = row->moment1,
                        .v = row->moment2,
                        .m_scale = row->scale1,
                        .v_scale = row->scale2,
                        .g = row->own_grad,
                        .p_act = row->own_act == row->value ? NULL : row->own_act};
    if (!row->act_master)
        return out;
    out.rounding = options->training_rounding == ROUNDING_NEAREST ? OPTIM_NEAREST : OPTIM_RANDOM;
    out.random = random_of(options->training_seed, row);
    return out;
}
