/* export_merge.h: makes a whole model of a checkpoint of adapters and its base, for trainer export
 * --merge. */
#ifndef TESSERA_TRAINER_CLI_EXPORT_MERGE_H
#define TESSERA_TRAINER_CLI_EXPORT_MERGE_H

#include "trainer/checkpoint/base.h"
#include "trainer/model/params.h"

/* A checkpoint of adapters. */
typedef struct merge_source {
    char training[STATUS_PATH_MAX]; /* its folder training/ */
    char base[STATUS_PATH_MAX];     /* the folder or preset of the base */
    run_base was;                   /* the base that it was trained on */
} merge_source;

/* Opens a checkpoint: a folder step-N, or one that holds several, of which the newest is taken.
 * base: the folder of the base, NULL: where it was when the run was made. ST_BAD_INPUT: this is no
 * checkpoint, or one of a run without adapters. */
WARN_UNUSED status merge_open(const char *checkpoint, const char *base, merge_source *out);
void merge_close(merge_source *source);
/* Gives a registry without adapters, and without memory, the adapters of the checkpoint, and both
 * their values. as_is: tensors keep the base's layout and dtypes, so that an export takes its
 * values from the files, and they are not loaded. ST_CONFIG: the base is another. */
WARN_UNUSED status merge_load(const merge_source *source, bool as_is, params *registry,
                              stream *queue);

#endif
