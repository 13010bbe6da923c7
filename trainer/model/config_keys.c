/* config_keys.c: the table of config_keys.h, and the check of a config.json against it. */
#include "trainer/model/config_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
