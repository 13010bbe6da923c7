/* ranks_parity.c: the program that layouts.py runs, in float and in double. One rank writes the
 * losses of a run, and every parameter's gradient of its first step, to a file; several ranks of
 * any layout compare theirs with that file.
 *
 *   ranks_parity write FILE [OPTIONS OF THE TRAINER]
 *   mpirun -np N ranks_parity compare FILE GRADIENT LOSS [OPTIONS OF THE TRAINER]
 *
 * GRADIENT is the largest error of a tensor's gradient, as a share of its 2-norm, and also of the
 * first step's loss. LOSS is the largest relative error of the other losses.
 *
 * Variables of the environment:
 *
 * RANKS_PARITY_TIES: all routers are zero, so that every token takes the first experts and none
 * takes the others.
 *
 * RANKS_PARITY_LOSSES: a file for the losses of several ranks, written exactly, one a line.
 *
 * RANKS_PARITY_PLANNED: no step may allocate device or pinned memory. Libraries may not either, so
 * this is for the emulated device.
 *
 * RANKS_PARITY_BESIDE: a file of one rank in a coarser number type (BF16). A tensor may then be off
 * by twice what it is off there, plus GRADIENT of its norm, and LOSS holds for all steps. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/program/log.h"
#include "tests/nccl/call_record.h"
#include "tests/parallel/ledger_formula.h"
#include "tests/parallel/slots_watch.h"
#include "trainer/run/step.h"

static const char loss_name[] = "loss";

typedef struct outcome {
    double *loss; /* [steps] */
    int64_t steps;
    step_report last;
    void **gradient; /* [params.n], each [own_n] of the accumulation type in host memory */
} outcome;

static status zero_routers(session *s)
{
    for (int64_t i = 0; i < s->params->count; i++) {
        const param *p = &s->params->list[i];
        if (p->group != GROUP_ROUTER)
            continue;
        double *zeros = calloc((size_t)p->n_local, sizeof *zeros);
        if (!zeros)
            return FAIL(ST_NO_MEMORY, "no memory for %s", p->name);
        status st = params_write(p, s->stream, 0, p->n_local, zeros);
        free(zeros);
        TRY(st);
    }
    return ST_OK;
}

static status keep_gradients(session *s, outcome *o)
{
    const backend_vtable *v = s->device->backend;
    for (int64_t i = 0; i < s->params->count; i++) {
        const param *p = &s->params->list[i];
        size_t bytes = (size_t)p->own_n * st_dtype_size(v->acc);
        o->gradient[i] = calloc(1, bytes ? bytes : 1);
        if (!o->gradient[i])
            return FAIL(ST_NO_MEMORY, "no memory for the gradient of %s", p->name);
        if (p->own_grad) /* NULL: frozen, with a gradient of zero */
            TRY(v->to_host(s->stream, o->gradient[i], p->own_grad, bytes));
    }
    return v->wait(s->stream);
}

static status record_steps(session *s, outcome *o)
{
    o->steps = s->conf->training_steps;
    o->loss = calloc((size_t)o->steps, sizeof *o->loss);
    o->gradient = calloc((size_t)s->params->count, sizeof *o->gradient);
    if (!o->loss || !o->gradient)
        return FAIL(ST_NO_MEMORY, "no memory for %lld steps", (long long)o->steps);
    if (getenv("RANKS_PARITY_TIES"))
        TRY(zero_routers(s));
    for (int64_t step = 1; step <= o->steps; step++) {
        slots_watch_clear();
        TRY(step_run(s, step, &o->last));
        o->loss[step - 1] = o->last.loss;
        if (step == 1)
            TRY(keep_gradients(s, o));
    }
    return ST_OK;
}

static status write_file(const session *s, const outcome *o, const char *path)
{
    const st_dtype acc = s->device->backend->acc;
    st_tensor *list = calloc((size_t)s->params->count + 1, sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of tensors");
    size_t n = 0;
    list[n++] = (st_tensor){.name = loss_name,
                            .dtype = DT_F64,
                            .n_dims = 1,
                            .shape = {o->steps},
                            .data = span_of(o->loss, (size_t)o->steps * sizeof *o->loss)};
    for (int64_t i = 0; i < s->params->count; i++) {
        const param *p = &s->params->list[i];
        list[n++] =
            (st_tensor){.name = p->name,
                        .dtype = acc,
                        .n_dims = 1,
                        .shape = {p->count},
                        .data = span_of(o->gradient[i], (size_t)p->count * st_dtype_size(acc))};
    }
    status st = st_write(path, list, n, NULL, 0);
    free(list);
    return st;
}

static double load_number(const void *array, st_dtype acc, int64_t i)
{
    return acc == DT_F64 ? ((const double *)array)[i] : (double)((const float *)array)[i];
}

enum { SUMS = 4 };

/* Writes the sums of this rank's part of a tensor to out: [0] of squared errors, [1] of the squares
 * of `want`, [2] the number of elements, [3] of squared errors of `beside` (0 if NULL). */
static void sum_errors(const param *p, const void *got, const void *want, const void *beside,
                       st_dtype acc, double out[SUMS])
{
    out[0] = out[1] = out[3] = 0;
    out[2] = (double)p->own_n;
    for (int64_t i = 0, n, stored; i < p->own_n; i += n) {
        n = slice_run(&p->held, p->own_first + i, p->own_n - i, &stored);
        for (int64_t j = 0; j < n; j++) {
            double w = load_number(want, acc, stored + j), d = load_number(got, acc, i + j) - w;
            double b = beside ? load_number(beside, acc, stored + j) - w : 0;
            out[0] += d * d;
            out[1] += w * w;
            out[3] += b * b;
        }
    }
}

/* Sums [n][SUMS] over all ranks. Replicas have the same values, which does not change the ratios.
 */
static status sum_ranks(const session *s, double *squares, int64_t n)
{
    const comm *all = mesh_comm(&s->mesh, MESH_WORLD);
    int64_t bytes = SUMS * n * (int64_t)sizeof *squares;
    double *of = malloc((size_t)(bytes * all->size));
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for %d ranks' sums", all->size);
    status st = comm_host_all_gather(all, (comm_at){"parity", -1}, squares, of, bytes);
    for (int r = 0; r < all->size && st == ST_OK; r++)
        for (int64_t i = 0; i < SUMS * n; i++)
            squares[i] = (r ? squares[i] : 0) + of[r * SUMS * n + i];
    free(of);
    return st;
}

/* The file of one rank, and the file of RANKS_PARITY_BESIDE. */
typedef struct reference {
    st_file file, beside;
    const char *path, *beside_path; /* beside_path NULL: there is no second file */
} reference;

static status square_all(const session *s, const outcome *o, const reference *r, double *squares)
{
    const st_dtype acc = s->device->backend->acc;
    for (int64_t i = 0; i < s->params->count; i++) {
        const param *p = &s->params->list[i];
        const st_tensor *want, *beside = NULL;
        TRY(st_want(&r->file, p->name, acc, 1, r->path, &want));
        if (r->beside_path)
            TRY(st_want(&r->beside, p->name, acc, 1, r->beside_path, &beside));
        sum_errors(p, o->gradient[i], want->data.data, beside ? beside->data.data : NULL, acc,
                   squares + SUMS * i);
    }
    return sum_ranks(s, squares, s->params->count);
}

static status compare_gradients(const session *s, const outcome *o, const reference *r, double most)
{
    const int64_t n = s->params->count;
    double worst = 0, all[SUMS] = {0}, *squares = calloc((size_t)n, SUMS * sizeof *squares);
    const char *where = "none";
    status st = squares ? square_all(s, o, r, squares)
                        : FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)n);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        const double *q = squares + SUMS * i;
        const param *p = &s->params->list[i];
        if (q[2] != (double)(p->count * s->mesh.layout.replicate))
            st = FAIL(ST_BAD_INPUT, "%s: a replica stores %.0f of its %lld elements", p->name,
                      q[2] / (double)s->mesh.layout.replicate, (long long)p->count);
        double more = sqrt(q[0]) - 2 * sqrt(q[3]);
        /* A gradient of zeros must stay zeros, and an infinite reference allows no error. */
        double off = more <= 0 && isfinite(more) ? 0 : fabs(more) / sqrt(q[1]);
        if (!(off <= worst) && !isnan(worst)) { /* a NaN is the worst, and stays so */
            worst = off;
            where = p->name;
        }
        for (int k = 0; k < SUMS; k++)
            all[k] += q[k];
    }
    free(squares);
    if (st == ST_OK && s->mesh.rank == 0 && r->beside_path)
        printf("gradients: all %.2e, of one rank %.2e; worst beyond twice that %.2e, %s\n",
               sqrt(all[0] / all[1]), sqrt(all[3] / all[1]), worst, where);
    else if (st == ST_OK && s->mesh.rank == 0)
        printf("gradients: worst %.2e, %s\n", worst, where);
    if (st == ST_OK && !(worst <= most))
        st = FAIL(ST_BAD_INPUT, "the gradient of %s is off by %.3g of its norm; the limit is %.3g",
                  where, worst, most);
    return st;
}

static status compare_losses(const session *s, const outcome *o, const st_file *f, const char *path,
                             const double most[2])
{
    const st_tensor *t;
    double worst = 0;
    TRY(st_want(f, loss_name, DT_F64, 1, path, &t));
    if (t->shape[0] != o->steps)
        return FAIL_IN(ST_BAD_INPUT, path, "the file has %lld steps, this run %lld",
                       (long long)t->shape[0], (long long)o->steps);
    for (int64_t i = 0; i < o->steps; i++) {
        double want = load_number(t->data.data, DT_F64, i);
        double off = want == o->loss[i] ? 0 : fabs(o->loss[i] - want) / fabs(want);
        worst = off > worst ? off : worst;
        if (!(off <= most[i > 0]))
            return FAIL(ST_BAD_INPUT,
                        "step %lld: the loss is %.9g, that of one rank %.9g: off by %.3g",
                        (long long)(i + 1), o->loss[i], want, off);
    }
    if (s->mesh.rank == 0)
        printf("losses: %.6f -> %.6f, worst %.2e\n", o->loss[0], o->loss[o->steps - 1], worst);
    return ST_OK;
}

static status compare_reference(const session *s, const outcome *o, const char *path,
                                const double most[2])
{
    reference r = {.path = path, .beside_path = getenv("RANKS_PARITY_BESIDE")};
    const double coarse[2] = {most[1], most[1]};
    TRY(st_open(path, &r.file));
    status st = r.beside_path ? st_open(r.beside_path, &r.beside) : ST_OK;
    if (st == ST_OK) {
        st = compare_gradients(s, o, &r, most[0]);
        if (st == ST_OK)
            st = compare_losses(s, o, &r.file, path, r.beside_path ? coarse : most);
        if (r.beside_path)
            st_close(&r.beside);
    }
    st_close(&r.file);
    return st;
}

static status write_losses(const session *s, const outcome *o)
{
    const char *path = getenv("RANKS_PARITY_LOSSES");
    if (!path || s->mesh.rank > 0)
        return ST_OK;
    FILE *f = fopen(path, "we");
    if (!f)
        return FAIL_IN(ST_CANT_CREATE, path, "cannot be written");
    for (int64_t i = 0; i < o->steps; i++)
        fprintf(f, "%a\n", o->loss[i]);
    return fclose(f) == 0 ? ST_OK : FAIL_IN(ST_IO, path, "cannot be written");
}

/* Checks the ledger. This must come before any other call is made. */
static status check_calls(const session *s, const outcome *o, const world *w)
{
    TRY(ledger_formula_check(s, &o->last, w->ledger));
    return record_check(w->ledger, w->place.rank);
}

/* Checks that steps were captured where they should be: for each shape of batch, from its third
 * step on. */
static status check_captures(const session *s, const outcome *o)
{
    const bool shared = s->mesh.layout.expert * s->mesh.layout.expert_tensor > 1;
    const bool wanted = strcmp(s->conf->cuda_graph_scope, "step") == 0 && o->steps > 2 &&
                        s->device->backend->capture_begin && s->mesh.layout.pipeline == 1 &&
                        (!shared || model_exchange(s->model));
    if (wanted == (s->device->counts.captures > 0))
        return ST_OK;
    return FAIL(ST_BAD_INPUT, "%lld graphs were captured", (long long)s->device->counts.captures);
}

/* Checks that no step allocated memory: all of it is allocated before the first step, whatever
 * experts the tokens go to. */
static status check_allocations(const session *s, int64_t before)
{
    const int64_t more = s->device->counts.allocations - before;
    if (more == 0 || !getenv("RANKS_PARITY_PLANNED"))
        return ST_OK;
    return FAIL(ST_BAD_INPUT, "the steps made %lld allocations", (long long)more);
}

static status parity(conf *c, const world *w, const char *path, const double *most)
{
    session s;
    outcome o = {0};
    if (c->parallelism_world_size == 0)
        c->parallelism_world_size = w->place.size;
    TRY(session_resume(c, w, NULL, &s));
    const int64_t allocated = s.device->counts.allocations;
    status st = record_steps(&s, &o);
    if (st == ST_OK && most)
        st = check_allocations(&s, allocated);
    if (st == ST_OK && most && w->place.size > 1)
        st = check_calls(&s, &o, w);
    if (st == ST_OK && most)
        st = check_captures(&s, &o);
    if (st == ST_OK && most)
        st = write_losses(&s, &o);
    if (st == ST_OK)
        st = most ? compare_reference(&s, &o, path, most) : write_file(&s, &o, path);
    for (int64_t i = 0; o.gradient && i < s.params->count; i++)
        free(o.gradient[i]);
    free(o.gradient);
    free(o.loss);
    session_close(&s);
    return st;
}

int main(int argc, char **argv)
{
    const bool compares = argc > 4 && strcmp(argv[1], "compare") == 0;
    double most[2];
    conf c;
    world w;
    if (!compares && (argc < 3 || strcmp(argv[1], "write") != 0)) {
        fprintf(stderr, "ranks_parity write FILE | compare FILE GRADIENT LOSS, then options\n");
        return 64;
    }
    char *path = argv[2];
    for (int i = 0; i < 2 && compares; i++)
        most[i] = strtod(argv[3 + i], NULL);
    int used = compares ? 4 : 2;
    argv[used] = argv[0];
    argc -= used;
    argv += used;
    log_init("parity", LOG_WARN, false);
    status st = conf_load(&c, &argc, argv);
    if (st == ST_OK) {
        st = world_open(&c, &w);
        if (st == ST_OK) {
            slots_watch(&w);
            st = parity(&c, &w, path, compares ? most : NULL);
            if (st != ST_OK)
                fprintf(stderr, "rank %d: %s\n", w.place.rank, status_text());
            st = world_close(&w, st);
        }
        conf_done(&c);
    } else {
        fprintf(stderr, "%s\n", status_text());
    }
    return status_exit_code(st);
}
