/* SPDX-License-Identifier: Apache-2.0 */
/* base.h: the base of a run: the parameters that it leaves as they are. Their values are in the
 * weight files of model.path, or are drawn from training.seed, so a checkpoint has their names and
 * hashes alone, in training/base.json, and a run that goes on checks that it still has the same:
 *
 * {"version":1,"model":PATH,"drawn_from_seed":SEED or null,
 *  "lora":{"rank":R,"alpha":A,"rslora":BOOL,"dora":BOOL,"targets":TEXT,"base":FORM} or null,
 *  "frozen":{NAME:DIGEST, ..}}
 *
 * FORM, "bf16", "int8" or "nf4", is how frozen matrices are kept while the adapters are trained
 * (lora.base); a file without it means bf16.
 *
 * The digest of a row is that of its tensors' bytes in the files (of several tensors, chained in
 * the order of params_pieces), so it does not depend on how ranks share the row or on the type that
 * it is computed in. Of a row that is drawn it is the digest of all that it is drawn from. */
#ifndef TESSERA_TRAINER_CHECKPOINT_STATE_BASE_H
#define TESSERA_TRAINER_CHECKPOINT_STATE_BASE_H

#include "common/base/hash.h"
#include "common/conf/conf.h"
#include "trainer/model/params/lora_params.h"

typedef struct base_row {
    char name[128];
    hash128 digest;
} base_row;

typedef struct run_base {
    char model[STATUS_PATH_MAX]; /* model.path */
    bool drawn;                  /* the values are drawn and not in files */
    int64_t seed;                /* what they are drawn from */
    lora_kind lora;              /* rank 0: there are no adapters */
    char *lora_targets;          /* heap; NULL if there are none */
    weight_form form;            /* how its matrices are kept while a run uses it */
    base_row *rows;              /* heap: [count] in the order of the registry */
    int64_t count;
} run_base;

void base_done(run_base *base);
/* Whether model.path has weight files that a run with these options begins with. Otherwise it draws
 * its values. */
bool base_has_files(const conf *options);
/* Whether the registry has a base at all: frozen rows. */
bool base_wanted(const params *registry);
/* Makes the base of this registry. Every rank of `all` calls it and hashes a share of the rows; all
 * get the whole list. files: the folder that the values were loaded from; NULL: they were drawn
 * from `seed`. ST_BAD_INPUT, ST_IO: the files are broken. */
WARN_UNUSED status base_find(const params *registry, const char *files, int64_t seed,
                             const comm *all, run_base *out);
/* Notes the options of adapters, which `trainer export --merge` needs. ST_NO_MEMORY. */
WARN_UNUSED status base_note_lora(run_base *base, lora_kind kind, const char *targets);

/* Writes FOLDER/base.json, synced. */
WARN_UNUSED status base_write(const run_base *base, const char *folder);
/* Reads it; *out_there is false if there is none, as in the checkpoints of early trainers and of
 * runs that freeze nothing and save whole models. */
WARN_UNUSED status base_read(const char *folder, run_base *out, bool *out_there);
/* Checks that what was frozen `then` and still is has the same digest `now`; that adapters have
 * lengths of rows (lora.dora) now if they had them, and only then; and, unless converts
 * (checkpoint.convert_states), that the base's matrices are kept in the same form. ST_CONFIG names
 * what differs; path: where `then` was read. */
WARN_UNUSED status base_check(const run_base *now, const run_base *then, bool converts,
                              const char *path);
/* What lora.base calls a form. */
const char *base_form_name(weight_form form);

#endif
