/* optim_ops.c: gradient norm, scale of a step, and AdamW on the CPU (loss_ops.h). */
#include "trainer/ops/cpu/cpu_ops.h"

/* A chunk of a list: the elements [begin, end) of one of its tensors. */
typedef struct chunk {
    const optim_tensor *tensor;
    int64_t begin, end;
} chunk;

/* The list's chunk i, counted from the list's first chunk. */
static chunk chunk_of(const optim_list *l, int64_t i)
{
    /* The binary search ends at the last tensor that begins at or before the chunk. */
    int64_t low = 0, high = l->n_tensors;
    i += l->first_chunk;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (l->tensor[middle].first_chunk <= i)
            low = middle;
        else
            high = middle;
    }
    const optim_tensor *t = l->tensor + low;
    int64_t begin = (i - t->first_chunk) * OPTIM_CHUNK;
    return (chunk){t, begin, min_i64(begin + OPTIM_CHUNK, t->n)};
}

static double chunk_squares(const chunk *c)
{
    const real *x = c->tensor->g;
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = c->begin; i < c->end; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

typedef struct squares_job {
    const sum_squares_args *args;
    double *part;
} squares_job;

static void squares_chunks(const void *context, part p)
{
    const squares_job *job = context;
    for (int64_t i = p.begin; i < p.end; i++) {
        chunk c = chunk_of(&job->args->list, i);
        job->part[i] = chunk_squares(&c);
    }
}

status CPU_OP(sum_squares)(stream *s, const sum_squares_args *a)
{
    void *scratch;
    TRY(cpu_scratch(s, (size_t)a->list.n_chunks * sizeof(double), &scratch));
    squares_job job = {a, scratch};
    cpu_run(s, a->list.n_chunks, OPTIM_CHUNK, squares_chunks, &job);
    for (int64_t i = 0; i < a->list.n_chunks; i++)
        *a->total += job.part[i];
    return ST_OK;
}

status CPU_OP(step_finish)(stream *s, const step_finish_args *a)
{
    (void)s;
    step_scalars *step = a->step;
    double weight = *a->weight;
    double norm = weight > 0 ? sqrt(*a->sum_squares) / weight : 0;
    bool clipped = a->max_norm > 0 && norm > a->max_norm;
    step->skip = !(weight > 0) || !isfinite(norm);
    step->grad_norm = norm;
    step->grad_scale = step->skip != 0 ? 0 : (clipped ? a->max_norm / norm : 1) / weight;
    return ST_OK;
}

static void adamw_chunk(const step_scalars *t, const chunk *c)
{
    const optim_tensor *x = c->tensor;
    const double lr = t->lr * x->lr_factor;
    const real b1 = (real)t->beta1, b2 = (real)t->beta2;
    const real c1 = (real)(1 - t->beta1), c2 = (real)(1 - t->beta2);
    const real rate = (real)(lr / t->bias1), root2 = (real)(1 / sqrt(t->bias2));
    const real keep = (real)(1 - lr * x->decay), eps = (real)t->eps, scale = (real)t->grad_scale;
    real *p = x->p, *m = x->m, *v = x->v;
    const real *g = x->g;
#pragma omp simd
    for (int64_t i = c->begin; i < c->end; i++) {
        real gi = g[i] * scale;
        real mi = b1 * m[i] + c1 * gi, vi = b2 * v[i] + c2 * gi * gi;
        m[i] = mi;
        v[i] = vi;
        p[i] = p[i] * keep - rate * mi / (REAL_SQRT(vi) * root2 + eps);
    }
}

static void adamw_chunks(const void *context, part todo)
{
    const adamw_args *a = context;
    for (int64_t i = todo.begin; i < todo.end; i++) {
        chunk c = chunk_of(&a->list, i);
        adamw_chunk(a->step, &c);
    }
}

status CPU_OP(adamw)(stream *s, const adamw_args *a)
{
    if (a->step->skip == 0)
        cpu_run(s, a->list.n_chunks, 4 * OPTIM_CHUNK, adamw_chunks, a);
    return ST_OK;
}
