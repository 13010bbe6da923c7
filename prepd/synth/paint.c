/* paint.c: paints the background, then the shapes, then adds noise.
 *
 * Colours are in display space from 0 to 1; the scenes are so small that one would not see a
 * difference from linear light. All randomness is a hash of a key and a place, so each pixel is a
 * pure function of the scene. Letters: x, y a place in the picture or on the lattice; u, v a place
 * in the frame of a form or of a lattice's cell. */
#include "prepd/synth/paint.h"

#include <math.h>

/* 32 hashed bits for a lattice point. The multipliers are odd constants with well mixed bits; the
 * rest is the 32-bit finaliser of MurmurHash3. */
static uint32_t hash_point(uint32_t key, int32_t x, int32_t y)
{
    uint32_t mixed = key + (uint32_t)x * 0x9e3779b1u + (uint32_t)y * 0x85ebca77u;
    mixed ^= mixed >> 16;
    mixed *= 0x85ebca6bu;
    mixed ^= mixed >> 13;
    mixed *= 0xc2b2ae35u;
    return mixed ^ mixed >> 16;
}

static float lattice(uint32_t key, int32_t x, int32_t y)
{
    return (float)(hash_point(key, x, y) >> 8) * (2.0f / 16777216.0f) - 1.0f;
}

static float blend_values(float from, float to, float share)
{
    return from + (to - from) * share;
}

static float clamp01(float value)
{
    return value < 0.0f ? 0.0f : value > 1.0f ? 1.0f : value;
}

static float smooth(float share)
{
    return share * share * (3.0f - 2.0f * share);
}

/* Value noise from -1 to 1: hashed values at lattice points, smoothly interpolated. */
static float value_noise(uint32_t key, float x, float y)
{
    float fx = floorf(x), fy = floorf(y);
    int32_t ix = (int32_t)fx, iy = (int32_t)fy;
    float u = smooth(x - fx), v = smooth(y - fy);
    float top = blend_values(lattice(key, ix, iy), lattice(key, ix + 1, iy), u);
    float bottom = blend_values(lattice(key, ix, iy + 1), lattice(key, ix + 1, iy + 1), u);
    return blend_values(top, bottom, v);
}

static float octaves(uint32_t key, float x, float y, int count)
{
    float sum = 0.0f, amplitude = 0.5f;
    for (int k = 0; k < count; k++) {
        sum += amplitude * value_noise(key + (uint32_t)k * 0x632be5abu, x, y);
        x = x * 2.03f + 11.7f; /* not quite 2, so that the lattices do not line up */
        y = y * 2.03f + 5.3f;
        amplitude *= 0.5f;
    }
    return sum;
}

/* The dark and the light end of natural grounds. All are dull, because only the shapes are to be
 * saturated. */
static const float grounds[][2][3] = {
    {{0.40f, 0.35f, 0.30f}, {0.64f, 0.59f, 0.50f}}, /* sand */
    {{0.36f, 0.37f, 0.38f}, {0.62f, 0.62f, 0.62f}}, /* stone */
    {{0.36f, 0.40f, 0.34f}, {0.58f, 0.61f, 0.53f}}, /* undergrowth */
    {{0.42f, 0.46f, 0.51f}, {0.64f, 0.66f, 0.69f}}, /* sky */
    {{0.39f, 0.34f, 0.30f}, {0.60f, 0.53f, 0.47f}}, /* wood */
    {{0.47f, 0.47f, 0.46f}, {0.67f, 0.66f, 0.65f}}, /* plaster */
    {{0.32f, 0.33f, 0.36f}, {0.54f, 0.55f, 0.58f}}, /* asphalt */
};

static const float colours[N_COLOURS][3] = {
    {0.86f, 0.09f, 0.10f}, /* red */
    {0.96f, 0.84f, 0.08f}, /* yellow */
    {0.10f, 0.62f, 0.16f}, /* green */
    {0.08f, 0.78f, 0.84f}, /* cyan */
    {0.12f, 0.20f, 0.85f}, /* blue */
    {0.95f, 0.30f, 0.75f}, /* pink */
};

/* The light falls on everything from one direction. */
typedef struct light {
    float x, y;     /* unit vector towards the light */
    float slope;    /* how much lighter the side towards it is */
    float vignette; /* how much darker the corners are */
} light;

typedef struct ground {
    const float (*ends)[3];   /* the dark and the light end */
    uint32_t patches, grain;  /* keys of noise */
    float scale, stretch;     /* lattice cells per shorter side; how much the grain is stretched */
    float cos_a, sin_a;       /* the direction of gradient and grain */
    float gradient, contrast; /* their shares in the mix */
} ground;

static float draw_uniform(const scene *from, uint64_t count, float low, float high)
{
    return low + (high - low) * (float)rng_uniform(from->texture, count);
}

static void paint_ground(const scene *from, const ground *soil, const light *lamp, float *canvas)
{
    float side = (float)(from->width < from->height ? from->width : from->height);
    for (int row = 0; row < from->height; row++) {
        for (int column = 0; column < from->width; column++) {
            /* The place from the centre, in units of the shorter side. */
            float x = ((float)column + 0.5f - 0.5f * (float)from->width) / side;
            float y = ((float)row + 0.5f - 0.5f * (float)from->height) / side;
            float along = soil->cos_a * x + soil->sin_a * y,
                  across = soil->cos_a * y - soil->sin_a * x;
            float patches = octaves(soil->patches, x * soil->scale, y * soil->scale, 5);
            float grain = octaves(soil->grain, along * 9.0f, across * 9.0f * soil->stretch, 3);
            float tone = soil->gradient * along + soil->contrast * patches + 0.22f * grain;
            tone =
                0.5f + 0.5f * tanhf(2.0f * tone); /* soft ends, so that there are no flat patches */
            float lit =
                1.0f + lamp->slope * (lamp->x * x + lamp->y * y) - lamp->vignette * (x * x + y * y);
            float *pixel = canvas + 3 * ((int64_t)row * from->width + column);
            for (int i = 0; i < 3; i++)
                pixel[i] = blend_values(soil->ends[0][i], soil->ends[1][i], tone) * lit;
        }
    }
}

/* The signed distance from the edge of a form, in units of its radius; negative inside. */
static float form_distance(int form, float u, float v)
{
    float au = fabsf(u), av = fabsf(v);
    switch (form) {
    case FORM_SQUARE:
        return fmaxf(au, av) - 0.84f;
    case FORM_RING:
        return fabsf(sqrtf(u * u + v * v) - 0.72f) - 0.26f;
    case FORM_TRIANGLE: {
        float down = v - 0.72f;                                   /* the base */
        float side = (au * 1.75f - (v + 0.95f)) / sqrtf(4.0625f); /* both slanted edges */
        return fmaxf(down, side);
    }
    default: {
        float upright = fmaxf(au - 0.28f, av - 0.96f), lying = fmaxf(au - 0.96f, av - 0.28f);
        return fminf(upright, lying);
    }
    }
}

static void paint_shape(const scene *from, const scene_shape *shape, const light *lamp,
                        uint32_t key, float *canvas)
{
    float radius = shape->radius;
    float centre_x = shape->centre_x * (float)from->width,
          centre_y = shape->centre_y * (float)from->height;
    float cos_a = cosf(shape->angle), sin_a = sinf(shape->angle);
    float shadow_x = -0.10f * lamp->x,
          shadow_y = -0.10f * lamp->y; /* in radii, away from the light */
    float reach = radius * 1.5f;
    int first_row = (int)fmaxf(0.0f, centre_y - reach);
    int last_row = (int)fminf((float)from->height, centre_y + reach + 1.0f);
    int first_column = (int)fmaxf(0.0f, centre_x - reach);
    int last_column = (int)fminf((float)from->width, centre_x + reach + 1.0f);
    for (int row = first_row; row < last_row; row++) {
        for (int column = first_column; column < last_column; column++) {
            float x = ((float)column + 0.5f - centre_x) / radius;
            float y = ((float)row + 0.5f - centre_y) / radius;
            float u = cos_a * x + sin_a * y, v = cos_a * y - sin_a * x;
            float sx = x - shadow_x, sy = y - shadow_y;
            float shadow =
                form_distance(from->form, cos_a * sx + sin_a * sy, cos_a * sy - sin_a * sx);
            float dark = 0.45f * smooth(clamp01(0.5f - shadow * 3.0f));
            float cover = clamp01(0.5f - form_distance(from->form, u, v) *
                                             radius); /* an edge one pixel wide */
            float facing = lamp->x * x + lamp->y * y;
            float texture = 0.05f * octaves(key, x * 4.0f, y * 4.0f, 3);
            float lit = 0.95f + 0.16f * facing + texture;
            float shine = 0.22f * expf(-6.0f * ((x - 0.45f * lamp->x) * (x - 0.45f * lamp->x) +
                                                (y - 0.45f * lamp->y) * (y - 0.45f * lamp->y)));
            float *pixel = canvas + 3 * ((int64_t)row * from->width + column);
            for (int i = 0; i < 3; i++) {
                float surface = colours[from->colour][i] * lit + shine * 0.5f;
                pixel[i] = blend_values(pixel[i] * (1.0f - dark), surface, cover);
            }
        }
    }
}

/* Adds noise, the sum of two uniform numbers for each channel, and rounds to bytes. It has a few
 * levels, as that of a sensor in medium light. */
static void develop(const scene *from, uint32_t key, const float *canvas, uint8_t *rgb)
{
    for (int row = 0; row < from->height; row++) {
        for (int column = 0; column < 3 * from->width; column++) {
            int64_t at = (int64_t)row * 3 * from->width + column;
            uint32_t mixed = hash_point(key, column, row);
            float noise = ((float)(mixed & 0xffff) + (float)(mixed >> 16)) / 65535.0f - 1.0f;
            rgb[at] = (uint8_t)(clamp01(canvas[at] + 0.016f * noise) * 255.0f + 0.5f);
        }
    }
}

void scene_paint(const scene *from, float *canvas, uint8_t *rgb)
{
    enum { N_GROUNDS = sizeof grounds / sizeof *grounds };
    float direction = draw_uniform(from, 0, 0.0f, 6.2831853f),
          grain = draw_uniform(from, 1, 0.0f, 6.2831853f);
    light lamp = {cosf(direction), sinf(direction), draw_uniform(from, 2, 0.05f, 0.25f),
                  draw_uniform(from, 3, 0.0f, 0.2f)};
    uint64_t keys = rng_u64(from->texture, 4);
    ground soil = {
        .ends = grounds[rng_below(from->texture, 5, N_GROUNDS)],
        .patches = (uint32_t)keys,
        .grain = (uint32_t)(keys >> 32),
        .scale = draw_uniform(from, 6, 1.5f, 4.0f),
        .stretch = draw_uniform(from, 7, 1.0f, 4.0f),
        .cos_a = cosf(grain),
        .sin_a = sinf(grain),
        .gradient = draw_uniform(from, 8, 0.0f, 0.6f),
        .contrast = draw_uniform(from, 9, 0.4f, 0.9f),
    };
    paint_ground(from, &soil, &lamp, canvas);
    for (int k = 0; k < from->n_shapes; k++)
        paint_shape(from, &from->shapes[k], &lamp, soil.grain ^ 0x2545f491u ^ (uint32_t)k, canvas);
    develop(from, soil.patches ^ 0x68bc21ebu, canvas, rgb);
}
