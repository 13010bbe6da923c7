/* export_merge.c: see export_merge.h. An export that keeps the base's layout and dtypes needs the
 * memory of the adapters alone, however large the base is. */
#include "trainer/cli/export_merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/model_folder/model_files.h"
#include "common/program/log.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_load.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/checkpoint/train_state.h"
#include "trainer/model/hf_folder.h"
#include "trainer/model/lora_params.h"

/* Finds the folder training/ of a checkpoint or of the newest one in a folder of them. */
static status find_training(const char *checkpoint, char out[STATUS_PATH_MAX])
{
    char path[STATUS_PATH_MAX];
    int64_t *step = NULL, count = 0;
    TRY(hf_path(out, checkpoint, FOLDER_TRAINING));
    if (file_is_folder(out))
        return ST_OK;
    TRY(folder_steps(checkpoint, &step, &count));
    status st = count > 0 ? folder_step_path(path, checkpoint, step[count - 1], NULL)
                          : FAIL_IN(ST_BAD_INPUT, checkpoint,
                                    "this is no checkpoint: it has no folder " FOLDER_TRAINING
                                    ", and holds no step-N");
    free(step);
    return st == ST_OK ? hf_path(out, path, FOLDER_TRAINING) : st;
}

status merge_open(const char *checkpoint, const char *base, merge_source *out)
{
    merge_source source = {0};
    bool there;
    TRY(find_training(checkpoint, source.training));
    TRY(base_read(source.training, &source.was, &there));
    if (!there || source.was.lora.rank == 0) {
        base_done(&source.was);
        return FAIL_IN(ST_BAD_INPUT, checkpoint,
                       "this is no checkpoint of adapters alone, and so a whole model already: "
                       "leave --merge out");
    }
    *out = source;
    return model_files_find(base ? base : source.was.model, out->base);
}

void merge_close(merge_source *source)
{
    base_done(&source->was);
}

/* Leaves the rows of the base without memory. */
static void leave_out(params *registry)
{
    for (int64_t i = 0; i < registry->count; i++)
        registry->list[i].elsewhere = param_in_base(&registry->list[i]);
}

/* Allocates the rows, and loads or draws those of the base unless they stay in its files. */
static status load_base(const merge_source *source, bool have, bool as_is, params *registry,
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

status merge_load(const merge_source *source, bool as_is, params *registry, stream *queue)
{
    const comm alone = comm_alone("export");
    const run_base *was = &source->was;
    const bool have = file_is_folder(source->base) && hf_has_weights(source->base);
    run_base now = {0};
    if (was->form != WEIGHT_PLAIN)
        log_info("the adapters were trained beside a base in %s; they are merged into the base as "
                 "it is in %s, which is not quantised",
                 base_form_name(was->form), source->base);
    TRY(lora_add(registry, was->lora, was->lora_targets));
    TRY(base_find(registry, have ? source->base : NULL, was->seed, &alone, &now));
    snprintf(now.model, sizeof now.model, "%s", source->base);
    status st = base_check(&now, was, source->training);
    base_done(&now);
    if (st == ST_OK)
        st = load_base(source, have, as_is, registry, queue);
    return st == ST_OK ? train_state_load(registry, queue, source->training) : st;
}
