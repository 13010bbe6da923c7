#include "trainer/parallel/slice.h"

slice slice_whole(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (slice){.size = {a, b, c, d}, .n = {a, b, c, d}};
}

void slice_cut(slice *s, int axis, int64_t share, int64_t shares)
{
    s->n[axis] /= shares;
    s->first[axis] += share * s->n[axis];
}

int64_t slice_count(const slice *s)
{
    return s->n[0] * s->n[1] * s->n[2] * s->n[3];
}

int64_t slice_run(const slice *s, int64_t local, int64_t most, int64_t *out_stored)
{
    int64_t stored = 0, stride = 1, rest = local;
    int64_t block = 1, inside = 0, run = 0; /* of the last axes that are held whole */
    for (int axis = SLICE_AXES - 1; axis >= 0; axis--) {
        int64_t i = rest % s->n[axis];
        rest /= s->n[axis];
        stored += (s->first[axis] + i) * stride;
        stride *= s->size[axis];
        inside += i * block;
        block *= s->n[axis];
        if (run == 0 && (s->n[axis] != s->size[axis] || axis == 0))
            run = block - inside;
    }
    *out_stored = stored;
    return run < most ? run : most;
}

int64_t slice_find(const slice *s, int64_t stored)
{
    int64_t local = 0, stride = 1;
    for (int axis = SLICE_AXES - 1; axis >= 0; axis--) {
        int64_t i = stored % s->size[axis] - s->first[axis];
        stored /= s->size[axis];
        if (i < 0 || i >= s->n[axis])
            return -1;
        local += i * stride;
        stride *= s->n[axis];
    }
    return local;
}

int64_t slice_gap(const slice *s, int64_t stored)
{
    int64_t stride = s->size[0] * s->size[1] * s->size[2] * s->size[3];
    for (int axis = 0; axis < SLICE_AXES; axis++) {
        stride /= s->size[axis];
        int64_t i = stored / stride % s->size[axis];
        if (i < s->first[axis]) /* up to where it begins */
            return (s->first[axis] - i) * stride - stored % stride;
        if (i >= s->first[axis] + s->n[axis]) /* to the axis' end */
            return (s->size[axis] - i) * stride - stored % stride;
    }
    return 1;
}
