/* params_list.c: lists every parameter of a model in the order of the published files, with its
 * group, initialiser and weight decay (equations.md, "Parameters and their files").
 *
 * H hidden, V vocabulary, E experts, I expert width, D vision hidden, F vision MLP width. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/params.h"
#include "trainer/model/unit_order.h"

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

static param *add_row(lister *l, param_init init, int n_dims, const int64_t *shape)
{
    params *p = l->registry;
    if (p->count == l->capacity) {
        int64_t more = l->capacity ? 2 * l->capacity : 256;
        param *list = realloc(p->list, (size_t)more * sizeof *list);
        if (!list) {
            l->failed = true;
            return NULL;
        }
        p->list = list;
        l->capacity = more;
    }
    param *row = &p->list[p->count++];
    *row = (param){.n_dims = n_dims, .count = 1, .group = l->group, .init = init};
    for (int i = 0; i < n_dims; i++) {
        row->shape[i] = shape[i];
        row->count *= shape[i];
    }
    memcpy(row->local, row->shape, sizeof row->local);
    row->n_local = row->count;
    row->held = slice_whole(row->count, 1, 1, 1);
    row->cut_axis = -1;
    row->unit = l->unit;
    row->forward_only = l->forward_only;
    row->layer = l->layer;
    row->init_std = init == INIT_NORMAL ? l->std : 0;
    row->decay = n_dims > 1;
    row->lr_factor = 1;
    row->own_decay = -1;
    p->total += row->count;
    return row;
}

/* Appends a row; its name is printed from fmt. */
static void add_param(lister *l, param_init init, int n_dims, const int64_t *shape, const char *fmt,
                      ...) __attribute__((format(printf, 5, 6)));
static void add_param(lister *l, param_init init, int n_dims, const int64_t *shape, const char *fmt,
                      ...)
{
    param *row = add_row(l, init, n_dims, shape);
    if (!row)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(row->name, sizeof row->name, fmt, args);
    va_end(args);
}

/* Lets tensor ranks divide this axis of the last row, a matrix. */
static void cut_matrix(lister *l, int axis)
{
    if (l->failed)
        return;
    param *row = &l->registry->list[l->registry->count - 1];
    row->cut = CUT_TENSOR;
    row->cut_axis = axis;
    row->held = slice_whole(row->shape[0], row->shape[1], 1, 1);
}

/* Lets ranks divide the last row, experts [E, in, out]: E, and the experts' width, which is on this
 * axis. out consists of `parts` matrices side by side (gate and up), each of which is divided. */
static void cut_experts(lister *l, int axis, int64_t parts)
{
    if (l->failed)
        return;
    param *row = &l->registry->list[l->registry->count - 1];
    row->cut = CUT_EXPERT;
    row->cut_axis = axis;
    row->held = slice_whole(row->shape[0], row->shape[1], parts, row->shape[2] / parts);
}

#define VECTOR(l, init, n, ...) add_param((l), (init), 1, (const int64_t[]){(n)}, __VA_ARGS__)
#define MATRIX(l, rows, columns, ...)                                                              \
    add_param((l), INIT_NORMAL, 2, (const int64_t[]){(rows), (columns)}, __VA_ARGS__)
#define CUBE(l, a, b, c, ...)                                                                      \
    add_param((l), INIT_NORMAL, 3, (const int64_t[]){(a), (b), (c)}, __VA_ARGS__)

static void list_decoder_layer(lister *l, const model_dims *dims, int layer)
{
    const text_dims *text = &dims->text;
    int64_t h = text->hidden, hd = text->head_dim;
    char at[64];
    snprintf(at, sizeof at, "%slayers.%d", l->registry->text_prefix, layer);
    l->unit = unit_layer(dims, layer);
    l->layer = layer;
    l->group = GROUP_TEXT;
    VECTOR(l, INIT_ONE, h, "%s.input_layernorm.weight", at);
    MATRIX(l, text->heads * hd, h, "%s.self_attn.q_proj.weight", at);
    cut_matrix(l, 0);
    MATRIX(l, text->kv_heads * hd, h, "%s.self_attn.k_proj.weight", at);
    cut_matrix(l, 0);
    MATRIX(l, text->kv_heads * hd, h, "%s.self_attn.v_proj.weight", at);
    cut_matrix(l, 0);
    MATRIX(l, h, text->heads * hd, "%s.self_attn.o_proj.weight", at);
    cut_matrix(l, 1);
    VECTOR(l, INIT_ONE, hd, "%s.self_attn.q_norm.weight", at);
    VECTOR(l, INIT_ONE, hd, "%s.self_attn.k_norm.weight", at);
    VECTOR(l, INIT_ONE, h, "%s.post_attention_layernorm.weight", at);
    if (dims_layer_is_moe(dims, layer)) {
        l->group = GROUP_ROUTER;
        MATRIX(l, text->experts, h, "%s.mlp.gate.weight", at);
        l->group = GROUP_EXPERTS;
        CUBE(l, text->experts, h, 2 * text->expert_width, "%s.mlp.experts.gate_up_proj", at);
        cut_experts(l, 2, 2);
        CUBE(l, text->experts, text->expert_width, h, "%s.mlp.experts.down_proj", at);
        cut_experts(l, 1, 1);
    } else {
        MATRIX(l, text->intermediate, h, "%s.mlp.gate_proj.weight", at);
        cut_matrix(l, 0);
        MATRIX(l, text->intermediate, h, "%s.mlp.up_proj.weight", at);
        cut_matrix(l, 0);
        MATRIX(l, h, text->intermediate, "%s.mlp.down_proj.weight", at);
        cut_matrix(l, 1);
    }
}

/* Appends weight [out, in] and bias [out]. */
static void list_linear(lister *l, int64_t out, int64_t in, const char *at, const char *name)
{
    MATRIX(l, out, in, "%s.%s.weight", at, name);
    VECTOR(l, INIT_ZERO, out, "%s.%s.bias", at, name);
}

static void list_layernorm(lister *l, int64_t n, const char *at, const char *name)
{
    VECTOR(l, INIT_ONE, n, "%s.%s.weight", at, name);
    VECTOR(l, INIT_ZERO, n, "%s.%s.bias", at, name);
}

static void list_merger(lister *l, const model_dims *dims, const char *at, int64_t norm_width)
{
    int64_t wide = dims->vision.merge * dims->vision.merge * dims->vision.hidden;
    list_layernorm(l, norm_width, at, "norm");
    list_linear(l, wide, wide, at, "linear_fc1");
    list_linear(l, dims->text.hidden, wide, at, "linear_fc2");
}

static void list_vision(lister *l, const model_dims *dims)
{
    const vision_dims *tower = &dims->vision;
    char at[64];
    l->std = tower->initializer_range;
    l->layer = -1;
    l->unit = unit_patch();
    l->forward_only = true;
    l->group = GROUP_VISION;
    add_param(l, INIT_NORMAL, 5, (const int64_t[]){tower->hidden, 3, 2, 16, 16},
              "model.visual.patch_embed.proj.weight");
    VECTOR(l, INIT_ZERO, tower->hidden, "model.visual.patch_embed.proj.bias");
    l->group = GROUP_MERGER;
    MATRIX(l, tower->positions, tower->hidden, "model.visual.pos_embed.weight");
    l->group = GROUP_VISION;
    l->forward_only = false;
    for (int b = 0; b < tower->depth; b++) {
        snprintf(at, sizeof at, "model.visual.blocks.%d", b);
        l->unit = unit_block(dims, b);
        list_layernorm(l, tower->hidden, at, "norm1");
        list_layernorm(l, tower->hidden, at, "norm2");
        list_linear(l, 3 * tower->hidden, tower->hidden, at, "attn.qkv");
        list_linear(l, tower->hidden, tower->hidden, at, "attn.proj");
        list_linear(l, tower->intermediate, tower->hidden, at, "mlp.linear_fc1");
        list_linear(l, tower->hidden, tower->intermediate, at, "mlp.linear_fc2");
    }
    l->group = GROUP_MERGER;
    l->unit = unit_merger(dims, 0);
    list_merger(l, dims, "model.visual.merger", tower->hidden);
    for (int j = 0; j < tower->n_deepstack; j++) {
        snprintf(at, sizeof at, "model.visual.deepstack_merger_list.%d", j);
        l->unit = unit_merger(dims, 1 + j);
        list_merger(l, dims, at, tower->merge * tower->merge * tower->hidden);
    }
}

status params_list(const model_dims *dims, params *p)
{
    const text_dims *text = &dims->text;
    lister l = {.registry = p,
                .std = text->initializer_range,
                .group = GROUP_TEXT,
                .unit = unit_embedding(dims),
                .forward_only = true,
                .layer = -1};
    p->text_only_names = dims->vision.depth == 0;
    p->text_prefix = dims_text_prefix(dims);
    MATRIX(&l, text->vocab, text->hidden, "%sembed_tokens.weight", p->text_prefix);
    if (!l.failed)
        p->list[0].stays = text->tied;
    l.forward_only = false;
    for (int layer = 0; layer < text->layers; layer++)
        list_decoder_layer(&l, dims, layer);
    l.group = GROUP_TEXT;
    l.unit = unit_head(dims);
    l.layer = -1;
    VECTOR(&l, INIT_ONE, text->hidden, "%snorm.weight", p->text_prefix);
    if (!text->tied)
        MATRIX(&l, text->vocab, text->hidden, "lm_head.weight");
    if (dims->vision.depth > 0)
        list_vision(&l, dims);
    if (l.failed)
        return FAIL(ST_NO_MEMORY, "no memory for the list of %lld parameters", (long long)p->count);
    return ST_OK;
}
