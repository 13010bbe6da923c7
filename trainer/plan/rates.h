/* rates.h: how fast a GPU and its links are, for predictions: shipped for the H200, or read from a
 * file that `trainer bench ops --rates FILE` wrote on the machine itself. */
#ifndef TESSERA_TRAINER_PLAN_RATES_H
#define TESSERA_TRAINER_PLAN_RATES_H

#include <stdio.h>

#include "common/base/status.h"

typedef enum rate_key {
    RATE_DENSE,            /* FLOP/s of dense products */
    RATE_EXPERTS,          /* FLOP/s of grouped products */
    RATE_ATTENTION,        /* FLOP/s of text attention, scores made again in backward counted */
    RATE_VISION_ATTENTION, /* the same of vision */
    RATE_COPY,             /* bytes/s of device memory, read and written both counted */
    RATE_LINK,             /* bytes/s a rank receives from ranks of its node */
    RATE_NETWORK,          /* bytes/s that a rank's adapter receives from other nodes */
    RATE_PEAK,             /* FLOP/s that MFU is a share of */
    RATE_KEYS
} rate_key;

/* How a rate is known. */
typedef enum rate_kind {
    RATE_ASSUMED,
    RATE_PUBLISHED, /* measured by others and published */
    RATE_NOMINAL,   /* the maker's figure: what MFU is counted by */
    RATE_MEASURED   /* on this project's kind of GPU, or the user's own */
} rate_kind;

typedef struct rates {
    double of[RATE_KEYS];
    rate_kind kind[RATE_KEYS];
    const char *from[RATE_KEYS]; /* what was measured, by whom; NULL: `source` says */
    double memory;               /* bytes a process may use; 0: the file does not say */
    int per_node;                /* ranks of a node */
    char source[256];
} rates;

const char *rate_name(rate_key k); /* "dense_tflops" */
double rate_unit(rate_key k);      /* what one of the file's units is: 1e12 or 1e9 */

/* The H200: copy as measured on one of them, the rest as published by others (README.md). */
rates rates_h200(void);
/* A YAML file of `dense_tflops: 700` and the like, memory_gib, ranks_per_node, source; what it
 * lacks stays as in rates_h200. ST_CONFIG with the line. */
WARN_UNUSED status rates_read(const char *path, rates *out);
/* Only what was measured. */
void rates_write(const rates *r, FILE *to);
/* One line per rate, with its kind and where it comes from. */
void rates_print(const rates *r, FILE *to);

#endif
