/* ranks_parity.c: a run's losses, and every parameter's gradient of its first step, of one rank
 * written to a file; of several ranks of any layout compared with that file. The program of
 * parity.py, in float and in double.
 *
 *   ranks_parity write FILE [OPTIONS OF THE TRAINER]
 *   mpirun -np N ranks_parity compare FILE GRADIENT LOSS [OPTIONS OF THE TRAINER]
 *
 * GRADIENT: the most by which a tensor's gradient may be off, as a share of its 2-norm; LOSS: by
 * which a loss may, as a share of it; the first step's by GRADIENT. With RANKS_PARITY_TIES in the
 * environment all routers are zero: every token then takes the first experts, and none the others.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "tests/parallel/ledger_formula.h"
#include "trainer/step.h"

static const char loss_name[] = "loss";

typedef struct outcome {
    double *loss; /* [steps] */
    int64_t steps;
    void **gradient; /* [params.n] of [own_n] acc, host memory */
} outcome;

static status zero_routers(session *s)
{
    for (int64_t i = 0; i < s->params->n; i++) {
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
    const backend_vtable *v = s->device->v;
    for (int64_t i = 0; i < s->params->n; i++) {
        const param *p = &s->params->list[i];
        size_t bytes = (size_t)p->own_n * st_dtype_size(v->acc);
        o->gradient[i] = calloc(1, bytes ? bytes : 1);
        if (!o->gradient[i])
            return FAIL(ST_NO_MEMORY, "no memory for the gradient of %s", p->name);
        if (p->own_grad) /* not frozen */
            TRY(v->to_host(s->stream, o->gradient[i], p->own_grad, bytes));
    }
    return v->wait(s->stream);
}

static status run(session *s, outcome *o)
{
    o->steps = s->conf->training_steps;
    o->loss = calloc((size_t)o->steps, sizeof *o->loss);
    o->gradient = calloc((size_t)s->params->n, sizeof *o->gradient);
    if (!o->loss || !o->gradient)
        return FAIL(ST_NO_MEMORY, "no memory for %lld steps", (long long)o->steps);
    if (getenv("RANKS_PARITY_TIES"))
        TRY(zero_routers(s));
    for (int64_t step = 1; step <= o->steps; step++) {
        step_report r;
        TRY(step_run(s, step, &r));
        o->loss[step - 1] = r.loss;
        if (step == 1)
            TRY(keep_gradients(s, o));
    }
    return ST_OK;
}

static status write_file(const session *s, const outcome *o, const char *path)
{
    const st_dtype acc = s->device->v->acc;
    st_tensor *list = calloc((size_t)s->params->n + 1, sizeof *list);
    if (!list)
        return FAIL(ST_NO_MEMORY, "no memory for a list of tensors");
    size_t n = 0;
    list[n++] = (st_tensor){.name = loss_name,
                            .dtype = DT_F64,
                            .n_dims = 1,
                            .shape = {o->steps},
                            .data = span_of(o->loss, (size_t)o->steps * sizeof *o->loss)};
    for (int64_t i = 0; i < s->params->n; i++) {
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

static double number(const void *array, st_dtype acc, int64_t i)
{
    return acc == DT_F64 ? ((const double *)array)[i] : (double)((const float *)array)[i];
}

/* Squares of this rank's part of a tensor: of what it is off by, and of what it should be. */
static void square(const param *p, const void *got, const void *want, st_dtype acc, double out[2])
{
    out[0] = out[1] = 0;
    for (int64_t i = 0, n, stored; i < p->own_n; i += n) {
        n = slice_run(&p->held, p->own_first + i, p->own_n - i, &stored);
        for (int64_t j = 0; j < n; j++) {
            double w = number(want, acc, stored + j), d = number(got, acc, i + j) - w;
            out[0] += d * d;
            out[1] += w * w;
        }
    }
}

/* Of all ranks together: [n][2]. Replicas hold the same, which leaves shares as they are. */
static status sum_ranks(const session *s, double *squares, int64_t n)
{
    const comm *all = mesh_comm(&s->mesh, MESH_WORLD);
    int64_t bytes = 2 * n * (int64_t)sizeof *squares;
    double *of = malloc((size_t)(bytes * all->size));
    if (!of)
        return FAIL(ST_NO_MEMORY, "no memory for %d ranks' sums", all->size);
    status st = comm_host_all_gather(all, (comm_at){"parity", -1}, squares, of, bytes);
    for (int r = 0; r < all->size && st == ST_OK; r++)
        for (int64_t i = 0; i < 2 * n; i++)
            squares[i] = (r ? squares[i] : 0) + of[r * 2 * n + i];
    free(of);
    return st;
}

static status compare_gradients(const session *s, const outcome *o, const st_file *f,
                                const char *path, double most)
{
    const int64_t n = s->params->n;
    const st_dtype acc = s->device->v->acc;
    double worst = 0, *squares = calloc((size_t)n, 2 * sizeof *squares);
    const char *where = "none";
    status st = squares ? ST_OK : FAIL(ST_NO_MEMORY, "no memory for %lld tensors", (long long)n);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        const param *p = &s->params->list[i];
        const st_tensor *want;
        st = st_want(f, p->name, acc, 1, path, &want);
        if (st == ST_OK)
            square(p, o->gradient[i], want->data.data, acc, squares + 2 * i);
    }
    if (st == ST_OK)
        st = sum_ranks(s, squares, n);
    for (int64_t i = 0; i < n && st == ST_OK; i++) {
        const double *q = squares + 2 * i;
        double off = q[0] == 0 ? 0 : sqrt(q[0] / q[1]); /* no gradient must stay none */
        if (!(off <= worst)) {
            worst = off;
            where = s->params->list[i].name;
        }
    }
    free(squares);
    if (st == ST_OK && s->mesh.rank == 0)
        printf("gradients: worst %.2e, %s\n", worst, where);
    if (st == ST_OK && !(worst <= most))
        st = FAIL(ST_BAD_INPUT, "the gradient of %s is off by %.3g of its norm, %.3g at most",
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
        return FAIL_IN(ST_BAD_INPUT, path, "%lld steps, this run %lld", (long long)t->shape[0],
                       (long long)o->steps);
    for (int64_t i = 0; i < o->steps; i++) {
        double want = number(t->data.data, DT_F64, i);
        double off = want == o->loss[i] ? 0 : fabs(o->loss[i] - want) / fabs(want);
        worst = off > worst ? off : worst;
        if (!(off <= most[i > 0]))
            return FAIL(ST_BAD_INPUT, "step %lld: loss %.9g, of one rank %.9g: off by %.3g",
                        (long long)(i + 1), o->loss[i], want, off);
    }
    if (s->mesh.rank == 0)
        printf("losses: %.6f -> %.6f, worst %.2e\n", o->loss[0], o->loss[o->steps - 1], worst);
    return ST_OK;
}

static status compare(const session *s, const outcome *o, const char *path, const double most[2])
{
    st_file f;
    TRY(st_open(path, &f));
    status st = compare_gradients(s, o, &f, path, most[0]);
    if (st == ST_OK)
        st = compare_losses(s, o, &f, path, most);
    st_close(&f);
    return st;
}

static status parity(conf *c, const world *w, const char *path, const double *most)
{
    session s;
    outcome o = {0};
    if (c->world_size == 0)
        c->world_size = w->place.size;
    TRY(session_resume(c, w, NULL, &s));
    status st = run(&s, &o);
    if (st == ST_OK && most)
        st = ledger_formula_check(&s, w->ledger);
    if (st == ST_OK)
        st = most ? compare(&s, &o, path, most) : write_file(&s, &o, path);
    for (int64_t i = 0; o.gradient && i < s.params->n; i++)
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
