/* dry_run_check.h: the table of a dry run, and what its ranks are held against. Internal to
 * dry_run.c. */
#ifndef TESSERA_TRAINER_CHECK_DRY_RUN_CHECK_H
#define TESSERA_TRAINER_CHECK_DRY_RUN_CHECK_H

#include <stdio.h>

#include "trainer/model/hf_folder.h"
#include "trainer/model/params.h"

typedef enum dry_key {
    DRY_OWNED,       /* elements, of one replica */
    DRY_READ,        /* bytes of the weights' files */
    DRY_MEMORY,      /* bytes of the plan's regions: planned, allocated */
    DRY_MEMORY_PLAN, /* bytes: of trainer plan, of those regions */
    DRY_RECEIVED,    /* bytes of a step from other ranks: formula, ledger */
    DRY_PLANNED,     /* of them those of weights, rank 0's: trainer plan, formula */
    DRY_ORDER,       /* calls of groups: of their first rank, of this one */
    DRY_SENT,        /* elements of all to alls: sent, received, by all */
    DRY_WRITTEN,     /* bytes of tensors in the Hugging Face files */
    DRY_FILES,       /* bytes of those files' tensors: by the registry, in the files */
    DRY_STATE,       /* elements in the training files: stored, found */
    DRY_GOES_ON,     /* bytes that ranks read that go on from it */
    DRY_KEYS
} dry_key;

typedef struct dry_checks {
    struct {
        int64_t want, got, ranks;
    } of[DRY_KEYS];
    int64_t stage[LAYOUT_STAGES]; /* bytes of the plan's regions, of each stage's dearest rank */
    int64_t beside;               /* bytes of a rank's device beside the plan's regions */
    int64_t sent, received;       /* elements */
} dry_checks;

/* Joins the table; ST_INTERNAL by name where they differ. */
WARN_UNUSED status dry_check(dry_checks *all, dry_key key, int64_t want, int64_t got);
/* Another rank's table joins. */
void dry_checks_add(dry_checks *all, const dry_checks *other);
/* stages: of the pipeline. */
void dry_checks_print(const dry_checks *all, int64_t stages, FILE *to);

/* What every rank stores of every parameter. */
typedef struct dry_owners {
    struct dry_owner *of; /* heap: [ranks, n] */
    int64_t n;
    int ranks;
} dry_owners;

WARN_UNUSED status dry_owners_new(int64_t n, int ranks, dry_owners *out);
void dry_owners_free(dry_owners *o);
void dry_owners_note(dry_owners *o, const params *p, int rank);
/* What was noted, [ranks] of *out_each bytes. */
char *dry_owners_bytes(dry_owners *o, int64_t *out_each);
/* Each element of each parameter once in every replica, and nothing else. */
WARN_UNUSED status dry_owners_check(dry_checks *all, const dry_owners *o, const params *whole,
                                    const layout *l);

/* The weights that the run begins with, or how a checkpoint keeps them where there are none. */
typedef struct dry_source {
    bool reads;    /* there are files */
    int64_t *size; /* heap: [n] bytes of an element in them, by parameter */
    expert_layout layout;
    bool repeats; /* they have a tied model's head once more, and so has a checkpoint */
    int64_t n;
} dry_source;

WARN_UNUSED status dry_source_open(const params *whole, const char *path, dry_source *out);
void dry_source_close(dry_source *s);
/* Bytes that p's rank has to read: its own elements; of experts that the files keep transposed, all
 * it holds of those it stores some of. */
int64_t dry_bytes_to_read(const dry_source *s, const params *p);
/* Bytes of tensors that p's rank has to write. */
int64_t dry_bytes_to_write(const dry_source *s, const params *p);
/* Bytes of values and moments that p's rank stores. */
int64_t dry_state_bytes(const params *p);
/* The checkpoint in folder: its Hugging Face files hold the registry, its training files, of
 * so many writers, every element of values and moments once. */
WARN_UNUSED status dry_check_files(dry_checks *all, const dry_source *s, const params *whole,
                                   int writers, const char *folder);

#endif
