/* SPDX-License-Identifier: Apache-2.0 */
/* without_storage.c: what a dry run puts in place of functions of the trainer, with the linker's
 * option --wrap (CMakeLists.txt). The trainer does not know that its device has no storage. Values
 * are not drawn, since they would go nowhere; memory is not checked, since none is taken; and since
 * there are no routes to read, every expert is said to get as many slots as any other. */
#include "tests/dry_run/without_storage.h"

#include <string.h>

#include "common/tokenizer/tokenizer.h"
#include "trainer/ops/open.h"
#include "trainer/parallel/comm/comm.h"
#include "trainer/run/session.h"

status __real_device_open(int kind, const device_options *options, device **out);
status __wrap_device_open(int kind, const device_options *options, device **out);
status __real_comm_all_gather(const comm *group, stream *queue, comm_at at, const void *send,
                              void *recv, int64_t count, st_dtype dtype);
status __wrap_comm_all_gather(const comm *group, stream *queue, comm_at at, const void *send,
                              void *recv, int64_t count, st_dtype dtype);
status __wrap_params_init(params *registry, stream *queue, uint64_t seed);
status __wrap_params_init_adapters(params *registry, stream *queue, uint64_t seed);
status __wrap_lora_set_lengths(params *registry, stream *queue);
status __wrap_tokenizer_load(const char *folder, tokenizer **out);
status __wrap_session_memory_device(session *run);
status __wrap_session_memory_check(const session *run);

const plan_device *without_storage_like;

enum { BORDERS_MAX = 1 << 16 };
static int64_t slots; /* that the last call of permute has sorted */
static int32_t borders[BORDERS_MAX];
static ops_table ops;

static status note_slots(stream *queue, const permute_args *args)
{
    (void)queue;
    slots = args->tokens * args->top_k;
    return ST_OK;
}

status __wrap_device_open(int kind, const device_options *options, device **out)
{
    if (kind != BACKEND_CUDA)
        return __real_device_open(kind, options, out);
    TRY(shapes_device_open(without_storage_like, out));
    ops = ops_shapes;
    ops.permute = note_slots;
    (*out)->ops = &ops;
    (*out)->host_ranks = options->host_ranks > 0 ? options->host_ranks : 1;
    return ST_OK;
}

/* The expert counts that a rank gathers before slots go to their experts through the host
 * (trainer/model/exchange.c): offsets [group, count] of the sorted slots. */
status __wrap_comm_all_gather(const comm *group, stream *queue, comm_at at, const void *send,
                              void *recv, int64_t count, st_dtype dtype)
{
    TRY(__real_comm_all_gather(group, queue, at, send, recv, count, dtype));
    if (strcmp(at.what, "gather expert counts") != 0)
        return ST_OK;
    if (group->size * count > BORDERS_MAX)
        return FAIL(ST_INTERNAL, "%d ranks and %lld experts are too many for a dry run",
                    group->size, (long long)count - 1);
    for (int rank = 0; rank < group->size; rank++)
        for (int64_t expert = 0; expert < count; expert++)
            borders[rank * count + expert] = (int32_t)(slots * expert / (count - 1));
    shapes_know(queue->dev, recv, borders, (size_t)(group->size * count) * sizeof *borders);
    return ST_OK;
}

status __wrap_params_init(params *registry, stream *queue, uint64_t seed)
{
    (void)registry;
    (void)queue;
    (void)seed;
    return ST_OK;
}

status __wrap_params_init_adapters(params *registry, stream *queue, uint64_t seed)
{
    return __wrap_params_init(registry, queue, seed);
}

status __wrap_lora_set_lengths(params *registry, stream *queue)
{
    return __wrap_params_init(registry, queue, 0);
}

/* No token is decoded, and the checkpoint of a dry run has no tokenizer. */
status __wrap_tokenizer_load(const char *folder, tokenizer **out)
{
    (void)folder;
    *out = NULL;
    return ST_OK;
}

/* All ranks have the same device, each for itself, so they need not agree on its memory. */
status __wrap_session_memory_device(session *run)
{
    TRY(plan_device_opened(run->device, &run->planned, NULL));
    run->planned.host_ranks = run->world->place.local_size;
    return ST_OK;
}

status __wrap_session_memory_check(const session *run)
{
    (void)run;
    return ST_OK;
}
