/* scene.h: what is in a generated picture, and which questions are asked about it.
 *
 * Attributes are dealt like cards, not rolled like dice: within a split, an attribute of scene i is
 * a keyed permutation of i, modulo the number of its values. So each value occurs equally often, to
 * within one. Each question has each of its answers equally often, and its text alone predicts
 * nothing: a model must look at the picture.
 *
 * There are two kinds of scene, which are dealt too: one large shape in one of the four quarters
 * (the questions are its colour, its form, left or right, top or bottom), or one to three equal
 * shapes in different quarters (the questions are their colour and their number). */
#ifndef TESSERA_PREPD_SYNTH_SCENE_H
#define TESSERA_PREPD_SYNTH_SCENE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rng.h"

enum { SIZES_SMALL, SIZES_COCO };
enum { FORM_SQUARE, FORM_RING, FORM_TRIANGLE, FORM_CROSS, N_FORMS };
enum { N_COLOURS = 6, MAX_SHAPES = 3, MAX_QUESTIONS = 4 };

typedef struct scene_shape {
    float centre_x, centre_y; /* its centre, as a share of the picture's width and height */
    float radius;             /* half of its extent, in pixels */
    float angle;              /* radians */
} scene_shape;

typedef struct scene {
    int width, height; /* pixels */
    int colour, form;  /* of all shapes */
    bool single;       /* the first kind */
    int right, bottom; /* where the single shape is: 0 or 1 */
    int n_shapes;
    scene_shape shapes[MAX_SHAPES];
    rng_key texture; /* from which background, light and noise are drawn */
} scene;

typedef struct scene_question {
    const char *text, *answer;               /* static */
    const char *question_type, *answer_type; /* as in the official annotations */
} scene_question;

/* Draws scene `index` of the `count` scenes of a split. The result depends only on the arguments.
 * `sizes` is SIZES_SMALL or SIZES_COCO. */
void scene_draw(uint64_t seed, const char *split, int sizes, uint64_t count, uint64_t index,
                scene *out);
/* Writes the questions about a scene; returns how many there are. */
int scene_questions(const scene *about, scene_question out[MAX_QUESTIONS]);

/* Text `index` of all texts that the data set can hold, for the tokenizer; NULL after the last. */
const char *scene_text(int index);

#endif
