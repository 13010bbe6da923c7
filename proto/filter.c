/* filter.c: subtract green, predict in the plane. One row of a patch is one 16-byte vector. */
#include "proto/filter.h"

#include <string.h>

enum { SIDE = 16, PLANE = SIDE * SIDE, CHANNELS = 3 };

#if defined(__SSE2__)
#include <emmintrin.h>

typedef __m128i bytes16;

static inline bytes16 zero16(void)
{
    return _mm_setzero_si128();
}

static inline bytes16 load16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

static inline void store16(uint8_t *p, bytes16 v)
{
    _mm_storeu_si128((__m128i *)p, v);
}

static inline bytes16 add16(bytes16 a, bytes16 b)
{
    return _mm_add_epi8(a, b);
}

static inline bytes16 sub16(bytes16 a, bytes16 b)
{
    return _mm_sub_epi8(a, b);
}

/* v[x] - v[x - 1] */
static inline bytes16 difference16(bytes16 v)
{
    return _mm_sub_epi8(v, _mm_slli_si128(v, 1));
}

/* v[0] + ... + v[x], in four doubling steps */
static inline bytes16 running_sum16(bytes16 v)
{
    v = _mm_add_epi8(v, _mm_slli_si128(v, 1));
    v = _mm_add_epi8(v, _mm_slli_si128(v, 2));
    v = _mm_add_epi8(v, _mm_slli_si128(v, 4));
    return _mm_add_epi8(v, _mm_slli_si128(v, 8));
}

#else

typedef struct bytes16 {
    uint8_t at[SIDE];
} bytes16;

static inline bytes16 zero16(void)
{
    return (bytes16){{0}};
}

static inline bytes16 load16(const uint8_t *p)
{
    bytes16 v;
    memcpy(v.at, p, SIDE);
    return v;
}

static inline void store16(uint8_t *p, bytes16 v)
{
    memcpy(p, v.at, SIDE);
}

static inline bytes16 add16(bytes16 a, bytes16 b)
{
    for (int x = 0; x < SIDE; x++)
        a.at[x] = (uint8_t)(a.at[x] + b.at[x]);
    return a;
}

static inline bytes16 sub16(bytes16 a, bytes16 b)
{
    for (int x = 0; x < SIDE; x++)
        a.at[x] = (uint8_t)(a.at[x] - b.at[x]);
    return a;
}

static inline bytes16 difference16(bytes16 v)
{
    for (int x = SIDE - 1; x > 0; x--)
        v.at[x] = (uint8_t)(v.at[x] - v.at[x - 1]);
    return v;
}

static inline bytes16 running_sum16(bytes16 v)
{
    for (int x = 1; x < SIDE; x++)
        v.at[x] = (uint8_t)(v.at[x] + v.at[x - 1]);
    return v;
}

#endif

/* One plane of a patch; green is NULL for the green plane itself. */
static inline void apply_plane(const uint8_t *in, const uint8_t *green, uint8_t *out)
{
    bytes16 above = zero16();
    for (int y = 0; y < SIDE; y++) {
        bytes16 v = load16(in + y * SIDE);
        if (green)
            v = sub16(v, load16(green + y * SIDE));
        v = difference16(v);
        store16(out + y * SIDE, sub16(v, above));
        above = v;
    }
}

/* green, if not NULL, is the green plane already restored. */
static inline void undo_plane(const uint8_t *in, const uint8_t *green, uint8_t *out)
{
    bytes16 sum = zero16();
    for (int y = 0; y < SIDE; y++) {
        sum = add16(sum, load16(in + y * SIDE));
        bytes16 v = running_sum16(sum);
        if (green)
            v = add16(v, load16(green + y * SIDE));
        store16(out + y * SIDE, v);
    }
}

void filter_plane_apply(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out)
{
    int64_t channel = (int64_t)n_frames * PLANE;
    for (int64_t i = 0; i < n_patches * n_frames; i++) {
        int64_t at = i / n_frames * CHANNELS * channel + i % n_frames * PLANE;
        const uint8_t *green = in + at + channel;
        apply_plane(in + at, green, out + at);
        apply_plane(green, NULL, out + at + channel);
        apply_plane(in + at + 2 * channel, green, out + at + 2 * channel);
    }
}

void filter_plane_undo(const uint8_t *in, int64_t n_patches, int n_frames, uint8_t *out)
{
    int64_t channel = (int64_t)n_frames * PLANE;
    for (int64_t i = 0; i < n_patches * n_frames; i++) {
        int64_t at = i / n_frames * CHANNELS * channel + i % n_frames * PLANE;
        const uint8_t *green = out + at + channel;
        undo_plane(in + at + channel, NULL, out + at + channel);
        undo_plane(in + at, green, out + at);
        undo_plane(in + at + 2 * channel, green, out + at + 2 * channel);
    }
}
