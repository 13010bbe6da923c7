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
#include "trainer/checkpoint/hf_check.h"
#include "trainer/checkpoint/hf_export.h"
#include "trainer/checkpoint/hf_load.h"
#include "trainer/model/convert.h"

static const char *path_in(const char *folder, const char *name)
{
    static char path[4][STATUS_PATH_MAX];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void open_preset(fixture *f, const char *name)
{
    model_dims d;
    assert_ok(dims_preset(name, &d));
    fixture_open(f, &d);
}

static void open_text_only(fixture *f)
{
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    d.vision = (vision_dims){0};
    memset(d.text.mrope_section, 0, sizeof d.text.mrope_section);
    snprintf(d.model_type, sizeof d.model_type, "qwen3_moe");
    snprintf(d.architecture, sizeof d.architecture, "Qwen3MoeForCausalLM");
    fixture_open(f, &d);
}

/* The values of all parameters, one after the other; the caller frees them. */
static double *values_of(fixture *f)
{
    double *v = malloc((size_t)f->p->total * sizeof *v), *to = v;
    for (int64_t i = 0; i < f->p->count; i++) {
        assert_ok(params_read(f->p->list[i].value, f->s, 0, f->p->list[i].count, to));
        to += f->p->list[i].count;
    }
    return v;
}

static void clear_values(fixture *f)
{
    size_t bytes = (size_t)f->p->block_elements * sizeof(float);
    assert_ok(f->dev->backend->zero(f->s, f->p->values, bytes));
}

static void assert_loads_as(fixture *f, const char *folder, const double *want)
{
    clear_values(f);
    assert_ok(hf_load(f->p, f->s, folder));
    double *got = values_of(f);
    assert_memory_equal(got, want, (size_t)f->p->total * sizeof *got);
    free(got);
}

static void test_hf__f32_round_trip_one_file_and_shards(void **state)
{
    (void)state;
    fixture f;
    open_preset(&f, "debug");
    char *folder = harness_temp();
    double *want = values_of(&f);
    assert_ok(hf_export(f.p, f.s, &f.d, folder, &(hf_export_options){.dtype = HF_EXPORT_F32}));
    assert_int_equal(access(path_in(folder, "model.safetensors.index.json"), F_OK), -1);
    assert_loads_as(&f, folder, want);
    assert_ok(hf_export(f.p, f.s, &f.d, folder,
                        &(hf_export_options){.dtype = HF_EXPORT_F32, .shard_bytes = 3000000}));
    assert_int_equal(access(path_in(folder, "model.safetensors"), F_OK), -1);
    assert_loads_as(&f, folder, want);
    json_value *index;
    assert_ok(json_load(path_in(folder, "model.safetensors.index.json"), &index));
    assert_int_equal(json_int(json_find(json_find(index, "metadata"), "total_size"), 0),
                     f.p->total * 4);
    assert_int_equal(json_count(json_find(index, "weight_map")), 146);
    json_free(&index);
    model_dims back;
    assert_ok(dims_load(folder, &back));
    assert_int_equal(back.text.experts, 16);
    free(want);
    harness_remove(&folder);
    fixture_close(&f);
}

static void test_hf__bf16_is_the_default_and_stable(void **state)
{
    (void)state;
    fixture f;
    open_preset(&f, "tile"); /* 2I = H: only the down projection tells the layouts apart */
    char *first = harness_temp(), *second = harness_temp();
    assert_ok(hf_export(f.p, f.s, &f.d, first, &(hf_export_options){0}));
    st_file file;
    assert_ok(st_open(path_in(first, "model.safetensors"), &file));
    assert_string_equal(st_meta_find(&file, "format"), "pt");
    assert_int_equal(file.n_tensors, 94);
    for (size_t i = 0; i < file.n_tensors; i++)
        assert_int_equal(file.tensors[i].dtype, DT_BF16);
    assert_int_equal((uintptr_t)file.tensors[0].data.data % 8, 0);
    st_close(&file);
    assert_ok(hf_load(f.p, f.s, first));
    assert_ok(hf_export(f.p, f.s, &f.d, second,
                        &(hf_export_options){.source = first, .dtype = HF_EXPORT_AS_SOURCE}));
    hash128 a, b;
    assert_ok(hash_file(path_in(first, "model.safetensors"), &a));
    assert_ok(hash_file(path_in(second, "model.safetensors"), &b));
    assert_true(hash_equal(a, b));
    harness_remove(&first);
    harness_remove(&second);
    fixture_close(&f);
}

/* The tensors of a loaded checkpoint, to be changed and written again. */
typedef struct rewrite {
    st_tensor *list;
    size_t n;
    float **data;
} rewrite;

static void add_tensor(rewrite *w, const char *name, int n_dims, const int64_t *shape, float *data)
{
    w->list = realloc(w->list, (w->n + 1) * sizeof *w->list);
    w->data = realloc(w->data, (w->n + 1) * sizeof *w->data);
    st_tensor t = {.name = strdup(name), .dtype = DT_F32, .n_dims = n_dims};
    size_t count = 1;
    for (int i = 0; i < n_dims; i++) {
        t.shape[i] = shape[i];
        count *= (size_t)shape[i];
    }
    t.data = span_of(data, count * sizeof *data);
    w->list[w->n] = t;
    w->data[w->n++] = data;
}

static void rewrite_done(rewrite *w)
{
    for (size_t i = 0; i < w->n; i++) {
        free((char *)w->list[i].name);
        free(w->data[i]);
    }
    free(w->list);
    free(w->data);
}

static float *read_floats(fixture *f, const param *p)
{
    float *out = malloc((size_t)p->count * sizeof *out);
    assert_ok(f->dev->backend->to_host(f->s, out, p->value, (size_t)p->count * sizeof *out));
    return out;
}

/* Columns [column, column + rows) of expert e of an [in, out] matrix, transposed to [rows, in]. */
static float *transposed(const float *from, const param *p, int64_t e, int64_t column, int64_t rows)
{
    int64_t in = p->shape[1], out = p->shape[2];
    float *to = malloc((size_t)(rows * in) * sizeof *to);
    for (int64_t j = 0; j < rows; j++)
        for (int64_t i = 0; i < in; i++)
            to[j * in + i] = from[(e * in + i) * out + column + j];
    return to;
}

static void add_v5(rewrite *w, const param *p, const float *from)
{
    int64_t in = p->shape[1], out = p->shape[2];
    float *all = malloc((size_t)p->count * sizeof *all);
    for (int64_t e = 0; e < p->shape[0]; e++) {
        float *one = transposed(from, p, e, 0, out);
        memcpy(all + e * in * out, one, (size_t)(in * out) * sizeof *one);
        free(one);
    }
    add_tensor(w, p->name, 3, (const int64_t[]){p->shape[0], out, in}, all);
}

static void add_per_expert(rewrite *w, const param *p, const float *from)
{
    bool pair = strstr(p->name, "gate_up") != NULL;
    int64_t width = pair ? p->shape[2] / 2 : p->shape[2];
    int stem = (int)(strrchr(p->name, '.') - p->name);
    for (int64_t e = 0; e < p->shape[0]; e++) {
        for (int part = 0; part < (pair ? 2 : 1); part++) {
            char name[200];
            snprintf(name, sizeof name, "%.*s.%d.%s_proj.weight", stem, p->name, (int)e,
                     !pair  ? "down"
                     : part ? "up"
                            : "gate");
            add_tensor(w, name, 2, (const int64_t[]){width, p->shape[1]},
                       transposed(from, p, e, part * width, width));
        }
    }
}

static rewrite rewrite_as(fixture *f, expert_layout stored)
{
    rewrite w = {0};
    for (int64_t i = 0; i < f->p->count; i++) {
        const param *p = &f->p->list[i];
        float *values = read_floats(f, p);
        if (p->group == GROUP_EXPERTS && stored != EXPERTS_FUSED) {
            if (stored == EXPERTS_EXCHANGED)
                add_v5(&w, p, values);
            else
                add_per_expert(&w, p, values);
            free(values);
        } else {
            add_tensor(&w, p->name, p->n_dims, p->shape, values);
        }
    }
    return w;
}

static void test_hf__every_expert_layout_loads(void **state)
{
    (void)state;
    /* `tile` has 2I = H, so only down_proj tells the layouts apart; where I = H only gate_up_proj
     * does. */
    for (int shape = 0; shape < 3; shape++) {
        fixture f;
        model_dims d;
        assert_ok(dims_preset(shape == 1 ? "tile" : "debug", &d));
        if (shape == 2)
            d.text.expert_width = d.text.hidden;
        fixture_open(&f, &d);
        double *want = values_of(&f);
        for (int stored = EXPERTS_FUSED; stored <= EXPERTS_SEPARATE; stored++) {
            char *folder = harness_temp();
            rewrite w = rewrite_as(&f, (expert_layout)stored);
            assert_ok(st_write(path_in(folder, "model.safetensors"), w.list, w.n, NULL, 0));
            assert_loads_as(&f, folder, want);
            rewrite_done(&w);
            harness_remove(&folder);
        }
        free(want);
        fixture_close(&f);
    }
}

/* A rank of a cut model loads its slices of the whole model's values, in whatever order the file
 * has them. */
static void test_hf__a_rank_loads_its_slices(void **state)
{
    (void)state;
    const layout l = {.replicate = 1,
                      .shard = 2,
                      .context = 1,
                      .tensor = 2,
                      .pipeline = 1,
                      .expert = 2,
                      .expert_tensor = 2,
                      .world = 4,
                      .accumulation = 1};
    fixture f;
    open_preset(&f, "debug");
    double *want = values_of(&f);
    for (int stored = EXPERTS_FUSED; stored <= EXPERTS_SEPARATE; stored++) {
        char *folder = harness_temp();
        rewrite w = rewrite_as(&f, (expert_layout)stored);
        assert_ok(st_write(path_in(folder, "model.safetensors"), w.list, w.n, NULL, 0));
        for (int rank = 0; rank < l.world; rank++) {
            params *p;
            assert_ok(params_new(&f.d, &p));
            assert_ok(params_cut(p, &f.d, &l, mesh_place_of(&l, rank)));
            assert_ok(params_alloc(p, f.s, false));
            assert_ok(hf_load(p, f.s, folder));
            const double *whole = want;
            for (int64_t i = 0; i < p->count; whole += p->list[i++].count) {
                const param *q = &p->list[i];
                double *got = malloc((size_t)q->n_local * sizeof *got);
                int64_t at;
                assert_ok(params_read(q->value, f.s, 0, q->n_local, got));
                for (int64_t j = 0; j < q->n_local; j++) {
                    slice_run(&q->held, j, 1, &at);
                    assert_true(got[j] == whole[at]);
                }
                free(got);
            }
            params_release(p, f.s);
            params_free(&p);
        }
        rewrite_done(&w);
        harness_remove(&folder);
    }
    free(want);
    fixture_close(&f);
}

static void test_hf__text_only_names(void **state)
{
    (void)state;
    fixture f;
    open_text_only(&f);
    char *folder = harness_temp();
    double *want = values_of(&f);
    assert_ok(hf_export(f.p, f.s, &f.d, folder, &(hf_export_options){.dtype = HF_EXPORT_F32}));
    st_file file;
    assert_ok(st_open(path_in(folder, "model.safetensors"), &file));
    const st_tensor *t = st_find(&file, "model.layers.3.mlp.experts.15.up_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->shape[0], 48);
    assert_int_equal(t->shape[1], 128);
    assert_int_equal(file.n_tensors, 3 + 4 * (8 + 1 + 48));
    st_close(&file);
    assert_loads_as(&f, folder, want);
    free(want);
    harness_remove(&folder);
    fixture_close(&f);
}

static void test_hf__tied_models_have_no_head_of_their_own(void **state)
{
    (void)state;
    fixture f;
    model_dims d;
    assert_ok(dims_preset("debug", &d));
    d.text.tied = true;
    fixture_open(&f, &d);
    char *folder = harness_temp();
    double *want = values_of(&f);
    rewrite w = rewrite_as(&f, EXPERTS_FUSED);
    assert_int_equal(w.n, 145);
    float *head = calloc(2048 * 128, sizeof *head); /* some writers store the tied head too */
    add_tensor(&w, "lm_head.weight", 2, (const int64_t[]){2048, 128}, head);
    assert_ok(st_write(path_in(folder, "model.safetensors"), w.list, w.n, NULL, 0));
    assert_loads_as(&f, folder, want);
    rewrite_done(&w);
    free(want);
    harness_remove(&folder);
    fixture_close(&f);
}

static void test_hf__problems_are_named_and_nothing_changes(void **state)
{
    (void)state;
    fixture f;
    open_preset(&f, "debug");
    char *folder = harness_temp();
    double *want = values_of(&f);
    assert_fails(ST_NO_INPUT, hf_load(f.p, f.s, folder), "model.safetensors");
    rewrite w = rewrite_as(&f, EXPERTS_FUSED);
    st_tensor *norm = &w.list[1]; /* layer 0's input_layernorm: [128] becomes [64, 2] */
    norm->n_dims = 2;
    norm->shape[0] = 64;
    norm->shape[1] = 2;
    char *old = (char *)w.list[2].name; /* q_proj under an unknown name */
    w.list[2].name = "model.surprise";
    assert_ok(st_write(path_in(folder, "model.safetensors"), w.list, w.n, NULL, 0));
    assert_fails(ST_BAD_INPUT, hf_load(f.p, f.s, folder), "input_layernorm.weight [64, 2]");
    assert_non_null(strstr(status_text(), "model.surprise"));
    assert_non_null(strstr(status_text(), "layers.0.self_attn.q_proj.weight (missing"));
    w.list[2].name = old;
    double *got = values_of(&f);
    assert_memory_equal(got, want, (size_t)f.p->total * sizeof *got);
    free(got);
    rewrite_done(&w);
    free(want);
    harness_remove(&folder);
    fixture_close(&f);
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
    fixture f;
    open_preset(&f, "debug");
    char *source = harness_temp(), *out = harness_temp();
    char *config = NULL, *spaced = NULL;
    assert_ok(dims_config_json(&f.d, &config));
    assert_true(asprintf(&spaced, "\n\n%s\n", config) > 0); /* the same meaning in other bytes */
    write_file(path_in(source, "config.json"), spaced);
    write_file(path_in(source, "tokenizer.json"), "{}");
    write_file(path_in(source, "preprocessor_config.json"), "{\"a\": 1}");
    write_file(path_in(source, "secret.txt"), "no");
    assert_ok(hf_export(f.p, f.s, &f.d, out, &(hf_export_options){.source = source}));
    hash128 a, b;
    static const char *const same[] = {"config.json", "tokenizer.json", "preprocessor_config.json"};
    for (int i = 0; i < 3; i++) {
        assert_ok(hash_file(path_in(source, same[i]), &a));
        assert_ok(hash_file(path_in(out, same[i]), &b));
        assert_true(hash_equal(a, b));
    }
    assert_int_equal(access(path_in(out, "secret.txt"), F_OK), -1);
    assert_int_equal(access(path_in(out, "model.safetensors.tmp"), F_OK), -1);
    f.d.text.rms_eps = 1e-5; /* another model has another config.json */
    assert_ok(hf_export(f.p, f.s, &f.d, out, &(hf_export_options){.source = source}));
    assert_ok(hash_file(path_in(out, "config.json"), &b));
    assert_ok(hash_file(path_in(source, "config.json"), &a));
    assert_false(hash_equal(a, b));
    free(config);
    free(spaced);
    harness_remove(&source);
    harness_remove(&out);
    fixture_close(&f);
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
