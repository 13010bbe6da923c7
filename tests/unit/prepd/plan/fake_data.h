/* SPDX-License-Identifier: Apache-2.0 */
/* fake_data.h: a data set whose samples are given by their lengths and pictures, with its index,
 * for tests of the plan. */
#ifndef TESSERA_TESTS_UNIT_PREPD_PLAN_FAKE_DATA_H
#define TESSERA_TESTS_UNIT_PREPD_PLAN_FAKE_DATA_H

#include "prepd/plan/plan.h"

typedef struct fake_sample {
    int32_t text_tokens;
    int32_t width, height; /* 0 = no picture */
    const char *cause;     /* why the adapter refuses it, or NULL */
    bool plain;            /* true: a text that may be split over rows */
    int64_t image_of;      /* it shows the picture of sample image_of - 1; 0 = its own */
} fake_sample;

typedef struct fake_data {
    dataset base;
    const fake_sample *samples; /* borrowed */
    int64_t count;
    data_index *index;
    int64_t per_chunk; /* samples in a piece; 0 = samples can be read in any order */
} fake_data;

/* Picture i belongs to sample i. A sample without a picture has one that no sample shows. */
void fake_data_init(fake_data *data, const fake_sample *samples, int64_t count);
void fake_data_done(fake_data *data);

/* Lengths like VQAv2's at COCO sizes: 250 to 360 tokens, most near 300. */
void fake_vqa_lengths(uint64_t seed, fake_sample *out, int64_t count);

#endif
