/* export_whole.c: see export_whole.h. An export that keeps the base's layout and dtypes needs the
 * memory of what was trained alone, however large the base is. */
#include "trainer/cli/export_whole.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/model_folder/model_files.h"
#include "common/program/log.h"
#include "trainer/checkpoint/save/folder.h"
#include "trainer/checkpoint/hf/hf_load.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/checkpoint/state/train_state.h"
#include "trainer/model/dims/hf_folder.h"
#include "trainer/model/params/lora_params.h"

/* Finds a checkpoint: this folder, or the newest one in a folder of them. out: its path; "": there
 * is none. */
static status find_checkpoint(const char *folder, char out[STATUS_PATH_MAX])
{
    int64_t *step = NULL, count = 0;
    TRY(hf_path(out, folder, FOLDER_TRAINING));
    if (file_is_folder(out)) {
        snprintf(out, STATUS_PATH_MAX, "%s", folder);
        return ST_OK;
    }
    out[0] = 0;
    TRY(folder_steps(folder, &step, &count));
    const status st = count > 0 ? folder_step_path(out, folder, step[count - 1], NULL) : ST_OK;
    free(step);
    return st;
}

status whole_is_wanted(const char *folder, bool *out)
{
    char path[STATUS_PATH_MAX], training[STATUS_PATH_MAX];
    run_base was = {0};
    bool there;
    *out = false;
    if (!file_is_folder(folder) || hf_has_weights(folder))
        return ST_OK;
    TRY(find_checkpoint(folder, path));
    if (!path[0])
        return ST_OK;
    TRY(hf_path(training, path, FOLDER_TRAINING));
    TRY(base_read(training, &was, &there));
    *out = there && was.lora.rank == 0 && !hf_has_weights(path);
    base_done(&was);
    return ST_OK;
}

/* Finds the folder or preset of the base. */
static status find_base(const char *base, whole_source *inout)
{
    const char *model = base ? base : inout->was.model;
    const bool preset = !strchr(model, '/');
    if (!base && !preset && !file_is_folder(model))
        return FAIL_IN(ST_NO_INPUT, inout->training,
                       "base.json says that its base is in %s, and this is no folder now: name "
                       "the folder where it is with --base",
                       model);
    return model_files_find(model, inout->base);
}

status whole_open(const char *checkpoint, const char *base, bool adapters, whole_source *out)
{
    char path[STATUS_PATH_MAX];
    whole_source source = {0};
    bool there;
    TRY(find_checkpoint(checkpoint, path));
    if (!path[0])
        return FAIL_IN(ST_BAD_INPUT, checkpoint,
                       "this is no checkpoint: it has no folder " FOLDER_TRAINING
                       ", and holds no step-N");
    TRY(folder_check(path, 0, 1));
    TRY(hf_path(source.training, path, FOLDER_TRAINING));
    TRY(base_read(source.training, &source.was, &there));
    status st = ST_OK;
    if (!there || (adapters && source.was.lora.rank == 0))
        st = FAIL_IN(ST_BAD_INPUT, checkpoint,
                     "this is no checkpoint of adapters: leave --merge out");
    if (st == ST_OK)
        st = find_base(base, &source);
    if (st == ST_OK)
        *out = source;
    else
        base_done(&source.was);
    return st;
}

void whole_close(whole_source *source)
{
    base_done(&source->was);
}

/* Makes the registry that of the run: with its adapters, or with the rows of its base frozen. */
static status set_trained(const whole_source *source, params *registry)
{
    const run_base *was = &source->was;
    int64_t found = 0;
    registry->convert_states = true; /* of values alone: there is no room for moments */
    if (was->lora.rank)
        return lora_add(registry, was->lora, was->lora_targets);
    for (int64_t i = 0; i < registry->count && found < was->count; i++) {
        param *row = &registry->list[i];
        row->frozen = strcmp(row->name, was->rows[found].name) == 0;
        found += row->frozen;
    }
    if (found < was->count)
        return FAIL_IN(ST_CONFIG, source->training,
                       "its base has a tensor %s, and the model in %s has none: name the base "
                       "that it was trained on with --base",
                       was->rows[found].name, source->base);
    return ST_OK;
}

/* Leaves the rows of the base without memory. */
static void leave_out(params *registry)
{
    for (int64_t i = 0; i < registry->count; i++)
        registry->list[i].elsewhere = param_in_base(&registry->list[i]);
}

/* Allocates the rows, and loads or draws those of the base unless they stay in its files. */
static status load_base(const whole_source *source, bool have, bool as_is, params *registry,
                        stream *queue)
{
    bool has_frozen;
    TRY(train_state_has_frozen(registry, source->training, &has_frozen));
    const bool stays = have && as_is && !has_frozen && !source->was.lora.dora;
    if (stays)
        leave_out(registry);
    TRY(params_alloc(registry, queue, false));
    if (!have)
        return params_init(registry, queue, (uint64_t)source->was.seed);
    return stays ? ST_OK : hf_load(registry, queue, source->base);
}

status whole_load(const whole_source *source, bool as_is, params *registry, stream *queue)
{
    const comm alone = comm_alone("export");
    const run_base *was = &source->was;
    const bool have = file_is_folder(source->base) && hf_has_weights(source->base);
    run_base now = {0};
    if (was->form != WEIGHT_PLAIN)
        log_info("the adapters were trained beside a base in %s; they are merged into the base as "
                 "it is in %s, which is not quantised",
                 base_form_name(was->form), source->base);
    TRY(set_trained(source, registry));
    TRY(base_find(registry, have ? source->base : NULL, was->seed, &alone, &now));
    snprintf(now.model, sizeof now.model, "%s", source->base);
    status st = base_check(&now, was, source->training);
    base_done(&now);
    if (st == ST_OK)
        st = load_base(source, have, as_is, registry, queue);
    return st == ST_OK ? train_state_load(registry, queue, source->training) : st;
}
