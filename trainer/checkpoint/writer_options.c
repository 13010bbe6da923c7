/* writer_options.c: what the options ask of the writer, and the memory that its copies need. */
#include "trainer/checkpoint/base.h"
#include "trainer/checkpoint/writer.h"

bool checkpoint_writer_in_background(const conf *options)
{
    return options->checkpoint_enable && options->checkpoint_async_mode != CHECKPOINT_SYNC;
}

bool checkpoint_writer_whole(const conf *options)
{
    return options->lora_rank == 0 || options->lora_merge == LORA_MERGE_ALWAYS;
}

bool checkpoint_writer_reads_frozen(const conf *options)
{
    return checkpoint_writer_whole(options) && !base_has_files(options);
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
