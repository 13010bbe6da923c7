/* SPDX-License-Identifier: Apache-2.0 */
/* synth.h: the verb `prepd synth`, which writes a generated data set: real JPEG files in the
 * official layout of VQAv2, and a model folder. With it everything can be tried without a download.
 *
 *   DIR/v2_OpenEnded_mscoco_{train,val}2014_questions.json
 *   DIR/v2_mscoco_{train,val}2014_annotations.json
 *   DIR/images/{train,val}2014/COCO_{train,val}2014_%012d.jpg
 *   DIR/model/{config,tokenizer,tokenizer_config,preprocessor_config,...}.json
 *   DIR/synth.json       the options; it marks the folder as one that synth may replace
 *
 * The same options give the same bytes. */
#ifndef TESSERA_PREPD_SYNTH_H
#define TESSERA_PREPD_SYNTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/rng.h"
#include "common/base/status.h"
#include "common/json/json.h"

enum { SYNTH_MIN_IMAGES = 2, SYNTH_MAX_IMAGES = 1000000 };

typedef struct synth_options {
    const char *folder;
    int64_t images; /* of both splits together; synth_held_out of them are val */
    uint64_t seed;
    int sizes; /* SIZES_SMALL or SIZES_COCO */
} synth_options;

/* How many of the images are the val split: a tenth, but at least 64, and at most half. */
int64_t synth_held_out(int64_t images);

/* Writes the data set. A folder that synth wrote before is replaced; any other folder that is not
 * empty is refused with ST_CANT_CREATE. ST_USAGE for a number of images out of range. */
WARN_UNUSED status synth_write(const synth_options *options);

/* prepd synth --out DIR --images N --seed S [--sizes small|coco]. argv[0] is not read. */
WARN_UNUSED status verb_synth(int argc, char **argv);

/* The few file operations that synth needs. Every error has the path in it. */

enum { FILES_PATH_MAX = 4096 }; /* bytes, with the end */

/* Writes "folder/NAME" to `out`, where NAME is formatted as by printf. ST_BAD_INPUT if it is too
 * long. */
WARN_UNUSED status files_path(char out[FILES_PATH_MAX], const char *folder, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
WARN_UNUSED status files_write(const char *path, const void *data, size_t size);
/* Writes what the writer holds to folder/name and empties the writer. */
WARN_UNUSED status files_write_json(const char *folder, const char *name, json_writer *writer);

/* What is in a generated picture, and which questions are asked about it.
 *
 * Attributes are dealt like cards, not rolled like dice: within a split, an attribute of scene i is
 * a keyed permutation of i, modulo the number of its values. So each value occurs equally often, to
 * within one. Each question has each of its answers equally often, and its text alone predicts
 * nothing: a model must look at the picture.
 *
 * There are two kinds of scene, which are dealt too: one large shape in one of the four quarters
 * (the questions are its colour, its form, left or right, top or bottom), or one to three equal
 * shapes in different quarters (the questions are their colour and their number). */

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

/* Trains a small byte-level BPE (byte pair encoding) and writes it as a tokenizer.json of
 * Hugging Face, with Qwen's added tokens after the vocabulary. So a run needs no downloaded
 * tokenizer.
 *
 * The texts are ASCII. They are cut into pieces by the same expression as Qwen's tokenizer uses,
 * and no token ever crosses a piece. */

enum { BPE_BYTES = 256, BPE_MAX_MERGES = 768, BPE_TOKEN_BYTES = 64 };

typedef struct bpe {
    int n_tokens; /* 256 for the single bytes, then one for each merge */
    int n_merges;
    int left[BPE_MAX_MERGES], right[BPE_MAX_MERGES]; /* [n_merges] the two tokens that are merged */
    uint8_t bytes[BPE_BYTES + BPE_MAX_MERGES]
                 [BPE_TOKEN_BYTES];       /* [n_tokens] what each stands for */
    int size[BPE_BYTES + BPE_MAX_MERGES]; /* [n_tokens] how many bytes */
} bpe;

typedef struct bpe_text {
    const char *text; /* borrowed */
    int64_t count;    /* how often it counts */
} bpe_text;

/* Merges the commonest pair of neighbouring tokens, and of equally common ones that with the lowest
 * ids, until there are max_merges or no pair occurs twice. */
WARN_UNUSED status bpe_train(const bpe_text *texts, int n_texts, int max_merges, bpe *out);

/* The id of one of Qwen's added tokens after this vocabulary; -1 if none has this content. */
int bpe_added_id(const bpe *vocabulary, const char *content);
int bpe_size(const bpe *vocabulary); /* how many tokens there are with the added ones */

/* Appends a whole tokenizer.json to the writer. */
void bpe_write(const bpe *vocabulary, json_writer *writer);
/* Appends a whole tokenizer_config.json. */
void bpe_write_config(const bpe *vocabulary, json_writer *writer);

/* Paints a scene: a textured and lit background, like the blurred ground of a photograph;
 * on it saturated, shaded shapes with soft shadows; and a little sensor noise over all. */

/* Writes rgb [height, width, 3]. canvas [height, width, 3] is scratch. Both are the caller's. */
void scene_paint(const scene *from, float *canvas, uint8_t *rgb);

/* The model folder of a generated data set: configuration, tokenizer and processor
 * settings of a small Qwen3-VL MoE model. It has no weights, because training starts from scratch.
 */

/* Writes config.json, generation_config.json, preprocessor_config.json,
 * video_preprocessor_config.json, tokenizer.json and tokenizer_config.json into an existing folder.
 * min_pixels and max_pixels bound the area of a picture after resizing. */
WARN_UNUSED status model_write(const char *folder, int64_t min_pixels, int64_t max_pixels);

#endif
