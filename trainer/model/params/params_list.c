/* SPDX-License-Identifier: Apache-2.0 */
/* params_list.c: lists every parameter of a model in the order of the published files, with its
 * group, initialiser and weight decay, and the tensors of a file that hold each parameter
 * (equations.md, "Parameters and their files").
 *
 * H hidden, V vocabulary, E experts, I expert width, D vision hidden, F vision MLP width. */

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/params/params.h"
#include "trainer/model/params/unit_order.h"

typedef struct lister {
    params *registry;
    int64_t capacity;
    bool failed;
    double std;
    param_group group;
    int unit;
    bool forward_only;
    int64_t layer;
} lister;

static param *add_row(lister *listing, param_init init, int n_dims, const int64_t *shape)
{
    params *registry = listing->registry;
    if (registry->count == listing->capacity) {
        int64_t more = listing->capacity ? 2 * listing->capacity : 256;
        param *list = realloc(registry->list, (size_t)more * sizeof *list);
        if (!list) {
            listing->failed = true;
            return NULL;
        }
        registry->list = list;
        listing->capacity = more;
    }
    param *row = &registry->list[registry->count++];
    *row = (param){.n_dims = n_dims, .count = 1, .group = listing->group, .init = init};
    for (int i = 0; i < n_dims; i++) {
        row->shape[i] = shape[i];
        row->count *= shape[i];
    }
    memcpy(row->local, row->shape, sizeof row->local);
    row->n_local = row->count;
    row->held = slice_whole(row->count, 1, 1, 1);
    row->cut_axis = -1;
    row->unit = listing->unit;
    row->forward_only = listing->forward_only;
    row->layer = listing->layer;
    row->init_std = init == INIT_NORMAL ? listing->std : 0;
    row->decay = n_dims > 1;
    row->lr_factor = 1;
    row->own_decay = -1;
    registry->total += row->count;
    return row;
}

/* Appends a row; its name is printed from fmt. */
static void add_param(lister *listing, param_init init, int n_dims, const int64_t *shape,
                      const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void add_param(lister *listing, param_init init, int n_dims, const int64_t *shape,
                      const char *fmt, ...)
{
    param *row = add_row(listing, init, n_dims, shape);
    if (!row)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(row->name, sizeof row->name, fmt, args);
    va_end(args);
}

/* Lets tensor ranks divide this axis of the last row, a matrix. */
static void cut_matrix(lister *listing, int axis)
{
    if (listing->failed)
        return;
    param *row = &listing->registry->list[listing->registry->count - 1];
    row->cut = CUT_TENSOR;
    row->cut_axis = axis;
    row->held = slice_whole(row->shape[0], row->shape[1], 1, 1);
}

/* Lets ranks divide the last row, experts [E, in, out]: E, and the experts' width, which is on this
 * axis. out consists of `parts` matrices side by side (gate and up), each of which is divided. */
static void cut_experts(lister *listing, int axis, int64_t parts)
{
    if (listing->failed)
        return;
    param *row = &listing->registry->list[listing->registry->count - 1];
    row->cut = CUT_EXPERT;
    row->cut_axis = axis;
    row->held = slice_whole(row->shape[0], row->shape[1], parts, row->shape[2] / parts);
}

#define VECTOR(l, init, n, ...) add_param((l), (init), 1, (const int64_t[]){(n)}, __VA_ARGS__)
#define MATRIX(l, rows, columns, ...)                                                              \
    add_param((l), INIT_NORMAL, 2, (const int64_t[]){(rows), (columns)}, __VA_ARGS__)
#define CUBE(l, a, b, c, ...)                                                                      \
    add_param((l), INIT_NORMAL, 3, (const int64_t[]){(a), (b), (c)}, __VA_ARGS__)

static void list_decoder_layer(lister *listing, const model_dims *dims, int layer)
{
    const text_dims *text = &dims->text;
    int64_t hidden = text->hidden, hd = text->head_dim;
    char at[64];
    snprintf(at, sizeof at, "%slayers.%d", listing->registry->text_prefix, layer);
    listing->unit = unit_layer(dims, layer);
    listing->layer = layer;
    listing->group = GROUP_TEXT;
    VECTOR(listing, INIT_ONE, hidden, "%s.input_layernorm.weight", at);
    MATRIX(listing, text->heads * hd, hidden, "%s.self_attn.q_proj.weight", at);
    cut_matrix(listing, 0);
    MATRIX(listing, text->kv_heads * hd, hidden, "%s.self_attn.k_proj.weight", at);
    cut_matrix(listing, 0);
    MATRIX(listing, text->kv_heads * hd, hidden, "%s.self_attn.v_proj.weight", at);
    cut_matrix(listing, 0);
    MATRIX(listing, hidden, text->heads * hd, "%s.self_attn.o_proj.weight", at);
    cut_matrix(listing, 1);
    VECTOR(listing, INIT_ONE, hd, "%s.self_attn.q_norm.weight", at);
    VECTOR(listing, INIT_ONE, hd, "%s.self_attn.k_norm.weight", at);
    VECTOR(listing, INIT_ONE, hidden, "%s.post_attention_layernorm.weight", at);
    if (dims_layer_is_moe(dims, layer)) {
        listing->group = GROUP_ROUTER;
        MATRIX(listing, text->experts, hidden, "%s.mlp.gate.weight", at);
        listing->group = GROUP_EXPERTS;
        CUBE(listing, text->experts, hidden, 2 * text->expert_width, "%s.mlp.experts.gate_up_proj",
             at);
        cut_experts(listing, 2, 2);
        CUBE(listing, text->experts, text->expert_width, hidden, "%s.mlp.experts.down_proj", at);
        cut_experts(listing, 1, 1);
    } else {
        MATRIX(listing, text->intermediate, hidden, "%s.mlp.gate_proj.weight", at);
        cut_matrix(listing, 0);
        MATRIX(listing, text->intermediate, hidden, "%s.mlp.up_proj.weight", at);
        cut_matrix(listing, 0);
        MATRIX(listing, hidden, text->intermediate, "%s.mlp.down_proj.weight", at);
        cut_matrix(listing, 1);
    }
}

/* Appends weight [out, in] and bias [out]. */
static void list_linear(lister *listing, int64_t out, int64_t in, const char *at, const char *name)
{
    MATRIX(listing, out, in, "%s.%s.weight", at, name);
    VECTOR(listing, INIT_ZERO, out, "%s.%s.bias", at, name);
}

static void list_layernorm(lister *listing, int64_t hidden, const char *at, const char *name)
{
    VECTOR(listing, INIT_ONE, hidden, "%s.%s.weight", at, name);
    VECTOR(listing, INIT_ZERO, hidden, "%s.%s.bias", at, name);
}

static void list_merger(lister *listing, const model_dims *dims, const char *at, int64_t norm_width)
{
    int64_t wide = dims->vision.merge * dims->vision.merge * dims->vision.hidden;
    list_layernorm(listing, norm_width, at, "norm");
    list_linear(listing, wide, wide, at, "linear_fc1");
    list_linear(listing, dims->text.hidden, wide, at, "linear_fc2");
}

static void list_vision(lister *listing, const model_dims *dims)
{
    const vision_dims *tower = &dims->vision;
    char at[64];
    listing->std = tower->initializer_range;
    listing->layer = -1;
    listing->unit = unit_patch();
    listing->forward_only = true;
    listing->group = GROUP_VISION;
    add_param(listing, INIT_NORMAL, 5, (const int64_t[]){tower->hidden, 3, 2, 16, 16},
              "model.visual.patch_embed.proj.weight");
    VECTOR(listing, INIT_ZERO, tower->hidden, "model.visual.patch_embed.proj.bias");
    listing->group = GROUP_MERGER;
    MATRIX(listing, tower->positions, tower->hidden, "model.visual.pos_embed.weight");
    listing->group = GROUP_VISION;
    listing->forward_only = false;
    for (int i = 0; i < tower->depth; i++) {
        snprintf(at, sizeof at, "model.visual.blocks.%d", i);
        listing->unit = unit_block(dims, i);
        list_layernorm(listing, tower->hidden, at, "norm1");
        list_layernorm(listing, tower->hidden, at, "norm2");
        list_linear(listing, 3 * tower->hidden, tower->hidden, at, "attn.qkv");
        list_linear(listing, tower->hidden, tower->hidden, at, "attn.proj");
        list_linear(listing, tower->intermediate, tower->hidden, at, "mlp.linear_fc1");
        list_linear(listing, tower->hidden, tower->intermediate, at, "mlp.linear_fc2");
    }
    listing->group = GROUP_MERGER;
    listing->unit = unit_merger(dims, 0);
    list_merger(listing, dims, "model.visual.merger", tower->hidden);
    for (int j = 0; j < tower->n_deepstack; j++) {
        snprintf(at, sizeof at, "model.visual.deepstack_merger_list.%d", j);
        listing->unit = unit_merger(dims, 1 + j);
        list_merger(listing, dims, at, tower->merge * tower->merge * tower->hidden);
    }
}

status params_list(const model_dims *dims, params *registry)
{
    const text_dims *text = &dims->text;
    lister listing = {.registry = registry,
                      .std = text->initializer_range,
                      .group = GROUP_TEXT,
                      .unit = unit_embedding(dims),
                      .forward_only = true,
                      .layer = -1};
    registry->text_only_names = dims->vision.depth == 0;
    registry->text_prefix = dims_text_prefix(dims);
    MATRIX(&listing, text->vocab, text->hidden, "%sembed_tokens.weight", registry->text_prefix);
    if (!listing.failed)
        registry->list[0].stays = text->tied;
    listing.forward_only = false;
    for (int layer = 0; layer < text->layers; layer++)
        list_decoder_layer(&listing, dims, layer);
    listing.group = GROUP_TEXT;
    listing.unit = unit_head(dims);
    listing.layer = -1;
    VECTOR(&listing, INIT_ONE, text->hidden, "%snorm.weight", registry->text_prefix);
    if (!text->tied)
        MATRIX(&listing, text->vocab, text->hidden, "lm_head.weight");
    if (dims->vision.depth > 0)
        list_vision(&listing, dims);
    if (listing.failed)
        return FAIL(ST_NO_MEMORY, "no memory for the list of %lld parameters",
                    (long long)registry->count);
    return ST_OK;
}

/* ---- the tensors of a file ---- */

/* The length of "X.mlp.experts" in "X.mlp.experts.gate_up_proj". */
static int stem_size(const param *weight)
{
    return (int)(strrchr(weight->name, '.') - weight->name);
}

/* The tensor [rows, in] of one expert, which is the transpose of columns [column, column + rows) of
 * weight [E, in, out]. */
static param_piece expert_piece(const param *weight, int64_t expert, const char *which,
                                int64_t column, int64_t rows)
{
    param_piece piece = {.n_dims = 2, .weight = weight, .expert = expert, .column = column};
    snprintf(piece.name, sizeof piece.name, "%.*s.%lld.%s_proj.weight", stem_size(weight),
             weight->name, (long long)expert, which);
    piece.shape[0] = rows;
    piece.shape[1] = weight->shape[1];
    piece.count = piece.shape[0] * piece.shape[1];
    return piece;
}

static param_piece whole_piece(const param *weight, expert_layout stored)
{
    param_piece piece = {
        .n_dims = weight->n_dims, .count = weight->count, .weight = weight, .expert = -1};
    memcpy(piece.name, weight->name, sizeof piece.name);
    memcpy(piece.shape, weight->shape, sizeof piece.shape);
    if (weight->group == GROUP_EXPERTS && stored == EXPERTS_EXCHANGED) {
        piece.exchanged = true;
        piece.shape[1] = weight->shape[2];
        piece.shape[2] = weight->shape[1];
    }
    return piece;
}

status params_pieces(const params *registry, expert_layout stored, param_piece **out,
                     int64_t *out_n)
{
    bool per_expert = stored == EXPERTS_SEPARATE;
    int64_t most = registry->count;
    for (int64_t i = 0; i < registry->count && per_expert; i++) {
        if (registry->list[i].group == GROUP_EXPERTS && !registry->list[i].adapter)
            most += 2 * registry->list[i].shape[0];
    }
    param_piece *list = malloc((size_t)(most > 0 ? most : 1) * sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld tensor names", (long long)most);
    int64_t count = 0;
    for (int64_t i = 0; i < registry->count; i++) {
        const param *row = &registry->list[i];
        if (row->adapter)
            continue;
        if (!per_expert || row->group != GROUP_EXPERTS) {
            list[count++] = whole_piece(row, stored);
            continue;
        }
        bool pair = strstr(row->name, "gate_up_proj") != NULL;
        int64_t width = pair ? row->shape[2] / 2 : row->shape[2];
        for (int64_t j = 0; j < row->shape[0]; j++) {
            list[count++] = expert_piece(row, j, pair ? "gate" : "down", 0, width);
            if (pair)
                list[count++] = expert_piece(row, j, "up", width, width);
        }
    }
    *out = list;
    *out_n = count;
    return ST_OK;
}
