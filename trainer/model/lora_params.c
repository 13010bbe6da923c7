/* lora_params.c: adapters as rows of the registry, gathered and merged, as lora_params.h says. */
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/model/lora_params.h"

static const char weight_end[] = ".weight";

size_t lora_module_size(const param *p)
{
    size_t n = strlen(p->name), end = sizeof weight_end - 1;
    return n > end && strcmp(p->name + n - end, weight_end) == 0 ? n - end : n;
}

/* True for matrices of decoder layers, which excludes the embedding and the head. */
static bool may_adapt(const params *p, const param *q)
{
    size_t n = strlen(p->text_prefix);
    return !q->adapter && q->n_dims > 1 && strncmp(q->name, p->text_prefix, n) == 0 &&
           strncmp(q->name + n, "layers.", 7) == 0;
}

/* A target is the last part of a module's name, or a pattern for the whole name. */
static bool is_named(const param *q, const char *target)
{
    char module[sizeof q->name];
    snprintf(module, sizeof module, "%.*s", (int)lora_module_size(q), q->name);
    const char *last = strrchr(module, '.');
    return strcmp(last ? last + 1 : module, target) == 0 || fnmatch(target, module, 0) == 0;
}

/* Marks the rows that `targets` names: lora = 1, until append_pair knows the right number. */
static status mark_targets(params *p, const char *targets, int64_t *inout_n)
{
    for (const char *at = targets; *at;) {
        char target[160];
        size_t n = strcspn(at, ", ");
        snprintf(target, sizeof target, "%.*s", (int)n, at);
        at += n + (at[n] != 0);
        if (!n)
            continue;
        bool found = false;
        for (int64_t i = 0; i < p->count; i++) {
            param *q = &p->list[i];
            if (!may_adapt(p, q) || !is_named(q, target))
                continue;
            found = true;
            *inout_n += q->lora == 0;
            q->lora = 1;
        }
        if (!found)
            return FAIL(ST_CONFIG,
                        "lora.targets: \"%s\" names no matrix of the decoder's layers (q_proj, "
                        "k_proj, v_proj, o_proj, gate, gate_up_proj, down_proj, ..); trainer "
                        "inspect lists them all",
                        target);
    }
    return *inout_n ? ST_OK
                    : FAIL(ST_CONFIG, "lora.targets is empty; name the matrices that get adapters");
}

/* Appends one half of base's adapter to the list. shared_axis: the axis that it has in common with
 * base, under the same number. */
static void append_adapter(params *p, const param *base, const char *which, param_init init,
                           int n_dims, const int64_t *shape, int shared_axis)
{
    bool linear = base->n_dims == 2;
    param *q = &p->list[p->count++];
    *q = (param){.n_dims = n_dims,
                 .count = 1,
                 .unit = base->unit,
                 .layer = base->layer,
                 .group = base->group,
                 .init = init,
                 .decay = true,
                 .adapter = true,
                 .cut_axis = -1,
                 .lr_factor = 1,
                 .own_decay = -1};
    snprintf(q->name, sizeof q->name, "%.*s.%s%s", (int)lora_module_size(base), base->name, which,
             linear ? weight_end : "");
    for (int i = 0; i < n_dims; i++) {
        q->shape[i] = q->local[i] = shape[i];
        q->count *= shape[i];
    }
    q->n_local = q->count;
    q->held = slice_whole(shape[0], q->count / shape[0], 1, 1);
    if (base->cut_axis == shared_axis)
        q->cut_axis = shared_axis;
    if (base->cut == CUT_EXPERT) { /* an expert's adapter is on the rank of the expert */
        const int64_t parts = q->cut_axis == 2 ? base->held.size[2] : 1;
        q->cut = CUT_EXPERT;
        q->held = slice_whole(shape[0], shape[1], parts, shape[2] / parts);
    } else if (q->cut_axis >= 0) {
        q->cut = base->cut;
    }
    p->total += q->count;
}

static void append_pair(params *p, int64_t i)
{
    param *w = &p->list[i];
    const int64_t *s = w->shape, r = p->lora_rank;
    bool linear = w->n_dims == 2;
    w->lora = p->count - i;
    append_adapter(p, w, "lora_A", INIT_NORMAL, w->n_dims,
                   linear ? (const int64_t[]){r, s[1]} : (const int64_t[]){s[0], s[1], r}, 1);
    /* The variance of PEFT's first values, which are uniform within 1 / sqrt(in). */
    p->list[p->count - 1].init_std = 1 / sqrt(3 * (double)s[1]);
    append_adapter(p, w, "lora_B", INIT_ZERO, w->n_dims,
                   linear ? (const int64_t[]){s[0], r} : (const int64_t[]){s[0], r, s[2]},
                   linear ? 0 : 2);
    p->lora_experts |= !linear;
}

status lora_add(params *p, int64_t rank, double alpha, const char *targets)
{
    int64_t n = 0, rows = p->count;
    TRY(mark_targets(p, targets, &n));
    param *list = realloc(p->list, (size_t)(p->count + 2 * n) * sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for %lld adapters", (long long)n);
    p->list = list;
    p->lora_rank = rank;
    for (int64_t i = 0; i < rows; i++) {
        list[i].frozen = true;
        if (!list[i].lora)
            continue;
        list[i].lora_scale = alpha / (double)rank;
        append_pair(p, i);
    }
    return ST_OK;
}

/* Adds scale A B to elements [first, first + n) of w [in, out], which are at w; A [in, r],
 * B [r, out]. transposed: w [out, in], A [r, in], B [out, r]. */
static void add_product(const double *a, const double *b, int64_t r, int64_t in, int64_t out,
                        bool transposed, double scale, int64_t first, int64_t n, double *w)
{
    for (int64_t e = 0; e < n; e++) {
        int64_t wide = transposed ? in : out;
        int64_t i = (first + e) / wide, j = (first + e) % wide;
        double sum = 0;
        for (int64_t k = 0; k < r; k++)
            sum += transposed ? a[k * in + j] * b[i * r + k] : a[i * r + k] * b[k * out + j];
        w[e] += scale * sum;
    }
}

status lora_read(const param *p, stream *s, int64_t first, int64_t n, double *to)
{
    if (!p->whole)
        return params_read(p->value, s, first, n, to);
    memcpy(to, p->whole + first, (size_t)n * sizeof *to);
    return ST_OK;
}

/* all [count] = what this rank stores of a row, at its place; zeros elsewhere. */
static status place_own(const param *p, stream *s, void *all)
{
    const backend_vtable *v = s->dev->backend;
    const size_t acc = st_dtype_size(v->acc);
    TRY(v->zero(s, all, (size_t)p->count * acc));
    for (int64_t i = 0, n, stored; i < p->own_n; i += n) {
        n = slice_run(&p->held, p->own_first + i, p->own_n - i, &stored);
        TRY(v->copy(s, (char *)all + (size_t)stored * acc, (char *)p->value + (size_t)i * acc,
                    (size_t)n * acc));
    }
    return ST_OK;
}

/* Sums the ranks' parts of a row into q->whole: within a replica, one rank stores each element. */
static status gather_row(const params *p, const param *q, stream *s, void *all)
{
    static const mesh_group groups[] = {MESH_WHOLE, MESH_PIPELINE};
    TRY(place_own(q, s, all));
    for (int i = 0; i < 2; i++)
        TRY(comm_all_reduce(mesh_comm(p->mesh, groups[i]), s,
                            (comm_at){"gather adapters", q->layer}, all, q->count,
                            s->dev->backend->acc, COMM_SUM));
    return params_read(all, s, 0, q->count, q->whole);
}

status lora_gather(params *p, stream *s)
{
    const backend_vtable *v = s->dev->backend;
    int64_t sum = 0, most = 0;
    void *all;
    if (!p->mesh || p->mesh->layout.world == 1 || !p->lora_rank)
        return ST_OK;
    for (int64_t i = 0; i < p->count; i++) {
        sum += p->list[i].adapter ? p->list[i].count : 0;
        most = p->list[i].adapter && p->list[i].count > most ? p->list[i].count : most;
    }
    if (!p->adapters)
        p->adapters = malloc((size_t)sum * sizeof *p->adapters);
    if (!p->adapters)
        return FAIL(ST_NO_MEMORY, "no memory for %lld values of adapters", (long long)sum);
    TRY(v->alloc(s->dev, (size_t)most * st_dtype_size(v->acc), &all));
    status st = ST_OK;
    double *at = p->adapters;
    for (int64_t i = 0; i < p->count && st == ST_OK; i++) {
        param *q = &p->list[i];
        if (!q->adapter)
            continue;
        q->whole = at;
        at += q->count;
        st = gather_row(p, q, s, all);
    }
    v->release(s->dev, all);
    return st;
}

/* Adds the adapter's product to elements [first, first + n) of one matrix: a linear map's, or that
 * of expert number `matrix`. */
static status merge_matrix(const param *p, stream *s, int64_t matrix, int64_t first, int64_t n,
                           double *to)
{
    const param *a = p + p->lora, *b = a + 1;
    bool linear = p->n_dims == 2;
    int64_t in = p->shape[1], out = linear ? p->shape[0] : p->shape[2];
    int64_t r = linear ? a->shape[0] : a->shape[2];
    double *x = malloc((size_t)(r * in) * sizeof *x), *y = malloc((size_t)(r * out) * sizeof *y);
    status st = x && y ? ST_OK : FAIL(ST_NO_MEMORY, "no memory to merge an adapter");
    if (st == ST_OK)
        st = lora_read(a, s, matrix * r * in, r * in, x);
    if (st == ST_OK)
        st = lora_read(b, s, matrix * r * out, r * out, y);
    if (st == ST_OK)
        add_product(x, y, r, in, out, linear, p->lora_scale, first, n, to);
    free(x);
    free(y);
    return st;
}

/* The same for elements [first, first + n) of the published tensor, which may span matrices. */
static status merge_adapter(const param *p, stream *s, int64_t first, int64_t n, double *inout)
{
    int64_t size = p->n_dims == 2 ? p->count : p->shape[1] * p->shape[2];
    for (int64_t done = 0, part; done < n; done += part) {
        int64_t at = (first + done) % size;
        part = size - at < n - done ? size - at : n - done;
        TRY(merge_matrix(p, s, (first + done) / size, at, part, inout + done));
    }
    return ST_OK;
}

status lora_read_merged(const param *p, stream *s, int64_t first, int64_t n, double *to)
{
    TRY(params_read(p->value, s, first - p->own_first, n, to));
    for (int64_t i = 0, run, stored; p->lora && i < n; i += run) {
        run = slice_run(&p->held, first + i, n - i, &stored);
        TRY(merge_adapter(p, s, stored, run, to + i));
    }
    return ST_OK;
}
