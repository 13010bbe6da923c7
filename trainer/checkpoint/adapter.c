#include "trainer/checkpoint/adapter.h"

#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/model/lora_params.h"

enum { TENSOR_NAME = 208, WHOLE = -1 };
static const char weights_name[] = "adapter_model.safetensors";
static const char config_name[] = "adapter_config.json";

/* One matrix of the file: the A or B of a base row, of all its experts or one. */
typedef struct adapter_tensor {
    char name[TENSOR_NAME];
    const param *p; /* the row of A or B */
    bool is_b, linear;
    int64_t expert, column; /* WHOLE, or one expert's, of B columns [column, column + rows) */
    int64_t shape[2];
} adapter_tensor;

typedef struct adapter_list {
    adapter_tensor *tensor;
    int64_t n;
    stream *s;
} adapter_list;

/* The two tensors of a module: [r, in] and [out, r], r times the experts of one that has all. */
static void add_pair(adapter_list *l, const param *w, const char *module, int64_t expert,
                     int64_t column, int64_t out)
{
    bool linear = w->n_dims == 2;
    for (int b = 0; b < 2; b++) {
        adapter_tensor *t = &l->tensor[l->n++];
        const param *p = w + w->lora + b;
        int64_t rank = p->shape[linear ? b : 2 - b];
        rank *= !linear && expert == WHOLE ? w->shape[0] : 1;
        *t = (adapter_tensor){
            .p = p, .is_b = b, .linear = linear, .expert = expert, .column = column};
        t->shape[0] = b ? out : rank;
        t->shape[1] = b ? rank : w->shape[1];
        snprintf(t->name, sizeof t->name, "base_model.model.%s.lora_%c.weight", module,
                 b ? 'B' : 'A');
    }
}

/* Experts in one tensor. PEFT wraps a module once for each of its parameters: the first is inside.
 */
static void add_fused(adapter_list *l, const param *w)
{
    char module[160];
    const char *last = strrchr(w->name, '.');
    bool inside = strcmp(last, ".gate_up_proj") == 0 && (w + 1)->lora != 0;
    snprintf(module, sizeof module, "%.*s%s", (int)(last - w->name), w->name,
             inside ? ".base_layer" : "");
    add_pair(l, w, module, WHOLE, 0, w->shape[2]);
}

static void add_separate(adapter_list *l, const param *w)
{
    char module[160];
    const char *last = strrchr(w->name, '.');
    bool pair = strcmp(last, ".gate_up_proj") == 0;
    for (int64_t e = 0; e < w->shape[0]; e++)
        for (int half = 0; half < (pair ? 2 : 1); half++) {
            int64_t out = w->shape[2] / (pair ? 2 : 1);
            snprintf(module, sizeof module, "%.*s.%lld.%s_proj", (int)(last - w->name), w->name,
                     (long long)e,
                     !pair  ? "down"
                     : half ? "up"
                            : "gate");
            add_pair(l, w, module, e, half * out, out);
        }
}

static status list_make(const params *p, stream *s, adapter_list *out)
{
    int64_t most = 0;
    for (int64_t i = 0; i < p->n; i++)
        if (p->list[i].lora)
            most += 2 + (p->list[i].n_dims == 3 ? 4 * p->list[i].shape[0] : 0);
    *out = (adapter_list){.tensor = calloc((size_t)most + 1, sizeof *out->tensor), .s = s};
    if (!out->tensor)
        return FAIL(ST_NO_MEMORY, "no memory for a list of adapters");
    for (int64_t i = 0; i < p->n; i++) {
        const param *w = &p->list[i];
        char module[160];
        if (!w->lora)
            continue;
        snprintf(module, sizeof module, "%.*s", (int)lora_module_size(w), w->name);
        if (w->n_dims == 2)
            add_pair(out, w, module, WHOLE, 0, w->shape[0]);
        else if (p->text_only_names)
            add_separate(out, w);
        else
            add_fused(out, w);
    }
    return ST_OK;
}

/* from: all of the row, A [E, in, r] or B [E, r, out]. */
static void arrange(const adapter_tensor *t, const double *from, double *to)
{
    const int64_t experts = t->p->shape[0], rows = t->p->shape[1], columns = t->p->shape[2];
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++, to++) {
            if (t->expert != WHOLE) /* transposed: A' [r, in], B' [out, r] */
                *to = from[(t->expert * rows + j) * columns + t->column + i];
            else if (!t->is_b) /* [E r, in] */
                *to = from[(i / columns * rows + j) * columns + i % columns];
            else /* [out, r E] */
                *to = from[(j % experts * rows + j / experts) * columns + i];
        }
}

static status read_tensor(void *context, int64_t i, double *out)
{
    const adapter_list *l = context;
    const adapter_tensor *t = &l->tensor[i];
    if (t->linear)
        return lora_read(t->p, l->s, 0, t->p->count, out);
    double *all = malloc((size_t)t->p->count * sizeof *all);
    if (!all)
        return FAIL(ST_NO_MEMORY, "no memory for an adapter of %lld values",
                    (long long)t->p->count);
    status st = lora_read(t->p, l->s, 0, t->p->count, all);
    if (st == ST_OK)
        arrange(t, all, out);
    free(all);
    return st;
}

static status write_weights(const adapter_list *l, const char *folder)
{
    st_tensor *list = calloc((size_t)l->n + 1, sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of adapters");
    for (int64_t i = 0; i < l->n; i++) {
        const adapter_tensor *t = &l->tensor[i];
        list[i] = (st_tensor){.name = t->name, .dtype = DT_F32, .n_dims = 2};
        memcpy(list[i].shape, t->shape, sizeof t->shape);
        list[i].data.size = (size_t)(t->shape[0] * t->shape[1]) * sizeof(float);
    }
    status st = hf_write_values(folder, weights_name, list, l->n, read_tensor, (void *)l);
    free(list);
    return st;
}

/* The modules whose lora_A the list has; with parameters: the fused tensors instead. */
static void put_targets(json_writer *w, const params *p, bool parameters, const adapter_list *l)
{
    static const char start[] = "base_model.model.", end[] = ".lora_A.weight";
    json_begin_array(w);
    for (int64_t i = 0; i < p->n && parameters; i++)
        if (p->list[i].lora && p->list[i].n_dims == 3)
            json_put_cstr(w, p->list[i].name);
    for (int64_t i = 0; i < l->n && !parameters; i++) {
        const adapter_tensor *t = &l->tensor[i];
        char module[TENSOR_NAME];
        if (t->is_b || (!t->linear && t->expert == WHOLE))
            continue;
        size_t n = strlen(t->name) - (sizeof start - 1) - (sizeof end - 1);
        snprintf(module, sizeof module, "%.*s", (int)n, t->name + sizeof start - 1);
        json_put_cstr(w, module);
    }
    json_end_array(w);
}

static status write_config(const params *p, const adapter_list *l, const char *base,
                           const char *folder)
{
    double alpha = 0;
    char *text = NULL;
    size_t size;
    json_writer w;
    for (int64_t i = 0; i < p->n; i++)
        if (p->list[i].lora)
            alpha = p->list[i].lora_scale * (double)p->lora_rank;
    json_writer_init(&w);
    json_begin_object(&w);
    json_put_key(&w, "peft_type");
    json_put_cstr(&w, "LORA");
    json_put_key(&w, "base_model_name_or_path");
    json_put_cstr(&w, base);
    json_put_key(&w, "r");
    json_put_int(&w, p->lora_rank);
    json_put_key(&w, "lora_alpha");
    json_put_real(&w, alpha);
    json_put_key(&w, "lora_dropout");
    json_put_real(&w, 0.0);
    json_put_key(&w, "bias");
    json_put_cstr(&w, "none");
    json_put_key(&w, "fan_in_fan_out");
    json_put_bool(&w, false);
    json_put_key(&w, "inference_mode");
    json_put_bool(&w, true);
    json_put_key(&w, "target_modules");
    put_targets(&w, p, false, l);
    if (p->lora_experts && !p->text_only_names) {
        json_put_key(&w, "target_parameters");
        put_targets(&w, p, true, l);
    }
    json_end_object(&w);
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK)
        st = hf_write_text(folder, config_name, text, size);
    free(text);
    json_writer_done(&w);
    return st;
}

status adapter_export(const params *p, stream *s, const char *base, const char *folder)
{
    adapter_list l;
    if (!p->lora_rank)
        return ST_OK;
    TRY(params_may_be_kept(p));
    TRY(file_make_folders(folder));
    status st = list_make(p, s, &l);
    if (st == ST_OK)
        st = write_weights(&l, folder);
    if (st == ST_OK)
        st = write_config(p, &l, base, folder);
    free(l.tensor);
    return st;
}
