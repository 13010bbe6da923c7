/* filter.c: the filter in plain C, and the choice of the implementation to use. */
#include "proto/filter.h"

#include "proto/filter_kernels.h"

enum { SIDE = FILTER_SIDE, PLANE = FILTER_PLANE, CHANNELS = 3 };

/* Filters one plane of a patch. green is NULL for the green plane itself. */
static void apply_plane(const uint8_t *in, const uint8_t *green, uint8_t *out)
{
    uint8_t above[SIDE] = {0}; /* the differences along x of the row above */
    for (int j = 0; j < SIDE; j++) {
        uint8_t left = 0;
        for (int k = 0; k < SIDE; k++) {
            const int i = j * SIDE + k;
            const uint8_t value = (uint8_t)(in[i] - (green ? green[i] : 0));
            const uint8_t difference = (uint8_t)(value - left);
            out[i] = (uint8_t)(difference - above[k]);
            left = value;
            above[k] = difference;
        }
    }
}

/* The reverse. green is the restored green plane, or NULL for the green plane itself. */
static void undo_plane(const uint8_t *in, const uint8_t *green, uint8_t *out)
{
    uint8_t sum[SIDE] = {0}; /* running sums along y */
    for (int j = 0; j < SIDE; j++) {
        uint8_t value = 0;
        for (int k = 0; k < SIDE; k++) {
            const int i = j * SIDE + k;
            sum[k] = (uint8_t)(sum[k] + in[i]);
            value = (uint8_t)(value + sum[k]);
            out[i] = (uint8_t)(value + (green ? green[i] : 0));
        }
    }
}

static void apply_plain(const uint8_t *in, int64_t channel, uint8_t *out)
{
    const uint8_t *green = in + channel;
    apply_plane(in, green, out);
    apply_plane(green, 0, out + channel);
    apply_plane(in + 2 * channel, green, out + 2 * channel);
}

static void undo_plain(const uint8_t *in, int64_t channel, uint8_t *out)
{
    const uint8_t *green = out + channel;
    undo_plane(in + channel, 0, out + channel);
    undo_plane(in, green, out);
    undo_plane(in + 2 * channel, green, out + 2 * channel);
}

const filter_kernels filter_plain = {apply_plain, undo_plain};

const filter_kernels *filter_kernels_here(void)
{
#if defined(__x86_64__)
    if (filter_avx2.apply && __builtin_cpu_supports("avx2"))
        return &filter_avx2;
#endif
    return &filter_plain;
}

/* Calls `each` for every frame of every patch. */
static void every_frame(void (*each)(const uint8_t *, int64_t, uint8_t *), const uint8_t *in,
                        int64_t n_patches, int n_frames, uint8_t *out)
{
    const int64_t channel = (int64_t)n_frames * PLANE;
    for (int64_t i = 0; i < n_patches; i++)
        for (int frame = 0; frame < n_frames; frame++) {
            const int64_t at = i * CHANNELS * channel + (int64_t)frame * PLANE;
            each(in + at, channel, out + at);
        }
}

void filter_plane_apply(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out)
{
    every_frame(filter_kernels_here()->apply, in, n_patches, n_frames, out);
}

void filter_plane_undo(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out)
{
    every_frame(filter_kernels_here()->undo, in, n_patches, n_frames, out);
}
