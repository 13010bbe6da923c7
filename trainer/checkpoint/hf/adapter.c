/* SPDX-License-Identifier: Apache-2.0 */
/* adapter.c: implements adapter.h. It first lists the file's matrices, each with the row of the
 * registry that holds its values and how they are arranged; then it writes the weights and the
 * configuration from that list. */
#include "trainer/checkpoint/hf/adapter.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/json/json.h"
#include "trainer/checkpoint/hf/hf_write.h"
#include "trainer/model/params/lora_params.h"

enum { TENSOR_NAME = 208, WHOLE = -1 };
static const char weights_name[] = "adapter_model.safetensors";
static const char config_name[] = "adapter_config.json";

/* One matrix of the file: the A or the B of a base row, of all its experts or of one. */
typedef struct adapter_tensor {
    char name[TENSOR_NAME];
    const param *weight; /* the adapter's row in the registry; NULL: the values are zeros */
    bool is_b;           /* it is a lora_B in the file */
    bool of_b;      /* its values are those of B; for exchanged experts the file swaps A and B */
    bool linear;    /* of a linear map, which is written as it is stored */
    bool lengths;   /* the lengths of its rows: one axis, and neither A nor B */
    int64_t expert; /* one expert's; WHOLE: of all experts */
    int64_t column; /* where its columns begin in that expert's B */
    int64_t shape[2];
} adapter_tensor;

typedef struct adapter_list {
    adapter_tensor *tensor;
    int64_t count;
    stream *queue;
    adapter_reader reader;
    int64_t rank;
    const param **parameter; /* [n_parameters] base rows that are target_parameters */
    int64_t n_parameters;
} adapter_list;

static adapter_tensor *add_tensor(adapter_list *adapters, const char *module, bool is_b)
{
    adapter_tensor *one = &adapters->tensor[adapters->count++];
    *one = (adapter_tensor){.is_b = is_b, .expert = WHOLE};
    snprintf(one->name, sizeof one->name, "base_model.model.%s.lora_%c.weight", module,
             is_b ? 'B' : 'A');
    return one;
}

static void add_lengths(adapter_list *list, const param *weight, const char *module)
{
    adapter_tensor *tensor = &list->tensor[list->count++];
    *tensor = (adapter_tensor){.expert = WHOLE,
                               .weight = weight + weight->lora + 2,
                               .linear = true,
                               .lengths = true,
                               .shape = {weight->shape[0], 1}};
    snprintf(tensor->name, sizeof tensor->name, "base_model.model.%s.lora_magnitude_vector",
             module);
}

/* Adds the two matrices of a linear map: [r, in] and [out, r]. */
static void add_linear(adapter_list *list, const param *weight, bool text_only)
{
    char module[160];
    snprintf(module, sizeof module, "%.*s", (int)lora_module_size(weight), weight->name);
    for (int i = 0; i < 2; i++) {
        adapter_tensor *tensor = add_tensor(list, module, i);
        tensor->weight = weight + weight->lora + i;
        tensor->linear = true;
        memcpy(tensor->shape, tensor->weight->shape, sizeof tensor->shape);
    }
    if (weight->dora)
        add_lengths(list, weight, module);
    if (weight->group == GROUP_ROUTER && !text_only && list->reader == ADAPTER_TRANSFORMERS_5)
        list->parameter[list->n_parameters++] = weight;
}

/* Adds the two matrices of experts that are fused in one tensor. PEFT wraps a module once for each
 * of its parameters, so the first parameter is inside the wrapper of the second. */
static void add_fused(adapter_list *list, const param *weight, bool inside)
{
    const bool exchanged = list->reader == ADAPTER_TRANSFORMERS_4;
    const int64_t in = weight->shape[exchanged ? 2 : 1], out = weight->shape[exchanged ? 1 : 2];
    char module[160];
    snprintf(module, sizeof module, "%.*s%s", (int)(strrchr(weight->name, '.') - weight->name),
             weight->name, inside ? ".base_layer" : "");
    for (int i = 0; i < 2; i++) {
        adapter_tensor *tensor = add_tensor(list, module, i);
        tensor->of_b = exchanged ? !i : i;
        tensor->weight = weight->lora ? weight + weight->lora + tensor->of_b : NULL;
        tensor->shape[i] = list->rank * weight->shape[0];
        tensor->shape[!i] = i ? out : in;
    }
    list->parameter[list->n_parameters++] = weight;
}

static bool is_square(const param *weight)
{
    return weight->lora && weight->shape[1] == weight->shape[2];
}

/* Adds the parameters of one module of fused experts. gate_up is the first; down follows it in the
 * registry. A parameter without an adapter is added, as zeros, if the other one is square. */
static void add_fused_pair(adapter_list *adapters, const param *gate_up)
{
    const param *down = gate_up + 1;
    bool first = gate_up->lora || is_square(down), second = down->lora || is_square(gate_up);
    if (first)
        add_fused(adapters, gate_up, second);
    if (second)
        add_fused(adapters, down, false);
}

static void add_expert(adapter_list *list, const param *weight, int64_t expert, const char *which,
                       int64_t column, int64_t out)
{
    char module[160];
    snprintf(module, sizeof module, "%.*s.%lld.%s_proj",
             (int)(strrchr(weight->name, '.') - weight->name), weight->name, (long long)expert,
             which);
    for (int i = 0; i < 2; i++) {
        adapter_tensor *tensor = add_tensor(list, module, i);
        tensor->weight = weight->lora ? weight + weight->lora + i : NULL;
        tensor->of_b = i;
        tensor->expert = expert;
        tensor->column = i ? column : 0;
        tensor->shape[i] = list->rank;
        tensor->shape[!i] = i ? out : weight->shape[1];
    }
}

/* Adds one linear map per expert. For transformers 5, PEFT fuses gate and up only if down has an
 * adapter too, so down gets zeros if it has none. */
static void add_separate_pair(adapter_list *adapters, const param *gate_up)
{
    const param *down = gate_up + 1;
    const int64_t width = gate_up->shape[2] / 2;
    for (int64_t expert = 0; expert < gate_up->shape[0] && gate_up->lora; expert++) {
        add_expert(adapters, gate_up, expert, "gate", 0, width);
        add_expert(adapters, gate_up, expert, "up", width, width);
    }
    for (int64_t expert = 0; expert < down->shape[0] && (gate_up->lora || down->lora); expert++)
        add_expert(adapters, down, expert, "down", 0, down->shape[2]);
}

static void add_row(adapter_list *list, const params *registry, const param *weight)
{
    if (weight->n_dims == 2 && weight->lora)
        add_linear(list, weight, registry->text_only_names);
    else if (weight->group != GROUP_EXPERTS || weight->adapter ||
             !strstr(weight->name, ".gate_up_proj"))
        return;
    else if (registry->text_only_names)
        add_separate_pair(list, weight);
    else
        add_fused_pair(list, weight);
}

static void list_free(adapter_list *adapters)
{
    free(adapters->tensor);
    free(adapters->parameter);
}

static status list_make(const params *registry, stream *queue, adapter_reader reader,
                        adapter_list *out)
{
    int64_t most = 1;
    for (int64_t i = 0; i < registry->count; i++)
        most += 3 + (registry->list[i].n_dims == 3 ? 4 * registry->list[i].shape[0] : 0);
    adapter_list list = {.tensor = calloc((size_t)most, sizeof *list.tensor),
                         .queue = queue,
                         .reader = reader,
                         .rank = registry->lora_rank,
                         .parameter = calloc((size_t)registry->count + 1, sizeof *list.parameter)};
    if (!list.tensor || !list.parameter) {
        list_free(&list);
        return FAIL(ST_NO_MEMORY, "no memory for a list of adapters");
    }
    for (int64_t i = 0; i < registry->count; i++)
        add_row(&list, registry, &registry->list[i]);
    *out = list;
    return ST_OK;
}

/* Arranges the values as the file has them. from: the whole row, A [E, in, r] or B [E, r, out]. */
static void arrange_adapter(const adapter_tensor *one, const double *from, double *to)
{
    const int64_t experts = one->weight->shape[0], rows = one->weight->shape[1],
                  columns = one->weight->shape[2];
    const bool exchanged = one->of_b != one->is_b;
    for (int64_t i = 0; i < one->shape[0]; i++)
        for (int64_t j = 0; j < one->shape[1]; j++, to++) {
            if (one->expert != WHOLE) /* transposed: A' [r, in], B' [out, r] */
                *to = from[(one->expert * rows + j) * columns + one->column + i];
            else if (!one->is_b && exchanged) /* [E r, out] of B */
                *to = from[i * columns + j];
            else if (!one->is_b) /* [E r, in] of A */
                *to = from[(i / columns * rows + j) * columns + i % columns];
            else if (exchanged) /* [in, r E] of A */
                *to = from[(j % experts * rows + i) * columns + j / experts];
            else /* [out, r E] of B */
                *to = from[(j % experts * rows + j / experts) * columns + i];
        }
}

static status read_tensor(void *context, int64_t index, double *out)
{
    const adapter_list *adapters = context;
    const adapter_tensor *one = &adapters->tensor[index];
    if (!one->weight) {
        memset(out, 0, (size_t)(one->shape[0] * one->shape[1]) * sizeof *out);
        return ST_OK;
    }
    if (one->linear)
        return lora_read(one->weight, adapters->queue, 0, one->weight->count, out);
    double *all = malloc((size_t)one->weight->count * sizeof *all);
    if (!all)
        return FAIL(ST_NO_MEMORY, "no memory for an adapter of %lld values",
                    (long long)one->weight->count);
    status st = lora_read(one->weight, adapters->queue, 0, one->weight->count, all);
    if (st == ST_OK)
        arrange_adapter(one, all, out);
    free(all);
    return st;
}

static status write_weights(const adapter_list *adapters, const char *folder)
{
    st_tensor *list = calloc((size_t)adapters->count + 1, sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of adapters");
    for (int64_t i = 0; i < adapters->count; i++) {
        const adapter_tensor *one = &adapters->tensor[i];
        list[i] = (st_tensor){.name = one->name, .dtype = DT_F32, .n_dims = one->lengths ? 1 : 2};
        memcpy(list[i].shape, one->shape, sizeof one->shape);
        list[i].data.size = (size_t)(one->shape[0] * one->shape[1]) * sizeof(float);
    }
    status st =
        hf_write_values(folder, weights_name, list, adapters->count, read_tensor, (void *)adapters);
    free(list);
    return st;
}

static bool is_parameter(const adapter_list *adapters, const adapter_tensor *one)
{
    bool found = !one->linear && one->expert == WHOLE;
    for (int64_t i = 0; i < adapters->n_parameters && !found; i++)
        found = one->weight == adapters->parameter[i] + adapters->parameter[i]->lora;
    return found;
}

/* Writes the modules that have a lora_A in the list, except those that are target_parameters. */
static void put_modules(json_writer *json, const adapter_list *list)
{
    static const char start[] = "base_model.model.", end[] = ".lora_A.weight";
    json_begin_array(json);
    for (int64_t i = 0; i < list->count; i++) {
        const adapter_tensor *tensor = &list->tensor[i];
        char module[TENSOR_NAME];
        if (tensor->is_b || tensor->lengths || is_parameter(list, tensor))
            continue;
        size_t length = strlen(tensor->name) - (sizeof start - 1) - (sizeof end - 1);
        snprintf(module, sizeof module, "%.*s", (int)length, tensor->name + sizeof start - 1);
        json_put_cstr(json, module);
    }
    json_end_array(json);
}

static void put_parameters(json_writer *writer, const adapter_list *adapters)
{
    json_begin_array(writer);
    for (int64_t i = 0; i < adapters->n_parameters; i++)
        json_put_cstr(writer, adapters->parameter[i]->name);
    json_end_array(writer);
}

static status write_config(const params *registry, const adapter_list *list, const char *base,
                           const char *folder)
{
    char *text = NULL;
    size_t size;
    json_writer json;
    json_writer_init(&json);
    json_begin_object(&json);
    json_put_key_cstr(&json, "peft_type", "LORA");
    json_put_key_cstr(&json, "base_model_name_or_path", base);
    json_put_key_int(&json, "r", registry->lora_rank);
    json_put_key_real(&json, "lora_alpha", registry->lora_alpha);
    json_put_key_bool(&json, "use_rslora", registry->lora_rslora);
    json_put_key_bool(&json, "use_dora", registry->lora_dora);
    json_put_key_real(&json, "lora_dropout", 0.0);
    json_put_key_cstr(&json, "bias", "none");
    json_put_key_bool(&json, "fan_in_fan_out", false);
    json_put_key_bool(&json, "inference_mode", true);
    json_put_key(&json, "target_modules");
    put_modules(&json, list);
    if (list->n_parameters > 0) {
        json_put_key(&json, "target_parameters");
        put_parameters(&json, list);
    }
    json_end_object(&json);
    status st = json_writer_take(&json, &text, &size);
    if (st == ST_OK)
        st = hf_write_text(folder, config_name, text, size);
    free(text);
    json_writer_done(&json);
    return st;
}

status adapter_export(const params *registry, stream *queue, const char *base,
                      adapter_reader reader, const char *folder)
{
    adapter_list adapters;
    if (!registry->lora_rank)
        return ST_OK;
    TRY(file_make_folders(folder));
    TRY(list_make(registry, queue, reader, &adapters));
    status st = write_weights(&adapters, folder);
    if (st == ST_OK)
        st = write_config(registry, &adapters, base, folder);
    list_free(&adapters);
    return st;
}
