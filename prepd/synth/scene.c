/* SPDX-License-Identifier: Apache-2.0 */
/* scene.c: deals the attributes of a scene, places its shapes and writes its questions. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "prepd/synth/synth.h"

static const char *const colour_names[N_COLOURS] = {"red",  "yellow", "green",
                                                    "cyan", "blue",   "pink"};
static const char *const form_names[N_FORMS] = {"square", "ring", "triangle", "cross"};
static const char *const number_names[MAX_SHAPES] = {"1", "2", "3"};
static const char *const side_names[2] = {"left", "right"};
static const char *const level_names[2] = {"top", "bottom"};

static const char ASK_COLOUR[] = "What color is the shape?";
static const char ASK_FORM[] = "What shape is it?";
static const char ASK_NUMBER[] = "How many shapes are there?";
static const char ASK_SIDE[] = "Is the shape on the left or on the right?";
static const char ASK_LEVEL[] = "Is the shape at the top or at the bottom?";

/* Sides of 60 to 100 pixels: grids of 2 x 2 to 3 x 3 merged patches, so that a row holds pictures
 * of different grids. Most sides are not multiples of 32, so that resizing is exercised. They are
 * small so that a CPU can train on tens of thousands of pictures in minutes. */
static const int small_sizes[][2] = {{64, 64}, {96, 64},  {64, 96},  {80, 60}, {60, 80},
                                     {72, 72}, {100, 66}, {66, 100}, {92, 72}, {72, 92}};
/* The commonest sizes in COCO 2014. */
static const int coco_sizes[][2] = {{640, 480}, {640, 480}, {640, 480}, {480, 640}, {480, 640},
                                    {640, 427}, {640, 427}, {427, 640}, {640, 426}, {500, 375},
                                    {375, 500}, {640, 360}, {500, 333}, {333, 500}, {640, 640}};

static rng_key key_of(uint64_t seed, const char *split, const char *purpose)
{
    char text[64];
    snprintf(text, sizeof text, "synth/%s/%s", split, purpose);
    return rng_key_make(seed, text);
}

/* Deals an attribute with `values` values to item `index` of `n_kind`, each value equally often. */
static int deal(uint64_t seed, const char *split, const char *attribute, uint64_t n_kind,
                uint64_t index, uint64_t values)
{
    return (int)(rng_permute(key_of(seed, split, attribute), n_kind, index) % values);
}

static float draw_between(rng_key key, uint64_t *counter, double low, double high)
{
    return (float)(low + (high - low) * rng_uniform(key, (*counter)++));
}

static float shorter_side(const scene *picture)
{
    return (float)(picture->width < picture->height ? picture->width : picture->height);
}

static void place_single(scene *picture, rng_key key)
{
    uint64_t counter = 0;
    scene_shape *shape = &picture->shapes[0];
    shape->centre_x = draw_between(key, &counter, 0.29, 0.32);
    shape->centre_y = draw_between(key, &counter, 0.29, 0.32);
    if (picture->right)
        shape->centre_x = 1.0f - shape->centre_x;
    if (picture->bottom)
        shape->centre_y = 1.0f - shape->centre_y;
    shape->radius = draw_between(key, &counter, 0.28, 0.31) * shorter_side(picture);
    shape->angle = draw_between(key, &counter, -0.1, 0.1);
}

/* The question about these is their number, so every form must cover the same share of a picture of
 * any size; otherwise the area would give the number away. */
static void place_several(scene *picture, rng_key key)
{
    /* The radius that gives equal areas. In units of the squared radius, the forms of scene.c
     * cover 2.82, 2.35, 1.60 and 1.84. */
    static const float equal_area[N_FORMS] = {0.86f, 0.94f, 1.12f, 1.05f};
    /* The shapes stand in different quarters, so that they never touch: the first n of the four,
     * shuffled. */
    uint64_t counter = 0;
    rng_key quarters = {{key.word[0] ^ 0x5a5a5a5au, key.word[1]}};
    float radius =
        0.175f * sqrtf((float)picture->width * (float)picture->height) * equal_area[picture->form];
    for (int k = 0; k < picture->n_shapes; k++) {
        uint64_t quarter = rng_permute(quarters, 4, (uint64_t)k);
        scene_shape *shape = &picture->shapes[k];
        shape->centre_x = (quarter & 1 ? 0.74f : 0.26f) + draw_between(key, &counter, -0.01, 0.01);
        shape->centre_y = (quarter & 2 ? 0.74f : 0.26f) + draw_between(key, &counter, -0.01, 0.01);
        shape->radius = radius;
        shape->angle = draw_between(key, &counter, -0.1, 0.1);
    }
}

void scene_draw(uint64_t seed, const char *split, int sizes, uint64_t count, uint64_t index,
                scene *out)
{
    scene picture = {0};
    const int(*table)[2] = sizes == SIZES_COCO ? coco_sizes : small_sizes;
    uint64_t n_sizes = sizes == SIZES_COCO ? sizeof coco_sizes / sizeof *coco_sizes
                                           : sizeof small_sizes / sizeof *small_sizes;
    int size = deal(seed, split, "size", count, index, n_sizes);
    picture.width = table[size][0];
    picture.height = table[size][1];
    picture.colour = deal(seed, split, "colour", count, index, N_COLOURS);

    /* The dealt place also gives the scene its rank within its kind, so that attributes which only
     * one kind is asked about are dealt within that kind. */
    uint64_t place = rng_permute(key_of(seed, split, "kind"), count, index);
    picture.single = place % 2 == 0;
    uint64_t rank = place / 2;
    uint64_t n_kind = picture.single ? count - count / 2 : count / 2;
    picture.form = deal(seed, split, picture.single ? "form" : "forms", n_kind, rank, N_FORMS);
    rng_key where = key_of(seed, split, "place");
    where.word[0] ^= (uint32_t)index;
    where.word[1] ^= (uint32_t)(index >> 32);
    if (picture.single) {
        picture.n_shapes = 1;
        picture.right = deal(seed, split, "side", n_kind, rank, 2);
        picture.bottom = deal(seed, split, "level", n_kind, rank, 2);
        place_single(&picture, where);
    } else {
        picture.n_shapes = 1 + deal(seed, split, "number", n_kind, rank, MAX_SHAPES);
        place_several(&picture, where);
    }
    picture.texture = key_of(seed, split, "texture");
    picture.texture.word[0] ^= (uint32_t)index;
    picture.texture.word[1] ^= (uint32_t)(index >> 32);
    *out = picture;
}

int scene_questions(const scene *about, scene_question out[MAX_QUESTIONS])
{
    int count = 0;
    out[count++] =
        (scene_question){ASK_COLOUR, colour_names[about->colour], "what color is the", "other"};
    if (about->single) {
        out[count++] = (scene_question){ASK_FORM, form_names[about->form], "what", "other"};
        out[count++] = (scene_question){ASK_SIDE, side_names[about->right], "is the", "other"};
        out[count++] = (scene_question){ASK_LEVEL, level_names[about->bottom], "is the", "other"};
    } else {
        out[count++] =
            (scene_question){ASK_NUMBER, number_names[about->n_shapes - 1], "how many", "number"};
    }
    return count;
}

const char *scene_text(int index)
{
    static const char *const questions[] = {ASK_COLOUR, ASK_FORM, ASK_NUMBER, ASK_SIDE, ASK_LEVEL};
    enum { N_QUESTIONS = sizeof questions / sizeof *questions };
    if (index < N_QUESTIONS)
        return questions[index];
    index -= N_QUESTIONS;
    if (index < N_COLOURS)
        return colour_names[index];
    index -= N_COLOURS;
    if (index < N_FORMS)
        return form_names[index];
    index -= N_FORMS;
    if (index < MAX_SHAPES)
        return number_names[index];
    index -= MAX_SHAPES;
    if (index < 2)
        return side_names[index];
    return index < 4 ? level_names[index - 2] : NULL;
}

/* Paints the background, then the shapes, then adds noise.
 *
 * Colours are in display space from 0 to 1; the scenes are so small that one would not see a
 * difference from linear light. All randomness is a hash of a key and a place, so each pixel is a
 * pure function of the scene. Letters: x, y a place in the picture or on the lattice; u, v a place
 * in the frame of a form or of a lattice's cell. */

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
