/* attention_kernels.c: see attention_kernels.h. */
#include "trainer/plan/attention_kernels.h"

#include <math.h>

#include "trainer/device/choices.h"
#include "trainer/ops/attention_work.h"

enum { WIDTH_STEP = 8, PACKED_STEP = 16, WIDTH_MAX = 128 }; /* as in ops/cuda/attention_cudnn.c */

/* The segments of a micro-batch. */
typedef struct segments {
    int64_t tokens, count, longest, heads, kv_heads, width;
    bool causal;
} segments;

static bool library_takes(const conf *options, int sm, const segments *of)
{
    return sm >= CHOICE_CUDNN_SM && options->training_attention != ATTENTION_PORTABLE &&
           of->width % WIDTH_STEP == 0 && of->width <= WIDTH_MAX &&
           attention_is_dense(of->tokens, of->count, of->longest);
}

static bool goes_backward(const segments *of, bool deterministic)
{
    if (of->heads != of->kv_heads && of->width % PACKED_STEP != 0)
        return false;
    const attention_parts parts = attention_parts_of(of->tokens, of->count, of->longest, of->heads,
                                                     of->kv_heads, of->width, of->causal);
    return !deterministic || parts.groups > 0;
}

static int64_t at_least_one(int64_t count)
{
    return count > 0 ? count : 1;
}

attention_kernels attention_kernels_text(const conf *options, int sm, const layout *degrees,
                                         const model_dims *dims, const row_kind *row,
                                         bool deterministic)
{
    const text_dims *text = &dims->text;
    const int64_t tokens = options->training_local_batch_size * row->seq_len;
    const segments of = {.tokens = tokens,
                         .count = at_least_one(tokens / row->document),
                         .longest = row->document,
                         .heads = text->heads / degrees->tensor,
                         .kv_heads = at_least_one(text->kv_heads / degrees->tensor),
                         .width = text->head_dim,
                         .causal = true};
    attention_kernels kernels = {RATE_OWN_ATTENTION, RATE_OWN_ATTENTION};
    if (row->prefix > 0 || degrees->context > 1 || !library_takes(options, sm, &of))
        return kernels;
    kernels.forward = RATE_ATTENTION;
    if (goes_backward(&of, deterministic))
        kernels.backward = deterministic ? RATE_ATTENTION_BACKWARD : RATE_ATTENTION_ANY_ORDER;
    return kernels;
}

attention_kernels attention_kernels_vision(const conf *options, int sm, const model_dims *dims,
                                           const row_kind *row, bool deterministic)
{
    attention_kernels kernels = {RATE_OWN_VISION_ATTENTION, RATE_OWN_VISION_ATTENTION};
    if (dims->vision.depth == 0)
        return kernels;
    const int64_t frame = at_least_one((int64_t)row->grid[1] * row->grid[2]);
    const int64_t frames = at_least_one(
        llround((double)options->training_local_batch_size * row_kind_images(row) * row->grid[0]));
    const segments of = {.tokens = frames * frame,
                         .count = frames,
                         .longest = frame,
                         .heads = dims->vision.heads,
                         .kv_heads = dims->vision.heads,
                         .width = dims_vision_head_dim(dims)};
    if (!library_takes(options, sm, &of))
        return kernels;
    kernels.forward = RATE_VISION_ATTENTION;
    if (goes_backward(&of, deterministic))
        kernels.backward =
            deterministic ? RATE_VISION_ATTENTION_BACKWARD : RATE_VISION_ATTENTION_ANY_ORDER;
    return kernels;
}

const char *attention_kernels_name(rate_key backward)
{
    const bool own = backward == RATE_OWN_ATTENTION || backward == RATE_OWN_VISION_ATTENTION;
    return own ? "our own" : "cuDNN's";
}
