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
    /* The radius that gives equal areas. In units of the squared radius, the forms of paint.c
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
