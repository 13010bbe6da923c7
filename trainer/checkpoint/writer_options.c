/* writer_options.c: what the options ask of the writer, and the memory that its copies need. */
#include "trainer/checkpoint/base.h"
#include "trainer/checkpoint/writer.h"

bool checkpoint_writer_in_background(const conf *options)
{
    return options->checkpoint_enable && options->checkpoint_async_mode != CHECKPOINT_SYNC;
}

static model_when model_when_of(const conf *options, bool has_base)
{
    static const model_when merged[] = {[LORA_MERGE_NEVER] = MODEL_NEVER,
                                        [LORA_MERGE_END] = MODEL_AT_END,
                                        [LORA_MERGE_ALWAYS] = MODEL_ALWAYS};
    if (options->lora_rank)
        return merged[options->lora_merge];
    if (options->checkpoint_model == CHECKPOINT_MODEL_AUTO)
        return has_base ? MODEL_AT_END : MODEL_ALWAYS;
    return options->checkpoint_model == CHECKPOINT_MODEL_END ? MODEL_AT_END : MODEL_ALWAYS;
}

model_when checkpoint_writer_when(const conf *options, const params *registry)
{
    return model_when_of(options, base_wanted(registry));
}

bool checkpoint_writer_whole(const conf *options, const params *registry)
{
    return checkpoint_writer_when(options, registry) == MODEL_ALWAYS;
}

bool checkpoint_writer_reads_frozen(const conf *options)
{
    return model_when_of(options, true) == MODEL_ALWAYS && !base_has_files(options);
}

int64_t checkpoint_writer_snapshot(const params_sizes *size, const backend_vtable *backend,
                                   int copies, bool with_frozen)
{
    const int64_t act = (int64_t)st_dtype_size(backend->act);
    const int64_t values =
        backend->act == backend->acc || size->act_masters ? size->trained * act : size->values;
    const int64_t frozen =
        backend->immediate || !with_frozen ? 0 : size->acts - size->trained * act;
    return copies ? copies * (values + 2 * size->moments) + frozen : 0;
}
