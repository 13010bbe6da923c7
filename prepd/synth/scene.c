/* scene.c: deals the attributes of a scene, places its shapes and writes its questions. */
#include "prepd/synth/scene.h"

#include <math.h>
#include <stdio.h>

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

/* Deals an attribute with `values` values to item i of n, each value equally often. */
static int deal(uint64_t seed, const char *split, const char *attribute, uint64_t n, uint64_t i,
                uint64_t values)
{
    return (int)(rng_permute(key_of(seed, split, attribute), n, i) % values);
}

static float draw_between(rng_key key, uint64_t *counter, double low, double high)
{
    return (float)(low + (high - low) * rng_uniform(key, (*counter)++));
}

static float shorter_side(const scene *s)
{
    return (float)(s->width < s->height ? s->width : s->height);
}

static void place_single(scene *s, rng_key key)
{
    uint64_t c = 0;
    scene_shape *shape = &s->shapes[0];
    shape->centre_x = draw_between(key, &c, 0.29, 0.32);
    shape->centre_y = draw_between(key, &c, 0.29, 0.32);
    if (s->right)
        shape->centre_x = 1.0f - shape->centre_x;
    if (s->bottom)
        shape->centre_y = 1.0f - shape->centre_y;
    shape->radius = draw_between(key, &c, 0.28, 0.31) * shorter_side(s);
    shape->angle = draw_between(key, &c, -0.1, 0.1);
}

/* The question about these is their number, so every form must cover the same share of a picture of
 * any size; otherwise the area would give the number away. */
static void place_several(scene *s, rng_key key)
{
    /* The radius that gives equal areas. In units of the squared radius, the forms of paint.c
     * cover 2.82, 2.35, 1.60 and 1.84. */
    static const float equal_area[N_FORMS] = {0.86f, 0.94f, 1.12f, 1.05f};
    /* The shapes stand in different quarters, so that they never touch: the first n of the four,
     * shuffled. */
    uint64_t c = 0;
    rng_key quarters = {{key.word[0] ^ 0x5a5a5a5au, key.word[1]}};
    float radius = 0.175f * sqrtf((float)s->width * (float)s->height) * equal_area[s->form];
    for (int k = 0; k < s->n_shapes; k++) {
        uint64_t quarter = rng_permute(quarters, 4, (uint64_t)k);
        scene_shape *shape = &s->shapes[k];
        shape->centre_x = (quarter & 1 ? 0.74f : 0.26f) + draw_between(key, &c, -0.01, 0.01);
        shape->centre_y = (quarter & 2 ? 0.74f : 0.26f) + draw_between(key, &c, -0.01, 0.01);
        shape->radius = radius;
        shape->angle = draw_between(key, &c, -0.1, 0.1);
    }
}

void scene_draw(uint64_t seed, const char *split, int sizes, uint64_t n, uint64_t i, scene *out)
{
    scene s = {0};
    const int(*table)[2] = sizes == SIZES_COCO ? coco_sizes : small_sizes;
    uint64_t n_sizes = sizes == SIZES_COCO ? sizeof coco_sizes / sizeof *coco_sizes
                                           : sizeof small_sizes / sizeof *small_sizes;
    int size = deal(seed, split, "size", n, i, n_sizes);
    s.width = table[size][0];
    s.height = table[size][1];
    s.colour = deal(seed, split, "colour", n, i, N_COLOURS);

    /* The dealt place also gives the scene its rank within its kind, so that attributes which only
     * one kind is asked about are dealt within that kind. */
    uint64_t place = rng_permute(key_of(seed, split, "kind"), n, i);
    s.single = place % 2 == 0;
    uint64_t rank = place / 2;
    uint64_t n_kind = s.single ? n - n / 2 : n / 2;
    s.form = deal(seed, split, s.single ? "form" : "forms", n_kind, rank, N_FORMS);
    rng_key where = key_of(seed, split, "place");
    where.word[0] ^= (uint32_t)i;
    where.word[1] ^= (uint32_t)(i >> 32);
    if (s.single) {
        s.n_shapes = 1;
        s.right = deal(seed, split, "side", n_kind, rank, 2);
        s.bottom = deal(seed, split, "level", n_kind, rank, 2);
        place_single(&s, where);
    } else {
        s.n_shapes = 1 + deal(seed, split, "number", n_kind, rank, MAX_SHAPES);
        place_several(&s, where);
    }
    s.texture = key_of(seed, split, "texture");
    s.texture.word[0] ^= (uint32_t)i;
    s.texture.word[1] ^= (uint32_t)(i >> 32);
    *out = s;
}

int scene_questions(const scene *s, scene_question out[MAX_QUESTIONS])
{
    int n = 0;
    out[n++] = (scene_question){ASK_COLOUR, colour_names[s->colour], "what color is the", "other"};
    if (s->single) {
        out[n++] = (scene_question){ASK_FORM, form_names[s->form], "what", "other"};
        out[n++] = (scene_question){ASK_SIDE, side_names[s->right], "is the", "other"};
        out[n++] = (scene_question){ASK_LEVEL, level_names[s->bottom], "is the", "other"};
    } else {
        out[n++] =
            (scene_question){ASK_NUMBER, number_names[s->n_shapes - 1], "how many", "number"};
    }
    return n;
}

const char *scene_text(int i)
{
    static const char *const questions[] = {ASK_COLOUR, ASK_FORM, ASK_NUMBER, ASK_SIDE, ASK_LEVEL};
    enum { N_QUESTIONS = sizeof questions / sizeof *questions };
    if (i < N_QUESTIONS)
        return questions[i];
    i -= N_QUESTIONS;
    if (i < N_COLOURS)
        return colour_names[i];
    i -= N_COLOURS;
    if (i < N_FORMS)
        return form_names[i];
    i -= N_FORMS;
    if (i < MAX_SHAPES)
        return number_names[i];
    i -= MAX_SHAPES;
    if (i < 2)
        return side_names[i];
    return i < 4 ? level_names[i - 2] : NULL;
}
