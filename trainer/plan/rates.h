/* SPDX-License-Identifier: Apache-2.0 */
/* rates.h: how fast a GPU and its links are, for predictions of time. The rates of the H200 are
 * shipped; others are read from a file that `trainer bench ops --rates FILE` has written on the
 * machine itself. trainer/plan/time.md names the source of each shipped rate. */
#ifndef TESSERA_TRAINER_PLAN_RATES_H
#define TESSERA_TRAINER_PLAN_RATES_H

#include <stdio.h>

#include "common/base/status.h"
#include "trainer/plan/plan_device.h"

typedef enum rate_key {
    RATE_DENSE,   /* FLOP/s of dense products */
    RATE_EXPERTS, /* FLOP/s of grouped products */
    /* FLOP/s of attention, counting the recomputed scores: the forward pass, the backward pass that
     * gives the same bits every time, and the one that sums in any order; of whole rows of text and
     * of frames. */
    RATE_ATTENTION,
    RATE_ATTENTION_BACKWARD,
    RATE_ATTENTION_ANY_ORDER,
    RATE_VISION_ATTENTION,
    RATE_VISION_ATTENTION_BACKWARD,
    RATE_VISION_ATTENTION_ANY_ORDER,
    RATE_OWN_ATTENTION,        /* of our own kernels on a GPU, which take every shape: of text */
    RATE_OWN_VISION_ATTENTION, /* and of frames */
    RATE_COPY,                 /* bytes/s of device memory, read and written both counted */
    RATE_LINK,                 /* bytes/s that a rank receives from ranks of its node */
    RATE_NETWORK,              /* bytes/s that a rank's adapter receives from other nodes */
    RATE_HOST,                 /* bytes/s between pinned host memory and the device */
    RATE_PEAK,                 /* FLOP/s that MFU is a share of */
    RATE_KEYS
} rate_key;

/* How a rate is known. */
typedef enum rate_kind {
    RATE_ASSUMED,
    RATE_PUBLISHED, /* measured and published by others */
    RATE_NOMINAL,   /* the maker's figure, by which MFU is counted */
    RATE_MEASURED   /* measured on an H200 by this project, or by the user */
} rate_kind;

typedef struct rates {
    double of[RATE_KEYS];
    rate_kind kind[RATE_KEYS];
    const char *from[RATE_KEYS]; /* what was measured and by whom; NULL: `source` says so */
    double memory;               /* bytes that a process may use; 0: the file does not say */
    int sm;       /* the GPU's compute capability, times ten, which decides whose kernels run */
    int per_node; /* how many ranks a node has */
    char source[256];
} rates;

const char *rate_name(rate_key key); /* "dense_tflops" */

/* The rates of an H200: measured on one, but for those between ranks,
 * which others have published. */
rates rates_h200(void);
/* The shipped rates of a card. The H100 is the same chip as the H200 with slower memory. All others
 * get assumed rates, the H200's in proportion to NVIDIA's figures; `source` says so. */
rates rates_of(const gpu_card *card);
/* Reads a YAML file with keys such as `dense_tflops: 700`, and memory_gib, ranks_per_node and
 * source. Missing keys stay as in rates_h200.
 * ST_CONFIG names the line that is wrong. */
WARN_UNUSED status rates_read(const char *path, rates *out);
/* Writes the rates of kind RATE_MEASURED as such a file. */
void rates_write(const rates *rates, FILE *to);
/* Prints a line per rate, with its kind and its source. */
void rates_print(const rates *rates, FILE *to);

#endif
