/* SPDX-License-Identifier: Apache-2.0 */
/* test_dims.c: dimensions of models: the parameter counts and FLOPs of trainer/model/equations.md,
 * and config.json as it is written and as every version of transformers spells it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
#include "trainer/model/dims/config_json.h"
#include "trainer/model/params/params.h"

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
        model_dims dims;
        params *registry;
        param_piece *pieces;
        int64_t count, vision = 0;
        assert_ok(dims_preset(want[i].name, &dims));
        assert_ok(params_new(&dims, &registry));
        assert_ok(params_pieces(registry, params_published(registry), &pieces, &count));
        for (int64_t k = 0; k < registry->count; k++)
            vision += registry->list[k].group <= GROUP_MERGER ? registry->list[k].count : 0;
        assert_int_equal(registry->total, want[i].total);
        assert_int_equal(count, want[i].tensors);
        assert_int_equal(vision, want[i].vision);
        free(pieces);
        params_free(&registry);
    }
}

static void test_flops__one_photo_and_forty_tokens(void **state)
{
    (void)state;
    model_dims dims;
    flops work;
    assert_ok(dims_preset("qwen3-vl-30b-a3b", &dims));
    dims_flops(&dims, 340, 340, document_pairs(340), (const int32_t[]){1, 30, 40}, 1, &work);
    assert_int_equal(work.text_linear, 1856734494720);
    assert_int_equal(work.head, 211592151040);
    assert_int_equal(work.text_attention, 45589463040);
    assert_int_equal(work.patch_embed, 4246732800);
    assert_int_equal(work.vision_blocks, 986569113600);
    assert_int_equal(work.vision_attention, 179159040000);
    assert_int_equal(work.mergers, 73610035200);
    assert_int_equal(work.forward, 3357501030400);
    assert_int_equal(work.training, 10068256358400);
    assert_true(fabs(dims_flops_torchtitan(&dims, 340) - 19053367296.0) < 1);
    assert_true(fabs(dims_flops_torchtitan(&dims, 4096) - 27914883072.0) < 1);
}

static void test_flops__debug(void **state)
{
    (void)state;
    model_dims dims;
    flops work;
    assert_ok(dims_preset("debug", &dims));
    dims_flops(&dims, 21 + 15 + 10, 21 + 15 + 10,
               document_pairs(21) + document_pairs(15) + document_pairs(10),
               (const int32_t[]){1, 4, 6, 1, 6, 4, 2, 4, 4}, 3, &work);
    assert_int_equal(work.text_linear, 58032128);
    assert_int_equal(work.text_attention, 1662976);
    assert_int_equal(work.head, 24117248);
    assert_int_equal(work.patch_embed, 15728640);
    assert_int_equal(work.vision_blocks, 35389440);
    assert_int_equal(work.vision_attention, 2555904);
    assert_int_equal(work.mergers, 15728640);
    assert_int_equal(work.forward, 153214976);
    assert_int_equal(work.training, 443916288);
    dims_flops(&dims, 21, 3, document_pairs(21), NULL, 0, &work);
    assert_int_equal(work.head, 24117248 / 46 * 3);
    assert_int_equal(work.forward, work.text_linear + work.text_attention + work.head);
}

/* For every family, the config.json that we write is read back as the same dimensions. */
static void test_dims__config_round_trip(void **state)
{
    (void)state;
    static const char *const names[] = {"debug", "tile", "qwen3-vl-30b-a3b", "qwen3-vl-4b",
                                        "qwen3-30b-a3b"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        model_dims dims, back;
        char *text, *again;
        json_value *value;
        assert_ok(dims_preset(names[i], &dims));
        assert_ok(dims_config_json(&dims, &text));
        assert_ok(json_parse(text, strlen(text), "config", &value));
        assert_ok(dims_from_json(value, "config", &back));
        assert_ok(dims_config_json(&back, &again));
        assert_string_equal(text, again);
        assert_int_equal(back.text.tied, dims.text.tied);
        assert_true(back.text.rope_theta == dims.text.rope_theta);
        assert_memory_equal(&back.vision, &dims.vision, sizeof dims.vision);
        json_free(&value);
        free(text);
        free(again);
    }
}

/* Parses the config.json of a preset after replacing one text in it by another. */
static status parse_preset(const char *preset, const char *from, const char *to, model_dims *out)
{
    model_dims dims;
    char *text, changed[8192];
    json_value *value;
    assert_ok(dims_preset(preset, &dims));
    assert_ok(dims_config_json(&dims, &text));
    char *at = strstr(text, from);
    assert_non_null(at);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    assert_ok(json_parse(changed, strlen(changed), "config.json", &value));
    status st = dims_from_json(value, "config.json", out);
    json_free(&value);
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
    model_dims dims, debug;
    char *text;
    assert_ok(dims_preset("debug", &debug));
    assert_ok(parse_changed("\"rope_theta\":5000000.0,\"rope_scaling\":{",
                            "\"rope_parameters\":{\"rope_theta\":1234.5,", &dims));
    assert_int_equal(dims.text.mrope_section[1], 4);
    assert_true(dims.text.rope_theta == 1234.5);
    assert_ok(parse_changed("\"num_experts\":", "\"num_local_experts\":", &dims));
    assert_int_equal(dims.text.experts, 16);
    assert_ok(parse_changed("\"dtype\":", "\"torch_dtype\":", &dims));
    assert_memory_equal(&dims.text, &debug.text, sizeof dims.text);
    const char *const towers[] = {"qwen3_vl_moe_vision", "qwen3_vl_moe"};
    for (int i = 0; i < 2; i++) {
        char to[200];
        snprintf(to, sizeof to,
                 "\"vision_config\":{\"rope_parameters\":{\"rope_type\":\"axial\","
                 "\"rope_theta\":10000.0},\"model_type\":\"%s\"",
                 towers[i]);
        assert_ok(parse_changed("\"vision_config\":{\"model_type\":\"qwen3_vl_moe\"", to, &dims));
        assert_memory_equal(&dims.vision, &debug.vision, sizeof dims.vision);
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
    model_dims dims;
    const char *on = "\"norm_topk_prob\":true", *off = "\"norm_topk_prob\":false";
    assert_ok(parse_changed(on, off, &dims));
    assert_true(dims.text.norm_topk_prob);
    assert_ok(parse_preset("qwen3-30b-a3b", on, off, &dims));
    assert_false(dims.text.norm_topk_prob);
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
        model_dims dims;
        assert_fails(ST_BAD_INPUT, parse_changed(bad[i].from, bad[i].to, &dims), bad[i].words);
    }
    model_dims dims;
    assert_fails(ST_NO_INPUT, dims_load("no-such-model", &dims), "qwen3-vl-30b-a3b");
}

/* Parses the config.json of a preset with this member at this place, replacing the preset's own if
 * there is one. */
static status parse_with(bool vision, config_place place, const char *key, const char *value,
                         model_dims *out)
{
    model_dims dims;
    char *text, changed[8192], quoted[64];
    json_value *object;
    assert_ok(dims_preset(vision ? "debug" : "qwen3-30b-a3b", &dims));
    assert_ok(dims_config_json(&dims, &text));
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
    assert_ok(json_parse(changed, strlen(changed), "config.json", &object));
    *out = (model_dims){0};
    status st = dims_from_json(object, "config.json", out);
    json_free(&object);
    return st;
}

/* Writes a value as config_json.h has it ("null", "silu", "[full_attention]") as JSON. */
static void neutral_json(const char *value, size_t count, char *out, size_t size)
{
    if (value[0] == '[')
        snprintf(out, size, "[\"%.*s\"]", (int)count - 2, value + 1);
    else if (strchr("0123456789{", value[0]) || strncmp(value, "null", 4) == 0 ||
             strncmp(value, "true", 4) == 0 || strncmp(value, "false", 5) == 0)
        snprintf(out, size, "%.*s", (int)count, value);
    else
        snprintf(out, size, "\"%.*s\"", (int)count, value);
}

static void check_neutral(const config_key *key, bool vision)
{
    model_dims dims;
    char json[64];
    for (const char *at = key->neutral; *at;) {
        size_t length = strcspn(at, "|");
        neutral_json(at, length, json, sizeof json);
        assert_ok(parse_with(vision, key->place, key->key, json, &dims));
        at += length + (at[length] != 0);
    }
    assert_fails(ST_BAD_INPUT, parse_with(vision, key->place, key->key, "\"other\"", &dims),
                 key->key);
    assert_fails(ST_BAD_INPUT, parse_with(vision, key->place, key->key, "\"other\"", &dims),
                 "other");
    assert_fails(ST_BAD_INPUT, parse_with(vision, key->place, key->key, "7.25", &dims),
                 "is 7.25 (");
    assert_fails(ST_BAD_INPUT, parse_with(vision, key->place, key->key, "[\"other\"]", &dims),
                 key->key);
}

/* A key that is honoured is read, so a value of the wrong type is refused. */
static void check_key(const config_key *key, bool vision)
{
    model_dims dims, plain;
    switch (key->use) {
    case KEY_NEUTRAL:
        check_neutral(key, vision);
        break;
    case KEY_HONOURED:
        assert_fails(ST_BAD_INPUT, parse_with(vision, key->place, key->key, "\"other\"", &dims),
                     key->key);
        break;
    default:
        assert_ok(parse_with(vision, IN_TOP, "unknown", "7", &plain));
        assert_ok(parse_with(vision, key->place, key->key, "7", &dims));
        assert_memory_equal(&dims.text, &plain.text, sizeof dims.text);
        assert_ok(parse_with(vision, key->place, key->key, "\"other\"", &dims));
        assert_memory_equal(&dims.text, &plain.text, sizeof dims.text);
    }
}

/* The trainer of transformers writes a pad_token_id into the folders of models that had none. */
static void check_pad(bool vision)
{
    model_dims dims;
    char *text, beyond[32];
    assert_ok(parse_with(vision, IN_TEXT, "pad_token_id", "null", &dims));
    assert_false(dims.text.has_pad);
    snprintf(beyond, sizeof beyond, "%lld", (long long)dims.text.vocab);
    assert_fails(ST_BAD_INPUT, parse_with(vision, IN_TEXT, "pad_token_id", beyond, &dims), beyond);
    assert_ok(parse_with(vision, IN_TEXT, "pad_token_id", "-1", &dims));
    assert_true(dims.text.has_pad && dims.text.pad_token == dims.text.vocab - 1);
    assert_ok(parse_with(vision, IN_TEXT, "pad_token_id", "7", &dims));
    assert_true(dims.text.has_pad && dims.text.pad_token == 7);
    assert_ok(dims_config_json(&dims, &text));
    assert_non_null(strstr(text, "\"pad_token_id\":7"));
    free(text);
}

static void test_dims__every_key_is_honoured_refused_or_without_effect(void **state)
{
    (void)state;
    model_dims dims;
    for (int i = 0; i < n_config_keys; i++)
        for (int vision = 0; vision < 2; vision++)
            if (config_keys[i].models & (vision ? OF_VISION : OF_TEXT_ONLY))
                check_key(&config_keys[i], vision);
    assert_fails(ST_BAD_INPUT, parse_with(true, IN_TEXT, "attention_dropout", "0.1", &dims),
                 "attention_dropout is 0.1");
    assert_fails(ST_BAD_INPUT, parse_with(true, IN_ROPE, "rope_theta", "123", &dims),
                 "rope_scaling.rope_theta is 123");
    assert_ok(parse_with(false, IN_TEXT, "sliding_window", "4096", &dims)); /* as published */
    check_pad(true);
    check_pad(false);
    assert_ok(parse_with(true, IN_TEXT, "router_jitter_noise", "0.1", &dims));
}

static void write_json(const char *folder, const char *name, json_writer *from)
{
    char path[4096], *text;
    size_t size;
    assert_ok(json_writer_take(from, &text, &size));
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    free(text);
}

/* Copies an object's members, except eos_token_id, which becomes `ends` or is left out. */
static void put_with_ends(json_writer *writer, const json_value *object, const json_value *ends,
                          const json_value *text_ends)
{
    json_begin_object(writer);
    for (size_t i = 0; i < json_count(object); i++) {
        const char *key;
        const json_value *value = json_member(object, i, &key);
        if (strcmp(key, "text_config") == 0) {
            json_put_key(writer, key);
            put_with_ends(writer, value, text_ends, NULL);
        } else if (strcmp(key, "eos_token_id") != 0) {
            json_put_key_value(writer, key, value);
        }
    }
    if (ends)
        json_put_key_value(writer, "eos_token_id", ends);
    json_end_object(writer);
}

/* Writes a folder with the eos_token_id of a case of ends.json, wherever the case has one. */
static void write_ends(const char *folder, const json_value *one)
{
    model_dims dims;
    char *text;
    json_value *config;
    json_writer writer;
    assert_ok(dims_preset("debug", &dims));
    assert_ok(dims_config_json(&dims, &text));
    assert_ok(json_parse(text, strlen(text), "config.json", &config));
    json_writer_init(&writer);
    put_with_ends(&writer, config, json_find(one, "top"), json_find(one, "text"));
    write_json(folder, "config.json", &writer);
    if (json_find(one, "generation")) {
        json_writer_init(&writer);
        json_put_value(&writer, json_find(one, "generation"));
        write_json(folder, "generation_config.json", &writer);
    }
    json_free(&config);
    free(text);
}

static bool names_token(const json_value *value, int64_t id)
{
    for (size_t i = 0; value && json_typeof(value) == JSON_ARRAY && i < json_count(value); i++)
        if (json_int(json_item(value, i), -1) == id)
            return true;
    return json_int(value, -1) == id;
}

/* Generation ends at every token that either file names, and so wherever the reference ends. The
 * reference reads one of them: generation_config.json, else the top level, else text_config. */
static void test_ends__are_those_of_both_files(void **state)
{
    (void)state;
    json_value *kept;
    char path[4096];
    snprintf(path, sizeof path, "%s/tests/golden/ends.json", getenv("TESSERA_SOURCE"));
    assert_ok(json_load(path, &kept));
    const json_value *cases = json_find(kept, "cases"), *versions = json_find(kept, "versions");
    assert_int_equal(json_count(versions), 2);
    for (size_t i = 0; i < json_count(cases); i++) {
        const json_value *one = json_item(cases, i), *generation = json_find(one, "generation");
        char *folder = harness_temp();
        model_dims dims;
        write_ends(folder, one);
        const bool refused =
            json_typeof(json_item(json_member(versions, 0, NULL), i)) != JSON_ARRAY;
        if (refused)
            assert_fails(ST_BAD_INPUT, dims_load(folder, &dims), "generation_config.json");
        else
            assert_ok(dims_load(folder, &dims));
        for (int32_t id = 0; id < 16 && !refused; id++) {
            const bool named = names_token(json_find(one, "top"), id) ||
                               names_token(json_find(one, "text"), id) ||
                               names_token(json_find(generation, "eos_token_id"), id);
            assert_int_equal(dims_is_end(&dims, id), named);
            for (size_t k = 0; k < json_count(versions); k++)
                assert_true(named ||
                            !names_token(json_item(json_member(versions, k, NULL), i), id));
        }
        harness_remove(&folder);
    }
    json_free(&kept);
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
        cmocka_unit_test(test_ends__are_those_of_both_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
