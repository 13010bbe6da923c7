/* attention_kernels.c: see attention_kernels.h. */
#include "trainer/plan/attention_kernels.h"

#include <math.h>

#include "trainer/device/choices.h"
#include "trainer/model/layers/pass_context.h"

attention_use attention_use_of(const conf *options, bool cudnn, const layout *degrees)
{
    const bool taken = cudnn && options->training_attention != ATTENTION_PORTABLE;
    return (attention_use){.text = taken && degrees->context == 1, /* else keys are others' too */
                           .vision = taken,
                           .deterministic = options->training_deterministic};
}

static row_share share_of(const mesh *ranks)
{
    return ranks ? row_share_of(ranks) : row_share_alone();
}

static int64_t tensor_heads(const mesh *ranks, int64_t heads)
{
    return ranks ? tensor_part(&ranks->layout, heads) : heads;
}

attention_call attention_call_text(const model_dims *dims, const mesh *ranks,
                                   const batch_caps *caps)
{
    const row_share share = share_of(ranks);
    return (attention_call){.tokens = row_share_tokens(&share, caps->tokens) * share.tensor,
                            .segments = caps->docs,
                            .longest = caps->longest,
                            .heads = tensor_heads(ranks, dims->text.heads),
                            .kv_heads = tensor_heads(ranks, dims->text.kv_heads),
                            .head_dim = dims->text.head_dim,
                            .causal = true};
}

attention_call attention_call_vision(const model_dims *dims, const mesh *ranks,
                                     const batch_caps *caps)
{
    if (dims->vision.depth == 0 || share_of(ranks).blind)
        return (attention_call){0};
    return (attention_call){.tokens = caps->patches,
                            .segments = caps->frames,
                            .longest = caps->frame,
                            .heads = dims->vision.heads,
                            .kv_heads = dims->vision.heads,
                            .head_dim = dims_vision_head_dim(dims)};
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
    const attention_call of = {.tokens = tokens,
                               .segments = at_least_one(tokens / row->document),
                               .longest = row->document,
                               .heads = text->heads / degrees->tensor,
                               .kv_heads = at_least_one(text->kv_heads / degrees->tensor),
                               .head_dim = text->head_dim,
                               .causal = true};
    const attention_use use = attention_use_of(options, sm >= CHOICE_CUDNN_SM, degrees);
    attention_kernels kernels = {RATE_OWN_ATTENTION, RATE_OWN_ATTENTION};
    if (row->prefix > 0 || !use.text || !attention_is_taken(&of))
        return kernels;
    kernels.forward = RATE_ATTENTION;
    if (attention_taken_parts(&of, deterministic).groups > 0)
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
    const attention_call of = {.tokens = frames * frame,
                               .segments = frames,
                               .longest = frame,
                               .heads = dims->vision.heads,
                               .kv_heads = dims->vision.heads,
                               .head_dim = dims_vision_head_dim(dims)};
    if (sm < CHOICE_CUDNN_SM || options->training_attention == ATTENTION_PORTABLE ||
        !attention_is_taken(&of))
        return kernels;
    kernels.forward = RATE_VISION_ATTENTION;
    if (attention_taken_parts(&of, deterministic).groups > 0)
        kernels.backward =
            deterministic ? RATE_VISION_ATTENTION_BACKWARD : RATE_VISION_ATTENTION_ANY_ORDER;
    return kernels;
}

const char *attention_kernels_name(rate_key backward)
{
    const bool own = backward == RATE_OWN_ATTENTION || backward == RATE_OWN_VISION_ATTENTION;
    return own ? "own kernels" : "cuDNN";
}
