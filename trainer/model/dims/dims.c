/* SPDX-License-Identifier: Apache-2.0 */
/* dims.c: reads the dimensions of a model from config.json or a preset, and checks them. */
#include "trainer/model/dims/dims.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model_folder/model_files.h"
#include "trainer/model/dims/config_json.h"
#include "trainer/model/dims/hf_folder.h"

enum { PATCH = 16, TEMPORAL = 2, CHANNELS = 3, VISION_THETA = 10000 };

bool dims_layer_is_moe(const model_dims *dims, int64_t layer)
{
    const text_dims *text = &dims->text;
    for (int i = 0; i < text->n_dense_layers; i++) {
        if (text->dense_layers[i] == layer)
            return false;
    }
    return text->experts > 0 && (layer + 1) % text->sparse_step == 0;
}

/* The next three read members that may be absent. The default, in *inout, then stays; a value of
 * another type is an error. */
static status maybe_int(const json_value *object, const char *key, const char *source,
                        int64_t *inout)
{
    const json_value *value = json_find(object, key);
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    return json_want_int(object, key, source, inout);
}

static status maybe_real(const json_value *object, const char *key, const char *source,
                         double *inout)
{
    return json_find(object, key) ? json_want_real(object, key, source, inout) : ST_OK;
}

static status maybe_bool(const json_value *object, const char *key, const char *source, bool *inout)
{
    return json_find(object, key) ? json_want_bool(object, key, source, inout) : ST_OK;
}

static status only_int(const json_value *object, const char *key, const char *source, int64_t only)
{
    int64_t value = only;
    TRY(maybe_int(object, key, source, &value));
    if (value != only)
        return FAIL_IN(ST_BAD_INPUT, source, "%s is %lld; only %lld is implemented", key,
                       (long long)value, (long long)only);
    return ST_OK;
}

static status int_list(const json_value *object, const char *key, const char *source, int64_t *out,
                       int most, int *out_n)
{
    const json_value *list;
    TRY(json_want_array(object, key, source, &list));
    size_t count = json_count(list);
    if (count > (size_t)most)
        return FAIL_IN(ST_BAD_INPUT, source, "%s has %zu items; at most %d are supported", key,
                       count, most);
    for (size_t i = 0; i < count; i++) {
        const json_value *item = json_item(list, i);
        if (json_typeof(item) != JSON_INT)
            return FAIL_IN(ST_BAD_INPUT, source, "%s[%zu] must be an integer, not %s", key, i,
                           json_type_name(json_typeof(item)));
        out[i] = json_int(item, 0);
    }
    *out_n = (int)count;
    return ST_OK;
}

/* Reads rope_theta and rope_scaling (4.57), or rope_parameters, which holds both (5.x). */
static status read_rope(const json_value *object, const char *source, bool vision, text_dims *dims)
{
    const json_value *rope = json_find(object, "rope_parameters");
    if (!rope || json_typeof(rope) != JSON_OBJECT)
        rope = json_find(object, "rope_scaling");
    TRY(config_keys_check(rope, IN_ROPE, vision, source));
    const json_value *theta = json_find(object, "rope_theta") ? object : rope;
    if (!theta || json_typeof(theta) != JSON_OBJECT)
        theta = object;
    TRY(json_want_real(theta, "rope_theta", source, &dims->rope_theta));
    double other = dims->rope_theta;
    TRY(maybe_real(rope, "rope_theta", source, &other));
    if (other != dims->rope_theta)
        return FAIL_IN(
            ST_BAD_INPUT, source,
            "rope_theta is %g and rope_scaling.rope_theta is %g; releases of transformers "
            "differ in which of them they read, so give both the same value",
            dims->rope_theta, other);
    if (!rope || json_typeof(rope) != JSON_OBJECT) {
        if (vision)
            return FAIL_IN(
                ST_BAD_INPUT, source,
                "rope_scaling with mrope_section is missing; a model with vision needs it");
        return ST_OK;
    }
    if (!vision)
        return ST_OK;
    int count = 0;
    TRY(int_list(rope, "mrope_section", source, dims->mrope_section, 3, &count));
    if (count != 3)
        return FAIL_IN(ST_BAD_INPUT, source, "mrope_section has %d items; it must have 3", count);
    return ST_OK;
}

/* Reads pad_token_id, which is torch's padding_idx: a negative one counts from the end. */
static status read_pad(const json_value *object, const char *source, text_dims *dims)
{
    static const char key[] = "pad_token_id";
    const json_value *value = json_find(object, key);
    int64_t id;
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    TRY(json_want_int(object, key, source, &id));
    if (id < -dims->vocab || id >= dims->vocab)
        return FAIL_IN(ST_BAD_INPUT, source, "%s is %lld, which is outside vocab_size %lld", key,
                       (long long)id, (long long)dims->vocab);
    dims->has_pad = true;
    dims->pad_token = id < 0 ? id + dims->vocab : id;
    return ST_OK;
}

static status read_text(const json_value *object, const char *source, bool vision, bool moe,
                        text_dims *dims)
{
    dims->norm_topk_prob = true;
    dims->sparse_step = 1;
    dims->router_aux_coef = 0.001;
    dims->initializer_range = 0.02;
    TRY(json_want_int(object, "vocab_size", source, &dims->vocab));
    TRY(json_want_int(object, "hidden_size", source, &dims->hidden));
    TRY(json_want_int(object, "num_hidden_layers", source, &dims->layers));
    TRY(json_want_int(object, "num_attention_heads", source, &dims->heads));
    TRY(json_want_int(object, "num_key_value_heads", source, &dims->kv_heads));
    TRY(json_want_int(object, "head_dim", source, &dims->head_dim));
    TRY(json_want_int(object, "intermediate_size", source, &dims->intermediate));
    TRY(json_want_real(object, "rms_norm_eps", source, &dims->rms_eps));
    if (moe) {
        /* Late releases of the 5 series write num_local_experts. */
        const char *experts =
            json_find(object, "num_experts") ? "num_experts" : "num_local_experts";
        if (!json_find(object, experts))
            experts = "num_experts";
        TRY(json_want_int(object, experts, source, &dims->experts));
        TRY(json_want_int(object, "num_experts_per_tok", source, &dims->top_k));
        TRY(json_want_int(object, "moe_intermediate_size", source, &dims->expert_width));
        TRY(maybe_int(object, "decoder_sparse_step", source, &dims->sparse_step));
        if (json_find(object, "mlp_only_layers"))
            TRY(int_list(object, "mlp_only_layers", source, dims->dense_layers, MAX_DENSE_LAYERS,
                         &dims->n_dense_layers));
        TRY(maybe_real(object, "router_aux_loss_coef", source, &dims->router_aux_coef));
        if (!vision) /* with vision transformers renormalises whatever the file says */
            TRY(maybe_bool(object, "norm_topk_prob", source, &dims->norm_topk_prob));
        TRY(maybe_bool(object, "output_router_logits", source, &dims->output_router_logits));
    }
    TRY(maybe_real(object, "initializer_range", source, &dims->initializer_range));
    TRY(maybe_int(object, "max_position_embeddings", source, &dims->max_positions));
    TRY(read_pad(object, source, dims));
    TRY(config_keys_check(object, IN_TEXT, vision, source));
    return read_rope(object, source, vision, dims);
}

static status read_vision(const json_value *object, const char *source, int64_t hidden,
                          vision_dims *dims)
{
    dims->initializer_range = 0.02;
    dims->merge = 2;
    dims->patch_bytes = (int64_t)CHANNELS * TEMPORAL * PATCH * PATCH;
    TRY(json_want_int(object, "depth", source, &dims->depth));
    TRY(json_want_int(object, "hidden_size", source, &dims->hidden));
    TRY(json_want_int(object, "num_heads", source, &dims->heads));
    TRY(json_want_int(object, "intermediate_size", source, &dims->intermediate));
    TRY(json_want_int(object, "num_position_embeddings", source, &dims->positions));
    TRY(int_list(object, "deepstack_visual_indexes", source, dims->deepstack, MAX_DEEPSTACK,
                 &dims->n_deepstack));
    TRY(maybe_real(object, "initializer_range", source, &dims->initializer_range));
    TRY(config_keys_check(object, IN_VISION, true, source));
    double theta =
        VISION_THETA; /* a constant in transformers until late releases of the 5 series */
    TRY(maybe_real(json_find(object, "rope_parameters"), "rope_theta", source, &theta));
    if (theta != VISION_THETA)
        return FAIL_IN(ST_BAD_INPUT, source,
                       "rope_parameters.rope_theta is %g; only %d is "
                       "implemented",
                       theta, VISION_THETA);
    return only_int(object, "out_hidden_size", source, hidden);
}

static status read_token(const json_value *object, const char *key, const char *source,
                         int32_t *out)
{
    int64_t id = 0;
    TRY(json_want_int(object, key, source, &id));
    if (id < 0 || id > INT32_MAX)
        return FAIL_IN(ST_BAD_INPUT, source, "%s is %lld, which is not a token id", key,
                       (long long)id);
    *out = (int32_t)id;
    return ST_OK;
}

static status want_object(const json_value *object, const char *key, const char *source,
                          const json_value **out)
{
    const json_value *value = json_find(object, key);
    if (!value || json_typeof(value) != JSON_OBJECT)
        return FAIL_IN(ST_BAD_INPUT, source, "%s is missing or is not an object", key);
    *out = value;
    return ST_OK;
}

bool dims_is_end(const model_dims *dims, int32_t id)
{
    for (int i = 0; i < dims->n_ends; i++)
        if (dims->end_token[i] == id)
            return true;
    return false;
}

/* Adds the end tokens that an object names: eos_token_id is an id or a list of ids. */
static status add_ends(const json_value *object, const char *source, model_dims *dims)
{
    const json_value *value = json_find(object, "eos_token_id");
    if (!value || json_typeof(value) == JSON_NULL)
        return ST_OK;
    const bool list = json_typeof(value) == JSON_ARRAY;
    const size_t count = list ? json_count(value) : 1;
    for (size_t i = 0; i < count; i++) {
        const int64_t id = json_int(list ? json_item(value, i) : value, -1);
        if (id < 0 || id > INT32_MAX)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "eos_token_id must be a token id, a list of them, or null");
        if (dims_is_end(dims, (int32_t)id))
            continue;
        if (dims->n_ends == MAX_ENDS)
            return FAIL_IN(ST_BAD_INPUT, source,
                           "eos_token_id: the model has more than %d end tokens", MAX_ENDS);
        dims->end_token[dims->n_ends++] = (int32_t)id;
    }
    return ST_OK;
}

/* bos and eos are in text_config or at the top. Without bos it is -1. */
static status read_ends(const json_value *top, const json_value *text, const char *source,
                        model_dims *dims)
{
    const json_value *bos = json_find(text, "bos_token_id");
    bos = bos ? bos : json_find(top, "bos_token_id");
    dims->bos_token = (int32_t)json_int(bos, -1);
    TRY(add_ends(text, source, dims));
    TRY(add_ends(top, source, dims));
    dims->n_config_ends = dims->n_ends;
    return ST_OK;
}

/* Adds the end tokens of a folder's generation_config.json, if there is one. */
static status read_generation_config(const char *folder, model_dims *dims)
{
    char path[STATUS_PATH_MAX + 32];
    json_value *config = NULL;
    snprintf(path, sizeof path, "%s/generation_config.json", folder);
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return ST_OK;
    TRY(json_load(path, &config));
    status st = json_typeof(config) == JSON_OBJECT
                    ? add_ends(config, path, dims)
                    : FAIL_IN(ST_BAD_INPUT, path, "the file must be a JSON object");
    json_free(&config);
    return st;
}

status dims_from_json(const json_value *config, const char *source, model_dims *out)
{
    model_dims dims = {.image_token = -1, .video_token = -1, .vision_start = -1, .vision_end = -1};
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
    snprintf(dims.model_type, sizeof dims.model_type, "%s", type);
    const json_value *names = json_find(config, "architectures");
    snprintf(dims.architecture, sizeof dims.architecture, "%s", json_text(json_item(names, 0), ""));
    const json_value *text = config;
    if (vision) {
        TRY(want_object(config, "text_config", source, &text));
        status st = read_text(text, source, true, moe, &dims.text);
        if (st != ST_OK)
            return status_context(st, "text_config");
        const json_value *tower;
        TRY(want_object(config, "vision_config", source, &tower));
        st = read_vision(tower, source, dims.text.hidden, &dims.vision);
        if (st == ST_OK && dims.vision.depth < 1)
            st = FAIL_IN(ST_BAD_INPUT, source, "depth is %lld; it must be at least 1",
                         (long long)dims.vision.depth);
        if (st != ST_OK)
            return status_context(st, "vision_config");
        TRY(read_token(config, "image_token_id", source, &dims.image_token));
        TRY(read_token(config, "video_token_id", source, &dims.video_token));
        TRY(read_token(config, "vision_start_token_id", source, &dims.vision_start));
        TRY(read_token(config, "vision_end_token_id", source, &dims.vision_end));
    } else {
        TRY(read_text(config, source, false, moe, &dims.text));
    }
    head_ties ties;
    TRY(head_read_ties(config, source, &ties));
    dims.text.tied = ties.top; /* dims_load also consults the weights */
    TRY(read_ends(config, text, source, &dims));
    TRY(dims_check(&dims, source));
    *out = dims;
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
static double estimate(const model_dims *dims)
{
    const text_dims *text = &dims->text;
    const vision_dims *tower = &dims->vision;
    double hidden = (double)text->hidden, wide = (double)(4 * tower->hidden);
    double layer = hidden * (double)text->head_dim * 2.0 * (double)(text->heads + text->kv_heads) +
                   3 * hidden * (double)text->intermediate +
                   (double)text->experts * hidden * (1 + 3 * (double)text->expert_width);
    double block =
        (double)tower->hidden * (4.0 * (double)tower->hidden + 2.0 * (double)tower->intermediate);
    return 2 * (double)text->vocab * hidden + (double)text->layers * layer +
           (double)tower->depth * block +
           (double)(tower->positions + tower->patch_bytes) * (double)tower->hidden +
           (1 + tower->n_deepstack) * wide * (wide + hidden);
}

static status check_text(const text_dims *dims, const char *source)
{
    const struct {
        const char *name;
        int64_t value;
    } positive[] = {
        {"vocab_size", dims->vocab},
        {"hidden_size", dims->hidden},
        {"num_hidden_layers", dims->layers},
        {"num_attention_heads", dims->heads},
        {"head_dim", dims->head_dim},
        {"num_key_value_heads", dims->kv_heads},
        {"decoder_sparse_step", dims->sparse_step},
        {"intermediate_size", dims->intermediate},
    };
    for (size_t i = 0; i < sizeof positive / sizeof positive[0]; i++)
        RULE(positive[i].value > 0 && positive[i].value <= MOST, "%s is %lld; it must be 1 to %d",
             positive[i].name, (long long)positive[i].value, MOST);
    RULE(dims->layers <= MOST_LAYERS, "num_hidden_layers is %lld; it must be at most %d",
         (long long)dims->layers, MOST_LAYERS);
    RULE(dims->heads % dims->kv_heads == 0,
         "num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
         (long long)dims->heads, (long long)dims->kv_heads);
    RULE(dims->head_dim % 2 == 0, "head_dim %lld is odd; it must be even",
         (long long)dims->head_dim);
    RULE(dims->experts >= 0 && dims->experts <= MOST, "num_experts is %lld; it must be 0 to %d",
         (long long)dims->experts, MOST);
    if (dims->experts > 0) {
        RULE(dims->top_k > 0 && dims->top_k <= dims->experts,
             "num_experts_per_tok %lld is not between 1 and num_experts %lld",
             (long long)dims->top_k, (long long)dims->experts);
        RULE(dims->expert_width > 0 && dims->expert_width <= MOST,
             "moe_intermediate_size is %lld; it must be 1 to %d", (long long)dims->expert_width,
             MOST);
    }
    RULE(dims->rms_eps > 0 && dims->rope_theta > 1,
         "rms_norm_eps %g or rope_theta %g is out of range", dims->rms_eps, dims->rope_theta);
    return ST_OK;
}

static status check_vision(const model_dims *dims, const char *source)
{
    const vision_dims *tower = &dims->vision;
    RULE(tower->depth > 0 && tower->depth <= MOST_LAYERS && tower->heads <= MOST &&
             tower->hidden > 0 && tower->hidden <= MOST && tower->heads > 0 &&
             tower->intermediate > 0 && tower->intermediate <= MOST && tower->positions > 0 &&
             tower->positions <= MOST,
         "vision_config: depth, hidden_size, num_heads, intermediate_size and "
         "num_position_embeddings must be positive");
    RULE(tower->hidden % tower->heads == 0 && dims_vision_head_dim(dims) % 4 == 0,
         "vision_config: hidden_size %lld / num_heads %lld is not a multiple of 4",
         (long long)tower->hidden, (long long)tower->heads);
    int64_t side = (int64_t)(sqrt((double)tower->positions) + 0.5);
    RULE(side * side == tower->positions,
         "vision_config: num_position_embeddings %lld is not a square",
         (long long)tower->positions);
    RULE(tower->n_deepstack <= dims->text.layers,
         "vision_config: there are %d deepstack_visual_indexes, but only %lld decoder layers",
         tower->n_deepstack, (long long)dims->text.layers);
    for (int j = 0; j < tower->n_deepstack; j++)
        RULE(tower->deepstack[j] >= (j ? tower->deepstack[j - 1] + 1 : 0) &&
                 tower->deepstack[j] < tower->depth,
             "vision_config: deepstack_visual_indexes[%d] is %lld; the indexes must rise and be "
             "below "
             "depth %lld",
             j, (long long)tower->deepstack[j], (long long)tower->depth);
    return ST_OK;
}

status dims_check(const model_dims *dims, const char *source)
{
    TRY(check_text(&dims->text, source));
    if (dims->vision.depth != 0)
        TRY(check_vision(dims, source));
    RULE(estimate(dims) <= most_parameters,
         "the model has about %.3g parameters; at most %.3g are supported", estimate(dims),
         most_parameters);
    return ST_OK;
}

/* A folder of adapters is no model by itself. The trainer's checkpoints of adapters have them in a
 * folder of their own. One of other trained parts names their base. */
static status refuse_parts(const char *folder, const char *config)
{
    char path[STATUS_PATH_MAX + 64];
    static const char *const inside[] = {"", "adapter/"};
    if (access(config, F_OK) == 0 || errno != ENOENT)
        return ST_OK;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%sadapter_config.json", folder, inside[i]);
        if (access(path, F_OK) == 0)
            return FAIL_IN(ST_NO_INPUT, folder,
                           "these are adapters without their base; trainer export --merge --model "
                           "CHECKPOINT --out DIR makes a whole model of a checkpoint");
    }
    snprintf(path, sizeof path, "%s/training/base.json", folder);
    if (access(path, F_OK) == 0)
        return FAIL_IN(ST_NO_INPUT, folder,
                       "this checkpoint has what was trained alone, without its base; trainer "
                       "export --model CHECKPOINT --out DIR makes a whole model of it");
    return FAIL_IN(ST_NO_INPUT, config,
                   "cannot open: there is no such file, so the folder is no Hugging Face model; if "
                   "it has checkpoints of a run that was stopped, trainer export --model "
                   "CHECKPOINT --out DIR makes a whole model of the newest");
}

status dims_load(const char *path_or_preset, model_dims *out)
{
    char file[STATUS_PATH_MAX];
    if (!file_is_folder(path_or_preset)) {
        if (strchr(path_or_preset, '/'))
            return model_files_absent("model", path_or_preset);
        return dims_preset(path_or_preset, out);
    }
    if (snprintf(file, sizeof file, "%s/config.json", path_or_preset) >= (int)sizeof file)
        return FAIL(ST_CONFIG, "model.path is longer than %d bytes", STATUS_PATH_MAX - 1);
    json_value *config = NULL;
    TRY(refuse_parts(path_or_preset, file));
    TRY(json_load(file, &config));
    head_ties ties;
    status st = dims_from_json(config, file, out);
    if (st == ST_OK)
        st = head_read_ties(config, file, &ties);
    if (st == ST_OK)
        st = head_is_tied(&ties, path_or_preset, dims_text_prefix(out), &out->text.tied);
    json_free(&config);
    if (st == ST_OK)
        st = read_generation_config(path_or_preset, out);
    if (st == ST_OK) {
        char name[STATUS_PATH_MAX];
        model_cache_title(path_or_preset, name);
        snprintf(out->name, sizeof out->name, "%.63s", name);
    }
    return st;
}
