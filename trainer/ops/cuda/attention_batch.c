/* SPDX-License-Identifier: Apache-2.0 */
/* attention_batch.c: see attention_batch.h. */
#include "trainer/ops/cuda/attention_batch.h"

#ifdef TESSERA_CUDNN

#include <string.h>

#include "trainer/device/cuda_device.h"
#include "trainer/ops/attention_work.h"

enum { SPACE_ALIGN = 256 };

/* The parts of scratch, in this order. */
typedef struct workspace {
    char *base;
    int64_t bytes;
} workspace;

static int64_t aligned_bytes(int64_t bytes)
{
    return (bytes + SPACE_ALIGN - 1) / SPACE_ALIGN * SPACE_ALIGN;
}

static void *take_space(workspace *space, int64_t bytes)
{
    void *array = space->base ? space->base + space->bytes : NULL;
    space->bytes += aligned_bytes(bytes);
    return array;
}

/* Bytes of the list of a run's lengths, and of its first elements. */
static int64_t lengths_bytes(const attention_shape *of)
{
    return aligned_bytes(of->segments * (int64_t)sizeof(int32_t));
}

static int64_t firsts_bytes(const attention_shape *of)
{
    return aligned_bytes((of->segments + 1) * (int64_t)sizeof(int64_t));
}

/* Lays out the workspace of a call, or only measures it. */
static void lay_out(attention_batch *shape, workspace *space, const attention_shape *of,
                    const attention_room *wanted, int64_t library)
{
    const int64_t tokens = wanted->tokens;
    int64_t rows = of->segments * of->heads * of->longest, ratio = of->heads / of->kv_heads;
    bool packs = attention_packs_sums(of);
    shape->length = take_space(space, wanted->runs * lengths_bytes(of));
    for (int i = 0; i < PACK_FIRSTS; i++)
        shape->first[i] = take_space(space, wanted->runs * firsts_bytes(of));
    if (wanted->backward) {
        int64_t f32 = sizeof(float), bf16 = sizeof(uint16_t);
        int64_t row_sums = tokens * of->lse_stride * f32;
        shape->lse = wanted->copies ? take_space(space, row_sums) : NULL;
        shape->sum = !packs           ? take_space(space, rows * f32)
                     : wanted->copies ? take_space(space, row_sums)
                                      : NULL;
        shape->dq_sum = NULL;
        shape->dq_sum_bytes =
            of->deterministic ? 0 : (packs ? tokens * of->o_stride : rows * of->head_dim) * f32;
        if (shape->dq_sum_bytes)
            shape->dq_sum = take_space(space, shape->dq_sum_bytes);
        shape->dk_full = ratio > 1 ? take_space(space, tokens * of->k_stride * ratio * bf16) : NULL;
        shape->dv_full = ratio > 1 ? take_space(space, tokens * of->v_stride * ratio * bf16) : NULL;
    }
    shape->library = take_space(space, library);
}

status attention_find_room(stream *queue, attention_batch *shape, const attention_shape *of,
                           const attention_room *wanted, const cudnn_plan *plan)
{
    workspace space = {0};
    void *base;
    lay_out(shape, &space, of, wanted, plan->workspace_bytes);
    TRY(cuda_scratch(queue, (size_t)space.bytes, &base));
    space = (workspace){.base = base};
    lay_out(shape, &space, of, wanted, plan->workspace_bytes);
    return ST_OK;
}

attention_batch attention_run_of(const attention_batch *whole, const attention_shape *of,
                                 int64_t run)
{
    attention_batch one = *whole;
    one.length = (int32_t *)((char *)whole->length + run * lengths_bytes(of));
    for (int i = 0; i < PACK_FIRSTS; i++)
        one.first[i] = (int64_t *)((char *)whole->first[i] + run * firsts_bytes(of));
    return one;
}

attention_pack_args attention_packing(const attention_batch *shape, const attention_shape *of,
                                      int64_t tokens, const int32_t *cu, int64_t filled)
{
    attention_pack_args pack = {
        .segments = of->segments,
        .tokens = tokens,
        .filled = filled,
        .cu = cu,
        .length = shape->length,
        .stride = {of->q_stride, of->k_stride, of->v_stride, of->o_stride, of->lse_stride}};
    memcpy(pack.first, shape->first, sizeof pack.first);
    return pack;
}

void attention_give(attention_hand *held, int64_t uid, const void *array)
{
    if (!array)
        return;
    held->uid[held->n] = uid;
    held->pointer[held->n++] = (void *)array;
}

void attention_give_batch(attention_hand *held, const attention_batch *shape)
{
    attention_give(held, ATTENTION_LENGTH, shape->length);
    attention_give(held, ATTENTION_LENGTH_KV, shape->length);
    for (int i = 0; i < PACK_FIRSTS; i++)
        attention_give(held, ATTENTION_FIRST_Q + i, shape->first[i]);
}

#endif
