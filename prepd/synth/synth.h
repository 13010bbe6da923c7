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

#include <stdint.h>

#include "common/base/status.h"

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

#endif
