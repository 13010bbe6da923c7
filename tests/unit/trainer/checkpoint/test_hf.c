/* SPDX-License-Identifier: Apache-2.0 */
/* test_hf.c: Hugging Face model folders. What is exported loads again, whatever the layout of the
 * experts. A tensor that is missing, unexpected or of the wrong shape is named, and the parameters
 * keep their values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json/json.h"
#include "tests/unit/trainer/model/fixture.h"
#include "trainer/checkpoint/hf/hf_check.h"
#include "trainer/checkpoint/hf/hf_export.h"
#include "trainer/checkpoint/hf/hf_load.h"
#include "trainer/model/dims/convert.h"

static const char *path_in(const char *folder, const char *name)
{
    static char path[4][STATUS_PATH_MAX];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void open_preset(fixture *setup, const char *name)
{
    model_dims dims;
    assert_ok(dims_preset(name, &dims));
    fixture_open(setup, &dims);
}

static void open_text_only(fixture *setup)
{
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    dims.vision = (vision_dims){0};
    memset(dims.text.mrope_section, 0, sizeof dims.text.mrope_section);
    snprintf(dims.model_type, sizeof dims.model_type, "qwen3_moe");
    snprintf(dims.architecture, sizeof dims.architecture, "Qwen3MoeForCausalLM");
    fixture_open(setup, &dims);
}

/* The values of all parameters, one after the other; the caller frees them. */
static double *values_of(fixture *setup)
{
    double *values = malloc((size_t)setup->registry->total * sizeof *values), *to = values;
    for (int64_t i = 0; i < setup->registry->count; i++) {
        assert_ok(params_read(setup->registry->list[i].value, setup->queue, 0,
                              setup->registry->list[i].count, to));
        to += setup->registry->list[i].count;
    }
    return values;
}

static void clear_values(fixture *setup)
{
    size_t bytes = (size_t)setup->registry->block_elements * sizeof(float);
    assert_ok(setup->dev->backend->zero(setup->queue, setup->registry->acts.at, bytes));
}

static void assert_loads_as(fixture *setup, const char *folder, const double *want)
{
    clear_values(setup);
    assert_ok(hf_load(setup->registry, setup->queue, folder));
    double *got = values_of(setup);
    assert_memory_equal(got, want, (size_t)setup->registry->total * sizeof *got);
    free(got);
}

static void test_hf__f32_round_trip_one_file_and_shards(void **state)
{
    (void)state;
    fixture setup;
    open_preset(&setup, "debug");
    char *folder = harness_temp();
    double *want = values_of(&setup);
    assert_ok(hf_export(setup.registry, setup.queue, &setup.dims, folder,
                        &(hf_export_options){.dtype = HF_EXPORT_F32}));
    assert_int_equal(access(path_in(folder, "model.safetensors.index.json"), F_OK), -1);
    assert_loads_as(&setup, folder, want);
    assert_ok(hf_export(setup.registry, setup.queue, &setup.dims, folder,
                        &(hf_export_options){.dtype = HF_EXPORT_F32, .shard_bytes = 3000000}));
    assert_int_equal(access(path_in(folder, "model.safetensors"), F_OK), -1);
    assert_loads_as(&setup, folder, want);
    json_value *index;
    assert_ok(json_load(path_in(folder, "model.safetensors.index.json"), &index));
    assert_int_equal(json_int(json_find(json_find(index, "metadata"), "total_size"), 0),
                     setup.registry->total * 4);
    assert_int_equal(json_count(json_find(index, "weight_map")), 146);
    json_free(&index);
    model_dims back;
    assert_ok(dims_load(folder, &back));
    assert_int_equal(back.text.experts, 16);
    free(want);
    harness_remove(&folder);
    fixture_close(&setup);
}

static void test_hf__bf16_is_the_default_and_stable(void **state)
{
    (void)state;
    fixture setup;
    open_preset(&setup, "tile"); /* 2I = H: only the down projection tells the layouts apart */
    char *first = harness_temp(), *second = harness_temp();
    assert_ok(hf_export(setup.registry, setup.queue, &setup.dims, first, &(hf_export_options){0}));
    st_file file;
    assert_ok(st_open(path_in(first, "model.safetensors"), &file));
    assert_string_equal(st_meta_find(&file, "format"), "pt");
    assert_int_equal(file.n_tensors, 94);
    for (size_t i = 0; i < file.n_tensors; i++)
        assert_int_equal(file.tensors[i].dtype, DT_BF16);
    assert_int_equal((uintptr_t)file.tensors[0].data.data % 8, 0);
    st_close(&file);
    assert_ok(hf_load(setup.registry, setup.queue, first));
    assert_ok(hf_export(setup.registry, setup.queue, &setup.dims, second,
                        &(hf_export_options){.source = first, .dtype = HF_EXPORT_AS_SOURCE}));
    hash128 one, other;
    assert_ok(hash_file(path_in(first, "model.safetensors"), &one));
    assert_ok(hash_file(path_in(second, "model.safetensors"), &other));
    assert_true(hash_equal(one, other));
    harness_remove(&first);
    harness_remove(&second);
    fixture_close(&setup);
}

/* The tensors of a loaded checkpoint, to be changed and written again. */
typedef struct rewrite {
    st_tensor *list;
    size_t count;
    float **data;
} rewrite;

static void add_tensor(rewrite *changed, const char *name, int n_dims, const int64_t *shape,
                       float *data)
{
    changed->list = realloc(changed->list, (changed->count + 1) * sizeof *changed->list);
    changed->data = realloc(changed->data, (changed->count + 1) * sizeof *changed->data);
    st_tensor tensor = {.name = strdup(name), .dtype = DT_F32, .n_dims = n_dims};
    size_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        tensor.shape[i] = shape[i];
        count *= (size_t)shape[i];
    }
    tensor.data = span_of(data, count * sizeof *data);
    changed->list[changed->count] = tensor;
    changed->data[changed->count++] = data;
}

static void rewrite_done(rewrite *changed)
{
    for (size_t i = 0; i < changed->count; i++) {
        free((char *)changed->list[i].name);
        free(changed->data[i]);
    }
    free(changed->list);
    free(changed->data);
}

static float *read_floats(fixture *setup, const param *weight)
{
    float *out = malloc((size_t)weight->count * sizeof *out);
    assert_ok(setup->dev->backend->to_host(setup->queue, out, weight->value,
                                           (size_t)weight->count * sizeof *out));
    return out;
}

/* Columns [column, column + rows) of expert expert of an [in, out] matrix, transposed to [rows,
 * in]. */
static float *transposed(const float *from, const param *weight, int64_t expert, int64_t column,
                         int64_t rows)
{
    int64_t in = weight->shape[1], out = weight->shape[2];
    float *to = malloc((size_t)(rows * in) * sizeof *to);
    for (int64_t j = 0; j < rows; j++)
        for (int64_t i = 0; i < in; i++)
            to[j * in + i] = from[(expert * in + i) * out + column + j];
    return to;
}

static void add_v5(rewrite *changed, const param *weight, const float *from)
{
    int64_t in = weight->shape[1], out = weight->shape[2];
    float *all = malloc((size_t)weight->count * sizeof *all);
    for (int64_t expert = 0; expert < weight->shape[0]; expert++) {
        float *one = transposed(from, weight, expert, 0, out);
        memcpy(all + expert * in * out, one, (size_t)(in * out) * sizeof *one);
        free(one);
    }
    add_tensor(changed, weight->name, 3, (const int64_t[]){weight->shape[0], out, in}, all);
}

static void add_per_expert(rewrite *changed, const param *weight, const float *from)
{
    bool pair = strstr(weight->name, "gate_up") != NULL;
    int64_t width = pair ? weight->shape[2] / 2 : weight->shape[2];
    int stem = (int)(strrchr(weight->name, '.') - weight->name);
    for (int64_t expert = 0; expert < weight->shape[0]; expert++) {
        for (int part = 0; part < (pair ? 2 : 1); part++) {
            char name[200];
            snprintf(name, sizeof name, "%.*s.%d.%s_proj.weight", stem, weight->name, (int)expert,
                     !pair  ? "down"
                     : part ? "up"
                            : "gate");
            add_tensor(changed, name, 2, (const int64_t[]){width, weight->shape[1]},
                       transposed(from, weight, expert, part * width, width));
        }
    }
}

static rewrite rewrite_as(fixture *setup, expert_layout stored)
{
    rewrite changed = {0};
    for (int64_t i = 0; i < setup->registry->count; i++) {
        const param *weight = &setup->registry->list[i];
        float *values = read_floats(setup, weight);
        if (weight->group == GROUP_EXPERTS && stored != EXPERTS_FUSED) {
            if (stored == EXPERTS_EXCHANGED)
                add_v5(&changed, weight, values);
            else
                add_per_expert(&changed, weight, values);
            free(values);
        } else {
            add_tensor(&changed, weight->name, weight->n_dims, weight->shape, values);
        }
    }
    return changed;
}

static void test_hf__every_expert_layout_loads(void **state)
{
    (void)state;
    /* `tile` has 2I = H, so only down_proj tells the layouts apart; where I = H only gate_up_proj
     * does. */
    for (int shape = 0; shape < 3; shape++) {
        fixture setup;
        model_dims dims;
        assert_ok(dims_preset(shape == 1 ? "tile" : "debug", &dims));
        if (shape == 2)
            dims.text.expert_width = dims.text.hidden;
        fixture_open(&setup, &dims);
        double *want = values_of(&setup);
        for (int stored = EXPERTS_FUSED; stored <= EXPERTS_SEPARATE; stored++) {
            char *folder = harness_temp();
            rewrite changed = rewrite_as(&setup, (expert_layout)stored);
            assert_ok(st_write(path_in(folder, "model.safetensors"), changed.list, changed.count,
                               NULL, 0));
            assert_loads_as(&setup, folder, want);
            rewrite_done(&changed);
            harness_remove(&folder);
        }
        free(want);
        fixture_close(&setup);
    }
}

/* A rank of a cut model loads its slices of the whole model's values, in whatever order the file
 * has them. */
static void test_hf__a_rank_loads_its_slices(void **state)
{
    (void)state;
    const layout degrees = {.replicate = 1,
                            .shard = 2,
                            .context = 1,
                            .tensor = 2,
                            .pipeline = 1,
                            .expert = 2,
                            .expert_tensor = 2,
                            .world = 4,
                            .accumulation = 1};
    fixture setup;
    open_preset(&setup, "debug");
    double *want = values_of(&setup);
    for (int stored = EXPERTS_FUSED; stored <= EXPERTS_SEPARATE; stored++) {
        char *folder = harness_temp();
        rewrite changed = rewrite_as(&setup, (expert_layout)stored);
        assert_ok(
            st_write(path_in(folder, "model.safetensors"), changed.list, changed.count, NULL, 0));
        for (int rank = 0; rank < degrees.world; rank++) {
            params *registry;
            assert_ok(params_new(&setup.dims, &registry));
            assert_ok(params_cut(registry, &setup.dims, &degrees, mesh_place_of(&degrees, rank)));
            assert_ok(params_alloc(registry, setup.queue, false));
            assert_ok(hf_load(registry, setup.queue, folder));
            const double *whole = want;
            for (int64_t i = 0; i < registry->count; whole += registry->list[i++].count) {
                const param *weight = &registry->list[i];
                double *got = malloc((size_t)weight->n_local * sizeof *got);
                int64_t at;
                assert_ok(params_read(weight->value, setup.queue, 0, weight->n_local, got));
                for (int64_t j = 0; j < weight->n_local; j++) {
                    slice_run(&weight->held, j, 1, &at);
                    assert_true(got[j] == whole[at]);
                }
                free(got);
            }
            params_release(registry, setup.queue);
            params_free(&registry);
        }
        rewrite_done(&changed);
        harness_remove(&folder);
    }
    free(want);
    fixture_close(&setup);
}

static void test_hf__text_only_names(void **state)
{
    (void)state;
    fixture setup;
    open_text_only(&setup);
    char *folder = harness_temp();
    double *want = values_of(&setup);
    assert_ok(hf_export(setup.registry, setup.queue, &setup.dims, folder,
                        &(hf_export_options){.dtype = HF_EXPORT_F32}));
    st_file file;
    assert_ok(st_open(path_in(folder, "model.safetensors"), &file));
    const st_tensor *tensor = st_find(&file, "model.layers.3.mlp.experts.15.up_proj.weight");
    assert_non_null(tensor);
    assert_int_equal(tensor->shape[0], 48);
    assert_int_equal(tensor->shape[1], 128);
    assert_int_equal(file.n_tensors, 3 + 4 * (8 + 1 + 48));
    st_close(&file);
    assert_loads_as(&setup, folder, want);
    free(want);
    harness_remove(&folder);
    fixture_close(&setup);
}

static void test_hf__tied_models_have_no_head_of_their_own(void **state)
{
    (void)state;
    fixture setup;
    model_dims dims;
    assert_ok(dims_preset("debug", &dims));
    dims.text.tied = true;
    fixture_open(&setup, &dims);
    char *folder = harness_temp();
    double *want = values_of(&setup);
    rewrite changed = rewrite_as(&setup, EXPERTS_FUSED);
    assert_int_equal(changed.count, 145);
    float *head = calloc(2048 * 128, sizeof *head); /* some writers store the tied head too */
    add_tensor(&changed, "lm_head.weight", 2, (const int64_t[]){2048, 128}, head);
    assert_ok(st_write(path_in(folder, "model.safetensors"), changed.list, changed.count, NULL, 0));
    assert_loads_as(&setup, folder, want);
    rewrite_done(&changed);
    free(want);
    harness_remove(&folder);
    fixture_close(&setup);
}

static void test_hf__problems_are_named_and_nothing_changes(void **state)
{
    (void)state;
    fixture setup;
    open_preset(&setup, "debug");
    char *folder = harness_temp();
    double *want = values_of(&setup);
    assert_fails(ST_NO_INPUT, hf_load(setup.registry, setup.queue, folder), "model.safetensors");
    rewrite changed = rewrite_as(&setup, EXPERTS_FUSED);
    st_tensor *norm = &changed.list[1]; /* layer 0's input_layernorm: [128] becomes [64, 2] */
    norm->n_dims = 2;
    norm->shape[0] = 64;
    norm->shape[1] = 2;
    char *old = (char *)changed.list[2].name; /* q_proj under an unknown name */
    changed.list[2].name = "model.surprise";
    assert_ok(st_write(path_in(folder, "model.safetensors"), changed.list, changed.count, NULL, 0));
    assert_fails(ST_BAD_INPUT, hf_load(setup.registry, setup.queue, folder),
                 "input_layernorm.weight [64, 2]");
    assert_non_null(strstr(status_text(), "model.surprise"));
    assert_non_null(strstr(status_text(), "layers.0.self_attn.q_proj.weight (missing"));
    changed.list[2].name = old;
    double *got = values_of(&setup);
    assert_memory_equal(got, want, (size_t)setup.registry->total * sizeof *got);
    free(got);
    rewrite_done(&changed);
    free(want);
    harness_remove(&folder);
    fixture_close(&setup);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void test_hf__other_files_are_copied(void **state)
{
    (void)state;
    fixture setup;
    open_preset(&setup, "debug");
    char *source = harness_temp(), *out = harness_temp();
    char *config = NULL, *spaced = NULL;
    assert_ok(dims_config_json(&setup.dims, &config));
    assert_true(asprintf(&spaced, "\n\n%s\n", config) > 0); /* the same meaning in other bytes */
    write_file(path_in(source, "config.json"), spaced);
    write_file(path_in(source, "tokenizer.json"), "{}");
    write_file(path_in(source, "preprocessor_config.json"), "{\"a\": 1}");
    write_file(path_in(source, "secret.txt"), "no");
    assert_ok(hf_export(setup.registry, setup.queue, &setup.dims, out,
                        &(hf_export_options){.source = source}));
    hash128 first, second;
    static const char *const same[] = {"config.json", "tokenizer.json", "preprocessor_config.json"};
    for (int i = 0; i < 3; i++) {
        assert_ok(hash_file(path_in(source, same[i]), &first));
        assert_ok(hash_file(path_in(out, same[i]), &second));
        assert_true(hash_equal(first, second));
    }
    assert_int_equal(access(path_in(out, "secret.txt"), F_OK), -1);
    assert_int_equal(access(path_in(out, "model.safetensors.tmp"), F_OK), -1);
    setup.dims.text.rms_eps = 1e-5; /* another model has another config.json */
    assert_ok(hf_export(setup.registry, setup.queue, &setup.dims, out,
                        &(hf_export_options){.source = source}));
    assert_ok(hash_file(path_in(out, "config.json"), &second));
    assert_ok(hash_file(path_in(source, "config.json"), &first));
    assert_false(hash_equal(first, second));
    free(config);
    free(spaced);
    harness_remove(&source);
    harness_remove(&out);
    fixture_close(&setup);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hf__f32_round_trip_one_file_and_shards),
        cmocka_unit_test(test_hf__bf16_is_the_default_and_stable),
        cmocka_unit_test(test_hf__every_expert_layout_loads),
        cmocka_unit_test(test_hf__a_rank_loads_its_slices),
        cmocka_unit_test(test_hf__text_only_names),
        cmocka_unit_test(test_hf__tied_models_have_no_head_of_their_own),
        cmocka_unit_test(test_hf__problems_are_named_and_nothing_changes),
        cmocka_unit_test(test_hf__other_files_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
