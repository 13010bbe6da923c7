/* rates.h: how fast a GPU and its links are, for predictions: shipped for the H200, or read from a
 * file that `trainer bench ops --rates FILE` wrote on the machine itself. */
#ifndef TESSERA_PLAN_RATES_H
#define TESSERA_PLAN_RATES_H

#include <stdbool.h>
#include <stdio.h>

#include "common/status.h"

typedef enum rate_key {
    RATE_DENSE,            /* FLOP/s of dense products */
    RATE_EXPERTS,          /* FLOP/s of grouped products */
    RATE_ATTENTION,        /* FLOP/s of text attention, useful ones */
    RATE_VISION_ATTENTION, /* FLOP/s */
    RATE_COPY,             /* bytes/s of device memory, read and written both counted */
    RATE_LINK,             /* bytes/s a rank receives from ranks of its node */
    RATE_NETWORK,          /* bytes/s a rank receives from other nodes */
    RATE_PEAK,             /* FLOP/s that MFU is a share of */
    RATE_KEYS
} rate_key;

typedef struct rates {
    double of[RATE_KEYS];
    bool measured[RATE_KEYS]; /* else assumed */
    double memory;            /* bytes a process may use */
    int per_node;             /* ranks of a node */
    char source[256];
} rates;

const char *rate_name(rate_key k); /* "dense_tflops" */
double rate_unit(rate_key k);      /* what one of the file's units is: 1e12 or 1e9 */

/* The H200: product and copy as measured on one of them, the rest assumed and said so. */
rates rates_h200(void);
/* A YAML file of `dense_tflops: 700` and the like, memory_gib, ranks_per_node, source; what it
 * lacks stays as in rates_h200. ST_CONFIG with the line. */
WARN_UNUSED status rates_read(const char *path, rates *out);
/* Only what was measured. */
void rates_write(const rates *r, FILE *to);
/* One line per rate, with "measured" or "assumed". */
void rates_print(const rates *r, FILE *to);

#endif
