/* SPDX-License-Identifier: Apache-2.0 */
/* config_json.c: the members of config.json: the table of config_json.h and the check of a file
 * against it, and dimensions written as a config.json. What is written has the keys rope_scaling
 * and rope_theta, which transformers 4.57 and the 5 series both read. */
#include "trainer/model/dims/config_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/dims/dims.h"

/* clang-format off */
#define HONOURED(place, key, models)             {place, key, models, KEY_HONOURED, NULL, NULL}
#define NEUTRAL(place, key, models, values, why) {place, key, models, KEY_NEUTRAL, values, why}
#define NO_EFFECT(place, key, models, why)       {place, key, models, KEY_WITHOUT_EFFECT, NULL, why}
/* clang-format on */

const config_key config_keys[] = {
    HONOURED(IN_TEXT, "vocab_size", OF_BOTH),
    HONOURED(IN_TEXT, "hidden_size", OF_BOTH),
    HONOURED(IN_TEXT, "intermediate_size", OF_BOTH),
    HONOURED(IN_TEXT, "num_hidden_layers", OF_BOTH),
    HONOURED(IN_TEXT, "num_attention_heads", OF_BOTH),
    HONOURED(IN_TEXT, "num_key_value_heads", OF_BOTH),
    HONOURED(IN_TEXT, "head_dim", OF_BOTH),
    HONOURED(IN_TEXT, "rms_norm_eps", OF_BOTH),
    HONOURED(IN_TEXT, "rope_theta", OF_BOTH),
    HONOURED(IN_TEXT, "initializer_range", OF_BOTH),
    HONOURED(IN_TEXT, "max_position_embeddings", OF_BOTH),
    HONOURED(IN_TEXT, "num_experts", OF_BOTH),
    HONOURED(IN_TEXT, "num_experts_per_tok", OF_BOTH),
    HONOURED(IN_TEXT, "moe_intermediate_size", OF_BOTH),
    HONOURED(IN_TEXT, "decoder_sparse_step", OF_BOTH),
    HONOURED(IN_TEXT, "mlp_only_layers", OF_BOTH),
    HONOURED(IN_TEXT, "router_aux_loss_coef", OF_BOTH),
    HONOURED(IN_TEXT, "output_router_logits", OF_BOTH),
    HONOURED(IN_TEXT, "norm_topk_prob", OF_TEXT_ONLY),
    NO_EFFECT(IN_TEXT, "norm_topk_prob", OF_VISION, "weights are always renormalised"),
    NEUTRAL(IN_TEXT, "hidden_act", OF_BOTH, "silu", "another activation"),
    NEUTRAL(IN_TEXT, "attention_bias", OF_BOTH, "false|null", "q, k, v and o have biases"),
    NEUTRAL(IN_TEXT, "attention_dropout", OF_BOTH, "0",
            "attention weights are dropped at random while training"),
    NEUTRAL(IN_TEXT, "partial_rotary_factor", OF_BOTH, "1|null", "only part of a head is rotated"),
    HONOURED(IN_TEXT, "pad_token_id", OF_BOTH),
    NEUTRAL(IN_TEXT, "pruned_heads", OF_BOTH, "null|{}", "heads are left out"),
    NEUTRAL(IN_TEXT, "use_sliding_window", OF_TEXT_ONLY, "false|null",
            "attention reaches sliding_window tokens back"),
    NEUTRAL(IN_TEXT, "layer_types", OF_TEXT_ONLY, "null|[full_attention]",
            "attention of some layers reaches sliding_window tokens back"),
    NO_EFFECT(IN_TEXT, "use_sliding_window", OF_VISION, "their classes do not read it"),
    NO_EFFECT(IN_TEXT, "layer_types", OF_VISION, "their classes do not read it"),
    NO_EFFECT(IN_TEXT, "sliding_window", OF_BOTH, "read only with use_sliding_window"),
    NO_EFFECT(IN_TEXT, "max_window_layers", OF_BOTH, "read only with use_sliding_window"),
    NO_EFFECT(IN_TEXT, "use_cache", OF_BOTH, "only for generation"),
    NO_EFFECT(IN_TEXT, "dtype", OF_BOTH, "the tensors in the files have their own"),
    NEUTRAL(IN_ROPE, "rope_type", OF_BOTH, "default", "other frequencies"),
    NEUTRAL(IN_ROPE, "type", OF_TEXT_ONLY, "default", "the older name of rope_type"),
    NO_EFFECT(IN_ROPE, "type", OF_VISION, "their classes read only rope_type"),
    NEUTRAL(IN_ROPE, "partial_rotary_factor", OF_BOTH, "1|null", "only part of a head is rotated"),
    HONOURED(IN_ROPE, "mrope_section", OF_VISION),
    NEUTRAL(IN_ROPE, "mrope_interleaved", OF_VISION, "true", "sections follow one another"),
    HONOURED(IN_VISION, "depth", OF_VISION),
    HONOURED(IN_VISION, "hidden_size", OF_VISION),
    HONOURED(IN_VISION, "num_heads", OF_VISION),
    HONOURED(IN_VISION, "intermediate_size", OF_VISION),
    HONOURED(IN_VISION, "num_position_embeddings", OF_VISION),
    HONOURED(IN_VISION, "deepstack_visual_indexes", OF_VISION),
    HONOURED(IN_VISION, "initializer_range", OF_VISION),
    HONOURED(IN_VISION, "out_hidden_size", OF_VISION), /* must equal the text part's hidden_size */
    NEUTRAL(IN_VISION, "hidden_act", OF_VISION, "gelu_pytorch_tanh", "another activation"),
    NEUTRAL(IN_VISION, "in_channels", OF_VISION, "3", "other patches"),
    NEUTRAL(IN_VISION, "patch_size", OF_VISION, "16", "other patches"),
    NEUTRAL(IN_VISION, "temporal_patch_size", OF_VISION, "2", "other patches"),
    NEUTRAL(IN_VISION, "spatial_merge_size", OF_VISION, "2", "other patches make a token"),
    NEUTRAL(IN_VISION, "rope_theta", OF_VISION, "10000", "other frequencies (5.23)"),
    HONOURED(IN_TOP, "tie_word_embeddings", OF_BOTH),
    NEUTRAL(IN_TOP, "quantization_config", OF_BOTH, "null|{}", "the weights are quantised"),
    NEUTRAL(IN_TOP, "pruned_heads", OF_VISION, "null|{}", "heads are left out"),
};
const int n_config_keys = sizeof config_keys / sizeof config_keys[0];

static bool all_are(const json_value *list, const char *text, size_t length)
{
    for (size_t i = 0; i < json_count(list); i++) {
        const char *item = json_text(json_item(list, i), "");
        if (strlen(item) != length || memcmp(item, text, length) != 0)
            return false;
    }
    return true;
}

/* True if `value` is the value that these `length` characters stand for. */
static bool is_value(const json_value *value, const char *text, size_t length)
{
    char word[32], *end;
    snprintf(word, sizeof word, "%.*s", (int)length, text);
    switch (json_typeof(value)) {
    case JSON_NULL:
        return strcmp(word, "null") == 0;
    case JSON_BOOL:
        return strcmp(word, json_bool(value, false) ? "true" : "false") == 0;
    case JSON_INT:
    case JSON_REAL:
        return strtod(word, &end) == json_real(value, -1) && end != word && *end == 0;
    case JSON_TEXT:
        return strcmp(word, json_text(value, "")) == 0;
    case JSON_ARRAY:
        return word[0] == '[' && all_are(value, text + 1, length - 2);
    default:
        return strcmp(word, "{}") == 0 && json_count(value) == 0;
    }
}

static bool is_neutral(const json_value *value, const char *values)
{
    for (const char *at = values;; at++) {
        size_t count = strcspn(at, "|");
        if (is_value(value, at, count))
            return true;
        at += count;
        if (!*at)
            return false;
    }
}

static const char *value_text(const json_value *value, char *out, size_t size)
{
    switch (json_typeof(value)) {
    case JSON_BOOL:
        snprintf(out, size, "%s", json_bool(value, false) ? "true" : "false");
        break;
    case JSON_INT:
    case JSON_REAL:
        snprintf(out, size, "%g", json_real(value, 0));
        break;
    case JSON_TEXT:
        snprintf(out, size, "\"%.60s\"", json_text(value, ""));
        break;
    default:
        snprintf(out, size, "%s", json_type_name(json_typeof(value)));
    }
    return out;
}

/* Turns "0" into "0", and "false|null" into "false or null". */
static const char *neutral_text(const char *values, char *out, size_t size)
{
    size_t count = strcspn(values, "|");
    snprintf(out, size, "%.*s%s%s", (int)count, values, values[count] ? " or " : "",
             values[count] ? values + count + 1 : "");
    return out;
}

status config_keys_check(const json_value *object, config_place place, bool vision,
                         const char *source)
{
    char value[96], neutral[64];
    for (int i = 0; i < n_config_keys; i++) {
        const config_key *key = &config_keys[i];
        const json_value *member = key->place == place && key->use == KEY_NEUTRAL &&
                                           key->models & (vision ? OF_VISION : OF_TEXT_ONLY)
                                       ? json_find(object, key->key)
                                       : NULL;
        if (member && !is_neutral(member, key->neutral))
            return FAIL_IN(ST_BAD_INPUT, source, "%s%s is %s (%s); only %s is implemented",
                           place == IN_ROPE ? "rope_scaling." : "", key->key,
                           value_text(member, value, sizeof value), key->why,
                           neutral_text(key->neutral, neutral, sizeof neutral));
    }
    return ST_OK;
}

/* ---- writing ---- */

static void put_list(json_writer *writer, const char *key, const int64_t *values, int count)
{
    json_begin_key_array(writer, key);
    for (int i = 0; i < count; i++)
        json_put_int(writer, values[i]);
    json_end_array(writer);
}

static void put_token(json_writer *writer, const char *key, int32_t id)
{
    json_put_key(writer, key);
    if (id < 0)
        json_put_null(writer);
    else
        json_put_int(writer, id);
}

static void put_ends(json_writer *writer, const model_dims *dims)
{
    int64_t end[MAX_ENDS];
    for (int i = 0; i < dims->n_config_ends; i++)
        end[i] = dims->end_token[i];
    if (dims->n_config_ends > 1)
        put_list(writer, "eos_token_id", end, dims->n_config_ends);
    else
        put_token(writer, "eos_token_id", dims->n_config_ends ? dims->end_token[0] : -1);
}

/* Writes the members of text_config, or in a text-only model of the top level. */
static void put_text_members(json_writer *writer, const model_dims *dims)
{
    const text_dims *text = &dims->text;
    json_put_key_int(writer, "vocab_size", text->vocab);
    json_put_key_int(writer, "hidden_size", text->hidden);
    json_put_key_int(writer, "intermediate_size", text->intermediate);
    json_put_key_int(writer, "num_hidden_layers", text->layers);
    json_put_key_int(writer, "num_attention_heads", text->heads);
    json_put_key_int(writer, "num_key_value_heads", text->kv_heads);
    json_put_key_int(writer, "head_dim", text->head_dim);
    json_put_key_cstr(writer, "hidden_act", "silu");
    json_put_key_bool(writer, "attention_bias", false);
    json_put_key_real(writer, "attention_dropout", 0.0);
    if (text->experts > 0) {
        json_put_key_int(writer, "num_experts", text->experts);
        json_put_key_int(writer, "num_experts_per_tok", text->top_k);
        json_put_key_int(writer, "moe_intermediate_size", text->expert_width);
        json_put_key_bool(writer, "norm_topk_prob", text->norm_topk_prob);
        json_put_key_int(writer, "decoder_sparse_step", text->sparse_step);
        put_list(writer, "mlp_only_layers", text->dense_layers, text->n_dense_layers);
        json_put_key_real(writer, "router_aux_loss_coef", text->router_aux_coef);
        json_put_key_bool(writer, "output_router_logits", text->output_router_logits);
    }
    json_put_key_real(writer, "rms_norm_eps", text->rms_eps);
    json_put_key_real(writer, "rope_theta", text->rope_theta);
    json_put_key(writer, "rope_scaling");
    if (dims->vision.depth > 0) {
        json_begin_object(writer);
        json_put_key_cstr(writer, "rope_type", "default");
        json_put_key_bool(writer, "mrope_interleaved", true);
        put_list(writer, "mrope_section", text->mrope_section, 3);
        json_end_object(writer);
    } else {
        json_put_null(writer);
    }
    if (text->max_positions > 0)
        json_put_key_int(writer, "max_position_embeddings", text->max_positions);
    json_put_key_real(writer, "initializer_range", text->initializer_range);
    put_token(writer, "bos_token_id", dims->bos_token);
    put_ends(writer, dims);
    if (text->has_pad)
        json_put_key_int(writer, "pad_token_id", text->pad_token);
    json_put_key_cstr(writer, "dtype", "bfloat16");
    json_put_key_bool(writer, "use_cache", true);
    json_put_key_bool(writer, "tie_word_embeddings", text->tied);
}

static void put_vision(json_writer *writer, const model_dims *dims)
{
    const vision_dims *tower = &dims->vision;
    json_begin_key_object(writer, "vision_config");
    json_put_key_cstr(writer, "model_type", dims->model_type);
    json_put_key_int(writer, "depth", tower->depth);
    json_put_key_int(writer, "hidden_size", tower->hidden);
    json_put_key_int(writer, "num_heads", tower->heads);
    json_put_key_int(writer, "intermediate_size", tower->intermediate);
    json_put_key_cstr(writer, "hidden_act", "gelu_pytorch_tanh");
    json_put_key_int(writer, "in_channels", 3);
    json_put_key_int(writer, "patch_size", 16);
    json_put_key_int(writer, "temporal_patch_size", 2);
    json_put_key_int(writer, "spatial_merge_size", tower->merge);
    json_put_key_int(writer, "num_position_embeddings", tower->positions);
    put_list(writer, "deepstack_visual_indexes", tower->deepstack, tower->n_deepstack);
    json_put_key_int(writer, "out_hidden_size", dims->text.hidden);
    json_put_key_real(writer, "initializer_range", tower->initializer_range);
    json_end_object(writer);
}

status dims_config_json(const model_dims *dims, char **out)
{
    json_writer writer;
    json_writer_init(&writer);
    json_begin_object(&writer);
    json_begin_key_array(&writer, "architectures");
    json_put_cstr(&writer, dims->architecture);
    json_end_array(&writer);
    json_put_key_cstr(&writer, "model_type", dims->model_type);
    if (dims->vision.depth > 0) {
        char text_type[80];
        snprintf(text_type, sizeof text_type, "%s_text", dims->model_type);
        json_put_key_int(&writer, "image_token_id", dims->image_token);
        json_put_key_int(&writer, "video_token_id", dims->video_token);
        json_put_key_int(&writer, "vision_start_token_id", dims->vision_start);
        json_put_key_int(&writer, "vision_end_token_id", dims->vision_end);
        json_put_key_bool(&writer, "tie_word_embeddings", dims->text.tied);
        json_begin_key_object(&writer, "text_config");
        json_put_key_cstr(&writer, "model_type", text_type);
        put_text_members(&writer, dims);
        json_end_object(&writer);
        put_vision(&writer, dims);
    } else {
        put_text_members(&writer, dims);
    }
    json_end_object(&writer);
    size_t size;
    return json_writer_take(&writer, out, &size);
}
