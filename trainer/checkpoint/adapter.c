#include "trainer/checkpoint/adapter.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/json/json.h"
#include "trainer/checkpoint/folder.h"
#include "trainer/checkpoint/hf_write.h"
#include "trainer/model/lora_params.h"

enum { TENSOR_NAME = 208, WHOLE = -1 };
static const char weights_name[] = "adapter_model.safetensors";
static const char config_name[] = "adapter_config.json";

/* One matrix of the file: the A or B of a base row, of all its experts or one. */
typedef struct adapter_tensor {
    char name[TENSOR_NAME];
    const param *p; /* the row of values; NULL: zeros */
    bool is_b;      /* lora_B of the file, */
    bool of_b;      /* with values of B; of exchanged experts the file's B has those of A */
    bool linear;
    int64_t expert, column; /* WHOLE, or one expert's, of B columns [column, column + rows) */
    int64_t shape[2];
} adapter_tensor;

typedef struct adapter_list {
    adapter_tensor *tensor;
    int64_t n;
    stream *s;
    adapter_reader reader;
    int64_t rank;
    const param **parameter; /* base rows that are target_parameters */
    int64_t n_parameters;
} adapter_list;

static adapter_tensor *add_tensor(adapter_list *l, const char *module, bool is_b)
{
    adapter_tensor *t = &l->tensor[l->n++];
    *t = (adapter_tensor){.is_b = is_b, .expert = WHOLE};
    snprintf(t->name, sizeof t->name, "base_model.model.%s.lora_%c.weight", module,
             is_b ? 'B' : 'A');
    return t;
}

/* Of a linear map: [r, in] and [out, r]. */
static void add_linear(adapter_list *l, const param *w, bool text_only)
{
    char module[160];
    snprintf(module, sizeof module, "%.*s", (int)lora_module_size(w), w->name);
    for (int b = 0; b < 2; b++) {
        adapter_tensor *t = add_tensor(l, module, b);
        t->p = w + w->lora + b;
        t->linear = true;
        memcpy(t->shape, t->p->shape, sizeof t->shape);
    }
    if (w->group == GROUP_ROUTER && !text_only && l->reader == ADAPTER_TRANSFORMERS_5)
        l->parameter[l->n_parameters++] = w;
}

/* Experts in one tensor. PEFT wraps a module once for each of its parameters: the first is inside.
 */
static void add_fused(adapter_list *l, const param *w, bool inside)
{
    const bool exchanged = l->reader == ADAPTER_TRANSFORMERS_4;
    const int64_t in = w->shape[exchanged ? 2 : 1], out = w->shape[exchanged ? 1 : 2];
    char module[160];
    snprintf(module, sizeof module, "%.*s%s", (int)(strrchr(w->name, '.') - w->name), w->name,
             inside ? ".base_layer" : "");
    for (int b = 0; b < 2; b++) {
        adapter_tensor *t = add_tensor(l, module, b);
        t->of_b = exchanged ? !b : b;
        t->p = w->lora ? w + w->lora + t->of_b : NULL;
        t->shape[b] = l->rank * w->shape[0];
        t->shape[!b] = b ? out : in;
    }
    l->parameter[l->n_parameters++] = w;
}

static bool is_square(const param *w)
{
    return w->lora && w->shape[1] == w->shape[2];
}

/* gate_up: a module's first parameter; its other one follows. */
static void add_fused_pair(adapter_list *l, const param *gate_up)
{
    const param *down = gate_up + 1;
    bool first = gate_up->lora || is_square(down), second = down->lora || is_square(gate_up);
    if (first)
        add_fused(l, gate_up, second);
    if (second)
        add_fused(l, down, false);
}

static void add_expert(adapter_list *l, const param *w, int64_t e, const char *which,
                       int64_t column, int64_t out)
{
    char module[160];
    snprintf(module, sizeof module, "%.*s.%lld.%s_proj", (int)(strrchr(w->name, '.') - w->name),
             w->name, (long long)e, which);
    for (int b = 0; b < 2; b++) {
        adapter_tensor *t = add_tensor(l, module, b);
        t->p = w->lora ? w + w->lora + b : NULL;
        t->of_b = b;
        t->expert = e;
        t->column = b ? column : 0;
        t->shape[b] = l->rank;
        t->shape[!b] = b ? out : w->shape[1];
    }
}

/* PEFT fuses gate and up for the 5 series only where down has an adapter too: else zeros. */
static void add_separate_pair(adapter_list *l, const param *gate_up)
{
    const param *down = gate_up + 1;
    const int64_t width = gate_up->shape[2] / 2;
    for (int64_t e = 0; e < gate_up->shape[0] && gate_up->lora; e++) {
        add_expert(l, gate_up, e, "gate", 0, width);
        add_expert(l, gate_up, e, "up", width, width);
    }
    for (int64_t e = 0; e < down->shape[0] && (gate_up->lora || down->lora); e++)
        add_expert(l, down, e, "down", 0, down->shape[2]);
}

static void add_row(adapter_list *l, const params *p, const param *w)
{
    if (w->n_dims == 2 && w->lora)
        add_linear(l, w, p->text_only_names);
    else if (w->group != GROUP_EXPERTS || w->adapter || !strstr(w->name, ".gate_up_proj"))
        return;
    else if (p->text_only_names)
        add_separate_pair(l, w);
    else
        add_fused_pair(l, w);
}

static void list_free(adapter_list *l)
{
    free(l->tensor);
    free(l->parameter);
}

static status list_make(const params *p, stream *s, adapter_reader reader, adapter_list *out)
{
    int64_t most = 1;
    for (int64_t i = 0; i < p->n; i++)
        most += 2 + (p->list[i].n_dims == 3 ? 4 * p->list[i].shape[0] : 0);
    adapter_list l = {.tensor = calloc((size_t)most, sizeof *l.tensor),
                      .s = s,
                      .reader = reader,
                      .rank = p->lora_rank,
                      .parameter = calloc((size_t)p->n + 1, sizeof *l.parameter)};
    if (!l.tensor || !l.parameter) {
        list_free(&l);
        return FAIL(ST_NO_MEMORY, "no memory for a list of adapters");
    }
    for (int64_t i = 0; i < p->n; i++)
        add_row(&l, p, &p->list[i]);
    *out = l;
    return ST_OK;
}

/* from: all of the row, A [E, in, r] or B [E, r, out]. */
static void arrange_adapter(const adapter_tensor *t, const double *from, double *to)
{
    const int64_t experts = t->p->shape[0], rows = t->p->shape[1], columns = t->p->shape[2];
    const bool exchanged = t->of_b != t->is_b;
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++, to++) {
            if (t->expert != WHOLE) /* transposed: A' [r, in], B' [out, r] */
                *to = from[(t->expert * rows + j) * columns + t->column + i];
            else if (!t->is_b && exchanged) /* [E r, out] of B */
                *to = from[i * columns + j];
            else if (!t->is_b) /* [E r, in] of A */
                *to = from[(i / columns * rows + j) * columns + i % columns];
            else if (exchanged) /* [in, r E] of A */
                *to = from[(j % experts * rows + i) * columns + j / experts];
            else /* [out, r E] of B */
                *to = from[(j % experts * rows + j / experts) * columns + i];
        }
}

static status read_tensor(void *context, int64_t i, double *out)
{
    const adapter_list *l = context;
    const adapter_tensor *t = &l->tensor[i];
    if (!t->p) {
        memset(out, 0, (size_t)(t->shape[0] * t->shape[1]) * sizeof *out);
        return ST_OK;
    }
    if (t->linear)
        return lora_read(t->p, l->s, 0, t->p->count, out);
    double *all = malloc((size_t)t->p->count * sizeof *all);
    if (!all)
        return FAIL(ST_NO_MEMORY, "no memory for an adapter of %lld values",
                    (long long)t->p->count);
    status st = lora_read(t->p, l->s, 0, t->p->count, all);
    if (st == ST_OK)
        arrange_adapter(t, all, out);
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

static bool is_parameter(const adapter_list *l, const adapter_tensor *t)
{
    bool found = !t->linear && t->expert == WHOLE;
    for (int64_t i = 0; i < l->n_parameters && !found; i++)
        found = t->p == l->parameter[i] + l->parameter[i]->lora;
    return found;
}

/* The modules whose lora_A the list has, but for those of parameters. */
static void put_modules(json_writer *w, const adapter_list *l)
{
    static const char start[] = "base_model.model.", end[] = ".lora_A.weight";
    json_begin_array(w);
    for (int64_t i = 0; i < l->n; i++) {
        const adapter_tensor *t = &l->tensor[i];
        char module[TENSOR_NAME];
        if (t->is_b || is_parameter(l, t))
            continue;
        size_t n = strlen(t->name) - (sizeof start - 1) - (sizeof end - 1);
        snprintf(module, sizeof module, "%.*s", (int)n, t->name + sizeof start - 1);
        json_put_cstr(w, module);
    }
    json_end_array(w);
}

static void put_parameters(json_writer *w, const adapter_list *l)
{
    json_begin_array(w);
    for (int64_t i = 0; i < l->n_parameters; i++)
        json_put_cstr(w, l->parameter[i]->name);
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
    json_put_key_cstr(&w, "peft_type", "LORA");
    json_put_key_cstr(&w, "base_model_name_or_path", base);
    json_put_key_int(&w, "r", p->lora_rank);
    json_put_key_real(&w, "lora_alpha", alpha);
    json_put_key_real(&w, "lora_dropout", 0.0);
    json_put_key_cstr(&w, "bias", "none");
    json_put_key_bool(&w, "fan_in_fan_out", false);
    json_put_key_bool(&w, "inference_mode", true);
    json_put_key(&w, "target_modules");
    put_modules(&w, l);
    if (l->n_parameters > 0) {
        json_put_key(&w, "target_parameters");
        put_parameters(&w, l);
    }
    json_end_object(&w);
    status st = json_writer_take(&w, &text, &size);
    if (st == ST_OK)
        st = hf_write_text(folder, config_name, text, size);
    free(text);
    json_writer_done(&w);
    return st;
}

status adapter_export(const params *p, stream *s, const char *base, adapter_reader reader,
                      const char *folder)
{
    adapter_list l;
    if (!p->lora_rank)
        return ST_OK;
    TRY(params_may_be_kept(p));
    TRY(file_make_folders(folder));
    TRY(list_make(p, s, reader, &l));
    status st = write_weights(&l, folder);
    if (st == ST_OK)
        st = write_config(p, &l, base, folder);
    list_free(&l);
    return st;
}
