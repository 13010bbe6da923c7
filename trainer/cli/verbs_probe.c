/* verbs_probe.c: trainer probe: runs one forward and one backward pass of a row and writes every
 * number to a file, to compare with another implementation. The file has logits [tokens,
 * vocabulary]; loss, the mean over targets without the auxiliary loss; aux_loss, the routers'
 * auxiliary loss without its coefficient; and for every tensor NAME of the folder grad.NAME, the
 * gradient of loss + COEF aux_loss. Everything is float32, except gradients in the double build,
 * which stay float64. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "common/model_folder/model_files.h"
#include "common/program/verb.h"
#include "trainer/batch/stager.h"
#include "trainer/checkpoint/hf_load.h"
#include "trainer/model/qwen3vl.h"
#include "trainer/cli/probe_gradients.h"
#include "trainer/cli/verbs.h"
#include "trainer/ops/open.h"

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

static void probe_close(probe *p)
{
    if (p->stream) {
        const backend_vtable *v = p->device->backend;
        stager_free(&p->stager, p->stream);
        model_free(&p->model, p->stream);
        if (p->params)
            params_release(p->params, p->stream);
        v->release(p->device, p->loss);
        v->release(p->device, p->weight);
        v->release(p->device, p->aux);
        v->stream_free(&p->stream);
    }
    params_free(&p->params);
    device_close(&p->device);
}

static status probe_open(probe *p, const char *name, const row *r, double aux_coef)
{
    TRY(model_files_find(name, p->folder));
    TRY(device_open(BACKEND_CPU, &(device_options){0}, &p->device));
    const backend_vtable *v = p->device->backend;
    TRY(v->stream_new(p->device, &p->stream));
    TRY(dims_load(p->folder, &p->dims));
    TRY(params_new(&p->dims, &p->params));
    TRY(params_alloc(p->params, p->stream, true));
    TRY(hf_load(p->params, p->stream, p->folder));
    model_options o = {.training = true, .router_aux_coef = aux_coef};
    batch_caps_for(r, 1, 1, 4, &o.cap);
    TRY(model_new(p->stream, &p->dims, p->params, &o, &p->model));
    TRY(stager_new(p->stream, &p->dims, &o.cap, &p->stager));
    stager_mark(p->stager, 0, aux_coef);
    TRY(v->alloc(p->device, sizeof(double), (void **)&p->loss));
    TRY(v->alloc(p->device, sizeof(double), (void **)&p->weight));
    return v->alloc(p->device, st_dtype_size(v->acc), &p->aux);
}

/* Computes all logits of the row, into host memory of the arena. */
static status probe_logits(probe *p, const row *r, const device_batch *b, arena *a, void **out)
{
    const backend_vtable *v = p->device->backend;
    int64_t vocab = p->dims.text.vocab;
    size_t row_bytes = (size_t)vocab * st_dtype_size(v->act);
    void *logits = NULL;
    int32_t *token = NULL;
    loss_sums sums = {p->loss, p->weight, p->aux};
    status st = ST_OK;
    TRY_OR(done, v->alloc(p->device, row_bytes, &logits));
    TRY_OR(done, v->alloc(p->device, sizeof *token, (void **)&token));
    TRY_OR(done, arena_alloc(a, (size_t)r->n_tokens * row_bytes, out));
    TRY_OR(done, model_forward(p->model, p->stream, b, &sums, NULL, NULL));
    for (int32_t t = 0; t < r->n_tokens; t++) {
        TRY_OR(done, v->to_device(p->stream, token, &t, sizeof t));
        TRY_OR(done, model_logits(p->model, p->stream, token, 1, logits));
        TRY_OR(done,
               v->to_host(p->stream, (char *)*out + (size_t)t * row_bytes, logits, row_bytes));
        TRY_OR(done, v->wait(p->stream));
    }
done:
    v->release(p->device, logits);
    v->release(p->device, token);
    return st;
}

static double read_acc(const void *p, st_dtype dtype, int64_t i)
{
    return dtype == DT_F64 ? ((const double *)p)[i] : (double)((const float *)p)[i];
}

/* Runs the forward and the backward pass. Returns the three sums; the gradients are left in the
 * registry. */
static status probe_backward(probe *p, const device_batch *b, double *loss, double *weight,
                             double *aux)
{
    const backend_vtable *v = p->device->backend;
    unsigned char aux_raw[8] = {0};
    loss_sums sums = {p->loss, p->weight, p->aux};
    TRY(v->zero(p->stream, p->loss, sizeof(double)));
    TRY(v->zero(p->stream, p->weight, sizeof(double)));
    TRY(v->zero(p->stream, p->aux, st_dtype_size(v->acc)));
    TRY(params_zero_grad(p->params, p->stream));
    TRY(model_forward_backward(p->model, p->stream, b, &sums));
    TRY(v->to_host(p->stream, loss, p->loss, sizeof *loss));
    TRY(v->to_host(p->stream, weight, p->weight, sizeof *weight));
    TRY(v->to_host(p->stream, aux_raw, p->aux, st_dtype_size(v->acc)));
    TRY(v->wait(p->stream));
    *aux = read_acc(aux_raw, v->acc, 0);
    return ST_OK;
}

static status write_tensors(const probe *p, const row *r, void *logits, float loss, float aux,
                            const st_tensor *gradients, int64_t n, const char *out_path)
{
    st_tensor *list = calloc((size_t)n + 3, sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of %" PRId64 " tensors", n + 3);
    const st_dtype act = p->device->backend->act;
    const int64_t vocab = p->dims.text.vocab;
    const size_t bytes = (size_t)(r->n_tokens * vocab) * st_dtype_size(act);
    list[0] = (st_tensor){.name = "logits",
                          .dtype = act,
                          .n_dims = 2,
                          .shape = {r->n_tokens, vocab},
                          .data = span_of(logits, bytes)};
    list[1] = (st_tensor){.name = "loss", .dtype = DT_F32, .data = span_of(&loss, sizeof loss)};
    list[2] = (st_tensor){.name = "aux_loss", .dtype = DT_F32, .data = span_of(&aux, sizeof aux)};
    memcpy(list + 3, gradients, (size_t)n * sizeof *list);
    status st = st_write(out_path, list, (size_t)n + 3, NULL, 0);
    free(list);
    return st;
}

static status probe_run(probe *p, const row *r, double aux_coef, const char *out_path)
{
    device_batch *b;
    void *logits = NULL;
    st_tensor *gradients = NULL;
    int64_t n = 0;
    double sum = 0.0, weight = 0.0, aux = 0.0;
    arena a;
    arena_init(&a, 0);
    status st = ST_OK;
    TRY_OR(done, stage_rows(p->stager, p->stream, r, 1, &b));
    TRY_OR(done, probe_logits(p, r, b, &a, &logits));
    TRY_OR(done, probe_backward(p, b, &sum, &weight, &aux));
    double by = weight > 0.0 ? 1.0 / weight : 1.0, loss = weight > 0.0 ? sum / weight : 0.0;
    TRY_OR(done, probe_gradients(p->params, p->stream, p->folder, by, &a, &gradients, &n));
    TRY_OR(done, write_tensors(p, r, logits, (float)loss, (float)aux, gradients, n, out_path));
    printf("token loss: %.9g  auxiliary loss: %.9g (gradients: token + %g auxiliary)  targets: %g  "
           "tokens: %" PRId64 "\n",
           loss, aux, aux_coef, weight, r->n_tokens);
done:
    free(gradients);
    arena_done(&a);
    return st;
}

status verb_probe(int argc, char **argv)
{
    const char *folder, *batch, *out, *aux_text;
    const bool overwrite = verb_take_overwrite(&argc, argv);
    TRY(verb_take(&argc, argv, "--model", &folder));
    TRY(verb_take(&argc, argv, "--batch", &batch));
    TRY(verb_take(&argc, argv, "--out", &out));
    TRY(verb_take(&argc, argv, "--aux", &aux_text));
    TRY(verb_all_taken(argc, argv));
    if (!folder || !batch || !out)
        return FAIL(ST_USAGE,
                    "probe needs --model DIR, --batch F.safetensors and --out G.safetensors");
    char *end = NULL;
    double aux = aux_text ? strtod(aux_text, &end) : 0.0;
    if ((end && (*end || end == aux_text)) || !(aux >= 0.0))
        return FAIL(ST_USAGE, "--aux: expected a coefficient of at least 0, got \"%s\"", aux_text);
    TRY(verb_may_write(out, overwrite));
    probe p = {0};
    st_file file = {0};
    row r;
    status st = ST_OK;
    TRY_OR(done, row_open(batch, &file, &r));
    TRY_OR(done, probe_open(&p, folder, &r, aux));
    TRY_OR(done, probe_run(&p, &r, aux, out));
done:
    probe_close(&p);
    st_close(&file);
    return st;
}
