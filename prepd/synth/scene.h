/* scene.h: what is in a generated picture, and the questions asked about it.
 *
 * Attributes are dealt, not rolled: within a split, attribute a of scene i is a keyed permutation
 * of i modulo the number of its values. So every value occurs equally often (to within one), every
 * question text has all its answers equally often, and the text alone predicts nothing.
 *
 * Two kinds alternate (dealt too): one big shape in one of the four quarters (asked for colour,
 * shape, left or right, top or bottom), or one to three shapes alike in different quarters (asked
 * for colour, number). */
#ifndef TESSERA_PREPD_SYNTH_SCENE_H
#define TESSERA_PREPD_SYNTH_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rng.h"

enum { SIZES_SMALL, SIZES_COCO };
enum { FORM_SQUARE, FORM_RING, FORM_TRIANGLE, FORM_CROSS, N_FORMS };
enum { N_COLOURS = 6, MAX_SHAPES = 3, MAX_QUESTIONS = 4 };

typedef struct scene_shape {
    float x, y;   /* centre, as a share of width and height */
    float radius; /* half the shape's extent, pixels */
    float angle;  /* radians */
} scene_shape;

typedef struct scene {
    int width, height; /* pixels */
    int colour, form;
    bool single;
    int right, bottom; /* of the single shape: 0 or 1 */
    int n_shapes;
    scene_shape shapes[MAX_SHAPES];
    rng_key texture; /* background, light, noise */
} scene;

typedef struct scene_question {
    const char *text, *answer;               /* static */
    const char *question_type, *answer_type; /* as the official annotations have them */
} scene_question;

/* Scene i of the n scenes of a split; a function of its arguments. */
void scene_draw(uint64_t seed, const char *split, int sizes, uint64_t n, uint64_t i, scene *out);
/* Number of questions written to out. */
int scene_questions(const scene *s, scene_question out[MAX_QUESTIONS]);

/* Every text the data set can hold, for the tokenizer: NULL after the last. */
const char *scene_text(int i);

#endif
