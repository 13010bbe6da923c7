/* synth.h: prepd synth: a generated data set of real JPEG files in the official VQAv2 layout, with
 * a model folder, so that everything can run without a download.
 *
 *   DIR/v2_OpenEnded_mscoco_{train,val}2014_questions.json
 *   DIR/v2_mscoco_{train,val}2014_annotations.json
 *   DIR/images/{train,val}2014/COCO_{train,val}2014_%012d.jpg
 *   DIR/model/{config,tokenizer,tokenizer_config,preprocessor_config,...}.json
 *   DIR/synth.json       what it was made from; marks the folder as ours
 *
 * The same options give the same bytes. */
#ifndef TESSERA_PREPD_SYNTH_H
#define TESSERA_PREPD_SYNTH_H

#include <stdint.h>

#include "common/base/status.h"

enum { SYNTH_MIN_IMAGES = 2, SYNTH_MAX_IMAGES = 1000000 };

typedef struct synth_options {
    const char *folder;
    int64_t images; /* in total; a tenth, at least 64, at most half, are held out as val */
    uint64_t seed;
    int sizes; /* SIZES_SMALL or SIZES_COCO */
} synth_options;

/* Images of the val split. */
int64_t synth_held_out(int64_t images);

/* Writes the data set; a folder that synth wrote before is replaced, any other that holds something
 * is refused (ST_CANT_CREATE). */
WARN_UNUSED status synth_write(const synth_options *o);

/* prepd synth --out DIR --images N --seed S [--sizes small|coco]; argv[0] is not looked at. */
WARN_UNUSED status verb_synth(int argc, char **argv);

#endif
