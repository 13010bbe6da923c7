/* SPDX-License-Identifier: Apache-2.0 */
/* row_work.c: the row that a plan assumes, the bytes that element-wise ops move, and the calls of
 * attention, which cuDNN's kernels or our own run. */
#include "trainer/plan/row_work.h"

#include <math.h>
#include <string.h>

#include "trainer/device/choices.h"
#include "trainer/model/exchange/exchange.h"
#include "trainer/model/layers/pass_context.h"
#include "trainer/model/layers/recompute.h"

enum {
    ACT = 2, /* bytes of bf16 */
    VQA_DOCUMENT = 313,
    /* What a sample of VQAv2 has of its own: the question, the turn's end and the answer. What
     * comes before, the beginning of the turn and the picture, is the same for all questions. */
    VQA_BRANCH = 14,
};
/* Targets of a sample: 101 samples of VQAv2 have 240, most of them one for the answer and one for
 * the turn's end. */
static const double VQA_TARGETS = 2.4;
static const int32_t VQA_GRID[3] = {1, 30, 40};
/* VQAv2's training set. */
enum { VQA_EPOCH = 443757, VQA_PICTURES = 82783 };
static const double VQA_QUESTIONS = (double)VQA_EPOCH / VQA_PICTURES;

/* The tokens of the documents that show one image. */
static double unit_tokens(const row_kind *row)
{
    return (double)row->prefix + row->questions * (double)(row->document - row->prefix);
}

row_kind row_kind_of(const conf *options, const model_dims *dims)
{
    row_kind kind = {.seq_len = options->training_seq_len,
                     .document = options->training_seq_len,
                     .targets = (double)options->training_seq_len - 1, /* all but the first token */
                     .questions = 1};
    if (dims->vision.depth == 0 || conf_is_plain_text(options))
        return kind;
    if (kind.document > VQA_DOCUMENT)
        kind.document = VQA_DOCUMENT;
    kind.targets = VQA_TARGETS;
    memcpy(kind.grid, VQA_GRID, sizeof kind.grid);
    if (conf_shares_images(options) && options->data_format == DATA_VQAV2) {
        kind.questions = VQA_QUESTIONS;
        if (options->data_group == GROUP_SHARED_PREFIX && kind.document > VQA_BRANCH)
            kind.prefix = kind.document - VQA_BRANCH;
    }
    if (!options->data_pack && unit_tokens(&kind) < (double)kind.seq_len)
        kind.seq_len = llround(unit_tokens(&kind)); /* the rest is padding, which is cut off */
    return kind;
}

bool row_kind_unknown(const conf *options, const row_kind *row)
{
    return conf_shares_images(options) && row->questions == 1;
}

/* Counts the arrays that the forward pass reads and writes. Both passes move about three times as
 * much. */
double cost_layer_bytes(const text_dims *text)
{
    double hidden = (double)text->hidden,
           heads = (double)((text->heads + 2 * text->kv_heads) * text->head_dim);
    double slots = (double)text->top_k, wide = (double)text->expert_width;
    double forward = 10.0 * hidden + 4.0 * heads + slots * (3.0 * hidden + 3.0 * wide);
    return 3.0 * forward * ACT;
}

double cost_block_bytes(const vision_dims *vision)
{
    double forward = 10.0 * (double)vision->hidden + 2.0 * (double)vision->intermediate;
    return 3.0 * forward * ACT;
}

/* How many groups of documents that share one image a row has, fractions included. */
static double row_units(const row_kind *row)
{
    return (double)row->seq_len / unit_tokens(row);
}

double row_kind_images(const row_kind *row)
{
    if (row->questions > 1)
        return row_units(row);
    return row->grid[0] > 0 ? (double)(row->seq_len / row->document)
                            : 0; /* the rest of the row is text */
}

double row_kind_pairs(const row_kind *row)
{
    return row->questions > 1 ? row_units(row) * row->questions
                              : (double)(row->seq_len / row->document);
}

int64_t row_kind_epoch(const conf *options, const row_kind *row)
{
    const bool asked = options->data_format == DATA_VQAV2 && row->grid[0] > 0 &&
                       options->data_group != GROUP_CONVERSATION;
    return asked && row->document == VQA_DOCUMENT ? VQA_EPOCH : 0;
}

/* The FLOPs of a row whose documents share their images, on average. */
static void shared_flops(const row_kind *row, const model_dims *dims, flops *out)
{
    const int64_t own = row->document - row->prefix;
    const double pairs = (double)document_pairs(row->prefix) +
                         row->questions * (double)(document_pairs(own) + own * row->prefix);
    const double units = row_units(row);
    flops eye;
    dims_flops(dims, row->seq_len, 0, llround(units * pairs), NULL, 0, out);
    dims_flops(dims, 0, 0, 0, row->grid, 1, &eye);
    out->patch_embed = llround(units * (double)eye.patch_embed);
    out->vision_blocks = llround(units * (double)eye.vision_blocks);
    out->vision_attention = llround(units * (double)eye.vision_attention);
    out->mergers = llround(units * (double)eye.mergers);
    out->forward += out->patch_embed + out->vision_blocks + out->vision_attention + out->mergers;
}

void row_kind_flops(const row_kind *row, const model_dims *dims, flops *out)
{
    const int64_t whole = row->seq_len / row->document, rest = row->seq_len % row->document;
    flops sum, work;
    dims_flops(dims, 0, llround(row_kind_pairs(row) * row->targets), 0, NULL, 0, &sum);
    if (row->questions > 1) {
        shared_flops(row, dims, &work);
        flops_add(&sum, &work);
    }
    for (int64_t i = 0; i < whole + (rest > 0) && row->questions <= 1; i++) {
        const int64_t length = i < whole ? row->document : rest;
        dims_flops(dims, length, 0, document_pairs(length), row->grid,
                   row->grid[0] > 0 && i < whole, &work);
        flops_add(&sum, &work);
    }
    sum.training = 0;
    *out = sum;
}

double row_kind_saving(const row_kind *row, const model_dims *dims)
{
    row_kind apart = *row;
    flops shared, whole;
    apart.questions = 1;
    apart.prefix = 0;
    row_kind_flops(row, dims, &shared);
    row_kind_flops(&apart, dims, &whole);
    return (double)whole.forward / row_kind_pairs(&apart) /
           ((double)shared.forward / row_kind_pairs(row));
}

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

int64_t expert_work_again(const text_dims *text, const layout *degrees, unsigned what)
{
    const int64_t second = text->top_k * text->hidden * text->expert_width, first = 2 * second;
    if (exchange_is_needed(degrees))
        return first + (what & RECOMPUTE_FC2 ? first + second : 0);
    return (what & RECOMPUTE_FC1 ? first : 0) + (what & RECOMPUTE_FC2 ? second : 0);
}
