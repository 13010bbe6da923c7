/* SPDX-License-Identifier: Apache-2.0 */
/* dry_run_check.h: the table of a dry run: each line is a sum over all ranks of what should be and
 * of what is. Also works out what should be, for who stores what and for files. Internal to
 * dry_run.c. */
#ifndef TESSERA_TESTS_DRY_RUN_DRY_RUN_CHECK_H
#define TESSERA_TESTS_DRY_RUN_DRY_RUN_CHECK_H

#include <stdio.h>

#include "trainer/model/dims/hf_folder.h"
#include "trainer/model/params/params.h"

typedef enum dry_key {
    DRY_OWNED,       /* elements: of the model, stored by the ranks of a replica */
    DRY_READ,        /* bytes of weight files: of a rank's slices, read by it */
    DRY_MEMORY,      /* bytes of the plan's regions: planned, allocated */
    DRY_HOST,        /* bytes that rest on the host: planned, allocated */
    DRY_MEMORY_PLAN, /* bytes of the same regions: by trainer plan, by the run's own plan */
    DRY_WHOLE_PLAN,  /* bytes in all: by trainer plan for this device, by the run's own plan */
    DRY_RECEIVED,    /* bytes received in a step: by the formula, in the ledger */
    DRY_PLANNED,     /* bytes of weights received: by trainer plan, by the formula */
    DRY_ORDER,       /* calls of a group: by its first rank, by this one */
    DRY_SENT,        /* elements to and from experts and stages: sent, received, over all ranks */
    DRY_WRITTEN,     /* bytes of Hugging Face tensors: a rank's share, written by it */
    DRY_FILES,       /* bytes of those tensors: by the registry, in the files */
    DRY_STATE,       /* elements of values and moments: by the registry, in the training files */
    DRY_GOES_ON,     /* bytes of training files: a rank's share, read by it to go on */
    DRY_KEYS
} dry_key;

typedef struct dry_checks {
    struct {
        int64_t want, got; /* sums over all checks: what should be, what is */
        int64_t ranks;     /* how many checks were made */
    } of[DRY_KEYS];
    int64_t
        stage[LAYOUT_STAGES]; /* bytes of the plan's regions, for the largest rank of each stage */
    int64_t beside;           /* most bytes that a rank's device holds besides those regions */
    int64_t sent, received;   /* elements */
} dry_checks;

/* Adds a check to the table. ST_INTERNAL, with the check's name, if `want` and `got` differ. */
WARN_UNUSED status dry_check(dry_checks *all, dry_key key, int64_t want, int64_t got);
/* Adds another rank's table. */
void dry_checks_add(dry_checks *all, const dry_checks *other);
/* stages: how many the pipeline has. */
void dry_checks_print(const dry_checks *all, int64_t stages, FILE *to);

/* Which part of every parameter each rank stores. */
typedef struct dry_owners {
    struct dry_owner *of; /* heap: [ranks, count] */
    int64_t count;
    int ranks;
} dry_owners;

WARN_UNUSED status dry_owners_new(int64_t count, int ranks, dry_owners *out);
void dry_owners_free(dry_owners *owners);
/* Notes what `rank` stores, by its own registry. */
void dry_owners_note(dry_owners *owners, const params *params, int rank);
/* The notes as bytes, *out_each for each rank, for a gather over ranks. */
char *dry_owners_bytes(dry_owners *owners, int64_t *out_each);
/* Checks that in every replica each element of each parameter is stored once, and nothing else. */
WARN_UNUSED status dry_owners_check(dry_checks *all, const dry_owners *owners, const params *whole,
                                    const layout *layout);

/* How weights are stored: in the files that the run begins with or, if there are none, in the
 * checkpoint that it will write. */
typedef struct dry_source {
    bool reads;    /* there are files to begin with */
    int64_t *size; /* heap: [count] bytes of an element in the files, by parameter */
    expert_layout layout;
    bool repeats; /* the files store the head of a tied model a second time; so will a checkpoint */
    int64_t count;
} dry_source;

WARN_UNUSED status dry_source_open(const params *whole, const char *path, dry_source *out);
void dry_source_close(dry_source *source);
/* Bytes that the rank with this registry has to read: those of its own elements. If the files
 * keep experts transposed it reads every expert of which it stores a part as a whole. */
int64_t dry_bytes_to_read(const dry_source *source, const params *params, bool frozen_only);
/* Bytes of tensors that the rank with this registry has to write. */
int64_t dry_bytes_to_write(const dry_source *source, const params *params);
/* Bytes that this rank reads to go on: values and moments of what is trained from the checkpoint,
 * and frozen values from the weight files. */
int64_t dry_state_bytes(const dry_source *source, const params *params);
/* Checks the checkpoint in `folder`: with has_model its Hugging Face files have exactly the tensors
 * of the registry, and the training files of `writers` ranks have every element of trained values
 * and of moments once. */
WARN_UNUSED status dry_check_files(dry_checks *all, const dry_source *source, const params *whole,
                                   int writers, bool has_model, const char *folder);

#endif
