/* SPDX-License-Identifier: Apache-2.0 */
/* probe.c: the program probe: runs one forward and one backward pass of a row and writes every
 * number to a file, to compare with another implementation. The file has logits [tokens,
 * vocabulary]; loss, the mean over targets without the auxiliary loss; aux_loss, the routers'
 * auxiliary loss without its coefficient; and for every tensor NAME of the folder grad.NAME, the
 * gradient of loss + COEF aux_loss. Everything is float32, except in the double build, whose logits
 * and gradients stay float64.
 *
 *   probe --model DIR --batch F.safetensors --out G.safetensors [--aux COEF]
 *       [--backend cpu|cuda] [--overwrite] */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/model_folder/model_files.h"
#include "common/model_folder/safetensors.h"
#include "common/program/log.h"
#include "common/program/verb.h"
#include "trainer/batch/stager.h"
#include "trainer/checkpoint/hf/hf_check.h"
#include "trainer/checkpoint/hf/hf_load.h"
#include "trainer/model/dims/convert.h"
#include "trainer/model/params/params.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/ops/open.h"

static status stored_layout(const params *registry, const char *folder, expert_layout *out)
{
    hf_folder hf = {0};
    hf_report report = {0};
    TRY(hf_folder_open(folder, &hf));
    status st = hf_check(&hf, registry, &report);
    *out = report.layout;
    hf_report_done(&report);
    hf_folder_close(&hf);
    return st;
}

/* Copies columns [column, column + rows) of one matrix, `from` [in, out], to [rows, in]. */
static void put_transposed(const double *from, int64_t in, int64_t out, int64_t column,
                           int64_t rows, double *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < in; j++)
            *to++ = from[j * out + column + i];
}

/* Picks and arranges the values of one piece from those of its whole parameter. */
static void arrange_piece(const param_piece *piece, const double *all, double *to)
{
    const param *entry = piece->weight;
    if (piece->expert < 0 && !piece->exchanged) {
        memcpy(to, all, (size_t)entry->count * sizeof *to);
        return;
    }
    const int64_t in = entry->shape[1], out = entry->shape[2];
    if (piece->expert >= 0) {
        put_transposed(all + piece->expert * in * out, in, out, piece->column, piece->shape[0], to);
        return;
    }
    for (int64_t i = 0; i < entry->shape[0]; i++)
        put_transposed(all + i * in * out, in, out, 0, out, to + i * in * out);
}

static status put_tensor(const param_piece *piece, st_dtype dtype, const double *all,
                         double *values, arena *memory, st_tensor *out)
{
    const size_t bytes = (size_t)piece->count * st_dtype_size(dtype);
    char name[160], *kept;
    void *data;
    int length = snprintf(name, sizeof name, "grad.%s", piece->name);
    TRY(arena_strndup(memory, name, (size_t)length, &kept));
    TRY(arena_alloc(memory, bytes, &data));
    arrange_piece(piece, all, values);
    convert_from_double(data, dtype, values, piece->count);
    *out = (st_tensor){
        .name = kept, .dtype = dtype, .n_dims = piece->n_dims, .data = span_of(data, bytes)};
    memcpy(out->shape, piece->shape, (size_t)piece->n_dims * sizeof *out->shape);
    return ST_OK;
}

static status read_gradient(const param *entry, stream *queue, double factor, double *all)
{
    TRY(params_read(entry->grad, queue, 0, entry->count, all));
    for (int64_t i = 0; i < entry->count; i++)
        all[i] *= factor;
    return ST_OK;
}

static status put_tensors(const param_piece *pieces, int64_t count, stream *queue, double factor,
                          arena *memory, st_tensor *out)
{
    int64_t most = 1;
    for (int64_t i = 0; i < count; i++)
        most = pieces[i].weight->count > most ? pieces[i].weight->count : most;
    double *all = malloc((size_t)most * sizeof *all), *values = malloc((size_t)most * sizeof *all);
    status st = all && values ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for gradients");
    for (int64_t i = 0; i < count && st == ST_OK; i++) {
        if (i == 0 || pieces[i].weight != pieces[i - 1].weight)
            st = read_gradient(pieces[i].weight, queue, factor, all);
        if (st == ST_OK)
            st = put_tensor(&pieces[i], queue->dev->backend->acc, all, values, memory, &out[i]);
    }
    free(values);
    free(all);
    return st;
}

/* Makes a tensor grad.NAME for every tensor NAME of the folder, with the gradient multiplied by
 * `factor`. A model whose head is tied to its embedding has one for the embedding and none for the
 * head. The registry must hold all gradients, as it does on a single rank. Names and values live in
 * the arena; the list *out is on the heap. */
static status probe_gradients(const params *registry, stream *queue, const char *folder,
                              double factor, arena *memory, st_tensor **out, int64_t *out_n)
{
    expert_layout stored;
    param_piece *pieces = NULL;
    int64_t count = 0;
    TRY(stored_layout(registry, folder, &stored));
    TRY(params_pieces(registry, stored, &pieces, &count));
    st_tensor *list = calloc((size_t)count + 1, sizeof *list);
    status st = list ? put_tensors(pieces, count, queue, factor, memory, list)
                     : FAIL(ST_NO_MEMORY, "no memory for %lld gradients", (long long)count);
    free(pieces);
    if (st != ST_OK) {
        free(list);
        return st;
    }
    *out = list;
    *out_n = count;
    return ST_OK;
}

typedef struct probe {
    device *device;
    stream *stream;
    model_dims dims;
    params *params;
    model *model;
    stager *stager;
    char folder[STATUS_PATH_MAX]; /* of the weights */
    double *loss, *weight;        /* device, [1] each */
    void *aux;
} probe;

static void probe_close(probe *checks)
{
    if (checks->stream) {
        const backend_vtable *backend = checks->device->backend;
        stager_free(&checks->stager, checks->stream);
        model_free(&checks->model, checks->stream);
        if (checks->params)
            params_release(checks->params, checks->stream);
        backend->release(checks->device, checks->loss);
        backend->release(checks->device, checks->weight);
        backend->release(checks->device, checks->aux);
        backend->stream_free(&checks->stream);
    }
    params_free(&checks->params);
    device_close(&checks->device);
}

static status probe_open(probe *checks, int backend_kind, const char *name, const row *packed,
                         double aux_coef)
{
    TRY(model_files_find(name, checks->folder));
    TRY(device_open(backend_kind, &(device_options){.deterministic = true}, &checks->device));
    const backend_vtable *backend = checks->device->backend;
    TRY(backend->stream_new(checks->device, &checks->stream));
    TRY(dims_load(checks->folder, &checks->dims));
    TRY(params_new(&checks->dims, &checks->params));
    TRY(params_alloc(checks->params, checks->stream, true));
    printf("weights: %s\n", checks->folder);
    fflush(stdout);
    TRY(hf_load(checks->params, checks->stream, checks->folder));
    model_options options = {.training = true, .router_aux_coef = aux_coef};
    batch_caps_for(packed, 1, 1, 4, &options.cap);
    TRY(model_new(checks->stream, &checks->dims, checks->params, &options, &checks->model));
    TRY(stager_new(checks->stream, &checks->dims, &options.cap, &checks->stager));
    stager_mark(checks->stager, 0, aux_coef);
    TRY(backend->alloc(checks->device, sizeof(double), (void **)&checks->loss));
    TRY(backend->alloc(checks->device, sizeof(double), (void **)&checks->weight));
    return backend->alloc(checks->device, st_dtype_size(backend->acc), &checks->aux);
}

/* Computes all logits of the row, into host memory of the arena. */
static status probe_logits(probe *checks, const row *packed, const device_batch *batch,
                           arena *memory, void **out)
{
    const backend_vtable *backend = checks->device->backend;
    int64_t vocab = checks->dims.text.vocab;
    size_t row_bytes = (size_t)vocab * st_dtype_size(backend->act);
    void *logits = NULL;
    int32_t *token = NULL;
    loss_sums sums = {checks->loss, checks->weight, checks->aux};
    status st = ST_OK;
    TRY_OR(done, backend->alloc(checks->device, row_bytes, &logits));
    TRY_OR(done, backend->alloc(checks->device, sizeof *token, (void **)&token));
    TRY_OR(done, arena_alloc(memory, (size_t)packed->n_tokens * row_bytes, out));
    TRY_OR(done, model_forward(checks->model, checks->stream, batch, &sums, NULL, NULL));
    for (int32_t i = 0; i < packed->n_tokens; i++) {
        TRY_OR(done, backend->to_device(checks->stream, token, &i, sizeof i));
        TRY_OR(done, model_logits(checks->model, checks->stream, token, 1, logits));
        TRY_OR(done, backend->to_host(checks->stream, (char *)*out + (size_t)i * row_bytes, logits,
                                      row_bytes));
        TRY_OR(done, backend->wait(checks->stream));
    }
done:
    backend->release(checks->device, logits);
    backend->release(checks->device, token);
    return st;
}

static double read_acc(const void *aux_raw, st_dtype dtype, int64_t index)
{
    return dtype == DT_F64 ? ((const double *)aux_raw)[index]
                           : (double)((const float *)aux_raw)[index];
}

/* Runs the forward and the backward pass. Returns the three sums; the gradients are left in the
 * registry. */
static status probe_backward(probe *checks, const device_batch *batch, double *loss, double *weight,
                             double *aux)
{
    const backend_vtable *backend = checks->device->backend;
    unsigned char aux_raw[8] = {0};
    loss_sums sums = {checks->loss, checks->weight, checks->aux};
    TRY(backend->zero(checks->stream, checks->loss, sizeof(double)));
    TRY(backend->zero(checks->stream, checks->weight, sizeof(double)));
    TRY(backend->zero(checks->stream, checks->aux, st_dtype_size(backend->acc)));
    TRY(params_zero_grad(checks->params, checks->stream));
    TRY(model_forward_backward(checks->model, checks->stream, batch, &sums));
    TRY(backend->to_host(checks->stream, loss, checks->loss, sizeof *loss));
    TRY(backend->to_host(checks->stream, weight, checks->weight, sizeof *weight));
    TRY(backend->to_host(checks->stream, aux_raw, checks->aux, st_dtype_size(backend->acc)));
    TRY(backend->wait(checks->stream));
    *aux = read_acc(aux_raw, backend->acc, 0);
    return ST_OK;
}

/* Turns logits in bf16 into float. */
static status logits_as_float(int64_t count, st_dtype act, arena *memory, void **inout)
{
    double piece[1024];
    const int64_t most = sizeof piece / sizeof *piece;
    if (act != DT_BF16)
        return ST_OK;
    const char *from = *inout;
    float *to;
    TRY(arena_alloc(memory, (size_t)count * sizeof *to, (void **)&to));
    *inout = to;
    for (int64_t i = 0; i < count; i += most) {
        const int64_t run = count - i < most ? count - i : most;
        convert_to_double(piece, from + i * (int64_t)st_dtype_size(act), act, run);
        convert_from_double(to + i, DT_F32, piece, run);
    }
    return ST_OK;
}

static status write_tensors(const probe *checks, const row *packed, void *logits, float loss,
                            float aux, const st_tensor *gradients, int64_t count, arena *memory,
                            const char *out_path)
{
    const st_dtype act = checks->device->backend->act, as = act == DT_BF16 ? DT_F32 : act;
    const int64_t vocab = checks->dims.text.vocab, values = packed->n_tokens * vocab;
    TRY(logits_as_float(values, act, memory, &logits));
    st_tensor *list = calloc((size_t)count + 3, sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of %" PRId64 " tensors", count + 3);
    list[0] = (st_tensor){.name = "logits",
                          .dtype = as,
                          .n_dims = 2,
                          .shape = {packed->n_tokens, vocab},
                          .data = span_of(logits, (size_t)values * st_dtype_size(as))};
    list[1] = (st_tensor){.name = "loss", .dtype = DT_F32, .data = span_of(&loss, sizeof loss)};
    list[2] = (st_tensor){.name = "aux_loss", .dtype = DT_F32, .data = span_of(&aux, sizeof aux)};
    memcpy(list + 3, gradients, (size_t)count * sizeof *list);
    status st = st_write(out_path, list, (size_t)count + 3, NULL, 0);
    free(list);
    return st;
}

static status probe_run(probe *checks, const row *packed, double aux_coef, const char *out_path)
{
    device_batch *batch;
    void *logits = NULL;
    st_tensor *gradients = NULL;
    int64_t count = 0;
    double sum = 0.0, weight = 0.0, aux = 0.0;
    arena memory;
    arena_init(&memory, 0);
    status st = ST_OK;
    TRY_OR(done, stage_rows(checks->stager, checks->stream, packed, 1, &batch));
    TRY_OR(done, probe_logits(checks, packed, batch, &memory, &logits));
    TRY_OR(done, probe_backward(checks, batch, &sum, &weight, &aux));
    double by = weight > 0.0 ? 1.0 / weight : 1.0, loss = weight > 0.0 ? sum / weight : 0.0;
    TRY_OR(done, probe_gradients(checks->params, checks->stream, checks->folder, by, &memory,
                                 &gradients, &count));
    TRY_OR(done, write_tensors(checks, packed, logits, (float)loss, (float)aux, gradients, count,
                               &memory, out_path));
    printf("token loss: %.9g  auxiliary loss: %.9g (gradients: token + %g auxiliary)  targets: %g  "
           "tokens: %" PRId64 "\n",
           loss, aux, aux_coef, weight, packed->n_tokens);
done:
    free(gradients);
    arena_done(&memory);
    return st;
}

static status backend_named(const char *name, int *out)
{
    *out = name && strcmp(name, "cuda") == 0 ? BACKEND_CUDA : BACKEND_CPU;
    return !name || *out == BACKEND_CUDA || strcmp(name, "cpu") == 0
               ? ST_OK
               : FAIL(ST_USAGE, "--backend: expected cpu or cuda, got \"%s\"", name);
}

static status run_command(int argc, char **argv)
{
    const char *folder, *batch, *out, *aux_text, *device_name;
    int kind;
    const bool overwrite = verb_take_overwrite(&argc, argv);
    TRY(verb_take(&argc, argv, "--model", &folder));
    TRY(verb_take(&argc, argv, "--batch", &batch));
    TRY(verb_take(&argc, argv, "--out", &out));
    TRY(verb_take(&argc, argv, "--aux", &aux_text));
    TRY(verb_take(&argc, argv, "--backend", &device_name));
    TRY(verb_all_taken(argc, argv));
    if (!folder || !batch || !out)
        return FAIL(ST_USAGE,
                    "probe needs --model DIR, --batch F.safetensors and --out G.safetensors");
    char *end = NULL;
    double aux = aux_text ? strtod(aux_text, &end) : 0.0;
    if ((end && (*end || end == aux_text)) || !(aux >= 0.0))
        return FAIL(ST_USAGE, "--aux: expected a coefficient of at least 0, got \"%s\"", aux_text);
    TRY(backend_named(device_name, &kind));
    TRY(verb_may_write(out, overwrite));
    probe checks = {0};
    st_file file = {0};
    row packed;
    status st = ST_OK;
    TRY_OR(done, row_open(batch, &file, &packed));
    TRY_OR(done, probe_open(&checks, kind, folder, &packed, aux));
    TRY_OR(done, probe_run(&checks, &packed, aux, out));
done:
    probe_close(&checks);
    st_close(&file);
    return st;
}

int main(int argc, char **argv)
{
    log_init("probe", LOG_INFO, false);
    const status st = run_command(argc, argv);
    if (st != ST_OK)
        log_error("%s", status_text());
    return status_exit_code(st);
}
