/* test_dims.c: dimensions of models: the parameter counts and FLOPs of trainer/model/equations.md,
 * and config.json as it is written and as every version of transformers spells it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/model/config_keys.h"
#include "trainer/model/params.h"

static void test_params__counts_of_published_sizes(void **state)
{
    (void)state;
    const struct {
        const char *name;
        int64_t total, tensors, vision;
    } want[] = {
        {"qwen3-vl-30b-a3b", 31070754032, 882, 538631408},
        {"qwen3-vl-235b-a22b", 235670022896, 1388, 576388336},
        {"qwen3-vl-2b", 2127532032, 625, 406957056},
        {"qwen3-vl-4b", 4437815808, 713, 415347712},
        {"qwen3-vl-8b", 8767123696, 750, 576388336},
        {"qwen3-vl-32b", 33357390064, 1058, 595266800},
        {"qwen3-30b-a3b", 30532122624, 18867, 0},
        {"debug", 2765696, 146, 724480},
    };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        model_dims d;
        params *p;
        param_piece *pieces;
        int64_t n, vision = 0;
        assert_ok(dims_preset(want[i].name, &d));
        assert_ok(params_new(&d, &p));
        assert_ok(params_pieces(p, params_published(p), &pieces, &n));
        for (int64_t k = 0; k < p->count; k++)
            vision += p->list[k].group <= GROUP_MERGER ? p->list[k].count : 0;
        assert_int_equal(p->total, want[i].total);
        assert_int_equal(n, want[i].tensors);
        assert_int_equal(vision, want[i].vision);
        free(pieces);
        params_free(&p);
    }
}

static void test_flops__one_photo_and_forty_tokens(void **state)
{
    (void)state;
    model_dims d;
    flops f;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &d));
    dims_flops(&d, 340, document_pairs(340), (const int32_t[]){1, 30, 40}, 1, &f);
    assert_int_equal(f.text_linear, 1856734494720);
    assert_int_equal(f.head, 211592151040);
    assert_int_equal(f.text_attention, 45589463040);
    assert_int_equal(f.patch_embed, 4246732800);
    assert_int_equal(f.vision_blocks, 986569113600);
    assert_int_equal(f.vision_attention, 179159040000);
    assert_int_equal(f.mergers, 73610035200);
    assert_int_equal(f.forward, 3357501030400);
    assert_int_equal(f.training, 10068256358400);
    assert_true(fabs(dims_flops_torchtitan(&d, 340) - 19053367296.0) < 1);
    assert_true(fabs(dims_flops_torchtitan(&d, 4096) - 27914883072.0) < 1);
}

static void test_flops__debug(void **state)
{
    (void)state;
    model_dims d;
    flops f;
    assert_ok(dims_preset("debug", &d));
    dims_flops(&d, 21 + 15 + 10, document_pairs(21) + document_pairs(15) + document_pairs(10),
               (const int32_t[]){1, 4, 6, 1, 6, 4, 2, 4, 4}, 3, &f);
    assert_int_equal(f.text_linear, 58032128);
    assert_int_equal(f.text_attention, 1662976);
    assert_int_equal(f.head, 24117248);
    assert_int_equal(f.patch_embed, 15728640);
    assert_int_equal(f.vision_blocks, 35389440);
    assert_int_equal(f.vision_attention, 2555904);
    assert_int_equal(f.mergers, 15728640);
    assert_int_equal(f.forward, 153214976);
    assert_int_equal(f.training, 443916288);
}

/* For every family, the config.json that we write is read back as the same dimensions. */
static void test_dims__config_round_trip(void **state)
{
    (void)state;
    static const char *const names[] = {"debug", "tile", "qwen3-vl-30b-a3b", "qwen3-vl-4b",
                                        "qwen3-30b-a3b"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        model_dims d, back;
        char *text, *again;
        json_value *v;
        assert_ok(dims_preset(names[i], &d));
        assert_ok(dims_config_json(&d, &text));
        assert_ok(json_parse(text, strlen(text), "config", &v));
        assert_ok(dims_from_json(v, "config", &back));
        assert_ok(dims_config_json(&back, &again));
        assert_string_equal(text, again);
        assert_int_equal(back.text.tied, d.text.tied);
        assert_true(back.text.rope_theta == d.text.rope_theta);
        assert_memory_equal(&back.vision, &d.vision, sizeof d.vision);
        json_free(&v);
        free(text);
        free(again);
    }
}

/* Parses the config.json of a preset after replacing one text in it by another. */
static status parse_preset(const char *preset, const char *from, const char *to, model_dims *out)
{
    model_dims d;
    char *text, changed[8192];
    json_value *v;
    assert_ok(dims_preset(preset, &d));
    assert_ok(dims_config_json(&d, &text));
    char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    assert_ok(json_parse(changed, strlen(changed), "config.json", &v));
    status st = dims_from_json(v, "config.json", out);
    json_free(&v);
    return st;
}

static status parse_changed(const char *from, const char *to, model_dims *out)
{
    return parse_preset("debug", from, to, out);
}

/* Releases of transformers spell some keys differently: all spellings are read, and one is
 * written. */
static void test_dims__spellings_of_every_version(void **state)
{
    (void)state;
    model_dims d, debug;
    char *text;
    assert_ok(dims_preset("debug", &debug));
    assert_ok(parse_changed("\"rope_theta\":5000000.0,\"rope_scaling\":{",
                            "\"rope_parameters\":{\"rope_theta\":1234.5,", &d));
    assert_int_equal(d.text.mrope_section[1], 4);
    assert_true(d.text.rope_theta == 1234.5);
    assert_ok(parse_changed("\"num_experts\":", "\"num_local_experts\":", &d));
    assert_int_equal(d.text.experts, 16);
    assert_ok(parse_changed("\"dtype\":", "\"torch_dtype\":", &d));
    assert_memory_equal(&d.text, &debug.text, sizeof d.text);
    const char *const towers[] = {"qwen3_vl_moe_vision", "qwen3_vl_moe"};
    for (int i = 0; i < 2; i++) {
        char to[200];
        snprintf(to, sizeof to,
                 "\"vision_config\":{\"rope_parameters\":{\"rope_type\":\"axial\","
                 "\"rope_theta\":10000.0},\"model_type\":\"%s\"",
                 towers[i]);
        assert_ok(parse_changed("\"vision_config\":{\"model_type\":\"qwen3_vl_moe\"", to, &d));
        assert_memory_equal(&d.vision, &debug.vision, sizeof d.vision);
    }
    assert_ok(dims_config_json(&debug, &text));
    static const char *const written[] = {"\"rope_theta\":5000000.0", "\"rope_scaling\":{",
                                          "\"num_experts\":16", "\"dtype\":\"bfloat16\""};
    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++)
        assert_non_null(strstr(text, written[i]));
    assert_null(strstr(text, "rope_parameters"));
    free(text);
}

static void test_dims__only_text_models_choose_renormalisation(void **state)
{
    (void)state;
    model_dims d;
    const char *on = "\"norm_topk_prob\":true", *off = "\"norm_topk_prob\":false";
    assert_ok(parse_changed(on, off, &d));
    assert_true(d.text.norm_topk_prob);
    assert_ok(parse_preset("qwen3-30b-a3b", on, off, &d));
    assert_false(d.text.norm_topk_prob);
}

static void test_dims__bad_configs_are_named(void **state)
{
    (void)state;
    const struct {
        const char *from, *to, *words;
    } bad[] = {
        {"\"hidden_size\":128", "\"hidden_sise\":128", "hidden_size"},
        {"\"num_experts\":16", "\"num_experts\":\"16\"", "num_experts"},
        {"\"num_experts_per_tok\":4", "\"num_experts_per_tok\":17", "num_experts_per_tok"},
        {"\"num_key_value_heads\":2", "\"num_key_value_heads\":3", "num_key_value_heads"},
        {"\"hidden_act\":\"silu\"", "\"hidden_act\":\"relu\"", "hidden_act"},
        {"\"attention_bias\":false", "\"attention_bias\":true", "attention_bias"},
        {"\"vision_config\":{", "\"vision_config\":{\"rope_parameters\":{\"rope_theta\":1e6},",
         "rope_theta"},
        {"\"rope_type\":\"default\"", "\"rope_type\":\"yarn\"", "rope_type"},
        {"\"mrope_interleaved\":true", "\"mrope_interleaved\":false", "mrope_interleaved"},
        {"\"model_type\":\"qwen3_vl_moe\"", "\"model_type\":\"llama\"", "llama"},
        {"\"patch_size\":16", "\"patch_size\":14", "patch_size"},
        {"\"out_hidden_size\":128", "\"out_hidden_size\":64", "out_hidden_size"},
        {"\"num_position_embeddings\":64", "\"num_position_embeddings\":63", "not a square"},
        {"[1,3,4]", "[1,3,6]", "deepstack_visual_indexes"},
        {"[1,3,4]", "[1,1,4]", "deepstack_visual_indexes"},
        {"\"num_hidden_layers\":4", "\"num_hidden_layers\":1000000", "num_hidden_layers"},
        {"\"moe_intermediate_size\":48", "\"moe_intermediate_size\":9000000000000000000",
         "moe_intermediate_size"},
        {"\"num_experts\":16,\"num_experts_per_tok\":4,\"moe_intermediate_size\":48",
         "\"num_experts\":1000000,\"num_experts_per_tok\":4,\"moe_intermediate_size\":1000000",
         "parameters"},
        {"\"depth\":6", "\"depth\":-6", "depth"},
        {"\"image_token_id\":2003", "\"image_token_id\":-1", "image_token_id"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        model_dims d;
        assert_fails(ST_BAD_INPUT, parse_changed(bad[i].from, bad[i].to, &d), bad[i].words);
    }
    model_dims d;
    assert_fails(ST_NO_INPUT, dims_load("no-such-model", &d), "qwen3-vl-30b-a3b");
}

/* Parses the config.json of a preset with this member at this place, replacing the preset's own if
 * there is one. */
static status parse_with(bool vision, config_place place, const char *key, const char *value,
                         model_dims *out)
{
    model_dims d;
    char *text, changed[8192], quoted[64];
    json_value *v;
    assert_ok(dims_preset(vision ? "debug" : "qwen3-30b-a3b", &d));
    assert_ok(dims_config_json(&d, &text));
    const char *anchor = place == IN_VISION           ? "\"vision_config\":{"
                         : place == IN_ROPE           ? "\"rope_scaling\":"
                         : vision && place == IN_TEXT ? "\"text_config\":{"
                                                      : "{";
    char *at = strstr(text, anchor) + strlen(anchor);
    if (place == IN_ROPE && !vision) {
        snprintf(changed, sizeof changed, "%.*s{\"%s\":%s}%s", (int)(at - text), text, key, value,
                 at + strlen("null"));
    } else {
        at += place == IN_ROPE;
        snprintf(quoted, sizeof quoted, "\"%s\":", key);
        char *own = strstr(at, quoted);
        if (own)
            own[1] = '~';
        snprintf(changed, sizeof changed, "%.*s%s%s,%s", (int)(at - text), text, quoted, value, at);
    }
    free(text);
    assert_ok(json_parse(changed, strlen(changed), "config.json", &v));
    *out = (model_dims){0};
    status st = dims_from_json(v, "config.json", out);
    json_free(&v);
    return st;
}

/* Writes a value as config_keys.h has it ("null", "silu", "[full_attention]") as JSON. */
static void neutral_json(const char *value, size_t n, char *out, size_t size)
{
    if (value[0] == '[')
        snprintf(out, size, "[\"%.*s\"]", (int)n - 2, value + 1);
    else if (strchr("0123456789{", value[0]) || strncmp(value, "null", 4) == 0 ||
             strncmp(value, "true", 4) == 0 || strncmp(value, "false", 5) == 0)
        snprintf(out, size, "%.*s", (int)n, value);
    else
        snprintf(out, size, "\"%.*s\"", (int)n, value);
}

static void check_neutral(const config_key *k, bool vision)
{
    model_dims d;
    char json[64];
    for (const char *at = k->neutral; *at;) {
        size_t n = strcspn(at, "|");
        neutral_json(at, n, json, sizeof json);
        assert_ok(parse_with(vision, k->place, k->key, json, &d));
        at += n + (at[n] != 0);
    }
    assert_fails(ST_BAD_INPUT, parse_with(vision, k->place, k->key, "\"other\"", &d), k->key);
    assert_fails(ST_BAD_INPUT, parse_with(vision, k->place, k->key, "\"other\"", &d), "other");
    assert_fails(ST_BAD_INPUT, parse_with(vision, k->place, k->key, "7.25", &d), "is 7.25 (");
    assert_fails(ST_BAD_INPUT, parse_with(vision, k->place, k->key, "[\"other\"]", &d), k->key);
}

/* A key that is honoured is read, so a value of the wrong type is refused. */
static void check_key(const config_key *k, bool vision)
{
    model_dims d, plain;
    switch (k->use) {
    case KEY_NEUTRAL:
        check_neutral(k, vision);
        break;
    case KEY_HONOURED:
        assert_fails(ST_BAD_INPUT, parse_with(vision, k->place, k->key, "\"other\"", &d), k->key);
        break;
    default:
        assert_ok(parse_with(vision, IN_TOP, "unknown", "7", &plain));
        assert_ok(parse_with(vision, k->place, k->key, "7", &d));
        assert_memory_equal(&d.text, &plain.text, sizeof d.text);
        assert_ok(parse_with(vision, k->place, k->key, "\"other\"", &d));
        assert_memory_equal(&d.text, &plain.text, sizeof d.text);
    }
}

/* The trainer of transformers writes a pad_token_id into the folders of models that had none. */
static void check_pad(bool vision)
{
    model_dims d;
    char *text, beyond[32];
    assert_ok(parse_with(vision, IN_TEXT, "pad_token_id", "null", &d));
    assert_false(d.text.has_pad);
    snprintf(beyond, sizeof beyond, "%lld", (long long)d.text.vocab);
    assert_fails(ST_BAD_INPUT, parse_with(vision, IN_TEXT, "pad_token_id", beyond, &d), beyond);
    assert_ok(parse_with(vision, IN_TEXT, "pad_token_id", "-1", &d));
    assert_true(d.text.has_pad && d.text.pad_token == d.text.vocab - 1);
    assert_ok(parse_with(vision, IN_TEXT, "pad_token_id", "7", &d));
    assert_true(d.text.has_pad && d.text.pad_token == 7);
    assert_ok(dims_config_json(&d, &text));
    assert_non_null(strstr(text, "\"pad_token_id\":7"));
    free(text);
}

static void test_dims__every_key_is_honoured_refused_or_without_effect(void **state)
{
    (void)state;
    model_dims d;
    for (int i = 0; i < n_config_keys; i++)
        for (int vision = 0; vision < 2; vision++)
            if (config_keys[i].models & (vision ? OF_VISION : OF_TEXT_ONLY))
                check_key(&config_keys[i], vision);
    assert_fails(ST_BAD_INPUT, parse_with(true, IN_TEXT, "attention_dropout", "0.1", &d),
                 "attention_dropout is 0.1");
    assert_fails(ST_BAD_INPUT, parse_with(true, IN_ROPE, "rope_theta", "123", &d),
                 "rope_scaling.rope_theta is 123");
    assert_ok(parse_with(false, IN_TEXT, "sliding_window", "4096", &d)); /* as published */
    check_pad(true);
    check_pad(false);
    assert_ok(parse_with(true, IN_TEXT, "router_jitter_noise", "0.1", &d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_params__counts_of_published_sizes),
        cmocka_unit_test(test_flops__one_photo_and_forty_tokens),
        cmocka_unit_test(test_flops__debug),
        cmocka_unit_test(test_dims__config_round_trip),
        cmocka_unit_test(test_dims__spellings_of_every_version),
        cmocka_unit_test(test_dims__only_text_models_choose_renormalisation),
        cmocka_unit_test(test_dims__bad_configs_are_named),
        cmocka_unit_test(test_dims__every_key_is_honoured_refused_or_without_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
