/* export_whole.h: makes a whole model of a checkpoint that has what was trained alone, and of the
 * base that it names, for trainer export. Adapters are merged into the base. */
#ifndef TESSERA_TRAINER_CLI_EXPORT_WHOLE_H
#define TESSERA_TRAINER_CLI_EXPORT_WHOLE_H

#include "trainer/checkpoint/state/base.h"
#include "trainer/model/params/params.h"

/* A checkpoint of what was trained. */
typedef struct whole_source {
    char training[STATUS_PATH_MAX]; /* its folder training/ */
    char base[STATUS_PATH_MAX];     /* the folder or preset of the base */
    run_base was;                   /* the base that it was trained on */
} whole_source;

/* *out: whether this folder has no model, but is a checkpoint without adapters that names its base,
 * or holds such. ST_BAD_INPUT, ST_IO: its base.json cannot be read. */
WARN_UNUSED status whole_is_wanted(const char *folder, bool *out);
/* Opens a checkpoint, and checks every byte of it: a folder step-N, or one that holds several, of
 * which the newest is taken. base: the folder of the base, NULL: where it was when the run was
 * made. adapters: there must be some. ST_BAD_INPUT: this is no checkpoint, or none of adapters, or
 * it is damaged. ST_NO_INPUT: the base is not there. */
WARN_UNUSED status whole_open(const char *checkpoint, const char *base, bool adapters,
                              whole_source *out);
void whole_close(whole_source *source);
/* Gives a registry without adapters, and without memory, what the checkpoint trained, and all rows
 * their values. as_is: tensors keep the base's layout and dtypes, so that an export takes frozen
 * values from the files, and they are not loaded. ST_CONFIG: the base is another. */
WARN_UNUSED status whole_load(const whole_source *source, bool as_is, params *registry,
                              stream *queue);

#endif
