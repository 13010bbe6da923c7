/* dims.c: reads the dimensions of a model from config.json or a preset, and checks them. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/model_folder/model_files.h"
#include "trainer/model/config_keys.h"
#include "trainer/model/dims.h"
#include "trainer/model/head.h"

enum { PATCH = 16, TEMPORAL = 2, CHANNELS = 3, VISION_THETA = 10000 };

bool dims_layer_is_moe(const model_dims *d, int64_t layer)
{
    const text_dims *t = &d->text;
    for (int i = 0; i < t->n_dense_layers; i++) {
        if (t->dense_layers[i] == layer)
            return false;
    }
    return t->experts > 0 && (layer + 1) % t->sparse_step == 0;
}

/* The next three read members that may be absent. The default, in *inout, then stays; a value of
 * another type is an error. */
static status maybe_int(const json_value *o, const char *key, const char *source, int64_t *inout)
{
    const json_value *v = json_find(o, key);
    if (!v || json_typeof(v) == JSON_NULL)
        return ST_OK;
    return json_want_int(o, key, source, inout);
}

static status maybe_real(const json_value *o, const char *key, const char *source, double *inout)
{
    return json_find(o, key) ? json_want_real(o, key, source, inout) : ST_OK;
}

static status maybe_bool(const json_value *o, const char *key, const char *source, bool *inout)
{
    return json_find(o, key) ? json_want_bool(o, key, source, inout) : ST_OK;
}

static status only_int(const json_value *o, const char *key, const char *source, int64_t only)
{
    int64_t v = only;
    TRY(maybe_int(o, key, source, &v));
    if (v != only)
        return FAIL_IN(ST_BAD_INPUT, source, "%s is %lld; only %lld is implemented", key,
                       (long long)v, (long long)only);
    return ST_OK;
}

static status int_list(const json_value *o, const char *key, const char *source, int64_t *out,
                       int most, int *out_n)
{
    const json_value *list;
    TRY(json_want_array(o, key, source, &list));
    size_t n = json_count(list);
    if (n > (size_t)most)
        return FAIL_IN(ST_BAD_INPUT, source, "%s has %zu items; at most %d are supported", key, n,
                       most);
    for (size_t i = 0; i < n; i++) {
        const json_value *item = json_item(list, i);
        if (json_typeof(item) != JSON_INT)
            return FAIL_IN(ST_BAD_INPUT, source, "%s[%zu] must be an integer, not %s", key, i,
                           json_type_name(json_typeof(item)));
        out[i] = json_int(item, 0);
    }
    *out_n = (int)n;
    return ST_OK;
}

/* Reads rope_theta and rope_scaling (4.57), or rope_parameters, which holds both (5.x). */
static status read_rope(const json_value *o, const char *source, bool vision, text_dims *t)
{
    const json_value *rope = json_find(o, "rope_parameters");
    if (!rope || json_typeof(rope) != JSON_OBJECT)
        rope = json_find(o, "rope_scaling");
    TRY(config_keys_check(rope, IN_ROPE, vision, source));
    const json_value *theta = json_find(o, "rope_theta") ? o : rope;
    if (!theta || json_typeof(theta) != JSON_OBJECT)
        theta = o;
    TRY(json_want_real(theta, "rope_theta", source, &t->rope_theta));
    double other = t->rope_theta;
    TRY(maybe_real(rope, "rope_theta", source, &other));
    if (other != t->rope_theta)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "rope_theta is %g and rope_scaling.rope_theta is %g; releases of transformers "
            "differ in which of them they read, so give both the same value",
            t->rope_theta, other);
    if (!rope || json_typeof(rope) != JSON_OBJECT) {
        if (vision)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "rope_scaling with mrope_section is missing; a model with vision needs it");
        return ST_OK;
    }
    if (!vision)
        return ST_OK;
    int n = 0;
    TRY(int_list(rope, "mrope_section", source, t->mrope_section, 3, &n));
    if (n != 3)
        return FAIL_IN(ST_BAD_INPUT, source, "mrope_section has %d items; it must have 3", n);
    return ST_OK;
}

/* Reads pad_token_id, which is torch's padding_idx: a negative one counts from the end. */
static status read_pad(const json_value *o, const char *source, text_dims *t)
{
    static const char key[] = "pad_token_id";
    const json_value *v = json_find(o, key);
    int64_t id;
    if (!v || json_typeof(v) == JSON_NULL)
        return ST_OK;
    TRY(json_want_int(o, key, source, &id));
    if (id < -t->vocab || id >= t->vocab)
        return FAIL_IN(ST_BAD_INPUT, source, "%s is %lld, which is outside vocab_size %lld", key,
                       (long long)id, (long long)t->vocab);
    t->has_pad = true;
    t->pad_token = id < 0 ? id + t->vocab : id;
    return ST_OK;
}

static status read_text(const json_value *o, const char *source, bool vision, bool moe,
                        text_dims *t)
{
    t->norm_topk_prob = true;
    t->sparse_step = 1;
    t->router_aux_coef = 0.001;
    t->initializer_range = 0.02;
    TRY(json_want_int(o, "vocab_size", source, &t->vocab));
    TRY(json_want_int(o, "hidden_size", source, &t->hidden));
    TRY(json_want_int(o, "num_hidden_layers", source, &t->layers));
    TRY(json_want_int(o, "num_attention_heads", source, &t->heads));
    TRY(json_want_int(o, "num_key_value_heads", source, &t->kv_heads));
    TRY(json_want_int(o, "head_dim", source, &t->head_dim));
    TRY(json_want_int(o, "intermediate_size", source, &t->intermediate));
    TRY(json_want_real(o, "rms_norm_eps", source, &t->rms_eps));
    if (moe) {
        /* Late releases of the 5 series write num_local_experts. */
        const char *experts = json_find(o, "num_experts") ? "num_experts" : "num_local_experts";
        if (!json_find(o, experts))
            experts = "num_experts";
        TRY(json_want_int(o, experts, source, &t->experts));
        TRY(json_want_int(o, "num_experts_per_tok", source, &t->top_k));
        TRY(json_want_int(o, "moe_intermediate_size", source, &t->expert_width));
        TRY(maybe_int(o, "decoder_sparse_step", source, &t->sparse_step));
        if (json_find(o, "mlp_only_layers"))
            TRY(int_list(o, "mlp_only_layers", source, t->dense_layers, MAX_DENSE_LAYERS,
                         &t->n_dense_layers));
        TRY(maybe_real(o, "router_aux_loss_coef", source, &t->router_aux_coef));
        if (!vision) /* with vision transformers renormalises whatever the file says */
            TRY(maybe_bool(o, "norm_topk_prob", source, &t->norm_topk_prob));
        TRY(maybe_bool(o, "output_router_logits", source, &t->output_router_logits));
    }
    TRY(maybe_real(o, "initializer_range", source, &t->initializer_range));
    TRY(maybe_int(o, "max_position_embeddings", source, &t->max_positions));
    TRY(read_pad(o, source, t));
    TRY(config_keys_check(o, IN_TEXT, vision, source));
    return read_rope(o, source, vision, t);
}

static status read_vision(const json_value *o, const char *source, int64_t hidden, vision_dims *v)
{
    v->initializer_range = 0.02;
    v->merge = 2;
    v->patch_bytes = (int64_t)CHANNELS * TEMPORAL * PATCH * PATCH;
    TRY(json_want_int(o, "depth", source, &v->depth));
    TRY(json_want_int(o, "hidden_size", source, &v->hidden));
    TRY(json_want_int(o, "num_heads", source, &v->heads));
    TRY(json_want_int(o, "intermediate_size", source, &v->intermediate));
    TRY(json_want_int(o, "num_position_embeddings", source, &v->positions));
    TRY(int_list(o, "deepstack_visual_indexes", source, v->deepstack, MAX_DEEPSTACK,
                 &v->n_deepstack));
    TRY(maybe_real(o, "initializer_range", source, &v->initializer_range));
    TRY(config_keys_check(o, IN_VISION, true, source));
    double theta =
        VISION_THETA; /* a constant in transformers until late releases of the 5 series */
    TRY(maybe_real(json_find(o, "rope_parameters"), "rope_theta", source, &theta));
    if (theta != VISION_THETA)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "rope_parameters.rope_theta is %g; only %d is "
                       "implemented",
                       theta, VISION_THETA);
    return only_int(o, "out_hidden_size", source, hidden);
}

static status read_token(const json_value *o, const char *key, const char *source, int32_t *out)
{
    int64_t id = 0;
    TRY(json_want_int(o, key, source, &id));
    if (id < 0 || id > INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, source, "%s is %lld, which is not a token id", key,
                       (long long)id);
    *out = (int32_t)id;
    return ST_OK;
}

static status want_object(const json_value *o, const char *key, const char *source,
                          const json_value **out)
{
    const json_value *v = json_find(o, key);
    if (!v || json_typeof(v) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, "%s is missing or is not an object", key);
    *out = v;
    return ST_OK;
}

/* bos and eos are in text_config or at the top; -1 if they are in neither. */
static void read_ends(const json_value *top, const json_value *text, model_dims *d)
{
    const json_value *bos = json_find(text, "bos_token_id"), *eos = json_find(text, "eos_token_id");
    bos = bos ? bos : json_find(top, "bos_token_id");
    eos = eos ? eos : json_find(top, "eos_token_id");
    if (eos && json_typeof(eos) == JSON_ARRAY)
        eos = json_item(eos, 0);
    d->bos_token = (int32_t)json_int(bos, -1);
    d->eos_token = (int32_t)json_int(eos, -1);
}

status dims_from_json(const json_value *config, const char *source, model_dims *out)
{
    model_dims d = {.image_token = -1, .video_token = -1, .vision_start = -1, .vision_end = -1};
    const char *type;
    TRY(json_want_text(config, "model_type", source, &type));
    bool vision = strcmp(type, "qwen3_vl_moe") == 0 || strcmp(type, "qwen3_vl") == 0;
    bool moe = strcmp(type, "qwen3_vl_moe") == 0 || strcmp(type, "qwen3_moe") == 0;
    if (!vision && !moe && strcmp(type, "qwen3") != 0)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "model_type \"%s\" is not implemented; known: qwen3_vl_moe, qwen3_vl, "
                       "qwen3_moe, qwen3",
                       type);
    TRY(config_keys_check(config, IN_TOP, vision, source));
    snprintf(d.model_type, sizeof d.model_type, "%s", type);
    const json_value *names = json_find(config, "architectures");
    snprintf(d.architecture, sizeof d.architecture, "%s", json_text(json_item(names, 0), ""));
    const json_value *text = config;
    if (vision) {
        TRY(want_object(config, "text_config", source, &text));
        status st = read_text(text, source, true, moe, &d.text);
        if (st != ST_OK)
            return status_context(st, "text_config");
        const json_value *tower;
        TRY(want_object(config, "vision_config", source, &tower));
        st = read_vision(tower, source, d.text.hidden, &d.vision);
        if (st == ST_OK && d.vision.depth < 1)
            st = FAIL_IN(ST_BAD_INPUT, source, "depth is %lld; it must be at least 1",
                         (long long)d.vision.depth);
        if (st != ST_OK)
            return status_context(st, "vision_config");
        TRY(read_token(config, "image_token_id", source, &d.image_token));
        TRY(read_token(config, "video_token_id", source, &d.video_token));
        TRY(read_token(config, "vision_start_token_id", source, &d.vision_start));
        TRY(read_token(config, "vision_end_token_id", source, &d.vision_end));
    } else {
        TRY(read_text(config, source, false, moe, &d.text));
    }
    head_ties ties;
    TRY(head_read_ties(config, source, &ties));
    d.text.tied = ties.top || ties.text; /* dims_load also asks the weights */
    read_ends(config, text, &d);
    TRY(dims_check(&d, source));
    *out = d;
    return ST_OK;
}

#define RULE(condition, ...)                                                                       \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return FAIL_IN(ST_BAD_INPUT, source, __VA_ARGS__);                                     \
    } while (0)

enum {
    MOST = 1 << 20 /* of any one dimension, so that products of three fit 64 bits */,
    MOST_LAYERS = 4096
};

static const double most_parameters = 1e14; /* so that byte counts and their sums fit 64 bits */

/* About how many parameters the model has; in double, so that nothing overflows. */
static double estimate(const model_dims *d)
{
    const text_dims *t = &d->text;
    const vision_dims *v = &d->vision;
    double h = (double)t->hidden, wide = (double)(4 * v->hidden);
    double layer = h * (double)t->head_dim * 2.0 * (double)(t->heads + t->kv_heads) +
                   3 * h * (double)t->intermediate +
                   (double)t->experts * h * (1 + 3 * (double)t->expert_width);
    double block = (double)v->hidden * (4.0 * (double)v->hidden + 2.0 * (double)v->intermediate);
    return 2 * (double)t->vocab * h + (double)t->layers * layer + (double)v->depth * block +
           (double)(v->positions + v->patch_bytes) * (double)v->hidden +
           (1 + v->n_deepstack) * wide * (wide + h);
}

static status check_text(const text_dims *t, const char *source)
{
    const struct {
        const char *name;
        int64_t value;
    } positive[] = {
        {"vocab_size", t->vocab},
        {"hidden_size", t->hidden},
        {"num_hidden_layers", t->layers},
        {"num_attention_heads", t->heads},
        {"head_dim", t->head_dim},
        {"num_key_value_heads", t->kv_heads},
        {"decoder_sparse_step", t->sparse_step},
        {"intermediate_size", t->intermediate},
    };
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        RULE(positive[i].value > 0 && positive[i].value <= MOST, "%s is %lld; it must be 1 to %d",
             positive[i].name, (long long)positive[i].value, MOST);
    RULE(t->layers <= MOST_LAYERS, "num_hidden_layers is %lld; it must be at most %d",
         (long long)t->layers, MOST_LAYERS);
    RULE(t->heads % t->kv_heads == 0,
         "num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
         (long long)t->heads, (long long)t->kv_heads);
    RULE(t->head_dim % 2 == 0, "head_dim %lld is odd; it must be even", (long long)t->head_dim);
    RULE(t->experts >= 0 && t->experts <= MOST, "num_experts is %lld; it must be 0 to %d",
         (long long)t->experts, MOST);
    if (t->experts > 0) {
        RULE(t->top_k > 0 && t->top_k <= t->experts,
             "num_experts_per_tok %lld is not between 1 and num_experts %lld", (long long)t->top_k,
             (long long)t->experts);
        RULE(t->expert_width > 0 && t->expert_width <= MOST,
             "moe_intermediate_size is %lld; it must be 1 to %d", (long long)t->expert_width, MOST);
    }
    RULE(t->rms_eps > 0 && t->rope_theta > 1, "rms_norm_eps %g or rope_theta %g is out of range",
         t->rms_eps, t->rope_theta);
    return ST_OK;
}

static status check_vision(const model_dims *d, const char *source)
{
    const vision_dims *v = &d->vision;
    RULE(v->depth > 0 && v->depth <= MOST_LAYERS && v->heads <= MOST && v->hidden > 0 &&
             v->hidden <= MOST && v->heads > 0 && v->intermediate > 0 && v->intermediate <= MOST &&
             v->positions > 0 && v->positions <= MOST,
         "vision_config: depth, hidden_size, num_heads, intermediate_size and "
         "num_position_embeddings must be positive");
    RULE(v->hidden % v->heads == 0 && dims_vision_head_dim(d) % 4 == 0,
         "vision_config: hidden_size %lld / num_heads %lld is not a multiple of 4",
         (long long)v->hidden, (long long)v->heads);
    int64_t side = (int64_t)(sqrt((double)v->positions) + 0.5);
    RULE(side * side == v->positions, "vision_config: num_position_embeddings %lld is not a square",
         (long long)v->positions);
    RULE(v->n_deepstack <= d->text.layers,
         "vision_config: there are %d deepstack_visual_indexes, but only %lld decoder layers",
         v->n_deepstack, (long long)d->text.layers);
    for (int j = 0; j < v->n_deepstack; j++)
        RULE(v->deepstack[j] >= (j ? v->deepstack[j - 1] + 1 : 0) && v->deepstack[j] < v->depth,
             "vision_config: deepstack_visual_indexes[%d] is %lld; the indexes must rise and be "
             "below "
             "depth %lld",
             j, (long long)v->deepstack[j], (long long)v->depth);
    return ST_OK;
}

status dims_check(const model_dims *d, const char *source)
{
    TRY(check_text(&d->text, source));
    if (d->vision.depth != 0)
        TRY(check_vision(d, source));
    RULE(estimate(d) <= most_parameters,
         "the model has about %.3g parameters; at most %.3g are supported", estimate(d),
         most_parameters);
    return ST_OK;
}

status dims_load(const char *path_or_preset, model_dims *out)
{
    char file[STATUS_PATH_MAX];
    if (!file_is_folder(path_or_preset)) {
        if (strchr(path_or_preset, '/'))
            return model_files_absent(ST_NO_INPUT, "model", path_or_preset);
        return dims_preset(path_or_preset, out);
    }
    if (snprintf(file, sizeof file, "%s/config.json", path_or_preset) >= (int)sizeof file)
        return FAIL(ST_USAGE, "model.path is longer than %d bytes", STATUS_PATH_MAX);
    json_value *config = NULL;
    TRY(json_load(file, &config));
    head_ties ties;
    status st = dims_from_json(config, file, out);
    if (st == ST_OK)
        st = head_read_ties(config, file, &ties);
    if (st == ST_OK)
        st = head_is_tied(&ties, path_or_preset, dims_text_prefix(out), &out->text.tied);
    json_free(&config);
    if (st == ST_OK) {
        char name[STATUS_PATH_MAX];
        model_cache_title(path_or_preset, name);
        snprintf(out->name, sizeof out->name, "%.63s", name);
    }
    return st;
}
