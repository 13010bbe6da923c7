/* SPDX-License-Identifier: Apache-2.0 */
/* slice.c: implements slice.h. All functions walk the axes from the fastest to the slowest,
 * dividing a number by the sizes on one side and multiplying it up by the sizes on the other. */
#include "trainer/parallel/slice.h"

slice slice_whole(int64_t rows, int64_t columns, int64_t depth, int64_t last)
{
    return (slice){.size = {rows, columns, depth, last}, .count = {rows, columns, depth, last}};
}

void slice_cut(slice *box, int axis, int64_t share, int64_t shares)
{
    box->count[axis] /= shares;
    box->first[axis] += share * box->count[axis];
}

int64_t slice_count(const slice *box)
{
    return box->count[0] * box->count[1] * box->count[2] * box->count[3];
}

int64_t slice_run(const slice *box, int64_t local, int64_t most, int64_t *out_stored)
{
    int64_t stored = 0, stride = 1, rest = local;
    int64_t block = 1, inside = 0, run = 0; /* of the fastest axes that the box has whole */
    for (int axis = SLICE_AXES - 1; axis >= 0; axis--) {
        int64_t i = rest % box->count[axis];
        rest /= box->count[axis];
        stored += (box->first[axis] + i) * stride;
        stride *= box->size[axis];
        inside += i * block;
        block *= box->count[axis];
        if (run == 0 && (box->count[axis] != box->size[axis] || axis == 0))
            run = block - inside;
    }
    *out_stored = stored;
    return run < most ? run : most;
}

int64_t slice_find(const slice *box, int64_t stored)
{
    int64_t local = 0, stride = 1;
    for (int axis = SLICE_AXES - 1; axis >= 0; axis--) {
        int64_t i = stored % box->size[axis] - box->first[axis];
        stored /= box->size[axis];
        if (i < 0 || i >= box->count[axis])
            return -1;
        local += i * stride;
        stride *= box->count[axis];
    }
    return local;
}

int64_t slice_gap(const slice *box, int64_t stored)
{
    int64_t stride = box->size[0] * box->size[1] * box->size[2] * box->size[3];
    for (int axis = 0; axis < SLICE_AXES; axis++) {
        stride /= box->size[axis];
        int64_t i = stored / stride % box->size[axis];
        if (i < box->first[axis]) /* the gap ends where the box begins */
            return (box->first[axis] - i) * stride - stored % stride;
        if (i >=
            box->first[axis] + box->count[axis]) /* the gap goes to the end of the axis at least */
            return (box->size[axis] - i) * stride - stored % stride;
    }
    return 1;
}
