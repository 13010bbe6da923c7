/* memory_search.h: the search for micro-batches that fit into memory.limit of a device. */
#ifndef TESSERA_TRAINER_PLAN_MEMORY_SEARCH_H
#define TESSERA_TRAINER_PLAN_MEMORY_SEARCH_H

#include "trainer/plan/layout_plan.h"

/* Stands for the configured mode, beside the modes of activation checkpointing (AC_NONE ..). */
enum { SEARCH_AS_CONFIGURED = -1 };

/* What is recomputed with this mode and micro-batches of `rows` rows. */
WARN_UNUSED status memory_search_recompute(const plan_input *in, int64_t rows, int mode,
                                           recomputes *out);
/* The most rows of a micro-batch that fit; 0 if not even one does. */
WARN_UNUSED status memory_most_rows(const plan_input *in, int mode, int64_t *out);

/* A micro-batch. */
typedef struct memory_fit {
    int mode;     /* of activation checkpointing, or SEARCH_AS_CONFIGURED */
    int64_t rows; /* 0: none was found */
    int64_t seq_len, patch_budget;
    int64_t total;   /* bytes; of memory_fit_bytes and memory_find_least */
    int64_t resting; /* of these functions too: bytes of the host (memory.host) */
} memory_fit;

/* The length of a row and its patches, as the input has them. */
int64_t memory_seq_len(const plan_input *in);
int64_t memory_patch_budget(const plan_input *in);

/* Finds the mode with which most rows of the input's length fit, up to as many as are configured.
 * The configured mode comes before others that fit as many. */
WARN_UNUSED status memory_find_rows(const plan_input *in, memory_fit *out);
/* Finds the longest row that fits when all of it is recomputed, of the lengths 3/4, 1/2, 3/8 .. of
 * the input's. */
WARN_UNUSED status memory_find_length(const plan_input *in, memory_fit *out);
/* The shortest row, whether it fits or not, and its bytes. */
WARN_UNUSED status memory_find_least(const plan_input *in, memory_fit *out);
/* Fills in the bytes of a micro-batch. */
WARN_UNUSED status memory_fit_bytes(const plan_input *in, memory_fit *inout);

enum { CHANGE_TEXT_MAX = 512 };
/* Writes the options with which an input fits that does not, and the bytes that it then takes, for
 * example "what fits: training.local_batch_size 1, training.seq_len 4096 (130.5 GiB)". Every change
 * is planned before it is named.
 *
 * On a GPU a memory.limit of 0.97 comes first, if nothing else need change. Then comes the smallest
 * sufficient change of the micro-batch: selective activation checkpointing, full, fewer rows (a
 * number that still divides the step), shorter rows. If nothing fits, it names what is lacking.
 * Options that save memory are tried by deploy/what-fits. */
WARN_UNUSED status memory_smallest_change(const plan_input *in, char out[CHANGE_TEXT_MAX]);

#endif
